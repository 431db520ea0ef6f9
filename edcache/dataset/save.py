"""Save a view: copy its stored records into a new archive; each is compared with its crc32, none decoded.

The new archive is written beside its path, as `path + ".edcache.new"`, and gets its name in one step once it is sealed
and on the disk (writer/temporary.py).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import base, format, storage, writer
from edcache.base import (
    ArchiveError,
    ArchiveExistsError,
    CorruptRecordError,
    Ints,
    LaterReleaseError,
    OptionError,
    StaleArchiveError,
)
from edcache.dataset.root import Reading, Share
from edcache.format import PRESENT, Failure, Head, Rows, pa
from edcache.reader import OnProgress, Row, Session
from edcache.storage import File
from edcache.writer import CHUNK_NBYTES, Appender, Chunk, LabelChange, seal

# Bytes of a record in the table of its chunk and in the index.
_ROW_NBYTES: Final = 64
_STORED: Final = format.PRESENT, format.PRESENT | format.COMPRESSED  # flags of most rows
_DIGITS: Final = 5


def save(
    samples: Reading,
    path: str | os.PathLike[str],
    max_size: int | str | None,
    skip_damaged: bool,
    force: bool,
    on_progress: OnProgress | None,
) -> list[str]:
    """Write the archives of `Samples.save`, which documents the arguments; returns their paths."""
    if skip_damaged:
        samples = samples.skipping_damage()
    records, target = StoredRecords(samples, skip_damaged), storage.located(path).local_path()
    parts, targets = [range(records.length)], [target]
    over = None
    if max_size is not None:
        nbytes = base.parsed_bytes(max_size)
        if nbytes is None:
            raise OptionError(f'save(): max_size={base.shown(max_size)}; give bytes, or text such as "2GB"')
        parts = records.parts(nbytes)
        stem, ending = os.path.splitext(target)
        digits = max(_DIGITS, len(str(len(parts) - 1)))
        targets = [f"{stem}-{number:0{digits}}{ending}" for number in range(len(parts))]
    elif (over := records.archive_at(target)) is not None:
        writer.check_writable(over.chain)
        targets = [storage.followed(target)]
    for session in records.sessions:
        writer.check_compression(session.head, session.path)
    least = 0 if over is None or force else _published(over)
    # Refused before anything is written.
    _check_kept(target, records, len(records.rows), least)
    for name in targets:
        with _replaceable(name, over):
            pass
    with ExitStack() as undo:
        for part, name in zip(parts, targets, strict=True):
            _write(records, part, name, over, least, on_progress or (lambda done, total: None))
            undo.callback(storage.try_remove, name)
        undo.pop_all()
    left_out = {"are damaged": records.damaged, "are stored as only a later release knows": records.later}
    for why, found in left_out.items():
        if found:
            places = base.index_ranges(np.unique(found), hint="; `missing` has all")
            count = f"{len(found):,} of {records.length:,} samples"
            base.warn(
                f"{target}: the records of {count} {why} and were left out: {places}",
                base.PartialArchiveWarning,
            )
    for line in [line for session in records.sessions for line in session.damaged]:
        base.warn(f"{line}; its samples were left out", base.PartialArchiveWarning)
    return [target] if max_size is None else targets


# -------------------------------------------------------------------------------------- records to copy


class StoredRecords:
    """Stored records of a view, in its order, in open archives.

    Attributes:
        length: samples of the view. labels: their table, a row each.
        sessions: of the archives with the records. schemas: texts, each once.
        rows: `format.ROW` [k] of the records, as in memory, with schemas of `schemas`, by rising place in the view.
        places: int64 [k], in the view. ends: bytes of the records up to each.
        source, sample: int64 [k], for each row the number of its archive, and its sample there.
        failures: of samples without a record, by rising place.
        is_whole: True if the view is all of one archive, in its order.
        skips_damage: True leaves out records that are damaged, or that only a later release knows; `damaged` and
            `later` get their places.
    """

    def __init__(self, samples: Reading, skips_damage: bool) -> None:
        self.length, self.skips_damage = len(samples), skips_damage
        shares = samples.stored()
        _check_as_stored(shares)
        self.sessions = list(dict.fromkeys(share.session for share in shares))
        self._check_alike()
        self.schemas = list(dict.fromkeys(text for one in self.sessions for text in one.index.schemas))
        if len(self.schemas) > format.MAX_SCHEMAS:
            count = f"{len(self.schemas):,} structures of samples together"
            raise OptionError(f"save(): {count}, an archive holds {format.MAX_SCHEMAS:,}")
        self._numbers = {text: number for number, text in enumerate(self.schemas)}
        self.labels = samples.labels.table.combine_chunks()
        self.damaged: list[int] = []
        self.later: list[int] = []
        self.failures: list[Failure] = []
        found = [self._find_records(self.sessions.index(share.session), share) for share in shares]
        columns = [np.concatenate(column) for column in zip(*found, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        self.places, self.rows, self.source, self.sample = (one[order] for one in columns)
        self.ends = np.cumsum(self.rows["nbytes"].astype(np.int64))
        self.failures.sort(key=lambda failure: failure.index)
        own = np.arange(self.sessions[0].length)
        self.is_whole = len(shares) == 1 and np.array_equal(shares[0].positions, own)
        if not skips_damage:
            self._check_missing(samples)

    def _find_records(self, number: int, share: Share) -> tuple[Ints, Rows, Ints, Ints]:
        """Look up records, and note the failures of samples without one.

        Returns: four arrays with an item a record: place in the copy, row, archive, index there.
        """
        indices, places, session = share.positions, share.places, self.sessions[number]
        rows = session.index.unbound_rows(indices)
        session.check_same()
        own, is_there = session.index.schemas, _have_records(session, rows)
        is_sound = is_there & _are_plausible(rows, len(own), session.nbytes)
        is_damaged = is_there & ~is_sound
        for index, place in zip(indices[is_damaged].tolist(), places[is_damaged].tolist(), strict=True):
            self.leave_out(session, index, place, "its row is damaged")
        self._note_failures(session, indices[~is_there], places[~is_there])
        rows = rows[is_sound]
        numbers = np.array([self._numbers[text] for text in own], np.int64)
        rows["schema"] = numbers[rows["schema"]]
        return places[is_sound], rows, np.full(len(rows), number), indices[is_sound]

    def leave_out(self, session: Session, sample: int, place: int, why: str) -> None:
        """Note a damaged record, by its place in the view. Raises: CorruptRecordError, unless damage is skipped."""
        self.damaged.append(place)
        if not self.skips_damage:
            raise CorruptRecordError(
                f"{session.checks.place(sample)} {why}; skip_damaged=True leaves it out",
                path=session.path,
                index=sample,
                option="skip_damaged",
            )

    def knows(self, session: Session, sample: int, place: int, row: Row) -> bool:
        """True if this release can store a sound record; notes another. Raises: LaterReleaseError, as `leave_out`.

        A table of the copy would have the unknown flag, and a seal refuses it.
        """
        try:
            session.checks.check_known(sample, row)
        except LaterReleaseError:
            self.later.append(place)
            if not self.skips_damage:
                raise
            return False
        return True

    def _note_failures(self, session: Session, indices: Ints, places: Ints) -> None:
        """Note the failures of samples without a record. indices: in the archive. places: in the view."""
        failures = {failure.index: failure for failure in session.index.failures}
        failed = np.isin(indices, np.array(list(failures), np.int64))
        pairs = zip(indices[failed].tolist(), places[failed].tolist(), strict=True)
        self.failures += [replace(failures[index], index=place) for index, place in pairs]

    def _check_missing(self, samples: Reading) -> None:
        """Raise ArchiveError if samples may be missing, but for final failures."""
        missing = self.length - len(self.rows) - sum(failure.final for failure in self.failures)
        open_ended = [
            session.path
            for session in self.sessions
            # The number of samples to come is unknown.
            if not session.sealed and session.declared_length is None and self.length >= session.length
        ]
        if missing or open_ended:
            why = f"{missing:,} of {self.length:,} samples have no record"
            why = why if missing else f"{open_ended[0]} is not sealed, so samples may be missing"
            is_keyed = all(session.head.takes_values for session in self.sessions)
            whole = "seal it by close(seal=True) of its KeyedCache" if is_keyed else "fill it"
            raise ArchiveError(
                f"save(): {samples!r}: {why}; {whole}, or pass skip_damaged=True, which leaves them out",
                option="skip_damaged",
            )

    def archive_at(self, target: str) -> Session | None:
        """Return the session of the archive at the target if the view is of that archive, which it replaces; else None.

        Raises: OptionError, the view lacks samples of the archive, or has another order.
        """
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

    def parts(self, max_size: int) -> list[range]:
        """List consecutive places whose records and labels have about `max_size` bytes, at least one place."""
        nbytes = np.full(self.length, self.labels.nbytes // max(1, self.length))
        nbytes[self.places] += self.rows["nbytes"].astype(np.int64) + _ROW_NBYTES
        return [*_runs(nbytes, max_size)] or [range(0)]

    def _check_alike(self) -> None:
        """Raise OptionError if the archives store records in different ways."""
        first, *others = self.sessions
        for other in others:
            if other.head.codec != first.head.codec:  # compression is a property of each record
                raise OptionError(
                    f"save(): {first.path} is of codec={base.shown(first.head.codec)}, {other.path} of "
                    f"codec={base.shown(other.head.codec)}; save them apart, or store what the view gives: "
                    "CachedDataset(view, path)"
                )

    def joint_head(self, length: int) -> Head:
        """Make the head of an archive of some samples. It has no fingerprint, since no call makes just these."""
        first = self.sessions[0].head
        known, *others = (session.original_labels for session in self.sessions)
        # A label is of a field if it is so in all archives.
        fields = {name for name, path in known.items() if all(other.get(name) == path for other in others)}
        return Head(
            uuid=uuid.uuid4().bytes,
            length=length,
            codec=first.codec,
            compression=first.compression,
            labels=tuple(
                (name, known[name] if name in fields else None) for name in self.labels.column_names
            ),
            claim_size=first.claim_size,
        )


def _check_as_stored(shares: list[Share]) -> None:
    """Raise OptionError for samples that are not as stored."""
    for share in shares:
        if share.change is not None:
            ds, change = share.change
            raise OptionError(
                f"save() copies samples as they are stored, those of {ds!r} are not: {change}; "
                "CachedDataset(view, path) stores what a view gives"
            )


# ------------------------------------------------------------------------------------------ copy


def _write(
    records: StoredRecords,
    part: range,
    target: str,
    over: Session | None,
    least: int,
    on_progress: OnProgress,
) -> None:
    """Write a sealed archive of some consecutive samples of a view, and give it its path.

    part: places of the samples in the view. over: session of the archive that it replaces, if there is one.
    least: samples that it must have at the least, else nothing is replaced.
    """
    labels, added, dropped = records.labels.slice(part.start, len(part)), dict[str, Any](), list[str]()
    if records.is_whole and len(part) == records.length:
        session = records.sessions[0]
        own = session.origin.uuid if over is not None else uuid.uuid4().bytes
        # Features for writers, and the keys that may be ignored, are of another release.
        head = replace(session.origin, uuid=own, length=session.declared_length, writes=(), more={})
        labels, added, dropped = _original_labels(records.sessions[0], labels)
    else:
        head = records.joint_head(len(part))
    with writer.replacing(target) as file:
        source = records.sessions[0].file
        if isinstance(source, File) and source.is_live:  # no copy in shared memory
            storage.copy_permissions(source.path, file.path)
        with closing(Appender.open(file, head)) as out:
            try:
                absent = _copy_records(records, part, labels, out, on_progress)
                _check_kept(target, records, len(part) - len(absent), least)
                if max(out.chain.length or 0, out.chain.end_index) < len(part):
                    out.amend(length=len(part))
                failed = [
                    replace(one, index=one.index - part.start)
                    for one in records.failures
                    if one.index in part
                ]
                if failed:
                    out.note_failures(failed)
                left = format.take_rows(labels, absent)  # labels of samples without their record
                told = [name for name in left.column_names if left.column(name).null_count < len(absent)]
                added |= {name: labels.column(name) for name in told}
                seal(out, LabelChange(pa.table(added), dropped=dropped) if added or dropped else None)
            finally:  # another archive may be written over one meanwhile
                for session in records.sessions:
                    session.check_same()
            with _replaceable(target, over):
                storage.move(file, target)


def _original_labels(session: Session, labels: pa.Table) -> tuple[pa.Table, dict[str, Any], list[str]]:
    """Divide the columns of a whole archive: of its chunks, added later, and names of dropped ones.

    Samples that are appended later have values in the first.
    """
    is_added, kept = dict(session.label_columns), labels.column_names
    names = [name for name, _ in session.head.labels]
    nulls = pa.nulls(labels.num_rows)
    columns = [labels.column(name) if name in kept and not is_added[name] else nulls for name in names]
    added = {name: labels.column(name) for name in kept if is_added[name]}
    # A damaged column is not there.
    dropped = [
        *(session.root.dropped if session.root else ()),
        *(name for name in is_added if name not in kept),
    ]
    return pa.table(columns, names=names), added, [name for name in names if name in dropped]


def _copy_records(
    records: StoredRecords, part: range, labels: pa.Table, out: Appender, on_progress: OnProgress
) -> Ints:
    """Append the records of consecutive places, as chunks of about 4 MiB; returns places without one.

    labels: a row for each place. Places count from the first.
    """
    has_record = np.zeros(len(part), bool)
    low, high = np.searchsorted(records.places, [part.start, part.stop]).tolist()
    nbytes = records.rows["nbytes"]
    total = int(nbytes.sum())
    on_progress(int(nbytes[:low].sum()), total)
    # Records of a few bytes take as much in the table.
    for run in _runs(np.maximum(nbytes[low:high], 32).astype(np.int64), CHUNK_NBYTES):
        chosen = np.arange(run.start, run.stop) + low
        sound, data = _read_sound(records, chosen)
        places = records.places[sound] - part.start
        has_record[places] = True
        if len(sound):
            rows = records.rows[sound]
            out.append(Chunk.of(places, rows, format.take_rows(labels, places), records.schemas, data))
        on_progress(int(records.ends[chosen[-1]]), total)
    return np.flatnonzero(~has_record)


def _runs(nbytes: Ints, most: int) -> Iterator[range]:
    """Yield consecutive runs of items, each of at most `most` bytes together, or of one item."""
    ends = np.cumsum(nbytes)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + most, "right")), start + 1)
        yield range(start, stop)
        start = stop


def _read_sound(records: StoredRecords, rows: Ints) -> tuple[Ints, list[memoryview]]:
    """Read records; return the rows that fit their crc32, and their records.

    Records of one archive are read together, by rising offset.
    Raises: CorruptRecordError, a record does not fit; unless damage is skipped.
    """
    data = np.full(len(rows), None, object)
    for number in np.unique(records.source[rows]).tolist():
        own = np.flatnonzero(records.source[rows] == number)
        own = own[np.argsort(records.rows["offset"][rows[own]], kind="stable")]
        session, wanted = records.sessions[number], records.rows[rows[own]]
        ends = format.stored_ends(wanted)
        extents = zip(
            wanted["offset"].tolist(), (ends - wanted["offset"].astype(np.int64)).tolist(), strict=True
        )
        checks = [partial(_fits, row) for row in wanted.tolist()]
        read = session.extents.read_many(list(extents), checks)
        named = zip(records.sample[rows[own]].tolist(), records.places[rows[own]].tolist(), strict=True)
        for k, name, row, record in zip(own.tolist(), named, wanted.tolist(), read, strict=True):
            if not _fits(row, record):
                records.leave_out(session, *name, "fails its crc32")
            elif row[4] in _STORED or records.knows(session, *name, row):
                data[k] = record
    is_sound = np.array([record is not None for record in data], bool)
    return rows[is_sound], data[is_sound].tolist()


def _have_records(session: Session, rows: Rows) -> npt.NDArray[np.bool_]:
    """Mark rows of samples that have a record: bool [n]. One that says no, and is not all zeros, is damaged."""
    words = rows.view("<u8").reshape(-1, 3)
    has_record: npt.NDArray[np.bool_] = np.any(words, axis=1) | session.index.is_dense
    return has_record


def _are_plausible(rows: Rows, schemas: int, size: int) -> npt.NDArray[np.bool_]:
    """Mark rows whose record lies in a file of `size` bytes and has one of its schemas: bool [n]."""
    # Both first, so that no sum of them wraps.
    are_inside = (rows["offset"] <= size) & (rows["nbytes"] <= size)
    are_known = (rows["flags"] & PRESENT > 0) & (rows["schema"] < schemas)
    plausible: npt.NDArray[np.bool_] = are_known & are_inside & (format.stored_ends(rows) <= size)
    return plausible


def _fits(row: tuple[int, int, int, int, int], record: bytes | memoryview) -> bool:
    """True if a record, with the crc32s of its blocks, fits its row in memory."""
    return format.fits(row[2], row[1], memoryview(record))


# -------------------------------------------------------------------------------------- replace


def _check_kept(target: str, records: StoredRecords, count: int, least: int) -> None:
    """Raise if a new archive has fewer records than the one that it replaces."""
    if count < least and records.later:
        sample = records.later[0]
        session = records.sessions[0]  # it replaces this one
        session.checks.check_known(sample, session.index.row(sample))
    if count < least:
        raise ArchiveError(
            f"{target}: save() would leave at most {count:,} of the {least:,} samples that it has or had, as the "
            "others are damaged or cut off; save to another path, or pass force=True",
            path=target,
            option="force",
        )


def _published(session: Session) -> int:
    """Count the samples whose records were published in an archive, damaged or cut off or not.

    A chunk that cannot be read counts for its range, without the samples that have a record elsewhere.
    """
    file, chain = session.file, session.chain
    sealed = format.read_root(file.pread, session.size, session.path)
    if sealed is not None:
        return sealed[0].present
    lost = [one for one in chain.behind if session.tables.get(one.number) is None]
    cut = format.later_headers(file.pread, file.next_data, chain.cursor.offset, session.size, chain.head.uuid)
    lost += [header for _, header in cut if header.kind == format.CHUNK]
    known = np.flatnonzero(session.index.all_rows()["flags"] & PRESENT)
    count, end = len(known), 0
    for header in sorted(lost, key=lambda one: one.first):
        first, end = max(header.first, end), max(header.end, end)
        count += end - first - int(np.diff(np.searchsorted(known, [first, end]))[0])
    return count


@contextmanager
def _replaceable(target: str, over: Session | None) -> Iterator[None]:
    """Lock the archive at a path against appends for the block; without `over` the path must be free.

    Raises: ArchiveExistsError, a file is there; ArchiveError, another process fills it; StaleArchiveError, it changed
    since it was opened.
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
        if over.is_outdated_by(file):
            raise StaleArchiveError(
                f"{path}: it changed since it was opened; refresh() it and save it again", path=path
            )
        yield
