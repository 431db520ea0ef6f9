"""Many archives: listed, with their sizes and when each was used."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edcache.present.calls import call_text
from edcache.present.text import one_line, plural, printable, table
from edcache.sizes import human_bytes

if TYPE_CHECKING:
    from edcache.housekeeping import Listed
    from edcache.memory import Held


def listing_lines(directory: str, archives: Sequence[Listed]) -> Iterator[str]:
    """What `edcache caches` says: a table of the archives, those that cannot be read, the total."""
    sound = [archive for archive in archives if archive.problem is None]
    if sound:
        header = ("path", "size", "present", "length", "complete", "last used", "call")
        yield from table(header, (_listing_row(directory, archive) for archive in sound), whole=1)
    yield from (one_line(archive.problem) for archive in archives if archive.problem is not None)
    broken = len(archives) - len(sound)
    unread = f", {broken:,} more cannot be read" if broken else ""
    yield f"{printable(directory)}: {sizes_text(sound)}{unread}"


def memory_lines(archives: Sequence[Held]) -> Iterator[str]:
    """What `edcache caches shm://` says: a table of the archives in memory, and the total."""
    if archives:
        rows = ((a.path, human_bytes(a.nbytes), " ".join(map(str, a.pids))) for a in archives)
        yield from table(("path", "size", "processes"), rows, whole=1)
    total = human_bytes(sum(archive.nbytes for archive in archives))
    yield f"{plural(len(archives), 'archive')} in memory, {total}"


def memory_object(archives: Sequence[Held]) -> dict[str, Any]:
    """What `edcache caches shm://` says, as JSON has it."""
    listed = [{"path": a.path, "nbytes": a.nbytes, "processes": list(a.pids)} for a in archives]
    return {"archives": listed, "nbytes": sum(archive.nbytes for archive in archives)}


def _listing_row(directory: str, archive: Listed) -> tuple[str, ...]:
    return (
        *pruning_row(directory, archive)[:2],
        f"{archive.present:,}",
        f"{archive.length:,}",
        "yes" if archive.complete else "no",
        _use_text(archive),
        call_text(archive.fingerprint) if archive.origin is None else f"copy of {archive.origin}",
    )


def pruning_row(directory: str, archive: Listed) -> tuple[str, str, str]:
    """An archive as the cells path, size, last use."""
    path = os.path.relpath(archive.path, directory)
    return path, human_bytes(archive.nbytes), _use_text(archive)


def _use_text(archive: Listed) -> str:
    when = datetime.datetime.fromtimestamp(archive.used)
    return f"{when:%Y-%m-%d %H:%M}" + ("" if archive.was_read else " (written)")


def sizes_text(archives: Sequence[Listed]) -> str:
    """ "3 archives, 38.5 MB"."""
    return f"{plural(len(archives), 'archive')}, {human_bytes(sum(archive.nbytes for archive in archives))}"


def listing_object(directory: str, archives: Sequence[Listed]) -> dict[str, Any]:
    """What `edcache caches` says, as JSON has it; the total is of the archives that can be read."""
    return {
        "directory": directory,
        "archives": [_listed_object(directory, archive) for archive in archives],
        "nbytes": sum(archive.nbytes for archive in archives if archive.problem is None),
    }


def _listed_object(directory: str, archive: Listed) -> dict[str, Any]:
    used = datetime.datetime.fromtimestamp(archive.used, datetime.timezone.utc)
    return {
        "path": os.path.relpath(archive.path, directory),
        "nbytes": archive.nbytes,
        "last_used": used.isoformat(timespec="seconds"),
        "last_use": "read" if archive.was_read else "written",
        "present": archive.present,
        "absent": archive.absent,
        "length": archive.length,
        "complete": archive.complete,
        "sealed": archive.sealed,
        "fingerprint": archive.fingerprint,
        "origin": archive.origin,
        "problem": None if archive.problem is None else one_line(archive.problem),
    }
