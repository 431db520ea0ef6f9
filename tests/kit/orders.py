"""What stands at a position of a random order: the function that the documentation gives."""

from typing import Any

from pages import PAGES, PIECE

_NAMES: dict[str, Any] = {}
_CODE = next(piece["code"] for piece in PIECE.finditer(PAGES["docs/reference/orders.md"]))
exec(_CODE.partition("\nprint")[0], _NAMES)
order, word, derived = _NAMES["order"], _NAMES["word"], _NAMES["derived"]
