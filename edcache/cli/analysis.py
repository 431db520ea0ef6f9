"""sql, stats, diff: what is asked of an archive as a whole, its labels and its index; no sample is read."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from edcache import display, tools
from edcache import labels as label_tables
from edcache.base import human_bytes, index_ranges, plain
from edcache.cli.contents import archive_at, schema_lines
from edcache.cli.flags import LABEL, PATH, flags, row_flags
from edcache.cli.output import (
    FAILED,
    cell,
    errors_in_one_line,
    plural,
    print_report,
    print_rows,
    printable,
    styled,
    table,
)


@click.command()
@click.argument("path", type=PATH)
@click.argument("query", type=LABEL)
@row_flags
def sql(path: str, query: str, **listing: Any) -> None:
    """Ask the labels in SQL, by duckdb; no sample is read.

    Of the table `labels` each row is a sample. It needs duckdb: pip install edcache[duckdb].

    \b
    Example:
      edcache sql train.zip "select split, avg(score) from labels group by split"
    """
    answer = archive_at(path)[1].sql(query)
    # Two columns may have one name, so that they are asked for by number.
    columns = label_tables.Labels(answer.rename_columns(list(map(str, range(answer.num_columns)))))
    rows = zip(*map(columns.to_list, columns), strict=True)
    print_rows(answer.column_names, rows, answer.num_rows, **listing)


@click.command()
@click.argument("first", metavar="A", type=PATH)
@click.argument("second", metavar="B", type=PATH)
@click.option("--deep", is_flag=True, help="Read records that are stored differently, and compare them.")
@flags("as_json")
def diff(first: str, second: str, deep: bool, as_json: bool) -> None:
    """Say what differs between two archives.

    Compared are what they say of themselves, their fields, their labels, and of each sample the length and
    the crc32 of its record, as it is stored. No record is read without --deep, which compares them
    decompressed. Where in the files records lie is no difference.

    \b
    Exit codes:
      0    they are the same
      1    they differ
      2    one cannot be read, or wrong usage

    \b
    Example:
      edcache diff old.zip new.zip
    """
    with errors_in_one_line(2):
        report = tools.difference(archive_at(first)[0], archive_at(second)[0], deep=deep)
    document = plain(dataclasses.asdict(report)) | {"first": first, "second": second}
    print_report(as_json, document | {"same": report.is_none}, _diff_lines(first, second, report))
    if not report.is_none:
        sys.exit(FAILED)


def _diff_lines(first: str, second: str, report: tools.Difference) -> Iterator[str]:
    """What the archives say, then which samples differ in what."""
    if report.is_none:
        yield f"{styled('no difference', fg='green')} between {printable(first)} and {printable(second)}"
    if report.about:
        yield from table(("", first, second), ((name, *pair) for name, pair in report.about.items()))
    parts = {f"only in {first}": report.only_first, f"only in {second}": report.only_second}
    parts["records differ"] = report.records
    parts |= {f'label "{name}" differs': indices for name, indices in report.labels.items()}
    for text, indices in parts.items():
        if len(indices):
            count = plural(len(indices), "sample")
            yield f"{styled(printable(text), bold=True)}: {count}: {index_ranges(indices)}"
    if report.unknown:
        yield f"{plural(report.unknown, 'record')} cannot be compared as they are stored; --deep reads them"


@click.command()
@click.argument("path", type=PATH)
@click.option("--columns", metavar="A,B", type=LABEL, help="Only these label columns.")
@flags("as_json")
def stats(path: str, columns: str | None, as_json: bool) -> None:
    """Show how the labels are spread, and how large the fields are.

    No sample is read: sizes are those of the index.

    \b
    Example:
      edcache stats train.zip --columns label,split
    """
    archive, labels = archive_at(path)
    names = list(labels) if columns is None else [name.strip() for name in columns.split(",")]
    spread = [labels.histogram(name) for name in names]
    summary = display.summary(archive)
    document = {name: summary[name] for name in ("path", "samples", "missing", "record_nbytes", "schemas")}
    document["labels"] = plain([dataclasses.asdict(histogram) for histogram in spread])
    print_report(as_json, document, _stats_lines(summary, spread))


def _stats_lines(summary: Mapping[str, Any], spread: Sequence[Any]) -> Iterator[str]:
    """The fields, then the bars of each label column."""
    record = summary["record_nbytes"]
    sizes = (
        []
        if record["max"] is None
        else [f"record median {human_bytes(record['median'])}, max {human_bytes(record['max'])}"]
    )
    yield ", ".join([plural(summary["samples"], "sample"), f"{summary['missing']:,} missing", *sizes])
    yield from schema_lines(summary)
    for histogram in spread:
        rest = f", {plural(histogram.rest_values, 'more value')}" if histogram.rest_values else ""
        yield f"\n{styled(printable(histogram.name), bold=True)}  {printable(histogram.type)}{rest}"
        most = max((bar.count for bar in histogram.bars), default=1)
        width = max((len(cell(bar.text)) for bar in histogram.bars), default=0)
        for bar in histogram.bars:
            drawn = "█" * max(bar.count > 0, round(24 * bar.count / most))
            yield f"  {cell(bar.text).ljust(width)}  {styled(drawn.ljust(24), fg='cyan')}  {bar.count:,}"
