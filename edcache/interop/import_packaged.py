"""Datasets that their own library reads: webdataset, MDS, litdata, datasets."""

from __future__ import annotations

import glob
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, BinaryIO, ClassVar, Final

import numpy as np

from edcache.base import (
    ArchiveError,
    CodecError,
    EdcacheError,
    Ints,
    MissingDependencyError,
    PerProcess,
)
from edcache.codec import ImageFile, restored, torch_loaded
from edcache.interop.import_source import OldCache, foreign_errors, read_file
from edcache.interop.kinds import Kind
from edcache.writer import declared

_INDEX: Final = "index.json"
_KEY: Final = "__key__"

_END: Final = bytes(1024)
_ENCODED: Final = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
_PICKLES: Final = ("pyd", "pickle", "pkl")
_CONTAINERS = frozenset({None, "builtins.dict", "builtins.list", "builtins.tuple"})
_SAFE = frozenset(
    {
        *("str", "text", "bool", "int", "float", "bytes", "file", "pil", "jpeg", "jpeg_array", "image"),
        *("numpy", "no_header_numpy", "tensor", "no_header_tensor"),
    }
)


def _missing(path: str, kind: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"{path}: reading it takes a package; install it with: pip install edcache[{kind}]"
    )


class _Packaged(OldCache):
    """Folder that only its package reads; each process opens it anew."""

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        self._datasets: PerProcess[Any] = PerProcess()
        self._length = len(self._dataset())

    @abstractmethod
    def _open(self) -> Any:
        """Open the folder as a dataset of the package's; CodecError if reading it runs code."""

    def _dataset(self) -> Any:
        """Return the dataset of this process."""
        try:
            return self._datasets.get(self._open)
        except ImportError as error:
            raise _missing(self.path, self.kind) from error
        except EdcacheError:
            raise
        except Exception as error:  # the package may raise anything
            raise ArchiveError(
                f"{self.path}: does not open as {self.kind}: {type(error).__name__}: {str(error)[:300]}"
            ) from error

    def _read(self, index: int) -> Any:
        return self._dataset()[index]


class Mds(_Packaged):
    """Folder of MDSWriter. A sample is the dict of its columns; images are `edcache.ImageFile`."""

    kind = "mds"

    def _open(self) -> Any:
        from streaming import LocalDataset

        dataset = LocalDataset(self.path)
        self._own: dict[str, str] = {}
        for shard in dataset.shards:
            if not os.path.exists(os.path.join(self.path, shard.raw_data.basename)):
                raise ArchiveError(
                    f"{self.path}: no {shard.raw_data.basename}; of compressed shards: zstd -d *.zstd"
                )
            # streaming would decode images, and unpickle any pickle.
            columns = zip(shard.column_names, shard.column_encodings, strict=True)
            self._own |= {name: kind for name, kind in columns if kind in ("jpeg", "png", "pkl")}
            shard.column_encodings = [
                "bytes" if name in self._own else kind
                for name, kind in zip(shard.column_names, shard.column_encodings, strict=True)
            ]
            shard.validate(self.trust_pickle)
        return dataset

    def _read(self, index: int) -> Any:
        sample = super()._read(index)
        for name, kind in self._own.items():
            place = f"{self.path}: sample {index}: {name}"
            if kind == "pkl":
                sample[name] = restored(sample[name], place, trust=self.trust_pickle)
            else:
                sample[name] = ImageFile(sample[name])
        return sample


class Litdata(_Packaged):
    """Folder of litdata.optimize; litdata would unpickle any pickled field."""

    kind = "litdata"

    def _open(self) -> Any:
        from litdata import StreamingDataset

        config = json.loads(read_file(os.path.join(self.path, _INDEX)))["config"]
        formats = map(str, config["data_format"] or ())
        unsafe = [name for name in formats if name.partition(":")[0] not in _SAFE]
        unsafe += _unsafe_containers(json.loads(config["data_spec"])[1])
        if unsafe and not self.trust_pickle:
            raise CodecError(
                f"{self.path}: has {', '.join(dict.fromkeys(unsafe))}, for which litdata may unpickle or "
                "import; if you trust its author, trust_pickle=True lets it"
            )
        return StreamingDataset(self.path)

    def _read(self, index: int) -> Any:
        return _own_bytes(super()._read(index))


def _own_bytes(value: Any) -> Any:
    """Copy the bytes of a sample of litdata, which are views of its chunk."""
    if isinstance(value, memoryview):
        return bytes(value)
    if type(value) is dict:
        return {key: _own_bytes(item) for key, item in value.items()}
    return type(value)(map(_own_bytes, value)) if type(value) in (list, tuple) else value


def _unsafe_containers(spec: dict[str, Any]) -> list[str]:
    """List the containers that litdata would make by importing names of the file."""
    own = [] if spec["type"] in _CONTAINERS else [str(spec["type"])]
    return own + [name for child in spec["children_spec"] for name in _unsafe_containers(child)]


class HuggingFace(_Packaged):
    """Folder of `Dataset.save_to_disk`; images become `edcache.ImageFile`.

    Sequences of numbers and ArrayXD become arrays of the dtype in its features.
    """

    kind = "huggingface"

    def _open(self) -> Any:
        import datasets

        dataset = datasets.load_from_disk(self.path)
        columns = dataset.features.items()
        self._images = [name for name, kind in columns if isinstance(kind, datasets.Image)]
        for name in self._images:
            dataset = dataset.cast_column(name, datasets.Image(decode=False))
        return declared(dataset)

    def _read(self, index: int) -> Any:
        sample = dict(super()._read(index))
        for name in self._images:
            image = sample[name]
            if image is not None:
                sample[name] = ImageFile(image["bytes"] if image["bytes"] is not None else image["path"])
        return sample


class Webdataset:
    """Tar file, or all of a folder sorted by name, iterated by webdataset.

    A sample is {"__key__": name, extension: value, ...}, decoded as by webdataset; images become `edcache.ImageFile`.
    One process iterates; a damaged shard ends the iteration.
    """

    kind: ClassVar[Kind] = "webdataset"
    in_memory_keys: Any = (_KEY,)

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        self.path = path
        self.trust_pickle = trust_pickle
        self.notes: list[str] = []
        self.more_labels: dict[str, list[Any]] = {}
        self.missing: Ints = np.empty(0, np.int64)
        folder = sorted(glob.glob(os.path.join(glob.escape(path), "*.tar")))
        self._shards = folder if os.path.isdir(path) else [path]

    def first(self) -> Any:
        """Read the first sample."""
        with closing(self._samples()) as samples:
            for sample in samples:
                return sample
        raise ArchiveError(f"{self.path}: no sample in this {self.kind} cache")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._samples()

    def _samples(self) -> Generator[dict[str, Any], None, None]:
        try:
            from webdataset.autodecode import decoders
            from webdataset.tariterators import group_by_keys, tar_file_expander
        except ImportError as error:
            raise _missing(self.path, self.kind) from error
        decode: dict[str, Callable[[bytes], Any]] = decoders | dict.fromkeys(_ENCODED, ImageFile)
        for shard in self._shards:
            # Opened here: webdataset takes some names for commands and URLs.
            with foreign_errors(shard), open(shard, "rb") as stream:
                _check_end(shard, stream)
                for found in group_by_keys(tar_file_expander([{"url": shard, "stream": stream}])):
                    sample = {_KEY: found[_KEY]}
                    for name, data in found.items():
                        if not name.startswith("__"):
                            sample[name] = self._decode(decode, name, data, f"{shard}: {found[_KEY]}.{name}")
                    yield sample

    def _decode(self, decode: dict[str, Callable[[bytes], Any]], name: str, data: bytes, place: str) -> Any:
        last = name.rpartition(".")[2]
        if last in _PICKLES:
            return restored(data, place, trust=self.trust_pickle)
        if last == "pth":
            return torch_loaded(data, place, trust=self.trust_pickle)
        try:
            return decode.get(last, bytes)(data)
        except Exception as error:  # a decoder may raise anything
            raise ArchiveError(f"{place}: does not decode: {str(error)[:200]}") from error


def _check_end(shard: str, stream: BinaryIO) -> None:
    """Raise ArchiveError unless a tar has its end: tarfile accepts a cut one."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - len(_END)))
    if stream.read() != _END:
        raise ArchiveError(f"{shard}: a tar without its end; it was cut, or is compressed: unpack it")
    stream.seek(0)
