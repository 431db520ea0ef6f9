"""Digest the code that makes samples: live code objects of a thing, and of the user's code that it names.

A digest only asks whether samples are other ones now; a sample that is computed again answers. So it may be coarse, as
after a renamed local variable, and is no proof: what it does not reach, a sample shows. It is of the code that runs:
files may have been edited since.

Walk: the functions of a class, what a decorator wraps, and what global variables, closures and attributes of modules
lead to by the names in code. With each function go the plain values that it names: constants, `args.size`,
`CFG["size"]`, attributes of classes, items of `os.environ`. Libraries are left out.

What must never happen: that it runs code of the user, does not end, or raises.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from edcache.base import MAIN_NAMES

_LIBRARIES: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
_PACKAGES: Final = re.compile(r"[\\/](site|dist)-packages[\\/]")
_OWN: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_MOST_THINGS: Final = 1_000
_MOST_ITEMS: Final = 256
_DEEPEST: Final = 4
# Methods that change a container. Code that calls one, or assigns to an item, has no containers as constants.
_CHANGES: Final = frozenset(
    {"append", "add", "extend", "insert", "update", "setdefault", "pop", "clear", "remove"}
)
_MOST_DOTS: Final = 2
# Instructions that load a global variable, also in a class body, or import a module inside a function.
_LOADS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "IMPORT_NAME")


def is_library(file: str) -> bool:
    """True for a file of Python, of an installed library or of edcache."""
    return file.startswith((*_LIBRARIES, _OWN)) or _PACKAGES.search(file) is not None


def is_of_library(name: str | None) -> bool:
    """True for the name of a module of Python, of an installed library or of edcache."""
    module = sys.modules.get(name or "builtins")
    file = getattr(module, "__file__", None)
    if name in MAIN_NAMES or (
        module is not None and file is None and getattr(module, "__spec__", None) is None
    ):
        return False  # a script, a notebook, or a module that code has made
    return is_library(file or _OWN)


def code_of(reached: Iterable[Any], nbytes: int) -> dict[str, str]:
    """Digest functions and classes, and the user's code that they name, by qualified names without their modules.

    The first ones have their names in the result, up to about `nbytes` of JSON; "others" is a digest of the rest.
    """
    digests: dict[str, str] = {}
    for thing in reached:
        kind = type(thing)
        if issubclass(kind, types.FunctionType | types.GeneratorType):
            code = _code_of(thing)
            named = [*_named(thing)] if kind is types.FunctionType else []
            name, texts = thing.__qualname__, [_text_of_code(code), *_contents(named, said(code).depth)]
        elif issubclass(kind, type):
            name, texts = _QUALNAME(thing), _constants_of(thing)
        else:
            continue
        digests[name] = _digest(digests.get(name, ""), *texts)
    kept: dict[str, str] = {}
    for name, digest in digests.items():
        nbytes -= len(name) + 24
        if nbytes < 0:
            return {
                **kept,
                "others": _digest(*(one for name, one in sorted(digests.items()) if name not in kept)),
            }
        kept[name] = digest
    return kept


def reached_from(things: Iterable[Any]) -> list[Any]:
    """List functions and classes of the user, and modules of torch, that things are and their code names, each once."""
    waiting, seen, reached = [*things], set[int](), list[Any]()
    for thing in waiting:
        if id(thing) in seen or len(seen) > _MOST_THINGS:
            continue
        seen.add(id(thing))
        kind = type(thing)
        if issubclass(kind, types.FunctionType | types.GeneratorType):
            if not is_library(_code_of(thing).co_filename):
                reached.append(thing)
                waiting += [value for _, value in _named(thing)] if kind is types.FunctionType else []
        elif issubclass(kind, type):
            if not is_of_library(_attributes(thing).get("__module__")):
                reached.append(thing)
                waiting += [*_MRO(thing)[1:-1], *_attributes(thing).values()]
        elif issubclass(kind, torch.nn.Module):
            reached.append(thing)
            waiting.append(kind)
        else:
            waiting += _functions_in(thing)
    return reached


def _code_of(thing: Any) -> types.CodeType:
    return thing.__code__ if type(thing) is types.FunctionType else thing.gi_code


def _functions_in(thing: Any) -> Iterator[Any]:
    """Yield the functions that a wrapper, a method, an object or a container of these stands for."""
    kind = type(thing)
    if kind is types.MethodType:
        is_module = issubclass(type(thing.__self__), torch.nn.Module)
        yield from (thing.__func__, thing.__self__ if is_module else type(thing.__self__))
    elif kind is functools.partial:
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif kind in (staticmethod, classmethod):
        yield thing.__func__
    elif kind is property:
        yield thing.fget
    elif kind in (functools.cached_property, functools.partialmethod):
        yield thing.func
    elif kind in (dict, list, tuple) and len(thing) <= _MOST_ITEMS:
        yield from thing.values() if kind is dict else thing
    elif kind not in _PLAIN and kind is not types.ModuleType:
        held = _held(thing)
        yield from (held["__wrapped__"],) if "__wrapped__" in held else ()
        yield kind


def _named(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function names, with their names: global, of modules and objects, outer, and defaults.

    What it changes itself, such as a counter, is left out.
    """
    names, loaded, texts, changed, _ = said(function.__code__)
    for name in names:
        if name in loaded - changed and (name in function.__globals__ or name in sys.modules):
            value = function.__globals__.get(name, sys.modules.get(name))
            yield from _reached(name, value, names.keys() - changed, _MOST_DOTS)
    if names.keys() & {"environ", "getenv"}:
        yield from ((f"environ {text}", os.environ.get(text)) for text in sorted(texts))
    yield from outer(function).items()
    defaults = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    yield from ((f"default {name}", value) for name, value in defaults)
    if "__wrapped__" in vars(function):
        yield "__wrapped__", function.__wrapped__  # type: ignore[attr-defined]


def outer(function: types.FunctionType) -> dict[str, Any]:
    """Return the outer local variables that a function uses and does not assign to; none that has no value yet."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    changed = said(function.__code__).changed
    return {
        name: cell.cell_contents for name, cell in cells if cell != types.CellType() and name not in changed
    }


class Said(NamedTuple):
    """Names in code, and in code in it: all; of global variables; its texts; names that it assigns to.

    depth: of its constants; 0 if it changes containers.
    """

    names: dict[str, None]
    loaded: set[str]
    texts: set[str]
    changed: set[str]
    depth: int


@functools.lru_cache(4_096)
def said(code: types.CodeType) -> Said:
    """Return what code says, and the code in it."""
    codes, names, loaded, texts, changed, is_changing = (
        [code],
        dict[str, None](),
        set[str](),
        set[str](),
        set[str](),
        False,
    )
    for one in codes:
        codes += [part for part in one.co_consts if isinstance(part, types.CodeType)]
        names |= dict.fromkeys(one.co_names)
        texts |= {part for part in one.co_consts if type(part) is str}
        parts = [*dis.get_instructions(one)]
        loaded |= {part.argval for part in parts if part.opname in _LOADS}
        stores = [part for part in parts if part.opname.startswith(("STORE_", "DELETE_"))]
        changed |= {part.argval for part in stores if part.opname.endswith(("_GLOBAL", "_DEREF", "_ATTR"))}
        is_changing = is_changing or any(part.opname.endswith("_SUBSCR") for part in stores)
    depth = 0 if is_changing or not _CHANGES.isdisjoint(names) else _DEEPEST
    return Said(names, loaded, texts, changed - {*code.co_cellvars}, depth)


def _constants_of(kind: type) -> list[str]:
    """Describe the plain attributes of a class, without the ones that its methods change."""
    attributes = _attributes(kind)
    told = [said(one.__code__) for one in attributes.values() if type(one) is types.FunctionType]
    changed = {"__module__", "__doc__", "__firstlineno__"}.union(*(one.changed for one in told))
    plain = [
        (name, value) for name, value in attributes.items() if name not in changed and not _is_code(value)
    ]
    return _contents(plain, min((one.depth for one in told), default=_DEEPEST))


def _is_code(value: Any) -> bool:
    return type(value) not in (*_PLAIN, list, tuple, set, frozenset, dict)


def _reached(name: str, value: Any, names: Iterable[str], dots: int) -> Iterator[tuple[str, Any]]:
    """Yield a value and its attributes that code may mean: `pkg.models.net` by the names in it."""
    if type(value) is types.ModuleType and is_of_library(value.__name__):
        return
    yield name, value
    if dots and type(value) not in _PLAIN and type(value) is not types.FunctionType:
        held = _held(value)
        for other in names:
            if other in held:
                yield from _reached(f"{name}.{other}", held[other], names, dots - 1)


# A metaclass may have code of its own for these.
_MRO: Final = type.__dict__["__mro__"].__get__
_QUALNAME: Final = type.__dict__["__qualname__"].__get__
_attributes: Final = type.__dict__["__dict__"].__get__


def _held(thing: Any) -> Mapping[str, Any]:
    """Return the attributes of an object, without code of its own; of a class with the attributes of its bases."""
    if issubclass(type(thing), type):
        return {
            name: value for kind in reversed(_MRO(thing)[:-1]) for name, value in _attributes(kind).items()
        }
    try:
        held = object.__getattribute__(thing, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return held if type(held) is dict else {}


def _contents(named: Iterable[tuple[str, Any]], depth: int) -> list[str]:
    """Describe values with their names. depth: of containers; 0 leaves their items out."""
    return [f"{name}={_content(value, depth)}" for name, value in named]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode(errors="replace")).hexdigest()[:16]


def _content(value: Any, depth: int) -> str:
    """Describe a plain value by its content, a function or a class by its name, any other by its class."""
    kind = type(value)
    if kind in _PLAIN:
        return f"{value:x}" if kind is int else repr(value)
    if issubclass(kind, type) or kind is types.FunctionType:
        return str(value.__qualname__ if kind is types.FunctionType else _QUALNAME(value))
    if kind in (list, tuple, set, frozenset, dict) and depth and len(value) <= _MOST_ITEMS:
        if kind is dict:
            parts = [f"{_content(k, depth - 1)}:{_content(v, depth - 1)}" for k, v in [*value.items()]]
        else:
            parts = [_content(one, depth - 1) for one in [*value]]
        return f"{kind.__name__}({', '.join(sorted(parts) if kind in (set, frozenset, dict) else parts)})"
    if kind is functools.partial and depth:
        return f"partial{_content((value.func, value.args, value.keywords), depth - 1)}"
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"{kind.__name__} {value.dtype} {tuple(value.shape)} {_digest_of_array(value)}"
    held = {} if not depth or is_of_library(_attributes(kind).get("__module__")) else _held(value)
    return f"{_QUALNAME(kind)}({', '.join(_contents(held.items(), depth - 1))})"


def _digest_of_array(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        if value.is_meta or value.layout != torch.strided:
            return ""
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return "" if value.dtype.hasobject else hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()[:16]


@functools.lru_cache(4_096)
def _text_of_code(code: types.CodeType) -> str:
    constants = [
        _text_of_code(one) if isinstance(one, types.CodeType) else _content(one, _DEEPEST)
        for one in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"
