"""Names and digests of code: of functions and of classes."""

from __future__ import annotations

import ast
import datetime
import hashlib
import inspect
import os
import sys
import sysconfig
import textwrap
import types
import uuid
from typing import Any, Final

from edcache.base import MAIN_NAMES, ForkLock, module_name

REPR_IS_VALUE: Final = (
    *(bool, int, str, float, complex, bytes, range, uuid.UUID),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
)
_INSTALLED: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
# Up to Python 3.12 the depth of a syntax tree is counted in one place for all threads: two that parse at a
# time end in SystemError.
_parsing: Final = ForkLock()


def qualified_name(thing: Any) -> str:
    """ "module:qualname", with the module's name of `module_name`."""
    return f"{module_name(thing)}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def is_installed(thing: Any) -> bool:
    """Whether a class or a function is of Python or of an installed library."""
    name = getattr(thing, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    return name not in MAIN_NAMES and (file is None or file.startswith(_INSTALLED) or "-packages" in file)


def digest_of(data: bytes | str) -> str:
    """A short SHA-256."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:16]


def _source_of(code: Any) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return None


def syntax_tree(code: Any) -> ast.Module | None:
    """What a function or a class says; None where there is no source to read, or it does not stand alone."""
    with _parsing.held():
        source = _source_of(code)
        try:
            return None if source is None else ast.parse(source)
        except SyntaxError:
            return None


def source_digest(code: Any) -> str | None:
    """A digest of what a function or a class says, without comments, layout, docstrings and decorators.

    None where there is no source to read, as in an interactive session.
    """
    with _parsing.held():
        if getattr(code, "__name__", "") == "<lambda>":
            return _lambda_digest(code)
        tree = syntax_tree(code)
        if tree is None:
            return _members_digest(code) if isinstance(code, type) else None
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                first = node.body[0]
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
        if hasattr(tree.body[0], "decorator_list"):
            tree.body[0].decorator_list.clear()
        return digest_of(ast.unparse(tree))


def _lambda_digest(function: Any) -> str | None:
    """Its source is of the lines around it, such as an item of a dict: the longest part that parses is it."""
    source = _source_of(function) or ""
    start = source.find("lambda")
    for end in range(len(source), start, -1) if start >= 0 else ():
        try:
            node = ast.parse(source[start:end], mode="eval").body
        except SyntaxError:
            continue
        return digest_of(ast.unparse(node.elts[0] if isinstance(node, ast.Tuple) else node))
    return None


def _members_digest(cls: type) -> str | None:
    """A digest of a class without source of its own, as in a notebook: of its functions and values."""
    functions, values = [], []
    for name, member in vars(cls).items():
        wrapped = (getattr(member, kind, None) for kind in ("fget", "__func__", "func"))
        function = next(filter(None, wrapped), member)
        if inspect.isfunction(function) and (digest := source_digest(inspect.unwrap(function))):
            functions.append(f"{name} {digest}")
        elif not name.startswith("__") and type(member) in REPR_IS_VALUE:
            values.append(f"{name} {member!r}")
    return digest_of("\n".join(functions + values)) if functions else None


def code_digest(function: types.FunctionType) -> str:
    """A digest of a function's source; where it has none of its own, of its code for this Python."""
    digest = source_digest(function) if has_source(function) else None
    return digest or digest_of(_code_text(function.__code__))


def has_source(function: Any) -> bool:
    """Whether the source that inspect finds is of this function only: a line may hold two lambdas."""
    source = _source_of(function)
    return source is not None and ("<lambda>" not in function.__qualname__ or source.count("lambda") == 1)


def _code_text(code: types.CodeType) -> str:
    constants = [
        _code_text(part)
        if isinstance(part, types.CodeType)
        else repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)
        for part in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
