"""The pickle codec: a record is one pickle of protocol 5. Chosen by name only, read by permission only."""

from __future__ import annotations

import pickle

from edcache.base import CorruptRecordError, UnsupportedTypeError

PICKLE_SCHEMA = '{"pickle":5}'

# What pickle.loads raises over bytes that are damaged, or that name classes this process cannot import.
LOAD_ERRORS = (
    *(pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError),
    *(MemoryError, NameError, RuntimeError, TypeError, ValueError),
)


def dump(sample: object) -> bytes:
    """Pickle a sample. Raises: UnsupportedTypeError."""
    try:
        return pickle.dumps(sample, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise UnsupportedTypeError(f"sample: pickle cannot store it: {error}") from error


def load(record: memoryview) -> object:
    """Unpickle a record, which runs whatever code its author put there. Raises: CorruptRecordError."""
    try:
        return pickle.loads(record)  # noqa: S301 - only behind allow_pickle=True
    except LOAD_ERRORS as error:
        raise CorruptRecordError(f"record does not unpickle: {type(error).__name__}: {error}") from error
