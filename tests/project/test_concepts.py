"""Concepts are counted, not lines: what a user has to learn, and what a reader of the code meets on a walk.

A limit of lines rewards density. A limit here is what there is, and some slack: a commit that goes beyond one
adds an idea, and takes another away or says why not.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import edcache
from edcache.cli import main
from edcache.dataset import CachedDataset, View

PACKAGE = Path(edcache.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# Arguments of @cachable, names of the package, members of a dataset, commands: what a user reads through.
OPTIONS, NAMES, MEMBERS, COMMANDS, ERRORS = 26, 34, 36, 12, 19
# Of the package. One file is backends/proof.py: a copy is proven by the sums that every reader takes along.
MODULES, CLASSES, FLOORS = 191, 314, 8
# Functions and files of the package that run, and calls: with a source of dicts of a tensor and a label.
WALKS = {
    # One function is storage/registry.py:path_text, which says for one path and for lists what is none. One is
    # writer/fill.py:_filled_once: a fill that an error ends is tried again for what others skipped. Some are the
    # checks that go along with a read, so that a far file can send its bytes again. One file is identity/tables.py.
    "fill": {"functions": 667, "files": 70},
    "reopen": {"functions": 184, "files": 32, "calls": 397},
    # One file is base/frames.py, by which a public method cuts the traceback of its errors.
    # One call is reader/group.py:Lattice.window, whose views torch and numpy share.
    "batch": {"functions": 39, "files": 14, "calls": 46},
    # One is reader/reader.py:Reader.session, which has the labels of the present state.
    "filter": {"functions": 41, "files": 11},
}


def public(kind):
    """List the members that a user may call or read."""
    annotated = {name for base in kind.__mro__ for name in vars(base).get("__annotations__", ())}
    return sorted(name for name in {*dir(kind), *annotated} if not name.startswith("_"))


def within(limit, names, what):
    assert len(names) <= limit, f"{len(names)} {what}, at most {limit}: {', '.join(names)}"


def test_options_of_the_decorator():
    options = [name for name in inspect.signature(edcache.cachable).parameters if name != "path"]
    within(OPTIONS, options, "options of @cachable")


def test_names_of_the_package():
    within(NAMES, edcache.__all__, "public names")


@pytest.mark.parametrize("kind", [CachedDataset, View])
def test_members_of_a_dataset(kind):
    within(MEMBERS, public(kind), f"public members of {kind.__name__}")


def test_commands():
    within(COMMANDS, sorted(main.commands), "commands")


def test_classes_of_errors():
    from edcache import errors

    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type) and name.endswith("Error")]
    within(ERRORS, kinds, "classes of errors")


def test_files_classes_and_floors():
    classes = [
        node.name
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    floors = {line.split()[0] for line in (edcache.__doc__ or "").splitlines() if line[4:5].isdigit()}
    assert len(FILES) <= MODULES, f"{len(FILES)} files in edcache/, at most {MODULES}"
    assert len(classes) <= CLASSES, f"{len(classes)} classes in edcache/, at most {CLASSES}"
    assert len(floors) <= FLOORS, f"{len(floors)} floors of rooms, at most {FLOORS}"


WALKED = """
import json, sys, tempfile, threading
import torch
import edcache

package = edcache.__file__.removesuffix("__init__.py")

class Digits:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return {"x": torch.full((8,), float(index)), "y": index % 10}

def walk(do):
    calls = []
    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            calls.append((code.co_filename, code.co_name, code.co_firstlineno))
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        result = do()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    counts = {"calls": len(calls), "functions": len(set(calls)), "files": len({call[0] for call in calls})}
    return counts, result

with tempfile.TemporaryDirectory() as folder:
    @edcache.cachable(f"{folder}/digits.zip", in_memory_keys=["y"], progress=False)
    def digits():
        return Digits()
    walks = {}
    walks["fill"], ds = walk(digits)
    ds.close()
    digits().close()
    walks["reopen"], ds = walk(digits)
    indices = list(range(0, 128, 2))
    ds.batch(range(1000)), ds.batch(indices), ds.filter(y=3)
    walks["batch"], _ = walk(lambda: ds.batch(indices))
    walks["filter"], _ = walk(lambda: ds.filter(y=4))
print(json.dumps(walks))
"""


def test_walks():
    """By Python's profiler, in a process of its own: what a fill, a reopening, a batch and a filter run."""
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", WALKED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)
    beyond = [
        f"{walk}: {found[walk][what]} {what}, at most {limit}"
        for walk, limits in WALKS.items()
        for what, limit in limits.items()
        if found[walk][what] > limit
    ]
    assert beyond == []
