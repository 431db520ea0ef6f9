"""Imports go down only, each outside thing has one owner, and the public surface is what is written."""

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edcache
from edcache import errors

PACKAGE = Path(edcache.__file__).parent

FLOORS = [
    {"errors"},
    {"bounded", "modules", "once", "sizes", "suggestion", "zipdirectory"},
    {"options"},
    {"format", "durable", "codec", "labels", "fingerprint", "progress", "selection"},
    {"temporary"},
    {"archives", "contents", "digests", "folders", "ordering"},
    {"reader", "writer"},
    {"stores"},
    {"fill", "batch", "samplers", "xla"},
    {"loader"},
    {"views"},
    {"relabel"},
    {"dataset"},
    {"decorator", "exporting", "maintain", "housekeeping", "importers"},
    {"compat"},
    {"servers", "memory", "places"},
    {"local", "preload", "redis"},
    {"present"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
OWNERS = {
    "pyarrow": {"labels"},
    "mmap": {"durable"},
    "fcntl": {"durable"},
    "msvcrt": {"durable"},
    "pickle": {"codec"},
    "redis": {"redis"},
    "zstandard": {"codec"},
    "click": {"cli"},
    "tqdm": {"progress"},
    "aiohttp": {"places"},
    "asyncio": {"places"},
    "fsspec": {"places"},
    "torch_xla": {"xla"},
    "huggingface_hub": {"places"},
    "datasets": {"exporting", "importers"},
    "tarfile": {"exporting", "importers"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(file):
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_modules(file):
    """Every module that a file imports at run time, with `from a import b` as both a and a.b."""
    tree = ast.parse(file.read_text())
    checking = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    skipped = {id(n) for block in checking for n in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_room_has_a_floor():
    assert {room_of(file) for file in FILES} - {"__init__"} <= FLOOR.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_go_down_only(file):
    room = room_of(file)
    if room == "__init__":
        return
    for module in imported_modules(file):
        parts = module.split(".")
        if parts[0] != "edcache" or len(parts) < 2 or parts[1] not in FLOOR:
            continue
        assert parts[1] == room or FLOOR[parts[1]] < FLOOR[room], f"{room} imports {parts[1]}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_outside_things_have_one_owner(file):
    for module in imported_modules(file):
        owners = OWNERS.get(module.split(".")[0])
        assert owners is None or room_of(file) in owners, f"{room_of(file)} imports {module}"


def test_what_reads_an_archive_cannot_run_code():
    """pickle is in modules that say so; nothing evaluates text or imports by a name that a file holds."""
    pickles = {"codec/pickled.py", "codec/foreign.py", "codec/torchsave.py"}
    allowed = pickles | {"cli/call.py", "codec/packages.py", "durable/registry.py", "__init__.py"}
    assert allowed <= {file.relative_to(PACKAGE).as_posix() for file in FILES}
    for file in FILES:
        if file.relative_to(PACKAGE).as_posix() in allowed:
            continue
        calls = {
            ast.unparse(n.func) for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)
        }
        forbidden = {"eval", "exec", "compile", "__import__", "import_module", "importlib.import_module"}
        assert not calls & forbidden, file
        assert not any(c.startswith(("pickle.", "marshal.", "np.load", "torch.load")) for c in calls), file


def test_the_public_names_are_these():
    assert list(edcache.__all__) == sorted(edcache.__all__)
    for name in edcache.__all__:
        assert getattr(edcache, name) is not None
    with pytest.raises(AttributeError, match="module 'edcache' has no attribute 'nonsense'"):
        edcache.nonsense  # noqa: B018


def test_every_error_is_a_name_of_the_package():
    classes = {
        c.__name__: c
        for c in vars(errors).values()
        if isinstance(c, type) and c.__module__ == errors.__name__
    }
    assert {"EdcacheError", "StaleCacheError", "CorruptRecordError"} <= classes.keys() <= set(edcache.__all__)
    assert all(getattr(edcache, name) is kind for name, kind in classes.items())
    assert set(edcache.__all__) <= set(dir(edcache))
    assert not {"Any", "annotations"} & {*edcache.__all__, *dir(edcache)}


def test_type_checkers_are_told_of_every_public_name(tmp_path):
    """Strict mypy takes a name from a package only where the package makes it public."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    [block] = [n for n in tree.body if isinstance(n, ast.If)]
    told = [alias for line in block.body for alias in line.names]
    assert all(alias.asname == alias.name for alias in told)
    raised = [name for name in edcache.__all__ if name in vars(errors)]
    assert sorted([*(a.name for a in told), *raised, "__version__", "errors"]) == edcache.__all__
    script = tmp_path / "user.py"
    script.write_text(
        f"from edcache import {', '.join(raised)}\n" + "".join(f"reveal_type({n})\n" for n in raised)
    )
    files = [script, PACKAGE / "__init__.py", PACKAGE / "errors.py"]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=skip", *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert re.findall(r"-> edcache\.errors\.(\w+)", done.stdout) == raised, done.stdout


def test_importing_the_package_does_not_import_torch():
    code = "import sys, edcache, edcache.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_error_of_the_system_keeps_its_errno_out_of_another_process():
    from edcache.errors import StorageError

    error = StorageError("train.zip: writing: No space left on device")
    error.errno, error.filename = 28, "train.zip"
    error.__notes__ = ["in a worker"]
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (StorageError, str(error))
    assert (copy.errno, copy.filename) == (28, "train.zip")


def test_every_error_is_drawn_in_the_tree_and_survives_being_rebuilt_from_its_message():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.EdcacheError)]
    drawn = errors.__doc__
    for kind in classes:
        assert kind.__name__ in drawn
        assert str(kind("train.zip: what happened")) == "train.zip: what happened"
        for base in set(kind.__bases__) - {Exception}:
            assert issubclass(base, errors.EdcacheError) or f"{kind.__name__} ({base.__name__})" in drawn
