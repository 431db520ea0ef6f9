"""Many samples of one structure as a tree of columns, and their records."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import CodecError, Ints, OptionError, described
from edcache.codec import dtypes
from edcache.codec.tensors import encode_tensor

_DICTS = (dict, collections.OrderedDict)
_ARRAYS = (np.ndarray, np.memmap)

Wires = list[Any] | dtypes.Array
"""Wire values of one leaf of many samples: a list of numbers, bytes or arrays, or one array [n, ...]."""


class Run(NamedTuple):
    """Records of one schema that are made together.

    Attributes:
        schema: its number. record: the first record. nbytes: of each record, int64 [n].
        fields: values at one offset in each record: the offset, and an array [n, ...].
        head_nbytes: bytes up to the first field whose offset or size varies. pieces: the fields from there on: zeros
            before it in each record, int64 [n], and its buffers.
    """

    schema: int
    record: npt.NDArray[np.uint8]
    nbytes: Ints
    fields: list[tuple[int, dtypes.Array]]
    head_nbytes: int
    pieces: list[tuple[Ints, list[Any]]]

    def write(self, buffer: npt.NDArray[np.uint8], offset: Ints) -> None:
        """Write the first k records to a buffer, at their offsets, int64 [k + 1]; the last one is its end."""
        count = len(offset) - 1
        if not self.pieces:
            self._fill(buffer, count, len(buffer) // count)
            return
        heads = np.empty((count, self.head_nbytes), np.uint8)
        self._fill(heads, count, self.head_nbytes)
        parts: list[list[Any]] = [row_buffers(heads)]
        for gaps, buffers in self.pieces:
            parts += [_zeros(gaps), buffers] if gaps.any() else [buffers]
        parts.append(_zeros(np.diff(offset) - self.nbytes[:count]))
        # Fast for long texts too: an indexed copy takes 5 ns a byte.
        data = b"".join(itertools.chain.from_iterable(zip(*parts, strict=False)))
        buffer[: len(data)] = np.frombuffer(data, np.uint8)

    def _fill(self, buffer: npt.NDArray[np.uint8], count: int, stride: int) -> None:
        """Write fields `stride` bytes apart, and the bytes between them, which all records share."""
        gaps = np.ones(stride, np.bool_)
        for offset, wire in self.fields:
            row = wire[0].nbytes
            if row:
                strides = stride, *wire[:1].copy().strides[1:]  # in C order, for any order of the column
                np.ndarray((count, *wire.shape[1:]), wire.dtype, buffer, offset, strides)[...] = wire[:count]
                gaps[offset : offset + row] = False
        template = np.zeros(stride, np.uint8)
        shared = self.record[:stride]
        template[: len(shared)] = shared
        edges = np.flatnonzero(np.diff(gaps, prepend=False, append=False))
        for begin, end in edges.reshape(-1, 2).tolist():
            np.ndarray((count, end - begin), np.uint8, buffer, begin, (stride, 1))[...] = template[begin:end]


def row_buffers(rows: dtypes.Array) -> list[bytes]:
    """Return the bytes of each row of an array [n, ...]."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1).view(dtypes.U1)
    return flat.view(f"V{flat.shape[1]}").reshape(-1).tolist() if flat.size else [b""] * len(rows)


def _zeros(counts: Ints) -> list[bytes]:
    return list(map(bytes, counts.tolist()))


class Columns:
    """Dict or tuple of columns: arrays and tensors [n, ...], lists of n values, None, more such trees.

    Sample k has the same structure, with the k-th item of each column, or None for a column None.

    Attributes:
        count: number of samples.
        singly_until: samples before this one are stored one by one, the others many at a time.
    Raises:
        CodecError: something else than a column. OptionError: the columns differ in length, or there is none.
    """

    def __init__(self, tree: object) -> None:
        if type(tree) not in (*_DICTS, tuple):
            raise CodecError(
                f'columns: {described(tree)}; give a dict of columns, as {{"x": array, "label": array}}'
            )
        self.tree = tree
        self.singly_until = 0
        self._columns: list[Any] = []
        lengths: dict[str, int] = {}
        self._look(tree, "columns", lengths)
        if not lengths:
            raise OptionError("columns: no column has a length; give at least one array, tensor or list")
        name, self.count = next(iter(lengths.items()))
        for other, length in lengths.items():
            if length != self.count:
                raise OptionError(
                    f"{other} has {length:,} samples, {name} has {self.count:,}; give columns of one length"
                )

    def _look(self, node: Any, where: str, lengths: dict[str, int]) -> None:
        kind = type(node)
        if kind in _DICTS or kind is tuple:
            for key, child in node.items() if kind in _DICTS else enumerate(node):
                self._look(child, f"{where}[{key!r}]", lengths)
        elif node is not None:
            lengths[where] = _length(node, where)
            self._columns.append(node)

    def at(self, rows: int | slice) -> Any:
        """Return one sample, or the tree of some rows of each column."""
        return _item(self.tree, rows)

    def wires(self, rows: slice, walk: Callable[[list[Any]], list[Wires] | None]) -> list[Wires] | None:
        """Return the wire values of each leaf of some rows, in tree order; None if a list mixes structures.

        walk: returns them for the items of a list.
        """
        wires: list[Wires] = []
        for column in self._columns:
            part = column[rows]
            if type(part) in _ARRAYS and part.ndim == 1 and part.dtype.kind in "US":
                part = part.tolist()  # each record has its own length
            own = walk(part) if type(part) is list else [_wire(part)]
            if own is None:
                return None
            wires += own
        return wires


def _length(column: Any, where: str) -> int:
    kind = type(column)
    if kind is not list and kind not in _ARRAYS and kind is not torch.Tensor:
        raise CodecError(
            f"{where}: {described(column)} is no column; give an array, a tensor, a list, or None"
        )
    if kind in _ARRAYS and column.dtype.hasobject:
        raise CodecError(f"{where}: an array of objects; give its .tolist()")
    if kind is not list and not column.ndim:
        raise OptionError(f"{where}: an array without dimensions; give one item for each sample")
    return len(column)


def _item(node: Any, rows: int | slice) -> Any:
    if type(node) in _DICTS:
        return type(node)((key, _item(child, rows)) for key, child in node.items())
    if type(node) is tuple:
        return tuple(_item(child, rows) for child in node)
    return None if node is None else node[rows]


def _wire(part: Any) -> dtypes.Array:
    if type(part) is torch.Tensor:
        values: list[dtypes.Array] = []
        encode_tensor(part, values)
        return values[0]
    part = part.view(np.ndarray)
    if part.ndim == 1:
        # Most scalars are of native byte order, also of another array.
        part = part.astype(np.asarray(part[0]).dtype, copy=False)
    if dtypes.is_exportable(part.dtype):
        return part  # type: ignore[no-any-return]
    # numpy copies structures field by field, without the bytes between.
    own = dtypes.own_bytes(part)
    return own.reshape(len(own), -1).view(dtypes.U1) if own.nbytes else own
