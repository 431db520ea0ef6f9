"""Caches that are objects behind a URL: read by request, filled in a spool file of this machine, put there whole.

A spool file has its name from the object's, so that the next process goes on with the fill that another one
left. It stays until its upload has succeeded; an upload that was interrupted begins again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from edcache import base, format, storage, writer
from edcache.backends import Url, copy_bytes
from edcache.backends.remote.filesystem import prepare, upload
from edcache.backends.remote.object import WEB, RemoteObject
from edcache.base import ArchiveExistsError, ArchiveNotFoundError, OptionError, ReadOptions, Show, Sync
from edcache.storage import File
from edcache.writer import Store

if TYPE_CHECKING:
    from edcache.format import Head
    from edcache.reader import Reader
    from edcache.writer import Appender

# Part of the free disk that copies may take which were made without copy_to_local().
_SHARE: Final = 0.5
_LOOK_SECONDS: Final = 0.02


class RemoteStore(Store):
    """A URL, with the options of the engine that reads it.

    Its server keeps the object under a name, and replaces it as a whole; another object has another `identity`.
    """

    by_request = True

    def __init__(self, text: str, storage_options: Mapping[str, Any] | None = None) -> None:
        try:
            urlsplit(text)
        except ValueError as error:  # not shown: it may have credentials
            raise OptionError(f"a {text.partition(':')[0]} URL that does not read: {error}") from None
        self.url = Url(text, storage_options)
        self.path = str(self.url)
        self.has_query = "?" in self.url.url and "?" not in self.path

    def open(self) -> RemoteObject:
        return RemoteObject(self.url)

    def reader(self, options: ReadOptions) -> Reader:
        """See `Store`: of a copy in the cache folder, if nothing else was asked for."""
        if options.local is None and options.preload is None and options.expected_digest is None:
            share = _SHARE if options.max_bytes is None else options.max_bytes
            folder = os.path.join(storage.cache_folder(), "copies")
            options = replace(options, local=folder, max_bytes=share)
        return super().reader(options)

    def spool(self) -> ObjectSpool:
        if self.url.scheme in WEB or "::" in self.url.url:
            raise OptionError(
                f"{self.url}: {self.url.scheme}:// is only read; write to s3://, gs:// or another store of "
                "objects, or to a path"
            )
        return ObjectSpool(self.url)

    def appender(self, head: Head, sync: Sync) -> Appender:
        """Raise OptionError: nothing is appended to an object; see `spool`."""
        raise OptionError(f"{self.path}: an object, to which nothing is appended; fill it by CachedDataset")


class ObjectSpool:
    """The file in which the archive of one object is filled; a `storage.registry.Spool`. It may not be there.

    It lies in the folder "spool" of `storage.cache_folder()`.
    """

    def __init__(self, url: Url) -> None:
        self._url = url
        options = {**(url.options.get("client_kwargs") or {}), **url.options}
        key = f"{url} {options.get('endpoint_url', '')} {options.get('account_name', '')}"
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        name = re.sub(r"[^\w.,=+@-]+", "_", url.rpartition("/")[2]).strip(".")[:80]
        folder = os.path.join(storage.absolute(storage.cache_folder()), "spool")
        self.path = os.path.join(folder, f"{digest}-{name or 'archive'}")
        self._before: Any = None
        self._replaces = False

    def begin(self, mode: str) -> None:
        # Whatever the mode: a credential that may not look may hardly write when all is computed.
        self._before, self._replaces = self._fetch() if mode == "a" else self._state(), mode == "w"
        if mode == "x" and self._before is not None:
            raise ArchiveExistsError(
                f'{self._url}: exists already; use mode="a" to continue or grow it, mode="w" to replace it'
            )
        if self._before is None:
            prepare(self._url)
        storage.make_parent(self.path)

    def _fetch(self) -> Any:
        """Copy the object into the file, unless it is there already; gives the object's state."""
        storage.make_parent(self.path)
        try:
            source = RemoteObject(self._url)
        except ArchiveNotFoundError:
            return None
        # What an earlier writer began grew from the object, unless another one is there by now.
        nbytes = min(source.size(), format.PAGE)
        end = source.size() - nbytes, nbytes
        with suppress(ArchiveNotFoundError), closing(File.open(self.path, "r")) as begun:
            if begun.pread(*end) != source.pread(*end):
                raise ArchiveExistsError(
                    f"{self._url}: another archive was put there since {self.path} was begun; "
                    "delete one of them"
                )
        if not storage.exists(self.path):
            with self._turn() as file:
                if not storage.exists(self.path):  # the process before has it, and fills it already
                    copy_bytes(source, file)
                    file.sync()
                    storage.move(file, self.path)
        return source.identity()

    def _state(self) -> Any:
        """Return the identity of the object; None if there is none."""
        try:
            return RemoteObject(self._url).identity()
        except ArchiveNotFoundError:
            return None

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
            if not self._replaces and self._state() != self._before:
                # Another machine may have made the same call.
                if is_done():
                    storage.remove(self.path)
                    return
                raise ArchiveExistsError(
                    f"{self._url}: another archive was put there while this one was filled, which "
                    f"stays in {self.path}; delete one of them"
                )
            name = self._url.rpartition("/")[2]
            # A function counts samples, and hears nothing of bytes.
            quiet = False if callable(show) else show
            with base.Progress(name, quiet, doing="uploading", unit="B") as tell:
                upload(self._url, self.path, tell)
            storage.remove(self.path)
