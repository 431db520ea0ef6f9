"""Where records lie: the rows of an index in memory, or fetched, against a plain list."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edcache import CacheWriter, format
from edcache.errors import CorruptArchiveError
from edcache.format import PRESENT, ROW, Place
from edcache.reader import Reader, index
from edcache.reader.index import RecordIndex

START = 4096 + 64


@pytest.fixture(autouse=True, scope="module")
def small_runs():
    """Runs of four rows, and an index of more than three runs is not fetched at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_RUN_BITS", 2)
        patch.setattr(index, "_SMALL_NBYTES", 3 * 4 * ROW.itemsize)
        yield


@st.composite
def tables(draw):
    """Rows as archives have them, dense or with absent samples, of one schema and size or of any."""
    length = draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    rows = np.zeros(length, ROW)
    rows["offset"] = rng.integers(0, 1 << 40, length)
    rows["nbytes"] = rng.integers(0, 1 << 33, length) if draw(st.booleans()) else 24
    rows["crc32"] = rng.integers(0, 1 << 32, length)
    rows["schema"] = rng.integers(0, 1 << 16, length) if draw(st.booleans()) else 3
    rows["flags"] = PRESENT
    if draw(st.booleans()):
        rows[rng.random(length) < 0.3] = 0
    return rows


class Far:
    """The rows in a file that is read by request."""

    def __init__(self, rows):
        self.data, self.asked = memoryview(bytes(START) + rows.tobytes() + b"behind"), []

    def fetch(self, extents, checks=None):
        self.asked += extents
        assert all(at >= START and at + nbytes <= len(self.data) - 6 for at, nbytes in extents)
        return [self.data[at : at + nbytes] for at, nbytes in extents]


def opened(rows, *, is_near, present=None, far=None):
    far = far or Far(rows)
    count = int((rows["flags"] & PRESENT).sum()) if present is None else present
    alike, sizes = set(rows["schema"].tolist()), rows["nbytes"].tolist()
    is_uniform = len(alike) == 1 and count == len(rows)
    uniform = (alike.pop(), min(sizes), max(sizes)) if is_uniform else None
    near = rows if is_near else None
    place = Place(START, rows.nbytes, 0)
    return RecordIndex(near, len(rows), count, ["a"], [], uniform, place=place, fetch=far.fetch)


@given(tables(), st.booleans(), st.data())
def test_an_index_says_what_a_list_says(rows, is_near, data):
    found, listed = opened(rows, is_near=is_near), rows.tolist()
    there = [row[4] == PRESENT for row in listed]
    for _ in range(3):
        asked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if listed else []
        indices = np.array(asked, np.int64)
        wanted = [listed[k] for k in asked]
        assert found.rows(indices).tolist() == wanted
        assert found.offsets(indices).tolist() == [row[0] for row in wanted]
        assert found.sizes(indices).tolist() == [row[1] for row in wanted]
        assert found.are_present(indices).tolist() == [there[k] for k in asked]
        assert [found.row(k) for k in asked] == wanted
        assert [found.has(k) for k in asked] == [there[k] for k in asked]
    assert found.all_rows().tolist() == listed
    assert found.is_dense == all(there)
    assert found.held().tolist() == np.flatnonzero(there).tolist()
    assert found.missing().tolist() == np.flatnonzero(~np.array(there, bool)).tolist()


def test_rows_are_fetched_together_once_and_no_others():
    rows = np.zeros(40, ROW)
    rows["offset"], rows["flags"] = np.arange(40), PRESENT
    far = Far(rows)
    found = opened(rows, is_near=False, far=far)
    assert found.offsets(np.array([9, 38, 8, 9])).tolist() == [9, 38, 8, 9]
    run = 4 * ROW.itemsize
    assert far.asked == [(START + 2 * run, run), (START + 9 * run, run)]
    assert found.offsets(np.array([10, 39])).tolist() == [10, 39]
    assert found.row(37)[0] == 37
    assert len(far.asked) == 2


def test_the_rows_of_a_small_archive_are_fetched_at_once():
    rows = np.zeros(10, ROW)
    rows["flags"] = PRESENT
    far = Far(rows)
    found = opened(rows, is_near=False, far=far)
    found.row(7)
    assert sum(nbytes for _, nbytes in far.asked) == rows.nbytes
    asked = len(far.asked)
    found.rows(np.arange(10))
    assert len(far.asked) == asked


def test_fetched_rows_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(index, "_MOST_KEPT_NBYTES", 5 * 4 * ROW.itemsize)
    rows = np.zeros(800, ROW)
    rows["offset"] = 24 * np.arange(800)
    far = Far(rows)
    found = opened(rows, is_near=False, far=far)
    for k in np.random.default_rng(0).permutation(800).tolist():
        assert found.row(k)[0] == 24 * k
        assert found.nbytes <= 5 * 4 * ROW.itemsize
    # A batch larger than that is held as long as it is read.
    assert found.offsets(np.arange(800)).tolist() == rows["offset"].tolist()


def test_an_index_that_lacks_records_that_its_root_counts_is_damaged():
    rows = np.zeros(9, ROW)
    rows["flags"][:5] = PRESENT
    with pytest.raises(
        CorruptArchiveError, match=r"index.rows has 5 samples with a record, root.json says 7"
    ):
        opened(rows, is_near=True, present=7).held()


def test_a_sealed_and_an_unsealed_archive_have_the_same_rows(tmp_path):
    writer = CacheWriter(tmp_path / "a.zip", chunk_size=3, publish_seconds=None)
    for n, k in enumerate([7, 2, 0, 2, 5, 1]):
        writer.write(k, {"x": "a" * n})
    writer.flush()
    unsealed = Reader(tmp_path / "a.zip", allow_partial=True)
    assert not unsealed.session.sealed
    writer.close()
    sealed = Reader(tmp_path / "a.zip", allow_partial=True)
    assert sealed.session.sealed
    held = [0, 1, 2, 5, 7]
    of_unsealed, of_sealed = unsealed.session.index, sealed.session.index
    samples = np.arange(8)
    unbound = of_sealed.unbound_rows(samples)
    assert of_unsealed.unbound_rows(samples).tolist() == unbound.tolist()
    for found in (of_unsealed, of_sealed):
        rows = [found.row(k) for k in samples.tolist()]
        assert found.rows(samples).tolist() == rows
        crcs = [found.crc32_of(k, row) for k, row in enumerate(rows)]
        assert [c for c, row in zip(crcs, rows, strict=True) if row[4]] == unbound["crc32"][held].tolist()
    # In the file they are bound to where they stand.
    place = of_sealed.place
    stored = np.frombuffer((tmp_path / "a.zip").read_bytes()[place.offset :][: place.nbytes], ROW)
    assert np.array_equal(sealed.session.index.all_rows(), stored)
    salt = format.salt(sealed.session.head.uuid, place.offset)
    assert np.array_equal(format.bound(samples, unbound, salt), stored)
    assert unsealed.session.index.held().tolist() == sealed.session.index.held().tolist() == held


def test_threads_that_let_go_of_each_others_rows_get_their_own(monkeypatch):
    monkeypatch.setattr(index, "_MOST_KEPT_NBYTES", 4 * ROW.itemsize)
    rows = np.zeros(400, ROW)
    rows["offset"] = 24 * np.arange(400)
    found = opened(rows, is_near=False)

    def read(seed):
        order = np.random.default_rng(seed).permutation(400)
        return all(
            found.offsets(order[k : k + 2]).tolist() == (24 * order[k : k + 2]).tolist() for k in range(399)
        )

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(read, range(8)))
    finally:
        sys.setswitchinterval(before)
