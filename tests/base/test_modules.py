"""A program, the processes that it spawns, and who imports it have one name for what it defines."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.base.process import module_aliases, module_name
from edcache.errors import CodecError

PROGRAM = '''
import dataclasses, enum, multiprocessing, sys, typing, warnings
from pathlib import Path
import torch
import edcache

@edcache.register
class Colour(enum.Enum):
    RED = 1

@edcache.register
@dataclasses.dataclass
class Box:
    width: int

@edcache.register
class Point(typing.NamedTuple):
    x: int

class Scale:
    def __init__(self, by):
        self.by = by
    def __call__(self, x):
        return x * self.by

class Source:
    def __init__(self):
        self.scale, self.colour, self.keep = Scale(2), Colour.RED, keep
    def __len__(self):
        return 1
    def __getitem__(self, i):
        return {"colour": Colour.RED, "box": Box(self.scale(3)), "point": Point(4)}

def keep(x):
    return x

def make(scale=keep, colour=Colour.RED):
    return Source()

def check(folder, me):
    """Fill archives of my own, and open those of all."""
    warnings.simplefilter("error", RuntimeWarning)
    edcache.CachedDataset(Source(), folder / f"{me}.class.zip", progress=False)
    edcache.cachable(folder / f"{me}.call.zip", progress=False)(make)()
    for path in sorted(folder.glob("*.zip")):
        if ".class." in path.name:
            cache = edcache.CachedDataset(Source(), path)
        else:
            cache = edcache.cachable(path)(make)()
        colour, box, point = cache[0].values()
        assert colour is Colour.RED, path
        assert type(box) is Box and box == Box(6), path
        assert type(point) is Point and point == Point(4), path
    (folder / me).write_text(__name__)

def spawned(rank, folder):
    check(folder, "spawn")

if __name__ == "__main__":
    folder, me = Path(sys.argv[1]), sys.argv[2]
    check(folder, me)
    if me == "script":
        torch.multiprocessing.spawn(spawned, (folder,), nprocs=1)
        process = multiprocessing.get_context("forkserver").Process(target=check, args=(folder, "forkserver"))
        process.start()
        process.join()
        assert process.exitcode == 0
        check(folder, me)
'''


@pytest.mark.full
def test_a_program_reads_what_its_processes_and_its_importers_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "trial_of_names.py").write_text(PROGRAM)
    archives = tmp_path / "archives"
    archives.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "jobs"))
    imported = importlib.import_module("trial_of_names")
    imported.check(archives, "imported")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    script = str(tmp_path / "jobs" / "trial_of_names.py")
    for command in ([script, str(archives), "script"], ["-m", "trial_of_names", str(archives), "module"]):
        subprocess.run([sys.executable, *command], env=environment, check=True)
    imported.check(archives, "imported")
    names = {path.name: path.read_text() for path in archives.iterdir() if not path.suffix}
    assert names == {
        "imported": "trial_of_names",
        "script": "__main__",
        "module": "__main__",
        "spawn": "__mp_main__",
        "forkserver": "__mp_main__",
    }


@pytest.mark.parametrize(
    ("spec", "file", "expected"),
    [("pkg.mod", "/x/pkg/mod.py", "pkg.mod"), (None, "/x/train.v2.py", "train.v2"), (None, None, "__main__")],
)
@pytest.mark.parametrize("main", ["__main__", "__mp_main__"])
def test_the_name_of_a_program(
    monkeypatch: pytest.MonkeyPatch, main: str, spec: str | None, file: str | None, expected: str
) -> None:
    module: Any = ModuleType(main)
    module.__spec__, module.__file__ = spec and SimpleNamespace(name=spec), file
    monkeypatch.setitem(sys.modules, main, module)
    assert module_name(type("Thing", (), {"__module__": main})) == expected
    assert module_aliases(expected)[-1] == expected
    assert main in module_aliases(expected)
    assert module_aliases("another") == ("another",)


def test_what_has_no_module_has_a_name_too() -> None:
    assert module_name(SimpleNamespace(__module__=None)) == "?"
    assert module_name(len) == "builtins"


# --------------------------------------------------------------------------------- classes that were moved


class Moved(enum.Enum):
    A = 1


@dataclasses.dataclass
class MovedBox:
    width: int


OLD = """
import dataclasses, enum

class Outer:
    class Moved(enum.Enum):
        A = 1

    @dataclasses.dataclass
    class MovedBox:
        width: int
"""


@pytest.mark.parametrize("cls", [Moved, MovedBox], ids=["enum", "dataclass"])
def test_a_class_that_was_moved_is_read_under_its_old_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cls: Any
) -> None:
    def fresh() -> None:
        monkeypatch.setattr("edcache.codec.classes._registered", {})

    def written(cls: Any, name: str) -> Any:
        with CacheWriter(tmp_path / name) as writer:
            writer.append(cls(1))
        return CachedDataset.from_cache(tmp_path / name)

    old: Any = ModuleType("old.place")
    monkeypatch.setitem(sys.modules, "old.place", old)
    exec(OLD, vars(old))
    fresh()
    archive = written(edcache.register(getattr(old.Outer, cls.__name__)), "old.zip")
    fresh()
    edcache.register(cls)
    name = f"old.place.Outer.{cls.__name__}"
    with pytest.raises(CodecError, match=rf'elsewhere now, register\(..., name="{name}"\)'):
        archive[0]
    edcache.register(cls, name="older.Name")
    assert edcache.register(cls, name=name) is cls
    assert archive[0] == cls(1)
    assert type(archive[0]) is cls
    archive = written(cls, "new.zip")
    fresh()
    edcache.register(cls)
    assert archive[0] == cls(1)
