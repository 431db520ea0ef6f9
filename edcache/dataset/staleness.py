"""Whether an archive is of what it is to be filled with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from edcache.format import Head
from edcache.labels import LabelSpec
from edcache.reader import AnyReader
from edcache.writer import (
    Job,
    adopt_labels,
    check_length,
    check_options,
    check_origin,
    is_stream,
    moved_paths,
    source_changed,
)

_warned: set[object] = set()


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
        warn_once(
            f"{path}: says nothing about the source that it was made of, so another one would not be "
            "noticed; fingerprint=False silences this"
        )
        return
    moved = "".join(f"\n  {line}" for line in moved_paths(head.fingerprint, expected))
    if moved:
        warn_once(f"{path}: taken for a cache of the same files, which are elsewhere now:{moved}")
    if source_changed(head.fingerprint, expected):
        warn_once(
            f"{path}: the code of {expected.get('type', 'the source')} changed since this cache was "
            "made; if it makes other samples now, pass keep_existing=False to build it anew"
        )


def warn_once(message: str, stacklevel: int = 7, key: object = None) -> None:
    """Warn of what is the same the next time."""
    if (key or message) not in _warned:
        _warned.add(key or message)
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel)
