"""Show where it went wrong: a warning points at the user's line, and the traceback of an error fits one screen.

The frames between a public call and an error of ours say nothing that its text does not. If the public call runs code
of the user, such as a source, which makes a wrong call itself, the frames from that code on stay. So do all frames of
an error of the user's code, the `__cause__` of ours, and of an error that is not ours, which is a bug.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, ParamSpec, TypeVar

from edcache.base.errors import EdcacheError

P = ParamSpec("P")
Returned = TypeVar("Returned")

# Frames of the package, of torch.utils.data, which calls a dataset, and of the standard library, through
# which the package calls itself.
_PASSED: Final = re.compile(
    rf"{re.escape(os.path.join(os.path.dirname(os.path.dirname(__file__)), ''))}"
    r"|.*/torch/utils/data/|<frozen"
    rf"|{re.escape(sysconfig.get_path('stdlib'))}(?!.*-packages)"
)

_warned: set[object] = set()


def warn(message: str, category: type[Warning] = RuntimeWarning, once: object = None) -> None:
    """Warn at the user's innermost line; with `once`, a key, only the first time in this process.

    A thread of the package has no such line: then warn at the line at which the main thread waits.
    """
    if once is not None and once in _warned:
        return
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    own = sys._getframe(1)
    frame = _find_users_frame(own) or _find_users_frame(main) or own
    place, names = (frame.f_code.co_filename, frame.f_lineno), frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, *place, names.get("__name__"), registry)
    _warned.add(once)


def is_debugging() -> bool:
    """True if EDCACHE_DEBUG asks for whole tracebacks."""
    return os.environ.get("EDCACHE_DEBUG", "0") not in ("", "0")


def cut_traceback(function: Callable[P, Returned]) -> Callable[P, Returned]:
    """Decorate a public function: an error of ours shows no frames between it and the user's code that it runs.

    EDCACHE_DEBUG=1 keeps all frames.
    """

    @functools.wraps(function)
    def public(*args: P.args, **keywords: P.kwargs) -> Returned:
        try:
            return function(*args, **keywords)
        except EdcacheError as error:
            del args, keywords  # a traceback with locals would show credentials
            if is_debugging():
                raise
            raise error.with_traceback(_of_user(error.__traceback__))  # noqa: B904 - the same error, with its cause

    return public


def _of_user(frames: TracebackType | None) -> TracebackType | None:
    """Cut the frames before the first one of the user's code, such as a source's."""
    while frames is not None and _PASSED.match(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _find_users_frame(frame: FrameType | None) -> FrameType | None:
    """Find the user's innermost frame, at a frame or among its callers."""
    while frame is not None and _PASSED.match(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
