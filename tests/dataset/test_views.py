"""Filters and views: selected by labels alone, composable, and equal to what a plain list would give."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from damage import flip_record
from written import write, written

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.dataset import split
from edcache.errors import OptionError, UnknownLabelError
from edcache.format import Head
from edcache.reader.session import Session
from edcache.writer.appender import Appender

LENGTH = 24
SPLIT = ["train", "train", "test"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> CachedDataset:
    """Sample i: y = i % 5, split = train, train, test, ...; score is missing from every fourth."""
    path = tmp_path_factory.mktemp("views") / "views.zip"
    with CacheWriter(path, in_memory_keys=["y", "split", "score"]) as writer:
        for i in range(LENGTH):
            score = None if i % 4 == 3 else i / 2
            writer.append({"i": i, "y": i % 5, "split": SPLIT[i % 3], "score": score})
    return CachedDataset.from_cache(path)


@pytest.fixture
def unread(whole: CachedDataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[CachedDataset]:
    """The same, where reading any sample fails."""

    def read(self: Session, index: int, *_: Any) -> Any:
        raise AssertionError(f"sample {index} was read")

    monkeypatch.setattr(Session, "read", read)
    yield whole
    with pytest.raises(AssertionError, match="sample 0 was read"):
        whole[0]


def numbers(view: Any) -> list[int]:
    return [sample["i"] for sample in view]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"y": 3}, [3, 8, 13, 18, 23]),
        ({"y": [0, 4], "split": "test"}, [5, 14, 20]),
        ({"y": np.array([1])}, [1, 6, 11, 16, 21]),
        ({"y": range(3, 5)}, [3, 4, 8, 9, 13, 14, 18, 19, 23]),
        ({"score": None}, [3, 7, 11, 15, 19, 23]),
        ({"score": 4}, [8]),
        ({"y": lambda column: column > 3}, [4, 9, 14, 19]),
        ({}, list(range(LENGTH))),
    ],
)
def test_filter_by_conditions_reads_no_sample(
    unread: CachedDataset, conditions: dict[str, Any], expected: list[int]
) -> None:
    assert unread.filter(**conditions).indices.tolist() == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("y in (0, 1) and split == 'test'", [5, 11, 20]),
        (pc.field("score") > 10, [21, 22]),
        (np.arange(LENGTH) % 12 == 1, [1, 13]),
        (np.array([5, 2, -1]), [5, 2, 23]),
        ([7, 7], [7, 7]),
        (lambda table: pc.equal(table["y"], 2), [2, 7, 12, 17, 22]),
    ],
    ids=["string", "expression", "mask", "indices", "list", "function"],
)
def test_filter_by_where_reads_no_sample(unread: CachedDataset, where: Any, expected: list[int]) -> None:
    assert unread.filter(where).indices.tolist() == expected


def test_where_and_conditions_must_both_hold(whole: CachedDataset) -> None:
    assert whole.filter("y > 2", split="test").indices.tolist() == [8, 14, 23]


def test_an_index_array_and_a_condition_keep_the_arrays_order(whole: CachedDataset) -> None:
    assert whole.filter([9, 4, 2, 9], y=4).indices.tolist() == [9, 4, 9]


def test_filter_works_where_every_record_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "damaged.zip"
    write(path, ({"x": bytes([i]) * 100, "y": i % 3} for i in range(9)), in_memory_keys=["y"])
    flip_record(path, *range(9), at=60)
    view = CachedDataset.from_cache(path).filter(y=1)[1:]
    assert (view.indices.tolist(), view.labels["y"].tolist()) == ([4, 7], [1, 1])
    with pytest.raises(ValueError, match=r"damaged\.zip: record 4 at offset .*: it fails its crc32"):
        view[0]


@pytest.mark.parametrize("where", [None, 'split == "trian"', 'split in ("trian",)'])
def test_a_text_that_no_sample_has_is_told_where_nothing_is_found(whole: CachedDataset, where: Any) -> None:
    text = "label \"split\" is 'trian' nowhere, but 'train', 'test'; did you mean train[?]"
    for ds in (whole, whole[3:]):
        with pytest.warns(RuntimeWarning, match=text):
            assert len(ds.filter(where) if where else ds.filter(split="trian")) == 0
    assert len(whole.filter(split="test").filter(split="train")) == 0
    assert len(whole.filter(split=["trian", "test"])) > 0


def test_a_mask_of_a_view_has_the_views_length(whole: CachedDataset) -> None:
    view = whole.filter(split="test")
    assert view.filter(view.labels["y"] == 0).indices.tolist() == [5, 20]
    with pytest.raises(OptionError, match="mask has 24 entries, but the dataset has 8"):
        view.filter(whole.labels["y"] == 0)


def test_indices_of_a_view_cannot_be_written(whole: CachedDataset) -> None:
    indices = whole[2:4].indices
    assert indices.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        indices[0] = 9


def test_an_index_array_that_changes_later_does_not_change_the_view(whole: CachedDataset) -> None:
    chosen = np.array([3, 1], np.int64)
    by_index, by_filter = whole[chosen], whole.filter(chosen)
    chosen[:] = 0
    assert (by_index.indices.tolist(), by_filter.indices.tolist()) == ([3, 1], [3, 1])


def test_an_unknown_column_is_named(whole: CachedDataset) -> None:
    with pytest.raises(UnknownLabelError, match='no label "lable"; this archive has: y, split, score'):
        whole[2:5].filter(lable=1)


def test_repr_of_a_view_tells_how_many_of_which_archive(whole: CachedDataset) -> None:
    assert repr(whole.filter(y=3)[2:]) == f"View({whole.path!r}, 3 samples: .filter(y=3)[2:])"
    both = edcache.concat([whole, whole])
    assert (repr(both), repr(both[:7])) == (
        "Concat(2 datasets, 48 samples)",
        "View(Concat(2 datasets, 48 samples), 7 samples: [:7])",
    )


def test_repr_of_a_view_tells_each_call_that_made_it(whole: CachedDataset) -> None:
    made = {
        whole.filter("y == 3", split=["train"]): ".filter('y == 3', split=['train'])",
        whole.filter(np.arange(len(whole)) < 3): ".filter(ndarray[24])",
        whole.filter(y=torch.tensor(3)).filter(y=np.array(3)): ".filter(y=Tensor).filter(y=ndarray)",
        whole.filter(y=[np.int64(3)]).take(np.int64(2)): ".filter(y=[3]).take(2)",
        whole.sort_by("score", descending=True).take(4): ".sort_by('score', descending=True).take(4)",
        whole.shuffle(7)[::2].repeat(3): ".shuffle(7)[::2].repeat(3)",
        whole.split(0.5, 0.5)[1]: ".split(0.5, 0.5)[1]",
        whole.kfold(3)[2][0]: ".kfold(3)[2][0]",
        whole.select("y", "x").with_transform(dict): ".select('y', 'x').with_transform(dict)",
        whole[[3, 1]][:]: "[[3, 1]][:]",
    }
    for view, text in made.items():
        assert repr(view) == f"View({whole.path!r}, {len(view):,} samples: {text})"
        assert repr(pickle.loads(pickle.dumps(view))) == repr(view)
    long = whole
    for _ in range(100):
        long = long[:]
    assert len(repr(long)) < 300


# ------------------------------------------------------------------------------------- by position


def test_take_slices_and_repeat_hold_no_array(whole: CachedDataset) -> None:
    for view in (whole[3:20:2], whole.take(9), whole.repeat(10**9)):
        assert len(pickle.dumps(view)) < len(pickle.dumps(whole[:1])) + 200
    assert whole.repeat(10**9)[24 * 10**8 + 5]["i"] == 5
    assert numbers(whole.repeat(10**12)[-3:].repeat(min_size=4)) == [21, 22, 23] * 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ds: ds.take(-1), "n=-1; give an integer of 0 or more"),
        (lambda ds: ds.take(1.5), "n=1.5; give an integer of 0 or more"),
        (
            lambda ds: ds.repeat(),
            "repeat() needs a number of times, repeat(3), or a size, repeat(min_size=10_000)",
        ),
        (lambda ds: ds.repeat(2**62), f"repeat({2**62}): this is more samples than fit into 64 bits"),
        (lambda ds: ds[:0].repeat(min_size=3), "repeat(min_size=3): the dataset has no samples to repeat"),
        (lambda ds: ds.shuffle("a"), "seed='a'; give an integer of 0 or more"),
        (
            lambda ds: ds.oversample("y", strategy="smote"),
            "strategy='smote'; choose one of 'exact', 'multiply'",
        ),
    ],
)
def test_arguments_that_make_no_view_are_refused(whole: CachedDataset, call: Any, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        call(whole)
    assert str(caught.value) == text


# ---------------------------------------------------------------------------------------- by seed


def test_what_a_seed_determines_is_the_same_for_ever(whole: CachedDataset) -> None:
    """The figures of numpy 2.4 on x86-64; streams of RandomState and PCG64 are the same everywhere."""
    assert whole.shuffle(7).indices.tolist()[:8] == SHUFFLED
    assert whole.split(0.75, 0.25, seed=7)[1].indices.tolist() == SPLIT_OFF


SHUFFLED = [18, 1, 19, 6, 5, 22, 9, 16]
SPLIT_OFF = [2, 8, 13, 18, 19, 21]


@pytest.mark.parametrize("sizes", [[0], [3], [0, 5], [70_000, 3, 0, 60_000], [1] * 300, [200_000, 1]])
def test_groups_have_the_sizes_that_were_asked_for(sizes: list[int]) -> None:
    groups = split.assigned(split.generator(1), sizes)
    assert np.bincount(groups, minlength=len(sizes)).tolist() == sizes
    assert split.assigned(None, sizes).tolist() == sorted(groups.tolist())


# --------------------------------------------------------------------------------------- by label


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> tuple[CachedDataset, dict[str, list[Any]]]:
    """Columns of every kind, with ties, nans, infinities and missing values; and their values."""
    day = dt.date(2020, 1, 1)
    columns: dict[str, list[Any]] = {
        "int": [5, -3, 2**60, 5, -(2**60), 0, 7, 7, -1, 3],
        "small": [3, 1, 2, 3, 1, 2, 3, 3, 1, 9],
        "gaps": [3, None, -2, 3, None, 2**40, 0, 0, 1, 3],
        "big": list(np.array([2**63 + 5, 1, 2**64 - 1, 0, 1, 5, 5, 2**63, 3, 4], np.uint64)),
        "float": [0.5, float("nan"), -0.0, 0.0, float("-inf"), -1.5, 0.5, float("inf"), 1e-300, -1e-300],
        "floats": [0.5, None, 2.5, None, -1.0, 0.25, 0.5, 9.0, 1.0, 2.0],
        "bool": [True, False, True, None, False, True, False, True, None, True],
        "text": ["b", "a", "", None, "ä", "Z", "a", "b", "aa", "\U0001f600"],
        "bytes": [b"b", b"a", b"", b"\xff", b"a", b"z", b"a", b"b", b"aa", b"0"],
        "day": [day + dt.timedelta(days=k * k % 7) for k in range(10)],
        "time": [None if k == 4 else dt.datetime(2020, 1, 1 + k % 3, k) for k in range(10)],
        "nothing": [None] * 10,
    }
    path = tmp_path_factory.mktemp("kinds") / "kinds.zip"
    with CacheWriter(path, in_memory_keys={name: (name,) for name in columns}) as writer:
        writer.extend({name: column[k] for name, column in columns.items()} for k in range(10))
    return CachedDataset.from_cache(path), columns


COLUMNS = [
    *("int", "small", "gaps", "big", "float", "floats", "bool", "text", "bytes", "day", "time", "nothing"),
]


def is_last(value: Any) -> bool:
    return value is None or value != value


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("order", [range(10), [3, 3, 1, 9, 0, 4, 4, 8], []])
def test_a_column_of_any_kind_sorts(kinds: Any, name: str, descending: bool, order: Any) -> None:
    ds, columns = kinds
    there = [k for k in order if not is_last(columns[name][k])]
    gone = [k for k in order if is_last(columns[name][k])]
    expected = sorted(there, key=columns[name].__getitem__, reverse=descending) + gone
    assert ds[list(order)].sort_by(name, descending=descending).indices.tolist() == expected


def test_views_of_views_share_the_array(whole: CachedDataset) -> None:
    view = whole.sort_by("y")
    for part in (
        view[3:9],
        view.take(5),
        view[::-2],
        view.select("i"),
        view[1:][1:],
    ):
        assert np.shares_memory(part.indices, view.indices)


# ------------------------------------------------------------------- archives that claim too much

LARGE = 10**8


@pytest.fixture(scope="module")
def boastful(tmp_path_factory: pytest.TempPathFactory) -> CachedDataset:
    """Ten samples, and the word that there are a hundred millions."""
    path = str(tmp_path_factory.mktemp("boastful") / "a.zip")
    write(path, ({"y": i} for i in range(10)), in_memory_keys=["y"])
    appender = Appender.open(path, Head(bytes(16)), mode="a")
    appender.amend(length=LARGE)
    appender.close()
    ds = CachedDataset.from_cache(path, allow_partial=True)
    assert len(ds) == LARGE
    return ds


def test_views_that_hold_no_array_of_it_are_made(boastful: CachedDataset) -> None:
    view = boastful[LARGE // 2 :: -3].take(10**7)[9 * 10**6 :].shuffle(3).repeat(2)[7:]
    assert len(view) == 2 * 10**6 - 7
    parts = boastful.split(0.25, 0.75, seed=None)
    assert [len(part) for part in parts] == [LARGE // 4, 3 * LARGE // 4]
    batch = next(iter(boastful.take(10).shuffle(0).loader(10, shuffle=True)))
    assert sorted(batch["y"].tolist()) == [*range(10)]
    assert len(edcache.samplers.Shuffle(boastful).which(len(boastful) // 8 - 1, batch_size=8)) == 8
    assert (boastful.take(10)[9], boastful[[3, 5]].indices.tolist()) == ({"y": 9}, [3, 5])


# ------------------------------------------------------------------------------------ without labels


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> CachedDataset:
    path = tmp_path_factory.mktemp("bare") / "bare.zip"
    return written(path, ({"i": i} for i in range(6)))


def test_without_labels_slices_masks_and_arrays_work(bare: CachedDataset) -> None:
    assert numbers(bare[1:4][-2:]) == [2, 3]
    assert numbers(bare[np.arange(6) > 3]) == [4, 5]
    assert numbers(bare.filter(np.arange(6) > 3)) == [4, 5]
    assert numbers(bare.filter([5, 0]).filter([False, True])) == [0]
    assert numbers(bare.filter()) == [0, 1, 2, 3, 4, 5]


def test_without_labels_a_condition_names_in_memory_keys(bare: CachedDataset) -> None:
    with pytest.raises(UnknownLabelError, match="in_memory_keys"):
        bare.filter(y=1)
    with pytest.raises(UnknownLabelError, match="in_memory_keys"):
        bare[1:3].filter("y == 1")
