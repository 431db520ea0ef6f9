"""What is indexed underneath all views: one archive, or several put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from edcache.base import Span, Transform
from edcache.codec import Node
from edcache.dataset.reading import Ints, T_co, checked_function
from edcache.dataset.samples import Samples
from edcache.reader import FieldPath, Memory, Projection, Special


class Root(Samples[T_co]):
    """A dataset that views are made of: what it must be able to do for them, and for their batches.

    Indices are its own. The samples that these methods give are not transformed.
    """

    _transform: Transform = None

    @property
    def transform(self) -> Transform:
        """The function that every sample passes when it is read, of views too; see the base class."""
        return self._transform

    @transform.setter
    def transform(self, function: Transform) -> None:
        self._transform = checked_function("transform", function)

    @property
    def cache(self) -> Root:
        """This dataset."""
        return self

    @property
    def indices(self) -> Ints:
        """All of them: 0 to len(self) - 1, read only."""
        self._guard(8)
        return Span(range(len(self))).array()

    @property
    def _root(self) -> Root:
        return self

    def _one(self, index: int, fields: Projection | None) -> Any:
        """A sample, or its fields, by its index in [-n, n)."""
        raise NotImplementedError

    def _many(self, indices: Ints, fields: Projection | None) -> list[Any]:
        """What `_one` gives of many samples."""
        raise NotImplementedError

    def _collated(
        self, indices: Ints, fields: Projection | None, special: Special | None, memory: Memory
    ) -> Any:
        """What default_collate makes of them; NotImplemented where it must see them."""
        raise NotImplementedError

    def _collated_by(self, indices: Ints, size: int, memory: Memory) -> Iterable[Any] | None:
        """The same of every `size` samples in turn; None where they are to be made one by one."""
        return None

    def _likeness(self, indices: Ints, fields: Projection | None) -> object:
        """What is equal where other samples are collated in the same way; None where that is not known."""
        raise NotImplementedError

    def _columns(self) -> Mapping[FieldPath, str]:
        """The label columns that hold a field of the samples, by the field's path."""
        raise NotImplementedError

    def _keys(self) -> tuple[Any, ...] | None:
        """The keys of the samples where all are dicts with the same; None where only reading would tell."""
        raise NotImplementedError

    def _structures(self, indices: Ints) -> tuple[Ints, list[Node | None]]:
        """How samples are built: a number for each, and by number the schema's tree; None: reading tells.

        Raises:
            MissingSampleError: one has no record and cannot be computed.
        """
        return np.zeros(len(indices), np.int64), [None]

    def _unsealed(self) -> list[str]:
        """The archives underneath that are not sealed, but for those whose source is at hand."""
        return []

    def _with_image_files(self) -> Root:
        """The same samples with their image files as `ImageFile`s, unless another form was asked for."""
        return self

    def _justify(self, nbytes: int, count: int) -> None:
        """Refuse to allocate so many bytes for each of `count` samples on the word of an archive alone."""
        raise NotImplementedError
