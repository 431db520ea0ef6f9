"""Samples computed when they are asked for, and kept.

Whoever reads gets the sample at once. It is encoded then and there, since the reader may change it;
compressing and appending go on in a thread, which holds at most a few chunks.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing import util as multiprocessing_util
from typing import Any, Final

from edcache import base
from edcache.base import ForkLock, OptionError, StorageError, parsed_bytes
from edcache.writer.chunk import ChunkBuilder
from edcache.writer.job import Job
from edcache.writer.part import Presence
from edcache.writer.store import store_at

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
_MOST_WAITING = 2
# Of no samples: whoever holds it lets an archive grow whose size is limited.
_SIZE_CLAIM: Final = 1 << 60
_LOOK_SECONDS = 0.2
# A worker whose epoch is over is told nothing; it reads no more.
_IDLE_SECONDS = 0.3

_opening: Final = ForkLock()


def bytes_limit(asked: int | float | str | None, path: str) -> int | None:
    """How large `max_bytes=` lets an archive grow: bytes, text such as "20GB", or a part of the disk."""
    if asked is None:
        return None
    if isinstance(asked, float) and 0 < asked <= 1:
        return store_at(path).part(asked)
    nbytes = parsed_bytes(asked)
    if nbytes is None:
        choices = 'give bytes, text such as "20GB", or a part of the free disk such as 0.5'
        raise OptionError(f"max_bytes={base.shown(asked)}; {choices}")
    return nbytes


class LazyFiller:
    """Computes samples when they are asked for, and keeps them.

    One per process: a fork or a pickle leaves the open archive behind and opens its own at the
    first missing sample. What is pending is published when a chunk is full, every two seconds at the
    latest, and when the process ends in any way that runs Python's exit handlers.

    Args:
        max_bytes: the archive grows no larger; None: no limit.
    """

    def __init__(self, job: Job, max_bytes: int | None = None) -> None:
        self._job = job
        self._max_bytes = max_bytes
        self._open: _OpenArchive | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}

    def create(self) -> None:
        """Make the archive where there is none, and check that it is for a source of this length."""
        with closing(self._job.open()) as appender:
            self._job.publisher(appender)  # the labels are looked at

    def get(self, index: int) -> Any:
        """Compute a sample, keep it for the archive, and return it as the source made it."""
        archive = self._opened()
        sample = self._job.compute(index)
        archive.keep(index, sample)
        return sample

    def has_pending(self, index: int) -> bool:
        """Whether this process computed a sample and has not published it yet."""
        return self._open is not None and self._open.is_mine and index in self._open.pending

    def is_published(self, index: int) -> bool:
        """Whether the archive has a sample now, whoever published it."""
        return self._opened().has(index)

    def flush(self) -> None:
        """Publish what is pending; the process whose flush completes the archive seals it."""
        if self._open is not None:
            self._open.flush()

    def close(self) -> None:
        """Publish what is pending and let go of the archive."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _opened(self) -> _OpenArchive:
        archive = self._open
        if archive is not None and archive.is_mine:
            return archive  # whoever reads does not wait while another cache is opened
        with _opening.held():
            if self._open is None or not self._open.is_mine:
                self._open = _OpenArchive(self._job, self._max_bytes)
                # Workers of a DataLoader leave by os._exit, which skips atexit but not these. Nothing but the
                # open archive is held, so that a filler that is dropped goes, and takes it along.
                multiprocessing_util.Finalize(self, self._open.close, exitpriority=10)
            return self._open


class _OpenArchive:
    """One process's hold on an archive that it fills lazily.

    The thread alone publishes, with a file of its own. What it shares with readers lies under `_turn`.
    """

    def __init__(self, job: Job, max_bytes: int | None) -> None:
        self._pid = os.getpid()
        self._path, length = job.path, job.length
        self._looker = job.open()
        self._seen = Presence(self._looker, length)
        self._looking = threading.Lock()
        self._publisher = job.publisher(job.open(), keeps_failures=False)
        self._appender = self._publisher.appender
        self._presence = Presence(self._appender, length)
        self._max_bytes = max_bytes
        self._is_full = False
        self._kept_at = 0.0
        self._turn = threading.Condition()
        self._waiting: deque[ChunkBuilder] = deque()
        # Builders that were handed to the thread, and those that it is done with.
        self._handed = self._done = 0
        self._is_closing = self._closes_itself = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.pending: set[int] = set()

    @property
    def is_mine(self) -> bool:
        """Whether this process opened it, and did not inherit it in a fork."""
        return self._pid == os.getpid()

    def has(self, index: int) -> bool:
        """Whether the archive has a sample now."""
        with self._looking:
            self._seen.update()
        return self._seen.has(index)

    def keep(self, index: int, sample: Any) -> None:
        """Encode a sample now, for the thread to publish."""
        with self._turn:
            self._raise_error()
            while len(self._waiting) >= _MOST_WAITING and self._error is None and self._is_running():
                self._turn.wait(_LOOK_SECONDS)
            if self._is_full or self._is_closing or index in self.pending:
                return
            self._publisher.add(index, sample)
            self.pending.add(index)
            self._kept_at = time.monotonic()
            if self._publisher.pending == 1:
                self._turn.notify_all()
            if not self._is_running():
                self._thread = threading.Thread(target=self._run, name="edcache-lazy", daemon=True)
                self._thread.start()
            has_all = self._seen.count + len(self.pending) >= len(self._seen.state)
            if self._publisher.full or has_all:
                self._hand_over()

    def _hand_over(self) -> None:
        """Give what is pending to the thread; with `_turn`."""
        self._waiting.append(self._publisher.detach())
        self._handed += 1
        self._turn.notify_all()

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def flush(self) -> None:
        """Publish what is pending now, and seal when nothing is missing any more."""
        if not self.is_mine or self._appender.closed or self._is_in_thread():
            return
        with self._turn:
            if self._publisher.pending:
                self._hand_over()
            # Not until nothing is pending: other threads may go on.
            mine = self._handed
            while self._done < mine and self._error is None and self._is_running():
                self._turn.wait(_LOOK_SECONDS)
            self._raise_error()

    def close(self) -> None:
        """Publish and let go; idempotent, and nothing in a process that inherited it."""
        if not self.is_mine or self._appender.closed:
            return
        if self._is_in_thread():
            # The collector dropped the last reader while this thread ran; it ends by itself.
            self._is_closing = self._closes_itself = True
            return
        try:
            self.flush()
        finally:
            with self._turn:
                self._is_closing = True
                self._turn.notify_all()
            if self._thread is not None:
                self._thread.join()
            self._close_files()

    def _is_in_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _close_files(self) -> None:
        self._appender.close()
        self._looker.close()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # --- the thread ---

    def _run(self) -> None:
        while (builder := self._next()) is not None:
            try:
                self._publish(builder)
            except BaseException as error:  # noqa: BLE001 - raised in whoever reads, flushes or closes next
                if isinstance(error, StorageError) and error.errno in _FULL:
                    self._stop_keeping(str(error))
                else:
                    self._error = error
            with self._turn:
                self.pending.difference_update(builder.indices)
                self._done += 1
                self._turn.notify_all()
        if self._closes_itself:
            self._close_files()

    def _next(self) -> ChunkBuilder | None:
        """Wait for something to publish; None where nothing will come."""
        with self._turn:
            while not self._waiting:
                pending = self._publisher.pending > 0
                if self._is_closing and not pending:
                    return None
                is_idle = time.monotonic() - self._kept_at > _IDLE_SECONDS
                if self._is_closing or (pending and (is_idle or self._publisher.overdue)):
                    self._hand_over()
                else:
                    self._turn.wait(_LOOK_SECONDS if pending else None)
            return self._waiting.popleft()

    def _publish(self, builder: ChunkBuilder) -> None:
        self._presence.update()
        with self._measuring() as room:
            # A sample may have been computed twice at a time; it is stored once.
            published = {index for index in builder.indices if self._presence.has(index)}
            fits = self._publisher.publish_taken(builder, published, room)
        self._presence.update()
        if self._presence.complete:
            self._appender.seal()
        elif not fits:
            self._stop_keeping(f"the archive would grow beyond max_bytes={self._max_bytes:,}")

    @contextmanager
    def _measuring(self) -> Iterator[int | None]:
        """How many bytes the archive may grow by, and nobody else lets it grow in the block; None for any."""
        if self._max_bytes is None:
            yield None
            return
        claims = self._appender.claims
        claims.wait(_SIZE_CLAIM)
        try:
            self._presence.update()
            yield self._max_bytes - self._appender.chain.cursor.offset
        finally:
            claims.release(_SIZE_CLAIM)

    def _stop_keeping(self, reason: str) -> None:
        with self._turn:
            self._is_full = True
            self._done += len(self._waiting)
            self._waiting.clear()
            if self._publisher.pending:
                self._publisher.detach()
            self.pending.clear()
        base.warn(f"{self._path}: {reason}; samples that are not stored yet are computed at every read")
