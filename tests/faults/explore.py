"""Every state that a crash may leave of a recorded journal.

A killed process leaves what it wrote: any number of whole operations, and any part of the next one.

A power cut leaves what was synced, and of all else anything: each sector of 512 bytes as it was or as any
write since the last sync made it, torn in the middle, or, where the file grew, zeros or what was on the disk
before; any size that the file had since; any number of the new names. Nothing is assumed of the order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from disk import Inode

PAGE = 4096
SECTOR = 512
GARBAGE = random.Random("what was on the disk before").randbytes(SECTOR)

Files = dict[str, bytes]


class State(NamedTuple):
    """position: how many operations had ended. synced: of how many it is certain that they are on the disk.
    rebooted: whether the machine started again since the file was last written."""

    position: int
    synced: int
    files: Files
    rebooted: bool


class _File:
    """One inode: what it holds, and what may be found of it after a power cut."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.synced_at = 0
        self.sync(0)

    def sync(self, position: int) -> None:
        self.synced_at = position
        self.synced = bytes(self.data)
        self.sizes = [len(self.data)]
        self.versions: dict[int, list[bytes]] = {}
        self.newest: dict[int, int] = {}  # sector -> which of its versions was written last

    def write(self, offset: int, data: bytes) -> None:
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self._note(offset, offset + len(data))

    def truncate(self, size: int) -> None:
        before = len(self.data)
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self._note(min(before, size), max(before, size))

    @property
    def is_dirty(self) -> bool:
        return len(self.sizes) > 1

    def _note(self, start: int, end: int) -> None:
        self.sizes.append(len(self.data))
        for sector in range(start // SECTOR, -(-end // SECTOR)):
            at = sector * SECTOR
            now = bytes(self.data[at : at + SECTOR]).ljust(SECTOR, b"\0")
            known = self.versions.setdefault(sector, self._before(sector))
            if now not in known:
                torn = now[:100] + known[0][100:]
                known += [now] if torn in (now, *known) else [now, torn]
            self.newest[sector] = known.index(now)

    def _before(self, sector: int) -> list[bytes]:
        at = sector * SECTOR
        synced = self.synced[at : at + SECTOR]
        if len(synced) == SECTOR:
            return [synced]
        # Behind the old end: nothing, or a block that held something else.
        return [synced.ljust(SECTOR, b"\0"), synced + GARBAGE[len(synced) :]]

    def images(self, limit: int, rng: random.Random) -> Iterator[bytes]:
        """What may be found of it: all of it where that is at most `limit`, else so many."""
        sectors = sorted(self.versions)
        counts = [len(self.versions[sector]) for sector in sectors]
        newest = [self.newest[sector] for sector in sectors]
        sizes = sorted({*self.sizes, *self._sizes_between(rng)})
        total = len(sizes)
        for count in counts:
            total *= count
        if total <= limit:
            chosen: Iterable[tuple[int, ...]] = itertools.product(*map(range, counts))
            yield from (self._image(sectors, pick, size) for pick in chosen for size in sizes)
            return
        largest = max(sizes)
        yield from (self._image(sectors, pick, largest) for pick in _regular(counts, newest))
        for _ in range(limit):
            likely = rng.choice((0.05, 0.3, 0.5, 0.7, 0.95))
            often = rng.choice((0.03, 0.3))
            pick = tuple(
                rng.randrange(n) if rng.random() < often else (new if rng.random() < likely else 0)
                for n, new in zip(counts, newest, strict=True)
            )
            yield self._image(sectors, pick, largest if rng.random() < 0.7 else rng.choice(sizes))

    def _sizes_between(self, rng: random.Random) -> list[int]:
        low, high = min(self.sizes), max(self.sizes)
        return [rng.randrange(low, high + 1, 1 if rng.random() < 0.5 else SECTOR) for _ in range(4)]

    def _image(self, sectors: list[int], pick: tuple[int, ...], size: int) -> bytes:
        data = bytearray(self.synced)
        if len(data) < size:
            data.extend(bytes(size - len(data)))
        for sector, version in zip(sectors, pick, strict=True):
            at = sector * SECTOR
            if at < size:
                data[at : at + SECTOR] = self.versions[sector][version]
        return bytes(data[:size])


def _regular(counts: list[int], new: list[int]) -> Iterator[tuple[int, ...]]:
    """Nothing written, all written, all but one, only one, the first ones, the last ones."""
    old = [0] * len(counts)
    yield tuple(old)
    yield tuple(new)
    for k in range(len(counts)):
        yield (*new[:k], *old[k:])
        yield (*old[:k], *new[k:])
        for version in range(counts[k]):
            yield (*new[:k], version, *new[k + 1 :])
            yield (*old[:k], version, *old[k + 1 :])


class _Disk:
    """A journal, applied operation by operation."""

    def __init__(self, base: Files) -> None:
        self.inodes: dict[Any, _File] = {}
        self.names: dict[str, _File] = {path: _File(data) for path, data in base.items()}
        self.first = list(self.names.values())
        self.known = dict(self.names)  # the names that a power cut leaves
        self.pending: list[dict[str, _File]] = []  # what they would be with the first one, two, ... changes

    def apply(self, operation: tuple[Any, ...], position: int) -> None:
        name, *arguments = operation
        if name == "create":
            path, inode = arguments
            self.inodes[inode] = self.names[path] = _File(b"")
            self.pending.append(dict(self.names))
        elif name == "replace":
            source, target = arguments
            self.names[target] = self.names.pop(source)
            self.pending.append(dict(self.names))
        elif name == "remove":
            del self.names[arguments[0]]
            self.pending.append(dict(self.names))
        elif name == "write":
            self._file(arguments[0]).write(*arguments[1:])
        elif name == "truncate":
            self._file(arguments[0]).truncate(arguments[1])
        elif name == "sync":
            self._file(arguments[0]).sync(position + 1)
        elif name == "sync_directory":
            self.known, self.pending = dict(self.names), []

    def _file(self, inode: Inode) -> _File:
        if inode not in self.inodes:
            # It was there before: inodes of the base are numbered in the order of its names.
            self.inodes[inode] = self.first[inode.number]
        return self.inodes[inode]

    def files(self) -> Files:
        return {path: bytes(file.data) for path, file in self.names.items()}


def killed(base: Files, journal: list[tuple[Any, ...]], rebooted: bool = False) -> Iterator[State]:
    """What a killed process leaves: every prefix, and parts of the next write.

    rebooted: whether the machine had started since the last write before the journal.
    """
    disk = _Disk(base)
    for position, operation in enumerate([*journal, ("end",)]):
        yield State(position, position, disk.files(), rebooted)
        if operation[0] in ("create", "write", "truncate"):
            rebooted = False
        if operation[0] == "write":
            yield from (State(position, position, files, False) for files in _cut(disk, operation))
        disk.apply(operation, position)


def _cut(disk: _Disk, operation: tuple[Any, ...]) -> Iterator[Files]:
    _, inode, offset, data = operation
    if offset and offset // PAGE == (offset + len(data) - 1) // PAGE:
        return  # the kernel copies what lies in one page between two looks at signals: a header is written whole
    file, files = disk._file(inode), disk.files()
    paths = [path for path, named in disk.names.items() if named is file]
    grown = bytes(file.data).ljust(offset, b"\0")
    # A file that ends elsewhere is another case for every reader.
    for nbytes in sorted({*range(1, len(data), 1 + len(data) // 20), len(data) - 1} - {0}):
        part = grown[:offset] + data[:nbytes] + grown[offset + nbytes :]
        yield files | dict.fromkeys(paths, part)


def powerless(
    base: Files, journal: list[tuple[Any, ...]], path: str, limit: int, rng: random.Random
) -> Iterator[State]:
    """What a power cut leaves, at most about `limit` states for each stretch between two syncs.

    The moment before a sync has all that the moments before it have: what is not synced may be absent.
    `synced` is of the file that `path` leads to for certain.
    """
    disk = _Disk(base)
    for position, operation in enumerate([*journal, ("end",)]):
        if operation[0] in ("sync", "sync_directory", "end"):
            certain = disk.known.get(path)
            synced = 0 if certain is None else certain.synced_at
            for files in _powerless(disk, limit, rng):
                yield State(position, synced, files, True)
        disk.apply(operation, position)


def _powerless(disk: _Disk, limit: int, rng: random.Random) -> Iterator[Files]:
    namings = [disk.known, *disk.pending]
    for names in namings:
        files = {path: file.synced for path, file in names.items()}
        changing = [path for path, file in names.items() if file.is_dirty]
        assert len(changing) <= 1, "two files at once have writes that are not synced"
        if not changing:
            yield files
        for path in changing:
            for image in names[path].images(limit // len(namings), rng):
                yield files | {path: image}
