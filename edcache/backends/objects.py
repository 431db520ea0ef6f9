"""Caches that are whole objects: read by request, filled in a spool file of this machine, put there whole.

A spool file has its name from the object's, so that the next process goes on with the fill that another one
left. It stays until its upload has succeeded; an upload that was interrupted begins again.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from edcache import base, format, storage, writer
from edcache.backends.file_store import copy_bytes
from edcache.base import ArchiveExistsError, ArchiveNotFoundError, OptionError, Show, Sync
from edcache.storage import File
from edcache.writer import Store

if TYPE_CHECKING:
    from edcache.format import Head
    from edcache.writer import Appender


_LOOK_SECONDS: Final = 0.02


class ObjectStore(Store):
    """An object that a server keeps under a name and replaces as a whole; a backend adds `open` and `put`.

    `open` gives a `ByteSource` of the object as it is now; when another object gets the name, its `identity`
    is another one.
    """

    by_request = True

    def __init__(self, text: str, storage_options: Any = None) -> None:
        self.path = text

    @abstractmethod
    def put(self, path: str, tell: Callable[[int, int], object]) -> None:
        """Bring a file there; the object has its name when it is whole, and not before.

        Args:
            tell: `tell(done, nbytes)`: that many bytes of all are there.
        """

    @property
    def key(self) -> str:
        """Text that no other object has; no credentials."""
        return self.path

    def check_writable(self) -> None:
        """Raise OptionError if nothing can be put there."""

    def prepare(self) -> None:
        """Have something where the object, which is absent, will be put; raise if that cannot be."""

    def state(self) -> Any:
        """The identity of the object; None if there is none."""
        try:
            return self.open().identity()
        except ArchiveNotFoundError:
            return None

    def stage(self) -> Spool:
        self.check_writable()
        return Spool(self)

    def appender(self, head: Head, sync: Sync) -> Appender:
        """Raise OptionError: nothing is appended to an object; see `stage`."""
        raise OptionError(f"{self.path}: an object, to which nothing is appended; fill it by CachedDataset")


class Spool:
    """The file in which the archive of one object is filled; a `Stage`. It may not be there.

    It lies in the folder "spool" of `storage.cache_folder()`.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        folder = os.path.join(storage.absolute(storage.cache_folder()), "spool")
        digest = hashlib.sha256(store.key.encode()).hexdigest()[:16]
        name = re.sub(r"[^\w.,=+@-]+", "_", store.path.rpartition("/")[2]).strip(".")[:80]
        self.path = os.path.join(folder, f"{digest}-{name or 'archive'}")
        self._before: Any = None
        self._replaces = False

    def begin(self, mode: str) -> None:
        # Whatever the mode: a credential that may not look may hardly write when all is computed.
        self._before, self._replaces = self.prepare() if mode == "a" else self._store.state(), mode == "w"
        if mode == "x" and self._before is not None:
            raise ArchiveExistsError(
                f'{self._store.path}: exists already; use mode="a" to continue or grow it, mode="w" to '
                "replace it"
            )
        if self._before is None:
            self._store.prepare()
        storage.make_parent(self.path)

    def prepare(self) -> Any:
        """Copy the object into the file, unless it is there already; gives the object's state."""
        storage.make_parent(self.path)
        try:
            source = self._store.open()
        except ArchiveNotFoundError:
            return None
        # What an earlier writer began grew from the object, unless another one is there by now.
        nbytes = min(source.size(), format.PAGE)
        end = source.size() - nbytes, nbytes
        with suppress(ArchiveNotFoundError), closing(File.open(self.path, "r")) as begun:
            if begun.pread(*end) != source.pread(*end):
                raise ArchiveExistsError(
                    f"{self._store.path}: another archive was put there since {self.path} was begun; "
                    "delete one of them"
                )
        if not storage.exists(self.path):
            with self._turn() as file:
                if not storage.exists(self.path):  # the process before has it, and fills it already
                    copy_bytes(source, file)
                    file.sync()
                    storage.move(file, self.path)
        return source.identity()

    @contextmanager
    def _turn(self) -> Iterator[File]:
        """Let no other process copy or publish the file for the block; gives the file to copy into."""
        with writer.replacing(self.path, _LOOK_SECONDS) as file:
            yield file
            if file.path != self.path:
                storage.remove(file.path)

    def finish(self, show: Show = None, is_done: Callable[[], bool] = lambda: False) -> None:
        """Upload the file, which is sealed, and delete it. Nobody sees a part of it there.

        Raises:
            ArchiveExistsError: another one came there since `begin`, and not `is_done`, and the mode is not
                "w"; the file stays.
            StorageError: the server refuses; the file stays.
        """
        with self._turn():
            if not storage.exists(self.path):
                return  # another process has published it meanwhile
            if not self._replaces and self._store.state() != self._before:
                # Another machine may have made the same call.
                if is_done():
                    storage.remove(self.path)
                    return
                raise ArchiveExistsError(
                    f"{self._store.path}: another archive was put there while this one was filled, which "
                    f"stays in {self.path}; delete one of them"
                )
            name = self._store.path.rpartition("/")[2]
            # A function counts samples, and hears nothing of bytes.
            quiet = False if callable(show) else show
            with base.Progress(name, quiet, doing="uploading", unit="B") as tell:
                self._store.put(self.path, tell)
            storage.remove(self.path)
