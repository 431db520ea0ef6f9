"""tensordict's memory-mapped folders and its .tdz files: a file for each leaf, whose rows are the samples."""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch

from edcache import base
from edcache.base import ForeignCacheError
from edcache.codec import tensor_dtype
from edcache.interop.import_members import Member, check_member, data_offset, read_member, zip_members
from edcache.interop.import_source import OldCache, files_digest, read_file, read_part

META: Final = "meta.json"
_META_NBYTES = 1 << 24
_FREE_LENGTH = 1_000_000
_DEEPEST = 100
_DTYPE = re.compile(r"torch\.(\w+)")
_ENCODED = re.compile(r"[\x00-\x20\x7f\"%*/:<>?\\|]")


class _Leaf(NamedTuple):
    """One tensor [N, ...]: where in the tree it is, its file, the offset of row 0 there, what a row is."""

    keys: tuple[str, ...]
    file: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int


class Tensordict(OldCache):
    """A TensorDict with a batch dimension: sample i is the dict of its leaves at [i], nested as it was."""

    kind = "tensordict"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        files: _Folder | _Zip = _Folder(path) if os.path.isdir(path) else _Zip(path)
        meta = _meta(files, ())
        self._set_length(meta["shape"][0])
        self._leaves = list(self._leaves_of(files, (), (), meta))
        if len(self) > _FREE_LENGTH and not any(leaf.nbytes for leaf in self._leaves):
            raise ForeignCacheError(f"{path}: {len(self):,} samples without a byte")
        empty = os.stat_result((0,) * 10)  # the file of no bytes need not be there
        stats = ((leaf[2:], os.stat(leaf.file) if leaf.nbytes else empty) for leaf in self._leaves)
        keys = [leaf.keys for leaf in self._leaves]
        self.identity = {"shapes, sizes and times": files_digest([(keys, empty), *stats])}

    def _read(self, index: int) -> Any:
        sample: dict[str, Any] = {}
        for leaf in self._leaves:
            target = sample
            for key in leaf.keys[:-1]:
                target = target.setdefault(key, {})
            offset, place = leaf.offset + index * leaf.nbytes, f"{leaf.file}: row {index}"
            # An empty leaf has no file.
            data = bytearray(leaf.nbytes and read_part(leaf.file, place, offset, leaf.nbytes))
            flat = torch.frombuffer(data, dtype=leaf.dtype) if data else torch.empty(0, dtype=leaf.dtype)
            target[leaf.keys[-1]] = flat.reshape(leaf.shape)
        return sample

    def _leaves_of(
        self, files: _Folder | _Zip, inside: tuple[str, ...], folders: tuple[str, ...], meta: dict[str, Any]
    ) -> Iterator[_Leaf]:
        """The leaves of one level and of those below; the level's keys and the names of its folders."""
        for key, entry in meta.items():
            if not isinstance(entry, dict):
                continue
            keys = (*inside, key)
            if key.encode("utf-8", "replace").decode() != key:
                raise ForeignCacheError(f"{self.path}: the key {key!a} is no UTF-8, and no name of a file")
            if entry.get("type") == "TensorDict":
                within = (*folders, _file_name(files, folders, key, f"/{META}"))
                yield from self._leaves_of(files, keys, within, _meta(files, within, len(self)))
            else:
                file = "/".join((*folders, _file_name(files, folders, key, ".memmap") + ".memmap"))
                yield self._leaf(files, keys, file, entry)

    def _leaf(self, files: _Folder | _Zip, keys: tuple[str, ...], name: str, entry: dict[str, Any]) -> _Leaf:
        place = f"{self.path}: {'/'.join(keys)}"
        match = _DTYPE.fullmatch(str(entry.get("dtype")))
        dtype = tensor_dtype(match[1]) if match else None
        shape = entry.get("shape")
        if "type" in entry or entry.get("is_nested") or dtype is None or not _is_shape(shape):
            kind = entry.get("type") or entry.get("dtype") or "no tensor"
            raise ForeignCacheError(f"{place}: {kind}; only plain tensors are read, save the others apart")
        assert shape is not None
        if shape[:1] != [len(self)]:
            raise ForeignCacheError(f"{place}: shape {shape}, in a batch of {len(self):,}")
        row = math.prod(shape[1:]) * dtype.itemsize
        file, offset = files.locate(name, len(self) * row)
        return _Leaf(keys, file, offset, dtype, tuple(shape[1:]), row)


def _file_name(files: _Folder | _Zip, folders: tuple[str, ...], key: str, ending: str) -> str:
    """What a key is called in a folder: percent-encoded where a file system may not take it.

    Before tensordict did that, a key that is a name was its own.
    """
    encoded = _ENCODED.sub(lambda match: f"%{ord(match[0]):02X}", key) if key.strip(".") else ""
    encoded = encoded or "%2E" * len(key) or "%"
    is_name = os.path.basename(key) == key and key not in ("", ".", "..")
    is_old = is_name and not files.has("/".join((*folders, encoded + ending)))
    return key if is_old and files.has("/".join((*folders, key + ending))) else encoded


def _meta(files: _Folder | _Zip, inside: tuple[str, ...], length: int | None = None) -> dict[str, Any]:
    """What the description of one level says, with a shape; `length` is that of the levels above."""
    name = "/".join((*inside, META))
    place = f"{files.path}: {name}"
    text = files.text(name)
    try:
        meta = base.loads(text)
    except ValueError as error:
        raise ForeignCacheError(f"{place}: {error}") from None
    shape = meta.get("shape") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or not _is_shape(shape):
        raise ForeignCacheError(f"{place}: no shape in it, which tensordict writes")
    if "TensorDict" not in str(meta.get("_type")) or "Lazy" in str(meta.get("_type")):
        raise ForeignCacheError(f"{place}: of {meta.get('_type')}; save a plain TensorDict of it")
    if not shape or (length is not None and shape[0] != length):
        raise ForeignCacheError(f"{place}: batch size {shape}; samples are along a first dimension of all")
    if len(inside) > _DEEPEST:
        raise ForeignCacheError(f"{place}: nested too deep")
    return meta


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)


class _Folder:
    """The files of a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def has(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self.path, name))

    def text(self, name: str) -> bytes:
        return read_file(self._inside(name), _META_NBYTES, f"{self.path}: {name}")

    def locate(self, name: str, nbytes: int) -> tuple[str, int]:
        """The file, and the offset in it, of what is called so and must have so many bytes."""
        file = self._inside(name)
        size = os.path.getsize(file) if os.path.isfile(file) else -1
        if size != nbytes and (size, nbytes) != (-1, 0):
            there = "is no file" if size < 0 else f"has {size:,} bytes"
            raise ForeignCacheError(f"{self.path}: {name} {there}; its shape and dtype take {nbytes:,}")
        return file, 0

    def _inside(self, name: str) -> str:
        file = os.path.join(self.path, *name.split("/"))
        if os.path.realpath(file) != os.path.join(os.path.realpath(self.path), *name.split("/")):
            raise ForeignCacheError(f"{self.path}: {name} is a link; links are not followed")
        return file


class _Zip:
    """The members of a .tdz, as `_Folder`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._members = {member.name: member for member in zip_members(path)[0]}

    def has(self, name: str) -> bool:
        return name in self._members

    def text(self, name: str) -> bytes:
        return read_member(self.path, self._member(name), _META_NBYTES)

    def locate(self, name: str, nbytes: int) -> tuple[str, int]:
        """As `_Folder.locate`; the bytes are compared with their checksum."""
        member = self._member(name)
        if member.method != zipfile.ZIP_STORED:
            raise ForeignCacheError(f"{self.path}: {name} is compressed; unzip it, and import the folder")
        if member.size != nbytes or member.nbytes != nbytes:
            raise ForeignCacheError(
                f"{self.path}: {name} has {member.size:,} bytes; its shape and dtype take {nbytes:,}"
            )
        check_member(self.path, member)
        return self.path, data_offset(self.path, member)

    def _member(self, name: str) -> Member:
        if name not in self._members:
            raise ForeignCacheError(f"{self.path}: no member {name}")
        return self._members[name]
