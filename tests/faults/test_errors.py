"""Any call to the system fails, once or from then on: one typed error, and nothing published is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest
from disk import MemoryDisk
from scale import SCALE, thinned
from scenarios import OPTIONS, PATH, SCENARIOS, Notes, Scenario, newest, read_all, record, sample
from systems import CALLS, replace_system, routed

import edcache
from edcache import CacheWriter, EdcacheError
from edcache.errors import StorageError

pytestmark = pytest.mark.spread

SHORT = "short"
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EINTR)
ERRORS: dict[str, tuple[Any, ...]] = {
    "pwrite": (*_DISK, SHORT),
    "pread": (errno.EIO, errno.EINTR, SHORT),
    "truncate": _DISK,
    "sync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "sync_directory": (errno.EIO, errno.ENOSPC),
    "open": (errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOSPC),
    "replace": (errno.EIO, errno.ENOSPC, errno.EACCES),
    "remove": (errno.EIO, errno.EACCES),
    "copy_permissions": (errno.EPERM,),
    "stat": (errno.EIO,),
    "stat_path": (errno.EIO, errno.EACCES),
    "lock": (errno.EIO, errno.EINTR),
    "unlock": (errno.EIO,),
    "close": (errno.EIO, errno.EINTR),
    "make_folders": (errno.ENOSPC, errno.EACCES),
    "will_need": (errno.EIO,),
    "write_back": (errno.EIO,),
    "is_locked": (errno.EIO,),
    "pread_cached": (errno.EIO,),
    "next_data": (errno.EIO, errno.EINVAL),
    "map": (errno.ENOMEM,),
    "boot_time": (),
}


@routed([name for name in CALLS if hasattr(MemoryDisk, name) and name not in ("reserve", "touch", "share")])
class FailingDisk(MemoryDisk):
    """Fails the n-th call, or all calls of that name from the n-th on.

    error: an errno, or SHORT: a part is read or written, which is no error.
    """

    def __init__(self, files: dict[str, bytes], n: int = 0, error: Any = None, sticky: bool = False) -> None:
        super().__init__(files)
        self.n, self.error, self.sticky = n, error, sticky
        self.calls: list[str] = []
        self.failed: list[str] = []
        self._is_inside = False

    def fails(self, name: str) -> bool:
        self.calls.append(name)
        number = len(self.calls)
        if number == self.n or (self.sticky and number > self.n and name == self.calls[self.n - 1]):
            self.failed.append(name)
            return True
        return False

    def around(self, name: str, plain: Any, *arguments: Any) -> Any:
        if self._is_inside:  # one call of the disk by another
            return plain(*arguments)
        self._is_inside = True
        try:
            if not self.fails(name):
                return plain(*arguments)
            if self.error == SHORT:
                return _short(name, plain, arguments)
            if name == "pwrite":  # a full disk takes a part first
                fd, data, offset = arguments
                plain(fd, data[: len(data) // 2], offset)
            if name in ("close", "unlock"):  # the kernel lets go all the same
                plain(*arguments)
            raise OSError(self.error, os.strerror(self.error))
        finally:
            self._is_inside = False


def _short(name: str, plain: Any, arguments: tuple[Any, ...]) -> Any:
    if name == "pwrite":
        fd, data, offset = arguments
        return plain(fd, data[: max(1, len(data) // 2)], offset)
    fd, nbytes, offset = arguments
    return plain(fd, max(1, nbytes // 2), offset)


def run(scenario: Scenario, disk: MemoryDisk, notes: Notes) -> BaseException | None:
    with replace_system(disk):
        try:
            scenario.step(notes)
        except BaseException as error:
            # Without its frames, which would keep files open.
            return error.with_traceback(None)
    return None


def aftermath(scenario: Scenario, disk: MemoryDisk, published: list[tuple[int, int, int]]) -> Iterator[str]:
    """What is wrong with the disk when the error is over."""
    if disk.open_files:
        yield f"left open: {len(disk.open_files)} files"
    if disk.locked:
        yield f"left locked: {disk.locked}"
    calm = MemoryDisk(disk.files())
    with replace_system(calm):
        certain = newest(published)
        if certain or PATH in calm.names:
            try:
                found = read_all(PATH)
            except EdcacheError as error:
                found = {}
                if certain:
                    yield f"reading: {error}"
            lost = {index: version for index, version in certain.items() if _older(found.get(index), version)}
            if lost:
                yield f"published and lost: {lost}, found {found}"
        w = CacheWriter(PATH, "a", **OPTIONS)
        there = read_all(PATH)
        for index in range(scenario.count):
            if index not in there:
                w.write(index, sample(index))
        w.close()
        report = edcache.verify(PATH)
        if report.problems or not report.sealed or report.missing:
            yield f"after going on: {report}"


def _older(found: Any, version: int) -> bool:
    return not isinstance(found, int) or found < version


@pytest.mark.parametrize("scenario", thinned(SCENARIOS, 2), ids=lambda s: s.name)
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
def test_any_failing_call_is_one_error_and_loses_nothing(
    scenario: Scenario, sticky: bool, tally: Any
) -> None:
    recording = record(scenario)
    watched = FailingDisk(recording.base)
    assert run(scenario, watched, Notes(watched)) is None
    names = list(watched.calls)
    problems, count = [], 0
    for n, name in enumerate(names, 1):
        for error in ERRORS[name] if SCALE >= 1 else {*ERRORS[name][:1], *ERRORS[name][-1:]}:
            if sticky and (error == SHORT or name in ("stat_path", "close", "unlock")):
                continue  # never to end, or the same as once
            disk = FailingDisk(recording.base, n, error, sticky)
            notes = Notes(disk)
            raised = run(scenario, disk, notes)
            assert disk.failed
            count += 1
            told = f"call {n}, {name}: {errno.errorcode.get(error, error)}: "
            if raised is not None and not isinstance(raised, StorageError):
                problems.append(f"{told}{raised!r}")
            if raised is not None and error == SHORT:
                problems.append(f"{told}a short call is no error: {raised!r}")
            if raised is None and name in ("pwrite", "sync", "truncate") and error != SHORT:
                problems.append(f"{told}nobody was told")
            published = notes.published if scenario.is_swap and raised is None else []
            if not scenario.is_swap:
                published = [*recording.before.published, *notes.published]
            problems += [told + what for what in aftermath(scenario, disk, published)]
    assert not problems, "\n".join([f"{len(problems)} problems", *problems[:20]])
    tally("failing calls", count)
