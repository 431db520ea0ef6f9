"""Many samples of one structure as a tree of columns: what their records have in common, and their bytes."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch

from edcache.base import CodecError, OptionError, described
from edcache.codec import dtypes
from edcache.codec.tensors import encode_tensor

_DICTS = (dict, collections.OrderedDict)
_ARRAYS = (np.ndarray, np.memmap)


class Columns:
    """A dict or tuple of columns: arrays and tensors [n, ...], lists of n values, None, more such trees.

    Sample k has the same structure, and the k-th item of each column; None where the column is None.

    Attributes:
        count: how many samples. is_whole: whether records are made of whole columns; else one by one.
    Raises:
        CodecError: what is no column. OptionError: the columns differ in length, or there is none.
    """

    def __init__(self, tree: object) -> None:
        if type(tree) not in (*_DICTS, tuple):
            raise CodecError(
                f'columns: {described(tree)}; give a dict of columns, as {{"x": array, "label": array}}'
            )
        self.tree = tree
        self.is_whole = True
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
            # The length of a text, or of bytes, is part of each record.
            varies = kind in _ARRAYS and node.ndim == 1 and node.dtype.kind in "US"
            self.is_whole = self.is_whole and kind is not list and not varies

    def at(self, rows: int | slice) -> Any:
        """One sample, or the tree of some rows of each column."""
        return _item(self.tree, rows)

    def wires(self, rows: slice) -> list[dtypes.Array]:
        """The values of some rows as they stand in records: for each leaf, in tree order, [rows, ...]."""
        return [_wire(column, rows) for column in self._columns]


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


def _wire(column: Any, rows: slice) -> dtypes.Array:
    part: Any = column[rows]
    if type(column) is torch.Tensor:
        values: list[dtypes.Array] = []
        encode_tensor(part, values)
        return values[0]
    part = part.view(np.ndarray)
    if part.ndim == 1:
        # The scalars of most dtypes are native whatever the array is.
        part = part.astype(np.asarray(part[0]).dtype, copy=False)
    if dtypes.is_exportable(part.dtype):
        return part  # type: ignore[no-any-return]
    # numpy copies structures field by field, which would leave what is between them.
    own = dtypes.own_bytes(part)
    return own.reshape(len(own), -1).view(dtypes.U1) if own.nbytes else own
