"""The classes that a record may name: registered enums and dataclasses, and namedtuples found by looking.

Nothing here imports a module that a record names. An enum or a dataclass is built only where this process
registered it; a namedtuple is looked up among modules already imported, and is otherwise made anew from its
name and fields, which are checked to be identifiers.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import keyword
import sys
import types
from functools import lru_cache
from typing import Any, TypeVar
from unicodedata import normalize

from edcache.errors import CorruptRecordError, OptionError, UnregisteredTypeError
from edcache.modules import module_aliases, module_name

_Class = TypeVar("_Class", bound=type)
ClassName = tuple[str, str]

MAX_FIELDS = 1024

_registered: dict[str, type] = {}
"""By "module.qualname": `cls.__module__`, as it is in this process, or a name that was given."""


def class_name(cls: type) -> ClassName:
    """Return (module, qualified name), the name of a class in schemas."""
    return module_name(cls), cls.__qualname__


def register(cls: _Class, *, name: str | None = None) -> _Class:
    """Allow an enum or a dataclass in samples of this process; usable as a decorator.

    A dataclass comes back without running its __init__ or __post_init__: its fields are set directly.
    A later class of the same module and qualified name replaces an earlier one.

    Args:
        cls: a subclass of enum.Enum, or a dataclass whose whole state is its fields.
        name: "old.module.Name", under which records have what is this class now: they are read as it, too.
    Returns:
        cls itself.
    Raises:
        OptionError: cls is neither.
    Safety: the table belongs to the process; register in a module that every worker imports.
    """
    if not isinstance(cls, type):
        raise OptionError(f"register: {cls!r} is not a class; pass an Enum subclass or a dataclass")
    if not issubclass(cls, enum.Enum):
        _check_dataclass(cls)
    for key in (_own_name(cls), name or _own_name(cls)):
        _registered[key] = cls
    return cls


def _own_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _check_dataclass(cls: type) -> None:
    shown = ".".join(class_name(cls))
    if not dataclasses.is_dataclass(cls):
        raise OptionError(f"register: {shown} is neither an Enum subclass nor a dataclass")
    try:
        object.__new__(cls)
    except TypeError as error:
        raise OptionError(f"register: {shown} keeps state outside its fields ({error})") from None


def is_registered(cls: type) -> bool:
    """Tell whether this very class is registered."""
    return _registered.get(_own_name(cls)) is cls


def registered(name: ClassName) -> type:
    """Return the registered class of that name.

    Raises:
        UnregisteredTypeError: with the call that would register it.
    """
    module, qualname = name
    for alias in module_aliases(module):
        if f"{alias}.{qualname}" in _registered:
            return _registered[f"{alias}.{qualname}"]
    raise UnregisteredTypeError(
        f"the record holds a {module}.{qualname}, which this process has not registered; "
        f"import it and call edcache.register({qualname.rpartition('.')[2]}), "
        f'or where it is elsewhere now, register(..., name="{module}.{qualname}")'
    )


def dataclass_fields(cls: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, in order."""
    return tuple(field.name for field in dataclasses.fields(cls))


def is_namedtuple(value: object) -> bool:
    """Tell whether a value is of a tuple subclass that looks like a namedtuple."""
    fields: Any = getattr(type(value), "_fields", None)
    return isinstance(value, tuple) and valid_fields(fields) and len(fields) == len(value)


def valid_fields(fields: Any) -> bool:
    """Tell whether a tuple of names can be the fields of a namedtuple."""
    if type(fields) is not tuple or len(fields) > MAX_FIELDS:
        return False
    if not all(type(name) is str and _valid_field(name, place) for place, name in enumerate(fields)):
        return False
    # The compiler folds identifiers, so two names may be one.
    return len({normalize("NFKC", name) for name in fields}) == len(fields)


def _valid_field(name: str, place: int) -> bool:
    if not name.isidentifier() or keyword.iskeyword(name):
        return False
    return not name.startswith("_") or name == f"_{place}"


def find_namedtuple(name: ClassName, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the imported namedtuple class of that name and those fields, or one made for them."""
    for module in module_aliases(name[0]):
        found: Any = sys.modules.get(module)
        if not isinstance(found, types.ModuleType):
            continue
        for part in name[1].split("."):
            found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
        if isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == fields:
            return found
    return _make_namedtuple(name[1].rpartition(".")[2], fields)


@lru_cache(maxsize=128)
def _make_namedtuple(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CorruptRecordError(f"schema: {name[:80]!r} does not name a namedtuple")
    return collections.namedtuple(name, fields, rename=True)
