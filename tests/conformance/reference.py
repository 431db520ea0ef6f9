"""A second reader of the archive format, made from its specification and sharing no code with edcache.

    walk(path)            any archive, by the chain of headers
    read_zip(path)        a sealed archive, by its zip directory and root.json
    parts(text, record)   the leaves of a record, by its schema

Slow and strict: it asserts all that the specification says. A torn tail is passed over.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import zstandard

HEAD, CHUNK, NOTE, INDEX, COLUMN, ROOT, KEYS, PART = *range(7), 9
NAMES = {HEAD: "edcache.json", INDEX: "index.rows", ROOT: "root.json", KEYS: "index.keys"}
LOCAL, PRIVATE, ROW = "<4sHHHHHIIIHH", "<HH16sQQQQQQQQII", "<QQIHH"
FIELDS = "version kind uuid number offset next link durable first end table_nbytes table_crc crc"
PRESENT, COMPRESSED, BLOCK, MAX32 = 1, 2, 1 << 16, 2**32 - 1
LABELS = {
    *("null", "bool", "halffloat", "float", "double", "string", "large_string", "binary", "large_binary"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("date32", "timestamp", "duration"),
}
SIZES = {"bool": 1, "complex": 16, "uuid": 16, "timedelta": 12}
VARIABLE = {
    *("str", "numpy.str", "path", "bytes", "bytearray", "numpy.bytes", "bigint", "enum"),
    *("ints", "floats", "bools", "strs", "imagefile"),
}
SIZES |= dict.fromkeys(("int", "float", "date", "datetime"), 8)


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
    link: int


def walk(path: str | Path) -> Archive:
    """Read any archive by its chain alone: of two records of one index the later wins."""
    data = Path(path).read_bytes()
    head, *rest = entries(path)
    said = json.loads(head.payload)
    _check_head(said, head.fields["uuid"])
    names, length, chunks = [name for name, _ in said["labels"]], said["length"] or 0, 0
    found, seen = Archive(0, {}, {}, {name: {} for name in names}, {}), set[bytes]()
    lost = _lost(rest)
    assert lost <= {entry.fields["number"] for entry in rest if entry.fields["kind"] in (CHUNK, PART)}
    for entry in rest:
        if entry.fields["number"] in lost:
            continue
        if entry.fields["kind"] == NOTE:
            note = json.loads(entry.payload)
            assert {*note} <= {"length", "fingerprint", "failed", "maker", "lost", "more"}
            assert type(note.get("more", {})) is dict
            length = note.get("length") or length
            if "maker" not in note:
                found.failed.update({index: why for index, *why in note.get("failed", [])})
        elif entry.fields["kind"] == CHUNK:
            chunks += 1
            _take_chunk(found, entry, data, names)
        elif entry.fields["kind"] == PART:
            chunks += 1
            part = Archive(0, {}, {}, {name: {} for name in names}, {})
            _take_chunk(part, entry, data, names)
            seen |= {*part.records.values()}
        elif entry.fields["kind"] == ROOT:
            root = json.loads(entry.payload)
            listed = _root(root, data)
            assert root["chunks"] == chunks
            if root["is_reordered"]:
                assert {*listed.records.values()} <= seen | {*found.records.values()}
            else:
                assert (listed.records, listed.schemas) == (found.records, found.schemas)
            seen |= {*found.records.values()}
            names = [name for name in names if name not in root["dropped"]]
            for name in [] if root["is_reordered"] else names:
                told, is_added = found.labels[name], root["labels"][name][-1]
                assert is_added or all(_alike(v, told.get(k)) for k, v in listed.labels[name].items())
            found, length = listed, listed.length
    length = max([length, *(index + 1 for index in found.records)])
    failed = {k: why for k, why in found.failed.items() if k < length and k not in found.records}
    return found._replace(length=length, failed=failed)


def _check_head(head: dict[str, Any], uuid: bytes) -> None:
    """Assert that a head has all keys and no others, and needs nothing that nobody knows; so of a root's."""
    keys = "format version uuid length codec compression labels claim_size fingerprint reads writes more"
    assert {*head} == {*keys.split()}
    assert (head["format"], head["version"], head["uuid"]) == ("edcache", 3, uuid.hex())
    assert head["codec"] in ("native", "pickle")
    _check_features(head)


def _check_features(said: dict[str, Any]) -> None:
    assert said["reads"] == []
    assert all(type(name) is str for name in said["writes"])  # a reader need not know them
    assert (type(said["writes"]), type(said["more"])) == (list, dict)


def read_zip(path: str | Path) -> Archive:
    """Read a sealed archive by its zip directory, root.json and what that names."""
    data = Path(path).read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment[:20] == b"edcache 3 root.json "
        payload = _at(data, *(int(number, 16) for number in archive.comment[20:].split(b" ")))
        root, names = json.loads(payload), archive.namelist()
        assert (names[0], names[-1], len(names)) == ("edcache.json", "root.json", len(set(names)))
        assert archive.read("root.json") == payload
        assert root["head"] == json.loads(archive.read("edcache.json"))
        columns = {column_name(name): place for name, place in root["labels"].items()}
        assert {name for name in names if name.startswith("labels/")} == columns.keys()
        assert all(archive.read(name) == _at(data, *place[:3]) for name, place in columns.items())
    return _root(root, data)


def column_name(label: str) -> str:
    """The name of the entry of a label: no two differ in the case of letters alone, and none is a device."""
    ports = [f"{port}{digit}" for port in ("com", "lpt") for digit in range(10)]
    letters = [f"%{ord(c):02X}" if c.isascii() and c.isupper() else quote(c, safe="") for c in label]
    if label in {"con", "prn", "aux", "nul", *ports}:
        letters[0] = f"%{ord(label[0]):02X}"
    return f"labels/{''.join(letters)}.arrow"


def entries(path: str | Path) -> list[Entry]:
    """The head and every entry of the chain, up to the end of the last whole group."""
    data, found, group = Path(path).read_bytes(), list[Entry](), list[Entry]()
    while (entry := _entry(data, [*found, *group])) is not None:
        kind = entry.fields["kind"]
        if (kind == HEAD) != (not found) or (group and kind in (CHUNK, NOTE, PART)):
            break
        group.append(entry)
        if kind in (HEAD, CHUNK, NOTE, PART, ROOT):
            found, group = found + group, []
    assert found, "no head"
    lost = _lost(found)
    for entry in found:
        if entry.fields["number"] not in lost:
            assert zlib.crc32(entry.payload) == entry.fields["payload_crc"], entry.fields["name"]
            table = entry.payload[: entry.fields["table_nbytes"]]
            assert zlib.crc32(table) == entry.fields["table_crc"], entry.fields["name"]
    return found


def _lost(entries: list[Entry]) -> set[int]:
    """The numbers of chunks of which a power cut took something: what was sound stands again in later ones."""
    notes = [entry.payload for entry in entries if entry.fields["kind"] == NOTE]
    return {number for note in notes for number in json.loads(note).get("lost", [])}


def _entry(data: bytes, before: list[Entry]) -> Entry | None:
    """The entry behind others; None if none fits there."""
    start, link = (before[-1].fields["next"], before[-1].link) if before else (0, 0)
    header = data[start : start + 1024].ljust(1024, b"\0")
    magic, *local, n, extra = struct.unpack_from(LOCAL, header)
    if magic != b"PK\x03\x04" or n > 1024 - 146:
        return None
    *zip64, payload_nbytes, again, private, private_nbytes = struct.unpack_from("<HHQQHH", header, 30 + n)
    f = dict(zip(FIELDS.split(), struct.unpack_from(PRIVATE, header, 54 + n), strict=True))
    f["nbytes"] = nbytes = max(192, -(-(146 + n) // 64) * 64)
    end = start + nbytes + payload_nbytes
    uuid = before[0].fields["uuid"] if before else f["uuid"]
    if zlib.crc32(header[: 142 + n]) != f["crc"] or end > len(data):
        return None
    if (f["offset"], f["number"], f["link"], f["uuid"]) != (start, len(before), link, uuid):
        return None
    f["name"], payload = header[30 : 30 + n].decode("ascii"), data[start + nbytes : end]
    f["payload_crc"] = local[5]
    assert local == [45, 0, 0, 0, 0x21, local[5], MAX32, MAX32], f["name"]
    assert (zip64, again, extra) == ([1, 16], payload_nbytes, nbytes - 30 - n)
    assert (private, private_nbytes, f["version"]) == (0x6465, nbytes - 54 - n, 3)
    assert not any(header[146 + n : nbytes])
    chunk = f"chunks/{len(before):08d}"
    names = NAMES | {CHUNK: chunk, NOTE: f"notes/{len(before):08d}"}
    is_part = f["kind"] == PART and f["name"].startswith(f"parts/{len(before):08d}-")
    assert is_part or f["kind"] == COLUMN or f["name"] == names[f["kind"]]
    assert f["table_nbytes"] <= payload_nbytes
    least = -(-end // 4096) * 4096
    assert f["next"] == least or (f["kind"] == ROOT and f["next"] > least and f["next"] % 4096 == 0)
    link = int.from_bytes(hashlib.blake2b(header[: 146 + n], digest_size=8).digest(), "little")
    return Entry(f, payload, link)


def _take_chunk(found: Archive, entry: Entry, data: bytes, names: list[str]) -> None:
    """Add the samples of a chunk, and their labels of these names."""
    f, payload = entry.fields, entry.payload
    count, text_nbytes, stream_nbytes = struct.unpack_from("<QQQ", payload)
    samples = struct.unpack_from(f"<{count}q", payload, 24)
    at = 24 + 32 * count
    rows = list(struct.iter_unpack(ROW, payload[24 + 8 * count : at]))
    schemas = json.loads(payload[at : at + text_nbytes])
    stream = payload[at + text_nbytes : f["table_nbytes"]]
    assert (len(stream), min(samples), max(samples) + 1) == (stream_nbytes, f["first"], f["end"])
    start = f["offset"] + f["nbytes"] + -(-f["table_nbytes"] // 64) * 64
    offsets = [start, *(row[0] for row in rows)]
    assert offsets == sorted(offsets)
    assert all(row[4] & PRESENT for row in rows)
    _take_rows(found, samples, rows, schemas, data, salt(f["uuid"], f["offset"] + f["nbytes"]))
    table = pa.ipc.open_stream(stream).read_all() if stream else pa.table({})
    for name in names:
        found.labels[name].update(zip(samples, table[name].to_pylist(), strict=True))


def salt(uuid: bytes, offset: int) -> int:
    """What binds the rows of the payload at an offset to it, and to the archive."""
    return zlib.crc32(uuid + struct.pack("<Q", offset))


def _take_rows(
    found: Archive, samples: Any, rows: list[Any], schemas: list[str], data: bytes, salt: int
) -> None:
    """Add the records of rows; each must have the sum that its row says."""
    for sample, (offset, nbytes, crc, schema, flags) in zip(samples, rows, strict=True):
        if not flags & PRESENT:
            assert (offset, nbytes, crc, schema, flags) == (0, 0, 0, 0, 0)
            continue
        assert flags in (PRESENT, PRESENT | COMPRESSED), f"flags of sample {sample}"
        record = data[offset : offset + nbytes]
        assert (len(record), offset % (64 if nbytes >= 1024 else 8)) == (nbytes, 0)
        own = zlib.crc32(record)
        if nbytes > BLOCK:
            crcs = [zlib.crc32(record[at : at + BLOCK]) for at in range(0, nbytes, BLOCK)]
            behind = struct.pack(f"<{len(crcs)}I", *crcs)
            assert data[offset + nbytes : offset + nbytes + len(behind)] == behind
            own = zlib.crc32(behind)
        key = (sample * 0x9E3779B97F4A7C15 % 2**64 >> 32) ^ (schema | flags << 16) ^ salt
        assert own ^ key == crc, f"sum of sample {sample}"
        found.schemas[sample] = schemas[schema]
        is_compressed = flags & COMPRESSED
        found.records[sample] = zstandard.ZstdDecompressor().decompress(record) if is_compressed else record


def _root(root: dict[str, Any], data: bytes) -> Archive:
    """The archive that a root describes, by the places that it names."""
    keys = "head length present chunks schemas index labels dropped failures uniform fingerprint"
    assert {*root} == {*keys.split(), "keys", "is_reordered", "is_synced", "reads", "writes", "more"}
    _check_features(root)
    assert type(root["is_reordered"]) is type(root["is_synced"]) is bool
    _check_head(root["head"], bytes.fromhex(root["head"]["uuid"]))
    length = root["length"]
    found = Archive(length, {}, {}, {}, {index: why for index, *why in root["failures"]})
    rows = list(struct.iter_unpack(ROW, _at(data, *root["index"])))
    own = salt(bytes.fromhex(root["head"]["uuid"]), root["index"][0])
    _take_rows(found, range(length), rows, root["schemas"], data, own)
    assert len(found.records) == root["present"]
    assert not found.failed.keys() & found.records.keys()
    if root["uniform"] is not None:
        sizes = [row[1] for row in rows]
        assert root["uniform"] == [rows[0][3], min(sizes), max(sizes)]
        assert {row[3:] for row in rows} == {(rows[0][3], PRESENT)}
    for name, (*place, kind, is_added) in root["labels"].items():
        table = pa.ipc.open_file(_at(data, *place)).read_all()
        assert kind == _type(table[name].type)
        assert (table.column_names, len(table), type(is_added)) == ([name], length, bool)
        found.labels[name] = dict(enumerate(table[name].to_pylist()))
    assert set(root["dropped"]) <= dict(root["head"]["labels"]).keys()
    if root["keys"] is not None:
        offset, nbytes, crc, count = root["keys"]
        payload = data[offset : offset + nbytes]
        assert zlib.crc32(payload[24 * count :] or payload) == crc
        assert payload == _keys(found.labels["key"])
    return found


def _type(kind: pa.DataType) -> Any:
    """The JSON of a label type."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ["large_list" if pa.types.is_large_list(kind) else "list", _type(kind.value_type)]
    name = str(kind)
    assert name.partition("[")[0] in LABELS, f"a label type {name}"
    return name


def _keys(column: dict[int, Any]) -> bytes:
    """The table of the values of a column, in the order of their hashes; of equal ones the first sample."""
    first: dict[bytes, int] = {}
    for sample, key in column.items():
        if type(key) in (str, bytes, int):
            text = key if isinstance(key, str) else "\0" + ascii(key)
            first.setdefault(hashlib.blake2b(text.encode(), digest_size=16).digest(), sample)
    hashes, samples = sorted(first), [first[one] for one in sorted(first)]
    numbers = [int.from_bytes(one[at : at + 8], "big") for at in (0, 8) for one in hashes]
    table = struct.pack(f"<{len(numbers)}Q{len(samples)}q", *numbers, *samples)
    crcs = (
        [zlib.crc32(table[at : at + BLOCK]) for at in range(0, len(table), BLOCK)]
        if len(table) > BLOCK
        else []
    )
    return table + struct.pack(f"<{len(crcs)}I", *crcs)


def _at(data: bytes, offset: int, nbytes: int, crc: int) -> bytes:
    part = data[offset : offset + nbytes]
    assert (len(part), zlib.crc32(part)) == (nbytes, crc)
    return part


def _alike(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) or one == other


@dataclass
class Leaf:
    """Leaf of a record. nbytes: of all, or of one item of a leaf with slots, whose values are its `dims`."""

    node: Any
    nbytes: int
    alignment: int = 8
    slots: int | None = None
    dims: Any = None
    data: bytes = b""


def parts(text: str, record: bytes) -> tuple[Any, list[Leaf]]:
    """Split a record: return its tree, and the leaves that have bytes."""
    tree, end = json.loads(text), 0
    if tree == {"self": 1}:
        nbytes = int.from_bytes(record[:8], "little")
        return parts(record[8 : 8 + nbytes].decode(), record[-(-(8 + nbytes) // 8) * 8 :])

    def take(nbytes: int, alignment: int = 8) -> bytes:
        nonlocal end
        start = -(-end // alignment) * alignment
        end = start + nbytes
        return record[start:end]

    leaves = list(_leaves(tree))
    fixed, variable = ([leaf for leaf in leaves if (leaf.slots is None) == flag] for flag in (True, False))
    for leaf in sorted(fixed, key=lambda leaf: -leaf.nbytes):
        leaf.data = take(leaf.nbytes, leaf.alignment)
    for leaf in variable:
        leaf.dims = struct.unpack(f"<{leaf.slots}q", take(8 * leaf.slots))
    for leaf in variable:
        leaf.data = take(leaf.nbytes * math.prod(leaf.dims))
    assert end == len(record), f"record of {len(record)} bytes, its leaves end at {end}"
    return tree, leaves


def _leaves(node: Any) -> Iterator[Leaf]:
    """The leaves of a tree that have bytes."""
    kind = node if isinstance(node, str) else node[0]
    if kind in ("list", "tuple", "dict", "OrderedDict", "namedtuple", "dataclass", "object"):
        for child in node[-1]:
            yield from _leaves(child)
    elif kind in ("array", "tensor", "scalar"):
        itemsize, shape = _itemsize(node[1]), [] if kind == "scalar" else node[2]
        # The power of two in the item size, at most 8; 8 of a structured one.
        alignment = min(8, itemsize & -itemsize) or 1 if isinstance(node[1], str) else 8
        if isinstance(shape, int):
            yield Leaf(node, itemsize, slots=shape)
        else:
            yield Leaf(node, itemsize * math.prod(shape), alignment)
    elif kind in SIZES:
        yield Leaf(node, SIZES[kind], min(8, SIZES[kind] & -SIZES[kind]))
    elif kind in VARIABLE:
        yield Leaf(node, 1, slots=1)
    else:
        assert kind == "none", f"a leaf {kind}"


def _itemsize(dtype: Any) -> int:
    if not isinstance(dtype, str):
        return int(dtype[2])  # a structured one
    own = {"bfloat16": 2, "complex32": 4}.get(dtype)
    return own or (1 if dtype.startswith("float8") else np.dtype(dtype).itemsize)
