"""The orchestrator's end of a worker process: one question, one answer, each within its time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Failed(Exception):
    """The system raised, ended or took too long; the text says which, in one line."""


class Unavailable(Exception):
    """The system cannot do this workload; the text says why, in one line."""


class Session:
    """A worker process, started and asked.

    Args:
        log: where what the system prints goes.
    Raises:
        Failed, Unavailable: by `ready` and `ask`; the process is gone then.
    """

    def __init__(self, system: str, workload: str, folder: Path, archive: Path, log: Path) -> None:
        # Locks and sockets that a system leaves go with the dataset; and what it moves from there into its
        # folder stays on one file system.
        temporary = archive.parent / "tmp"
        temporary.mkdir(exist_ok=True)
        with log.open("ab") as errors:
            # A process group of its own, so that its loader's workers end with it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmark.worker", system, workload, str(folder), str(archive)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(temporary)},
            )
        self._pending = b""

    def ready(self, limit: float) -> str | None:
        """Wait until the system is imported; its version."""
        return self._answer("its import", limit)["version"]

    def ask(self, limit: float, do: str, **arguments: Any) -> dict[str, Any] | None:
        """Have something done; None where the system has no such thing.

        Args:
            limit: seconds after which the process is ended.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer, which does not come, says so
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._answer(do, limit)
        return None if answer.get("absent") else answer

    def _answer(self, what: str, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        until = time.monotonic() + limit
        while b"\n" not in self._pending:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self.kill()
                raise Failed(f"{what} took more than {limit:.0f} s")
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                self.kill()
                raise Failed(f"{what}: its process ended with status {self._process.returncode}")
            self._pending += read
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        for kind, error in (("error", Failed), ("unavailable", Unavailable)):
            if kind in answer:
                self.kill()
                raise error(f"{what}: {answer[kind]}" if kind == "error" else answer[kind])
        return answer

    def close(self) -> None:
        """Let the process end by itself, soon."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(10)
        self.kill()

    def kill(self) -> None:
        """End the process and its own; idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
