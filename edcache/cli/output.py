"""What a command prints: a value as one line, tables, CSV, JSON; an error as one line and an exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice
from typing import Any, Final, NoReturn, TextIO, TypeAlias

import click

from edcache import dataset
from edcache.base import EdcacheError, brief, byte_progress, plain, shortened
from edcache.base import printable as printable  # what all commands print by
from edcache.cli.flags import flag_of
from edcache.storage import shown

BLOCK: Final = 10_000
FAILED: Final = 1
_WRONG_USAGE: Final = 2
_INTERRUPTED: Final = 130
_FIRST: Final = 20
_LAYOUT_ROWS: Final = 1000
_NUMBER: Final = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?( bytes| [kMGTPE]B)?|nan|[-+]?inf")


def plural(number: int, noun: str) -> str:
    """ "1 sample", "1,000 samples"."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def one_line(message: str) -> str:
    """A message of several lines as one; after a colon or a comma a line runs on into the next."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    joined = "".join(line + (" " if line.endswith((":", ",")) else "; ") for line in lines[:-1])
    return printable(joined + (lines[-1] if lines else ""))


def cell(value: object) -> str:
    """A value as one cell of a table, short and on one line."""
    return shortened(printable(brief(value)))


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, whole: int = 0) -> Iterator[str]:
    """Aligned columns, line by line; numbers and sizes to the right.

    In `whole` columns from the left nothing is shortened: they hold what is typed elsewhere. The widths are
    those of the first thousand rows, so that millions of rows need no memory.
    """
    texts = (
        [printable(str(value)) for value in row[:whole]] + [cell(value) for value in row[whole:]]
        for row in rows
    )
    first = list(islice(texts, _LAYOUT_ROWS))
    names = [cell(name) for name in header]
    widths = [max(map(len, column)) for column in zip(names, *first, strict=True)]
    columns = list(zip(*first, strict=True)) or [()] * len(names)
    right = [all(_NUMBER.fullmatch(text) for text in column) for column in columns]
    for row in chain([names], first, texts):
        padded = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, right, strict=True)
        )
        line = "  ".join(padded).rstrip()
        yield styled(line, bold=True) if row is names else line


def paired_lines(items: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Names and values that are not None, one pair a line, the values aligned."""
    listed = [(name, value) for name, value in items if value is not None]
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        yield f"{styled(name.ljust(width), bold=True)}  {printable(str(value))}".rstrip()


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of RFC 4180 with a header; a missing value is an empty field, a list its JSON."""
    for row in chain([header], rows):
        values = (json.dumps(v) if isinstance(v, (list, dict)) else v for v in map(plain, row))
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="").writerow(values)
        text = buffer.getvalue()
        yield printable(text) if sys.stdout.isatty() else text


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they come, many at a time."""
    remaining = iter(lines)
    while block := list(islice(remaining, BLOCK)):
        # color=True: click would take escape sequences out of labels that go into a file.
        click.echo("\n".join(block), color=True)


def print_rows(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    total: int,
    *,
    form: str | None,
    limit: int | None,
    show_all: bool,
    fixed: int | None = None,
) -> None:
    """Print rows as a table, as CSV or as JSON, an object a line; on a terminal the first of them.

    Columns behind the first `fixed` ones are labels, whose names may be any: JSON has them as one object.
    """
    is_cut = limit is None and not show_all and sys.stdout.isatty() and total > _FIRST
    rows = islice(rows, _FIRST if is_cut else None if show_all else limit)
    if form == "jsonl":
        print_lines(json.dumps(_object(header, row, fixed)) for row in rows)
    else:
        print_lines((csv_lines if form == "csv" else table)(header, rows))
    if is_cut:
        click.echo(f"... of {total:,} rows; --all shows all", err=True)


def _object(header: Sequence[str], row: Sequence[Any], fixed: int | None) -> dict[str, Any]:
    names, values = header[:fixed], map(plain, row)
    named = dict(zip(names, values, strict=False))
    return named if fixed is None else named | {"labels": dict(zip(header[fixed:], values, strict=True))}


def styled(text: str, stream: TextIO | None = None, **style: Any) -> str:
    """The text in a colour or in bold, on a terminal alone, and not where NO_COLOR is set."""
    is_plain = os.environ.get("NO_COLOR") or not (stream or sys.stdout).isatty()
    return text if is_plain else click.style(text, **style)


def print_report(as_json: bool, document: object, lines: Iterable[str]) -> None:
    """Print one JSON document, or lines for a person."""
    print_lines([json.dumps(document, indent=1)] if as_json else lines)


# Of an archive: JSON, lines for a person, whether nothing is wrong.
Report: TypeAlias = "tuple[Mapping[str, Any], Iterable[str], bool]"


def print_reports(paths: Sequence[str], as_json: bool, report_of: Callable[[str], Report]) -> None:
    """Print the report of each archive that paths, folders and globs name; exit with 1 where one is not good.

    Of several paths, of a folder and of a glob JSON is a list. An archive of these that cannot be read is a
    line on stderr, and in JSON an object with "path" and "error"; the others have their turn.
    """
    archives = dataset.expand_paths(paths[0] if len(paths) == 1 else paths)
    documents, are_good = [], []
    separator = ""
    for path in archives or paths:
        try:
            document, texts, is_good = report_of(path)
        except (EdcacheError, OSError) as error:
            if archives is None:
                raise
            document, texts, is_good = {"path": shown(path), "error": error_line(error)}, (), False
            _print_error(error_line(error))
        documents.append(document)
        are_good.append(is_good)
        if not as_json and (lines := list(texts)):
            print_lines([separator + lines[0], *lines[1:]])
            separator = "\n" * (len(lines) > 1)
    if as_json:
        print_report(True, documents[0] if archives is None else documents, ())
    if not all(are_good):
        sys.exit(FAILED)


def bar(
    doing: str, path: str, progress: bool | None, unit: str = "B"
) -> AbstractContextManager[Callable[[int, int], object]]:
    """A bar on stderr, fed with (done, in all); by default on a terminal."""
    return byte_progress(doing, os.path.basename(shown(path)), progress, unit)


def fail(message: str, code: int) -> NoReturn:
    """End the command with one line on stderr and an exit code."""
    _print_error(message)
    raise click.exceptions.Exit(code)


def _print_error(message: str) -> None:
    click.echo(f"{styled('edcache:', sys.stderr, fg='red', bold=True)} {message}", err=True, color=True)


@contextmanager
def errors_in_one_line(code: int) -> Iterator[None]:
    """Let an error end the command with a line and an exit code; wrong usage has its own."""
    try:
        yield
    except BrokenPipeError:
        raise  # click ends quietly when nobody reads on
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click 8.1 has none, and prints the help
            raise
        command = error.ctx.command_path if error.ctx is not None else "edcache"
        fail(f"{one_line(error.format_message()).rstrip('.')} (see {command} --help)", _WRONG_USAGE)
    except KeyboardInterrupt as stop:
        fail(stop.args[0] if stop.args else "interrupted", _INTERRUPTED)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        fail("this command reads samples, which takes torch; install it with: pip install torch", code)
    except (EdcacheError, OSError) as error:
        if os.environ.get("EDCACHE_DEBUG", "0") not in ("", "0"):
            raise
        fail(error_line(error), code)


def error_line(error: Exception) -> str:
    """Return the text of an error as one line, and the flag of the option that it names."""
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, EdcacheError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    flag = flag_of(getattr(error, "option", None))
    return one_line(text if flag is None else f"{text} ({flag})")
