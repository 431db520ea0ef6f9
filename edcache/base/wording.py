"""Text of values, sizes and near names in messages: short, and never by a repr that may raise."""

from __future__ import annotations

import datetime as dt
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache.base.errors import OptionError, UnknownLabelError

Ints = npt.NDArray[np.int64]
Sound = Callable[["bytes | memoryview"], bool]
"""Check of bytes that are read: True if they fit their sum."""

_WIDEST: Final = 60
_NARROWEST: Final = 12  # column of a table, if it has more text
_NUMBER: Final = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?( bytes| [kMGTPE]B)?|nan|[-+]?inf")
_MOST_BITS: Final = 2048
_MOST_TEXTS: Final = 12
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_NBYTES: Final = {f"{prefix}B".lower(): 1000**power for power, prefix in enumerate(_PREFIXES[:-1])} | {
    f"{prefix}iB".lower(): 1024**power for power, prefix in enumerate(_PREFIXES[:-1]) if prefix
}
"""Bytes by unit, in lower case: "b", "kb", "kib", ..."""


def unknown_label(name: object, known: Sequence[str]) -> UnknownLabelError:
    """Make the error for an unknown column; it lists the known ones."""
    there = f"this archive has: {some_of(known)}" if known else "this archive has no labels"
    if not isinstance(name, str):
        return UnknownLabelError(f"{shown(name)} stands where the name of a label is to stand; {there}")
    remedy = f'; make it one by in_memory_keys=["{name}"] or add_labels("{name}", values)'
    return UnknownLabelError(f'no label "{name}"; {there}{suggestion(name, known) or remedy}')


def shown(value: object) -> str:
    """Return a short repr of a plain value, else the name of its type: a repr may be long or raise."""
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= 40 else f"{value[:37]!r}..."
    if isinstance(value, int) and value.bit_length() > 128:
        head = abs(value) >> (value.bit_length() + 3) // 4 * 4 - 32  # in hex, as digits may be refused
        return f"{'-' * (value < 0)}{head:#x}... of {value.bit_length():,} bits"
    if value is None or isinstance(value, (bool, int, float, dt.date, dt.timedelta, np.generic)):
        with suppress(ValueError):  # a datetime64 without a unit
            return str(value)
    return f"<{type(value).__name__}>"


def article(value: object) -> str:
    """Name a value's type with its article: "an int"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def described(value: object) -> str:
    """Name a value's type, with its shape, its length or its text: "a str ('cat')"."""
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{article(value)} of shape {tuple(shape)} and dtype {getattr(value, 'dtype', '?')}"
    if isinstance(value, (list, tuple)):
        first = f" that begins with {described(value[0])}" if value else ""
        return f"{article(value)} of length {len(value)}{first}"
    text = shown(value)
    return article(value) if text.startswith("<") else f"{article(value)} ({text})"


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean label?" if `name` is a misspelling of one of the names; else ""."""
    folded = {known.casefold(): known for known in names}
    # At 0.75 split is near spilt, and not near list.
    near = get_close_matches(name.casefold(), folded, 1, 0.75)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def named(fingerprint: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a dict of a fingerprint, its arguments or attributes; {} if it has none."""
    values = fingerprint.get(key)
    return values if isinstance(values, dict) else {}


def parsed_bytes(asked: object) -> int | None:
    """Parse a size: an int above 0, or a text such as "20GB" or "512 MiB"; None for anything else."""
    if type(asked) is int:
        return asked if asked > 0 else None
    if not isinstance(asked, str):
        return None
    stripped = asked.strip().replace("_", "").lower()
    digits = stripped.rstrip("kmgtpib ")
    unit = stripped[len(digits) :].strip()
    try:
        nbytes = float(digits) * _NBYTES[unit if unit in _NBYTES else f"{unit}b"]
    except (ValueError, KeyError):
        return None
    return int(nbytes) if 0 < nbytes < float("inf") else None


def bytes_limit(asked: int | float | str | None, part: Callable[[float], int]) -> int | None:
    """Return the limit that `max_bytes=` sets, in bytes; None for none.

    Args:
        asked: bytes, text such as "20GB", or a fraction such as 0.5. part: the bytes of such a fraction.
    """
    if asked is None:
        return None
    if isinstance(asked, float) and 0 < asked <= 1:
        return part(asked)
    nbytes = parsed_bytes(asked)
    if nbytes is None:
        choices = 'give bytes, text such as "20GB", or a part of the free disk such as 0.5'
        raise OptionError(f"max_bytes={shown(asked)}; {choices}", option="max_bytes")
    return nbytes


def human_bytes(nbytes: float) -> str:
    """Write a size in decimal units: "812 bytes", "4.1 kB", "38.5 MB"."""
    if nbytes < 1000:
        return f"{nbytes:g} bytes"
    power = 1
    while nbytes >= 999.95 * 1000**power and power < len(_PREFIXES) - 1:
        power += 1
    return f"{nbytes / 1000**power:.1f} {_PREFIXES[power]}B"


def brief(value: object) -> str:
    """Write a value as text, a float with six digits, the key of a tuple without its mark."""
    return f"{value:.6g}" if isinstance(value, float) else str(plain(value)).removeprefix("\0")


def shortened(text: str) -> str:
    """Cut a text to sixty characters, the last three dots."""
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def some_of(texts: Sequence[str]) -> str:
    """Write texts as a list, of many the first twelve: "a, b, c and 9,997 more"."""
    more = len(texts) - _MOST_TEXTS
    return ", ".join(texts[:_MOST_TEXTS]) + (f" and {more:,} more" if more > 0 else "")


def printable(text: str) -> str:
    """Escape every character that could steer a terminal, or turn the direction of text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def text_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], most: int | None = None
) -> Iterator[str]:
    """Yield aligned lines, the header first; columns of numbers or sizes stand to the right.

    most: characters of a line; longer texts behind the first column are wrapped.
    """
    lines = [header, *rows]
    columns = list(zip(*lines, strict=True))
    widths = [max(1, *map(len, column)) for column in columns]
    places = [str.rjust if are_numbers(column[1:]) else str.ljust for column in columns]
    while most is not None and sum(widths) + 2 * len(widths) - 2 > most:
        widest = max(widths[1:], default=0)
        if widest <= _NARROWEST:
            break
        widths[widths.index(widest, 1)] -= 1
    for first, *others in lines:
        wrapped = (
            textwrap.wrap(text, width) if len(text) > width else [text]
            for text, width in zip(others, widths[1:], strict=True)
        )
        for texts in zip_longest([first], *wrapped, fillvalue=""):
            padded = (place(text, width) for text, width, place in zip(texts, widths, places, strict=True))
            yield "  ".join(padded).rstrip()


def are_numbers(texts: Sequence[str]) -> bool:
    """True if one or more texts are all numbers or sizes."""
    return bool(texts) and all(map(_NUMBER.fullmatch, texts))


def plain(value: object) -> Any:
    """Convert a value for JSON: times to ISO 8601, bytes to hex, "nan" and "inf"; else str().

    An integer of thousands of bits, which Python may refuse to write, becomes its sign, head and length.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MOST_BITS else shown(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, np.generic):
        return str(value) if value.dtype.kind in "mMV" else plain(value.item())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.ndim else plain(value[()])
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def index_ranges(indices: Ints, most: int = 200, hint: str = "; --json lists all") -> str:
    """Write sorted indices as "17, 40-63"; of more than `most` runs the first, and a count of the others."""
    ends = np.flatnonzero(np.diff(indices) != 1)
    runs = zip(indices[[0, *(ends[:most] + 1)]].tolist(), indices[[*ends[:most], -1]].tolist(), strict=True)
    texts = [f"{low}" if low == high else f"{low}-{high}" for low, high in runs]
    more = len(ends) + 1 - most
    return ", ".join(texts[:most]) + (f", and {more:,} more runs{hint}" if more > 0 else "")
