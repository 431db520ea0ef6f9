"""Rows, which locate the record of each sample, their sums, and the table of a chunk.

In the file a row has a sum: the crc32 of its record, or of the crc32s of the blocks of a large one, xor a key. The key
is of the sample's index, schema and flags, of the archive, and of the payload that the row stands in. So neither a row
of another archive, nor one of an older index, fits the record that it points at.
In memory a row has the crc32 alone, so that a sample gets another index or place without a read of its record. `bound`
turns the one into the other where rows enter and leave the file; an index that is mapped stays as it is in the file.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import base
from edcache.base import CorruptArchiveError, Ints, LaterReleaseError, once
from edcache.format.arrays import pa
from edcache.format.columns import read_stream, write_stream
from edcache.format.entries import (
    LATTICE,
    MAX_LENGTH,
    Header,
    Place,
    PRead,
    align,
    crc32,
    read_sound,
    reported,
)

ROW: Final = np.dtype(
    [("offset", "<u8"), ("nbytes", "<u8"), ("crc32", "<u4"), ("schema", "<u2"), ("flags", "<u2")]
)
"""offset: from the start of the file. nbytes: of the record as stored, without the crc32s of its blocks."""
PRESENT: Final = 1
COMPRESSED: Final = 2
_KNOWN_FLAGS: Final = PRESENT | COMPRESSED
BLOCK_NBYTES: Final = 1 << 16
"""A record of more bytes is followed by the crc32 of each of its blocks, so that a field is checked alone."""
MAX_SCHEMAS: Final = 1 << 16
# Records whose crc32s are compared at once: fewer, or ones of more bytes, gain nothing. More take more memory than the
# processor's cache has.
_LEAST_JOINT, _MOST_JOINT, _MOST_SIZE = 64, 256, 1 << 10
# Four bytes whose crc32 is 0.
_GAP: Final = np.frombuffer(bytes.fromhex("9d0ad96d"), np.uint8)
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_PREFIX: Final = struct.Struct("<QQQ")

Rows = npt.NDArray[Any]


def record_alignment(nbytes: Any) -> Any:
    """Return the alignment of a record of `nbytes`, or of each of several: int64 [n]."""
    return LATTICE + (64 - LATTICE) * (nbytes >= 1024)


def block_crc32s(record: memoryview | bytes) -> bytes:
    """Pack the crc32s of the blocks of a large record, which are stored behind it; b"" for another."""
    return _crc32s_of_blocks(record) if len(record) > BLOCK_NBYTES else b""


def _crc32s_of_blocks(data: memoryview | bytes) -> bytes:
    crcs = [crc32(data[at : at + BLOCK_NBYTES]) for at in range(0, len(data), BLOCK_NBYTES)]
    return struct.pack(f"<{len(crcs)}I", *crcs)


def record_crc32s(data: memoryview, offset: Ints, nbytes: Ints) -> npt.NDArray[np.uint32]:
    """Compute the crc32 of each of one or more records in memory: uint32 [n]."""
    extents = zip(offset.tolist(), (offset + nbytes).tolist(), strict=True)
    return np.fromiter((crc32(data[at:end]) for at, end in extents), np.uint32, len(offset))


def _are_jointly_sound(data: memoryview, offset: Ints, nbytes: Ints, crcs: npt.NDArray[np.uint32]) -> bool:
    """True if many small records of one size fit their crc32s: compares the crc32 of them, one behind the other.

    A call for each record takes longer than its bytes. One or two turned bits, of records or of rows, are always found:
    a bit of a row's crc32 weighs as much as one bit of the four bytes behind its record, and these are no record's. Of
    more damage one in 4 * 10**9 passes, as of any.
    """
    size = int(nbytes[0])
    if len(offset) < _LEAST_JOINT or size > _MOST_SIZE or np.any((nbytes != size) | (offset % LATTICE != 0)):
        return False
    # Row k begins at byte 8 * k.
    lattice = np.ndarray(((len(data) - size) // LATTICE + 1, size), np.uint8, data, 0, (LATTICE, 1))
    weights = _weights(size)
    for first in range(0, len(offset), len(weights)):
        part = offset[first : first + len(weights)]
        bits = np.unpackbits(crcs[first : first + len(part)].view(np.uint8), bitorder="little")
        changes = weights[len(weights) - len(part) :].reshape(-1) * bits
        apart = np.empty((len(part), len(_GAP) + size), np.uint8)
        apart[:, : len(_GAP)] = _GAP
        apart[:, len(_GAP) :] = lattice[part // LATTICE]
        if crc32(apart) != np.bitwise_xor.reduce(changes):
            return False
    return True


@functools.lru_cache(maxsize=16)
def _weights(size: int) -> npt.NDArray[np.uint32]:
    """Compute what each bit of a record's crc32 adds to the crc32 of records of one size, each behind a gap.

    crc32 is linear: the crc32 of some bytes with n more behind them is the one of the bytes, shifted by n, xor the one
    of these n. So the crc32 of several records is the xor of their crc32s, each shifted by the records behind it, and a
    shift is the xor of the shifts of the bits. The crc32 of a gap is 0, so that it adds nothing.

    Returns: uint32 [n, 32], of each bit of as many records as are checked at once; fewer are the last ones.
    Cost: 1 ms, once for a size in a process.
    """
    zeros = bytes(len(_GAP) + size)
    of_zeros = crc32(zeros)
    weights = np.empty((_MOST_JOINT, 32), np.uint32)
    shifted = [1 << bit for bit in range(32)]
    for row in weights[::-1]:
        row[:] = shifted
        shifted = [crc32(zeros, bit) ^ of_zeros for bit in shifted]
    return weights


def behind_nbytes(nbytes: Any) -> Any:
    """Count the bytes of the crc32s behind a record of `nbytes`, or behind each of several: int64 [n]."""
    return (nbytes > BLOCK_NBYTES) * (-(-nbytes // BLOCK_NBYTES)) * 4


def stored_ends(rows: Rows) -> Ints:
    """Return the offset of the end of each record and of the crc32s behind it: int64 [n]."""
    nbytes = rows["nbytes"].astype(np.int64)
    ends: Ints = rows["offset"].astype(np.int64) + nbytes + behind_nbytes(nbytes)
    return ends


def salt(uuid: bytes, offset: int) -> int:
    """Compute what binds rows to an archive and to the payload at `offset` that they stand in."""
    return crc32(uuid + offset.to_bytes(8, "little"))


def bound(samples: Ints, rows: Rows, salt: int) -> Rows:
    """Copy rows with the sums that they have in the file; of such rows, with the crc32s that they have in memory.

    Two samples less than 1.9 * 10**9 apart have different keys. A row without a record stays all zeros.
    """
    new: Rows = rows.copy()
    # Read crc32, schema and flags of a row as one number, which takes a third of the time.
    last = new.view("<u8").reshape(-1, 3)[:, 2]
    own = last >> np.uint64(32)
    key = own ^ (samples.astype(np.uint64) * _MULTIPLIER) >> np.uint64(32) ^ np.uint64(salt)
    last ^= key * (own >> np.uint64(16) & np.uint64(PRESENT))
    return new


def unbound_crc32(sample: int, crc: int, schema: int, flags: int, salt: int) -> int:
    """`bound` of one row that has a record: return the crc32 of the record from the sum."""
    return crc ^ ((sample * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 32) ^ (schema | flags << 16) ^ salt


def check_flags(flags: int) -> None:
    """Raise LaterReleaseError for a flag that this release does not know: its record is stored in another way."""
    unknown = flags & ~_KNOWN_FLAGS
    if unknown:
        raise LaterReleaseError.needing(f"the row flag {unknown & -unknown}")


def joint_flags(rows: Rows) -> int:
    """Return all flags that rows have."""
    return int(np.bitwise_or.reduce(rows["flags"], initial=0))


def are_sound(rows: Rows, data: memoryview, start: int = 0) -> npt.NDArray[np.bool_]:
    """Mark the records that fit the crc32s of their rows in memory: bool [n]. data: the file's from `start` on."""
    offset, nbytes = rows["offset"].astype(np.int64) - start, rows["nbytes"].astype(np.int64)
    if nbytes.max() <= BLOCK_NBYTES:
        crcs = np.ascontiguousarray(rows["crc32"])
        if _are_jointly_sound(data, offset, nbytes, crcs):
            return np.ones(len(rows), np.bool_)
        sound: npt.NDArray[np.bool_] = record_crc32s(data, offset, nbytes) == crcs
        return sound
    extents = zip(offset.tolist(), (stored_ends(rows) - start).tolist(), strict=True)
    pieces = zip(rows["crc32"].tolist(), nbytes.tolist(), extents, strict=True)
    return np.array([fits(crc, size, data[at:end]) for crc, size, (at, end) in pieces])


def fits(crc: int, nbytes: int, stored: memoryview) -> bool:
    """True if a record of `nbytes`, with the crc32s of its blocks behind it, fits the crc32 of its row in memory."""
    if len(stored) != nbytes + behind_nbytes(nbytes):
        return False
    if nbytes > BLOCK_NBYTES:
        return blocks_fit(crc, stored[:nbytes], stored[nbytes:])
    return crc32(stored) == crc


def blocks_fit(crc: int, data: memoryview, behind: memoryview, first: int = 0) -> bool:
    """True if blocks of a large record, from the one numbered `first` on, fit their crc32s, and these the row's."""
    if crc32(behind) != crc:
        return False
    own = _crc32s_of_blocks(data)
    return behind[4 * first :][: len(own)] == own


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
    if type(value) is not list:
        raise ValueError("its failures are no list")
    kinds = [int, bool, str, str, str]
    for entry in value:
        if type(entry) is not list or [*map(type, entry)] != kinds or not 0 <= entry[0] < MAX_LENGTH:
            raise ValueError("one of its failures is none")
    return [Failure(*entry) for entry in value]


@dataclass(frozen=True)
class ChunkTable:
    """Table of a chunk: its samples, rows, schemas and labels.

    samples: int64 [n]. rows: `ROW` [n] as in memory, by rising offset; `schema` counts in `schemas`. labels: a row for
    each record, in types that hold the values of all earlier chunks too. place: for messages, with the path of the
    archive.
    """

    samples: Ints
    rows: Rows
    schemas: Sequence[str]
    stream: Any = field(repr=False)
    place: str
    path: str

    @once
    def labels(self) -> pa.Table:
        """Label columns, views of the bytes of the table; the first call parses all of them."""
        with reported(f"{self.place}: its labels", self.path):
            return read_stream(self.stream, len(self.rows))


def pack_table(
    samples: Ints, rows: Rows, schemas: Sequence[str], labels: pa.Table, uuid: bytes, start: int
) -> bytes:
    """Pack the table of a chunk; records start behind it, on a multiple of 64.

    rows: as in memory; their offsets count from the first record. start: offset of the table in the file.
    """
    text = json.dumps(list(schemas), ensure_ascii=True, separators=(",", ":")).encode("ascii")
    text = text.ljust(align(len(text), 8))
    stream = write_stream(labels)
    prefix = _PREFIX.pack(len(rows), len(text), len(stream))
    nbytes = len(prefix) + samples.nbytes + rows.nbytes + len(text) + len(stream)
    rows = bound(samples, rows, salt(uuid, start))
    rows["offset"] += np.uint64(align(start + nbytes, 64))
    return b"".join([prefix, samples.astype("<i8").tobytes(), rows.tobytes(), text, stream])


def records_offset(header: Header) -> int:
    """Return the offset of the first record of a chunk."""
    return header.payload_offset + align(header.table_nbytes, 64)


def read_table(pread: PRead, header: Header, where: str) -> ChunkTable:
    """Read and check the table of a chunk; CorruptArchiveError names chunk and offset. Raises: LaterReleaseError."""
    place = f"{where}: {header.name} at offset {header.offset:,}"
    data = read_sound(pread, Place(header.payload_offset, header.table_nbytes, header.table_crc32))
    if data is None:
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
        check_flags(joint_flags(rows))
        rows = bound(samples, rows, salt(header.uuid, header.payload_offset - header.moved))
        rows["offset"] += np.int64(header.moved).astype(np.uint64)
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
        return ChunkTable(samples, rows, schemas, view[at + text_nbytes :], place, where)


def texts_of(value: Any, what: str) -> list[str]:
    """Parse a JSON list of texts; ValueError for anything else."""
    if type(value) is not list or not all(type(one) is str for one in value):
        raise ValueError(f"{what} that are no texts")
    return value


def schemas_of(value: Any) -> list[str]:
    """Parse the JSON of schemas; ValueError for anything else."""
    schemas = texts_of(value, "schemas")
    if len(schemas) > MAX_SCHEMAS:
        raise ValueError(f"it has {len(schemas):,} schemas, the format allows {MAX_SCHEMAS:,}")
    return schemas
