"""Progress of a fill or a copy: a bar, or now and then a line in a log."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

from edcache.base.options import Show
from edcache.base.wording import human_bytes

logger = logging.getLogger("edcache")

# A line comes after so many seconds, or after a tenth of the work; the second is the least between lines.
_MOST_SECONDS: Final = 30.0
_LEAST_SECONDS: Final = 3.0
_COLUMNS: Final = 80
_LEAST_TEXT: Final = 20
# Columns of a bar beside the name: percentage, counts, times, rate.
_BESIDE_TEXT: Final = 60


class Progress:
    """The progress of one operation, shown on stderr as a bar or as lines.

    Args:
        name: such as the archive's; it is shortened in the middle if it is long.
        done, total: at the start, and in all; None if nobody knows.
        show: as of `FillOptions`. If it is None, EDCACHE_PROGRESS=0 or 1 decides, and ranks other than 0 show
            no bar.
        doing: "caching" for a fill, which says first what was kept from before; else such as "copying".
        unit: "" counts samples, "B" bytes.
        is_first: whether no other process filled when this fill began. Of several that fill together, the
            first alone prints lines: what it kept is what was there before any of them.

    Without a bar, a line comes every 30 seconds or every tenth, whichever is first, and one at the end.
    """

    def __init__(
        self,
        name: str,
        done: int,
        total: int | None,
        show: Show,
        is_first: bool = True,
        *,
        doing: str = "caching",
        unit: str = "",
    ) -> None:
        self.done = self._line_done = self._start = done
        self._total, self._unit = total, unit
        self._nbytes = 0
        self._is_fill = doing == "caching"
        self._name = name if self._is_fill else f"{doing} {name}"
        self._tell = show if callable(show) else None
        self._began = self._last_line = time.monotonic()
        asked = _asked(show)
        is_watched = asked is None and _is_watched()
        if self._is_fill and done and is_first:
            line = _line(name, f": {self._count()} already cached")
            if asked is False:
                logger.info("%s", line)
            else:
                print(line, file=sys.stderr, flush=True)
        has_bar = asked or (is_watched and _is_rank_0())
        self._bar = _new_bar(f"{doing} {name}", total, done, unit) if has_bar else None
        # Of a fill its first process prints lines, whatever its rank.
        is_told = is_first and (self._is_fill or _is_rank_0())
        self._has_lines = is_told and asked is None and not is_watched

    def advance(self, more: int, nbytes: int = 0) -> None:
        """Count more samples, of so many bytes."""
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

    def close(self, is_done: bool) -> None:
        """Take the bar down; if all went well, the last line says how long it took."""
        if self._bar is not None:
            self._bar.close()
        seconds = time.monotonic() - self._began
        if self._has_lines and is_done and (self._is_fill or seconds >= _LEAST_SECONDS):
            self._print(f" in {_duration(seconds)}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self.close(is_done=kind is None)

    def _count(self) -> str:
        if self._unit:
            return f"{human_bytes(self.done)} of {human_bytes(self._total or 0)}"
        return f"{self.done:,} samples" if self._total is None else f"{self.done:,} of {self._total:,}"

    def _rates(self, seconds: float) -> str:
        rate = (self.done - self._start) / seconds
        text = f", {human_bytes(rate)}/s" if self._unit else f", {rate:,.1f}/s"
        if self._nbytes:
            text += f", {self._nbytes / seconds / 1e6:,.0f} MB/s"
        return text if self._total is None else f"{text}, {_duration((self._total - self.done) / rate)} left"

    def _print(self, text: str) -> None:
        line = f": {self._count()}{' cached' * self._is_fill}{text}"
        print(_line(self._name, line), file=sys.stderr, flush=True)


@contextmanager
def byte_progress(
    doing: str, name: str, show: Show, unit: str = "B"
) -> Iterator[Callable[[int, int], object]]:
    """Give a function of (done, in all), which shows a `Progress`; or `show`, if that is a function.

    Args:
        doing, name: such as "copying", "train.zip". unit: "B", or "" for samples.
    """
    if callable(show):
        yield show
        return
    progress: Progress | None = None

    def tell(done: int, total: int) -> None:
        nonlocal progress
        # Not before: what is resumed begins where it was, and a notebook asks for the length.
        if progress is None:
            progress = Progress(name, done, total, show, doing=doing, unit=unit)
        progress.advance(done - progress.done)

    is_done = False
    try:
        yield tell
        is_done = True
    finally:
        if progress is not None:
            progress.close(is_done)


def _line(name: str, text: str) -> str:
    """A line of at most 80 columns, unless the text alone is longer."""
    return _shortened(name, _COLUMNS - len(text)) + text


def _shortened(text: str, most: int) -> str:
    """The text in at most so many printable characters, without its middle if it is longer."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(text) <= (most := max(most, 8)):
        return text
    head = (most - 2) // 2
    return f"{text[:head]}...{text[len(text) - (most - 3 - head) :]}"


def _new_bar(text: str, total: int | None, done: int, unit: str) -> Any:
    """A bar that begins where a fill resumes, as wide as the terminal, or as a notebook's cell."""
    bar_class = _bar_class()
    columns = _COLUMNS
    options: dict[str, Any] = {"total": total, "initial": done, "smoothing": 0.1}
    options |= {"unit": unit, "unit_scale": True} if unit else {"unit": " samples" if total is None else ""}
    if sys.stderr.isatty():
        with suppress(OSError, ValueError, AttributeError):  # of a stream without a descriptor
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
        options["dynamic_ncols"] = True
    elif not bar_class.is_widget:
        options["ncols"] = columns
    bar = bar_class(**options, desc="" if bar_class.is_widget else _fitting(text, columns, total))
    if bar_class.is_widget:
        bar.set_description_str(_fitting(text, columns, total))  # desc= would be taken for HTML
    return bar


def _fitting(text: str, columns: int, total: int | None) -> str:
    return _shortened(text, max(_LEAST_TEXT, columns - _BESIDE_TEXT - 2 * len(str(total or 0))))


@cache
def _bar_class() -> Any:
    """A class of bars whose lock is this process's own.

    tqdm's is shared with forked children: one that is killed while it holds it stops every bar of its
    parent for ever (test_progress.py::test_a_child_killed_amid_drawing_a_bar_stops_no_fill).
    """
    with warnings.catch_warnings():
        # That a notebook has no ipywidgets: its bar is text then.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm  # here, because to open a finished archive shows no bar

    class LockedBar(tqdm):  # type: ignore[misc]
        is_widget = any(kind.__module__ == "tqdm.notebook" for kind in tqdm.__mro__)

    def renew() -> None:
        LockedBar.set_lock(threading.RLock())

    renew()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
    return LockedBar


def _duration(seconds: float) -> str:
    """Hours, minutes, seconds: 0:00:34, 123:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _asked(show: Show) -> bool | None:
    """True for a bar, False for nothing, None for what fits the place that stderr leads to."""
    if callable(show):
        return False
    setting = os.environ.get("EDCACHE_PROGRESS")
    return show if show is not None or setting is None else setting != "0"


def _is_rank_0() -> bool:
    # The second is what torch_xla.launch() sets.
    return (os.environ.get("RANK") or os.environ.get("PJRT_LOCAL_PROCESS_RANK") or "0") == "0"


def _is_watched() -> bool:
    """True if stderr is where a bar can move: a terminal, or a notebook as tqdm.auto recognises one."""
    if sys.stderr.isatty():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())
