"""info and show: an archive as a whole, and one sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from edcache.cli.group import PATH, json_option, main, pickle_option, print_json, print_lines
from edcache.errors import SampleIndexError
from edcache.present import describe_fields, describe_sample, info_lines, leaf_row, table

if TYPE_CHECKING:
    from edcache.reader import AnyReader


@main.command()
@click.argument("path", type=PATH)
@click.option("--digest", is_flag=True, help="Also the file's SHA-256, which takes reading all of it.")
@json_option
def info(path: str, digest: bool, as_json: bool) -> None:
    """Say what an archive holds and where it comes from, without reading a sample.

    The digest is what sha256sum prints for the file. Publish it with the archive, and whoever gets it
    checks it with verify --expect, or with from_cache(path, expected_digest=...).

    \b
    Example:
      edcache info train.zip --json
    """
    from edcache.options import ReadOptions
    from edcache.stores import store_at

    said = _said(store_at(path).reader(ReadOptions(allow_partial=True)))
    if digest:
        from edcache import maintain

        said["digest"] = maintain.digest(path)
    if as_json:
        print_json(said)
    else:
        print_lines(info_lines(said))


def _said(reader: AnyReader) -> dict[str, Any]:
    """Everything that `info` tells, as JSON has it."""
    import numpy as np

    from edcache import format

    head, records = reader.head, reader.records
    nbytes = records.nbytes
    return {
        "path": reader.path,
        "format_version": format.VERSION,
        "uuid": head.uuid.hex(),
        "sealed": reader.sealed,
        "samples": len(reader),
        "missing": len(reader) - len(nbytes),
        "chunks": reader.chunks,
        "nbytes": reader.nbytes,
        "memory": reader.memory(),
        "record_nbytes": {
            "total": int(nbytes.sum()),
            "median": float(np.median(nbytes)) if len(nbytes) else None,
            "max": int(nbytes.max()) if len(nbytes) else None,
            "uncompressed": None if records.raw_nbytes is None else int(records.raw_nbytes.sum()),
        },
        "codec": head.codec,
        "compression": head.compression,
        "labels": {field.name: str(field.type) for field in reader.labels().schema},
        "schemas": _schemas(reader),
        "fingerprint": head.fingerprint,
    }


def _schemas(reader: AnyReader) -> list[dict[str, Any]]:
    """The schemas, most used first: how many samples have each, and its fields."""
    import numpy as np

    from edcache.codec import Decoder

    used = np.bincount(reader.records.schema, minlength=len(reader.schemas)).tolist()
    order = sorted(range(len(reader.schemas)), key=lambda number: -used[number])
    return [
        {"samples": used[n], "fields": describe_fields(Decoder(reader.schemas[n]).fields.values())}
        for n in order
    ]


@main.command(context_settings={"ignore_unknown_options": True})  # so that -1 is an index
@click.argument("path", type=PATH)
@click.argument("index", type=int)
@json_option
@pickle_option
def show(path: str, index: int, as_json: bool, allow_pickle: bool) -> None:
    """Decode one sample and show its tree; a negative INDEX counts from the end.

    \b
    Example:
      edcache show train.zip -1
    """
    from edcache.dataset import CachedDataset

    cache = CachedDataset(None, path, allow_partial=True, allow_pickle=allow_pickle)
    if not -len(cache) <= index < len(cache):
        raise SampleIndexError(
            f"{cache.path}: no sample {index}; there are {len(cache):,}, from 0 on or from -1 back"
        )
    leaves = describe_sample(cache[index])
    if as_json:
        print_json({"path": cache.path, "index": index % len(cache), "leaves": leaves})
    else:
        print_lines(table(("field", "type", "dtype", "shape", "value"), map(leaf_row, leaves)))
