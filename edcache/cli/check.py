"""verify, repair and compact: whether an archive is what was written, what can be saved, what can go."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from edcache.cli.group import (
    FAILED,
    PATH,
    bar,
    error_line,
    json_option,
    main,
    partial_option,
    print_json,
    print_lines,
    progress_option,
)
from edcache.errors import EdcacheError
from edcache.present import (
    compact_lines,
    repair_lines,
    repair_object,
    report_lines,
    report_object,
)

REFUSED: Final = 2


@main.command()
@click.argument("path", type=PATH)
@click.option(
    "--quick", is_flag=True, help="Leave the samples' records unread, check all that leads to them."
)
@click.option("--expect", metavar="DIGEST", help="The SHA-256 that the file must have; compared first.")
@json_option
@progress_option
def verify(path: str, quick: bool, expect: str | None, as_json: bool, progress: bool | None) -> None:
    """Check every byte of an archive; exit 1 where something is wrong.

    Each problem is one line: path, offset, what is wrong, what helps. An archive that is not sealed is not
    whole, unless a process writes it still; building again goes on from there. Dead bytes are no problem;
    compact leaves them out.

    \b
    Exit codes:
      0    sound
      1    damaged, not whole, not the file that --expect names, or not readable

    \b
    Example:
      edcache verify train.zip --quick
    """
    from edcache import maintain
    from edcache.durable import shown

    with bar("verifying", path, progress) as on_progress:
        report = maintain.verify(path, on_progress, quick=quick, expected_digest=expect)
    place = shown(path)
    if as_json:
        print_json(report_object(place, report))
    else:
        print_lines(report_lines(place, report))
    if not report.sound:
        sys.exit(FAILED)


@main.command()
@click.argument("path", metavar="DAMAGED", type=PATH)
@click.option("-o", "target", metavar="NEW", required=True, type=PATH, help="Where the new archive goes.")
@json_option
@progress_option
def repair(path: str, target: str, as_json: bool, progress: bool | None) -> None:
    """Write a new archive of every sample of a damaged one that proves good.

    A sample whose newest record is damaged is lost; an older record is never taken for it. The damaged
    archive is only read, and stays as it is. The new one is sealed; building it again from its dataset
    computes the samples that are lost, and nothing else.

    \b
    Exit codes:
      0    every sample was kept
      1    samples or labels are lost, or may be; NEW has the others
      2    there is no NEW: wrong usage, nothing readable in DAMAGED, or NEW cannot be written

    \b
    Example:
      edcache repair train.zip -o mended.zip
    """
    from edcache import maintain

    with _refused_with(REFUSED), bar("repairing", path, progress) as on_progress:
        report = maintain.repair(path, target, on_progress)
    if as_json:
        print_json(repair_object(path, target, report))
    else:
        print_lines(repair_lines(path, target, report))
    if not report.is_whole:
        sys.exit(FAILED)


@main.command()
@click.argument("path", type=PATH)
@click.option(
    *("-o", "target"),
    metavar="OUT",
    type=PATH,
    help="Where the compact archive goes, by default in PATH's place.",
)
@partial_option
@json_option
@progress_option
def compact(path: str, target: str | None, allow_partial: bool, as_json: bool, progress: bool | None) -> None:
    """Rewrite an archive without its dead bytes, in index order, and seal it.

    Dead are old seals, outdated records and torn tails. Records are copied as they are stored and checked
    on the way. In place, PATH is the old archive until the new one is complete and on the disk; who reads
    the old one keeps it. It needs the room of the new archive beside the old one.

    \b
    Example:
      edcache compact train.zip
    """
    from edcache import maintain

    with bar("compacting", path, progress) as on_progress:
        report = maintain.compact(path, target, on_progress, allow_partial=allow_partial)
    if as_json:
        print_json(report.__dict__)
    else:
        print_lines(compact_lines(report))


@contextmanager
def _refused_with(code: int) -> Iterator[None]:
    """Let errors end the command with an exit code of their own."""
    try:
        yield
    except EdcacheError as error:
        if os.environ.get("EDCACHE_DEBUG", "0") not in ("", "0"):
            raise
        click.echo(f"edcache: {error_line(error)}", err=True)
        sys.exit(code)
