"""Compare a sample that is computed again with its record.

No description of how samples are made is complete: a model in a list, a file, a variable of another module, a library.
A sample that is computed again shows what any of them changes.

- A fill computes its first sample twice, under other states of the random generators; if the source computes batches,
  once alone and once in a batch. `learned` keeps how far the two differ, field by field: mostly not at all, and by the
  rounding of a model otherwise. If they differ by more, the samples do not repeat, and are never compared.
- Later, `find_other` compares a recomputed sample with its record. A field is the same if it differs by at most ten
  times its rounding, or the precision of its dtype. It is near if it differs by at most 2 % of its norm, or an image by
  two levels: so do other processors and libraries. Near is right where nothing else changed.
- A source that draws random numbers is computed several times, since two draws of a coin are equal half of the time.

What must never happen: that a check changes the random generators of the process, or the archive.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import shown
from edcache.codec import Encoder, decoder_of

ENTRY: Final = "first_sample"
"""Entry of a fingerprint."""

SECONDS: Final = 2.0
"""Longest time of a sample that is computed again unasked."""

_NEAR: Final = 0.02
_LEVELS: Final = 2.0
_ROUNDINGS: Final = 10
_MOST_DRAWS: Final = 8


@dataclass(frozen=True)
class FirstSample:
    """What a fill learned from its first sample.

    Attributes: seconds: to compute one. repeats: False if it is another one each time. rounding: distances of two
        computations, by field; without those that are 0.
    """

    seconds: float
    repeats: bool = True
    rounding: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the value of the entry."""
        text = {name: float(f"{distance:.2g}") for name, distance in self.rounding.items()}
        return {"seconds": float(f"{self.seconds:.2g}"), "repeats": self.repeats, "rounding": text}

    @classmethod
    def of(cls, fingerprint: Mapping[str, Any] | None) -> FirstSample | None:
        """Take it from a fingerprint; None if it is not there, or another program wrote it."""
        value = (fingerprint or {}).get(ENTRY)
        if not isinstance(value, dict) or not isinstance(rounding := value.get("rounding"), dict):
            return None
        seconds = value.get("seconds")
        if not all(isinstance(one, int | float) for one in (seconds, *rounding.values())):
            return None
        return cls(float(seconds or 0), value.get("repeats") is not False, rounding)


def with_entry(fingerprint: dict[str, Any], origin: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a fingerprint with what the one of an archive tells of its first sample."""
    known = (origin or {}).get(ENTRY)
    return fingerprint if known is None else {**fingerprint, ENTRY: known}


class Recomputed(NamedTuple):
    """Sample that was computed again, as records.

    Attributes: records: one for each computation: schema and bytes. seconds: of the fastest computation.
    """

    records: list[tuple[str, bytes]]
    seconds: float


class Other(NamedTuple):
    """Field of a sample that is another one than in the archive.

    distance: relative to the norm of the field; inf if it is no number, or has another shape.
    """

    field: str
    distance: float
    before: Any
    now: Any

    def __str__(self) -> str:
        """Tell the field, both values in short and the distance."""
        name = f"field {self.field}" if self.field else "it"
        by = "" if self.distance == float("inf") else f" by {100 * self.distance:.2g} %"
        return f"{name} differs{by}: {_brief(self.before)} in the archive, {_brief(self.now)} now"


# --- computing again ---


def recompute(
    ways: list[Callable[[], Any]], codec: str, least: int = 1, stored: tuple[str, bytes] | None = None
) -> Recomputed:
    """Compute a sample again and encode it; each time under another state of the random generators.

    Args:
        ways: functions that compute it, called in turn. A sample that draws random numbers is computed up to eight
            times, for at most two seconds.
        least: number of computations. stored: record; an equal one ends it.
    Raises: as the source.
    """
    records, best, began = list[tuple[str, bytes]](), float("inf"), time.monotonic()
    with _generators_kept():
        while True:
            number, start, states = len(records), time.monotonic(), _states()
            if number:
                _seed(number)
                states = _states()
            sample = ways[number % len(ways)]()
            now = time.monotonic()
            best = min(best, now - start)
            encoder = Encoder(codec)
            encoded = encoder.encode(sample)
            records.append((encoder.schemas[encoded.schema], bytes(encoded.record())))
            if records[-1] == stored:
                return Recomputed(records, best)
            is_late, draws = now - began > SECONDS, not _are_equal(states, _states())
            if is_late or len(records) >= (_MOST_DRAWS if draws else least):
                return Recomputed(records, best)


def learned(again: Recomputed, codec: str) -> tuple[FirstSample, Other | None]:
    """Compare the computations of the first sample of a fill.

    Returns: what the archive is to know; and a field that differs by more than rounding, if the sample does not repeat.
    """
    first, *others = again.records
    rounding: dict[str, float] = {}
    random_field = None
    for record in others:
        for one in _deviations(first, record, codec):
            if one.is_near:
                rounding[one.field] = max(one.distance, rounding.get(one.field, 0.0))
            else:
                random_field = random_field or Other(one.field, one.distance, one.before, one.now)
    return FirstSample(again.seconds, random_field is None, {} if random_field else rounding), random_field


def find_other(
    stored: tuple[str, bytes], again: Recomputed, made: FirstSample | None, codec: str, is_asked: bool
) -> Other | None:
    """Compare a record with the sample that was computed again; return a field that is another one, or None.

    Args:
        stored: schema and bytes of the record. made: as the archive knows it.
        is_asked: True if something else has changed, so that a field that is only near is another one.
    """
    if stored in again.records:
        return None
    rounding = {} if made is None else made.rounding
    worst: Other | None = None
    for one in _deviations(stored, again.records[0], codec):
        limit = _ROUNDINGS * max(one.precision, rounding.get(one.field, 0.0))
        is_other = one.distance > limit and (is_asked or not one.is_near)
        if is_other and (worst is None or one.distance > worst.distance):
            worst = Other(one.field, one.distance, one.before, one.now)
    if worst is None:
        return None
    # A sample that does not repeat, though the fill's first one did.
    first, *others = again.records
    if any(not one.is_near for record in others for one in _deviations(first, record, codec)):
        return None
    return worst


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Leave the global random generators after the block as they were."""
    states = _states()
    on_devices = torch.cuda.get_rng_state_all() if _has_cuda() else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if on_devices is not None:
            torch.cuda.set_rng_state_all(on_devices)


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(
        number
    )  # torch.manual_seed() also queues work for devices that are not begun
    if _has_cuda():
        torch.cuda.manual_seed_all(number)


def _has_cuda() -> bool:
    begun: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return begun


def _states() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _are_equal(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> bool:
    same = one[0] == other[0] and torch.equal(one[2], other[2])
    return same and one[1][2:] == other[1][2:] and np.array_equal(one[1][1], other[1][1])


# --- comparing ---


class _Deviation(NamedTuple):
    """Difference of a field. precision: of its dtype. is_near: True if processors or libraries may differ so."""

    field: str
    distance: float
    precision: float
    is_near: bool
    before: Any
    now: Any


def _deviations(one: tuple[str, bytes], other: tuple[str, bytes], codec: str) -> Iterator[_Deviation]:
    """Yield the fields in which two records differ."""
    if one == other:
        return
    before, now = (dict(_leaves(_decoded(record, codec))) for record in (one, other))
    for name in {**before, **now}:
        if name not in before or name not in now:
            sides = [side.get(name, _ABSENT) for side in (before, now)]
            yield _Deviation(name, float("inf"), 0.0, False, *sides)
        elif (found := _deviation(name, before[name], now[name])) is not None:
            yield found


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT: Final = _Absent()


def _decoded(record: tuple[str, bytes], codec: str) -> Any:
    schema, data = record
    return decoder_of(schema, allow_pickle=codec == "pickle").decode(memoryview(data))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in a sample that are no containers, by field path."""
    if isinstance(value, Mapping):
        items: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        items = ((one.name, getattr(value, one.name)) for one in fields(value))
    elif getattr(type(value), "__eq__", None) is object.__eq__ and hasattr(
        value, "__dict__"
    ):  # it is equal to itself alone
        items = iter(vars(value).items())
    else:
        yield path, value
        return
    for key, part in items:
        yield from _leaves(part, f"{path}.{key}" if path else str(key))


def _deviation(name: str, before: Any, now: Any) -> _Deviation | None:
    """Compare two values; None if they are equal."""
    one, other = _numbers(before), _numbers(now)
    if one is None or other is None or one.shape != other.shape:
        if one is None and other is None and (type(before) is type(now)) and bool(before == now):
            return None
        return _Deviation(name, float("inf"), 0.0, False, before, now)
    distance = _distance(one, other)
    if not distance:
        return None
    kind, precision = _precision(before)
    is_near = kind == "f" and distance <= _NEAR
    if kind == "u" and one.ndim >= 2:
        is_near = float(np.abs(one - other).mean()) <= _LEVELS
    return _Deviation(name, distance, precision, is_near, before, now)


def _numbers(value: Any) -> npt.NDArray[Any] | None:
    """Return the numbers of an array, a tensor, a picture or a number: float64 or complex; None of anything else."""
    if isinstance(value, torch.Tensor):
        if value.is_nested or value.layout != torch.strided or value.is_quantized:
            return None
        dense = value.detach().cpu()
        return (dense.to(torch.complex128) if dense.is_complex() else dense.double()).numpy()
    if isinstance(value, bool | int | float | complex | np.ndarray | np.generic) or hasattr(
        value, "__array_interface__"
    ):
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return None


def _distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Compute the norm of the difference, relative to the larger of both norms; equal nan and inf do not differ."""
    is_odd = ~(np.isfinite(one) & np.isfinite(other))
    if is_odd.any():
        if not np.array_equal(one[is_odd], other[is_odd], equal_nan=True):
            return float("inf")
        one, other = one[~is_odd], other[~is_odd]
    difference = float(np.linalg.norm((one - other).ravel()))
    if not difference:
        return 0.0
    return difference / max(float(np.linalg.norm(one.ravel())), float(np.linalg.norm(other.ravel())))


def _precision(value: Any) -> tuple[str, float]:
    """Return "f" and the precision of floating point numbers; "u" and 0 of bytes; "" and 0 of anything else."""
    if isinstance(value, torch.Tensor):
        if value.dtype.is_floating_point or value.dtype.is_complex:
            return "f", torch.finfo(value.dtype).eps
        return "u" * (value.dtype == torch.uint8), 0.0
    dtype = np.asarray(value).dtype
    if dtype.kind in "fc":
        return "f", float(np.finfo(dtype).eps)
    return "u" * (dtype == np.uint8), 0.0


def _brief(value: Any) -> str:
    """Write a value in short: a number, a text, or the first numbers of an array."""
    if value is _ABSENT:
        return repr(value)
    numbers = _numbers(value)
    if numbers is None or not numbers.ndim:
        return shown(value)
    first = ", ".join(f"{number:.4g}" for number in numbers.ravel()[:3].tolist())
    return f"[{first}{', ...' if numbers.size > 3 else ''}]"
