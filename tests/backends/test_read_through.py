"""A copy that fills as it is read gives what was published or an error, whoever reads it and is killed."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import run
from far import Far, is_sample, make
from hypothesis import given, settings
from hypothesis import strategies as st
from range_server import serving
from scale import scaled, seeded
from systems import Full, Killing, Refusing, Watching, ended, in_child, replace_system
from torch.utils.data import DataLoader
from written import write

import edcache
from edcache import CachedDataset, CacheWriter, copy_to_local, storage, verify
from edcache.backends.mirror.blocks import BLOCK_NBYTES
from edcache.backends.mirror.read_through import ReadThrough, open_copy
from edcache.backends.mirror.sidecar import locked_side, remove
from edcache.base import human_bytes
from edcache.errors import (
    ArchiveNotFoundError,
    CorruptArchiveError,
    CorruptRecordError,
    OptionError,
    StaleArchiveError,
    StorageError,
)
from edcache.format import PAGE, TAIL_NBYTES
from edcache.reader import Reader
from edcache.reader.session import Session
from edcache.storage import File
from edcache.writer.temporary import SIDE

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
PARTIAL = ".partial"
COUNT, NBYTES = 240, 16_000  # 15 blocks


@pytest.fixture
def far(tmp_path: Path) -> Path:
    path = tmp_path / "far" / "train.zip"
    make(path, COUNT, NBYTES, chunk=16)
    return path


@pytest.fixture
def ssd(tmp_path: Path) -> Path:
    return tmp_path / "ssd"


class Place(storage.Location):
    """Where an origin in memory is."""

    by_request = True

    def __init__(self, origin: Far) -> None:
        self.origin, self.path = origin, origin.path

    def open(self) -> Any:
        return self.origin


def read(ds: Any, indices: Any) -> None:
    for i in indices:
        assert is_sample(ds[i], i, NBYTES)


def opened(far: Path | str, ssd: Path, **options: Any) -> CachedDataset:
    return CachedDataset.from_cache(far, local=ssd, **options)


def file_of(ds: CachedDataset) -> ReadThrough:
    file = ds._archive.reader.session.file
    assert isinstance(file, ReadThrough)
    return file


def the_copy(ssd: Path) -> Path:
    """The one copy there, whole or not."""
    found = [p for p in ssd.iterdir() if p.name.endswith((".zip", PARTIAL))]
    assert len(found) == 1
    return found[0]


def on_disk(ssd: Path) -> int:
    """What the copies take, without their side files."""
    return sum(storage.allocated(str(path)) for path in ssd.iterdir() if path.suffix in (".zip", PARTIAL))


def whole(far: Path, ssd: Path) -> Path:
    """A copy that has filled and was opened again."""
    ds = opened(far, ssd)
    read(ds, range(COUNT))
    ds.close()
    opened(far, ssd).close()
    return the_copy(ssd)


def damage(path: Path, start: int, nbytes: int = 1) -> None:
    """As a disk does it, which leaves the time of the file."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(start)
        found = file.read(nbytes)
        file.seek(start)
        file.write(bytes(255 - byte for byte in found))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def extent(ds: CachedDataset, i: int) -> tuple[int, int]:
    rows = ds._archive.reader.session.index.all_rows()
    return int(rows["offset"][i]), int(rows["nbytes"][i])


# ------------------------------------------------------------------------------------------ reading


def test_what_is_read_is_fetched_and_no_more(far, ssd):
    ds = opened(far, ssd)
    copy = the_copy(ssd)
    assert copy.name.startswith("train-")
    assert copy.name.endswith(f".zip{PARTIAL}")
    assert copy.stat().st_size == far.stat().st_size
    assert storage.allocated(str(copy)) <= 3 * BLOCK_NBYTES, "the head and the index"
    read(ds, [100, 101, 102])
    assert storage.allocated(str(copy)) <= 5 * BLOCK_NBYTES
    assert ds.labels["y"].tolist() == [i % 5 for i in range(COUNT)]
    assert len(ds) == COUNT
    assert ds.filter(y=3).indices.tolist() == list(range(3, COUNT, 5))


def shares(orders: list[np.ndarray], size: int) -> list[list[list[int]]]:
    """Batches of an order, dealt out in turn as a DataLoader does; or of an order for each reader."""
    if len(orders) > 1:
        return [[order[k : k + size].tolist() for k in range(0, COUNT, size)] for order in orders]
    batches = [orders[0][k : k + size].tolist() for k in range(0, COUNT, size)]
    return [batches[number::8] for number in range(8)]


@pytest.mark.parametrize("order", ["chunks", "all", "each its own"])
def test_a_block_comes_once_over_the_wire_for_eight_cold_readers(far, ssd, order):
    data = far.read_bytes()
    near = CachedDataset.from_cache(far)
    ranks = range(8) if order == "each its own" else range(1)
    sampler = edcache.samplers.ChunkShuffle if order == "chunks" else edcache.samplers.Shuffle
    dealt = shares([np.array(list(sampler(near, seed=k))) for k in ranks], 12)
    with serving(data) as served:
        served.delay = 0.01
        opened(served.url, ssd).close()

        def work(batches: list[list[int]]) -> None:
            ds = opened(served.url, ssd)
            for batch in batches:
                assert ds.batch(batch)["n"].tolist() == batch

        pids = [in_child(lambda batches=batches: work(batches)) for batches in dealt]
        assert [ended(pid) for pid in pids] == [0] * 8
        # Each reader opens the object, whose head and end come with its state.
        assert served.sent - 8 * (PAGE + TAIL_NBYTES) <= 1.03 * len(data)
    read(opened(far, ssd), range(COUNT))


@pytest.mark.parametrize("kills", ["who fetches", "who waits"])
def test_the_claim_of_who_is_killed_goes_to_the_next(far, ssd, kills):
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, ssd)
        wanted, _ = extent(ds, 150)
        wanted = wanted // BLOCK_NBYTES * BLOCK_NBYTES
        is_asked, goes_on = threading.Event(), threading.Event()

        def hold(handler: Any, start: int, end: int) -> bool:
            if start <= wanted < end and not is_asked.is_set():
                is_asked.set()
                goes_on.wait(30)
            return False

        served.faults.append(hold)
        first = in_child(lambda: read(opened(served.url, ssd), [150]))
        assert is_asked.wait(30)
        second = in_child(lambda: read(opened(served.url, ssd), [150]))
        time.sleep(0.3)
        os.kill(first if kills == "who fetches" else second, signal.SIGKILL)
        if kills == "who waits":
            goes_on.set()
        codes = {pid: ended(pid) for pid in (first, second)}
        goes_on.set()
        assert sorted(codes.values()) == [-signal.SIGKILL, 0]
        asked = [
            start for method, start, end, _ in served.requests if method == "GET" and start <= wanted < end
        ]
        assert len(asked) == (2 if kills == "who fetches" else 1)
        read(ds, range(COUNT))


@pytest.mark.parametrize("limit", [None, 1 << 20])
def test_extents_that_are_read_together_are_what_each_is(far, ssd, limit):
    content = far.read_bytes()

    @settings(max_examples=30)
    @given(
        st.lists(st.tuples(st.integers(0, len(content)), st.integers(0, 1 << 17)), max_size=12), st.booleans()
    )
    def compare(extents, have_neighbours):
        if have_neighbours:
            extents = [one for o, n in extents for one in ((o, n), (o + n + 7, 99))]
        ds = opened(far, ssd, max_bytes=limit)
        for file in (file_of(ds), File.open(str(far), "r")):
            read = file.read_many(extents)
            assert [bytes(one) for one in read] == [content[o : o + n] for o, n in extents]

    compare()


def test_threads_of_a_process_fetch_a_block_once(far, ssd):
    with serving(far.read_bytes()) as served:
        served.delay = 0.05
        ds = opened(served.url, ssd)
        ds[0]
        served.forget()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: read(ds, [100, 200]), range(8)))
        starts = [start for method, start, _, _ in served.requests if method == "GET" and start]
        assert len(starts) == len(set(starts)) <= 4


def test_every_way_to_read_gives_the_same(far, ssd, tally):
    plain = CachedDataset.from_cache(far)
    rng = seeded("reading through")
    for number in range(scaled(8)):
        ds = opened(far, ssd / str(number), verify=rng.choice(["touch", "always"]))
        for _ in range(6):
            indices = [rng.randrange(-COUNT, COUNT) for _ in range(rng.randrange(1, 30))]
            way = rng.choice(["batch", "items", "select", "many"])
            if way == "batch":
                found, expected = ds.batch(indices), plain.batch(indices)
                assert all(bool((found[key] == expected[key]).all()) for key in ("x", "n", "y"))
            elif way == "items":
                read(ds, [i % COUNT for i in indices])
            elif way == "select":
                assert ds.select("n").batch(indices)["n"].tolist() == [i % COUNT for i in indices]
            else:
                assert [s["n"] for s in ds.__getitems__(indices)] == [i % COUNT for i in indices]
            tally("ways to read through a copy")


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_loader_share_a_copy(far, ssd, context):
    ds = opened(far, ssd)
    for _ in range(2):
        loader = DataLoader(ds, 32, shuffle=True, num_workers=2, multiprocessing_context=context)
        seen = [int(n) for batch in loader for n in batch["n"]]
        assert sorted(seen) == list(range(COUNT))
        if context == "spawn":
            break
    data = far.read_bytes()
    copy = the_copy(ssd).read_bytes()
    missing = sum(data[k : k + 4096] != copy[k : k + 4096] for k in range(0, len(data), 4096))
    assert missing * 4096 <= BLOCK_NBYTES, "what holds no records"


def test_a_copy_that_is_full_is_an_ordinary_archive(far, ssd):
    copy = whole(far, ssd)
    assert copy.suffix == ".zip"
    assert copy.read_bytes() == far.read_bytes()
    ds = opened(far, ssd)
    assert ds.info()["mapped"] == far.stat().st_size
    far.unlink()
    read(CachedDataset.from_cache(copy), range(COUNT))
    assert verify(copy).sound
    read(pickle.loads(pickle.dumps(ds)), range(COUNT))


def test_a_copy_that_has_filled_is_mapped_after_a_refresh(far, ssd):
    ds, other = opened(far, ssd), opened(far, ssd)
    view = ds.filter(y=3)
    assert ds.refresh() is False
    assert ds.info()["mapped"] == 0
    read(ds, range(COUNT))
    for one in (ds, other):
        assert one.refresh() is False
        assert one.info()["mapped"] == far.stat().st_size
        read(one, range(COUNT))
    assert view[5]["n"] == 28
    assert the_copy(ssd).read_bytes() == far.read_bytes()
    assert ds.refresh() is False


def test_where_the_archive_cannot_be_reached_a_whole_copy_is_read(far, ssd, caplog):
    whole(far, ssd)
    far.rename(far.with_name("gone"))
    with caplog.at_level("WARNING", "edcache"):
        read(opened(far, ssd), range(COUNT))
    assert f"{far}: reading its copy {the_copy(ssd)}: {far}: no such file" in caplog.text
    shutil.rmtree(ssd)
    with pytest.raises(ArchiveNotFoundError, match=r"train\.zip: no such file"):
        opened(far, ssd)


def test_a_whole_copy_that_was_made_before_is_used(far, ssd):
    copy = Path(copy_to_local(far, ssd))
    ds = opened(far, ssd)
    read(ds, range(COUNT))
    assert sorted(os.listdir(ssd)) == [copy.name, copy.name + SIDE]
    far.rename(far.with_name("gone"))
    read(opened(far, ssd), range(COUNT))


def test_a_copy_is_of_one_state_of_the_archive(far, ssd):
    ds = opened(far, ssd)
    read(ds, range(5))
    write(far, [{"x": np.zeros(NBYTES, np.uint8), "n": 0, "y": 0}], "a")
    read(ds, range(5))
    with pytest.raises(StaleArchiveError) as caught:
        read(ds, range(COUNT))
    assert str(caught.value) == (
        f"{far}: it has changed since it was opened; open it again, which begins another copy"
    )
    assert ds.refresh() is False
    other = opened(far, ssd)
    assert len(other) == COUNT + 1
    read(other, range(COUNT))
    assert len(list(ssd.glob("train-*" + SIDE))) == 2
    read(ds, range(5))


def test_nothing_is_written_where_the_archive_is(far, ssd):
    with replace_system(Watching()) as watching:
        ds = opened(far, ssd)
        read(ds, range(COUNT))
        opened(far, ssd)
    there = [flags for path, flags in watching.opened if path.startswith(str(far.parent))]
    assert there
    assert not any(there)


def test_a_new_copy_opens_by_the_two_requests_of_its_origin(far, ssd):
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, ssd)
        assert len(served.requests) == 2
        assert served.sent == 4096 + (1 << 16)
        assert ds[COUNT - 1]["n"] == COUNT - 1


def test_it_is_read_from_whatever_gives_bytes_at_offsets(far, ssd):
    origin = Far(far.read_bytes(), delay=0.001)
    file = open_copy(Place(origin), None, folder=str(ssd))
    session = Session(file)
    assert session.head == CachedDataset.from_cache(far)._archive.reader.session.head
    session.group(np.arange(0, COUNT // 3, 7), None)
    offsets = [offset for offset, nbytes in origin.read if nbytes >= BLOCK_NBYTES]
    assert len(offsets) == len(set(offsets)), "each block was fetched once"
    origin.etag = "b2"
    assert file.pread(0, 10) == origin.data[:10]
    missing = int(file.fetcher.map.missing(np.arange(file.fetcher.map.count))[0])
    with pytest.raises(
        StaleArchiveError, match=r"far://bucket/train.zip: it has changed since it was opened"
    ):
        file.pread(missing * BLOCK_NBYTES, 10)
    origin.etag, size = "a1", len(origin.data)
    origin.data = origin.data[: missing * BLOCK_NBYTES + 99]
    with pytest.raises(StorageError) as caught:
        file.pread(missing * BLOCK_NBYTES, 10)
    assert f"got 99 of 262,144 bytes at offset {missing * BLOCK_NBYTES:,}; read again" in str(caught.value)
    assert file.size() == size
    file.close()
    assert file.data.closed
    assert origin.closed


# --------------------------------------------------------------------------------------- refused


def test_what_local_does_not_go_with_is_said(far, ssd, tmp_path):
    with pytest.raises(
        OptionError, match=r"local= is for CachedDataset.from_cache\(\); a new archive is on this"
    ):
        CachedDataset([1, 2], tmp_path / "new.zip", local=ssd)
    with pytest.raises(
        OptionError, match=r"expected_digest= needs the complete file, but local= reads parts of it"
    ):
        opened(far, ssd, expected_digest="0" * 64)
    with pytest.raises(OptionError, match=r"max_bytes='1GB'; it limits the copies in local=, give that too"):
        CachedDataset.from_cache(far, max_bytes="1GB")
    with pytest.raises(
        OptionError, match="opened with local=, which reads a copy; open it without to change"
    ):
        opened(far, ssd).add_labels("z", [0] * COUNT)
    writer = CacheWriter(far, "a")
    writer.append({"x": np.zeros(NBYTES, np.uint8), "n": 0, "y": 0})
    writer.abort()
    with pytest.raises(OptionError, match="local=True; give a folder, or False to read without a copy"):
        opened(far, True)


def test_an_archive_that_is_not_sealed_is_read_without_a_copy(far, ssd):
    writer = CacheWriter(far, "a")
    writer.append({"x": np.zeros(NBYTES, np.uint8), "n": COUNT, "y": 0})
    writer.flush()
    ds = opened(far, ssd, allow_partial=True)
    assert len(ds) == COUNT + 1
    writer.append({"x": np.zeros(NBYTES, np.uint8), "n": COUNT + 1, "y": 0})
    writer.flush()
    assert ds.refresh()
    assert ds[COUNT + 1]["n"] == COUNT + 1
    assert not ssd.exists()
    writer.abort()


def test_a_folder_that_cannot_be_written_is_a_warning(far, ssd):
    with (
        replace_system(Refusing(errno.EACCES, "make_folders")),
        pytest.warns(RuntimeWarning, match=f"Permission denied; {far} is read without a copy"),
    ):
        ds = opened(far, ssd)
    read(ds, range(0, COUNT, 7))
    assert not ssd.exists()


# --------------------------------------------------------------------------- what nobody asked for


def test_a_url_is_read_by_a_copy_in_the_cache_folder(far, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path / "cache"))
    copies = tmp_path / "cache" / "copies"
    with serving(far.read_bytes()) as served:
        run("info", served.url)
        edcache.verify(served.url)
        read(CachedDataset.from_cache(served.url, local=False), [3])
        assert not copies.exists()
        assert not caplog.text
        ds = CachedDataset.from_cache(served.url)
        free = human_bytes(storage.free(str(tmp_path)) // 2)
        (said,) = caplog.messages
        assert f"{served.url}: what is read is kept in {copies}, at most " in said
        assert free.partition(".")[0] in said
        for batch in ds.loader(16, shuffle=True, num_threads=1):
            assert (batch["x"][:, 0] == batch["n"] % 251).all()
        again = CachedDataset.from_cache(served.url)
        arrays = edcache.numpy.open(served.url)
        served.forget()
        read(again, range(COUNT))
        read(arrays, range(COUNT))
        assert not served.requests
        assert len(caplog.messages) == 1


def test_an_object_that_is_deleted_is_not_there_though_a_copy_is(far, tmp_path, monkeypatch):
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path))
    with serving(far.read_bytes()) as served:
        read(CachedDataset.from_cache(served.url), range(COUNT))
        CachedDataset.from_cache(served.url)
        served.faults = [lambda handler, *_: (handler.say(404, {}, b""), True)[1]]
        with pytest.raises(ArchiveNotFoundError, match="no such object"):
            CachedDataset.from_cache(served.url)


def test_a_reader_whose_copy_is_gone_says_so(far, ssd):
    pickled = pickle.dumps(opened(far, ssd))
    copy = the_copy(ssd)
    shutil.rmtree(ssd)
    with pytest.raises(StaleArchiveError) as caught:
        pickle.loads(pickled)[0]
    assert str(caught.value) == (
        f"{str(copy).removesuffix(PARTIAL)}: this copy of {far} is gone; open {far} again"
    )
    assert len(pickled) < 4000


# ---------------------------------------------------------------------------------------- damaged


@pytest.mark.parametrize("made", ["in part", "filled", "copied"])
@pytest.mark.parametrize("way", ["item", "batch", "select"])
def test_what_is_damaged_in_a_copy_is_asked_for_again_and_replaced(far, ssd, made, way):
    if made == "in part":
        read(opened(far, ssd), range(COUNT // 2))
        copy = the_copy(ssd)
    else:
        copy = whole(far, ssd) if made == "filled" else Path(copy_to_local(far, ssd))
    ds = opened(far, ssd)
    assert (ds.info()["mapped"] > 0) == (made != "in part")
    at, nbytes = extent(ds, 40)
    damage(copy, at + 300, 50)
    if way == "item":
        read(ds, range(COUNT))
    elif way == "batch":
        assert ds.batch(range(COUNT))["n"].tolist() == list(range(COUNT))
    else:
        assert (ds.select("x").batch(range(0, COUNT, 2))["x"][20] == 40).all()
    there = the_copy(ssd)
    assert there.read_bytes()[at : at + nbytes] == far.read_bytes()[at : at + nbytes]
    assert made == "in part" or there == copy, "a whole copy stays one"
    opened(far, ssd)
    assert (the_copy(ssd).read_bytes() == far.read_bytes()) or made == "in part"


@pytest.mark.parametrize("is_whole", [False, True])
def test_damage_anywhere_is_never_read_and_needs_no_step_by_hand(tmp_path, ssd, is_whole, tally):
    """Head, index, labels: as after a power cut, which takes what was not on the disk."""
    far = tmp_path / "far.zip"
    with CacheWriter(far, compression="zstd", in_memory_keys=["n"], chunk_size=300) as writer:
        writer.extend({"n": i, "text": f"sample {i}, and so on and on " * 30} for i in range(1500))

    def check() -> None:
        ds = opened(far, ssd)
        assert ds.batch(range(1500))["n"].tolist() == list(range(1500))
        assert ds.labels["n"].tolist() == list(range(1500))
        assert ds[1200]["text"].startswith("sample 1200,")
        if is_whole:
            opened(far, ssd).close()

    rng, data = seeded("damaged copies"), far.read_bytes()
    offsets = [0, 100, 300, len(data) - 1, len(data) - 100, len(data) - 3000]
    for offset in offsets + [rng.randrange(len(data)) for _ in range(scaled(15))]:
        check()
        damage(the_copy(ssd), offset, min(2000, len(data) - offset))
        check()
        tally("damaged copies read")


def test_a_copy_whose_original_cannot_be_compared_stays(far, ssd):
    copy = whole(far, ssd)
    offset, nbytes = extent(CachedDataset.from_cache(far), 17)
    far.rename(far.with_name("gone"))
    damage(copy, offset + 9)
    ds = opened(far, ssd)
    with pytest.raises(CorruptArchiveError) as caught:
        ds[17]
    assert str(caught.value) == (
        f"{copy}: bytes {offset:,} to {offset + nbytes:,} fail their crc32, and the original cannot be read "
        f"to compare: {far}: no such file; check the path, or build the cache first; delete this copy, "
        f"and open {far} again"
    )
    read(ds, range(17))


def test_a_copy_that_lost_its_blocks_but_not_its_map_reads(far, ssd):
    read(opened(far, ssd), range(0, COUNT, 3))
    copy = the_copy(ssd)
    copy.write_bytes(b"")
    os.truncate(copy, far.stat().st_size)
    read(opened(far, ssd), range(COUNT))
    opened(far, ssd)
    assert the_copy(ssd).read_bytes() == far.read_bytes()


def test_a_copy_whose_side_file_does_not_read_begins_anew(far, ssd):
    read(opened(far, ssd), range(0, COUNT, 3))
    side = next(ssd.glob(f"*{SIDE}"))
    for broken in (b"", b"edcopy2\n" + bytes(40_000), os.urandom(40_000)):
        side.write_bytes(broken)
        read(opened(far, ssd), range(COUNT))


def test_what_is_damaged_far_away_is_an_error_that_names_it(far, ssd):
    offset, _ = extent(CachedDataset.from_cache(far), 17)
    damage(far, offset + 9)
    ds = opened(far, ssd)
    for _ in range(2):
        with pytest.raises(
            CorruptRecordError, match=rf"^{far}: record 17 at offset {offset:,}: it fails its crc32"
        ):
            ds[17]
    with pytest.raises(CorruptRecordError, match="record 17"):
        ds.batch([3, 17])
    read(ds, [i for i in range(COUNT) if i != 17])
    ds = opened(far, ssd)
    assert the_copy(ssd).name.endswith(PARTIAL), "what is not sound never gets the name of a copy"
    read(ds, range(17))


# ------------------------------------------------------------------------------------------- killed


@pytest.mark.full
def test_readers_that_are_killed_at_any_operation_harm_nobody(far, ssd, tally):
    data = far.read_bytes()
    at, code = 0, -9
    while code != 0:
        at += 1
        if at % 9 == 0:
            shutil.rmtree(ssd, ignore_errors=True)

        def some(at: int = at) -> None:
            rng = random.Random(at)
            read(opened(far, ssd), [rng.randrange(COUNT) for _ in range(3)])

        code = ended(in_child(some, Killing(1 + at % 9)))
        assert code in (0, -signal.SIGKILL)
        ds = opened(far, ssd)
        read(ds, [7, 77, 177])
        ds.close()
        tally("readers killed at an operation")
        if at < 27:
            code = -9
    read(opened(far, ssd), range(COUNT))
    opened(far, ssd)
    assert the_copy(ssd).read_bytes() == data


def test_who_is_killed_while_it_makes_a_copy_whole_harms_nobody(far, ssd, tally):
    data = far.read_bytes()
    at, code = 0, -9
    while code != 0:
        at += 1
        shutil.rmtree(ssd, ignore_errors=True)
        ds = opened(far, ssd)
        read(ds, range(COUNT))
        code = ended(in_child(lambda: read(opened(far, ssd), [3]), Killing(at)))
        read(ds, range(0, COUNT, 10))
        again = opened(far, ssd)
        read(again, range(0, COUNT, 10))
        assert the_copy(ssd).suffix == ".zip"
        assert the_copy(ssd).read_bytes() == data
        tally("readers killed at an operation")
    assert at > 4


# --------------------------------------------------------------------------------------- no room


def test_where_the_disk_is_full_the_rest_is_read_from_far(far, ssd):
    ds = opened(far, ssd)
    with replace_system(Full(2)):
        with pytest.warns(
            RuntimeWarning, match=r"No space left on device; what is not here yet is read from"
        ):
            read(ds, range(COUNT))
        assert ds.batch(range(COUNT))["n"].tolist() == list(range(COUNT))
    assert storage.allocated(str(the_copy(ssd))) < far.stat().st_size / 2
    read(opened(far, ssd), range(COUNT))


def test_a_read_that_fails_is_an_error_and_nothing_worse(far, ssd):
    ds = opened(far, ssd)
    with (
        replace_system(Refusing(errno.EIO, "pwrite")),
        pytest.raises(StorageError, match="Input/output error"),
    ):
        read(ds, range(COUNT))
    read(ds, range(COUNT))


HOLDER = """
import sys, edcache
ds = edcache.CachedDataset.from_cache(sys.argv[1], local=sys.argv[2])
ds[0]
print("open", flush=True)
sys.stdin.readline()
for i in range(len(ds)):
    assert ds[i]["n"] == i
print("read", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_copy_that_somebody_has_open_never_goes(far, ssd, tmp_path, is_whole):
    copy = whole(far, ssd) if is_whole else None
    other = tmp_path / "other.zip"
    make(other, COUNT, NBYTES)
    limit = far.stat().st_size * 3 // 2
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, far, ssd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "open\n"
        ds = opened(other, ssd, max_bytes=limit)
        read(ds, range(COUNT))
        assert on_disk(ssd) <= limit
        ds.close()
        assert not is_whole or copy.exists()
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "read\n"
    finally:
        holder.communicate()
    assert holder.returncode == 0
    read(opened(other, ssd, max_bytes=limit), range(COUNT))
    opened(other, ssd, max_bytes=limit)
    assert any(p.name.startswith("other-") and p.suffix == ".zip" for p in ssd.iterdir())
    read(opened(far, ssd), range(9))


def test_a_worker_keeps_a_copy_open_for_itself(far, ssd, tmp_path):
    """A fork shares the lock, which ends with the last that has it."""
    ready, go = os.pipe(), os.pipe()
    ds = opened(far, ssd)

    def work() -> None:
        read(ds, range(3))
        os.write(ready[1], b"r")
        os.read(go[0], 1)
        read(ds, range(COUNT))

    pid = in_child(work)
    os.read(ready[0], 1)
    ds.close()
    other = tmp_path / "other.zip"
    make(other, COUNT, NBYTES)
    limit = far.stat().st_size * 3 // 2
    opened(other, ssd, max_bytes=limit).close()
    assert list(ssd.glob("train-*"))
    os.write(go[1], b"g")
    assert ended(pid) == 0
    read(opened(other, ssd, max_bytes=limit), range(9))
    for end in (*ready, *go):
        os.close(end)


@pytest.mark.full
def test_an_open_copy_says_nothing_when_the_process_ends(far, ssd):
    code = (
        "import sys, edcache; ds = edcache.CachedDataset.from_cache(sys.argv[1], local=sys.argv[2]); ds[3];"
        "other = edcache.CachedDataset.from_cache(sys.argv[1]); other.batch([1])"
    )
    done = subprocess.run([sys.executable, "-c", code, far, ssd], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_reader_takes_a_copy_too(far, ssd):
    reader = Reader(far, local=ssd)
    assert is_sample(reader.session.read(5), 5, NBYTES)
    assert reader.session.memory()["mapped"] == 0
    reader.close()


def test_an_archive_that_changes_while_its_copy_is_begun_is_an_error(far, ssd):
    class Changing(Far):
        def size(self) -> int:
            self.etag = "b2"
            return super().size()

    origin = Changing(far.read_bytes())
    with pytest.raises(StaleArchiveError, match=r"train.zip: it changed while it was opened; open it again"):
        open_copy(Place(origin), None, folder=str(ssd))
    assert not list(ssd.glob(f"*{PARTIAL}"))


def test_a_copy_that_another_took_the_place_of_is_not_written_to(far, ssd):
    ds = opened(far, ssd)
    copy = the_copy(ssd)
    os.replace(shutil.copyfile(copy, ssd / "other"), copy)
    before = copy.read_bytes()

    def work() -> None:
        with pytest.raises(StaleArchiveError, match=rf": this copy of {far} is gone; open {far} again"):
            read(ds, range(COUNT))

    assert ended(in_child(work)) == 0, "a worker opens for itself what it writes to"
    assert copy.read_bytes() == before
    read(ds, range(COUNT))
    assert copy.read_bytes() == before
    read(opened(far, ssd), range(COUNT))


def test_a_reader_whose_copy_was_begun_anew_marks_no_block_of_the_new_one(far, ssd):
    ds = opened(far, ssd)
    read(ds, [1, 100])
    begun = str(the_copy(ssd)).removesuffix(PARTIAL)
    with locked_side(begun):  # as another process does that finds a copy of an earlier state
        remove(begun)
    other = opened(far, ssd)
    for i in (50, 200):
        with pytest.raises(StaleArchiveError, match=rf": this copy of {far} is gone; open {far} again"):
            ds[i]
    fetcher = file_of(other).fetcher
    blocks = np.arange(fetcher.map.count)
    here = np.setdiff1d(blocks, fetcher.map.missing(blocks))
    content, copy = far.read_bytes(), the_copy(ssd).read_bytes()
    for start in (here * BLOCK_NBYTES).tolist():
        assert copy[start : start + BLOCK_NBYTES] == content[start : start + BLOCK_NBYTES]


def test_processes_that_begin_one_copy_at_once_begin_one(far, ssd, tally):
    for _ in range(scaled(10)):
        shutil.rmtree(ssd, ignore_errors=True)
        pids = [in_child(lambda: read(opened(far, ssd), [1, 100, 200])) for _ in range(4)]
        assert [ended(pid) for pid in pids] == [0] * 4
        assert the_copy(ssd).stat().st_size == far.stat().st_size
        tally("copies begun by four processes at once")


def test_a_copy_of_an_archive_with_no_samples_reads(tmp_path, ssd):
    far = tmp_path / "empty.zip"
    CacheWriter(far).close()
    assert len(opened(far, ssd)) == 0
    assert the_copy(ssd).read_bytes() == far.read_bytes()
