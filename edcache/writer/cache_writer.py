"""CacheWriter: an archive written sample by sample."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edcache import base, storage
from edcache.base import WriteKeywords, WriteOptions, takes
from edcache.codec import Columns
from edcache.format import Head
from edcache.labels import LabelSpec
from edcache.writer import temporary
from edcache.writer.appender import Appender
from edcache.writer.builder import ChunkBuilder
from edcache.writer.match import adopt_labels, check_options, new_head
from edcache.writer.seal import seal

if TYPE_CHECKING:
    from typing_extensions import Unpack


@base.cut_traceback
@takes(WriteOptions)
class CacheWriter:
    """Write an archive sample by sample, without a Dataset.

    Args:
        path: the path or URL of the archive.
        mode: "x" makes a new archive, and the path must not exist. A file without samples, which a killed
            writer left, is replaced. "a" continues an archive, sealed or not, or makes a new one. "w" writes
            `path + ".edcache.new"`, which replaces the file at the path when it is sealed; until then
            readers see the old file.
        options: all options as one object; keywords replace single options of it. With mode="a" the label
            columns are as in the archive, except columns that are made by functions.
        publish_seconds: stores the pending samples at the first append after this many seconds, so that a
            crash loses little. None leaves it to the sizes; the bytes of the file then do not depend on
            speed.
        uuid: 16 bytes that identify the archive; random by default.
        storage_options: for a URL, see `edcache.CachedDataset`. mode="a" continues what a killed writer,
            with mode="x" or "a", left in the spool folder.
        keywords: these options.
    Raises:
        ArchiveExistsError: mode="x", and the path exists.
        ArchiveError: another process is replacing the same path with mode="w".
        OptionError: mode="a", and an option differs from the one of the archive.
        CorruptArchiveError: mode="a", and the archive is damaged where a seal reads it: no byte of it changes.

    The end of the `with` block seals the archive. If the block raises, the samples appended so far are
    stored, and the archive is not sealed. It can be opened, and mode="a" continues it. (With mode="w" it is
    at `path + ".edcache.new"`, and the file at the path does not change.)
    Safety: use a writer in one thread of one process. Any number of writers may append to one archive.

    >>> with CacheWriter("digits.zip", in_memory_keys=["label"]) as w:
    ...     w.append({"image": image, "label": 3})
    """

    # True after an append that ended by an exception: its samples are neither pending nor known to be in the file.
    _is_broken = False
    # Index of the next sample where a power cut took some: from the first of these on all are written again.
    _again: int | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "x",
        options: WriteOptions | None = None,
        *,
        publish_seconds: float | None = 2.0,
        uuid: bytes | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **keywords: Unpack[WriteKeywords],
    ) -> None:
        where = storage.located(path, storage_options)
        self.path = path = where.path
        storage_options = None  # a traceback with locals would show its credentials
        options = WriteOptions.of(options, keywords, "CacheWriter")
        codec, compression = options.codec, options.compression
        _check_mode(mode)
        spec = LabelSpec.parse(options.in_memory_keys)
        head = new_head(spec, codec=codec or "native", compression=compression, uuid=uuid)
        self._spool = where.spool()
        if self._spool is not None:
            self._spool.begin(mode)
        local = where.local_path() if self._spool is None else self._spool.path
        self._local = storage.followed(local) if mode == "w" else local
        self._appender = Appender.open(
            temporary.start(self._local) if mode == "w" else self._local,
            head,
            mode="x" if mode == "x" else "a",
            sync=options.sync,
            joins=True,
            begins_anew=lambda other: mode == "x" or _contradicts(other, head, codec, compression),
        )
        with base.on_error(self._appender.close):
            head, work = self._appender.head, self._appender.path
            spec = adopt_labels(head, spec, work)
            check_options(head, work, codec=codec, compression=compression)
            self._appender.recover()
            self._again = self._appender.first_lost()
            types = self._appender.label_schema()
            every = math.inf if publish_seconds is None else publish_seconds
            self._builder = ChunkBuilder(
                head, self.path, spec, options.chunk_size, label_schema=types, seconds=every
            )
        # True if the pending samples continue the archive; False if they have indices of their own.
        self._appending, self._given_end = True, 0

    @property
    def next_index(self) -> int:
        """Index that the next `append` gets, if no other process appends meanwhile.

        After a power cut it is the first sample that was lost, and those behind it are written again.
        """
        if self._again is not None:
            return self._again
        end = self._appender.chain.end_index
        return end + len(self._builder) if self._appending else max(end, self._given_end)

    def append(self, sample: object) -> None:
        """Add a sample after the last one.

        Args:
            sample: any tree of dicts, lists and tuples over tensors, arrays, numbers, text and bytes.
        Raises:
            CodecError: 'out.zip: sample 7: sample["boxes"]: cannot store set; ...'.
            LabelError: the sample has no such label.
            LabelError: its label has another type than the column.
            StorageError: the disk is full or fails. Stored samples are kept; the writer takes no more, and
                mode="a" continues the archive at its `next_index`.
        """
        if self._again is None:
            if not self._appending:
                self._switch(appending=True)
            self._add(self._appender.chain.end_index + len(self._builder), sample)
            return
        # A user who goes on at `next_index` gives all samples from the first lost one on.
        self.write(self._again, sample)
        self._again += 1
        if self._again >= self._appender.chain.end_index:
            self.flush()
            self._again = None

    def extend(self, samples: Iterable[object]) -> None:
        """Append every sample of an iterable.

        Raises:
            OptionError: it is a mapping, a table or a text, so that keys, names or letters would be stored. Other
                errors are as in `append`.
        """
        _check_samples(samples, self.path)
        for sample in samples:
            self.append(sample)

    def extend_columns(self, columns: Mapping[Any, Any] | tuple[Any, ...]) -> None:
        """Append samples that are given as columns, many times as fast as one by one.

        Args:
            columns: a dict or a tuple, whose values are columns, or again dicts or tuples. Sample k has the
                k-th item of each column: `extend_columns({"x": xs, "label": labels})` stores the
                samples of `extend({"x": xs[k], "label": labels[k]} for k in range(len(xs)))`. A column is a numpy
                array, a tensor on the CPU, a list, or None, which is None in every sample. A 1-D array gives
                each sample a numpy scalar. A 1-D tensor gives each a 0-d tensor. Where the items of a list change
                their structure, say from a text to None, samples are written one at a time, and so more slowly.
        Raises:
            OptionError: columns differ in length. CodecError: a column is of another type, or of
                objects. Other errors are as in `append`; the samples before the one that is named are kept.
        """
        try:
            given = Columns(columns)
        except base.EdcacheError as error:
            raise error.within(self.path, self.path) from error
        start = 0
        while self._again is not None and start < given.count:
            self.append(given.at(start))
            start += 1
        self._switch(appending=True)
        while start < given.count:
            self._check_usable()
            first = self.next_index - start
            start += self._builder.add_columns(range(first, first + given.count), given, start)
            if self._builder.is_due:
                self.flush()

    def write(self, index: int, sample: object) -> None:
        """Store a sample at an index. If an index is written twice, the later sample is read.

        Raises:
            SampleIndexError: the index is negative. Other errors are as in `append`.
        """
        index = operator.index(index)
        if index < 0:
            raise base.SampleIndexError(
                f"{self.path}: index {index}; write() takes 0 and up", path=self.path, index=index
            )
        self._switch(appending=False)
        self._add(index, sample)
        self._given_end = max(self._given_end, index + 1)

    def flush(self) -> None:
        """Store the samples appended so far: readers see them, and a kill of this process keeps them."""
        self._check_usable()
        self._is_broken = True  # before: an interrupt may come anywhere
        try:
            self._builder.publish(self._appender, self._appending)
        except base.LabelError:
            self._is_broken = False
            raise
        self._is_broken = False

    def seal(self) -> None:
        """Store all samples, then write index, labels and zip directory; mode="w" replaces the old file."""
        self.flush()
        chain = self._appender.chain
        if chain.length is not None and chain.end_index > chain.length:
            self._appender.amend(length=chain.end_index)
        seal(self._appender)
        if self._appender.path != self._local:
            storage.move(self._appender.file, self._local)

    def close(self) -> None:
        """Seal and close the archive, and upload it if the path is a URL; a second call does nothing."""
        if self._finish(self.seal) and self._spool is not None:
            self._spool.finish()

    def abort(self) -> None:
        """Store the appended samples and close the archive without a seal; a second call does nothing."""
        self._finish(self.flush)

    def _finish(self, last: Callable[[], None]) -> bool:
        """Close the file after a last step; return True if it was open."""
        is_open = not self._appender.closed  # an interrupt may have broken off the first call
        try:
            if is_open:
                last()
        finally:
            self._appender.close()
        return is_open

    def __enter__(self) -> CacheWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.abort()
        except base.EdcacheError as second:
            text = f"The last samples could not be stored: {second}"
            if hasattr(error, "add_note"):
                error.add_note(text)
            else:  # Python 3.10
                base.warn(text)

    def _switch(self, appending: bool) -> None:
        # A chunk holds either given indices or ones that continue the archive, never both.
        if appending != self._appending:
            self.flush()
            self._appending, self._given_end = appending, 0

    def _add(self, index: int, sample: object) -> None:
        self._check_usable()
        self._builder.add(index, sample)
        if self._builder.is_due:
            self.flush()

    def _check_usable(self) -> None:
        if self._appender.closed:
            text = f'{self.path}: this writer is closed; open the archive with mode="a"'
            raise base.ArchiveError(text, path=self.path)
        self._appender.check_usable()
        if self._is_broken:
            raise base.StorageError(
                f"{self.path}: an append was broken off; open it again, which knows what is there",
                path=self.path,
            )


def _check_mode(mode: str) -> None:
    if mode not in ("x", "a", "w"):
        raise base.OptionError(
            f"mode={mode!r}; choose 'x' (new), 'a' (continue or grow) or 'w' (replace)", option="mode"
        )


def _check_samples(samples: object, path: str) -> None:
    """Raise OptionError unless an iterable may be one of samples."""
    if isinstance(samples, Mapping) or type(samples).__name__ == "DataFrame":  # of pandas, of polars
        remedy = "give extend_columns() a dict of columns, and append() a dict that is one sample"
    elif isinstance(samples, str | bytes | bytearray):
        remedy = "give append() what is one sample"
    else:
        return
    raise base.OptionError(
        f"{path}: extend() got {base.article(samples)}, and takes an iterable of samples; {remedy}"
    )


def _contradicts(other: Head, head: Head, codec: str | None, compression: str | None) -> bool:
    """True if an archive was begun with other options than are given here: not None, no labels."""
    return (
        codec not in (None, other.codec)
        or compression not in (None, other.compression)
        or (bool(head.labels) and other.labels != head.labels)
    )
