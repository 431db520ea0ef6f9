"""The chain and what it amounts to: the later record wins, gaps stay gaps, damaged tables say where."""

from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import scaled

from edcache import CacheWriter, format
from edcache.format import PRESENT, Chain, Contents, contents
from edcache.reader import Reader
from edcache.storage.file import File


def write(path, indices, chunk_size=3, seal=True):
    """Sample i of the n-th write says n; its label is 10 n."""
    writer = CacheWriter(path, "a", in_memory_keys={"y": 1}, chunk_size=chunk_size, publish_seconds=None)
    for n, index in enumerate(indices):
        writer.write(index, (n, 10 * n))
    writer.close() if seal else writer.abort()


def chain_of(file):
    return Chain(*format.read_head(file.pread, file.path), file.path)


def whole_chain(path):
    file = File.open(path, "r")
    chain = chain_of(file)
    chain.extend(file.pread, file.size())
    return file, chain


def contents_of(path, left_out=()):
    file, chain = whole_chain(path)

    def table_of(header):
        return None if header.number in left_out else format.read_table(file.pread, header, file.path)

    return Contents(chain, file.pread, table_of)


def rows_of(found, *, step=1000):
    """The label of each sample that has a record."""
    values = {}
    for start in range(0, found.length, step):
        stop = min(start + step, found.length)
        rows = found.rows(start, stop)
        labels = found.column("y", start, stop).to_pylist()
        assert all(label is None for row, label in zip(rows, labels, strict=True) if not row["flags"])
        values |= {start + k: labels[k] for k in range(stop - start) if rows["flags"][k] & PRESENT}
    return values


@settings(max_examples=40)
@given(
    indices=st.lists(st.integers(0, 12), min_size=1, max_size=25),
    chunk_size=st.integers(1, 6),
    seal=st.booleans(),
)
def test_of_two_records_of_one_index_the_later_counts(tmp_path_factory, indices, chunk_size, seal):
    path = tmp_path_factory.mktemp("later") / "a.zip"
    write(path, indices, chunk_size, seal)
    expected = {index: 10 * n for n, index in enumerate(indices)}
    for step in (1000, 1, 5):
        found = contents_of(path)
        assert rows_of(found, step=step) == expected
        assert found.length == max(indices) + 1


def test_a_chain_walked_in_steps_is_the_chain_walked_at_once(path):
    write(path, range(8))
    write(path, [3, 8, 20])
    file, whole = whole_chain(path)
    chain = chain_of(file)
    ends = {header.next for header in [*whole.chunks, whole.root_header]} | {file.size()}
    for end in sorted(ends | {end - 1 for end in ends}):
        chain.extend(file.pread, end)
    assert chain.cursor == whole.cursor
    assert [header.end for header in chain.chunks] == [3, 6, 8, 21]
    assert (chain.chunks, chain.root, chain.sealed) == (whole.chunks, whole.root, True)
    assert (chain.end_index, chain.length, chain.end) == (21, None, file.size())


def test_a_chain_without_chunks_has_no_rows_and_the_heads_labels(path):
    write(path, [])
    found = contents_of(path)
    assert found.length == len(found.rows(0, 0)) == 0
    assert (found.table().column_names, found.table().num_rows) == (["y"], 0)


def test_a_payload_cut_short_fails_its_crc(path):
    write(path, range(6))
    file, chain = whole_chain(path)
    chunk = chain.chunks[1]
    assert (
        format.stored_crc32(lambda offset, n, is_sound=None: file.pread(offset, n)[:1000], chunk.payload)
        == chunk.crc32
    )
    cut = chunk.payload_end - 1
    assert (
        format.stored_crc32(
            lambda offset, n, is_sound=None: file.pread(offset, min(n, cut - offset)), chunk.payload
        )
        != chunk.crc32
    )


@settings(max_examples=40)
@given(
    indices=st.lists(st.integers(0, 12), min_size=1, max_size=25),
    more=st.lists(st.integers(0, 14), max_size=6),
    chunk_size=st.integers(1, 6),
    window=st.integers(1, 8),
)
def test_a_seal_in_windows_has_the_rows_and_labels_of_one_at_once(
    tmp_path_factory, indices, more, chunk_size, window
):
    folder = tmp_path_factory.mktemp("windows")
    found = []
    for name, size in (("a.zip", window), ("b.zip", 1 << 21)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contents, "WINDOW", size)
            patch.setattr(contents, "_MOST_KEPT_NBYTES", 0 if size == window else 1 << 26)
            write(folder / name, indices, chunk_size)
            write(folder / name, more, chunk_size)
        with closing(Reader(folder / name)) as reader:
            assert reader.session.sealed
            offset = (
                reader.session.index.all_rows()["offset"].argsort().argsort()
            )  # columns of several batches are longer
            others = reader.session.index.all_rows()[["nbytes", "schema", "flags"]].tolist()
            found.append((offset.tolist(), others, reader.session.labels.table["y"].to_pylist()))
            assert [reader.session.read(k)[1] for k in reader.session.index.held().tolist()] == [
                value for value in found[-1][2] if value is not None
            ]
    assert found[0] == found[1]


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
        assert self.reader.session.length == 0

    def check(self):
        assert self.reader.refresh()
        with closing(Reader(self.path, allow_partial=True)) as fresh:
            ours, theirs = self.reader.session, fresh.session
            assert self.reader.session.index.all_rows().tolist() == fresh.session.index.all_rows().tolist()
            same = ("length", "schemas", "failures")
            assert [getattr(ours.index, n) for n in same] == [getattr(theirs.index, n) for n in same]
            assert self.reader.session.labels.table.equals(fresh.session.labels.table)

    def close(self):
        self.reader.close()
