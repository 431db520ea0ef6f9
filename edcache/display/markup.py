"""HTML as text, with all data escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from edcache.base import are_numbers, printable

_VOID = frozenset({"img", "meta", "br"})


class Markup(str):
    """Text that is HTML already; any other `str` is data, and is escaped when it becomes a part of HTML."""

    __slots__ = ()


MarkupPart: TypeAlias = "str | Iterable[MarkupPart]"


def element(tag: str, *children: MarkupPart, **attributes: object) -> Markup:
    """Write an element with its children; `class_` is the attribute class, and None leaves an attribute out.

    >>> element("b", "1 < 2", title="ordered")
    '<b title="ordered">1 &lt; 2</b>'
    """
    given = ((name.rstrip("_"), value) for name, value in attributes.items() if value is not None)
    stated = "".join(f' {name}="{_escape(str(value))}"' for name, value in given)
    end = "" if tag in _VOID else f"{_escape(children)}</{tag}>"
    return Markup(f"<{tag}{stated}>{end}")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Write a table; columns of numbers stand to the right."""
    listed = list(rows)
    columns = list(zip(*listed, strict=True)) or [()] * len(header)
    sides = ["n" if are_numbers(column) else None for column in columns]

    def line(tag: str, cells: Sequence[str]) -> Markup:
        return element(
            "tr", (element(tag, cell, class_=side) for cell, side in zip(cells, sides, strict=True))
        )

    return element("table", line("th", header), (line("td", row) for row in listed))


def fragment(*parts: MarkupPart) -> Markup:
    """Put parts in a box with a style of its own, for light and dark notebooks."""
    return element("div", element("style", Markup(STYLE)), *parts, class_="edcache")


def _escape(part: MarkupPart) -> str:
    if isinstance(part, Markup):
        return part
    if not isinstance(part, str):
        return "".join(map(_escape, part))
    return html.escape("\n".join(map(printable, part.split("\n"))), quote=True)


STYLE = """
.edcache{font:13px/1.45 system-ui,sans-serif;color:inherit}
.edcache h4{font-size:14px;margin:0 0 6px;font-weight:600;overflow-wrap:anywhere}
.edcache .dim{opacity:.65}
.edcache table{border-collapse:collapse;margin:6px 0;font-size:12px;color:inherit;background:none}
.edcache th,.edcache td{text-align:left;padding:2px 12px 2px 0;vertical-align:top;border:0;background:none;
max-width:28em;overflow-wrap:anywhere;font-weight:400}
.edcache th{opacity:.65}
.edcache .n{text-align:right;font-variant-numeric:tabular-nums}
.edcache .columns{display:flex;flex-wrap:wrap;gap:8px 28px;align-items:flex-start}
.edcache .columns table{margin:0}
.edcache .bars td:first-child{max-width:12em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.edcache .bars i{display:block;height:10px;margin-top:4px;background:#4c8bd6;border-radius:2px;min-width:1px}
.edcache .grid{display:flex;flex-wrap:wrap;gap:8px;margin:6px 0}
.edcache figure{margin:0;min-width:96px}
.edcache figure>div{display:flex;gap:2px}
.edcache figure img{width:96px;height:96px;object-fit:contain;background:#8882;border-radius:3px;
display:block;image-rendering:pixelated;margin:0}
.edcache figure pre{width:96px;height:96px;margin:0;padding:4px;box-sizing:border-box;background:#8882;
border-radius:3px;font-size:9px;line-height:1.25;white-space:pre-wrap;overflow:hidden;overflow-wrap:anywhere;
color:inherit}
.edcache figcaption{font-size:11px;width:0;min-width:100%;opacity:.65;
overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
"""
