"""A URL of an object or a server, with its options and credentials, which are shown nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self

# Shorter ones would blank out ordinary words.
_LEAST_SECRET: Final = 4
# Not the colons of an IPv6 address.
_CHAINED: Final = re.compile(r"::(?![^\[\]]*\])")
_USERINFO: Final = re.compile(r"(?<=://)[^/?#]*@")
_QUERY: Final = re.compile(r"[?#].*", re.DOTALL)
# Text before an "@" names a container there, unless it has a password.
_CONTAINERS: Final = ("abfs", "abfss", "wasb", "wasbs")
# A "?" there is part of the object's name, or names its version, or a prefix of keys.
_QUERIED: Final = ("s3", "s3a", "gs", "gcs", "memory", "redis", "rediss", "unix")


class Url(str):
    """A URL as text without userinfo and signed query, and with them as attributes.

    They go into no pickle but a spawned child's.

    url: with its credentials. options: for the library that asks, credentials among them; do not change it.
    has_lost_credentials: it had some, and came out of a pickle without them.
    """

    url: str
    options: dict[str, Any]
    has_lost_credentials: bool

    def __new__(
        cls, url: str, options: Mapping[str, Any] | None = None, has_lost_credentials: bool = False
    ) -> Url:
        """Read a URL; one from a pickle may have lost its credentials."""
        new = super().__new__(cls, "::".join(map(_without_credentials, _CHAINED.split(url))))
        new.url, new.options = url, dict(options or {})
        new.has_lost_credentials = has_lost_credentials
        return new

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return Url, (self.url, self.options, self.has_lost_credentials)
        loses = self.has_lost_credentials or self.url != self or bool(self.options)
        return Url, (str(self), None, loses)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    @property
    def scheme(self) -> str:
        """Of the first part of a chain, in lower case."""
        return re.split("::|://", self.url, maxsplit=1)[0].lower()

    def scrubbed(self, text: str) -> str:
        """A text with *** in the place of all that could be a credential of this URL, quoted or not."""
        text = text.replace(self.url, self)
        known = {form for secret in self._secrets() for form in (secret, unquote(secret))}
        for secret in sorted(known, key=len, reverse=True):
            if len(secret) >= _LEAST_SECRET:
                text = text.replace(secret, "***")
        return text

    def _secrets(self) -> Iterator[str]:
        yield from _texts(self.options)
        parts = urlsplit(self.url)
        if parts.scheme not in _QUERIED:
            yield from (parts.query, *(value for _, value in parse_qsl(parts.query)))
            yield from (part.partition("=")[2] for part in parts.query.split("&"))
        for userinfo in filter(None, map(_userinfo, _CHAINED.split(self.url))):
            yield from (userinfo[:-1], *userinfo[:-1].split(":", 1))


def _texts(options: Any) -> Iterator[str]:
    if isinstance(options, (str, bytes)):
        yield options if isinstance(options, str) else options.decode("latin-1")
    elif isinstance(options, (Mapping, list, tuple, set, frozenset)):
        for value in options.values() if isinstance(options, Mapping) else options:
            yield from _texts(value)


def _without_credentials(part: str) -> str:
    bare = part.replace(_userinfo(part), "", 1)
    return bare if bare.partition("://")[0].lower() in _QUERIED else _QUERY.sub("", bare)


def _userinfo(part: str) -> str:
    """The credentials before the host, with their "@"; "" for none, and for a container of Azure."""
    found = _USERINFO.search(part)
    is_container = part.partition("://")[0].lower() in _CONTAINERS and found and ":" not in found[0]
    return "" if found is None or is_container else found[0]
