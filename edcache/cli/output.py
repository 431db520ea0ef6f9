"""Output of commands: lines, tables, CSV, JSON; an error as one line and an exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import click

from edcache import dataset
from edcache.base import EdcacheError, Progress, brief, is_debugging, plain, shortened, text_table
from edcache.base import printable as printable  # for all commands
from edcache.storage import shown

FAILED: Final = 1
_INTERRUPTED: Final = 130
_FIRST: Final = 20
_NARROWEST_BAR: Final = 10
_WIDEST_BAR: Final = 40


def plural(number: int, noun: str) -> str:
    """Write a number and a noun: "1 sample", "1,000 samples"."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def one_line(message: str) -> str:
    """Join the lines of a message to one; after a colon or a comma the next line follows directly."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    joined = "".join(line + (" " if line.endswith((":", ",")) else "; ") for line in lines[:-1])
    return printable(joined + (lines[-1] if lines else ""))


def cell(value: object) -> str:
    """Write a value as a cell of a table, short and on one line."""
    return shortened(printable(brief(value)))


def _columns() -> int | None:
    """Return the width of the terminal that stdout is; None if it is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table, aligned; numbers and sizes to the right.

    The first column is not shortened: its names are typed elsewhere.
    """
    texts = ([printable(brief(row[0])), *map(cell, row[1:])] for row in rows)
    return text_table(list(map(cell, header)), texts, _columns())


def count_table(header: Sequence[str], rows: Sequence[tuple[object, int]]) -> Iterator[str]:
    """Yield the lines of a table of values and their counts; on a terminal with a bar each, where there is room."""
    names, counts = [printable(brief(name)) for name, _ in rows], [count for _, count in rows]
    taken = max(map(len, [header[0], *names])) + max(map(len, [header[1], *map(str, counts)])) + 4
    room = min(_WIDEST_BAR, (_columns() or 0) - taken)
    if room < _NARROWEST_BAR:
        return table(header, rows)
    mark = "\u2588" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    greatest = max(counts, default=0) or 1
    bars = (mark * max(round(room * count / greatest), count > 0) for count in counts)
    return table((*header, ""), zip(names, counts, bars, strict=True))


def paired_lines(items: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield a line for each name and value, aligned, but for values of None."""
    listed = [(name, printable(str(value))) for name, value in items if value is not None]
    width = max((len(name) for name, _ in listed), default=0) + 2
    lines = textwrap.TextWrapper(_columns() or sys.maxsize, subsequent_indent=" " * width)
    lines.break_long_words = lines.break_on_hyphens = False  # of a path
    for name, value in listed:
        yield from lines.wrap(name.ljust(width) + value)


def _csv_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield lines of RFC 4180 with a header; a missing value is an empty field, a list its JSON."""
    for row in chain([header], rows):
        values = (json.dumps(v) if isinstance(v, (list, dict)) else v for v in map(plain, row))
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="").writerow(values)
        text = buffer.getvalue()
        yield printable(text) if sys.stdout.isatty() else text


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they come."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def print_rows(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    total: int,
    *,
    form: str | None,
    limit: int | None,
    fixed: int | None = None,
    table: Callable[[Sequence[str], Sequence[Any]], Iterable[str]] = table,
) -> None:
    """Print rows as a table (20 without a limit), as CSV, or as one JSON list with an object a row.

    Columns behind the first `fixed` ones are labels, with arbitrary names: JSON has them as one object.
    """
    if form == "csv":
        print_lines(_csv_lines(header, islice(rows, limit)))
    elif form == "json":
        sys.stdout.write("[")
        for number, row in enumerate(islice(rows, limit)):
            sys.stdout.write(",\n " * (number > 0) + json.dumps(_object(header, row, fixed)))
        sys.stdout.write("]\n")
    else:
        print_lines(table(header, list(islice(rows, _FIRST if limit is None else limit))))
        if limit is None and total > _FIRST:
            click.echo(f"... of {total:,} rows; --limit shows more, --csv and --json show all", err=True)


def _object(header: Sequence[str], row: Sequence[Any], fixed: int | None) -> dict[str, Any]:
    names, values = header[:fixed], map(plain, row)
    named = dict(zip(names, values, strict=False))
    return named if fixed is None else named | {"labels": dict(zip(header[fixed:], values, strict=True))}


def print_report(as_json: bool, document: object, lines: Iterable[str]) -> None:
    """Print one JSON document, or lines for a person."""
    print_lines([json.dumps(document, indent=1)] if as_json else lines)


# Of an archive: JSON, lines of text, True if it is sound.
Printout: TypeAlias = "tuple[Mapping[str, Any], Iterable[str], bool]"


def print_reports(paths: Sequence[str], as_json: bool, report_of: Callable[[str], Printout]) -> None:
    """Print the report of each archive of paths, folders and globs; exit with 1 if one is not sound.

    For several paths, a folder or a glob JSON is a list. An unreadable archive of these is a line on stderr, and in
    JSON an object with "path" and "error"; the others are still reported.
    """
    archives = dataset.expand_paths(paths[0] if len(paths) == 1 else paths)
    documents, are_good = [], []
    for path in archives or paths:
        try:
            document, lines, is_good = report_of(path)
        except (EdcacheError, OSError) as error:
            if archives is None:
                raise
            line = error_line(error, click.get_current_context().command)
            document, lines, is_good = {"path": shown(path), "error": line}, (), False
            print_error(line)
        documents.append(document)
        are_good.append(is_good)
        if not as_json:
            print_lines(lines)
    if as_json:
        print_report(True, documents[0] if archives is None else documents, ())
    if not all(are_good):
        sys.exit(FAILED)


def bar(doing: str, path: str, progress: bool | None, unit: str = "B") -> Progress:
    """Make a bar on stderr, to be called with (done, total) of bytes, or samples; by default on a terminal."""
    return Progress(os.path.basename(shown(path)), progress, doing=doing, unit=unit)


@contextmanager
def errors_in_one_line(ctx: click.Context) -> Iterator[None]:
    """End a command with a line on stderr if it raises; a warning is a line too.

    click reports wrong usage, and ends quietly when its output is closed.
    """
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print_error(f"warning: {one_line(str(message))}")
        try:
            yield
        except (BrokenPipeError, click.exceptions.Exit, click.Abort, click.ClickException):
            raise
        except KeyboardInterrupt:
            print_error("interrupted")
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except Exception as error:  # the last handler of a command, which shows no traceback
            if is_debugging():
                raise
            group, name = ctx.command, ctx.invoked_subcommand
            assert isinstance(group, click.Group)
            print_error(error_line(error, group.commands[name or ""]))
            raise click.exceptions.Exit(FAILED) from None


def print_error(message: str) -> None:
    """Print a line on stderr."""
    click.echo(f"edcache: {message}", err=True)


def error_line(error: Exception, command: click.Command) -> str:
    """Return the text of an error as one line, with the command's flag for its option."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torch":
        return "this command reads samples, which takes torch; install it with: pip install torch"
    text = str(error)
    if isinstance(error, EdcacheError):
        flags = [param.opts[-1] for param in command.params if param.name == error.option]
        text = f"{text} ({flags[0]})" if flags else text
    elif isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    elif not isinstance(error, OSError):
        text = raised(error)
    return one_line(text)


def raised(error: BaseException) -> str:
    """Write an exception of a user's code."""
    return f"{type(error).__name__}: {error}; EDCACHE_DEBUG=1 shows the traceback"
