"""Source of the user: calls for its samples, by index, many by one call, one after another; its errors.

Datasets of other libraries are converted by `interop/tables.py`, which is loaded by its name: it stands above.
"""

from __future__ import annotations

import operator
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.utils.data import IterableDataset, Subset, TensorDataset

from edcache import base
from edcache.codec import Columns
from edcache.format import MAX_LENGTH
from edcache.storage import loaded

_TABLES: Final = "edcache.interop.tables"
_MOST_TEXT: Final = 1_000

Ask: TypeAlias = Callable[[list[int]], Any]
"""Gives samples of a source: a list of them, Columns, or a dict or a tuple of columns."""


def by_items(source: Any) -> Any:
    """Wrap a KDDataset of KappaData so that samples are dicts of its items; return any other source."""
    read = getattr(type(source), "__getitem__", None)
    if read is not None and not str(getattr(read, "__module__", "")).startswith("kappadata.datasets."):
        return source
    return loaded(f"{_TABLES}:by_items")(source)


def declared(source: Any) -> Any:
    """Wrap a dataset of Hugging Face so that samples have the dtypes that it declares; return any other source."""
    return loaded(f"{_TABLES}:declared")(source) if "datasets" in sys.modules else source


def is_stream(source: Any) -> bool:
    """True if a source is iterated, because it is no map-style dataset."""
    if isinstance(source, IterableDataset):
        return True
    is_map = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return hasattr(source, "__iter__") and not is_map


def batches_of(source: Any) -> tuple[Ask | None, bool]:
    """Return a function that gives many samples of a source, or None; and True if it takes any number of them."""
    root, subsets = source, list[Sequence[int]]()
    while type(root) is Subset:
        subsets.append(root.indices)
        root = root.dataset
    if "datasets" in sys.modules and loaded(f"{_TABLES}:is_table")(root):
        inner, takes_any = loaded(f"{_TABLES}:columns_of")(root), True
    elif type(root) is TensorDataset:
        inner, takes_any = _tensors_of(root), True
    else:
        inner, takes_any = _getitems(root), False
    if not subsets or inner is None:
        return inner, takes_any and inner is not None
    # A table of `datasets` takes none that count from its end.
    count = len(root) if takes_any else 0

    def ask(rows: list[int]) -> Any:
        for indices in subsets:
            rows = [operator.index(indices[row]) for row in rows]
        return inner([row + count * (row < 0) for row in rows])

    return ask, takes_any


def _getitems(source: Any) -> Ask | None:
    """Return the method `__getitems__` if it gives the same samples as `__getitem__`.

    It may not if a class overrides `__getitem__` alone, or hands on attributes by `__getattr__`, nor if one of torch's
    own calls what has the name there.
    """
    for kind in type(source).__mro__:
        if "__getitems__" in vars(kind):
            ask: Ask = source.__getitems__
            return None if kind.__module__.startswith("torch.utils.data.") else ask
        if "__getitem__" in vars(kind):
            return None
    return None


def _tensors_of(source: TensorDataset) -> Ask | None:
    tensors = source.tensors
    if all(type(tensor) is torch.Tensor and len(tensor) == len(source) for tensor in tensors):
        return lambda rows: Columns(tuple(tensor[run_of(rows)] for tensor in tensors))
    return None


def run_of(rows: list[int]) -> slice | list[int]:
    """Return rows that follow one another as a slice, which copies nothing."""
    is_run = rows[0] >= 0 and rows == [*range(rows[0], rows[0] + len(rows))]
    return slice(rows[0], rows[-1] + 1) if is_run else rows


def check_source(source: Any, path: str) -> None:
    """Raise OptionError unless a source is a map-style dataset or an iterable of samples, and no loader of another."""
    if isinstance(source, type):
        what = f"is the class {source.__name__}; give an object of it, {source.__name__}(...)"
    elif isinstance(source, (str, bytes, os.PathLike)):
        what = f"is {base.article(source)}; give a dataset, or open an archive by CachedDataset.from_cache()"
    elif source is None:
        what = "is None; let the function end with `return dataset`"
    elif hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return
    elif hasattr(source, "dataset") and hasattr(source, "batch_sampler"):
        what = f"is {base.article(source)}, whose batches are no samples; give its dataset, and num_workers= here"
    elif hasattr(source, "__iter__"):
        return
    else:
        what = f"is {base.article(source)} without len() and [index] that cannot be iterated; give a dataset"
    raise base.OptionError(f"{path}: the source {what}")


def length_of(source: Any, path: str, known: int | None = None) -> int:
    """Return the length of a source, if it is not known. SourceError: it has none; OptionError: no archive holds it."""

    def refused(error: Exception) -> base.SourceError:
        return base.SourceError(
            f"{path}: len() of the source, a {type(source).__name__}, raised {type(error).__name__}: "
            f"{text_of(error)}; give a source whose len() is a whole number from 0 up",
            path=path,
        )

    if known is None:
        with base.foreign_code(refused):
            known = len(source)
    if known >= MAX_LENGTH:
        raise base.OptionError(f"{path}: {known:,} samples; an archive holds at most {MAX_LENGTH - 1:,}")
    return known


def is_interrupt(error: BaseException, index: int) -> bool:
    """True for an exception that the code of a source did not cause: an interrupt, an exit by a signal.

    An interrupt gets the index as its text. SystemExit and the like are no end of the fill when the source raises them,
    but errors of a sample.
    """
    if isinstance(error, KeyboardInterrupt):
        error.args = error.args or (f"at index {index}",)
        return True
    if isinstance(error, Exception):
        return False
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def refusal(error: BaseException, index: int, path: str, source: Any) -> base.SourceError:
    """Make the SourceError of an exception that a source raised at an index; the exception is its `__cause__`.

    A source whose `__getitem__` is not the user's own says in `__edcache_raiser__` whose code it runs.
    """
    raiser = getattr(source, "__edcache_raiser__", "the source")
    refused = base.SourceError(
        f"{path}: {raiser} raised at index {index}: {type(error).__name__}: {text_of(error)}",
        path=path,
        index=index,
    )
    refused.__cause__ = error
    return refused


def text_of(error: BaseException) -> str:
    """Return the text of an exception, cut if it is long; one for a `__str__` that raises."""
    text = _told(error, str)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def traceback_of(error: BaseException) -> str:
    """Format an exception with its traceback, as Python prints it."""
    return _told(error, lambda error: "".join(traceback.format_exception(error)))


def _told(error: BaseException, tell: Callable[[BaseException], str]) -> str:
    try:
        return tell(error)
    except Exception as second:  # noqa: BLE001 - of the user's class
        return f"(its text raised {type(second).__name__})"
