"""How long labels take: python scripts/label_times.py [SAMPLES] [FOLDER]

Adds label columns to an archive of so many samples (10 million by default), of which one alone is written,
as the others would take minutes and no label needs them; and measures what one asks of the labels. Each
figure is the best of three in this process, after labels.arrow was read once; "first" ones are in another.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from edcache import CachedDataset, CacheWriter

SAMPLES = 10_000_000
FEW, MANY = 100, 1_000_000

FIRST = """
import sys, time
from edcache import CachedDataset
started = time.perf_counter()
ds = CachedDataset.from_cache(sys.argv[1])
chosen = len(ds.filter(**eval(sys.argv[2])))
print(time.perf_counter() - started)
"""


def timed(what: str, function: Callable[[], Any], repeats: int = 3) -> Any:
    """Print the best time of a function; returns what it returned last."""
    best, found = float("inf"), None
    for _ in range(repeats):
        started = time.perf_counter()
        found = function()
        best = min(best, time.perf_counter() - started)
    shown = f"  {len(found):>12,}" if hasattr(found, "__len__") else ""
    print(f"{what:<44} {best * 1e3:>10,.1f} ms{shown}", flush=True)
    return found


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


class Source:
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


def opened(path: Path, samples: int) -> CachedDataset:
    ds = CachedDataset(Source(samples), path, lazy=True)
    ds[samples // 2]
    ds.close()
    CacheWriter(path, "a").close()
    return CachedDataset(Source(samples), path, lazy=True)


def texts(form: str, kinds: int, rng: np.random.Generator, samples: int) -> pa.Array:
    values = pa.array([form.format(i) for i in range(kinds)])
    return values.take(pa.array(rng.integers(0, kinds, samples)))


def main(samples: int, folder: Path) -> None:
    path, rng = folder / "labels.zip", np.random.default_rng(0)
    print(f"{samples:,} samples", flush=True)
    ds = opened(path, samples)
    number, before = rng.integers(0, 1000, samples), peak_mb()
    timed("add_labels: int64", lambda: ds.add_labels("number", number), 1)
    print(f"{'  most memory beyond the column given':<44} {peak_mb() - before:>10,.0f} MB")
    timed("add_labels: float64", lambda: ds.add_labels("score", rng.random(samples)), 1)
    few, many = (texts(f"{name}_{{:07d}}", kinds, rng, samples) for name, kinds in (("k", FEW), ("p", MANY)))
    timed(f"add_labels: texts, {FEW:,} distinct", lambda: ds.add_labels("few", few), 1)
    timed(f"add_labels: texts, {MANY:,} distinct", lambda: ds.add_labels("many", many), 1)
    some = {i * 7: i for i in range(1000)}
    timed("add_labels: a mapping of 1,000", lambda: ds.add_labels("some", some), 1)
    for what, asked in (("int", {"number": 7}), ("text", {"many": "p_0000007"})):
        done = subprocess.run(
            [sys.executable, "-c", FIRST, path, repr(asked)], capture_output=True, check=True
        )
        print(f"{f'open and first filter: {what}':<44} {float(done.stdout) * 1e3:>10,.1f} ms", flush=True)
    listed = [f"p_{i:07d}" for i in range(0, MANY, 1000)]
    for what, where, conditions in (
        ("int ==", None, {"number": 7}),
        ("int in 3", None, {"number": [7, 8, 900]}),
        ("int in 100", None, {"number": list(range(0, 1000, 10))}),
        ("int range", None, {"number": range(10, 50)}),
        ("float range", "score >= 0.25 and score < 0.5", {}),
        (f"text of {FEW:,} ==", None, {"few": "k_0000007"}),
        (f"text of {FEW:,} in 3", None, {"few": ["k_0000007", "k_0000008", "k_0000009"]}),
        (f"text of {MANY:,} ==", None, {"many": "p_0000007"}),
        (f"text of {MANY:,} in 3", None, {"many": listed[:3]}),
        (f"text of {MANY:,} in 1,000", None, {"many": listed}),
        ("text == and int <", "few == 'k_0000007' and number < 50", {}),
    ):
        timed(f"filter: {what}", lambda w=where, c=conditions: ds.filter(w, **c))  # type: ignore[misc]
    timed("counts: text", lambda: ds.labels.counts("few"), 1)
    timed(f"unique: text of {MANY:,}", lambda: ds.labels.unique("many"), 1)
    timed("describe", lambda: ds.labels.describe(), 1)
    query = "select few, count(*), avg(score) from labels group by few"
    timed("sql: group by text", lambda: ds.labels.sql(query).to_pylist())
    timed("refresh of a reader that is up to date", ds.refresh)
    print(ds.labels.describe())


if __name__ == "__main__":
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as made:
        main(chosen, Path(made))
