"""The formats that samples are exported to, each of which writes a part of the samples at a time."""

from __future__ import annotations

import datetime
import io
import json
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import IO, Any, ClassVar, Final

import numpy as np

from edcache import storage, writer
from edcache.base import ArchiveExistsError, EdcacheError, ExportError, MissingDependencyError
from edcache.dataset import Samples
from edcache.format import pa
from edcache.interop.export_columns import (
    Columns,
    EncodedImage,
    Leaves,
    check_fits,
    columns_of,
    leaves_of,
    unsupported,
)
from edcache.labels import ArrowColumn, Labels, arrow_column, parquet_writer, renamed, schema_of
from edcache.storage import File

_BUFFER: Final = 1 << 20
_BATCH_NBYTES: Final = 16 << 20
_MOST_IN_A_BATCH: Final = 1 << 14
_FOLDERS_A_PART: Final = 1000
_MOST_DIMENSIONS: Final = 5
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


def check_absent(out: str) -> None:
    """Raise ArchiveExistsError where something is in the way."""
    if storage.exists(out):
        raise ArchiveExistsError(f"{out}: exists already; give a path where nothing is")


@contextmanager
def new_output(out: str, is_folder: bool) -> Iterator[Any]:
    """A folder, or the stream of a file; it gets its name when the block ends well, else it goes."""
    check_absent(out)
    with closing(writer.start(out, is_folder=is_folder)) as session:
        work = os.path.dirname(session.path) if is_folder else session.path
        try:
            with nullcontext(work) if is_folder else _stream(session, sync=True) as where:
                yield where
            check_absent(out)
            # A folder with the file that is locked, so that nobody else begins meanwhile.
            storage.replace(work, out)
            if is_folder:
                storage.remove(os.path.join(out, writer.SUFFIX))
        except BaseException:
            # The error that led here is the one to report; prune deletes what could not be.
            with suppress(EdcacheError):
                storage.remove_tree(work)
            raise


@contextmanager
def new_file(path: str, sync: bool = True) -> Iterator[IO[bytes]]:
    """A new file in a folder that is being written; it is brought to the disk when the block ends well."""
    with closing(File.open(path, "x")) as file, _stream(file, sync) as stream:
        yield stream


@contextmanager
def _stream(file: File, sync: bool) -> Iterator[IO[bytes]]:
    with io.BufferedWriter(_RawFile(file), _BUFFER if sync else io.DEFAULT_BUFFER_SIZE) as stream:
        yield stream
    if sync:
        file.sync()


class _RawFile(io.RawIOBase):
    """A file as Python's libraries write to one; its errors are those of all files here."""

    def __init__(self, file: File) -> None:
        self.name = file.path
        self._file = file
        self._position = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.pwrite(self._position, view)
        self._position += len(view)
        return len(view)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = (0, self._position, self._file.size())[whence] + offset
        return self._position


def read(ds: Samples, positions: Sequence[int]) -> Iterator[tuple[str, Leaves]]:
    """The samples at some positions: what messages begin with, "export(): sample 17", and leaves."""
    for position, sample in zip(positions, ds.__getitems__(list(positions)), strict=True):
        place = f"export(): sample {position}"
        yield place, leaves_of(sample, place)


def _split(whole: range, count: int) -> list[range]:
    return [whole[start : start + max(1, count)] for start in range(0, len(whole), max(1, count))]


@dataclass
class Format:
    """A format, and what is exported to it.

    Several processes may write a part of the samples each; the first begins, finishes and closes.

    Attributes:
        name: what `export` calls it. arrays: numpy's kinds of arrays that its columns hold; empty where it
            has no columns. is_folder: else a file, which one process writes.
        ds: the samples. columns: where samples become rows. labels: the names of label columns that go
            along. sample_nbytes: of a sample, on average, of some that were looked at.
    """

    name: ClassVar[str]
    arrays: ClassVar[str] = "biuf"
    is_folder: ClassVar[bool] = True
    ds: Samples
    columns: Columns
    labels: tuple[str, ...]
    sample_nbytes: float

    @classmethod
    def require(cls) -> None:
        """Raise MissingDependencyError where the package is not installed that writes it."""

    @classmethod
    def columns_for(cls, leaves: Leaves, place: str) -> Columns:
        """The columns that a sample needs; raises what writing it would raise."""
        return columns_of(leaves, place, cls.name, cls.arrays)

    def __len__(self) -> int:
        return len(self.ds)

    def check(self) -> None:
        """Raise ExportError for what the format does not hold."""

    def begin(self, where: Any) -> None:
        """Make ready to write to a folder, or of an .npz to the file."""
        self.where = where

    def parts(self, nbytes: int) -> list[range]:
        """Which samples are written at a time: consecutive positions that are about so many bytes each."""
        return _split(range(len(self)), int(nbytes // self.sample_nbytes))

    def batches(self, part: range) -> list[range]:
        """Consecutive positions of a part that are in memory at a time, some 16 MiB."""
        return _split(part, min(int(_BATCH_NBYTES // self.sample_nbytes), _MOST_IN_A_BATCH))

    def rows(self, part: range) -> Iterator[tuple[range, dict[str, list[Any]]]]:
        """The leaves of each column, images as their bytes, of a batch together."""
        for piece in self.batches(part):
            columns: dict[str, list[Any]] = {name: [] for name in self.columns}
            for place, leaves in read(self.ds, piece):
                check_fits(self.columns, columns_of(leaves, place, "a table", "biufc"), place)
                for name, values in columns.items():
                    value = leaves.get(name)
                    values.append(value.data if isinstance(value, EncodedImage) else value)
            yield piece, columns

    def label_table(self, part: range) -> Any:
        """The label columns that go along, of consecutive samples, under names that no field has."""
        labels = self.ds.labels.take(np.arange(part.start, part.stop))
        return renamed(labels.table.select(list(self.labels)), self.columns)

    def write(self, number: int, part: range) -> None:
        """Write a part."""
        raise NotImplementedError

    def finish(self) -> None:
        """Do what is left when all parts are written."""

    def close(self) -> None:
        """Let go of what is open."""


class _Files(Format):
    """One file a field."""

    arrays = ""
    integer: ClassVar[str]
    separator: ClassVar[str]
    is_lower_case: ClassVar[bool] = False

    @classmethod
    def columns_for(cls, leaves: Leaves, place: str) -> Columns:
        cls._files_of(leaves, place)
        return {}

    def check(self) -> None:
        for field in self.label_table(range(0)).schema:
            if "binary" in str(field.type):
                raise ExportError(
                    f'export(): label "{field.name}" is {field.type}, and JSON holds no bytes; choose '
                    "others: labels=[...]"
                )

    def _files(self, part: range) -> Iterator[tuple[str, bytes]]:
        """The name and the bytes of each file; a sample that is one leaf without a name has no folder."""
        digits = len(str(len(self) - 1))
        for piece in self.batches(part):
            labels = self.ds.labels.take(np.arange(piece.start, piece.stop))
            columns = [labels.to_list(name) for name in self.labels]
            for position, (place, leaves), *own in zip(piece, read(self.ds, piece), *columns, strict=True):
                files = self._files_of(leaves, place, dict(zip(self.labels, own, strict=True)))
                stem = f"{position:0{digits}}" + ("." if list(leaves) == [""] else self.separator)
                yield from ((stem + name, data) for name, data in files.items())

    @classmethod
    def _files_of(cls, leaves: Leaves, place: str, labels: dict[str, Any] | None = None) -> dict[str, bytes]:
        """The bytes of each file of a sample by its name; a leaf without a name gives only an extension."""
        # Times are texts.
        files = {"labels.json": json.dumps(labels, default=str).encode()} if labels else {}
        for name, value in leaves.items():
            if name.startswith((".", "__")) or set(name) & set("/\\\0") or len(name.encode()) > 200:
                raise ExportError(
                    f'{place}: field "{name}" makes no name of a file; {cls.name} needs names without '
                    "slashes that begin with no dot and not with __; rename it with with_transform()"
                )
            extension, data = cls._encoded(name, value, place)
            file = f"{name}.{extension}" if name else extension
            file = file.lower() if cls.is_lower_case else file
            if file in files:
                raise ExportError(f'{place}: two files would be called "{file}"; rename a field')
            files[file] = data
        return files

    @classmethod
    def _encoded(cls, name: str, value: Any, place: str) -> tuple[str, bytes]:
        """The extension and the bytes of the file of a leaf."""
        if isinstance(value, EncodedImage):
            return value.extension, value.data
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                raise unsupported(place, name, value, "a .npy of objects would be a pickle")
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            return "npy", file.getvalue()
        if isinstance(value, str):
            try:
                return "txt", value.encode()
            except UnicodeEncodeError:
                raise unsupported(place, name, value, "half of a surrogate pair is no UTF-8") from None
        if isinstance(value, bytes):
            return "bin", value
        if isinstance(value, datetime.date):
            return "txt", value.isoformat().encode()
        if type(value) is int:
            return cls.integer, str(value).encode()
        if isinstance(value, complex):
            raise unsupported(place, name, value, "JSON has no complex numbers")
        return "json", json.dumps(value).encode()


class _Tars(_Files):
    """Tar shards, as the webdataset package reads them."""

    name, integer, separator = "webdataset", "cls", "."
    is_lower_case = True  # as the reader of webdataset gives all names

    def write(self, number: int, part: range) -> None:
        with new_file(os.path.join(self.where, f"shard-{number:06}.tar")) as stream:
            for name, data in self._files(part):
                # Without a time and an owner: the same samples make the same bytes.
                header = tarfile.TarInfo(name)
                header.size = len(data)
                padding = bytes(-len(data) % tarfile.BLOCKSIZE)
                stream.writelines((header.tobuf(tarfile.GNU_FORMAT), data, padding))
            stream.write(bytes(2 * tarfile.BLOCKSIZE))


class _Folders(_Files):
    """A folder for each sample with a file for each field; one file where a sample is one leaf."""

    name, integer, separator = "files", "txt", os.sep

    def parts(self, nbytes: int) -> list[range]:
        return _split(range(len(self)), _FOLDERS_A_PART)

    def write(self, number: int, part: range) -> None:
        made = self.where
        for name, data in self._files(part):
            path = os.path.join(self.where, name)
            if os.path.dirname(path) != made:
                storage.make_parent(path)
                made = os.path.dirname(path)
            with new_file(path, sync=False) as stream:
                stream.write(data)


class _Parquets(Format):
    """Parquet files."""

    name = "parquet"

    def write(self, number: int, part: range) -> None:
        schema = schema_of(self.columns.values(), self.label_table(range(0)).schema)
        path = os.path.join(self.where, f"part-{number:05}.parquet")
        with new_file(path) as stream, parquet_writer(stream, schema) as file:
            for piece, rows in self.rows(part):
                place = f"export(): samples {piece[0]} to {piece[-1]}"
                arrays = [arrow_column(c, rows[name], place) for name, c in self.columns.items()]
                arrays += self.label_table(piece).columns
                file.write_table(pa.Table.from_arrays(arrays, schema=schema))


class _HuggingFace(Format):
    """What the package datasets reads: an Arrow file for each part, as it writes its own, then all as one."""

    name = "hf"

    @classmethod
    def require(cls) -> None:
        try:
            import datasets  # noqa: F401 - is it there?
        except ImportError as error:
            raise MissingDependencyError(
                'export(to="hf") needs the package datasets; install it with: pip install edcache[hf]'
            ) from error

    def begin(self, where: str) -> None:
        import datasets

        self.where = os.path.join(where, "parts")
        os.mkdir(self.where)
        plain = [column for column in self.columns.values() if column.kind not in ("array", "image")]
        schema = schema_of(plain, self.label_table(range(0)).schema)
        features = datasets.Features.from_arrow_schema(schema)
        own = {name: _feature(c) if c not in plain else features[name] for name, c in self.columns.items()}
        self.features = datasets.Features(own | features)

    def write(self, number: int, part: range) -> None:
        from datasets.arrow_writer import ArrowWriter

        path = os.path.join(self.where, f"{number:05}.arrow")
        with ArrowWriter(path=path, features=self.features) as writer:
            for piece, rows in self.rows(part):
                place = f"export(): samples {piece[0]} to {piece[-1]}"
                batch = {name: self._as_datasets(c, rows[name], place) for name, c in self.columns.items()}
                labels = self.label_table(piece)
                writer.write_batch(batch | dict(zip(labels.column_names, labels.columns, strict=True)))
            writer.finalize()

    def _as_datasets(self, column: ArrowColumn, values: list[Any], place: str) -> Any:
        """What the package takes for the values of a column."""
        if column.kind == "image":
            return [None if value is None else {"bytes": value, "path": None} for value in values]
        if column.is_fixed and column.ndim:
            return values
        if column.ndim < 2:
            return arrow_column(column, values, place)
        # Arrays of several dimensions that vary are lists of lists there.
        lists = [None if value is None else value.tolist() for value in values]
        return pa.array(lists, self.features.arrow_schema.field(column.name).type)

    def finish(self) -> None:
        import datasets

        names = sorted(os.listdir(self.where))
        parts = [datasets.Dataset.from_file(os.path.join(self.where, name)) for name in names]
        bars = datasets.utils.logging.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            whole = datasets.concatenate_datasets(parts)
            whole.save_to_disk(os.path.dirname(self.where), num_shards=len(parts))
        finally:
            if bars:
                datasets.enable_progress_bars()
        storage.remove_tree(self.where)


def _feature(column: ArrowColumn) -> Any:
    """What the package datasets calls the type of images and of arrays."""
    import datasets

    if column.kind == "image":
        return datasets.Image()
    if column.is_fixed and 2 <= column.ndim <= _MOST_DIMENSIONS:
        return getattr(datasets, f"Array{column.ndim}D")(shape=column.shape, dtype=column.dtype)
    feature = datasets.Value(column.dtype)
    for _ in range(column.ndim):
        feature = datasets.Sequence(feature)
    return feature


class _Npz(Format):
    """One .npz with an array for each column, along its first axis the samples.

    Arrays whose shapes vary, bytes and images are the columns NAME.values, all of them one after the other,
    NAME.offsets (int64 [n + 1], where each begins) and, of more than one dimension, NAME.shapes (int64).
    """

    name, arrays, is_folder = "npz", "biufc", False

    def begin(self, where: IO[bytes]) -> None:
        self.where = where
        table = self.label_table(range(len(self)))
        self._labels = {n: _label(n, Labels(table)[n], table.column(n)) for n in table.column_names}
        folder = os.path.dirname(where.name)
        self._stacks = {name: _Stack(column, folder) for name, column in self.columns.items()}

    def check(self) -> None:
        for name, column in self.columns.items():
            if column.is_nullable:
                raise ExportError(
                    f'export(): field "{name}" is None or missing in some samples, and an .npz holds no '
                    "None; leave it out with select(), or the samples with a filter"
                )
            if column.kind == "datetime with a zone":
                raise ExportError(f'export(): field "{name}" is a {column.kind}, for which numpy has no type')
            if name.endswith(_SUFFIXES):
                raise ExportError(
                    f'export(): field "{name}" ends as the arrays of fields of varying shapes do'
                )

    def parts(self, nbytes: int) -> list[range]:
        return super().parts(_BATCH_NBYTES)

    def write(self, number: int, part: range) -> None:
        for _, columns in self.rows(part):
            for name, values in columns.items():
                self._stacks[name].add(values)

    def finish(self) -> None:
        with zipfile.ZipFile(self.where, "w", zipfile.ZIP_STORED) as archive:
            for name, stack in self._stacks.items():
                for suffix, array in stack.arrays():
                    _add_array(archive, f"{name or 'sample'}{suffix}", array)
            for name, values in self._labels.items():
                _add_array(archive, name, values)

    def close(self) -> None:
        for stack in self._stacks.values():
            stack.close()


def _add_array(archive: zipfile.ZipFile, name: str, array: np.ndarray[Any, Any]) -> None:
    if f"{name}.npy" in archive.NameToInfo:
        raise ExportError(f'export(): two columns are named "{name}"; choose others: fields=, labels=')
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


def _plain_array(column: ArrowColumn, values: list[Any]) -> np.ndarray[Any, Any]:
    """Numbers, texts or times as one array: those of a column, or a list that is one value of a column."""
    kind = column.dtype.replace("null", "int") if column.kind == "list" else column.kind
    if None in values:
        raise ExportError(f'export(): field "{column.name}" has a list with None, and an .npz holds no None')
    if kind == "text" and any(value.endswith("\0") for value in values):
        raise ExportError(
            f'export(): field "{column.name}" has text that ends with a zero character, which numpy '
            "would cut off"
        )
    return np.array(values, dtype=_SINGLE[kind])


class _Stack:
    """The values of one column until all are there.

    Arrays, bytes and lists are in a file that goes with the process. Single values are in memory, and so are
    lists of texts, whose dtype is that of the longest.
    """

    def __init__(self, column: ArrowColumn, folder: str) -> None:
        self._column, self._folder = column, folder
        self._is_single = column.kind in _SINGLE
        if self._is_single or column.kind == "list":
            self._dtype = _plain_array(column, []).dtype
        else:
            self._dtype = np.dtype(column.dtype if column.kind == "array" else "u1")
        self._in_memory: list[np.ndarray[Any, Any]] = []
        self._shapes: list[tuple[int, ...]] = []
        self._file: Any = None
        if not self._is_single and self._dtype.kind != "U":
            try:
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the format
            except OSError as error:
                storage.refused(folder, "making a temporary file in it", error)

    def add(self, values: list[Any]) -> None:
        """Keep the values of more samples."""
        for value in [values] if self._is_single else values:
            array: Any = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
            if isinstance(value, list):
                array = _plain_array(self._column, value)
            if self._file is None:
                self._in_memory.append(array)
            else:
                self._file.write(np.ascontiguousarray(array).data)
            self._shapes.append(array.shape)

    def arrays(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """What goes into the .npz: a suffix of the name, and the array."""
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self._shapes]
        values: np.ndarray[Any, Any] = np.empty(0, self._dtype)
        if self._in_memory:
            values = np.concatenate(self._in_memory)
        elif sum(sizes):
            self._file.flush()
            try:
                values = np.memmap(self._file, self._dtype, "r", shape=(sum(sizes),))
            except OSError as error:
                storage.refused(self._folder, "mapping a temporary file in it", error)
        if self._is_single or self._column.is_fixed:
            yield "", values.reshape(-1, *(self._column.shape or ()))
            return
        yield ".values", values
        yield ".offsets", np.cumsum([0, *sizes], dtype=np.int64)
        if self._column.ndim > 1:
            yield ".shapes", np.array(self._shapes, np.int64).reshape(-1, self._column.ndim)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


FORMATS: Final[dict[str, type[Format]]] = {
    kind.name: kind for kind in (_Tars, _Folders, _Parquets, _HuggingFace, _Npz)
}
