"""Collate fields that vary in shape: padded, jagged, or as a list of views of one buffer.

A DataLoader's worker sends the buffer. It would send a list of 256 tensors as 256 descriptors, one by one, which limits
any loader to some 2,000 samples per second.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from edcache.base import Ints, OptionError, check_count, cut_traceback
from edcache.codec import Decoder, Node
from edcache.reader.collation import (
    Batch,
    Collate,
    NotInBulk,
    Special,
    bulk_dtype,
    by_default,
    bytes_of,
    copy_pieces,
)
from edcache.reader.group import Group, Pieces
from edcache.reader.memory import Memory, Packed, for_this_process
from edcache.reader.projection import FieldPath, at, replaced, steps

# Kinds of lists of numbers in records.
_PACKED = {"ints": torch.int64, "floats": torch.float64}


class Padded(NamedTuple):
    """Field of a batch, padded to one shape.

    Attributes:
        values: [n, longest, ...].
        lengths: int64 [n], the lengths before padding; [n, ndim] if later dimensions vary too.
    """

    values: torch.Tensor
    lengths: torch.Tensor


class Jagged(NamedTuple):
    """Field of a batch, concatenated: sample i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: [sum of lengths, ...].
        offsets: int64 [n + 1]. `torch.nested.nested_tensor_from_jagged(values, offsets)` takes both.
    """

    values: torch.Tensor
    offsets: torch.Tensor


class TensorList(list[torch.Tensor]):
    """List of tensors that are views of one buffer. Pickling sends the buffer once."""

    def __init__(self, buffer: torch.Tensor, dims: Ints) -> None:
        self._buffer, self._dims = buffer, dims
        flat = torch.split(buffer, dims.prod(axis=1).tolist())
        shapes = zip(flat, dims.tolist(), strict=True)
        self._views = flat if dims.shape[1] == 1 else [piece.view(shape) for piece, shape in shapes]
        super().__init__(self._views)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        is_same = len(self) == len(self._views) and all(map(operator.is_, self, self._views))
        if is_same and [list(view.shape) for view in self._views] == self._dims.tolist():
            return TensorList, (self._buffer, self._dims)
        return list, (list(self),)

    def packed(self, pack: Callable[[Any], Any]) -> Packed:
        """Return the object to pickle instead; `pack` makes smaller messages of tensors."""
        make, arguments = self.__reduce_ex__(5)
        return Packed(make, *(map(pack, arguments) if make is TensorList else arguments))


@cut_traceback
def collate(
    *,
    pad: Mapping[FieldPath, Any] | None = None,
    jagged: Iterable[FieldPath] = (),
    as_list: Iterable[FieldPath] = (),
    max_length: int | None = None,
    multiple_of: int = 1,
    side: str = "right",
) -> RaggedCollate:
    """Make a `collate_fn` for samples whose fields vary in shape; other fields go to `default_collate`.

    Args:
        pad: a mapping from field paths to the value to pad with. The field becomes `Padded(values, lengths)`: values
            [n, longest, ...] and lengths int64 [n]. The field is a tensor, an array or a list of numbers; lists become
            int64, float64 or bool.
        jagged: field paths. Each field becomes `Jagged(values, offsets)`: all values one after the other. All
            dimensions except the first must be equal in all samples.
        as_list: field paths. Each field becomes a list of tensors, which are views of one buffer. Fields that are not
            tensors or arrays, such as text, become a list of values.
        max_length: cuts the first dimension of these fields to at most this length.
        multiple_of: pads the first dimension to a multiple of this number.
        side: the padded side of the first dimension, "right" or "left".
    Returns:
        A function of a batch, which can be pickled for workers that are started by spawn.
    Raises:
        OptionError: a field is given twice; while collating, the samples do not have a field, or a 0-d tensor
            cannot be padded.

    Batches of an edcache dataset are read together, field by field. Lists of samples of any dataset work too.
    Arrays become tensors.

    >>> DataLoader(ds, 32, collate_fn=edcache.collate(pad={"input_ids": 0}, as_list=["text"]))
    """
    if side not in ("right", "left"):
        raise OptionError(f'side={side!r}; give "right" or "left"', option="side")
    if max_length is not None and (not isinstance(max_length, int) or max_length < 0):
        raise OptionError(
            f"max_length={max_length!r}; give a length of 0 or more, or None", option="max_length"
        )
    check_count("multiple_of", multiple_of)
    if pad is not None and not isinstance(pad, Mapping):
        raise OptionError(
            f'pad={pad!r}; give what to pad with, by field path: pad={{"input_ids": 0}}', option="pad"
        )
    ways: list[tuple[FieldPath, _Way]] = [
        *((path, _Pad(max_length, value, multiple_of, side)) for path, value in (pad or {}).items()),
        *((path, _Jag(max_length)) for path in _paths(jagged, "jagged")),
        *((path, _List(max_length)) for path in _paths(as_list, "as_list")),
    ]
    named = [path for path, _ in ways]
    twice = [path for path in named if named.count(path) > 1]
    if twice:
        raise OptionError(f"collate() names {twice[0]!r} twice; give each field once")
    return RaggedCollate(ways)


def _paths(paths: Any, option: str) -> list[FieldPath]:
    if not isinstance(paths, Iterable) or isinstance(paths, str):
        raise OptionError(f"{option}={paths!r}; give a list of field paths: {option}=[{paths!r}]")
    return list(paths)


class RaggedCollate(Special):
    """Result of `collate`: call it with a batch."""

    def __init__(self, ways: Sequence[tuple[FieldPath, _Way]]) -> None:
        self._ways = list(ways)

    def __repr__(self) -> str:
        return f"collate({', '.join(f'{path!r}: {way}' for path, way in self._ways)})"

    @cut_traceback
    def __call__(self, batch: Sequence[Any]) -> Any:
        """Collate a list of samples, or the `Batch` that an edcache dataset gives a DataLoader."""
        if len(batch) == 1 and isinstance(batch[0], Batch):
            return batch[0].collated(self)
        return self.of_samples(batch)

    def way(self, decoder: Decoder, node: Node) -> Collate | None:
        """Return the collation of a field in bulk; None if `collate` does not name it.

        Raises:
            NotInBulk: a named path is not a field. Collating the samples then raises the error for users.
        """
        assert decoder.structure is not None
        if node is decoder.structure and any(node.at(path) is None for path, _ in self._ways):
            raise NotInBulk
        way = next((way for path, way in self._ways if decoder.structure.at(path) is node), None)
        if way is None:
            return None
        field = decoder.fields.get(node.path)
        dtype = None if field is None else bulk_dtype(field)
        if field is None or node.is_container:
            raise NotInBulk
        is_array = dtype is not None and field.kind in ("tensor", "array")
        is_packed = field.kind in _PACKED and not isinstance(way, _List)

        def run(group: Group, memory: Memory) -> Any:
            pieces = group.pieces(field.path) if is_array or is_packed else None
            if pieces is not None and is_packed:
                is_whole = not (pieces.dims % 8).any()
                pieces = Pieces(pieces.dims // 8, pieces.data) if is_whole else None
            if pieces is None:
                return way.of_values(group.values(field.path), memory)
            return way.of_pieces(_in_records(pieces, dtype or _PACKED[field.kind]), memory)

        return run

    def of_samples(self, samples: Sequence[Any]) -> Any:
        """Collate a list of samples; equal to the batch in bulk."""
        memory = for_this_process()
        columns = []
        rest = list(samples)
        for path, way in self._ways:
            places = [steps(sample, path, "collate()") for sample in rest]
            values = [at(sample, place) for sample, place in zip(rest, places, strict=True)]
            # default_collate takes the rest, with a number in the place of this field.
            rest = [replaced(sample, place, 0) for sample, place in zip(rest, places, strict=True)]
            columns.append((places[0], way.of_values(values, memory)))
        result = by_default(rest)
        for place, column in columns:
            result = replaced(result, place, column)
        return result


# --- the ways ---------------------------------------------------------------------------------------


class _Pieces(NamedTuple):
    """Tensors of one field of a batch.

    dims: int64 [n, ndim], the shape of each. copy(lengths, out, at): copies the first `lengths[i]` rows of each to byte
    `at[i]` of `out`.
    """

    dims: Ints
    dtype: torch.dtype
    copy: Callable[[Ints, torch.Tensor, Ints], None]


@dataclass(frozen=True)
class _Way(ABC):
    """Way to collate one field of a batch."""

    max_length: int | None

    @abstractmethod
    def of_pieces(self, pieces: _Pieces, memory: Memory) -> Any:
        """Collate tensors in records or in memory."""

    def of_values(self, values: list[Any], memory: Memory) -> Any:
        """Collate values of samples. If all are empty lists, the dtype is int64."""
        return self.of_pieces(_in_memory(_of_numbers(values, int)), memory)


@dataclass(frozen=True)
class _Pad(_Way):
    value: Any
    multiple_of: int
    side: str

    def of_values(self, values: list[Any], memory: Memory) -> Padded:
        return self.of_pieces(_in_memory(_of_numbers(values, type(self.value))), memory)

    def _check(self, dtype: torch.dtype) -> None:
        """Raise OptionError if the dtype cannot hold the value: torch would pad uint8 with 255 for -1."""
        try:
            filled = torch.full((1,), 0, dtype=dtype).fill_(self.value)
            fits = dtype.is_floating_point or dtype.is_complex or filled.item() == self.value
        except (TypeError, ValueError, RuntimeError):
            fits = False
        if not fits:
            raise OptionError(f"pad: {self.value!r} does not fit into {dtype}; give a value that does")

    def of_pieces(self, pieces: _Pieces, memory: Memory) -> Padded:
        dims = _cut(pieces.dims, self.max_length)
        shape = dims.max(axis=0)
        shape[0] = -(-int(shape[0]) // self.multiple_of) * self.multiple_of
        self._check(pieces.dtype)
        out = memory((len(dims), *shape.tolist()), pieces.dtype).fill_(self.value)
        if (dims[:, 1:] == dims[:1, 1:]).all():
            row_nbytes = math.prod(out.shape[1:]) * pieces.dtype.itemsize
            skipped = row_nbytes // max(int(shape[0]), 1) * self._first(dims, shape)
            pieces.copy(dims[:, 0], out, np.arange(len(dims)) * row_nbytes + skipped)
            return Padded(out, torch.from_numpy(dims[:, 0].copy()))
        tensors = _List(self.max_length).of_pieces(pieces, memory)
        for row, piece, first in zip(out, tensors, self._first(dims, shape).tolist(), strict=True):
            place = (slice(first, first + len(piece)), *map(slice, piece.shape[1:]))
            row[place] = piece
        return Padded(out, torch.from_numpy(dims))

    def _first(self, dims: Ints, shape: Ints) -> Ints:
        """Return the first position of each sample's values: int64 [n]."""
        return np.zeros(len(dims), np.int64) if self.side == "right" else shape[0] - dims[:, 0]


class _Jag(_Way):
    def of_pieces(self, pieces: _Pieces, memory: Memory) -> Jagged:
        dims = _cut(pieces.dims, self.max_length)
        if not (dims[:, 1:] == dims[:1, 1:]).all():
            shapes = sorted({tuple(shape) for shape in dims[:, 1:].tolist()})
            raise OptionError(
                f"jagged: the samples differ beyond the first dimension: {shapes[:4]}; use pad or as_list"
            )
        offsets = _ends(dims[:, 0])
        rest = tuple(dims[0, 1:].tolist())
        out = memory((int(offsets[-1]), *rest), pieces.dtype)
        pieces.copy(dims[:, 0], out, offsets[:-1] * math.prod(rest) * pieces.dtype.itemsize)
        return Jagged(out, torch.from_numpy(offsets))


class _List(_Way):
    def of_values(self, values: list[Any], memory: Memory) -> list[Any]:
        try:
            tensors = _tensors(values)
        except (OptionError, TypeError, ValueError):
            return values
        if len({(tensor.dtype, tensor.ndim) for tensor in tensors}) > 1:
            return [tensor[: self.max_length] if tensor.ndim else tensor for tensor in tensors]
        return self.of_pieces(_in_memory(tensors), memory)

    def of_pieces(self, pieces: _Pieces, memory: Memory) -> TensorList:
        dims = pieces.dims
        if not dims.shape[1]:
            lengths = np.ones(len(dims), np.int64)
            sizes = lengths
        else:
            dims = _cut(dims, self.max_length)
            lengths, sizes = dims[:, 0], dims.prod(axis=1)
        ends = _ends(sizes)
        out = memory((int(ends[-1]),), pieces.dtype)
        pieces.copy(lengths, out, ends[:-1] * pieces.dtype.itemsize)
        return TensorList(out, dims)


def _cut(dims: Ints, max_length: int | None) -> Ints:
    if not dims.shape[1]:
        raise OptionError("collate(): a 0-d tensor has no length; leave it to the default, or use as_list")
    cut: Ints = dims.copy()
    if max_length is not None:
        np.minimum(cut[:, 0], max_length, out=cut[:, 0])
    return cut


def _ends(sizes: Ints) -> Ints:
    """Return 0 and the running sums: int64 [n + 1]."""
    return np.concatenate(([0], np.cumsum(sizes)))


def _in_records(pieces: Pieces, dtype: torch.dtype) -> _Pieces:
    dims, data = pieces

    def copy(lengths: Ints, out: torch.Tensor, at: Ints) -> None:
        cut = data
        if dims.shape[1] and not np.array_equal(lengths, dims[:, 0]):
            ends = np.fromiter(map(len, data), np.int64) // np.maximum(dims[:, 0], 1) * lengths
            cut = [piece[:end] for piece, end in zip(data, ends.tolist(), strict=True)]
        copy_pieces(cut, bytes_of(out), at.tolist())

    return _Pieces(dims, dtype, copy)


def _in_memory(values: list[Any]) -> _Pieces:
    tensors = _tensors(values)
    kinds = sorted({(str(tensor.dtype), tensor.ndim) for tensor in tensors})
    if len(kinds) > 1:
        raise OptionError(f"collate(): the samples differ in dtype or dimensions: {kinds[:4]}; use as_list")
    dtype = tensors[0].dtype

    def copy(lengths: Ints, out: torch.Tensor, at: Ints) -> None:
        flat = out.view(-1)
        for tensor, length, place in zip(tensors, lengths.tolist(), at.tolist(), strict=True):
            cut, start = tensor[:length] if tensor.ndim else tensor, place // dtype.itemsize
            flat[start : start + cut.numel()] = cut.reshape(-1)

    return _Pieces(
        np.array([tuple(t.shape) for t in tensors], np.int64).reshape(len(values), -1), dtype, copy
    )


def _of_numbers(values: list[Any], of_nothing: type) -> list[Any]:
    """Convert lists of numbers to tensors. If all lists are empty, `of_nothing` gives the dtype."""
    made = [_numbers(value) if type(value) in (list, tuple) else value for value in values]
    tensors = (value for value in made if isinstance(value, torch.Tensor) and value.numel())
    like = next(tensors, torch.empty(0, dtype=torch.float64 if of_nothing is float else torch.int64))
    return [
        like.new_empty((0, *like.shape[1:])) if value is not new and not len(new) else new
        for value, new in zip(values, made, strict=True)
    ]


def _numbers(value: Sequence[Any]) -> Any:
    """Convert a list of numbers to a tensor; other lists, and lists of several lengths, are returned as they are."""
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        return value
    return torch.from_numpy(array) if array.dtype.kind in "bif" else value


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    kinds = sorted({type(v).__name__ for v in values if not isinstance(v, (torch.Tensor, np.ndarray))})
    if kinds:
        raise OptionError(
            f"collate(): tensors, arrays and lists of numbers are padded or jagged, not {kinds[0]}; "
            "use as_list"
        )
    return [value if isinstance(value, torch.Tensor) else torch.as_tensor(value) for value in values]
