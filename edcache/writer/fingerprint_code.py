"""What source code says: names and digests of functions and classes, and what they do with attributes.

Which attributes of an object reading changes is its state, which does not tell it from another. That is known
from the code of its class alone, so that every process agrees, whoever has read how much.
"""

from __future__ import annotations

import ast
import datetime
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import textwrap
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from edcache.base import MAIN_NAMES, ForkLock, imported, module_name

REPR_IS_VALUE: Final = (
    *(bool, int, str, float, complex, bytes, range, uuid.UUID),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
)
_INSTALLED: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
# The methods by which samples are read, and by which what a dataset holds is used.
_READING: Final = frozenset(
    {"__call__", "__getitem__", "__getitems__", "__iter__", "__len__", "__next__", "forward"}
)
_MUTATORS: Final = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem"}
    | {"popleft", "remove", "reverse", "setdefault", "sort", "update", "__setitem__", "__delitem__"}
)
_BY_NAME: Final = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars"})
# Up to Python 3.12 the depth of a syntax tree is counted in one place for all threads: two that parse at a
# time end in SystemError.
_parsing: Final = ForkLock()
# When it was loaded, and the digest.
_digests: Final[WeakKeyDictionary[Any, tuple[object, str | None]]] = WeakKeyDictionary()


def qualified_name(thing: Any) -> str:
    """ "module:qualname", with the module's name of `module_name`."""
    return f"{module_name(thing)}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def is_installed(thing: Any) -> bool:
    """True if a class or a function is of Python or of an installed library."""
    name = getattr(thing, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    return name not in MAIN_NAMES and (file is None or file.startswith(_INSTALLED) or "-packages" in file)


def known_digest(thing: Any) -> str | None:
    """The `source_digest` of a class or a function, or the digest of a module's file; computed once."""
    is_module = isinstance(thing, types.ModuleType)
    module = thing if is_module else sys.modules.get(thing.__module__)
    # Reloading a module gives it another spec. A notebook has one module for ever, and other classes.
    loaded = thing.__code__ if isinstance(thing, types.FunctionType) else getattr(module, "__spec__", None)
    known = _digests.get(thing)
    if known is None or known[0] is not loaded:
        digest, file = None if is_module else source_digest(thing), str(getattr(thing, "__file__", None))
        with suppress(OSError):
            digest = digest_of(Path(file).read_bytes()) if is_module and file.endswith(".py") else digest
        known = _digests[thing] = loaded, digest
    return known[1]


def state_of(thing: Any, before: str = "") -> str | None:
    """The digests of the file and of the code of a class or a function; None where there is no source.

    before: its earlier state, which is that of now where the file is the same: that is known sooner.
    """
    module = sys.modules.get(thing.__module__)
    file = module and known_digest(module)
    if file and before.startswith(file):
        return before
    digest = known_digest(thing)
    return digest and f"{file} {digest}"


def place_of(thing: Any) -> str | None:
    """The name of a class or a function of the user, or of what defines it, as "module:name".

    None where that name leads elsewhere, such as to what a decorator made of it.
    """
    place = qualified_name(thing).partition(".<locals>")[0]
    if place.endswith(":<lambda>"):
        names = vars(sys.modules[thing.__module__]).items()
        place = place.replace("<lambda>", next((name for name, held in names if held is thing), ""))
    held = None if is_installed(thing) else code_at(place)
    return place if held is thing or (held and "<locals>" in thing.__qualname__) else None


def code_at(place: str) -> Any:
    """The class or the function of a name, in a module that is imported already; else None."""
    held: Any = next((held for held in imported(*place.partition(":")[::2]) if held is not None), None)
    if "__wrapped__" in getattr(held, "__dict__", ()):  # as a function under @cachable has it
        held = inspect.unwrap(held)
    return held if isinstance(held, (type, types.FunctionType)) else None


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


def _syntax_tree(code: Any) -> ast.Module | None:
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
        tree = _syntax_tree(code)
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


def has_source(function: Any) -> bool:
    """True if the source that inspect finds is of this function only: a line may hold two lambdas."""
    source = _source_of(function)
    return source is not None and ("<lambda>" not in function.__qualname__ or source.count("lambda") == 1)


def code_digest(function: types.FunctionType) -> str:
    """A digest of a function's source; where it has none of its own, of its code for this Python."""
    digest = source_digest(function) if has_source(function) else None
    return digest or digest_of(_code_text(function.__code__))


def _code_text(code: types.CodeType) -> str:
    constants = [
        _code_text(part)
        if isinstance(part, types.CodeType)
        else repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)
        for part in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


_Path = tuple[str, ...]
"""A chain of attributes: ("stats", "n") is `self.stats.n`."""


class Access(NamedTuple):
    """What code does with the attributes of its object."""

    changed: frozenset[_Path] = frozenset()
    used: frozenset[_Path] = frozenset()

    def within(self, name: str) -> Access:
        """What it does with the object that the attribute `name` holds."""
        return Access(*(frozenset(path[1:] for path in paths if path[:1] == (name,)) for paths in self))

    def __or__(self, other: tuple[Any, ...]) -> Access:
        return Access(self.changed | other[0], self.used | other[1])


NO_ACCESS: Final = Access()


def access_by_reading(cls: type, holder: Access) -> Access:
    """What reading does with an object's attributes, and its holder, which may call other methods."""
    used = {path[0] for path in holder.used if path and hasattr(cls, path[0])}
    return _access(cls, _READING | used) | holder


@functools.lru_cache(maxsize=256)
def _access(cls: type, entries: frozenset[str]) -> Access:
    access = NO_ACCESS
    waiting, seen = set(entries), set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for kin in cls.__mro__:
            member = vars(kin).get(name)
            if isinstance(member, functools.cached_property):
                access |= Access(frozenset({(name,)}))
            for function in _functions(member):
                access |= _access_of(function)
        waiting |= {path[0] for path in access.used} - seen
    return access


def _functions(member: Any) -> Iterator[Callable[..., Any]]:
    """The functions that a method or a property is made of."""
    for kind in ("__func__", "func", "fget", "__wrapped__"):
        if hasattr(member, kind):
            yield from _functions(getattr(member, kind))
    if inspect.isfunction(member):
        yield member


def _access_of(function: Callable[..., Any]) -> Access:
    """What a function does with the attributes of its first argument."""
    tree, code = _syntax_tree(function), function.__code__
    if tree is None or not code.co_argcount:
        return NO_ACCESS
    changed: set[_Path] = set()
    used: set[_Path] = set()
    # A local name for an attribute stands for it wherever it is used.
    names: dict[str, _Path] = {code.co_varnames[0]: ()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            path = _path(node.value, names)
            names |= {target.id: path for target in node.targets if path and isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (path := _path(node, names)):
            used.add(path)
            if not isinstance(node.ctx, ast.Load):
                changed.add(path)
            elif node.attr in _MUTATORS:
                changed.add(path[:-1])
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed.add(_path(node.value, names) or ())
    if _BY_NAME & {*code.co_names}:
        changed |= {(text,) for text in code.co_consts if type(text) is str and text.isidentifier()}
    return Access(frozenset(changed - {()}), frozenset(used))


def _path(node: ast.AST, names: Mapping[str, _Path]) -> _Path | None:
    """The attributes that lead to the value of a node; what is in a container belongs to it."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Subscript):
        return _path(node.value, names)
    if not isinstance(node, ast.Attribute) or (owner := _path(node.value, names)) is None:
        return None
    return owner if isinstance(node.value, ast.Subscript) else (*owner, node.attr)
