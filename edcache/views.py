"""What a cache and every view of it share, and views: selections of samples and of their fields."""

from __future__ import annotations

import operator
from array import array as Longs
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from edcache.batch import Batch, Projection
from edcache.batch.paths import FieldPath
from edcache.errors import OptionError, SampleIndexError
from edcache.labels.query import matching_rows
from edcache.labels.view import Labels, checked_indices
from edcache.loader import Loader
from edcache.reader import Reader

if TYPE_CHECKING:
    from edcache.dataset import CachedDataset

Transform = Callable[[Any], Any] | None


class Samples(Dataset[Any]):
    """What a cache and its views share: a sequence of samples with labels.

    `indices` says which samples of the archive they are; it is never copied to read one.
    """

    _indices: npt.NDArray[np.int64] | None = None  # in the archive; None for all
    _fields: Projection | None = None
    _transform: Transform = None
    _batch_transform: Transform = None

    @property
    def labels(self) -> Labels:
        """The label columns: a mapping from name to numpy array, entry i for sample i.

        `.table` is the pyarrow Table, `.to_pandas()` a DataFrame. No sample is read.

        Raises:
            UnknownLabelError: on access, 'no label "lable"; this archive has: label, split'.
        """
        raise NotImplementedError

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """The samples of the archive that this dataset has, in order: int64 [len(self)]."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def cache(self) -> CachedDataset:
        """The whole that this is a part of; a cache itself."""
        raise NotImplementedError

    def _archive_index(self, position: int) -> int:
        """The same for one position in [0, len(self))."""
        return position if self._indices is None else int(self._indices[position])

    def _archive_indices(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What lies at positions in [-len(self), len(self)), as indices in [-n, n) of the archive."""
        if self._indices is None:
            return positions
        chosen: npt.NDArray[np.int64] = self._indices[positions]
        return chosen

    def _view(self, positions: npt.NDArray[np.int64] | None, fields: Projection | None = None) -> View:
        """A view of samples at positions in [0, len(self)), None for all; `fields` narrows them."""
        indices = self._indices if positions is None else self._archive_indices(positions)
        return View(self.cache, indices, fields or self._fields)

    @property
    def reader(self) -> Reader:
        """The archive underneath."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        """One sample for an integer, a view for a slice, an index array, a list or a bool mask.

        Raises:
            SampleIndexError (an IndexError): "...: index 12 not in [-10, 10)".
            CorruptRecordError, MissingSampleError: as `Reader.read`.
        Returns memory that the caller owns, unless the dataset was opened with zero_copy=True.
        """
        if type(index) is int and 0 <= index < len(self):
            return self._read(self._archive_index(index))
        if isinstance(index, slice):
            chosen = range(len(self))[index]
            if self._indices is None:
                self.reader.justify(8, len(chosen))
            return self._view(np.arange(chosen.start, chosen.stop, chosen.step, dtype=np.int64))
        if not isinstance(index, int) and np.ndim(index) == 1:
            return self._view(_positions(np.asarray(index), len(self)))
        return self._read(self._archive_index(self._position(index)))

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """The samples at several positions, as torch's DataLoader asks for a batch.

        A sequence of ordinary samples for any collate function; torch's `default_collate` makes its batch
        by one gather a field, see `edcache/batch/`.
        """
        return self._batch(indices)

    def batch(self, indices: Sequence[int]) -> Any:
        """The collated samples at several positions: exactly `default_collate([ds[i] for i in indices])`.

        Fields of one shape are gathered in bulk, into memory that the caller owns.
        """
        return self._batch(indices).collated()

    def _batch(self, indices: Any) -> Batch:
        return Batch(self, self._archive_indices(_integers(indices, len(self))))

    def _read(self, index: int) -> Any:
        """One sample by its index in the archive."""
        sample = self.cache._stored(index) if self._fields is None else self._read_fields(self._fields, index)
        return sample if self._transform is None else self._transform(sample)

    def _read_many(self, indices: npt.NDArray[np.int64]) -> list[Any]:
        """What `_read` gives of many samples."""
        cache = self.cache
        if self._fields is not None or not cache.complete:
            return [self._read(index) for index in indices.tolist()]
        samples = cache.reader.read_many(indices, copy=not cache.zero_copy)
        return samples if self._transform is None else [self._transform(sample) for sample in samples]

    def _read_fields(self, fields: Projection, index: int) -> Any:
        cache = self.cache
        if cache.reader.has(index % len(cache)):
            return fields.read(cache.reader, cache.labels, index % len(cache))
        return fields.of_sample(cache._stored(index))

    def select(self, *fields: FieldPath, as_tuple: bool = False) -> View:
        """A view of some fields of every sample; only their bytes are read, and none where labels hold them.

        Args:
            fields: "image", "target.boxes", 1 or ("target", 0), in the order wanted.
            as_tuple: samples are tuples of the fields; False makes dicts with the given paths as keys.
        Raises:
            OptionError: a field twice; at the first read, one that the samples do not have.

        A `transform` of the cache gets what was selected.
        >>> ds.select("image", "label", as_tuple=True)[0]
        """
        if self._fields is not None:
            return self._view(None, self._fields.narrowed(fields, as_tuple))
        columns = {_hashable(source): name for name, source in self.cache.head.labels if source is not None}
        return self._view(None, Projection(fields, as_tuple, columns))

    def loader(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
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
            shuffle: a new order every epoch, which `seed` and the epoch's number determine.
            sampler: positions to read instead, in its order.
            drop_last: leave an incomplete last batch out.
            seed: None draws one from torch's generator.
            num_threads: how many batches are made at a time. prefetch: how many may wait besides.
            pin_memory: page-locked memory, for copies to a GPU. device: copy batches there.
            reuse: the batch is yours until you ask for the next but one; False gives fresh memory.
        Returns:
            An iterable with a length, `set_epoch`, `state_dict` and `load_state_dict`.
        Raises:
            OptionError: a number below 1, or shuffle and sampler at once. While iterating: as `batch`.

        Samples that must pass a `transform`, text and what is no tensor are made under the interpreter's
        lock: for those a DataLoader with workers is faster.
        """
        if sampler is None and self._indices is None:
            self.reader.justify(16)
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

    def __iter__(self) -> Iterator[Any]:
        for position in range(len(self)):
            yield self[position]

    def _position(self, index: Any) -> int:
        try:
            position = operator.index(index)
        except TypeError:
            raise OptionError(
                f"index {index!r} of type {type(index).__name__}; use an int, a slice, a list of ints, "
                "an int array or a bool mask"
            ) from None
        length = len(self)
        if not -length <= position < length:
            raise SampleIndexError(f"{self!r}: index {position} not in [-{length}, {length})")
        return position + length if position < 0 else position

    def filter(self, where: object = None, /, **conditions: object) -> View:
        """The samples whose labels fulfil all conditions, as a view; no sample is read.

        Args:
            where: a bool mask [len(self)], an index array, a pyarrow expression, a where-string
                such as "label in (0, 1) and split == 'train'", or a function from the label table
                to a mask.
            conditions: column name = a value, a list of values, None, a range, or a function from
                the column to a mask.
        Raises:
            UnknownLabelError, LabelTypeError, WhereError.

        >>> train.filter(split="train", label=[0, 1])
        """
        if self._indices is None:
            self.reader.justify(16)
        rows = matching_rows(self.labels, conditions, where)
        # A copy: an index array that is given may be changed later.
        return self._view(rows if where is None else rows.copy())


class View(Samples):
    """A selection of a cache's samples, and of their fields. Making one reads nothing and copies no sample.

    Args:
        cache: the dataset selected from. indices: int64 [n], each in [0, len(cache)); None for all.
        fields: the fields that its samples have; None for all.
    """

    def __init__(
        self, cache: CachedDataset, indices: npt.NDArray[np.int64] | None, fields: Projection | None = None
    ) -> None:
        self._cache = cache
        self._indices = indices
        self._fields = fields
        self._transform, self._batch_transform = cache._transform, cache._batch_transform
        self._labels: Labels | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_labels": None}

    def __len__(self) -> int:
        return len(self._cache) if self._indices is None else len(self._indices)

    def __repr__(self) -> str:
        fields = "" if self._fields is None else f", {self._fields}"
        return f"View({len(self):,} of {len(self._cache):,} samples of {self._cache.path!r}{fields})"

    @property
    def reader(self) -> Reader:
        """The archive underneath."""
        return self._cache.reader

    @property
    def cache(self) -> CachedDataset:
        """The whole that this is a part of."""
        return self._cache

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """Positions in the cache, in the view's order: int64 [len(self)], read only."""
        if self._indices is None:
            return self._cache.indices
        indices: npt.NDArray[np.int64] = self._indices.view()
        indices.flags.writeable = False
        return indices

    @property
    def labels(self) -> Labels:
        """The label columns of these samples, in the view's order."""
        if self._indices is None:
            return self._cache.labels
        whole = self._cache.labels
        if self._labels is None or not self._labels.is_of(whole):  # labels may have been added
            self._labels = whole.take(self._indices)
        return self._labels

    def add_labels(self, *arguments: Any, **options: Any) -> View:
        """Labels belong to the whole; raises OptionError."""
        raise OptionError("a view has the labels of its dataset; add them there: view.cache.add_labels()")

    def drop_labels(self, *names: str) -> View:
        """Labels belong to the whole; raises OptionError."""
        raise OptionError("a view has the labels of its dataset; drop them there: view.cache.drop_labels()")


def _positions(array: npt.NDArray[Any], length: int) -> npt.NDArray[np.int64]:
    """What an index array or a mask selects, in [0, length); a copy, so that it may change later."""
    return np.array(checked_indices(_integers(array, length), length))


def _integers(indices: Any, length: int) -> npt.NDArray[np.int64]:
    """An index array in [-length, length), or the places of a mask, as int64."""
    array: npt.NDArray[np.int64]
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


def _hashable(source: Any) -> FieldPath:
    """A label's field path as select() takes it; the head keeps a tuple as a list."""
    return tuple(source) if isinstance(source, list) else source
