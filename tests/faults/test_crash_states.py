"""Whatever a crash leaves: the original samples or a typed error, all that was synced, and a way on.

The real reader and the real writer run on every state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from disk import MemoryDisk
from explore import State, killed, powerless
from scale import SCALE, scaled, seeded, thinned
from scenarios import (
    OPTIONS,
    PATH,
    RECOMPUTED,
    SCENARIOS,
    Notes,
    Recording,
    newest,
    read_all,
    record,
    sample,
    write,
)
from systems import replace_system

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError
from edcache.errors import CorruptArchiveError
from edcache.format import PAGE
from edcache.labels import LabelSpec
from edcache.writer import Appender, new_head

pytestmark = [
    pytest.mark.spread,
    # A seal that was never synced may know samples that no chunk knows.
    pytest.mark.filterwarnings("ignore:.*entries of a seal that a power cut took are kept here"),
]

KILLS = 5 * SCALE
POWER_CUTS = scaled(2_000)
RECOVERIES = scaled(20)


class Read(NamedTuple):
    """What a reader finds: index -> version, or the name of an error; or the error of opening."""

    samples: dict[int, int | str]
    error: str | None


def reads() -> Read:
    """What a reader finds of a disk as it is."""
    try:
        return Read(read_all(PATH), None)
    except EdcacheError as error:
        return Read({}, type(error).__name__)


def opens() -> set[int] | None:
    """Open for writing, which cuts a torn tail and gives up what a power cut took; what is left then.

    None where that refuses to touch what is no archive.
    """
    try:
        appender = Appender.open(PATH, new_head(LabelSpec.parse(["y"]), uuid=bytes(range(16))), mode="a")
    except CorruptArchiveError:
        return None
    with appender.appending():
        found = set(appender.indices_of(appender.chain.chunks).tolist())
    appender.close()
    return found


class Filled(NamedTuple):
    """What filling the rest leads to."""

    samples: dict[int, int | str]
    problems: list[str]
    sealed: bool
    left: int


def fills(count: int) -> Callable[[MemoryDisk], Filled]:
    """Compute what is missing, seal, and look at all of it."""

    def fill(disk: MemoryDisk) -> Filled:
        w = CacheWriter(PATH, "a", **OPTIONS)
        there = read_all(PATH)
        for index in range(count):
            if index not in there:
                w.write(index, sample(index, RECOMPUTED))
        w.close()
        report = edcache.verify(PATH)
        return Filled(read_all(PATH), report.problems, report.sealed, len(disk.open_files))

    return fill


class Looks(NamedTuple):
    """What a reader finds of a state, what a writer does, and what filling what that left leads to."""

    read: Read
    opened: set[int] | None
    filled: Filled | None


class Law:
    """What the states of one recording must keep.

    added: what may be found of samples that a swapped archive has not, as one that was filled before the crash has.
    """

    def __init__(self, recording: Recording) -> None:
        self.scenario = recording.scenario
        self.before = recording.before.published
        self.during = recording.notes.published
        final = recording.disk.files()
        self.whole = {path: (recording.base.get(path), final[path]) for path in self.scenario.whole}
        self.added: set[int | str] = set()
        self.written: dict[int, list[int]] = {}
        for _, index, version in [*self.before, *self.during]:
            self.written.setdefault(index, []).append(version)

    def certain(self, position: int) -> dict[int, int]:
        """index -> the version that must be found, or a newer one."""
        return newest([*self.before, *(p for p in self.during if p[0] <= position)])

    def may_be_foreign(self, state: State) -> bool:
        """Whether nothing tells the file from somebody's own: not a byte of its head reached the disk, and
        the file system shows what was there before. No writer may touch that."""
        data = state.files.get(PATH, b"")
        return state.synced == 0 and len(data) <= PAGE and data[:4] != b"PK\3\4"

    def broken(self, state: State, read: Read, is_killed: bool) -> Iterator[str]:
        certain = self.certain(state.position if is_killed else state.synced)
        for path, allowed in self.whole.items():
            if state.files.get(path) not in allowed:
                yield f"{path} is neither what it was nor what it was to become"
        if self.scenario.is_swap:
            yield from self._broken_swap(read, self.added)
            return
        if read.error is not None and certain:
            yield f"opening: {read.error}, but {len(certain)} samples are certain"
        newer = set() if is_killed else {index for at, index, _ in self.during if at > state.synced}
        for index, version in certain.items():
            found = read.samples.get(index)
            # Until a writer has looked, a newer version that was lost hides the one that is certain.
            is_hidden = index in newer and found == "CorruptRecordError"
            if read.error is None and not isinstance(found, int) and not is_hidden:
                yield f"sample {index}: {found}, version {version} is certain"
        yield from self._other_versions(read.samples, certain)
        errors = [found for found in read.samples.values() if isinstance(found, str)]
        if errors and is_killed:
            yield f"a kill made records unreadable: {errors}"
        if set(errors) - {"CorruptRecordError"}:
            yield f"errors of a sample: {errors}"

    def _other_versions(self, samples: dict[int, Any], certain: dict[int, int]) -> Iterator[str]:
        for index, found in samples.items():
            known = self.written.get(index, [])
            if isinstance(found, int) and found != RECOMPUTED:
                if found not in known:
                    yield f"sample {index} has version {found}, written were {known}"
                elif index in certain and known.index(found) < known.index(certain[index]):
                    yield f"sample {index} went back to version {found} from {certain[index]}"

    def _broken_swap(self, read: Read, added: set[int | str]) -> Iterator[str]:
        found = read.samples
        is_one = [
            whole.items() <= found.items() and {found[i] for i in found.keys() - whole.keys()} <= added
            for whole in (newest(self.before), newest(self.during))
        ]
        if read.error is not None or not any(is_one):
            yield f"neither the old archive nor the new one: {read}"

    def unfilled(self, state: State, found: Filled, is_killed: bool) -> Iterator[str]:
        yield from found.problems
        if not found.sealed or found.left:
            yield f"after filling: sealed {found.sealed}, {found.left} files open"
        if self.scenario.is_swap:
            yield from self._broken_swap(Read(found.samples, None), {RECOMPUTED})
            return
        certain = self.certain(state.position if is_killed else state.synced)
        lacking = [i for i in range(self.scenario.count) if not isinstance(found.samples.get(i), int)]
        if lacking:
            yield f"after filling: {lacking} are still missing"
        lost = [key for key in certain if key < 0 and key not in found.samples]
        if lost:
            yield f"after filling: the labels {lost} are lost"
        again = [index for index in certain if found.samples.get(index) == RECOMPUTED]
        if again:
            yield f"computed again though they were certain: {again}"
        yield from self._other_versions(found.samples, certain)


class Laboratory:
    """The reader and the writer, over all states of one recording."""

    def __init__(self, recording: Recording) -> None:
        self.law = Law(recording)
        self.fill = fills(recording.scenario.count)
        # By the one file that reader and writer look at.
        self.looks: dict[int, Looks] = {}
        self.filled: dict[int, Filled] = {}
        self.seen: set[tuple[int, int]] = set()
        self.problems: dict[str, str] = {}

    def try_all(self, states: Iterable[State], is_killed: bool) -> int:
        """How many states there were that differ."""
        before = len(self.seen)
        for state in states:
            key = hash((state.rebooted, *sorted(state.files.items())))
            # Of equal disks the one of which more is certain asks for more.
            if (key, state.synced) in self.seen:
                continue
            self.seen.add((key, state.synced))
            self._try(state, is_killed)
        return len(self.seen) - before

    def _try(self, state: State, is_killed: bool) -> None:
        try:
            looks = self._looks(state)
            problems = list(self.law.broken(state, looks.read, is_killed))
            if looks.opened is None or looks.filled is None:
                if not self.law.may_be_foreign(state):
                    problems.append("a writer says that it is no archive")
            else:
                if is_killed and not looks.opened >= {index for index in looks.read.samples if index >= 0}:
                    problems.append(f"reopening lost samples: {sorted(looks.opened)} of {looks.read.samples}")
                problems += self.law.unfilled(state, looks.filled, is_killed)
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        for problem in problems:
            sizes = {path: len(data) for path, data in state.files.items()}
            self.problems.setdefault(
                problem, f"at operation {state.position}, synced {state.synced}, {sizes}"
            )

    def _looks(self, state: State) -> Looks:
        files, rebooted = state.files, state.rebooted
        key = hash((files.get(PATH), rebooted))
        if key not in self.looks:
            with replace_system(MemoryDisk(files, rebooted)):
                read = reads()
            disk = MemoryDisk(files, rebooted)
            with replace_system(disk):
                opened = opens()
            filled = None if opened is None else self._filled(disk.files(), rebooted)
            self.looks[key] = Looks(read, opened, filled)
        return self.looks[key]

    def _filled(self, files: dict[str, bytes], rebooted: bool) -> Filled:
        key = hash((files.get(PATH), rebooted))
        if key not in self.filled:
            disk = MemoryDisk(files, rebooted)
            with replace_system(disk):
                self.filled[key] = self.fill(disk)
        return self.filled[key]

    def try_recoveries(self, chosen: list[State], is_killed: bool, rng: random.Random, depth: int) -> int:
        """Crash while what a crash left is being mended, and mend that, `depth` deep."""
        count, deeper = 0, []
        for state in chosen:
            disk = MemoryDisk(state.files, state.rebooted)
            with replace_system(disk):
                self.fill(disk)
            again = list(killed(state.files, disk.journal, state.rebooted))
            if not is_killed:
                again += powerless(state.files, disk.journal, PATH, 20, rng)
            # What was certain before is certain; what the recovery wrote may be there or not.
            states = [
                found._replace(position=state.position, synced=state.synced)
                for found in rng.sample(again, min(40, len(again)))
            ]
            count += self.try_all(states, is_killed)
            deeper += rng.sample([s for s in states if not self.law.may_be_foreign(s)], 1)
        return count if depth == 1 else count + self.try_recoveries(deeper, is_killed, rng, depth - 1)

    def check(self) -> None:
        told = [f"{problem} ({where})" for problem, where in list(self.problems.items())[:20]]
        assert not told, "\n".join([f"{len(self.problems)} kinds of problems", *told])


@pytest.fixture(params=thinned(SCENARIOS, 4), ids=lambda s: s.name)
def recording(request: pytest.FixtureRequest) -> Recording:
    return record(request.param)


def test_a_process_that_is_killed_anywhere_loses_nothing_published(recording: Recording, tally: Any) -> None:
    laboratory, rng = Laboratory(recording), seeded(f"kills of {recording.scenario.name}")
    states = killed(recording.base, recording.disk.journal)
    count = laboratory.try_all((state for state in states if rng.random() < KILLS), is_killed=True)
    laboratory.check()
    tally("crash states: killed", count)


def test_what_is_sealed_is_never_written_again(recording: Recording) -> None:
    if recording.scenario.is_swap or recording.scenario.is_torn or recording.scenario.whole:
        return
    sealed = len(recording.base.get(PATH, b""))
    for name, *arguments in recording.disk.journal:
        assert name not in ("write", "truncate") or arguments[1] >= sealed


def test_a_power_cut_leaves_what_was_synced_and_no_wrong_byte(recording: Recording, tally: Any) -> None:
    laboratory = Laboratory(recording)
    rng = seeded(recording.scenario.name)
    limit = round(POWER_CUTS * recording.scenario.cuts)
    states = powerless(recording.base, recording.disk.journal, PATH, limit, rng)
    count = laboratory.try_all(states, is_killed=False)
    laboratory.check()
    tally("crash states: power cut", count)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "power cut"])
def test_a_recovery_may_crash_itself_three_times_over(
    recording: Recording, is_killed: bool, tally: Any
) -> None:
    laboratory = Laboratory(recording)
    laboratory.law.whole = {}  # filling what is missing changes these files
    # It adds to an archive; until a writer has looked, a header that a power cut left may lead to no record.
    laboratory.law.added = {RECOMPUTED} if is_killed else {RECOMPUTED, "CorruptRecordError"}
    rng = seeded(f"recovery of {recording.scenario.name}")
    base, journal = recording.base, recording.disk.journal
    states = list(killed(base, journal)) if is_killed else list(powerless(base, journal, PATH, 200, rng))
    states = [state for state in states if not laboratory.law.may_be_foreign(state)]
    count = laboratory.try_recoveries(rng.sample(states, min(RECOVERIES, len(states))), is_killed, rng, 3)
    laboratory.check()
    tally("crash states: crash of a recovery", count)


@pytest.mark.parametrize("sync", ["never", "seal"])
def test_the_copy_of_a_recovery_stays_until_all_is_on_the_disk_and_does_not_come_back(sync: Any) -> None:
    """It would be appended again, behind newer samples."""
    disk = MemoryDisk()
    with replace_system(disk):
        write(Notes(disk), range(9), seal=False)
    data = disk.files()[PATH]
    lost = data[: 2 * PAGE] + bytes(512) + data[2 * PAGE + 512 :]
    disk = MemoryDisk({PATH: lost}, rebooted=True)
    with replace_system(disk):
        write(Notes(disk), [0], version=1, sync=sync, seal=False)
        assert read_all(PATH) == {0: 1, 1: 0, 2: 0, 6: 0, 7: 0, 8: 0}
    names = [name for name, *_ in disk.journal]
    gone = names.index("remove")
    assert (names[gone - 1], names[gone + 1]) == ("sync", "sync_directory")


# Whether all is on the disk once a chunk is published, and once sealed.
PROMISED = [
    ("never", False, False),
    ("seal", False, True),
    (1e-9, True, True),
    (3600, False, True),
    ("chunk", True, True),
]


@pytest.mark.parametrize(("sync", "when_published", "when_sealed"), PROMISED)
def test_what_is_synced_when_is_what_the_table_says(
    sync: Any, when_published: bool, when_sealed: bool
) -> None:
    disk = MemoryDisk()

    def is_synced() -> bool:
        return disk.journal[-1][0] == "sync"

    with replace_system(disk):
        w = CacheWriter(PATH, "a", sync=sync, **OPTIONS)
        for index in range(3):
            w.write(index, sample(index))
            w.flush()
            assert is_synced() == when_published
        w.seal()
        assert is_synced() == when_sealed
        w.close()
    assert disk.open_files == {}


def test_what_was_published_is_synced_by_close_if_sync_is_a_number() -> None:
    disk = MemoryDisk()
    with replace_system(disk):
        w = CacheWriter(PATH, "a", sync=3600, **OPTIONS)
        w.write(0, sample(0))
        w.abort()
        assert disk.journal[-1][0] == "sync"
        synced = len(disk.journal)
        CacheWriter(PATH, "a", sync=3600, **OPTIONS).abort()
        assert len(disk.journal) == synced


def test_labels_are_on_the_disk_once_they_are_added() -> None:
    disk = MemoryDisk()
    with replace_system(disk):
        write(Notes(disk), range(3))
        cache = CachedDataset.from_cache(PATH)
        for change in (lambda: cache.add_labels("z", [1, 2, 3]), lambda: cache.drop_labels("z")):
            change()
            assert disk.journal[-1][0] == "sync"
        cache.close()
    assert disk.open_files == {}
