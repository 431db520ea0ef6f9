"""`zip_fields`: several datasets as one, the fields of each sample side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from edcache.base import Ints, OptionError
from edcache.dataset.concatenation import Combined, records_of
from edcache.dataset.indexing import not_as_stored
from edcache.dataset.transforms import Draws
from edcache.dataset.view import Samples
from edcache.format import Failure, beside
from edcache.labels import checked_indices
from edcache.reader import Beside, FieldPath, Projection, Records


def zip_fields(*datasets: Samples) -> Zipped:
    """Join the fields of several datasets: sample i has the fields of sample i of each; no sample is read.

    Args:
        datasets: two or more datasets of the same length, whose samples are dicts.
    Raises:
        OptionError: "zip_fields(): the datasets have 10 and 12 samples; ..."; their `batch_transform`s differ; at the
            first read, two of them have the same field.

    `labels` has the columns of all datasets. If two have a column of the same name, the first counts. Each dataset
    keeps its transforms. A read takes all fields of all datasets: `select` before zipping.

    >>> images_and_features = edcache.zip_fields(images, features.select("embedding"))
    """
    return Zipped(datasets)


class Zipped(Combined):
    """Fields of several datasets of one length side by side; `zip_fields` makes it."""

    called = "zip_fields"
    _length = 0

    def __init__(self, parts: Sequence[Samples]) -> None:
        super().__init__(parts)
        if len(set(map(len, parts))) > 1:
            raise OptionError(
                f"zip_fields(): the datasets have {' and '.join(f'{len(part):,}' for part in parts)} samples;"
                " take the same ones of each"
            )
        self._length = len(parts[0])

    def __len__(self) -> int:
        return self._length

    @property
    def missing(self) -> Ints:
        """Indices without a record in one of the datasets: int64 [k], sorted."""
        return np.unique(np.concatenate([part.missing for part in self.parts]))

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, of all datasets."""
        return [failure for part in self.parts for failure in part.errors]

    def _records(self, indices: Ints, fields: Projection | None, draws: Draws | None = None) -> Records:
        indices = checked_indices(indices, len(self))
        return Beside([records_of(part, indices, draws) for part in self.parts], self._join, fields)

    def _stored(self, indices: Ints, places: Ints) -> NoReturn:
        raise not_as_stored(self, "their fields come from several datasets")

    def _label_fields(self) -> dict[str, FieldPath]:
        return {}  # each archive may have a field of the path

    def _label_table(self) -> Any:
        return beside(self._tables([len(self)] * len(self.parts)))

    def _join(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Merge the samples of all datasets at one index, or their batches."""
        joined: dict[Any, Any] = {}
        for part, dataset in zip(parts, self.parts, strict=True):
            if not isinstance(part, Mapping):
                raise OptionError(
                    f"zip_fields() merges dicts; the samples of {dataset!r} are of type "
                    f'{type(part).__name__}; use select("image", ...), whose samples are dicts'
                )
            twice = next((key for key in part if key in joined), None)
            if twice is not None:
                raise OptionError(
                    f"zip_fields(): the field {twice!r} is in more than one dataset; take it from one, with "
                    "select() on the others"
                )
            joined.update(part)
        return joined
