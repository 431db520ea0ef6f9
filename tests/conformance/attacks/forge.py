"""An attacker's workshop: a sound archive taken apart, changed, and packed again.

Made from the specification alone, as ../reference.py is. Every checksum, link, size and offset is
computed anew, so that of a forged file only the lie itself is left.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import reference
from reference import AMENDMENT, CHUNK, HEAD, INDEX, LABELS, NAMES, REVISION

PAGE = 4096
BLOCK = 1 << 14
MAX32 = 0xFFFFFFFF
Change = Callable[[dict[str, Any]], None]


def align(position: int, multiple: int) -> int:
    return -(-position // multiple) * multiple


def link_of(packed: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


def arrow_file(table: pa.Table, batch_rows: int, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, batch_rows)
    return sink.getvalue()


def label_parts(data: bytes, count: int) -> list[dict[str, Any]]:
    """What the table of labels.arrow says of each of `count` columns of an Arrow file, batch by batch."""
    memory = pa.py_buffer(data)
    try:
        file = pa.ipc.open_file(memory)
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        arrays = [array for batch in batches for array in batch.columns]
    except pa.ArrowInvalid:  # of a type that Arrow itself refuses nothing is said
        arrays = [pa.nulls(0)] * count
    parts = []
    for array in arrays:
        sizes, first = [0] * 5, 0
        for k, buffer in enumerate(array.buffers()[:5]):
            place = 0 if buffer is None else buffer.address - memory.address
            if buffer is not None and buffer.size and 0 < place < len(data):
                sizes[k], first = buffer.size, first or place
        inner = array.values if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) else ()
        nulls = inner.null_count if len(inner) else 0
        is_bounded, least, most = reference.bounds(array)
        counts = {"items": len(inner), "nulls": array.null_count, "item_nulls": nulls}
        limits = {"is_bounded": is_bounded, "least": least, "most": most}
        parts.append({"at": first, "sizes": sizes, "crc32": None} | counts | limits)
    return parts


def with_label_table(data: bytes, parts: list[dict[str, Any]], rows: dict[str, int]) -> tuple[bytes, int]:
    """labels.arrow of an Arrow file: the table goes before the footer; and its bytes with all behind it."""
    packed = b""
    for part in parts:
        end = part["at"] + sum(-(-size // 8) * 8 for size in part["sizes"])
        crc = zlib.crc32(data[part["at"] : end]) if part["crc32"] is None else part["crc32"]
        counts = (part["items"], part["nulls"], part["item_nulls"], crc)
        packed += struct.pack("<9QIIQQ", part["at"], *part["sizes"], *counts, *list(part.values())[-3:])
    packed += struct.pack("<QQ", rows["rows"], rows["batch_rows"])
    start = len(data) - 10 - struct.unpack_from("<i", data, len(data) - 10)[0]
    return data[:start] + packed + data[start:], len(packed) + len(data) - start


def arrow_stream(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        # Of a table without columns, write_table writes no batch.
        writer.write_table(table) if table.num_columns else writer.write_batch(
            pa.record_batch([], table.schema)
        )
    return sink.getvalue()


def dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass
class Row:
    """One record of a chunk."""

    index: int
    stored: bytes
    schema: int = 0
    raw_nbytes: int | None = None


@dataclass
class Chunk:
    """What a chunk says; `offsets`, `columns`, `meta`, `table` and `behind` change it before it is packed."""

    rows: list[Row]
    schemas: list[str]
    labels: pa.Table
    types: dict[str, Any]
    offsets: list[int] | None = None
    columns: Callable[[dict[str, pa.Array]], dict[str, pa.Array]] = lambda columns: columns
    meta: Change = lambda meta: None
    options: dict[str, Any] = field(default_factory=dict)
    table: Callable[[bytes], bytes] = lambda table: table
    padding: bytes = b"\0"

    def places(self) -> tuple[list[int], bytes]:
        """Offsets of the records from the first, and the bytes from there to the end of the last."""
        data, offsets = bytearray(), []
        for row in self.rows:
            data += bytes(align(len(data), 64 if len(row.stored) >= 1024 else 8) - len(data))
            offsets.append(len(data))
            data += row.stored
        return self.offsets or offsets, bytes(data)

    def pack(self, header_nbytes: int) -> tuple[bytes, int]:
        """The payload behind a header of so many bytes, and the bytes of its table."""
        offsets, data = self.places()
        columns = {
            "index": pa.array([row.index for row in self.rows], pa.int64()),
            "offset": pa.array(offsets, pa.uint64()),
            "nbytes": pa.array([len(row.stored) for row in self.rows], pa.uint64()),
            "crc32": pa.array([zlib.crc32(row.stored) for row in self.rows], pa.uint32()),
            "schema": pa.array([row.schema for row in self.rows], pa.uint16()),
        }
        if self.rows and self.rows[0].raw_nbytes is not None:
            columns["raw_nbytes"] = pa.array([row.raw_nbytes for row in self.rows], pa.uint64())
        columns |= {f"label/{name}": self.labels[name].combine_chunks() for name in self.labels.column_names}
        meta = {"schemas": self.schemas, "records_nbytes": len(data), "labels": self.types}
        self.meta(meta)
        table = pa.table(self.columns(columns)).replace_schema_metadata({"edcache": dumps(meta)})
        crcs = [zlib.crc32(data[i : i + BLOCK]) for i in range(0, len(data), BLOCK)]
        packed = self.table(arrow_stream(table, **self.options)) + struct.pack(f"<{len(crcs)}I", *crcs)
        payload = packed.ljust(align(len(packed), 64), b"\0") + data
        whole = align(header_nbytes + len(payload), PAGE) - header_nbytes
        return payload.ljust(whole, self.padding), len(packed)


@dataclass
class Entry:
    """One entry between head and seal.

    header: changes the header's fields (of reference.FIELDS, and name, flags, method, need, date, size,
    crc_of_payload, extra) before its own crc32 is made; `next` moves what follows.
    central: the same for its record in the zip directory (also offset, comment, mode, made_by); None for
    no record.
    """

    kind: int
    content: Chunk | bytes
    header: Change = lambda fields: None
    central: Change | None = lambda fields: None
    padding: bytes = b"\0"


class Forge:
    """An archive in parts; `build` packs it.

    Attributes:
        head: its JSON. entries: what lies between head and seal. index: changes the parts of index.pages
        (columns, meta, chunks, bits) before its pages are made. pages: changes these, dicts of `Page`.
        index_table, index_bytes, labels_bytes: change or replace the packed ones. label_parts: changes
        what the table of labels.arrow says. end: changes the fields of the end records. seal: whether there
        is one. behind: revisions that leave it valid.
    """

    def __init__(self, path: Path) -> None:
        found = reference.entries(path)
        self.uuid = found[0].fields["uuid"]
        self.head: Any = json.loads(found[0].payload)
        self.head_payload: bytes | None = None
        self.head_header: Change = lambda fields: None
        self.head_central: Change = lambda fields: None
        self.entries = [_entry(e) for e in found[1:] if e.fields["kind"] not in (INDEX, LABELS)]
        self.is_sealed = any(e.fields["kind"] == INDEX for e in found)
        self.index: Change = lambda parts: None
        self.pages: Callable[[list[dict[str, Any]]], None] = lambda pages: None
        self.index_table: Callable[[bytes], bytes] = lambda table: table
        self.index_bytes: Callable[[bytes], bytes] = lambda data: data
        self.labels: Callable[[pa.Table], pa.Table] = lambda table: table
        self.batch_rows = 1 << 18
        self.labels_options: dict[str, Any] = {}
        self.labels_bytes: Callable[[bytes], bytes] = lambda data: data
        self.label_parts: Callable[[list[dict[str, Any]], dict[str, int]], object] = lambda parts, rows: None
        self.index_header: Change = lambda fields: None
        self.labels_header: Change = lambda fields: None
        self.index_central: Change = lambda fields: None
        self.labels_central: Change = lambda fields: None
        self.behind: list[Entry] = []
        self.between: bytes = b""
        self.directory: Callable[[list[bytes]], list[bytes]] = lambda records: records
        self.end: Change = lambda fields: None
        self.length: int | None = None

    def copy(self) -> Forge:
        return copy.deepcopy(self)

    @property
    def chunks(self) -> list[Chunk]:
        return [e.content for e in self.entries if isinstance(e.content, Chunk)]

    def unsealed(self) -> Forge:
        self.is_sealed = False
        return self

    def amend(self, said: Any, place: int | None = None) -> Entry:
        """Add an amendment, at the end of the chain unless told where."""
        data = said if isinstance(said, bytes) else dumps(said)
        entry = Entry(AMENDMENT, data)
        self.entries.insert(len(self.entries) if place is None else place, entry)
        return entry

    def revise(
        self,
        table: pa.Table,
        dropped: Any = (),
        *,
        samples: int | None = None,
        end_index: int | None = None,
        meta: bytes | None = None,
        pack: Callable[[pa.Table], bytes] | None = None,
        **options: Any,
    ) -> Entry:
        """Add a revision of labels at the end of the chain; `pack` makes its bytes, or `options` of Arrow."""
        said = dumps({"dropped": list(dropped)}) if meta is None else meta
        table = table.replace_schema_metadata({"edcache": said})
        data = arrow_stream(table, **options) if pack is None else pack(table)
        rows = table.num_rows if samples is None else samples
        last = (
            max(table["index"].to_pylist()) + 1
            if "index" in table.column_names and end_index is None
            else rows
        )
        end = last if end_index is None else end_index
        entry = Entry(REVISION, data, lambda fields: fields.update(samples=rows, end_index=end))
        self.entries.append(entry)
        return entry

    def revise_behind(self, table: pa.Table, dropped: Any = (), **more: Any) -> Entry:
        """Add a revision behind the seal, as `revise`."""
        self.revise(table, dropped, **more)
        self.behind.append(self.entries.pop())
        return self.behind[-1]

    def build(self) -> bytes:
        self._data = bytearray()
        self._central: list[bytes] = []
        self._seq, self._link, self._next = 0, 0, 0
        self._index_parts = _IndexParts()
        payload = self.head_payload
        if payload is None:
            text = json.dumps(self.head, indent=1).encode()
            payload = text.ljust(align(192 + len(text) + 1, PAGE) - 193) + b"\n"
        self._add(HEAD, payload, len(payload), self.head_header, self.head_central, uuid=self.uuid)
        self._seq = 0
        for entry in self.entries:
            self._add_entry(entry)
        if self.is_sealed:
            self._add_seal()
        for entry in self.behind:
            self._add_behind(entry)
        return bytes(self._data)

    def _add_behind(self, entry: Entry) -> None:
        assert isinstance(entry.content, bytes)
        data = entry.content
        self._next = align(len(self._data), PAGE)

        def change(fields: dict[str, Any]) -> None:
            directory_nbytes = sum(map(len, self._central)) + 46 + len(fields["name"]) + 98
            fields["next"] = align(fields["next"] + directory_nbytes, PAGE)
            entry.header(fields)

        self._add(REVISION, data, len(data), change, entry.central)
        if entry.central is not None:
            self._central.insert(max(0, len(self._central) - 3), self._central.pop())
        self._add_directory()

    def _add_entry(self, entry: Entry) -> None:
        if isinstance(entry.content, Chunk):
            chunk = entry.content
            payload, table_nbytes = chunk.pack(192)
            offset = self._next
            indices = [row.index for row in chunk.rows]
            rows = {"samples": len(chunk.rows), "end_index": max(indices, default=-1) + 1}
            self._add(CHUNK, payload, table_nbytes, entry.header, entry.central, **rows)
            self._index_parts.add(chunk, offset + 192, table_nbytes)
        else:
            nbytes = len(entry.content)
            whole = align(192 + nbytes, PAGE) - 192
            padded = entry.content.ljust(whole, entry.padding)
            self._add(entry.kind, padded, nbytes, entry.header, entry.central)

    def _add(
        self,
        kind: int,
        payload: bytes,
        table_nbytes: int,
        change: Change,
        central: Change | None,
        **more: Any,
    ) -> dict[str, Any]:
        self._data += bytes(max(0, self._next - len(self._data)))
        offset = self._next
        name = NAMES[kind].format(self._seq).encode()
        nbytes = align(max(offset + 30 + len(name) + 100, offset + 192), 64) - offset
        fields: dict[str, Any] = {
            "version": 2,
            "kind": kind,
            "nbytes": nbytes,
            "uuid": self.uuid,
            "seq": self._seq,
            "offset": offset,
            "next": offset + nbytes + len(payload),
            "link": self._link,
            "samples": 0,
            "end_index": 0,
            "table_nbytes": table_nbytes,
            "durable": 0,
            "table_crc": zlib.crc32(_table_of(kind, payload, table_nbytes)),
            "name": name,
            "flags": 0,
            "method": 0,
            "need": 20,
            "time": 0,
            "date": 0x21,
            "size": len(payload),
            "again": None,
            "extra": b"",
            "crc_of_payload": zlib.crc32(payload),
            "padding": b"\0",
            "payload": payload,
            **more,
        }
        change(fields)
        packed = pack_header(fields)
        payload = fields["payload"]
        end = offset + len(packed) + len(payload)
        self._data[offset:end] = packed + payload
        record = {
            "made_by": 0x32D,
            "need": 20,
            "flags": 0,
            "method": 0,
            "time": 0,
            "date": 0x21,
            "crc": fields["crc_of_payload"],
            "size": len(payload),
            "again": None,
            "name": name,
            "offset": offset,
            "comment": b"",
            "disk": 0,
            "internal": 0,
            "mode": 0o100644 << 16,
            "long": kind in (INDEX, LABELS),
            "extra": b"",
        }
        if kind == INDEX:
            at = 30 + len(fields["name"]) + 4
            record["extra"] = struct.pack("<HH", 0x6465, 96) + packed[at : at + 96]
        if central is not None:
            central(record)
            self._central.append(pack_central(record))
        self._seq += 1
        self._link = link_of(packed)
        self._next = fields["next"]
        return fields

    def _add_seal(self) -> None:
        parts = self._index_parts
        said = self.head["length"] if isinstance(self.head, dict) else None
        for entry in self.entries:
            if entry.kind == AMENDMENT and isinstance(entry.content, bytes) and entry.content[:1] == b"{":
                said = json.loads(entry.content).get("length", said)
        columns, labels, length = parts.newest(said if type(said) is int else None)
        meta = {
            "length": length,
            "compressed": "raw_nbytes" in columns,
            "chunks": None,
            "chunks_crc": None,
            "schemas": list(parts.schemas),
        }
        made = {"columns": columns, "meta": meta, "chunks": parts.chunks, "bits": 12}
        self.index(made)
        body, table = pack_index(made, self.pages)
        table = self.index_table(table)
        index = self.index_bytes(body + table)
        rows = {"samples": len(labels), "end_index": meta["length"]}
        fields = self._add(
            *(INDEX, index, len(table), self.index_header, self.index_central),
            **rows,
            crc_of_payload=zlib.crc32(index),
        )
        self._link_labels(fields, *self.packed_labels(labels), rows)

    def packed_labels(self, labels: pa.Table) -> tuple[bytes, int]:
        """labels.arrow, and the bytes of its table."""
        table = self.labels(labels).combine_chunks()
        data = arrow_file(table, self.batch_rows, **self.labels_options)
        parts = label_parts(data, table.num_columns)
        rows = {"rows": table.num_rows, "batch_rows": self.batch_rows}
        self.label_parts(parts, rows)
        return with_label_table(self.labels_bytes(data), parts, rows)

    def _link_labels(self, index: dict[str, Any], data: bytes, table: int, rows: dict[str, Any]) -> None:
        self._next = len(self._data)
        count = len(self._central) + 1
        directory_nbytes = sum(map(len, self._central)) + len(pack_central(_LONG))
        directory_nbytes += sum(map(len, self.directory([b""] * count))) + len(self.between)
        name = NAMES[LABELS].encode()
        offset = self._next
        nbytes = align(max(offset + 30 + len(name) + 100, offset + 192), 64) - offset
        end = offset + nbytes + len(data) + directory_nbytes + 98

        def change(fields: dict[str, Any]) -> None:
            fields["next"] = align(end, PAGE)
            self.labels_header(fields)

        self._add(LABELS, data, table, change, self.labels_central, **rows)
        self._add_directory()

    def _add_directory(self) -> None:
        start = len(self._data)
        central = b"".join(self.directory(self._central)) + self.between
        fields = {
            "count": len(self._central),
            "nbytes": len(central),
            "offset": start,
            "size": 44,
            "end64": start + len(central),
            "disks": 1,
            "disk": 0,
            "made_by": 0x32D,
            "need": 45,
            "short": (0xFFFF, 0xFFFF, MAX32, MAX32),
            "comment": b"",
            "more": b"",
            "start_disk": 0,
        }
        self.end(fields)
        self._data += central + pack_end(fields)


_LONG = {
    "made_by": 0,
    "need": 0,
    "flags": 0,
    "method": 0,
    "time": 0,
    "date": 0,
    "crc": 0,
    "size": 0,
    "again": None,
    "name": b"labels.arrow",
    "offset": 0,
    "comment": b"",
    "disk": 0,
    "internal": 0,
    "mode": 0,
    "long": True,
    "extra": b"",
}


class _IndexParts:
    """What index.pages and labels.arrow say of the chunks added so far."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.schemas: dict[str, int] = {}
        self.chunks: list[list[int]] = []
        self.labels: list[pa.Table] = []

    def add(self, chunk: Chunk, payload_offset: int, table_nbytes: int) -> None:
        offsets, data = chunk.places()
        start = payload_offset + align(table_nbytes, 64)
        crcs = payload_offset + table_nbytes - 4 * -(-len(data) // BLOCK)
        self.chunks.append([crcs, start, len(data)])
        numbers = [self.schemas.setdefault(text, len(self.schemas)) for text in chunk.schemas]
        self.labels.append(chunk.labels)
        for offset, row in zip(offsets, chunk.rows, strict=True):
            number = numbers[row.schema] if row.schema < len(numbers) else row.schema
            self.rows.append(
                {
                    "index": row.index,
                    "offset": start + offset,
                    "nbytes": len(row.stored),
                    "crc32": zlib.crc32(row.stored),
                    "schema": number,
                    "raw_nbytes": row.raw_nbytes,
                }
            )

    def newest(self, length: int | None) -> tuple[dict[str, Any], pa.Table, int]:
        last = {row["index"]: place for place, row in enumerate(self.rows)}
        order = [last[index] for index in sorted(last)]
        rows = [self.rows[place] for place in order]
        length = max([length or 0, *(row["index"] + 1 for row in rows)])
        kinds = {
            "index": "i8",
            "offset": "u8",
            "nbytes": "u8",
            "crc32": "u4",
            "schema": "u2",
            "raw_nbytes": "u8",
        }
        wanted = [
            name
            for name in kinds
            if not (name == "index" and len(rows) == length)
            and not (name == "raw_nbytes" and (not rows or rows[0]["raw_nbytes"] is None))
        ]
        columns = {name: np.array([row[name] for row in rows], kinds[name]) for name in wanted}
        labels = pa.concat_tables(self.labels).take(order) if self.labels else pa.table({})
        return columns, labels.combine_chunks(), length


LINES = ("index", "offset", "nbytes", "raw_nbytes", "schema")


def _table_of(kind: int, payload: bytes, nbytes: int) -> bytes:
    return payload[max(0, len(payload) - nbytes) :] if kind in (INDEX, LABELS) else payload[:nbytes]


def pack_index(made: dict[str, Any], change: Callable[[list[dict[str, Any]]], None]) -> tuple[bytes, bytes]:
    """Pages and blocks of index.pages, and the table behind them."""
    columns = {name: [int(v) for v in column] for name, column in made["columns"].items()}
    rows = len(columns["offset"])
    columns.setdefault("index", list(range(rows)))
    columns.setdefault("raw_nbytes", [0] * rows)
    step = 1 << made["bits"] if made["bits"] < 60 else 1 << 60
    pages = [
        _page({name: column[start : start + step] for name, column in columns.items()})
        for start in range(0, rows, step)
    ]
    change(pages)
    body, table = b"", b""
    for page in pages:
        payload = page["payload"]
        at = len(body) if page["at"] is None else page["at"]
        crc = zlib.crc32(payload) if page["crc"] is None else page["crc"]
        numbers = [*page["base"], page["stride"], page["total"], at]
        table += b"".join((n % (1 << 64)).to_bytes(8, "little") for n in numbers)
        table += struct.pack("<II", crc, page["widths"])
        body += payload + page["behind"]
    chunks = made["chunks"]
    if not isinstance(chunks, bytes):
        chunks = b"".join((n % (1 << 64)).to_bytes(8, "little") for run in chunks for n in run)
    text = made["meta"]
    if not isinstance(text, bytes):
        text = dict(text)
        text["chunks"] = len(chunks) // 24 if text["chunks"] is None else text["chunks"]
        text["chunks_crc"] = zlib.crc32(chunks) if text["chunks_crc"] is None else text["chunks_crc"]
        text = dumps(text)
    text = text.ljust(align(len(text), 8))
    return body + chunks, struct.pack("<II", made["bits"], len(text)) + text + table


def _page(columns: dict[str, list[int]]) -> dict[str, Any]:
    """One page: base and widths of LINES, stride, total, payload; `at` and `crc` of None are made."""
    offset = columns["offset"]
    steps = sorted(after - before for before, after in pairwise(offset))
    usual = max(0, steps[len(steps) // 2]) if steps else 0
    tries = [_line("offset", offset, stride) for stride in (usual, 0)]
    stride = (usual, 0)[0 if tries[0][1] <= tries[1][1] else 1]
    payload, bases, widths = padded(struct.pack(f"<{len(offset)}I", *columns["crc32"])), [], 0
    for k, name in enumerate(LINES):
        base, code, differences = _line(name, columns[name], stride if name == "offset" else 0)
        bases.append(base)
        widths |= code << 3 * k
        if code:
            size = (0, 1, 2, 4, 8)[code]
            payload += padded(b"".join(d.to_bytes(size, "little") for d in differences))
    return {
        "base": bases,
        "stride": stride,
        "total": sum(columns["nbytes"]),
        "at": None,
        "crc": None,
        "widths": widths,
        "payload": payload,
        "behind": b"",
    }


def _line(name: str, values: list[int], stride: int) -> tuple[int, int, list[int]]:
    """Base, code of the width, and differences of a column."""
    step = 1 if name == "index" else stride
    line = [value - step * k for k, value in enumerate(values)]
    base = min(line)
    unit = 8 if name == "offset" else 1
    differences = [(value - base) // unit for value in line]
    limits = (1, 1 << 8, 1 << 16, 1 << 32, 1 << 64)
    code = next(code for code, limit in enumerate(limits) if max(differences) < limit)
    return base, max(code, 3) if name == "offset" and code else code, differences


def padded(data: bytes) -> bytes:
    return data.ljust(align(len(data), 8), b"\0")


def pack_header(fields: dict[str, Any]) -> bytes:
    name, size = fields["name"], fields["size"]
    again = size if fields["again"] is None else fields["again"]
    extra_nbytes = fields["nbytes"] - 30 - len(name)
    local = struct.pack(
        "<4sHHHHHIIIHH",
        b"PK\3\4",
        *(fields["need"], fields["flags"], fields["method"], fields["time"], fields["date"]),
        *(fields["crc_of_payload"], size & MAX32, again & MAX32, len(name), extra_nbytes),
    )
    private = struct.pack(reference.PRIVATE, *(fields[key] for key in reference.FIELDS.split()[:-1]), 0)
    room = extra_nbytes - 4 - len(fields["extra"])
    start = local + name + fields["extra"] + struct.pack("<HH", 0x6465, room)
    packed = (start + private).ljust(fields["nbytes"], fields["padding"])
    crc = struct.pack("<I", zlib.crc32(packed))
    place = len(start) + len(private)
    return packed[: place - 4] + crc + packed[place:]


def pack_central(record: dict[str, Any]) -> bytes:
    size, again = record["size"], record["size"] if record["again"] is None else record["again"]
    offset, extra = record["offset"], record["extra"]
    if record["long"]:
        extra = struct.pack("<HHQQQ", 1, 24, size, again, offset) + extra
        size = again = offset = MAX32
    need = 45 if record["long"] and record["need"] == 20 else record["need"]
    return (
        struct.pack(
            "<4sHHHHHHIIIHHHHHII",
            b"PK\1\2",
            *(record["made_by"], need, record["flags"], record["method"], record["time"], record["date"]),
            *(record["crc"], size, again, len(record["name"]), len(extra), len(record["comment"])),
            *(record["disk"], record["internal"], record["mode"], offset),
        )
        + record["name"]
        + extra
        + record["comment"]
    )


def pack_end(f: dict[str, Any]) -> bytes:
    end64 = struct.pack(
        "<4sQHHIIQQQQ",
        b"PK\6\6",
        *(f["size"], f["made_by"], f["need"], f["disk"], f["start_disk"], f["count"], f["count"]),
        *(f["nbytes"], f["offset"]),
    )
    locator = struct.pack("<4sIQI", b"PK\6\7", f["disk"], f["end64"], f["disks"])
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", f["disk"], f["disk"], *f["short"], len(f["comment"]))
    return end64 + f["more"] + locator + end + f["comment"]


def _entry(found: reference.Entry) -> Entry:
    kind, table_nbytes = found.fields["kind"], found.fields["table_nbytes"]
    if kind != CHUNK:
        return Entry(kind, found.payload[:table_nbytes])
    table = pa.ipc.open_stream(found.payload[:table_nbytes]).read_all()
    said = json.loads(table.schema.metadata[b"edcache"])
    records = found.payload[align(table_nbytes, 64) :]
    rows = [
        Row(r["index"], records[r["offset"] : r["offset"] + r["nbytes"]], r["schema"], r.get("raw_nbytes"))
        for r in table.to_pylist()
    ]
    names = [name for name in table.column_names if name.startswith("label/")]
    labels = table.select(names).rename_columns([name[6:] for name in names]).replace_schema_metadata(None)
    return Entry(CHUNK, Chunk(rows, said["schemas"], labels, said["labels"]))
