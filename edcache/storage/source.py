"""`ByteSource`: the bytes of one archive, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


class ByteSource(ABC):
    """The bytes of one archive, read at offsets: a file, an object of a server, a copy of either.

    Readers ask it, and never which kind it is. Two kinds differ in what they override; what is not abstract
    says that there is nothing to do.

    path: as messages name it, without credentials. by_request: whether each read is a request to another
    machine, so that few are made; then the bytes are those of one state, and a change of them is an error.
    is_partial: whether it is a copy that may lack some, so that it is read and not mapped. is_live: whether
    others may append to it while it is open. token: what opens the same copy in another process; it pickles.

    Raises StorageError wherever bytes do not come.
    Safety: no position is shared, so reads are safe from any thread and after a fork.
    """

    path: str
    by_request: bool = False
    is_partial: bool = False
    is_live: bool = False
    token: Any = None

    # --- one state ---

    @abstractmethod
    def size(self) -> int:
        """Bytes of the file: now, or where it is read by request when it was opened."""

    @abstractmethod
    def identity(self) -> Any:
        """Equal for two openings of one file; where it is read by request, of one state of it."""

    @abstractmethod
    def tag(self) -> tuple[object, ...]:
        """What tells this state of it from its others and from other files, as text without separators."""

    @abstractmethod
    def reopened(self) -> ByteSource:
        """What is there now under the same name."""

    def check_unchanged(self) -> None:  # noqa: B027 - an open file stays the one that was opened
        """Raise StaleArchiveError where it was read by request and is no longer what was opened."""

    # --- reading ---

    @abstractmethod
    def pread(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` at `offset`; fewer only at the end. What follows may be fetched ahead with it."""

    @abstractmethod
    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read extents (offset, nbytes), and next to nothing else; shorter only at the end of the file.

        Where they are read by request, all at a time.
        """

    @abstractmethod
    def map(self, nbytes: int) -> memoryview:
        """The first bytes as read-only memory; StorageError where that cannot be."""

    def is_remote(self) -> bool:
        """Whether the bytes are known to be on another machine."""
        return self.by_request

    def are_cached(self, offsets: Sequence[int]) -> bool:
        """Whether the pages of some offsets are in memory; True where nobody can tell."""
        return True

    def will_need(self, offset: int, nbytes: int) -> None:  # noqa: B027 - nobody listens
        """Say that a range will be read soon; nothing where nobody listens."""

    def next_data(self, offset: int) -> int:
        """The next offset, from this one on, that is in no hole; itself where nobody can tell."""
        return offset

    def is_locked(self, start: int, length: int) -> bool:
        """Whether another has locked one of the bytes; False where nobody can tell."""
        return False

    # --- copies that fill as they are read ---

    def announce(self, start: Ints, end: Ints) -> None:  # noqa: B027 - all of it is there
        """Have many extents there before they are read: int64 [n], bytes from the start of the file."""

    def mend(self, offset: int, nbytes: int) -> bool:
        """Fetch an extent again that fails its crc32; whether it can be looked at again."""
        return False

    def mend_opening(self) -> bool:
        """Fetch again all that was read until `accept`; whether that can make a difference."""
        return False

    def accept(self) -> None:  # noqa: B027 - nothing was noted
        """Say that what was read so far makes sense."""

    def finish(self, start: Ints, end: Ints) -> ByteSource | None:
        """The whole copy, opened, where nearly all of these extents are here; None where it stays partial."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of it; idempotent."""


def _of_data(name: str) -> Any:
    """A method that hands on to `data`."""

    def method(self: Wrapped, *arguments: Any) -> Any:
        return getattr(self.data, name)(*arguments)

    return method


class Wrapped(ByteSource):
    """A source whose bytes are those of another, `data`; a subclass says what is not."""

    def __init__(self, data: ByteSource) -> None:
        self.data = data
        self.path, self.by_request = data.path, data.by_request

    size, identity, tag = _of_data("size"), _of_data("identity"), _of_data("tag")
    check_unchanged = _of_data("check_unchanged")
    pread, read_many, map = _of_data("pread"), _of_data("read_many"), _of_data("map")
    is_remote, are_cached, is_locked = _of_data("is_remote"), _of_data("are_cached"), _of_data("is_locked")
    will_need, next_data = _of_data("will_need"), _of_data("next_data")
    close = _of_data("close")
