"""`KeyedCache`: values by key, for code that has no dataset."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from edcache import base, codec, format, identity, storage, writer
from edcache.base import (
    ArchiveNotFoundError,
    CorruptRecordError,
    OptionError,
    SourceError,
    StorageError,
    UnknownLabelError,
    WriteOptions,
    described,
    takes,
)
from edcache.format import (
    KEY_COLUMN,
    Chain,
    Head,
    KeyTable,
    Root,
    key_list,
    pa,
    shown_key,
    stored_keys,
)
from edcache.identity import Recipe
from edcache.labels import LabelSpec, OfIndex
from edcache.storage import File

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from edcache.codec import Decoder

V = TypeVar("V")
# A claim is a byte of the file that is locked; a key has one of these.
_CLAIMS = 1 << 40
# Held from the look for other processes until the archive is closed: of two that close at once the second seals.
_CLOSING = _CLAIMS
# Keys that are computed, and locked, at a time: the kernel walks all locks of a file for each. 1,024 take 6 ms, of four
# processes at once 0.1 s; four times as many 0.08 s and 2.5 s.
_MOST_LOCKS = 1 << 10
# Opening reads a chunk behind the seal in 0.07 ms.
_MOST_BEHIND = 1000
# The longest wait for a value while this thread computes others, where these may wait for each other in a circle; and
# the time between two looks.
_SECONDS, _POLL_SECONDS = 3.0, 0.05
# `begun`: path and key of each value that this thread computes, with its claim.
_of_thread = threading.local()

# A value has no label beside its key, and each call stores its chunk.
_REFUSED: Final = ("in_memory_keys", "chunk_size")

_Found: TypeAlias = tuple[int, tuple[int, int, int, int, int], str]
"""Record of a value: sample number, row as in memory, text of its schema."""


@base.cut_traceback
@takes(WriteOptions, without=_REFUSED)
class KeyedCache:
    """Values by key, each computed once, in one archive that any number of processes of this host share.

    Args:
        path: the archive. It is made if it is not there. `CachedDataset.from_cache(path)` opens it, with the keys as
            `ds.keys`.
        fingerprint: a value of JSON that tells what makes the values, such as a dict with the name of a model; it must
            equal the archive's.
        keywords: these options.
    Raises:
        StaleCacheError: the archive has another fingerprint. OptionError: it is no value of JSON.
        StorageError: in the call of a key without a value, 'kc.zip: "cat" has no value, and the file cannot be written
            here: Permission denied; ...'. A file that cannot be written is opened to read by key.

    A key is text, bytes, an int or a tuple of these; another one is refused before anything is computed. A value is
    anything that a sample may be.
    Safety: threads and processes may use it at once; a forked or unpickled one opens the archive anew. Each call
    stores what it computed before it returns; a killed process loses the values that it computes. A value that another
    one asks for may be computed twice if that takes 3 seconds: two that wait for each other would wait for ever.
    Cost: a new value takes some 6 KiB of the file beside its bytes; up to 1,024 of one `get_many` share them.

    >>> cache = edcache.KeyedCache("embeddings.zip")
    >>> embedding = cache.get_or_create(prompt, lambda: encode(prompt))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fingerprint: Any = None,
        **keywords: Unpack[base.WriteKeywords],
    ) -> None:
        self._options = WriteOptions.of(None, keywords, "KeyedCache")
        if refused := [name for name in _REFUSED if name in keywords]:
            raise OptionError(f"KeyedCache() takes no {refused[0]}", option=refused[0])
        self._made_by = _told(fingerprint)
        self.path = writer.store_at(path).path
        self._files, self._turn = base.PerProcess[KeyedSession](), base.ForkLock()
        with self._in_use():
            pass

    @contextmanager
    def _in_use(self) -> Iterator[KeyedSession]:
        """Yield the session of this process, which the first use opens, and which stays open for the block."""
        call, archive = object(), None
        try:
            with self._turn.held():
                archive = self._files.get(self._opened)
                archive.calls[call] = threading.current_thread()
            yield archive
        finally:
            if archive is not None:
                archive.calls.pop(call, None)

    def _opened(self) -> KeyedSession:
        """Open the archive; one that is there and cannot be written is opened for reading alone."""
        try:
            return WritingSession(self.path, self._options, self._made_by)
        except StorageError as error:
            if error.errno not in storage.UNWRITABLE:
                raise
            with suppress(ArchiveNotFoundError):  # then the first error tells why it cannot be made
                return KeyedSession.reading(self.path, self._made_by, error)
            raise

    def get_or_create(self, key: Any, create: Callable[[], V]) -> V:
        """Return the value of a key; if there is none, compute and store it, or wait for the process that does.

        Raises: SourceError, `create` raised. RecursionError, it asks for the value of this key.
        """
        return self.get_many([key], lambda missing: [create()])[0]

    def get_many(self, keys: Iterable[Any], create: Callable[[list[Any]], Iterable[V]]) -> list[V]:
        """Return the values of keys, in their order; the missing ones are computed and stored together.

        create: a function of a list of missing keys that returns their values in the same order. It gets each key
        once, and 1,024 at most in a call. If it gives values one by one and raises, the ones before are stored.
        Raises: as `get_or_create`.
        """
        keys = key_list(keys)
        stored = stored_keys(keys)
        with self._in_use() as archive:
            found = archive.find(stored)
            if None in found:
                missing = zip(keys, stored, found, strict=True)
                archive.add({text: key for key, text, there in missing if there is None}, create)
                found = archive.find(stored)
            return [archive.read(one) for one in found if one is not None]

    @base.cut_traceback
    def __getitem__(self, key: Any) -> Any:
        stored = stored_keys([key])
        with self._in_use() as archive:
            (found,) = archive.find(stored)
            if found is None:
                raise UnknownLabelError(f"{self.path}: no value has the key {shown_key(key)}")
            return archive.read(found)

    __iter__ = None  # else it is tried with the keys 0, 1, 2, ...

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or `default` if there is none."""
        with suppress(UnknownLabelError):
            return self[key]
        return default

    def __contains__(self, key: Any) -> bool:
        stored = stored_keys([key])
        with self._in_use() as archive:
            return archive.find(stored) != [None]

    def __len__(self) -> int:
        return len(self._stored())

    def keys(self) -> list[Any]:
        """Return the keys of all values."""
        return format.told_keys(self._stored())

    def _stored(self) -> list[str]:
        with self._in_use() as archive:
            return archive.keys()

    def close(self, *, seal: bool = False) -> None:
        """Close the archive in this process, once calls of other threads have ended; idempotent.

        The next call opens it again.

        seal: False seals it if no other process uses it and if that pays: for the first time, and when the values that
            were added since the last seal take twice as much of the file, or were added by 1,000 calls. True seals it
            now, so that it is a complete dataset, and can be copied.
        Cost: a seal writes some 65 bytes for each value.
        """
        with self._turn.held():
            if seal:
                self._files.get(self._opened)
            archive = self._files.pop()
        if archive is not None:
            archive.wait()
            archive.close(seal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _told(fingerprint: Any) -> Recipe:
    """Make the recipe of `fingerprint=`, a value of JSON: the items of a dict, or the value, are its settings."""
    try:
        told = base.loads(json.dumps(fingerprint, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"fingerprint={fingerprint!r:.60} is no value of JSON: {error}; give text, numbers, True, False, None, or "
            "lists and dicts of these",
            option="fingerprint",
        ) from None
    return identity.told(told) if isinstance(told, dict) else Recipe({"fingerprint": told})


def _check(path: str, head: Head, recipe: Recipe) -> None:
    """Raise OptionError if the samples of an archive were not added by key; StaleCacheError, another fingerprint."""
    if head.labels != ((KEY_COLUMN, None),):
        has = "with" if KEY_COLUMN in dict(head.labels) else "without"
        raise OptionError(
            f"{path}: it is no archive of a KeyedCache, but one of samples {has} keys; read it by "
            "CachedDataset.from_cache(path), and give KeyedCache another path"
        )
    verdict = identity.compare(head.fingerprint, recipe)
    verdict.check(path, "use another path, or delete the file", "fingerprint")


class KeyedSession:
    """Archive of a KeyedCache in one process that may only read it; `WritingSession` adds values.

    Attributes: calls: the ones under way, each with its thread.
    """

    def __init__(self, file: File, chain: Chain, refused: StorageError | None = None) -> None:
        self._path, self._file, self._chain, self._refused = file.path, file, chain, refused
        self.calls: dict[object, threading.Thread] = {}
        self._turn = threading.RLock()
        self._root: Root | None = None
        self._table: KeyTable | None = None
        self._behind: dict[str, _Found] = {}
        self._decoders: dict[str, Decoder] = {}
        self._seen = 0
        self._look()

    @classmethod
    def reading(cls, path: str, recipe: Recipe, refused: StorageError) -> KeyedSession:
        """Open a file that cannot be written, as an error says."""
        file = File.open(path, "r")
        with base.on_error(file.close):
            chain = Chain(*format.read_head(file.pread, path), path)
            _check(path, chain.head, recipe)
            return cls(file, chain, refused)

    def wait(self) -> None:
        """Wait until no call of another thread is under way."""
        # Without a lock, which a child that is forked in a call would find held.
        own = threading.current_thread()
        while any(one is not own and one.is_alive() for one in list(self.calls.values())):
            time.sleep(_POLL_SECONDS)

    def close(self, seal: bool) -> None:
        """Close it. Raises: StorageError, it is to be sealed, and is not."""
        self._file.close()
        if seal and not self._chain.sealed:
            raise self._unwritable("it is not sealed")

    def add(self, given: dict[str, Any], create: Callable[[list[Any]], Iterable[Any]]) -> None:
        """Raise StorageError: no value is added."""
        raise self._unwritable(f"{shown_key(next(iter(given.values())))} has no value")

    def _unwritable(self, lack: str) -> StorageError:
        assert self._refused is not None
        text = (
            f"{self._path}: {lack}, and the file cannot be written here: {os.strerror(self._refused.errno or 0)}; "
            "values that are there can be read. Copy it to where you may write, to add others"
        )
        return storage.with_errno(StorageError(text, path=self._path), self._refused)

    def _look(self) -> bool:
        """Take in the values that were stored since, of all processes; return True if there is anything new."""
        chain = self._chain
        is_new = chain.extend(self._file.pread, self._file.size())
        root = chain.root
        if root is not self._root and root is not None:
            self._root, self._table, self._behind, self._seen = root, None, {}, 0
            if root.keys is not None:
                offset, nbytes, crc, count = root.keys
                data = memoryview(self._file.pread(offset, nbytes))
                self._table = KeyTable(data, crc, count, root.length, self._path)
            self._check_kind(None if (column := root.labels.get(KEY_COLUMN)) is None else column.type)
        for header in chain.behind:
            if header.number <= self._seen:
                continue
            table = format.read_table(self._file.pread, header, self._path)
            keys = table.labels.column(KEY_COLUMN)
            self._check_kind(keys.type)
            columns = keys.to_pylist(), table.samples.tolist(), table.rows.tolist()
            for key, sample, row in zip(*columns, strict=True):
                self._behind[key] = sample, row, table.schemas[row[3]]
            self._seen = header.number
        return is_new

    def _check_kind(self, kind: pa.DataType | None) -> None:
        """Raise OptionError if the column of keys is not of text, as another one than a KeyedCache may make it."""
        if kind not in (pa.string(), pa.large_string(), pa.null()):
            found = "was dropped" if kind is None else f"is of {kind}"
            raise OptionError(
                f'{self._path}: its label column "{KEY_COLUMN}" {found}, where a KeyedCache has text; read it by '
                "CachedDataset.from_cache(path), and give KeyedCache another path"
            )

    def keys(self) -> list[str]:
        """Return the keys of all values, as they are stored."""
        with self._turn:
            self._look()
            pread, path = self._file.pread, self._path
            tables = partial(format.read_table, pread, where=path)
            column = format.Contents(self._chain, pread, tables).column(KEY_COLUMN)
            return column.drop_null().to_pylist()  # type: ignore[no-any-return]

    def find(self, keys: Sequence[str]) -> list[_Found | None]:
        """Find the values of keys; looks at other processes' new ones if some are missing."""
        with self._turn:
            found = [self._behind.get(key) for key in keys]
            if None in found and self._table is not None:
                samples = self._table.find(format.key_hashes(keys)).tolist()
                pairs = zip(found, samples, strict=True)
                found = [
                    self._of_root(sample) if one is None and sample >= 0 else one for one, sample in pairs
                ]
            return self.find(keys) if None in found and self._look() else found

    def _of_root(self, sample: int) -> _Found:
        assert self._root is not None
        index = self._root.index.offset
        data = self._file.pread(index + sample * format.ROW.itemsize, format.ROW.itemsize)
        salt = format.salt(self._chain.head.uuid, index)
        (row,) = format.bound(np.array([sample]), np.frombuffer(data, format.ROW), salt).tolist()
        return sample, row, self._root.schemas[row[3]]

    def read(self, found: _Found) -> Any:
        """Decode a value. Raises: CorruptRecordError, it is damaged."""
        sample, (offset, nbytes, crc, _, flags), schema = found
        place = f"{self._path}: record {sample} at offset {offset:,}"
        behind = int(format.behind_nbytes(nbytes))
        data = memoryview(self._file.pread(offset, nbytes + behind))
        if not format.fits(crc, nbytes, data):
            raise CorruptRecordError(f"{place} fails its crc32", path=self._path, index=sample)
        with format.reported(f"{self._path}: record {sample}", self._path):
            format.check_flags(flags)
            if schema not in self._decoders:
                allows = self._chain.head.codec == "pickle"
                self._decoders[schema] = codec.decoder_of(schema, allows, None, False)
        decoder, record = self._decoders[schema], data[:nbytes]
        try:
            record = decoder.decompressed(record) if flags & format.COMPRESSED else record
        except CorruptRecordError as error:
            raise error.within(place, self._path, sample) from error
        return decoder.decode(record, copy=True)


class WritingSession(KeyedSession):
    """Archive of a KeyedCache in one process that reads and adds values."""

    def __init__(self, path: str, options: WriteOptions, recipe: Recipe) -> None:
        self._adding: list[Any] = []  # keys of the samples that are being added
        spec = LabelSpec({KEY_COLUMN: OfIndex(self._adding)})
        head = writer.new_head(
            spec,
            codec=options.codec or "native",
            compression=options.compression,
            fingerprint=recipe.to_json(),
        )
        self._appender = writer.store_at(path).appender(head, options.sync)
        with base.on_error(self._appender.close):
            head = self._appender.head
            _check(path, head, recipe)
            self._appender.recover()
            super().__init__(self._appender.file, self._appender.chain)
            self._appender.claims.join_fillers()
            self._builder = writer.ChunkBuilder(head, path, spec, label_schema=self._appender.label_schema())
            self._claims = _Claims(self._appender.claims)

    def close(self, seal: bool) -> None:
        """Close it, and seal it: if told to, or if that pays and no other process has it open."""
        with self._turn:
            try:
                self._appender.claims.wait(_CLOSING)
                self._appender.catch_up()
                is_last = not self._appender.chain.sealed and not self._appender.claims.has_fillers
                is_due = self._pays_to_seal() or len(self._appender.chain.behind) >= _MOST_BEHIND
                if seal or (is_last and is_due):
                    writer.seal(self._appender)
                elif is_last:
                    self._appender.sync()  # as a seal does
            finally:
                self._appender.close()

    def _pays_to_seal(self) -> bool:
        """True if the chunks behind the last seal take twice as much of the file as that seal.

        So of values that are added one by one seals take about half as much as chunks, a page each.
        """
        chain = self._appender.chain
        if chain.root is None or not chain.behind:
            return chain.root is None
        start = chain.behind[0].offset
        return chain.cursor.offset - start >= 2 * (start - chain.root.index.offset)

    def _look(self) -> bool:
        self._appender.check_usable()
        return super()._look()

    def add(self, given: dict[str, Any], create: Callable[[list[Any]], Iterable[Any]]) -> None:
        """Compute values, and store them; but none that another process has stored meanwhile.

        given: the caller's key of each stored key. create: as of `KeyedCache.get_many`.
        """
        keys = list(given)
        for start in range(0, len(keys), _MOST_LOCKS):
            self._add({key: given[key] for key in keys[start : start + _MOST_LOCKS]}, create)

    def _add(self, given: dict[str, Any], create: Callable[[list[Any]], Iterable[Any]]) -> None:
        """Compute and store values under their claims."""
        begun: dict[tuple[str, str], int] = vars(_of_thread).setdefault("begun", {})
        for key in given:
            if (self._path, key) in begun:
                shown = shown_key(given[key])
                raise RecursionError(f"{self._path}: {shown}: computing its value asks for this value")
        hashes = format.key_hashes(given)[:, 0].tolist()
        own = {(self._path, key): hashed % _CLAIMS for key, hashed in zip(given, hashes, strict=True)}
        last = max((claim for (path, _), claim in begun.items() if path == self._path), default=-1)
        with self._claims.holding(sorted({*own.values()}), last):
            begun.update(own)
            try:
                missing = {key: given[key] for key in self._missing(given)}
                if missing:
                    self._store(self._values(missing, create))
            finally:
                for name in own:
                    del begun[name]

    def _values(self, given: dict[str, Any], create: Callable[[list[Any]], Iterable[Any]]) -> dict[str, Any]:
        """Compute the values of missing keys; of an iterator that raises, the ones before are stored."""
        keys, values = [*given.values()], list[Any]()

        def failure(error: Exception) -> Exception:
            if isinstance(error, RecursionError):  # it asks for this value, or for one that does
                return error
            failed = shown_key(keys[min(len(values), len(keys) - 1)])
            return SourceError(f"{self._path}: {failed}: {type(error).__name__}: {error}", path=self._path)

        def store() -> None:
            with suppress(base.EdcacheError):  # the error that is raised came first
                self._store(dict(zip(given, values, strict=False)))

        with base.on_error(store), base.foreign_code(failure):
            made = create(keys.copy())
            is_list = not isinstance(made, Mapping | Set | str | bytes)
            for value in made if is_list else ():
                values.append(value)  # one by one: an error leaves the ones before
        if not is_list:
            text = f"{self._path}: {described(made)} was returned for {len(keys):,} keys"
            raise OptionError(f"{text}; return a list of their values, in the order of the keys")
        if len(values) != len(keys):
            text = f"{len(keys):,} keys were asked for, and {len(values):,} values returned"
            raise OptionError(f"{self._path}: {text}")
        return dict(zip(given, values, strict=True))

    def _missing(self, keys: Iterable[str]) -> list[str]:
        keys = list(keys)
        return [key for key, one in zip(keys, self.find(keys), strict=True) if one is None]

    def _store(self, values: dict[str, Any]) -> None:
        """Append values, but none that is there by now: a call that did not wait for a claim may have made it, too."""
        with self._turn:
            self._adding[:] = self._missing(values)
            with base.on_error(self._builder.discard):
                for number, key in enumerate(self._adding):
                    self._builder.add(number, values[key])
            self._builder.publish(self._appender, continues=True)
            if len(self._appender.chain.behind) >= _MOST_BEHIND and self._pays_to_seal():
                writer.seal(self._appender)
            self._look()


class _Claims:
    """Claims of the keys whose values threads and processes compute; the kernel frees them with their process.

    A lock of the kernel is of the open file, which all threads share: so threads wait for each other here, and
    processes by the lock. Everyone takes claims in rising order, so no two wait for each other. A value that is made
    of other values breaks that order: its thread waits some seconds for a claim below its own, and goes on without it.
    """

    def __init__(self, claims: writer.Claims) -> None:
        self._claims = claims
        self._turn = threading.Condition()
        # By claim the thread that has it.
        self._held: dict[int, threading.Thread] = {}

    @contextmanager
    def holding(self, claims: list[int], last: int) -> Iterator[None]:
        """Hold claims, which rise, for the block. last: the highest one that this thread holds, -1 without one."""
        own, limit = threading.current_thread(), time.monotonic() + _SECONDS
        try:
            for claim in claims:
                self._take(claim, own, None if claim > last else limit)
            yield
        finally:
            with self._turn:
                for claim in claims:
                    if self._held.get(claim) is own:
                        del self._held[claim]
                        self._claims.release(claim)
                self._turn.notify_all()

    def _take(self, claim: int, own: threading.Thread, limit: float | None) -> None:
        """Wait for a claim, until `limit` at the longest. A thread that has ended holds none."""
        with self._turn:
            while (held := self._held.get(claim, own)) is not own and held.is_alive():
                if limit is not None and time.monotonic() > limit:
                    return
                self._turn.wait(_POLL_SECONDS)
            self._held[claim] = own
        if limit is None:
            self._claims.wait(claim)
        while limit is not None and not self._claims.claim(claim):
            if time.monotonic() > limit:
                return
            time.sleep(_POLL_SECONDS)
