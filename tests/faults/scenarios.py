"""What is done to an archive while something goes wrong: a first state, a step, and what it must keep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from disk import MemoryDisk
from filled import available
from systems import replace_system

import edcache
from edcache import CachedDataset, CacheWriter, format, storage
from edcache.format import Failure
from edcache.writer import Appender

PATH = "/disk/a.zip"
MENDED = "/disk/mended.zip"
OPTIONS: dict[str, Any] = {"in_memory_keys": ["y"], "publish_seconds": None, "uuid": bytes(range(16))}


# Columns that are added afterwards stand among the samples as these indices; a value is version, index.
LABELS = {"z": -1, "w": -2}
FACTOR = 1_000
DROPPED = 5
# The version of what is filled in after something went wrong.
RECOMPUTED = 1_000


def label_versions(cache: CachedDataset) -> dict[int, int | str]:
    """The version of each column that was added, which all of its values are of; else AssertionError."""
    found: dict[int, int | str] = {}
    for name, key in LABELS.items():
        if name in cache.labels:
            values = [None if v is None else int(v) for v in cache.labels.table.column(name).to_pylist()]
            versions = {v // FACTOR for v in values if v is not None}
            assert len(versions) <= 1, (name, values)
            # Samples behind the last one that was there have none.
            count = sum(v is not None for v in values)
            assert values == [
                *(FACTOR * v + i for v in versions for i in range(count)),
                *[None] * (len(values) - count),
            ]
            found |= dict.fromkeys([key], versions.pop()) if versions else {}
    if LABELS["z"] in found and "w" not in cache.labels:
        found[LABELS["w"]] = DROPPED
    return found


def sample(index: int, version: int = 0) -> dict[str, Any]:
    """A small sample; `version_of` tells which one was read."""
    values = np.full(6 + index % 3, 7 * index + version, np.int32)
    return {"x": values, "y": index, "text": f"{index}.{version} " + "and so on " * 9}


def version_of(found: Any, index: int) -> int:
    """Which version of a sample this is; AssertionError where it is none, or in the least different."""
    assert type(found) is dict
    assert list(found) == ["x", "y", "text"]
    assert type(found["text"]) is str
    assert type(found["y"]) is int
    version = int(found["text"].split()[0].split(".")[1])
    expected = sample(index, version)
    assert found["text"] == expected["text"]
    assert found["y"] == index
    assert type(found["x"]) is np.ndarray
    assert found["x"].dtype == np.int32
    assert found["x"].tolist() == expected["x"].tolist()
    return version


@dataclass
class Notes:
    """What a scenario says while it runs: (how long the journal was, index, version) of all it published."""

    disk: MemoryDisk
    published: list[tuple[int, int, int]] = field(default_factory=list)

    def publish(self, indices: Iterable[int], version: int = 0) -> None:
        self.published += [(len(self.disk.journal), index, version) for index in indices]


class _Nobody(Notes):
    def publish(self, indices: Iterable[int], version: int = 0) -> None:
        return


NOBODY = _Nobody(MemoryDisk())
Step = Callable[[Notes], None]


@dataclass(frozen=True)
class Scenario:
    """before: makes the disk on which `step` is watched. count: samples of the dataset. is_swap: a whole
    archive takes the place of another. is_torn: a killed writer left the end of the archive. whole: files that
    are at any time as before, or as in the end. cuts: the part of the power cuts that is tried, where there are
    more than can be."""

    name: str
    step: Step
    before: tuple[Step, ...] = ()
    count: int = 9
    is_swap: bool = False
    is_torn: bool = False
    whole: tuple[str, ...] = ()
    cuts: float = 1.0


def write(
    notes: Notes,
    indices: Iterable[int],
    *,
    version: int = 0,
    sync: Any = "seal",
    seal: bool = True,
    **more: Any,
) -> None:
    """Chunks of three, published one by one; sealed at the end."""
    w = CacheWriter(PATH, "a", sync=sync, **(OPTIONS | more))
    try:
        chosen = list(indices)
        for part in [chosen[k : k + 3] for k in range(0, len(chosen), 3)]:
            for index in part:
                w.write(index, sample(index, version))
            w.flush()
            notes.publish(part, version)
        if seal:
            w.seal()
    finally:
        w._appender.close()


def create(notes: Notes) -> None:
    write(notes, range(9))


def unsealed(notes: Notes) -> None:
    write(notes, range(6), seal=False)


def by_chunk(notes: Notes) -> None:
    write(notes, range(6), sync="chunk")


def never_synced(notes: Notes) -> None:
    write(notes, range(6), sync="never", seal=False)


def sealed_unsynced(notes: Notes) -> None:
    write(notes, range(6), sync="never")


def grown_unsynced(notes: Notes) -> None:
    """Nothing says that the directory of the seal was synced before what follows it."""
    sealed_unsynced(notes)
    write(notes, range(6, 9), sync="never", seal=False)


def cut_end(notes: Notes) -> None:
    """The seal as a writer leaves it that is killed before the end record."""
    with closing(storage.File.open(PATH, "r+")) as file:
        file.truncate(file.size() - format.END_NBYTES)


def torn_tail(notes: Notes) -> None:
    """Bytes that no header tells of, from the last entry to behind the next ones."""
    with closing(storage.File.open(PATH, "r+")) as file:
        file.pwrite(file.size(), bytes(range(1, 256)) * 40)


def after_seconds(notes: Notes) -> None:
    """The first chunk of two is published when the seconds are over."""
    w = CacheWriter(PATH, "a", sync=3600.0, **OPTIONS)
    try:
        w._appender._synced -= 3600
        for start in (0, 3):
            for index in range(start, start + 3):
                w.write(index, sample(index))
            w.flush()
            notes.publish(range(start, start + 3))
        w.seal()
    finally:
        w._appender.close()


def grow(notes: Notes) -> None:
    write(notes, range(9, 15))


def resume(notes: Notes) -> None:
    write(notes, range(6, 9))


def resume_more(notes: Notes) -> None:
    write(notes, range(9, 12), seal=False)


def revise(notes: Notes) -> None:
    """Newer versions of samples, some of them twice."""
    write(notes, (1, 4, 7), version=1)
    write(notes, (4, 8), version=2)


def compressed(notes: Notes) -> None:
    """Two compressed chunks."""
    with CacheWriter(PATH, "a", compression="zstd", chunk_size=8, **OPTIONS) as w:
        for index in range(16):
            w.write(index, sample(index))
            if index % 8 == 7:
                notes.publish(range(index - 7, index + 1))


def two_writers(notes: Notes) -> None:
    """Two that take turns, each of which has to take in what the other published."""
    with ExitStack() as stack:
        one = CacheWriter(PATH, "a", **OPTIONS)
        stack.callback(one._appender.close)
        two = CacheWriter(PATH, "a", **OPTIONS)
        stack.callback(two._appender.close)
        for index in range(6):
            w = (one, two)[index % 2]
            w.write(index, sample(index))
            w.flush()
            notes.publish([index])
        one.seal()
        two.write(6, sample(6))
        two.flush()
        notes.publish([6])
        two.seal()


def amend(notes: Notes) -> None:
    """A longer dataset, samples that failed, then records of some of them."""
    with closing(edcache.reader.Reader(PATH, allow_partial=True)) as reader:
        head = reader.session.head
    with closing(Appender.open(PATH, head, mode="a")) as appender:
        appender.amend(length=12)
        failures = [Failure(k, k == 10, "ValueError", "no such file", "") for k in (9, 10)]
        appender.amend(failed=[failure.to_json() for failure in failures])
    write(notes, (9, 11))


def replace(notes: Notes) -> None:
    """Another archive in the place of the first."""
    with CacheWriter(PATH, "w", in_memory_keys=["y"], publish_seconds=None, uuid=bytes(16)) as w:
        for index in range(6):
            w.write(index, sample(index, 1))
    notes.publish(range(6), 1)


def first_labels(notes: Notes) -> None:
    """A column that later steps drop."""
    with closing(CachedDataset.from_cache(PATH, allow_partial=True)) as cache:
        cache.add_labels("w", [1 * FACTOR + index for index in range(len(cache))])
    notes.publish([LABELS["w"]], 1)


def label_add(notes: Notes) -> None:
    """A column that is new, and one that is dropped."""
    with closing(CachedDataset.from_cache(PATH, allow_partial=True)) as cache:
        cache.add_labels("z", [1 * FACTOR + index for index in range(len(cache))])
        notes.publish([LABELS["z"]], 1)
        cache.drop_labels("w")
        notes.publish([LABELS["w"]], DROPPED)


def rewrite(notes: Notes) -> None:
    save(PATH)


def save_beside(notes: Notes) -> None:
    save(MENDED)


def save(target: str) -> None:
    """The samples of the archive in a new one, without what is damaged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", edcache.errors.PartialArchiveWarning)
        with closing(CachedDataset.from_cache(PATH, allow_partial=True)) as cache:
            cache.save(target, skip_damaged=True)


SCENARIOS = [
    Scenario("create", create),
    Scenario("create, unsealed", unsealed, count=6),
    Scenario("sync each chunk", by_chunk, count=6),
    Scenario("never synced", never_synced, count=6),
    Scenario("sealed, never synced", sealed_unsynced, count=6),
    Scenario("sealed and grown, never synced", grown_unsynced),
    Scenario("sync after seconds", after_seconds, count=6),
    Scenario("resume", resume, (unsealed,)),
    Scenario("grow after a seal", grow, (create,), count=15),
    Scenario("resume behind a torn tail", resume, (unsealed, torn_tail), is_torn=True),
    Scenario("grow after a seal that was killed", grow, (create, cut_end), count=15, is_torn=True),
    Scenario("grow twice", grow, (unsealed, resume), count=15),
    Scenario("revise", revise, (create,)),
    Scenario("two writers", two_writers, count=7),
    Scenario("compressed", compressed, count=16),
    Scenario("amendments", amend, (create,), count=12),
    Scenario("replace", replace, (create,), is_swap=True),
    Scenario("save over itself", rewrite, (create, revise), whole=(PATH,)),
    Scenario("save over itself, unsealed", rewrite, (create, revise, resume_more), count=12, whole=(PATH,)),
    Scenario("save beside", save_beside, (create, revise), whole=(PATH, MENDED)),
    Scenario("label add", label_add, (create, first_labels), cuts=0.04),
    Scenario("grow behind it", grow, (create, first_labels, label_add), count=15, cuts=0.04),
    Scenario(
        "save over itself, labels", rewrite, (create, first_labels, label_add), whole=(PATH,), cuts=0.04
    ),
]


@dataclass
class Recording:
    """A scenario's run: the disk before it, and what its step did."""

    scenario: Scenario
    base: dict[str, bytes]
    disk: MemoryDisk
    before: Notes
    notes: Notes


def record(scenario: Scenario) -> Recording:
    disk = MemoryDisk()
    before = Notes(disk)
    with replace_system(disk):
        for step in scenario.before:
            step(before)
    base = disk.files()
    watched = MemoryDisk(base)
    notes = Notes(watched)
    with replace_system(watched):
        scenario.step(notes)
    assert not watched.open_files
    return Recording(scenario, base, watched, before, notes)


def newest(published: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """index -> the last version."""
    return {index: version for _, index, version in published}


def read_all(path: str) -> dict[int, int | str]:
    """index -> version, or the name of the error that reading it raises; missing ones are left out.

    Columns that were added afterwards are there too, as `LABELS` has them.
    """
    with closing(CachedDataset.from_cache(path, allow_partial=True)) as cache:
        return {index: read_one(cache, index) for index in present(cache)} | label_versions(cache)


def present(cache: CachedDataset) -> list[int]:
    """The samples that are there, each with its label; one that a save left out has kept its own."""
    found = available(cache).indices.tolist()
    labels = cache.labels.table.column("y").to_pylist() if len(cache) else []
    assert all(labels[index] == index for index in found), (found, labels)
    assert all(label in (None, index) for index, label in enumerate(labels)), (found, labels)
    return found


def read_one(cache: CachedDataset, index: int) -> int | str:
    """The version of a sample, or the name of the error that reading it raises."""
    try:
        return version_of(cache[index], index)
    except edcache.EdcacheError as error:
        return type(error).__name__
