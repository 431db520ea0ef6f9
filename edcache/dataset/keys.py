"""`Keys`: keys of the samples of a dataset, and their positions; keys and versions of what a dataset is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from edcache.base import Ints, OptionError, described, shown
from edcache.dataset.indexing import Readable
from edcache.format import KEY_COLUMN, Key, keys, pa, pc


class Keys(Collection[Any]):
    """Keys of the samples of a dataset, in their order.

    A membership test costs a look-up (microseconds); iterating reads the label column.
    """

    def __init__(self, dataset: Readable[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset.labels.to_list(KEY_COLUMN))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | bytes | int | tuple) and positions_of(self._dataset, [key])[0] >= 0

    def __repr__(self) -> str:
        return f"Keys of {self._dataset!r}"


def positions_of(dataset: Readable[Any], given: Collection[Any]) -> Ints:
    """Find the first sample with each key: its position, int64 [n], -1 for none. Raises: OptionError, it is no key."""
    return found_keys(dataset, stored_keys(given))


def stored_keys(given: Collection[Any]) -> list[Key]:
    """Return keys as they are stored: text, bytes and ints as they are, of a tuple its text. Raises: OptionError."""
    if {*map(type, given)} == {str}:
        return list(given)
    stored: list[Key] = []
    for key in given:
        if isinstance(key, bool) or not isinstance(key, str | bytes | int | tuple | np.integer):
            raise OptionError(
                f"{shown(key)} is {described(key)}; a key is text, bytes, an int or a tuple of these"
            )
        stored.append(
            repr(key) if isinstance(key, tuple) else int(key) if isinstance(key, np.integer) else key
        )
    return stored


def found_keys(dataset: Readable[Any], stored: Sequence[Key]) -> Ints:
    """Find positions as `positions_of`, by keys as they are stored."""
    if dataset._selection is None:
        return dataset._root._find_keys(stored)
    # By the column: a view may lack the first of several samples with one key.
    column = dataset.labels.column(KEY_COLUMN)
    try:
        wanted = pa.array(stored, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # of another type
        return np.array(
            [found_keys(dataset, [key])[0] if len(stored) > 1 else -1 for key in stored], np.int64
        )
    found: Ints = pc.index_in(wanted, column).fill_null(-1).to_numpy().astype(np.int64)
    return found


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
            return self._source.labels.to_list(self._key)  # type: ignore[no-any-return]
        return list(map(self.sample_key, range(len(self._source))))


def source_keys(source: Any, key: str | Callable[[Any], Any] | None) -> Any:
    """Return the object whose `sample_key` and `sample_keys` name the samples of a source; None without keys."""
    if key is None and isinstance(source, Readable):
        key = KEY_COLUMN if KEY_COLUMN in source.labels else None
    if key is not None:
        return SourceKeys(source, key)
    return source if hasattr(source, "sample_key") else None


def record_versions(dataset: Readable[Any]) -> list[tuple[int, int, str]]:
    """Return of each sample the crc32, the bytes and the schema of its record.

    Raises: OptionError, samples are put together from several records.
    """
    versions: list[Any] = [None] * len(dataset)
    everything = np.arange(len(dataset))
    for root, indices, places in dataset._root._stored(dataset._root_indices(everything), everything):
        (session,) = (reader.session for reader in root._readers)
        rows, schemas = session.index.rows(indices % len(root)), session.index.schemas
        crcs = rows["crc32"] ^ keys(indices % len(root), rows)
        columns = places.tolist(), crcs.tolist(), rows["nbytes"].tolist(), rows["schema"].tolist()
        for place, crc, nbytes, schema in zip(*columns, strict=True):
            versions[place] = crc, nbytes, schemas[schema]
    return versions
