"""How a cache is made of its source, where it is not there yet."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from edcache.errors import OptionError
from edcache.fill import (
    Job,
    LazyFiller,
    bytes_limit,
    check_length,
    check_origin,
    check_source,
    claim_size,
    declared,
    fill,
    is_stream,
    length_of,
    worker_count,
)
from edcache.fingerprint import moved_paths, source_changed, source_fingerprint
from edcache.labels.spec import LabelSpec
from edcache.options import CacheOptions, FillOptions, Workers
from edcache.reader import AnyReader
from edcache.stores import Store
from edcache.writer import adopt_labels, check_options, new_head, until_it_stays

_warned: set[str] = set()


class Building:
    """Makes one cache of its source, as the options say.

    Args:
        fingerprint: of the source; None where nothing is compared.
    Attributes:
        job: what is filled, from which source. length: samples of the source, where it has len().
    """

    def __init__(
        self, store: Store, source: Any, options: CacheOptions, fingerprint: dict[str, Any] | None
    ) -> None:
        keys = options.in_memory_keys
        spec = LabelSpec.parse(getattr(source, "in_memory_keys", None) if keys is None else keys)
        self._is_lazy = options.is_lazy
        if options.max_bytes is not None and not self._is_lazy:
            raise OptionError("max_bytes= is for lazy=True; a fill stores every sample")
        self._store = store
        self._is_stream = is_stream(source)
        filled = store.filled_in(
            is_stream=self._is_stream, is_lazy=self._is_lazy, sync=options.sync, spool=options.spool
        )
        self._max_bytes, self._on_full = bytes_limit(options.max_bytes, store.path), options.on_full
        self._asked = {"codec": options.codec, "compression": options.compression}
        has_length = not self._is_stream and hasattr(source, "__len__")
        self.length = length_of(source, store.path) if has_length else None
        head = new_head(
            spec,
            length=self.length,
            claim_size=claim_size(self.length or 0),
            codec=options.codec or "native",
            compression=options.compression,
            fingerprint=fingerprint,
        )
        self.job = Job(
            *(declared(source), filled.path, head, spec, options.chunk_size, options.sync),
            options=FillOptions.part_of(options),
        )

    def start(self, keep_existing: bool) -> LazyFiller | None:
        """Make what is missing; or where that is lazy, what makes it when it is asked for.

        Returns:
            None where nothing is missing any more.
        """
        path = self._store.path
        if self._is_lazy and not keep_existing:
            raise OptionError(f"{path}: lazy=True fills what is there; to begin anew delete the file")
        if keep_existing and self._is_done() and not (self._is_lazy and self._store.may_lose):
            return None
        if self._is_stream or not self._is_lazy:
            self.fill(self.job.options, rebuild=not keep_existing)
            return None
        check_source(self.job.source, path)
        filler = LazyFiller(self.job, self._max_bytes, self._on_full)
        until_it_stays(filler.create, self._is_done)
        return filler

    def _is_done(self) -> bool:
        """Whether a sealed archive with every sample is there: it opens even where nothing can be written.

        Raises StaleCacheError where the archive was made from something else.
        """
        found, path = self._store.found(), self._store.path
        if found is None:
            return False
        asked = self.job.head
        origin = check_origin(path, found.head, self.job)
        length = asked.length or 0
        if not self._is_stream and not (self.job.options.grow and len(found) < length):
            longer = len(found) if len(found) > length else None
            check_length(path, found.declared_length or longer, length)
        adopt_labels(found.head, self._kept_labels(found), path)
        check_options(found.head, path, **self._asked)
        self._warn_of_origin(found.head.fingerprint, origin)
        return found.complete and len(found) >= length

    def _kept_labels(self, found: AnyReader) -> LabelSpec:
        """The labels asked for, but for those that a complete archive gets from its samples."""
        spec, names = self.job.spec, [name for name, _ in found.head.labels]
        kept = spec.only(names)
        return kept if found.complete and (kept.names or not names) else spec

    def _warn_of_origin(self, found: dict[str, Any] | None, expected: dict[str, Any] | None) -> None:
        """Warn once where it is not sure that the archive is of this source."""
        path = self._store.path
        if self.job.head.fingerprint is None:
            return
        if expected is None:
            _warn_once(
                f"{path}: says nothing about the source that it was made of, so another one would not be "
                "noticed; fingerprint=False silences this"
            )
            return
        moved = "".join(f"\n  {line}" for line in moved_paths(found, expected))
        if moved:
            _warn_once(f"{path}: taken for a cache of the same files, which are elsewhere now:{moved}")
        if source_changed(found, expected):
            _warn_once(
                f"{path}: the code of {expected.get('type', 'the source')} changed since this cache was "
                "made; if it makes other samples now, pass keep_existing=False to build it anew"
            )

    def fill(self, options: FillOptions, *, rebuild: bool = False) -> None:
        """Compute what is missing now."""
        if self._is_stream and (self._is_lazy or options.executor is not None):
            raise OptionError(
                f"{self._store.path}: the source can only be iterated; lazy=True and executor= take one with "
                "len() and [index]"
            )

        def run() -> None:
            with self._store.published(options.progress, self._is_done, replaces=rebuild):
                fill(replace(self.job, options=options), rebuild=rebuild)

        if rebuild:
            run()
        else:
            until_it_stays(run, self._is_done)


def check_fillable(options: CacheOptions) -> None:
    """Raise OptionError for options of an archive that is only opened."""
    if options.expected_digest is not None:
        raise OptionError(
            "expected_digest= is for CachedDataset.from_cache(): what is filled here has no published digest"
        )
    if options.local is not None:
        raise OptionError("local= is for CachedDataset.from_cache(): what is filled here is here already")


def identity(source: Any, num_workers: Workers, given: dict[str, Any] | bool | None) -> dict[str, Any] | None:
    """The fingerprint of a bare source, None where nothing is to be compared.

    That of an iterable says by how many it is iterated, which makes its order.
    """
    if given is not None and given is not True:
        return given or None
    fingerprint = source_fingerprint(source)
    if not is_stream(source) or num_workers == 0:
        return fingerprint
    arguments = {**fingerprint.get("arguments", {}), "num_workers": worker_count(num_workers)}
    return {**fingerprint, "arguments": arguments}


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=6)
