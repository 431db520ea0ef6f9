"""`ByteSource`: the bytes of one archive, wherever they are; and bytes that fail their sums, asked for again.

A server, a proxy or a cache on the way may answer wrongly now and then: flipped or shifted bytes, or a page of HTML.
The sums of the archive tell. So a read of far bytes takes their check with it (`Sound`), and this is the one
place that asks again (`until_sound`):

- It requests only the extents that fail, past all that is kept of them, `tries` times in all.
- A sum over several answers does not say which one is wrong: parts that came twice alike stay.
- A copy keeps what has passed its check in the place of what failed (`mend`), and nothing else: others read it too.
- Bytes that fail to the end are returned. The reader compares them too, and raises the error about the object.

A local file has one answer, so it calls no check.

What must never happen: that one wrong answer counts as damage of the object; that unchecked bytes are written over
others in a copy.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from edcache.base import Ints, Sound

# Bytes of one answer; a longer extent has several. Seconds before the third time of asking, and before the last ones.
PART_NBYTES: Final = 1 << 22
_FIRST_WAIT, _LONGER, _LONGEST_WAIT = 0.1, 3.0, 10.0


class Prefetch(Protocol):
    """Fetches what a copy lacks before it is read. Safety: threads."""

    @property
    def has_room(self) -> bool:
        """True if more can be kept now."""

    def hold(self) -> ByteSource:
        """Stop look-ahead in the copy, of all processes of this machine, until the file that it returns is closed."""

    def is_held(self) -> bool:
        """True if `hold` of this process or another one holds."""

    def missing(self, start: Ints, end: Ints) -> list[tuple[int, int]]:
        """The ranges (start, end) of the file that are not here and hold bytes of extents, in their order.

        Args:
            start, end: int64 [n], offsets in the file.
        """

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch and keep ranges that `missing` gave, without those that another process fetches now."""


class ByteSource(ABC):
    """The bytes of one archive, read at offsets: a file, an object on a server, or a copy of either.

    Attributes:
        path: the name in messages, without credentials.
        by_request: each read is a request to another machine. The source is one state of the object: if the
            object changes, reading raises an error.
        is_live: other processes may append to it while it is open.
        is_copy: it is a copy of a sealed archive, which may be partial.
        token: opens the same copy in another process. It pickles.
        ahead: fetches bytes before they are read; None if nothing is missing, or nothing is kept.
        tries: most reads of bytes that fail their check; 1 if another one gives the same.
    Raises: StorageError, the bytes cannot be read.
    Safety: there is no file position, so threads and forked processes may read at once.
    """

    path: str
    by_request: bool = False
    is_live: bool = False
    is_copy: bool = False
    token: Any = None
    ahead: Prefetch | None = None
    tries: int = 1

    # --- one state ---

    @abstractmethod
    def size(self) -> int:
        """Bytes of the file now; if it is read by request, when it was opened."""

    @abstractmethod
    def identity(self) -> Any:
        """A value that is equal for the same file; if it is read by request, for the same state of it."""

    @abstractmethod
    def tag(self) -> tuple[object, ...]:
        """Values that identify this state of this file."""

    @abstractmethod
    def reopened(self) -> ByteSource:
        """A new source with the file that has the same name now."""

    def check_unchanged(self) -> None:  # noqa: B027 - an open file stays the one that was opened
        """Raise StaleArchiveError if it is read by request and the object was replaced."""

    # --- reading ---

    @abstractmethod
    def pread(self, offset: int, nbytes: int, is_sound: Sound | None = None) -> bytes:
        """Read `nbytes` at `offset`; fewer only at the end. The bytes after them may be fetched ahead.

        is_sound: the check of the bytes; far ones that fail it are read again.
        """

    @abstractmethod
    def read_many(
        self, extents: Sequence[tuple[int, int]], checks: Sequence[Sound] | None = None
    ) -> list[memoryview]:
        """Read extents (offset, nbytes) without reading ahead; shorter only at the end of the file.

        If it is read by request, all requests run concurrently.

        checks: of each; far bytes that fail theirs are read again.
        """

    def until_sound(
        self,
        extents: Sequence[tuple[int, int]],
        data: list[memoryview],
        checks: Sequence[Sound],
        tries: int | None = None,
    ) -> list[memoryview]:
        """Ask again for the extents whose bytes fail their check; returns all of them, as they are then.

        data: the bytes of each. tries: fewer than the source allows.
        Raises: StaleArchiveError, the object was replaced; StorageError.
        """
        failing = [_Failing(k, extents[k][0], data[k]) for k in range(len(data)) if not checks[k](data[k])]
        for asked in range(1, min(tries or self.tries, self.tries)):
            if not failing:
                break
            if asked > 1:
                time.sleep(min(_FIRST_WAIT * _LONGER ** (asked - 2), _LONGEST_WAIT))
            parts = [part for one in failing for part in one.open_parts()]
            answers = iter(self.ask_again(parts))
            for one in failing:
                data[one.number] = one.taken(answers)
            mended = [one for one in failing if checks[one.number](data[one.number])]
            for one in mended:
                self.mend(one.offset, data[one.number])
            failing = [one for one in failing if one not in mended]
        if failing:
            self.check_unchanged()
        return data

    def ask_again(self, extents: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """Read extents past all that is kept of them; nothing that comes is kept unchecked."""
        return self.read_many(extents)

    def mend(self, offset: int, data: memoryview) -> None:  # noqa: B027 - nothing is kept
        """Keep bytes that have passed their check in the place of what a copy has there."""

    def known(self, offset: int, nbytes: int) -> memoryview | None:
        """Bytes that are in memory already, as they came with its opening; None for others."""
        return None

    @abstractmethod
    def map(self, nbytes: int) -> memoryview:
        """The first bytes as read-only memory. Raises: StorageError if it cannot be mapped."""

    def is_remote(self) -> bool:
        """True if the bytes are known to be on another machine."""
        return self.by_request

    def are_cached(self, offsets: Sequence[int]) -> bool:
        """True if the pages at some offsets are in memory; True if unknown."""
        return True

    def will_need(self, extents: Sequence[tuple[int, int]]) -> None:  # noqa: B027 - a hint
        """Announce that extents (offset, nbytes) will be read soon; a hint."""

    def next_data(self, offset: int) -> int:
        """The next offset, from this one on, that is not in a hole; `offset` itself if unknown."""
        return offset

    def is_locked(self, start: int, length: int) -> bool:
        """True if another open file has locked one of the bytes; False if unknown."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close it; a second call does nothing."""


class _Failing:
    """Extent whose bytes fail their check, in parts of one answer each.

    number: of the extent in the read. data: its bytes.
    """

    def __init__(self, number: int, offset: int, data: memoryview) -> None:
        self.number, self.offset = number, offset
        self._data = bytearray(data)
        starts = range(0, len(data), PART_NBYTES)
        self._seen = {at: [bytes(data[at : at + PART_NBYTES])] for at in starts}
        self._open = list(starts)  # of the parts that did not come twice alike

    def open_parts(self) -> list[tuple[int, int]]:
        """List the parts to be asked for again."""
        return [(self.offset + at, len(self._seen[at][0])) for at in self._open]

    def taken(self, answers: Iterator[bytes | memoryview]) -> memoryview:
        """Take the answers for the open parts; returns the extent."""
        asked, self._open = self._open, []
        for at in asked:
            answer = bytes(next(answers))
            self._data[at : at + len(answer)] = answer
            if answer not in self._seen[at]:
                self._open.append(at)
                self._seen[at].append(answer)
        # If all did, one came twice alike and wrong; of a single one its check tells.
        self._open = self._open or list(self._seen)
        return memoryview(bytes(self._data))
