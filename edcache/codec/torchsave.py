"""Files of torch.save, both formats, read by foreign's closed list of names; trusted ones by torch itself."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any, Final

import torch

from edcache.base import ForeignCacheError
from edcache.codec.foreign import MOST_NBYTES, Budget, Loading, Storage, Told, TorchType, resolved

LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
ZIP: Final = b"PK\x03\x04"


def torch_loaded(data: bytes, where: str, *, trust: bool = False, most_nbytes: int = MOST_NBYTES) -> Any:
    """What torch.save wrote: a zip, or the stream of pickles from before torch 1.6.

    Args, raises, and what it returns: as `foreign.restored`; tensors that were views have their own memory.
    """
    if not data.startswith((LEGACY, ZIP)):
        raise ForeignCacheError(f"{where} begins with {data[:8]!r}, as no file of torch.save does")
    with Told(where, trust=trust):
        if trust:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        found = legacy(data) if data.startswith(LEGACY) else _zipped(data)
        return resolved(found, Budget(most_nbytes, len(data)))


def legacy(data: bytes, *, is_nested: bool = False) -> Any:
    """The stand-ins of a stream of pickles.

    Args:
        is_nested: it lies in a pickle, where it is one storage, and holds no other.
    """
    if not data.startswith(LEGACY):
        raise ValueError("a nested file of torch.save in another format than its first")
    file = io.BytesIO(data)
    for _ in range(3):  # the magic number, the version of the protocol, the sizes of C's integers
        Loading(file).load()
    parts: dict[str, memoryview] = {}
    itemsizes: dict[str, int] = {}

    def storage_of(pid: Any) -> Storage:
        kind, key = _storage_id(pid)
        itemsizes[key] = 1 if kind.dtype is None else kind.dtype.itemsize
        return Storage(kind.dtype, lambda: parts[key])

    found = (_Flat if is_nested else Loading)(file, storage_of).load()
    keys = Loading(file).load()
    view, offset = memoryview(data), file.tell()
    for key in keys:
        items = int.from_bytes(view[offset : offset + 8], "little")
        end = offset + 8 + items * itemsizes[key]
        if end > len(data):
            raise EOFError(f"storage {key} should end at offset {end:,} of {len(data):,}")
        parts[key] = view[offset + 8 : end]
        offset = end
    return found


class _Flat(Loading):
    """What lies in a pickle holds a storage, and no more pickles."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_load_from_bytes":
            raise ValueError("a file of torch.save in one in a pickle")
        return super().find_class(module, name)


def _storage_id(pid: Any) -> tuple[TorchType, str]:
    if type(pid) is not tuple or pid[0] != "storage" or not isinstance(pid[1], TorchType):
        raise ValueError("a persistent id that names no storage")
    if len(pid) > 5 and pid[5] is not None:
        raise ValueError("a storage that is a part of another")
    return pid[1], str(pid[2])


def _zipped(data: bytes) -> Any:
    try:
        members = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise EOFError(str(error)) from None
    names = set(members.namelist())
    roots = [
        name[: -len("data.pkl")] for name in names if name.endswith("/data.pkl") and name.count("/") == 1
    ]
    if len(roots) != 1:
        raise ValueError("a zip without one data.pkl, which torch.save writes")
    root = roots[0]
    if f"{root}constants.pkl" in names:
        raise ValueError("TorchScript, which is a program and no sample")
    if f"{root}byteorder" in names and _member(members, f"{root}byteorder") != b"little":
        raise ValueError("saved by a big-endian machine")

    def storage_of(pid: Any) -> Storage:
        kind, key = _storage_id(pid)
        return Storage(kind.dtype, _reading(members, f"{root}data/{key}"))

    return Loading(io.BytesIO(_member(members, f"{root}data.pkl")), storage_of).load()


def _reading(members: zipfile.ZipFile, name: str) -> Callable[[], bytes]:
    return lambda: _member(members, name)


def _member(members: zipfile.ZipFile, name: str) -> bytes:
    found = members.getinfo(name)
    if found.compress_type != zipfile.ZIP_STORED or found.file_size != found.compress_size:
        raise ValueError(f"{name} is compressed, as torch.save never does")
    try:
        return members.read(found)
    except zipfile.BadZipFile as error:
        raise EOFError(str(error)) from None
