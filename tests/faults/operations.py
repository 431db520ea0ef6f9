"""Single operations that something breaks off: what is prepared, what is done, what must hold after it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from disk import MemoryDisk
from scenarios import FACTOR, OPTIONS, PATH, read_all, sample
from systems import current, replace_system

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError, format


def made(steps: Callable[[], Any], base: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """The files that some steps leave."""
    disk = MemoryDisk(base)
    with replace_system(disk):
        steps()
    return disk.files()


def _written(indices: range, seal: bool, **more: Any) -> None:
    w = CacheWriter(PATH, "a", chunk_size=3, **(OPTIONS | more))
    for index in indices:
        w.write(index, sample(index))
    w.flush()
    w.seal() if seal else None
    w._appender.close()


@dataclass(frozen=True)
class Operation:
    """base: the files. prepare: opens what `act` uses. certain: the samples that were published before.
    offered: those that the writer is given, which closing it must publish."""

    name: str
    base: dict[str, bytes]
    prepare: Callable[[], Any]
    act: Callable[[Any], Any]
    certain: range
    offered: range


def _writer(pending: range, **more: Any) -> Callable[[], Any]:
    def prepare() -> CacheWriter:
        w = CacheWriter(PATH, "a", **(OPTIONS | more))
        for index in pending:
            w.write(index, sample(index))
        return w

    return prepare


def _dataset() -> CachedDataset:
    cache = CachedDataset.from_cache(PATH, allow_partial=True)
    len(cache)
    return cache


def _labelled(cache: CachedDataset) -> None:
    cache.add_labels("z", [1 * FACTOR + index for index in range(6)])


def _outgrown(prepare: Callable[[], Any], files: dict[str, bytes]) -> Callable[[], Any]:
    """`prepare`, and then others publish what makes the files these."""

    def grown() -> Any:
        opened = prepare()
        disk = current()
        assert isinstance(disk, MemoryDisk)
        disk.names[PATH].data[:] = files[PATH]
        return opened

    return grown


def operations() -> Iterator[Operation]:
    nothing: dict[str, bytes] = {}
    six = made(lambda: _written(range(6), seal=False))
    sealed = made(lambda: _written(range(6), seal=True))
    torn = {PATH: six[PATH] + b"torn" * 1000}
    packed = made(lambda: _written(range(6), seal=True, compression="zstd"))
    more = range(6, 9)
    yield Operation("create", nothing, lambda: None, lambda _: _writer(range(0))(), range(0), range(0))
    yield Operation("open to append", six, lambda: None, lambda _: _writer(range(0))(), range(6), range(0))
    yield Operation("write", six, _writer(range(6, 8)), lambda w: w.write(8, sample(8)), range(6), more)
    yield Operation("append", six, _writer(more), CacheWriter.flush, range(6), more)
    yield Operation("append to a sealed one", sealed, _writer(more), CacheWriter.flush, range(6), more)
    yield Operation("append over a torn tail", torn, _writer(more), CacheWriter.flush, range(6), more)
    yield Operation("append compressed", packed, _writer(more), CacheWriter.flush, range(6), more)
    twelve = made(lambda: _written(range(6, 12), seal=True), six)
    fifteen = made(lambda: _written(range(9, 15), seal=False), six)
    behind = _outgrown(_writer(more), fifteen)
    yield Operation("append behind others", six, behind, CacheWriter.flush, range(6), more)
    yield Operation("seal", six, _writer(range(0)), CacheWriter.seal, range(6), range(0))
    yield Operation("append and seal", sealed, _writer(more), CacheWriter.seal, range(6), more)
    yield Operation("close", six, _writer(more), CacheWriter.close, range(6), more)
    yield Operation("abort", six, _writer(more), CacheWriter.abort, range(6), more)
    yield Operation("open to read", sealed, lambda: None, lambda _: _dataset(), range(6), range(0))
    yield Operation("read", sealed, _dataset, lambda cache: [cache[3], cache[5]], range(6), range(0))
    yield Operation("read a batch", packed, _dataset, lambda c: c.__getitems__([0, 3]), range(6), range(0))
    yield Operation("labels", six, _dataset, lambda cache: cache.labels["y"], range(6), range(0))
    yield Operation("label add", sealed, _dataset, _labelled, range(6), range(0))
    yield Operation("refresh", six, _outgrown(_dataset, twelve), CachedDataset.refresh, range(12), range(0))
    yield Operation("close a reader", sealed, _dataset, CachedDataset.close, range(6), range(0))


class Aftermath:
    """What must hold of an operation that was broken off."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation

    def of(self, disk: MemoryDisk, made: Any) -> Iterator[str]:
        """Problems. made: what `prepare` gave, or `act` returned."""
        append_locks = [lock for lock in disk.locked if lock[1] == format.LOCK_APPEND]
        if append_locks:
            yield "the append lock is held"
        # The user goes on: whatever was open is used again, and closed.
        self._is_told = False
        yield from self._go_on(made)
        yield from self._left_open(disk)
        files = disk.files()
        if not files and not self.operation.certain:
            return
        with replace_system(MemoryDisk(files)):
            found, problems = _sound(files)
        lost = [index for index in self.operation.certain if found.get(index) != 0]
        if isinstance(made, CacheWriter) and not self._is_told:
            lost += [index for index in self.operation.offered if found.get(index, 0) != 0]
        if lost:
            yield f"lost {lost}: {found}"
        yield from problems

    def _go_on(self, made: Any) -> Iterator[str]:
        if isinstance(made, CacheWriter):
            try:
                for index in self.operation.offered:
                    if self.operation.name == "write" and index == 8:
                        made.write(8, sample(8))
                made.close()
            except edcache.errors.ArchiveError as error:
                self._is_told = "an append was broken off" in str(error)
                if not self._is_told and self.operation.name not in ("close", "abort"):
                    yield "it closed itself"
        elif isinstance(made, CachedDataset):
            with suppress(edcache.errors.ArchiveError):
                if [int(made[k]["y"]) for k in range(6)] != list(range(6)):
                    yield "it reads other samples"
                made.refresh()
            made.close()

    def _left_open(self, disk: MemoryDisk) -> Iterator[str]:
        if disk.open_files:
            gc.collect()  # what an exception kept alive in a cycle
        if disk.open_files:
            yield f"{len(disk.open_files)} files are left open"
        if disk.locked:
            yield f"locks are left: {disk.locked}"


def _sound(files: dict[str, bytes]) -> tuple[dict[int, Any], list[str]]:
    try:
        found = read_all(PATH)
        CacheWriter(PATH, "a")._appender.close()  # cuts a torn tail
        return found, edcache.verify(PATH).problems
    except EdcacheError as error:
        # A head that was never finished.
        return {}, [] if len(files[PATH]) < 4096 else [str(error)]
