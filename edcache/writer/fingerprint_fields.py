"""What an object holds: the attributes that tell it from another of its class."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import inspect
import os
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from edcache.writer.fingerprint_access import Access, access_by_reading
from edcache.writer.fingerprint_code import REPR_IS_VALUE, is_installed

_NO_OBJECT: Final = (
    *(*REPR_IS_VALUE, type, types.ModuleType, enum.Enum, os.PathLike, np.ndarray, np.generic),
    *(list, dict, set, frozenset, types.MethodType),
)
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace, functools.partial)
NO_ACCESS: Final = Access()
OWN: Final = "__edcache_fingerprint__()"


class Fields(NamedTuple):
    """The attributes of an object by name, and what reading does with them."""

    values: dict[str, Any]
    access: Access = NO_ACCESS


def exact_fields(value: Any) -> Fields | None:
    """The fields of what says them all: of a dataclass, a named tuple, an object that says what it is."""
    if hasattr(type(value), "__edcache_fingerprint__"):
        return Fields({OWN: type(value).__edcache_fingerprint__(value)})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return Fields({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    return Fields(value._asdict()) if isinstance(value, tuple) and hasattr(value, "_asdict") else None


def fields_of(value: Any, access: Access = NO_ACCESS) -> Fields | None:
    """The attributes of an object that tell it from another, by name; None for what is no such object.

    An object is what is read or called: a dataset, a transform, a dataclass, anything whose class is not
    of an installed library. Attributes that reading changes are not among them.

    Args:
        access: what reading of whoever holds the object does with it.
    """
    cls = type(value)
    if hasattr(cls, "__edcache_fingerprint__"):
        answer = cls.__edcache_fingerprint__(value)
        return Fields(dict(answer) if isinstance(answer, Mapping) else {OWN: answer})
    if isinstance(value, _NO_OBJECT) or inspect.isroutine(value) or _inherits(value, "torch.Tensor"):
        return None
    if isinstance(value, tuple):
        names = getattr(cls, "_fields", None)
        return Fields(dict(zip(names, value, strict=False))) if names else None
    if cls.__module__.partition(".")[0] == "pandas" and hasattr(value, "iloc"):
        rows = value.iloc[:: max(1, len(value) // 256)].to_numpy()
        return Fields({"columns": list(getattr(value, "columns", ())), "rows": rows})
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
    access = access_by_reading(cls, access)
    return Fields({name: held for name, held in fields.items() if (name,) not in access.changed}, access)


def _variables(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, in slots too; None for one of C, which has none."""
    try:
        fields = dict(vars(value))
    except Exception:  # noqa: BLE001 - a property of the user's class, or none
        fields = None
    for kin in type(value).__mro__:
        for name, slot in vars(kin).items():
            if isinstance(slot, types.MemberDescriptorType) and "__slots__" in vars(kin):
                fields = fields or {}
                with suppress(AttributeError):  # nothing was assigned yet
                    fields[name] = slot.__get__(value)
    if fields is None or not _inherits(value, "torch.nn.modules.module.Module"):
        return fields
    blank = vars(sys.modules["torch"].nn.Module())
    contents = [fields.pop(name, {}) for name in ("_parameters", "_buffers", "_modules")]
    own = {name: held for name, held in fields.items() if name not in blank or name == "training"}
    return functools.reduce(lambda known, more: {**known, **more}, contents, own)


def _inherits(value: Any, name: str) -> bool:
    """The same as isinstance(), for a class of a library that may not be imported."""
    return any(f"{kin.__module__}.{kin.__qualname__}" == name for kin in type(value).__mro__)
