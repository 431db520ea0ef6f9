"""Real processes on real files, killed at every call that they make of the system, and at any moment.

Whatever the child said it had published is there, and is right; the next call goes on from there.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import scenarios
from processes import Child, Told
from scale import scaled, seeded, thinned
from scenarios import OPTIONS, RECOMPUTED, SCENARIOS, Notes, Scenario, newest, read_all, sample, write
from systems import CALLS, WAYS, System, reading_by, routed

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError
from edcache.format import CHUNK, read_head, walk
from edcache.format.entries import Cursor
from edcache.writer import Appender

pytestmark = [
    pytest.mark.spread,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]
AT_RANDOM = scaled(30)


@routed(CALLS)
class Deadly(System):
    """Kills its process at one of its calls: before, in the middle of a write, or after it.

    at: the number of the call; None kills at none. names: of the calls so far.
    """

    def __init__(self, at: int | None = None, moment: str = "before") -> None:
        self.at, self.moment = at, moment
        self.names: list[str] = []

    def around(self, name: str, plain: Callable[..., Any], *arguments: Any) -> Any:
        is_last = len(self.names) == self.at
        self.names.append(name)
        if not is_last:
            return plain(*arguments)
        try:
            if self.moment == "half":
                fd, data, offset = arguments
                plain(fd, data[: len(data) // 2], offset)
            elif self.moment == "after":
                plain(*arguments)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)


class Found(NamedTuple):
    """index -> version or the name of the error of reading it, and what is wrong."""

    samples: dict[int, Any]
    problems: list[str]


class Case:
    """A step to be killed, on files that other steps made.

    before, during: the (index, version) that were published before the step, and by all of it.
    """

    def __init__(self, name: str, step: Callable[[Any], Any], before: tuple[Any, ...] = ()) -> None:
        self.name, self.step, self.first_steps = name, step, before
        self.before: list[tuple[int, int]] = []
        self.during: list[tuple[int, int]] = []

    def prepare(self) -> None:
        """Make the files that are there before."""
        notes = Told.__new__(_Here)
        notes.found = self.before
        for step in self.first_steps:
            step(notes)

    def look(self) -> Found:
        """Read what a kill left."""
        try:
            return Found(read_all(scenarios.PATH), [])
        except EdcacheError as error:
            return Found({}, [type(error).__name__])

    def finish(self) -> Found:
        """Go on as a user would, to the end."""
        raise NotImplementedError

    def wrong(self, told: list[tuple[int, int]], found: Found, finished: Found) -> Iterator[str]:
        certain = newest((0, *pair) for pair in [*self.before, *told])
        if found.problems and certain:
            yield f"opening: {found.problems}, but {len(certain)} samples are certain"
        yield from finished.problems
        for what, samples in (("left", found.samples), ("finished", finished.samples)):
            yield from (f"{what}: {line}" for line in self._wrong(certain, samples))

    def _wrong(self, certain: dict[int, int], samples: dict[int, Any]) -> Iterator[str]:
        written = [*self.before, *self.during]
        for index, version in certain.items():
            known = [v for i, v in written if i == index]
            found = samples.get(index)
            if found not in known or known.index(found) < known.index(version):
                yield f"sample {index} has version {found}; {version} was published, of {known}"
        for index, found in samples.items():
            if index not in certain and found != RECOMPUTED and (index, found) not in written:
                yield f"sample {index} has version {found}, which nobody wrote"


class _Here(Notes):
    """Notes of this process."""

    found: list[tuple[int, int]]

    def publish(self, indices: Iterable[int], version: int = 0) -> None:
        self.found += [(index, version) for index in indices]


def _finished(path: str, count: int) -> Found:
    """What there is at the end, which must be whole, and alone in its folder."""
    report = edcache.verify(path)
    samples = read_all(path)
    problems = list(report.problems)
    if not report.sealed or [index for index in sorted(samples) if index >= 0] != list(range(count)):
        problems.append(f"at the end: sealed {report.sealed}, samples {sorted(samples)}")
    return Found(samples, problems)


class Writing(Case):
    """A scenario; what is missing is written again."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.name, scenario.step, scenario.before)
        self.scenario = scenario

    def finish(self) -> Found:
        w = CacheWriter(scenarios.PATH, "a", **OPTIONS)
        there = read_all(scenarios.PATH)
        for index in range(self.scenario.count):
            if index not in there:
                w.write(index, sample(index, RECOMPUTED))
        w.close()
        return _finished(scenarios.PATH, self.scenario.count)

    def wrong(self, told: list[tuple[int, int]], found: Found, finished: Found) -> Iterator[str]:
        if not self.scenario.is_swap:
            yield from super().wrong(told, found, finished)
            return
        # What is written goes to another file, until that takes the place of the first.
        wholes = [newest((0, *pair) for pair in self.before), newest((0, *pair) for pair in self.during)]
        if found.problems or found.samples not in (wholes[1:] if told else wholes):
            yield f"neither the old archive nor the new one: {found}"
        yield from finished.problems


def _tear(_: Any) -> None:
    with open(scenarios.PATH, "ab") as file:
        file.write(b"torn" * 1_000)


def _damage(_: Any) -> None:
    """Spoil the records of one chunk."""
    data = bytearray(Path(scenarios.PATH).read_bytes())

    def pread(offset: int, nbytes: int, is_sound: object = None) -> bytes:
        return bytes(data[offset : offset + nbytes])

    head, header = read_head(pread, scenarios.PATH)
    chunks = [
        group[0]
        for group in walk(pread, len(data), head.uuid, Cursor.behind(header), scenarios.PATH)
        if group[0].kind == CHUNK
    ]
    start = data.index(b"and so on", chunks[1].payload_offset)
    data[start : start + 4] = b"spot"
    Path(scenarios.PATH).write_bytes(data)


class SavingOverItself(Case):
    """In place: the path leads to all samples at every moment."""

    def __init__(self) -> None:
        steps = (scenarios.create, scenarios.first_labels, scenarios.revise, scenarios.grow, _more, _tear)
        super().__init__("save over itself", scenarios.rewrite, steps)

    def finish(self) -> Found:
        scenarios.save(scenarios.PATH)
        found = _finished(scenarios.PATH, 18)
        return Found(found.samples, [*found.problems, *_others()])


def _more(notes: Notes) -> None:
    write(notes, range(15, 18), seal=False)


def _others() -> list[str]:
    """What lies beside the archive, and should not."""
    names = set(os.listdir(os.path.dirname(scenarios.PATH))) - {"a.zip"}
    return [f"left behind: {sorted(names)}"] if names else []


class SavingBeside(Case):
    """To another path, where there is nothing or all that was to be saved; the damaged one stays as it is."""

    def __init__(self) -> None:
        super().__init__("save beside", self._save, (scenarios.create, _damage))
        self.saved: list[int] = []
        self.damaged = b""

    @property
    def target(self) -> str:
        return scenarios.PATH + ".good"

    def _save(self, _: Any) -> None:
        scenarios.save(self.target)

    def prepare(self) -> None:
        super().prepare()
        self.damaged = Path(scenarios.PATH).read_bytes()
        self._save(None)
        self.saved = sorted(read_all(self.target))
        os.unlink(self.target)

    def look(self) -> Found:
        problems = [] if Path(scenarios.PATH).read_bytes() == self.damaged else ["it changed the damaged one"]
        if not os.path.exists(self.target):
            return Found({}, problems)
        return Found(read_all(self.target), problems)

    def finish(self) -> Found:
        if not os.path.exists(self.target):
            self._save(None)
        report = edcache.verify(self.target)
        return Found(read_all(self.target), report.problems + ([] if report.sealed else ["unsealed"]))

    def wrong(self, told: list[tuple[int, int]], found: Found, finished: Found) -> Iterator[str]:
        yield from found.problems + finished.problems
        assert 0 < len(self.saved) < 9
        whole = dict.fromkeys(self.saved, 0)
        if found.samples not in ({}, whole) or finished.samples != whole:
            yield f"neither nothing nor all that is good: {found}, {finished}"


class _Source:
    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.asked.append(index)
        return sample(index)


class Filling(Case):
    """By a dataset: what was published is not computed again, and all else once."""

    def __init__(self, way: str, **more: Any) -> None:
        super().__init__(f"fill, {way}", self._told)
        self.way = way
        own = {"in_memory_keys": ["y"], "chunk_size": 3, "progress": False, "spot_check": False}
        self.options: dict[str, Any] = own | more

    def _fill(self, source: _Source) -> None:
        if self.way == "decorator":
            edcache.cachable(scenarios.PATH, **self.options)(_made_by(source))().close()
            return
        cache = CachedDataset(source, scenarios.PATH, lazy=self.way == "warmup", **self.options)
        cache.warmup(num_workers=0)
        cache.close()

    def _told(self, notes: Told) -> None:
        publish = Appender.append

        def append(self: Appender, chunk: Any, **options: Any) -> None:
            assert not chunk.continues
            publish(self, chunk, **options)
            notes.publish(chunk.samples.tolist())

        with patch.object(Appender, "append", append):
            self._fill(_Source())

    def finish(self) -> Found:
        with suppress(EdcacheError):
            there = read_all(scenarios.PATH)
        if "there" not in locals():
            there = {}
        source = _Source()
        self._fill(source)
        found = _finished(scenarios.PATH, len(source))
        again = sorted(source.asked) != sorted(set(range(len(source))) - there.keys())
        return Found(found.samples, found.problems + [f"computed {source.asked}, had {there}"] * again)


def _made_by(source: _Source) -> Callable[[], _Source]:
    def dataset() -> _Source:
        return source

    return dataset


CASES = [
    # Saving has cases of their own below, which keep to this folder.
    *(Writing(scenario) for scenario in SCENARIOS if not scenario.whole),
    SavingOverItself(),
    SavingBeside(),
    *map(Filling, ("class", "warmup", "decorator")),
    Filling("compressed", compression="zstd"),
]


class Ground:
    """A folder in which one case is killed again and again."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        case.before.clear()
        case.prepare()
        self.base = self.files()
        self.kills = 0
        self._finished: dict[Any, Found] = {}
        self.problems: dict[str, str] = {}
        system = Deadly()
        child = Child(lambda notes: (self._step(notes), self._note(system)), system)
        assert child.ended() == 0
        case.during = child.told()
        self.names = (folder.parent / "names").read_text().split()
        self.seconds = self._measured()

    def _measured(self) -> float:
        """How long the step takes."""
        self.reset()
        started = time.monotonic()
        assert Child(self._step, System()).ended() == 0
        return time.monotonic() - started

    def _step(self, notes: Told) -> None:
        # Files that differ in nothing else need be continued only once.
        with patch.object(uuid, "uuid4", lambda: uuid.UUID(int=7)):
            self.case.step(notes)

    def _note(self, system: Deadly) -> None:
        (self.folder.parent / "names").write_text(" ".join(system.names))

    def files(self) -> dict[str, bytes]:
        return {entry.name: Path(entry).read_bytes() for entry in os.scandir(self.folder)}

    def reset(self) -> None:
        for entry in os.scandir(self.folder):
            os.unlink(entry)
        for name, data in self.base.items():
            (self.folder / name).write_bytes(data)

    def kill_at(self, number: int, moment: str) -> None:
        self.reset()
        child = Child(self._step, Deadly(number, moment))
        code = child.ended()
        assert code == -signal.SIGKILL, f"call {number} of {len(self.names)}, {moment}: {code}"
        self._judge(child, f"{moment} call {number}, {self.names[number]}")

    def kill_after(self, seconds: float) -> None:
        self.reset()
        child = Child(self._step, System())
        time.sleep(seconds)
        child.kill()
        code = child.ended()
        assert code in (-signal.SIGKILL, 0)
        if code:
            self._judge(child, f"after {seconds * 1e6:.0f} microseconds")

    def _judge(self, child: Child, when: str) -> None:
        told = child.told()
        self.kills += 1
        try:
            with reading_by(WAYS[self.kills % 2]):
                found = self.case.look()
            key = tuple(sorted(self.files().items()))
            finished = self._finished.get(key)
            if finished is None:
                finished = self._finished[key] = self.case.finish()
            problems = list(self.case.wrong(told, found, finished))
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        for problem in problems:
            self.problems.setdefault(problem, when)


@contextmanager
def on_ground(name: str) -> Iterator[Ground]:
    """A case by its name, in a folder of its own."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="edcache-kills-", dir=memory)) / "files"
    folder.mkdir()
    scenarios.PATH = str(folder / "a.zip")
    (case,) = [case for case in CASES if case.name == name]
    try:
        yield Ground(case, folder)
    finally:
        shutil.rmtree(folder.parent)


def killed_at_every_call(name: str) -> tuple[int, dict[str, str]]:
    """How often it was killed, and what was wrong: problem -> when."""
    with on_ground(name) as ground:
        for number, call in enumerate(ground.names):
            for moment in ("before", "half", "after") if call == "pwrite" else ("before", "after"):
                ground.kill_at(number, moment)
        return ground.kills, ground.problems


def killed_at_any_moment(name: str) -> tuple[int, dict[str, str]]:
    """The same."""
    rng = seeded(f"kills, {name}")
    with on_ground(name) as ground:
        for _ in range(3 * AT_RANDOM):  # some end before
            ground.kill_after(rng.uniform(0, ground.seconds))
            if ground.kills == AT_RANDOM:
                break
        return ground.kills, ground.problems


@pytest.fixture(scope="module")
def small() -> Iterator[Executor]:
    """A process to fork from that has little memory: a fork takes the longer, the more its parent has."""
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        yield executor


@pytest.fixture(params=thinned([case.name for case in CASES], 5))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def checked(result: tuple[int, dict[str, str]]) -> int:
    """The number of kills, if nothing was wrong."""
    kills, problems = result
    assert not problems, "\n".join(f"{problem} ({when})" for problem, when in problems.items())
    return kills


@pytest.mark.full
def test_a_process_killed_at_every_call_loses_nothing_that_it_said_was_published(
    small: Executor, name: str, tally: Any
) -> None:
    tally("kills", checked(small.submit(killed_at_every_call, name).result()))


def test_a_process_killed_at_any_moment_loses_nothing_that_it_said_was_published(
    small: Executor, name: str, tally: Any
) -> None:
    kills = checked(small.submit(killed_at_any_moment, name).result())
    assert kills >= AT_RANDOM // 3
    tally("kills", kills)
