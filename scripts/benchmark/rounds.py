"""All systems of one workload, measured in turns."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.machine import memory_available
from benchmark.peers import System
from benchmark.results import Results, SystemResult, WorkloadResult
from benchmark.session import Failed, Session, Unavailable
from benchmark.workloads import Workload

REFERENCE = "edcache"
"""Measured again in every shift, so that all systems were measured beside it."""


@dataclass(frozen=True)
class Plan:
    """Number of measurements.

    Args:
        repeats: the most of each kind. seconds: a system that was timed this long at one kind is not asked again.
        limit: seconds after which a system that does not answer is given up; ten times as many for a build.
    """

    repeats: int = 5
    seconds: float = 3.0
    limit: float = 60.0


class Entrant:
    """One system in the rounds: its process while it lives, and what was measured."""

    def __init__(self, system: System, result: SystemResult, folder: Path) -> None:
        self.system = system
        self.result = result
        self.folder = folder
        self.session: Session | None = None
        self.spent: dict[str, float] = {}

    def start(self, workload: Workload, log: Path) -> None:
        """Start its process."""
        self.session = Session(self.system.name, workload.name, workload.folder, self.folder, log)

    def ready(self, limit: float) -> str | None:
        """Wait until its process has imported it; its version."""
        assert self.session is not None
        try:
            return self.session.ready(limit)
        except (Failed, Unavailable) as reason:
            self.give_up(str(reason))
            return None

    def give_up(self, reason: str) -> None:
        """It is asked no more; what was measured stays."""
        print(f"  {self.system.name}: {reason}", file=sys.stderr)
        self.result.missing = reason
        self.session = None

    def ask(self, limit: float, do: str, **arguments: Any) -> dict[str, Any] | None:
        """Have its process do something; None where it cannot."""
        if self.session is None:
            return None
        try:
            return self.session.ask(limit, do, **arguments)
        except (Failed, Unavailable) as reason:
            self.give_up(str(reason))
            return None

    def close(self) -> None:
        """End its process."""
        if self.session is not None:
            self.session.close()
            self.session = None


class Rounds:
    """The measurements of one workload.

    Args:
        work: a folder for the systems' files.
    """

    def __init__(
        self, workload: Workload, systems: list[System], plan: Plan, work: Path, results: Results
    ) -> None:
        self.workload = workload
        self.systems = [s for s in systems if s.workloads is None or workload.name in s.workloads]
        self.plan = plan
        self.work = work
        self.results = results
        self.result = WorkloadResult(workload.title, len(workload), workload.batch_size, workload.payload)
        results.workloads[workload.name] = self.result
        self._built: set[Path] = set()
        self._order = random.Random(0)

    def run(self) -> None:
        """Measure all systems, as many at a time as the page cache has room for."""
        for name in (system.name for system in self.systems):
            self.result.systems[name] = SystemResult()
        shifts = list(self._shifts())
        for number, systems in enumerate(shifts, 1):
            which = f", shift {number} of {len(shifts)}" if len(shifts) > 1 else ""
            print(f"{self.workload.name}{which}: {' '.join(s.name for s in systems)}", file=sys.stderr)
            entrants = [
                Entrant(s, self.result.systems[s.name], self.work / (s.archive_of or s.name)) for s in systems
            ]
            try:
                self._shift(entrants)
            finally:
                for entrant in entrants:
                    entrant.close()
                    if REFERENCE not in (entrant.system.name, entrant.system.archive_of):
                        shutil.rmtree(entrant.folder, ignore_errors=True)

    def _shifts(self) -> Iterable[list[System]]:
        """Groups whose files fit into half of the memory; the reference is in each."""
        reference = [s for s in self.systems if s.name == REFERENCE]
        room = memory_available() // 2 - self.workload.payload * (1 + len(reference))
        many = max(1, room // self.workload.payload)
        sharing = [s for s in self.systems if s.archive_of is not None]
        others = [s for s in self.systems if s not in reference and s not in sharing]
        for begin in range(0, max(1, len(others)), many):
            yield reference + (sharing if begin == 0 else []) + others[begin : begin + many]

    def _shift(self, entrants: list[Entrant]) -> None:
        for entrant in entrants:
            entrant.start(self.workload, self.work / f"{entrant.system.name}.log")
        for entrant in entrants:
            version = entrant.ready(3 * self.plan.limit)  # all import at the same time
            if version and entrant.system.package:
                self.results.versions[entrant.system.package] = version
        self._build(entrants)
        for entrant in entrants:
            entrant.ask(self.plan.limit, "check")
        self._measure(entrants, "open", "fresh")
        self._measure(entrants, "select", "select")
        for entrant in entrants:
            entrant.ask(self.plan.limit, "open")
        self._once(entrants, "size")
        self._epochs(entrants)

    def _build(self, entrants: list[Entrant]) -> None:
        print("  build", file=sys.stderr)
        # The first of those that share an archive builds it; the reference's stays from shift to shift.
        owners = {entrant.folder: entrant for entrant in reversed(entrants) if entrant.session is not None}
        builders = [entrant for folder, entrant in owners.items() if folder not in self._built]
        for _ in range(min(3, self.plan.repeats)):
            for entrant in self._turns(builders, "build"):
                shutil.rmtree(entrant.folder, ignore_errors=True)
                entrant.folder.mkdir(parents=True)
                answer = entrant.ask(10 * self.plan.limit, "build")
                if answer is None:
                    builders.remove(entrant)
                    continue
                entrant.spent["build"] = entrant.spent.get("build", 0) + answer["build"]
                for metric, value in answer.items():
                    entrant.result.add(metric, value)
        self._built |= owners.keys()

    def _epochs(self, entrants: list[Entrant]) -> None:
        remembered: set[str] = set()
        for metric, kind, number in (
            ("epoch", "workers", 0),
            ("epoch", "workers", 2),
            ("threads", "threads", 1),
            ("threads", "threads", 2),
        ):
            running = [
                e for e in entrants if e.ask(self.plan.limit, "start", kind=kind, number=number) is not None
            ]
            self._once([e for e in running if e.system.name not in remembered], "memory")
            remembered |= {e.system.name for e in running}
            if (metric, number) == ("epoch", 0):
                self._measure(entrants, "read", "read", seeded=True)
            self._measure(running, f"{metric}_{number}", "epoch", seeded=True, unit=len(self.workload))
            for entrant in running:
                entrant.ask(self.plan.limit, "stop")

    def _measure(
        self, entrants: list[Entrant], metric: str, do: str, seeded: bool = False, unit: int = 1
    ) -> None:
        """Ask everybody for one measurement more, in another order each time.

        Args:
            unit: what a measurement is multiplied with to be the seconds that it took.
        """
        print(f"  {metric}", file=sys.stderr)
        absent: set[str] = set()
        for round_number in range(self.plan.repeats):
            arguments = {"seed": round_number} if seeded else {}
            for entrant in self._turns(entrants, metric):
                if entrant.system.name in absent:
                    continue
                answer = entrant.ask(self.plan.limit, do, **arguments)
                if answer is None:
                    absent.add(entrant.system.name)
                    continue
                (value,) = answer.values()
                entrant.result.add(metric, value)
                entrant.spent[metric] = entrant.spent.get(metric, 0) + value * unit

    def _turns(self, entrants: list[Entrant], metric: str) -> list[Entrant]:
        waiting = [
            e for e in entrants if e.session is not None and e.spent.get(metric, 0) < self.plan.seconds
        ]
        self._order.shuffle(waiting)
        return waiting

    def _once(self, entrants: list[Entrant], do: str) -> None:
        for entrant in entrants:
            for metric, value in (entrant.ask(self.plan.limit, do) or {}).items():
                entrant.result.add(metric, value)
