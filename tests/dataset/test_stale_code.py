"""Code that changed since an archive was made asks: samples are compared, and it is named if they are other ones."""

from __future__ import annotations

import importlib
import linecache
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edcache import CachedDataset, StaleCacheError
from edcache.identity.code import code_of, reached_from
from edcache.identity.settings import Settings
from edcache.reader import Reader
from tests.kit.optional import needs

APP = """
import functools
import torch.utils.data
import edcache
from stale_lib import *

@edcache.cachable("a.zip", progress=False)
def data():
    return {made}
"""
LIB = """
import argparse, dataclasses, functools

class Base:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.transform(i)

class Digits(Base):
    scale = 1

    def __init__(self, transform=None):
        self.transform = transform or abs

    def __getitem__(self, i):
        # A comment.
        return super().__getitem__(i) * self.scale

    @functools.lru_cache
    def size(self):
        return 9

class Letters(Base):
    def __init__(self):
        self.transform = str

    def __getitem__(self, i):
        return chr(65 + i)

class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x

@dataclasses.dataclass
class Shift:
    by: int = 1

    def __call__(self, x):
        return x + self.by

def times(x, factor):
    return x * factor

def noisy(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)
    return call

@noisy
def halved(x):
    return x // 2

def made_shift(by=5):
    def shift(x):
        return x + by
    return shift

def shifted(x):
    return x + 4

class Twice(Shift):
    def __call__(self, x):
        return x * 2

FACTOR = 3
CONFIG = dict(by=11)
ARGS = argparse.Namespace(by=21)
ALIAS = Shift

def scaled(x):
    return x * FACTOR

def configured(x):
    return x + CONFIG["by"]

def by_args(x):
    return x + ARGS.by

def by_name(name):
    return KINDS[name]

def imports(x):
    import stale_lib
    return stale_lib.shifted(x)

KINDS = dict(shift=shifted)

import collections, contextlib, os, pathlib
import numpy as np
import torch
from os import environ as E

Pair = collections.namedtuple("Pair", "by")
PLACE = pathlib.Path("by/31")
WHOLE = argparse.Namespace(by=41)
PAIR = Pair(51)
DTYPE = np.dtype("uint8")
ORDERED = collections.OrderedDict(by=71)
STEPS = collections.deque([81])
SHARED = dict(by=91)
OBJECT = Shift(101)

def by_place(x):
    return x + int(PLACE.name)

def by_of(args):
    return args.by

def by_namespace(x):
    return x + by_of(WHOLE)

def by_pair(x):
    return x + by_of(PAIR)

def by_dtype(x):
    return x + DTYPE.itemsize

def by_ordered(x):
    return x + ORDERED["by"]

def by_deque(x):
    return x + STEPS[0]

def by_object(x):
    return OBJECT(x)

def appends(x):
    made = []
    made.append(SHARED["by"] + x)
    return made[0]

class Assigns:
    def __init__(self):
        self.FACTOR = FACTOR

    def __call__(self, x):
        return x * FACTOR

@torch.no_grad()
def graded(x):
    return x + 111

@functools.singledispatch
def dispatched(x):
    return x + 121

@contextlib.contextmanager
def opened(x):
    yield x + 131

def by_context(x):
    with opened(x) as made:
        return made

vectorized = np.vectorize(lambda x: x + 141)

def by_vector(x):
    return int(vectorized(x))

def up(x):
    return x + 151

def down(x):
    return x - 151

class Static:
    move = staticmethod(up)
    other = staticmethod(down)

def by_static(x):
    return Static.move(x)

class Arrays:
    table = np.array([161])

def by_class_array(x):
    return x + int(Arrays.table[0])

def attributed(x):
    return x + attributed.by

attributed.by = 181

class Hidden:
    def __init__(self, by):
        self._by = by

    def __call__(self, x):
        return x + self._by

HIDDEN = Hidden(191)

def by_hidden(x):
    return HIDDEN(x)

def by_environ(x):
    return x + int(E.get("STALE_CODE_BY", "171"))

DOUBLE = lambda x: x * 2

def unrelated():
    return 0
"""

TABLE = """
import pandas as pd

FRAME = pd.DataFrame(dict(by=[61]))

def by_table(x):
    return x + int(FRAME["by"][0])
"""


def load(folder: Path, app: str, lib: str) -> ModuleType:
    """The app as a new process would import it from these texts."""
    (folder / "stale_app.py").write_text(app)
    (folder / "stale_lib.py").write_text(lib)
    for name in ("stale_app", "stale_lib"):
        sys.modules.pop(name, None)
    linecache.clearcache()
    importlib.invalidate_caches()
    return importlib.import_module("stale_app")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in ("stale_app", "stale_lib"):
        sys.modules.pop(name, None)


def changed(text: str, edit: tuple[str, str]) -> str:
    assert edit[0] in text
    return text.replace(*edit)


DIGITS = ("* self.scale", "* self.scale * 7")
SHIFT = ("return x + self.by", "return x - self.by")
LAYOUTS = {
    "a class in another module": ("Digits()", DIGITS, "Digits.__getitem__"),
    "a constant of a class": ("Digits()", ("scale = 1", "scale = 2"), "Digits"),
    "a default": ("Digits(made_shift())", ("by=5", "by=6"), "made_shift"),
    "a path": ("Digits(by_place)", ("by/31", "by/32"), "by_place"),
    "a namespace that is handed on": ("Digits(by_namespace)", ("by=41", "by=42"), "by_namespace"),
    "a named tuple": ("Digits(by_pair)", ("Pair(51)", "Pair(52)"), "by_pair"),
    "a dtype": ("Digits(by_dtype)", ("uint8", "uint16"), "by_dtype"),
    "an ordered dict": ("Digits(by_ordered)", ("by=71", "by=72"), "by_ordered"),
    "a deque": ("Digits(by_deque)", ("[81]", "[82]"), "by_deque"),
    "an object": ("Digits(by_object)", ("Shift(101)", "Shift(102)"), "by_object"),
    "a dict where another container is changed": ("Digits(appends)", ("by=91", "by=92"), "appends"),
    "a name that is an attribute, too": ("Digits(Assigns())", ("FACTOR = 3", "FACTOR = 4"), "Assigns"),
    "a function without gradients": ("Digits(graded)", ("x + 111", "x + 112"), "graded"),
    "a function by type": ("Digits(dispatched)", ("x + 121", "x + 122"), "dispatched"),
    "a context": ("Digits(by_context)", ("x + 131", "x + 132"), "opened"),
    "a function for arrays": ("Digits(by_vector)", ("x + 141", "x + 142"), "<lambda>"),
    "another static method": ("Digits(by_static)", ("staticmethod(up)", "staticmethod(down)"), "Static"),
    "an array of a class": ("Digits(by_class_array)", ("[161]", "[162]"), "Arrays"),
    "an attribute of a function": ("Digits(attributed)", (".by = 181", ".by = 182"), "attributed"),
    "a private attribute of an object": ("Digits(by_hidden)", ("Hidden(191)", "Hidden(192)"), "by_hidden"),
    "a default of the environment": ("Digits(by_environ)", ('"171"', '"172"'), "by_environ"),
    "a registry": ("Digits(KINDS['shift'])", ("x + 4", "x - 4"), "shifted"),
    "a base class": (
        "Digits()",
        ("return self.transform(i)", "return -self.transform(i)"),
        "Base.__getitem__",
    ),
    "two datasets as one": (
        "torch.utils.data.ConcatDataset([Digits(), Letters()])",
        ("chr(65 + i)", "chr(97 + i)"),
        "Letters.__getitem__",
    ),
    "a subset": ("torch.utils.data.Subset(Digits(), [1, 2])", DIGITS, "Digits.__getitem__"),
    "a transform among transforms": ("Digits(Compose(abs, Compose(Shift(3))))", SHIFT, "Shift.__call__"),
    "a partial": ("Digits(functools.partial(times, factor=3))", ("x * factor", "x**factor"), "times"),
    "a decorated function": ("Digits(halved)", ("x // 2", "x // 3"), "halved"),
    "a lambda of a module": ("Digits(DOUBLE)", ("x * 2", "x * 4"), "<lambda>"),
    "a function of a function": ("Digits(made_shift(2))", ("x + by", "x - by"), "made_shift"),
    "a function of a registry": ("Digits(by_name('shift'))", ("x + 4", "x - 4"), "shifted"),
    "a constant": ("Digits(scaled)", ("FACTOR = 3", "FACTOR = 4"), "scaled"),
    "an item of a dict": ("Digits(configured)", ("by=11", "by=12"), "configured"),
    "an attribute of an object": ("Digits(by_args)", ("by=21", "by=22"), "by_args"),
    "an alias": ("Digits(ALIAS())", ("ALIAS = Shift", "ALIAS = Twice"), "data"),
    "a function's import": (
        "Digits(imports)",
        ("return stale_lib.shifted(x)", "return stale_lib.scaled(x)"),
        "imports",
    ),
}


@pytest.mark.parametrize(("made", "edit", "name"), LAYOUTS.values(), ids=LAYOUTS)
def test_other_samples_are_an_error_that_names_the_code(
    folder: Path, made: str, edit: tuple[str, str], name: str
) -> None:
    app = APP.format(made=made)
    load(folder, app, LIB).data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(folder, app, LIB).data()
        load(folder, app, changed(LIB, ("return 0", "return 1"))).data()  # another function of that file
        load(folder, app, changed(LIB, ("# A comment.", "# Another."))).data()
    module = load(folder, app, changed(LIB, edit))
    with pytest.raises(
        StaleCacheError, match=rf"a.zip: sample \d is another one now.*the code of .*{name}"
    ) as caught:
        module.data()
    assert caught.value.option == "spot_check"
    if name == "imports":
        return  # of a bare source it is what is imported when it is read
    source = module.data.uncached()
    os.remove("a.zip")
    CachedDataset(load(folder, app, LIB).data.uncached(), "a.zip", progress=False)
    with pytest.raises(StaleCacheError, match="the code of|made by another source"):
        CachedDataset(source, "a.zip", progress=False)


@needs("pandas")
def test_a_table_that_code_names_asks(folder: Path) -> None:
    app = APP.format(made="Digits(by_table)")
    load(folder, app, LIB + TABLE).data()
    load(folder, app, changed(LIB + TABLE, ("return 0", "return 1"))).data()
    module = load(folder, app, changed(LIB + TABLE, ("[61]", "[62]")))
    with pytest.raises(StaleCacheError, match="the code of .*by_table"):
        module.data()


@pytest.mark.parametrize(
    "edit",
    [
        ("return 9", "return 8"),
        ("def __getitem__(self, i):\n        # A", "def __getitem__(self, n):\n        i = n  # A"),
    ],
    ids=["another method", "a local name"],
)
def test_equal_samples_are_no_word(folder: Path, edit: tuple[str, str]) -> None:
    app = APP.format(made="Digits()")
    load(folder, app, LIB).data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(folder, app, changed(LIB, edit)).data()
        CachedDataset(load(folder, app, changed(LIB, edit)).data.uncached(), "a.zip", progress=False)


def test_a_function_that_raises_now_is_a_warning_that_names_its_code(folder: Path) -> None:
    app = APP.format(made="Digits()")
    load(folder, app, LIB).data()
    module = load(folder, app, changed(LIB, ("transform or abs", "{}[0]")))
    text = "the code of Digits.__init__ changed, or a value that it names, and no sample was compared: data.. raised"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        assert len(module.data()) == 4
    assert caught[0].filename == __file__


@pytest.mark.parametrize("on_stale", ["warn", "rebuild", "ignore"])
def test_on_stale_decides_about_other_samples(folder: Path, on_stale: str) -> None:
    app = APP.format(made="Digits()").replace("progress=False", f'progress=False, on_stale="{on_stale}"')
    load(folder, app, LIB).data()
    module = load(folder, app, changed(LIB, DIGITS))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds = module.data()
    assert [ds[i] for i in range(4)] == [i * (7 if on_stale == "rebuild" else 1) for i in range(4)]
    assert ["is another one now" in str(one.message) for one in caught] == [True] * (on_stale == "warn")


def test_a_version_answers_in_the_place_of_code(folder: Path) -> None:
    app = APP.format(made="Digits()").replace("progress=False", "progress=False, version=1")
    load(folder, app, LIB).data()
    module = load(folder, app, changed(LIB, ("transform or abs", "{}[0]")))  # it would raise
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.data()[3] == 3


def test_code_of_two_files_with_the_same_names_asks(folder: Path) -> None:
    """Two scripts with one path: the second one does not get the samples of the first."""
    app = APP.format(made="Digits()").replace("from stale_lib import *", LIB)
    load(folder, app, "").data()
    (folder / "other_app.py").write_text(changed(app, DIGITS))
    try:
        with pytest.raises(StaleCacheError, match="sample"):
            importlib.import_module("other_app").data()
    finally:
        sys.modules.pop("other_app", None)


HOSTILE = {
    "a cycle": "loop = {}; loop['self'] = loop",
    "a proxy": "class P:\n    def __getattr__(self, name):\n        return self\nloop = P()",
    "a class of KeyErrors": "class P(dict):\n    def __getattr__(self, name):\n        return self[name]\nloop = P()",
    "a deep list": "loop = []\nfor _ in range(100_000):\n    loop = [loop]",
    "many functions": "for k in range(20_000):\n    exec(f'def f{k}(): return f{k + 1}()')\nloop = f0",
    "a large dict": "loop = dict.fromkeys(range(1_000_000))",
    "a metaclass": "class M(type):\n    def __getattribute__(self, name):\n        raise KeyError(name)\n"
    "class loop(metaclass=M): pass",
}


@pytest.mark.parametrize("names", HOSTILE.values(), ids=HOSTILE)
def test_values_that_are_no_end_of_names_end_in_a_second(folder: Path, names: str) -> None:
    app = APP.format(made="loop and Digits()") + names
    module = load(folder, app, LIB)
    start = time.process_time()
    code = code_of(reached_from([module.data.uncached]), 1_200, Settings().describe)
    assert code["data"]
    assert time.process_time() - start < 2
    assert code == code_of(reached_from([module.data.uncached]), 1_200, Settings().describe)


def test_of_an_installed_library_a_sample_tells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "site-packages").mkdir()
    monkeypatch.syspath_prepend(str(folder / "site-packages"))
    app = APP.format(made="Digits()").replace("stale_lib", "stale_vision")
    try:
        for text in (LIB, changed(LIB, DIGITS)):
            sys.modules.pop("stale_vision", None)
            (folder / "site-packages" / "stale_vision.py").write_text(text)
            with nullcontext() if text == LIB else pytest.raises(StaleCacheError, match="is another one now"):
                for _ in range(20):  # sample 0 is the same
                    load(folder, app, "").data()
    finally:
        sys.modules.pop("stale_vision", None)
    assert Reader("a.zip").session.head.fingerprint["code"].keys() == {"data"}


@pytest.mark.parametrize(
    "code",
    [3, {"sys:path": "x", "sys:exit": 1, "": "", ":": "x", "os:path:join": "x"}, {"stale_lib:Digits": [1]}],
    ids=str,
)
def test_whatever_an_archive_says_of_code_harms_nothing(
    folder: Path, code: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_code(job: Any) -> Any:
        return replace(job, head=replace(job.head, fingerprint={**job.head.fingerprint, "code": code}))

    monkeypatch.setattr(import_module("edcache.writer.fill"), "with_first_sample", with_code)
    module = load(folder, APP.format(made="Digits()"), LIB)
    module.data()
    assert Reader("a.zip").session.head.fingerprint["code"] == code
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(module.data()) == 4


@pytest.mark.full
def test_other_processes_with_another_order_of_imports_see_no_change(folder: Path) -> None:
    made = "Digits(Compose(Shift(3), made_shift(2), DOUBLE, functools.partial(times, factor=2)))"
    (folder / "stale_app.py").write_text(APP.format(made=made) + "\nif __name__ == '__main__':\n    data()\n")
    (folder / "stale_lib.py").write_text(LIB)
    starts = [
        ["stale_app.py"],
        ["-c", "import stale_app; stale_app.data()"],
        ["-c", "import stale_lib, json, numpy, stale_app; stale_app.data()"],
        ["-m", "stale_app"],
        ["-B", str(folder / "stale_app.py")],
    ]
    for seed, start in enumerate(starts):
        seeded = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-W", "error", *start]
        done = subprocess.run(command, env=seeded, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert {"data", "Shift.__call__", "times"} <= Reader("a.zip").session.head.fingerprint["code"].keys()
