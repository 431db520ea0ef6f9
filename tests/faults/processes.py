"""Children that run a step on real files: what they said was published, and how they ended."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from scenarios import Notes

from edcache import storage
from edcache.storage import calls

HANGS = 60


class Told(Notes):
    """Notes that go to another process as they are made."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def publish(self, indices: Iterable[int], version: int = 0) -> None:
        self.say(*(f"{index} {version}" for index in indices))

    def say(self, *lines: str) -> None:
        # In one write: a process that is killed in the middle of it has said all or nothing.
        os.write(self._pipe, "".join(f"{line}\n" for line in lines).encode())


class Child:
    """A fork that does one thing under a system of its own, and ends."""

    def __init__(self, step: Callable[[Told], Any], system: storage.System) -> None:
        self._receiver, sender = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _work(step, system, Told(sender))
        os.close(sender)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def heard(self) -> int:
        """How many bytes it has said up to now."""
        return int(struct.unpack("i", fcntl.ioctl(self._receiver, termios.FIONREAD, bytes(4)))[0])

    def told(self, nbytes: int | None = None) -> list[tuple[int, int]]:
        """The (index, version) of all that it said it published, or of its first bytes; once it has ended."""
        with os.fdopen(self._receiver, "rb") as file:
            lines = file.read()[:nbytes].decode().splitlines()
        found = []
        for line in lines:
            index, version = line.split()
            found.append((int(index), int(version)))
        return found

    def ended(self) -> int:
        """0, 1 after an exception, the signal as a negative number."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _work(step: Callable[[Told], Any], system: storage.System, notes: Told) -> None:
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS)
        with calls.replace_system(system):
            step(notes)
        code = 0
    except BaseException:
        with suppress(BaseException):
            os.write(2, f"\nin a child: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(code)
