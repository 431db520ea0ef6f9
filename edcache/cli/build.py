"""advise, build, images, import: fill archives, also by a call of a factory, and forecast a fill."""

from __future__ import annotations

import inspect
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NoReturn, get_args

import click

from edcache import dataset, identity, interop, tools
from edcache.base import CacheOptions, OptionError, human_bytes, index_ranges
from edcache.cli import output as out
from edcache.cli.flags import PATH, flags, output
from edcache.storage import is_in_memory, located


class Call:
    """Call of a dataset factory, not made yet.

    Args:
        where: "package.module:factory"; the module is imported, with the current folder on the path.
        arguments: texts "name=value"; a value is read as JSON if it is JSON, else as text.
        version: the text of the user's version, read alike; None takes @cachable's.
    Attributes:
        options: of a function under @cachable, but for verify, lazy and keep_existing.
    """

    def __init__(self, where: str, arguments: Sequence[str], version: str | None) -> None:
        self._where = where
        self._given = dict(map(_argument, arguments))
        self._version = None if version is None else _value(version)
        self._factory, self._ignored = _load(where), tuple[str, ...]()
        self.options = CacheOptions()
        if isinstance(self._factory, dataset.CachedFactory):
            decorated = self._factory
            self.options = replace(decorated.options, verify="touch", lazy=False, keep_existing=True)
            self._version = decorated.version if self._version is None else self._version
            self._factory, self._ignored = decorated.uncached, tuple(decorated.ignored)
        try:
            bound = inspect.signature(self._factory).bind(**self._given)
        except TypeError as error:
            raise click.UsageError(f"{where}: {error}; give its arguments as --arg name=value") from None
        except ValueError as error:
            raise OptionError(f"{where}: {error}; name a function or a class of Python") from error
        bound.apply_defaults()
        self._arguments = dict(bound.arguments)

    def recipe(self) -> identity.Recipe:
        """Describe the call; nothing is called."""
        return identity.recipe_of_call(self._factory, self._arguments, self._version, self._ignored)

    def make(self) -> Any:
        """Call the factory."""
        with _users_code(f"{self._where} raised"):
            source = self._factory(**self._given)
        if source is None:
            raise OptionError(f"{self._where} returned None; let it return the dataset")
        return source


def _load(where: str) -> Any:
    """Import the function that "package.module:function" names; the current folder is on the path."""
    module, _, attribute = where.partition(":")
    if not (module and attribute):
        raise click.UsageError(f'"{where}"; write it as package.module:factory')
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with _users_code(f'cannot load "{where}":'):
        factory: Any = import_module(module)
        for name in attribute.split("."):
            factory = getattr(factory, name)
    if not callable(factory):
        raise OptionError(f'"{where}" is {factory!r}, not a function that makes a dataset; name one')
    return factory


@contextmanager
def _users_code(text: str) -> Iterator[None]:
    """Turn exceptions of a user's code, sys.exit() too, into an error that begins with a text."""
    try:
        yield
    except (Exception, SystemExit) as error:  # of any class: it is the user's
        raise OptionError(f"{text} {out.raised(error)}") from error


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f'"{text}"; write it as name=value', param_hint="--arg")
    return name, _value(value)


def _value(text: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return text


@click.command()
@click.argument("what", metavar="SCRIPT.py|MODULE:FACTORY", type=PATH)
@flags("arguments", "as_json")
def advise(what: str, arguments: Sequence[str], as_json: bool) -> None:
    """Tell where an epoch's time goes, and where to cut.

    SCRIPT.py is run until it iterates a DataLoader. That is measured, one batch is replayed to the loop some ten times,
    for the time of its step, and the script ends. Of MODULE:FACTORY, which is called as build does, the dataset is
    measured.

    \b
    Example:
      edcache advise train.py
      edcache advise digits:make --arg split=train
    """
    if what.endswith(".py"):
        if not os.path.exists(what):
            raise click.UsageError(f"{what}: no such script")
        code = (
            f"import sys; from edcache.cli.build import advise_script; advise_script(sys.argv[1], {as_json})"
        )
        sys.exit(subprocess.run([sys.executable, "-c", code, what]).returncode)  # noqa: S603 - asked for
    _print_found(as_json, tools.headroom(Call(what, arguments, None).make()))


def advise_script(script: str, as_json: bool) -> None:
    """Run a script in this process until its first DataLoader is measured, and print the result; then exit."""
    sys.argv, sys.path[0] = [script], os.path.dirname(os.path.abspath(script))
    tools.measure_first_loader(partial(_print_found, as_json))
    runpy.run_path(script, run_name="__main__")
    out.print_error(
        f"{script} ended before a second batch of a DataLoader; give MODULE:FACTORY of its dataset"
    )
    sys.exit(out.FAILED)


def _print_found(as_json: bool, found: tools.Headroom) -> None:
    out.print_report(as_json, found.to_json(), [str(found)])


@click.command()
@click.argument("factory", metavar="MODULE:FACTORY")
@output()
@flags("in_memory_keys", "arguments", "compression", "codec", "chunk_size", "batch_size")
@flags(
    "num_workers",
    "on_error",
    "timeout",
    "grow",
    "version",
    "spot_check",
    "progress",
    "keep_existing",
    "as_json",
)
def build(factory: str, arguments: Sequence[str], version: str | None, **options: Any) -> None:
    """Fill an archive with the dataset that a function makes.

    MODULE:FACTORY is imported with the current directory on the path and called with the --arg values, read as JSON
    if they are JSON ('"3"' is the text 3), else as text; --version is read alike. Only samples that the archive
    lacks are computed, so the same command resumes after a kill, and several at once share the work. A call of the
    function under @cachable with the same path and arguments opens this archive; the options of a decorated function
    are the defaults here.

    \b
    Example:
      edcache build digits:make -o train.zip --key label --arg split=train
    """
    call = Call(factory, arguments, version)
    recipe = call.recipe()

    def cached(source: Any, path: str, **chosen: Any) -> dataset.CachedDataset:
        chosen["fingerprint"] = identity.recipe_of(source, recipe)
        return dataset.CachedDataset(source, path, call.options, **chosen)

    _fill(call.make, cached, **options)


@click.command()
@click.argument("folder", type=PATH)
@output()
@click.option(
    "--decode", type=click.Choice(["pil", "numpy", "tensor"]), default="pil", help="Form of images at a read."
)
@flags("num_workers", "on_error", "progress", "keep_existing", "as_json")
def images(folder: str, decode: Any, **options: Any) -> None:
    """Fill an archive with a tree of image files, as they are.

    FOLDER has a folder for each class: FOLDER/dog/1.jpg. Samples are {"image", "label", "path"}; label, path and
    class_name are label columns. Nothing is decoded before a sample is read. The same command resumes after a kill;
    after a file has changed, --rebuild builds the archive anew.

    \b
    Example:
      edcache images imagenet/train -o train.zip --decode tensor -j 8
    """
    _fill(partial(interop.image_folder, folder, decode), dataset.CachedDataset, **options)


def _fill(
    make: Callable[[], Any],
    cached: Callable[..., dataset.CachedDataset],
    *,
    output: str,
    as_json: bool,
    **options: Any,
) -> dataset.CachedDataset:
    """Make a source, cache it at a path, and print the state of the archive."""
    where = located(output)
    if is_in_memory(where.path):
        where.local_path()  # raises for shared memory, which would be freed when this process ends
    began = time.monotonic()
    cache = cached(make(), output, **{name: v for name, v in options.items() if v is not None})
    info = cache.info()
    document = {name: info[name] for name in ("path", "samples", "present", "nbytes")}
    document |= {"failed": len(cache.errors), "missing": cache.missing.tolist()}
    document["seconds"] = seconds = time.monotonic() - began
    failed = f", {out.plural(len(cache.errors), 'sample')} failed" if cache.errors else ""
    size = f"{human_bytes(info['nbytes'])}, {seconds:.1f} s"
    line = f"{cache.path}: {info['present']:,} of {out.plural(len(cache), 'sample')}{failed}, {size}"
    out.print_report(as_json, document, [out.printable(line)])
    return cache


@click.command("import")
@click.argument("old", type=PATH)
@output()
@click.option(
    "--from", "kind", type=click.Choice(get_args(interop.Kind)), required=True, help="Writer of OLD."
)
@flags("in_memory_keys")
@click.option("--trust-pickle", is_flag=True, help="Unpickle everything in OLD; its author's code runs.")
@click.option("--for", "factory", metavar="MODULE:FACTORY", help="@cachable call that takes the archive.")
@flags("arguments", "compression", "codec", "num_workers", "on_error", "progress")
@flags("keep_existing", "as_json")
def import_(
    old: str,
    kind: interop.Kind,
    trust_pickle: bool,
    factory: str | None,
    arguments: Sequence[str],
    **options: Any,
) -> None:
    """Fill an archive with the samples of another system's cache.

    OLD is only read. Samples keep their indices, types and dtypes; the labels of an edflow cache become label columns.
    Pickles may hold plain data, numpy arrays and torch tensors: the error of another one names the class. The same
    command resumes after a kill.

    \b
    Exit codes:
      0    every sample is in the archive
      1    OLD lacks samples, or they could not be read: they are listed
    \b
    Example:
      edcache import cached/train.zip -o train.zip --from edflow -j 4
    """
    if factory is not None:
        options["fingerprint"] = Call(factory, arguments, None).recipe()
    elif arguments:
        raise click.UsageError("--arg goes with --for MODULE:FACTORY")
    filled = partial(interop.import_cache, kind=kind, trust_pickle=trust_pickle)
    cache = _fill(lambda: old, filled, **options)
    if not cache.complete:
        if not options["as_json"]:
            click.echo(f"missing: {index_ranges(cache.missing)}")
        sys.exit(out.FAILED)
