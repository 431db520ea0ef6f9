"""Keys and versions of samples: they tell which ones an archive has.

A source with `sample_key(index)` names its samples: by text, bytes, an int, or a tuple of these. Its method
`sample_version(index)` tells that a sample changed; without one all versions are "", and a sample that is computed
again tells. Samples with equal key and version are one sample. Both are label columns of the archive.

What must never happen: that two keys of different types, or a version that is another one, are taken for equal.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache.base import EdcacheError, Ints, OptionError, SourceError, once
from edcache.format import (
    KEY_COLUMN,
    from_numpy,
    key_texts,
    missing_rows,
    one_chunk,
    pa,
    pc,
    stored_keys,
)
from edcache.identity.recipe import has_method, tells

VERSION_COLUMN: Final = "version"
KEYED_COLUMNS: Final = KEY_COLUMN, VERSION_COLUMN
_PIECE: Final = 1 << 20  # samples whose texts are copied at once
_TOLD: Final = 1 << 16  # keys and versions that are objects of Python at once


class Keyed:
    """Keys and versions of samples, of a source or of an archive, as an archive stores them.

    Attributes: keys: texts, bytes or integers [n]. versions: texts [n], empty ones without `sample_version`.
    """

    def __init__(self, keys: pa.Array, versions: pa.Array) -> None:
        self.keys, self.versions = keys, versions

    @classmethod
    def of(cls, source: Any) -> Keyed | None:
        """Take keys and versions from a source; None if it has no keys. Raises: OptionError, one is no key."""
        if not tells(source, "sample_key"):
            return None
        keys = _column_of(_told(source, "sample_key"))
        versions = batched(_versions(source))
        return cls(keys, _joined([pa.array(piece, pa.string()) for piece in versions]))

    @classmethod
    def stored(
        cls, columns: Mapping[str, pa.Array], is_present: npt.NDArray[np.bool_] | bool = True
    ) -> tuple[Keyed, Ints]:
        """Take keys and versions from the label columns of an archive; versions that it lacks are empty.

        Returns: them, and the indices of their samples, rising: the present ones that have a key and a version.
        """
        keys = columns[KEY_COLUMN]
        versions = columns.get(VERSION_COLUMN, pa.nulls(len(keys), pa.string()).fill_null(""))
        indices = np.flatnonzero(is_present & ~(missing_rows(keys) | missing_rows(versions)))
        if len(indices) < len(keys):
            rows = from_numpy(indices, pa.int64())
            keys, versions = keys.take(rows), versions.take(rows)
        return cls(keys, versions), indices

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def columns(self) -> dict[str, pa.Array]:
        """Values of the label columns that a fill adds."""
        return {KEY_COLUMN: self.keys, VERSION_COLUMN: self.versions}

    @once
    def digest(self) -> str:
        """Digest of all keys and versions in their order."""
        digest = hashlib.blake2b(str(self.keys[:1].type).encode(), digest_size=16)
        for column in (self.keys, self.versions):
            for start in range(0, len(column), _PIECE):
                ends, data = _texts(column.slice(start, _PIECE))
                digest.update(np.diff(ends).data)
                digest.update(data.data)
        return digest.hexdigest()

    @once
    def firsts(self) -> Ints:
        """Samples that are computed, rising: of equal ones the first."""
        firsts = np.flatnonzero(self.first_equal == np.arange(len(self)))
        return self.first_equal if len(firsts) == len(self) else firsts  # one array, of 8 bytes a sample

    @once
    def first_equal(self) -> Ints:
        """First sample that is equal to each: int64 [n]."""
        numbers = self._joined().dictionary_encode().indices.to_numpy()  # values as they first appear
        firsts: Ints = np.flatnonzero(np.diff(np.maximum.accumulate(numbers), prepend=-1))
        first_equal: Ints = firsts[numbers]
        return first_equal

    def check_kind(self, there: Keyed, path: str) -> None:
        """Raise OptionError if the keys of an archive are in a column of another kind, which takes none of these."""
        kinds = [_kind_of(one.keys.type) for one in (there, self) if len(one)]
        if len({*kinds}) > 1:
            raise OptionError(
                f"{path}: its keys are {kinds[0]}, sample_key() of the source returns {kinds[1]}; use another path, or "
                "pass keep_existing=False to build it anew"
            )

    def places_in(self, there: Keyed) -> Ints:
        """Find each sample among others: int64 [n], the first equal one, -1 for none. No key or version is null."""
        if self._begins_with(there):  # most sources that change have grown at their end
            rest = Keyed(self.keys[len(there) :], self.versions[len(there) :])
            return np.concatenate([self.first_equal[: len(there)], rest.places_in(there)])
        places: Ints = pc.index_in(self._joined(), there._joined()).fill_null(-1).to_numpy()
        return places.astype(np.int64)

    def _begins_with(self, there: Keyed) -> bool:
        own = self.keys[: len(there)], self.versions[: len(there)]
        return len(there) > 0 and own[0].equals(there.keys) and own[1].equals(there.versions)

    def _joined(self) -> pa.Array:
        """Join key and version of each sample; the bytes of the key, in front, say where it ends."""
        kind = pa.large_string()
        keys, versions = key_texts(self.keys).cast(kind), self.versions.cast(kind)
        return pc.binary_join_element_wise(
            pc.binary_length(keys).cast(kind), keys, versions, pa.scalar(":", kind)
        )


def _texts(column: pa.Array) -> tuple[Ints, npt.NDArray[np.uint8]]:
    """Return the ends of texts, int64 [n + 1] from 0 on, and their bytes; integers as they are written."""
    column = (column.cast(pa.string()) if pa.types.is_integer(column.type) else column).cast(
        pa.large_binary()
    )
    _, ends, data = column.buffers()
    if not len(column) or data is None:  # all are empty
        return np.zeros(len(column) + 1, np.int64), np.empty(0, np.uint8)
    own = np.frombuffer(ends, np.int64, len(column) + 1, 8 * column.offset)
    return own - own[0], np.frombuffer(data, np.uint8)[own[0] : own[-1]]


def _column_of(told: Iterator[list[Any]]) -> pa.Array:
    """Return keys as a column: of integers or bytes if all are, else of texts. Raises: OptionError, one is no key."""
    arrays = list[pa.Array]()
    for piece in told:
        try:
            arrays.append(_array_of(piece))
        except OptionError as error:
            raise error.within("sample_key() of the source") from None
    if len({array.type for array in arrays}) > 1:
        arrays = [*map(key_texts, arrays)]
    return _joined(arrays)


def _array_of(keys: list[Any]) -> pa.Array:
    kinds = {*map(type, keys)}
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        with suppress(OverflowError):
            return pa.array([*map(int, keys)], pa.int64())
    if all(issubclass(kind, bytes) for kind in kinds):
        return pa.array(keys, pa.binary())
    return pa.array(stored_keys(keys), pa.string())


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return one_chunk(pa.chunked_array(arrays or [pa.array([], pa.string())]))


def _kind_of(column: pa.DataType) -> str:
    if pa.types.is_integer(column):
        return "ints"
    return "bytes" if column in (pa.binary(), pa.large_binary()) else "text, or of several types"


def all_of(source: Any, name: str) -> list[Any]:
    """Return what a source tells of all samples, by its method of this name, or its plural, which asks once."""
    return [*itertools.chain.from_iterable(_told(source, name))]


def _told(source: Any, name: str) -> Iterator[list[Any]]:
    """Yield what a source tells of all samples, as `all_of` returns it, some at a time."""
    length, count = len(source), 0
    try:
        is_bulk = has_method(source, f"{name}s")
        values = getattr(source, f"{name}s")() if is_bulk else map(getattr(source, name), range(length))
        for piece in batched(values):
            count += len(piece)
            yield piece
    except EdcacheError:
        raise
    except Exception as error:
        raise SourceError(f"{name}() of the source raised {type(error).__name__}: {error}") from error
    if count != length:
        raise SourceError(f"{name}s() of the source returned {count:,} values for {length:,} samples")


def batched(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield lists of some values; of an array as objects of Python."""
    if isinstance(values, np.ndarray):
        yield from (values[start : start + _TOLD].tolist() for start in range(0, len(values), _TOLD))
        return
    one_by_one = iter(values)
    while piece := [*itertools.islice(one_by_one, _TOLD)]:
        yield piece


def _versions(source: Any) -> Iterator[str]:
    """Make an iterator of versions as texts."""
    if not tells(source, "sample_version"):
        return itertools.repeat("", len(source))
    return map(repr, itertools.chain.from_iterable(_told(source, "sample_version")))
