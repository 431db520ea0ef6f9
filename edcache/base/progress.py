"""Progress of a fill or a copy: a bar, or now and then a line in a log."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from datetime import timedelta
from functools import cache
from typing import Any, Final

from edcache.base.options import Show
from edcache.base.wording import human_bytes

logger = logging.getLogger("edcache")

# Seconds until a line is due, if no tenth of the work is; and the least between two lines.
_MOST_SECONDS: Final = 30.0
_LEAST_SECONDS: Final = 3.0
# Width of a bar without a terminal; and of a name, beside percentage, counts, times and rate.
_COLUMNS: Final = 80
_NAME: Final = 24


class Progress:
    """Progress of one operation on stderr: a bar, or now and then a line.

    Args:
        name: such as the archive's; a long one is shortened in its middle.
        show: as of `FillOptions`. If it is None, EDCACHE_PROGRESS=0 or 1 decides, and ranks other than 0 show no bar.
        doing: "caching" for a fill, whose first line counts the samples of earlier fills; else such as "copying".
        unit: "" counts samples, "B" bytes.
        is_first: True if no other process filled when this fill began. Only the first one prints lines.

    It is shown from `begin` on, or from the first call with (done, total). Without a bar, a line comes every 30 seconds
    or every tenth, if that is sooner, and one at the end, without the samples that are counted as `failed` by then.
    """

    _bar: Any = None
    _has_begun = _has_lines = False
    failed = 0

    def __init__(
        self, name: str, show: Show, *, doing: str = "caching", unit: str = "", is_first: bool = True
    ) -> None:
        self._doing, self._name, self._unit = doing, _shorten(name), unit
        self._is_fill, self._is_first = doing == "caching", is_first
        self._show = show
        self._tell = show if callable(show) else None
        self._nbytes = 0

    def begin(self, done: int, total: int | None) -> Progress:
        """Show the count at the start, and the total; None if it is unknown."""
        self._has_begun, self._total = True, total
        self.done = self._line_done = self._start = done
        self._began = self._last_line = time.monotonic()
        asked = _wants_bar(self._show)
        is_watched = asked is None and _is_watched()
        if self._is_fill and done and self._is_first:
            line = f"{self._name}: {self._count()} already cached"
            if asked is False:
                logger.info("%s", line)
            else:
                print(line, file=sys.stderr, flush=True)
        if asked or (is_watched and is_rank_0()):
            self._bar = _new_bar(f"{self._doing} {self._name}", total, done, self._unit)
        # The first process of a fill prints lines, on any rank.
        is_told = self._is_first and (self._is_fill or is_rank_0())
        self._has_lines = is_told and asked is None and not is_watched
        return self

    def __call__(self, done: int, total: int) -> None:
        """Set the count that is done, and the total."""
        if self._tell is not None:
            self._tell(done, total)
            return
        # Not before: a resumed fill begins at its count, and a notebook asks for the length.
        if not self._has_begun:
            self.begin(done, total)
        self.advance(done - self.done)

    def advance(self, more: int, nbytes: int = 0) -> None:
        """Count more samples, and their bytes."""
        self.done += more
        self._nbytes += nbytes
        if self._tell is not None and more:
            self._tell(self.done, self._total)
        if self._bar is not None:
            self._bar.update(more)
        if self._has_lines and more and self.done != self._total:
            now = time.monotonic()
            since = now - self._last_line
            is_tenth = self._total is not None and (self.done - self._line_done) * 10 >= self._total
            if since >= _MOST_SECONDS or (is_tenth and since >= _LEAST_SECONDS):
                self._last_line, self._line_done = now, self.done
                self._print(self._rates(now - self._began))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """Take the bar down; if all went well, the last line says how long it took."""
        if self._bar is not None:
            self._bar.close()
        if self._has_lines and kind is None:
            seconds = time.monotonic() - self._began
            if self._is_fill or seconds >= _LEAST_SECONDS:
                failed = f", {self.failed:,} failed," if self.failed else ""
                self._print(f"{failed} in {timedelta(seconds=round(seconds))}")

    def _count(self) -> str:
        if self._unit:
            return f"{human_bytes(self.done)} of {human_bytes(self._total or 0)}"
        done = self.done - self.failed
        return f"{done:,} samples" if self._total is None else f"{done:,} of {self._total:,}"

    def _rates(self, seconds: float) -> str:
        rate = (self.done - self._start) / seconds
        text = f", {human_bytes(rate)}/s" if self._unit else f", {rate:,.1f}/s"
        if self._nbytes:
            text += f", {self._nbytes / seconds / 1e6:,.0f} MB/s"
        if self._total is None:
            return text
        return f"{text}, {timedelta(seconds=round((self._total - self.done) / rate))} left"

    def _print(self, text: str) -> None:
        done = f"{self._name}: {self._count()}"
        line = f"{done} cached" if self._is_fill else f"{self._doing} {done}"
        print(f"{line}{text}", file=sys.stderr, flush=True)


def tell(line: str, show: Show) -> None:
    """Print a line on stderr, unless `progress=False` or EDCACHE_PROGRESS=0 turns that off."""
    if _wants_bar(show) is not False:
        print(line, file=sys.stderr, flush=True)


def _shorten(name: str) -> str:
    """Cut a name in its middle to `_NAME` printable characters."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return name if len(name) <= _NAME else f"{name[: _NAME // 2 - 2]}...{name[1 - _NAME // 2 :]}"


def _new_bar(text: str, total: int | None, done: int, unit: str) -> Any:
    """Make a bar that begins where a fill resumes, as wide as the terminal or a notebook's cell."""
    bar_class = _bar_class()
    options: dict[str, Any] = {"total": total, "initial": done, "smoothing": 0.1}
    options |= {"unit": unit, "unit_scale": True} if unit else {"unit": " samples" if total is None else ""}
    if bar_class.is_widget:
        bar = bar_class(**options)
        bar.set_description_str(text)  # desc= would be taken for HTML
        return bar
    width = {"dynamic_ncols": True} if sys.stderr.isatty() else {"ncols": _COLUMNS}
    return bar_class(**options, **width, desc=text)


@cache
def _bar_class() -> Any:
    """Make a class of bars whose lock is this process's own.

    A child that is killed while it holds the lock of tqdm, which forks share, stops every bar of its parent for ever
    (test_progress.py::test_a_child_killed_amid_drawing_a_bar_stops_no_fill).
    """
    with warnings.catch_warnings():
        # It warns if a notebook has no ipywidgets; the bar is text then.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm  # here, because to open a finished archive shows no bar

    class LockedBar(tqdm):  # type: ignore[misc]
        is_widget = any(kind.__module__ == "tqdm.notebook" for kind in tqdm.__mro__)

    def renew() -> None:
        LockedBar.set_lock(threading.RLock())

    renew()
    os.register_at_fork(after_in_child=renew)
    return LockedBar


def _wants_bar(show: Show) -> bool | None:
    """Return True for a bar, False for nothing, None to decide by stderr."""
    if callable(show):
        return False
    setting = os.environ.get("EDCACHE_PROGRESS")
    return show if show is not None or setting is None else setting != "0"


def is_rank_0() -> bool:
    """True if this process is alone, or the first one of its job."""
    # torch_xla.launch() sets the second.
    return (os.environ.get("RANK") or os.environ.get("PJRT_LOCAL_PROCESS_RANK") or "0") == "0"


def _is_watched() -> bool:
    """True if a bar can move on stderr: a terminal, or a notebook as tqdm.auto recognises one."""
    if sys.stderr.isatty():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())
