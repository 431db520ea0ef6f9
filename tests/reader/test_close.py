"""Closing an archive while other threads read it: right bytes or ArchiveError, never another file's."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from descriptors import needs_proc, open_files
from scale import scaled
from systems import WAYS, reading_by
from written import write

from edcache.errors import ArchiveError
from edcache.reader import Reader
from edcache.storage.file import File

THREADS = 4


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def beside(acts: list[Callable[[], None]], close: Callable[[], None]) -> list[BaseException]:
    """What acts raise that are repeated in threads until they find the file closed."""
    wrong: list[BaseException] = []
    begun = threading.Barrier(len(acts) + 1)

    def repeat(act: Callable[[], None]) -> None:
        begun.wait()
        try:
            while True:
                act()
        except ArchiveError:
            pass
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=repeat, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    begun.wait()
    close()
    for thread in threads:
        thread.join()
    return wrong


def test_a_call_never_reaches_a_file_that_got_the_number_of_one_that_was_closed(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.write_bytes(b"m" * 512)
    other.write_bytes(b"o" * 1024)
    for _ in range(scaled(150)):
        file = File.open(mine, "r")

        def read(file: File = file) -> None:
            assert file.pread(0, 512) == b"m" * 512

        def ask(file: File = file) -> None:
            assert file.size() == 512

        taken: list[int] = []

        def close(file: File = file, taken: list[int] = taken) -> None:
            file.close()
            taken.extend(os.open(other, os.O_RDONLY) for _ in range(3))

        try:
            assert beside([read, ask] * (THREADS // 2), close) == []
        finally:
            for fd in taken:
                os.close(fd)
    # Each was closed, by whoever was the last in it.
    assert file.closed
    assert file._descriptor is None


@needs_proc
@pytest.mark.parametrize("way", WAYS)
def test_a_reader_that_is_closed_beside_reads_and_refreshes(path: Path, way: str) -> None:
    write(path, ({"x": np.full(3, k)} for k in range(12)), chunk_size=4)
    for _ in range(scaled(60)):
        reader = Reader(path)

        def read(reader: Reader = reader) -> None:
            assert reader.session.read(7)["x"].tolist() == [7, 7, 7]

        def refresh(reader: Reader = reader) -> None:
            reader.refresh()

        with reading_by(way):
            assert beside([read, read, refresh, refresh], reader.close) == []
        with pytest.raises(ArchiveError, match="closed; open it again to read"):
            reader.session.read(0)
    del reader, read, refresh
    assert open_files(path) == []
