"""webdataset's tar shards: files that share a name up to its first dot, one after another, are a sample."""

from __future__ import annotations

import ast
import glob
import json
import os
import re
import tarfile
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from edcache import codec
from edcache.base import CorruptRecordError, ForeignCacheError
from edcache.codec import ImageFile
from edcache.interop.import_source import OldCache, files_digest, read_part

KEY: Final = "__key__"

_NAME = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)", re.DOTALL)
_NOT_DATA = re.compile(r"(?:.*/)?__[^/]*__(?:/|$)", re.DOTALL)
_INTS = frozenset({"cls", "cls2", "index", "inx", "id"})
_UNDECODED = (CorruptRecordError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError)
_MOST_HEADER = 10_000
_PICKLES = frozenset({"pyd", "pickle", "pkl"})


class Webdataset(OldCache):
    """One .tar file, or all of a folder, by name.

    A sample is {"__key__": name, extension: value, ...}. Numbers (.cls, .index, ...), texts, .json, .npy,
    pickles and files of torch.save are read as webdataset's decoder reads them, images become
    `edcache.ImageFile`, everything else is bytes.
    """

    kind = "webdataset"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        folder = os.path.isdir(path)
        self._shards = sorted(glob.glob(os.path.join(glob.escape(path), "*.tar"))) if folder else [path]
        self._keys: list[str] = []
        self._extensions: dict[str, int] = {}
        # Of each file the shard, offset, bytes and extension, four numbers one after the other.
        self._begins, self._files = array("q"), array("q")
        stats = []
        for number, shard in enumerate(self._shards):
            stats.append((os.path.basename(shard), os.stat(shard)))
            self._add_shard(number, shard)
        self.identity = {"shards, sizes and times": files_digest(stats)}
        self._begins.append(len(self._files))
        self._names = list(self._extensions)
        self._set_length(len(self._keys))
        # Numbers that every sample has.
        counts = np.bincount(np.asarray(self._files[3::4]), minlength=len(self._names)).tolist()
        pairs = zip(self._names, counts, strict=True)
        self.in_memory_keys = [KEY, *(name for name, n in pairs if n == len(self) and name in _INTS)]

    def _add_shard(self, number: int, shard: str) -> None:
        begin, key, seen = len(self._keys), None, set[str]()
        try:
            for name, extension, offset, nbytes in _files(shard, self.notes):
                if name != key:
                    key, seen = name, set()
                    self._keys.append(name)
                    self._begins.append(len(self._files))
                if extension in seen:
                    raise ForeignCacheError(f"{shard}: {name}.{extension} comes twice in one sample")
                seen.add(extension)
                code = self._extensions.setdefault(extension, len(self._extensions))
                self._files.extend((number, offset, nbytes, code))
        except _TruncatedShard:
            # Whether the last sample before the end is whole cannot be known.
            if len(self._keys) > begin:
                last, shown = self._keys.pop(), os.path.basename(shard)
                self.notes.append(f"{shown} was cut: its last sample, {last}, was left out")
                del self._files[self._begins.pop() :]

    def _read(self, index: int) -> Any:
        sample: dict[str, Any] = {KEY: self._keys[index]}
        for row in range(self._begins[index], self._begins[index + 1], 4):
            shard, offset, nbytes, extension = self._files[row : row + 4]
            name = self._names[extension]
            place = f"{self._shards[shard]}: {self._keys[index]}.{name}"
            if nbytes > self.most_nbytes:
                raise ForeignCacheError(
                    f"{place} has {nbytes:,} bytes, more than the {self.most_nbytes:,} allowed"
                )
            data = read_part(self._shards[shard], place, offset, nbytes)
            sample[name] = self._value(name, data, place)
        return sample

    def _value(self, extension: str, data: bytes, place: str) -> Any:
        last = extension.rpartition(".")[2].lower()
        if last in _PICKLES:
            return self._unpickled(data, place)
        if last == "pth":
            return self._torch_loaded(data, place)
        try:
            return _DECODERS.get(last, bytes)(data)
        except _UNDECODED as error:
            raise ForeignCacheError(f"{place}: does not decode: {str(error)[:200]}") from error


def npy_array(data: bytes) -> Any:
    """The array of an .npy file; numpy's own reader allocates what the header claims."""
    if data[:6] != b"\x93NUMPY" or data[6:7] not in (b"\1", b"\2", b"\3"):
        raise ValueError(f"begins with {data[:8]!r}, as no .npy does")
    begin = 10 if data[6] == 1 else 12
    end = begin + int.from_bytes(data[8:begin], "little")
    if end - begin > _MOST_HEADER:
        raise ValueError(f"a header of {end - begin:,} bytes")
    header = ast.literal_eval(data[begin:end].decode("utf-8" if data[6] == 3 else "latin1").strip())
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("a header that numpy does not write")
    dtype, shape = _dtype(header["descr"]), codec.check_shape(list(header["shape"]))
    if codec.array_nbytes(shape, dtype.itemsize) != len(data) - end:
        raise ValueError(f"an array of shape {shape} and dtype {dtype}, and {len(data) - end:,} bytes for it")
    return np.ndarray(shape, dtype, bytearray(data[end:]), order="F" if header["fortran_order"] else "C")


def _dtype(description: Any) -> np.dtype[Any]:
    """The dtype of a header, in which each part is a text that the codec knows."""
    if isinstance(description, str):
        return codec.parse(description)
    for _, kind, *_ in description:
        _dtype(kind)
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(description)
    return dtype


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    **dict.fromkeys(_INTS, int),
    **dict.fromkeys(("txt", "text", "transcript"), lambda data: data.decode("utf-8")),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"), ImageFile),
    "npy": npy_array,
}


class _TruncatedShard(Exception):
    """A shard ends before its end."""


def _files(shard: str, notes: list[str]) -> Iterator[tuple[str, str, int, int]]:
    """(name up to the first dot, the rest, offset of the bytes, their number) of the files of a shard."""
    size, left_out, offset = os.path.getsize(shard), 0, 0
    try:
        with tarfile.open(shard, "r:") as tar:
            for entry in tar:
                tar.members = []  # type: ignore[attr-defined]  # it keeps every entry else
                offset = entry.offset_data
                if offset + entry.size > size:
                    raise _TruncatedShard
                match = _NAME.fullmatch(entry.name)
                if entry.isdir() or _NOT_DATA.match(entry.name):
                    continue
                if match is None or entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    left_out += 1
                    continue
                yield match[1], match[2], entry.offset_data, entry.size
            # Over a header that is cut or damaged, tarfile ends as over the zeros at the end.
            if tar.offset + 512 > size or any(read_part(shard, shard, tar.offset, 512)):
                raise _TruncatedShard
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        if offset:
            raise _TruncatedShard from error
        raise ForeignCacheError(f"{shard}: no tar that reads: {error}; unpack .tar.gz first") from error
    if left_out:
        notes.append(
            f"{left_out:,} entries of {os.path.basename(shard)} are links or have no extension: left out"
        )
