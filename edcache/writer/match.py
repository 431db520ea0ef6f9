"""Compare an archive with length, labels and options of a fill; make the head of a new one."""

from __future__ import annotations

import uuid as uuid_module
from typing import Any

from edcache import base
from edcache.codec import compressor
from edcache.format import Head
from edcache.labels import LabelSpec, OfIndex


def new_head(
    spec: LabelSpec,
    *,
    length: int | None = None,
    codec: str = "native",
    compression: str | None = None,
    fingerprint: dict[str, Any] | None = None,
    claim_size: int = 64,
    uuid: bytes | None = None,
) -> Head:
    """Make the head of a new archive, after a check of its options."""
    compressor(compression)  # raises for another text
    return Head(
        uuid=uuid or uuid_module.uuid4().bytes,
        length=length,
        codec=codec,
        compression=compression,
        labels=tuple(spec.to_json().items()),
        fingerprint=fingerprint,
        claim_size=claim_size,
    )


def check_length(path: str, begun_for: int | None, length: int) -> None:
    """Raise StaleCacheError if an archive was begun for another number of samples."""
    if begun_for is None or begun_for == length:
        return
    growing = "grow=True adds the rest; or " if begun_for < length else ""
    raise base.StaleCacheError(
        f"{path}: begun for {begun_for:,} samples, the source has {length:,} now; {growing}"
        'build it again (keep_existing=False, with @cachable on_stale="rebuild"), or choose another path',
        path=path,
        option="grow" if growing else "keep_existing",
    )


def adopt_labels(head: Head, spec: LabelSpec, where: str) -> LabelSpec:
    """Return the label columns for continuing an archive: the given ones, or its own if none are given.

    Raises: OptionError, they differ, or the archive's were made by callables and none are given.
    """
    names = [name for name, _ in head.labels]
    of_index = {name: source for name, source in spec.sources.items() if isinstance(source, OfIndex)}
    if len(spec.names) > len(of_index):
        if other := other_paths(head, spec):
            raise base.OptionError(f"{where}: in_memory_keys: {'; '.join(other)}; build a new archive")
        if list(spec.names) != names:
            raise base.OptionError(
                f"{where}: in_memory_keys={list(spec.names)}, but the archive was begun with {names}; "
                "give the same, or build a new archive"
            )
        return spec
    callables = [name for name, path in head.labels if path is None and name not in of_index]
    if callables:
        raise base.OptionError(
            f"{where}: functions made its labels {callables}; pass the same in_memory_keys= again"
        )
    paths = {
        n: tuple(path) if isinstance(path, list) else path for n, path in head.labels if n not in of_index
    }
    own = LabelSpec.parse(paths).sources | of_index
    if own.keys() != {*names}:
        raise base.OptionError(
            f"{where}: the source names its samples by {', '.join(of_index)}, but the archive was begun with "
            f"{names}; build a new archive"
        )
    return LabelSpec({name: own[name] for name in names})


def other_paths(head: Head, spec: LabelSpec) -> list[str]:
    """List the label columns that an archive takes from another field than `in_memory_keys` says."""
    known, given = (
        {name: _dotted(path) for name, path in side} for side in (head.labels, spec.to_json().items())
    )
    return [
        f"label {name} is of field {known[name]} in the archive, of {path} now"
        for name, path in given.items()
        if path is not None and known.get(name) not in (None, path)
    ]


def _dotted(path: Any) -> str | None:
    return ".".join(map(str, path)) if isinstance(path, list | tuple) else path if path is None else str(path)


def check_options(head: Head, where: str, **options: str | None) -> None:
    """Raise OptionError for an option that is given and that the archive was not begun with."""
    for name, value in options.items():
        given = getattr(head, name)
        if value not in (None, given):
            raise base.OptionError(
                f"{where}: {name}={value!r}, but the archive was begun with {given!r}; leave {name} out, "
                "or build a new archive"
            )
