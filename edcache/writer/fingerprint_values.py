"""A text for a value, the same in every process; different values have different ones.

nan is equal to nan. -0.0 is not 0.0, True is not 1, and a numpy scalar is not the number of Python.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import math
import os
import sys
from typing import Any, Final

import numpy as np

from edcache.writer.fingerprint_access import Access
from edcache.writer.fingerprint_code import (
    code_digest,
    digest_of,
    has_source,
    is_installed,
    qualified_name,
    source_digest,
)
from edcache.writer.fingerprint_fields import NO_ACCESS, OWN, Fields, exact_fields, fields_of

LONG: Final = 300
_SHOWN: Final = 80
_MOST_DEPTH: Final = 20
_ALL: Final = sys.maxsize
_PLAIN: Final = {bool, bytes, complex, float, int, str, type(None)}
PICKS: Final = 1_024
_WHOLE_NBYTES: Final = 1 << 16
_EXPANDED: Final = 16
NO_VALUE: Final = "None"


class NoDescription(Exception):
    """A value has no text that is the same in every process."""


def describe(value: Any) -> Any:
    """A JSON value that stands for `value` in every process; different values have different ones.

    None, bool, int and str stand for themselves. Everything else is a list of one text, so that 0.5 and
    "0.5" differ; long texts end in a digest.

    Raises:
        NoDescription: there is none.
    """
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        return shortened(value)
    return [shortened(Texts(exact=True).text(value))]


def shortened(text: str, most: int = LONG) -> str:
    """The text, where it has at most so many characters; else its beginning and a digest of it."""
    if len(text) <= most:
        return text
    return f"{text[: min(most // 4, _SHOWN)]}... sha256:{digest_of(text)}"


class Texts:
    """Texts of values.

    With `exact` every part counts, and a value without a text is an error. Without, what has no value that
    another process would have too counts as None: an open file, a lock, a random generator; a path is equal
    to its text; and what is large is known by its size and by elements that lie evenly spread in it: 4,096
    of a list of numbers or texts, 1,024 of other containers and arrays.

    Attributes:
        code: the classes and functions that were met and are no installed library's, by name.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self.code: dict[str, Any] = {}
        self._exact = exact
        self._open: set[int] = set()  # objects that hold what is being described

    def text(self, value: Any, limit: int = PICKS, access: Access = NO_ACCESS) -> str:
        """A text for a value.

        Args:
            limit: about as many of the values in it, unless exact; with 0 a container is known by its size.
            access: what reading of the object that holds it does with it.
        Raises:
            NoDescription: there is none; only where exact.
        """
        if self._exact:
            limit = _ALL
        if type(value) in _PLAIN:
            return self._plain(value)
        if isinstance(value, os.PathLike):
            path = str(os.fspath(value))
            return f"Path({path!r})" if self._exact else self._plain(path)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return f"{value.dtype}({value.item()!r})"
        if is_array(value):
            return self._array(value, limit)
        if self._exact and (id(value) in self._open or len(self._open) > _MOST_DEPTH):
            raise NoDescription(f"a structure nested more than {_MOST_DEPTH} deep")
        if id(value) in self._open:
            return "..."
        self._open.add(id(value))
        try:
            if inspect.isroutine(value) or (callable(value) and hasattr(value, "__wrapped__")):
                return self._function(value, limit)
            fields = exact_fields(value) if self._exact else fields_of(value, access)
            if fields is not None:
                return self._object(type(value), fields, limit)
            if isinstance(value, (dict, list, tuple, set, frozenset)):
                return self._container(value, limit)
            return self._other(value)
        finally:
            self._open.discard(id(value))

    def note(self, thing: Any) -> None:
        """Remember a function, or a class and its bases, in `code`."""
        for part in inspect.getmro(thing) if isinstance(thing, type) else (thing,):
            if not is_installed(part):
                self.code[qualified_name(part)] = part

    def _cut(self, value: Any) -> Any:
        """The part of an attribute that counts."""
        return value

    def _place(self, text: str) -> str:
        """A text that may be a path, as it is compared."""
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
        name = cls.__qualname__ if self._exact else qualified_name(cls)
        share = limit // (len(fields.values) or 1)
        picked = itertools.islice(fields.values.items(), max(limit, _EXPANDED) if limit else 0)
        texts = (
            ("" if key == OWN else f"{key}=") + self.text(self._cut(part), share, fields.access.within(key))
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
            flat = value.detach().cpu().contiguous().as_strided((value.numel(),), (1,))
            value = flat.view(sys.modules["torch"].uint8).numpy()
        if value.dtype.hasobject:
            return f"{header}, {self._container(value.reshape(-1).tolist(), limit)})"
        return f"{header}, sha256:{digest_of(np.ascontiguousarray(value).tobytes())})"

    def _function(self, value: Any, limit: int) -> str:
        if inspect.ismethod(value):
            return f"{qualified_name(value)} of {self.text(value.__self__, limit)}"
        value = inspect.unwrap(value)
        name = qualified_name(value)
        if not inspect.isfunction(value):
            return name
        if "<lambda>" not in name and "<locals>" not in name:
            self.note(value)
            return name
        outer = [getattr(cell, "cell_contents", None) for cell in value.__closure__ or ()]
        if self._exact and (outer or not has_source(value)):
            raise NoDescription(f"{name}, a function made at run time,")
        inner = self._container([value.__defaults__, value.__kwdefaults__, *outer], limit)
        return f"{name} code:{code_digest(value)} {inner}"

    def _other(self, value: Any) -> str:
        if isinstance(value, type):
            if self._exact and "<locals>" in value.__qualname__:
                if (digest := source_digest(value)) is None:
                    raise NoDescription(f"{qualified_name(value)}, a class made at run time,")
                return f"{qualified_name(value)} code:{digest}"
            self.note(value)
            return qualified_name(value)
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if not self._exact and hasattr(type(value), "__next__"):
            return NO_VALUE
        text = repr(value)
        is_address = (text.startswith("<") and " object at " in text) or " at 0x" in text
        if self._exact and is_address:
            raise NoDescription(text)
        return NO_VALUE if not self._exact and (is_address or text.startswith("<")) else text


def is_array(value: Any) -> bool:
    """Whether this is an array of numpy or a tensor."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def _is_in_memory(value: Any) -> bool:
    """Whether the values of an array or a tensor lie in this machine's memory, one after another."""
    if isinstance(value, np.ndarray):
        return True
    return str(value.layout) == "torch.strided" and value.device.type == "cpu" and not value.is_quantized


def _spread(values: Any, most: int) -> Any:
    """As many elements of a list or a tuple, from the first to the last."""
    count = len(values)
    return values if count <= most else [values[i * (count - 1) // (most - 1)] for i in range(most)]
