"""A billion samples on an object store, filled and read by a hundred hosts: on paper, and simulated.

    python scripts/simulate_scale.py                     the tables of docs/scale.md, as Markdown
    python scripts/simulate_scale.py --docs              writes them into docs/scale.md
    python scripts/simulate_scale.py --samples 1e8 --hosts 10 --nbytes 100000
    python scripts/simulate_scale.py --set "rows of an index page at the most=4096"

    python scripts/simulate_scale.py --orders 1e8        measures the samplers over so many samples, here

Nothing is read or written, and no other machine is asked. Arithmetic comes from the constants below; what
queues (claims, requests, a training step that waits for the slowest rank) is simulated, by a seed.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- scale:begin -->", "<!-- scale:end -->"

# name: value, unit, where it is from. "format": the file says it; "code": edcache's own; "measured": on two
# cores of a loaded machine; "assumed": of the machines and the store; "price": a list price of 2025 of a
# large object store, standard class, in the region of the hosts.
CONSTANTS: Final = {
    # What another format of the index would change.
    "crc32 in the index": (4, "bytes a sample", "format"),
    "lines in the index": (6, "bytes a sample", "format: 0 for samples of one size in order, up to 10"),
    "rows of an index page at the least": (4096, "rows", "format"),
    "rows of an index page at the most": (131_072, "rows", "format: so that there are at most pages below"),
    "pages of an index": (8192, "pages", "format"),
    "a row of the table of pages": (72, "bytes", "format"),
    "requests to open": (3, "requests", "format: head, tail, table of pages"),
    "seal": (0.16, "us CPU a sample", "measured, a million samples with two labels"),
    "load of a page": (0.01, "us CPU a row", "measured: crc32, and the largest of what differs"),
    "pages that a process keeps": (64 << 20, "bytes of an archive", "code: of one that is not mapped"),
    # The code.
    "claim": (64, "samples", "code"),
    "chunk": (4 << 20, "bytes", "code"),
    "block of a local copy": (256 << 10, "bytes", "code"),
    "part of an upload": (16 << 20, "bytes", "code"),
    "piece of a copy": (4 << 20, "bytes", "code"),
    "longest time between two chunks": (2, "s", "code"),
    "archives opened at a time": (8, "archives", "code"),
    "tries of a request": (20, "tries", "code"),
    "first wait before another try": (0.1, "s", "code: three times longer each time, half of it by chance"),
    "window of ChunkShuffle": (16, "chunks", "code"),
    # Measured.
    "encode and append": (10, "us CPU a sample", "measured, samples of 16 bytes"),
    "encode and append a byte": (0.002, "us CPU a byte", "measured, 10 kB and 150 kB: 0.0014 to 0.0025"),
    "locks and stats of a claim": (40, "us", "measured: 5 locks and 8 stats"),
    "append lock of a chunk": (5000, "us", "measured, into the page cache: 4,000 to 8,000"),
    "an archive in a batch": (55, "us CPU", "measured"),
    # The world.
    "answer of the store, median": (20, "ms", "assumed"),
    "answer of the store, sigma": (0.6, "of its logarithm", "assumed: 1 in 100 takes 80 ms"),
    "requests of a prefix": (5500, "GET/s", "assumed: published by a large store"),
    "network of a host": (1.25e9, "bytes/s", "assumed: 10 Gbit/s"),
    "GET": (0.0004, "USD for 1,000", "price"),
    "PUT": (0.005, "USD for 1,000", "price"),
    "a month": (0.023, "USD for 1 GB", "price"),
    "bytes to another region": (0.02, "USD for 1 GB", "price"),
}


@dataclass(frozen=True)
class Index:
    """The pages of the indices of all archives: rows and bytes of a page, and how many pages."""

    rows: float
    nbytes: float
    pages: int
    archives: int


@dataclass(frozen=True)
class Scale:
    """What is simulated.

    archives: how many the samples are in. batch: samples of a rank in a step, which computes `step_seconds`.
    source_ms: what a sample takes the source. constants: those above, by name.
    """

    samples: int = 10**9
    nbytes: int = 10_000
    hosts: int = 100
    ranks: int = 8
    archives: int = 100
    batch: int = 64
    step_seconds: float = 0.25
    source_ms: float = 5.0
    seed: int = 0
    constants: dict[str, float] = field(default_factory=lambda: {k: v[0] for k, v in CONSTANTS.items()})

    def __getitem__(self, name: str) -> float:
        return self.constants[name]

    @property
    def world(self) -> int:
        return self.hosts * self.ranks

    @property
    def total(self) -> float:
        return float(self.samples) * self.nbytes

    @property
    def epoch_seconds(self) -> float:
        """An epoch whose steps wait for nothing."""
        return self.samples / (self.world * self.batch) * self.step_seconds

    @property
    def run(self) -> float:
        """Samples of a chunk."""
        return max(1.0, self["chunk"] / self.nbytes)

    def index(self, archives: int) -> Index:
        """What the index of so many archives is in."""
        share = self.samples / archives
        rows = 2 ** math.ceil(math.log2(max(1.0, share / self["pages of an index"])))
        least, most = self["rows of an index page at the least"], self["rows of an index page at the most"]
        rows = min(max(rows, least), most)
        row = self["crc32 in the index"] + self["lines in the index"]
        return Index(rows, rows * row, math.ceil(share / rows) * archives, archives)


# ---------------------------------------------------------------------------------------- words


def number(value: float) -> str:
    """Three digits, and a name for what is large."""
    for name, unit in (("", 1.0), (" k", 1e3), (" M", 1e6), (" G", 1e9), (" T", 1e12), (" P", 1e15)):
        if abs(value) < 999.5 * unit or unit == 1e15:
            return f"{value / unit:.3g}{name}"
    raise AssertionError


def seconds(value: float) -> str:
    for name, unit, until in (
        ("ms", 1e-3, 1.0),
        ("s", 1.0, 180.0),
        ("min", 60.0, 10_800.0),
        ("h", 3600.0, 4e5),
    ):
        if value < until * 0.9995:
            return f"{value / unit:.3g} {name}"
    return f"{value / 86_400:.3g} days"


def percent(value: float) -> str:
    return f"{100 * value:.2g} %" if value < 10 else f"{number(value)} times"


def of_bytes(value: float) -> str:
    return f"{number(value)}B" if value >= 999.5 else f"{value:.0f} B"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---------------------------------------------------------------------------------------- on paper


def filling(at: Scale) -> str:
    """Each host fills an archive of its own on its disk, by a process for each rank, and uploads it."""
    share = at.samples / at.hosts
    encoding = (at["encode and append"] + at["encode and append a byte"] * at.nbytes) * 1e-6
    nbytes = share * at.nbytes
    claims = share / at["claim"]
    parts = nbytes / at["part of an upload"]
    upload = nbytes / at["network of a host"]
    rows = [
        ("the source's own work, a process for each rank", seconds(share * at.source_ms * 1e-3 / at.ranks)),
        ("encoding and appending, likewise", seconds(share * encoding / at.ranks)),
        (
            "claims; locks and stats of them",
            f"{number(claims)}; {seconds(claims * at['locks and stats of a claim'] * 1e-6)}",
        ),
        ("bytes on the disk", of_bytes(nbytes)),
        ("seal, one process", seconds(share * at["seal"] * 1e-6)),
        ("the same of one archive for all hosts", seconds(at.samples * at["seal"] * 1e-6)),
        ("memory of what is missing, a byte a sample in each process", of_bytes(share * at.ranks)),
        ("the same of one archive for all hosts", of_bytes(float(at.samples) * at.ranks)),
        ("upload; PUT requests", f"{seconds(upload)}; {number(parts)}"),
        ("PUT requests of all hosts", f"{at['PUT'] * parts * at.hosts / 1000:.3g} USD"),
        ("a month of all bytes", f"{number(at.total / 1e9 * at['a month'])} USD"),
    ]
    return table(("filling, of one host", "figure"), rows)


def touched(parts: float, draws: float) -> float:
    """How many of some parts are drawn at least once."""
    return parts * -math.expm1(draws * math.log1p(-1 / parts)) if parts > 1 else parts


def page_loads(at: Scale, index: Index, draws: float, way: str) -> float:
    """How many index pages a process loads that draws so many samples: those it does not keep, again."""
    held = min(1.0, at["pages that a process keeps"] * index.archives / (index.pages * index.nbytes))
    if way == "Shuffle":
        return touched(index.pages, draws) if held == 1 else draws * (1 - held)
    crossed = draws / at.run * (1 + at.run / index.rows)
    return min(crossed, touched(index.pages, crossed)) if held == 1 else crossed


def reading(at: Scale) -> str:
    """An epoch by ways to read it: requests, bytes, money, and the rate that the store must bear."""
    index = at.index(at.archives)
    block, all_pages = at["block of a local copy"], index.pages * index.nbytes
    of_rank, of_host = at.samples / at.world, at.samples / at.hosts

    def blocks_after(epochs: int) -> float:
        """Bytes that all hosts have fetched after some epochs of blocks at random."""
        return touched(at.total / block, epochs * of_host * max(1.0, at.nbytes / block)) * block * at.hosts

    def chunks_after(epochs: int) -> float:
        return touched(at.total / at["chunk"], epochs * of_host / at.run) * at["chunk"] * at.hosts

    def near(way: str) -> tuple[float, float]:
        """Requests and bytes of the index where a host fetches a page once."""
        pages = touched(index.pages, of_host if way == "Shuffle" else of_host / at.run) * at.hosts
        return pages * max(1.0, index.nbytes / block), pages * index.nbytes

    def far(way: str) -> tuple[float, float]:
        loads = page_loads(at, index, of_rank, way) * at.world
        return loads, loads * index.nbytes

    # Of each: requests and bytes of samples, and of the index; bytes of the second epoch; what draws pages.
    shuffled, chunked = blocks_after(1), chunks_after(1)
    ways = {
        "`Shuffle`, no copy": (at.samples, at.total, *far("Shuffle"), at.total, "Shuffle"),
        "`ChunkShuffle`, no copy": (at.samples, at.total, *far("ChunkShuffle"), at.total, "ChunkShuffle"),
        "`Shuffle`, `local=`": (
            shuffled / block,
            shuffled,
            *near("Shuffle"),
            blocks_after(2) - shuffled,
            "Shuffle",
        ),
        "`ChunkShuffle`, `local=`": (
            chunked / block,
            chunked,
            *near("ChunkShuffle"),
            chunks_after(2) - chunked,
            "ChunkShuffle",
        ),
        "each host its own archives, `local=`": (
            at.total / block,
            at.total,
            all_pages / block,
            all_pages,
            0.0,
            "",
        ),
        "each host its own, `copy_to_local`": (
            (at.total + all_pages) / at["piece of a copy"],
            at.total,
            0.0,
            all_pages,
            0.0,
            "",
        ),
    }
    rows = []
    for way, (requests, nbytes, of_index, index_nbytes, again, draws) in ways.items():
        requests += of_index
        rate = requests / at.epoch_seconds
        network = (nbytes + index_nbytes) / at.hosts / at["network of a host"]
        loads = page_loads(at, index, of_rank, draws) if draws else 0.0
        rows.append(
            (
                way,
                number(requests),
                number(rate) + ("" if rate <= at["requests of a prefix"] else " (!)"),
                f"{number(requests * at['GET'] / 1000)} USD",
                of_bytes(nbytes),
                of_bytes(index_nbytes),
                seconds(max(requests / at["requests of a prefix"], network)),
                of_bytes(again),
                seconds(loads / of_rank * at.batch * index.rows * at["load of a page"] * 1e-6)
                if loads
                else "-",
            )
        )
    head = (
        "an epoch",
        "GET",
        "GET/s",
        "cost",
        "samples",
        "index",
        "at least",
        "samples, 2nd epoch",
        "index CPU a batch",
    )
    note = (
        f"An epoch of {number(at.samples / at.world / at.batch)} steps of {seconds(at.step_seconds)} takes "
        f"{seconds(at.epoch_seconds)}. A chunk has {number(at.run)} samples. (!): more than one prefix of "
        "the store answers. At least: by that rate, or by the network of a host."
    )
    return f"{table(head, rows)}\n\n{note}"


def archives(at: Scale) -> str:
    """What the number of archives changes."""
    rows = []
    for count in (1, 10, 100, 1000, 10_000):
        share, index = at.samples / count, at.index(count)
        waves = math.ceil(count / at["archives opened at a time"])
        opening = waves * at["requests to open"] * at["answer of the store, median"] * 1e-3
        loads = page_loads(at, index, at.samples / at.world, "Shuffle") * at.world / at.samples
        rows.append(
            (
                number(count),
                of_bytes(share * at.nbytes),
                f"{number(at['requests to open'] * count)}; {seconds(opening)}",
                of_bytes(index.pages * at["a row of the table of pages"]),
                f"{number(index.rows)}; {of_bytes(index.nbytes)}",
                percent(index.nbytes / (at.run * at.nbytes)),
                of_bytes(min(at["pages that a process keeps"] * count, index.pages * index.nbytes)),
                seconds(loads * at.batch * index.rows * at["load of a page"] * 1e-6),
                seconds(touched(count, at.batch) * at["an archive in a batch"] * 1e-6 if count > 1 else 0.0),
                seconds(share * at["seal"] * 1e-6),
            )
        )
    head = (
        "archives",
        "each",
        "requests to open; time",
        "tables of pages",
        "rows of a page; bytes",
        "a page beside a chunk",
        "pages kept",
        "pages, CPU of a shuffled batch",
        "archives, CPU of a shuffled batch",
        "seal of one",
    )
    return table(head, rows)


# ---------------------------------------------------------------------------------------- simulated


def claims(at: Scale, workers: int, source_ms: float, count: int) -> tuple[float, float]:
    """Workers fill one archive by claims: how much of their time they compute, and wait for the append lock.

    A worker takes the next claim, computes its samples, and publishes when it has a chunk's bytes or after
    some time: then it holds the one append lock as long as its bytes take.
    """
    rng = random.Random(f"{at.seed} claims {workers} {source_ms}")
    each = source_ms * 1e-3 + (at["encode and append"] + at["encode and append a byte"] * at.nbytes) * 1e-6
    size = int(at["claim"])
    overhead, writing = at["locks and stats of a claim"] * 1e-6, at["append lock of a chunk"] * 1e-6
    longest = at["longest time between two chunks"]
    lock_free = waited = computed = end = 0.0
    pending, since = [0.0] * workers, [0.0] * workers
    # When each begins a claim, or asks for the lock: in the order of time, or a later one would be first.
    events = [(0.0, worker, False) for worker in range(workers)]
    while events:
        now, worker, publishes = heapq.heappop(events)
        end = max(end, now)
        if publishes:
            begin = max(now, lock_free)
            waited += begin - now
            now = lock_free = begin + writing * pending[worker] / at["chunk"]
            pending[worker], since[worker] = 0.0, now
        if count <= 0:
            continue
        count -= 1
        work = each * size * rng.lognormvariate(-0.045, 0.3)
        computed += work
        now += overhead + work
        pending[worker] += size * at.nbytes
        is_full = pending[worker] >= at["chunk"] or now - since[worker] >= longest
        heapq.heappush(events, (now, worker, is_full))
    return computed / (end * workers), waited / (end * workers)


def contention(at: Scale, scale: float) -> str:
    rows = []
    for source_ms in (0.0, 0.1, 1.0, 10.0):
        cells = []
        for workers in (8, 32, 128):
            busy, waiting = claims(at, workers, source_ms, max(20 * workers, int(20_000 * scale)))
            cells.append(f"{busy:.0%} ({waiting:.0%})")
        rows.append((f"{source_ms:g} ms", *cells))
    return table(("a sample takes the source", "8 workers", "32 workers", "128 workers"), rows)


def opening(at: Scale, processes: int, count: int, spread: float = 0.0) -> tuple[float, int, int]:
    """All processes open all archives: for how long, how many give up, and how many requests are refused.

    The store answers so many requests a second and refuses the others; a refused one is asked for again as
    edcache does, which gives up after its last try. spread: seconds over which the processes begin.
    """
    rng = random.Random(f"{at.seed} opening {processes} {count}")
    rate = at["requests of a prefix"]
    median, sigma = at["answer of the store, median"] * 1e-3, at["answer of the store, sigma"]
    tries, first_wait = int(at["tries of a request"]), at["first wait before another try"]
    left = [count] * processes
    failed = [False] * processes
    events: list[tuple[float, int, int, int]] = []  # when, process, requests left of the archive, try
    for process in range(processes):
        begin = rng.random() * spread
        for _ in range(min(count, int(at["archives opened at a time"]))):
            left[process] -= 1
            events.append((begin, process, int(at["requests to open"]), 1))
    heapq.heapify(events)
    tokens, last, end, refused = rate, 0.0, 0.0, 0
    while events:
        now, process, requests, attempt = heapq.heappop(events)
        if failed[process]:
            continue
        tokens, last = min(rate, tokens + (now - last) * rate), now
        then = now + rng.lognormvariate(math.log(median), sigma)
        if tokens < 1:
            refused += 1
            if attempt == tries:
                failed[process] = True
                continue
            wait = min(first_wait * 3 ** (attempt - 1), 10) * rng.uniform(0.5, 1)
            heapq.heappush(events, (then + wait, process, requests, attempt + 1))
            continue
        tokens -= 1
        end = max(end, then)
        if requests > 1:
            heapq.heappush(events, (then, process, requests - 1, 1))
        elif left[process]:
            left[process] -= 1
            heapq.heappush(events, (then, process, int(at["requests to open"]), 1))
    return end, sum(failed), refused


def storm(at: Scale, scale: float) -> str:
    rows = []
    processes = max(1, int(at.world * min(1.0, scale)))
    tried = int(at["tries of a request"])
    cases = [
        (1, processes, tried, 0.0),
        (10, processes, tried, 0.0),
        (at.archives, processes, tried, 0.0),
        (at.archives, processes, tried // 4, 0.0),
        (at.archives, processes, tried, 60.0),
        (at.archives, max(1, processes // at.ranks), tried, 0.0),
        (at.archives, max(1, processes // at.ranks), tried, 10.0),
        (max(1, at.archives // at.hosts), processes, tried, 0.0),
    ]
    for count, some, tries, spread in cases:
        other = replace(at, constants={**at.constants, "tries of a request": tries})
        end, failed, refused = opening(other, some, count, spread)
        outcome = f"{failed:,} give up" if failed else "all open"
        begin = f"within {spread:g} s" if spread else "at once"
        rows.append(
            (number(some), number(count), begin, number(tries), number(refused), seconds(end), outcome)
        )
    head = ("processes", "archives of each", "begin", "tries", "refused", "until the last answer", "outcome")
    return table(head, rows)


def steps(at: Scale, way: str, prefetch: int, count: int) -> float:
    """How long steps wait, as a part of what they compute: each waits for the slowest of all ranks.

    A batch is asked for when the one `prefetch` before it begins. Its requests share the host's network.
    """
    rng = np.random.Generator(np.random.PCG64(at.seed))
    median, sigma = at["answer of the store, median"] * 1e-3, at["answer of the store, sigma"]
    block = at["block of a local copy"]
    window = int(max(1, at["window of ChunkShuffle"] * at["chunk"] / block))
    batches = max(1, int(at["window of ChunkShuffle"] * at["chunk"] / at.nbytes / at.batch))
    phase = rng.integers(0, batches, at.world)
    missing = np.minimum(window, window * (1 - np.exp(-phase * at.batch / window)))
    absent = window - missing
    network = np.zeros(at.hosts)
    begins = [0.0] * (count + 1)
    for step in range(count):
        # Without any ahead it is asked for when the step before has ended.
        asked = begins[max(0, step - max(prefetch, 1))] + (at.step_seconds if not prefetch and step else 0.0)
        ready = np.empty(at.world)
        for rank in range(at.world):
            host = rank // at.ranks
            if way == "samples":
                requests, nbytes = at.batch, float(at.nbytes)
            elif way == "blocks":
                requests, nbytes = at.batch, block
            else:
                if (step + phase[rank]) % batches == 0:
                    absent[rank] = window
                requests = int(rng.binomial(int(absent[rank]), 1 - math.exp(-at.batch / window)))
                absent[rank] -= requests
                nbytes = block
            slowest = rng.lognormal(math.log(median), sigma, requests).max() if requests else 0.0
            network[host] = max(network[host], asked) + requests * nbytes / at["network of a host"]
            ready[rank] = max(asked + slowest, network[host])
        begins[step] = max(ready.max(), begins[step - 1] + at.step_seconds if step else 0.0)
    first = min(count // 2, prefetch + 1)
    ideal = (count - 1 - first) * at.step_seconds
    return (begins[count - 1] - begins[first]) / ideal - 1


def stalls(at: Scale, scale: float) -> str:
    count = max(12, int(60 * scale))
    ways = {
        "each sample by a request": "samples",
        "`local=`, `Shuffle`: a block for each sample": "blocks",
        "`local=`, `ChunkShuffle`": "windows",
    }
    rows = [
        (name, *(f"{steps(at, way, ahead, count):.1%}" for ahead in (0, 1, 2))) for name, way in ways.items()
    ]
    return table(
        ("steps wait longer than they compute by", "nothing ahead", "a batch ahead", "2 ahead"), rows
    )


# ---------------------------------------------------------------------------------------- measured here

ORDER: Final = """
import resource, sys, time
import numpy as np
from torch.utils.data import RandomSampler
from edcache.base import Selection
from edcache.samplers import ByLength, ChunkShuffle, Shuffle

class Dataset:
    def __init__(self): self.cache = self.reader = self
    def __len__(self): return count
    def _whole_selection(self): return Selection(range(count))
    def chunk_size(self): return 420
    chunk_of = None

count, name = int(sys.argv[1]), sys.argv[2]
random = np.random.default_rng(0)
lengths = np.clip(random.lognormal(6, 1, count if name == "ByLength" else 0), 1, 4000).astype(np.int32)
make = {
    "Shuffle": lambda: Shuffle(Dataset()),
    "ChunkShuffle": lambda: ChunkShuffle(Dataset()),
    "ByLength": lambda: ByLength(Dataset(), lengths, 32),
    "torch's RandomSampler": lambda: RandomSampler(Dataset()),
}[name]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, began = peak(), time.perf_counter()
sampler = make()
made = time.perf_counter()
drawn = iter(sampler)
for _ in range(1 if name == "ByLength" else 32):
    next(drawn)
print(made - began, time.perf_counter() - made, peak() - before)
"""


def orders(count: int) -> str:
    """How long samplers over so many samples take until their first batch, and their memory."""
    rows = []
    for name in ("Shuffle", "ChunkShuffle", "ByLength", "torch's RandomSampler"):
        command = [sys.executable, "-c", ORDER, str(count), name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        made, first, peak = map(float, done.stdout.split())
        rows.append((name, seconds(made), seconds(first), of_bytes(peak)))
    return table((f"{number(count)} samples", "made in", "first batch of 32 after", "memory"), rows)


# ---------------------------------------------------------------------------------------- together


def constants(at: Scale) -> str:
    rows = [(name, f"{at[name]:,.10g}", unit, origin) for name, (_, unit, origin) in CONSTANTS.items()]
    return table(("constant", "value", "unit", "from"), rows)


def report(at: Scale, scale: float = 1.0) -> str:
    head = (
        f"{number(at.samples)} samples of {of_bytes(at.nbytes)}, {of_bytes(at.total)} in {at.archives} "
        f"archives; {at.hosts} hosts of {at.ranks} ranks; batches of {at.batch}."
    )
    parts: dict[str, Callable[[], str]] = {
        "Constants": lambda: constants(at),
        "Filling": lambda: filling(at),
        "Workers that fill one archive": lambda: (
            "How much of their time the workers of a host compute; in brackets, how much they wait for the "
            "append lock.\n\n" + contention(at, scale)
        ),
        "Opening": lambda: storm(at, scale),
        "An epoch": lambda: reading(at),
        "Steps": lambda: stalls(at, scale),
        "One archive or several": lambda: archives(at),
    }
    return "\n\n".join([head, *(f"### {name}\n\n{make()}" for name, make in parts.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    plain = Scale()
    for name in ("samples", "nbytes", "hosts", "ranks", "archives", "batch", "seed"):
        parser.add_argument(f"--{name}", type=lambda text: int(float(text)), default=getattr(plain, name))
    parser.add_argument("--step-seconds", type=float, default=plain.step_seconds)
    parser.add_argument("--source-ms", type=float, default=plain.source_ms)
    parser.add_argument("--scale", type=float, default=1.0, help="of the simulations; 0.01 is a smoke run")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another constant")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/scale.md")
    parser.add_argument("--orders", type=lambda text: int(float(text)), help="measure samplers over so many")
    given = vars(parser.parse_args())
    if count := given.pop("orders"):
        print(orders(count))
        return
    scale, docs, changes = given.pop("scale"), given.pop("docs"), given.pop("set")
    values = dict(plain.constants)
    for change in changes:
        name, _, value = change.partition("=")
        if name not in values:
            parser.error(f"no constant {name!r}; there are {', '.join(values)}")
        values[name] = float(value)
    text = report(Scale(**given, constants=values), scale)
    if not docs:
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
