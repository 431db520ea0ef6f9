"""Runs targets under libFuzzer: one process that imports everything once, and a fork of it for each job.

    python fuzz_run.py JOBS.json [PARALLEL]

with [{"target": "open", "arguments": ["-runs=100", "corpus/"], "log": "path"}, ...] in the file.
A job's log is what libFuzzer says; the exit code is the number of jobs that ended with a finding.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import atheris

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kit")]


def main() -> int:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    parallel = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with atheris.instrument_imports(include=["edcache"], enable_loader_override=False):
        targets = {job["target"]: importlib.import_module(f"target_{job['target']}") for job in jobs}
    for target in targets.values():
        target.run(b"")
    running: dict[int, str] = {}
    findings = 0
    for job in jobs:
        if len(running) >= parallel:
            findings += _wait(running)
        child = os.fork()
        if child == 0:
            _fuzz(targets[job["target"]], job)
        running[child] = job["target"]
    while running:
        findings += _wait(running)
    return findings


def _wait(running: dict[int, str]) -> bool:
    child, status = os.wait()
    running.pop(child)
    return status != 0


def _fuzz(target: Any, job: dict[str, Any]) -> None:
    fd = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = sys.stderr = os.fdopen(fd, "w", buffering=1)
    # libFuzzer looks at these only where it starts itself again, which it is never asked to.
    atheris.Setup(["fuzz_run", *job["arguments"]], target.run)
    atheris.Fuzz()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
