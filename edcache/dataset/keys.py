"""`Keys`: keys of the samples of a dataset, and their positions; keys and versions of what a dataset is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from edcache import identity
from edcache.base import Ints, MissingSampleError, OptionError
from edcache.dataset.indexing import Readable
from edcache.format import KEY_COLUMN, Key, pa, pc, stored_keys, told_keys


class Keys(Collection[Any]):
    """Keys of the samples of a dataset, in their order.

    A membership test costs a look-up (microseconds); iterating reads the label column.
    """

    def __init__(self, dataset: Readable[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        return iter(told_keys(self._dataset.labels.to_list(KEY_COLUMN)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | bytes | int | tuple) and positions_of(self._dataset, [key])[0] >= 0

    def __repr__(self) -> str:
        return f"Keys of {self._dataset!r}"


def positions_of(dataset: Readable[Any], given: Collection[Any]) -> Ints:
    """Find the first sample with each key: its position, int64 [n], -1 for none. Raises: OptionError, it is no key."""
    return found_keys(dataset, stored_keys(given))


def found_keys(dataset: Readable[Any], stored: Sequence[Key]) -> Ints:
    """Find positions as `positions_of`, by keys as they are stored."""
    if dataset._selection is None:
        return dataset._root._find_keys(stored)
    # By the column: a view may lack the first of several samples with one key.
    column = dataset.labels.column(KEY_COLUMN)
    found: Ints = pc.index_in(_of_type(stored, column.type), column, skip_nulls=True).fill_null(-1).to_numpy()
    return found.astype(np.int64)


def _of_type(stored: Sequence[Key], kind: pa.DataType) -> pa.Array:
    """Return keys as a column of a type, null in the place of others: 1, "1" and b"1" are three keys."""
    if pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        fits = [type(key) is int and limits.min <= key <= limits.max for key in stored]
    else:
        own = str if pa.types.is_string(kind) or pa.types.is_large_string(kind) else bytes
        fits = [type(key) is own for key in stored]
    return pa.array([key if is_one else None for key, is_one in zip(stored, fits, strict=True)], kind)


class SourceKeys:
    """Keys and versions of the samples of a dataset that is computed from.

    key: as of `map`.
    """

    def __init__(self, source: Any, key: str | Callable[[Any], Any]) -> None:
        self._source, self._key = source, key
        self._is_label = isinstance(source, Readable) and isinstance(key, str) and key in source.labels

    def sample_key(self, index: int) -> Any:
        """Return the key of a sample."""
        if self._is_label:
            return self._source.labels.take([index]).to_list(self._key)[0]
        sample = self._source[index]
        return self._key(sample) if callable(self._key) else sample[self._key]

    def sample_keys(self) -> list[Any]:
        """Return the keys of all samples."""
        if self._is_label:
            keys: list[Any] = self._source.labels.to_list(self._key)
            if None in keys:
                raise MissingSampleError(
                    f"{self._source!r}: sample {keys.index(None)} is missing, and so is its key; take the others: "
                    "ds[np.setdiff1d(np.arange(len(ds)), ds.missing)]",
                    index=keys.index(None),
                )
            return keys
        return list(map(self.sample_key, range(len(self._source))))


def source_keys(source: Any, key: str | Callable[[Any], Any] | None) -> Any:
    """Return the object whose `sample_key` and `sample_keys` name the samples of a source; None without keys.

    A cache has keys of its own if versions tell which of its samples change.
    """
    if key is not None:
        return SourceKeys(source, key)
    if isinstance(source, Readable):
        has_own = KEY_COLUMN in source.labels and stores_records(source)
        return SourceKeys(source, KEY_COLUMN) if has_own else None
    return source if identity.has_method(source, "sample_key") else None


def stores_records(dataset: Readable[Any]) -> bool:
    """True if each sample of a dataset is one record of an archive, and none is computed at its read."""
    if dataset._root._computes:
        return False
    try:
        dataset._root._stored(np.empty(0, np.int64), np.empty(0, np.int64))
    except OptionError:
        return False
    return True


def settings_of(dataset: Readable[Any]) -> dict[str, Any]:
    """Describe what the samples of a dataset that stores records depend on beside these, for a cache of them."""
    own = {"fields": dataset._fields, "then": dataset._added}
    return dataset._root._settings() | {name: one for name, one in own.items() if one is not None}


class RecordVersions:
    """Versions of the samples of a dataset that stores records: crc32, bytes and schema, and some labels."""

    def __init__(self, dataset: Readable[Any], labels: Sequence[str]) -> None:
        self._dataset, self._labels = dataset, labels

    def sample_version(self, index: int) -> tuple[Any, ...]:
        """Return the version of a sample."""
        return self._versions(np.array([index]))[0]

    def sample_versions(self) -> list[tuple[Any, ...]]:
        """Return the versions of all samples."""
        return self._versions(np.arange(len(self._dataset)))

    def _versions(self, positions: Ints) -> list[tuple[Any, ...]]:
        dataset = self._dataset
        versions: list[Any] = [None] * len(positions)
        indices = dataset._root_indices(positions)
        for root, own, places in dataset._root._stored(indices, np.arange(len(positions))):
            (session,) = (reader.session for reader in root._readers)
            samples, schemas = own % len(root), session.index.schemas
            rows = session.index.unbound_rows(samples)
            columns = places, rows["crc32"], rows["nbytes"], rows["schema"]
            for place, crc, nbytes, schema in zip(*[column.tolist() for column in columns], strict=True):
                versions[place] = crc, nbytes, schemas[schema]
        if not self._labels:
            return versions
        labels = dataset.labels.take(positions)
        told = zip(*[labels.to_list(name) for name in self._labels], strict=True)
        return [(*version, *values) for version, values in zip(versions, told, strict=True)]


def source_versions(source: Any, labels: Sequence[str]) -> Any:
    """Return the object whose `sample_version` tells changes of samples of a source; None if nothing tells them.

    labels: names of the label columns of a cache whose values count.
    """
    if isinstance(source, Readable):
        return RecordVersions(source, labels) if stores_records(source) else None
    return source
