"""Tables and columns of pandas, polars and Arrow: names, types, and values as Arrow has them.

- Values are equal however they are cut into chunks, or sliced from others. A category is its value: which number it
  has, and which categories no row has, is told by a sample that is computed again.
- An index of pandas is a column, and one that counts the rows is equal to these numbers. Its nan is no null.
- A column that Arrow has no type for, such as one of objects of a user, is the list of its objects. Of other objects
  Arrow tells no int beside floats from a float, and no tuple from a list; a sample does.

What must never happen: that the bytes beneath a null, which may be any, or an address enter; that a value changes, or
that two swap their rows, and the description stays.
"""

from __future__ import annotations

from typing import Any, Final

from edcache.format import is_list, missing_rows, one_chunk, pa, to_numpy

_LIBRARIES: Final = ("pandas", "polars", "pyarrow")
# A table or a column has one of these: by the interface of Arrow, or as pandas has had them before.
_MARKS: Final = ("__arrow_c_stream__", "__arrow_c_array__", "dtype", "iloc")


def library_of(value: Any) -> str:
    """Name the library of tables that a class is of, or is derived from, as a GeoDataFrame is; "" without one."""
    for kin in type(value).__mro__:
        library = kin.__module__.partition(".")[0]
        if library in (*_LIBRARIES, "datasets"):
            return library
    return ""


def is_table(value: Any) -> bool:
    """True for a table or a column of pandas, polars or Arrow. A lazy frame has no values yet, and is none."""
    kind = type(value)
    is_sized = library_of(value) in _LIBRARIES and hasattr(kind, "__len__")
    return is_sized and any(hasattr(kind, mark) for mark in _MARKS)


def content_of(table: Any) -> dict[str, Any]:
    """Return name, type and values of each column of a table, and the attributes that pandas keeps with it."""
    columns = [[name, *_described(column)] for name, column in _columns(table)]
    return {"attrs": getattr(table, "attrs", {}), "columns": columns}


def _columns(table: Any) -> list[tuple[Any, Any]]:
    """Return the columns of a table by name, before them the levels of an index of pandas."""
    # By the class: a column may have such a name, and pandas gives it as an attribute.
    if hasattr(type(table), "to_frame"):  # a column of pandas or polars, or an index
        table = table.to_frame()
    kind = type(table)
    if hasattr(kind, "iloc"):
        levels = [table.index.get_level_values(k) for k in range(table.index.nlevels)]
        return [*((("index", level.name), level) for level in levels), *table.items()]
    if hasattr(kind, "get_columns"):
        return [(column.name, column) for column in table.get_columns()]
    if hasattr(kind, "schema"):
        return [*zip(table.schema.names, table.columns, strict=True)]
    return [("", table)]


def _described(column: Any) -> list[Any]:
    """Return the type of a column, and its values: arrays, or lists of objects."""
    if library_of(column) == "pyarrow":
        return [str(column.type), *_values(column)]
    kind = str(column.dtype)
    try:
        made = column.to_arrow() if hasattr(type(column), "to_arrow") else pa.array(column, from_pandas=False)
    except Exception:  # noqa: BLE001 - of objects of several types, or of any
        return [kind, [*column]]
    # Polars gives the addresses of its objects.
    return [kind, [*column]] if kind == "Object" else [kind, *_values(made)]


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return where a column has nulls, and its other values; of lists their lengths, and the values of all."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _values(column.cast(kind.value_type))
    array = one_chunk(column)
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return [*_values(array.value_lengths()), *_values(array.flatten())]
    if pa.types.is_primitive(kind):
        return [missing_rows(array), to_numpy(array.drop_null(), nullable=False)]
    return [array.to_pylist()]
