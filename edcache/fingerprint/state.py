"""Which attributes of an object reading from it changes: its state, which does not tell it from another.

That is known from the code of the class alone, so that every process agrees, whoever has read how much.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

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

    changed: frozenset[Path]
    used: frozenset[Path]

    def within(self, name: str) -> Access:
        """What it does with the object that the attribute `name` holds."""
        return Access(*(frozenset(path[1:] for path in paths if path[:1] == (name,)) for paths in self))


def access_by_reading(cls: type, used: frozenset[str]) -> Access:
    """What reading does with the attributes of an object of that class.

    Args:
        used: names of attributes that whoever holds the object uses, beside `READING`.
    """
    return _access(cls, READING | {name for name in used if hasattr(cls, name)})


@functools.lru_cache(maxsize=256)
def _access(cls: type, entries: frozenset[str]) -> Access:
    changed: set[Path] = set()
    used: set[Path] = set()
    waiting, seen = set(entries), set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for kin in cls.__mro__:
            member = vars(kin).get(name)
            if isinstance(member, functools.cached_property):
                changed.add((name,))
            for code in _codes_of(member):
                found = access_of(code)
                changed |= found.changed
                used |= found.used
        waiting |= {path[0] for path in used if path} - seen
    return Access(frozenset(changed), frozenset(used))


def _codes_of(member: Any) -> Iterator[types.CodeType]:
    """The code of a method or a property, and of what decorates it."""
    for function in (
        getattr(member, "__func__", None),
        getattr(member, "func", None),
        getattr(member, "fget", None),
        member,
    ):
        while function is not None:
            if inspect.isfunction(function):
                yield function.__code__
            function = getattr(function, "__wrapped__", None)


def access_of(code: types.CodeType) -> Access:
    """What a function does with the attributes of its first argument."""
    walk = _Walk(code.co_varnames[0] if code.co_argcount else "")
    walk.run(code)
    return Access(frozenset(walk.changed), frozenset(walk.used))


class _Walk:
    """Follows the values of a function from the first argument on, instruction by instruction.

    `stack` and `variables` hold a value's path from that argument, or None for any other value. Jumps are
    not followed: an instruction stands for all ways that lead to it.
    """

    def __init__(self, first: str) -> None:
        self.changed: set[Path] = set()
        self.used: set[Path] = set()
        self.variables: dict[str, Path | None] = {first: ()} if first else {}
        self.stack: list[Path | None] = []

    def run(self, code: types.CodeType) -> None:
        self.stack = []
        for step in dis.get_instructions(code):
            self._step(step)
        if any(path[-1:] == ("__dict__",) for path in self.changed) or _BY_NAME & set(code.co_names):
            self.changed |= {(text,) for text in code.co_consts if type(text) is str and text.isidentifier()}
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self.run(inner)

    def _step(self, step: dis.Instruction) -> None:
        name, argument = step.opname, step.argval
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._load_attribute(step)
        elif name in ("STORE_ATTR", "DELETE_ATTR"):
            self._change(self._pop(), argument)
            if name == "STORE_ATTR":
                self._pop()
        elif name in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            self._pop()
            self._change(self._pop())
            if name == "STORE_SUBSCR":
                self._pop()
        elif name == "STORE_SLICE":
            del self.stack[-2:]
            self._change(self._pop())
            self._pop()
        elif "_FAST" in name or "DEREF" in name:
            self._variables(name, argument if isinstance(argument, tuple) else (argument,))
        elif not self._moved(name, step.arg or 0):
            self._other(step)

    def _load_attribute(self, step: dis.Instruction) -> None:
        before, name = len(self.stack), step.argval
        owner = self._pop()
        path = None if owner is None else (*owner, name)
        if path is not None:
            self.used.add(path)
            if name in _MUTATORS:
                self._change(owner)
        self.stack.append(path)
        for _ in range(before + dis.stack_effect(step.opcode, step.arg) - len(self.stack)):
            self.stack.append(None)  # of a method: its object, which the call takes

    def _variables(self, operation: str, names: tuple[str, ...]) -> None:
        kinds = [part for part in operation.split("_") if part in ("LOAD", "STORE")]
        for kind, name in zip(kinds, names, strict=False):
            if kind == "LOAD":
                self.stack.append(self.variables.get(name))
            else:
                self.variables[name] = self._pop()

    def _moved(self, name: str, count: int) -> bool:
        """Follow an instruction that only moves or copies what is on the stack."""
        stack = self.stack
        count = {"DUP_TOP": 1, "ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}.get(name, count)
        if name not in ("DUP_TOP_TWO", "DUP_TOP", "COPY", "SWAP") and not name.startswith("ROT_"):
            return False
        stack[:0] = [None] * max(0, max(count, 2) - len(stack))
        if name == "DUP_TOP_TWO":
            stack += stack[-2:]
        elif name in ("DUP_TOP", "COPY"):
            stack.append(stack[-count])
        elif name == "SWAP":
            stack[-1], stack[-count] = stack[-count], stack[-1]
        else:
            stack.insert(-count + 1 if count > 1 else len(stack), stack.pop())
        return True

    def _other(self, step: dis.Instruction) -> None:
        effect = dis.stack_effect(step.opcode, step.arg, jump=False)
        for _ in range(-effect):
            self._pop()
        self.stack += [None] * max(0, effect)
        if self.stack and effect <= 0:
            self.stack[-1] = None  # the result

    def _change(self, owner: Path | None, *name: str) -> None:
        if owner is not None and (owner or name):
            self.changed.add((*owner, *name))

    def _pop(self) -> Path | None:
        return self.stack.pop() if self.stack else None
