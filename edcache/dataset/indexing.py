"""`Readable`: what every dataset and view has: samples by position, batches, labels, transforms, state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch.utils.data import Dataset

from edcache import base, display
from edcache.base import EdcacheError, Ints, OptionError, Transform, checked_function
from edcache.dataset.root import Archive, Reading, SampleRoot, set_transform
from edcache.format import Failure
from edcache.labels import Labels
from edcache.reader import Batch

if TYPE_CHECKING:
    import typing_extensions

    # With a default, so that `CachedDataset` alone is one of any samples.
    T_co = typing_extensions.TypeVar("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)


@base.cut_traceback
class Readable(Dataset[T_co]):
    """Sequence of samples with labels: an archive, several as one, or a view of these.

    `_reading` says which samples it has and how they are changed; all reads go through it.
    """

    _reading: Reading
    _of: Readable[Any] | None = None  # the dataset of a view

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__getitem__" in vars(cls) and "__getitems__" not in vars(cls):
            raise OptionError(
                f"class {cls.__name__} overrides __getitem__ but not __getitems__, by which a DataLoader "
                "reads; give a transform= instead, which batches and views know too"
            )

    def __len__(self) -> int:
        return len(self._reading)

    def __repr__(self) -> str:
        return repr(self._reading) if "_reading" in vars(self) else f"{type(self).__name__}(not open)"

    @property
    def labels(self) -> Labels:
        """Label columns, a mapping from name to a read-only numpy array [len(self)]; no sample is read.

        `.table` is a pyarrow Table, and `.table.to_pandas()` a DataFrame.

        Raises:
            UnknownLabelError: on access, 'no label "lable"; this archive has: label, split'.
        """
        return self._reading.labels

    @property
    def missing(self) -> Ints:
        """Positions without a record: int64 [k], rising. Of a lazy cache, also what other processes stored counts."""
        return self._reading.missing

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, by index.

        Each has index (the position here), final (absent for good), error (the exception's name),
        message and traceback.
        """
        return self._reading.errors

    @property
    def schema(self) -> display.Schema:
        """Fields of the stored samples with kind, dtype and shape, a table for each schema; no sample is read.

        A view has its whole dataset's.
        """
        return display.schema_of(self._reading.root.readers)

    def show(self, n: int = 8) -> display.SampleGrid:
        """Show some samples from all over the dataset: pictures in a notebook, a line each in print.

        Args:
            n: the number of samples. Each is read as `self[i]`, with transforms.
        """
        base.check_count("n", n)
        count = min(n, len(self))
        return self._grid([k * len(self) // count for k in range(count)])

    def _grid(self, positions: Sequence[int]) -> display.SampleGrid:
        samples = [display.tried(self.__getitem__, position) for position in positions]
        # Not by `indices`, which computes all.
        at = np.array(positions, np.int64)
        return display.SampleGrid(self._reading.indices_at(at).tolist(), samples, self.labels.take(at))

    def _repr_html_(self) -> str:
        """Show in a notebook; no user's code is run, and nothing is fetched from far."""
        try:
            readers = self._reading.root.readers
            is_near = all(one.session.has_all and one.session.memory()["mapped"] for one in readers)
            is_plain = not (runs_functions(self._reading) or any(one.options.allow_pickle for one in readers))
            grid = self._grid(range(min(8, len(self)))) if is_near and is_plain else None
            return display.dataset_html(repr(self), len(self), self.labels, readers, grid)
        except (EdcacheError, OSError) as error:  # closed, or damaged
            return display.fragment(str(error))

    @property
    def indices(self) -> Ints:
        """Positions of the samples in the dataset of a view: int64 [len(self)], read-only.

        It is a view of an index array. Without a view they are 0 to len(self) - 1.
        """
        return self._reading.whole.array()

    @property
    def transform(self) -> Transform:
        """Function that is called for every sample at every read, or None. It may be set at any time.

        Views call the one of their dataset, then their own. Setting it on a view does not change the views that were
        made of that view before. Running workers of a DataLoader keep the transform that they started with.
        """
        return self._changing.transform

    @transform.setter
    def transform(self, function: Transform) -> None:
        set_transform(self._changing, function)

    @property
    def _changing(self) -> Reading | SampleRoot:
        """Owner of a transform that is set here: a view, or the root of a dataset."""
        return self._reading.root if self._of is None else self._reading

    @property
    def batch_transform(self) -> Transform:
        """Function that is called for every collated batch, also of views; or None.

        It may be set at any time, of a dataset that is no view.
        """
        return self._reading.root.batch_transform

    @batch_transform.setter
    def batch_transform(self, function: Transform) -> None:
        if self._of is not None:
            raise OptionError(
                f"{self!r} uses the batch_transform of its dataset; set it there: dataset.batch_transform = ..."
            )
        self._reading.root.batch_transform = checked_function("batch_transform", function)

    @property
    def complete(self) -> bool:
        """True if every archive is sealed, and each of its samples has a record or is recorded as absent for good.

        A view has the answer of its dataset. Of a lazy cache, also what other processes stored counts.
        """
        return self._reading.root.complete

    def close(self) -> None:
        """Publish pending samples of lazy caches, and close the archives, for all views of them; idempotent."""
        self._reading.root.close()

    def __enter__(self) -> typing_extensions.Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        return batch_of(self, indices).collated()

    def __iter__(self) -> Iterator[T_co]:
        for position in range(len(self)):
            yield self[position]


def reading_of(ds: Readable[Any]) -> Reading:
    """Return the selection, fields and function of a dataset, and its root."""
    return ds._reading


def batch_of(ds: Readable[Any], indices: Any) -> Batch:
    """Return the batch at a user's positions, or at Draws, which is not collated yet."""
    reading = reading_of(ds)
    return Batch(reading.asked(indices), reading.root.batch_transform)


def runs_functions(reading: Reading) -> bool:
    """True if a user's function changes the samples of this reading, or of a part of its root."""
    return reading.has_transform or any(map(runs_functions, reading.root.parts))


def warn_of_absent(reading: Reading, asked_by: str, columns: str, chosen: Any = slice(0)) -> None:
    """Warn once if samples are left out because a lazy cache does not know their labels yet.

    columns: a text with the names of the columns in use. chosen: positions that are not left out.
    """
    archive = reading.root
    if not isinstance(archive, Archive) or not archive.computes:
        return
    session = archive.reader.session
    # Labels that were added later are known without a record.
    if session.has_all or not any(name in columns for name in session.original_labels):
        return
    absent = ~session.index.are_present(reading.whole.array())
    absent[chosen] = False
    if absent.any():
        text = f"{np.count_nonzero(absent):,} of {len(reading):,} samples, which have no record yet"
        base.warn(f"{asked_by} leaves out {text}; warmup() first", once=(archive.path, "absent"))
