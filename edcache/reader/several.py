"""`Records`: of one or several schemas or archives, samples that are no records, fields side by side.

All mappings and memory of a process lie in one space of addresses, so records of one schema, of any files, are one
`Group`. Bytes between them are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias, Union

import numpy as np

from edcache.base import EdcacheError, Ints, once
from edcache.format import LATTICE
from edcache.reader.group import Group, GroupRecords
from edcache.reader.projection import Projection

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
        samples: list[Any] = [None] * sum(len(places) for places, _ in self.parts)
        for places, records in self.parts:
            for place, sample in zip(places.tolist(), records.samples(), strict=True):
                samples[place] = sample
        return samples

    @once
    def group(self) -> Group | None:
        """All records as one group; None if they differ in schema or fields, or are no records."""
        groups = [records.group for _, records in self.parts]
        first = groups[0] if groups else None
        found = [group for group in groups if group is not None]
        if first is None or len(found) < len(groups):
            return None
        alike = (group.decoder is first.decoder and group.fields == first.fields for group in found)
        if not all(alike) or not all(group.is_regular and group.view.nbytes for group in found):
            return None
        bases, view = space_of([group.view for group in found], groups)
        order = np.argsort(np.concatenate([places for places, _ in self.parts]))
        start = np.concatenate([base + group.start for base, group in zip(bases, found, strict=True)])
        nbytes = np.concatenate([group.nbytes for group in found])[order]
        records = GroupRecords(first.decoder, view, nbytes.__getitem__)

        def check(_: slice) -> None:
            for group in found:
                group.ensure()

        return Group(records, start[order], np.arange(len(order)), self, first.fields, check)

    @once
    def beside(self) -> Beside | None:
        """All records as fields side by side; None unless each part is."""
        parts = [records.beside for _, records in self.parts]
        first = parts[0] if parts else None
        found = [part for part in parts if part is not None]
        if first is None or len(found) < len(parts):
            return None
        if any(part.fields != first.fields or len(part.parts) != len(first.parts) for part in found):
            return None
        places = [places for places, _ in self.parts]
        sides = zip(*(part.parts for part in found), strict=True)
        severals = [Several(list(zip(places, side, strict=True))) for side in sides]
        return Beside(severals, first.join, first.fields)

    label_columns: Sequence[tuple[str, bool]] = ()

    def placed(self, error: EdcacheError, index: int) -> EdcacheError:
        """Put the place of a record of the group in front of an error's text."""
        for places, records in self.parts:
            group = records.group
            row = np.flatnonzero(places == index)
            if group is not None and len(row):
                return group.placed(error, int(row[0]))
        return error


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


def space_of(views: Sequence[memoryview], owner: object) -> tuple[Ints, memoryview]:
    """Return the offset of each view in the memory from their lowest to their highest address, and that memory.

    owner: keeps the views alive.
    """
    addresses = np.array(list(map(address_of, views)))
    low = int(addresses.min()) // LATTICE * LATTICE
    high = int((addresses + [view.nbytes for view in views]).max())
    interface = {"data": (low, True), "shape": (high - low,), "typestr": "|u1", "version": 3}
    space = np.asarray(SimpleNamespace(__array_interface__=interface, owner=owner))
    return addresses - low, space.data


def address_of(memory: Any) -> int:
    """Return the address of memory in this process."""
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
