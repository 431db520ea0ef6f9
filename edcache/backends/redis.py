"""Samples in a Redis server, each under a key of its own, computed at their first use.

PREFIX:SOURCE:INDEX    "claimed", while a process computes the sample; then the sample: a crc32 of the index,
                       u64, and of all that follows; the schema as text; a zero byte; the record
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from torch.utils.data import Dataset

from edcache import base, writer
from edcache.backends import Url
from edcache.base import EdcacheError, StorageError
from edcache.codec import Encoder, decoder_of
from edcache.format import crc32

_TIMEOUT_SECONDS: Final = 10
_CRC_NBYTES: Final = 4
_CLAIM: Final = b"claimed"
# The claim of a killed process expires after 10 s.
_CLAIM_MS: Final = 10_000
_LOOK_SECONDS: Final = 0.02
# Errors that redis-py raises beside its own: of sockets; of unknown options in the URL; of replies that are no numbers,
# no text, or too deep.
_UNFIT: Final = (OSError, TypeError, ValueError, RuntimeError)


class _Server:
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
        return _Server, (self._url,)

    def ask(self, *command: str | bytes | int) -> Any:
        """Send a command, such as ("GET", key), and return its answer. Raises: StorageError."""
        try:
            import redis
        except ImportError:
            raise base.MissingDependencyError(
                f"{self.path}: Redis needs redis-py; install it with: pip install edcache[redis]"
            ) from None
        failed: Exception
        try:
            return self._clients.get(self._connected).execute_command(*command)
        except (redis.RedisError, *_UNFIT) as error:
            failed = error
        # Not within the except block, whose error may have credentials in its text.
        text = self._url.scrubbed(str(failed))
        if isinstance(failed, redis.AuthenticationError):
            text += "; give its password in the URL or in EDCACHE_REDIS_PASSWORD; no pickle carries it"
        raise self._error(text)

    def values(self, keys: Sequence[str]) -> list[bytes | None]:
        """Get the values of keys, None for an absent one, in one round trip."""
        found = self.ask("MGET", *keys)
        is_sound = isinstance(found, list) and len(found) == len(keys)
        if not is_sound or not all(isinstance(value, bytes | None) for value in found):
            raise self._error("a reply of another type")
        return list(found)

    def _error(self, text: str) -> StorageError:
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


class RedisDataset(Dataset[Any]):
    """A map-style dataset whose samples a Redis server keeps from their first use on, for several hosts.

    A sample that the server has evicted or forgotten, that has expired, or whose bytes are damaged is
    computed again.

    Args:
        source: the dataset, with __len__ and __getitem__(int).
        url: "redis://host:6379/0?prefix=name" ("rediss://" for TLS, "unix:///run/redis.sock?prefix=name" for
            a socket). "&ttl=86400" lets each sample expire that many seconds after it was computed.
        transform: a function that each sample goes through whenever it is read.
        fingerprint: identifies the source, as for CachedDataset. Sources that differ in it or in their length
            have different keys, so that none gets the samples of another. False: all have the same.
    Raises:
        SourceError: "redis://host/0?prefix=name: the source raised at index 30: ValueError: ...".
        CodecError: a sample cannot be stored.
        StorageError: the server does not answer, or refuses the password.
    Warns: RuntimeWarning, once, if the server answers but keeps nothing, as when its memory is full and it
        evicts nothing. Samples that it does not have are computed at every read then.

    Cost: one round trip for a batch, and two for each sample that is computed. A process waits for a sample
    that another one computes, for 10 s at most: one that takes longer may be computed twice.
    Safety: threads, fork, spawn, forkserver. A pickle has no password, but for a process that multiprocessing
    spawns; elsewhere $EDCACHE_REDIS_PASSWORD has it.
    """

    path, _length = "redis", 0

    def __init__(
        self,
        source: Any,
        url: str,
        *,
        transform: Callable[[Any], Any] | None = None,
        fingerprint: dict[str, Any] | bool | None = None,
    ) -> None:
        url = Url(url)  # from here on no local holds a password
        self._server = server = _Server(url)
        source = writer.by_items(source)
        self.source, self.transform, self.path = source, transform, server.path
        self._length = writer.length_of(source, self.path)
        recipe = writer.chosen_recipe(source, fingerprint)
        # Without its code: a change of code is no other key.
        made = {} if recipe is None else recipe.to_json()
        described = made and [{k: v for k, v in made.items() if k != "code"}, self._length]
        text = json.dumps(described, sort_keys=True)
        self._stem = f"{server.prefix}:{hashlib.sha256(text.encode()).hexdigest()[:16]}:"

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"RedisDataset({self.path!r}, {self._length:,} samples)"

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Read the samples at indices in [-len(self), len(self)), by one round trip if the server has them."""
        positions = [operator.index(index) for index in indices]
        for index in positions:
            if not -self._length <= index < self._length:
                text = f"{self.path}: index {index} not in [{-self._length:,}, {self._length:,})"
                raise base.SampleIndexError(text, path=self.path, index=index)
        positions = [index % self._length for index in positions]
        values = self._values(positions)
        samples = [_decoded(values[index]) for index in positions]
        return samples if self.transform is None else list(map(self.transform, samples))

    def _values(self, indices: list[int]) -> dict[int, bytes]:
        """Get the values of samples; an absent one is computed, or waited for while another process computes it."""
        values: dict[int, bytes] = {}
        absent, end = list(dict.fromkeys(indices)), time.monotonic() + _CLAIM_MS / 1000
        while absent:
            found = self._server.values([f"{self._stem}{index}" for index in absent])
            for index, value in zip(absent, found, strict=True):
                if value is not None and _crc(index, memoryview(value)[_CRC_NBYTES:]) == value[:_CRC_NBYTES]:
                    values[index] = value
                elif (
                    value not in (None, _CLAIM)  # damaged, or of another program
                    or (value is None and self._set(index, _CLAIM, "NX", "PX", _CLAIM_MS))
                    or time.monotonic() > end
                ):
                    values[index] = self._computed(index)
            absent = [index for index in absent if index not in values]
            if absent:
                time.sleep(_LOOK_SECONDS)
        return values

    def _set(self, index: int, value: bytes, *options: str | int) -> bool:
        """Set a value; True if it was set, or if the server refuses it, as when its memory is full."""
        try:
            return bool(self._server.ask("SET", f"{self._stem}{index}", value, *options))
        except StorageError as error:
            message = f"{error}; samples that it does not have are computed at every read"
            base.warn(message, once=(self.path, "full"))
            return True

    def _computed(self, index: int) -> bytes:
        """Compute a sample in this process, and set its value."""

        def failure(error: Exception) -> EdcacheError:
            if isinstance(error, EdcacheError):
                return error.within(f"{self.path}: sample {index}", self.path, index)
            text = f"the source raised at index {index}: {type(error).__name__}: {error}"
            return base.SourceError(f"{self.path}: {text}", path=self.path, index=index)

        def give_up() -> None:
            with suppress(StorageError):  # the claim expires
                self._server.ask("UNLINK", f"{self._stem}{index}")

        with base.on_error(give_up), base.foreign_code(failure):
            value = _encoded(index, self.source[index])
        self._set(index, value, *self._server.expiry)
        return value


def _crc(index: int, data: bytes | memoryview) -> bytes:
    return crc32(data, crc32(index.to_bytes(8, "little"))).to_bytes(_CRC_NBYTES, "little")


def _encoded(index: int, sample: Any) -> bytes:
    """Encode a sample as a value. Raises: CodecError, ImageError."""
    encoder = Encoder()
    encoded = encoder.encode(sample)
    data = encoder.schemas[encoded.schema].encode() + b"\0" + encoded.record()
    return _crc(index, data) + data


def _decoded(value: bytes) -> Any:
    """Decode the sample in a sound value, as a copy."""
    end = value.index(b"\0", _CRC_NBYTES)
    return decoder_of(value[_CRC_NBYTES:end].decode()).decode(memoryview(value)[end + 1 :])
