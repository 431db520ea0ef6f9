"""`Store`: what a backend answers of the samples of a cache."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from edcache.base import ArchiveNotFoundError, Folder, OptionError, ReadOptions, Show, Sync
from edcache.storage import Location, located

if TYPE_CHECKING:
    from edcache.format import Head
    from edcache.reader import AnyReader
    from edcache.writer.protocol import AnyAppender

# Whether all is there, whoever looks finds out.
AS_IT_IS = ReadOptions(allow_partial=True)


class Store(Location):
    """Where one cache is or will be; nothing of it is open. A backend says what is particular to its kind.

    Attributes:
        called: what messages call a cache that is no file.
        may_lose: whether samples may be gone again although nobody deleted them.
        room: what messages call that which holds it.
        tolerance: how many times what is free a fill may seem to take, judged by its first samples.
    """

    called: ClassVar[str] = "a URL"
    may_lose: ClassVar[bool] = False
    room: ClassVar[str] = "disk"
    # The first samples may be larger than the others: refuse only what is far too much.
    tolerance: ClassVar[float] = 1.5

    def completed(self, described: Callable[[], Mapping[str, Any] | None]) -> Store:
        """The same, where its name says all; else with a name made of the fingerprint of what is cached."""
        return self

    # --- reading ---

    def reader(self, options: ReadOptions) -> AnyReader:
        """What reads its samples; errors as of `edcache.Reader`.

        Raises:
            OptionError: what is said of files, of another kind.
        """
        from edcache.reader import Reader

        return Reader(self, options)

    def found(self, options: ReadOptions = AS_IT_IS) -> AnyReader | None:
        """The archive that is there, open, if one is and its creator lived to write its head.

        What it may have lost is asked for.
        """
        try:
            return self._opened(options)
        except ArchiveNotFoundError:
            return None

    def _opened(self, options: ReadOptions) -> AnyReader:
        reader = self.reader(options)
        reader.head  # noqa: B018
        return reader

    # --- filling ---

    def filled_in(self, *, is_stream: bool, is_lazy: bool, sync: Sync, spool: Folder = None) -> Store:
        """The store that a fill writes into: this one, or what stands for it until it is published.

        Args:
            spool: the folder for what stands for it.
        Raises:
            OptionError: nothing can be filled here, or not in this way.
        """
        return self

    def published(
        self, show: Show, is_done: Callable[[], bool], *, replaces: bool
    ) -> AbstractContextManager[None]:
        """Bring what is filled in the block, where `filled_in` said, to where it belongs.

        Args:
            is_done: whether what is there now, put there by another, is what was to be made.
            replaces: whether it takes the place of what is there.
        """
        return nullcontext()

    @abstractmethod
    def appender(self, head: Head, sync: Sync) -> AnyAppender:
        """Open it for appending, made with `head` where nothing is there yet; as `Appender.open`."""

    def begin_anew(self, head: Head) -> bool:
        """Let the cache go at once; False where a new one is built beside it and takes its place then."""
        return False

    def check_relabelling(self) -> None:
        """Raise OptionError where label columns cannot be added or dropped once samples are written."""

    # --- space ---

    def free_nbytes(self) -> int | None:
        """Bytes that may still be written there; None where nobody can tell."""
        return None

    def part(self, fraction: float) -> int:
        """So much of what the cache has and may still take, in bytes.

        Raises:
            OptionError: nobody can tell what it may take.
        """
        raise OptionError(f"max_bytes={fraction!r} is a part of a disk; for {self.called} give bytes")

    # --- deleting ---

    def check_deletable(self, *, force: bool = False) -> None:
        """Raise where it cannot be deleted by its name, or is being filled and not `force`.

        What has a `naming` is a file, which is looked at and deleted as one; nothing here is asked of it but
        what is particular to its backend.

        Raises:
            OptionError: nothing is deleted there. ArchiveNotFoundError, ArchiveLockedError.
        """
        self.local_path()

    def delete(self) -> dict[str, int]:
        """Delete what is no file; gives how many things went, by what they are called, the most first."""
        raise OptionError(f"{self.path}: {self.called} is not deleted from here")


def store_at(path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
    """Where a cache is, by its path or URL; arguments and errors as of `durable.located`."""
    store = located(path, storage_options)
    assert isinstance(store, Store)
    return store
