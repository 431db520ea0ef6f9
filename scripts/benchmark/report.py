"""Tables of a run, in markdown."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmark import machine
from benchmark.peers import BY_NAME
from benchmark.results import Results, SystemResult, WorkloadResult

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
HERE = "../../scripts/benchmark"  # from the page that has the table

_Columns = dict[str, Callable[[SystemResult], str]]

HOW = """\
- Each system runs in a process of its own. The processes of a workload run side by side. They are measured in
  turn, in a new order each round. Figures are medians. If not all archives fit into half of the memory, the
  systems are measured in groups, and edcache is in each group.
- Before the timing, the samples and batches of each system are compared with the generated ones, value by
  value.
- The first epoch is not timed. It starts the workers (`persistent_workers=True`) and compiles code. Files are
  in the page cache. torch has one thread per process.
- *Epoch*: every sample once, shuffled in the system's own way, in batches of torch tensors (lists of tensors
  for tokens), through torch's DataLoader or a subclass. *Threads*: the same through the system's own loader.
  webdataset, litdata and mosaicml-streaming shuffle shards and buffers. DatasetRT draws with replacement. The
  others shuffle all samples.
- *One read*: one sample at a random index. *Open*: opening and the first sample, in a fork of a process that
  has imported the system and opened nothing. *Select*: the samples whose label is 3, for the first time in a
  process.
- *Build*: the time from the first sample until `sync` has returned. *Disk*: the disk space of the files.
  *Payload*: the bytes of the arrays, text and labels.
- *Memory*: the private memory that the reading process gained from opening and one epoch without workers.
  *Written* is `Private_Dirty`. *Mapped* is `Private_Clean`: pages of mapped files, which the kernel can drop.
- A read that returns a view of a mapped file has not read its bytes yet.
- A dash: the system does not have this, or keeps nothing on the disk."""


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [
        "# edcache beside other ways to keep a dataset",
        f"Measured on {_day(results)}, on {machine.in_words(results.machine)}, by `scripts/bench`"
        f"{_scaled(results)}. Every measurement is in results.json.\n\n![shuffled epochs](results.png)",
    ]
    parts += [_workload(name, workload) for name, workload in results.workloads.items()]
    missing = _missing(results)
    if missing:
        parts.append("## Not measured\n\n" + "\n".join(missing))
    versions = ", ".join(f"{name} {version}" for name, version in sorted(results.versions.items()))
    parts.append(f"## How\n\n{HOW}\n- Versions: {versions}.")
    return "\n\n".join(parts) + "\n"


def _day(results: Results) -> str:
    return f"{datetime.date.fromisoformat(results.date):%-d %B %Y}"


def _scaled(results: Results) -> str:
    scale = results.options["scale"]
    return "" if scale == 1 else f" with {scale} of the samples (a smoke run, whose figures say little)"


def _workload(name: str, workload: WorkloadResult) -> str:
    ranked = workload.ranked()
    in_loader = [pair for pair in ranked if pair[1].rate("epoch_0") or pair[1].rate("epoch_2")]
    threaded = [pair for pair in ranked if pair[1].rate("threads_1") or pair[1].rate("threads_2")]
    epochs: _Columns = {
        "epoch, no workers (samples/s)": lambda s: rate(s.rate("epoch_0")),
        "epoch, 2 workers (samples/s)": lambda s: rate(s.rate("epoch_2")),
    }
    threads: _Columns = {
        "epoch, 1 thread (samples/s)": lambda s: rate(s.rate("threads_1")),
        "epoch, 2 threads (samples/s)": lambda s: rate(s.rate("threads_2")),
    }
    reads: _Columns = {
        "one read (us)": lambda s: scaled(s.median("read"), 1e6),
        "open (ms)": lambda s: scaled(s.median("open"), 1e3),
        "select (ms)": lambda s: scaled(s.median("select"), 1e3),
    }
    sizes: _Columns = {
        "build (samples/s)": lambda s: rate(_per_second(workload.count, s.median("build"))),
        "build (MB/s)": lambda s: scaled(_per_second(workload.payload, s.median("build")), 1e-6),
        "disk (MB)": lambda s: scaled(s.median("size"), 1e-6),
        "disk / payload": lambda s: _ratio(s.median("size"), workload.payload),
        "memory written (MB)": lambda s: scaled(s.median("dirty"), 1e-6),
        "memory mapped (MB)": lambda s: scaled(s.median("clean"), 1e-6),
    }
    text = (
        f"## {name}: {workload.title}\n\n"
        f"{workload.count:,} samples, {workload.payload / 1e6:,.0f} MB, batches of {workload.batch_size}. "
        f"Epochs of one system differ by {workload.spread():.0%}, slowest to fastest (median of all systems)."
        f"\n\n{_table(epochs | reads, in_loader)}"
    )
    if threaded:
        own = _table(threads | reads, threaded)
        text += f"\n\nSystems with a loader of their own, without worker processes:\n\n{own}"
    return f"{text}\n\nWriting, disk and memory:\n\n{_table(sizes, [*in_loader, *threaded])}"


def _table(columns: _Columns, systems: Iterable[tuple[str, SystemResult]]) -> str:
    lines = [f"| system | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for name, system in systems:
        cells = " | ".join(column(system) for column in columns.values())
        lines.append(f"| {_title(name)} | {cells} |")
    return "\n".join(lines)


def _title(name: str) -> str:
    system = BY_NAME[name]
    return f"**{system.title}**" if system.is_ours else system.title


def _missing(results: Results) -> list[str]:
    """A line per system and reason, with the workloads that it holds for."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for workload, result in results.workloads.items():
        for name, system in result.systems.items():
            if system.missing is not None:
                reasons.setdefault((name, system.missing), []).append(workload)
    return [
        f"- {BY_NAME[name].title} ({', '.join(workloads)}): {reason}"
        for (name, reason), workloads in reasons.items()
    ]


def rate(value: float | None) -> str:
    """Samples a second in three digits: 1.23 M, 456 k, 78.9."""
    if value is None:
        return "-"
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if value >= limit * 0.9995:
            return _three_digits(value / limit) + unit
    return _three_digits(value)


def scaled(value: float | None, factor: float) -> str:
    """A value in another unit, in three digits."""
    return "-" if value is None else _three_digits(value * factor)


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _per_second(amount: float, seconds: float | None) -> float | None:
    return amount / seconds if seconds else None


def _ratio(value: float | None, whole: float) -> str:
    return "-" if value is None else f"{value / whole:.2f}"


def check_markers(page: Path) -> None:
    """Raise SystemExit where the page has no place for the table."""
    text = page.read_text(encoding="utf-8")
    if not 0 <= text.find(BEGIN) < text.find(END):
        raise SystemExit(f"{page.name}: no {BEGIN} followed by {END}; add both where the table shall be")


def into_page(results: Results, page: Path) -> None:
    """Replace what is between the markers by the short table, the picture, the date and the machine."""
    check_markers(page)
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    text = f"{before}{BEGIN}\n{short(results)}\n{END}{after}"
    page.write_text(text, encoding="utf-8")


def short(results: Results) -> str:
    """One row a system: samples a second of a shuffled epoch, without workers and with 2."""
    names = list(results.workloads)
    rows: dict[str, list[str]] = {}
    for name in BY_NAME:
        systems = [results.workloads[workload].systems.get(name) for workload in names]
        if any(system and system.best_rate() for system in systems):
            rows[name] = [_pair(system) for system in systems]
    lines = [f"| samples/s, shuffled | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    lines += [f"| {_title(name)} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return (
        f"![samples per second of a shuffled epoch]({HERE}/results.png)\n\n" + "\n".join(lines) + "\n\n"
        "Each cell has two medians of samples per second: a DataLoader without workers / with 2 workers. "
        "Own loaders: 1 thread / 2 threads. All systems of a workload were measured side by side, in one run "
        f"of `scripts/bench` on {_day(results)}, on {machine.in_words(results.machine)}. All figures and how "
        f"they were measured: [results.md]({HERE}/results.md)."
    )


def _pair(system: SystemResult | None) -> str:
    if system is None or not system.best_rate():
        return "-"
    kinds = ("epoch_0", "epoch_2") if system.rate("epoch_0") else ("threads_1", "threads_2")
    return " / ".join(rate(system.rate(kind)).replace(" ", "\N{NO-BREAK SPACE}") for kind in kinds)
