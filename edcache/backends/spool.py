"""Archives that are to be objects of a server: filled in a file of this machine, uploaded when sealed.

A spool file has its name from the object's, so that the next process goes on with what an interrupted one
left, and sends only the parts of it that are not there yet, where the server can keep them (S3); what is
known of them stands in what is temporary of the file, see `edcache.writer.temporary`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edcache import format, storage, writer
from edcache.base import ArchiveExistsError, ArchiveNotFoundError, Show, uploading
from edcache.storage import ByteSource, File

if TYPE_CHECKING:
    from edcache.backends.objects import ObjectStore

_PIECE_NBYTES: Final = 1 << 24


def default_folder() -> str:
    """Where spool files are: `$EDCACHE_SPOOL`, else `~/.cache/edcache/spool`."""
    return os.environ.get("EDCACHE_SPOOL") or str(Path.home() / ".cache" / "edcache" / "spool")


class Spool:
    """The file in which the archive of one object is filled; a `Stage`.

    Args:
        folder: where it is; None for the default.
    Attributes:
        path: of the file, which may not be there.
    """

    def __init__(self, store: ObjectStore, folder: str | os.PathLike[str] | None = None) -> None:
        self._store = store
        folder = folder or default_folder()
        storage.check_outlives(folder)
        digest = hashlib.sha256(store.key.encode()).hexdigest()[:16]
        name = re.sub(r"[^\w.,=+@-]+", "_", store.path.rpartition("/")[2]).strip(".")[:80]
        self.path = os.path.join(storage.absolute(folder), f"{digest}-{name or 'archive'}")
        self._before: Any = None
        self._replaces = False

    def begin(self, mode: str) -> None:
        """Have the file begin as a writer with this mode finds it, until `finish`."""
        self._before, self._replaces = self.prepare() if mode == "a" else self._store.state(), mode == "w"
        if mode == "x" and self._before is not None:
            raise ArchiveExistsError(
                f'{self._store.path}: exists already; use mode="a" to continue or grow it, mode="w" to '
                "replace it"
            )
        storage.make_parent(self.path)

    def finish(self) -> None:
        """Upload what was written."""
        self.publish(self._before, replaces=self._replaces)

    def prepare(self) -> Any:
        """Have the file hold the object, unless it is there already; gives the object's state."""
        storage.make_parent(self.path)
        try:
            source = self._store.open()
        except ArchiveNotFoundError:
            return None
        if not storage.exists(self.path):
            with self._turn() as file:
                # Whoever had the turn before may have it, and fill it already.
                if not storage.exists(self.path):
                    self._download(source, file)
        return source.identity()

    @contextmanager
    def _turn(self) -> Iterator[File]:
        """Let nobody else copy or publish the file for the block; gives what is known of its upload."""
        name = writer.name_for(self.path)
        while True:
            state = File.open(name, "a")
            try:
                with state.locked(format.LOCK_SESSION):
                    # Who copied it has given it its name, and who published has removed it.
                    if state.is_named():
                        yield state
                        if state.path == name and state.is_named() and not state.size():
                            storage.remove(name)
                        return
            finally:
                state.close()

    def _download(self, source: ByteSource, file: File) -> None:
        try:
            file.truncate(0)  # what a process left that was killed
            position = 0
            while data := source.read_many([(position, _PIECE_NBYTES)])[0]:
                file.pwrite(position, data)
                position += len(data)
            file.sync()
        except BaseException:
            storage.remove(file.path)
            raise
        storage.move(file, self.path)

    def publish(self, before: Any, show: Show = None, *, replaces: bool = False) -> None:
        """Upload the file, which is sealed, and delete it. Nobody sees a part of it there.

        Args:
            before: the state of the object that was there; `replaces` takes the place of another one too.
            show: as in `Progress`; a bar over the bytes.
        Raises:
            ArchiveExistsError: another one is there now; the file stays.
            StorageError: the server refuses; the file stays, and so do the parts of it that a server keeps.
        """
        with self._turn() as state:
            # Another process may have published it meanwhile.
            if storage.exists(self.path):
                self._publish(state, before, show, replaces)

    def _publish(self, state: File, before: Any, show: Show, replaces: bool) -> None:
        if not replaces and self._store.state() != before:
            raise ArchiveExistsError(
                f"{self._store.path}: another archive was put there while this one was filled, which stays "
                f"in {self.path}; delete one of them"
            )
        with uploading(self._store.path.rpartition("/")[2], os.path.getsize(self.path), show) as tell:
            self._store.put(self.path, state, tell)
        self.discard()

    def discard(self) -> None:
        """Delete the file, and what is known of its upload."""
        for name in (self.path, writer.name_for(self.path)):
            if storage.exists(name):
                storage.remove(name)
