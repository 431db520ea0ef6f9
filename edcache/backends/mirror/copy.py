"""Whole copies: made beside the place where they belong, and there in one step once they are proven."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from edcache import base, format, storage, writer
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.evict import check_space, limit_of, make_room
from edcache.backends.mirror.fetch import Fetch
from edcache.backends.mirror.sidecar import Note, Side, Version, stamp_of
from edcache.base import ArchiveExistsError, DigestError, NotAnArchiveError, OptionError, Show, byte_progress
from edcache.reader import OnProgress, check_digest, parse_digest
from edcache.storage import ByteSource, File, Location, local_path, located, shown
from edcache.writer import PARTIAL, SIDE, note_use

logger = logging.getLogger("edcache")

THREADS: Final = 8
# What a replacement that was killed leaves is no archive to copy, and what belongs to a copy is made anew.
_PASSED_OVER: Final = (writer.SUFFIX, PARTIAL, SIDE)


class Copied(NamedTuple):
    """What a call copied: `path` of the copy or the folder; bytes of all, and those that were fetched."""

    path: str
    archives: int
    nbytes: int
    fetched: int


def copy_to_local(
    src: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    num_threads: int = THREADS,
    expected_digest: str | None = None,
    max_bytes: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Show = None,
) -> str:
    """Copy a remote, sealed archive, or a folder of them, to a disk of this machine, once for all processes.

    Args:
        src: the path or URL of the archive; or a folder, of which all archives are copied, also those in
            folders below it.
        target: the folder for the copies, which is created if it does not exist; or the path of the copy,
            if it has the same ending as `src`.
        num_threads: the number of reads at the same time.
        expected_digest: "sha256:...", as `edcache.digest` returned it for the archive; for one archive only.
        max_bytes: a limit for all copies in the folder together, as a number or as "200GB". Copies that no
            process has open are deleted to make room, the least recently used first. Other archives are never
            deleted.
        storage_options: options for the library that reads a URL, see `edcache.reader.Reader`.
        progress: True shows a bar, False nothing. By default a terminal and a notebook show a bar, and pipes
            and log files get a line now and then. A function is called with (bytes copied, bytes in all)
            instead.
    Returns:
        The path of the copy, which opens as any archive; or the folder.
    Raises:
        ArchiveNotFoundError, NotAnArchiveError, FormatVersionError.
        OptionError: "far/train.zip: it is not sealed, so it may still grow; ...".
        CorruptArchiveError: bytes of the remote archive failed their crc32 twice.
        ArchiveExistsError: "ssd/train.zip: exists already, and is not as it was copied from ...".
        DigestError: the remote archive is not the one with this digest; no copy is left.
        StorageError: there is too little space, which is checked first; or the system refused.

    The copy gets its name after all crc32s were compared and it is on the disk. The next call continues the
    copy of a killed process: it compares the bytes that are there with the crc32s, and fetches the rest. If
    several processes call it at the same time, one copies and the others wait. If the remote archive has
    changed (size, time or inode), a new copy is made, from the old copy where nothing changed. Open readers
    keep the old copy.
    Cost: reads the remote archive once, and writes as much. If the copy is there: one look at each file.
    """
    with byte_progress("copying", os.path.basename(shown(src)), progress) as tell:
        copied = copy_local(src, target, num_threads, expected_digest, max_bytes, storage_options, tell)
    return copied.path


def copy_local(
    src: str | os.PathLike[str],
    target: str | os.PathLike[str],
    num_threads: int = THREADS,
    expected_digest: str | None = None,
    max_bytes: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> Copied:
    """What `copy_to_local` does; says what was copied."""
    expected = None if expected_digest is None else parse_digest(expected_digest)
    base.check_count("num_threads", num_threads)
    limit = limit_of(max_bytes)
    source, target = located(src, storage_options), local_path(target)
    if not source.by_request and os.path.isdir(source.path):
        if expected is not None:
            raise OptionError(f"{source.path}: a folder; expected_digest= is that of one archive")
        return _copy_folder(source.path, target, num_threads, limit, on_progress)
    is_folder = os.path.isdir(target) or target.endswith(os.sep)
    if is_folder or not target.endswith(os.path.splitext(source.path)[1]):
        target = os.path.join(target, os.path.basename(source.path))
    copying = Copying(target, os.path.dirname(target), num_threads, limit, [target])
    nbytes, fetched = copying.copy(source, expected, on_progress)
    return Copied(target, 1, nbytes, fetched)


def _copy_folder(
    source: str, target: str, threads: int, limit: int | None, on_progress: OnProgress | None
) -> Copied:
    copies = {path: os.path.join(target, os.path.relpath(path, source)) for path in _archives_below(source)}
    if not copies:
        raise OptionError(f"{source}: no archives in this folder; name one that holds some")
    sizes = [storage.stamp(path)[0] for path in copies]
    total, before, fetched = sum(sizes), 0, 0
    if limit is not None and total > limit:
        raise OptionError(f"{source}: {total:,} bytes of archives, max_bytes= allows {limit:,}; allow more")
    for (path, copy), size in zip(copies.items(), sizes, strict=True):

        def advance(done: int, nbytes: int, before: int = before) -> None:
            if on_progress is not None:
                on_progress(before + done, total)

        copying = Copying(copy, target, threads, limit, copies.values())
        fetched += copying.copy(located(path), None, advance)[1]
        before += size
    return Copied(target, len(copies), total, fetched)


def _archives_below(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            if name.endswith(_PASSED_OVER) or not os.path.isfile(path):
                continue
            with suppress(NotAnArchiveError):
                with closing(File.open(path, "r")) as file:
                    format.read_head(file.pread, path)
                yield path


def current(copy: str, identity: tuple[str, ...]) -> Version | None:
    """The version that a whole copy is of, where that is the state of the origin with this identity."""
    stamp = stamp_of(copy)
    note = None if stamp is None else sidecar.note_of(copy)
    version = None if note is None else note.version_of(stamp)
    return version if version is not None and version.identity == identity else None


@dataclass(frozen=True)
class Copying:
    """Making one copy: where it belongs, and the folder whose copies, but for `keep`, may go to make room."""

    path: str
    folder: str
    threads: int
    limit: int | None
    keep: Collection[str]

    def copy(self, source: Location, expected: str | None, on_progress: OnProgress | None) -> tuple[int, int]:
        """Copy what is there unless that was done; returns its bytes, and those that were fetched."""
        # Without the lock, and so where nothing can be written too.
        version = current(self.path, sidecar.identity_at(source))
        if version is not None and version.digest == (expected or version.digest):
            note_use(self.path)
            return version.nbytes, 0
        storage.make_parent(self.path)
        with closing(source.open()) as origin:
            return self.copy_from(origin, expected, on_progress)

    def copy_from(
        self, origin: ByteSource, expected: str | None = None, on_progress: OnProgress | None = None
    ) -> tuple[int, int]:
        """Copy an open origin unless that was done, alone on this machine; returns as `copy`."""
        with sidecar.locked_side(self.path) as side:
            assert side is not None
            # By another process, while this one waited.
            version = current(self.path, sidecar.identity_of(origin))
            if version is None:
                return self._make(side, origin, expected, on_progress)
            note_use(self.path)
            if expected not in (None, version.digest):
                with closing(File.open(self.path, "r")) as file:
                    check_digest(file, expected)
                side.replace(version, version._replace(digest=expected))
            return version.nbytes, 0

    def _make(
        self, side: Side, origin: ByteSource, expected: str | None, on_progress: OnProgress | None
    ) -> tuple[int, int]:
        fetch = Fetch(origin, self.threads, on_progress)
        version = Version(sidecar.identity_of(origin), fetch.uuid.hex(), fetch.size)
        before = self._before(side, origin, version)
        make_room(self.folder or os.curdir, self.limit, fetch.size, self.path, self.keep)
        check_space(self.path, fetch.size - storage.allocated(self.path + PARTIAL))
        kept = () if before is None else (before,)
        side.write(Note(origin.path, (version, *kept)))
        logger.info("%s: copying %s", self.path, origin.path)
        with ExitStack() as stack:
            partial = stack.enter_context(closing(File.open(self.path + PARTIAL, "a")))
            older = None if before is None else stack.enter_context(closing(File.open(self.path, "r")))
            fetched = fetch.into(partial, older)
            if expected is not None:
                try:
                    check_digest(partial, expected)
                except DigestError as error:
                    storage.remove(partial.path)
                    raise DigestError(str(error).replace(partial.path, self.path, 1)) from None
            side.publish(partial, self.path, Note(origin.path, (version._replace(digest=expected), *kept)))
        return fetch.size, fetched

    def _before(self, side: Side, origin: ByteSource, version: Version) -> Version | None:
        """The version that the copy is of which is there, where it may be replaced."""
        stamp, note = stamp_of(self.path), side.read()
        if stamp is None:
            return None
        before = None if note is None else note.version_of(stamp)
        if note is None or before is None:
            of = "" if note is None else f" from {note.origin}"
            raise ArchiveExistsError(
                f"{self.path}: exists already, and is not as it was copied{of}; give another path, or "
                "delete it (edcache rm)"
            )
        if note.origin != origin.path and before.uuid != version.uuid:
            raise ArchiveExistsError(
                f"{self.path}: a copy of another archive, {note.origin}; give {origin.path} another path or "
                "folder"
            )
        return before
