"""Operating systems that fail, kill or watch at a call, and children that run under one."""

from __future__ import annotations

import errno
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from edcache.storage import calls

HANGS = 60
WAYS = "mmap", "pread"
ROOT = Path(__file__).parents[2]
CALLS = (
    *("open", "close", "stat", "stat_path", "map", "pread", "next_data", "pread_cached", "will_need"),
    *("write_back", "pwrite", "truncate", "reserve", "sync", "sync_directory", "make_folders"),
    *("copy_permissions", "replace", "remove", "touch", "boot_time", "lock", "share", "is_locked", "unlock"),
)
CHANGES = "pwrite", "truncate", "sync", "sync_directory", "replace", "remove"
_PLAIN = {name: getattr(calls, name) for name in CALLS}


def _plain(name: str) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any) -> Any:
        return _PLAIN[name](*arguments)

    return call


class System:
    """The calls of the operating system, a method each; a subclass has others in their place."""


for _name in CALLS:
    setattr(System, _name, _plain(_name))

_current = [System()]


def current() -> Any:
    """The system whose calls the package makes now."""
    return _current[-1]


@contextmanager
def replace_system(other: Any) -> Iterator[Any]:
    """Route every file operation of the package through `other` inside the block."""
    before = {name: getattr(calls, name) for name in CALLS}
    _current.append(other)
    try:
        _route_to({name: getattr(other, name) for name in CALLS})
        yield other
    finally:
        _current.pop()
        _route_to(before)


@contextmanager
def reading_by(way: str) -> Iterator[None]:
    """Let files be mapped ("mmap") or read ("pread") in the block, as on a system that maps none."""

    def refuse(fd: int, nbytes: int) -> memoryview:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    plain = calls.map
    if way == "pread":
        calls.map = refuse
    try:
        yield
    finally:
        calls.map = plain


def _route_to(functions: dict[str, Callable[..., Any]]) -> None:
    for name, function in functions.items():
        setattr(calls, name, function)


def routed(names: Iterable[str]) -> Callable[[type[Any]], type[Any]]:
    """Let these calls of a class of systems go through its `around(name, plain, *arguments)`."""

    def decorate(kind: type[Any]) -> type[Any]:
        for name in names:
            setattr(kind, name, _route(name, getattr(kind, name)))
        return kind

    return decorate


def _route(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        return self.around(name, partial(plain, self, **more), *arguments)

    return call


@routed(CHANGES)
class Killing(System):
    """Ends the process at the n-th operation that changes something; None counts alone."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0
        self._lock = threading.Lock()

    def _step(self) -> None:
        with self._lock:
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, plain: Callable[..., Any], *arguments: Any) -> Any:
        self._step()
        if name == "pwrite" and self.count + 1 == self.at and len(arguments[1]) > 1:
            fd, data, offset = arguments
            plain(fd, data[: len(data) // 2], offset)  # the next step finds half of it
            self._step()
        return plain(*arguments)


class Refusing(System):
    """Refuses some calls."""

    def __init__(self, code: int, *names: str) -> None:
        def refuse(*arguments: Any) -> None:
            raise OSError(code, os.strerror(code), *[one for one in arguments[:1] if isinstance(one, str)])

        for name in names:
            setattr(self, name, refuse)


class Rebooted(System):
    """The machine has started since any file was written."""

    def boot_time(self) -> float:
        return time.time() + 1_000


class Small(System):
    """A disk with room for so many bytes of one file."""

    def __init__(self, room: int) -> None:
        self.room = room

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if offset + len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data, offset)


class Full(System):
    """A disk that is full from the n-th write on."""

    def __init__(self, after: int = 0) -> None:
        self.left = after

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwrite(fd, data, offset)


class Watching(System):
    """Notes which files are opened, how, and which are looked at; counts bytes that are read, and syncs."""

    nbytes = syncs = 0

    def __init__(self) -> None:
        self.opened: list[tuple[str, int]] = []
        self.looked: list[str] = []

    def open(self, path: str, flags: int, mode: int) -> int:
        self.opened.append((path, flags & (os.O_WRONLY | os.O_RDWR)))
        return super().open(path, flags, mode)

    def stat_path(self, path: str) -> os.stat_result:
        self.looked.append(path)
        return super().stat_path(path)

    def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        found: bytes = super().pread(fd, nbytes, offset)
        self.nbytes += len(found)
        return found

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


def in_threads(*works: Callable[[], object]) -> None:
    """Do several things at once, each in a thread; what one raises is raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


def in_child(step: Callable[[], Any], system: System | None = None) -> int:
    """Do something in a fork; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, file=sys.__stderr__, chain=True)  # says where it hangs
        signal.alarm(HANGS)
        with replace_system(system or current()):
            step()
        code = 0
    except BaseException:
        with suppress(BaseException):
            os.write(2, f"\nin a child: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """0, 1 after an exception, the signal as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_a_fork(work: Callable[[], Any]) -> Any:
    """Do something in a fork; returns its answer."""
    receiver, sender = os.pipe()
    pid = in_child(lambda: os.write(sender, pickle.dumps(work())))
    os.close(sender)
    with os.fdopen(receiver, "rb") as file:
        answer = file.read()
    assert ended(pid) == 0
    return pickle.loads(answer)


def killed_at(count: int, work: Callable[[], object]) -> bool:
    """Do some work in a child that is killed at its nth change of a disk, and say whether it was."""
    code = ended(in_child(work, Killing(count)))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def child_environ() -> dict[str, str]:
    """Environment of a process that imports what this one can, in whatever folder it starts."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
