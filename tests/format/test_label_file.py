"""labels.arrow: batches written one after another, columns read on demand, and what other readers see."""

import datetime as dt
import io
import struct
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
import reference
from edcache.format.label_file import (
    LabelFile,
    checked_labels,
    parse_label_table,
)
from label_files import pack_labels
from optional import Library
from range_server import serving

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import CorruptArchiveError
from edcache.format import label_file, same_tables

duckdb, pandas, polars = Library("duckdb"), Library("pandas"), Library("polars")

ROWS = 100


def every_type(count):
    """A column of each kind of buffers, with nulls, nan and texts of all lengths."""
    rows = range(count)
    odd = [None if i % 3 == 0 else i for i in rows]
    return pa.table(
        {
            "int": pa.array(rows, pa.int64()),
            "byte": pa.array([None if i is None else i % 100 - 50 for i in odd], pa.int8()),
            "beyond": pa.array([2**64 - 1 - i for i in rows], pa.uint64()),
            "float": pa.array([float("nan") if i < 150 else -i / 2 for i in rows]),
            "half": pa.array(np.arange(count).astype(np.float16)),
            "flag": pa.array([None if i is None else i % 2 == 0 for i in odd]),
            "none": pa.nulls(count),
            "text": pa.array([None if i is None else "ü" * (i % 7) for i in odd]),
            "large": pa.array([b"\xff" * (i % 5) for i in rows], pa.large_binary()),
            "list": pa.array([None if i is None else [i, None] * (i % 3) for i in odd], pa.list_(pa.int32())),
            "texts": pa.array([["a", None] * (i % 4) for i in rows], pa.large_list(pa.string())),
            "nones": pa.array([[None] * (i % 2) for i in rows], pa.list_(pa.null())),
            "when": pa.array(
                [dt.datetime(2020, 1, 1) + dt.timedelta(i) for i in rows], pa.timestamp("us", "UTC")
            ),
            "day": pa.array(rows, pa.date32()),
            "span": pa.array(rows, pa.duration("ns")),
        }
    )


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(label_file, "BATCH_ROWS", ROWS)


def loader(data):
    """What reads extents, and checks them."""

    def load(extents):
        parts = [memoryview(data)[extent.at : extent.at + extent.nbytes] for extent in extents]
        if any(zlib.crc32(part) != extent.crc32 for part, extent in zip(parts, extents, strict=True)):
            raise CorruptArchiveError("a part fails its crc32")
        return parts

    return load


def stored(table):
    """The labels as read from their bytes, and the extents that were loaded."""
    data, nbytes = pack_labels(table)
    loads = []

    def load(extents):
        loads.append(extents)
        return loader(data)(extents)

    return parse_label_table(data[len(data) - nbytes :], len(data), table.num_rows, load), loads


@pytest.mark.parametrize("count", [0, 1, ROWS, ROWS + 1, 4 * ROWS - 1])
def test_all_readers_see_the_same_columns(tmp_path, count):
    table = every_type(count)
    data, nbytes = pack_labels(table)
    assert same_tables(checked_labels(data, count, nbytes, table.column_names).table, table)
    assert reference.label_table_nbytes(bytes(data)) == nbytes
    file = pa.ipc.open_file(pa.py_buffer(data))
    assert file.num_record_batches == -(-count // ROWS)
    assert same_tables(file.read_all(), table) or not count
    assert pa.ipc.open_stream(pa.py_buffer(data).slice(8)).read_all().num_rows == count
    path = tmp_path / "labels.arrow"
    path.write_bytes(data)
    names = ["int", "float", "text", "flag", "list"]
    assert polars.read_ipc(path, columns=names).to_dict(as_series=False).keys() == set(names)
    assert polars.read_ipc(path, columns=["text"])["text"].to_list() == table["text"].to_pylist()
    assert pandas.read_feather(path, columns=["int"])["int"].tolist() == list(range(count))


@pytest.mark.parametrize("step", [1, 7, ROWS, 250])
def test_the_bytes_do_not_depend_on_how_the_rows_come(step):
    table, parts = every_type(330), []
    file = LabelFile(parts.append, table.schema)
    for start in range(0, 330, step):
        file.write(table.slice(start, step))
    written = file.finish()
    data = b"".join(parts)
    assert data == bytes(pack_labels(table)[0])
    assert (written.nbytes, written.crc32) == (len(data), zlib.crc32(data))
    assert written.table_crc == zlib.crc32(data[len(data) - written.table_nbytes :])


def test_a_writer_holds_one_batch_of_rows():
    held = []
    file = LabelFile(lambda data: held.append(len(data)), every_type(ROWS).schema)
    for count in range(1, 20):
        file.write(every_type(ROWS // 2))
        assert len(held) == 2 + count // 2
    assert max(held) < len(pack_labels(every_type(ROWS))[0])


def test_columns_are_read_at_their_first_use_and_several_together():
    table = every_type(350)
    labels, loads = stored(table)
    assert (labels.column_names, labels.num_rows, loads) == (table.column_names, 350, [])
    assert labels.column("int").equals(table["int"])
    assert [len(extents) for extents in loads] == [4]
    assert sum(extent.nbytes for extent in loads[0]) == 8 * 350
    labels.read(["text", "list", "int"])
    labels.column("text"), labels.column("list")
    assert [len(extents) for extents in loads] == [4, 8]


def test_bounds_leave_out_nulls_and_nans_and_know_no_negative_zero():
    zeros = np.array([-0.0, np.nan] * 50 + [np.nan] * 100)
    nulls = pa.array([None] * 100 + [5] * 100, pa.int64())
    labels, _ = stored(pa.table({"zero": zeros, "nulls": nulls, "text": ["a"] * 200}))
    assert labels.parts["is_bounded"].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert labels.parts["least"][0, 0] == labels.parts["most"][0, 0] == 0  # the bits of 0.0, not of -0.0
    assert (labels.parts["least"][1, 1], labels.parts["nulls"][:, 1].tolist()) == (5, [100, 0])


@pytest.fixture
def path(tmp_path):
    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["y", "text"], sync="never") as writer:
        writer.extend({"y": i, "text": f"text {i}"} for i in range(350))
    return tmp_path / "a.zip"


def write(path, start, count):
    with CacheWriter(path, "a", in_memory_keys=["y", "text"], chunk_size=64, sync="never") as writer:
        for i in range(start, start + count):
            writer.append({"y": i, "text": None if i % 3 == 0 else "ü" * (i % 7) + str(i)})


def revise(path):
    """Whole columns, some rows, a column of the samples changed and one dropped, each a revision."""
    ds = CachedDataset.from_cache(path)
    for name in ("byte", "flag", "list", "day"):
        ds.add_labels(name, every_type(len(ds))[name])
    kinds = pa.array([None if i % 5 == 0 else f"kind {i % 3}" for i in range(len(ds))])
    ds.add_labels("kind", kinds.dictionary_encode())
    ds.add_labels("text", {0: "first", 120: None, len(ds) - 1: "last"})
    ds.add_labels("few", {5: 1, 205: 2})
    ds.drop_labels("byte")


@pytest.mark.parametrize("later", [[], ["revise"], ["revise", "grow"], ["revise", "grow", "revise"]])
def test_other_readers_of_a_member_of_a_saved_archive_see_the_labels_of_the_dataset(tmp_path, later):
    path, member = tmp_path / "a.zip", tmp_path / "labels.arrow"
    write(path, 0, 350)
    for step in later:
        revise(path) if step == "revise" else write(path, 350, 75)
    CachedDataset.from_cache(path).save(path)
    ds = CachedDataset.from_cache(path)
    expected = ds.labels.table
    assert ("kind" in expected.column_names, len(ds)) == ("revise" in later, 350 + 75 * ("grow" in later))
    with zipfile.ZipFile(path) as archive:
        member.write_bytes(archive.read("labels.arrow"))
    file = pa.ipc.open_file(io.BytesIO(member.read_bytes()))
    assert file.num_record_batches == -(-len(ds) // ROWS)
    assert same_tables(file.read_all(), expected)
    base = duckdb.connect()
    base.register("labels", pyarrow.dataset.dataset(member, format="ipc"))
    names = [name for name in ("y", "text", "kind", "few", "day", "list") if name in expected.column_names]
    lists = {name: expected[name].to_pylist() for name in names}
    assert base.sql(f"select {', '.join(names)} from labels order by y").fetchall() == list(
        zip(*lists.values(), strict=True)
    )
    last = [(k,) for k, text in enumerate(lists["text"]) if text == lists["text"][-1]]
    asked = "select y from labels where text = ? order by y"
    assert base.execute(asked, [lists["text"][-1]]).fetchall() == last
    assert polars.read_ipc(member).select(names).to_dict(as_series=False) == lists
    frame = pandas.read_feather(member)
    assert frame["y"].tolist() == list(range(len(ds)))
    assert [None if pandas.isna(text) else text for text in frame["text"]] == lists["text"]


def damage(path, *places):
    """Change a byte of some batches of columns."""
    labels = CachedDataset.from_cache(path)._reader.stored_labels()
    seal = reference.entries(path)[-1].fields
    data = bytearray(path.read_bytes())
    for name, batch in places:
        part = labels.parts[batch, labels.column_names.index(name)]
        data[seal["offset"] + seal["nbytes"] + int(part["at"])] ^= 1
    path.write_bytes(data)


def test_a_damaged_column_leaves_the_others(path):
    damage(path, ("text", 2))
    ds = CachedDataset.from_cache(path)
    assert ds.labels["y"].tolist() == list(range(350))
    assert ds.filter("y >= 200 and y < 202")[1]["y"] == 201
    with pytest.raises(CorruptArchiveError, match=r"a.zip: labels.arrow at offset .* fails its crc32"):
        ds.labels["text"]
    assert any("labels.arrow has crc32" in problem for problem in edcache.verify(path).problems)


def test_behind_a_url_a_column_is_one_request_for_its_bytes(path):
    with serving(path.read_bytes()) as served:
        ds = CachedDataset.from_cache(served.url)
        served.forget()
        assert ds.labels["y"].tolist() == list(range(350))
        assert len(served.requests) <= 1
        assert served.sent <= 8 * 350 + 4096


def lying(data, nbytes, at, value, code="<Q"):
    """The file with one number of its table changed, counted from the start of the table."""
    data = bytearray(data)
    struct.pack_into(code, data, len(data) - nbytes + at, value)
    return data


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 3, "overlap, or leave"),
        (0, 1 << 62, "beyond all bytes"),
        (0, 1 << 40, "overlap, or leave"),
        (8, 1 << 50, "overlap, or leave"),
        (16, 8, "crc32"),
        (8, 8, "crc32"),
        (16, 792, "Buffer|crc32"),
        (24, 8, "overlap, or leave"),
        (48, 1 << 62, "beyond all bytes"),
        (56, 1, "nulls"),
        (72, 1, "crc32"),
        (80, 7, "bounds"),
        (88, 1, "bounds"),
        (192 + 16, 1 << 62, "batches of"),
        (192 + 8, 151, "rows, the index has"),
        (192 + 16, 50, "another size"),
    ],
)
def test_a_table_that_lies_is_refused(at, value, message):
    data, nbytes = pack_labels(pa.table({"y": np.arange(150)}))
    at -= 8 * (at > 192)
    code = "<I" if 72 <= at < 80 else "<Q"
    data = lying(data, nbytes, at, value, code)
    with pytest.raises(CorruptArchiveError):
        checked_labels(data, 150, nbytes)
    with pytest.raises(CorruptArchiveError, match=message):
        labels = parse_label_table(data[len(data) - nbytes :], len(data), 150, loader(data))
        labels.column("y")
        labels.check_bounds()


@pytest.mark.parametrize("change", ["message", "footer", "stream", "rows"])
def test_a_file_that_others_read_as_another_is_refused(change):
    """What a lazy reader does not look at, the messages of the batches, verify and repair compare."""
    data, nbytes = pack_labels(pa.table({"y": np.arange(150), "z": np.arange(150)}))
    places = {
        "message": lambda: data.index(struct.pack("<qq", 8 * ROWS, 8 * ROWS)[:8]),
        "footer": lambda: len(data) - nbytes + 4 * 96 + 16 + 48,
        "stream": lambda: data.index(b"z\0\0\0"),
        "rows": lambda: data.index(struct.pack("<q", ROWS)),
    }
    at = places[change]()
    data[at] = ord("x") if change == "stream" else data[at] ^ 8
    with pytest.raises(CorruptArchiveError):
        checked_labels(data, 150, nbytes)
