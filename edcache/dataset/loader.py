"""`Loader`: batches made by threads of this process, without a DataLoader's workers.

A worker process hands its batch over in shared memory, page by page. Here threads gather whole batches, which releases
the interpreter. Memory is used again when nothing holds the batch any more: no tensor, no row or view of it, no array
of numpy over it. What must never happen: that a batch is overwritten while somebody holds it.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from edcache import base
from edcache.base import MissingDependencyError, OptionError, check_count
from edcache.codec import decode_in
from edcache.dataset.ahead import looking_ahead
from edcache.dataset.epoch import ENDED, EpochSampler
from edcache.dataset.indexing import Readable, batch_of, reading_of
from edcache.dataset.resident import Resident
from edcache.dataset.samplers import Foreign, Sequential, Shuffle
from edcache.dataset.state import State
from edcache.reader import Memory, fresh

# Batches, and the exception of the batch after them.
_Made = tuple[list[Any], BaseException | None]

# A task makes as many batches as take a millisecond.
_WORTH_A_TASK, _MAX_BURST = 1e-3, 32


@base.cut_traceback
class Loader:
    """Collated batches, epoch after epoch; `dataset.loader(...)` makes it and describes its options.

    It has the attributes of a DataLoader by which trainers set an epoch, and skip batches: `dataset`, `sampler`,
    `batch_size`, and `batch_sampler`, which is None if the sampler gives positions.
    Safety: one iteration at a time. An abandoned iteration ends its threads.
    """

    # Without it accelerate's skip_first_batches takes 2, which a DataLoader without workers refuses.
    prefetch_factor = None

    def __init__(
        self,
        dataset: Readable[Any],
        batch_size: int | None,
        *,
        shuffle: bool,
        sampler: Iterable[Any] | None,
        drop_last: bool,
        seed: int | None,
        num_threads: int,
        prefetch: int,
        pin_memory: bool,
        device: torch.device | str | None,
        resident: bool,
    ) -> None:
        check_count("num_threads", num_threads)
        check_count("prefetch", prefetch)
        _check_device(device)
        self.dataset, self.batch_size, self._drop_last = dataset, batch_size, drop_last
        self._num_threads, self._prefetch = num_threads, prefetch
        self._asked_device = device
        self._memory: Memory = pinned if pin_memory else fresh
        self._reading = reading_of(dataset)
        if sampler is not None and shuffle:
            text = "shuffle=True cannot be combined with sampler=; let the sampler shuffle"
            raise OptionError(text, option="shuffle")
        if sampler is not None:
            self.sampler = sampler
        elif shuffle:
            seed = int(torch.randint(1 << 62, ())) if seed is None else seed
            self.sampler = Shuffle(dataset, seed, num_replicas=1, rank=0)
        else:
            self.sampler = Sequential(dataset, num_replicas=1, rank=0)
        if sampler is None or batch_size is not None:
            check_count("batch_size", batch_size)
        elif drop_last:
            text = "drop_last=True needs a batch_size; here the sampler makes the batches"
            raise OptionError(text, option="drop_last")
        self._passes: EpochSampler | Foreign
        if isinstance(self.sampler, EpochSampler):
            self._passes = self.sampler
            self._passes.check_loader(len(dataset), batch_size)
        else:
            self._passes = Foreign(self.sampler, gives_lists=batch_size is None)
        place = _place_of(device) if resident else None
        self._resident = None if place is None else Resident(dataset, place)
        self._device: torch.device | None = None
        self._can_split = True
        self._seconds_a_batch = math.inf

    def __repr__(self) -> str:
        count, epoch = len(self.dataset), self._passes.epoch
        return f"Loader({count:,} samples, batch_size={self.batch_size}, epoch {epoch})"

    @property
    def batch_sampler(self) -> Iterable[Any] | None:
        """Sampler, if it gives batches; else None."""
        return self.sampler if self.batch_size is None else None

    def __len__(self) -> int:
        """Return the number of batches in an epoch; TypeError if the sampler has no length."""
        return len(self._starts(len(self._passes)))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, at its start or at the draw of a loaded state."""
        self._passes.set_epoch(epoch)

    def state_dict(self) -> State:
        """Return the position behind the batches that were handed out, as plain numbers and strings.

        It is the state of the sampler, the same on every rank: see `edcache.samplers.Shuffle.state_dict`. Without a
        sampler it is the state of a `Shuffle` or `Sequential` of one rank.

        Raises:
            OptionError: the sampler is not of `edcache.samplers`; it keeps its own state.
        """
        return self._stateful().state_dict()

    def load_state_dict(self, state: State) -> None:
        """Begin the next iteration at the position of a `state_dict`, with any batch size and ranks.

        Arguments and errors are as of `edcache.samplers.Shuffle.load_state_dict`.
        """
        self._stateful().load_state_dict(state)

    def _stateful(self) -> EpochSampler:
        if isinstance(self._passes, Foreign):
            kind = type(self.sampler).__name__
            raise OptionError(f"{kind} is no sampler of edcache.samplers; save its own state, if it has one")
        return self._passes

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._epoch()
        except GeneratorExit:  # at the end of Python too, when the names of modules are gone
            raise
        except Exception as error:  # noqa: BLE001 - it is raised again
            raise base.cut_frames(error)  # noqa: B904 - the same error, with its cause

    def _epoch(self) -> Iterator[Any]:
        """Yield the batches of an epoch; a batch that is handed out counts as taken."""
        current, order = self._passes.begin()
        starts = self._starts(len(order))
        batches: Iterator[Any] = order.batches(starts.step, is_seeded=self._reading.is_seeded)
        batches = itertools.islice(batches, len(starts))
        here = self._resident
        ahead = None if here else looking_ahead(self._reading, order.epoch, order.positions, len(order))
        if ahead is not None:
            batches = ahead.follow(batches, starts.step, tells=True)
        # A caller that counts batches does not ask for one more, so the last one takes the dropped items too.
        last = len(order) if self._drop_last else len(starts) * starts.step
        reached = itertools.chain(starts[1:], [last] if starts else [])
        self._can_split = True  # until a large batch cannot be split into small ones
        # With its number: "cuda" and "xla" mean the current device of each thread.
        asked = self._asked_device
        self._device = None if asked is None else _place_of(asked)
        if self._memory is pinned:
            with device_errors("pin_memory", True):
                pinned((1,), torch.uint8)
        made = here.batches(batches, self._memory) if here else self._make_batches(batches)
        for taken, batch in zip(reached, made, strict=True):
            if ahead is not None:
                ahead.begin()
            current.taken = taken
            yield batch
        current.taken = ENDED

    def _starts(self, items: int) -> range:
        """Return the first item of each batch in an order."""
        size = self.batch_size or 1
        return range(0, items // size * size if self._drop_last else items, size)

    def _make_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the collated batches in order, made by threads that end with this generator."""
        at_work: deque[Future[_Made]] = deque()
        mutex = threading.Lock()
        is_ending, reader = sys.is_finalizing, threading.get_ident()
        count = self._num_threads
        pool = BatchThreads(count, "edcache-loader")
        try:
            while True:
                # Handing over a small batch takes longer than making it.
                size = int(_WORTH_A_TASK / max(self._seconds_a_batch, 1e-9))
                burst = list(itertools.islice(batches, min(_MAX_BURST, max(1, size))))
                if burst:
                    at_work.append(pool.submit(self._make_all, burst, mutex))
                if not at_work:
                    return
                if not burst or len(at_work) == count + self._prefetch:
                    made, error = at_work.popleft().result()
                    while made:  # no batch is held here when the caller has it
                        yield self._record_stream(made.pop(0))
                    if error is not None:
                        raise error
        finally:
            # When the interpreter ends, threads have ended, and modules may be gone
            # (test_loader.py, test_a_process_that_holds_an_iteration_exits).
            if not is_ending():
                # Another thread that collects this as garbage may be the one for which these threads wait.
                pool.shutdown(wait=threading.get_ident() == reader, cancel_futures=True)

    def _make_all(self, burst: list[Any], mutex: threading.Lock) -> _Made:
        """Make the batches of a burst on the device, up to the first that raises."""
        made: list[Any] = []
        began = time.perf_counter()
        filled = self._at_once(burst)
        # Small batches are mostly work under the interpreter's lock: one thread at a time is faster.
        with mutex if filled is None and len(burst) > 1 else nullcontext():
            if filled is None:
                began, filled = time.perf_counter(), self._one_by_one(burst)
            try:
                for batch in filled:
                    made.append(self._on_device(batch))  # noqa: PERF401 - an error keeps these
            except BaseException as error:  # noqa: BLE001 - raised in the caller, after these batches
                return made, error
        seconds = (time.perf_counter() - began) / len(burst)
        # A time that includes waiting for the interpreter or the processor says little.
        self._seconds_a_batch = min(seconds, 1.5 * self._seconds_a_batch)
        return made, None

    def _at_once(self, burst: list[Any]) -> Iterable[Any] | None:
        """Make the batches of a burst as parts of a large one; None if they must be made one by one."""
        # torch counts who holds page-locked memory by its storage, which parts would not have in common.
        if len(burst) == 1 or self.batch_size is None or not self._can_split or self._memory is pinned:
            return None
        try:
            # Draws are lists: an array would lose their epochs.
            draws = [*itertools.chain(*burst)] if isinstance(burst[0], list) else np.concatenate(burst)
            batches = batch_of(self.dataset, draws).collated_by(self.batch_size, self._memory)
        except Exception:  # noqa: BLE001 - one by one, its batch raises it
            batches = None
        self._can_split = batches is not None
        return batches

    def _one_by_one(self, burst: list[Any]) -> Iterable[Any]:
        return (batch_of(self.dataset, indices).collated(memory=self._memory) for indices in burst)

    def _on_device(self, batch: Any) -> Any:
        device = self._device
        if device is None:
            return batch
        if device.type == "xla":
            # Not tensor.to(device), which extends a graph: if two threads run it at once, batches come out wrong. This
            # makes none, and has read the memory when it returns.
            from torch_xla.core.xla_model import send_cpu_data_to_device

            tensors: list[torch.Tensor] = []
            _map_tensors(tensors.append, batch)
            there = iter(send_cpu_data_to_device(tensors, device))
            return _map_tensors(lambda _: next(there), batch)
        if device.type != "cuda":
            return _map_tensors(lambda tensor: tensor.to(device), batch)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            moved = _map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)
        # The memory of the batch is free for the next one when this returns.
        stream.synchronize()
        return moved

    def _record_stream(self, batch: Any) -> Any:
        if self._device is not None and self._device.type == "cuda":
            # The thread that copied it allocated it on its own stream.
            stream = torch.cuda.current_stream(self._device)
            _map_tensors(lambda tensor: tensor.record_stream(stream), batch)
        return batch


def _check_device(device: torch.device | str | None) -> None:
    if device is None:
        return
    with device_errors("device", device):
        kind = torch.device(device).type
    if kind == "xla":
        try:
            import torch_xla  # noqa: F401
        except ImportError:
            raise MissingDependencyError(
                f'device="{device}" needs torch_xla; install it with: pip install edcache[xla]'
            ) from None


def _place_of(device: torch.device | str | None) -> torch.device:
    """Return a device with its number; of None the one that torch takes."""
    with device_errors("device", device):
        return torch.empty(0, device=device).device


def device_errors(option: str, device: object) -> base.foreign_code:
    """Run code of torch in a `with` block: its error is an OptionError about a device that is none, or is not here."""

    def refused(error: Exception) -> OptionError:
        text = f"{option}={base.shown(device)}: {str(error).splitlines()[0]}"
        return OptionError(f'{text}; leave it out, or name what this machine has, as "cpu"', option=option)

    return base.foreign_code(refused)


class BatchThreads(ThreadPoolExecutor):
    """Threads that make batches, each its own; pictures of a batch are decoded by as many others, together."""

    def __init__(self, count: int, name: str) -> None:
        before = torch.get_num_threads()
        # They start when there are pictures.
        self._decoders = ThreadPoolExecutor(count, f"{name}-decoder", _work_alone, (before,))
        super().__init__(count, name, _make_batches, (before, self._decoders if count > 1 else None))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all threads; the ones that wait for pictures first."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        self._decoders.shutdown(wait, cancel_futures=cancel_futures)


def _make_batches(before: int, decoders: ThreadPoolExecutor | None) -> None:
    _work_alone(before)
    if decoders is not None:
        decode_in(decoders)


def _work_alone(before: int) -> None:
    """Let torch use this one thread only: threads of threads would wait for each other.

    Threads that start later would inherit the setting, so another thread sets it back. The first call keeps this thread
    from taking that over.
    """
    torch.get_num_threads()
    torch.set_num_threads(1)
    other = threading.Thread(target=torch.set_num_threads, args=(before,))
    other.start()
    other.join()


def _map_tensors(do: Callable[[torch.Tensor], Any], batch: Any) -> Any:
    def each(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return do(leaf)
        # tree_map stops at a TensorList, which is no plain list.
        return [each(item) for item in leaf] if isinstance(leaf, list) else leaf

    return tree_map(each, batch)


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Make an uninitialized tensor in page-locked memory; torch uses it again when no tensor and no copy needs it."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)
