"""The records of several mapped archives as one piece of memory: a batch of them is one gather a field.

Mappings of one process lie in one space of addresses. What is between them is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from edcache.base import Ints
from edcache.reader.group import Group, GroupRecords
from edcache.reader.session import Session

if TYPE_CHECKING:
    from edcache.codec import Decoder

_PROBES = 8


class Together:
    """Several archives whose records have one schema, each of them mapped, dense and not compressed.

    Args:
        sessions: each of which `_is_gathered`.
    Attributes:
        sessions: of each archive; where its reader has another one by now, this says nothing of it.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = sessions
        self.decoder = _decoder_of(sessions[0])
        addresses = np.array([_address(session.extents.view) for session in sessions])
        low = int(addresses.min())
        high = int((addresses + [session.nbytes for session in sessions]).max())
        self._bases = addresses - low  # of each archive, from the lowest address
        interface = {"data": (low, True), "shape": (high - low,), "typestr": "|u1", "version": 3}
        space = np.asarray(SimpleNamespace(__array_interface__=interface, owner=sessions))
        # All rows are numbers of this space; where those of each archive begin in it, in numbers.
        self._words = np.frombuffer(space.data[: (high - low) // 8 * 8], "<i8")
        self._firsts = np.array([(_address(one.index.memory) - low) // 8 for one in sessions])
        self._starts = np.cumsum([0, *(one.length for one in sessions[:-1])])
        self._records = GroupRecords(self.decoder, space.data, self._sizes_of)
        # Rows that were checked point into their file; with verify="never" offsets are compared.
        limits = [one.nbytes - one.index.most_nbytes for one in sessions]
        is_trusted = any(one.verify == "never" for one in sessions)
        self._limits = np.array(limits, np.uint64) if is_trusted else None

    @classmethod
    def of(cls, sessions: Sequence[Session]) -> Together | None:
        """The archives as one; None where they are not of such a kind, or of several schemas."""
        files = [one for one in sessions if _is_gathered(one)]
        if len(files) < len(sessions) or len(set(map(_decoder_of, files))) > 1:
            return None
        return cls(files)

    def group(self, which: Ints, indices: Ints) -> Group | None:
        """Some of their records; None where they are to be fetched from a disk first.

        Args:
            which: int64 [n], the number of each record's archive. indices: int64 [n], its sample there.
        """
        offset = self._words[self._firsts[which] + 3 * indices]
        if self.sessions[0].extents.is_probe_due():
            for k in range(0, len(which), max(1, len(which) // _PROBES)):
                if not self.sessions[which[k]].extents.are_in_memory(offset[k : k + 1]):
                    return None
        if self._limits is not None and np.any(offset.view(np.uint64) > self._limits[which]):
            return None  # a row points out of its file
        start, rows = offset + self._bases[which], indices + self._starts[which]
        if all(session.checks.is_done for session in self.sessions):
            return self._records.at(start, rows)

        def check(part: slice) -> None:
            for number in set(which[part].tolist()):
                self.sessions[number].checks.samples(indices[part][which[part] == number])

        return self._records.at(start, rows, check)

    def _sizes_of(self, rows: Ints) -> Ints:
        which = np.searchsorted(self._starts, rows, "right") - 1
        sizes: Ints = self._words[self._firsts[which] + 3 * (rows - self._starts[which]) + 1]
        return sizes


def _is_gathered(session: Session) -> bool:
    """True if any records may be gathered from the mapped file, by an index that lies in it."""
    index = session.index
    if session.extents.view is None or not session.sealed or not index.is_dense or session.verify == "always":
        return False
    return index.only_schema is not None and session.alike(np.arange(1)) is not None


def _decoder_of(session: Session) -> Decoder:
    decoder = session.decoder_of(0)
    assert decoder is not None
    return decoder


def _address(memory: Any) -> int:
    """Where a piece of memory begins in this process."""
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
