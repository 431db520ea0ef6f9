"""Arrays as long as an archive claims to be: refused on its word, made where the source is in hand."""

import numpy as np
import pytest

from edcache import CachedDataset, storage
from edcache.errors import LengthError, StorageError

LENGTH = 20_000_000


class Large:
    """Many samples, cheap ones."""

    in_memory_keys = ("y",)

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return {"y": index}


@pytest.fixture
def cache(path):
    ds = CachedDataset(Large(), path, lazy=True)
    assert ds[3] == {"y": 3}
    return ds


def test_a_dataset_with_its_source_may_be_as_long_as_the_source_says(cache):
    assert len(cache) == LENGTH
    assert len(cache[:].indices) == LENGTH
    assert len(cache.missing) in (LENGTH, LENGTH - 1)


def test_without_its_source_the_same_archive_is_not_believed(cache, path):
    cache.close()
    ds = CachedDataset.from_cache(path, allow_partial=True)
    assert (len(ds), ds[3]) == (LENGTH, {"y": 3})
    assert ds[10:20].indices.tolist() == list(range(10, 20))
    text = r"a\.zip: 20,000,000 samples would take [\d,]+ bytes here, the file has [\d,]+; where the length"
    for asked in (
        lambda: ds.missing,
        lambda: ds[:].indices,
        lambda: ds.indices,
        lambda: ds.labels.table,
        lambda: ds.filter(y=3),
    ):
        with pytest.raises(LengthError, match=text):
            asked()


def test_slices_are_those_of_a_range(path):
    ds = CachedDataset([{"y": i} for i in range(11)], path)
    for start in (None, -20, -3, 0, 4, 30):
        for stop in (None, -20, -3, 0, 4, 30):
            for step in (None, -20, -2, -1, 1, 3, 20):
                chosen = slice(start, stop, step)
                assert np.array_equal(ds[chosen].indices, np.arange(11)[chosen])


def test_a_file_that_cannot_be_mapped_says_what_does_without(path, monkeypatch):
    CachedDataset([{"y": 1}], path).close()

    def refuse(*arguments, **options):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(storage.calls.System, "map", refuse)
    with pytest.raises(StorageError, match=r'mapping [\d,]+ bytes: Cannot allocate memory; io="pread" reads'):
        CachedDataset.from_cache(path, io="mmap")
    assert CachedDataset.from_cache(path, io="pread")[0] == {"y": 1}
