"""The pickle codec: a record is one pickle of protocol 5. Chosen by name only, read by permission only."""

from __future__ import annotations

import io
import pickle
import sys
from functools import cache
from typing import Any

from edcache.base import CodecError, CorruptRecordError

PICKLE_SCHEMA = '{"pickle":5}'

# What pickle.loads raises over bytes that are damaged, or that name classes this process cannot import.
LOAD_ERRORS = (
    *(pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError),
    *(MemoryError, NameError, RuntimeError, TypeError, ValueError),
)


class _Pickler(pickle.Pickler):
    """Refuses tensors that torch would not unpickle, as it pickles them: those of its newer dtypes."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and not _reads_back(value.dtype):
            raise TypeError(f'torch does not unpickle a tensor of {value.dtype}; codec="native" stores it')
        return NotImplemented


@cache
def _reads_back(dtype: Any) -> bool:
    import torch

    try:
        pickle.loads(pickle.dumps(torch.empty(1, dtype=dtype)))  # noqa: S301 - of our own making
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
    """Unpickle a record, which runs whatever code its author put there. Raises: CorruptRecordError."""
    try:
        return pickle.loads(record)  # noqa: S301 - only behind allow_pickle=True
    except LOAD_ERRORS as error:
        raise CorruptRecordError(f"record does not unpickle: {type(error).__name__}: {error}") from error
