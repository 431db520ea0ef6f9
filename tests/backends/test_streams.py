"""A copy that may have less than its archive gives what was published, whoever frees what others read."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far import is_sample, make
from range_server import serving
from scale import scaled, seeded
from systems import Killing, Refusing, System, ended, in_child, replace_system
from torch.utils.data import DataLoader

from edcache import CachedDataset, concat, samplers, storage
from edcache.backends.mirror.read_through import ReadThrough
from edcache.backends.mirror.room import BLOCK_NBYTES
from edcache.writer import SIDE

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
COUNT, NBYTES = 600, 16_000  # 37 blocks
LIMIT = 12 * BLOCK_NBYTES


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("far") / "train.zip"
    make(path, COUNT, NBYTES, chunk=16)
    return path


@pytest.fixture
def ssd(tmp_path: Path) -> Path:
    return tmp_path / "ssd"


def opened(far: Path | str, ssd: Path, limit: int | None = LIMIT, **options: Any) -> CachedDataset:
    return CachedDataset.from_cache(far, local=ssd, max_bytes=limit, **options)


def on_disk(ssd: Path) -> int:
    return sum(storage.allocated(str(path)) for path in ssd.iterdir() if not path.name.endswith(".origin"))


def read(ds: Any, indices: list[int]) -> None:
    batch = ds.batch(indices)
    assert batch["n"].tolist() == indices
    assert (batch["x"] == (np.array(indices) % 251)[:, None]).all()


def read_all(ds: Any) -> None:
    for k in range(0, COUNT, 24):
        read(ds, list(range(k, k + 24)))


def file_of(ds: CachedDataset) -> ReadThrough:
    file = ds._reader.session.file
    assert isinstance(file, ReadThrough)
    return file


def free_all(ds: CachedDataset) -> None:
    """Free every block of a copy."""
    file = file_of(ds)
    assert file.fetcher.room is not None
    file.fetcher.room._punch(file.fetcher.open_out(), np.arange(file.blocks.last + 1))


@pytest.mark.parametrize("way", ["batches", "one by one"])
def test_an_archive_that_is_larger_than_its_room_streams_epoch_after_epoch(far, ssd, way):
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, ssd)
        for epoch in range(3):
            served.forget()
            for k in range(0, COUNT, 24):
                if way == "batches":
                    read(ds, list(range(k, k + 24)))
                else:
                    assert all(is_sample(ds[i], i, NBYTES) for i in range(k, k + 24))
                assert on_disk(ssd) <= LIMIT
            assert served.sent < (1.1 if epoch == 0 else 0.95) * far.stat().st_size, (
                "a third of the room stays"
            )


@pytest.mark.parametrize("workers", [None, 2])
def test_an_order_that_is_known_streams_by_blocks(far, ssd, workers):
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, ssd)
        sampler = samplers.ChunkShuffle(ds, 2)
        if workers is None:
            batches = ds.loader(12, sampler=sampler)
        else:
            batches = DataLoader(ds, 12, sampler=sampler, num_workers=workers)
        for _ in range(3):
            served.forget()
            seen = [n for batch in batches for n in batch["n"].tolist()]
            assert sorted(seen) == list(range(COUNT))
            assert served.sent < 1.6 * far.stat().st_size
            assert on_disk(ssd) <= LIMIT


def test_what_was_read_goes_first_and_what_is_needed_soon_last(far, ssd):
    ds = opened(far, ssd)
    read(ds, list(range(160)))
    file = file_of(ds)
    room, out, last = file.fetcher.room, file.fetcher.open_out(), file.blocks.last

    def here() -> set[int]:
        return {k for k, byte in enumerate(file.blocks.look(0, last + 1)) if byte & 1}

    before = sorted(here())
    was_read, soon, idle = set(before[:3]), set(before[3:6]), set(before[6:])
    assert len(idle) > 2
    with closing(storage.File.open(file.pinned.copy + SIDE, "r+")) as side:
        assert room.expect(side, sorted(was_read), True) == was_read
        assert room.expect(side, sorted(soon), False) == soon
        room._make(side, out, 2, True)
        assert len(here() & was_read) == 1
        room._make(side, out, 2, True)
        assert not here() & was_read
        assert len(here() & idle) == len(idle) - 1
        room._make(side, out, 99, True)
        assert here() == soon
        room._make(side, out, 1, False)
        assert len(here()) == 2
        # Another order begins: what it needs is what goes last, whatever was read before.
        other = max(here())
        assert room.expect(side, [other], True) == {other}
        room._make(side, out, 9, True)
        assert here() == {other}


def test_parts_that_lack_are_in_the_order_of_need(far, ssd):
    ds, nbytes = opened(far, ssd, None), far.stat().st_size
    rng, file = seeded("parts that lack"), file_of(ds)
    for _ in range(100):
        start = np.array([rng.randrange(nbytes) for _ in range(rng.randrange(8))], np.int64)
        end = start + np.array([rng.randrange(1, 3 * BLOCK_NBYTES) for _ in start], np.int64)
        end = np.minimum(end, nbytes)
        wanted: list[tuple[int, int]] = []
        for low, high in zip(start.tolist(), end.tolist(), strict=True):
            for block in range(low // BLOCK_NBYTES, (high - 1) // BLOCK_NBYTES + 1):
                part = block * BLOCK_NBYTES, min((block + 1) * BLOCK_NBYTES, nbytes)
                if part not in wanted and not file.blocks.known[block] & 1:
                    wanted.append(part)
        assert file.lacking(start, end) == wanted
        if rng.random() < 0.2:
            at = rng.randrange(COUNT - 20)
            read(ds, list(range(at, at + 20)))
    assert 0 < sum(byte & 1 for byte in file.blocks.known) < len(file.blocks.known)


def test_several_far_archives_in_one_order_are_looked_ahead_for(far, ssd):
    with serving(far.read_bytes()) as served:
        parts = [opened(f"{served.url}?{k}", ssd / str(k), None) for k in range(3)]
        ds = concat([parts[0], parts[1].take(COUNT), parts[2]])
        batches = iter(ds.loader(12, sampler=samplers.ChunkShuffle(ds, 2)))
        seen = next(batches)["n"].tolist()
        nbytes = 3 * far.stat().st_size
        for _ in range(3000):
            if served.sent >= 0.9 * nbytes:
                break
            time.sleep(0.01)
        # Nobody has asked for more than the first batches.
        assert served.sent >= 0.9 * nbytes
        seen += [n for batch in batches for n in batch["n"].tolist()]
        assert sorted(seen) == sorted([*range(COUNT)] * 3)
        assert served.sent < 1.05 * nbytes


def codes_of_four(work, rng, kills=True):
    """Exit statuses of four processes, of which the first three may be killed at random and the last ends."""
    pids = [in_child(partial(work, k)) for k in range(4)]
    for pid in pids[:3] if kills else ():
        time.sleep(rng.uniform(0, 0.2))
        os.kill(pid, signal.SIGKILL)
    codes = [ended(pid) for pid in pids]
    assert set(codes) <= {0, -signal.SIGKILL}
    assert codes[3] == 0
    return codes


@pytest.mark.full
def test_whoever_fetches_for_others_may_be_killed(far, ssd, tally):
    """Killed with claims held: the others go on, and so does the next reader."""

    def work(url: str, folder: Path, seed: int) -> None:
        ds = opened(url, folder, None, verify=("touch", "never")[seed % 2])
        seen = []
        for batch in ds.loader(12, sampler=samplers.ChunkShuffle(ds, 2, seed=seed)):
            assert (batch["x"] == (batch["n"] % 251)[:, None]).all()
            seen += batch["n"].tolist()
        assert sorted(seen) == list(range(COUNT))

    rng = seeded("killed fetchers")
    with serving(far.read_bytes()) as served:
        served.delay = 0.02
        for k in range(scaled(6)):
            folder = ssd / str(k)
            codes = codes_of_four(partial(work, served.url, folder), rng)
            tally("readers killed while they fetched for others", codes.count(-signal.SIGKILL))
            read_all(opened(served.url, folder, None, verify="never"))


def test_scattered_records_are_read_and_no_blocks_of_them(far, ssd):
    order = list(range(COUNT))
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, ssd)
        for epoch in range(2):
            seeded(f"scattered {epoch}").shuffle(order)
            served.forget()
            for k in range(0, COUNT, 8):
                read(ds, order[k : k + 8])
            assert served.sent < 2 * far.stat().st_size
            assert len(served.requests) < COUNT
            assert on_disk(ssd) <= LIMIT


@pytest.mark.parametrize("verify", ["touch", "never"])
@pytest.mark.parametrize("kills", [False, True])
def test_processes_that_stream_read_what_the_archive_has(far, ssd, verify, kills, tally):
    """Any order, several epochs, readers with and without a limit, some of them killed."""

    def work(seed: int) -> None:
        rng = random.Random(seed)
        ds = opened(
            far, ssd, None if seed % 4 == 3 and not kills else rng.choice([LIMIT, LIMIT // 2]), verify=verify
        )
        for _ in range(3):
            way = rng.choice(["runs", "scattered", "single"])
            for _ in range(12):
                start = rng.randrange(COUNT - 40)
                if way == "runs":
                    read(ds, list(range(start, start + 40)))
                elif way == "scattered":
                    read(ds, rng.sample(range(COUNT), 20))
                else:
                    assert all(is_sample(ds[i], i, NBYTES) for i in range(start, start + 9))

    opened(far, ssd).close()
    rng = seeded("streams")
    for _ in range(scaled(10)):
        base = 4 * rng.randrange(1000)
        codes_of_four(lambda k, base=base: work(base + k), rng, kills)
        tally("processes that streamed at once", 4)
    ds = opened(far, ssd)
    read_all(ds)
    assert not kills or on_disk(ssd) <= LIMIT


def test_a_block_that_goes_between_the_look_and_the_read_is_no_data(far, ssd):
    ds, other = opened(far, ssd, verify="never"), opened(far, ssd)
    read(ds, list(range(200, 216)))

    class Freeing(System):
        times = 0

        def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
            if nbytes >= NBYTES:
                with replace_system(System()):
                    free_all(other)
                    Freeing.times += 1
            return super().pread(fd, nbytes, offset)

    with replace_system(Freeing()):
        assert is_sample(ds[205], 205, NBYTES)
        read(ds, list(range(200, 216)))
    assert Freeing.times


def test_what_the_map_says_is_gone_before_it_goes(far, ssd):
    at, code = 0, -signal.SIGKILL
    while code:
        at += 1
        ds = opened(far, ssd)
        read(ds, list(range(200, 240)))

        class KilledAtHole(Killing):
            def punch(self, fd: int, offset: int, nbytes: int) -> None:
                self._step()
                super().punch(fd, offset, nbytes)
                self._step()

        code = ended(in_child(lambda ds=ds: free_all(ds), KilledAtHole(at)))
        assert code in (0, -signal.SIGKILL)
        read(opened(far, ssd, verify="never"), list(range(200, 240)))
    assert at > 2


def test_what_a_killed_process_had_taken_is_given_back(far, ssd):
    opened(far, ssd).close()

    def die() -> None:
        class Dying(System):
            def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
                if len(data) > 4096:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().pwrite(fd, data, offset)

        with replace_system(Dying()):
            read(opened(far, ssd), list(range(300, 460)))

    assert ended(in_child(die)) == -signal.SIGKILL
    taken = on_disk(ssd)
    assert taken > 8 * BLOCK_NBYTES
    with serving(far.read_bytes()):
        ds = opened(far, ssd)
        for _ in range(2):
            for k in range(0, 240, 24):
                read(ds, list(range(k, k + 24)))
    here = np.frombuffer(file_of(ds).blocks.look(0, file_of(ds).blocks.last + 1), np.uint8) & 1
    assert on_disk(ssd) <= (here.sum() + 1) * BLOCK_NBYTES


def test_where_nothing_can_be_freed_the_rest_is_read_and_not_kept(far, ssd):
    with replace_system(Refusing(errno.EOPNOTSUPP, "punch")):
        ds = opened(far, ssd)
        with pytest.warns(RuntimeWarning, match="what max_bytes= leaves no room for is read every time"):
            read_all(ds)
        read(ds, list(range(COUNT - 9, COUNT)))
        assert LIMIT - 2 * BLOCK_NBYTES < on_disk(ssd) <= LIMIT


def test_an_archive_that_fits_again_becomes_a_whole_copy(far, ssd):
    read(opened(far, ssd), list(range(COUNT)))
    ds = opened(far, ssd, None)
    read(ds, list(range(COUNT)))
    ds.refresh()
    assert ds.info()["mapped"] == far.stat().st_size
    read(opened(far, ssd), list(range(COUNT)))


def test_a_room_of_no_block_reads_all_the_same(far, ssd):
    ds = opened(far, ssd, 1000)
    read(ds, list(range(0, COUNT, 7)))
    assert is_sample(ds[9], 9, NBYTES)
    assert on_disk(ssd) == 0
