"""Keys and versions of samples: they tell which ones an archive has.

A source with `sample_key(index)` names its samples: by text, bytes, an int, or a tuple of these. A version tells that a
sample changed: by `sample_version(index)`, or by the attributes of the source that have one value for each sample.
Samples with equal key and version are one sample. Both are label columns of the archive.

What must never happen: that two keys of different types, or a version that is another one, are taken for equal.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import EdcacheError, Ints, OptionError, SourceError, once
from edcache.format import (
    KEY_COLUMN,
    TUPLE_MARK,
    Hashes,
    Key,
    from_numpy,
    missing_rows,
    one_chunk,
    pa,
    stored_keys,
)
from edcache.identity.recipe import has_method, shared_of, tells, values_of
from edcache.identity.settings import Settings, columns_of, is_table

VERSION_COLUMN: Final = "version"
KEYED_COLUMNS: Final = KEY_COLUMN, VERSION_COLUMN
_PIECE: Final = 1 << 20  # samples whose texts are copied at once
_TOLD: Final = 1 << 16  # keys and versions that are objects of Python at once
_TOLD_APART: Final = frozenset({bool, bytes, float, int, str, type(None)})  # types whose `repr` is the value
_VIEWED: Final = frozenset("?bhilqBHILQfd")  # dtypes whose values a memoryview gives, one after another
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MASKS: Final = np.array([(1 << 8 * nbytes) - 1 for nbytes in range(9)], np.uint64)


class Keyed:
    """Keys and versions of samples, of a source or of an archive, as an archive stores them.

    Equal samples are found by hashes of 64 bits, which are sorted once. What they find is compared by all bytes, and if
    two texts have one hash, all are hashed anew, by a slow hash from another start.

    Attributes: keys: texts, bytes or integers [n]. versions: texts [n], empty ones if nothing tells them apart.
    """

    def __init__(self, keys: pa.Array, versions: pa.Array) -> None:
        self.keys, self.versions = keys, versions
        self._sorted: tuple[int, Hashes, Ints] | None = None

    @classmethod
    def of(cls, source: Any) -> Keyed | None:
        """Take keys and versions from a source; None if it has no keys.

        Raises: OptionError, its keys are of several types, or ints beyond 64 bits.
        """
        if not tells(source, "sample_key"):
            return None
        keys = _column_of(_told(source, "sample_key"))
        versions = _versions(source, keys)
        if versions is None:
            return cls.stored({KEY_COLUMN: keys})[0]
        return cls(keys, _joined([pa.array(piece, pa.string()) for piece in batched(versions)]))

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
        return cls(keys, versions).only(indices), indices

    def __len__(self) -> int:
        return len(self.keys)

    def only(self, indices: Ints) -> Keyed:
        """Keep some samples, whose indices rise."""
        if len(indices) == len(self):
            return self
        rows = from_numpy(indices, pa.int64())
        return Keyed(self.keys.take(rows), self.versions.take(rows))

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
        hashes = hashes_of((self.keys, self.versions), 0)
        hashes.sort()  # mostly no two are equal: to see that takes a third of a search
        if np.all(hashes[1:] != hashes[:-1]):
            return np.arange(len(self))
        return self.places_in(self)

    def check_kind(self, there: pa.Array | pa.ChunkedArray, path: str) -> None:
        """Raise OptionError if the keys of an archive are of another type: 1, "1" and ("1",) are three keys."""
        firsts = [*there.drop_null()[:1].to_pylist(), *self.keys[:1].to_pylist()]
        kinds = [_kind_of(key) for key in firsts]
        if len({*kinds}) > 1:
            raise OptionError(
                f"{path}: its keys are {kinds[0]}, sample_key() of the source returns {kinds[1]}; use another path, or "
                "pass keep_existing=False to build it anew"
            )

    def places_in(self, there: Keyed) -> Ints:
        """Find each sample among others: int64 [n], the first equal one, -1 for none. No key or version is null."""
        if there is not self and self._begins_with(there):  # most sources that change have grown at their end
            rest = Keyed(self.keys[len(there) :], self.versions[len(there) :])
            return np.concatenate([self.first_equal[: len(there)], rest.places_in(there)])
        start = 0
        while not self._are_equal(there, places := self._found_in(there, start)):
            start += 1
        # A look among themselves, which comes first, keeps 16 bytes a sample for the look among others.
        if there is not self:
            self._sorted = None
        return places

    def _begins_with(self, there: Keyed) -> bool:
        own = self.keys[: len(there)], self.versions[: len(there)]
        return len(there) > 0 and own[0].equals(there.keys) and own[1].equals(there.versions)

    def _found_in(self, there: Keyed, start: int) -> Ints:
        """Find the first sample with the hash of each; -1 for none."""
        places = np.full(len(self), -1)
        if len(self) and len(there):
            hashes, order = self.by_hash(start)
            found, rows = there.by_hash(start)
            at = np.minimum(np.searchsorted(found, hashes), len(found) - 1)
            places[order] = np.where(found[at] == hashes, rows[at], -1)
        return places

    def by_hash(self, start: int) -> tuple[Hashes, Ints]:
        """Return the hashes from a start, rising, and their samples; equal ones in their order."""
        if self._sorted is None or self._sorted[0] != start:
            hashes = hashes_of((self.keys, self.versions), start)
            order = np.argsort(hashes, kind="stable")
            self._sorted = start, hashes[order], order
        return self._sorted[1:]

    def _are_equal(self, there: Keyed, places: Ints) -> bool:
        """True if each sample has key and version of the one at its place; a place of -1 is passed over."""
        others = np.flatnonzero((places >= 0) & ((there is not self) | (places != np.arange(len(places)))))
        for start in range(0, len(others), _PIECE):
            rows = others[start : start + _PIECE]
            for own, found in ((self.keys, there.keys), (self.versions, there.versions)):
                if not _texts_at(own, rows).equals(_texts_at(found, places[rows])):
                    return False
        return True


def hashes_of(columns: Sequence[pa.Array], start: int) -> Hashes:
    """Hash the texts or integers of columns, row by row: uint64 [n]. Other starts give other hashes.

    The ones of start 0 are fast, and no defence: who knows them makes texts of one hash, and would from any start. The
    others are blake2b. Cost: 50 ns for texts of 16 bytes; 2 us from another start.
    """
    if start:
        return _strong_hashes(columns, start)
    hashes: Hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        for first in range(0, len(column), _PIECE):
            _mix(hashes[first : first + _PIECE], *_texts(column.slice(first, _PIECE)))
    return hashes


def _strong_hashes(columns: Sequence[pa.Array], start: int) -> Hashes:
    hashes: Hashes = np.empty(len(columns[0]), np.uint64)
    salt = start.to_bytes(8, "little")
    for first in range(0, len(hashes), _TOLD):
        rows = zip(*(_binary(column.slice(first, _TOLD)).to_pylist() for column in columns), strict=True)
        digests = [hashlib.blake2b(repr(row).encode(), digest_size=8, salt=salt).digest() for row in rows]
        hashes[first : first + _TOLD] = np.frombuffer(b"".join(digests), "<u8")
    return hashes


def _mix(hashes: Hashes, ends: Ints, data: npt.NDArray[np.uint8]) -> None:
    """Mix texts into hashes, 8 bytes at a time, and their lengths. ends: int64 [n + 1], from 0 on."""
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    words = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    at, left = ends[:-1].copy(), np.diff(ends)
    hashes ^= left.astype(np.uint64)
    rows = np.arange(len(at))
    while len(rows):
        taken = words[at[rows]] & _MASKS[np.minimum(left[rows], 8)]
        mixed = hashes[rows] ^ taken
        # First: else two texts that differ in highest bits alone could have one hash.
        mixed ^= mixed >> np.uint64(29)
        mixed *= _MULTIPLIER
        hashes[rows] = mixed ^ mixed >> np.uint64(32)
        at[rows] += 8
        left[rows] -= 8
        rows = rows[left[rows] > 0]


def _texts(column: pa.Array) -> tuple[Ints, npt.NDArray[np.uint8]]:
    """Return the ends of texts, int64 [n + 1] from 0 on, and their bytes; integers as they are written."""
    column = _binary(column)
    _, ends, data = column.buffers()
    if not len(column) or data is None:  # all are empty
        return np.zeros(len(column) + 1, np.int64), np.empty(0, np.uint8)
    own = np.frombuffer(ends, np.int64, len(column) + 1, 8 * column.offset)
    return own - own[0], np.frombuffer(data, np.uint8)[own[0] : own[-1]]


def _texts_at(column: pa.Array, rows: Ints) -> pa.Array:
    return _binary(column.take(from_numpy(rows, pa.int64())))


def _binary(column: pa.Array) -> pa.Array:
    return (column.cast(pa.string()) if pa.types.is_integer(column.type) else column).cast(pa.large_binary())


def _column_of(told: Iterator[list[Any]]) -> pa.Array:
    """Return keys as a column. Raises: OptionError, one is no key, they are of several types, or beyond 64 bits."""
    kinds, arrays = set[str](), list[pa.Array]()
    for piece in told:
        try:
            keys = stored_keys(piece)
        except OptionError as error:
            raise error.within("sample_key() of the source") from None
        kinds |= _kinds_of(keys)
        if len(kinds) > 1:
            continue
        try:
            arrays.append(pa.array(keys))
        except (pa.ArrowInvalid, UnicodeEncodeError, OverflowError) as error:
            remedy = "give ints of 64 bits, and text without lone surrogates"
            raise OptionError(f"sample_key() of the source: {error}; {remedy}") from error
    if len(kinds) > 1:
        names = " and ".join(sorted(kinds))
        raise OptionError(f"sample_key() of the source returns {names}; give keys of one type")
    return _joined(arrays)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return one_chunk(pa.chunked_array(arrays or [pa.array([], pa.string())]))


def _kinds_of(keys: Sequence[Key]) -> set[str]:
    classes = {*map(type, keys)}
    if classes == {str}:  # a call for each takes longer than all else
        return {"tuples" if is_marked else "text" for is_marked in {key[:1] == TUPLE_MARK for key in keys}}  # type: ignore[index]
    return {_kind_of(key) for key in keys} if len(classes) > 1 else {*map(_kind_of, keys[:1])}


def _kind_of(key: Key) -> str:
    if isinstance(key, str):
        return "tuples" if key.startswith(TUPLE_MARK) else "text"
    return "bytes" if isinstance(key, bytes) else "ints"


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


def versions_of(source: Any) -> list[str]:
    """Return a version of each sample of a source, as text: from `sample_version`, else from its attributes.

    Attributes are the ones with one value a sample, and what all their values share; without any, all versions are "".
    """
    shared = "".join(shared_of(source).values())
    return [shared + version for version in _versions(source, None) or itertools.repeat("", len(source))]


def _versions(source: Any, keys: pa.Array | None) -> Iterator[str] | None:
    """Make an iterator of versions; None if all are "".

    keys: of the samples. An attribute with the same values, such as a list of files, is no version.
    """
    if tells(source, "sample_version"):
        return map(repr, itertools.chain.from_iterable(_told(source, "sample_version")))
    found = (_plain(value, keys) for _, value in sorted(values_of(source).items()))
    values = [value for value in found if keys is None or not _are_same(value, keys)]
    return map(repr, zip(*values, strict=True)) if values else None


def _are_same(values: Sequence[Any], keys: pa.Array) -> bool:
    pieces = (keys.slice(start, _TOLD).to_pylist() for start in range(0, len(keys), _TOLD))
    return not any(map(operator.ne, values, itertools.chain.from_iterable(pieces)))


def guessed(source: Any) -> list[str]:
    """Name the attributes that are taken for versions; empty if `sample_version` tells them.

    It is a guess: a list that is as long as the source by chance may change every sample. So they ask.
    """
    if tells(source, "sample_version"):
        return []
    return [f"attribute {name}" for name in values_of(source)]


def _plain(values: Any, keys: pa.Array | None = None) -> Sequence[Any]:
    """Return values of samples that `repr` tells apart; of arrays and objects it is their description."""
    if is_table(values):
        columns = [_plain(column) for column in columns_of(values)]
        columns = columns if keys is None else _by_name(columns, keys.to_pylist())
        return columns[0] if len(columns) == 1 else [*zip(*columns, strict=True)]
    # The values of a masked array are described: its data do not tell the mask.
    if isinstance(values, np.ndarray | torch.Tensor) and values.ndim == 1 and not np.ma.isMA(values):
        dtype = values.dtype
        is_viewed = isinstance(dtype, np.dtype) and dtype.isnative and dtype.char in _VIEWED
        values = np.ascontiguousarray(values).data if is_viewed else values.tolist()
    if {*map(type, values)} <= _TOLD_APART:
        return values  # type: ignore[no-any-return]
    # One by one: a value of another kind is to leave the versions of the others.
    return [value if type(value) in _TOLD_APART else [*Settings().describe(value)] for value in values]


def _by_name(columns: list[Sequence[Any]], keys: list[Key]) -> list[Sequence[Any]]:
    """Return the columns in the order of the samples, if one of them names each row by a key.

    A source that lists a folder looks up the rows of a table by the names of the files. In the order of the table, a
    changed row would tell that the sample of another one changed.
    """
    orders = list[list[int]]()
    for names in columns:
        if {*map(type, names)} == {*map(type, keys)}:
            rows = {name: row for row, name in enumerate(names)}
            order = [rows[key] for key in keys if key in rows]
            if len(rows) == len(order) == len(keys):
                orders.append(order)
    if not orders or [*range(len(keys))] in orders:
        return columns
    return [[column[row] for row in orders[0]] for column in columns]
