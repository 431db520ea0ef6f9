"""One .npz with a stacked array for each column."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

import numpy as np

from edcache.durable import refused
from edcache.errors import ExportError
from edcache.exporting.plan import Job
from edcache.exporting.rows import labels_of, rows_of
from edcache.labels.exchange import Column
from edcache.labels.view import Labels

_SUFFIXES: Final = (".values", ".offsets", ".shapes")
_PLAIN: Final[dict[str, Any]] = {
    "bool": np.bool_,
    "int": np.int64,
    "float": np.float64,
    "complex": np.complex128,
    "text": np.str_,
    "date": "M8[D]",
    "datetime": "M8[us]",
}


class Stacked:
    """Writes one .npz with an array for each column, along its first axis the samples.

    Arrays whose shapes vary, bytes and images are the columns NAME.values, all of them one after the other,
    NAME.offsets (int64 [n + 1], where each begins) and, of more than one dimension, NAME.shapes (int64).

    Raises:
        ExportError: labels that make no array.
    """

    def __init__(self, job: Job, columns: Mapping[str, Column], folder: str) -> None:
        self._job, self._columns, self._folder = job, columns, folder
        self._labels = _labels(job, columns)

    def write(self, stream: IO[bytes], part: range) -> Iterator[int]:
        """Write the file; yields how many samples were read, now and then."""
        parts = {name: _column_of(column, self._folder) for name, column in self._columns.items()}
        try:
            for rows in rows_of(self._job, self._columns, part):
                for name, column in parts.items():
                    column.add(rows.columns[name])
                yield len(rows.labels) if rows.labels.num_columns else len(next(iter(rows.columns.values())))
            self._assemble(stream, parts)
        finally:
            for column in parts.values():
                column.close()

    def _assemble(self, stream: IO[bytes], parts: Mapping[str, _Column]) -> None:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, column in parts.items():
                for suffix, array in column.arrays():
                    _put(archive, f"{name or 'sample'}{suffix}", array)
            for name, values in self._labels.items():
                _put(archive, name, values)


def _put(archive: zipfile.ZipFile, name: str, array: np.ndarray[Any, Any]) -> None:
    entry = zipfile.ZipInfo(f"{name}.npy")
    with archive.open(entry, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def _labels(job: Job, columns: Mapping[str, Column]) -> dict[str, np.ndarray[Any, Any]]:
    table = labels_of(job, range(len(job)), columns)
    return {name: _label(name, Labels(table)[name], table.column(name)) for name in table.column_names}


def _label(name: str, values: np.ndarray[Any, Any], column: Any) -> np.ndarray[Any, Any]:
    if column.null_count:
        raise ExportError(
            f'export(): label "{name}" has no value for {column.null_count:,} of {len(column):,} samples, '
            "and an .npz holds no None; choose others: labels=[...]"
        )
    if values.dtype.hasobject and not all(isinstance(value, str) for value in values):
        raise ExportError(
            f'export(): label "{name}" is {column.type}, which makes no array; choose others: labels=[...]'
        )
    return values.astype(np.str_) if values.dtype.hasobject else values


def check_npz(columns: Mapping[str, Column]) -> None:
    """Refuse what an .npz does not hold.

    Raises:
        ExportError: 'export(): field "x" is missing in some samples, ...'.
    """
    for name, column in columns.items():
        if column.is_nullable:
            raise ExportError(
                f'export(): field "{name}" is None or missing in some samples, and an .npz holds no None; '
                "leave it out with select(), or the samples with a filter"
            )
        if column.kind == "datetime with a zone":
            raise ExportError(f'export(): field "{name}" is a {column.kind}, for which numpy has no type')
        if name.endswith(_SUFFIXES):
            raise ExportError(f'export(): field "{name}" ends as the arrays of fields of varying shapes do')


class _Column:
    """The values of one column, kept until all are there."""

    def add(self, values: Sequence[Any]) -> None:
        raise NotImplementedError

    def arrays(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """What goes into the file: a suffix of the name, and the array."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what it keeps."""


class _Plain(_Column):
    """Single values, in memory."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self._values: list[Any] = []

    def add(self, values: Sequence[Any]) -> None:
        self._values += values

    def arrays(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        if self._column.kind == "text" and any(value.endswith("\0") for value in self._values):
            raise ExportError(
                f'export(): field "{self._column.name}" has text that ends with a zero character, which '
                "numpy would cut off"
            )
        try:
            made = np.array(self._values, dtype=_PLAIN[self._column.kind])
        except OverflowError as error:
            raise ExportError(f'export(): field "{self._column.name}" does not fit int64: {error}') from None
        yield "", made


class _Large(_Column):
    """Values in a file that has no name, so that it goes with the process."""

    def __init__(self, column: Column, folder: str) -> None:
        self._column = column
        self._dtype = np.dtype("u1")
        if column.kind == "array":
            self._dtype = np.dtype(column.dtype)
        elif column.kind == "list":
            self._dtype = np.dtype(_PLAIN["int" if column.dtype == "null" else column.dtype])
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed when all is written
        except OSError as error:
            refused(folder, "making a temporary file in it", error)
        self._sizes: list[int] = []
        self._shapes: list[tuple[int, ...]] = []

    def add(self, values: Sequence[Any]) -> None:
        for value in values:
            is_bytes = isinstance(value, bytes)
            array = np.frombuffer(value, np.uint8) if is_bytes else np.asarray(value, self._dtype)
            self._file.write(np.ascontiguousarray(array).data)
            self._sizes.append(array.size)
            self._shapes.append(array.shape)

    def arrays(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        self._file.flush()
        count = sum(self._sizes)
        values: np.ndarray[Any, Any] = np.empty(0, self._dtype)
        if count:
            try:
                values = np.memmap(self._file, self._dtype, "r", shape=(count,))
            except OSError as error:
                refused(self._folder, "mapping a temporary file in it", error)
        if self._column.is_fixed:
            assert self._column.shape is not None
            yield "", values.reshape(len(self._sizes), *self._column.shape)
            return
        yield ".values", values
        yield ".offsets", np.cumsum([0, *self._sizes], dtype=np.int64)
        if self._column.ndim > 1:
            yield ".shapes", np.array(self._shapes, np.int64).reshape(-1, self._column.ndim)

    def close(self) -> None:
        self._file.close()


def _column_of(column: Column, folder: str) -> _Column:
    return _Plain(column) if column.kind in _PLAIN else _Large(column, folder)
