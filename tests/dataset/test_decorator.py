"""@cachable: the first call fills, later calls open, and another call's cache is never served in silence."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from optional import Later, Library, made
from torch.utils.data import DataLoader

from edcache import CachedDataset, cachable
from edcache.errors import OptionError, SourceError, StaleCacheError

pd, datasets = Library("pandas"), Library("datasets")

CALLS: list[Any] = []
COMPUTED: list[int] = []
GIVEN: dict[str, Any] = {}


class Squares:
    def __init__(self, length: int = 6, plus: int = 0, fails_at: int | None = None) -> None:
        self.length, self.plus, self.fails_at = length, plus, fails_at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < self.length:
            raise IndexError(i)
        if i == self.fails_at:
            raise ValueError(f"broken file {i}")
        COMPUTED.append(i)
        return {"square": i * i + self.plus, "y": i % 3}


@cachable(spot_check=False)
def by_name(split: str = "train", size: int = 4) -> Squares:
    """Squares, by the name of their split."""
    CALLS.append(split)
    return Squares(size)


class Named:
    """Stable under repr, so that methods can be told apart."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Named({self.name})"

    @cachable
    def squares(self, size: int = 3) -> Squares:
        CALLS.append(self.name)
        return Squares(size)


@dataclass
class Made:
    k: int

    def make(self) -> Squares:
        return Squares(self.k)

    __call__ = make


def hf_dataset(columns: Any) -> Any:
    return datasets.Dataset.from_dict(columns)


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    COMPUTED.clear()
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path / "home"))


def squares(dataset: Any) -> list[int]:
    return [sample["square"] for sample in dataset]


def factory_at(path: Path, plus: int = 0, **options: Any) -> Callable[..., CachedDataset]:
    @cachable(path, **options)
    def numbers(a: Any = 1, b: Any = "x") -> Squares:
        CALLS.append((a, b))
        return Squares(plus=plus)

    return numbers


# --------------------------------------------------------------------------------------- where it lies


def test_the_path_names_parameters(tmp_path: Path) -> None:
    @cachable(tmp_path / "{split}-{size}.zip")
    def data(split: str, size: int = 3) -> Squares:
        return Squares(size)

    assert data.cache_path("train") == str(tmp_path / "train-3.zip")
    assert data.cache_path(size=7, split="a b/c") == str(tmp_path / "a_b_c-7.zip")
    assert len(data("train")) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["train-3.zip"]


def test_a_path_of_an_unknown_parameter_is_refused(tmp_path: Path) -> None:
    @cachable(tmp_path / "{spilt}.zip")
    def data(split: str) -> Squares:
        return Squares()

    with pytest.raises(OptionError, match=r"contains \{spilt\}, but the parameters of .*data are: split"):
        data("train")


@pytest.mark.parametrize("name", ["{size:03d}.zip", "{split.name}.zip", "{split!x}.zip", "{split"])
def test_a_path_that_does_not_format_is_an_option_error(tmp_path: Path, name: str) -> None:
    @cachable(tmp_path / name)
    def data(split: str = "train", size: int = 3) -> Squares:
        return Squares()

    with pytest.raises(OptionError):
        data.cache_path()


class Untold:
    """Argument that cannot be written; `asked` counts."""

    asked = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        Untold.asked += 1
        raise RuntimeError("it has no text")


@pytest.mark.parametrize("name", ["a.zip", "{split}.zip", "{thing_2}.zip", "{{thing.zip"])
def test_an_argument_that_the_path_does_not_name_is_not_written(tmp_path: Path, name: str) -> None:
    @cachable(tmp_path / name)
    def data(split: str = "train", thing: Any = None, thing_2: int = 3) -> Squares:
        return Squares()

    Untold.asked = 0
    assert len(data("train", Untold(1))) == len(Squares())
    assert len(data("train", Untold(1))) == len(Squares())
    assert not Untold.asked
    with pytest.raises(StaleCacheError, match="argument thing"):
        data("train", Untold(2))


@pytest.mark.parametrize("name", ["{thing}.zip", "{split}-{thing!s}.zip", "{thing.value}.zip"])
def test_an_argument_of_the_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    @cachable(tmp_path / name)
    def data(split: str = "train", thing: Any = None) -> Squares:
        return Squares()

    text = r"an Untold cannot be written into the path, its str\(\) raised RuntimeError: it has no text"
    with pytest.raises(OptionError, match=text):
        data("train", Untold(1))


def test_without_a_path_an_argument_that_cannot_be_written_is_in_the_digest() -> None:
    @cachable
    def data(split: str, thing: Any) -> Squares:
        return Squares(thing.value)

    one, same, other = (data("a", Untold(value)) for value in (1, 1, 2))
    assert one.path == same.path != other.path
    assert "data-split=a-" in one.path
    assert (len(same), len(other)) == (1, 2)


def test_without_a_path_it_lies_under_edcache_dir_with_a_readable_name(tmp_path: Path) -> None:
    path = Path(by_name.cache_path("test", size=2))
    assert path.parent == tmp_path / "home"
    assert path.name.startswith("test_decorator.by_name-split=test,size=2-")
    assert path.suffix == ".zip"
    by_name("test", 2)
    assert path.exists()


def test_without_a_path_other_arguments_have_other_archives() -> None:
    assert by_name.cache_path("a") != by_name.cache_path("b")
    assert by_name.cache_path("a", 4) == by_name.cache_path(split="a")


NAMING = """
import sys
from edcache import cachable
def double(x): return 2 * x
def make(fn, tags): return [fn(1)]
print(cachable(make).cache_path(double, {"one", "two"}))
print(cachable("{fn}-{tags}.zip")(make).cache_path(double, {"one", "two"}))
"""


def test_a_path_has_no_address_and_no_order_of_a_process() -> None:
    def named(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", NAMING]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    first = named("1")
    assert named("3") == first
    assert "make-fn=double,tags=set_one_,_two_-" in first
    assert first.endswith("\ndouble-set_one_,_two_.zip\n")


def test_cache_path_touches_nothing(tmp_path: Path) -> None:
    by_name.cache_path()
    assert CALLS == []
    assert not (tmp_path / "home").exists()


# ------------------------------------------------------------------------------------ as a function


def test_name_docstring_and_signature_are_the_functions() -> None:
    assert by_name.__name__ == "by_name"
    assert by_name.__doc__ == "Squares, by the name of their split."
    assert by_name.__module__ == __name__
    assert str(inspect.signature(by_name)) == "(split: 'str' = 'train', size: 'int' = 4) -> 'Squares'"


def test_uncached_is_the_function_itself() -> None:
    assert type(by_name.uncached("any")) is Squares
    assert COMPUTED == []


def test_a_decorated_function_pickles_by_name() -> None:
    assert pickle.loads(pickle.dumps(by_name)) is by_name


def test_brackets_without_arguments_work_too() -> None:
    @cachable()
    def data() -> Squares:
        return Squares(2)

    assert squares(data()) == [0, 1]


def test_methods_can_be_decorated() -> None:
    assert squares(Named("a").squares()) == [0, 1, 4]
    assert squares(Named("a").squares(3)) == [0, 1, 4]
    assert squares(Named("b").squares(size=2)) == [0, 1]
    assert CALLS == ["a", "b"]


def test_a_method_of_an_object_without_content_is_cached() -> None:
    class Vague:
        def __init__(self) -> None:
            self.handle = sys.__stdout__

        @cachable
        def squares(self) -> Squares:
            return Squares()

    assert len(Vague().squares()) == len(Vague().squares()) == len(Squares())


def test_wrong_arguments_are_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"\(\): got an unexpected keyword argument 'spilt'"):
        by_name(spilt="train")


def test_an_unknown_on_stale_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="on_stale='never'; choose one of 'error', 'warn', 'rebuild'"):
        factory_at(tmp_path / "n.zip", on_stale="never")


# ------------------------------------------------------------------------------------- calls and calls


def test_the_second_call_does_not_run_the_factory() -> None:
    assert squares(by_name("train")) == squares(by_name(split="train")) == [0, 1, 4, 9]
    assert (CALLS, COMPUTED) == (["train"], [0, 1, 2, 3])


def test_options_for_reading_hold_for_later_calls(tmp_path: Path) -> None:
    @cachable(tmp_path / "z.zip", verify="always")
    def data() -> list[Any]:
        return [{"x": np.arange(4)}]

    for _ in range(2):
        assert data()._archive.reader.options.verify == "always"


def test_other_arguments_at_the_same_path_are_noticed(tmp_path: Path) -> None:
    numbers = factory_at(tmp_path / "n.zip")
    numbers(a=1)
    with pytest.raises(StaleCacheError) as caught:
        numbers(a=2)
    assert str(caught.value) == (
        f"{tmp_path}/n.zip: made by another call:\n"
        "  argument a: 1 in the archive, 2 now\n"
        'use another path, delete the file, or pass on_stale="rebuild"; leave out what makes no samples: '
        '@cachable(ignore=["a"])'
    )
    assert CALLS == [(1, "x")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, "1"),
        (0.5, "0.5"),
        ([1, 2], "[1, 2]"),
        (None, "None"),
        (Path("a"), "Path('a')"),
        (True, 1),
        ({"k": 1}, {"k": 2}),
        (b"a", "b'a'"),
        (np.zeros(3), np.zeros((3, 1))),
        (
            Later(lambda: pd.DataFrame({"v": range(100)})),
            Later(lambda: pd.DataFrame({"v": [*range(50), -1, *range(51, 100)]})),
        ),
        (Later(lambda: pd.Series([1, 2])), Later(lambda: pd.Series([1, 2], dtype="int8"))),
        (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
        (deque([np.arange(2000)]), deque([np.arange(2000) * (np.arange(2000) != 999)])),
        (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j])),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
        (pa.table({"v": [1]}), pa.table({"v": [2]})),
        (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse()),
    ],
)
def test_arguments_that_differ_are_told_apart(tmp_path: Path, before: Any, after: Any) -> None:
    numbers = factory_at(tmp_path / "n.zip")
    numbers(a=made(before))
    with pytest.raises(StaleCacheError, match=r"argument a[:.\[]"):
        numbers(a=made(after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1, 2], (1, 2)),
        (["b", "a"], ["a", "b"]),
        ({"k": ["b", "a"]}, {"k": ["a", "b"]}),
        (re.compile("cat|dog"), re.compile("dog|cat")),
        ("cat|dog", "dog|cat"),
        (4, np.int64(4)),
        (0.5, np.float64(0.5)),
        ("x", np.str_("x")),
        ([Path("a")], ["a"]),
        (np.array([2, 1]), np.array([1, 2])),
        (np.zeros(3), np.zeros(3, np.float32)),
        (Later(lambda: pd.Series([1, 2])), Later(lambda: pd.Series([2, 1]))),
    ],
)
def test_the_same_items_in_another_order_or_kind_ask(tmp_path: Path, before: Any, after: Any) -> None:
    @cachable(tmp_path / "n.zip", ignore=["plus"])
    def data(a: Any, plus: int = 0) -> Any:
        calls.append(plus)
        if plus == 2:
            raise FileNotFoundError("no data here")
        return Squares(5, plus)

    calls: list[int] = []
    data(made(before))
    assert len(data(made(after))) == 5
    assert calls == [0, 0]
    differs = "argument a.*: .* in the archive, .* now"
    with pytest.raises(StaleCacheError, match=f"sample . is another one now: .*; {differs}"):
        data(made(after), 1)
    with pytest.raises(StaleCacheError, match=f"{differs}, and no sample was compared: .*no data here"):
        data(made(after), 2)


class Counting:
    def __init__(self) -> None:
        self._reads = 0


def test_an_argument_that_counts_in_private_has_one_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @cachable
    def data(counting: Counting) -> Squares:
        counting._reads += 1
        return Squares()

    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path))
    counting = Counting()
    paths = {data(counting).path for _ in range(3)}
    assert counting._reads > 0
    assert len(paths) == len(list(tmp_path.glob("*.zip"))) == 1


@dataclass
class Training:
    size: int = 5
    lr: float = 0.1
    seeds: tuple[int, ...] = (1, 2)


def test_a_field_that_makes_no_samples_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    def data(cfg: Any) -> Squares:
        return Squares(5)

    for kind, change, field in (
        (Training, {"lr": 0.2}, "cfg.lr"),
        (dict, {"lr": 0.2}, "cfg['lr']"),
        (dict, {"nested": {"lr": 0.2}}, "cfg['nested']['lr']"),
    ):
        path = tmp_path / f"{kind.__name__}{len(field)}.zip"
        first = {"lr": 0.1, "nested": {"lr": 0.1}, "size": 5} if kind is dict else {}
        cachable(path)(data)(kind(**first))
        with pytest.raises(StaleCacheError) as caught:
            cachable(path)(data)(kind(**{**first, **change}))
        assert f"argument {field}: 0.1 in the archive, 0.2 now" in str(caught.value)
        dotted = field.replace("['", ".").replace("']", "")
        assert f'@cachable(ignore=["{dotted}"])' in str(caught.value)
        path.unlink()
        ignoring = cachable(path, ignore=[dotted])(data)
        ignoring(kind(**first))
        assert len(ignoring(kind(**{**first, **change}))) == 5
        with pytest.raises(StaleCacheError, match="argument cfg.*size"):
            ignoring(kind(**{**first, **change, "size": 6}))
        with pytest.raises(OptionError, match='ignore= names "cfg.lrr", and no argument of .*data has it; '):
            cachable(path, ignore=["cfg.lrr"])(data)(kind(**first))


def test_a_folder_of_one_name_elsewhere_is_told_by_a_sample(tmp_path: Path) -> None:
    @cachable(tmp_path / "a.zip", progress=False)
    def read(root: str) -> Any:
        return [(Path(root) / "n").read_text() for _ in range(3)]

    for version in ("v1", "v2", "v3"):
        (tmp_path / version / "train").mkdir(parents=True)
        (tmp_path / version / "train" / "n").write_text("b" if version == "v3" else "a")
    read(str(tmp_path / "v1" / "train"))
    shutil.rmtree(tmp_path / "v1")
    assert [*read(str(tmp_path / "v2" / "train"))] == ["a"] * 3
    with pytest.raises(
        StaleCacheError, match="is another one now: .*; argument root: .* in the archive, .* now"
    ):
        read(str(tmp_path / "v3" / "train"))


def test_a_dataset_of_hugging_face_as_an_argument_is_told_by_a_sample(tmp_path: Path) -> None:
    @cachable(tmp_path / "a.zip", progress=False)
    def doubled(rows: Any) -> Any:
        return [{"x": 2 * row["v"]} for row in rows]

    rows = hf_dataset({"v": [1, 2]})
    doubled(rows)
    elsewhere = rows.map(lambda row: row, new_fingerprint="of the same map in a notebook")
    assert [*doubled(elsewhere)] == [{"x": 2}, {"x": 4}]
    with pytest.raises(StaleCacheError, match=r"is another one now: .*argument rows\.fingerprint changed"):
        doubled(hf_dataset({"v": [3, 4]}))


def load(root: str, split: str = "train") -> Squares:
    return Squares(len(root))


def load_others(root: str, split: str = "train") -> Squares:
    return Squares(len(root), plus=1)


def made_of(scale: int, parts: list[int]) -> Callable[..., Any]:
    def inner() -> Squares:
        parts.append(scale)
        return Squares(scale)

    return inner


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (
            partial(load, "A"),
            partial(load, "BC"),
            r"argument partial.args: \('A',\) in the archive, \('BC',\) now",
        ),
        (
            partial(load, "A"),
            partial(load_others, "A"),
            "argument partial.func: .load. in the archive, .*others. now",
        ),
        (made_of(3, []), made_of(3, [1]), None),
        (made_of(3, []), made_of(4, []), "argument scale: 3 in the archive, 4 now"),
        (partial(made_of(3, [])), partial(made_of(4, [])), "argument scale: 3 in the archive, 4 now"),
        (Made(1).make, Made(1).make, None),
        (Made(1).make, Made(2).make, r"argument self.k: 1 in the archive, 2 now"),
        (Made(1), Made(2), r"argument self.k: 1 in the archive, 2 now"),
    ],
)
def test_what_a_factory_holds_is_as_good_as_an_argument(
    tmp_path: Path, first: Any, second: Any, line: str | None
) -> None:
    cachable(tmp_path / "n.zip")(first)()
    if line is None:
        cachable(tmp_path / "n.zip")(second)()
    else:
        with pytest.raises(StaleCacheError, match=line):
            cachable(tmp_path / "n.zip")(second)()


def test_lambdas_with_other_defaults_are_told_apart(tmp_path: Path) -> None:
    numbers = factory_at(tmp_path / "n.zip")
    first, second = (lambda x, k=k: x + k for k in (1, 2))
    with pytest.raises((StaleCacheError, OptionError)):
        numbers(a=first)
        numbers(a=second)


def test_an_added_parameter_is_noticed(tmp_path: Path) -> None:
    def made(factory: Any) -> Any:
        factory.__qualname__ = "data"
        return cachable(tmp_path / "n.zip")(factory)

    made(lambda a=1: Squares())()
    assert [*made(lambda a=1, b=2: Squares())()] == [*Squares()]  # it asks, and samples are the same
    with pytest.raises(StaleCacheError, match="another one now: .*argument b: absent in the archive, 2 now"):
        made(lambda a=1, b=2: Squares(plus=b))()


def test_another_function_is_noticed(tmp_path: Path) -> None:
    factory_at(tmp_path / "n.zip")()

    @cachable(tmp_path / "n.zip")
    def other(a: int = 1, b: str = "x") -> Squares:
        return Squares(plus=1)

    with pytest.raises(
        StaleCacheError, match=r"one now: .*; factory: '.*numbers' in the archive, '.*other' now"
    ):
        other()

    @cachable(tmp_path / "n.zip")
    def renamed(a: int = 1, b: str = "x") -> Squares:
        return Squares()

    assert [*renamed()] == [*Squares()]


def test_another_version_is_noticed(tmp_path: Path) -> None:
    factory_at(tmp_path / "n.zip", version=1)()
    factory_at(tmp_path / "n.zip", version=1)()
    with pytest.raises(StaleCacheError, match="version: 1 in the archive, 2 now"):
        factory_at(tmp_path / "n.zip", version=2)()
    with pytest.raises(StaleCacheError, match="version: 1 in the archive, None now"):
        factory_at(tmp_path / "n.zip")()


def test_on_stale_warn_uses_the_archive_with_a_warning(tmp_path: Path) -> None:
    factory_at(tmp_path / "n.zip")()
    with pytest.warns(RuntimeWarning, match="argument a: 1 in the archive, 2 now"):
        dataset = factory_at(tmp_path / "n.zip", plus=100, on_stale="warn")(a=2)
    assert squares(dataset) == [0, 1, 4, 9, 16, 25]


def test_on_stale_ignore_uses_the_archive_in_silence(tmp_path: Path) -> None:
    @cachable(tmp_path / "n.zip")
    def first(a: int = 1) -> Squares:
        return Squares()

    @cachable(tmp_path / "n.zip", on_stale="ignore")
    def renamed(a: int = 1) -> Squares:
        return Squares(plus=100)

    first()
    assert squares(renamed()) == [0, 1, 4, 9, 16, 25]


@pytest.mark.parametrize(("version", "a"), [(None, 2), (1, 1)])
def test_on_stale_ignore_never_hides_other_arguments(tmp_path: Path, version: Any, a: int) -> None:
    factory_at(tmp_path / "n.zip")()
    ignoring = factory_at(tmp_path / "n.zip", on_stale="ignore", version=version)
    with pytest.raises(
        StaleCacheError,
        match=r'or pass on_stale="rebuild"(; leave out what makes no samples: .*)?$',
    ):
        ignoring(a=a)


def test_a_text_that_is_no_path_is_compared_whole(tmp_path: Path) -> None:
    factory_at(tmp_path / "n.zip")(b="/train/images")
    with pytest.raises(
        StaleCacheError, match="argument b: '/train/images' in the archive, '/val/images' now"
    ):
        factory_at(tmp_path / "n.zip")(b="/val/images")


def test_on_stale_rebuild_builds_it_anew_and_only_then(tmp_path: Path) -> None:
    factory_at(tmp_path / "n.zip")()
    rebuilding = factory_at(tmp_path / "n.zip", plus=100, on_stale="rebuild")
    for _ in range(2):
        assert squares(rebuilding(a=2)) == [100, 101, 104, 109, 116, 125]
    assert CALLS == [(1, "x"), (2, "x")]


def test_an_argument_without_content_is_passed_over(tmp_path: Path) -> None:
    for _ in range(2):
        assert len(factory_at(tmp_path / "n.zip")(b=threading.Lock())) == 6


def test_an_archive_of_the_class_at_the_path_is_used(tmp_path: Path) -> None:
    CachedDataset(Squares(), tmp_path / "n.zip")
    with pytest.raises(StaleCacheError, match="made from an object of type Squares"):
        factory_at(tmp_path / "n.zip")()


# ------------------------------------------------------------------------------------ changed source

MODULE = """
from edcache import cachable

{before}
@cachable({path!r}{options})
def data(a=1):
    {docstring}
    return [{{"n": a}}, {{"n": {number}}}]  {comment}
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    def load(
        number: int = 0, before: str = "", options: str = "", docstring: str = '""', comment: str = ""
    ) -> Any:
        path = str(tmp_path / "m.zip")
        (tmp_path / "written.py").write_text(MODULE.format(**locals()))
        sys.modules.pop("written", None)
        importlib.invalidate_caches()
        import linecache

        linecache.clearcache()
        return importlib.import_module("written")

    sys.path.insert(0, str(tmp_path))
    dont, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    yield load
    sys.dont_write_bytecode = dont
    sys.path.remove(str(tmp_path))
    sys.modules.pop("written", None)


def test_changed_code_that_makes_other_samples_is_named(module: Callable[..., Any]) -> None:
    module(number=1).data()
    changed = module(number=2)
    with pytest.raises(
        StaleCacheError, match="field n differs by 50 %: 1 in the archive, 2 now; the code of data chang"
    ):
        changed.data()


def test_comments_docstrings_decorators_and_place_are_no_change(module: Callable[..., Any]) -> None:
    module().data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(docstring='"""Says more."""').data()
        module(comment="# why not").data()
        module(before="import os\n\n\n").data()
        module(options=", on_stale='error'").data()


def test_on_stale_ignore_is_silent_about_a_changed_source(module: Callable[..., Any]) -> None:
    module(number=1).data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(number=2, options=", on_stale='ignore'").data()


# -------------------------------------------------------------------------- what is no dataset


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("made", "text"),
    [
        (None, "n.zip: the source is None; let the function end with `return dataset`"),
        (Squares, r"the source is the class Squares; give an object of it, Squares\(\.\.\.\)"),
        ("train.zip", r"the source is a str; give a dataset, or open an archive by CachedDataset.from_cache"),
        (len, r"the source is a builtin_function_or_method without len\(\) and \[index\]"),
        pytest.param(
            DataLoader([1, 2], collate_fn=lambda samples: samples),
            "the source is a DataLoader, whose batches are no samples; give its dataset, and num_workers= here",
            id="DataLoader",
        ),
    ],
    ids=str,
)
def test_what_is_no_dataset_is_refused_with_what_to_do(
    tmp_path: Path, made: Any, text: str, lazy: bool
) -> None:
    with pytest.raises(OptionError, match=text):
        cachable(tmp_path / "n.zip", lazy=lazy)(lambda: made)()
    assert list(tmp_path.iterdir()) == []


def test_the_loader_of_a_cache_is_no_dataset(tmp_path: Path) -> None:
    batches = CachedDataset([1, 2], tmp_path / "a.zip").loader(2)
    with pytest.raises(OptionError, match=r"b.zip: the source is a Loader, whose batches .*give its dataset"):
        CachedDataset(batches, tmp_path / "b.zip")


@pytest.mark.parametrize(
    "make", [iter, lambda items: (item for item in items)], ids=["iterator", "generator"]
)
def test_an_iterator_is_stored_whole_and_cannot_be_lazy(tmp_path: Path, make: Any) -> None:
    def data() -> Any:
        return make([{"square": 4}, {"square": 9}])

    assert squares(cachable(tmp_path / "i.zip")(data)()) == [4, 9]
    with pytest.raises(OptionError, match=r"can only be iterated; lazy=True takes one with len\(\) and"):
        cachable(tmp_path / "l.zip", lazy=True)(data)()


# ------------------------------------------------------------------------------------- interruption


def test_an_interrupted_fill_continues_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    GIVEN["fails_at"] = 4

    @cachable(tmp_path / "i.zip", in_memory_keys=["y"], spot_check=False)
    def data() -> Squares:
        return Squares(7, fails_at=GIVEN["fails_at"])

    with pytest.raises(SourceError, match="the source raised at index 4: ValueError: broken file 4"):
        data()
    assert COMPUTED == [0, 1, 2, 3]
    assert capsys.readouterr().err == ""
    GIVEN["fails_at"] = None
    dataset = data()
    assert "i.zip: 4 of 7 already cached" in capsys.readouterr().err
    assert COMPUTED == [0, 1, 2, 3, 4, 5, 6]
    assert squares(dataset) == [0, 1, 4, 9, 16, 25, 36]
    assert dataset.labels["y"].tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_an_interrupted_fill_of_another_call_is_stale(tmp_path: Path) -> None:
    @cachable(tmp_path / "i.zip", on_stale="warn")
    def data(fails_at: int | None) -> Squares:
        return Squares(7, fails_at=fails_at)

    with pytest.raises(SourceError):
        data(4)
    with pytest.raises(StaleCacheError, match="argument fails_at: 4 in the archive, None now"):
        data(None)


def test_lazy_computes_what_is_asked_for(tmp_path: Path) -> None:
    numbers = factory_at(tmp_path / "l.zip", lazy=True, spot_check=False)
    dataset = numbers()
    assert COMPUTED == []
    assert dataset[3]["square"] == 9
    dataset.close()
    assert numbers()[3]["square"] == 9
    assert COMPUTED == [3]


def test_a_label_that_an_unfinished_archive_lacks_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        cachable(tmp_path / "n.zip", in_memory_keys=["y"])(Squares)(fails_at=4)
    text = "labels: y in the archive, the call asks for square too"
    with pytest.raises(StaleCacheError, match=text):
        factory_at(tmp_path / "n.zip", in_memory_keys=["y", "square"])()


def test_fewer_labels_than_the_archive_has_are_fine(tmp_path: Path) -> None:
    factory_at(tmp_path / "n.zip", in_memory_keys=["y", "square"])()
    dataset = factory_at(tmp_path / "n.zip", in_memory_keys=["y"])()
    assert dataset.labels["y"].tolist() == [0, 1, 2, 0, 1, 2]


# -------------------------------------------------------------------------------- what the call's source says


class Told(Squares):
    """Says what its samples are; which samples are there, no argument of the call tells."""

    def __init__(self, says: Any, length: int = 6, **more: Any) -> None:
        super().__init__(length, **more)
        self.says = says

    def __edcache_fingerprint__(self) -> Any:
        return self.says


class Files(Squares):
    def __init__(self, files: list[str], **more: Any) -> None:
        super().__init__(len(files), **more)
        self.files, self.kinds = files, ["jpg", "png"]


FILES = r"attribute files: \['a', 'b'\] in the archive, \['a', 'c'\] now"


def call(path: Path, source: Any, **options: Any) -> CachedDataset:
    """A call without arguments and closure: all that changes is the source that it makes."""
    GIVEN["source"] = source

    @cachable(path, progress=False, **options)
    def made() -> Any:
        return GIVEN["source"]

    return made()


def begun(path: Path, source: Any) -> None:
    """A fill that ended early."""
    source.fails_at = 3
    with pytest.raises(SourceError, match="broken file 3"):
        call(path, source, chunk_size=1)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (Told({"day": 1}), Told({"day": 2}), "attribute day: 1 in the archive, 2 now"),
        (Told(1), Told(2), r"attribute __edcache_fingerprint__\(\): 1 in the archive, 2 now"),
        (Files(list("abcdef")), Files(list("abxdef")), r"attribute files: \['a', .*'c', .*'b', 'x', .* now"),
    ],
    ids=["dict", "value", "files"],
)
def test_what_a_source_says_is_compared_where_a_call_makes_it(
    tmp_path: Path, before: Any, after: Any, says: str
) -> None:
    begun(tmp_path / "begun.zip", before)
    with pytest.raises(StaleCacheError, match=f"made by another call:\n  {says}\nuse another path, delete"):
        call(tmp_path / "begun.zip", after)
    assert call(tmp_path / "begun.zip", after, on_stale="rebuild").complete
    begun(tmp_path / "taken.zip", before)
    assert call(tmp_path / "taken.zip", after, on_stale="ignore").complete
    before.fails_at = None
    call(tmp_path / "whole.zip", before)
    with pytest.raises(StaleCacheError, match=says):
        call(tmp_path / "whole.zip", after, grow=True)
    with pytest.warns(RuntimeWarning, match=says):
        call(tmp_path / "whole.zip", after, grow=True, on_stale="warn")
    # A complete archive opens without a call of the function.
    assert len(call(tmp_path / "whole.zip", after)) == 6


def test_a_bare_source_is_compared_with_the_one_that_a_call_made(tmp_path: Path) -> None:
    call(tmp_path / "c.zip", Files(["a", "b"]))
    CachedDataset(Files(["a", "b"]), tmp_path / "c.zip", progress=False)
    with pytest.raises(StaleCacheError, match=FILES):
        CachedDataset(Files(["a", "c"]), tmp_path / "c.zip", progress=False)
    with pytest.raises(StaleCacheError, match=FILES):
        CachedDataset(Files(["a", "c", "d"]), tmp_path / "c.zip", progress=False, grow=True)
    assert len(CachedDataset(Files(["a", "b", "c"]), tmp_path / "c.zip", progress=False, grow=True)) == 3


def test_a_call_grows_by_samples_behind_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "c.zip"
    call(path, Files(["a", "b"]), grow=True)  # as many as it has kinds
    with pytest.raises(StaleCacheError, match=FILES):
        call(path, Files(["a", "c", "d"]), grow=True)
    with pytest.raises(StaleCacheError, match="attribute files: "):
        call(path, Files(["a", "c", "d"]), grow=True, on_stale="warn")
    assert len(call(path, Files(["a", "b", "c"]), grow=True)) == 3
    told = tmp_path / "told.zip"
    call(told, Told({"count": 2, "ids": [7, 8], "seed": 5}, 2), grow=True)
    with pytest.raises(StaleCacheError, match=r"attribute ids: \[7, 8\] in the archive, \[8, 9\] now"):
        call(told, Told({"count": 3, "ids": [8, 9, 7], "seed": 5}, 3), grow=True)
    assert len(call(told, Told({"count": 3, "ids": [7, 8, 9], "seed": 5}, 3), grow=True)) == 3


def held(path: Path, source: Any, **options: Any) -> CachedDataset:
    return CachedDataset(source, path, progress=False, **options)


def asis(path: Path) -> None:
    pass


def saved(path: Path) -> None:
    CachedDataset.from_cache(path).save(path)


def copied(path: Path) -> None:
    CachedDataset.from_cache(path).save(path.with_name("other.zip"))
    path.with_name("other.zip").replace(path)


@pytest.mark.parametrize("rewritten", [asis, saved, copied])
@pytest.mark.parametrize("cached", [call, held])
@pytest.mark.parametrize(
    "kind", [Files, lambda files: Told({"files": files}, len(files))], ids=["list", "said"]
)
def test_each_growth_is_compared_with_the_one_before(
    tmp_path: Path, kind: Any, cached: Any, rewritten: Any
) -> None:
    path, files = tmp_path / "c.zip", list("abcdefgh")
    for count in (2, 5, 7):
        assert len(cached(path, kind(files[:count]), grow=True)) == count
        rewritten(path)
        for place in range(count):
            other = [*files[:place], "x", *files[place:]]
            for length in (count, count + 1):
                with pytest.raises(StaleCacheError, match="(attribute|argument) files: "):
                    cached(path, kind(other[:length]), grow=True)
    assert len(cached(path, kind(files[:7]), grow=True)) == 7
    with pytest.raises(StaleCacheError, match="(attribute|argument) files: "):
        cached(path, kind(files[:6]), grow=True)


@pytest.mark.parametrize("first", [call, held])
def test_a_call_and_its_bare_source_grow_one_archive_in_turn(tmp_path: Path, first: Any) -> None:
    path, files = tmp_path / "c.zip", list("abcdefgh")
    first(path, Files(files[:2]))
    if first is call:
        for count, cached in ((3, held), (4, call), (6, held)):
            assert len(cached(path, Files(files[:count]), grow=True)) == count
            other = [*files[: count - 1], "x", *files[count:]]
            for again in (call, held):
                with pytest.raises(StaleCacheError, match="attribute files: "):
                    again(path, Files(other), grow=True)
    else:
        with pytest.raises(StaleCacheError, match="made from an object of type .*Files"):
            call(path, Files(files[:3]), grow=True)


def test_a_sealed_archive_tells_who_lengthened_it(tmp_path: Path) -> None:
    path, files = tmp_path / "c.zip", list("abcdefgh")
    held(path, Files(files[:2]))
    held(path, Files(files[:5]), grow=True)
    reader = CachedDataset.from_cache(path)._archive.reader
    assert (reader.session.head.length, reader.session.origin.length) == (2, 5)
    with pytest.raises(StaleCacheError, match="attribute files: "):
        held(path, Files([*files[:4], "x"]))


# --- a sample is compared, if that is cheap ---


class OfFile:
    """Scaled by the number in a file, after the seconds in another one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> dict[str, Any]:
        time.sleep(float((self.folder / "seconds").read_text()))
        COMPUTED.append(i)
        return {"x": (i + 1) * float((self.folder / "gain").read_text())}


@pytest.fixture
def of_file(tmp_path: Path) -> Callable[..., Any]:
    """Decorate anew, as in another process."""
    for name, text in (("gain", "1.0"), ("seconds", "0"), ("call", "0")):
        (tmp_path / name).write_text(text)

    def decorated(**options: Any) -> Any:
        def made(folder: Path) -> OfFile:
            CALLS.append(folder)
            time.sleep(float((folder / "call").read_text()))
            if not (folder / "gain").exists():
                raise FileNotFoundError("no data here")
            return OfFile(folder)

        return cachable(tmp_path / "a.zip", progress=False, **options)(made)

    decorated()(tmp_path)
    CALLS.clear()
    COMPUTED.clear()
    return decorated


def test_a_complete_archive_is_compared_once_in_each_process(of_file: Any, tmp_path: Path) -> None:
    found = set[int]()
    for _ in range(8):
        make = of_file()
        for _ in range(3):
            assert [sample["x"] for sample in make(tmp_path)] == [1, 2, 3, 4, 5]
        assert (len(CALLS), len(COMPUTED)) == (1, 1)
        found.update(COMPUTED)
        CALLS.clear()
        COMPUTED.clear()
    assert len(found) > 1
    (tmp_path / "gain").write_text("1.5")
    with pytest.raises(StaleCacheError, match=r"sample \d is another one now: field x differs by 33 %"):
        of_file()(tmp_path)


def test_a_setting_elsewhere_goes_by_on_stale(of_file: Any, tmp_path: Path) -> None:
    (tmp_path / "gain").write_text("1.5")
    assert of_file(on_stale="ignore")(tmp_path)[0]["x"] == 1
    with pytest.warns(RuntimeWarning, match="is another one now"):
        assert of_file(on_stale="warn")(tmp_path)[0]["x"] == 1
    assert of_file(on_stale="rebuild")(tmp_path)[0]["x"] == 1.5


@pytest.mark.parametrize("slow", ["call", "seconds"])
def test_what_takes_long_is_compared_only_if_asked(of_file: Any, tmp_path: Path, slow: str) -> None:
    (tmp_path / slow).write_text("0.6")
    (tmp_path / "a.zip").unlink()
    of_file()(tmp_path)
    (tmp_path / "gain").write_text("1.5")
    CALLS.clear()
    assert of_file()(tmp_path)[0]["x"] == 1
    assert CALLS == []
    with pytest.raises(StaleCacheError, match="is another one now"):
        of_file(spot_check=True)(tmp_path)


def test_without_data_nothing_is_said(
    of_file: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gain").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert of_file()(tmp_path)[0]["x"] == 1
    (tmp_path / "gain").mkdir()  # the call returns, and its samples fail
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert of_file()(tmp_path)[0]["x"] == 1
    assert capfd.readouterr() == ("", "")
    assert len(CALLS) == 2


class NamedOfFile(OfFile):
    """With the keys in a file."""

    def sample_key(self, i: int) -> str:
        return (self.folder / "names").read_text()[i]

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": self.sample_key(i) + (self.folder / "gain").read_text()}


def test_of_a_source_with_other_keys_what_is_new_is_computed(of_file: Any, tmp_path: Path) -> None:
    def opened() -> list[str]:
        make = cachable(tmp_path / "n.zip", progress=False)(lambda: NamedOfFile(tmp_path))
        return [sample["x"][0] for sample in make()]

    (tmp_path / "names").write_text("abcde")
    assert opened() == [*"abcde"]
    (tmp_path / "names").write_text("fedcb")
    assert opened() == [*"fedcb"]
    (tmp_path / "gain").write_text("2.0")
    with pytest.raises(StaleCacheError, match="is another one now"):
        opened()


def test_spot_check_false_runs_nothing(of_file: Any, tmp_path: Path) -> None:
    (tmp_path / "gain").write_text("1.5")
    assert of_file(spot_check=False)(tmp_path)[0]["x"] == 1
    assert CALLS == []


class Opens:
    """Opens the cache in each worker."""

    def __init__(self, make: Any, folder: Path) -> None:
        self.make, self.folder = make, folder

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        return len(self.make(self.folder)) + 10 * len(CALLS)


def test_workers_of_a_loader_and_other_ranks_run_nothing(
    of_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(Opens(of_file(), tmp_path), num_workers=2, multiprocessing_context="fork")
    assert [int(batch) for batch in loader] == [5] * 4
    monkeypatch.setenv("RANK", "1")
    of_file()(tmp_path)
    assert CALLS == []
