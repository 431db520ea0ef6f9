"""Rows, labels and JSON of the table of a chunk, and the files of label columns, behind fitting checksums."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from fuzz_archives import row_bytes
from fuzz_draw import Draw

from edcache import format
from edcache.errors import CorruptArchiveError
from edcache.format import Header
from edcache.format.columns import read_column
from edcache.format.records import records_offset

UUID = bytes(range(16))
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
_META = {"schemas": ['"int"'], "labels": {"y": ["int64", False, False, None]}}


def _labels() -> dict[str, Any]:
    return {"y": pa.array([1, 2, 3]), "s": pa.array(["a", "b", None]), "l": pa.array([[1], [], [2, 3]])}


def _stream(columns: dict[str, Any], codec: int, make: Any) -> bytes:
    """Columns as Arrow, compressed or in two batches, which no writer does."""
    schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=(None, "zstd", "lz4")[codec % 3])
    with make(sink, schema, options=options) as writer:
        for _ in range(1 + (codec > 2)):
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


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


def _lied(draw: Draw, columns: dict[str, Any]) -> int:
    """Change columns; returns how they are compressed."""
    codec = 0
    for _ in range(1 + draw.below(3)):
        what, name = draw.below(4), draw.pick(("y", "s", "l", "z", ""))
        if what == 0:
            columns[name] = _column(draw, 3)
        elif what == 1:
            columns.pop(name, None)
        elif what == 2:
            codec = draw.below(6)
    return codec


def run(data: bytes) -> None:
    draw = Draw(data)
    with suppress(CorruptArchiveError):
        (_chunk if draw.below(3) else _file)(draw)


def _file(draw: Draw) -> None:
    columns, name = _labels(), draw.pick(("y", "s", "l"))
    codec = _lied(draw, columns)
    chosen = columns if draw.flag() else {name: columns.get(name, pa.nulls(3))}
    data = _stream(chosen, codec, pa.ipc.new_file)
    data = draw.changed(data) if draw.flag() else data
    rows = 3 if draw.below(4) else draw.number()
    kind = draw.pick((pa.int64(), pa.string(), pa.list_(pa.int64()), draw.pick(_TYPES)))
    column = read_column(data, name, kind, rows)
    assert len(column) == rows
    assert column.type == kind
    column.to_pylist()


def _chunk(draw: Draw) -> None:
    columns, meta = _labels(), json.loads(json.dumps(_META))
    codec = _lied(draw, columns) if draw.flag() else 0
    stream = _stream(columns, codec, pa.ipc.new_stream)
    samples, rows, nbytes = [0, 1, 2], [[0, 8, 1, 0, 1], [8, 8, 2, 0, 1], [16, 8, 3, 0, 1]], [3, 0, 0]
    for _ in range(draw.below(3)):
        what = draw.below(5)
        if what == 0:
            samples[draw.below(3)] = draw.number()
        elif what == 1:
            rows[draw.below(3)][draw.below(5)] = draw.number()
        elif what == 2:
            nbytes[draw.below(3)] = draw.number()
        elif what == 3:
            stream = draw.changed(stream)
        else:
            meta[draw.pick(("schemas", "labels", "other"))] = draw.value()
    text = json.dumps(meta).encode()
    count, texts, streams = (
        own or said for own, said in zip(nbytes, (3, len(text), len(stream)), strict=True)
    )
    total = 24 + 3 * 32 + len(text) + len(stream)
    start = 4096 + format.header_nbytes("chunks/00000001")
    records = start + format.align(total, 64)
    parts = [
        struct.pack("<QQQ", count, texts, streams),
        *(sample.to_bytes(8, "little") for sample in samples),
    ]
    parts += [row_bytes(0, row, b"", records, True) for row in rows]
    data = b"".join([*parts, text, stream])
    data = draw.changed(data) if draw.below(4) == 3 else data
    place = 1, 4096, records - start + 24, 0, 1 << 20, 0
    own = {"end": 3, "table_nbytes": len(data), "table_crc32": format.crc32(data)}
    header = Header(format.CHUNK, "chunks/00000001", UUID, *place, **own)
    table = format.read_table(lambda offset, nbytes: data[:nbytes], header, "fuzz.zip")
    assert len(table.samples) == len(table.rows) > 0
    assert table.samples.min() == 0
    assert table.samples.max() == 2
    low, high = records_offset(header), header.payload_end
    assert np.all(table.rows["offset"] >= low)
    assert np.all(format.stored_ends(table.rows) <= high)
    assert np.all(table.rows["schema"] < len(table.schemas))
    labels = table.labels
    assert not labels.num_columns or labels.num_rows == len(table.rows)
    labels.to_pylist()


def seeds() -> list[bytes]:
    return [
        bytes([kind, a, b, c, 1, 0, 2]) for kind in (0, 1) for a in range(3) for b in range(5) for c in (0, 1)
    ]
