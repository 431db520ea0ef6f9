"""Archives that are to be behind a URL: filled in a file of this machine, uploaded when they are sealed.

A spool file has its name from the URL, so that the next process goes on with what an interrupted one left,
and sends only the parts of it that are not there yet, where the server can keep them (S3); what is known of
them stands in what is temporary of the file, see `edcache.temporary`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from edcache import durable, format, memory, temporary
from edcache.durable import File
from edcache.errors import ArchiveExistsError, ArchiveNotFoundError
from edcache.options import Show
from edcache.places.asking import Stamp
from edcache.places.remote import RemotePlace
from edcache.places.upload import upload
from edcache.places.url import Url
from edcache.progress import uploading

_PIECE_NBYTES: Final = 1 << 24


def default_folder() -> str:
    """Where spool files are: `$EDCACHE_SPOOL`, else `~/.cache/edcache/spool`."""
    return os.environ.get("EDCACHE_SPOOL") or str(Path.home() / ".cache" / "edcache" / "spool")


class Spool:
    """The file in which the archive of one URL is filled.

    Args:
        folder: where it is; None for the default.
    Attributes:
        path: of the file, which may not be there.
    """

    def __init__(self, url: Url, folder: str | os.PathLike[str] | None = None) -> None:
        self._url = url
        folder = folder or default_folder()
        memory.check_outlives(folder)
        told = f"{url.shown} {url.options.get('endpoint_url', '')}"
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        name = re.sub(r"[^\w.,=+@-]+", "_", url.shown.rpartition("/")[2]).strip(".")[:80]
        self.path = os.path.join(durable.absolute(folder), f"{digest}-{name or 'archive'}")

    def state(self) -> Stamp | None:
        """The state of the object behind the URL; None where there is none."""
        try:
            return RemotePlace(self._url).identity()
        except ArchiveNotFoundError:
            return None

    def prepare(self) -> Stamp | None:
        """Have the file hold what is behind the URL, unless it is there already; gives that state."""
        durable.make_parent(self.path)
        try:
            place = RemotePlace(self._url)
        except ArchiveNotFoundError:
            return None
        if not durable.exists(self.path):
            with self._turn() as file:
                # Whoever had the turn before may have it, and fill it already.
                if not durable.exists(self.path):
                    self._download(place, file)
        return place.identity()

    @contextmanager
    def _turn(self) -> Iterator[File]:
        """Let nobody else copy or publish the file for the block; gives what is known of its upload."""
        name = temporary.name_for(self.path)
        while True:
            state = File.open(name, "a")
            try:
                with state.locked(format.LOCK_SESSION):
                    # Who copied it has given it its name, and who published has removed it.
                    if state.is_named():
                        yield state
                        if state.path == name and state.is_named() and not state.size():
                            durable.remove(name)
                        return
            finally:
                state.close()

    def _download(self, place: RemotePlace, file: File) -> None:
        try:
            file.truncate(0)  # what a process left that was killed
            position = 0
            while data := place.read_many([(position, _PIECE_NBYTES)])[0]:
                file.pwrite(position, data)
                position += len(data)
            file.sync()
        except BaseException:
            durable.remove(file.path)
            raise
        durable.move(file, self.path)

    def publish(self, before: Stamp | None, show: Show = None, *, replaces: bool = False) -> None:
        """Upload the file, which is sealed, to its URL, and delete it. Nobody sees a part of it there.

        Args:
            before: the state that was behind the URL; `replaces` takes the place of another one too.
            show: as in `Progress`; a bar over the bytes.
        Raises:
            ArchiveExistsError: another one is there now; the file stays.
            StorageError: the server refuses; the file stays, and so do the parts of it that a server keeps.
        """
        with self._turn() as state:
            # Another process may have published it meanwhile.
            if durable.exists(self.path):
                self._publish(state, before, show, replaces)

    def _publish(self, state: File, before: Stamp | None, show: Show, replaces: bool) -> None:
        if not replaces and self.state() != before:
            raise ArchiveExistsError(
                f"{self._url.shown}: another archive was put there while this one was filled, which stays in "
                f"{self.path}; delete one of them"
            )
        with uploading(self._url.shown.rpartition("/")[2], os.path.getsize(self.path), show) as tell:
            upload(self._url, self.path, state, tell)
        self.discard()

    def discard(self) -> None:
        """Delete the file, and what is known of its upload."""
        for name in (self.path, temporary.name_for(self.path)):
            if durable.exists(name):
                durable.remove(name)
