"""Fill an archive again from a source with keys: new samples alone are computed, and it gets the order of the source.

Samples that it lacks are computed into a stage, an archive beside it. Then one seal takes their chunks over as its
parts, and puts the rows of all samples in the order of the source: no record moves, and until the seal is there readers
see the old state. A stage of a fill that was killed is used by the next one, also of another source; its end is mended
first, as of any archive.

What must never happen: that a stage is removed while a process fills it; that two processes publish at once.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
from torch.utils.data import Subset

from edcache import format, identity, storage
from edcache.base import Ints, on_error
from edcache.format import KEY_COLUMN, Chain, ChunkTable, Contents, Cursor, Failure, Head, Header
from edcache.identity import Keyed
from edcache.labels import LabelSpec, OfIndex
from edcache.writer.appender import Appender, recover
from edcache.writer.chunk import Chunk
from edcache.writer.job import Job
from edcache.writer.match import tells_source
from edcache.writer.seal import Order, seal
from edcache.writer.spot import check_before
from edcache.writer.store import store_at
from edcache.writer.temporary import is_held

_STAGE: Final = ".edcache.keys-"


def fill_keyed(job: Job, keyed: Keyed, fill: Callable[[Job], None]) -> None:
    """Compute the samples of a source that its archive lacks, and seal it in the order of the source.

    fill: fills an archive with the samples of a job, and seals it.
    """
    with closing(job.open(any_length=True)) as appender:
        chain = appender.chain
        if _is_done(chain, keyed):
            return
        is_same = chain.origin.keys_digest == keyed.digest
        is_first, since = chain.root is None and (is_same or chain.holds_nothing), chain.cursor.number
    if is_first:
        order = None
        if len(keyed.firsts) < len(keyed):
            order = Order(np.searchsorted(keyed.firsts, keyed.first_equal), None)
        fill(replace(_part(job, keyed, keyed.firsts), order=order, since=since))
        return
    known: dict[Cursor, Ints] = {}
    lacking = _publish(job, keyed, known, None, seals=False)
    if lacking is None:
        return
    # Also if the order alone is new: the seal says that the source as it is now has made all.
    asks = [*dict.fromkeys([*job.found.asks, *identity.guessed(job.source)])]
    check_before(replace(job, found=job.found._replace(asks=asks)), lacking.known, lacking.places)
    lacking = _publish(job, keyed, known, None)
    while lacking is not None:
        stage = _stage(job, keyed, lacking.todo)
        with store_at(stage.path).held():
            with closing(stage.job.open()) as appender:
                # From now on no process takes the stage away. One may have, after it published the same samples.
                appender.file.share(format.LOCK_SESSION)
                lacking = _publish(job, keyed, known, None)
                is_due = lacking is not None and np.array_equal(lacking.todo, stage.samples)
                if is_due:
                    fill(stage.job)
            if is_due or lacking is None:
                lacking = _publish(job, keyed, known, stage)


def _is_done(chain: Chain, keyed: Keyed) -> bool:
    """True if an archive is sealed for these samples, and a later fill tries none again."""
    root = chain.root
    if root is None or not chain.sealed or chain.origin.keys_digest != keyed.digest:
        return False
    return root.present + sum(failure.final for failure in root.failures) == root.length


def _part(job: Job, keyed: Keyed, indices: Ints) -> Job:
    """Make the job of some samples of the source."""
    is_whole = len(indices) == len(keyed)
    source = job.source if is_whole else Subset(job.source, indices.tolist())
    columns = {name: OfIndex(values) for name, values in keyed.only(indices).columns.items()}
    spec = LabelSpec({**job.spec.sources, **columns})
    return replace(
        job, source=source, spec=spec, head=replace(job.head, length=len(indices)), is_part=not is_whole
    )


class _Lacking(NamedTuple):
    """Samples of a source that its archive lacks, and has.

    todo, known: the lacking ones, and the others, by their index in the source. places: the index in the archive of
    each known one.
    """

    todo: Ints
    known: Ints
    places: Ints


class _Stage(NamedTuple):
    """Archive of the samples that are computed for another one. job: its fill. samples: which ones of the source."""

    path: str
    job: Job
    samples: Ints


def _stage(job: Job, keyed: Keyed, todo: Ints) -> _Stage:
    """Begin a stage; its name tells stages of other samples and archives apart."""
    part = _part(job, keyed, todo)
    with closing(job.open(any_length=True)) as appender:
        path = _stage_of(appender, keyed.only(todo))
        made_by = _fingerprint_of(job, appender.chain.origin)
        head = replace(appender.head, uuid=uuid4().bytes, length=len(todo), fingerprint=made_by)
    return _Stage(path, replace(part, path=path, head=head, told_path=job.path), todo)


def _stage_of(appender: Appender, todo: Keyed) -> str:
    return f"{_stages_of(appender)}{todo.digest[:16]}"


def _stages_of(appender: Appender) -> str:
    """Return the prefix of an archive's stages. It has the uuid, so an archive that is built anew ignores old ones."""
    return f"{appender.path}{_STAGE}{appender.head.uuid.hex()[:8]}-"


def _publish(
    job: Job, keyed: Keyed, known: dict[Cursor, Ints], tried: _Stage | None, seals: bool = True
) -> _Lacking | None:
    """Seal an archive in the order of the source, with the samples of its stages. Returns the lacking ones, or None.

    With samples lacking nothing is sealed.

    known: places of the samples in the archive, by its end; what it lacks is filled in.
    tried: a stage that this process has filled; samples that it lacks have failed, and are not computed again.
    seals: False only looks, and writes nothing.
    """
    with ExitStack() as stack:
        appender = stack.enter_context(closing(job.open(any_length=True)))
        appender.claims.wait(0)  # until the archive is closed: one process publishes at a time
        appender.catch_up()
        if _is_done(appender.chain, keyed):
            _remove_stages(appender.path)  # by another process, which left the ones in use
            return None
        contents = Contents(appender.chain, appender.file.pread, appender.table)
        start = max(contents.length, appender.chain.end_index)
        if appender.chain.cursor not in known:
            if KEY_COLUMN in contents.schema.names:
                keyed.check_kind(contents.column(KEY_COLUMN, 0, contents.length), job.path)
            known.clear()
            known[appender.chain.cursor] = _found(keyed, contents, 0, np.full(len(keyed), -1))
        places = known[appender.chain.cursor].copy()
        takeovers, own = list[_Takeover](), _stages_of(appender)
        for path in sorted(_stages_at(appender.path), key=is_held):
            if not path.startswith(own) or storage.RECOVERY in path or not recover(path):
                continue
            todo = keyed.firsts[places[keyed.firsts] < 0]
            is_tried = tried is not None and path == tried.path
            if not is_tried and is_held(path) and path == _stage_of(appender, keyed.only(todo)):
                break  # another process fills it with the same samples: this one is to help it
            one = stack.enter_context(closing(_Takeover(path, start)))
            if not is_tried and not _is_made_alike(one, job):
                continue  # by other code or other constants: its samples are computed again
            missing = np.count_nonzero(places < 0)
            places = _found(keyed, one.contents, start, places)
            if tried is not None and is_tried:
                lost = tried.samples[places[tried.samples] < 0]
                places[lost] = start + np.flatnonzero(np.isin(tried.samples, lost))
            # A stage without a needed sample is passed over: its source has changed since, or a killed process has
            # appended its samples.
            if np.count_nonzero(places < 0) < missing:
                takeovers.append(one)
                start += one.contents.length
        todo = keyed.firsts[places[keyed.firsts] < 0]
        if len(todo) or not seals:
            there = np.flatnonzero((places >= 0) & (places < contents.length))
            return _Lacking(todo, there, places[there])
        places = places[keyed.first_equal]
        fingerprint = _fingerprint_of(job, appender.chain.origin)
        parts = (chunk for one in takeovers for chunk in one.chunks())
        failures = [failure for one in takeovers for failure in one.failures]
        seal(appender, order=Order(places, fingerprint, parts, failures))
        _remove_stages(appender.path)
    return None


def _is_made_alike(stage: _Takeover, job: Job) -> bool:
    """True if the samples of a stage that was left behind are made as the source makes them now."""
    if job.recipe is None:
        return True
    found = identity.compare(stage.chain.origin.fingerprint, job.recipe)
    return not found.settings and not found.asking


def _remove_stages(path: str) -> None:
    """Remove the stages of an archive that no process fills."""
    for stage in _stages_at(path):
        if not is_held(stage):
            storage.remove(stage)


def _stages_at(path: str) -> list[str]:
    """List the stages of an archive, with files of their recovery."""
    return sorted(glob.glob(f"{glob.escape(path)}{_STAGE}*"))


def _fingerprint_of(job: Job, origin: Head) -> dict[str, Any]:
    """Return the fingerprint to seal with. A source that gives keys only leaves the settings that the archive has."""
    if not tells_source(job.head.fingerprint):
        return {**(origin.fingerprint or {}), **(job.head.fingerprint or {})}
    return job.made_by(origin.fingerprint)


def _found(keyed: Keyed, contents: Contents, start: int, places: Ints) -> Ints:
    """Fill the places that are -1 with the places of equal samples of an archive, whose first one has place `start`.

    places: int64 [n], changed and returned.
    """
    names = contents.schema.names
    if KEY_COLUMN not in names or not contents.length:
        return places
    flags = np.concatenate([contents.rows(first, end)["flags"] for first, end in contents.windows()])
    own, samples = Keyed.stored(
        {name: contents.column(name, 0, contents.length) for name in identity.KEYED_COLUMNS if name in names},
        flags & format.PRESENT > 0,
    )
    rows = np.flatnonzero(places < 0)
    at = keyed.only(rows).places_in(own)
    is_new = at >= 0
    places[rows[is_new]] = start + samples[at[is_new]]
    return places


class _Takeover:
    """Stage whose samples an archive takes over. start: number in the archive that its first sample gets."""

    def __init__(self, path: str, start: int) -> None:
        self.path, self.start = path, start
        self._file = storage.File.open(path, "r")
        with on_error(self._file.close):
            self.chain = Chain(*format.read_head(self._file.pread, path), path)
            self.chain.extend(self._file.pread, self._file.size())
            self.contents = Contents(self.chain, self._file.pread, self._table)

    def _table(self, header: Header) -> ChunkTable:
        return format.read_table(self._file.pread, header, self.path)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the stage, with the numbers that its samples get in the archive."""
        for header in self.chain.chunks:
            chunk = Chunk.stored(self._file, header, self._table(header))
            yield replace(chunk, samples=chunk.samples + self.start)

    @property
    def failures(self) -> list[Failure]:
        """Failures in the stage, with the numbers that its samples get in the archive."""
        known = self.chain.failures.items()
        return [replace(one, index=index + self.start) for index, (_, one) in known]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
