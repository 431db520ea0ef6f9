"""Containers: a value taken apart into its children, and put together again."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from edcache.base import CorruptRecordError, EdcacheError
from edcache.codec.images import is_image, put_together, take_apart
from edcache.codec.leaves import Refusal, type_name
from edcache.codec.packages import Form
from edcache.codec.registry import (
    EnumKey,
    class_name,
    dataclass_fields,
    fields_differ,
    find_namedtuple,
    form_named,
    form_of,
    is_namedtuple,
    is_registered,
    namedtuple_name,
    registered,
)
from edcache.codec.schema import Node, dump_key

Assemble = Callable[[list[Any]], Any]

_MISSING = object()


class Parts(NamedTuple):
    """A container taken apart.

    Attributes:
        header: JSON of its schema node, without the last item, the children.
        keys: one for each child: dict key, index or field name.
        values: the children.
        attributes: the keys are names after a dot, rather than subscripts.
    """

    header: list[Any]
    keys: Sequence[Any]
    values: Sequence[Any]
    attributes: bool = False


def take(value: Any) -> Parts:
    """Take a container apart.

    Raises:
        Refusal: it is none, or one that cannot be stored.
    """
    make = _TAKE.get(type(value))
    if make is not None:
        return make(value)
    form = form_of(type(value))
    if form is not None:
        return _take_object(value, form)
    if is_namedtuple(value):
        return _take_namedtuple(value)
    if dataclasses.is_dataclass(type(value)) and is_registered(type(value)):
        return _take_dataclass(value)
    if is_image(value):
        return _take_image(value)
    raise Refusal(f"{type_name(value)}; {_remedy(value)}")


def _remedy(value: Any) -> str:
    cls = type(value)
    if dataclasses.is_dataclass(cls):
        return f"register it with edcache.register({cls.__name__})"
    # Looked up by name, so that the text names a call that the reader's own type has.
    known = next((kin for kin in cls.__mro__ if _name(kin) in _ADVICE), None)
    ways = [_ADVICE[_name(known)] if known else "convert it to tensors, arrays or plain Python values"]
    if known is not cls:
        ways[0] += ", which drops its class and attributes" if known else ""
        ways.append(f"register its class with edcache.register({cls.__name__}, encode=..., decode=...)")
    return ", ".join([*ways, 'or choose codec="pickle"'])


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_ADVICE = {
    "torch.nn.parameter.Parameter": "call .detach() on it",
    "torch.Tensor": "call .as_subclass(torch.Tensor) on it",
    "numpy.ma.MaskedArray": "store its .data, its .mask and its .fill_value",
    "numpy.ma.core.MaskedArray": "store its .data, its .mask and its .fill_value",
    "numpy.ndarray": "call numpy.asarray() on it",
    **{
        f"builtins.{name}": f"convert it to a {target}"
        for name, target in {
            "set": "list",
            "frozenset": "list",
            "dict": "dict",
            "list": "list",
            "tuple": "tuple",
            "range": "list",
            "int": "int",
            "float": "float",
            "complex": "complex",
            "str": "str",
            "bytes": "bytes",
            "memoryview": "bytes",
        }.items()
    },
}


def _take_sequence(value: Any) -> Parts:
    return Parts([type(value).__name__], range(len(value)), value)


def _take_mapping(value: Any) -> Parts:
    keys = [_key(key) for key in value]
    return Parts([type(value).__name__, keys], list(value), list(value.values()))


def _key(key: Any) -> Any:
    tree = dump_key(key)
    if tree is None:
        raise Refusal(
            f"a dict key of type {type_name(key)}; {_key_remedy(key)}"
            'use str, int (64 bits), bool, float, None or bytes keys, or choose codec="pickle"'
        )
    return tree


def _key_remedy(key: Any) -> str:
    return f"edcache.register({type(key).__name__}), or " if isinstance(key, enum.Enum) else ""


def _take_namedtuple(value: Any) -> Parts:
    if getattr(value, "__dict__", None):
        raise Refusal(f"{type_name(value)} with attributes beside its fields; convert it to a dict")
    fields = type(value)._fields
    header = ["namedtuple", *namedtuple_name(type(value)), list(fields)]
    return Parts(header, fields, tuple(value), attributes=True)


def _take_dataclass(value: Any) -> Parts:
    cls = type(value)
    fields = dataclass_fields(cls)
    values = [getattr(value, name, _MISSING) for name in fields]
    lost = [name for name, item in zip(fields, values, strict=True) if item is _MISSING]
    if lost:
        raise Refusal(f"{type_name(value)} whose field {lost[0]!r} is not set; set it")
    for name in getattr(value, "__dict__", ()):
        if name not in fields and not isinstance(getattr(cls, name, None), functools.cached_property):
            raise Refusal(
                f"{type_name(value)} with the attribute {name!r}, which is no field; make it a field"
            )
    return Parts(["dataclass", *class_name(cls), list(fields)], fields, values, attributes=True)


def _take_object(value: Any, form: Form) -> Parts:
    try:
        tree = form.encode(value)
    except Exception as error:
        raise Refusal(f"{type_name(value)}; its encode= raised {error!r:.200}; mend it") from error
    return Parts(["object", *form.name], ["encode()"], [tree], attributes=True)


def _take_image(value: Any) -> Parts:
    try:
        parts = take_apart(value)
    except (OSError, ValueError, SyntaxError, RuntimeError) as error:
        raise Refusal(f"an image that Pillow cannot load ({error}); repair its file or skip it") from error
    if parts is None:
        raise Refusal(
            f"an image of mode {value.mode} and size {value.size}; "
            'convert it with .convert("RGB") or numpy.asarray()'
        )
    return Parts(["image", parts.mode, parts.palette_mode], parts.keys, parts.values, attributes=True)


_TAKE: dict[type, Callable[[Any], Parts]] = {
    list: _take_sequence,
    tuple: _take_sequence,
    dict: _take_mapping,
    collections.OrderedDict: _take_mapping,
}


def assembler(node: Node) -> Assemble:
    """Return the function that makes a container of a list of its children.

    It runs no __init__ of a user's class but in a `decode` that the user registered.
    """
    return _ASSEMBLE[node.kind](node)


def _assemble_dict(node: Node) -> Assemble:
    keys = node.keys
    if any(type(key) is EnumKey for key in keys):
        return lambda values: dict(zip(_found(keys), values, strict=True))
    return lambda values: dict(zip(keys, values))  # noqa: B905 - equal by the schema's check; strict costs time


def _assemble_ordered(node: Node) -> Assemble:
    keys = node.keys
    return lambda values: collections.OrderedDict(zip(_found(keys), values, strict=True))


def _found(keys: Sequence[Any]) -> list[Any]:
    return [key.resolve() if type(key) is EnumKey else key for key in keys]


def _assemble_namedtuple(node: Node) -> Assemble:
    def assemble(values: list[Any]) -> Any:
        return tuple.__new__(find_namedtuple(node.const, node.keys), values)

    return assemble


def _assemble_dataclass(node: Node) -> Assemble:
    def assemble(values: list[Any]) -> Any:
        cls = registered(node.const)
        fields = dataclass_fields(cls) if dataclasses.is_dataclass(cls) else ()
        if fields != node.keys:
            raise fields_differ(node.const, node.keys, fields)
        made: object = object.__new__(cls)
        for name, value in zip(fields, values, strict=True):
            object.__setattr__(made, name, value)
        return made

    return assemble


def _assemble_object(node: Node) -> Assemble:
    def assemble(values: list[Any]) -> Any:
        form = form_named(node.const)
        try:
            return form.decode(values[0])
        except EdcacheError:
            raise
        except Exception as error:
            raise CorruptRecordError(
                f"{'.'.join(node.const)}: its decode= raised {error!r:.200} over what its record holds"
            ) from error

    return assemble


def _assemble_image(node: Node) -> Assemble:
    mode, palette_mode = node.const
    return lambda values: put_together(mode, palette_mode, values)


_ASSEMBLE: dict[str, Callable[[Node], Assemble]] = {
    "list": lambda node: lambda values: values,
    "tuple": lambda node: tuple,
    "dict": _assemble_dict,
    "OrderedDict": _assemble_ordered,
    "namedtuple": _assemble_namedtuple,
    "dataclass": _assemble_dataclass,
    "image": _assemble_image,
    "object": _assemble_object,
}
