"""Registered classes, which a record may name, as it may the classes and enums that `packages` lists.

Nothing here imports a module that a record names, since its author would choose code to run.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from edcache import base
from edcache.base import (
    CodecError,
    CorruptRecordError,
    MissingDependencyError,
    OptionError,
    module_name,
)
from edcache.codec import packages
from edcache.codec.packages import ClassName, Form

_Class = TypeVar("_Class", bound=type)
_Entry = TypeVar("_Entry", type, Form)

# By "module.qualname": `cls.__module__`, as in this process, or a name that the user gave.
_registered: dict[str, type | Form] = {}
# Calls of `register`: a decoder that was compiled before one may hold members of other classes.
changes = 0


def class_name(cls: type) -> ClassName:
    """Return (module, qualified name), the name of a class in schemas."""
    return module_name(cls), cls.__qualname__


@base.cut_traceback
def register(
    cls: _Class,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> _Class:
    """Allow a class in samples of this process; usable as a decorator for enums, dataclasses and namedtuples.

    A dataclass or a namedtuple comes back without running its __init__, __new__ or __post_init__: its fields are set
    directly. Any other class needs `encode` and its inverse `decode`. A later class of the same module and qualified
    name replaces an earlier one.

    Args:
        cls: a subclass of enum.Enum, a dataclass whose whole state is its fields, a namedtuple; with encode and decode
            any class. Objects of its subclasses are not included.
        name: "old.module.Name", a former name of this class in records, which are read as this class too.
        encode: converts an object to a tree of values that the codec stores: dicts, lists, tensors, other
            registered classes, ...
        decode: converts such a tree to an object. An archive from a stranger may hold any tree.
    Returns:
        cls itself.
    Raises:
        OptionError: cls is of another kind, or encode comes without decode.
    Safety: the table belongs to the process; register in a module that every worker imports.

    >>> edcache.register(Mesh, encode=lambda mesh: [mesh.points, mesh.faces], decode=lambda t: Mesh(*t))
    """
    if not isinstance(cls, type):
        raise OptionError(f"register: {base.shown(cls)} is not a class; pass an Enum subclass or a dataclass")
    shown = ".".join(class_name(cls))
    if (encode is None) != (decode is None):
        raise OptionError(f"register: {shown} comes with one of encode= and decode=; pass both")
    if encode is None and not issubclass(cls, enum.Enum) and namedtuple_fields(cls) is None:
        if dataclass_fields(cls) is None:
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
    has_form = encode is not None and decode is not None
    entry = Form(class_name(cls), cls, encode, decode) if has_form else cls  # type: ignore[arg-type]
    _registered.update({own_name(cls): entry, name or own_name(cls): entry})
    return cls


def own_name(cls: type) -> str:
    """Return the name of a class in this process."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _find(name: ClassName) -> type | Form | None:
    module, qualname = name
    keys = (f"{alias}.{qualname}" for alias in base.module_aliases(module))
    known = next((_registered[key] for key in keys if key in _registered), None)
    return known or packages.listed(name)


def stored_as(cls: type) -> type | Form | None:
    """Return a Form, or cls itself, if its objects are stored by their parts; None if not at all."""
    known = _registered.get(own_name(cls))
    if known is cls or (isinstance(known, Form) and known.cls is cls):
        return known
    form = packages.form_of(cls)
    return cls if form is None and packages.listed(class_name(cls)) is cls else form


def lookup(name: ClassName, kind: type[_Entry]) -> _Entry:
    """Look up the class or Form of a name in records. Raises: CodecError if unknown; MissingDependencyError."""
    known = _find(name)
    if not isinstance(known, kind):
        raise _unregistered(name, ", encode=..., decode=..." if kind is Form else "")
    return known


def _unregistered(name: ClassName, arguments: str) -> CodecError:
    module, qualname = name
    return CodecError(
        f"the record holds a {module}.{qualname}, which this process has not registered; "
        f"import it and call edcache.register({qualname.rpartition('.')[2]}{arguments}), "
        f'or where it is elsewhere now, register(..., name="{module}.{qualname}")'
    )


class EnumKey(NamedTuple):
    """Dict key: a member of an enum that is unknown here; so a schema is read without the class."""

    name: ClassName
    member: str

    def __str__(self) -> str:
        return f"{self.name[1]}.{self.member}"

    def resolve(self) -> Any:
        """Return the member; raises as `lookup` and `member_named`."""
        return member_named(lookup(self.name, type), self.member)


def enum_key(name: ClassName, member: str) -> Any:
    """Return the member of an enum, or an EnumKey if that takes a call of `register` or an installation."""
    try:
        return member_named(lookup(name, type), member)
    except (CodecError, MissingDependencyError):
        return EnumKey(name, member)


def member_named(cls: Any, member: str) -> Any:
    """Return the member of an enum; CorruptRecordError if it has none of that name."""
    value = cls.__members__.get(member)
    if value is None:
        raise CorruptRecordError(f"{own_name(cls)} has no member {member[:80]!r}")
    return value


def class_with(name: ClassName, fields: tuple[str, ...], fields_of: Callable[[Any], object]) -> Any:
    """Look up a class whose `fields_of` are these. Raises: CodecError, also as `lookup`; MissingDependencyError."""
    cls = lookup(name, type)
    here = fields_of(cls)
    if here != fields:
        raise CodecError(
            f"the record holds a {'.'.join(name)} with fields {', '.join(fields)}; the class "
            f"here has {', '.join(here) if isinstance(here, tuple) else 'none'}; register one with the stored fields"
        )
    return cls


def dataclass_fields(cls: Any) -> tuple[str, ...] | None:
    """Return the names of a dataclass's fields, in order; None for another class."""
    return tuple(field.name for field in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


def namedtuple_fields(cls: type) -> tuple[str, ...] | None:
    """Return the names of a namedtuple's fields; None for another class."""
    fields: Any = getattr(cls, "_fields", None)
    is_named = issubclass(cls, tuple) and type(fields) is tuple and all(type(name) is str for name in fields)
    return fields if is_named else None
