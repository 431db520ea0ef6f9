"""Sources that keep a file open, filled by forked processes: each reads at a position of its own."""

import fcntl
import io
import multiprocessing
import os
import tarfile
import tempfile
import threading
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import edcache
from edcache import CachedDataset, storage
from edcache.errors import SourceError
from edcache.storage import handle
from tests.kit.descriptors import needs_proc

COUNT, WIDTH = 60, 8

pytestmark = needs_proc


_opened = []


class Slow(io.FileIO):
    """File with time between a seek and the read, in which another process may move a shared position."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        _opened.append(self)

    def seek(self, *where):
        found = super().seek(*where)
        time.sleep(0.0005)
        return found


def kept(file):
    """Have a file closed after the test."""
    _opened.append(file)
    return file


def raw(path):
    return Slow(path)


def buffered(path):
    return kept(io.BufferedReader(Slow(path), 16))


def text(path):
    return kept(io.TextIOWrapper(buffered(path), encoding="ascii"))


def temporary(path):
    with tempfile.TemporaryFile() as file:
        file.write(path.read_bytes())
        file.flush()
        return Slow(os.dup(file.fileno()), "r+")


def deleted(path):
    file = Slow(path)
    path.unlink()
    return file


def appended(path):
    return Slow(path, "a+")


def members(path):
    """Open a zip file of one member for each line."""
    with zipfile.ZipFile(path.with_suffix(".z"), "w") as made:
        for index, line in enumerate(path.read_bytes().splitlines(keepends=True)):
            made.writestr(str(index), line)
    return zipfile.ZipFile(Slow(path.with_suffix(".z")))


def archive(path):
    """Open a tar file of one member for each line."""
    with tarfile.open(path.with_suffix(".t"), "w") as made:
        for index, line in enumerate(path.read_bytes().splitlines(keepends=True)):
            info = tarfile.TarInfo(str(index))
            info.size = len(line)
            made.addfile(info, io.BytesIO(line))
    return tarfile.open(fileobj=Slow(path.with_suffix(".t")))


def line_of(file, index):
    if isinstance(file, zipfile.ZipFile):
        return file.read(str(index))
    if isinstance(file, tarfile.TarFile):
        return file.extractfile(str(index)).read()
    file.seek(index * WIDTH)
    line = file.read(WIDTH)
    return line if isinstance(line, bytes) else line.encode()


class Lines(Dataset):
    """Line `index` of a file that was opened, and read, before the fill."""

    def __init__(self, file):
        self._file = file
        line_of(file, 3)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return {"line": line_of(self._file, index), "i": index}


class Stream(Lines, IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return map(self.__getitem__, range(info.id, COUNT, info.num_workers))


class OfGlobal(Lines):
    """Lines of a file in a global variable, so that a pickle of the source has none."""

    def __init__(self):
        pass

    def __getitem__(self, index):
        return {"line": line_of(_opened[0], index), "i": index}


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines"
    path.write_text("".join(f"{index:07}\n" for index in range(COUNT)))
    yield path
    while _opened:
        _opened.pop().close()


def wrong(path):
    ds = CachedDataset.from_cache(path)
    assert len(ds) == COUNT
    return [sample for sample in ds if sample["line"] != b"%07d\n" % sample["i"]]


@pytest.mark.parametrize("kind", [raw, buffered, text, temporary, deleted, appended, members, archive])
def test_workers_read_a_file_that_was_opened_before(path, lines, kind):
    CachedDataset(Lines(kind(lines)), path, num_workers=4, progress=False)
    assert wrong(path) == []


def test_workers_of_an_iterable_read_it(path, lines):
    CachedDataset(Stream(raw(lines)), path, num_workers=2, progress=False)
    assert wrong(path) == []


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]])
def test_readers_of_a_map_read_it(path, lines, devices):
    def make(device):
        return lambda batch: batch

    source = Lines(raw(lines))
    edcache.map(make, source, path, batch_size=4, devices=devices, num_workers=2, progress=False)
    assert wrong(path) == []


def test_workers_of_a_data_loader_that_fill_a_lazy_cache_read_it(path, lines):
    ds = CachedDataset(Lines(raw(lines)), path, lazy=True)
    for _ in DataLoader(ds, num_workers=2, multiprocessing_context="fork", collate_fn=len):
        pass
    assert wrong(path) == []


def test_tasks_of_an_executor_that_forks_read_it(path, lines):
    raw(lines)
    with ProcessPoolExecutor(4, multiprocessing.get_context("fork")) as pool:
        CachedDataset(OfGlobal(), path, executor=pool, progress=False)
    assert wrong(path) == []


def test_forked_processes_that_fill_one_archive_read_it(path, lines):
    source = Lines(raw(lines))
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=CachedDataset, args=(source, path)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert wrong(path) == []


# --- which files, and what stays of them ------------------------------------------------------------


def in_a_fork(check):
    """Call a function in a forked process, after the process got its own positions."""

    def run():
        storage.own_positions()
        check()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_positions_go_on_where_they_were_and_numbers_are_inherited_as_before(lines):
    with open(lines, "rb", buffering=0) as file, open(lines, "rb", buffering=0) as other:
        file.read(WIDTH)
        os.set_inheritable(other.fileno(), True)

        def check():
            assert file.read(WIDTH) == b"0000001\n"
            assert [os.get_inheritable(one.fileno()) for one in (file, other)] == [False, True]

        in_a_fork(check)
        assert file.tell() == WIDTH


def test_threads_open_and_close_files_meanwhile(lines):
    def run():
        is_done = threading.Event()

        def open_and_close():
            while not is_done.is_set():
                with open(lines, "rb", buffering=0) as file:
                    assert [file.read(WIDTH), file.read(WIDTH)] == [b"0000000\n", b"0000001\n"]

        inherited = handle._open_files()
        with ThreadPoolExecutor(4) as pool:
            others = [pool.submit(open_and_close) for _ in range(4)]
            try:
                for _ in range(300):
                    handle._inherited = inherited
                    storage.own_positions()
            finally:
                is_done.set()
            for other in others:
                other.result()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_files_that_were_closed_since_the_fork_are_passed_over(lines):
    def run():
        file.close()
        storage.own_positions()

    with open(lines, "rb") as file:
        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        process.join()
        assert process.exitcode == 0


def test_a_log_keeps_the_position_that_processes_share(lines):
    with open(lines, "wb", buffering=0) as file:
        in_a_fork(lambda: file.write(b"there"))
        file.write(b"here")
    assert lines.read_bytes() == b"therehere"


def test_a_lock_of_the_file_is_the_child_s_too(lines):
    with open(lines, "rb") as file, open(lines, "rb") as other:
        fcntl.flock(file, fcntl.LOCK_EX)

        def check():
            file.close()  # of the child alone
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(held, fcntl.LOCK_UN)
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)

        held = os.dup(file.fileno())
        in_a_fork(check)
        os.close(held)


def test_a_file_that_cannot_be_opened_again_is_named(path, lines, monkeypatch):
    def refuse(name, flags, *rest):
        if name == f"/proc/self/fd/{file.fileno()}":
            raise PermissionError(13, "Permission denied")
        return opened(name, flags, *rest)

    opened, file = os.open, raw(lines)
    source = Lines(file)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        SourceError, match=r"lines: open in the process that forked .*Permission denied; open"
    ):
        CachedDataset(source, path, num_workers=2)
