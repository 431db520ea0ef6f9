"""A folder that the package datasets reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from edcache import durable
from edcache.errors import MissingDependencyError
from edcache.exporting.plan import Job
from edcache.exporting.rows import labels_of, rows_of
from edcache.labels.exchange import Column

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


def datasets_package() -> Any:
    """Hugging Face's package."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            'export(to="hf") needs the package datasets; install it with: pip install edcache[hf]'
        ) from error
    return datasets


class HuggingFace:
    """Writes the Arrow file of a part of the samples, as the package datasets writes its own."""

    def __init__(self, job: Job, columns: Mapping[str, Column], folder: str) -> None:
        self._job, self._columns, self._folder = job, columns, folder
        self.features  # noqa: B018 - what cannot be one is told now

    @property
    def features(self) -> Any:
        """The features of the whole."""
        datasets = datasets_package()
        labels = datasets.Features.from_arrow_schema(labels_of(self._job, range(0), self._columns).schema)
        return datasets.Features({name: _feature(c) for name, c in self._columns.items()} | labels)

    def __call__(self, numbered: tuple[int, range]) -> int:
        """Write file `number` of some samples; returns how many."""
        from datasets.arrow_writer import ArrowWriter

        number, part = numbered
        path = os.path.join(self._folder, f"{number:05}.arrow")
        with ArrowWriter(path=path, features=self.features) as writer:
            for rows in rows_of(self._job, self._columns, part):
                batch = {n: [_example(c, v) for v in rows.columns[n]] for n, c in self._columns.items()}
                writer.write_batch(batch | rows.labels.to_pydict())
            writer.finalize()
        return len(part)

    def assemble(self, folder: str, count: int) -> None:
        """Make the dataset of the files of all parts, which go."""
        datasets = datasets_package()
        names = sorted(os.listdir(self._folder))
        parts = [datasets.Dataset.from_file(os.path.join(self._folder, name)) for name in names]
        whole = datasets.concatenate_datasets(parts)
        bars = datasets.utils.logging.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            whole.save_to_disk(folder, num_shards=count)
        finally:
            if bars:
                datasets.enable_progress_bars()
        durable.remove_tree(self._folder)


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
    if column.kind == "array":
        # Numbers, and arrays of several dimensions that vary, which are lists of lists there.
        is_plain = column.ndim == 0 or (column.ndim > 1 and not column.is_fixed)
        return value.tolist() if is_plain else value
    return value
