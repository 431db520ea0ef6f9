"""caches and why: the archives in a folder, those that are too old or too large together, whose they are."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from edcache import dataset, display, storage, tools, writer
from edcache.base import StorageError, human_bytes
from edcache.cli import output as out
from edcache.cli.call import Call
from edcache.cli.flags import PATH, flags, row_flags, size
from edcache.storage import shown

_MEMORY = "shm://"
_DAY = 86_400


@click.command()
@click.argument("directory", metavar="[FOLDER]", required=False, type=PATH)
@click.option("--older-than", metavar="DAYS", type=click.FloatRange(0), help="Only those that are older.")
@click.option("--max-size", metavar="SIZE", callback=size, help="Only those that are too much: 500MB, 1TiB.")
@click.option("--prune", is_flag=True, help="Delete those, and what killed processes left.")
@row_flags
def caches(
    directory: str | None, older_than: float | None, max_size: int | None, prune: bool, **listing: Any
) -> None:
    """List the archives in a folder, the oldest first; --prune deletes.

    Folders in FOLDER are looked through too. Without FOLDER, those in $EDCACHE_DIR or ~/.cache/edcache, where
    @cachable puts archives without a path; "shm://" lists those of this user in shared memory. The age of an
    archive is the time since it was last written; that of a local copy of a URL, since it was last read.

    --older-than and --max-size choose the oldest, so many that both hold for the others. --prune deletes
    the chosen archives, and with no condition none. It deletes in any case what killed processes left in
    FOLDER and in shared memory. What a process writes, damaged archives and other files stay.

    \b
    Example:
      edcache caches cache --older-than 30 --max-size 200GB
      edcache caches cache --older-than 30 --max-size 200GB --prune
    """
    freed = storage.free_unheld_memory() if prune else {}
    folder, archives = _archives(directory)
    chosen = tools.select(archives, None if older_than is None else older_than * _DAY, max_size)
    is_table = listing["form"] is None
    size_of = human_bytes if is_table else int
    if prune:
        freed |= _delete([*(archive for archive in archives if archive.is_left), *chosen])
        header: tuple[str, ...] = ("deleted", "size")
        rows: list[tuple[Any, ...]] = [(path, size_of(nbytes)) for path, nbytes in freed.items()]
        what, total = f"{len(freed):,} deleted", sum(freed.values())
    else:
        listed = archives if older_than is None and max_size is None else chosen
        header = ("path", "size", "present", "length", "complete", "written", "about")
        rows = [_row(folder, archive, size_of(archive.nbytes)) for archive in listed]
        what, total = out.plural(len(listed), "archive"), sum(archive.nbytes for archive in listed)
    out.print_rows(header, rows, len(rows), **listing)
    if is_table:
        out.print_lines([f"{out.printable(folder)}: {what}, {human_bytes(total)}"])


def _delete(archives: Sequence[tools.Listed]) -> dict[str, int]:
    """Delete archives that no process writes, and say why others stay; gives what each had in bytes."""
    gone: dict[str, int] = {}
    for archive in archives:
        try:
            reason = tools.delete_unused(archive.path)
        except StorageError as error:
            reason = str(error)
        if reason is None:
            gone[archive.path] = archive.nbytes
        else:
            click.echo(out.printable(f"{reason}; it stays"), err=True)
    return gone


def _archives(directory: str | None) -> tuple[str, list[tools.Listed]]:
    """The folder and the archives in it; the default folder need not exist."""
    if directory not in (None, _MEMORY):
        return directory, tools.archives_in(directory)
    folder = str(dataset.default_directory()) if directory is None else storage.memory_folder()
    return folder, tools.archives_in(folder) if os.path.lexists(folder) else []


def _row(folder: str, archive: tools.Listed, nbytes: Any) -> tuple[Any, ...]:
    """An archive as cells; the last is why it cannot be read, what it is a copy of, or its call."""
    written = datetime.datetime.fromtimestamp(archive.written).isoformat(" ", "minutes")
    about = display.call_text(archive.fingerprint) if archive.origin is None else f"copy of {archive.origin}"
    if archive.problem is not None:
        about = out.one_line(archive.problem.removeprefix(f"{archive.path}: "))
    counts = archive.present, archive.length, archive.complete
    return os.path.relpath(archive.path, folder), nbytes, *counts, written, about


@click.command()
@click.argument("path", type=PATH)
@click.argument("factory", metavar="MODULE:FACTORY")
@flags("arguments", "version", "as_json")
def why(path: str, factory: str, arguments: Sequence[str], version: str | None, as_json: bool) -> None:
    """Say how the call that made an archive differs from another; exit 1 if anything does.

    The function is loaded and its arguments are read as by build; it is not called. Samples are not
    compared. A source that changed is named too, although on its own it only makes a call warn.

    \b
    Example:
      edcache why train.zip digits:make --arg split=train
    """
    call, head = Call(factory, arguments, version), tools.head_of(path)
    expected = call.fingerprint()
    changed = writer.changed_code(head.fingerprint, expected)
    different = [
        *writer.differences(head.fingerprint, expected),
        *dataset.label_differences(head, call.options.in_memory_keys),
        *(f"code of {name}: changed, of which a call in Python only warns" for name in changed),
    ]
    verdict = f"{shown(path)} {'differs from' if different else 'matches'} {display.call_text(expected)}"
    lines = map(out.printable, [verdict, *(f"  {line}" for line in different)])
    out.print_report(as_json, {"path": shown(path), "differences": different}, lines)
    if different:
        sys.exit(out.FAILED)
