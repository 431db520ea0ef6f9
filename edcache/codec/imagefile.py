"""ImageFile: an image as the bytes of its file."""

from __future__ import annotations

import copy
import dataclasses
import operator
import os
from collections import OrderedDict
from typing import Any, Final

from edcache.base import ImageError, OptionError
from edcache.codec.imaging import Decoding, decoded, format_of, image_size
from edcache.codec.registry import dataclass_fields, is_namedtuple

Decode = Any  # "pil", "numpy", "tensor", None or a Decoding

STORED: Final = "stored"
"""As a `decode=` argument: what the writer chose."""


class ImageFile:
    """An image as the bytes of its file: a leaf that is stored exactly, and decoded when it is read.

    Args:
        source: the path of a file, which is read when the sample is encoded, or its bytes.
        decode: what a reader gets unless it chooses for itself: "pil", "numpy" (uint8 [H, W] or [H, W, C]),
            "tensor" (uint8 [C, H, W]), None for an ImageFile, or an `edcache.Decoding`, whose `library` is
            not stored.
    Attributes:
        path: as it was given; None for bytes, and for one that was read from an archive.
        decoding: the Decoding that `decode` means.
    Raises:
        OptionError: another `decode`.

    JPEG, PNG, WebP, GIF, BMP and TIFF are decoded. A file that begins like none of them is refused when the
    sample is encoded; bytes are stored whatever they are. Two are equal if their bytes and decodings are.

    >>> {"image": edcache.ImageFile("cat.jpg", decode="tensor"), "label": 3}
    """

    __slots__ = ("_data", "decoding", "path")

    def __init__(self, source: str | os.PathLike[str] | bytes, decode: Decode = "pil") -> None:
        self.path: str | None = None
        self._data: bytes | None = None
        if isinstance(source, (bytes, bytearray, memoryview)):
            self._data = bytes(source)
        elif isinstance(source, (str, os.PathLike)):
            self.path = os.fspath(source)
        else:
            raise OptionError(f"ImageFile of a {type(source).__name__}; give a path, or the bytes of a file")
        self.decoding = Decoding.of(decode)

    def __repr__(self) -> str:
        source = repr(self.path) if self._data is None else f"{len(self._data):,} bytes"
        return f"ImageFile({source}, decode={self.decoding.form!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ImageFile):
            return NotImplemented
        return self.decoding == other.decoding and self.data == other.data

    __hash__ = None  # type: ignore[assignment]

    @property
    def data(self) -> bytes:
        """The bytes of the file; of a path, they are read anew each time.

        Raises: OSError.
        """
        if self._data is not None:
            return self._data
        assert self.path is not None
        with open(self.path, "rb") as file:
            return file.read()

    @property
    def format(self) -> str | None:
        """ "JPEG", "PNG", "WEBP", "GIF", "BMP" or "TIFF" by its first bytes; None for any other file."""
        return format_of(self.data)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, as the file has them; no pixel is decoded. Raises: ImageError, as `decode`."""
        return image_size(self.data)

    def decode(self, decode: Decode = "pil") -> Any:
        """The picture: see `edcache.Decoding`; the caller owns it.

        Raises:
            ImageError: "JPEG does not decode: image file is truncated (5 bytes not processed); ...".
            MissingDependencyError: there is no Pillow.
        """
        decoding = Decoding.of(decode)
        return self if decoding.form is None else decoded(self.data, decoding)


def file_bytes(image: ImageFile) -> bytes:
    """The bytes of an image file.

    Raises:
        ImageError: "image file 'a.jpg' (No such file or directory); mend it or leave it out".
    """
    try:
        return image.data
    except OSError as error:
        reason = error.strerror or str(error)
        raise ImageError(f"image file {image.path!r} ({reason}); mend it or leave it out") from error


def revived(data: Any, decoding: Decoding) -> Any:
    """What a reader gets of the bytes of an image file."""
    return ImageFile(bytes(data), decoding) if decoding.form is None else decoded(data, decoding)


def read_through(sample: Any, decoding: Decoding | None) -> Any:
    """A sample that was not stored, as it would be read: with its image files decoded.

    Args:
        decoding: the reader's choice; None for the writer's.
    """
    if isinstance(sample, ImageFile):
        return revived(file_bytes(sample), decoding or sample.decoding)
    names: tuple[str, ...] = ()
    if type(sample) in (dict, OrderedDict):
        values = list(sample.values())
    elif type(sample) in (list, tuple) or is_namedtuple(sample):
        values = list(sample)
    elif dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        names = dataclass_fields(type(sample))
        values = [getattr(sample, name) for name in names]
    else:
        return sample
    read = [read_through(value, decoding) for value in values]
    if all(map(operator.is_, read, values)):
        return sample
    if isinstance(sample, dict):
        return type(sample)(zip(sample, read, strict=True))
    if isinstance(sample, tuple):
        return tuple.__new__(type(sample), read)
    if isinstance(sample, list):
        return read
    made = copy.copy(sample)
    for name, value in zip(names, read, strict=True):
        object.__setattr__(made, name, value)
    return made
