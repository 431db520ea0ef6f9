"""Caches that are files of a file system."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from edcache import base, format, identity, storage, writer
from edcache.backends.proof import NewCopy, prove
from edcache.base import CorruptArchiveError, OptionError, ReadOptions, StorageError, Sync
from edcache.format import Head
from edcache.storage import ByteSource, File, absolute
from edcache.writer import ALLOW_PARTIAL, Store

if TYPE_CHECKING:
    from edcache.reader import Reader
    from edcache.writer import Appender

_PIECE_NBYTES: Final = 1 << 24


class FileStore(Store):
    """A path, or a "file://" URL of one.

    Attributes: gives_way: True if an archive without a sample, which no process writes, is begun again for other heads.
    """

    gives_way = True

    def __init__(self, text: str, storage_options: Mapping[str, Any] | None = None) -> None:
        if storage_options:
            raise OptionError(f"{text}: storage_options are for URLs, and this is a path")
        is_url = text.lower().startswith("file://")
        self.path = absolute(unquote(urlsplit(text).path) if is_url else text)

    def local_path(self) -> str:
        return self.path

    def open(self) -> ByteSource:
        """See the base class; what may be cleared away by others stays while it is open."""
        file = File.open(self.path, "r")
        with base.on_error(file.close):
            if storage.exists(file.absolute + writer.SIDE):  # a copy of an archive far away
                file.share(writer.LOCK_USE)
                writer.note_use(file.path)
        return file

    def found(self, options: ReadOptions = ALLOW_PARTIAL) -> Reader | None:
        """See the base class; what a power cut left of an archive that was never synced is cut off first."""
        from edcache.writer import never_created, recover

        try:
            reader = super().found(options)
            if reader is not None and not reader.session.is_durable:
                reader.close()
                recover(self.path)
                reader = super().found(options)
        except CorruptArchiveError as error:
            if never_created(self.path):
                return None
            try:
                recover(self.path)
            except StorageError:
                # Nothing can be written here: what does not read is what there is to say.
                raise error from None
            # Where its creator wrote the head meanwhile, it opens now (test_stream.py, test_a_killed_one_*).
            reader = super().found(options)
        if reader is None or not reader.session.is_abandoned:
            return reader
        reader.close()
        return None

    def appender(self, head: Head, sync: Sync) -> Appender:
        from edcache.writer import Appender

        def differs(there: Head) -> bool:
            """True if the head of an archive says something else than the one that it is to have."""
            fingerprint = there.fingerprint
            if fingerprint is not None and head.fingerprint is not None:
                # Each process has found out for itself how long the first sample takes, and what it changes.
                is_alike = identity.are_alike(fingerprint, head.fingerprint)
                fingerprint = head.fingerprint if is_alike else fingerprint
            same = replace(there, uuid=head.uuid, claim_size=head.claim_size, fingerprint=fingerprint)
            return format.pack_head(same) != format.pack_head(head)

        begins_anew = differs if self.gives_way else None
        return Appender.open(self.path, head, mode="a", sync=sync, begins_anew=begins_anew)

    def part(self, fraction: float) -> int:
        there = 0
        with suppress(OSError):  # its last holder may delete one in memory at any time
            there = os.path.getsize(self.path)
        return int(fraction * (storage.free(self.path) + there))


def copy_bytes(source: ByteSource, file: File) -> None:
    """Write all that a source has now into a file, and prove it if an answer may be wrong."""
    nbytes = source.size()
    for offset in range(0, nbytes, _PIECE_NBYTES):
        file.pwrite(offset, source.read_many([(offset, min(_PIECE_NBYTES, nbytes - offset))])[0])
    if source.tries > 1:
        with closing(NewCopy(file.absolute, source)) as made:
            found = format.read_root(source.pread, nbytes, source.path)
            prove(made, source.path, None if found is None else found[0].head.uuid)
