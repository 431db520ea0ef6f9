"""The command line: parse, call one function, print, exit.

Nothing that imports torch is imported at the top, so that `edcache --help` answers at once.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from edcache import __version__
from edcache.errors import ArchiveNotFoundError, EdcacheError, OptionError, StaleCacheError
from edcache.present import (
    csv_lines,
    describe_fields,
    describe_sample,
    human_bytes,
    info_lines,
    json_lines,
    leaf_row,
    one_line,
    plain,
    plural,
    report_lines,
    table,
)

if TYPE_CHECKING:
    from edcache.dataset import CachedDataset
    from edcache.labels.view import Labels
    from edcache.reader import Reader

FAILED, INTERRUPTED = 1, 130
_BLOCK: Final = 10_000
# Options of @cachable that say how to read or when to fill; a build from the command line decides these.
_NOT_FOR_BUILDING: Final = ("lazy", "force_cache", "keep_existing", "zero_copy", "verify", "fingerprint")


class _Commands(click.Group):
    """A group whose commands end in one line for an error, with the exit codes of `edcache --help`."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            click.echo(f"edcache: {stop.args[0] if stop.args else 'interrupted'}", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            raise  # click ends quietly when nobody reads on
        except (EdcacheError, OSError) as error:
            if os.environ.get("EDCACHE_DEBUG", "0") not in ("", "0"):
                raise
            click.echo(f"edcache: {_message(error)}", err=True)
            ctx.exit(FAILED)


def _message(error: Exception) -> str:

    if isinstance(error, OSError) and not isinstance(error, EdcacheError) and error.filename:
        return one_line(f"{error.filename}: {error.strerror}")
    return one_line(str(error))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edcache", message="%(prog)s %(version)s")
def main() -> None:
    """Build, look into and check edcache archives.

    An archive is one zip file with the samples of a dataset. Every command but build only reads it,
    and works on one that is still growing.

    \b
    Exit codes:
      0    success
      1    failure, or an archive that is not sound
      2    wrong usage
      130  interrupted

    \b
    Environment:
      EDCACHE_DEBUG=1     show the traceback of an error
      EDCACHE_PROGRESS=0  no progress bars (1: always)

    \b
    Completion of commands and options, in ~/.bashrc (zsh_source and fish_source work too):
      eval "$(_EDCACHE_COMPLETE=bash_source edcache)"

    \b
    Example:
      edcache info train.zip
    """


def _print(lines: Iterable[str]) -> None:
    """Print lines as they come, many at a time."""
    remaining = iter(lines)
    while block := list(islice(remaining, _BLOCK)):
        # color=True: click would take escape sequences out of labels that go into a file.
        click.echo("\n".join(block), color=True)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=1))


_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
_progress_option = click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; by default on a terminal."
)
_pickle_option = click.option(
    "--allow-pickle", is_flag=True, help="Read pickles, which run whatever code their author chose."
)


# ------------------------------------------------------------------------------------------ build


@main.command()
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option("-o", "--out", required=True, metavar="PATH", help="The archive to fill.")
@click.option("--key", "keys", multiple=True, metavar="[NAME=]FIELD", help="A label column; repeatable.")
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument; repeatable.")
@click.option("--compression", metavar="TEXT", help="zstd, zstd:19 or zstd+dict; none by default.")
@click.option("--codec", type=click.Choice(["native", "pickle"]), help="native by default.")
@_pickle_option
@click.option("--chunk-size", type=click.IntRange(min=1), help="Most samples that one publication holds.")
@click.option("--version", metavar="VALUE", help="Change it when the factory makes other samples.")
@_progress_option
@click.option("--rebuild", is_flag=True, help="Build anew and put it in the place of what is there.")
def build(
    factory: str,
    out: str,
    keys: Sequence[str],
    arguments: Sequence[str],
    version: str | None,
    rebuild: bool,
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
    named = dict(_named_value(text) for text in arguments)
    options["in_memory_keys"] = _label_keys(keys)
    call = _Call(factory, named, None if version is None else _value(version))
    began = time.monotonic()
    kept = 0 if rebuild else _records_at(out)
    with _told_how_to_resume(out, rebuild):
        cache = call.fill(out, rebuild, options)
    click.echo(_build_summary(cache, kept, time.monotonic() - began))


class _Call:
    """A call of a dataset factory: loaded, with its arguments bound, not made yet."""

    def __init__(self, where: str, arguments: dict[str, Any], version: object) -> None:
        from edcache.decorator import CachedFactory

        self._where = where
        self._given = arguments
        self._factory = _load(where)
        self.version = version
        self.options: dict[str, Any] = {}
        if isinstance(self._factory, CachedFactory):
            decorated = self._factory
            self.options = {k: v for k, v in decorated.options.items() if k not in _NOT_FOR_BUILDING}
            self.version = decorated.version if version is None else version
            self._factory = decorated.uncached
        self._arguments = self._bound()

    def fill(self, out: str, rebuild: bool, options: dict[str, Any]) -> CachedDataset:
        """Make the source and cache it at `out`; options that are None or False were not given."""
        from edcache.dataset import CachedDataset
        from edcache.fingerprint import call_fingerprint

        fingerprint = call_fingerprint(self._factory, self._arguments, self.version)
        given = {k: v for k, v in options.items() if v is not None and (v or k == "progress")}
        source = self._made()
        try:
            return CachedDataset(
                source, out, keep_existing=not rebuild, fingerprint=fingerprint, **self.options | given
            )
        except StaleCacheError as error:
            raise StaleCacheError(f"{error}\non the command line that is --rebuild") from error

    def _bound(self) -> dict[str, Any]:
        try:
            bound = inspect.signature(self._factory).bind(**self._given)
        except TypeError as error:
            raise click.UsageError(
                f"{self._where}: {error}; give its arguments as --arg name=value"
            ) from None
        except ValueError as error:
            raise OptionError(f"{self._where}: {error}; name a function or a class of Python") from error
        bound.apply_defaults()
        return dict(bound.arguments)

    def _made(self) -> Any:
        try:
            return self._factory(**self._given)
        except Exception as error:
            raise OptionError(f"{self._where} raised {_named(error)}") from error


def _load(where: str) -> Any:
    module, _, attribute = where.partition(":")
    if not (module and attribute):
        raise click.BadParameter(
            f'"{where}"; write it as package.module:factory', param_hint="MODULE:FACTORY"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except Exception as error:
        raise OptionError(f'cannot load "{where}": {_named(error)}') from error
    if not callable(found):
        raise OptionError(f'"{where}" is {found!r}, not a function that makes a dataset')
    return found


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}; EDCACHE_DEBUG=1 shows the traceback"


def _named_value(text: str) -> tuple[str, Any]:
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


def _label_keys(keys: Sequence[str]) -> list[str] | dict[str, str] | None:
    if not any("=" in key for key in keys):
        return list(keys) or None
    split = [key.partition("=") for key in keys]
    return {name: path if equals else name for name, equals, path in split}


def _records_at(path: str) -> int:
    """How many samples an archive holds before a build; 0 where there is none to read."""
    from edcache.reader import Reader

    reader = Reader(path)
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
        if rebuild:
            message = f"interrupted; {out} is as it was before, a rebuild starts from nothing"
        else:
            message = f"interrupted; {out} keeps what was computed, run the same command again to go on"
        raise KeyboardInterrupt(message) from None


def _build_summary(cache: CachedDataset, kept: int, seconds: float) -> str:
    present = len(cache.reader.records.offset)
    return (
        f"{cache.path}: {plural(len(cache), 'sample')} ({present - kept:,} computed now, {kept:,} kept), "
        f"{human_bytes(cache.reader.nbytes)}, {seconds:.1f} s"
    )


# ------------------------------------------------------------------------------------------- info


@main.command()
@click.argument("path")
@_json_option
def info(path: str, as_json: bool) -> None:
    """Say what an archive holds and where it comes from, without reading a sample.

    \b
    Example:
      edcache info train.zip --json
    """
    from edcache.reader import Reader

    said = _said(Reader(path))
    if as_json:
        _print_json(said)
    else:
        _print(info_lines(said))


def _said(reader: Reader) -> dict[str, Any]:
    """Everything that `info` tells, as JSON has it."""
    import numpy as np

    from edcache import format

    head, records = reader.head, reader.records
    nbytes = records.nbytes
    return {
        "path": reader.path,
        "format_version": format.VERSION,
        "uuid": head.uuid.hex(),
        "sealed": reader.sealed,
        "samples": len(reader),
        "missing": len(reader) - len(nbytes),
        "chunks": reader.chunks,
        "nbytes": reader.nbytes,
        "memory": reader.memory(),
        "record_nbytes": {
            "total": int(nbytes.sum()),
            "median": float(np.median(nbytes)) if len(nbytes) else None,
            "max": int(nbytes.max()) if len(nbytes) else None,
            "uncompressed": None if records.raw_nbytes is None else int(records.raw_nbytes.sum()),
        },
        "codec": head.codec,
        "compression": head.compression,
        "labels": {field.name: str(field.type) for field in reader.labels().schema},
        "schemas": _schemas(reader),
        "fingerprint": head.fingerprint,
    }


def _schemas(reader: Reader) -> list[dict[str, Any]]:
    """The schemas, most used first: how many samples have each, and its fields."""
    import numpy as np

    from edcache.codec import Decoder

    used = np.bincount(reader.records.schema, minlength=len(reader.schemas)).tolist()
    order = sorted(range(len(reader.schemas)), key=lambda number: -used[number])
    return [
        {"samples": used[n], "fields": describe_fields(Decoder(reader.schemas[n]).fields.values())}
        for n in order
    ]


# -------------------------------------------------------------------------------------- ls, labels


@main.command()
@click.argument("path")
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Most records shown."
)
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Records to skip first.")
@_json_option
def ls(path: str, limit: int, offset: int, as_json: bool) -> None:
    """List records: sample index, place in the file, checksum and labels.

    \b
    Example:
      edcache ls train.zip --offset 1000 --limit 5
    """
    from edcache.dataset import CachedDataset

    cache = CachedDataset.from_cache(path)
    total = len(cache.reader.records.offset)
    rows = range(min(offset, total), min(offset + limit, total))
    if as_json:
        _print(json_lines(_record_objects(cache, rows)))
        return
    cells = (
        (index, f"{at:,}", f"{nbytes:,}", f"{crc:#010x}", *values)
        for index, at, nbytes, crc, values in _records(cache, rows)
    )
    _print(table(("index", "offset", "nbytes", "crc32", *cache.labels), cells))
    if len(rows) < total:
        click.echo(f"{len(rows):,} of {total:,} records; --limit and --offset choose others", err=True)


def _records(cache: CachedDataset, rows: range) -> Iterator[tuple[int, int, int, int, Sequence[Any]]]:
    """Index, offset, nbytes, crc32 and label values of the records in these rows of the index table."""
    records = cache.reader.records
    for start in range(rows.start, rows.stop, _BLOCK):
        part = slice(start, min(start + _BLOCK, rows.stop))
        columns = (records.offset[part], records.nbytes[part], records.crc32[part])
        indices = (
            list(range(part.start, part.stop)) if records.index is None else records.index[part].tolist()
        )
        values = _label_rows(cache.labels.take(indices), list(cache.labels), len(indices))
        yield from zip(indices, *(column.tolist() for column in columns), values, strict=True)


def _record_objects(cache: CachedDataset, rows: range) -> Iterator[dict[str, Any]]:
    names = list(cache.labels)
    for index, offset, nbytes, crc, values in _records(cache, rows):
        yield {"index": index, "offset": offset, "nbytes": nbytes, "crc32": crc} | {
            "labels": _label_object(names, values)
        }


def _label_object(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in zip(names, values, strict=True)}


def _label_rows(labels: Labels, names: Sequence[str], count: int) -> Iterator[tuple[Any, ...]]:
    """The values of these columns, row by row."""
    if not names:
        return iter([()] * count)
    return zip(*(_column(labels, name) for name in names), strict=True)


def _column(labels: Labels, name: str) -> list[Any]:
    column = labels.column(name)
    try:
        values: list[Any] = column.to_pylist()
    except ValueError:  # a time to the nanosecond, for which Python has no type
        values = list(labels[name])
    return values


@main.command()
@click.argument("path")
@click.option("--where", metavar="EXPR", help="Only samples whose labels fulfil this.")
@click.option("--count", metavar="NAME", help="How often each value of a column occurs.")
@click.option("--columns", metavar="A,B", help="Only these columns.")
@click.option("--limit", type=click.IntRange(min=0), help="Most rows shown; all by default.")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True
)
def labels(
    path: str, where: str | None, count: str | None, columns: str | None, limit: int | None, form: str
) -> None:
    """List or count the labels of the samples that have a record; no sample is read.

    EXPR compares columns with values: == != < <= > >= in, not in, is None, joined by and, or, not,
    with parentheses; startswith(name, "x") and contains(name, "x") look into text.

    \b
    Example:
      edcache labels train.zip --where "label in (1, 2) and split == 'train'" --count label
    """
    from edcache.dataset import CachedDataset

    if count is not None and columns is not None:
        raise click.UsageError("--count shows one column; leave --columns out")
    cache = CachedDataset.from_cache(path)
    indices = _chosen(cache, where)
    if count is not None:
        counts = cache.labels.take(indices).counts(count).items()
        _print_rows(("value", "count"), islice(counts, limit), form)
        return
    names = list(cache.labels) if columns is None else [name.strip() for name in columns.split(",")]
    indices = indices[:limit]
    if form == "json":
        rows = _labels_of(cache, indices, names)
        _print(json_lines({"index": i, "labels": _label_object(names, values)} for i, *values in rows))
    else:
        _print_rows(("index", *names), _labels_of(cache, indices, names), form)


def _chosen(cache: CachedDataset, where: str | None) -> Any:
    """The indices that have a record and fulfil the where-string: int64, sorted."""
    import numpy as np

    records = cache.reader.records
    present = np.arange(len(cache)) if records.index is None else np.asarray(records.index)
    return present if where is None else np.intersect1d(cache.filter(where).indices, present)


def _labels_of(cache: CachedDataset, indices: Any, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """(index, value, ...) for each index, a block of rows in memory at a time."""
    for start in range(0, max(len(indices), 1), _BLOCK):
        part = indices[start : start + _BLOCK]
        values = _label_rows(cache.labels.take(part), names, len(part))
        yield from ((index, *row) for index, row in zip(part.tolist(), values, strict=True))


def _print_rows(header: Sequence[str], rows: Iterable[Sequence[Any]], form: str) -> None:
    if form == "json":
        _print(json_lines({name: plain(v) for name, v in zip(header, row, strict=True)} for row in rows))
    else:
        _print((csv_lines if form == "csv" else table)(header, rows))


# ------------------------------------------------------------------------------------ show, verify


@main.command(context_settings={"ignore_unknown_options": True})  # so that -1 is an index
@click.argument("path")
@click.argument("index", type=int)
@_json_option
@_pickle_option
def show(path: str, index: int, as_json: bool, allow_pickle: bool) -> None:
    """Decode one sample and show its tree; a negative INDEX counts from the end.

    \b
    Example:
      edcache show train.zip -1
    """
    from edcache.dataset import CachedDataset

    cache = CachedDataset.from_cache(path, allow_pickle=allow_pickle)
    leaves = describe_sample(cache[index])
    if as_json:
        _print_json({"path": path, "index": index % len(cache), "leaves": leaves})
    else:
        _print(table(("field", "type", "dtype", "shape", "value"), map(leaf_row, leaves)))


@main.command()
@click.argument("path")
@_json_option
@_progress_option
def verify(path: str, as_json: bool, progress: bool | None) -> None:
    """Check every byte of an archive; exit 1 where something is wrong.

    An archive that is not sealed can be sound: its last writer is at work or was killed, and
    building again goes on from there.

    \b
    Example:
      edcache verify train.zip
    """
    from edcache import maintain

    with _bar(path, progress) as on_progress:
        report = maintain.verify(path, on_progress)
    if as_json:
        names = ("sound", "sealed", "samples", "missing", "chunks", "nbytes", "problems")
        _print_json({"path": path} | {name: getattr(report, name) for name in names})
    else:
        _print(report_lines(path, report))
    if not report.sound:
        sys.exit(FAILED)


@contextmanager
def _bar(path: str, progress: bool | None) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr over the bytes of a file, fed with (bytes done, bytes in all)."""
    said = os.environ.get("EDCACHE_PROGRESS")
    if progress is None:
        progress = said != "0" if said is not None else sys.stderr.isatty()
    if not progress:
        yield None
        return
    with click.progressbar(length=1, label=f"verifying {os.path.basename(path)}", file=sys.stderr) as bar:

        def move(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield move
