"""Recipes: the same for the same call in every process, another for another call, never random."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
import json
import logging
import os
import random
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from edcache import CachedDataset
from edcache.errors import OptionError, StaleCacheError
from edcache.identity import Recipe, Settings, compare, recipe_of, recipe_of_call

PROGRAM = """
import dataclasses, enum, json, pathlib
import numpy as np, torch
from edcache.identity import recipe_of_call

class Colour(enum.Enum):
    RED = "red"

@dataclasses.dataclass
class Size:
    width: int
    tags: frozenset

class Custom:
    def __edcache_fingerprint__(self):
        return {"words": {"x", "y", "z"}}

def factory(**arguments):
    return arguments

ARGUMENTS = {
    "path": pathlib.Path("a/b.txt"),
    "array": np.arange(12.0).reshape(3, 4),
    "tensor": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "dataclass": Size(3, frozenset("abcdef")),
    "enum": Colour.RED,
    "function": lambda sample: sample["x"] + 1,
    "module": json.dumps,
    "nested": {"a": [1, (2.5, None)], "b": {"c": {"p", "q", "r"}}},
    "set": {"one", "two", "three", "four", (1, "five")},
    "custom": Custom(),
    "text": "word " * 100,
}

if __name__ == "__main__":
    print(json.dumps(recipe_of_call(factory, ARGUMENTS, version={"a", "b", "c"}).to_json()))
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What PROGRAM prints under two hash seeds from two folders, and imported as a module."""
    started = []
    for seed, folder in (("1", "here"), ("2", "there")):
        script = tmp_path_factory.mktemp(folder) / "program.py"
        script.write_text(PROGRAM)
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, str(script)]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    imported = (
        "import json, program as p;"
        "print(json.dumps(p.recipe_of_call(p.factory, p.ARGUMENTS, {'a', 'b', 'c'}).to_json()))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "3", "PYTHONPATH": str(script.parent)}
    command = [sys.executable, "-c", imported]
    started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    return [process.communicate()[0] for process in started]


@pytest.mark.full
def test_a_fingerprint_does_not_depend_on_the_hash_seed_or_the_folder(outputs: list[str]) -> None:
    assert outputs[0]
    assert json.loads(outputs[0]) == json.loads(outputs[1])


def test_a_script_and_a_module_of_one_file_give_the_same_fingerprint(outputs: list[str]) -> None:
    assert json.loads(outputs[0])["settings"]["factory"] == "factory"
    assert json.loads(outputs[0]) == json.loads(outputs[2])


@pytest.mark.full
def test_a_fingerprint_is_small(outputs: list[str]) -> None:
    assert len(outputs[0]) < 2000


# ------------------------------------------------------------------------------------ single values


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Size:
    width: int
    unit: Any = "cm"


@dataclasses.dataclass
class Scaler:
    factor: int

    def apply(self, x: int) -> int:
        return x * self.factor

    @functools.wraps(apply)
    def wrapped(self, x: int) -> int:
        return self.apply(x)


class Point(NamedTuple):
    x: Any


class Told:
    def __edcache_fingerprint__(self) -> Any:
        return [1, "two"]


def begun(generator):
    next(generator)
    return generator


class Broken:
    def __edcache_fingerprint__(self) -> Any:
        return object()


def describe(value: Any) -> Any:
    exact, *asked = Settings().describe(value)
    return [*exact, *asked] if any(asked) else exact


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, "0.1"),
        (float("nan"), "nan"),
        (1 + 2j, "(1+2j)"),
        (b"ab", "b'ab'"),
        (range(3), "range(0, 3)"),
        ([1, "a", 2.5], "[1, 'a', 2.5]"),
        ((1, (2,)), "(1, (2,))"),
        ({"a": [None]}, "{'a': [None]}"),
        ({3, 1, 2}, "set(1, 2, 3)"),
        (frozenset("ba"), "frozenset('a', 'b')"),
        (Colour.RED, "Colour.RED"),
        (Level.LOW, "Level.LOW"),
        (Size(3, [0.5]), "Size(unit=[0.5], width=3)"),
        (PurePosixPath("a/b"), "Path('a/b')"),
        (datetime.date(2024, 2, 29), "datetime.date(2024, 2, 29)"),
        (collections.deque([1]), "collections:deque(of=([1], None))"),
        (uuid.UUID(int=1), "UUID('00000000-0000-0000-0000-000000000001')"),
        (len, "builtins:len"),
        (Size, "Size"),
        (Point(3), "Point(x=3)"),
        (Scaler(2).apply, "Scaler.apply(of=Scaler(factor=2))"),
        (Told(), "Told(__edcache_fingerprint__()=[1, 'two'])"),
    ],
)
def test_a_value_is_described_as(value: Any, expected: str) -> None:
    assert describe(value) == [expected]


@pytest.mark.parametrize("value", [None, True, -3, "train"])
def test_what_json_has_stands_for_itself(value: Any) -> None:
    assert describe(value) == value
    assert type(describe(value)) is type(value)


def test_arrays_are_described_by_dtype_shape_and_content() -> None:
    (text,) = describe(np.arange(6, dtype=np.int16).reshape(2, 3))
    assert text.startswith("ndarray(int16[2, 3], digest:")
    (text,) = describe(torch.zeros(2))
    assert text.startswith("Tensor(")


@pytest.mark.parametrize("nbytes", [1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_000])
def test_an_array_is_described_by_each_of_its_bytes_in_their_order(nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    said = describe(data)
    assert describe(data.copy()) == said
    for at in {0, nbytes // 2, min(nbytes - 1, 1 << 16), nbytes - 1}:
        other = data.copy()
        other[at] ^= 1
        assert describe(other) != said
    if nbytes > 1:
        assert describe(np.concatenate([data[nbytes // 2 :], data[: nbytes // 2]])) != said


A = np.arange(6.0)
O1, O2 = np.full(3000, None), np.full(3000, None)
O2[1500] = 7


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (A, A + 1),
        (A, A.reshape(2, 3)),
        (A, A.tolist()),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(2), torch.zeros(2).numpy()),
        (O1, O2),
        (0.5, "0.5"),
        ([1], "[1]"),
        ((1, 2), [1, 2]),
        (Path("a"), "Path('a')"),
        (Colour.RED, "Colour.RED"),
        ("a" * 400, "a" * 401),
        ("a" * 400, "a" * 399 + "b"),
        (["a, b"], ["a", "b"]),
        (len, abs),
        (Scaler(1).apply, Scaler(2).apply),
        (Scaler(1).wrapped, Scaler(2).wrapped),
        (Point(A), Point(A + 1)),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_different_values_are_described_differently(one: Any, other: Any) -> None:
    assert describe(one) != describe(other)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        [1, {"k": object()}],
        Broken(),
        begun(i for i in (1, 2)),
        Size(object()),
        sys.__stdout__,
        logging.getLogger("a"),
        threading.Thread(),
        ThreadPoolExecutor(1),
    ],
    ids=["object", "nested", "custom", "generator", "field", "file", "logger", "thread", "pool"],
)
def test_what_has_no_content_is_its_kind(value: Any) -> None:
    (text,) = describe(value)
    assert "0x" not in text
    assert describe(value) == [text]


def test_a_structure_that_holds_itself_is_described() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert describe(loop) == ["[1, <the value 1 levels above>]"]


def test_no_repr_of_an_object_is_asked_for() -> None:
    class Loud:
        def __init__(self, k: int) -> None:
            self.k = k

        def __repr__(self) -> str:
            raise AssertionError("expensive")

    one, other = (describe(Size(Loud(k), {Loud: [Loud(k)]})) for k in (1, 2))
    assert one != other


def test_a_structure_nested_too_deep_is_its_kind() -> None:
    deep: Any = []
    for _ in range(20_000):
        deep = [deep]
    assert describe(deep) == ["builtins:list"]


def test_a_structure_of_shared_parts_ends() -> None:
    one, other = [1], [2]
    for _ in range(100):
        one, other = [one, one], [other, other]
    assert describe(one) == describe(one) != describe(other)


@pytest.mark.parametrize("roots", [{}, {"/r/": "root"}], ids=["bare", "root"])
def test_a_list_has_the_texts_of_its_items(roots: dict[str, str]) -> None:
    """Many plain values are written at once."""
    draw = random.Random(0)
    keys: list[Any] = ["a", "a ", "b'", "/r/x", "/r/y", "c", "\n"]
    values = [1, True, 1.0, "x", "/r/q", None, b"/r/", 'a"b', "//"]
    for k in range(1_000):
        some = keys if k % 2 else [*keys, 1, 2.0, None]
        drawn = ({key: draw.choice(values) for key in draw.sample(some, draw.randrange(4))} for _ in "12")
        made = [*drawn, *([(1, "/r/z")] if k % 3 else [])]
        items = ", ".join(Settings(roots).text(item) for item in made)
        assert Settings(roots).text(made) == f"[{items}]"


def adder(k: int) -> Callable[[int], int]:
    return lambda x: x + k


def test_closures_are_told_apart_by_what_they_hold() -> None:
    assert describe(adder(1)) == describe(adder(1)) != describe(adder(2))


def test_a_variable_that_is_assigned_after_the_fingerprint_was_taken_is_left_out() -> None:
    """A decorator that reads a source meets a recursive function before its name is bound."""

    def countdown(n: int) -> int:
        return helper(n)

    def factory(n: int) -> int:
        return countdown(n) + helper(n) + step

    @functools.wraps(countdown)
    def wrapper(n: int) -> int:
        return helper(n)

    texts = [
        describe(countdown),
        describe(wrapper),
        recipe_of_call(factory, {"n": 1}).to_json()["settings"],
        recipe_of([countdown, wrapper]).to_json()["columns"],
    ]
    assert "helper" not in json.dumps(texts)

    def helper(n: int) -> int:
        return n

    step = 1
    named = ["factory", *(f"argument {name}" for name in ("countdown", "helper", "step", "n")), "version"]
    assert {*named} <= {*recipe_of_call(factory, {"n": 1}).settings}


def of_value(value: Any) -> Callable[[], Any]:
    def factory() -> Any:
        return [value]

    return factory


def of_sorted(files: list[Any]) -> Callable[[], Any]:
    def factory() -> Any:
        files.sort()
        return [*files]

    return factory


def of_added(files: list[Any]) -> Callable[[], Any]:
    def factory() -> Any:
        files.sort()
        made: list[Any] = []
        made.append(files)
        return made

    return factory


@pytest.mark.parametrize(
    ("made", "one", "other"),
    [
        (of_value, [1], [2]),
        (of_value, {"a": 1}, {"a": 2}),
        (of_value, A, A + 1),
        (of_value, Size(1), Size(2)),
        (of_value, None, 0),
        (of_value, adder(1), adder(2)),
        (of_value, lambda x: x + 1, lambda x: x + 2),
        (of_sorted, [2, 1], [3, 1]),
        (of_added, [1], [2]),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_factories_are_told_apart_by_what_they_close_over(made: Any, one: Any, other: Any) -> None:
    for wrapped in (lambda factory: factory, functools.partial):
        texts = [
            json.dumps(recipe_of_call(wrapped(made(value)), {}).to_json()) for value in (one, other, one)
        ]
        assert texts[0] == texts[2] != texts[1]


def read(root: str, args: Any = None, func: Any = None) -> Any:
    return root, args, func


def read_others(root: str, args: Any = None, func: Any = None) -> Any:
    return args, func


def test_a_parameter_of_a_name_that_a_partial_has_too_hides_nothing() -> None:
    parameters = {"args": "x", "func": "y"}
    factories = [
        functools.partial(read, "A"),
        functools.partial(read, "B"),
        functools.partial(read_others, "A"),
    ]
    texts = {json.dumps({**recipe_of_call(factory, parameters).settings}) for factory in factories}
    assert len(texts) == 3


def test_a_call_that_counts_calls_is_no_other_call() -> None:
    count, calls, names = 0, [], {"made": 0}

    def factory(n: int) -> list[int]:
        nonlocal count
        count += 1
        calls.append(n)
        names["made"] += 1
        return [n]

    before = recipe_of_call(factory, {"n": 1})
    factory(1)
    assert (count, calls, names) == (1, [1], {"made": 1})
    now = recipe_of_call(factory, {"n": 1})
    found = compare(before.to_json(), now)
    assert found.kind == "unknown"
    assert {name: ask.kind for name, ask in found.asks.items()} == {
        "argument names": "inside",
        "argument calls": "inside",
    }
    state = before.changed(now)
    assert compare(before.to_json(state), now).kind == "same"


CHANGING = """
import functools
from collections import Counter, defaultdict, deque
CACHE, COUNT, DEFAULT, SEEN, LOG, QUEUE = {}, Counter(), defaultdict(list), set(), [], deque()
STATS, NEST, NAMED, N = {"n": 0}, {"a": {}}, {}, 0

def named(function):
    NAMED[function.__name__] = function
    return function

@named
def one(x):
    return x

class Net:
    memo, calls = {}, 0

    @functools.cached_property
    def size(self):
        return 3

    def __call__(self, x):
        Net.calls += 1
        self._last = x
        self.memo[x] = x

NET = Net()

def work(x):
    global N
    N += 1
    CHANGE
"""


@pytest.mark.parametrize(
    "change",
    [
        "STATS['n'] += 1",
        "NEST['a'][x] = 1",
        "NEST['a']['b'] = NEST['a'].get('b', 0) + x",
        "COUNT[x] += 1",
        "COUNT.update([x])",
        "DEFAULT[x % 3].append(x)",
        "LOG.append(x)",
        "SEEN.add(x)",
        "QUEUE.append(x)",
        "CACHE[x, len(LOG)] = x",
        "CACHE[x] = CACHE.get(x) or NAMED['one'](x)",
        "CACHE.setdefault(x, []).append(x)",
        "NET.memo[x] = NET.size",
    ],
)
def test_code_that_changes_what_it_names_does_not_ask_for_that(change: str) -> None:
    names: dict[str, Any] = {"__name__": "nowhere"}
    exec(CHANGING.replace("CHANGE", change), names)
    before = recipe_of_call(names["work"], {})
    for x in range(3):
        names["work"](x)
    assert compare(before.to_json(), recipe_of_call(names["work"], {})).kind == "same"


# -------------------------------------------------------------------------------------- differences


def of(**arguments: Any) -> Recipe:
    return Recipe({"factory": "f", **{f"argument {name}": value for name, value in arguments.items()}})


def test_the_same_call_has_no_differences() -> None:
    assert compare(of(a=1).to_json(), of(a=1)).kind == "same"


def test_differences_show_each_argument_with_both_values() -> None:
    found = compare(of(a=1, b="x", c=None).to_json(), of(a=2, b="x", d=0))
    assert found.kind == "other"
    assert found.refused == ("argument a: 1 in the archive, 2 now",)
    assert {name: ask.line for name, ask in found.asks.items()} == {
        "argument c": "argument c: None in the archive, absent now",
        "argument d": "argument d: absent in the archive, 0 now",
    }


def test_code_is_no_difference_and_a_change_of_what_is_named_now() -> None:
    before, now = (Recipe({"type": "S"}, code=code) for code in ({"f": "1", "g": "2"}, {"f": "3", "h": "4"}))
    found = compare(before.to_json(), now)
    assert {name: ask.kind for name, ask in found.asks.items()} == {"f": "code", "h": "code"}
    assert found.changes == "the code of f, h changed, or a value that it names"
    assert compare({"settings": {"type": "S"}}, now).kind == "same"


def test_an_archive_without_a_recipe_is_a_difference() -> None:
    refused = compare(None, of()).refused
    assert refused == ("the archive says nothing about where its samples come from",)
    found = compare(None, Recipe({"type": "S"}))  # of a source, whose samples were added by hand
    assert (found.kind, found.is_told) == ("same", False)


def test_what_a_user_says_of_a_source_is_not_what_a_call_has_made() -> None:
    found = compare(of(a=1).to_json(), Recipe({"fingerprint v": 2}))
    assert found.refused == ("made by a call of f, without fingerprint=",)
    assert compare(of(a=1).to_json(), Recipe({"type": "S"})).kind == "same"  # its columns are compared


def test_a_class_or_a_function_that_is_renamed_asks() -> None:
    class Empty:
        pass

    class Void:
        pass

    def work() -> None: ...
    def play() -> None: ...

    def call(thing: Any) -> Recipe:
        return recipe_of_call(len, {"thing": thing})

    for one, other in ((Empty, Void), (Empty(), Void()), (work, play)):
        found = compare(call(one).to_json(), call(other))
        assert found.refused == ()
        assert found.asks["argument thing"].kind == "form"
    assert compare(call(Empty).to_json(), call("Empty")).refused


def test_a_source_is_its_class_and_its_attributes() -> None:
    assert recipe_of(Size(1)).settings == {"type": "Size", "attribute width": 1, "attribute unit": "cm"}


def test_an_int_that_is_the_length_asks() -> None:
    before, now = (Recipe({"type": "S", "attribute n": count}, count=count) for count in (3, 5))
    assert {name: ask.kind for name, ask in compare(before.to_json(), now).asks.items()} == {
        "attribute n": "place"
    }
    assert compare(before.to_json(), Recipe({"type": "S", "attribute n": 4}, count=5)).refused


@pytest.mark.parametrize("given", ["v1", 3, ["v1"]])
def test_a_fingerprint_that_is_no_dict_is_refused(tmp_path, given):
    with pytest.raises(OptionError, match="fingerprint=.*; give a dict, or False for none"):
        CachedDataset([1, 2], tmp_path / "a.zip", fingerprint=given)
    assert not (tmp_path / "a.zip").exists()


def counted(n, k=1):
    yield from ({"x": i * k} for i in range(n))


def counted_down(n, k=1):
    yield from ({"x": (n - i) * k} for i in range(n))


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (lambda: counted(6), "attribute n: 5 in the archive, 6 now"),
        (lambda: counted(5, k=2), "attribute k: 1 in the archive, 2 now"),
        (lambda: counted_down(5), "type: 'builtins:generator counted' in the archive, .* counted_down' now"),
        (lambda: counted(5), None),
    ],
)
def test_a_generator_is_told_from_others_by_its_function_and_arguments(tmp_path, other, line):
    CachedDataset(counted(5), tmp_path / "a.zip", progress=False)
    if line is None:
        assert len(CachedDataset(other(), tmp_path / "a.zip")) == 5
    else:
        with pytest.raises(StaleCacheError, match=line):
            CachedDataset(other(), tmp_path / "a.zip")


def test_a_generator_that_has_begun_is_refused(tmp_path):
    with pytest.raises(OptionError, match="the generator counted has begun, and has no first sample"):
        CachedDataset(begun(counted(5)), tmp_path / "a.zip")


FILES = [f"{k}.png" for k in range(300_000)]
KINDS = {"size": Size, "scaler": Scaler}


def of_many() -> Any:
    return FILES, KINDS


def test_code_looks_into_a_registry_and_not_into_a_list_of_files() -> None:
    looked = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal looked
        looked += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        code = recipe_of_call(of_many, {}).code
    finally:
        sys.setprofile(None)
    assert {"of_many", "Size", "Scaler"} <= code.keys()
    assert looked < len(FILES)  # to parse this file are some 40,000 calls


def test_what_python_adds_to_a_class_by_itself_is_no_code() -> None:
    class Bare:
        SIZE = 3

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index + self.SIZE

    def digest() -> str:
        (code,) = (text for name, text in recipe_of(Bare()).code.items() if name.endswith(".Bare"))
        return code

    before = digest()
    Bare().__reduce_ex__(2)
    assert "__slotnames__" in vars(Bare)
    Bare.__annotations__ = {}
    assert digest() == before
    Bare.SIZE = 4
    assert digest() != before


@pytest.mark.parametrize("is_class", [False, True])
def test_the_code_of_a_decorator_counts(is_class: bool) -> None:
    def once(apply: Any) -> Any:
        @functools.wraps(apply)
        def wrapper(x: int) -> int:
            return int(apply(x))

        return wrapper

    def twice(apply: Any) -> Any:
        @functools.wraps(apply)
        def wrapper(x: int) -> int:
            return int(apply(apply(x)))

        return wrapper

    class Once:
        def __init__(self, apply: Any) -> None:
            functools.update_wrapper(self, apply)

        def __call__(self, x: int) -> int:
            return int(self.__wrapped__(x))  # type: ignore[attr-defined]

    class Twice:
        def __init__(self, apply: Any) -> None:
            functools.update_wrapper(self, apply)

        def __call__(self, x: int) -> int:
            return int(self.__wrapped__(self.__wrapped__(x)))  # type: ignore[attr-defined]

    def code_of(decorator: Any) -> Any:
        return list(recipe_of([decorator(abs)]).code.values())

    one, other = (Once, Twice) if is_class else (once, twice)
    assert code_of(one) == code_of(one) != code_of(other)
    assert code_of(one)
