"""index.pages, labels.arrow and the tables of chunks, as bytes that fit their checksums."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from edcache.format.index_pages import check_page, pack_index, parse_root, unpack_page
from edcache.format.label_file import checked_labels, parse_label_table
from edcache.format.tables import IndexTable, Records, parse_chunk_table, spread
from fuzz_archives import INDEX_DTYPES, INDEX_TYPES
from fuzz_draw import Draw
from label_files import pack_labels

from edcache.errors import CorruptArchiveError

_TYPES = [
    *(pa.int64(), pa.uint64(), pa.uint32(), pa.uint16(), pa.float64(), pa.bool_(), pa.null(), pa.string()),
    *(
        pa.binary(),
        pa.large_string(),
        pa.timestamp("us"),
        pa.timestamp("ns", "UTC"),
        pa.date32(),
        pa.float16(),
    ),
    *(pa.list_(pa.int64()), pa.list_(pa.string()), pa.large_list(pa.float32()), pa.decimal128(5, 2)),
    *(pa.dictionary(pa.int8(), pa.string()), pa.struct([("a", pa.int8())]), pa.list_(pa.int8(), 2)),
    *(
        pa.duration("s"),
        pa.time64("ns"),
        pa.list_(pa.list_(pa.int8())),
        pa.string_view(),
        pa.run_end_encoded(pa.int16(), pa.int8()),
    ),
    *(pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.map_(pa.string(), pa.int8()), pa.uuid()),
]
_META: dict[str, dict[str, Any]] = {
    "index": {
        "length": 3,
        "schemas": ['"int"'],
        "compressed": False,
        "chunks": 2,
        "chunks_crc": 5,
        "failed": [[1, True, "E", "", ""]],
    },
    "chunk": {"schemas": ['"int"'], "records_nbytes": 24, "labels": {"y": ["int64", False, False, None]}},
    "labels": {},
}


def _columns(kind: str, has_index: bool) -> dict[str, Any]:
    labels = {"y": pa.array([1, 2, 3]), "s": pa.array(["a", "b", None]), "l": pa.array([[1], [], [2, 3]])}
    if kind == "labels":
        return labels
    own = {"offset": [0, 8, 16], "nbytes": [8, 8, 8], "crc32": [1, 2, 3], "schema": [0, 0, 0]}
    if has_index:
        own = {"index": [0, 1, 2], **own}
    columns = {name: pa.array(values, INDEX_TYPES[name]) for name, values in own.items()}
    return columns if kind == "index" else columns | {f"label/{name}": labels[name] for name in labels}


def _packed(kind: str, columns: dict[str, Any], meta: Any, codec: int) -> bytes:
    if kind == "index":
        return _index(meta)
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    schema = pa.schema(fields, metadata={"edcache": json.dumps(meta)})
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    if kind == "labels":
        return _labels(pa.Table.from_batches([batch]), codec)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=(None, "zstd", "lz4")[codec % 3])
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for _ in range(1 + (codec > 2)):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@cache
def _pages() -> tuple[bytes, bytes]:
    """The pages and the chunks of an index of three records of five samples; and what lists its pages."""
    numbers = {"offset": [0, 8, 24], "nbytes": [8, 9, 8], "crc32": [1, 2, 3], "schema": [0, 1, 0]}
    columns = {name: np.array(values, INDEX_DTYPES[name]) for name, values in numbers.items()}
    records = Records(**columns, index=np.array([0, 2, 4]))
    index = IndexTable(records, 5, ["a", "b"], np.array([[4500, 4544, 24], [8600, 8640, 8]]))
    payload, nbytes = pack_index(index)
    return payload[: len(payload) - nbytes], payload[-72:]


def _index(meta: Any) -> bytes:
    """The table of an index with this JSON."""
    text = json.dumps(meta).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<II", 12, len(text)) + text + _pages()[1]


def _labels(table: pa.Table, codec: int) -> bytes:
    """labels.arrow, in front of it the bytes of its table; of types that no writer makes, as Arrow has it."""
    with suppress(Exception):  # what the writer makes of such types is not the question
        data, nbytes = pack_labels(table)
        return struct.pack("<Q", nbytes) + bytes(data)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=(None, "zstd", "lz4")[codec % 3])
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    start = len(data) - 10 - struct.unpack_from("<i", data, len(data) - 10)[0]
    parts = bytes(96 * table.num_columns) + struct.pack("<QQ", table.num_rows, 1 << 18)
    return struct.pack("<Q", len(parts) + len(data) - start) + data[:start] + parts + data[start:]


def _column(draw: Draw, rows: int) -> Any:
    kind = draw.pick(_TYPES)
    try:
        if draw.flag() and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            size = kind.bit_width // 8
            values = np.frombuffer(
                b"".join(draw.number().to_bytes(8, "little")[:size] for _ in range(rows)), np.uint8
            )
            return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)])
        return pa.array([None] * rows, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.nulls(rows)


def _lied(draw: Draw, kind: str) -> bytes:
    """A table that Arrow reads, whose columns and metadata are not what a writer makes."""
    columns, meta = dict(_columns(kind, draw.flag())), dict(_META[kind])
    rows, codec = 3, 0
    for _ in range(1 + draw.below(3)):
        what, names = draw.below(7), sorted(columns)
        name = draw.pick(names) if names else "y"
        if what == 0:
            columns[name] = _column(draw, rows)
        elif what == 1 and name in INDEX_TYPES:
            width = INDEX_TYPES[name].bit_width // 8
            values = b"".join(draw.number().to_bytes(8, "little")[:width] for _ in range(rows))
            columns[name] = pa.Array.from_buffers(INDEX_TYPES[name], rows, [None, pa.py_buffer(values)])
        elif what == 2:
            columns.pop(name, None)
        elif what == 3:
            columns[draw.pick(("index", "raw_nbytes", "label/z", "z", "label/", "edcache"))] = _column(
                draw, rows
            )
        elif what == 4 and meta:
            meta[draw.pick(sorted(meta))] = draw.value()
        elif what == 5:
            codec = draw.below(6)
        elif what == 6 and meta:
            del meta[draw.pick(sorted(meta))]
    return _packed(kind, columns, meta, codec)


def run(data: bytes) -> None:
    draw = Draw(data)
    kind, how = draw.pick(("index", "chunk", "labels")), draw.below(5)
    rows = 3 if draw.below(4) else draw.number()
    if how == 0:
        packed = draw.rest()
    elif how == 1:
        packed = draw.changed(_packed(kind, _columns(kind, draw.flag()), _META[kind], 0))
    elif how == 2:
        packed = draw.changed(_lied(draw, kind))
    else:
        packed = _lied(draw, kind)
    if kind == "labels":
        packed = _misplaced(draw, packed)
    with suppress(CorruptArchiveError):
        _parse(kind, packed, rows)


def _misplaced(draw: Draw, packed: bytes) -> bytes:
    """Labels whose table says other numbers."""
    nbytes = int.from_bytes(packed[:8], "little")
    for _ in range(draw.below(3)):
        at = len(packed) - nbytes + 8 * draw.below(48)
        if nbytes <= len(packed) and at + 8 <= len(packed):
            packed = packed[:at] + draw.number().to_bytes(8, "little") + packed[at + 8 :]
    return packed


def _parse(kind: str, data: bytes, rows: int) -> None:
    if kind == "index":
        payload = _pages()[0] + data
        root = parse_root(data, rows, len(payload), 1 << 20)
        assert root.rows == rows <= root.length
        assert all(type(text) is str for text in root.schemas)
        assert all(failure.index < root.length for failure in root.failures)
        for number, (page, nbytes) in enumerate(zip(root.pages, root.nbytes.tolist(), strict=True)):
            start = int(page["at"])
            check_page(root, number, payload[start : start + nbytes], 1 << 20)
            unpack_page(root, number, payload[start : start + nbytes])
        return
    if kind == "chunk":
        table = parse_chunk_table(data, rows)
        assert len(table.records.index) == rows
        _look(table.labels, rows)
        return
    nbytes, data = int.from_bytes(data[:8], "little"), data[8:]

    def load(extents: Any) -> Any:
        return [memoryview(data)[extent.at : extent.at + extent.nbytes] for extent in extents]

    with suppress(CorruptArchiveError):
        _look(checked_labels(data, rows, nbytes).table, rows)
    if nbytes <= len(data):
        labels = parse_label_table(data[len(data) - nbytes :], len(data), rows, load)
        _look(labels.table, rows)


def _look(labels: pa.Table, rows: int) -> None:
    if labels.num_columns:
        assert labels.num_rows == rows
        spread(labels, np.arange(rows), rows + 2).to_pylist()


def seeds() -> list[bytes]:
    honest = [bytes([kind, 1, 1, flag, 0, 4, 0]) for kind in range(3) for flag in range(2)]
    lied = [
        bytes([kind, how, 1, 1, 0, what, 1, 2]) for kind in range(3) for how in (2, 3) for what in range(7)
    ]
    return [*honest, *lied, b"\0\0\1ARROW1\0\0", b"\0\3\1\0\0\4\0\0"]
