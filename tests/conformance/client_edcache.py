"""edcache as a client of the suite: python client_edcache.py PATH"""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime as dt
import enum
import hashlib
import json
import pathlib
import struct
import sys
import uuid
import warnings
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import golden_samples  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

import edcache  # noqa: E402
from edcache.codec import dtypes  # noqa: E402

US = dt.timedelta(microseconds=1)


def real(value: float) -> str:
    return struct.pack(">d", value).hex()


def digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def coded(kind: str, data: Any) -> dict[str, str]:
    return {kind: base64.b64encode(bytes(data)).decode()}


def moment(value: dt.datetime) -> dict[str, Any]:
    local = (value.replace(tzinfo=None, fold=0) - dt.datetime.min) // US
    offset = None if value.tzinfo is None else [value.tzinfo.utcoffset(None) // US]
    return {"datetime": [str(local), value.fold, offset]}


def name_of(cls: type) -> list[str]:
    return [cls.__module__, cls.__qualname__]


def of_numpy(value: Any) -> Any:
    if isinstance(value, np.str_):
        return {"numpy.str": str(value)}
    if type(value) is np.bytes_:
        return coded("numpy.bytes", value)
    array = dtypes.own_bytes(np.asarray(value))
    if isinstance(value, np.generic):
        return {"scalar": [dtypes.describe(value.dtype), array.tobytes().hex()]}
    return {"array": [dtypes.describe(value.dtype), list(value.shape), digest(array.tobytes())]}


def of_tensor(value: torch.Tensor) -> Any:
    data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), digest(data)]}


def of_enum(value: enum.Enum) -> Any:
    return {"enum": [*name_of(type(value)), value.name]}


def of_time(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return moment(value)
    if isinstance(value, dt.date):
        return {"date": str(value.toordinal())}
    return {"timedelta": [value.days, value.seconds, value.microseconds]}


def of_container(value: Any) -> Any:
    if isinstance(value, dict):
        kind = "OrderedDict" if type(value) is collections.OrderedDict else "dict"
        return {kind: [[canonical(key), canonical(item)] for key, item in value.items()]}
    if hasattr(value, "_fields") or dataclasses.is_dataclass(value):
        kind, names = "namedtuple", getattr(value, "_fields", None)
        if names is None:
            kind, names = "dataclass", [field.name for field in dataclasses.fields(value)]
        return {kind: [*name_of(type(value)), [[name, canonical(getattr(value, name))] for name in names]]}
    return {type(value).__name__: [canonical(item) for item in value]}


WAYS = [
    (bool, lambda value: value),
    (enum.Enum, of_enum),
    ((np.ndarray, np.generic), of_numpy),
    (str, lambda value: value),
    (int, lambda value: {"int": str(value)}),
    (float, lambda value: {"float": real(value)}),
    (complex, lambda value: {"complex": [real(value.real), real(value.imag)]}),
    ((bytes, bytearray), lambda value: coded(type(value).__name__, value)),
    (uuid.UUID, lambda value: {"uuid": value.hex}),
    ((dt.date, dt.timedelta), of_time),
    (pathlib.PurePath, lambda value: {"path": [type(value).__name__, str(value)]}),
    (torch.Tensor, of_tensor),
    (edcache.ImageFile, lambda value: {"imagefile": digest(value.data)}),
]


def canonical(value: Any) -> Any:
    """The canonical value of what edcache read."""
    if value is None:
        return None
    return next((way(value) for kinds, way in WAYS if isinstance(value, kinds)), None) or (
        value if isinstance(value, (bool, str)) else of_container(value)
    )


def document(path: str) -> dict[str, Any]:
    with edcache.CachedDataset.from_cache(path, allow_partial=True, decode=None) as ds:
        samples: dict[str, Any] = {}
        for index in np.setdiff1d(np.arange(len(ds)), ds.missing).tolist():
            try:
                samples[str(index)] = canonical(ds[index])
            except edcache.errors.LaterReleaseError:
                raise
            except edcache.EdcacheError as error:
                samples[str(index)] = {"refused": str(error)[:200]}
        table = ds.labels.table
        labels = {name: [canonical(v) for v in table[name].to_pylist()] for name in table.column_names}
        return {"length": len(ds), "samples": samples, "labels": labels}


def main(path: str) -> int:
    warnings.simplefilter("ignore")
    for cls in golden_samples.TO_REGISTER:
        edcache.register(cls)
    try:
        print(json.dumps(document(path)))
    except edcache.EdcacheError as error:
        print("refused", repr(error)[:200].replace("\n", " "))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
