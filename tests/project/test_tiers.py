"""The quick tier leaves out what is `full` and says so; `--full` leaves out nothing."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from test_scripts import EXTRAS

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


WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {optional} else super().find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""


COLLECT = "--collect-only -qq -p without -p no:cacheprovider --full"


@pytest.mark.full
def test_no_optional_library_is_imported_while_tests_are_collected(tmp_path):
    lines = {*EXTRAS["full"]} - {*EXTRAS["test"], *EXTRAS["release"]}
    distributions = {re.match(r"[\w.-]+", line)[0].lower() for line in lines}
    optional = {
        module
        for module, names in packages_distributions().items()
        if distributions.intersection(name.lower() for name in names)
    }
    assert {"PIL", "pandas", "aiohttp", "sklearn"} <= optional
    (tmp_path / "without.py").write_text(WITHOUT.format(optional=optional))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "EDCACHE_TEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *COLLECT.split()],
        cwd=SUITE.parent,
        env=kept | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_the_full_tier_leaves_nothing_out(run):
    said = run("--full")
    assert "15 passed" in said
    assert "scale 1.0 1000" in said
    assert "left out" not in said
