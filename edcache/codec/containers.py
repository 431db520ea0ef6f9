"""Containers: a value to its children and their keys in a schema, and back; a walk over the leaves of a value."""

from __future__ import annotations

import collections
import enum
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from edcache.base import CodecError, CorruptRecordError, EdcacheError, foreign_code
from edcache.codec import classes
from edcache.codec.classes import EnumKey, class_name, dataclass_fields, namedtuple_fields
from edcache.codec.leaves import Refusal, parse_class, type_name
from edcache.codec.packages import Form

Assemble = Callable[[list[Any]], Any]
ChildKeys = tuple[Any, ...]
# Schema node of a container without its last item, the children; names of the children; the children.
ContainerParts = tuple[tuple[Any, ...], Sequence[Any], Sequence[Any]]

_MISSING = object()


def disassemble(value: Any) -> ContainerParts:
    """Take apart a dataclass, a namedtuple or a registered object; Refusal if it cannot be stored."""
    cls: Any = type(value)
    known = classes.stored_as(cls)
    if isinstance(known, Form):
        return _disassemble_object(value, known)
    is_registered: bool = known is cls
    fields, names = dataclass_fields(cls), namedtuple_fields(cls)
    if names is not None and len(names) == len(value):
        if is_registered and getattr(value, "__dict__", None):
            raise Refusal(f"{type_name(value)} with attributes beside its fields; convert it to a dict")
        if is_registered:
            return ("namedtuple", *class_name(cls), names), names, tuple(value)
    elif fields is None:
        raise Refusal(
            f"{type_name(value)}; convert it to tensors, arrays or plain Python values, register its class with "
            f'edcache.register({cls.__name__}, encode=..., decode=...), or choose codec="pickle"'
        )
    elif is_registered:
        return _disassemble_dataclass(value, fields)
    raise Refusal(f"{type_name(value)}; register it with edcache.register({cls.__name__})")


def _disassemble_dataclass(value: Any, fields: tuple[str, ...]) -> ContainerParts:
    cls = type(value)
    values = [getattr(value, name, _MISSING) for name in fields]
    lost = next((name for name, item in zip(fields, values, strict=True) if item is _MISSING), None)
    if lost is not None:
        raise Refusal(f"{type_name(value)} whose field {lost!r} is not set; set it")
    slots = (
        name for kin in cls.__mro__ for name, slot in vars(kin).items() if inspect.ismemberdescriptor(slot)
    )
    for name in (*getattr(value, "__dict__", ()), *slots):
        is_cached = isinstance(getattr(cls, name, None), functools.cached_property)
        if name not in fields and not is_cached and hasattr(value, name):
            raise Refusal(
                f"{type_name(value)} with the attribute {name!r}, which is no field; make it a field"
            )
    return ("dataclass", *class_name(cls), fields), fields, values


def _disassemble_object(value: Any, form: Form) -> ContainerParts:
    def refusal(error: Exception) -> Refusal:
        told = (
            f" {error}" if isinstance(error, CodecError) else f"; its encode= raised {error!r:.200}; mend it"
        )
        return Refusal(f"{type_name(value)}{told}")

    with foreign_code(refusal):
        tree = form.encode(value)
    return ("object", *form.name), ["encode()"], [tree]


def dump_key(key: Any) -> Any:
    """Return the JSON of a dict key, in tuples. Raises: Refusal."""
    kind = type(key)
    if kind is str:
        return key
    if kind is int and -(1 << 63) <= key < 1 << 63:
        return "int", key
    remedy = ""
    if isinstance(key, enum.Enum) and isinstance(key, str):
        if classes.stored_as(kind) is kind and kind.__members__.get(key.name) is key:
            return "enum", *class_name(kind), key.name
        remedy = f"edcache.register({kind.__name__}), or "
    raise Refusal(
        f"a dict key of type {type_name(key)}; {remedy}"
        'use str or int (64 bits) keys, or choose codec="pickle"'
    )


def _parse_key(tree: Any) -> Any:
    """Parse the JSON of a dict key; ValueError or TypeError if it is none."""
    if type(tree) is str:
        return tree
    if type(tree) is list and tree[:1] == ["enum"]:
        _, *name, member = tree
        if type(member) is not str:
            raise ValueError("malformed key")
        return classes.enum_key(parse_class(*name), member)
    kind, value = tree
    if kind == "int" and type(value) is int:
        return value
    raise ValueError("malformed key")


class ContainerKind(NamedTuple):
    """Kind of container.

    Attributes:
        parse: (JSON between kind and children, number of children) to (keys of the children, `const` of the
            node); ValueError, TypeError.
        assemble: (keys, const) to the function that makes a container of a list of its children. No __init__ of a
            user's class runs, but in a registered `decode`.
    """

    parse: Callable[[list[Any], int], tuple[ChildKeys, Any]]
    assemble: Callable[[ChildKeys, Any], Assemble]


def _parse_sequence(header: list[Any], count: int) -> tuple[ChildKeys, Any]:
    if header:
        raise ValueError("malformed sequence")
    return tuple(range(count)), None


def _parse_fields(header: list[Any], count: int) -> tuple[ChildKeys, Any]:
    *name, fields = header
    is_list = type(fields) is list and all(type(field) is str for field in fields)
    if not is_list or len({*fields}) != len(fields):
        raise ValueError("malformed fields")
    return tuple(fields), parse_class(*name)


def _parse_mapping(header: list[Any], count: int) -> tuple[ChildKeys, Any]:
    (keys,) = header
    if type(keys) is not list:
        raise ValueError("keys are not a list")
    parsed = tuple(map(_parse_key, keys))
    if len(set(parsed)) != len(parsed):
        raise ValueError("a key comes twice")
    return parsed, None


def _mapping(cls: type) -> ContainerKind:
    def assemble(keys: ChildKeys, _: Any) -> Assemble:
        if any(type(key) is EnumKey for key in keys):
            return lambda values: cls(
                (key.resolve() if type(key) is EnumKey else key, value)
                for key, value in zip(keys, values, strict=True)
            )
        return lambda values: cls(zip(keys, values))  # noqa: B905 - strict costs time

    return ContainerKind(_parse_mapping, assemble)


def _assemble_namedtuple(keys: ChildKeys, name: Any) -> Assemble:
    return lambda values: tuple.__new__(classes.class_with(name, keys, namedtuple_fields), values)


def _assemble_dataclass(keys: ChildKeys, name: Any) -> Assemble:
    def assemble(values: list[Any]) -> Any:
        made: object = object.__new__(classes.class_with(name, keys, dataclass_fields))
        for field, value in zip(keys, values, strict=True):
            object.__setattr__(made, field, value)
        return made

    return assemble


def _assemble_object(keys: ChildKeys, name: Any) -> Assemble:
    def damage(error: Exception) -> Exception:
        if isinstance(error, EdcacheError):
            return error
        return CorruptRecordError(
            f"{'.'.join(name)}: its decode= raised {error!r:.200} over what its record holds"
        )

    users_code = foreign_code(damage)

    def assemble(values: list[Any]) -> Any:
        form = classes.lookup(name, Form)
        with users_code:
            return form.decode(values[0])

    return assemble


CONTAINERS: dict[str, ContainerKind] = {
    "list": ContainerKind(_parse_sequence, lambda keys, _: lambda values: values),
    "tuple": ContainerKind(_parse_sequence, lambda keys, _: tuple),
    "dict": _mapping(dict),
    "OrderedDict": _mapping(collections.OrderedDict),
    "namedtuple": ContainerKind(_parse_fields, _assemble_namedtuple),
    "dataclass": ContainerKind(_parse_fields, _assemble_dataclass),
    "object": ContainerKind(lambda header, _: (("encode()",), parse_class(*header)), _assemble_object),
}
OPAQUE = frozenset({"object"})
"""Containers that are one value to a reader: their children have no names."""


def children_of(value: Any) -> list[tuple[Any, Any]] | None:
    """List (key, value) of the children of a dict, dataclass, list or tuple; None for another value."""
    if isinstance(value, Mapping):
        return list(value.items())
    if (fields := dataclass_fields(type(value))) is not None:
        return [(name, getattr(value, name)) for name in fields]
    if (fields := namedtuple_fields(type(value))) is not None:
        return list(zip(fields, value, strict=True))
    return list(enumerate(value)) if isinstance(value, list | tuple) else None


def walk_leaves(
    value: Any, is_leaf: Callable[[Any, int], bool], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the leaves of a tree with their paths; `is_leaf(value, depth)` makes a container one leaf."""
    children = None if is_leaf(value, len(path)) else children_of(value)
    if children is None:
        yield path, value
        return
    for key, child in children:
        yield from walk_leaves(child, is_leaf, (*path, key))
