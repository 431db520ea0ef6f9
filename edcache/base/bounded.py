"""What bytes from a stranger may make this process allocate.

    loads         JSON whose values its text justifies
    justify       arrays whose length only the file claims
    check_books   what is kept of each sample, in the memory that is left
    available     the memory that is left, by the machine and by its control groups

`FREE_NBYTES` are free: what is asked for beyond them, the size of the file must justify.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

from edcache.base.errors import LengthError

FREE_NBYTES: Final = 1 << 26

# A value of JSON is a Python object of up to 90 bytes: so many are free, and one more for each so many bytes.
_FREE_VALUES: Final = 1 << 18
_NBYTES_A_VALUE: Final = 64
_SEPARATORS: Final = ",[{:"

_GROUPS_OF_PROCESS, _GROUPS, _MACHINE = "/proc/self/cgroup", "/sys/fs/cgroup", "/proc/meminfo"
_MOST_LEVELS: Final = 64
# Left to the rest of the machine.
_SPARE_NBYTES: Final = 64 << 20


def loads(data: bytes | memoryview | str) -> Any:
    """Read JSON as this package writes it: ASCII, no key twice in one object; else ValueError.

    Cost: some 25 MB and 6 bytes for each of its bytes at most, whatever it holds.
    """
    # Not left to json, which takes bytes with zeros among them for UTF-16 or 32.
    text = data if isinstance(data, str) else str(data, "latin-1")
    if not text.isascii():
        raise ValueError("JSON that is not ASCII")
    allowed = _FREE_VALUES + len(text) // _NBYTES_A_VALUE
    if _separators([text]) > allowed:
        # What separates them is counted, but for within strings.
        bare = text.replace("\\\\", "").replace('\\"', "")
        strings = bare.count('"') // 2
        values = strings if strings > allowed else 1 + _separators(bare.split('"')[::2])
        if values > allowed:
            raise ValueError(f"{values:,} values in {len(text):,} bytes of JSON, more than {allowed:,}")
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None


def _separators(parts: list[str]) -> int:
    return sum(part.count(separator) for part in parts for separator in _SEPARATORS)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice in one object of JSON")
    return found


def justify(nbytes: int, file_nbytes: int, where: str, claim: str) -> None:
    """Raise LengthError for bytes to allocate that neither the file's size nor the free ones justify."""
    if nbytes > file_nbytes + FREE_NBYTES:
        raise LengthError(
            f"{where}: {claim} would take {nbytes:,} bytes here, the file has {file_nbytes:,}; where the "
            "length is right, open it with its source: CachedDataset(source, path)"
        )


def available() -> int:
    """Bytes of memory that this process may still take, by the machine and by its control groups."""
    known = _fields(_MACHINE).get("MemAvailable:")
    # Where nobody can tell, as without a descriptor to look with, the kernel has to.
    free = [sys.maxsize if known is None else known * 1024]
    for folder, most, now, prefix in _groups():
        limit, used = _number(os.path.join(folder, most)), _number(os.path.join(folder, now))
        if limit is None or used is None:
            continue
        # Of these the kernel takes as many as it needs.
        told = _fields(os.path.join(folder, "memory.stat"))
        files = told.get(f"{prefix}inactive_file", 0) + told.get(f"{prefix}active_file", 0)
        free.append(limit - used + files)
    return max(0, min(free) - _SPARE_NBYTES)


def check_books(samples: int, nbytes_each: int, where: str) -> None:
    """Raise LengthError for more samples than the memory that is left can keep books of."""
    if samples * nbytes_each <= FREE_NBYTES:
        return
    most = available() // nbytes_each
    if samples > most:
        raise LengthError(
            f"{where}: {samples:,} samples; their books take {nbytes_each} bytes of memory each, so that at "
            f"most {most:,} fit here; divide them into several archives, or give it more memory"
        )


def _groups() -> Iterator[tuple[str, str, str, str]]:
    """The control groups that limit memory: folder, names of limit and use, what its fields begin with."""
    try:
        with open(_GROUPS_OF_PROCESS, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for _, kinds, path in lines:
        if kinds == "":
            top, names = _GROUPS, ("memory.max", "memory.current", "")
        elif "memory" in kinds.split(","):
            top = f"{_GROUPS}/memory"
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        else:
            continue
        for _ in range(_MOST_LEVELS):
            yield top + path.rstrip("/"), *names
            if path in ("/", ""):
                break
            path = os.path.dirname(path)


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # "max" is no limit
        return None


def _fields(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="ascii") as file:
            return {words[0]: int(words[1]) for words in map(str.split, file) if len(words) > 1}
    except OSError:
        return {}
