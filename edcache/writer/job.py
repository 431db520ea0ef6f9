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
from edcache.identity import Difference, Keyed, Recipe
from edcache.labels import LabelSpec, OfIndex
from edcache.writer import temporary
from edcache.writer.appender import Appender
from edcache.writer.builder import ChunkBuilder, FailureOf
from edcache.writer.match import adopt_labels, check_length, check_origin
from edcache.writer.source import is_stream, text_of, traceback_of
from edcache.writer.store import store_at

_MOST_TRACEBACK: Final = 8_000


class Todo(NamedTuple):
    """Samples of a source that a fill computes: int64 [n], rising. maker: mark of their parts; "" for chunks."""

    samples: Ints
    maker: str = ""


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
        keyed: keys of the samples, if the source names them. todo: samples to compute; None: all that the archive
            lacks by their numbers.
        suspects: first indices of batches that ended their process; their samples are computed one by one.
        recipe: of the source; None to compare nothing, and in other processes, whose parent has compared it.
        found: difference from the recipe of the archive.
        again: arguments of `compute_again` for a worker that is to compute one sample; None lets it fill.
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
    todo: Todo | None = None
    suspects: frozenset[int] = frozenset()
    recipe: Recipe | None = None
    found: Difference = identity.SAME
    again: tuple[int, int, tuple[str, bytes] | None] | None = None

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

    @property
    def maker(self) -> str:
        """Mark of the parts that it stores; "" if it stores chunks."""
        return "" if self.todo is None else self.todo.maker

    def open(self) -> Appender:
        """Open the archive, or make it. If the source is longer and `grow` allows it, the archive gets its length.

        With keys the length is neither compared nor changed.
        Raises: StaleCacheError, it is of another source or length; OptionError, it has other label columns.
        """
        appender = store_at(self.path).appender(self.head, self.sync)
        with base.on_error(appender.close):
            check_origin(self.path, appender.chain.origin, self.recipe)
            adopt_labels(appender.head, self.spec, self.path)
            has_keys = self.keyed is not None or self.todo is not None
            length = None if has_keys else self.head.length
            if length is not None and not self._grows(appender.chain, length):
                check_length(self.path, appender.chain.length, length)
            appender.recover()
            if length is not None:
                if self._grows(appender.chain, length):
                    self._lengthen(appender, length)
                check_length(self.path, appender.chain.length, length)
        return appender

    def _grows(self, chain: Chain, length: int) -> bool:
        # One that was written without a dataset is as long as what it holds, until it gets one.
        present = chain.end_index if chain.length is None else chain.length
        return present < length and (self.options.grow or chain.length is None)

    def _lengthen(self, appender: Appender, length: int) -> None:
        changes: dict[str, Any] = {"length": length}
        found = appender.chain.origin.fingerprint
        if found is not None and self.recipe is not None:
            changes["fingerprint"] = self.made_by(found)
        appender.amend(**changes)

    def made_by(self, found: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the fingerprint of the source, with the first sample and the state that an archive has noted.

        found: the fingerprint of the archive. One that a call of `@cachable` made keeps the settings of the call.
        """
        own, found = self.head.fingerprint or {}, found or {}
        if self.recipe is None:
            return identity.with_entry(own, found)
        state = [name for name in found.get("state", []) if isinstance(name, str)]
        made = self.recipe.put_into(own, state)
        if "factory" in base.named(found, "settings") and not self.recipe.is_made:
            made |= {name: found[name] for name in ("settings", "asks") if name in found}
        return identity.with_entry(made, found)

    def builder(
        self,
        appender: Appender | None = None,
        *,
        keeps_failures: bool = True,
        seconds: float | None = None,
    ) -> ChunkBuilder:
        """Make a builder of chunks with the label columns that the archive was begun with.

        appender: the archive; None in a process that need not see it.
        keeps_failures: False lets every sample that is refused raise, with any `on_error`.
        seconds: from one publication to the next, as of ChunkBuilder.
        """
        head = self.head if appender is None else appender.head
        return ChunkBuilder(
            head,
            self.path,
            adopt_labels(head, self.spec, self.path),
            self.chunk_size,
            failure_of=self.failure_of if keeps_failures else None,
            label_schema=None if appender is None else appender.label_schema(self.maker),
            seconds=seconds,
            maker=self.maker,
        )

    @property
    def failure_of(self) -> FailureOf | None:
        """Function that makes a Failure of an error; None if an error ends the fill."""
        return None if self.options.on_error == "raise" else self._failure

    def _failure(self, index: int, error: base.EdcacheError) -> Failure:
        cause = error.__cause__ if isinstance(error, base.SourceError) and error.__cause__ else error
        is_final = self.options.on_error == "skip_final"
        text = traceback_of(cause)[-_MOST_TRACEBACK:]
        told = text_of(cause) if isinstance(error, base.SourceError) else self.told(text_of(cause), index)
        return Failure(index, is_final, type(cause).__name__, told, text)


@contextmanager
def errors_with(outcome: Callable[[bool], str], job: Job | None = None) -> Iterator[None]:
    """Append a text to an EdcacheError or KeyboardInterrupt of the block: how many samples are kept, and how to go on.

    outcome: makes the text. It gets True if the same call may go on; False after a LabelError, which would come again.
    job: names archive and sample in the text.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        where = " ".join(["interrupted", *map(str, stop.args[:1])])
        raise KeyboardInterrupt(f"{where}; {outcome(True)}") from None
    except base.EdcacheError as error:
        goes_on = not isinstance(error, base.LabelError)
        if not goes_on:
            error.option = "keep_existing"
        text = f"{error}; {outcome(goes_on)}"
        if job is not None:
            text = job.told(text, error.index)
        error.args = (text, *error.args[1:])
        raise


def outcome(path: str, kept: int, length: int | None, goes_on: bool = True, samples: str = "samples") -> str:
    """Say how many samples an archive keeps, of its length if that is known, when a fill ends early."""
    if temporary.is_temporary(path):
        return temporary.KEPT
    if storage.is_in_memory(path):
        return f"{path} keeps what was computed as long as another process has it open"
    text = f"{path} keeps {kept:,} " + (samples if length is None else f"of {length:,} {samples}")
    return f"{text}; {'the same call computes the rest' if goes_on else 'keep_existing=False begins anew'}"


class RemoteTraceback(Exception):
    """Traceback of an error in another process, as text: the error's `__cause__` here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True)
class Carried:
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
