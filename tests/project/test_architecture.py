"""docs/architecture.md names what is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w.]+/[\w./]*)`", TEXT))))
def test_what_it_names_is_there(path):
    assert (ROOT / path).exists() or (ROOT / "edcache" / path).exists()


def test_a_picture_names_files_that_are_there():
    pictures = re.findall(r"^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(pictures) == 2
    named = {*re.findall(r"\b[a-z_]+/[a-z_/]+\.py\b", "".join(pictures))}
    assert len(named) > 4
    assert [path for path in named if not (ROOT / "edcache" / path).exists()] == []


@pytest.mark.parametrize(
    ("path", "name"), sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", TEXT))), ids=lambda x: x
)
def test_a_file_defines_what_is_said_to_be_in_it(path, name):
    node = ast.parse((ROOT / "edcache" / path).read_text(encoding="utf-8"))
    for part in name.split("."):
        named = {getattr(each, "name", None): each for each in node.body}
        targets = [t for each in node.body for t in getattr(each, "targets", [getattr(each, "target", None)])]
        assert part in named or part in {getattr(target, "id", None) for target in targets}
        node = named.get(part)
