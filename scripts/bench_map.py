"""Run a frozen model once, and again on what is new: scripts/bench map [--help]

Overhead: seconds of a fill beside the bare loop, `for batch in DataLoader: torch.save(fn(batch))`, and beside
`Dataset.map(batched=True)` of Hugging Face. The model sleeps, as a process waits that has given its batch to a GPU.
Ratios are medians of turns: each way once, then each once again; a ratio is of the same turn.

Keys: seconds to fill, to do the same again, and to fill with 0.1 % new samples; milliseconds of a look-up of 256
random keys, the first one of a process and the median of later ones.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import edcache

BATCH, FIELDS = 64, 128


class Vectors(Dataset[Any]):
    """Samples with keys: a vector each, of the array that all have."""

    def __init__(self, count: int) -> None:
        self._rows = torch.arange(count * FIELDS, dtype=torch.float32).reshape(count, FIELDS)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self._rows[index]}


class Named(Dataset[Any]):
    """Samples that cost nothing to compute, by key."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def sample_keys(self) -> list[str]:
        return [f"image-{number}.jpg" for number in range(self._first, self._first + self._count)]

    def sample_key(self, index: int) -> str:
        return f"image-{self._first + index}.jpg"

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])["x"][0]

    def __getitems__(self, indices: list[int]) -> Any:
        return {"x": np.array(indices, np.int64) + self._first}


class Model:
    """Takes some milliseconds a batch."""

    def __init__(self, milliseconds: float) -> None:
        self.seconds = milliseconds / 1000

    def __call__(self, batch: Any) -> Any:
        time.sleep(self.seconds)
        return {"y": torch.as_tensor(batch["x"]) * 0.5}


def bare(source: Vectors, model: Model, folder: Path, num_workers: int = 0) -> None:
    for number, batch in enumerate(DataLoader(source, BATCH, num_workers=num_workers)):
        torch.save(model(batch), folder / f"{number}.pt")


def mapped(source: Vectors, model: Model, folder: Path, **options: Any) -> None:
    edcache.map(model, source, folder / "m.zip", batch_size=BATCH, progress=False, **options).close()


def by_datasets(source: Vectors, model: Model, folder: Path) -> None:
    table = datasets.Dataset.from_dict({"x": source._rows.numpy()}).with_format("torch")
    table.map(model, batched=True, batch_size=BATCH, cache_file_name=str(folder / "m.arrow"))


class On:
    """Function of a device that returns a model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __call__(self, device: torch.device) -> Model:
        return self.model


def reading_ahead(source: Vectors, model: Model, folder: Path) -> None:
    options = {"batch_size": BATCH, "progress": False, "devices": "cpu", "num_workers": 1}
    edcache.map(On(model), source, folder / "m.zip", **options).close()


WAYS: dict[str, Callable[[Vectors, Model, Path], None]] = {
    "bare loop": bare,
    "edcache.map": mapped,
    "bare loop, a reader": lambda *given: bare(*given, num_workers=1),
    "edcache.map, devices=, a reader": reading_ahead,
    "edcache.map, 2 processes": lambda *given: mapped(*given, num_workers=2),
    "datasets map": by_datasets,
}


def overhead(count: int, milliseconds: list[float], repeats: int) -> None:
    datasets.disable_progress_bars()
    source, times = Vectors(count), dict[tuple[str, float], list[float]]()
    for _ in range(repeats):
        for ms in milliseconds:
            for name, way in WAYS.items():
                with tempfile.TemporaryDirectory() as folder:
                    began = time.perf_counter()
                    way(source, Model(ms), Path(folder))
                    times.setdefault((name, ms), []).append(time.perf_counter() - began)
    columns = [f"{ms:g} ms a batch: s | of the bare loop" for ms in milliseconds]
    print(f"\n| {count:,} samples in batches of {BATCH} | {' | '.join(columns)} |")
    print("|---" * (1 + 2 * len(milliseconds)) + "|")
    for name in WAYS:
        cells = []
        for ms in milliseconds:
            own, base = times[name, ms], times["bare loop", ms]
            ratio = statistics.median(one / other for one, other in zip(own, base, strict=True))
            cells += [f"{statistics.median(own):.2f}", f"{ratio:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


_LOOK_UP = """
import sys, time, random, statistics, edcache
ds, times = edcache.CachedDataset.from_cache(sys.argv[1]), []
for _ in range(50):
    keys = [f"image-{random.randrange(len(ds))}.jpg" for _ in range(256)]
    began = time.perf_counter()
    ds.indices_of(keys)
    times.append(1000 * (time.perf_counter() - began))
print(f"{times[0]:.1f} | {statistics.median(times[1:]):.2f}")
"""


def keyed(count: int) -> None:
    new = max(1, count // 1000)
    steps = {"fill": Named(0, count), "again": Named(0, count), f"{new:,} new": Named(0, count + new)}
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/keys.zip"
        for source in steps.values():
            began = time.perf_counter()
            edcache.CachedDataset(source, path, batch_size=4096, progress=False).close()
            cells.append(f"{time.perf_counter() - began:.2f}")
        found = subprocess.run(
            [sys.executable, "-c", _LOOK_UP, path], capture_output=True, text=True, check=True
        )
    titles = [f"{name}, s" for name in steps]
    print(f"\n| {count:,} keys | {' | '.join(titles)} | 256 keys, first, ms | 256 keys, ms |")
    print("|---" * (3 + len(steps)) + "|")
    print(f"| edcache | {' | '.join(cells)} | {found.stdout.strip()} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=32_000, help="samples of the overhead")
    parser.add_argument("--keys", type=int, default=1_000_000, help="samples with keys")
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[1, 10])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    overhead(given.count, given.milliseconds, given.repeats)
    keyed(given.keys)


if __name__ == "__main__":
    main()
