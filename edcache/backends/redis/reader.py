"""RedisReader: random access to the samples of a cache in Redis."""

from __future__ import annotations

from edcache.backends.redis.client import Client
from edcache.backends.redis.log import Log, no_cache, read_head
from edcache.backends.redis.session import RedisSession
from edcache.backends.redis.url import Server
from edcache.codec import STORED, Decode
from edcache.reader import AnyReader


class RedisReader(AnyReader):
    """Random access to the samples of a cache in Redis, complete or still filling.

    Args:
        path: a URL with a prefix. Nothing is asked before the first use.
        allow_pickle, decode: as for `edcache.Reader`.
    Raises, at the first use:
        ArchiveNotFoundError, CorruptArchiveError, FormatVersionError.
        StorageError: the server does not answer, or refuses.
        StaleArchiveError: unpickled in a process where another cache is under the prefix.

    Every record's crc32 is checked whenever it is read. What is known of the samples, their labels too, is
    asked once in each process, and again by `refresh`: some 40 bytes a sample and the labels, of its own.
    Cost: a batch is one round trip, and its records pass through the connection whole; `missing` takes one
    round trip for a few thousand samples.
    Safety: threads, fork, spawn, forkserver. A pickle has the URL, and no password.
    """

    by_request = True
    _another = "another cache is under this prefix now"

    def __init__(self, path: str, *, allow_pickle: bool = False, decode: Decode = STORED) -> None:
        super().__init__(allow_pickle, decode)
        self.path: Server = Server.of(path)

    def _open(self) -> RedisSession:
        client = Client(self.path)
        answer = read_head(client)
        if answer is None:
            raise no_cache(self.path)
        packed, head, start = answer
        log = Log(client, packed, head, start)
        log.catch_up()
        session = RedisSession(log, self.allow_pickle, self.decoding)
        self._check_uuid(session)
        return session

    def refresh(self) -> bool:
        """Take in what was published since, and forget what was found to be gone; says whether either was.

        Raises:
            StaleArchiveError: another cache is under the prefix now.
        """
        session = self.session
        assert isinstance(session, RedisSession)
        session.log.check_head()
        newer = session.look_again()
        if newer is not None:
            self._keep(newer)
            return True
        forgotten, session.gone = session.gone, set()
        return bool(forgotten)
