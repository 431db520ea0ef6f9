"""Caches that something else reads: litdata's chunks, what datasets saved, a tree of image files."""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from typing import Any, ClassVar, Final

from edcache.base import ForeignCacheError, MissingDependencyError, PickleRefusedError
from edcache.codec import ImageFile
from edcache.interop.folders import image_folder
from edcache.interop.import_mds import INDEX, INDEX_NBYTES
from edcache.interop.import_source import OldCache, read_file
from edcache.writer import declared, source_fingerprint

STATE: Final = "state.json"
BEGUN: Final = "autocopy_start.txt"
ENDED: Final = "autocopy_end.txt"

_CONTAINERS = frozenset({None, "builtins.dict", "builtins.list", "builtins.tuple"})
_SAFE = frozenset(
    {
        *("str", "text", "bool", "int", "float", "bytes", "file", "pil", "jpeg", "jpeg_array", "image"),
        *("numpy", "no_header_numpy", "tensor", "no_header_tensor"),
    }
)


class Packaged(OldCache):
    """A folder that only a package reads, which opens it anew in each process.

    package: as pip knows it. described_in: the file whose bytes tell this cache from others.
    """

    package: ClassVar[str]
    described_in: ClassVar[str]

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        file = os.path.join(path, self.described_in)
        text = read_file(file, INDEX_NBYTES)
        self._check(text, file)
        self.identity = {self.described_in: hashlib.sha256(text).hexdigest()[:16]}
        self._dataset: Any = None
        self._set_length(len(self._opened()))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None}

    def _check(self, text: bytes, file: str) -> None:
        """Raise where the package would run code for what the file describes."""

    @abstractmethod
    def _open(self) -> Any:
        """The folder as a dataset of the package's. Raises: ImportError."""

    def _opened(self) -> Any:
        # No property: of an AttributeError in one, `Dataset.__getattr__` of older torch hides the cause.
        if self._dataset is None:
            try:
                self._dataset = self._open()
            except ImportError as error:
                text = f"{self.path}: needs {self.package}; pip install {self.package}"
                raise MissingDependencyError(text) from error
        return self._dataset

    def _read(self, index: int) -> Any:
        return self._opened()[index]


class Litdata(Packaged):
    """A folder that litdata.optimize wrote; litdata would unpickle any field that is pickled."""

    kind = package = "litdata"
    described_in = INDEX

    def _check(self, text: bytes, file: str) -> None:
        try:
            config = json.loads(text)["config"]
            formats = map(str, config["data_format"] or ())
            unsafe = [name for name in formats if name.partition(":")[0] not in _SAFE]
            unsafe += _unsafe_containers(json.loads(config["data_spec"])[1])
        except (IndexError, KeyError, TypeError, RecursionError, ValueError) as error:
            raise ForeignCacheError(f"{file}: not as litdata writes it: {error!r:.200}") from error
        if unsafe and not self.trust_pickle:
            raise PickleRefusedError(
                f"{self.path}: has {', '.join(dict.fromkeys(unsafe))}, for which litdata may unpickle or "
                "import; if you trust its author, trust_pickle=True lets it"
            )

    def _open(self) -> Any:
        from litdata import StreamingDataset

        return StreamingDataset(self.path)


def _unsafe_containers(spec: dict[str, Any]) -> list[str]:
    """The containers that litdata would make by importing what the file names."""
    own = [] if spec["type"] in _CONTAINERS else [str(spec["type"])]
    return own + [name for child in spec["children_spec"] for name in _unsafe_containers(child)]


class HuggingFace(Packaged):
    """A folder that `Dataset.save_to_disk` wrote, read by datasets; images become `edcache.ImageFile`.

    Sequences of numbers and ArrayXD come as arrays of the dtype that its features declare.
    """

    kind = "huggingface"
    package = "datasets"
    described_in = STATE

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


class Images(OldCache):
    """What `edcache.image_folder` has, with a note where KappaData's copying did not end."""

    kind = "images"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        self._folder = image_folder(path)
        self.in_memory_keys = self._folder.in_memory_keys
        begun, ended = (os.path.exists(os.path.join(path, name)) for name in (BEGUN, ENDED))
        if begun and not ended:
            note = f"its copying did not end: {BEGUN} is there, {ENDED} is not; files may be missing"
            self.notes.append(note)
        self.identity = source_fingerprint(self._folder)["arguments"]
        self._set_length(len(self._folder))

    def _read(self, index: int) -> Any:
        return self._folder[index]
