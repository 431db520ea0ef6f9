"""`Keys`: keys of the samples of a dataset, and their positions; keys and versions of what a dataset is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from edcache import identity
from edcache.base import Ints, MissingSampleError
from edcache.dataset.indexing import Readable, reading_of
from edcache.dataset.root import Reading
from edcache.format import KEY_COLUMN, key_texts, pa, pc, stored_keys, told_keys
from edcache.reader import at, steps


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
    return found_keys(reading_of(dataset), stored_keys(given))


def found_keys(reading: Reading, texts: Sequence[str]) -> Ints:
    """Find positions as `positions_of`, by the texts of keys."""
    if reading.selection is None:
        return reading.root.find_keys(texts)
    # By the column: a view may lack the first of several samples with one key.
    column = key_texts(reading.labels.column(KEY_COLUMN))
    found: Ints = pc.index_in(pa.array(texts, column.type), column, skip_nulls=True).fill_null(-1).to_numpy()
    return found.astype(np.int64)


def keys_from(source: Any, key: str | Callable[[Any], Any] | None) -> Callable[[], list[Any]] | None:
    """Return the function that names all samples of a source of `map`; None without keys.

    A cache has keys of its own if versions tell which of its samples change.
    """
    if key is None and isinstance(source, Readable):
        is_keyed = KEY_COLUMN in source.labels and stores_records(reading_of(source))
        return partial(_label_keys, source, KEY_COLUMN) if is_keyed else None
    if key is None:
        is_keyed = identity.tells(source, "sample_key")
        return partial(identity.all_of, source, "sample_key") if is_keyed else None
    if isinstance(source, Readable) and isinstance(key, str) and key in source.labels:
        return partial(_label_keys, source, key)
    return partial(_field_keys, source, key)


def _label_keys(source: Readable[Any], name: str) -> list[Any]:
    keys: list[Any] = source.labels.to_list(name)
    if None in keys:
        raise MissingSampleError(
            f"{source!r}: sample {keys.index(None)} is missing, and so is its key; take the others: "
            "ds[np.setdiff1d(np.arange(len(ds)), ds.missing)]",
            index=keys.index(None),
        )
    return told_keys(keys) if name == KEY_COLUMN else keys


def _field_keys(source: Any, key: str | Callable[[Any], Any]) -> list[Any]:
    samples = (source[index] for index in range(len(source)))
    return [key(sample) if callable(key) else at(sample, steps(sample, key, "key=")) for sample in samples]


def stores_records(reading: Reading) -> bool:
    """True if each sample is one stored record, and all parts are read alike.

    Else a record could move to a part with another transform, and keep its version.
    """
    root = reading.root
    settings = [part.settings() for part in root.parts]
    is_alike = root.is_divided and all(one == settings[0] for one in settings)
    return is_alike and not root.computes and all(map(stores_records, root.parts))


def record_versions(dataset: Readable[Any], labels: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return versions of the samples of a dataset that stores records: crc32, bytes and schema, and some labels."""
    versions: list[Any] = [None] * len(dataset)
    for share in reading_of(dataset).stored():
        schemas = share.session.index.schemas
        rows = share.session.index.unbound_rows(share.positions)
        share.session.check_same()
        columns = share.places, rows["crc32"], rows["nbytes"], rows["schema"]
        for place, crc, nbytes, schema in zip(*[column.tolist() for column in columns], strict=True):
            versions[place] = crc, nbytes, schemas[schema]
    told = [dataset.labels.to_list(name) for name in labels]
    return [(*version, *values) for version, *values in zip(versions, *told, strict=True)]
