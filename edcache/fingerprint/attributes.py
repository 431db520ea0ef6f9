"""What tells a source from another of its class: a short text for each of its attributes.

An attribute is described by its value, an object that it holds (a wrapped dataset, a transform) by its own
attributes: "dataset.split", "transform.transforms[1].size". What has no value that another process would have
too counts as None: an open file, a lock, a random generator.

nan is equal to nan. -0.0 is not 0.0, True is not 1, and a numpy scalar is not the number of Python. A path is
equal to its text. A file below a path that is an attribute too is known by its place below that path.

What is large costs little, and is known by its size and by elements that lie evenly spread in it: 4,096 of
a list of numbers or texts, 1,024 of other containers and arrays.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import json
import math
import os
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from edcache.fingerprint.held import NO_ACCESS, Fields, fields_of, is_installed
from edcache.fingerprint.state import Access
from edcache.fingerprint.values import (
    NoDescription,
    array_of,
    bytes_digest,
    code_digest,
    digest_of,
    is_array,
    is_readable,
    qualified_name,
    rendered,
    shortened,
    source_digest,
)

_NBYTES: Final = 2_400
"""Of all attributes in the head of an archive, which is one page."""
DETAILS: Final = ((4, 300), (3, 120), (2, 80), (1, 80), (1, 32))
"""How deep each attribute of an object has a text, and the longest text; the first that fits is taken."""
_PLAIN: Final = {bool, bytes, complex, float, int, str, type(None)}
_PICKS, _WHOLE_NBYTES, _MOST_NAMES, _EXPANDED = 1_024, 1 << 16, 2_000, 16
NO_VALUE: Final = "None"


def attributes_of(
    source: Any, lengths: tuple[int, int] | None = None, detail: int | None = None
) -> dict[str, Any]:
    """The attributes of a source, as they stand in a fingerprint.

    Args:
        lengths: samples of the source, and those that it is to be described with: what is as long as the
            source is cut, so that one that has grown is as the one that it was.
        detail: one of `DETAILS`; the first that fits by default.
    Returns:
        "attributes", a JSON value by name; "detail", which one was taken; "source", a digest of the code of
        its classes and functions that are no installed library's, None where there is none to read.
    """
    description = _Description(source, lengths)
    details = range(len(DETAILS)) if detail is None else [detail if detail in range(len(DETAILS)) else 0]
    for detail in details:
        attributes = description.attributes(*DETAILS[detail])
        if _nbytes(attributes) <= _NBYTES:
            break
    return {"attributes": _fitted(attributes), "detail": detail, "source": description.source_digest()}


def code_of(source: Any) -> str | None:
    """What `attributes_of` has as "source"."""
    return _Description(source, None).source_digest()


def _nbytes(attributes: Mapping[str, Any]) -> int:
    return len(json.dumps(attributes, indent=3))


def _fitted(attributes: dict[str, Any]) -> dict[str, Any]:
    """As many attributes as fit, and one digest of the others."""
    attributes = {shortened(name, 80): value for name, value in attributes.items()}
    others: dict[str, Any] = {}
    while _nbytes(attributes) > _NBYTES:
        name, value = attributes.popitem()
        others[name] = value
    if others:
        attributes[f"{len(others):,} others"] = [f"sha256:{digest_of(json.dumps(others).encode())}"]
    return attributes


class _Kind(str):
    """The name of the class of what an attribute holds."""


class _Description:
    """A source on its way to texts."""

    def __init__(self, source: Any, lengths: tuple[int, int] | None) -> None:
        self._source = source
        self._lengths = lengths
        self._open: set[int] = set()  # objects that hold what is being described
        self._code: dict[str, Any] = {}
        self._texts: dict[int, tuple[Any, str]] = {}  # by id(), with the value, so that it stays the only one
        self._roots: dict[str, str] = {}
        for name, value in self._leaves(DETAILS[0][0]).items():
            if isinstance(value, (str, os.PathLike)) and os.path.isabs(path := os.fspath(value)):
                self._roots.setdefault(os.path.join(path, ""), name)

    def attributes(self, depth: int, most: int) -> dict[str, Any]:
        """A JSON value by name: the first `depth` levels of objects have names of their own."""
        return {name: self._value(value, most) for name, value in self._leaves(depth).items()}

    def source_digest(self) -> str | None:
        """A digest of the code that the source is of."""
        self._note(type(self._source))
        digests = [(name, source_digest(thing)) for name, thing in sorted(self._code.items())]
        known = [f"{name} {digest}" for name, digest in digests if digest]
        return digest_of("\n".join(known).encode()) if known else None

    def _note(self, thing: Any) -> None:
        for part in inspect.getmro(thing) if isinstance(thing, type) else (thing,):
            if not is_installed(part):
                self._code[qualified_name(part)] = part

    # --- names ---

    def _leaves(self, depth: int) -> dict[str, Any]:
        fields = fields_of(self._source)
        if fields is None:
            return {"content": self._source}
        leaves: dict[str, Any] = {}
        fields.values.pop("in_memory_keys", None)  # says which labels are wanted
        self._open.add(id(self._source))
        for name, value in fields.values.items():
            self._expand(name, value, fields.access.within(name), depth, leaves)
        self._open.clear()
        return leaves

    def _expand(self, name: str, value: Any, access: Access, depth: int, leaves: dict[str, Any]) -> None:
        leaves[name] = _Kind("...") if id(value) in self._open else value
        if depth <= 1 or id(value) in self._open or len(leaves) > _MOST_NAMES:
            return
        fields = fields_of(value, access)
        held: list[tuple[str, Any, Access]] = []
        if fields is not None:
            self._note(type(value))
            leaves[name] = _Kind(qualified_name(type(value)))
            held = [(f"{name}.{key}", part, fields.access.within(key)) for key, part in fields.values.items()]
        elif isinstance(value, (dict, list, tuple)) and len(value) <= _EXPANDED:
            pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
            if any(fields_of(part) is not None for _, part in pairs):
                leaves[name] = _Kind(f"{type(value).__name__} of {len(value)}")
                held = [(f"{name}[{key!r}]", part, NO_ACCESS) for key, part in pairs]
        self._open.add(id(value))
        for key, part, more in held:
            self._expand(key, part, more, depth - 1, leaves)
        self._open.discard(id(value))

    # --- values ---

    def _value(self, value: Any, most: int) -> Any:
        value = self._cut(value)
        if value is None or type(value) is bool or (type(value) is int and value.bit_length() < 256):
            return value
        if isinstance(value, _Kind):
            return [shortened(value, most)]
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            return shortened(str(value), most)
        if isinstance(value, os.PathLike):
            return shortened(str(os.fspath(value)), most)
        if id(value) not in self._texts:
            self._texts[id(value)] = value, self._text(value, _PICKS)
        text = self._texts[id(value)][1]
        return None if text == NO_VALUE else [shortened(text, most)]

    def _cut(self, value: Any) -> Any:
        """The value as it would be where the source were as long as it is to be described."""
        if self._lengths is None:
            return value
        now, then = self._lengths
        if type(value) is int and value == now:
            return then
        if not isinstance(value, (dict, list, tuple, range)) and not is_array(value):
            return value
        if (is_array(value) and not value.ndim) or len(value) != now:
            return value
        return dict(itertools.islice(value.items(), then)) if isinstance(value, dict) else value[:then]

    def _text(self, value: Any, limit: int, access: Access = NO_ACCESS) -> str:
        """A text for a value.

        Args:
            access: what reading of the object that holds it does with it.
            limit: about as many of the values in it; with 0 a container or an array is known by its size.
        """
        if type(value) in _PLAIN:
            return self._plain_text(value)
        if isinstance(value, os.PathLike):
            return self._plain_text(str(os.fspath(value)))
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return f"{value.dtype}({value.item()!r})"
        if is_array(value):
            return self._array_text(value, limit)
        if id(value) in self._open:
            return "..."
        self._open.add(id(value))
        try:
            if inspect.isroutine(value) or (callable(value) and hasattr(value, "__wrapped__")):
                return self._function_text(inspect.unwrap(value), limit)
            fields = fields_of(value, access)
            if fields is not None:
                return self._object_text(type(value), fields, limit)
            if isinstance(value, (dict, list, tuple, set, frozenset)):
                return self._container_text(value, limit)
            return self._other_text(value)
        finally:
            self._open.discard(id(value))

    def _plain_text(self, value: Any) -> str:
        if type(value) is int and value.bit_length() >= 256:
            return hex(value)
        if type(value) not in (bytes, str):
            return repr(value)
        step = -(-len(value) // _WHOLE_NBYTES) or 1
        text = repr(self._below_root(value[::step]) if type(value) is str else value[::step])
        return text if step == 1 else f"{type(value).__name__} of {len(value)}: {shortened(text)}"

    def _below_root(self, text: str) -> str:
        for root, name in self._roots.items():
            if text.startswith(root) and len(text) > len(root):
                return f"{{{name}}}/{text[len(root) :]}"
        return text

    def _object_text(self, cls: type, fields: Fields, limit: int) -> str:
        self._note(cls)
        share = limit // (len(fields.values) or 1)
        picked = itertools.islice(fields.values.items(), max(limit, _EXPANDED) if limit else 0)
        texts = (
            f"{key}={self._text(self._cut(part), share, fields.access.within(key))}" for key, part in picked
        )
        return f"{qualified_name(cls)}({', '.join(texts)})"

    def _container_text(self, value: Any, limit: int) -> str:
        count, kind = len(value), type(value).__name__
        if not limit or (isinstance(value, (set, frozenset)) and count > 4 * _PICKS):
            return f"{kind} of {count}"
        name = "" if type(value) in (dict, list, tuple) else kind
        if isinstance(value, (set, frozenset)):
            return f"{name}({', '.join(sorted(self._text(part, 0) for part in value))})"
        most = max(4, limit)
        if isinstance(value, dict):
            picked = list(itertools.islice(value.items(), 0, None, -(-count // most) or 1))
            texts = [f"{self._text(key, 0)}: {self._text(part, limit // count)}" for key, part in picked]
            marks = "{}"
        else:
            picked = _spread(value, 4 * most)
            if not {type(part) for part in picked} <= _PLAIN:
                picked = _spread(value, most)
            texts = [self._text(part, limit // count) for part in picked]
            marks = "[]" if isinstance(value, list) else "()"
        shown = f"{name}{marks[0]}{', '.join(texts)}{marks[1]}"
        return shown if len(picked) == count else f"{count} of which {shown}"

    def _array_text(self, value: Any, limit: int) -> str:
        shape, kind = tuple(value.shape), type(value).__name__
        size = math.prod(shape)
        header = f"{kind}({value.dtype}{list(shape)}"
        if isinstance(value, np.memmap) or not limit or not size or not is_readable(value):
            return f"{header})"
        if size * value.itemsize > (_WHOLE_NBYTES if limit == _PICKS else 64 * limit):
            ratio = (size / (4 * limit)) ** (1 / sum(count > 1 for count in shape))
            value = value[tuple(slice(None, None, min(count, math.ceil(ratio)) or 1) for count in shape)]
        array = array_of(value)
        assert array is not None
        if array.dtype.hasobject:
            return f"{header}, {self._container_text(array.reshape(-1).tolist(), limit)})"
        return f"{header}, sha256:{bytes_digest(array)})"

    def _function_text(self, value: Any, limit: int) -> str:
        name = qualified_name(value)
        if inspect.ismethod(value):
            return f"{name} of {self._text(value.__self__, limit)}"
        if not inspect.isfunction(value):
            return name
        if "<lambda>" not in name and "<locals>" not in name:
            self._note(value)
            return name
        outer = [getattr(cell, "cell_contents", None) for cell in value.__closure__ or ()]
        inner = self._container_text([value.__defaults__, value.__kwdefaults__, *outer], limit)
        return f"{name} code:{code_digest(value)} {inner}"

    def _other_text(self, value: Any) -> str:
        if isinstance(value, type):
            self._note(value)
            return qualified_name(value)
        if hasattr(type(value), "__next__"):
            return NO_VALUE
        try:
            text = rendered(value)
        except NoDescription:
            return NO_VALUE
        return NO_VALUE if text.startswith("<") else text


def _spread(values: Any, most: int) -> Any:
    """As many elements of a list or a tuple, from the first to the last."""
    count = len(values)
    return values if count <= most else [values[i * (count - 1) // (most - 1)] for i in range(most)]
