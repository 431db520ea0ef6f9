"""Caches that only the package which wrote them reads: litdata's chunks, and what datasets saved."""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from typing import Any, ClassVar, Final

from edcache.codec import ImageFile
from edcache.errors import ForeignCacheError, MissingDependencyError, PickleRefusedError
from edcache.fill import declared
from edcache.importers.source import OldCache, read_whole

STATE: Final = "state.json"
INDEX: Final = "index.json"
_INDEX_NBYTES = 1 << 28


class Packaged(OldCache):
    """A folder that only a package reads, which opens it anew in each process.

    Attributes:
        package: what it is called, as pip knows it.
        described_in: the file that says what the folder holds; its bytes tell this cache from others.
    """

    package: ClassVar[str]
    described_in: ClassVar[str]

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        file = os.path.join(path, self.described_in)
        text = read_whole(file, file, _INDEX_NBYTES)
        self._check(text, file)
        self._digest = hashlib.sha256(text).hexdigest()[:16]
        self._dataset: Any = None
        self._found_all(len(self._opened()))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None}

    def _check(self, text: bytes, file: str) -> None:
        """Raise where the package would run code for what the file describes."""

    @abstractmethod
    def _imported(self) -> Any:
        """What of the package opens a folder."""

    @abstractmethod
    def _opened_by(self, opener: Any) -> Any:
        """The folder as a dataset of the package's."""

    def _opened(self) -> Any:
        if self._dataset is None:
            try:
                opener = self._imported()
            except ImportError as error:
                raise MissingDependencyError(
                    f"{self.path}: needs {self.package}; pip install {self.package}"
                ) from error
            self._dataset = self._opened_by(opener)
        return self._dataset

    def _read(self, index: int) -> Any:
        return self._opened()[index]

    def _identity(self) -> dict[str, Any]:
        return {self.described_in: self._digest}


class Litdata(Packaged):
    """A folder that litdata.optimize wrote, read by `litdata.StreamingDataset`.

    Raises:
        MissingDependencyError: litdata is not installed.
        PickleRefusedError: a field is pickled, which litdata unpickles whatever it is.
    """

    kind = package = "litdata"
    described_in = INDEX

    def _check(self, text: bytes, file: str) -> None:
        try:
            unsafe = _unsafe(json.loads(text)["config"])
        except (IndexError, KeyError, TypeError, RecursionError, ValueError) as error:
            raise ForeignCacheError(f"{file}: not as litdata writes it: {error!r:.200}") from error
        if unsafe and not self.trust_pickle:
            raise PickleRefusedError(
                f"{self.path}: has {', '.join(dict.fromkeys(unsafe))}, for which litdata may unpickle or "
                "import; if you trust its author, trust_pickle=True (--trust-pickle) lets it"
            )

    def _imported(self) -> Any:
        from litdata import StreamingDataset

        return StreamingDataset

    def _opened_by(self, opener: Any) -> Any:
        return opener(self.path)


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


class HuggingFace(Packaged):
    """A folder that `Dataset.save_to_disk` wrote, read by datasets; images become `edcache.ImageFile`.

    Sequences of numbers and ArrayXD come as arrays of the dtype that its features declare.
    """

    kind = "huggingface"
    package = "datasets"
    described_in = STATE

    def _imported(self) -> Any:
        import datasets

        return datasets

    def _opened_by(self, opener: Any) -> Any:
        found = opener.load_from_disk(self.path)
        columns = found.features.items()
        self._images = [name for name, kind in columns if isinstance(kind, opener.Image)]
        for name in self._images:
            found = found.cast_column(name, opener.Image(decode=False))
        return declared(found)

    def _read(self, index: int) -> Any:
        sample = dict(super()._read(index))
        for name in self._images:
            image = sample[name]
            if image is not None:
                sample[name] = ImageFile(image["bytes"] if image["bytes"] is not None else image["path"])
        return sample
