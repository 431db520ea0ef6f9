"""Filters and views: selected by labels alone, composable, and equal to what a plain list would give."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from edcache import CachedDataset, CacheWriter, Reader, View
from edcache.errors import OptionError, SampleIndexError, UnknownLabelError

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

    def read(self: Reader, index: int, copy: bool = True) -> Any:
        raise AssertionError(f"sample {index} was read")

    monkeypatch.setattr(Reader, "read", read)
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
        ({"split": "valid"}, []),
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
    with CacheWriter(path, in_memory_keys=["y"]) as writer:
        writer.extend({"x": bytes([i]) * 100, "y": i % 3} for i in range(9))
    data = bytearray(path.read_bytes())
    reader = Reader(path)
    for offset in reader.records.offset.tolist():
        data[offset + 60] ^= 255
    reader.close()
    path.write_bytes(data)
    view = CachedDataset.from_cache(path).filter(y=1)[1:]
    assert (view.indices.tolist(), view.labels["y"].tolist()) == ([4, 7], [1, 1])
    with pytest.raises(ValueError, match=r"damaged\.zip: record 4 at offset .*: crc32 0x"):
        view[0]


def test_a_view_reads_its_own_samples(whole: CachedDataset) -> None:
    view = whole.filter(split="test")
    assert numbers(view) == [2, 5, 8, 11, 14, 17, 20, 23]
    assert (len(view), view[-1]["i"], view[np.int64(1)]["i"]) == (8, 23, 5)


@pytest.mark.parametrize("index", [8, -9])
def test_past_the_end_of_a_view_is_an_index_error(whole: CachedDataset, index: int) -> None:
    with pytest.raises(SampleIndexError, match=rf"index {index} not in \[-8, 8\)"):
        whole.filter(split="test")[index]


def test_an_empty_view_is_empty(whole: CachedDataset) -> None:
    view = whole.filter(y=99)
    assert (len(view), list(view), view.labels["y"].tolist(), view.filter(y=1).indices.tolist()) == (
        0,
        [],
        [],
        [],
    )


def test_labels_of_a_view_are_those_of_its_samples(whole: CachedDataset) -> None:
    view = whole[[7, 0, 7]]
    assert view.labels["y"].tolist() == [2, 0, 2]
    assert view.labels["split"].tolist() == ["train", "train", "train"]
    assert view.labels.table["score"].to_pylist() == [None, 0.0, None]


def test_a_mask_of_a_view_has_the_views_length(whole: CachedDataset) -> None:
    view = whole.filter(split="test")
    assert view.filter(view.labels["y"] == 0).indices.tolist() == [5, 20]
    with pytest.raises(OptionError, match="mask has 24 entries, the dataset 8"):
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


def test_a_view_pickles(whole: CachedDataset) -> None:
    copy = pickle.loads(pickle.dumps(whole.filter(split="test")[1:3]))
    assert (numbers(copy), copy.labels["y"].tolist()) == ([5, 8], [0, 3])


def test_a_data_loader_takes_a_view(whole: CachedDataset) -> None:
    batches = DataLoader(whole.filter(split="test")[["i" != "j"] * 8][1:], batch_size=4, collate_fn=numbers)
    assert list(batches) == [[5, 8, 11, 14], [17, 20, 23]]


def test_repr_of_a_view_tells_how_many_of_which_archive(whole: CachedDataset) -> None:
    assert repr(whole[2:5]) == f"CachedDataset({whole.path!r}, 24 samples)[2:5] (3 samples)"
    assert whole[2:5].cache is whole


# ------------------------------------------------------------------------------------ without labels


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> CachedDataset:
    path = tmp_path_factory.mktemp("bare") / "bare.zip"
    with CacheWriter(path) as writer:
        writer.extend({"i": i} for i in range(6))
    return CachedDataset.from_cache(path)


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


# ---------------------------------------------------------------------------------- the list model

STEPS = st.one_of(
    st.tuples(
        st.just("slice"),
        st.builds(slice, *[st.none() | st.integers(-30, 30)] * 2, st.sampled_from([1, 2, -1, -3])),
    ),
    st.tuples(st.just("pick"), st.lists(st.integers(0, 10_000), max_size=30)),
    st.tuples(st.just("mask"), st.lists(st.booleans(), min_size=30, max_size=30)),
    st.tuples(st.just("y"), st.sampled_from([0, 3, [1, 2, 4], range(1, 4), range(0, 5, 2)])),
    st.tuples(st.just("split"), st.sampled_from(["train", "test", ["test", "train"], "no"])),
    st.tuples(st.just("score"), st.just(None)),
    st.tuples(st.just("where"), st.sampled_from(["y >= 2", "not (split == 'test')", "score < 5 or y == 0"])),
)
WHERES = {
    "y >= 2": lambda i: i % 5 >= 2,
    "not (split == 'test')": lambda i: i % 3 != 2,
    "score < 5 or y == 0": lambda i: (i % 4 != 3 and i / 2 < 5) or i % 5 == 0,
}


def step_of_a_view(view: Any, kind: str, what: Any) -> View:
    if kind == "slice":
        return view[what]
    if kind == "pick":
        return view[[number % len(view) for number in what] if len(view) else []]
    if kind == "mask":
        mask = what[: len(view)] + [True] * (len(view) - 30)
        return view[mask] if len(view) % 2 else view.filter(mask)
    return view.filter(what) if kind == "where" else view.filter(**{kind: what})


def step_of_a_list(model: list[int], kind: str, what: Any) -> list[int]:
    if kind == "slice":
        return model[what]
    if kind == "pick":
        return [model[number % len(model)] for number in what] if model else []
    if kind == "mask":
        return [i for place, i in enumerate(model) if place >= 30 or what[place]]
    if kind == "where":
        return [i for i in model if WHERES[what](i)]
    if kind == "score":
        return [i for i in model if i % 4 == 3]
    wanted = what if isinstance(what, (list, range)) else [what]
    return [i for i in model if (i % 5 if kind == "y" else SPLIT[i % 3]) in wanted]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=5))
def test_views_compose_as_lists_do(whole: CachedDataset, steps: list[tuple[str, Any]]) -> None:
    view: Any = whole
    model = list(range(LENGTH))
    for kind, what in steps:
        view, model = step_of_a_view(view, kind, what), step_of_a_list(model, kind, what)
        assert view.indices.tolist() == model
    assert len(view) == len(model)
    assert view.labels["y"].tolist() == [i % 5 for i in model]
    assert view.labels["split"].tolist() == [SPLIT[i % 3] for i in model]
    assert numbers(view) == model
