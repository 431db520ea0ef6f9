"""Every exception that edcache raises on purpose: one tree, each also a builtin where one fits.

Each class is constructed from one message, so that an exception survives the trip out of a
DataLoader worker (torch rebuilds it as `type(message)`, without its attributes). PartialArchiveWarning is a
warning. `help(edcache.errors)` draws the tree.
"""

from __future__ import annotations

from typing import Any


class EdcacheError(Exception):
    """Base of every error that edcache raises on purpose.

    Attributes:
        path: the file or the URL that it is about; None if there is none, or several.
        index: the index of the sample that it is about, or None.
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
            return _rebuilt, (type(self), self.args, self.errno, self.filename), self.__dict__
        return super().__reduce__()


def _rebuilt(kind: type[Any], args: tuple[Any, ...], errno: int | None, filename: Any) -> Any:
    error = kind(*args)
    error.errno, error.filename = errno, filename
    return error


class OptionError(EdcacheError, ValueError):
    """An argument, or a combination of arguments, that edcache does not accept."""


class MissingDependencyError(EdcacheError, ImportError):
    """A library that only this call needs is not installed."""


class ArchiveError(EdcacheError):
    """An archive as a whole: it is closed, of a newer format, or in use by another process."""


class ArchiveNotFoundError(ArchiveError, FileNotFoundError):
    """No file at the path."""


class ArchiveExistsError(ArchiveError, FileExistsError):
    """A file is in the way of a new archive."""


class PartialArchiveWarning(UserWarning):
    """An opened archive is not sealed, and no process writes it: samples may be missing."""


class StaleArchiveError(ArchiveError, RuntimeError):
    """The path leads to another archive than the one that was opened."""


class StorageError(ArchiveError, OSError):
    """The operating system refused a read, a write, a sync or a lock; errno is kept."""


class CorruptArchiveError(ArchiveError, ValueError):
    """The file is no archive, or bytes of it fail their checksum or contradict each other."""


class CorruptRecordError(CorruptArchiveError):
    """The bytes of one record fail their checksum or do not decode; other records still read."""


class SampleIndexError(EdcacheError, IndexError):
    """An index outside [-n, n)."""


class MissingSampleError(EdcacheError, RuntimeError):
    """An index in range that has no record yet.

    Not an IndexError: iteration over a half-filled cache must stop loudly, not early.
    """


class SourceError(EdcacheError, RuntimeError):
    """The source dataset raised while a sample was computed.

    `__cause__` is its exception; of a worker process, or of a task of an executor, its traceback as text.
    """


class CodecError(EdcacheError, ValueError):
    """A sample that cannot become a record, or the reverse: its type is not stored, a pickle is refused."""


class ImageError(CodecError):
    """An image file that cannot be read, or bytes that do not decode to a picture."""


class LabelError(EdcacheError):
    """Label values that a sample lacks, that do not make one column, or that do not compare."""


class UnknownLabelError(LabelError, KeyError):
    """A label column that the archive does not hold."""


class StaleCacheError(EdcacheError, RuntimeError):
    """The archive was made by another call or source than the one that wants to read it."""


# Users read and import them there.
for _kind in list(vars().values()):
    if isinstance(_kind, type) and _kind.__module__ == __name__:
        _kind.__module__ = "edcache.errors"
