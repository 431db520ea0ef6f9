"""view: a local page to look at archives in a browser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from edcache import dataset, display, tools
from edcache.cli.contents import open_archive
from edcache.cli.flags import PATHS, flags
from edcache.storage import shown


@click.command()
@PATHS
@flags("where")
@click.option("--port", type=click.IntRange(1, 65535), help="Where to listen; a free port by default.")
@click.option("--no-browser", is_flag=True, help="Print the URL alone.")
def view(paths: Sequence[str], where: str | None, port: int | None, no_browser: bool) -> None:
    """Look at archives in a browser: labels, samples, gaps.

    A path is an archive, a URL, or a folder, whose archives are listed. The page is served to this
    machine alone, until Ctrl-C. The URL has a token; whoever has it can see the samples.

    \b
    Example:
      edcache view train.zip --where "label == 3"
    """
    archives = [one for path in paths for one in _archives(path, is_one=len(paths) == 1)]
    if where or not os.path.isdir(paths[0]):
        archives[0].rows(where or "")  # so that the command says what is wrong with it
    display.view(archives, port=port, open_browser=not no_browser, where=where or "")


def _archives(path: str, is_one: bool) -> list[display.Shown]:
    """What a path names: an archive, or those of a folder."""
    if not os.path.isdir(path):
        return [_archive(path, os.path.basename(shown(path)) if is_one else shown(path))]
    found = sorted(archive.path for archive in tools.archives_in(path))
    if not found:
        raise click.UsageError(f"{path}: no archive in this folder")
    return [_archive(one, os.path.relpath(one, path) if is_one else one) for one in found]


def _archive(path: str, name: str) -> display.Shown:
    return display.Shown(
        name,
        shown(path),
        labels=lambda: open_archive(path)[1],
        dataset=partial(_opened, path),
        code=f"ds = edcache.CachedDataset.from_cache({shown(path)!r})",
        archives=dataset.readers_of,
    )


def _opened(path: str) -> Any:
    # Pictures stay files here, and are decoded within limits where they are shown.
    return dataset.CachedDataset(None, path, allow_partial=True, decode=None)
