"""Fingerprints: of a call of a dataset factory, and of a source of which only the object is known.

A fingerprint is JSON in the archive's head. That of a call: the factory's qualified name, its arguments
with defaults applied, the user's `version`, and a digest of the factory's source. That of an object: its
class, its attributes, and a digest of its classes' source. Nothing in it depends on where a file of code
lies, when it was changed, on line numbers, on the number of workers or on the order in which samples were
computed. An argument that cannot be described the same way in every process is an error, never a random key;
an attribute counts as None then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edcache.base import FingerprintError
from edcache.writer.fingerprint import attributes_of, code_of
from edcache.writer.fingerprint_code import qualified_name, source_digest
from edcache.writer.fingerprint_fields import OWN
from edcache.writer.fingerprint_values import LONG, NoDescription, describe


def call_fingerprint(
    factory: Callable[..., Any], arguments: Mapping[str, Any], version: object = None
) -> dict[str, Any]:
    """Describe a call of a dataset factory.

    Args:
        arguments: every parameter by name, defaults applied.
        version: the user's own word for "this makes other data now".
    Raises:
        FingerprintError: 'argument "transform" of data:train, a Resize at 0x..., has no stable
            description; ...'.
    """
    name = qualified_name(factory)
    return {
        "factory": name,
        "arguments": {key: _argument(name, key, value) for key, value in arguments.items()},
        "version": None if version is None else _argument(name, "version", version),
        "source": source_digest(factory),
    }


def source_fingerprint(source: object) -> dict[str, Any]:
    """Describe a source dataset of which only the object is known: by its class and its attributes.

    If its class has a method `__edcache_fingerprint__`, what that returns is described instead of the
    attributes; the items of a dict as arguments, each with its own line in a StaleCacheError.
    """
    cls = type(source)
    name = qualified_name(cls)
    if not hasattr(cls, "__edcache_fingerprint__"):
        return {"type": name, **attributes_of(source)}
    answer = cls.__edcache_fingerprint__(source)
    items = answer if isinstance(answer, dict) else {OWN: answer}
    arguments = {str(key): _argument(name, str(key), value) for key, value in items.items()}
    return {"type": name, "arguments": arguments, "source": code_of(source)}


def comparable(
    expected: dict[str, Any], found: Mapping[str, Any] | None, source: object, lengths: tuple[int, int] | None
) -> dict[str, Any]:
    """The fingerprint of a source, its attributes in the form that they have in the archive's fingerprint.

    Args:
        lengths: samples that the source has now, and that the archive was begun for, where both are known.
    """
    detail = (found or {}).get("detail")
    grown = lengths is not None and lengths[0] != lengths[1]
    if "attributes" not in expected or not (grown or detail != expected["detail"]):
        return expected
    return expected | attributes_of(source, lengths if grown else None, detail)


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
    old, new = _named(found, f"{word}s"), _named(expected, f"{word}s")
    lines = []
    for key in [*old, *(key for key in new if key not in old)]:
        if (
            key in new
            and key in old
            and (_text(old[key]) == _text(new[key]) or _is_moved(old[key], new[key]))
        ):
            continue
        before, now = (_shown(side[key]) if key in side else "absent" for side in (old, new))
        lines.append(f"{word} {key}: {before} in the archive, {now} now")
    return lines


def moved_paths(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> list[str]:
    """The attributes that name a folder or a file that is elsewhere than it was for the archive."""
    old, new = _named(found or {}, "attributes"), _named(expected, "attributes")
    return [
        f"attribute {key}: {old[key]!r} in the archive, {new[key]!r} now"
        for key in old
        if key in new
        and old[key] != new[key]
        and _is_moved(old[key], new[key])
        and not _is_same_file(old[key], new[key])
    ]


def _is_moved(old: Any, new: Any) -> bool:
    """Whether two paths lead to the same thing: to one file; or the old one leads nowhere, and ends alike."""
    if type(old) is not str or type(new) is not str or not (os.path.isabs(old) or os.path.isabs(new)):
        return False
    names = {os.path.basename(os.path.normpath(path)) for path in (old, new)}
    is_elsewhere = os.path.isabs(old) and os.path.isabs(new) and len(names) == 1 and not os.path.exists(old)
    return is_elsewhere or _is_same_file(old, new)


def _is_same_file(old: str, new: str) -> bool:
    try:
        return os.path.samefile(old, new)
    except (OSError, ValueError):
        return False


def stale_message(path: str, expected: Mapping[str, Any], changed: Sequence[str], remedy: str) -> str:
    """The text of a StaleCacheError: what made the archive, what differs, line by line, and what to do."""
    other = "call" if "factory" in expected else "source"
    lines = "".join(f"\n  {line}" for line in changed)
    return f"{path}: made by another {other}:{lines}\n{remedy}"


def _named(fingerprint: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    held = fingerprint.get(key)
    return held if isinstance(held, dict) else {}  # a head that others wrote may say anything


def _text(value: Any) -> str:
    return json.dumps(value)  # Python holds True and 1 for equal


def source_changed(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> bool:
    """Whether both fingerprints know the source code that they are of, and it differs."""
    if found is None or ("type" in found) != ("type" in expected):
        return False
    digests = found.get("source"), expected.get("source")
    return None not in digests and digests[0] != digests[1]


def _argument(factory: str, key: str, value: object) -> Any:
    try:
        return describe(value)
    except NoDescription as error:
        raise FingerprintError(
            f'argument "{key}" of {factory}: {error} has no description that is the same in every process; '
            "give its class a __repr__ without an address or a method __edcache_fingerprint__() that "
            "returns a plain value, or build it inside the factory and name its state with version="
        ) from None


def _shown(value: Any) -> str:
    text = value[0] if isinstance(value, list) and len(value) == 1 and type(value[0]) is str else repr(value)
    return text if len(text) <= LONG else text[:80] + "..."
