"""The storage layer: positions, short writes, errors with their errno, locks that die with their holder."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest
from systems import Refusing, System, current, ended, in_child, replace_system

from edcache import CachedDataset, storage
from edcache.errors import ArchiveError, ArchiveExistsError, ArchiveNotFoundError, StorageError
from edcache.format import LOCK_APPEND, LOCK_CLAIM
from edcache.storage.file import File

HOLDER = """
import sys, time
from edcache.storage import File
file = File.open(sys.argv[1], "a")
file.lock(int(sys.argv[2]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "file.zip")


@pytest.fixture
def holder(path):
    """Another process that holds a lock of the file until it is killed."""
    started = []

    def start(byte):
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path, str(byte)], stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        assert child.stdout.readline() == "held\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


def test_reads_and_writes_are_at_offsets(path):
    file = File.open(path, "x")
    file.pwrite(5, b"world")
    file.pwrite(0, b"hello")
    assert file.pread(0, 10) == b"helloworld"
    assert file.pread(8, 10) == b"ld"
    assert file.pread(10, 10) == b""
    assert file.pread(1 << 63, 1) == b""
    assert file.size() == 10
    file.truncate(5)
    assert file.pread(0, 10) == b"hello"
    file.close()
    file.close()


def test_a_system_without_pread_reads_and_writes_the_same(path, monkeypatch):
    monkeypatch.delattr(os, "pread")
    monkeypatch.delattr(os, "pwrite")
    test_reads_and_writes_are_at_offsets(path)


def test_short_writes_and_reads_are_completed(path):
    class Short(System):
        def pwrite(self, fd, data, offset):
            return super().pwrite(fd, data[:3], offset)

        def pread(self, fd, nbytes, offset):
            return super().pread(fd, min(nbytes, 2), offset)

    with replace_system(Short()):
        file = File.open(path, "x")
        file.pwrite(0, b"0123456789")
        assert file.pread(1, 8) == b"12345678"
        file.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("pwrite", "writing 4 bytes at offset 8,192: No space left on device"),
        ("truncate", "cutting it to 8,192 bytes: No space left on device"),
        ("sync", "syncing it; what was written since the last sync is in doubt: No space left on device"),
        ("lock", "locking it: No space left on device"),
        ("unlock", "releasing a lock: No space left on device"),
        ("is_locked", "asking for its locks: No space left on device"),
        ("pread", "reading 4 bytes at offset 8,192: No space left on device"),
        ("map", "mapping 4 bytes: No space left on device"),
        ("stat", "asking for its size: No space left on device"),
        ("stat_path", "looking for it: No space left on device"),
        ("close", "closing it: No space left on device"),
        ("remove", "deleting it: No space left on device"),
        ("copy_permissions", "giving it the permissions of a.zip: No space left on device"),
    ],
)
def test_a_refusal_says_what_was_tried_and_keeps_its_errno(path, call, message):
    file = File.open(path, "x")
    tried = {
        "pwrite": lambda: file.pwrite(8192, b"data"),
        "truncate": lambda: file.truncate(8192),
        "sync": file.sync,
        "lock": lambda: file.lock(LOCK_APPEND),
        "unlock": lambda: file.unlock(LOCK_APPEND),
        "is_locked": lambda: file.is_locked(LOCK_APPEND, 1),
        "pread": lambda: file.pread(8192, 4),
        "map": lambda: file.map(4),
        "stat": file.size,
        "stat_path": file.is_named,
        "close": file.close,
        "remove": lambda: storage.remove(path),
        "copy_permissions": lambda: storage.copy_permissions("a.zip", path),
    }
    with replace_system(Refusing(errno.ENOSPC, call)), pytest.raises(StorageError, match=message) as caught:
        tried[call]()
    assert caught.value.errno == errno.ENOSPC
    assert str(caught.value).startswith(path)
    file.close()


@pytest.mark.parametrize("code", [errno.EDEADLK, errno.ETIMEDOUT])
def test_a_lock_that_the_system_gives_up_on_is_one_that_another_process_holds(path, code):
    file = File.open(path, "x")
    with replace_system(Refusing(code, "lock")), pytest.raises(ArchiveError) as caught:
        file.lock(LOCK_APPEND)
    assert (str(caught.value), caught.value.errno) == (f"{path}: locking it: {os.strerror(code)}", code)
    file.close()


def test_looking_for_a_file_tells_absence_from_refusal(path, tmp_path):
    assert not storage.exists(path)
    File.open(path, "x").close()
    assert storage.exists(path)
    with pytest.raises(StorageError, match="looking for it: Not a directory"):
        storage.exists(f"{path}/a.zip")


def test_a_file_that_is_deleted_is_gone_and_only_once(path):
    file = File.open(path, "x")
    file.pwrite(0, b"kept")
    assert file.is_named()
    storage.remove(path)
    assert not file.is_named()
    assert file.pread(0, 4) == b"kept"
    with pytest.raises(ArchiveNotFoundError, match="file.zip: no such file"):
        storage.remove(path)
    file.close()


@pytest.mark.parametrize(
    ("nbytes", "message"),
    [
        (5, "mapping 5 bytes: mmap length is greater than file size"),
        (1 << 70, "mapping 1,180,591,620,717,411,"),
    ],
)
def test_more_than_the_file_has_is_not_mapped(path, nbytes, message):
    file = File.open(path, "x")
    file.pwrite(0, b"data")
    assert file.map(4) == b"data"
    with pytest.raises(StorageError, match=message):
        file.map(nbytes)
    file.close()


def test_the_next_data_is_never_behind_the_first_byte_that_was_written(path):
    file = File.open(path, "x")
    file.pwrite(1 << 20, b"data")
    assert file.next_data(0) <= 1 << 20
    assert file.next_data((1 << 20) + 1) == (1 << 20) + 1
    assert file.next_data(1 << 30) == (1 << 20) + 4

    with replace_system(Refusing(errno.EINVAL, "next_data")):
        assert file.next_data(77) == 77
    file.close()


def test_what_would_have_to_be_waited_for_is_not_cached(path, monkeypatch):
    file = File.open(path, "x")
    file.pwrite(0, b"data")
    asked = []

    def preadv(fd, buffers, offset, flags):
        asked.append((len(buffers[0]), offset, flags))
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "preadv", preadv)
    assert not file.are_cached([3])
    assert asked == [(1, 3, os.RWF_NOWAIT)]
    file.close()


def test_where_the_start_of_the_machine_is_unknown_nothing_counts_as_written_since(path, monkeypatch):
    file = File.open(path, "x")
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert not storage.is_fresh(file)
    file.close()


def test_where_only_whole_files_are_locked_one_lock_stands_for_all(path, monkeypatch):
    monkeypatch.setattr(storage.calls, "_HAS_OFD_LOCKS", False)
    one, other = File.open(path, "a"), File.open(path, "a")
    with one.locked(LOCK_APPEND):
        assert not other.try_lock(LOCK_APPEND)
        assert one.try_lock(LOCK_CLAIM)
        assert other.try_lock(LOCK_CLAIM)
        assert not other.is_locked(LOCK_CLAIM, 1)
        other.unlock(LOCK_CLAIM)
        assert not other.try_lock(LOCK_APPEND)
    with other.locked(LOCK_APPEND):
        assert not one.try_lock(LOCK_APPEND)
    one.close()
    other.close()


def test_a_path_without_a_folder_is_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage.make_parent("a.zip")
    assert list(tmp_path.iterdir()) == []
    storage.sync_directory("")


def test_opening_names_what_is_in_the_way(path, tmp_path):
    with pytest.raises(ArchiveNotFoundError, match="no such file; check the path, or build the cache first"):
        File.open(path, "r")
    File.open(path, "x").close()
    with pytest.raises(ArchiveExistsError, match='exists already; use mode="a" to continue or grow it'):
        File.open(path, "x")
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path):
        with pytest.raises(StorageError, match="not a regular file|opening it: Is a directory"):
            File.open(str(other), "a")
    with pytest.raises(StorageError, match="not a regular file"):
        File.open(str(tmp_path / "pipe"), "r")


def test_a_lock_keeps_other_processes_out_until_its_holder_is_killed(path, holder):
    child = holder(LOCK_CLAIM + 7)
    file = File.open(path, "a")
    assert not file.try_lock(LOCK_CLAIM + 7)
    assert file.try_lock(LOCK_CLAIM + 8)
    child.send_signal(signal.SIGKILL)
    file.lock(LOCK_CLAIM + 7)
    file.close()


def test_closing_another_descriptor_of_the_file_drops_no_lock(path):
    """A POSIX record lock would be gone."""
    one = File.open(path, "a")
    one.lock(LOCK_APPEND)
    File.open(path, "r").close()
    other = File.open(path, "a")
    assert not other.try_lock(LOCK_APPEND)
    one.close()
    other.close()


def test_a_lock_ends_with_close_though_a_fork_has_the_descriptor(path):
    """A fork just as another thread opens the file gives the child a descriptor that nobody closes."""
    file = File.open(path, "a")
    file.lock(8)
    inherited = os.dup(int(file._descriptor))
    file.close()
    other = File.open(path, "a")
    assert other.try_lock(8)
    other.close()
    os.close(inherited)


def test_replace_takes_the_name(tmp_path):
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    storage.replace(str(tmp_path / "new"), str(tmp_path / "old"))
    assert [f.name for f in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_bytes() == b"new"
    with pytest.raises(StorageError, match="giving .*new its name: No such file"):
        storage.replace(str(tmp_path / "new"), str(tmp_path / "old"))


def test_a_file_is_of_this_boot_only_if_it_was_written_after_it(path):
    class Booted(System):
        when = None

        def boot_time(self):
            return self.when

    file, system = File.open(path, "x"), Booted()
    written = file.stamp()[1] / 1e9
    with replace_system(system):
        assert not storage.is_fresh(file)
        for when, expected in ((written - 100, True), (written + 100, False)):
            system.when = when
            assert storage.is_fresh(file) is expected
    file.close()


def test_the_system_is_put_back_after_an_error():
    before = current()
    with pytest.raises(ValueError, match="stop"), replace_system(System()) as other:
        assert current() is other
        raise ValueError("stop")
    assert current() is before
    with pytest.raises(AttributeError, match="No edcache.storage attribute nonsense"):
        storage.nonsense  # noqa: B018


def test_a_refused_open_keeps_its_errno_and_file_name(path):
    with (
        replace_system(Refusing(errno.EACCES, "open")),
        pytest.raises(StorageError, match="opening it: Perm") as caught,
    ):
        File.open(path, "a")
    assert (caught.value.errno, caught.value.filename) == (errno.EACCES, path)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EACCES])
def test_a_folder_that_cannot_be_synced_is_no_error(path, code):
    with replace_system(Refusing(code, "sync_directory")):
        storage.sync_directory(os.path.dirname(path))


def test_a_folder_whose_sync_fails_is_an_error(path):
    with (
        replace_system(Refusing(errno.EIO, "sync_directory")),
        pytest.raises(StorageError, match="syncing the folder") as caught,
    ):
        storage.sync_directory(os.path.dirname(path))
    assert caught.value.errno == errno.EIO


def test_a_name_that_is_taken_by_a_folder_above_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="making the folder: "):
        storage.make_parent(str(tmp_path / "file" / "a.zip"))


def test_where_nothing_can_be_locked_one_process_fills_and_says_so(tmp_path):
    path = tmp_path / "a.zip"
    with (
        replace_system(Refusing(errno.ENOLCK, "lock", "unlock", "is_locked")),
        pytest.warns(RuntimeWarning, match="a.zip: its file system has no byte locks, so that"),
    ):
        ds = CachedDataset(list(range(300)), path, num_workers=2)
    assert ds.complete
    assert [ds[i] for i in range(300)] == list(range(300))


def test_a_closed_file_has_no_lock_to_let_go_of(path):
    """As in a child that was forked within a block that holds one."""
    file = File.open(path, "a")
    with file.locked(5):
        file.close()
    file.unlock(5)


def test_a_shared_lock_is_shared_with_those_who_only_read_and_with_nobody_else(path):
    owner, first, second = File.open(path, "x"), File.open(path, "r"), File.open(path, "r")
    first.share(7)
    second.share(7)
    assert owner.is_locked(7, 1)
    assert not owner.try_lock(7)
    assert owner.try_lock(8)
    first.close()
    assert not owner.try_lock(7)
    second.close()
    assert owner.try_lock(7)
    third = File.open(path, "r")
    child = in_child(lambda: third.share(7))
    time.sleep(0.05)
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "it waits for who has it alone"
    owner.unlock(7)
    assert ended(child) == 0


def test_a_file_system_without_locks_shares_without_one(path):
    file = File.open(path, "x")
    system = Refusing(errno.ENOLCK, "share")
    with replace_system(system), pytest.warns(RuntimeWarning, match="has no byte locks"):
        file.share(3)
    assert not file.can_lock


def test_where_there_are_no_byte_locks_sharing_one_does_nothing(path, monkeypatch):
    owner, reader = File.open(path, "x"), File.open(path, "r")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(storage.calls, "_HAS_OFD_LOCKS", False)
        reader.share(7)
    assert not owner.is_locked(7, 1)


def test_a_stamp_is_that_of_the_file_until_it_changes(path):
    file = File.open(path, "x")
    file.pwrite(0, b"hello")
    assert storage.stamp(path) == file.stamp()
    assert file.stamp() == (5, os.stat(path).st_mtime_ns, os.stat(path).st_ino)
    os.utime(path, (1, 1))
    before = storage.stamp(path)
    assert before == (5, 10**9, os.stat(path).st_ino)
    storage.touch(path)
    assert storage.stamp(path)[1] > before[1]
    assert storage.allocated(path) == 512 * os.stat(path).st_blocks
    assert storage.allocated(path + ".none") == 0
    for name in (path + ".none", path + "/below"):
        with pytest.raises(ArchiveNotFoundError, match=r": no such file$"):
            storage.stamp(name)
    with pytest.raises(StorageError, match=r"x: looking for it: File name too long"):
        storage.stamp("x" * 5000)
    with pytest.raises(StorageError, match=r"none: setting its times: No such file or directory"):
        storage.touch(path + ".none")


def test_a_file_that_is_opened_to_be_changed_must_be_there(path):
    with pytest.raises(ArchiveNotFoundError, match=r"no such file; check the path"):
        File.open(path, "r+")
    File.open(path, "x").close()
    file = File.open(path, "r+")
    file.pwrite(0, b"hello")
    assert (file.writable, file.pread(0, 9)) == (True, b"hello")
