"""One .npz with a stacked array for each column."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final

import numpy as np

from edcache.base import ExportError
from edcache.interop.export_columns import Columns
from edcache.interop.export_plan import Plan
from edcache.interop.export_tables import labels_of, rows_of
from edcache.labels import Column, Labels
from edcache.storage import refused

_SUFFIXES: Final = (".values", ".offsets", ".shapes")
_SINGLE: Final[dict[str, Any]] = {
    "bool": np.bool_,
    "int": np.int64,
    "float": np.float64,
    "complex": np.complex128,
    "text": np.str_,
    "date": "M8[D]",
    "datetime": "M8[us]",
}


def write_npz(plan: Plan, folder: str, stream: IO[bytes]) -> Iterator[int]:
    """Write one .npz with an array for each column, along its first axis the samples.

    Arrays whose shapes vary, bytes and images are the columns NAME.values, all of them one after the other,
    NAME.offsets (int64 [n + 1], where each begins) and, of more than one dimension, NAME.shapes (int64).

    Args:
        folder: where arrays are put together.
    Yields:
        How many samples were read, now and then.
    Raises:
        ExportError: labels that make no array.
    """
    table = labels_of(plan, range(len(plan)))
    labels = {name: _label(name, Labels(table)[name], table.column(name)) for name in table.column_names}
    stacks = {name: _Stack(column, folder) for name, column in plan.columns.items()}
    try:
        for rows in rows_of(plan, range(len(plan))):
            for name, stack in stacks.items():
                stack.add(rows.columns[name])
            yield len(next(iter(rows.columns.values())))
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, stack in stacks.items():
                for suffix, array in stack.arrays():
                    _put(archive, f"{name or 'sample'}{suffix}", array)
            for name, values in labels.items():
                _put(archive, name, values)
    finally:
        for stack in stacks.values():
            stack.close()


def _put(archive: zipfile.ZipFile, name: str, array: np.ndarray[Any, Any]) -> None:
    # A ZipInfo of its own has no time: the same samples make the same bytes.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


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


def check_npz(columns: Columns) -> None:
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


class _Stack:
    """The values of one column until all are there: single ones in memory, others in a file.

    The file has no name, so that it goes with the process.
    """

    def __init__(self, column: Column, folder: str) -> None:
        self._column, self._folder = column, folder
        self._single: list[Any] | None = [] if column.kind in _SINGLE else None
        dtype = column.dtype if column.kind == "array" else "u1"
        if column.kind == "list":
            dtype = _SINGLE["int" if column.dtype == "null" else column.dtype]
        self._dtype = np.dtype(dtype)
        self._shapes: list[tuple[int, ...]] = []
        self._file: Any = None
        if self._single is None:
            try:
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed when all is written
            except OSError as error:
                refused(folder, "making a temporary file in it", error)

    def add(self, values: Sequence[Any]) -> None:
        """Keep the values of more samples."""
        if self._single is not None:
            self._single += values
            return
        for value in values:
            is_bytes = isinstance(value, bytes)
            array = np.frombuffer(value, np.uint8) if is_bytes else np.asarray(value, self._dtype)
            self._file.write(np.ascontiguousarray(array).data)
            self._shapes.append(array.shape)

    def arrays(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """What goes into the file: a suffix of the name, and the array."""
        if self._single is not None:
            yield "", self._stacked(self._single)
            return
        self._file.flush()
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self._shapes]
        values: np.ndarray[Any, Any] = np.empty(0, self._dtype)
        if sum(sizes):
            try:
                values = np.memmap(self._file, self._dtype, "r", shape=(sum(sizes),))
            except OSError as error:
                refused(self._folder, "mapping a temporary file in it", error)
        if self._column.is_fixed:
            assert self._column.shape is not None
            yield "", values.reshape(len(sizes), *self._column.shape)
            return
        yield ".values", values
        yield ".offsets", np.cumsum([0, *sizes], dtype=np.int64)
        if self._column.ndim > 1:
            yield ".shapes", np.array(self._shapes, np.int64).reshape(-1, self._column.ndim)

    def _stacked(self, values: list[Any]) -> np.ndarray[Any, Any]:
        name, kind = self._column.name, self._column.kind
        if kind == "text" and any(value.endswith("\0") for value in values):
            raise ExportError(
                f'export(): field "{name}" has text that ends with a zero character, which numpy '
                "would cut off"
            )
        try:
            return np.array(values, dtype=_SINGLE[kind])
        except OverflowError as error:
            raise ExportError(f'export(): field "{name}" does not fit int64: {error}') from None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
