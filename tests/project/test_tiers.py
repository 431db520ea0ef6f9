"""The quick tier leaves out what is `full` and says so; `--full` leaves out nothing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[1]
TESTS = """
import pytest
from scale import SCALE, scaled, thinned


def test_quick():
    print("scale", SCALE, scaled(1000))


@pytest.mark.full
def test_full():
    pass


@pytest.mark.parametrize("case", thinned(range(10), 3))
def test_cases(case):
    print("case", case)


@pytest.mark.parametrize("number", [7])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_methods(method, number):
    pass
"""


@pytest.fixture
def run(tmp_path):
    """run("--full"): what pytest says of those three tests."""
    for name in ("conftest.py", "kit/scale.py"):
        shutil.copy(SUITE / name, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    full\n    spread\n")
    (tmp_path / "test_some.py").write_text(TESTS)

    def run(*arguments):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "EDCACHE_TEST_"))}
        command = [sys.executable, "-m", "pytest", "-rP", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.full
@pytest.mark.parametrize("jobs", [[], ["-n", "2", "--dist", "loadgroup"]], ids=["one", "two"])
def test_what_is_left_out_is_said(run, jobs):
    said = run(*jobs)
    assert "5 passed" in said
    assert sorted(re.findall(r"^case (\d)$", said, re.MULTILINE)) == ["0", "3", "6"]
    assert "scale 0.02 20" in said
    assert "left out; scripts/test --full has all" in said
    assert "10 tests of some\n" in said


def test_the_full_tier_leaves_nothing_out(run):
    said = run("--full")
    assert "15 passed" in said
    assert "scale 1.0 1000" in said
    assert "left out" not in said
