"""Archives in memory: whole ones that the package wrote, taken apart, changed, and put together again with
checksums that fit, so that a fuzzer gets behind them.
"""

from __future__ import annotations

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
import torch
from fuzz_draw import Draw

from edcache import CachedDataset, CacheWriter, format
from edcache.format import CHUNK, COLUMN, INDEX, NOTE, PAGE, ROOT, ROW, Header
from edcache.format.entries import HEAD, Cursor
from edcache.format.records import block_crc32s, crc32, records_offset
from edcache.writer import Appender

UUID = bytes(range(16))
_FIELDS = (
    *("first", "end", "table_nbytes", "table_crc32", "durable", "number", "link", "next", "nbytes", "crc32"),
    "offset",
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
    """The table of a chunk taken apart.

    rows: of each record the numbers of its row; offsets count from the first record.
    keeps_sums: False lets the sum of each record fit its row.
    """

    samples: list[int]
    rows: list[list[int]]
    meta: Any
    stream: bytes
    records: bytearray
    keeps_sums: bool = False

    def packed(self, start: int) -> tuple[bytes, int]:
        """The payload of a chunk that starts at an offset, and the bytes of its table."""
        text = json.dumps(self.meta, separators=(",", ":")).encode()
        text = text.ljust(format.align(len(text), 8))
        nbytes = 24 + len(self.rows) * (8 + ROW.itemsize) + len(text) + len(self.stream)
        records = format.align(nbytes, 64)
        prefix = struct.pack("<QQQ", len(self.rows), len(text), len(self.stream))
        samples = b"".join(number(sample, 8) for sample in self.samples)
        salt = format.salt(UUID, start)
        rows = b"".join(
            row_bytes(sample, row, bytes(self.records), start + records, salt, self.keeps_sums)
            for sample, row in zip(self.samples, self.rows, strict=True)
        )
        table = b"".join([prefix, samples, rows, text, self.stream])
        return table.ljust(records, b"\0") + self.records, nbytes


def number(value: int, nbytes: int) -> bytes:
    """The last bytes of a number."""
    return (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little")


def row_bytes(sample: int, row: list[int], data: bytes, start: int, salt: int, keeps_sum: bool) -> bytes:
    """A row; its sum fits the bytes that it says, where these are in `data`, which starts at an offset.

    salt: of the payload with the row.
    """
    offset, nbytes, crc, schema, flags = row
    if not keeps_sum and 0 <= offset <= len(data):
        record = data[offset : offset + nbytes]
        key = (sample * 0x9E3779B97F4A7C15 % (1 << 64) >> 32) ^ schema % (1 << 16) ^ flags % (1 << 16) << 16
        crc = crc32(block_crc32s(record) or record) ^ key ^ salt
    widths = (start + offset, 8), (nbytes, 8), (crc, 4), (schema, 2), (flags, 2)
    return b"".join(number(*one) for one in widths)


@dataclass
class Part:
    """One entry. table: of a chunk. rows: of an index. root: the JSON of a root, whose places are made to fit
    but for those in `lied`."""

    kind: int
    name: str
    payload: bytes
    table: Table | None = None
    rows: list[list[int]] | None = None
    root: Any = None
    lied: set[str] = field(default_factory=set)
    lies: dict[str, int] = field(default_factory=dict)
    first: int = 0
    end: int = 0


@dataclass
class Archive:
    """head: its JSON. parts: the entries behind it. directory_lie: a byte from its end that is changed."""

    head: bytes
    parts: list[Part]
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


def _relabelled(w: CacheWriter, samples: Any) -> None:
    _plain(w, samples)
    cache = CachedDataset.from_cache(w.path)
    cache.add_labels("z", [f"z {i}" for i in range(len(samples))])
    cache.drop_labels("y")
    cache.close()


_BASES: list[tuple[Any, int, Any, dict[str, Any]]] = [
    (_number, 5, _plain, {"in_memory_keys": ["y", "s"], "chunk_size": 3}),
    (_fixed, 6, _plain, {"in_memory_keys": ["y"], "chunk_size": 4}),
    (_long, 4, _plain, {"compression": "zstd", "chunk_size": 3, "in_memory_keys": ["y"]}),
    (_number, 5, _grown, {"in_memory_keys": ["y", "s"]}),
    (_fixed, 4, _sparse, {"in_memory_keys": ["y"], "chunk_size": 2}),
    (_differing, 6, _plain, {}),
    (_number, 0, _plain, {"in_memory_keys": ["y"]}),
    (_number, 4, _relabelled, {"in_memory_keys": ["y", "s"]}),
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

    def pread(offset: int, nbytes: int, is_sound: object = None) -> bytes:
        return data[offset : offset + nbytes]

    head = format.parse_header(data)
    assert head is not None
    groups = format.walk(pread, len(data), UUID, Cursor.behind(head), "base")
    return Archive(
        data[head.payload_offset : head.next].rstrip(),
        [_part(header, data) for group in groups for header in group],
    )


def _part(header: Header, data: bytes) -> Part:
    payload = data[header.payload_offset : header.payload_end]
    part = Part(header.kind, header.name, payload, first=header.first, end=header.end)
    if header.kind == CHUNK:
        start = records_offset(header)
        count, text, _ = struct.unpack_from("<QQQ", payload)
        at = 24 + count * (8 + ROW.itemsize)
        samples = np.frombuffer(payload, "<i8", count, 24).tolist()
        rows = np.frombuffer(payload, ROW, count, 24 + 8 * count).tolist()
        part.table = Table(
            samples,
            [[row[0] - start, *row[1:]] for row in rows],
            json.loads(payload[at : at + text]),
            payload[at + text : header.table_nbytes],
            bytearray(data[start : header.payload_end]),
        )
    elif header.kind == INDEX:
        part.rows = [list(row) for row in np.frombuffer(payload, ROW).tolist()]
    elif header.kind == ROOT:
        part.root = json.loads(payload)
    return part


def drawn(number: int) -> Archive:
    """A base archive that may be changed."""
    found = _taken_apart(number)
    return Archive(found.head, [_copied(part) for part in found.parts])


def _copied(part: Part) -> Part:
    table = part.table
    if table is not None:
        rows, meta = [row.copy() for row in table.rows], json.loads(json.dumps(table.meta))
        table = replace(table, samples=table.samples.copy(), rows=rows, meta=meta, records=table.records[:])
    rows = None if part.rows is None else [row.copy() for row in part.rows]
    root = json.loads(json.dumps(part.root))
    return replace(part, table=table, rows=rows, root=root, lies=part.lies.copy(), lied=part.lied.copy())


# --- putting together ---


def assembled(archive: Archive) -> bytes:
    """The file, every checksum and link of which fits what stands there, lies included."""
    start = format.header_nbytes(format.HEAD_NAME)
    total = format.align(start + len(archive.head) + 1, PAGE)
    payload = archive.head.ljust(total - start - 1) + b"\n"
    head = Header(HEAD, format.HEAD_NAME, UUID, 0, 0, len(payload), format.crc32(payload), total, 0)
    out = bytearray(format.pack_header(head) + payload)
    cursor = Cursor(total, 1, format.link_after(out))
    listed, places = {format.HEAD_NAME: head}, dict[str, list[int]]()
    for part in archive.parts:
        out += bytes(cursor.offset - len(out))
        start = cursor.offset + format.header_nbytes(part.name)
        payload, table_nbytes = _payload(part, start, bytes(out), places)
        fields = {
            "number": cursor.number,
            "offset": cursor.offset,
            "nbytes": len(payload),
            "crc32": format.crc32(payload),
            "next": format.align(start + len(payload), PAGE),
            "link": cursor.link,
            "first": part.first,
            "end": part.end,
            "table_nbytes": table_nbytes,
            "table_crc32": format.crc32(payload[:table_nbytes]),
        }
        header = Header(part.kind, part.name, UUID, **(fields | part.lies))
        listed.pop(part.name, None)
        directory = b""
        if part.kind == ROOT:
            with suppress(TypeError, KeyError, AttributeError):  # a lie may be there
                columns = set(map(format.column_name, part.root["labels"]))
                listed = {k: one for k, one in listed.items() if one.kind != COLUMN or k in columns}
            truthful = [replace(head, name=name) for name in [*listed, part.name]]
            size = len(format.pack_directory(truthful, 0))
            following = format.align(start + len(payload) + size, PAGE)
            header = replace(header, **({"next": following} | part.lies))
            with suppress(struct.error):  # what is drawn may not be written
                directory = format.pack_directory([*listed.values(), header], start + len(payload))
        listed[part.name] = header
        packed = format.pack_header(header)
        if part.kind in (INDEX, COLUMN):
            places[part.name] = [start, len(payload), fields["crc32"]]
        out += packed + payload + directory
        end = fields["next"] if part.kind != ROOT else format.align(len(out), PAGE)
        cursor = Cursor(end, cursor.number + 1, format.link_after(packed))
    if archive.directory_lie >= 0:
        out[-1 - archive.directory_lie % 300] ^= 1
    return bytes(out)


def _payload(part: Part, start: int, before: bytes, places: dict[str, list[int]]) -> tuple[bytes, int]:
    """The bytes of an entry, and how many of them are the table of a chunk."""
    if part.table is not None:
        return part.table.packed(start)
    if part.rows is not None:
        salt, keeps = format.salt(UUID, start), "sums" in part.lied
        rows = (row_bytes(k, row, before, 0, salt, keeps) for k, row in enumerate(part.rows))
        return b"".join(rows), 0
    if part.root is None:
        return part.payload, 0
    said = part.root
    with suppress(TypeError, KeyError, AttributeError, ValueError):  # a lie may be there
        if "index" not in part.lied:
            said["index"] = places["index.rows"]
        for name, column in said["labels"].items() if "labels" not in part.lied else ():
            column[:3] = places[format.column_name(name)]
    return json.dumps(said, separators=(",", ":")).encode(), 0


# --- lies ---


def lie(archive: Archive, draw: Draw) -> None:
    """One change, drawn."""
    what, parts = draw.below(12), archive.parts
    part = draw.pick(parts) if parts else None
    if what == 0:
        archive.head = draw.changed(archive.head)
    elif what == 1 and len(parts) > 1:
        parts.insert(draw.below(len(parts)), parts.pop(draw.below(len(parts))))
    elif what == 2 and parts:
        parts.append(_copied(draw.pick(parts)))
    elif what == 3:
        parts.insert(draw.below(len(parts) + 1), _note(draw))
    elif what == 4:
        archive.directory_lie = draw.byte()
    elif part is None:
        return
    elif what == 5:
        name = draw.pick(_FIELDS)
        part.lies[name] = draw.number() % (1 << 32 if "crc32" in name else 1 << 64)
    elif what == 6 and part.table is not None:
        part.table.stream = draw.changed(part.table.stream)
    elif what == 7 and part.table is not None:
        part.table.records[:] = draw.changed(bytes(part.table.records))
    elif part.table is not None:
        _lie_in_table(part.table, draw)
    elif part.rows:
        at = draw.below(len(part.rows))
        part.rows[at][draw.below(5)] = draw.number()
        part.lied |= {"sums"} if draw.below(4) == 3 else set()
    elif part.root is not None:
        part.lied |= {_lie_in_meta(part.root, draw)}
    else:
        part.payload = draw.changed(part.payload)


def _note(draw: Draw) -> Part:
    said = {
        draw.pick(("length", "fingerprint", "failed", "other")): draw.value()
        for _ in range(1 + draw.below(2))
    }
    text = json.dumps(said).encode() if draw.flag() else draw.some()
    # Among the others are parts, keys, and kinds that a later release may know.
    return Part(NOTE if draw.below(4) else 1 + draw.below(9), "notes/00000009", text)


def _lie_in_table(table: Table, draw: Draw) -> None:
    table.keeps_sums = draw.below(4) == 3
    what = draw.below(4)
    if what == 0 and table.samples:
        table.samples[draw.below(len(table.samples))] = draw.signed()
    elif what == 1:
        said = {"schemas": table.meta}
        _lie_in_meta(said, draw)
        table.meta = said.get("schemas")
    elif table.rows:
        row = table.rows[draw.below(len(table.rows))]
        at = draw.below(5)
        row[at] = row[at] + draw.signed() if draw.flag() else draw.number()


def _lie_in_meta(meta: Any, draw: Draw) -> str:
    """Change something in an object of JSON; returns the key under which it stands."""
    if not meta:
        return ""
    key = draw.pick(sorted(meta))
    # What an earlier lie put there may be anything.
    items = meta[key] if isinstance(meta[key], list) and meta[key] and draw.flag() else []
    at = draw.below(len(items) or 1)
    if items and isinstance(items[at], str):
        items[at] = draw.changed(items[at].encode()).decode("latin-1")
    elif items:
        items[at] = draw.number() if draw.flag() else draw.value()
    elif draw.below(8) == 7:
        del meta[key]
    elif isinstance(meta[key], dict) and meta[key] and draw.flag():
        _lie_in_meta(meta[key], draw)
    else:
        meta[key] = draw.number() if draw.flag() else draw.value()
    return key
