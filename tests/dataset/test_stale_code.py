"""Code that changed since an archive was made is named under @cachable as for a bare source, and no other."""

from __future__ import annotations

import importlib
import linecache
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edcache import CachedDataset
from edcache.reader import Reader

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
import dataclasses, functools

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

KINDS = dict(shift=shifted)

DOUBLE = lambda x: x * 2

def unrelated():
    return 0
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
    "a class in another module": ("Digits()", DIGITS, "Digits"),
    "a constant of a class": ("Digits()", ("scale = 1", "scale = 2"), "Digits"),
    "a cached method": ("Digits()", ("return 9", "return 8"), "Digits"),
    "a default": ("Digits(made_shift())", ("by=5", "by=6"), "made_shift"),
    "a registry": ("Digits(KINDS['shift'])", ("x + 4", "x - 4"), "shifted"),
    "a base class": ("Digits()", ("return self.transform(i)", "return -self.transform(i)"), "Base"),
    "two datasets as one": (
        "torch.utils.data.ConcatDataset([Digits(), Letters()])",
        ("chr(65 + i)", "chr(97 + i)"),
        "Letters",
    ),
    "a subset": ("torch.utils.data.Subset(Digits(), [0, 2])", DIGITS, "Digits"),
    "a transform among transforms": ("Digits(Compose(abs, Compose(Shift(3))))", SHIFT, "Shift"),
    "a partial": ("Digits(functools.partial(times, factor=2))", ("x * factor", "x**factor"), "times"),
    "a decorated function": ("Digits(halved)", ("x // 2", "x // 3"), "halved"),
    "a lambda of a module": ("Digits(DOUBLE)", ("x * 2", "x * 4"), "DOUBLE"),
    "a function of a function": ("Digits(made_shift(2))", ("x + by", "x - by"), "made_shift"),
}


@pytest.mark.parametrize(("made", "edit", "name"), LAYOUTS.values(), ids=LAYOUTS)
def test_code_that_a_dataset_is_of_is_named(
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
    text = f"a.zip: the code of stale_lib:{name} changed since this cache was made; if it makes other samples"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        module.data()
    assert caught[0].filename == __file__


def test_a_class_beside_the_function_is_named_and_one_inside_it_once(folder: Path) -> None:
    head, factory = APP.split("@edcache", 1)
    beside = f"{head}{LIB}\n@edcache{factory}".format(made="Digits(Shift())")
    load(folder, beside, "").data()
    with pytest.warns(RuntimeWarning, match="the code of stale_app:Digits, stale_app:Shift changed"):
        load(folder, changed(changed(beside, DIGITS), SHIFT), "").data()
    inside = APP.format(made="Own()").replace("    return", INSIDE + "    return").replace("a.zip", "b.zip")
    load(folder, inside, LIB).data()
    with pytest.warns(RuntimeWarning, match=r"b.zip: the code of stale_app:data changed since"):
        load(folder, inside.replace("return i", "return -i"), LIB).data()


INSIDE = """
    class Own(Digits):
        def __getitem__(self, i):
            return i
"""


def test_the_same_change_is_named_for_a_bare_source(folder: Path) -> None:
    app = APP.format(made="Digits()")
    CachedDataset(load(folder, app, LIB).data.uncached(), "bare.zip", progress=False)
    source = load(folder, app, changed(LIB, DIGITS)).data.uncached()
    with pytest.warns(RuntimeWarning, match="bare.zip: the code of stale_lib:Digits changed since") as caught:
        CachedDataset(source, "bare.zip", progress=False)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", ["x", "i"])
@pytest.mark.parametrize("form", ["{name} = {value}", "for {name} in [{value}]: pass"], ids=["set", "loop"])
def test_a_global_variable_with_the_name_of_a_local_one_is_not_compared(
    folder: Path, form: str, name: str
) -> None:
    app = APP.format(made="Digits(Compose(made_shift()))")
    for value in (1, 2):
        lib = f"{form.format(name=name, value=value)}\n{LIB}"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load(folder, app, lib).data()


@pytest.mark.parametrize("use", ["by=FIVE", "FIVE=FIVE", "*, by=FIVE"])
def test_a_global_variable_beside_a_local_one_of_its_name_is_compared(folder: Path, use: str) -> None:
    head, factory = LIB.split("def made_shift(by=5):")
    body = factory.replace("return x + by", "FIVE = 0; return x + (lambda FIVE: FIVE)(0)", 1)
    app = APP.format(made="Digits(made_shift())")
    lib = f"FIVE = 5{head}def made_shift({use}):{body}"
    load(folder, app, lib).data()
    with pytest.warns(RuntimeWarning, match="the code of stale_lib:FIVE changed"):
        load(folder, app, changed(lib, ("FIVE = 5", "FIVE = 6"))).data()


def test_a_global_variable_that_a_function_sets_is_compared(folder: Path) -> None:
    app = APP.format(made="Digits(shifted)")
    lib = "by = 5" + LIB.replace("return x + 4", "global by; by = by; return x + by")
    load(folder, app, lib).data()
    with pytest.warns(RuntimeWarning, match="the code of stale_lib:by changed"):
        load(folder, app, changed(lib, ("by = 5", "by = 6"))).data()


def test_an_installed_library_is_not_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "site-packages").mkdir()
    monkeypatch.syspath_prepend(str(folder / "site-packages"))
    app = APP.format(made="Digits()").replace("stale_lib", "stale_vision")
    try:
        for text in (LIB, changed(LIB, DIGITS)):
            sys.modules.pop("stale_vision", None)
            (folder / "site-packages" / "stale_vision.py").write_text(text)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                load(folder, app, "").data()
    finally:
        sys.modules.pop("stale_vision", None)
    assert Reader("a.zip").head.fingerprint["code"].keys() == {"stale_app:data"}


@pytest.mark.parametrize(
    "code",
    [3, {"sys:path": "x", "sys:exit": 1, "": "", ":": "x", "os:path:join": "x"}, {"stale_lib:Digits": [1]}],
    ids=str,
)
def test_whatever_an_archive_says_of_code_harms_nothing(folder: Path, code: Any) -> None:
    module = load(folder, APP.format(made="Digits()"), LIB)
    module.data()
    head = Reader("a.zip").head.fingerprint
    os.remove("a.zip")
    CachedDataset(module.data.uncached(), "a.zip", fingerprint={**head, "code": code}, progress=False)
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
    assert len(Reader("a.zip").head.fingerprint["code"]) == 8
