"""Put known defects into copies of the package, one at a time, and see that the suite finds each."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "kit"))

from planted import BUGS, Bug
from scale import seeded

ROOT = Path(__file__).parents[2]
JOBS = 2
_PYTEST = ("-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly")
_MOST_SECONDS = 300
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", re.MULTILINE)


class Found(NamedTuple):
    """How a bug fared. by: the first test that failed, None where all passed; seconds: of its tests."""

    bug: Bug
    by: str | None
    seconds: float


def planted(bug: Bug, package: Path) -> str:
    """The text of the bug's file with the bug in it.

    Raises:
        ValueError: the text that it replaces is not there exactly once, or the result is no Python.
    """
    text = (package / bug.file).read_text(encoding="utf-8")
    count = text.count(bug.old)
    if count != 1:
        raise ValueError(f"{bug.name}: its text stands {count} times in edcache/{bug.file}: {bug.old!r}")
    changed = text.replace(bug.old, bug.new)
    try:
        if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text)):
            raise ValueError(f"{bug.name}: it changes nothing in edcache/{bug.file}")
    except SyntaxError as error:
        raise ValueError(f"{bug.name}: edcache/{bug.file} does not parse with it: {error}") from error
    return changed


@contextmanager
def sound_copy() -> Iterator[Path]:
    """The working tree, as git would add it, in a folder of its own."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode()
    with tempfile.TemporaryDirectory(prefix="edcache-planted-") as folder:
        copy = Path(folder, "sound")
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                target = copy / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        yield copy


def located(test: str) -> str:
    """Where a test is, by the name of its file, whatever folder it is in: test_flips.py::test_..."""
    file, *rest = test.split("::")
    (found,) = (ROOT / "tests").rglob(Path(file).name)
    return "::".join([str(found.relative_to(ROOT)), *rest])


def run_tests(copy: Path, tests: Sequence[str], keyword: str, scale: float) -> tuple[int, str]:
    """pytest's exit status and what it said, in a copy and with the package of that copy."""
    environment = os.environ | {
        "PYTHONPATH": str(copy),
        "OMP_NUM_THREADS": "1",
        "EDCACHE_TEST_SCALE": str(scale),
        # That a test finds a bug is known of this seed.
        "EDCACHE_TEST_SEED": "0",
    }
    environment.pop("EDCACHE_TEST_COUNTS", None)
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    base = ["--basetemp", str(copy.parent / f"{copy.name}-tmp")]
    ran = subprocess.run(
        [sys.executable, *_PYTEST, "--full", *base, "-k", keyword, *map(located, tests)],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_MOST_SECONDS,
        check=False,
    )
    return ran.returncode, ran.stdout.decode(errors="replace")


def check_sound(copy: Path, bugs: Iterable[Bug]) -> None:
    """Raise AssertionError unless the tests pass without any bug: else that they fail tells nothing."""
    together: dict[tuple[str, float], dict[str, None]] = {}
    for bug in bugs:
        together.setdefault((bug.keyword, bug.scale), {}).update(dict.fromkeys(bug.tests))
    for (keyword, scale), tests in together.items():
        status, said = run_tests(copy, list(tests), keyword, scale)
        assert status == 0, f"without a bug, {' '.join(tests)}, {keyword}:\n{said}"


def look_for(bug: Bug, sound: Path) -> Found:
    """Plant a bug into a copy of the sound copy, and run its tests there."""
    copy = sound.parent / bug.name.replace(" ", "-")
    shutil.copytree(sound, copy)
    try:
        place = copy / "edcache" / bug.file
        place.write_text(planted(bug, sound / "edcache"), encoding="utf-8")
        # A compiled file is believed by its time in seconds and its size.
        for stale in place.parent.glob(f"__pycache__/{place.stem}.*"):
            stale.unlink()
        began = time.monotonic()
        try:
            status, said = run_tests(copy, bug.tests, bug.keyword, bug.scale)
        except subprocess.TimeoutExpired:
            return Found(bug, f"{bug.tests[0]}, which does not end", time.monotonic() - began)
        by = _FAILED.search(said)
        # Nothing but failing tests finds a bug: not that nothing was selected, nor that nothing imports.
        assert status == 0 or (status == 1 and by), f"{bug.name}: pytest ended with {status}:\n{said}"
        return Found(bug, by[1] if by else None, time.monotonic() - began)
    finally:
        shutil.rmtree(copy)


def look_for_all(bugs: Sequence[Bug], jobs: int = JOBS) -> Iterator[Found]:
    """Each of the bugs in turn, a few at a time."""
    with sound_copy() as sound:
        check_sound(sound, bugs)
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(lambda bug: look_for(bug, sound), bugs)


def sampled(count: int, below_seconds: float = float("inf")) -> list[Bug]:
    """So many bugs, others with another seed, of those whose tests take less than that."""
    quick = [bug for bug in BUGS if bug.seconds < below_seconds]
    return seeded("planted bugs").sample(quick, min(count, len(quick)))


def chosen(names: Sequence[str], sample: int | None) -> list[Bug]:
    """Those whose names contain one of these texts; all without any."""
    unknown = [name for name in names if not any(name in bug.name for bug in BUGS)]
    if unknown:
        raise SystemExit(f"no bug named {', '.join(unknown)}; scripts/planted --list shows all")
    if sample is not None:
        return sampled(sample)
    return [bug for bug in BUGS if not names or any(name in bug.name for name in names)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of a bug's name")
    parser.add_argument("--sample", type=int, metavar="N", help="so many, chosen by EDCACHE_TEST_SEED")
    parser.add_argument("--list", action="store_true", help="show the bugs and end")
    asked = parser.parse_args()
    bugs = chosen(asked.names, asked.sample)
    width = max(len(bug.name) for bug in bugs)
    if asked.list:
        for bug in bugs:
            print(
                f"{bug.name:<{width}}  edcache/{bug.file}: {' '.join(map(located, bug.tests))}"
                + f" -k {bug.keyword!r}" * bool(bug.keyword)
            )
        return 0
    survived = 0
    print(f"{'bug':<{width}}  seconds  caught by", flush=True)
    for bug, by, seconds in look_for_all(bugs):
        survived += by is None
        print(f"{bug.name:<{width}}  {seconds:>7.1f}  {by or 'NOBODY'}", flush=True)
    print(f"{len(bugs) - survived} of {len(bugs)} caught")
    if "EDCACHE_TEST_COUNTS" in os.environ:
        counts = {"planted bugs caught": len(bugs) - survived}
        Path(os.environ["EDCACHE_TEST_COUNTS"]).write_text(json.dumps(counts))
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
