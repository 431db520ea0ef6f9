"""Fingerprints: the call that a cache is of, and where its samples come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edcache.present.text import paired_lines, printable


def call_text(fingerprint: Mapping[str, Any] | None) -> str:
    """The call that a fingerprint describes, as Python has it: "digits:make(split='train', n=6)"."""
    if not fingerprint:
        return ""
    if "factory" not in fingerprint:
        return str(fingerprint.get("type", ""))
    arguments = (f"{name}={_value_said(value)}" for name, value in _named(fingerprint, "arguments").items())
    return f"{fingerprint['factory']}({', '.join(arguments)})"


def _value_said(value: object) -> str:
    """A value of a fingerprint: what is no plain value stands there as a list of its one text."""
    return value[0] if isinstance(value, list) and len(value) == 1 and type(value[0]) is str else repr(value)


def fingerprint_lines(path: str, fingerprint: Mapping[str, Any] | None) -> Iterator[str]:
    """What an archive says of where its samples come from, an argument a line."""
    yield from paired_lines([("archive", path), *_origin_pairs(fingerprint or {})])


def _origin_pairs(fingerprint: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    if not fingerprint:
        yield "fingerprint", "none: the archive was written without a dataset"
    for key in ("type", "factory"):
        if key in fingerprint:
            yield key, fingerprint[key]
    for key in ("argument", "attribute"):
        for name, value in _named(fingerprint, f"{key}s").items():
            yield key, f"{name}={_value_said(value)}"
    if fingerprint.get("version") is not None:
        yield "version", _value_said(fingerprint["version"])
    if fingerprint.get("source") is not None:
        yield "source digest", fingerprint["source"]


def comparison_lines(call: Mapping[str, Any], different: Sequence[str]) -> Iterator[str]:
    """Whether an archive is that of a call, and where not, what differs, a line each."""
    shown = printable(call_text(call))
    yield f"differs from {shown}:" if different else f"matches {shown}"
    yield from (f"  {printable(line)}" for line in different)


def fingerprint_pairs(fingerprint: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """What a fingerprint says, in few words: pairs of a word and its value."""
    for key in ("type", "factory"):
        if key in fingerprint:
            yield key, fingerprint[key]
    for key in ("arguments", "attributes"):
        if values := _named(fingerprint, key):
            yield key, ", ".join(f"{name}={value!r}" for name, value in values.items())
    if fingerprint.get("version") is not None:
        yield "version", fingerprint["version"]


def _named(fingerprint: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The arguments or the attributes in a fingerprint, which may be anybody's."""
    values = fingerprint.get(key)
    return values if isinstance(values, dict) else {}
