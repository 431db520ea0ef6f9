"""view: a local page to look at archives in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from edcache import dataset, display
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

    A PATH is an archive, a URL, a folder with archives, or a glob in quotes. The page is served to this
    machine alone, until Ctrl-C. The URL has a token; whoever has it can see the samples.

    \b
    Example:
      edcache view train.zip --where "label == 3"
    """
    several = dataset.expand_paths(paths[0] if len(paths) == 1 else paths)
    archives = list(map(_archive, several or paths))
    if where or several is None:
        archives[0].rows(where or "")  # so that the command says what is wrong with it
    display.view(archives, port=port, open_browser=not no_browser, where=where or "")


def _archive(path: str) -> display.Shown:
    return display.Shown(
        name=shown(path),
        labels=lambda: open_archive(path)[1],
        dataset=partial(_opened, path),
        code=f"ds = edcache.CachedDataset.from_cache({shown(path)!r})",
        archives=dataset.readers_of,
    )


def _opened(path: str) -> Any:
    # Pictures stay files here, and are decoded within limits where they are shown.
    return dataset.CachedDataset(None, path, allow_partial=True, decode=None)
