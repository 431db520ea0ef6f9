"""Warnings point at the user's line, however deep in the package they are raised."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import warnings
from collections import deque
from contextvars import ContextVar
from typing import Any, Final

# Frames of the package, of torch.utils.data, which calls a dataset, and of the standard library, through
# which the package calls itself.
_PASSED: Final = re.compile(
    rf"{re.escape(os.path.join(os.path.dirname(os.path.dirname(__file__)), ''))}"
    r"|.*/torch/utils/data/|<frozen"
    rf"|{re.escape(sysconfig.get_path('stdlib'))}(?!.*-packages)"
)

_warned: set[object] = set()
# In a thread without frames of the user's: the list that warnings go to, see threads.py.
deferred: ContextVar[deque[Any] | None] = ContextVar("deferred", default=None)


def warn(message: str, category: type[Warning] = RuntimeWarning, once: object = None) -> None:
    """Warn at the innermost line of the user's; with `once`, a key, only the first time in this process."""
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
