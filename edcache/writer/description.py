"""Describe a value by a text that is the same in every process, and differs for every other value; digest code.

Every part of a value counts: of an array all bytes, of a dict all items in any order. nan is equal to nan.
-0.0 is not 0.0, True is not 1, and a numpy scalar is not the number of Python. An object of a library is
described by the parts that pickle would store. What pickle refuses, such as a lock, has no description.
"""

from __future__ import annotations

import ast
import copyreg
import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import inspect
import itertools
import linecache
import os
import pathlib
import sys
import types
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

from edcache.base import ForkLock, module_name
from edcache.identity import is_library, is_of_library

LONG: Final = 120
OWN: Final = "__edcache_fingerprint__()"
IGNORE: Final = "__edcache_ignore__"
_SHOWN: Final = 80
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_REPR_IS_VALUE: Final = frozenset(
    {range, uuid.UUID, decimal.Decimal, fractions.Fraction}
    | {datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
)
_COUNTS: Final = (dict, int, list, set)
_LOADS: Final = ("LOAD_GLOBAL", "LOAD_NAME")  # of global variables
# The lines of a file, as linecache keeps them, and their definitions.
_files: Final[dict[str, tuple[list[str], dict[tuple[int, str], list[ast.AST]]]]] = {}
# Up to Python 3.12 the depth of a syntax tree is counted in one place for all threads: two that parse at a
# time end in SystemError.
_parsing: Final = ForkLock()


class NoDescription(Exception):
    """Raised for a value without a text that is the same in every process."""


def described(value: Any, texts: Texts | None = None) -> Any:
    """Return a JSON value that stands for `value` in every process.

    None, a bool, an int and a text stand for themselves. All else is a list of one text, so that 0.5 and
    "0.5" differ. A text longer than `LONG` is cut, with a digest of all. Raises NoDescription.
    """
    if value is None or type(value) is bool or (type(value) is int and value.bit_length() < 64):
        return value
    if type(value) is str:
        return shortened(value)
    try:
        return [shortened((Texts() if texts is None else texts).text(value))]
    except RecursionError:
        raise NoDescription(f"a {type(value).__name__} that is nested too deep") from None


def shortened(text: str) -> str:
    """Cut a text longer than `LONG` characters to its beginning and a digest of all."""
    return text if len(text) <= LONG else f"{text[:_SHOWN]}... sha256:{digest_of(text)}"


def digest_of(data: str | memoryview) -> str:
    """Compute the first 64 bits of a SHA-256, in hex."""
    encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return hashlib.sha256(encoded).hexdigest()[:16]


def qualified_name(thing: Any) -> str:
    """Return "module:qualname" of a class or a function, with the module's name of `module_name`."""
    return f"{module_name(thing)}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def name_of(thing: Any) -> str:
    """Return the qualified name of a class or a function; with its module's if it is of a library.

    A user's function is the same one in a notebook, a script and a module.
    """
    name: str = getattr(thing, "__qualname__", type(thing).__qualname__)
    return qualified_name(thing) if is_installed(thing) else name


def is_installed(thing: Any) -> bool:
    """Return True for a class, a function or a module of Python, of an installed library or of edcache.

    A function is of the file of its code: functools.wraps copies the name of the module.
    """
    if isinstance(thing, types.FunctionType) and thing.__code__.co_filename[0] != "<":
        return is_library(thing.__code__.co_filename)
    return is_of_library(
        thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    )


def is_empty(value: Any) -> bool:
    """Return True for None and for a container without items, which reading may fill."""
    return value is None or (isinstance(value, (dict, list, set)) and not value)


def nonlocals_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the outer local variables that a function uses, by name, without any that has no value yet."""
    held = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            held[name] = cell.cell_contents
    return held


def held_by(function: types.FunctionType) -> dict[str, Any]:
    """Return the outer local variables whose values make a function what it is: one that counts calls is the same."""
    counters, held = counters_of(function), nonlocals_of(function)
    return {
        key: value for key, value in held.items() if key not in counters or not isinstance(value, _COUNTS)
    }


class Texts:
    """Writes texts of values.

    Args:
        roots: names of folders that end with a separator, by their paths: a path below one is described by
            its place there, so that files that were moved together are the same.
    Attributes:
        met: the classes and functions in the values, by id() in their order.
    """

    def __init__(self, roots: Mapping[str, str] | None = None) -> None:
        self.met: dict[int, Any] = {}
        self._roots = roots or {}
        self._open: dict[int, int] = {}  # by id(), the containers of the value that is being described

    def text(self, value: Any) -> str:
        """Describe a value. Raises NoDescription, or RecursionError for one that is nested too deep."""
        kind = type(value)
        if kind is str:
            return self._relative(value)
        if kind is int and value.bit_length() > 10_000:  # which Python does not print
            return hex(value)
        if kind in _PLAIN:
            return repr(value)
        if isinstance(value, pathlib.PurePath):
            return f"Path({self._relative(os.fsdecode(value))})"
        if id(value) in self._open:
            return f"<the value {len(self._open) - self._open[id(value)]} levels above>"
        self._open[id(value)] = len(self._open)
        try:
            return self._compound(value)
        except (NoDescription, RecursionError):
            raise
        except Exception as error:  # of the user's code, or of a library about a value that it half supports
            raise NoDescription(f"a {kind.__name__}, which raised {error!r:.100},") from error
        finally:
            del self._open[id(value)]

    def _compound(self, value: Any) -> str:
        kind = type(value)
        if kind in (list, tuple):
            text = self._repr(value)
            if text is not None:
                return text
            text = ", ".join(map(self.text, value))
            return f"[{text}]" if kind is list else f"({text}{',' * (len(value) == 1)})"
        if kind in (set, frozenset):
            return f"{kind.__name__}({', '.join(sorted(map(self.text, value)))})"
        if kind in (dict, types.MappingProxyType):
            items = sorted((self.text(key), self.text(part)) for key, part in value.items())
            return f"{{{', '.join(f'{key}: {part}' for key, part in items)}}}"
        thing = value if isinstance(value, (type, types.FunctionType)) else kind
        self.met.setdefault(id(thing), thing)
        word, parts = parts_of(value)
        return word if parts is None else f"{word}({', '.join(self._parts(parts))})"

    def _parts(self, parts: Mapping[Any, Any]) -> Iterator[str]:
        """Describe parts; a private attribute only if it holds something and can be described."""
        for name, part in sorted(parts.items(), key=lambda item: str(item[0])):
            if type(name) is int or name == OWN:
                yield self.text(part)
                continue
            label = name if name.isidentifier() else repr(name)
            if not name.startswith("_"):
                yield f"{label}={self.text(part)}"
            elif not is_empty(part):
                with suppress(NoDescription):
                    yield f"{label}={self.text(part)}"

    def _relative(self, text: str) -> str:
        """Describe a text; a path below a root by the root's name and, in quotes, the rest."""
        for root, name in self._roots.items():
            if text.startswith(root):
                return f"{{{name}}}/{text[len(root) :]!r}"
        return repr(text)

    def _repr(self, values: Any) -> str | None:
        """Describe plain values, or tuples of them, by their repr; None if that is not their text.

        A million values need no loop here.
        """
        kinds = {*map(type, values)}
        if kinds == {tuple}:
            kinds = {*map(type, itertools.chain.from_iterable(values))}
        if not kinds <= _PLAIN:
            return None
        try:
            text = repr(values)
        except ValueError:  # of an int that Python does not print
            return None
        if not any(repr(root)[1:-1] in text for root in self._roots):
            return text
        # Without these each ' opens or closes a text.
        if any(mark in text for mark in ('"', "\\", "//", "b'/")):
            return None
        for root, name in self._roots.items():
            text = text.replace(f"'{root}", f"{{{name}}}/'")
        return text


# ------------------------------------------------------------------------------------------------- parts


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object by name; None for a value that is described otherwise."""
    if type(value) in (*_PLAIN, dict, frozenset, list, set, tuple) or _is_array(value):
        return None
    parts = parts_of(value)[1]
    return parts if parts is not None and all(type(name) is str for name in parts) else None


def parts_of(value: Any) -> tuple[str, dict[Any, Any] | None]:
    """Return a word for a value, and its parts by name or position; None for one that is its word.

    A method `__edcache_fingerprint__` returns the parts of its object; without one, a class attribute
    `__edcache_ignore__` names attributes that are no part of it. A generator that has not begun has its
    arguments. An object of a library has the parts that pickle would store.
    """
    kind = type(value)
    if isinstance(value, type):
        return name_of(value), None
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}", None
    if isinstance(value, enum.Enum):
        return f"{kind.__qualname__}.{value.name or repr(value.value)}", None
    has_zone = getattr(value, "tzinfo", None) is not None  # whose repr may be its address
    if (kind in _REPR_IS_VALUE and not has_zone) or isinstance(value, np.dtype):
        return repr(value), None
    name = name_of(kind)
    if hasattr(kind, "__edcache_fingerprint__"):
        answer = kind.__edcache_fingerprint__(value)
        is_dict = isinstance(answer, dict)
        return name, {str(key): part for key, part in answer.items()} if is_dict else {OWN: answer}
    if inspect.isroutine(value) or (callable(value) and hasattr(value, "__wrapped__")):
        return _parts_of_function(value)
    if isinstance(value, types.GeneratorType):
        if inspect.getgeneratorstate(value) != inspect.GEN_CREATED:
            raise NoDescription(f"the generator {value.__qualname__}, which has begun,")
        return value.__qualname__, dict(inspect.getgeneratorlocals(value))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return name, dict(zip(kind._fields, value, strict=True))
    if _is_array(value):
        return _parts_of_array(value)
    if any(kin.__module__.startswith("datasets.") for kin in kind.__mro__) and hasattr(value, "_fingerprint"):
        return name, {
            "_fingerprint": value._fingerprint
        }  # of Hugging Face, which changes with every operation
    if kind.__module__.partition(".")[0] == "pandas" and hasattr(value, "iloc"):
        return name, _parts_of_table(value)
    torch = sys.modules.get("torch.nn")
    if torch is not None and isinstance(value, torch.Module):
        return name, _parts_of_module(value, vars(torch.Module()))
    # A class that is derived from one of C, such as `date`, holds a value that is no attribute.
    makers = [vars(kin).get("__new__") for kin in kind.__mro__ if kin is not object]
    is_native = any(isinstance(maker, types.BuiltinFunctionType) for maker in makers)
    parts = _pickled(value) if is_installed(kind) or is_native else _attributes_of(value)
    ignored = getattr(kind, IGNORE, ())
    return name, {key: part for key, part in parts.items() if key not in ignored}


def _is_array(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, (np.ndarray, np.generic)) or (
        torch is not None and isinstance(value, torch.Tensor)
    )


def _attributes_of(value: Any) -> dict[str, Any]:
    attributes = dict(getattr(value, "__dict__", {}))
    for kin in type(value).__mro__:
        for name, slot in vars(kin).items():
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, name):
                attributes[name] = getattr(value, name)
    return attributes


def _pickled(value: Any) -> dict[Any, Any]:
    """Return the parts that pickle would store: function, arguments, items and pairs; attributes by name."""
    kind = type(value)
    if kind is object:
        raise NoDescription("an object() without a value")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of iterators that Python will pickle no more
            reducer: Any = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
    except Exception:  # noqa: BLE001 - of any class
        raise NoDescription(f"{name_of(kind)}, which pickle refuses,") from None
    if isinstance(reduced, str):
        return {0: reduced}
    make, arguments, state, *more = (*reduced, None)[: max(3, len(reduced))]
    parts = [] if make in (kind, copyreg.__newobj__) else [make]  # type: ignore[attr-defined]
    parts += [part for part in arguments if part is not kind]
    parts += [list(part) for part in more if part is not None]
    if type(state) is dict:
        return {**dict(enumerate(parts)), **state}
    return dict(enumerate(parts if state is None else [*parts, state]))


def _parts_of_function(value: Any) -> tuple[str, dict[Any, Any] | None]:
    """Return owner or defaults and closure; of an object or a library's wrapper the function that it wraps."""
    kind, owner, inner = type(value), getattr(value, "__self__", None), getattr(value, "__wrapped__", None)
    name = getattr(value, "__qualname__", kind.__qualname__)
    if owner is not None and not isinstance(owner, types.ModuleType):
        return name, {0: owner}
    if not inspect.isfunction(value):
        if inner is None:
            return name_of(value), None
        attributes = {key: part for key, part in getattr(value, "__dict__", {}).items() if key[0] != "_"}
        return f"wrapped by {name_of(kind)}", {0: inner, **attributes}
    held = held_by(value)
    if is_installed(value) and inner is not None:
        # Only plain values count: the object of torch.no_grad says how the process began.
        return "wrapped", {0: inner} | {key: part for key, part in held.items() if type(part) in _PLAIN}
    name = name_of(value)
    if "<" not in name and is_installed(value):
        return name, None
    parts = {k: part for k, part in enumerate((value.__defaults__, value.__kwdefaults__, held)) if part}
    return name, parts or None


def _parts_of_module(value: Any, blank: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters, buffers, modules and hooks of a module of torch beside its attributes.

    Under private names, a parameter that cannot be described would be no part of the model.
    """
    fields = _attributes_of(value)
    # A traced module keeps them elsewhere.
    parts = [fields.pop(name, {}) for name in ("_parameters", "_buffers", "_modules")]
    # A hook's key counts the hooks of the process.
    hooks = {key[1:]: [*held.values()] for key, held in fields.items() if key.startswith("_forward") and held}
    own = {key: held for key, held in fields.items() if key not in blank or key == "training"}
    return {name: held for part in (own, hooks, *parts) for name, held in part.items()}


def _parts_of_table(value: Any) -> dict[int, Any]:
    """Return attributes and names of a table of pandas, and each level and column by its dtype and values.

    Its own parts are other ones after it was read.
    """
    columns = [value] if value.ndim == 1 else [value.iloc[:, k] for k in range(value.shape[1])]
    # Level by level: the values of an index of several are tuples, which have no dtypes.
    levels = [value.index.get_level_values(k) for k in range(value.index.nlevels)]
    parts = [value.attrs, [list(axis.names) for axis in value.axes]]
    for part in (*levels, *columns):
        held = part.cat if hasattr(part, "cat") else part
        values = [held.categories, held.codes, held.ordered] if hasattr(held, "categories") else [part]
        parts.append([part.name, str(part.dtype), *map(np.asarray, values)])
    return dict(enumerate(parts))


def _parts_of_array(value: Any) -> tuple[str, dict[Any, Any] | None]:
    """Return dtype, shape and digest of all bytes of an array, a scalar or a tensor; and its attributes."""
    kind = type(value)
    if isinstance(value, np.ma.MaskedArray):
        return "masked", {0: value.data, 1: np.ma.getmaskarray(value), 2: value.fill_value}
    # The attributes of a memmap say where its file lies.
    attributes = {} if kind is np.memmap else getattr(value, "__dict__", {})
    shape = "nested" if getattr(value, "is_nested", False) else list(value.shape)
    header = f"{'ndarray' if kind is np.memmap else kind.__name__}({value.dtype}{shape}"
    data: Any = None
    parts: list[Any] = []
    if not isinstance(value, (np.ndarray, np.generic)):
        header += ", grad" * value.requires_grad
        data, parts = _data_of_tensor(value, header)
    elif value.dtype.names:  # field by field: bytes between them are padding
        parts = [np.asarray(value)[field] for field in value.dtype.names]
    elif isinstance(value, np.generic):
        return f"{value.dtype}({value.item()!r})", None
    elif value.dtype.hasobject or value.dtype.char in "gG":  # a long double is padded too
        parts = [value.reshape(-1).tolist()]
    else:
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    word = f"{header})" if data is None else f"{header}, sha256:{digest_of(data.data)})"
    return word, {**dict(enumerate(parts)), **attributes} or None


def _data_of_tensor(value: Any, header: str) -> tuple[Any, list[Any]]:
    """Return the bytes of a tensor as an array; else None and its parts."""
    torch = sys.modules["torch"]
    if value.is_meta:
        raise NoDescription(f"{header}) without data")
    if value.is_nested:
        return None, [str(value.layout), *value.unbind()]
    if value.is_quantized:
        return None, [str(value.qscheme()), value.int_repr(), value.dequantize()]
    if value.layout != torch.strided:
        return None, [str(value.layout), *_pickled(value.detach().cpu()).values()]
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # The stride of a single value may be any number, and must be 1 for a view.
    return flat.as_strided((value.numel(),), (1,)).view(torch.uint8).numpy(), []


# ------------------------------------------------------------------------------------------------- code


def modules_named_by(function: Any) -> dict[str, list[Any]]:
    """Find modules of torch in global variables that a function, a class or its object names, or code that it names.

    Returns: the modules by the name of their variable; of an object that has modules as attributes, of these.
    """
    # Most code leads to none, also if its attributes are taken for variables, which needs a tenth of the time.
    return _modules_named_by(function, True) if _modules_named_by(function, False) else {}


def _modules_named_by(function: Any, is_exact: bool) -> dict[str, list[Any]]:
    torch: Any = sys.modules.get("torch.nn")
    found: dict[str, list[Any]] = {}
    waiting, seen = [("", function), ("", type(function))], set[int]()
    while waiting and torch is not None:
        name, thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        kind = type(thing)  # isinstance() asks some proxies for what they stand for, which may raise
        parts: dict[str, Any] = {} if issubclass(kind, type) else getattr(thing, "__dict__", {})
        if "__wrapped__" in parts:
            waiting.append((name, parts["__wrapped__"]))
        if issubclass(kind, torch.Module):
            # What the function holds itself is described with it.
            found.setdefault(name, []).extend([thing] if name else [])
        elif kind is functools.partial:
            waiting += [(name, part) for part in (thing.func, *thing.args, *thing.keywords.values())]
        elif kind is types.MethodType:
            waiting.append((name, thing.__func__))
        elif issubclass(kind, type):
            if not is_installed(thing):
                waiting += [("", base) for base in thing.__bases__]
                waiting += [("", getattr(part, "__func__", part)) for part in vars(thing).values()]
        elif kind is types.FunctionType:
            if not is_installed(thing):
                waiting += _globals_of(thing, is_exact)
            held = nonlocals_of(thing).values()
            waiting += [("", part) for part in held if type(part) is types.FunctionType]
        elif name and kind is not types.ModuleType:
            waiting += [
                (f"{name}.{key}", part) for key, part in parts.items() if issubclass(type(part), torch.Module)
            ]
    return {name: modules for name, modules in found.items() if modules}


def _globals_of(function: types.FunctionType, is_exact: bool) -> Iterator[tuple[str, Any]]:
    """Yield global variables that a function reads, and attributes that it reads of the user's modules among them.

    is_exact: False takes every attribute for a variable.
    """
    codes, known = [function.__code__], function.__globals__
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        names = code.co_names
        if is_exact:
            names = tuple({one.argval: 0 for one in dis.get_instructions(code) if one.opname in _LOADS})
        for name in names:
            held = known.get(name)
            yield name, held
            if isinstance(held, types.ModuleType) and not is_installed(held):
                yield from ((other, vars(held).get(other)) for other in code.co_names)


def counters_of(function: types.FunctionType) -> set[str]:
    """Name the variables that a function changes and does not use, such as a list of its calls."""
    changed, used, waiting = set(), set(), [*_nodes_of(function.__code__)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            owner = getattr(part.value.func, "value", part.value.func)
            # calls.append(x) changes calls and uses x.
            changed |= {owner.id} if isinstance(owner, ast.Name) else set()
            waiting += [*part.value.args, *part.value.keywords]
        elif isinstance(part, ast.AugAssign):
            owner = getattr(part.target, "value", part.target)
            changed |= {owner.id} if isinstance(owner, ast.Name) else set()
            waiting.append(part.value)
        else:
            used |= {part.id} if isinstance(part, ast.Name) else set()
            waiting += ast.iter_child_nodes(part)
    return changed - used


def _nodes_of(code: types.CodeType) -> list[ast.AST]:
    return _definitions_in(code.co_filename).get((code.co_firstlineno, code.co_name), [])


def _definitions_in(file: str) -> dict[tuple[int, str], list[ast.AST]]:
    """Parse a file: functions by first line and name."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    if not lines:
        return {}
    known = _files.get(file)
    if known is None or known[0] is not lines:
        with _parsing.held():
            known = lines, _parsed("".join(lines))
        _files[file] = known
    return known[1]


def _parsed(source: str) -> dict[tuple[int, str], list[ast.AST]]:
    """Parse a text; its functions have no decorators."""
    found: dict[tuple[int, str], list[ast.AST]] = {}
    with suppress(SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                node.decorator_list = []
                found.setdefault((line, node.name), []).append(node)
            elif isinstance(node, ast.Lambda):
                found.setdefault((node.lineno, "<lambda>"), []).append(node)
    return found
