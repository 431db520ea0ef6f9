"""The classes that a record may name: registered ones, a fixed list's, and namedtuples found by looking.

Nothing here imports a module that a record names: whoever wrote the record would choose code to run. An enum,
a dataclass or an object is built only where this process registered its class, or where `packages` lists it.
A namedtuple is looked up among the registered classes and the modules already imported. Otherwise a stand-in
is made from its name and fields, which are checked to be identifiers, and a warning says so.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import keyword
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from unicodedata import normalize

from edcache import base
from edcache.base import CodecError, CorruptRecordError, OptionError, imported, module_name
from edcache.codec import packages
from edcache.codec.packages import ClassName, Form

_Class = TypeVar("_Class", bound=type)
_Entry = TypeVar("_Entry")

MAX_FIELDS = 1024

# By "module.qualname": `cls.__module__`, as it is in this process, or a name that was given.
_registered: dict[str, type] = {}
_forms: dict[str, Form] = {}
# How often `register` was called: what was compiled before may hold members of other classes.
changes = 0


def class_name(cls: type) -> ClassName:
    """Return (module, qualified name), the name of a class in schemas."""
    return module_name(cls), cls.__qualname__


def register(
    cls: _Class,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> _Class:
    """Allow a class in samples of this process; usable as a decorator for enums, dataclasses and namedtuples.

    A dataclass or a namedtuple comes back without running its __init__, __new__ or __post_init__: its fields
    are set directly. Any other class needs `encode` and `decode`, which undo each other. A later class of the
    same module and qualified name replaces an earlier one.

    Args:
        cls: a subclass of enum.Enum, a dataclass whose whole state is its fields, a namedtuple; with encode
            and decode any class. Objects of its subclasses are not included.
        name: "old.module.Name", under which records have what is this class now: they are read as it, too.
        encode: an object to a tree of values that the codec stores: dicts, lists, tensors, other registered
            classes, ...
        decode: such a tree to an object. It is given what an archive holds: an archive from a stranger may
            hold any tree.
    Returns:
        cls itself.
    Raises:
        OptionError: cls is none of these, or encode comes without decode.
    Safety: the table belongs to the process; register in a module that every worker imports.

    >>> edcache.register(Mesh, encode=lambda mesh: [mesh.points, mesh.faces], decode=lambda t: Mesh(*t))
    """
    if not isinstance(cls, type):
        raise OptionError(f"register: {base.shown(cls)} is not a class; pass an Enum subclass or a dataclass")
    shown = ".".join(class_name(cls))
    if (encode is None) != (decode is None):
        raise OptionError(f"register: {shown} comes with one of encode= and decode=; pass both")
    if encode is None and not issubclass(cls, enum.Enum) and not _is_namedtuple_class(cls):
        if not dataclasses.is_dataclass(cls):
            raise OptionError(
                f"register: {shown} is neither an Enum subclass, nor a dataclass, nor a namedtuple; pass "
                "encode= and decode=, which make a tree of it and it of the tree"
            )
        try:
            object.__new__(cls)
        except TypeError as error:
            raise OptionError(f"register: {shown} keeps state outside its fields ({error})") from None
    global changes
    changes += 1
    for key in (own_name(cls), name or own_name(cls)):
        if encode is not None and decode is not None:
            _forms[key] = Form(class_name(cls), cls, encode, decode)
        else:
            _forms.pop(key, None)
            _registered[key] = cls
    return cls


def own_name(cls: type) -> str:
    """The name of a class in this process."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _lookup(table: Mapping[str, _Entry], name: ClassName) -> _Entry | None:
    module, qualname = name
    keys = (f"{alias}.{qualname}" for alias in base.module_aliases(module))
    return next((table[key] for key in keys if key in table), None)


def _is_namedtuple_class(cls: type) -> bool:
    return issubclass(cls, tuple) and valid_fields(getattr(cls, "_fields", None))


def is_registered(cls: type) -> bool:
    """Tell whether this very class, an enum or a dataclass, may be stored."""
    return (
        _registered.get(own_name(cls)) is cls or packages.enum_named(class_name(cls), may_import=False) is cls
    )


def registered(name: ClassName, *, may_import: bool = True) -> type:
    """The class of that name, or CodecError; may_import: the module of an enum on the list."""
    cls = _lookup(_registered, name) or packages.enum_named(name, may_import=may_import)
    if cls is None:
        raise _unregistered(name, "")
    return cls


def _unregistered(name: ClassName, arguments: str) -> CodecError:
    module, qualname = name
    return CodecError(
        f"the record holds a {module}.{qualname}, which this process has not registered; "
        f"import it and call edcache.register({qualname.rpartition('.')[2]}{arguments}), "
        f'or where it is elsewhere now, register(..., name="{module}.{qualname}")'
    )


def form_of(cls: type) -> Form | None:
    """Return how objects of a class are stored, None if nobody said so."""
    form = _forms.get(own_name(cls))
    return form if form is not None and form.cls is cls else packages.form_of(cls)


def form_named(name: ClassName) -> Form:
    """Return how objects are stored that records call so; raises as `registered`."""
    form = _lookup(_forms, name) or packages.form_named(name)
    if form is None:
        raise _unregistered(name, ", encode=..., decode=...")
    return form


class EnumKey(NamedTuple):
    """A dict key that is a member of an enum whose class is not at hand."""

    name: ClassName
    member: str

    def __str__(self) -> str:
        return f"{self.name[1]}.{self.member}"

    def resolve(self) -> Any:
        """Return the member; raises as `registered` and `member_named`."""
        return member_named(registered(self.name), self.member)


def enum_key(name: ClassName, member: str) -> Any:
    """Return the member of an enum, or an EnumKey where that takes an import or a call of `register`."""
    try:
        cls = registered(name, may_import=False)
    except CodecError:
        return EnumKey(name, member)
    return member_named(cls, member)


def member_named(cls: Any, member: str) -> Any:
    """Return the member of an enum; CorruptRecordError where it has none of that name."""
    value = cls.__members__.get(member)
    if value is None:
        raise CorruptRecordError(f"{own_name(cls)} has no member {member[:80]!r}")
    return value


def fields_differ(name: ClassName, stored: tuple[str, ...], here: tuple[str, ...]) -> CodecError:
    """The error for a registered class that has other fields than a record."""
    return CodecError(
        f"the record holds a {'.'.join(name)} with fields {', '.join(stored)}; the class "
        f"registered now has {', '.join(here) or 'none'}; register one with the stored fields"
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
    for place, name in enumerate(fields):
        is_plain = type(name) is str and name.isidentifier() and not keyword.iskeyword(name)
        if not is_plain or (name.startswith("_") and name != f"_{place}"):
            return False
    # The compiler folds identifiers, so two names may be one.
    return len({normalize("NFKC", name) for name in fields}) == len(fields)


def find_namedtuple(name: ClassName, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the registered namedtuple class of that name, or the imported one, or a stand-in made for it."""
    cls: Any = _lookup(_registered, name)
    if cls is not None:
        if not _is_namedtuple_class(cls) or cls._fields != fields:
            raise fields_differ(name, fields, getattr(cls, "_fields", ()))
        return cls  # type: ignore[no-any-return]
    for cls in imported(*name):
        if isinstance(cls, type) and issubclass(cls, tuple) and getattr(cls, "_fields", None) == fields:
            return cls
    return _stand_in(name, fields)


@lru_cache(maxsize=128)
def _stand_in(name: ClassName, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    module, qualname = name
    short = qualname.rpartition(".")[2]
    if not short.isidentifier() or keyword.iskeyword(short):
        raise CorruptRecordError(f"schema: {short[:80]!r} does not name a namedtuple")
    # Cached, so that a class is warned of once.
    base.warn(
        f"records hold the namedtuple {module[:200]}.{qualname[:200]}, whose class with the fields "
        f"{', '.join(fields)[:200]} is not imported in this process: they come as a stand-in with that name "
        f"and those fields, without the class's methods; import {module[:200]}, or call "
        f"edcache.register({short[:200]}), before the first read",
        base.StandInWarning,
    )

    def reduce(self: tuple[Any, ...]) -> Any:
        # Pickled by its own name, it would make a worker import a module that the record names.
        return _stand_in_of, (name, fields, tuple(self))

    cls: type[tuple[Any, ...]] = collections.namedtuple(short, fields, rename=True)  # type: ignore[misc]
    for attribute, value in (("__stands_for__", name), ("__reduce__", reduce)):
        setattr(cls, attribute, value)
    return cls


def _stand_in_of(name: ClassName, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return tuple.__new__(find_namedtuple(name, fields), values)
