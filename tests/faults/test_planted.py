"""The suite finds defects that are put in on purpose: that each still fits the code, and a few for real."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from planted import BUGS, Bug
from planted_run import ROOT, chosen, located, look_for_all, planted, sampled
from scale import scaled

PACKAGE = ROOT / "edcache"
SAMPLE = scaled(5, 2)
BELOW_SECONDS = 15


@cache
def names_in(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_fits_the_present_code_and_its_tests_are_there(bug: Bug) -> None:
    planted(bug, PACKAGE)
    for test in bug.tests:
        file, _, name = located(test).partition("::")
        assert not name or name.partition("[")[0] in names_in(ROOT / file)


def test_there_are_many_planted_bugs_and_each_has_a_name() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 24


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("no such line", "", "stands 0 times"),
        ("return", "", "stands [0-9]+ times"),
        ("def align(", "def align((", "does not parse"),
        ("def align(", "def align( ", "changes nothing"),
    ],
)
def test_a_bug_that_does_not_fit_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"some bug: .*{said}"):
        planted(Bug("some bug", "format/spec.py", old, new, ()), PACKAGE)


@pytest.mark.full
def test_a_bug_that_nobody_looks_for_is_told_from_one_that_is_found() -> None:
    """The runner itself: a change without an effect survives, and a test that fails without it counts not."""
    (bug,) = chosen(["link unchecked"], None)
    harmless = bug._replace(name="harmless", old="A batch of records of one layout", new="A batch of records")
    (found,) = look_for_all([harmless])
    assert found.by is None


@pytest.mark.full
def test_a_sample_of_planted_bugs_is_caught(tally: Any) -> None:
    found = list(look_for_all(sampled(SAMPLE, BELOW_SECONDS)))
    assert [one.bug.name for one in found if one.by is None] == []
    tally("planted bugs caught", len(found))
