"""What somebody may have meant by a name that is not there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches


def suggestion(name: str, names: Iterable[str]) -> str:
    """ "; did you mean label?", where one of the names is nearly this one; else empty."""
    near = get_close_matches(name, list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def path_suggestion(path: str) -> str:
    """The same for the path of a file or folder, of which several parts may be misspelt."""
    near = "" if "://" in path else _near_path(path)
    return f"; did you mean {near}?" if near else ""


def _near_path(path: str) -> str:
    """What is there and nearly has this path; empty where nothing does."""
    if os.path.exists(path):
        return path
    folder, name = os.path.split(path)
    if not name:
        return _near_path(folder) if folder not in ("", path) else ""
    folder = folder and _near_path(folder)
    near: list[str] = []
    with suppress(OSError):
        near = get_close_matches(name, os.listdir(folder or "."), 1)
    return os.path.join(folder, near[0]) if near else ""
