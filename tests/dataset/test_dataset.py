"""CachedDataset: computed once, then a sequence of samples that the caller owns, from one archive."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from written import write, written

import edcache
from edcache import CachedDataset, CacheWriter, View
from edcache.errors import (
    ArchiveNotFoundError,
    CodecError,
    EdcacheError,
    MissingSampleError,
    OptionError,
    SampleIndexError,
    StaleCacheError,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


class Source:
    def __init__(self, length: int = 10, plus: int = 0) -> None:
        self.length, self.plus = length, plus
        self.computed: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < self.length:
            raise IndexError(i)
        self.computed.append(i)
        return {
            "image": torch.full((2, 3), i + self.plus, dtype=torch.uint8),
            "x": np.arange(3.0) + i,
            "name": f"n{i}",
            "y": i % 4,
        }


class Other(Source):
    pass


class Unreadable(Source):
    """As a Source whose data is gone: it knows its length and nothing more."""

    __qualname__ = "Source"

    def __getitem__(self, i: int) -> Any:
        raise AssertionError(f"sample {i} was asked for")


class Sets(Source):
    def __getitem__(self, i: int) -> Any:
        return {"set": {i}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ten.zip"


@pytest.fixture
def cache(path: Path) -> CachedDataset:
    return CachedDataset(Source(), path, in_memory_keys=["y", "name"])


def names(dataset: Any) -> list[str]:
    return [sample["name"] for sample in dataset]


# ------------------------------------------------------------------------------- filling and opening


def test_the_first_construction_computes_each_sample_once_in_order(path: Path) -> None:
    source = Source()
    CachedDataset(source, path, spot_check=False)
    assert source.computed == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_later_construction_asks_the_source_for_no_sample(cache: CachedDataset, path: Path) -> None:
    with pytest.warns(
        RuntimeWarning,
        match=r"the code of .*Unreadable.__getitem__ changed, or a .* sample \d was not compared",
    ):
        later = CachedDataset(Unreadable(), path)
    assert names(later) == [f"n{i}" for i in range(10)]


def test_none_as_the_source_opens_what_is_there(cache: CachedDataset, path: Path) -> None:
    assert names(CachedDataset(None, path))[9] == "n9"


def test_from_cache_takes_a_root_and_a_name(tmp_path: Path) -> None:
    CachedDataset(Source(3), tmp_path / "cached" / "digits.zip")
    assert len(CachedDataset.from_cache(tmp_path, "digits")) == 3


def test_from_cache_of_no_file_says_what_to_do(path: Path) -> None:
    with pytest.raises(ArchiveNotFoundError, match=r"ten\.zip: no such file; check the path, or build the"):
        CachedDataset.from_cache(path)
    assert not path.exists()


def test_path_and_labels_come_from_the_sources_attributes(tmp_path: Path) -> None:
    source = Source(4)
    source.root, source.name, source.in_memory_keys = tmp_path, "digits", ["y"]  # type: ignore[attr-defined]
    cache = CachedDataset(source)
    assert Path(cache.path) == tmp_path / "cached" / "digits.zip"
    assert cache.labels["y"].tolist() == [0, 1, 2, 3]


def test_no_path_and_no_root_is_an_error() -> None:
    with pytest.raises(
        OptionError, match="no path was given, and the source has no attributes `root` and `name`"
    ):
        CachedDataset(Source())


def test_a_source_without_length_is_an_error(path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"ten\.zip: the source is an object without len\(\) and \[index\] that"
    ):
        CachedDataset(object(), path)


def test_keep_existing_false_builds_it_anew(cache: CachedDataset, path: Path) -> None:
    new = CachedDataset(Source(10, plus=100), path, keep_existing=False)
    assert new[3]["image"][0, 0] == 103


def test_readers_of_the_replaced_file_keep_reading_the_old_samples(cache: CachedDataset, path: Path) -> None:
    cache[0]
    CachedDataset(Source(10, plus=100), path, keep_existing=False)
    assert [int(sample["image"][0, 0]) for sample in cache] == list(range(10))


def test_a_failed_rebuild_leaves_the_old_archive(cache: CachedDataset, path: Path) -> None:
    with pytest.raises(Exception, match="sample 0 was asked for"):
        CachedDataset(Unreadable(), path, keep_existing=False)
    assert names(CachedDataset.from_cache(path)) == [f"n{i}" for i in range(10)]


def test_cache_dataset_is_warmup(path: Path) -> None:
    source = Source()
    cache = CachedDataset(source, path, lazy=True)
    assert cache.warmup() is cache
    assert cache.complete
    assert source.computed == list(range(10))


def test_warmup_without_a_source_names_what_is_missing(path: Path) -> None:
    write(path, ["two"], indices=[2])
    with pytest.raises(OptionError, match="2 samples are missing and there is no source to compute them"):
        CachedDataset.from_cache(path).warmup()


def test_warmup_of_a_complete_archive_needs_no_source(cache: CachedDataset, path: Path) -> None:
    assert len(CachedDataset.from_cache(path).warmup()) == 10


# -------------------------------------------------------------------------------------- a stale cache


def test_another_length_is_noticed(cache: CachedDataset, path: Path) -> None:
    with pytest.raises(StaleCacheError, match=r"ten\.zip: begun for 10 samples, the source has 12 now"):
        CachedDataset(Source(12), path)


def test_another_class_is_noticed(cache: CachedDataset, path: Path) -> None:
    assert len(CachedDataset(Other(), path)) == 10  # a sample is the same
    text = r"type: 'Source' in the archive, 'Other' now, and spot_check=False computes none"
    with pytest.raises(StaleCacheError, match=text):
        CachedDataset(Other(), path, spot_check=False)


def test_a_stale_cache_names_the_remedy(cache: CachedDataset, path: Path) -> None:
    with pytest.raises(StaleCacheError, match="Use another path, or build it anew: keep_existing=False"):
        CachedDataset(Other(), path, spot_check=False)


def test_a_lazy_open_notices_another_length_too(cache: CachedDataset, path: Path) -> None:
    with pytest.raises(StaleCacheError, match="begun for 10 samples, the source has 9 now"):
        CachedDataset(Source(9), path, lazy=True)


@pytest.mark.parametrize("option", [{"compression": "zstd"}, {"codec": "pickle", "allow_pickle": True}])
def test_an_option_that_contradicts_the_archive_is_refused(
    cache: CachedDataset, path: Path, option: dict[str, Any]
) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(option))}='.*', but the archive was begun with"):
        CachedDataset(Source(), path, **option)


def test_other_labels_than_the_archives_are_refused(cache: CachedDataset, path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"in_memory_keys=\['x'\], but the archive was begun with \['y', 'name'\]"
    ):
        CachedDataset(Source(), path, in_memory_keys=["x"])


# ------------------------------------------------------------------------------------------- indexing


@pytest.mark.parametrize(
    "index", [-3, np.int64(7), np.uint8(7), torch.tensor(7), np.array(7)], ids=lambda i: type(i).__name__
)
def test_anything_that_is_an_integer_indexes(cache: CachedDataset, index: Any) -> None:
    assert cache[index]["name"] == "n7"


@pytest.mark.parametrize("index", [10, -11, np.int64(10), 2**70])
def test_an_index_past_the_end_is_an_index_error(cache: CachedDataset, index: Any) -> None:
    with pytest.raises(IndexError, match=rf"index {index} not in \[-10, 10\)") as caught:
        cache[index]
    assert type(caught.value) is SampleIndexError


@pytest.mark.parametrize("index", [[0.5, 1.7], ["a"], [0, None], np.array([1.0, 2.0])])
def test_a_list_of_what_is_no_index_is_refused(cache: CachedDataset, index: Any) -> None:
    with pytest.raises(OptionError):
        cache[index]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(2, 5), [2, 3, 4]),
        (slice(None, None, -4), [9, 5, 1]),
        (slice(8, 99), [8, 9]),
        ([3, -1, 3], [3, 9, 3]),
        ([], []),
        (np.array([4, 0], np.uint16), [4, 0]),
        (torch.tensor([5, -10]), [5, 0]),
        (np.arange(10) % 5 == 1, [1, 6]),
        ([True] + [False] * 8 + [True], [0, 9]),
        (torch.arange(10) > 7, [8, 9]),
        (range(1, 7, 5), [1, 6]),
    ],
)
def test_slices_lists_arrays_and_masks_give_views(
    cache: CachedDataset, index: Any, expected: list[int]
) -> None:
    view = cache[index]
    assert isinstance(view, View)
    assert view.indices.tolist() == expected
    assert names(view) == [f"n{i}" for i in expected]


def test_an_index_array_past_the_end_names_the_entry(cache: CachedDataset) -> None:
    with pytest.raises(IndexError, match=r"indices\[1\] = 12 not in \[-10, 10\)"):
        cache[[0, 12]]


def test_a_mask_of_another_length_is_refused(cache: CachedDataset) -> None:
    with pytest.raises(OptionError, match="mask has 3 entries, but the dataset has 10"):
        cache[[True, False, True]]


def test_getitems_past_the_end_is_an_index_error(cache: CachedDataset) -> None:
    with pytest.raises(IndexError, match=r"not in \[-10, 10\)"):
        cache.__getitems__([4, 10])


# ------------------------------------------------------------------------------ memory that is handed out


def test_in_place_edits_never_reach_the_cache(cache: CachedDataset) -> None:
    for _ in range(2):
        sample = cache[3]
        assert sample["image"].tolist() == [[3, 3, 3], [3, 3, 3]]
        assert sample["x"].tolist() == [3.0, 4.0, 5.0]
        sample["image"].add_(1)
        sample["x"][:] = -1
        sample["y"] = None


def test_views_of_the_file_outlive_the_dataset(cache: CachedDataset, path: Path) -> None:
    opened = edcache.numpy.open(path, zero_copy=True)
    x = opened[3]["x"]
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1
    opened.close()
    del opened
    assert x.tolist() == [3.0, 4.0, 5.0]


# ------------------------------------------------------------------------------ state, labels, repr


def test_complete_and_missing_of_a_part(path: Path) -> None:
    with CacheWriter(path) as writer:
        for i in (1, 4):
            writer.write(i, i)
    cache = CachedDataset.from_cache(path)
    assert cache.complete is False
    assert cache.missing.dtype == np.int64
    assert cache.missing.tolist() == [0, 2, 3]


def test_a_missing_sample_is_no_index_error(path: Path) -> None:
    cache = written(path, ["one"], indices=[1])
    with pytest.raises(MissingSampleError, match=r"sample 0 has no record yet \(1 of 2 have\)") as caught:
        list(cache)
    assert not isinstance(caught.value, IndexError)


def test_a_source_completes_what_a_writer_left(path: Path) -> None:
    write(path, [{"name": "kept"}], indices=[2])
    source = Source(4)
    assert names(CachedDataset(source, path, fingerprint=False)) == ["n0", "n1", "kept", "n3"]
    assert source.computed == [0, 1, 3]


def test_repr_tells_path_length_and_labels(cache: CachedDataset, path: Path) -> None:
    assert repr(cache) == f"CachedDataset({str(path)!r}, 10 samples, labels: y, name)"


def test_repr_tells_what_is_missing(path: Path) -> None:
    write(path, ["two"], indices=[2])
    assert repr(CachedDataset.from_cache(path)) == f"CachedDataset({str(path)!r}, 3 samples, 2 missing)"


def test_what_failed_to_open_has_a_repr_for_tracebacks_and_debuggers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDCACHE_DEBUG", "1")
    path.write_bytes(b"no archive")
    for source, name, options in (
        (None, path, {}),
        (None, f"{path}.not", {}),
        ([1], f"{path}.new", {"allow_partial": True}),
    ):
        with pytest.raises(EdcacheError) as caught:
            CachedDataset(source, name, **options)
        values = (value for entry in caught.traceback for value in entry.locals.values())
        held = [value for value in values if isinstance(value, CachedDataset)]
        assert held
        assert {*map(repr, held)} <= {"CachedDataset(not open)", f"CachedDataset({str(name)!r}, not open)"}


def test_refresh_shows_what_was_added(cache: CachedDataset, path: Path) -> None:
    assert cache.labels["y"].size == 10
    write(path, [{"name": "new", "y": 9}], "a")
    assert len(cache) == 10
    assert cache.refresh() is True
    assert (len(cache), cache[10]["name"], cache.labels["y"][10]) == (11, "new", 9)
    assert cache.refresh() is False


# --------------------------------------------------------------------------------- pickle and torch


def test_a_complete_dataset_pickles_without_its_source(path: Path) -> None:
    source = Source()
    source.huge, source._lock = bytes(10_000_000), threading.Lock()  # type: ignore[attr-defined]
    data = pickle.dumps(CachedDataset(source, path, in_memory_keys={"y": lambda sample: sample["y"]}))
    assert len(data) < 2000
    assert names(pickle.loads(data)) == [f"n{i}" for i in range(10)]


def test_a_lazy_dataset_pickles_with_its_source(path: Path) -> None:
    copy = pickle.loads(pickle.dumps(CachedDataset(Source(), path, lazy=True)))
    assert copy[4]["name"] == "n4"
    copy.close()


def test_a_read_only_archive_in_a_read_only_folder_opens() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "locked.zip"
        write(file, ["kept"])
        file.chmod(0o444)
        Path(folder).chmod(0o555)
        program = """
            import os, sys
            from edcache import CachedDataset
            class Source:
                def __len__(self): return 1
                def __getitem__(self, index): raise IndexError(index)
            # What it takes is imported now: nobody may be allowed to read the folder of the package.
            CachedDataset.from_cache(sys.argv[1])[0], CachedDataset(Source(), sys.argv[1])[0]
            if os.getuid() == 0:
                os.setgroups([]), os.setgid(65534), os.setuid(65534)
            if os.access(os.path.dirname(sys.argv[1]), os.W_OK) or not os.access(sys.argv[1], os.R_OK):
                sys.exit("the folder cannot be made read only here")
            print(CachedDataset.from_cache(sys.argv[1])[0], CachedDataset(Source(), sys.argv[1])[0])
        """
        lines = [line[12:] for line in program.splitlines()]
        command = [sys.executable, "-c", "\n".join(lines), str(file)]
        result = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
        Path(folder).chmod(0o755)
    if "cannot be made read only" in result.stderr:
        pytest.skip(result.stderr)
    assert result.stdout == "kept kept\n", result.stderr


# ---------------------------------------------------------------------------------------------- pickle codec


def test_codec_pickle_stores_any_object_and_reads_it_back(path: Path) -> None:
    for _ in range(2):
        assert CachedDataset(Sets(), path, codec="pickle")[3] == {"set": {3}}


@pytest.mark.parametrize("name", ["allow_pickle", "allow_partial"])
def test_options_of_opening_alone_are_refused_with_a_source(path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name}= is for CachedDataset.from_cache\(\); "):
        CachedDataset(Sets(), path, **{name: True})
    assert not path.exists()


def test_pickles_are_refused_unless_allowed_by_name(path: Path) -> None:
    CachedDataset(Sets(), path, codec="pickle")
    with pytest.raises(CodecError, match="allow_pickle=True"):
        CachedDataset.from_cache(path)[0]
    assert CachedDataset.from_cache(path, allow_pickle=True)[3] == {"set": {3}}


def test_info_tells_mapped_from_private_bytes(cache: CachedDataset) -> None:
    before = cache.info()
    assert before["samples"] == before["present"] == 10
    assert before["sealed"] is True
    assert before["labels"] == ["y", "name"]
    assert before["mapped"] == before["nbytes"] == os.path.getsize(cache.path)
    for _ in range(2):
        list(cache)
        cache.batch(range(10))
    after = cache.info()
    assert after == {**before, "private": after["private"]}
    assert after["private"] < 4096
    for _ in range(3):
        list(cache)
        cache.batch(range(10))
    assert cache.info() == after
