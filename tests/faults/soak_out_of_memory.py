"""Memory ends at any allocation of an operation: nothing is lost, and nothing stays locked or open.

Which error tells it is not judged: where an allocation of CPython itself fails, that may be a TypeError or a
RuntimeError. `scripts/soak` alone runs this file.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import IO, Any

import pytest
from disk import MemoryDisk
from operations import Aftermath, Operation, operations
from scale import SCALE
from systems import replace_system

pytestmark = pytest.mark.spread

testcapi = pytest.importorskip("_testcapi", reason="this Python lacks the hooks into its allocator")
OPERATIONS = list(operations())
POINTS = 900
# Not all from then on: where nothing can be allocated, CPython 3.11 may call a function for ever.
BURST = 50
DEATHS = ("SIGSEGV", "SIGABRT")
HELD = ("the append lock is held", "files are left open", "locks are left")
SECONDS = 300


def _attempt(operation: Operation, first: int, last: int) -> tuple[MemoryDisk, Any, bool]:
    """Fail the allocations [first, last) of the act: the disk, what is open, whether the act raised."""
    disk = MemoryDisk(operation.base)
    with replace_system(disk):
        made, raised, result = operation.prepare(), False, None
        testcapi.set_nomemory(first, last)
        try:
            result = operation.act(made)
        except BaseException:
            raised = True
        finally:
            testcapi.remove_mem_hooks()
    return disk, result if made is None else made, raised


def _needs(operation: Operation) -> int:
    """How many allocations the act makes, about."""

    def attempt(count: int, out: IO[str]) -> None:
        with replace_system(MemoryDisk(operation.base)):
            operation.act(operation.prepare())
        print(not _attempt(operation, count, count + BURST)[2], file=out)

    def suffices(count: int) -> bool:
        lines, died = _in_child(partial(attempt, count))
        assert died in ("", *DEATHS)
        return lines == ["True"]

    high = 64
    while not suffices(high):
        high *= 2
    low = high // 2
    while high - low > 16:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _try_all(operation: Operation, points: list[tuple[int, int]], out: IO[str]) -> None:
    """Runs in a child: fails allocations at points (first, how many), and writes a line for each."""
    with replace_system(MemoryDisk(operation.base)):
        operation.act(operation.prepare())  # what is made once is made now
    aftermath = Aftermath(operation)
    for first, length in points:
        disk, made, _ = _attempt(operation, first, first + length)
        found = []
        with replace_system(disk):
            # Letting go takes a little memory too. Where there is none for that either, an end of the
            # process or of the objects lets go.
            for what in aftermath.of(disk, made):
                if length == 1 or not any(held in what for held in HELD):
                    found.append(what)
            made = None
        out.write(json.dumps(found) + "\n")
        out.flush()


def _in_child(work: Callable[[IO[str]], None]) -> tuple[list[str], str]:
    """The lines that a forked child writes, and of what it died."""
    reading, writing = os.pipe()
    # A fatal error of CPython waits for the thread of pytest's timeout, which the child does not have.
    faulthandler.cancel_dump_traceback_later()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            signal.alarm(SECONDS)
            faulthandler.disable()
            gc.disable()
            gc.freeze()  # so that looking for cycles is cheap
            with os.fdopen(writing, "w") as out:
                work(out)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        lines = result.read().splitlines()
    _, status = os.waitpid(child, 0)
    died = (
        signal.Signals(status & 127).name if status & 127 else f"exit status {status >> 8}" if status else ""
    )
    return lines, died


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_no_allocation_that_fails_does_harm(operation: Operation, tally: Any) -> None:
    """Where numpy or pyarrow do not survive, that is a kill, which does no harm (test_crash_states.py)."""
    total = _needs(operation)
    step = max(1, round(total / (POINTS * SCALE)))
    points = [(first, length) for length in (1, BURST) for first in range(0, total, step)]
    problems: dict[str, list[tuple[int, int]]] = {}
    done, deaths = 0, 0
    while done < len(points):
        left = points[done:]
        lines, died = _in_child(partial(_try_all, operation, left))
        for point, line in zip(left, lines, strict=False):
            for what in json.loads(line):
                problems.setdefault(what, []).append(point)
        done += len(lines)
        if died:
            assert died in DEATHS, f"{died} at {points[done]}"
            done, deaths = done + 1, deaths + 1
    # CPython loses a reference here and there where an allocation of its own fails, and what it leads to.
    leaks = problems.pop("1 files are left open", [])
    # A descriptor is closed by a finalizer, whose own allocations may fail.
    assert len(leaks) <= 8 + len(points) // 200, leaks
    told = [f"{what}: {len(at)} of {len(points)}, at {at[:5]}" for what, at in problems.items()]
    assert not told, "\n".join(told[:20])
    assert deaths <= len(points) // 20, f"{deaths} of {len(points)} ended the process"
    tally("out of memory", len(points) - deaths)
    tally("out of memory, the end of numpy or pyarrow", deaths)
