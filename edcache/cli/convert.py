"""import and export: caches of other systems, files of other formats; and the flags of edflow's command."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from edcache import dataset, interop
from edcache.base import ForeignCacheError, human_bytes, index_ranges
from edcache.cli.call import Call
from edcache.cli.fill import check_codec, fill
from edcache.cli.flags import PATH, flags, given, size
from edcache.cli.output import FAILED, bar, one_line, plural, print_report, printable

# As in edcache.interop, which imports torch.
KINDS: Final = (
    *("edflow", "torch_xla", "monai", "webdataset", "tensordict", "mds", "litdata", "huggingface", "images"),
)
FORMATS: Final = ("webdataset", "files", "parquet", "hf", "npz")


@click.command("import")
@click.argument("old", type=PATH)
@flags("out")
@click.option("--from", "kind", type=click.Choice(KINDS), help="What OLD is; by default it is recognised.")
@click.option(
    "--trust-pickle", is_flag=True, help="Unpickle whatever OLD holds, which runs code that its author chose."
)
@click.option(
    "--order", metavar="FILE", type=PATH, help="For monai: the names of the files in order, one a line."
)
@flags("in_memory_keys")
@click.option("--for", "factory", metavar="MODULE:FACTORY", help="The @cachable call that takes the archive.")
@flags("arguments", "compression", "codec", "allow_pickle", "num_workers", "on_error", "progress", "rebuild")
def import_(
    old: str, out: str, factory: str | None, arguments: Sequence[str], rebuild: bool, **options: Any
) -> None:
    """Fill an archive with the samples of another system's cache, which is only read.

    Samples keep their indices, types and dtypes; the labels of an edflow cache become label columns. A zip
    that edflow left when it was killed is read too. Pickles may hold plain data, numpy arrays and torch
    tensors: one that needs more is refused, naming what it needs. The same command resumes after a kill.

    \b
    Exit codes:
      0    every sample is in the archive
      1    OLD lacks some, or they could not be read: they are named, and missing in the archive
    \b
    Example:
      edcache import cached/train.zip -o train.zip -j 4
    """
    check_codec(options)
    kind, trust_pickle, order = (options.pop(name) for name in ("kind", "trust_pickle", "order"))
    if factory is not None:
        options["fingerprint"] = Call(factory, arguments, None).fingerprint()
    elif arguments:
        raise click.UsageError("--arg goes with --for MODULE:FACTORY")
    source = interop.old_cache(
        old, kind, trust_pickle=trust_pickle, order=None if order is None else _lines(order)
    )
    for note in source.notes:
        click.echo(one_line(f"{old}: {note}"), err=True)
    cache = fill(out, rebuild, lambda: source, given(options), interop.import_cache)
    if not cache.complete:
        click.echo(f"missing: {index_ranges(cache.missing)}")
        sys.exit(FAILED)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.strip() for line in file if line.strip()]
    except UnicodeDecodeError:
        raise ForeignCacheError(f"{path}: no text in UTF-8; write the name of one file a line") from None


@click.command()
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
@flags("num_workers", "allow_partial", "allow_pickle", "as_json", "progress")
def export(paths: Sequence[str], out: str, to: str, as_json: bool, **options: Any) -> None:
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
    labels, shard_size = options["labels"], options["shard_size"]
    if labels and options["no_labels"]:
        raise click.UsageError("--label and --no-labels contradict each other")
    ds = dataset.CachedDataset.from_cache(
        paths[0] if len(paths) == 1 else paths, allow_partial=True, allow_pickle=options["allow_pickle"]
    )
    view = ds.available() if options["available"] else ds[:]
    view = view if options["where"] is None else view.filter(options["where"])
    view = view.select(*options["fields"]) if options["fields"] else view
    with bar("exporting to", out, options["progress"], unit=" samples") as on_progress:
        report = interop.export(
            view,
            out,
            to,
            num_workers=options["num_workers"] or 0,
            shard_size="500MB" if shard_size is None else max(1, int(shard_size)),
            labels=list(labels) or not options["no_labels"],
            on_progress=on_progress,
            allow_partial=options["allow_partial"],
        )
    files = f"{plural(report.files, 'file')}, {human_bytes(report.nbytes)}"
    line = f"{printable(report.path)}: {plural(report.samples, 'sample')} as {report.to}, {files}"
    print_report(as_json, dataclasses.asdict(report), [line])


def as_edflow(dataset: str | None, server: bool, address: str | None) -> None:
    """What `edcache -d package.factory -s` and `-a HOST` did: fill the cache of a dataset."""
    if dataset is None or not (server or address):
        raise click.UsageError("edflow's flags go together: -d package.factory with -s, or with -a HOST")
    module, _, attribute = dataset.rpartition(".")
    source = Call(dataset if ":" in dataset else f"{module}:{attribute}", (), None).make()
    contacted = f"; {address} is not contacted" if address else ""
    shared = "every process that runs this fills the same file, and shares the work"
    click.echo(f"edcache: no server is needed: {shared}{contacted}", err=True)
    cache = interop.open_or_fill(source)
    click.echo(f"{cache.path}: {len(cache):,} samples")
