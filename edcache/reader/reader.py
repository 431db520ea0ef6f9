"""The reader of a file, or of what is behind a URL: a path, a uuid and a few options."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edcache import storage
from edcache.base import (
    CorruptArchiveError,
    NotAnArchiveError,
    OptionError,
    PartialArchiveWarning,
    ReadKeywords,
    ReadOptions,
    StaleArchiveError,
    takes,
)
from edcache.reader.base import AnyReader
from edcache.reader.digests import check_digest, no_digest, parse_digest
from edcache.reader.file import FileSession
from edcache.storage import ByteSource, Location, absolute, located

if TYPE_CHECKING:
    from typing_extensions import Unpack

# States of archives of which this process has warned.
_warned: set[tuple[object, ...]] = set()


@takes(ReadOptions)
class Reader(AnyReader):
    """Random access to the samples of one archive, sealed or still growing.

    Args:
        path: the archive, or its URL: http, https, s3, gs, hf, whatever fsspec knows. Nothing is opened
            before the first use.
        options: as an object; keywords stand in place of some.
        storage_options: for the engine that reads a URL, see `edcache.CachedDataset`.
        keywords: these options.
    Raises, at the first use:
        ArchiveNotFoundError, NotAnArchiveError, FormatVersionError, CorruptArchiveError.
        StaleArchiveError: unpickled in a process where the path leads to another archive.
        DigestError: "train.zip: its sha256 is ab12..., expected cd34...; it is not the file that was
            published"; or it is not sealed, so that it has none.
    Warns, at the first use:
        PartialArchiveWarning: it is not sealed, and no process of this machine writes it: its writer was
            killed, or the file was cut, so that nobody knows how many samples there were. Once a process.

    Cost: a sealed archive opens in the time to checksum its index (26 bytes a sample), whatever
    its size; an unsealed one reads the table of every chunk. No object per sample is made.
    Safety: threads, fork, spawn, forkserver. A pickle has under 2 kB whatever the archive's size.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Location,
        options: ReadOptions | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **keywords: Unpack[ReadKeywords],
    ) -> None:
        options = ReadOptions.of(options, keywords, "Reader")
        if options.local is None and options.max_bytes is not None:
            raise OptionError(
                f"max_bytes={options.max_bytes!r}; it is for the copies in local=, which was not given"
            )
        super().__init__(options.allow_pickle, options.decode)
        self._where = located(path, storage_options)
        self.path, self.by_request = self._where.path, self._where.by_request
        if options.preload and self._where.is_volatile:
            raise OptionError(f"{self.path}: in memory already; leave preload out")
        self.preload = options.preload
        if options.local is not None:
            storage.check_outlives(options.local)
        self.local = None if options.local is None else absolute(options.local)
        self._max_bytes: Any = options.max_bytes
        self.verify = options.verify
        self.allow_partial = options.allow_partial
        self.io = options.io
        expected = options.expected_digest
        self._expected_digest = None if expected is None else parse_digest(expected)
        self.has_digest = expected is not None
        self._proven_nbytes: int | None = None
        # Of the copy that is read, where another process opened it.
        self._token: Any = None

    def __getstate__(self) -> dict[str, Any]:
        session = self.session
        assert isinstance(session, FileSession)
        return super().__getstate__() | {"_token": session.file.token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.preload or self._where.is_volatile:
            # In memory it is there while somebody has it open, which whoever sent this may cease to.
            self.head  # noqa: B018

    def refresh(self) -> bool:
        """Look again at a file that may have grown; says whether anything changed.

        Arrays and samples handed out before stay what they were.

        Where the archive was compacted meanwhile, the new file is opened. With `local=` the
        samples stay those of the copy, and another state of the archive takes opening it again; but where
        nearly all of the copy is here by now, it is made whole, and mapped from here on.

        Raises:
            StaleArchiveError: the path now leads to another archive; or the file changed and was opened
                with an expected_digest.
        """
        before = self.session
        assert isinstance(before, FileSession)
        if self.local is not None:
            self._keep(self._whole(before) or before)
            return False
        newer = before.look_again()
        if newer is None:
            return False
        if self._expected_digest is not None:
            newer.close()
            raise StaleArchiveError(
                f"{self.path}: the file has changed since its digest was checked; open it again"
            )
        self._keep(newer.settled())
        return True

    def _open(self) -> FileSession:
        try:
            return self._opened()
        except (CorruptArchiveError, NotAnArchiveError, StaleArchiveError):
            # Over a network it may have been the way, or it was replaced just then.
            if not self.by_request or self.local is not None:
                raise
        return self._opened()

    def _opened(self) -> FileSession:
        file = self._source()
        try:
            if self._expected_digest is not None:
                self._prove(file, self._expected_digest)
            session = self._session_with(file).settled()
            if self._expected_digest is not None and not session.sealed:
                raise no_digest(self.path)
            self._check_uuid(session)
            if self._uuid is None and not self.allow_partial:
                _warn_of(session)
        except BaseException:
            file.close()
            raise
        return session

    def _source(self) -> ByteSource:
        # A process that got this by pickle reads what its sender reads, though the file may have changed.
        if self.local is not None:
            options = {"folder": self.local, "max_bytes": self._max_bytes}
            return storage.open_copy("local", self._where, self._token, **options)
        if self.preload is not None:
            return storage.open_copy(self.preload, self._where, self._token)
        return self._where.open()

    def _session_with(self, file: ByteSource) -> FileSession:
        def look() -> FileSession:
            return FileSession(file, self.io, self.verify, self.allow_pickle, self.decoding)

        # A copy that lost in a power cut what it had: fetched again, it may make sense.
        try:
            session = look()
            if not session.sealed and file.mend_opening():  # only a sealed archive is copied
                session = look()
        except (CorruptArchiveError, NotAnArchiveError):
            if not file.mend_opening():
                raise
            session = look()
        file.accept()
        # Only who opened the copy makes it whole.
        whole = self._whole(session) if self._token is None else None
        if whole is None:
            return session
        file.close()
        return whole

    def _whole(self, session: FileSession) -> FileSession | None:
        """A session with the copy where nearly all of it is here by now; else None."""
        file = session.file
        whole = file.finish(*session.record_extents()) if file.is_partial else None
        return None if whole is None else self._session_with(whole)

    def _prove(self, file: ByteSource, expected: str) -> None:
        """Hash the file, once for this reader and all its copies in other processes."""
        if self._proven_nbytes is None:
            self._proven_nbytes = check_digest(file, expected)
        if file.size() != self._proven_nbytes:
            raise StaleArchiveError(
                f"{self.path}: {file.size():,} bytes, {self._proven_nbytes:,} when its digest was checked; "
                "open it again"
            )


def _warn_of(session: FileSession) -> None:
    """Warn of an archive that is not sealed and that nobody writes, once; and of one that is damaged."""
    if session.sealed or (session.has_writer and not session.damaged):
        return
    state = session.path, *session.file.tag()
    if state not in _warned:
        warnings.warn(session.partial_text(), PartialArchiveWarning, stacklevel=2)
        _warned.add(state)
