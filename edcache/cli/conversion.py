"""build, images, import: archives filled; export: files of other formats."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, get_args

import click

from edcache import dataset, interop, writer
from edcache.base import (
    ArchiveError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    ReadOptions,
    human_bytes,
    index_ranges,
)
from edcache.cli.call import Call
from edcache.cli.flags import FOLDER, PATH, flags, output
from edcache.cli.output import FAILED, bar, plural, print_report, printable
from edcache.storage import is_in_memory, located, shown


@click.command()
@click.argument("factory", metavar="MODULE:FACTORY")
@output()
@flags("in_memory_keys", "arguments", "compression", "codec", "chunk_size")
@flags("num_workers", "on_error", "timeout", "grow", "version", "progress", "keep_existing", "as_json")
def build(
    factory: str, output: str, arguments: Sequence[str], version: str | None, as_json: bool, **options: Any
) -> None:
    """Fill an archive with the dataset that a function makes.

    MODULE:FACTORY is imported with the current directory on the path and called with the --arg
    values, read as JSON where they are JSON ('"3"' is the text 3) and as text elsewhere; --version
    is read alike. Only samples that the archive lacks are computed, so the same command resumes
    after a kill, and several at once share the work. A call of the function under @cachable with
    the same path and arguments opens what this built; of a decorated function, its options are the
    defaults here.

    \b
    Example:
      edcache build digits:make -o train.zip --key label --arg split=train
    """
    call = Call(factory, arguments, version)
    fingerprint = call.fingerprint()

    def cached(source: Any, path: str, **chosen: Any) -> dataset.CachedDataset:
        chosen["fingerprint"] = fingerprint | writer.made_by_call(source)
        return dataset.CachedDataset(source, path, call.options, **chosen)

    _fill(output, as_json, call.make, options, cached)


@click.command()
@click.argument("folder", type=FOLDER)
@output()
@click.option(
    *("--max-side",),
    type=click.IntRange(1),
    metavar="PIXELS",
    help="Store what has a longer side smaller, as JPEG of the same quality or without loss.",
)
@flags("decode", "extensions", "num_workers", "on_error", "progress", "keep_existing", "as_json")
def images(
    folder: str,
    output: str,
    decode: Any,
    max_side: int | None,
    extensions: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Fill an archive with a tree of image files, as they are.

    FOLDER has a folder for each class: FOLDER/dog/1.jpg. Samples are {"image", "label", "path"}; label and
    path are label columns. Without --max-side nothing is decoded before a sample is read. The same command
    resumes after a kill; files that changed since then make the archive another folder's, and --rebuild
    builds it anew.

    \b
    Example:
      edcache images imagenet/train -o train.zip --decode tensor -j 8
    """
    chosen = extensions or interop.EXTENSIONS
    _fill(output, as_json, lambda: interop.image_folder(folder, decode, chosen, max_side), options)


def _fill(
    path: str,
    as_json: bool,
    make: Callable[[], Any],
    options: dict[str, Any],
    cached: Callable[..., dataset.CachedDataset] | None = None,
) -> dataset.CachedDataset:
    """Make a source, cache it at a path by CachedDataset or what else is given, and say what was done."""
    where = located(path)
    if is_in_memory(where.path):
        where.local_path()  # which refuses shared memory, where it would be gone when this process ends
    # Neither what is None, nor a flag that was left out; of these two False is given.
    stated = ("progress", "keep_existing")
    options = {k: v for k, v in options.items() if v is not None and (v is not False or k in stated)}
    began = time.monotonic()
    is_anew = options.get("keep_existing") is False
    kept = 0 if is_anew else _records_at(path)
    try:
        cache = (cached or dataset.CachedDataset)(make(), path, **options)
    except KeyboardInterrupt:
        state = "keeps what was computed, run the same command again to go on"
        if is_anew:
            state = "is as it was before, a rebuild starts from nothing"
        raise KeyboardInterrupt(f"interrupted; {shown(path)} {state}") from None
    info = cache.info()
    failed, computed = len(cache.errors), info["present"] - kept
    nbytes, seconds = info["nbytes"], time.monotonic() - began
    counts = f"{computed:,} computed now, {kept:,} kept"
    counts += f", {plural(failed, 'sample')} failed" if failed else ""
    size = f"{human_bytes(nbytes)}, {seconds:.1f} s"
    document = {"path": cache.path, "samples": len(cache), "computed": computed, "kept": kept}
    document |= {"failed": failed, "missing": cache.missing.tolist(), "nbytes": nbytes, "seconds": seconds}
    line = f"{cache.path}: {plural(len(cache), 'sample')} ({counts}), {size}"
    print_report(as_json, document, [printable(line)])
    return cache


def _records_at(path: str) -> int:
    """How many samples an archive holds before a build; 0 where there is none to read."""
    with closing(writer.store_at(path).reader(ReadOptions(allow_partial=True))) as reader:
        try:
            return reader.present
        except (ArchiveNotFoundError, CorruptArchiveError):
            return 0


@click.command("import")
@click.argument("old", type=PATH)
@output()
@flags("kind", "trust_pickle", "order", "in_memory_keys")
@click.option("--for", "factory", metavar="MODULE:FACTORY", help="The @cachable call that takes the archive.")
@flags("arguments", "compression", "codec", "num_workers", "on_error", "progress")
@flags("keep_existing", "as_json")
def import_(
    old: str, output: str, factory: str | None, arguments: Sequence[str], as_json: bool, **options: Any
) -> None:
    """Fill an archive with the samples of another system's cache.

    OLD is only read. Samples keep their indices, types and dtypes; the labels of an edflow cache become
    label columns. A zip that edflow left when it was killed is read too. Pickles may hold plain data, numpy
    arrays and torch tensors: one that needs more is refused, naming what it needs. The same command resumes
    after a kill.

    \b
    Exit codes:
      0    every sample is in the archive
      1    OLD lacks some, or they could not be read: they are named, and missing in the archive
    \b
    Example:
      edcache import cached/train.zip -o train.zip -j 4
    """
    kind, trust_pickle, order = (options.pop(name) for name in ("kind", "trust_pickle", "order"))
    if factory is not None:
        options["fingerprint"] = Call(factory, arguments, None).fingerprint()
    elif arguments:
        raise click.UsageError("--arg goes with --for MODULE:FACTORY")
    chosen = {"kind": kind, "trust_pickle": trust_pickle, "order": None if order is None else _lines(order)}
    cache = _fill(output, as_json, lambda: old, options, partial(interop.import_cache, **chosen))
    if not cache.complete:
        if not as_json:
            click.echo(f"missing: {index_ranges(cache.missing)}")
        sys.exit(FAILED)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.strip() for line in file if line.strip()]
    except UnicodeDecodeError:
        raise ArchiveError(f"{path}: no text in UTF-8; write the name of one file a line") from None


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
@output("The folder that is made.")
@click.option("--to", type=click.Choice(get_args(interop.Format)), required=True, help="The format.")
@flags("where", "fields", "labels", "no_labels", "available", "shard_size")
@flags("num_workers", "allow_partial", "allow_pickle", "as_json", "progress")
def export(paths: Sequence[str], output: str, to: interop.Format, as_json: bool, **options: Any) -> None:
    """Write samples as files that other tools read.

    A PATH is an archive, a folder with archives, or a glob in quotes. Images that are stored as files go out
    as these. What the format cannot hold is told before anything is written. EXPR is as in labels.

    \b
    Formats:
      webdataset  tar shards: 017.image.jpg, 017.x.npy, 017.label.cls, 017.text.txt
      files       a folder for each sample with a file for each field
      parquet     a column for each field and label

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
    view: Any = ds
    if options["available"]:
        import numpy as np

        view = ds[np.setdiff1d(np.arange(len(ds)), ds.missing)]
    view = view if options["where"] is None else view.filter(options["where"])
    view = view.select(*options["fields"]) if options["fields"] else view
    with bar("exporting to", output, options["progress"], unit="") as on_progress:
        report = interop.export(
            view,
            output,
            to,
            num_workers=options["num_workers"] or 0,
            shard_size=shard_size or "500MB",
            labels=list(labels) or not options["no_labels"],
            on_progress=on_progress,
            allow_partial=options["allow_partial"],
        )
    files = f"{plural(report.files, 'file')}, {human_bytes(report.nbytes)}"
    line = f"{printable(report.path)}: {plural(report.samples, 'sample')} as {report.to}, {files}"
    print_report(as_json, dataclasses.asdict(report), [line])
