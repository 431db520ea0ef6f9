"""What was measured: samples by workload, system and metric, kept as JSON; medians of them."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmark.peers import BY_NAME

METRICS = {
    "epoch_0": "seconds a sample, shuffled epoch, DataLoader without workers",
    "epoch_2": "seconds a sample, shuffled epoch, DataLoader with 2 persistent workers",
    "threads_1": "seconds a sample, shuffled epoch, the system's own loader with 1 thread",
    "threads_2": "seconds a sample, shuffled epoch, the system's own loader with 2 threads",
    "read": "seconds a sample, at random indices one by one",
    "open": "seconds to open and get a first sample, in a fresh process after its imports",
    "select": "seconds to select the samples with one label, the first time in a process",
    "build": "seconds to write all samples and bring them to the disk",
    "written": "seconds to write all samples, not counting what the kernel still had to bring to the disk",
    "size": "bytes on the disk",
    "dirty": "bytes of private memory that was written, more than before opening, after an epoch",
    "clean": "bytes of private memory that was only read: pages of mapped files, which the kernel can drop",
}
"""What the lists in results.json are."""

EPOCHS = ("epoch_0", "epoch_2", "threads_1", "threads_2")


@dataclass
class SystemResult:
    """One system with one workload.

    Args:
        samples: a list of measurements per metric of METRICS; no list, no such thing.
        missing: why it has none, or not all, in one line.
    """

    samples: dict[str, list[float]] = field(default_factory=dict)
    missing: str | None = None

    def add(self, metric: str, value: float) -> None:
        """Note one measurement."""
        self.samples.setdefault(metric, []).append(value)

    def median(self, metric: str) -> float | None:
        """The median, None where nothing was measured."""
        values = self.samples.get(metric)
        return statistics.median(values) if values else None

    def rate(self, metric: str) -> float | None:
        """Samples a second of a metric in seconds a sample."""
        seconds = self.median(metric)
        return 1 / seconds if seconds else None

    def best_rate(self) -> float | None:
        """Samples a second of the fastest way to an epoch."""
        return max((rate for metric in EPOCHS if (rate := self.rate(metric))), default=None)


@dataclass
class WorkloadResult:
    """One workload: `payload` bytes in `count` samples, by system name."""

    title: str
    count: int
    batch_size: int
    payload: int
    systems: dict[str, SystemResult] = field(default_factory=dict)

    def ranked(self) -> list[tuple[str, SystemResult]]:
        """The systems that have an epoch, the fastest first."""
        found = [(name, system) for name, system in self.systems.items() if system.best_rate()]
        return sorted(found, key=lambda pair: -(pair[1].best_rate() or 0))

    def spread(self) -> float:
        """(slowest - fastest) / median of the epochs of one system; the median of all systems."""
        spreads = [
            (max(values) - min(values)) / statistics.median(values)
            for system in self.systems.values()
            for metric in EPOCHS
            if len(values := system.samples.get(metric, [])) > 1
        ]
        return statistics.median(spreads) if spreads else 0.0


@dataclass
class Results:
    """A run."""

    date: str
    machine: dict[str, Any]
    options: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    workloads: dict[str, WorkloadResult] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        """Write everything as JSON."""
        file.write_text(json.dumps({"units": METRICS, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def load(cls, file: Path) -> Results:
        """Read what `save` wrote."""
        data = json.loads(file.read_text())
        del data["units"]
        for name, workload in data["workloads"].items():
            found = workload.pop("systems").items()
            # A run may have measured systems that are no longer compared.
            systems = {name: SystemResult(**system) for name, system in found if name in BY_NAME}
            data["workloads"][name] = WorkloadResult(**workload, systems=systems)
        return cls(**data)
