"""`Group`: many records of one schema, read field by field, without torch.

The fast way of a batch has no loop over samples:

1. `Session.group` looks up where each record starts: int64 offsets, all multiples of 8 (`LATTICE`).
2. So the memory is an array of overlapping rows: row k has some bytes of a record that would begin at byte 8 * k
   (`Lattice.window`). A field of fixed shape lies at the same bytes of every record of its schema.
3. `window[places]` is that field of all records, in one copy. collation.py does the same by torch, into memory that it
   keeps.

A field that varies in shape is located by its slots, for all records at once, and copied record by record (`pieces`).
All other fields are decoded one by one (`values`), and so are whole samples (`samples`).

Memory is the mapped file. Records that are compressed, or are not mapped, are put into new memory first (`loaded`).
Records of several memories are read part by part (several.py).

A batch equals the one that default_collate makes of `samples`. A fast way may decline, and the caller then takes
`samples`, whose error names the record.

What must never happen: that a group has a record that was not checked; that a gather leaves a record and returns bytes
of its neighbour, which `is_regular` forbids; that two records of different schemas are in a group.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import codec
from edcache.base import CodecError, CorruptRecordError, EdcacheError, Ints, once
from edcache.format import LATTICE
from edcache.reader.checks import Checks
from edcache.reader.projection import Projection, planned
from edcache.reader.stored import Piece

# Opening an archive takes no decoder.
if TYPE_CHECKING:
    from edcache.codec import Decoder, Node

# Rows of these bytes or more are copied one by one, once; numpy copies shorter ones faster together, twice.
_LARGE_ROW = 1 << 15
_LATTICE_BITS = LATTICE.bit_length() - 1


class Pieces(NamedTuple):
    """One field in every record.

    dims: int64 [n, ndim], the shapes of arrays or tensors; [n, 1] for other leaves. data: views of the bytes.
    """

    dims: Ints
    data: list[memoryview]


def as_numbers(rows: npt.NDArray[np.uint8], offset: int) -> npt.NDArray[Any]:
    """View bytes `offset` on of records, uint8 [n, nbytes], as a window has them (`Lattice.window`)."""
    nbytes = rows.shape[1]
    if nbytes % LATTICE or offset % LATTICE:
        return rows
    numbers = rows.view(np.int64)
    return numbers[:, 0] if nbytes == LATTICE else numbers


class Lattice:
    """Memory with records, each at a multiple of 8.

    Args:
        view: the memory, which may be read-only.
    """

    def __init__(self, view: memoryview) -> None:
        self.view, self._memory = view, codec.aliased(view)
        self._windows: dict[tuple[int, int], npt.NDArray[Any]] = {}

    def window(self, offset: int, nbytes: int) -> npt.NDArray[Any]:
        """Return a view whose row k has bytes `offset` to `offset + nbytes` of a record that begins at byte 8 * k.

        It is uint8 [rows, nbytes]; if rows begin and end at multiples of 8, int64 [rows, nbytes // 8], or [rows] for 8
        bytes: torch gathers few items faster than many, and up to 2**15 in one thread.
        """
        window = self._windows.get((offset, nbytes))
        if window is None:
            memory = self._memory[offset:]
            rows = (len(memory) - nbytes) // LATTICE + 1
            window = as_numbers(np.ndarray((rows, nbytes), np.uint8, memory, 0, (LATTICE, 1)), offset)
            self._windows[offset, nbytes] = window
        return window


class Group:
    """Records of one schema in one memory, which were checked.

    Args:
        lattice: the memory. start: int64 [n], the first byte of each record in it, a multiple of 8.
        rows: int64 [n], numbers of the records, by which `sizes` and `checks` know them.
        sizes: `sizes(rows)` returns the bytes of each record: int64 [n].
        labels: names of the label columns of the archive.
        fields: to read of each; None for all.
        is_regular: True if a gather of fields of fixed size stays within each record.
    Attributes:
        window_rows: int64 [n], the row of each record in a window of `lattice`: its start in units of 8 bytes.
        check_same: who takes bytes calls it behind the last use, also after an error; StaleArchiveError if another
            archive was written over them. `samples` does it.
    """

    def __init__(
        self,
        decoder: Decoder,
        lattice: Lattice,
        start: Ints,
        rows: Ints,
        sizes: Callable[[Ints], Ints],
        checks: Checks,
        labels: Container[str],
        fields: Projection | None,
        is_regular: bool,
    ) -> None:
        self.decoder, self.lattice, self.start = decoder, lattice, start
        self.rows, self._sizes = rows, sizes
        self._checks, self.check_same = checks, checks.extents.check_same
        self.labels, self.fields, self.is_regular = labels, fields, is_regular
        self.window_rows = start >> _LATTICE_BITS

    def __len__(self) -> int:
        return len(self.start)

    beside = None

    @property
    def group(self) -> Group:
        """Itself; other records may have no group."""
        return self

    def gather(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Copy the same bytes of every record: uint8 [n, nbytes]."""
        rows: npt.NDArray[Any] = self.lattice.window(offset, nbytes)[self.window_rows]
        return rows.view(np.uint8).reshape(len(self), nbytes)

    def gather_to(self, out: npt.NDArray[Any], places: Ints, offset: int, nbytes: int) -> None:
        """Copy the same bytes of every record to rows of `out`, which is as a window; places: int64 [n], which rows."""
        window, rows = self.lattice.window(offset, nbytes), self.window_rows
        if nbytes < _LARGE_ROW:
            out[places] = window[rows]
            return
        for place, row in zip(places.tolist(), rows.tolist(), strict=True):
            out[place] = window[row]

    @once
    def views(self) -> list[memoryview]:
        """Bytes of each record."""
        view, ends = self.lattice.view, (self.start + self._sizes(self.rows)).tolist()
        return [view[start:end] for start, end in zip(self.start.tolist(), ends, strict=True)]

    def pieces(self, path: tuple[Any, ...]) -> Pieces | None:
        """Return a field of every record; None if the records must be parsed one by one."""
        field = self.decoder.fields.get(path)
        if field is not None and field.offset is not None and field.shape is not None:
            assert field.nbytes is not None
            dims = np.broadcast_to(np.array(field.shape, np.int64), (len(self), len(field.shape)))
            end = field.offset + field.nbytes
            return Pieces(dims, [record[field.offset : end] for record in self.views])
        if self._variable is None:
            return None
        start, ends, dims = self._variable[path]
        extents = zip(self.views, start.tolist(), ends.tolist(), strict=True)
        return Pieces(dims, [record[low:high] for record, low, high in extents])

    @once
    def _variable(self) -> dict[tuple[Any, ...], tuple[Ints, Ints, Ints]] | None:
        """(start, end, dims) of all fields of variable size, in bytes from the start of each record."""
        layout = self.decoder.layout
        assert layout is not None
        slots = self.gather(layout.slots_offset, layout.slots.size).view(np.int64)
        return layout.locate_many(slots, np.fromiter(map(len, self.views), np.int64))

    def values(self, path: tuple[Any, ...]) -> list[Any]:
        """Decode a field of every record, into memory that the caller owns."""
        revive = self.decoder.reviver(path)
        pieces = None if revive is None else self.pieces(path)
        if revive is not None and pieces is not None:
            # Decoding one by one, below, raises an error that names the value.
            with suppress(ValueError, OverflowError):
                return [revive(piece) for piece in pieces.data]
        return self.decoded(self.decoder.fields[path])

    def decoded(self, node: Node) -> list[Any]:
        """Decode the value at a node of every record, into memory that the caller owns."""
        return [*map(self.decoder.part(node), self.views)]

    def samples(self) -> list[Any]:
        """Decode every sample, or its fields, into memory that the caller owns.

        Raises: as `Session.read`, for the first one that does not decode.
        """
        decoder, samples = self.decoder, list[Any]()
        decode = decode_of(decoder, self.fields, self.labels)
        try:
            for record in self.views:
                if len(record) != decoder.nbytes:
                    decoder.check_nbytes(len(record))
                samples.append(decode(record))
        except (CodecError, CorruptRecordError) as error:
            raise self.placed(error, len(samples)) from error
        finally:
            self.check_same()
        return samples

    def placed(self, error: EdcacheError, row: int) -> EdcacheError:
        """Put the place of a record in front of an error's text."""
        return self._checks.placed(error, int(self.rows[row]))


def decode_of(
    decoder: Decoder, fields: Projection | None, labels: Container[str]
) -> Callable[[memoryview], Any]:
    """Return the function that decodes a record to a sample, or its fields. labels: as of `Group`."""
    if fields is None:
        return decoder.decode
    plan = planned(fields, decoder)
    if plan is not None:
        return plan.decode
    return lambda record: fields.of_sample(decoder.decode(record), labels)


def loaded(
    stored: Sequence[Piece], lengths: Ints, are_compressed: npt.NDArray[np.bool_]
) -> tuple[memoryview, Ints]:
    """Put records that are compressed, or were read one by one, into new memory.

    Args:
        stored: the stored bytes of each record. lengths: int64 [n], bytes of each before compression.
        are_compressed: bool [n].
    Returns: the memory, and the offset of each record in it: int64 [n].
    Raises: MemoryError; ValueError; CorruptRecordError, which names no record.
    """
    ends = np.cumsum((lengths + LATTICE - 1) & -LATTICE)
    places = np.concatenate(([0], ends[:-1]))
    # np.empty touches no pages. A sum of forged lengths may overflow: a ValueError.
    view = np.empty(int(ends[-1]), np.uint8).data
    for row, at in enumerate(places.tolist()):
        low, data = stored[row]
        if not are_compressed[row]:
            view[at + low : at + low + len(data)] = data
    packed = np.flatnonzero(are_compressed).tolist()
    if packed:
        # In a worker of a DataLoader torch has fewer threads than there are processors.
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch else os.cpu_count() or 1
        frames = [stored[row].data for row in packed]
        codec.decompress_into(view, places[packed].tolist(), lengths[packed].tolist(), frames, threads)
    return view, places
