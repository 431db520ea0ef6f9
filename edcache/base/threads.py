"""Work that several threads do, told of as by one."""

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
    """Do something with each of many items, by at most so many threads, whose names begin with `name`.

    In the order of the items, this thread hands each result to `take`, warns, and raises the first error.
    """

    def run(item: Item) -> tuple[Result, list[Any]]:
        deferred.set([])
        return work(item), deferred.get() or []

    def finish(future: Future[tuple[Result, list[Any]]]) -> None:
        result, warnings = future.result()
        take(result)
        for warning in warnings:
            warn(*warning)

    begun: deque[Future[tuple[Result, list[Any]]]] = deque()
    with ThreadPoolExecutor(most, name) as pool:
        try:
            for item in items:
                begun.append(pool.submit(run, item))
                if len(begun) >= 2 * most:
                    finish(begun.popleft())
            while begun:
                finish(begun.popleft())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            begun.clear()  # the error's traceback would keep what nobody takes
            raise
