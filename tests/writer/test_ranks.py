"""Many processes make the same call at once, as ranks of a job do: each sample is computed once in all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filled import computed, processes, stored_rows

import edcache
from edcache import CachedDataset
from edcache.writer.job import claim_size

pytestmark = pytest.mark.spread

COUNT = 400

PROGRAM = """
import os, sys, time
import torch, edcache

def begin_together():
    rank, size = map(int, os.environ.get("AT_ONCE", "0 1").split())
    names = [f"{log}.{{rank}} of {{size}}" for rank in range(size)]
    open(names[rank], "w").close()
    while not all(map(os.path.exists, names)):
        time.sleep(0.01)

class Source:
    def __len__(self): return {count}
    def __getitem__(self, i):
        with open({log!r}, "ab", buffering=0) as file:
            file.write(f"{{i}} {{os.getpid()}}\\n".encode())
        time.sleep({seconds})
        return {{"x": torch.full((50,), i), "y": i % 3}}

@edcache.cachable({path!r}, in_memory_keys=["y"], spot_check=False, {options})
def make(version=1):
    return Source()

if __name__ == "__main__":
    begin_together()
    ds = make(*map(int, sys.argv[1:]))
    assert [int(s["x"][0]) for s in ds] == list(range({count}))
    print(len(ds), ds.labels["y"].sum(), ds._archive.reader.session.head.uuid.hex())
"""


def program(path, log, options="", seconds=0.002):
    script = path.parent / "rank.py"
    script.write_text(
        PROGRAM.format(count=COUNT, log=str(log), path=str(path), options=options, seconds=seconds)
    )
    return script


def run_at_once(script, ranks, *arguments, environment=None):
    processes = []
    for rank in range(ranks):
        told = {"AT_ONCE": f"{rank} {ranks}"}
        if environment:
            told |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        processes.append(
            subprocess.Popen(
                [sys.executable, script, *map(str, arguments)],
                env={**os.environ, **told},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return [(*process.communicate(timeout=120), process.returncode) for process in processes]


@pytest.mark.full
@pytest.mark.parametrize("environment", [True, False], ids=["torchrun", "bare"])
@pytest.mark.parametrize("options", ["", "num_workers=2"], ids=["alone", "workers"])
def test_ranks_that_call_a_factory_at_once_compute_each_sample_once(path, log, environment, options):
    # Long enough that none has done all before the last has imported what it needs.
    found = run_at_once(program(path, log, options, seconds=0.01), 8, environment=environment)
    assert [error for _, error, code in found if code] == []
    assert len({out for out, _, _ in found}) == 1
    assert computed(log) == list(range(COUNT))
    assert len(processes(log)) > 1
    assert edcache.verify(path).sound


@pytest.mark.full
@pytest.mark.parametrize("environment", [True, False], ids=["torchrun", "bare"])
def test_ranks_that_resume_say_once_what_was_there_before(path, log, environment):
    script = program(path, log, seconds=0.02)
    first = subprocess.Popen([sys.executable, script], stderr=subprocess.DEVNULL)
    while not log.exists() or len(computed(log)) < 150:
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    first.wait()
    kept = COUNT - len(edcache.CachedDataset.from_cache(path, allow_partial=True).missing)
    log.unlink()
    found = run_at_once(script, 3, environment=environment)
    said = [line for _, error, _ in found for line in error.splitlines() if "already cached" in line]
    assert said == [f"{path.name}: {kept} of {COUNT} already cached"]


@pytest.mark.full
def test_ranks_of_a_new_fill_say_nothing_of_samples_of_each_other(path, log):
    together = path.parent / "together"
    script = program(path, log, seconds=f"0.002 if i < 60 or os.path.exists({str(together)!r}) else 0.1")
    ranks = [subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)]
    while not log.exists() or len(computed(log)) < 60:
        time.sleep(0.01)
    ranks += [subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    while len(processes(log)) < 3:
        time.sleep(0.01)
    together.touch()
    texts = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert not any("already cached" in text for text in texts)
    assert sum("cached in" in text for text in texts) == 1


@pytest.mark.full
def test_ranks_that_rebuild_at_once_build_one_archive(path, log):
    script = program(path, log, 'on_stale="rebuild"')
    run_at_once(script, 1)
    log.unlink()
    found = run_at_once(script, 4, 2, environment=True)
    assert [error for _, error, code in found if code] == []
    assert len({out for out, _, _ in found}) == 1
    assert computed(log) == list(range(COUNT))
    assert edcache.verify(path).sound


SECONDS = float(os.environ.get("EDCACHE_CHAOS_SECONDS", "6"))

FILLER = """
import os, sys, time
import torch, edcache
class Source:
    def __len__(self): return {count}
    def __getitem__(self, i):
        time.sleep({seconds})
        return {{"x": torch.full((200 + i % 50,), i), "y": i % 3}}
if __name__ == "__main__":
    edcache.CachedDataset(Source(), {path!r}, in_memory_keys=["y"], fingerprint={{"type": "chaos"}})
"""

READER = """
import os, random, sys, time
import numpy, torch, edcache
from edcache.writer import store_at
path, until = sys.argv[1], float(sys.argv[2])
while store_at(path).found() is None:
    time.sleep(0.01)
ds = edcache.CachedDataset.from_cache(path)
reads = 0
while time.time() < until or not reads:
    ds.refresh()
    there = numpy.setdiff1d(numpy.arange(len(ds)), ds.missing)
    for i in random.sample(there.tolist(), min(50, len(there))):
        sample = ds[i]
        assert sample["x"].equal(torch.full((200 + i % 50,), i)) and sample["y"] == i % 3, i
        assert ds.labels["y"][i] == i % 3
        reads += 1
print(reads)
"""


@pytest.mark.full
def test_chaos_of_fillers_that_are_killed_and_readers(path, tmp_path):
    """4 fillers, 2 readers; a filler is killed and started again several times a second."""
    count, began = 12_000, time.time()
    filler, reader = tmp_path / "filler.py", tmp_path / "reader.py"
    filler.write_text(FILLER.format(count=count, seconds=SECONDS / count * 2.5, path=str(path)))
    reader.write_text(READER)

    def start():
        return subprocess.Popen([sys.executable, filler], stderr=subprocess.PIPE, text=True)

    fillers = [start() for _ in range(4)]
    until = str(began + SECONDS + 5)
    readers = [
        subprocess.Popen(
            [sys.executable, reader, path, until], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    kills = 0
    while time.time() < began + SECONDS:
        time.sleep(min(1.0, SECONDS / 8))
        victim = kills % 4
        fillers[victim].kill()
        fillers[victim].communicate()
        fillers[victim] = start()
        kills += 1
    for process in fillers:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    for process in readers:
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        assert int(out) > 0
    ds = CachedDataset.from_cache(path)
    assert ds._archive.reader.session.sealed
    assert all(int(ds[i]["x"][0]) == i and len(ds[i]["x"]) == 200 + i % 50 for i in range(count))
    assert ds.labels["y"].tolist() == [i % 3 for i in range(count)]
    assert edcache.verify(path).sound
    assert stored_rows(path) == list(range(count))
    assert locks_on(path) == []


def locks_on(path):
    inode = f":{path.stat().st_ino} "
    return [line for line in Path("/proc/locks").read_text().splitlines() if inode in line]


def test_claims_are_small_enough_for_all_to_end_together():
    assert [claim_size(n) for n in (0, 1, 99, 100, 2000, 6400, 10**7)] == [1, 1, 1, 1, 20, 64, 64]
