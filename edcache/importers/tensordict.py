"""tensordict's memory-mapped folders and its .tdz files: a file for each leaf, whose rows are the samples."""

from __future__ import annotations

import hashlib
import math
import os
import re
import zipfile
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from edcache import bounded
from edcache.codec import tensor_dtype
from edcache.errors import ForeignCacheError
from edcache.importers.members import Member, contents, data_offset, listed, prove
from edcache.importers.source import OldCache, read_whole

META: Final = "meta.json"
_META_NBYTES = 1 << 24
_FREE_LENGTH = 1_000_000
_DTYPE = re.compile(r"torch\.(\w+)")


class _Leaf(NamedTuple):
    """One tensor [N, ...]: where in the tree it is, its file, the offset of row 0 there, what a row is."""

    keys: tuple[str, ...]
    file: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int


# (name of a file of the folder, bytes that it must have) -> (file, offset of its first byte)
_Place = Callable[[str, int], tuple[str, int]]
_Text = Callable[[str], bytes]


class Tensordict(OldCache):
    """A TensorDict with a batch dimension: sample i is the dict of its leaves at [i], nested as it was."""

    kind = "tensordict"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        text, place = _of_folder(path) if os.path.isdir(path) else _of_zip(path)
        self._leaves: list[_Leaf] = []
        self._digest = hashlib.sha256()
        self._add(text, place, (), None)
        if len(self) > _FREE_LENGTH and not any(leaf.nbytes for leaf in self._leaves):
            raise ForeignCacheError(f"{path}: {len(self):,} samples without a byte")
        self._identified = self._digest.hexdigest()[:16]
        del self._digest

    def _read(self, index: int) -> Any:
        sample: dict[str, Any] = {}
        for leaf in self._leaves:
            target = sample
            for key in leaf.keys[:-1]:
                target = target.setdefault(key, {})
            target[leaf.keys[-1]] = self._row(leaf, index)
        return sample

    def _row(self, leaf: _Leaf, index: int) -> torch.Tensor:
        data = bytearray(leaf.nbytes)
        try:
            with open(leaf.file, "rb") as file:
                file.seek(leaf.offset + index * leaf.nbytes)
                read = file.readinto(data)
        except OSError as error:
            raise ForeignCacheError(f"{leaf.file}: {error.strerror}") from error
        if read < leaf.nbytes:
            raise ForeignCacheError(f"{leaf.file}: it ends in the middle of row {index}")
        if not data:
            return torch.empty(leaf.shape, dtype=leaf.dtype)
        return torch.frombuffer(data, dtype=leaf.dtype).reshape(leaf.shape)

    def _identity(self) -> dict[str, Any]:
        return {"shapes, sizes and times": self._identified}

    def _add(self, text: _Text, place: _Place, inside: tuple[str, ...], length: int | None) -> None:
        """Add the leaves of one level, and of those below it."""
        name = "/".join((*inside, META))
        shown = f"{self.path}: {name}"
        try:
            said = bounded.loads(text(name))
        except ValueError as error:
            raise ForeignCacheError(f"{shown}: {error}") from None
        shape = said.get("shape") if isinstance(said, dict) else None
        if not isinstance(said, dict) or not _is_shape(shape):
            raise ForeignCacheError(f"{shown}: no shape in it, which tensordict writes")
        if "TensorDict" not in str(said.get("_type")) or "Lazy" in str(said.get("_type")):
            raise ForeignCacheError(f"{shown}: of {said.get('_type')}; save a plain TensorDict of it")
        if not shape or (length is not None and shape[0] != length):
            raise ForeignCacheError(
                f"{shown}: batch size {shape}; samples are along a first dimension of all"
            )
        if length is None:
            self._found_all(shape[0])
        if len(inside) > 100:
            raise ForeignCacheError(f"{shown}: nested too deep")
        for key, what in said.items():
            if isinstance(what, dict) and not key.startswith("_"):
                self._add_entry(text, place, (*inside, key), what)

    def _add_entry(self, text: _Text, place: _Place, keys: tuple[str, ...], what: dict[str, Any]) -> None:
        shown = f"{self.path}: {'/'.join(keys)}"
        if os.path.basename(keys[-1]) != keys[-1] or keys[-1] in ("", ".", ".."):
            raise ForeignCacheError(f"{shown}: {keys[-1]!r} is no name of a file")
        if what.get("type") == "TensorDict":
            self._add(text, place, keys, len(self))
            return
        match = _DTYPE.fullmatch(str(what.get("dtype")))
        dtype = tensor_dtype(match[1]) if match else None
        shape = what.get("shape")
        if "type" in what or what.get("is_nested") or dtype is None or not _is_shape(shape):
            kind = what.get("type") or what.get("dtype") or "no tensor"
            raise ForeignCacheError(f"{shown}: {kind}; only plain tensors are read, save the others apart")
        assert shape is not None
        if shape[:1] != [len(self)]:
            raise ForeignCacheError(f"{shown}: shape {shape}, in a batch of {len(self):,}")
        row = math.prod(shape[1:]) * dtype.itemsize
        file, offset = place("/".join(keys) + ".memmap", len(self) * row)
        self._digest.update(
            f"{keys} {dtype} {shape} {offset} {_times(file) if row and len(self) else 0}\n".encode()
        )
        self._leaves.append(_Leaf(keys, file, offset, dtype, tuple(shape[1:]), row))


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)


def _times(file: str) -> tuple[int, int]:
    stat = os.stat(file)
    return stat.st_size, stat.st_mtime_ns


def _of_folder(path: str) -> tuple[_Text, _Place]:
    def inside(name: str) -> str:
        file = os.path.join(path, *name.split("/"))
        if os.path.realpath(file) != os.path.join(os.path.realpath(path), *name.split("/")):
            raise ForeignCacheError(f"{path}: {name} is a link; links are not followed")
        return file

    def text(name: str) -> bytes:
        return read_whole(inside(name), f"{path}: {name}", _META_NBYTES)

    def place(name: str, nbytes: int) -> tuple[str, int]:
        file = inside(name)
        found = os.path.getsize(file) if os.path.isfile(file) else -1
        if found != nbytes and (found, nbytes) != (-1, 0):
            there = "is no file" if found < 0 else f"has {found:,} bytes"
            raise ForeignCacheError(f"{path}: {name} {there}; its shape and dtype take {nbytes:,}")
        return file, 0

    return text, place


def _of_zip(path: str) -> tuple[_Text, _Place]:
    members: dict[str, Member] = {member.name: member for member in listed(path)[0]}

    def found(name: str) -> Member:
        if name not in members:
            raise ForeignCacheError(f"{path}: no member {name}")
        return members[name]

    def text(name: str) -> bytes:
        return contents(path, found(name), _META_NBYTES)

    def place(name: str, nbytes: int) -> tuple[str, int]:
        member = found(name)
        if member.method != zipfile.ZIP_STORED:
            raise ForeignCacheError(f"{path}: {name} is compressed; unzip it, and import the folder")
        if member.size != nbytes or member.nbytes != nbytes:
            raise ForeignCacheError(
                f"{path}: {name} has {member.size:,} bytes; its shape and dtype take {nbytes:,}"
            )
        prove(path, member)
        return path, data_offset(path, member)

    return text, place
