"""Compute batches on devices: which ones, the function on one, and the engine of a fill that reads ahead for it.

A batch is submitted, read (by processes, in the order of the submissions), launched, has arrived. On a GPU one is
launched ahead: the function computes it while the batch before it travels back and is stored. A batch that cannot be
read or computed is computed by this process alone (writer/engine.py:Here).

What must never happen: that the results of one batch are given for another. So batches are launched, and asked for, in
the order in which they were submitted.
"""

from __future__ import annotations

import inspect
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from edcache import base
from edcache.base import OptionError, shown
from edcache.identity import reached_from
from edcache.storage import own_positions
from edcache.writer import Computed, Engine, Here, Pending, Stored, counted

# Seconds of a fill whose waiting is told, and a part of waiting that more readers may shorten.
_TOLD_SECONDS, _MUCH = 10, 0.1
# Batches that a DataLoader has each of its processes read ahead.
_READ_AHEAD: Final = 2

Function: TypeAlias = Callable[[Any], Any]
Bucket: TypeAlias = tuple[list[int], Any, dict[str, Any]]
"""Samples of one shape in a batch: their positions in it, the samples collated, and their fields to keep."""
Devices: TypeAlias = str | torch.device | Sequence[str | torch.device] | None


def devices_of(fn: Function, asked: Devices) -> list[torch.device]:
    """Return the devices of `map(devices=)`; none if the function computes where it is called.

    Raises: OptionError, one is no device, or is not here; or as `check_frozen`, of a function that is made already.
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
    names = [asked] if isinstance(asked, str | torch.device) else list(asked)
    try:
        devices = [torch.device(name) for name in names]
        for device in {*devices}:
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise OptionError(f"devices={shown(asked)}: {error}", option="devices") from error
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

    It may be the function itself, the owner of a method, an attribute of an object that is called, or in a closure or a
    global variable that the function reads.
    """
    bare = inspect.unwrap(fn)
    held: list[Any] = [fn, getattr(fn, "__self__", None)]
    held += [*getattr(fn, "__dict__", {}).values()]
    held += [cell.cell_contents for cell in getattr(bare, "__closure__", None) or ()]
    held += reached_from([fn])
    for module in held:
        # Losses and transforms have no parameters, and are in training mode always.
        is_model = isinstance(module, torch.nn.Module) and any(True for _ in module.parameters())
        if is_model and any(part.training for part in module.modules()):
            raise OptionError(
                f"fn computes by a {type(module).__name__} in training mode; call .eval() on it first",
                option="fn",
            )
    return fn


class OnDevice:
    """Function of batches on a device.

    fn: a module, which is moved there, or a function of the device that returns the function.
    Attributes: busy: seconds that the batches took which have arrived.
    """

    def __init__(self, fn: Function, device: torch.device) -> None:
        self._device = device
        self.busy = 0.0
        self._fn = fn.to(device) if isinstance(fn, torch.nn.Module) else check_frozen(fn(device))

    def launch(self, batch: Any) -> Arriving:
        """Compute a batch; on a GPU the result arrives later."""
        with torch.no_grad():
            if self._device.type != "cuda":
                began = time.perf_counter()
                made = taken(self._fn(_map_tensors(batch, lambda tensor: tensor.to(self._device))))
                self.busy += time.perf_counter() - began
                return Arriving(self, made)
            with torch.cuda.device(self._device):
                begun, arrived = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begun.record()
                made = self._fn(
                    _map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
                )
                # Into pinned memory, while the device goes on.
                made = taken(made, non_blocking=True)
                arrived.record()
                return Arriving(self, made, (begun, arrived))


class Arriving:
    """Result of a batch on its way from the device. events: of a GPU, before the batch and behind its result."""

    def __init__(
        self, on: OnDevice, made: Any, events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
    ) -> None:
        self._on, self._made, self._events = on, made, events

    def result(self) -> Any:
        """Wait for it. Raises: as the device does, also for an earlier launch."""
        if self._events is not None:
            (begun, arrived), self._events = self._events, None
            arrived.synchronize()
            self._on.busy += begun.elapsed_time(arrived) / 1000
        return self._made


class OfBatches(Protocol):
    """What a device computes: batches of a source, which are read, launched, and joined from their shapes."""

    @property
    def busy(self) -> float:
        """Seconds that the device took for the batches which have arrived."""

    def read(self, indices: list[int]) -> list[Bucket]:
        """Read a batch."""

    def launch(self, batch: Any) -> Arriving:
        """Compute one shape of it."""

    def joined(self, indices: list[int], results: list[tuple[Bucket, Any]]) -> Any:
        """Join the results of its shapes."""


class DeviceEngine(Engine):
    """Engine of a device.

    here: computes the batches that this cannot. readers: processes that read ahead; without any this process reads.
    progress: whether a line tells how long the device waited.
    """

    gives_batches = True

    def __init__(
        self, source: OfBatches, here: Here, device: torch.device, readers: int, progress: base.Show
    ) -> None:
        self._source, self.here = source, here
        self._device, self._readers, self._progress = device, readers, progress
        # Results of a CPU are there when the function returns; a killed process then loses one batch, not two.
        self._in_air, self._most_in_air = 0, 2 if device.type == "cuda" else 1
        # One more than are read and launched, since a reader gets the next batch when one that was read is taken.
        self.depth = self._most_in_air + _READ_AHEAD * readers
        self._asked: deque[list[int]] = deque()
        self._waiting: deque[_Batch] = deque()
        self._read: Iterator[list[Bucket]] | None = None

    def __enter__(self) -> DeviceEngine:
        self._began, self._busy = time.monotonic(), self._source.busy
        return self

    def submit(self, indices: list[int]) -> Pending:
        """Let a batch be read; one that has ended a process is neither read nor computed here."""
        if self.here.is_suspect(indices):
            return self.here.submit(indices)
        batch = _Batch(self, indices)
        self._waiting.append(batch)
        self._asked.append(self.here.rows(indices))
        return batch

    def take(self, batch: _Batch) -> Computed | None:
        """Launch the next batches, and wait for the results of the first; None if it is to be computed here."""
        while self._waiting and self._in_air < self._most_in_air:
            self._launch(self._waiting.popleft())
            self._in_air += 1
        self._in_air -= 1
        indices = batch.indices
        self.here.watch.begin(indices[0], len(indices))
        try:
            results = [(bucket, one.result()) for bucket, one in batch.launched]
            made = self._source.joined(self.here.rows(indices), results)
            return indices, counted(made, len(indices))
        except Exception:  # noqa: BLE001 - computed here, the batch raises it again; a device raises after the launch, too
            return None
        finally:
            self.here.watch.made()

    def _launch(self, batch: _Batch) -> None:
        if batch.is_lost:
            return
        self.here.watch.begin(batch.indices[0], len(batch.indices))
        try:
            buckets = self._next()
        except RuntimeError as error:  # a reader was killed
            base.warn(f"{error}; the batches that were to be read are computed one by one")
            self._read = None
            self._asked.clear()
            for one in self._waiting:
                one.is_lost = True
            return
        try:
            batch.launched = [(bucket, self._source.launch(bucket[1])) for bucket in buckets]
        except Exception:  # noqa: BLE001 - computed here, the batch raises it again
            batch.launched = []

    def _next(self) -> list[Bucket]:
        """Return the batch that was asked for first; readers end when all that was asked for is read."""
        if self._read is not None:
            buckets = next(self._read, None)
            if buckets is not None:
                return buckets
        self._read = iter(
            DataLoader(
                _Read(self._source),
                batch_size=None,
                sampler=_Queue(self._asked),
                num_workers=self._readers,
                collate_fn=_unchanged,
                worker_init_fn=own_positions,
                pin_memory=self._device.type == "cuda",
            )
        )
        return next(self._read)

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """End the readers, and tell in which part of the time the device had no batch."""
        self._read = None
        seconds = time.monotonic() - self._began
        if kind is None and seconds >= _TOLD_SECONDS:
            part = max(0.0, 1 - (self._source.busy - self._busy) / seconds)
            text = f"{self._device}: waited {part:.0%} of {timedelta(seconds=round(seconds))} for batches"
            base.tell(text + "; more num_workers read faster" * (part > _MUCH), self._progress)


class _Batch(Pending):
    """launched: its shapes, on their way; none if it could not be read or launched. is_lost: with its reader."""

    def __init__(self, engine: DeviceEngine, indices: list[int]) -> None:
        self._engine, self.indices = engine, indices
        self.launched: list[tuple[Bucket, Arriving]] = []
        self.is_lost = False

    def result(self) -> Iterable[Stored]:
        made = self._engine.take(self)
        return self._engine.here.submit(self.indices).result() if made is None else [made]


class _Queue:
    """Sampler of a DataLoader: the batches that are asked for by then. It goes on after its end."""

    def __init__(self, asked: deque[list[int]]) -> None:
        self._asked = asked

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        if not self._asked:
            raise StopIteration
        return self._asked.popleft()


class _Read(Dataset[Any]):
    """Batches of a source, by their indices; none of a batch that cannot be read."""

    def __init__(self, source: OfBatches) -> None:
        self._source = source

    def __getitem__(self, indices: Any) -> list[Bucket]:
        try:
            return self._source.read(indices)
        except Exception:  # noqa: BLE001 - computed here, the batch raises it again
            return []


def _unchanged(buckets: Any) -> Any:
    return buckets


def taken(made: Any, *, non_blocking: bool = False) -> Any:
    """Copy tensors and arrays of a tree to the CPU, out of the buffers that a function may use for its next result.

    non_blocking: from a GPU the copies arrive later, before what it computes next.
    """
    return _map_tensors(
        made,
        lambda tensor: (
            tensor.clone() if tensor.device.type == "cpu" else tensor.to("cpu", non_blocking=non_blocking)
        ),
    )


def _map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Copy a tree of dicts, lists, tuples and arrays with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, np.ndarray | bytearray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tensors(item, change) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_map_tensors(item, change) for item in value)
    return value
