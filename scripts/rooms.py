"""Print the picture of docs/architecture.md: the rooms of edcache/ on their floors, as an SVG.

Floors and what each room is for are read from the docstring of edcache/__init__.py, arrows from the imports.
An arrow is drawn where no way of other arrows leads to the same room; a box names all that its room imports.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from xml.sax.saxutils import escape

PACKAGE = Path(__file__).parents[1] / "edcache"
WIDTH, HEIGHT, GAP, RISE, MARGIN = 290, 92, 24, 44, 20
LINE = 42  # characters


def rooms() -> dict[str, tuple[int, str]]:
    """Of each room its floor and what it is for."""
    doc = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))) or ""
    return {
        room: (int(floor), text)
        for floor, room, text in re.findall(r"^ +(\d)  (\w+) +(.+)$", doc, re.MULTILINE)
    }


def imports(room: str, names: dict[str, tuple[int, str]]) -> set[str]:
    """The other rooms that the files of a room import, in functions too."""
    found = set()
    for file in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "edcache":
                inside = (node.module or "").split(".")[1:2] or [alias.name for alias in node.names]
                found |= set(inside) & names.keys()
    return found - {room}


def wrapped(text: str) -> list[str]:
    """A text in lines that fit a box."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= LINE:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def picture() -> str:
    """The SVG."""
    names = rooms()
    edges = {room: imports(room, names) for room in names}
    reach: dict[str, set[str]] = {}
    for room in sorted(names, key=lambda room: names[room][0]):
        reach[room] = edges[room].union(*(reach[below] for below in edges[room]))
    floors: dict[int, list[str]] = {}
    for room, (floor, _) in names.items():
        floors.setdefault(floor, []).append(room)
    width = MARGIN * 2 + 3 * WIDTH + 2 * GAP
    height = MARGIN * 2 + len(floors) * (HEIGHT + RISE) - RISE
    corner = {}
    for floor, row in floors.items():
        left = (width - len(row) * WIDTH - (len(row) - 1) * GAP) / 2
        top = height - MARGIN - HEIGHT - floor * (HEIGHT + RISE)
        corner |= {room: (left + k * (WIDTH + GAP), top) for k, room in enumerate(row)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for room, (x, y) in corner.items():
        for below in sorted(edges[room] - set().union(*(reach[other] for other in edges[room]))):
            to_x, to_y = corner[below]
            parts.append(
                f'<line x1="{x + WIDTH / 2:g}" y1="{y + HEIGHT:g}" x2="{to_x + WIDTH / 2:g}" y2="{to_y:g}" '
                'stroke="#555" marker-end="url(#head)"/>'
            )
    for room, (x, y) in corner.items():
        uses = ", ".join(sorted(edges[room], key=lambda r: (-names[r][0], r)))
        parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
            'fill="#f2f6fa" stroke="#4a6f93"/>'
            f'<text x="{x + 12:g}" y="{y + 22:g}" font-size="16" font-weight="bold">{room}/</text>'
        )
        rows = [(line, "#222") for line in wrapped(names[room][1])]
        rows += [(line, "#777") for line in wrapped(f"uses {uses}" if uses else "")]
        for k, (line, colour) in enumerate(rows):
            parts.append(
                f'<text x="{x + 12:g}" y="{y + 39 + 14 * k:g}" font-size="12" fill="{colour}">'
                f"{escape(line)}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    print(picture(), end="")
