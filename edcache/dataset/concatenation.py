"""Several datasets as one, their samples one after the other; and the archives that one call opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from edcache import base
from edcache.base import ArchiveClosedError, EdcacheError, Ints, OptionError, Selection, Transform
from edcache.codec import Node
from edcache.dataset.ahead import Shares
from edcache.dataset.archive import ArchiveDataset
from edcache.dataset.indexing import Root, Stored, stored_shares
from edcache.dataset.transforms import places_of
from edcache.dataset.view import Samples, View
from edcache.format import Failure, stacked
from edcache.labels import Labels, checked_indices
from edcache.reader import (
    AnyReader,
    FieldPath,
    Group,
    Memory,
    Projection,
    Session,
    Special,
    Together,
    collated_group,
    fresh,
    last_change,
    merged,
)

# A dataset, the places of samples among those asked for, and their positions in it.
_Share = tuple[Samples, Ints, Ints]

_MOST_NAMED = 3
_OF_THIS_PROCESS = ("_together", "_common_batch_transform", "_labelled")
_NEVER = -1, -1


def concat(datasets: Iterable[Samples]) -> Concat:
    """Join several caches and views into one dataset, one after the other; no sample is read.

    Args:
        datasets: caches and views, at least one. The same one may be given more than once.
    Returns:
        A dataset whose length is the sum of their lengths.
    Raises:
        OptionError: there are no datasets, one is not a dataset of edcache, or their `batch_transform`s
            differ.
        LabelTypeError: at the first use of `labels`: 'concat(): label "y" is int64 in one dataset and string
            in another; ...'.

    `labels` has the columns of all datasets, with null for samples of a dataset that does not have a column.
    It is a copy, made at its first use, and again once the labels of a dataset have changed. `cache` and
    `indices` of views refer to the joined dataset. Each dataset keeps its transforms, and `select` chooses
    fields of their results. Samples that are appended to an archive later are not in it. Samples of the same
    structure are read together, also from several archives: where all parts are complete, uncompressed
    archives of one structure, by one gather a field.

    >>> both = edcache.concat([ds, extra.filter(good=True)])
    """
    return Concat([datasets] if isinstance(datasets, Samples) else list(datasets))


class Combined(Root, Samples):
    """A root that is made of other datasets, of so many samples; `called` is the function that makes it."""

    called = ""
    _parts: tuple[Samples, ...]
    _common_batch_transform: tuple[int, Transform] = -1, None
    _common_is_drawn: tuple[int, bool] = -1, False
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
        self._parts = tuple(parts)
        self._batch_transform  # noqa: B018 - that of all

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _OF_THIS_PROCESS}

    @property
    def _batch_transform(self) -> Transform:
        # Every batch asks for it, and there may be thousands of parts.
        times, first = self._common_batch_transform
        if times == self._times_set:
            return first
        times, first = self._times_set, self._parts[0]._batch_transform
        if any(part._batch_transform is not first for part in self._parts):
            raise OptionError(
                f"{self.called}(): the datasets have different batch_transforms; open all of them with the "
                "same one, or without"
            )
        self._common_batch_transform = times, first
        return first

    @property
    def _is_drawn(self) -> bool:  # type: ignore[override]
        # As above.
        times, is_drawn = self._common_is_drawn
        if times != self._times_set:
            is_drawn = any(part._is_seeded for part in self._parts)
            self._common_is_drawn = self._times_set, is_drawn
        return is_drawn

    @property
    def _readers(self) -> list[AnyReader]:
        return [reader for part in self._parts for reader in part._readers]

    def _with_image_files(self) -> Root:
        return type(self)([part._with_files() for part in self._parts])

    @property
    def labels(self) -> Labels:
        """The label columns of all samples; see the base class."""
        # They may have been revised since, and lazy caches have more.
        known = [part._root.labels for part in self._parts]
        before, made = self._labelled
        if made is None or any(a is not b for a, b in zip(before, known, strict=True)):
            made = Labels(self._label_table, num_rows=len(self))
            self._labelled = known, made
        return made

    def _label_table(self) -> Any:
        raise NotImplementedError

    def _tables(self, counts: Sequence[int]) -> list[Any]:
        """The label tables of the samples that there were when the datasets were put together."""
        return [part.labels.table.slice(0, count) for part, count in zip(self._parts, counts, strict=True)]

    def _chain(self) -> str:
        named = [part._chain() for part in self._parts[:_MOST_NAMED]]
        if len(self._parts) > _MOST_NAMED:
            named.append(f"{len(self._parts) - _MOST_NAMED:,} more")
        return f"{self.called}({', '.join(named)})"

    def _unsealed(self) -> list[str]:
        return [path for part in self._parts for path in part._root._unsealed()]

    def _justify(self, nbytes: int, count: int) -> None:
        for part in self._parts:
            part._root._justify(nbytes, min(count, len(part), len(part._root)))


class Concat(Combined):
    """The samples of several datasets, one after the other; `concat` makes it.

    starts: the index of the first sample of each dataset.
    """

    called = "concat"
    _together: tuple[tuple[int, int], Together | None] = _NEVER, None

    def __init__(self, parts: Sequence[Samples]) -> None:
        super().__init__(parts)
        self._bounds = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        self.starts: list[int] = self._bounds[:-1].tolist()

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def chunk_of(self, indices: Ints) -> Ints:
        """Which chunk holds the record of each sample: int64 [n], numbered over all archives, -1 for none."""
        numbers, first = np.full(len(indices), -1, np.int64), 0
        for part, places, positions in self._shares(indices):
            reader, root = _chunked(part), part._root
            chunks = reader.chunk_of(part._root_indices(positions) % len(root))
            numbers[places] = np.where(chunks < 0, -1, chunks + first)
            first += int(chunks.max(initial=-1)) + 1
        return numbers

    def chunk_size(self) -> int | None:
        """The number of samples in a chunk, on average; None if those of a part do not lie in their order."""
        chunks = 0
        for part, count in zip(self._parts, np.diff(self._bounds).tolist(), strict=True):
            size, step = _chunked(part).chunk_size(), part._whole_selection().step
            if size is not None and step is not None:
                chunks += -(-count * abs(step) // size)
            elif count:
                return None
        return -(-len(self) // chunks) if chunks else None

    def _far_sessions(self) -> list[Session]:
        return [session for part in self._parts for session in part._root._far_sessions()]

    def _far_shares(self, indices: Ints) -> Shares:
        return [
            share
            for part, _, positions in self._shares(indices)
            for share in part._root._far_shares(part._root_indices(positions))
        ]

    def _joint(self) -> Together | None:
        """The archives as one, where all parts are whole ones of one kind and nothing transforms samples."""
        state, together = self._together
        # Every batch asks for it, and there may be thousands of parts.
        if state == (self._times_set, last_change()):
            return together
        sessions: list[Session] = []
        with suppress(EdcacheError):  # of an archive that is closed or damaged; reading it raises
            sessions += filter(None, map(_plain_session, self._parts))
        state = self._times_set, last_change()
        known = [] if together is None else together.sessions
        if len(sessions) < max(2, len(self._parts)):
            together = None
        elif len(known) < len(sessions) or any(a is not b for a, b in zip(known, sessions, strict=True)):
            together = None
            with suppress(EdcacheError):
                together = Together.of(sessions)
        self._together = state, together
        return together

    def _group(self, indices: Ints, fields: Projection | None) -> Group | None:
        """Samples as records of all archives at once; None where they are to be read share by share."""
        together = self._joint() if fields is None and len(indices) else None
        return None if together is None else together.group(*self._places(indices))

    def _many(self, indices: Ints, fields: Projection | None) -> list[Any]:
        group = self._group(indices, fields)
        if group is not None:
            with suppress(EdcacheError):  # whatever is wrong is named by the way below
                return group.decoded(copy=True)
        samples: list[Any] = [None] * len(indices)
        for part, places, positions in self._shares(indices):
            for place, sample in zip(
                places.tolist(), samples_of(part, positions, fields, places), strict=True
            ):
                samples[place] = sample
        return samples

    def _collated(
        self, indices: Ints, fields: Projection | None, special: Special | None, memory: Memory
    ) -> Any:
        group = self._group(indices, fields)
        if group is not None:
            return collated_group(group, special, memory)
        shares = self._shares(indices)
        if len(shares) == 1:
            part, _, positions = shares[0]
            return collated_of(part, positions, fields, special, memory)
        if special is not None or _common(shares, fields) is None:
            return NotImplemented
        try:
            batches = [collated_of(part, positions, fields, None, fresh) for part, _, positions in shares]
            return merged(batches, [places for _, places, _ in shares], memory)
        except Exception:  # noqa: BLE001 - sample by sample it is raised as default_collate does
            return NotImplemented

    def _likeness(self, indices: Ints, fields: Projection | None) -> object:
        if fields is None and self._joint() is not None:
            return likeness_of(self._parts[0], np.zeros(1, np.int64), None)
        return _common(self._shares(indices), fields)

    def _structures(self, indices: Ints) -> tuple[Ints, list[Node | None]]:
        numbers, trees = np.zeros(len(indices), np.int64), list[Node | None]()
        for part, places, positions in self._shares(indices):
            own, structures = part._root._structures(part._root_indices(positions))
            is_known = part._transform is None and part._fields is None
            numbers[places] = own + len(trees)
            trees += structures if is_known else [None] * len(structures)
        return numbers, trees

    def _columns(self) -> Mapping[FieldPath, str]:
        first, *others = map(columns_of, self._parts)
        return {path: name for path, name in first.items() if all(o.get(path) == name for o in others)}

    def _keys(self) -> tuple[Any, ...] | None:
        keys = {keys_of(part) for part in self._parts}
        return keys.pop() if len(keys) == 1 else None

    def _stored(self, indices: Ints, places: Ints) -> Iterable[Stored]:
        # Of no samples those of the first part are none.
        for part, own, positions in self._shares(indices) or [(self._parts[0], indices[:0], indices[:0])]:
            yield from stored_shares(part, positions, places[own])

    def _label_table(self) -> Any:
        counts = np.diff(self._bounds).tolist()
        return stacked(self._tables(counts), counts, "concat()")

    def _shares(self, indices: Ints) -> list[_Share]:
        """The datasets that samples lie in: each with their places among the indices, and positions in it."""
        which, positions = self._places(indices)
        shares = []
        for k in np.unique(which).tolist():
            places = np.flatnonzero(which == k)
            shares.append((self._parts[k], places, positions[places]))
        return shares

    def _places(self, indices: Ints) -> tuple[Ints, Ints]:
        """The number of the dataset that each sample lies in, and its position there: int64 [n] both."""
        indices = checked_indices(indices, len(self))
        which = np.searchsorted(self._bounds, indices, side="right") - 1
        return which, indices - self._bounds[which]


class Several(Samples):
    """The samples of several archives, in order; `CachedDataset.from_cache` makes it.

    It can do what `edcache.concat` of them can, and `refresh`. Its views are of what was there when they were
    made: they stay the same samples when an archive grows. Its transforms are set for all `archives`.
    """

    def __init__(self, archives: Sequence[ArchiveDataset]) -> None:
        self._caches = self.archives = tuple(archives)
        self._concat = concat(self.archives)

    def __repr__(self) -> str:
        try:
            count = len(self) - sum(archive.reader.present for archive in self.archives)
        except ArchiveClosedError:
            return f"Several({len(self.archives):,} archives, closed)"
        state = "" if self.complete else f", {count:,} missing" if count else ", not all sealed"
        return f"{self._chain()} ({len(self):,} samples{state})"

    @property
    def _root(self) -> Concat:
        return self._concat

    @property
    def transform(self) -> Transform:
        """The transform that all archives have; to set it sets that of each."""
        return self.archives[0].transform

    @transform.setter
    def transform(self, function: Transform) -> None:
        for archive in self.archives:
            archive.transform = function

    @property
    def paths(self) -> list[str]:
        """Of the archives, in order."""
        return [archive.path for archive in self.archives]

    @property
    def complete(self) -> bool:
        """Whether every archive is: sealed, and without a sample that may still be computed."""
        return all(archive.complete for archive in self.archives)

    @property
    def missing(self) -> Ints:
        """The indices without a record: int64 [k], sorted."""
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
        return self._view(".available()", selection=Selection(np.concatenate(indices)))

    def info(self) -> dict[str, Any]:
        """The state of the archives, and what reading them takes in this process, as of one archive.

        Numbers are sums, sealed is whether all are, labels has the columns of any; path is the list of paths,
        and archives the info of each.
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
        changed = True in [archive.refresh() for archive in self.archives]
        if changed and len(self) != sum(map(len, self.archives)):
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

    def _placed(self) -> Iterable[tuple[ArchiveDataset, int]]:
        """Each archive, and the index of its first sample."""
        return zip(self.archives, self._concat.starts, strict=True)


# ------------------------------------------------------------------- what a root asks of its parts


def _chunked(part: Samples) -> Any:
    """What has the chunks of a part: its reader, or what it is a concatenation of."""
    reader = getattr(part._root, "reader", part._root)
    if not hasattr(reader, "chunk_of"):
        raise OptionError(f"the samples of {part!r} are put together, and have no chunk of their own")
    return reader


def _plain_session(part: Any) -> Session | None:
    """What is open of a part that is an archive as it is stored; None for any other part."""
    is_plain = isinstance(part, ArchiveDataset) and part._transform is None and part._filler is None
    is_plain = is_plain and not part._is_drawn
    return part.reader.session if is_plain and not part.zero_copy else None


def _inner_fields(part: Samples, fields: Projection | None) -> Any:
    """What a part's root is to read for some fields of the part's samples, None for all of them.

    NotImplemented where the samples as the part gives them are needed.
    """
    own = part._fields
    if part._transform is not None:
        return NotImplemented
    if fields is None or own is None:
        return own if fields is None else Projection(fields.paths, fields.as_tuple, part._root._columns())
    if own.as_tuple or any(path not in own.paths for path in fields.paths):
        return NotImplemented
    return own.narrowed(fields.paths, fields.as_tuple)


def samples_of(
    part: Samples, positions: Ints, fields: Projection | None, places: Ints | None = None
) -> list[Any]:
    """The samples of a part at some positions in it, or some fields of them.

    Args:
        places: int64 [n], which of the samples that are being read these are; None for all of them.
    """
    indices, inner = part._root_indices(positions), _inner_fields(part, fields)
    turns = base.turns() if part._is_seeded else None
    if turns is not None:
        own = places_of(part, positions)
        which = range(len(turns)) if places is None else places.tolist()
        turns = [turns[k]._replace(place=turns[k].place or at) for k, at in zip(which, own, strict=True)]
    if inner is not NotImplemented:
        with base.reading(turns):
            return part._root._many(indices, inner)
    samples = part._read_many(indices, turns)
    return samples if fields is None else [fields.of_sample(sample) for sample in samples]


def collated_of(
    part: Samples, positions: Ints, fields: Projection | None, special: Special | None, memory: Memory
) -> Any:
    """The same collated; NotImplemented where default_collate must see them."""
    inner = _inner_fields(part, fields)
    if inner is NotImplemented:
        return NotImplemented
    return part._root._collated(part._root_indices(positions), inner, special, memory)


def likeness_of(part: Samples, positions: Ints, fields: Projection | None) -> object:
    """See `Root._likeness`, of the samples of a part."""
    inner = _inner_fields(part, fields)
    return None if inner is NotImplemented else part._root._likeness(part._root_indices(positions), inner)


def _common(shares: list[_Share], fields: Projection | None) -> object:
    """The likeness of all shares; None where they differ."""
    each = (likeness_of(part, positions, fields) for part, _, positions in shares)
    first = next(each, None)
    return first if all(likeness is not None and likeness == first for likeness in each) else None


def columns_of(part: Samples) -> Mapping[FieldPath, str]:
    """See `Root._columns`, of the samples of a part."""
    if part._transform is not None:
        return {}
    known = part._root._columns()
    if part._fields is None:
        return known
    held = {} if part._fields.as_tuple else part._fields.columns
    return {path: name for path, name in held.items() if known.get(path) == name}


def keys_of(part: Samples) -> tuple[Any, ...] | None:
    """See `Root._keys`, of the samples of a part."""
    if part._transform is not None:
        return None
    if part._fields is None:
        return part._root._keys()
    return None if part._fields.as_tuple else part._fields.paths
