"""info, show, ls, labels: an archive as a whole, one sample, records and labels as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
import numpy as np

from edcache import dataset, display, tools, writer
from edcache import labels as label_tables
from edcache.base import ReadOptions, SampleIndexError, human_bytes
from edcache.cli.flags import LABEL, PATH, flags, row_flags
from edcache.cli.output import (
    BLOCK,
    cell,
    paired_lines,
    plural,
    print_lines,
    print_report,
    print_rows,
    printable,
    styled,
    table,
)

_SHOWN_SCHEMAS: Final = 8


def _opened(path: str, **options: Any) -> dataset.CachedDataset:
    return dataset.CachedDataset(None, path, allow_partial=True, **options)


def archive_at(path: str) -> tuple[Any, label_tables.Labels]:
    """An archive, complete or not, and its labels; neither takes torch."""
    archive = writer.store_at(path).reader(ReadOptions(allow_partial=True))
    return archive, label_tables.Labels(archive.labels, num_rows=len(archive))


@click.command()
@click.argument("path", type=PATH)
@click.option("--digest", is_flag=True, help="Also the file's SHA-256, which takes reading all of it.")
@flags("as_json")
def info(path: str, digest: bool, as_json: bool) -> None:
    """Say what an archive holds and where it comes from.

    No sample is read. The digest is what sha256sum prints for the file. Publish it with the archive, and
    whoever gets it checks it with verify --digest, or in Python by expected_digest=.

    \b
    Example:
      edcache info train.zip --json
    """
    document = display.summary(archive_at(path)[0])
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
    yield from schema_lines(info)


def schema_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """A table of fields for each of the schemas that most samples have."""
    for schema in info["schemas"][:_SHOWN_SCHEMAS]:
        yield "\n" + styled(f"schema of {plural(schema['samples'], 'sample')}", bold=True)
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
    """Decode one sample and show its tree.

    A negative INDEX counts from the end.

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
@click.option("--offset", metavar="N", type=click.IntRange(min=0), default=0, help="Records to skip first.")
@row_flags
def ls(path: str, offset: int, form: str | None, **listing: Any) -> None:
    """List records: index, place in the file, checksum and labels.

    \b
    Example:
      edcache ls train.zip --offset 1000 --limit 5
    """
    archive, labels = archive_at(path)
    records, start = archive.records, min(offset, len(archive.records.offset))
    columns = {
        "index": _indices(archive)[start:],
        "offset": records.offset[start:],
        "nbytes": records.nbytes[start:],
        "crc32": records.crc32[start:],
    }
    rows: Iterable[Sequence[Any]] = _rows(labels, columns, list(labels))
    if form is None:
        rows = ((i, f"{at:,}", f"{size:,}", f"{crc:#010x}", *values) for i, at, size, crc, *values in rows)
    print_rows((*columns, *labels), rows, len(columns["index"]), form=form, fixed=4, **listing)


def _indices(archive: Any) -> Any:
    """The indices that have a record: int64, sorted."""
    index = archive.records.index
    return np.arange(len(archive)) if index is None else np.asarray(index)


def _rows(
    labels: label_tables.Labels, columns: Mapping[str, Any], names: Sequence[str]
) -> Iterator[Sequence[Any]]:
    """The values of columns, the first being the index, and of labels; some rows in memory at a time."""
    for start in range(0, max(len(columns["index"]), 1), BLOCK):
        parts = [column[start : start + BLOCK] for column in columns.values()]
        taken = labels.take(parts[0])
        values = (*(part.tolist() for part in parts), *(taken.to_list(name) for name in names))
        yield from zip(*values, strict=True)


@click.command()
@click.argument("path", type=PATH)
@flags("where")
@click.option("--count", metavar="NAME", type=LABEL, help="How often each value of a column occurs.")
@click.option("--columns", metavar="A,B", type=LABEL, help="Only these columns.")
@row_flags
@click.option(
    "--add", "added", multiple=True, metavar="[NAME=]FILE", type=PATH, help="Add a column; repeatable."
)
@click.option(
    "--on", metavar="NAME", type=LABEL, help="The column that tells which row of FILE is of which sample."
)
@click.option(
    "--drop", "dropped", multiple=True, metavar="NAME", type=LABEL, help="Drop a column; repeatable."
)
def labels(path: str, added: Sequence[str], on: str | None, dropped: Sequence[str], **listing: Any) -> None:
    """List, count or change the labels; no sample is read.

    Listed are the samples that have a record.

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
        if any(listing.values()):
            raise click.UsageError("--add and --drop change labels; list them by another call")
        _change(path, added, on, dropped)
        return
    if on is not None:
        raise click.UsageError("--on goes with --add")
    if listing["count"] is not None and listing["columns"] is not None:
        raise click.UsageError("--count shows one column; leave --columns out")
    _list(path, **listing)


def _list(path: str, where: str | None, count: str | None, columns: str | None, **listing: Any) -> None:
    """Print the labels, or how often each value of one column occurs."""
    archive, labels = archive_at(path)
    indices = _indices(archive)
    if where is not None:
        indices = np.intersect1d(label_tables.matching_rows(labels, {}, where), indices)
    if count is not None:
        counts = labels.take(indices).counts(count)
        print_rows(("value", "count"), counts.items(), len(counts), **listing)
        return
    names = list(labels) if columns is None else [name.strip() for name in columns.split(",")]
    print_rows(("index", *names), _rows(labels, {"index": indices}, names), len(indices), fixed=1, **listing)


def _change(path: str, added: Sequence[str], on: str | None, dropped: Sequence[str]) -> None:
    """Drop columns, then add those of files, and say which there are."""
    cache = _opened(path)
    if dropped:
        cache.drop_labels(*dropped)
    for text in added:
        name, _, file = text.partition("=") if "=" in text else (None, "", text)
        values = label_tables.read_columns(file)
        if hasattr(values, "column_names"):
            cache.add_labels(
                values if name is None else label_tables.chosen_column(name, values, on, file), on=on
            )
        elif name is None or on is not None:
            raise click.UsageError(f"{file} has one column without a name: --add NAME={file}, without --on")
        else:
            cache.add_labels(name, values)
    names = ", ".join(f"{field.name}: {field.type}" for field in cache.labels.table.schema)
    print_lines([f"{printable(path)}: labels are now {printable(names) or 'none'}"])
