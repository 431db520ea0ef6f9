"""How the system finds the file of a name: by its path, or as a backend has it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from edcache.storage import registry

if TYPE_CHECKING:
    from edcache.storage.calls import System


class Naming:
    """Files by their paths; a backend whose names lead to files in another way has a subclass.

    Attributes:
        absent: what is said where nothing has the name.
        is_volatile: whether a file is gone with the last that has it open, so that it is kept while it is
            made, and memory is taken before it is written.
    """

    absent: ClassVar[str] = "no such file; check the path, or build the cache first"
    is_volatile: ClassVar[bool] = False

    def open(self, system: System, path: str, flags: int, into: list[int]) -> None:
        """Append descriptors, of which the last is the file's; see `System.open`."""
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        into.extend(map(os.open, (path,), (flags,), (0o666,)))

    def stat(self, system: System, path: str) -> os.stat_result:
        """Size, device and inode of what has the name."""
        return os.stat(path)

    def entry(self, path: str) -> str:
        """The path in a file system that stands for the name."""
        return path

    def turn(self, system: System, path: str, *, creates: bool = False) -> AbstractContextManager[None]:
        """Let nobody else make, join or take away the name for the block."""
        return nullcontext()

    # --- what is open ---

    def reserve(self, fd: int, offset: int, nbytes: int) -> None:
        """Take what a range needs that is to be written, or raise OSError."""

    def forget(self, system: System, descriptors: list[int]) -> None:
        """Do what is to be done before the descriptors are closed."""

    def inherit(self, system: System, descriptors: list[int]) -> None:
        """Do what is to be done in a forked child, which has copies of them."""


PATHS = Naming()


def naming_of(path: str) -> Naming:
    """How the file of a name is found.

    Raises:
        OptionError: it is a URL, which is no file's.
    """
    if not registry.scheme_of(path):
        return PATHS
    naming = registry.backend_of(path).naming
    if naming is None:
        registry.located(path).local_path()  # which refuses
    return naming or PATHS
