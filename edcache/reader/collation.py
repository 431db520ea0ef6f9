"""Batches as `default_collate` makes them of samples, made of records by one gather a field.

torch's DataLoader calls `dataset.__getitems__(indices)` and passes the result to its `collate_fn`. If that is torch's
`default_collate` or `edcache.collate`, the result is a list of one `Batch`, in the place of all samples:
`default_collate` chooses by the type of the first element, and `Batch` is registered with it. Any other caller gets a
list of samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Subset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.worker import _worker_loop

from edcache.base import OptionError, Transform, cut_traceback
from edcache.codec import Decoder, Node, assembler, decoded_together, torch_dtype
from edcache.reader.group import Group
from edcache.reader.memory import Memory, for_this_process, parcel
from edcache.reader.projection import Projection, planned
from edcache.reader.several import Joint, Records, kind_of

Collate = Callable[[Group, Memory], Any]

# Bytes that torch copies in several threads: they save less than a millisecond of fewer. Items that it copies in one
# thread in any case; and items of a row that is copied alone, as a call for several takes longer than a row.
_WORTH_THREADS, _ONE_THREAD, _LARGE_ROW = 1 << 23, 1 << 15, 1 << 12

# For these dtypes a gather equals torch.stack of the list. torch may refuse others.
_NUMPY_TO_TORCH: Final = {
    np.dtype(code): torch.from_numpy(np.empty(0, code)).dtype
    for code in ("?", "u1", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16")
}
_OF_NUMPY: Final = frozenset(_NUMPY_TO_TORCH.values())
# A dtype that numpy has, by the bytes of an item.
_NUMBERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SCALARS: Final = {"int": torch.int64, "float": torch.float64}
# Errors of damaged records, of default_collate over values that it cannot put together, and of merging results.
_REFUSED: Final = (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError)


class NotInBulk(Exception):
    """Samples that only default_collate can collate."""


class Special:
    """Other collation of some fields. A subclass is hashable."""

    def way(self, decoder: Decoder, node: Node) -> Collate | None:
        """Return the collation of the value at a node; None for default_collate's."""
        raise NotImplementedError

    def of_samples(self, samples: Sequence[Any]) -> Any:
        """Collate a list of samples."""
        raise NotImplementedError


def in_bulk(records: Records, special: Special | None, memory: Memory) -> Any:
    """Collate by one gather a field; NotImplemented if default_collate needs the samples."""
    group = records.group
    if group is not None:
        collate = _make_collation(group.decoder, group.fields, special) if group.is_regular else None
        try:
            return NotImplemented if collate is None or _is_changed() else collate(group, memory)
        except _REFUSED:  # sample by sample, the error is default_collate's, and names a damaged one
            return NotImplemented
        finally:
            group.check_same()
    beside = records.beside
    if beside is None or special is not None:
        return NotImplemented
    if beside.fields is not None and beside.fields.as_tuple:
        return NotImplemented  # default_collate makes tuples of texts inside tuples
    try:
        sides = [in_bulk(side, None, memory) for side in beside.parts]
        if all(side is NotImplemented for side in sides):
            return NotImplemented
        for place, side in enumerate(beside.parts):
            if sides[place] is NotImplemented:
                sides[place] = default_collate(side.samples())
        return beside.joined(sides)
    except _REFUSED:  # sample by sample, it raises its own
        return NotImplemented


def _is_changed() -> bool:
    """True if default_collate was extended for a type of gathered fields.

    A library that registers its own subclass of Tensor, as MONAI does, changes nothing for plain tensors.
    """
    if default_collate_fn_map == _KNOWN:
        return False
    changed = [key for key, way in default_collate_fn_map.items() if _KNOWN.get(key) is not way]
    kinds = [kind for key in changed for kind in (key if isinstance(key, tuple) else (key,))]
    return len(default_collate_fn_map) < len(_KNOWN) or any(
        issubclass(kind, _WITH_SUBCLASSES)
        or any(issubclass(gathered, kind) for gathered in _TENSORS + _WITH_SUBCLASSES)
        for kind in kinds
    )


# --- for a DataLoader ---


class Batch:
    """Batch that is not collated yet.

    Args:
        records: of the samples. finish: a function of the collated batch.
        is_sent: True if a DataLoader's worker sends the collated batch to its parent process.
    """

    __slots__ = ("_finish", "_is_sent", "_records")

    def __init__(self, records: Records, finish: Transform, is_sent: bool = False) -> None:
        self._records, self._finish, self._is_sent = records, finish, is_sent

    def collated(self, special: Special | None = None, memory: Memory | None = None) -> Any:
        """Collate as `default_collate` does; `special` collates some fields instead."""
        batch = in_bulk(self._records, special, memory or for_this_process())
        if batch is NotImplemented:
            batch = _collated(self._records.samples(), special)
        if self._finish is not None:
            batch = self._finish(batch)
        return parcel(batch) if self._is_sent else batch

    def collated_by(self, size: int, memory: Memory) -> Iterable[Any] | None:
        """Collate every `size` samples, as views of one large batch.

        None if the batch has other leaves than tensors, or if its parts may collate differently.
        Raises: as `collated` of the whole.
        """
        batch = NotImplemented if kind_of(self._records) is None else in_bulk(self._records, None, memory)
        batches = None if batch is NotImplemented else _split(batch, size)
        return batches if self._finish is None or batches is None else map(self._finish, batches)


def _collated(samples: list[Any], special: Special | None) -> Any:
    if special is not None:
        return special.of_samples(samples)
    if not samples:
        raise OptionError("a batch of no samples has no fields; give one index at least")
    try:
        return by_default(samples)
    except KeyError as error:
        kinds = {frozenset(one): ", ".join(map(str, one)) for one in samples if isinstance(one, Mapping)}
        if len(kinds) < 2:
            raise
        found = " / ".join([*kinds.values()][:3])
        raise OptionError(f"the samples have different fields ({found}); select() the common ones") from error


def by_default(samples: list[Any]) -> Any:
    """Collate by `default_collate`; its error also names the field that it refuses, and a remedy."""
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError) as error:
        if type(error) not in (RuntimeError, TypeError):  # as want of memory
            raise
        raise type(error)(f"{error}; {_refusal(samples, str(error))}") from None


def _refusal(samples: Sequence[Any], error: str) -> str:
    """Tell which field of samples `default_collate` refuses, why, and what to do."""
    path, values = _refused(samples)
    name = path[0] if len(path) == 1 else ".".join(map(str, path))
    field = f"field {name!r}" if path else "a sample"
    as_list = f"as_list=[{name!r}] of edcache.collate" if path else "a collate_fn of your own"
    if absent := sum(value is None for value in values):
        return f"{field} is None in {absent} of {len(values)}; take {as_list}, or leave it out"
    if "equal size" in error:
        pad = f"DataLoader(ds, ..., collate_fn=edcache.collate(pad={{{name!r}: 0}}))"
        return (
            f"{field} varies in shape: "
            + (f"pad it by {pad}, or take jagged=[{name!r}] or " * bool(path))
            + as_list
        )
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    return f"{field} is of {kinds}; take {as_list}, or convert it"


def _refused(values: Sequence[Any]) -> tuple[tuple[Any, ...], Sequence[Any]]:
    """Find the innermost field whose values `default_collate` refuses: its path, and the values."""
    keys: Iterable[Any] = ()
    if all(isinstance(value, Mapping) for value in values):
        keys = [key for key in values[0] if all(key in value for value in values)]
    elif all(isinstance(value, list | tuple) for value in values):
        keys = range(min(map(len, values)))
    for key in keys:
        part = [value[key] for value in values]
        try:
            default_collate(part)
        except (RuntimeError, TypeError):
            path, found = _refused(part)
            return (key, *path), found
    return (), values


def _split(batch: Any, size: int) -> Sequence[Any] | None:
    """Split a tree of tensors in memory of numpy into such trees; None if it has other leaves, or none.

    Not by torch's pytree, which takes 8 us for a dict of two, half of a small batch.
    """
    if isinstance(batch, torch.Tensor):
        return _parts(batch, size)
    keys, children = (list(batch), batch.values()) if type(batch) is dict else (None, batch)
    if not children or type(batch) not in (dict, list, tuple):
        return None
    columns = [_split(child, size) for child in children]
    if any(column is None for column in columns):
        return None
    rows = zip(*columns, strict=True)
    if keys is None:
        return [type(batch)(row) for row in rows]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _parts(tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Split a tensor over the same memory, each part with a storage of its own.

    Views of one storage would be moved together (`share_memory_`), saved together, and have one count of changes in
    place, by which autograd would refuse the backward pass of another batch.
    """
    dtype = tensor.dtype
    is_known = dtype in _OF_NUMPY
    whole = tensor.numpy() if is_known else tensor.view(_NUMBERS[tensor.itemsize]).numpy()
    parts = [torch.from_numpy(whole[start : start + size]) for start in range(0, len(whole), size)]
    return parts if is_known else [part.view(dtype) for part in parts]


@cut_traceback
def _collate_batch(batch: list[Batch], *, collate_fn_map: Any = None) -> Any:
    return batch[0].collated()


default_collate_fn_map[Batch] = _collate_batch

_FETCH_CODE, _SUBSET_CODE = _MapDatasetFetcher.fetch.__code__, Subset.__getitems__.__code__
_WORKER_CODE = _worker_loop.__code__


def batch_for(caller: FrameType, records: Records, finish: Transform) -> list[Any]:
    """Return the result of `dataset.__getitems__`: one `Batch` if the caller collates it, else samples."""
    while caller.f_code is _SUBSET_CODE and caller.f_back is not None:
        caller = caller.f_back  # torch's Subset passes the result on unchanged
    if caller.f_code is _FETCH_CODE:
        collate = caller.f_locals["self"].collate_fn
        if collate is default_collate or isinstance(collate, Special):
            # False in a DataLoader inside of a worker.
            is_sent = caller.f_back is not None and caller.f_back.f_code is _WORKER_CODE
            return [Batch(records, finish, is_sent)]
    return records.samples()


_KNOWN = dict(default_collate_fn_map)
# Types of gathered fields; for the second tuple subclasses too.
_TENSORS = (torch.Tensor, np.ndarray)
_WITH_SUBCLASSES = (np.generic, int, float, dict, list, tuple)


# --- records of one schema ---


@functools.lru_cache(maxsize=256)
def _make_collation(decoder: Decoder, fields: Projection | None, special: Special | None) -> Collate | None:
    """Make the collation of a schema, or of fields; None if default_collate needs the samples."""
    if decoder.structure is None or (fields is not None and special is not None):
        return None
    try:
        if fields is None:
            return collation_of(decoder, decoder.structure, list, special)
        plan = planned(fields, decoder)
        if plan is None:
            return None
        column = tuple if fields.as_tuple else list
        collates = [collation_of(decoder, node, column) for node in plan.nodes]
    except NotInBulk:
        return None
    # default_collate turns a tuple into a list.
    return _together(collates, list if fields.as_tuple else fields.assembled)


def collation_of(decoder: Decoder, node: Node, column: type, special: Special | None = None) -> Collate:
    """Make the collation of the values at a node; `column` is the container in which default_collate sees them.

    Raises:
        NotInBulk: default_collate refuses such values, or treats them in a special way.
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
    """Collate all children."""
    column = list if node.kind in ("dict", "OrderedDict") else tuple
    children = [collation_of(decoder, child, column, special) for child in node.children]
    if node.kind == "dict" and all(type(key) is str for key in node.keys):
        return _together(children, lambda values: dict(zip(node.keys, values, strict=True)))
    # default_collate turns a tuple into a list.
    return _together(children, list if node.kind == "tuple" else assembler(node))


def _together(collates: Sequence[Collate], assemble: Callable[[list[Any]], Any]) -> Collate:
    return lambda group, memory: assemble([collate(group, memory) for collate in collates])


def _leaf(field: Node, column: type) -> Collate:
    dtype = bulk_dtype(field)
    if dtype is None:
        return lambda group, memory: default_collate(column(group.values(field.path)))
    if field.offset is not None:
        return lambda group, memory: _gather(group, field, dtype, memory)

    def stack(group: Group, memory: Memory) -> Any:
        pieces = group.pieces(field.path)
        if pieces is None or not (pieces.dims == pieces.dims[0]).all():
            return default_collate(column(group.values(field.path)))
        out = memory((len(group), *pieces.dims[0].tolist()), dtype)
        copy_pieces(pieces.data, bytes_of(out), accumulate(map(len, pieces.data), initial=0))
        return out

    return stack


def _pictures(node: Node, column: type) -> Collate:
    """Decode images straight into the batch, if they are arrays or tensors of one shape."""

    def stack(group: Group, memory: Memory) -> Any:
        files = group.pieces(node.path) if node.const.form in ("numpy", "tensor") else None
        together = None if files is None else decoded_together(files.data, node.const, memory)
        return default_collate(column(group.values(node.path))) if together is None else together

    return stack


def bulk_dtype(field: Node) -> torch.dtype | None:
    """Return the dtype of the stacked field in a batch; None if default_collate does not stack it."""
    if field.kind == "tensor":
        dtype = torch_dtype(field.dtype)
        return dtype if dtype in _OF_NUMPY or dtype == torch.bfloat16 else None
    if field.kind in ("array", "scalar"):
        return _NUMPY_TO_TORCH.get(field.dtype)  # type: ignore[arg-type]
    return _SCALARS.get(field.kind)


# --- gathered ---------------------------------------------------------------------------------------


def _gather(group: Group, field: Node, dtype: torch.dtype, memory: Memory) -> torch.Tensor:
    """Gather a field of fixed shape of every record: a tensor [n, *field.shape] of a dtype of the same size."""
    assert field.offset is not None
    rows, nbytes = len(group), field.nbytes or 0
    out = memory((rows, *(field.shape or ())), dtype)
    if not nbytes:
        return out
    if isinstance(group, Joint):
        group.gather(field.offset, nbytes, np.frombuffer(bytes_of(out), np.uint8).reshape(rows, nbytes))
        return out
    window = torch.from_numpy(group.lattice.window(field.offset, nbytes))
    flat = out if dtype == window.dtype else out.view(-1).view(window.dtype)
    if flat.ndim != window.ndim:
        flat = flat.view(rows, *window.shape[1:])
    copy_rows(window, torch.from_numpy(group.window_rows), flat)
    return out


def copy_rows(table: torch.Tensor, places: torch.Tensor, out: torch.Tensor) -> None:
    """Copy rows of a table [m, ...] to `out` [n, ...] of its dtype; few bytes without torch's other threads.

    These wait for each other. On busy cores that takes 10 to 50 ms, where the copy of a small batch takes 0.1.
    """
    is_large = out.nbytes >= _WORTH_THREADS or out.device.type != "cpu"
    if is_large or out.numel() <= _ONE_THREAD or torch.get_num_threads() == 1:
        torch.index_select(table, 0, places, out=out)
        return
    items = out.numel() // len(out)
    if items < _LARGE_ROW:
        step = _ONE_THREAD // items
        for low in range(0, len(out), step):
            torch.index_select(table, 0, places[low : low + step], out=out[low : low + step])
        return
    source = table.numpy()
    for row, place in zip(out.numpy(), places.tolist(), strict=True):
        row[...] = source[place]


def copy_pieces(pieces: Iterable[memoryview], target: memoryview, at: Iterable[int]) -> None:
    """Copy pieces to their offsets in writable memory: in a loop, faster than an indexed gather at any length."""
    for piece, low in zip(pieces, at, strict=False):
        target[low : low + len(piece)] = piece


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """View the memory of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(bytearray())
