"""CachedDataset: a map-style torch dataset over an archive, and views of it."""

from __future__ import annotations

import operator
import os
from array import array as Longs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from edcache.batch import Batch, Projection
from edcache.errors import (
    ArchiveNotFoundError,
    CorruptArchiveError,
    MissingSampleError,
    NotAnArchiveError,
    OptionError,
    SampleIndexError,
    StaleCacheError,
)
from edcache.fill import LazyFiller, check_length, check_source, fill
from edcache.fingerprint import differences, type_fingerprint
from edcache.format import Head
from edcache.labels.query import matching_rows
from edcache.labels.spec import LabelSpec
from edcache.labels.view import Labels, checked_indices
from edcache.loader import Loader
from edcache.reader import Reader
from edcache.writer import adopt_labels, check_options, check_writing, never_created, new_head

InMemoryKeys = Sequence[Any] | Mapping[str, Any] | None
FieldPath = Any  # a key, an index, "target.boxes", or a tuple of keys and indices
Transform = Callable[[Any], Any] | None

READ_OPTIONS = frozenset({"allow_pickle", "batch_transform", "io", "transform", "verify", "zero_copy"})


class _Samples(Dataset[Any]):
    """What a cache and its views share: a sequence of samples with labels.

    `indices` says which samples of the archive they are; it is never copied to read one.
    """

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
        return position

    def _archive_indices(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What lies at positions in [-len(self), len(self)), as indices in [-n, n) of the archive."""
        return positions

    def _view(self, positions: npt.NDArray[np.int64] | None, fields: Projection | None = None) -> View:
        """A view of samples at positions in [0, len(self)), None for all; `fields` narrows them."""
        indices = None if positions is None else self._archive_indices(positions)
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
            return self._view(np.arange(len(self), dtype=np.int64)[index])
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
        return Loader(
            lambda indices, memory: self._batch(indices).collated(memory=memory),
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
        rows = matching_rows(self.labels, conditions, where)
        # A copy: an index array that is given may be changed later.
        return self._view(rows if where is None else rows.copy())


class CachedDataset(_Samples):
    """A dataset whose samples are computed once and read from one archive ever after.

    Args:
        source: the dataset to cache, with __len__ and __getitem__(int); None opens what is there.
        path: the archive. Without one it is `<root>/cached/<name>.zip`, from attributes of `source`.
        in_memory_keys: the label columns: a list of keys, or a mapping from name to field path
            ("target.boxes", 1) or function. Default: the source's own attribute `in_memory_keys`.
        lazy: False fills what is missing now. True computes a sample when it is first asked for.
        force_cache: edflow's word for the same choice: True fills now, False is lazy.
        keep_existing: False builds the archive anew and puts it in the place of an old one.
        chunk_size: most samples that one publication holds; a kill loses at most that many.
        codec: "native" (the default of a new archive), or "pickle" (needs allow_pickle=True as well).
        compression: "zstd", "zstd:19" or "zstd+dict", per record; a new archive has none by default.
        allow_pickle: read records that are pickles. Only for archives whose author you trust.
        zero_copy: arrays lie over the mapped file instead of in memory you own. numpy arrays are read-only
            then; torch knows no such tensor, and writing into one ends the process.
        verify: when checksums are looked at: "touch" (first read in a process), "always", "never".
        sync: "seal" (default), "chunk" or "never": when written bytes are brought to the disk.
        progress: True or False; by default a bar shows on a terminal.
        fingerprint: JSON-able description of the source that must match the archive's.
        transform: called with every sample that is read, live: the place of random augmentation.
        batch_transform: called with every collated batch of `default_collate`, `edcache.collate`, `batch`
            and `loader`, in the worker where there is one.
        io: "mmap", "pread", or "auto": pread where the file system is another machine's.
    Raises:
        SourceError: the source raised at an index; what was computed before is kept.
        StaleCacheError: the archive is of another source, or of another length.
        MissingSampleError: on a read, where nothing was filled and there is no source to ask.

    Cost: opening a complete archive takes milliseconds and does not touch the source.
    Safety: fork, spawn, forkserver and threads; a complete one pickles without its source.
    """

    def __init__(
        self,
        source: Any,
        path: str | os.PathLike[str] | None = None,
        *,
        in_memory_keys: InMemoryKeys = None,
        lazy: bool = False,
        force_cache: bool | None = None,
        keep_existing: bool = True,
        chunk_size: int | None = None,
        codec: str | None = None,
        compression: str | None = None,
        allow_pickle: bool = False,
        zero_copy: bool = False,
        verify: str = "touch",
        sync: str = "seal",
        progress: bool | None = None,
        fingerprint: dict[str, Any] | None = None,
        transform: Transform = None,
        batch_transform: Transform = None,
        io: str = "auto",
    ) -> None:
        if codec == "pickle" and not allow_pickle:
            raise OptionError('codec="pickle" needs allow_pickle=True too, or nothing could be read back')
        self.path = _path_of(source) if path is None else os.fspath(path)
        self.zero_copy = zero_copy
        self._reader = Reader(self.path, verify=verify, allow_pickle=allow_pickle, io=io)
        for name, function in (("transform", transform), ("batch_transform", batch_transform)):
            if function is not None and not callable(function):
                raise OptionError(f"{name}={function!r}; give a function, or None")
        self._transform, self._batch_transform = transform, batch_transform
        self._source = source
        self._filler: LazyFiller | None = None
        self._labels: Labels | None = None
        if source is None:
            self._pin()
            return
        keys = in_memory_keys if in_memory_keys is not None else getattr(source, "in_memory_keys", None)
        self._spec = LabelSpec.parse(keys)
        check_writing(sync, chunk_size)
        self._asked = {"codec": codec, "compression": compression}
        self._fill_options: dict[str, Any] = {"chunk_size": chunk_size, "sync": sync}
        self._progress = progress
        self._head = new_head(
            self._spec,
            length=len(source) if hasattr(source, "__len__") else None,
            codec=codec or "native",
            compression=compression,
            fingerprint=fingerprint or type_fingerprint(source),
        )
        self._start(lazy if force_cache is None else not force_cache, keep_existing)
        self._pin()

    def _pin(self) -> None:
        """Open the archive now: a wrong path fails here, and one that replaces it later is another one."""
        self._reader.head  # noqa: B018

    def _start(self, lazy: bool, keep_existing: bool) -> None:
        if lazy and not keep_existing:
            raise OptionError(f"{self.path}: lazy=True fills what is there; to begin anew delete the file")
        if keep_existing and self._is_done():
            return
        check_source(self._source, self.path)
        if lazy:
            self._filler = LazyFiller(self._source, self.path, self._head, self._spec, **self._fill_options)
            self._filler.create()
        else:
            self._fill(rebuild=not keep_existing)

    def _is_done(self) -> bool:
        """Whether a sealed archive with every sample is there: it opens even where nothing can be written.

        Raises StaleCacheError where the archive was made from something else.
        """
        found = archive_at(self.path)
        if found is None:
            return False
        assert self._head.fingerprint is not None
        changed = (
            differences(found.head.fingerprint, self._head.fingerprint) if found.head.fingerprint else []
        )
        if changed:
            remedy = "use another path, or pass keep_existing=False to build it anew"
            raise StaleCacheError(stale_message(self.path, changed, remedy))
        length = self._head.length or 0
        longer = len(found) if len(found) > length else None
        check_length(self.path, found.declared_length or longer, length)
        adopt_labels(found.head, self._spec, self.path)
        check_options(found.head, self.path, **self._asked)
        return found.sealed and found.complete and len(found) >= length

    def _fill(self, rebuild: bool = False) -> None:
        fill(
            self._source,
            self.path,
            self._head,
            self._spec,
            progress=self._progress,
            rebuild=rebuild,
            **self._fill_options,
        )

    @classmethod
    def from_cache(
        cls, path: str | os.PathLike[str], name: str | None = None, **options: Any
    ) -> CachedDataset:
        """Open an archive without its source dataset.

        Args:
            path: the archive; or, with `name`, edflow's root: `<path>/cached/<name>.zip`.
            options: allow_pickle, zero_copy, verify, transform, batch_transform, io, as in the class.
        Raises:
            ArchiveNotFoundError, NotAnArchiveError, FormatVersionError, CorruptArchiveError.

        An archive that a killed writer left opens too: what was published is there, the rest raises
        MissingSampleError.
        """
        unknown = set(options) - READ_OPTIONS
        if unknown:
            raise OptionError(
                f"from_cache() takes {', '.join(sorted(READ_OPTIONS))}, not {', '.join(sorted(unknown))}"
            )
        if name is not None:
            path = os.path.join(os.fspath(path), "cached", f"{name}.zip")
        return cls(None, path, **options)

    def __len__(self) -> int:
        return len(self._reader)

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self._reader.head.labels)
        state = "" if self.complete else f", {len(self) - self._reader.present:,} missing"
        labels = f", labels: {names}" if names else ""
        return f"CachedDataset({self.path!r}, {len(self):,} samples{state}{labels})"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_labels": None}
        if self._source is not None and self.complete:
            state |= {"_source": None, "_filler": None, "_spec": None}
        return state

    @property
    def head(self) -> Head:
        """What the archive says about itself: uuid, length, codec, fingerprint."""
        return self._reader.head

    @property
    def reader(self) -> Reader:
        """The archive underneath."""
        return self._reader

    @property
    def cache(self) -> CachedDataset:
        """This dataset."""
        return self

    @property
    def complete(self) -> bool:
        """Whether every sample has a record."""
        return self._reader.complete

    def info(self) -> dict[str, Any]:
        """The state of the archive, and what reading it takes in this process.

        Returns:
            path, samples, present, sealed, labels (their names), nbytes (of the file), mapped (bytes of it
            that are mapped, shared by all processes and given back when memory is short) and private
            (bytes of this process alone; they do not grow with what is read).
        """
        reader = self._reader
        return {
            "path": self.path,
            "samples": len(self),
            "present": reader.present,
            "sealed": reader.sealed,
            "labels": [name for name, _ in reader.head.labels],
            "nbytes": reader.nbytes,
            **reader.memory(),
        }

    @property
    def missing(self) -> npt.NDArray[np.int64]:
        """The indices without a record: int64 [k], sorted."""
        return self._reader.missing()

    @property
    def labels(self) -> Labels:
        """The label columns of the whole archive; see the base class."""
        if self._labels is None:
            self._labels = Labels(self._reader.labels, num_rows=len(self))
        return self._labels

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """All of them: 0 to len(self) - 1."""
        return np.arange(len(self), dtype=np.int64)

    def refresh(self) -> bool:
        """See what others have added to the archive since; says whether anything changed."""
        changed = self._reader.refresh()
        if changed:
            self._labels = None
        return changed

    def warmup(self) -> CachedDataset:
        """Compute every missing sample now, with a progress bar, and seal the archive.

        Raises: as the class; OptionError where the dataset was opened without its source.
        """
        if self._source is None:
            if not self.complete:
                raise OptionError(
                    f"{self.path}: {len(self) - self._reader.present:,} samples are missing and the source "
                    "dataset is not here; construct CachedDataset(source, path)"
                )
            return self
        if self._filler is not None:
            self._filler.flush()
        self._fill()
        self.refresh()
        return self

    cache_dataset = warmup

    def close(self) -> None:
        """Publish what a lazy cache still holds, and let go of the archive."""
        if self._filler is not None:
            self._filler.close()
        self._reader.close()

    def _stored(self, index: int) -> Any:
        """A sample as it was written, by its index in [-n, n); computed if it is missing and lazy."""
        position = index if index >= 0 else index + len(self)
        try:
            return self._reader.read(position, copy=not self.zero_copy)
        except MissingSampleError:
            if self._filler is None:
                raise
        if self._filler.has_pending(position):
            self._filler.flush()
        if self._reader.refresh():
            self._labels = None
            if self._reader.has(position):
                return self._reader.read(position, copy=not self.zero_copy)
        return self._filler.get(position)


class View(_Samples):
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
        if self._labels is None:
            self._labels = self._cache.labels.take(self._indices)
        return self._labels

    def _view(self, positions: npt.NDArray[np.int64] | None, fields: Projection | None = None) -> View:
        indices = self._indices if positions is None else self._archive_indices(positions)
        return View(self._cache, indices, fields or self._fields)

    def _archive_index(self, position: int) -> int:
        return position if self._indices is None else int(self._indices[position])

    def _archive_indices(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if self._indices is None:
            return positions
        chosen: npt.NDArray[np.int64] = self._indices[positions]
        return chosen


def archive_at(path: str) -> Reader | None:
    """The archive that is there, if one is and its creator lived to write its head."""
    reader = Reader(path)
    try:
        reader.head  # noqa: B018
    except ArchiveNotFoundError:
        return None
    except (NotAnArchiveError, CorruptArchiveError):
        if never_created(path):
            return None
        raise
    return reader


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


def stale_message(path: str, changed: Sequence[str], remedy: str) -> str:
    """The text of a StaleCacheError: what differs, line by line, and what to do."""
    lines = "".join(f"\n  {line}" for line in changed)
    return f"{path}: made by another call:{lines}\n{remedy}"


def _hashable(source: Any) -> FieldPath:
    """A label's field path as select() takes it; the head keeps a tuple as a list."""
    return tuple(source) if isinstance(source, list) else source


def _path_of(source: Any) -> str:
    root, name = getattr(source, "root", None), getattr(source, "name", None)
    if root is None or name is None:
        raise OptionError(
            "no path given, and the source has no attributes `root` and `name` to make one from; "
            'pass path="somewhere.zip"'
        )
    return os.path.join(os.fspath(root), "cached", f"{name}.zip")
