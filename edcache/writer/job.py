"""Task of a fill, and its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from edcache import base, identity, storage
from edcache.base import Ints
from edcache.format import KEY_COLUMN, Chain, Failure, Head, Place, shown_key
from edcache.identity import Keyed, Recipe
from edcache.labels import LabelSpec, OfIndex
from edcache.writer import temporary
from edcache.writer.appender import Appender
from edcache.writer.builder import ChunkBuilder
from edcache.writer.match import adopt_labels, check_length
from edcache.writer.source import is_stream, text_of, traceback_of
from edcache.writer.store import store_at

_MOST_TRACEBACK: Final = 8_000


class Known(NamedTuple):
    """Samples of a source with keys that its archive has.

    numbered_by: index that gives samples their numbers; None without one. positions: in the source. places: numbers in
        the archive; None for both, if numbers are positions.
    """

    numbered_by: Place | None
    positions: Ints | None = None
    places: Ints | None = None


@dataclass(frozen=True)
class Job:
    """Archive to fill from a source; goes to every process that helps.

    Attributes:
        source: has __len__ and __getitem__(int). head: of the archive, if it does not exist yet.
        since: entries of the archive from this sequence number on are of this fill.
        name: of the archive as progress shows it; the path may be of a file that stands for it.
        keyed: keys of the samples, if the source names them. todo: with keys, the samples to compute: int64 [n],
            rising; None without keys: all that the archive lacks. maker: mark of the parts that it stores; "" if it
            stores chunks.
        recipe: of the source; None to compare nothing, and in other processes, whose parent has compared it.
    """

    source: Any
    path: str
    head: Head
    spec: LabelSpec
    chunk_size: int | None = None
    sync: base.Sync = "seal"
    options: base.FillOptions = base.FillOptions()  # noqa: RUF009 - it is frozen
    since: int = 0
    name: str = ""
    keyed: Keyed | None = None
    todo: Ints | None = None
    maker: str = ""
    recipe: Recipe | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Arguments of a recipe may be of this process; keys serve the one that seals.
        return self.__dict__ | {"recipe": None, "keyed": None}

    @property
    def length(self) -> int:
        """Number of samples of the source, which was asked once."""
        assert self.head.length is not None
        return self.head.length

    def told(self, text: str, index: int | None = None) -> str:
        """Name a sample in a message by its key and its index."""
        keys = self.spec.sources.get(KEY_COLUMN)
        if index is None or not isinstance(keys, OfIndex):
            return text
        name = f"{index} (key {shown_key(keys.at(index))})"
        return re.sub(rf"\b(sample|index) {index}\b", lambda found: f"{found[1]} {name}", text, count=1)

    @property
    def told_samples(self) -> str:
        """Name the samples of this job in messages."""
        return "new samples" if self.maker else "samples"

    def open(self) -> Appender:
        """Open the archive, or make it. If the source is longer and `grow` allows it, the archive gets its length.

        With keys the length is neither compared nor changed.
        Raises: StaleCacheError, it is of another source or length; OptionError, it has other label columns.
        """
        appender = store_at(self.path).appender(self.head, self.sync)
        with base.on_error(appender.close):
            verdict = identity.compare(appender.chain.origin.fingerprint, self.recipe).check(self.path)
            if appender.chain.holds_nothing:
                verdict.check_begun(self.path)
            adopt_labels(appender.head, self.spec, self.path)
            self._is_to_grow(appender.chain)
            appender.recover()
            if self._is_to_grow(appender.chain):
                changes: dict[str, Any] = {"length": self.length}
                found = appender.chain.origin.fingerprint
                if found is not None and self.recipe is not None:
                    changes["fingerprint"] = self.made_by(found)
                appender.amend(**changes)
        return appender

    def _is_to_grow(self, chain: Chain) -> bool:
        """True if the archive is to get the length of the source. Raises: StaleCacheError, it has another one."""
        length = self.head.length
        if length is None or self.keyed is not None or self.todo is not None:
            return False
        # One that was written without a dataset is as long as what it holds, until it gets one.
        present = chain.end_index if chain.length is None else chain.length
        if present < length and (self.options.grow or chain.length is None):
            return True
        check_length(self.path, chain.length, length)
        return False

    def made_by(self, found: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the fingerprint of the source, with the first sample and the state that an archive has noted.

        found: the fingerprint of the archive. One that a call of `@cachable` made keeps the settings of the call. A
        source that gives keys only leaves all that the archive has.
        """
        own, found = self.head.fingerprint or {}, found or {}
        if self.recipe is None:
            return {**found, **own}
        state = [name for name in found.get("state", []) if isinstance(name, str)]
        noted = [identity.ENTRY]
        if "factory" in base.named(found, "settings") and not self.recipe.is_made:
            noted += ["settings", "asks"]
        return self.recipe.put_into(own, state) | {name: found[name] for name in noted if name in found}

    def builder(self, appender: Appender | None = None, *, seconds: float | None = None) -> ChunkBuilder:
        """Make a builder of chunks with the label columns that the archive was begun with.

        appender: the archive; None in a process that need not see it.
        seconds: from one publication to the next, as of ChunkBuilder.
        """
        head = self.head if appender is None else appender.head
        return ChunkBuilder(
            head,
            self.path,
            adopt_labels(head, self.spec, self.path),
            self.chunk_size,
            failure_of=None if self.options.on_error == "raise" else self._failure,
            label_schema=None if appender is None else appender.label_schema(self.maker),
            seconds=seconds,
            maker=self.maker,
        )

    def _failure(self, index: int, error: base.EdcacheError) -> Failure:
        cause = error.__cause__ if isinstance(error, base.SourceError) and error.__cause__ else error
        is_final = self.options.on_error == "skip_final"
        text = traceback_of(cause)[-_MOST_TRACEBACK:]
        told = text_of(cause) if isinstance(error, base.SourceError) else self.told(text_of(cause), index)
        return Failure(index, is_final, type(cause).__name__, told, text)


@contextmanager
def telling_kept(job: Job, count: Callable[[], int], total: int | None = None) -> Iterator[None]:
    """Append to an EdcacheError or KeyboardInterrupt of the block how many samples are kept, and how to go on.

    count: counts the samples that the archive has. total: number of samples of the fill, if it is known.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        where = " ".join(["interrupted", *map(str, stop.args[:1])])
        raise KeyboardInterrupt(f"{where}; {_kept(job, count(), total)}") from None
    except base.EdcacheError as error:
        goes_on = not isinstance(error, base.LabelError)  # which would come again
        if not goes_on:
            error.option = "keep_existing"
        text = job.told(f"{error}; {_kept(job, count(), total, goes_on)}", error.index)
        error.args = (text, *error.args[1:])
        raise


def _kept(job: Job, count: int, total: int | None, goes_on: bool = True) -> str:
    if temporary.is_temporary(job.path):
        return temporary.KEPT
    if storage.is_in_memory(job.path):
        return f"{job.path} keeps what was computed as long as another process has it open"
    kept = f"{count:,} samples" if total is None else f"{count:,} of {total:,} {job.told_samples}"
    how = "the same call computes the rest" if goes_on else "keep_existing=False begins anew"
    return f"{job.path} keeps {kept}; {how}"


class RemoteTraceback(Exception):
    """Traceback of an error in another process, as text: the error's `__cause__` here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Carried(NamedTuple):
    """Error and traceback on their way out of another process, as concurrent.futures carries them."""

    error: base.EdcacheError
    traceback: str

    def restored(self) -> base.EdcacheError:
        """Return the error, with the traceback as its `__cause__`."""
        self.error.__cause__ = RemoteTraceback(self.traceback)
        return self.error


def carried(error: BaseException) -> Carried:
    """Prepare an error for pickling: one that is not edcache's becomes a SourceError, since it may not unpickle."""
    text = traceback_of(base.cut_frames(error) if isinstance(error, base.EdcacheError) else error)
    if not isinstance(error, base.EdcacheError):
        error = base.SourceError(f"a worker process raised {type(error).__name__}: {text_of(error)}")
    # If tblib is installed, as by Dask, an exception is pickled with these, which may not be possible.
    error.__cause__ = error.__context__ = error.__traceback__ = None
    return Carried(error, text)


def claim_size(length: int, batch_size: int | None = None) -> int:
    """Number of consecutive samples that one process computes at a time: a batch, or so few that all end together."""
    return batch_size or min(64, max(1, length // 100))


def chosen_recipe(
    source: Any, given: Mapping[str, Any] | bool | Recipe | None, num_workers: base.Workers = 0
) -> Recipe | None:
    """Return the recipe that is given for a source, or else describe it; None to compare nothing.

    Of an iterable it has the number of workers, on which the order depends.
    """
    if not isinstance(given, Mapping | bool | Recipe | None):
        raise base.OptionError(
            f"fingerprint={base.shown(given)}; give a dict, or False for none", option="fingerprint"
        )
    if isinstance(given, Recipe):
        return given
    if isinstance(given, Mapping):
        return identity.told(given) if given else None
    if given is False:
        return None
    is_divided = num_workers != 0 and is_stream(source)
    return identity.recipe_of(
        source, None, {"num_workers": worker_count(num_workers)} if is_divided else None
    )


def worker_count(asked: int | str | None) -> int:
    """Number of workers of `num_workers=`; OptionError unless it is a number from 0 up, "auto" or None.

    "auto" counts the processors that this process may use: by its affinity and its control group, not the machine's.
    """
    base.check_workers(asked)
    if isinstance(asked, int):
        return asked
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    with suppress(ValueError):
        quota, period = base.control_group("cpu.max").split()  # "max" without one
        count = min(count, int(quota) // int(period))
    return max(1, count)
