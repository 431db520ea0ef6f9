"""Progress as a person sees it: what was kept from before, then a bar that moves, or now and then a line."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from edcache.base.options import Show

logger = logging.getLogger("edcache")

_LINE_SECONDS: Final = 30.0


class Progress:
    """How far a fill is, with what was kept from before.

    Args:
        what: is filled, such as the archive's name.
        kept, total: samples present at the start, samples of the dataset, None where nobody knows.
        show: True shows a bar, False nothing. None shows a bar on a terminal and in a notebook, but not on
            ranks other than 0, and prints lines elsewhere; EDCACHE_PROGRESS=0 or 1 decides where it is None.
            A function is called with (samples present, samples of the dataset) instead.
        is_first: whether nobody else filled when this fill began. Of several that fill together, the first
            alone prints lines: what it kept is what was there before any of them.

    Lines go to stderr. "train.zip: 412 of 1,797 already cached" comes first, beside a bar too. Without a bar
    one follows every 30 seconds, or every tenth of the time so far where that is longer, and one at the end.
    """

    def __init__(self, what: str, kept: int, total: int | None, show: Show, is_first: bool = True) -> None:
        self._what, self._present, self._total = what, kept, total
        self._kept, self._nbytes = kept, 0
        self._began = self._last_line = time.monotonic()
        absent = None if total is None else total - kept
        is_silent = callable(show) or show is False or os.environ.get("EDCACHE_PROGRESS") == "0"
        if kept and is_first:
            self._say("already cached", is_silent)
        self._tell = show if callable(show) else None
        bar = {"total": absent, "desc": f"caching {what}", "unit": " samples", "smoothing": 0.1}
        self._bar = _bar_class()(dynamic_ncols=True, **bar) if _shows_bar(show) else None
        self._has_lines = is_first and not is_silent and self._bar is None and not _is_watched()

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
        if self._has_lines and samples:
            now = time.monotonic()
            if now - self._last_line >= max(_LINE_SECONDS, (now - self._began) / 10):
                self._last_line = now
                self._say(f"cached{self._rate(now - self._began)}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._has_lines and kind is None:
            self._say(f"cached in {_duration(time.monotonic() - self._began)}")

    def _rate(self, seconds: float) -> str:
        rate = (self._present - self._kept) / seconds
        left = "" if self._total is None else f", {_duration((self._total - self._present) / rate)} left"
        return f", {rate:,.1f} samples/s, {self._nbytes / seconds / 1e6:,.1f} MB/s{left}"

    def _say(self, text: str, is_silent: bool = False) -> None:
        count = f"{self._present:,} " + ("samples" if self._total is None else f"of {self._total:,}")
        if is_silent:
            logger.info("%s: %s %s", self._what, count, text)
        else:
            print(f"{self._what}: {count} {text}", file=sys.stderr, flush=True)


@contextmanager
def byte_progress(what: str, show: Show, unit: str = "B") -> Iterator[Callable[[int, int], object]]:
    """A function to be fed with (done, in all), which shows a bar as `Progress` shows its own.

    Args:
        what: is done, such as "copying train.zip". show: as in `Progress`. unit: what is counted.
    """
    if callable(show) or not _shows_bar(show):
        yield show if callable(show) else lambda done, total: None
        return
    with _bar_class()(dynamic_ncols=True, desc=what, unit=unit, unit_scale=unit == "B") as bar:

        def tell(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield tell


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
    if not _shows_bar(show):
        yield lambda more: None
        return
    with _bar_class()(total=nbytes, desc=f"uploading {what}", unit="B", unit_scale=True) as bar:
        yield bar.update


def _duration(seconds: float) -> str:
    """Hours, minutes, seconds: 0:00:34, 123:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _shows_bar(show: Show) -> bool:
    if callable(show):
        return False
    if show is not None:
        return show
    setting = os.environ.get("EDCACHE_PROGRESS")
    if setting is not None:
        return setting != "0"
    # The second is what torch_xla.launch() sets.
    rank = os.environ.get("RANK") or os.environ.get("PJRT_LOCAL_PROCESS_RANK") or "0"
    return rank == "0" and _is_watched()


def _is_watched() -> bool:
    """Whether stderr is where a bar can move: a terminal, or a notebook as tqdm.auto recognises one."""
    if sys.stderr.isatty():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())
