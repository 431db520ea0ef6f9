"""Whatever is typed, a command ends by one clear line and an exit code, and advises what it has."""

import os
import re
import shlex
import shutil
import sys
import textwrap
import zipfile
from typing import get_args

import click
import pytest
import torch
from cli_runner import RUNNER
from damage import flipped
from scale import scaled, seeded
from written import write

from edcache import interop
from edcache.cli import main

pytestmark = pytest.mark.filterwarnings("always")

# A right call of each command, but for view, which serves until it is stopped.
RIGHT = {
    "build": "digits:make -o new.zip",
    "images": "folder -o new.zip",
    "import": "ok.zip -o new.zip --from edflow",
    "copy": "ok.zip new",
    "info": "ok.zip",
    "show": "ok.zip 0",
    "labels": "ok.zip",
    "verify": "ok.zip",
    "digest": "ok.zip",
    "caches": "folder",
}
PATHS = [
    *("missing.zip", "missing/a.zip", "folder", "empty", "text.txt", "text.txt/a.zip", "other.zip", "loop"),
    *("/dev/null", "", ".", "-", "--", "*.nothing", "[", "x" * 300, "\udcff.zip", "unreadable.zip"),
    *("http://127.0.0.1:1/a.zip", "http://", "https://[bad/a.zip", "http://127.0.0.1:99999/a"),
    *("nosuch://a/b", "ftp://127.0.0.1:1/a.zip", "redis://127.0.0.1:1/a", "redis://", "shm://", "shm://none"),
    "file://",
]
WORDS = [
    *("", "x", "-1", "0", "1e400", "nan", "\udcff", "[", "a=", "=a", "a=b=c", "zstd:99", "12", "sha256:zz"),
    *("5 pears", "-5GB", "ok.zip", "missing.csv", "text.txt", "c=ok.zip", "c=missing.npy", "label"),
    *("label ==", "9" * 18),
]
FACTORIES = [
    *("digits", "digits:", ":x", "..:x", "a.b:c", "digits:number", "digits:none", "digits:exits"),
    *("digits:raises", "digits:Digits.x", "syntax:f", "exits:f", "digits:make:x", "math:sqrt"),
    *("builtins:dict", "os:getcwd"),
]
MODULE = """
    import sys
    class Digits:
        def __len__(self): return 3
        def __getitem__(self, i): return {"x": i}
    def make(n=3): return Digits()
    def none(): return None
    def exits(): sys.exit(3)
    def raises(): raise KeyError("a")
    number = 7
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with what is wrong: cut, flipped and zeroed archives, and others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    write("ok.zip", ({"x": torch.zeros(3), "label": i} for i in range(20)), in_memory_keys=["label"])
    data = (tmp_path / "ok.zip").read_bytes()
    for n in (0, 1, 100, 4096, 5000, len(data) // 2, len(data) - 30, len(data) - 1):
        (tmp_path / f"cut{n}.zip").write_bytes(data[:n])
    for n in (10, 4096, 4200, len(data) - 2000, len(data) - 50):
        (tmp_path / f"flipped{n}.zip").write_bytes(flipped(data, n, 255))
    (tmp_path / "zeroed.zip").write_bytes(data[:4096] + bytes(4096) + data[8192:])
    for folder in ("empty", "folder", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "folder" / "ok.zip").write_bytes(data)
    (tmp_path / "text.txt").write_text("hello\n")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "unreadable.zip").write_bytes(data)
    (tmp_path / "unreadable.zip").chmod(0)
    with zipfile.ZipFile("other.zip", "w") as other:
        other.writestr("a", "b")
    (tmp_path / "digits.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "exits.py").write_text("import sys; sys.exit(4)\n")
    yield tmp_path
    for name in ("digits", "syntax", "exits"):
        sys.modules.pop(name, None)


def wrong_calls(files):
    """Command lines, each with one thing in it that is wrong, or that may be."""
    for command, right in RIGHT.items():
        words = shlex.split(right)
        places = [k for k, word in enumerate(words) if word.startswith(("ok", "folder", "new"))]
        for k, path in ((k, path) for k in places for path in [*PATHS, *files]):
            yield [command, *words[:k], path, *words[k + 1 :]]
        for k in range(len(words)):
            yield [command, *words[:k], *words[k + 1 :]]
        yield from ([command, *words, "extra"], [command, *words, "--jso"], [command])
        for option in main.commands[command].params:
            if isinstance(option, click.Option):
                yield [command, *words, option.opts[-1]]
                yield from ([command, *words, option.opts[-1], word] for word in WORDS)
    for kind in get_args(interop.Kind):
        yield from (["import", path, "-o", "new.zip", "--from", kind] for path in [*PATHS, *files])
    for factory in FACTORIES:
        yield ["build", factory, "-o", "new.zip"]
        yield ["import", "ok.zip", "-o", "new.zip", "--from", "edflow", "--for", factory]


def test_whatever_is_wrong_is_one_line_and_an_exit_code(here):
    files = sorted(path.name for path in here.glob("[cfz]*[0-9d].zip"))
    calls = list(wrong_calls(files))
    seeded("wrong calls").shuffle(calls)
    kept = set(os.listdir())
    for call in calls[: scaled(len(calls), least=100)]:
        done = RUNNER.invoke(main, call)
        command = main.commands[call[0]]
        assert isinstance(done.exception, SystemExit | None), (call, done.exception)
        assert done.exit_code in (0, 1, 2), call
        assert "Traceback" not in done.output, call
        lines = [line for line in done.stderr.splitlines() if not line.startswith("edcache: warning: ")]
        if done.exit_code == 2:
            assert any(line.startswith("Error: ") for line in lines), call
        elif done.exit_code == 1 and call[0] not in ("verify", "info", "import"):
            assert [line[:9] for line in lines] == ["edcache: "], (call, lines)
        is_users = "cannot load" in done.stderr or " raised " in done.stderr
        assert is_users or "EDCACHE_DEBUG" not in done.stderr, (call, lines)
        advised = re.findall(r"\((--[a-z-]+)\)$", done.stderr, re.MULTILINE)
        assert {*advised} <= {word for option in command.params for word in option.opts}, (call, advised)
        for new in set(os.listdir()) - kept:
            shutil.rmtree(new) if os.path.isdir(new) else os.remove(new)


@pytest.mark.parametrize(
    ("call", "last"),
    [
        ("build digits:make -o new.zip --key lable", "keep_existing=False begins anew (--rebuild)"),
        ("verify ok.zip --against digits:make", "or choose another path"),
        ("copy s3:/bucket/a.zip .", "begin the name of such a folder with ./"),
    ],
)
def test_the_last_words_are_the_remedy(here, call, last):
    done = RUNNER.invoke(main, shlex.split(call))
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].endswith(last)


@pytest.mark.parametrize("command", main.commands)
def test_a_slip_in_an_option_is_told_with_the_right_one(command):
    slip = "--helq" if command == "view" else "--jsn"
    words = shlex.split(RIGHT.get(command, "ok.zip"))
    done = RUNNER.invoke(main, [command, *words, slip])
    assert done.exit_code == 2
    assert {"--helq": "--help", "--jsn": "--json"}[slip] in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["", *main.commands])
def test_help_fits_a_terminal_of_80_columns(command):
    done = RUNNER.invoke(main, [*command.split(), "--help"], terminal_width=80)
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "..." not in done.stdout.replace("PATH...", "").replace("[ARGS]...", "")
