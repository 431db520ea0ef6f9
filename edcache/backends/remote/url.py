"""A URL of an object, with its options and credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from edcache.backends import ShownUrl, scrubbed

_USERINFO: Final = re.compile(r"(?<=://)[^/?#]*@")
_QUERY: Final = re.compile(r"[?#].*", re.DOTALL)
# What is before an "@" there is a container, unless it has a password.
_CONTAINERS: Final = ("abfs", "abfss", "wasb", "wasbs")
# A "?" there is part of the object's name, or names its version.
_BUCKETS: Final = ("s3", "s3a", "gs", "gcs", "memory")


class Url(ShownUrl):
    """The URL of an object as text without userinfo and signed query, and with them as attributes.

    url: with its credentials. options: for the engine, credentials among them; do not change it.
    has_lost_credentials: it had some, and came out of a pickle without them.
    """

    url: str
    options: dict[str, Any]
    has_lost_credentials: bool

    def __new__(
        cls, url: str, options: Mapping[str, Any] | None = None, has_lost_credentials: bool = False
    ) -> Url:
        """Read a URL; one from a pickle may have lost its credentials."""
        new = super().__new__(cls, "::".join(map(_without_credentials, url.split("::"))))
        new.url, new.options = url, dict(options or {})
        new.has_lost_credentials = has_lost_credentials
        return new

    def _pickled(self, with_credentials: bool) -> tuple[Any, ...]:
        if with_credentials:
            return Url, (self.url, self.options, self.has_lost_credentials)
        loses = self.has_lost_credentials or self.url != self or bool(self.options)
        return Url, (str(self), None, loses)

    @property
    def scheme(self) -> str:
        """Of the first part of a chain, in lower case."""
        return re.split("::|://", self.url, maxsplit=1)[0].lower()

    def scrubbed(self, text: str) -> str:
        """A text with *** in the place of all that could be a credential of this URL."""
        return scrubbed(text.replace(self.url, self), self._secrets())

    def _secrets(self) -> Iterator[str]:
        yield from _texts(self.options)
        parts = urlsplit(self.url)
        if parts.scheme not in _BUCKETS:
            yield from (parts.query, *(value for _, value in parse_qsl(parts.query)))
            yield from (part.partition("=")[2] for part in parts.query.split("&"))
            for userinfo in filter(None, map(_userinfo, self.url.split("::"))):
                yield from (userinfo[:-1], *userinfo[:-1].split(":", 1))


def _texts(options: Any) -> Iterator[str]:
    if isinstance(options, (str, bytes)):
        yield options if isinstance(options, str) else options.decode("latin-1")
    elif isinstance(options, (Mapping, list, tuple, set, frozenset)):
        for value in options.values() if isinstance(options, Mapping) else options:
            yield from _texts(value)


def _without_credentials(part: str) -> str:
    bare = part.replace(_userinfo(part), "", 1)
    return bare if bare.partition("://")[0].lower() in _BUCKETS else _QUERY.sub("", bare)


def _userinfo(part: str) -> str:
    """The credentials before the host, with their "@"; "" for none, and for a container of Azure."""
    found = _USERINFO.search(part)
    is_container = part.partition("://")[0].lower() in _CONTAINERS and found and ":" not in found[0]
    return "" if found is None or is_container else found[0]
