"""Samples in, chunks of the wanted size published: encoded, compressed, appended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from edcache.base import CodecError, EdcacheError, LabelError, SourceError, StorageError
from edcache.codec import Columns, Compression, Encoder
from edcache.format import MAX_LENGTH, Failure, Head, pa
from edcache.labels import LabelCollector, LabelSpec
from edcache.writer.appender import Appender
from edcache.writer.chunk import CHUNK_NBYTES, Chunk, ChunkBuilder

# Between two publications where chunks do not get full: a tenth of the time so far, within these bounds. A
# kill then costs little of what was computed, even in the first seconds; chunks of slow sources are not tiny.
_SECONDS: Final = (0.2, 2.0)
# A chunk takes some 3 KB of the file whatever is in it, and each of several processes publishes its own. So
# one of fewer bytes waits longer: half of the time so far, within these bounds.
_SMALL_NBYTES: Final = 64 << 10
_SMALL_SECONDS: Final = (1.0, 10.0)

# Where samples differ in structure, so many are stored one by one before others are tried together.
_SINGLY: Final = 1 << 12

FailureOf = Callable[[int, EdcacheError], Failure]
"""What the archive keeps of a sample that could not be made or stored."""


class ChunkEncoder:
    """Encodes samples into chunks, where there need be no archive to append to.

    Args:
        head: of the archive that they are for, with columns of `label_schema`. path: of it, for messages.
        chunk_size, chunk_nbytes: a chunk is full with so many samples, or bytes before compression.
        failure_of: what is kept in `failures` of a sample that is refused; None lets the error end the work.
    """

    def __init__(
        self,
        head: Head,
        path: str,
        spec: LabelSpec,
        chunk_size: int | None,
        chunk_nbytes: int = CHUNK_NBYTES,
        failure_of: FailureOf | None = None,
        label_schema: pa.Schema | None = None,
    ) -> None:
        self.failures: list[Failure] = []
        self._path = path
        self._spec = spec
        self._most, self._most_nbytes = chunk_size, chunk_nbytes
        self._failure_of = failure_of
        self._encoder = Encoder(head.codec)
        self._compression = Compression.parse(head.compression)
        self._builder = self._new_builder(label_schema)

    @property
    def pending(self) -> int:
        """Samples added and not yet taken or published."""
        return len(self._builder)

    @property
    def pending_nbytes(self) -> int:
        """Bytes of their records before compression."""
        return self._builder.nbytes

    @property
    def full(self) -> bool:
        """True if the pending samples make a whole chunk."""
        builder = self._builder
        return builder.nbytes >= self._most_nbytes or (self._most is not None and len(builder) >= self._most)

    def add(self, index: int, sample: object) -> None:
        """Encode a sample; raises as `ChunkBuilder.add`, with the path, unless failures are kept."""
        try:
            self._builder.add(index, sample)
        except (CodecError, LabelError) as error:
            self.refuse(index, error)

    def add_columns(self, index: int, columns: Columns, start: int) -> int:
        """Encode samples from the row `start` on, until the chunk is full at the most; returns how many.

        Where they differ in structure it is one, as by `add`, which names the sample that is refused.
        """
        if start >= columns.singly_until:
            most = MAX_LENGTH if self._most is None else self._most
            try:
                count = self._builder.add_columns(index, columns, start, most, self._most_nbytes)
            except (CodecError, LabelError):
                count = 0
            if count:
                return count
            columns.singly_until = start + _SINGLY
        self.add(index, columns.at(start))
        return 1

    def refuse(self, index: int, error: EdcacheError) -> None:
        """Keep why a sample cannot be stored, or raise it where failures are not kept."""
        if self._failure_of is not None:
            self.failures.append(self._failure_of(index, error))
        elif isinstance(error, SourceError):  # names the archive already
            raise error
        else:
            raise error.within(self._path, self._path, index) from error

    def take(self) -> Chunk:
        """The pending samples as a chunk; they are pending no more."""
        taken, self._builder = self._builder, self._builder.successor()
        return taken.chunk(self._compress, False)

    def _new_builder(self, label_schema: pa.Schema | None) -> ChunkBuilder:
        nbytes = min(self._most_nbytes, CHUNK_NBYTES) + (CHUNK_NBYTES >> 3)
        return ChunkBuilder(self._encoder, LabelCollector(self._spec, label_schema), nbytes)

    @property
    def _compress(self) -> Callable[[Any], bytes] | None:
        return None if self._compression is None else self._compression.compress


class Publisher(ChunkEncoder):
    """Encodes samples, and publishes them in an archive: what everybody who writes samples does it by.

    Args:
        appender: the archive. path: what messages call it, if not by its own path.
        seconds: between two publications; None leaves it to how long samples take. Else as `ChunkEncoder`.
    """

    def __init__(
        self,
        appender: Appender,
        spec: LabelSpec,
        chunk_size: int | None,
        chunk_nbytes: int = CHUNK_NBYTES,
        failure_of: FailureOf | None = None,
        *,
        path: str | None = None,
        seconds: float | None = None,
    ) -> None:
        self.appender = appender
        self._seconds = seconds
        # Its samples were given to the archive; once they are published another one takes its place.
        self._given: ChunkBuilder | None = None
        self._began = self._published = time.monotonic()
        path, types = path or appender.path, appender.label_schema()
        super().__init__(appender.head, path, spec, chunk_size, chunk_nbytes, failure_of, types)

    @property
    def is_broken(self) -> bool:
        """True if an append ended by an error or an interrupt, so that nothing more is published."""
        return self._builder is self._given

    def check_usable(self) -> None:
        """Raise as `Appender.check_usable`, and StorageError if it `is_broken`."""
        self.appender.check_usable()
        if self.is_broken:
            raise StorageError(
                f"{self._path}: an append was broken off; open it again, which knows what is there",
                path=self._path,
            )

    @property
    def is_due(self) -> bool:
        """True if the caller is to publish: the pending samples are `full` or `overdue`."""
        return self.full or self.overdue

    @property
    def overdue(self) -> bool:
        """True if the pending samples have waited long enough."""
        now = time.monotonic()
        waited = now - self._published
        if self._seconds is not None:
            return waited > self._seconds
        so_far = now - self._began
        least, most = _SECONDS
        if waited <= least or waited <= min(so_far / 10, most):
            return False
        least, most = _SMALL_SECONDS
        return self.pending_nbytes >= _SMALL_NBYTES or waited > max(least, min(so_far / 2, most))

    def publish(self, appended: bool = False) -> int:
        """Publish the pending samples as one chunk, and the failures; returns how many samples.

        appended: their indices continue whatever the archive holds at that moment.
        After a LabelError, where another process published labels of another type, they are let go. After
        any other exception of the append only opening the archive again tells whether they are there, and
        this raises StorageError from then on.
        """
        try:
            # First: a stream's sample that failed is gone with its iteration.
            self._publish_failures()
            count = self._publish_pending(appended)
            self._publish_failures()
        finally:
            self._published = time.monotonic()
        return count

    def _publish_failures(self) -> None:
        if self.failures:
            self.appender.amend(failed=[failure.to_json() for failure in self.failures])
            self.failures = []

    def _publish_pending(self, appended: bool) -> int:
        if not self.pending:
            return 0
        self.check_usable()
        chunk = self._builder.chunk(self._compress, appended)
        # Before the append, and by one assignment: an interrupt may come anywhere.
        self._given = self._builder
        try:
            count = self.append(chunk)
        except LabelError:
            self._builder = self._new_builder(self.appender.label_schema())
            raise
        if count:
            self._builder = self._builder.successor(is_published=True)
        else:
            self._builder = self._new_builder(self.appender.label_schema())
        return count

    def append(self, chunk: Chunk) -> int:
        """Publish a chunk that was encoded here or elsewhere; returns how many samples.

        Samples whose labels another process has made another type, so that no later call could publish them
        either, are refused where failures are kept.
        """
        try:
            self.appender.append(chunk)
        except LabelError as error:
            if self._failure_of is None:
                raise
            self.failures += [self._failure_of(index, error) for index in chunk.indices]
            return 0
        return chunk.count

    def take(self) -> Chunk:
        """See the base class; the next chunk is overdue as if these samples had been published."""
        self._published = time.monotonic()
        return super().take()
