"""A collated batch of samples of one archive, by one gather a field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils._pytree import tree_flatten, tree_unflatten

from edcache.labels import Labels
from edcache.reader.base import AnyReader
from edcache.reader.collation import Special, collation, is_gathered
from edcache.reader.group import Memory
from edcache.reader.projection import Projection

Rows = npt.NDArray[np.int64]


def collated(
    reader: AnyReader,
    labels: Labels,
    indices: Rows,
    fields: Projection | None,
    special: Special | None,
    memory: Memory,
) -> Any:
    """What default_collate makes of samples by indices in [-n, n); NotImplemented where it must see them."""
    if fields is not None:
        return fields.collated(reader, labels, indices, memory) if special is None else NotImplemented
    group = reader.group(indices)
    collate = None if group is None else collation(group.decoder, special)
    return NotImplemented if group is None or collate is None else collate(group, memory)


def collated_by(reader: AnyReader, indices: Rows, size: int, memory: Memory) -> Iterable[Any] | None:
    """The same of every `size` samples in turn, by one gather a field for all of them; they share memory.

    None where not every field can be gathered.
    """
    group = reader.group(indices)
    collate = None if group is None or not is_gathered(group.decoder) else collation(group.decoder)
    if collate is None:
        return None
    leaves, structure = tree_flatten(collate(group, memory))  # type: ignore[arg-type]
    parts = zip(*(leaf.split(size) for leaf in leaves), strict=True)
    return (tree_unflatten(part, structure) for part in parts)
