"""Docstrings, comments and help texts begin with a verb or the noun, and name the thing: docs/architecture.md."""

import ast
import io
import re
import tokenize
from pathlib import Path

import click
import pytest

import edcache
from edcache.cli import main

PACKAGE = Path(edcache.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# A docstring, or a help text, begins with none of these: a search does not find them, and they say nothing.
WEAK = re.compile(r"(What|Whether|The|A|An|It|Its|This|These|That|Those|Who|Whoever|Where|How)\b(?!-)")
# Phrases that make one look for a noun.
VAGUE = re.compile(
    r"\b(those that|that which|what is|what was|what are|that of|those of|of which|of whom|so many|so much"
    r"|whoever|whatever|wherever|is asked|are asked|anybody|nobody)\b",
    re.IGNORECASE,
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# (docstrings that begin weakly, vague phrases) of rooms that have some. The numbers only become smaller.
LEFT = {"backends": (45, 21), "storage": (26, 19), "tools": (0, 5)}


def beginnings(tree):
    """Yield line and text of docstrings with a weak beginning."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            text = ast.get_docstring(node)
            if text and WEAK.match(text):
                yield node.body[0].lineno, f'begins with "{text.split()[0]}"; begin with a verb or the noun'


def prose(source):
    """Yield line and text of each docstring and comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
        elif token.type == tokenize.STRING and token.string.startswith('"""'):
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, line


def phrases(source):
    """Yield line and text of vague phrases in docstrings and comments; a phrase may go on in the next line."""
    lines = list(prose(source))
    for (number, line), (_, behind) in zip(lines, [*lines[1:], (0, "")], strict=True):
        text = f"{line.strip()} {behind.strip(' #')}"
        for found in VAGUE.finditer(text):
            if found.start() < len(line.strip()):
                yield number, f'has "{found[0]}"; name the thing'


def room_of(file):
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "."


def found_in(room):
    """List (where, which rule) of each weak beginning, and of each vague phrase, of a room."""
    weak, vague = [], []
    for file in FILES:
        if room_of(file) == room:
            source = file.read_text(encoding="utf-8")
            place = file.relative_to(PACKAGE.parent)
            weak += [f"{place}:{line} {rule}" for line, rule in beginnings(ast.parse(source))]
            vague += [f"{place}:{line} {rule}" for line, rule in phrases(source)]
    return weak, vague


@pytest.mark.parametrize("room", sorted({room_of(file) for file in FILES}))
def test_words_of_a_room(room):
    for found, most in zip(found_in(room), LEFT.get(room, (0, 0)), strict=True):
        assert len(found) <= most, f"{len(found)} places, at most {most}:\n" + "\n".join(found)


def test_help_of_commands():
    texts = {name: command.help for name, command in main.commands.items()}
    for name, command in main.commands.items():
        options = (one for one in command.params if isinstance(one, click.Option))
        texts |= {f"{name} {one.opts[0]}": one.help for one in options}
    for name, text in texts.items():
        assert text, f"edcache {name} has no help"
        found = WEAK.match(text) or VAGUE.search(text)
        assert found is None, f'edcache {name}: "{text}" has "{found[0]}"; begin with a verb or the noun'


def test_the_rules_find_what_they_forbid():
    source = '''
class Row:
    """What a row is: {0}"""
    x = 1  # of the rows, of which
    # one is read

def rows():
    """Where-string: fine."""
'''
    weak = list(beginnings(ast.parse(source)))
    assert [line for line, _ in weak] == [3]
    assert 'begins with "What"' in weak[0][1]
    assert [line for line, _ in phrases(source)] == [4]
    split = "# one of those\n# that are there\n"
    assert list(phrases(split)) == [(1, 'has "those that"; name the thing')]
    texts = ("The rows", "Theory of rows", "A row", "Argsort", "It is", "Items")
    assert [bool(WEAK.match(text)) for text in texts] == [True, False] * 3
