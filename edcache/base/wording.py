"""How values and missing columns are put in messages: short, and never by a repr that may raise."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np

from edcache.base.errors import UnknownLabelError
from edcache.base.suggestion import suggestion


def unknown_label(name: object, known: Sequence[str]) -> UnknownLabelError:
    """The error for a column that is not there, with those that are."""
    text = name if isinstance(name, str) else shown(name)
    if known:
        return UnknownLabelError(
            f'no label "{text}"; this archive has: {", ".join(known)}{suggestion(text, known)}'
        )
    return UnknownLabelError(
        f'no label "{text}"; this archive has no labels; build it with in_memory_keys=["{text}"]'
    )


def shown(value: object) -> str:
    """A short repr of a plain value; of others only the type, since a repr may be long or raise."""
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= 40 else f"{value[:37]!r}..."
    if isinstance(value, int) and value.bit_length() > 128:
        return f"of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, dt.date, dt.timedelta, np.generic)):
        return str(value)
    return f"<{type(value).__name__}>"


def article(value: object) -> str:
    """The name of a value's type with its article: "an int"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def described(value: object) -> str:
    """A value's type, with its shape, its length or its text: "a str ('cat')"."""
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{article(value)} of shape {tuple(shape)} and dtype {getattr(value, 'dtype', '?')}"
    if isinstance(value, (list, tuple)):
        return f"{article(value)} of length {len(value)}{_first_item(value)}"
    text = shown(value)
    return article(value) if text.startswith("<") else f"{article(value)} ({text})"


def _first_item(value: Sequence[Any]) -> str:
    return f" that begins with {described(value[0])}" if value else ""
