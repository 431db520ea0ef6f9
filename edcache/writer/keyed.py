"""Sources whose samples have keys: a fill computes new samples alone, and gives the archive the order of the source.

A source with `sample_key(index)` names its samples: by text, bytes, an int, or a tuple. The keys are a label column,
`key`. A version, the column `version`, tells that a sample changed: by `sample_version(index)`, or by the attributes of
the source that have one value for each sample. Samples with equal key and version are computed once; with an attribute
`__edcache_by_key__` of the source, which is True, all with equal key, whose version is the least of theirs.

To fill an archive again, samples that it lacks are computed into a stage, an archive beside it. Then one seal takes
their chunks over as its parts, and puts the rows of all samples in the order of the source: no record moves, and until
the seal is there readers see the old state. A stage of a fill that was killed is used by the next one, also of another
source; its end is mended first, as of any archive.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset

from edcache import format, identity, storage
from edcache.base import EdcacheError, Ints, OptionError, SourceError, once
from edcache.format import KEY_COLUMN, Chain, ChunkTable, Contents, Cursor, Failure, Head, Header, Key, pa, pc
from edcache.labels import LabelSpec, OfIndex
from edcache.writer.appender import Appender, recover
from edcache.writer.chunk import Chunk
from edcache.writer.job import Job
from edcache.writer.match import tells_source
from edcache.writer.seal import Order, seal
from edcache.writer.spot import check_before
from edcache.writer.store import store_at

VERSION_COLUMN: Final = "version"
KEYED_COLUMNS: Final = KEY_COLUMN, VERSION_COLUMN
_STAGE: Final = ".edcache.keys-"


class Keyed:
    """Keys and versions of the samples of a source.

    Attributes: keys: one for each sample, as they are stored. versions: texts, or None if nothing tells them apart.
    """

    def __init__(self, keys: list[Key], versions: list[str] | None) -> None:
        self.keys, self.versions = keys, versions
        # Places of the samples in an archive, and its state then, for the second look when the stage is filled.
        self._found: tuple[Cursor | None, Ints] = None, np.empty(0, np.int64)

    @classmethod
    def of(cls, source: Any) -> Keyed | None:
        """Ask a source; None if it names no samples."""
        if not identity.has_method(source, "sample_key"):
            return None
        try:
            keys = format.stored_keys(_all_of(source, "sample_key"))
        except OptionError as error:
            raise error.within("sample_key() of the source") from None
        versions = _versions_of(source, keys)
        if versions is not None and getattr(source, "__edcache_by_key__", False):
            least: dict[Any, str] = {}
            for key, version in zip(keys, versions, strict=True):
                least[key] = min(version, least.get(key, version))
            versions = [least[key] for key in keys]
        return cls(keys, versions)

    def only(self, indices: Ints) -> Keyed:
        """Keep some samples."""
        chosen, versions = indices.tolist(), self.versions
        return Keyed(
            [self.keys[index] for index in chosen],
            None if versions is None else [versions[index] for index in chosen],
        )

    @property
    def columns(self) -> dict[str, OfIndex]:
        """Label columns that a fill adds."""
        columns = {KEY_COLUMN: OfIndex(self.keys)}
        return columns if self.versions is None else {**columns, VERSION_COLUMN: OfIndex(self.versions)}

    @once
    def digest(self) -> str:
        """Digest of all keys and versions in their order."""
        return hashlib.blake2b(repr((self.keys, self.versions)).encode(), digest_size=16).hexdigest()

    @once
    def stored(self) -> pa.Array:
        """Keys as an archive has them. Raises: OptionError, they are of several types, or ints beyond 64 bits."""
        kinds = sorted({_kind_of(key) for key in self.keys})
        if len(kinds) > 1:
            raise OptionError(
                f"sample_key() of the source returns {' and '.join(kinds)}; give keys of one type"
            )
        try:
            return pa.array(self.keys, None if self.keys else pa.string())
        except (pa.ArrowInvalid, UnicodeEncodeError, OverflowError) as error:
            remedy = "give ints of 64 bits, and text without lone surrogates"
            raise OptionError(f"sample_key() of the source: {error}; {remedy}") from error

    @once
    def identities(self) -> pa.Array:
        """Binary values that are equal if key and version are."""
        return _identities(
            self.stored, None if self.versions is None else pa.array(self.versions, pa.string())
        )

    @once
    def _codes(self) -> tuple[Ints, Ints]:
        """First samples of each identity, rising; and for each sample its place among them."""
        if pc.count_distinct(self.identities).as_py() == len(self.identities):
            return np.arange(len(self.identities)), np.arange(len(self.identities))
        codes = pc.index_in(self.identities, pc.unique(self.identities)).to_numpy()
        # In the order in which they appear.
        return np.unique(codes, return_index=True)[1], codes.astype(np.int64)

    def check_kind(self, there: pa.Array | pa.ChunkedArray, path: str) -> None:
        """Raise OptionError if the keys of an archive are of another type: 1, "1" and ("1",) are three keys."""
        firsts = [*there.drop_null()[:1].to_pylist(), *self.keys[:1]]
        kinds = [_kind_of(key) for key in firsts]
        if len({*kinds}) > 1:
            raise OptionError(
                f"{path}: its keys are {kinds[0]}, sample_key() of the source returns {kinds[1]}; use another path, or "
                "pass keep_existing=False to build it anew"
            )

    def match(self, keys: pa.Array, versions: pa.Array | None) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Compare with the samples of an archive, by their keys and versions.

        Returns: int64 [n], the first equal one of each sample, -1 for none; and whether the one at its index is equal.
        """
        there = _identities(keys, versions)
        is_here = np.zeros(len(self.keys), np.bool_)
        both = slice(min(len(self.keys), len(there)))
        is_here[both] = pc.equal(self.identities[both], there[both]).fill_null(False).to_numpy(False)
        return pc.index_in(self.identities, there).fill_null(-1).to_numpy(), is_here

    def places_in(self, contents: Contents, state: Cursor) -> Ints:
        """Return the number of each sample in an archive: int64 [n], -1 for none. state: of the archive."""
        if self._found[0] != state:
            self._found = state, _found(self.identities, contents, 0, np.full(len(self.keys), -1))
        places: Ints = self._found[1].copy()
        return places

    @property
    def firsts(self) -> Ints:
        """Samples that are computed: of equal ones the first."""
        return self._codes[0]

    @property
    def order(self) -> Order | None:
        """Order of the samples among the first ones; None if no two are equal."""
        firsts, codes = self._codes
        return None if len(firsts) == len(codes) else Order(codes, None)


def _versions_of(source: Any, keys: list[Any]) -> list[str] | None:
    if identity.has_method(source, "sample_version"):
        return list(map(repr, _all_of(source, "sample_version")))
    # Names of files are attributes mostly, and say no more than the keys.
    found = map(_plain, identity.values_of(source).values())
    values = [value for value in found if list(value) != keys]
    return [repr(parts) for parts in zip(*values, strict=True)] if values else None


def _guessed(source: Any) -> list[str]:
    """Name the attributes that stand for versions: a list as long as the source may also make every sample."""
    if identity.has_method(source, "sample_version"):
        return []
    return [f"attribute {name}" for name in identity.values_of(source)]


def _all_of(source: Any, name: str) -> list[Any]:
    """Ask a source for the values of all samples, at once if it can."""
    count = len(source)
    try:
        is_bulk = identity.has_method(source, f"{name}s")
        values = [*getattr(source, f"{name}s")()] if is_bulk else [*map(getattr(source, name), range(count))]
    except EdcacheError:
        raise
    except Exception as error:
        raise SourceError(f"{name}() of the source raised {type(error).__name__}: {error}") from error
    if len(values) != count:
        raise SourceError(f"{name}s() of the source returned {len(values):,} values for {count:,} samples")
    return values


def _plain(values: Any) -> Sequence[Any]:
    """Return values of samples that `repr` tells apart; of arrays and objects it is their description."""
    if isinstance(values, np.ndarray | torch.Tensor) and values.ndim == 1:
        values = values.tolist()
    if {*map(type, values)} <= {bool, bytes, float, int, str, type(None)}:
        return values  # type: ignore[no-any-return]
    return [[*identity.Settings().describe(value)] for value in values]


def _kind_of(key: Key) -> str:
    if isinstance(key, str):
        return "tuples" if key.startswith(format.TUPLE_MARK) else "text"
    return "bytes" if isinstance(key, bytes) else "ints"


def _identities(keys: pa.Array, versions: pa.Array | None) -> pa.Array:
    if pa.types.is_integer(keys.type):
        keys = keys.cast(pa.string())
    keys = keys.cast(pa.large_binary())
    if versions is None:
        return keys
    # A version, the repr of a value, has no zero in it.
    return pc.binary_join_element_wise(
        keys, versions.cast(pa.large_binary()), pa.scalar(b"\0", pa.large_binary())
    )


# ------------------------------------------------------------------------------ a fill


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
        fill(replace(_part(job, keyed, keyed.firsts), order=keyed.order, since=since))
        return
    lacking = _publish(job, keyed, None)
    if lacking is not None:
        asks = (*job.asks, *_guessed(job.source))
        check_before(replace(job, asks=asks), lacking.known, lacking.places)
    while lacking is not None:
        stage = _stage(job, keyed, lacking.todo)
        with store_at(stage.path).held():
            with closing(stage.job.open()) as appender:
                # From now on no process takes the stage away. One may have, after it published the same samples.
                appender.file.share(format.LOCK_SESSION)
                lacking = _publish(job, keyed, None)
                is_due = lacking is not None and np.array_equal(lacking.todo, stage.samples)
                if is_due:
                    fill(stage.job)
            if is_due or lacking is None:
                lacking = _publish(job, keyed, stage)


def _is_done(chain: Chain, keyed: Keyed) -> bool:
    """True if an archive is sealed for these samples, and a later fill tries none again."""
    root = chain.root
    if root is None or not chain.sealed or chain.origin.keys_digest != keyed.digest:
        return False
    return root.present + sum(failure.final for failure in root.failures) == root.length


def _part(job: Job, keyed: Keyed, indices: Ints) -> Job:
    """Make the job of some samples of the source."""
    is_whole = len(indices) == len(keyed.keys)
    source = job.source if is_whole else Subset(job.source, indices.tolist())
    spec = LabelSpec({**job.spec.sources, **keyed.only(indices).columns})
    return replace(
        job, source=source, spec=spec, head=replace(job.head, length=len(indices)), is_part=not is_whole
    )


class _Lacking(NamedTuple):
    """Samples of the source that an archive lacks, and the ones that it has: known, at places."""

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
        path = f"{_stages_of(appender)}{keyed.only(todo).digest[:16]}"
        made_by = _fingerprint_of(job, appender.chain.origin)
        head = replace(appender.head, uuid=uuid4().bytes, length=len(todo), fingerprint=made_by)
    return _Stage(path, replace(part, path=path, head=head, told_path=job.path), todo)


def _stages_of(appender: Appender) -> str:
    """Return how the names of the stages of an archive begin: one that is built anew has others."""
    return f"{appender.path}{_STAGE}{appender.head.uuid.hex()[:8]}-"


def _publish(job: Job, keyed: Keyed, tried: _Stage | None) -> _Lacking | None:
    """Give the archive the samples of the source, if it and its stages have them; else return the ones to compute.

    tried: a stage that was filled: what it lacks failed, and is absent.
    """
    with ExitStack() as stack:
        appender = stack.enter_context(closing(job.open(any_length=True)))
        appender.claims.wait(0)  # until the archive is closed: one process publishes at a time
        appender.catch_up()
        if _is_done(appender.chain, keyed):
            _remove_stages(appender.path)  # by another process, which left the ones in use
            return None
        contents = Contents(appender.chain, appender.file.pread, appender.table)
        if KEY_COLUMN in contents.schema.names:
            keyed.check_kind(contents.column(KEY_COLUMN, 0, contents.length), job.path)
        start = max(contents.length, appender.chain.end_index)
        places = keyed.places_in(contents, appender.chain.cursor)
        takeovers, own = list[_Takeover](), _stages_of(appender)
        for path in _stages_at(appender.path):
            if not path.startswith(own) or storage.RECOVERY in path or not recover(path):
                continue
            one = stack.enter_context(closing(_Takeover(path, start)))
            missing = np.count_nonzero(places < 0)
            places = _found(keyed.identities, one.contents, start, places)
            if tried is not None and path == tried.path:
                lost = tried.samples[places[tried.samples] < 0]
                places[lost] = start + np.flatnonzero(np.isin(tried.samples, lost))
            # Otherwise it is of a source that has changed since, or a killed process has appended it.
            if np.count_nonzero(places < 0) < missing:
                takeovers.append(one)
                start += one.contents.length
        todo = keyed.firsts[places[keyed.firsts] < 0]
        if len(todo):
            known = np.flatnonzero((places >= 0) & (places < contents.length))
            return _Lacking(todo, known, places[known])
        places = places[keyed.firsts[keyed.order.samples]] if keyed.order is not None else places
        fingerprint = _fingerprint_of(job, appender.chain.origin)
        parts = (chunk for one in takeovers for chunk in one.chunks())
        failures = [failure for one in takeovers for failure in one.failures]
        seal(appender, order=Order(places, fingerprint, parts, failures))
        _remove_stages(appender.path)
    return None


def _remove_stages(path: str) -> None:
    """Remove the stages of an archive that no process fills."""
    for stage in _stages_at(path):
        with closing(storage.File.open(stage, "r")) as file:
            is_used = file.is_locked(format.LOCK_SESSION, 1)
        if not is_used:
            storage.remove(stage)


def _stages_at(path: str) -> list[str]:
    """List the stages of an archive, with files of their recovery."""
    return sorted(glob.glob(f"{glob.escape(path)}{_STAGE}*"))


def _fingerprint_of(job: Job, origin: Head) -> dict[str, Any]:
    """Return the fingerprint for the order of a source; of one that tells only keys the archive's stays beside them."""
    if not tells_source(job.head.fingerprint):
        return {**(origin.fingerprint or {}), **(job.head.fingerprint or {})}
    return job.made_by(origin.fingerprint)


def _found(identities: pa.Array, contents: Contents, start: int, places: Ints) -> Ints:
    """Fill in the places of samples that an archive has; its first one counts from `start`."""
    names = contents.schema.names
    if KEY_COLUMN not in names or not contents.length:
        return places
    keys = contents.column(KEY_COLUMN, 0, contents.length)
    versions = contents.column(VERSION_COLUMN, 0, contents.length) if VERSION_COLUMN in names else None
    present = np.flatnonzero(contents.rows(0, contents.length)["flags"] & format.PRESENT > 0)
    own = _identities(keys, versions).take(format.from_numpy(present, pa.int64()))
    at = pc.index_in(identities, own).fill_null(-1).to_numpy()
    is_new = (places < 0) & (at >= 0)
    places[is_new] = start + present[at[is_new]]
    return places


class _Takeover:
    """Stage whose samples an archive is to take over. start: of its samples there."""

    def __init__(self, path: str, start: int) -> None:
        self.path, self.start = path, start
        self._file = storage.File.open(path, "r")
        try:
            self.chain = Chain(*format.read_head(self._file.pread, path), path)
            self.chain.extend(self._file.pread, self._file.size())
            self.contents = Contents(self.chain, self._file.pread, self._table)
        except BaseException:
            self._file.close()
            raise

    def _table(self, header: Header) -> ChunkTable:
        return format.read_table(self._file.pread, header, self.path)

    def chunks(self) -> Iterator[Chunk]:
        """Yield its chunks, with samples as the archive numbers them."""
        for header in self.chain.chunks:
            table = self._table(header)
            start = format.records_offset(header)
            data = self._file.pread(start, header.payload_end - start)
            rows = table.rows.copy()
            rows["offset"] -= np.uint64(start)
            yield Chunk(table.samples + self.start, rows, table.labels, list(table.schemas), data)

    @property
    def failures(self) -> list[Failure]:
        """Failures of its samples, as the archive numbers them."""
        known = self.chain.failures.items()
        return [replace(one, index=index + self.start) for index, (_, one) in known]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
