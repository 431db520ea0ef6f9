"""What a reader asks of the bytes of an archive, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Place(Protocol):
    """The bytes of one archive, read at offsets; `durable.File` is one, `RemotePlace` another.

    path: as messages name it, without credentials. by_request: whether each read is a request to another
    machine, so that few are made; then the bytes are those of one state, and a change of them is an error.

    Raises StorageError wherever bytes do not come.
    Safety: no position is shared, so reads are safe from any thread and after a fork.
    """

    path: str
    by_request: bool

    def size(self) -> int:
        """Bytes of the file: now, or where it is read by request when it was opened."""

    def identity(self) -> object:
        """Equal for two openings of one file; where it is read by request, of one state of it."""

    def tag(self) -> tuple[object, ...]:
        """What tells this state of it from its others and from other files, as text without separators."""

    def reopened(self) -> Place:
        """What is there now under the same name."""

    def check_unchanged(self) -> None:
        """Raise StaleArchiveError where it was read by request and is no longer what was opened."""

    def pread(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` at `offset`; fewer only at the end. What follows may be fetched ahead with it."""

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read extents (offset, nbytes), and next to nothing else; shorter only at the end of the file.

        Where they are read by request, all at a time: `extents.GAP_NBYTES` says what is fetched between them.
        """

    def map(self, nbytes: int) -> memoryview:
        """The first bytes as read-only memory; StorageError where that cannot be."""

    def is_remote(self) -> bool:
        """Whether the bytes are known to be on another machine."""

    def is_cached(self, offset: int) -> bool:
        """Whether the page of an offset is in memory; True where nobody can tell."""

    def will_need(self, offset: int, nbytes: int) -> None:
        """Say that a range will be read soon; nothing where nobody listens."""

    def next_data(self, offset: int) -> int:
        """The next offset, from this one on, that is in no hole."""

    def close(self) -> None:
        """Let go of it; idempotent."""
