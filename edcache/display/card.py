"""A dataset card: what an archive holds, as Markdown and as one HTML file that loads nothing.

All that an archive says is data. In HTML and in Markdown every character is escaped that could mean anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from edcache import reader
from edcache.base import (
    EdcacheError,
    Markup,
    element,
    fragment,
    human_bytes,
    joined,
    pairs,
    shortened,
)
from edcache.display.notebook import SampleGrid, Schema, schema_of, schema_tables
from edcache.display.summary import facts, field_rows, provenance, summary
from edcache.labels import Histogram, Labels
from edcache.storage import scheme_of

_SAMPLES: Final = 12
_GOLDEN: Final = (5**0.5 - 1) / 2
_BARS: Final = 10
_COLUMNS: Final = 40
_WIDEST: Final = 20  # a bar, in characters
# An entity where an escape would not do: of a backslash before a |, and of what is made a link by itself.
_ESCAPES: Final = {ord(c): f"\\{c}" for c in "!#$*[]_~"} | {ord(c): f"&#{ord(c)};" for c in "&<>|\\@`"}
_POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_STYLE: Final = """
:root{color-scheme:light dark}
body{margin:2rem auto;padding:0 1rem;max-width:64rem;font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0 0 .3rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
pre.code{padding:.7rem 1rem;background:#8882;border-radius:6px;overflow-x:auto;font-size:13px}
"""


@dataclass(frozen=True, slots=True)
class Card:
    """What a card shows of an archive.

    Attributes:
        name: of the dataset: the name of its file.
        place: what opens it: the name of its file, or its URL.
        document: as `summary` has it, with the place as "path" and the digest, if it was taken.
        samples: some of them, evenly spread. unread: why some cannot be shown.
        schema, spreads: the fields, and labels as histograms. more_columns: says that there are more labels.
        made: the call that made it, as pairs.
    """

    name: str
    place: str
    document: dict[str, Any]
    samples: SampleGrid
    unread: str | None
    schema: Schema
    spreads: Sequence[Histogram]
    more_columns: str
    made: Sequence[tuple[str, str]]


def card_of(archive: reader.AnyReader, labels: Labels, digest: str | None = None) -> Card:
    """The card of an open archive, whose images come as files (decode=None).

    Cost: reads the labels and twelve samples. Of those that cannot be read one error is shown.
    """
    place = archive.path if scheme_of(archive.path) else os.path.basename(archive.path)
    name = os.path.basename(urlsplit(place).path if scheme_of(place) else place)
    more = len(labels) - _COLUMNS
    samples: dict[int, Any] = {}
    unread = None
    for index in _spread_indices(len(archive)):
        try:
            if archive.has(index):
                samples[index] = archive.read(index)
        except EdcacheError as error:
            unread = str(error)
    return Card(
        name=name.removesuffix(".zip") or place,
        place=place,
        document=summary(archive) | {"path": place, "digest": digest},
        samples=SampleGrid(list(samples), list(samples.values()), labels),
        unread=unread and unread.replace(archive.path, place),
        schema=schema_of([archive]),
        spreads=[labels.histogram(column, _BARS) for column in list(labels)[:_COLUMNS]],
        more_columns=f"{more:,} more columns" if more > 0 else "",
        made=[(name, shortened(text)) for name, text in provenance(archive.head.fingerprint)],
    )


def _spread_indices(count: int) -> list[int]:
    """Indices from all over; in equal steps they might all be of one class."""
    if count <= _SAMPLES:
        return list(range(count))
    return sorted({int(k * _GOLDEN % 1 * count) for k in range(_SAMPLES)})


def opening_code(card: Card) -> list[str]:
    """The lines of Python that open the archive."""
    several = (spread.bars for spread in card.spreads if len(spread.bars) > 1)
    where = next((bars[0].where for bars in several if bars[0].where), None)
    opened = f"ds = edcache.CachedDataset.from_cache({card.place!r})"
    return ["import edcache", opened, "ds[0]" if where is None else f"part = ds.filter({where!r})"]


def description(card: Card) -> str:
    """What the dataset is, for whoever sees nothing else."""
    samples, size = card.document["samples"], human_bytes(card.document["nbytes"])
    return (
        f"{samples:,} sample{'s' * (samples != 1)} for PyTorch in one file of {size}. "
        "It is an edcache archive: a zip file that is read by index and filtered by label."
    )


def _summarized(spread: Histogram) -> Histogram:
    """A histogram; without bars, which say nothing, where each sample seems to have a value of its own."""
    if not spread.rest or any(bar.count > 1 for bar in spread.bars):
        return spread
    count, some = len(spread.bars) + spread.rest_values, (shortened(bar.text) for bar in spread.bars[:3])
    return Histogram(spread.name, f"{spread.type}: {count:,} different values, such as {', '.join(some)}", ())


def html(card: Card) -> str:
    """One file of HTML, with its pictures in it; it needs no script and no network."""
    drawn = [_summarized(spread).drawn() for spread in card.spreads]
    blocks = (
        ("Open it", element("pre", "\n".join(opening_code(card)), class_="code")),
        ("Samples", card.samples.grid() if card.samples.positions else ""),
        ("", "" if card.unread is None else element("p", card.unread)),
        ("Labels", element("div", drawn, class_="columns") if drawn else ""),
        ("", card.more_columns),
        ("Fields", joined(*schema_tables(card.schema))),
        ("File", pairs(facts(card.document))),
        ("Made by", pairs(card.made) if card.made else ""),
    )
    body = (joined(element("h2", title) if title else "", block) for title, block in blocks if block)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", card.name),
        element("style", Markup(_STYLE)),
    )
    shown = fragment(element("h1", card.name), element("div", description(card)), *body)
    return f"<!doctype html>\n{element('html', head, element('body', shown), lang='en')}\n"


def markdown(card: Card) -> str:
    """Markdown as GitHub and the Hugging Face Hub show it."""
    lines = [f"# {_text(card.name)}", "", description(card), ""]
    lines += ["```python", *opening_code(card), "```", ""]
    lines += ["## Labels", ""] if card.spreads else []
    for spread in card.spreads:
        lines += [f"### {_text(spread.name)}", "", *_bars(_summarized(spread)), ""]
    lines += [card.more_columns, ""] if card.more_columns else []
    lines += ["## Fields", ""]
    for schema in card.schema[:4]:
        lines += [f"{schema['samples']:,} samples:", ""] if len(card.schema) > 1 else []
        lines += [*_table(("field", "kind", "dtype", "shape"), field_rows(schema)[:100]), ""]
    lines += ["## File", "", *_table(("", ""), facts(card.document)), ""]
    lines += ["## Made by", "", *_table(("", ""), card.made), ""] if card.made else []
    return "\n".join(lines)


def _bars(spread: Histogram) -> Iterator[str]:
    """A histogram as a table with bars of characters."""
    yield _text(spread.type)
    greatest = max((bar.count for bar in spread.bars), default=0)
    rows = [
        (shortened(bar.text), f"{bar.count:,}", "█" * round(_WIDEST * bar.count / greatest))
        for bar in spread.bars
    ]
    if spread.rest:
        rows.append((f"{spread.rest_values:,} more values", f"{spread.rest:,}", ""))
    if rows:
        yield from ("", *_table(("value", "samples", ""), rows))


def _table(header: Sequence[str], rows: Iterable[Sequence[str | None]]) -> Iterator[str]:
    """A table of GitHub's Markdown; a row whose last cell is None is left out."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'|'.join('---:' if name == 'samples' else '---' for name in header)}|"
    yield from (f"| {' | '.join(_text(cell or '') for cell in row)} |" for row in rows if row[-1] is not None)


def _text(text: str) -> str:
    """Text on one line, none of which is Markdown, HTML, a link or a mention."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    shown = shown.translate(_ESCAPES).replace("://", ":&#47;/")
    return re.sub(r"(?i)(?<=www)\.", "&#46;", shown)
