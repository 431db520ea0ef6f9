"""Asking again: what an engine says when an answer does not serve, time limits, and back-off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from edcache.backends.remote.url import Url
from edcache.base import ArchiveNotFoundError, EdcacheError, OptionError, StaleArchiveError, StorageError

Answer = TypeVar("Answer")

TIMEOUT_SECONDS: Final = 30.0
TRIES: Final = 5
# Beside its time limit a request has a second for each so many bytes: slower than that is a stall.
_SLOWEST: Final = 1 << 19
_FIRST_WAIT, _LONGER, _LONGEST_WAIT = 0.1, 3.0, 10.0
_LONGEST_RETRY_AFTER: Final = 30.0
# An answer that breaks the rules is seldom an accident: so often it is believed to be one.
_STRANGE_TRIES: Final = 3
_OPTIONS: Final = {"request_timeout", "request_tries"}


class Failing(Exception):
    """An answer that does not serve.

    what: for the message. tries: how often it is worth to ask in all, None for as often as allowed.
    wait: seconds that the server wants, if it said so.
    """

    def __init__(self, what: str, tries: int | None = None, wait: float | None = None) -> None:
        super().__init__(what)
        self.what, self.tries, self.wait = what, tries, wait


def strange(what: str) -> Failing:
    """An answer that is not one to the question."""
    return Failing(what, _STRANGE_TRIES)


def refused(what: str) -> Failing:
    """An answer that will not change."""
    return Failing(what, 1)


class Forbidden(Failing):
    """The server wants credentials, or others."""

    def __init__(self, what: str) -> None:
        super().__init__(what, 1)


class Absent(Exception):
    """There is no such object."""


class Changed(Exception):
    """The object is no longer the one that was opened; what: how that shows."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True)
class Stamp:
    """A state of an object: its size, and what its server tells states apart by.

    tag: "" where it tells nothing. kind: what it is, such as "ETag"; tags of other kinds do not compare.
    """

    size: int
    tag: str = ""
    kind: str = ""


class Engine(Protocol):
    """One object, as one library reads it; its coroutines run in `process.run`.

    Each raises Failing, Absent, Changed, or whatever the library raises.
    """

    async def begin(self, nbytes: int) -> tuple[Stamp, bytes]:
        """The state of the object and its first bytes, fewer where it ends before."""

    async def stamp(self) -> Stamp:
        """The state of the object now."""

    async def fetch(self, stamp: Stamp, start: int, end: int) -> bytes | bytearray:
        """Bytes [start, end) of that state, all of them."""


@dataclass(frozen=True)
class Patience:
    """How long one request may take, in seconds without its bytes, and how often it is made."""

    timeout: float = TIMEOUT_SECONDS
    tries: int = TRIES


def patience_of(options: dict[str, Any]) -> tuple[Patience, dict[str, Any]]:
    """What storage options say of it, and the others, which are the engine's.

    Raises:
        OptionError: "request_timeout=0; give seconds above 0".
    """
    timeout, tries = options.get("request_timeout", TIMEOUT_SECONDS), options.get("request_tries", TRIES)
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise OptionError(f"storage_options: request_timeout={timeout!r}; give seconds above 0")
    if type(tries) is not int or tries < 1:
        raise OptionError(f"storage_options: request_tries={tries!r}; give a number of 1 or more")
    return Patience(timeout, tries), {k: v for k, v in options.items() if k not in _OPTIONS}


async def answered(
    url: Url, patience: Patience, doing: str, nbytes: int, ask: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Ask until an answer serves, or one error says why none does.

    Args:
        doing: what is asked for, for the message: "reading 4,096 bytes at offset 8,192".
        nbytes: how much is to come, which takes its time.
    Raises:
        StorageError: "https://example.org/train.zip: reading 4,096 bytes at offset 8,192: 503 Service
            Unavailable, asked 5 times".
        ArchiveNotFoundError, StaleArchiveError.
    """
    limit = patience.timeout + nbytes / _SLOWEST
    asked = 0
    while True:
        asked += 1
        found = await _tried(url, doing, limit, ask)
        if not isinstance(found, Failing):
            if isinstance(found, EdcacheError):
                raise found
            return found
        if asked >= min(patience.tries, found.tries or patience.tries):
            raise _given_up(url, doing, found.what, asked)
        await asyncio.sleep(_wait(asked, found.wait))


async def _tried(
    url: Url, doing: str, limit: float, ask: Callable[[], Awaitable[Answer]]
) -> Answer | Failing | EdcacheError:
    # What is raised here is raised outside of any except block: a library's own error, which may have
    # credentials in its text, must not come along as the context of ours.
    try:
        return await asyncio.wait_for(ask(), limit)
    except Forbidden as forbidden:
        return refused(f"{forbidden.what}{_lost(url) or _ALLOWED}")
    except Failing as failing:
        return failing
    except (asyncio.TimeoutError, TimeoutError):
        return Failing(f"no whole answer within {limit:.3g} s")
    except Absent:
        return ArchiveNotFoundError(f"{url.shown}: no such object; check the URL{_lost(url)}")
    except Changed as changed:
        return StaleArchiveError(
            f"{url.shown}: {doing}: {changed.what}; the object was replaced or deleted since it was opened: "
            "open it again"
        )
    except EdcacheError as error:
        return type(error)(url.scrubbed(str(error)))
    except FileNotFoundError:
        return ArchiveNotFoundError(f"{url.shown}: no such object; check the URL{_lost(url)}")
    except PermissionError as error:
        return refused(f"{_told(url, error)}{_lost(url) or _ALLOWED}")
    except OSError as error:
        return Failing(_told(url, error))
    except Exception as error:  # noqa: BLE001 - a library may raise anything, and none of it may pass
        return refused(_told(url, error))


_ALLOWED: Final = "; give credentials in storage_options=, or in the environment"


def _lost(url: Url) -> str:
    if not url.has_lost_credentials:
        return ""
    return (
        "; it was opened with credentials, which are not pickled to other processes than those that "
        "multiprocessing spawns: set them in the environment there, or open it there with storage_options="
    )


def _told(url: Url, error: Exception) -> str:
    text = " ".join(url.scrubbed(str(error)).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _wait(asked: int, wanted: float | None) -> float:
    if wanted is not None:
        return min(wanted, _LONGEST_RETRY_AFTER)
    return float(min(_FIRST_WAIT * _LONGER ** (asked - 1), _LONGEST_WAIT) * random.uniform(0.5, 1.0))  # noqa: S311


def _given_up(url: Url, doing: str, what: str, asked: int) -> StorageError:
    times = "once" if asked == 1 else f"{asked} times"
    return StorageError(f"{url.shown}: {doing}: {what}; asked {times}")
