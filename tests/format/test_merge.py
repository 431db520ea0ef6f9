"""Rows and their sums, tables of chunks, files of columns, and the merge of chunks over a root."""

import datetime as dt
import itertools
import struct
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
from chains import Archive, packed_column
from hypothesis import given, settings
from hypothesis import strategies as st
from optional import Library
from range_server import serving
from scale import scaled
from written import write

from edcache import CachedDataset, CacheWriter, format
from edcache.errors import CorruptArchiveError, CorruptRecordError, LabelError, LaterReleaseError
from edcache.format import PRESENT, ROW, columns, contents, records

duckdb, pandas, polars = Library("duckdb"), Library("pandas"), Library("polars")

ROWS = 100


@pytest.fixture(autouse=True, scope="module")
def small():
    """Columns of several batches; windows smaller than an archive; not all tables are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BATCH_ROWS", ROWS)
        patch.setattr(contents, "WINDOW", 5)
        patch.setattr(contents, "_MOST_KEPT_NBYTES", 1000)
        yield


# --- sums and tables ---


UUID = bytes(range(16))


def key(sample, schema, flags, uuid, start):
    """What the sum of a row in the file is xored with, as the specification tells."""
    mixed = (sample * 0x9E3779B97F4A7C15) % 2**64 >> 32
    return mixed ^ schema ^ flags << 16 ^ zlib.crc32(uuid + struct.pack("<Q", start))


def test_a_sum_in_the_file_is_of_its_sample_schema_flags_archive_and_payload():
    samples = np.array([0, 1, 2**40, 10**9, 2**62 - 1])
    rows = np.zeros(5, ROW)
    rows["schema"], rows["flags"], rows["crc32"] = [0, 1, 2**16 - 1, 7, 7], [1, 3, 1, 1, 0xFFFF], 0x12345678
    before, salt = rows.copy(), format.salt(UUID, 4288)
    stored = format.bound(samples, rows, salt)
    assert np.array_equal(rows, before)
    pairs = list(zip(samples.tolist(), stored.tolist(), strict=True))
    keys = [key(k, row[3], row[4], UUID, 4288) for k, row in pairs]
    assert [row[2] for _, row in pairs] == [0x12345678 ^ one for one in keys]
    assert [format.unbound_crc32(k, *row[2:], salt) for k, row in pairs] == [0x12345678] * 5
    for name in ("offset", "nbytes", "schema", "flags"):
        assert np.array_equal(stored[name], rows[name])
    assert np.array_equal(format.bound(samples, stored, salt), rows)


def test_a_row_without_a_record_stays_all_zeros():
    rows = np.zeros(3, ROW)
    rows[1] = 64, 5, 7, 0, PRESENT
    stored = format.bound(np.arange(3), rows, format.salt(UUID, 64))
    assert not any(stored[0].item())
    assert not any(stored[2].item())
    assert stored["crc32"][1] == 7 ^ key(1, 0, PRESENT, UUID, 64)


@pytest.mark.parametrize("flags", [4, 1 << 15, 0xFFFC])
def test_a_flag_that_a_later_release_knows_is_named(flags):
    for known in range(4):
        format.check_flags(known)
        rows = np.zeros(3, ROW)
        rows["flags"] = [0, known, flags]
        assert format.joint_flags(rows) == known | flags
        lowest = flags & -flags
        with pytest.raises(
            LaterReleaseError, match=f"^needs the row flag {lowest}, which a later release of"
        ):
            format.check_flags(format.joint_flags(rows))
    assert format.joint_flags(np.zeros(0, ROW)) == 0


@pytest.mark.parametrize("nbytes", [0, 1, 2**16, 2**16 + 1, 5 * 2**16 - 3])
def test_a_large_record_is_followed_by_the_sums_of_its_blocks(nbytes):
    record = np.arange(nbytes, dtype="<u4").tobytes()[:nbytes]
    behind = format.block_crc32s(record)
    assert len(behind) == format.behind_nbytes(nbytes) == (4 * -(-nbytes // 2**16) if nbytes > 2**16 else 0)
    assert records.crc32(records.block_crc32s(record) or record) == format.crc32(behind or record)
    blocks = [record[at : at + 2**16] for at in range(0, nbytes, 2**16)] if behind else []
    assert behind == struct.pack(f"<{len(blocks)}I", *map(format.crc32, blocks))


@settings(max_examples=scaled(200, 40))
@given(st.data())
def test_exactly_the_records_that_fail_their_crc32_are_found(data):
    """Also if many of one size are compared at once: neighbours, others in any order, with gaps or without."""
    draw, rng = data.draw, np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    size, gap = draw(st.sampled_from([0, 1, 8, 24, 792, 4096, 5000])), draw(st.sampled_from([0, 8, 64]))
    step, count = -(-size // 8) * 8 + gap, draw(st.integers(1, 700))
    stored = memoryview(rng.integers(0, 256, count * step + 1, np.uint8).tobytes())
    chosen = rng.permutation(count) if draw(st.booleans()) else np.arange(count)
    rows = np.zeros(count, ROW)
    rows["offset"], rows["nbytes"] = chosen * step, size
    if draw(st.integers(0, 9)) == 0:
        rows["nbytes"] -= np.minimum(rows["nbytes"], rng.integers(0, 3, count).astype(np.uint64))
    ends = (rows["offset"] + rows["nbytes"]).tolist()
    rows["crc32"] = [
        zlib.crc32(stored[at:end]) for at, end in zip(rows["offset"].tolist(), ends, strict=True)
    ]
    damaged = rng.choice(count, draw(st.integers(0, min(count, 3))), replace=False)
    rows["crc32"][damaged] ^= np.uint32(1 << draw(st.integers(0, 31)))
    expected = np.ones(count, bool)
    expected[damaged] = False
    assert np.array_equal(records.are_sound(rows, stored), expected)


def test_a_table_reads_back_and_every_byte_of_it_counts():
    archive, labels = Archive(), pa.table({"y": [5, None, 7]})
    stored = [b"a", bytes(70_000), b"ccc"]
    header = archive.chunk([9, 2, 5], stored, ["a", "ü"], [0, 1, 1], labels)
    table = format.read_table(archive.pread, header, "a.zip")
    assert (table.samples.tolist(), table.schemas, table.rows["schema"].tolist()) == (
        *([9, 2, 5], ["a", "ü"]),
        [0, 1, 1],
    )
    assert table.labels.equals(labels)
    assert table.labels.schema == pa.schema({"y": pa.int64()})
    assert [archive.pread(row["offset"], row["nbytes"]) for row in table.rows] == stored
    sums = [zlib.crc32(format.block_crc32s(record) or record) for record in stored]
    assert table.rows["crc32"].tolist() == sums
    rows = np.frombuffer(archive.pread(header.payload_offset + 24 + 3 * 8, 3 * 24), ROW)
    keys = [key(*row, PRESENT, UUID, header.payload_offset) for row in ((9, 0), (2, 1), (5, 1))]
    assert rows["crc32"].tolist() == [one ^ other for one, other in zip(sums, keys, strict=True)]
    for at in range(header.payload_offset, header.payload_offset + header.table_nbytes):
        archive.data[at] ^= 1
        with pytest.raises(CorruptArchiveError, match=r"a.zip: chunks/00000001 at offset 4,096: its table"):
            format.read_table(archive.pread, header, "a.zip")
        archive.data[at] ^= 1


@pytest.mark.parametrize(
    ("at", "code", "value"),
    [
        # lengths of the parts
        *((0, "<Q", 3), (0, "<Q", 0), (8, "<Q", 16), (16, "<Q", 1), (0, "<Q", 1 << 61)),
        *((24, "<q", -1), (32, "<q", 8), (24, "<q", 1 << 62)),  # samples that the header does not name
        # offsets before and behind the records
        *((40, "<Q", 0), (40, "<Q", 1 << 40), (40, "<Q", (1 << 64) - 1)),
        *((48, "<Q", 1 << 40), (48, "<Q", (1 << 64) - 1), (72, "<Q", 16)),  # sizes beyond the chunk
        # an overlap, a schema that is not there, an absent record
        *((48, "<Q", 9), (60, "<H", 1), (62, "<H", 0)),
        *((88, "B", 0), (88, "B", ord("{"))),  # JSON
    ],
)
def test_a_table_whose_sum_holds_and_that_lies_is_refused(at, code, value):
    archive = Archive()
    header = archive.chunk([0, 1], [b"12345678", b"87654321"])
    start = header.payload_offset
    struct.pack_into(code, archive.data, start + at, value)
    crc = format.crc32(archive.pread(start, header.table_nbytes))
    with pytest.raises(CorruptArchiveError, match="its table does not read: "):
        format.read_table(archive.pread, replace(header, table_crc32=crc), "a.zip")


def test_a_table_with_a_flag_that_a_later_release_knows_says_so():
    archive = Archive()
    header = archive.chunk([0, 1], [b"12345678", b"87654321"])
    struct.pack_into("<H", archive.data, header.payload_offset + 24 + 16 + 22, PRESENT | 8)
    crc = format.crc32(archive.pread(header.payload_offset, header.table_nbytes))
    place = "a.zip: chunks/00000001 at offset 4,096: its table"
    with pytest.raises(LaterReleaseError, match=f"^{place}: needs the row flag 8, which a later") as raised:
        format.read_table(archive.pread, replace(header, table_crc32=crc), "a.zip")
    assert raised.value.path == "a.zip"


# --- files of columns ---


def every_type(count):
    """A column of each kind of buffers, with nulls, nan and texts of all lengths."""
    rows = range(count)
    odd = [None if i % 3 == 0 else i for i in rows]
    return pa.table(
        {
            "int": pa.array(rows, pa.int64()),
            "byte": pa.array([None if i is None else i % 100 - 50 for i in odd], pa.int8()),
            "beyond": pa.array([2**64 - 1 - i for i in rows], pa.uint64()),
            "float": pa.array([float("nan") if i < 150 else -i / 2 for i in rows], pa.float64()),
            "half": pa.array(np.arange(count).astype(np.float16)),
            "flag": pa.array([None if i is None else i % 2 == 0 for i in odd], pa.bool_()),
            "none": pa.nulls(count),
            "text": pa.array([None if i is None else "ü" * (i % 7) for i in odd], pa.string()),
            "large": pa.array([b"\xff" * (i % 5) for i in rows], pa.large_binary()),
            "list": pa.array([None if i is None else [i, None] * (i % 3) for i in odd], pa.list_(pa.int32())),
            "texts": pa.array([["a", None] * (i % 4) for i in rows], pa.large_list(pa.string())),
            "nones": pa.array([[None] * (i % 2) for i in rows], pa.list_(pa.null())),
            "when": pa.array([dt.datetime(2020, 1, 1)] * count, pa.timestamp("us", "UTC")),
            "day": pa.array(rows, pa.date32()),
            "span": pa.array(rows, pa.duration("ns")),
        }
    )


@pytest.mark.parametrize("count", [0, 1, ROWS, ROWS + 1, 4 * ROWS - 1])
def test_a_column_of_every_type_reads_back_and_other_readers_see_the_same(tmp_path, count):
    table, path = every_type(count), tmp_path / "column.arrow"
    for name, column in zip(table.column_names, table.columns, strict=True):
        data = packed_column(name, column)
        found = columns.read_column(data, name, column.type, count)
        assert (found.type, str(found.to_pylist())) == (column.type, str(column.to_pylist()))  # nan is nan
        file = pa.ipc.open_file(pa.py_buffer(data))
        assert file.num_record_batches == -(-count // ROWS)
        path.write_bytes(data)
        if name in ("int", "text", "flag", "list"):
            values = column.to_pylist()
            assert polars.read_ipc(path)[name].to_list() == values
            assert pandas.read_feather(path).columns.tolist() == [name]
            base = duckdb.connect()
            base.register("labels", pyarrow.dataset.dataset(path, format="ipc"))
            assert [row for (row,) in base.sql(f'select "{name}" from labels').fetchall()] == values


def test_a_column_that_is_another_one_or_points_out_of_its_bytes_is_refused():
    data = packed_column("y", pa.chunked_array([[1, 2, 3]]))
    read = columns.read_column
    for name, kind, count in (("x", pa.int64(), 3), ("y", pa.int32(), 3), ("y", pa.int64(), 2)):
        with pytest.raises(CorruptArchiveError, match="the column .* does not read: it is"):
            read(data, name, kind, count)
    buffers = [None, pa.py_buffer(struct.pack("<3i", 0, 1000, 4)), pa.py_buffer(b"text")]
    lying = pa.chunked_array([pa.Array.from_buffers(pa.string(), 2, buffers)])
    with pytest.raises(CorruptArchiveError, match="the column 'y' does not read: "):
        read(packed_column("y", lying), "y", lying.type, 2)
    for end in range(0, len(data), 7):
        with pytest.raises(CorruptArchiveError, match="the column 'y' does not read: "):
            read(data[:end], "y", pa.int64(), 3)


@pytest.fixture
def path(tmp_path):
    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["y", "text"], sync="never") as writer:
        writer.extend({"y": i, "text": f"text {i}"} for i in range(350))
    return tmp_path / "a.zip"


def test_a_row_of_zeros_is_no_empty_record(tmp_path):
    write(tmp_path / "a.zip", [None, 5], indices=[1, 0])
    data = bytearray((tmp_path / "a.zip").read_bytes())
    root, _ = format.read_root(lambda at, nbytes, is_sound=None: data[at : at + nbytes], len(data), "a.zip")
    data[root.index.offset : root.index.offset + ROW.itemsize] = bytes(ROW.itemsize)
    (tmp_path / "a.zip").write_bytes(data)
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    for read in (lambda: ds[0], lambda: list(ds[:2])):
        with pytest.raises(CorruptRecordError, match=r"record 0 at offset 0: its row is damaged"):
            read()
    assert ds[1] is None


def test_behind_a_url_a_column_is_one_request_for_its_bytes(path):
    with serving(path.read_bytes()) as served:
        ds = CachedDataset.from_cache(served.url, local=False)
        served.forget()
        assert ds.labels["y"].tolist() == list(range(350))
        assert len(served.requests) <= 1
        assert served.sent <= 8 * 350 + 4096


# --- the merge ---

SCHEMAS = ["a", "b", "c"]
one_record = st.tuples(st.integers(0, 25), st.sampled_from(SCHEMAS), st.booleans())
chunk_step = st.lists(one_record, min_size=1, max_size=6)
seal_step = st.tuples(
    st.permutations(SCHEMAS), st.dictionaries(st.integers(0, 25), st.integers()), st.booleans()
)
LABELS = {"y": pa.int64(), "z": pa.string(), "new": pa.int64()}


class Merged:
    """What an archive holds, in dicts: records with their schemas, and columns, by sample."""

    def __init__(self):
        self.records, self.columns, self.dropped, self.length = {}, {"y": {}, "z": {}}, [], 0

    def chunk(self, archive, step, counter):
        """Add a chunk; some labels are null, and of a sample that it has twice the last counts."""
        schemas = sorted({schema for _, schema, _ in step}, reverse=True)
        made = [b"%d" % next(counter) * (1 if small else 40_000) for _, _, small in step]
        y = [len(record) if small else None for record, (_, _, small) in zip(made, step, strict=True)]
        z = [str(record[:9]) for record in made]
        samples, numbers = [k for k, _, _ in step], [schemas.index(schema) for _, schema, _ in step]
        archive.chunk(samples, made, schemas, numbers, pa.table({"y": y, "z": z}))
        self.length = max(self.length, *[k + 1 for k in samples])
        for row, k in enumerate(samples):
            self.records[k] = made[row], step[row][1]
            for name, values in (("y", y), ("z", z)):
                if name in self.columns:
                    self.columns[name][k] = values[row]

    def table(self):
        values = {name: [column.get(k) for k in range(self.length)] for name, column in self.columns.items()}
        return pa.table({name: pa.array(column, LABELS[name]) for name, column in values.items()})

    def seal(self, archive, schemas, changes, drops):
        """Add a root over everything so far, with labels changed and added, and perhaps one dropped."""
        if drops and "z" in self.columns:
            del self.columns["z"]
            self.dropped = ["z"]
        self.columns["y"] |= {k: value % 1000 for k, value in changes.items() if k < self.length}
        self.columns["new"] = self.columns.get("new", {}) | {k: k for k in changes if k < self.length}
        rows, found = np.zeros(self.length, ROW), offsets(archive)
        for k, (record, schema) in self.records.items():
            number = schemas.index(schema)
            crc = records.crc32(records.block_crc32s(record) or record)
            rows[k] = found[k], len(record), crc, number, PRESENT
        return archive.seal(rows, schemas, self.table(), ["new"], self.dropped)


def offsets(archive):
    """Where the newest record of each sample lies, by the tables of chunks."""
    found = {}
    for header in archive.headers:
        if header.kind == format.CHUNK:
            table = format.read_table(archive.pread, header, "a.zip")
            found |= zip(table.samples.tolist(), table.rows["offset"].tolist(), strict=True)
    return found


def contents_of(archive, reads=None, **options):
    chain = archive.chain()
    assert chain.cursor == archive.cursor

    def table_of(header):
        if reads is not None:
            reads.append(header)
        return format.read_table(archive.pread, header, "a.zip")

    return contents.Contents(chain, archive.pread, table_of, **options)


def check(archive, merged, **options):
    """Compare contents, window by window, with the dicts."""
    reads = []
    found = contents_of(archive, reads, **options)
    assert (found.length, len(found.held())) == (merged.length, len(merged.records))
    windows = list(found.windows())
    assert all(stop - start <= 5 for start, stop in windows)
    rows = np.concatenate([np.zeros(0, ROW), *(found.rows(*window) for window in windows)])
    assert len(rows) == merged.length
    for k, (offset, nbytes, crc, schema, flags) in enumerate(rows.tolist()):
        if k not in merged.records:
            assert not any(rows[k].item())
            continue
        record = archive.pread(offset, nbytes)
        assert (record, found.schemas[schema]) == merged.records[k]
        assert (crc, flags) == (records.crc32(records.block_crc32s(record) or record), PRESENT)
    if options.get("of_chunks"):  # changes of labels are of the root
        return reads
    table = merged.table()
    assert found.schema.names == table.column_names
    for name in table.column_names:
        pieces = [found.column(name, *window).to_pylist() for window in windows]
        assert list(itertools.chain(*pieces)) == table[name].to_pylist()
    assert found.table().to_pydict() == table.to_pydict()
    return reads


@settings(max_examples=scaled(200, 30))
@given(st.lists(st.one_of(chunk_step, chunk_step, seal_step), max_size=8))
def test_chunks_merge_over_a_root_in_the_order_of_the_chain(steps):
    archive, merged, counter = Archive(["y", "z"]), Merged(), itertools.count(1)
    for step in steps:
        merged.seal(archive, *step) if type(step) is tuple else merged.chunk(archive, step, counter)
    check(archive, merged)
    check(archive, merged, checks_index=False)
    check(archive, merged, of_chunks=True)


def test_tables_are_read_again_for_each_window_if_they_are_many():
    archive, merged, counter = Archive(["y", "z"]), Merged(), itertools.count(1)
    for start in range(0, 25, 5):
        merged.chunk(archive, [(start + k, "a", True) for k in range(5)], counter)
    assert len(check(archive, merged)) > 5


def test_a_damaged_index_is_refused_unless_it_is_read_row_by_row_or_chunks_are_asked():
    archive, merged = Archive(["y", "z"]), Merged()
    merged.chunk(archive, [(0, "a", True), (3, "b", True)], itertools.count(1))
    root = merged.seal(archive, SCHEMAS, {}, False)
    archive.data[root.index.offset] ^= 1
    with pytest.raises(CorruptArchiveError, match=r"a.zip: index.rows at offset [\d,]+ fails its crc32"):
        check(archive, merged)
    check(archive, merged, of_chunks=True)
    found = contents_of(archive, checks_index=False)
    first, last = found.rows(0, 1), found.rows(3, 4)
    assert not records.are_sound(first, memoryview(archive.data)).any()
    assert records.are_sound(last, memoryview(archive.data)).all()


# --- the types of a column over many chunks ---


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("between", [0, 3])
@pytest.mark.parametrize(("integer", "is_refused"), [(2**53, False), (2**53 + 1, True), (-(2**53) - 1, True)])
def test_integers_that_were_published_become_floats_if_each_is_exact(
    tmp_path, integer, is_refused, between, is_sealed
):
    path = tmp_path / "a.zip"
    w = CacheWriter(path, in_memory_keys=["y"], chunk_size=1)
    w.append({"y": integer})
    w.close() if is_sealed else w.abort()
    for k in range(between):
        w = CacheWriter(path, "a", chunk_size=1)
        w.append({"y": k})
        w.abort()
    w = CacheWriter(path, "a", chunk_size=1)
    if is_refused:
        with pytest.raises(LabelError, match=f'label "y" is double and has the integer {integer}'):
            w.append({"y": 0.5})
        w.abort()
        write(path, [{"y": 7}], "a")
    else:
        with w:
            w.append({"y": 0.5})
    added = [*range(between), 7 if is_refused else 0.5]
    values = CachedDataset.from_cache(path).labels["y"]
    assert values.dtype == ("int64" if is_refused else "float64")
    assert values.tolist() == [integer, *added]


def test_processes_that_do_not_know_of_each_other_widen_one_column(tmp_path):
    path = tmp_path / "a.zip"
    writers = [CacheWriter(path, "a", in_memory_keys=["y"], chunk_size=1) for _ in range(4)]
    for number, (w, value) in enumerate(zip(writers[:3], [np.int8(1), np.float32(0.5), 3], strict=True)):
        w.write(number, {"y": value})
    with pytest.raises(LabelError, match='label "y" is double in one chunk and string in another'):
        writers[3].write(3, {"y": "text"})
    for w in writers:
        w.abort()
    write(path, [{"y": 2**40}], "a")
    assert CachedDataset.from_cache(path).labels["y"].tolist() == [1.0, 0.5, 3.0, 2.0**40]


def test_a_seal_parses_the_labels_of_a_chunk_once_for_all_columns(tmp_path, monkeypatch):
    names = [f"k{number}" for number in range(30)]
    w = CacheWriter(tmp_path / "a.zip", in_memory_keys=names, chunk_size=2)
    w.extend(dict.fromkeys(names, index) for index in range(10))
    w.flush()
    parsed = []
    read = records.read_stream
    monkeypatch.setattr(contents, "_MOST_KEPT_NBYTES", 1 << 26)
    monkeypatch.setattr(records, "read_stream", lambda data, rows: parsed.append(rows) or read(data, rows))
    w.close()
    assert len(parsed) == 5


@pytest.mark.parametrize("size", [1, 8, 64, 792])
def test_a_turned_bit_of_a_sum_and_one_of_a_record_do_not_cancel(size):
    """The bits of a sum weigh as much as the bits behind its record, which are no record's."""
    count, step = 100, -(-size // 8) * 8
    data = np.random.default_rng(size).integers(0, 256, count * step, np.uint8)
    rows = np.zeros(count, ROW)
    rows["offset"], rows["nbytes"], rows["flags"] = np.arange(count) * step, size, 1
    rows["crc32"] = [zlib.crc32(data[at : at + size]) for at in rows["offset"].tolist()]
    assert records.are_sound(rows, data.data).all()
    for row, other in [(40, 41), (41, 40), (40, 42), (99, 0)]:
        for bit in range(32):
            rows["crc32"][row] ^= 1 << bit
            for turned in range(min(8 * size, 64)):
                at, mask = other * step + turned // 8, 1 << turned % 8
                data[at] ^= mask
                assert np.flatnonzero(~records.are_sound(rows, data.data)).tolist() == sorted({row, other})
                data[at] ^= mask
            rows["crc32"][row] ^= 1 << bit
