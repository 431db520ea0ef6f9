"""Caches in a Redis server, which several hosts share, and which may lose any of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, Final, NoReturn

from edcache import format
from edcache.backends.redis.appender import RedisAppender, uuid_of
from edcache.backends.redis.claims import Claims
from edcache.backends.redis.client import PIECE_KEYS, Client
from edcache.backends.redis.log import no_cache, read_head
from edcache.backends.redis.session import RedisReader
from edcache.backends.redis.url import ID_LENGTH, Keys, Server, prefix_for
from edcache.base import ArchiveLockedError, OptionError, ReadOptions, Sync
from edcache.format import Head
from edcache.reader import AnyReader
from edcache.writer import ALLOW_PARTIAL, AnyAppender, Store, differences

_SCANNED: Final = 1000
_OURS: Final = re.compile(
    rf"head|([0-9a-f]{{{ID_LENGTH}}}):(log|fillers|(record|claim):(0|[1-9][0-9]{{0,18}}))"
)
_GLOB: Final = re.compile(r"([*?\[\]\\])")
# Keys: head. Arguments: the head that was seen, the one that takes its place.
_REPLACE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


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
        return Server.of(given)

    def local_path(self) -> NoReturn:
        raise OptionError(
            f"{self.path}: this takes an archive that is a file; of a cache in Redis there are "
            "CachedDataset, @cachable, and edcache info, show, ls, labels, export and rm"
        )

    def open(self) -> NoReturn:
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
        # What each record is checked by is in its frame; what is missing is known.
        for name in ("io", "expected_digest", "preload", "local", "max_bytes"):
            if getattr(options, name) not in (None, "auto"):
                raise OptionError(f"{self.path}: {name}= is for an archive that is a file")
        return RedisReader(self.path, allow_pickle=options.allow_pickle, decode=options.decode)

    def found(self, options: ReadOptions = ALLOW_PARTIAL) -> AnyReader | None:
        reader = super().found(options)
        if reader is not None:
            reader.missing()
        return reader

    def check_fill(self, *, is_stream: bool, is_lazy: bool, sync: Sync) -> None:
        if is_stream:
            raise OptionError(
                f"{self.path}: the source can only be iterated; Redis takes one with len() and [index]"
            )
        if sync != "seal":
            raise OptionError(
                f"{self.path}: sync={sync!r}; what a server keeps when it ends, its configuration says"
            )

    def appender(self, head: Head, sync: Sync) -> AnyAppender:
        return RedisAppender.open(self.path, head)

    def begin_anew(self, head: Head) -> bool:
        """See the base class: the old one's keys are deleted; who does the same at once is joined."""
        with closing(Client(self.path)) as client:
            known = read_head(client)
            if known is None:
                return True
            packed, before, _ = known
            is_rebuild = before.uuid != uuid_of(before)
            is_same = head.fingerprint is None or not differences(before.fingerprint, head.fingerprint)
            if is_rebuild and is_same and _has_fillers(client, before):
                return True
            if client.run(_REPLACE, [self.path.head_key], [packed, format.pack_head(head)]):
                _unlink(client, before.uuid.hex()[:ID_LENGTH])
        return True

    def check_relabelling(self) -> None:
        raise OptionError(
            f"{self.path}: labels of a cache in Redis stay as they are; give them as in_memory_keys="
        )

    def check_deletable(self, *, force: bool = False) -> None:
        with closing(Client(self.path)) as client:
            if not any(_ours(client)):
                raise no_cache(self.path)
            known = read_head(client)
            if not force and known is not None and _has_fillers(client, known[1]):
                raise ArchiveLockedError(
                    f"{self.path}: another process is filling it; wait for it to end, or pass --force"
                )

    def delete(self) -> dict[str, int]:
        """See the base class: all keys that caches made; the server walks over all of its keys for that."""
        with closing(Client(self.path)) as client:
            return _unlink(client)


def _has_fillers(client: Client, head: Head) -> bool:
    return Claims(client, Keys(client.server, head.uuid)).has_fillers


def _unlink(client: Client, cache_id: str | None = None) -> dict[str, int]:
    """Delete our keys, or those with one id; says how many went, and how many of them were records."""
    keys = records = 0
    ours = (matched for matched in _ours(client) if cache_id in (None, matched[1]))
    while doomed := {matched.string: matched for matched in islice(ours, PIECE_KEYS)}:
        keys += client.ask("unlink", *doomed)
        records += sum(matched[3] == "record" for matched in doomed.values())
    return {"key": keys, "record": records}


def _ours(client: Client) -> Iterator[re.Match[str]]:
    """Our keys, as a walk over all of the server finds them: not "prefix:users", nor one of "prefix:a"."""
    stem = client.server.stem
    with client.translated():
        for name in client.connected.scan_iter(_GLOB.sub(r"\\\1", stem) + "*", _SCANNED):
            key = name.decode("utf-8", "replace")  # ours are text; what is none is not ours
            matched = _OURS.fullmatch(key, len(stem)) if key.startswith(stem) else None
            if matched is not None:
                yield matched
