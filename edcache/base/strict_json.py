"""JSON as this package writes it."""

from __future__ import annotations

import json
from typing import Any


def loads(data: bytes | memoryview | str) -> Any:
    """Read JSON as this package writes it: ASCII, no key twice in one object; else ValueError."""
    # json takes bytes with zeros among them for UTF-16 or 32.
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
