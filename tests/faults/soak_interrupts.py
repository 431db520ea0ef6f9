"""Ctrl-C at any bytecode instruction of an operation: no lock, no file and no sample is lost.

`scripts/soak` alone runs this file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from disk import MemoryDisk
from operations import Aftermath, Operation, operations
from scale import SCALE
from systems import replace_system

import edcache

pytestmark = pytest.mark.spread

PACKAGE = str(Path(edcache.__file__).parent)
OPERATIONS = list(operations())


def is_in_finalizer(frame: FrameType | None) -> bool:
    """What is raised in a finalizer, Python prints and drops: nobody is interrupted there."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


class Interrupt:
    """Raises KeyboardInterrupt before the n-th instruction of the package's code; n = 0 only counts."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.count = 0
        self.where = ""

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(PACKAGE) or is_in_finalizer(frame):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            return self._trace
        if event == "opcode":
            self.count += 1
            if self.count == self.n:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return self._trace

    def run(self, act: Any, made: Any) -> Any:
        # In a generator: what is raised between an exception and its handler's end leaves it to the
        # thread as the current one (CPython 3.11), so it would be the context of every later error.
        return next(self._run(act, made))

    def _run(self, act: Any, made: Any) -> Iterator[Any]:
        sys.settrace(self._trace)
        try:
            result = act(made)
        finally:
            sys.settrace(None)
        yield result


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_an_interrupt_at_any_instruction_leaves_all_as_it_was_or_done(
    operation: Operation, tally: Any
) -> None:
    counted = Interrupt(0)
    with replace_system(MemoryDisk(operation.base)):
        made = operation.prepare()
        result = counted.run(operation.act, made)
        for opened in (made, result):
            if hasattr(opened, "close"):
                opened.close()
        del made, result
    aftermath, problems, count = Aftermath(operation), {}, 0
    step = max(1, round(counted.count / (1_700 * SCALE)))
    for n in range(1, counted.count + 1, step):
        disk = MemoryDisk(operation.base)
        with replace_system(disk):
            made, interrupt = operation.prepare(), Interrupt(n)
            try:
                result = interrupt.run(operation.act, made)
            except KeyboardInterrupt:
                result = None
            count += 1
            for what in aftermath.of(disk, result if made is None else made):
                problems.setdefault(what, []).append(interrupt.where)
            made = result = None  # while their disk is there
    told = [f"{what}: {len(where)} times, {sorted(set(where))[:8]}" for what, where in problems.items()]
    assert not told, "\n".join(told)
    tally("interrupts", count)
