"""A text for a value, the same in every process; different values have different ones. And what code says.

Every part of a value counts: of an array all bytes, of a dict all items in any order. nan is equal to nan.
-0.0 is not 0.0, True is not 1, and a numpy scalar is not the number of Python. An object of a library is
described by the parts that pickle would store. What pickle refuses, such as a lock, has no description.
"""

from __future__ import annotations

import ast
import copyreg
import datetime
import decimal
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
import sysconfig
import types
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from edcache.base import MAIN_NAMES, ForkLock, module_name

LONG: Final = 120
OWN: Final = "__edcache_fingerprint__()"
_SHOWN: Final = 80
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_REPR_IS_VALUE: Final = frozenset(
    {range, uuid.UUID, decimal.Decimal, fractions.Fraction, np.dtype}
    | {datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
)
_NO_OBJECT: Final = (
    *(type, enum.Enum, types.ModuleType, pathlib.PurePath, np.ndarray, np.generic),
    *(bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset),
)
_INSTALLED: Final = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")},
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""),
)
_MOST_ITEMS: Final = 64
# The lines of a file, as linecache keeps them, and what they define.
_files: Final[dict[str, tuple[list[str], dict[tuple[int, str], list[ast.AST]]]]] = {}
_MOST_FILES: Final = 64
# Up to Python 3.12 the depth of a syntax tree is counted in one place for all threads: two that parse at a
# time end in SystemError.
_parsing: Final = ForkLock()


class NoDescription(Exception):
    """A value has no text that is the same in every process."""


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


def digest_of(data: bytes | str | memoryview) -> str:
    """A short SHA-256."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:16]


def qualified_name(thing: Any) -> str:
    """ "module:qualname" of a class or a function, with the module's name of `module_name`."""
    return f"{module_name(thing)}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def is_installed(thing: Any) -> bool:
    """True if a class, a function or a module is of Python, of an installed library or of edcache.

    A function is where its code is: functools.wraps copies the name of the module.
    """
    if isinstance(thing, types.FunctionType) and thing.__code__.co_filename[0] != "<":
        return not _is_of_user(thing.__code__.co_filename)
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    file = getattr(sys.modules.get(name or "builtins"), "__file__", None)
    return name not in MAIN_NAMES and (file is None or not _is_of_user(file))


def _is_of_user(file: str) -> bool:
    """True if a file of code is neither of Python nor of an installed library nor of edcache."""
    return not file.startswith(_INSTALLED) and "-packages" not in file


def name_of(thing: Any) -> str:
    """The qualified name of a class or a function; with its module's if it is of a library.

    A user's function is the same one in a notebook, a script and a module.
    """
    name: str = getattr(thing, "__qualname__", type(thing).__qualname__)
    return qualified_name(thing) if is_installed(thing) else name


def fields_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, by name; None for what is described otherwise.

    What a method `__edcache_fingerprint__` returns stands in their place. A generator that has not begun
    has its arguments. Of an object of a library they are what pickle would store.
    """
    kind = type(value)
    if hasattr(kind, "__edcache_fingerprint__"):
        answer = kind.__edcache_fingerprint__(value)
        return {str(key): part for key, part in answer.items()} if isinstance(answer, dict) else {OWN: answer}
    if any(kin.__module__.startswith("datasets.") for kin in kind.__mro__) and hasattr(value, "_fingerprint"):
        return {"_fingerprint": value._fingerprint}  # of Hugging Face, which changes with every operation
    if isinstance(value, types.GeneratorType):
        if inspect.getgeneratorstate(value) != inspect.GEN_CREATED:
            raise NoDescription(f"the generator {value.__qualname__}, which has begun,")
        return dict(inspect.getgeneratorlocals(value))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return dict(zip(kind._fields, value, strict=True))
    if isinstance(value, _NO_OBJECT) or is_function(value) or _is_table(value):
        return None
    if _is_native(kind) and not is_installed(kind):
        return None
    modules = sys.modules.get("torch.nn")
    is_module = modules is not None and isinstance(value, modules.Module)
    if is_installed(kind) and not is_module:
        make, arguments, state, *more = _reduced(value)
        is_plain = make is copyreg.__newobj__ and arguments == (kind,)  # type: ignore[attr-defined]
        return state if is_plain and type(state) is dict and not any(more) else None
    fields = dict(getattr(value, "__dict__", {}))
    for kin in kind.__mro__:
        for name, slot in vars(kin).items():
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, name):
                fields[name] = getattr(value, name)
    if modules is not None and is_module:
        # Under private names, what cannot be described would be no part of the model.
        parts = [fields.pop(name, {}) for name in ("_parameters", "_buffers", "_modules")]
        blank = vars(modules.Module())
        # A hook's key counts the hooks of the process.
        hooks = {
            key[1:]: [*held.values()] for key, held in fields.items() if key.startswith("_forward") and held
        }
        own = {key: held for key, held in fields.items() if key not in blank or key == "training"}
        fields = {**own, **hooks}
        fields = {name: held for part in (fields, *parts) for name, held in part.items()}
    return fields


def _reduced(value: Any) -> tuple[Any, ...]:
    """The parts that pickle would store: function, arguments, state, items, pairs. Or NoDescription."""
    kind = type(value)
    reducer: Callable[[Any], Any] | None = copyreg.dispatch_table.get(kind)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of iterators that Python will pickle no more
            reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
    except Exception:  # noqa: BLE001 - of any class
        raise NoDescription(f"{name_of(kind)}, which pickle refuses,") from None
    if kind is object:
        raise NoDescription("an object() without a value")
    return (reduced, (), *[None] * 3) if isinstance(reduced, str) else (*reduced, *[None] * 3)[:5]


def _is_native(kind: type) -> bool:
    """True if a class holds a value that is no attribute: it is derived from one of C, such as `date`."""
    return any(
        kin is not object and isinstance(vars(kin).get("__new__"), types.BuiltinFunctionType)
        for kin in kind.__mro__
    )


def is_function(value: Any) -> bool:
    """True for a function, a method, or an object in the place of one by functools.wraps."""
    return inspect.isroutine(value) or (callable(value) and hasattr(value, "__wrapped__"))


def nonlocals_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the outer local variables that a function uses, by name, without any that has no value yet."""
    held = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            held[name] = cell.cell_contents
    return held


def _is_table(value: Any) -> bool:
    """True for a table of pandas, whose own parts are other ones after it was read."""
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "iloc")


def is_empty(value: Any) -> bool:
    """True for None and for a container without items, which reading may fill."""
    return value is None or (isinstance(value, (dict, list, set)) and not value)


class Texts:
    """Writes texts of values.

    Args:
        roots: names of folders that end with a separator, by what stands for each: a path below one is
            described by its place there, so that files that were moved together are the same.
    Attributes:
        met: the classes and functions in the values, in their order.
    """

    def __init__(self, roots: Mapping[str, str] | None = None) -> None:
        self.met: list[Any] = []
        self._roots = roots or {}
        self._open: dict[int, int] = {}  # by id(), what holds the value that is being described

    def relative(self, text: str) -> str:
        """Describe a text; a path below a root by the root's name and, in quotes, the rest."""
        for root, name in self._roots.items():
            if text.startswith(root):
                return f"{{{name}}}/{text[len(root) :]!r}"
        return repr(text)

    def _relative_all(self, text: str) -> str | None:
        """Make paths relative in the repr of many values, as `relative` does one by one; None if that is needed."""
        if not any(repr(root)[1:-1] in text for root in self._roots):
            return text
        # Without these each ' opens or closes a text.
        if any(mark in text for mark in ('"', "\\", "//", "b'/")):
            return None
        for root, name in self._roots.items():
            text = text.replace(f"'{root}", f"{{{name}}}/'")
        return text

    def text(self, value: Any) -> str:
        """Describe a value. Raises NoDescription, or RecursionError for one that is nested too deep."""
        kind = type(value)
        if kind is str:
            return self.relative(value)
        if kind is int and value.bit_length() > 10_000:  # which Python does not print
            return hex(value)
        if kind in _PLAIN:
            return repr(value)
        if isinstance(value, pathlib.PurePath):
            return f"Path({self.relative(os.fsdecode(value))})"
        if id(value) in self._open:
            return f"<the value {len(self._open) - self._open[id(value)]} levels above>"
        self._open[id(value)] = len(self._open)
        try:
            array = self._array(value)
            if array is None:
                return self._compound(value)
            # The attributes of a memmap say where its file lies.
            held = None if kind is np.memmap else getattr(value, "__dict__", None)
            return f"{array} with {', '.join(self._parts(held))}" if held else array
        except (NoDescription, RecursionError):
            raise
        except Exception as error:  # of the user's code, or of a library about a value that it half supports
            raise NoDescription(f"a {kind.__name__}, which raised {error!r:.100},") from error
        finally:
            del self._open[id(value)]

    def _compound(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, type):
            self.met.append(value)
            return name_of(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, enum.Enum):
            return f"{kind.__qualname__}.{value.name or repr(value.value)}"
        has_zone = getattr(value, "tzinfo", None) is not None  # whose repr may be its address
        if (kind in _REPR_IS_VALUE and not has_zone) or isinstance(value, np.dtype):
            return repr(value)
        if is_function(value):
            return self._function(value)
        if kind in (list, tuple):
            if self._repr_is_text(value):
                with suppress(ValueError):  # of an int that Python does not print
                    text = self._relative_all(repr(value))
                    if text is not None:
                        return text
            text = ", ".join(map(self.text, value))
            return f"[{text}]" if kind is list else f"({text}{',' * (len(value) == 1)})"
        if kind in (set, frozenset):
            return f"{kind.__name__}({', '.join(sorted(map(self.text, value)))})"
        if kind is dict or kind is types.MappingProxyType:
            items = sorted((self.text(key), self.text(part)) for key, part in value.items())
            return f"{{{', '.join(f'{key}: {part}' for key, part in items)}}}"
        self.met.append(kind)
        fields = fields_of(value)
        if fields is not None:
            name = name_of(kind)
            if isinstance(value, types.GeneratorType):
                name = f"{value.__qualname__} code:{digest_of_code(value.gi_code)}"
            return f"{name}({', '.join(self._parts(fields))})"
        if isinstance(value, np.ma.MaskedArray):
            return f"masked{self.text((value.data, np.ma.getmaskarray(value), value.fill_value))}"
        return self._table(value) if _is_table(value) else self._pickled(value)

    def _repr_is_text(self, values: Any) -> bool:
        """True for a list or a tuple of plain values, or of tuples of them; a million need no loop here."""
        kinds = {*map(type, values)}
        if kinds == {tuple}:
            kinds = {*map(type, itertools.chain.from_iterable(values))}
        return kinds <= _PLAIN

    def _parts(self, fields: Mapping[str, Any]) -> Iterator[str]:
        """The attributes of an object; a private one only if it holds something and can be described."""
        for name, part in sorted(fields.items()):
            if name == OWN:
                yield self.text(part)
            elif not name.startswith("_"):
                yield f"{name}={self.text(part)}"
            elif not is_empty(part):
                with suppress(NoDescription):
                    yield f"{name}={self.text(part)}"

    def _table(self, value: Any) -> str:
        """Describe a table of pandas: attributes, names, and each level and column by its dtype and values."""
        columns = [value] if value.ndim == 1 else [value.iloc[:, k] for k in range(value.shape[1])]
        texts = [self.text((value.attrs, [list(axis.names) for axis in value.axes]))]
        # Level by level: the values of an index of several are tuples, which have no dtypes.
        levels = [value.index.get_level_values(k) for k in range(value.index.nlevels)]
        for part in (*levels, *columns):
            held = part.cat if hasattr(part, "cat") else part
            has_categories = hasattr(held, "categories")
            values = [held.categories, held.codes, held.ordered] if has_categories else [part]
            texts += [f"{part.name!r} {part.dtype}", *(self.text(np.asarray(one)) for one in values)]
        return f"{name_of(type(value))}({', '.join(texts)})"

    def _array(self, value: Any) -> str | None:
        """Describe an array of numpy, a numpy scalar or a tensor by all its bytes; None for anything else."""
        kind, torch = type(value), sys.modules.get("torch")
        if isinstance(value, np.generic) and not (value.dtype.names or value.dtype.hasobject):
            return f"{value.dtype}({value.item()!r})"
        if isinstance(value, np.ma.MaskedArray):
            return None
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(value, torch)
        if not isinstance(value, np.ndarray | np.void):
            return None
        name = "ndarray" if kind is np.memmap else kind.__name__
        header = f"{name}({value.dtype}{list(value.shape)}"
        if value.dtype.names:  # field by field: bytes between them are padding
            return f"{header}, {', '.join(self.text(value[field]) for field in value.dtype.names)})"
        if value.dtype.hasobject or value.dtype.char in "gG":  # a long double is padded too
            return f"{header}, {self.text(value.reshape(-1).tolist())})"
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return f"{header}, sha256:{digest_of(flat.data)})"

    def _tensor(self, value: Any, torch: Any) -> str:
        if value.is_nested:
            return f"nested {value.layout} {self.text(value.unbind())}"
        header = f"{type(value).__name__}({value.dtype}{list(value.shape)}{', grad' * value.requires_grad}"
        if value.is_meta:
            raise NoDescription(f"{header}) without data")
        if value.is_quantized:
            return f"{header}, {value.qscheme()}, {self.text((value.int_repr(), value.dequantize()))})"
        if value.layout != torch.strided:
            return f"{header}, {value.layout}, {self._pickled(value.detach().cpu())})"
        flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # The stride of a single value may be any number, and must be 1 for a view.
        flat = flat.as_strided((value.numel(),), (1,)).view(torch.uint8)
        return f"{header}, sha256:{digest_of(flat.numpy().data)})"

    def _function(self, value: Any) -> str:
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            name = getattr(value, "__qualname__", type(value).__qualname__)
            return f"{name} of {self.text(owner)}"
        inner = getattr(value, "__wrapped__", None)
        if inner is not None and (is_installed(value) or not inspect.isfunction(value)):
            # Count the plain values of a library's decorator, as torch.no_grad; the attributes of an object that
            # stands in the place of a function.
            if inspect.isfunction(value):
                held = {name: part for name, part in nonlocals_of(value).items() if type(part) in _PLAIN}
            else:
                held = {name: part for name, part in getattr(value, "__dict__", {}).items() if name[0] != "_"}
                self.met.append(type(value))
            texts = ", ".join(self._parts(held))
            return self._function(inner) + (f" wrapped({texts})" if texts else "")
        if not inspect.isfunction(value):
            return name_of(value)
        self.met.append(value)
        name = name_of(value)
        if "<lambda>" in name or "<locals>" in name:
            name += f" code:{digest_of_code(value.__code__)}"
        parts = [part for part in (value.__defaults__, value.__kwdefaults__, nonlocals_of(value)) if part]
        return (
            f"{name}({', '.join(map(self.text, parts))})"
            if parts and ("<" in name or not is_installed(value))
            else name
        )

    def _pickled(self, value: Any) -> str:
        """Describe an object of a library by the parts that pickle would store."""
        make, arguments, state, *more = _reduced(value)
        kind = type(value)
        parts = [] if make in (kind, copyreg.__newobj__) else [make]  # type: ignore[attr-defined]
        parts += [part for part in (*arguments, state) if part is not kind and part is not None]
        parts += [list(part) for part in more if part is not None]
        return f"{name_of(kind)}({', '.join(map(self.text, parts))})"


# ------------------------------------------------------------------------------------------------- code


class _Home(NamedTuple):
    """Module of a definition: its name, its variables and its file."""

    name: str
    names: Mapping[str, Any]
    file: str


def code_of(things: Iterable[Any], nbytes: int) -> dict[str, str]:
    """Digest the syntax trees of functions and classes, and of the user's code that they name, by name.

    Names lead to functions, classes and assignments of a module, the nearest first, until they have about
    `nbytes` of JSON. Libraries are left out. Comments, layout, docstrings and the lines of decorators are no
    code; the function that a decorator returned is.
    """
    found: dict[str, str] = {}
    waiting, seen = [("", thing, _Home("?", {}, "")) for thing in things], set()
    while waiting and nbytes > 0:
        name, thing, home = waiting.pop(0)
        if hasattr(thing, "__wrapped__") and not isinstance(thing, type):
            waiting.append((name, thing.__wrapped__, home))
        if isinstance(thing, (type, types.FunctionType)):
            if id(thing) in seen or is_installed(thing):
                continue
            seen.add(id(thing))
            digest, names, home = _definition_of(thing)
            # A function inside a function is of that, a method of its class; a lambda has the name that it is
            # used by.
            outer = thing.__qualname__.partition(".<locals>")[0]
            place = name if ":" in name else f"{home.name}:{name if outer == '<lambda>' and name else outer}"
            if isinstance(thing, type):
                waiting += [("", base, home) for base in thing.__bases__]
                # Without source a class has the bytecode of its methods.
                members = [
                    one
                    for one in vars(thing).values()
                    if hasattr(one, "__wrapped__") or (callable(one) and not digest)
                ]
                waiting += [(place, member, home) for member in members]
            else:
                waiting += [("", held, home) for held in nonlocals_of(thing).values()]
        elif name and (nodes := _definitions_in(home.file).get((0, name))):
            # The value may be a counter by now.
            digest, names = _said(tuple(nodes))
            place = f"{home.name}:{name}"
            if place in found:
                continue
        elif isinstance(thing, (dict, list)) and len(thing) <= _MOST_ITEMS:  # it may be a registry
            waiting += [("", part, home) for part in (thing.values() if isinstance(thing, dict) else thing)]
            continue
        elif name and _is_constant(thing):
            digest, names, place = digest_of(repr(thing)), (), f"{home.name}:{name}"
        else:
            continue
        nbytes -= 0 if place in found else len(place) + 24
        found[place] = digest_of(digest + found.get(place, ""))
        waiting += _named(names, home)
    return found


def _named(names: Sequence[str], home: _Home) -> Iterator[tuple[str, Any, _Home]]:
    """Yield name, value and home of the variables of a module, and of modules in it, that code names."""
    for name in names:
        held = home.names.get(name)
        if isinstance(held, types.ModuleType) and not is_installed(held):
            there = _Home(held.__name__, vars(held), str(held.__file__))
            yield from ((part, there.names[part], there) for part in names if part in there.names)
        elif held is not None:
            yield name, held, home


def _is_constant(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_constant, value))
    return type(value) in _PLAIN and value is not None


def _definition_of(thing: type | types.FunctionType) -> tuple[str, tuple[str, ...], _Home]:
    """Return the digest of a function or a class, the names in it, and its home."""
    if isinstance(thing, types.FunctionType):
        code = thing.__code__
        home = _Home(module_name(thing), thing.__globals__, code.co_filename)
        node = _node_of(code)
        return *(_said((node,)) if node else (digest_of(_bytecode(code)), code.co_names)), home
    module = sys.modules.get(thing.__module__)
    methods = [member.__code__ for member in vars(thing).values() if isinstance(member, types.FunctionType)]
    for file in (getattr(module, "__file__", None), *(code.co_filename for code in methods)):
        nodes = _definitions_in(file).get((0, thing.__qualname__)) if file else None
        if nodes:
            return *_said(tuple(nodes)), _Home(module_name(thing), vars(module) if module else {}, str(file))
    # Without source it has only its methods.
    return "", (), _Home(module_name(thing), {}, "")


def digest_of_code(code: types.CodeType) -> str:
    """Digest the syntax tree of a function; its bytecode if no source says which function it is."""
    node = _node_of(code)
    return _said((node,))[0] if node else digest_of(_bytecode(code))


def counters_of(function: types.FunctionType) -> set[str]:
    """Name the variables that a function changes and does not use, such as a list of its calls."""
    changed, used, waiting = set(), set(), [_node_of(function.__code__)]
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
        elif part is not None:
            used |= {part.id} if isinstance(part, ast.Name) else set()
            waiting += ast.iter_child_nodes(part)
    return changed - used


def _node_of(code: types.CodeType) -> ast.AST | None:
    nodes = _definitions_in(code.co_filename).get((code.co_firstlineno, code.co_name), [])
    return nodes[0] if len(nodes) == 1 else None


@functools.lru_cache(1_024)
def _said(nodes: tuple[ast.AST, ...]) -> tuple[str, tuple[str, ...]]:
    """Digest definitions, and list the names and attributes in them."""
    names: dict[str, None] = {}
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                names[part.id] = None
            elif isinstance(part, ast.Attribute):
                names[part.attr] = None
    return digest_of("\n".join(map(ast.unparse, nodes))), tuple(names)


def _definitions_in(file: str) -> dict[tuple[int, str], list[ast.AST]]:
    """Parse a file: functions by first line and name, classes and assignments by 0 and qualified name."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    if not lines:
        return {}
    known = _files.get(file)
    if known is None or known[0] is not lines:
        with _parsing.held():
            known = lines, _parsed("".join(lines))
        if len(_files) > _MOST_FILES:
            _files.clear()
        _files[file] = known
    return known[1]


def _parsed(source: str) -> dict[tuple[int, str], list[ast.AST]]:
    """Parse a text; its definitions have no docstrings and decorators."""
    try:
        waiting: list[tuple[str, ast.AST]] = [("", ast.parse(source))]
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[tuple[int, str], list[ast.AST]] = {}
    while waiting:
        outer, node = waiting.pop()
        keys = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            is_class = isinstance(node, ast.ClassDef)
            keys = [(0, outer + node.name) if is_class else (line, node.name)]
            outer = f"{outer}{node.name}." + "<locals>." * (not is_class)
            node.decorator_list = []
            if ast.get_docstring(node, clean=False) is not None:
                node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
        elif isinstance(node, ast.Lambda):
            keys = [(node.lineno, "<lambda>")]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not outer:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            keys = [
                (0, part.id) for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
            ]
        for key in keys:
            found.setdefault(key, []).append(node)
        waiting += [(outer, part) for part in ast.iter_child_nodes(node)]
    return found


@functools.lru_cache(1_024)
def _bytecode(code: types.CodeType) -> str:
    constants = [
        _bytecode(part)
        if isinstance(part, types.CodeType)
        else repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)
        for part in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
