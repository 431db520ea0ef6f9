"""`memoize`: a function whose results are kept in a `KeyedCache`, by its arguments."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, ParamSpec, TypeVar, overload

import numpy as np

from edcache import base, format, identity, storage, writer
from edcache.base import (
    ArchiveNotFoundError,
    OptionError,
    SourceError,
    StaleArchiveError,
    StaleCacheError,
    described,
)
from edcache.dataset.keyed_cache import KeyedCache, in_use, options_of, values_of
from edcache.format import stored_keys

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
V = TypeVar("V")
_VAR_POSITIONAL: Final = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD: Final = inspect.Parameter.VAR_KEYWORD


class CacheInfo(NamedTuple):
    """Results that a memoized function found, and computed, in this process; and the number that its archive has."""

    hits: int
    misses: int
    currsize: int


@base.cut_traceback
class Memoized(Generic[P, V]):
    """Function whose results are kept; the result of `memoize`."""

    def __init__(
        self,
        function: Callable[P, V],
        path: str | os.PathLike[str] | None,
        key: Callable[..., Any] | None,
        version: object,
        options: base.WriteKeywords,
    ) -> None:
        functools.update_wrapper(self, function)
        options_of(options, "memoize")  # refused here, not in the first call
        self._function, self._path, self._key = function, path, key
        self._version, self._options = version, options
        self._asks: list[str] = []
        try:
            self._signature = inspect.signature(function)
        except ValueError as error:
            raise OptionError(
                f"memoize: {error}; give a function that calls it, with its arguments by name"
            ) from None
        kinds = [parameter.kind for parameter in self._signature.parameters.values()]
        self._is_of_one = len(kinds) == 1 and kinds[0] not in (_VAR_POSITIONAL, _VAR_KEYWORD)
        self._turn, self._calls, self._misses = base.ForkLock(), 0, 0

    def __repr__(self) -> str:
        return f"<memoized {self._name}>"

    @property
    def _name(self) -> str:
        """Name of the function; of a partial the one of its function, of an object the one of its class."""
        function: Any = self._function
        while isinstance(function, functools.partial):
            function = function.func
        return identity.qualified_name(function)

    def __reduce__(self) -> str:
        # By name, as functions: the name leads to this object, not to the bare function.
        if not hasattr(self._function, "__qualname__"):
            raise TypeError(
                f"{self!r} is pickled by its name, which {described(self._function)} has not; "
                "memoize a function"
            )
        return self._function.__qualname__

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind as a function would; `self` is an argument then, which `key` must name."""
        return self if instance is None else functools.partial(self.__call__, instance)  # type: ignore[arg-type]

    @base.once
    def cache(self) -> KeyedCache:
        """Values by key; the first call opens the archive."""
        # Keywords of a partial are arguments, and so parts of the key, unless `key` makes it.
        function: Any = self._function
        is_partial = isinstance(function, functools.partial) and self._key is not None
        keywords = function.keywords if is_partial else {}
        made_by = replace(identity.recipe_of_call(self._function, keywords, self._version), again=None)
        cache = KeyedCache(self._store().path, fingerprint=made_by, **self._options)
        with in_use(cache) as session:
            self._asks = session.asks
        return cache

    def _compare(self, calls: Mapping[str, tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
        """Compute a kept result again if the code of the function has changed since. Raises: StaleCacheError.

        Warns if the function raises, or its results do not repeat.
        """
        with in_use(self.cache) as session:
            kept = zip(session.find([*calls]), calls.values(), strict=True)
            found, (args, kwargs) = next(
                ((one, call) for one, call in kept if one is not None), (None, ((), {}))
            )
            if found is None:
                return
            names, self._asks = ", ".join(self._asks), []
            record, schema = session.record(found)
            stored, kind = (schema, bytes(record)), session.codec
        try:
            with base.foreign_code(lambda error: SourceError(f"raised {error!r:.200}")):
                again = identity.recompute([lambda: self._function(*args, **kwargs)], kind, 2, stored)
        except SourceError as error:  # the kept result is returned
            base.warn(f"{self.cache.path}: the code of {names} changed since, and {error}")
            return
        other = identity.find_other(stored, again, None, kind, True)
        if other is not None:
            raise StaleCacheError(
                f"{self.cache.path}: a result is another one now: {other}; the code of {names} changed. Use another "
                "path or version=, or delete the archive by cache_clear()",
                path=self.cache.path,
                option="version",
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Return the kept result for some arguments, or compute it. Raises: as `KeyedCache.get_or_create`."""
        return self._results([(args, kwargs)])[0]

    def many(self, arguments: Iterable[Any]) -> list[V]:
        """Return the results for several arguments; missing ones are computed one by one, and stored together.

        If the function raises, the ones before are stored.

        arguments: any iterable; of a function of several arguments it has tuples.
        """
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for argument in arguments:
            spreads = isinstance(argument, tuple) and not self._is_of_one
            calls.append((argument if spreads else (argument,), {}))
        return self._results(calls)

    def _results(self, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[V]:
        keys = [self._key_of(args, kwargs) for args, kwargs in calls]
        by_key = dict(zip(keys, calls, strict=True))

        def create(missing: list[str]) -> Iterator[V]:
            with self._turn.held():
                self._misses += len(missing)
            for key in missing:
                args, kwargs = by_key[key]
                yield self._function(*args, **kwargs)

        with self._turn.held():
            self._calls += len(calls)
        cache = self.cache
        if self._asks:
            self._compare(by_key)
        return values_of(cache, keys, keys, create)

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a result, as it is stored."""
        if self._key is not None:
            return stored_keys([self._key(*args, **kwargs)])[0]
        name = self._name.partition(":")[2]
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        bound.apply_defaults()
        values = tuple(self._part_of_key(name, *item) for item in bound.arguments.items())
        is_plain = self._is_of_one and type(values[0]) in (str, bytes, int)
        # Also of numbers and None, which no key of the user's may have.
        return stored_keys(values)[0] if is_plain else format.written_key(values)

    def _part_of_key(self, function: str, name: str, value: Any) -> Any:
        if self._signature.parameters[name].kind == _VAR_KEYWORD:
            return tuple((key, _plain(function, key, value[key])) for key in sorted(value))
        return _plain(function, name, value)

    def cache_info(self) -> CacheInfo:
        """Return the hits and misses of this process, and the number of results in the archive."""
        return CacheInfo(self._calls - self._misses, self._misses, len(self.cache))

    def cache_clear(self) -> None:
        """Delete the archive; the next call begins another.

        Another process that has it open reads what it had; a new result there raises a StaleArchiveError.
        """
        cache = vars(self).pop("cache", None)
        if cache is not None:
            with suppress(StaleArchiveError):  # another process has deleted it
                cache.close()
        store = self._store()
        if not store.begin_anew():
            with suppress(ArchiveNotFoundError):
                storage.remove(store.path)
        self._calls = self._misses = 0

    def _store(self) -> writer.Store:
        name = self._name
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        default = f"memoize-{re.sub('[^A-Za-z0-9_.]+', '.', name)}-{digest}.zip"
        return writer.store_at(self._path or os.path.join(storage.cache_folder(), default))


def _plain(function: str, name: str, value: Any) -> Any:
    """Return an argument as a part of a key. Raises: OptionError, it is no plain value."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return tuple(_plain(function, name, item) for item in value)
    if value is not None and type(value) not in (str, bytes, int, float, bool):
        raise OptionError(
            f'argument "{name}" of {function}() is {described(value)}; a key is made of text, bytes, numbers, None '
            "and tuples of these: give memoize(key=), a function of the arguments that returns one",
            option="key",
        )
    return value


@overload
def memoize(path: Callable[P, V], /) -> Memoized[P, V]: ...
@overload
def memoize(
    path: str | os.PathLike[str] | None = None,
    *,
    key: Callable[..., Any] | None = None,
    version: object = None,
    **keywords: Unpack[base.WriteKeywords],
) -> Callable[[Callable[P, V]], Memoized[P, V]]: ...
@base.cut_traceback
def memoize(
    path: Any = None,
    *,
    key: Callable[..., Any] | None = None,
    version: object = None,
    **keywords: Unpack[base.WriteKeywords],
) -> Any:
    """Keep the results of a function in a `KeyedCache`: `functools.cache` that stays.

    Args:
        path: the archive. Without one it is in `$EDCACHE_DIR` (default `~/.cache/edcache`), by the function's name.
        key: a function of the arguments that returns the key of a result. By default one argument that is text, bytes
            or an int is the key, and else the tuple of all arguments, with defaults: text, bytes, numbers, None and
            tuples of these.
        version: change it if the function returns other results than before.
        keywords: as of `KeyedCache`.
    Returns:
        The function, with `.many(arguments)`, `.cache_info()`, `.cache_clear()` and `.cache`, the KeyedCache. It is
        pickled by its name.
    Raises:
        OptionError: in a call, an argument has no key; `self` of a method is one. StaleCacheError: in the first call,
            another function or version made the archive. SourceError: the function raised, and the error is its cause.
    Cost: a call for a kept result takes some 0.1 ms.

    >>> @edcache.memoize("embeddings.zip", version="clip-b32")
    ... def embedding(prompt):
    ...     return encoder(prompt)
    """
    if callable(path):
        return Memoized(path, None, None, None, {})
    return lambda function: Memoized(function, path, key, version, keywords)
