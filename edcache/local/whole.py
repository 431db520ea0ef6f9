"""Whole copies: made beside the place where they belong, and there in one step once they are proven."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from edcache import durable, format, temporary
from edcache.digests import check_digest, parse_digest
from edcache.durable import File, Location, local_path, located, shown
from edcache.errors import (
    ArchiveExistsError,
    DigestError,
    NotAnArchiveError,
    OptionError,
)
from edcache.local.bringing import OnProgress, Plan, bring
from edcache.local.keeping import check_space, limit_of, make_room
from edcache.local.origins import Origin, as_identity, identity_at, open_origin
from edcache.local.side import PARTIAL, SIDE, Note, Side, Version, locked_side, note_of, note_use, stamp_of
from edcache.progress import ByteProgress, Show

logger = logging.getLogger("edcache")

THREADS: Final = 8
# What a replacement that was killed leaves is no archive to copy, and what belongs to a copy is made anew.
_PASSED_OVER: Final = (temporary.SUFFIX, PARTIAL, SIDE)


@dataclass(frozen=True)
class CopyOptions:
    """How to copy, in the words of `copy_to_local`."""

    num_threads: int = THREADS
    expected_digest: str | None = None
    max_bytes: int | str | None = None
    storage_options: Mapping[str, Any] | None = None


class Copied(NamedTuple):
    """What a call copied.

    path: the copy, or the folder of copies. archives: how many there are. nbytes: of all of them. fetched:
    bytes of them that this call read from the origin.
    """

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
    """Copy a sealed archive that is far away, or a folder of them, to a disk of this machine; once.

    Args:
        src: the archive, or its URL; or a folder, of which all archives are copied, those in folders below it
            too.
        target: the folder where the copies go, made where it is absent; or, with the same ending as `src`,
            the path of the copy.
        num_threads: reads at a time.
        expected_digest: "sha256:...", what `edcache.digest` said of the one archive when it was published.
        max_bytes: of all copies in the folder together, as a number or as "200GB": those that nobody has open
            go to make room, the least recently used first. Archives that are no copies never go.
        storage_options: for the engine that reads a URL, see `edcache.Reader`.
        progress: True or False; by default a bar shows on a terminal. A function is called with (bytes that
            are here, bytes in all) instead.
    Returns:
        The path of the copy, to be opened as any archive; or the folder.
    Raises:
        ArchiveNotFoundError, NotAnArchiveError, FormatVersionError.
        OptionError: "far/train.zip: it is not sealed, so it may still grow; ...".
        CorruptArchiveError: bytes of the origin fail their crc32, read twice.
        ArchiveExistsError: "ssd/train.zip: exists already, and is not as it was copied from ...".
        DigestError: the origin is not the archive that was published; no copy is left.
        StorageError: too little space, before anything is copied; or the system refused.

    The copy has its name when every crc32 of it was compared and it is on the disk, not before. A copy that
    was killed is continued by the next call: what it has is compared with the crc32s, and the rest is
    fetched. Any number of processes may ask at once: one copies, the others wait for it. A copy that is there
    already costs one look at each file; one whose origin changed since (size, time or inode) is made anew, of
    what did not change from the old one, and who reads the old one keeps it.
    Cost: reads the origin once, and writes as much.
    """
    options = CopyOptions(num_threads, expected_digest, max_bytes, storage_options)
    with ByteProgress(f"copying {os.path.basename(shown(src))}", progress) as tell:
        return copy_local(src, target, options, on_progress=tell).path


def copy_local(
    src: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: CopyOptions = CopyOptions(),
    on_progress: OnProgress | None = None,
) -> Copied:
    """What `copy_to_local` does; says what was copied."""
    expected = None if options.expected_digest is None else parse_digest(options.expected_digest)
    threads = options.num_threads
    if type(threads) is not int or threads < 1:
        raise OptionError(f"num_threads={threads!r}; give a number from 1 on")
    limit = limit_of(options.max_bytes)
    durable.check_outlives(target)
    source, place = located(src, options.storage_options), local_path(target)
    if not source.by_request and os.path.isdir(source.path):
        if expected is not None:
            raise OptionError(f"{source.path}: a folder; expected_digest= is that of one archive")
        return _copy_folder(source.path, place, threads, limit, on_progress)
    copy = _place_of(source.path, place)
    copying = Copying(copy, os.path.dirname(copy), threads, limit, [copy])
    nbytes, fetched = copying.copy(source, expected, on_progress)
    return Copied(copy, 1, nbytes, fetched)


def _place_of(source: str, target: str) -> str:
    ending = os.path.splitext(source)[1]
    is_file = not os.path.isdir(target) and not target.endswith(os.sep) and target.endswith(ending)
    return target if is_file else os.path.join(target, os.path.basename(source))


def _copy_folder(
    source: str, target: str, threads: int, limit: int | None, on_progress: OnProgress | None
) -> Copied:
    found = {path: os.path.join(target, os.path.relpath(path, source)) for path in _archives_below(source)}
    if not found:
        raise OptionError(f"{source}: no archives in this folder; name one that holds some")
    sizes = [durable.stamp(path)[0] for path in found]
    total, before, fetched = sum(sizes), 0, 0
    if limit is not None and total > limit:
        raise OptionError(f"{source}: {total:,} bytes of archives, max_bytes= allows {limit:,}; allow more")
    for (path, copy), size in zip(found.items(), sizes, strict=True):

        def tell(done: int, nbytes: int, before: int = before) -> None:
            if on_progress is not None:
                on_progress(before + done, total)

        fetched += Copying(copy, target, threads, limit, found.values()).copy(located(path), None, tell)[1]
        before += size
    return Copied(target, len(found), total, fetched)


def _archives_below(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            if not name.endswith(_PASSED_OVER) and os.path.isfile(path) and _is_archive(path):
                yield path


def _is_archive(path: str) -> bool:
    file = File.open(path, "r")
    try:
        format.read_head(file.pread, path)
    except NotAnArchiveError:
        return False
    finally:
        file.close()
    return True


def current(copy: str, identity: tuple[str, ...]) -> Version | None:
    """The version that a whole copy is of, where that is the state of the origin with this identity."""
    stamp = stamp_of(copy)
    note = None if stamp is None else note_of(copy)
    version = None if note is None else note.version_of(stamp)
    return version if version is not None and version.identity == identity else None


class Copying:
    """Making one copy.

    Args:
        copy: where it belongs. folder: whose copies may go to make room for it. keep: those that must not.
    """

    def __init__(
        self, copy: str, folder: str, threads: int, limit: int | None, keep: Collection[str]
    ) -> None:
        self._copy = copy
        self._folder = folder or os.curdir
        self._threads, self._limit, self._keep = threads, limit, keep

    def copy(self, source: Location, expected: str | None, on_progress: OnProgress | None) -> tuple[int, int]:
        """Copy what is there unless that was done; returns its bytes, and those that were fetched."""
        # Without the lock, and so where nothing can be written too.
        found = current(self._copy, identity_at(source))
        if found is not None and found.digest == (expected or found.digest):
            note_use(self._copy)
            return found.nbytes, 0
        durable.make_parent(self._copy)
        origin = open_origin(source)
        try:
            return self.copy_from(origin, expected, on_progress)
        finally:
            origin.close()

    def copy_from(
        self, origin: Origin, expected: str | None = None, on_progress: OnProgress | None = None
    ) -> tuple[int, int]:
        """Copy an open origin unless that was done, alone on this machine; returns as `copy`."""
        with locked_side(self._copy) as side:
            assert side is not None
            identity = as_identity(origin.identity())
            # By another process, while this one waited.
            found = current(self._copy, identity)
            if found is not None:
                self._prove(side, found, expected)
                return found.nbytes, 0
            return self._made(side, origin, identity, expected, on_progress)

    def _prove(self, side: Side, found: Version, expected: str | None) -> None:
        """Compare a copy that is there with a digest, and remember that."""
        note_use(self._copy)
        if expected is None or found.digest == expected:
            return
        file = File.open(self._copy, "r")
        try:
            check_digest(file, expected)
        finally:
            file.close()
        note = side.read()
        assert note is not None
        proven = tuple(v._replace(digest=expected) if v == found else v for v in note.versions)
        side.write(note._replace(versions=proven))

    def _made(
        self,
        side: Side,
        origin: Origin,
        identity: tuple[str, ...],
        expected: str | None,
        on_progress: OnProgress | None,
    ) -> tuple[int, int]:
        plan = Plan(origin)
        version = Version(identity, plan.uuid.hex(), plan.size)
        before = self._before(side, origin, version)
        make_room(self._folder, self._limit, plan.size, self._copy, self._keep)
        check_space(self._copy, plan.size - durable.allocated(self._copy + PARTIAL))
        kept = () if before is None else (before,)
        side.write(Note(origin.path, (version, *kept)))
        logger.info("%s: copying %s", self._copy, origin.path)
        partial = File.open(self._copy + PARTIAL, "a")
        older = None if before is None else File.open(self._copy, "r")
        try:
            fetched = bring(
                origin, plan, partial, threads=self._threads, older=older, on_progress=on_progress
            )
            self._check_expected(partial, expected)
            partial.sync()
            # Before it has its name: the stamp stays, so whenever this is killed the side file is right.
            proven = version._replace(stamp=partial.stamp(), digest=expected)
            side.write(Note(origin.path, (proven, *kept)))
            side.file.sync()
            durable.move(partial, self._copy)
        finally:
            partial.close()
            if older is not None:
                older.close()
        return plan.size, fetched

    def _check_expected(self, partial: File, expected: str | None) -> None:
        if expected is None:
            return
        try:
            check_digest(partial, expected)
        except DigestError as error:
            durable.remove(partial.path)
            raise DigestError(str(error).replace(partial.path, self._copy, 1)) from None

    def _before(self, side: Side, origin: Origin, version: Version) -> Version | None:
        """The version that the copy is of which is there, where it may be replaced."""
        stamp, note = stamp_of(self._copy), side.read()
        if stamp is None:
            return None
        found = None if note is None else note.version_of(stamp)
        if note is None or found is None:
            of = "" if note is None else f" from {note.origin}"
            raise ArchiveExistsError(
                f"{self._copy}: exists already, and is not as it was copied{of}; give another path, or "
                "delete it (edcache rm)"
            )
        if note.origin != origin.path and found.uuid != version.uuid:
            raise ArchiveExistsError(
                f"{self._copy}: a copy of another archive, {note.origin}; give {origin.path} another path or "
                "folder"
            )
        return found


def whole_copies_of(path: str, folder: str) -> list[tuple[str, Version]]:
    """Whole copies of an origin in a folder, newest first, for when the origin cannot be asked."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    copies = [os.path.join(folder, name.removesuffix(SIDE)) for name in names if name.endswith(SIDE)]
    found: list[tuple[int, str, Version]] = []
    for copy in copies:
        note, stamp = note_of(copy), stamp_of(copy)
        version = None if note is None or stamp is None else note.version_at(stamp)
        if note is not None and note.origin == path and stamp is not None and version is not None:
            found.append((stamp[1], copy, version))
    return [(copy, version) for _, copy, version in sorted(found, reverse=True)]
