"""Errors: what tells them apart, and the attributes that say what they are about."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

import edcache
from edcache import format
from edcache.errors import (
    ArchiveError,
    ArchiveNotFoundError,
    CodecError,
    CorruptArchiveError,
    StorageError,
)


class Squares:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": index * index, "y": index}


def made(path: Path) -> Path:
    edcache.CachedDataset(Squares(), path, in_memory_keys=["y"], progress=False).close()
    return path


def of_a_newer_format(path: Path) -> bytes:
    """Make the archive say that it is of the next format version; its bytes."""
    data = bytearray(path.read_bytes())
    at = 30 + len("edcache.json") + 4
    assert int.from_bytes(data[at : at + 2], "little") == format.VERSION
    data[at : at + 2] = (format.VERSION + 1).to_bytes(2, "little")
    path.write_bytes(data)
    return bytes(data)


def test_an_archive_of_a_newer_format_is_neither_replaced_nor_filled_nor_left_out(tmp_path: Path) -> None:
    path = made(tmp_path / "train.zip")
    data = of_a_newer_format(path)
    for options in ({}, {"keep_existing": False}):
        with pytest.raises(ArchiveError, match=r"archive format 3.*; upgrade edcache") as caught:
            edcache.CachedDataset(Squares(), path, progress=False, **options)
        assert not isinstance(caught.value, CorruptArchiveError)
    with pytest.raises(ArchiveError, match="upgrade edcache"):
        edcache.CacheWriter(path, mode="a")
    assert path.read_bytes() == data
    from edcache.tools import archives_in

    listed = archives_in(tmp_path)
    assert [(one.path, "upgrade edcache" in one.problem) for one in listed] == [(str(path), True)]


def test_files_that_are_no_archives_are_left_out_and_damaged_ones_are_not(tmp_path: Path) -> None:
    from edcache.backends.mirror import copy_to_local
    from edcache.tools import archives_in

    made(tmp_path / "a.zip")
    damaged = made(tmp_path / "b.zip")
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1  # in the head
    damaged.write_bytes(data)
    shutil.make_archive(str(tmp_path / "c"), "zip", tmp_path, "a.zip")
    assert [Path(one.path).name for one in archives_in(tmp_path)] == ["a.zip", "b.zip"]
    with pytest.raises(CorruptArchiveError, match=r"b\.zip: the head"):
        copy_to_local(tmp_path, tmp_path / "copies")


def test_an_error_put_behind_a_place_keeps_what_it_knows() -> None:
    inner = CodecError("it is a pickle", option="allow_pickle")
    outer = inner.within("train.zip: sample 7", "train.zip", 7)
    assert (str(outer), type(outer)) == ("train.zip: sample 7: it is a pickle", CodecError)
    assert (outer.path, outer.index, outer.option) == ("train.zip", 7, "allow_pickle")
    again = outer.within("all.zip", "all.zip", 0)
    assert (again.path, again.index) == ("train.zip", 7)
    full = StorageError("writing: no space")
    full.errno = errno.ENOSPC
    assert full.within("train.zip").errno == errno.ENOSPC


def test_what_is_not_there_is_a_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(ArchiveNotFoundError) as caught:
        edcache.CachedDataset(None, tmp_path / "no.zip")
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.errno == errno.ENOENT
