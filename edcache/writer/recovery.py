"""Recovery: files without a sample, of a creator that died within the head or of a first fill that failed; power cuts.

A file without a sample is begun again. Behind the last entry of a chain stands a torn tail, which the next writer cuts
off: of a killed writer it has no sample (format/tail.py). A power cut may take a header, and leave whole chunks behind
it; and it may take records of a chunk, or the end of the file. The sound records of all of these are appended again,
and a note names the entries that are lost. Before a cut, these bytes and the head are copied to a file beside, at the
same offsets. A second crash then loses nothing, and `edcache copy --skip-damaged` reads its samples too.

What must never happen: that an entry which stands in its place is cut off, or a file with one is begun again, unless
its bytes are beside.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

import numpy as np

from edcache import base, codec, format, storage
from edcache.base import (
    ArchiveNotFoundError,
    CorruptArchiveError,
    Ints,
    LaterReleaseError,
    OptionError,
    PartialArchiveWarning,
)
from edcache.format import HEAD_NAME, PAGE, Chain, Head, Header, PRead
from edcache.storage import File
from edcache.writer.chunk import Chunk

_HEAD_PREFIX: Final = format.pack_head(Head(bytes(16)))[: 30 + len(HEAD_NAME)]
_SECTOR: Final = 512
_COPIED_NBYTES: Final = 1 << 24
_CONSTANT: Final = [*range(14), *range(18, len(_HEAD_PREFIX))]  # the rest is a crc32
_IN_HEAD: Final = bytes([0, *b"\n", *range(0x20, 0x7F)])
"""Bytes of the JSON of a head, or of a head whose sectors a power cut took. Each entry has others, and each table."""


def check_writable(chain: Chain) -> None:
    """Raise LaterReleaseError if an archive has what a writer must know and only a later release knows."""
    format.check_writable(chain.writes, chain.where)
    check_compression(chain.head, chain.where)


def check_compression(head: Head, where: str) -> None:
    """Raise LaterReleaseError if new records of an archive are compressed in a way that this release does not know."""
    try:
        codec.compressor(head.compression)
    except OptionError:
        what = f"the compression {str(head.compression)[:80]!r} for writing"
        raise LaterReleaseError.needing(what).within(where, where) from None


def check_seal(chain: Chain, pread: PRead) -> None:
    """Compare with their crc32s the entries that the last root names and the next seal reads.

    Cost: reads 24 bytes a sample, the label columns and the keys. Raises: CorruptArchiveError.
    """
    for entry in [] if chain.root is None else chain.listed(chain.root):
        is_read = entry.kind in (format.INDEX, format.COLUMN, format.KEYS)
        if is_read and format.stored_crc32(pread, entry.payload) != entry.crc32:
            raise CorruptArchiveError(
                f"{chain.where}: {entry.name} at offset {entry.payload_offset:,} fails its crc32, and the next seal "
                f'needs it; "edcache copy {chain.where} -o NEW --skip-damaged" keeps what is sound',
                path=chain.where,
            )


def discard_abandoned(path: str, begins_anew: Callable[[Head], bool]) -> None:
    """Delete the archive of a first fill that failed before its first sample, if no process writes it.

    It is deleted, not emptied: a process that has it open sees that its file has no name any more.

    begins_anew: called with its head; True lets it go.
    """
    with suppress(ArchiveNotFoundError):
        with closing(File.open(path, "r")) as file:
            if not _is_abandoned(file, begins_anew):
                return
        with closing(File.open(path, "r+")) as file, file.locked(format.LOCK_APPEND):
            if file.is_named() and _is_abandoned(file, begins_anew):
                storage.remove(path)


def _is_abandoned(file: File, begins_anew: Callable[[Head], bool]) -> bool:
    try:
        head, head_header = format.read_head(file.pread, file.path)
    except CorruptArchiveError:
        return False  # opening it says so
    if not begins_anew(head) or file.is_locked(format.LOCK_FILLER, format.FILLERS):
        return False
    chain = Chain(head, head_header, file.path)
    chain.extend(file.pread, file.size())
    # One that has grown is as long as its notes say (tests/kit/model.py).
    if not chain.holds_nothing or not begins_anew(replace(head, length=chain.length)):
        return False
    check_writable(chain)
    return not _may_hold_samples(file, chain)


def _may_hold_samples(file: File, chain: Chain) -> bool:
    """True if a chunk with a damaged header, or what a power cut left, stands behind a chain, or beside the file.

    A torn tail has no sample. It must not count: the next open, which finds it cut off, would say something else.
    """
    if storage.exists(file.absolute + storage.RECOVERY) or _holds_entries(file, chain):
        return True
    is_fresh = storage.is_fresh(file)
    return format.find_damage(chain, file.pread, file.next_data, file.size(), is_fresh) is not None


def never_created(path: str) -> bool:
    """True if a path holds at most the file of a creator that died within the head."""
    with closing(File.open(path, "r")) as file:
        return lacks_head(file)


def lacks_head(file: File, head: Head | None = None) -> bool:
    """True if a file has no whole head, and may be begun again: its creator died before it had written one.

    A kill leaves the first bytes of a head; after a power cut any sectors of it may be zeros, or as the disk was.
    Nothing in such a file can be a sample: behind the header of a head, which says how long it is, stands no entry;
    without that header there are zeros and text alone. Any other file is not touched.

    Args:
        head: the one that would be written: a file of zeros that is longer is somebody else's too.
    """
    size = file.size()
    if size > format.MAX_HEAD_NBYTES:
        return False
    data = file.pread(0, size)
    header = format.parse_header(data[: format.MAX_HEADER_NBYTES])
    if header is None:
        most = format.MAX_HEAD_NBYTES if head is None else len(format.pack_head(head))
        return size <= most and _is_torn_head(data)
    is_head = (header.kind, header.number, header.offset, header.is_later) == (format.HEAD, 0, 0, False)
    if not is_head or size > header.next or format.stored_crc32(file.pread, header.payload) == header.crc32:
        return False
    entries = format.later_headers(file.pread, file.next_data, header.payload_offset, size)
    return next(entries, None) is None


def _is_torn_head(data: bytes) -> bool:
    """True if the begin of a head, or zeros in its place, stand before bytes that a head may have."""
    is_blank = not data[format.header_nbytes(HEAD_NAME) :].translate(None, _IN_HEAD)
    if data[:_SECTOR].strip(b"\0"):
        begins = all(data[i] == _HEAD_PREFIX[i] for i in _CONSTANT if i < len(data))
        return begins and (is_blank or len(data) <= PAGE)  # no entry begins in the first page
    return is_blank and (not data.strip(b"\0") or len(data) % PAGE == 0)


def recovered(file: File, header: Header, newer: Ints) -> list[Chunk]:
    """Make a chunk of the sound records of a damaged chunk; none if no record is sound.

    newer: samples that whole chunks behind it have, and override.
    """
    sound = format.find_sound(file.pread, header, file.path)
    if sound is None:
        return []
    table = format.read_table(file.pread, header, file.path)
    sound &= ~np.isin(table.samples, newer)
    if not sound.any():
        return []
    return [Chunk.stored(file, header, table).only(sound)]


class Aside:
    """File beside an archive that is recovered, with the bytes that are cut off.

    It is made before the archive changes, and its head is written last. While it is there every process that opens the
    archive recovers it, by the same steps; with a head it has all that was cut off.

    Attributes: chunks: of the sound records in it. notes: that it has.
    """

    def __init__(self, file: File, uuid: bytes) -> None:
        self._file = file
        found = format.later_headers(file.pread, file.next_data, format.PAGE, file.size(), uuid)
        headers = [one for at, one in found if at == one.offset]
        first_root = min((one.number for one in headers if one.kind == format.ROOT), default=math.inf)
        plain = [one for one in headers if one.kind in format.ALONE and one.number < first_root]
        # A root may name records that no chunk names any more.
        self._is_all = plain == headers and format.read_root(file.pread, file.size(), file.path) is None
        chunks = [one for one in plain if one.kind != format.NOTE]
        self.chunks = [chunk for header in chunks for chunk in recovered(file, header, np.empty(0, np.int64))]
        self.notes = [
            base.loads(file.pread(one.payload_offset, one.nbytes))
            for one in plain
            if one.kind == format.NOTE and format.stored_crc32(file.pread, one.payload) == one.crc32
        ]

    @classmethod
    def begin(cls, archive: File, chain: Chain, is_needed: bool) -> Aside | None:
        """Copy the bytes behind the end of a chain before they are cut off, or take the copy of an earlier recovery.

        is_needed: True copies them though no sample stands among them.
        Returns: None if nothing is copied. A file that is there without a whole head is then deleted: it is of another
            archive, or of a recovery that died before it changed this one.
        """
        path, uuid = archive.absolute + storage.RECOVERY, chain.head.uuid
        is_there, is_needed = storage.exists(path), is_needed or _holds_entries(archive, chain)
        if not is_there and not is_needed:
            return None
        file = File.open(path, "a")
        with base.on_error(file.close):
            is_whole = _uuid_of(file) == uuid
            if not is_whole and is_needed:
                file.truncate(0)
                _copy(archive, file, chain.end, archive.size())
                file.sync()
                _copy(archive, file, 0, chain.first.offset)
                file.sync()
                storage.sync_directory(os.path.dirname(path))
            if is_whole or is_needed:
                return cls(file, uuid)
        file.close()
        storage.remove(path)
        return None

    def close(self) -> None:
        """Close the file, which stays unless `end` was called."""
        self._file.close()

    def end(self, archive: File) -> None:
        """Delete the file, since the archive has its samples again. The archive is synced before, with every `sync=`.

        If a seal was cut off too, the file may have records that only that seal names. Then it gets another name, with
        a warning. It never keeps its name: after another power cut its samples would be appended behind newer ones.
        """
        archive.sync()
        size = self._file.size()
        if format.read_root(self._file.pread, size, self._file.path) is not None:
            # So that it is read by its entries: of the index of that seal rows may be lost.
            self._file.truncate(size - format.END_NBYTES)
            self._file.sync()
        self._file.close()
        if self._is_all:
            storage.remove(self._file.path)
            storage.sync_directory(os.path.dirname(self._file.path))
            return
        kept = _free_name(f"{self._file.path}-kept")
        storage.replace(self._file.path, kept)
        base.warn(
            f"{kept}: entries of a seal that a power cut took are kept here: "
            f'"edcache copy {kept} -o NEW --skip-damaged" reads them',
            PartialArchiveWarning,
        )


def _uuid_of(file: File) -> bytes | None:
    """Read the uuid of a file; None if it has no whole head."""
    try:
        return format.read_head(file.pread, file.path)[0].uuid
    except CorruptArchiveError:
        return None


def _holds_entries(file: File, chain: Chain) -> bool:
    """True if an entry follows the end of a chain in its place, or a seal.

    Of an entry that the file does not hold whole, records may be sound.
    """
    size = file.size()
    later = format.later_headers(file.pread, file.next_data, chain.end, size, chain.head.uuid)
    sealed = format.read_root(file.pread, size, file.path)
    is_sealed = sealed is not None and sealed[1].offset > chain.end
    return is_sealed or any(at == header.offset for at, header in later)


def _copy(source: File, target: File, start: int, stop: int) -> None:
    for at in range(start, stop, _COPIED_NBYTES):
        target.pwrite(at, source.pread(at, min(_COPIED_NBYTES, stop - at)))


def _free_name(path: str) -> str:
    names = itertools.chain([path], (f"{path}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not storage.exists(name))
