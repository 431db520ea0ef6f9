"""One archive: what `edcache info` says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from edcache.present.calls import fingerprint_pairs
from edcache.present.samples import field_row
from edcache.present.text import paired_lines, plural, table
from edcache.sizes import human_bytes

_SHOWN_SCHEMAS: Final = 8


def info_lines(said: Mapping[str, Any]) -> Iterator[str]:
    """What `edcache info` says: from its JSON form to lines for a person."""
    yield from paired_lines(_info_pairs(said))
    for schema in said["schemas"][:_SHOWN_SCHEMAS]:
        yield f"\nschema of {plural(schema['samples'], 'sample')}"
        if schema["fields"]:
            yield from table(("field", "kind", "dtype", "shape"), map(field_row, schema["fields"]))
        else:
            yield "each record says its own, see edcache show" if said["codec"] == "native" else "pickles"
    if len(said["schemas"]) > _SHOWN_SCHEMAS:
        yield f"\n{len(said['schemas']) - _SHOWN_SCHEMAS:,} more schemas; --json lists all"


def _info_pairs(said: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield "archive", said["path"]
    yield "samples", f"{said['samples']:,}"
    yield "missing", f"{said['missing']:,}"
    yield "sealed", "yes" if said["sealed"] else "no"
    if said["chunks"] is not None:
        yield "chunks", f"{said['chunks']:,}"
    yield "file", f"{human_bytes(said['nbytes'])} ({said['nbytes']:,} bytes)"
    record = said["record_nbytes"]
    if record["max"] is not None:
        yield "record", f"median {human_bytes(record['median'])}, max {human_bytes(record['max'])}"
    yield "codec", said["codec"]
    yield "compression", _compression_text(said)
    yield "labels", ", ".join(f"{name}: {kind}" for name, kind in said["labels"].items()) or "none"
    yield from fingerprint_pairs(said["fingerprint"] or {})
    yield "format", said["format_version"]
    yield "uuid", said["uuid"]
    if "digest" in said:
        yield "digest", said["digest"]


def _compression_text(said: Mapping[str, Any]) -> str:
    record = said["record_nbytes"]
    if not (record["uncompressed"] and record["total"]):
        return said["compression"] or "none"
    return f"{said['compression']}, {record['uncompressed'] / record['total']:.2f} : 1"
