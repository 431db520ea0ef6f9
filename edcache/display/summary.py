"""Summary of an archive and its origin, as JSON; no sample is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from edcache import codec, format, reader
from edcache.base import CorruptRecordError, LaterReleaseError, human_bytes, named


def summary(archive: reader.Session) -> dict[str, Any]:
    """Summarise an archive.

    "path", "samples", "missing", "nbytes" of the file, "torn_nbytes" at its end that are no whole entry, "labels" (type
    by name), "schemas" (see `fields_of`), "fingerprint" of the call that made it, and so on: the document of
    `edcache info --json`.
    """
    head, index = archive.head, archive.index
    nbytes = _held_rows(archive)["nbytes"]
    return {
        "path": archive.path,
        "format_version": format.VERSION,
        "uuid": head.uuid.hex(),
        "sealed": archive.sealed,
        "takes_values": head.takes_values,
        "samples": archive.length,
        "missing": archive.length - len(nbytes),
        "failed": len(index.failures),
        "chunks": archive.chunks,
        "nbytes": archive.size,
        "torn_nbytes": archive.size - archive.nbytes,
        "memory": archive.memory(),
        "record_nbytes": {
            "total": int(nbytes.sum()),
            "median": float(np.median(nbytes)) if len(nbytes) else None,
            "max": int(nbytes.max()) if len(nbytes) else None,
        },
        "codec": head.codec,
        "compression": head.compression,
        "labels": {field.name: str(field.type) for field in archive.labels.schema},
        "schemas": fields_of(archive),
        "fingerprint": archive.origin.fingerprint,
    }


def facts(of: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield a summary as pairs of texts, but for its fields and the call that made it."""
    record = of["record_nbytes"]
    yield "archive", of["path"]
    yield "samples", f"{of['samples']:,}"
    yield "missing", f"{of['missing']:,}"
    yield "failed", f"{of['failed']:,}" if of["failed"] else None
    is_open = "a KeyedCache, open for further values"
    unsealed = is_open if of["takes_values"] else "it is being filled, was not finished, or was cut"
    yield "sealed", "yes" if of["sealed"] else f"no: {unsealed}"
    yield "chunks", None if of["chunks"] is None else f"{of['chunks']:,}"
    torn = f", the last {of['torn_nbytes']:,} of an entry that is being written, or was cut"
    yield "file", f"{human_bytes(of['nbytes'])} ({of['nbytes']:,} bytes{torn if of['torn_nbytes'] else ''})"
    if record["max"] is not None:
        yield "record", f"median {human_bytes(record['median'])}, max {human_bytes(record['max'])}"
    yield "codec", of["codec"]
    yield "compression", of["compression"] or "none"
    yield "labels", ", ".join(f"{name}: {kind}" for name, kind in of["labels"].items()) or "none"
    yield "format", str(of["format_version"])
    yield "uuid", of["uuid"]


def provenance(fingerprint: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Describe the call that made an archive, from its fingerprint, which any program may have written."""
    of = fingerprint or {}
    for entry in ("settings", "columns"):
        for name, value in named(of, entry).items():
            word, _, rest = name.partition(" ")
            if rest or value is not None:
                yield word, f"{rest}={_value_text(value)}" if rest else _plain_text(value)


def _value_text(value: object) -> str:
    """Write a value of a fingerprint, in which a value that is not plain is a list of its text, and its form."""
    return value[0] if isinstance(value, list) and value and type(value[0]) is str else repr(value)


def _plain_text(value: object) -> str:
    return value if isinstance(value, str) else _value_text(value)


def call_text(fingerprint: Mapping[str, Any] | None) -> str:
    """Write the call of a fingerprint as Python code: "make(split='train', n=6)"."""
    of = named(fingerprint or {}, "settings")
    if "factory" not in of:
        return str(of.get("type", ""))
    given = (
        (name.removeprefix("argument "), value) for name, value in of.items() if name.startswith("argument ")
    )
    return f"{of['factory']}({', '.join(f'{name}={_value_text(value)}' for name, value in given)})"


def fields_of(archive: reader.Session) -> list[dict[str, Any]]:
    """List the schemas, most used first: number of "samples" with each, and its "fields".

    A field has "path", "kind", "dtype" and "shape"; a shape that varies is None. A schema that does not read has a
    "problem" in place of fields.
    """
    numbers, schemas = _held_rows(archive)["schema"], archive.index.schemas
    used = np.bincount(numbers, minlength=len(schemas)).tolist()
    listed = [
        {"samples": samples, **_fields_or_problem(archive, schemas[number])}
        for number, samples in enumerate(used[: len(schemas)])
    ]
    damaged = sum(used[len(schemas) :])
    if damaged:
        listed.append({"samples": damaged, "fields": [], "problem": "damaged: they are of no schema"})
    return sorted(listed, key=lambda one: -one["samples"])


def _held_rows(archive: reader.Session) -> format.Rows:
    """Return the rows of samples that have a record."""
    rows = archive.index.all_rows()
    return rows[rows["flags"] & format.PRESENT > 0]


def _fields_or_problem(archive: reader.Session, schema: str) -> dict[str, Any]:
    try:
        return {"fields": list(map(_field, codec.stored_fields(schema)))}
    except (CorruptRecordError, LaterReleaseError) as error:
        return {"fields": [], "problem": f"{archive.path}: {error}"}


def _field(field: Any) -> dict[str, Any]:
    return {
        "path": ".".join(map(str, field.path)),
        "kind": field.kind,
        "dtype": None if field.dtype is None else str(field.dtype),
        "shape": None if field.shape is None else list(field.shape),
    }


def field_rows(schema: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Make the rows of a table of fields: path, kind, dtype and shape."""
    rows: list[tuple[str, ...]] = [(schema["problem"], "", "", "")] if "problem" in schema else []
    for field in schema["fields"]:
        path, kind, dtype, shape = (field[key] for key in ("path", "kind", "dtype", "shape"))
        text = "varies" if shape is None else " x ".join(map(str, shape)) or "scalar"
        is_sized = kind in ("tensor", "array", "scalar")
        rows.append((path or ".", kind, dtype if is_sized else "", text if is_sized else ""))
    return rows
