"""ls and labels: the records of an archive and their labels, row by row; and labels added and dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from edcache.cli.group import BLOCK, PATH, json_option, main, print_lines
from edcache.present import csv_lines, json_lines, plain, printable, table

if TYPE_CHECKING:
    from edcache.dataset import CachedDataset
    from edcache.labels.view import Labels


@main.command()
@click.argument("path", type=PATH)
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Most records shown."
)
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Records to skip first.")
@json_option
def ls(path: str, limit: int, offset: int, as_json: bool) -> None:
    """List records: sample index, place in the file, checksum and labels.

    \b
    Example:
      edcache ls train.zip --offset 1000 --limit 5
    """
    from edcache.dataset import CachedDataset

    cache = CachedDataset(None, path, allow_partial=True)
    total = len(cache.reader.records.offset)
    rows = range(min(offset, total), min(offset + limit, total))
    if as_json:
        print_lines(json_lines(_record_objects(cache, rows)))
        return
    cells = (
        (index, f"{at:,}", f"{nbytes:,}", f"{crc:#010x}", *values)
        for index, at, nbytes, crc, values in _records(cache, rows)
    )
    print_lines(table(("index", "offset", "nbytes", "crc32", *cache.labels), cells))
    if len(rows) < total:
        click.echo(f"{len(rows):,} of {total:,} records; --limit and --offset choose others", err=True)


def _records(cache: CachedDataset, rows: range) -> Iterator[tuple[int, int, int, int, Sequence[Any]]]:
    """Index, offset, nbytes, crc32 and label values of the records in these rows of the index table."""
    records = cache.reader.records
    for start in range(rows.start, rows.stop, BLOCK):
        part = slice(start, min(start + BLOCK, rows.stop))
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
    return zip(*(labels.to_list(name) for name in names), strict=True)


@main.command()
@click.argument("path", type=PATH)
@click.option("--where", metavar="EXPR", help="Only samples whose labels fulfil this.")
@click.option("--count", metavar="NAME", help="How often each value of a column occurs.")
@click.option("--columns", metavar="A,B", help="Only these columns.")
@click.option("--limit", type=click.IntRange(min=0), help="Most rows shown; all by default.")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True
)
@click.option(
    "--add", "added", multiple=True, metavar="[NAME=]FILE", type=PATH, help="Add a column; repeatable."
)
@click.option("--on", metavar="NAME", help="The column that tells which row of FILE is of which sample.")
@click.option("--drop", "dropped", multiple=True, metavar="NAME", help="Drop a column; repeatable.")
def labels(
    path: str,
    where: str | None,
    count: str | None,
    columns: str | None,
    limit: int | None,
    form: str,
    added: Sequence[str],
    on: str | None,
    dropped: Sequence[str],
) -> None:
    """List or count the labels of the samples that have a record, or change them; no sample is read.

    EXPR compares columns with values: == != < <= > >= in, not in, is None, joined by and, or, not,
    with parentheses; startswith(name, "x") and contains(name, "x") look into text.

    FILE is a .npy with a value per sample, or a .csv or .parquet with a row per sample. With --on, a label
    column that the file has too, its rows may be in any order, and fewer. Without NAME= all columns of the
    file are added. What is to be dropped is dropped first.

    \b
    Example:
      edcache labels train.zip --where "label in (1, 2) and split == 'train'" --count label
      edcache labels train.zip --add cluster=clusters.npy --add age=patients.csv --on patient
    """
    from edcache.dataset import CachedDataset

    if added or dropped:
        if where is not None or count is not None or columns is not None or limit is not None:
            raise click.UsageError("--add and --drop change labels; list them by another call")
        _change(path, added, on, dropped)
        return
    if on is not None:
        raise click.UsageError("--on goes with --add")
    if count is not None and columns is not None:
        raise click.UsageError("--count shows one column; leave --columns out")
    cache = CachedDataset(None, path, allow_partial=True)
    indices = _chosen(cache, where)
    if count is not None:
        counts = cache.labels.take(indices).counts(count).items()
        _print_rows(("value", "count"), islice(counts, limit), form)
        return
    names = list(cache.labels) if columns is None else [name.strip() for name in columns.split(",")]
    indices = indices[:limit]
    if form == "json":
        rows = _labels_of(cache, indices, names)
        print_lines(json_lines({"index": i, "labels": _label_object(names, values)} for i, *values in rows))
    else:
        _print_rows(("index", *names), _labels_of(cache, indices, names), form)


def _change(path: str, added: Sequence[str], on: str | None, dropped: Sequence[str]) -> None:
    """Drop columns, then add those of files, and say which there are."""
    from edcache.dataset import CachedDataset

    cache = CachedDataset(None, path, allow_partial=True)
    if dropped:
        cache.drop_labels(*dropped)
    for text in added:
        name, equals, file = text.partition("=")
        _add(cache, name if equals else None, file if equals else text, on)
    names = ", ".join(f"{field.name}: {field.type}" for field in cache.labels.table.schema)
    print_lines([f"{printable(path)}: labels are now {printable(names) or 'none'}"])


def _add(cache: CachedDataset, name: str | None, file: str, on: str | None) -> None:
    from edcache.labels.given import chosen_column, read_columns

    values = read_columns(file)
    if not hasattr(values, "column_names"):
        if name is None or on is not None:
            raise click.UsageError(f"{file} has one column without a name: --add NAME={file}, without --on")
        cache.add_labels(name, values)
        return
    cache.add_labels(values if name is None else chosen_column(name, values, on, file), on=on)


def _chosen(cache: CachedDataset, where: str | None) -> Any:
    """The indices that have a record and fulfil the where-string: int64, sorted."""
    import numpy as np

    records = cache.reader.records
    present = np.arange(len(cache)) if records.index is None else np.asarray(records.index)
    return present if where is None else np.intersect1d(cache.filter(where).indices, present)


def _labels_of(cache: CachedDataset, indices: Any, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """(index, value, ...) for each index, a block of rows in memory at a time."""
    for start in range(0, max(len(indices), 1), BLOCK):
        part = indices[start : start + BLOCK]
        values = _label_rows(cache.labels.take(part), names, len(part))
        yield from ((index, *row) for index, row in zip(part.tolist(), values, strict=True))


def _print_rows(header: Sequence[str], rows: Iterable[Sequence[Any]], form: str) -> None:
    if form == "json":
        print_lines(json_lines({name: plain(v) for name, v in zip(header, row, strict=True)} for row in rows))
    else:
        print_lines((csv_lines if form == "csv" else table)(header, rows))
