"""What a column holds, where samples become rows: found out from samples before anything is written."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from edcache.base import ExportError
from edcache.interop.export_leaves import Leaves, Picture, refused
from edcache.labels import Column

Columns = dict[str, Column]

_KINDS: Final = {bool: "bool", int: "int", float: "float", complex: "complex", str: "text", bytes: "bytes"}


def columns_of(leaves: Leaves, place: str, to: str, arrays: str) -> Columns:
    """The columns that one sample needs.

    Args:
        to: the format. arrays: numpy's kinds of arrays that it holds.
    Raises:
        ExportError: a leaf that the format does not hold.
    """
    columns: Columns = {}
    for name, value in leaves.items():
        if isinstance(value, complex) and "c" not in arrays:
            raise refused(place, name, value, f"{to} holds no complex numbers")
        if isinstance(value, np.ndarray) and not (value.dtype.kind in arrays and value.dtype.isnative):
            held = "arrays of bool, int and float" + (", complex too" if "c" in arrays else "")
            raise refused(place, name, value, f"{to} holds {held} in the byte order of this machine")
        columns[name] = _column(name, value, place)
    return columns


def _column(name: str, value: Any, place: str) -> Column:
    if value is None:
        return Column(name, "null", is_nullable=True)
    if type(value) in _KINDS:
        return Column(name, _KINDS[type(value)])
    if isinstance(value, Picture):
        return Column(name, "image")
    if isinstance(value, np.ndarray):
        return Column(name, "array", value.dtype.name, value.shape, value.ndim)
    if isinstance(value, datetime.datetime):
        return Column(name, "datetime" if value.tzinfo is None else "datetime with a zone")
    if isinstance(value, datetime.date):
        return Column(name, "date")
    kinds = {_KINDS[type(item)] for item in value if item is not None}
    if len(kinds) > 1:
        raise refused(place, name, value, f"its values are {' and '.join(sorted(kinds))}")
    return Column(name, "list", kinds.pop() if kinds else "null")


def joined(samples: Iterable[tuple[Columns, str]]) -> Columns:
    """The columns that hold what all samples show.

    Args:
        samples: what each shows, and what messages about it begin with.
    Raises:
        ExportError: 'export(): sample 7: field "x" is float, and int in sample 0; ...'.
    """
    known: dict[str, tuple[Column, str, int]] = {}
    count = 0
    for shown, place in samples:
        count += 1
        for name, column in shown.items():
            before, where, times = known.get(name, (column, place, 0))
            known[name] = _both(before, column, where, place), place, times + 1
    return {
        name: replace(column, is_nullable=column.is_nullable or times < count)
        for name, (column, _, times) in known.items()
    }


def _both(old: Column, new: Column, where: str, place: str) -> Column:
    if old == new:
        return old
    is_nullable = old.is_nullable or new.is_nullable
    if "null" in (old.kind, new.kind):
        return replace(new if old.kind == "null" else old, is_nullable=True)
    if old.kind == new.kind == "list" and "null" in (old.dtype, new.dtype):
        return replace(old if new.dtype == "null" else new, is_nullable=is_nullable)
    if (old.kind, old.dtype, old.ndim) == (new.kind, new.dtype, new.ndim):
        return replace(old, shape=old.shape if old.shape == new.shape else None, is_nullable=is_nullable)
    raise ExportError(
        f'{place}: field "{new.name}" is {_described(new)}, and {_described(old)} in another sample '
        f"({where}); a column has one type: make it one with with_transform(), or leave it out with select()"
    )


def check_fits(columns: Mapping[str, Column], shown: Mapping[str, Column], place: str) -> None:
    """Refuse a sample that is otherwise than those that were looked at.

    Raises:
        ExportError: 'export(): sample 7: field "x" is an array of uint8 (3, 4), it was ...'.
    """
    for name in columns.keys() | shown.keys():
        known, now = columns.get(name), shown.get(name, Column(name, "null"))
        if known is None or not _fits(known, now):
            before = "in no sample" if known is None else _described(known)
            raise ExportError(
                f'{place}: field "{name}" is {_described(now)}, and was {before} when samples '
                "were looked at; a transform must give the same every time"
            )


def _fits(known: Column, now: Column) -> bool:
    if now.kind == "null":
        return known.is_nullable
    if now.kind != known.kind or now.ndim != known.ndim:
        return False
    is_empty_list = now.kind == "list" and now.dtype == "null"
    return (now.dtype == known.dtype or is_empty_list) and (not known.is_fixed or now.shape == known.shape)


def _described(column: Column) -> str:
    if column.kind == "array":
        shape = f"of {column.ndim} dimensions" if column.shape is None else column.shape
        return f"an array of {column.dtype} {shape}"
    return f"a list of {column.dtype}" if column.kind == "list" else column.kind
