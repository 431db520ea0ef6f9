"""Reader: what it says of itself and of the samples that it does not have."""

import re
import shutil

import numpy as np
import pytest
import torch
from written import write

from edcache import CachedDataset, CacheWriter, format
from edcache.errors import MissingSampleError, OptionError, SampleIndexError, StaleArchiveError
from edcache.reader import Reader
from edcache.writer import seal
from edcache.writer.appender import Appender


def sample(k):
    return {"x": torch.full((4,), k), "y": k}


@pytest.fixture
def path(tmp_path):
    """Samples 0 to 9 in chunks of 4, with their labels; 3 is missing, 5 and 7 failed."""
    path = tmp_path / "a.zip"
    with CacheWriter(path, in_memory_keys=["y"], chunk_size=4) as w:
        for k in (0, 1, 2, 4, 6, 8, 9):
            w.write(k, sample(k))
    appender = Appender.open(path, format.Head(bytes(16)), mode="a")
    failed = [[5, True, "ValueError", "no image", "Traceback of then"], [7, False, "OSError", "gone", "tb"]]
    appender.amend(failed=failed)
    seal(appender)
    appender.close()
    return path


def test_a_wrong_choice_is_refused(path):
    with pytest.raises(OptionError) as caught:
        Reader(path, verify="often")
    assert str(caught.value) == "verify='often'; choose one of 'touch', 'always', 'never'"


def test_it_says_what_it_reads(path):
    reader = Reader(path)
    assert repr(reader) == f"Reader({str(path)!r})"
    assert (
        reader.session.length,
        reader.session.index.present,
        reader.session.chunks,
        reader.session.declared_length,
    ) == (
        10,
        7,
        2,
        None,
    )
    assert reader.session.nbytes == path.stat().st_size
    assert len(reader.session.index.schemas) == 1
    assert reader.session.damaged == []
    assert (reader.session.sealed, reader.session.complete) == (True, False)


def test_a_sample_that_is_not_there_says_why(path):
    reader = Reader(path)
    with pytest.raises(SampleIndexError, match=r"a.zip: index 10 not in \[0, 10\)"):
        reader.session.read(10)
    with pytest.raises(MissingSampleError, match=r"sample 3 has no record yet \(7 of 10 have\); fill it"):
        reader.session.read(3)
    text = "sample 5 failed when it was made: ValueError: no image; it counts as absent for good; ds.errors has its"
    with pytest.raises(MissingSampleError, match=text):
        reader.session.read(5)
    with pytest.raises(MissingSampleError, match="sample 7 failed when it was made: .*; a later fill"):
        reader.session.read(7)


def test_a_group_is_of_samples_that_are_there(tmp_path, path):
    reader = Reader(path)
    with pytest.raises(MissingSampleError, match="sample 3 has no record yet"):
        reader.session.group(np.array([0, 3]))
    assert [one["y"] for one in reader.session.group(np.array([0, 9, -1])).samples()] == [0, 9, 9]
    assert reader.session.group(np.array([], np.int64)).samples() == []
    write(tmp_path / "dense.zip", map(sample, range(5)))
    for archive in (reader, Reader(tmp_path / "dense.zip")):
        for indices in ([0, 10], [-11, 0]):
            with pytest.raises(SampleIndexError, match=f"{indices[1] or indices[0]}"):
                archive.session.group(np.array(indices))
    with pytest.raises(OptionError, match="indices of float64 with 1 dim.*; give a 1-dim array of integers"):
        Reader(tmp_path / "dense.zip").session.group(np.array([0.5, 1.0]))


READS = {
    "a sample": lambda ds: ds[0],
    "a field": lambda ds: ds.select("x")[0],
    "a batch": lambda ds: ds.batch([0, 1, 2]),
    "a batch of a view": lambda ds: ds[::-1].batch([len(ds) - 1]),
    "samples": lambda ds: ds.__getitems__([2, 0]),
    "all": list,
    "a loader": lambda ds: next(iter(torch.utils.data.DataLoader(ds, 2))),
}


@pytest.mark.parametrize("is_checked", [False, True], ids=["at first", "after it was read"])
@pytest.mark.parametrize("verify", ["touch", "never"])
@pytest.mark.parametrize("read", READS)
def test_an_archive_that_another_is_copied_over_in_place_is_stale(tmp_path, read, verify, is_checked):
    """As by `cp`, which keeps the file: what is mapped has other bytes then, and what was checked is not again."""
    path, other = tmp_path / "a.zip", tmp_path / "b.zip"
    write(path, [sample(k) for k in range(9)])
    write(other, [sample(k + 5) for k in range(9)])
    several = [write(tmp_path / f"{k}.zip", [sample(k)]) for k in range(2)]
    with (
        CachedDataset.from_cache(path, verify=verify) as alone,
        CachedDataset.from_cache([path, *several], verify=verify) as joined,
    ):
        if is_checked:
            assert [one["y"] for one in alone] == list(range(9))
            assert [one["y"] for one in joined] == [*range(9), 0, 1]
        shutil.copyfile(other, path)
        told = (
            f"{path}: another archive was written over it while it was open; open it again. Give a new file "
        )
        for ds in (alone, joined):
            with pytest.raises(StaleArchiveError, match=re.escape(told)):
                READS[read](ds)
    with CachedDataset.from_cache(path) as again:
        assert again[0]["y"] == 5


def test_the_same_archive_that_grows_in_place_is_not_stale(tmp_path):
    path = tmp_path / "a.zip"
    write(path, [sample(k) for k in range(9)])
    with CachedDataset.from_cache(path) as ds:
        write(path, [sample(9)], "a")
        assert ds[0]["y"] == 0
        assert len(list(ds)) == 9
