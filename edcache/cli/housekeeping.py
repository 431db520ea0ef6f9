"""caches, why, rm and prune: which archives there are, of which call one is, and which may go."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import click

from edcache import dataset, display, storage, tools, writer
from edcache.base import human_bytes
from edcache.cli import output as out
from edcache.cli.call import Call
from edcache.cli.flags import FOLDER, PATH, PATHS, duration, flags, size
from edcache.storage import shown

_MEMORY = "shm://"


@click.command()
@click.argument("directory", metavar="[DIR]", required=False, type=FOLDER)
@flags("as_json")
def caches(directory: str | None, as_json: bool) -> None:
    """List the archives in a folder, least recently used first.

    Folders in DIR are looked through too.

    Without DIR, those in $EDCACHE_DIR or ~/.cache/edcache, where @cachable puts what has no path;
    "shm://" lists those of this user in shared memory.
    Last used is when a file was last read, as far as its file system keeps the time, or written.

    \b
    Example:
      edcache caches cache --json
    """
    folder, archives = _archives(directory)
    document = {
        "directory": folder,
        "archives": [_listed_object(folder, archive) for archive in archives],
        "nbytes": sum(archive.nbytes for archive in archives if archive.problem is None),
    }
    out.print_report(as_json, document, _listing_lines(folder, archives))


def _archives(directory: str | None) -> tuple[str, list[tools.Listed]]:
    """The folder that was meant and the archives in it; the default one need not exist."""
    if directory not in (None, _MEMORY):
        return directory, tools.archives_in(directory)
    folder = str(dataset.default_directory()) if directory is None else storage.memory_folder()
    return folder, tools.archives_in(folder) if os.path.lexists(folder) else []


def _listing_lines(directory: str, archives: Sequence[tools.Listed]) -> Iterator[str]:
    """A table of the archives, those that cannot be read, the total."""
    sound = [archive for archive in archives if archive.problem is None]
    if sound:
        header = ("path", "size", "present", "length", "complete", "last used", "call")
        yield from out.table(header, (_row(directory, archive) for archive in sound), whole=1)
    yield from (out.one_line(archive.problem) for archive in archives if archive.problem is not None)
    broken = len(archives) - len(sound)
    unread = f", {broken:,} more cannot be read" if broken else ""
    yield f"{out.printable(directory)}: {_sizes_text(sound)}{unread}"


def _row(directory: str, archive: tools.Listed) -> tuple[str, ...]:
    counts = f"{archive.present:,}", f"{archive.length:,}", "yes" if archive.complete else "no"
    used = f"{datetime.datetime.fromtimestamp(archive.used):%Y-%m-%d %H:%M}"
    used += "" if archive.was_read else " (written)"
    call = display.call_text(archive.fingerprint) if archive.origin is None else f"copy of {archive.origin}"
    return os.path.relpath(archive.path, directory), human_bytes(archive.nbytes), *counts, used, call


def _sizes_text(archives: Sequence[tools.Listed]) -> str:
    """ "3 archives, 38.5 MB"."""
    return f"{out.plural(len(archives), 'archive')}, {human_bytes(sum(each.nbytes for each in archives))}"


def _listed_object(directory: str, archive: tools.Listed) -> dict[str, Any]:
    same = ("nbytes", "present", "absent", "length", "complete", "sealed", "fingerprint", "origin")
    used = datetime.datetime.fromtimestamp(archive.used, datetime.timezone.utc)
    return {name: getattr(archive, name) for name in same} | {
        "path": os.path.relpath(archive.path, directory),
        "last_used": used.isoformat(timespec="seconds"),
        "last_use": "read" if archive.was_read else "written",
        "problem": None if archive.problem is None else out.one_line(archive.problem),
    }


@click.command()
@click.argument("path", type=PATH)
@click.argument("factory", metavar="[MODULE:FACTORY]", required=False)
@flags("arguments", "version", "as_json")
def why(path: str, factory: str | None, arguments: Sequence[str], version: str | None, as_json: bool) -> None:
    """Say of which call an archive is, or how it differs from one.

    With a call, exit 1 if anything differs. The function is loaded and its arguments are read as by build;
    it is not called. Samples are not compared. A source that changed is named too, although on its own it
    only makes a call warn.

    \b
    Example:
      edcache why train.zip digits:make --arg split=train
    """
    if factory is None and (arguments or version is not None):
        raise click.UsageError("--arg and --version belong to a call; name its MODULE:FACTORY too")
    head = tools.head_of(path)
    none = None if head.fingerprint else "none: the archive was written without a dataset"
    made = display.provenance(head.fingerprint)
    lines = list(out.paired_lines([("archive", shown(path)), ("fingerprint", none), *made]))
    different: list[str] = []
    if factory is not None:
        call = Call(factory, arguments, version)
        expected = call.fingerprint()
        different += writer.differences(head.fingerprint, expected)
        different += dataset.label_differences(head, call.options.in_memory_keys)
        different += [
            f"code of {name}: changed, of which a call in Python only warns"
            for name in writer.changed_code(head.fingerprint, expected)
        ]
        text = out.printable(display.call_text(expected))
        lines += ["", f"differs from {text}:" if different else f"matches {text}"]
        lines += [f"  {out.printable(line)}" for line in different]
    document = {"path": shown(path), "fingerprint": head.fingerprint, "differences": different}
    out.print_report(as_json, document, lines)
    if different:
        sys.exit(out.FAILED)


@click.command()
@PATHS
@flags("yes", "as_json")
@click.option("--force", is_flag=True, help="Also what another process is filling.")
def rm(paths: Sequence[str], yes: bool, as_json: bool, force: bool) -> None:
    """Delete archives, and what a killed rebuild left beside them.

    All are looked at first: where one is no archive, or another process is filling it, none goes.
    Whoever has an archive open keeps reading it.

    \b
    Example:
      edcache rm old.zip cache/digits-*.zip
    """
    for path in paths:
        tools.check_deletable(path, force=force)
    doomed = dict.fromkeys(file for path in paths for file in (path, *_leftover(path)))
    _confirm(f"delete {', '.join(doomed)}?", yes)
    gone = dict(_deleted(doomed, force))
    lines = [f"{file}: deleted, {human_bytes(nbytes)}" for file, nbytes in gone.items()]
    out.print_report(as_json, {"deleted": gone}, map(out.printable, lines))
    if len(gone) < len(doomed):
        sys.exit(out.FAILED)


def _leftover(path: str) -> Iterator[str]:
    file = writer.name_for(path)
    reason = tools.why_not_now(file)
    if reason is not None:
        click.echo(out.printable(f"{reason}; it stays"), err=True)
    elif os.path.lexists(file):
        yield file


def _deleted(files: Iterable[str], force: bool = False) -> Iterator[tuple[str, int]]:
    """Delete files, but for those that somebody began to fill since; yields each and the bytes it had."""
    for file in files:
        reason = None if force else tools.why_not_now(file)
        if reason is None:
            yield file, tools.delete(file)
        else:
            click.echo(out.printable(f"{reason}; it stays"), err=True)


def _confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; end the command where the answer is no."""
    if yes or not sys.stdin.isatty():
        return
    try:
        agreed = click.confirm(out.printable(question), err=True)
    except click.Abort:
        click.echo(err=True)
        raise KeyboardInterrupt("interrupted; nothing was deleted") from None
    if not agreed:
        out.fail("nothing was deleted", out.FAILED)


@click.command()
@click.argument("directory", metavar="[DIR]", required=False, type=FOLDER)
@click.option("--older-than", metavar="DURATION", callback=duration, help="Unused so long: 12h, 30d, 8w.")
@click.option("--max-size", "max_nbytes", metavar="SIZE", callback=size, help="What may stay: 500MB, 1TiB.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@flags("yes", "as_json")
def prune(directory: str | None, dry_run: bool, yes: bool, as_json: bool, **conditions: int | None) -> None:
    """Delete the least recently used archives.

    They go, in DIR and below it, until both conditions hold. Without DIR, of those that caches lists. What
    processes left that were killed while they wrote it goes in any case, in shared memory too; without a
    condition, nothing else.
    Files that are no archives, archives that cannot be read and what another process is writing are left as
    they are.

    \b
    Example:
      edcache prune cache --older-than 30d --max-size 200GB --dry-run
    """
    folder, archives = _archives(directory)
    plan = tools.plan_pruning(archives, **conditions)
    if plan.doomed and not as_json:
        rows = (itemgetter(0, 1, 5)(_row(folder, archive)) for archive in plan.doomed)
        out.print_lines(out.table(("path", "size", "last used"), rows, whole=1))
    for reason in plan.busy:
        click.echo(out.printable(f"{reason}; it stays"), err=True)
    if plan.doomed and not dry_run:
        _confirm(f"delete {_sizes_text(plan.doomed)}?", yes)
    gone = {} if dry_run else dict(_deleted(archive.path for archive in plan.doomed))
    gone |= {} if dry_run else storage.free_unheld_memory()
    stay = [archive for archive in (*plan.kept, *plan.doomed) if archive.path not in gone]
    line = f"{out.plural(len(gone), 'archive')} deleted, {human_bytes(sum(gone.values()))} freed"
    line = f"{line}; {_sizes_text(stay)} stay"
    if dry_run:
        line = f"{_sizes_text(plan.doomed)} to delete; {_sizes_text(plan.kept)} to stay"
    to_delete = {archive.path: archive.nbytes for archive in plan.doomed if archive.path not in gone}
    document = {"directory": folder, "deleted": gone, "to_delete": to_delete if dry_run else {}}
    kept = [archive.path for archive in (plan.kept if dry_run else stay)]
    out.print_report(as_json, document | {"kept": kept}, [line])
