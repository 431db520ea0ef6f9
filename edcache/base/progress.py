"""Progress as a person sees it: what was kept from before, then a bar that moves, or now and then a line."""

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
# How wide lines are, and bars where there is no terminal; on the second width, bars show MB/s too.
_COLUMNS: Final = 80
_WIDE_COLUMNS: Final = 100
_LEAST_TEXT: Final = 20


class Progress:
    """How far a fill is. What was kept from before is said first, and a bar begins there.

    Args:
        what: is filled, such as the archive's name; it is shortened in the middle where it is long.
        kept, total: samples present at the start, samples of the dataset, None where nobody knows.
        show: as `FillOptions` has it. Where it is None, EDCACHE_PROGRESS=0 or 1 decides, and ranks other than
            0 show no bar.
        is_first: whether nobody else filled when this fill began. Of several that fill together, the first
            alone prints lines: what it kept is what was there before any of them.

    Lines go to stderr. "train.zip: 412 of 1,797 already cached" comes first, beside a bar too. Without a bar
    one follows every 30 seconds or every tenth of the samples, whichever is first, and one at the end.
    """

    def __init__(self, what: str, kept: int, total: int | None, show: Show, is_first: bool = True) -> None:
        self._present, self._total = kept, total
        if kept and is_first:
            line = _line(what, f": {_samples(kept, total)} already cached")
            if _asked(show) is False:
                logger.info("%s", line)
            else:
                print(line, file=sys.stderr, flush=True)
        self._tell = show if callable(show) else None
        self._display = _Display("caching", what, show, total, kept, has_lines=is_first)

    def advance(self, samples: int, nbytes: int = 0) -> None:
        """Some more samples are there, of so many bytes."""
        self._present += samples
        if self._tell is not None and samples:
            self._tell(self._present, self._total)
        self._display.advance(samples, nbytes)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._display.close(is_done=kind is None)


@contextmanager
def byte_progress(
    doing: str, name: str, show: Show, unit: str = "B"
) -> Iterator[Callable[[int, int], object]]:
    """A function to be fed with (done, in all), which shows a bar or lines as `Progress` does.

    Args:
        doing, name: such as "copying", "train.zip". show: as in `Progress`. unit: "B", or "" for samples.
    """
    if callable(show):
        yield show
        return
    display: _Display | None = None

    def tell(done: int, total: int) -> None:
        nonlocal display
        # Not before: what is resumed begins where it was, and a notebook asks for the length.
        if display is None:
            display = _Display(doing, name, show, total, done, unit)
        display.advance(done - display.done)

    is_done = False
    try:
        yield tell
        is_done = True
    finally:
        if display is not None:
            display.close(is_done)


class _Display:
    """What a person sees of one operation: a bar, or lines, or nothing.

    Args:
        unit: "" counts samples, "B" bytes. done: where it begins; rates count what comes after.
    """

    def __init__(
        self,
        doing: str,
        name: str,
        show: Show,
        total: int | None,
        done: int,
        unit: str = "",
        has_lines: bool = True,
    ) -> None:
        self.done = self._line_done = self._first = done
        self._total, self._unit, self._nbytes = total, unit, 0
        # Of a fill a line says "train.zip: 412 of 1,797 cached", else "copying train.zip: 1.2 GB of 3.4 GB".
        self._is_fill = doing == "caching"
        self._name, self._past = (name, " cached") if self._is_fill else (f"{doing} {name}", "")
        self._began = self._last_line = time.monotonic()
        asked = _asked(show)
        is_watched = asked is None and _is_watched()
        has_bar = asked or (is_watched and _is_rank_0())
        self._bar = _new_bar(f"{doing} {name}", total, done, unit) if has_bar else None
        # Of a fill its first process prints lines, whatever its rank.
        is_told = has_lines and (self._is_fill or _is_rank_0())
        self._has_lines = is_told and asked is None and not is_watched

    def advance(self, more: int, nbytes: int = 0) -> None:
        self.done += more
        self._nbytes += nbytes
        if self._bar is not None:
            self._bar.update(more)
            if nbytes and self._bar.is_wide:
                rate = self._nbytes / max(self._bar.format_dict["elapsed"], 1e-6) / 1e6
                self._bar.set_postfix_str(f"{rate:,.0f} MB/s", refresh=False)
        if self._has_lines and more and self.done != self._total:
            now = time.monotonic()
            since = now - self._last_line
            tenths = self._total is not None and (self.done - self._line_done) * 10 >= self._total
            if since >= _MOST_SECONDS or (tenths and since >= _LEAST_SECONDS):
                self._last_line, self._line_done = now, self.done
                self._print(f"{self._past}{self._rates(now - self._began)}")

    def close(self, is_done: bool) -> None:
        """Take the bar down; where all went well, the last line says how long it took."""
        if self._bar is not None:
            self._bar.close()
        seconds = time.monotonic() - self._began
        if self._has_lines and is_done and (self._is_fill or seconds >= _LEAST_SECONDS):
            self._print(f"{self._past} in {_duration(seconds)}")

    def _rates(self, seconds: float) -> str:
        rate = (self.done - self._first) / seconds
        text = f", {human_bytes(rate)}/s" if self._unit else f", {rate:,.1f}/s"
        if self._nbytes:
            text += f", {self._nbytes / seconds / 1e6:,.0f} MB/s"
        return text if self._total is None else f"{text}, {_duration((self._total - self.done) / rate)} left"

    def _print(self, text: str) -> None:
        count = _samples(self.done, self._total)
        if self._unit:
            count = f"{human_bytes(self.done)} of {human_bytes(self._total or 0)}"
        print(_line(self._name, f": {count}{text}"), file=sys.stderr, flush=True)


def _samples(done: int, total: int | None) -> str:
    return f"{done:,} samples" if total is None else f"{done:,} of {total:,}"


def _line(name: str, text: str) -> str:
    """A line of at most 80 columns, unless the text alone is longer."""
    return _shortened(name, _COLUMNS - len(text)) + text


def _shortened(text: str, most: int) -> str:
    """A text without its middle where it is longer than so many characters, without control characters."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(text) <= (most := max(most, 8)):
        return text
    head = (most - 2) // 2
    return f"{text[:head]}...{text[len(text) - (most - 3 - head) :]}"


def _new_bar(text: str, total: int | None, done: int, unit: str) -> Any:
    """A bar that begins where a fill resumes, as wide as the terminal, or as a notebook's cell."""
    bar_class = _bar_class()
    is_terminal = sys.stderr.isatty()
    columns = _COLUMNS
    if is_terminal:
        with suppress(OSError, ValueError, AttributeError):  # of a stream without a descriptor
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
    options: dict[str, Any] = {"total": total, "initial": done, "smoothing": 0.1, "unit": " samples"}
    options |= {"dynamic_ncols": True} if is_terminal or bar_class.is_widget else {"ncols": columns}
    if unit:
        options |= {"unit": unit, "unit_scale": True}
    elif total:
        options["bar_format"] = (
            "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} "
            "[{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
        )
        options["unit"] = ""
    text = _shortened(text, max(_LEAST_TEXT, columns - 60 - 2 * len(str(total or 0))))
    if bar_class.is_widget:
        # Its first text would be taken for HTML.
        bar = bar_class(**options)
        bar.set_description_str(text)
    else:
        bar = bar_class(desc=text, **options)
    bar.is_wide = bar_class.is_widget or columns >= _WIDE_COLUMNS
    return bar


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
    """Whether stderr is where a bar can move: a terminal, or a notebook as tqdm.auto recognises one."""
    if sys.stderr.isatty():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())
