"""A gallery of values: two that differ in one place are told apart, two that are alike are not."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import itertools
import json
import math
import operator
import pathlib
import random
import re
import tempfile
import types
import warnings
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from optional import Later, Library, made

import edcache
from edcache.identity import recipe_of, recipe_of_call

pd, Image = Library("pandas"), Library("PIL.Image")


class Colour(enum.Enum):
    A = 1
    B = 2


class Name(str, enum.Enum):
    A = "a"


class Flags(enum.Flag):
    A = 1
    B = 2
    C = 4


@dataclasses.dataclass
class One:
    x: int = 1


@dataclasses.dataclass
class Other:
    x: int = 1


Pair = collections.namedtuple("Pair", "x")
Couple = collections.namedtuple("Couple", "x")


class Items(list[Any]):
    pass


class Options(dict[str, Any]):
    pass


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Day(dt.date):
    pass


def quantized(value: float) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.tensor([value]), 0.1, 0, torch.quint8)


class Plain:
    k = 1


class Worded:
    @functools.cached_property
    def words(self) -> list[str]:
        return ["a"]


def read(worded: Worded) -> Worded:
    assert worded.words
    return worded


class Derived(Plain):
    k = 2


def with_attributes(kind: type, **attributes: Any) -> Any:
    made = kind()
    vars(made).update(attributes)
    return made


def items_with(v: int) -> Items:
    items = Items([1, 2])
    vars(items)["v"] = v
    return items


def adding(k: Any) -> Callable[[Any], Any]:
    return lambda x: x + k


def late(is_assigned: bool) -> Callable[[Any], Any]:
    """Return a function whose outer variable is None, or has no value yet."""

    def f(x: Any) -> Any:
        return x + k

    if is_assigned:
        k = None
    return f


def recursive(step: int) -> Callable[[int], int]:
    def f(x: int) -> int:
        return f(x - step) if x > 0 else 0

    return f


def defaulting(k: Any) -> Callable[[Any], Any]:
    def f(x: Any, k: Any = k) -> Any:
        return x

    return f


def decorated(k: Any, then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(abs)
    def wrapper(x: Any) -> Any:
        return then(abs(x)), k

    return wrapper


def doubled(x: list[int]) -> Iterator[int]:
    return (i * 2 for i in x)


def tripled(x: list[int]) -> Iterator[int]:
    return (i * 3 for i in x)


def memmap(value: int) -> Any:
    with tempfile.TemporaryFile() as file:
        values = np.memmap(file, dtype=np.int32, mode="w+", shape=(10,))
    values[:] = value
    return values


PADDED = np.dtype([("a", "i1"), ("b", "i4")], align=True)


def padded(garbage: int, b: int = 2, kind: Any = PADDED) -> Any:
    """Three structs with this byte between their fields."""
    values = np.full(3 * kind.itemsize, garbage, np.uint8).view(kind)
    inner = values if kind is PADDED else values["inner"]
    inner["a"], inner["b"] = 1, b
    return values


def long_double(garbage: int) -> Any:
    values = np.full(np.dtype("g").itemsize, garbage, np.uint8).view("g")
    values[0] = 1
    return values


INNER = np.dtype([("inner", PADDED)], align=True)
LONG = np.dtype([("a", "i4", (3000,))])
ONE_OF_LONG = np.zeros(1, LONG)
ONE_OF_LONG["a"][0, 1500] = 1


def cycle(value: int) -> list[Any]:
    items: list[Any] = [value]
    items.append(items)
    return items


def cycles(inner: bool) -> list[Any]:
    one: list[Any] = []
    other = [one]
    one.append(other if inner else one)
    return [one, other]


def deep(value: Any) -> Any:
    for _ in range(200):
        value = [value]
    return value


def frame() -> Any:
    return pd.DataFrame({"a": np.arange(1_000), "b": ["x"] * 1_000})


def changed() -> Any:
    other = frame()
    other.loc[333:665, "a"] = 7
    return other


def traced(seed: int) -> Any:
    torch.manual_seed(seed)
    return traced_of(torch.nn.Linear(2, 2).eval())


def traced_of(function: Callable[[Any], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(function, torch.zeros(1, 2))


def frozen(seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.freeze(traced(seed))


class Scale(torch.nn.Module):
    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


class Constant:
    """A descriptor."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __get__(self, owner: Any, kind: Any = None) -> int:
        return self.value


def named_defaults(value: int) -> Any:
    my_defaults = value
    return lambda x, y=0: x + my_defaults


def dispatched(by: int) -> Any:
    @functools.singledispatch
    def function(x: Any) -> Any:
        return x

    @function.register
    def _(x: int) -> int:
        return x * by

    return function


def of_metaclass(value: int) -> Any:
    return type("M", (type,), {"x": value})("O", (), {})()


def partial_method(value: int) -> Any:
    class Partial:
        def f(self, a: int) -> int:
            return a

        g = functools.partialmethod(f, value)

    return Partial()


def hooked(by: int) -> torch.nn.Module:
    module = torch.nn.ReLU()
    module.register_forward_hook(lambda module, given, made: made * by)
    return module


class Spread:
    """An object of a library."""

    def __init__(self, by: int) -> None:
        self._by = by


Spread.__module__ = "numpy"


TARGETS = np.arange(50_000)
OTHERS = TARGETS.copy()
OTHERS[31_234] = -1
DIFFERENT: list[tuple[str, Any, Any]] = [
    ("set of tuples", {(1, 2), (3, 4)}, {(1, 2), (3, 5)}),
    ("dict tuple keys", {(1, 2): 1}, {(1, 3): 1}),
    ("dict key type", {1: 1}, {"1": 1}),
    ("dict key bool", {1: 1}, {True: 1}),
    ("memmap", memmap(1), memmap(2)),
    ("targets list", TARGETS.tolist(), OTHERS.tolist()),
    ("targets arr", TARGETS, OTHERS),
    ("targets tensor", torch.tensor(TARGETS), torch.tensor(OTHERS)),
    ("frame", Later(frame), Later(changed)),
    ("frame index", Later(frame), Later(lambda: frame().set_axis(np.arange(1000) + 1))),
    ("frame cols", Later(frame), Later(lambda: frame()[["b", "a"]])),
    (
        "cat",
        Later(lambda: pd.Series(pd.Categorical(["a", "b"]))),
        Later(lambda: pd.Series(pd.Categorical(["b", "a"]))),
    ),
    (
        "cat vs text",
        Later(lambda: pd.Series(["a", "b"])),
        Later(lambda: pd.Series(pd.Categorical(["a", "b"]))),
    ),
    (
        "Categorical",
        Later(lambda: pd.Categorical(["a", "b"], ["a", "b"])),
        Later(lambda: pd.Categorical(["b", "b"], ["a", "b"])),
    ),
    ("index name", Later(frame), Later(lambda: frame().rename_axis("q"))),
    ("series name", Later(lambda: frame().a), Later(lambda: frame().a.rename("z"))),
    ("Int64 vs int64", Later(lambda: frame().a), Later(lambda: frame().a.astype("Int64"))),
    (
        "None vs nan obj",
        Later(lambda: pd.Series([None, 1], dtype=object)),
        Later(lambda: pd.Series([np.nan, 1], dtype=object)),
    ),
    (
        "nan in texts",
        Later(lambda: pd.Series(["a", np.nan], dtype=object)),
        Later(lambda: pd.Series(["a", None], dtype=object)),
    ),
    (
        "pd na",
        Later(lambda: pd.Series([1, None], dtype="Int64")),
        Later(lambda: pd.Series([1, 0], dtype="Int64")),
    ),
    (
        "pd ts tz",
        Later(lambda: pd.Series(pd.to_datetime(["2020-01-01"]).tz_localize("UTC"))),
        Later(lambda: pd.Series(pd.to_datetime(["2020-01-01"]).tz_localize("Europe/Berlin"))),
    ),
    (
        "Timestamp",
        Later(lambda: pd.Timestamp("2020-01-01", tz="UTC")),
        Later(lambda: pd.Timestamp("2020-01-01", tz="Europe/Berlin")),
    ),
    ("index freq", Later(lambda: pd.Index([1, 2])), Later(lambda: pd.Index([2, 1]))),
    ("bound builtin", "ab".upper, "ac".upper),
    ("bound builtin2", "ab".upper, "ab".lower),
    ("list append", [1].index, [2].index),
    ("dict get", {1: 2}.get, {1: 3}.get),
    ("re method", re.compile("a").match, re.compile("a").search),
    ("re flags", re.compile("a"), re.compile("a", re.IGNORECASE)),
    ("re bytes", re.compile("a"), re.compile(b"a")),
    ("genexp", doubled([1, 2]), tripled([1, 2])),
    ("genexp data", doubled([1, 2]), doubled([1, 3])),
    ("map data", map(abs, [1, 2]), map(abs, [1, 3])),
    ("map fn", map(abs, [1, 2]), map(math.sqrt, [1, 2])),
    ("filter", filter(None, [1, 2]), filter(bool, [1, 2])),
    ("zip", zip([1], [2], strict=True), zip([1], [3], strict=True)),
    ("enumerate", enumerate([1], 1), enumerate([1], 2)),
    ("iter", iter([1, 2]), iter([1, 3])),
    ("itemgetter", operator.itemgetter(1), operator.itemgetter(2)),
    ("attrgetter", operator.attrgetter("a"), operator.attrgetter("b")),
    ("methodcaller", operator.methodcaller("a", 1), operator.methodcaller("a", 2)),
    ("list sub attr", items_with(1), items_with(2)),
    ("list sub", Items([1]), [1]),
    ("dict sub", Options(a=1), {"a": 1}),
    ("str sub", Text("a"), "a"),
    ("int sub", Number(1), 1),
    ("float sub", Real(1), 1.0),
    ("inst attr", with_attributes(Plain, z=1), with_attributes(Plain, z=2)),
    ("other class", with_attributes(Plain), with_attributes(Derived)),
    ("Counter", collections.Counter(a=1), {"a": 1}),
    ("deque maxlen", collections.deque([1], 2), collections.deque([1], 3)),
    ("ChainMap", collections.ChainMap({1: 1}), collections.ChainMap({1: 2})),
    ("closure", adding(1), adding(2)),
    ("closure list", adding([1]), adding([2])),
    ("closure without a value", late(False), late(True)),
    ("recursive function", recursive(1), recursive(2)),
    ("decorator of a list", decorated([1], abs), decorated([2], abs)),
    ("decorator of a function", decorated(1, abs), decorated(1, float)),
    ("defaults", defaulting(1), defaulting(2)),
    ("kwdefault", (lambda *, k=1: k), (lambda *, k=2: k)),
    ("partial", functools.partial(int, base=2), functools.partial(int, base=3)),
    ("partial args", functools.partial(max, 1), functools.partial(max, 2)),
    ("lambda", lambda x: x + 1, lambda x: x + 2),
    ("enum", Colour.A, Colour.B),
    ("enum val", Colour.A, 1),
    ("str enum", Name.A, "a"),
    ("flag", Flags.A | Flags.B, Flags.A | Flags.C),
    ("flag2", Flags.A, Flags.A | Flags.C),
    (
        "dt zone",
        dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc),
        dt.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    ),
    (
        "dt zone2",
        dt.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")),
        dt.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    ),
    ("dt naive", dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc), dt.datetime(2020, 1, 1)),
    ("dt fold", dt.datetime(2020, 1, 1, fold=1), dt.datetime(2020, 1, 1)),
    ("date", dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)),
    ("-0", 0.0, -0.0),
    ("arr -0", np.array([0.0]), np.array([-0.0])),
    ("nan", float("nan"), "nan"),
    ("nan inf", float("nan"), float("inf")),
    ("1 True", 1, True),
    ("1 1.0", 1, 1.0),
    ("True 1.0", True, 1.0),
    ("[1] [True]", [1], [True]),
    ("(1,)(1.0,)", (1,), (1.0,)),
    ("dicts in a list", [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": True}]),
    ("keys of dicts in a list", [{1: 1}], [{True: 1}]),
    ("nested tuple", [(1,)], [(True,)]),
    ("complex -0", complex(0, 0.0), complex(0, -0.0)),
    ("bytes ba", b"a", bytearray(b"a")),
    ("bytes str", b"a", "a"),
    ("bytearray", bytearray(b"a"), bytearray(b"b")),
    ("np dtype", np.int32(1), np.int64(1)),
    ("np bool", np.bool_(True), True),
    ("np f", np.float64(1), 1.0),
    ("np str", np.str_("a"), "a"),
    ("np dt unit", np.datetime64("2020-01-01"), np.datetime64("2020-01-01", "s")),
    ("np endian", np.array([1], "<i4"), np.array([16777216], ">i4")),
    ("np endian2", np.array([1], "<i4"), np.array([1], ">i4")),
    (
        "np void",
        np.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]),
        np.array([(1, 2)], dtype=[("b", "i4"), ("a", "i4")]),
    ),
    (
        "np void scalar",
        np.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")])[0],
        np.array([(1, 2)], dtype=[("b", "i4"), ("a", "i4")])[0],
    ),
    (
        "recarray",
        np.array([(1,)], dtype=[("a", "i4")]).view(np.recarray),
        np.array([(1,)], dtype=[("a", "i4")]),
    ),
    ("padded", padded(0), padded(0, 3)),
    ("padded inside", padded(0, kind=INNER), padded(0, 3, INNER)),
    ("padded scalar", padded(0)[0], padded(0, 3)[0]),
    ("a struct of many", np.zeros(1, LONG)[0], ONE_OF_LONG[0]),
    ("0-d", np.array(1), np.array([1])),
    ("np 0 shapes", np.zeros((0, 2)), np.zeros((0, 3))),
    ("ma", np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[0, 0])),
    ("order vals", np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2).T),
    ("dtype", np.dtype("i4"), np.dtype("i8")),
    ("dtype meta", np.dtype("M8[s]"), np.dtype("M8[ms]")),
    ("torch dtype", torch.zeros(2), torch.zeros(2, dtype=torch.half)),
    ("param", torch.zeros(2, requires_grad=True), torch.nn.Parameter(torch.zeros(2))),
    ("torch dtype obj", torch.float32, torch.float64),
    ("torch device", torch.device("cpu"), torch.device("cuda:0")),
    ("sparse", torch.tensor([[1.0, 0]]).to_sparse(), torch.tensor([[2.0, 0]]).to_sparse()),
    ("sparse2", torch.tensor([[1.0, 0]]).to_sparse(), torch.tensor([[0.0, 1]]).to_sparse()),
    (
        "Linear",
        (torch.manual_seed(0), torch.nn.Linear(2, 2))[1],
        (torch.manual_seed(1), torch.nn.Linear(2, 2))[1],
    ),
    ("traced", Later(lambda: traced(0)), Later(lambda: traced(1))),
    ("frozen trace", Later(lambda: frozen(0)), Later(lambda: frozen(1))),
    ("quantized", quantized(1.0), quantized(2.0)),
    ("subclass of date", Day(2020, 1, 1), Day(2020, 1, 2)),
    ("constant of a metaclass", Later(lambda: of_metaclass(1)), Later(lambda: of_metaclass(2))),
    ("class made by a call", type("O", (), {"x": 1})(), type("O", (), {"x": 2})()),
    ("descriptor", type("O", (), {"x": Constant(1)})(), type("O", (), {"x": Constant(2)})()),
    ("variable of such a name", named_defaults(1), named_defaults(2)),
    ("descriptor alone", Constant(1), Constant(2)),
    ("partial method", Later(lambda: partial_method(1)), Later(lambda: partial_method(2))),
    ("dropout", torch.nn.Dropout(0.1), torch.nn.Dropout(0.2)),
    ("train", torch.nn.Dropout(0.1), torch.nn.Dropout(0.1).eval()),
    ("size", torch.Size([1]), (1,)),
    ("slice", slice(1, 2), slice(1, 3)),
    ("slice ends", slice(1), slice(1, None)),
    ("slice None", slice(None), slice(0)),
    ("range", range(3), range(4)),
    ("range eq", range(0, 3, 2), range(0, 4, 2)),
    ("ellipsis", ..., None),
    ("NotImpl", ..., NotImplemented),
    ("path", pathlib.Path("a"), pathlib.Path("b")),
    ("dc", One(), Other()),
    ("dcx", One(1), One(2)),
    ("nt", Pair(1), Couple(1)),
    ("nt tuple", Pair(1), (1,)),
    ("cycle", cycle(1), cycle(2)),
    ("cycle shape", cycles(True), cycles(False)),
    ("deep", deep(1), deep(2)),
    ("array", array.array("i", [1]), array.array("l", [1])),
    ("array2", array.array("i", [1]), array.array("i", [2])),
    ("Frac", fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    ("Dec", decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    ("NS names", types.SimpleNamespace(a=1, b=2), types.SimpleNamespace(**{"a=1, b": 2})),
    ("NS", types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    ("PIL", Later(lambda: Image.new("L", (2, 2), 1)), Later(lambda: Image.new("L", (2, 2), 2))),
    ("PIL mode", Later(lambda: Image.new("L", (2, 2), 1)), Later(lambda: Image.new("P", (2, 2), 1))),
    ("str quote", ["a', 'b"], ["a", "b"]),
    ("nul", ["a\0"], ["a"]),
    ("surrogate", ["\ud800"], ["\\ud800"]),
    ("big ints", 10**30, 10**30 + 1),
    ("huge", 10**5000, 10**5000 + 1),
    ("set frozenset", {1}, frozenset({1})),
    ("frozenset of", frozenset({frozenset({1})}), frozenset({frozenset({2})})),
    ("set bool", {1}, {True}),
    ("type", int, float),
    ("generic alias", list[int], list[str]),
    ("union", int | str, int | float),
    ("cached fn", functools.lru_cache(adding), functools.lru_cache(defaulting)),
    ("staticm", Plain.__init__, Derived.__repr__),
    ("method-wrapper", (1).__add__, (2).__add__),
]


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in DIFFERENT], ids=[row[0] for row in DIFFERENT])
def test_values_that_differ_in_one_place_are_told_apart(one: Any, other: Any) -> None:
    for text in (text_of_argument, text_of_attribute):
        assert text(made(one)) != text(made(other))
        assert text(made(one)) == text(made(one))


SAME: list[tuple[str, Any, Any]] = [
    ("order of a dict", {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ("order of dicts in a list", [{"a": 1, "b": 2}, {"a": 3}], [{"b": 2, "a": 1}, {"a": 3}]),
    ("order of a set", {*"abcdef"}, {*"fedcba"}),
    ("order of a set of tuples", {(1, 2), (3, 4)}, {(3, 4), (1, 2)}),
    ("order of attributes", types.SimpleNamespace(a=1, b=2), types.SimpleNamespace(b=2, a=1)),
    ("nan", float("nan"), float("nan")),
    ("nan in a list", [float("nan")], [float("nan")]),
    ("strides", np.arange(6).reshape(2, 3).T, np.ascontiguousarray(np.arange(6).reshape(2, 3).T)),
    ("steps", np.arange(6)[::2], np.array([0, 2, 4])),
    ("padding", padded(0), padded(255)),
    ("padding inside", padded(0, kind=INNER), padded(255, kind=INNER)),
    ("padding of a scalar", padded(0)[0], padded(255)[0]),
    ("padding of steps", padded(0)[::2], padded(255)[::2]),
    ("padding under a mask", np.ma.array(padded(0)), np.ma.array(padded(255))),
    ("padding of a long double", long_double(0), long_double(255)),
    (
        "strides of a tensor",
        torch.arange(6).reshape(2, 3).t(),
        torch.arange(6).reshape(2, 3).t().contiguous(),
    ),
    ("a view of a tensor", torch.arange(6)[2:], torch.arange(2, 6)),
    ("memmap and array", memmap(1), np.ones(10, np.int32)),
    ("two files of a memmap", memmap(1), memmap(1)),
    ("a copy of a frame", Later(frame), Later(lambda: frame().copy())),
    (
        "frame by columns",
        Later(frame),
        Later(lambda: pd.concat([frame()["a"], frame()["b"]], axis=1)),
    ),
    (
        "order of categories",  # which a sample shows that is made of their numbers
        Later(lambda: pd.Categorical(["a", "b"], ["a", "b"])),
        Later(lambda: pd.Categorical(["a", "b"], ["b", "a"])),
    ),
    ("closures", adding([1]), adding([1])),
    ("recursive functions", recursive(1), recursive(1)),
    ("decorators", decorated([1], abs), decorated([1], abs)),
    ("defaults", defaulting(1), defaulting(1)),
    ("generators", doubled([1]), doubled([1])),
    ("iterators", map(abs, [1]), map(abs, [1])),
    ("bound methods", "ab".upper, "AB".lower().upper),
    ("cycles", cycle(1), cycle(1)),
    ("traced modules", Later(lambda: traced(0)), Later(lambda: traced(0))),
    ("objects", with_attributes(Plain, a=1), with_attributes(Plain, a=1)),
    (
        "a private attribute that reading fills",
        with_attributes(Plain, _a=None),
        with_attributes(Plain, _a={}),
    ),
    ("a set of objects", *({with_attributes(Plain, _a=k) for k in range(20)} for _ in range(2))),
    ("a property that reading caches", Worded(), read(Worded())),
    ("generators of numbers", random.Random(1), random.Random(2)),
    ("generators of numpy", np.random.default_rng(1), np.random.default_rng(2)),
    ("states of numpy", np.random.RandomState(1), np.random.RandomState(2)),
    ("generators of torch", torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    ("images", Later(lambda: Image.new("L", (2, 2), 1)), Later(lambda: Image.new("L", (2, 2), 1))),
    ("zones", *[dt.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")) for _ in range(2)]),
    ("patterns", re.compile("a"), re.compile("a")),
    ("fresh texts", "".join("ab"), "ab"),
    ("frozen sets in sets", {frozenset("ab")}, {frozenset("ba")}),
    ("partials", functools.partial(max, key=len), functools.partial(max, key=len)),
]


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_values_that_do_not_differ_are_described_alike(one: Any, other: Any) -> None:
    for text in (text_of_argument, text_of_attribute):
        assert text(made(one)) == text(made(other))


SHOWN: list[tuple[str, Any, Any, Callable[[Any], Any]]] = [
    (
        "Interval",
        Later(lambda: pd.Interval(0, 1, "left")),
        Later(lambda: pd.Interval(0, 1, "right")),
        lambda interval: 0 in interval,
    ),
    (
        "default of a dict",
        collections.defaultdict(lambda: 1),
        collections.defaultdict(lambda: 2),
        lambda items: items.default_factory(),
    ),
    ("order of a dict", {"a": 1, "b": 2}, {"b": 2, "a": 1}, lambda items: [*items]),
    (
        "order of an OrderedDict",
        collections.OrderedDict(a=1, b=2),
        collections.OrderedDict(b=2, a=1),
        lambda items: [*items],
    ),
    ("memoryview", memoryview(b"a"), memoryview(b"b"), bytes),
    ("hook", hooked(1), hooked(2), lambda module: module(torch.ones(2))),
    (
        "traced function",
        Later(lambda: traced_of(lambda x: x * 2)),
        Later(lambda: traced_of(lambda x: x * 3)),
        lambda function: function(torch.ones(1, 2)),
    ),
    (
        "graph",
        Later(lambda: torch.fx.symbolic_trace(Scale(2))),
        Later(lambda: torch.fx.symbolic_trace(Scale(3))),
        lambda module: module(torch.ones(2)),
    ),
    (
        "element",
        ElementTree.fromstring("<a b='1'/>"),
        ElementTree.fromstring("<a b='2'/>"),
        lambda element: element.get("b"),
    ),
    ("exception", ValueError(1), ValueError(2), str),
    ("gradient", torch.zeros(2), torch.zeros(2, requires_grad=True), lambda tensor: tensor.requires_grad),
    ("module of Python", math, operator, lambda module: module.__name__),
    ("count", itertools.count(1), itertools.count(2), repr),
    ("private attribute of a library", Spread(1), Spread(2), lambda spread: spread._by),
]


class Reading:
    """A source whose samples are what is read of a value."""

    def __init__(self, value: Any, read: Callable[[Any], Any]) -> None:
        self.value, self._read = value, read

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return {"x": self._read(self.value)}


@pytest.mark.parametrize(("one", "other", "read"), [row[1:] for row in SHOWN], ids=[row[0] for row in SHOWN])
def test_what_is_not_described_a_sample_shows(
    one: Any, other: Any, read: Any, tmp_path: pathlib.Path
) -> None:
    one, other = made(one), made(other)
    assert text_of_argument(one) == text_of_argument(other)
    path = tmp_path / "a.zip"
    edcache.CachedDataset(Reading(one, read), path, progress=False)
    edcache.CachedDataset(Reading(one, read), path, progress=False)
    with pytest.raises(
        edcache.StaleCacheError, match="sample . is another one now.*nothing that edcache compares"
    ):
        edcache.CachedDataset(Reading(other, read), path, progress=False)

    def factory(value: Any = one) -> Any:
        return Reading(value, read)

    def call(value: Any) -> None:  # as in a process of its own
        edcache.cachable(tmp_path / "b.zip", progress=False)(factory)(value)

    call(one)
    call(one)
    with pytest.raises(edcache.StaleCacheError, match="sample . is another one now"):
        call(other)


def text_of_argument(value: Any) -> str:
    return json.dumps(recipe_of_call(len, {"a": value}).to_json(), sort_keys=True)


def text_of_attribute(value: Any) -> str:
    return json.dumps(recipe_of(with_attributes(Plain, a=value)).to_json(), sort_keys=True)
