"""Caches in a Redis server, which several hosts share, and which may lose any of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edcache.errors import OptionError
from edcache.format import Head
from edcache.options import Folder, ReadOptions, Sync
from edcache.places import Where
from edcache.reader import AnyReader
from edcache.redis import RedisAppender, RedisReader, prefix_for, replace_head
from edcache.servers import Server
from edcache.stores.store import PARTIAL, Store
from edcache.writer import AnyAppender


class ServerStore(Store):
    """A URL of a Redis server."""

    where: Server
    called = "a cache in Redis"
    may_lose = True

    @staticmethod
    def has(where: Where) -> bool:
        """See the base class."""
        return isinstance(where, Server)

    def completed(self, described: Callable[[], Mapping[str, Any] | None]) -> Store:
        """See the base class; the prefix is what a URL may leave out."""
        if self.where.prefix:
            return self
        fingerprint = described()
        if fingerprint is None:
            raise OptionError(
                f"{self.where}: fingerprint=False leaves nothing to make a prefix of; add ?prefix=name"
            )
        return ServerStore(self.where.with_prefix(prefix_for(fingerprint)))

    def reader(self, options: ReadOptions) -> AnyReader:
        """See the base class."""
        # What each record is checked by is in its frame; what is missing is known.
        for name in ("io", "expected_digest", "preload", "local", "max_bytes"):
            if getattr(options, name) not in (None, "auto"):
                raise OptionError(f"{self.where}: {name}= is for an archive that is a file")
        return RedisReader(self.where, allow_pickle=options.allow_pickle, decode=options.decode)

    def found(self, options: ReadOptions = PARTIAL) -> AnyReader | None:
        """See the base class."""
        found = super().found(options)
        if found is not None:
            found.missing()
        return found

    def filled_in(self, *, is_stream: bool, is_lazy: bool, sync: Sync, spool: Folder = None) -> Store:
        """See the base class."""
        if is_stream:
            raise OptionError(
                f"{self.where}: the source can only be iterated; Redis takes one with len() and [index]"
            )
        if sync != "seal":
            raise OptionError(
                f"{self.where}: sync={sync!r}; what a server keeps when it ends, its configuration says"
            )
        return self

    def appender(self, head: Head, sync: Sync) -> AnyAppender:
        """See the base class."""
        return RedisAppender.open(self.where, head)

    def begin_anew(self, head: Head) -> bool:
        """See the base class."""
        replace_head(self.where, head)
        return True

    def check_relabelling(self) -> None:
        """See the base class."""
        raise OptionError(
            f"{self.where}: labels of a cache in Redis stay as they are; give them as in_memory_keys="
        )
