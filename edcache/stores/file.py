"""Caches that are files: on a file system, or with a name in shared memory, where they are files too."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

from edcache import format, memory
from edcache.errors import CorruptArchiveError, NotAnArchiveError, StorageError
from edcache.format import Head
from edcache.options import ReadOptions, Sync
from edcache.places import Where
from edcache.reader import AnyReader, Reader
from edcache.stores.store import PARTIAL, Store
from edcache.writer import AnyAppender, Appender, never_created, recover


def _differs(found: Head, head: Head) -> bool:
    """Whether the head of an archive says something else than the one that it is to have."""
    same = replace(found, uuid=head.uuid, claim_size=head.claim_size)
    return format.pack_head(same) != format.pack_head(head)


class FileStore(Store):
    """A path of a file system."""

    where: str

    @staticmethod
    def has(where: Where) -> bool:
        """See the base class."""
        return isinstance(where, str)

    def reader(self, options: ReadOptions) -> AnyReader:
        """See the base class."""
        return Reader(self.where, options)

    def found(self, options: ReadOptions = PARTIAL) -> AnyReader | None:
        """See the base class.

        Where it does not read, what a power cut left of a seal that was never synced is cut off first.
        """
        found = self._readable(options)
        if found is None or not found.is_abandoned:
            return found
        found.close()
        return None

    def _readable(self, options: ReadOptions) -> AnyReader | None:
        try:
            return super().found(options)
        except (NotAnArchiveError, CorruptArchiveError) as error:
            if never_created(self.where):
                return None
            if isinstance(error, CorruptArchiveError):
                self._recover(error)
        # Where its creator wrote the head meanwhile, it opens now (test_stream.py, test_a_killed_one_*).
        return self._opened(options)

    def _recover(self, error: CorruptArchiveError) -> None:
        try:
            recover(self.where)
        except StorageError:
            # Nothing can be written here: what does not read is what there is to say.
            raise error from None

    def appender(self, head: Head, sync: Sync) -> AnyAppender:
        """See the base class."""
        return Appender.open(
            self.where, head, create=False, sync=sync, begins_anew=lambda found: _differs(found, head)
        )

    def free_nbytes(self) -> int | None:
        """See the base class."""
        try:
            return self._free()
        except OSError:
            return None  # the first write that fails will tell

    def part(self, fraction: float) -> int:
        """See the base class."""
        there = os.path.getsize(self.where) if os.path.exists(self.where) else 0
        return int(fraction * (self._free() + there))

    def _free(self) -> int:
        folder = os.path.dirname(os.path.abspath(self.where))
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        return shutil.disk_usage(folder).free


class MemoryStore(FileStore):
    """A name in shared memory, as `edcache.memory` has it."""

    room = "memory"
    # A disk that is full says so; where memory is, the kernel ends processes.
    tolerance = 1.0

    @staticmethod
    def has(where: Where) -> bool:
        """See the base class."""
        return isinstance(where, str) and memory.is_memory(where)

    def _free(self) -> int:
        return memory.available()
