"""build, images, import: archives filled; export: files of other formats."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import click

from edcache import dataset, interop, writer
from edcache.base import human_bytes, index_ranges
from edcache.cli.call import Call
from edcache.cli.flags import PATH, flags, output, size
from edcache.cli.output import FAILED, bar, plural, print_report, printable
from edcache.storage import is_in_memory, located


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
        chosen["fingerprint"] = writer.with_samples_of(fingerprint, source)
        return dataset.CachedDataset(source, path, call.options, **chosen)

    _fill(output, as_json, call.make, options, cached)


@click.command()
@click.argument("folder", type=PATH)
@output()
@click.option("--decode", type=click.Choice(["pil", "numpy", "tensor"]), default="pil", help="For readers.")
@click.option(
    "--extension", "extensions", multiple=True, metavar=".EXT", help="Files that count; repeatable."
)
@flags("num_workers", "on_error", "progress", "keep_existing", "as_json")
def images(
    folder: str,
    output: str,
    decode: Any,
    extensions: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Fill an archive with a tree of image files, as they are.

    FOLDER has a folder for each class: FOLDER/dog/1.jpg. Samples are {"image", "label", "path"}; label,
    path and class_name are label columns. Nothing is decoded before a sample is read. The same command
    resumes after a kill; files that changed since then make the archive another folder's, and --rebuild
    builds it anew.

    \b
    Example:
      edcache images imagenet/train -o train.zip --decode tensor -j 8
    """
    chosen = extensions or interop.EXTENSIONS
    source = partial(interop.image_folder, folder, decode, chosen)
    _fill(output, as_json, source, options, dataset.CachedDataset)


def _fill(
    path: str,
    as_json: bool,
    make: Callable[[], Any],
    options: dict[str, Any],
    cached: Callable[..., dataset.CachedDataset],
) -> dataset.CachedDataset:
    """Make a source, cache it at a path, and say what the archive holds then."""
    where = located(path)
    if is_in_memory(where.path):
        where.local_path()  # which refuses shared memory, where it would be gone when this process ends
    began = time.monotonic()
    cache = cached(make(), path, **{name: v for name, v in options.items() if v is not None})
    info = cache.info()
    document = {name: info[name] for name in ("path", "samples", "present", "nbytes")}
    document |= {"failed": len(cache.errors), "missing": cache.missing.tolist()}
    document["seconds"] = seconds = time.monotonic() - began
    failed = f", {plural(len(cache.errors), 'sample')} failed" if cache.errors else ""
    size = f"{human_bytes(info['nbytes'])}, {seconds:.1f} s"
    line = f"{cache.path}: {info['present']:,} of {plural(len(cache), 'sample')}{failed}, {size}"
    print_report(as_json, document, [printable(line)])
    return cache


@click.command("import")
@click.argument("old", type=PATH)
@output()
@click.option(
    "--from", "kind", type=click.Choice(get_args(interop.Kind)), required=True, help="What wrote OLD."
)
@flags("in_memory_keys")
@click.option("--trust-pickle", is_flag=True, help="Unpickle whatever OLD holds; its author's code runs.")
@click.option("--for", "factory", metavar="MODULE:FACTORY", help="The @cachable call that takes the archive.")
@flags("arguments", "compression", "codec", "num_workers", "on_error", "progress")
@flags("keep_existing", "as_json")
def import_(
    old: str,
    output: str,
    kind: interop.Kind,
    trust_pickle: bool,
    factory: str | None,
    arguments: Sequence[str],
    as_json: bool,
    **options: Any,
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
      edcache import cached/train.zip -o train.zip --from edflow -j 4
    """
    if factory is not None:
        options["fingerprint"] = Call(factory, arguments, None).fingerprint()
    elif arguments:
        raise click.UsageError("--arg goes with --for MODULE:FACTORY")
    filled = partial(interop.import_cache, kind=kind, trust_pickle=trust_pickle)
    cache = _fill(output, as_json, lambda: old, options, filled)
    if not cache.complete:
        if not as_json:
            click.echo(f"missing: {index_ranges(cache.missing)}")
        sys.exit(FAILED)


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
@output("The folder that is made.")
@click.option("--to", type=click.Choice(get_args(interop.Format)), required=True, help="The format.")
@flags("where")
@click.option("--field", "fields", multiple=True, metavar="NAME", help="Only this field; repeatable.")
@click.option("--label", "labels", multiple=True, metavar="NAME", help="Only this label; repeatable.")
@click.option("--no-labels", is_flag=True, help="No label columns but those that are fields.")
@click.option(
    "--shard-size", metavar="SIZE", default="500MB", callback=size, help="About so large is a shard."
)
@flags("num_workers", "allow_partial", "allow_pickle", "as_json", "progress")
def export(
    paths: Sequence[str],
    output: str,
    to: interop.Format,
    where: str | None,
    fields: Sequence[str],
    labels: Sequence[str],
    no_labels: bool,
    shard_size: int,
    num_workers: int | str | None,
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

    \b
    Example:
      edcache export train.zip -o shards --to webdataset --where "split == 'train'" -j 8
    """
    ds = dataset.CachedDataset.from_cache(
        paths[0] if len(paths) == 1 else paths, allow_partial=True, allow_pickle=allow_pickle
    )
    view: Any = ds
    if allow_partial:
        import numpy as np

        view = ds[np.setdiff1d(np.arange(len(ds)), ds.missing)]
    view = view if where is None else view.filter(where)
    view = view.select(*fields) if fields else view
    with bar("exporting to", output, progress, unit="") as on_progress:
        paths = interop.export(
            view,
            output,
            to,
            num_workers=num_workers or 0,
            shard_size=shard_size,
            labels=list(labels) or not no_labels,
            on_progress=on_progress,
            allow_partial=allow_partial,
        )
    document = {"path": os.path.dirname(paths[0]), "to": to, "samples": len(view)}
    line = printable(f"{document['path']}: {plural(len(view), 'sample')} as {to}")
    print_report(as_json, document, [line])
