"""build, images: fill an archive with the dataset that a factory makes, or with a folder of image files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from edcache.cli.call import Call
from edcache.cli.group import FOLDER, PATH, argument_option, as_typed, main, pickle_option, progress_option
from edcache.durable import check_outlives
from edcache.errors import ArchiveNotFoundError, StaleCacheError
from edcache.present import plural
from edcache.sizes import human_bytes

# As in edcache.fill and edcache.codec, which import torch.
ON_ERROR, IF_FILLING = ("raise", "skip", "skip_final"), ("join", "wait", "fail")
FORMS = ("pil", "numpy", "tensor")

if TYPE_CHECKING:
    from edcache.dataset import CachedDataset

workers_option = click.option(
    "-j",
    "--num-workers",
    metavar="[N]",
    is_flag=False,
    flag_value="auto",
    help="Processes that compute; -j alone, or auto: one for each processor that this process may use.",
)
on_error_option = click.option(
    "--on-error", type=click.Choice(ON_ERROR), help="What becomes of a sample that fails."
)
rebuild_option = click.option(
    "--rebuild", is_flag=True, help="Build anew and put it in the place of what is there."
)


@main.command()
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option("-o", "--out", required=True, metavar="PATH", type=PATH, help="The archive to fill.")
@click.option("--key", "keys", multiple=True, metavar="[NAME=]FIELD", help="A label column; repeatable.")
@argument_option
@click.option("--compression", metavar="TEXT", help="zstd, zstd:19 or zstd+dict; none by default.")
@click.option("--codec", type=click.Choice(["native", "pickle"]), help="native by default.")
@pickle_option
@click.option("--chunk-size", type=click.IntRange(min=1), help="Most samples that one publication holds.")
@workers_option
@on_error_option
@click.option("--retries", type=click.IntRange(min=1), help="Tries again at once when the source raises.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds for one sample.")
@click.option("--if-filling", type=click.Choice(IF_FILLING), help="When another process fills it: join.")
@click.option("--grow", is_flag=True, help="Add to an archive whose source has become longer.")
@click.option("--no-space-check", is_flag=True, help="Fill although the disk seems too small.")
@click.option("--version", metavar="VALUE", help="Change it when the factory makes other samples.")
@progress_option
@rebuild_option
def build(
    factory: str,
    out: str,
    keys: Sequence[str],
    arguments: Sequence[str],
    version: str | None,
    rebuild: bool,
    num_workers: str | None,
    no_space_check: bool,
    **options: Any,
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
    if options["codec"] == "pickle" and not options["allow_pickle"]:
        raise click.UsageError("--codec pickle needs --allow-pickle: nothing could be read back without it")
    options["in_memory_keys"] = label_keys(keys)
    options["num_workers"] = workers(num_workers)
    call = Call(factory, arguments, version)
    chosen = {"check_space": not no_space_check} | call.options | given(options)
    fill(out, rebuild, call.make, chosen | {"fingerprint": call.fingerprint()})


@main.command()
@click.argument("folder", type=FOLDER)
@click.option("-o", "--out", required=True, metavar="PATH", type=PATH, help="The archive to fill.")
@click.option(
    "--decode", type=click.Choice(FORMS), default="pil", help="What readers get unless they choose: pil."
)
@click.option(
    "--extension", "extensions", multiple=True, metavar=".EXT", help="Files that count; repeatable."
)
@workers_option
@on_error_option
@progress_option
@rebuild_option
def images(
    folder: str,
    out: str,
    decode: str,
    extensions: Sequence[str],
    rebuild: bool,
    num_workers: str | None,
    **options: Any,
) -> None:
    """Fill an archive with a tree of image files, as they are: FOLDER/dog/1.jpg, a folder for each class.

    Samples are {"image", "label", "path"}; label and path are label columns. Nothing is decoded before a
    sample is read. The same command resumes after a kill; files that changed since then make the archive
    another folder's, and --rebuild builds it anew.

    \b
    Example:
      edcache images imagenet/train -o train.zip --decode tensor -j 8
    """
    from edcache.folders import EXTENSIONS, image_folder

    options["num_workers"] = workers(num_workers)
    fill(out, rebuild, lambda: image_folder(folder, decode, extensions or EXTENSIONS), given(options))


def workers(text: str | None) -> int | str | None:
    """What --num-workers means."""
    if text is None or text == "auto":
        return text
    if not text.isascii() or not text.isdigit():
        raise click.UsageError(f"--num-workers {text}: give a number, or auto")
    return int(text)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Those options that were given: not None, nor False."""
    return {k: v for k, v in options.items() if v is not None and (v or k == "progress")}


def fill(
    out: str,
    rebuild: bool,
    make: Callable[[], Any],
    options: dict[str, Any],
    cached: Callable[..., CachedDataset] | None = None,
) -> CachedDataset:
    """Make a source, cache it at `out`, and say what was done.

    Args:
        cached: fills and opens; CachedDataset unless given.
    """
    check_outlives(out)
    began = time.monotonic()
    kept = 0 if rebuild else _records_at(out)
    with _told_how_to_resume(out, rebuild):
        cache = _filled(make(), out, rebuild, options, cached)
    click.echo(as_typed(_build_summary(cache, kept, time.monotonic() - began)))
    return cache


def _filled(source: Any, out: str, rebuild: bool, options: dict[str, Any], cached: Any) -> CachedDataset:
    from edcache.dataset import CachedDataset

    try:
        found: CachedDataset = (cached or CachedDataset)(source, out, keep_existing=not rebuild, **options)
        return found
    except StaleCacheError as error:
        raise StaleCacheError(f"{error}\non the command line that is --rebuild") from error


def label_keys(keys: Sequence[str]) -> list[str] | dict[str, str] | None:
    """What --key asks for, as `in_memory_keys` takes it."""
    if not any("=" in key for key in keys):
        return list(keys) or None
    split = [key.partition("=") for key in keys]
    return {name: path if equals else name for name, equals, path in split}


def _records_at(path: str) -> int:
    """How many samples an archive holds before a build; 0 where there is none to read."""
    from edcache.stores import store_at

    reader = store_at(path).reader(allow_partial=True)
    try:
        return len(reader.records.offset)
    except (ArchiveNotFoundError, ValueError):
        return 0
    finally:
        reader.close()


@contextmanager
def _told_how_to_resume(out: str, rebuild: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        from edcache.durable import shown

        out = shown(out)
        if rebuild:
            message = f"interrupted; {out} is as it was before, a rebuild starts from nothing"
        else:
            message = f"interrupted; {out} keeps what was computed, run the same command again to go on"
        raise KeyboardInterrupt(message) from None


def _build_summary(cache: CachedDataset, kept: int, seconds: float) -> str:
    present = len(cache.reader.records.offset)
    failed = f", {plural(len(cache.errors), 'sample')} failed" if cache.errors else ""
    return (
        f"{cache.path}: {plural(len(cache), 'sample')} ({present - kept:,} computed now, {kept:,} kept"
        f"{failed}), {human_bytes(cache.reader.nbytes)}, {seconds:.1f} s"
    )
