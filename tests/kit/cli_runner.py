"""Commands in this process, with what they print and the exit status."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

from edcache.cli import main

try:
    RUNNER = CliRunner(mix_stderr=False)
except TypeError:  # click 8.2 and newer always keep the two apart
    RUNNER = CliRunner()


def run(line: str, *more: object, code: int = 0) -> Any:
    """Run a command line, and arguments behind it; returns what it printed, once it exits with `code`."""
    result = RUNNER.invoke(main, [*shlex.split(line), *map(str, more)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def report(line: str, *more: object, code: int = 0) -> Any:
    """What a command prints with --json."""
    return json.loads(run(line, *more, "--json", code=code).stdout, parse_constant=pytest.fail)


def error_of(line: str, *more: object) -> str:
    """The one line that a failing command leaves on stderr."""
    result = run(line, *more, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("edcache: ")
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    return str(result.stderr[len("edcache: ") : -1])
