"""A call of a dataset factory as the command line names it: loaded, its arguments bound, not made yet."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NoReturn

import click

from edcache import dataset, writer
from edcache.base import CacheOptions, OptionError


class Call:
    """A call of a dataset factory that was not made yet.

    Args:
        where: "package.module:factory"; the module is imported, with the current folder on the path.
        arguments: texts "name=value"; a value is read as JSON where it is JSON, and as text elsewhere.
        version: the text of the user's version, read alike; None takes that of @cachable.
    Attributes:
        options: of a function under @cachable, its options, but for how to read and when to fill.
    """

    def __init__(self, where: str, arguments: Sequence[str], version: str | None) -> None:
        self._where = where
        self._given = dict(map(_argument, arguments))
        self._version = None if version is None else _value(version)
        self._factory = _loaded(where)
        self.options = CacheOptions()
        if isinstance(self._factory, dataset.CachedFactory):
            decorated = self._factory
            self.options = replace(decorated.options, verify="touch", lazy=False, keep_existing=True)
            self._version = decorated.version if self._version is None else self._version
            self._factory = decorated.uncached
        try:
            bound = inspect.signature(self._factory).bind(**self._given)
        except TypeError as error:
            raise click.UsageError(f"{where}: {error}; give its arguments as --arg name=value") from None
        except ValueError as error:
            raise OptionError(f"{where}: {error}; name a function or a class of Python") from error
        bound.apply_defaults()
        self._arguments = dict(bound.arguments)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the call; nothing is called."""
        return writer.call_fingerprint(self._factory, self._arguments, self._version)

    def make(self) -> Any:
        """Call the factory."""
        try:
            source = self._factory(**self._given)
        except Exception as error:  # whatever the factory raises
            raise OptionError(f"{self._where} raised {_named(error)}") from error
        if source is None:
            raise OptionError(f"{self._where} returned None; let it return the dataset")
        return source


def _loaded(where: str) -> Any:
    """The function that "package.module:function" names; the current folder is on the path."""
    module, _, attribute = where.partition(":")
    if not (module and attribute):
        raise click.UsageError(f'"{where}"; write it as package.module:factory')
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory: Any = import_module(module)
        for name in attribute.split("."):
            factory = getattr(factory, name)
    except Exception as error:  # whatever importing the module raises
        raise OptionError(f'cannot load "{where}": {_named(error)}') from error
    if not callable(factory):
        raise OptionError(f'"{where}" is {factory!r}, not a function that makes a dataset; name one')
    return factory


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}; EDCACHE_DEBUG=1 shows the traceback"


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f'"{text}"; write it as name=value', param_hint="--arg")
    return name, _value(value)


def _value(text: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return text
