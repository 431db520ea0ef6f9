"""Real file systems that are shut down at any moment, without their journal, and mounted again.

What the promise of `sync=` called durable is there (the table in edcache/writer/appender.py), nothing is
wrong, and the next writer goes on with no manual step.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import scenarios
from processes import Child, Told
from scale import scaled, seeded
from scenarios import NOBODY, OPTIONS, RECOMPUTED, read_all, sample, write
from systems import HANGS, Rebooted, System, replace_system, routed

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError, storage

fcntl = pytest.importorskip("fcntl")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="mounts images, which is Linux's way"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]
# Of fewer it may be that none is after the first promise.
CRASHES = {"ext4": max(8, scaled(20)), "xfs": max(8, scaled(8))}
COUNT = 24
PARTS = (range(9), range(9, 15), range(15, COUNT))  # an archive is sealed after each
_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN
_NO_LOG_FLUSH = struct.pack("I", 2)
NBYTES = {"ext4": 64 << 20, "xfs": 320 << 20}
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANGS).stdout.strip()


class FileSystem:
    """An image of one kind of file system, mounted through a loop device."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.image, self.root = kind, folder / "image", folder / "mounted"
        self.root.mkdir()
        with self.image.open("wb") as file:
            file.truncate(NBYTES[kind])
        _run(*MAKE[kind], str(self.image))
        self.device = _run("losetup", "--find", "--show", str(self.image))
        self.crashes = 0

    def mount(self) -> None:
        _run("mount", "-t", self.kind, self.device, str(self.root))

    def shut_down(self) -> None:
        """What a power cut does to it: from here on nothing reaches the disk, not even its journal."""
        try:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            if error.errno == errno.EIO:
                return  # it is down
            raise
        fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)
        os.close(fd)

    def crash(self) -> None:
        """Take it down, and mount it again: the journal is replayed."""
        self.shut_down()
        _run("umount", str(self.root))
        self.mount()
        self.crashes += 1

    def release(self) -> None:
        for command in (["umount", "--lazy", str(self.root)], ["losetup", "--detach", self.device]):
            subprocess.run(command, check=False, capture_output=True, timeout=HANGS)


@pytest.fixture(params=list(NBYTES), scope="module")
def filesystem(request: pytest.FixtureRequest) -> Iterator[FileSystem]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    if absent := [name for name in (MAKE[request.param][0], "losetup", "mount") if not shutil.which(name)]:
        pytest.skip(f"{absent[0]} is not installed: no {request.param} is crashed here")
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix="edcache-mounts-", dir=memory))
    made: FileSystem | None = None
    try:
        try:
            made = FileSystem(request.param, folder)
            made.mount()
            made.crash()
        except (OSError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"no {request.param} can be mounted and shut down here: {told.strip()}")
        yield made
    finally:
        if made is not None:
            made.release()
        shutil.rmtree(folder, ignore_errors=True)


@routed(("pwrite", "truncate", "replace", "sync"))
class Failing(System):
    """Crashes the file system, and then its process, at one of the writes, cuts, syncs and renames."""

    def __init__(self, at: int | None, crash: Callable[[], None]) -> None:
        self.left, self.crash = at, crash

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.crash()
                os._exit(0)

    def around(self, name: str, plain: Callable[..., Any], *arguments: Any) -> Any:
        self._count()
        result = plain(*arguments)
        if name == "replace":
            self._count()
        return result


def _write(notes: Told, sync: Any, when_published: bool, when_sealed: bool) -> None:
    """Chunks of three, sealed now and then; says what is durable by the promise as soon as it is."""
    for part in PARTS:
        w = CacheWriter(scenarios.PATH, "a", sync=sync, **OPTIONS)
        for start in range(part.start, part.stop, 3):
            _publish(w, start)
            if when_published:
                notes.publish(range(start + 3))
        w.close()
        if when_sealed:
            notes.publish(range(part.stop))


def _publish(w: CacheWriter, start: int) -> None:
    for index in range(start, start + 3):
        w.write(index, sample(index))
    w.flush()


def by_chunk(notes: Told) -> None:
    _write(notes, "chunk", True, True)


def at_seal(notes: Told) -> None:
    _write(notes, "seal", False, True)


def never(notes: Told) -> None:
    _write(notes, "never", False, False)


def after_seconds(notes: Told) -> None:
    """Each publication is late enough to be synced."""
    _write(notes, 1e-9, True, True)


def rewrite(notes: Told) -> None:
    CachedDataset.from_cache(scenarios.PATH).save(scenarios.PATH)


def _make_old() -> None:
    """What `rewrite` has something to do with: all of it sealed, and so on the disk."""
    for part in PARTS:
        write(NOBODY, part)


STEPS = [by_chunk, at_seal, after_seconds, never, rewrite]


def _new_folder(filesystem: FileSystem, name: str) -> Path:
    folder = filesystem.root / name
    folder.mkdir()
    storage.sync_directory(str(filesystem.root))
    return folder


def _problems(told: list[tuple[int, int]], is_old: bool) -> Iterator[str]:
    certain = set(range(COUNT)) if is_old else {index for index, _ in told}
    try:
        found = read_all(scenarios.PATH)
    except EdcacheError as error:
        found = {}
        if certain:
            yield f"opening: {error!r}, but {len(certain)} samples are durable"
    # What was not synced may be missing, and is noticed where its header came through without it.
    unread = {index for index, version in found.items() if version == "CorruptRecordError"}
    if wrong := {i: v for i, v in found.items() if v != 0 and i not in unread}:
        yield f"wrong: {wrong}"
    if lost := certain - (found.keys() - unread):
        yield f"durable, and lost: {sorted(lost)}"
    w = CacheWriter(scenarios.PATH, "a", **OPTIONS)
    there = read_all(scenarios.PATH)
    for index in range(COUNT):
        if index not in there:
            w.write(index, sample(index, RECOMPUTED))
    w.close()
    report, found = edcache.verify(scenarios.PATH), read_all(scenarios.PATH)
    yield from report.problems
    if not report.sealed or sorted(found) != list(range(COUNT)) or set(found.values()) - {0, RECOMPUTED}:
        yield f"continued: sealed {report.sealed}, {found}"
    if again := {index for index in certain if found[index] != 0}:
        yield f"durable, and written again: {sorted(again)}"


def _measured(step: Callable[[Told], None], counted: Path) -> tuple[float, int]:
    """How long an undisturbed step takes, and how many calls it makes that count."""
    most = 1_000_000
    system, started = Failing(most, lambda: None), time.monotonic()
    child = Child(lambda notes: (step(notes), counted.write_text(str(system.left))), system)
    assert child.ended() == 0
    return time.monotonic() - started, most - int(counted.read_text())


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_what_is_durable_by_the_promise_outlives_a_crash_of_the_file_system(
    filesystem: FileSystem, step: Callable[[Told], None], monkeypatch: pytest.MonkeyPatch, tally: Any
) -> None:
    rng, problems, first, certain = seeded(f"{filesystem.kind}, {step.__name__}"), [], filesystem.crashes, 0

    def begin(name: object) -> Path:
        folder = _new_folder(filesystem, f"{step.__name__} {name}")
        monkeypatch.setattr(scenarios, "PATH", str(folder / "a.zip"))
        if step is rewrite:
            _make_old()
        return folder

    seconds, count = _measured(step, begin("undisturbed").with_suffix(".calls"))
    for number in range(CRASHES[filesystem.kind]):
        folder, at = begin(number), rng.randrange(count + 1) if number % 2 else None
        heard = None
        try:
            child = Child(step, Failing(at, filesystem.shut_down))
            if at is None:
                time.sleep(rng.uniform(0, seconds))
                # A sync within which the file system ends may be called done by the kernel.
                heard = child.heard()
                filesystem.shut_down()
                child.kill()
            code = child.ended()
        finally:
            filesystem.crash()
        # 1: it was told that its file system is gone.
        assert code in (0, 1, -signal.SIGKILL)
        told = child.told(heard)
        certain += bool(told)
        with replace_system(Rebooted()):
            problems += [f"crash {number}: {problem}" for problem in _problems(told, step is rewrite)]
        shutil.rmtree(folder)
    assert problems == []
    assert (certain > 0) == (step not in (never, rewrite))
    tally("file systems crashed", filesystem.crashes - first)
