"""What fetching keeps in a process: fsspec's event loop and the clients in it, made at the first use.

A forked child makes its own, see `PerProcess`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from edcache.base import PerProcess

Made = TypeVar("Made")
Result = TypeVar("Result")

_CLOSING_SECONDS = 5


class _Process:
    """What one process has: things by key, each with what closes it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.things: dict[object, Any] = {}
        self.closers: list[Callable[[], Coroutine[Any, Any, None]]] = []


_processes: PerProcess[_Process] = PerProcess()


def _this() -> _Process:
    return _processes.get(_Process)


def kept(key: object, make: Callable[[], Made]) -> Made:
    """What this process has under a key; of two threads that make it at once, both get the first."""
    things = _this().things
    if key not in things:
        things.setdefault(key, make())
    found: Made = things[key]
    return found


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in fsspec's loop, and wait for it; an interrupt cancels it."""
    from fsspec.asyn import get_loop

    future = asyncio.run_coroutine_threadsafe(coroutine, get_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def close_at_exit(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close a client when this process exits, rather than leave its connections to a finaliser."""
    here = _this()
    if not here.closers:
        atexit.register(_close, here)
    here.closers.append(close)


def _close(process: _Process) -> None:
    from fsspec.asyn import get_loop

    if process.pid != os.getpid():
        return
    for close in process.closers:
        # A process that exits waits for nobody.
        with suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError, RuntimeError):
            asyncio.run_coroutine_threadsafe(close(), get_loop()).result(_CLOSING_SECONDS)
