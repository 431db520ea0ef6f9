"""Keys as a file has them, and the table of an archive's keys: to the number of a sample, by sorted hashes.

The text of a key is the key itself, if it is text. Of any other key, and of a text that begins with a zero or is no
UTF-8, it is a zero and the key as Python writes it. So 1, "1", b"1" and (1,) are four keys, and keys of all kinds fit
into one column. A column of integers or bytes has keys too; a look-up goes by the text of each.

A payload has three arrays of n items: the upper and the lower half of the hash of each text, rising, u64; and the
sample, i64. Of a key that several samples have it names the first. Behind them lie the crc32s of blocks of 64 KiB, so
that a look-up reads and checks what it touches alone.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from edcache.base import CorruptArchiveError, Ints, OptionError, described, shown
from edcache.format.arrays import is_text, pa, pc
from edcache.format.entries import crc32
from edcache.format.records import BLOCK_NBYTES, behind_nbytes, block_crc32s

KEYS_NAME: Final = "index.keys"
KEY_COLUMN: Final = "key"
"""Label column whose values, texts, bytes or integers, are found by the table."""

_MARK: Final = "\0"  # begins the text of a key that is written as Python does

Key: TypeAlias = str | bytes | int
"""Value of a column of keys."""

Hashes: TypeAlias = "npt.NDArray[np.uint64]"
_PIECE: Final = 1 << 16  # keys that are Python objects at once


def key_list(given: Iterable[Any]) -> list[Any]:
    """List several keys. Raises: OptionError, it is one key, whose letters would be taken for keys."""
    if isinstance(given, str | bytes):
        raise OptionError(f"{given!r:.60} is one key; give a list of keys")
    return list(given)


def stored_keys(given: Collection[object]) -> list[str]:
    """Return the texts of keys. Raises: OptionError, one is no key, or a part of one is none."""
    if {*map(type, given)} == {str}:  # most are; a call for each takes ten times as long
        together = "".join(given)  # type: ignore[arg-type]
        if together.isascii() and _MARK not in together:
            return list(given)  # type: ignore[arg-type]
    return [_text_of(key) for key in given]


def _text_of(key: object) -> str:
    plain = _plain(key, key)
    with suppress(UnicodeEncodeError):  # of a lone surrogate, as in the name of a file
        if isinstance(plain, str) and not plain.encode().startswith(b"\0"):
            return plain
    return written_key(plain)


def written_key(key: object) -> str:
    """Write a value behind a zero, in ASCII: newer releases of Python print more letters."""
    return _MARK + ascii(key)


def key_texts(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the texts of the keys of a column; null for a value that is none. A column of text has them already."""
    if pa.types.is_integer(column.type):
        return pc.binary_join_element_wise(_MARK, column.cast(pa.string()), "")
    if column.type in (pa.binary(), pa.large_binary()):
        return pa.array(
            [None if key is None else written_key(key) for key in column.to_pylist()], pa.string()
        )
    return column if has_keys(column.type) else pa.nulls(len(column), pa.string())


def told_keys(stored: Iterable[Key]) -> list[Any]:
    """Return keys of a column as they were given."""
    return [_told(key) if isinstance(key, str) and key.startswith(_MARK) else key for key in stored]


def shown_key(key: object) -> str:
    """Return a short text of a key for an error; of a tuple with its parts."""
    if isinstance(key, str) and key.startswith(_MARK):
        key = _told(key)
    if not isinstance(key, tuple):
        return shown(key)
    return f"({', '.join(map(shown_key, key))}{',' * (len(key) == 1)})"


def _told(text: str) -> Any:
    written = text.removeprefix(_MARK)
    try:
        return int(written) if written.lstrip("-").isdecimal() else ast.literal_eval(written)
    except (SyntaxError, ValueError):  # no text of a key
        return text


def _plain(part: object, key: object) -> Any:
    """Return a key, or a part of one, in types of Python: of text from numpy, or of an enum, the bare text."""
    if isinstance(part, tuple):
        return tuple(_plain(one, key) for one in part)
    if isinstance(part, str):
        return str.__str__(part)
    if isinstance(part, bytes):
        return bytes(part)
    if isinstance(part, int | np.integer) and not isinstance(part, bool):
        return int(part)
    whose = "" if part is key else f"the part {shown(part)} of the key "
    raise OptionError(
        f"{whose}{shown_key(key)} is {described(part)}; a key is text, bytes, an int or a tuple of these"
    )


def has_keys(kind: pa.DataType) -> bool:
    """True if the values of a label column of this type are keys."""
    return is_text(kind) or pa.types.is_integer(kind)


def key_hashes(texts: Iterable[str]) -> Hashes:
    """Hash the texts of keys: uint64 [n, 2], the halves of a blake2b of 16 bytes."""
    blake2b = hashlib.blake2b
    data = b"".join([blake2b(text.encode(), digest_size=16).digest() for text in texts])
    return np.frombuffer(data, ">u8").reshape(-1, 2).astype(np.uint64)


def column_hashes(column: pa.Array | pa.ChunkedArray) -> Hashes:
    """Hash the keys of a column without nulls, as `key_hashes` does."""
    hashes = np.empty((len(column), 2), np.uint64)
    for start in range(0, len(column), _PIECE):
        hashes[start : start + _PIECE] = key_hashes(key_texts(column.slice(start, _PIECE)).to_pylist())
    return hashes


def pack_keys(hashes: Hashes, samples: Ints) -> tuple[memoryview, int, int]:
    """Pack the payload for the hashes of samples; returns it, its crc32 as of `KeyTable`, and the count.

    Cost: 0.1 us a key; a tenth of it for hashes that rise, with few others behind them, which are merged.
    """
    upper, lower = hashes[:, 0], hashes[:, 1]
    order = np.argsort(upper, kind="stable")  # timsort: it merges runs that rise
    tied = np.flatnonzero(np.diff(upper[order]) == 0)
    if len(tied):  # keys that repeat, or whose hashes have one upper half
        rows = np.union1d(tied, tied + 1)
        own = order[rows]
        order[rows] = own[np.lexsort((samples[own], lower[own], upper[own]))]
        order = np.delete(order, tied[lower[order[tied]] == lower[order[tied + 1]]] + 1)
    nbytes = 24 * len(order)
    payload = np.empty(nbytes + behind_nbytes(nbytes), np.uint8)
    table = payload[:nbytes].view("<u8").reshape(3, len(order))
    for row, values in zip(table, (upper, lower, samples), strict=True):
        row[:] = values[order]
    behind = block_crc32s(payload.data[:nbytes])
    payload[nbytes:] = np.frombuffer(behind, np.uint8)
    return payload.data, crc32(behind or payload.data), len(order)


class KeyTable:
    """Table of keys in memory, mapped or read; blocks are checked when a look-up first touches them.

    data: the payload. crc: of the crc32s of its blocks, or of its one block. count: of keys. length: samples of the
    archive. where: its path in messages. Raises: CorruptArchiveError, the crc32s are of another table.
    """

    def __init__(self, data: memoryview, crc: int, count: int, length: int, where: str) -> None:
        self._data, self._where, self._length, self.count = data, where, length, count
        behind = data[24 * count :]
        if len(data) < 24 * count or len(behind) != behind_nbytes(24 * count):
            raise CorruptArchiveError(
                f"{where}: index.keys has {len(data):,} bytes for {count:,} keys", path=where
            )
        if behind and crc32(behind) != crc:
            raise self._damaged()
        self._upper, self._lower, self._sample = np.frombuffer(data, "<u8", 3 * count).reshape(3, count)
        self._crcs = np.array(np.frombuffer(behind, "<u4") if behind else [crc], np.uint32)
        self._is_sound = np.zeros(len(self._crcs), np.bool_)

    def items(self) -> tuple[Hashes, Hashes, Ints]:
        """Return the halves of the hashes, and the samples, after a check of all. Raises: CorruptArchiveError."""
        self._check(np.arange(0, 3 * self.count, BLOCK_NBYTES // 8))
        samples = self._sample.astype(np.int64)
        self._check_samples(samples)
        return self._upper, self._lower, samples

    def find(self, hashes: Hashes) -> Ints:
        """Return the sample of each hash, uint64 [n, 2]: int64 [n], -1 for none. Raises: CorruptArchiveError."""
        wanted, lower = np.ascontiguousarray(hashes[:, 0]), hashes[:, 1]
        found = np.full(len(wanted), -1, np.int64)
        at = np.searchsorted(self._upper, wanted)
        self._check_bounds(at, wanted)
        open_rows = np.arange(len(wanted))
        while len(open_rows):  # once, unless two keys share the upper half of their hashes
            open_rows = open_rows[at[open_rows] < self.count]
            places = at[open_rows]
            self._check(places)
            open_rows = open_rows[self._upper[places] == wanted[open_rows]]
            places = at[open_rows]
            self._check(places + self.count)
            is_same = self._lower[places] == lower[open_rows]
            self._check(places[is_same] + 2 * self.count)
            found[open_rows[is_same]] = self._sample[places[is_same]].astype(np.int64)
            open_rows = open_rows[~is_same]
            at[open_rows] += 1
        self._check_samples(found)
        return found

    def _check_samples(self, samples: Ints) -> None:
        if len(samples) and (int(samples.max()) >= self._length or int(samples.min()) < -1):
            raise CorruptArchiveError(
                f"{self._where}: index.keys names samples that are not there", path=self._where
            )

    def _check_bounds(self, at: Ints, wanted: Hashes) -> None:
        """Prove the search: around each place are hashes below, and not below, the wanted one."""
        before = at[at > 0] - 1
        self._check(before)
        behind = at[at < self.count]
        self._check(behind)
        if np.any(self._upper[before] >= wanted[at > 0]) or np.any(
            self._upper[behind] < wanted[at < self.count]
        ):
            self._check(np.arange(0, self.count))  # the search was led astray by a damaged hash
            raise CorruptArchiveError(f"{self._where}: index.keys is not sorted", path=self._where)

    def _check(self, items: Ints) -> None:
        """Check the blocks of some items of the three arrays, which are counted through."""
        blocks = items * 8 // BLOCK_NBYTES
        new = blocks[~self._is_sound[blocks]]
        for block in np.unique(new).tolist() if len(new) else ():
            end = min((block + 1) * BLOCK_NBYTES, 24 * self.count)
            if crc32(self._data[block * BLOCK_NBYTES : end]) != self._crcs[block]:
                raise self._damaged()
            self._is_sound[block] = True

    def _damaged(self) -> CorruptArchiveError:
        return CorruptArchiveError(
            f"{self._where}: index.keys fails its crc32; "
            f'"edcache copy {self._where} -o NEW --skip-damaged" writes another',
            path=self._where,
        )
