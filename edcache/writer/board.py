"""What the workers of a fill and the process that started them know of each other, in shared memory."""

from __future__ import annotations

from typing import Any, Final

# More samples than this that kill or hang their process, and something else is wrong.
MOST_ASIDE: Final = 1024


class Board:
    """A few numbers for each worker; one writer each, so no lock that a killed process could hold.

    Args:
        context: a multiprocessing context. workers: how many.
    """

    def __init__(self, context: Any, workers: int) -> None:
        self._index = context.RawArray("q", workers)
        self._begun = context.RawArray("q", workers)
        self._published = context.RawArray("q", workers)
        self._aside = context.RawArray("q", MOST_ASIDE)
        self._count = context.RawValue("q", 0)
        self._stop = context.RawValue("b", 0)

    def begin(self, worker: int, index: int) -> None:
        """Note which sample a worker computes now."""
        self._index[worker] = index + 1
        self._begun[worker] += 1

    def end(self, worker: int) -> None:
        """Note that it computes none."""
        self._index[worker] = 0

    def at(self, worker: int) -> tuple[int | None, int]:
        """Which sample a worker computes, None between samples, and how many it has begun."""
        index = self._index[worker]
        return (index - 1 if index else None), self._begun[worker]

    def is_at_another(self, worker: int, index: int) -> bool:
        """Whether another worker computes a sample, or ended in it, which the parent has not counted yet."""
        return any(at == index + 1 for number, at in enumerate(self._index) if number != worker)

    def published(self, worker: int, samples: int) -> None:
        """Note that a worker has published some more."""
        self._published[worker] += samples

    @property
    def total(self) -> int:
        """Samples that all workers have published."""
        return sum(self._published)

    def set_aside(self, index: int) -> None:
        """Let no worker compute a sample any more; at most MOST_ASIDE of them."""
        self._aside[self._count.value] = index + 1
        self._count.value += 1

    def __contains__(self, index: object) -> bool:
        """Whether a sample was set aside."""
        count = self._count.value
        return count > 0 and isinstance(index, int) and index + 1 in self._aside[:count]

    def stop(self) -> None:
        """Let every worker end before its next sample."""
        self._stop.value = 1

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return bool(self._stop.value)
