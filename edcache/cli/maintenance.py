"""verify, repair, compact, copy, merge, split: archives as wholes, checked, mended and copied."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import click

from edcache.cli import reports
from edcache.cli.failure import FAILED, errors_in_one_line
from edcache.cli.options import FOLDER, PATH, POSITIVE, bar, flags, print_lines, print_report, size
from edcache.cli.text import plain


@click.command()
@click.argument("path", type=PATH)
@click.option(
    "--quick", is_flag=True, help="Leave the samples' records unread, check all that leads to them."
)
@click.option("--expect", metavar="DIGEST", help="The SHA-256 that the file must have; compared first.")
@flags("as_json", "progress")
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
    from edcache import tools
    from edcache.storage import shown

    with bar("verifying", path, progress) as on_progress:
        report = tools.verify(path, on_progress, quick=quick, expected_digest=expect)
    place = shown(path)
    print_report(as_json, reports.verify_object(place, report), reports.verify_lines(place, report))
    if not report.sound:
        sys.exit(FAILED)


@click.command()
@click.argument("path", metavar="DAMAGED", type=PATH)
@click.option("-o", "target", metavar="NEW", required=True, type=PATH, help="Where the new archive goes.")
@flags("as_json", "progress")
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
    from edcache import tools

    with errors_in_one_line(2), bar("repairing", path, progress) as on_progress:
        report = tools.repair(path, target, on_progress)
    document = reports.repair_object(path, target, report)
    print_report(as_json, document, reports.repair_lines(path, target, report))
    if not report.is_whole:
        sys.exit(FAILED)


@click.command()
@click.argument("path", type=PATH)
@click.option(
    *("-o", "target"),
    metavar="OUT",
    type=PATH,
    help="Where the compact archive goes, by default in PATH's place.",
)
@flags("allow_partial", "as_json", "progress")
def compact(path: str, target: str | None, allow_partial: bool, as_json: bool, progress: bool | None) -> None:
    """Rewrite an archive without its dead bytes, in index order, and seal it.

    Dead are old seals, outdated records and torn tails. Records are copied as they are stored and checked
    on the way. In place, PATH is the old archive until the new one is complete and on the disk; who reads
    the old one keeps it. It needs the room of the new archive beside the old one.

    \b
    Example:
      edcache compact train.zip
    """
    from edcache import tools

    with bar("compacting", path, progress) as on_progress:
        report = tools.compact(path, target, on_progress, allow_partial=allow_partial)
    print_report(as_json, dataclasses.asdict(report), [reports.compact_line(report)])


@click.command()
@click.argument("src", type=PATH)
@click.argument("dst", type=PATH)
@click.option("--digest", metavar="DIGEST", help="The SHA-256 that the archive must have.")
@click.option("--threads", type=POSITIVE, default=8, show_default=True, help="Reads at a time.")
@click.option("--max-size", metavar="SIZE", help="All copies in DST together: 500MB, 1.5GB, 1TiB.")
@flags("progress")
def copy(src: str, dst: str, progress: bool | None, **options: Any) -> None:
    """Copy a sealed archive, or all those in a folder, to a disk of this machine.

    DST is a folder, or with the same ending as SRC the path of the copy. The copy has its name when every
    crc32 of it was compared. One that was killed is continued, one that is there already and whose SRC did
    not change costs a look; of one whose SRC changed the rest is copied. Others that copy the same wait for
    it. With --max-size, copies that nobody has open go to make room, the least recently used first.

    \b
    Example:
      edcache copy /nfs/train.zip /ssd/cache --digest sha256:9f2c...
    """
    from edcache.backends.mirror import copy_local

    with bar("copying", src, progress) as on_progress:
        copied = copy_local(
            src,
            dst,
            num_threads=options["threads"],
            expected_digest=options["digest"],
            max_bytes=options["max_size"],
            on_progress=on_progress,
        )
    print_lines([reports.copy_line(copied)])


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
@click.option("-o", "target", metavar="OUT", required=True, type=PATH, help="Where the new archive goes.")
@flags("allow_partial", "as_json", "progress")
def merge(
    paths: Sequence[str], target: str, allow_partial: bool, as_json: bool, progress: bool | None
) -> None:
    """Copy the samples of several archives into a new one, and seal it.

    A PATH is an archive, a folder with archives, or a glob in quotes; globs and folders are sorted, part-2
    before part-10. Records are copied as they are stored and checked on the way. Samples that are missing
    stay missing, and label columns that one archive lacks are null there.

    \b
    Example:
      edcache merge part-1.zip part-2.zip -o train.zip
    """
    from edcache import tools

    with bar("merging into", target, progress) as on_progress:
        report = tools.merge(paths, target, on_progress, allow_partial=allow_partial)
    print_report(as_json, dataclasses.asdict(report), [reports.merge_line(report)])


@click.command()
@click.argument("path", type=PATH)
@click.option("-o", "folder", metavar="DIR", required=True, type=FOLDER, help="Where the new archives go.")
@click.option("--max-size", metavar="SIZE", callback=size, help="The most that each has: 500MB, 2GB.")
@click.option("--parts", metavar="N", type=POSITIVE, help="So many, of as many samples each.")
@click.option("--by", metavar="NAME", help="One for each value of a label column.")
@flags("allow_partial", "as_json", "progress")
def split(path: str, folder: str, as_json: bool, progress: bool | None, **options: Any) -> None:
    """Copy the samples of an archive into several new ones in DIR, each valid alone.

    They are called train-00000.zip and so on, or train-00000-VALUE.zip, and together they are the original.

    \b
    Example:
      edcache split train.zip --max-size 2GB -o parts
    """
    from edcache import tools

    if sum(options[name] is not None for name in ("max_size", "parts", "by")) != 1:
        raise click.UsageError("say how: one of --max-size 2GB, --parts 10 and --by label")
    if options["max_size"] is not None:
        options["max_size"] = max(1, int(options["max_size"]))
    with bar("splitting", path, progress) as on_progress:
        pieces = tools.split(path, folder, on_progress=on_progress, **options)
    document = [vars(piece) | {"value": plain(piece.value)} for piece in pieces]
    print_report(as_json, document, reports.split_lines(pieces))
