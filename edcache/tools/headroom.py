"""Headroom: phases of an epoch and their times, the gain by a cache, and the place to cut.

A phase is code whose time is told apart: the `__getitem__` of a dataset, each function that a dataset has as an
attribute, each member of a Compose, collation, the copy to a device, the step. Time and draws of random numbers count
for the innermost phase that runs; phases of one name count together.

The source is measured by twins: an object of a subclass with the same attributes, whose calls are timed. A twin of a
dataset has twins of its functions, and of the datasets inside. A dataset without a twin, such as a list, is one phase.

A phase is random if a generator moves while it runs, or if it gives another result for the same input. The cut is
before the first one. A transform that is turned off hands its input on: so the dataset itself makes the samples as they
are at the cut.

What must never happen: that a run is another one afterwards. Generators, also the ones in the source, are as before; no
attribute of the user's objects is set; no sampler is iterated, but a batch sampler of the user's. And that an error of
the user's code is replaced by another one.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import BatchSampler, DataLoader, Dataset, default_collate

from edcache import base, identity, writer
from edcache.base import EdcacheError, MissingDependencyError, OptionError, WriteOptions, human_bytes, takes
from edcache.codec import Encoder
from edcache.dataset import CachedDataset
from edcache.writer import CacheWriter

if TYPE_CHECKING:
    from typing_extensions import Unpack

PhaseKind: TypeAlias = Literal["read", "transform", "collate", "copy", "step"]

# Classes that only call their members one after another: these are the phases.
_CONTAINERS: Final = ("Compose", "Sequential", "StandardTransform")
_MOST_MEMBERS: Final = 64
# Samples whose functions are called twice. Fast samples are timed in runs, for at least these seconds in all.
_WATCHED, _MOST_RUN = 3, 50
_RUN_SECONDS, _LEAST_SECONDS = 0.01, 0.2
_REPEATS, _REPEAT_SECONDS = 10, 5.0
# Bytes to write at least, so that pages and tables count as they do in a large archive; and to keep at most.
_LEAST_NBYTES, _MOST_NBYTES = 1 << 20, 1 << 28
_GAIN: Final = 0.05  # of an epoch, which a cache is to save


@dataclass
class Phase:
    """Phase of an epoch.

    Attributes: seconds: of a sample, measured several times. random: how one knows that it is, or "". depth: number of
        datasets around its own.
    """

    kind: PhaseKind
    name: str
    seconds: list[float] = field(default_factory=list)
    random: str = ""
    depth: int = 0

    @property
    def median(self) -> float:
        """Seconds of a sample."""
        return statistics.median(self.seconds)

    @property
    def mean(self) -> float:
        """Seconds of a sample, on average; for sums."""
        return statistics.fmean(self.seconds)


@dataclass(frozen=True)
class Headroom:
    """Times of an epoch, now and with a cache. `str()` is a page of text; see `headroom`.

    Attributes:
        source: name of the dataset's class. length: its samples.
        samples: number of samples that were timed. batch_size, num_workers: of the loader.
        phases: in the order in which they run. cached: number of the first ones, whose results a cache stores.
        sample_nbytes, write_seconds, read_seconds: of a sample in the archive: its bytes, the seconds to encode and
            write it, and to read and collate it. None without a forecast; flaw says why there is none.
    """

    source: str
    length: int
    samples: int
    batch_size: int
    num_workers: int
    phases: Sequence[Phase]
    cached: int
    sample_nbytes: float | None = None
    write_seconds: float | None = None
    read_seconds: float | None = None
    flaw: str = ""

    @property
    def cut(self) -> str | None:
        """Name of the last phase before the first random one; None if the first one is random."""
        return self.phases[self.cached - 1].name if self.cached else None

    @property
    def epoch_seconds(self) -> float:
        """Seconds of an epoch now."""
        return self._epoch(self._sum("read", "transform", "collate"))

    @property
    def ceiling(self) -> float | None:
        """Samples a second of the copy and the step alone, which replay one batch; None without a step."""
        return 1 / self._sum("copy", "step") if self.phases[-1].kind == "step" else None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the archive."""
        return None if self.sample_nbytes is None else round(self.length * self.sample_nbytes)

    @property
    def fill_seconds(self) -> float | None:
        """Seconds that one process takes to fill the archive."""
        made = sum(phase.mean for phase in self.phases[: self.cached])
        return None if self.write_seconds is None else self.length * (made + self.write_seconds)

    @property
    def cached_epoch_seconds(self) -> float | None:
        """Seconds of an epoch that reads the archive, and computes the phases behind the cut."""
        behind = self._sum("read", "transform", first=self.cached)
        return None if self.read_seconds is None else self._epoch(self.read_seconds + behind)

    @property
    def pays_at_epoch(self) -> int | None:
        """Epoch, from 1 on, at whose end the fill has paid; None if a cache saves less than 5 %."""
        fill, now = self.fill_seconds, self.epoch_seconds
        saved = now - (self.cached_epoch_seconds or now)
        if fill is None or saved <= _GAIN * now:
            return None
        return math.ceil(fill / max(1, self._processes) / saved)

    @property
    def _processes(self) -> int:
        return min(self.num_workers, writer.worker_count("auto"))

    def _sum(self, *kinds: PhaseKind, first: int = 0) -> float:
        return sum(phase.mean for phase in self.phases[first:] if phase.kind in kinds)

    def _epoch(self, load: float) -> float:
        step = self._sum("copy", "step")
        # Workers at best share the work evenly, and the step waits for none.
        return self.length * (max(load / self._processes, step) if self._processes else load + step)

    def to_json(self) -> dict[str, Any]:
        """Return all facts as plain values."""
        names = "cut epoch_seconds ceiling nbytes fill_seconds cached_epoch_seconds pays_at_epoch"
        return asdict(self) | {name: getattr(self, name) for name in names.split()}

    def __str__(self) -> str:
        return "\n".join([*self._table(), "", *(f"{name:9}{text}" for name, text in self._facts())])

    def _table(self) -> Iterator[str]:
        loader = f"batches of {self.batch_size}, {self.num_workers} workers"
        yield f"{self.source}: {self.length:,} samples, {loader}; medians of {self.samples:,} samples"
        yield ""
        whole, rows = sum(phase.mean for phase in self.phases), list[tuple[str, ...]]()
        for number, phase in enumerate(self.phases):
            if phase.random and number == self.cached > 0:
                rows.append(("- - cut - -", "", "", ""))
            share, note = 100 * phase.mean / whole, f"random: {phase.random}" if phase.random else ""
            rows.append((phase.name, f"{1e3 * phase.median:.3f} ms", f"{share:.0f} %", note))
        yield from base.text_table(("phase", "a sample", "share", ""), rows)

    def _facts(self) -> Iterator[tuple[str, str]]:
        now, cached, fill = self.epoch_seconds, self.cached_epoch_seconds, self.fill_seconds
        yield "now", f"an epoch takes {_duration(now)}: {self.length / now:,.0f} samples/s"
        if self.ceiling is not None:
            waits = f"{100 * (1 - self.length / self.ceiling / now):.0f} % of an epoch is waiting"
            yield "ceiling", f"{self.ceiling:,.0f} samples/s by the step; {waits}"
        behind = next((phase.name for phase in self.phases if phase.random), None)
        if behind is None:
            yield "cut", "no phase is random: cache whole samples"
        elif self.cut is None:
            yield "cut", f"none: {behind} is random, and a cache would freeze it"
        else:
            yield "cut", f"cache the result of {self.cut}; {behind} is random, and stays behind the cache"
        if self.nbytes is None or fill is None or cached is None:
            yield "archive", f"no forecast: {self.flaw}"
            return
        yield "archive", f"{human_bytes(self.nbytes)}; one process fills it in {_duration(fill)}"
        yield "cached", f"an epoch takes {_duration(cached)}, {now / cached:.1f} times as fast"
        pays = self.pays_at_epoch
        yield "pays", "not: it saves less than 5 % of an epoch" if pays is None else f"in epoch {pays}"

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the seconds of an epoch, phase by phase, before and behind the cut.

        Raises: MissingDependencyError: "a plot takes matplotlib; pip install matplotlib".
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingDependencyError("a plot takes matplotlib; pip install matplotlib") from None
        figure = Figure(figsize=(9, 4), layout="constrained")
        axes = figure.subplots()
        names = [phase.name for phase in self.phases]
        colors = ["C0" if number < self.cached else "C1" for number in range(len(names))]
        axes.barh(names, [self.length * phase.mean for phase in self.phases], color=colors)
        axes.invert_yaxis()
        axes.set_xlabel("seconds of an epoch; a cache saves the blue ones, and reads instead")
        figure.savefig(path)


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds / 60:,.1f} minutes"


@takes(WriteOptions)
@base.cut_traceback
def headroom(
    source: Any,
    step: Callable[[Any], object] | None = None,
    *,
    device: torch.device | str | None = None,
    samples: int = 100,
    seconds: float = 60.0,
    **keywords: Unpack[base.WriteKeywords],
) -> Headroom:
    """Time the phases of an epoch, and forecast the gain by a cache, and the place to cut.

    Args:
        source: a DataLoader, or a dataset. Workers are not started: this process is timed.
        step: a function of a batch, such as a training step. One batch is replayed some ten times, so a model that it
            trains is trained by it.
        device: batches are copied there before the step.
        samples: how many are timed, spread over the dataset. seconds: no further one begins after this time.
        keywords: options of the archive that is forecast; some samples are written to a temporary one.
    Returns:
        A `Headroom`; print it. Files are timed as they are found: on a disk, or in the page cache.
    Raises:
        OptionError: "headroom(): step= takes batches; give a DataLoader".
        As the user's code, if a sample, collation or the step raises.

    Safety: the random generators of the process, and the ones in source and step, are as before afterwards. No
        sampler is iterated, but a batch sampler of your own.

    >>> print(edcache.headroom(loader, train_step))
    """
    base.check_count("samples", samples)
    options = WriteOptions.of(None, keywords, "headroom")
    loader = source if isinstance(source, DataLoader) else None
    dataset: Any = source if loader is None else loader.dataset
    writer.check_source(dataset, "headroom()")
    base.checked_function("step", step)
    if writer.is_stream(dataset):
        raise OptionError("headroom(): the source is iterable, and has no [index]; give the dataset it reads")
    writer.length_of(dataset, "headroom()")
    if type(dataset).__module__.startswith("edcache."):
        raise OptionError("headroom(): the source is cached already; give the dataset that it was made of")
    if loader is None and (step is not None or device is not None):
        name = "device" if step is None else "step"
        raise OptionError(f"headroom(): {name}= takes batches; give a DataLoader", option=name)
    held = identity.held_generators((source, step))
    with identity.generators_kept(held), tempfile.TemporaryDirectory(prefix="edcache-headroom-") as folder:
        size, indices = _chosen(loader, dataset, samples)
        survey = _Survey(dataset, held, indices)
        kept = survey.time(size, time.perf_counter() + seconds)
        phases = [*survey.phases, *_batch_phases(loader, kept, device, step)]
        workers = 0 if loader is None else loader.num_workers
        about = type(dataset).__name__, len(dataset), survey.timed, size, workers
        found = Headroom(*about, phases, survey.cached, flaw=survey.flaw)
        return found if found.flaw else _forecast(found, survey.at_cut, f"{folder}/a.zip", options, loader)


def _chosen(loader: DataLoader[Any] | None, dataset: Any, most: int) -> tuple[int, list[int]]:
    """Choose the size of a batch, and samples: the first ones of a batch sampler, else some of the dataset."""
    sampler = None if loader is None else loader.batch_sampler
    if sampler is not None and type(sampler) is not BatchSampler:
        batches = [[*map(int, batch)] for batch in islice(sampler, most)]
        return len(batches[0]), sum(batches, list[int]())[:most]
    return (1 if loader is None else loader.batch_size or 1), _some(len(dataset), most)


def _some(length: int, most: int) -> list[int]:
    """Choose numbers below `length` by a generator of its own, in a random order, as a training reads."""
    return random.Random(0).sample(range(length), min(length, most))  # noqa: S311 - nothing is secret


class _Probe:
    """Counts time, and draws of random numbers, for the innermost phase that runs.

    Attributes:
        phases: by name, in the order of their first calls. spent: their seconds since it was cleared.
        off: names of transforms that hand their input on.
        watches: True looks for draws, and calls each function twice.
    """

    def __init__(self, held: Sequence[Any]) -> None:
        self.phases: dict[str, Phase] = {}
        self.spent, self.off, self.watches = Counter[str](), set[str](), False
        self._held, self._running, self._last = held, list[Phase](), None

    def call(
        self, kind: PhaseKind, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function as a phase."""
        if self._running and self._running[-1].name == name:
            return function(*args, **kwargs)
        if name in self.off:
            given = args or (kwargs,)
            return given[0] if len(given) == 1 else given
        is_read = kind == "read"
        depth = sum(one.kind == "read" for one in self._running) - (not is_read)
        phase = self.phases.setdefault(name, Phase(kind, name, depth=depth))
        again = partial(_called, function, deepcopy((args, kwargs))) if self.watches and not is_read else None
        self._mark()
        self._running.append(phase)
        try:
            made = function(*args, **kwargs)
        finally:
            self._mark()
            self._running.pop()
        if again is not None and not phase.random and _differs(again):
            phase.random = "it gives another result each time"
        self._last = self._measure()
        return made

    def through(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a container of phases: its own time is of the code around, and its own draws are of no phase."""
        self._mark()
        self._running.append(Phase("transform", self._running[-1].name))
        try:
            return function(*args, **kwargs)
        finally:
            self._mark()
            self._running.pop()

    def _mark(self) -> None:
        if self._running:
            phase, now = self._running[-1], self._measure()
            if not self.watches:
                self.spent[phase.name] += now - self._last
            elif now != self._last:
                phase.random = "it draws random numbers"
        self._last = self._measure()

    def _measure(self) -> Any:
        return identity.generator_states(self._held) if self.watches else time.perf_counter()


def _called(function: Callable[..., Any], given: tuple[Any, Any]) -> Any:
    args, kwargs = deepcopy(given)
    return function(*args, **kwargs)


def _differs(compute: Callable[[], Any]) -> bool:
    """True if a function gives another result each time; results that cannot be stored are not compared."""
    try:
        return not identity.learned(identity.recompute([compute, compute], "native", 2), "native")[0].repeats
    except base.CodecError:
        return False


class _Twins:
    """Twins of a dataset, of its functions, and of the datasets inside."""

    def __init__(self, probe: _Probe) -> None:
        self._probe = probe
        # By id, with the original, which so stays alive.
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, thing: Any) -> Any:
        """Return the twin of a dataset or a function, or of each in a short list, tuple or dict; else the thing."""
        kind = type(thing)
        if kind in (list, tuple) and len(thing) <= _MOST_MEMBERS:
            return kind(map(self.of, thing))
        if kind in (dict, OrderedDict) and len(thing) <= _MOST_MEMBERS:
            return kind((key, self.of(one)) for key, one in thing.items())
        if isinstance(thing, type) or not (isinstance(thing, Dataset) or callable(thing)):
            return thing
        if id(thing) not in self._made:
            self._made[id(thing)] = thing, thing  # for one that holds itself
            self._made[id(thing)] = thing, self.twin(thing)
        return self._made[id(thing)][1]

    def twin(self, thing: Any) -> Any:
        """Make the twin of a dataset or a function; itself if its class takes none."""
        kind, is_dataset = type(thing), hasattr(type(thing), "__getitem__")
        is_container = kind.__name__ in _CONTAINERS
        name = f"read {kind.__name__}" if is_dataset else getattr(thing, "__name__", kind.__name__)
        call: Callable[..., Any] = partial(self._probe.call, "read" if is_dataset else "transform", name)
        call = self._probe.through if is_container else call
        methods = ("__getitem__", "__getitems__") if is_dataset and not is_container else ("__call__",)
        if not hasattr(thing, "__dict__") or any(vars(one).get("__slots__") for one in kind.__mro__):
            return thing
        body = {method: _timed(call, getattr(kind, method)) for method in methods if hasattr(kind, method)}
        try:
            meta: Any = type(kind)
            twin = object.__new__(meta(f"Timed{kind.__name__}", (kind,), body))
        except TypeError:  # of the interpreter, as a function is
            return thing if is_dataset else partial(call, thing)
        goes_on = is_dataset or is_container
        vars(twin).update({key: self.of(one) if goes_on else one for key, one in vars(thing).items()})
        return twin


def _timed(call: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda this, *args, **kwargs: call(partial(method, this), *args, **kwargs)


class _Survey:
    """Samples of a source: the phases that they pass, and how long each takes.

    Attributes:
        phases: in order. cached: number of those before the first random one. timed: number of samples.
        at_cut: some of them, as a cache would store them. flaw: why there is no forecast, or "".
    """

    def __init__(self, dataset: Any, held: Sequence[Any], indices: list[int]) -> None:
        self._dataset, self._indices, self.timed = dataset, indices, 0
        self.at_cut, self._nbytes = list[Any](), 0
        if not indices:
            raise OptionError("headroom(): the source has no sample; give one that has some")
        dataset[indices[0]]  # an error of the user's is raised here, as it is
        self._probe = _Probe(held)
        try:
            self._source = _Twins(self._probe).twin(dataset)
            self._watch()
        except Exception:  # noqa: BLE001 - of a class that bears no twin; an error of the user's code comes again
            self._source, self._probe = dataset, _Probe(held)
            self._watch()

    def _watch(self) -> None:
        """Pass some samples through all phases, and find the random ones."""
        probe = self._probe
        probe.watches = True
        for index in self._indices[:_WATCHED]:
            self._read([index])
        probe.watches = False
        # The sort is stable: functions stay in the order of their calls.
        self.phases = sorted(probe.phases.values(), key=lambda phase: (-phase.depth, phase.kind != "read"))
        is_fixed = not any(phase.random for phase in self.phases)
        if is_fixed and _differs(lambda: self._read(self._indices[:1])):
            self.phases[0].random = "its sample is another one each time"
        self.cached = next((n for n, phase in enumerate(self.phases) if phase.random), len(self.phases))
        own = [phase.name for phase in self.phases if phase.random and phase.kind == "read"]
        self.flaw = f"{own[0]} is random by itself; ask for the dataset inside, if any" if own else ""

    def _read(self, group: list[int]) -> Any:
        return self._probe.call("read", f"read {type(self._dataset).__name__}", self._read_samples, group)

    def _read_samples(self, group: list[int]) -> Any:
        if len(group) > 1 and hasattr(self._source, "__getitems__"):
            return self._source.__getitems__(group)
        return [self._source[index] for index in group]

    def time(self, size: int, end: float) -> list[Any]:
        """Time samples, until a time, and keep them as they are at the cut; returns `size` samples."""
        kept, began = list[Any](), time.perf_counter()
        self._read(self._indices[:1])
        seconds = time.perf_counter() - began
        many = max(1, min(_MOST_RUN, int(_RUN_SECONDS / seconds)))
        runs = [self._indices[start : start + many] for start in range(0, len(self._indices), many)]
        passes = 1 + int(_LEAST_SECONDS / seconds / len(self._indices))
        for number, run in enumerate(runs * passes):
            self._probe.spent.clear()
            made = self._read(run)
            for phase in self.phases:
                phase.seconds.append(self._probe.spent[phase.name] / len(run))
            if number < len(runs):
                self.timed += len(run)
                kept += made[: size - len(kept)]
                self._keep(run, made)
            if time.perf_counter() > end:
                break
        return kept

    def _keep(self, run: list[int], samples: list[Any]) -> None:
        """Keep samples as they are at the cut, up to some bytes."""
        if self.flaw or self._nbytes > _MOST_NBYTES:
            return
        behind = self.phases[self.cached :]
        if behind:
            self._probe.off = {phase.name for phase in behind if phase.kind == "transform"}
            try:
                samples = self._read(run)
            except Exception as error:  # noqa: BLE001 - of code behind the cut, which misses a phase
                self.flaw = f"the dataset takes no other result than of {behind[-1].name}: {error!r:.80}"
                return
            finally:
                self._probe.off = set()
        self.at_cut += samples
        self._nbytes += sum(getattr(leaf, "nbytes", 0) for leaf in tree_leaves(samples))


def _batch_phases(
    loader: DataLoader[Any] | None, kept: list[Any], device: Any, step: Callable[[Any], object] | None
) -> Iterator[Phase]:
    """Yield collation, the copy and the step, by one batch."""
    if loader is None:
        return
    is_sample = loader.batch_sampler is None and loader.batch_size is None  # a sample is a batch already
    count, host = 1 if is_sample else len(kept), kept[0] if is_sample else kept
    seconds, batch = _repeated(partial(loader.collate_fn, host), count)
    yield Phase("collate", "collate", seconds)
    if device is not None:
        copy = partial(tree_map_only, torch.Tensor, lambda tensor: tensor.to(device), batch)
        seconds, batch = _repeated(copy, count)
        yield Phase("copy", f"copy to {device}", seconds)
    if step is not None:
        yield Phase("step", "step", _repeated(partial(step, batch), count)[0])


def _repeated(call: Callable[[], Any], count: int = 1) -> tuple[list[float], Any]:
    """Call a function once, and then some ten times; returns their seconds, for each of `count`, and a result."""
    made, seconds = call(), list[float]()
    for _ in _timed_turns(seconds, count):
        made = call()
    return seconds, made


def _timed_turns(seconds: list[float], count: int) -> Iterator[None]:
    """Note the seconds that each of some ten turns of a loop takes, for each of `count`."""
    while len(seconds) < _REPEATS and sum(seconds) * count < _REPEAT_SECONDS:
        _wait_for_device()
        began = time.perf_counter()
        yield
        _wait_for_device()
        seconds.append((time.perf_counter() - began) / count)


def _wait_for_device() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _forecast(
    found: Headroom, samples: list[Any], path: str, options: WriteOptions, loader: DataLoader[Any] | None
) -> Headroom:
    """Complete a result by an archive of samples at the cut, which the real writer writes.

    Small samples are written several times, so that pages and tables take their part of a large archive.
    """
    try:
        nbytes = 1 + Encoder(options.codec or "native").encode(samples[0]).nbytes
        written = samples * max(1, _LEAST_NBYTES // (len(samples) * nbytes))
        began = time.perf_counter()
        with CacheWriter(path, options=options) as archive:
            archive.extend(written)
        seconds = (time.perf_counter() - began) / len(written)
    except EdcacheError as error:
        return replace(found, flaw=str(error).replace(f"{path}: ", ""))
    has_rest = any(phase.kind in ("read", "transform") for phase in found.phases[found.cached :])
    is_gathered = False
    if loader is not None and not has_rest:
        # A batch sampler of the user's gives samples of one shape, and random ones do not collate.
        is_gathered = loader.collate_fn is default_collate and type(loader.batch_sampler) is BatchSampler
    with closing(CachedDataset.from_cache(path)) as cache:
        order = _some(len(cache), found.batch_size)
        read = partial(cache.batch, order) if is_gathered else lambda: [*map(cache.__getitem__, order)]
        read_seconds = statistics.fmean(_repeated(read, len(order))[0])
    if not is_gathered:
        read_seconds += sum(phase.mean for phase in found.phases if phase.kind == "collate")
    sample_nbytes = os.path.getsize(path) / len(written)
    return replace(found, sample_nbytes=sample_nbytes, write_seconds=seconds, read_seconds=read_seconds)


def measure_first_loader(report: Callable[[Headroom], object]) -> None:
    """Have this process measure the first DataLoader that it iterates, replay one batch to that loop, and end.

    The time between two batches is the step. A loop that ends sooner is passed over.

    report: called with the result. In the loop, SystemExit is raised.
    """
    iterate = DataLoader.__iter__

    def replay(loader: DataLoader[Any]) -> Iterator[Any]:
        DataLoader.__iter__ = iterate  # type: ignore[method-assign]  # of other loaders, in the step
        try:
            found, batch, seconds = headroom(loader), next(iterate(loader)), list[float]()
            yield batch
            for _ in _timed_turns(seconds, found.batch_size):
                yield batch
            report(replace(found, phases=[*found.phases, Phase("step", "step", seconds)]))
        finally:
            DataLoader.__iter__ = replay  # type: ignore[method-assign, assignment]
        raise SystemExit(0)

    DataLoader.__iter__ = replay  # type: ignore[method-assign, assignment]
