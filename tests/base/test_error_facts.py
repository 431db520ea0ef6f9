"""Errors: what tells them apart, and the attributes that say what they are about."""

from __future__ import annotations

import errno
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import flip, flip_record
from later import of_version
from written import write

import edcache
from edcache import format
from edcache.errors import (
    ArchiveError,
    ArchiveNotFoundError,
    CodecError,
    CorruptArchiveError,
    CorruptRecordError,
    EdcacheError,
    LabelError,
    LaterReleaseError,
    MissingSampleError,
    OptionError,
    SampleIndexError,
    SourceError,
    StaleCacheError,
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
    """Make an archive of the next format version; its bytes."""
    with of_version(format.VERSION + 1):
        made(path)
    return path.read_bytes()


def test_an_archive_of_a_newer_format_is_neither_replaced_nor_filled_nor_left_out(tmp_path: Path) -> None:
    path = tmp_path / "train.zip"
    data = of_a_newer_format(path)
    for options in ({}, {"keep_existing": False}):
        with pytest.raises(LaterReleaseError, match=r"archive format 4.*; upgrade edcache") as caught:
            edcache.CachedDataset(Squares(), path, progress=False, **options)
        assert not isinstance(caught.value, CorruptArchiveError)
    with pytest.raises(LaterReleaseError, match="upgrade edcache"):
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
    flip(damaged, 100)  # in the head
    shutil.make_archive(str(tmp_path / "c"), "zip", tmp_path, "a.zip")
    assert [Path(one.path).name for one in archives_in(tmp_path)] == ["a.zip", "b.zip"]
    with pytest.raises(CorruptArchiveError, match=r"b\.zip: the head"):
        copy_to_local(damaged, tmp_path / "copies" / "b.zip")


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


class Failing(Squares):
    def __getitem__(self, index: int) -> dict[str, int]:
        if index == 2:
            raise RuntimeError("no such picture")
        return super().__getitem__(index)


class Odd(Squares):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": index, "y": "text" if index == 3 else index}


class Unstored(Squares):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": object() if index == 1 else index, "y": index}


def fill(source: Any, path: Path, **options: Any) -> Any:
    return edcache.CachedDataset(source, path, in_memory_keys=["y"], progress=False, **options)


def damaged_record(path: Path, index: int) -> Path:
    flip_record(made(path), index)
    return path


def partial(path: Path) -> Any:
    write(path, [{"x": 1}], indices=[5])
    return edcache.CachedDataset(None, path, allow_partial=True)


def pickled(path: Path) -> Any:
    fill(Squares(), path, codec="pickle").close()
    return edcache.CachedDataset(None, path)


def closed(path: Path) -> edcache.CacheWriter:
    writer = edcache.CacheWriter(path)
    writer.close()
    return writer


def another_call(path: Path) -> Any:
    @edcache.cachable(path, progress=False)
    def numbers(n: int) -> Squares:
        return Squares()

    numbers(1).close()
    return numbers(2)


# What is called, the class, and its path (True: it is named), index and option.
FAILURES: list[tuple[Callable[[Path], object], type[EdcacheError], bool, int | None, str | None]] = [
    (lambda path: edcache.CachedDataset(None, path), ArchiveNotFoundError, True, None, None),
    (
        lambda path: (path.write_bytes(b"PK no"), edcache.CachedDataset(None, path)),
        CorruptArchiveError,
        True,
        None,
        None,
    ),
    (
        lambda path: (of_a_newer_format(path), edcache.CachedDataset(None, path)),
        LaterReleaseError,
        True,
        None,
        None,
    ),
    (lambda path: edcache.CachedDataset(None, damaged_record(path, 2))[2], CorruptRecordError, True, 2, None),
    (lambda path: edcache.CachedDataset(None, made(path))[9], SampleIndexError, False, 9, None),
    (lambda path: partial(path)[3], MissingSampleError, True, 3, None),
    (lambda path: pickled(path)[1], CodecError, True, 1, "allow_pickle"),
    (lambda path: fill(Failing(), path), SourceError, True, 2, None),
    (lambda path: fill(Unstored(), path), CodecError, True, 1, None),
    (lambda path: fill(Odd(), path), LabelError, True, 3, "keep_existing"),
    (
        lambda path: fill(Squares(), made(path), fingerprint={"is": "other"}),
        StaleCacheError,
        True,
        None,
        "keep_existing",
    ),
    (another_call, StaleCacheError, True, None, "on_stale"),
    (lambda path: fill(Squares(), path, sync="often"), OptionError, False, None, "sync"),
    (lambda path: fill(Squares(), path, num_workers=-1), OptionError, False, None, "num_workers"),
    (lambda path: fill(Squares(), path, timeout=0), OptionError, False, None, "timeout"),
    (lambda path: fill(Squares(), path, transform=7), OptionError, False, None, "transform"),
    (lambda path: edcache.CacheWriter(path, mode="r"), OptionError, False, None, "mode"),
    (lambda path: edcache.CacheWriter(path).write(-1, {}), SampleIndexError, True, -1, None),
    (lambda path: closed(path).append({}), ArchiveError, True, None, None),
]


@pytest.mark.parametrize("failure", range(len(FAILURES)))
def test_an_error_says_as_attributes_what_it_is_about(tmp_path: Path, failure: int) -> None:
    call, kind, is_named, index, option = FAILURES[failure]
    path = tmp_path / "train.zip"
    with pytest.raises(EdcacheError) as caught:
        call(path)
    error = caught.value
    assert type(error) is kind
    assert (error.path, error.index, error.option) == (str(path) if is_named else None, index, option)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.path, copy.index, copy.option) == (error.path, error.index, error.option)
