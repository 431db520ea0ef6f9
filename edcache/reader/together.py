"""The records of several mapped archives as one piece of memory: a batch of them is one gather a field.

Mappings of one process lie in one space of addresses. What is between them is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from edcache.base import CorruptRecordError, Ints
from edcache.format import LINES
from edcache.reader.checks import CheckedBlocks
from edcache.reader.group import Group, GroupRecords
from edcache.reader.index import joined_lines, numbers
from edcache.reader.session import Session

_PROBES = 8


class Together:
    """Several archives whose records have one schema, each of them mapped, dense and not compressed.

    Args:
        sessions: for each of which `_is_gathered` is true.
    Attributes:
        sessions: of each archive; where its reader has another one by now, this says nothing of it.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = sessions
        self.decoder = sessions[0].decoder_at(0)
        addresses = np.array([_address(session.extents.view) for session in sessions])
        low = int(addresses.min())
        high = int((addresses + [session.nbytes for session in sessions]).max())
        self._bases = addresses - low  # of each archive, from the lowest address
        interface = {"data": (low, True), "shape": (high - low,), "typestr": "|u1", "version": 3}
        space = np.asarray(SimpleNamespace(__array_interface__=interface, owner=sessions))
        indices = [session.index for session in sessions]
        for index in indices:
            index.check_all()
        memories = [_address(index.memory) - low for index in indices]
        # Rows and pages are counted on from archive to archive.
        self._bits = np.array([index.root.bits for index in indices])
        self._first_page = np.cumsum([0, *(len(index.root.pages) for index in indices[:-1])])
        self._first_row = np.cumsum([0, *(index.rows for index in indices[:-1])])
        rows = self._first_row.tolist()
        self._offsets, self._sizes = (
            joined_lines(indices, memories, rows, LINES.index(name)) for name in ("offset", "nbytes")
        )
        self._views = {width: numbers(space.data, width) for width in (1, 2, 4, 8)}
        self._records = GroupRecords(self.decoder, space.data, self._sizes_of)
        is_checked = any(session.verify != "never" for session in sessions)
        self._blocks = CheckedBlocks(space.data, self._placed_blocks()) if is_checked else None

    @classmethod
    def of(cls, sessions: Sequence[Session]) -> Together | None:
        """The archives as one; None where they are not of such a kind, or of several schemas."""
        files = [one for one in sessions if _is_gathered(one)]
        if len(files) < len(sessions) or len({one.decoder_at(0) for one in files}) > 1:
            return None
        return cls(files)

    def _placed_blocks(self) -> Ints:
        """The rows of `Blocks` of all archives, from the lowest address and by rising address."""
        placed = []
        for k in np.argsort(self._bases).tolist():
            session = self.sessions[k]
            blocks = session.index.blocks
            # A hostile index may point anywhere; what is left out is not sound.
            inside = blocks[blocks[:, 1] + blocks[:, 2] <= session.nbytes]
            placed.append(inside + np.array([self._bases[k], self._bases[k], 0]))
        return np.concatenate(placed)

    def group(self, which: Ints, indices: Ints) -> Group | None:
        """Some of their records; None where they are to be fetched from a disk first.

        Args:
            which: int64 [n], the number of each record's archive. indices: int64 [n], its sample there.
        """
        rows = indices + self._first_row[which]
        offset = self._offsets.at(rows, self._pages(rows, which), self._views.__getitem__)
        if self.sessions[0].extents.is_probe_due():
            for k in range(0, len(which), max(1, len(which) // _PROBES)):
                if not self.sessions[which[k]].extents.are_in_memory(offset[k : k + 1]):
                    return None
        start, blocks = offset + self._bases[which], self._blocks
        if blocks is None or blocks.done:
            return self._records.at(start, rows)
        end = start + self._sizes_of(rows)

        def check(part: slice) -> None:
            if np.any(blocks.unsound(start[part], end[part])):
                raise CorruptRecordError("a record fails its check; read by itself it is named")

        return self._records.at(start, rows, check)

    def _pages(self, rows: Ints, which: Ints) -> Ints:
        pages: Ints = self._first_page[which] + (rows - self._first_row[which] >> self._bits[which])
        return pages

    def _sizes_of(self, rows: Ints) -> Ints:
        which = np.searchsorted(self._first_row, rows, "right") - 1
        return self._sizes.at(rows, self._pages(rows, which), self._views.__getitem__)


def _is_gathered(session: Session) -> bool:
    """True if any records may be gathered from the mapped file, by an index that lies in it."""
    index = session.index
    is_plain = index.is_dense and not index.is_compressed and session.verify != "always"
    if session.extents.view is None or not session.sealed or not session.present or not is_plain:
        return False
    return session.alike(np.arange(1)) is not None and bool(session.is_uniform)


def _address(memory: Any) -> int:
    """Where a piece of memory begins in this process."""
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
