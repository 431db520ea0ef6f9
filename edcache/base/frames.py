"""The frames of the user among ours: what a warning points at, and what IPython shows of an error."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final

_HERE: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
# Where frames are of no use to a user: in edcache, in what calls a cell, and in what calls a dataset.
_INTERNAL: Final = re.compile(rf"{re.escape(_HERE)}|.*[/\\](IPython|ipykernel|torch[/\\]utils[/\\]data)[/\\]")
_LIBRARY: Final = re.compile(rf"<|{re.escape(sysconfig.get_path('stdlib'))}|.*[/\\]site-packages[/\\]")
# The same in the text of a traceback: the line that names the file, and the lines of code below it.
_INTERNAL_TEXT: Final = re.compile(rf'  File "(?:{_INTERNAL.pattern})[^\n]*\n(?:    [^\n]*\n)*')

# Through the standard library the package calls itself.
_PASSED: Final = re.compile(
    rf"{_INTERNAL.pattern}|<frozen|{re.escape(sysconfig.get_path('stdlib'))}(?!.*-packages)"
)


_warned: set[object] = set()
# What a thread without frames of the user's has warned of; see threads.py.
deferred: ContextVar[list[Any] | None] = ContextVar("deferred", default=None)


def warn(message: str, category: type[Warning] = RuntimeWarning, once: object = None) -> None:
    """Warn of the innermost line of the user's; of what `once` stands for only the first time."""
    if once is not None and once in _warned:
        return
    if (later := deferred.get()) is not None:
        later.append((message, category, once))
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and _PASSED.match(frame.f_code.co_filename):
        frame = frame.f_back
    place, names = (frame.f_code.co_filename, frame.f_lineno), frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, *place, names.get("__name__"), registry)
    _warned.add(once)


def short_traceback(error: BaseException) -> list[str]:
    """What IPython prints for an exception, as blocks of text: what `_render_traceback_` is to return.

    The frames of the user stay, and so do those of the causes. EDCACHE_DEBUG=1 shows all frames.
    """
    formatter = sys.modules["IPython"].get_ipython().InteractiveTB
    shows_all = os.environ.get("EDCACHE_DEBUG", "0") not in ("", "0")
    with nullcontext() if shows_all else _shortened(error):
        lines: list[str] = formatter.structured_traceback(
            type(error), error, error.__traceback__, tb_offset=int(shows_all)
        )
    return lines


@contextmanager
def _shortened(error: BaseException) -> Iterator[None]:
    """An exception and its causes without internal frames, as long as the block runs."""
    chain: list[tuple[BaseException, TracebackType | None, Any, bool]] = []
    link: BaseException | None = error
    try:
        while link is not None and all(link is not earlier for earlier, *_ in chain):
            notes = getattr(link, "__notes__", None)
            chain.append((link, link.__traceback__, notes, link.__suppress_context__))
            link.__traceback__ = _of_users(link.__traceback__)
            if notes is not None:
                link.__notes__ = [_INTERNAL_TEXT.sub("", note) for note in notes]  # type: ignore[attr-defined]
            context = link.__context__
            # What was raised and caught in edcache explains nothing to a user.
            if context is not None and _of_users(context.__traceback__) is None:
                link.__suppress_context__ = True
            link = link.__cause__ or (None if link.__suppress_context__ else context)
        yield
    finally:
        for link, traceback, notes, suppresses in chain:
            link.__traceback__, link.__suppress_context__ = traceback, suppresses
            if notes is not None:
                link.__notes__ = notes  # type: ignore[attr-defined]


def _of_users(traceback: TracebackType | None, is_below: bool = False) -> TracebackType | None:
    """A traceback without internal frames, and without those of libraries that they call."""
    if traceback is None:
        return None
    name = traceback.tb_frame.f_code.co_filename
    is_hidden = bool(_INTERNAL.match(name) or (is_below and _LIBRARY.match(name)))
    following = _of_users(traceback.tb_next, is_hidden)
    if is_hidden:
        return following
    return TracebackType(following, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
