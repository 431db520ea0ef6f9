"""What stands at a position of a random order: the function that the documentation gives."""

from typing import Any

from pages import PAGES, PIECE

_NAMES: dict[str, Any] = {}
for piece in PIECE.finditer(PAGES["docs/reference/orders.md"]):
    if piece["language"] == "python":
        exec(piece["code"].partition("\nprint")[0], _NAMES)
order, word, derived = _NAMES["order"], _NAMES["word"], _NAMES["derived"]
permutation = _NAMES["permutation"]
chunk_shuffled = _NAMES["chunk_shuffled"]
