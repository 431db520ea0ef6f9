"""What identifies a cached call, so that another call's cache is noticed.

A fingerprint is JSON in the archive's head: the factory's qualified name, its arguments with
defaults applied, the user's `version`, and a digest of the factory's source. Nothing in it depends
on where a file lies, when it was changed, on line numbers, on the number of workers or on the order
in which samples were computed. A value that cannot be described the same way in every process is
an error, never a random key.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import enum
import hashlib
import inspect
import json
import os
import pathlib
import sys
import textwrap
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from edcache.errors import FingerprintError

_LONG: Final = 300
_SHOWN: Final = 80
_REPR_IS_VALUE: Final = (
    bool,
    int,
    str,
    float,
    complex,
    bytes,
    range,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
)


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
    """Describe a source dataset of which only the object is known: by its class.

    If that has a method `__edcache_fingerprint__`, what it returns is described too; the items of a dict as
    arguments, each with its own line in a StaleCacheError.
    """
    found: dict[str, Any] = {"type": qualified_name(type(source))}
    custom = getattr(type(source), "__edcache_fingerprint__", None)
    if custom is None:
        return found
    said = custom(source)
    items = said.items() if isinstance(said, dict) else [("__edcache_fingerprint__()", said)]
    return found | {
        "arguments": {str(key): _argument(found["type"], str(key), value) for key, value in items}
    }


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
    old, new = _arguments(found), _arguments(expected)
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in new or key not in old or _text(old[key]) != _text(new[key]):
            before, now = (_shown(side[key]) if key in side else "absent" for side in (old, new))
            lines.append(f"argument {key}: {before} in the archive, {now} now")
    return lines


def stale_message(path: str, changed: Sequence[str], remedy: str) -> str:
    """The text of a StaleCacheError: what differs, line by line, and what to do."""
    lines = "".join(f"\n  {line}" for line in changed)
    return f"{path}: made by another call:{lines}\n{remedy}"


def _arguments(fingerprint: Mapping[str, Any]) -> Mapping[str, Any]:
    found = fingerprint.get("arguments")
    return found if isinstance(found, dict) else {}  # a head that others wrote may say anything


def _text(value: Any) -> str:
    return json.dumps(value)  # Python holds True and 1 for equal


def source_changed(found: Mapping[str, Any] | None, expected: Mapping[str, Any]) -> bool:
    """Whether both fingerprints know the factory's source, and it differs."""
    digests = (found or {}).get("source"), expected.get("source")
    return None not in digests and digests[0] != digests[1]


def qualified_name(thing: Any) -> str:
    """ "module:qualname", where a script run as __main__ counts as the module of its file."""
    module = getattr(thing, "__module__", None) or "?"
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else pathlib.Path(file).stem if file else module
    return f"{module}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def source_digest(factory: Callable[..., Any]) -> str | None:
    """A digest of what the factory's code says, without comments, layout, docstring and decorators.

    None where there is no source to read, as in an interactive session.
    """
    try:
        source = textwrap.dedent(inspect.getsource(factory))
    except (OSError, TypeError):
        return None
    if getattr(factory, "__name__", "") == "<lambda>":
        return _lambda_digest(source)
    tree = ast.parse(source)
    node = tree.body[0]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        node.decorator_list.clear()
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return _digest(ast.unparse(tree).encode())


def _argument(factory: str, key: str, value: object) -> Any:
    try:
        return describe(value)
    except _NoDescription as error:
        raise FingerprintError(
            f'argument "{key}" of {factory}: {error} has no description that is the same in every process; '
            "give its class a __repr__ without an address or a method __edcache_fingerprint__() that "
            "returns a plain value, or build it inside the factory and name its state with version="
        ) from None


def _lambda_digest(source: str) -> str | None:
    """The source is of the lines around it, such as an item of a dict: the longest part that parses is it."""
    start = source.find("lambda")
    for end in range(len(source), start, -1):
        try:
            node = ast.parse(source[start:end], mode="eval").body
        except SyntaxError:
            continue
        return _digest(ast.unparse(node.elts[0] if isinstance(node, ast.Tuple) else node).encode())
    return None


class _NoDescription(Exception):
    pass


def describe(value: Any) -> Any:
    """A JSON value that stands for `value` in every process; different values have different ones.

    None, bool, int and str stand for themselves. Everything else is a list of one text, so that 0.5 and
    "0.5" differ; long texts end in a digest.
    """
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        return _shortened(value)
    return [_shortened(_rendered(value, 0))]


def _shortened(text: str) -> str:
    if len(text) <= _LONG:
        return text
    return f"{text[:_SHOWN]}... sha256:{_digest(text.encode('utf-8', 'surrogatepass'))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _rendered(value: Any, depth: int) -> str:
    """A text for any value; where Python's own repr says it all, that."""
    if depth > 20:
        raise _NoDescription("a structure nested more than 20 deep")

    def inner(part: Any) -> str:
        return _rendered(part, depth + 1)

    custom = getattr(type(value), "__edcache_fingerprint__", None)
    if custom is not None:
        return f"{type(value).__qualname__}({inner(custom(value))})"
    if value is None or type(value) in _REPR_IS_VALUE:
        return repr(value)
    if type(value) is list:
        return f"[{', '.join(map(inner, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(inner, value))}{',' * (len(value) == 1)})"
    if type(value) is dict:
        return "{" + ", ".join(f"{inner(k)}: {inner(v)}" for k, v in value.items()) + "}"
    if type(value) in (set, frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(inner, value)))})"
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ", ".join(f"{f.name}={inner(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__qualname__}({fields})"
    if isinstance(value, os.PathLike):
        return f"Path({os.fspath(value)!r})"
    array = _as_array(value)
    if array is not None:
        content = inner(array.tolist()) if array.dtype.hasobject else f"sha256:{_bytes_digest(array)}"
        return f"{type(value).__name__}({array.dtype}{list(array.shape)}, {content})"
    if inspect.isroutine(value) or isinstance(value, type):
        return _function(value, inner)
    return _by_repr(value)


def _bytes_digest(array: np.ndarray[Any, Any]) -> str:
    return _digest(np.ascontiguousarray(array).tobytes())


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        raw: np.ndarray[Any, Any] = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        header = np.frombuffer(f"{value.dtype}{tuple(value.shape)}".encode(), np.uint8)
        return np.concatenate([header, raw])
    return None


def _function(value: Any, inner: Callable[[Any], str]) -> str:
    name = qualified_name(value)
    if "<lambda>" not in name and "<locals>" not in name:
        return name
    digest = source_digest(value)
    if digest is None or getattr(value, "__closure__", None) or not _is_alone(value):
        raise _NoDescription(f"{name}, a function made at run time,")
    defaults = inner([getattr(value, "__defaults__", None), getattr(value, "__kwdefaults__", None)])
    return f"{name} source:{digest} defaults:{defaults}"


def _is_alone(function: Any) -> bool:
    """Whether the source that inspect finds is of this function only: a line may hold two lambdas."""
    source = inspect.getsource(function)
    return "<lambda>" not in function.__qualname__ or source.count("lambda") == 1


def _by_repr(value: Any) -> str:
    text = repr(value)
    if (text.startswith("<") and " object at " in text) or " at 0x" in text:
        raise _NoDescription(text)
    return text


def _shown(value: Any) -> str:
    text = value[0] if isinstance(value, list) and len(value) == 1 and type(value[0]) is str else repr(value)
    return text if len(text) <= _LONG else text[:_SHOWN] + "..."
