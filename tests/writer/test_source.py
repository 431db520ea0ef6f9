"""Two sources are never taken for one: what tells them apart, and what does not."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime as dt
import enum
import functools
import importlib
import json
import linecache
import logging
import os
import random
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split
from written import write

from edcache import CachedDataset, cachable
from edcache.display import provenance
from edcache.errors import StaleCacheError
from edcache.identity import Settings, recipe_of
from edcache.reader import Reader

COUNT = 4


class Split(enum.Enum):
    TRAIN = 1
    VAL = 2


class Resize:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, x: Any) -> Any:
        return x


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: Any) -> Any:
        for transform in self.transforms:
            x = transform(x)
        return x


class Source:
    """Whatever attributes it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> int:
        return i


class Other(Source):
    """Of another class than a Source."""


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Record:
    split: str
    size: int = 32

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> int:
        return i


@dataclasses.dataclass(frozen=True)
class Config:
    size: int
    tags: Any = ()


class Slotted:
    __slots__ = ("__secret", "empty", "split")

    def __init__(self, split: str, secret: int = 0) -> None:
        self.split, self.__secret = split, secret

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> int:
        return i


class Day(dt.date):
    """A date of a class of ours."""


class Few(collections.deque[int]):
    """Numbers of a class of ours."""


class Opened(os.PathLike[str]):
    def __init__(self, path: str, mode: str) -> None:
        self.path, self.mode = path, mode

    def __fspath__(self) -> str:
        return self.path


class Zone(dt.tzinfo):
    def __init__(self, hours: int) -> None:
        self.hours = hours


def times(factor: int) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(x: Any) -> Any:
            return function(x) * factor

        return call

    return decorate


def keep(x: Any) -> Any:
    return x


def adder(k: Any) -> Any:
    return lambda x: x + k


def described(source: Any) -> dict[str, Any]:
    made = recipe_of(source).to_json()
    told = {**made["settings"], **made.get("columns", {}), **made.get("asks", {})}
    return {name.removeprefix("attribute "): text for name, text in told.items() if name != "type"}


def text_of(source: Any) -> str:
    return json.dumps(described(source))  # True is not 1


def assert_stale(first: Any, second: Any, path: Path, *texts: str, **options: Any) -> None:
    with CachedDataset(first, path, **options) as filled:
        filled[0]  # a lazy cache without a sample gives way to another source's
    with pytest.raises(StaleCacheError) as caught:
        CachedDataset(second, path, **options)
    for text in texts:
        assert text in str(caught.value)
    CachedDataset(first, path, **options)
    CachedDataset(second, path, fingerprint=False, spot_check=False, **options)


# ------------------------------------------------------------------------------------------- different


def test_another_source_of_the_class_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    CachedDataset(Source(split="train", size=32, flip=True), path)
    with pytest.raises(StaleCacheError) as caught:
        CachedDataset(Source(split="val", size=224, flip=True), path)
    assert str(caught.value) == (
        f"{path}: made by another source:\n"
        "  attribute split: 'train' in the archive, 'val' now\n"
        "  attribute size: 32 in the archive, 224 now\n"
        "use another path, or pass keep_existing=False to build it anew; leave out what makes no "
        'samples: __edcache_ignore__ = ["split", "size"] in the class of the source'
    )


def nested(*sizes: int, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        return torch.nested.nested_tensor([torch.zeros(size) for size in sizes], **options)


class Array(np.ndarray):
    """An array that may have attributes."""


def having(value: Any, **attributes: Any) -> Any:
    vars(value).update(attributes)
    return value


def quantized(scale: float) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(2), scale, 0, torch.qint8)


MANY = [f"{i}.png" for i in range(20_000)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, 0),
        (0, False),
        ("a", "b"),
        ("a" * 1_000, "a" * 999 + "b"),
        ((1, 2), (1, 3)),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"a": 2}),
        ({}, {"a": 1}),
        ({"a", "b"}, {"a", "c"}),
        (collections.deque([1, 2]), collections.deque([1, 3])),
        (MANY, list(reversed(MANY))),
        (MANY, MANY[1:]),
        (MANY, [f"{name}2" for name in MANY]),
        (list(range(100_000)), random.Random(1).sample(range(100_000), 100_000)),
        (np.arange(5), np.arange(1, 6)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.zeros((500, 500)), np.ones((500, 500))),
        (torch.zeros(3), torch.ones(3)),
        (having(torch.zeros(3), place=1), having(torch.zeros(3), place=2)),
        (having(np.zeros(3).view(Array), place=1), having(np.zeros(3).view(Array), place=2)),
        (np.ma.array([1], mask=[1], fill_value=3), np.ma.array([1], mask=[1], fill_value=4)),
        (quantized(0.1), quantized(0.2)),
        (nested(2, 3), nested(3, 2)),
        (nested(2, 3), nested(2, 3, layout=torch.jagged)),
        (np.array([None, "a"]), np.array([None, "b"])),
        (Resize(32), Resize(64)),
        (None, Resize(64)),
        (Compose(Resize(32), Resize(64)), Compose(Resize(64), Resize(32))),
        (Compose(Resize(32)), Compose(Resize(32), Resize(32))),
        ({"train": Resize(32)}, {"train": Resize(64)}),
        (Config(1), Config(2)),
        (Point(1), Point(2)),
        (argparse.Namespace(a=1), argparse.Namespace(a=2)),
        (keep, len),
        (functools.partial(keep, x=1), functools.partial(keep, x=2)),
        (functools.partial(Resize, 1), functools.partial(Resize, 2)),
        (Resize(1).__call__, Resize(2).__call__),
        (Resize, Compose),
        (slice(1), slice(2)),
        (np.zeros(100_000, np.uint8), np.eye(1, 100_000, 77_777, np.uint8)[0]),
        (Day(2020, 1, 1), Day(2020, 1, 2)),
        (Few([1]), Few([2])),
        (Opened("a", "r"), Opened("a", "w")),
        (dt.datetime(2020, 1, 1, tzinfo=Zone(1)), dt.datetime(2020, 1, 1, tzinfo=Zone(2))),
        (times(2)(keep), times(3)(keep)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_attributes_that_differ_are_told_apart(one: Any, other: Any) -> None:
    assert text_of(Source(a=one)) != text_of(Source(a=other))
    assert text_of(Source(a=one)) == text_of(Source(a=one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 5]),
        (range(4), range(1, 5)),
        (np.zeros(4), np.ones(4)),
        (torch.zeros(4), torch.ones(4)),
        ((1, 2), (1, 3)),
        (Point(1), Point(2)),
        (Record("train"), Record("val")),
        (Slotted("train"), Slotted("val")),
        (Slotted("train", 1), Slotted("train", 2)),
        (Subset(Source(), [0, 1]), Subset(Source(), [0, 2])),
        (Subset(Source(a=1), [0, 1]), Subset(Source(a=2), [0, 1])),
        (Subset(Source(), range(100_000)), Subset(Source(), range(1, 100_001))),
        (ConcatDataset([Source(a=1), Source(a=2)]), ConcatDataset([Source(a=2), Source(a=1)])),
        (ConcatDataset([Source()]), ConcatDataset([Other()])),
        (TensorDataset(torch.zeros(4)), TensorDataset(torch.ones(4))),
        (Source(datasets=[Source(a=1)] * 40), Source(datasets=[Source(a=2)] * 40)),
        (Source(dataset=Source(dataset=Source(a=1))), Source(dataset=Source(dataset=Source(a=2)))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sources_that_differ_are_told_apart(one: Any, other: Any) -> None:
    assert recipe_of(one).to_json() != recipe_of(other).to_json()
    assert recipe_of(one).to_json() == recipe_of(one).to_json()


def test_two_parts_of_one_split_are_two_sources(tmp_path: Path) -> None:
    source = Source()
    one, other = random_split(source, [2, 2], torch.Generator().manual_seed(1))
    assert_stale(one, other, tmp_path / "a.zip", "attribute indices: [")


def test_what_a_wrapper_holds_has_names(tmp_path: Path) -> None:
    one, other = (
        Subset(Source(split="train", transform=Compose(Resize(3), Resize(size))), [0, 1]) for size in (4, 5)
    )
    text = "attribute dataset.transform.transforms[1].size: 4 in the archive, 5 now"
    assert_stale(one, other, tmp_path / "a.zip", text)


def test_an_attribute_that_others_set_is_noticed(tmp_path: Path) -> None:
    source = Source(split="train")
    CachedDataset(source, tmp_path / "a.zip")
    source.split = "val"
    with pytest.raises(StaleCacheError, match="attribute split: 'train' in the archive, 'val' now"):
        CachedDataset(source, tmp_path / "a.zip")


def test_a_rank_that_a_source_keeps_is_compared(tmp_path: Path) -> None:
    text = "attribute rank: 0 in the archive, 1 now"
    assert_stale(Source(rank=0), Source(rank=1), tmp_path / "a.zip", text)


def test_an_attribute_that_came_or_went_is_noticed(tmp_path: Path) -> None:
    text = "attribute flip: absent in the archive, 0.5 now"
    CachedDataset(Source(), tmp_path / "a.zip")
    assert len(CachedDataset(Source(flip=0.5), tmp_path / "a.zip")) == 4  # it asks, and a sample answers
    with pytest.raises(StaleCacheError, match=f"{text}, and spot_check=False computes none"):
        CachedDataset(Source(flip=0.5), tmp_path / "a.zip", spot_check=False)


@pytest.mark.parametrize("options", [{"lazy": True}, {"num_workers": 2}, {"grow": True}], ids=str)
def test_another_source_is_noticed_however_it_is_filled(tmp_path: Path, options: dict[str, Any]) -> None:
    assert_stale(Source(a=1), Source(a=2), tmp_path / "a.zip", "attribute a: 1", **options)


def test_another_stream_is_noticed(tmp_path: Path) -> None:
    one, other = Stream(1), Stream(2)
    assert_stale(one, other, tmp_path / "a.zip", "attribute first: 1 in the archive, 2 now")


class Stream:
    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Any:
        for i in range(COUNT):
            yield self.first + i


def test_a_stream_that_says_what_it_is_keeps_that_beside_its_workers(tmp_path: Path) -> None:
    class Told(torch.utils.data.IterableDataset):
        def __init__(self, seed: int) -> None:
            self.seed = seed

        def __iter__(self) -> Any:
            yield from range(COUNT)

        def __edcache_fingerprint__(self) -> Any:
            return {"seed": self.seed}

    text = "attribute seed: 1 in the archive, 2 now"
    assert_stale(Told(1), Told(2), tmp_path / "a.zip", text, num_workers=1)


def test_keep_existing_builds_anew_for_another_source(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    CachedDataset(Source(a=1), path)
    CachedDataset(Source(a=2), path, keep_existing=False)
    CachedDataset(Source(a=2), path)


def test_two_sources_that_begin_one_archive_at_a_time_are_noticed(tmp_path: Path) -> None:
    path, both = tmp_path / "a.zip", threading.Barrier(2)

    class Slow(Source):
        waits = True

        def __len__(self) -> int:
            if threading.current_thread() is not threading.main_thread() and self.__dict__.pop(
                "waits", False
            ):
                both.wait(10)  # neither has an archive yet
            return COUNT

    caught: list[BaseException] = []

    def construct(source: Any) -> None:
        try:
            CachedDataset(source, path, progress=False)
        except StaleCacheError as error:
            caught.append(error)

    threads = [threading.Thread(target=construct, args=(Slow(a=a, waits=True),)) for a in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(caught) == 1


# ---------------------------------------------------------------------------------------------- the same


class Reading:
    """A source that keeps what reading makes, under private names."""

    def __init__(self, split: str = "train") -> None:
        self.split, self._lock = split, threading.Lock()
        self._file: Any = None
        self._cache: dict[int, Any] = {}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> int:
        self._file = self._file or open(__file__)  # noqa: SIM115
        self._cache[i] = i
        return i


def test_a_source_that_was_read_is_the_same_as_a_new_one(tmp_path: Path) -> None:
    path, source, new = tmp_path / "a.zip", Reading(), Reading()
    CachedDataset(source, path)
    for again in (source, new):
        CachedDataset(again, path)
    other = Reading("val")
    with pytest.raises(StaleCacheError, match="attribute split: 'train' in the archive, 'val' now") as caught:
        CachedDataset(other, path)
    assert len(str(caught.value).splitlines()) == 3
    for one in (source, new, other):
        one._file.close()


class Raising:
    def __edcache_fingerprint__(self) -> Any:
        raise ZeroDivisionError("no value yet")


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock(),
        sys.__stdout__,
        object(),
        [{"k": object()}],
        [Raising()] * 20,
        torch.nn.UninitializedParameter(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_content_is_passed_over(tmp_path: Path, value: Any) -> None:
    for held in ({"held": value}, {"_held": value}):
        for _ in range(2):
            CachedDataset(Source(a=1, **held), tmp_path / f"{len(held)}{next(iter(held))}.zip")
        with pytest.raises(StaleCacheError, match="attribute a: 1 in the archive, 2 now"):
            CachedDataset(Source(a=2, **held), tmp_path / f"{len(held)}{next(iter(held))}.zip")


def test_a_private_attribute_asks_for_a_sample(tmp_path: Path) -> None:
    class Shifted(Source):
        def __getitem__(self, index: int) -> Any:
            return index + self._shift

    path = tmp_path / "a.zip"
    CachedDataset(Shifted(_shift=1, _name="a"), path)
    CachedDataset(Shifted(_shift=1, _name="b"), path)
    with pytest.raises(StaleCacheError, match="sample .* is another one now: .*attribute _shift changed"):
        CachedDataset(Shifted(_shift=2, _name="a"), path)
    broken = Shifted(_shift="no number", _name="a")
    with pytest.raises(
        StaleCacheError, match="attribute _shift changed, .*sample . was not compared: .*TypeError"
    ):
        CachedDataset(broken, path)


WITHOUT_SOURCE = """
class Source:
    def __init__(self, split):
        self.split, self.change = split, lambda x: x + 1
    def __len__(self):
        return 3
    def __getitem__(self, i):
        return self.change(i)
"""


def test_a_class_without_source_is_told_apart_by_its_code(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "nowhere"}
    exec(WITHOUT_SOURCE, names)
    source = names["Source"]("train")
    assert set(described(source)) == {"split", "change"}
    exec(WITHOUT_SOURCE.replace("x + 1", "x + 2"), names)
    assert_stale(source, names["Source"]("train"), tmp_path / "a.zip", "is another one now", "<lambda>")


def test_a_class_of_code_without_a_module_is_a_source(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(WITHOUT_SOURCE, names)
    assert names["Source"].__getitem__.__module__ is None
    assert CachedDataset(names["Source"]("train"), tmp_path / "a.zip", progress=False)[2] == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Path("a/b"), "a/b"),
        (logging.getLogger("a"), logging.getLogger("a")),
        (Resize(3), Resize(3)),
        (adder(3), adder(3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_attributes_that_are_the_same(one: Any, other: Any) -> None:
    assert described(Source(a=one)) == described(Source(a=other))


def test_a_quantized_tensor_is_described_by_its_values() -> None:
    assert described(Source(a=quantized(0.1))) == described(Source(a=quantized(0.1)))


def test_a_table_is_described_by_its_values_and_not_by_its_blocks() -> None:
    pandas = pytest.importorskip("pandas")
    one = pandas.DataFrame({"x": [1, 2], "y": [3, 4], "z": ["a", "b"]})
    other = pandas.DataFrame({"x": [1, 2]})
    other["y"], other["z"] = [3, 4], ["a", "b"]
    assert described(Source(a=one)) == described(Source(a=other))
    other.index.get_loc(1)
    assert len(other.to_numpy()) == 2
    assert described(Source(a=one)) == described(Source(a=other))
    changed = [
        one.rename_axis("i"),
        one.rename(columns={"x": "w"}),
        one[["y", "x", "z"]],
        one.astype({"x": "Int64"}),
        one.set_index("x"),
        one.set_index(["x", "y"]),
        one.set_index(["x", "z"]),
        one.assign(z=pandas.Categorical(["a", "b"])).set_index(["x", "z"]),
        one.assign(z=pandas.Categorical(["a", "b"])),
        having(one.copy(), _attrs={"unit": "m"}),
        one["x"],
        one["x"].rename("w"),
    ]
    texts = [text_of(Source(a=value)) for value in [one, *changed]]
    assert len({*texts}) == len(texts)


def test_an_object_that_says_what_it_is_says_it_where_it_is_held_too() -> None:
    class Told(Resize):
        def __edcache_fingerprint__(self) -> Any:
            return {"size": self.size % 10}

    assert described(Source(a=Told(12))) == described(Source(a=Told(22))) != described(Source(a=Told(13)))


def test_properties_are_not_called() -> None:
    class Lazy(Source):
        @property
        def content(self) -> Any:
            raise AssertionError("expensive")

    assert described(Lazy(a=1)) == {"a": 1}


def test_the_labels_that_a_source_asks_for_are_not_compared(tmp_path: Path) -> None:
    assert described(Source(in_memory_keys=["y"])) == {}


def test_sources_may_hold_each_other() -> None:
    one, other = Source(a=1), Source(a=2)
    one.other, other.other = other, one
    assert described(one)["other.a"] == 2
    assert len(json.dumps(described(one))) < 500


# --------------------------------------------------------------------------------------- growth and place


class Files:
    def __init__(self, root: Path, names: list[str]) -> None:
        self.root, self.count = root, len(names)
        self.files = [str(root / name) for name in names]
        self.pairs = [(path, i) for i, path in enumerate(self.files)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> str:
        return Path(self.files[i]).name


def test_a_source_that_has_grown_is_the_same(tmp_path: Path) -> None:
    path, names = tmp_path / "a.zip", ["a", "b", "c", "d"]
    CachedDataset(Files(tmp_path, names[:2]), path)
    with pytest.raises(StaleCacheError, match="begun for 2 samples, the source has 4 now; grow=True"):
        CachedDataset(Files(tmp_path, names), path)
    CachedDataset(Files(tmp_path, names), path, grow=True)
    assert list(CachedDataset(Files(tmp_path, names), path)) == names


def test_a_source_that_has_grown_in_its_middle_is_another(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    CachedDataset(Files(tmp_path, ["a", "c"]), path)
    with pytest.raises(StaleCacheError, match="attribute files: .*'c'] in the archive, .*'b'] now"):
        CachedDataset(Files(tmp_path, ["a", "b", "c"]), path, grow=True)


def test_files_that_were_moved_are_the_same_with_a_warning(tmp_path: Path) -> None:
    path, (here, there) = tmp_path / "a.zip", (tmp_path / "here" / "data", tmp_path / "there" / "data")
    here.mkdir(parents=True)
    there.parent.mkdir()
    CachedDataset(Files(here, ["a", "b"]), path)
    here.rename(there)
    with pytest.warns(
        RuntimeWarning, match=f"elsewhere now:\n  attribute root: '{here}' in the archive, '{there}'"
    ):
        CachedDataset(Files(there, ["a", "b"]), path)
    CachedDataset(Files(there, ["a", "b"]), path)  # silently


def test_files_of_another_folder_that_is_there_are_others(tmp_path: Path) -> None:
    path, (here, there) = tmp_path / "a.zip", (tmp_path / "here" / "data", tmp_path / "there" / "data")
    here.mkdir(parents=True)
    CachedDataset(Files(here, ["a", "b"]), path)
    with pytest.raises(StaleCacheError, match=f"attribute root: '{here}' in the archive, '{there}' now"):
        CachedDataset(Files(there, ["a", "b"]), path)


@pytest.mark.parametrize(
    ("moved", "literal"),
    [
        (["/data/a"], ["{root}/a"]),
        ([("/data/a", 1)], [("{root}/a", 1)]),
        ({"/data/a": 1}, {"{root}/a": 1}),
        ([Path("/data/a")], [Path("{root}/a")]),
        (["of '/data/a'"], ["of '{root}/a'"]),
        ("of '/data/a'", "of '{root}/a'"),
        ([b"'/data/a"], [b"'{root}/a"]),
    ],
    ids=str,
)
def test_a_text_in_braces_is_no_file_below_a_folder(moved: Any, literal: Any) -> None:
    assert text_of(Source(root="/data", files=moved)) != text_of(Source(root="/data", files=literal))


@pytest.mark.parametrize(
    "files",
    [
        lambda root: [f"{root}/a", f"{root}/b"],
        lambda root: [(f"{root}/a", 1)],
        lambda root: {f"{root}/a": {f"{root}/b"}},
        lambda root: [Path(root) / "a"],
    ],
    ids=["list", "pairs", "keys", "paths"],
)
def test_files_below_a_folder_move_with_it(files: Any) -> None:
    one, other = (described(Source(root=root, files=files(root))) for root in ("/data", "/else/where"))
    assert one["files"][0] == other["files"][0]  # the form is of whole paths


PIECES = ("/data", "/data/", "/data//data/", "'", '"', "\\", "a", "b'/data/", "{root}/", "é")


@given(st.lists(st.lists(st.sampled_from(PIECES)).map("".join) | st.binary(max_size=2)), st.integers(0, 3))
def test_a_list_of_texts_is_described_as_its_texts_one_by_one(values: list[Any], wrapped: int) -> None:
    """A list that holds a range has no fast path."""
    roots = {"/data/": "root", "/data/a/": "train"}
    held = [tuple(values)] * wrapped + values * (not wrapped)
    fast, slow = Settings(roots).text(held), Settings(roots).text([*held, range(0)])
    assert fast[:-1] == slow.removesuffix("range(0, 0)]").removesuffix(", ")


def test_a_folder_under_another_name_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.zip"
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    CachedDataset(Source(root=tmp_path / "data"), path)
    for root in ("data", tmp_path / "link", str(tmp_path / "data") + "/"):
        CachedDataset(Source(root=root), path)


# ------------------------------------------------------------------------------------------------ size


@pytest.mark.parametrize(
    "attributes",
    [
        {f"parameter_{i}": "value" * i for i in range(200)},
        {"transform": Compose(*[Compose(*[Resize(i) for i in range(10)]) for _ in range(10)])},
        {"x" * 5_000: 1},
        {"ä" * 70 + str(i): "ß" * 70 for i in range(40)},
        {"model": torch.nn.Sequential(*[torch.nn.Conv2d(3, 3, 3) for _ in range(50)])},
    ],
    ids=["many", "deep", "a long name", "not of ASCII", "a model"],
)
def test_the_head_of_an_archive_stays_one_page(tmp_path: Path, attributes: dict[str, Any]) -> None:
    path = tmp_path / "a.zip"
    one, other = Source(last=1, **attributes), Source(last=2, **attributes)
    assert_stale(one, other, path, " in the archive, ")
    header = path.read_bytes()[4096:4100]
    assert header == b"PK\x03\x04"  # of the first chunk


def test_what_changed_is_named_where_all_is_too_long_for_the_head(tmp_path: Path) -> None:
    def source(size: int) -> Source:
        return Source(
            first=1, transform=Compose(*[Compose(*[Resize(size) for _ in range(10)]) for _ in range(10)])
        )

    path = tmp_path / "a.zip"
    CachedDataset(source(32), path)
    with pytest.raises(StaleCacheError) as caught:
        CachedDataset(source(64), path)
    changed = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert changed
    assert all(line.startswith("  attribute transform.transforms") for line in changed)


# ------------------------------------------------------------------------- archives that say nothing


def test_an_archive_that_says_nothing_of_its_source_warns_once(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    write(path, range(COUNT))
    CachedDataset(Source(), path, fingerprint=False)
    with pytest.warns(
        RuntimeWarning, match="a.zip: says nothing about the source that it was made of"
    ) as caught:
        CachedDataset(Source(), path)
    assert [warning.filename for warning in caught] == [__file__]
    CachedDataset(Source(), path)


def test_without_a_fingerprint_nothing_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    CachedDataset(Source(a=1), path, fingerprint=False)
    assert Reader(path).session.head.fingerprint is None
    CachedDataset(Other(a=2), path, fingerprint=False)


def test_the_attributes_of_a_source_are_shown(tmp_path: Path) -> None:
    CachedDataset(Source(split="train", size=(1, 2)), tmp_path / "a.zip")
    shown = list(provenance(Reader(tmp_path / "a.zip").session.head.fingerprint))
    assert shown[1:3] == [("attribute", "split='train'"), ("attribute", "size=(1, 2)")]


def test_a_cachable_cache_stays_one_for_its_source(tmp_path: Path) -> None:
    @cachable(tmp_path / "a.zip")
    def data() -> Source:
        return Source(a=1)

    data()
    CachedDataset(Source(a=2), tmp_path / "a.zip")


def test_an_archive_of_some_samples_says_nothing_and_one_of_all_what_the_old_one_said(tmp_path: Path) -> None:
    one, merged = tmp_path / "one.zip", tmp_path / "merged.zip"
    CachedDataset(Source(a=1), one)
    CachedDataset.from_cache(one)[::-1].save(merged)
    with pytest.warns(RuntimeWarning, match="says nothing"):
        CachedDataset(Source(a=2), merged)
    CachedDataset.from_cache(one).save(one)
    with pytest.raises(StaleCacheError, match="attribute a: 1 in the archive, 2 now"):
        CachedDataset(Source(a=2), one)


# ------------------------------------------------------------------------------------------------- code

MODULE = '''
class Base:
    unit = {unit}
    def __len__(self):
        return 3

class Scale:
    def __call__(self, x):
        return x * {scale}

class Source(Base):
    """{docstring}"""
    def __init__(self):
        self.transform = Scale()
    def __getitem__(self, i):  # {comment}
        return self.transform(i)
'''


def load(folder: Path, **changes: Any) -> Any:
    text = MODULE.format(**{"unit": 1, "scale": 1, "docstring": "", "comment": ""} | changes)
    (folder / "edited_source.py").write_text(text)
    sys.modules.pop("edited_source", None)
    linecache.clearcache()
    importlib.invalidate_caches()
    return importlib.import_module("edited_source").Source()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_code_that_changed_is_named_if_it_makes_other_samples(folder: Path) -> None:
    CachedDataset(load(folder), folder / "a.zip")
    CachedDataset(load(folder, unit=2), folder / "a.zip")
    with pytest.raises(StaleCacheError, match=r"the code of Scale.__call__ changed"):
        CachedDataset(load(folder, scale=2), folder / "a.zip")
    CachedDataset(load(folder, scale=2), folder / "a.zip", fingerprint=False)


def test_comments_and_docstrings_are_no_change_of_code(folder: Path) -> None:
    CachedDataset(load(folder), folder / "a.zip")
    CachedDataset(load(folder, docstring="more", comment="why"), folder / "a.zip")


# ------------------------------------------------------------------------------------------- Hugging Face


def test_a_dataset_that_was_shuffled_again_is_noticed(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": list(range(20))})
    path = tmp_path / "a.zip"
    one, other = rows.shuffle(seed=1), rows.shuffle(seed=2)
    assert_stale(one, other, path, "is another one now", "attribute fingerprint changed")
    text = "attribute dataset.fingerprint changed"
    assert_stale(Subset(one, [0]), Subset(other, [0]), tmp_path / "b.zip", "is another one now", text)
