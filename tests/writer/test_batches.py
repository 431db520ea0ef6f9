"""A source with `__getitems__` is asked for batches; what one sample does wrong is that sample's."""

import functools
import itertools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

import edcache
from edcache import CachedDataset, OptionError, SourceError

COUNT = 100
# It computes only what it stores.
cached = functools.partial(CachedDataset, spot_check=False)


def value(index):
    return {"x": torch.full((3,), index, dtype=torch.bfloat16), "label": index % 7}


class Batches:
    """A source that writes a line for each call: the indices that it was asked for."""

    def __init__(self, log, form="list", bad=(), count=COUNT):
        self._log, self._form, self._bad, self._count = log, form, bad, count

    def __len__(self):
        return self._count

    def _note(self, indices):
        with open(self._log, "a") as file:
            file.write(f"{' '.join(map(str, indices))}\n")
        for index in indices:
            if index in self._bad:
                self._fail(index)

    def _fail(self, index):
        raise ValueError(f"sample {index} is bad")

    def __getitem__(self, index):
        self._note([index])
        return value(index)

    def __getitems__(self, indices):
        self._note(indices)
        samples = [value(index) for index in indices]
        if self._form == "list":
            return samples
        columns = {
            "x": torch.stack([sample["x"] for sample in samples]),
            "label": [sample["label"] for sample in samples],
        }
        return columns if self._form == "dict" else tuple(columns.values())


a_batch_raises = pytest.mark.filterwarnings("ignore:.*a batch of .* raised")


def calls(log):
    return [[int(index) for index in line.split()] for line in log.read_text().splitlines()]


def indices_of(batches):
    return list(itertools.chain.from_iterable(batches))


def check(ds, form="list", absent=()):
    assert len(ds) == COUNT
    for index in sorted({*range(COUNT)} - {*absent}):
        x, label = ds[index] if form == "tuple" else ds[index].values()
        assert torch.equal(x, value(index)["x"])
        assert x.dtype == torch.bfloat16
        assert (label, type(label)) == (index % 7, int)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.mark.parametrize("form", ["list", "dict", "tuple"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"executor": 2}], ids=str)
def test_every_sample_is_asked_for_once_in_batches(tmp_path, log, form, options):
    if "executor" in options:
        options = {"executor": ThreadPoolExecutor(options["executor"])}
    keys = None if form == "tuple" else ["label"]
    source = Batches(log, form)
    ds = cached(source, tmp_path / "a.zip", batch_size=16, in_memory_keys=keys, **options)
    check(ds, form)
    asked = calls(log)
    assert sorted(map(len, asked)) == [4, *[16] * 6]
    assert sorted(indices_of(asked)) == list(range(COUNT))
    if keys:
        assert ds.labels["label"].tolist() == [index % 7 for index in range(COUNT)]


def test_without_a_batch_size_a_batch_is_a_claim(tmp_path, log):
    check(cached(Batches(log), tmp_path / "a.zip"))
    assert {len(indices) for indices in calls(log)} == {1}  # a hundredth of the source
    log.unlink()
    cached(Batches(log, count=6400), tmp_path / "b.zip")
    assert {len(indices) for indices in calls(log)} == {64}


@a_batch_raises
@pytest.mark.parametrize("bad", [[0], [17], [31, 32], [99], [5, 6, 50]], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_narrowed_to_the_sample(tmp_path, log, bad, workers):
    source = Batches(log, "dict", bad)
    ds = cached(source, tmp_path / "a.zip", batch_size=16, on_error="skip", num_workers=workers)
    assert [(failure.index, failure.error) for failure in ds.errors] == [(k, "ValueError") for k in bad]
    check(ds, absent=bad)
    log.unlink()
    check(cached(Batches(log), tmp_path / "a.zip", fingerprint=False))
    assert sorted(indices_of(calls(log))) == bad


@a_batch_raises
def test_the_error_names_the_sample_and_what_was_computed_stays(tmp_path, log):
    with pytest.raises(
        SourceError, match=r"the source raised at index 37: ValueError: sample 37 is bad; .* 37 of 100"
    ):
        cached(Batches(log, bad=[37]), tmp_path / "a.zip", batch_size=10)
    log.unlink()
    check(cached(Batches(log), tmp_path / "a.zip", batch_size=10, fingerprint=False))
    assert indices_of(calls(log)) == list(range(37, COUNT))


class Short(Batches):
    def __getitems__(self, indices):
        return super().__getitems__(indices)[:-1]


class Odd(Batches):
    def __getitems__(self, indices):
        return 5


@pytest.mark.parametrize(
    ("kind", "error"),
    [(Short, "SourceError: 9 samples were given for 10 indices"), (Odd, "CodecError: columns: an int")],
)
def test_batches_that_are_none_are_not_stored(tmp_path, log, kind, error):
    with pytest.warns(
        RuntimeWarning, match=f"a batch of 10 samples, from index 0 on, raised {error}"
    ) as told:
        check(CachedDataset(kind(log), tmp_path / "a.zip", batch_size=10))
    assert len(told) == 1


class Deadly(Batches):
    def _fail(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


class Slow(Batches):
    def _fail(self, index):
        time.sleep(60)


@pytest.mark.parametrize(("kind", "timeout"), [(Deadly, None), (Slow, 0.2)])
def test_the_sample_of_a_batch_that_ends_or_hangs_its_process_is_set_aside(tmp_path, log, kind, timeout):
    source = kind(log, bad=[21, 22, 90])
    ds = CachedDataset(
        source, tmp_path / "a.zip", batch_size=8, num_workers=2, on_error="skip", timeout=timeout
    )
    assert [failure.index for failure in ds.errors] == [21, 22, 90]
    check(ds, absent=[21, 22, 90])


def test_a_subset_is_asked_for_batches_if_its_dataset_gives_them(tmp_path, log):
    order = np.random.default_rng(0).permutation(COUNT)
    ds = cached(Subset(Batches(log, "dict"), order), tmp_path / "a.zip", batch_size=25)
    assert [int(sample["x"][0]) for sample in ds] == order.tolist()
    assert [len(indices) for indices in calls(log)] == [25] * 4


@a_batch_raises
def test_a_batch_size_of_its_own_goes_on_with_a_fill_that_had_another(tmp_path, log):
    with pytest.raises(SourceError):
        cached(Batches(log, bad=[50]), tmp_path / "a.zip", batch_size=4)
    log.unlink()
    check(cached(Batches(log), tmp_path / "a.zip", batch_size=20, fingerprint=False))
    assert indices_of(calls(log)) == list(range(50, COUNT))
    assert max(map(len, calls(log))) > 4


def test_a_batch_size_is_a_count(tmp_path, log):
    for given in (0, -1, 2.5, "8"):
        with pytest.raises(OptionError, match="batch_size"):
            edcache.cachable(batch_size=given)


class Transformed(Batches):
    def __getitem__(self, index):
        return {**super().__getitem__(index), "index": index}


class Wrapped:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        if name.startswith("__edcache"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return {**self.inner[index], "index": index}


@pytest.mark.parametrize("wrap", [Transformed, lambda log: Wrapped(Batches(log))])
def test_a_getitem_of_its_own_is_not_passed_over(tmp_path, wrap):
    ds = CachedDataset(wrap(tmp_path / "log"), tmp_path / "a.zip", fingerprint=False)
    assert [ds[index]["index"] for index in range(COUNT)] == list(range(COUNT))
    assert all(len(call) == 1 for call in calls(tmp_path / "log"))
