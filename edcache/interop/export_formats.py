"""Write samples as tar shards and Parquet, a part of the samples at a time."""

from __future__ import annotations

import datetime
import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, ClassVar, Final

import numpy as np

from edcache import storage, writer
from edcache.base import ArchiveExistsError, CodecError, EdcacheError
from edcache.dataset import Samples
from edcache.format import pa
from edcache.interop.arrow_columns import arrow_column, parquet_writer, renamed, schema_of
from edcache.interop.export_columns import (
    Columns,
    EncodedImage,
    Leaves,
    check_fits,
    columns_of,
    leaves_of,
    unified,
    unsupported,
)
from edcache.interop.kinds import Format
from edcache.storage import File

_BUFFER: Final = 1 << 20
_BATCH_NBYTES: Final = 16 << 20
_MOST_IN_A_BATCH: Final = 1 << 14


def check_absent(out: str) -> None:
    """Raise ArchiveExistsError if a file is in the way."""
    if storage.exists(out):
        raise ArchiveExistsError(f"{out}: exists already; give a path where nothing is")


@contextmanager
def new_folder(out: str) -> Iterator[str]:
    """Make a folder, which gets its name at the end of the block, or is deleted after an error."""
    check_absent(out)
    with closing(writer.start(out, is_folder=True)) as session:
        work = os.path.dirname(session.path)
        try:
            yield work
            check_absent(out)
            # With its locked file, so that no other process begins meanwhile.
            storage.replace(work, out)
            storage.remove(os.path.join(out, writer.SUFFIX))
        except BaseException:
            # The first error is the one to report; --prune deletes the rest.
            with suppress(EdcacheError):
                storage.remove_tree(work)
            raise


@contextmanager
def new_file(path: str) -> Iterator[IO[bytes]]:
    """Open a new file in a new folder; it is synced at the end of the block."""
    with closing(File.open(path, "x")) as file:
        with io.BufferedWriter(_RawFile(file), _BUFFER) as stream:
            yield stream
        file.sync()


class _RawFile(io.RawIOBase):
    """File object for Python's libraries, with the errors of `File`."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.pwrite(self._position, view)
        self._position += len(view)
        return len(view)


def read(ds: Samples, positions: Sequence[int]) -> Iterator[tuple[str, Leaves]]:
    """Read the samples at some positions: the beginning of messages, "export(): sample 17", and leaves."""
    for position, sample in zip(positions, ds.__getitems__(list(positions)), strict=True):
        place = f"export(): sample {position}"
        yield place, leaves_of(sample, place)


def _split(whole: range, count: int) -> list[range]:
    return [whole[start : start + max(1, count)] for start in range(0, len(whole), max(1, count))]


@dataclass
class Writer:
    """Writer of samples to a folder, in one format.

    Attributes:
        name: of the format, in `export`.
        ds: the samples. labels: names of the label columns. columns: of a table.
        sample_nbytes: average of the samples that were looked at.
    """

    name: ClassVar[Format]
    ds: Samples
    labels: tuple[str, ...] = ()
    columns: Columns = field(default_factory=dict)
    sample_nbytes: float = 0.0

    def look_at(self, leaves: Leaves, place: str) -> None:
        """Take notice of a sample, before any is written; raises as writing it."""

    def check(self) -> None:
        """Raise CodecError for labels, and samples that were looked at, which the format does not hold."""

    def parts(self, nbytes: int) -> list[range]:
        """Divide the samples into parts of consecutive positions, of about `nbytes` each."""
        return _split(range(len(self.ds)), int(nbytes // self.sample_nbytes))

    def batches(self, part: range) -> list[range]:
        """Divide a part into positions that are in memory at a time, some 16 MiB."""
        return _split(part, min(int(_BATCH_NBYTES // self.sample_nbytes), _MOST_IN_A_BATCH))

    def label_table(self, part: range) -> Any:
        """Return the label columns of consecutive samples, under names that no field has."""
        labels = self.ds.labels.take(np.arange(part.start, part.stop))
        return renamed(labels.table.select(list(self.labels)), self.columns)

    def write(self, folder: str, number: int, part: range) -> None:
        """Write a part."""
        raise NotImplementedError


class _Tars(Writer):
    """Writer of tar shards for the webdataset package, with one file a field."""

    name = "webdataset"

    def check(self) -> None:
        for column in self.label_table(range(0)).schema:
            if "binary" in str(column.type):
                raise CodecError(
                    f'export(): label "{column.name}" is {column.type}, and JSON holds no bytes; choose '
                    "others: labels=[...]"
                )

    def write(self, folder: str, number: int, part: range) -> None:
        path = os.path.join(folder, f"shard-{number:06}.tar")
        # GNU's format, without a time and an owner: the same samples make the same bytes.
        with new_file(path) as stream, tarfile.open(None, "w|", stream, format=tarfile.GNU_FORMAT) as tar:
            for name, data in self._files(part):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))

    def _files(self, part: range) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of each file."""
        digits = len(str(len(self.ds) - 1))
        for piece in self.batches(part):
            labels = self.ds.labels.take(np.arange(piece.start, piece.stop))
            columns = [labels.to_list(name) for name in self.labels]
            for position, (place, leaves), *own in zip(piece, read(self.ds, piece), *columns, strict=True):
                files = self._files_of(leaves, place, dict(zip(self.labels, own, strict=True)))
                yield from ((f"{position:0{digits}}.{name}", data) for name, data in files.items())

    @staticmethod
    def _files_of(leaves: Leaves, place: str, labels: dict[str, Any]) -> dict[str, bytes]:
        """Return the bytes of each file of a sample by name; a leaf without a name has only an extension."""
        # default=str writes times.
        files = {"labels.json": json.dumps(labels, default=str).encode()} if labels else {}
        for name, value in leaves.items():
            if name.startswith((".", "__")) or set(name) & set("/\\\0") or len(name.encode()) > 200:
                raise CodecError(
                    f'{place}: field "{name}" makes no name of a file; webdataset needs names without '
                    "slashes that begin with no dot and not with __; rename it with with_transform()"
                )
            extension, data = _encode(name, value, place)
            file = (f"{name}.{extension}" if name else extension).lower()  # webdataset reads all names so
            if file in files:
                raise CodecError(f'{place}: two files would be called "{file}"; rename a field')
            files[file] = data
        return files


def _encode(name: str, value: Any, place: str) -> tuple[str, bytes]:
    """Encode a leaf as a file: extension and bytes."""
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
        return "cls", str(value).encode()
    if isinstance(value, complex):
        raise unsupported(place, name, value, "JSON has no complex numbers")
    return "json", json.dumps(value).encode()


@dataclass
class _Parquets(Writer):
    """Writer of Parquet files."""

    name = "parquet"

    _looks: list[tuple[Columns, str]] = field(default_factory=list)

    def look_at(self, leaves: Leaves, place: str) -> None:
        self._looks.append((columns_of(leaves, place), place))

    def check(self) -> None:
        self.columns = unified(self._looks)

    def write(self, folder: str, number: int, part: range) -> None:
        schema = schema_of(self.columns.values(), self.label_table(range(0)).schema)
        path = os.path.join(folder, f"part-{number:05}.parquet")
        with new_file(path) as stream, parquet_writer(stream, schema) as file:
            for piece in self.batches(part):
                place = f"export(): samples {piece[0]} to {piece[-1]}"
                rows = self._rows(piece)
                arrays = [arrow_column(c, rows[name], place) for name, c in self.columns.items()]
                arrays += self.label_table(piece).columns
                file.write_table(pa.Table.from_arrays(arrays, schema=schema))

    def _rows(self, piece: range) -> dict[str, list[Any]]:
        """Return the leaves of each column, images as their bytes."""
        columns: dict[str, list[Any]] = {name: [] for name in self.columns}
        for place, leaves in read(self.ds, piece):
            check_fits(self.columns, columns_of(leaves, place), place)
            for name, values in columns.items():
                value = leaves.get(name)
                values.append(value.data if isinstance(value, EncodedImage) else value)
        return columns


WRITERS: Final[dict[Format, type[Writer]]] = {kind.name: kind for kind in (_Tars, _Parquets)}
