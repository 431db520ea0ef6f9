"""Which requests fetch many extents: neighbours together, large ones in parts at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

# What lies no further apart is one request. A small range of nginx on the same machine takes 0.4 ms, in which
# 100 KiB more come with one that is made anyway; with gaps of 1 MiB a batch takes twice as long as with none.
GAP_NBYTES: Final = 1 << 16
# A larger run is fetched in parts of this size, several at a time.
PART_NBYTES: Final = 1 << 23


class Run(NamedTuple):
    """Bytes [start, end) that are fetched and kept as one piece of memory."""

    start: int
    end: int

    def parts(self, nbytes: int = PART_NBYTES) -> list[tuple[int, int]]:
        """The requests that fetch it, each of at most `nbytes`: half-open."""
        return [(low, min(low + nbytes, self.end)) for low in range(self.start, self.end, nbytes)]


def runs_of(extents: Sequence[tuple[int, int]]) -> list[Run]:
    """The runs that cover extents (offset, nbytes), in file order, none within `GAP_NBYTES` of the next."""
    runs: list[Run] = []
    for offset, nbytes in sorted(extents):
        end = offset + nbytes
        if not nbytes:
            continue
        if runs and offset <= runs[-1].end + GAP_NBYTES:
            runs[-1] = Run(runs[-1].start, max(runs[-1].end, end))
        else:
            runs.append(Run(offset, end))
    return runs


def cut(runs: Sequence[Run], data: Sequence[memoryview], offset: int, nbytes: int) -> memoryview:
    """The bytes of one extent, out of those of the runs."""
    if not nbytes:
        return memoryview(b"")
    k = bisect_right(runs, offset, key=lambda run: run.start) - 1
    start = offset - runs[k].start
    return data[k][start : start + nbytes]
