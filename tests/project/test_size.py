"""The package stays small and plain. What exceeds a limit is named here; the lists only become shorter."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import edcache

FILES = sorted(Path(edcache.__file__).parent.rglob("*.py"))
SURFACES = sorted(Path(edcache.__file__).parent.rglob("*.pyi"))

# The most, and by how much the package may be below that until the number is lowered.
LINES, SLACK = 44_638, 1_000

# Of each function, its docstring included.
FUNCTION_LINES = 60
LONG: set[str] = set()

# Of each function, without self. The doors of the package take every option by its name.
PARAMETERS = 8
DOORS = {"Readable.loader"}

# Of each class, without what it inherits.
METHODS = 30
LARGE: set[str] = set()

REASON = re.compile(r"# (?!noqa)|# noqa: \w+ - ")
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def definitions(node, prefix=""):
    """Every function and class below a node, with its name: Class.method, function.inner."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, FUNCTION | ast.ClassDef):
            name = f"{prefix}{child.name}."
            yield name[:-1], child
        yield from definitions(child, name)


def parameters(function):
    """How many a caller may give."""
    a = function.args
    named = [one.arg for one in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg] if one]
    return len(named) - (named[:1] in (["self"], ["cls"]))


@cache
def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def defined(kind):
    """The name and the node of every function or class of the package."""
    return [pair for file in FILES for pair in definitions(tree_of(file)) if isinstance(pair[1], kind)]


def test_the_package_has_so_many_lines():
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in [*FILES, *SURFACES])
    assert lines <= LINES, f"{lines:,} lines"
    assert lines > LINES - SLACK, f"{lines:,} lines: lower the limit"


def test_functions_are_short():
    long = {name for name, node in defined(FUNCTION) if node.end_lineno - node.lineno >= FUNCTION_LINES}
    assert long == LONG


def test_functions_take_few_parameters_but_for_the_doors():
    assert {name for name, node in defined(FUNCTION) if parameters(node) > PARAMETERS} == DOORS


def test_classes_have_few_methods():
    def methods(node):
        return len({child.name for child in node.body if isinstance(child, FUNCTION)})

    assert {name for name, node in defined(ast.ClassDef) if methods(node) > METHODS} == LARGE


def test_whoever_catches_everything_raises_it_again_or_says_why_not():
    """The reason is a comment above the `try`, above or in the line of the `except`, or first in its body."""
    silent = set()
    for file in FILES:
        lines = file.read_text(encoding="utf-8").splitlines()
        handlers = [(t, h) for t in ast.walk(tree_of(file)) if isinstance(t, ast.Try) for h in t.handlers]
        for block, handler in handlers:
            caught = {"BaseException"} if handler.type is None else names_of(handler.type)
            if caught & {"Exception", "BaseException"} and not isinstance(handler.body[-1], ast.Raise):
                beside = [lines[block.lineno - 2], *lines[handler.lineno - 2 : handler.body[0].lineno]]
                if not any(REASON.search(line) for line in beside):
                    silent.add(f"{file.name}:{handler.lineno}")
    assert silent == set()


def names_of(node):
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


# The same file in two rooms: a door and what is behind it, a command and what it calls, a backend's part and
# what it is of. The set only becomes smaller.
TWINS = {
    *("errors", "samplers"),
    "housekeeping",
    *("appender", "log", "session", "store", "url"),
    "split",
}


def test_a_name_is_of_one_file_and_one_class():
    stems = Counter(file.stem for file in FILES if not file.stem.startswith("__"))
    assert {stem for stem, count in stems.items() if count > 1} == TWINS
    classes = Counter(node.name for _, node in defined(ast.ClassDef))
    # The old names of other systems, in files of their own.
    assert {name for name, count in classes.items() if count > 1} == {"CachedDataset"}
