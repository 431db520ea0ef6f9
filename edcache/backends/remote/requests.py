"""Requests: what an engine says where an answer does not serve, time limits, and back-off.

They are made in fsspec's event loop. A forked child makes its own, and its own clients in it.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from edcache import base, storage
from edcache.backends.remote.url import Url
from edcache.base import ArchiveNotFoundError, EdcacheError, PerProcess, StaleArchiveError, StorageError

Answer = TypeVar("Answer")
Data = bytes | memoryview

TIMEOUT_SECONDS: Final = 30.0
TRIES: Final = 5
# A store that says that it is busy will answer. The waits are up to two minutes together.
BUSY_TRIES: Final = 20
# Beside its time limit a request has a second for each so many bytes: slower than that is a stall.
_SLOWEST: Final = 1 << 19
_FIRST_WAIT, _LONGER, _LONGEST_WAIT = 0.1, 3.0, 10.0
_LONGEST_RETRY_AFTER: Final = 30.0
# An answer that breaks the rules is seldom an accident: so often it is believed to be one.
_STRANGE_TRIES: Final = 3
_OPTIONS: Final = {"request_timeout", "request_tries"}
_ALLOWED: Final = "; give credentials in storage_options=, or in the environment"
_LOST: Final = (
    "; it was opened with credentials, which are not pickled to other processes than those that "
    "multiprocessing spawns: set them in the environment there, or open it there with storage_options="
)


class Failing(Exception):
    """An answer that does not serve: to be asked for at most `tries` times in all, after `wait` seconds."""

    def __init__(
        self, what: str, tries: int | None = None, wait: float | None = None, is_busy: bool = False
    ) -> None:
        super().__init__(what)
        self.what, self.tries, self.wait, self.is_busy = what, tries, wait, is_busy


def strange(what: str) -> Failing:
    """An answer that is not one to the question."""
    return Failing(what, _STRANGE_TRIES)


def refused(what: str) -> Failing:
    """An answer that will not change."""
    return Failing(what, 1)


class Changed(Exception):
    """The object is no longer the one that was opened; its text says how that shows."""


@dataclass(frozen=True)
class Stamp:
    """A state of an object: `tag` tells it from others, as far as they are of one `kind`, such as "ETag"."""

    size: int
    tag: str = ""
    kind: str = ""


class Engine(ABC):
    """One object, as one library reads it.

    Raises the above; FileNotFoundError and PermissionError, of what is absent or wants credentials; or
    whatever the library raises.
    """

    async def begin(self, head: int, tail: int) -> tuple[Stamp, Data, Data]:
        """The state of the object, so many first bytes and so many last ones, of a shorter one all.

        The last ones are b"" where they have to be asked for by themselves.
        """
        stamp = await self.stamp()
        if not stamp.size:
            return stamp, b"", b""
        first = self.fetch(stamp, 0, min(head, stamp.size))
        last = self.fetch(stamp, max(0, stamp.size - tail), stamp.size)
        return stamp, *await asyncio.gather(first, last)

    @abstractmethod
    async def stamp(self) -> Stamp:
        """The state of the object now."""

    @abstractmethod
    async def fetch(self, stamp: Stamp, start: int, end: int) -> Data:
        """Bytes [start, end) of that state, all of them, and at least one."""


class Requests:
    """How an object is asked for: with a time limit, and again where that may help."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self.options = {name: value for name, value in url.options.items() if name not in _OPTIONS}
        self._timeout = url.options.get("request_timeout", TIMEOUT_SECONDS)
        self._tries = url.options.get("request_tries")
        if not isinstance(self._timeout, (int, float)) or not self._timeout > 0:
            raise base.OptionError(
                f"storage_options: request_timeout={self._timeout!r}; give seconds above 0"
            )
        if self._tries is not None:
            base.check_count("storage_options: request_tries", self._tries)

    async def answer(self, doing: str, nbytes: int, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask until an answer serves, or one error says why none does.

        Args:
            doing: what is asked for, for the message: "reading 4,096 bytes at offset 8,192".
            nbytes: how much is to come, which takes its time.
        Raises:
            StorageError, ArchiveNotFoundError, StaleArchiveError.
        """
        asked = 0
        while True:
            asked += 1
            outcome = await self._tried(doing, self._timeout + nbytes / _SLOWEST, ask)
            if isinstance(outcome, EdcacheError):
                raise outcome
            if not isinstance(outcome, Failing):
                return outcome
            tries = self._tries or (BUSY_TRIES if outcome.is_busy else TRIES)
            if asked >= min(tries, outcome.tries or tries):
                times = "once" if asked == 1 else f"{asked} times"
                raise StorageError(f"{self.url}: {doing}: {outcome.what}; asked {times}")
            wait = min(_FIRST_WAIT * _LONGER ** (asked - 1), _LONGEST_WAIT) * random.uniform(0.5, 1.0)  # noqa: S311
            await asyncio.sleep(wait if outcome.wait is None else min(outcome.wait, _LONGEST_RETRY_AFTER))

    async def _tried(
        self, doing: str, limit: float, ask: Callable[[], Awaitable[Answer]]
    ) -> Answer | Failing | EdcacheError:
        # What is raised here is raised outside of any except block: a library's own error, which may have
        # credentials in its text, must not come along as the context of ours.
        lost = _LOST if self.url.has_lost_credentials else ""
        try:
            return await asyncio.wait_for(ask(), limit)
        except Failing as failing:
            return failing
        except (asyncio.TimeoutError, TimeoutError):
            return Failing(f"no whole answer within {limit:.3g} s")
        except FileNotFoundError:
            return ArchiveNotFoundError(f"{self.url}: no such object; check the URL{lost}")
        except Changed as changed:
            return StaleArchiveError(
                f"{self.url}: {doing}: {changed}; the object was replaced or deleted since it was opened: "
                "open it again"
            )
        except EdcacheError as error:
            return type(error)(self.url.scrubbed(str(error)))
        except PermissionError as error:
            return refused(f"{self._described(error)}{lost or _ALLOWED}")
        except OSError as error:
            return Failing(self._described(error))
        except Exception as error:  # noqa: BLE001 - a library may raise anything, and none of it may pass
            return refused(self._described(error))

    def _described(self, error: Exception) -> str:
        text = " ".join(self.url.scrubbed(str(error)).split())
        return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


# -------------------------------------------------------------------------------------- of a process

_cached: PerProcess[dict[object, Any]] = PerProcess()


def cached(key: object, make: Callable[[], Answer]) -> Answer:
    """What this process has under a key; of two threads that make it at once, both get the first."""
    things = _cached.get(dict)
    if key not in things:
        things.setdefault(key, make())
    thing: Answer = things[key]
    return thing


async def gathered(calls: Sequence[Callable[[], Awaitable[Answer]]], most: int) -> list[Answer]:
    """The answers of many calls, at most so many at a time; where one fails, the others end."""
    turns = asyncio.Semaphore(most)

    async def answer(call: Callable[[], Awaitable[Answer]]) -> Answer:
        async with turns:
            return await call()

    tasks = [asyncio.ensure_future(answer(call)) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


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
    except BaseException:
        future.cancel()
        raise
