"""A URL and its options. Nothing shows its credentials, and a pickle has them only on the way to a process
that multiprocessing is just spawning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

_USERINFO: Final = re.compile(r"(?<=://)[^/?#]*@")
_QUERY: Final = re.compile(r"[?#].*", re.DOTALL)
# A "?" there is part of the object's name, or names its version.
_BUCKETS: Final = ("s3", "s3a", "gs", "gcs", "memory")
# Options whose values are no secrets, and help in a message.
_HARMLESS: Final = frozenset({"endpoint_url", "region_name", "project", "request_timeout", "request_tries"})
# Shorter ones would blank out ordinary words.
_LEAST_SECRET: Final = 4


class Url:
    """Where an object is, and what it takes to get at it.

    Attributes:
        url: with its credentials. options: for the engine, credentials among them; do not change it.
        shown: the same URL without userinfo and signed query; the only one that leaves this process.
        has_lost_credentials: it had some, and came out of a pickle without them.
    """

    __slots__ = ("has_lost_credentials", "options", "shown", "url")

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, has_lost_credentials: bool = False
    ) -> None:
        self.url = url
        self.options = dict(options or {})
        self.shown = _without_credentials(url)
        self.has_lost_credentials = has_lost_credentials

    def __repr__(self) -> str:
        return f"Url({self.shown!r})"

    def __copy__(self) -> Url:
        return self

    def __deepcopy__(self, memo: object) -> Url:
        return self

    def __reduce__(self) -> Any:
        if get_spawning_popen() is not None:
            return Url, (self.url, self.options, self.has_lost_credentials)
        loses = self.has_lost_credentials or self.url != self.shown or bool(self.options)
        return Url, (self.shown, None, loses)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    @property
    def scheme(self) -> str:
        """Of the first part of a chain, in lower case."""
        return re.split("::|://", self.url, maxsplit=1)[0].lower()

    def scrubbed(self, text: str) -> str:
        """A text without whatever of it could be a credential of this URL."""
        text = text.replace(self.url, self.shown)
        for secret in sorted(set(self._secrets()), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> Iterator[str]:
        parts = urlsplit(self.url)
        told = [parts.query, *(value for _, value in parse_qsl(parts.query))]
        told += [part.partition("=")[2] for part in parts.query.split("&")]
        userinfo = _USERINFO.search(self.url)
        if userinfo:
            told += [userinfo[0][:-1], *userinfo[0][:-1].split(":", 1)]
        if parts.scheme in _BUCKETS:
            told = []
        told += _texts(self.options)
        for text in told:
            for secret in (text, unquote(text)):
                if len(secret) >= _LEAST_SECRET:
                    yield secret


def _texts(options: Any, key: object = None) -> Iterator[str]:
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _texts(value, name)
    elif isinstance(options, (list, tuple, set, frozenset)):
        for value in options:
            yield from _texts(value, key)
    elif isinstance(options, (str, bytes)):
        text = options if isinstance(options, str) else options.decode("latin-1")
        if key not in _HARMLESS or "@" in text:
            yield text


def _without_credentials(url: str) -> str:
    parts = []
    for part in url.split("::"):
        bare = _USERINFO.sub("", part)
        scheme = bare.partition("://")[0].lower()
        parts.append(bare if scheme in _BUCKETS else _QUERY.sub("", bare))
    return "::".join(parts)
