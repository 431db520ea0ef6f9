"""The package stays small and plain. What exceeds a limit is named here; the lists only become shorter."""

import ast
import re
from functools import cache
from pathlib import Path

import edcache

FILES = sorted(Path(edcache.__file__).parent.rglob("*.py"))

# Of each function, its docstring included.
FUNCTION_LINES = 60
LONG: set[str] = set()

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


@cache
def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def defined(kind):
    """The name and the node of every function or class of the package."""
    return [pair for file in FILES for pair in definitions(tree_of(file)) if isinstance(pair[1], kind)]


def test_functions_are_short():
    long = {name for name, node in defined(FUNCTION) if node.end_lineno - node.lineno >= FUNCTION_LINES}
    assert long == LONG


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
