"""Several datasets as one: `concat` one after the other, `zip_fields` side by side, `variants` one an epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset

from edcache.base import Ints, OptionError, cut_traceback
from edcache.dataset.indexing import reading_of
from edcache.dataset.keys import found_keys
from edcache.dataset.root import Reading, SampleRoot, Share
from edcache.dataset.transforms import Draws
from edcache.dataset.view import Samples
from edcache.format import pa, unify
from edcache.reader import Beside, Projection, Records


@cut_traceback
def concat(datasets: Iterable[Samples]) -> Joined:
    """Join several caches and views into one dataset, one after the other; no sample is read.

    Args:
        datasets: caches and views, at least one. The same one may be given more than once.
    Returns:
        A dataset whose length is the sum of their lengths.
    Raises:
        OptionError: there are no datasets, one is not a dataset of edcache, or their `batch_transform`s differ.
        LabelError: at the first use of `labels`: 'concat(): label "y" is int64 in one dataset and string
            in another; ...'.

    `labels` has the columns of all datasets, with null for samples of a dataset that does not have a column. It is a
    copy, made at its first use, and again after the labels of a dataset have changed. `indices` of views refer to the
    joined dataset. Each dataset keeps its transforms, and `select` chooses fields of their results. Samples that are
    appended to an archive later are not in it. If all samples of a batch have one structure, it is gathered field by
    field, archive by archive.

    >>> both = edcache.concat([ds, extra.filter(good=True)])
    """
    return Joined(Chained, [datasets] if isinstance(datasets, Samples) else list(datasets))


@cut_traceback
def zip_fields(*datasets: Samples) -> Joined:
    """Join the fields of several datasets: sample i has the fields of sample i of each; no sample is read.

    Args:
        datasets: two or more datasets of the same length, whose samples are dicts.
    Raises:
        OptionError: "zip_fields(): the datasets have 10 and 12 samples; ..."; their `batch_transform`s differ; at the
            first read, two of them have the same field.

    `labels` has the columns of all datasets. If two have a column of the same name, the first counts. Each dataset
    keeps its transforms. A read takes all fields of all datasets: `select` before zipping.

    >>> images_and_features = edcache.zip_fields(images, features.select("embedding"))
    """
    return Joined(Sides, datasets)


@cut_traceback
def variants(datasets: Iterable[Samples]) -> Joined:
    """Join datasets that have other variants of the same samples: epoch e reads dataset e mod their number.

    So cached augmentations do not repeat themselves every epoch.

    Args:
        datasets: two or more datasets of the same length, such as archives of one augmentation with several seeds.
    Raises:
        OptionError: "variants(): the datasets have 10 and 12 samples; ..."; their `batch_transform`s differ.

    A sampler of `edcache.samplers` or a loader tells the epoch, also when it goes on from a state; without one call
    `set_epoch(epoch)` before each iteration, as for seeded transforms. Labels and keys come from the first dataset.

    >>> views = [ds.with_transform(augment, seed=seed) for seed in range(4)]
    >>> ds = edcache.variants([CachedDataset(view, f"augmented-{k}.zip") for k, view in enumerate(views)])
    """
    return Joined(Turns, list(datasets))


def add(one: Samples, other: Any) -> Any:
    """Join two datasets by `concat`; by torch's ConcatDataset if the second is not of edcache."""
    return concat([one, other]) if isinstance(other, Samples) else ConcatDataset([one, other])


class Chained(SampleRoot):
    """Root of what `concat` makes. bounds: the index of the first sample of each part, and at the end the length."""

    called, shown = "concat", "Concat"

    def __init__(self, parts: Sequence[Reading]) -> None:
        super().__init__(parts)
        self.bounds = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        self.ranges = [range(start, end) for start, end in itertools.pairwise(self.bounds.tolist())]

    def find_keys(self, texts: Sequence[str]) -> Ints:
        """Return the index of the first sample with each key: int64 [n], -1 for none."""
        found = np.full(len(texts), -1)
        for part, own in zip(self.parts, self.ranges, strict=True):
            wanted = np.flatnonzero(found < 0)
            positions = found_keys(part, [texts[place] for place in wanted.tolist()])
            found[wanted] = np.where((positions < 0) | (positions >= len(own)), -1, positions + own.start)
        return found

    def label_table(self) -> Any:
        """Return the columns of all parts, null for samples of a part that lacks one."""
        tables = self.tables()
        names = list(dict.fromkeys(name for table in tables for name in table.column_names))
        if not names:
            return tables[0]
        whole = []
        for table in tables:
            nulls = pa.chunked_array([pa.nulls(len(table))])  # of a column that others have
            columns = [table.column(name) if name in table.column_names else nulls for name in names]
            plain = (c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in columns)
            whole.append(pa.table(list(plain), names=names))
        return unify(whole, "concat()", "dataset")

    def shares(self, indices: Ints, draws: Draws | None = None) -> list[Share]:
        """Divide samples by part."""
        which = np.searchsorted(self.bounds, indices, side="right") - 1
        return _divided(self.parts, which, indices - self.bounds[which])


def _divided(parts: Sequence[Reading], which: Ints, positions: Ints) -> list[Share]:
    """Make the share of each part. which, positions: number of each sample's part, and its position there."""
    order = np.argsort(which, kind="stable")
    which, positions = which[order], positions[order]
    bounds = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(which)]
    return [
        Share(parts[which[low]], positions[low:high], order[low:high])
        for low, high in itertools.pairwise(bounds)
        if low < high
    ]


class Turns(SampleRoot):
    """Root of what `variants` makes: part e mod n has the samples of epoch e."""

    called, shown, is_divided = "variants", "Variants", False
    is_seeded = True  # the epoch comes with each read

    def find_keys(self, texts: Sequence[str]) -> Ints:
        """Return the index of the first sample with each key: int64 [n], -1 for none."""
        found = found_keys(self.parts[0], texts)
        return np.where(found < len(self), found, -1)

    def label_table(self) -> Any:
        """Return the columns of the first part."""
        return self.tables()[0]

    def shares(self, indices: Ints, draws: Draws | None = None) -> list[Share]:
        """Divide samples by part, which the epoch of each draw tells."""
        assert draws is not None
        which = np.array([epoch % len(self.parts) for epoch, _ in draws], np.int64)
        return _divided(self.parts, which, indices)


class Sides(SampleRoot):
    """Root of what `zip_fields` makes: each part has fields of all samples."""

    called, shown, is_divided = "zip_fields", "Zipped", False

    def label_table(self) -> Any:
        """Return the columns of all parts. If several have one name, the first of them counts."""
        columns: dict[str, pa.ChunkedArray] = {}
        tables = self.tables()
        for table in tables:
            for name in table.column_names:
                columns.setdefault(name, table.column(name))
        return pa.table(columns) if columns else tables[0]

    def shares(self, indices: Ints, draws: Draws | None = None) -> list[Share]:
        """Give all samples to each part."""
        return [Share(part, indices, np.arange(len(indices))) for part in self.parts]

    def records(self, indices: Ints, fields: Projection | None, draws: Draws | None = None) -> Records:
        """Find the records of samples in all parts, whose samples or batches are merged."""
        return Beside([part.records(indices, draws) for part in self.parts], self._join, fields)

    def _join(self, sides: Sequence[Any]) -> dict[Any, Any]:
        """Merge the samples of all parts at one index, or their batches."""
        joined: dict[Any, Any] = {}
        for side, part in zip(sides, self.parts, strict=True):
            if not isinstance(side, Mapping):
                raise OptionError(
                    f"zip_fields() merges dicts; the samples of {part!r} are of type "
                    f'{type(side).__name__}; use select("image", ...), whose samples are dicts'
                )
            twice = next((key for key in side if key in joined), None)
            if twice is not None:
                raise OptionError(
                    f"zip_fields(): the field {twice!r} is in more than one dataset; take it from one, with "
                    "select() on the others"
                )
            joined.update(side)
        return joined


class Joined(Samples):
    """Dataset that is made of other datasets, `parts`; `concat`, `zip_fields` and `variants` make it."""

    parts: tuple[Samples, ...] = ()

    def __init__(self, root: type[SampleRoot], parts: Sequence[Samples]) -> None:
        for part in parts:
            if not isinstance(part, Samples):
                raise OptionError(
                    f"{root.called}() takes datasets of edcache, not {type(part).__name__}; "
                    "cache it first: edcache.CachedDataset(source, path)"
                )
        self.parts = tuple(parts)
        self._reading = Reading(root([reading_of(part) for part in parts]))

    __add__ = add

    def __edcache_fingerprint__(self) -> dict[str, Any]:
        """Return the identity of the samples, for a cache of them."""
        called = self._reading.root.called
        return {"joined by": called, "parts": self.parts, **self._reading.settings(), "columns": ["parts"]}
