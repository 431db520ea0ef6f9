"""Every bit and every length of a small archive that holds every kind of entry.

`verify` finds all damage; plain reads give the original samples or a typed error.
"""

from __future__ import annotations

from typing import Any

import pytest
from disk import MemoryDisk
from edcache.format.tables import Failure
from outcomes import Outcomes
from scale import scaled, seeded
from scenarios import PATH, version_of
from systems import replace_system

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError, format
from edcache.writer.appender import Appender

pytestmark = [
    pytest.mark.full,
    pytest.mark.spread,
    # What is left of a damaged archive is right, or an error too.
    pytest.mark.filterwarnings("ignore:(?s).*read by what is left:edcache.errors.PartialArchiveWarning"),
]

PARTS = 8
COUNT = 10
ADDED = {0: 7}


def every_kind() -> bytes:
    """A head, chunks, an amendment, a superseded record, a failure, labels, a seal."""
    from scenarios import OPTIONS, sample

    disk = MemoryDisk()
    with replace_system(disk):
        w = CacheWriter(PATH, compression="zstd", chunk_size=8, **OPTIONS)
        for index in range(8):
            w.write(index, sample(index))
        w.abort()
        with Reading() as cache:
            appender = Appender.open(PATH, cache._reader.head, mode="a")
        failure = Failure(COUNT - 1, True, "ValueError", "no such file", "")
        appender.amend(length=COUNT, failed=[failure.to_json()])
        appender.close()
        with Reading() as cache:
            cache.add_labels("z", ADDED)
        w = CacheWriter(PATH, "a", publish_seconds=None)
        for index in range(7, COUNT - 1):
            w.write(index, sample(index))
        w.close()
        assert edcache.verify(PATH).sound
    data = disk.files()[PATH]
    head, cursor = format.read_head(lambda offset, nbytes: data[offset : offset + nbytes], PATH)
    kinds = {h.kind for h in format.walk(lambda o, n: data[o : o + n], len(data), head.uuid, cursor)}
    assert kinds == {1, 2, 3, 4, 5}
    assert len(data) >= 16 << 10
    return data


class Reading:
    """A dataset over the archive, closed at the end whatever happens."""

    def __enter__(self) -> CachedDataset:
        self.cache = CachedDataset.from_cache(PATH, allow_partial=True)
        return self.cache

    def __exit__(self, *error: object) -> None:
        self.cache.close()


def reads_wrong(disk: MemoryDisk) -> list[str]:
    """What a reader gets that it must not get."""
    found = []
    try:
        with Reading() as cache:
            if cache._reader.sealed and len(cache) != COUNT:
                found.append(f"{len(cache)} samples")
            for index in range(min(len(cache), COUNT)):
                try:
                    if version_of(cache[index], index) != 0:
                        found.append(f"sample {index} is another")
                except EdcacheError:
                    pass
            try:
                table = cache.labels.table
                labels = table.column("y").to_pylist()
                found += [f"label {label} of {i}" for i, label in enumerate(labels) if label not in (i, None)]
                added = table.column("z").to_pylist() if "z" in table.column_names else []
                found += [
                    f"added label {z} of {i}" for i, z in enumerate(added) if z not in (ADDED.get(i), None)
                ]
            except EdcacheError:
                pass
    except EdcacheError:
        pass
    if disk.open_files:
        found.append("left open")
    return found


def is_found() -> bool:
    """Whether `verify` sees that something is wrong."""
    try:
        return bool(edcache.verify(PATH).problems)
    except EdcacheError:
        return True


@pytest.fixture(scope="module")
def original() -> bytes:
    return every_kind()


def some(name: str, places: range) -> list[int]:
    """All of them, or at a scale below 1 so large a part of them, rising."""
    return sorted(seeded(name).sample(places, min(len(places), scaled(len(places)))))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_flipped_bit_is_found_and_never_read(original: bytes, part: int, tally: Any) -> None:
    wrong: list[str] = []
    size, reader = len(original), Outcomes(reads_wrong)
    offsets = some(f"flips {part}", range(part * size // PARTS, (part + 1) * size // PARTS))
    for offset in offsets:
        for bit in range(8):
            data = bytearray(original)
            data[offset] ^= 1 << bit
            files = {PATH: bytes(data)}
            wrong += [f"byte {offset}, bit {bit}: {what}" for what in reader.of(files, rebooted=False)[0]]
            with replace_system(MemoryDisk(files)):
                if not is_found():
                    wrong.append(f"byte {offset}, bit {bit}: verify says sound")
    assert not wrong, "\n".join([f"{len(wrong)} of {size * 8}", *wrong[:20]])
    tally("flipped bits", len(offsets) * 8)


@pytest.mark.parametrize("part", range(2))
def test_every_shorter_file_is_found_or_is_what_it_was_once(original: bytes, part: int, tally: Any) -> None:
    """Cut at an old seal, or between entries, it is an archive that a killed writer left: that is sound."""
    wrong: list[str] = []
    size = len(original)
    lengths = some(f"lengths {part}", range(part, size, 2))
    for length in lengths:
        disk = MemoryDisk({PATH: original[:length]})
        with replace_system(disk):
            wrong += [f"cut to {length}: {what}" for what in reads_wrong(disk) if "samples" not in what]
            try:
                report = edcache.verify(PATH)
            except EdcacheError:
                continue
            if report.sealed and report.sound and not original[:length].endswith(END):
                wrong.append(f"cut to {length}: verify says sealed and sound")
    assert not wrong, "\n".join([f"{len(wrong)} of {size}", *wrong[:20]])
    tally("truncations", len(lengths))


END = b"PK\5\6" + bytes(4) + b"\xff" * 12 + bytes(2)
