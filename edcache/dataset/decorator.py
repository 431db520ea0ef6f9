"""`@cachable`: fingerprint a call of a dataset factory, fill its archive if needed, open it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, Protocol, get_args, overload

from edcache import base, identity, writer
from edcache.base import CacheOptions, FillOptions, OnStale, OptionError, SourceError, StaleCacheError, takes
from edcache.dataset.build import label_differences
from edcache.dataset.cached import OPENING, CachedDataset, Source, check_fillable
from edcache.dataset.indexing import T_co
from edcache.identity import Keyed, Recipe
from edcache.labels import LabelSpec
from edcache.reader import Reader, Session
from edcache.storage import cache_folder, shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")

# Longest time of a call and a sample that are computed again unasked, where opening would call nothing.
_CALL_SECONDS: Final = 0.5

_Reaction = Literal["same", "ignore", "fill", "rebuild"]
"""Reaction to a verdict by `on_stale`: two open the archive, two fill it, from its samples on or anew."""

# Parts of a call that no `on_stale="ignore"` lets pass.
_OF_CALL: Final = "argument ", "version: ", "weights ", "others: "


class _SamplesOfCall(writer.StoredSamples):
    """Samples of an archive, whose source a call makes when they are drawn.

    failure: makes the error of a call that raises. Data that is elsewhere is no error where nothing asks.
    has_other_keys: True if the source has keys, and others than the archive.
    """

    has_other_keys = False

    def __init__(
        self,
        session: Session,
        options: CacheOptions,
        make: Callable[[], Any],
        failure: Callable[[Exception], SourceError],
    ) -> None:
        job = writer.Job(
            None, session.path, session.head, LabelSpec({}), options=FillOptions.part_of(options)
        )
        super().__init__(job, session, adds=False)
        self._make, self._failure, first = make, failure, self.first
        self.is_cheap = first is not None and first.call_seconds + first.seconds <= _CALL_SECONDS

    def drawn(self, most: int) -> list[tuple[int, int]]:
        """Make the source, and draw samples. Raises: StaleCacheError, it has another length."""
        with base.foreign_code(self._failure):
            source = writer.declared(writer.by_items(self._make()))
            keyed = Keyed.of(source)
        self.has_other_keys = keyed is not None and keyed.digest != self.session.origin.keys_digest
        if self.has_other_keys:
            return []  # samples are in other places
        self.use(source)
        if keyed is None and not self.is_stream:
            writer.check_length(self.path, self.session.length, writer.length_of(source, self.path))
        return super().drawn(most) if self.is_repeated else []


@base.cut_traceback
class CachedFactory(Generic[P, T_co]):
    """Dataset factory whose datasets are cached; the result of `@cachable`.

    `uncached` is the function itself, `version`, `ignored` and `options` the arguments of the decorator.
    """

    def __init__(
        self,
        factory: Callable[P, Any],
        path: str | None,
        version: object,
        on_stale: OnStale,
        options: CacheOptions,
        ignore: Sequence[str] = (),
    ) -> None:
        base.check_choice("on_stale", on_stale, get_args(OnStale))
        check_fillable(options)
        functools.update_wrapper(self, factory)
        self.uncached, self.version, self.options = factory, version, options
        self._path, self._on_stale, self.ignored = path, on_stale, ignore
        self._read_options = base.provisional(options)
        self._signature = inspect.signature(factory)
        # Paths of archives that this process has filled, or has compared a sample with.
        self._compared = set[str]()

    def __repr__(self) -> str:
        return f"<cachable {identity.qualified_name(self.uncached)}>"

    def __reduce__(self) -> str:
        # By name, as functions: the name leads to this object, not to the bare factory.
        return self.uncached.__qualname__

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind as a function would, so that methods can be decorated."""
        return self if instance is None else functools.partial(self.__call__, instance)  # type: ignore[arg-type]

    def cache_path(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the path or the URL, without credentials, of the archive of this call; nothing is opened."""
        arguments = self._arguments(args, kwargs)
        return shown(self._locate(arguments, self._described(arguments)))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> CachedDataset[T_co]:
        """Open the archive of this call. Missing samples are computed first.

        Raises:
            StaleCacheError: the archive at the path was made by a call with other arguments.
            SourceError: as `CachedDataset` raises it.
        """
        arguments, options = self._arguments(args, kwargs), self.options
        # Before the factory runs, which may change the working folder.
        call = self._described(arguments)
        store = writer.store_at(self._locate(arguments, call), options.storage_options)
        archive, rebuild = store.found(self._read_options), False
        make = functools.partial(self.uncached, *args, **kwargs)
        if archive is not None and archive.session.complete and not options.grow:
            reaction = self._reaction(archive.session, call, make, adds=False)
            if reaction in ("same", "ignore"):
                if options.preload:
                    archive.close()
                    archive = store.reader(replace(self._read_options, preload=options.preload))
                return CachedDataset(None, archive, options)
            rebuild = reaction == "rebuild"
        began = time.monotonic()
        source = make()
        call = replace(call, seconds=time.monotonic() - began)
        filled = self._filled(store, archive, source, call, rebuild)
        self._compared.add(store.path)
        return filled

    def _filled(
        self,
        store: writer.Store,
        archive: Reader | None,
        source: Any,
        call: Recipe,
        rebuild: bool,
    ) -> CachedDataset[T_co]:
        """Compare the source with an archive by `on_stale`, compute the missing samples, and open it."""
        writer.check_source(source, store.path)
        recipe, options, adds = identity.recipe_of(source, call), self.options, True
        origin: Recipe | bool = recipe
        if archive is not None and not rebuild:
            adds = not archive.session.complete or (recipe.count or 0) > archive.session.length
            reaction = self._reaction(archive.session, recipe, None, adds=adds)
            rebuild, origin = reaction == "rebuild", False if reaction == "ignore" else recipe
        options = replace(options, keep_existing=options.keep_existing and not rebuild)
        try:
            return CachedDataset(source, store, options, fingerprint=origin)
        except StaleCacheError as error:
            if error.option != "spot_check":
                raise
            reaction = self._react(error, adds=adds)
        if reaction == "rebuild":
            return CachedDataset(source, store, replace(options, keep_existing=False), fingerprint=recipe)
        return CachedDataset(source, store, replace(options, spot_check=False), fingerprint=False)

    def _reaction(
        self, session: Session, recipe: Recipe, make: Callable[[], Any] | None, *, adds: bool
    ) -> _Reaction:
        """Compare an archive with a call, or with the source that it made, and react by `on_stale`.

        make: the call, which is made to compare samples if something asks, or once in each process if that is cheap;
            None where `CachedDataset` compares.
        adds: True if samples may be added to the archive.
        """
        found, path = session.origin.fingerprint, session.path
        verdict, is_ignored = identity.compare(found, recipe), self._on_stale == "ignore"
        changed = label_differences(session.origin, self.options.in_memory_keys, session.complete)
        # Differences of a source may be let pass; another call of the function never.
        is_other_call = any(line.startswith(_OF_CALL) for line in verdict.refused)
        try:
            if verdict.refused or changed:
                remedy = 'use another path, delete the file, or pass on_stale="rebuild"'
                remedy += "" if is_other_call else ' (or "ignore", to use it as it is)'
                message = verdict.message(path, remedy, changed)
                raise StaleCacheError(message, path=path, option="on_stale")
            is_other_call = any(f"{name}: ".startswith(_OF_CALL) for name in verdict.asks)
            is_asked = bool(verdict.asks) or path not in self._compared
            if make is not None and is_asked and (is_other_call or not is_ignored):
                samples = _SamplesOfCall(session, self.options, make, self._failure)
                verdict = identity.compare(found, recipe, samples)
                if samples.has_other_keys:
                    return "fill"  # as `CachedDataset` does: samples come and go
                verdict.settle(path)
                self._compared.add(path)
        except StaleCacheError as error:
            return self._react(error, adds=adds, is_other_call=is_other_call)
        return "ignore" if is_ignored else "same"

    def _react(self, error: StaleCacheError, *, adds: bool, is_other_call: bool = False) -> _Reaction:
        """Raise an error, or do what `on_stale` says."""
        if self._on_stale == "rebuild":
            return "rebuild"
        if self._on_stale == "ignore" and not is_other_call:
            return "ignore"
        if self._on_stale != "warn" or adds:
            raise error
        base.warn(str(error))
        return "ignore"

    def _failure(self, error: Exception) -> SourceError:
        return SourceError(f"{self.uncached.__qualname__}() raised {type(error).__name__}: {error}")

    def _described(self, arguments: Mapping[str, Any]) -> Recipe:
        return identity.recipe_of_call(self.uncached, arguments, self.version, self.ignored)

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.uncached.__qualname__}(): {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _locate(self, arguments: Mapping[str, Any], call: Recipe) -> str:
        if self._path is None:
            return _default_path(self.uncached, call, arguments)
        # No other one: to write a value may take long, or raise.
        path = self._path.replace("{{", "")
        named = [name for name in arguments if re.search(rf"\{{{name}\b", path)]
        slugs = {name: _slug(arguments[name]) for name in named}
        try:
            return self._path.format(**slugs)
        except (KeyError, IndexError) as error:
            raise OptionError(
                f'the path "{shown(self._path)}" contains {{{error.args[0]}}}, but the parameters of '
                f"{identity.qualified_name(self.uncached)} are: {', '.join(arguments) or 'none'}"
            ) from None
        except (ValueError, AttributeError, TypeError) as error:
            raise OptionError(
                f'the path "{shown(self._path)}" cannot be formatted: {error}; write parameters as in '
                '"cache/{split}.zip"'
            ) from None


class _Decorator(Protocol):
    def __call__(self, factory: Callable[P, Source[T_co] | Iterable[T_co]], /) -> CachedFactory[P, T_co]: ...


@overload
def cachable(path: Callable[P, Source[T_co] | Iterable[T_co]], /) -> CachedFactory[P, T_co]: ...
@overload
def cachable(
    path: str | os.PathLike[str] | None = None,
    *,
    version: object = None,
    on_stale: OnStale = "error",
    ignore: str | Sequence[str] = (),
    **keywords: Unpack[base.CacheKeywords],
) -> _Decorator: ...
@takes(CacheOptions, without=OPENING)
@base.cut_traceback
def cachable(
    path: Any = None,
    *,
    version: object = None,
    on_stale: OnStale = "error",
    ignore: str | Sequence[str] = (),
    **keywords: Any,
) -> Any:
    """Cache the datasets that a function returns. The first call fills an archive, later calls open it.

    Args:
        path: the path or URL of the archive. It may contain parameters of the function: "cache/{split}.zip",
            "shm://digits-{split}". Without a path the archive is in `$EDCACHE_DIR` (default `~/.cache/edcache`), and
            its name is made from the call.
        version: any value. Change it when the function begins to return other samples.
        on_stale: the reaction to an archive of other arguments, another version, or, if the function is run, another
            dataset. "error" raises StaleCacheError, which shows the difference. "warn" uses the archive with a warning,
            but is "error" if samples would be added. "rebuild" builds it again. "ignore" uses it in silence, but is
            "error" for other arguments, other weights of a model and another version.
        ignore: arguments that make no samples, and fields in them: `ignore=["verbose", "cfg.lr"]`.
        keywords: these options.
    Returns:
        A decorator. A call of the decorated function returns a CachedDataset. `.uncached` is the function itself, and
        `.cache_path(*args, **kwargs)` returns the path of the archive of a call.
    Raises:
        OptionError: "on_stale='often'; choose one of ...", before any call.
        OptionError: in a call, an ignored name leads to nothing.
        StaleCacheError: in a call, see on_stale.
        SourceError: in a call, as `CachedDataset` raises it.

    If the archive is complete, a call runs the function and compares a sample, another one each time: once in each
    process, if that took at most half a second at the fill, or if changed code or an object of a library asks. Where
    nothing asks, a function that fails here is no error. `spot_check=False` runs nothing, `spot_check=8` compares
    eight samples, however slow. If the archive is not complete, a call computes only the missing samples.
    Cost: opening a complete archive takes milliseconds, and the time of that sample.
    Safety: any number of processes may make the same call at the same time. They share the work, unless lazy=True.

    >>> @cachable("cache/digits-{split}.zip", in_memory_keys=["label"])
    ... def digits(split="train"):
    ...     return SlowDigits(split)
    """
    if callable(path):
        return CachedFactory(path, None, None, "error", CacheOptions())
    options = CacheOptions.of(None, keywords, "cachable")
    path = None if path is None else os.fspath(path)
    ignored = [ignore] if isinstance(ignore, str) else [*ignore]

    def decorate(factory: Callable[P, Any]) -> CachedFactory[P, Any]:
        return CachedFactory(factory, path, version, on_stale, options, ignored)

    return decorate


def _default_path(factory: Any, call: Recipe, arguments: Mapping[str, Any]) -> str:
    # With the module: functions of one name in two projects have a file each.
    full_name = identity.qualified_name(factory)
    given = {name: value for name, value in call.settings.items() if name.startswith("argument ")}
    # Without private attributes of objects, which may be other ones in every process.
    asked = {
        name: text for name, text in call.asks.items() if name.startswith("argument ") and "._" not in name
    }
    text = json.dumps([full_name, given, asked])
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()[:8]
    slugs = list[str]()
    for name, value in arguments.items():
        with suppress(OptionError):  # the digest has the value
            slugs.append(f"{name}={_slug(value)}")
    parts = _slug(full_name.replace(":", ".")), ",".join(slugs)[:80], digest
    return os.path.join(cache_folder(), f"{'-'.join(filter(None, parts))}.zip")


def _slug(value: object) -> str:
    """Write a value for a file name: without separators and characters that a shell or a disk dislikes.

    Raises: OptionError, its class cannot write it.
    """

    def refused(error: Exception) -> OptionError:
        why = f"its str() raised {type(error).__name__}: {error}"
        text = f"{base.article(value)} cannot be written into the path, {why}; name other parameters there"
        return OptionError(text)

    kind = type(value)
    has_address = callable(value) or (kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__)
    if has_address or isinstance(value, (dict, frozenset, list, set, tuple)):
        # str() may have the order of this process.
        value = identity.Settings().describe(value).exact[0]
    with base.foreign_code(refused):
        text = str(value)
    return re.sub(r"[^\w.,=+@-]+", "_", text).lstrip(".") or "_"
