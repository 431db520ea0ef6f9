"""`Store`: address of a cache, as a backend reads and fills it."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from edcache import base
from edcache.format import Head
from edcache.storage import Location, located

if TYPE_CHECKING:
    from edcache.reader import Reader
    from edcache.writer.appender import Appender

# How an archive is opened to be looked at: incomplete ones too, without a warning.
ALLOW_PARTIAL = base.ReadOptions(allow_partial=True)


class Store(Location):
    """Address of one cache; opens nothing. A backend overrides the methods that differ from a file's.

    Attributes: max_bytes: default of the option of a lazy cache.
    """

    max_bytes: float | None = None

    def reader(self, options: base.ReadOptions) -> Reader:
        """Make a Reader; raises as `Reader`, and OptionError for options that only files take."""
        from edcache.reader import Reader

        return Reader(self, options)

    def found(self, options: base.ReadOptions = ALLOW_PARTIAL) -> Reader | None:
        """Open the archive; None if there is none, or its creator died before its head was written."""
        try:
            reader = self.reader(options)
            reader.open()
        except base.ArchiveNotFoundError:
            return None
        return reader

    @abstractmethod
    def appender(self, head: Head, sync: base.Sync) -> Appender:
        """Open it for appending, made with `head` if nothing is there yet; as `Appender.open`."""

    def begin_anew(self) -> bool:
        """Delete the archive at once; False if a new one is built beside it and takes its place then."""
        return False

    def held(self) -> AbstractContextManager[object]:
        """Keep the archive that is filled there for the block, though no process has it open for a moment."""
        return nullcontext()

    def part(self, fraction: float) -> int:
        """Return a fraction of the bytes that the cache has and may still take; OptionError if they are unknown."""
        raise base.OptionError(
            f"max_bytes={fraction!r} is a part of a disk; for a URL give bytes", option="max_bytes"
        )


def store_at(
    path: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None
) -> Store:
    """Return the address of a cache by its path or URL; arguments and errors as of `storage.located`."""
    store = located(path, storage_options)
    assert isinstance(store, Store)
    return store
