"""Several datasets as one: `concat` one after the other, `zip_fields` side by side, `variants` one an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from torch.utils.data import ConcatDataset

from edcache.base import EdcacheError, Ints, OptionError
from edcache.dataset.ahead import Shares
from edcache.dataset.archive import info_of
from edcache.dataset.indexing import Root, Stored, not_as_stored, numbered, stored_shares
from edcache.dataset.keys import found_keys, settings_of
from edcache.dataset.transforms import Draws, extended
from edcache.dataset.view import Samples
from edcache.format import Failure, Key, pa, unify
from edcache.labels import Labels, checked_indices
from edcache.reader import (
    Beside,
    Projection,
    Reader,
    Records,
    Session,
    Several,
    Together,
    last_change,
)

# A dataset, the places of its samples among the given indices, and their positions in it.
_Share = tuple[Samples, Ints, Ints]

_OF_THIS_PROCESS = ("_together", "_labelled")
_NEVER = -1, -1


def concat(datasets: Iterable[Samples]) -> Concat:
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
    appended to an archive later are not in it. Samples of the same structure are read together, also from several
    archives; if all parts are complete, uncompressed archives of one structure, by one gather a field.

    >>> both = edcache.concat([ds, extra.filter(good=True)])
    """
    return Concat([datasets] if isinstance(datasets, Samples) else list(datasets))


def zip_fields(*datasets: Samples) -> Zipped:
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
    return Zipped(datasets)


def variants(datasets: Iterable[Samples]) -> Variants:
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
    return Variants(list(datasets))


def add(one: Samples, other: Any) -> Any:
    """Join two datasets by `concat`; by torch's ConcatDataset if the second is not of edcache."""
    return concat([one, other]) if isinstance(other, Samples) else ConcatDataset([one, other])


class Combined(Root, Samples):
    """Root that is made of other datasets. called: name of the function that makes it. parts: the datasets."""

    called = ""
    parts: tuple[Samples, ...] = ()  # set for a traceback that shows a refused one
    _labelled: tuple[Sequence[Labels], Labels | None] = (), None

    def __init__(self, parts: Sequence[Samples]) -> None:
        for part in parts:
            if not isinstance(part, Samples):
                raise OptionError(
                    f"{self.called}() takes datasets of edcache, not {type(part).__name__}; "
                    "cache it first: edcache.CachedDataset(source, path)"
                )
        if not parts:
            raise OptionError(f"{self.called}() takes at least one dataset")
        self.parts = tuple(parts)
        self._parts = self.parts
        self._batch_transform = self.parts[0]._batch_transform
        if any(part._batch_transform is not self._batch_transform for part in self.parts):
            raise OptionError(
                f"{self.called}(): the datasets have different batch_transforms; open all of them with the "
                "same one, or without"
            )
        self._is_seeded = any(part._is_seeded for part in self.parts)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _OF_THIS_PROCESS}

    def __edcache_fingerprint__(self) -> dict[str, Any]:
        """Return the identity of the samples, for a cache of them."""
        return {"parts": self.parts, **self._settings(), "columns": ["parts"]}

    def _settings(self) -> dict[str, Any]:
        of_parts = [settings_of(part) for part in self.parts]
        of_each = of_parts[0] if of_parts.count(of_parts[0]) == len(of_parts) else of_parts
        return {"each": of_each, "transform": self._transform}

    @property
    def complete(self) -> bool:
        """True if every archive is sealed, and no sample of it may still be computed."""
        return all(reader.complete for reader in self._readers)

    def info(self) -> dict[str, Any]:
        """Return the state of the archives, as `CachedDataset.info` of one.

        Numbers are sums; sealed is True if all are; labels has the columns of any; path is the list of paths, and
        archives the info of each.
        """
        infos = [info_of(reader) for reader in self._readers]
        summed = ("present", "nbytes", "mapped", "private")
        return {
            "path": [info["path"] for info in infos],
            "samples": len(self),
            "sealed": all(info["sealed"] for info in infos),
            "labels": list(dict.fromkeys(name for info in infos for name in info["labels"])),
            **{name: sum(info[name] for info in infos) for name in summed},
            "archives": infos,
        }

    def close(self) -> None:
        """Close the archives; idempotent."""
        for part in self.parts:
            part._root.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.parts):,} datasets, {len(self):,} samples)"

    @property
    def _readers(self) -> list[Reader]:
        return [reader for part in self.parts for reader in part._readers]

    def _with_readers(self, change: Callable[[Reader], Reader]) -> Root:
        return type(self)([part._reread(change) for part in self.parts])

    @property
    def labels(self) -> Labels:
        """Label columns of all samples; see the base class."""
        # They may have changed since, and lazy caches have grown.
        known = [part._root.labels for part in self.parts]
        before, made = self._labelled
        if made is None or any(a is not b for a, b in zip(before, known, strict=True)):
            made = Labels(self._label_table, num_rows=len(self))
            self._labelled = known, made
        return made

    def _label_table(self) -> Any:
        raise NotImplementedError

    def _tables(self, counts: Sequence[int]) -> list[Any]:
        """Return the label tables of the samples at the time of the call of concat() or zip_fields()."""
        return [part.labels.table.slice(0, count) for part, count in zip(self.parts, counts, strict=True)]


class Concat(Combined):
    """Samples of several datasets, one after the other; `concat` makes it.

    starts: the index of the first sample of each dataset.
    """

    called = "concat"
    __add__ = add
    _together: tuple[tuple[int, int], Together | None] = _NEVER, None
    _bounds: Ints = np.zeros(1, np.int64)

    def __init__(self, parts: Sequence[Samples]) -> None:
        super().__init__(parts)
        self._bounds = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        self.starts: list[int] = self._bounds[:-1].tolist()

    def __len__(self) -> int:
        return int(self._bounds[-1])

    @property
    def missing(self) -> Ints:
        """Indices without a record: int64 [k], sorted."""
        return np.concatenate(
            [part.missing + start for part, start in zip(self.parts, self.starts, strict=True)]
        )

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, by index, as of one archive."""
        return [
            replace(failure, index=failure.index + start)
            for part, start in zip(self.parts, self.starts, strict=True)
            for failure in part.errors
        ]

    def _find_keys(self, keys: Sequence[Key]) -> Ints:
        found = np.full(len(keys), -1)
        for part, start in zip(self.parts, self.starts, strict=True):
            wanted = np.flatnonzero(found < 0)
            positions = found_keys(part, [keys[place] for place in wanted.tolist()])
            found[wanted] = np.where(positions < 0, -1, positions + start)
        return found

    def _chunk_of(self, indices: Ints) -> Ints:
        numbers, first = np.full(len(indices), -1, np.int64), 0
        for part, places, positions in self._shares(indices):
            root = part._root
            chunks = root._chunk_of(part._root_indices(positions) % len(root))
            numbers[places] = np.where(chunks < 0, -1, chunks + first)
            first += int(chunks.max(initial=-1)) + 1
        return numbers

    def _chunk_size(self) -> int | None:
        chunks = 0
        for part, count in zip(self.parts, np.diff(self._bounds).tolist(), strict=True):
            size, step = part._root._chunk_size(), part._whole_selection().step
            if size is not None and step is not None:
                chunks += -(-count * abs(step) // size)
            elif count:
                return None
        return -(-len(self) // chunks) if chunks else None

    def _far_sessions(self) -> list[Session]:
        return [session for part in self.parts for session in part._root._far_sessions()]

    def _far_shares(self, indices: Ints) -> Shares:
        return [
            share
            for part, _, positions in self._shares(indices)
            for share in part._root._far_shares(part._root_indices(positions))
        ]

    def _join_archives(self) -> Together | None:
        """Return the archives as one; None unless all parts are whole archives of one kind, without a transform."""
        state, together = self._together
        # Cached for every batch: there may be thousands of parts.
        if state == (self._times_set, last_change()):
            return together
        sessions: list[Session] = []
        with suppress(EdcacheError):  # a closed or damaged archive; reading it raises
            sessions += filter(None, (part._plain_session() for part in self.parts if isinstance(part, Root)))
        state = self._times_set, last_change()
        known = [] if together is None else together.sessions
        if len(sessions) < max(2, len(self.parts)):
            together = None
        elif len(known) < len(sessions) or any(a is not b for a, b in zip(known, sessions, strict=True)):
            together = None
            with suppress(EdcacheError):
                together = Together.of(sessions)
        self._together = state, together
        return together

    def _records(self, indices: Ints, fields: Projection | None, draws: Draws | None = None) -> Records:
        together = self._join_archives() if fields is None and len(indices) else None
        group = None if together is None else together.group(*self._places(indices))
        if group is not None:
            return group
        parts: list[tuple[Ints, Records]] = []
        for part, places, positions in self._shares(indices, fields):
            own = None if draws is None else [draws[place] for place in places.tolist()]
            parts.append((places, records_of(part, positions, own)))
        return parts[0][1] if len(parts) == 1 else Several(parts)

    def _stored(self, indices: Ints, places: Ints) -> Iterable[Stored]:
        # Without samples, the first part returns the empty batch.
        for part, own, positions in self._shares(indices) or [(self.parts[0], indices[:0], indices[:0])]:
            yield from stored_shares(part, positions, places[own])

    def _label_table(self) -> Any:
        counts = np.diff(self._bounds).tolist()
        tables = self._tables(counts)
        names = list(dict.fromkeys(name for table in tables for name in table.column_names))
        if not names:
            return tables[0]
        whole = []
        for table, count in zip(tables, counts, strict=True):
            nulls = pa.chunked_array([pa.nulls(count)])  # of a column that others have
            columns = [table.column(name) if name in table.column_names else nulls for name in names]
            plain = (c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in columns)
            whole.append(pa.table(list(plain), names=names))
        return unify(whole, "concat()", "dataset")

    def _shares(self, indices: Ints, fields: Projection | None = None) -> list[_Share]:
        """Divide indices by dataset: each with the places of its samples, and their positions in it.

        fields: of the samples, None for all.
        """
        which, positions = self._places(indices)
        shares = []
        for k in np.unique(which).tolist():
            places, part = np.flatnonzero(which == k), self.parts[k]
            shares.append(
                (part if fields is None else _choose_fields(part, fields), places, positions[places])
            )
        return shares

    def _places(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return the number of the dataset of each sample, and its position there: int64 [n] both."""
        indices = checked_indices(indices, len(self))
        which = np.searchsorted(self._bounds, indices, side="right") - 1
        return which, indices - self._bounds[which]


class Aligned(Combined):
    """Datasets of one length: sample i is made of sample i of each, or of one of them."""

    _length = 0

    def __init__(self, parts: Sequence[Samples]) -> None:
        super().__init__(parts)
        if len(set(map(len, parts))) > 1:
            raise OptionError(
                f"{self.called}(): the datasets have {' and '.join(f'{len(part):,}' for part in parts)} samples;"
                " take the same ones of each"
            )
        self._length = len(parts[0])

    def __len__(self) -> int:
        return self._length

    @property
    def missing(self) -> Ints:
        """Indices without a record in one of the datasets: int64 [k], sorted."""
        return np.unique(np.concatenate([part.missing for part in self.parts]))

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, of all datasets."""
        return [failure for part in self.parts for failure in part.errors]

    def _stored(self, indices: Ints, places: Ints) -> NoReturn:
        raise not_as_stored(self, "they are made of several datasets")


class Variants(Aligned):
    """Dataset that reads another one of its parts each epoch; `variants` makes it."""

    called = "variants"

    def __init__(self, parts: Sequence[Samples]) -> None:
        super().__init__(parts)
        self._is_seeded = True  # the epoch comes with each read

    def _records(self, indices: Ints, fields: Projection | None, draws: Draws | None = None) -> Records:
        assert draws is not None
        indices = checked_indices(indices, len(self))
        parts = [part if fields is None else _choose_fields(part, fields) for part in self.parts]
        which = np.array([epoch % len(parts) for epoch, _ in draws], np.int64)
        shares: list[tuple[Ints, Records]] = []
        for k in np.unique(which).tolist() or [0]:
            places = np.flatnonzero(which == k)
            own = [draws[place] for place in places.tolist()]
            shares.append((places, records_of(parts[k], indices[places], own)))
        return shares[0][1] if len(shares) == 1 else Several(shares)

    def _find_keys(self, keys: Sequence[Key]) -> Ints:
        return found_keys(self.parts[0], keys)

    def _label_table(self) -> Any:
        return self._tables([len(self)] * len(self.parts))[0]


class Zipped(Aligned):
    """Fields of several datasets of one length side by side; `zip_fields` makes it."""

    called = "zip_fields"

    def _records(self, indices: Ints, fields: Projection | None, draws: Draws | None = None) -> Records:
        indices = checked_indices(indices, len(self))
        return Beside([records_of(part, indices, draws) for part in self.parts], self._join, fields)

    def _label_table(self) -> Any:
        columns: dict[str, pa.ChunkedArray] = {}
        tables = self._tables([len(self)] * len(self.parts))
        for table in tables:
            for name in table.column_names:
                columns.setdefault(name, table.column(name))
        return pa.table(columns) if columns else tables[0]

    def _join(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Merge the samples of all datasets at one index, or their batches."""
        joined: dict[Any, Any] = {}
        for part, dataset in zip(parts, self.parts, strict=True):
            if not isinstance(part, Mapping):
                raise OptionError(
                    f"zip_fields() merges dicts; the samples of {dataset!r} are of type "
                    f'{type(part).__name__}; use select("image", ...), whose samples are dicts'
                )
            twice = next((key for key in part if key in joined), None)
            if twice is not None:
                raise OptionError(
                    f"zip_fields(): the field {twice!r} is in more than one dataset; take it from one, with "
                    "select() on the others"
                )
            joined.update(part)
        return joined


# ------------------------------------------------------------------- parts of a root


def _choose_fields(part: Samples, fields: Projection) -> Samples:
    """Select fields of a part, so that reading the records is limited to them if possible."""
    own = part._fields
    if part._transform is None and (own is None or (not own.as_tuple and {*fields.paths} <= {*own.paths})):
        return part._view(fields=fields)
    return part._view(added=extended(part._added, fields.of_sample))


def records_of(part: Samples, positions: Ints, draws: Draws | None) -> Records:
    """Return the records of a part at some positions in it. draws: of each, if known."""
    own = numbered(part, positions, draws) if draws is not None and part._is_seeded else None
    return part._records_at(part._root_indices(positions), own)
