"""`Readable`: read by position a sample, many, a collated batch; `Root`: the indexed dataset underneath."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from edcache import base, display
from edcache.base import (
    EdcacheError,
    Ints,
    OptionError,
    Transform,
    checked_function,
)
from edcache.dataset.ahead import Ahead, Shares
from edcache.dataset.ordering import grouped
from edcache.dataset.selection import Selection
from edcache.dataset.transforms import Draw, Draws, Pipeline, is_seeded
from edcache.format import Failure, Key
from edcache.labels import Labels, checked_indices, origin
from edcache.reader import Batch, FieldPath, Made, Projection, Reader, Records, Session

if TYPE_CHECKING:
    import typing_extensions

    # With a default, so that `CachedDataset` alone is one of any samples.
    T_co = typing_extensions.TypeVar("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)


class Readable(Dataset[T_co]):
    """Sequence of samples with labels: of a root, or some of it in some order.

    A root is an archive, or several put together.
    """

    _selection: Selection | None = None  # of the root's indices; None for all
    _fields: Projection | None = None
    _added: Transform = None  # applied after the root's own transform
    _repeats: bool = False  # True if it was made to have samples several times
    _labels: Labels | None = None
    _times_set: ClassVar[int] = 0  # number of times that a transform of any dataset was set in this process

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__getitem__" in vars(cls) and "__getitems__" not in vars(cls):
            raise OptionError(
                f"class {cls.__name__} overrides __getitem__ but not __getitems__, by which a DataLoader "
                "reads; give a transform= instead, which batches and views know too"
            )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_labels": None}
        if "_epoch" in state and get_spawning_popen() is None:
            del state["_epoch"]  # only workers of this process share its memory
        return state

    @property
    def _root(self) -> Root:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._root) if self._selection is None else len(self._selection)

    @property
    def transform(self) -> Transform:
        """Function that is called for every sample at every read, or None. It may be set at any time.

        The transform of a cache is also used by its views. The transform of a view runs after its cache's, as with
        `with_transform`; views that were made from it before do not change. Running workers of a DataLoader keep the
        transform that they started with.
        """
        return self._added

    @transform.setter
    def transform(self, function: Transform) -> None:
        Readable._times_set += 1
        self._added = checked_function("transform", function)

    @property
    def batch_transform(self) -> Transform:
        """Function that is called for every collated batch, also of views; or None.

        It may be set at any time, but not for a view, which has its dataset's.
        """
        return self._batch_transform

    @batch_transform.setter
    def batch_transform(self, function: Transform) -> None:
        raise OptionError(
            f"{self!r} uses the batch_transform of its dataset; set it there: dataset.batch_transform = ..."
        )

    @property
    def _batch_transform(self) -> Transform:
        return self._root._batch_transform

    @property
    def _transform(self) -> Transform:
        """Transform of the root, and then of this one."""
        first, then = self._root._transform, self._added
        if first is None or then is None:
            return then if first is None else first
        return lambda sample: then(first(sample))

    @property
    def labels(self) -> Labels:
        """Label columns, a mapping from name to a read-only numpy array [len(self)]; no sample is read.

        `.table` is a pyarrow Table, and `.table.to_pandas()` a DataFrame.

        Raises:
            UnknownLabelError: on access, 'no label "lable"; this archive has: label, split'.
        """
        whole = self._root.labels
        if self._selection is None:
            return whole
        if (
            self._labels is None or origin(self._labels)[0] is not origin(whole)[0]
        ):  # labels may have been added
            self._labels = whole.take(self.indices)
        return self._labels

    @property
    def missing(self) -> Ints:
        """Positions without a record: int64 [k], rising."""
        absent = self._root.missing
        return absent if self._selection is None else np.flatnonzero(np.isin(self.indices, absent))

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, by index.

        Each has index (the position here), final (absent for good), error (the exception's name),
        message and traceback.
        """
        failures = self._root.errors
        if self._selection is None or not failures:
            return failures
        positions = {int(self.indices[position]): position for position in self.missing.tolist()}
        return [replace(one, index=positions[one.index]) for one in failures if one.index in positions]

    @property
    def schema(self) -> display.Schema:
        """Fields of the stored samples with kind, dtype and shape, a table for each schema; no sample is read.

        A view has its whole dataset's.
        """
        return display.schema_of(self._readers)

    def show(self, n: int = 8) -> display.SampleGrid:
        """Show some samples from all over the dataset: pictures in a notebook, a line each in print.

        Args:
            n: the number of samples. Each is read as `self[i]`, with transforms.
        """
        base.check_count("n", n)
        count = min(n, len(self))
        return self._grid([k * len(self) // count for k in range(count)])

    def _grid(self, positions: Sequence[int]) -> display.SampleGrid:
        samples: list[Any] = []
        for position in positions:
            # An error of damage or of a user's transform is shown in the place of the sample.
            try:
                samples.append(self[position])
            except Exception as error:  # noqa: BLE001 - it is shown
                samples.append(error)
        # Not by `indices`, which computes all.
        at = np.array(positions, np.int64)
        return display.SampleGrid(self._root_indices(at).tolist(), samples, self.labels.take(at))

    def _repr_html_(self) -> str:
        """Show in a notebook; no user's code is run, and nothing is fetched from far."""
        try:
            readers = self._readers
            is_near = all(one.session.has_all and one.session.memory()["mapped"] for one in readers)
            is_plain = _is_stored(self) and not any(reader.allow_pickle for reader in readers)
            grid = self._grid(range(min(8, len(self)))) if is_near and is_plain else None
            return display.dataset_html(repr(self), len(self), self.labels, readers, grid)
        except (EdcacheError, OSError) as error:  # closed, or damaged
            return display.fragment(str(error))

    @property
    def _readers(self) -> list[Reader]:
        """Archives underneath."""
        return self._root._readers

    @property
    def indices(self) -> Ints:
        """Positions of the samples in the dataset of a view: int64 [len(self)], read-only.

        It is a view of an index array. Without a view they are 0 to len(self) - 1.
        """
        return self._whole_selection().array()

    def batch(self, indices: Sequence[int]) -> Any:
        """Collate the samples at some positions.

        Args:
            indices: positions in [-len(self), len(self)), in any order, also repeated.
        Returns:
            Exactly `default_collate([ds[i] for i in indices])`, in memory that the caller
            owns, after `batch_transform`.
        Raises:
            SampleIndexError, MissingSampleError, CorruptRecordError: as `self[i]`.

        Cost: fields whose shape is the same in all samples are copied together, which is much faster than
        sample by sample.
        """
        return self._batch(indices).collated()

    def __iter__(self) -> Iterator[T_co]:
        for position in range(len(self)):
            yield self[position]

    def _looking_ahead(self, positions: Callable[[int, int], Ints], start: int, stop: int) -> Ahead | None:
        """Make the look-ahead of an order; None if no archive is far.

        Args:
            positions: returns the positions in the items [a, b) of the order. start, stop: range of the items
                to be read.
        """
        root = self._root
        sessions = root._far_sessions()
        if not sessions or start >= stop:
            return None

        def take(low: int, high: int) -> Shares:
            return root._far_shares(self._root_indices(positions(low, high)))

        return Ahead(sessions, take, start, stop)

    def _batch(self, indices: Any) -> Batch:
        """Find the records at some positions, which `batch` collates."""
        return Batch(self._records_of(indices), self._batch_transform)

    def _records_of(self, indices: Any, is_loader: bool = False) -> Records:
        """Find the records at a user's positions, or at Draws. is_loader: see `_draws`."""
        positions = checked_indices(indices, len(self))
        draws = self._draws(indices, positions, is_loader) if self._is_seeded else None
        return self._records_at(self._root_indices(positions), draws)

    @property
    def _is_seeded(self) -> bool:
        """True if a transform here depends on index and epoch of its sample."""
        return is_seeded(self._added) or self._root._is_seeded

    def _draws(self, given: Any, positions: Ints, is_loader: bool = False) -> Draws:
        """Return epoch and draw of each read, for seeded transforms.

        The draw is the number of a Draw; else 1 + the position, in a view that repeats samples; else 0.

        Args:
            given: the requested indices, perhaps Draws. positions: the same in [-n, n), int64 [k].
            is_loader: True for a DataLoader, which must not read all epochs alike by mistake.
        Raises:
            OptionError: a DataLoader or a worker of one reads, and the epoch is unknown.
        """
        if isinstance(given, list) and given and isinstance(given[0], Draw):
            return numbered(self, positions, [(draw.epoch, draw.number) for draw in given])
        epoch = self._root._epoch
        if epoch is None and (is_loader or get_worker_info() is not None):
            raise OptionError(
                "a seeded transform depends on the epoch, and this DataLoader does not know it; call "
                "set_epoch(epoch) of the dataset before each iteration, or give the DataLoader a sampler of "
                "edcache.samplers that was made of this very dataset"
            )
        return numbered(self, positions, [(0 if epoch is None else int(epoch), 0)] * len(positions))

    def _selections(self) -> list[Selection]:
        """List the selections of this dataset and of its parts."""
        return [self._whole_selection()] + [one for part in self._root._parts for one in part._selections()]

    def _sorted_by_chunk(self) -> tuple[Selection, int]:
        """Sort positions by chunk; return them, and the average number of samples in a chunk.

        Raises: OptionError, a sample has no record, or the dataset has no chunks.
        """
        root = self._root
        size, step = root._chunk_size(), self._whole_selection().step
        if size is not None and step is not None:
            return Selection(range(len(self))), -(-size // abs(step))
        chunks = root._chunk_of(self.indices) if size is None else self.indices // size
        missing = int(np.count_nonzero(chunks < 0))
        if missing:
            raise OptionError(
                f"{missing:,} of {len(self):,} samples have no record, and so no chunk; leave out ds.missing"
            )
        positions, ends = grouped(chunks.astype(np.uint64), int(chunks.max(initial=0)) + 1)
        return Selection(positions), -(-len(self) // max(1, int(np.count_nonzero(np.diff(ends))))) or 1

    def _root_indices(self, positions: Ints) -> Ints:
        """Convert positions in [-len(self), len(self)) to indices in [-n, n) of the root."""
        return positions if self._selection is None else self._selection.take(positions)

    def _whole_selection(self) -> Selection:
        return Selection(range(len(self))) if self._selection is None else self._selection

    def _read(self, position: int) -> Any:
        """Read one sample by its position in [0, len(self)), which may be a Draw."""
        index = position if self._selection is None else self._selection.at(position)
        root, then = self._root, self._added
        # A small sample takes 6 us, so each call counts.
        if root._is_seeded:
            draws = self._draws([position], np.array([position]))
            return self._records_at(np.array([index]), draws).samples()[0]
        sample = root._one(index, self._fields)
        if root._transform is not None:
            sample = root._transform(sample)
        if then is None:
            return sample
        if not isinstance(then, Pipeline) or not then.is_seeded:
            return then(sample)
        # By `_records_at` as above this read takes 21 us, here 6 us.
        (draw,) = self._draws([position], np.array([position]))
        return then(sample, index % len(root), *draw)

    def _records_at(self, indices: Ints, draws: Draws | None) -> Records:
        """Read many samples, as `_read` does, by their indices in the root and their draws."""
        root, then = self._root, self._added
        records, first = root._records(indices, self._fields, draws), root._transform
        if first is None and then is None:
            return records

        def make() -> list[Any]:
            samples = records.samples()
            if first is not None:
                samples = [first(sample) for sample in samples]
            if draws is not None and isinstance(then, Pipeline):
                places = zip(samples, (indices % len(root)).tolist(), draws, strict=True)
                return [then(sample, index, *draw) for sample, index, draw in places]
            return samples if then is None else [then(sample) for sample in samples]

        return Made(make)


class Root(Readable[T_co]):
    """Dataset underneath views; its methods serve them and their batches.

    Indices are its own, in [-n, n). The samples that these methods return are not transformed.
    """

    _transform: Transform = None
    _batch_transform: Transform = None
    _is_seeded: bool = False  # True if a transform of a part depends on index and epoch of its sample
    _epoch: torch.Tensor | None = None  # int64 [], in memory that workers share
    _parts: Sequence[Readable[Any]] = ()  # datasets that it joins
    _computes: bool = False  # True if it computes a missing sample at its read

    @property
    def transform(self) -> Transform:
        """Function that is called for every sample at every read, of views too; see the base class."""
        return self._transform

    @transform.setter
    def transform(self, function: Transform) -> None:
        Readable._times_set += 1
        self._transform = checked_function("transform", function)

    @property
    def batch_transform(self) -> Transform:
        """Function that is called for every collated batch, of views too; see the base class."""
        return self._batch_transform

    @batch_transform.setter
    def batch_transform(self, function: Transform) -> None:
        self._batch_transform = checked_function("batch_transform", function)

    def close(self) -> None:
        """Close the archives underneath; idempotent."""
        raise NotImplementedError

    def __enter__(self) -> typing_extensions.Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def missing(self) -> Ints:
        """Indices without a record: int64 [k], sorted."""
        raise NotImplementedError

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, by index."""
        raise NotImplementedError

    @property
    def _root(self) -> Root:
        return self

    @property
    def _readers(self) -> list[Reader]:
        raise NotImplementedError

    def _far_sessions(self) -> list[Session]:
        """List the sessions of far archives that a look-ahead can fetch from."""
        return []

    def _far_shares(self, indices: Ints) -> Shares:
        """Return the samples of these archives at some indices."""
        return []

    def _plain_session(self) -> Session | None:
        """Return the session of a complete archive whose samples are as stored; None for any other dataset."""
        return None

    def _one(self, index: int, fields: Projection | None) -> Any:
        """Read a sample, or its fields."""
        return self._records(np.array([index]), fields).samples()[0]

    def _records(self, indices: Ints, fields: Projection | None, draws: Draws | None = None) -> Records:
        """Read many samples, as `_one`. draws: of each, for seeded transforms of parts."""
        raise NotImplementedError

    def _stored(self, indices: Ints, places: Ints) -> Iterable[Stored]:
        """List the archives that store samples at some indices; see `stored_shares`."""
        return [(self, indices, places)]

    def _settings(self) -> dict[str, Any]:
        """Return what samples depend on beside their records."""
        raise NotImplementedError

    def _find_keys(self, keys: Sequence[Key]) -> Ints:
        """Return the index of the first sample with each key: int64 [n], -1 for none."""
        raise OptionError(f"the samples of {self!r} are put together, and have no keys of their own")

    def _chunk_of(self, indices: Ints) -> Ints:
        """Return the number of the chunk of each sample, counted over all archives: int64 [n], -1 without one."""
        raise OptionError(f"the samples of {self!r} are put together, and have no chunk of their own")

    def _chunk_size(self) -> int | None:
        """Return the average number of samples in a chunk; None if they are not stored in their order."""
        return None

    def _warn_of_absent(self, ds: Readable[Any], asked_by: str, columns: str, chosen: Any = slice(0)) -> None:
        """Warn once if samples of a view are left out because a lazy cache does not know their labels yet.

        columns: a text with the names of the columns in use. chosen: positions that are not left out.
        """

    def _with_readers(self, change: Callable[[Reader], Reader]) -> Root:
        """Copy this dataset, with other readers."""
        raise NotImplementedError


Stored: TypeAlias = tuple[Root[Any], Ints, Ints]
"""Archive, indices of samples in it, and the places of these samples in a view: int64 [n] both."""


def stored_shares(ds: Readable[Any], positions: Ints, places: Ints) -> Iterable[Stored]:
    """List the archives that store the samples at some positions of a dataset, with their indices there.

    places: of these samples in the saved archive. Raises: OptionError, a view changes samples.
    """
    change = "only some of their fields are selected" if ds._fields is not None else None
    change = "a transform changes them" if ds._transform is not None else change
    if change is not None:
        raise not_as_stored(ds, change)
    return ds._root._stored(ds._root_indices(positions), places)


def not_as_stored(ds: Readable[Any], change: str) -> OptionError:
    """Make the error of saving samples that are not as stored."""
    return OptionError(
        f"save() copies samples as they are stored, those of {ds!r} are not: {change}; "
        "CachedDataset(view, path) stores what a view gives"
    )


def numbered(ds: Readable[Any], positions: Ints, draws: Draws) -> Draws:
    """Number draws that have no number by their position, if a dataset repeats samples."""
    if not ds._repeats:
        return draws
    places = (positions % len(ds) + 1).tolist()
    return [(epoch, number or place) for (epoch, number), place in zip(draws, places, strict=True)]


def label_fields(readers: Sequence[Reader]) -> dict[str, FieldPath]:
    """Map the label columns that hold a field of the samples, the same one in all archives, to its path."""
    first, *others = (reader.session.original_labels for reader in readers)
    return {
        name: path
        for name, path in first.items()
        if path is not None and all(name in other and other[name] == path for other in others)
    }


def _is_stored(ds: Readable[Any]) -> bool:
    """True if samples, also of parts, are as archives hold them: no user's function changes them."""
    return ds._transform is None and all(map(_is_stored, ds._root._parts))
