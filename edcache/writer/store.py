"""What a backend answers: `Store`, of the samples of a cache, and `AnyAppender`, of filling it."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from edcache import base
from edcache.format import Chain, ChunkTable, Head, Header, LabelTypes
from edcache.storage import Location, located

if TYPE_CHECKING:
    from edcache.reader import AnyReader
    from edcache.writer.chunk import Chunk

# How an archive is opened to be looked at: incomplete ones too, without a warning.
ALLOW_PARTIAL = base.ReadOptions(allow_partial=True)


class Store(Location):
    """Where one cache is or will be; nothing of it is open. A backend overrides what differs from a file.

    Attributes:
        called: what messages call a cache that is no file.
        may_lose: whether samples may be gone again although nobody deleted them.
    """

    called: ClassVar[str] = "a URL"
    may_lose: ClassVar[bool] = False

    def completed(self, described: Callable[[], Mapping[str, Any] | None]) -> Store:
        """The same, where its name says all; else with a name made of the fingerprint of what is cached."""
        return self

    def reader(self, options: base.ReadOptions) -> AnyReader:
        """What reads its samples; errors as of `Reader`, and OptionError for what only files take."""
        from edcache.reader import Reader

        return Reader(self, options)

    def found(self, options: base.ReadOptions = ALLOW_PARTIAL) -> AnyReader | None:
        """The archive that is there, open, if one is and its creator lived to write its head."""
        try:
            return self._opened(options)
        except base.ArchiveNotFoundError:
            return None

    def _opened(self, options: base.ReadOptions) -> AnyReader:
        reader = self.reader(options)
        reader.head  # noqa: B018 - it is read here
        return reader

    def check_fill(self, *, is_stream: bool, is_lazy: bool, sync: base.Sync) -> None:
        """Raise OptionError where it cannot be filled so."""

    @abstractmethod
    def appender(self, head: Head, sync: base.Sync) -> AnyAppender:
        """Open it for appending, made with `head` where nothing is there yet; as `Appender.open`."""

    def begin_anew(self, head: Head) -> bool:
        """Let the cache go at once; False where a new one is built beside it and takes its place then."""
        return False

    def check_relabelling(self) -> None:
        """Raise OptionError where label columns cannot be added or dropped once samples are written."""

    def part(self, fraction: float) -> int:
        """So much of what the cache has and may still take, in bytes; OptionError where nobody can tell."""
        raise base.OptionError(f"max_bytes={fraction!r} is a part of a disk; for {self.called} give bytes")

    # --- deleting ---

    def check_deletable(self, *, force: bool = False) -> None:
        """Raise where it cannot be deleted by its name, or is being filled and not `force`.

        What has a `naming` is a file, which is deleted as one: here is asked what is its backend's alone.
        """
        self.local_path()

    def delete(self) -> dict[str, int]:
        """Delete what is no file; gives how many things went, by what they are called, the most first."""
        raise base.OptionError(f"{self.path}: {self.called} is not deleted from here")


def store_at(path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
    """Where a cache is, by its path or URL; arguments and errors as of `storage.located`."""
    store = located(path, storage_options)
    assert isinstance(store, Store)
    return store


class _AnyLog(Protocol):
    """The entries of an archive or a cache, as far as this process has seen them."""

    @property
    def chain(self) -> Chain: ...
    def catch_up(self) -> object: ...
    def table(self, header: Header) -> ChunkTable: ...


class _AnyClaims(Protocol):
    """Who computes what; whoever ends, however it ends, lets go of its claims."""

    @property
    def can_lock(self) -> bool:
        """Whether other processes can share the work; False once the file system has refused a lock."""

    @property
    def has_fillers(self) -> bool:
        """Whether another process fills the archive; False where the system cannot tell."""

    def join_fillers(self) -> bool:
        """Let others see, until the archive is closed, that this process writes it; whether no other did."""

    def claim(self, number: int, most: int = 1) -> int:
        """Take a claim of a fill if nobody else has it, and at most so many from it on; returns how many."""

    def wait(self, number: int) -> None:
        """Take a claim, waiting until its holder publishes or dies."""

    def release(self, number: int, count: int = 1) -> None:
        """Let go of so many claims from one on."""


class AnyAppender(ABC):
    """Something open for appending by this process; any number of others may hold one on the same archive.

    Each publication first takes in what others published; nothing that was published is written again.
    """

    path: str
    head: Head
    _log: _AnyLog

    def __init__(self, log: _AnyLog, claims: _AnyClaims) -> None:
        self._pid = os.getpid()
        self._log = log
        self._claims = claims
        self._label_types: tuple[Header, LabelTypes] | None = None

    @property
    def chain(self) -> Chain:
        """The entries, as far as seen; another object after a server lost them."""
        return self._log.chain

    @property
    def claims(self) -> _AnyClaims:
        """Who computes what."""
        self.check_usable()
        return self._claims

    def catch_up(self) -> None:
        """Take in what others published since; reads headers only and takes no lock."""
        self.check_usable()
        self._log.catch_up()

    def indices_of(self, chunks: Iterable[Header]) -> npt.NDArray[np.int64]:
        """The sample indices in these chunks, in their order: int64 [n], a copy; reads their tables."""
        tables = [self._log.table(header).records.index for header in chunks]
        return np.concatenate([np.empty(0, np.int64), *(index for index in tables if index is not None)])

    def present(self, indices: Sequence[int]) -> set[int]:
        """Which of some samples that were published are there still: all of them, in a file."""
        return set(indices)

    def label_types(self) -> LabelTypes | None:
        """The types of the label columns; None where nothing is published yet."""
        if not self.chain.chunks:
            return None
        header = self.chain.chunks[-1]  # knows the types of all before it, whoever wrote them
        if self._label_types is None or self._label_types[0] != header:
            self._label_types = header, self._log.table(header).label_types
        return self._label_types[1]

    def _joined_types(self, labels: Any) -> LabelTypes:
        """The types of the columns once these labels are published; LabelTypeError where they do not fit."""
        types, known = LabelTypes.of(labels), self.label_types()
        if known is not None:
            types = known.joined(types, self.path)
        return types

    @abstractmethod
    def dictionaries(self) -> list[bytes]:
        """The compression dictionaries published so far, oldest first."""

    @abstractmethod
    def append(self, chunk: Chunk, *, restores: bool = False) -> None:
        """Publish a chunk: afterwards every reader that looks finds it, whatever becomes of this process.

        restores: of a sample that was published before and evicted by the server, only the record is
            stored again. From a file nothing is evicted.
        LabelTypeError where its label columns do not go with those of the archive. After a StorageError none
        of it was published. After any exception the same chunk may be given again: it is published once.
        """

    def amend(self, **changes: object) -> None:
        """Revise the head's `length`, and `fingerprint`; or tell of entries `lost`, samples that `failed`."""
        self._publish_amendment(json.dumps(changes, ensure_ascii=True).encode("ascii"))

    @abstractmethod
    def _publish_amendment(self, text: bytes) -> None: ...

    @abstractmethod
    def append_dictionary(self, dictionary: bytes) -> None:
        """Publish a compression dictionary, synced, since the records of every later chunk need it."""

    @abstractmethod
    def seal(self) -> None:
        """Write index, labels and zip directory behind the chain; does nothing where they are there."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it without sealing; idempotent, and nothing in a process that inherited it."""

    @abstractmethod
    def _is_closed(self) -> bool: ...

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        # In a forked child, which lost what it inherited, another error says why.
        return self._pid == os.getpid() and self._is_closed()

    def check_usable(self) -> None:
        """Raise ArchiveClosedError after close() or in a forked child."""
        if self._pid != os.getpid():
            # A child does not keep a file: every lock on it would be the parent's too.
            raise base.ArchiveClosedError(
                f"{self.path}: opened for appending by process {self._pid}, used in its child "
                f"{os.getpid()}; open it again in the child"
            )
        if self._is_closed():
            raise base.ArchiveClosedError(f"{self.path}: closed; open it again to append")
