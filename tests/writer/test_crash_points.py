"""Whatever operation is the last one or the failing one, an archive stays whole up to there.

The operations of a scenario are recorded once, through replace_system. Then every prefix of
them is replayed into a file, which is what a killed process leaves, and every single one of them is
made to fail.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scale import thinned
from systems import Full, Rebooted, System, replace_system

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError
from edcache.errors import (
    ArchiveNotFoundError,
    CorruptArchiveError,
    CorruptRecordError,
    MissingSampleError,
    StorageError,
)

OPTIONS: dict[str, Any] = {"in_memory_keys": ["y"], "publish_seconds": None, "uuid": bytes(range(16))}


def sample(i: int) -> dict[str, Any]:
    return {"x": np.full(40, i, np.int32), "y": i, "text": f"sample {i}" * (1 + i % 3)}


def same(found: Any, i: int) -> bool:
    expected = sample(i)
    return (
        list(found) == list(expected)
        and np.array_equal(found["x"], expected["x"])
        and (found["y"], found["text"]) == (i, expected["text"])
    )


class Recorder(System):
    """Notes what changes the file, and the publications that were complete when a call returned."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, ...]] = []

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        done = super().pwrite(fd, data, offset)
        self.operations.append(("pwrite", bytes(data[:done]), offset))
        return done

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self.operations.append(("truncate", size))

    def sync(self, fd: int) -> None:
        self.operations.append(("sync",))


def create(path: Path, published: Callable[[int], None]) -> None:
    """Three appends and a seal."""
    with CacheWriter(path, "a", **OPTIONS) as w:
        for i in range(9):
            w.append(sample(i))
            if i % 3 == 2:
                w.flush()
                published(i + 1)


def grow(path: Path, published: Callable[[int], None]) -> None:
    """Two appends to what is there, and a seal."""
    with CacheWriter(path, "a", publish_seconds=None) as w:
        begun = w.next_index
        for i in range(begun, begun + 6):
            w.append(sample(i))
            if i % 3 == 2:
                w.flush()
                published(i + 1)


def compressed(path: Path, published: Callable[[int], None]) -> None:
    """Two compressed chunks and a seal."""
    with CacheWriter(path, "a", compression="zstd", chunk_size=10, **OPTIONS) as w:
        for i in range(20):
            w.append(sample(i))
            if i % 10 == 9:
                published(i + 1)


def by_chunk(path: Path, published: Callable[[int], None]) -> None:
    """Every chunk synced."""
    with CacheWriter(path, "a", sync="chunk", chunk_size=3, **OPTIONS) as w:
        for i in range(6):
            w.append(sample(i))
            if i % 3 == 2:
                published(i + 1)


def relabel(path: Path, published: Callable[[int], None]) -> None:
    """A column added, values of one changed, and a column dropped and added again, in one group each."""
    with CachedDataset.from_cache(path) as cache:
        count = len(cache)
        cache.add_labels("z", [f"z{i}" for i in range(count)])
        cache.add_labels("y", {0: 0, 5: 5})
        cache.drop_labels("z").add_labels("z", [f"z{i}" for i in range(count)])
        published(count)


SCENARIOS: dict[str, list[Callable[[Path, Callable[[int], None]], None]]] = {
    "create": [create],
    "grow": [create, grow],
    "grow twice": [create, grow, grow],
    "compressed": [compressed],
    "sync each chunk": [by_chunk],
    "relabel": [create, relabel],
    "grow what was relabelled": [create, relabel, grow],
}


@pytest.fixture(params=thinned(SCENARIOS, 3))
def scenario(request: pytest.FixtureRequest) -> str:
    return request.param


def prepare(scenario: str, path: Path) -> int:
    """Run all steps of a scenario but its last; how many samples that made."""
    for step in SCENARIOS[scenario][:-1]:
        step(path, lambda count: None)
    return readable(path) if path.exists() else 0


def readable(path: Path) -> int:
    """How many samples read, each compared with what was written; they are the first ones."""
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert cache.missing.size == 0
    for i in range(len(cache)):
        assert same(cache[i], i), i
    if len(cache):
        assert cache.labels["y"].tolist() == list(range(len(cache)))
    if "z" in cache.labels:
        assert cache.labels.to_list("z") == [f"z{i}" if i < 9 else None for i in range(len(cache))]
    count = len(cache)
    cache.close()
    return count


def continues(path: Path, count: int) -> None:
    """A writer goes on behind the samples that are there, and the result is whole."""
    with CacheWriter(path, "a", in_memory_keys=["y"], publish_seconds=None, sync="never") as w:
        assert w.next_index == count
        for i in range(count, count + 4):
            w.append(sample(i))
    assert readable(path) == count + 4
    report = edcache.verify(path)
    assert report.problems == []
    assert report.sealed


# --- (a) killed after any operation ---


def replay(path: Path, base: bytes, operations: list[tuple[Any, ...]]) -> None:
    data = bytearray(base)
    for name, *arguments in operations:
        if name == "truncate":
            size = arguments[0]
            data = data[:size].ljust(size, b"\0")
        elif name == "pwrite":
            written, offset = arguments
            data = data.ljust(offset, b"\0")
            data[offset : offset + len(written)] = written
    path.write_bytes(data)


def states(operations: list[tuple[Any, ...]]) -> Iterator[tuple[int, str, list[tuple[Any, ...]]]]:
    """Every prefix, and every prefix with its last write cut short: (whole operations, name, operations)."""
    for n in range(len(operations) + 1):
        yield n, f"{n} operations", operations[:n]
        if n < len(operations) and operations[n][0] == "pwrite":
            _, data, offset = operations[n]
            for cut in sorted({1, 29, 64, 191, len(data) // 2, len(data) - 1} & set(range(1, len(data)))):
                yield n, f"{n} operations and {cut} bytes", [*operations[:n], ("pwrite", data[:cut], offset)]


def test_a_process_killed_after_any_operation_leaves_everything_published(
    scenario: str, tmp_path: Path
) -> None:
    path = tmp_path / "recorded.zip"
    begun = prepare(scenario, path)
    base = path.read_bytes() if path.exists() else b""
    recorder = Recorder()
    publications = [(0, begun)]
    with replace_system(recorder):
        SCENARIOS[scenario][-1](path, lambda count: publications.append((len(recorder.operations), count)))
    total = readable(path)
    assert recorder.operations, "nothing was recorded"

    problems = []
    copy = tmp_path / "killed.zip"
    for whole, name, operations in states(recorder.operations):
        replay(copy, base, operations)
        expected = max(count for after, count in publications if after <= whole)
        try:
            if told := edcache.verify(copy).problems:
                problems.append(f"{name}: verify: {told}")
            found = readable(copy)
            if not expected <= found <= total:
                problems.append(f"{name}: {found} samples, {expected} were published")
        except CorruptArchiveError as error:
            found = 0
            if expected or copy.stat().st_size >= 4096:
                problems.append(f"{name}: reading: {error}")
        except Exception as error:
            problems.append(f"{name}: reading: {error!r}")
            continue
        try:
            continues(copy, found)
        except Exception as error:
            problems.append(f"{name}: continuing: {error!r}")
    assert not problems, "\n".join(problems)


def test_what_is_sealed_is_never_written_again(scenario: str, tmp_path: Path) -> None:
    path = tmp_path / "recorded.zip"
    prepare(scenario, path)
    size = path.stat().st_size if path.exists() else 0
    recorder = Recorder()
    with replace_system(recorder):
        SCENARIOS[scenario][-1](path, lambda count: None)
    ends: list[int] = []
    for name, *arguments in recorder.operations:
        if name == "pwrite":
            data, offset = arguments
            assert offset >= size
            assert all(offset >= end or offset + len(data) <= end for end in ends)
        elif name == "truncate":
            assert arguments[0] >= size


def test_a_header_is_written_after_its_payload(tmp_path: Path) -> None:
    recorder = Recorder()
    with replace_system(recorder):
        create(tmp_path / "order.zip", lambda count: None)
    writes = [(op[2], op[1]) for op in recorder.operations if op[0] == "pwrite"]
    headers = [
        k for k, (offset, data) in enumerate(writes) if data[:4] == b"PK\x03\x04" and b"chunks/" in data[:64]
    ]
    assert len(headers) == 3
    for k in headers:
        assert len(writes[k][1]) == 192
        assert writes[k - 1][0] > writes[k][0]


# --- (b) any one operation fails ---


class Failing(System):
    """Fails the n-th call, once; a short write does half of it and then succeeds."""

    def __init__(self, n: int, error: int | None) -> None:
        self.n, self.error = n, error
        self.calls = 0
        self.failed: str | None = None

    def _count(self, kind: str) -> bool:
        self.calls += 1
        if self.calls != self.n:
            return False
        self.failed = kind
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return True

    def open(self, path: str, flags: int, mode: int) -> int:
        self._count("open")
        return super().open(path, flags, mode)

    def close(self, fd: int) -> None:
        super().close(fd)
        self._count("close")

    def stat(self, fd: int) -> os.stat_result:
        self._count("stat")
        return super().stat(fd)

    def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        short = self._count("pread")
        return super().pread(fd, max(1, nbytes // 2) if short else nbytes, offset)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        try:
            short = self._count("pwrite")
        except OSError:
            super().pwrite(fd, data[: len(data) // 2], offset)  # a full disk takes a part first
            raise
        return super().pwrite(fd, data[: max(1, len(data) // 2)] if short else data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._count("truncate")
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._count("sync")

    def sync_directory(self, path: str) -> None:
        self._count("sync_directory")

    def lock(self, fd: int, start: int, length: int, wait: bool) -> None:
        self._count("lock")
        super().lock(fd, start, length, wait)

    def unlock(self, fd: int, start: int, length: int) -> None:
        self._count("unlock")
        super().unlock(fd, start, length)


def left_open(path: Path) -> list[int]:
    """The descriptors of files whose names begin with `path`, closed so that the next case begins clean."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(path)):
                os.close(fd)
                found.append(fd)
    return found


@pytest.mark.full
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors through Linux's /proc")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, None], ids=["ENOSPC", "EIO", "short"])
def test_any_one_failing_operation_is_one_error_and_loses_nothing(
    scenario: str, error: int | None, tmp_path: Path
) -> None:
    original = tmp_path / "original.zip"
    begun = prepare(scenario, original)
    base = original.read_bytes() if original.exists() else None
    problems: list[str] = []
    n = 0
    while True:
        n += 1
        path = tmp_path / f"failing-{n}.zip"
        if base is not None:
            path.write_bytes(base)
        system = Failing(n, error)
        published = [begun]
        raised: BaseException | None = None
        try:
            with replace_system(system):
                SCENARIOS[scenario][-1](path, published.append)
        except BaseException as caught:
            raised = caught
        if system.failed is None:
            assert raised is None
            break
        name = f"operation {n}, {system.failed}"
        if raised is not None and not isinstance(raised, StorageError):
            problems.append(f"{name}: {raised!r}")
        if error is None and raised is not None:
            problems.append(f"{name}: a short call is no error: {raised!r}")
        raised = None
        problems += [f"{name}: {what}" for what in _aftermath(path, max(published))]
        if left_open(path):
            problems.append(f"{name}: left a descriptor open")
        path.unlink(missing_ok=True)
    assert n > 10
    assert not problems, "\n".join(problems)


def _aftermath(path: Path, published: int) -> Iterator[str]:
    """What is wrong with an archive after a failed operation."""
    found = 0
    try:
        found = readable(path)
        if found < published:
            yield f"{found} samples, {published} were published"
        if told := edcache.verify(path).problems:
            yield f"verify: {told}"
    except (ArchiveNotFoundError, CorruptArchiveError) as error:
        if published or (path.exists() and path.stat().st_size >= 4096):
            yield f"reading: {error}"
    except Exception as error:
        yield f"reading: {error!r}"
    try:
        continues(path, found)
    except Exception as error:
        yield f"continuing: {error!r}"


def test_a_failed_append_leaves_a_sealed_archive_sealed(tmp_path: Path) -> None:
    """The disk is full at the first write of the growth: the zip directory must still be the end."""
    path = tmp_path / "sealed.zip"
    create(path, lambda count: None)
    before = path.read_bytes()
    w = CacheWriter(path, "a")
    w.append(sample(9))

    with (
        replace_system(Full()),
        pytest.raises(StorageError, match="No space left on device") as raised,
    ):
        w.flush()
    assert raised.value.errno == errno.ENOSPC
    assert path.read_bytes() == before
    with pytest.raises(StorageError, match="an append was broken off"):
        w.abort()
    assert path.read_bytes() == before
    assert readable(path) == 9


def test_samples_of_a_failed_flush_are_not_dropped_in_silence(tmp_path: Path) -> None:
    """After a full disk was reported and space was made, closing gives all samples or an error."""
    path = tmp_path / "retry.zip"
    w = CacheWriter(path, **OPTIONS)
    for i in range(3):
        w.append(sample(i))

    with replace_system(Full()), pytest.raises(StorageError):
        w.flush()
    try:
        w.append(sample(3))
        w.close()
    except EdcacheError:
        return
    assert readable(path) == 4


def test_ctrl_c_amid_an_append_costs_that_chunk_and_the_next_fill_computes_it(tmp_path: Path) -> None:
    """The chunk is half written when it comes."""
    path = tmp_path / "interrupted.zip"

    class Interrupted(System):
        left = 4  # the head, and two of the writes of the first chunk

        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().pwrite(fd, data, offset)

    source = [sample(i) for i in range(30)]
    with replace_system(Interrupted()), pytest.raises(KeyboardInterrupt):
        CachedDataset(source, path, in_memory_keys=["y"], chunk_size=20)
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert cache.missing.tolist() == list(range(30))
    with CachedDataset(source, path, in_memory_keys=["y"], chunk_size=20) as again:
        assert again.complete


@pytest.mark.full
def test_an_archive_that_is_being_replaced_is_unlocked_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "replaced.zip"
    create(path, lambda count: None)
    before = path.read_bytes()
    problems = []
    for n in range(1, 80):
        system = Failing(n, errno.EIO)
        raised = None
        try:
            with replace_system(system), CacheWriter(path, "w", **OPTIONS) as w:
                w.append(sample(0))
        except EdcacheError as caught:
            raised = str(caught)
        except Exception as caught:
            problems.append(f"operation {n}, {system.failed}: {caught!r}")
        if system.failed is None:
            break
        try:
            assert readable(path) in (1, 9)
            with CacheWriter(path, "w", **OPTIONS) as w:
                w.append(sample(0))
            assert readable(path) == 1
        except Exception as error:
            problems.append(f"operation {n}, {system.failed} ({raised}): again: {error!r}")
        if left_open(path):
            problems.append(f"operation {n}, {system.failed} ({raised}): left a descriptor open")
        path.write_bytes(before)
    assert system.failed is None
    assert not problems, "\n".join(problems)


# --- power cuts: a header is there, the payload behind it is not ---


def _without_payload(path: Path, kind: int, nth: int = 0, *, keeps_table: bool = False) -> None:
    import reference

    entries = [e for e in reference.entries(path) if e.fields["kind"] == kind]
    fields = entries[nth].fields
    data = bytearray(path.read_bytes())
    start = fields["offset"] + fields["nbytes"] + (fields["table_nbytes"] if keeps_table else 0)
    data[start : fields["next"]] = bytes(fields["next"] - start)
    path.write_bytes(data)


def unsealed(path: Path, count: int = 9) -> list[Any]:
    source = [sample(i) for i in range(count)]
    w = CacheWriter(path, chunk_size=3, **OPTIONS)
    w.extend(source)
    w.abort()
    return source


@pytest.mark.parametrize("nth", [0, 1, 2])
@pytest.mark.parametrize("keeps_table", [False, True])
def test_a_file_ends_before_a_chunk_that_a_power_cut_took(
    tmp_path: Path, nth: int, keeps_table: bool
) -> None:
    path = tmp_path / "cut.zip"
    source = unsealed(path)
    _without_payload(path, 1, nth, keeps_table=keeps_table)
    lost = range(3 * nth, 3 * nth + 3)
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert all(same(cache[i], i) for i in range(len(cache)) if i not in lost)
    for i in set(lost) & set(range(len(cache))):
        with pytest.raises((MissingSampleError, CorruptRecordError)):
            cache[i]
    with replace_system(Rebooted()):
        w = CacheWriter(path, "a", publish_seconds=None)
        assert w.next_index == 3 * nth
        w.abort()
    # A writer after it finds nothing to recover, and the same end.
    with CacheWriter(path, "a", publish_seconds=None) as w:
        assert w.next_index == 3 * nth
        w.extend(source[3 * nth :])
    assert readable(path) == 9
    grow(path, lambda count: None)
    assert readable(path) == 15
    assert edcache.verify(path).problems == []


def test_a_fill_computes_what_a_power_cut_took(tmp_path: Path) -> None:
    path = tmp_path / "cut.zip"
    source = unsealed(path, 10)
    _without_payload(path, 1, 1)
    with replace_system(Rebooted()):
        cache = CachedDataset(source, path, in_memory_keys=["y"], fingerprint=False)
    assert cache.complete
    assert readable(path) == 10


def test_what_was_synced_is_not_read_again_after_a_power_cut(tmp_path: Path) -> None:
    """Behind a seal only what is newer is checked, so that opening does not read a large archive."""
    path = tmp_path / "cut.zip"
    with CacheWriter(path, publish_seconds=None) as w:
        w.extend({"x": np.full(50_000, i)} for i in range(9))
    w = CacheWriter(path, "a", publish_seconds=None)
    w.append({"x": np.full(10, 9)})
    w.abort()

    class Watched(Rebooted):
        nbytes = 0

        def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
            self.nbytes += nbytes
            return super().pread(fd, nbytes, offset)

    with replace_system(Watched()) as system, CacheWriter(path, "a", publish_seconds=None) as w:
        assert w.next_index == 10
    assert system.nbytes < 300_000 < path.stat().st_size / 10


def test_a_note_lost_in_a_power_cut_does_not_end_the_archive(tmp_path: Path) -> None:
    from edcache.writer.appender import Appender

    path = tmp_path / "cut.zip"
    unsealed(path, 6)
    appender = Appender.open(path, edcache.reader.Reader(path, allow_partial=True).head, mode="a")
    appender.amend(length=6)
    appender.close()
    _without_payload(path, 2)
    with replace_system(Rebooted()):
        continues(path, 6)
