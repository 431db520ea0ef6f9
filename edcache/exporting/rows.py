"""A row a sample: what the formats that have columns share, and Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edcache.exporting.columns import Looker, check_fits
from edcache.exporting.leaves import Picture
from edcache.exporting.places import shard
from edcache.exporting.plan import Job, place_of
from edcache.labels.exchange import Column, ParquetFile, arrow_column, renamed, schema_of

_PIECE: Final = 16 << 20


@dataclass(frozen=True)
class Rows:
    """Consecutive samples: the leaves of each column, images as their bytes, and the label table."""

    place: str
    columns: dict[str, list[Any]]
    labels: Any


def rows_of(job: Job, columns: Mapping[str, Column], part: range) -> Iterator[Rows]:
    """The samples of a part, so many together as make some 16 MiB.

    Raises:
        ExportError: a sample that is otherwise than those that were looked at.
    """
    looker = Looker("a table", "biufc")
    count = max(1, int(_PIECE // max(job.sample_nbytes, 1)))
    for start in range(part.start, part.stop, count):
        piece = range(start, min(start + count, part.stop))
        found: dict[str, list[Any]] = {name: [] for name in columns}
        for position, leaves in job.samples(piece):
            check_fits(columns, looker.look(leaves, place_of(position)), position)
            for name, values in found.items():
                value = leaves.get(name)
                values.append(value.data if isinstance(value, Picture) else value)
        place = f"export(): samples {piece.start} to {piece.stop - 1}"
        yield Rows(place, found, labels_of(job, piece, columns))


def labels_of(job: Job, part: range, names: Mapping[str, Column]) -> Any:
    """The label columns that go along, of consecutive samples, under names that no field has."""
    table = job.ds.labels.take(np.arange(part.start, part.stop)).table
    return renamed(table.select(list(job.labels)), names)


class Parquets:
    """Writes the Parquet file of a part of the samples."""

    def __init__(self, job: Job, columns: Mapping[str, Column], folder: str) -> None:
        self._job, self._columns, self._folder = job, columns, folder

    def __call__(self, numbered: tuple[int, range]) -> int:
        """Write file `number` of some samples; returns how many."""
        number, part = numbered
        schema = schema_of(self._columns.values(), labels_of(self._job, range(0), self._columns).schema)
        path = os.path.join(self._folder, f"part-{number:05}.parquet")
        with shard(path) as stream, closing(ParquetFile(stream, schema)) as file:
            for rows in rows_of(self._job, self._columns, part):
                named = self._columns.items()
                arrays = [arrow_column(column, rows.columns[name], rows.place) for name, column in named]
                file.write(arrays, rows.labels)
        return len(part)
