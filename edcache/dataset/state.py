"""State of an epoch: the progress of a job in an order, as plain numbers and strings for JSON."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import OptionError, shown
from edcache.dataset.permutation import Permutation
from edcache.dataset.selection import Arranged, Selection
from edcache.reader import Reader

State = dict[str, Any]

VERSION = 1
_MOST_TEXT = 100
# The place that a state names; everything else in it describes the order.
_PLACE = ("seed", "epoch", "consumed")


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
    if isinstance(selection, Arranged):
        text += f" of {_text(selection.base)}"
        if isinstance(selection.order, Permutation):
            text += f" in order {selection.order.key}"
    return text


def check_fit(state: Any, own: State) -> None:
    """Raise OptionError unless this is a state of the same order as `own`."""
    if not isinstance(state, dict):
        raise OptionError(f"not a state: {shown(state)}; give what state_dict() returned")
    for name in (*own, *sorted(state.keys() - own.keys())):
        value = state.get(name)
        if name in _PLACE:
            if type(value) is not int or (value < 0 and name != "seed"):
                text = "this is an integer of 0 or more: give what state_dict() returned"
                raise OptionError(f"a state with {name}={shown(value)}; {text}")
        elif value != own.get(name):
            remedy = "give the same data and options"
            if name == "version":
                remedy = "load it with the edcache that saved it"
            elif name == "view":
                remedy = "give the view that it is of"
            elif name == "samples" and type(value) is int and value < own[name]:
                remedy = f"make the sampler of the old ones, ds.take({value})"
            raise OptionError(
                f"a state with {name}={shown(value)}, and here is {name}={shown(own.get(name))}; {remedy}, or "
                "begin an epoch with set_epoch()"
            )
    if state["consumed"] > own["length"]:
        raise OptionError(
            f"a state with consumed={state['consumed']:,} of {own['length']:,}; give what state_dict() "
            "returned"
        )
