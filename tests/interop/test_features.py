"""Samples of Hugging Face datasets have the dtypes that their features declare."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from optional import Library

from edcache import CachedDataset
from edcache.writer.source import declared

datasets = Library("datasets")


def features():
    d = datasets
    return d.Features(
        {
            "a": d.Array2D((2, 3), "uint8"),
            "any": d.Array3D((None, 1, 2), "float32"),
            "s": d.Sequence(d.Value("float32")),
            "fixed": d.Sequence(d.Value("int16"), length=2),
            "classes": d.Sequence(d.ClassLabel(names=["cat", "dog"])),
            "flags": d.Sequence(d.Value("bool")),
            "ragged": d.Sequence(d.Sequence(d.Value("int8"))),
            "maps": d.Sequence(d.Array2D((1, 2), "float64")),
            "texts": d.Sequence(d.Value("string")),
            "d": {"x": d.Sequence(d.Value("uint16")), "y": d.Value("float32")},
            "rows": [{"q": d.Sequence(d.Value("uint8")), "n": d.Value("int8")}],
            "v": d.Value("int16"),
            "t": d.Value("string"),
        }
    )


GRID = np.arange(6, dtype=np.uint8).reshape(2, 3) + 250
FULL = {
    "a": GRID,
    "any": np.float32([[[0.1, -0.0]], [[3, np.inf]]]),
    "s": np.float32([0.1, np.nan]),
    "fixed": np.int16([-1, 2]),
    "classes": np.int64([1, 0, 1]),
    "flags": np.array([True, False]),
    "ragged": [np.int8([1]), np.int8([]), np.int8([-2, 3])],
    "maps": [np.array([[0.1, 2.0]])],
    "texts": ["a", "b"],
    "d": {"x": np.uint16([65535]), "y": 0.5},
    "rows": [{"q": np.uint8([200]), "n": 1}, {"q": np.uint8([]), "n": None}],
    "v": 3,
    "t": "x",
}
HOLES = {
    **dict.fromkeys(FULL),
    "any": np.empty((0, 1, 2), np.float32),
    "s": [0.5, None],
    "ragged": [np.int8([1]), None],
    "texts": [],
    "d": {"x": None, "y": None},
    "rows": [],
}


def given(row):
    """A row as one gives it to datasets."""
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in row.items()} | (
        {"ragged": [None if one is None else one.tolist() for one in row["ragged"]]}
    )


@pytest.fixture
def source():
    return datasets.Dataset.from_list([given(FULL), given(HOLES)], features=features())


def check(sample, expected):
    assert type(sample) is type(expected)
    if isinstance(expected, dict):
        assert list(sample) == list(expected)
        for key, value in expected.items():
            check(sample[key], value)
    elif isinstance(expected, list):
        assert len(sample) == len(expected)
        for one, value in zip(sample, expected, strict=True):
            check(one, value)
    elif isinstance(expected, np.ndarray):
        assert (sample.dtype, sample.shape) == (expected.dtype, expected.shape)
        assert sample.tobytes() == expected.tobytes()
    else:
        assert sample == expected


def saved(source, folder):
    source.save_to_disk(folder)
    return datasets.load_from_disk(folder)


SOURCES = {
    "plain": lambda source, folder: source,
    "saved": saved,
    "stream": lambda source, folder: source.to_iterable_dataset(),
}


@pytest.mark.parametrize(
    ("form", "options"),
    [("plain", {}), ("plain", {"lazy": True}), ("plain", {"num_workers": 2}), ("saved", {}), ("stream", {})],
    ids=str,
)
def test_a_source_gives_arrays_of_the_declared_dtype(source, tmp_path, form, options):
    given_source = SOURCES[form](source, tmp_path / "saved")
    ds = CachedDataset(given_source, tmp_path / "a.zip", progress=False, **options)
    check(ds[0], FULL)
    check(ds[1], HOLES)


def test_a_large_image_takes_its_bytes_and_no_more(tmp_path):
    images = datasets.Features({"image": datasets.Array2D((200, 300), "uint8")})
    source = datasets.Dataset.from_dict({"image": np.zeros((4, 200, 300), np.uint8)}, features=images)
    CachedDataset(source, tmp_path / "a.zip", progress=False)
    assert (tmp_path / "a.zip").stat().st_size < 4 * 200 * 300 * 1.2


def test_a_format_wins(source, tmp_path):
    plain = source.select([0]).select_columns(["a", "s", "v"])
    made = {
        "torch": plain.with_format("torch"),
        "numpy": plain.with_format("numpy"),
        "own": plain.with_transform(lambda batch: {"s": batch["s"]}),
    }
    for name, formatted in made.items():
        assert declared(formatted) is formatted
        sample = CachedDataset(formatted, tmp_path / f"{name}.zip", progress=False)[0]
        assert list(sample) == list(formatted[0])
        assert all(type(sample[key]) is type(value) for key, value in formatted[0].items())
        if name == "torch":
            assert torch.equal(sample["a"], formatted[0]["a"])


def test_a_dataset_without_arrays_is_taken_as_it_is(source):
    plain = source.select_columns(["t", "v", "texts"])
    assert declared(plain) is plain
    assert declared([1]) == [1]


def test_a_source_with_declared_dtypes_is_pickled(source):
    typed = declared(source)
    check(typed[0], FULL)
    check(pickle.loads(pickle.dumps(typed))[0], FULL)
    assert len(typed) == 2
