"""Rows, which locate the record of each sample, their sums, and the table of a chunk.

The sum of a row is the crc32 of its record, or of the crc32s of the blocks of a large one, xor a key of the
sample's index, schema and flags. It covers all of the row but its offset, and a sample gets another index without a
read of its record.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import base
from edcache.base import CorruptArchiveError, Ints
from edcache.format.arrays import pa
from edcache.format.columns import read_stream, write_stream
from edcache.format.entries import CHUNK, LATTICE, MAX_LENGTH, Header, PRead, align, crc32, reported

ROW: Final = np.dtype(
    [("offset", "<u8"), ("nbytes", "<u8"), ("crc32", "<u4"), ("schema", "<u2"), ("flags", "<u2")]
)
"""offset: from the start of the file. nbytes: of the record as stored, without the crc32s of its blocks."""
PRESENT: Final = 1
COMPRESSED: Final = 2
BLOCK_NBYTES: Final = 1 << 16
"""A record of more bytes is followed by the crc32 of each of its blocks, so that a field is checked alone."""
MAX_SCHEMAS: Final = 1 << 16
# Bytes of one record, and of all that are copied together: small enough for the processor's cache.
_GATHERED: Final = 1 << 12
_COPIED_NBYTES: Final = 1 << 18
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_PREFIX: Final = struct.Struct("<QQQ")

Rows = npt.NDArray[Any]


def record_alignment(nbytes: Any) -> Any:
    """Return the alignment of a record of `nbytes`, or of each of several: int64 [n]."""
    return LATTICE + (64 - LATTICE) * (nbytes >= 1024)


def block_crc32s(record: memoryview | bytes) -> bytes:
    """Pack the crc32s of the blocks of a large record, which are stored behind it; b"" for another."""
    if len(record) <= BLOCK_NBYTES:
        return b""
    crcs = [crc32(record[at : at + BLOCK_NBYTES]) for at in range(0, len(record), BLOCK_NBYTES)]
    return struct.pack(f"<{len(crcs)}I", *crcs)


def record_crc32s(data: memoryview, offset: Ints, nbytes: Ints) -> npt.NDArray[np.uint32]:
    """Compute the crc32 of each of one or more records in memory: uint32 [n]."""
    count, size = len(offset), int(nbytes[0])
    if size > _GATHERED or np.any((nbytes != size) | (offset % LATTICE != 0)):
        extents = zip(offset.tolist(), (offset + nbytes).tolist(), strict=True)
        return np.fromiter((crc32(data[at:end]) for at, end in extents), np.uint32, count)
    # Records of one size are copied together: a slice of a memoryview takes 0.2 us, a row of an array 0.06.
    lattice = np.ndarray(((len(data) - size) // LATTICE + 1, size), np.uint8, data, 0, (LATTICE, 1))
    portions = np.array_split(offset // LATTICE, -(-count * size // _COPIED_NBYTES) or 1)
    crcs = itertools.chain.from_iterable(map(crc32, lattice[turn]) for turn in portions)
    return np.fromiter(crcs, np.uint32, count)


def behind_nbytes(nbytes: Any) -> Any:
    """Count the bytes of the crc32s behind a record of `nbytes`, or behind each of several: int64 [n]."""
    return (nbytes > BLOCK_NBYTES) * (-(-nbytes // BLOCK_NBYTES)) * 4


def stored_ends(rows: Rows) -> Ints:
    """Return the offset of the end of each record and of the crc32s behind it: int64 [n]."""
    nbytes = rows["nbytes"].astype(np.int64)
    ends: Ints = rows["offset"].astype(np.int64) + nbytes + behind_nbytes(nbytes)
    return ends


def keys(samples: Ints, rows: Rows) -> npt.NDArray[np.uint32]:
    """Compute the keys of rows: crc32 of a record xor key is the sum of its row: uint32 [n].

    Two samples less than 1.9 * 10**9 apart have different keys.
    """
    mixed = (samples.astype(np.uint64) * _MULTIPLIER) >> np.uint64(32)
    own = rows["schema"].astype(np.uint32) | rows["flags"].astype(np.uint32) << np.uint32(16)
    found: npt.NDArray[np.uint32] = mixed.astype(np.uint32) ^ own
    return found


def key(sample: int, schema: int, flags: int) -> int:
    """`keys` of one row."""
    return ((sample * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 32) ^ (schema | flags << 16)


def renumbered(samples: Ints, rows: Rows, new_samples: Ints, new_schemas: npt.NDArray[Any]) -> Rows:
    """Copy rows for other samples and schemas, with sums that hold for these; no record is read."""
    new: Rows = rows.copy()
    new["schema"] = new_schemas
    new["crc32"] = rows["crc32"] ^ keys(samples, rows) ^ keys(new_samples, new)
    return new


@dataclass(frozen=True, order=True, slots=True)
class Failure:
    """Failure of a sample. final: True if it is absent for good; else a later fill tries again."""

    index: int
    final: bool
    error: str
    message: str
    traceback: str

    def to_json(self) -> list[Any]:
        """Return the JSON that `failures_of` reads."""
        return list(astuple(self))


def failures_of(value: Any) -> list[Failure]:
    """Parse the JSON of failures; ValueError for anything else."""
    kinds = (int, bool, str, str, str)
    if type(value) is not list or any(
        type(entry) is not list or tuple(map(type, entry)) != kinds for entry in value
    ):
        raise ValueError("its failures are none")
    failures = [Failure(*entry) for entry in value]
    if any(not 0 <= failure.index < MAX_LENGTH for failure in failures):
        raise ValueError("one of its failures is none")
    return failures


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """Table of a chunk: its samples, rows, schemas and labels.

    samples: int64 [n]. rows: `ROW` [n], by rising offset; `schema` counts in `schemas`. labels: a row for each record,
    in types that hold the values of all earlier chunks too.
    """

    samples: Ints
    rows: Rows
    schemas: Sequence[str]
    stream: Any = field(repr=False)

    @property
    def labels(self) -> pa.Table:
        """Label columns, views of the bytes of the table."""
        with reported("its labels"):
            return read_stream(self.stream, len(self.rows))


def pack_table(
    samples: Ints, rows: Rows, schemas: Sequence[str], labels: pa.Table, start: int | None = None
) -> bytes:
    """Pack the table of a chunk; records start behind it, on a multiple of 64.

    start: offset of the table in the file, if offsets of rows count from the first record.
    """
    text = json.dumps(list(schemas), ensure_ascii=True, separators=(",", ":")).encode("ascii")
    text = text.ljust(align(len(text), 8))
    stream = write_stream(labels)
    prefix = _PREFIX.pack(len(rows), len(text), len(stream))
    if start is not None:
        nbytes = len(prefix) + samples.nbytes + rows.nbytes + len(text) + len(stream)
        rows = rows.copy()
        rows["offset"] += np.uint64(align(start + nbytes, 64))
    return b"".join([prefix, samples.astype("<i8").tobytes(), rows.tobytes(), text, stream])


def records_offset(header: Header) -> int:
    """Return the offset of the first record of a chunk."""
    return header.payload_offset + align(header.table_nbytes, 64)


def read_table(pread: PRead, header: Header, where: str) -> ChunkTable:
    """Read and check the table of a chunk; CorruptArchiveError names chunk and offset."""
    assert header.kind == CHUNK
    place = f"{where}: {header.name} at offset {header.offset:,}"
    data = pread(header.payload_offset, header.table_nbytes)
    if len(data) != header.table_nbytes or crc32(data) != header.table_crc32:
        raise CorruptArchiveError(
            f'{place}: its table fails its crc32; run "edcache verify {where}"', path=where
        )
    with reported(f"{place}: its table", where):
        view = memoryview(data)
        count, text_nbytes, stream_nbytes = _PREFIX.unpack_from(view)
        at = _PREFIX.size
        if at + count * (8 + ROW.itemsize) + text_nbytes + stream_nbytes != len(view) or not count:
            raise ValueError("its parts are not as long as it is")
        samples = np.frombuffer(view, "<i8", count, at)
        at += samples.nbytes
        rows = np.frombuffer(view, ROW, count, at)
        at += rows.nbytes
        schemas = schemas_of(base.loads(view[at : at + text_nbytes]))
        low, high = records_offset(header), header.payload_end
        ends = stored_ends(rows)
        inside = (
            low <= int(rows["offset"].min()) <= int(rows["offset"].max()) <= high
            and int(rows["nbytes"].max()) <= high - low  # so that no sum wraps
            and int(ends.max()) <= high
            and int(rows["schema"].max()) < len(schemas)
            and np.all(rows["flags"] & PRESENT)
            and np.all(rows["offset"][1:].astype(np.int64) >= ends[:-1])
        )
        if not inside or (int(samples.min()), int(samples.max()) + 1) != (header.first, header.end):
            raise ValueError("its rows point outside of it, or are of other samples")
        return ChunkTable(samples, rows, schemas, view[at + text_nbytes :])


def schemas_of(schemas: Any) -> list[str]:
    """Parse the JSON of schemas; ValueError for anything else."""
    if type(schemas) is not list or not all(type(schema) is str for schema in schemas):
        raise ValueError("its schemas are not texts")
    if len(schemas) > MAX_SCHEMAS:
        raise ValueError(f"it has {len(schemas):,} schemas, the format allows {MAX_SCHEMAS:,}")
    return schemas
