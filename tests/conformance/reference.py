"""A second reader of the archive format, made from its specification and sharing no code with edcache.

    walk(path)        any archive, by the chain of headers
    read_zip(path)    a sealed archive, by its zip directory and root.json

Slow and strict: everything that the specification says is asserted, a torn tail excepted.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import zstandard

HEAD, CHUNK, NOTE, INDEX, COLUMN, ROOT = range(6)
NAMES = {HEAD: "edcache.json", INDEX: "index.rows", ROOT: "root.json"}
PRIVATE = "<HH16sQQQQQQQQII"
FIELDS = "version kind uuid number offset next link durable first end table_nbytes table_crc crc"
PRESENT, COMPRESSED, BLOCK = 1, 2, 1 << 16


class Archive(NamedTuple):
    """length: of the dataset. records, schemas: by sample index. labels: values by name and index.

    failed: [final, exception, text, traceback] by the index of a sample that has no record.
    """

    length: int
    records: dict[int, bytes]
    schemas: dict[int, str]
    labels: dict[str, dict[int, Any]]
    failed: dict[int, list[Any]]


class Entry(NamedTuple):
    """One header of the chain and the payload behind it; `nbytes` among the fields is of the header."""

    fields: dict[str, Any]
    payload: bytes
    packed: bytes


def entries(path: str | Path) -> list[Entry]:
    """The head and every entry of the chain, up to the end of the last whole group."""
    data = Path(path).read_bytes()
    found, group = [_entry(data, None)], []
    assert found[0] is not None, "no head"
    while (entry := _entry(data, (found + group)[-1])) is not None:
        kind = entry.fields["kind"]
        if kind == HEAD or (group and kind in (CHUNK, NOTE)):
            break
        group.append(entry)
        if kind in (CHUNK, NOTE, ROOT):
            found, group = found + group, []
    return found  # type: ignore[return-value]


def _entry(data: bytes, before: Entry | None) -> Entry | None:
    """The entry behind another one; None if none fits there."""
    offset = number = link = 0
    if before is not None:
        offset, number = before.fields["next"], before.fields["number"] + 1
        link = int.from_bytes(hashlib.blake2b(before.packed, digest_size=8).digest(), "little")
    local = data[offset : offset + 30]
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        return None
    need, flags, method, time, date, crc, small, again, name, extra = struct.unpack("<HHHHHIIIHH", local[4:])
    signed = 30 + name + 20 + 96
    packed = data[offset : offset + signed]
    total = 30 + name + extra
    if len(data) < offset + total or extra < 116:
        return None
    kind_of_extra, size, nbytes, twice = struct.unpack_from("<HHQQ", packed, 30 + name)
    private, private_nbytes = struct.unpack_from("<HH", packed, 50 + name)
    f = dict(zip(FIELDS.split(), struct.unpack_from(PRIVATE, packed, 54 + name), strict=True))
    is_linked = (f["offset"], f["number"], f["link"]) == (offset, number, link)
    if zlib.crc32(packed[:-4]) != f["crc"] or not is_linked or offset + total + nbytes > len(data):
        return None
    if before is not None and before.fields["uuid"] != f["uuid"]:
        return None
    assert (need, flags, method, time, date, small, again) == (45, 0, 0, 0, 0x21, 2**32 - 1, 2**32 - 1)
    assert (kind_of_extra, size, twice) == (1, 16, nbytes)
    assert (private, private_nbytes, f["version"]) == (0x6465, total - 54 - name, 3)
    text = packed[30 : 30 + name].decode("ascii")
    folder = {CHUNK: f"chunks/{number:08d}", NOTE: f"notes/{number:08d}"}.get(f["kind"])
    assert text == NAMES.get(f["kind"], folder or text)
    assert total == -(-max(192, signed) // 64) * 64
    assert not any(data[offset + signed : offset + total])
    payload = data[offset + total : offset + total + nbytes]
    assert zlib.crc32(payload) == crc, f"payload of {text}"
    assert zlib.crc32(payload[: f["table_nbytes"]]) == f["table_crc"]
    end = offset + total + nbytes
    assert f["next"] % 4096 == 0
    assert f["next"] >= end if f["kind"] == ROOT else f["next"] == -(-end // 4096) * 4096
    return Entry({**f, "nbytes": total, "name": text}, payload, packed)


def walk(path: str | Path) -> Archive:
    """Read any archive by its chain alone; of two records of one index the later wins."""
    data = Path(path).read_bytes()
    head, *rest = entries(path)
    said = json.loads(head.payload)
    length, dropped = said["length"] or 0, []
    names = [name for name, _ in said["labels"]]
    archive = Archive(0, {}, {}, {name: {} for name in names}, {})
    for entry in rest:
        if entry.fields["kind"] == NOTE:
            note = json.loads(entry.payload)
            length = note.get("length") or length
            archive.failed.update({failure[0]: failure[1:] for failure in note.get("failed", [])})
        elif entry.fields["kind"] == CHUNK:
            _take_chunk(archive, entry, data, [name for name in names if name not in dropped])
        elif entry.fields["kind"] == ROOT:
            root = json.loads(entry.payload)
            listed = _root(root, data)
            assert listed.records == archive.records
            assert listed.schemas == archive.schemas
            assert root["chunks"] == sum(one.fields["kind"] == CHUNK for one in rest[: rest.index(entry)])
            assert root["dropped"] == [name for name in root["dropped"] if name in names]
            for name in set(names) - set(root["dropped"]):
                is_added, told = root["labels"][name][-1], archive.labels.get(name, {})
                assert is_added or all(
                    _alike(listed.labels[name][k], told.get(k)) for k in range(listed.length)
                )
            dropped, length = root["dropped"], listed.length
            archive.failed.clear()
            archive.failed.update(listed.failed)
            archive.labels.clear()
            archive.labels.update(listed.labels)
    length = max([length, *(index + 1 for index in archive.records)])
    failed = {index: why for index, why in archive.failed.items() if index not in archive.records}
    return archive._replace(length=length, failed={k: why for k, why in failed.items() if k < length})


def _alike(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) or one == other


def _take_chunk(archive: Archive, entry: Entry, data: bytes, names: list[str]) -> None:
    payload, table_nbytes = entry.payload, entry.fields["table_nbytes"]
    count, text_nbytes, stream_nbytes = struct.unpack_from("<QQQ", payload)
    samples = list(struct.unpack_from(f"<{count}q", payload, 24))
    at = 24 + 32 * count
    schemas, stream = json.loads(payload[at : at + text_nbytes]), payload[at + text_nbytes : table_nbytes]
    assert len(stream) == stream_nbytes
    assert (min(samples), max(samples) + 1) == (entry.fields["first"], entry.fields["end"])
    rows = list(struct.iter_unpack("<QQIHH", payload[24 + 8 * count : at]))
    first = entry.fields["offset"] + entry.fields["nbytes"] + -(-table_nbytes // 64) * 64
    assert all(row[0] >= first and row[4] & PRESENT for row in rows)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    _take_rows(archive, samples, rows, schemas, data)
    table = pa.ipc.open_stream(stream).read_all() if stream else pa.table({})
    for name in names:
        archive.labels.setdefault(name, {}).update(zip(samples, table[name].to_pylist(), strict=True))


def _take_rows(archive: Archive, samples: Any, rows: list[Any], schemas: list[str], data: bytes) -> None:
    """Take records in; each must have the sum that its row says."""
    for sample, (offset, nbytes, crc, schema, flags) in zip(samples, rows, strict=True):
        if not flags & PRESENT:
            assert (offset, nbytes, crc, schema, flags) == (0, 0, 0, 0, 0)
            continue
        record = data[offset : offset + nbytes]
        assert offset % (64 if nbytes >= 1024 else 8) == 0
        assert len(record) == nbytes
        found = zlib.crc32(record)
        if nbytes > BLOCK:
            crcs = [zlib.crc32(record[at : at + BLOCK]) for at in range(0, nbytes, BLOCK)]
            behind = struct.pack(f"<{len(crcs)}I", *crcs)
            assert data[offset + nbytes : offset + nbytes + len(behind)] == behind
            found = zlib.crc32(behind)
        key = (sample * 0x9E3779B97F4A7C15 % 2**64 >> 32) ^ (schema | flags << 16)
        assert found ^ key == crc, f"sum of sample {sample}"
        if flags & COMPRESSED:
            record = zstandard.ZstdDecompressor().decompress(record)
        archive.records[sample], archive.schemas[sample] = record, schemas[schema]


def _root(root: dict[str, Any], data: bytes) -> Archive:
    """The archive that a root describes, by the places that it names."""

    def at(place: list[int]) -> bytes:
        offset, nbytes, crc = place
        part = data[offset : offset + nbytes]
        assert zlib.crc32(part) == crc
        return part

    fields = "head length present chunks schemas index labels dropped failures uniform fingerprint"
    assert list(root) == fields.split()
    length = root["length"]
    failed = {failure[0]: failure[1:] for failure in root["failures"]}
    archive = Archive(length, {}, {}, {}, failed)
    rows = list(struct.iter_unpack("<QQIHH", at(root["index"])))
    assert len(rows) == length
    _take_rows(archive, range(length), rows, root["schemas"], data)
    assert len(archive.records) == root["present"]
    assert not failed.keys() & archive.records.keys()
    if root["uniform"] is not None:
        sizes = [row[1] for row in rows]
        assert {(row[3], row[4]) for row in rows} == {(root["uniform"][0], PRESENT)}
        assert root["uniform"][1:] == [min(sizes), max(sizes)]
    for name, (*place, _, is_added) in root["labels"].items():
        table = pa.ipc.open_file(at(place)).read_all()
        assert table.column_names == [name]
        assert type(is_added) is bool
        archive.labels[name] = dict(enumerate(table[name].to_pylist()))
        assert len(archive.labels[name]) == length
    return archive


def read_zip(path: str | Path) -> Archive:
    """Read a sealed archive by its zip directory, root.json and what that names."""
    data = Path(path).read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment[:20] == b"edcache 3 root.json "
        offset, nbytes, crc = (int(number, 16) for number in archive.comment[20:].split(b" "))
        payload = data[offset : offset + nbytes]
        assert zlib.crc32(payload) == crc
        names = archive.namelist()
        assert (names[0], names[-1]) == ("edcache.json", "root.json")
        root = json.loads(archive.read("root.json"))
        assert archive.read("root.json") == payload
        assert root["head"] == json.loads(archive.read("edcache.json"))
        columns = {f"labels/{quote(name, safe='')}.arrow" for name in root["labels"]}
        assert {name for name in names if name.startswith("labels/")} == columns
        assert len(names) == len(set(names))
        found = _root(root, data)
        for name in root["labels"]:
            table = pa.ipc.open_file(archive.read(f"labels/{quote(name, safe='')}.arrow")).read_all()
            assert all(_alike(v, found.labels[name][k]) for k, v in enumerate(table[name].to_pylist()))
    return found
