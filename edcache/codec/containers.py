"""Containers: a value taken apart into its children, their keys in a schema, and put together again."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from edcache.base import CorruptRecordError, EdcacheError
from edcache.codec import classes
from edcache.codec.classes import EnumKey, class_name, dataclass_fields, is_registered, own_name
from edcache.codec.images import pillow
from edcache.codec.leaves import Refusal, parse_class, text_bytes, type_name
from edcache.codec.packages import Form

Assemble = Callable[[list[Any]], Any]
Keys = tuple[Any, ...]
# Of a container: its schema node without the last item, the children; the names of these, and these.
Parts = tuple[tuple[Any, ...], Sequence[Any], Sequence[Any]]

_MISSING = object()


def disassemble(value: Any) -> Parts:
    """The parts of an object whose parts have names; Refusal where it is none, or cannot be stored."""
    cls = type(value)
    form = classes.form_of(cls)
    if form is not None:
        return _disassemble_object(value, form)
    if classes.is_namedtuple(value):
        if getattr(value, "__dict__", None):
            raise Refusal(f"{type_name(value)} with attributes beside its fields; convert it to a dict")
        # A stand-in is called what it stands for.
        name = vars(cls).get("__stands_for__") or class_name(cls)
        return ("namedtuple", *name, cls._fields), cls._fields, tuple(value)
    if dataclasses.is_dataclass(cls) and is_registered(cls):
        return _disassemble_dataclass(value)
    # None is one before Pillow is imported, or where its import is blocked.
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if image is not None and isinstance(value, image):
        return _disassemble_image(value)
    raise Refusal(f"{type_name(value)}; {_remedy(cls)}")


def _remedy(cls: type) -> str:
    if dataclasses.is_dataclass(cls):
        return f"register it with edcache.register({cls.__name__})"
    # Looked up by name, so that the text names a call that the reader's own type has.
    known = next((kin for kin in cls.__mro__ if own_name(kin) in _ADVICE), None)
    ways = [_ADVICE[own_name(known)] if known else "convert it to tensors, arrays or plain Python values"]
    if known is not cls:
        ways[0] += ", which drops its class and attributes" if known else ""
        ways.append(f"register its class with edcache.register({cls.__name__}, encode=..., decode=...)")
    return ", ".join([*ways, 'or choose codec="pickle"'])


_PLAIN_OF = {"set": "list", "frozenset": "list", "range": "list", "memoryview": "bytes"} | {
    name: name for name in ("dict", "list", "tuple", "int", "float", "complex", "str", "bytes")
}
_ADVICE = {f"builtins.{name}": f"convert it to a {target}" for name, target in _PLAIN_OF.items()} | {
    "torch.nn.parameter.Parameter": "call .detach() on it",
    "torch.Tensor": "call .as_subclass(torch.Tensor) on it",
    "numpy.ma.MaskedArray": "store its .data, its .mask and its .fill_value",
    "numpy.ma.core.MaskedArray": "store its .data, its .mask and its .fill_value",
    "numpy.ndarray": "call numpy.asarray() on it",
}


def _disassemble_dataclass(value: Any) -> Parts:
    cls = type(value)
    fields = dataclass_fields(cls)
    values = [getattr(value, name, _MISSING) for name in fields]
    lost = next((name for name, item in zip(fields, values, strict=True) if item is _MISSING), None)
    if lost is not None:
        raise Refusal(f"{type_name(value)} whose field {lost!r} is not set; set it")
    for name in getattr(value, "__dict__", ()):
        if name not in fields and not isinstance(getattr(cls, name, None), functools.cached_property):
            raise Refusal(
                f"{type_name(value)} with the attribute {name!r}, which is no field; make it a field"
            )
    return ("dataclass", *class_name(cls), fields), fields, values


def _disassemble_object(value: Any, form: Form) -> Parts:
    try:
        tree = form.encode(value)
    except Exception as error:  # whatever a user's function raises
        raise Refusal(f"{type_name(value)}; its encode= raised {error!r:.200}; mend it") from error
    return ("object", *form.name), ["encode()"], [tree]


# Bytes of one pixel in what Image.tobytes() returns; 0: packed bits, each row from a new byte.
_PIXEL_NBYTES: Final = {
    "1": 0, "L": 1, "P": 1, "LA": 2, "La": 2, "PA": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4,
    "RGBa": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2,
}  # fmt: skip
# Pillow allocates a pointer for each row, whatever the width: an image without pixels must stay small.
_MAX_EMPTY_SIDE: Final = 1 << 16


def _disassemble_image(image: Any) -> Parts:
    """The current frame alone is kept; the file format and the class are not."""
    palette_mode, palette = None, []
    try:
        image.load()
        pixels = image.tobytes()
        with contextlib.suppress(ValueError):  # it has none
            palette_mode = image.im.getpalettemode()
        if palette_mode is not None:
            palette = [bytes(image.im.getpalette(palette_mode, palette_mode))]
        info = _plain(dict(image.info))
    except (OSError, ValueError, SyntaxError, RuntimeError) as error:
        raise Refusal(f"an image that Pillow cannot load ({error}); repair its file or skip it") from error
    if image.mode not in _PIXEL_NBYTES or not _fits(image.mode, image.size, len(pixels)):
        raise Refusal(
            f"an image of mode {image.mode} and size {image.size}; "
            'convert it with .convert("RGB") or numpy.asarray()'
        )
    values = [*image.size, pixels, *palette, info]
    return ("image", image.mode, palette_mode), _image_keys(palette_mode), values


def _image_keys(palette_mode: str | None) -> tuple[str, ...]:
    palette = () if palette_mode is None else ("palette",)
    return ("width", "height", "pixels", *palette, "info")


def _plain(value: Any) -> Any:
    """Turn what Pillow leaves in `info` into plain values: its rationals and its texts with a language."""
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, str):
        return str.__str__(value)
    module = sys.modules.get("PIL.TiffImagePlugin")
    return float(value) if module is not None and isinstance(value, module.IFDRational) else value


def _fits(mode: str, size: tuple[int, int], nbytes: int) -> bool:
    width, height = size
    if not (0 <= width < 1 << 31 and 0 <= height < 1 << 31):
        return False
    if not width or not height:
        return nbytes == 0 and max(width, height) <= _MAX_EMPTY_SIDE
    row = width * _PIXEL_NBYTES[mode] or (width + 7) // 8
    return row * height == nbytes


def dump_key(key: Any) -> Any:
    """Return the JSON of a dict key, in tuples. Raises: Refusal."""
    kind = type(key)
    if kind is str:
        is_utf8 = key.isascii() or key.encode(errors="ignore") == text_bytes(key)
        return key if is_utf8 else ("str", text_bytes(key).hex())
    if kind is int and -(1 << 63) <= key < 1 << 63:
        return "int", key
    if kind is bool:
        return "bool", key
    if kind is float:
        return "float", struct.pack("<d", key).hex()
    if kind is bytes:
        return "bytes", key.hex()
    if key is None:
        return ("none",)
    remedy = ""
    if isinstance(key, enum.Enum) and isinstance(key, str):
        if is_registered(kind) and kind.__members__.get(key.name) is key:
            return "enum", *class_name(kind), key.name
        remedy = f"edcache.register({kind.__name__}), or "
    raise Refusal(
        f"a dict key of type {type_name(key)}; {remedy}"
        'use str, int (64 bits), bool, float, None or bytes keys, or choose codec="pickle"'
    )


def _parse_key(tree: Any) -> Any:
    """The dict key of its JSON; ValueError or TypeError where it is none."""
    if type(tree) is str:
        return tree
    if tree == ["none"]:
        return None
    if type(tree) is list and tree[:1] == ["enum"]:
        _, *name, member = tree
        if type(member) is not str:
            raise ValueError("malformed key")
        return classes.enum_key(parse_class(*name), member)
    kind, value = tree
    if (kind == "int" and type(value) is int) or (kind == "bool" and type(value) is bool):
        return value
    if kind == "bytes":
        return bytes.fromhex(value)
    if kind == "str":
        return bytes.fromhex(value).decode("utf-8", "surrogatepass")
    if kind == "float" and len(value) == 16:
        return float(struct.unpack("<d", bytes.fromhex(value))[0])
    raise ValueError("malformed key")


class ContainerKind(NamedTuple):
    """A kind of container.

    Attributes:
        parse: the JSON between the kind and the children, and how many these are, to the keys of the children
            and what the node carries; ValueError, TypeError.
        assemble: these to the function that makes a container of a list of its children. It runs no __init__
            of a user's class but in a `decode` that the user registered.
    """

    parse: Callable[[list[Any], int], tuple[Keys, Any]]
    assemble: Callable[[Keys, Any], Assemble]


def _parse_sequence(header: list[Any], count: int) -> tuple[Keys, Any]:
    if header:
        raise ValueError("malformed sequence")
    return tuple(range(count)), None


def _fields_parser(are_fields: Callable[[tuple[Any, ...]], bool]) -> Any:
    def parse(header: list[Any], count: int) -> tuple[Keys, Any]:
        *name, fields = header
        if type(fields) is not list or not are_fields(tuple(fields)):
            raise ValueError("malformed fields")
        return tuple(fields), parse_class(*name)

    return parse


def _are_names(fields: tuple[Any, ...]) -> bool:
    return all(type(field) is str for field in fields) and len({*fields}) == len(fields)


def _parse_image(header: list[Any], count: int) -> tuple[Keys, Any]:
    mode, palette_mode = header
    if mode not in _PIXEL_NBYTES or palette_mode not in (None, "RGB", "RGBA", "CMYK"):
        raise ValueError(f"image of mode {mode!r}")
    return _image_keys(palette_mode), (mode, palette_mode)


def _mapping(cls: type) -> ContainerKind:
    def parse(header: list[Any], count: int) -> tuple[Keys, Any]:
        (keys,) = header
        if type(keys) is not list:
            raise ValueError("keys are not a list")
        parsed = tuple(map(_parse_key, keys))
        if len(set(parsed)) != len(parsed):
            raise ValueError("a key comes twice")
        return parsed, None

    def assemble(keys: Keys, _: Any) -> Assemble:
        if any(type(key) is EnumKey for key in keys):
            return lambda values: cls(
                (key.resolve() if type(key) is EnumKey else key, value)
                for key, value in zip(keys, values, strict=True)
            )
        return lambda values: cls(zip(keys, values))  # noqa: B905 - strict costs time

    return ContainerKind(parse, assemble)


def _assemble_dataclass(keys: Keys, name: Any) -> Assemble:
    def assemble(values: list[Any]) -> Any:
        cls = classes.registered(name)
        fields = dataclass_fields(cls) if dataclasses.is_dataclass(cls) else ()
        if fields != keys:
            raise classes.fields_differ(name, keys, fields)
        made: object = object.__new__(cls)
        for field, value in zip(fields, values, strict=True):
            object.__setattr__(made, field, value)
        return made

    return assemble


def _assemble_image(_: Keys, modes: tuple[str, str | None]) -> Assemble:
    mode, palette_mode = modes

    def assemble(values: list[Any]) -> Any:
        width, height, pixels, info = (*values[:3], values[-1])
        if not _fits(mode, (width, height), len(pixels)):
            raise CorruptRecordError(
                f"image of mode {mode} and size {(width, height)} has {len(pixels)} bytes of pixels"
            )
        pil = pillow()
        try:
            image = pil.frombytes(mode, (width, height), pixels) if pixels else pil.new(mode, (width, height))
            if palette_mode is not None:
                image.putpalette(values[3], palette_mode)
        except (ValueError, TypeError, OSError, KeyError, SystemError) as error:
            raise CorruptRecordError(f"image of mode {mode} does not decode: {error}") from error
        image.info = info
        return image

    return assemble


def _assemble_object(keys: Keys, name: Any) -> Assemble:
    def assemble(values: list[Any]) -> Any:
        form = classes.form_named(name)
        try:
            return form.decode(values[0])
        except EdcacheError:
            raise
        except Exception as error:  # whatever a user's function raises
            raise CorruptRecordError(
                f"{'.'.join(name)}: its decode= raised {error!r:.200} over what its record holds"
            ) from error

    return assemble


CONTAINERS: dict[str, ContainerKind] = {
    "list": ContainerKind(_parse_sequence, lambda keys, _: lambda values: values),
    "tuple": ContainerKind(_parse_sequence, lambda keys, _: tuple),
    "dict": _mapping(dict),
    "OrderedDict": _mapping(collections.OrderedDict),
    "namedtuple": ContainerKind(
        _fields_parser(classes.valid_fields),
        lambda keys, name: lambda values: tuple.__new__(classes.find_namedtuple(name, keys), values),
    ),
    "dataclass": ContainerKind(_fields_parser(_are_names), _assemble_dataclass),
    "image": ContainerKind(_parse_image, _assemble_image),
    "object": ContainerKind(lambda header, _: (("encode()",), parse_class(*header)), _assemble_object),
}
OPAQUE = frozenset({"image", "object"})
"""Containers that are one value to whoever reads them: what lies in them has no name of its own."""
