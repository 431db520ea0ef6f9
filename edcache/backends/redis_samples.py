"""Samples in a Redis server, each under a key of its own, computed at their first use.

PREFIX:SOURCE:INDEX    "claimed", while a process computes the sample; then the sample: a crc32 of the index,
                       u64, and of all that follows; the schema as text; a zero byte; the record
"""

from __future__ import annotations

import hashlib
import json
import operator
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from torch.utils.data import Dataset

from edcache import base, writer
from edcache.backends import Url
from edcache.backends.redis import Server
from edcache.base import EdcacheError, StorageError
from edcache.codec import Encoder, decoder_of
from edcache.format import crc32

_CRC_NBYTES: Final = 4
_CLAIM: Final = b"claimed"
# The claim of a killed process expires after 10 s.
_CLAIM_MS: Final = 10_000
_LOOK_SECONDS: Final = 0.02


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
        self._server = server = Server(url)
        source = writer.by_items(source)
        self.source, self.transform, self.path = source, transform, server.path
        self._length = writer.length_of(source, self.path)
        origin = writer.chosen_fingerprint(source, fingerprint)
        # Without its code: a change of code is a warning, and no other key.
        described = origin and [{k: v for k, v in origin.items() if k != "code"}, self._length]
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
            return bool(self._server.ask(("SET", f"{self._stem}{index}", value, *options))[0])
        except StorageError as error:
            message = f"{error}; samples that it does not have are computed at every read"
            base.warn(message, once=(self.path, "full"))
            return True

    def _computed(self, index: int) -> bytes:
        """Compute a sample in this process, and set its value."""
        try:
            value = _encoded(index, self.source[index])
        except Exception as error:
            with suppress(StorageError):  # the claim expires
                self._server.ask(("UNLINK", f"{self._stem}{index}"))
            if isinstance(error, EdcacheError):
                raise error.within(f"{self.path}: sample {index}", self.path, index) from error
            text = f"the source raised at index {index}: {type(error).__name__}: {error}"
            raise base.SourceError(f"{self.path}: {text}", path=self.path, index=index) from error
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
