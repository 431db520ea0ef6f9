"""`changes`: what a fill of an archive with keys would do, by the keys and versions of its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edcache import identity
from edcache.base import Ints, OptionError, article, cut_traceback
from edcache.dataset.cached import CachedDataset
from edcache.dataset.mapped import Mapped, kept_labels
from edcache.format import KEY_COLUMN, key_texts, one_chunk, pa, pc, told_keys
from edcache.identity import Keyed

_SHOWN: Final = 5


@dataclass(frozen=True)
class Changes:
    """Difference between a source and an archive, as positions: int64 [k], rising.

    Attributes:
        new: in the source: samples whose key the archive lacks. changed: whose version is another one.
        moved: whose position is another one. gone: in the archive: samples whose key the source lacks.
    """

    new: Ints
    changed: Ints
    moved: Ints
    gone: Ints
    _keys: tuple[pa.Array, pa.Array]

    def __str__(self) -> str:
        """Return a line for each kind of change: its count, and the first keys."""
        source, archive = self._keys
        lines = []
        for name, keys in (("new", source), ("changed", source), ("moved", source), ("gone", archive)):
            positions: Ints = getattr(self, name)
            named = told_keys([keys[position].as_py() for position in positions[:_SHOWN].tolist()])
            shown = ", ".join(map(repr, named))
            more = ", ..." if len(positions) > _SHOWN else ""
            lines.append(f"{len(positions):,} {name}" + (f": {shown}{more}" if shown else ""))
        return "\n".join(lines)


@cut_traceback
def changes(
    cache: CachedDataset[Any],
    source: Any,
    key: str | Callable[[Any], Any] | None = None,
    keep: Sequence[str] = (),
) -> Changes:
    """Compare an archive with its source by keys and versions; no sample is computed.

    Args:
        cache: an archive with keys.
        source: the dataset that it is to be filled from; of an archive of `map`, the dataset that is mapped.
        key, keep: as of `map`.
    Returns:
        Positions of new, changed, moved and gone samples; print it for counts and examples.
    Raises: OptionError, the archive or the source has no keys.

    >>> print(edcache.changes(ds, edcache.image_folder("train")))
    """
    if not isinstance(cache, CachedDataset):
        raise OptionError(
            f"changes(): {article(cache)} stands where an archive is to stand: changes(ds, source)"
        )
    keep = [keep] if isinstance(keep, str) else list(keep)
    keyed = Keyed.of(Mapped(_unchanged, source, keep, kept_labels(source, keep), key, None))
    if keyed is None or KEY_COLUMN not in cache.labels:
        what = "the source has no sample_key(index)" if keyed is None else f"{cache.path} has no keys"
        raise OptionError(f"changes(): {what}; see docs/howto/keys.md")
    columns = {
        name: one_chunk(cache.labels.column(name)) for name in identity.KEYED_COLUMNS if name in cache.labels
    }
    keys = key_texts(keyed.keys)
    stored = key_texts(columns[KEY_COLUMN]).cast(keys.type)
    own, indices = Keyed.stored(columns)
    keyed.check_kind(own, cache.path)
    found = keyed.places_in(own)
    first_equal = np.full(max(len(stored), len(keys)), -1)
    first_equal[indices] = own.first_equal
    is_here = (first_equal[: len(keys)] == found) & (found >= 0)
    is_there, is_same = pc.is_in(keys, stored).to_numpy(False), found >= 0
    return Changes(
        new=np.flatnonzero(~is_there),
        changed=np.flatnonzero(is_there & ~is_same),
        moved=np.flatnonzero(is_same & ~is_here),
        gone=np.flatnonzero(~pc.is_in(stored, keys).to_numpy(False)),
        _keys=(keys, stored),
    )


def _unchanged(sample: Any) -> Any:
    return sample
