"""HTML of a dataset for a notebook: its fields, its labels, some samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

from edcache import base, reader
from edcache.base import human_bytes
from edcache.display.cells import cell, small
from edcache.display.histogram import Histogram, histograms
from edcache.display.leaves import shown_leaves
from edcache.display.markup import Markup, element, fragment, table
from edcache.display.summary import field_rows, fields_of
from edcache.labels import Labels

_SCHEMAS: Final = 4
_FIELDS: Final = 24
_CAPTION: Final = 3
_PICTURES: Final = 6  # of a sample
_WIDEST: Final = 200  # text of a bar
_HEADER: Final = ("field", "kind", "dtype", "shape")


class Schema(list[dict[str, Any]]):
    """Schemas of a dataset, most used first: dicts with "samples", and "fields", a list of dicts.

    A field has "path", "kind", "dtype" and "shape"; a shape that varies is None. A schema that does not read has a
    "problem" in place of fields. Printed it is a table.
    """

    def __repr__(self) -> str:
        blocks = []
        for schema in self:
            rows = (list(map(base.printable, row)) for row in field_rows(schema))
            blocks.append("\n".join([_samples(schema["samples"]), *base.text_table(_HEADER, rows)]))
        return "\n\n".join(blocks) or "no samples"

    def _repr_html_(self) -> str:
        return fragment(*schema_tables(self))


def _samples(count: int) -> str:
    return f"{count:,} sample{'' if count == 1 else 's'}"


def schema_of(archives: Sequence[reader.Reader]) -> Schema:
    """Join the schemas of several archives in one list."""
    merged: dict[str, dict[str, Any]] = {}
    for schema in chain.from_iterable(fields_of(archive.session) for archive in archives):
        own = str((schema["fields"], schema.get("problem")))
        one = merged.setdefault(own, schema | {"samples": 0})
        one["samples"] += schema["samples"]
    return Schema(sorted(merged.values(), key=lambda one: -one["samples"]))


class SampleGrid:
    """Some samples side by side: pictures in a notebook, a line each in print.

    Attributes:
        indices: of the samples, in the dataset of a view.
        samples: each, or the error of reading it.
    """

    def __init__(self, indices: Sequence[int], samples: Sequence[Any], labels: Labels) -> None:
        self.indices, self.samples = list(indices), list(samples)
        self._names = list(labels)[:_CAPTION]
        columns = zip(*map(labels.to_list, self._names), strict=True)
        self._captions = list(columns) or [()] * len(self.indices)

    def __repr__(self) -> str:
        lines = (f"{self._caption(k)}  {_line(sample)}" for k, sample in enumerate(self.samples))
        return "\n".join(map(base.printable, lines))

    def _repr_html_(self) -> str:
        return fragment(self.grid())

    def grid(self) -> Markup:
        """Draw the pictures, as a part of a page."""
        figures = (
            element(
                *("figure", element("div", _pictures(sample))),
                element("figcaption", self._short(k), title=self._caption(k)),
            )
            for k, sample in enumerate(self.samples)
        )
        return element("div", figures, class_="grid")

    def _short(self, k: int) -> str:
        labels = (base.shortened(base.brief(value)) for value in self._captions[k])
        return ", ".join([f"{self.indices[k]:,}", *labels])

    def _caption(self, k: int) -> str:
        values = zip(self._names, self._captions[k], strict=True)
        named = (f"{name}={base.shown(value)}" for name, value in values)
        return "  ".join([f"{self.indices[k]:,}", *named])


def _pictures(sample: Any) -> list[Markup]:
    """Draw all pictures of a sample; of one without what the viewer's grid shows of it."""
    if isinstance(sample, Exception):
        return [element("pre", _line(sample))]
    pictures = (leaf.media for leaf in shown_leaves(sample) if leaf.media and leaf.media.is_picture)
    return [_picture(small(media)) for media in islice(pictures, _PICTURES)] or [_picture(cell(sample))]


def _picture(seen: dict[str, Any]) -> Markup:
    if "png" in seen:
        return element("img", src=f"data:image/png;base64,{seen['png']}", alt="")
    return _lines(seen["lines"]) if "lines" in seen else element("pre", seen["text"][:160])


def _lines(lines: list[list[float | None]]) -> Markup:
    """Draw a signal as polylines."""
    finite = [value for line in lines for value in line if value is not None]
    low = min(finite, default=0.0)
    span = max(finite, default=0.0) / 2 - low / 2 or 1.0  # halved, so that it is no infinity
    shapes = []
    for line in lines:
        last = max(len(line) - 1, 1)
        heights = ((k, 92 - 88 * (v / 2 - low / 2) / span) for k, v in enumerate(line) if v is not None)
        points = " ".join(f"{96 * k / last:.1f},{height:.1f}" for k, height in heights)
        shapes.append(element("polyline", points=points, fill="none", stroke="#4c8bd6"))
    return element("svg", *shapes, viewBox="0 0 96 96", width="96", height="96")


def _line(sample: Any) -> str:
    if isinstance(sample, Exception):
        return f"{type(sample).__name__}: {base.shortened(str(sample))}"
    if isinstance(sample, dict):
        return base.shortened(", ".join(f"{key}: {base.described(value)}" for key, value in sample.items()))
    return base.described(sample)


def dataset_html(
    title: str, length: int, labels: Labels, archives: Sequence[reader.Reader], samples: SampleGrid | None
) -> str:
    """Draw a dataset for a notebook.

    Cost: opens archives that are not open, and counts the values of the first labels.
    """
    # Labels of a far archive are not fetched to be shown.
    bars = [] if any(archive.by_request for archive in archives) else list(map(_bars, histograms(labels)))
    columns = [(one.name, str(one.type)) for one in labels.schema][len(bars) :]
    more = element("div", f"{len(columns) - _FIELDS:,} more labels", class_="dim")
    tables = [
        *schema_tables(schema_of(archives)),
        *bars,
        *([table(("label", "type"), columns[:_FIELDS])] if columns else []),
        *([more] if len(columns) > _FIELDS else []),
    ]
    stated = (pair for pair in _facts(length, archives) if pair[1] is not None)
    facts = element("table", (element("tr", element("th", n), element("td", v or "")) for n, v in stated))
    boxes = element("div", tables, class_="columns")
    return fragment(element("h4", title), facts, boxes, "" if samples is None else samples.grid())


def _bars(of: Histogram) -> Markup:
    """Draw the values of a label as bars."""
    greatest = max((bar.count for bar in of.bars), default=0) or 1
    rows = (
        element(
            *("tr", element("td", bar.text[:_WIDEST], title=bar.text[:_WIDEST])),
            element("td", element("i", style=f"width:{90 * bar.count / greatest:.0f}px")),
            element("td", f"{bar.count:,}", class_="n dim"),
        )
        for bar in of.bars
    )
    title = element("div", of.name[:_WIDEST], element("span", f" {of.type[:_WIDEST]}", class_="dim"))
    return element(
        "div", title, element("table", rows, class_="bars"), element("div", of.rest_text, class_="dim")
    )


def _facts(length: int, archives: Sequence[reader.Reader]) -> Iterator[tuple[str, str | None]]:
    yield "samples", f"{length:,}"
    sessions = [archive.session for archive in archives]
    absent = sum(one.length - one.index.present for one in sessions)
    yield "missing", f"{absent:,}" if absent else None
    failed = sum(len(one.index.failures) for one in sessions)
    yield "failed", f"{failed:,}" if failed else None
    where = archives[0].path if len(archives) == 1 else f"{len(archives)} archives"
    yield "archive", f"{where}, {human_bytes(sum(one.size for one in sessions))}"
    made = sessions[0].head.fingerprint or {}
    yield "made by", str(made.get("factory") or made.get("type") or "") or None


def schema_tables(schema: Schema) -> Iterator[Markup]:
    """Draw the most used schemas, each as a table of its fields."""
    for one in schema[:_SCHEMAS]:
        rows = field_rows(one)
        more = len(rows) - _FIELDS
        yield element(
            *("div", table(_HEADER, rows[:_FIELDS])),
            element("div", f"{more:,} more fields", class_="dim") if more > 0 else "",
            element("div", _samples(one["samples"]), class_="dim") if len(schema) > 1 else "",
        )
    if len(schema) > _SCHEMAS:
        yield element("div", f"{len(schema) - _SCHEMAS:,} more schemas: ds.schema", class_="dim")
