"""A second reader of the archive format, made from its specification and sharing no code with edcache.

    walk(path)        any archive, by the chain of headers
    read_zip(path)    a sealed archive, by its zip directory and index.pages
    decode(text, record)   the common schemas, into plain numpy and Python values

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

import numpy as np
import pyarrow as pa
import zstandard

HEAD, CHUNK, AMENDMENT, INDEX, LABELS, REVISION = range(6)
NAMES = [
    *("edcache.json", "chunks/{:08d}", "notes/{:08d}", "index.pages", "labels.arrow", "labels/{:08d}"),
]
PRIVATE = "<HHI16sQQQQQQQQII"
FIELDS = "version kind nbytes uuid seq offset next link samples end_index table_nbytes durable table_crc crc"
CODES = {"bool": "?", "int": "<q", "float": "<d"}


class Archive(NamedTuple):
    """length: of the dataset. records, schemas: by sample index. labels: values by name and index, which
    samples without a record may have too.

    failed: [final, exception, text, traceback] by the index of a sample that has no record.
    """

    length: int
    records: dict[int, bytes]
    schemas: dict[int, str]
    labels: dict[str, dict[int, Any]]
    failed: dict[int, list[Any]]


class Entry(NamedTuple):
    """One header of the chain and the payload behind it."""

    fields: dict[str, Any]
    payload: bytes
    packed: bytes


def entries(path: str | Path) -> list[Entry]:
    """The head and every entry of the chain that is whole."""
    data = Path(path).read_bytes()
    found = [_entry(data, 0, 0, 0, None)]
    assert found[0] is not None, "no head"
    while True:
        last = found[-1]
        link = int.from_bytes(hashlib.blake2b(last.packed, digest_size=8).digest(), "little")
        seq = last.fields["seq"] + 1 if len(found) > 1 else 0
        entry = _entry(data, last.fields["next"], seq, link, found[0].fields["uuid"])
        if entry is None:
            while found[-1].fields["kind"] == INDEX:  # an index without its labels is no seal
                found.pop()
            return found
        found.append(entry)


def _entry(data: bytes, offset: int, seq: int, link: int, uuid: bytes | None) -> Entry | None:
    local = data[offset : offset + 30]
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        return None
    need, flags, method, time, date, crc, nbytes, again, name, extra = struct.unpack("<HHHHHIIIHH", local[4:])
    packed = data[offset : offset + 30 + name + extra]
    place = 30 + name + (20 if nbytes == 0xFFFFFFFF else 0)
    if len(packed) < max(192, place + 100):
        return None
    if nbytes == 0xFFFFFFFF:
        nbytes = again = struct.unpack_from("<Q", packed, place - 16)[0]
    f = dict(zip(FIELDS.split(), struct.unpack_from(PRIVATE, packed, place + 4), strict=True))
    unsigned = packed[: place + 96] + bytes(4) + packed[place + 100 :]
    if zlib.crc32(unsigned) != f["crc"] or (f["offset"], f["seq"], f["link"]) != (offset, seq, link):
        return None
    if uuid not in (None, f["uuid"]) or offset + len(packed) + nbytes > len(data):
        return None
    assert (need in (20, 45), flags, method, time, date) == (True, 0, 0, 0, 0x21)
    assert (f["version"], f["nbytes"], again) == (2, len(packed), nbytes)
    assert packed[30 : 30 + name] == NAMES[f["kind"]].format(seq).encode()
    assert packed[place : place + 4] == struct.pack("<HH", 0x6465, 96 + len(packed) - place - 100)
    assert (offset + len(packed)) % 64 == 0
    assert not any(packed[place + 100 :])
    payload = data[offset + len(packed) : offset + len(packed) + nbytes]
    assert zlib.crc32(payload) == crc, f"payload of {packed[30 : 30 + name]!r}"
    is_last = f["kind"] in (INDEX, LABELS)
    table = payload[len(payload) - f["table_nbytes"] :] if is_last else payload[: f["table_nbytes"]]
    assert f["kind"] != LABELS or label_table_nbytes(payload) == len(table)
    assert zlib.crc32(table) == f["table_crc"]
    return Entry(f, payload, packed)


def label_table_nbytes(payload: bytes) -> int:
    """How long the table of labels.arrow is, every entry of which must say what Arrow sees."""
    memory = pa.py_buffer(payload)
    file = pa.ipc.open_file(memory)
    batches = [file.get_batch(i) for i in range(file.num_record_batches)]
    columns = len(file.schema)
    footer = len(payload) - 10 - struct.unpack_from("<i", payload, len(payload) - 10)[0]
    rows, batch_rows = struct.unpack_from("<QQ", payload, footer - 16)
    assert rows == sum(batch.num_rows for batch in batches)
    assert all(batch.num_rows == batch_rows for batch in batches[:-1])
    start = footer - 16 - 96 * columns * len(batches)
    arrays = [array for batch in batches for array in batch.columns]
    for array, part in zip(arrays, struct.iter_unpack("<9QIIQQ", payload[start : footer - 16]), strict=True):
        at, sizes, (items, nulls, item_nulls, crc), limits = part[0], part[1:6], part[6:10], part[10:]
        buffers = array.buffers()
        assert [0 if b is None else b.size for b in buffers] == [*sizes, 0, 0][: len(buffers)]
        assert not any(sizes[len(buffers) :])
        end = at
        for buffer, size in zip(buffers, sizes, strict=False):
            assert not size or buffer.address - memory.address == end
            end += -(-size // 8) * 8
        assert zlib.crc32(payload[at:end]) == crc
        inner = array.values if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) else []
        assert (nulls, items) == (array.null_count, len(inner))
        assert item_nulls == (inner.null_count if len(inner) else 0)
        assert limits == bounds(array)
    return len(payload) - start


def bounds(array: pa.Array) -> tuple[int, int, int]:
    """Whether there are values that have an order, the least and the greatest, as bits."""
    kind = array.type
    if pa.types.is_temporal(kind):
        array = array.view(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return 0, 0, 0
    values = [value for value in array.to_pylist() if value is not None and value == value]
    code = "<d" if pa.types.is_floating(kind) else "<Q" if pa.types.is_unsigned_integer(kind) else "<q"
    ends = [min(values) + 0, max(values) + 0] if values else []
    bits = [struct.unpack("<Q", struct.pack(code, end))[0] for end in ends]
    return (1, *bits) if ends else (0, 0, 0)


def walk(path: str | Path) -> Archive:
    """Read any archive by its chain alone; of two records of one index the later wins."""
    head, *rest = entries(path)
    length = json.loads(head.payload)["length"] or 0
    archive = Archive(0, {}, {}, {}, {})
    ended: set[str] = set()
    for entry in rest:
        if entry.fields["kind"] == REVISION:
            _revise(archive, entry, ended)
        if entry.fields["kind"] == AMENDMENT:
            said = json.loads(entry.payload[: entry.fields["table_nbytes"]])
            length = said.get("length", length)
            archive.failed.update({failure[0]: failure[1:] for failure in said.get("failed", [])})
        if entry.fields["kind"] == CHUNK:
            table_nbytes = entry.fields["table_nbytes"]
            table = pa.ipc.open_stream(entry.payload[:table_nbytes]).read_all()
            assert table.num_rows == entry.fields["samples"]
            assert max(table["index"].to_pylist()) + 1 == entry.fields["end_index"]
            records = entry.payload[-(-table_nbytes // 64) * 64 :]
            _check_blocks(table, records, entry.payload[:table_nbytes])
            schemas = json.loads(table.schema.metadata[b"edcache"])["schemas"]
            _take(archive, table.to_pylist(), schemas, records)
            for name in [name for name in table.column_names if name.startswith("label/")]:
                if name[6:] not in ended:
                    column = archive.labels.setdefault(name[6:], {})
                    column.update(zip(table["index"].to_pylist(), table[name].to_pylist(), strict=True))
    failed = {index: why for index, why in archive.failed.items() if index not in archive.records}
    length = max([length, *(index + 1 for index in archive.records)])
    for name, column in archive.labels.items():
        archive.labels[name] = {index: value for index, value in column.items() if index < length}
    return archive._replace(length=length, failed=failed)


def _revise(archive: Archive, entry: Entry, ended: set[str]) -> None:
    """Take columns out, then values of others in. `ended`: columns that chunks have no say in."""
    fields = entry.fields
    data = entry.payload[: fields["table_nbytes"]]
    assert not any(entry.payload[fields["table_nbytes"] :])
    table = pa.ipc.open_stream(data).read_all()
    assert table.num_rows == fields["samples"]
    said = json.loads(table.schema.metadata[b"edcache"])
    assert list(said) == ["dropped"]
    for name in said["dropped"]:
        archive.labels.pop(name, None)
        ended.add(name)
    rows = range(table.num_rows)
    index = table["index"].to_pylist() if "index" in table.column_names else list(rows)
    assert index == sorted(set(index))
    assert max(index, default=-1) + 1 == fields["end_index"]
    for name in table.column_names:
        if name != "index":
            assert name.startswith("label/")
            column = archive.labels.setdefault(name[6:], {})
            old, new = (
                {type(value) for value in values if value is not None}
                for values in (column.values(), table[name].to_pylist())
            )
            assert not (old and new) or (str in old) == (str in new), f"no type for both in {name}"
            column.update(zip(index, table[name].to_pylist(), strict=True))


def read_zip(path: str | Path) -> Archive:
    """Read a sealed archive by its zip directory, index.pages, labels.arrow and what is behind them."""
    data = Path(path).read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        payload = archive.read("index.pages")
        again = archive.getinfo("index.pages").extra[-100:]
        labels = pa.ipc.open_file(archive.read("labels.arrow")).read_all()
    chain = entries(path)
    header = next(entry for entry in reversed(chain) if entry.fields["kind"] == INDEX)
    behind = [entry for entry in chain[1:] if entry.fields["seq"] > header.fields["seq"] + 1]
    private = header.fields["offset"] + 30 + len("index.pages") + 4
    assert again == struct.pack("<HH", 0x6465, 96) + data[private : private + 96]
    said, rows, blocks = _index(payload, header.fields["table_nbytes"], header.fields["samples"])
    _check_chunks(blocks, data)
    if len(rows) == said["length"]:
        assert [row["index"] for row in rows] == list(range(len(rows)))
    failed = {failure[0]: failure[1:] for failure in said.get("failed", [])}
    result = Archive(said["length"], {}, {}, {}, failed)
    _take(result, rows, said["schemas"], data)
    if "labels" in said:
        assert [name for name, _ in said["labels"]] == labels.column_names
    samples = [row["index"] for row in rows] if labels.num_rows == len(rows) else range(said["length"])
    for name in labels.column_names:
        pairs = zip(samples, labels[name].to_pylist(), strict=True)
        result.labels[name] = {i: value for i, value in pairs if value is not None or i in result.records}
    assert not behind or labels.num_rows == said["length"]
    for entry in behind:
        assert entry.fields["kind"] == REVISION
        end = entry.fields["offset"] + entry.fields["nbytes"] + len(entry.payload)
        assert entry.fields["table_nbytes"] == len(entry.payload)
        assert data[end : end + 4] == b"PK\x01\x02"
        assert entry.fields["next"] > end
        _revise(result, entry, set())
    return result


LINES = ["index", "offset", "nbytes", "raw_nbytes", "schema"]


def _index(
    payload: bytes, table_nbytes: int, count: int
) -> tuple[dict[str, Any], list[dict[str, int]], bytes]:
    """The JSON of index.pages, a row for each record, and the blocks."""
    table = payload[len(payload) - table_nbytes :]
    bits, nbytes = struct.unpack_from("<II", table)
    assert nbytes % 8 == 0
    assert 12 <= bits <= 40
    pairs = json.loads(table[8 : 8 + nbytes], object_pairs_hook=list)
    said = dict(pairs)
    names = {"length", "compressed", "chunks", "chunks_crc", "schemas"}
    assert sorted(said) == sorted(name for name, _ in pairs), "a key twice"
    assert names <= said.keys() <= names | {"failed", "labels"}
    rows: list[dict[str, int]] = []
    end = 0
    for page in struct.iter_unpack("<5qqqqII", table[8 + nbytes :]):
        *bases, stride, total, at, crc, widths = page
        assert at == end, "pages lie one behind the other"
        number = min(2**bits, count - len(rows))
        columns = {"crc32": struct.unpack_from(f"<{number}I", payload, at)}
        end = _padded(payload, at, 4 * number)
        for k, name in enumerate(LINES):
            width = [0, 1, 2, 4, 8][widths >> 3 * k & 7]
            differences = [0] * number
            if width:
                differences = struct.unpack_from(f"<{number}{'_BH_I___Q'[width]}", payload, end)
                end = _padded(payload, end, width * number)
            step, unit = {"index": (1, 1), "offset": (stride, 8)}.get(name, (0, 1))
            columns[name] = [bases[k] + i * step + unit * d for i, d in enumerate(differences)]
        assert zlib.crc32(payload[at:end]) == crc
        assert sum(columns["nbytes"]) == total
        if not said["compressed"]:
            assert not any(columns.pop("raw_nbytes"))
        rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert len(rows) == count
    assert [row["index"] for row in rows] == sorted({row["index"] for row in rows})
    blocks = payload[end : len(payload) - table_nbytes]
    assert len(blocks) == 24 * said["chunks"]
    assert zlib.crc32(blocks) == said["chunks_crc"]
    return said, rows, blocks


def _padded(payload: bytes, at: int, nbytes: int) -> int:
    """Where what follows so many bytes starts."""
    end = at + -(-nbytes // 8) * 8
    assert not any(payload[at + nbytes : end])
    return end


def _check_chunks(packed: bytes, data: bytes) -> None:
    """Every chunk's block crcs are where the index says."""
    end = 0
    for crcs_offset, offset, nbytes in struct.iter_unpack("<qqq", packed):
        crcs = [
            zlib.crc32(data[i : min(i + 16384, offset + nbytes)])
            for i in range(offset, offset + nbytes, 16384)
        ]
        assert end <= crcs_offset <= offset
        assert data[crcs_offset : crcs_offset + 4 * len(crcs)] == struct.pack(f"<{len(crcs)}I", *crcs)
        end = offset + nbytes


def _check_blocks(table: pa.Table, records: bytes, table_bytes: bytes) -> None:
    nbytes = json.loads(table.schema.metadata[b"edcache"])["records_nbytes"]
    assert nbytes == max(row["offset"] + row["nbytes"] for row in table.to_pylist())
    crcs = [zlib.crc32(records[i : min(i + 16384, nbytes)]) for i in range(0, nbytes, 16384)]
    assert table_bytes[len(table_bytes) - 4 * len(crcs) :] == struct.pack(f"<{len(crcs)}I", *crcs)


def _take(archive: Archive, rows: list[dict[str, Any]], schemas: list[str], data: bytes) -> None:
    for row in rows:
        record = data[row["offset"] : row["offset"] + row["nbytes"]]
        assert (len(record), zlib.crc32(record)) == (row["nbytes"], row["crc32"]), row
        assert row["offset"] % (64 if len(record) >= 1024 else 8) == 0, row
        if "raw_nbytes" in row:
            record = _decompressed(record, row["raw_nbytes"])
        archive.records[row["index"]] = record
        archive.schemas[row["index"]] = schemas[row["schema"]]


def _decompressed(record: bytes, raw_nbytes: int) -> bytes:
    raw = zstandard.ZstdDecompressor().decompress(record, max_output_size=raw_nbytes)
    assert len(raw) == raw_nbytes
    return raw


def decode(text: str, record: bytes, value: Any = None, rebuilt: Any = None) -> Any:
    """The sample of a record; tensors come back as arrays, leaves of rarer kinds as their bytes.

    Args:
        value: `value(node, bytes, dims)` makes a leaf instead. rebuilt: `rebuilt(tree, leaves)` the sample.
    """
    value, rebuilt = value or _value, rebuilt or _rebuilt
    tree = json.loads(text)
    if tree == {"self": 1}:
        nbytes = struct.unpack_from("<Q", record)[0]
        return decode(record[8 : 8 + nbytes].decode(), record[-(-(8 + nbytes) // 8) * 8 :], value, rebuilt)
    leaves: list[Any] = []
    _collect(tree, leaves)
    places: dict[int, tuple[int, int, Any]] = {}
    end = 0
    fixed = [i for i, leaf in enumerate(leaves) if leaf[1] is not None]
    for i in sorted(fixed, key=lambda i: -leaves[i][1]):
        nbytes, alignment = leaves[i][1:3]
        end = -(-end // alignment) * alignment
        places[i] = (end, nbytes, None)
        end += nbytes
    variable = [i for i in range(len(leaves)) if i not in places]
    slots = -(-end // 8) * 8
    end = slots + 8 * sum(leaves[i][3] for i in variable) if variable else end
    for i in variable:
        dims = struct.unpack_from(f"<{leaves[i][3]}q", record, slots)
        slots += 8 * leaves[i][3]
        dtype = _dtype(leaves[i][0])
        nbytes = dims[0] if dtype is None else dtype.itemsize * int(np.prod(dims))
        end = -(-end // 8) * 8
        places[i] = (end, nbytes, dims)
        end += nbytes
    assert end == len(record), f"record of {len(record)} bytes, its leaves end at {end}"
    values = iter([value(leaf[0], record[p : p + n], d) for leaf, (p, n, d) in _ordered(leaves, places)])
    return rebuilt(tree, values)


def _ordered(leaves: list[Any], places: dict[int, Any]) -> list[Any]:
    return [(leaf, places[i]) for i, leaf in enumerate(leaves)]


def _dtype(node: Any) -> np.dtype[Any] | None:
    if node[0] not in ("array", "tensor", "scalar"):
        return None
    name = node[1] if isinstance(node[1], str) else f"V{node[1][2]}"  # a structured dtype as its bytes
    return np.dtype(
        {"bfloat16": "<i2", "complex32": "<i4"}.get(name, "u1" if name.startswith("float8") else name)
    )


def _collect(node: Any, leaves: list[Any]) -> None:
    """Append (node, nbytes or None, alignment, slots) of each leaf that has bytes."""
    kind = node if isinstance(node, str) else node[0]
    sizes = {
        "bool": 1,
        "int": 8,
        "float": 8,
        "complex": 16,
        "uuid": 16,
        "date": 8,
        "timedelta": 12,
        "time": 8,
    }
    if kind in ("dict", "OrderedDict", "list", "tuple", "namedtuple", "dataclass", "object"):
        for child in node[-1]:
            _collect(child, leaves)
    elif kind in ("array", "tensor", "scalar"):
        dtype, shape = _dtype(node), node[2] if kind != "scalar" else []
        assert dtype is not None
        alignment = 8 if not isinstance(node[1], str) else min(8, dtype.itemsize & -dtype.itemsize) or 1
        nbytes = None if isinstance(shape, int) else dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        leaves.append((node, nbytes, alignment, shape if nbytes is None else 0))
    elif kind in sizes or kind == "datetime":
        nbytes = sizes.get(kind, 8)
        leaves.append((node, nbytes, min(8, nbytes & -nbytes), 0))
    elif kind != "none":
        leaves.append((node, None, 8, 1))


def _value(node: Any, data: bytes, dims: Any) -> Any:
    kind = node if isinstance(node, str) else node[0]
    if kind in CODES:
        return struct.unpack(CODES[kind], data)[0]
    if kind in ("array", "tensor"):
        return np.frombuffer(data, _dtype(node)).reshape(node[2] if dims is None else dims)
    if kind == "scalar" and isinstance(node[1], str):
        return np.frombuffer(data, _dtype(node))[0]
    if kind in ("str", "numpy.str"):
        return data.decode("utf-8", "surrogatepass")
    if kind in ("ints", "floats", "bools"):
        values = np.frombuffer(data, {"ints": "<i8", "floats": "<f8", "bools": "?"}[kind]).tolist()
        return values if node[1] == "list" else tuple(values)
    return data


def _rebuilt(node: Any, values: Any) -> Any:
    kind = node if isinstance(node, str) else node[0]
    if kind == "none":
        return None
    if kind in ("list", "tuple"):
        items = [_rebuilt(child, values) for child in node[1]]
        return items if kind == "list" else tuple(items)
    if kind in ("dict", "OrderedDict", "namedtuple", "dataclass", "object"):
        keys = range(len(node[-1])) if kind == "object" else node[-2]
        names = [key if not isinstance(key, list) else tuple(key) for key in keys]
        return {name: _rebuilt(child, values) for name, child in zip(names, node[-1], strict=True)}
    return next(values)
