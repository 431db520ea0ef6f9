"""States of an epoch: how far a job has come in an order, as a few plain numbers that JSON takes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import OptionError, shown

State = dict[str, Any]

VERSION = 1
_NUMBERS = ("version", "seed", "epoch", "samples", "length", "consumed")


def archive_of(ds: Any) -> str:
    """The uuid of the archive that a dataset reads, in hex; of several together; "" of none."""
    caches = getattr(ds, "_caches", None) or (getattr(ds, "cache", None),)
    heads = [getattr(getattr(cache, "reader", cache), "head", None) for cache in caches]
    uuids = [bytes(head.uuid) for head in heads if head is not None]
    return uuids[0].hex() if len(uuids) == 1 else digest(*map(np.frombuffer, uuids)) if uuids else ""


def digest(*arrays: npt.NDArray[Any]) -> str:
    """Of the values of arrays: 16 hexadecimal digits. Cost: 1 ns a byte."""
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).data)
    return digest.hexdigest()


def check_shape(state: Any) -> None:
    """Raise OptionError for what is no state that any `state_dict` returns."""
    lacking = {*_NUMBERS, "order", "archive"} - (state.keys() if isinstance(state, dict) else set())
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
    """Raise OptionError for a state of another order than the one that gave `own`."""
    for name in ("order", "archive", "samples", *sorted((state.keys() | own.keys()) - {*_NUMBERS}), "length"):
        if state.get(name) != own.get(name):
            grown = name == "samples" and state[name] < own[name]
            raise OptionError(
                f"a state with {name}={shown(state.get(name))}, and here is {name}={shown(own.get(name))}; "
                + (
                    'on_change="continue" goes on with the old ones, '
                    if grown
                    else "give the same data and options, "
                )
                + "or begin an epoch with set_epoch()"
            )
    if state["consumed"] > own["length"]:
        raise OptionError(
            f"a state with consumed={state['consumed']:,} of {own['length']:,}; give what state_dict() "
            "returned"
        )


def check_change(on_change: object) -> None:
    """Raise OptionError for what is no way to treat a dataset that has grown."""
    if on_change not in ("error", "continue"):
        raise OptionError(f'on_change={shown(on_change)}; give "error" or "continue"')
