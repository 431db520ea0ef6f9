"""Warnings point at the user's line, however deep in the package they are raised."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
import warnings
from types import FrameType
from typing import Final

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


def _find_users_frame(frame: FrameType | None) -> FrameType | None:
    """Find the user's innermost frame, at a frame or among its callers."""
    while frame is not None and _PASSED.match(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
