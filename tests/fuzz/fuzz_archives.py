"""Archives in memory: whole ones that the package wrote, taken apart, changed, and put together again with
checksums that fit, so that a fuzzer gets behind them.
"""

from __future__ import annotations

import copy
import io
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from edcache.format.index_pages import pack_index, parse_index
from edcache.format.tables import Failure, IndexTable, Records
from fuzz_draw import Draw
from label_files import pack_labels

from edcache import CacheWriter, format
from edcache.format import Header
from edcache.writer.appender import Appender

UUID = bytes(range(16))
INDEX_TYPES = {
    "index": pa.int64(),
    "offset": pa.uint64(),
    "nbytes": pa.uint64(),
    "crc32": pa.uint32(),
    "schema": pa.uint16(),
    "raw_nbytes": pa.uint64(),
}
INDEX_DTYPES = {name: kind.to_pandas_dtype() for name, kind in INDEX_TYPES.items()}
_FIELDS = (
    "samples",
    "end_index",
    "table_nbytes",
    "table_crc",
    "durable",
    "seq",
    "link",
    "next",
    "payload_nbytes",
)


@contextmanager
def in_memory(data: bytes) -> Iterator[str]:
    """A path that leads to a file of these bytes, in memory; it may be written, mapped and locked."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.zip")
            with open(path, "wb") as file:
                file.write(data)
            yield path
        return
    fd = os.memfd_create("fuzz")
    try:
        os.pwrite(fd, data, 0)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


@dataclass
class Table:
    """An Arrow table taken apart: integers by column, labels, and its metadata."""

    columns: dict[str, list[int]]
    labels: dict[str, Any]
    meta: dict[str, Any]

    def packed(self, make: Any) -> bytes:
        arrays = {
            name: pa.array(
                np.array([v % (1 << INDEX_TYPES[name].bit_width) for v in values], np.uint64).astype(
                    INDEX_DTYPES[name]
                ),
                INDEX_TYPES[name],
            )
            for name, values in self.columns.items()
        } | self.labels
        fields = [pa.field(name, array.type) for name, array in arrays.items()]
        schema = pa.schema(fields, metadata={"edcache": json.dumps(self.meta)})
        rows = max(map(len, arrays.values()), default=0)
        short = [array if len(array) == rows else pa.nulls(rows, array.type) for array in arrays.values()]
        sink = io.BytesIO()
        with make(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(short, schema=schema))
        return sink.getvalue()


@dataclass
class Part:
    """One entry: `table` where it is a chunk or part of a seal, whose honest bytes are `packed`."""

    kind: int
    packed: bytes
    records: bytearray = field(default_factory=bytearray)
    table: Table | None = None
    samples: int = 0
    end_index: int = 0
    lies: dict[str, int] = field(default_factory=dict)
    table_nbytes: int = 0
    is_changed: bool = False
    keeps_crcs: bool = False


@dataclass
class Archive:
    """head: its JSON. parts: the chain between head and seal. seal: index and labels, or nothing."""

    head: bytes
    parts: list[Part]
    seal: list[Part]
    directory_lie: int = -1


def _number(i: int) -> dict[str, Any]:
    return {"x": torch.arange(3, dtype=torch.int16) + i, "y": i % 3, "s": f"sample {i}"}


def _fixed(i: int) -> dict[str, Any]:
    return {"x": np.full((2, 4), i, np.float32), "y": i}


def _long(i: int) -> dict[str, Any]:
    return {"text": f"word{i % 7} " * 25, "tokens": list(range(i, i + 12)), "y": i}


def _differing(i: int) -> Any:
    return [None, i, [i] * 9, {"y": b"x" * i, 5: (1.5, True)}, torch.zeros(i, 2), np.float32(i)][i % 6]


def _plain(w: CacheWriter, samples: Any) -> None:
    w.extend(samples)
    w.close()


def _grown(w: CacheWriter, samples: Any) -> None:
    w.extend(samples[:3])
    w.seal()
    w.extend(samples[3:])
    w.close()


def _sparse(w: CacheWriter, samples: Any) -> None:
    for i, sample in enumerate(samples):
        w.write(3 * i + 1, sample)
    w.flush()
    appender: Appender = w._appender
    appender.amend(failed=[[0, True, "ValueError", "text", "trace"], [2, False, "KeyError", "'k'", ""]])
    appender.amend(length=30)
    w.abort()


_BASES: list[tuple[Any, int, Any, dict[str, Any]]] = [
    (_number, 5, _plain, {"in_memory_keys": ["y", "s"], "chunk_size": 3}),
    (_fixed, 6, _plain, {"in_memory_keys": ["y"], "chunk_size": 4}),
    (_long, 4, _plain, {"compression": "zstd", "chunk_size": 3, "in_memory_keys": ["y"]}),
    (_number, 5, _grown, {"in_memory_keys": ["y", "s"]}),
    (_fixed, 4, _sparse, {"in_memory_keys": ["y"], "chunk_size": 2}),
    (_differing, 6, _plain, {}),
    (_number, 0, _plain, {"in_memory_keys": ["y"]}),
]


@cache
def base(number: int) -> bytes:
    """One whole archive of a few pages."""
    make, count, write, options = _BASES[number % len(_BASES)]
    with in_memory(b"") as path:
        w = CacheWriter(path, "a", uuid=UUID, sync="never", publish_seconds=None, **options)
        write(w, [make(i) for i in range(count)])
        with open(path, "rb") as file:
            return file.read()


BASES = len(_BASES)


@cache
def _taken_apart(number: int) -> Archive:
    data = base(number)

    def pread(offset: int, nbytes: int) -> bytes:
        return data[offset : offset + nbytes]

    head = format.parse_header(data)
    assert head is not None
    _, cursor = format.read_head(pread, "base")
    headers = list(format.walk(pread, len(data), UUID, cursor))
    parts = [_part(header, data) for header in headers]
    seal = parts[-2:] if parts and parts[-1].kind == format.KIND_LABELS else []
    honest = [part for part in parts if part.kind not in (format.KIND_INDEX, format.KIND_LABELS)]
    return Archive(data[head.nbytes : head.next].rstrip(), honest, seal)


def _part(header: Header, data: bytes) -> Part:
    packed = data[header.payload_offset : header.payload_offset + header.table_nbytes]
    part = Part(header.kind, packed, samples=header.samples, end_index=header.end_index)
    part.table_nbytes = header.table_nbytes
    if header.kind == format.KIND_CHUNK:
        read = pa.ipc.open_stream(packed).read_all()
        nbytes = json.loads(read.schema.metadata[b"edcache"])["records_nbytes"]
        start = header.payload_offset + -(-header.table_nbytes // 64) * 64
        part.records = bytearray(data[start : start + nbytes])
        part.packed = packed[: len(packed) - 4 * -(-nbytes // format.BLOCK_NBYTES)]
        part.table = _table(read)
    elif header.kind in (format.KIND_INDEX, format.KIND_LABELS):
        part.packed = data[header.payload_offset : header.payload_end]
        part.table = _index_table(part) if header.kind == format.KIND_INDEX else _label_table(part)
    return part


def _index_table(part: Part) -> Table:
    index = parse_index(part.packed, part.samples, part.table_nbytes)
    meta = {
        "length": index.length,
        "schemas": index.schemas,
        "chunks": index.blocks.tolist(),
        "failed": [failure.to_json() for failure in index.failures],
        "labels": None if index.labels is None else [list(one) for one in index.labels],
    }
    return Table({name: column.tolist() for name, column in index.records.columns().items()}, {}, meta)


def _label_table(part: Part) -> Table:
    read = pa.ipc.open_file(part.packed).read_all()
    return Table({}, {name: read.column(name).combine_chunks() for name in read.column_names}, {})


def _pack_seal(part: Part) -> None:
    """Make the bytes of index.pages or labels.arrow anew; what cannot be packed stays as it was."""
    assert part.table is not None
    columns, meta = part.table.columns, part.table.meta
    refusals = (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError, IndexError)
    with suppress(*refusals, StopIteration):
        if part.kind == format.KIND_LABELS:
            data, part.table_nbytes = pack_labels(pa.table(part.table.labels))
            part.packed = bytes(data)
            return
        records = {
            name: np.array([v % (1 << 64) for v in values], np.uint64).astype(INDEX_DTYPES[name])
            for name, values in columns.items()
        }
        blocks = np.array([[n % (1 << 64) for n in row] for row in meta["chunks"]], np.uint64)
        failed = [Failure(*one) for one in meta.get("failed", [])]
        rest = (meta["schemas"], blocks.astype(np.int64).reshape(-1, 3), failed)
        index = IndexTable(Records(**records), meta["length"], *rest, meta.get("labels"))
        part.packed, part.table_nbytes = pack_index(index)


def _table(read: Any) -> Table:
    own = {name: read.column(name).to_pylist() for name in read.column_names if name in INDEX_TYPES}
    labels = {n: read.column(n).combine_chunks() for n in read.column_names if n not in INDEX_TYPES}
    meta = json.loads(read.schema.metadata[b"edcache"])
    return Table(own, labels, meta)


def drawn(number: int) -> Archive:
    """A base archive that may be changed."""
    found = _taken_apart(number)
    return Archive(
        found.head, [_copied(part) for part in found.parts], [_copied(part) for part in found.seal]
    )


def _copied(part: Part) -> Part:
    table = part.table
    if table is not None:
        columns = {name: values.copy() for name, values in table.columns.items()}
        table = Table(columns, table.labels.copy(), copy.deepcopy(table.meta))
    return replace(part, records=part.records[:], table=table, lies=part.lies.copy())


# --- putting together ---


def assembled(archive: Archive) -> bytes:
    """The file, every checksum and link of which fits what stands there, lies included."""
    head_nbytes = -(-(format.HEADER_NBYTES + len(archive.head) + 1) // format.PAGE) * format.PAGE
    payload = archive.head.ljust(head_nbytes - format.HEADER_NBYTES - 1) + b"\n"
    crc = format.crc32(payload)
    head = Header(0, UUID, 0, 0, 0, len(payload), crc, head_nbytes, table_nbytes=len(payload), table_crc=crc)
    out, link, headers = (
        bytearray(format.pack_header(head) + payload),
        format.link_after(format.pack_header(head)),
        [],
    )
    for seq, part in enumerate(archive.parts):
        table_nbytes, payload = _payload(part)
        bare = Header(part.kind, UUID, seq, len(out), link, 0, 0)
        total = -(-(bare.nbytes + len(payload)) // format.PAGE) * format.PAGE
        payload = payload.ljust(total - bare.nbytes, b"\0")
        header = _header(part, bare, payload, table_nbytes, len(out) + total)
        packed = format.pack_header(header)
        out += packed.ljust(bare.nbytes, b"\0")[: bare.nbytes] + payload
        link = format.link_after(packed)
        headers.append(header)
    if archive.seal:
        _seal(archive, out, link, [head, *headers])
    return bytes(out)


def _header(part: Part, bare: Header, payload: bytes, table_nbytes: int, end: int) -> Header:
    fields: dict[str, int] = {
        "payload_nbytes": len(payload),
        "payload_crc": format.crc32(payload),
        "next": end,
        "samples": part.samples,
        "end_index": part.end_index,
        "table_nbytes": table_nbytes,
        "table_crc": format.crc32(_table_of(part.kind, payload, table_nbytes)),
    } | part.lies
    return Header(bare.kind, UUID, **{"seq": bare.seq, "offset": bare.offset, "link": bare.link, **fields})


def _table_of(kind: int, payload: bytes, nbytes: int) -> bytes:
    if kind in (format.KIND_INDEX, format.KIND_LABELS):
        return payload[max(0, len(payload) - nbytes) :]
    return payload[:nbytes]


def _payload(part: Part) -> tuple[int, bytes]:
    if part.kind != format.KIND_CHUNK:
        return len(part.packed), part.packed
    if part.is_changed and part.table is not None:
        _sign_records(part)
        part.packed = part.table.packed(pa.ipc.new_stream)
    records = memoryview(bytes(part.records))
    starts = range(0, len(records), format.BLOCK_NBYTES)
    crcs = [format.crc32(records[at : at + format.BLOCK_NBYTES]) for at in starts]
    table = part.packed + struct.pack(f"<{len(crcs)}I", *crcs)
    return len(table), table.ljust(-(-len(table) // 64) * 64, b"\0") + part.records


def _sign_records(part: Part) -> None:
    """Let each record's crc32 fit, wherever its row says that it lies."""
    assert part.table is not None
    columns = part.table.columns
    if part.keeps_crcs or not {"offset", "nbytes", "crc32"} <= set(columns):
        return
    extents = zip(columns["offset"], columns["nbytes"], strict=False)
    crcs = [format.crc32(bytes(part.records[at : at + nbytes])) for at, nbytes in extents]
    columns["crc32"] = (crcs + columns["crc32"])[: len(columns["crc32"])]


def _seal(archive: Archive, out: bytearray, link: int, listed: list[Header]) -> None:
    index, labels = archive.seal
    seq = len(archive.parts)
    packed = []
    for part in (index, labels):
        if part.is_changed and part.table is not None:
            if part is index and not part.keeps_crcs:
                _sign_index(part.table, out)
            _pack_seal(part)
        packed.append(part.packed)
    bare = [
        _header(part, Header(part.kind, UUID, seq, len(out), link, 0, 0), data, part.table_nbytes, 0)
        for part, data in zip((index, labels), packed, strict=True)
    ]
    first, second, directory = format.seal_headers(*bare, listed)
    for header, data in ((first, packed[0]), (second, packed[1])):
        start = header.offset
        out[start:] = format.pack_header(header) + data
    if archive.directory_lie >= 0:
        at = archive.directory_lie % len(directory)
        directory = directory[:at] + bytes([directory[at] ^ 1]) + directory[at + 1 :]
    out += directory


def _sign_index(table: Table, file: bytearray) -> None:
    columns = table.columns
    if {"offset", "nbytes", "crc32"} <= set(columns):
        extents = zip(columns["offset"], columns["nbytes"], strict=False)
        columns["crc32"] = [
            format.crc32(bytes(file[at : at + min(nbytes, 1 << 16)])) for at, nbytes in extents
        ]


# --- lies ---


def lie(archive: Archive, draw: Draw) -> None:
    """One change, drawn."""
    what = draw.below(12)
    every = [*archive.parts, *archive.seal]
    part = draw.pick(every) if every else None
    if what == 0:
        archive.head = draw.changed(archive.head)
    elif what == 1 and len(archive.parts) > 1:
        archive.parts.insert(
            draw.below(len(archive.parts)), archive.parts.pop(draw.below(len(archive.parts)))
        )
    elif what == 2 and archive.parts:
        archive.parts.append(_copied(draw.pick(archive.parts)))
    elif what == 3:
        archive.parts.append(_amendment(draw))
    elif what == 4:
        archive.seal = [] if draw.flag() else archive.seal
        archive.directory_lie = -1 if draw.flag() else draw.byte()
    elif part is None:
        return
    elif what == 5:
        name = draw.pick(_FIELDS)
        part.lies[name] = draw.number() % (1 << 32 if name == "table_crc" else 1 << 64)
    elif what == 6:
        part.packed, part.is_changed = draw.changed(part.packed), False
    elif what == 7 and part.records:
        part.records[:] = draw.changed(bytes(part.records))
        part.is_changed = True
    elif part.table is not None:
        _lie_in_table(part, part.table, what, draw)


def _amendment(draw: Draw) -> Part:
    said = {draw.pick(("length", "lost", "failed", "other")): draw.value() for _ in range(1 + draw.below(2))}
    kind = format.KIND_AMENDMENT if draw.below(4) else draw.below(6)
    text = json.dumps(said).encode() if draw.flag() else draw.some()
    return Part(kind if kind not in (0, 4, 5) else 3, text)


def _lie_in_table(part: Part, table: Table, what: int, draw: Draw) -> None:
    part.is_changed, part.keeps_crcs = True, draw.below(4) == 3
    names = sorted(table.columns)
    if what in (8, 9) and names:
        column = table.columns[draw.pick(names)]
        if column:
            at = draw.below(len(column))
            column[at] = column[at] + draw.signed() if draw.flag() else draw.number()
    elif what == 10:
        _lie_in_meta(table.meta, draw)
    elif names and draw.flag():
        table.columns.pop(draw.pick(names))
    elif table.labels:
        name = draw.pick(sorted(table.labels))
        rows = len(table.labels[name])
        values: list[Any] = [
            [draw.signed()] * rows,
            [draw.text()] * rows,
            [None] * rows,
            [[draw.byte()]] * rows,
        ]
        table.labels[draw.pick((name, "label/odd"))] = pa.array(draw.pick(values))


def _lie_in_meta(meta: dict[str, Any], draw: Draw) -> None:
    if not meta:
        return
    key = draw.pick(sorted(meta))
    # What an earlier lie put there may be anything.
    items = meta[key] if isinstance(meta[key], list) and meta[key] and draw.flag() else []
    at = draw.below(len(items) or 1)
    if items and isinstance(items[at], str):
        items[at] = draw.changed(items[at].encode()).decode("latin-1")
    elif items and isinstance(items[at], list) and items[at]:
        items[at][draw.below(len(items[at]))] = draw.number()
    elif draw.below(8) == 7:
        del meta[key]
    else:
        meta[key] = draw.number() if draw.flag() else draw.value()
