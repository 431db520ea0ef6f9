"""Fill an archive: which samples are missing, who computes them, what happens when one fails.

A fill walks the claims of the archive: runs of `claim_size` consecutive indices. Whoever locks a
claim's byte computes what is missing in it; the kernel frees the lock when that process ends,
however it ends. So any number of processes that fill one archive share the work, and none waits
for a dead one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from multiprocessing import util as multiprocessing_util
from typing import Any

import numpy as np

from edcache import durable
from edcache.errors import (
    CodecError,
    LabelError,
    OptionError,
    SourceError,
    StaleCacheError,
)
from edcache.format import Head
from edcache.labels.spec import LabelSpec
from edcache.progress import Progress
from edcache.writer import Appender, ChunkWriter, adopt_labels, start_replacing

LEAST_SECONDS, MOST_SECONDS = 0.2, 2.0


def fill(
    source: Any,
    path: str,
    head: Head,
    spec: LabelSpec,
    *,
    chunk_size: int | None = None,
    sync: str = "seal",
    progress: bool | None = None,
    rebuild: bool = False,
) -> int:
    """Compute every sample of `source` that the archive lacks, and seal it.

    Args:
        source: has __len__ and __getitem__(int).
        path: the archive; made with `head` where it does not exist.
        spec: the label columns; where empty, those that the archive was begun with.
        rebuild: fill `path + ".new"` from nothing and put it in the place of `path` at the end;
            whoever has the old archive open keeps reading it.
    Returns:
        How many samples this process computed.
    Raises:
        SourceError: the source raised; everything computed before is published, and calling again
            continues there.
        StaleCacheError: the archive has another length than the source.
        UnsupportedTypeError, LabelError: a sample cannot be stored, or makes no label column.
        StorageError: the disk is full; everything published stays.

    A chunk is published when it is full, and otherwise after a tenth of the time spent so far
    (0.2 to 2 seconds): a kill costs little of what was computed, even in the first seconds.
    """
    check_source(source, path)
    if not rebuild:
        return _fill_file(source, path, head, spec, chunk_size, sync, progress)
    session = start_replacing(path + ".new")
    try:
        computed = _fill_file(source, path + ".new", head, spec, chunk_size, sync, progress)
        durable.replace(path + ".new", path)
    finally:
        session.close()
    return computed


def _fill_file(
    source: Any,
    path: str,
    head: Head,
    spec: LabelSpec,
    chunk_size: int | None,
    sync: str,
    progress: bool | None,
) -> int:
    appender = Appender.open(path, head, create=False, sync=sync)
    try:
        check_length(appender.path, appender.length, len(source))
        spec = adopt_labels(appender.head, spec, path)
        return _Fill(source, ChunkWriter(appender, spec, chunk_size)).run(progress)
    finally:
        appender.close()


def check_source(source: Any, path: str) -> None:
    """Raise OptionError for what is no map-style dataset."""
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise OptionError(
            f"{path}: the source, a {type(source).__name__}, has no len() or no [index]; "
            "write an iterable with CacheWriter(path).extend(...)"
        )


def check_length(path: str, found: int | None, length: int) -> None:
    """Raise StaleCacheError where an archive was begun for another number of samples."""
    if found is not None and found != length:
        raise StaleCacheError(
            f"{path}: begun for {found:,} samples, the source has {length:,} now; "
            'build it again (keep_existing=False, or on_stale="rebuild"), or choose another path'
        )


class Presence:
    """Which samples an archive holds, kept up to date as chunks are published by anyone."""

    def __init__(self, appender: Appender, length: int) -> None:
        self._appender = appender
        self._seen = 0
        self.present = np.zeros(length, bool)
        self.count = 0
        self.update()

    def update(self) -> int:
        """Take in what was published since the last call; returns how many samples are new."""
        self._appender.catch_up()
        chunks = self._appender.chain.chunks
        if len(chunks) == self._seen:
            return 0
        index = self._appender.indices_of(chunks[self._seen :])
        self._seen = len(chunks)
        self.present[index[index < len(self.present)]] = True
        before, self.count = self.count, int(np.count_nonzero(self.present))
        return self.count - before

    @property
    def complete(self) -> bool:
        """Whether every sample has a record."""
        return self.count == len(self.present)


class _Fill:
    """One process's part in filling one archive."""

    def __init__(self, source: Any, writer: ChunkWriter) -> None:
        self._source = source
        self._writer = writer
        self._appender = writer.appender
        self._presence = Presence(self._appender, len(source))
        self._claim_size = self._appender.head.claim_size
        self._held: list[int] = []
        self._nbytes = 0
        self._unseen = 0
        self._clock = PublishClock()

    def run(self, show: bool | None) -> int:
        """Compute what is missing, wait for what others have claimed, seal."""
        total, kept = len(self._presence.present), self._presence.count
        if kept == total:
            self._appender.seal()
            return 0
        with Progress(os.path.basename(self._appender.path), kept, total, show) as progress:
            self._progress = progress
            try:
                self._compute_claims()
            finally:
                # Whatever went wrong, what was computed is published before the error goes on.
                self._publish()
            self._presence.update()
            if self._presence.complete:
                self._appender.seal()
            return progress.samples

    def _compute_claims(self) -> None:
        claimed_by_others = []
        for claim in self._claims():
            if self._appender.claim(claim):
                self._compute(claim)
            else:
                claimed_by_others.append(claim)
        for claim in claimed_by_others:
            # Nothing is held while waiting, so that two fills cannot wait for each other.
            self._publish()
            self._appender.wait_claim(claim)
            self._compute(claim)

    def _claims(self) -> Iterator[int]:
        """The numbers of the claims in which something is missing."""
        size, total = self._claim_size, len(self._presence.present)
        for start in range(0, total, size):
            if not self._presence.present[start : start + size].all():
                yield start // size

    def _compute(self, claim: int) -> None:
        """Compute what is missing in a claim that this process has locked."""
        self._held.append(claim)
        # Its last holder published before letting go, so now is the time to look.
        self._look()
        start = claim * self._claim_size
        for offset in np.flatnonzero(~self._presence.present[start : start + self._claim_size]).tolist():
            self._add(start + offset)
            if self._writer.full or self._clock.due:
                self._publish(keep=claim)
        if not self._writer.pending:
            self._release()

    def _add(self, index: int) -> None:
        before = self._writer.pending_nbytes
        try:
            self._writer.add(index, compute(self._source, index, self._appender.path))
        except (CodecError, LabelError) as error:
            raise type(error)(f"{self._appender.path}: {error}") from error
        self._nbytes += self._writer.pending_nbytes - before
        self._progress.advance(1, self._nbytes)

    def _look(self) -> None:
        found = self._presence.update() - self._unseen
        self._unseen = 0
        if found > 0:
            self._progress.found(found)

    def _publish(self, keep: int | None = None) -> None:
        """Publish what is pending and let go of the claims, but for the one still being computed."""
        pending = self._writer.pending
        try:
            self._writer.publish()
            self._unseen += pending
        finally:
            self._clock.published()
            self._release(keep)

    def _release(self, keep: int | None = None) -> None:
        for claim in self._held:
            if claim != keep:
                self._appender.release(claim)
        self._held = [claim for claim in self._held if claim == keep]


class PublishClock:
    """When to publish although the chunk is not full.

    After a tenth of the time spent so far, 0.2 to 2 seconds: a kill then costs little of what was
    computed, even in the first seconds, and chunks of slow sources do not become tiny.
    """

    def __init__(self) -> None:
        self._began = self._published = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last publication."""
        now = time.monotonic()
        return now - self._published > min(max((now - self._began) / 10, LEAST_SECONDS), MOST_SECONDS)

    def published(self) -> None:
        """Start counting anew."""
        self._published = time.monotonic()


def compute(source: Any, index: int, path: str) -> Any:
    """One sample from the source.

    Raises:
        SourceError: "train.zip: the source raised at index 7: ValueError: ...; ..."; the source's
            exception is its __cause__.
    """
    try:
        return source[index]
    except Exception as error:
        raise SourceError(
            f"{path}: the source raised at index {index}: {type(error).__name__}: {error}; "
            "what was computed before is kept, and filling again continues there"
        ) from error


class LazyFiller:
    """Computes samples when they are asked for, and keeps them.

    One per process: a fork or a pickle leaves the open archive behind and opens its own at the
    first missing sample. What is pending is published when a chunk is full, every two seconds, and
    when the process ends in any way that runs Python's exit handlers.
    """

    def __init__(
        self, source: Any, path: str, head: Head, spec: LabelSpec, chunk_size: int | None, sync: str
    ) -> None:
        self._source = source
        self._path = path
        self._head = head
        self._spec = spec
        self._chunk_size = chunk_size
        self._sync = sync
        self._open: _OpenArchive | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}

    def create(self) -> None:
        """Make the archive where there is none, and check that it is for a source of this length."""
        appender = Appender.open(self._path, self._head, create=False, sync=self._sync)
        try:
            check_length(self._path, appender.length, len(self._source))
            adopt_labels(appender.head, self._spec, self._path)
        finally:
            appender.close()

    def get(self, index: int) -> Any:
        """Compute a sample, keep it for the archive, and return it as the source made it."""
        archive = self._opened()
        sample = compute(self._source, index, self._path)
        archive.keep(index, sample)
        return sample

    def has_pending(self, index: int) -> bool:
        """Whether this process computed a sample and has not published it yet."""
        return self._open is not None and self._open.is_mine and index in self._open.pending

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
        if self._open is None or not self._open.is_mine:
            appender = Appender.open(self._path, self._head, create=False, sync=self._sync)
            spec = adopt_labels(appender.head, self._spec, self._path)
            self._open = _OpenArchive(ChunkWriter(appender, spec, self._chunk_size), len(self._source))
            # Workers of a DataLoader leave by os._exit, which skips atexit but not these. Nothing but the
            # open archive is held, so that a filler that is dropped goes, and takes it along.
            multiprocessing_util.Finalize(self, self._open.close, exitpriority=10)
        return self._open


class _OpenArchive:
    """One process's hold on an archive that it fills lazily."""

    def __init__(self, writer: ChunkWriter, length: int) -> None:
        self._pid = os.getpid()
        self._writer = writer
        self._presence = Presence(writer.appender, length)
        self._clock = PublishClock()
        self.pending: set[int] = set()

    @property
    def is_mine(self) -> bool:
        """Whether this process opened it, and did not inherit it in a fork."""
        return self._pid == os.getpid()

    def keep(self, index: int, sample: Any) -> None:
        """Add a sample, and publish when there is enough, or when it was the last one missing."""
        path = self._writer.appender.path
        try:
            self._writer.add(index, sample)
        except (CodecError, LabelError) as error:
            raise type(error)(f"{path}: {error}") from error
        self.pending.add(index)
        self._presence.update()
        is_last = self._presence.count + self._writer.pending >= len(self._presence.present)
        if self._writer.full or self._clock.due or is_last:
            self.flush()

    def flush(self) -> None:
        """Publish what is pending, and seal when nothing is missing any more."""
        if not self.is_mine or self._writer.appender.closed:
            return
        self._writer.publish()
        self.pending.clear()
        self._clock.published()
        self._presence.update()
        if self._presence.complete:
            self._writer.appender.seal()

    def close(self) -> None:
        """Publish and let go; idempotent, and nothing in a process that inherited it."""
        if not self.is_mine or self._writer.appender.closed:
            return
        try:
            self.flush()
        finally:
            self._writer.appender.close()
