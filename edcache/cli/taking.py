"""import: an archive from another system's cache; and the flags of edflow's own `edcache` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from edcache.cli.build import (
    fill,
    given,
    label_keys,
    on_error_option,
    rebuild_option,
    workers,
    workers_option,
)
from edcache.cli.call import Call
from edcache.cli.group import FAILED, PATH, argument_option, main, pickle_option, progress_option
from edcache.errors import ForeignCacheError
from edcache.present import index_ranges, one_line

# As in edcache.importers, which imports torch.
KINDS = (
    *("edflow", "torch_xla", "monai", "webdataset", "tensordict", "mds", "litdata", "huggingface", "images"),
)


@main.command("import")
@click.argument("old", type=PATH)
@click.option("-o", "--out", required=True, metavar="PATH", type=PATH, help="The archive to fill.")
@click.option("--from", "kind", type=click.Choice(KINDS), help="What OLD is; by default it is recognised.")
@click.option(
    "--trust-pickle", is_flag=True, help="Unpickle whatever OLD holds, which runs code that its author chose."
)
@click.option(
    "--order", metavar="FILE", type=PATH, help="For monai: the names of the files in order, one a line."
)
@click.option(
    "--key", "keys", multiple=True, metavar="[NAME=]FIELD", help="A label column; by default those of OLD."
)
@click.option("--for", "factory", metavar="MODULE:FACTORY", help="The @cachable call that takes the archive.")
@argument_option
@click.option("--compression", metavar="TEXT", help="zstd, zstd:19 or zstd+dict; none by default.")
@click.option("--codec", type=click.Choice(["native", "pickle"]), help="native by default.")
@pickle_option
@workers_option
@on_error_option
@progress_option
@rebuild_option
def import_(
    old: str,
    out: str,
    kind: str | None,
    trust_pickle: bool,
    order: str | None,
    keys: Sequence[str],
    factory: str | None,
    arguments: Sequence[str],
    rebuild: bool,
    num_workers: str | None,
    **options: Any,
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
    from edcache.importers import import_cache, old_cache

    if options["codec"] == "pickle" and not options["allow_pickle"]:
        raise click.UsageError("--codec pickle needs --allow-pickle: nothing could be read back without it")
    options["in_memory_keys"] = label_keys(keys)
    options["num_workers"] = workers(num_workers)
    if factory is not None:
        options["fingerprint"] = Call(factory, arguments, None).fingerprint()
    elif arguments:
        raise click.UsageError("--arg goes with --for MODULE:FACTORY")
    source = old_cache(old, kind, trust_pickle=trust_pickle, order=None if order is None else _lines(order))
    for note in source.notes:
        click.echo(one_line(f"{old}: {note}"), err=True)
    cache = fill(out, rebuild, lambda: source, given(options), import_cache)
    if not cache.complete:
        click.echo(f"missing: {index_ranges(cache.missing)}")
        sys.exit(FAILED)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.strip() for line in file if line.strip()]
    except UnicodeDecodeError:
        raise ForeignCacheError(f"{path}: no text in UTF-8; write the name of one file a line") from None


def as_edflow(dataset: str | None, server: bool, address: str | None) -> None:
    """What `edcache -d package.factory -s` and `-a HOST` did: fill the cache of a dataset."""
    from edcache.compat.edflow import open_or_fill

    if dataset is None or not (server or address):
        raise click.UsageError("edflow's flags go together: -d package.factory with -s, or with -a HOST")
    module, _, attribute = dataset.rpartition(".")
    source = Call(dataset if ":" in dataset else f"{module}:{attribute}", (), None).make()
    click.echo(
        "edcache: no server is needed: every process that runs this fills the same file, and shares the work"
        + (f"; {address} is not contacted" if address else ""),
        err=True,
    )
    cache = open_or_fill(source)
    click.echo(f"{cache.path}: {len(cache):,} samples")
