"""What a column holds, where samples become rows: found out from samples before anything is written."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from edcache.errors import ExportError
from edcache.exporting.leaves import Leaves, Picture, refused
from edcache.labels.exchange import Column

_KINDS: Final = {bool: "bool", int: "int", float: "float", complex: "complex", str: "text", bytes: "bytes"}


@dataclass(frozen=True)
class Seen:
    """A column as some samples show it, and a sample that does, for messages."""

    column: Column
    place: str


class Looker:
    """Tells what the leaves of a sample are.

    Args:
        to: the format. arrays: numpy's kinds of arrays that it holds.
    """

    def __init__(self, to: str, arrays: str) -> None:
        self._to, self._arrays = to, arrays

    def look(self, leaves: Leaves, place: str) -> dict[str, Column]:
        """The columns that one sample needs.

        Raises:
            ExportError: a leaf that the format does not hold.
        """
        if not leaves:
            raise ExportError(f"{place}: it has no field; leave it out with a filter")
        return {name: self._column(name, value, place) for name, value in leaves.items()}

    def _column(self, name: str, value: Any, place: str) -> Column:
        if value is None:
            return Column(name, "null", is_nullable=True)
        if type(value) in _KINDS:
            if isinstance(value, complex) and "c" not in self._arrays:
                raise refused(place, name, value, f"{self._to} holds no complex numbers")
            return Column(name, _KINDS[type(value)])
        if isinstance(value, Picture):
            return Column(name, "image")
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in self._arrays or not value.dtype.isnative:
                held = "arrays of bool, int and float" + (", complex too" if "c" in self._arrays else "")
                raise refused(
                    place, name, value, f"{self._to} holds {held} in the byte order of this machine"
                )
            return Column(name, "array", value.dtype.name, value.shape, value.ndim)
        if isinstance(value, datetime.datetime):
            return Column(name, "datetime" if value.tzinfo is None else "datetime with a zone")
        if isinstance(value, datetime.date):
            return Column(name, "date")
        return Column(name, "list", self._element(name, value, place))

    def _element(self, name: str, values: list[Any], place: str) -> str:
        kinds = {_KINDS[type(value)] for value in values if value is not None}
        if len(kinds) > 1:
            raise refused(place, name, values, f"its values are {' and '.join(sorted(kinds))}")
        return kinds.pop() if kinds else "null"


def joined(found: Iterable[tuple[dict[str, Column], str]]) -> dict[str, Column]:
    """The columns that hold what all samples show.

    Args:
        found: of each sample what it shows, and what messages about it begin with.
    Raises:
        ExportError: 'export(): sample 7: field "x" is float, and int in sample 0; ...'.
    """
    seen: dict[str, Seen] = {}
    numbers: dict[str, int] = {}
    looked = 0
    for shown, place in found:
        looked += 1
        for name, column in shown.items():
            known = seen.get(name)
            seen[name] = Seen(column if known is None else _both(known, column, place), place)
            numbers[name] = numbers.get(name, 0) + 1
    return {
        name: replace(one.column, is_nullable=one.column.is_nullable or numbers[name] < looked)
        for name, one in seen.items()
    }


def _both(known: Seen, new: Column, place: str) -> Column:
    old = known.column
    if old == new:
        return old
    is_nullable = old.is_nullable or new.is_nullable
    if "null" in (old.kind, new.kind):
        return replace(new if old.kind == "null" else old, is_nullable=True)
    if old.kind == new.kind == "list" and "null" in (old.dtype, new.dtype):
        return replace(old if new.dtype == "null" else new, is_nullable=is_nullable)
    if (old.kind, old.dtype, old.ndim) == (new.kind, new.dtype, new.ndim):
        return replace(old, shape=old.shape if old.shape == new.shape else None, is_nullable=is_nullable)
    before, now = _said(old), _said(new)
    raise ExportError(
        f'{place}: field "{new.name}" is {now}, and {before} in another sample ({known.place}); a column has '
        "one type: make it one with with_transform(), or leave it out with select()"
    )


def check_fits(columns: Mapping[str, Column], shown: Mapping[str, Column], position: int) -> None:
    """Refuse a sample that is otherwise than those that were looked at.

    Raises:
        ExportError: 'export(): sample 7: field "x" is an array of uint8 (3, 4), it was ...'.
    """
    for name in columns.keys() | shown.keys():
        known, now = columns.get(name), shown.get(name, Column(name, "null"))
        if known is None or not _fits(known, now):
            before = "in no sample" if known is None else _said(known)
            raise ExportError(
                f'export(): sample {position}: field "{name}" is {_said(now)}, and was {before} when samples '
                "were looked at; a transform must give the same every time"
            )


def _fits(known: Column, now: Column) -> bool:
    if now.kind == "null":
        return known.is_nullable
    if now.kind != known.kind or now.ndim != known.ndim:
        return False
    is_empty_list = now.kind == "list" and now.dtype == "null"
    return (now.dtype == known.dtype or is_empty_list) and (not known.is_fixed or now.shape == known.shape)


def _said(column: Column) -> str:
    if column.kind == "array":
        shape = f"of {column.ndim} dimensions" if column.shape is None else column.shape
        return f"an array of {column.dtype} {shape}"
    return f"a list of {column.dtype}" if column.kind == "list" else column.kind
