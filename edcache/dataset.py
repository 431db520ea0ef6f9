"""CachedDataset: a map-style torch dataset over an archive, and views of it."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from edcache.batch import Batch
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
from edcache.reader import Reader
from edcache.writer import adopt_labels, check_options, check_writing, never_created, new_head

InMemoryKeys = Sequence[Any] | Mapping[str, Any] | None


class _Samples(Dataset[Any]):
    """What a cache and its views share: a sequence of samples with labels.

    `indices` says which samples of the archive they are; it is never copied to read one.
    """

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

    def _sample(self, position: int) -> Any:
        raise NotImplementedError

    def _view(self, positions: npt.NDArray[np.int64]) -> View:
        raise NotImplementedError

    def _archive_indices(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        raise NotImplementedError

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
        if isinstance(index, slice):
            return self._view(np.arange(len(self), dtype=np.int64)[index])
        if not isinstance(index, int) and np.ndim(index) == 1:
            return self._view(_positions(np.asarray(index), len(self)))
        return self._sample(self._position(index))

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """The samples at several positions, as torch's DataLoader asks for a batch.

        A sequence of ordinary samples for any collate function; torch's `default_collate` makes its batch
        of dicts, tuples and lists by one gather a field, see `edcache/batch.py`.
        """
        batch = self._batch(indices)
        return batch if batch.is_led_to else list(batch)

    def batch(self, indices: Sequence[int]) -> Any:
        """The collated samples at several positions: exactly `default_collate([ds[i] for i in indices])`.

        Fields of one shape are gathered in bulk, into memory that the caller owns.
        """
        return self._batch(indices).collated()

    def _batch(self, indices: Sequence[int]) -> Batch:
        positions = _positions(np.asarray(indices), len(self))
        return Batch(self.reader, self._archive_indices(positions), lambda i: self._sample(int(positions[i])))

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
    ) -> None:
        if codec == "pickle" and not allow_pickle:
            raise OptionError('codec="pickle" needs allow_pickle=True too, or nothing could be read back')
        self.path = _path_of(source) if path is None else os.fspath(path)
        self.zero_copy = zero_copy
        self._reader = Reader(self.path, verify=verify, allow_pickle=allow_pickle)
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
            options: allow_pickle, zero_copy, verify, as in the class.
        Raises:
            ArchiveNotFoundError, NotAnArchiveError, FormatVersionError, CorruptArchiveError.

        An archive that a killed writer left opens too: what was published is there, the rest raises
        MissingSampleError.
        """
        unknown = set(options) - {"allow_pickle", "zero_copy", "verify"}
        if unknown:
            raise OptionError(
                f"from_cache() takes allow_pickle, zero_copy and verify, not {', '.join(sorted(unknown))}"
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
    def complete(self) -> bool:
        """Whether every sample has a record."""
        return self._reader.complete

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

    def _sample(self, position: int) -> Any:
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

    def _view(self, positions: npt.NDArray[np.int64]) -> View:
        return View(self, positions)

    def _archive_indices(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return positions


class View(_Samples):
    """A selection of a cache's samples. Making one reads nothing and copies no sample.

    Args:
        cache: the dataset selected from. indices: int64 [n], each in [0, len(cache)).
    """

    def __init__(self, cache: CachedDataset, indices: npt.NDArray[np.int64]) -> None:
        self._cache = cache
        self._indices = indices
        self._labels: Labels | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_labels": None}

    def __len__(self) -> int:
        return len(self._indices)

    def __repr__(self) -> str:
        return f"View({len(self):,} of {len(self._cache):,} samples of {self._cache.path!r})"

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
        indices: npt.NDArray[np.int64] = self._indices.view()
        indices.flags.writeable = False
        return indices

    @property
    def labels(self) -> Labels:
        """The label columns of these samples, in the view's order."""
        if self._labels is None:
            self._labels = self._cache.labels.take(self._indices)
        return self._labels

    def _sample(self, position: int) -> Any:
        return self._cache._sample(int(self._indices[position]))

    def _view(self, positions: npt.NDArray[np.int64]) -> View:
        return View(self._cache, self._archive_indices(positions))

    def _archive_indices(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
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
    """What an index array or a mask selects; a copy, so that it may change later."""
    if array.dtype == np.bool_:
        if len(array) != length:
            raise OptionError(f"mask has {len(array):,} entries, the dataset {length:,}")
        return np.flatnonzero(array)
    if len(array) and array.dtype.kind not in "iu":
        raise OptionError(f"an index array of dtype {array.dtype}; use integers, or a bool mask")
    return np.array(checked_indices(array.astype(np.int64), length))


def stale_message(path: str, changed: Sequence[str], remedy: str) -> str:
    """The text of a StaleCacheError: what differs, line by line, and what to do."""
    lines = "".join(f"\n  {line}" for line in changed)
    return f"{path}: made by another call:{lines}\n{remedy}"


def _path_of(source: Any) -> str:
    root, name = getattr(source, "root", None), getattr(source, "name", None)
    if root is None or name is None:
        raise OptionError(
            "no path given, and the source has no attributes `root` and `name` to make one from; "
            'pass path="somewhere.zip"'
        )
    return os.path.join(os.fspath(root), "cached", f"{name}.zip")
