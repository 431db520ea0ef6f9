"""What an object holds: the attributes that tell it from another of its class."""

from __future__ import annotations

import argparse
import enum
import functools
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from edcache.fingerprint.state import Access, access_by_reading
from edcache.fingerprint.values import REPR_IS_VALUE
from edcache.modules import MAIN_NAMES

_NO_OBJECT: Final = (
    *(*REPR_IS_VALUE, type, types.ModuleType, enum.Enum, os.PathLike, np.ndarray, np.generic),
    *(list, dict, set, frozenset, types.MethodType),
)
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace, functools.partial)
_INSTALLED: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})


NO_ACCESS: Final = Access(frozenset(), frozenset())


class Fields(NamedTuple):
    """The attributes of an object by name, and what reading does with them."""

    values: dict[str, Any]
    access: Access = NO_ACCESS


def fields_of(value: Any, access: Access = NO_ACCESS) -> Fields | None:
    """The attributes of an object that tell it from another, by name; None for what is no such object.

    An object is what is read or called: a dataset, a transform, a dataclass, anything whose class is not
    of an installed library. Attributes that reading changes are not among them.

    Args:
        access: what reading of whoever holds the object does with it.
    """
    cls = type(value)
    custom = getattr(cls, "__edcache_fingerprint__", None)
    if custom is not None:
        answer = custom(value)
        return Fields(dict(answer) if isinstance(answer, Mapping) else {"__edcache_fingerprint__()": answer})
    if isinstance(value, _NO_OBJECT) or inspect.isroutine(value) or _is_tensor(value):
        return None
    if isinstance(value, tuple):
        names = getattr(cls, "_fields", None)
        return Fields(dict(zip(names, value, strict=False))) if names else None
    if cls.__module__.partition(".")[0] == "pandas" and hasattr(value, "iloc"):
        return Fields({"columns": list(getattr(value, "columns", ())), "rows": _rows(value)})
    if isinstance(value, functools.partial):
        return Fields({"func": value.func, "args": value.args, "keywords": value.keywords})
    if is_installed(cls) and not isinstance(value, _NAMESPACES):
        is_iterator = hasattr(cls, "__next__")  # such as an open file
        if is_iterator or not (callable(value) or hasattr(cls, "__getitem__") or hasattr(cls, "__iter__")):
            return None
    fields = _variables(value)
    if fields is None:
        return None
    if "_fingerprint" in fields and any(kin.__module__.startswith("datasets.") for kin in cls.__mro__):
        # Of a dataset of Hugging Face: it changes with every operation, and its attributes say less.
        return Fields({"_fingerprint": fields["_fingerprint"]})
    own = access_by_reading(cls, frozenset(path[0] for path in access.used if path))
    access = Access(own.changed | access.changed, own.used | access.used)
    return Fields({name: held for name, held in fields.items() if (name,) not in access.changed}, access)


def is_installed(thing: Any) -> bool:
    """Whether a class or a function is of Python or of an installed library."""
    name = getattr(thing, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    return name not in MAIN_NAMES and (file is None or file.startswith(_INSTALLED) or "-packages" in file)


def _variables(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, in slots too; None for one of C, which has none."""
    try:
        fields = dict(vars(value))
    except Exception:  # noqa: BLE001 - a property of the user's class, or none
        fields = None
    for kin in type(value).__mro__:
        slots = vars(kin).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            descriptor = vars(kin).get(f"_{kin.__name__.lstrip('_')}{name}" if _is_private(name) else name)
            if isinstance(descriptor, types.MemberDescriptorType):
                fields = fields or {}
                with_value = _slot(descriptor, value)
                fields.update(with_value)
    if fields is None or not _is_module(value):
        return fields
    blank = vars(sys.modules["torch"].nn.Module())
    contents = {name: fields.pop(name, {}) for name in ("_parameters", "_buffers", "_modules")}
    own = {name: held for name, held in fields.items() if name not in blank or name == "training"}
    return {**own, **contents["_parameters"], **contents["_buffers"], **contents["_modules"]}


def _slot(descriptor: types.MemberDescriptorType, value: Any) -> dict[str, Any]:
    try:
        return {descriptor.__name__: descriptor.__get__(value)}
    except AttributeError:
        return {}


def _is_private(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _rows(frame: Any) -> Any:
    """Some rows of a pandas object, evenly spread."""
    return frame.iloc[:: max(1, len(frame) // 256)].to_numpy()
