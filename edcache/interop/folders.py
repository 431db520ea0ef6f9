"""`image_folder`: a tree of image files as a source, with a folder for each class, as torchvision's ImageFolder."""

from __future__ import annotations

import operator
import os
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar, Final

import numpy as np
from torch.utils.data import Dataset

from edcache.base import Decode, OptionError, SampleIndexError, cut_traceback, warn
from edcache.codec import ImageFile
from edcache.storage import home_expanded

_EXTENSIONS: Final = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_FRESH_SECONDS: Final = 1.0


@cut_traceback
def image_folder(root: str | os.PathLike[str], decode: Decode = "pil") -> ImageFolder:
    """Open a tree of images with a folder for each class: root/dog/xxx.png, root/dog/nested/yyy.jpg.

    Args:
        decode: the default decoding of readers, see `edcache.ImageFile`.
    Returns:
        A map-style dataset of {"image": ImageFile, "label": int, "path": str}, with `classes` (the folders' names,
        sorted) and `class_to_idx`; paths are relative to root, with slashes. Files count by the endings of the formats
        that an ImageFile has, in any case. Order and labels are as in torchvision's ImageFolder. The label columns of
        its cache are "label", "path" and "class_name": `ds.filter(class_name="dog")`.
        Images in root itself, which have no class, are left out with a warning.
    Raises:
        OptionError: there is no such folder, it has no folders in it, or one of them has no image.

    Cost: walks the tree. A cache also compares the names, sizes and modification times of all files, and caches the
    files that are new or changed; `CachedDataset.from_cache` does neither. Paths are keys: `ds.by_key("dog/1.png")`.

    >>> ds = edcache.CachedDataset(edcache.image_folder("imagenet/train", decode="tensor"), "train.zip")
    """
    return ImageFolder(root, decode)


def _class_name(sample: dict[str, Any]) -> str:
    name: str = sample["path"].partition("/")[0]
    return name


class ImageFolder(Dataset[dict[str, Any]]):
    """Dataset of `image_folder`."""

    # When the states of all files were asked for the fingerprint, and these: a cache asks for versions next.
    _seen: tuple[float, list[tuple[int, int]]] | None = None
    in_memory_keys: ClassVar[dict[str, Any]] = {"label": "label", "path": "path", "class_name": _class_name}

    def __init__(self, root: str | os.PathLike[str], decode: Decode) -> None:
        # Not `root`, which a CachedDataset takes for a part of its own path.
        self.folder = home_expanded(root)
        # Raises for a decoding that an archive does not store.
        self.decoding = ImageFile(b"", decode).decoding
        self.classes, loose = _folders(self.folder)
        if loose:
            warn(
                f"{self.folder}: {len(loose):,} images lie in the folder itself, and have no class: "
                f"{loose[0]!r} and so on; they are left out"
            )
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.paths: list[str] = []
        self._labels = array("q")
        for number, name in enumerate(self.classes):
            files = list(_files(self.folder, name))
            if not files:
                raise OptionError(
                    f"{self.folder}: the folder {name!r} has no {', '.join(_EXTENSIONS)} file; remove it"
                )
            self.paths += files
            self._labels.extend([number] * len(files))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        place, length = operator.index(index), len(self.paths)
        if not -length <= place < length:
            raise SampleIndexError(f"{self!r}: index {place} not in [-{length}, {length})")
        path = self.paths[place]
        image = ImageFile(os.path.join(self.folder, *path.split("/")), self.decoding)
        return {"image": image, "label": self._labels[place], "path": self.sample_key(place)}

    def __repr__(self) -> str:
        return f"ImageFolder({self.folder!r}, {len(self):,} images in {len(self.classes):,} classes)"

    def sample_key(self, index: int) -> str:
        """Return the path of an image, by which a cache knows it when the folder changes.

        Bytes of a name that are not UTF-8 are written as "\\xff": no label column holds them.
        """
        return os.fsencode(self.paths[index]).decode("utf-8", "backslashreplace")

    def sample_version(self, index: int) -> tuple[int, int, int]:
        """Return size and time of a file, and its label: if one of them changes, the image is cached anew."""
        return *self._state(self.paths[index]), self._labels[index]

    def sample_versions(self) -> list[tuple[int, int, int]]:
        """Return the versions of all images."""
        seen, self._seen = self._seen, None
        is_fresh = seen is not None and time.monotonic() - seen[0] < _FRESH_SECONDS
        states = seen[1] if seen is not None and is_fresh else map(self._state, self.paths)
        return [(*state, label) for state, label in zip(states, self._labels, strict=True)]

    def _state(self, path: str) -> tuple[int, int]:
        """Return size and time of a file; -1 if it was deleted since."""
        with suppress(OSError):
            stat = os.stat(os.path.join(self.folder, *path.split("/")))
            return stat.st_size, stat.st_mtime_ns
        return -1, -1

    def __edcache_fingerprint__(self) -> dict[str, Any]:
        """Identify the source by its files and the decoding.

        Names, sizes and times are of each file: a source that holds this one, and gives no keys, is made of them.
        """
        states = [*map(self._state, self.paths)]
        self._seen = time.monotonic(), states
        stats = np.array(states, np.int64).reshape(-1, 2)
        turned = "exif_transpose" if self.decoding.exif_transpose else None
        decode = filter(None, (str(self.decoding.form), self.decoding.mode, turned))
        return {"names": self.paths, "sizes and times": stats, "decode": ", ".join(decode)}


def _folders(root: str) -> tuple[list[str], list[str]]:
    """List the folders of a folder, which are the classes, and the images beside them; both sorted."""
    try:
        with os.scandir(root) as entries:
            is_folder = {entry.name: entry.is_dir() for entry in entries}
    except OSError as error:
        raise OptionError(f"{root}: {error.strerror}; give a folder that has one folder a class") from error
    folders = sorted(name for name in is_folder if is_folder[name])
    if not folders:
        raise OptionError(f"{root}: no folder in it; an image folder has one for each class: root/dog/1.jpg")
    images = (name for name in is_folder if not is_folder[name] and name.lower().endswith(_EXTENSIONS))
    return folders, sorted(images)


def _files(root: str, name: str) -> Iterator[str]:
    """Yield the files of a class, in the order of torchvision's ImageFolder."""
    for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
        inside = os.path.relpath(folder, root).replace(os.sep, "/")
        yield from (f"{inside}/{file}" for file in sorted(files) if file.lower().endswith(_EXTENSIONS))
