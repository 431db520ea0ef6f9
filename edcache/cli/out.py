"""export: samples as files of other formats."""

from __future__ import annotations

from collections.abc import Sequence

import click

from edcache.cli.build import workers, workers_option
from edcache.cli.group import (
    PATH,
    bar,
    json_option,
    main,
    partial_option,
    pickle_option,
    print_json,
    print_lines,
    progress_option,
    size,
)
from edcache.present import export_line

# As in edcache.exporting, which imports torch.
FORMATS = ("webdataset", "files", "parquet", "hf", "npz")


@main.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
@click.option(
    "-o", "out", metavar="OUT", required=True, type=PATH, help="The folder that is made; of an npz the file."
)
@click.option("--to", type=click.Choice(FORMATS), required=True, help="The format.")
@click.option("--where", metavar="EXPR", help="Only samples whose labels fulfil this.")
@click.option("--field", "fields", multiple=True, metavar="FIELD", help="Only this field; repeatable.")
@click.option("--label", "labels", multiple=True, metavar="NAME", help="Only this label column; repeatable.")
@click.option("--no-labels", is_flag=True, help="No label columns but those that are fields.")
@click.option("--available", is_flag=True, help="Leave out samples that have no record.")
@click.option("--shard-size", metavar="SIZE", callback=size, help="About so large is a shard: 500MB.")
@workers_option
@partial_option
@pickle_option
@json_option
@progress_option
def export(
    paths: Sequence[str],
    out: str,
    to: str,
    where: str | None,
    fields: Sequence[str],
    labels: Sequence[str],
    no_labels: bool,
    available: bool,
    shard_size: float | None,
    num_workers: str | None,
    allow_partial: bool,
    allow_pickle: bool,
    as_json: bool,
    progress: bool | None,
) -> None:
    """Write samples as files that other tools read.

    A PATH is an archive, a folder with archives, or a glob in quotes. Images that are stored as files go out
    as these. What the format cannot hold is told before anything is written. EXPR is as in labels.

    \b
    Formats:
      webdataset  tar shards: 017.image.jpg, 017.x.npy, 017.label.cls, 017.text.txt
      files       a folder for each sample with a file for each field
      parquet     a column for each field and label
      hf          what load_from_disk of Hugging Face's datasets reads
      npz         one stacked array for each field

    \b
    Example:
      edcache export train.zip -o shards --to webdataset --where "split == 'train'" -j 8
    """
    from edcache import exporting
    from edcache.dataset import CachedDataset

    if labels and no_labels:
        raise click.UsageError("--label and --no-labels contradict each other")
    ds = CachedDataset.from_cache(
        paths[0] if len(paths) == 1 else paths, allow_partial=True, allow_pickle=allow_pickle
    )
    view = ds.available() if available else ds[:]
    if where is not None:
        view = view.filter(where)
    if fields:
        view = view.select(*fields)
    with bar("exporting to", out, progress) as on_progress:
        report = exporting.export(
            view,
            out,
            to,
            num_workers=0 if num_workers is None else workers(num_workers),
            shard_size="500MB" if shard_size is None else max(1, int(shard_size)),
            labels=list(labels) or not no_labels,
            on_progress=on_progress,
            allow_partial=allow_partial,
        )
    if as_json:
        print_json(report.__dict__)
    else:
        print_lines([export_line(report)])
