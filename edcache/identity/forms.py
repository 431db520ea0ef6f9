"""`form_of`: digest of a value without the order of its items and without their kinds.

A list that was made from a set has another order in each process; `np.int64(4)` stands for 4, a tuple for a list, a
path for a text. So values of one form ask, and do not refuse. A text is the set of its words, since a pattern such as
"cat|dog" is made from a set, too.

What must never happen: that a long value takes time. It has no form, and so refuses.
"""

from __future__ import annotations

import enum
import math
import os
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from edcache.identity.settings import Settings, digest_of
from edcache.identity.tables import content_of, is_table

OF_CLASS: Final = "class"
"""Form of the name of a class or a function, where no more is described by it: one that is renamed asks."""

_MOST: Final = 4_096  # items
_WORDS: Final = re.compile(r"([\w.+-]+)").split
_PLAIN: Final = (type(None), bool, int, float, complex, bytes)
_CONTAINERS: Final = (list, tuple, set, frozenset)


class _NoForm(Exception):
    pass


def form_of(value: Any) -> str:
    """Digest the form of a value: 8 characters; "" if it is long, or holds objects."""
    try:
        return digest_of(_Form().text(value))[:8]
    except Exception:  # noqa: BLE001 - `_NoForm`, or of a class that is read; it refuses then
        return ""


def form_of_stored(exact: Any) -> str:
    """Return the form of a description, as a recipe keeps it: None, a bool, an int, a text, or a list with its form."""
    if isinstance(exact, list):
        return exact[1] if len(exact) == 2 and isinstance(exact[1], str) else ""
    return form_of(exact) if isinstance(exact, (*_PLAIN, str)) else ""


class _Form:
    def __init__(self) -> None:
        self._left = _MOST

    def text(self, value: Any) -> str:
        self._take(1)
        if isinstance(value, np.generic) and not isinstance(value, str | bytes):
            value = value.item()
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, re.Pattern):
            value = value.pattern
        kind = type(value)
        if isinstance(value, str) or kind is bytes:
            self._take(len(value) // 8)
            return f"text {sorted(_WORDS(value if isinstance(value, str) else value.decode('latin-1')))}"
        if kind in _PLAIN:
            self._take(value.bit_length() // 64 if kind is int else 1)
            return hex(value) if kind is int else repr(value)
        if isinstance(value, _CONTAINERS) and not hasattr(value, "_fields"):
            return self._items(value)
        if isinstance(value, np.ndarray) or (isinstance(value, torch.Tensor) and _is_dense(value)):
            self._take(math.prod(value.shape))
            return f"{[*value.shape]} {self._items(value.reshape(-1).tolist())}"
        if isinstance(value, Mapping):
            self._take(len(value))
            return f"{{{', '.join(sorted(f'{self.text(key)}: {self.text(value[key])}' for key in value))}}}"
        if is_table(value):
            self._take(len(value))
            return self.text(content_of(value))
        if isinstance(value, torch.Tensor) or (
            hasattr(value, "__dict__") and not isinstance(value, enum.Enum)
        ):
            raise _NoForm
        return Settings().text(value)

    def _items(self, values: Any) -> str:
        self._take(len(values))
        return f"[{', '.join(sorted(map(self.text, values)))}]"

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _NoForm


def _is_dense(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and not (value.is_quantized or value.is_nested or value.is_meta)
