"""State of an epoch: the progress of a job in an order, as plain numbers and strings for JSON."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import OptionError, shown
from edcache.dataset.selection import Cycle, Selection, Shuffled
from edcache.reader import Reader

State = dict[str, Any]

VERSION = 1
_MOST_TEXT = 100
_NUMBERS = ("version", "seed", "epoch", "samples", "length", "consumed")


def archive_text(readers: list[Reader]) -> str:
    """Name an archive by its uuid in hex; several by a digest; none by ""."""
    uuids = [reader.session.head.uuid for reader in readers]
    return uuids[0].hex() if len(uuids) == 1 else digest(*map(np.frombuffer, uuids)) if uuids else ""


def digest(*arrays: npt.NDArray[Any]) -> str:
    """Digest the values of arrays to 16 hexadecimal digits. Cost: 1 ns a byte."""
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).data)
    return digest.hexdigest()


def view_text(selections: list[Selection]) -> str:
    """Describe selections, ranges as they are, arrays by digest: equal for equal ones. Cost: 1 ns a byte of arrays."""
    text = ", ".join(map(_text, selections))
    return text if len(text) <= _MOST_TEXT else digest(np.frombuffer(text.encode(), np.uint8))


def _text(selection: Selection) -> str:
    numbers = selection.numbers
    if isinstance(numbers, range):
        text = f"{numbers.start}:{numbers.start + len(numbers) * numbers.step}:{numbers.step}"
    else:
        text = digest(numbers)
    if isinstance(selection, Cycle | Shuffled):
        text += f" of {_text(selection.base)}"
    if isinstance(selection, Shuffled):
        text += f" in order {selection.order.__reduce__()[1]}"
    return text


def check_shape(state: Any) -> None:
    """Raise OptionError unless this is a state of `state_dict`."""
    lacking = {*_NUMBERS, "order", "archive", "view"} - (state.keys() if isinstance(state, dict) else set())
    if lacking:
        raise OptionError(f"not a state: no {', '.join(sorted(lacking))}; give what state_dict() returned")
    for name in _NUMBERS:
        value = state[name]
        if type(value) is not int or (value < 0 and name != "seed"):
            raise OptionError(
                f"a state with {name}={shown(value)}; this is an integer of 0 or more: give what "
                "state_dict() returned"
            )
    if state["version"] != VERSION:
        raise OptionError(
            f"a state of version {state['version']}, and this edcache reads version {VERSION}; load it with "
            "the edcache that saved it, or begin an epoch with set_epoch()"
        )


def check_fit(state: State, own: State) -> None:
    """Raise OptionError for a state of another order than `own`."""
    first = ("order", "archive", "samples", "view")
    for name in (*first, *sorted((state.keys() | own.keys()) - {*_NUMBERS, *first}), "length"):
        if state.get(name) != own.get(name):
            remedy = "give the same data and options"
            if name == "view":
                remedy = "give the view that it is of"
            elif name == "samples" and state[name] < own[name]:
                remedy = f"make the sampler of the old ones, ds.take({state[name]})"
            raise OptionError(
                f"a state with {name}={shown(state.get(name))}, and here is {name}={shown(own.get(name))}; "
                f"{remedy}, or begin an epoch with set_epoch()"
            )
    if state["consumed"] > own["length"]:
        raise OptionError(
            f"a state with consumed={state['consumed']:,} of {own['length']:,}; give what state_dict() "
            "returned"
        )
