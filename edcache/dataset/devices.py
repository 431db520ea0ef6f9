"""Devices of `map`: which ones, and the function on one, whose results arrive later."""

from __future__ import annotations

import inspect
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from edcache.base import OptionError, shown
from edcache.identity import reached_from

Function: TypeAlias = Callable[[Any], Any]
Arrive: TypeAlias = Callable[[], Any]
"""Waits for the result of a batch. Raises: as the device does, also for an earlier batch."""
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

    def launch(self, batch: Any) -> Arrive:
        """Compute a batch; on a GPU the result arrives later."""
        with torch.no_grad():
            if self._device.type != "cuda":
                began = time.perf_counter()
                made = taken(self._fn(_map_tensors(batch, lambda tensor: tensor.to(self._device))))
                self.busy += time.perf_counter() - began
                return lambda: made
            with torch.cuda.device(self._device):
                begun, arrived = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begun.record()
                made = self._fn(
                    _map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
                )
                # Into pinned memory, while the device goes on.
                made = taken(made, non_blocking=True)
                arrived.record()
        return partial(self._arrive, made, begun, arrived)

    def _arrive(self, made: Any, begun: torch.cuda.Event, arrived: torch.cuda.Event) -> Any:
        arrived.synchronize()
        self.busy += begun.elapsed_time(arrived) / 1000
        return made


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
