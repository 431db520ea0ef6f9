"""How a cache is made of its source, where it is not there yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edcache.base import CacheOptions, FillOptions, OptionError, Workers, provisional
from edcache.dataset.staleness import check_made_of
from edcache.labels import LabelSpec
from edcache.reader import AnyReader
from edcache.writer import (
    Job,
    LazyFiller,
    Store,
    bytes_limit,
    check_source,
    claim_size,
    declared,
    fill,
    is_stream,
    length_of,
    new_head,
    source_fingerprint,
    until_it_stays,
    worker_count,
)


class Building:
    """Makes one cache of its source, as the options say; a fingerprint of None compares nothing.

    job: what is filled, from which source. length: samples of the source, where it has len().
    """

    def __init__(
        self, store: Store, source: Any, options: CacheOptions, fingerprint: dict[str, Any] | None
    ) -> None:
        keys = options.in_memory_keys
        spec = LabelSpec.parse(getattr(source, "in_memory_keys", None) if keys is None else keys)
        self._is_lazy, self._is_stream = options.is_lazy, is_stream(source)
        if options.max_bytes is not None and not self._is_lazy:
            raise OptionError("max_bytes= is for lazy=True; a fill stores every sample")
        self._store = store
        filled = store.filled_in(
            is_stream=self._is_stream, is_lazy=self._is_lazy, sync=options.sync, spool=options.spool
        )
        self._max_bytes, self._on_full = bytes_limit(options.max_bytes, store.path), options.on_full
        self._reading = provisional(options)
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

    def start(self, keep_existing: bool) -> tuple[LazyFiller | None, AnyReader | None]:
        """Make what is missing; or give what makes it when asked for, and the archive where all was there."""
        path = self._store.path
        if self._is_lazy and not keep_existing:
            raise OptionError(f"{path}: lazy=True fills what is there; to begin anew delete the file")
        archive = self._done() if keep_existing else None
        if archive is not None and not (self._is_lazy and self._store.may_lose):
            return None, archive
        if self._is_stream or not self._is_lazy:
            self.fill(self.job.options, rebuild=not keep_existing)
            return None, None
        check_source(self.job.source, path)
        filler = LazyFiller(self.job, self._max_bytes, self._on_full)
        until_it_stays(filler.create, self._is_done)
        return filler, None

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

    def _done(self) -> AnyReader | None:
        """The sealed archive with every sample, where it is there; nothing need be writable for that."""
        archive = self._store.found(self._reading)
        if archive is None:
            return None
        check_made_of(archive, self.job, self._asked)
        return archive if archive.complete and len(archive) >= (self.length or 0) else None

    def _is_done(self) -> bool:
        return self._done() is not None


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
