"""Paths of archives from a list, a glob or a folder; nothing is opened."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from typing import TypeAlias

from edcache import writer
from edcache.base import ArchiveNotFoundError, OptionError, StorageError
from edcache.storage import absolute, home_expanded, path_text, scheme_of

StrPath: TypeAlias = "str | os.PathLike[str]"

_SUFFIX = ".zip"


def expand_paths(paths: StrPath | Iterable[StrPath]) -> list[str] | None:
    """List the archives of a list, a glob or a folder; None for the path of one file.

    Args:
        paths: a glob, "part-*.zip", with "**" through folders: all matching files, sorted, but no temporary ones. A
            folder: all files in it and below it that end in ".zip", sorted; links to folders are not followed. A list
            of files, globs and folders: in its order. Paths are sorted part by part, numbers by their values: part-2
            before part-10. A file whose name looks like a glob is that file.
    Raises:
        ArchiveNotFoundError: 'cache/part-*.zip: no file fits'; 'cache: no .zip file in this folder'.
        OptionError: an empty list; a file that is named twice.
    """
    if isinstance(paths, str | bytes | os.PathLike):
        return _expand(path_text(paths))
    names = map(path_text, paths if isinstance(paths, Iterable) else [paths])
    archives = [path for name in names for path in _expand(name) or [name]]
    if not archives:
        raise OptionError("an empty list names no archive; give the path of one at least")
    seen: set[str] = set()
    for path in archives:
        real = "" if scheme_of(path) else os.path.realpath(absolute(path))
        if real in seen:
            raise OptionError(f"{path}: named twice; edcache.concat() takes a dataset more than once")
        seen |= {real} - {""}
    return archives


def natural_key(path: str) -> tuple[list[list[object]], str]:
    """Return a key that sorts paths part by part, and numbers in them by their values."""
    return [
        [int(text) if place % 2 else text for place, text in enumerate(re.split("([0-9]+)", part))]
        for part in path.split("/")
    ], path


def _expand(name: str) -> list[str] | None:
    """List the files of a glob or a folder; None for anything else."""
    if scheme_of(name):
        return None
    name = home_expanded(name)
    if os.path.isdir(name):

        def refuse(error: OSError) -> None:
            raise StorageError(f"{error.filename}: listing the folder: {error.strerror}") from error

        walked = os.walk(name, onerror=refuse)
        files = (os.path.join(folder, file) for folder, _, names in walked for file in names)
        fitting = (path for path in files if path.endswith(_SUFFIX))
        nothing = (
            f"no {_SUFFIX} file in this folder, nor below it; archives with other names are given by a glob "
            "or a list"
        )
    elif os.path.lexists(name) or not glob.has_magic(name):
        return None
    else:
        fitting = (path for path in glob.iglob(name, recursive=True) if not writer.is_temporary(path))
        nothing = "no file fits this glob; is its folder right?"
    archives = sorted((path for path in fitting if not os.path.isdir(path)), key=natural_key)
    if not archives:
        raise ArchiveNotFoundError(f"{name}: {nothing}")
    return archives
