"""`Reader`: one archive to be opened: its address and options, and the session of this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from edcache import base, storage
from edcache.base import CorruptArchiveError, ReadOptions, StaleArchiveError
from edcache.codec import STORED, Decoding
from edcache.reader.digests import check_digest, no_digest, parse_digest
from edcache.reader.session import Session
from edcache.storage import ByteSource, Location, absolute, located

if TYPE_CHECKING:
    from typing_extensions import Unpack


_OLDER: Final = (
    "if a seal is lost, this is an older state, of which samples may have been deleted or numbered anew"
)


@base.takes(ReadOptions)
class Reader:
    """Handle of one archive, sealed or still growing: opens it, and opens it again as it grows.

    It reads nothing: `session`, the open state, has all that the archive has. A function takes the session once.

    Args:
        path: a path, or a URL: http, https, s3, gs, hf, or any that fsspec supports. The archive is opened at
            the first use.
        options: a ReadOptions object. Keywords override its fields.
        storage_options: for the library that reads a URL, see `edcache.CachedDataset`.
        keywords: the fields of ReadOptions.
    Attributes:
        decoding: of pictures; None is the writer's choice. as_arrays: True reads tensors as numpy arrays.
        closed: True if `close` was called.
    Raises, at the first use:
        ArchiveNotFoundError, CorruptArchiveError; ArchiveError for a newer format.
        StaleArchiveError: it was unpickled, and another archive is at the path now.
        ArchiveError: "train.zip: its sha256 is ab12..., expected cd34...; it is not the file that was
            published"; or the archive is not sealed and has no digest.
    Warns, at the first use:
        PartialArchiveWarning: the archive is not sealed, and no process of this machine writes it. Its writer
            was killed, or the file was truncated: samples may be missing. Once per process.

    Cost: opening a sealed archive reads its last 64 KiB; an unsealed one, the table of every chunk. There is no Python
    object per sample. Nothing imports torch until a sample is read.
    Safety: threads, fork, spawn, forkserver. A forked process inherits the session, which has no file position. A
    pickle has under 2 kB, and no session.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Location,
        options: ReadOptions | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **keywords: Unpack[base.ReadKeywords],
    ) -> None:
        if type(options) is not ReadOptions or keywords:
            # Without the functions of a dataset, which may be others by the time of a pickle.
            options = ReadOptions.part_of(ReadOptions.of(options, keywords, "Reader"))
        if not options.local and options.max_bytes is not None:
            raise base.OptionError(
                f"max_bytes={base.shown(options.max_bytes)}; it limits the copies in local=, give that too",
                option="max_bytes",
            )
        self.options = options
        self._folder = absolute(options.local) if options.local else None
        is_stored = isinstance(options.decode, str) and options.decode == STORED
        self.decoding = None if is_stored else Decoding.of(options.decode)
        self.as_arrays = self.closed = False
        self._where = located(path, storage_options)
        self.path, self.by_request = self._where.path, self._where.by_request
        expected = options.expected_digest
        self._digest = None if expected is None else parse_digest(expected)
        self._proven_nbytes: int | None = None
        self._skips_damage = False
        # Names the copy that the sender of a pickle reads, for this process to read too.
        self._token: Any = None
        self._uuid: bytes | None = None
        self._session: Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        session = self.session
        return self.__dict__ | {"_uuid": session.head.uuid, "_session": None, "_token": session.file.token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._token is not None:
            # A copy may go when no process has it open, and the sender may close it soon.
            self.open()

    def __repr__(self) -> str:
        return f"Reader({self.path!r})"

    # --- opening ---

    @property
    def session(self) -> Session:
        """Session of this process, opened at the first use. A refresh replaces it."""
        session = self._session
        return self.open() if session is None or self.closed else session

    def open(self) -> Session:
        """Open the archive in this process, unless it is open; errors and warnings as of the class.

        Raises also: ArchiveError if it was closed.
        """
        # Two threads may both open it, and either session serves. A lock could stay taken after a fork.
        session, tries_again = self._session, self.by_request
        while session is None or self.closed:
            if self.closed:
                raise base.ArchiveError(f"{self.path}: closed; open it again to read", path=self.path)
            try:
                session = self._open_session()
            except StaleArchiveError:  # the object was replaced amid reading: once more
                if not tries_again:
                    raise
                tries_again = False
            else:
                self._keep(session)
        return session

    def _open_session(self) -> Session:
        file = self._file()
        with base.on_error(file.close):
            digest = self._digest
            if digest is not None:
                # Once for this reader and for its copies in other processes.
                if self._proven_nbytes is None:
                    self._proven_nbytes = check_digest(file, digest)
                if file.size() != self._proven_nbytes:
                    sizes = f"{file.size():,} bytes, {self._proven_nbytes:,}"
                    raise self._stale_error(f"{sizes} when its digest was checked")
            session = self._session_of(file)
            if digest is not None and not session.sealed:
                raise no_digest(self.path)
            if self._uuid not in (None, session.head.uuid):
                raise self._stale_error("another archive is here now than the one that was opened")
            if self._uuid is None and not self.options.allow_partial:
                _warn_of(session)
            self._uuid = session.head.uuid
        return session

    def _file(self) -> ByteSource:
        # An unpickled reader opens the same copy as its sender, even if the file has changed since.
        options = self.options
        if self._folder is not None:
            limits = {"folder": self._folder, "max_bytes": options.max_bytes}
            return storage.open_copy("local", self._where, self._token, **limits)
        if options.preload is not None:
            return storage.open_copy(options.preload, self._where, self._token)
        return self._where.open()

    def _session_of(self, file: ByteSource, before: Session | None = None) -> Session:
        options = self.options
        how = options.verify, options.allow_pickle, self.decoding, self.as_arrays
        session = Session(file, *how, before=before, skips_damage=self._skips_damage)
        if file.is_copy and not session.sealed:
            raise CorruptArchiveError(
                f'{self.path}: its end is damaged; run "edcache verify {self.path}"', path=self.path
            )
        return session

    def _keep(self, session: Session) -> None:
        """Use `session` from now on, unless another thread has closed the reader."""
        self._session = session
        if self.closed:
            self.close()
            session.file.close()

    def refresh(self, in_order: bool = False) -> bool:
        """Open later additions to the file, or an archive saved over it; return True if anything changed.

        Arrays and samples that were returned before stay valid. The samples of a copy (`local=`) do not change; a copy
        that is nearly complete is completed, and mapped from then on.

        in_order: True refuses samples with keys that have other numbers now.
        Raises:
            StaleArchiveError: another archive is at the path now, or the file changed and was opened
                with an expected_digest; see in_order. The state before stays open.
        Warns: as `open_or_salvage`, of an archive that it opened.
        """
        before = self.session
        is_copy = before.file.is_copy
        if is_copy and not before.file.by_request:
            return False
        file = before.file.reopened()
        with base.on_error(file.close):
            is_newer = not file.by_request if is_copy else before.is_outdated_by(file)
            if is_newer and self._digest is not None:
                raise self._stale_error("the file has changed since its digest was checked")
            if is_newer:
                session = self._session_of(file, before)
                if in_order and session.origin.keys_digest != before.origin.keys_digest:
                    raise self._stale_error("another process has put its samples into another order")
                self._keep(session)
                _warn_of_damage(session)
            else:
                file.close()
        return is_newer and not is_copy

    def open_or_salvage(self) -> None:
        """Open the archive; a damaged one without its damaged parts, as `Session` says.

        Raises: as `open`; CorruptArchiveError, nothing can be read.
        Warns: PartialArchiveWarning, which state of it is read.
        """
        with suppress(CorruptArchiveError):
            self.open()
            return
        self.close()
        self.closed, self._skips_damage = False, True
        _warn_of_damage(self.open())

    def skipping_damage(self) -> Reader:
        """Copy the reader; the copy reads the same state of the archive without its damaged parts."""
        other = object.__new__(Reader)
        vars(other).update(vars(self), _skips_damage=True, _session=self.session.skipping_damage())
        return other

    def close(self) -> None:
        """Close the archive. Arrays that were returned before stay valid. A second call does nothing."""
        self.closed = True
        session, self._session = self._session, None
        if session is not None:
            session.file.close()

    def _stale_error(self, why: str) -> StaleArchiveError:
        return StaleArchiveError(f"{self.path}: {why}; open it again", path=self.path)


def _warn_of_damage(session: Session) -> None:
    """Warn of a damaged archive, with the state that is read in spite of it."""
    if session.damage is not None:
        count = f"{session.index.present:,} of {session.length:,} samples"
        base.warn(f"{session.path}: {session.damage}: {count}; {_OLDER}", base.PartialArchiveWarning)


def _warn_of(session: Session) -> None:
    """Warn once of an archive that is damaged, or not sealed and without a writer, but of no KeyedCache.

    That is seldom sealed, and lacks nothing: each call stores its values.
    """
    is_whole = session.sealed or session.head.takes_values or session.has_writer
    if is_whole and not (session.damaged and not session.sealed):
        return
    state = session.path, *session.file.tag()
    base.warn(_partial_text(session), base.PartialArchiveWarning, once=state)


def _partial_text(session: Session) -> str:
    """Compose the warning of an archive that is not sealed, with its remedies and a line for each bad chunk."""
    where, present, length = session.path, session.index.present, session.declared_length
    failed = sum(not one.final for one in session.index.failures)
    if failed and not session.damaged and present + len(session.index.failures) == length:
        return (
            f"{where}: not sealed: {failed:,} of {length:,} samples failed when they were made (see "
            '`errors`). Fill it again, which tries them again; on_error="skip_final" seals without them; '
            "or take it as it is: allow_partial=True"
        )
    count = f"{present:,} samples" if length is None else f"{present:,} of {length:,} samples"
    return "\n".join(
        [
            f"{where}: not sealed: its writer was killed or is still at work, or the file was cut; {count} are "
            'there. Fill it again: CachedDataset(source, path), or CacheWriter(path, "a"); or keep what is there in a '
            f'sealed archive: "edcache copy {where} -o NEW --skip-damaged"; or take it as it is: allow_partial=True',
            *session.damaged,
        ]
    )
