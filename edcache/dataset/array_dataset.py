"""`ArrayDataset`: samples and batches as numpy arrays, without torch, by the same decoders."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edcache import base, labels
from edcache.base import CodecError, CorruptRecordError, Ints, OptionError, ReadOptions, SampleIndexError
from edcache.codec import Node, assembler
from edcache.dataset.root import Archive, Reading
from edcache.labels import Labels, checked_indices, is_array
from edcache.reader import FieldPath, Group, Projection, Records, planned
from edcache.writer import store_at

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edcache.base import ReadKeywords

Self = TypeVar("Self", bound="ArrayDataset")

_NUMBERS = frozenset({bool, int, float})
# Kinds of leaves whose bytes are items of an array.
_ITEMS = frozenset({"array", "scalar", "int", "float", "bool"})
_CONTAINERS = frozenset({"dict", "OrderedDict", "namedtuple", "list", "tuple"})


@base.cut_traceback
class ArrayDataset:
    """Samples of an archive as numpy arrays, without torch: for JAX, numpy, and tools.

    Args:
        path: one path or URL; no lists, globs or folders.
        fields: field paths such as "image" or "target.boxes". Each sample is then a dict of these alone.
        zero_copy: True gives read-only views of the mapped file for single samples. They show bytes that are written
            over it later.
        storage_options: for the library that reads a URL.
        keywords: the fields of `edcache.ReadOptions`, such as verify, decode and local.
    Raises:
        ArchiveNotFoundError, CorruptArchiveError; ArchiveError for a newer format.
        MissingDependencyError, at a read: a dtype takes ml_dtypes, a picture Pillow, a size of one torch.

    An integer gives a sample, everything else a batch: a slice, a list, an index array, a bool mask. Samples are as
    they were written, but for tensors. A tensor becomes an array of its shape and dtype; bfloat16 and 8-bit floats take
    dtypes of the package ml_dtypes, which JAX brings. 4-bit floats become uint8, which hold the bits of two. An image
    file that decodes to a tensor [C, H, W] becomes an array [H, W, C]. The `decode=` of a registered class gets arrays
    for the tensors that it stored. Safety: threads, fork, spawn. A pickle opens the archive again.

    >>> with edcache.numpy.open("train.zip", fields=["image", "label"]) as ds:
    ...     batch = ds.batch(ds.where(split="train")[:64])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fields: Sequence[FieldPath] | None = None,
        zero_copy: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        **keywords: Unpack[ReadKeywords],
    ) -> None:
        store = store_at(path, storage_options)
        self._path = path = store.path
        storage_options = None  # a traceback with locals would show credentials
        reader = store.reader(ReadOptions.of(None, keywords, "edcache.numpy.open"))
        reader.as_arrays = True
        # Errors of the archive are raised here.
        reader.open_or_salvage() if reader.options.allow_partial else reader.open()
        chosen = None if fields is None else Projection(tuple(fields), False)
        self._reading = Reading(Archive(reader, copies=not zero_copy), fields=chosen)

    def __repr__(self) -> str:
        return f"edcache.numpy.open({self._path!r})"

    def __len__(self) -> int:
        return len(self._reading)

    @base.cut_traceback
    def __getitem__(self, index: Any) -> Any:
        """Return a sample for an integer, and the `batch` of everything else.

        Raises: SampleIndexError; MissingSampleError, it has no record; CorruptRecordError.
        """
        if isinstance(index, slice) or is_array(index):
            return self.batch(index)
        position, length = operator.index(index), len(self._reading)
        if not -length <= position < length:
            text = f"{self._path}: index {position} not in [-{length}, {length})"
            raise SampleIndexError(text, path=self._path, index=position)
        return self._reading.one(position % length)

    def batch(self, indices: Any) -> Any:
        """Stack the samples at some indices, as torch's `default_collate` does.

        Returns:
            Arrays and numbers are stacked to arrays [n, ...]. A dict stays one, as does a namedtuple, and a list or
            tuple becomes a list. Texts, bytes and all else become a list of n values.
        Raises:
            OptionError: a field varies in shape, or a dict in its keys; no index is given, or a mask of another length.
                Others as for one sample.

        Records of one structure are gathered field by field, and not decoded.
        """
        length = len(self)
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(length))
        rows = checked_indices(indices, length)
        if not len(rows):
            raise OptionError("a batch of no samples; give at least one index")
        records = self._reading.records(rows, None)
        with suppress(CodecError, CorruptRecordError):  # one by one, the error names the damaged one
            batch = _gathered(records)
            if batch is not NotImplemented:
                return batch
        return _stack(records.samples())

    @property
    def labels(self) -> Labels:
        """Label columns: a mapping from names to read-only numpy arrays; no sample is read."""
        return self._reading.labels

    def where(self, where: object = None, /, **conditions: object) -> Ints:
        """Find the indices of samples by conditions on their labels, as `CachedDataset.filter` takes them."""
        return labels.matching_rows(self.labels, conditions, where)

    @property
    def missing(self) -> Ints:
        """Indices without a record, sorted: int64 [k]."""
        return self._reading.missing

    def close(self) -> None:
        """Close the archive. Arrays that were returned before stay valid."""
        self._reading.root.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _gathered(records: Records) -> Any:
    """Make the batch by one gather a field; NotImplemented if the samples must be decoded."""
    group = records.group
    if group is None or not group.is_regular:
        return NotImplemented
    fields, decoder = group.fields, group.decoder
    try:
        if fields is None:
            assert decoder.structure is not None
            return _stack_column(group, decoder.structure)
        plan = planned(fields, decoder)
        if plan is None:
            return NotImplemented
        return fields.assembled([_stack_column(group, node) for node in plan.nodes])
    finally:
        group.check_same()


def _stack_column(group: Group, node: Node) -> Any:
    """Stack the values at a node of all records."""
    if node.kind in _CONTAINERS:
        children = [_stack_column(group, child) for child in node.children]
        return children if node.kind in ("list", "tuple") else assembler(node)(children)
    if node.kind == "none":
        return [None] * len(group)
    leaf = group.decoder.fields.get(node.path)
    if leaf is None:  # a dataclass
        return group.decoded(node)
    if leaf.kind in _ITEMS and leaf.nbytes and leaf.offset is not None:
        items = group.gather(leaf.offset, leaf.nbytes)
        if leaf.kind != "bool" or items.max() <= 1:  # decoding raises for others
            dtype = np.dtype(leaf.dtype)
            stacked = items.view(dtype).reshape(len(group), *(leaf.shape or ()))
            # In native byte order, as numpy stacks.
            return stacked.astype(dtype.newbyteorder("="), copy=False)
    return _stack(group.values(node.path), node.path)


def _stack(values: list[Any], path: tuple[Any, ...] = ()) -> Any:
    """Stack one value of each sample."""
    first, kinds = values[0], set(map(type, values))
    if kinds <= _NUMBERS:
        dtype = np.float64 if float in kinds else np.int64 if int in kinds else np.bool_
        with suppress(OverflowError):
            return np.array(values, dtype)
    if len(kinds) > 1 or not isinstance(first, np.ndarray | np.generic | dict | list | tuple):
        return values
    if isinstance(first, np.ndarray | np.generic):
        _check_alike([value.shape for value in values], "shapes", path)
        return np.stack(values)
    if isinstance(first, dict):
        _check_alike([list(value) for value in values], "keys", path)
        columns = [(key, _stack([value[key] for value in values], (*path, key))) for key in first]
        return type(first)(columns)
    _check_alike([len(value) for value in values], "lengths", path)
    items = [_stack(list(column), (*path, k)) for k, column in enumerate(zip(*values, strict=True))]
    return type(first)(*items) if hasattr(first, "_fields") else items


def _check_alike(forms: list[Any], what: str, path: tuple[Any, ...]) -> None:
    other = next((form for form in forms if form != forms[0]), None)
    if other is not None:
        where = f"field {'.'.join(map(str, path))}" if path else "the samples"
        raise OptionError(
            f"a batch of {where} with several {what}, {forms[0]} and {other}; read the samples one by one, "
            "or choose other fields by fields="
        )
