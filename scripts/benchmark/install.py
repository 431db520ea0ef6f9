"""The peers' packages, installed into the environment that this runs in, one peer at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmark.peers import System

LIMIT = 600
"""Seconds that one peer's installation may take."""

_CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def install(systems: list[System]) -> dict[str, str]:
    """Install what is missing; of every system that could not be, why, in one line.

    What was installed is noted in the environment and not asked for again; what failed is tried again.
    """
    stamp = Path(sys.prefix) / "bench-installed.json"
    done: list[list[str]] = json.loads(stamp.read_text()) if stamp.exists() else []
    failures: dict[str, str] = {}
    for system in systems:
        for options in _installations(system):
            if options in done:
                continue
            print(f"installing {' '.join(options)}", file=sys.stderr)
            reason = _pip(options)
            if reason is not None:
                hint = f" (its build needs {', '.join(system.debian)})" if system.debian else ""
                failures[system.name] = f"could not be installed: {reason}{hint}"
                break
            done.append(options)
            stamp.write_text(json.dumps(done))
    return failures


def _installations(system: System) -> list[list[str]]:
    options = [list(system.requirements)] if system.requirements else []
    return options + ([["--no-deps", *system.bare]] if system.bare else [])


def _pip(options: list[str]) -> str | None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip = subprocess.Popen(
        [*command, "--constraint", str(_CONSTRAINTS), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, stderr = pip.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(pip.pid, signal.SIGKILL)  # what it builds with, too
        pip.wait()
        return f"pip took more than {LIMIT} s"
    if pip.returncode == 0:
        return None
    errors = [line for line in stderr.splitlines() if line.lower().lstrip().startswith("error")]
    return (errors or ["pip failed"])[-1].strip()
