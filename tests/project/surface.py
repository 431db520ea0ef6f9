"""What users see of the package, as text: `scripts/generate surface`."""

import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import edcache
from edcache.cli import main

FILE = Path(__file__).with_name("surface.txt")

# Classes of objects that users get from a call and do not make.
RETURNED = (
    "edcache.dataset.decorator.CachedFactory",
    "edcache.dataset.loader.Loader",
    "edcache.dataset.combined.Joined",
    "edcache.View",
)

_WIDTH = 110


def surface() -> str:
    """The public names, with the members of classes, the parameters of what is called, and the flags of commands."""
    lines = [_command(name, command) for name, command in main.commands.items()]
    for where in RETURNED:
        module, _, name = where.rpartition(".")
        lines += _class(name, getattr(import_module(module), name))
    for name in sorted({*edcache.__all__} - {"__version__", "View"}):
        lines += _lines(name, getattr(edcache, name))
    return "".join(f"{line}\n" for line in sorted(lines))


def _command(name: str, command: click.Command) -> str:
    arguments = [
        one.metavar or (one.name or "").upper() for one in command.params if isinstance(one, click.Argument)
    ]
    options = (one for one in command.params if isinstance(one, click.Option))
    flags = sorted(" ".join([*one.opts, *one.secondary_opts]) for one in options)
    return "\n    ".join([f"$ edcache {' '.join([name, *arguments])}", *flags])


def _lines(name: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value):
        if hasattr(value, "__all__"):
            for each in value.__all__:
                yield from _lines(f"{name}.{each}", getattr(value, each))
    elif isinstance(value, type) and issubclass(value, BaseException):
        yield f"{name}: {', '.join(base.__name__ for base in value.__bases__)}"
    elif isinstance(value, type):
        yield _call(name, value)
        yield from _class(name, value)
    else:
        yield _call(name, value)


def _class(name: str, value: type) -> Iterator[str]:
    for member in _members(value):
        yield _member(f"{name}.{member}", inspect.getattr_static(value, member, None))


def _members(kind: type) -> list[str]:
    """Public names that our own classes define or annotate."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("edcache.")]
    names = {name for base in ours for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    return sorted(name for name in names if not name.startswith("_"))


def _member(name: str, value: Any) -> str:
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if callable(value):
        return _call(name, value)
    can_set = isinstance(value, property) and value.fset is not None
    return f"{name}: attribute{', may be set' if can_set else ''}"


def _call(name: str, value: Any) -> str:
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(value).parameters.values()]
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    text = str(inspect.Signature(parameters))
    if len(name) + len(text) <= _WIDTH:
        return name + text
    return f"{name}(\n" + "".join(f"    {part},\n" for part in _parts(parameters)) + ")"


def _parts(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The positional ones in their order, then those by keyword, sorted: their order means nothing."""
    by_keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    yield from (str(p) for p in parameters if p not in by_keyword and p.kind is not p.VAR_KEYWORD)
    if by_keyword:
        yield "*"
    yield from sorted(map(str, by_keyword))
    yield from (str(p) for p in parameters if p.kind is p.VAR_KEYWORD)


if __name__ == "__main__":
    sys.stdout.write(surface())
