"""Damage is met where it lies and nowhere else: each record has a sum, a large one a sum of each block."""

import functools
import random
from itertools import pairwise

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import same
from scale import scaled
from systems import WAYS, in_threads, reading_by
from torch.utils.data import default_collate

from edcache import CachedDataset, CacheWriter, verify
from edcache.errors import CorruptRecordError, MissingSampleError
from edcache.format import BLOCK_NBYTES as BLOCK
from edcache.format import stored_ends
from edcache.format.records import records_offset

# --- archives ---------------------------------------------------------------------------------------


def noise(k, nbytes):
    return torch.from_numpy(np.random.default_rng(k).integers(0, 256, nbytes, np.uint8))


def fixed(nbytes):
    return lambda k: {"x": noise(k, nbytes - 8), "label": k}


def varying(k):
    return {"x": noise(k, [0, 5, 700, 17_000, 70_000, 150_000][k % 6]), "label": k, "text": f"{k}" * (k % 4)}


def plainly(path, make, count, **options):
    with CacheWriter(path, "w", sync="never", publish_seconds=None, **options) as w:
        w.extend(map(make, range(count)))


def shuffled(path, make, count, chunk_size):
    """Some samples are missing, and those that are there lie in another order than their indices."""
    order = [k for k in range(count) if k % 7 != 3]
    random.Random(1).shuffle(order)
    with CacheWriter(path, "w", sync="never", publish_seconds=None, chunk_size=chunk_size) as w:
        for k in order:
            w.write(k, make(k))


def grown(path, make, count, chunk_size):
    half = count // 2
    with CacheWriter(path, "w", sync="never", publish_seconds=None, chunk_size=chunk_size) as w:
        w.extend(map(make, range(half)))
    with CacheWriter(path, "a", sync="never", publish_seconds=None, chunk_size=chunk_size) as w:
        w.extend(map(make, range(half, count)))


ARCHIVES = {
    "tiny": (fixed(24), 300, lambda *a: plainly(*a, chunk_size=220)),
    "small": (fixed(800), 120, lambda *a: plainly(*a, chunk_size=50)),
    "medium": (fixed(20_000), 16, lambda *a: plainly(*a, chunk_size=6)),
    "large": (fixed(200_000), 5, lambda *a: plainly(*a, chunk_size=3)),
    "varying": (varying, 25, lambda *a: plainly(*a, chunk_size=9)),
    "shuffled": (fixed(600), 90, lambda *a: shuffled(*a, chunk_size=40)),
    "grown": (fixed(900), 60, lambda *a: grown(*a, chunk_size=25)),
    "zstd": (fixed(900), 60, lambda *a: plainly(*a, chunk_size=25, compression="zstd")),
}


class Archive:
    """A file with its samples, and where everything in it lies."""

    def __init__(self, path, make, count, write):
        write(path, make, count)
        self.path = path
        with CachedDataset.from_cache(path) as ds:
            reader = ds._archive.reader
            indices, rows = (
                reader.session.index.held().tolist(),
                reader.session.index.all_rows()[reader.session.index.held()],
            )
            extents = zip(rows["offset"].tolist(), stored_ends(rows).tolist(), strict=True)
            self.extents = dict(zip(indices, extents, strict=True))
            self.chunks = reader.session.chain.chunks
            self.root = reader.session.chain.root
        self.samples = {k: make(k) for k in self.extents}
        self.indices = list(self.samples)

    def regions(self):
        """Half-open extents of bytes that no record has, by their kind."""
        ends = sorted(self.extents.values())
        found = {"header": [], "table": [], "padding": [], "behind": []}
        for chunk in self.chunks:
            inside = [extent for extent in ends if chunk.offset < extent[0] < chunk.next]
            found["header"].append((chunk.offset, chunk.payload_offset))
            found["table"].append((chunk.payload_offset, chunk.payload_offset + chunk.table_nbytes))
            found["padding"] += [(e, s) for (_, e), (s, _) in pairwise(inside)]
            found["padding"].append((chunk.payload_offset + chunk.table_nbytes, records_offset(chunk)))
            found["behind"].append((inside[-1][1], chunk.next))
        return {name: [e for e in extents if e[0] < e[1]] for name, extents in found.items()}

    def damaged(self, offsets):
        """The records that have one of the bytes."""
        return {k for k, (start, end) in self.extents.items() if any(start <= o < end for o in offsets)}


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    directory = tmp_path_factory.mktemp("blocks")
    made = {}

    def get(name):
        if name not in made:
            made[name] = Archive(directory / f"{name}.zip", *ARCHIVES[name])
        return made[name]

    return get


class flipped:
    """Bits of some bytes of a file are turned while the block runs."""

    def __init__(self, path, offsets, mask=0x10):
        self.path, self.offsets, self.mask = path, sorted(set(offsets)), mask

    def __enter__(self):
        self._turn()

    def __exit__(self, *_):
        self._turn()

    def _turn(self):
        with open(self.path, "r+b") as file:
            for offset in self.offsets:
                file.seek(offset)
                byte = file.read(1)[0]
                file.seek(offset)
                file.write(bytes([byte ^ self.mask]))


# --- what a read may give ---------------------------------------------------------------------------


def wrong(read, wanted, asked, damaged):
    """Why a read was wrong: it gives what was written, or names a record that is asked for and damaged."""
    try:
        found = read()
    except CorruptRecordError as error:
        if f"record {error.index} at offset" not in str(error):
            return f"no record is named: {error}"
        is_right = error.index in damaged & set(asked)
        return "" if is_right else f"named {error.index}, damaged are {damaged}"
    if damaged & set(asked):
        return f"{asked}: nothing was raised"
    return "" if same(found, wanted) else f"{asked}: other values"


def collated(samples):
    try:
        return default_collate(samples)
    except RuntimeError:
        return None


def reading(archive, ds, indices, is_batch):
    """A read and what it should give; where samples do not stack the batch is read as a list."""
    wanted = [archive.samples[k] for k in indices]
    if not is_batch:
        return (lambda: ds[indices[0]]), wanted[0], indices[:1]
    stacked = collated(wanted)
    if stacked is None:
        return (lambda: list(ds.__getitems__(indices))), wanted, indices
    return (lambda: ds.batch(indices)), stacked, indices


def corners(start, end, rng, more=2):
    """The first and the last byte of an extent, those around the borders of blocks of it, and some others."""
    around = {
        start,
        end - 1,
        start + (end - start) // 2,
        *(start + BLOCK * n + d for n in (1, 2) for d in (-1, 0)),
    }
    around |= {rng.randrange(start, end) for _ in range(more)}
    return sorted(offset for offset in around if start <= offset < end)


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_damaged_header_hides_no_sample_and_verify_names_it(archives, name):
    archive, rng = archives(name), random.Random(name)
    start, end = rng.choice(archive.regions()["header"])
    with flipped(archive.path, [rng.randrange(start, end)]):
        ds = CachedDataset.from_cache(archive.path)
        assert all(same(ds[k], archive.samples[k]) for k in archive.indices)
        assert "no entry fits at offset" in str(verify(archive.path).problems)


# --- damaged bytes ----------------------------------------------------------------------------------


@settings(max_examples=scaled(150, 40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_met_only_where_it_lies(archives, data):
    archive = archives(data.draw(st.sampled_from(sorted(ARCHIVES))))
    verify, way = data.draw(st.sampled_from(["touch", "always"])), data.draw(st.sampled_from(WAYS))
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    records = [archive.extents[rng.choice(archive.indices)] for _ in range(rng.randrange(4))]
    others = [
        rng.choice(extents)
        for region, extents in archive.regions().items()
        if extents and region != "header" and rng.random() < 0.3
    ]
    offsets = [rng.choice(corners(*extent, rng)) for extent in records + others if extent[0] < extent[1]]
    damaged = archive.damaged(offsets)
    with flipped(archive.path, offsets), reading_by(way):
        ds = CachedDataset.from_cache(archive.path, verify=verify)
        selection = ds.select("label", "x")
        for _ in range(rng.randrange(1, 12)):
            view = rng.choice([ds, ds, selection, ds[:]])
            indices = [rng.choice(archive.indices) for _ in range(rng.randrange(1, 20))]
            read, wanted, asked = reading(archive, view, indices, rng.random() < 0.6)
            if view is selection:
                wanted = collated_selection(archive, indices, asked, wanted)
            why = wrong(read, wanted, asked, damaged)
            assert why == ""


def collated_selection(archive, indices, asked, wanted):
    def pick(sample):
        return {"label": sample["label"], "x": sample["x"]}

    if len(asked) == 1 and not isinstance(wanted, list):
        is_single = not isinstance(wanted["label"], torch.Tensor)
        return (
            pick(archive.samples[asked[0]])
            if is_single
            else default_collate([pick(archive.samples[asked[0]])])
        )
    picked = [pick(archive.samples[k]) for k in indices]
    stacked = collated(picked)
    return picked if stacked is None or isinstance(wanted, list) else stacked


def label_block(name):
    """Where in a record the block begins that has its last 8 bytes, the label."""
    return {"medium": 20_000 - 8, "large": 200_000 - 8}[name] // BLOCK * BLOCK


@pytest.mark.parametrize("name", ["medium", "large"])
def test_a_small_field_is_checked_with_its_block_alone(archives, name):
    archive, rng = archives(name), random.Random(name)
    start, end = archive.extents[2]
    for offset in corners(start, end, rng, 6):
        with flipped(archive.path, [offset]):
            ds = CachedDataset.from_cache(archive.path).select("label")
            damaged = {2} if offset - start >= label_block(name) else set()
            assert wrong(lambda ds=ds: ds[2], {"label": 2}, [2], damaged) == ""
            batch = {"label": torch.tensor([2, 1])}
            assert wrong(lambda ds=ds: ds.batch([2, 1]), batch, [2, 1], damaged) == ""
            assert ds[1] == {"label": 1}
            with pytest.raises(CorruptRecordError, match="record 2 at offset"):
                CachedDataset.from_cache(archive.path)[2]


@pytest.mark.parametrize("name", ["medium", "large", "varying"])
def test_what_is_fetched_by_request_is_checked_as_it_comes(archives, name):
    archive, rng = archives(name), random.Random(name)
    k = max(archive.indices, key=lambda k: archive.extents[k][1] - archive.extents[k][0])
    start, end = archive.extents[k]
    far = fsspec.filesystem("memory")
    for offset in corners(start, end, rng):
        with flipped(archive.path, [offset]):
            far.pipe_file("/blocks/a.zip", archive.path.read_bytes())
        ds = CachedDataset.from_cache("memory://blocks/a.zip", local=False)
        for indices in ([k], rng.sample(archive.indices, 4), [k, *rng.sample(archive.indices, 2)]):
            for is_batch in (False, True):
                assert wrong(*reading(archive, ds, indices, is_batch), {k}) == ""
        ds.close()
        if name != "varying":
            # A batch without the rest of the record, and blocks of it alone.
            with CachedDataset.from_cache("memory://blocks/a.zip", local=False) as ds:
                labels, damaged = ds.select("label"), {k} if offset - start >= label_block(name) else set()
                assert wrong(lambda labels=labels: labels[k], {"label": k}, [k], damaged) == ""
                batch = {"label": torch.tensor([1, k])}
                assert wrong(lambda labels=labels: labels.batch([1, k]), batch, [1, k], damaged) == ""
    far.store.clear()


@pytest.mark.parametrize("name", ["small", "large", "varying", "shuffled", "zstd"])
def test_a_damaged_row_of_the_index_is_never_another_record(archives, name):
    """It fails the sum of its record, whichever of its bits is turned, or says that there is none."""
    archive, rng = archives(name), random.Random(name)
    for k in rng.sample(archive.indices, 3):
        other = next(other for other in archive.indices if other != k)
        for byte in range(24):
            place = archive.root.index.offset + 24 * k + byte
            with (
                flipped(archive.path, [place], 1 << rng.randrange(8)),
                CachedDataset.from_cache(archive.path) as ds,
            ):
                for indices in (k, [k], [k, k]):
                    read = ds.__getitem__ if indices is k else ds.batch
                    with pytest.raises((CorruptRecordError, MissingSampleError)) as raised:
                        read(indices)
                    assert raised.value.index == k
                assert same(ds[other], archive.samples[other])


def test_an_absent_sample_gets_no_record_by_a_turned_bit(archives):
    archive = archives("shuffled")
    absent = next(k for k in range(90) if k not in archive.extents)
    for byte in range(24):
        for bit in range(8):
            with (
                flipped(archive.path, [archive.root.index.offset + 24 * absent + byte], 1 << bit),
                CachedDataset.from_cache(archive.path) as ds,
                pytest.raises((CorruptRecordError, MissingSampleError)),
            ):
                ds[absent]


def test_a_record_that_was_replaced_is_not_looked_at(tmp_path):
    make = fixed(800)
    with CacheWriter(tmp_path / "a.zip", publish_seconds=None, chunk_size=10) as w:
        w.extend(make(k + 100) for k in range(30))
    old = (
        CachedDataset.from_cache(tmp_path / "a.zip")
        ._archive.reader.session.index.all_rows()["offset"]
        .tolist()
    )
    with CacheWriter(tmp_path / "a.zip", "a", publish_seconds=None) as w:
        for k in range(0, 30, 2):
            w.write(k, make(k))
    with flipped(tmp_path / "a.zip", [old[k] + 11 for k in range(0, 30, 2)]):
        ds = CachedDataset.from_cache(tmp_path / "a.zip")
        expected = [make(k if k % 2 == 0 else k + 100) for k in range(30)]
        assert same(list(ds), expected)
        assert same(CachedDataset.from_cache(tmp_path / "a.zip").batch(range(30)), default_collate(expected))


def test_an_unsealed_archive_is_checked_too(tmp_path):
    w = CacheWriter(tmp_path / "a.zip", publish_seconds=None, chunk_size=20)
    w.extend(map(fixed(800), range(50)))
    w.flush()
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    assert not ds._archive.reader.session.sealed
    start = int(ds._archive.reader.session.index.all_rows()["offset"][33])
    with flipped(tmp_path / "a.zip", [start + 100]):
        for ds in (CachedDataset.from_cache(tmp_path / "a.zip") for _ in range(2)):
            with pytest.raises(CorruptRecordError, match="record 33 at offset"):
                ds.batch([32, 33, 34])
            with pytest.raises(CorruptRecordError, match="record 33 at offset"):
                ds[33]
            assert same(ds[32], fixed(800)(32))
            w.extend([fixed(800)(len(ds))])
            w.flush()
            assert ds.refresh()
            with pytest.raises(CorruptRecordError, match="record 33 at offset"):
                ds[33]
    w.close()


# --- nothing is left --------------------------------------------------------------------------------


def is_done(ds):
    return ds._archive.reader.session.checks.is_done


def one_by_one(ds, indices):
    for k in indices:
        ds[k]


def batchwise(ds, indices):
    for start in range(0, len(indices), 16):
        list(ds.__getitems__(indices[start : start + 16]))


def with_two_threads(ds, indices):
    in_threads(*[functools.partial(one_by_one, ds, indices[n::2]) for n in range(2)])
    one_by_one(ds, indices)


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("read", [one_by_one, batchwise, with_two_threads])
def test_after_many_reads_nothing_is_left_to_check(archives, name, read):
    archive = archives(name)
    ds = CachedDataset.from_cache(archive.path)
    assert not is_done(ds)
    order = list(archive.indices)
    random.Random(name).shuffle(order)
    for _ in range(2):
        read(ds, order)
    assert is_done(ds)
    assert all(same(ds[k], archive.samples[k]) for k in order)


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_small_records_of_a_batch_are_checked_with_their_neighbours_in_memory(archives, name, monkeypatch):
    archive = archives(name)
    with flipped(archive.path, [archive.extents[5][0]]):
        ds = CachedDataset.from_cache(archive.path)
        for first in range(8, len(archive.indices), 8):
            ds.batch([first, first + 1])
        # What was checked is not checked again, and the damaged one is still found.
        sound = [archive.extents[k][0] for k in archive.indices if k != 5]
        with flipped(archive.path, sound):
            ds.batch([k for k in archive.indices if k != 5])
        with pytest.raises(CorruptRecordError, match="record 5 at offset"):
            ds.batch([4, 5])
    ds = CachedDataset.from_cache(archive.path)
    monkeypatch.setattr(type(ds._archive.reader.session.file), "are_cached", lambda *_: False)
    ds.batch([8, 9])
    with flipped(archive.path, [archive.extents[10][0]]), pytest.raises(CorruptRecordError):
        CachedDataset.from_cache(archive.path).batch([10])
    with flipped(archive.path, [archive.extents[10][0]]), pytest.raises(CorruptRecordError):
        ds.batch([10])


def test_many_blocks_are_done_only_when_all_were_read(tmp_path):
    # 24 MiB: the last 16 MiB are checked at once.
    with CacheWriter(tmp_path / "a.zip", sync="never", publish_seconds=None, chunk_size=100) as w:
        w.extend({"x": torch.full((40_000,), k % 256, dtype=torch.uint8)} for k in range(640))
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    ds.batch(range(100))
    assert not is_done(ds)
    for start in range(0, 640, 32):
        ds.batch(range(start, start + 32))
    assert is_done(ds)
    assert ds[600]["x"].tolist() == [600 % 256] * 40_000


def test_what_is_damaged_is_never_done(archives):
    archive = archives("small")
    with flipped(archive.path, [archive.extents[7][0]]):
        ds = CachedDataset.from_cache(archive.path)
        sound = [k for k in archive.indices if k != 7]
        for _ in range(3):
            one_by_one(ds, sound)
            batchwise(ds, sound)
        assert not is_done(ds)
        with pytest.raises(CorruptRecordError, match="record 7 at offset"):
            ds[7]


def test_damage_that_comes_after_all_was_checked_is_not_looked_for(archives):
    archive = archives("small")
    ds = CachedDataset.from_cache(archive.path)
    one_by_one(ds, archive.indices)
    assert is_done(ds)
    with flipped(archive.path, [archive.extents[7][0]]):
        assert ds[7]["label"] == 7
        with pytest.raises(CorruptRecordError, match="record 7 at offset"):
            CachedDataset.from_cache(archive.path, verify="always")[7]


def test_a_large_record_is_done_when_its_last_block_was_read(tmp_path):
    with CacheWriter(tmp_path / "a.zip", sync="never") as w:
        w.extend({"a": noise(k, 3 * BLOCK), "b": noise(k, 2 * BLOCK)} for k in range(3))
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    for field in ("a", "b"):
        view = ds.select(field)
        assert not is_done(ds)
        assert same(
            [view[0], *view.__getitems__([1, 2])], [{field: s[field]} for s in map(ds_sample, range(3))]
        )
    assert is_done(ds)
    assert ds._archive.reader.session.checks.nbytes < 100


def ds_sample(k):
    return {"a": noise(k, 3 * BLOCK), "b": noise(k, 2 * BLOCK)}
