"""`Records`: of one or several schemas or archives, samples that are no records, fields side by side.

Each archive has a memory of its own, and nothing reads over its end. Records of one schema in several memories are
`Joint`: each part is gathered into its places of one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, Union

import numpy as np
import numpy.typing as npt

from edcache.base import EdcacheError, Ints, once
from edcache.reader.group import Group, as_numbers
from edcache.reader.projection import Projection

T = TypeVar("T")

Records: TypeAlias = Union[Group, "Several", "Beside", "Made"]
"""Result of reading a dataset at some indices. Its `samples` are in their order."""


class Made:
    """Samples that a function makes, anew for each call."""

    group = beside = None

    def __init__(self, make: Callable[[], list[Any]]) -> None:
        self._make = make

    def samples(self) -> list[Any]:
        """Make the samples; raises as the function."""
        return self._make()


class Several:
    """Records of several kinds.

    Args:
        parts: positions of records among all, int64 [k], together 0 to n - 1; and the records.
    """

    def __init__(self, parts: Sequence[tuple[Ints, Records]]) -> None:
        self.parts = parts

    def samples(self) -> list[Any]:
        """Return every sample; raises as the parts."""
        return _in_order((places, records.samples()) for places, records in self.parts)

    @once
    def group(self) -> Group | None:
        """All records as one group; None if they differ in schema or fields, or are no records."""
        parts: list[tuple[Ints, Group]] = []
        for places, records in self.parts:
            group = records.group
            if group is None:
                return None
            inner = group.parts if isinstance(group, Joint) else [(slice(None), group)]
            parts += [(places[own], one) for own, one in inner]
        kinds = {(one.decoder, one.fields) for _, one in parts}
        return Joint(parts) if len(kinds) == 1 and all(one.is_regular for _, one in parts) else None

    @once
    def beside(self) -> Beside | None:
        """All records as fields side by side; None unless each part is."""
        found = [part for part in (records.beside for _, records in self.parts) if part is not None]
        kinds = {(part.fields, len(part.parts)) for part in found}
        if len(found) < len(self.parts) or len(kinds) != 1:
            return None
        places = [places for places, _ in self.parts]
        sides = zip(*(part.parts for part in found), strict=True)
        severals = [Several(list(zip(places, side, strict=True))) for side in sides]
        return Beside(severals, found[0].join, found[0].fields)


class Joint(Group):
    """Records of one schema in several memories, each part a `Group`.

    Args:
        parts: places of records among all, int64 [k], together 0 to n - 1; and a group of them.
    """

    is_regular = True

    def __init__(self, parts: Sequence[tuple[Ints, Group]]) -> None:
        self.parts = parts
        first = parts[0][1]
        self.decoder, self.fields, self.labels = first.decoder, first.fields, first.labels
        self._length = sum(len(places) for places, _ in parts)

    def __len__(self) -> int:
        return self._length

    def check_same(self) -> None:
        """Raise StaleArchiveError if another archive was written over one of them."""
        for _, part in self.parts:
            part.check_same()

    def gather(
        self, offset: int, nbytes: int, out: npt.NDArray[np.uint8] | None = None
    ) -> npt.NDArray[np.uint8]:
        """Copy the same bytes of every record: uint8 [n, nbytes]; to `out`, if it is given."""
        if out is None:
            out = np.empty((len(self), nbytes), np.uint8)
        rows = as_numbers(out, offset)
        for places, part in self.parts:
            part.gather_to(rows, places, offset, nbytes)
        return out

    @once
    def views(self) -> list[memoryview]:
        """Bytes of each record."""
        return _in_order((places, part.views) for places, part in self.parts)

    def placed(self, error: EdcacheError, row: int) -> EdcacheError:
        """Put the place of a record in front of an error's text."""
        found = ((own, part) for places, part in self.parts for own in np.flatnonzero(places == row))
        own, part = next(found)
        return part.placed(error, int(own))


def _in_order(parts: Iterable[tuple[Ints, Sequence[T]]]) -> list[T]:
    """Put items of parts into their places."""
    placed = {
        place: item for places, items in parts for place, item in zip(places.tolist(), items, strict=True)
    }
    return [placed[place] for place in range(len(placed))]


class Beside:
    """Fields of samples, side by side.

    Args:
        parts: the records of each side. join: merges one sample of each, or one batch of each.
        fields: of the merged sample; None for all.
    """

    group = None

    def __init__(
        self, parts: Sequence[Records], join: Callable[[Sequence[Any]], Any], fields: Projection | None
    ) -> None:
        self.parts, self.join, self.fields = parts, join, fields

    @property
    def beside(self) -> Beside:
        """Itself; other records may have none."""
        return self

    def samples(self) -> list[Any]:
        """Return every merged sample; raises as the parts."""
        columns = [records.samples() for records in self.parts]
        return [self.joined(samples) for samples in zip(*columns, strict=True)]

    def joined(self, sides: Sequence[Any]) -> Any:
        """Merge one sample of each side, or one batch."""
        whole = self.join(sides)
        return whole if self.fields is None else self.fields.of_sample(whole)


def kind_of(records: Records) -> object:
    """Return what records have in common that collate alike, to be compared; None if a part may collate differently."""
    group, beside = records.group, records.beside
    if beside is not None:
        kinds = [kind_of(side) for side in beside.parts]
        return None if None in kinds or (beside.fields and beside.fields.as_tuple) else kinds
    return (group.decoder, group.fields) if group is not None and group.is_regular else None
