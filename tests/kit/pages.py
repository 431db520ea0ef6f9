"""The pages of the documentation, and the program that each of them is.

A page runs from top to bottom, in a folder of its own:

- ```python blocks are one script. A block whose first line is `# NAME.py` is written to that file instead.
- ```sh blocks are commands of bash, run where they stand between the Python.
- A comment of HTML that begins with `<!-- preamble` or `<!-- check` has Python that runs there and is not
  shown: what the page needs, or what holds at that place.
- A ```text block under `<!-- printed -->` is output: the page prints each of its lines, but for numbers.
- The code that begins the second cell of a row is run, in a table with the header `| old line | new line |`.
- Any other language is shown and not run: ```text for output, ```py for old code, or what cannot run here.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "_build" not in file.parts
}
PIECE = re.compile(
    r"^(?P<fence>```+)(?P<language>\w*)[^\n`]*\n(?P<code>.*?)^(?P=fence)$"
    r"|^<!-- (?:preamble|check)\n(?P<hidden>.*?)^-->$"
    r"|^\| old line \| new line \|\n(?P<rows>(?:\|[^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)
NEW_LINE = re.compile(r"^\|.* \| `([^`]+)`.*\|$", re.MULTILINE)
PRINTED = re.compile(r"^<!-- printed -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = """
import subprocess as _subprocess, sys as _sys
_sys.stdout.flush()
_subprocess.run(["bash", "-euo", "pipefail", "-c", {!r}], check=True)
"""
FILE = """
with open({!r}, "w") as _file:
    _file.write({!r})
"""


def program(text: str) -> str:
    """What a page runs, as one script of Python; empty if it runs nothing."""
    parts = []
    for piece in PIECE.finditer(text):
        language, code = piece["language"], piece["code"]
        if piece["hidden"]:
            parts.append(piece["hidden"])
        elif piece["rows"]:
            parts.extend(f"{line}\n" for line in NEW_LINE.findall(piece["rows"]))
        elif language == "sh":
            parts.append(SHELL.format(code))
        elif language == "python":
            name = re.match(r"# ([\w-]+\.py)\n", code)
            parts.append(FILE.format(name[1], code) if name else code)
    return "".join(parts)


def printed(text: str) -> list[str]:
    """The lines that a page says it prints, as `comparable` has them."""
    lines = "".join(PRINTED.findall(text)).splitlines()
    return [comparable(line) for line in lines if not line.startswith("$ ")]


def comparable(line: str) -> str:
    """A line without what differs from run to run: numbers, the folder, and how wide a column is."""
    line = re.sub(r"(?<=')/[^' ]*/(?=cache/)|(?<!\S)/[^' ]*/page/", "", line)
    return " ".join(re.sub(r"0x[0-9A-F]+|\d[\d,.:]*", "#", line).split())
