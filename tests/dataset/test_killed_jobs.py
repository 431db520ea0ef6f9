"""Jobs of real ranks that are killed at random, and come back with others, read what one rank reads alone."""

import json
import subprocess
import sys

import killed_jobs
import numpy as np
import pytest
from killed_jobs import EPOCHS, LENGTH, SIZE
from scale import SEED, scaled

from edcache import CacheWriter

pytestmark = pytest.mark.full
HISTORIES = scaled(18, least=1)
ONCE = ("Shuffle", "Sequential", "ChunkShuffle", "ByLength", "loader")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What all histories logged."""
    folder = tmp_path_factory.mktemp("killed")
    rng = np.random.default_rng(0)
    with CacheWriter(folder / "a.zip", in_memory_keys=["label", "weight", "n_tokens"], chunk_size=16) as w:
        for k in range(LENGTH):
            x = rng.random(4, "f4")
            w.append({"k": k, "x": x, "label": k % 3, "weight": float(k % 4), "n_tokens": k * k % 97 + 1})
    program = [
        sys.executable,
        killed_jobs.__file__,
        str(folder / "a.zip"),
        str(folder),
        str(SEED),
        str(HISTORIES),
    ]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def lines(path):
    """Of a log: (epoch, step, rows) each. Who was killed may leave half a line."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def alone(folder, name, uneven):
    """What one rank reads: {(epoch, step): rows}."""
    path = folder / "0" / f"{name} {uneven}"
    assert not list(path.glob("error-*")), (path / "error-0-0").read_text()
    return {(epoch, step): rows for epoch, step, rows in lines(path / "0-0")}


@pytest.mark.parametrize("name", killed_jobs.ORDERS)
@pytest.mark.parametrize("uneven", killed_jobs.UNEVEN)
def test_an_epoch_of_one_rank_has_every_sample_once(folder, name, uneven):
    steps = alone(folder, name, uneven)
    assert steps.keys() == {(epoch, k) for epoch in range(EPOCHS) for k in range(len(steps) // EPOCHS)}
    for epoch in range(EPOCHS):
        drawn = [k for (e, _), rows in steps.items() if e == epoch for k, _ in rows]
        if name == "ByShape":  # a step of one shape is full, or left out
            assert len(set(drawn)) == len(drawn) > LENGTH / 2
        if name not in ONCE:
            continue
        if name == "loader" or uneven == "allow":
            assert sorted(drawn) == list(range(LENGTH))
        elif uneven == "drop":
            assert len(set(drawn)) == len(drawn) == LENGTH // SIZE * SIZE
        else:
            assert set(drawn) == set(range(LENGTH))
            assert drawn[LENGTH:] == drawn[: -LENGTH % SIZE]
    assert len({crc for rows in steps.values() for k, crc in rows if k == 7}) > 1, "an epoch draws anew"


@pytest.mark.parametrize("history", range(1, HISTORIES + 1))
def test_a_killed_job_reads_on_exactly(folder, history, tally):
    here = folder / str(history)
    plan = json.loads((here / "plan.json").read_text())
    lives = [killed_jobs.Life(*life) for life in plan["lives"]]
    expected = alone(folder, plan["name"], plan["uneven"])
    order, done, killed = sorted(expected), 0, 0
    for number, life in enumerate(lives):
        logs = [lines(here / f"{number}-{rank}") for rank in range(life.ranks)]
        begun = json.loads((here / f"begun-{number}.json").read_text())
        if begun is not None:
            each = len(order) // EPOCHS
            done = begun["epoch"] * each + min(each, -(-begun["consumed"] // SIZE))
        for rank, log in enumerate(logs):
            # Each goes on behind the state that was saved last, and reads its share of the steps of one rank.
            assert log == [
                [*place, expected[place][rank :: life.ranks]] for place in order[done : done + len(log)]
            ]
        errors = [path.read_text() for path in here.glob(f"error-{number}-*")]
        if life.steps is None:
            assert not errors, errors[0]
            assert {done + len(log) for log in logs} == {len(order)}
        else:
            killed += len(set(map(len, logs))) > 1 or done + len(logs[0]) < len(order)
    tally("histories of killed jobs")
    tally("jobs killed amid an epoch", killed)
    for text in (path.read_text() for path in here.glob("error-*")):
        assert "edcache" not in text.splitlines()[-1], text


def test_jobs_were_killed_amid_their_epochs(folder):
    """The others would show nothing."""
    states = [json.loads(path.read_text()) for path in folder.glob("[1-9]*/begun-*.json")]
    assert len({state and (state["epoch"], state["consumed"]) for state in states}) > min(HISTORIES, 10)
