"""Samples in, chunks of the wanted size published: builder, compression and appender together."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any

from edcache.codec import Encoder
from edcache.codec.compression import Compression, train_dictionary
from edcache.errors import LabelError
from edcache.format import Head
from edcache.labels.columns import LabelCollector
from edcache.labels.spec import LabelSpec
from edcache.writer.anywhere import AnyAppender
from edcache.writer.chunk import CHUNK_NBYTES, Chunk, ChunkBuilder


class ChunkWriter:
    """Encodes samples, and publishes them as chunks of the size that was asked for.

    chunk_size: most samples in a chunk, or None. chunk_nbytes: a chunk is published when its
    records have this many bytes before compression.
    """

    def __init__(
        self,
        appender: AnyAppender,
        spec: LabelSpec,
        chunk_size: int | None,
        chunk_nbytes: int = CHUNK_NBYTES,
    ) -> None:
        self.appender = appender
        self._most = chunk_size
        self._most_nbytes = chunk_nbytes
        self._spec = spec
        self._encoder = Encoder(appender.head.codec)
        self._builder = self._new_builder()
        self._compression = Compression.parse(appender.head.compression)
        self._dictionary: bytes | None = None

    @property
    def pending(self) -> int:
        """Samples added and not yet published."""
        return len(self._builder)

    @property
    def pending_indices(self) -> list[int]:
        """The indices of samples added and not yet published."""
        return self._builder.indices

    @property
    def pending_nbytes(self) -> int:
        """Bytes of their records before compression."""
        return self._builder.nbytes

    @property
    def full(self) -> bool:
        """Whether the pending samples make a whole chunk."""
        pending = len(self._builder)
        return self._builder.nbytes >= self._most_nbytes or (self._most is not None and pending >= self._most)

    def add(self, index: int, sample: object) -> None:
        """Encode a sample; the caller publishes when `full` says so, or earlier.

        Where an earlier publication failed, it is tried again first, and raises again.
        """
        failed = self._builder.unpublished
        if failed is not None:
            self.publish(failed.appended)
        self._builder.add(index, sample)

    def publish(self, appended: bool = False) -> None:
        """Publish the pending samples as one chunk; does nothing when there are none.

        Args:
            appended: their indices continue whatever the archive holds at that moment.

        Raises:
            LabelTypeError: another process published labels of another type; the samples are let go.
        After any other exception they are pending still, and the next call publishes them, once.
        """
        if not self.pending:
            return
        chunk = self._builder.unpublished or self._builder.chunk(self._compress(self._builder), appended)
        try:
            self.appender.append(chunk)
        except LabelError:
            # Another process made these labels another type: no later call could publish them either.
            self._builder = self._new_builder()
            raise
        self._builder.clear()

    def take(self) -> ChunkBuilder:
        """The pending samples, for `publish_taken`; another thread may do that while more are added."""
        taken, self._builder = self._builder, self._builder.successor()
        return taken

    def publish_taken(
        self, taken: ChunkBuilder, but: Set[int] = frozenset(), most_nbytes: int | None = None
    ) -> bool:
        """Publish samples that were taken, but for some indices; those that come first, where not all fit.

        Args:
            most_nbytes: that the archive may grow by.
        Returns:
            Whether all of them fit.
        Raises: as `publish`; the samples are let go whatever is raised.
        """
        chunk = taken.chunk(self._compress(taken), False).without(but)
        fitting = (
            chunk if most_nbytes is None else chunk.without(set(chunk.indices[chunk.fits(most_nbytes) :]))
        )
        if fitting.count:
            self.appender.keep(fitting)
        return fitting is chunk

    def _new_builder(self) -> ChunkBuilder:
        nbytes = min(self._most_nbytes, CHUNK_NBYTES) + (CHUNK_NBYTES >> 3)
        collector = LabelCollector(self._spec, self.appender.label_types())
        return ChunkBuilder(self._encoder, collector, nbytes)

    def _compress(self, builder: ChunkBuilder) -> Callable[[Any], bytes] | None:
        compression = self._compression
        if compression is None:
            return None
        if compression.dictionary and self._dictionary is None:
            # Too few records to train on leave it None, and the next chunk tries again.
            self._dictionary = self._shared_dictionary(builder)
        return partial(compression.compress, dictionary=self._dictionary)

    def _shared_dictionary(self, builder: ChunkBuilder) -> bytes | None:
        """The archive's dictionary; where there is none, train one on the builder's records."""
        self.appender.catch_up()
        known = self.appender.dictionaries()
        if known:
            return known[0]
        trained = train_dictionary(builder.raw_records())
        if trained is not None:
            self.appender.append_dictionary(trained)
        return trained


class ChunkEncoder:
    """Samples to chunks where there is no archive to append to.

    Args:
        head: of the archive that they are for. chunk_size: most samples in a chunk, or None.
    """

    def __init__(self, head: Head, spec: LabelSpec, chunk_size: int | None) -> None:
        self._most = chunk_size
        nbytes = CHUNK_NBYTES + (CHUNK_NBYTES >> 3)
        self._builder = ChunkBuilder(Encoder(head.codec), LabelCollector(spec), nbytes)
        compression = Compression.parse(head.compression)
        # The archive's dictionary is not here; a frame without one is read as well.
        self._compress = None if compression is None else partial(compression.compress, dictionary=None)

    def add(self, index: int, sample: object) -> None:
        """Encode a sample; raises as `ChunkWriter.add`."""
        self._builder.add(index, sample)

    @property
    def pending(self) -> int:
        """Samples added and not taken."""
        return len(self._builder)

    @property
    def full(self) -> bool:
        """Whether the pending samples make a whole chunk."""
        return self._builder.nbytes >= CHUNK_NBYTES or (self._most is not None and self.pending >= self._most)

    def take(self) -> Chunk:
        """The pending samples as a chunk."""
        taken, self._builder = self._builder, self._builder.successor()
        return taken.chunk(self._compress, False)
