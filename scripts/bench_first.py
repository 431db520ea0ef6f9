"""What a process pays first, and on busy cores: scripts/bench first [--help]

Epochs: samples a second of processor time of the first shuffled epoch of a process, which checks each record, and of
the second, beside a memmap by a DataLoader. A part is of the same turn; all are medians of turns.

Busy: microseconds of a batch while two processes keep the cores busy and torch has two threads, median and mean.

Start: milliseconds of processor time to open and to read a first sample, in a process that has imported torch.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import edcache

BATCH = 256
SHAPES = {"28x28": ((28, 28), 60_000), "3x64x64": ((3, 64, 64), 20_000)}


def build(folder: Path, name: str, scale: float) -> None:
    shape, count = SHAPES[name]
    rows = np.zeros(max(BATCH, round(count * scale)), [("image", "u1", shape), ("label", "<i8")])
    rows["image"] = np.random.default_rng(0).integers(0, 256, rows["image"].shape, np.uint8)
    np.save(folder / f"{name}.npy", rows)
    with edcache.CacheWriter(folder / f"{name}.zip", in_memory_keys=["label"]) as writer:
        writer.extend(
            {"image": torch.from_numpy(row["image"].copy()), "label": int(row["label"])} for row in rows
        )


class Memmap(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        rows = self.rows[indices]
        return {name: torch.from_numpy(rows[name]) for name in ("image", "label")}


def unchanged(batch: Any) -> Any:
    return batch


def opened(folder: Path, name: str) -> edcache.CachedDataset:
    return edcache.CachedDataset.from_cache(folder / f"{name}.zip")


WAYS: dict[str, Callable[[Path, str], Iterable[Any]]] = {
    "memmap, DataLoader": lambda folder, name: DataLoader(
        Memmap(folder / f"{name}.npy"), BATCH, shuffle=True, collate_fn=unchanged
    ),
    "edcache, DataLoader": lambda folder, name: DataLoader(opened(folder, name), BATCH, shuffle=True),
    "edcache, loader, 1 thread": lambda folder, name: opened(folder, name).loader(
        BATCH, shuffle=True, num_threads=1
    ),
    "edcache, loader, resident": lambda folder, name: opened(folder, name).loader(
        BATCH, shuffle=True, resident=True
    ),
}


def epochs(folder: Path, name: str, way: str) -> None:
    batches, found = WAYS[way](folder, name), []
    gc.disable()
    for _ in range(2):
        began = time.process_time()
        count = sum(len(batch["label"]) for batch in batches)
        found.append(count / (time.process_time() - began))
    print(*found)


def start(folder: Path, name: str) -> None:
    began = time.process_time()
    opened(folder, name)[0]
    print(1000 * (time.process_time() - began))


def busy(folder: Path, name: str) -> None:
    torch.set_num_threads(2)
    ds, rows = opened(folder, name), np.load(folder / f"{name}.npy", mmap_mode="r")
    ways: dict[str, Callable[[list[int]], Any]] = {"edcache": ds.batch, "memmap": rows.__getitem__}
    times: dict[str, list[float]] = {way: [] for way in ways}
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for turn in range(220):
            indices = torch.randint(len(ds), (BATCH,)).tolist()
            for way, read in ways.items():
                began = time.perf_counter()
                read(indices)
                if turn >= 20:  # the records are checked
                    times[way].append(1e6 * (time.perf_counter() - began))
    finally:
        for other in others:
            other.kill()
    print(
        *(f"{way} {statistics.median(of):.0f} {statistics.mean(of):.0f}" for way, of in times.items()),
        sep=", ",
    )


def asked(folder: Path, name: str, *what: str) -> str:
    """What a process of its own measures. It compiles nothing: a first one has written the bytecode."""
    command = [sys.executable, __file__, "--child", str(folder), name, *what]
    threads = {"OMP_NUM_THREADS": "2" if what[0] == "busy" else "1", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | threads)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="part of the samples")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        folder, name, what, *way = given.child
        {"epochs": epochs, "start": start, "busy": busy}[what](Path(folder), name, *way)
        return
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        for name in SHAPES:
            build(folder, name, given.scale)
            asked(folder, name, "start")
            turns = [
                {way: [float(rate) for rate in asked(folder, name, "epochs", way).split()] for way in WAYS}
                for _ in range(given.repeats)
            ]
            print(
                f"\n| {name} | first epoch, samples/s | of memmap | second epoch | of memmap |\n|---|--:|--:|--:|--:|"
            )
            for way in WAYS:
                cells = []
                for epoch in range(2):
                    rates = [turn[way][epoch] for turn in turns]
                    parts = [turn[way][epoch] / turn["memmap, DataLoader"][epoch] for turn in turns]
                    cells += [f"{statistics.median(rates):,.0f}", f"{statistics.median(parts):.2f}"]
                print(f"| {way} | {' | '.join(cells)} |")
            print(f"\nbusy, a batch of {name}, us, median and mean: {asked(folder, name, 'busy')}")
            starts = [float(asked(folder, name, "start")) for _ in range(given.repeats)]
            print(f"start, ms: {statistics.median(starts):.0f}", flush=True)


if __name__ == "__main__":
    main()
