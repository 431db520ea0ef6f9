"""Devices of `map`: which ones, the function on one, whose results arrive later, and the engine of a fill by it.

A batch is submitted, read (`_Readers`), launched, and arrives. On a GPU one is launched ahead: it is computed while the
one before it travels back and is stored. A batch that cannot be read or launched, or raises, is computed by the engine
of this process (writer/engine.py:Here), and so are the batches that readers had when one of them died.

What must never happen: that the results of one batch are given for another. So batches are launched and asked for in
the order of their submissions. Nor that a process which reads outlives its parent: a thread of it looks.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from datetime import timedelta
from functools import partial
from multiprocessing import RawValue, current_process
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.worker import WorkerInfo

from edcache import base
from edcache.base import OptionError, PerProcess, SourceError
from edcache.dataset.loader import BatchThreads, device_errors, pinned
from edcache.identity import reached_from
from edcache.reader import Memory, fresh
from edcache.storage import own_positions
from edcache.writer import (
    BatchEngine,
    Here,
    MadeSamples,
    PartOfBatch,
    Pending,
    await_end,
    begin_alone,
    counted,
)

Function: TypeAlias = Callable[[Any], Any]
Arrive: TypeAlias = Callable[[], Any]
"""Waits for the result of a batch. Raises: as the device does, also for an earlier batch."""
Devices: TypeAlias = str | torch.device | Sequence[str | torch.device] | None
Bucket: TypeAlias = tuple[list[int], Any, dict[str, Any]]
"""Samples of one shape in a batch: their positions in it, the samples collated, and their fields to keep."""
Read: TypeAlias = Callable[[], list[Bucket]]
"""Waits until a batch is read. Raises: as its source."""
Before = TypeVar("Before")
After = TypeVar("After")

# Seconds of a fill whose waiting is told, and a part of waiting that more readers may shorten.
_TOLD_SECONDS, _MUCH = 10, 0.1
# Batches that each reader reads ahead; and threads that gather: one is not enough for a fast model.
_READ_AHEAD: Final = 2
_LEAST_THREADS: Final = 2
_WAIT_SECONDS: Final = 1.0

_CONTAINERS: Final = {torch.nn.Module, torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential}
# Packages of torch whose modules compute alike in both modes.
_WITHOUT_MODE: Final = (
    "torch.ao.nn.quantized.",
    "torch.ao.nn.intrinsic.quantized.",
    "torch.ao.nn.sparse.quantized.",
    "torch.export.",
)

_source: BatchSource  # of a process that reads


def devices_of(fn: Function, asked: Devices) -> list[torch.device]:
    """Return the devices of `map(devices=)`; none if the function computes where it is called.

    Raises: OptionError, one is no device, or is not here; as `check_frozen`, unless fn makes the function on a device.
    """
    if asked is None or isinstance(fn, torch.nn.Module):
        check_frozen(fn)
    if asked is None:
        return [place for place in [_place_of(fn)] if place.type != "cpu"]
    if asked == "auto":
        rank, count = os.environ.get("LOCAL_RANK"), torch.cuda.device_count()
        asked = (
            ["cpu"]
            if not count
            else [f"cuda:{k}" for k in range(count)]
            if rank is None
            else [f"cuda:{rank}"]
        )
    with device_errors("devices", asked):
        names = [asked] if isinstance(asked, str | torch.device) else list(asked)
        devices = [torch.device(name) for name in names]
        for device in {*devices}:
            torch.empty(0, device=device)
    if not devices:
        raise OptionError('devices=[]; give at least one device, "auto" or None', option="devices")
    return devices


def _place_of(fn: Function) -> torch.device:
    if isinstance(fn, torch.nn.Module):
        for tensor in itertools.chain(fn.parameters(), fn.buffers()):
            return tensor.device
    return torch.device("cpu")


def check_frozen(fn: Function) -> Function:
    """Return a function; OptionError if a module in training mode makes its results.

    The module may be the function itself, the owner of a method, or an attribute of an object that is called; or it
    stands in a closure or a global variable that the function reads.
    """
    bare = inspect.unwrap(fn)
    held: list[Any] = [fn, getattr(fn, "__self__", None)]
    held += [*getattr(fn, "__dict__", {}).values()]
    held += [cell.cell_contents for cell in getattr(bare, "__closure__", None) or ()]
    held += reached_from([fn])
    for module in held:
        # Losses and transforms have no parameters, and are in training mode always.
        is_model = isinstance(module, torch.nn.Module) and any(True for _ in module.parameters())
        if is_model and any(part.training and _has_mode(part) for part in module.modules()):
            raise OptionError(
                f"fn computes by a {type(module).__name__} in training mode; call .eval() on it first",
                option="fn",
            )
    return fn


def _has_mode(module: torch.nn.Module) -> bool:
    """False for a module of torch that computes alike in both modes: a container, a quantized one, a graph.

    Conversion makes quantized ones in training mode, and the mode of a graph that was exported cannot be set: its
    operations are of the mode in which it was traced.
    """
    kind = type(module)
    if isinstance(module, torch.fx.GraphModule) or kind in _CONTAINERS:
        return False
    drops = bool(getattr(module, "dropout", 0.0))  # between the layers of a recurrent one
    return drops or not kind.__module__.startswith(_WITHOUT_MODE)


class OnDevice:
    """Function of batches on a device of this process.

    fn: a module, which is moved to the device; or a function that takes the device and returns the function.
    Attributes: device: may be set until the first batch. busy: seconds of work for the batches that have arrived.
    """

    def __init__(self, fn: Function, device: torch.device) -> None:
        self._maker, self.device = fn, device
        self._fn = PerProcess[Function]()
        self.busy = 0.0

    def launch(self, batch: Any) -> Arrive:
        """Compute a batch; on a GPU the result arrives later."""
        fn, device = self._fn.get(self._make), self.device
        with torch.no_grad():
            if device.type != "cuda":
                began = time.perf_counter()
                made = taken(fn(_copied_with(batch, lambda tensor: tensor.to(device))))
                self.busy += time.perf_counter() - began
                return lambda: made
            with torch.cuda.device(device):
                begun, arrived = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                # From pinned memory: else the copy would wait for the batch before.
                batch = _copied_with(batch, _pin)
                begun.record()
                made = fn(_copied_with(batch, lambda tensor: tensor.to(device, non_blocking=True)))
                # Into pinned memory, while the device goes on.
                made = taken(made, non_blocking=True)
                arrived.record()
        return partial(self._arrive, made, begun, arrived)

    def _make(self) -> Function:
        fn = self._maker
        if isinstance(fn, torch.nn.Module):
            return fn.to(self.device)
        advice = (
            f"with devices= fn is called with the device, {self.device}, and returns the function of a batch"
        )
        with base.foreign_code(lambda error: _not_made(error, advice)):
            made = fn(self.device)
        if not callable(made):
            raise OptionError(f"{advice}; it returned {base.described(made)}", option="devices")
        return check_frozen(made)

    def _arrive(self, made: Any, begun: torch.cuda.Event, arrived: torch.cuda.Event) -> Any:
        arrived.synchronize()
        self.busy += begun.elapsed_time(arrived) / 1000
        return made


def _not_made(error: Exception, advice: str) -> Exception:
    if isinstance(error, base.EdcacheError):
        return error
    return OptionError(f"{advice}; it raised {type(error).__name__}: {error}", option="devices")


class BatchSource(Protocol):
    """Source of a DeviceEngine."""

    @property
    def gathers(self) -> bool:
        """True if a batch is read by one gather a field, without code of the user."""
        ...

    def read(self, indices: list[int], memory: Memory = fresh) -> list[Bucket]:
        """Read and collate samples: all, or the samples of each shape."""
        ...

    def joined(self, indices: list[int], results: list[tuple[Bucket, Any]]) -> Any:
        """Return the results of the buckets of a batch as samples: columns, or a list."""
        ...


class DeviceEngine(BatchEngine):
    """Engine of a device.

    here: computes the batches that this cannot. readers: threads or processes that read ahead; see `_Readers`.
    progress: whether a line tells how long the device waited.
    """

    gives_batches = True

    def __init__(
        self, source: BatchSource, fn: OnDevice, here: Here, readers: int, progress: base.Show
    ) -> None:
        self._source, self._fn, self._here, self.watch = source, fn, here, here.watch
        self._progress = progress
        is_cuda = fn.device.type == "cuda"
        self._readers = _Readers(source, readers, pinned if is_cuda else fresh)
        # Results of a CPU are there when the function returns; a killed process then loses one batch, not two.
        self._most_launched = 2 if is_cuda else 1
        self.depth = self._most_launched + _READ_AHEAD * self._readers.count
        # Batches that are not launched, and the ones that are: None if one could not be.
        self._waiting = deque[tuple[list[int], Read]]()
        self._launched = deque[list[tuple[Bucket, Arrive]] | None]()

    def __enter__(self) -> DeviceEngine:
        self._began, self._busy = time.monotonic(), self._fn.busy
        return self

    def submit(self, indices: list[int]) -> Pending:
        """Let a batch be read; one that has ended a process is neither read nor computed here."""
        if self._here.is_suspect(indices):
            return self._here.submit(indices)
        self._waiting.append((indices, self._readers.begin(indices)))
        return self._result(indices)

    def _result(self, indices: list[int]) -> Iterator[PartOfBatch]:
        """Launch the next batches, and wait for the first, `indices`."""
        while self._waiting and len(self._launched) < self._most_launched:
            self._launched.append(self._tried(self._launch, *self._waiting.popleft()))
        launched = self._launched.popleft()
        made = None if launched is None else self._tried(self._arrive, indices, launched)
        yield from self._here.submit(indices) if made is None else [(indices, made)]

    def _launch(self, indices: list[int], read: Read) -> list[tuple[Bucket, Arrive]]:
        """Wait until a batch is read, and launch each shape of it."""
        return [(bucket, self._fn.launch(bucket[1])) for bucket in read()]

    def _arrive(self, indices: list[int], launched: list[tuple[Bucket, Arrive]]) -> MadeSamples:
        results = [(bucket, arrive()) for bucket, arrive in launched]
        return counted(self._source.joined(indices, results), len(indices))

    def _tried(
        self, step: Callable[[list[int], Before], After], indices: list[int], given: Before
    ) -> After | None:
        """Take a step of a batch; None if it raises. The batch is then computed here, where it raises again."""
        try:
            with self.watch.begin(indices[0], len(indices)):
                return step(indices, given)
        except BaseException as error:  # of the user's code, which may raise SystemExit
            if self._here.is_interrupt(error, indices):
                raise
            return None

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """End the readers, and tell in which part of the time the device had no batch."""
        self._readers.end(is_failed=kind is not None)
        seconds = time.monotonic() - self._began
        if kind is None and seconds >= _TOLD_SECONDS:
            part = max(0.0, 1 - (self._fn.busy - self._busy) / seconds)
            text = f"{self._fn.device}: waited {part:.0%} of {timedelta(seconds=round(seconds))} for batches"
            base.tell(text + "; more num_workers read faster" * (part > _MUCH), self._progress)


class _Readers:
    """Threads that gather the batches of a cache; processes that read any other source, since its code is the user's.

    memory: of what threads gather. Attributes: count: without any a batch is read when it is taken.
    """

    def __init__(self, source: BatchSource, count: int, memory: Memory) -> None:
        self._source, self._memory = source, memory
        self.count = max(count, _LEAST_THREADS) if source.gathers else count
        self._is_over = RawValue("b", 0)
        self._pool: Executor | None = None

    def begin(self, indices: list[int]) -> Read:
        """Begin to read a batch."""
        here = partial(self._source.read, indices, self._memory)
        if not self.count:
            return here
        if self._pool is None:
            self._pool = self._start()
        pool, task = self._pool, here if self._source.gathers else partial(_read_there, indices)
        try:
            with base.foreign_code(_refused):  # a process that is not forked gets the source pickled
                return partial(self._read, pool, pool.submit(task))
        except BrokenExecutor:
            self._note_death(pool)
            return self.begin(indices)

    def _start(self) -> Executor:
        if self._source.gathers:
            return BatchThreads(self.count, "edcache-map")
        given = self._source, self.count, self._is_over
        return ProcessPoolExecutor(self.count, initializer=_begin_reader, initargs=given)

    def _read(self, pool: Executor, batch: Future[list[Bucket]]) -> list[Bucket]:
        # Not without a limit: a signal that comes just before such a wait does not end it.
        while not wait([batch], _WAIT_SECONDS).done:
            pass
        try:
            return batch.result()
        except BrokenExecutor:
            self._note_death(pool)
            raise

    def _note_death(self, pool: Executor) -> None:
        """Let others read the next batches when a reader was killed, perhaps amid a batch."""
        if self._pool is pool:
            base.warn(
                "a process that reads batches ahead ended, perhaps for want of memory, which fewer num_workers= need "
                "less of; the batches that were to be read are computed one by one"
            )
            self._pool = None

    def end(self, *, is_failed: bool) -> None:
        """End the readers when they have read their batches; processes at once after a failure."""
        self._is_over.value = is_failed
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _refused(error: Exception) -> Exception:
    if isinstance(error, BrokenExecutor | OSError):
        return error
    text = f"the source cannot be sent to the processes that read it ahead: {error}; use num_workers=0"
    return OptionError(text, option="num_workers")


def _begin_reader(source: Any, count: int, is_over: Any) -> None:
    """Begin a process that reads. It ends with its parent, and has none of its parent's handlers of signals."""
    global _source
    _source = source
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    own_positions()
    number = int(re.findall(r"\d+", current_process().name)[-1])  # of all that the parent started
    begin_alone(number)
    # For a source that asks `get_worker_info`; and for torch, which then collates into shared memory: no copy sends it.
    torch_worker._worker_info = WorkerInfo(id=number % count, num_workers=count, seed=number, dataset=source)
    threading.Thread(target=_end_reader, args=(is_over,), daemon=True).start()


def _end_reader(is_over: Any) -> None:
    await_end(lambda: is_over.value)
    os._exit(1)


def _read_there(indices: list[int]) -> list[Bucket]:
    try:
        return _source.read(indices)
    except BaseException as error:  # noqa: BLE001 - read by its parent, the batch raises it again
        # Not the error itself: one that cannot be unpickled would end the pool.
        raise SourceError(type(error).__name__) from None


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def taken(made: Any, *, non_blocking: bool = False) -> Any:
    """Copy tensors and arrays of a tree to the CPU, out of the buffers that a function may use for its next result.

    non_blocking: from a GPU the copies arrive later, before what it computes next.
    """
    return _copied_with(
        made,
        lambda tensor: (
            tensor.clone() if tensor.device.type == "cpu" else tensor.to("cpu", non_blocking=non_blocking)
        ),
    )


def _copied_with(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Copy a tree of dicts, lists, tuples and arrays with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, np.ndarray | bytearray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _copied_with(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copied_with(item, change) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_copied_with(item, change) for item in value)
    return value
