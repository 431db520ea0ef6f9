"""Random numbers that belong to a sample: which read of which sample this is, and generators keyed by that.

The keys are version 1 of docs/reference/orders.md, and stay: golden_random.json has their values. The thread
knows what it reads: transforms and decoders ask for it, whatever lies between.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random.bit_generator import ISeedSequence

if TYPE_CHECKING:
    import torch

_VERSION = 1
_NBYTES = 56


class Draw(int):
    """A position that a sampler drew; it reaches the worker of a DataLoader as it is.

    Attributes:
        epoch: of the draw. number: 1 and more count the draws of an epoch, of a sampler that may draw a
            sample twice; 0 of others.
    """

    epoch: int
    number: int

    def __new__(cls, position: int, epoch: int, number: int = 0) -> Draw:
        """An int with attributes."""
        draw = super().__new__(cls, position)
        draw.epoch, draw.number = epoch, number
        return draw

    def __reduce__(self) -> tuple[Any, ...]:
        return Draw, (int(self), self.epoch, self.number)


def drawn(items: Iterable[Any], epoch: int, numbers: Iterator[int]) -> Iterator[Any]:
    """Positions as Draws, and batches of them as lists of Draws."""
    for item in items:
        if isinstance(item, int):
            yield Draw(item, epoch, next(numbers))
        else:
            yield [Draw(int(position), epoch, next(numbers)) for position in item]


class Turn(NamedTuple):
    """What sets a read of a sample apart from others: the rest of the key, beside seed and index.

    place: 1 and more count the positions of a view that repeats samples; 0 of others. number: as of `Draw`.
    """

    epoch: int
    place: int
    number: int


class _Now(threading.local):
    turns: Sequence[Turn] | None = None
    sample: tuple[int, Turn] | None = None
    steps = 0


_now = _Now()


@contextmanager
def reading(turns: Sequence[Turn] | None) -> Iterator[None]:
    """Let what reads several samples in the block know the turn of each."""
    before, _now.turns = _now.turns, turns
    try:
        yield
    finally:
        _now.turns = before


def turns() -> Sequence[Turn] | None:
    """Those of the samples that are being read; None where nothing is drawn at random."""
    return _now.turns


@contextmanager
def sample(index: int, turn: Turn) -> Iterator[None]:
    """Let what draws in the block know which sample it is, by its index in the dataset that reads it."""
    before, steps = _now.sample, _now.steps
    _now.sample, _now.steps = (index, turn), 0
    try:
        yield
    finally:
        _now.sample, _now.steps = before, steps


def current_epoch() -> int | None:
    """Of the sample that is being read by this thread; None where there is none."""
    return None if _now.sample is None else _now.sample[1].epoch


def step_key(seed: int) -> bytes | None:
    """The key of the next seeded function of the current sample, the first one being 0; None without one."""
    if _now.sample is None:
        return None
    index, turn = _now.sample
    step, _now.steps = _now.steps, _now.steps + 1
    return key(seed, index, turn, format(step, "x"))


def key(seed: int, index: int, turn: Turn, use: str) -> bytes:
    """56 bytes for one use of randomness by one read of a sample; other arguments give unrelated ones."""
    parts = (_VERSION, seed, turn.epoch, index, turn.place, turn.number)
    text = "/".join(("edcache random", *[format(part, "x") for part in parts], use))
    return hashlib.shake_128(text.encode()).digest(_NBYTES)


class _Words(ISeedSequence):
    """Gives the first 32 bytes of a key to PCG64 as they are: SeedSequence would take 15 us to mix them."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """See numpy."""
        return np.frombuffer(self._key, np.dtype(dtype).newbyteorder("<"), n_words).astype(dtype)


def numpy_generator(key: bytes) -> np.random.Generator:
    """A new generator: PCG64 that is seeded with the first 32 bytes of a key. Cost: 3 us."""
    words: Any = _Words(key)  # the stubs of numpy know one class of its kind
    return np.random.Generator(np.random.PCG64(words))


def torch_generator(key: bytes) -> torch.Generator:
    """A new generator of the CPU, seeded with bytes 32 to 39 of a key. Cost: 3 us."""
    import torch

    return torch.Generator().manual_seed(_word(key, 32))


@contextmanager
def seeded_globals(key: bytes) -> Iterator[None]:
    """Seed torch's generator of the CPU, `random` and numpy.random in the block; then set all three back.

    Bytes 40 to 47 of a key are for torch, the last 8 for `random`, the last 4 for numpy. Cost: 200 us.
    """
    import random

    import torch

    torch_state, state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        torch.default_generator.manual_seed(_word(key, 40))
        random.seed(_word(key, 48))
        np.random.seed(_word(key, 48) >> 32)
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(state)
        np.random.set_state(numpy_state)


def _word(key: bytes, start: int) -> int:
    return int.from_bytes(key[start : start + 8], "little")
