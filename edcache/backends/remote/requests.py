"""Requests: an engine's failures, time limits, and back-off.

They are made in fsspec's event loop. A forked child makes its own, and its own clients in it.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar

from edcache import base, storage
from edcache.backends import Url
from edcache.base import ArchiveNotFoundError, EdcacheError, PerProcess, StaleArchiveError, StorageError

Answer = TypeVar("Answer")
Data = bytes | memoryview

TRIES: Final = 5
# A store that says that it is busy will answer. The waits are up to two minutes together.
BUSY_TRIES: Final = 20
# An answer of another state is believed if it comes so often in turn: each may be wrong.
_CHANGED_TRIES: Final = 6
_TIMEOUT_SECONDS: Final = 30.0
# Beside its time limit a request has a second for each 512 KiB: slower than that is a stall.
_SLOWEST: Final = 1 << 19
_FIRST_WAIT, _LONGER, _LONGEST_WAIT = 0.1, 3.0, 10.0
_LONGEST_RETRY_AFTER: Final = 30.0
_OPTIONS: Final = {"request_timeout", "request_tries"}
_ALLOWED: Final = "; give credentials in storage_options=, or in the environment"
_LOST: Final = (
    "; it was opened with credentials, which are not pickled to other processes than those that "
    "multiprocessing spawns: set them in the environment there, or open it there with storage_options="
)


class Failing(Exception):
    """The request failed; it may be made up to `tries` times in all, again after `wait` seconds."""

    def __init__(self, what: str, tries: int = TRIES, wait: float | None = None) -> None:
        super().__init__(what)
        self.tries, self.wait = tries, wait


def refused(what: str) -> Failing:
    """A failure that another request would only repeat."""
    return Failing(what, 1)


class Changed(Failing):
    """The object is no longer the one that was opened, if it says so again; the text says how that shows."""

    def __init__(self, what: str) -> None:
        super().__init__(what, _CHANGED_TRIES)


@dataclass(frozen=True)
class ObjectStamp:
    """A state of an object.

    tag: tells it from others of the same `kind`, such as "ETag". url: of this state alone.
    """

    size: int
    tag: str = ""
    kind: str = ""
    url: str = field(default="", compare=False)


class Engine(ABC):
    """One object, read by one library.

    Raises: Failing, Changed; FileNotFoundError; PermissionError if it wants credentials; whatever the
    library raises.
    """

    async def begin(self, head: int, tail: int) -> tuple[ObjectStamp, Data, Data]:
        """The state of the object, its first `head` bytes and its last `tail`; of a shorter one all.

        Answers of two states are Changed.
        """
        stamp = await self.stamp()
        if not stamp.size:
            return stamp, b"", b""
        first = self.fetch(stamp, 0, min(head, stamp.size))
        last = self.fetch(stamp, max(0, stamp.size - tail), stamp.size)
        return stamp, *await asyncio.gather(first, last)

    @abstractmethod
    async def stamp(self) -> ObjectStamp:
        """The state of the object now."""

    @abstractmethod
    async def fetch(self, stamp: ObjectStamp, start: int, end: int) -> Data:
        """Bytes [start, end) of that state, all of them, and at least one."""


class Requests:
    """Asks for an object with a time limit, and again if that may help."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self.options = {name: value for name, value in url.options.items() if name not in _OPTIONS}
        self._timeout = url.options.get("request_timeout", _TIMEOUT_SECONDS)
        self._tries: int | None = url.options.get("request_tries")
        if not isinstance(self._timeout, (int, float)) or not self._timeout > 0:
            raise base.OptionError(
                f"storage_options: request_timeout={self._timeout!r}; give seconds above 0"
            )
        if self._tries is not None:
            base.check_count("storage_options: request_tries", self._tries)

    @property
    def tries(self) -> int:
        """Most requests for bytes that fail their sums."""
        return self._tries or TRIES

    async def answer(self, doing: str, nbytes: int, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask until there is an answer.

        Args:
            doing: for the message: "reading 4,096 bytes at offset 8,192".
            nbytes: how much is to come, which takes its time.
        Raises:
            StorageError, ArchiveNotFoundError, StaleArchiveError.
        """
        limit, changed = self._timeout + nbytes / _SLOWEST, 0
        for asked in count(1):
            try:
                return await asyncio.wait_for(ask(), limit)
            except Exception as error:  # noqa: BLE001 - of any class of a library, whose text may have credentials
                failure = self._failure(error, doing, limit)
            # Outside of the except block: a library's own error, which may have credentials in its text, must
            # not come along as the context of ours.
            if isinstance(failure, EdcacheError):
                raise failure
            tries = failure.tries if failure.tries == 1 else self._tries or failure.tries
            changed = changed + 1 if isinstance(failure, Changed) else 0
            if changed >= min(tries, _CHANGED_TRIES):
                raise self._replaced(failure, doing)
            if asked >= tries and not changed:
                break
            wait = min(_FIRST_WAIT * _LONGER ** (asked - max(changed, 1)), _LONGEST_WAIT)
            wait *= random.uniform(0.5, 1.0)  # noqa: S311
            await asyncio.sleep(wait if failure.wait is None else min(failure.wait, _LONGEST_RETRY_AFTER))
        times = "once" if asked == 1 else f"{asked} times"
        raise StorageError(f"{self.url}: {doing}: {failure}; asked {times}", path=str(self.url))

    def _failure(self, error: Exception, doing: str, limit: float) -> Failing | EdcacheError:
        """The failure to repeat, or the error that ends the request."""
        path = str(self.url)
        lost = _LOST if self.url.has_lost_credentials else ""
        if isinstance(error, Failing):
            return error
        if isinstance(error, asyncio.TimeoutError | TimeoutError):
            return Failing(f"no whole answer within {limit:.3g} s")
        if isinstance(error, FileNotFoundError):
            return ArchiveNotFoundError(f"{path}: no such object; check the URL{lost}", path=path)
        if isinstance(error, PermissionError):
            return refused(f"{self._described(error)}{lost or _ALLOWED}")
        return Failing(self._described(error), TRIES if isinstance(error, OSError) else 1)

    def _replaced(self, failure: Failing, doing: str) -> StaleArchiveError:
        text = "the object was replaced or deleted since it was opened: open it again"
        return StaleArchiveError(f"{self.url}: {doing}: {failure}; {text}", path=str(self.url))

    def _described(self, error: Exception) -> str:
        text = " ".join(self.url.scrubbed(str(error)).split())
        return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


# -------------------------------------------------------------------------------------- of a process

_cached: PerProcess[dict[object, Any]] = PerProcess()


def cached(key: object, make: Callable[[], Answer]) -> Answer:
    """The thing that this process has under a key; two threads that make it at once both get the first."""
    things = _cached.get(dict)
    if key not in things:
        things.setdefault(key, make())
    thing: Answer = things[key]
    return thing


async def gathered(calls: Sequence[Callable[[], Awaitable[Answer]]], most: int) -> list[Answer]:
    """The answers of calls, at most `most` at a time; the others are cancelled if one fails."""
    turns = asyncio.Semaphore(most)

    async def answer(call: Callable[[], Awaitable[Answer]]) -> Answer:
        async with turns:
            return await call()

    tasks = [asyncio.ensure_future(answer(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def run(coroutine: Coroutine[Any, Any, Answer], timeout: float | None = None) -> Answer:
    """Run a coroutine in fsspec's loop, and wait for it; an interrupt cancels it."""
    from fsspec.asyn import get_loop

    try:
        loop = get_loop()
    except OSError as error:
        coroutine.close()
        raise storage.storage_error("edcache", "starting the thread of requests", error) from error
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result(timeout)
    finally:
        future.cancel()  # nothing, if it has ended
