"""Show where it went wrong: a warning points at the user's line, and the traceback of an error fits one screen.

The frames between a public call and an error of ours say nothing that its text does not. If the public call runs code
of the user, such as a source or a transform, the frames from that code on stay, of our error and of the user's, which
is its `__cause__`, or goes on as it is. All frames stay of an error that is not ours and that no code of the user
raises: it may be a bug.
An error of ours below another one, which repeats its text with a place in front, is no cause that a user looks for:
the chain goes on at what raised it.

Every public class and function is under `cut_traceback`; tests/dataset/test_errors_of_one_screen.py walks them. To read
one item takes microseconds, and a wrapper a tenth of one: methods that do so, and the ones that look at their caller's
frame, catch an error themselves and call `cut_frames`.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable
from types import FrameType, FunctionType, TracebackType
from typing import Any, Final, TypeVar

from edcache.base.errors import EdcacheError

Door = TypeVar("Door", bound=Callable[..., Any])
Raised = TypeVar("Raised", bound=Exception)

# Frames of torch.utils.data, which calls a dataset, and of the standard library, through which we call ourselves.
_PASSED: Final = re.compile(
    rf".*/torch/utils/data/|<frozen|{re.escape(sysconfig.get_path('stdlib'))}(?!.*-packages)"
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


def cut_traceback(door: Door) -> Door:
    """Decorate a public function, or a class with its constructor, calls, length, public methods and properties.

    An error of ours that leaves them goes through `cut_frames`.
    """
    if not isinstance(door, type):
        return _cutting(door)  # type: ignore[return-value]
    for name, member in [*vars(door).items()]:
        if name.startswith("_") and name not in ("__init__", "__call__", "__len__"):
            continue
        if isinstance(member, FunctionType):
            setattr(door, name, _cutting(member))
        elif isinstance(member, classmethod):
            setattr(door, name, classmethod(_cutting(member.__func__)))
        elif isinstance(member, property):
            read, change = (one and _cutting(one) for one in (member.fget, member.fset))
            setattr(door, name, property(read, change, doc=member.__doc__))
    return door


def _cutting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def public(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as error:  # noqa: BLE001 - it is raised again
            # A traceback with locals would show credentials, and a notebook fails to show arguments that are deleted.
            args, keywords = (), {}
            raise cut_frames(error)  # noqa: B904 - the same error, with its cause

    return public


def cut_frames(error: Raised) -> Raised:
    """Take from an error the frames between the user's call and the user's code that it runs.

    EDCACHE_DEBUG=1 keeps all frames.
    """
    if is_debugging():
        return error
    if not isinstance(error, EdcacheError):
        frames = error.__traceback__
        return error.with_traceback(_of_user(frames) if _has_code_of_user(frames) else frames)
    below = first = _below(error)
    while isinstance(below, EdcacheError) and _of_user(below.__traceback__) is None:
        below = _below(below)
    if below is not first:
        error.__cause__ = below
    if below is not None:
        below.__traceback__ = _of_user(below.__traceback__) or below.__traceback__
    return error.with_traceback(_of_user(error.__traceback__))


def _below(error: BaseException) -> BaseException | None:
    """Return the error that a traceback shows before this one."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _of_user(frames: TracebackType | None) -> TracebackType | None:
    """Cut the frames before the first one of the user's code, such as a source's."""
    while frames is not None and _is_passed(frames.tb_frame):
        frames = frames.tb_next
    return frames


def _has_code_of_user(frames: TracebackType | None) -> bool:
    """True if a frame is neither of the package nor of a library, which the package may have called wrongly."""
    walked = (frame for frame, _ in traceback.walk_tb(frames))
    return any(not _is_passed(frame) and "-packages" not in frame.f_code.co_filename for frame in walked)


def _find_users_frame(frame: FrameType | None) -> FrameType | None:
    """Find the user's innermost frame, at a frame or among its callers."""
    while frame is not None and _is_passed(frame):
        frame = frame.f_back
    return frame


def _is_passed(frame: FrameType) -> bool:
    """True for a frame of the package, or one between it and the user's code.

    The package's are known by their module: the file of a dataclass's constructor is "<string>", as of `python -c`.
    """
    module = frame.f_globals.get("__name__") or ""
    return module.partition(".")[0] == "edcache" or _PASSED.match(frame.f_code.co_filename) is not None
