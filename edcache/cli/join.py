"""merge and split: the samples of several archives in one, and of one in several."""

from __future__ import annotations

from collections.abc import Sequence

import click

from edcache.cli.group import (
    FOLDER,
    PATH,
    bar,
    json_option,
    main,
    partial_option,
    print_json,
    print_lines,
    progress_option,
    size,
)
from edcache.present import merge_line, plain, split_lines


@main.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
@click.option("-o", "target", metavar="OUT", required=True, type=PATH, help="Where the new archive goes.")
@partial_option
@json_option
@progress_option
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
    from edcache import maintain

    with bar("merging into", target, progress) as on_progress:
        report = maintain.merge(paths, target, on_progress, allow_partial=allow_partial)
    if as_json:
        print_json(report.__dict__)
    else:
        print_lines([merge_line(report)])


@main.command()
@click.argument("path", type=PATH)
@click.option("-o", "folder", metavar="DIR", required=True, type=FOLDER, help="Where the new archives go.")
@click.option("--max-size", metavar="SIZE", callback=size, help="The most that each has: 500MB, 2GB.")
@click.option("--parts", metavar="N", type=click.IntRange(min=1), help="So many, of as many samples each.")
@click.option("--by", metavar="NAME", help="One for each value of a label column.")
@partial_option
@json_option
@progress_option
def split(
    path: str,
    folder: str,
    max_size: float | None,
    parts: int | None,
    by: str | None,
    allow_partial: bool,
    as_json: bool,
    progress: bool | None,
) -> None:
    """Copy the samples of an archive into several new ones in DIR, each valid alone.

    They are called train-00000.zip and so on, or train-00000-VALUE.zip, and together they are the original.

    \b
    Example:
      edcache split train.zip --max-size 2GB -o parts
    """
    from edcache import maintain

    if sum(asked is not None for asked in (max_size, parts, by)) != 1:
        raise click.UsageError("say how: one of --max-size 2GB, --parts 10 and --by label")
    most = None if max_size is None else max(1, int(max_size))
    with bar("splitting", path, progress) as on_progress:
        pieces = maintain.split(
            path,
            folder,
            max_size=most,
            parts=parts,
            by=by,
            on_progress=on_progress,
            allow_partial=allow_partial,
        )
    if as_json:
        print_json([piece.__dict__ | {"value": plain(piece.value)} for piece in pieces])
    else:
        print_lines(split_lines(pieces))
