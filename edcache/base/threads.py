"""Map a function over items by threads, with results, warnings and errors in the calling thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from edcache.base.frames import deferred, warn

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], take: Callable[[Result], Any], most: int, name: str
) -> None:
    """Call `work` with each item in at most `most` threads, whose names begin with `name`.

    In the order of the items, the calling thread hands each result to `take`, and raises the first error.
    Warnings of the threads are raised there too.
    """
    begun: deque[Future[Result]] = deque()
    warnings: deque[Any] = deque()

    def finish(future: Future[Result]) -> None:
        take(future.result())
        while warnings:
            warn(*warnings.popleft())

    with ThreadPoolExecutor(most, name, initializer=lambda: deferred.set(warnings)) as pool:
        try:
            for item in items:
                begun.append(pool.submit(work, item))
                if len(begun) >= 2 * most:
                    finish(begun.popleft())
            while begun:
                finish(begun.popleft())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            begun.clear()  # the error's traceback would keep results that nobody takes
            raise
