"""Count the calls of edcache's own functions on the short ways: reopen, batch, filter.

Each way runs in a process whose modules and archive are warm. A call is a Python function of edcache/ that
was entered, as `sys.setprofile` sees it; a file is one of edcache/ that has such a function.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import edcache

PACKAGE = str(Path(edcache.__file__).parent)
SAMPLES, BATCH = 1000, 64


class Digits:
    """Small samples of one shape, with a label."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((8,), float(index)), "y": index % 10}


def walk(do: Callable[[], Any]) -> tuple[list[str], Any]:
    """The file and function of each call that `do` makes in edcache/, in order, and what it returns."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            calls.append(f"{name[len(PACKAGE) + 1 :]}:{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        result = do()
    finally:
        sys.setprofile(None)
    return calls, result


def walks(folder: str) -> dict[str, list[str]]:
    """The calls of each way, by its name."""

    @edcache.cachable(f"{folder}/digits.zip", in_memory_keys=["y"], progress=False)
    def digits() -> Digits:
        return Digits()

    with digits(), digits() as warm:  # filled, then opened: all modules are here
        first = warm.batch(range(BATCH))
        assert first["x"].shape == (BATCH, 8)
        assert len(warm.filter(y=3)) == SAMPLES // 10
        warm[0]
    ways: dict[str, list[str]] = {}
    ways["reopen"], ds = walk(digits)
    ways["sample, first"], _ = walk(lambda: ds[0])
    ways["sample"], _ = walk(lambda: ds[1])
    ds.close()
    ds = digits()
    indices = list(range(0, 2 * BATCH, 2))
    ways["batch, first"], _ = walk(lambda: ds.batch(indices))
    ds.batch(range(SAMPLES))  # all is checked
    ds.batch(indices)
    ways["batch"], _ = walk(lambda: ds.batch(indices))
    ways["filter, first"], _ = walk(lambda: ds.filter(y=3))
    ways["filter"], _ = walk(lambda: ds.filter(y=4))
    ds.close()
    return ways


def main() -> None:
    """Print a line a way; with its name as an argument, every call of it."""
    with tempfile.TemporaryDirectory() as folder:
        ways = walks(folder)
    if len(sys.argv) > 1:
        print(*ways[" ".join(sys.argv[1:])], sep="\n")
        return
    for name, calls in ways.items():
        files = {call.split(":")[0] for call in calls}
        print(f"{name:14} {len(calls):5,} calls in {len(files):2} files")


if __name__ == "__main__":
    main()
