"""What will be exported: every kind of sample is looked at before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Dataset

from edcache.durable import refused
from edcache.errors import EdcacheError
from edcache.exporting.leaves import Leaves, leaves_of
from edcache.views import Samples

Ints = npt.NDArray[np.int64]
OnProgress = Callable[[int, int], object]
"""`on_progress(done, total)`: samples."""

_BATCH_NBYTES: Final = 16 << 20
_MOST_IN_A_BATCH: Final = 1 << 14
_SCANNED: Final = 256
_PROBES: Final = 32


@dataclass(frozen=True)
class Job:
    """What is exported.

    ds: the samples. labels: the names of label columns that go along. sample_nbytes: of a sample, on average,
    of some that were looked at.
    """

    ds: Samples
    labels: tuple[str, ...]
    sample_nbytes: float

    def __len__(self) -> int:
        return len(self.ds)

    def samples(self, part: range) -> Iterator[tuple[int, Leaves]]:
        """The samples at consecutive positions: position and leaves; some 16 MiB of them are in memory."""
        count = int(np.clip(_BATCH_NBYTES // max(self.sample_nbytes, 1), 1, _MOST_IN_A_BATCH))
        for start in range(part.start, part.stop, count):
            yield from read(self.ds, range(start, min(start + count, part.stop)))

    def parts(self, shard_nbytes: int) -> list[range]:
        """Consecutive positions that make shards of about so many bytes."""
        count = int(max(1, shard_nbytes // max(self.sample_nbytes, 1)))
        return [range(start, min(start + count, len(self))) for start in range(0, len(self), count)]


def read(ds: Samples, positions: Sequence[int]) -> Iterator[tuple[int, Leaves]]:
    """The samples at some positions: each position and its leaves."""
    samples = ds.__getitems__(list(positions))
    for position, sample in zip(positions, samples, strict=True):
        yield position, leaves_of(sample, place_of(position))


def place_of(position: int) -> str:
    """What an error about a sample begins with."""
    return f"export(): sample {position}"


def prepared(ds: Samples) -> Samples:
    """The dataset with its image files as they are, where nothing transforms or decodes them otherwise."""
    root = ds._root._with_image_files() if ds._transform is None else ds._root
    return ds if root is ds._root else ds._over(root)


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


def scanned(
    ds: Samples, look: Callable[[int, Leaves], Any], positions: Ints, num_workers: int
) -> Iterator[Any]:
    """What a function makes of the samples at some positions, in their order."""
    parts = [positions[start : start + _SCANNED].tolist() for start in range(0, len(positions), _SCANNED)]
    for found in worked(_Looking(ds, look), parts, num_workers):
        yield from found


class _Looking:
    def __init__(self, ds: Samples, look: Callable[[int, Leaves], Any]) -> None:
        self._ds, self._look = ds, look

    def __call__(self, positions: list[int]) -> list[Any]:
        return [self._look(position, leaves) for position, leaves in read(self._ds, positions)]


def nbytes_of(leaves: Leaves) -> int:
    """About so many bytes takes a sample."""
    return 64 + sum(map(_nbytes_of_one, leaves.values()))


def _nbytes_of_one(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, tuple):
        return len(value[0])
    return len(value) if isinstance(value, str | bytes) else 8


def labels_to_go(ds: Samples, asked: bool | Sequence[str], names: set[str]) -> tuple[str, ...]:
    """The label columns that go along: those asked for, but for those that are fields of the samples.

    Args:
        names: of all leaves.
    """
    if asked is False:
        return ()
    known = list(ds.labels)
    if asked is not True:
        for name in asked:
            ds.labels.column(name)
        known = list(asked)
    mirrored: set[str] = set()
    if ds._transform is None:
        for path, column in ds._root._columns().items():
            text = ".".join(map(str, path)) if isinstance(path, tuple) else str(path)
            mirrored |= {column} if text in names else set()
    return tuple(name for name in known if name not in mirrored)
