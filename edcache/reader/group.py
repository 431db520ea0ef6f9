"""Many records of one schema, read field by field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import CorruptRecordError, EdcacheError, LengthError
from edcache.codec import Decoder, Node, decompress_into
from edcache.format import LATTICE
from edcache.reader.checks import LARGE, Check

Ints = npt.NDArray[np.int64]

Memory = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""`memory(shape, dtype)` gives a contiguous tensor whose content does not matter."""

# Rows from here on are checked and copied by turns, so many bytes at a time.
_BY_TURNS, _STEP, _LARGE_STEP = 1 << 14, 1 << 22, 1 << 20

_LATTICE_BITS = LATTICE.bit_length() - 1


class Spans(NamedTuple):
    """Where the data of one field of every record lie: int64 arrays, bytes in the group's `view`.

    start, end: [n]. dims: [n, ndim], the shape of each array or tensor; for other leaves [n, 1].
    """

    start: Ints
    end: Ints
    dims: Ints


class Piece(NamedTuple):
    """Bytes of one record from `low` on, checked; the rest of it was not asked for."""

    low: int
    data: memoryview


class Records:
    """Memory that holds records of one schema.

    Args:
        decoder: of the schema. view: the memory. base: the same as a uint8 tensor.
        nbytes: of the record of each row: int64 or uint64 [rows].
    """

    def __init__(
        self, decoder: Decoder, view: memoryview, base: torch.Tensor, nbytes: npt.NDArray[Any]
    ) -> None:
        self.decoder = decoder
        self.view = view
        self.nbytes = nbytes
        self._base = base
        self._windows: dict[tuple[int, int], torch.Tensor] = {}

    def window(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes `offset` to `offset + nbytes` of whatever record begins at each multiple of 8.

        8 bytes at a multiple of 8 are given as one int64, more quickly gathered; else uint8 [rows, nbytes].
        """
        found = self._windows.get((offset, nbytes))
        if found is None:
            found = self._windows[offset, nbytes] = self._make_window(offset, nbytes)
        return found

    def _make_window(self, offset: int, nbytes: int) -> torch.Tensor:
        if nbytes == LATTICE and not offset % LATTICE:
            numbers = self._base[: len(self._base) // LATTICE * LATTICE].view(torch.int64)
            return numbers[offset // LATTICE :]
        rows = (len(self._base) - offset - nbytes) // LATTICE + 1
        return self._base.as_strided((rows, nbytes), (LATTICE, 1), offset)


class Group:
    """Records of one schema that were checked and lie in one piece of memory.

    Args:
        records: the memory where they lie. start: int64 [n], where each begins in it, on a multiple of 8.
        rows: int64 [n], where `records.nbytes` has their lengths.
        check: checks the records of a slice of them; None where they are known to be sound.
    """

    _variable: dict[tuple[Any, ...], Spans] | None = None
    _is_located = False

    def __init__(self, records: Records, start: Ints, rows: Ints, check: Check | None = None) -> None:
        self._records = records
        self._start = start
        self._rows = rows
        self._check = check
        # Record k begins at place k of the overlapping rows, 8 bytes apart, that the memory is.
        self._places = torch.from_numpy(start >> _LATTICE_BITS)

    @property
    def decoder(self) -> Decoder:
        """Of the records' schema."""
        return self._records.decoder

    @property
    def view(self) -> memoryview:
        """The memory in which `spans` count."""
        return self._records.view

    def __len__(self) -> int:
        return len(self._start)

    def gather(self, field: Node, dtype: torch.dtype, memory: Memory) -> torch.Tensor:
        """One field of fixed shape of every record: a tensor [n, *field.shape].

        Args:
            dtype: of as many bytes as the field's own.
        """
        assert field.offset is not None
        assert field.nbytes is not None
        assert field.shape is not None
        rows, nbytes = len(self._start), field.nbytes
        out = memory((rows, *field.shape), dtype)
        if self._check is not None:
            if nbytes >= _BY_TURNS:
                self._gather_checked(field.offset, nbytes, out.view(-1).view(torch.uint8))
                return out
            self._ensure()
        if not nbytes:
            return out
        window = self._records.window(field.offset, nbytes)
        flat = out if dtype == window.dtype else out.view(-1).view(window.dtype)
        if flat.ndim != window.ndim:
            flat = flat.view(rows, nbytes) if window.ndim == 2 else flat.view(rows)
        torch.index_select(window, 0, self._places, out=flat)
        return out

    def _gather_checked(self, offset: int, nbytes: int, flat: torch.Tensor) -> None:
        # Some records at a time, so that they are still in the processor's cache when they are copied.
        check, step = self._check, max(1, (_STEP if nbytes < LARGE else _LARGE_STEP) // nbytes)
        window, out = self._records.window(offset, nbytes), flat.view(len(self), nbytes)
        assert check is not None
        for low in range(0, len(self), step):
            check(slice(low, low + step))
            torch.index_select(window, 0, self._places[low : low + step], out=out[low : low + step])
        self._check = None

    def _ensure(self) -> None:
        if self._check is not None:
            self._check(slice(None))
            self._check = None

    def fixed_spans(self, field: Node) -> Spans:
        """Where the data of a field of fixed shape lie."""
        assert field.offset is not None
        assert field.nbytes is not None
        assert field.shape is not None
        self._ensure()
        start = self._start + field.offset
        dims = np.broadcast_to(np.array(field.shape, np.int64), (len(self), len(field.shape)))
        return Spans(start, start + field.nbytes, dims)

    def spans(self, path: tuple[Any, ...]) -> Spans | None:
        """Where the data of a field of variable size lie; None where the records must be looked at singly."""
        if not self._is_located:
            self._variable = self._locate()
            self._is_located = True
        return None if self._variable is None else self._variable[path]

    def _locate(self) -> dict[tuple[Any, ...], Spans] | None:
        self._ensure()
        layout = self.decoder.layout
        assert layout is not None
        columns = layout.slots.size // 8
        window = self._records.window(layout.slots_offset, columns * 8)
        slots = torch.index_select(window, 0, self._places).numpy().view(np.int64).reshape(len(self), columns)
        nbytes = self._records.nbytes[self._rows].view(np.int64)
        found = layout.locate_many(slots, nbytes)
        if found is None:
            return None
        return {
            path: Spans(self._start + start, self._start + end, dims)
            for path, (start, end, dims) in found.items()
        }

    def copy(self, spans: Spans, out: torch.Tensor, at: Sequence[int] | None = None) -> None:
        """Copy the data of a field of every record into a contiguous tensor.

        Args:
            spans: as `spans` gave them, or shorter ones.
            at: where each goes, in bytes from the start of `out`; one behind the other if None.
        """
        # A loop of slices beats an indexed gather of elements, whatever their length.
        start, end, view = spans.start.tolist(), spans.end.tolist(), self.view
        target = out.view(-1).view(torch.uint8).numpy().data if out.numel() else memoryview(bytearray())
        position = 0
        for k, (low, high) in enumerate(zip(start, end, strict=True)):
            if at is not None:
                position = at[k]
            target[position : position + high - low] = view[low:high]
            position += high - low

    def pieces(self, path: tuple[Any, ...]) -> list[memoryview] | None:
        """The data of a field of variable size of every record, not copied; None as `spans`."""
        spans, view = self.spans(path), self.view
        if spans is None:
            return None
        return [view[start:end] for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True)]

    def values(self, path: tuple[Any, ...]) -> list[Any]:
        """One field of every record, decoded, in memory that the caller owns."""
        self._ensure()
        revive = self.decoder.reviver(path)
        pieces = None if revive is None else self.pieces(path)
        if revive is not None and pieces is not None:
            try:
                return [revive(piece) for piece in pieces]
            except (ValueError, OverflowError) as error:
                if isinstance(error, EdcacheError):
                    raise
                # What else does not decode is named by the way below.
        decode = self.decoder.part(self.decoder.fields[path])
        return [decode(self.record(row)) for row in range(len(self))]

    def decoded(self, copy: bool) -> list[Any]:
        """Every sample; see `Decoder.decode`."""
        self._ensure()
        decode_all = self.decoder.decode_all if copy else None
        if decode_all is not None:
            nbytes = self.decoder.nbytes
            assert nbytes is not None
            rows = torch.index_select(self._records.window(0, nbytes), 0, self._places)
            return decode_all(rows.numpy().view(np.uint8).reshape(len(self), nbytes))
        decode, view = self.decoder.decode, self.view
        ends = self._start + self._records.nbytes[self._rows].view(np.int64)
        extents = zip(self._start.tolist(), ends.tolist(), strict=True)
        return [decode(view[start:end], copy=copy) for start, end in extents]

    def record(self, row: int) -> memoryview:
        """The bytes of one record."""
        self._ensure()
        start, nbytes = int(self._start[row]), int(self._records.nbytes[self._rows[row]])
        return self.view[start : start + nbytes]


def joined(
    decoder: Decoder, lengths: Ints, stored: Sequence[Piece], dictionaries: Sequence[bytes] | None
) -> Group | None:
    """A group over memory of its own: records that are compressed, or were read one by one.

    Args:
        lengths: int64 [n], bytes of each before compression. stored: each as it is stored.
        dictionaries: what compressed ones may need; None where they are not compressed.
    Returns:
        None where memory is short, or one does not decompress: it is to be looked at by itself.
    """
    ends = np.cumsum((lengths + LATTICE - 1) & -LATTICE)
    places = np.concatenate(([0], ends[:-1]))
    try:
        # Not touched before its bytes are there: what frames claim and do not hold costs nothing.
        memory = np.empty(int(ends[-1]), np.uint8)
        view, starts = memory.data, places.tolist()
        if dictionaries is None:
            for at, (low, data) in zip(starts, stored, strict=True):
                view[at + low : at + low + len(data)] = data
        else:
            frames, threads = [data for _, data in stored], torch.get_num_threads()
            decompress_into(view, starts, lengths.tolist(), frames, dictionaries, threads)
    except (MemoryError, CorruptRecordError, LengthError):
        return None
    return Group(Records(decoder, view, torch.from_numpy(memory), lengths), places, np.arange(len(lengths)))
