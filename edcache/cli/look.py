"""info, show, view, labels: describe archives and samples; list labels."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

from edcache import dataset, display, writer
from edcache import labels as label_tables
from edcache.base import ArchiveNotFoundError, EdcacheError, Ints, ReadOptions, SampleIndexError, brief
from edcache.cli import output as out
from edcache.cli.flags import PATH, PATHS, flags, row_flags
from edcache.storage import scheme_of, shown

if TYPE_CHECKING:
    from edcache.format import Head
    from edcache.reader import Session

_SHOWN_SCHEMAS: Final = 8
_MOST_PARENTS: Final = 8
_BLOCK: Final = 10_000


def open_archive(path: str) -> Session:
    """Open an archive, complete or not, without torch."""
    return writer.store_at(path).reader(ReadOptions(allow_partial=True, local=False)).session


@click.command()
@PATHS
@flags("as_json")
def info(paths: Sequence[str], as_json: bool) -> None:
    """Describe archives: samples, fields, labels, and origin.

    A PATH is an archive, a folder with archives, or a glob in quotes. No sample is read. On a terminal the first labels
    have bars of their values. An archive that was computed from others, such as one of map(), has a line for each
    parent, which tells if that has changed since.

    \b
    Example:
      edcache info train.zip --json
    """

    def report(path: str) -> out.Printout:
        archive = open_archive(path)
        document = display.summary(archive)
        # Columns of a far archive are not fetched for a look.
        bars = _label_bars(archive.labels) if sys.stdout.isatty() and not archive.file.by_request else ()
        return document, chain(_info_lines(document), bars), True

    out.print_reports(paths, as_json, report)


def _info_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `edcache info`, from its JSON form."""
    fingerprint = info["fingerprint"]
    pairs = [*display.facts(info), *display.provenance(fingerprint), *_parents(fingerprint, info["path"])]
    yield from out.paired_lines(pairs)
    schemas = info["schemas"]
    yield from f"\n{display.Schema(schemas[:_SHOWN_SCHEMAS])!r}".splitlines()
    if len(schemas) > _SHOWN_SCHEMAS:
        yield f"\n{len(schemas) - _SHOWN_SCHEMAS:,} more schemas; --json lists all"


def _label_bars(labels: label_tables.Labels) -> Iterator[str]:
    """Yield bars of the first labels' values, on a terminal alone; a line with the reason, if a column is damaged."""
    try:
        for one in display.histograms(labels):
            if one.bars:
                counts = [(bar.text, bar.count) for bar in one.bars]
                yield from ("", *out.count_table((one.name, "count"), counts))
            if one.rest:
                yield one.rest_text if one.bars else f"\n{out.printable(one.name)}: {one.rest_text}"
    except EdcacheError as error:
        yield out.one_line(str(error))


def _parents(fingerprint: Any, child: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the archives that an archive was computed from, and their states.

    Any program may have named them: a URL is not opened.
    """
    named = fingerprint.get("parents") if isinstance(fingerprint, dict) else None
    for parent in named if isinstance(named, list) and depth < _MOST_PARENTS else []:
        known = parent if isinstance(parent, dict) else {}
        path, origin = str(known.get("path")), None
        # Of files that were moved together, it lies beside its child.
        beside = os.path.join(os.path.dirname(child), os.path.basename(path))
        path = beside if not os.path.exists(path) and os.path.exists(beside) else path
        try:
            origin = None if scheme_of(path) else open_archive(path).origin
            state = "not looked at" if origin is None else _state(origin, known)
        except ArchiveNotFoundError:
            state = "not there"
        except EdcacheError as error:
            state = str(error)
        yield "  " * depth + "parent", f"{path}: {state}"
        if origin is not None:
            yield from _parents(origin.fingerprint, path, depth + 1)


def _state(parent: Head, known: Mapping[str, Any]) -> str:
    if parent.uuid.hex() != known.get("uuid"):
        return "another archive"
    return "as it was" if parent.keys_digest == known.get("keys") else "filled again since"


@click.command()
@click.argument("path", type=PATH)
@click.argument("index", type=int)
@flags("as_json", "allow_pickle")
def show(path: str, index: int, as_json: bool, allow_pickle: bool) -> None:
    """Decode one sample and show its tree.

    A negative INDEX counts from the end; write it behind --.

    \b
    Example:
      edcache show train.zip 17
      edcache show train.zip -- -1
    """
    cache = dataset.CachedDataset(None, path, allow_partial=True, allow_pickle=allow_pickle)
    if not -len(cache) <= index < len(cache):
        raise SampleIndexError(
            f"{cache.path}: no sample {index}; there are {len(cache):,}, from 0 on or from -1 back"
        )
    leaves = list(display.sample_tree(cache[index]))
    document = {"path": cache.path, "index": index % len(cache), "leaves": leaves}
    header = ("field", "type", "dtype", "shape", "value")
    out.print_report(as_json, document, out.table(header, map(_leaf_row, leaves)))


def _leaf_row(leaf: Mapping[str, Any]) -> tuple[str, ...]:
    """Make the cells of a described leaf: path, type, dtype, shape, value."""
    shape = " x ".join(map(str, leaf.get("shape", ())))
    stated = (name for name in ("items", "min", "mean", "max", "nonfinite") if name in leaf)
    value = ", ".join(f"{name} {out.cell(leaf[name])}" for name in stated)
    if "value" in leaf:
        value = repr(leaf["value"]) if leaf["type"] == "str" else _short(leaf["value"])
    return leaf["path"] or ".", leaf["type"], leaf.get("dtype", ""), shape, value


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return brief(value)


@click.command()
@PATHS
@flags("where")
@click.option(
    "--port", metavar="PORT", type=click.IntRange(1, 65535), help="Port of the server; a free one by default."
)
@click.option("--no-browser", is_flag=True, help="Print the URL alone.")
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="Show tokens as text too, by this tokenizer of transformers: a folder, or one that was downloaded.",
)
def view(
    paths: Sequence[str], where: str | None, port: int | None, no_browser: bool, tokenizer: str | None
) -> None:
    """Show archives in a browser: labels, samples, gaps.

    A PATH is an archive, a URL, a folder with archives, or a glob in quotes. The page is served to this machine alone,
    until Ctrl-C. The URL has a token, which gives access to the samples.

    \b
    Example:
      edcache view train.zip --where "label == 3"
    """
    several = dataset.expand_paths(paths[0] if len(paths) == 1 else paths)
    detokenizer = None if tokenizer is None else display.detokenizer(tokenizer)
    archives = [archive_shown(path, detokenizer) for path in several or paths]
    if where or several is None:
        archives[0].rows(where or "")  # raises its error here
    display.view(archives, port=port, open_browser=not no_browser, where=where or "")


def archive_shown(path: str, detokenizer: display.Detokenizer | None = None) -> display.Shown:
    """Wrap an archive for the viewer."""
    return display.Shown(
        name=shown(path),
        labels=lambda: open_archive(path).labels,
        # Pictures stay files here; the page decodes them within limits.
        dataset=partial(dataset.CachedDataset, None, path, allow_partial=True, decode=None),
        code=f"ds = edcache.CachedDataset.from_cache({shown(path)!r})",
        detokenizer=detokenizer,
    )


def _rows(labels: label_tables.Labels, indices: Ints, names: Sequence[str]) -> Iterator[Sequence[Any]]:
    """Yield rows of indices and values of labels, `_BLOCK` in memory at a time."""
    for start in range(0, max(len(indices), 1), _BLOCK):
        part = indices[start : start + _BLOCK]
        taken = labels.take(part)
        yield from zip(part.tolist(), *map(taken.to_list, names), strict=True)


@click.command()
@click.argument("path", type=PATH)
@flags("where")
@click.option("--count", metavar="NAME", help="Count the values of a column.")
@click.option("--columns", metavar="A,B", help="Only these columns.")
@row_flags
def labels(path: str, where: str | None, count: str | None, columns: str | None, **listing: Any) -> None:
    """List or count the labels; no sample is read.

    Samples without a record are left out. EXPR compares columns with values: == != < <= > >= in, not in, is None,
    joined by and, or, not, with parentheses; startswith(name, "x") and contains(name, "x") look into text.

    \b
    Example:
      edcache labels train.zip --where "label in (1, 2)" --count split
    """
    if count is not None and columns is not None:
        raise click.UsageError("--count shows one column; leave --columns out")
    archive = open_archive(path)
    labels, indices = archive.labels, archive.index.held()
    if where is not None:
        indices = np.intersect1d(label_tables.matching_rows(labels, {}, where), indices)
    if count is not None:
        counts = labels.take(indices).counts(count)
        out.print_rows(("value", "count"), counts.items(), len(counts), table=out.count_table, **listing)
        return
    names = list(labels) if columns is None else [name.strip() for name in columns.split(",")]
    out.print_rows(("index", *names), _rows(labels, indices, names), len(indices), fixed=1, **listing)
