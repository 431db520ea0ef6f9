"""A text for a value, the same in every process; different values have different ones.

nan is equal to nan. -0.0 is not 0.0, True is not 1, and a numpy scalar is not the number of Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import os
import re
import sys
import types
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from edcache.writer import fingerprint_code as code

LONG: Final = 300
NO_VALUE: Final = "None"
OWN: Final = "__edcache_fingerprint__()"
_SHOWN: Final = 80
_MOST_DEPTH: Final = 20
_PLAIN: Final = {bool, bytes, complex, float, int, str, type(None)}
PICKS: Final = 1_024
_WHOLE_NBYTES: Final = 1 << 16
EXPANDED: Final = 16
_NO_OBJECT: Final = (
    *(*code.REPR_IS_VALUE, type, types.ModuleType, enum.Enum, os.PathLike, np.ndarray, np.generic),
    *(list, dict, set, frozenset, types.MethodType),
)
# Classes of libraries that have one of them show a part of what they hold: tables, arrays, fitted models.
_DATA: Final = ("get_params", "num_rows", "shape")
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace, functools.partial)


class NoDescription(Exception):
    """A value has no text that is the same in every process."""


def describe(value: Any) -> Any:
    """A JSON value that stands for `value` in every process; NoDescription where there is none."""
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        return shortened(value)
    return [shortened(Texts(exact=True).text(value))]  # a list, so that 0.5 and "0.5" differ


def shortened(text: str, most: int = LONG) -> str:
    """The text, where it has at most so many characters; else its beginning and a digest of it."""
    if len(text) <= most:
        return text
    return f"{text[: min(most // 4, _SHOWN)]}... sha256:{code.digest_of(text)}"


class Fields(NamedTuple):
    """The attributes of an object by name, and what reading does with them.

    is_stated: whether its method `__edcache_fingerprint__` states them; then each part of them counts.
    """

    values: dict[str, Any]
    access: code.Access = code.NO_ACCESS
    is_stated: bool = False


def fields_of(value: Any, access: code.Access = code.NO_ACCESS, *, exact: bool = False) -> Fields | None:
    """The attributes of an object that tell it from another, by name; None for what is no such object.

    An object is what is read or called: a dataset, a transform, a dataclass, anything whose class is not
    of an installed library. Attributes that reading changes are not among them.

    access: what reading of whoever holds the object does with it.
    exact: only of what says all that it is: a dataclass, a named tuple, an object with a description.
    """
    cls = type(value)
    if hasattr(cls, "__edcache_fingerprint__"):
        answer = cls.__edcache_fingerprint__(value)
        stated = dict(answer) if isinstance(answer, Mapping) and not exact else {OWN: answer}
        return Fields(stated, is_stated=True)
    if any(kin.__module__.startswith("datasets.") for kin in cls.__mro__) and hasattr(value, "_fingerprint"):
        # Of a dataset of Hugging Face: it changes with every operation, and its attributes say less.
        return Fields({"_fingerprint": value._fingerprint})
    if cls.__module__.partition(".")[0] == "pandas" and hasattr(value, "iloc"):
        rows = value.iloc[:: 1 if exact else max(1, len(value) // 256)].to_numpy()
        parts = {"columns": list(getattr(value, "columns", ())), "rows": rows}
        if exact:
            parts["dtypes"] = [str(one) for one in np.atleast_1d(value.dtypes)]
            parts["index"] = value.index.to_numpy()
        return Fields(parts)
    if exact:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return Fields({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
        return Fields(value._asdict()) if isinstance(value, tuple) and hasattr(value, "_asdict") else None
    if isinstance(value, types.GeneratorType) and inspect.getgeneratorstate(value) == inspect.GEN_CREATED:
        return Fields(dict(inspect.getgeneratorlocals(value)))  # its arguments
    if isinstance(value, _NO_OBJECT) or inspect.isroutine(value) or _inherits(value, "torch.Tensor"):
        return None
    if isinstance(value, tuple):
        names = getattr(cls, "_fields", None)
        return Fields(dict(zip(names, value, strict=False))) if names else None
    if isinstance(value, functools.partial):
        return Fields({"func": value.func, "args": value.args, "keywords": value.keywords})
    if code.is_installed(cls) and not isinstance(value, _NAMESPACES):
        is_iterator = hasattr(cls, "__next__")  # such as an open file
        if is_iterator or not (callable(value) or hasattr(cls, "__getitem__") or hasattr(cls, "__iter__")):
            return None
    fields = _variables(value)
    if fields is None:
        return None
    access = code.access_by_reading(cls, access)
    return Fields({name: held for name, held in fields.items() if (name,) not in access.changed}, access)


def _variables(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, in slots too; None for one of C, which has none."""
    try:
        fields = dict(vars(value))
    except Exception:  # noqa: BLE001 - a property of the user's class, or none
        fields = None
    for kin in type(value).__mro__:
        for name, slot in vars(kin).items():
            if isinstance(slot, types.MemberDescriptorType) and "__slots__" in vars(kin):
                fields = fields or {}
                with suppress(AttributeError):  # nothing was assigned yet
                    fields[name] = slot.__get__(value)
    if fields is None or not _inherits(value, "torch.nn.modules.module.Module"):
        return fields
    blank = vars(sys.modules["torch"].nn.Module())
    contents = [fields.pop(name, {}) for name in ("_parameters", "_buffers", "_modules")]
    own = {name: held for name, held in fields.items() if name not in blank or name == "training"}
    return functools.reduce(lambda known, more: {**known, **more}, contents, own)


def _inherits(value: Any, name: str) -> bool:
    """The same as isinstance(), for a class of a library that may not be imported."""
    return any(f"{kin.__module__}.{kin.__qualname__}" == name for kin in type(value).__mro__)


class Texts:
    """Texts of values.

    With `exact` every part counts, and a value without a text is an error. Without, what has no value that
    another process would have too counts as None: an open file, a lock, a random generator; a path is equal
    to its text; and what is large is known by its size and by elements that lie evenly spread in it. Where
    `lengths` are given, what has the first is cut to the second: a source that has grown is as it was.

    Attributes:
        code: the classes and functions that were met and are no installed library's, by name.
        made: the functions that were met and have no name of their own in a module.
        roots: names of folders; what lies below one is known by its place there.
    """

    def __init__(self, *, exact: bool = False, lengths: tuple[int, int] | None = None) -> None:
        self.code: dict[str, Any] = {}
        self.made: list[Any] = []
        self.roots: dict[str, str] = {}
        self._exact = exact
        self._lengths = lengths
        self._open: set[int] = set()  # objects that hold what is being described

    def text(self, value: Any, limit: int = PICKS, access: code.Access = code.NO_ACCESS) -> str:
        """A text for a value with about `limit` of the values in it; 0 leaves a container its size.

        access: what reading of the object that holds it does with it.
        """
        if self._exact:
            limit = sys.maxsize
        if type(value) in _PLAIN:
            return self._plain(value)
        if isinstance(value, os.PathLike):
            path = str(os.fspath(value))
            return f"Path({path!r})" if self._exact else self._plain(path)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return f"{value.dtype}({value.item()!r})"
        if _is_array(value):
            return self._array(value, limit)
        if self._exact and (id(value) in self._open or len(self._open) > _MOST_DEPTH):
            raise NoDescription(f"a structure nested more than {_MOST_DEPTH} deep")
        if id(value) in self._open:
            return "..."
        self._open.add(id(value))
        try:
            if inspect.isroutine(value) or (callable(value) and hasattr(value, "__wrapped__")):
                return self._function(value, limit)
            fields = fields_of(value, access, exact=self._exact)
            if fields is not None:
                return self._object(type(value), fields, limit)
            if isinstance(value, (dict, list, tuple, set, frozenset, deque)):
                return self._container(value, limit)
            return self._other(value)
        finally:
            self._open.discard(id(value))

    def note(self, thing: Any) -> None:
        """Remember a function, or a class and its bases, in `code`."""
        for part in inspect.getmro(thing) if isinstance(thing, type) else (thing,):
            if not code.is_installed(part):
                self.code[code.qualified_name(part)] = part

    def cut(self, value: Any) -> Any:
        """The value as it would be where the source were as long as it is to be described."""
        if self._lengths is None:
            return value
        now, then = self._lengths
        if type(value) is int and value == now:
            return then
        if not has_parts(value, now):
            return value
        return dict(itertools.islice(value.items(), then)) if isinstance(value, dict) else value[:then]

    def _place(self, text: str) -> str:
        """A text that may be a path, as it is compared."""
        for root, name in self.roots.items():
            if text.startswith(root) and len(text) > len(root):
                return f"{{{name}}}/{text[len(root) :]}"
        return text

    def _plain(self, value: Any) -> str:
        if self._exact or type(value) not in (bytes, int, str):
            return repr(value)
        if type(value) is int:
            return hex(value) if value.bit_length() >= 256 else repr(value)
        step = -(-len(value) // _WHOLE_NBYTES) or 1
        text = repr(self._place(value[::step]) if type(value) is str else value[::step])
        return text if step == 1 else f"{type(value).__name__} of {len(value)}: {shortened(text)}"

    def _object(self, cls: type, fields: Fields, limit: int) -> str:
        self.note(cls)
        name = cls.__qualname__ if self._exact else code.qualified_name(cls)
        limit = sys.maxsize if fields.is_stated else limit
        share = limit // (len(fields.values) or 1)
        picked = itertools.islice(fields.values.items(), max(limit, EXPANDED) if limit else 0)
        texts = (
            ("" if key == OWN else f"{key}=") + self.text(self.cut(part), share, fields.access.within(key))
            for key, part in picked
        )
        return f"{name}({', '.join(texts)})"

    def _container(self, value: Any, limit: int) -> str:
        count, kind = len(value), type(value).__name__
        is_set = isinstance(value, (set, frozenset))
        if not limit or (is_set and count > max(limit, 4 * PICKS)):
            return f"{kind} of {count}"
        if is_set:
            return f"{kind}({', '.join(sorted(self.text(part, 0) for part in value))})"
        most = max(4, limit)
        if isinstance(value, dict):
            picked = list(itertools.islice(value.items(), 0, None, -(-count // most) or 1))
            texts = [f"{self.text(key, 0)}: {self.text(part, limit // count)}" for key, part in picked]
            marks = "{}"
        else:
            picked = _spread(value, 4 * most)
            if not {type(part) for part in picked} <= _PLAIN:
                picked = _spread(value, most)
            texts = [self.text(part, limit // count) for part in picked]
            marks = "[]" if isinstance(value, list) else "()"
        name = "" if type(value) in (dict, list, tuple) else kind
        comma = "," if marks == "()" and count == 1 else ""
        shown = f"{name}{marks[0]}{', '.join(texts)}{comma}{marks[1]}"
        return shown if len(picked) == count else f"{count} of which {shown}"

    def _array(self, value: Any, limit: int) -> str:
        if type(value).__module__.startswith("numpy.ma"):  # which is imported by its name
            data, mask = value.data, np.ma.getmaskarray(value)
            return f"masked({self._array(data, limit)}, {self._array(mask, limit)})"
        if self._exact and not isinstance(value, np.ndarray):
            value = value if value.is_meta else value.detach().cpu()
            if not _is_in_memory(value):
                raise NoDescription(
                    f"{type(value).__name__}({value.dtype}, {value.layout}) on {value.device}"
                )
        shape, size = tuple(value.shape), math.prod(value.shape)
        header = f"{type(value).__name__}({value.dtype}{list(shape)}"
        if not self._exact:
            if isinstance(value, np.memmap) or not limit or not size or not _is_in_memory(value):
                return f"{header})"
            if size * value.itemsize > (_WHOLE_NBYTES if limit == PICKS else 64 * limit):
                ratio = (size / (4 * limit)) ** (1 / sum(count > 1 for count in shape))
                value = value[tuple(slice(None, None, min(count, math.ceil(ratio)) or 1) for count in shape)]
        if not isinstance(value, np.ndarray):
            # A tensor: its bytes. The stride of a single value may be any number, and must be 1 for a view.
            flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            flat = flat.as_strided((value.numel(),), (1,))
            value = flat.view(sys.modules["torch"].uint8).numpy()
        if value.dtype.hasobject:
            return f"{header}, {self._container(value.reshape(-1).tolist(), limit)})"
        return f"{header}, sha256:{code.digest_of(np.ascontiguousarray(value).tobytes())})"

    def _function(self, value: Any, limit: int) -> str:
        if inspect.ismethod(value):
            return f"{code.qualified_name(value)} of {self.text(value.__self__, limit)}"
        value = inspect.unwrap(value)
        name = code.qualified_name(value)
        if not inspect.isfunction(value):
            return name
        if "<lambda>" not in name and "<locals>" not in name:
            self.note(value)
            return name
        self.made.append(value)
        outer = [getattr(cell, "cell_contents", None) for cell in value.__closure__ or ()]
        if self._exact and (outer or not code.has_source(value)):
            raise NoDescription(f"{name}, a function made at run time,")
        inner = self._container([value.__defaults__, value.__kwdefaults__, *outer], limit)
        return f"{name} code:{code.code_digest(value)} {inner}"

    def _other(self, value: Any) -> str:
        if isinstance(value, type):
            if self._exact and "<locals>" in value.__qualname__:
                if (digest := code.source_digest(value)) is None:
                    raise NoDescription(f"{code.qualified_name(value)}, a class made at run time,")
                return f"{code.qualified_name(value)} code:{digest}"
            self.note(value)
            return code.qualified_name(value)
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, re.Pattern):
            return f"re.compile({value.pattern!r}, {value.flags})"
        if not self._exact and hasattr(type(value), "__next__"):
            return NO_VALUE
        cls = type(value)
        is_table = code.is_installed(cls) and any(hasattr(cls, name) for name in _DATA)
        if self._exact and (is_table or hasattr(cls, "state_dict")) and not isinstance(value, np.dtype):
            raise NoDescription(f"{code.qualified_name(cls)}, whose repr leaves data out,")
        text = repr(value)
        is_address = (text.startswith("<") and " object at " in text) or " at 0x" in text
        if self._exact and is_address:
            raise NoDescription(text)
        return NO_VALUE if not self._exact and (is_address or text.startswith("<")) else text


def has_parts(value: Any, count: int) -> bool:
    """True if a value has so many parts, of which the first few are a value too."""
    if not isinstance(value, (dict, list, tuple, range)) and not (_is_array(value) and value.ndim):
        return False
    return len(value) == count


def _is_array(value: Any) -> bool:
    """True if this is an array of numpy or a tensor."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def _is_in_memory(value: Any) -> bool:
    """True if the values of an array or a tensor lie in this machine's memory, one after another."""
    if isinstance(value, np.ndarray):
        return True
    is_plain = str(value.layout) == "torch.strided" and not value.is_quantized and not value.is_nested
    return is_plain and value.device.type == "cpu"


def _spread(values: Any, most: int) -> Any:
    """As many elements of a list or a tuple, from the first to the last."""
    count = len(values)
    return values if count <= most else [values[i * (count - 1) // (most - 1)] for i in range(most)]
