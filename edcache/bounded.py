"""What bytes from a stranger may make this process allocate.

    loads     JSON whose values its text justifies
    justify   arrays whose length only the file claims

`FREE_NBYTES` are free: what is asked for beyond them, the size of the file must justify.
"""

from __future__ import annotations

import json
from typing import Any, Final

from edcache.errors import LengthError

FREE_NBYTES: Final = 1 << 26

# A value of JSON is a Python object of up to 90 bytes: so many are free, and one more for each so many bytes.
_FREE_VALUES: Final = 1 << 18
_NBYTES_A_VALUE: Final = 64
_SEPARATORS: Final = ",[{:"


def loads(data: bytes | memoryview | str) -> Any:
    """Read JSON as this package writes it: ASCII, no key twice in one object.

    Raises:
        ValueError: it is none, or "812,345 values in 1,624,690 bytes of JSON, more than ...".
    Cost: some 25 MB and 6 bytes for each of its bytes at most, whatever it holds.
    """
    try:
        # Not left to json, which takes bytes with zeros among them for UTF-16 or 32.
        text = data if isinstance(data, str) else str(data, "ascii")
    except UnicodeDecodeError:
        raise ValueError("JSON that is not ASCII") from None
    if not text.isascii():
        raise ValueError("JSON that is not ASCII")
    allowed = _FREE_VALUES + len(text) // _NBYTES_A_VALUE
    if _separators([text]) > allowed:
        values = _values(text, allowed)
        if values > allowed:
            raise ValueError(f"{values:,} values in {len(text):,} bytes of JSON, more than {allowed:,}")
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None


def _values(text: str, allowed: int) -> int:
    """At most so many objects come of a JSON text: what separates them is counted, but for within strings."""
    plain = text.replace("\\\\", "").replace('\\"', "")
    strings = plain.count('"') // 2
    return strings if strings > allowed else 1 + _separators(plain.split('"')[::2])


def _separators(parts: list[str]) -> int:
    return sum(part.count(separator) for part in parts for separator in _SEPARATORS)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice in one object of JSON")
    return found


def justify(nbytes: int, file_nbytes: int, where: str, claim: str) -> None:
    """Refuse to allocate `nbytes` that neither the file's size nor the free ones justify.

    Raises:
        LengthError: "train.zip: 1,000,000,000,000 samples would take 9,000,000,000,000 bytes here, ...".
    """
    if nbytes > file_nbytes + FREE_NBYTES:
        raise LengthError(
            f"{where}: {claim} would take {nbytes:,} bytes here, the file has {file_nbytes:,}; where the "
            "length is right, open it with its source: CachedDataset(source, path)"
        )
