"""Progress as a person sees it: what was kept from before, and one live bar on a terminal."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any, TypeVar

logger = logging.getLogger("edcache")


Show = bool | Callable[[int, int | None], object] | None
Self = TypeVar("Self", bound="_Shown")


class _Shown:
    """What shows a bar, or tells a function instead.

    Args:
        show: as in `Progress`. bar: tqdm's options for it.
    """

    def __init__(self, show: Show, **bar: Any) -> None:
        self._tell = show if callable(show) else None
        self._bar: Any = None
        if _is_shown(show):
            self._bar = _bar_class()(dynamic_ncols=True, **bar)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class Progress(_Shown):
    """A bar over the samples that are missing, with what was kept from before.

    Args:
        what: what is being filled, such as the archive's name.
        kept, total: samples present at the start, samples of the dataset, None where nobody knows.
        show: whether the bar shows: True always, False never, None on a terminal. EDCACHE_PROGRESS=0
            or 1 decides where show is None. On ranks other than 0 nothing shows unless asked for. A
            function is called with (samples present, samples of the dataset) instead.

    "train.zip: 412 of 1,797 already cached" goes to stderr wherever that is, so that logs of batch jobs
    have it too, but for show=False, EDCACHE_PROGRESS=0 and other ranks.
    """

    def __init__(self, what: str, kept: int, total: int | None, show: Show) -> None:
        self._present, self._total = kept, total
        is_silent = callable(show) or show is False
        if kept and not is_silent and os.environ.get("EDCACHE_PROGRESS") != "0" and _is_first_rank():
            print(f"{what}: {_of(kept, total)} already cached", file=sys.stderr, flush=True)
        elif kept:
            logger.info("%s: %s already cached", what, _of(kept, total))
        self._nbytes = 0
        absent = None if total is None else total - kept
        super().__init__(show, total=absent, desc=f"caching {what}", unit=" samples", smoothing=0.1)

    def advance(self, samples: int, nbytes: int = 0) -> None:
        """Some more samples are there, of so many bytes."""
        self._present += samples
        self._nbytes += nbytes
        if self._tell is not None and samples:
            self._tell(self._present, self._total)
        if self._bar is not None:
            self._bar.update(samples)
            rate = self._nbytes / max(self._bar.format_dict["elapsed"], 1e-6) / 1e6
            self._bar.set_postfix_str(f"{rate:,.1f} MB/s", refresh=False)


class ByteProgress(_Shown):
    """A bar over bytes, fed with (bytes done, bytes in all); shown as `Progress` shows its own.

    Args:
        what: is done, such as "copying train.zip". show: as in `Progress`.
    """

    def __init__(self, what: str, show: Show) -> None:
        super().__init__(show, desc=what, unit="B", unit_scale=True)

    def __call__(self, done: int, total: int) -> None:
        """So many bytes are done, of so many."""
        if self._tell is not None:
            self._tell(done, total)
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)


@cache
def _bar_class() -> Any:
    """A class of bars whose lock is this process's own.

    tqdm's is shared with forked children: one that is killed while it holds it stops every bar of its
    parent for ever (test_progress.py::test_a_child_killed_amid_drawing_a_bar_stops_no_fill).
    """
    from tqdm.auto import tqdm  # here, because to open a finished archive shows no bar

    class Bar(tqdm):  # type: ignore[misc]
        pass

    def renew() -> None:
        Bar.set_lock(threading.RLock())

    renew()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
    return Bar


@contextmanager
def uploading(what: str, nbytes: int, show: Show) -> Iterator[Callable[[int], object]]:
    """A bar over the bytes of an upload: `tell(nbytes)` says that so many more are there.

    Args:
        show: as in `Progress`; a function counts samples, and hears nothing of bytes.
    """
    if not _is_shown(show):
        yield lambda more: None
        return
    with _bar_class()(total=nbytes, desc=f"uploading {what}", unit="B", unit_scale=True) as bar:
        yield bar.update


def _of(kept: int, total: int | None) -> str:
    return f"{kept:,} samples" if total is None else f"{kept:,} of {total:,}"


def _is_shown(show: Show) -> bool:
    if callable(show):
        return False
    if show is not None:
        return show
    said = os.environ.get("EDCACHE_PROGRESS")
    if said is not None:
        return said != "0"
    return _is_first_rank() and sys.stderr.isatty()


def _is_first_rank() -> bool:
    # The second is what torch_xla.launch() sets.
    return (os.environ.get("RANK") or os.environ.get("PJRT_LOCAL_PROCESS_RANK") or "0") == "0"
