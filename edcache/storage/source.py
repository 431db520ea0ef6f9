"""`ByteSource`: the bytes of one archive, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from edcache.base import Ints


class Held(Protocol):
    """See `Prefetch.hold`."""

    def close(self) -> None:
        """Let it go."""


class Prefetch(ABC):
    """Fetches what a copy lacks before it is read. Safety: threads."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """True if more can be kept now."""

    @abstractmethod
    def hold(self) -> Held:
        """Stop look-ahead in the copy, of all processes of this machine, until the result is closed."""

    @abstractmethod
    def is_held(self) -> bool:
        """True if `hold` of this process or another one holds."""

    @abstractmethod
    def missing(self, start: Ints, end: Ints) -> list[tuple[int, int]]:
        """The ranges (start, end) of the file that are not here and hold bytes of extents, in their order.

        Args:
            start, end: int64 [n], offsets in the file.
        """

    @abstractmethod
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
    Raises: StorageError, the bytes cannot be read.
    Safety: there is no file position, so threads and forked processes may read at once.
    """

    path: str
    by_request: bool = False
    is_live: bool = False
    is_copy: bool = False
    token: Any = None
    ahead: Prefetch | None = None

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

    def check_damaged(self, offset: int, nbytes: int) -> None:
        """Raise the reason if bytes that fail their crc32 are not those that the archive has there.

        Raises:
            StaleArchiveError: the object was replaced. CorruptArchiveError: this copy of it is damaged.
        """
        self.check_unchanged()

    def discard(self) -> None:  # noqa: B027 - there is no other one
        """Delete a copy that does not open, so that the next opening makes another one."""

    # --- reading ---

    @abstractmethod
    def pread(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` at `offset`; fewer only at the end. The bytes after them may be fetched ahead."""

    @abstractmethod
    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read extents (offset, nbytes) without reading ahead; shorter only at the end of the file.

        If it is read by request, all requests run concurrently.
        """

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
