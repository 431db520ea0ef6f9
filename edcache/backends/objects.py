"""Caches that are whole objects: read by request, filled in a spool file of this machine, put there whole."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edcache.backends.file import FileStore
from edcache.backends.spool import Spool
from edcache.base import ArchiveExistsError, ArchiveNotFoundError, Folder, OptionError, Show, Sync
from edcache.storage import File
from edcache.writer import Store

if TYPE_CHECKING:
    from edcache.format import Head
    from edcache.writer import AnyAppender


class ObjectStore(Store):
    """What a server keeps under a name and replaces as a whole; a backend adds `open` and `put`.

    `open` gives a source that is read by request and of one state: its `identity` is another one for another
    object of the name.
    """

    by_request = True

    def __init__(self, text: str, storage_options: Any = None) -> None:
        self.path = text
        self._spool: Spool | None = None

    @abstractmethod
    def put(self, path: str, state: File, tell: Callable[[int], object]) -> None:
        """Bring a file there, whose name it has when it is whole, and not before.

        Args:
            state: keeps what a later call needs to go on with this one, if it is interrupted.
            tell: `tell(nbytes)`: so many more bytes are there.
        """

    @property
    def key(self) -> str:
        """What tells it from every other object; no credentials."""
        return self.path

    def check_writable(self) -> None:
        """Raise OptionError where nothing can be put there."""

    def state(self) -> Any:
        """The identity of what is there; None where nothing is."""
        try:
            return self.open().identity()
        except ArchiveNotFoundError:
            return None

    def stage(self, mode: str, folder: str | os.PathLike[str] | None) -> Spool:
        """See the base class: a spool file."""
        self.check_writable()
        spool = Spool(self, folder)
        spool.begin(mode)
        return spool

    def filled_in(self, *, is_stream: bool, is_lazy: bool, sync: Sync, spool: Folder = None) -> Store:
        """See the base class: a spool file."""
        self.check_writable()
        if is_lazy:
            raise OptionError(f"{self.path}: lazy=True fills a file; for a URL all is filled at once")
        self._spool = Spool(self, spool)
        return FileStore(self._spool.path)

    @contextmanager
    def published(self, show: Show, is_done: Callable[[], bool], *, replaces: bool) -> Iterator[None]:
        """See the base class."""
        spool = self._spool
        assert spool is not None
        before = None if replaces else spool.prepare()
        yield
        try:
            spool.publish(before, show, replaces=replaces)
        except ArchiveExistsError:
            # Another machine may have made the same call.
            if not is_done():
                raise
            spool.discard()

    def appender(self, head: Head, sync: Sync) -> AnyAppender:
        """Raise OptionError: nothing is appended to an object; see `filled_in`."""
        raise OptionError(f"{self.path}: an object, to which nothing is appended; fill it by CachedDataset")
