"""How a command fails: an error as one line, with the paths that a person would type, and an exit code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from edcache.base import EdcacheError, path_suggestion
from edcache.cli.text import one_line

FAILED: Final = 1


@contextmanager
def errors_in_one_line(code: int) -> Iterator[None]:
    """Let an error end the command with a line and an exit code."""
    try:
        yield
    except BrokenPipeError:
        raise  # click ends quietly when nobody reads on
    except (EdcacheError, OSError) as error:
        if os.environ.get("EDCACHE_DEBUG", "0") not in ("", "0"):
            raise
        click.echo(f"edcache: {error_line(error)}", err=True)
        click.get_current_context().exit(code)


def as_typed(text: str) -> str:
    """A text with the paths below the working folder as a person types them, from there on."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # it was deleted
        return text
    return text if here == os.sep else re.sub(rf"(?<![^\s\"'(]){re.escape(here)}", "", text)


def error_line(error: Exception) -> str:
    """What an error says, in one line, with what may help."""
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, EdcacheError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    text = as_typed(text)
    path, _, reason = text.partition(": ")
    if "no such" in reason.lower():
        text += path_suggestion(path)
    elif "not a regular file" in reason and os.path.isdir(path):
        text += f"; edcache caches {path} lists the archives in this folder"
    return one_line(text)
