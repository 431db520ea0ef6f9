"""Samples that are read soon, told to the copy of a far archive before they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edcache.base import Ints
from edcache.reader.session import Session


def ahead_nbytes(session: Session) -> int:
    """How many bytes `prepare` may go ahead of who reads; 0 where it does nothing."""
    return session.file.ahead_nbytes


def lacking(session: Session, indices: Ints) -> list[tuple[int, int]]:
    """What the copy of a far archive lacks of samples: parts (start, end) of the file, in the order of need.

    Args:
        session: one whose `ahead_nbytes` is not 0. indices: in [-length, length).
    """
    return session.file.lacking(*_extents(session, indices))


def expect(session: Session, around: Callable[[], Ints], is_new: bool) -> None:
    """Announce which samples are read soon to the copy of a far archive, which asks if it has to choose."""
    session.file.expect(lambda: _extents(session, around()), is_new)


def prepare(session: Session, parts: Sequence[tuple[int, int]]) -> bool:
    """Let the copy of a far archive fetch parts that `lacking` gave; whether it had room for all of them."""
    return session.file.prepare(*np.array(parts, np.int64).T)


def _extents(session: Session, indices: Ints) -> tuple[Ints, Ints]:
    rows = session.index.rows_of(indices % session.length)
    rows = rows[rows >= 0]
    start = session.index.offsets(rows)
    return start, start + session.index.sizes(rows)
