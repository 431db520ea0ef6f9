"""verify, repair, compact, copy, merge, split: archives as wholes, checked, mended and copied."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from edcache import tools
from edcache.backends import mirror
from edcache.base import human_bytes, index_ranges, plain
from edcache.cli import output as out
from edcache.cli.flags import FOLDER, LABEL, PATH, PATHS, POSITIVE, flags, output, size
from edcache.storage import shown


@click.command()
@PATHS
@click.option("--quick", is_flag=True, help="Leave the records of samples unread; check the rest.")
@flags("expected_digest", "as_json", "progress")
def verify(
    paths: Sequence[str], quick: bool, expected_digest: str | None, as_json: bool, progress: bool | None
) -> None:
    """Check every byte of archives; exit 1 where something is wrong.

    A PATH is an archive, a folder with archives, or a glob in quotes. Each problem is one line: path, offset,
    what is wrong, what helps. An archive that is not sealed is not whole, unless a process writes it still;
    building again goes on from there. Dead bytes are no problem; compact leaves them out.

    \b
    Exit codes:
      0    sound, all of them
      1    damaged, not whole, not the file that --digest names, or not readable

    \b
    Example:
      edcache verify train.zip --quick
    """
    if expected_digest is not None and len(paths) > 1:
        raise click.UsageError("--digest is that of one archive; verify the others by calls of their own")
    same = ("sound", "quick", "sealed", "samples", "missing", "failures", "chunks", "nbytes", "superseded")

    def report(path: str) -> out.Report:
        with out.bar("verifying", path, progress) as on_progress:
            verified = tools.verify(path, on_progress, quick=quick, expected_digest=expected_digest)
        document = {"path": shown(path)} | {name: getattr(verified, name) for name in same}
        document["dead"] = {"nbytes": verified.dead.total, **dataclasses.asdict(verified.dead)}
        document["problems"] = verified.problems
        return document, _verify_lines(shown(path), verified), verified.sound

    out.print_reports(paths, as_json, report)


def _verify_lines(path: str, report: tools.Report) -> Iterator[str]:
    """The problems, then the result, then what compacting would give back."""
    yield from (out.styled(out.printable(problem), fg="red") for problem in report.problems)
    state = "sealed" if report.sealed else "being written" if report.has_writer else "not sealed"
    missing = f", {report.missing:,} missing" if report.missing else ""
    broken = out.plural(len(report.problems), "problem") if report.problems else "not whole"
    unread = "; records were not read" if report.quick else ""
    verdict = out.styled("OK", fg="green") if report.sound else out.styled(broken, fg="red")
    yield (
        f"{out.printable(path)}: {verdict}: {out.plural(report.samples, 'sample')}{missing} "
        f"in {out.plural(report.chunks, 'chunk')}, {human_bytes(report.nbytes)}, {state}{unread}"
    )
    if report.is_partial:
        yield "its writer was killed, or it was cut: fill it again, or keep what is there with edcache repair"
    if report.failures:
        yield f"{out.plural(report.failures, 'sample')} failed when tried; they are among the missing"
    dead = report.dead
    if dead.total:
        parts = {
            "old seals": dead.old_seals,
            out.plural(report.superseded, "outdated record"): dead.superseded if report.superseded else 0,
            "lost in power cuts": dead.lost,
            "torn tail": dead.torn,
        }
        listed = ", ".join(f"{name} {human_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
        yield f"{human_bytes(dead.total)} dead ({listed}); edcache compact leaves them out"


@click.command()
@click.argument("path", metavar="DAMAGED", type=PATH)
@output("Where the new archive goes.", metavar="NEW")
@flags("as_json", "progress")
def repair(path: str, output: str, as_json: bool, progress: bool | None) -> None:
    """Write a new archive of every good sample of a damaged one.

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
    with out.errors_in_one_line(2), out.bar("repairing", path, progress) as on_progress:
        report = tools.repair(path, output, on_progress)
    document = {"path": path, "output": output, "whole": report.is_whole, **dataclasses.asdict(report)}
    document |= {"lost": report.lost.tolist(), "unlabelled": report.unlabelled.tolist()}
    out.print_report(as_json, document, repair_lines(path, output, report))
    if not report.is_whole:
        sys.exit(out.FAILED)


def repair_lines(path: str, target: str, report: tools.RepairReport) -> Iterator[str]:
    """The problems, a table of what became of the samples, which are lost."""
    yield from map(out.printable, report.problems)
    revisions, chunks = len(report.lost_revisions), sum(doubtful.entries for doubtful in report.doubtful)
    missing = report.length - report.kept - len(report.lost)
    head = "lost: the fingerprint is unknown, the options are guessed"
    yield from out.paired_lines(
        [
            ("damaged", path),
            ("repaired", f"{target}, {human_bytes(report.nbytes)}"),
            ("samples", f"{report.length:,}"),
            ("kept", f"{report.kept:,}"),
            ("lost", f"{len(report.lost):,}"),
            ("missing", f"{missing:,}" if missing else None),
            ("without labels", f"{len(report.unlabelled):,}" if len(report.unlabelled) else None),
            ("labels lost", out.plural(revisions, "revision") if revisions else None),
            ("doubtful", out.plural(chunks, "chunk") if chunks else None),
            ("head", head if report.head_lost else None),
        ]
    )
    if len(report.lost):
        yield f"lost: {index_ranges(report.lost)}"
    if len(report.unlabelled):
        yield f"without labels: {index_ranges(report.unlabelled)}"
    for name in report.lost_revisions:
        yield f"lost: what {name} said of labels; add or drop them again"
    for doubtful in report.doubtful:
        samples = "samples" if doubtful.samples is None else f"{doubtful.samples:,} samples"
        entries = f"entry {doubtful.seq:,}"
        if doubtful.entries > 1:
            entries = f"entries {doubtful.seq:,}-{doubtful.seq + doubtful.entries - 1:,}"
        place = f"doubtful: {entries} at offset {doubtful.offset:,}"
        yield f"{place}: nothing intact tells which {samples} were there"


@click.command()
@click.argument("path", type=PATH)
@output("Where the compact archive goes, by default in PATH's place.", required=False)
@flags("allow_partial", "as_json", "progress")
def compact(path: str, output: str | None, allow_partial: bool, as_json: bool, progress: bool | None) -> None:
    """Rewrite an archive without its dead bytes, and seal it.

    Samples are then in index order. Dead are old seals, outdated records and torn tails. Records are copied
    as they are stored and checked on the way. In place, PATH is the old archive until the new one is
    complete and on the disk; who reads the old one keeps it. It needs the room of the new archive beside the
    old one.

    \b
    Example:
      edcache compact train.zip
    """
    with out.bar("compacting", path, progress) as on_progress:
        report = tools.compact(path, output, on_progress, allow_partial=allow_partial)
    place, samples = out.printable(report.path), out.plural(report.samples, "sample")
    line = f"{place}: compact already: {samples} in {human_bytes(report.nbytes)}, nothing was written"
    if report.rewritten:
        sizes = f"{human_bytes(report.nbytes_before)} -> {human_bytes(report.nbytes)}"
        chunks = f"{report.chunks_before:,} -> {out.plural(report.chunks, 'chunk')}"
        line = f"{place}: {samples}, {sizes} ({human_bytes(report.dead_nbytes)} less), {chunks}, sealed"
    out.print_report(as_json, dataclasses.asdict(report), [line])


@click.command()
@click.argument("src", type=PATH)
@click.argument("dst", type=PATH)
@flags("expected_digest")
@click.option("--num-threads", metavar="N", type=POSITIVE, default=8, help="Reads at a time; 8 by default.")
@flags("max_bytes", "as_json", "progress")
def copy(src: str, dst: str, as_json: bool, progress: bool | None, **options: Any) -> None:
    """Copy an archive, or a folder of them, to a disk of this machine.

    What is not sealed is refused. DST is a folder, or with the same ending as SRC the path of the copy. The
    copy has its name when every crc32 of it was compared. One that was killed is continued, one that is
    there already and whose SRC did not change costs a look; of one whose SRC changed the rest is copied.
    Others that copy the same wait for it. With --max-size, copies that nobody has open go to make room, the
    least recently used first.

    \b
    Example:
      edcache copy /nfs/train.zip /ssd/cache --digest sha256:9f2c...
    """
    with out.bar("copying", src, progress) as on_progress:
        copied = mirror.copy_local(src, dst, on_progress=on_progress, **options)
    archives = f"{copied.archives:,} archives, " if copied.archives > 1 else ""
    fetched = "here already" if not copied.fetched else f"{human_bytes(copied.fetched)} fetched"
    line = f"{out.printable(copied.path)}: {archives}{human_bytes(copied.nbytes)}, {fetched}"
    out.print_report(as_json, copied._asdict(), [line])


@click.command()
@PATHS
@output("Where the new archive goes.")
@flags("allow_partial", "as_json", "progress")
def merge(paths: Sequence[str], output: str, as_json: bool, progress: bool | None, **options: Any) -> None:
    """Copy the samples of several archives into a new one.

    A PATH is an archive, a folder with archives, or a glob in quotes; globs and folders are sorted, part-2
    before part-10. Records are copied as they are stored and checked on the way. Samples that are missing
    stay missing, and label columns that one archive lacks are null there.

    \b
    Example:
      edcache merge part-1.zip part-2.zip -o train.zip
    """
    with out.bar("merging into", output, progress) as on_progress:
        report = tools.merge(paths, output, on_progress, **options)
    missing = f", {report.length - report.samples:,} missing" if report.samples < report.length else ""
    origin = f"{out.plural(report.length, 'sample')}{missing} from {out.plural(report.archives, 'archive')}"
    line = f"{out.printable(report.path)}: {origin}, {human_bytes(report.nbytes)}, sealed"
    out.print_report(as_json, dataclasses.asdict(report), [line])


@click.command()
@click.argument("path", type=PATH)
@output("Where the new archives go.", metavar="DIR", type=FOLDER)
@click.option("--max-size", metavar="SIZE", callback=size, help="The most that each has: 500MB, 2GB.")
@flags("parts")
@click.option("--by", metavar="NAME", type=LABEL, help="One for each value of a label column.")
@flags("allow_partial", "as_json", "progress")
def split(path: str, output: str, as_json: bool, progress: bool | None, **options: Any) -> None:
    """Copy the samples of an archive into several new ones.

    Each in DIR is valid alone. They are called train-00000.zip and so on, or train-00000-VALUE.zip, and
    together they are the original.

    \b
    Example:
      edcache split train.zip --max-size 2GB -o parts
    """
    if sum(options[name] is not None for name in ("max_size", "parts", "by")) != 1:
        raise click.UsageError("say how: one of --max-size 2GB, --parts 10 and --by label")
    with out.bar("splitting", path, progress) as on_progress:
        pieces = tools.split(path, output, on_progress=on_progress, **options)
    document = [vars(piece) | {"value": plain(piece.value)} for piece in pieces]
    out.print_report(as_json, document, _split_lines(pieces))


def _split_lines(pieces: Sequence[tools.SplitArchive]) -> Iterator[str]:
    """A line an archive, and one for all."""
    columns = 5 if any(piece.value is not None for piece in pieces) else 4
    yield from out.table(
        ("path", "samples", "missing", "size", "value")[:columns],
        (
            (p.path, f"{p.length:,}", f"{p.length - p.samples:,}", human_bytes(p.nbytes), p.value)[:columns]
            for p in pieces
        ),
        whole=1,
    )
    length, nbytes = sum(piece.length for piece in pieces), sum(piece.nbytes for piece in pieces)
    yield f"{out.plural(length, 'sample')} in {out.plural(len(pieces), 'archive')}, {human_bytes(nbytes)}"
