"""MDS, the shards of mosaicml-streaming: index.json, and files of samples behind a table of their offsets."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from edcache.base import ForeignCacheError
from edcache.codec import ImageFile
from edcache.interop.import_source import OldCache, read_file, read_part

INDEX: Final = "index.json"
INDEX_NBYTES: Final = 1 << 28
"""Bytes that a file may have that says what a folder holds."""
_LENGTH_DTYPES = ("<u1", "<u2", "<u4", "<u8")
_VALUE_DTYPES = {
    bits + k: f"{kind}{bits}" for bits in (8, 16, 32, 64) for k, kind in enumerate(("uint", "int", "float"))
}
del _VALUE_DTYPES[10]  # numpy has no float8
_SCALARS = frozenset(_VALUE_DTYPES.values())
_PLAIN: Final[dict[str, Callable[[bytes], Any]]] = {
    "bytes": bytes,
    "str": lambda data: data.decode("utf-8"),
    "int": lambda data: int.from_bytes(data, "little", signed=True),
    "str_int": lambda data: int(data.decode("utf-8")),
    "str_float": lambda data: float(data.decode("utf-8")),
    "json": json.loads,
    "jpeg": ImageFile,
    "png": ImageFile,
}


class _Shard(NamedTuple):
    """One file: its name and bytes; of each column the name, the encoding, the bytes if they are fixed."""

    name: str
    nbytes: int
    columns: tuple[tuple[str, str, int | None], ...]


class Mds(OldCache):
    """A folder that MDSWriter wrote. A sample is the dict of its columns; images are `edcache.ImageFile`."""

    kind = "mds"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        file = os.path.join(path, INDEX)
        text = read_file(file, INDEX_NBYTES)
        try:
            shards = json.loads(text)["shards"]
            counts = [_count(shard["samples"]) for shard in shards]
            self._shards = [_shard(file, shard) for shard in shards]
        except ForeignCacheError:
            raise
        except (KeyError, TypeError, RecursionError, ValueError) as error:
            raise ForeignCacheError(f"{file}: not as MDSWriter writes it: {error!r:.200}") from error
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.identity = {INDEX: hashlib.sha256(text).hexdigest()[:16]}
        for shard, count in zip(self._shards, counts, strict=True):
            self._check(shard, count)
        self._set_length(sum(counts))

    def _check(self, shard: _Shard, count: int) -> None:
        """The file is there with its size, which justifies the number of its samples."""
        file = os.path.join(self.path, shard.name)
        nbytes = os.path.getsize(file) if os.path.isfile(file) and not os.path.islink(file) else -1
        if nbytes < 0 and os.path.exists(f"{file}.zstd"):
            raise ForeignCacheError(
                f'{self.path}: its shards are compressed; unpack them first: "zstd -d *.zstd"'
            )
        if nbytes != shard.nbytes or nbytes < 4 * (count + 2):
            raise ForeignCacheError(
                f"{file}: {f'has {nbytes:,} bytes' if nbytes >= 0 else 'is no file'}, index.json says "
                f"{shard.nbytes:,} and {count:,} samples"
            )

    def _read(self, index: int) -> Any:
        number = int(np.searchsorted(self._ends, index, side="right"))
        shard = self._shards[number]
        inside = index - (int(self._ends[number - 1]) if number else 0)
        path, place = os.path.join(self.path, shard.name), f"{self.path}: {shard.name}: sample {inside}"
        begin, end = np.frombuffer(read_part(path, place, 4 * (1 + inside), 8), "<u4").tolist()
        if not begin <= end <= shard.nbytes:
            raise ForeignCacheError(f"{place}: from offset {begin:,} to {end:,} of {shard.nbytes:,}")
        data = read_part(path, place, begin, end - begin)
        sizes, at, sample = [], 0, {}
        for _, _, size in shard.columns:
            if size is None:
                size = int.from_bytes(data[at : at + 4], "little")
                at += 4
            sizes.append(size)
        if at + sum(sizes) != len(data):
            raise ForeignCacheError(f"{place}: {len(data):,} bytes, its columns claim {at + sum(sizes):,}")
        for (name, encoding, _), size in zip(shard.columns, sizes, strict=True):
            sample[name] = self._value(encoding, data[at : at + size], f"{place}: {name}")
            at += size
        return sample

    def _value(self, encoding: str, data: bytes, place: str) -> Any:
        kind, _, more = encoding.partition(":")
        if kind == "pkl":
            return self._unpickled(data, place)
        try:
            if kind == "ndarray":
                return _array(more, data)
            if kind in _SCALARS:
                return np.frombuffer(data, np.dtype(kind).newbyteorder("<"), 1).astype(kind)[0]
            return _PLAIN[kind](data)
        except (KeyError, IndexError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise ForeignCacheError(f"{place}: does not decode as {encoding}: {str(error)[:200]}") from error


def _shard(file: str, entry: dict[str, Any]) -> _Shard:
    columns = tuple(zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True))
    name, nbytes = entry["raw_data"]["basename"], entry["raw_data"]["bytes"]
    if entry["format"] != "mds" or os.path.basename(name) != name or type(nbytes) is not int:
        raise ValueError(f"a shard {name!r} of format {entry['format']!r}")
    for column, encoding, size in columns:
        kind = encoding.partition(":")[0]
        if kind not in _PLAIN.keys() | _SCALARS | {"pkl", "ndarray"}:
            raise ForeignCacheError(f"{file}: column {column!r} is encoded as {encoding}, which is not read")
        if size is not None:
            _count(size)
    return _Shard(name, nbytes, columns)


def _count(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 1 << 32:
        raise ValueError(f"{number!r} where a number of samples or bytes should be")
    return number


def _array(text: str, data: bytes) -> Any:
    """An array whose dtype and shape are said in the encoding, or lie before its values."""
    dtype, _, shape_text = text.partition(":")
    at = 0
    if not dtype:
        dtype, at = _VALUE_DTYPES[data[0]], 1
    if dtype not in _SCALARS:
        raise ValueError(f"dtype {dtype!r}")
    if shape_text:
        shape = tuple(map(int, shape_text.split(",")))
    else:
        ndim, kind = data[at] >> 2, np.dtype(_LENGTH_DTYPES[data[at] % 4])
        shape = tuple(np.frombuffer(data, kind, ndim, at + 1).tolist())
        at += 1 + ndim * kind.itemsize
    values = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=at).astype(dtype)
    if math.prod(shape) != len(values):
        raise ValueError(f"shape {shape} for {len(values):,} values")
    return values.reshape(shape)
