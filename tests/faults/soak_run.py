"""Run what tries faults again and again until the time is over, each round with another seed and larger.

Each round's counts become a line of soak.jsonl; the first failure ends it, with the command that repeats it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LOG = ROOT / "soak.jsonl"
# The short ones first: what the end of the time cuts short is not counted.
FAMILIES = (
    "tests/tools/test_save.py",
    "tests/writer/test_broken_off.py",
    "tests/dataset/test_model.py",
    "tests/dataset/test_model_compressed.py",
    "tests/dataset/test_killed_jobs.py",
    "tests/backends/test_memory.py",
    "tests/backends/test_copy.py",
    "tests/backends/test_read_through.py",
    "tests/backends/test_redis.py",
    "tests/backends/test_places_faults.py",
    "tests/fuzz",
    "tests/conformance/test_forged.py",
    "tests/reader/test_stress.py",
    "tests/faults",
    "tests/faults/soak_interrupts.py",
    "tests/faults/soak_out_of_memory.py",
)
SCALES = (1, 2, 4, 8)
"""Of the rounds, one after another; the last one from then on."""
_FAILED = 1


class Ran(NamedTuple):
    """One command. status: None where the time was over before it ended. said: what it printed."""

    status: int | None
    seconds: float
    counts: dict[str, int]
    said: str


def run(command: list[str], settings: dict[str, str], until: float) -> Ran:
    """Run a command of this folder until it ends, at most until a time of time.monotonic()."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="edcache-soak-") as folder:
        counts, said = Path(folder, "counts.json"), Path(folder, "said")
        environment = os.environ | settings | {"EDCACHE_TEST_COUNTS": str(counts)}
        with said.open("wb") as out:
            # A group of its own: it ends with all that it started.
            running = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = running.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, 15)
                    try:
                        running.wait(10)
                    except subprocess.TimeoutExpired:
                        os.killpg(running.pid, 9)
                        running.wait()
        found = json.loads(counts.read_text()) if counts.exists() else {}
        return Ran(status, time.monotonic() - began, found, said.read_text(errors="replace"))


def settings_of(number: int) -> dict[str, str]:
    """The environment of a round: its number is its seed."""
    return {
        "EDCACHE_TEST_SEED": str(number),
        "EDCACHE_TEST_SCALE": str(SCALES[min(number - 1, len(SCALES) - 1)]),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def commands(jobs: int) -> dict[str, list[str]]:
    """What a round runs, family by family, so that a round that is cut short has counted some."""
    pytest = [sys.executable, "-m", "pytest", "--full", "-x", "-q", "-p", "no:cacheprovider"]
    if jobs > 1 and importlib.util.find_spec("xdist"):
        pytest += ["-n", str(jobs), "--dist", "loadfile"]
    return {family: [*pytest, family] for family in FAMILIES}


def told(counts: Counter[str]) -> str:
    """A table of what was tried."""
    width = max(map(len, counts), default=0)
    return "\n".join(f"{what:<{width}}  {number:>14,}" for what, number in sorted(counts.items()))


def keep(line: dict[str, object]) -> None:
    """Append to the log."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def soak(seconds: float, jobs: int, first: int) -> int:
    """Rounds until the time is over; 1 after a failure."""
    until, number = time.monotonic() + seconds, first
    totals: Counter[str] = Counter()
    while time.monotonic() < until:
        settings, counts = settings_of(number), Counter[str]()
        for family, command in commands(jobs).items():
            ran = run(command, settings, until)
            counts.update(ran.counts)
            if ran.status is None:
                print(f"round {number}, {family}: the time is over; not counted", flush=True)
                break
            print(f"round {number}, {family}: {ran.seconds:,.0f} s, exit status {ran.status}", flush=True)
            if ran.status:
                keep(line_of(number, settings, counts, family))
                chosen = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
                print(ran.said, f"repeat it with\n  {' '.join(chosen)} {shlex.join(command)}", sep="\n")
                return _FAILED
        keep(line_of(number, settings, counts, None))
        totals += counts
        print(f"after round {number}:\n{told(totals)}", flush=True)
        number += 1
    print("no failure")
    return 0


def line_of(
    number: int, settings: dict[str, str], counts: Counter[str], failed: str | None
) -> dict[str, object]:
    """A round in the log."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": number,
        "scale": float(settings["EDCACHE_TEST_SCALE"]),
        "counts": dict(counts),
        "failed": failed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.partition("\n")[0])
    parser.add_argument("hours", type=float, metavar="HOURS", help="may be a fraction, such as 0.05")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="test files at a time")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the first round")
    asked = parser.parse_args()
    if not asked.hours > 0 or asked.jobs < 1 or asked.seed < 1:
        parser.error("HOURS is above 0, --jobs and --seed are 1 and up")
    return soak(3600 * asked.hours, asked.jobs, asked.seed)


if __name__ == "__main__":
    sys.exit(main())
