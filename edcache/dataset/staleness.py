"""Whether an archive is of what is asked for, the call of a factory or a source."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from edcache.base import OnStale, StaleCacheError
from edcache.format import Head
from edcache.labels import LabelSpec
from edcache.reader import AnyReader
from edcache.writer import (
    Job,
    adopt_labels,
    check_length,
    check_options,
    check_origin,
    differences,
    is_stream,
    moved_paths,
    source_changed,
    stale_message,
)

_warned: set[object] = set()


def is_stale(archive: AnyReader, fingerprint: dict[str, Any], in_memory_keys: Any, on_stale: OnStale) -> bool:
    """Whether the archive of a call with a fingerprint is to be built anew; on_stale may refuse or warn."""
    found = archive.head.fingerprint
    changed = differences(found, fingerprint)
    if not archive.complete:
        changed += label_differences(archive.head, in_memory_keys)
    if not changed:
        if source_changed(found, fingerprint) and on_stale != "ignore":
            _warn_once(
                f"{archive.path}: the source of {fingerprint['factory']} changed since this cache was made; "
                "if it makes other samples now, raise version= or delete the file",
                stacklevel=4,
                key=(archive.path, fingerprint["source"]),
            )
        return False
    if on_stale == "rebuild":
        return True
    remedy = 'use another path, delete the file, or pass on_stale="rebuild" (or "ignore", to use it as it is)'
    message = stale_message(archive.path, fingerprint, changed, remedy)
    if on_stale == "error" or (on_stale == "warn" and not archive.complete):
        raise StaleCacheError(message)
    if on_stale == "warn":
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    return False


def label_differences(head: Head, in_memory_keys: Any) -> list[str]:
    """The label columns that @cachable was asked for and its archive lacks, in one line or none."""
    if in_memory_keys is None:
        return []
    names = [name for name, _ in head.labels]
    absent = [name for name in LabelSpec.parse(in_memory_keys).names if name not in names]
    return [f"labels: {names} in the archive, in_memory_keys asks for {absent} too"] if absent else []


def check_made_of(archive: AnyReader, job: Job, asked: Mapping[str, str | None]) -> None:
    """Compare an archive with the source of a job, and with the options of its head that were asked for.

    Raises:
        StaleCacheError: it is of another source, or of another length. OptionError: it has other options.
    """
    path, head = archive.path, archive.head
    expected = check_origin(path, head, job)
    length = job.head.length or 0
    if not is_stream(job.source) and not (job.options.grow and len(archive) < length):
        longer = len(archive) if len(archive) > length else None
        check_length(path, archive.declared_length or longer, length)
    # A complete archive gets the label columns that it lacks from its samples.
    names = [name for name, _ in head.labels]
    kept = job.spec.only(names)
    may_lack = archive.complete and (kept.names or not names)
    adopt_labels(head, kept if may_lack else job.spec, path)
    check_options(head, path, **asked)
    if job.head.fingerprint is None:
        return
    if expected is None:
        _warn_once(
            f"{path}: says nothing about the source that it was made of, so another one would not be "
            "noticed; fingerprint=False silences this"
        )
        return
    moved = "".join(f"\n  {line}" for line in moved_paths(head.fingerprint, expected))
    if moved:
        _warn_once(f"{path}: taken for a cache of the same files, which are elsewhere now:{moved}")
    if source_changed(head.fingerprint, expected):
        _warn_once(
            f"{path}: the code of {expected.get('type', 'the source')} changed since this cache was "
            "made; if it makes other samples now, pass keep_existing=False to build it anew"
        )


def _warn_once(message: str, stacklevel: int = 7, key: object = None) -> None:
    if (key or message) not in _warned:
        _warned.add(key or message)
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel)
