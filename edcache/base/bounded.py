"""JSON as this package writes it, and the memory that is left."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

_GROUPS_OF_PROCESS, _GROUPS, _MACHINE = "/proc/self/cgroup", "/sys/fs/cgroup", "/proc/meminfo"
_MOST_LEVELS: Final = 64
# Left to the rest of the machine.
_SPARE_NBYTES: Final = 64 << 20


def loads(data: bytes | memoryview | str) -> Any:
    """Read JSON as this package writes it: ASCII, no key twice in one object; else ValueError."""
    # Not left to json, which takes bytes with zeros among them for UTF-16 or 32.
    text = data if isinstance(data, str) else str(data, "latin-1")
    if not text.isascii():
        raise ValueError("JSON that is not ASCII")
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice in one object of JSON")
    return found


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
