"""Fingerprints: of a call of a dataset factory, and of a source of which only the object is known.

A fingerprint is JSON in the archive's head. It depends neither on where a file of code lies, when it was
changed and on line numbers, nor on the number of workers and the order in which samples were computed. An
argument that cannot be described the same way in every process is an error, never a random key; an attribute
("dataset.split", "transform.transforms[1].size") counts as None then.
"""

from __future__ import annotations

import enum
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import FunctionType, GeneratorType
from typing import Any, Final

from edcache.base import OptionError, named
from edcache.writer import fingerprint_code as code
from edcache.writer import fingerprint_values as values

_NBYTES: Final = 2_400
"""Of all attributes in the head of an archive, which is one page."""
_DETAILS: Final = ((4, 300), (3, 120), (2, 80), (1, 80), (1, 32))
"""How deep each attribute of an object has a text, and the longest text; the first that fits is taken."""
_MOST_NAMES: Final = 2_000
_CODE_NBYTES: Final = 1_500
"""Of the code of a source, in the head of an archive that a call made."""
_MOST_MADE: Final = 12
"""Of the attributes of such a source."""
_MOST_CODE: Final = 64
_PLAIN: Final = (bool, bytes, complex, enum.Enum, float, frozenset, int, os.PathLike, str, tuple)
_DIGITS: Final = 16


def call_fingerprint(
    factory: Callable[..., Any], arguments: Mapping[str, Any], version: object = None
) -> dict[str, Any]:
    """Describe a call of a dataset factory, given every parameter by name; or raise OptionError."""
    name = code.qualified_name(factory)
    is_kept = isinstance(factory, (FunctionType, type))  # what else is called may have no hash
    given = {**_held(factory), **arguments}
    return {
        "factory": name,
        "arguments": {key: _argument(name, key, value) for key, value in given.items()},
        "version": None if version is None else _argument(name, "version", version),
        "source": code.known_digest(factory) if is_kept else code.source_digest(factory),
    }


def _held(factory: Callable[..., Any]) -> dict[str, Any]:
    """What a factory holds beside its parameters, by name; it is as good as an argument."""
    if isinstance(factory, functools.partial):
        return {"func": code.qualified_name(factory.func), "args": factory.args, **_held(factory.func)}
    if isinstance(factory, FunctionType):
        cells = zip(factory.__code__.co_freevars, factory.__closure__ or (), strict=True)
        held = {name: getattr(cell, "cell_contents", None) for name, cell in cells}
        # What is no plain value may be there to change, as a list of calls.
        return {name: value for name, value in held.items() if isinstance(value, _PLAIN)}
    return {} if isinstance(factory, type) else {"self": getattr(factory, "__self__", factory)}


def made_by_call(
    source: Any, found: Mapping[str, Any] | None = None, lengths: tuple[int, int] | None = None
) -> dict[str, Any]:
    """What the fingerprint of a call has of the source that it made: its "code" and its "attributes".

    The code is by name the state of each class and function that it is of, but for those of installed
    libraries: the code that is compared for a bare source. The attributes are what tells its samples from
    others whatever the arguments: what methods `__edcache_fingerprint__` return, and what has one value for
    each sample, as a list of files.

    found: of the archive that the source is compared with. lengths: as of `Texts`.
    Raises OptionError for what the source's method returns and has no description.
    """
    made = {"attributes": _answer_of(source, lengths)} if _says_what_it_is(source) else {}
    try:
        description = _Description(source, lengths)
        known = None if found is None else named(found, "attributes")
        if not made and (attributes := description.of_samples(known)):
            made["attributes"] = attributes
        description.attributes(*_DETAILS[0])
        description.note(type(source))
        things = [type(source), *description.code.values(), *description.made]
        states = {place: code.state_of(code.code_at(place)) for place in map(code.place_of, things) if place}
    except Exception:  # noqa: BLE001 - texts of attributes run the user's code; a call needs none
        return made
    while _nbytes(states) > _CODE_NBYTES:
        states.popitem()
    return {"code": {place: state for place, state in states.items() if state}, **made}


def changed_code(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> dict[str, str]:
    """The state of each function and class whose code is another one than it was for the archive, by name.

    Of those that are in modules that this process has imported: what an archive names runs nothing.
    """
    if found is None or any(found.get(key) != expected.get(key) for key in ("type", "factory")):
        return {}
    changed = {}
    old, new = found.get("source"), expected.get("source")
    if None not in (old, new) and old != new:
        changed[expected.get("factory") or expected.get("type") or "the source"] = str(new)
    for place, before in islice(named(found, "code").items(), _MOST_CODE):
        thing = code.code_at(place) if isinstance(before, str) else None  # a head may say anything
        now = thing and code.state_of(thing, before)
        if now and now[-_DIGITS:] != before[-_DIGITS:]:
            changed[place] = now
    return changed


def _argument(factory: str, key: str, value: object) -> Any:
    try:
        return values.describe(value)
    except values.NoDescription as error:
        raise OptionError(
            f'argument "{key}" of {factory}: {error} has no description that is the same in every process; '
            "give its class a __repr__ without an address or a method __edcache_fingerprint__() that "
            "returns a plain value, or build it inside the factory and name its state with version="
        ) from None


def source_fingerprint(
    source: object, lengths: tuple[int, int] | None = None, detail: int | None = None
) -> dict[str, Any]:
    """Describe a source dataset of which only the object is known: by its class and its attributes.

    What a method `__edcache_fingerprint__` of its class returns is described instead of the attributes; the
    items of a dict as arguments, each with its own line in a StaleCacheError.

    lengths: as of `Texts`. detail: of the attributes, as another fingerprint has it; by default what fits.
    """
    name = code.qualified_name(type(source))
    if isinstance(source, GeneratorType):
        name = f"{name} {source.__qualname__}"
    if not _says_what_it_is(source):
        return {"type": name, **_attributes_of(source, lengths, detail)}
    arguments = _answer_of(source, lengths)
    return {"type": name, "arguments": arguments, "source": _Description(source, None).source_digest()}


def _says_what_it_is(source: object) -> bool:
    return hasattr(type(source), "__edcache_fingerprint__")


def _answer_of(source: Any, lengths: tuple[int, int] | None) -> dict[str, Any]:
    """What a method `__edcache_fingerprint__` returns, as of a source that is as long as is described."""
    name, cut = code.qualified_name(type(source)), values.Texts(lengths=lengths).cut
    answer = type(source).__edcache_fingerprint__(source)
    items = answer if isinstance(answer, dict) else {values.OWN: answer}
    return {str(key): _argument(name, str(key), cut(value)) for key, value in items.items()}


def comparable(
    expected: dict[str, Any], found: dict[str, Any], source: object, lengths: tuple[int, int] | None
) -> dict[str, Any]:
    """The fingerprint of a source, its attributes in the form that they have in the archive's fingerprint.

    lengths: samples that the source has now, and that the archive was begun for, where both are known.
    """
    grown = lengths is not None and lengths[0] != lengths[1]
    if "factory" in found:
        # What a call made, opened by its source alone, is compared by what is known of its samples.
        now = found if "type" in expected else expected
        if "attributes" not in now or not (grown or now is found):
            return now
        return now | made_by_call(source, found, lengths if grown else None)
    detail = found.get("detail")
    if "type" not in expected or not (grown or expected.get("detail") != detail):
        return expected
    return expected | source_fingerprint(source, lengths if grown else None, detail)


def differences(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> list[str]:
    """What makes two fingerprints those of different data, one line each; the source digest is not in it."""
    if found is None:
        return ["the archive says nothing about where its samples come from"]
    if ("type" in found) != ("type" in expected):
        return [] if "type" in expected else [f"made from an object of type {found['type']}"]
    lines = [
        f"{key}: {_shown(found.get(key))} in the archive, {_shown(expected.get(key))} now"
        for key in ("type", "factory", "version")
        if _text(found.get(key)) != _text(expected.get(key))
    ]
    lines += _changes("argument", found, expected)
    if "attributes" in found and "attributes" in expected:
        lines += _changes("attribute", found, expected)
    return lines


def _changes(word: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    old, new = named(found, f"{word}s"), named(expected, f"{word}s")
    lines = []
    for key in {**old, **new}:
        if key in old and key in new:
            values = old[key], new[key]
            if _text(values[0]) == _text(values[1]) or _is_elsewhere(*values) or _is_same_file(*values):
                continue
        before, now = (_shown(side[key]) if key in side else "absent" for side in (old, new))
        lines.append(f"{word} {key}: {before} in the archive, {now} now")
    return lines


def moved_paths(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> list[str]:
    """The attributes that name a folder or a file that is elsewhere than it was for the archive."""
    old, new = named(found or {}, "attributes"), named(expected, "attributes")
    return [
        f"attribute {key}: {old[key]!r} in the archive, {new[key]!r} now"
        for key in old
        if key in new and old[key] != new[key] and _is_elsewhere(old[key], new[key])
    ]


def _is_elsewhere(old: Any, new: Any) -> bool:
    """True if a path leads nowhere any more, and another one ends alike."""
    if not (type(old) is type(new) is str and os.path.isabs(old) and os.path.isabs(new)):
        return False
    names = {os.path.basename(os.path.normpath(path)) for path in (old, new)}
    return len(names) == 1 and not os.path.exists(old)


def _is_same_file(old: Any, new: Any) -> bool:
    """True if two paths, one of them an absolute one, lead to one file."""
    if not (type(old) is type(new) is str and (os.path.isabs(old) or os.path.isabs(new))):
        return False
    try:
        return os.path.samefile(old, new)
    except (OSError, ValueError):
        return False


def stale_message(path: str, expected: Mapping[str, Any], changed: Sequence[str], remedy: str) -> str:
    """The text of a StaleCacheError: what made the archive, what differs, line by line, and what to do."""
    other = "call" if "factory" in expected else "source"
    lines = "".join(f"\n  {line}" for line in changed)
    return f"{path}: made by another {other}:{lines}\n{remedy}"


def _text(value: Any) -> str:
    return json.dumps(value)  # Python holds True and 1 for equal


def _shown(value: Any) -> str:
    text = value[0] if isinstance(value, list) and len(value) == 1 and type(value[0]) is str else repr(value)
    return text if len(text) <= values.LONG else text[:80] + "..."


def _attributes_of(
    source: Any, lengths: tuple[int, int] | None = None, detail: int | None = None
) -> dict[str, Any]:
    """The "attributes" of a source as in a fingerprint, how much "detail" they have, and its "source".

    lengths: as of `Texts`. detail: as another fingerprint has it; as much as fits by default.
    """
    description = _Description(source, lengths)
    choices = range(len(_DETAILS))
    for level in choices if detail is None else [detail if detail in choices else 0]:
        attributes = description.attributes(*_DETAILS[level])
        if _nbytes(attributes) <= _NBYTES:
            break
    others: dict[str, Any] = {}
    while _nbytes(attributes) > _NBYTES:
        name, value = attributes.popitem()
        others[name] = value
    if others:
        attributes[f"{len(others):,} others"] = [f"sha256:{code.digest_of(json.dumps(others))}"]
    return {"attributes": attributes, "detail": level, "source": description.source_digest()}


def _nbytes(attributes: dict[str, Any]) -> int:
    return len(json.dumps(attributes, indent=3))


class _Kind(str):
    """The name of the class of what an attribute holds."""


class _Description(values.Texts):
    """A source on its way to texts."""

    def __init__(self, source: Any, lengths: tuple[int, int] | None) -> None:
        super().__init__(lengths=lengths)
        self._source = source
        self._texts: dict[int, tuple[Any, str]] = {}  # by id(), with the value, so that it stays the only one
        self._stated: set[str] = set()  # the leaves that a method `__edcache_fingerprint__` returned
        for name, value in self._leaves(_DETAILS[0][0]).items():
            if isinstance(value, (str, os.PathLike)) and os.path.isabs(path := os.fspath(value)):
                self.roots.setdefault(os.path.join(path, ""), name)

    def attributes(self, depth: int, most: int) -> dict[str, Any]:
        """A JSON value by name: the first `depth` levels of objects have names of their own."""
        return self._texts_of(self._leaves(depth), most)

    def of_samples(self, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """The first few that methods `__edcache_fingerprint__` return or that have one value for each sample.

        known: those of an archive, which are taken instead.
        """
        leaves, stated = self._leaves(_DETAILS[0][0]), self._stated
        if known is not None:
            leaves = {name: value for name, value in leaves.items() if values.shortened(name, 80) in known}
        else:
            count = len(self._source) if hasattr(self._source, "__len__") else -1
            has = values.has_parts
            leaves = {name: value for name, value in leaves.items() if name in stated or has(value, count)}
        return self._texts_of(dict(islice(leaves.items(), _MOST_MADE)), 80)

    def _texts_of(self, leaves: Mapping[str, Any], most: int) -> dict[str, Any]:
        return {
            values.shortened(name, 80): self._value(value, most, name in self._stated)
            for name, value in leaves.items()
        }

    def source_digest(self) -> str | None:
        """A digest of the code that the source is of."""
        self.note(type(self._source))
        digests = [(name, code.known_digest(thing)) for name, thing in sorted(self.code.items())]
        known = [f"{name} {digest}" for name, digest in digests if digest]
        return code.digest_of("\n".join(known)) if known else None

    def _leaves(self, depth: int) -> dict[str, Any]:
        fields = values.fields_of(self._source)
        if fields is None:
            return {"content": self._source}
        leaves: dict[str, Any] = {}
        fields.values.pop("in_memory_keys", None)  # says which labels are wanted
        self._open.add(id(self._source))
        for name, value in fields.values.items():
            self._expand(name, value, fields.access.within(name), depth, leaves)
        self._open.clear()
        return leaves

    def _expand(self, name: str, value: Any, access: code.Access, depth: int, leaves: dict[str, Any]) -> None:
        leaves[name] = _Kind("...") if id(value) in self._open else value
        if depth <= 1 or id(value) in self._open or len(leaves) > _MOST_NAMES:
            return
        fields = values.fields_of(value, access)
        parts: list[tuple[str, Any, code.Access]] = []
        if fields is not None:
            self.note(type(value))
            leaves[name] = _Kind(code.qualified_name(type(value)))
            parts = [
                (f"{name}.{key}", part, fields.access.within(key)) for key, part in fields.values.items()
            ]
            self._stated.update(key for key, _, _ in parts if fields.is_stated)
        elif isinstance(value, (dict, list, tuple)) and len(value) <= values.EXPANDED:
            pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
            if any(values.fields_of(part) is not None for _, part in pairs):
                leaves[name] = _Kind(f"{type(value).__name__} of {len(value)}")
                parts = [(f"{name}[{key!r}]", part, code.NO_ACCESS) for key, part in pairs]
        self._open.add(id(value))
        for key, part, more in parts:
            self._expand(key, part, more, depth - 1, leaves)
        self._open.discard(id(value))

    def _value(self, value: Any, most: int, is_stated: bool) -> Any:
        value = self.cut(value)
        if value is None or type(value) is bool or (type(value) is int and value.bit_length() < 256):
            return value
        if isinstance(value, _Kind):
            return [values.shortened(value, most)]
        if isinstance(value, (str, os.PathLike)) and not isinstance(value, enum.Enum):
            return values.shortened(str(os.fspath(value)), most)
        if id(value) not in self._texts:
            self._texts[id(value)] = value, self.text(value, sys.maxsize if is_stated else values.PICKS)
        text = self._texts[id(value)][1]
        return None if text == values.NO_VALUE else [values.shortened(text, most)]
