"""A path or a URL, and what lies there, opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from edcache.durable import File, absolute
from edcache.errors import OptionError
from edcache.places.place import Place
from edcache.places.remote import RemotePlace
from edcache.places.url import Url, is_url
from edcache.servers import is_server, refuse, served

Where = str | Url
"""A path of this machine, or a URL with its options."""


def located(path: Where | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Where:
    """Where an archive is, as `open_place` takes it, and will be whichever folder this process works in then.

    Nothing is opened.

    Args:
        path: of a file, or a URL: http, https, s3, gs, hf, whatever fsspec knows; "file://" is a path. That
            of a Redis server is returned as a `Server`.
        storage_options: for the engine that reads a URL.
    Raises:
        OptionError: 'train.zip: storage_options are for URLs, and this is a path', or no dict.
        StorageError: a relative path, and the folder that the process works in is gone.
    """
    where = _parsed(path, storage_options)
    return where if isinstance(where, Url) or is_server(where) else absolute(where)


def _parsed(path: Where | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Where:
    if isinstance(path, Url):
        return path
    name = served(path if isinstance(path, str) else os.fsdecode(path))
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise OptionError(f"storage_options of type {type(storage_options).__name__}; give a dict")
    if not is_url(name):
        if storage_options:
            what = "a URL of a Redis server, which says all options itself" if is_server(name) else "a path"
            raise OptionError(f"{name}: storage_options are for URLs, and this is {what}")
        return name
    if name.lower().startswith("file://"):
        return os.fspath(unquote(urlsplit(name).path))
    try:
        urlsplit(name)
    except ValueError as error:  # not shown: it may have credentials
        raise OptionError(f"a {name.partition(':')[0]} URL that does not read: {error}") from None
    return Url(name, storage_options)


def shown(path: Where | os.PathLike[str]) -> str:
    """A path or URL as messages name it, without credentials."""
    where = _parsed(path)
    return where if isinstance(where, str) else where.shown


def local_path(path: Where | os.PathLike[str]) -> str:
    """A path of this machine.

    Raises:
        OptionError: "s3://bucket/train.zip: this takes a path; edcache copy brings what is behind a URL ...".
    """
    where = located(path)
    refuse(where)
    if not isinstance(where, str):
        raise OptionError(
            f"{where.shown}: this takes a path; edcache copy brings what is behind a URL to a disk, and "
            "what is to be there is written to a disk first"
        )
    return where


def open_place(where: Where) -> Place:
    """Open what is there for reading.

    Raises:
        ArchiveNotFoundError, StorageError, MissingDependencyError, OptionError.
    """
    return File.open(where, "r") if isinstance(where, str) else RemotePlace(where)
