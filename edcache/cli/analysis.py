"""diff: what differs between two archives, by their labels and their index; no sample is read."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Final

import click

from edcache import tools
from edcache.base import index_ranges, plain
from edcache.cli import output as out
from edcache.cli.contents import open_archive
from edcache.cli.flags import PATH, flags

_MOST_RANGES: Final = 5


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
    with out.errors_in_one_line(2):
        report = tools.difference(open_archive(first)[0], open_archive(second)[0], deep=deep)
    document = plain(dataclasses.asdict(report)) | {"first": first, "second": second}
    out.print_report(as_json, document | {"same": report.is_none}, _diff_lines(first, second, report))
    if not report.is_none:
        sys.exit(out.FAILED)


def _diff_lines(first: str, second: str, report: tools.Difference) -> Iterator[str]:
    """What the archives say, then which samples differ in what."""
    if report.is_none:
        same = out.styled("no difference", fg="green")
        yield f"{same} between {out.printable(first)} and {out.printable(second)}"
    if report.about:
        yield from out.table(("", first, second), ((name, *pair) for name, pair in report.about.items()))
    parts = {f"only in {first}": report.only_first, f"only in {second}": report.only_second}
    parts["records differ"] = report.records
    parts |= {f'label "{name}" differs': indices for name, indices in report.labels.items()}
    for text, indices in parts.items():
        if len(indices):
            count = out.plural(len(indices), "sample")
            ranges = index_ranges(indices, _MOST_RANGES)
            yield f"{out.styled(out.printable(text), bold=True)}: {count}: {ranges}"
    if report.unknown:
        records = out.plural(report.unknown, "record")
        yield f"{records} cannot be compared as they are stored; --deep reads them"
