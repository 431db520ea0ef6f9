"""An archive in a file, open for appending."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from edcache import format, storage
from edcache.base import ArchiveError, Ints, StaleArchiveError, StorageError, Sync
from edcache.format import Chain, Header, pa
from edcache.storage import File
from edcache.writer.chunk import Chunk
from edcache.writer.log import LabelChange, Log
from edcache.writer.recovery import discard_abandoned, lacks_head, recover_log

_MOST_REPLACED: Final = 20


def retry_if_replaced(run: Callable[[], object], is_done: Callable[[], bool] = lambda: False) -> None:
    """Run something, and again while another process replaces the archive, unless it `is_done` then."""
    for _ in range(_MOST_REPLACED):
        with suppress(StaleArchiveError):
            run()
            return
        if is_done():
            return
    run()


class _Claims:
    """Locks on bytes far behind a file's data, which say who computes what, and which the kernel frees."""

    def __init__(self, file: File) -> None:
        self._file = file

    @property
    def can_lock(self) -> bool:
        """True if other processes can share the work; False once the file system has refused a lock."""
        return self._file.can_lock

    @property
    def has_fillers(self) -> bool:
        """True if another process fills the archive; False where the system cannot tell."""
        return self._file.is_locked(format.LOCK_FILLER, format.FILLERS)

    def join_fillers(self) -> bool:
        """Let others see, until the archive is closed, that this process writes it; whether no other did."""
        is_first = not self.has_fillers
        # Of several that begin at once, one gets the first byte.
        if self._file.try_lock(format.LOCK_FILLER):
            return is_first
        own = os.getpid()
        for place in range(own, own + format.FILLERS):
            if self._file.try_lock(format.LOCK_FILLER + place % format.FILLERS):
                break
        return False

    def claim(self, number: int, most: int = 1) -> int:
        """Take a claim of a fill if nobody else has it, and at most so many from it on; returns how many."""
        # The first alone: where another has it, as is mostly so near others, one call says so.
        if not self._file.try_lock(format.LOCK_CLAIM + number):
            return 0
        while most > 1 and not self._file.try_lock(format.LOCK_CLAIM + number, most):
            most //= 2
        return most

    def wait(self, number: int) -> None:
        """Take a claim, waiting until its holder publishes or dies."""
        self._file.lock(format.LOCK_CLAIM + number)

    def release(self, number: int, count: int = 1) -> None:
        """Let go of so many claims from one on."""
        self._file.unlock(format.LOCK_CLAIM + number, count)


class Appender:
    """An archive in a file, open for appending by this process; any number of others may have it open too.

    Each publication takes the append lock, cuts the torn tail of a writer that died, and first takes in what
    others published. Nothing that was published is written again.
    """

    path: str
    head: format.Head

    def __init__(self, log: Log) -> None:
        self._pid = os.getpid()
        self._log = log
        self._claims = _Claims(log.file)
        self.path, self.head = log.file.path, log.head
        self._label_schema: tuple[Header, pa.Schema] | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        head: format.Head,
        *,
        mode: Literal["r+", "a", "x"],
        sync: Sync = "seal",
        begins_anew: Callable[[format.Head], bool] | None = None,
        joins: bool = False,
    ) -> Appender:
        """Open an archive, or make one with `head`; of two processes that do so at once, one's head stays.

        mode: as of `File.open`. begins_anew: whether an archive with another head gives way to a new
            one, where its first fill failed before its first sample and no process writes it.
        joins: whether others see from the start that this process writes it.
        """
        name = os.fspath(path)
        storage.make_parent(name)
        if begins_anew is not None:
            discard_abandoned(name, begins_anew)
        file = File.open(name, mode)
        try:
            with file.locked(format.LOCK_APPEND):
                if lacks_head(file, head):
                    # Not where it is empty: ext4 writes a file that was cut to nothing out when it is closed.
                    if file.size():
                        file.truncate(0)
                    file.pwrite(0, format.pack_head(head))
                    # Whatever sync= says: without its head no chunk is found again.
                    file.sync()
                    storage.sync_directory(os.path.dirname(name))
                log = Log(file, *format.read_head(file.pread, name), sync)
                recover_log(log)
                appender = cls(log)
                if joins:
                    appender.claims.join_fillers()
        except BaseException:
            file.close()
            raise
        return appender

    @property
    def chain(self) -> Chain:
        """The entries, as far as this process has seen them."""
        return self._log.chain

    @property
    def claims(self) -> _Claims:
        """The claims: which process computes which samples."""
        self.check_usable()
        return self._claims

    def catch_up(self) -> None:
        """Take in what others published since; reads headers only and takes no lock."""
        self.check_usable()
        self._log.catch_up()

    def presence(self) -> npt.NDArray[np.bool_]:
        """True for each sample that has a record, by the last root: bool [its length]."""
        root, read = self.chain.root, self._log.file.pread
        if root is None:
            return np.zeros(0, np.bool_)
        rows = np.frombuffer(read(root.index.offset, root.index.nbytes), format.ROW)
        present: npt.NDArray[np.bool_] = rows["flags"] & format.PRESENT > 0
        return present

    def indices_of(self, chunks: Iterable[Header]) -> Ints:
        """The samples in these chunks, in their order: int64 [n], a copy; reads their tables."""
        return np.concatenate(
            [np.empty(0, np.int64), *(self._log.table(header).samples for header in chunks)]
        )

    def label_schema(self) -> pa.Schema | None:
        """Names and types of the label columns that chunks have; None if nothing is published yet."""
        chain = self.chain
        if chain.behind:
            header = chain.behind[-1]  # in types that hold the values of all chunks before it
            if self._label_schema is None or self._label_schema[0] != header:
                self._label_schema = header, self._log.table(header).labels.schema
            return self._label_schema[1]
        if chain.root is None or not chain.chunks:
            return None
        # A column that was dropped takes any values again, which nobody sees.
        names, dropped = [name for name, _ in self.head.labels], chain.root.dropped
        known = {name: column.type for name, column in chain.root.labels.items() if name not in dropped}
        return pa.schema([(name, known.get(name, pa.null())) for name in names])

    def append(self, chunk: Chunk, *, max_bytes: int | None = None) -> None:
        """Publish a chunk: afterwards every reader that looks finds it, whatever becomes of this process.

        Raises:
            LabelError: its label columns do not go with those of the archive.
            StorageError: the disk is full or fails; with EFBIG, the archive would grow beyond max_bytes.
        After a LabelError nothing was published. After any other exception, an interrupt too, opening the
        archive again tells.
        """
        with self._appending():
            if chunk.appended:
                chunk = chunk.moved(self.chain.end_index)
            known, labels = self.label_schema(), chunk.labels
            if known is not None and known != labels.schema:
                schema = format.joined_schema(known, labels.schema, self.path)
                self._log.check_widened(known, schema)
                labels = format.cast_table(labels, schema, self.path)
            self._log.append_chunk(replace(chunk, labels=labels), max_bytes)
            self._label_schema = self.chain.behind[-1], labels.schema

    def amend(self, **changes: object) -> None:
        """Revise the head's `length`, and `fingerprint`; or tell of samples that `failed`."""
        with self._appending():
            text = json.dumps(changes, ensure_ascii=True).encode("ascii")
            self._log.append(format.NOTE, [text])

    def change_labels(self, change: LabelChange) -> None:
        """Publish label columns of a sealed archive, and drop others; it stays sealed.

        Raises: ArchiveError, it is not sealed; LabelError, a column has another length than the archive.
        After a StorageError all of it is there or none.
        """
        with self._appending():
            root = self.chain.root
            if root is None or not self.chain.sealed:
                raise ArchiveError(
                    f"{self.path}: not sealed, so its labels cannot be changed yet; fill it first, with "
                    "CachedDataset(source, path) or warmup()",
                    path=self.path,
                )
            dropped = [name for name in change.dropped if name in root.labels]
            if change.labels.num_columns or dropped:
                self._log.seal(replace(change, dropped=dropped))

    def seal(self, change: LabelChange | None = None) -> None:
        """Write index, labels, root and zip directory behind the chain; nothing where they are there.

        change: of labels. Cost: it reads the table of every chunk, and writes 24 bytes a sample plus labels.
        """
        with self._appending():
            if not self.chain.sealed or change is not None:
                self._log.seal(change or LabelChange())

    def check_tables(self) -> None:
        """Read the tables that `seal` will read; raises CorruptArchiveError where one is damaged."""
        for header in self.chain.behind:
            self._log.table(header)

    def move(self, target: str) -> None:
        """Give the archive another path, in the place of what is there; see `storage.move`."""
        storage.move(self._log.file, target)
        self.path = target

    def _appending(self) -> AbstractContextManager[None]:
        self._check_open()
        self.check_usable()
        return self._log.appending()

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        # In a forked child, which lost what it inherited, another error says why.
        return self._pid == os.getpid() and self._log.file.closed

    def check_usable(self) -> None:
        """Raise ArchiveError after close() or in a forked child, StorageError after a failed sync."""
        log = self._log
        if log.file.closed:  # also in a forked child, of which no system call need say so
            self._check_open()
        if log.failed:
            raise StorageError(
                f"{self.path}: {log.failed}; open it again, which checks what is there", path=self.path
            )

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            # A child does not keep a file: every lock on it would be the parent's too.
            raise ArchiveError(
                f"{self.path}: opened for appending by process {self._pid}, used in its child "
                f"{os.getpid()}; open it again in the child",
                path=self.path,
            )
        if self._log.file.closed:
            raise ArchiveError(f"{self.path}: closed; open it again to append", path=self.path)

    def close(self) -> None:
        """Let go of it without sealing; idempotent, and nothing in a process that inherited it.

        StorageError where sync= is a number, and the last could not be synced.
        """
        try:
            if not self.closed and self._pid == os.getpid() and not self._log.failed:
                self._log.finish()
        finally:
            self._log.file.close()
