"""The claims of a file: locks on bytes far behind its data, which the kernel frees when a process ends."""

from __future__ import annotations

import os

from edcache import format
from edcache.storage import File


class FileClaims:
    """What this process holds of a file's claims; `AnyAppender` says what each method does."""

    def __init__(self, file: File) -> None:
        self._file = file

    @property
    def can_lock(self) -> bool:
        """See `AnyAppender`."""
        return self._file.can_lock

    @property
    def has_fillers(self) -> bool:
        """See `AnyAppender`."""
        return self._file.is_locked(format.LOCK_FILLER, format.FILLERS)

    def join_fillers(self) -> bool:
        """See `AnyAppender`."""
        is_first = not self.has_fillers
        # Of several that begin at once, one gets the first byte.
        if self._file.try_lock(format.LOCK_FILLER):
            return is_first
        own = os.getpid()
        for place in range(own, own + format.FILLERS):
            if self._file.try_lock(format.LOCK_FILLER + place % format.FILLERS):
                break
        return False

    def claim(self, number: int) -> bool:
        """See `AnyAppender`."""
        return self._file.try_lock(format.LOCK_CLAIM + number)

    def wait(self, number: int) -> None:
        """See `AnyAppender.wait_claim`."""
        self._file.lock(format.LOCK_CLAIM + number)

    def release(self, number: int) -> None:
        """See `AnyAppender`."""
        self._file.unlock(format.LOCK_CLAIM + number)
