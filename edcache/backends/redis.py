"""A Redis server, and a sealed archive there: uploaded in pieces, replaced as a whole.

PREFIX:archive      "ID NBYTES": the upload that is read
PREFIX:ID:NUMBER    a piece of it, of 1 MiB but for the last
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, urlencode, urlsplit

from edcache import base
from edcache.backends import ObjectStore, Url
from edcache.base import ArchiveNotFoundError, StaleArchiveError, StorageError
from edcache.storage import ByteSource

_PIECE_NBYTES: Final = 1 << 20
# The pieces of an upload that failed, or of a killed process, expire after a day.
_UPLOAD_SECONDS: Final = 86_400
_TIMEOUT_SECONDS: Final = 10
_EVICTED: Final = "a part of the archive was evicted, or has expired; build it again"
_UPLOAD: Final = re.compile(rb"(\w+) (\d{1,15})")


class Server:
    """A Redis server. Each process connects by itself, at its first command.

    Attributes:
        path: its URL without credentials. prefix: the start of every key. expiry: the arguments of SET that
            let a key expire, none without ttl=.
    Safety: threads, fork, spawn, forkserver. A pickle has the credentials that a pickle of a `Url` has.
    """

    def __init__(self, url: Url) -> None:
        """Parse a URL. Raises: OptionError, "a Redis URL that does not read; ..."."""
        self.path, self._url, self._clients = str(url), url, base.PerProcess[Any]()
        self._query = dict(parse_qsl(url.partition("?")[2]))
        self.prefix, ttl = self._query.pop("prefix", ""), self._query.pop("ttl", None)
        self.expiry = () if ttl is None else ("EX", ttl)
        try:  # a port that is not a number may be a password
            is_sound = "@" not in url and urlsplit(url).port != 0 and (ttl is None or int(ttl) > 0)
        except ValueError:
            is_sound = False
        if not self.prefix or not is_sound or any("password" in name for name in self._query):
            # The message does not quote the URL: nobody knows where its password ends.
            raise base.OptionError(
                "a Redis URL that does not read; write redis://:p%40ss@host:6379/0?prefix=name&ttl=86400: a "
                "password stands before the host, and in it all but letters and digits is percent-encoded; "
                "all keys begin with prefix, and expire after ttl in whole seconds, if that is given"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return Server, (self._url,)

    def ask(self, *commands: tuple[str | bytes | int, ...], reply: type = object) -> list[Any]:
        """Send commands, such as ("GETRANGE", key, 0, 9), in one round trip; returns their answers.

        Args:
            reply: the type of each answer.
        Raises: StorageError for the first command that failed.
        """
        try:
            import redis
        except ImportError:
            raise base.MissingDependencyError(
                f"{self.path}: Redis needs redis-py; install it with: pip install edcache[redis]"
            ) from None
        try:
            pipeline = self._clients.get(self._connected).pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            # redis-py would quote the command in the error that it raises, with the bytes of a record.
            answers: list[Any] = pipeline.execute(raise_on_error=False)
            failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
        except Exception as error:  # noqa: BLE001 - also TypeError for unknown options, and replies out of protocol
            failed = error
        if failed is None and all(isinstance(answer, reply) for answer in answers):
            return answers
        text = "a reply of another type" if failed is None else self._url.scrubbed(str(failed))
        if isinstance(failed, redis.AuthenticationError):
            text += "; give its password in the URL or in EDCACHE_REDIS_PASSWORD; no pickle carries it"
        raise self.error(text)

    def values(self, keys: Sequence[str]) -> list[bytes | None]:
        """Get the values of keys, None for an absent one, in one round trip."""
        (found,) = self.ask(("MGET", *keys), reply=list)
        if len(found) != len(keys) or not all(isinstance(value, bytes | None) for value in found):
            raise self.error("a reply of another type")
        return list(found)

    def error(self, text: str) -> StorageError:
        """Return the error for an answer that cannot be used."""
        return StorageError(f"{self.path}: the server does not do as it is asked: {text}", path=self.path)

    def _connected(self) -> Any:
        import redis

        options = {
            "password": os.environ.get("EDCACHE_REDIS_PASSWORD"),
            "socket_timeout": _TIMEOUT_SECONDS,
            # A timeout is not tried again: a stopped server holds a read for 10 s, not for 40.
            "retry": redis.retry.Retry(
                redis.backoff.ExponentialBackoff(cap=1, base=0.1), 3, (redis.ConnectionError,)
            ),
        }
        place = self._url.url.partition("?")[0]
        return redis.Redis.from_url(f"{place}?{urlencode(self._query)}", **(options | self._url.options))


class _Upload(ByteSource):
    """The archive under a prefix, as one upload left it. When another takes its place, reading raises."""

    by_request = True

    def __init__(self, server: Server) -> None:
        self.path, self._server = server.path, server
        found = self.identity_at(server)
        if found is None:
            text = f"{self.path}: no archive under this prefix; build it first"
            raise ArchiveNotFoundError(text, path=self.path)
        self._id, self._nbytes = found
        pieces = self.keys(server, found)
        if server.ask(("EXISTS", *pieces)) != [len(pieces)]:
            raise ArchiveNotFoundError(f"{self.path}: {_EVICTED}", path=self.path)

    @staticmethod
    def identity_at(server: Server) -> tuple[str, int] | None:
        """Return the id of the present upload and the bytes of its archive; None if there is no archive."""
        (found,) = server.values([f"{server.prefix}:archive"])
        upload = _UPLOAD.fullmatch(found or b"")
        if found is not None and upload is None:
            raise server.error(f"another program keeps {server.prefix}:archive; choose another prefix")
        return None if upload is None else (upload[1].decode(), int(upload[2]))

    @staticmethod
    def keys(server: Server, identity: tuple[str, int]) -> list[str]:
        """Return the keys of the pieces of an upload."""
        upload, nbytes = identity
        return [f"{server.prefix}:{upload}:{k}" for k in range(-(-nbytes // _PIECE_NBYTES))]

    def size(self) -> int:
        return self._nbytes

    def identity(self) -> tuple[str, int]:
        return self._id, self._nbytes

    def tag(self) -> tuple[object, ...]:
        return self.path, self._id

    def reopened(self) -> _Upload:
        return _Upload(self._server)

    def check_unchanged(self) -> None:
        """See `ByteSource`: one round trip."""
        if self.identity_at(self._server) != self.identity():
            text = f"{self.path}: another archive took its place; open it again"
            raise StaleArchiveError(text, path=self.path)

    def pread(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.read_many([(offset, nbytes)])[0])

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ByteSource`: one round trip."""
        commands: list[tuple[str | int, ...]] = []
        sizes: list[int] = []
        for start, nbytes in extents:
            end = min(start + nbytes, self._nbytes)
            sizes.append(max(end - start, 0))
            for low in range(start - start % _PIECE_NBYTES, end, _PIECE_NBYTES):
                key = f"{self._server.prefix}:{self._id}:{low // _PIECE_NBYTES}"
                commands.append(("GETRANGE", key, max(start - low, 0), min(end - low, _PIECE_NBYTES) - 1))
        data = memoryview(b"".join(self._server.ask(*commands, reply=bytes) if commands else ()))
        if len(data) != sum(sizes):
            self.check_unchanged()
            raise self._server.error(_EVICTED)
        return [data[end - nbytes : end] for end, nbytes in zip(accumulate(sizes), sizes, strict=True)]

    def map(self, nbytes: int) -> NoReturn:
        raise StorageError(f"{self.path}: mapping {nbytes:,} bytes: they are in a server", path=self.path)

    def close(self) -> None:
        """See `ByteSource`: connections are closed with the last reference to them."""


class RedisStore(ObjectStore):
    """A URL of a Redis server, with more options of redis-py; its prefix names one archive."""

    def __init__(self, text: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self._server = Server(Url(text, storage_options))
        super().__init__(self._server.path)

    def open(self) -> _Upload:
        return _Upload(self._server)

    def put(self, path: str, tell: Callable[[int, int], object]) -> None:
        """See the base class. The pieces of the earlier archive are deleted after the new one is named."""
        server, new = self._server, (uuid.uuid4().hex, os.path.getsize(path))
        pieces = _Upload.keys(server, new)
        with open(path, "rb") as file:
            for key in pieces:
                server.ask(("SET", key, file.read(_PIECE_NBYTES), "EX", _UPLOAD_SECONDS))
                tell(file.tell(), new[1])
        keep = ("EXPIRE", *server.expiry[1:]) if server.expiry else ("PERSIST",)
        kept = server.ask(*((keep[0], key, *keep[1:]) for key in pieces))
        if not all(kept):
            raise server.error(_EVICTED)
        before = _Upload.identity_at(server)
        server.ask(("SET", f"{server.prefix}:archive", f"{new[0]} {new[1]}", *server.expiry))
        if before is not None:
            server.ask(("UNLINK", *_Upload.keys(server, before)))
