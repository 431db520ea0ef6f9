"""Guards of a `with` block: what it began is undone if it fails, and code of others raises errors of ours.

Every error goes on: `on_error` changes none, and `foreign_code` keeps the one that it replaces as its `__cause__`.
An interrupt, or another end of the process, passes both as it is.

Classes, not generators, which take three times as long: one is entered for each object that a user's function
decodes.
"""

from __future__ import annotations

from collections.abc import Callable


class on_error:
    """Call a function if the block raises or is interrupted, as to close what it opened and would have returned.

    A file is not left to the garbage collector: a traceback keeps the frames of the block, and so it open and locked.
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._undo()


class foreign_code:
    """Run code that may raise anything: a user's, or of a library whose errors have no class in common.

    Args:
        made: makes the error that is raised in the place of an Exception, or returns that one, to raise it as it is.
    """

    __slots__ = ("_made",)

    def __init__(self, made: Callable[[Exception], Exception]) -> None:
        self._made = made

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if isinstance(error, Exception):
            made = self._made(error)
            if made is not error:
                raise made from error
