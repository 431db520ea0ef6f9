"""Many records of one schema: read field by field, and collated as `default_collate` would their samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from edcache.base import CorruptRecordError, EdcacheError, Ints, LengthError, once
from edcache.codec import (
    Decoder,
    Node,
    aliased,
    assembler,
    decoded_together,
    decompress_into,
    torch_dtype,
)
from edcache.format import LATTICE
from edcache.reader.checks import LARGE, Check, Piece

Memory = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""`memory(shape, dtype)` gives a contiguous tensor whose content does not matter."""

# Rows from here on are checked and copied by turns, so many bytes at a time.
_BY_TURNS, _STEP, _LARGE_STEP = 1 << 14, 1 << 22, 1 << 20

_LATTICE_BITS = LATTICE.bit_length() - 1

# What torch.stack makes of a list of such tensors is what a gather gives; of others torch may refuse.
_NUMPY_TO_TORCH: Final = {
    np.dtype(code): torch.from_numpy(np.empty(0, code)).dtype
    for code in ("?", "u1", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16")
}
_BULK_DTYPES: Final = frozenset({*_NUMPY_TO_TORCH.values(), torch.bfloat16})
_SCALARS: Final = {"int": torch.int64, "float": torch.float64}


class Spans(NamedTuple):
    """Where the data of one field of every record lie: int64 arrays, bytes in the group's `view`.

    start, end: [n]. dims: [n, ndim], the shape of each array or tensor; for other leaves [n, 1].
    """

    start: Ints
    end: Ints
    dims: Ints


class GroupRecords:
    """Memory that holds records of one schema.

    Args:
        decoder: of the schema. view: the memory, which may be read-only.
        nbytes: of the record of each row: int64 or uint64 [rows].
    """

    def __init__(self, decoder: Decoder, view: memoryview, nbytes: npt.NDArray[Any]) -> None:
        self.decoder, self.view, self.nbytes = decoder, view, nbytes
        self._base = torch.from_numpy(aliased(view))
        self._windows: dict[tuple[int, int], torch.Tensor] = {}

    def at(self, start: Ints, rows: Ints, check: Check | None = None) -> Group:
        """Some of the records; see `Group`."""
        return Group(self, start, rows, check)

    def window(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes `offset` to `offset + nbytes` of whatever record begins at each multiple of 8.

        8 bytes at a multiple of 8 are given as one int64, more quickly gathered; else uint8 [rows, nbytes].
        """
        window = self._windows.get((offset, nbytes))
        if window is None:
            if nbytes == LATTICE and not offset % LATTICE:
                numbers = self._base[: len(self._base) // LATTICE * LATTICE].view(torch.int64)
                window = numbers[offset // LATTICE :]
            else:
                rows = (len(self._base) - offset - nbytes) // LATTICE + 1
                window = self._base.as_strided((rows, nbytes), (LATTICE, 1), offset)
            self._windows[offset, nbytes] = window
        return window


class Group:
    """Records of one schema that were checked and lie in one piece of memory.

    Args:
        records: the memory where they lie. start: int64 [n], where each begins in it, on a multiple of 8.
        rows: int64 [n], where `records.nbytes` has their lengths.
        check: checks the records of a slice of them; None where they are known to be sound.
    """

    def __init__(self, records: GroupRecords, start: Ints, rows: Ints, check: Check | None = None) -> None:
        self._records, self.decoder, self.view = records, records.decoder, records.view
        self._start, self._rows = start, rows
        self._check = check
        # Record k begins at place k of the overlapping rows, 8 bytes apart, that the memory is.
        self._places = torch.from_numpy(start >> _LATTICE_BITS)

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

    def spans(self, path: tuple[Any, ...]) -> Spans | None:
        """Where the data of a field lie; None where its size varies, and records must be looked at singly."""
        self._ensure()
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
        """The same of all fields whose size varies, counted from each record."""
        layout = self.decoder.layout
        assert layout is not None
        columns = layout.slots.size // 8
        window = self._records.window(layout.slots_offset, columns * 8)
        slots = torch.index_select(window, 0, self._places).numpy().view(np.int64).reshape(len(self), columns)
        return layout.locate_many(slots, self._nbytes)

    @property
    def _nbytes(self) -> Ints:
        return self._records.nbytes[self._rows].view(np.int64)

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
        extents = zip(self._start.tolist(), (self._start + self._nbytes).tolist(), strict=True)
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
    return GroupRecords(decoder, view, lengths).at(places, np.arange(len(lengths)))


# --- collated ---------------------------------------------------------------------------------------

Collate = Callable[[Group, Memory], Any]


class NotInBulk(Exception):
    """A structure that default_collate should judge itself."""


class Special:
    """Another way to collate some fields; hashable."""

    def way(self, decoder: Decoder, node: Node) -> Collate | None:
        """How what lies at a node is collated, or None for default_collate's way."""
        raise NotImplementedError

    def of_samples(self, samples: Sequence[Any]) -> Any:
        """The batch, made of samples."""
        raise NotImplementedError

    def finished(self, batch: Any) -> Any:
        """A batch whose fields are collated, in the form in which it is given out."""
        raise NotImplementedError


@functools.lru_cache(maxsize=256)
def collation(decoder: Decoder, special: Special | None = None) -> Collate | None:
    """How a group of records of the decoder's schema is collated; None where default_collate must see them.

    The result of `collation(group.decoder)(group, memory)` equals default_collate of the samples.
    """
    if decoder.structure is None:
        return None
    try:
        return collation_of(decoder, decoder.structure, list, special)
    except NotInBulk:
        return None


def collation_of(decoder: Decoder, node: Node, column: type, special: Special | None = None) -> Collate:
    """How what lies at a node is collated; `column` is what default_collate holds its values in there.

    Raises:
        NotInBulk: default_collate refuses such values, or treats them in a way of its own.
    """
    own = None if special is None else special.way(decoder, node)
    if own is not None:
        return own
    if node.kind in ("dict", "OrderedDict", "tuple", "list", "namedtuple"):
        return _container(decoder, node, special)
    if node.is_container or node.kind == "none":
        raise NotInBulk
    if node.kind == "imagefile":
        return _pictures(node, column)
    return _leaf(decoder.fields[node.path], column)


def _container(decoder: Decoder, node: Node, special: Special | None) -> Collate:
    """All children in their order, made with the largest of fixed size first: that checks the records."""
    is_mapping = node.kind in ("dict", "OrderedDict")
    column = list if is_mapping else tuple
    children = [collation_of(decoder, child, column, special) for child in node.children]
    # Nothing that may raise goes first: default_collate's errors come in its order.
    sizes = [_gathered_nbytes(decoder, child) for child in node.children]
    largest = children[sizes.index(max(sizes))] if children else None

    def collate(group: Group, memory: Memory) -> list[Any]:
        first = None if largest is None else largest(group, memory)
        return [first if child is largest else child(group, memory) for child in children]

    if node.kind in ("tuple", "list"):  # a tuple becomes a list there too
        return collate
    if node.kind == "dict" and all(type(key) is str for key in node.keys):
        return lambda group, memory: dict(zip(node.keys, collate(group, memory), strict=True))
    assemble = assembler(node)
    return lambda group, memory: assemble(collate(group, memory))


def _gathered_nbytes(decoder: Decoder, node: Node) -> int:
    """Bytes of the largest field at a node where all are gathered; else 0."""
    fields = [decoder.fields.get(leaf.path) for leaf in node.leaves()]
    if not all(map(_is_gathered, fields)):
        return 0
    return max((field.nbytes or 0 for field in fields if field is not None), default=0)


def _is_gathered(field: Node | None) -> bool:
    """Whether a field of every record lies at one place, and may be gathered as it is."""
    return field is not None and field.offset is not None and bulk_dtype(field) is not None


def _leaf(field: Node, column: type) -> Collate:
    dtype = bulk_dtype(field)
    if dtype is None:
        return lambda group, memory: default_collate(column(group.values(field.path)))
    if field.offset is not None:
        return lambda group, memory: group.gather(field, dtype, memory)

    def stack(group: Group, memory: Memory) -> Any:
        spans = group.spans(field.path)
        if spans is None or not (spans.dims == spans.dims[0]).all():
            return default_collate(column(group.values(field.path)))
        out = memory((len(group), *spans.dims[0].tolist()), dtype)
        group.copy(spans, out)
        return out

    return stack


def _pictures(node: Node, column: type) -> Collate:
    """Images are decoded straight into the batch, where they are arrays or tensors of one shape."""

    def stack(group: Group, memory: Memory) -> Any:
        files = group.pieces(node.path) if node.const.form in ("numpy", "tensor") else None
        together = None if files is None else decoded_together(files, node.const, memory)
        return default_collate(column(group.values(node.path))) if together is None else together

    return stack


def bulk_dtype(field: Node) -> torch.dtype | None:
    """The dtype of what default_collate stacks of a field; None where it does something else."""
    if field.kind == "tensor":
        dtype = torch_dtype(field.dtype).dtype
        return dtype if dtype in _BULK_DTYPES else None
    if field.kind in ("array", "scalar"):
        return _NUMPY_TO_TORCH.get(field.dtype)  # type: ignore[arg-type]
    return _SCALARS.get(field.kind)
