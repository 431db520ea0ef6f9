"""Append to an archive in a file: entries are read, published and synced.

A publication has LOCK_APPEND, and these steps. Encoding and compression come before, without the lock.

1. The path must still lead to this file. Entries of other processes are taken in.
2. Behind the last entry may stand a torn tail, bytes of a writer that died: it is cut off (`_mend_end`), whole entries
   in it with a copy beside (`_recover`). Damage is refused instead (format/tail.py tells them apart). A zip directory
   that is lost is written again.
3. The payload is written, and then the header: from now on every reader that looks sees the entry.
4. The entry is taken in, and synced if `sync=` says so.

Opening changes nothing but a file without a head. A caller asks next what it may refuse, then calls `recover`, which
asks the rest: damage, later releases, the sums of all that the next seal reads. Then alone it mends the end, so that a
writer that refuses has changed no byte. If the file was written before this machine last started, power may have been
lost, and so all payloads that were not synced are read. Bytes behind a loss are copied to a file beside, cut off, and
their sound records appended again (recovery.py).

With every `sync=`, a crash of the process loses nothing that was published, and the file holds no other bytes than were
written. After a power cut:

    sync=        an unsealed archive                              once `seal` returned
    "never"      any part may be missing, and is noticed          the same
    "seal"       the same                                         everything
    seconds      all that was published before the last sync      everything
    "chunk"      everything that was published                    everything

With a number of seconds, the first publication that many seconds after the last sync is synced, and so is the
archive when it is closed. tests/faults/test_filesystems.py and tests/faults/test_crash_states.py hold every line of
this table.

What must never happen: that a header is in the file before its payload; that an entry is changed once it is published;
that a sound sample is cut off and neither appended again nor kept beside; that a byte changes before all was asked that
may refuse; that an appender goes on after a sync that failed, since the kernel may have dropped bytes that it could not
write.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from edcache import format, storage
from edcache.base import (
    ArchiveError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    EdcacheError,
    Ints,
    StaleArchiveError,
    StorageError,
    Sync,
    on_error,
)
from edcache.format import Chain, ChunkTable, Contents, Failure, Head, Header, pa
from edcache.storage import File
from edcache.writer.chunk import Chunk
from edcache.writer.entry_group import EntryGroup
from edcache.writer.recovery import (
    Aside,
    check_seal,
    check_writable,
    discard_abandoned,
    lacks_head,
    recovered,
)

_MOST_REPLACED: Final = 20

Lacking: TypeAlias = Callable[[Chunk], Chunk]
"""Leaves out of a chunk the samples that the archive has. Asked under the append lock: no process can publish then."""


def retry_if_replaced(run: Callable[[], object], is_done: Callable[[], bool] = lambda: False) -> None:
    """Call `run`; if another process replaces the archive meanwhile, call it again, unless `is_done` says True."""
    for _ in range(_MOST_REPLACED):
        with suppress(StaleArchiveError):
            run()
            return
        if is_done():
            return
    run()


class Claims:
    """Claims of an archive: locks that tell which process computes which samples (format/entries.py has all locks).

    Claim k is of `claim_size` consecutive samples. The process that has it publishes them before it frees it, so the
    next holder looks at the archive first and finds the samples that are left.
    """

    def __init__(self, file: File) -> None:
        self._file = file

    @property
    def has_fillers(self) -> bool:
        """True if another process fills the archive; False if the system cannot tell."""
        return self._file.is_locked(format.LOCK_FILLER, format.FILLERS)

    def join_fillers(self) -> bool:
        """Show others, until the archive is closed, that this process writes it; return True if no other did."""
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
        """Take up to `most` claims from `number` on; return how many: 0 if another process has the first."""
        # The first alone: near other processes they mostly have it, and one call says so.
        if not self._file.try_lock(format.LOCK_CLAIM + number):
            return 0
        while most > 1 and not self._file.try_lock(format.LOCK_CLAIM + number, most):
            most //= 2
        return most

    def wait(self, number: int) -> None:
        """Take a claim; waits until the process that has it frees it or ends."""
        self._file.lock(format.LOCK_CLAIM + number)

    def release(self, number: int, count: int = 1) -> None:
        """Free `count` claims from `number` on."""
        self._file.unlock(format.LOCK_CLAIM + number, count)


class Appender:
    """Archive in a file, open for appending by this process; any number of others may have it open too.

    Attributes:
        head: of the archive. chain: its entries, as far as this process has seen them.
        claims: locks that say which process computes which samples.
        syncs: False if nothing is ever synced.
    """

    def __init__(self, file: File, head: Head, head_header: Header, sync: Sync) -> None:
        self.file, self.head = file, head
        self.chain = Chain(head, head_header, file.path)
        self.syncs = sync != "never"
        self._pid = os.getpid()
        self.claims = Claims(file)
        self._label_schema: tuple[Header, pa.Schema] | None = None
        # From one sync to the next; None: before the headers of a seal only.
        self._seconds = 0 if sync == "chunk" else None if isinstance(sync, str) else sync
        self._synced = time.monotonic()
        self._has_unsynced = False
        # A sync failed: all writes since the last one are in doubt.
        self._is_failed = False
        # State of the chain when this process opened the archive.
        self._was_reordered = False
        self._is_recovered = False

    @classmethod
    def open(
        cls,
        where: str | os.PathLike[str] | File,
        head: Head | None,
        *,
        mode: Literal["a", "x"] = "a",
        sync: Sync = "seal",
        begins_anew: Callable[[Head], bool] | None = None,
        joins: bool = False,
    ) -> Appender:
        """Open an archive, or make one with `head`; if two processes make it at once, it has the head of one.

        Of an archive nothing changes. `recover` mends it; the first publication does, if the caller does not.

        where: a path, or a new file, which is open and is closed with this. head: None opens an archive that is there.
        mode: as of `File.open`, if there is a head.
        begins_anew: asked with the head of an archive that no process writes, and whose first fill failed before its
            first sample. True deletes it, and a new one is made.
        joins: True shows others from the start that this process writes it.
        """
        if isinstance(where, File):
            file = where
        else:
            name = os.fspath(where)
            if head is not None:
                storage.make_parent(name)
            if begins_anew is not None:
                discard_abandoned(name, begins_anew)
            file = File.open(name, "r+" if head is None else mode)
        with on_error(file.close), file.locked(format.LOCK_APPEND):
            if head is not None and lacks_head(file, head):
                # Not of an empty file: ext4 writes a file that was cut to nothing out when it is closed.
                if file.size():
                    file.truncate(0)
                file.pwrite(0, format.pack_head(head))
                # With every sync=: without its head no chunk is found again.
                file.sync()
                storage.sync_directory(os.path.dirname(file.path))
            appender = cls(file, *format.read_head(file.pread, file.path), sync)
            appender.catch_up()
            check_writable(appender.chain)
            appender._was_reordered = appender.chain.is_reordered
            if joins:
                appender.claims.join_fillers()
        return appender

    def recover(self) -> None:
        """Mend what a crash left of the file, once all was asked that may refuse samples.

        A kill leaves a torn tail. A power cut may take any bytes that were not synced: so if the machine was started
        since, all entries are read that are not durable. Damaged ones are cut off, or count no more. Each sound sample
        is kept.

        Raises: CorruptArchiveError, the archive is damaged, or the next seal could not read what it needs;
        LaterReleaseError.
        """
        with self._locked():
            self._recover(appends=True)

    def _recover(self, appends: bool) -> None:
        """See `recover`. The append lock is held. appends: True if samples will be appended, and sealed."""
        file, is_fresh = self.file, storage.is_fresh(self.file)
        damage = format.find_damage(self.chain, file.pread, file.next_data, file.size(), is_fresh)
        if damage is not None:
            raise CorruptArchiveError(
                f'{self.path}: {damage}: it is damaged there; "edcache copy {self.path} -o NEW '
                '--skip-damaged" keeps what is sound',
                path=self.path,
            )
        loss = format.NO_LOSS
        if not is_fresh:
            # A recovery that has ended is on the disk. Until then what it has renewed may be lost again.
            has_ended = not storage.exists(file.absolute + storage.RECOVERY)
            loss = format.find_loss(self.chain, file.pread, self.chain.lost if has_ended else ())
        if loss.end is not None:
            self.chain = Chain(*format.read_head(file.pread, self.path), self.path)
            self.chain.extend(file.pread, loss.end)
            self._was_reordered = self._was_reordered and self.chain.is_reordered
        if appends or loss.chunks or file.size() > self.chain.end:
            self._check_tables([one.number for one in loss.chunks])
        if appends:
            check_seal(self.chain, file.pread)
        self._is_recovered = True
        # In the same boot no entry that counts stands behind the end: it would be damage.
        is_needed = bool(loss.chunks or loss.ends)
        aside = None if is_fresh else Aside.begin(file, self.chain, is_needed)
        if aside is None:
            self._mend_end()
            return
        with closing(aside):
            for at, directory in loss.ends:
                file.pwrite(at, directory)
            self._mend_end()
            # Else a seal counts as it is, and only bytes behind it are gone.
            if loss.chunks or aside.chunks or aside.notes or not self.chain.sealed:
                self._renew(loss.chunks, aside.chunks, aside.notes)
            aside.end(file)

    def _renew(self, chunks: list[Header], others: list[Chunk], notes: list[dict[str, Any]]) -> None:
        """Append the sound records of chunks that lost something, then a note that names these chunks as lost.

        others, notes: chunks and notes that stood behind a lost header, and were cut off with it.
        """
        lost, sound = [header.number for header in chunks], others
        for header in reversed(chunks):
            whole = [
                one
                for one in self.chain.chunks
                if one.kind == header.kind == format.CHUNK
                and one.number > header.number
                and one.number not in lost
            ]
            sound = [*recovered(self.file, header, self.indices_of(whole)), *sound]
        # Before the chunks: the last one that counts says the types of labels.
        self.chain.forget(lost)
        # Until the note is there no header may call the bytes before it durable.
        seconds, self._seconds = self._seconds, None
        for chunk in sound:
            self._append(chunk)
        self._amend({"lost": lost})
        for note in notes:
            self._amend({key: value for key, value in note.items() if key != "lost"})
        self._seconds = seconds
        self.sync()

    def _check_tables(self, lost: Collection[int]) -> None:
        """Read the tables of the chunks behind the last root, as a seal does.

        lost: numbers of chunks that lost something to a power cut. Raises: CorruptArchiveError, LaterReleaseError.
        """
        table = None
        for header in self.chain.behind:
            if header.number not in lost:
                table = self.table(header)
        if table is not None:
            _ = table.labels  # in types that hold the values of all chunks before it

    @property
    def path(self) -> str:
        """Path of the file, also once it was moved."""
        return self.file.path

    def catch_up(self) -> None:
        """Take in the entries that others published since; reads headers only and takes no lock."""
        self.check_usable()
        self.chain.extend(self.file.pread, self.file.size())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the append lock for the block, with the entries of others taken in. Raises: LaterReleaseError."""
        self.check_usable()
        with self.file.locked(format.LOCK_APPEND):
            self.catch_up()
            check_writable(self.chain)
            yield

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Hold the append lock for the block, with the entries of others taken in and no torn tail."""
        with self._locked():
            if not self.file.is_named():
                raise StaleArchiveError(
                    f"{self.path}: deleted, or another file has taken its place, while it was open for "
                    "appending; open it again",
                    path=self.path,
                )
            if not self._is_recovered or self.file.size() > self.chain.end:
                self._recover(appends=False)
            else:
                self._mend_end()
            yield

    def _mend_end(self) -> None:
        """Cut off what stands behind the end, and write the zip directory if it is not there.

        `_recover` has kept whole entries beside. No other function cuts what others wrote.
        """
        chain, end = self.chain, self.chain.end
        if self.file.size() > end:
            self.file.truncate(end)
            if self.syncs:
                # So that a power cut brings nothing of it back, in a header in its place or between entries.
                self.file.sync()
        if chain.sealed:
            assert chain.root_header is not None
            at, directory = chain.root_header.payload_end, chain.directory()
            if self.file.pread(at, len(directory)) != directory:
                self.file.pwrite(at, directory)

    # --- reading ---

    def table(self, header: Header) -> ChunkTable:
        """Read the table of a chunk."""
        return format.read_table(self.file.pread, header, self.path)

    def indices_of(self, chunks: Iterable[Header]) -> Ints:
        """Return the samples of chunks, in their order: int64 [n], a copy; reads their tables."""
        return np.concatenate([np.empty(0, np.int64), *(self.table(header).samples for header in chunks)])

    def label_schema(self, maker: str = "") -> pa.Schema | None:
        """Names and types of the label columns that chunks have; None if nothing is published yet.

        maker: of parts, whose types count too.
        """
        chain = self.chain
        last_part = next((one for one in reversed(chain.parts) if _are_alike(one.maker, maker)), None)
        if last_part is not None or chain.behind:
            # In types that hold the values of all chunks before it.
            header = chain.behind[-1] if last_part is None else last_part
            if self._label_schema is None or self._label_schema[0] != header:
                self._label_schema = header, self.table(header).labels.schema
            return self._label_schema[1]
        if chain.root is None or not chain.chunks:
            return None
        # A column that was dropped takes any values again; no reader sees them.
        names, dropped = [name for name, _ in self.head.labels], chain.root.dropped
        known = {name: column.type for name, column in chain.root.labels.items() if name not in dropped}
        return pa.schema([(name, known.get(name, pa.null())) for name in names])

    def first_lost(self) -> int | None:
        """Return the first sample without a record; None if all have one, or if no power cut took any.

        Cost: reads the rows, if a power cut took something since the last seal.
        """
        if not self.chain.has_lost:
            return None
        held = Contents(self.chain, self.file.pread, self.table).held()
        first = int(np.argmin(np.append(held, -1) == np.arange(len(held) + 1)))
        return first if first < self.chain.end_index else None

    # --- publication ---

    def append(
        self,
        chunk: Chunk,
        *,
        max_bytes: int | None = None,
        lacking: Lacking | None = None,
    ) -> None:
        """Publish a chunk: afterwards every reader that looks finds it, even if this process is killed.

        lacking: asked under the lock for the part that the archive lacks; None: its samples replace stored ones.
        Raises:
            LabelError: its label columns do not fit into columns of the archive.
            StorageError: the disk is full or fails; with EFBIG, the archive would grow beyond max_bytes.
        After a LabelError nothing was published. After any other exception, an interrupt too, opening the
        archive again tells.
        """
        with self.appending():
            check_order(self.chain, self._was_reordered)
            if lacking is not None:
                chunk = lacking(chunk)
                if not chunk.count:
                    return
            self._append(chunk, max_bytes)

    def _append(self, chunk: Chunk, max_bytes: int | None = None) -> None:
        if chunk.continues:
            chunk = chunk.moved(self.chain.end_index)
        labels = self._joinable(chunk)

        def write(group: EntryGroup) -> None:
            entry = group.write_chunk(chunk, labels)
            if max_bytes is not None and entry.next > max_bytes:
                error = OSError(errno.EFBIG, f"the archive would grow beyond max_bytes={max_bytes:,}")
                raise storage.storage_error(self.path, "appending", error)

        self._label_schema = self._publish(write), labels.schema

    def _joinable(self, chunk: Chunk) -> pa.Table:
        """Cast the labels of a chunk to types that hold the values of all chunks before, too.

        Raises: LabelError, no type holds both; or floats come to a column with integers that a float would round.
        Cost: reads a column, if its type changes from integers to floats.
        """
        labels, known = chunk.labels, self.label_schema(chunk.maker)
        if known is None or known == labels.schema:
            return labels
        schema = format.joined_schema(known, labels.schema, self.path)
        for name, old, new in zip(known.names, known.types, schema.types, strict=True):
            if format.is_widened(old, new):
                parts = waiting_parts(self.chain, chunk.maker)
                contents = Contents(self.chain, self.file.pread, self.table, parts=parts)
                column = pa.chunked_array([contents.column(name)])
                format.check_widened(name, column, new, self.path)
        return format.cast_table(labels, schema, self.path)

    def note_failures(self, failures: Sequence[Failure], maker: str = "") -> None:
        """Tell of samples that failed. maker: of parts, whose samples have the numbers of their source; see `Chunk`."""
        told = {"maker": maker} if maker else {}
        self.amend(failed=[failure.to_json() for failure in failures], **told)

    def amend(self, **changes: object) -> None:
        """Revise the head's `length`, and `fingerprint`; or tell of samples that `failed`."""
        with self.appending():
            check_order(self.chain, self._was_reordered)
            self._amend(changes)

    def _amend(self, changes: Mapping[str, object]) -> None:
        text = json.dumps(changes, ensure_ascii=True).encode("ascii")
        name = f"notes/{self.chain.cursor.number:08d}"
        self._publish(lambda group: group.entry(format.NOTE, name).write(text))

    def _publish(self, write: Callable[[EntryGroup], None]) -> Header:
        """Publish a chunk or a note, whose payload `write` writes; sync it if `sync=` says so."""
        group = EntryGroup(self.file, self.chain)
        with self.giving_back_space():
            write(group)
            headers = group.headers(self.chain.durable)
            group.publish(headers)
        self.chain.add(self.file.pread, headers)
        (header,) = headers
        self._has_unsynced = True
        if self._seconds is not None and time.monotonic() - self._synced >= self._seconds:
            self.sync()
        elif self.syncs:
            self.file.write_back(header.offset, header.next - header.offset)
        return header

    @contextmanager
    def giving_back_space(self) -> Iterator[None]:
        """Cut off the unpublished bytes of the block if it raises, as on a full disk or by labels that do not fit."""
        end = self.chain.end
        try:
            yield
        except EdcacheError:
            # The block's own error is the one to report, and the next append cuts the tail anyway.
            with suppress(StorageError):
                self.file.truncate(end)
            raise

    # --- syncs, and the end ---

    def sync(self) -> None:
        """Sync all entries of the chain, unless `sync=` is "never"; the headers that follow say so."""
        if not self.syncs:
            return
        end = self.chain.cursor.offset
        try:
            self.file.sync()
        except StorageError:
            self._is_failed = True
            raise
        self.chain.durable = max(end, self.chain.durable)
        self._synced, self._has_unsynced = time.monotonic(), False

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        # In a forked child, which lost the file that it inherited, another error says why.
        return self.file.closed and self._pid == os.getpid()

    def check_usable(self) -> None:
        """Raise ArchiveError after close() or in a forked child, StorageError after a failed sync."""
        if not (self.file.closed or self._is_failed):  # a child has lost the file
            return
        if self._pid != os.getpid():
            # A child does not keep a file: every lock on it would be the parent's too.
            raise ArchiveError(
                f"{self.path}: opened for appending by process {self._pid}, used in its child "
                f"{os.getpid()}; open it again in the child",
                path=self.path,
            )
        if self.file.closed:
            raise ArchiveError(f"{self.path}: closed; open it again to append", path=self.path)
        raise StorageError(
            f"{self.path}: a sync failed, so what was written since the last one is in doubt; open it again, which "
            "checks what is there",
            path=self.path,
        )

    def close(self) -> None:
        """Close the file without sealing; idempotent, and nothing in a process that inherited it.

        StorageError if sync= is a number, and the last entries could not be synced.
        """
        try:
            is_usable = not (self.file.closed or self._is_failed)
            if is_usable and self._has_unsynced and self._seconds is not None:
                self.sync()
        finally:
            self.file.close()


def waiting_parts(chain: Chain, maker: str) -> list[Header]:
    """List the parts that wait for a root, and have samples that are made as a mark says; for any keys."""
    return [one for one in chain.parts if _are_alike(one.maker, maker)]


def _are_alike(one: str, other: str) -> bool:
    """True if the mark of a part says of its samples what another mark says; a fill that compares nothing takes any.

    The first half of a mark tells how samples are made, the second their keys (writer/refill.py).
    """
    how = other.partition("-")[0]
    return bool(other) and how in ("any", one.partition("-")[0])


def check_order(chain: Chain, was_reordered: bool) -> None:
    """Raise StaleArchiveError if another process gave samples other numbers than this one counts by."""
    if chain.is_reordered and not was_reordered:
        raise other_order(chain.where)


def other_order(path: str) -> StaleArchiveError:
    """Make the error of an archive whose samples got other numbers while it was open."""
    return StaleArchiveError(
        f"{path}: another process has put its samples into another order, while it was open for appending; "
        "open it again",
        path=path,
    )


def recover(path: str) -> None:
    """Mend what a crash left of an archive, for a process that reads before it writes; nothing if no file is there."""
    # One that is replaced meanwhile is not read. What changed is synced, as the next writer may rely on it.
    gone = suppress(ArchiveNotFoundError, StaleArchiveError)
    with gone, closing(Appender.open(path, None)) as appender, appender.appending():
        pass
