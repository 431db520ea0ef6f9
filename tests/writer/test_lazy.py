"""Lazy caches: computed when asked for, kept for everyone, sealed by whoever brings the last sample."""

import gc
import itertools
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from filled import computed, note, stored_rows
from likeness import same
from systems import Small, replace_system
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset
from edcache.backends import FileStore
from edcache.base import bytes_limit
from edcache.errors import CodecError, OptionError, SourceError, StaleArchiveError, StaleCacheError
from edcache.reader import Reader
from edcache.writer import Appender, builder
from edcache.writer.job import Job


class Logged:
    def __init__(self, log, length=40):
        self.log, self.length = str(log), length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        note(self.log, i)
        return {"x": torch.full((2,), i), "y": i % 3}


def test_nothing_is_computed_before_it_is_asked_for(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False, in_memory_keys=["y"])
    assert computed(log) == []
    assert len(ds) == 40
    assert not ds.complete
    assert ds[7]["x"].tolist() == [7, 7]
    assert computed(log) == [7]
    ds.close()
    assert CachedDataset.from_cache(path, allow_partial=True)[7]["y"] == 1
    assert CachedDataset.from_cache(path, allow_partial=True).missing.tolist() == [
        i for i in range(40) if i != 7
    ]


def test_samples_that_labels_do_not_know_yet_are_told_once(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False, in_memory_keys=["y"])
    assert len(ds.filter(y=None)) == len(ds.filter(range(40))) == 40
    with pytest.warns(RuntimeWarning, match=r"^filter\(\) leaves out 40 of 40 samples, which have no reco"):
        assert len(ds.filter(y=1)) == 0
    assert len(edcache.samplers.Balanced(ds, "y")) == 0
    assert len(ds.warmup().filter(y=1)) == 13


def test_after_one_epoch_the_archive_is_sealed_and_the_next_computes_nothing(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False, in_memory_keys=["y"])
    for _ in range(2):
        assert [s["y"] for s in ds] == [i % 3 for i in range(40)]
    assert computed(log) == list(range(40))
    assert Reader(path).session.sealed
    ds.refresh()
    assert ds.complete
    assert ds.labels["y"].tolist() == [i % 3 for i in range(40)]


def test_workers_of_a_data_loader_fill_it_together(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False)
    loader = DataLoader(ds, batch_size=5, num_workers=2)
    seen = torch.cat([batch["x"][:, 0] for batch in loader])
    assert seen.tolist() == list(range(40))
    del loader
    assert computed(log) == list(range(40))
    assert edcache.verify(path).sealed
    assert CachedDataset.from_cache(path).complete


def test_what_its_workers_stored_is_told_without_a_refresh(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False)
    odd = ds[1::2]
    for _ in DataLoader(odd, batch_size=5, num_workers=2):
        pass
    assert ds.missing.tolist() == list(range(0, 40, 2))
    assert (len(odd.missing), ds.complete, odd.complete) == (0, False, False)
    assert "20 missing" in repr(ds)
    for _ in DataLoader(ds, batch_size=5, num_workers=2):
        pass
    assert odd.complete
    assert ds.missing.tolist() == []
    assert "missing" not in repr(ds)


def test_workers_that_stay_keep_an_open_chunk_each_until_they_end(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False)
    loader = DataLoader(ds, batch_size=5, num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert torch.cat([batch["x"][:, 0] for batch in loader]).tolist() == list(range(40))
    assert sorted(set(computed(log))) == list(range(40))
    loader._iterator._shutdown_workers()
    assert edcache.verify(path).sealed
    assert stored_rows(path) == list(range(40))


def test_a_source_that_raises_says_so_at_the_read(path):
    class Broken(Logged):
        def __getitem__(self, i):
            raise ValueError("broken")

    ds = CachedDataset(Broken("unused"), path, lazy=True, spot_check=False)
    with pytest.raises(SourceError, match="the source raised at index 4: ValueError: broken"):
        ds[4]


def test_a_lazy_cache_of_a_whole_archive_needs_its_source_no_more(path, log):
    CachedDataset(Logged(log), path, spot_check=False)
    ds = CachedDataset(Logged(log), path, spot_check=False, lazy=True)
    assert ds[5]["y"] == 2
    assert computed(log) == list(range(40))


def test_a_dropped_lazy_cache_publishes_what_it_computed(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False)
    ds[1]
    del ds
    assert CachedDataset.from_cache(path, allow_partial=True)[1]["y"] == 1


def test_a_sample_that_is_not_published_yet_is_not_computed_again(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False)
    assert [ds[5]["y"] for _ in range(3)] == [2, 2, 2]
    assert computed(log) == [5]


def test_a_batch_that_repeats_an_index_computes_it_once(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False)
    assert [s["y"] for s in ds.__getitems__([4, 4, 4])] == [1, 1, 1]
    assert computed(log) == [4]


class OneBuffer:
    """Changes what it gave, when it gives the next one."""

    def __init__(self):
        self.buffer = np.zeros(2)

    def __len__(self):
        return 6

    def __getitem__(self, i):
        self.buffer[:] = i
        return {"x": self.buffer, "y": i}


def test_samples_of_a_batch_are_told_apart_though_the_source_has_one_buffer(path):
    ds = CachedDataset(OneBuffer(), path, lazy=True, spot_check=False)
    for _ in range(2):
        assert [sample["x"].tolist() for sample in ds.__getitems__([0, 1, 2])] == [[k, k] for k in range(3)]


@pytest.mark.parametrize("chunk_size", [1, None])
def test_edits_of_a_sample_never_reach_the_cache(path, log, chunk_size):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False, chunk_size=chunk_size)
    ds[5]["x"].fill_(-1)
    assert ds[5]["x"].tolist() == [5, 5]
    ds.close()
    assert CachedDataset.from_cache(path, allow_partial=True)[5]["x"].tolist() == [5, 5]


def test_what_another_cache_published_meanwhile_is_not_computed_again(path, log):
    one = CachedDataset(Logged(log), path, lazy=True, spot_check=False, chunk_size=1)
    two = CachedDataset(Logged(log), path, lazy=True, spot_check=False, chunk_size=1)
    assert one[3]["y"] == 0
    assert two[3]["y"] == 0
    assert computed(log) == [3]


def test_another_source_is_refused_once_a_sample_is_read(path, log):
    """It would be taken for the archive of a first fill that failed, and deleted."""
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False)
    first = ds[3]
    for lazy in (True, False):
        with pytest.raises(
            StaleCacheError,
            match="is another one now: .*; type: 'Logged' in the archive, 'builtins:list' now",
        ):
            CachedDataset([1] * len(ds), path, lazy=lazy)
    ds.close()
    assert same(CachedDataset.from_cache(path, allow_partial=True)[3], first)


def test_a_pickled_lazy_cache_fills_the_same_archive(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False, chunk_size=1)
    copy = pickle.loads(pickle.dumps(ds))
    copy[1], ds[2]
    assert (ds[1]["y"], copy[2]["y"]) == (1, 2)
    assert computed(log) == [1, 2]


def test_a_sample_that_cannot_be_stored_says_so_at_the_read(path):
    class Sets(Logged):
        def __getitem__(self, i):
            return {"bad": {i}}

    ds = CachedDataset(Sets("unused"), path, lazy=True, spot_check=False)
    with pytest.raises(CodecError, match=r'a.zip: sample 4: sample\["bad"\]: cannot store set'):
        ds[4]


def test_lazy_does_not_begin_anew(path, log):
    with pytest.raises(OptionError, match="lazy=True fills what is there; to begin anew delete the file"):
        CachedDataset(Logged(log), path, lazy=True, spot_check=False, keep_existing=False)


# --- what does not fit ------------------------------------------------------------------------------


class Big(Logged):
    def __getitem__(self, i):
        return {**super().__getitem__(i), "big": torch.full((10_000,), i % 100, dtype=torch.uint8)}


@pytest.mark.parametrize("limit", [150_000, "150kB", "0.15 MB"])
def test_an_archive_does_not_grow_beyond_max_bytes(path, log, limit):
    ds = CachedDataset(Big(log), path, lazy=True, spot_check=False, max_bytes=limit, chunk_size=2)
    with pytest.warns(RuntimeWarning, match="the archive would grow beyond max_bytes=150,000; samples"):
        list(ds)
    ds.close()
    assert 50_000 < path.stat().st_size <= 150_000
    kept = Reader(path, allow_partial=True).session.index.present
    assert 5 < kept < 20
    log.unlink()
    again = CachedDataset(Big(log), path, lazy=True, spot_check=False)
    missing = again.missing.tolist()
    assert [again[i]["x"][0] for i in range(40)] == list(range(40))
    assert computed(log) == missing
    assert len(missing) == 40 - kept


class Sized:
    """Samples of so many bytes that do not compress."""

    def __init__(self, nbytes, count):
        self.nbytes, self.count = nbytes, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"x": random.Random(i).randbytes(self.nbytes), "name": f"sample {i}"}


@pytest.mark.parametrize("nbytes", [0, 200, 8_000, 300_000])
@pytest.mark.parametrize("limit", [60_000, 1_000_000, 6_000_000])
@pytest.mark.parametrize("options", [{}, {"compression": "zstd", "in_memory_keys": ["name"]}], ids=str)
def test_up_to_max_bytes_is_kept(path, nbytes, limit, options):
    ds = CachedDataset(Sized(nbytes, 2_000), path, lazy=True, spot_check=False, max_bytes=limit, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(min(2_000, 2 * limit // (nbytes + 300) + 5)):
            ds[i]
        ds.close()
    size, reader = path.stat().st_size, Reader(path, allow_partial=True)
    kept = reader.session.index.present
    ds = CachedDataset.from_cache(path, allow_partial=True)
    assert [ds[i]["name"] for i in range(kept)] == [f"sample {i}" for i in range(kept)]
    if caught:
        assert size <= limit
        assert size + nbytes + 100 > limit - 30_000 - limit // 10
    else:
        assert kept == 2_000 or size < limit


@pytest.mark.filterwarnings("ignore:.*the archive would grow beyond max_bytes")
def test_workers_together_keep_to_max_bytes(path):
    ds = CachedDataset(Sized(8_000, 800), path, lazy=True, spot_check=False, max_bytes=1_000_000)
    for batch in DataLoader(ds, batch_size=5, num_workers=2, collate_fn=list):
        assert len(batch) == 5
    assert 900_000 < path.stat().st_size <= 1_000_000
    assert edcache.verify(path).problems == []


def test_a_part_of_the_free_disk_is_a_limit(path, log):
    free = shutil.disk_usage(path.parent).free
    part = FileStore(str(path)).part
    assert bytes_limit(0.5, part) == pytest.approx(free / 2, rel=0.2)
    assert bytes_limit("1KiB", part) == 1024
    assert bytes_limit("2 TB", part) == 2 * 10**12
    assert bytes_limit(None, part) is None


@pytest.mark.parametrize("limit", [0, -1, 1.5, "much", "GB", "-1GB", "1e999B", True, "nan"])
def test_what_is_no_limit_is_refused(path, log, limit):
    with pytest.raises(OptionError) as caught:
        CachedDataset(Logged(log), path, lazy=True, spot_check=False, max_bytes=limit)
    assert f'max_bytes={limit!r}; give bytes, text such as "20GB", or a part' in str(caught.value)


def test_a_full_disk_passes_the_source_through_with_one_warning(path, log):
    with replace_system(Small(150_000)):
        ds = CachedDataset(Big(log), path, lazy=True, spot_check=False, chunk_size=2)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2):
                assert [sample["y"] for sample in ds] == [i % 3 for i in range(40)]
            ds.close()
    assert len(told) == 1
    assert re.search("a.zip: writing .* No space left on device; samples that are not", str(told[0].message))
    ds = CachedDataset(Big(log), path, lazy=True, spot_check=False)
    assert 5 < 40 - len(ds.missing) < 20
    assert edcache.verify(path).problems == []
    ds.warmup()
    assert ds.complete


# --- beside others ----------------------------------------------------------------------------------


def test_a_sample_that_two_computed_at_a_time_is_stored_once(path, log, monkeypatch):
    monkeypatch.setattr(builder, "_SMALL_SECONDS", (60.0, 60.0))  # or the first might publish too soon
    one = CachedDataset(Logged(log), path, lazy=True, spot_check=False, in_memory_keys=["y"])
    two = CachedDataset(Logged(log), path, lazy=True, spot_check=False, in_memory_keys=["y"])
    one[3], one[4], two[4], two[5]
    one.close()
    two.close()
    assert computed(log) == [3, 4, 4, 5]
    assert stored_rows(path) == [3, 4, 5]
    assert CachedDataset.from_cache(path, allow_partial=True).batch([3, 4, 5])["x"].tolist() == [
        [3, 3],
        [4, 4],
        [5, 5],
    ]
    found = CachedDataset.from_cache(path, allow_partial=True)
    assert [found[i]["x"].tolist() for i in (3, 4, 5)] == [[3, 3], [4, 4], [5, 5]]
    assert found.labels["y"][3:6].tolist() == [0, 1, 2]
    assert edcache.verify(path).problems == []


def before_it_is_appended(index, do, monkeypatch):
    """Call a function before a sample is appended, when its chunk is encoded."""
    append = Appender.append

    def append_late(self, chunk, **options):
        if index in chunk.samples:
            monkeypatch.setattr(Appender, "append", append)
            do()
        append(self, chunk, **options)

    monkeypatch.setattr(Appender, "append", append_late)


def test_a_sample_that_another_publishes_at_the_same_moment_is_stored_once(path, log, monkeypatch):
    one, two = (CachedDataset(Logged(log), path, lazy=True, spot_check=False) for _ in range(2))
    one[3], one[4], two[4], two[5]
    before_it_is_appended(4, one.close, monkeypatch)
    two.close()
    assert stored_rows(path) == [3, 4, 5]


@pytest.mark.parametrize("engine", ["this process", "an executor"])
def test_a_fill_does_not_store_what_a_lazy_cache_publishes_at_the_same_moment(path, log, monkeypatch, engine):
    lazy = CachedDataset(Logged(log), path, lazy=True, spot_check=False)
    lazy[3], lazy[4]
    before_it_is_appended(4, lazy.close, monkeypatch)
    with ThreadPoolExecutor(1) as executor:
        options = {} if engine == "this process" else {"executor": executor}
        ds = CachedDataset(Logged(log), path, spot_check=False, progress=False, **options)
    assert sorted(computed(log)) == [*range(5), *range(4, 40)]
    assert stored_rows(path) == [*range(40)]
    assert ds[4]["x"].tolist() == [4, 4]


def test_threads_that_read_one_lazy_cache_get_their_samples(path, log):
    ds = CachedDataset(Logged(log, 400), path, lazy=True, spot_check=False, chunk_size=10)
    found = {}

    def read(start):
        found[start] = [ds[i]["x"][0].item() for i in range(start, 400, 4)]

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[start] == list(range(start, 400, 4)) for start in range(4))
    ds.close()
    assert CachedDataset.from_cache(path).complete


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_forked_or_spawned_worker_publishes_what_it_computed_when_it_ends(path, log, context):
    ds = CachedDataset(Logged(log), path, lazy=True, spot_check=False)
    ds[39]
    process = get_context(context).Process(target=ds.__getitem__, args=(7,))
    process.start()
    process.join()
    ds.close()
    found = CachedDataset.from_cache(path, allow_partial=True)
    assert (found[7]["y"], found[39]["y"]) == (1, 0)
    assert found._archive.reader.session.index.present == 2


READ = """
import os, sys, time
sys.path += sys.argv[3].split(os.pathsep)
from edcache import CachedDataset
from test_lazy import Logged
ds = CachedDataset(Logged(sys.argv[2], 400), sys.argv[1], lazy=True, spot_check=False, chunk_size=10)
for k in map(int, sys.argv[4:]):
    assert ds[k]["x"][0] == k
print("read", flush=True)
time.sleep(600)
"""


def test_a_killed_reader_loses_its_open_chunk_and_nothing_else(path, log):
    turns = [range(95), range(200, 295)]
    command = [sys.executable, "-c", READ, str(path), str(log), os.pathsep.join(sys.path)]
    readers = [
        subprocess.Popen([*command, *map(str, turn)], stdout=subprocess.PIPE, text=True) for turn in turns
    ]
    for reader in readers:
        assert reader.stdout.readline() == "read\n"
        reader.kill()
        reader.communicate()
    found = CachedDataset.from_cache(path, allow_partial=True)
    for turn in turns:
        kept = [k for k in turn if found._archive.reader.session.index.has(k)]
        assert kept == list(turn)[: len(kept)]
        assert len(kept) >= 90
    log.unlink()
    missing = found.missing.tolist()
    ds = CachedDataset(Logged(log, 400), path, lazy=True, spot_check=False)
    assert [int(sample["x"][0]) for sample in ds] == list(range(400))
    assert computed(log) == missing
    ds.close()
    assert edcache.verify(path).sealed


def test_a_process_that_ends_without_closing_keeps_all(path, log):
    code = READ.replace("time.sleep(600)", "")
    command = [sys.executable, "-c", code, str(path), str(log), os.pathsep.join(sys.path), "3", "5"]
    subprocess.run(command, check=True, capture_output=True)
    assert stored_rows(path) == [3, 5]


def test_an_archive_that_is_gone_as_its_process_ends_takes_one_line(tmp_path):
    script = tmp_path / "script.py"
    folder = tmp_path / "gone"
    folder.mkdir()
    script.write_text(
        f"import sys; sys.path[:] = {sys.path!r}\nimport shutil\nfrom edcache import CachedDataset\n"
        f"ds = CachedDataset([1, 2, 3], {str(folder / 'a.zip')!r}, lazy=True, spot_check=False)\n"
        f"ds[1]; ds[2]; shutil.rmtree({str(folder)!r})\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith(f"{folder}/a.zip: deleted, or another file has taken its place")
    assert done.stderr.endswith("; samples that were computed and not appended are lost\n")


def test_a_cycle_that_is_collected_amid_a_read_of_another_cache_keeps_its_samples(path, log, tmp_path):
    cycle = {"ds": CachedDataset(Logged(log), path, lazy=True, spot_check=False)}
    cycle["me"] = cycle
    for i in range(10):
        cycle["ds"][i]

    class Collecting(Logged):
        def __getitem__(self, i):
            gc.collect()
            return super().__getitem__(i)

    before = set(threading.enumerate())
    other = CachedDataset(Collecting(log), tmp_path / "other.zip", lazy=True, spot_check=False)
    del cycle
    assert other[0]["y"] == 0
    assert set(threading.enumerate()) <= before
    assert stored_rows(path) == list(range(10))


def test_a_flush_does_not_wait_for_what_others_go_on_to_read(path, log):
    ds = CachedDataset(Logged(log, 100_000), path, lazy=True, spot_check=False)
    stop = threading.Event()
    counter = itertools.count(1)

    def read():
        while not stop.is_set():
            ds[next(counter)]

    readers = [threading.Thread(target=read) for _ in range(3)]
    ds[0]
    for reader in readers:
        reader.start()
    try:
        began = time.monotonic()
        assert ds[0]["y"] == 0
        assert time.monotonic() - began < 20
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    ds.close()


def test_a_read_does_not_wait_while_another_cache_is_opened(tmp_path, log, monkeypatch):
    opened = CachedDataset(Logged(log), tmp_path / "a.zip", lazy=True, spot_check=False)
    other = CachedDataset(Logged(log), tmp_path / "b.zip", lazy=True, spot_check=False)
    opened[0]
    begun, may_go = threading.Event(), threading.Event()
    open_archive = Job.open

    def open_when_let_go(job):
        begun.set()
        assert may_go.wait(60)
        return open_archive(job)

    monkeypatch.setattr(Job, "open", open_when_let_go)
    found = []
    opener = threading.Thread(target=lambda: other[0])
    reader = threading.Thread(target=lambda: found.append(opened[1]["y"]))
    opener.start()
    try:
        assert begun.wait(30)
        reader.start()
        reader.join(20)
        assert found == [1]
    finally:
        may_go.set()
        opener.join()
        reader.join()
    opened.close()
    other.close()


class Batches(Logged):
    """Gives batches, as columns or as a list; a line in the log for each call."""

    form = "columns"

    def __getitems__(self, indices):
        with open(self.log, "a") as file:
            file.write(" ".join(map(str, indices)) + "\n")
        if 13 in indices:
            raise ValueError("13")
        columns = {"x": torch.tensor(indices), "y": [f"text {index}" for index in indices]}
        if self.form == "columns":
            return columns
        return [{name: values[k] for name, values in columns.items()} for k in range(len(indices))]

    def __getitem__(self, index):
        return (
            self.__getitems__([index])[0]
            if self.form == "list"
            else {"x": self.__getitems__([index])["x"][0], "y": f"text {index}"}
        )


@pytest.mark.parametrize("form", ["columns", "list"])
def test_a_batch_is_one_call_of_a_source_that_gives_batches(path, log, form):
    source = Batches(log, 40)
    source.form = form
    ds = CachedDataset(source, path, lazy=True, spot_check=False, progress=False)
    first = ds.batch([5, 3, 5, 20])
    assert first["x"].tolist() == [5, 3, 5, 20]
    assert first["y"] == ["text 5", "text 3", "text 5", "text 20"]
    again = list(DataLoader(ds, 4, sampler=[3, 4, 20, 6]))
    assert again[0]["x"].tolist() == [3, 4, 20, 6]
    assert ds.select("x")[[6, 30]].batch([0, 1])["x"].tolist() == [6, 30]
    assert log.read_text().splitlines() == ["5 3 20", "4 6", "30"]
    with (
        pytest.warns(RuntimeWarning, match="a batch of 3 samples, from index 12 on, raised ValueError: 13"),
        pytest.raises(SourceError, match="at index 13: ValueError: 13"),
    ):
        ds.batch([12, 13, 14])
    ds.close()
    assert CachedDataset.from_cache(path, allow_partial=True).batch([3, 4, 5])["y"] == [
        "text 3",
        "text 4",
        "text 5",
    ]


# --- samples with keys ---


class Named:
    """Samples by name; `bad` fail."""

    def __init__(self, names, bad=""):
        self.names, self.bad = names, bad

    def __len__(self):
        return len(self.names)

    def __edcache_fingerprint__(self):
        return "names"

    def sample_key(self, i):
        return self.names[i]

    def __getitem__(self, i):
        if self.names[i] in self.bad:
            raise ValueError("bad")
        return {"name": self.names[i]}


def reordered(path):
    """An archive whose seal gave samples other numbers, and which lacks one."""
    for names in ("abc", "cba"):
        CachedDataset(Named(names, bad="c"), path, progress=False, on_error="skip").close()


def test_a_sample_that_failed_is_computed_in_the_order_of_the_last_source(path):
    reordered(path)
    with CachedDataset(Named("cba"), path, lazy=True) as ds:
        assert [sample["name"] for sample in ds] == [*"cba"]
    assert [sample["name"] for sample in CachedDataset.from_cache(path)] == [*"cba"]


@pytest.mark.parametrize("look", [lambda ds: ds[0], lambda ds: ds.missing, lambda ds: ds.batch([0, 1])])
@pytest.mark.parametrize("is_open", [False, True])
def test_an_order_that_another_process_gave_since_is_an_error(path, look, is_open):
    reordered(path)
    ds = CachedDataset(Named("cba", bad="c"), path, lazy=True)
    if is_open:
        with pytest.raises(SourceError):
            ds[0]
    CachedDataset(Named("bcd", bad="c"), path, progress=False, on_error="skip").close()
    for _ in range(2):
        with pytest.raises(StaleArchiveError, match="order"):
            look(ds)
        assert [ds[1]["name"], ds[2]["name"]] == ["b", "a"]
