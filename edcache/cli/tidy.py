"""verify, digest, copy, caches: check, copy and delete archives."""

from __future__ import annotations

import datetime
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import click

from edcache import dataset, display, storage, tools
from edcache.backends import mirror
from edcache.base import PartialArchiveWarning, StorageError, human_bytes
from edcache.cli import output as out
from edcache.cli.build import Call
from edcache.cli.flags import PATH, PATHS, flags, output, row_flags, size
from edcache.storage import shown

_MEMORY = "shm://"
_DAY = 86_400


@click.command()
@PATHS
@click.option("--quick", is_flag=True, help="Leave the records of samples unread; check the rest.")
@click.option("--against", metavar="MODULE:FACTORY", help="Compute samples again, and compare them.")
@click.option(
    "--samples", default=8, metavar="N", type=click.IntRange(1), help="Samples to compare; 8 by default."
)
@flags("arguments", "as_json", "progress")
def verify(
    paths: Sequence[str],
    quick: bool,
    against: str | None,
    samples: int,
    arguments: Sequence[str],
    as_json: bool,
    progress: bool | None,
) -> None:
    """Check every byte of archives; exit 1 if one is not sound.

    A PATH is an archive, a folder with archives, or a glob in quotes. Each problem is one line: path, offset, problem,
    remedy. An archive that is not sealed is not whole, unless a process still writes it; building again resumes it.
    With --against the dataset that a function makes, with the --arg values, is compared with some samples.

    \b
    Exit codes:
      0    sound, all of them
      1    damaged, not whole, not readable, or samples are other ones now

    \b
    Example:
      edcache verify train.zip --against digits:make --arg split=train
    """
    source = None if against is None else Call(against, arguments, None).make()

    def report(path: str) -> out.Printout:
        with out.bar("verifying", path, progress) as on_progress:
            verified = tools.verify(path, on_progress, quick=quick)
        document = {"path": shown(path), "sound": verified.sound} | vars(verified)
        lines = [*_verify_lines(shown(path), verified)]
        if source is None or not verified.sound:
            return document, lines, verified.sound
        with dataset.CachedDataset.from_cache(path) as ds:
            others = ds.spot_check(source, samples)
            count = min(samples, len(ds))
        document |= {"compared": count, "others": {str(index): str(other) for index, other in others.items()}}
        lines += [
            out.printable(f"sample {index} is another one now: {other}") for index, other in others.items()
        ]
        verdict = f"{len(others):,} of {count:,} are other ones now" if others else f"{count:,} are the same"
        return document, [*lines, f"{out.plural(count, 'sample')} computed again: {verdict}"], not others

    out.print_reports(paths, as_json, report)


def _verify_lines(path: str, report: tools.Report) -> Iterator[str]:
    """Yield the problems, then the result."""
    yield from map(out.printable, report.problems)
    state = "sealed" if report.sealed else "being written" if report.has_writer else "not sealed"
    missing = f", {report.missing:,} missing" if report.missing else ""
    broken = out.plural(len(report.problems), "problem") if report.problems else "not whole"
    unread = "; records were not read" if report.quick else ""
    verdict = "OK" if report.sound else broken
    yield (
        f"{out.printable(path)}: {verdict}: {out.plural(report.samples, 'sample')}{missing} "
        f"in {out.plural(report.chunks, 'chunk')}, {human_bytes(report.nbytes)}, {state}{unread}"
    )
    if report.is_partial:
        keep = out.printable(f'"edcache copy {path} -o NEW --skip-damaged"')
        yield (
            "its writer was killed, it was cut, or a KeyedCache added values since its seal; fill it, or keep what is "
            f"there: {keep}"
        )
    if report.failures:
        yield f"{out.plural(report.failures, 'sample')} failed when tried; they are among the missing"


@click.command()
@click.argument("path", type=PATH)
@click.option("--samples", is_flag=True, help="Hash the samples in place of the file.")
@flags("as_json", "progress")
def digest(path: str, samples: bool, as_json: bool, progress: bool | None) -> None:
    """Print the SHA-256 of a sealed archive, as sha256sum does.

    Publish it with the archive. A reader compares it by copy --digest, or by expected_digest= in Python. Two archives
    with one digest are equal. With --samples two archives of equal samples have one.

    \b
    Example:
      edcache digest train.zip
    """
    with out.bar("hashing", path, progress, unit="" if samples else "B") as on_progress:
        if samples:
            with closing(dataset.CachedDataset.from_cache(path)) as cache:
                text = tools.samples_digest(cache, on_progress)
        else:
            text = tools.digest(path, on_progress)
    out.print_report(as_json, {"path": shown(path), "digest": text}, [text])


@click.command()
@PATHS
@output("New archive of their samples.", required=False, metavar="OUT")
@flags("where", "skip_damaged", "expected_digest")
@click.option("--force", is_flag=True, help="Replace PATH itself, though samples in it are lost by that.")
@click.option("--max-size", metavar="SIZE", type=size, help="Size of each file; with -o.")
@flags("as_json", "progress")
def copy(paths: Sequence[str], output: str | None, as_json: bool, progress: bool | None, **how: Any) -> None:
    """Copy archives as files, or their samples into a new archive.

    SRC TARGET copies a sealed archive to a disk of this machine, and checks every crc32. TARGET is a folder, by default
    this one for a URL, or with the ending of SRC the path of the copy. A killed copy is resumed; an existing one is
    only looked up. caches --prune deletes copies that no process has open.

    PATH... -o OUT writes a new archive with the samples and labels of one or more archives, in their order, or of
    --where; with --max-size, files of about that size. Each record is checked, none is decoded. A PATH is an archive, a
    folder, or a glob in quotes. OUT may be PATH itself, which leaves dead bytes out. --skip-damaged leaves out samples
    that are damaged or missing, also if the index is damaged; PATH itself then takes --force if it has more of them.

    \b
    Example:
      edcache copy s3://bucket/train.zip /ssd/cache
      edcache copy part-1.zip part-2.zip -o train.zip
      edcache copy train.zip -o small.zip --where "label in (0, 1)"
      edcache copy damaged.zip -o good.zip --skip-damaged
    """
    if output is not None:
        if how.pop("expected_digest") is not None:
            raise click.UsageError("--digest is for a copy of a file: edcache copy SRC TARGET")
        _save(paths, output, as_json, progress, **how)
        return
    if any(how[name] for name in ("where", "max_size", "skip_damaged", "force")):
        raise click.UsageError(
            "--where, --max-size, --skip-damaged and --force are for a new archive: name it with -o OUT"
        )
    if len(paths) > 2 or (len(paths) == 1 and "://" not in paths[0]):
        raise click.UsageError("name SRC and TARGET, or a new archive with -o OUT")
    src, dst = paths if len(paths) == 2 else (paths[0], os.curdir)
    with out.bar("copying", src, progress) as on_progress:
        copied = mirror.copy_local(
            *(src, dst),
            expected_digest=how["expected_digest"],
            on_progress=on_progress,
        )
    fetched = "here already" if not copied.fetched else f"{human_bytes(copied.fetched)} fetched"
    line = f"{out.printable(copied.path)}: {human_bytes(copied.nbytes)}, {fetched}"
    report = {"path": copied.path, "nbytes": copied.nbytes, "fetched": copied.fetched}
    out.print_report(as_json, report, [line])


def _save(
    paths: Sequence[str],
    output: str,
    as_json: bool,
    progress: bool | None,
    *,
    where: str | None,
    max_size: int | None,
    skip_damaged: bool,
    force: bool,
) -> None:
    with warnings.catch_warnings():
        if not skip_damaged:
            warnings.simplefilter("ignore", PartialArchiveWarning)  # it is an error here
        opened: Any = paths[0] if len(paths) == 1 else paths
        whole = dataset.CachedDataset.from_cache(opened, allow_partial=skip_damaged, local=False)
        view = whole if where is None else whole.filter(where)
        with out.bar("copying", paths[0], progress) as on_progress:
            files = view.save(
                output, max_size=max_size, skip_damaged=skip_damaged, force=force, on_progress=on_progress
            )
    saved = [dataset.CachedDataset.from_cache(file).info() for file in files]
    documents = [{name: info[name] for name in ("path", "samples", "present", "nbytes")} for info in saved]
    out.print_report(as_json, documents, _saved_lines(documents))


def _saved_lines(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each file."""
    for one in documents:
        missing = one["samples"] - one["present"]
        left_out = f", {missing:,} left out" if missing else ""
        samples = f"{out.plural(one['samples'], 'sample')}{left_out}"
        yield f"{out.printable(one['path'])}: {samples}, {human_bytes(one['nbytes'])}"


@click.command()
@click.argument("directory", metavar="[FOLDER]", required=False, type=PATH)
@click.option("--older-than", metavar="DAYS", type=click.FloatRange(0), help="Only older archives.")
@click.option("--max-size", metavar="SIZE", type=size, help="Only the oldest beyond this size: 500MB, 1TiB.")
@click.option("--prune", is_flag=True, help="Delete them, and leftovers of killed processes.")
@row_flags
def caches(
    directory: str | None, older_than: float | None, max_size: int | None, prune: bool, **listing: Any
) -> None:
    """List the archives in a folder, the oldest first; --prune deletes.

    Folders in FOLDER are searched too. Without FOLDER, $EDCACHE_DIR or ~/.cache/edcache is listed, where @cachable puts
    archives without a path; "shm://" lists this user's archives in shared memory. The age of an archive is the time
    since it was last written, or since a local copy of a URL was last read.

    --older-than and --max-size choose the oldest archives, until both hold for the others. --prune deletes the chosen
    archives; without a condition, none. It always deletes leftovers of killed processes in FOLDER and in shared memory.
    Archives that a process writes, damaged archives and other files stay.

    \b
    Example:
      edcache caches cache --older-than 30 --max-size 200GB
      edcache caches cache --older-than 30 --max-size 200GB --prune
    """
    freed = storage.free_unheld_memory() if prune else {}
    folder, archives = _archives(directory)
    chosen = tools.select(archives, None if older_than is None else older_than * _DAY, max_size)
    is_table = listing["form"] is None
    if prune:
        freed |= _delete([*(archive for archive in archives if archive.is_left), *chosen])
        header: tuple[str, ...] = ("deleted", "size")
        rows: list[tuple[Any, ...]] = [
            (path, human_bytes(nbytes) if is_table else nbytes) for path, nbytes in freed.items()
        ]
        what, total = f"{len(freed):,} deleted", sum(freed.values())
    else:
        listed = archives if older_than is None and max_size is None else chosen
        counted = ("samples",) if is_table else ("present", "length", "complete")
        header = ("path", "size", *counted, "written", "about")
        rows = [_row(folder, archive, is_table) for archive in listed]
        what, total = out.plural(len(listed), "archive"), sum(archive.nbytes for archive in listed)
    out.print_rows(header, rows, len(rows), **listing)
    if is_table:
        out.print_lines([f"{out.printable(folder)}: {what}, {human_bytes(total)}"])


def _delete(archives: Sequence[tools.Listed]) -> dict[str, int]:
    """Delete archives that no process writes, and print why others stay; returns the bytes of each."""
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
    """List the archives of a folder; the default folder need not exist."""
    if directory not in (None, _MEMORY):
        return directory, tools.archives_in(directory)
    folder = storage.cache_folder() if directory is None else storage.memory_folder()
    return folder, tools.archives_in(folder) if os.path.lexists(folder) else []


def _row(folder: str, archive: tools.Listed, is_table: bool) -> tuple[Any, ...]:
    """Make the cells of an archive; the last is its error, the origin of a copy, or its call."""
    path, written = os.path.relpath(archive.path, folder), datetime.datetime.fromtimestamp(archive.written)
    about = display.call_text(archive.fingerprint) if archive.origin is None else f"copy of {archive.origin}"
    if archive.problem is not None:
        about = out.one_line(archive.problem.removeprefix(f"{archive.path}: "))
    if is_table:
        samples = f"{archive.present:,} of {archive.length:,}"
        return path, human_bytes(archive.nbytes), samples, f"{written:%Y-%m-%d}", about
    counts = archive.present, archive.length, archive.complete
    return path, archive.nbytes, *counts, written.isoformat(" ", "minutes"), about
