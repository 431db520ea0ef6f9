"""The archives that were opened by one call, as one dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edcache.base import Picks, Transform
from edcache.dataset.combining import Concat, concat
from edcache.dataset.reading import Ints
from edcache.dataset.samples import Samples, View
from edcache.format import Failure
from edcache.labels import Labels

if TYPE_CHECKING:
    from edcache.dataset.cached import CachedDataset


class Several(Samples):
    """The samples of several archives, one archive after the other; `CachedDataset.from_cache` makes it.

    It can do what `edcache.concat` of them can, and `refresh`. Its views are of what was there when they were
    made: they stay the same samples when an archive grows.

    Attributes:
        archives: the datasets, in order.
    """

    def __init__(self, archives: Sequence[CachedDataset]) -> None:
        self.archives = tuple(archives)
        self._concat = concat(self.archives)

    def __len__(self) -> int:
        return len(self._concat)

    def __repr__(self) -> str:
        count = len(self) - self._present
        state = "" if self.complete else f", {count:,} missing" if count else ", not all sealed"
        return f"{self._chain()} ({len(self):,} samples{state})"

    @property
    def transform(self) -> Transform:
        """That of the archives; set it for all of them, see the base class."""
        return self.archives[0].transform

    @transform.setter
    def transform(self, function: Transform) -> None:
        for archive in self.archives:
            archive.transform = function

    @property
    def batch_transform(self) -> Transform:
        """That of the archives; set it for all of them."""
        return self._batch_transform

    @batch_transform.setter
    def batch_transform(self, function: Transform) -> None:
        for archive in self.archives:
            archive.batch_transform = function

    @property
    def paths(self) -> list[str]:
        """Of the archives, in order."""
        return [archive.path for archive in self.archives]

    @property
    def cache(self) -> Concat:
        """The concatenation of the archives as they are now."""
        return self._concat

    @property
    def labels(self) -> Labels:
        """The label columns of all archives, null where one lacks a column; see `edcache.concat`."""
        return self._concat.labels

    @property
    def indices(self) -> Ints:
        """All of them: 0 to len(self) - 1, read only."""
        return self._concat.indices

    @property
    def complete(self) -> bool:
        """Whether every archive is: sealed, and without a missing sample."""
        return all(archive.complete for archive in self.archives)

    @property
    def missing(self) -> Ints:
        """The indices without a record: int64 [k], sorted, a copy."""
        return np.concatenate([archive.missing + start for archive, start in self._placed()])

    @property
    def errors(self) -> list[Failure]:
        """Why samples have no record, for those that failed when they were made; as of one archive."""
        return [
            replace(failure, index=failure.index + start)
            for archive, start in self._placed()
            for failure in archive.errors
        ]

    def available(self) -> View:
        """The samples that have a record, as a view."""
        indices = [archive.available().indices + start for archive, start in self._placed()]
        return self._chosen(Picks(np.concatenate(indices)), ".available()")

    def info(self) -> dict[str, Any]:
        """The state of the archives, and what reading them takes in this process.

        Returns:
            As of one archive: samples, present, nbytes, mapped and private are sums, sealed is whether all
            are, labels has the columns of any; path is the list of paths, and archives the info of each.
        """
        infos = [archive.info() for archive in self.archives]
        summed = ("present", "nbytes", "mapped", "private")
        return {
            "path": self.paths,
            "samples": len(self),
            "sealed": all(info["sealed"] for info in infos),
            "labels": list(dict.fromkeys(name for info in infos for name in info["labels"])),
            **{name: sum(info[name] for info in infos) for name in summed},
            "archives": infos,
        }

    def refresh(self) -> bool:
        """See what others have added to the archives since; says whether anything changed.

        Samples behind an archive that grew get other indices; views that were made before keep theirs.
        """
        changes = [archive.refresh() for archive in self.archives]
        changed = True in changes
        if changed:
            self._concat.forget_labels()
            if len(self) != sum(map(len, self.archives)):
                self._concat = concat(self.archives)
        return changed

    def close(self) -> None:
        """Let go of the archives; idempotent."""
        for archive in self.archives:
            archive.close()

    def __enter__(self) -> Several:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _root(self) -> Concat:
        return self._concat

    @property
    def _present(self) -> int:
        return sum(archive.reader.present for archive in self.archives)

    def _placed(self) -> list[tuple[CachedDataset, int]]:
        """Each archive, and the index of its first sample."""
        return list(zip(self.archives, self._concat.starts, strict=True))

    def _chain(self) -> str:
        return self._concat._chain()
