"""Filling: once per sample, whatever happens in between and whoever helps."""

import time
from contextlib import closing

import pytest
import torch
from written import write

import edcache
from edcache import CachedDataset
from edcache.errors import (
    CodecError,
    LabelError,
    SourceError,
    StaleCacheError,
)
from edcache.format import Failure, Head
from edcache.reader import Reader
from edcache.writer import Appender


class Counted:
    """Remembers which samples were computed; `change` may replace or refuse one."""

    def __init__(self, length=50, change=None):
        self.length = length
        self.change = change or (lambda i, sample: sample)
        self.computed = []

    def __edcache_fingerprint__(self):
        return {}  # one that fails is the same as one that was mended

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        self.computed.append(i)
        return self.change(i, {"x": torch.full((3,), i), "y": i % 5})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "a.zip"


def refuse_at(index, error):
    def change(i, sample):
        if i == index:
            raise error
        return sample

    return change


def test_an_index_error_inside_the_source_is_no_end(path):
    with pytest.raises(SourceError, match="raised at index 3: IndexError: inner"):
        CachedDataset(Counted(change=refuse_at(3, IndexError("inner"))), path)


def test_what_was_kept_is_said(path, capsys):
    with pytest.raises(SourceError):
        CachedDataset(Counted(change=refuse_at(41, ValueError())), path)
    capsys.readouterr()
    CachedDataset(Counted(), path)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "a.zip: 41 of 50 already cached"
    assert last.startswith("a.zip: 50 of 50 cached in ")


@pytest.mark.parametrize(
    ("environment", "options"),
    [({"EDCACHE_PROGRESS": "0"}, {}), ({}, {"progress": False})],
)
def test_nothing_is_said_where_nobody_looks(path, capsys, monkeypatch, environment, options):
    with pytest.raises(SourceError):
        CachedDataset(Counted(change=refuse_at(41, ValueError())), path)
    capsys.readouterr()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    CachedDataset(Counted(), path, **options)
    assert capsys.readouterr().err == ""


def test_a_bar_shows_when_asked_for(path, capsys):
    CachedDataset(Counted(), path, progress=True)
    shown = capsys.readouterr().err
    assert "caching a.zip: 100%" in shown
    assert "50/50" in shown


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"x": {1, 2}, "y": 0}, CodecError, r'a.zip: sample 7: sample\["x"\]: cannot store set'),
        ({"x": 1, "y": "cat"}, LabelError, 'a.zip: label "y": sample 7 is a str .* samples are int64'),
    ],
)
def test_a_sample_that_cannot_be_kept_is_named_and_the_others_are_kept(path, bad, error, message):
    with pytest.raises(error, match=message):
        CachedDataset(Counted(change=lambda i, s: bad if i == 7 else s), path, in_memory_keys=["y"])
    assert CachedDataset.from_cache(path, allow_partial=True).missing.tolist() == list(range(7, 50))


def test_chunk_size_is_the_most_that_one_publication_holds(path):
    with pytest.raises(SourceError):
        CachedDataset(Counted(100, refuse_at(95, ValueError())), path, chunk_size=10)
    assert Reader(path, allow_partial=True).session.chunks == 10


@pytest.mark.parametrize(("chunk_size", "chunks"), [(1, 50), (7, 8), (50, 1), (51, 1)])
def test_a_fill_publishes_as_many_chunks_as_chunk_size_asks_for(path, chunk_size, chunks):
    CachedDataset(Counted(), path, chunk_size=chunk_size)
    assert edcache.verify(path).chunks == chunks


def test_a_label_of_another_type_than_in_published_chunks_is_refused(path):
    source = Counted(change=lambda i, s: s | {"y": "six"} if i == 6 else s)
    with pytest.raises(LabelError, match='a.zip: label "y": sample 6 is a str .*samples are int64'):
        CachedDataset(source, path, in_memory_keys=["y"], chunk_size=3)
    assert CachedDataset.from_cache(path, allow_partial=True).missing.tolist() == list(range(6, 50))


def test_a_slow_source_is_published_before_its_chunk_is_full(path):
    def look(i, sample):
        time.sleep(0.18)  # a small chunk waits a second
        if i == 7:
            assert len(CachedDataset.from_cache(path).missing) < 8
        return sample

    CachedDataset(Counted(8, look), path)


def test_an_empty_source_gives_a_sealed_empty_archive(path):
    ds = CachedDataset([], path)
    assert (len(ds), ds.complete, Reader(path).session.sealed) == (0, True, True)


def test_an_archive_with_more_samples_than_its_source_is_noticed(path):
    write(path, range(10))
    with pytest.raises(StaleCacheError, match="begun for 10 samples, the source has 5 now"):
        CachedDataset([0] * 5, path, fingerprint={"type": "any"})


# --- the disk is too small --------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
def test_an_archive_that_was_written_without_a_dataset_becomes_as_long_as_the_one_it_gets(path, lazy):
    write(path, [0])
    source = list(range(3))
    cache = CachedDataset(source, path, lazy=lazy, progress=False, fingerprint=False)
    assert len(cache) == 3
    assert list(cache.warmup(progress=False)) == source
    cache.close()
    assert list(CachedDataset.from_cache(path)) == source


def test_the_last_sample_of_a_dataset_that_fails_is_missing_from_an_archive_written_without_one(path):
    class Source:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            if index == 2:
                raise KeyError(index)
            return index

    write(path, [0])
    cache = CachedDataset(Source(), path, on_error="skip_final", progress=False, fingerprint=False)
    assert (len(cache), cache.missing.tolist(), cache.complete) == (3, [2], True)
    with pytest.raises(edcache.errors.MissingSampleError, match="sample 2 failed when it was made"):
        cache[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_another_process_skips_meanwhile_is_tried_here(path, num_workers):
    """Its source may be another: an import names what the old cache lacks as failed."""

    def noted(i, sample):
        if i == 3:
            with closing(Appender.open(path, Head(bytes(16)), mode="a")) as other:
                other.amend(failed=[Failure(40, False, "ValueError", "not there", "").to_json()])
        return sample

    options = {"spot_check": False, "progress": False, "chunk_size": 1, "num_workers": num_workers}
    ds = CachedDataset(Counted(change=noted), path, multiprocessing_context="fork", **options)
    assert ds.complete
    assert ds[40]["x"].tolist() == [40] * 3
    assert not ds.errors


def test_what_another_process_skips_and_fails_here_too_ends_the_fill(path):
    def noted(i, sample):
        if i == 40:
            raise ValueError("not here either")
        if i == 3:
            with closing(Appender.open(path, Head(bytes(16)), mode="a")) as other:
                other.amend(failed=[Failure(40, False, "ValueError", "not there", "").to_json()])
        return sample

    with pytest.raises(SourceError, match="raised at index 40: ValueError: not here either"):
        CachedDataset(Counted(change=noted), path, spot_check=False)
