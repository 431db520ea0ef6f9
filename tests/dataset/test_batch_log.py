"""Logs of batches, and replay of states: what they say is what was read, and what is not so is found."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from systems import ended, in_child

from edcache import CachedDataset
from edcache.dataset import sampler_of, verify_log
from edcache.dataset.batch_log import batch_hash
from edcache.errors import OptionError
from edcache.samplers import Balanced, ByLength, ChunkShuffle, Sequential, Shuffle, Weighted

COUNT = 200


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "a.zip"
    samples = [
        {"x": np.full(5, n, np.float32), "n": n, "y": n % 3, "size": 1 + n % 7, "w": n % 5 + 0.5}
        for n in range(COUNT)
    ]
    CachedDataset(samples, path, in_memory_keys=["y", "size", "w"], chunk_size=1000).close()
    return path


@pytest.fixture
def ds(path):
    return CachedDataset.from_cache(path)


MADE = {
    "Sequential": lambda ds, **job: Sequential(ds, **job),
    "Shuffle": lambda ds, **job: Shuffle(ds, 3, **job),
    "ChunkShuffle": lambda ds, **job: ChunkShuffle(ds, 2, seed=4, **job),
    "Balanced": lambda ds, **job: Balanced(ds, "y", num_samples=90, **job),
    "Weighted": lambda ds, **job: Weighted(ds, "w", 77, replacement=True, **job),
    "ByLength": lambda ds, **job: ByLength(ds, "size", 8, **job),
    "steps": lambda ds, **job: Shuffle(ds, 5, global_batch_size=24, **job),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_log_is_what_was_read_and_a_state_says_it_again(ds, tmp_path, name, ranks):
    log, state = tmp_path / "a.log", None
    for rank in range(ranks):
        sampler = MADE[name](ds, num_replicas=ranks, rank=rank)
        size = None if sampler._gives_lists else 16
        loader = ds.loader(size, sampler=sampler, log=log)
        for _ in range(2):
            state = json.loads(json.dumps(loader.state_dict()))
            read = [batch["n"].tolist() for batch in loader]
        steps = len(read)
        again = sampler_of(ds, state, ranks, rank)
        again.set_epoch(1)
        assert read == [again.which(k, batch_size=size or 1).tolist() for k in range(steps)]
    report = verify_log(ds, log)
    assert report.problems == []
    assert report.steps == report.batches == len(log.read_text().split('"step"')) - 1


def test_what_differs_is_named(ds, tmp_path, path):
    log = tmp_path / "a.log"
    for _ in ds.loader(16, shuffle=True, seed=1, log=log):
        pass
    lines = [json.loads(line) for line in log.read_text().split("\n") if line]
    assert lines[0].keys() == {"rank", "ranks", "batch_size", "is_stored", "state"}

    def problems(change):
        changed = [dict(line) for line in lines]
        change(changed)
        log.write_text("".join(json.dumps(line) + "\n" for line in changed))
        return verify_log(ds, log).problems

    assert problems(lambda lines: None) == []
    swapped = problems(lambda lines: lines[3].update(indices=lines[4]["indices"]))
    assert swapped == ["line 4: rank 0, epoch 0, step 2: other samples than the order has"]
    other = problems(lambda lines: lines[3].update(batch="0" * 16))
    assert other == ["line 4: rank 0, epoch 0, step 2: the same samples, with another content"]
    assert problems(lambda lines: lines.pop()) == []  # of an iteration that was abandoned
    assert problems(lambda lines: lines.pop(3)) == ["line 4: rank 0, epoch 0, step 3: step 2 is due"]
    twice = problems(lambda lines: lines.insert(3, lines[3]))
    assert twice == ["line 5: rank 0, epoch 0, step 2: step 3 is due"]
    text = problems(lambda lines: lines[3].update(step="2"))
    assert text[0] == "line 4: not a line of a log, or of an iteration that did not begin"
    early = problems(lambda lines: lines.insert(0, lines.pop(1)))
    assert early[0] == "line 1: not a line of a log, or of an iteration that did not begin"


def test_a_log_without_its_beginning_is_no_log(ds, tmp_path):
    log = tmp_path / "a.log"
    for _ in ds.loader(16, log=log):
        pass
    log.write_text("\n".join(log.read_text().split("\n")[2:]))
    with pytest.raises(OptionError, match=r"a.log: no log of batches; give what ds.loader\(log=\) wrote"):
        verify_log(ds, log)


def test_a_line_that_does_not_read_amid_a_log_is_a_problem(ds, tmp_path):
    log = tmp_path / "a.log"
    for _ in ds.loader(16, log=log):
        pass
    text = log.read_bytes()
    log.write_bytes(text.replace(b'"step": 4', b'"step" 4'))
    assert verify_log(ds, log).problems[0] == "line 7: it does not read"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_killed_process_leaves_a_log_that_goes_on(ds, tmp_path):
    log = tmp_path / "a.log"

    def work():
        for step, _ in enumerate(ds.loader(16, shuffle=True, seed=2, log=log)):
            if step == 5:
                with open(log, "ab") as file:
                    file.write(b'{"rank": 0, "st')
                os.kill(os.getpid(), signal.SIGKILL)

    assert ended(in_child(work)) == -signal.SIGKILL
    for _ in ds.loader(16, shuffle=True, seed=2, log=log):
        pass
    report = verify_log(ds, log)
    assert (report.problems, report.steps) == ([], 6 + -(-COUNT // 16))


def test_behind_a_transform_the_samples_are_compared_alone(path, tmp_path):
    log = tmp_path / "{rank}.log"
    ds = CachedDataset.from_cache(path, transform=lambda sample: sample["n"])
    for _ in ds.loader(16, log=log):
        pass
    report = verify_log(CachedDataset.from_cache(path), tmp_path / "0.log")
    assert (report.problems, report.steps, report.batches) == ([], 13, 0)


def test_a_hash_knows_meaning_and_bytes():
    batches = [
        torch.tensor([0.0, 1.0]),
        torch.tensor([-0.0, 1.0]),
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([0.0, 1.0], dtype=torch.float64),
        {"a": torch.tensor([0.0, 1.0])},
        {"b": torch.tensor([0.0, 1.0])},
        [torch.tensor([0.0, 1.0])],
        (torch.tensor([0.0, 1.0]),),
        ["a", "b"],
        ["ab"],
        ["a", b"b"],
        [1, 2],
        [1, 2.0],
        [None],
        torch.tensor([float("nan")]),
        torch.tensor(True),
        np.arange(5000),
        np.where(np.arange(5000) == 2500, 0, np.arange(5000)),
        torch.tensor([1, 2, 3])[::2],
    ]
    assert len({batch_hash(batch) for batch in batches}) == len(batches)
    assert batch_hash(torch.tensor([1, 2, 3])[::2]) == batch_hash(torch.tensor([1, 3]))


def test_a_state_that_does_not_say_its_order_is_an_error(ds):
    by_array = Balanced(ds, np.arange(COUNT) % 4).state_dict()
    with pytest.raises(OptionError, match="a state of Balanced that was made with an array .*; make it"):
        sampler_of(ds, by_array)
    with pytest.raises(OptionError, match="a state of order='list'; give one of Sequential, Shuffle"):
        sampler_of(ds, ds.loader(2, sampler=[1, 2, 3]).state_dict())
    few = ds.filter("y == 1")
    with pytest.raises(OptionError, match="a state with "):
        sampler_of(ds, Shuffle(few).state_dict())
    assert np.array_equal(sampler_of(few, Shuffle(few).state_dict()).order(), Shuffle(few).order())


JOB = """
import edcache

def turned(sample, rng, ctx):
    ctx["angle"] = float(rng.random())
    return {**sample, "angle": ctx["angle"]}

def dataset():
    return edcache.CachedDataset.from_cache(PATH).filter("y == 1").with_transform(turned, seed=5)

def mixture():
    ds = dataset()
    return edcache.mix([ds[:20], ds[20:]], [2, 1], schedule={30: [1, 1]}, stop=50, seed=4)

def number():
    return 5
"""


def run(*arguments, folder=None):
    command = [sys.executable, "-m", "edcache", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize("kind", ["Balanced", "Shuffle", "steps", "mixture"])
def test_a_step_of_what_a_function_returns_shows_what_its_transforms_drew(path, tmp_path, kind):
    """Also where a sample is drawn twice. A mixture's sources keep what they draw to themselves."""
    (tmp_path / "the_job.py").write_text(JOB.replace("PATH", repr(str(path))))
    job = {}
    exec(JOB.replace("PATH", repr(str(path))), job)
    ds = job["dataset"]()
    sampler = job["mixture"]() if kind == "mixture" else MADE[kind](ds)
    ds = sampler.dataset if kind == "mixture" else ds
    size = None if sampler._gives_lists else 6
    loader = ds.loader(size, sampler=sampler)
    loader.set_epoch(2)
    batches = list(loader)
    sampler.set_epoch(2)
    sampler.load_state_dict(sampler.state_dict(1, batch_size=size or 1))
    (tmp_path / "state.json").write_text(json.dumps(sampler.state_dict()))
    name = "mixture" if kind == "mixture" else "dataset"
    shown = run(
        *("replay", f"the_job:{name}", "state.json", "--step", 1, "--batch-size", size or 1, "--jsonl"),
        folder=tmp_path,
    )
    assert shown.stderr == ""
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [ds[row["position"]]["n"] for row in rows] == batches[2]["n"].tolist()
    if kind == "mixture":
        assert rows[0].keys() == {"position", "index", "labels"}
    else:
        assert [row["draws"]["angle"] for row in rows] == batches[2]["angle"].tolist()
    wrong = run("replay", "the_job:number", "state.json", "--step", 1, folder=tmp_path)
    assert "the_job:number returned int; let it return a dataset of edcache or a mixture" in wrong.stderr


def test_the_command_shows_a_step_and_compares_a_log(ds, tmp_path, path):
    sampler = Shuffle(ds, 9, num_replicas=4, rank=0)
    (tmp_path / "state.json").write_text(json.dumps(sampler.state_dict()))
    shown = run(
        *("replay", path, tmp_path / "state.json", "--step", 2, "--ranks", 4, "--rank", 3),
        *("--batch-size", 5, "--jsonl"),
    )
    assert shown.stderr == ""
    positions = Shuffle(ds, 9, num_replicas=4, rank=3).which(2, batch_size=5).tolist()
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["index"] for row in rows] == [row["position"] for row in rows] == positions
    assert [row["labels"]["y"] for row in rows] == [p % 3 for p in positions]
    log = tmp_path / "a.log"
    few = ds.filter("y == 1")
    for _ in few.loader(16, shuffle=True, log=log):
        pass
    compared = run("replay", path, "--where", "y == 1", "--log", log)
    assert (compared.returncode, compared.stdout) == (0, "5 steps compared, 5 of them by their content\n")
    log.write_text(log.read_text().replace('"step": 3', '"step": 2'))
    compared = run("replay", path, "--where", "y == 1", "--log", log)
    assert compared.returncode == 1
    where = f"{log}: line 6: rank 0, epoch 0, step 2: "
    assert compared.stderr.startswith(f"{where}step 3 is due\n{where}other samples than the order has\n")
    assert run("replay", path).returncode == 2
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{")
    assert "wrong.json: no JSON: " in run("replay", path, wrong, "--step", 0).stderr
