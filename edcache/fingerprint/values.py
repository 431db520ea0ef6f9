"""A text for a value, the same in every process; different values have different ones."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import enum
import hashlib
import inspect
import os
import sys
import textwrap
import types
import uuid
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from edcache.modules import module_name
from edcache.once import ForkLock

LONG: Final = 300
_SHOWN: Final = 80
REPR_IS_VALUE: Final = (
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


class NoDescription(Exception):
    """A value has no text that is the same in every process."""


def describe(value: Any) -> Any:
    """A JSON value that stands for `value` in every process; different values have different ones.

    None, bool, int and str stand for themselves. Everything else is a list of one text, so that 0.5 and
    "0.5" differ; long texts end in a digest.
    """
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        return shortened(value)
    return [shortened(rendered(value))]


def shortened(text: str, most: int = LONG) -> str:
    """The text, where it has at most so many characters; else its beginning and a digest of it."""
    if len(text) <= most:
        return text
    shown = min(most // 4, _SHOWN)
    return f"{text[:shown]}... sha256:{digest_of(text.encode('utf-8', 'surrogatepass'))}"


def digest_of(data: bytes) -> str:
    """A short SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def rendered(value: Any, depth: int = 0) -> str:
    """A text for any value; where Python's own repr says it all, that.

    Raises:
        NoDescription: there is none.
    """
    if depth > 20:
        raise NoDescription("a structure nested more than 20 deep")

    def inner(part: Any) -> str:
        return rendered(part, depth + 1)

    custom = getattr(type(value), "__edcache_fingerprint__", None)
    if custom is not None:
        return f"{type(value).__qualname__}({inner(custom(value))})"
    if value is None or type(value) in REPR_IS_VALUE:
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
    array = array_of(value)
    if array is not None:
        content = inner(array.tolist()) if array.dtype.hasobject else f"sha256:{bytes_digest(array)}"
        return f"{type(value).__name__}({array.dtype}{list(array.shape)}, {content})"
    if inspect.isroutine(value) or isinstance(value, type):
        return _function(value, inner)
    return _by_repr(value)


def bytes_digest(array: np.ndarray[Any, Any]) -> str:
    """A digest of an array's values, as they lie in memory in C order."""
    return digest_of(np.ascontiguousarray(array).tobytes())


def is_array(value: Any) -> bool:
    """Whether this is an array of numpy or a tensor."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def is_readable(value: Any) -> bool:
    """Whether an array or a tensor is one whose values lie in this machine's memory, one after another."""
    if isinstance(value, np.ndarray):
        return True
    return str(value.layout) == "torch.strided" and value.device.type == "cpu" and not value.is_quantized


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """The same values in numpy; None for what is no array. Of a tensor, the bytes behind dtype and shape."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if not is_array(value):
        return None
    torch = sys.modules["torch"]
    # The stride of a single value may be any number, and must be 1 for a view.
    values = value.detach().cpu().contiguous().as_strided((value.numel(),), (1,))
    raw: np.ndarray[Any, Any] = values.view(torch.uint8).numpy()
    header = np.frombuffer(f"{value.dtype}{tuple(value.shape)}".encode(), np.uint8)
    return np.concatenate([header, raw])


def _function(value: Any, inner: Callable[[Any], str]) -> str:
    name = qualified_name(value)
    if "<lambda>" not in name and "<locals>" not in name:
        return name
    digest = source_digest(value)
    if digest is None or getattr(value, "__closure__", None) or not _is_alone(value):
        raise NoDescription(f"{name}, a function made at run time,")
    defaults = inner([getattr(value, "__defaults__", None), getattr(value, "__kwdefaults__", None)])
    return f"{name} source:{digest} defaults:{defaults}"


def _is_alone(function: Any) -> bool:
    """Whether the source that inspect finds is of this function only: a line may hold two lambdas."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return False
    return "<lambda>" not in function.__qualname__ or source.count("lambda") == 1


def _by_repr(value: Any) -> str:
    text = repr(value)
    if (text.startswith("<") and " object at " in text) or " at 0x" in text:
        raise NoDescription(text)
    return text


def qualified_name(thing: Any) -> str:
    """ "module:qualname", with the module's name of `module_name`."""
    return f"{module_name(thing)}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


# Up to Python 3.12 the depth of a syntax tree is counted in one place for all threads: two that parse at a
# time end in SystemError.
_parsing = ForkLock()


def syntax_tree(code: Any) -> ast.Module | None:
    """What a function or a class says; None where there is no source to read, or it does not stand alone."""
    try:
        with _parsing.held():
            return ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return None


def source_digest(code: Any) -> str | None:
    """A digest of what a function or a class says, without comments, layout, docstrings and decorators.

    None where there is no source to read, as in an interactive session.
    """
    with _parsing.held():
        return _source_digest(code)


def _source_digest(code: Any) -> str | None:
    if getattr(code, "__name__", "") == "<lambda>":
        return _lambda_digest(code)
    tree = syntax_tree(code)
    if tree is None:
        return _members_digest(code) if isinstance(code, type) else None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    if hasattr(tree.body[0], "decorator_list"):
        tree.body[0].decorator_list.clear()
    return digest_of(ast.unparse(tree).encode())


def _members_digest(cls: type) -> str | None:
    """A digest of a class without source of its own, as in a notebook: of its functions and values."""
    functions, values = [], []
    for name, held in vars(cls).items():
        wrapped = (getattr(held, kind, None) for kind in ("fget", "__func__", "func"))
        function = next(filter(None, wrapped), held)
        if inspect.isfunction(function) and (digest := _source_digest(inspect.unwrap(function))):
            functions.append(f"{name} {digest}")
        elif not name.startswith("__") and type(held) in REPR_IS_VALUE:
            values.append(f"{name} {held!r}")
    return digest_of("\n".join(functions + values).encode("utf-8", "surrogatepass")) if functions else None


def _lambda_digest(function: Any) -> str | None:
    """Its source is of the lines around it, such as an item of a dict: the longest part that parses is it."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None
    start = source.find("lambda")
    for end in range(len(source), start, -1):
        try:
            node = ast.parse(source[start:end], mode="eval").body
        except SyntaxError:
            continue
        return digest_of(ast.unparse(node.elts[0] if isinstance(node, ast.Tuple) else node).encode())
    return None


def code_digest(function: types.FunctionType) -> str:
    """A digest of a function's source; where it has none of its own, of its code for this Python."""
    source = source_digest(function) if _is_alone(function) else None
    return source or digest_of(_code_text(function.__code__).encode("utf-8", "surrogatepass"))


def _code_text(code: types.CodeType) -> str:
    constants = [
        _code_text(part)
        if isinstance(part, types.CodeType)
        else repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)
        for part in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
