"""build, images: fill an archive with the dataset that a factory makes, or with a folder of image files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from edcache import dataset, interop, writer
from edcache.base import ArchiveNotFoundError, ReadOptions, StaleCacheError, human_bytes
from edcache.cli.call import Call
from edcache.cli.flags import FOLDER, flags, given
from edcache.cli.output import as_typed, plural
from edcache.storage import check_outlives, shown


@click.command()
@click.argument("factory", metavar="MODULE:FACTORY")
@flags("out", "in_memory_keys", "arguments", "compression", "codec", "allow_pickle", "chunk_size")
@flags("num_workers", "on_error", "retries", "timeout", "if_filling", "grow", "check_space")
@click.option("--version", metavar="VALUE", help="Change it when the factory makes other samples.")
@flags("progress", "rebuild")
def build(
    factory: str, out: str, arguments: Sequence[str], version: str | None, rebuild: bool, **options: Any
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
    check_codec(options)
    call = Call(factory, arguments, version)
    chosen = given(options) | {"options": call.options, "fingerprint": call.fingerprint()}
    fill(out, rebuild, call.make, chosen)


@click.command()
@click.argument("folder", type=FOLDER)
@flags("out")
@click.option(
    *("--decode",),
    type=click.Choice(["pil", "numpy", "tensor"]),
    default="pil",
    help="What readers get unless they choose: pil.",
)
@click.option(
    "--extension", "extensions", multiple=True, metavar=".EXT", help="Files that count; repeatable."
)
@flags("num_workers", "on_error", "progress", "rebuild")
def images(
    folder: str, out: str, decode: Any, extensions: Sequence[str], rebuild: bool, **options: Any
) -> None:
    """Fill an archive with a tree of image files, as they are: FOLDER/dog/1.jpg, a folder for each class.

    Samples are {"image", "label", "path"}; label and path are label columns. Nothing is decoded before a
    sample is read. The same command resumes after a kill; files that changed since then make the archive
    another folder's, and --rebuild builds it anew.

    \b
    Example:
      edcache images imagenet/train -o train.zip --decode tensor -j 8
    """
    fill(
        out,
        rebuild,
        lambda: interop.image_folder(folder, decode, extensions or interop.EXTENSIONS),
        given(options),
    )


def check_codec(options: dict[str, Any]) -> None:
    """Refuse pickles that nothing could read."""
    if options["codec"] == "pickle" and not options["allow_pickle"]:
        raise click.UsageError("--codec pickle needs --allow-pickle: nothing could be read back without it")


def fill(
    out: str,
    rebuild: bool,
    make: Callable[[], Any],
    options: dict[str, Any],
    cached: Callable[..., dataset.CachedDataset] | None = None,
) -> dataset.CachedDataset:
    """Make a source, cache it at `out` by CachedDataset or what else is given, and say what was done."""
    check_outlives(out)
    began = time.monotonic()
    kept = 0 if rebuild else _records_at(out)
    try:
        cache = (cached or dataset.CachedDataset)(make(), out, keep_existing=not rebuild, **options)
    except StaleCacheError as error:
        raise StaleCacheError(f"{error}\non the command line that is --rebuild") from error
    except KeyboardInterrupt:
        state = "keeps what was computed, run the same command again to go on"
        if rebuild:
            state = "is as it was before, a rebuild starts from nothing"
        raise KeyboardInterrupt(f"interrupted; {shown(out)} {state}") from None
    failed = f", {plural(len(cache.errors), 'sample')} failed" if cache.errors else ""
    counts = f"{len(cache.reader.records.offset) - kept:,} computed now, {kept:,} kept{failed}"
    size = f"{human_bytes(cache.reader.nbytes)}, {time.monotonic() - began:.1f} s"
    click.echo(as_typed(f"{cache.path}: {plural(len(cache), 'sample')} ({counts}), {size}"))
    return cache


def _records_at(path: str) -> int:
    """How many samples an archive holds before a build; 0 where there is none to read."""
    reader = writer.store_at(path).reader(ReadOptions(allow_partial=True))
    try:
        return len(reader.records.offset)
    except (ArchiveNotFoundError, ValueError):
        return 0
    finally:
        reader.close()
