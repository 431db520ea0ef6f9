"""What is exported, in which parts; and the work of several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Dataset

from edcache.base import EdcacheError
from edcache.dataset import Samples
from edcache.interop.export_columns import Columns
from edcache.interop.export_leaves import Leaves, leaves_of
from edcache.storage import refused

Ints = npt.NDArray[np.int64]
OnProgress = Callable[[int, int], object]
"""`on_progress(done, total)`: samples."""

_BATCH_NBYTES: Final = 16 << 20
_MOST_IN_A_BATCH: Final = 1 << 14
_PROBES: Final = 32


@dataclass(frozen=True)
class Plan:
    """What is exported.

    ds: the samples. columns: where samples become rows. labels: the names of label columns that go along.
    sample_nbytes: of a sample, on average, of some that were looked at.
    """

    ds: Samples
    columns: Columns
    labels: tuple[str, ...]
    sample_nbytes: float

    def __len__(self) -> int:
        return len(self.ds)

    def parts(self, nbytes: int, part: range | None = None) -> list[range]:
        """Consecutive positions, of all or of a part, that are about so many bytes each."""
        whole = range(len(self)) if part is None else part
        count = int(max(1, nbytes // max(self.sample_nbytes, 1)))
        return [whole[start : start + count] for start in range(0, len(whole), count)]

    def pieces(self, part: range) -> list[range]:
        """Consecutive positions that are some 16 MiB each, which is what is in memory at a time."""
        return self.parts(_BATCH_NBYTES, part)

    def samples(self, part: range) -> Iterator[tuple[str, Leaves]]:
        """The samples at consecutive positions: what messages begin with, and leaves."""
        for piece in self.pieces(part):
            for start in range(0, len(piece), _MOST_IN_A_BATCH):
                yield from read(self.ds, piece[start : start + _MOST_IN_A_BATCH])

    def label_table(self, part: range) -> Any:
        """The label columns that go along, of consecutive samples."""
        labels = self.ds.labels.take(np.arange(part.start, part.stop))
        return labels.table.select(list(self.labels))


@dataclass(frozen=True)
class Writer:
    """Writes the files of a part of the samples into a folder; a process each may."""

    plan: Plan
    folder: str

    def __call__(self, numbered: tuple[int, range]) -> int:
        """Write part `number`; returns how many samples it has."""
        self._write(*numbered)
        return len(numbered[1])

    def _write(self, number: int, part: range) -> None:
        """Write the files of consecutive samples."""
        raise NotImplementedError


def read(ds: Samples, positions: Sequence[int]) -> Iterator[tuple[str, Leaves]]:
    """The samples at some positions: what messages begin with, "export(): sample 17", and leaves."""
    for position, sample in zip(positions, ds.__getitems__(list(positions)), strict=True):
        place = f"export(): sample {position}"
        yield place, leaves_of(sample, place)


def prepared(ds: Samples) -> Samples:
    """The dataset with its image files as they are, where nothing transforms or decodes them otherwise."""
    return ds._with_files()


def of_interest(ds: Samples, needs_shapes: bool) -> Ints:
    """Positions of samples that are of every kind there is: one of each schema where that tells enough.

    Args:
        needs_shapes: the format wants to know the shapes of all arrays.
    Raises:
        MissingSampleError: "train.zip: 3 of 20 samples have no record, ...; take available()".
    """
    every = np.arange(len(ds))
    numbers, trees = ds._root._structures(ds._root_indices(every))
    if ds._transform is not None:
        return every
    chosen = np.zeros(len(ds), bool)
    for number, tree in enumerate(trees):
        of_it = np.flatnonzero(numbers == number)
        is_told = tree is not None and not (needs_shapes and any(map(_varies, tree.leaves())))
        chosen[of_it[:1] if is_told else of_it] = True
    chosen[:: max(1, len(ds) // _PROBES)] = True
    return np.flatnonzero(chosen)


def _varies(leaf: Any) -> bool:
    return leaf.kind in ("tensor", "array") and leaf.shape is None


class _Parts(Dataset[Any]):
    """Work on one part of the samples after another, for the workers of a DataLoader."""

    def __init__(self, work: Callable[[Any], Any], parts: Sequence[Any]) -> None:
        self._work, self._parts = work, parts

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, number: int) -> tuple[Any, EdcacheError | None]:
        try:
            return self._work(self._parts[number]), None
        except EdcacheError as error:
            # Raised here, a worker's traceback would become a part of its message.
            return None, error


def worked(work: Callable[[Any], Any], parts: Sequence[Any], num_workers: int) -> Iterator[Any]:
    """What a function makes of each part, in their order, by so many processes; 0 works in this one."""
    loader: Iterable[Any] = DataLoader(
        _Parts(work, parts), batch_size=None, num_workers=min(num_workers, len(parts))
    )
    try:
        loaded = iter(loader)
    except OSError as denied:
        refused("export()", "starting worker processes", denied)
    for made, error in loaded:
        if error is not None:
            raise error
        yield made


def labels_to_go(ds: Samples, labels: bool | Sequence[str], names: set[str]) -> tuple[str, ...]:
    """The label columns that go along: those named, or all, but for those that are fields of the samples.

    Args:
        names: of all leaves.
    """
    if labels is False:
        return ()
    chosen = list(ds.labels) if labels is True else list(labels)
    for name in chosen:
        ds.labels.column(name)
    fields: set[str] = set()
    if ds._transform is None:
        for path, column in ds._root._columns().items():
            text = ".".join(map(str, path)) if isinstance(path, tuple) else str(path)
            fields |= {column} if text in names else set()
    return tuple(name for name in chosen if name not in fields)
