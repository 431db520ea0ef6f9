"""A program that runs jobs of gloo ranks and kills them at random; test_killed_jobs.py compares their logs.

    python killed_jobs.py ARCHIVE FOLDER SEED COUNT

Folder 0 gets what one rank reads that nobody kills, for each order. Folders 1 to COUNT get a history each:
plan.json, state.json as the job saved it last, and a file for each life and rank with a line a step.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch.utils.data import DataLoader

import edcache
from edcache import samplers

LENGTH, SIZE, EPOCHS = 152, 20, 4
RANKS, UNEVEN = (1, 2, 3, 8, 5), ("repeat", "drop", "allow")
ORDERS = {
    "Shuffle": lambda ds, **o: samplers.Shuffle(ds, 3, **o),
    "Sequential": samplers.Sequential,
    "ChunkShuffle": lambda ds, **o: samplers.ChunkShuffle(ds, 4, **o),
    "Balanced": lambda ds, **o: samplers.Balanced(ds, "label", **o),
    "Weighted": lambda ds, **o: samplers.Weighted(ds, "weight", **o),
    "ByLength": lambda ds, **o: samplers.ByLength(ds, "n_tokens", **o),
    "ByShape": lambda ds, **o: samplers.ByShape(ds, "label", **o),
    "mix": lambda ds, **o: edcache.mix([ds[:60], ds[60:100], ds[100:]], [5, 3, 2], num_samples=LENGTH, **o),
    "loader": None,
}


class Life(NamedTuple):
    """How a job runs until it is killed. steps: as many are logged before. victims: the killed ranks."""

    ranks: int = 1
    threads: int = 1
    workers: int | None = None
    context: str | None = None
    steps: int | None = None
    victims: tuple[int, ...] = ()
    delay: float = 0.0


def noised(sample: Any, rng: Any) -> Any:
    """An augmentation, which belongs to sample and epoch."""
    return {**sample, "x": sample["x"] + rng.random(4, "f4")}


def run_rank(path: str, folder: Path, number: int, name: str, uneven: str, life: Life, rank: int) -> None:
    """Read from the saved state on, a step at a time together with the other ranks."""
    if life.ranks > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/ranks-{number}",
            rank=rank,
            world_size=life.ranks,
            timeout=datetime.timedelta(seconds=60),
        )
    ds: Any = edcache.CachedDataset.from_cache(path).with_transform(noised, seed=5)
    make = ORDERS[name]
    if make is None:
        order = loader = ds.loader(SIZE, shuffle=True, seed=3, num_threads=life.threads)
    else:
        order = make(ds, global_batch_size=SIZE, uneven=uneven)
        ds = order.dataset if name == "mix" else ds
        if life.workers is None:
            loader = ds.loader(None, sampler=order, num_threads=life.threads)
        else:
            loader = DataLoader(
                ds, batch_sampler=order, num_workers=life.workers, multiprocessing_context=life.context
            )
    saved, begun, first = folder / "state.json", 0, 0
    if saved.exists():
        state = json.loads(saved.read_text())
        order.load_state_dict(state)
        begun, first = state["epoch"], -(-state["consumed"] // SIZE)
    dawdle = random.Random(f"{number} {rank}")
    with open(folder / f"{number}-{rank}", "ab", 0) as log:
        for epoch in range(begun, EPOCHS):
            order.set_epoch(epoch)
            for step, batch in enumerate(loader):
                rows = zip(batch["k"].tolist(), batch["x"].numpy(), strict=True)
                line = [epoch, first + step, [(k, zlib.crc32(x.tobytes())) for k, x in rows]]
                log.write(json.dumps(line).encode() + b"\n")
                time.sleep(dawdle.random() * 0.003)
                if life.ranks > 1:
                    torch.distributed.barrier()
                if rank == 0:
                    state = order.state_dict() if make is None else order.state_dict(step + 1)
                    saved.with_name("new").write_text(json.dumps(state))
                    saved.with_name("new").replace(saved)
            first = 0


def run(path: str, folder: Path, number: int, name: str, uneven: str, life: Life) -> None:
    """A life of a job, until it has done all or was killed."""
    pids = []
    for rank in range(life.ranks):
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                run_rank(path, folder, number, name, uneven, life, rank)
                os._exit(0)
            except BaseException:
                (folder / f"error-{number}-{rank}").write_text(traceback.format_exc())
                os._exit(1)
        pids.append(pid)
    running, until = set(pids), time.monotonic() + 300
    first = folder / f"{number}-0"
    while running and time.monotonic() < until:
        running -= {pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]}
        if life.steps is not None and until > time.monotonic() + 2:
            logged = first.read_bytes().count(b"\n") if first.exists() else 0
            if logged >= life.steps:
                time.sleep(life.delay)
                for victim in life.victims:
                    if pids[victim] in running:
                        os.kill(pids[victim], signal.SIGKILL)
                # The others get an error, or wait for the dead; whoever runs a job ends them then.
                until = time.monotonic() + 1
        time.sleep(0.001)
    for pid in pids:
        try:
            os.killpg(pid, signal.SIGKILL)  # the workers of a rank too
        except ProcessLookupError:
            continue
    for pid in running:
        os.waitpid(pid, 0)


def a_life(draw: random.Random, name: str, ranks: int) -> Life:
    """A random one, that is killed."""
    ranks = 1 if name == "loader" else ranks
    workers, context = None, None
    if name != "loader" and draw.random() < 0.5:
        workers = draw.randint(0, 4)
        if workers:
            # Each process that is spawned imports torch.
            context = "spawn" if workers * ranks <= 4 and draw.random() < 0.2 else "fork"
    victims = range(ranks) if draw.random() < 0.3 else draw.sample(range(ranks), draw.randint(1, ranks))
    return Life(
        ranks,
        draw.randint(1, 4),
        workers,
        context,
        draw.randint(0, 7),
        tuple(victims),
        draw.choice([0, draw.random() * 0.03]),
    )


def main(path: str, folder: str, seed: str, count: str) -> None:
    """Run them all."""
    for name, uneven in itertools.product(ORDERS, UNEVEN):
        alone = Path(folder, "0", f"{name} {uneven}")
        alone.mkdir(parents=True)
        run(path, alone, 0, name, uneven, Life())
    for history in range(1, int(count) + 1):
        draw = random.Random(f"killed jobs {seed} {history}")
        name, uneven = list(ORDERS)[history % len(ORDERS)], draw.choice(UNEVEN)
        worlds = draw.sample(RANKS, len(RANKS)) if draw.random() < 0.5 else RANKS
        lives = [a_life(draw, name, ranks) for ranks in worlds]
        lives.append(lives[-1]._replace(steps=None, victims=()))
        here = Path(folder, str(history))
        here.mkdir()
        (here / "plan.json").write_text(json.dumps({"name": name, "uneven": uneven, "lives": lives}))
        for number, life in enumerate(lives):
            saved = here / "state.json"
            begun = json.loads(saved.read_text()) if saved.exists() else None
            (here / f"begun-{number}.json").write_text(json.dumps(begun))
            run(path, here, number, name, uneven, life)


if __name__ == "__main__":
    main(*sys.argv[1:])
