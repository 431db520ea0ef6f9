"""Collated batches of several archives as one batch, in the order that the samples were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from edcache.reader.collation import NotInBulk
from edcache.reader.group import Memory

Places = npt.NDArray[np.int64]


def merged(batches: Sequence[Any], places: Sequence[Places], memory: Memory) -> Any:
    """One batch of several, where each was collated of samples of the same schema.

    Args:
        places: where the samples of each batch stand in the merged one: int64, together 0 to n - 1.
    Raises:
        NotInBulk: tensors of different shapes, or something else that only default_collate can judge.
    """
    first = batches[0]
    if type(first) is torch.Tensor:
        return _merged_tensors(batches, places, memory)
    if isinstance(first, Mapping):
        values = {key: merged([batch[key] for batch in batches], places, memory) for key in first}
        return values if type(first) is dict else type(first)(values)  # type: ignore[call-arg]
    if not isinstance(first, (list, tuple)):
        raise NotInBulk
    if _is_column(first, len(places[0])):
        return _merged_columns(batches, places)
    parts = [merged(list(items), places, memory) for items in zip(*batches, strict=True)]
    if hasattr(first, "_fields"):
        return type(first)(*parts)
    return type(first)(parts)


def _merged_tensors(batches: Sequence[Any], places: Sequence[Places], memory: Memory) -> torch.Tensor:
    kinds = {(batch.dtype, batch.shape[1:]) for batch in batches}
    if len(kinds) > 1 or any(len(batch) != len(place) for batch, place in zip(batches, places, strict=True)):
        raise NotInBulk
    out = memory((sum(map(len, places)), *batches[0].shape[1:]), batches[0].dtype)
    for batch, place in zip(batches, places, strict=True):
        out[torch.from_numpy(place)] = batch
    return out


def _is_column(values: Sequence[Any], count: int) -> bool:
    """Whether a list has one text for each sample, rather than one batch for each item of a sample."""
    return len(values) == count and all(isinstance(value, (str, bytes)) for value in values)


def _merged_columns(batches: Sequence[Any], places: Sequence[Places]) -> Any:
    column: list[Any] = [None] * sum(map(len, places))
    for batch, place in zip(batches, places, strict=True):
        for value, at in zip(batch, place.tolist(), strict=True):
            column[at] = value
    return type(batches[0])(column)
