"""Caches that only the package which wrote them reads: litdata's chunks, and what datasets saved."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Final

from edcache.codec import ImageFile
from edcache.errors import ForeignCacheError, MissingDependencyError, PickleRefusedError
from edcache.importers.source import OldCache, read_whole

STATE: Final = "state.json"
INDEX: Final = "index.json"
_INDEX_NBYTES = 1 << 28


class Litdata(OldCache):
    """A folder that litdata.optimize wrote, read by `litdata.StreamingDataset`.

    Raises:
        MissingDependencyError: litdata is not installed.
        PickleRefusedError: a field is pickled, which litdata unpickles whatever it is.
    """

    kind = "litdata"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        file = os.path.join(path, INDEX)
        text = read_whole(file, file, _INDEX_NBYTES)
        try:
            unsafe = _unsafe(json.loads(text)["config"])
        except (IndexError, KeyError, TypeError, RecursionError, ValueError) as error:
            raise ForeignCacheError(f"{file}: not as litdata writes it: {error!r:.200}") from error
        if unsafe and not trust_pickle:
            raise PickleRefusedError(
                f"{path}: has {', '.join(dict.fromkeys(unsafe))}, for which litdata may unpickle or import; "
                "if you trust its author, trust_pickle=True (--trust-pickle) lets it"
            )
        self._digest = hashlib.sha256(text).hexdigest()[:16]
        self._dataset: Any = None
        self._found_all(len(self._opened()))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None}

    def _opened(self) -> Any:
        if self._dataset is None:
            try:
                from litdata import StreamingDataset
            except ImportError as error:
                raise MissingDependencyError(f"{self.path}: needs litdata; pip install litdata") from error
            self._dataset = StreamingDataset(self.path)
        return self._dataset

    def _read(self, index: int) -> Any:
        return self._opened()[index]

    def _identity(self) -> dict[str, Any]:
        return {INDEX: self._digest}


def _unsafe(config: dict[str, Any]) -> list[str]:
    """What in the description of the samples is no plain data."""
    formats = [str(name) for name in config["data_format"] or ()]
    return [name for name in formats if name.partition(":")[0] not in _SAFE] + _odd(
        json.loads(config["data_spec"])[1]
    )


def _odd(spec: dict[str, Any]) -> list[str]:
    """The containers that litdata would make by importing what the file names."""
    found = [] if spec["type"] in _CONTAINERS else [str(spec["type"])]
    return found + [name for child in spec["children_spec"] for name in _odd(child)]


_CONTAINERS = frozenset({None, "builtins.dict", "builtins.list", "builtins.tuple"})
_SAFE = frozenset(
    {
        *("str", "text", "bool", "int", "float", "bytes", "file", "pil", "jpeg", "jpeg_array", "image"),
        *("numpy", "no_header_numpy", "tensor", "no_header_tensor"),
    }
)


class HuggingFace(OldCache):
    """A folder that `Dataset.save_to_disk` wrote, read by datasets; images become `edcache.ImageFile`."""

    kind = "huggingface"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        file = os.path.join(path, STATE)
        self._digest = hashlib.sha256(read_whole(file, file, _INDEX_NBYTES)).hexdigest()[:16]
        self._dataset: Any = None
        self._images: list[str] = []
        self._found_all(len(self._opened()))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None}

    def _opened(self) -> Any:
        if self._dataset is None:
            try:
                import datasets
            except ImportError as error:
                raise MissingDependencyError(f"{self.path}: needs datasets; pip install datasets") from error
            found = datasets.load_from_disk(self.path)
            columns = found.features.items()
            self._images = [name for name, kind in columns if isinstance(kind, datasets.Image)]
            for name in self._images:
                found = found.cast_column(name, datasets.Image(decode=False))
            self._dataset = found
        return self._dataset

    def _read(self, index: int) -> Any:
        sample = dict(self._opened()[index])
        for name in self._images:
            image = sample[name]
            if image is not None:
                sample[name] = ImageFile(image["bytes"] if image["bytes"] is not None else image["path"])
        return sample

    def _identity(self) -> dict[str, Any]:
        return {STATE: self._digest}
