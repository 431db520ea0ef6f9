"""Objects made once per instance or process; a lock that a fork does not freeze; threads; limits; names of modules.

Before Python 3.12 `functools.cached_property` holds one lock for all objects while it computes. A fork while another
thread computes leaves that lock held in the child, for ever, as it does any ordinary lock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

# A script is `__main__`, and `__mp_main__` in the processes that it spawns; others import it by its name.
MAIN_NAMES: Final = ("__main__", "__mp_main__")


class once(Generic[Value]):
    """Compute a property when it is first asked for, and keep it in the object.

    Threads that ask at once may each compute it; all get the first result.
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
        # The interpreter calls this only if the object has no such attribute yet.
        value: Value = vars(instance).setdefault(self._name, self._compute(instance))
        return value


class PerProcess(Generic[Value]):
    """Object that each process makes at its first use.

    An inherited one is kept and not used: its finaliser would say goodbye on a connection of the parent's. Threads that
    ask at once may each make one; all get the first. A pickle of it is empty.
    """

    def __init__(self) -> None:
        self._made: dict[object, Value] = {}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()

    def get(self, make: Callable[[], Value]) -> Value:
        """Return the object of this process, made at the first call."""
        made = self._made.get(_process)
        return self._made.setdefault(_process, make()) if made is None else made

    def pop(self) -> Value | None:
        """Forget the object of this process, and return it; the next use makes another."""
        return self._made.pop(_process, None)


class ForkLock(PerProcess[AbstractContextManager[bool]]):
    """Reentrant lock, `with lock.held():`, that is free in a forked child."""

    def held(self) -> AbstractContextManager[bool]:
        """Return the lock, for a `with` block that waits for it."""
        return self.get(threading.RLock)


# Key of this process: its pid may have been an ancestor's, which has ended.
_process = object()


def _begin_process() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_begin_process)


def in_threads(
    work: Callable[[Item], Value], items: Iterable[Item], take: Callable[[Value], Any], most: int, name: str
) -> None:
    """Call `work` with each item in at most `most` threads, whose names begin with `name`.

    The calling thread gives each result to `take`, in the order of the items, and raises the first error; items that
    have not begun then never do.
    """
    from concurrent.futures import ThreadPoolExecutor  # here, as most processes need no threads

    with ThreadPoolExecutor(most, name) as pool:
        for result in pool.map(work, items):
            take(result)


def control_group(setting: str) -> str:
    """Read a setting of the control group of this process, such as "memory.max"; "" where the system has none."""
    with suppress(OSError, StopIteration):
        with open("/proc/self/cgroup", encoding="ascii") as file:
            group = next(line.split(":", 2)[2].strip() for line in file if line.startswith("0::"))
        with open(f"/sys/fs/cgroup{group.rstrip('/')}/{setting}", encoding="ascii") as file:
            return file.read()
    return ""


def free_memory() -> int | None:
    """Count the bytes of memory that this process may still take, by machine and control group; None if unknown."""
    with suppress(OSError, StopIteration, ValueError):
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
        limit, used = control_group("memory.max").strip(), control_group("memory.stat").split()
        if limit.isdigit() and "anon" in used:  # its page cache gives way
            free = min(free, max(0, int(limit) - int(used[used.index("anon") + 1])))
        return free
    return None


def module_name(thing: Any) -> str:
    """Return the name by which the module of a class or a function can be imported; "?" without one.

    A program has the name after `python -m`, or its file's name without ".py"; without a file, as in
    a notebook, "__main__".
    """
    name = getattr(thing, "__module__", None)
    return _imported_name(name) if name in MAIN_NAMES else str(name or "?")


def module_aliases(name: str) -> tuple[str, ...]:
    """List the names in `sys.modules` that a module of a `module_name` may have in this process."""
    return *(main for main in MAIN_NAMES if main in sys.modules and _imported_name(main) == name), name


def _imported_name(main: str) -> str:
    module = sys.modules.get(main) or sys.modules["__main__"]
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    return spec.name if spec else os.path.splitext(os.path.basename(file))[0] if file else "__main__"
