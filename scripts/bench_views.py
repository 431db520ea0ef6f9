"""What each view of a large archive costs: milliseconds, memory at the peak, and memory that it keeps.

Each is made in a process of its own, whose labels were looked at before: three times, the fastest counts.
No record is read: the records are overwritten before anything is measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import edcache
from edcache import CachedDataset, CacheWriter

LABELS = ["label", "patient", "length", "score"]
REPEATS = 3

VIEWS: dict[str, Callable[[Any], Any]] = {
    "[100:-100:3]": lambda ds: ds[100:-100:3],
    "take(n // 2)": lambda ds: ds.take(len(ds) // 2),
    "skip(n // 2)": lambda ds: ds.skip(len(ds) // 2),
    "percent(0.25, 0.75)": lambda ds: ds.percent(0.25, 0.75),
    "repeat(3)": lambda ds: ds.repeat(3),
    'select("label")': lambda ds: ds.select("label"),
    'select("label")[:]': lambda ds: ds.select("label")[:],
    "with_transform(fn)": lambda ds: ds.with_transform(dict),
    "concat([ds, ds])": lambda ds: edcache.concat([ds, ds]),
    "filter(label=3)": lambda ds: ds.filter(label=3),
    'filter("label == 3 and score > 0.5")': lambda ds: ds.filter("label == 3 and score > 0.5"),
    "exclude(label=3)": lambda ds: ds.exclude(label=3),
    "shuffle(7)": lambda ds: ds.shuffle(7),
    "shuffle(7)[::2]": lambda ds: ds.shuffle(7)[::2],
    "split(0.8, 0.1, 0.1)": lambda ds: ds.split(0.8, 0.1, 0.1),
    'split(..., stratify="label")': lambda ds: ds.split(0.8, 0.1, 0.1, stratify="label"),
    'split(..., group="patient")': lambda ds: ds.split(0.8, 0.1, 0.1, group="patient"),
    "split(..., stratify=, group=)": lambda ds: ds.split(0.8, 0.1, 0.1, stratify="label", group="patient"),
    "kfold(5)": lambda ds: ds.kfold(5),
    'kfold(5, stratify="label")': lambda ds: ds.kfold(5, stratify="label"),
    'oversample("label")': lambda ds: ds.oversample("label"),
    'undersample("label")': lambda ds: ds.undersample("label"),
    'sort_by("length")': lambda ds: ds.sort_by("length"),
    'sort_by("score")': lambda ds: ds.sort_by("score"),
    'unique("patient")': lambda ds: ds.unique("patient"),
    'group_by("label")': lambda ds: ds.group_by("label"),
    'group_by("patient")': lambda ds: ds.group_by("patient"),
}


def samples(rows: int) -> Iterator[dict[str, Any]]:
    """Ten classes of 5 to 20 %, 5,000 patients, lengths up to 4,095 and a float each."""
    random = np.random.default_rng(0)
    shares = np.linspace(1, 4, 10)
    columns = (
        random.choice(10, rows, p=shares / shares.sum()),
        random.integers(0, 5000, rows),
        random.integers(1, 4096, rows),
        random.random(rows),
    )
    for values in zip(*(column.tolist() for column in columns), strict=True):
        yield dict(zip(LABELS, values, strict=True))


def build(path: Path, rows: int) -> None:
    """Write the archive, and overwrite its records."""
    began = time.perf_counter()
    with CacheWriter(path, in_memory_keys=LABELS, chunk_size=100_000) as writer:
        writer.extend(samples(rows))
    records = CachedDataset.from_cache(path).reader.records
    with open(path, "r+b") as file:
        for offset in records.offset[:: max(1, rows // 1000)].tolist():
            file.seek(offset)
            file.write(b"\xff" * 16)
    print(
        f"{rows:,} samples, {path.stat().st_size / 1e6:,.0f} MB, {time.perf_counter() - began:,.0f} s\n",
        flush=True,
    )


def measured(path: Path, name: str, pipe: Any) -> None:
    """Make one view; send milliseconds, megabytes at the peak, and megabytes kept."""
    ds = CachedDataset.from_cache(path)
    for label in LABELS:
        ds.labels[label].sum()
    times, busy, peaks, kept = [], [], [], 0
    for _ in range(REPEATS):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _status("VmRSS")
        began, began_busy = time.perf_counter(), time.process_time()
        made = VIEWS[name](ds)
        times.append(time.perf_counter() - began)
        busy.append(time.process_time() - began_busy)
        peaks.append(_status("VmHWM") - before)
        kept = _status("VmRSS") - before
        del made
    pipe.send((min(times) * 1e3, min(busy) * 1e3, max(peaks) / 1e3, max(kept, 0) / 1e3))


def _status(field: str) -> int:
    """A line of /proc/self/status, in kB."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def main() -> None:
    """Parse, build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument(
        "--work", type=Path, help="folder whose views-N.zip is used again (default: a temporary one)"
    )
    parser.add_argument("--only", default="", help="names that contain this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = (options.work or Path(folder)) / f"views-{options.rows}.zip"
        if not path.exists():
            build(path, options.rows)
        print("| view | ms | ms of CPU | MB at the peak | MB kept |\n|---|---:|---:|---:|---:|")
        # Not a fork of this process, whose memory is in its peak.
        context = multiprocessing.get_context("spawn")
        for name in VIEWS:
            if options.only not in name:
                continue
            end, pipe = context.Pipe()
            process = context.Process(target=measured, args=(path, name, pipe))
            process.start()
            pipe.close()
            took, busy, peak, kept = end.recv()
            process.join()
            print(f"| `{name}` | {took:,.2f} | {busy:,.2f} | {peak:,.0f} | {kept:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
