"""Type checkers know options, parameters of a call and types of samples: tests/project/typed_example.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLE = str(HERE / "typed_example.py")


def run(*command):
    return subprocess.run(
        [sys.executable, "-m", *command, EXAMPLE], cwd=HERE.parents[1], capture_output=True, text=True
    )


@pytest.mark.full
def test_mypy_finds_what_the_example_says():
    """A comment that ignores an error is an error where there is none."""
    options = ("--strict", "--config-file=", "--python-version=3.10", "--follow-imports=silent")
    done = run("mypy", *options, "--ignore-missing-imports")
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_pyright_finds_what_the_example_says(tmp_path):
    config = tmp_path / "pyrightconfig.json"
    rules = {"typeCheckingMode": "standard", "reportUnnecessaryTypeIgnoreComment": True}
    # An editable installation is a hook of Python's import, which only running code follows.
    rules |= {"enableTypeIgnoreComments": False, "extraPaths": [str(HERE.parents[1])]}
    config.write_text(json.dumps(rules))
    done = run("basedpyright", "--project", str(config), "--pythonpath", sys.executable, "--level", "error")
    assert done.returncode == 0, done.stdout
