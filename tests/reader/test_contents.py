"""The chain and what it amounts to: the later record wins, gaps stay gaps, damaged tables say where."""

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import scaled

from edcache import CacheWriter, format
from edcache.errors import CorruptArchiveError
from edcache.format import chunk_tables
from edcache.format.chain import Chain, payload_crc, read_table
from edcache.reader import Reader
from edcache.storage.file import File


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.zip"


def write(path, indices, chunk_size=3, seal=True):
    """Sample i of the n-th write says n; its label is 10 n."""
    writer = CacheWriter(path, "a", in_memory_keys={"y": 1}, chunk_size=chunk_size, publish_seconds=None)
    for n, index in enumerate(indices):
        writer.write(index, (n, 10 * n))
    writer.close() if seal else writer.abort()


def chain_of(file):
    head, cursor = format.read_head(file.pread, file.path)
    return Chain(head, cursor, file.path)


def whole_chain(path):
    file = File.open(path, "r")
    chain = chain_of(file)
    chain.extend(file.pread, file.size())
    return file, chain


def contents_of(path):
    file, chain = whole_chain(path)
    return chain.contents(lambda header: read_table(file.pread, header, file.path))


def rows_of(contents):
    index = contents.index.records.index
    indices = range(contents.index.length) if index is None else index.tolist()
    return dict(zip(indices, contents.labels["y"].to_pylist(), strict=True))


@settings(max_examples=40)
@given(
    indices=st.lists(st.integers(0, 12), min_size=1, max_size=25),
    chunk_size=st.integers(1, 6),
    seal=st.booleans(),
)
def test_of_two_records_of_one_index_the_later_counts(tmp_path_factory, indices, chunk_size, seal):
    path = tmp_path_factory.mktemp("later") / "a.zip"
    write(path, indices, chunk_size, seal)
    contents = contents_of(path)
    expected = {index: 10 * n for n, index in enumerate(indices)}
    assert rows_of(contents) == dict(sorted(expected.items()))
    assert contents.index.length == max(indices) + 1
    assert (contents.index.records.index is None) == (len(expected) == max(indices) + 1)


def test_a_chain_walked_in_steps_is_the_chain_walked_at_once(path):
    write(path, range(8))
    write(path, [3, 8, 20])
    file, whole = whole_chain(path)
    ends = [whole.entries[0].offset, *(header.next for header in whole.entries), file.size()]
    chain = chain_of(file)
    for end in sorted(ends):
        chain.extend(file.pread, end)
    assert chain.cursor == whole.cursor
    assert [header.seq for header in chain.chunks] == [0, 1, 2, 5]
    assert (chain.chunks, chain.entries, chain.seal) == (whole.chunks, whole.entries, whole.seal)
    assert (chain.end_index, chain.length, chain.lost) == (21, None, set())


def test_a_chunk_after_a_seal_unseals(path):
    write(path, range(3))
    assert whole_chain(path)[1].seal is not None
    write(path, [3], seal=False)
    assert whole_chain(path)[1].seal is None


def test_records_lie_where_the_contents_say(path):
    write(path, [2, 0, 2, 5])
    file, _ = whole_chain(path)
    records = contents_of(path).index.records
    assert records.index.tolist() == [0, 2, 5]
    for offset, nbytes, crc in zip(records.offset, records.nbytes, records.crc32, strict=True):
        assert format.crc32(file.pread(int(offset), int(nbytes))) == int(crc)


def test_a_table_that_reads_as_none_leaves_its_samples_out(path):
    write(path, range(9))
    file, chain = whole_chain(path)
    contents = chain.contents(lambda h: None if h.seq == 1 else read_table(file.pread, h, file.path))
    assert rows_of(contents) == {0: 0, 1: 10, 2: 20, 6: 60, 7: 70, 8: 80}
    assert contents.index.length == 9


def test_a_chain_without_chunks_has_no_rows_and_the_heads_labels(path):
    write(path, [])
    contents = contents_of(path)
    assert (contents.index.length, contents.index.records.index) == (0, None)
    assert (contents.labels.column_names, contents.labels.num_rows) == (["y"], 0)


def test_a_damaged_table_names_chunk_and_offset(path):
    write(path, range(6))
    _, chain = whole_chain(path)
    chunk = chain.chunks[1]
    data = bytearray(path.read_bytes())
    data[chunk.payload_offset + 100] ^= 1
    path.write_bytes(data)
    text = rf"a\.zip: chunk 1 at offset {chunk.offset:,}: its table fails its crc32; run \"edcache verify"
    with pytest.raises(CorruptArchiveError, match=text):
        contents_of(path)


@pytest.mark.parametrize("byte", ["first", "middle", "last"])
def test_payload_crc_covers_every_byte_of_a_payload(path, byte):
    write(path, range(6))
    file, chain = whole_chain(path)
    chunk = chain.chunks[0]
    assert payload_crc(file.pread, chunk) == chunk.payload_crc
    place = {
        "first": chunk.payload_offset,
        "middle": (chunk.payload_offset + chunk.payload_end) // 2,
        "last": chunk.payload_end - 1,
    }[byte]
    data = bytearray(path.read_bytes())
    data[place] ^= 128
    path.write_bytes(data)
    assert payload_crc(file.pread, chunk) != chunk.payload_crc


def test_a_payload_cut_short_fails_its_crc(path):
    write(path, range(6))
    file, chain = whole_chain(path)
    chunk = chain.chunks[1]
    assert payload_crc(lambda offset, n: file.pread(offset, n)[:1000], chunk) == chunk.payload_crc
    cut = chunk.payload_end - 1
    assert payload_crc(lambda offset, n: file.pread(offset, min(n, cut - offset)), chunk) != chunk.payload_crc


def test_only_entries_behind_the_last_sync_are_looked_at_for_losses(path):
    write(path, range(6), seal=False)
    file, chain = whole_chain(path)
    data = bytearray(path.read_bytes())
    data[chain.chunks[0].payload_end - 1] ^= 1
    path.write_bytes(data)
    assert chain.find_lost(file.pread) == {0}
    chain.durable = chain.chunks[0].payload_end
    assert chain.find_lost(file.pread) == set()


def test_offsets_count_from_the_start_of_the_file(path):
    write(path, range(6), chunk_size=2)
    _, chain = whole_chain(path)
    offsets = contents_of(path).index.records.offset
    assert offsets.dtype == np.uint64
    starts = [header.records_offset for header in chain.chunks]
    assert [int(offsets[i]) for i in (0, 2, 4)] == starts


@settings(max_examples=40)
@given(
    indices=st.lists(st.integers(0, 12), min_size=1, max_size=25),
    chunk_size=st.integers(1, 6),
    part_rows=st.integers(1, 8),
)
def test_parts_rise_however_chunks_overlap(tmp_path_factory, indices, chunk_size, part_rows):
    path = tmp_path_factory.mktemp("parts") / "a.zip"
    write(path, indices, chunk_size, seal=False)
    file, chain = whole_chain(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_tables, "_PART_ROWS", part_rows)
        patch.setattr(chunk_tables, "_MOST_KEPT_NBYTES", 0)
        merged = chain.merged(lambda header: read_table(file.pread, header, file.path))
        for _ in range(2):
            samples, labels = [], []
            for records, table in merged.parts():
                samples += records.samples.tolist()
                labels += table["y"].to_pylist()
            expected = {index: 10 * n for n, index in enumerate(indices)}
            assert dict(zip(samples, labels, strict=True)) == expected
            assert samples == sorted(expected)
            assert merged.rows == len(expected)


SAMPLES = [
    lambda n: {"x": n, "y": n},
    lambda n: {"x": float(n), "y": n / 2},
    lambda n: {"x": f"{n}", "y": None},
    lambda n: {"x": [n] * n, "y": -n, "z": n},
]


@settings(max_examples=scaled(150, 40))
@given(
    chunks=st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.sampled_from(SAMPLES)), min_size=1, max_size=6), max_size=8
    ),
    compression=st.sampled_from([None, "zstd"]),
)
def test_a_reader_that_follows_has_what_one_has_that_opens_now(tmp_path_factory, chunks, compression):
    """What was merged before is not read again, and comes to the same: rows, schemas, types, failures."""
    path = tmp_path_factory.mktemp("follows") / "a.zip"
    options = {"in_memory_keys": ["y"], "compression": compression, "publish_seconds": None}
    with closing(Follower(path, options)) as follower:
        for k, chunk in enumerate(chunks):
            writer = CacheWriter(path, "a", **options)
            for n, (index, make) in enumerate(chunk):
                writer.write(index, make(n + k))
            writer.flush()
            writer.abort()
            follower.check()


class Follower:
    """A reader that is refreshed, and compared with a new one."""

    def __init__(self, path, options):
        CacheWriter(path, **options).abort()
        self.path, self.reader = path, Reader(path, allow_partial=True)
        assert len(self.reader) == 0

    def check(self):
        assert self.reader.refresh()
        with closing(Reader(self.path, allow_partial=True)) as fresh:
            ours, theirs = (reader.session._contents for reader in (self.reader, fresh))
            for name, column in theirs.index.records.columns().items():
                assert np.array_equal(getattr(ours.index.records, name), column), name
            assert ours.index.records.columns().keys() == theirs.index.records.columns().keys()
            assert np.array_equal(ours.index.blocks, theirs.index.blocks)
            same = ("length", "schemas", "failures")
            assert [getattr(ours.index, n) for n in same] == [getattr(theirs.index, n) for n in same]
            assert ours.labels.equals(theirs.labels)

    def close(self):
        self.reader.close()
