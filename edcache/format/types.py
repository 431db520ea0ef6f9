"""The types that label columns have, the one type that holds the values of several, and tables joined by it.

A column's type is found from the values, not asked for, and grows only where no value changes:
null -> anything, narrow -> wide of one kind, integers and floats -> float64 where every integer is exact,
int64 and uint64 -> whichever holds all values. Everything else is a Clash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import LabelError
from edcache.format.arrays import (
    element_type,
    is_list,
    is_text,
    list_items,
    named_types,
    number_values,
    numpy_dtype,
    pa,
    widened_float16,
)

EXACT = 2**53
"""Every integer up to here is a float64."""
_OFFSET_LIMIT = 2**31 - 1  # what the int32 offsets of string and list can address


class Clash(Exception):
    """Two values that make no column; the text is what else to know about the earlier one, or empty."""


class ColumnType(NamedTuple):
    """The type of the values so far, and what a wider type depends on.

    negative: an int is below 0. beyond: one is 2**63 or more. inexact: one that is no float64.
    """

    arrow: pa.DataType
    negative: bool = False
    beyond: bool = False
    inexact: int | None = None

    @classmethod
    def of(cls, kind: pa.DataType, numbers: Iterable[int] = ()) -> ColumnType:
        """Make the type of a chunk. numbers: the integers among its values, or their extremes."""
        numbers = list(numbers)
        inexact = (n for n in numbers if abs(n) > EXACT and int(float(n)) != n)
        return cls(kind, any(n < 0 for n in numbers), any(n >= 2**63 for n in numbers), next(inexact, None))

    @classmethod
    def of_column(cls, column: pa.ChunkedArray) -> ColumnType:
        """Make the type of a chunk from its column."""
        if not pa.types.is_integer(element_type(column.type)):
            return cls(column.type)
        chunks = [list_items(chunk) if is_list(column.type) else chunk for chunk in column.chunks]
        return cls.of(column.type, (n for chunk in chunks for n in deciding_numbers(number_values(chunk))))

    def to_json(self) -> list[Any]:
        """[type, an int is negative, one is 2**63 or more, one that is no float64 or null]."""
        return [_type_text(self.arrow), *self[1:]]

    @classmethod
    def from_json(cls, entry: Any) -> ColumnType:
        """Read what `to_json` made; ValueError for anything else."""
        return _type_of_json(entry)

    def joined(self, other: ColumnType) -> ColumnType:
        """The type that also holds the values of another; Clash if there is none."""
        arrow = merged(self.arrow, other.arrow)
        if arrow is None:
            raise Clash
        negative, beyond = self.negative or other.negative, self.beyond or other.beyond
        inexact = other.inexact if self.inexact is None else self.inexact
        element = element_type(arrow)
        signed = (pa.types.is_signed_integer(element_type(one.arrow)) for one in (self, other))
        if element == pa.uint64() and not beyond and any(signed):
            element = pa.int64()
            arrow = list_of(element, arrow) if is_list(arrow) else element
        if negative and beyond and pa.types.is_integer(element):
            raise Clash(" with values that no one integer type holds together with this one")
        if inexact is not None and pa.types.is_floating(element):
            raise Clash(f", and float64 does not hold {inexact} exactly")
        return ColumnType(arrow, negative, beyond, inexact)


@cache
def family(kind: pa.DataType) -> str:
    """The kind of a type: null, bool, integer, float, text, bytes, time, UTC time, duration or list."""
    if pa.types.is_dictionary(kind):
        return family(kind.value_type)
    if is_text(kind):
        return "text" if "string" in str(kind) else "bytes"
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return "time" if pa.types.is_date32(kind) or kind.tz is None else "UTC time"
    of = {"null": pa.types.is_null, "bool": pa.types.is_boolean, "integer": pa.types.is_integer}
    of |= {"float": pa.types.is_floating, "duration": pa.types.is_duration}
    return next((name for name, is_of in of.items() if is_of(kind)), "list")


def no_type() -> ColumnType:
    """That of no values."""
    return ColumnType(pa.null())


def merged(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """The type for values of both, or None; uint64 for a signed one with it, which `ColumnType` corrects."""
    if old == new or pa.types.is_null(new):
        return old
    if pa.types.is_null(old):
        return new
    if is_list(old) and is_list(new):
        inner = merged(old.value_type, new.value_type)
        return None if inner is None else list_of(inner, old, new)
    for large, small in ((pa.large_string(), pa.string()), (pa.large_binary(), pa.binary())):
        if {old, new} == {large, small}:
            return large
    floats = pa.types.is_floating(old) + pa.types.is_floating(new)
    if floats + pa.types.is_integer(old) + pa.types.is_integer(new) != 2:
        return None
    wide = np.promote_types(numpy_dtype(old), numpy_dtype(new))
    # numpy makes float64 of uint64 and a signed type, which would round.
    if not floats and wide.kind == "f":
        return pa.uint64()
    return pa.float64() if floats == 1 else pa.from_numpy_dtype(wide)


def list_of(element: pa.DataType, *outer: pa.DataType) -> pa.DataType:
    """The list type of an element, with large offsets where one of the other types has them."""
    return (pa.large_list if any(map(pa.types.is_large_list, outer)) else pa.list_)(element)


def deciding_numbers(values: npt.NDArray[Any]) -> Sequence[int]:
    """The least, the greatest and the first inexact of many ints: what decides about a wider type."""
    if values.dtype.kind not in "iu" or not values.size:
        return ()
    low, high = int(values.min()), int(values.max())
    if low >= -EXACT and high <= EXACT:
        return (low, high)
    size = np.where(values < 0, np.negative(values), values).astype(np.uint64)
    lowest_bit = size & (~size + np.uint64(1))
    inexact = np.flatnonzero((size >> np.uint64(53) >= lowest_bit) & (size > 0))
    return (low, high, *(int(value) for value in values[inexact[:1]]))


class LabelTypes:
    """The types of label columns over many chunks, with what decides whether one more chunk fits.

    In every chunk's table, so that a writer that knows only the last refuses what `unify` would refuse.
    """

    def __init__(self, types: Mapping[str, ColumnType]) -> None:
        self.types = dict(types)

    @classmethod
    def of(cls, table: pa.Table) -> LabelTypes:
        """The types of one chunk's labels."""
        return cls({name: ColumnType.of_column(table.column(name)) for name in table.column_names})

    def joined(self, other: LabelTypes, where: str) -> LabelTypes:
        """The types of both together; raises as `unify`."""
        types = {}
        for name in _common_names([list(self.types), list(other.types)], where):
            old, new = self.types[name], other.types[name]
            try:
                types[name] = old.joined(new)
            except Clash as clash:
                raise _chunk_clash(name, old.arrow, new.arrow, clash, where) from None
        return LabelTypes(types)

    def to_json(self) -> dict[str, Any]:
        """name -> `ColumnType.to_json`."""
        return {name: kind.to_json() for name, kind in self.types.items()}

    @classmethod
    def from_json(cls, types: Any) -> LabelTypes:
        """Read what `to_json` made; ValueError for anything else."""
        if type(types) is not dict:
            raise ValueError("its label types are no object")
        return cls({name: ColumnType.from_json(entry) for name, entry in types.items()})


def _type_text(kind: pa.DataType) -> Any:
    if is_list(kind):
        return ["large_list" if pa.types.is_large_list(kind) else "list", str(kind.value_type)]
    return str(kind)


def _type_of_json(entry: Any) -> ColumnType:
    kinds = [type(value) for value in entry[1:]] if type(entry) is list else []
    if kinds not in ([bool, bool, int], [bool, bool, type(None)]):
        raise ValueError("one of its label types is none")
    text, negative, beyond, inexact = entry
    if inexact is not None and not -(1 << 63) <= inexact < 1 << 64:
        raise ValueError("one of its label types has an integer beyond 64 bits")
    is_list = type(text) is list and len(text) == 2 and text[0] in ("list", "large_list")
    outer, element = text if is_list else ("", text)
    kind = named_types().get(element) if isinstance(element, str) else None
    if kind is None:
        raise ValueError(f"no label column has the type {str(text)[:80]!r}")
    if outer:
        kind = pa.list_(kind) if outer == "list" else pa.large_list(kind)
    return ColumnType(kind, negative, beyond, inexact)


def unify(tables: Sequence[pa.Table], where: str, piece: str = "chunk") -> pa.Table:
    """Join label tables by the names of their columns: one contiguous array each, texts large past 2 GiB.

    Raises LabelError, also for other columns; it begins with `where` and speaks of a `piece`.
    """
    if not tables:
        return pa.table({})
    names = _common_names([table.column_names for table in tables], where)
    if not names:
        return tables[0] if len(tables) == 1 else pa.concat_tables([table.select([]) for table in tables])
    columns = [unify_column(name, [table.column(name) for table in tables], where, piece) for name in names]
    return pa.table(columns, names=names)


def unify_column(name: str, parts: Sequence[pa.ChunkedArray], where: str, piece: str = "chunk") -> pa.Array:
    """The parts of one column as one contiguous array; raises as `unify`."""
    kind = column_type(name, parts, where, piece)
    chunks = [cast(chunk, kind) for part in parts for chunk in part.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], type=kind)


def column_type(name: str, parts: Sequence[pa.ChunkedArray], where: str, piece: str = "chunk") -> pa.DataType:
    """The type of the parts of one column together; raises as `unify`."""
    whole, part = no_type(), parts[0]
    try:
        for part in parts:
            whole = whole.joined(ColumnType.of_column(part))
    except Clash as clash:
        raise _chunk_clash(name, whole.arrow, part.type, clash, where, piece) from None
    return _addressing(whole.arrow, sum(map(_size, parts)))


def _size(column: pa.ChunkedArray) -> int:
    """Count what the offsets of a column address: items of lists, else bytes."""
    chunks = column.chunks if is_list(column.type) else ()
    return sum(len(list_items(chunk)) for chunk in chunks) if chunks else column.nbytes


def _addressing(kind: pa.DataType, size: int) -> pa.DataType:
    """A type, or the large one of its kind if 31 bits do not address so many bytes or items."""
    if size <= _OFFSET_LIMIT:
        return kind
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return pa.large_list(kind.value_type) if is_list(kind) else large.get(kind, kind)


class WholeSchema:
    """The columns of label tables that come one after another, in types that hold the labels of all.

    Args:
        where: the archive's path, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._types: LabelTypes | None = None
        self._sizes: Counter[str] = Counter()

    def begin(self, types: Mapping[str, ColumnType], sizes: Mapping[str, int]) -> None:
        """Begin with columns that are there already: their types, and about how many bytes they have."""
        self._types, self._sizes = LabelTypes(types), Counter(sizes)

    def add(self, table: pa.Table) -> None:
        """Take one more table in; raises as `unify`."""
        own = LabelTypes.of(table)
        self._types = own if self._types is None else self._types.joined(own, self._where)
        for name, column in zip(table.column_names, table.columns, strict=True):
            self._sizes[name] += _size(column)

    def types(self) -> LabelTypes:
        """The types of all columns so far."""
        return LabelTypes({}) if self._types is None else self._types

    def schema(self) -> pa.Schema:
        """The columns of all tables so far; what 31 bits do not address is large."""
        types = {} if self._types is None else self._types.types
        return pa.schema([(name, _addressing(kind.arrow, self._sizes[name])) for name, kind in types.items()])


def _common_names(chunks: Sequence[list[str]], where: str) -> list[str]:
    first = chunks[0]
    for names in chunks:
        if sorted(names) != sorted(first):
            raise LabelError(
                f"{_prefix(where)}one chunk has the labels {', '.join(first) or '(none)'}, another "
                f"{', '.join(names) or '(none)'}; write all chunks with the same in_memory_keys"
            )
    return first


def _chunk_clash(
    name: str, old: pa.DataType, new: pa.DataType, clash: Clash, where: str, piece: str = "chunk"
) -> LabelError:
    return LabelError(
        f'{_prefix(where)}label "{name}" is {old} in one {piece} and {new} in another{clash}; write it as '
        f'one type, for example in_memory_keys={{"{name}": lambda s: str(s["{name}"])}}'
    )


def _prefix(where: str) -> str:
    return f"{where}: " if where else ""


def cast(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array as one of a type that holds its values."""
    if chunk.type == kind:
        return chunk
    if pa.types.is_null(chunk.type):
        return pa.nulls(len(chunk), kind)
    if pa.types.is_float16(chunk.type):
        chunk = widened_float16(chunk)
    # Unchecked: Arrow would refuse exact ints past 2**53; ColumnType has seen every value.
    return chunk.cast(kind, safe=False)


def stacked(tables: Sequence[pa.Table], counts: Sequence[int], where: str) -> pa.Table:
    """The rows of all tables, so many of each; columns that one lacks are null there. Raises as `unify`."""
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    if not names:
        return tables[0]
    whole = []
    for table, count in zip(tables, counts, strict=True):
        nulls = pa.chunked_array([pa.nulls(count)])
        columns = [table.column(name) if name in table.column_names else nulls for name in names]
        plain = (c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in columns)
        whole.append(pa.table(list(plain), names=names))
    return unify(whole, where, "dataset")


def beside(tables: Sequence[pa.Table]) -> pa.Table:
    """The columns of tables of one length; of a name that is there twice the first."""
    columns: dict[str, pa.ChunkedArray] = {}
    for table in tables:
        for name in table.column_names:
            columns.setdefault(name, table.column(name))
    return pa.table(columns) if columns else tables[0]


def labelled_columns(table: pa.Table) -> pa.Table:
    """The columns that have a value in some row."""
    names = table.column_names
    return table.select([name for name in names if table.column(name).null_count < table.num_rows])
