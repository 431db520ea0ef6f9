"""Batches made by threads of this process, without a DataLoader's workers.

A worker process hands its batch over in shared memory, page by page. Here threads gather whole
batches, which releases the interpreter, into a ring of memory that is used again and again.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from edcache.base import Ints, MissingDependencyError, OptionError, Selection, check_count, shuffled
from edcache.dataset.state import VERSION, State, archive_of, check_change, check_fit, check_shape
from edcache.reader import Batch, Memory, fresh

if TYPE_CHECKING:
    from edcache.dataset.samplers import EpochSampler

_Slot = list[torch.Tensor]
# Batches and where they lie, and what was raised by the one after them.
_Made = tuple[list[tuple[Any, _Slot]], BaseException | None]

# The caller owns a batch until it asks for the next but one.
_HELD = 2
# Tasks are of as many batches as take a millisecond.
_WORTH_A_TASK, _MAX_BURST = 1e-3, 32
_WORTH_A_SLICE = 1 << 14


@dataclass(frozen=True)
class LoaderOptions:
    """See `Readable.loader`."""

    batch_size: int | None
    shuffle: bool
    sampler: Iterable[Any] | None
    drop_last: bool
    seed: int | None
    num_threads: int
    prefetch: int
    pin_memory: bool
    device: torch.device | str | None
    reuse: bool

    def __post_init__(self) -> None:
        makes_batches = self.batch_size is None and self.sampler is not None
        counts: dict[str, Any] = {} if makes_batches else {"batch_size": self.batch_size}
        counts |= {"num_threads": self.num_threads, "prefetch": self.prefetch}
        for name, value in counts.items():
            check_count(name, value)
        if makes_batches and self.drop_last:
            raise OptionError("drop_last=True needs a batch_size; here the sampler makes the batches")
        if self.shuffle and self.sampler is not None:
            raise OptionError("shuffle=True cannot be combined with sampler=; let the sampler shuffle")
        if self.device is not None and torch.device(self.device).type == "xla":
            try:
                import torch_xla  # noqa: F401
            except ImportError:
                raise MissingDependencyError(
                    f'device="{self.device}" needs torch_xla; install it with: pip install edcache[xla]'
                ) from None


class Loader:
    """Collated batches, epoch after epoch; `dataset.loader(...)` makes it and tells its options.

    Safety: one iteration at a time. Abandoning an iteration ends its threads.
    """

    def __init__(self, dataset: Any, options: LoaderOptions) -> None:
        self._dataset, self._length, self._options = dataset, len(dataset), options
        self._read: Callable[[Ints], Batch] = dataset._batch
        self.batch_size, self._sampler = options.batch_size, options.sampler
        self._seed = int(torch.randint(1 << 62, ())) if options.seed is None else options.seed
        self._device: torch.device | None = None
        # Where the iteration begins in its epoch, in samples of the whole job, and the batches since.
        self._epoch, self._start, self._taken, self._resumed = 0, 0, 0, False
        self._is_split = True  # until a large batch turns out not to be what small ones are
        self._steps: int | None = None
        self._ring: _Ring | None = None
        self._seconds_a_batch = math.inf

    def __repr__(self) -> str:
        return f"Loader({self._length:,} samples, batch_size={self.batch_size}, epoch {self._epoch})"

    def __len__(self) -> int:
        """Batches of an epoch; TypeError where the sampler has no length."""
        samples = self._length
        if self._sampler is not None:
            if not isinstance(self._sampler, Sized):
                raise TypeError(f"{type(self._sampler).__name__} has no length, so this loader has none")
            samples = len(self._sampler)
        return samples if self.batch_size is None else len(self._starts(samples, self.batch_size))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch, from its first batch; the sampler is told too."""
        self._epoch, self._start, self._taken, self._resumed = epoch, 0, 0, False
        tell = getattr(self._sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)
        sampler = self._epoch_sampler
        if sampler is not None:
            sampler._start, sampler._taken, sampler._resumed = 0, 0, False

    def state_dict(self) -> State:
        """The position behind the batches that were handed out, as plain numbers and strings.

        With a sampler of `edcache.samplers` it is the sampler's, the same on every rank: see there. Else it
        counts the samples of this loader, which reads alone.
        """
        self._follow_sampler()
        sampler, size = self._epoch_sampler, self.batch_size or 1
        is_over = self._taken == self._steps and self._taken > 0
        if sampler is not None:
            consumed = sampler._count if is_over else sampler._consumed(self._start, self._taken * size)
            return sampler._state(self._epoch, consumed)
        length = self._length
        if self._sampler is not None:
            length = len(self._sampler) if isinstance(self._sampler, Sized) else sys.maxsize
        return {
            "version": VERSION,
            "order": "loader" if self._sampler is None else type(self._sampler).__name__,
            "archive": archive_of(self._dataset),
            "seed": self._seed,
            "epoch": self._epoch,
            "samples": self._length,
            "length": length,
            "consumed": length if is_over else min(self._start + self._taken * size, length),
            "shuffle": int(self._options.shuffle),
        }

    def load_state_dict(self, state: State, *, on_change: str = "error") -> None:
        """Let the next iteration begin where a `state_dict` was taken, with any batch size and any threads.

        Args and errors are those of `edcache.samplers.Shuffle.load_state_dict`. With a sampler of
        `edcache.samplers` the number of ranks may be another one. Any other sampler must give the same order
        again.
        """
        sampler = self._epoch_sampler
        if sampler is not None:
            sampler.load_state_dict(state, on_change=on_change)
        else:
            check_shape(state)
            check_change(on_change)
            own = self.state_dict()
            if on_change == "continue" and self._sampler is None and state["samples"] < self._length:
                own |= {"samples": state["samples"], "length": state["samples"]}
            check_fit(state, own)
            self._length = own["samples"]
            self.set_epoch(state["epoch"])
            self._seed = state["seed"]
        self._epoch, self._start, self._taken = state["epoch"], state["consumed"], 0
        self._steps, self._resumed = None, True

    def which(self, step: int) -> Ints:
        """The positions that a step reads, without a walk there: int64 [batch_size], fewer in a last batch.

        Args:
            step: from 0, in the epoch; in one that a loaded state continues, from there.
        Raises:
            OptionError: there is no such step.

        Cost: that of the sampler's `which`. Of a sampler of another kind all is drawn.
        """
        check_count("step", step, 0)
        self._follow_sampler()
        order = self._order()
        size = self.batch_size
        starts = range(len(order)) if size is None else self._starts(len(order), size)
        if step >= len(starts):
            raise OptionError(f"step={step} of {len(starts):,} steps; give less")
        return _positions(order[step] if size is None else order[starts[step] : starts[step] + size])

    def _follow_sampler(self) -> None:
        """Go where a state took the sampler, which was loaded into it and not into this loader."""
        sampler = self._epoch_sampler
        if sampler is not None and sampler._resumed:
            self._epoch, self._start, self._taken = sampler.epoch, sampler._start, 0
            self._steps, self._resumed, sampler._resumed = None, True, False

    def __iter__(self) -> Iterator[Any]:
        self._follow_sampler()
        if not self._resumed and 0 < self._taken == self._steps:
            # Who counts batches does not ask for one more than there are.
            self._end_epoch()
        epoch = self._sampler_epoch
        if not self._resumed or epoch != self._epoch:
            self._epoch, self._start = epoch, 0
        self._taken, sampler = 0, self._epoch_sampler
        if sampler is not None:
            sampler._start, sampler._taken = self._start, 0
        self._resumed, self._is_split = False, True
        # With its number: which device "cuda" or "xla" means, each thread says for itself.
        asked = self._options.device
        self._device = None if asked is None else torch.empty(0, device=asked).device
        # torch_xla's own loader queues batches before it uploads them.
        if sys._getframe(1).f_globals.get("__name__") == "torch_xla.distributed.parallel_loader":
            ring = _Ring(self._options.pin_memory, reuse=False)
        else:
            ring = self._ring or _Ring(self._options.pin_memory, self._options.reuse)
            self._ring = None
        try:
            for batch in self._made(self._batches(), ring):
                self._taken += 1
                yield batch
        finally:
            # The next epoch uses its memory again; an iteration inside of another has a ring of its own.
            if ring.reuse == self._options.reuse:
                self._ring = ring
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self._sampler_epoch == self._epoch:
            self.set_epoch(self._epoch + 1)

    @property
    def _sampler_epoch(self) -> int:
        """The epoch of the sampler, whoever told it; where it knows of none, this one's."""
        epoch = getattr(self._sampler, "epoch", None)
        return epoch if isinstance(epoch, int) else self._epoch

    def _starts(self, samples: int, size: int) -> range:
        return range(0, samples // size * size if self._options.drop_last else samples, size)

    def _batches(self) -> Iterator[Ints]:
        order, size = self._order(), self.batch_size
        if size is None:
            self._steps = len(order)
            batches: Iterator[Ints] = (_positions(order[number]) for number in range(len(order)))

            def positions(low: int, high: int) -> Ints:
                return np.concatenate([_positions(order[number]) for number in range(low, high)])

            ahead = self._dataset._looking_ahead(positions, 0, len(order))
            return batches if ahead is None else ahead.follow(batches, 1)
        starts = self._starts(len(order), size)
        self._steps = len(starts)
        batches = _slices(order, starts)
        ahead = self._dataset._looking_ahead(lambda low, high: order[low:high], 0, len(order))
        return batches if ahead is None else ahead.follow(batches, size)

    @property
    def _epoch_sampler(self) -> EpochSampler | None:
        if self._sampler is None:
            return None
        # Who reads without a sampler need not wait for it.
        from edcache.dataset.samplers import EpochSampler

        return self._sampler if isinstance(self._sampler, EpochSampler) else None

    def _order(self) -> Any:
        """What is to be read of this epoch: positions, or a sequence of batches of them."""
        sampler, start = self._epoch_sampler, self._start
        if sampler is not None:
            return sampler._order(self._epoch, start)
        if self._sampler is not None:
            drawn = list(self._sampler)[start:]
            return drawn if self.batch_size is None else _positions(drawn)
        whole = Selection(range(self._length))
        if self._options.shuffle:
            whole = shuffled(whole, self._seed, self._epoch)
        return whole.cut(range(start, self._length))

    def _made(self, batches: Iterator[Ints], ring: _Ring) -> Iterator[Any]:
        """The collated batches in order, made by threads that end with this generator, however it ends."""
        at_work: deque[Future[_Made]] = deque()
        turn = threading.Lock()
        is_ending = sys.is_finalizing
        count = self._options.num_threads
        pool = ThreadPoolExecutor(count, "edcache-loader", _work_alone, (torch.get_num_threads(),))
        try:
            while True:
                # Handing small ones over one by one takes longer than making them.
                size = int(_WORTH_A_TASK / max(self._seconds_a_batch, 1e-9))
                burst = list(itertools.islice(batches, min(_MAX_BURST, max(1, size))))
                if burst:
                    at_work.append(pool.submit(self._make_all, burst, ring, turn))
                if not at_work:
                    return
                if not burst or len(at_work) == count + self._options.prefetch:
                    made, error = at_work.popleft().result()
                    for batch, slot in made:
                        ring.hand_out(slot)
                        yield self._here(batch)
                    if error is not None:
                        raise error
        finally:
            # Where the interpreter ends its threads have ended, and what this takes may be gone
            # (test_loader.py, test_a_process_that_holds_an_iteration_exits).
            if not is_ending():
                pool.shutdown(wait=True, cancel_futures=True)

    def _make_all(self, burst: list[Ints], ring: _Ring, turn: threading.Lock) -> _Made:
        """The batches of a burst on the device, up to the first that raises."""
        made: list[tuple[Any, _Slot]] = []
        began = time.perf_counter()
        filled = self._at_once(burst, ring)
        # Small batches are mostly work under the interpreter's lock, over which threads would quarrel.
        with turn if filled is None and len(burst) > 1 else nullcontext():
            if filled is None:
                began, filled = time.perf_counter(), self._one_by_one(burst, ring)
            try:
                for batch, slot in filled:
                    made.append((self._on_device(batch), slot))
            except BaseException as error:  # noqa: BLE001 - raised in the caller, behind what was made
                return made, error
        seconds = (time.perf_counter() - began) / len(burst)
        # One that had to wait for the interpreter or the processor says little.
        self._seconds_a_batch = min(seconds, 1.5 * self._seconds_a_batch)
        return made, None

    def _at_once(self, burst: list[Ints], ring: _Ring) -> Iterable[tuple[Any, _Slot]] | None:
        """The batches of a burst as parts of a large one; None where they are to be made one by one."""
        if len(burst) == 1 or not ring.reuse or self.batch_size is None or not self._is_split:
            return None
        slot = ring.slot()
        try:
            batches = self._read(np.concatenate(burst)).collated_by(self.batch_size, ring.memory(slot))
        except Exception:  # noqa: BLE001 - one by one, it is raised at its batch
            batches = None
        if batches is None:
            self._is_split = False
            ring.free.append(slot)
            return None
        return ((batch, slot) for batch in batches)

    def _one_by_one(self, burst: list[Ints], ring: _Ring) -> Iterable[tuple[Any, _Slot]]:
        for indices in burst:
            slot = ring.slot()
            yield self._read(indices).collated(memory=ring.memory(slot)), slot

    def _on_device(self, batch: Any) -> Any:
        device = self._device
        if device is None:
            return batch
        if device.type == "xla":
            # Not tensor.to(device), which makes part of a graph: a thread that runs the graph while another
            # one does so spoils it, and batches come out wrong. This makes none, from any thread, and has
            # read the memory when it returns.
            from torch_xla.core.xla_model import send_cpu_data_to_device

            tensors: list[torch.Tensor] = []
            _map_tensors(tensors.append, batch)
            there = iter(send_cpu_data_to_device(tensors, device))
            return _map_tensors(lambda _: next(there), batch)
        if device.type != "cuda":
            # Nothing waits for the copy: it is done when this returns, as the memory is used again.
            return _map_tensors(lambda tensor: tensor.to(device), batch)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            moved = _map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)
        # The slot is written again while the training step runs.
        stream.synchronize()
        return moved

    def _here(self, batch: Any) -> Any:
        if self._device is not None and self._device.type == "cuda":
            # It was allocated on the stream of the thread that copied it.
            stream = torch.cuda.current_stream(self._device)
            _map_tensors(lambda tensor: tensor.record_stream(stream), batch)
        return batch


def _slices(order: Any, starts: range) -> Iterator[Ints]:
    """What lies from each start to the next; of many at a time, since each time is a dozen calls of numpy."""
    many = max(_WORTH_A_SLICE // starts.step, 1)
    for part in (starts[k : k + many] for k in range(0, len(starts), many)):
        positions = order[part.start : part.stop]
        yield from (positions[k : k + starts.step] for k in range(0, len(positions), starts.step))


def _positions(drawn: Any) -> Ints:
    array = np.asarray(drawn)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise OptionError(
            f"the sampler gives {array.dtype} of shape {array.shape}; it gives integers, and with "
            "batch_size=None lists of them"
        )
    return array.astype(np.int64)


def _work_alone(before: int) -> None:
    """Let torch use this one thread only, or threads of threads would wait for each other.

    The setting is of the thread, but those that start later take it over: another thread sets it back to
    what it was before. A thread that did not look yet would take that over at its first look.
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
        # A list of views is no plain list, so that tree_map stops at it.
        return [each(item) for item in leaf] if isinstance(leaf, list) else leaf

    return tree_map(each, batch)


def _pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class _Ring:
    """Slots: `free`, being filled, waiting, or with the caller, who has the last two that were handed out.

    A slot is the memory of one batch at a time, or of several that were gathered at once; then used again.
    """

    def __init__(self, pinned: bool, reuse: bool) -> None:
        self.reuse = reuse
        self._allocate: Memory = _pinned if pinned else fresh
        self.free: deque[_Slot] = deque()
        self._held: deque[_Slot] = deque()

    def slot(self) -> _Slot:
        """A free slot; one more where there is none."""
        try:
            return self.free.popleft()
        except IndexError:
            return []

    def memory(self, slot: _Slot) -> Memory:
        """What allocates for the next batch of a slot, which lets go of the one that is there."""
        places = itertools.count()

        def reused(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            nbytes, place = math.prod(shape) * dtype.itemsize, next(places)
            if place == len(slot):
                slot.append(torch.empty(0, dtype=torch.uint8))
            if len(slot[place]) < nbytes:
                slot[place] = self._allocate((nbytes,), torch.uint8)
            return slot[place][:nbytes].view(dtype).view(shape)

        return reused if self.reuse else self._allocate

    def hand_out(self, slot: _Slot) -> None:
        """Note that the caller gets a batch of this one now, and needs the one before the last no more."""
        self._held.append(slot)
        if len(self._held) > _HELD:
            left = self._held.popleft()
            # The batches of a slot come in a row.
            if not any(left is slot for slot in self._held):
                self.free.append(left)
