"""Saving: the stored records of a view copied into a new archive, each compared with its crc32, none decoded.

The new archive is written beside its path, as `path + ".edcache.new"`, and gets its name in one step once it
is sealed and on the disk (writer/temporary.py).
"""

from __future__ import annotations

import copy
import os
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import base, format, storage, writer
from edcache.base import (
    ArchiveError,
    ArchiveExistsError,
    CorruptArchiveError,
    CorruptRecordError,
    EdcacheError,
    Ints,
    OptionError,
    StaleArchiveError,
)
from edcache.codec import stored_fields
from edcache.dataset.indexing import Readable, Stored, label_fields, stored_shares
from edcache.format import Extent, Failure, Head, Records, Revision, pa
from edcache.reader import OnProgress, Reader, Session
from edcache.storage import File
from edcache.writer import CHUNK_NBYTES, Appender, Chunk

# Bytes of a record's rows in the table of its chunk and in the index.
_ROW_NBYTES: Final = 64
_DIGITS: Final = 5


def save(
    samples: Readable[Any],
    path: str | os.PathLike[str],
    max_size: int | str | None,
    skip_damaged: bool,
    on_progress: OnProgress | None,
) -> list[str]:
    """Write the archives of `Samples.save`, which documents the arguments; returns their paths."""
    target = storage.local_path(path)
    records = StoredRecords(samples, skip_damaged)
    parts, targets = [range(records.length)], [target]
    over = None
    if max_size is not None:
        nbytes = base.parsed_bytes(max_size)
        if nbytes is None:
            raise OptionError(f'save(): max_size={base.shown(max_size)}; give bytes, or text such as "2GB"')
        parts = list(records.parts(nbytes))
        stem, ending = os.path.splitext(target)
        digits = max(_DIGITS, len(str(len(parts) - 1)))
        targets = [f"{stem}-{number:0{digits}}{ending}" for number in range(len(parts))]
    elif (over := records.archive_at(target)) is not None:
        targets = [storage.followed(target)]
    # Refused before anything is written.
    for name in targets:
        with _replaceable(name, over):
            pass
    written: list[str] = []
    try:
        for part, name in zip(parts, targets, strict=True):
            _write(records, part, name, over, on_progress or (lambda done, total: None))
            written.append(name)
    except BaseException:
        for name in written:
            # The exception that led here is the one to report.
            with suppress(EdcacheError):
                storage.remove(name)
        raise
    if records.damaged:
        places = base.index_ranges(np.array(records.damaged), hint="; `missing` has all")
        count = f"{len(records.damaged):,} of {records.length:,} samples"
        base.warn(
            f"{target}: the records of {count} are damaged and were left out: {places}",
            base.PartialArchiveWarning,
        )
    return [target] if max_size is None else targets


def tolerant(reader: Reader, opened: list[Session]) -> Reader:
    """Read an archive by what is left of it; if it is opened once more for that, `opened` gets it."""
    other, before = copy.copy(reader), reader.session
    try:
        other.distrust_damage()
    finally:
        if other.session is not before:
            opened.append(other.session)
    return other


# -------------------------------------------------------------------------------------- what is copied


class StoredRecords:
    """The records of a view's samples, in its order, as they lie in open archives.

    Attributes:
        length: samples of the view. labels: their table, a row each.
        readers, sessions: the archives in which the records lie. schemas: texts, each once.
        table: a row for each record, by rising place. `index` has the places in the view, `schema` positions
            in `schemas`.
        ends: int64 [k], bytes of the records up to each.
        source, sample: int64 [k], of each row the number of its archive, and the index of its sample there.
        failures: why samples have no record, by rising place.
        is_whole: the view is all of one archive, in its order.
        skips_damage: damaged records are left out; `damaged` gets their places.
    """

    def __init__(self, samples: Readable[Any], skips_damage: bool) -> None:
        self.length, self.skips_damage = len(samples), skips_damage
        positions = np.arange(self.length)
        shares = list(stored_shares(samples, positions, positions))
        archives = list(dict.fromkeys(archive for archive, _, _ in shares))
        self.readers = [archive._readers[0] for archive in archives]
        self.sessions = [reader.session for reader in self.readers]
        self._check_alike()
        self.schemas = list(dict.fromkeys(text for one in self.sessions for text in one.index.schemas))
        if len(self.schemas) > format.MAX_SCHEMAS:
            count = f"{len(self.schemas):,} structures of samples together"
            raise OptionError(f"save(): {count}, an archive holds {format.MAX_SCHEMAS:,}")
        self._numbers = {text: number for number, text in enumerate(self.schemas)}
        self.labels = samples.labels.table.combine_chunks()
        self.damaged: list[int] = []
        self.failures: list[Failure] = []
        found = [self._found(archives.index(share[0]), share) for share in shares]
        columns = {name: np.concatenate([rows[name] for rows in found]) for name in found[0]}
        order = np.argsort(columns["index"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        self.source, self.sample = columns.pop("source"), columns.pop("sample")
        self.table = Records(**columns)
        self.ends = np.cumsum(self.table.nbytes.astype(np.int64))
        self.failures.sort(key=lambda failure: failure.index)
        own = np.arange(len(self.readers[0]))
        self.is_whole = len(shares) == 1 and np.array_equal(shares[0][1], own)
        if not skips_damage:
            self._check_missing(samples)
        self._warn_of_mixture()

    def _warn_of_mixture(self) -> None:
        """Warn if samples of two archives have no structure in common, as tensors and image files."""
        first, *others = [list(map(_fields_text, one.index.schemas)) for one in self.sessions]
        for session, own in zip(self.sessions[1:], others, strict=True):
            if first and own and not {*first} & {*own}:
                path = self.sessions[0].path
                base.warn(
                    f"save(): samples of {path} have {first[0]}, those of {session.path} have {own[0]}; no "
                    "batch holds both"
                )
                return

    def _found(self, number: int, share: Stored) -> dict[str, npt.NDArray[Any]]:
        """The records of samples of one archive, by column, and where they come from."""
        _, indices, places = share
        session = self.sessions[number]
        rows = session.index.rows_of(indices)
        has_record = rows >= 0
        self._note_failures(session, indices[~has_record], places[~has_record])
        records = session.index.table().records.take(rows[has_record])
        schemas = np.array([self._numbers[text] for text in session.index.schemas], np.uint16)
        if np.any(records.schema >= len(schemas)):
            raise CorruptArchiveError(
                f"{session.path}: records are of schema {records.schema.max()}, there are {len(schemas)}; "
                f'run "edcache verify {session.path}"',
                path=session.path,
            )
        return {
            "index": places[has_record],
            "offset": records.offset,
            "nbytes": records.nbytes,
            "crc32": records.crc32,
            "schema": schemas[records.schema],
            **({} if records.raw_nbytes is None else {"raw_nbytes": records.raw_nbytes}),
            "source": np.full(len(records.offset), number),
            "sample": indices[has_record],
        }

    def _note_failures(self, session: Session, indices: Ints, places: Ints) -> None:
        """Keep why samples that have no record failed when they were made."""
        failures = {failure.index: failure for failure in session.index.failures}
        failed = np.isin(indices, np.array(list(failures), np.int64))
        pairs = zip(indices[failed].tolist(), places[failed].tolist(), strict=True)
        self.failures += [replace(failures[index], index=place) for index, place in pairs]

    def _check_missing(self, samples: Readable[Any]) -> None:
        """Raise ArchiveError if samples may be missing that did not fail for good."""
        missing = self.length - len(self.table.offset) - sum(failure.final for failure in self.failures)
        open_ended = [
            session.path
            for session in self.sessions
            # Nobody knows how many samples were to come.
            if not session.sealed and session.chain.length is None and self.length >= session.length
        ]
        if missing or open_ended:
            why = f"{missing:,} of {self.length:,} samples have no record"
            why = why if missing else f"{open_ended[0]} is not sealed, so samples may be missing"
            raise ArchiveError(
                f"save(): {samples!r}: {why}; fill it, or pass skip_damaged=True, which leaves them out",
                option="skip_damaged",
            )

    def archive_at(self, target: str) -> Session | None:
        """The archive at the target, which is saved over itself; OptionError if samples would go."""
        if not storage.exists(target):
            return None
        with closing(File.open(target, "r")) as file:
            identity = file.identity()
        session = next((one for one in self.sessions if one.file.identity() == identity), None)
        if session is not None and not self.is_whole:
            raise OptionError(
                f"{target}: save() replaces an archive only by all of its samples in their order; "
                "give another path"
            )
        return session

    def parts(self, max_size: int) -> Iterator[range]:
        """Consecutive places whose records and labels have about so many bytes, one place at the least."""
        nbytes = np.full(self.length, self.labels.nbytes // max(1, self.length))
        nbytes[self.table.samples] += self.table.nbytes.astype(np.int64) + _ROW_NBYTES
        ends = np.cumsum(nbytes)
        start = 0
        while start < self.length or not start:
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + max_size, "right")), start + 1)
            yield range(start, min(stop, self.length))
            start = stop

    def _check_alike(self) -> None:
        """Raise OptionError if the archives store records in different ways."""
        (path, way), *others = [(session.path, _way_of(session.head)) for session in self.sessions]
        for other, another in others:
            if another != way:
                raise OptionError(
                    f"save(): {path} is of {way}, {other} of {another}; save them apart, or store what the "
                    "view gives: CachedDataset(view, path)"
                )

    def joint_head(self, length: int) -> Head:
        """The head of an archive of some of the samples, which no call makes, so without a fingerprint."""
        first, fields = self.sessions[0].head, label_fields(self.readers)
        return Head(
            uuid=uuid.uuid4().bytes,
            length=length,
            codec=first.codec,
            compression=first.compression,
            labels=tuple((name, fields.get(name)) for name in self.labels.column_names),
            claim_size=first.claim_size,
        )


def _fields_text(schema: str) -> str:
    """The fields of samples and their kinds, in words."""
    fields = (
        f"{'.'.join(map(str, field.path)) or 'sample'}: {field.kind}" for field in stored_fields(schema)
    )
    return ", ".join(fields) or "no fields"


def _way_of(head: Head) -> str:
    """How records are stored, in words. Records that are compressed say themselves at which level."""
    return f"codec={base.shown(head.codec)}, {'' if head.compression else 'not '}compressed"


# ------------------------------------------------------------------------------------------ the copying


def _write(
    records: StoredRecords, part: range, target: str, over: Session | None, on_progress: OnProgress
) -> None:
    """Write a sealed archive of consecutive places of the view. over: the archive that it replaces."""
    reader = records.readers[0]
    labels, revision = records.labels.slice(part.start, len(part)), None
    if records.is_whole and len(part) == records.length:
        own = reader.origin.uuid if over is not None else uuid.uuid4().bytes
        head = replace(reader.origin, uuid=own, length=reader.declared_length)
        labels, revision = _original_labels(records.sessions[0], labels)
    else:
        head = records.joint_head(len(part))
    with writer.replacing(target) as file:
        source = records.sessions[0].file
        if isinstance(source, File) and source.is_live:  # no copy in shared memory
            storage.copy_permissions(source.path, file.path)
        with closing(Appender.open(file.path, head, mode="r+")) as out:
            absent = _copy_records(records, part, labels, out, on_progress)
            changes: dict[str, Any] = {}
            if max(out.chain.length or 0, out.chain.end_index) < len(part):
                changes["length"] = len(part)
            failed = [one for one in records.failures if one.index in part]
            if failed:
                changes["failed"] = [replace(f, index=f.index - part.start).to_json() for f in failed]
            if changes:
                out.amend(**changes)
            if revision is not None:
                out.revise(revision)
            left = format.labelled_columns(format.take_rows(labels, absent))
            if left.num_columns:
                out.revise(Revision(left, (), absent))
            out.seal()
            with _replaceable(target, over):
                out.move(target)


def _original_labels(session: Session, labels: pa.Table) -> tuple[pa.Table, Revision | None]:
    """The columns that chunks of the whole archive have, and the labels that were added, changed or dropped.

    Samples that are appended later have values in the former.
    """
    is_revised = dict(session.label_columns)
    names = [name for name, _ in session.head.labels]
    nulls = pa.nulls(labels.num_rows)
    columns = [nulls if is_revised.get(name, True) else labels.column(name) for name in names]
    original = pa.table(columns, names=names)
    revised = [name for name, is_later in is_revised.items() if is_later]
    ended = set(names) - is_revised.keys()
    if revised:
        # A column may have been dropped and added again: then later samples have no value in it.
        chain, pread = session.chain.copy(), session.file.pread
        chain.extend(pread, session.size)
        for header in chain.revisions:
            with suppress(CorruptArchiveError):
                ended.update(format.read_revision(pread, header, session.path).dropped)
    dropped = [name for name in names if name in ended]
    if not (revised or dropped):
        return original, None
    return original, Revision(labels.select(revised) if revised else pa.table({}), dropped, None)


def _copy_records(
    records: StoredRecords, part: range, labels: pa.Table, out: Appender, on_progress: OnProgress
) -> Ints:
    """Append the records of consecutive places, as chunks of about 4 MiB; returns places without one.

    labels: a row for each of the places. Places are counted from the first.
    """
    has_record = np.zeros(len(part), bool)
    low, high = np.searchsorted(records.table.samples, [part.start, part.stop]).tolist()
    total = int(records.table.nbytes.sum())
    on_progress(int(records.table.nbytes[:low].sum()), total)
    for rows in _chunk_rows(records.table.nbytes[low:high]):
        rows += low
        sound, data = _sound(records, rows)
        own = records.table.take(sound)
        places = own.samples - part.start
        has_record[places] = True
        if len(sound):
            chunk_labels = format.take_rows(labels, places)
            out.append(Chunk.of(replace(own, index=places), chunk_labels, records.schemas, data))
        on_progress(int(records.ends[rows[-1]]), total)
    return np.flatnonzero(~has_record)


def _chunk_rows(nbytes: npt.NDArray[np.uint64]) -> Iterator[Ints]:
    """Consecutive rows that make a chunk each: one that reaches `CHUNK_NBYTES` is full."""
    # Records of a few bytes take as much in the table.
    ends = np.cumsum(np.maximum(nbytes, 32).astype(np.int64))
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = min(int(np.searchsorted(ends, before + CHUNK_NBYTES)) + 1, len(ends))
        yield np.arange(first, last)
        first = last


def _sound(records: StoredRecords, rows: Ints) -> tuple[Ints, list[memoryview]]:
    """The rows whose records fit their crc32, and these records.

    Those of one archive are read together, in the order in which they lie.
    Raises: CorruptRecordError, a record does not; unless damage is skipped.
    """
    table, data = records.table, np.full(len(rows), None, object)
    for number in np.unique(records.source[rows]).tolist():
        own = np.flatnonzero(records.source[rows] == number)
        own = own[np.argsort(table.offset[rows[own]], kind="stable")]
        columns = (column[rows[own]].tolist() for column in (table.offset, table.nbytes, table.crc32))
        session = records.sessions[number]
        read = session.extents.checked(list(map(Extent, *columns)))
        for place, record in zip(own.tolist(), read, strict=True):
            if record is None and not records.skips_damage:
                row = rows[place]
                raise CorruptRecordError(
                    f"{session.path}: record {records.sample[row]} at offset {table.offset[row]:,} fails its "
                    "crc32; skip_damaged=True leaves it out",
                    path=session.path,
                    index=int(records.sample[row]),
                    option="skip_damaged",
                )
            data[place] = record
    is_sound = np.array([record is not None for record in data], bool)
    records.damaged += table.samples[rows[~is_sound]].tolist()
    return rows[is_sound], data[is_sound].tolist()


@contextmanager
def _replaceable(target: str, over: Session | None) -> Iterator[None]:
    """Let nobody append to the archive at a path for the block; without one nothing may be there.

    Raises: ArchiveExistsError, something is there; ArchiveError, somebody fills it; StaleArchiveError, it
    changed since it was opened.
    """
    if over is None:
        if storage.exists(target):
            raise ArchiveExistsError(f"{target}: exists already; give a path where nothing is")
        yield
        return
    path = over.path
    with closing(File.open(path, "r+")) as file, file.locked(format.LOCK_APPEND):
        if file.is_locked(format.LOCK_FILLER, format.FILLERS):
            raise ArchiveError(
                f"{path}: somebody writes it; save it when that has ended, or to another path", path=path
            )
        newer = over.look_again()
        if newer is not None:
            newer.close()
            raise StaleArchiveError(
                f"{path}: it changed since it was opened; refresh() it and save it again", path=path
            )
        yield
