"""A sealed archive in a Redis server, under one prefix: uploaded in pieces, replaced as a whole.

PREFIX:archive      "ID NBYTES": the upload that is read
PREFIX:ID:NUMBER    a piece of it, of 1 MiB but for the last
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

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
_MOST_KEYS: Final = 1000
# Pieces of an upload that never ends, since its process was killed, expire so much later.
_UPLOAD_MS: Final = 86_400_000
_CREDENTIALS: Final = ("username", "password", "ssl_password")
_USERNAME, _PASSWORD = "EDCACHE_REDIS_USERNAME", "EDCACHE_REDIS_PASSWORD"
_EVICTED: Final = (
    "the server has evicted a part of the archive, or it has expired; build it again, and give the server "
    "more memory (maxmemory)"
)


class Server(ShownUrl):
    """A URL without its credentials; read one by `Server.of`.

    Attributes:
        secrets: credentials, by redis-py's names. client_url: the URL without them and without our options.
        prefix: the start of every key. ttl_ms: milliseconds until a key expires; None for never.
    """

    secrets: dict[str, Any]
    client_url: str
    prefix: str
    ttl_ms: int | None

    @classmethod
    def of(cls, url: str, secrets: Mapping[str, Any] | None = None) -> Server:
        """Read a URL; OptionError: 'redis://localhost/0?ttl=soon: ttl=soon; give whole seconds above 0'."""
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            is_sound = parts.port != 0 and not parts.fragment and "@" not in parts.path
        except ValueError:
            is_sound = False
        if not is_sound:
            # Neither the URL nor the reason: nobody knows where its password ends.
            raise OptionError(
                "a Redis URL that does not read; percent-encode what is not a letter or a digit in its "
                "password, as in redis://:p%40ss@host:6379/0?prefix=name"
            )
        found = {"username": parts.username, "password": parts.password}
        known = {name: unquote(value) for name, value in found.items() if value}
        known |= {name: options.pop(name) for name in _CREDENTIALS if name in options}
        # Credentials end at the last @, even if they contain one.
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        server = cls(_with_query(place, options))
        server.secrets = {**known, **(secrets or {})}
        server.prefix, seconds = options.pop("prefix", ""), options.pop("ttl", None)
        server.client_url = _with_query(place, options)
        if not server.prefix or server.prefix != "".join(server.prefix.split()):
            raise OptionError(
                f"{server}: names no prefix, with which all its keys begin; append ?prefix=name, a name "
                "without spaces"
            )
        if seconds is not None and not re.fullmatch(r"0*[1-9]\d{0,8}", seconds):
            raise OptionError(f"{server}: ttl={seconds}; give whole seconds above 0")
        server.ttl_ms = None if seconds is None else int(seconds) * 1000
        return server

    def _pickled(self, with_credentials: bool) -> tuple[Any, ...]:
        return Server.of, (str(self), self.secrets if with_credentials else {})


def _with_query(place: str, options: Mapping[str, str]) -> str:
    query = urlencode(options, quote_via=quote, safe="/:,=")
    return f"{place}?{query}" if query else place


class Client:
    """Asks a server, from any thread or process; each process connects at its first question."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._connections: PerProcess[Any] = PerProcess()

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self.server,)

    def ask(self, *commands: tuple[Any, ...], is_atomic: bool = False) -> list[Any]:
        """Send commands in one round trip, each a method of redis-py with its arguments; the answers.

        Raises: StorageError for the first command that failed, with the errno ENOSPC for a full memory.
        """
        try:
            import redis
        except ImportError:
            raise MissingDependencyError(
                f"{self.server}: Redis needs redis-py; install it with: pip install edcache[redis]"
            ) from None
        try:
            pipeline = self._connections.get(self._connected).pipeline(transaction=is_atomic)
            for command, *arguments in commands:
                getattr(pipeline, command)(*arguments)
            # Not raised there: the text would quote the command, whatever bytes it has.
            answers: list[Any] = pipeline.execute(raise_on_error=False)
            failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
            if failed is not None:
                raise failed
        except redis.RedisError as error:
            raise self._translated(error) from None
        return answers

    def _connected(self) -> Any:
        import redis
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry

        known = {"username": os.environ.get(_USERNAME), "password": os.environ.get(_PASSWORD)}
        options = {name: value for name, value in known.items() if value} | self.server.secrets
        try:
            client = redis.Redis.from_url(
                self.server.client_url,
                socket_connect_timeout=10,
                socket_timeout=30,
                retry=Retry(ExponentialBackoff(cap=1, base=0.1), 3),
                retry_on_error=[redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError],
                **options,
            )
            client.connection_pool.make_connection()  # refuses options that it does not know
        except (ValueError, TypeError) as error:
            text = scrubbed(str(error), map(str, options.values()))
            raise OptionError(f"{self.server}: redis-py does not take this URL: {text}") from None
        return client

    def _translated(self, error: Exception) -> StorageError:
        from redis import exceptions

        text = scrubbed(str(error), map(str, self.server.secrets.values()))
        if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
            text += f"; give its password in the URL or in {_PASSWORD}, as a pickle does not carry it"
        if isinstance(error, exceptions.OutOfMemoryError):
            text = "its memory is full; give it more (maxmemory), or let it evict (maxmemory-policy)"
        translated = StorageError(f"{self.server}: the server does not do as it is asked: {text}")
        translated.errno = errno.ENOSPC if isinstance(error, exceptions.OutOfMemoryError) else None
        return translated


class _Upload(ByteSource):
    """The archive under a prefix, as one upload left it. When another takes its place, reading raises."""

    by_request = True

    def __init__(self, server: Server) -> None:
        self.path, self._client = str(server), Client(server)
        self._id, self._nbytes = self._state()
        for keys in _keys(server, self._id, self._nbytes):
            if self._client.ask(("exists", *keys)) != [len(keys)]:
                raise ArchiveNotFoundError(f"{self.path}: {_EVICTED}", path=self.path)

    def _state(self) -> tuple[str, int]:
        """The id of the upload that is there now, and the bytes of the archive."""
        (found,) = self._client.ask(("get", f"{self._client.server.prefix}:archive"))
        if found is None:
            raise ArchiveNotFoundError(
                f"{self.path}: no archive under this prefix; build it first", path=self.path
            )
        return _parsed(found, self._client.server)

    def size(self) -> int:
        return self._nbytes

    def identity(self) -> tuple[str, int]:
        return self._id, self._nbytes

    def tag(self) -> tuple[object, ...]:
        return self.path, self._id

    def reopened(self) -> _Upload:
        return _Upload(self._client.server)

    def check_unchanged(self) -> None:
        """See `ByteSource`: one round trip."""
        if self._state() != self.identity():
            raise StaleArchiveError(
                f"{self.path}: another archive took its place; open it again", path=self.path
            )

    def pread(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.read_many([(offset, nbytes)])[0])

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ByteSource`: one round trip."""
        commands: list[tuple[Any, ...]] = []
        ends = [min(offset + nbytes, self._nbytes) for offset, nbytes in extents]
        for (start, _), end in zip(extents, ends, strict=True):
            for low in range(start - start % _PIECE_NBYTES, end, _PIECE_NBYTES):
                key = _key(self._client.server, self._id, low // _PIECE_NBYTES)
                commands.append(("getrange", key, max(start - low, 0), min(end - low, _PIECE_NBYTES) - 1))
        data = memoryview(b"".join(self._client.ask(*commands) if commands else ()))
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
        self.url = Server.of(text, storage_options)
        super().__init__(str(self.url))

    def open(self) -> _Upload:
        return _Upload(self.url)

    def put(self, path: str, tell: Callable[[int], object]) -> None:
        """See the base class. The pieces of the archive that was there before go when the new one stands."""
        client, name, ttl_ms = Client(self.url), f"{self.url.prefix}:archive", self.url.ttl_ms
        upload, nbytes = uuid.uuid4().hex, os.path.getsize(path)
        keys = [key for part in _keys(self.url, upload, nbytes) for key in part]
        try:
            with open(path, "rb") as file:
                for key in keys:
                    data = file.read(_PIECE_NBYTES)
                    client.ask(("set", key, data, None, _UPLOAD_MS))
                    tell(len(data))
            if not all(client.ask(*(("exists", key) for key in keys))):
                raise StorageError(f"{self.path}: {_EVICTED}", path=self.path)
        except BaseException:
            with suppress(StorageError):  # they expire
                _delete(client, upload, nbytes)
            raise
        kept = [("persist", key) if ttl_ms is None else ("pexpire", key, ttl_ms) for key in keys]
        swap = [("get", name), ("set", name, f"{upload} {nbytes}", None, ttl_ms)]
        *_, before, _ = client.ask(*kept, *swap, is_atomic=True)
        # Its own, if the transaction was sent again, as its answer was lost.
        if before is not None and not before.startswith(upload.encode()):
            _delete(client, *_parsed(before, self.url))

    def check_lazy(self) -> None:
        raise OptionError(
            f"{self.path}: lazy=True fills a file; samples that are kept in Redis as they are asked for are "
            "an edcache.compat.kappadata.RedisDataset(source, url)"
        )


def _key(server: Server, upload: str, number: int) -> str:
    return f"{server.prefix}:{upload}:{number}"


def _keys(server: Server, upload: str, nbytes: int) -> Iterator[list[str]]:
    """The keys of the pieces of an archive, some at a time."""
    count = -(-nbytes // _PIECE_NBYTES)
    for start in range(0, count, _MOST_KEYS):
        yield [_key(server, upload, k) for k in range(start, min(start + _MOST_KEYS, count))]


def _parsed(found: bytes, server: Server) -> tuple[str, int]:
    name, _, nbytes = found.decode("ascii", "replace").partition(" ")
    if not nbytes.isdecimal() or len(nbytes) > 18:
        raise CorruptArchiveError(
            f"{server}: another program keeps {server.prefix}:archive; choose another prefix"
        )
    return name, int(nbytes)


def _delete(client: Client, upload: str, nbytes: int) -> None:
    for keys in _keys(client.server, upload, nbytes):
        client.ask(("unlink", *keys))
