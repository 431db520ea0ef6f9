"""Keeping what has a name in shared memory while it is made: it is gone with the last that has it open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edcache.base import SourceError, WorkerError
from edcache.storage.file import File
from edcache.storage.registry import backend_of


class Keeper:
    """Holds what has a name in memory; nothing where the path is that of anything else."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: File | None = None

    def take(self) -> None:
        """Hold what has the name now; an empty file where nothing has."""
        made = File.open(self.path, "a")
        try:
            taken = made.reopened()
        finally:
            made.close()
        self.close()
        self.file = taken

    def has_lost(self) -> bool:
        """Whether the name was given to what another process made, which is then held."""
        if self.file is None or self.file.is_named():
            return False
        self.take()
        return True

    def close(self) -> None:
        """Hold nothing."""
        if self.file is not None:
            self.file.close()
            self.file = None


_keepers: list[Keeper] = []
# By name, what a fill left in memory that did not come to its end.
_unfinished: dict[str, File] = {}


@contextmanager
def kept(path: str) -> Iterator[Keeper]:
    """Let what has a name in memory, or gets it here, stay for the block, whoever closes it.

    After an interrupt, or where a sample could not be made, it stays until the next time that this process
    has done with the name, so that the same call goes on where it stopped.
    """
    keeper = Keeper(path)
    if not backend_of(path).is_volatile:
        yield keeper
        return
    keeper.take()
    _keepers.append(keeper)
    try:
        yield keeper
    except (KeyboardInterrupt, SourceError, WorkerError):
        if keeper.file is not None and keeper.file.is_named():
            _unfinished[path] = keeper.file.reopened()
        raise
    else:
        _unfinished.pop(path, None)
    finally:
        _keepers.remove(keeper)
        keeper.close()


def take_over(path: str) -> None:
    """Let those that keep what had a name in memory keep what has it now."""
    for keeper in _keepers.copy():
        if keeper.path == path:
            keeper.take()
