"""Caches that are objects behind a URL: read by request, filled in a spool file of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edcache.errors import ArchiveExistsError, OptionError
from edcache.format import Head
from edcache.options import Folder, ReadOptions, Show, Sync
from edcache.places import Spool, Url, Where, check_writable, local_path
from edcache.reader import AnyReader, Reader
from edcache.stores.file import FileStore
from edcache.stores.store import Store
from edcache.writer import AnyAppender, Appender


class RemoteStore(Store):
    """A URL, with the options of the engine that reads it."""

    where: Url

    def __init__(self, where: Where) -> None:
        super().__init__(where)
        self._spool: Spool | None = None

    @staticmethod
    def has(where: Where) -> bool:
        """See the base class."""
        return isinstance(where, Url)

    def reader(self, options: ReadOptions) -> AnyReader:
        """See the base class."""
        return Reader(self.where, options)

    def filled_in(self, *, is_stream: bool, is_lazy: bool, sync: Sync, spool: Folder = None) -> Store:
        """See the base class: a spool file."""
        check_writable(self.where)
        if is_lazy:
            raise OptionError(f"{self.path}: lazy=True fills a file; for a URL all is filled at once")
        self._spool = Spool(self.where, spool)
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
        return Appender.open(local_path(self.where), head, create=False, sync=sync)
