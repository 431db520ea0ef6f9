"""A URL of a Redis server, told apart from its credentials, and the keys of the cache that it names.

    redis://host:6379/0?prefix=name      TCP
    rediss://host:6379/0?prefix=name     TLS
    unix:///run/redis.sock?db=0&prefix=name

Options of ours in the query are `prefix`, `ttl` and `claim_seconds`; all others are redis-py's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from edcache.backends import ShownUrl
from edcache.base import OptionError

_SECRETS: Final = ("username", "password", "ssl_password")
_OWN: Final = ("prefix", "ttl", "claim_seconds")
_PREFIX: Final = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")
CLAIM_SECONDS: Final = 10.0
ID_LENGTH: Final = 12


class Server(ShownUrl):
    """A URL without its credentials; make one with `Server.of`.

    secrets: the credentials: pairs of redis-py's option and its value. client_url: as redis-py takes it:
    without options of ours, nor credentials. prefix: "" where the URL does not say.
    """

    secrets: tuple[tuple[str, str], ...]
    client_url: str
    prefix: str
    ttl: float | None
    claim_seconds: float

    @classmethod
    def of(cls, url: str) -> Server:
        """Read a URL; OptionError: 'redis://localhost/0?ttl=soon: ttl=soon; give seconds above 0'."""
        if isinstance(url, Server):
            return url
        try:
            parts = urlsplit(url)
            options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            userinfo = (("username", parts.username), ("password", parts.password))
            is_sound = parts.port != 0 and not parts.fragment and "@" not in parts.path
        except ValueError:
            is_sound = False
        if not is_sound:
            # Neither the URL nor the reason: nobody knows where its password ends.
            raise OptionError(
                "a Redis URL that does not read; percent-encode what is not a letter or a digit in its "
                "password, as in redis://:p%40ss@host:6379/0?prefix=name"
            )
        secrets = [(name, unquote(value)) for name, value in userinfo if value]
        secrets += [(name, value) for name, value in options if name in _SECRETS]
        kept = [(name, value) for name, value in options if name not in _SECRETS]
        # What is before the last @ are credentials, however it is written.
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        return cls._made(bare, kept, secrets)

    @classmethod
    def _made(cls, parts: SplitResult, options: list[tuple[str, str]], secrets: Iterable[Any]) -> Server:
        server = cls(_joined(parts, options))
        pairs = [(name, value) for name, value in options if name in _OWN]
        own = dict(pairs)
        if len(own) != len(pairs):
            raise OptionError(f"{server}: one of {', '.join(_OWN)} is given twice")
        server.secrets = tuple(secrets)
        server.client_url = _joined(parts, [(name, value) for name, value in options if name not in _OWN])
        server.prefix = own.get("prefix", "")
        if "prefix" in own and not _PREFIX.fullmatch(server.prefix):
            raise OptionError(
                f"{server}: prefix={server.prefix!r}; give 1 to 200 characters, and no spaces among them"
            )
        server.ttl = server._seconds(own, "ttl")
        server.claim_seconds = server._seconds(own, "claim_seconds") or CLAIM_SECONDS
        return server

    def _seconds(self, options: Mapping[str, str], name: str) -> float | None:
        if name not in options:
            return None
        try:
            seconds = float(options[name])
        except ValueError:
            seconds = 0.0
        if not 0.001 <= seconds < 1e9:
            raise OptionError(f"{self}: {name}={options[name]}; give seconds above 0")
        return seconds

    @property
    def ttl_ms(self) -> int | None:
        """The same in milliseconds."""
        return None if self.ttl is None else max(1, int(self.ttl * 1000))

    def format(self, *values: object, **named: object) -> Server:
        """As of a text, with the credentials of this one."""
        # A + is itself in what arguments are made of.
        return _with_secrets(super().format(*values, **named).replace("+", "%2B"), self.secrets)

    def with_prefix(self, prefix: str) -> Server:
        """The same server, with another prefix."""
        parts = urlsplit(str(self))
        options = [(name, value) for name, value in parse_qsl(parts.query) if name != "prefix"]
        return self._made(parts, [*options, ("prefix", prefix)], self.secrets)

    def _pickled(self, with_credentials: bool) -> tuple[Any, ...]:
        return _with_secrets, (str(self), self.secrets if with_credentials else ())

    @property
    def stem(self) -> str:
        """What every key of a cache begins with; OptionError where the URL names no prefix."""
        if not self.prefix:
            raise OptionError(
                f"{self}: names no prefix; all keys of a cache begin with it: append ?prefix=name to the URL"
            )
        return f"{self.prefix}:"

    @property
    def head_key(self) -> str:
        """The key of a cache's head; raises as `stem`."""
        return f"{self.stem}head"


def _with_secrets(text: str, secrets: tuple[tuple[str, str], ...]) -> Server:
    server = Server.of(text)
    server.secrets = secrets
    return server


def _joined(parts: SplitResult, options: list[tuple[str, str]]) -> str:
    query = urlencode(options, quote_via=quote, safe="/:,=@{}[]!")
    if parts.netloc:
        return urlunsplit(parts._replace(query=query, fragment=""))
    return f"{parts.scheme}://{parts.path}{'?' if query else ''}{query}"


class Keys:
    """The keys of one cache, by the uuid in its head."""

    def __init__(self, server: Server, uuid: bytes) -> None:
        stem = f"{server.stem}{uuid.hex()[:ID_LENGTH]}:"
        self.head, self.log, self.fillers = server.head_key, f"{stem}log", f"{stem}fillers"
        self._record, self._claim = f"{stem}record:", f"{stem}claim:"

    def record(self, index: int) -> str:
        """Of the record of a sample."""
        return f"{self._record}{index}"

    def claim(self, number: int) -> str:
        """Of a claim."""
        return f"{self._claim}{number}"


def prefix_for(fingerprint: Mapping[str, Any]) -> str:
    """The prefix of a cache whose URL names none: by what is cached, whatever version of it."""
    cached = {key: fingerprint.get(key) for key in ("type", "factory", "arguments", "attributes")}
    text = json.dumps(cached, sort_keys=True)
    return f"edcache:{hashlib.sha256(text.encode('ascii')).hexdigest()[:16]}"
