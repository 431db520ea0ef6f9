"""Hunt for inputs that make a target raise what it must not, hang or crash.

    scripts/fuzz [TARGET...] [--seconds N | --runs N] [--jobs N]

What libFuzzer found worth keeping goes to .fuzz/, outside of git. An input that breaks a target is made
smaller and goes to tests/fuzz/corpus/, with a note, where the suite tries it from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TARGETS = ("where", "codec", "open")
TIMEOUT = 20
_RSS_MB = 2500
_MOST_FINDINGS = 5
_TRIALS = 300


@dataclass
class Found:
    """What runs of one target amounted to."""

    target: str
    executions: int = 0
    seconds: float = 0.0
    coverage: int = 0
    kept: int = 0
    findings: list[Path] = field(default_factory=list)
    log: str = ""


def target_of(name: str) -> Any:
    for folder in (HERE, HERE.parent / "kit"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return importlib.import_module(f"target_{name}")


def write_seeds(name: str, folder: Path) -> Path:
    """A folder of what the target itself proposes."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in target_of(name).seeds():
        (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
    return folder


def hunt(jobs: dict[str, list[str]], folder: Path, *, parallel: int = 1) -> list[Found]:
    """Run targets in one process and its forks; `jobs` has libFuzzer's arguments for each.

    The folder gets logs, inputs worth keeping and findings.
    """
    specs = []
    for name, arguments in jobs.items():
        work = folder / name
        work.mkdir(parents=True, exist_ok=True)
        seeds = write_seeds(name, folder / "seeds" / name)
        (folder / "findings" / name).mkdir(parents=True, exist_ok=True)
        general = [
            f"-artifact_prefix={folder / 'findings' / name}/",
            f"-timeout={TIMEOUT}",
            f"-rss_limit_mb={_RSS_MB}",
            "-detect_leaks=0",
            "-print_final_stats=1",
        ]
        log = str(folder / f"{name}.log")
        specs.append({"target": name, "arguments": [*general, *arguments, str(work), str(seeds)], "log": log})
    file = folder / "jobs.json"
    file.write_text(json.dumps(specs))
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, str(HERE / "fuzz_run.py"), str(file), str(parallel)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return [_found(name, folder, done.stderr) for name in jobs]


def _found(name: str, folder: Path, stderr: str) -> Found:
    log = folder / f"{name}.log"
    text = log.read_text(errors="replace") if log.exists() else stderr
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", text))
    coverage = [int(number) for number in re.findall(r" cov: (\d+)", text)]
    findings = sorted((folder / "findings" / name).iterdir())
    executions = int(stats.get("number_of_executed_units", 0))
    rate = int(stats.get("average_exec_per_sec", 0))
    kept = int(stats.get("new_units_added", 0))
    seconds = executions / rate if rate else 0.0
    return Found(name, executions, seconds, max(coverage, default=0), kept, findings, text)


# --- findings ---


def symptom(name: str, data: bytes) -> str | None:
    """What an input does to a target, in a fork: an exception, a signal, "hangs"; None if nothing."""
    target = target_of(name)
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        os.write(sender, _outcome(target, data).encode()[:4000])
        os._exit(0)
    os.close(sender)
    ready, _, _ = select.select([receiver], [], [], TIMEOUT)
    answer = os.read(receiver, 4096).decode() if ready else "hangs"
    os.close(receiver)
    if not ready:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return answer or f"ends with {code}" if answer != "sound" else None


def _outcome(target: Any, data: bytes) -> str:
    try:
        target.run(data)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/edcache/" in frame.filename] or frames
        return (
            f"{type(error).__name__} in {Path(ours[-1].filename).name}, {ours[-1].name}(): {str(error)[:200]}"
        )
    return "sound"


def minimised(name: str, data: bytes) -> tuple[bytes, str | None]:
    """A shorter input with the same symptom."""
    known = symptom(name, data)
    if known is None:
        return data, None
    kind, trials, step = known.partition(":")[0], 0, max(1, len(data) // 2)
    while step and trials < _TRIALS:
        at = 0
        while at < len(data) and trials < _TRIALS:
            shorter = data[:at] + data[at + step :]
            trials += 1
            found = symptom(name, shorter)
            if found is not None and found.partition(":")[0] == kind:
                data = shorter
            else:
                at += step
        step //= 2
    return data, symptom(name, data)


def keep(name: str, artifact: Path) -> str:
    """Put a finding into the corpus of the suite; says what it is."""
    data, what = minimised(name, artifact.read_bytes())
    what = what or "not seen again without libFuzzer"
    folder = HERE / "corpus" / name
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"finding-{hashlib.sha256(data).hexdigest()[:8]}"
    place.write_bytes(data)
    place.with_suffix(".note").write_text(f"{what}\n")
    artifact.unlink()
    return f"{place.relative_to(ROOT)}: {what}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, help="for each target; 60 by default")
    parser.add_argument("--runs", type=int, help="of each target, instead")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--seed", type=int, default=0, help="0 takes one from the clock")
    asked = parser.parse_args()
    unknown = set(asked.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    chosen = asked.targets or list(TARGETS)
    seconds = asked.seconds or 60
    amount = f"-runs={asked.runs}" if asked.runs else f"-max_total_time={seconds}"
    folder = ROOT / ".fuzz"
    began = time.monotonic()
    results = hunt({name: [amount, f"-seed={asked.seed}"] for name in chosen}, folder, parallel=asked.jobs)
    print(f"{'target':<10}{'executions':>12}{'exec/s':>9}{'coverage':>10}{'new inputs':>12}{'findings':>10}")
    texts = []
    for found in results:
        rate = found.executions / found.seconds if found.seconds else 0
        row = f"{found.executions:>12,}{rate:>9,.0f}{found.coverage:>10,}{found.kept:>12,}"
        print(f"{found.target:<10}{row}{len(found.findings):>10}")
        texts += [keep(found.target, artifact) for artifact in found.findings[:_MOST_FINDINGS]]
    print(f"{time.monotonic() - began:.0f} s", *texts, sep="\n")
    return bool(texts)


if __name__ == "__main__":
    sys.exit(main())
