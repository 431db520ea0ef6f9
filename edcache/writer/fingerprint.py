"""Fingerprints: of a call of a dataset factory, and of a source that stands alone.

A fingerprint is JSON in the archive's head. It depends neither on where a file of code lies, when it was
changed and on line numbers, nor on the number of workers and the order in which samples were computed. A
value that cannot be described the same way in every process is an error, never a random key.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import FunctionType, GeneratorType, ModuleType
from typing import Any, Final

import numpy as np

from edcache.base import OptionError, named, shown
from edcache.identity import code_of
from edcache.writer.description import (
    LONG,
    OWN,
    NoDescription,
    Texts,
    described,
    digest_of,
    fields_of,
    held_by,
    is_empty,
    modules_named_by,
    name_of,
    shortened,
)

# The head of an archive is one page.
_MOST_ATTRIBUTES: Final = 16
_ATTRIBUTES_NBYTES: Final = 2_200
_CODE_NBYTES: Final = 1_200


def call_fingerprint(
    factory: Callable[..., Any], arguments: Mapping[str, Any], version: object = None
) -> dict[str, Any]:
    """Describe a call of a dataset factory, given every parameter by name; or raise OptionError."""
    name = name_of(factory)
    given = {**_held(factory), **arguments}
    texts = Texts()
    described = {key: _argument(name, key, value, texts) for key, value in given.items()}
    return {
        "factory": name,
        "arguments": described | models_of(factory),
        "version": None if version is None else _argument(name, "version", version),
        "code": code_of([factory, *texts.met.values()], _CODE_NBYTES) if version is None else {},
    }


def models_of(thing: Any) -> dict[str, Any]:
    """Describe the modules in global variables that code names, as one argument: their weights make samples, too."""
    modules = modules_named_by(thing)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return {"models": _argument(name, "models", modules)} if modules else {}


def _held(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the values that a factory holds beside its parameters, by name; each is as good as an argument."""
    if isinstance(factory, functools.partial):
        # No parameter has such a name.
        return {"partial.func": name_of(factory.func), "partial.args": factory.args, **_held(factory.func)}
    if isinstance(factory, FunctionType):
        return held_by(factory)
    owner = getattr(factory, "__self__", factory)
    return {} if isinstance(factory, type) or isinstance(owner, ModuleType) else {"self": owner}


def _argument(factory: str, key: str, value: object, texts: Texts | None = None) -> Any:
    try:
        return described(value, texts)
    except NoDescription as error:
        raise OptionError(
            f'argument "{key}" of {factory}: {error} has no description that is the same in every process; '
            "give its class a method __edcache_fingerprint__() that returns a plain value, or build it "
            "inside the factory and name its state with version="
        ) from None


def source_fingerprint(
    source: object, lengths: tuple[int, int] | None = None, call: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe a source dataset by its class and attributes.

    A method `__edcache_fingerprint__` of the class returns a value that counts in the place of the attributes;
    the items of a dict are arguments, each with its own line in a StaleCacheError.

    Args:
        lengths: number of samples that the source has now, and that it is described for: only as many items
            count of each attribute with one item a sample.
        call: the fingerprint of the call that made the source. Attributes are added to it: only if they have
            one item a sample, such as a list of files, and can be described.

    Raises: OptionError, an attribute has no description.
    """
    kind = type(source)
    name, told = name_of(kind), hasattr(kind, "__edcache_fingerprint__")
    if told:
        answer = fields_of(source) or {}
        attributes = {key: _argument(name, key, _cut(value, lengths)) for key, value in answer.items()}
        met: list[Any] = []
    else:
        attributes, met = _attributes(source, lengths, call is not None)
        attributes |= models_of(kind) if call is None else {}
    code = code_of([source, *met], _CODE_NBYTES)
    if isinstance(source, GeneratorType):
        name = f"{name} {source.__qualname__}"
    if call is not None:
        code = {**named(call, "code"), **code} if call.get("version") is None else {}
        return {**call, "attributes": attributes, "code": code}
    return {"type": name, "arguments" if told else "attributes": attributes, "code": code}


def chosen_fingerprint(source: object, given: dict[str, Any] | bool | None) -> dict[str, Any] | None:
    """Return the fingerprint that is given for a bare source, or else describe it; None to compare nothing."""
    if not isinstance(given, dict | bool | None):
        raise OptionError(f"fingerprint={shown(given)}; give a dict, or False for none", option="fingerprint")
    return source_fingerprint(source) if given is None or given is True else given or None


def comparable(
    expected: dict[str, Any], found: dict[str, Any], source: object, lengths: tuple[int, int] | None
) -> dict[str, Any]:
    """Return the fingerprint of a source as it would be if the archive were begun for it.

    A source that stands alone is compared with one of a call by the samples of both.

    lengths: samples that the source has now, and that the archive was begun for, if both are known.
    """
    is_made = "factory" in found and "type" in expected
    lengths = None if lengths is None or lengths[0] == lengths[1] else lengths
    if not is_made and (lengths is None or "code" not in expected):
        return expected
    call = found if is_made else None if "type" in expected else expected
    return source_fingerprint(source, lengths, call)


def changed_code(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> list[str]:
    """List the functions and classes whose code is not the one that the archive knows, by name."""
    old, new = named(found or {}, "code"), named(expected, "code")
    return [name for name, digest in new.items() if old.get(name) != digest] if old else []


def differences(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> list[str]:
    """List the differences between fingerprints of different data, one line each; code is not in it."""
    if found is None:
        return ["the archive says nothing about where its samples come from"]
    if ("type" in found) != ("type" in expected):
        return [] if "type" in expected else [f"made from an object of type {found['type']}"]
    lines = [
        f"{key}: {_shown(found.get(key))} in the archive, {_shown(expected.get(key))} now"
        for key in ("type", "factory", "version")
        if json.dumps(found.get(key)) != json.dumps(expected.get(key))  # to Python True is 1
    ]
    lines += _changes("argument", found, expected)
    if "attributes" in found and "attributes" in expected:
        lines += _changes("attribute", found, expected)
    return lines


def _changes(word: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    old, new = named(found, f"{word}s"), named(expected, f"{word}s")
    for key in {**old, **new}:
        if key in old and key in new:
            values = old[key], new[key]
            if (
                json.dumps(values[0]) == json.dumps(values[1])
                or _is_elsewhere(*values)
                or _is_same_file(*values)
            ):
                continue
        elif word == "attribute" and ("factory" in found or _is_private(key)):
            continue  # a private one may hold what reading made, such as an open file
        before, now = (_shown(side[key]) if key in side else "absent" for side in (old, new))
        yield f"{word} {key}: {before} in the archive, {now} now"


def moved_paths(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> list[str]:
    """List the attributes that name a folder or a file that is elsewhere than it was for the archive."""
    old, new = named(found or {}, "attributes"), named(expected, "attributes")
    return [
        f"attribute {key}: {old[key]!r} in the archive, {new[key]!r} now"
        for key in old
        if key in new and old[key] != new[key] and _is_elsewhere(old[key], new[key])
    ]


def stale_message(path: str, expected: Mapping[str, Any], changed: Sequence[str], remedy: str) -> str:
    """Write the message of a StaleCacheError: the path, the differences line by line, and the remedy."""
    other = "call" if "factory" in expected else "source"
    lines = "".join(f"\n  {line}" for line in changed)
    return f"{path}: made by another {other}:{lines}\n{remedy}"


def _is_elsewhere(old: Any, new: Any) -> bool:
    """True if a path leads nowhere any more, and another one, which is there, ends alike."""
    if not (type(old) is type(new) is str and os.path.isabs(old) and os.path.isabs(new)):
        return False
    names = {os.path.basename(os.path.normpath(path)) for path in (old, new)}
    # A text such as "/train/images", the key of an HDF5 file, leads nowhere either.
    return len(names) == 1 and not os.path.exists(old) and os.path.exists(new)


def _is_same_file(old: Any, new: Any) -> bool:
    """True if two paths, one of them an absolute one, lead to one file."""
    with suppress(OSError, TypeError, ValueError):
        return (os.path.isabs(old) or os.path.isabs(new)) and os.path.samefile(old, new)
    return False


def _shown(value: Any) -> str:
    text = value[0] if isinstance(value, list) and len(value) == 1 and type(value[0]) is str else repr(value)
    return text if len(text) <= LONG else text[:80] + "..."


# ------------------------------------------------------------------------------ attributes of a source


def _attributes(
    source: Any, lengths: tuple[int, int] | None, is_made: bool
) -> tuple[dict[str, Any], list[Any]]:
    """Describe the attributes of a source; and list the functions and classes in them.

    is_made: True for a source that a call made: only attributes with one item a sample count, and no code.
    """
    try:
        leaves = _leaves(source)
        count = len(source) if is_made and hasattr(source, "__len__") else -1
    except Exception as error:  # len() and properties are the user's code; a call needs none
        if is_made:
            return {}, []
        if not isinstance(error, NoDescription):
            raise
        raise OptionError(f"{error} has no description; give it anew, or pass fingerprint=False") from None
    # Names of absolute paths, the first ones last: a file below one moves with it.
    paths = {os.fsdecode(v): k for k, v in reversed(leaves.items()) if isinstance(v, (str, os.PathLike))}
    texts = Texts({os.path.join(path, ""): name for path, name in paths.items() if os.path.isabs(path)})
    met = [value if isinstance(value, type) else type(value) for value in leaves.values()]
    known: dict[int, Any] = {}  # by id(): a list of files often has two names
    attributes: dict[str, Any] = {}
    for name, value in leaves.items():
        if is_made:
            counts = OWN in name or _has_items(value, count)
        else:
            counts = not (_is_private(name) and is_empty(value))
        if not counts:
            continue
        if id(value) not in known:
            try:
                plain = os.fsdecode(value) if isinstance(value, os.PathLike) else _cut(value, lengths)
                known[id(value)] = described(plain, texts)
            except NoDescription as error:
                known[id(value)] = error
        text = known[id(value)]
        if not isinstance(text, NoDescription):
            attributes[shortened(name)] = text
        elif not (is_made or _is_private(name)):
            raise OptionError(
                f'attribute "{name}" of the source, a {name_of(type(source))}: {text} has no description '
                "that is the same in every process; begin its name with an underscore if it makes no other "
                "samples, let a method __edcache_fingerprint__() of the source return what does, or compare "
                "nothing with fingerprint=False"
            )
    # The first ones have their names in the archive, the others a digest.
    others = {}
    while len(json.dumps(attributes)) > (_CODE_NBYTES if is_made else _ATTRIBUTES_NBYTES):
        name, text = attributes.popitem()
        others[name] = text
    if others:
        attributes["others"] = digest_of(json.dumps(others))
    return attributes, [] if is_made else [*met, *texts.met.values()]


def _leaves(source: Any) -> dict[str, Any]:
    """List the attributes of a source by name, and in the place of an object among them its own, if few."""
    fields = fields_of(source)
    if fields is None:
        return {"content": source}
    leaves = {name: value for name, value in fields.items() if name != "in_memory_keys"}  # they name labels
    waiting, seen = list(leaves), {id(source)}
    while waiting:
        name = waiting.pop(0)
        value = leaves[name]
        parts = {} if id(value) in seen else _parts_of(name, value)
        if parts and len(leaves) + len(parts) <= _MOST_ATTRIBUTES:
            seen.add(id(value))
            leaves[name] = type(value)
            leaves |= parts
            waiting += parts
    return leaves


def _parts_of(name: str, value: Any) -> dict[str, Any]:
    """List the attributes of an object, or the items of a short list or dict of objects, by full names."""
    with suppress(Exception):  # `described` says it, with its name, if it counts
        if fields := not isinstance(value, GeneratorType) and fields_of(value):
            return {f"{name}.{key}": part for key, part in sorted(fields.items())}
        if type(value) in (dict, list, tuple) and len(value) <= _MOST_ATTRIBUTES:
            items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
            if any(not isinstance(part, GeneratorType) and fields_of(part) for part in items.values()):
                return {f"{name}[{key!r}]": part for key, part in items.items()}
    return {}


def _is_private(name: str) -> bool:
    return OWN not in name and "._" in f".{name}"


def _cut(value: Any, lengths: tuple[int, int] | None) -> Any:
    """Return a value as it would be if the source were as long as it is described for."""
    if lengths is None:
        return value
    now, then = lengths
    if type(value) is int and value == now:
        return then
    if not _has_items(value, now):
        return value
    return dict(islice(value.items(), then)) if isinstance(value, dict) else value[:then]


def _has_items(value: Any, count: int) -> bool:
    """True for a sequence, a dict or an array of `count` items."""
    if isinstance(value, (dict, list, tuple, range)):
        return len(value) == count
    is_array = isinstance(value, np.ndarray) or hasattr(value, "untyped_storage")
    return is_array and tuple(value.shape[:1]) == (count,)
