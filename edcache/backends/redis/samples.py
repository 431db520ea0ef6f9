"""Samples in a Redis server, each under a key of its own, computed when they are asked for.

PREFIX:SOURCE:INDEX    a claim, while a process computes the sample; then the sample:

offset  bytes  field
0       4      "EDS1"
4       4      crc32 of the index, u64, and of all that follows
8       4      bytes of the schema
12             the schema as text, then the record
"""

from __future__ import annotations

import errno
import hashlib
import json
import operator
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from torch.utils.data import Dataset

from edcache import base, writer
from edcache.backends.redis.store import Client, Server
from edcache.base import EdcacheError, SampleIndexError, SourceError, StorageError
from edcache.codec import Encoder, decoder_of
from edcache.dataset import identity
from edcache.format import crc32

_FRAME: Final = struct.Struct("<4sII")
_MAGIC: Final = b"EDS1"
_CLAIM: Final = b"EDC1"
# Milliseconds until the claim of a killed process expires.
_CLAIM_MS: Final = 10_000
_LOOK_SECONDS: Final = 0.02


class RedisDataset(Dataset[Any]):
    """A map-style dataset whose samples a Redis server keeps from their first use on, for several hosts.

    A sample that the server has evicted or forgotten, that has expired, or whose bytes are damaged is
    computed again.

    Args:
        source: the dataset, with __len__ and __getitem__(int).
        url: "redis://host:6379/0?prefix=name" ("rediss://" for TLS, "unix:///run/redis.sock?prefix=name" for
            a socket). "&ttl=86400" lets each sample expire so many seconds after it was computed.
        transform: a function that each sample goes through whenever it is read.
        fingerprint: identifies the source, as for CachedDataset. Sources that differ in it or in their length
            have different keys, so that none gets the samples of another. False: all have the same.
    Raises:
        SourceError: "redis://host/0?prefix=name: the source raised at index 30: ValueError: ...".
        CodecError: a sample cannot be stored.
        StorageError: the server does not answer, or refuses the password.
    Warns: RuntimeWarning, once, if the server's memory is full and it evicts nothing. Samples that it does
        not have are computed at every read then.

    Cost: one round trip for a batch, and two for each sample that is computed. A process waits for a sample
    that another one computes, for 10 s at most: one that takes longer may be computed twice.
    Safety: threads, fork, spawn, forkserver. A pickle has no password, but for a process that multiprocessing
    spawns; elsewhere $EDCACHE_REDIS_PASSWORD has it.
    """

    def __init__(
        self,
        source: Any,
        url: str,
        *,
        transform: Callable[[Any], Any] | None = None,
        fingerprint: dict[str, Any] | bool | None = None,
    ) -> None:
        server = Server.of(url)
        self.source, self.transform, self.path = source, transform, str(server)
        self._client = Client(server)
        self._length = writer.length_of(source, self.path)
        origin = identity(source, 0, fingerprint)
        # Not by its code, of which a change would only be warned of.
        described = origin and [{k: v for k, v in origin.items() if k != "source"}, self._length]
        text = json.dumps(described, sort_keys=True)
        self._stem = f"{server.prefix}:{hashlib.sha256(text.encode()).hexdigest()[:16]}:"

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"RedisDataset({self.path!r}, {self._length:,} samples)"

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples at indices in [-len(self), len(self)), by one round trip if the server has them."""
        positions = [self._position(index) for index in indices]
        values = self._values(dict.fromkeys(positions))
        samples = []
        for index in positions:
            with self._named(index):
                sample = _decoded(values[index])
            samples.append(sample if self.transform is None else self.transform(sample))
        return samples

    def _position(self, index: int) -> int:
        position = operator.index(index)
        if not -self._length <= position < self._length:
            raise SampleIndexError(
                f"{self.path}: index {position} not in [{-self._length:,}, {self._length:,})",
                path=self.path,
                index=position,
            )
        return position % self._length

    def _values(self, wanted: Iterable[int]) -> dict[int, bytes]:
        """The values of samples; those that the server lacks are computed, or waited for."""
        values: dict[int, bytes] = {}
        absent, patience = list(wanted), time.monotonic() + _CLAIM_MS / 1000
        while absent:
            (found,) = self._client.ask(("mget", [self._key(index) for index in absent]))
            claimed = []
            for index, value in zip(absent, found, strict=True):
                is_mine = value is None and self._set(index, _CLAIM, _CLAIM_MS, is_claim=True)
                if value and _is_sound(index, value):
                    values[index] = value
                elif not is_mine and value in (None, _CLAIM) and time.monotonic() < patience:
                    claimed.append(index)
                else:
                    values[index] = self._computed(index)
                    patience = time.monotonic() + _CLAIM_MS / 1000
            if len(claimed) == len(absent):
                time.sleep(_LOOK_SECONDS)
            absent = claimed
        return values

    def _key(self, index: int) -> str:
        return f"{self._stem}{index}"

    def _set(self, index: int, value: bytes, ttl_ms: int | None, *, is_claim: bool = False) -> bool:
        """Set a value, a claim only if there is none; whether it was set, or cannot be, as memory is full."""
        try:
            (answer,) = self._client.ask(("set", self._key(index), value, None, ttl_ms, is_claim))
        except StorageError as error:
            if error.errno != errno.ENOSPC:
                raise
            message = f"{error}; samples that it does not have are computed at every read"
            base.warn(message, once=(self.path, "full"))
            return True
        return bool(answer)

    def _computed(self, index: int) -> bytes:
        """The value of a sample that this process computes now, and keeps."""
        try:
            sample = self.source[index]
            with self._named(index):
                value = _encoded(index, sample)
        except BaseException as error:
            with suppress(StorageError):  # the claim expires
                self._client.ask(("unlink", self._key(index)))
            if isinstance(error, EdcacheError) or not isinstance(error, Exception):
                raise
            text = f"the source raised at index {index}: {type(error).__name__}: {error}"
            raise SourceError(f"{self.path}: {text}", path=self.path) from error
        self._set(index, value, self._client.server.ttl_ms)
        return value

    @contextmanager
    def _named(self, index: int) -> Iterator[None]:
        """Put the sample in front of what an error of the codec says."""
        try:
            yield
        except EdcacheError as error:
            raise error.within(f"{self.path}: sample {index}", self.path, index) from error


def _is_sound(index: int, value: bytes) -> bool:
    """True if a value is a sample of this index, and all of it as it was set."""
    if len(value) < _FRAME.size:
        return False
    magic, crc, _ = _FRAME.unpack_from(value)
    return bool(magic == _MAGIC and crc == _crc(index, memoryview(value)))


def _crc(index: int, value: memoryview | bytes) -> int:
    return crc32(value[8:], crc32(index.to_bytes(8, "little")))


def _encoded(index: int, sample: Any) -> bytes:
    """The value of a sample; CodecError, ImageError."""
    encoder = Encoder()
    encoded = encoder.encode(sample)
    schema = encoder.schemas[encoded.schema].encode()
    start = _FRAME.size + len(schema)
    value = bytearray(start + encoded.nbytes)
    value[_FRAME.size : start] = schema
    for offset, piece in encoded.pieces:
        flat = memoryview(piece).cast("B")
        value[start + offset : start + offset + len(flat)] = flat
    _FRAME.pack_into(value, 0, _MAGIC, 0, len(schema))
    _FRAME.pack_into(value, 0, _MAGIC, _crc(index, memoryview(value)), len(schema))
    return bytes(value)


def _decoded(value: bytes) -> Any:
    """The sample in a sound value, in memory of its own; CodecError, CorruptRecordError."""
    start = _FRAME.size + _FRAME.unpack_from(value)[2]
    return decoder_of(str(value[_FRAME.size : start], "utf-8", "replace")).decode(memoryview(value)[start:])
