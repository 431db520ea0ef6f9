"""Which attributes of an object reading from it changes: its state, which does not tell it from another.

That is known from the source code of its class alone, so that every process agrees, whoever has read how
much. A class without source code, as of an interactive session, has no state.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from edcache.writer.fingerprint_code import syntax_tree

READING: Final = frozenset(
    {"__call__", "__getitem__", "__getitems__", "__iter__", "__len__", "__next__", "forward"}
)
"""The methods by which samples are read, and by which what a dataset holds is used."""

_MUTATORS: Final = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem"}
    | {"popleft", "remove", "reverse", "setdefault", "sort", "update", "__setitem__", "__delitem__"}
)
_BY_NAME: Final = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars"})

Path = tuple[str, ...]
"""A chain of attributes: ("stats", "n") is `self.stats.n`."""


class Access(NamedTuple):
    """What code does with the attributes of its object."""

    changed: frozenset[Path] = frozenset()
    used: frozenset[Path] = frozenset()

    def within(self, name: str) -> Access:
        """What it does with the object that the attribute `name` holds."""
        return Access(*(frozenset(path[1:] for path in paths if path[:1] == (name,)) for paths in self))

    def __or__(self, other: tuple[Any, ...]) -> Access:
        return Access(self.changed | other[0], self.used | other[1])


def access_by_reading(cls: type, holder: Access) -> Access:
    """What reading does with the attributes of an object of that class.

    Args:
        holder: what whoever holds the object does with it: it may call methods beside `READING`.
    """
    used = {path[0] for path in holder.used if path and hasattr(cls, path[0])}
    return _access(cls, READING | used) | holder


@functools.lru_cache(maxsize=256)
def _access(cls: type, entries: frozenset[str]) -> Access:
    access = Access()
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
        yield from _functions(getattr(member, kind, None)) if hasattr(member, kind) else ()
    if inspect.isfunction(member):
        yield member


def _access_of(function: Callable[..., Any]) -> Access:
    """What a function does with the attributes of its first argument."""
    tree, code = syntax_tree(function), function.__code__
    if tree is None or not code.co_argcount:
        return Access()
    changed: set[Path] = set()
    used: set[Path] = set()
    # A local name for an attribute stands for it wherever it is used.
    names: dict[str, Path] = {code.co_varnames[0]: ()}
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


def _path(node: ast.AST, names: Mapping[str, Path]) -> Path | None:
    """The attributes that lead to the value of a node; what is in a container belongs to it."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Subscript):
        return _path(node.value, names)
    if not isinstance(node, ast.Attribute) or (owner := _path(node.value, names)) is None:
        return None
    return owner if isinstance(node.value, ast.Subscript) else (*owner, node.attr)
