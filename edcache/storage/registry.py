"""The registry of backends: which one has a path or a URL, decided once, by its scheme.

A backend is a subclass of `edcache.writer.Store`, which adds the samples to the bytes of a `Location`. Other
schemes are those of fsspec, to which packages add theirs.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Final, Protocol

from edcache.base import OptionError, Show, article
from edcache.storage.memory import is_in_memory
from edcache.storage.source import ByteSource

_FILES: Final = "edcache.backends.file_store:FileStore"
_OBJECTS: Final = "edcache.backends.remote.store:RemoteStore"
_MEMORY: Final = "edcache.backends.shm.memory:MemoryStore"
_BACKENDS: Final = {
    "": _FILES,
    "file": _FILES,
    "shm": _MEMORY,
}
# By the words of `local=` and `preload=`: what opens a copy in the place of the archive.
_COPIES: Final = {
    "local": "edcache.backends.mirror.read_through:open_copy",
    "shm": "edcache.backends.shm.memory:open_copy",
}
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)(?:://|::)")
# Names that pass for paths: os.path and pathlib take away a slash or two.
_LIKE_PATHS: Final = re.compile(r"(shm):(?:/|\Z)")
# pathlib.Path("s3://bucket/a.zip"), which would be a folder "s3:".
_LOST_SLASH: Final = re.compile(r"(s3|gs|gcs|az|abfs|hf|https?|file|memory):/(?!/)")


class Spool(Protocol):
    """A file of this machine that is written in the place of what cannot be: `path`."""

    path: str

    def begin(self, mode: str) -> None:
        """Prepare the file for a writer with this mode: "x", "a" or "w", as of `CacheWriter`."""

    def finish(self, show: Show = None, is_done: Callable[[], bool] = lambda: False) -> None:
        """Bring what was written, and sealed, to where it belongs.

        is_done: whether what is there now, put there by another, is what was to be made.
        """


class Location(ABC):
    """Where one archive is or will be, as a backend has it; nothing of it is open.

    A subclass takes (text, storage_options): the path or URL as it was given, and a mapping or None.

    path: as messages name it, without credentials. by_request: whether reading it is asking another machine,
    which may answer wrongly once. has_query: whether `path` lacks what may tell it from another one.

    Safety: pickles, without credentials unless multiprocessing is just starting a child.
    """

    path: str
    by_request: ClassVar[bool] = False
    has_query: bool = False

    @abstractmethod
    def __init__(self, text: str, storage_options: Mapping[str, Any] | None = None) -> None: ...

    @abstractmethod
    def open(self) -> ByteSource:
        """Open what is there for reading.

        Raises:
            ArchiveNotFoundError, StorageError, MissingDependencyError, OptionError.
        """

    def local_path(self) -> str:
        """The path of it on this machine; OptionError where it has none."""
        raise OptionError(
            f"{self.path}: this takes a path; copy the archive from its URL to a disk with edcache copy, or "
            "write a new archive to a disk first"
        )

    def spool(self) -> Spool | None:
        """The local file that is written first, to be uploaded; None if the archive itself is written.

        OptionError where nothing can be written there.
        """
        return None


def scheme_of(path: str) -> str:
    """What a URL begins with, in lower case; "" for a path."""
    matched = _URL.match(path) or _LIKE_PATHS.match(path)
    return matched[1].lower() if matched else ""


@cache
def loaded(home: str) -> Any:
    """Return what has a name in a module, "package.module:name": a way up to a room that stands above."""
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


def path_text(path: object) -> str:
    """Return the text of a path or a URL. Raises: OptionError, it is something else, or a URL without a slash."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise OptionError(
            f'{article(path)} stands where a path is to stand; give that of an archive, as "train.zip"'
        )
    text = os.fsdecode(path)
    if lost := _LOST_SLASH.match(text):  # the rest may have credentials
        raise OptionError(
            f'"{lost[0]}..." stands where "{lost[0]}/..." is to stand; a pathlib.Path takes a slash away, so give a '
            "URL as text; begin the name of such a folder with ./"
        )
    return text


def located(path: Any, storage_options: Mapping[str, Any] | None = None) -> Location:
    """Where an archive is, and will be whichever folder this process works in then; nothing is opened.

    Args:
        path: of a file, or a URL: http, https, s3, gs, hf, whatever fsspec knows; "file://" is a path. A Location is
            returned as it is.
        storage_options: for the engine that reads a URL; OptionError where they are no dict or for a path.
    """
    if isinstance(path, Location):
        return path
    given: object = storage_options
    if given is not None and not isinstance(given, Mapping):
        kind = type(given).__name__
        raise OptionError(f"storage_options of type {kind}; give a dict", option="storage_options")
    text = path_text(path)
    scheme = "shm" if is_in_memory(text) else scheme_of(text)
    where: Location = loaded(_BACKENDS.get(scheme, _OBJECTS))(text, storage_options)
    return where


def shown(path: str | os.PathLike[str]) -> str:
    """A path or URL as messages name it, without credentials."""
    text = path if isinstance(path, str) else os.fsdecode(path)
    return located(text).path if scheme_of(text) else text


def open_copy(kind: str, where: Location, token: Any, **options: Any) -> ByteSource:
    """Open a copy of an archive, made where there is none.

    Args:
        kind: "local" or "shm". token: of the copy that another process has open, or None.
        options: `folder` and `max_bytes` of a local one.
    """
    source: ByteSource = loaded(_COPIES[kind])(where, token, **options)
    return source
