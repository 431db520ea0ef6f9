"""`Store`: what a backend answers of the samples of a cache, and of filling it."""

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
    """The address of one cache; opens nothing. A backend overrides what differs from a file."""

    def reader(self, options: base.ReadOptions) -> Reader:
        """Make a Reader; raises as `Reader`, and OptionError for options that only files take."""
        from edcache.reader import Reader

        return Reader(self, options)

    def found(self, options: base.ReadOptions = ALLOW_PARTIAL) -> Reader | None:
        """The archive that is there, open, if one is and its creator lived to write its head."""
        try:
            reader = self.reader(options)
            reader.open()
        except base.ArchiveNotFoundError:
            return None
        return reader

    @abstractmethod
    def appender(self, head: Head, sync: base.Sync) -> Appender:
        """Open it for appending, made with `head` where nothing is there yet; as `Appender.open`."""

    def begin_anew(self) -> bool:
        """Let the archive go at once; False where a new one is built beside it and takes its place then."""
        return False

    def held(self) -> AbstractContextManager[object]:
        """Keep the archive that is filled there for the block, though nobody has it open for a moment."""
        return nullcontext()

    def part(self, fraction: float) -> int:
        """So much of what the cache has and may still take, in bytes; OptionError where nobody can tell."""
        raise base.OptionError(
            f"max_bytes={fraction!r} is a part of a disk; for a URL give bytes", option="max_bytes"
        )


def store_at(
    path: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None
) -> Store:
    """Where a cache is, by its path or URL; arguments and errors as of `storage.located`."""
    store = located(path, storage_options)
    assert isinstance(store, Store)
    return store
