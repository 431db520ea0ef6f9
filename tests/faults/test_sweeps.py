"""Every byte and every length of small archives of each kind: the same samples and labels, or an error.

`verify` finds all damage. A reader gives no other sample, label or selection, and calls nothing complete that lacks
some. A writer refuses, or goes on and keeps each sample that a reader had before it, in whatever boot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from damage import flipped
from disk import MemoryDisk
from filled import available
from scale import scaled, seeded
from scenarios import NOBODY, OPTIONS, PATH, present, sample, version_of, write
from systems import replace_system

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError
from edcache.format import MAX_HEADER_NBYTES, Failure, columns, contents, parse_header
from edcache.writer import Appender

pytestmark = [pytest.mark.spread, pytest.mark.filterwarnings("ignore::edcache.errors.PartialArchiveWarning")]

PARTS = 4
NEW = 1_000


class State(NamedTuple):
    """What an archive said at one moment. samples: index -> version. labels: by column."""

    sealed: bool
    length: int
    samples: dict[int, Any]
    labels: dict[str, list[Any]]


class Kind(NamedTuple):
    """An archive, and its states since it was made, the last one that of `data`."""

    data: bytes
    states: list[State]


class MappedDisk(MemoryDisk):
    """Files that are mapped, as they are when that happens."""

    def map(self, fd: int, nbytes: int) -> memoryview:
        return memoryview(self.pread(fd, nbytes, 0))


def large(index: int) -> dict[str, Any]:
    """A sample whose record is checked in blocks."""
    made = sample(index)
    made["x"] = np.full(17_000, index, np.int32)
    return made


def fill(indices: range, version: int = 0, seal: bool = True, **more: Any) -> None:
    write(NOBODY, indices, version=version, seal=seal, **more)


def note() -> None:
    """A longer dataset, of which the last sample failed."""
    with closing(edcache.reader.Reader(PATH, allow_partial=True)) as reader:
        head = reader.session.head
    with closing(Appender.open(PATH, head, mode="a")) as appender:
        failure = Failure(11, True, "ValueError", "no such file", "")
        appender.amend(length=12, failed=[failure.to_json()])


def add_large() -> None:
    with CacheWriter(PATH, "a", **OPTIONS) as w:
        w.write(6, large(6))


def relabel(name: str) -> None:
    with closing(CachedDataset.from_cache(PATH)) as cache:
        cache.add_labels(name, [f"{name} {index}" for index in range(len(cache))])


def drop(name: str) -> None:
    with closing(CachedDataset.from_cache(PATH)) as cache:
        cache.drop_labels(name)


KINDS: dict[str, list[Callable[[], None]]] = {
    "sealed": [lambda: fill(range(6), seal=False), lambda: fill(range(6, 9))],
    "unsealed": [
        lambda: fill(range(3), seal=False),
        lambda: fill(range(3, 6), seal=False),
        note,
        lambda: fill(range(3, 6), 1, seal=False),
        lambda: fill(range(6, 9), 1, seal=False),
    ],
    "compressed": [lambda: fill(range(6), compression="zstd")],
    "grown": [lambda: fill(range(6)), note, lambda: fill(range(4, 11), 1)],
    "growing": [lambda: fill(range(6)), lambda: fill(range(6, 9), seal=False)],
    "relabelled": [lambda: fill(range(6)), lambda: relabel("w"), lambda: relabel("z"), lambda: drop("w")],
    "relabelled, grown": [
        lambda: fill(range(6)),
        lambda: relabel("w"),
        lambda: drop("w"),
        lambda: fill(range(6, 9)),
        lambda: drop("y"),
    ],
    "large": [lambda: fill(range(6), seal=False), add_large],
}


@pytest.fixture(autouse=True)
def small_windows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge archives of some kinds in windows of 4 rows, into columns of batches of 4."""
    if name in ("sealed", "compressed", "relabelled"):
        monkeypatch.setattr(contents, "WINDOW", 4)
        monkeypatch.setattr(columns, "BATCH_ROWS", 4)


@cache
def made(name: str) -> Kind:
    """The archive of a kind. All that its parts could be is tried elsewhere (test_crash_states.py)."""
    disk, states = MemoryDisk(), []
    with replace_system(disk):
        for step in KINDS[name]:
            step()
            states.append(state(CachedDataset.from_cache(PATH, allow_partial=True)))
        assert not edcache.verify(PATH).problems
    assert not any(isinstance(version, str) for version in states[-1].samples.values())
    return Kind(disk.files()[PATH], states)


def state(cache: CachedDataset) -> State:
    with closing(cache):
        table = cache.labels.table
        labels = {name: table.column(name).to_pylist() for name in table.column_names}
        if "y" in labels:
            present(cache)
            large = [index for index, y in enumerate(labels["y"]) if y is not None and y >= 3]
            assert cache.filter("y >= 3").indices.tolist() == large
        return State(
            cache._archive.reader.session.sealed,
            len(cache),
            {i: read(cache, i) for i in available(cache).indices.tolist()},
            labels,
        )


def read(cache: Any, index: int) -> Any:
    """The version of a sample, or the name of the error that reading it raises."""
    try:
        found = cache[index]
    except EdcacheError as error:
        return type(error).__name__
    if len(found["x"]) == 17_000:
        assert np.all(found["x"] == index)
        found["x"] = sample(index)["x"]
    return version_of(found, index)


def wrong(found: State, kind: Kind, is_cut: bool) -> Iterator[str]:
    """What a reader tells that it must not. is_cut: it may be what the file was once."""
    newest = kind.states[-1]
    known: dict[int, set[Any]] = {}
    for one in kind.states:
        for index, version in one.samples.items():
            known.setdefault(index, set()).add(version)
    for index, version in found.samples.items():
        if not isinstance(version, str) and version not in known.get(index, ()):
            yield f"sample {index} has version {version}"
    if not found.sealed:
        return
    if not any(is_like(found, one) for one in (kind.states if is_cut else [newest])):
        yield f"sealed, and {found}"


def is_like(found: State, expected: State) -> bool:
    """True if an archive has what it should have, or says that it is damaged."""
    samples = {index: found.samples.get(index) for index in expected.samples}
    differ = {samples[k] for k in samples if samples[k] != expected.samples[k]}
    return (
        (found.sealed, found.length, found.labels) == (expected.sealed, expected.length, expected.labels)
        and found.samples.keys() == expected.samples.keys()
        and differ <= {"CorruptRecordError"}
    )


def reads(data: bytes, maps: bool = False, rebooted: bool = False) -> State | None:
    """What a reader finds; None after an error."""
    disk = (MappedDisk if maps else MemoryDisk)({PATH: data}, rebooted)
    with replace_system(disk):
        try:
            found = state(CachedDataset.from_cache(PATH, allow_partial=True))
        except EdcacheError:
            found = None
        with suppress(EdcacheError), edcache.numpy.open(PATH, allow_partial=True) as arrays:
            assert found is None or {i: read(arrays, i) for i in found.samples} == found.samples
        assert not disk.open_files
    return found


def verified(data: bytes) -> Any:
    """What `verify` tells; None after an error."""
    with replace_system(MemoryDisk({PATH: data})):
        try:
            return edcache.verify(PATH)
        except EdcacheError:
            return None


def goes_on(data: bytes, rebooted: bool) -> State | None:
    """What is there once a writer has appended a sample and sealed; None if it was told of damage."""
    disk = MemoryDisk({PATH: data}, rebooted)
    with replace_system(disk):
        try:
            w = CacheWriter(PATH, "a", **OPTIONS)
            try:
                w.write(12, sample(12, NEW))
                w.seal()
            finally:
                w._appender.close()
            return state(CachedDataset.from_cache(PATH, allow_partial=True))
        except EdcacheError:
            assert not disk.open_files
            return None


def lost(before: State | None, found: State, kind: Kind) -> Iterator[str]:
    """What a writer has lost that went on: of what a reader had before it; of all, if a reader was told of damage.

    It may have the newest of a sample: in another boot it recovers records of a chunk that was cut.
    """
    newest = kind.states[-1]
    expected = newest if before is None else before
    for index, version in ({12: NEW} | expected.samples).items():
        if not isinstance(version, str) and found.samples.get(index) not in (
            version,
            newest.samples.get(index),
        ):
            yield f"went on, and sample {index} has version {found.samples.get(index)}, not {version}"
    if found.samples.keys() - newest.samples.keys() - {12}:
        yield f"went on, and there are samples {list(found.samples)}"
    if newest.labels and found.labels.keys() != newest.labels.keys():
        yield f"went on, and the labels are {list(found.labels)}, not {list(newest.labels)}"
    for name, values in newest.labels.items():
        own = found.labels.get(name, [])
        differ = [k for k in found.samples if k < min(len(values), len(own)) and own[k] != values[k]]
        if differ:
            yield f"went on, and the label {name} of {differ} is {own}, not {values}"


def chosen(name: str, data: bytes, part: int, parts: int) -> list[int]:
    """An eighth of the bytes of a part at scale 1, all of them from scale 8 on, 30 at the least, rising.

    Of padding, and of the large record, a few stand for all.
    """
    rng, size = seeded(f"{name} {part}"), len(data)
    places = []
    for offset in range(part * size // parts, (part + 1) * size // parts):
        near = data[max(0, offset - 32) : offset + 32]
        if len(set(near)) > 2 or rng.random() < 0.01:
            places.append(offset)
    return sorted(rng.sample(places, min(len(places), scaled(len(places) // 8, 30))))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", KINDS)
def test_every_flipped_bit_is_found_and_never_read(name: str, part: int, tally: Any) -> None:
    kind, problems, rng = made(name), list[str](), seeded(f"bits {name} {part}")
    data, whole = kind.data, verified(kind.data)
    offsets = chosen(f"flips {name}", data, part, PARTS)
    for offset in offsets:
        bit = 1 << rng.randrange(8)
        changed = flipped(data, offset, bit)
        told = list(read_wrong(changed, kind, rng.random() < 0.5, is_cut=False))
        rebooted = rng.random() < 0.5
        found = goes_on(changed, rebooted)
        told += [] if found is None else lost(reads(changed, rebooted=rebooted), found, kind)
        report = verified(changed)
        if report is not None and not report.problems and report.chunks == whole.chunks:
            told.append("verify says sound")
        problems += [f"byte {offset}, bit {bit}: {what}" for what in told]
    assert not problems, "\n".join([f"{len(problems)} of {len(offsets)}", *problems[:20]])
    tally("flipped bits", len(offsets))


def read_wrong(data: bytes, kind: Kind, maps: bool, is_cut: bool) -> Iterator[str]:
    found = reads(data, maps)
    yield from wrong(found, kind, is_cut) if found is not None else ()


@pytest.mark.parametrize("name", KINDS)
def test_every_shorter_file_is_found_or_is_what_it_was_once(name: str, tally: Any) -> None:
    """Cut at an old seal, or between entries, it is an archive that a killed writer left: that is sound."""
    kind, problems, rng = made(name), list[str](), seeded(f"maps {name}")
    lengths = chosen(f"lengths {name}", kind.data, 0, 1)
    for length in lengths:
        cut = kind.data[:length]
        told = list(read_wrong(cut, kind, rng.random() < 0.5, is_cut=True))
        rebooted = rng.random() < 0.5
        found, before = goes_on(cut, rebooted), reads(cut, rebooted=rebooted)
        if found is not None and before is not None:
            told += [one for one in lost(before, found, kind) if "version" in one]
        report = verified(cut)
        if report is not None and report.sealed and report.sound and b"edcache 3 root.json" not in cut[-80:]:
            told.append(f"verify says sealed and sound: {report}")
        problems += [f"cut to {length}: {what}" for what in told]
    assert not problems, "\n".join([f"{len(problems)} of {len(lengths)}", *problems[:20]])
    tally("truncations", len(lengths))


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("unsealed", "growing")])
def test_garbage_behind_a_sealed_archive_is_not_read_and_the_next_writer_cuts_it(name: str) -> None:
    """But for an entry of the archive itself: how it came there nobody knows."""
    kind, rng = made(name), seeded(f"garbage {name}")
    lengths = [1, 2, 3, 4, 21, 22, 23, 97, 191, 192, 193, 4095, 4096, 4097, 5000]
    for length in (*lengths, *(rng.randrange(1, 5001) for _ in range(25))):
        for garbage in (rng.randbytes(length), bytes(length), kind.data[-length:], kind.data[:length]):
            data = kind.data + garbage
            found = reads(data, maps=False)
            if any(parse_header(garbage[at : at + MAX_HEADER_NBYTES]) for at in range(0, length, 1)):
                assert goes_on(data, rebooted=False) is None
                continue
            assert found is not None
            assert found.samples == kind.states[-1].samples
            assert not list(wrong(found, kind, is_cut=False))
            assert verified(data) is not None
            disk = MemoryDisk({PATH: data})
            with replace_system(disk), CacheWriter(PATH, "a", sync="never"):
                pass
            assert disk.files()[PATH] == kind.data
