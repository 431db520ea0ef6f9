"""`Building`: makes a cache of its source, if there is none, and compares an existing one with the source."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any, Final

from edcache import base, identity, writer
from edcache.base import CacheOptions, FillOptions, OptionError, StaleCacheError, provisional
from edcache.dataset.indexing import Readable, reading_of
from edcache.format import KEYS_DIGEST, Head
from edcache.identity import Keyed, Recipe
from edcache.labels import LabelSpec, OfIndex
from edcache.reader import Reader
from edcache.storage import scheme_of

_MOST_PARENTS: Final = 16


class Building:
    """Builder of the cache of a source, which opens one that is there.

    recipe: of the source; None compares nothing. Attributes: job: task of the fill.
    """

    def __init__(
        self, store: writer.Store, source: Any, options: CacheOptions, recipe: Recipe | None
    ) -> None:
        keys = options.in_memory_keys
        spec = LabelSpec.parse(getattr(source, "in_memory_keys", None) if keys is None else keys)
        self._is_lazy, self._is_stream = options.lazy, writer.is_stream(source)
        if options.max_bytes is not None and not self._is_lazy:
            raise OptionError("max_bytes= is for lazy=True; a fill stores every sample")
        if options.grow and self._is_stream:
            raise OptionError(
                f"{store.path}: the source can only be iterated, so nothing tells whether it became longer; "
                "grow=True takes one with len() and [index]"
            )
        self._store = store
        self._spool = store.spool()
        self._max_bytes = base.bytes_limit(
            store.max_bytes if options.max_bytes is None else options.max_bytes, store.part
        )
        self._read_options = provisional(options)
        fingerprint = None if recipe is None else recipe.to_json()
        self._asked = {"codec": options.codec, "compression": options.compression}
        has_length = not self._is_stream and hasattr(source, "__len__")
        known = None if recipe is None else recipe.count  # len() may be another one each time
        length = writer.length_of(source, store.path, known) if has_length else None
        self._keyed = None if self._is_stream else Keyed.of(source)
        if self._keyed is not None:
            length, columns = len(self._keyed), self._keyed.columns
            taken = [name for name in spec.names if name in columns]
            if taken:
                raise OptionError(
                    f'in_memory_keys names "{taken[0]}", a column that the keys of the source make; name it otherwise',
                    option="in_memory_keys",
                )
            spec = LabelSpec({**spec.sources, **{name: OfIndex(values) for name, values in columns.items()}})
            fingerprint = {**(fingerprint or {}), KEYS_DIGEST: self._keyed.digest}
            if self._is_lazy and len(self._keyed.firsts) < length:
                raise OptionError(f"{store.path}: lazy=True takes a source without two samples of one key")
        if fingerprint is not None and (parents := parents_of(source)):
            fingerprint = {**fingerprint, "parents": parents}
        head = writer.new_head(
            spec,
            length=length,
            claim_size=writer.claim_size(length or 0, options.batch_size),
            codec=options.codec or "native",
            compression=options.compression,
            fingerprint=fingerprint,
        )
        self.job = writer.Job(
            writer.declared(source),
            store.path if self._spool is None else self._spool.path,
            head,
            spec,
            options.chunk_size,
            options.sync,
            options=FillOptions.part_of(options),
            name=os.path.basename(store.path),
            keyed=self._keyed,
            recipe=recipe,
        )

    def completed(self, keep_existing: bool) -> Reader | None:
        """Open the archive, and compare it with the source; None if it lacks samples, or is to be made anew."""
        path = self._store.path
        if self._is_lazy and not keep_existing:
            raise OptionError(f"{path}: lazy=True fills what is there; to begin anew delete the file")
        archive = self._find() if keep_existing else None
        if archive is None:
            return None
        with base.on_error(archive.close):
            is_complete = self._has_all(archive)
            if is_complete or self._is_lazy:
                writer.check_open(self.job, archive.session)
        if is_complete:
            return archive
        archive.close()
        return None

    def filler(self) -> writer.LazyFiller | None:
        """Make the filler of a lazy cache; None if the missing samples are to be computed now."""
        if self._is_lazy and self._store.by_request:
            raise OptionError(f"{self._store.path}: lazy=True fills a file; for a URL all is filled at once")
        if self._is_stream or not self._is_lazy:
            return None
        filler = writer.LazyFiller(self.job, self._max_bytes)
        writer.retry_if_replaced(filler.create, self._is_done)
        return filler

    def fill(self, options: FillOptions, *, rebuild: bool = False) -> None:
        """Compute the missing samples now. rebuild: compute all, into a new archive."""
        if self._is_stream:
            asked = {"lazy=True": self._is_lazy, "executor=": options.executor, "timeout=": options.timeout}
            if wrong := [name for name, value in asked.items() if value]:
                raise OptionError(
                    f"{self._store.path}: the source can only be iterated; {wrong[0]} takes one with len() and [index]"
                )
        if rebuild and not self._store.begin_anew():
            self._fill_once(options, rebuild=True)
        else:
            writer.retry_if_replaced(partial(self._fill_once, options), self._is_done)

    def _fill_once(self, options: FillOptions, rebuild: bool = False) -> None:
        if self._spool is not None:
            self._spool.begin("w" if rebuild else "a")
        writer.fill(replace(self.job, options=options), rebuild=rebuild)
        if self._spool is not None:
            self._spool.finish(options.progress, self._is_done)

    def _find(self) -> Reader | None:
        """Open the archive if there is one, and compare it with source and options; needs no write permission."""
        archive = self._store.found(self._read_options)
        if archive is not None:
            self._check(archive)
        return archive

    def _has_all(self, archive: Reader) -> bool:
        """True if an archive is sealed and has every sample of the source."""
        session = archive.session
        if self._keyed is not None and session.origin.keys_digest != self._keyed.digest:
            if self._is_lazy:
                raise StaleCacheError(
                    f"{archive.path}: made of other samples; fill it without lazy=True",
                    path=archive.path,
                    option="lazy",
                )
            return False
        is_long = self._keyed is not None or session.length >= (self.job.head.length or 0)
        return session.complete and is_long

    def _is_done(self) -> bool:
        archive = self._find()
        return archive is not None and self._has_all(archive)

    def _check(self, archive: Reader) -> None:
        """Compare an archive with the source, and its head with the given options.

        Raises:
            StaleCacheError: it is of another source, or of another length. OptionError: it has other options.
        """
        path, session, job = archive.path, archive.session, self.job
        head, origin = session.head, session.origin
        verdict = identity.compare(origin.fingerprint, job.recipe)
        if verdict.refused:
            job = self.job = writer.settled(job, verdict.refused)
            verdict = identity.compare(origin.fingerprint, job.recipe).check(path)
        length = job.head.length or 0
        is_compared = not self._is_stream and self._keyed is None
        if is_compared and not (job.options.grow and session.length < length):
            longer = session.length if session.length > length else None
            writer.check_length(path, session.declared_length or longer, length)
        # A complete archive gets the label columns that it lacks from its samples.
        names = [name for name, _ in head.labels]
        kept = job.spec.only(names)
        may_lack = session.complete and (kept.names or not names)
        writer.adopt_labels(head, kept if may_lack else job.spec, path)
        writer.check_options(head, path, **self._asked)
        if not verdict.is_told:
            message = "says nothing about the source that it was made of, so another one would not be noticed"
            base.warn(f"{path}: {message}; fingerprint=False silences this", once=(path, message))
        if moved := "".join(f"\n  {line}" for line in verdict.moved):
            message = f"{path}: taken for a cache of the same files, which are elsewhere now:{moved}"
            base.warn(message, once=message)


def parents_of(source: Any) -> list[dict[str, Any]]:
    """List the archives that a source is, or that its attributes are: path or URL, uuid, and digest of their keys."""
    candidates = [source] if isinstance(source, Readable) else getattr(source, "__dict__", {}).values()
    readers = [
        reader for one in candidates if isinstance(one, Readable) for reader in reading_of(one).root.readers
    ]
    # The head of an archive holds them.
    heads = [(reader.path, reader.session.origin) for reader in readers[:_MOST_PARENTS]]
    return [
        {
            "path": path if scheme_of(path) else os.path.abspath(path),
            "uuid": head.uuid.hex(),
            "keys": head.keys_digest,
        }
        for path, head in heads
    ]


def label_differences(head: Head, in_memory_keys: Any, is_complete: bool) -> list[str]:
    """Describe the label columns that @cachable takes from other fields, and the ones that its archive lacks.

    is_complete: True for an archive that gets what it lacks from its samples.
    """
    spec, names = LabelSpec.parse(in_memory_keys), [name for name, _ in head.labels]
    absent = [] if is_complete else [name for name in spec.names if name not in names]
    there = ", ".join(names) or "none"
    lines = [f"labels: {there} in the archive, the call asks for {', '.join(absent)} too"] if absent else []
    return [*writer.other_paths(head, spec), *lines]
