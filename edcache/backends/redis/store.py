"""Caches in a Redis server, which several hosts share, and which may lose any of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from edcache.backends.redis.appender import RedisAppender, replace_head
from edcache.backends.redis.keys import prefix_for
from edcache.backends.redis.reader import RedisReader
from edcache.backends.redis.url import Server
from edcache.base import Folder, OptionError, ReadOptions, Sync
from edcache.format import Head
from edcache.reader import AnyReader
from edcache.writer import AS_IT_IS, AnyAppender, Store


class RedisStore(Store):
    """A URL of a Redis server."""

    path: Server
    by_request = True
    ending = ""
    called = "a cache in Redis"
    may_lose = True

    def __init__(self, text: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.path = Server.of(text)
        if storage_options:
            raise OptionError(
                f"{self.path}: storage_options are for URLs, and this is a URL of a Redis server, which says "
                "all options itself"
            )

    @classmethod
    def text(cls, given: str) -> str:
        """See the base class."""
        return Server.of(given)

    def local_path(self) -> NoReturn:
        """See the base class: there is none."""
        raise OptionError(
            f"{self.path}: this takes an archive that is a file; of a cache in Redis there are "
            "CachedDataset, @cachable, and edcache info, show, ls, labels, export and rm"
        )

    def open(self) -> NoReturn:
        """See the base class: what is there has no bytes at offsets."""
        self.local_path()

    def stage(self, mode: str, folder: Folder) -> NoReturn:
        """See the base class: a writer writes a file."""
        self.local_path()

    def completed(self, described: Callable[[], Mapping[str, Any] | None]) -> Store:
        """See the base class; the prefix is what a URL may leave out."""
        if self.path.prefix:
            return self
        fingerprint = described()
        if fingerprint is None:
            raise OptionError(
                f"{self.path}: fingerprint=False leaves nothing to make a prefix of; add ?prefix=name"
            )
        return RedisStore(self.path.with_prefix(prefix_for(fingerprint)))

    def reader(self, options: ReadOptions) -> AnyReader:
        """See the base class."""
        # What each record is checked by is in its frame; what is missing is known.
        for name in ("io", "expected_digest", "preload", "local", "max_bytes"):
            if getattr(options, name) not in (None, "auto"):
                raise OptionError(f"{self.path}: {name}= is for an archive that is a file")
        return RedisReader(self.path, allow_pickle=options.allow_pickle, decode=options.decode)

    def found(self, options: ReadOptions = AS_IT_IS) -> AnyReader | None:
        """See the base class."""
        found = super().found(options)
        if found is not None:
            found.missing()
        return found

    def filled_in(self, *, is_stream: bool, is_lazy: bool, sync: Sync, spool: Folder = None) -> Store:
        """See the base class."""
        if is_stream:
            raise OptionError(
                f"{self.path}: the source can only be iterated; Redis takes one with len() and [index]"
            )
        if sync != "seal":
            raise OptionError(
                f"{self.path}: sync={sync!r}; what a server keeps when it ends, its configuration says"
            )
        return self

    def appender(self, head: Head, sync: Sync) -> AnyAppender:
        """See the base class."""
        return RedisAppender.open(self.path, head)

    def begin_anew(self, head: Head) -> bool:
        """See the base class."""
        replace_head(self.path, head)
        return True

    def check_relabelling(self) -> None:
        """See the base class."""
        raise OptionError(
            f"{self.path}: labels of a cache in Redis stay as they are; give them as in_memory_keys="
        )
