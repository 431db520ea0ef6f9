"""What a fill needs of where it publishes, a file (`Appender`) or a server, and what all of these share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edcache.contents import Chain
from edcache.errors import ArchiveClosedError
from edcache.format import Head, Header
from edcache.labels.types import LabelTypes
from edcache.writer.chunk import Chunk


class AnyAppender(Protocol):
    """Something open for appending by this process; what each member does is said at `Appender`."""

    head: Head

    @property
    def path(self) -> str: ...
    @property
    def chain(self) -> Chain: ...
    @property
    def length(self) -> int | None: ...
    @property
    def end_index(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def catch_up(self) -> None: ...
    def indices_of(self, chunks: Iterable[Header]) -> npt.NDArray[np.int64]: ...
    def held(self, indices: Sequence[int]) -> set[int]: ...
    def label_types(self) -> LabelTypes | None: ...
    def dictionaries(self) -> list[bytes]: ...

    # Publication.
    def append(self, chunk: Chunk) -> None: ...
    def keep(self, chunk: Chunk) -> None: ...
    def append_dictionary(self, dictionary: bytes) -> None: ...
    def amend(self, **changes: object) -> None: ...
    def seal(self) -> None: ...

    # Who computes what.
    @property
    def can_lock(self) -> bool: ...
    @property
    def has_fillers(self) -> bool: ...
    def join_fillers(self) -> bool: ...
    def claim(self, number: int) -> bool: ...
    def wait_claim(self, number: int) -> None: ...
    def release(self, number: int) -> None: ...
    def close(self) -> None: ...


class Appending(ABC):
    """What every appender says by its chain, and by the process that opened it."""

    path: str

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    @abstractmethod
    def chain(self) -> Chain:
        """The entries, as far as seen."""

    @property
    def end_index(self) -> int:
        """One more than the largest sample index published so far."""
        return self.chain.end_index

    @property
    def length(self) -> int | None:
        """Samples of the dataset, where the head or an amendment says it."""
        return self.chain.length

    @property
    def end_offset(self) -> int:
        """Where the chain ends, as far as seen: bytes from the start of the file, or of what would be one."""
        return self.chain.cursor.offset

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
            raise ArchiveClosedError(
                f"{self.path}: opened for appending by process {self._pid}, used in its child "
                f"{os.getpid()}; open it again in the child"
            )
        if self.closed:
            raise ArchiveClosedError(f"{self.path}: closed; open it again to append")
