"""A row a sample: what the formats that have columns share; Parquet; a folder that datasets reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

from edcache import storage
from edcache.base import MissingDependencyError
from edcache.interop.export_columns import check_fits, columns_of
from edcache.interop.export_leaves import Picture
from edcache.interop.export_plan import Plan, Writer
from edcache.interop.export_targets import shard
from edcache.labels import Column, ParquetFile, arrow_column, renamed, schema_of

_MOST_DIMENSIONS: Final = 5
_VALUES: Final = {
    "null": "null",
    "bool": "bool",
    "int": "int64",
    "float": "float64",
    "text": "string",
    "bytes": "binary",
    "date": "date32",
    "datetime": "timestamp[us]",
    "datetime with a zone": "timestamp[us, tz=UTC]",
}


class Rows(NamedTuple):
    """Consecutive samples: the leaves of each column, images as their bytes, and the label table."""

    place: str
    columns: dict[str, list[Any]]
    labels: Any


def rows_of(plan: Plan, part: range) -> Iterator[Rows]:
    """The samples of a part, so many together as make some 16 MiB.

    Raises:
        ExportError: a sample that is otherwise than those that were looked at.
    """
    for piece in plan.pieces(part):
        columns: dict[str, list[Any]] = {name: [] for name in plan.columns}
        for place, leaves in plan.samples(piece):
            check_fits(plan.columns, columns_of(leaves, place, "a table", "biufc"), place)
            for name, values in columns.items():
                value = leaves.get(name)
                values.append(value.data if isinstance(value, Picture) else value)
        yield Rows(f"export(): samples {piece[0]} to {piece[-1]}", columns, labels_of(plan, piece))


def labels_of(plan: Plan, part: range) -> Any:
    """The label columns that go along, of consecutive samples, under names that no field has."""
    return renamed(plan.label_table(part), plan.columns)


class Parquets(Writer):
    """Writes the Parquet file of a part of the samples."""

    def _write(self, number: int, part: range) -> None:
        columns = self.plan.columns
        schema = schema_of(columns.values(), labels_of(self.plan, range(0)).schema)
        path = os.path.join(self.folder, f"part-{number:05}.parquet")
        with shard(path) as stream, closing(ParquetFile(stream, schema)) as file:
            for rows in rows_of(self.plan, part):
                arrays = [arrow_column(c, rows.columns[name], rows.place) for name, c in columns.items()]
                file.write(arrays, rows.labels)


def datasets_package() -> Any:
    """Hugging Face's package."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            'export(to="hf") needs the package datasets; install it with: pip install edcache[hf]'
        ) from error
    return datasets


class HuggingFace(Writer):
    """Writes the Arrow file of a part of the samples, as the package datasets writes its own."""

    @property
    def features(self) -> Any:
        """The features of the whole."""
        datasets = datasets_package()
        labels = datasets.Features.from_arrow_schema(labels_of(self.plan, range(0)).schema)
        return datasets.Features({name: _feature(c) for name, c in self.plan.columns.items()} | labels)

    def _write(self, number: int, part: range) -> None:
        from datasets.arrow_writer import ArrowWriter

        columns = self.plan.columns
        path = os.path.join(self.folder, f"{number:05}.arrow")
        with ArrowWriter(path=path, features=self.features) as writer:
            for rows in rows_of(self.plan, part):
                batch = {name: [_example(c, v) for v in rows.columns[name]] for name, c in columns.items()}
                writer.write_batch(batch | rows.labels.to_pydict())
            writer.finalize()

    def assemble(self, folder: str, count: int) -> None:
        """Make the dataset of the files of all parts, which go."""
        datasets = datasets_package()
        names = sorted(os.listdir(self.folder))
        parts = [datasets.Dataset.from_file(os.path.join(self.folder, name)) for name in names]
        whole = datasets.concatenate_datasets(parts)
        bars = datasets.utils.logging.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            whole.save_to_disk(folder, num_shards=count)
        finally:
            if bars:
                datasets.enable_progress_bars()
        storage.remove_tree(self.folder)


def _feature(column: Column) -> Any:
    """What the package datasets calls a column's type; images are its Image."""
    datasets = datasets_package()
    if column.kind == "image":
        return datasets.Image()
    if column.kind == "array" and column.ndim:
        if column.is_fixed and 2 <= column.ndim <= _MOST_DIMENSIONS:
            return getattr(datasets, f"Array{column.ndim}D")(shape=column.shape, dtype=column.dtype)
        feature = datasets.Value(column.dtype)
        for _ in range(column.ndim):
            feature = datasets.Sequence(feature)
        return feature
    if column.kind == "list":
        return datasets.Sequence(datasets.Value(_VALUES[column.dtype]))
    return datasets.Value(column.dtype if column.kind == "array" else _VALUES[column.kind])


def _example(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.kind == "image":
        return {"bytes": value, "path": None}
    # Numbers, and arrays of several dimensions that vary, which are lists of lists there.
    is_plain = column.ndim == 0 or (column.ndim > 1 and not column.is_fixed)
    return value.tolist() if column.kind == "array" and is_plain else value
