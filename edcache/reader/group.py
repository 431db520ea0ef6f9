"""Many records of one schema, read field by field. Nothing here takes torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import codec
from edcache.base import CorruptRecordError, EdcacheError, Ints, once
from edcache.format import LATTICE
from edcache.reader.checks import Check, Piece

# To open an archive takes no decoder.
if TYPE_CHECKING:
    from edcache.codec import Decoder

_LATTICE_BITS = LATTICE.bit_length() - 1


class Spans(NamedTuple):
    """The extents of one field in every record, in bytes of the group's `view`.

    start, end: int64 [n]. dims: int64 [n, ndim], the shapes of arrays or tensors; [n, 1] for other leaves.
    """

    start: Ints
    end: Ints
    dims: Ints


class GroupRecords:
    """Memory that holds records of one schema.

    Args:
        decoder: of the schema. view: the memory, which may be read-only.
        sizes: `sizes(rows)` are the bytes of the records of rows: int64 [n].
    Attributes:
        memory: the view as uint8 [nbytes]. tensors: what gathers of tensors keep of it.
    """

    def __init__(self, decoder: Decoder, view: memoryview, sizes: Callable[[Ints], Ints]) -> None:
        self.decoder, self.view, self.sizes = decoder, view, sizes
        self.memory = codec.aliased(view)
        self.tensors: dict[tuple[int, int], Any] = {}

    def at(self, start: Ints, rows: Ints, check: Check | None = None) -> Group:
        """A group of some of the records; see `Group`."""
        return Group(self, start, rows, check)

    def window(self, offset: int, nbytes: int) -> npt.NDArray[Any]:
        """A view whose row k has bytes `offset` to `offset + nbytes` of a record that begins at byte 8 * k.

        It is uint8 [rows, nbytes]; 8 bytes at a multiple of 8 are one int64, which is gathered faster.
        """
        if nbytes == LATTICE and not offset % LATTICE:
            numbers = self.memory[: len(self.memory) // LATTICE * LATTICE].view(np.int64)
            return numbers[offset // LATTICE :]
        rows = (len(self.memory) - offset - nbytes) // LATTICE + 1
        window: npt.NDArray[Any] = np.ndarray((rows, nbytes), np.uint8, self.memory, offset, (LATTICE, 1))
        return window


class Group:
    """Records of one schema in one memory. They are checked before their bytes are used.

    Args:
        records: the memory. start: int64 [n], the first byte of each record in it, a multiple of 8.
        rows: int64 [n], by which `records.sizes` tells their bytes.
        check: checks the records of a slice of them; None if all were checked.
    Attributes:
        places: int64 [n], the start of each record in units of 8 bytes.
    """

    def __init__(self, records: GroupRecords, start: Ints, rows: Ints, check: Check | None = None) -> None:
        self.records, self.decoder, self.view = records, records.decoder, records.view
        self._start, self._rows = start, rows
        self.check = check
        self.places = start >> _LATTICE_BITS

    def __len__(self) -> int:
        return len(self._start)

    def gather(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """The same bytes of every record: uint8 [n, nbytes], in own memory."""
        self.ensure()
        rows: npt.NDArray[Any] = self.records.window(offset, nbytes)[self.places]
        return rows.view(np.uint8).reshape(len(self), nbytes)

    def ensure(self) -> None:
        """Check the records, unless they were."""
        if self.check is not None:
            self.check(slice(None))
            self.check = None

    def spans(self, path: tuple[Any, ...]) -> Spans | None:
        """The extents of a field; None if the records must be parsed one by one."""
        self.ensure()
        field = self.decoder.fields.get(path)
        if field is not None and field.offset is not None and field.shape is not None:
            assert field.nbytes is not None
            start = self._start + field.offset
            dims = np.broadcast_to(np.array(field.shape, np.int64), (len(self), len(field.shape)))
            return Spans(start, start + field.nbytes, dims)
        if self._variable is None:
            return None
        low, high, dims = self._variable[path]
        return Spans(self._start + low, self._start + high, dims)

    @once
    def _variable(self) -> dict[tuple[Any, ...], tuple[Ints, Ints, Ints]] | None:
        """(start, end, dims) of all fields of variable size, in bytes from the start of each record."""
        layout = self.decoder.layout
        assert layout is not None
        slots = self.gather(layout.slots_offset, layout.slots.size).view(np.int64)
        return layout.locate_many(slots, self._nbytes)

    @once
    def _nbytes(self) -> Ints:
        return self.records.sizes(self._rows)

    def copy(self, spans: Spans, target: memoryview, at: Sequence[int] | None = None) -> None:
        """Copy a field of every record.

        Args:
            spans: the result of `spans`, or shorter ones. target: bytes that may be written.
            at: the place of each in `target`; None concatenates them.
        """
        # A loop of slices is faster than an indexed gather of elements at any length.
        start, end, view = spans.start.tolist(), spans.end.tolist(), self.view
        position = 0
        for k, (low, high) in enumerate(zip(start, end, strict=True)):
            if at is not None:
                position = at[k]
            target[position : position + high - low] = view[low:high]
            position += high - low

    def pieces(self, path: tuple[Any, ...]) -> list[memoryview] | None:
        """The bytes of a field in every record, as views; None as in `spans`."""
        spans, view = self.spans(path), self.view
        if spans is None:
            return None
        return [view[start:end] for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True)]

    def values(self, path: tuple[Any, ...]) -> list[Any]:
        """One decoded field of every record, in memory that the caller owns."""
        self.ensure()
        revive = self.decoder.reviver(path)
        pieces = None if revive is None else self.pieces(path)
        if revive is not None and pieces is not None:
            try:
                return [revive(piece) for piece in pieces]
            except (ValueError, OverflowError) as error:
                if isinstance(error, EdcacheError):
                    raise
                # Decoding one by one below raises an error that names the value.
        decode = self.decoder.part(self.decoder.fields[path])
        return [decode(self.record(row)) for row in range(len(self))]

    def decoded(self, copy: bool) -> list[Any]:
        """Every sample; see `Decoder.decode`."""
        self.ensure()
        decode_all = self.decoder.decode_all if copy else None
        if decode_all is not None:
            nbytes = self.decoder.nbytes
            assert nbytes is not None
            return decode_all(self.gather(0, nbytes))
        decode, view = self.decoder.decode, self.view
        extents = zip(self._start.tolist(), (self._start + self._nbytes).tolist(), strict=True)
        return [decode(view[start:end], copy=copy) for start, end in extents]

    def record(self, row: int) -> memoryview:
        """The bytes of one record."""
        self.ensure()
        start, nbytes = int(self._start[row]), int(self._nbytes[row])
        return self.view[start : start + nbytes]


def joined(decoder: Decoder, lengths: Ints, stored: Sequence[Piece], is_compressed: bool) -> Group | None:
    """A group in new memory, of records that are compressed or were read one by one.

    Args:
        lengths: int64 [n], bytes of each record before compression. stored: the stored bytes of each.
    Returns:
        None if there is not enough memory or a record does not decompress. Read them one by one then.
    """
    ends = np.cumsum((lengths + LATTICE - 1) & -LATTICE)
    places = np.concatenate(([0], ends[:-1]))
    try:
        # np.empty touches no pages. The sum of lengths that a file made up may overflow: a ValueError.
        memory = np.empty(int(ends[-1]), np.uint8)
        view, starts = memory.data, places.tolist()
        if not is_compressed:
            for at, (low, data) in zip(starts, stored, strict=True):
                view[at + low : at + low + len(data)] = data
        else:
            # In a worker of a DataLoader torch has fewer threads than there are processors.
            frames, torch = [data for _, data in stored], sys.modules.get("torch")
            threads = torch.get_num_threads() if torch else os.cpu_count() or 1
            codec.decompress_into(view, starts, lengths.tolist(), frames, threads)
    except (MemoryError, ValueError, CorruptRecordError):
        return None
    return GroupRecords(decoder, view, lengths.__getitem__).at(places, np.arange(len(lengths)))
