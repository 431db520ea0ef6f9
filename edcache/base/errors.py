"""Every exception that edcache raises on purpose: one tree; each is also the builtin one that fits, if any does.

Each class is constructed from one message, so that an exception survives the trip out of a DataLoader worker (torch
rebuilds it as `type(message)`, without its attributes). PartialArchiveWarning is a warning. `help(edcache.errors)`
draws the tree.
"""

from __future__ import annotations

from typing import Any


class EdcacheError(Exception):
    """Base of every error that edcache raises on purpose.

    Attributes:
        path: the file or the URL; None if there is none, or several.
        index: the index of the sample, or None.
        option: the name of the option that was refused, or that would allow the call; or None.
    """

    def __init__(
        self,
        *message: object,
        path: str | None = None,
        index: int | None = None,
        option: str | None = None,
    ) -> None:
        super().__init__(*message)
        self.path, self.index, self.option = path, index, option

    def within(self, place: str, path: str | None = None, index: int | None = None) -> EdcacheError:
        """Put a place in front of the text, "train.zip: sample 7", and add the attributes that it lacks."""
        path = path if self.path is None else self.path
        index = index if self.index is None else self.index
        error = type(self)(f"{place}: {self}", path=path, index=index, option=self.option)
        if isinstance(self, OSError) and isinstance(error, OSError):
            error.errno, error.filename = self.errno, self.filename
        return error

    def __str__(self) -> str:
        # KeyError would show its message quoted, OSError would look for an errno.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> Any:
        # As an OSError it would lose its errno on the way out of another process.
        if isinstance(self, OSError):
            return _rebuild, (type(self), self.args, self.errno, self.filename), self.__dict__
        return super().__reduce__()


def _rebuild(kind: type[Any], args: tuple[Any, ...], errno: int | None, filename: Any) -> Any:
    error = kind(*args)
    error.errno, error.filename = errno, filename
    return error


class OptionError(EdcacheError, ValueError):
    """Refused argument, or combination of arguments."""


class MissingDependencyError(EdcacheError, ImportError):
    """Missing library, which only this call needs."""


class ArchiveError(EdcacheError):
    """Error of an archive as a whole: it is closed, of a newer format, or in use by another process."""


class ArchiveNotFoundError(ArchiveError, FileNotFoundError):
    """No file at the path."""


class ArchiveExistsError(ArchiveError, FileExistsError):
    """File in the way of a new archive."""


class PartialArchiveWarning(UserWarning):
    """Warning that an archive is not sealed, and that no process writes it: samples may be missing."""


class StaleArchiveError(ArchiveError, RuntimeError):
    """Another archive at the path than the one that was opened."""


class StorageError(ArchiveError, OSError):
    """Refusal of a read, a write, a sync or a lock by the operating system; errno is kept."""


class CorruptArchiveError(ArchiveError, ValueError):
    """File that is no archive, or whose bytes fail their checksum or contradict each other."""


class CorruptRecordError(CorruptArchiveError):
    """Record whose bytes fail their checksum or do not decode; others can still be read."""


class LaterReleaseError(ArchiveError):
    """Archive that needs what only a later release of edcache knows; the text names it."""

    @classmethod
    def needing(cls, what: str) -> LaterReleaseError:
        """Make the error of an archive that needs a thing, such as "the codec 'x'"."""
        return cls(f"needs {what}, which a later release of edcache wrote; upgrade edcache")


class SampleIndexError(EdcacheError, IndexError):
    """Index outside [-n, n)."""


class MissingSampleError(EdcacheError, RuntimeError):
    """Index in range that has no record yet.

    Not an IndexError: iteration over a half-filled cache must stop loudly, not early.
    """


class SourceError(EdcacheError, RuntimeError):
    """Exception of the source dataset while a sample was computed.

    It is the `__cause__`; if a worker process or a task of an executor computed, its traceback as text.
    """


class CodecError(EdcacheError, ValueError):
    """Sample that cannot become a record, or the reverse: its type is not stored, a pickle is refused."""


class ImageError(CodecError):
    """Image file that cannot be read, or bytes that do not decode to a picture."""


class LabelError(EdcacheError):
    """Label values that a sample lacks, that do not make one column, or that do not compare."""


class UnknownLabelError(LabelError, KeyError):
    """Label column that the archive does not have."""


class StaleCacheError(EdcacheError, RuntimeError):
    """Archive that another call or source made than the one that opens it."""


# Users read and import them there.
for _kind in list(vars().values()):
    if isinstance(_kind, type) and _kind.__module__ == __name__:
        _kind.__module__ = "edcache.errors"
