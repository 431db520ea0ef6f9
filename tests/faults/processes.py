"""Children that run a step on real files: what they said was published, and how they ended."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Iterable
from typing import Any

from scenarios import Notes
from systems import System, ended, in_child


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

    def __init__(self, step: Callable[[Told], Any], system: System) -> None:
        self._receiver, sender = os.pipe()
        self.pid = in_child(lambda: step(Told(sender)), system)
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
        return ended(self.pid)
