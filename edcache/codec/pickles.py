"""Pickle codec: a record is one pickle of protocol 5. Chosen by name only, read by permission only."""

from __future__ import annotations

import io
import pickle
import sys
from functools import cache
from typing import Any

from edcache.base import CodecError, CorruptRecordError

PICKLE_SCHEMA = '{"pickle":5}'

# Errors of pickle.loads over damaged bytes, or names of classes that this process cannot import.
LOAD_ERRORS = (
    *(pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError),
    *(MemoryError, NameError, RuntimeError, TypeError, ValueError),
)


class _Pickler(pickle.Pickler):
    """Pickler that refuses tensors of newer dtypes, which torch pickles but does not unpickle."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and not _reads_back(value.dtype):
            raise TypeError(f'torch does not unpickle a tensor of {value.dtype}; codec="native" stores it')
        return NotImplemented


@cache
def _reads_back(dtype: Any) -> bool:
    import torch

    try:
        pickle.loads(pickle.dumps(torch.empty(1, dtype=dtype)))  # noqa: S301 - our own pickle
    except LOAD_ERRORS:
        return False
    return True


def dump(sample: object) -> bytes:
    """Pickle a sample. Raises: CodecError."""
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=5).dump(sample)
        return file.getvalue()
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise CodecError(f"sample: pickle cannot store it: {error}") from error


def load(record: memoryview) -> object:
    """Unpickle a record, which runs any code of its author. Raises: CorruptRecordError."""
    try:
        return pickle.loads(record)  # noqa: S301 - only behind allow_pickle=True
    except LOAD_ERRORS as error:
        raise CorruptRecordError(f"record does not unpickle: {type(error).__name__}: {error}") from error
