"""What an archive holds and where it comes from, as JSON has it; no sample is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from edcache import codec, format, reader
from edcache.base import CorruptArchiveError


def summary(archive: reader.AnyReader) -> dict[str, Any]:
    """What an archive says of itself.

    "path", "samples", "missing", "nbytes", "labels" (type by name), "schemas" (see `fields_of`),
    "fingerprint" of the call that made it, and so on: the document of `edcache info --json`.
    """
    head, records = archive.head, archive.records
    nbytes = records.nbytes
    return {
        "path": archive.path,
        "format_version": format.VERSION,
        "uuid": head.uuid.hex(),
        "sealed": archive.sealed,
        "samples": len(archive),
        "missing": len(archive) - len(nbytes),
        "chunks": archive.chunks,
        "nbytes": archive.nbytes,
        "memory": archive.memory(),
        "record_nbytes": {
            "total": int(nbytes.sum()),
            "median": float(np.median(nbytes)) if len(nbytes) else None,
            "max": int(nbytes.max()) if len(nbytes) else None,
            "uncompressed": None if records.raw_nbytes is None else int(records.raw_nbytes.sum()),
        },
        "codec": head.codec,
        "compression": head.compression,
        "labels": {field.name: str(field.type) for field in archive.labels().schema},
        "schemas": fields_of(archive),
        "fingerprint": head.fingerprint,
    }


def fields_of(archive: reader.AnyReader) -> list[dict[str, Any]]:
    """The schemas, most used first: how many "samples" have each, and its "fields".

    A field has "path", "kind", "dtype" and "shape"; a shape that varies is None.
    """
    numbers, schemas = archive.records.schema, len(archive.schemas)
    if len(numbers) and int(numbers.max()) >= schemas:
        raise CorruptArchiveError(
            f"{archive.path}: a record has schema {int(numbers.max()):,}; the index has {schemas:,} schemas"
        )
    used = np.bincount(numbers, minlength=schemas).tolist()
    return [
        {"samples": samples, "fields": [_field(field) for field in codec.stored_fields(schema)]}
        for samples, schema in sorted(zip(used, archive.schemas, strict=True), key=lambda pair: -pair[0])
    ]


def _field(field: Any) -> dict[str, Any]:
    return {
        "path": ".".join(map(str, field.path)),
        "kind": field.kind,
        "dtype": None if field.dtype is None else str(field.dtype),
        "shape": None if field.shape is None else list(field.shape),
    }
