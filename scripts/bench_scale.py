"""What an archive costs as it grows: scripts/bench scale [SAMPLES ...]

Builds archives of so many samples (10**5, 10**6 and 10**7) of a float32 and an integer label. Prints a table:
CPU time and memory of the seal, of opening it in a fresh process, of first uses and of ten changed labels,
and the requests and bytes of opening it behind a URL. Every figure is of one run; CPU time is that of the
process. 10**9 samples take 47 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from edcache import CachedDataset, CacheWriter

STEP = 200_000
USE = """
import json, os, sys, time
import torch
from edcache import CachedDataset
def private():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
def timed(use):
    started = time.process_time()
    timed.result = use()
    return (time.process_time() - started) * 1e3
path, other = sys.argv[1:]
CachedDataset.from_cache(other).batch([0, 1])
before, figures = private(), {}
figures["open, ms"] = timed(lambda: CachedDataset.from_cache(path))
ds = timed.result
count = len(ds)
figures["a sample, ms"] = timed(lambda: ds[count // 2])
figures["64 samples, ms"] = timed(lambda: ds.batch(list(range(0, count, count // 64))[:64]))
figures["shuffle and a batch, ms"] = timed(lambda: ds.shuffle(0).batch(range(64)))
figures["memory, MB"] = (private() - before) / 1024
figures["first filter, ms"] = timed(lambda: ds.filter(y=5))
figures["next filter, ms"] = timed(lambda: ds.filter(y=6))
nbytes = os.path.getsize(path)
ten = {n: 7 for n in range(0, count, count // 10)}
figures["ten labels, ms"] = timed(lambda: ds.add_labels("y", ten))
figures["ten labels, kB"] = (os.path.getsize(path) - nbytes) / 1e3
print(json.dumps(figures))
"""


def resident() -> float:
    """MB of this process."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def built(path: Path, samples: int) -> dict[str, float]:
    """Write an archive and seal it, and say what that took."""
    writer = CacheWriter(path, in_memory_keys=["y"])
    started = time.process_time()
    for first in range(0, samples, STEP):
        rows = min(STEP, samples - first)
        labels = np.arange(first, first + rows) % 1000
        writer.extend_columns({"x": labels.astype(np.float32), "y": labels.astype(np.int16)})
    writer.flush()
    taken = time.process_time() - started
    peak, is_over, before = [resident()], threading.Event(), resident()

    def watch() -> None:
        while not is_over.wait(0.005):
            peak.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.process_time()
    writer.close()
    sealed = time.process_time() - started
    is_over.set()
    watcher.join()
    return {
        "fill, us a sample": taken / samples * 1e6,
        "seal, s": sealed,
        "its memory, MB": max(peak) - before,
        "file, bytes a sample": path.stat().st_size / samples,
    }


class Ranges(BaseHTTPRequestHandler):
    """Serves ranges of one file, and counts them."""

    protocol_version = "HTTP/1.1"

    def __init__(self, path: Path, sent: list[int], *arguments: Any) -> None:
        self.file, self.sent = path, sent
        super().__init__(*arguments)

    def do_GET(self) -> None:
        size = self.file.stat().st_size
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        start, end = (int(first), min(int(last), size - 1)) if first else (size - int(last), size - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
        self.send_header("Content-Length", str(end - start + 1))
        self.send_header("ETag", '"one"')
        self.end_headers()
        with self.file.open("rb") as file:
            file.seek(start)
            self.wfile.write(file.read(end - start + 1))
        self.sent.append(end - start + 1)

    def log_message(self, *arguments: object) -> None:
        """Nothing: the table is what is printed."""


def opened_far(path: Path) -> dict[str, float]:
    """Requests and bytes of opening an archive behind a URL."""
    sent: list[int] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, path, sent))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/a.zip"
    CachedDataset.from_cache(url, local=path.parent / "copies").close()
    server.shutdown()
    return {"far open, requests": len(sent), "far open, MB": sum(sent) / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", nargs="*", type=float, default=[1e5, 1e6, 1e7])
    counts = [int(count) for count in parser.parse_args().samples]
    columns = []
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, "other.zip")
        built(other, 100)
        for count in counts:
            path = Path(folder, f"{count}.zip")
            figures = built(path, count)
            used = subprocess.run([sys.executable, "-c", USE, path, other], check=True, capture_output=True)
            columns.append(figures | json.loads(used.stdout) | opened_far(path))
            path.unlink()
    print("| samples |", " | ".join(f"{count:,}" for count in counts), "|")
    print("|---|" + "---|" * len(counts))
    for name in columns[0]:
        print(f"| {name} |", " | ".join(f"{figures[name]:.3g}" for figures in columns), "|")


if __name__ == "__main__":
    main()
