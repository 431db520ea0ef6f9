"""Compute samples when they are read, and keep them.

A sample is encoded at once, since the reader may change it. The read that fills a chunk, or comes when it is
overdue, appends it. The first sample of an archive is a chunk of its own.
"""

from __future__ import annotations

import errno
import logging
import threading
from copy import deepcopy
from dataclasses import replace
from multiprocessing import util as multiprocessing_util
from typing import Any, Final

import numpy as np

from edcache import base
from edcache.base import EdcacheError, ForkLock, StorageError
from edcache.identity import ENTRY
from edcache.writer.appender import other_order
from edcache.writer.chunk import Chunk
from edcache.writer.engine import Here, samples_of
from edcache.writer.job import Job
from edcache.writer.loop import Presence
from edcache.writer.recheck import with_first_sample, with_state
from edcache.writer.seal import seal

logger = logging.getLogger("edcache")

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class LazyFiller:
    """Compute samples when they are read, and keep them.

    One per process: a fork or a pickle leaves the open archive behind and opens its own at the first missing
    sample. Samples are appended by the read that makes a chunk full or finds it overdue, and when the cache
    is closed or dropped or the process ends in any way that runs Python's exit handlers. A process that is
    killed loses its open chunk, at most.

    Args:
        max_bytes: the archive grows no larger; None: no limit.
    Safety: threads may share it; one appends at a time.
    """

    def __init__(self, job: Job, max_bytes: int | None = None) -> None:
        self._job = with_state(job)
        self._max_bytes = max_bytes
        self._open: _OpenArchive | None = None
        self._turn = ForkLock()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}

    def create(self) -> None:
        """Make the archive if there is none; raises as `Job.open`."""
        self._job.open().close()

    def get(self, indices: list[int]) -> list[Any]:
        """Compute samples, keep them for the archive, and return them; copies of several."""
        archive = self._opened()
        archive.learn(indices[0])
        samples = []
        for index, sample in zip(indices, samples_of(archive.here, indices), strict=True):
            archive.keep(index, sample)
            # The source may change it while it computes the next one.
            samples.append(deepcopy(sample) if len(indices) > 1 else sample)
        return samples

    def publish(self, indices: list[int]) -> bool:
        """Append the pending samples if some of these are; return True if the archive has any of them now."""
        return self._opened().publish(indices)

    def flush(self) -> None:
        """Append the pending samples; the process whose samples complete the archive seals it."""
        if self._open is not None:
            self._open.flush()

    def close(self) -> None:
        """Append the pending samples and close the archive."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _opened(self) -> _OpenArchive:
        with self._turn.held():
            if self._open is None or not self._open.is_usable:
                self._open = _OpenArchive(self._job, self._max_bytes)
                # Workers of a DataLoader leave by os._exit, which skips atexit but not these. Nothing but the
                # open archive is held, so that a filler that is dropped goes, and takes it along.
                multiprocessing_util.Finalize(self, _close, (self._open,), exitpriority=10)
            return self._open


def _close(archive: _OpenArchive) -> None:
    """Append the pending samples as Python ends, or as the cache is dropped: no caller can take an error."""
    try:
        archive.close()
    except EdcacheError as error:
        logger.warning("%s; samples that were computed and not appended are lost", error)


class _OpenArchive:
    """One process's hold on an archive that it fills lazily."""

    def __init__(self, job: Job, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._job = replace(job, options=replace(job.options, batch_size=1, num_workers=0))
        self.here = Here(job)
        self._has_learned = False
        self._appender = job.open()
        if self._appender.chain.origin.keys_digest != job.head.keys_digest:
            self._appender.close()
            raise other_order(job.path)  # since the dataset was opened
        self._presence = Presence(self._appender, job)
        # The read of a sample raises its error.
        self._builder = replace(job, options=replace(job.options, on_error="raise")).builder(self._appender)
        # Reentrant, as a signal handler may read too.
        self._turn = threading.RLock()
        self._is_full = False
        self._pending: set[int] = set()

    @property
    def is_usable(self) -> bool:
        """True if this very process opened it, not one that it was forked from, and no append was broken off."""
        return not self._appender.file.closed

    def learn(self, index: int) -> None:
        """Compute a sample twice before the first one is read, as a fill does, and note what the archive is to know."""
        with self._turn:
            found = self._appender.chain.origin.fingerprint
            if self._has_learned or found is None or ENTRY in found:
                return
            self._has_learned = True
            told: dict[str, Any] = with_first_sample(self._job, index, 0).head.fingerprint or {}
            if ENTRY in told:
                known: dict[str, Any] = {name: told[name] for name in ("state", ENTRY) if name in told}
                self._appender.amend(fingerprint=self._job.made_by({**found, **known}))

    def publish(self, indices: list[int]) -> bool:
        """See `LazyFiller.publish`."""
        with self._turn:
            if not self._pending.isdisjoint(indices):
                self._append()
            self._presence.update()
            return any(map(self._presence.has, indices))

    def keep(self, index: int, sample: Any) -> None:
        """Encode a sample now, and append the chunk if it is full, overdue, the first or the last."""
        with self._turn:
            if self._is_full or index in self._pending or self._presence.has(index):
                return
            self._builder.add(index, sample)
            self._pending.add(index)
            # At once: an archive without a sample is taken for a first fill that failed, and goes for another source.
            is_first = not self._presence.count
            is_last = self._presence.count + len(self._pending) >= len(self._presence.state)
            if self._builder.is_due or is_first or is_last:
                self._append()

    def flush(self) -> None:
        """Append the pending samples, and seal if no sample is missing any more."""
        if self.is_usable:
            with self._turn:
                if self._pending:
                    self._append()

    def close(self) -> None:
        """Append and let go; idempotent, and nothing in a process that inherited it."""
        try:
            self.flush()
        finally:
            self._appender.close()

    def _append(self) -> None:
        # After an append that broke off, by an interrupt too, opening it again reads the truth.
        with base.on_error(self._appender.close):
            try:
                self._append_part(self._builder.take())
                self._presence.update()
                if self._presence.complete:
                    seal(self._appender)
            except StorageError as error:
                if error.errno not in _FULL:
                    raise
                self._is_full = True
                base.warn(f"{error}; samples that are not stored yet are computed at every read")
            finally:
                self._pending.clear()

    def _append_part(self, chunk: Chunk) -> None:
        """Append the part of a chunk that the archive lacks: samples that two processes compute are stored once.

        If it does not fit under `max_bytes`, its halves are appended, down to a sample.

        Raises: StorageError, not all of it fitted.
        """
        try:
            self._appender.append(chunk, max_bytes=self._max_bytes, lacking=self._presence.lacking)
        except StorageError as error:
            if error.errno != errno.EFBIG or chunk.count == 1:
                raise
            is_first = np.arange(chunk.count) < chunk.count // 2
            self._append_part(chunk.only(is_first))
            self._append_part(chunk.only(~is_first))
