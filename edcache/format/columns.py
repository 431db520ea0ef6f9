"""Label columns as Arrow: in a chunk one stream, after a seal a file of each."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any, Final

from edcache.base import LaterReleaseError
from edcache.format.arrays import pa
from edcache.format.entries import reported
from edcache.format.types import is_label_type, type_to_json

BATCH_ROWS: Final = 1 << 20
"""Rows of each batch of a column's file but the last."""


def write_stream(labels: pa.Table) -> bytes | memoryview:
    """Pack the labels of a chunk as an Arrow stream of one batch; b"" without columns."""
    if not labels.num_columns:
        return b""
    sink = pa.BufferOutputStream()
    table = labels.replace_schema_metadata(None).combine_chunks()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return memoryview(sink.getvalue())


def read_stream(data: Any, rows: int) -> pa.Table:
    """Read the labels of a chunk of `rows` records; ValueError if they are none. Raises: LaterReleaseError."""
    if not len(data):
        return pa.table({})
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        table = reader.read_all()
    names = table.column_names
    if table.num_rows != rows or len(set(names)) != len(names):
        raise ValueError(f"labels of {table.num_rows:,} rows, {rows:,} are needed, or a name twice")
    for kind in table.schema.types:
        if not is_label_type(kind):
            raise LaterReleaseError.needing(f"the label type {str(type_to_json(kind))[:80]!r}")
    return _checked(table)


def write_column(
    write: Callable[[Any], object], name: str, kind: pa.DataType, arrays: Iterable[pa.Array]
) -> None:
    """Write a column as an Arrow file, array by array. write: writes the next bytes of the file."""
    schema = pa.schema([(name, kind)])
    file = pa.PythonFile(_Sink(write), mode="w")
    with pa.ipc.new_file(file, schema) as writer:
        for array in arrays:
            writer.write_table(pa.Table.from_arrays([array], schema=schema), BATCH_ROWS)
    file.flush()


class _Sink(io.RawIOBase):
    """File object for pyarrow to write to."""

    def __init__(self, write: Callable[[Any], object]) -> None:
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._write(memoryview(data))
        return len(data)


def read_column(data: Any, name: str, kind: pa.DataType, rows: int) -> pa.ChunkedArray:
    """Read a column from an Arrow file, as a view of its bytes; CorruptArchiveError if it is another one."""
    with reported(f"the column {name[:80]!r}"):
        with pa.ipc.open_file(pa.py_buffer(data)) as file:
            table = file.read_all()
        if table.column_names != [name] or table.num_rows != rows or table.schema.field(0).type != kind:
            raise ValueError(f"it is {str(table.schema)[:200]} of {table.num_rows:,} rows")
        return _checked(table).column(0)


def _checked(table: pa.Table) -> pa.Table:
    """Return a table without metadata; ValueError if a value points out of its buffers."""
    table.validate(full=True)
    return table.replace_schema_metadata(None)
