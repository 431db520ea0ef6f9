"""`Settings`: what an object holds, as texts that are the same in every process and differ for every other value.

Exact are plain values and containers of them, arrays by sums of all bytes, tables by their columns (tables.py), a
function by its defaults and closure, a module of torch by the names, dtypes and bytes of its `state_dict()`, an object
of the user and a dataset of a library by their attributes. nan is equal to nan; -0.0 is not 0.0, True is not 1, a numpy
scalar is not the number of Python.

Other parts only ask whether samples are other ones, and a sample that is computed again answers: public attributes of
any other object of a library, such as a transform, the fingerprint of a dataset of Hugging Face, and private
attributes, which may hold what reading has made.

Not described is what a library keeps to itself, in private attributes or in C, as a tokenizer does: a sample shows it.

Passed over is what has no plain content: a lock, a logger, a generator of random numbers, an open file.

What must never happen: an error; a text that depends on an address, the order of a set or the process; a read of an
attribute by its name, which runs code of the user.
"""

from __future__ import annotations

import argparse
import array
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import inspect
import itertools
import operator
import os
import pathlib
import re
import sys
import types
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from edcache.base import module_name
from edcache.format import block_crc32s
from edcache.identity.code import attributes_of, is_library, is_of_library, outer, said
from edcache.identity.tables import content_of, is_table, library_of

LONG: Final = 120
_SHOWN: Final = 80
# Characters of a part's text; a longer one is cut: lists that hold one list twice, and so on, would double it.
_LONGEST: Final = 10_000
_NO_LEVEL: Final = sys.maxsize
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_TIMES: Final = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta)
_NUMBERS: Final = (range, slice, uuid.UUID, decimal.Decimal, fractions.Fraction)
_TYPES: Final = (types.UnionType, types.GenericAlias, np.dtype, torch.dtype, torch.device)
_GETTERS: Final = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_REPR_IS_VALUE: Final = (*_TIMES, *_NUMBERS, *_TYPES, *_GETTERS)
_ITERATORS: Final = (*map(iter, ([], (), range(0))), map(abs, ()), filter(None, ()), zip(), enumerate(()))
_CHANGING: Final = (list, dict, set)
# Functions that return the content of a container or of a number, also of a derived class.
_CONTENTS: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    *((kind, kind) for kind in (str, int, float, complex, bytes, list, tuple, dict, set, frozenset)),
    (bytearray, bytes),
    (array.array, np.asarray),
    (deque, lambda value: ([*value], value.maxlen)),
    (re.Pattern, lambda value: (value.pattern, value.flags)),
    # An iterator may be the source, or a generator expression go over one: it is read once, and no sample tells.
    *((kind, lambda value: value.__reduce_ex__(4)[1:]) for kind in (*_TIMES, *map(type, _ITERATORS))),
)
# Classes of Python whose attributes the user chooses.
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace)
_IS_NAME: Final = re.compile(r"[\w .()]+").fullmatch
# Parts of a function; no variable has such a name.
DEFAULTS: Final = "(defaults)"
KEYWORD_DEFAULTS: Final = "(keyword defaults)"
IGNORE: Final = "__edcache_ignore__"
"""Class attribute: names of attributes that are no parts; of a source also "cfg.lr", a field of what it holds."""
_TOLD: Final = "__edcache_fingerprint__"


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
    return qualified_name(thing) if _is_installed(thing) else name


def _is_installed(thing: Any) -> bool:
    """Return True for a class or a function of Python, of an installed library or of edcache.

    A function is of the file of its code: functools.wraps copies the name of the module.
    """
    if isinstance(thing, types.FunctionType) and thing.__code__.co_filename[0] != "<":
        return is_library(thing.__code__.co_filename)
    return is_of_library(getattr(thing, "__module__", None))


class Described(NamedTuple):
    """Description of a value, as an archive keeps it.

    exact: JSON. None, a bool, an int and a text stand for themselves; any other value is a list with its text, so
        0.5 is ["0.5"] and differs from "0.5".
    asks: digest of the parts that only ask; "" without any, as of `private`.
    private: digest of private attributes of objects, and of all that they hold, which also ask. They may be other ones
        in every process, and so make no path.
    """

    exact: Any
    asks: str = ""
    private: str = ""


class Settings:
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
        # By id(), with the value, so that no other one gets the number.
        self._known: dict[int, tuple[Any, str]] = {}
        self._lowest = _NO_LEVEL  # of the open values that the last one names
        self._asked: list[str] = []
        self._private: list[str] = []
        self._noted = self._asked  # the one of these that attributes are noted in

    def describe(self, value: Any) -> Described:
        """Describe a value; a text longer than `LONG` is cut, with a digest of all."""
        if value is None or type(value) is bool or (type(value) is int and value.bit_length() < 64):
            return Described(value)
        if type(value) is str:
            return Described(shortened(value))
        self._noted = self._asked = []
        self._private = []
        try:
            exact: Any = [shortened(self.text(value))]
        except RecursionError:  # nested too deep
            exact = [name_of(type(value))]
        texts = ("\n".join(sorted(noted)) for noted in (self._asked, self._private))
        return Described(exact, *(digest_of(text) if text else "" for text in texts))

    def text(self, value: Any) -> str:
        """Write the text of a value, and note what asks."""
        kind = type(value)
        if kind is str:
            return self._relative(value) if self._roots else repr(value)
        if kind is int and value.bit_length() > 10_000:  # which Python does not print
            return hex(value)
        if kind in _PLAIN:
            return repr(value)
        if isinstance(value, pathlib.PurePath):
            return f"Path({self._relative(os.fsdecode(value))})"
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:
            self._lowest = min(self._lowest, self._open[id(value)])
            return f"<the value {len(self._open) - self._open[id(value)]} levels above>"
        level, lowest = len(self._open), self._lowest
        self._open[id(value)], self._lowest = level, _NO_LEVEL
        try:
            text = self._compound(value)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001 - of a class that overrides what it is read by: a sample is to show it
            text = name_of(kind)
        finally:
            del self._open[id(value)]
        text = text if len(text) <= _LONGEST else shortened(text)
        if self._lowest >= level:  # it names no open value, so that it has this text everywhere
            self._known[id(value)], self._lowest = (value, text), _NO_LEVEL
        self._lowest = min(self._lowest, lowest)
        return text

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
            items = sorted((self.text(key), self.text(part)) for key, part in [*value.items()])
            return f"{{{', '.join(f'{key}: {part}' for key, part in items)}}}"
        thing = value if isinstance(value, (type, types.FunctionType)) else kind
        self.met.setdefault(id(thing), thing)
        parts = parts_of(value)
        for name, part in sorted(parts.asking.items()):
            self._ask(parts.word, name, part)
        if not parts.exact:
            return parts.word
        exact = sorted(parts.exact.items())
        return f"{parts.word}({', '.join(self._item(name, part) for name, part in exact)})"

    def _ask(self, word: str, name: str, part: Any) -> None:
        outer = self._noted
        self._noted = self._private if name.startswith("_") else outer
        try:
            self._noted.append(f"{word} {self._item(name, part)}")
        finally:
            self._noted = outer

    def _item(self, name: str, part: Any) -> str:
        return f"{name if _IS_NAME(name) else repr(name)}={self.text(part)}"

    def _relative(self, text: str) -> str:
        """Describe a text; a path below a root by the root's name and, in quotes, the rest."""
        for root, name in self._roots.items():
            if text.startswith(root):
                return f"{{{name}}}/{text[len(root) :]!r}"
        return repr(text)

    def _repr(self, values: Any) -> str | None:
        """Write the text of a list of plain values, lists, or dicts of them, by one repr: a million take no loop.

        None if the repr may differ from the text that a loop would write.
        """
        are_dicts = {*map(type, values)} == {dict}
        if are_dicts and {*map(type, _flat(values))} <= {str}:
            kinds = _kinds_in([*_flat(map(dict.values, values))])
        else:
            kinds = _kinds_in(values)
        if not kinds <= _PLAIN:
            return None
        if are_dicts:
            orders = {names: sorted(names, key=self.text) for names in {*map(tuple, values)}}
            values = [{name: part[name] for name in orders[tuple(part)]} for part in values]
        try:
            text = repr(values)
        except ValueError:  # of an int that Python does not print
            return None
        if not self._roots or not any(repr(root)[1:-1] in text for root in self._roots):
            return text
        # Without these each ' opens or closes a text.
        if any(mark in text for mark in ('"', "\\", "//", "b'/")):
            return None
        for root, name in self._roots.items():
            text = text.replace(f"'{root}", f"{{{name}}}/'")
        return text


_flat: Final = itertools.chain.from_iterable


def _kinds_in(values: Sequence[Any]) -> set[type]:
    """Return the types of values, and of the items of lists and tuples among them in the place of these."""
    kinds = {*map(type, values)}
    if held := kinds & {list, tuple}:
        kinds = kinds - held | {*map(type, _flat(value for value in values if type(value) in held))}
    return kinds


# --- parts ---


class Parts(NamedTuple):
    """Parts of a value, which describe it.

    word: name of its class; the whole text of a value without parts, as of a dtype. exact, asking: parts by name; the
    first count in the text, the others only ask. columns: names of parts with one value a sample.
    is_told: `__edcache_fingerprint__` returned the parts. is_content: they are no attributes, but the items of a
    container, or a number.
    """

    word: str
    exact: Mapping[str, Any]
    asking: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    is_told: bool = False
    is_content: bool = False


def parts_of(value: Any) -> Parts:
    """Return the parts of a value that is no plain one.

    A method `__edcache_fingerprint__` returns them, as a dict; its item "columns" lists names of parts with one value
    for each sample. Without one, a class attribute `__edcache_ignore__` names attributes that are no parts.
    """
    kind = type(value)
    if isinstance(value, type):
        return _word(name_of(value))
    if isinstance(value, enum.Enum):
        return _word(f"{kind.__qualname__}.{value.name or repr(value.value)}")
    if kind in _REPR_IS_VALUE or isinstance(value, np.dtype):
        text = repr(value)
        if " at 0x" not in text:  # as of a zone of the user
            return _word(text)
    name = name_of(kind)
    if hasattr(kind, _TOLD):
        return _parts_told(name, getattr(kind, _TOLD)(value))
    if isinstance(value, functools.partial):
        return Parts(name, {"func": value.func, "args": value.args, "keywords": value.keywords}, {})
    # A user's descriptor is a routine to `inspect`, too, and has attributes.
    is_routine = inspect.isroutine(value) and kind.__module__ == "builtins"
    if is_routine or (callable(value) and "__wrapped__" in attributes_of(value)):
        return _parts_of_function(value)
    if isinstance(value, types.GeneratorType):
        has_begun = inspect.getgeneratorstate(value) != inspect.GEN_CREATED
        return Parts(value.__qualname__, {} if has_begun else inspect.getgeneratorlocals(value), {})
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return _parts_of_array(value)
    if isinstance(value, torch.nn.Module):
        return _parts_of_module(value)
    table = _parts_of_table(value)
    if table is None:
        return _parts_of_object(value)
    own = {key: part for key, part in attributes_of(value).items() if key[0] != "_"}  # of a derived class
    return table._replace(exact={**table.exact, **own}, is_content=True)


def _word(text: str) -> Parts:
    return Parts(text, {}, {})


def _parts_told(name: str, answer: Any) -> Parts:
    told = (
        {str(key): part for key, part in answer.items()}
        if isinstance(answer, dict)
        else {f"{_TOLD}()": answer}
    )
    columns = told.pop("columns", ()) if isinstance(told.get("columns"), list | tuple) else ()
    return Parts(name, told, {}, tuple(map(str, columns)), True)


def _parts_of_object(value: Any) -> Parts:
    """Return the content of a container or a number, and attributes: by whose class it is of they count or ask."""
    kind = type(value)
    name, ignored = name_of(kind), getattr(kind, IGNORE, ())
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return Parts(name, dict(zip(kind._fields, value, strict=True)), {})
    content = _content_of(value)
    held = {key: part for key, part in attributes_of(value).items() if key not in ignored}
    public = {key: part for key, part in held.items() if not key.startswith("_")}
    private = {key: part for key, part in held.items() if key not in public and not is_empty(part)}
    is_stored = hasattr(kind, "__len__") and hasattr(kind, "__getitem__")
    is_dataset = (is_stored or isinstance(value, Dataset)) and not isinstance(value, IterableDataset)
    parts = Parts(name, content, public, is_content=bool(content))
    if kind.__module__.startswith("edcache."):
        return parts._replace(exact={**content, **public}, asking={})
    if not is_of_library(kind.__module__) or isinstance(value, _NAMESPACES) or is_dataset:
        return parts._replace(exact={**content, **public}, asking=private)
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        return parts._replace(asking={})  # a logger, a thread, an open file lead to all of the process
    return parts


def _content_of(value: Any) -> dict[str, Any]:
    if hasattr(type(value), "__array_interface__"):  # a picture
        return {"of": np.asarray(value)}
    return next(({"of": read(value)} for kind, read in _CONTENTS if isinstance(value, kind)), {})


def is_empty(value: Any) -> bool:
    """Return True for None and for a container without items, which reading may fill."""
    return value is None or (isinstance(value, (dict, list, set)) and not value)


def _parts_of_function(value: Any) -> Parts:
    """Return owner, defaults and closure; of an object or a library's wrapper the function that it wraps.

    Containers of its closure that its code changes only ask, since one may be a list of calls; so do its attributes.
    """
    kind, owner, held = type(value), getattr(value, "__self__", None), attributes_of(value)
    inner, own = held.get("__wrapped__"), {key: part for key, part in held.items() if key[0] != "_"}
    if owner is not None and not isinstance(owner, types.ModuleType):
        return Parts(getattr(value, "__qualname__", kind.__qualname__), {"of": owner}, {})
    is_function, name = inspect.isfunction(value), name_of(value)
    if inner is not None and not (is_function and not _is_installed(value)):
        return Parts(f"wrapped by {name_of(kind)}", {"function": inner, **({} if is_function else own)}, {})
    if not is_function or ("<" not in name and _is_installed(value)):
        return _word(name)
    closed, touched = outer(value), said(value.__code__).touched
    defaults = {DEFAULTS: value.__defaults__, KEYWORD_DEFAULTS: value.__kwdefaults__}
    asking = {key: part for key, part in closed.items() if type(part) in _CHANGING and key in touched}
    parts = {key: part for key, part in {**defaults, **closed}.items() if key in closed or part}
    exact = {key: part for key, part in parts.items() if key not in asking}
    return Parts(name, exact, asking | {f".{key}": part for key, part in own.items()})


def _parts_of_module(value: torch.nn.Module) -> Parts:
    """Return class, weights and attributes of a module of torch; of a compiled or a parallel one what it wraps."""
    while is_of_library(type(value).__module__):
        names = (name for name in ("_orig_mod", "module") if name in value._modules)
        inner = next((value._modules[name] for name in names), None)
        if inner is None:
            break
        value = inner
    weights = dict[str, Any](value.state_dict())
    weights |= {name: held for name, held in value.named_buffers() if name not in weights}
    blank, exact, asking = vars(torch.nn.Module()), dict[str, Any](), dict[str, Any]()
    order: list[Any] = []
    for name, module in value.named_modules():
        # Freezing makes weights constants. This also adds an attribute `forward`, as the first call does.
        if isinstance(module, torch.jit.ScriptModule) and hasattr(module, "forward"):
            _, constants = module.code_with_constants
            weights |= {f"{name}.{key}": part for key, part in constants.const_mapping.items()}
        is_foreign = is_of_library(type(module).__module__)
        own = {key: part for key, part in attributes_of(module).items() if key not in blank}
        kept = asking if is_foreign else exact
        dot = f"{name}." if name else ""
        kept |= {f"{dot}{key}": part for key, part in own.items() if key[0] != "_"}
        if not is_foreign:
            private = {f"_{dot}{key}": part for key, part in own.items() if key[0] == "_"}
            asking |= {key: part for key, part in private.items() if not is_empty(part)}
        order.append((name, type(module), getattr(module, "training", None)))  # a frozen one has none
    return Parts(name_of(type(value)), {"weights": weights, **exact}, {**asking, "modules": order})


def _parts_of_table(value: Any) -> Parts | None:
    """Return the content of a table or a column of pandas, polars or Arrow; None of anything else."""
    name = name_of(type(value))
    if library_of(value) == "datasets" and hasattr(value, "_fingerprint"):
        # It changes with each row, and may be another one for the same functions in a notebook and in a script.
        return Parts(name, {}, {"fingerprint": value._fingerprint})
    return Parts(name, content_of(value), {}) if is_table(value) else None


def _parts_of_array(value: Any) -> Parts:
    """Return dtype, shape and a digest of the bytes, or of their sums, of an array or a tensor; and its attributes."""
    kind = type(value)
    if isinstance(value, np.ma.MaskedArray):
        return Parts(
            "masked", {"of": value.data, "mask": np.ma.getmaskarray(value), "fill": value.fill_value}, {}
        )
    # The attributes of a memmap say where its file lies.
    public = {} if kind is np.memmap else {k: v for k, v in attributes_of(value).items() if k[0] != "_"}
    shape = "nested" if getattr(value, "is_nested", False) else list(value.shape)
    header = f"{'ndarray' if kind is np.memmap else kind.__name__}({value.dtype}{shape}"
    data: Any = None
    parts: list[Any] = []
    if isinstance(value, torch.Tensor):
        data, parts = _data_of_tensor(value)
    elif value.dtype.names:  # field by field: bytes between them are padding
        parts = [np.asarray(value)[field] for field in value.dtype.names]
    elif isinstance(value, np.generic):
        return _word(f"{value.dtype}({value.item()!r})")
    elif value.dtype.hasobject or value.dtype.char in "gG":  # a long double is padded too
        parts = [value.reshape(-1).tolist()]
    else:
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    word = f"{header})"
    if data is not None:
        # Sources are compared at every open, and sums of 600 MB take 30 ms where a SHA-256 takes 340. They notice
        # change, and are no defence: bytes that change by accident keep the sum of a block in one of 4 billion cases,
        # and 32 bits beside each other never do; but who wants to makes other bytes with the same sums.
        sums = block_crc32s(data.data)
        word = f"{header}, digest:{digest_of(memoryview(sums) if sums else data.data)})"
    return Parts(word, {f"of {place}": part for place, part in enumerate(parts)} | public, {})


def _data_of_tensor(value: torch.Tensor) -> tuple[Any, list[Any]]:
    """Return the bytes of a tensor as an array; else None and its parts. Raises: as torch, it has no data."""
    if value.is_nested:
        return None, [str(value.layout), *value.unbind()]
    if value.is_quantized:
        return None, [str(value.qscheme()), value.int_repr(), value.dequantize()]
    if value.layout != torch.strided:
        pairs = value.detach().cpu().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        return None, [str(value.layout), pairs.indices(), pairs.values()]
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # The stride of a single value may be any number, and must be 1 for a view.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy(), []
