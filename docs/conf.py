"""How Sphinx builds the documentation: Furo, MyST, and what the code says of itself. Nothing is fetched."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/edcache/edcache"
sys.path.insert(0, str(ROOT))

import edcache  # noqa: E402

project = "edcache"
author = "the edcache authors"
copyright = author
release = edcache.__version__
html_title = f"edcache {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = False  # the pages of api/ have the calls; api.md names them, with a first line each
napoleon_google_docstring = True
napoleon_numpy_docstring = False

pygments_dark_style = "github-dark"

html_theme = "furo"
html_extra_path = ["llms.txt", "skills"]
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
html_show_copyright = False
html_copy_source = False
highlight_language = "text"
smartquotes = False  # quotes and dashes are code more often than not


def with_links_to_the_repository(_: Sphinx, page: str, source: list[str]) -> None:
    """A link to a file outside of docs/ leads to the repository. Pictures are copied."""
    up = "../" * (page.count("/") + 1)
    source[0] = re.sub(
        rf"(?<!!)(\[[^\]]*\])\({re.escape(up)}(?!\.)", rf"\1({REPOSITORY}/blob/main/", source[0]
    )


def with_the_results(_: Sphinx, page: str, source: list[str]) -> None:
    """The measured results are scripts/benchmark/results.md, without its title and picture."""
    if page == "reference/benchmarks":
        text = (ROOT / "scripts/benchmark/results.md").read_text(encoding="utf-8")
        source[0] = source[0].replace("<!-- results -->", text[text.index("\n## ") :])


def with_the_specification(_: Sphinx, page: str, source: list[str]) -> None:
    """The specification of the format is what FORMAT.md has, from its picture on."""
    if page == "reference/format":
        text = (ROOT / "FORMAT.md").read_text(encoding="utf-8")
        source[0] = source[0].replace("<!-- specification -->", text[text.index("\n```text") :])


OPTIONS = {  # the text of each, as lines; several calls take an option, and their docstrings have its text
    entry.lstrip().partition(":")[0]: entry.splitlines()
    for kind in edcache.CacheOptions.__mro__
    for entry in re.split(
        r"\n(?=    \w)", inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")[2].rstrip()
    )
    if entry
}


def with_each_option_once(*arguments: Any) -> None:
    """Tell what an option does with CacheOptions alone, and of other calls only which options they take."""
    *_, name, _, _, lines = arguments
    if name == "edcache.CacheOptions":
        others = [line for option in OPTIONS.values() if option[0] not in lines for line in option]
        lines[:] = "\n".join(lines).rstrip().splitlines() + others
        return
    taken, kept, at, mark = [], [], 0, 0
    while at < len(lines):
        option = lines[at].lstrip().partition(":")[0]
        if option in OPTIONS and lines[at : at + len(OPTIONS[option])] == OPTIONS[option]:
            mark = mark or len(kept)
            taken.append(f"`{option}`")
            at += len(OPTIONS[option])
        else:
            kept.append(lines[at])
            at += 1
    if taken:
        kept.insert(mark, f"        They are {', '.join(taken)}.")
        lines[:] = kept


_SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Warns")
_LITERAL = re.compile(r"(`+)(.+?)\1")
_COLON = "\N{RATIO}"  # a colon of a Returns section, until napoleon is done: it takes what is before one for a type
_MARKUP = re.compile(r"[*|`\\]|(?<=\w)_(?!\w)")


def as_restructured_text(*arguments: Any) -> None:
    """Make a docstring, which is plain text, what napoleon reads: the last argument of the event, its lines.

    A section begins with an empty line. "Cost: ..." and its like are paragraphs. What is between backticks is
    literal, and no other character means anything.
    """
    lines, made = arguments[-1], []
    in_paragraph = in_returns = False
    for line in lines:
        text, indent = line.lstrip(), len(line) - len(line.lstrip())
        head = re.match(r"([A-Z][a-z]+)(?:, [a-z ]+)?:(?: |$)(.*)", text)
        if head and not indent and text.endswith(":") and head[1] in _SECTIONS:
            in_paragraph, in_returns = False, head[1] == "Returns"
            made += ["", f"{head[1]}:"]
        elif head and not indent and head[2]:
            in_paragraph = True
            made += ["", f"**{head[1]}:** {_escaped(head[2])}"]
        elif in_paragraph and indent:
            made.append(_escaped(text))
        else:
            in_paragraph = False
            in_returns = in_returns and indent > 0
            text = text.replace(":", _COLON) if in_returns else text
            made.append(line if text.startswith((">>>", "...")) else line[:indent] + _escaped(text))
    lines[:] = made


def as_napoleon_left_it(*arguments: Any) -> None:
    """Give back colons, and lead from "these options" to their text."""
    lines = arguments[-1]
    link = "these :doc:`options </reference/api/options>`"
    lines[:] = [line.replace(_COLON, ":").replace("these options", link) for line in lines]


def _escaped(text: str) -> str:
    parts, end = [], 0
    for literal in _LITERAL.finditer(text):
        parts += [_MARKUP.sub(r"\\\g<0>", text[end : literal.start()]), rf"\ ``{literal[2]}``\ "]
        end = literal.end()
    return "".join([*parts, _MARKUP.sub(r"\\\g<0>", text[end:])])


def as_help(_: Sphinx, __: Any, lines: list[str]) -> None:
    """Make the help of a command what Sphinx reads: what is laid out by hand there stays as it is."""
    made: list[str] = []
    for line, above in zip(lines, ["", *lines], strict=False):
        if line.startswith("| ") and not above.startswith("| "):
            made += [f"{_escaped(line[2:])}:", ""]  # "Example::"
        else:
            made.append(f"   {line[2:]}" if line.startswith("| ") else _escaped(line))
    lines[:] = made


def as_help_of_options(_: Sphinx, __: Any, lines: list[str]) -> None:
    """The same of the lines below each option."""
    own = (".. ", "   :")
    lines[:] = [line if line.startswith(own) else re.sub(r"(?<!\*)\*(?!\*)", r"\\*", line) for line in lines]
    # Of "[NAME=]FIELD" the first bracket was taken for one of sphinx-click's own.
    lines[:] = [re.sub(r"(?<=<)(\w+=\])", r"[\1", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", with_links_to_the_repository)
    app.connect("source-read", with_the_specification)
    app.connect("source-read", with_the_results)
    app.connect("autodoc-process-docstring", with_each_option_once, priority=50)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", as_napoleon_left_it, priority=600)
    app.connect("sphinx-click-process-description", as_help)
    app.connect("sphinx-click-process-options", as_help_of_options)
