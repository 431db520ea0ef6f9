"""A file that is mapped and one that is read give the same; what they take, and keep of a file that goes."""

import errno
import gc
import os

import numpy as np
import pytest
import torch
from damage import flip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import outcome, same
from scale import scaled
from systems import WAYS, Refusing, System, reading_by, replace_system
from torch.utils.data import DataLoader, default_collate

import edcache
from edcache import CachedDataset, CacheWriter, storage
from edcache.dataset.indexing import batch_of
from edcache.errors import CorruptRecordError, StaleArchiveError

COUNT = 12


def everywhere(path, **options):
    datasets = []
    for way in WAYS:
        with reading_by(way):
            datasets.append(CachedDataset.from_cache(path, **options))
    return datasets


@pytest.fixture(params=WAYS)
def way(request):
    with reading_by(request.param):
        yield request.param


# --- the same results -------------------------------------------------------------------------------


def values(dtype, lengths):
    return lambda k: (torch.arange(lengths[k % len(lengths)] * 2) + k).reshape(-1, 2).to(dtype)


leaves = st.one_of(
    st.builds(
        values,
        st.sampled_from([torch.uint8, torch.bool, torch.bfloat16, torch.float64, torch.uint16]),
        st.lists(st.sampled_from([0, 1, 3, 50]), min_size=1, max_size=3),
    ),
    st.sampled_from(
        [
            lambda k: k,
            lambda k: "text" * k,
            lambda k: np.full((k % 3, 2), k, ">f4"),
            lambda k: np.full((3,), k, np.int16),
            lambda k: None,
            lambda k: [k] * 9,
            lambda k: k / 3 if k % 2 else None,
        ]
    ),
)
makers = st.one_of(
    leaves,
    st.lists(leaves, min_size=1, max_size=3).map(
        lambda parts: lambda k: {f"f{i}": p(k) for i, p in enumerate(parts)}
    ),
    st.lists(leaves, min_size=1, max_size=3).map(lambda parts: lambda k: tuple(p(k) for p in parts)),
)


def same_outcomes(found):
    first, *others = found
    return all(other[1] == first[1] and same(other[0], first[0]) for other in others)


@settings(max_examples=scaled(120, 30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    makers,
    st.lists(st.integers(-COUNT - 1, COUNT), min_size=1, max_size=6),
    st.sampled_from([None, "zstd"]),
    st.sampled_from(["sealed", "growing", "sparse"]),
    st.sampled_from(["touch", "always", "never"]),
)
def test_all_ways_give_the_same(tmp_path, make, indices, compression, state, verify):
    path = tmp_path / "a.zip"
    path.unlink(missing_ok=True)
    present = [k for k in range(COUNT) if state != "sparse" or k % 4]
    with CacheWriter(path, compression=compression, chunk_size=4) as w:
        for k in present[:6]:
            w.write(k, make(k))
        w.flush()
        datasets = everywhere(path, verify=verify)
        before = [outcome(lambda ds=ds: list(ds)) for ds in datasets]
        assert same_outcomes(before)
        for k in present[6:]:
            w.write(k, make(k))
        w.flush() if state == "growing" else w.close()
        for way, ds in zip(WAYS, datasets, strict=True):
            with reading_by(way):
                assert ds.refresh()
        for read in (
            lambda ds: [ds[i] for i in indices],
            lambda ds: ds.batch(indices),
            lambda ds: default_collate([batch_of(ds, indices)]),
            lambda ds: edcache.collate(as_list=[()])([batch_of(ds, indices)]),
            lambda ds: list(ds.__getitems__(indices)),
            lambda ds: list(ds.select("f0", "f1")[2:].__getitems__([0, 1])),
            lambda ds: ds.select("f0").batch(indices),
        ):
            assert same_outcomes([outcome(lambda ds=ds, read=read: read(ds)) for ds in datasets])
    inside = [i for i in indices if -len(datasets[0]) <= i < len(datasets[0])]
    wanted = [i % len(datasets[0]) for i in inside]
    if all(k in present for k in wanted):
        assert all(same([ds[i] for i in inside], [make(k) for k in wanted]) for ds in datasets)


def sample(k):
    return {"image": torch.full((64, 64), k % 256, dtype=torch.uint8), "ids": torch.arange(k % 5), "label": k}


def write(path, count=60, **options):
    with CacheWriter(path, "w", in_memory_keys=["label"], chunk_size=16, **options) as w:
        w.extend(map(sample, range(count)))
    return path


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.zip")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_what_is_read_is_the_callers_own(tmp_path, way, compression):
    ds = CachedDataset.from_cache(write(tmp_path / "a.zip", compression=compression))
    for made in (ds[7], ds.__getitems__([7])[0], ds.select("image")[7], ds.batch([7, 7])):
        made["image"].zero_()
    assert same(ds[7], sample(7))
    assert ds.batch([7])["image"].sum() == 7 * 64 * 64


# --- errors -----------------------------------------------------------------------------------------


def test_damage_that_comes_later_is_seen_where_records_are_read_again(path):
    with reading_by("pread"):
        pread = CachedDataset.from_cache(path)
    assert same(list(pread), [sample(k) for k in range(60)])
    flip(path, pread._archive.reader.session.index.all_rows()["offset"][17])
    with pytest.raises(CorruptRecordError, match="record 17"):
        pread[17]
    with pytest.raises(CorruptRecordError, match="record 17"):
        list(pread.__getitems__([17, 16]))


# --- memory -----------------------------------------------------------------------------------------


def test_mapped_is_the_file_and_private_is_little(path):
    size = os.path.getsize(path)
    mapped, read = everywhere(path)
    memory = mapped._archive.reader.session.memory()
    assert sorted(memory) == ["mapped", "private"]
    assert memory["mapped"] == size
    assert 0 <= memory["private"] < 4096
    memory = read._archive.reader.session.memory()
    assert memory["mapped"] == 0
    assert 0 <= memory["private"] < 20 * 60 + 4096
    assert all(type(value) is int for value in memory.values())


@pytest.mark.parametrize("verify", ["touch", "always", "never"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_private_memory_does_not_grow_after_the_first_epoch(tmp_path, way, verify, compression):
    ds = CachedDataset.from_cache(write(tmp_path / "a.zip", 300, compression=compression), verify=verify)
    assert ds.labels["label"][7] is not None  # the label table is kept once it was asked for
    kept = [ds._archive.reader.session.memory()]
    for _ in range(3):
        for k in range(300):
            ds[k]
        for k in range(0, 300, 50):
            ds.batch(range(k, k + 1))
            list(ds.__getitems__(range(k, k + 50)))
            ds.select("label", "image").batch(range(k, k + 50))
        kept.append(ds._archive.reader.session.memory())
    assert len({memory["mapped"] for memory in kept}) == 1
    # Of few records the offsets are kept, and of a file that is not mapped what was read of the index.
    assert kept[1]["private"] - kept[0]["private"] <= 300 * (8 + 16 * (way == "pread")) + 64
    assert kept[1] == kept[2] == kept[3]


def own_memory():
    """Anonymous pages. Private ones become more when other processes that map the same files end."""
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        [anonymous] = [line for line in file if line.startswith("Anonymous:")]
    return int(anonymous.split()[1]) << 10


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="tells memory on Linux only")
def test_what_it_says_is_what_the_process_has(tmp_path, way):
    with CacheWriter(tmp_path / "a.zip", sync="never") as w:
        w.extend({"x": torch.full((100_000,), k, dtype=torch.uint8)} for k in range(200))
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    for k in range(40):
        ds[k]
    before = own_memory()
    for _ in range(2):
        for k in range(200):
            ds[k]
    assert own_memory() - before < 4 << 20


def test_memory_of_a_growing_archive_follows_it(tmp_path, way):
    w = CacheWriter(tmp_path / "a.zip", chunk_size=16)
    w.extend(map(sample, range(20)))
    w.flush()
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    first = ds._archive.reader.session.memory()
    w.extend(map(sample, range(20, 200)))
    w.close()
    assert ds.refresh()
    second = ds._archive.reader.session.memory()
    assert (second["mapped"] > first["mapped"]) == (way != "pread")
    assert same(ds[199], sample(199))


# --- a file that goes -------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_deleted_file_is_read_on(tmp_path, way, compression):
    path = write(tmp_path / "a.zip", compression=compression)
    ds = CachedDataset.from_cache(path)
    path.unlink()
    assert same([ds[k] for k in range(60)], [sample(k) for k in range(60)])
    assert same(list(ds.__getitems__([3, 59])), [sample(3), sample(59)])
    assert ds.labels["label"].tolist() == list(range(60))
    assert same(list(ds.filter(label=[7, 9]).select("ids")), [{"ids": sample(k)["ids"]} for k in (7, 9)])
    loader = DataLoader(ds.select("label"), 60, num_workers=1, multiprocessing_context="fork")
    assert next(iter(loader))["label"].tolist() == list(range(60))
    assert len(list(ds.select("image").loader(20))) == 3


def test_a_file_that_was_replaced_is_read_as_it_was(tmp_path, path, way):
    ds = CachedDataset.from_cache(path)
    with CacheWriter(tmp_path / "new.zip") as w:
        w.extend(range(60))
    os.replace(tmp_path / "new.zip", path)
    assert same([ds[k] for k in range(60)], [sample(k) for k in range(60)])
    with pytest.raises(StaleArchiveError):
        ds.refresh()


# --- what is announced to the kernel -----------------------------------------------------------------


class Kernel(System):
    """Says that nothing, or everything, is in its cache; notes what will be needed."""

    def __init__(self, is_cached):
        self.is_cached = is_cached
        self.announced = []

    def pread_cached(self, fd, offsets):
        return self.is_cached

    def will_need(self, fd, offset, nbytes):
        self.announced.append((offset, offset + nbytes))
        super().will_need(fd, offset, nbytes)


@pytest.fixture
def large(tmp_path):
    with CacheWriter(tmp_path / "large.zip") as w:
        w.extend({"x": torch.full((100_000,), k, dtype=torch.uint8)} for k in range(40))
    return tmp_path / "large.zip"


def test_a_cold_batch_is_announced_in_the_order_in_which_it_is_read(large, way):
    ds = CachedDataset.from_cache(large)
    order = [30, 3, 17, 4]
    offset, nbytes = (
        ds._archive.reader.session.index.all_rows()["offset"],
        ds._archive.reader.session.index.all_rows()["nbytes"],
    )
    # A read takes the crc32s of the blocks too.
    behind = 0 if way == "mmap" else 8
    extent = {k: (int(offset[k]), int(offset[k] + nbytes[k]) + behind) for k in order}
    with replace_system(Kernel(is_cached=False)) as kernel:
        batch = ds.batch(order)
    assert kernel.announced == [extent[30], (extent[3][0], extent[4][1]), extent[17]]
    assert batch["x"][:, 0].tolist() == order


def test_one_cold_record_is_announced_where_it_is_mapped(large, way):
    ds = CachedDataset.from_cache(large)
    offset, nbytes = (
        ds._archive.reader.session.index.all_rows()["offset"],
        ds._archive.reader.session.index.all_rows()["nbytes"],
    )
    with replace_system(Kernel(is_cached=False)) as kernel:
        assert ds[7]["x"][0] == 7
        # A pass of one record: what follows will be asked for next.
        end = int(offset[7] + 2 * nbytes[7])
        assert kernel.announced == ([(int(offset[7]), end)] if way == "mmap" else [])


def test_a_pass_in_file_order_is_announced_ahead(large):
    ds = CachedDataset.from_cache(large)
    with replace_system(Kernel(is_cached=False)) as kernel:
        ds.batch(range(4, 8))
    (start, end), offset = kernel.announced[0], ds._archive.reader.session.index.all_rows()["offset"]
    assert len(kernel.announced) == 1
    assert start == offset[4]
    assert offset[10] < end <= offset[12]


def test_only_what_a_projection_reads_is_announced(large, tmp_path):
    with CacheWriter(tmp_path / "b.zip") as w:
        w.extend({"x": torch.zeros(300_000), "y": torch.full((40_000,), k)} for k in range(6))
    ds = CachedDataset.from_cache(tmp_path / "b.zip")
    with replace_system(Kernel(is_cached=False)) as kernel:
        assert ds.select("y").batch([4, 1])["y"][:, 0].tolist() == [4, 1]
    assert [end - start for start, end in kernel.announced] == [320_000] * 2


def test_what_is_cached_is_not_announced_and_soon_seldom_asked_for(large):
    ds = CachedDataset.from_cache(large)
    with replace_system(Kernel(is_cached=True)) as kernel:
        for _ in range(50):
            ds.batch([5, 1])
        assert kernel.announced == []
        kernel.is_cached = False
        for _ in range(20):
            ds.batch([5, 1])
    assert kernel.announced


def test_a_file_system_that_cannot_tell_is_taken_to_have_all(large, monkeypatch):
    ds = CachedDataset.from_cache(large)

    def refuse(self, fd, offsets):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Kernel, "pread_cached", refuse)
    with replace_system(Kernel(is_cached=False)) as kernel:
        assert ds.batch([7])["x"][0, 0] == 7
    assert kernel.announced == []


def test_a_system_that_takes_no_advice_writes_and_reads_the_same(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "preadv")
    monkeypatch.delattr(os, "posix_fadvise")
    ds = CachedDataset.from_cache(write(tmp_path / "a.zip"))
    assert same(list(ds.__getitems__([7, 40])), [sample(7), sample(40)])
    file = ds._archive.reader.session.file
    file.will_need([(0, 4096)])
    assert file.are_cached([0])


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ENOMEM])
def test_a_file_that_cannot_be_mapped_is_read(path, code):
    with replace_system(Refusing(code, "map")):
        ds = CachedDataset.from_cache(path)
        assert same(ds[7], sample(7))
    assert ds.info()["mapped"] == 0


@pytest.mark.parametrize(
    ("kind", "maps"), [("nfs4", False), ("fuse.sshfs", False), ("ext4", True), ("tmpfs", True)]
)
def test_a_file_on_another_machine_is_read(large, tmp_path, monkeypatch, kind, maps):
    device = os.stat(large).st_dev
    mounts = tmp_path / "mountinfo"
    numbers = f"{os.major(device)}:{os.minor(device)}"
    lines = [
        "21 1 0:19 / /proc rw - proc proc rw",
        f"36 1 {numbers} / /data rw master:1 - {kind} host:/data rw",
    ]
    mounts.write_text("\n".join(lines))
    monkeypatch.setattr(storage.file, "_MOUNTS", str(mounts))
    ds = CachedDataset.from_cache(large)
    assert (ds.info()["mapped"] > 0) is maps
    assert ds[3]["x"][0] == 3


def test_a_file_is_mapped_where_the_system_does_not_tell(large, monkeypatch):
    monkeypatch.setattr(storage.file, "_MOUNTS", "/nowhere")
    assert CachedDataset.from_cache(large).info()["mapped"] == os.path.getsize(large)
