"""Errors of a wrong call: their text says where to go on, and their traceback fits one screen."""

from __future__ import annotations

import ast
import datetime
import inspect
import os
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import edcache
from edcache import CachedDataset, OptionError, SourceError
from edcache.base import frames
from edcache.labels import Labels

PACKAGE = os.path.dirname(edcache.__file__)


class Squares(Dataset[dict[str, Any]]):
    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.computed(index), "label": index % 3}

    def computed(self, index: int) -> torch.Tensor:
        if index == self.bad:
            raise ArithmeticError("no square")
        return torch.full((index + 1,), float(index**2))


def files_of(error: BaseException) -> list[bool]:
    """Say of each frame of a traceback, the outermost first, whether it is of the package."""
    return [frame.filename.startswith(PACKAGE) for frame in traceback.extract_tb(error.__traceback__)]


def cached(folder: Path) -> CachedDataset:
    return CachedDataset(Squares(), folder / "a.zip", in_memory_keys=["label"])


def written(at: Path) -> edcache.CacheWriter:
    return edcache.CacheWriter(at / "w.zip", in_memory_keys=["label"])


def keyed(at: Path) -> edcache.KeyedCache:
    return edcache.KeyedCache(at / "k.zip")


def closed(at: Path) -> CachedDataset:
    ds = cached(at)
    ds.close()
    return ds


def shut_down() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    return pool


def labels_of(batch: Any) -> Any:
    return {"y": batch["label"]}


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "the source raises": (
        lambda at: CachedDataset(Squares(3), at / "b.zip"),
        "index 3: ArithmeticError: no square",
    ),
    "a worker's source raises": (
        lambda at: CachedDataset(Squares(3), at / "b.zip", num_workers=2),
        "no square",
    ),
    "an absent file": (lambda at: CachedDataset.from_cache(at / "b.zip"), "no such file; check the path"),
    "arguments swapped": (
        lambda at: CachedDataset(str(at / "b.zip"), Squares()),
        "a Squares stands where a path",
    ),
    "no place for a file": (
        lambda _: CachedDataset(Squares(), "/proc/b.zip"),
        "no file can be made in this folder",
    ),
    "a label with a slip": (lambda at: cached(at).filter("lable == 1"), "did you mean label"),
    "a column with a slip": (lambda at: cached(at).labels["lable"], "did you mean label"),
    "workers of a loader": (lambda at: cached(at).loader(4, num_workers=2), "num_threads"),
    "map of a function without columns": (
        lambda at: edcache.map(lambda batch: None, Squares(), at / "m.zip", batch_size=4),
        "give a dict of columns",
    ),
    "map of a function that raises": (
        lambda at: edcache.map(lambda sample: sample["y"], Squares(), at / "m.zip"),
        "the function of map, or its source, raised at index 0: KeyError: 'y'",
    ),
    "samples in Redis": (lambda _: CachedDataset(Squares(), "redis://host/0"), "RedisDataset"),
    "a storage that nobody knows": (lambda _: CachedDataset(Squares(), "nowhere://a.zip"), "s3://"),
    "an executor's class": (
        lambda at: CachedDataset(Squares(), at / "b.zip", executor=ThreadPoolExecutor),
        "give an object of a concurrent.futures.Executor",
    ),
    "an executor that was shut down": (
        lambda at: CachedDataset(Squares(), at / "b.zip", executor=shut_down()),
        "a task of ThreadPoolExecutor failed: RuntimeError: cannot schedule new futures after shutdown",
    ),
    "no path": (lambda _: CachedDataset.from_cache(None), "a NoneType stands where a path"),  # type: ignore[call-overload]
    "a URL that was a path": (
        lambda _: CachedDataset(Squares(), Path("s3://key:secret@bucket/a.zip")),
        '"s3:/..." stands where "s3://..." is to stand; a pathlib.Path takes a slash away',
    ),
    "a URL that was a path to read": (
        lambda _: CachedDataset.from_cache(Path("https://host/a.zip")),
        '"https:/..." stands where "https://..."',
    ),
    "a list of datasets": (
        lambda at: CachedDataset.from_cache([cached(at)]),  # type: ignore[list-item]
        "a CachedDataset stands where a path",
    ),
    "a list as a label": (
        lambda at: cached(at).split(0.5, 0.5, stratify=["label"]),  # type: ignore[arg-type]
        "<list> stands where the name of a label",
    ),
    "an empty batch": (lambda at: cached(at).batch([]), "give one index at least"),
    "one key in the place of keys": (
        lambda at: keyed(at).get_many("abc", list),
        "'abc' is one key; give a list of keys",
    ),
    "one key of a dataset": (lambda at: cached(at).indices_of("abc"), "'abc' is one key; give a list"),
    "changes swapped": (
        lambda at: edcache.changes(Squares(), cached(at)),  # type: ignore[arg-type]
        "a Squares stands where an archive",
    ),
    "map swapped": (
        lambda at: edcache.map(cached(at), Squares(), at / "m.zip"),  # type: ignore[arg-type]
        "fn=<CachedDataset>; give a function",
    ),
    "map with a name of datasets": (
        lambda at: edcache.map(len, Squares(), at / "m.zip", num_proc=2),  # type: ignore[call-arg]
        "map() takes no num_proc",
    ),
    "mapped without parentheses": (
        lambda _: edcache.mapped(len),  # type: ignore[arg-type]
        "write @edcache.mapped()",
    ),
    "a field to keep with a slip": (
        lambda at: edcache.map(lambda b: {"y": b["label"]}, Squares(), at / "m.zip", keep="lable"),
        "keep= names 'lable', which the samples do not have; they are dicts with the keys 'x', 'label'",
    ),
    "a key with a slip": (
        lambda at: edcache.map(len, Squares(), at / "m.zip", key="lable"),
        "key= names 'lable', which the samples do not have",
    ),
    "a function of a batch on devices": (
        lambda at: edcache.map(labels_of, Squares(), at / "m.zip", batch_size=4, devices="cpu"),
        "with devices= fn is called with the device, cpu, and returns the function of a batch; it raised TypeError",
    ),
    "a maker that returns no function": (
        lambda at: edcache.map(lambda place: None, Squares(), at / "m.zip", batch_size=4, devices="cpu"),
        "it returned None",
    ),
    "a number of devices": (
        lambda at: edcache.map(labels_of, Squares(), at / "m.zip", batch_size=4, devices=1),  # type: ignore[arg-type]
        "devices=1: 'int' object is not iterable; leave it out, or name what this machine has",
    ),
    "a device with a slip": (lambda at: next(iter(cached(at).loader(1, device="gpu"))), "device='gpu': Exp"),
    "a device that is not here": (
        lambda at: next(iter(cached(at).loader(1, device="cuda:99"))),
        "device='cuda:99': ",
    ),
    "a step that is no function": (lambda at: edcache.headroom(DataLoader(Squares()), 5), "step=5; give a f"),  # type: ignore[arg-type]
    "a transform that is no function": (lambda at: setattr(cached(at), "transform", 3), "transform=3; give"),
    "a sample that failed": (
        lambda at: CachedDataset(Squares(3), at / "b.zip", on_error="skip")[3],
        "sample 3 failed when it was made: ArithmeticError: no square; a later fill tries again; ds.errors has",
    ),
    "a source that became shorter": (
        lambda at: cached(at).spot_check([Squares()[0]]),
        "begun for 8 samples, the source has 1 now",
    ),
}


@pytest.mark.parametrize(("call", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_says_what_to_do_within_two_frames_of_the_package(
    call: Callable[[Path], object], text: str, tmp_path: Path
) -> None:
    with pytest.raises(edcache.EdcacheError) as raised:
        call(tmp_path)
    assert text in str(raised.value)
    assert sum(files_of(raised.value)) <= 2


# The text of each stands in other tests.
DEEP: dict[str, Callable[[Path], object]] = {
    "an option": lambda at: CachedDataset(Squares(), at / "b.zip", num_workers=-1),
    "options": lambda at: edcache.CacheOptions(chunk_size=0),
    "an absent label": lambda at: CachedDataset(Squares(), at / "b.zip", in_memory_keys=["lable"]),
    "a label that raises": lambda at: CachedDataset(
        Squares(), at / "b.zip", in_memory_keys={"a": lambda s: 1 // 0}
    ),
    "what cannot be stored": lambda at: CachedDataset([lambda: 1], at / "b.zip"),
    "no archive": lambda at: (
        (at / "b.zip").write_text("hello"),
        CachedDataset(Squares(), at / "b.zip"),
    ),
    "a sample that is missing": lambda at: CachedDataset(Squares(3), at / "b.zip", on_error="skip")[3],
    "a batch without one": lambda at: CachedDataset(Squares(3), at / "b.zip", on_error="skip").batch([3]),
    "a loader": lambda at: list(
        CachedDataset(Squares(3), at / "b.zip", on_error="skip").select("label").loader(2)
    ),
    "a closed dataset": lambda at: closed(at)[0],
    "the length of a closed dataset": lambda at: len(closed(at)),
    "labels of a closed dataset": lambda at: closed(at).labels,
    "a batch beyond the end": lambda at: cached(at).batch([99]),
    "counts": lambda at: cached(at).labels.counts("lable"),
    "a sort": lambda at: cached(at).sort_by("lable"),
    "folds": lambda at: cached(at).kfold(1),
    "keys": lambda at: cached(at).by_key("a"),
    "a sampler": lambda at: edcache.samplers.Balanced(cached(at), "lable"),
    "a join": lambda at: edcache.concat([]),
    "a mixture": lambda at: edcache.mix([cached(at)], weights=[-1]),
    "a writer": lambda at: written(at).append({"x": 1}),
    "a key": lambda at: keyed(at).get_or_create(0.5, int),
    "a place of keys": lambda at: edcache.KeyedCache("/proc/k.zip").get_or_create("a", int),
    "a folder of images": lambda at: edcache.image_folder(at),
    "an image": lambda at: edcache.ImageFile(b"no image").decode("pil"),
    "a check": lambda at: edcache.verify(at / "absent.zip"),
    "a copy": lambda at: edcache.copy_to_local(at / "absent.zip", at / "near"),
    "arrays": lambda at: edcache.numpy.open(at / "absent.zip"),
}


@pytest.mark.parametrize("call", DEEP.values(), ids=DEEP)
def test_an_error_from_the_depth_shows_two_frames_of_the_package_with_all_its_causes(
    call: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(edcache.EdcacheError) as raised:
        call(tmp_path)
    assert sum(files_of(raised.value)) <= 2
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.count(f'File "{PACKAGE}') <= 4
    assert len(shown.splitlines()) <= 35


def test_an_error_that_is_raised_while_another_one_is_handled_keeps_both(tmp_path: Path) -> None:
    with pytest.raises(edcache.EdcacheError) as raised:
        try:
            CachedDataset.from_cache(tmp_path / "first.zip")
        except edcache.EdcacheError:
            CachedDataset.from_cache([])
    assert "an empty list" in str(raised.value)
    assert "first.zip" in str(raised.value.__context__)
    assert raised.value.__cause__ is None


def test_every_public_function_and_method_cuts_the_traceback() -> None:
    kinds = [getattr(edcache, name) for name in edcache.__all__]
    functions = [kind for kind in kinds if inspect.isfunction(kind)]
    classes = [kind for kind in kinds if inspect.isclass(kind) and not issubclass(kind, BaseException)]
    classes += [getattr(edcache.samplers, name) for name in edcache.samplers.__all__]
    for kind in [*classes, Labels, edcache.numpy.ArrayDataset]:
        for base in (base for base in kind.__mro__ if base.__module__.startswith("edcache.")):
            doors = [member for name, member in vars(base).items() if name == "__init__" or name[0] != "_"]
            if base is kind or base.__name__ in ("Readable", "Samples"):
                functions += [member for member in doors if inspect.isfunction(member)]
    uncut = {one.__qualname__ for one in functions if one.__code__.co_filename != frames.__file__}
    assert not uncut


def test_the_frames_of_a_source_that_raises_stay(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as raised:
        CachedDataset(Squares(3), tmp_path / "a.zip")
    cause = raised.value.__cause__
    assert isinstance(cause, ArithmeticError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)][-2:] == [
        "__getitem__",
        "computed",
    ]
    assert sum(files_of(cause)) <= 2


class Keyed(Squares):
    def sample_keys(self) -> Any:
        return CachedDataset.from_cache("absent.zip")


def calls_wrongly(number: object) -> object:
    return CachedDataset.from_cache("absent.zip").loader(0)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda at: CachedDataset(Keyed(), at / "b.zip"), "sample_keys"),
        (lambda at: edcache.map(len, Squares(), at / "b.zip", key=calls_wrongly), "calls_wrongly"),
        (lambda at: edcache.map(lambda batch: cached(at).loader(0), [1], at / "b.zip"), "<lambda>"),
    ],
)
def test_the_frames_of_the_user_in_which_a_call_of_ours_is_wrong_stay(
    call: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    with pytest.raises(edcache.EdcacheError) as raised:
        call(tmp_path)
    # The first ones are of the test.
    frames = traceback.extract_tb(raised.value.__traceback__)[2:]
    assert [frame.name for frame in frames if not frame.filename.startswith(PACKAGE)] == [name]
    assert len(frames) <= 3


def test_debugging_keeps_all_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDCACHE_DEBUG", "1")
    with pytest.raises(SourceError) as raised:
        CachedDataset(Squares(3), tmp_path / "a.zip")
    assert sum(files_of(raised.value)) > 4


def test_the_frames_of_a_where_function_that_raises_stay(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as raised:
        cached(tmp_path).filter(lambda table: 1 // 0)
    assert raised.value.__cause__ is not None
    assert traceback.extract_tb(raised.value.__cause__.__traceback__)[-1].name == "<lambda>"


@pytest.mark.parametrize(
    "reads", [lambda ds: next(iter(DataLoader(ds, 4))), lambda ds: next(iter(ds.loader(4)))]
)
def test_fields_that_vary_in_shape_name_the_collation(reads: Callable[[Any], object], tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeError, match=r"equal size.*; field 'x' varies.*edcache\.collate\(pad=\{'x': 0\}"
    ):
        reads(cached(tmp_path))


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    CachedDataset(Squares(), "~/caches/a.zip")
    with edcache.CacheWriter("~/caches/b.zip") as writer:
        writer.append(1)
    assert sorted(os.listdir(tmp_path / "home/caches")) == ["a.zip", "b.zip"]
    assert os.listdir(tmp_path) == ["home"]
    assert len(CachedDataset.from_cache("~/caches/a.zip")) == len(edcache.numpy.open("~/caches/a.zip")) == 8
    assert len(CachedDataset.from_cache("~/caches/*.zip")) == len(CachedDataset.from_cache("~/caches")) == 9
    assert edcache.verify("~/caches/a.zip").samples == 8

    @edcache.cachable("~/caches/{part}.zip")
    def squares(part: str) -> Squares:
        return Squares()

    assert squares("c").path == str(tmp_path / "home/caches/c.zip")


def test_a_folder_whose_name_begins_so_is_written_with_its_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    CachedDataset(Squares(), "./~/a.zip")
    assert os.path.isfile(tmp_path / "~" / "a.zip")


def test_other_wrong_types_of_paths_are_named() -> None:
    with pytest.raises(OptionError, match="an int stands where a path"):
        CachedDataset(Squares(), 3)  # type: ignore[arg-type]


def test_a_fill_does_not_count_what_failed_as_cached(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    CachedDataset(Squares(3), tmp_path / "a.zip", on_error="skip")
    assert "a.zip: 7 of 8 cached, 1 failed, in 0:00:0" in capfd.readouterr().err


def test_the_frames_of_a_source_begin_with_its_own(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as raised:
        edcache.map(lambda sample: sample["y"], Squares(), tmp_path / "m.zip")
    assert raised.value.__cause__ is not None
    assert files_of(raised.value.__cause__)[0] is False


def test_values_by_key_are_not_iterated(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(keyed(tmp_path))  # type: ignore[call-overload]


def test_a_path_has_no_address_of_an_argument(tmp_path: Path) -> None:
    @edcache.cachable(tmp_path / "{config}.zip")
    def squares(config: object) -> Squares:
        return Squares()

    assert squares.cache_path(object()) == squares.cache_path(object())


def test_a_folder_that_is_named_like_a_url_is_written_with_its_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    CachedDataset(Squares(), "./s3:/a.zip")
    assert os.path.isfile(tmp_path / "s3:" / "a.zip")


@pytest.mark.parametrize("debug", ["0", "1"])
def test_the_arguments_of_each_frame_can_be_shown_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    monkeypatch.setenv("EDCACHE_DEBUG", debug)
    with pytest.raises(edcache.EdcacheError) as raised:
        CachedDataset.from_cache(tmp_path / "a.zip", storage_options={"token": "secret"})
    for frame, _ in traceback.walk_tb(raised.value.__traceback__):
        names, rest, keywords, held = inspect.getargvalues(frame)  # as a notebook does
        assert {*names, *filter(None, (rest, keywords))} <= {*held}
        if debug == "0" and frame.f_code.co_filename != __file__:
            assert "secret" not in str(held)


def no_y(sample: Any, *_: object) -> Any:
    return sample["y"]


@edcache.cachable("unmade.zip")
def factory() -> Any:
    return no_y({})


def near(at: Path, **options: Any) -> CachedDataset:
    return CachedDataset([{"x": torch.ones(2)}] * 8, at / "n.zip", progress=False, **options)


OF_USER: dict[str, Callable[[Path], object]] = {
    "a sample": lambda at: near(at).with_transform(no_y)[3],
    "the last sample": lambda at: near(at).with_transform(no_y)[-1],
    "a seeded transform": lambda at: near(at).with_transform(no_y, seed=1)[0],
    "an iteration": lambda at: next(iter(near(at).with_transform(no_y))),
    "a batch": lambda at: near(at).with_transform(no_y).batch([0, 1]),
    "a transform as an option": lambda at: near(at, transform=no_y).batch([0, 1]),
    "a batch_transform": lambda at: near(at, batch_transform=no_y).batch([0, 1]),
    "a DataLoader": lambda at: next(iter(DataLoader(near(at).with_transform(no_y), 4))),
    "a DataLoader without batches": lambda at: next(iter(DataLoader(near(at).with_transform(no_y), None))),
    "a DataLoader with a collate_fn": lambda at: next(
        iter(DataLoader(near(at).with_transform(no_y), 4, collate_fn=list))
    ),
    "a DataLoader with a collate_fn of ours": lambda at: next(
        iter(DataLoader(near(at).with_transform(no_y), 4, collate_fn=edcache.collate()))
    ),
    "a loader": lambda at: next(iter(near(at).with_transform(no_y).loader(4))),
    "a factory": lambda at: factory(),
}


@pytest.mark.parametrize("call", OF_USER.values(), ids=OF_USER)
def test_an_error_of_the_user_shows_the_users_frames(
    call: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyError, match="y") as raised:
        call(tmp_path)
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "no_y"
    assert sum(files_of(raised.value)) <= 2


def test_an_error_of_a_library_keeps_the_frames_of_who_called_it(tmp_path: Path) -> None:
    with pytest.raises(AttributeError) as raised:
        near(tmp_path).with_transform(torch.nn.functional.normalize)[0]
    assert sum(files_of(raised.value)) > 3


UNCOLLATED: dict[str, tuple[list[Any], str]] = {
    "none in some": (
        [{"x": 1, "mask": None if i % 2 else torch.ones(2)} for i in range(4)],
        r"field 'mask' is None in 2 of 4; take as_list=\['mask'\] of edcache.collate, or leave it out",
    ),
    "none in all": ([{"x": 1, "mask": None}] * 4, "field 'mask' is None in 4 of 4"),
    "none beside numbers": ([{"x": None if i else 1} for i in range(4)], "field 'x' is None in 3 of 4"),
    "none inside": ([{"a": [1, {"b": None}]}] * 4, r"'a.1.b' is None in 4 of 4; take as_list=\['a.1.b'\]"),
    "none in a tuple": ([(1, None)] * 4, r"field 1 is None in 4 of 4; take as_list=\[1\]"),
    "samples that are none": (
        [{"x": 1}, None] * 2,
        "a sample is None in 2 of 4; take a collate_fn of your own",
    ),
    "lists of two lengths": ([{"x": [1] * i} for i in range(4)], "field 'x' varies in shape: pad it by"),
    "samples of two lengths": ([[1] * (i + 1) for i in range(4)], "a sample varies in shape: a collate_fn"),
    "of a class": (
        [{"x": 1, "when": datetime.date(2020, 1, 1)}] * 4,
        "field 'when' is of date; take as_list",
    ),
    "of two kinds": (
        [{"x": "a" if i else 1.5} for i in range(4)],
        "field 'x' is of float, str; take as_list",
    ),
}


@pytest.mark.parametrize(("samples", "text"), UNCOLLATED.values(), ids=UNCOLLATED)
def test_a_field_that_is_not_collated_is_named(samples: list[Any], text: str, tmp_path: Path) -> None:
    ds = CachedDataset(samples, tmp_path / "a.zip", progress=False)
    for read in (
        lambda: next(iter(DataLoader(ds, 4))),
        lambda: ds.batch(range(4)),
        lambda: next(iter(ds.loader(4))),
        lambda: next(iter(DataLoader(ds, 4, collate_fn=edcache.collate()))),
    ):
        with pytest.raises((TypeError, RuntimeError), match=text):
            read()


@pytest.mark.parametrize(
    "name", ["none in some", "none in all", "none inside", "none in a tuple", "of a class"]
)
def test_the_remedy_of_a_field_that_is_not_collated_works(name: str, tmp_path: Path) -> None:
    ds = CachedDataset(UNCOLLATED[name][0], tmp_path / "a.zip", progress=False)
    with pytest.raises(TypeError) as raised:
        ds.batch(range(4))
    field = str(raised.value).partition("as_list=[")[2].partition("]")[0]
    collate_fn = edcache.collate(as_list=[ast.literal_eval(field)])
    assert len(next(iter(DataLoader(ds, 4, collate_fn=collate_fn)))) == len(ds[0])
