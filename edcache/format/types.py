"""Types of label columns; the type that holds the values of two; tables joined by it.

Values decide the type of a column, which grows only if no value changes: null -> anything, narrow -> wide of one kind,
integers and floats -> float64 if every integer is at most 2**53. uint64 goes with unsigned integers alone. Everything
else is a LabelError.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from edcache.base import LabelError
from edcache.format.arrays import (
    is_list,
    number_values,
    numpy_dtype,
    one_chunk,
    pa,
    widened_float16,
)

EXACT: Final = 2**53
"""Every integer up to here is a float64."""
_FAMILIES: Final = (
    {"null": "null", "bool": "bool", "date32[day]": "time"}
    | dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), "integer")
    | dict.fromkeys(("halffloat", "float", "double"), "float")
    | dict.fromkeys(("string", "large_string"), "text")
    | dict.fromkeys(("binary", "large_binary"), "bytes")
    | {f"timestamp[{unit}]": "time" for unit in ("s", "ms", "us", "ns")}
    | {f"timestamp[{unit}, tz=UTC]": "UTC time" for unit in ("s", "ms", "us", "ns")}
    | {f"duration[{unit}]": "duration" for unit in ("s", "ms", "us", "ns")}
)
"""Families of the types of single labels, by the names of the types."""


@cache
def family(kind: pa.DataType) -> str:
    """Return the family of a type: null, bool, integer, float, text, bytes, time, UTC time, duration or list."""
    return _FAMILIES.get(str(kind.value_type if pa.types.is_dictionary(kind) else kind), "list")


@cache
def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both, integers among floats up to `EXACT`; None without one."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_list(one) and is_list(other):
        inner = merged(one.value_type, other.value_type)
        return None if inner is None else list_of(inner, one, other)
    for large, small in ((pa.large_string(), pa.string()), (pa.large_binary(), pa.binary())):
        if {one, other} == {large, small}:
            return large
    families = {family(one), family(other)}
    if not families <= {"integer", "float"}:
        return None
    is_unsigned = pa.types.is_unsigned_integer(one) and pa.types.is_unsigned_integer(other)
    if pa.uint64() in (one, other) and not is_unsigned:
        return None
    wide = np.promote_types(numpy_dtype(one), numpy_dtype(other))
    return pa.float64() if len(families) > 1 else pa.from_numpy_dtype(wide)


def list_of(element: pa.DataType, *outer: pa.DataType) -> pa.DataType:
    """Return the list type of an element, with large offsets if one of the other types has them."""
    return (pa.large_list if any(map(pa.types.is_large_list, outer)) else pa.list_)(element)


def is_widened(old: pa.DataType, new: pa.DataType) -> bool:
    """True if the new type makes integers, or lists of them, floats."""
    if is_list(old) and is_list(new):
        return is_widened(old.value_type, new.value_type)
    return bool(pa.types.is_integer(old) and pa.types.is_floating(new))


def type_to_json(kind: pa.DataType) -> Any:
    """Return the name of a label type, or ["list", name]."""
    if is_list(kind):
        return ["large_list" if pa.types.is_large_list(kind) else "list", str(kind.value_type)]
    return str(kind)


def is_type_json(value: Any) -> bool:
    """True if `type_to_json` returns this for some label type; without pyarrow, which takes 20 ms to import."""
    is_nested = type(value) is list and len(value) == 2 and value[0] in ("list", "large_list")
    element = value[1] if is_nested else value
    return type(element) is str and element in _FAMILIES


def type_of_json(value: Any) -> pa.DataType:
    """Invert `type_to_json`."""
    if type(value) is list:
        outer, element = value
        return (pa.large_list if outer == "large_list" else pa.list_)(type_of_json(element))
    name, is_zoned, _ = value.partition(", tz=UTC]")
    return pa.timestamp(name.partition("[")[2], "UTC") if is_zoned else pa.type_for_alias(name)


def is_label_type(kind: pa.DataType) -> bool:
    """True if a label column can have this type: one of a closed list, or a list of one of them."""
    name = type_to_json(kind)
    return is_type_json(name) and bool(type_of_json(name) == kind)


def joined_schema(one: pa.Schema, other: pa.Schema, where: str, piece: str = "chunk") -> pa.Schema:
    """Return the columns of `one` in types that hold the values of both; else LabelError, about a `piece`."""
    if sorted(one.names) != sorted(other.names):
        raise LabelError(
            f"{_prefix(where)}one {piece} has the labels {', '.join(one.names) or '(none)'}, another "
            f"{', '.join(other.names) or '(none)'}; write all with the same in_memory_keys"
        )
    kinds = {}
    for name, old in zip(one.names, one.types, strict=True):
        new = other.field(name).type
        kinds[name] = merged(old, new)
        if kinds[name] is None:
            raise _clash(name, f"{old} in one {piece} and {new} in another", where)
    return pa.schema(kinds.items())


def _clash(name: str, what: str, where: str) -> LabelError:
    return LabelError(
        f'{_prefix(where)}label "{name}" is {what}; write it as one type, for example '
        f'in_memory_keys={{"{name}": lambda s: str(s["{name}"])}}'
    )


def _prefix(where: str) -> str:
    return f"{where}: " if where else ""


def cast(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array to a type that holds its values."""
    if chunk.type == kind:
        return chunk
    if pa.types.is_null(chunk.type):
        return pa.nulls(len(chunk), kind)
    if pa.types.is_float16(chunk.type):
        chunk = widened_float16(chunk)
    # Unchecked: `merged` and `check_widened` have checked it faster than Arrow does.
    return chunk.cast(kind, safe=False)


def cast_table(labels: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Cast a table to a schema that `joined_schema` made; LabelError as `check_widened`."""
    columns = []
    for field in schema:
        column = labels.column(field.name)
        check_widened(field.name, column, field.type, where)
        columns.append(pa.chunked_array([cast(chunk, field.type) for chunk in column.chunks], field.type))
    return pa.table(columns, schema=schema)


def check_widened(name: str, column: pa.ChunkedArray, kind: pa.DataType, where: str) -> None:
    """Raise LabelError for an integer of a column, or in its lists, that a wider type of floats may round."""
    for chunk in column.chunks if is_widened(column.type, kind) else ():
        numbers = number_values(chunk.flatten() if is_list(column.type) else chunk)
        for extreme in (numbers.min(initial=0), numbers.max(initial=0)):
            if abs(int(extreme)) > EXACT:
                what = f"{kind} and has the integer {extreme}, which float64 does not hold exactly"
                raise _clash(name, what, where)


def unify(tables: Sequence[pa.Table], where: str, piece: str = "chunk") -> pa.Table:
    """Join label tables, one or more, by the names of their columns: one contiguous array each.

    Raises: LabelError, as `joined_schema`.
    """
    schema = tables[0].schema
    for table in tables[1:]:
        schema = joined_schema(schema, table.schema, where, piece)
    whole = pa.concat_tables([cast_table(table, schema, where) for table in tables])
    if not schema.names:
        return whole
    return pa.table([one_chunk(column) for column in whole.columns], names=whole.column_names)
