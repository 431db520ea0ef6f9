"""What is made once: a property of an object, a thing of a process; and a lock that a fork does not freeze.

Before Python 3.12 `functools.cached_property` holds one lock for all objects while it computes: a fork while
another thread computes leaves the child with that lock held, for ever. So does any lock; these do not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class once(Generic[Value]):
    """Compute a property when it is first asked for, and keep it in the object.

    Threads that ask at once may each compute it, and all get the one that was there first.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = ""
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Value:
        if instance is None:
            return self  # type: ignore[return-value] # of the class
        # The interpreter comes here only where the object has none yet: its own attributes go first.
        value: Value = vars(instance).setdefault(self._name, self._compute(instance))
        return value


class PerProcess(Generic[Value]):
    """A thing that each process makes at its first use; what a fork inherits is kept, and not used.

    To let go of it would run finalisers, which say goodbye on connections that are the parent's. Threads that
    ask at once may each make it, and all get the one that was there first.
    """

    def __init__(self) -> None:
        self._made: dict[object, Value] = {}

    def get(self, make: Callable[[], Value]) -> Value:
        """What this process has, made where it has none."""
        made = self._made.get(_process)
        return self._made.setdefault(_process, make()) if made is None else made

    def pop(self) -> Value | None:
        """Forget what this process has, and return it; the next use makes another."""
        return self._made.pop(_process, None)


class ForkLock(PerProcess[AbstractContextManager[bool]]):
    """A reentrant lock, `with lock.held():`, that is free in a forked child whoever had it."""

    def held(self) -> AbstractContextManager[bool]:
        """What holds it for a block, waiting for it."""
        return self.get(threading.RLock)


# What stands for this process; its number may be that of an ancestor that has ended.
_process = object()


def _begin_process() -> None:
    global _process
    _process = object()


if hasattr(os, "register_at_fork"):  # pragma: no branch - where it is absent, nothing forks
    os.register_at_fork(after_in_child=_begin_process)
