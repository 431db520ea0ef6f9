"""Digest the code that makes samples: live code objects of a thing, and of the user's code that it names.

A digest only asks whether samples are other ones now; a sample that is computed again answers. So it may be coarse, as
after a renamed local variable, and is no proof: what it does not reach, a sample shows. It is of the code that runs:
files may have been edited since.

Walk: the functions of a class, what a decorator wraps, and what global variables, closures and attributes of modules
lead to by the names in code. With each function go the values that it names, as `Settings` describes them: constants,
`args.size`, `CFG["size"]`, attributes of classes, items of `os.environ`. Of libraries what they wrap is followed alone.

What must never happen: that it does not end, or raises.
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch

from edcache.base import MAIN_NAMES

_LIBRARIES: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
_PACKAGES: Final = re.compile(r"[\\/](site|dist)-packages[\\/]")
_OWN: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_FUNCTIONS: Final = (types.FunctionType, types.MethodType, functools.partial)
# Attributes that lead to functions, by kind of what wraps them: in the body of a class, and anywhere.
_DESCRIPTORS: Final[dict[type, tuple[str, ...]]] = {
    functools.cached_property: ("func",),
    functools.partialmethod: ("func", "args", "keywords"),
    property: ("fget", "fset"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
_INNER: Final = {
    **_DESCRIPTORS,
    functools.partial: ("func", "args", "keywords"),
    types.MethodType: ("__func__", "__self__"),
}
OTHERS: Final = "others"
"""Name of the digest of what has no name of its own in a head, which is one page."""
_MOST_THINGS: Final = 1_000
_MOST_ITEMS: Final = 256
# Methods that change a container. What code names where it calls one, or assigns to an item, is no constant.
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
    name = name if isinstance(name, str) else "builtins"  # classes of C have a descriptor there
    module = sys.modules.get(name)
    if module is None and name.partition(".")[0] not in sys.modules:
        return False  # of a file that was executed by its path
    file = getattr(module, "__file__", None)
    if name in MAIN_NAMES or (
        module is not None and file is None and getattr(module, "__spec__", None) is None
    ):
        return False  # a script, a notebook, or a module that code has made
    return is_library(file or _OWN)


def code_of(reached: Iterable[Any], nbytes: int, describe: Callable[[Any], Any]) -> dict[str, str]:
    """Digest functions and classes, and the user's code that they name, by qualified names without their modules.

    The first ones have their names in the result, up to about `nbytes` of JSON; "others" is a digest of the rest.
    describe: returns the description of a value.
    """
    digests: dict[str, str] = {}
    for thing in reached:
        if issubclass(type(thing), type):
            name, texts = _QUALNAME(thing), _constants_of(thing, describe)
        elif not isinstance(thing, torch.nn.Module):
            name, texts = thing.__qualname__, _contents_of(thing, describe)
        else:
            continue
        digests[name] = _digest(digests.get(name, ""), *texts)
    kept: dict[str, str] = {}
    for name, digest in digests.items():
        nbytes -= len(name) + 24
        if nbytes < 0:
            return {
                **kept,
                OTHERS: _digest(*(one for name, one in sorted(digests.items()) if name not in kept)),
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
            is_function = kind is types.FunctionType
            if not is_library(_code_of(thing).co_filename):
                reached.append(thing)
                waiting += [value for _, value in _named(thing)] if is_function else []
            elif is_function:  # of a decorator, whose function is the user's
                wrapped = [*outer(thing).values(), vars(thing).get("__wrapped__")]
                waiting += [value for value in wrapped if isinstance(value, (dict, *_FUNCTIONS))]
        elif issubclass(kind, type):
            if not is_of_library(_attributes(thing).get("__module__")):
                reached.append(thing)
                waiting += [*_MRO(kind)[:-2], *_MRO(thing)[1:-1], *_attributes(thing).values()]
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
    if kind in _INNER:
        yield from (getattr(thing, name) for name in _INNER[kind])
    elif kind in (dict, list, tuple) and len(thing) <= _MOST_ITEMS:
        yield from thing.values() if kind is dict else thing
    elif kind not in _PLAIN and kind is not types.ModuleType:
        is_foreign = is_of_library(_attributes(kind).get("__module__"))  # as np.vectorize
        for name, value in attributes_of(thing).items():
            if name == "__wrapped__" or (is_foreign and isinstance(value, _FUNCTIONS)):
                yield value
        yield kind


def _named(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield name and value of all that the code of a function names.

    These are global variables, attributes of them as in `CFG.size`, variables of the environment, outer variables,
    defaults, and attributes of the function itself. Variables that the function assigns to are left out, such as a
    counter.
    """
    names, loaded, texts, changed, attributes, _ = said(function.__code__)
    known = function.__globals__
    for name in names:
        if name in loaded - changed and (name in known or name in sys.modules):
            value = known.get(name, sys.modules.get(name))
            yield from _reached(name, value, names.keys() - attributes, _MOST_DOTS)
    if names.keys() & {"environ", "getenv"}:
        yield from ((f"environ {text}", os.environ.get(text)) for text in sorted(texts))
    yield from outer(function).items()
    defaults = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    yield from ((f"default {name}", value) for name, value in defaults)
    for name, value in vars(function).items():  # the function that it wraps is one of them
        if name[0] != "_" or name == "__wrapped__":
            yield name, value


def outer(function: types.FunctionType) -> dict[str, Any]:
    """Return the closure variables of a function by name, without the ones that it assigns to or that are unset."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    changed = said(function.__code__).changed
    return {
        name: cell.cell_contents for name, cell in cells if cell != types.CellType() and name not in changed
    }


class Said(NamedTuple):
    """Names in code, and in the functions inside of it.

    names: all. loaded: global variables that it reads. texts: its constants that are text. changed: global and outer
    variables that it assigns to. attributes: attributes that it assigns to. touched: containers whose items it changes.
    """

    names: dict[str, None]
    loaded: set[str]
    texts: set[str]
    changed: set[str]
    attributes: set[str]
    touched: set[Any]


@functools.lru_cache(4_096)
def said(code: types.CodeType) -> Said:
    """Collect the names in code, and in the functions inside of it."""
    told, codes = Said({}, set(), set(), set(), set(), set()), [code]
    for one in codes:
        codes += [part for part in one.co_consts if isinstance(part, types.CodeType)]
        told.names.update(dict.fromkeys(one.co_names))
        told.texts.update(part for part in one.co_consts if type(part) is str)
        parts = [*dis.get_instructions(one)]
        for place, part in enumerate(parts):
            kind, name = part.opname, part.argval
            if kind in _LOADS:
                told.loaded.add(name)
            elif kind.startswith(("STORE_", "DELETE_")):
                if kind.endswith(("_GLOBAL", "_DEREF")):
                    told.changed.add(name)
                elif kind.endswith("_ATTR"):
                    told.attributes.add(name)
                elif kind.endswith("_SUBSCR"):
                    told.touched.add(_container_of(parts, place))
            elif kind in ("LOAD_METHOD", "LOAD_ATTR") and name in _CHANGES:
                told.touched.add(_loaded_before(parts, place))
    told.changed.difference_update(code.co_cellvars)
    return told


def _container_of(parts: list[dis.Instruction], place: int) -> Any:
    """Return the name in the instruction that loads the container of an item; the index is loaded after it."""
    left = 1  # values of the index on the stack, whose instructions are passed over backwards
    # For x[i] += 1 container and index are copied before it adds.
    if parts[place - 1].opname in ("SWAP", "ROT_THREE"):
        while place and parts[place].opname not in ("COPY", "DUP_TOP_TWO"):
            place -= 1
        left += parts[place].opname == "COPY"  # one of two
    while place and left > 0:
        place -= 1
        argument = parts[place].arg if parts[place].opcode >= dis.HAVE_ARGUMENT else None
        left -= dis.stack_effect(parts[place].opcode, argument, jump=False)
    return _loaded_before(parts, place)


def _loaded_before(parts: list[dis.Instruction], place: int) -> Any:
    """Return the name that the instruction before loads; of an item, as in `x[i].append`, its container's."""
    if place and parts[place - 1].opname == "BINARY_SUBSCR":
        return _container_of(parts, place - 1)
    return parts[place - 1].argval if place else None


def _constants_of(kind: type, describe: Callable[[Any], Any]) -> list[str]:
    """Describe the attributes of a class, without the ones that its methods change.

    Of names such as `__slotnames__`, which Python adds by itself, some later than others, functions alone count.
    """
    attributes = _attributes(kind)
    told = [said(one.__code__) for one in attributes.values() if type(one) is types.FunctionType]
    changed = set[Any]().union(*(one.changed | one.attributes | one.touched for one in told))
    return [
        f"{name}={_text(value, describe)}"
        for name, value in [*attributes.items()]
        if type(value) in (types.FunctionType, *_DESCRIPTORS)
        or not (name in changed or name.startswith("__"))
    ]


def _reached(name: str, value: Any, names: Iterable[str], dots: int) -> Iterator[tuple[str, Any]]:
    """Yield a value, and its attributes whose names the code has too: `pkg`, `pkg.models` and `pkg.models.net`.

    names: of the code. dots: how many levels of attributes to follow. Nothing of a library's module is followed.
    """
    if type(value) is types.ModuleType and is_of_library(value.__name__):
        return
    yield name, value
    if dots and type(value) not in _PLAIN and not issubclass(type(value), type | types.FunctionType):
        held = attributes_of(value)
        for other in names:
            if other in held:
                yield from _reached(f"{name}.{other}", held[other], names, dots - 1)


# A metaclass may have code of its own for these.
_MRO: Final = type.__dict__["__mro__"].__get__
_QUALNAME: Final = type.__dict__["__qualname__"].__get__
_attributes: Final = type.__dict__["__dict__"].__get__


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds, in slots too; no code of its class runs. Not cached properties."""
    kinds, held = [*map(_attributes, _MRO(type(value)))], dict[str, Any]()
    with suppress(Exception):  # of a class that has another `__dict__`
        for name, part in object.__getattribute__(value, "__dict__").items():
            if not any(type(attributes.get(name)) is functools.cached_property for attributes in kinds):
                held[name] = part
    for attributes in kinds:
        for name, slot in attributes.items() if "__slots__" in attributes else ():
            if isinstance(slot, types.MemberDescriptorType):
                with suppress(AttributeError):
                    held[name] = slot.__get__(value)
    return held


def _contents_of(thing: Any, describe: Callable[[Any], Any]) -> list[str]:
    """Describe the code of a function or a generator, and the values that it names; of what it changes the class."""
    texts, touched = [_text_of_code(_code_of(thing))], said(_code_of(thing)).touched
    for name, value in _named(thing) if type(thing) is types.FunctionType else ():
        is_state = name.rpartition(".")[2] in touched
        texts.append(f"{name}={type(value).__name__ if is_state else _text(value, describe)}")
    return texts


def _text(value: Any, describe: Callable[[Any], Any]) -> str:
    """Describe a value; a function, a class or a module by its name, since their code is told by itself."""
    kind = type(value)
    if kind in _DESCRIPTORS:
        return f"{kind.__name__} {[_text(getattr(value, name), describe) for name in _INNER[kind]]}"
    if issubclass(kind, type) or kind is types.FunctionType:
        return str(value.__qualname__ if kind is types.FunctionType else _QUALNAME(value))
    return str(value.__name__ if kind is types.ModuleType else describe(value))


@functools.lru_cache(4_096)
def _text_of_code(code: types.CodeType) -> str:
    return f"{code.co_code.hex()} {code.co_names} {[*map(_text_of_constant, code.co_consts)]}"


def _text_of_constant(value: Any) -> str:
    """Describe a constant: an int of any length, and a frozen set in an order of its own."""
    kind = type(value)
    if kind is types.CodeType:
        return _text_of_code(value)
    if kind in (tuple, frozenset):
        texts = [*map(_text_of_constant, value)]
        return f"{kind.__name__} {sorted(texts) if kind is frozenset else texts}"
    return hex(value) if kind is int else repr(value)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode(errors="replace")).hexdigest()[:16]
