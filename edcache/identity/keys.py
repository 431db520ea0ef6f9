"""Keys and versions of samples: they tell which ones an archive has.

A source with `sample_key(index)` names its samples: by text, bytes, an int, or a tuple of these. A version tells that a
sample changed: by `sample_version(index)`, or by the attributes of the source that have one value for each sample.
Samples with equal key and version are one sample. Both are label columns of the archive.

What must never happen: that two keys of different types, or a version that is another one, are taken for equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import EdcacheError, Ints, OptionError, SourceError, once
from edcache.format import KEY_COLUMN, TUPLE_MARK, Key, pa, pc, stored_keys
from edcache.identity.recipe import has_method, tells, values_of
from edcache.identity.settings import Settings

VERSION_COLUMN: Final = "version"
KEYED_COLUMNS: Final = KEY_COLUMN, VERSION_COLUMN


class Keyed:
    """Keys and versions of the samples of a source.

    Attributes: keys: one for each sample, as they are stored. versions: texts, empty ones if nothing tells them apart.
    """

    def __init__(self, keys: list[Key], versions: list[str]) -> None:
        self.keys, self.versions = keys, versions

    @classmethod
    def of(cls, source: Any) -> Keyed | None:
        """Take keys and versions from a source; None if it has no keys."""
        if not tells(source, "sample_key"):
            return None
        try:
            keys = stored_keys(all_of(source, "sample_key"))
        except OptionError as error:
            raise error.within("sample_key() of the source") from None
        return cls(keys, versions_of(source, keys))

    def only(self, indices: Ints) -> Keyed:
        """Keep some samples."""
        chosen = indices.tolist()
        return Keyed([self.keys[index] for index in chosen], [self.versions[index] for index in chosen])

    @property
    def columns(self) -> dict[str, list[Any]]:
        """Values of the label columns that a fill adds."""
        return {KEY_COLUMN: self.keys, VERSION_COLUMN: self.versions}

    @once
    def digest(self) -> str:
        """Digest of all keys and versions in their order."""
        return hashlib.blake2b(repr((self.keys, self.versions)).encode(), digest_size=16).hexdigest()

    @once
    def stored(self) -> pa.Array:
        """Keys as an archive has them. Raises: OptionError, they are of several types, or ints beyond 64 bits."""
        kinds = sorted({_kind_of(key) for key in self.keys})
        if len(kinds) > 1:
            raise OptionError(
                f"sample_key() of the source returns {' and '.join(kinds)}; give keys of one type"
            )
        try:
            return pa.array(self.keys, None if self.keys else pa.string())
        except (pa.ArrowInvalid, UnicodeEncodeError, OverflowError) as error:
            remedy = "give ints of 64 bits, and text without lone surrogates"
            raise OptionError(f"sample_key() of the source: {error}; {remedy}") from error

    @once
    def texts(self) -> pa.Array:
        """Key and version of each sample, see `joined`."""
        return joined(self.stored, pa.array(self.versions, pa.string()))

    @once
    def firsts(self) -> Ints:
        """Samples that are computed, rising: of equal ones the first."""
        return np.unique(self.repeats, return_index=True)[1]

    @once
    def repeats(self) -> Ints:
        """Place of each sample among the first ones: int64 [n]."""
        if pc.count_distinct(self.texts).as_py() == len(self.texts):
            return np.arange(len(self.texts))
        # In the order in which they appear.
        places: Ints = pc.index_in(self.texts, pc.unique(self.texts)).to_numpy().astype(np.int64)
        return places

    def check_kind(self, there: pa.Array | pa.ChunkedArray, path: str) -> None:
        """Raise OptionError if the keys of an archive are of another type: 1, "1" and ("1",) are three keys."""
        firsts = [*there.drop_null()[:1].to_pylist(), *self.keys[:1]]
        kinds = [_kind_of(key) for key in firsts]
        if len({*kinds}) > 1:
            raise OptionError(
                f"{path}: its keys are {kinds[0]}, sample_key() of the source returns {kinds[1]}; use another path, or "
                "pass keep_existing=False to build it anew"
            )

    def match(self, there: pa.Array) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Compare with samples of an archive, by their `joined` texts.

        Returns: int64 [n], the first equal one of each sample, -1 for none; and whether the one at its index is equal.
        """
        is_here = np.zeros(len(self.keys), np.bool_)
        both = slice(min(len(self.keys), len(there)))
        is_here[both] = pc.equal(self.texts[both], there[both]).fill_null(False).to_numpy(False)
        return pc.index_in(self.texts, there).fill_null(-1).to_numpy().astype(np.int64), is_here


def all_of(source: Any, name: str) -> list[Any]:
    """Return what a source tells of all samples, by its method of this name, or its plural, which asks once."""
    count = len(source)
    try:
        is_bulk = has_method(source, f"{name}s")
        values = [*getattr(source, f"{name}s")()] if is_bulk else [*map(getattr(source, name), range(count))]
    except EdcacheError:
        raise
    except Exception as error:
        raise SourceError(f"{name}() of the source raised {type(error).__name__}: {error}") from error
    if len(values) != count:
        raise SourceError(f"{name}s() of the source returned {len(values):,} values for {count:,} samples")
    return values


def versions_of(source: Any, keys: Sequence[Any] = ()) -> list[str]:
    """Return a version of each sample of a source, as text: from `sample_version`, else from its attributes.

    Attributes are the ones with one value a sample; without any, all versions are "".

    keys: of the samples. An attribute with the same values, such as a list of files, is no version.
    """
    if tells(source, "sample_version"):
        return list(map(repr, all_of(source, "sample_version")))
    found = map(_plain, values_of(source).values())
    values = [value for value in found if [*value] != [*keys]]
    return [repr(parts) for parts in zip(*values, strict=True)] if values else [""] * len(source)


def guessed(source: Any) -> list[str]:
    """Name the attributes that are taken for versions; empty if `sample_version` tells them.

    It is a guess: a list that is as long as the source by chance may change every sample. So they ask.
    """
    if tells(source, "sample_version"):
        return []
    return [f"attribute {name}" for name in values_of(source)]


def joined(keys: pa.Array, versions: pa.Array | None) -> pa.Array:
    """Join key and version of each sample to one binary value: samples are the same if these values are equal.

    versions: None stands for empty ones.
    """
    if pa.types.is_integer(keys.type):
        keys = keys.cast(pa.string())
    own = pa.scalar("", pa.string()) if versions is None else versions
    parts = [part.cast(pa.large_binary()) for part in (keys, own)]
    # A version, the repr of a value, has no zero in it.
    return pc.binary_join_element_wise(*parts, pa.scalar(b"\0", pa.large_binary()))


def _plain(values: Any) -> Sequence[Any]:
    """Return values of samples that `repr` tells apart; of arrays and objects it is their description."""
    if isinstance(values, np.ndarray | torch.Tensor) and values.ndim == 1:
        values = values.tolist()
    if {*map(type, values)} <= {bool, bytes, float, int, str, type(None)}:
        return values  # type: ignore[no-any-return]
    return [[*Settings().describe(value)] for value in values]


def _kind_of(key: Key) -> str:
    if isinstance(key, str):
        return "tuples" if key.startswith(TUPLE_MARK) else "text"
    return "bytes" if isinstance(key, bytes) else "ints"
