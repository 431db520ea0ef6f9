"""Caches that are objects behind a URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from edcache.backends import ObjectStore
from edcache.backends.remote.object import RemoteObject
from edcache.backends.remote.upload import check_writable, upload
from edcache.backends.remote.url import Url
from edcache.base import OptionError
from edcache.storage import File


class RemoteStore(ObjectStore):
    """A URL, with the options of the engine that reads it."""

    def __init__(self, text: str, storage_options: Mapping[str, Any] | None = None) -> None:
        try:
            urlsplit(text)
        except ValueError as error:  # not shown: it may have credentials
            raise OptionError(f"a {text.partition(':')[0]} URL that does not read: {error}") from None
        self.url = Url(text, storage_options)
        super().__init__(self.url.shown)

    @property
    def key(self) -> str:
        """See the base class."""
        return f"{self.path} {self.url.options.get('endpoint_url', '')}"

    def open(self) -> RemoteObject:
        """See the base class."""
        return RemoteObject(self.url)

    def check_writable(self) -> None:
        """See the base class."""
        check_writable(self.url)

    def put(self, path: str, state: File, tell: Callable[[int], object]) -> None:
        """See the base class."""
        upload(self.url, path, state, tell)
