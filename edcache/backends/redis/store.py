"""A sealed archive in a Redis server, under one prefix: uploaded in pieces, replaced as a whole.

PREFIX:archive      "ID NBYTES": the upload that is read
PREFIX:ID:NUMBER    a piece of it, of 1 MiB but for the last
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from edcache.backends import ObjectStore, ShownUrl, scrubbed
from edcache.base import (
    ArchiveNotFoundError,
    CorruptArchiveError,
    MissingDependencyError,
    OptionError,
    PerProcess,
    StaleArchiveError,
    StorageError,
)
from edcache.storage import ByteSource

_PIECE_NBYTES: Final = 1 << 20
# Pieces of an upload that never ends, since its process was killed, expire so much later.
_UPLOAD_SECONDS: Final = 86_400
_TIMEOUT_SECONDS: Final = 10
_USERNAME, _PASSWORD = "EDCACHE_REDIS_USERNAME", "EDCACHE_REDIS_PASSWORD"
_EVICTED: Final = (
    "the server has evicted a part of the archive, or it has expired; build it again, and give the server "
    "more memory (maxmemory)"
)


class Server(ShownUrl):
    """A URL without its credentials, and the server there, to which each process connects when it asks.

    Attributes:
        prefix: the start of every key. expiry: the arguments of SET by which a key expires.
    Safety: threads, fork, spawn, forkserver.
    """

    prefix: str
    expiry: tuple[str | int, ...]
    _secrets: dict[str, Any]
    _client_url: str
    _clients: PerProcess[Any]

    def __new__(cls, url: str, secrets: Mapping[str, Any] | None = None) -> Server:
        """Read a URL; OptionError: 'redis://localhost/0?ttl=soon: ttl=soon; give whole seconds above 0'."""
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
            is_sound = parts.port != 0 and "@" not in parts.path + parts.query + parts.fragment
        except ValueError:
            is_sound = False
        if not is_sound or any("password" in name or name == "username" for name in options):
            # Neither the URL nor the reason: nobody knows where its password ends.
            raise OptionError(
                "a Redis URL that does not read; put its password before the host, and percent-encode what "
                "is not a letter or a digit in it, as in redis://:p%40ss@host:6379/0?prefix=name"
            )
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        new = super().__new__(cls, f"{place}?{parts.query}" if options else place)
        found = {"username": parts.username, "password": parts.password}
        new._secrets = {name: unquote(text) for name, text in found.items() if text} | dict(secrets or {})
        new.prefix, seconds = options.pop("prefix", ""), options.pop("ttl", None)
        new._client_url, new._clients = f"{place}?{urlencode(options)}", PerProcess()
        if not new.prefix or new.prefix != "".join(new.prefix.split()):
            raise OptionError(
                f"{new}: names no prefix, with which all its keys begin; append ?prefix=name, a name "
                "without spaces"
            )
        if seconds is not None and not re.fullmatch(r"0*[1-9]\d{0,8}", seconds):
            raise OptionError(f"{new}: ttl={seconds}; give whole seconds above 0")
        new.expiry = () if seconds is None else ("EX", int(seconds))
        return new

    def _pickled(self, with_credentials: bool) -> tuple[Any, ...]:
        return Server, (str(self), self._secrets if with_credentials else {})

    def ask(self, *commands: tuple[str | bytes | int, ...]) -> list[Any]:
        """The answers to commands, such as ("GET", key), which are sent in one round trip.

        Raises: StorageError for the first command that failed, with the errno ENOSPC for a full memory.
        """
        try:
            import redis
        except ImportError:
            raise MissingDependencyError(
                f"{self}: Redis needs redis-py; install it with: pip install edcache[redis]"
            ) from None
        try:
            pipeline = self._clients.get(self._connected).pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            # Not raised there: the text would quote the command, whatever bytes it has.
            answers: list[Any] = pipeline.execute(raise_on_error=False)
            failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
        except Exception as error:  # noqa: BLE001 - also for unknown options, and replies that are none
            failed = error
        if failed is None:
            return answers
        text = scrubbed(str(failed), map(str, self._secrets.values()))
        if isinstance(failed, redis.AuthenticationError | redis.exceptions.NoPermissionError):
            text += f"; give its password in the URL or in {_PASSWORD}, as a pickle does not carry it"
        number = None
        if isinstance(failed, redis.OutOfMemoryError):
            number = errno.ENOSPC
            text = "its memory is full; give it more (maxmemory), or let it evict (maxmemory-policy)"
        translated = StorageError(f"{self}: the server does not do as it is asked: {text}", path=str(self))
        translated.errno = number
        raise translated

    def _connected(self) -> Any:
        import redis

        known = {"username": os.environ.get(_USERNAME), "password": os.environ.get(_PASSWORD)}
        options = {name: value for name, value in known.items() if value} | self._secrets
        return redis.Redis.from_url(
            self._client_url,
            socket_timeout=_TIMEOUT_SECONDS,
            retry=redis.retry.Retry(redis.backoff.ExponentialBackoff(cap=1, base=0.1), 3),
            retry_on_error=[redis.ConnectionError, redis.BusyLoadingError],
            **options,
        )


class _Upload(ByteSource):
    """The archive under a prefix, as one upload left it. When another takes its place, reading raises."""

    by_request = True

    def __init__(self, server: Server) -> None:
        self.path, self._server = str(server), server
        self._id, self._nbytes = _state(server)
        pieces = _pieces(server, self._id, self._nbytes)
        if server.ask(("EXISTS", *pieces)) != [len(pieces)]:
            raise ArchiveNotFoundError(f"{self.path}: {_EVICTED}", path=self.path)

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
        if _state(self._server) != self.identity():
            raise StaleArchiveError(
                f"{self.path}: another archive took its place; open it again", path=self.path
            )

    def pread(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.read_many([(offset, nbytes)])[0])

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ByteSource`: one round trip."""
        commands: list[tuple[str | int, ...]] = []
        ends = [min(offset + nbytes, self._nbytes) for offset, nbytes in extents]
        for (start, _), end in zip(extents, ends, strict=True):
            for low in range(start - start % _PIECE_NBYTES, end, _PIECE_NBYTES):
                key = f"{self._server.prefix}:{self._id}:{low // _PIECE_NBYTES}"
                commands.append(("GETRANGE", key, max(start - low, 0), min(end - low, _PIECE_NBYTES) - 1))
        data = memoryview(b"".join(self._server.ask(*commands) if commands else ()))
        sizes = [max(end - start, 0) for (start, _), end in zip(extents, ends, strict=True)]
        if len(data) != sum(sizes):
            self.check_unchanged()
            raise StorageError(f"{self.path}: {_EVICTED}", path=self.path)
        return [data[end - nbytes : end] for end, nbytes in zip(accumulate(sizes), sizes, strict=True)]

    def map(self, nbytes: int) -> NoReturn:
        raise StorageError(f"{self.path}: mapping {nbytes:,} bytes: they are in a server", path=self.path)

    def close(self) -> None:
        """See `ByteSource`: connections are closed with the last reference to them."""


class RedisStore(ObjectStore):
    """A URL of a Redis server, with more options of redis-py; its prefix names one archive."""

    def __init__(self, text: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = Server(text, storage_options)
        super().__init__(str(self.url))

    def open(self) -> _Upload:
        return _Upload(self.url)

    def put(self, path: str, tell: Callable[[int, int], object]) -> None:
        """See the base class. The pieces of the archive that was there before go when the new one stands."""
        server, upload, nbytes = self.url, uuid.uuid4().hex, os.path.getsize(path)
        pieces = _pieces(server, upload, nbytes)
        try:
            with open(path, "rb") as file:
                for key in pieces:
                    server.ask(("SET", key, file.read(_PIECE_NBYTES), "EX", _UPLOAD_SECONDS))
                    tell(file.tell(), nbytes)
            keep = ("EXPIRE", *server.expiry[1:]) if server.expiry else ("PERSIST",)
            if not all(server.ask(*((keep[0], key, *keep[1:]) for key in pieces))):
                raise StorageError(f"{self.path}: {_EVICTED}", path=self.path)
        except BaseException:
            with suppress(StorageError):  # they expire
                server.ask(("UNLINK", *pieces))
            raise
        name = f"{server.prefix}:archive"
        before, _ = server.ask(("GET", name), ("SET", name, f"{upload} {nbytes}", *server.expiry))
        # Its own, if the commands were sent again, as their answer was lost.
        if before is not None and not before.startswith(upload.encode()):
            server.ask(("UNLINK", *_pieces(server, *_parsed(before, server))))


def _pieces(server: Server, upload: str, nbytes: int) -> list[str]:
    """The keys of the pieces of an archive, which has bytes."""
    return [f"{server.prefix}:{upload}:{k}" for k in range(-(-nbytes // _PIECE_NBYTES))]


def _state(server: Server) -> tuple[str, int]:
    """The id of the upload that is there now, and the bytes of the archive."""
    (found,) = server.ask(("GET", f"{server.prefix}:archive"))
    if found is None:
        raise ArchiveNotFoundError(
            f"{server}: no archive under this prefix; build it first", path=str(server)
        )
    return _parsed(found, server)


def _parsed(found: bytes, server: Server) -> tuple[str, int]:
    name, _, nbytes = found.decode("ascii", "replace").partition(" ")
    if not nbytes.isdecimal() or len(nbytes) > 15:
        raise CorruptArchiveError(
            f"{server}: another program keeps {server.prefix}:archive; choose another prefix"
        )
    return name, int(nbytes)
