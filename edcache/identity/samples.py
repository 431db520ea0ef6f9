"""Compare a sample that is computed again with its record.

No description of how samples are made is complete: a model in a list, a file, a variable of another module, a library.
A sample that is computed again shows what any of them changes.

- A fill computes its first sample twice, under other states of the random generators; if the source computes batches,
  once alone and once in a batch. `learned` keeps how far the two differ, field by field: mostly not at all, and by the
  rounding of a model otherwise. If they differ by more, the samples do not repeat, and are never compared.
- Later, `find_other` compares a recomputed sample with its record. A field is another one if its type or its dtype is.
  Otherwise its kind says which distance is right, and which is near, so that it is right where nothing asks:

    kind of a field                    right                                   near
    text, bytes, ints, bools           equal                                   -
    a number of Python                 10 eps: the last digit                  -
    floats of an array or a tensor     3e-6 of the norm, or the eps of         -
                                       its dtype: other threads differ by
                                       6e-7 in float32, 1e-3 in bfloat16
    any float that the fill saw        the same, or ten times what it saw      2 % of the norm, as other processors
      rounded, as of a model                                                   and libraries differ
    a photo of uint8                   equal                                   two levels a number, half a level in
                                                                               the mean, as other JPEG decoders
  A mask of classes, which has few levels, is no photo.
- A source that draws random numbers, or holds a generator of its own, is computed many times, since draws are equal
  now and then: of a coin half of the time.

What must never happen: that a check changes the random generators of the process, or the archive.
"""

from __future__ import annotations

import functools
import random
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import shown
from edcache.codec import Encoder, decoder_of
from edcache.identity.code import is_of_library

ENTRY: Final = "first_sample"
"""Entry of a fingerprint."""

_MOST_HELD: Final = 10_000
SECONDS: Final = 2.0
"""Longest time of a sample that is computed again unasked."""

MOST_DRAWS: Final = 64
"""Computations of a sample that draws random numbers, if they take no longer than `SECONDS`."""

FEW_DRAWS: Final = 8
"""Computations of any other sample that differs, which may be another one each time."""

_NEAR: Final = 0.02
_RIGHT: Final = 3e-6
_LEVELS, _MEAN_LEVELS = 2, 0.5
_FEW_LEVELS: Final = 32
_BLOCK: Final = 1 << 18
Record: TypeAlias = tuple[str, bytes]
"""Schema and bytes of a sample, as an archive stores it."""

_States: TypeAlias = tuple[Any, Any, torch.Tensor]
_ROUNDINGS: Final = 10


@dataclass(frozen=True)
class FirstSample:
    """First sample of a fill, computed several times.

    Attributes: seconds: to compute one. repeats: False if it is another one each time. rounding: distances of two
        computations, by field; a distance of 0 is left out. call_seconds: of the call that made the source.
    """

    seconds: float
    repeats: bool = True
    rounding: Mapping[str, float] = field(default_factory=dict)
    call_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the value of the entry."""
        text = {name: float(f"{distance:.2g}") for name, distance in self.rounding.items()}
        made = {"seconds": float(f"{self.seconds:.2g}"), "repeats": self.repeats, "rounding": text}
        return made | ({"call_seconds": float(f"{self.call_seconds:.2g}")} if self.call_seconds else {})

    @classmethod
    def of(cls, fingerprint: Mapping[str, Any] | None) -> FirstSample | None:
        """Take it from a fingerprint; None if it is not there, or another program wrote it."""
        value = (fingerprint or {}).get(ENTRY)
        if not isinstance(value, dict) or not isinstance(rounding := value.get("rounding"), dict):
            return None
        seconds, call_seconds = value.get("seconds"), value.get("call_seconds", 0.0)
        if not all(isinstance(one, int | float) for one in (seconds, call_seconds, *rounding.values())):
            return None
        return cls(float(seconds or 0), value.get("repeats") is not False, rounding, float(call_seconds))


class Recomputed(NamedTuple):
    """Sample that was computed again, as records.

    Attributes: records: one for each computation. seconds: of the fastest one. position: of the sample. state: names of
        what computing has changed in the source, see `recipe.py`. more: other samples, computed beside it.
    """

    records: list[Record]
    seconds: float
    position: int = 0
    state: tuple[str, ...] = ()
    more: tuple[Recomputed, ...] = ()


class Other(NamedTuple):
    """Field of a sample that is another one than in the archive.

    distance: relative to the norm of the field; inf if it is no number, or has another shape; 0 if the dtype or the
        type alone differs. is_random: True if it is another one each time that it is computed.
    """

    field: str
    distance: float
    before: Any
    now: Any
    is_random: bool = False

    def __str__(self) -> str:
        """Tell the field, both values in short and the distance."""
        name = f"field {self.field}" if self.field else "it"
        if self.is_random:
            return f"{name} is another one each time that it is computed"
        if not self.distance and not isinstance(self.now, type):
            return f"{name} is of another kind: {_kind(self.before)} in the archive, {_kind(self.now)} now"
        percent = 100 * self.distance
        by = f" by {percent:{'.2g' if percent < 99 else '.0f'}} %" if 1e-7 < percent < float("inf") else ""
        return f"{name} differs{by}: {_brief(self.before)} in the archive, {_brief(self.now)} now"


# --- computing again ---


def recompute(
    ways: list[Callable[[], Any]],
    codec: str,
    least: int = 1,
    stored: Record | None = None,
    seconds: float = SECONDS,
) -> Recomputed:
    """Compute a sample again and encode it; each time under another state of the random generators.

    Args:
        ways: functions that compute it, called in turn. A sample that draws global random numbers is computed up to
            `MOST_DRAWS` times.
        least: number of computations. stored: record; an equal one ends it. seconds: the time for all, but for the
            first one.
    Raises: as the source.
    """
    records, best, began = list[Record](), float("inf"), time.monotonic()
    # Also the first time: each process begins with one state of torch, which it may have had at the fill.
    seed = random.SystemRandom().getrandbits(31)
    with generators_kept():
        while True:
            number = len(records)
            _seed(seed + number)
            states = _states()
            start = time.monotonic()
            sample = ways[number % len(ways)]()
            now = time.monotonic()
            best = min(best, now - start)
            records.append(record_of(sample, codec))
            if records[-1] == stored:
                return Recomputed(records, best)
            is_late = time.monotonic() - began > seconds
            draws = _comparable(_states()) != _comparable(states)
            # Computed in the same way, it is another one: more would tell no more.
            is_random = stored is None and number >= len(ways) and records[-1] != records[-1 - len(ways)]
            if is_random or is_late or len(records) >= (MOST_DRAWS if draws else least):
                return Recomputed(records, best)


def held_generators(thing: Any) -> list[Any]:
    """Return the random generators that an object holds, in attributes, containers or closures."""
    waiting, seen, found = [thing], set[int](), list[Any]()
    for one in waiting:
        if id(one) in seen or len(waiting) > _MOST_HELD:
            continue
        seen.add(id(one))
        if isinstance(one, random.Random | np.random.Generator | np.random.RandomState | torch.Generator):
            found.append(one)
        elif isinstance(one, list | tuple | dict):
            waiting += [*(one.values() if isinstance(one, dict) else one)][:_MOST_HELD]
        elif isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
        elif not isinstance(one, type | types.ModuleType):
            waiting += [getattr(one, "__self__", None), *getattr(one, "__dict__", {}).values()]
            waiting += [one.func, one.args, one.keywords] if isinstance(one, functools.partial) else []
    return found


def learned(again: Recomputed, codec: str) -> tuple[FirstSample, int, Other | None]:
    """Compare the computations of the first sample of a fill, and of the ones beside it.

    Returns: what the head notes of the first one; and, if one does not repeat, its index, and a field that differs by
        more than rounding.
    """
    rounding: dict[str, float] = {}
    for one in (again, *again.more):
        first, *others = one.records
        for deviation in (found for record in others for found in _deviations(first, record, codec)):
            if not deviation.distance:  # a batch has arrays where one sample has numbers
                continue
            if not deviation.is_near:
                return FirstSample(again.seconds, False), one.position, _other(deviation, is_random=True)
            rounding[deviation.field] = max(deviation.distance, rounding.get(deviation.field, 0.0))
    return FirstSample(again.seconds, True, rounding), 0, None


def random_text(position: int, other: Other, state: Sequence[str] = ()) -> str:
    """Say in a warning that a sample does not repeat. state: names of what computing it changes in the source."""
    name = f"field {other.field} of sample {position}" if other.field else f"sample {position}"
    names = ", ".join(state)
    why = f" Computing it changes {names}: if samples are made of that, change a copy." if names else ""
    return (
        f"{name} is another one each time that it is computed.{why} Random augmentation would be the same in "
        "every epoch: put it behind the cache with with_transform(), or keep several with edcache.variants()"
    )


def find_other(
    stored: Record, records: Sequence[Record], made: FirstSample | None, codec: str, is_asked: bool
) -> Other | None:
    """Return a field in which the recomputed sample differs from its record; None if there is none.

    Args:
        stored: schema and bytes of the record. records: one for each computation. made: as the archive knows it.
        is_asked: True if something else has changed, so that a field that is only near is another one.
    Returns: a field that differs between the computations, if one does: it is another one each time.
    """
    first, *more = dict.fromkeys(records)
    for record in more:
        for deviation in _deviations(first, record, codec):
            if deviation.distance and not deviation.is_near:
                return _other(deviation, is_random=True)
    rounding = {} if made is None else made.rounding
    others = [_worst(stored, record, rounding, codec, is_asked) for record in (first, *more)]
    return None if None in others else others[0]


def _other(found: _Deviation, *, is_random: bool = False) -> Other:
    return Other(found.field, found.distance, found.before, found.now, is_random)


def _worst(
    stored: Record,
    now: Record,
    rounding: Mapping[str, float],
    codec: str,
    is_asked: bool,
) -> Other | None:
    worst: Other | None = None
    for one in _deviations(stored, now, codec):
        seen = rounding.get(one.field, 0.0)
        is_near = one.is_near and (seen > 0 or not one.right) and not is_asked
        is_other = not one.distance or (one.distance > max(one.right, _ROUNDINGS * seen) and not is_near)
        if is_other and (worst is None or one.distance > worst.distance):
            worst = _other(one)
    return worst


@contextmanager
def generators_kept(held: Sequence[Any] = ()) -> Iterator[None]:
    """Restore the states of the global random generators, and of some that are held, after the block."""
    states = _states()
    on_devices = torch.cuda.get_rng_state_all() if _has_cuda() else None
    own = [*zip(held, map(_state_of, held), strict=True)]
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if on_devices is not None:
            torch.cuda.set_rng_state_all(on_devices)
        for generator, state in own:
            _set_state(generator, state)


def generator_states(held: Sequence[Any] = ()) -> Any:
    """Return the states of the global random generators, and of some that are held, as a value to compare."""
    return [_comparable(state) for state in (*_states(), *map(_state_of, held))]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.SystemRandom):
        return None  # it has none
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState | torch.Generator):
        generator.set_state(state)
    elif state is not None:
        generator.setstate(state)


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    # torch.manual_seed() also queues work for devices that are not begun.
    torch.default_generator.manual_seed(number)
    if _has_cuda():
        torch.cuda.manual_seed_all(number)


def _has_cuda() -> bool:
    begun: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return begun


def _states() -> _States:
    return random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()


def _comparable(state: Any) -> Any:
    """Return a state as a value that `==` compares whole."""
    if isinstance(state, dict):
        return [*map(_comparable, state.items())]
    if isinstance(state, tuple) and len(state) < 8:
        return [*map(_comparable, state)]
    if isinstance(state, np.ndarray | torch.Tensor):
        return np.asarray(state).tobytes()
    return state


# --- comparing ---


class _Deviation(NamedTuple):
    """Difference of a field.

    distance: 0 if the type or the dtype alone differs. right: largest distance of an equal value; 0 if it is no float.
    is_near: True if processors or libraries may differ so.
    """

    field: str
    distance: float
    right: float
    is_near: bool
    before: Any
    now: Any


def _deviations(one: Record, other: Record, codec: str) -> Iterator[_Deviation]:
    """Yield the fields in which two records differ."""
    if one == other:
        return
    before, now = (dict(_leaves(_decoded(record, codec))) for record in (one, other))
    for keys in {**before, **now}:
        name = ".".join(map(str, keys))
        if keys not in before or keys not in now:
            sides = [side.get(keys, _ABSENT) for side in (before, now)]
            yield _Deviation(name, float("inf"), 0.0, False, *sides)
        elif (found := _deviation(name, before[keys], now[keys], codec)) is not None:
            yield found


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT: Final = _Absent()


def _decoded(record: Record, codec: str) -> Any:
    schema, data = record
    return decoder_of(schema, allow_pickle=codec == "pickle").decode(memoryview(data))


def _leaves(
    value: Any, keys: tuple[Any, ...] = (), around: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the values in a sample, with the keys that lead to them; of containers with items the type.

    around: containers around it; one that holds itself is not told again.
    """
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        items = [(one.name, getattr(value, one.name, _ABSENT)) for one in fields(value)]
    elif hasattr(value, "__dict__") and (
        getattr(type(value), "__eq__", None) is object.__eq__ or not is_of_library(type(value).__module__)
    ):
        # It is equal to itself alone, or to what the user says, such as one of the same number.
        items = list(vars(value).items())
    else:
        items = []
    if not items:
        yield keys, value
    elif not any(value is one for one in around):
        yield keys, type(value)
        for key, part in items:
            yield from _leaves(part, (*keys, key), (*around, value))


def _deviation(name: str, before: Any, now: Any, codec: str) -> _Deviation | None:
    """Compare two values; None if they are equal."""
    one, other = _numbers(before), _numbers(now)
    if one is None or other is None or one.shape != other.shape:
        if (one is None) is (other is None) and _are_equal(before, now, codec):
            return None
        far = 0.0 if isinstance(before, type) and isinstance(now, type) else float("inf")
        return _Deviation(name, far, 0.0, False, before, now)
    distance = _distance(one, other)
    if _kind(before) != _kind(now):
        return _Deviation(name, distance and float("inf"), 0.0, False, before, now)
    if not distance:
        return None
    right = _right(before)
    is_near = right > 0 and distance <= _NEAR
    if one.dtype == np.uint8 and one.ndim >= 2 and np.count_nonzero(np.bincount(one.ravel())) > _FEW_LEVELS:
        levels = np.abs(one.astype(np.int16) - other)
        is_near = bool(levels.max() <= _LEVELS) and float(levels.mean()) <= _MEAN_LEVELS
    return _Deviation(name, distance, right, is_near, before, now)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {getattr(value, 'dtype', '')}".rstrip()


def _are_equal(before: Any, now: Any, codec: str) -> bool:
    """Compare values that are no numbers: by their records, since nat is not nat; also by ==, since a set has none."""
    with suppress(Exception):  # of a class of the user
        if record_of(before, codec) == record_of(now, codec):
            return True
    if isinstance(before, np.ndarray | torch.Tensor) or type(before) is not type(now):
        return False
    with suppress(Exception):
        return bool(before == now)
    return False


def record_of(sample: Any, codec: str) -> Record:
    """Encode a sample."""
    encoder = Encoder(codec)
    encoded = encoder.encode(sample)
    return encoder.schemas[encoded.schema], bytes(encoded.record())


def _numbers(value: Any) -> npt.NDArray[Any] | None:
    """Return the numbers of an array, a tensor, a picture or a number; floating point ones as float64 or complex128.

    None of anything else.
    """
    if isinstance(value, torch.Tensor):
        if value.is_nested or value.layout != torch.strided or value.is_quantized:
            return None
        dense = value.detach().cpu()
        with suppress(NotImplementedError):  # two numbers in a byte
            array = (dense.double() if dense.dtype.is_floating_point else dense.resolve_conj()).numpy()
            with np.errstate(invalid="ignore"):  # some nan signal
                return array.astype(np.complex128) if dense.is_complex() else array
        return None
    if not isinstance(value, bool | int | float | complex | np.ndarray | np.generic) and not hasattr(
        value, "__array_interface__"
    ):
        return None
    array = np.asarray(value)
    if array.dtype.kind in "fc":
        with np.errstate(all="ignore"):  # a long double may be larger
            return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return array if array.dtype.kind in "biu" else None


def _distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Compute the norm of the difference, relative to the larger of both norms; equal nan and inf do not differ.

    0 of equal numbers alone, however large or small.
    """
    if np.array_equal(one, other, equal_nan=True):
        return 0.0
    is_complex = "c" in (one.dtype.kind, other.dtype.kind)
    one, other = np.ravel(one), np.ravel(other)
    parts = [slice(start, start + _BLOCK) for start in range(0, one.size, _BLOCK)]
    largest = 0.0  # by which all is divided, so that no square overflows
    for part in parts:
        pair = _floats(one[part], is_complex), _floats(other[part], is_complex)
        is_odd = ~(np.isfinite(pair[0]) & np.isfinite(pair[1]))
        if not np.array_equal(pair[0][is_odd], pair[1][is_odd], equal_nan=True):
            return float("inf")
        largest = max(largest, *(float(np.abs(side[~is_odd]).max(initial=0)) for side in pair))
    squares = np.zeros(3)  # of the difference, and of both
    for part in parts:
        pair = _floats(one[part], is_complex), _floats(other[part], is_complex)
        is_even = np.isfinite(pair[0]) & np.isfinite(pair[1])
        a, b = (side[is_even] / (largest or 1.0) for side in pair)
        squares += [float(np.dot(side, side)) for side in (a - b, a, b)]
    norms = np.sqrt(squares)
    return max(float(norms[0] / (max(norms[1:]) or 1.0)), float(np.finfo(np.float64).tiny))


def _floats(numbers: npt.NDArray[Any], is_complex: bool) -> npt.NDArray[np.float64]:
    """Return numbers in a row; a complex one as two."""
    row = np.ravel(numbers)
    return row.astype(np.complex128).view(np.float64) if is_complex else row.astype(np.float64)


def _right(value: Any) -> float:
    """Return the largest distance of an equal value, as the top of this file says; 0 if it is no float."""
    if isinstance(value, torch.Tensor):
        dtype = value.dtype
        return max(_RIGHT, torch.finfo(dtype).eps) if dtype.is_floating_point or dtype.is_complex else 0.0
    kind = np.asarray(value).dtype
    if kind.kind not in "fc":
        return 0.0
    eps = float(np.finfo(kind).eps)
    return _ROUNDINGS * eps if isinstance(value, float | complex) else max(_RIGHT, eps)


def _brief(value: Any) -> str:
    """Write a value in short: a number, a text, or the first numbers of an array."""
    if value is _ABSENT:
        return repr(value)
    numbers = _numbers(value)
    if numbers is None or not numbers.ndim:
        return shown(value if numbers is None else numbers.item())
    first = ", ".join(f"{number:.4g}" for number in numbers.ravel()[:3].tolist())
    return f"[{first}{', ...' if numbers.size > 3 else ''}]"
