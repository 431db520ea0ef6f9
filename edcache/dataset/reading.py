"""Reading samples: what a cache, several caches together, and every view of them share."""

from __future__ import annotations

import operator
import reprlib
import sys
from array import array as Longs
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from edcache.base import FIXED, OptionError, Picks, SampleIndexError, Selection, Span, Transform
from edcache.dataset.loader import Loader
from edcache.labels import Labels, checked_indices
from edcache.reader import Batch, Projection, batch_for

if TYPE_CHECKING:
    import typing_extensions
    from torch import Tensor

    from edcache.dataset.roots import Root
    from edcache.dataset.samples import View

Ints = npt.NDArray[np.int64]
if TYPE_CHECKING:
    # With a default, so that `CachedDataset` alone is one of any samples.
    T_co = typing_extensions.TypeVar("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)


class Readable(Dataset[T_co]):
    """A sequence of samples with labels: those of a root, or some of them in some order.

    A root is what is indexed: an archive, or several put together. `indices` says which of its samples
    they are; no array is copied to read one.
    """

    _selection: Selection | None = None  # of the root's indices; None for all
    _fields: Projection | None = None
    _added: Transform = None  # what samples pass behind the root's own transform
    _fixed: frozenset[str] = FIXED | {"zero_copy"}  # names that are options, and no attributes to be set

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__getitem__" in vars(cls) and "__getitems__" not in vars(cls):
            raise OptionError(
                f"class {cls.__name__} overrides __getitem__ but not __getitems__, by which a DataLoader "
                "reads; give a transform= instead, which batches and views know too"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed:
            raise OptionError(
                f"{name} is chosen when a cache is opened, and stays; open it again with {name}={value!r}"
            )
        super().__setattr__(name, value)

    @property
    def transform(self) -> Transform:
        """The function that every sample passes when it is read; None for none. It may be set at any time.

        Of a cache: its views have their samples from it, so that they see another one too, as torch's Subset
        does. Of a view: what it adds to that of its cache, as `with_transform` does; views that were made of
        it before keep what they had. Workers of a DataLoader keep what they started with.

        Raises:
            OptionError: on setting, 'transform="flip"; give a function, or None'.
        """
        return self._added

    @transform.setter
    def transform(self, function: Transform) -> None:
        self._added = checked_function("transform", function)

    @property
    def batch_transform(self) -> Transform:
        """The function that collated batches pass; it is the cache's, and may be set there at any time.

        Raises:
            OptionError: on setting it of a view, or of several datasets put together.
        """
        return self._batch_transform

    @batch_transform.setter
    def batch_transform(self, function: Transform) -> None:
        raise OptionError(
            f"{self!r} has the batch_transform of the cache it is made of; set it there: "
            "cache.batch_transform = ..."
        )

    @property
    def _transform(self) -> Transform:
        """All that samples pass: the root's transform, and what this one adds."""
        first, then = self._root._transform, self._added
        if first is None or then is None:
            return then if first is None else first
        return lambda sample: then(first(sample))

    @property
    def _batch_transform(self) -> Transform:
        return self._root._batch_transform

    @property
    def labels(self) -> Labels:
        """The label columns: a mapping from name to numpy array, entry i for sample i.

        `.table` is the pyarrow Table, `.to_pandas()` a DataFrame. No sample is read.

        Raises:
            UnknownLabelError: on access, 'no label "lable"; this archive has: label, split'.
        """
        raise NotImplementedError

    @property
    def indices(self) -> Ints:
        """The samples of the whole that this dataset has, in order: int64 [len(self)], read only."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def _root(self) -> Root:
        raise NotImplementedError

    def _chosen(self, selection: Selection | None, step: str) -> View[T_co]:
        """A view of a selection of the root's indices; None for all."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Any: ...
    @overload
    def __getitem__(self, index: Sequence[int] | npt.NDArray[Any] | Tensor) -> View[T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        """One sample for an integer, a view for a slice, an index array, a list or a bool mask.

        Where one field is selected and the labels hold it, a slice gives the values themselves:
        `ds.select("label")[:]` is the read-only numpy column, as `ds.labels["label"]`, and reads no record;
        `take` and `skip` give views there too.

        Raises:
            SampleIndexError (an IndexError): "...: index 12 not in [-10, 10)".
            CorruptRecordError, MissingSampleError: as `Reader.read`.
        Returns memory that the caller owns, unless the dataset was opened with zero_copy=True.
        """
        if type(index) is int and 0 <= index < len(self):
            return self._read(index if self._selection is None else self._selection.at(index))
        if isinstance(index, slice):
            column = self._label_column()
            return self._sliced(index) if column is None else self.labels[column][index]
        if _is_array(index):
            return self._picked(_positions(np.asarray(index), len(self)), "[...]")
        return self[self._position(index)]

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """The samples at several positions, read together, as torch's DataLoader asks for a batch.

        A DataLoader whose `collate_fn` is torch's `default_collate` or an `edcache.collate` gets something
        in their place that either collates by one gather a field, see `edcache/reader/batch.py`.
        """
        return batch_for(sys._getframe(1), self, self._rows(indices))

    def batch(self, indices: Sequence[int]) -> Any:
        """The collated samples at several positions: exactly `default_collate([ds[i] for i in indices])`.

        Fields of one shape are gathered in bulk, into memory that the caller owns.
        """
        return self._batch(indices).collated()

    def __iter__(self) -> Iterator[T_co]:
        for position in range(len(self)):
            yield self[position]

    def loader(
        self,
        batch_size: int | None,
        *,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        num_threads: int = 2,
        prefetch: int = 2,
        pin_memory: bool = False,
        device: Any = None,
        reuse: bool = True,
    ) -> Loader:
        """Collated batches made by threads of this process, in memory that is used again.

        Args:
            batch_size: samples of a batch; None where the sampler gives whole batches.
            shuffle: a new order every epoch, which `seed` and the epoch's number determine.
            sampler: positions to read instead, in its order; or batches of them. It is what shares an epoch
                among the ranks of a job; without one each rank reads all samples.
            drop_last: leave an incomplete last batch out.
            seed: None draws one from torch's generator.
            num_threads: how many batches are made at a time. prefetch: how many may wait besides.
            pin_memory: page-locked memory, for copies to a GPU. device: copy batches there; "cuda" and
                "xla" are what they are in the thread that iterates.
            reuse: the batch is yours until you ask for the next but one; False gives fresh memory, as does
                an iteration by torch_xla's MpDeviceLoader, which queues batches.
        Returns:
            An iterable with a length, `set_epoch`, `state_dict` and `load_state_dict`.
        Raises:
            OptionError: a number below 1, or shuffle and sampler at once. While iterating: as `batch`.
            MissingDependencyError: the device is one of torch_xla, which is not installed.

        Samples that must pass a `transform`, text and what is no tensor are made under the interpreter's
        lock: for those a DataLoader with workers is faster.
        """
        if sampler is None:
            self._guard(16)
        return Loader(
            self._batch,
            len(self),
            batch_size,
            shuffle=shuffle,
            sampler=sampler,
            drop_last=drop_last,
            seed=seed,
            num_threads=num_threads,
            prefetch=prefetch,
            pin_memory=pin_memory,
            device=device,
            reuse=reuse,
        )

    def _position(self, index: Any) -> int:
        is_bool = isinstance(index, bool) or str(getattr(index, "dtype", "")) in ("bool", "torch.bool")
        number: Any = None if is_bool else index
        try:
            position = operator.index(number)
        except TypeError:
            raise OptionError(
                f"index {reprlib.repr(index)} of type {type(index).__name__}; use an int, a slice, a list of "
                f"ints, an int array or a bool mask{_field_advice(index)}"
            ) from None
        length = len(self)
        if not -length <= position < length:
            raise SampleIndexError(f"{self!r}: index {position} not in [-{length}, {length})")
        return int(position + length if position < 0 else position)

    def _batch(self, indices: Any) -> Batch:
        return Batch(self, self._rows(indices))

    def _rows(self, indices: Any) -> Ints:
        """What lies at positions that were asked for, as indices in [-n, n) of the root."""
        return self._root_indices(_integers(indices, len(self)))

    def _root_indices(self, positions: Ints) -> Ints:
        """What lies at positions in [-len(self), len(self)), as indices in [-n, n) of the root."""
        return positions if self._selection is None else self._selection.take(positions)

    def _read(self, index: int) -> Any:
        """One sample by its index in the root."""
        root = self._root
        sample = root._one(index, self._fields)
        if root._transform is not None:
            sample = root._transform(sample)
        return sample if self._added is None else self._added(sample)

    def _read_many(self, indices: Ints) -> list[Any]:
        """What `_read` gives of many samples."""
        samples = self._root._many(indices, self._fields)
        transform = self._transform
        return samples if transform is None else [transform(sample) for sample in samples]

    def _sliced(self, part: slice) -> View[T_co]:
        ends = (part.start, part.stop) if part.step is None else (part.start, part.stop, part.step)
        step = f"[{':'.join('' if end is None else str(end) for end in ends)}]"
        return self._cut(range(len(self))[part], step)

    def _cut(self, part: range, step: str) -> View[T_co]:
        """A view of the samples at the positions of a range, which holds no array of them."""
        selection = Span(range(len(self))) if self._selection is None else self._selection
        return self._chosen(selection.cut(part), step)

    def _picked(self, positions: Ints, step: str) -> View[T_co]:
        """A view of the samples at positions in [0, len(self)); the array is its own now."""
        return self._chosen(Picks(self._root_indices(positions)), step)

    def _label_column(self) -> str | None:
        """The label column that is all of a sample, where one field is selected and nothing transforms it."""
        fields = self._fields
        if fields is None or len(fields.paths) > 1 or self._transform is not None:
            return None
        column = fields.columns.get(fields.paths[0])
        # Labels may have been revised since the field was selected.
        return column if self._root._columns().get(fields.paths[0]) == column else None

    def _guard(self, nbytes: int) -> None:
        """Refuse to allocate so many bytes a sample on the word of an archive alone; see `Reader.justify`."""
        self._root._justify(nbytes, min(len(self), len(self._root)))


def checked_function(name: str, function: Any) -> Transform:
    """The function that an option or an attribute is set to.

    Raises:
        OptionError: it is none, nor None.
    """
    if function is not None and not callable(function):
        raise OptionError(f"{name}={function!r}; give a function, or None")
    return function  # type: ignore[no-any-return]


def _is_array(index: Any) -> bool:
    """Whether an index is several; numpy takes a tuple for one that has several dimensions."""
    try:
        return not isinstance(index, int | tuple) and np.ndim(index) == 1
    except ValueError:  # a list of lists of several lengths
        return False


def _field_advice(index: Any) -> str:
    if not isinstance(index, str):
        return ""
    return f"; ds.labels[{index!r}] has a label of every sample, ds.select({index!r}) that field alone"


def _positions(array: npt.NDArray[Any], length: int) -> Ints:
    """What an index array or a mask selects, in [0, length); a copy, so that it may change later."""
    return np.array(checked_indices(_integers(array, length), length))


def _integers(indices: Any, length: int) -> Ints:
    """An index array in [-length, length), or the places of a mask, as int64."""
    array: Ints
    if type(indices) is list and indices and type(indices[0]) is int:
        # What a DataLoader's sampler gives; numpy takes longer to find out that it is integers.
        with suppress(TypeError, OverflowError):
            indices = np.frombuffer(Longs("q", indices), np.int64)
    array = np.asarray(indices)
    if array.dtype == np.int64:
        # Not min() and max(): in a loop that has better things to cache they take 4 us each.
        if len(array) and (array[array.argmin()] < -length or array[array.argmax()] >= length):
            checked_indices(array, length)
        return array
    if array.dtype == np.bool_:
        if len(array) != length:
            raise OptionError(f"mask has {len(array):,} entries, the dataset {length:,}")
        return np.flatnonzero(array)
    if len(array) and array.dtype.kind not in "iu":
        raise OptionError(f"an index array of dtype {array.dtype}; use integers, or a bool mask")
    checked_indices(array, length)
    return array.astype(np.int64)
