"""Print what a command found: lines, tables, CSV, JSON; an error as one line and an exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Final, NoReturn, TypeAlias

import click

from edcache import dataset
from edcache.base import EdcacheError, Progress, brief, plain, shortened, text_table
from edcache.base import printable as printable  # what all commands print by
from edcache.cli.flags import flag_of
from edcache.storage import shown

FAILED: Final = 1
_INTERRUPTED: Final = 130
_FIRST: Final = 20


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


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Aligned columns, line by line; numbers and sizes to the right.

    In the first column nothing is shortened: it names what a row is about, and is typed elsewhere.
    """
    texts = ([printable(brief(row[0])), *map(cell, row[1:])] for row in rows)
    return text_table(list(map(cell, header)), texts)


def paired_lines(items: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Names and values that are not None, one pair a line, the values aligned."""
    listed = [(name, value) for name, value in items if value is not None]
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        yield f"{name.ljust(width)}  {printable(str(value))}".rstrip()


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of RFC 4180 with a header; a missing value is an empty field, a list its JSON."""
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
) -> None:
    """Print rows as a table (20 without a limit), as CSV, or as one JSON list with an object a row.

    Columns behind the first `fixed` ones are labels, whose names may be any: JSON has them as one object.
    """
    if form == "csv":
        print_lines(csv_lines(header, islice(rows, limit)))
    elif form == "json":
        sys.stdout.write("[")
        for number, row in enumerate(islice(rows, limit)):
            sys.stdout.write(",\n " * (number > 0) + json.dumps(_object(header, row, fixed)))
        sys.stdout.write("]\n")
    else:
        print_lines(table(header, islice(rows, _FIRST if limit is None else limit)))
        if limit is None and total > _FIRST:
            click.echo(f"... of {total:,} rows; --limit shows more, --csv and --json show all", err=True)


def _object(header: Sequence[str], row: Sequence[Any], fixed: int | None) -> dict[str, Any]:
    names, values = header[:fixed], map(plain, row)
    named = dict(zip(names, values, strict=False))
    return named if fixed is None else named | {"labels": dict(zip(header[fixed:], values, strict=True))}


def print_report(as_json: bool, document: object, lines: Iterable[str]) -> None:
    """Print one JSON document, or lines for a person."""
    print_lines([json.dumps(document, indent=1)] if as_json else lines)


# Of an archive: JSON, lines for a person, whether nothing is wrong.
Report: TypeAlias = "tuple[Mapping[str, Any], Iterable[str], bool]"


def print_reports(paths: Sequence[str], as_json: bool, report_of: Callable[[str], Report]) -> None:
    """Print the report of each archive that paths, folders and globs name; exit with 1 if one is not good.

    Of several paths, of a folder and of a glob JSON is a list. An archive of these that cannot be read is a
    line on stderr, and in JSON an object with "path" and "error"; the others have their turn.
    """
    archives = dataset.expand_paths(paths[0] if len(paths) == 1 else paths)
    documents, are_good = [], []
    for path in archives or paths:
        try:
            document, lines, is_good = report_of(path)
        except (EdcacheError, OSError) as error:
            if archives is None:
                raise
            document, lines, is_good = {"path": shown(path), "error": error_line(error)}, (), False
            _print_error(error_line(error))
        documents.append(document)
        are_good.append(is_good)
        if not as_json:
            print_lines(lines)
    if as_json:
        print_report(True, documents[0] if archives is None else documents, ())
    if not all(are_good):
        sys.exit(FAILED)


def bar(doing: str, path: str, progress: bool | None, unit: str = "B") -> Progress:
    """A bar on stderr, fed with (done, in all); by default on a terminal."""
    return Progress(os.path.basename(shown(path)), progress, doing=doing, unit=unit)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Let an error end the command with a line on stderr and an exit code; click tells of wrong usage."""
    try:
        yield
    except BrokenPipeError:
        raise  # click ends quietly when nobody reads on
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        _fail("this command reads samples, which takes torch; install it with: pip install torch", FAILED)
    except (EdcacheError, OSError) as error:
        if os.environ.get("EDCACHE_DEBUG", "0") not in ("", "0"):
            raise
        _fail(error_line(error), FAILED)


def _fail(message: str, code: int) -> NoReturn:
    _print_error(message)
    raise click.exceptions.Exit(code)


def _print_error(message: str) -> None:
    click.echo(f"edcache: {message}", err=True)


def error_line(error: Exception) -> str:
    """Return the text of an error as one line, and the flag of the option that it names."""
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, EdcacheError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    flag = flag_of(getattr(error, "option", None))
    return one_line(text if flag is None else f"{text} ({flag})")
