"""Delete a cache: its keys, found by SCAN, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from edcache.backends.redis.claims import Claims
from edcache.backends.redis.client import PIECE_KEYS, Client
from edcache.backends.redis.keys import Keys, is_ours, is_record, pattern
from edcache.backends.redis.log import no_cache, read_head
from edcache.backends.redis.url import Server
from edcache.base import ArchiveLockedError

_SCANNED: Final = 1000


class Removed(NamedTuple):
    """What `remove` deleted: how many keys, the records among them."""

    keys: int
    records: int


def removable(path: str, *, force: bool = False) -> int:
    """How many keys a cache has under its prefix.

    Raises:
        ArchiveNotFoundError: it has none. ArchiveLockedError: another process fills it, and not `force`.
    """
    client = Client(Server.of(path))
    try:
        count = sum(len(keys) for keys in _found(client, lambda key: True))
        if not count:
            raise no_cache(client.server)
        if not force and _is_filling(client):
            raise ArchiveLockedError(
                f"{client.server}: another process is filling it; wait for it to end, or pass --force"
            )
        return count
    finally:
        client.close()


def _is_filling(client: Client) -> bool:
    found = read_head(client)
    return found is not None and Claims(client, Keys(client.server, found[1].uuid)).has_fillers


def remove(path: str) -> Removed:
    """Delete all keys that caches made under a prefix; others that begin with it stay.

    Cost: the server walks over all of its keys, a thousand at a time, and frees memory in the background.
    Raises: StorageError.
    """
    client = Client(Server.of(path))
    try:
        return _remove(client, lambda key: True)
    finally:
        client.close()


def remove_of(client: Client, keys: Keys) -> Removed:
    """Delete what a cache has under one uuid, but not the head."""
    return _remove(client, keys.is_of_this)


def _remove(client: Client, is_wanted: Callable[[str], bool]) -> Removed:
    count = records = 0
    for keys in _found(client, is_wanted):
        for start in range(0, len(keys), PIECE_KEYS):
            count += client.ask("unlink", *keys[start : start + PIECE_KEYS])
        records += sum(is_record(client.server, key) for key in keys)
    return Removed(count, records)


def _found(client: Client, is_wanted: Callable[[str], bool]) -> Iterator[list[str]]:
    """Our keys, those of one step of the walk at a time; some may come twice."""
    cursor, match = 0, pattern(client.server)
    while True:
        cursor, found = client.ask("scan", cursor, match=match, count=_SCANNED)
        # Ours are text; what is none is not ours.
        keys = [key.decode("utf-8", "replace") for key in found]
        ours = [key for key in keys if is_ours(client.server, key) and is_wanted(key)]
        if ours:
            yield ours
        if not cursor:
            return
