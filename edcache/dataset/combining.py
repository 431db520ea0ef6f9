"""Several datasets as one: their samples one after the other, or the fields of each sample side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from edcache.base import OptionError, Transform
from edcache.codec import Node
from edcache.dataset.reading import Ints
from edcache.dataset.roots import Root
from edcache.dataset.samples import Samples
from edcache.format import beside, stacked
from edcache.labels import Labels, checked_indices
from edcache.reader import FieldPath, Memory, NotInBulk, Projection, Special, fresh, merged

# A dataset, the places of samples among those asked for, and their positions in it.
_Share = tuple[Samples, Ints, Ints]
# A dataset, and which of the fields asked for are its own; None for all.
_Side = tuple[Samples, Projection | None]

_MOST_NAMED = 3


def concat(datasets: Iterable[Samples]) -> Concat:
    """One dataset of the samples of several caches and views, one after the other; no sample is read.

    Args:
        datasets: any number, of archives of whatever samples.
    Raises:
        OptionError: none, or something else than a dataset of edcache; different `batch_transform`s.
        LabelTypeError: at the first use of `labels`: 'concat(): label "y" is int64 in one dataset and string
            in another; ...'.

    `labels` has the columns of all of them, null where a dataset lacks one, and is a copy, made at its first
    use. `cache` and `indices` of its views refer to the whole. Each dataset keeps its transforms, and
    `select` chooses from what they make; what was appended to an archive after this call is not part of it.
    A batch from samples of one structure is read in bulk, even if they lie in several archives; other
    batches are collated from their samples.

    >>> both = edcache.concat([ds, extra.filter(good=True)])
    """
    return Concat(_checked(datasets, "concat"))


def zip_fields(*datasets: Samples) -> Zipped:
    """One dataset whose sample i has the fields of sample i of each; no sample is read.

    Args:
        datasets: two or more of one length, whose samples are dicts.
    Raises:
        OptionError: "zip_fields(): the datasets have 10 and 12 samples; ..."; different `batch_transform`s. A
            field of two of them: here, or where only a sample shows it, at the first read.

    `labels` has the columns of all of them; of a column that two have, that of the first. Each dataset is
    read in bulk where its samples allow it, and keeps its transforms.

    >>> images_and_features = edcache.zip_fields(images, features.select("embedding"))
    """
    parts = _checked(datasets, "zip_fields")
    lengths = {len(part) for part in parts}
    if len(lengths) > 1:
        raise OptionError(
            f"zip_fields(): the datasets have {' and '.join(f'{len(part):,}' for part in parts)} samples; "
            "take the same ones of each"
        )
    zipped = Zipped(parts)
    zipped.check_keys()
    return zipped


def _checked(datasets: Iterable[Samples], asked_by: str) -> list[Samples]:
    parts = [datasets] if isinstance(datasets, Samples) else list(datasets)
    for part in parts:
        if not isinstance(part, Samples):
            raise OptionError(
                f"{asked_by}() takes datasets of edcache, not {type(part).__name__}; "
                "cache it first: edcache.CachedDataset(source, path)"
            )
    if not parts:
        raise OptionError(f"{asked_by}() takes at least one dataset")
    _common_batch_transform(parts, asked_by)
    return parts


def _common_batch_transform(parts: Sequence[Samples], asked_by: str) -> Transform:
    first = parts[0]._batch_transform
    if any(part._batch_transform is not first for part in parts):
        raise OptionError(
            f"{asked_by}(): the datasets have different batch_transforms; open all of them with the same "
            "one, or without"
        )
    return first


class _Combined(Root):
    """A root that is made of other datasets."""

    _called = ""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self._parts = tuple(parts)
        self._labels: Labels | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_labels": None}

    @property
    def _batch_transform(self) -> Transform:
        return _common_batch_transform(self._parts, self._called)

    def forget_labels(self) -> None:
        """Make the label table anew at its next use: a dataset has other labels now."""
        self._labels = None

    def _one(self, index: int, fields: Projection | None) -> Any:
        return self._many(np.array([index]), fields)[0]

    def _with_image_files(self) -> Root:
        return type(self)([part._with_files() for part in self._parts])

    def _label_table(self) -> Any:
        raise NotImplementedError

    @property
    def labels(self) -> Labels:
        """The label columns of all samples; see the base class."""
        if self._labels is None:
            self._labels = Labels(self._label_table, num_rows=len(self))
        return self._labels

    def __repr__(self) -> str:
        return f"{self._chain()} ({len(self):,} samples)"

    def _chain(self) -> str:
        named = [part._chain() for part in self._parts[:_MOST_NAMED]]
        if len(self._parts) > _MOST_NAMED:
            named.append(f"{len(self._parts) - _MOST_NAMED:,} more")
        return f"{self._called}({', '.join(named)})"

    def _unsealed(self) -> list[str]:
        return [path for part in self._parts for path in part._root._unsealed()]

    def _justify(self, nbytes: int, count: int) -> None:
        for part in self._parts:
            part._root._justify(nbytes, min(count, len(part), len(part._root)))


class Concat(_Combined):
    """The samples of several datasets, one after the other; `concat` makes it."""

    _called = "concat"

    def __init__(self, parts: Sequence[Samples]) -> None:
        super().__init__(parts)
        self._starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def starts(self) -> list[int]:
        """The index of the first sample of each dataset."""
        return list(map(int, self._starts[:-1]))

    def chunk_of(self, indices: Ints) -> Ints:
        """Which chunk holds the record of each sample: int64 [n], numbered over all archives, -1 for none.

        Args:
            indices: int64 [n], each in [0, len(self)).
        Raises:
            OptionError: the samples of a dataset lie in several archives each.
        """
        numbers = np.full(len(indices), -1, np.int64)
        first = 0
        for part, places, positions in self._shares(indices):
            root = part._root
            reader = getattr(root, "reader", root)
            if not hasattr(reader, "chunk_of"):
                raise OptionError(f"the samples of {part!r} are put together, and have no chunk of their own")
            chunks = reader.chunk_of(part._root_indices(positions) % len(root))
            numbers[places] = np.where(chunks < 0, -1, chunks + first)
            first += int(chunks.max(initial=-1)) + 1
        return numbers

    def _many(self, indices: Ints, fields: Projection | None) -> list[Any]:
        samples: list[Any] = [None] * len(indices)
        for part, places, positions in self._shares(indices):
            for place, sample in zip(places.tolist(), _samples_of(part, positions, fields), strict=True):
                samples[place] = sample
        return samples

    def _collated(
        self, indices: Ints, fields: Projection | None, special: Special | None, memory: Memory
    ) -> Any:
        shares = self._shares(indices)
        if len(shares) == 1:
            part, _, positions = shares[0]
            return _collated_of(part, positions, fields, special, memory)
        if special is not None or _common(shares, fields) is None:
            return NotImplemented
        try:
            batches = [_collated_of(part, positions, fields, None, fresh) for part, _, positions in shares]
            return merged(batches, [places for _, places, _ in shares], memory)
        except Exception:  # noqa: BLE001 - sample by sample it is raised as default_collate does
            return NotImplemented

    def _collated_by(self, indices: Ints, size: int, memory: Memory) -> Iterable[Any] | None:
        shares = self._shares(indices)
        if len(shares) > 1:
            return None
        part, _, positions = shares[0]
        if part._transform is not None or part._fields is not None:
            return None
        return part._root._collated_by(part._root_indices(positions), size, memory)

    def _likeness(self, indices: Ints, fields: Projection | None) -> object:
        return _common(self._shares(indices), fields)

    def _structures(self, indices: Ints) -> tuple[Ints, list[Node | None]]:
        numbers, trees = np.zeros(len(indices), np.int64), list[Node | None]()
        for part, places, positions in self._shares(indices):
            own, found = part._root._structures(part._root_indices(positions))
            is_known = part._transform is None and part._fields is None
            numbers[places] = own + len(trees)
            trees += found if is_known else [None] * len(found)
        return numbers, trees

    def _columns(self) -> Mapping[FieldPath, str]:
        first, *others = map(_columns_of, self._parts)
        return {path: name for path, name in first.items() if all(o.get(path) == name for o in others)}

    def _keys(self) -> tuple[Any, ...] | None:
        keys = {_keys_of(part) for part in self._parts}
        return keys.pop() if len(keys) == 1 else None

    def _label_table(self) -> Any:
        counts = np.diff(self._starts).tolist()
        return stacked(_tables(self._parts, counts), counts, "concat()")

    def _shares(self, indices: Ints) -> list[_Share]:
        """The datasets that samples lie in: each with their places among the indices, and positions in it."""
        indices = checked_indices(indices, len(self))
        which = np.searchsorted(self._starts, indices, side="right") - 1
        shares = []
        for k in np.unique(which).tolist():
            places = np.flatnonzero(which == k)
            shares.append((self._parts[k], places, indices[places] - self._starts[k]))
        return shares


class Zipped(_Combined):
    """The fields of several datasets of one length side by side; `zip_fields` makes it."""

    _called = "zip_fields"

    def __init__(self, parts: Sequence[Samples]) -> None:
        super().__init__(parts)
        self._length = len(parts[0])
        self._stored_keys = [_keys_of(part) for part in parts]

    def __len__(self) -> int:
        return self._length

    @property
    def _keys_of_parts(self) -> list[tuple[Any, ...] | None]:
        """As far as they are known: a part may have been given a transform since."""
        sides = zip(self._parts, self._stored_keys, strict=True)
        return [keys if part._transform is None else None for part, keys in sides]

    def check_keys(self) -> None:
        """Refuse a field that two of the datasets have, as far as that is known without a sample."""
        known = [keys for keys in self._keys_of_parts if keys is not None]
        self._check_once([key for keys in known for key in keys])

    def _many(self, indices: Ints, fields: Projection | None) -> list[Any]:
        sides = self._sides(fields)
        if sides is None:
            assert fields is not None
            return [fields.of_sample(sample) for sample in self._many(indices, None)]
        indices = checked_indices(indices, len(self))
        columns = [_samples_of(part, indices, inner) for part, inner in sides]
        return [self._joined(sides, list(parts), fields) for parts in zip(*columns, strict=True)]

    def _collated(
        self, indices: Ints, fields: Projection | None, special: Special | None, memory: Memory
    ) -> Any:
        sides = self._sides(fields)
        if sides is None or special is not None:
            return NotImplemented
        indices = checked_indices(indices, len(self))
        try:
            batches = [_collated_of(part, indices, inner, None, memory) for part, inner in sides]
            if all(batch is NotImplemented for batch in batches):
                return NotImplemented
            for place, (part, inner) in enumerate(sides):
                if batches[place] is NotImplemented:
                    batches[place] = default_collate(_samples_of(part, indices, inner))
            return self._joined(sides, batches, fields, is_batch=True)
        except Exception:  # noqa: BLE001 - sample by sample it is raised as default_collate does
            return NotImplemented

    def _likeness(self, indices: Ints, fields: Projection | None) -> object:
        sides = self._sides(fields)
        if sides is None:
            return None
        indices = checked_indices(indices, len(self))
        likeness = [_likeness_of(part, indices, inner) for part, inner in sides]
        return None if None in likeness else (likeness, fields and (fields.paths, fields.as_tuple))

    def _columns(self) -> Mapping[FieldPath, str]:
        columns: dict[FieldPath, str] = {}
        named: set[str] = set()
        for place, part in enumerate(self._parts):
            own = _columns_of(part).items()
            columns |= {p: name for p, name in own if name not in named and self._owner(p) == place}
            named.update(part.labels)
        return columns

    def _keys(self) -> tuple[Any, ...] | None:
        known = [keys for keys in self._keys_of_parts if keys is not None]
        if len(known) < len(self._parts):
            return None
        return tuple(key for keys in known for key in keys)

    def _label_table(self) -> Any:
        return beside(_tables(self._parts, [len(self)] * len(self._parts)))

    def _sides(self, fields: Projection | None) -> list[_Side] | None:
        """Each dataset with its fields; None where it takes the samples to know whose field is whose."""
        if fields is None:
            return [(part, None) for part in self._parts]
        paths: dict[int, list[FieldPath]] = {}
        for path in fields.paths:
            owner = self._owner(path)
            if owner is None:
                return None
            paths.setdefault(owner, []).append(path)
        return [
            (self._parts[place], Projection(paths[place], fields.as_tuple, {})) for place in sorted(paths)
        ]

    def _owner(self, path: FieldPath) -> int | None:
        """The place of the dataset that has a field; None where that is not known."""
        all_keys = self._keys_of_parts
        if any(keys is None for keys in all_keys):
            return None
        readings = [path[0]] if isinstance(path, tuple) else [path]
        if isinstance(path, str):  # a key as it stands, or else keys between dots
            readings.append(path.split(".")[0])
        owners = (k for reading in readings for k, keys in enumerate(all_keys) if reading in (keys or ()))
        return next(owners, None)

    def _joined(
        self, sides: list[_Side], parts: list[Any], fields: Projection | None, is_batch: bool = False
    ) -> Any:
        """A sample, or a batch, of those of the sides."""
        if fields is not None:
            by_path: dict[FieldPath, Any] = {}
            for (_, own), part in zip(sides, parts, strict=True):
                assert own is not None
                by_path |= zip(own.paths, part if fields.as_tuple else part.values(), strict=True)
            values = [by_path[path] for path in fields.paths]
            # default_collate makes a list of tuples' columns.
            return values if is_batch and fields.as_tuple else fields.assembled(values)
        for part, dataset in zip(parts, self._parts, strict=True):
            if not isinstance(part, Mapping):
                raise OptionError(
                    f"zip_fields() merges dicts; the samples of {dataset!r} are of type "
                    f'{type(part).__name__}; use select("image", ...), whose samples are dicts'
                )
        self._check_once([key for part in parts for key in part])
        return {key: value for part in parts for key, value in part.items()}

    def _check_once(self, keys: list[Any]) -> None:
        if len(set(keys)) < len(keys):
            twice = next(key for place, key in enumerate(keys) if key in keys[:place])
            raise OptionError(
                f"zip_fields(): the field {twice!r} is in more than one dataset; take it from one, with "
                "select() on the others"
            )


# ------------------------------------------------------------------- what a root asks of its parts


def _inner_fields(part: Samples, fields: Projection | None) -> Projection | None:
    """What a part's root is to read for some fields of the part's samples, None for all.

    Raises:
        NotInBulk: the samples as the part gives them are needed.
    """
    own = part._fields
    if part._transform is not None:
        raise NotInBulk
    if fields is None or own is None:
        return own if fields is None else Projection(fields.paths, fields.as_tuple, part._root._columns())
    if own.as_tuple or any(path not in own.paths for path in fields.paths):
        raise NotInBulk
    return own.narrowed(fields.paths, fields.as_tuple)


def _samples_of(part: Samples, positions: Ints, fields: Projection | None) -> list[Any]:
    indices = part._root_indices(positions)
    try:
        return part._root._many(indices, _inner_fields(part, fields))
    except NotInBulk:
        samples = part._read_many(indices)
    return samples if fields is None else [fields.of_sample(sample) for sample in samples]


def _collated_of(
    part: Samples, positions: Ints, fields: Projection | None, special: Special | None, memory: Memory
) -> Any:
    try:
        inner = _inner_fields(part, fields)
    except NotInBulk:
        return NotImplemented
    return part._root._collated(part._root_indices(positions), inner, special, memory)


def _likeness_of(part: Samples, positions: Ints, fields: Projection | None) -> object:
    try:
        inner = _inner_fields(part, fields)
    except NotInBulk:
        return None
    return part._root._likeness(part._root_indices(positions), inner)


def _common(shares: list[_Share], fields: Projection | None) -> object:
    """The likeness of all shares; None where they differ."""
    each = (_likeness_of(part, positions, fields) for part, _, positions in shares)
    first = next(each, None)
    return first if all(likeness is not None and likeness == first for likeness in each) else None


def _columns_of(part: Samples) -> Mapping[FieldPath, str]:
    if part._transform is not None:
        return {}
    if part._fields is None:
        return part._root._columns()
    known = part._root._columns()
    held = {} if part._fields.as_tuple else part._fields.columns
    return {path: name for path, name in held.items() if known.get(path) == name}


def _keys_of(part: Samples) -> tuple[Any, ...] | None:
    if part._transform is not None:
        return None
    if part._fields is None:
        return part._root._keys()
    return None if part._fields.as_tuple else part._fields.paths


def _tables(parts: Sequence[Samples], counts: Sequence[int]) -> list[Any]:
    """The label tables of the samples that there were when the datasets were put together."""
    return [part.labels.table.slice(0, count) for part, count in zip(parts, counts, strict=True)]
