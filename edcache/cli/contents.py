"""info, show, ls, labels: an archive as a whole, one sample, records and labels as tables; labels changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import click
import numpy as np

from edcache import dataset, display, tools, writer
from edcache.base import ReadOptions, SampleIndexError, human_bytes, plain
from edcache.cli.flags import PATH, flags
from edcache.cli.output import (
    BLOCK,
    cell,
    csv_lines,
    json_lines,
    paired_lines,
    plural,
    print_lines,
    print_report,
    printable,
    table,
)

_SHOWN_SCHEMAS: Final = 8


def _opened(path: str, **options: Any) -> dataset.CachedDataset:
    return dataset.CachedDataset(None, path, allow_partial=True, **options)


@click.command()
@click.argument("path", type=PATH)
@click.option("--digest", is_flag=True, help="Also the file's SHA-256, which takes reading all of it.")
@flags("as_json")
def info(path: str, digest: bool, as_json: bool) -> None:
    """Say what an archive holds and where it comes from, without reading a sample.

    The digest is what sha256sum prints for the file. Publish it with the archive, and whoever gets it
    checks it with verify --expect, or with from_cache(path, expected_digest=...).

    \b
    Example:
      edcache info train.zip --json
    """
    document = display.summary(writer.store_at(path).reader(ReadOptions(allow_partial=True)))
    if digest:
        document["digest"] = tools.digest(path)
    print_report(as_json, document, _info_lines(document))


def _info_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """`edcache info`, from its JSON form."""
    record, fingerprint = info["record_nbytes"], info["fingerprint"] or {}
    sizes, compression = None, info["compression"] or "none"
    if record["max"] is not None:
        sizes = f"median {human_bytes(record['median'])}, max {human_bytes(record['max'])}"
    if record["uncompressed"] and record["total"]:
        compression = f"{info['compression']}, {record['uncompressed'] / record['total']:.2f} : 1"
    made_of = {
        key: ", ".join(f"{name}={value!r}" for name, value in named(fingerprint, key).items()) or None
        for key in ("arguments", "attributes")
    }
    yield from paired_lines(
        [
            ("archive", info["path"]),
            ("samples", f"{info['samples']:,}"),
            ("missing", f"{info['missing']:,}"),
            ("sealed", "yes" if info["sealed"] else "no"),
            ("chunks", None if info["chunks"] is None else f"{info['chunks']:,}"),
            ("file", f"{human_bytes(info['nbytes'])} ({info['nbytes']:,} bytes)"),
            ("record", sizes),
            ("codec", info["codec"]),
            ("compression", compression),
            ("labels", ", ".join(f"{name}: {kind}" for name, kind in info["labels"].items()) or "none"),
            *((key, fingerprint.get(key)) for key in ("type", "factory")),
            *made_of.items(),
            ("version", fingerprint.get("version")),
            ("format", info["format_version"]),
            ("uuid", info["uuid"]),
            ("digest", info.get("digest")),
        ]
    )
    for schema in info["schemas"][:_SHOWN_SCHEMAS]:
        yield f"\nschema of {plural(schema['samples'], 'sample')}"
        if schema["fields"]:
            yield from table(("field", "kind", "dtype", "shape"), map(_field_row, schema["fields"]))
        else:
            yield "each record says its own, see edcache show" if info["codec"] == "native" else "pickles"
    if len(info["schemas"]) > _SHOWN_SCHEMAS:
        yield f"\n{len(info['schemas']) - _SHOWN_SCHEMAS:,} more schemas; --json lists all"


def named(fingerprint: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The arguments or the attributes in a fingerprint, which may be anybody's."""
    values = fingerprint.get(key)
    return values if isinstance(values, dict) else {}


@click.command(context_settings={"ignore_unknown_options": True})  # so that -1 is an index
@click.argument("path", type=PATH)
@click.argument("index", type=int)
@flags("as_json", "allow_pickle")
def show(path: str, index: int, as_json: bool, allow_pickle: bool) -> None:
    """Decode one sample and show its tree; a negative INDEX counts from the end.

    \b
    Example:
      edcache show train.zip -1
    """
    cache = _opened(path, allow_pickle=allow_pickle)
    if not -len(cache) <= index < len(cache):
        raise SampleIndexError(
            f"{cache.path}: no sample {index}; there are {len(cache):,}, from 0 on or from -1 back"
        )
    leaves = display.sample_tree(cache[index])
    document = {"path": cache.path, "index": index % len(cache), "leaves": leaves}
    header = ("field", "type", "dtype", "shape", "value")
    print_report(as_json, document, table(header, map(_leaf_row, leaves)))


def _leaf_row(leaf: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """A described leaf as the cells path, type, dtype, shape, value."""
    shape = "" if "shape" not in leaf else _shape_text(leaf["shape"])
    return leaf["path"] or ".", leaf["type"], leaf.get("dtype", ""), shape, _value_text(leaf)


def _field_row(field: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A described field as the cells path, kind, dtype, shape."""
    sized = field["kind"] in ("tensor", "array", "scalar")
    shape = "varies" if field["shape"] is None else _shape_text(field["shape"])
    return field["path"] or ".", field["kind"], field["dtype"] if sized else "", shape if sized else ""


def _shape_text(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _value_text(leaf: Mapping[str, Any]) -> str:
    if "value" in leaf:
        return repr(leaf["value"]) if leaf["type"] == "str" else _short(leaf["value"])
    parts = [f"{name} {cell(leaf[name])}" for name in ("min", "mean", "max") if name in leaf]
    parts += [plural(leaf["items"], "item")] if "items" in leaf else []
    parts += [f"{leaf['nonfinite']:,} not finite"] if "nonfinite" in leaf else []
    return ", ".join(parts)


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@click.command()
@click.argument("path", type=PATH)
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Most records shown."
)
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Records to skip first.")
@flags("as_json")
def ls(path: str, limit: int, offset: int, as_json: bool) -> None:
    """List records: sample index, place in the file, checksum and labels.

    \b
    Example:
      edcache ls train.zip --offset 1000 --limit 5
    """
    cache = _opened(path)
    records, names = cache.reader.records, list(cache.labels)
    total = len(records.offset)
    rows = range(min(offset, total), min(offset + limit, total))
    part = slice(rows.start, rows.stop)
    columns = {
        "index": _indices(cache)[part],
        "offset": records.offset[part],
        "nbytes": records.nbytes[part],
        "crc32": records.crc32[part],
    }
    if as_json:
        print_lines(json_lines(_objects(cache, columns, names)))
        return
    cells = (
        (index, f"{at:,}", f"{nbytes:,}", f"{crc:#010x}", *values)
        for index, at, nbytes, crc, *values in _rows(cache, columns, names)
    )
    print_lines(table((*columns, *names), cells))
    if len(rows) < total:
        click.echo(f"{len(rows):,} of {total:,} records; --limit and --offset choose others", err=True)


def _indices(cache: dataset.CachedDataset) -> Any:
    """The indices that have a record: int64, sorted."""
    index = cache.reader.records.index
    return np.arange(len(cache)) if index is None else np.asarray(index)


def _rows(
    cache: dataset.CachedDataset, columns: Mapping[str, Any], names: Sequence[str]
) -> Iterator[Sequence[Any]]:
    """The values of columns, the first being the index, and of labels; some rows in memory at a time."""
    for start in range(0, max(len(columns["index"]), 1), BLOCK):
        parts = [column[start : start + BLOCK] for column in columns.values()]
        labels = cache.labels.take(parts[0])
        values = (*(part.tolist() for part in parts), *(labels.to_list(name) for name in names))
        yield from zip(*values, strict=True)


def _objects(
    cache: dataset.CachedDataset, columns: Mapping[str, Any], names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The same as JSON has it."""
    for row in _rows(cache, columns, names):
        labels = dict(zip(names, row[len(columns) :], strict=True))
        yield dict(zip(columns, row, strict=False)) | {"labels": plain(labels)}


@click.command()
@click.argument("path", type=PATH)
@click.option("--where", metavar="EXPR", help="Only samples whose labels fulfil this.")
@click.option("--count", metavar="NAME", help="How often each value of a column occurs.")
@click.option("--columns", metavar="A,B", help="Only these columns.")
@click.option("--limit", type=click.IntRange(min=0), help="Most rows shown; all by default.")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True
)
@click.option(
    "--add", "added", multiple=True, metavar="[NAME=]FILE", type=PATH, help="Add a column; repeatable."
)
@click.option("--on", metavar="NAME", help="The column that tells which row of FILE is of which sample.")
@click.option("--drop", "dropped", multiple=True, metavar="NAME", help="Drop a column; repeatable.")
def labels(
    path: str, form: str, added: Sequence[str], on: str | None, dropped: Sequence[str], **listing: Any
) -> None:
    """List or count the labels of the samples that have a record, or change them; no sample is read.

    EXPR compares columns with values: == != < <= > >= in, not in, is None, joined by and, or, not,
    with parentheses; startswith(name, "x") and contains(name, "x") look into text.

    FILE is a .npy with a value per sample, or a .csv or .parquet with a row per sample. With --on, a label
    column that the file has too, its rows may be in any order, and fewer. Without NAME= all columns of the
    file are added. What is to be dropped is dropped first.

    \b
    Example:
      edcache labels train.zip --where "label in (1, 2) and split == 'train'" --count label
      edcache labels train.zip --add cluster=clusters.npy --add age=patients.csv --on patient
    """
    if added or dropped:
        if any(value is not None for value in listing.values()):
            raise click.UsageError("--add and --drop change labels; list them by another call")
        _change(path, added, on, dropped)
        return
    if on is not None:
        raise click.UsageError("--on goes with --add")
    if listing["count"] is not None and listing["columns"] is not None:
        raise click.UsageError("--count shows one column; leave --columns out")
    _list(path, form, **listing)


def _list(
    path: str, form: str, where: str | None, count: str | None, columns: str | None, limit: int | None
) -> None:
    """Print the labels, or how often each value of one column occurs."""
    cache = _opened(path)
    indices = _indices(cache)
    if where is not None:
        indices = np.intersect1d(cache.filter(where).indices, indices)
    if count is not None:
        counts = islice(cache.labels.take(indices).counts(count).items(), limit)
        header: Sequence[str] = ("value", "count")
        rows: Iterable[Sequence[Any]] = counts
        objects: Iterable[object] = (plain({"value": value, "count": number}) for value, number in counts)
    else:
        names = list(cache.labels) if columns is None else [name.strip() for name in columns.split(",")]
        index = {"index": indices[:limit]}
        header, rows = ("index", *names), _rows(cache, index, names)
        objects = _objects(cache, index, names)
    if form == "json":
        print_lines(json_lines(objects))
    else:
        print_lines((csv_lines if form == "csv" else table)(header, rows))


def _change(path: str, added: Sequence[str], on: str | None, dropped: Sequence[str]) -> None:
    """Drop columns, then add those of files, and say which there are."""
    from edcache.labels import chosen_column, read_columns

    cache = _opened(path)
    if dropped:
        cache.drop_labels(*dropped)
    for text in added:
        name, _, file = text.partition("=") if "=" in text else (None, "", text)
        values = read_columns(file)
        if hasattr(values, "column_names"):
            cache.add_labels(values if name is None else chosen_column(name, values, on, file), on=on)
        elif name is None or on is not None:
            raise click.UsageError(f"{file} has one column without a name: --add NAME={file}, without --on")
        else:
            cache.add_labels(name, values)
    names = ", ".join(f"{field.name}: {field.type}" for field in cache.labels.table.schema)
    print_lines([f"{printable(path)}: labels are now {printable(names) or 'none'}"])
