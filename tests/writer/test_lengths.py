"""Sources with a len() that no archive can have, or that is none: a typed error, and nothing is written."""

import os
import sys

import numpy as np
import pytest

from edcache import CachedDataset
from edcache.errors import OptionError, SourceError


class Long:
    """Samples 0, 1, ..., as many as it is told; a function is called each time."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length() if callable(self.length) else self.length

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("length", [(1 << 62), sys.maxsize])
def test_more_samples_than_an_archive_holds_are_refused_and_nothing_is_written(path, length, lazy):
    with pytest.raises(OptionError, match=rf"a.zip: {length:,} samples; an archive holds at most "):
        CachedDataset(Long(length), path, lazy=lazy)
    assert os.listdir(path.parent) == []


class Odd(Exception):
    pass


def refuse():
    raise Odd("no idea")


NO_LENGTHS = [
    (refuse, "Odd: no idea"),
    (-1, r"ValueError: __len__\(\) should return >= 0"),
    (1 << 64, "OverflowError: cannot fit 'int' into an index-sized integer"),
    (2.0, "TypeError: 'float' object cannot be interpreted as an integer"),
    (None, "TypeError: 'NoneType' object cannot be interpreted as an integer"),
]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("length", "text"), NO_LENGTHS)
def test_a_length_that_is_none_is_refused(path, length, text, lazy):
    with pytest.raises(
        SourceError,
        match=rf"a.zip: len\(\) of the source, a Long, raised {text}; give a source whose len\(\)",
    ):
        CachedDataset(Long(length), path, lazy=lazy)
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("length", [np.int64(7), np.uint8(7), np.array(7)])
def test_a_number_of_numpy_is_a_length(path, length, lazy):
    ds = CachedDataset(Long(length), path, lazy=lazy)
    assert [ds[i] for i in range(len(ds))] == list(range(7))
    ds.close()
    assert CachedDataset.from_cache(path).complete


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"lazy": True}])
def test_the_length_is_that_of_the_first_time(path, options):
    lengths = iter([7, 9, 5, 0, *[11] * 100])
    ds = CachedDataset(Long(lambda: next(lengths)), path, multiprocessing_context="fork", **options)
    assert [ds[i] for i in range(len(ds))] == list(range(7))
    ds.close()
    assert CachedDataset.from_cache(path).complete
