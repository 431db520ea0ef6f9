"""Values as text: one line, a table, CSV, JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

import numpy as np

_WIDEST: Final = 60
_LAYOUT_ROWS: Final = 1000
_NUMBER: Final = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?( bytes| [kMGTPE]B)?|nan|[-+]?inf")


def plural(number: int, noun: str) -> str:
    """ "1 sample", "1,000 samples"."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def printable(text: str) -> str:
    """The text with everything that could steer a terminal written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(message: str) -> str:
    """A message of several lines as one; a line that ends with a colon runs on into the next."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    joined = "".join(line + (" " if line.endswith(":") else "; ") for line in lines[:-1])
    return printable(joined + (lines[-1] if lines else ""))


def cell(value: object) -> str:
    """A value as one cell of a table, short and on one line."""
    return shortened(printable(f"{value:.6g}" if isinstance(value, float) else str(plain(value))))


def shortened(text: str) -> str:
    """The first sixty characters, or fewer and dots."""
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def plain(value: object) -> Any:
    """A value as JSON has it.

    Times are ISO 8601, bytes are hex, floats that JSON lacks are "nan", "inf", "-inf"; an array is
    nested lists, and whatever else comes is its str().
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, int):
        return int(value)
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


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, whole: int = 0) -> Iterator[str]:
    """Aligned columns, line by line; numbers and sizes to the right.

    The widths are those of the first thousand rows, so that millions of rows need no memory.

    Args:
        whole: in so many columns from the left nothing is shortened: they hold what is typed elsewhere.
    """
    texts = (
        [printable(str(value)) for value in row[:whole]] + [cell(value) for value in row[whole:]]
        for row in rows
    )
    first = list(islice(texts, _LAYOUT_ROWS))
    names = [cell(name) for name in header]
    widths = [max(map(len, column)) for column in zip(names, *first, strict=True)]
    columns = list(zip(*first, strict=True)) or [()] * len(names)
    right = [all(_NUMBER.fullmatch(text) for text in column) for column in columns]
    for row in chain([names], first, texts):
        padded = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, right, strict=True)
        )
        yield "  ".join(padded).rstrip()


def paired_lines(items: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Names and values, one pair a line, the values aligned."""
    listed = list(items)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        yield f"{name.ljust(width)}  {printable(str(value))}".rstrip()


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of RFC 4180 with a header; a missing value is an empty field, a list its JSON."""
    for row in chain([header], rows):
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="").writerow([_csv_value(value) for value in row])
        yield buffer.getvalue()


def _csv_value(value: object) -> object:
    value = plain(value)
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def json_lines(objects: Iterable[object]) -> Iterator[str]:
    """One JSON array, an element a line."""
    before = "["
    for item in objects:
        yield f"{before}{json.dumps(item)}" if before == "[" else f",{json.dumps(item)}"
        before = ","
    yield "]" if before == "," else "[]"
