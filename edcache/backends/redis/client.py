"""The connection to a server: one pool for each process, and its errors as ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from edcache.backends import scrubbed
from edcache.backends.redis.url import Server
from edcache.base import CorruptArchiveError, MissingDependencyError, OptionError, PerProcess, StorageError

_CONNECT_SECONDS, _ANSWER_SECONDS = 10.0, 30.0
_TRIES, _FIRST_PAUSE, _LONGEST_PAUSE = 4, 0.1, 1.0
_PASSWORD, _USERNAME = "EDCACHE_REDIS_PASSWORD", "EDCACHE_REDIS_USERNAME"
# Of the bytes that one command is sent or answers.
PIECE_NBYTES: Final = 1 << 22
PIECE_KEYS: Final = 1000


class Client:
    """A server, asked by any thread or process that has this: each process connects at its first question."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._connections: PerProcess[Any] = PerProcess()

    def ask(self, command: str, *arguments: Any, **options: Any) -> Any:
        """The answer to one command, a method of redis-py's client; StorageError where there is none."""
        with self.translated():
            return getattr(self.connected, command)(*arguments, **options)

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """The answer of a script in Lua, whose text is sent once; raises as `ask`."""
        with self.translated():
            return self.connected.register_script(script)(keys=keys, args=arguments)

    def ask_all(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers to many commands, sent together; raises as `ask`, for the first that failed."""
        with self.translated():
            pipeline = self.connected.pipeline(transaction=False)
            for command, *arguments in commands:
                getattr(pipeline, command)(*arguments)
            # Not raised there: the text would quote the command, whatever bytes it has.
            answers: list[Any] = pipeline.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

    def close(self) -> None:
        """Let go of this process's connections; asked again, it connects again."""
        connected = self._connections.pop()
        if connected is not None:
            connected.close()

    @property
    def connected(self) -> Any:
        """redis-py's client, for what has no translation of its own."""
        return self._connections.get(self._connect)

    def _connect(self) -> Any:
        redis = library(self.server)
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry

        secrets = {"username": os.environ.get(_USERNAME), "password": os.environ.get(_PASSWORD)}
        options = {name: value for name, value in secrets.items() if value} | dict(self.server.secrets)
        try:
            return redis.Redis.from_url(
                self.server.client_url,
                socket_connect_timeout=_CONNECT_SECONDS,
                socket_timeout=_ANSWER_SECONDS,
                retry=Retry(ExponentialBackoff(_LONGEST_PAUSE, _FIRST_PAUSE), _TRIES - 1),
                retry_on_error=[redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError],
                **options,
            )
        except (ValueError, TypeError) as error:
            raise OptionError(f"{self.server}: redis-py does not take this URL: {error}") from None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Around what asks the server: errors of redis-py as ours, but those of its locks."""
        errors = library(self.server).exceptions
        try:
            yield
        except errors.LockError:
            raise
        except errors.RedisError as error:
            raise self._translation(errors, error) from None

    def _translation(self, errors: Any, error: Exception) -> Exception:
        server, text = self.server, scrubbed(str(error), (value for _, value in self.server.secrets))
        if isinstance(
            error, (errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError)
        ):
            self._connections.pop()  # the next question looks for a password again
            return StorageError(
                f"{server}: the server refuses this user: {text}; give its password in {_PASSWORD}, or "
                "in the URL; pickles do not carry it to other programs"
            )
        if isinstance(error, (errors.ConnectionError, errors.TimeoutError)):
            lost = StorageError(
                f"{server}: the server does not answer: {text}; it was asked {_TRIES} times; what was "
                "published is kept if it kept it"
            )
            lost.errno = errno.ETIMEDOUT if isinstance(error, errors.TimeoutError) else errno.ECONNREFUSED
            return lost
        if isinstance(error, errors.OutOfMemoryError):
            full = StorageError(
                f"{server}: the server's memory is full (maxmemory); give it more, or let it evict "
                "(maxmemory-policy allkeys-lru) and read with lazy=True"
            )
            full.errno = errno.ENOSPC
            return full
        if text.startswith("WRONGTYPE"):
            return CorruptArchiveError(
                f"{server}: another program keeps something else under one of its keys; choose "
                f"another prefix, or delete it: edcache rm '{server}'"
            )
        return StorageError(f"{server}: the server refused: {text}")


def library(server: Server) -> Any:
    """redis-py; MissingDependencyError where it is not installed."""
    try:
        import redis
    except ImportError:
        raise MissingDependencyError(
            f"{server}: a cache in Redis needs redis-py; install it with: pip install edcache[redis]"
        ) from None
    return redis
