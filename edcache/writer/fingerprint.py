"""What tells a source from another of its class: a short text for each of its attributes.

An attribute is described by its value, an object that it holds (a wrapped dataset, a transform) by its own
attributes: "dataset.split", "transform.transforms[1].size". A file below a path that is an attribute too is
known by its place below that path.
"""

from __future__ import annotations

import enum
import itertools
import json
import os
from typing import Any, Final

from edcache.writer.fingerprint_access import Access
from edcache.writer.fingerprint_code import digest_of, qualified_name, source_digest
from edcache.writer.fingerprint_fields import NO_ACCESS, fields_of
from edcache.writer.fingerprint_values import NO_VALUE, Texts, is_array, shortened

_NBYTES: Final = 2_400
"""Of all attributes in the head of an archive, which is one page."""
_DETAILS: Final = ((4, 300), (3, 120), (2, 80), (1, 80), (1, 32))
"""How deep each attribute of an object has a text, and the longest text; the first that fits is taken."""
_MOST_NAMES: Final = 2_000
_EXPANDED: Final = 16


def attributes_of(
    source: Any, lengths: tuple[int, int] | None = None, detail: int | None = None
) -> dict[str, Any]:
    """The attributes of a source, as they stand in a fingerprint.

    Args:
        lengths: samples of the source, and those that it is to be described with: what is as long as the
            source is cut, so that one that has grown is as the one that it was.
        detail: how much is said, as another fingerprint has it; as much as fits by default.
    Returns:
        "attributes", a JSON value by name; "detail"; "source", a digest of the code of its classes and
        functions that are no installed library's, None where there is none to read.
    """
    description = _Description(source, lengths)
    choices = range(len(_DETAILS))
    for level in choices if detail is None else [detail if detail in choices else 0]:
        attributes = {
            shortened(n, 80): value for n, value in description.attributes(*_DETAILS[level]).items()
        }
        if _nbytes(attributes) <= _NBYTES:
            break
    others: dict[str, Any] = {}
    while _nbytes(attributes) > _NBYTES:
        name, value = attributes.popitem()
        others[name] = value
    if others:
        attributes[f"{len(others):,} others"] = [f"sha256:{digest_of(json.dumps(others))}"]
    return {"attributes": attributes, "detail": level, "source": description.source_digest()}


def code_of(source: Any) -> str | None:
    """What `attributes_of` has as "source"."""
    return _Description(source, None).source_digest()


def _nbytes(attributes: dict[str, Any]) -> int:
    return len(json.dumps(attributes, indent=3))


class _Kind(str):
    """The name of the class of what an attribute holds."""


class _Description(Texts):
    """A source on its way to texts."""

    def __init__(self, source: Any, lengths: tuple[int, int] | None) -> None:
        super().__init__()
        self._source = source
        self._lengths = lengths
        self._texts: dict[int, tuple[Any, str]] = {}  # by id(), with the value, so that it stays the only one
        self._roots: dict[str, str] = {}
        for name, value in self._leaves(_DETAILS[0][0]).items():
            if isinstance(value, (str, os.PathLike)) and os.path.isabs(path := os.fspath(value)):
                self._roots.setdefault(os.path.join(path, ""), name)

    def attributes(self, depth: int, most: int) -> dict[str, Any]:
        """A JSON value by name: the first `depth` levels of objects have names of their own."""
        return {name: self._value(value, most) for name, value in self._leaves(depth).items()}

    def source_digest(self) -> str | None:
        """A digest of the code that the source is of."""
        self.note(type(self._source))
        digests = [(name, source_digest(thing)) for name, thing in sorted(self.code.items())]
        known = [f"{name} {digest}" for name, digest in digests if digest]
        return digest_of("\n".join(known)) if known else None

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
        parts: list[tuple[str, Any, Access]] = []
        if fields is not None:
            self.note(type(value))
            leaves[name] = _Kind(qualified_name(type(value)))
            parts = [
                (f"{name}.{key}", part, fields.access.within(key)) for key, part in fields.values.items()
            ]
        elif isinstance(value, (dict, list, tuple)) and len(value) <= _EXPANDED:
            pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
            if any(fields_of(part) is not None for _, part in pairs):
                leaves[name] = _Kind(f"{type(value).__name__} of {len(value)}")
                parts = [(f"{name}[{key!r}]", part, NO_ACCESS) for key, part in pairs]
        self._open.add(id(value))
        for key, part, more in parts:
            self._expand(key, part, more, depth - 1, leaves)
        self._open.discard(id(value))

    def _value(self, value: Any, most: int) -> Any:
        value = self._cut(value)
        if value is None or type(value) is bool or (type(value) is int and value.bit_length() < 256):
            return value
        if isinstance(value, _Kind):
            return [shortened(value, most)]
        if isinstance(value, (str, os.PathLike)) and not isinstance(value, enum.Enum):
            return shortened(str(os.fspath(value)), most)
        if id(value) not in self._texts:
            self._texts[id(value)] = value, self.text(value)
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

    def _place(self, text: str) -> str:
        for root, name in self._roots.items():
            if text.startswith(root) and len(text) > len(root):
                return f"{{{name}}}/{text[len(root) :]}"
        return text
