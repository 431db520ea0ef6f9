"""`Together`: records of several mapped archives as one memory; a batch of them is one gather a field."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edcache.base import EdcacheError, Ints
from edcache.reader.group import Group, GroupRecords
from edcache.reader.session import Session
from edcache.reader.several import address_of, space_of

_PROBES = 8


class Together:
    """Several archives with records of one schema, each mapped, dense and not compressed.

    Args:
        sessions: of each archive. uniform: the `uniform` records of each, of one schema.
    Attributes:
        sessions: as given; a reader may have another one by now.
    """

    label_columns: Sequence[tuple[str, bool]] = ()

    def __init__(self, sessions: Sequence[Session], uniform: Sequence[GroupRecords]) -> None:
        self.sessions = sessions
        self._bases, space = space_of([one.view for one in uniform], sessions)
        low = address_of(space)
        # All rows are int64 numbers of this space; the first number of each archive.
        self._words = np.frombuffer(space[: len(space) // 8 * 8], "<i8")
        self._firsts = np.array([(address_of(one.index.memory) - low) // 8 for one in sessions])
        self._starts = np.cumsum([0, *(one.length for one in sessions[:-1])])
        self._records = GroupRecords(uniform[0].decoder, space, self._sizes_of)
        # Checked rows point into their file; with verify="never" offsets are compared.
        limits = [one.nbytes - one.index.most_nbytes for one in sessions]
        is_trusted = any(one.verify == "never" for one in sessions)
        self._limits = np.array(limits, np.uint64) if is_trusted else None

    @classmethod
    def of(cls, sessions: Sequence[Session]) -> Together | None:
        """Join archives; None if one is not of such a kind, or if they have several schemas."""
        uniform = [records for one in sessions if (records := one.uniform) is not None]
        if len(uniform) < len(sessions) or len({one.decoder for one in uniform}) > 1:
            return None
        return None if any(one.verify == "always" for one in sessions) else cls(sessions, uniform)

    def group(self, which: Ints, indices: Ints) -> Group | None:
        """Return some of their records; None if they are not in memory yet.

        Args:
            which: int64 [n], the number of each record's archive. indices: int64 [n], its sample there.
        """
        for session in self.sessions:
            session.extents.check_same()
        offset = self._words[self._firsts[which] + 3 * indices]
        if self.sessions[0].extents.is_probe_due():
            for k in range(0, len(which), max(1, len(which) // _PROBES)):
                if not self.sessions[which[k]].extents.are_in_memory(offset[k : k + 1]):
                    return None
        if self._limits is not None and np.any(offset.view(np.uint64) > self._limits[which]):
            return None  # a row points out of its file
        start, rows = offset + self._bases[which], indices + self._starts[which]
        if all(session.checks.is_done for session in self.sessions):
            return Group(self._records, start, rows, self)

        def check(part: slice) -> None:
            for number in set(which[part].tolist()):
                self.sessions[number].checks.samples(indices[part][which[part] == number])

        return Group(self._records, start, rows, self, check=check)

    def placed(self, error: EdcacheError, index: int) -> EdcacheError:
        """Put the place of a record in front of an error's text."""
        which = int(np.searchsorted(self._starts, index, "right")) - 1
        return self.sessions[which].placed(error, index - int(self._starts[which]))

    def _sizes_of(self, rows: Ints) -> Ints:
        which = np.searchsorted(self._starts, rows, "right") - 1
        sizes: Ints = self._words[self._firsts[which] + 3 * (rows - self._starts[which]) + 1]
        return sizes
