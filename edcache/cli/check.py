"""verify: whether every byte of an archive is what was written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from edcache.cli.group import FAILED, json_option, main, print_json, print_lines, progress_option
from edcache.present import report_lines


@main.command()
@click.argument("path")
@json_option
@progress_option
def verify(path: str, as_json: bool, progress: bool | None) -> None:
    """Check every byte of an archive; exit 1 where something is wrong.

    An archive that is not sealed can be sound: its last writer is at work or was killed, and
    building again goes on from there.

    \b
    Example:
      edcache verify train.zip
    """
    from edcache import maintain

    with _bar(path, progress) as on_progress:
        report = maintain.verify(path, on_progress)
    if as_json:
        names = ("sound", "sealed", "samples", "missing", "chunks", "nbytes", "problems")
        print_json({"path": path} | {name: getattr(report, name) for name in names})
    else:
        print_lines(report_lines(path, report))
    if not report.sound:
        sys.exit(FAILED)


@contextmanager
def _bar(path: str, progress: bool | None) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr over the bytes of a file, fed with (bytes done, bytes in all)."""
    said = os.environ.get("EDCACHE_PROGRESS")
    if progress is None:
        progress = said != "0" if said is not None else sys.stderr.isatty()
    if not progress:
        yield None
        return
    with click.progressbar(length=1, label=f"verifying {os.path.basename(path)}", file=sys.stderr) as bar:

        def move(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield move
