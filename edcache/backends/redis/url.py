"""Where a cache is when it is not in a file: a URL of a Redis server, told apart from its credentials.

    redis://host:6379/0?prefix=name      TCP
    rediss://host:6379/0?prefix=name     TLS
    unix:///run/redis.sock?db=0&prefix=name

Options of ours in the query are `prefix`, `ttl` and `claim_seconds`; all others are redis-py's.
"""

from __future__ import annotations

import multiprocessing.context
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from edcache.base import OptionError

_SCHEMES: Final = ("redis://", "rediss://", "unix://")
_SECRETS: Final = ("username", "password", "ssl_password")
_OWN: Final = ("prefix", "ttl", "claim_seconds")
_PREFIX: Final = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")
CLAIM_SECONDS: Final = 10.0


def is_server(path: object) -> bool:
    """Whether a path is a URL of a Redis server."""
    return isinstance(path, str) and path.startswith(_SCHEMES)


class Server(str):
    """A URL without its credentials, as text; they go along, but not into what is shown or pickled.

    A pickle has them only while `multiprocessing` starts a child of this process. Make one with `Server.of`.

    Attributes:
        secrets: the credentials: pairs of redis-py's option and its value.
        client_url: as redis-py takes it: without options of ours, nor credentials.
        prefix: what all keys begin with; empty where the URL does not say.
        ttl: seconds after which what is written expires, or None. claim_seconds: after which a claim does.
    """

    __slots__ = ("claim_seconds", "client_url", "prefix", "secrets", "ttl")

    secrets: tuple[tuple[str, str], ...]
    client_url: str
    prefix: str
    ttl: float | None
    claim_seconds: float

    @classmethod
    def of(cls, url: str) -> Server:
        """Read a URL; one that was read already is returned as it is.

        Raises:
            OptionError: 'redis://localhost/0?ttl=soon: ttl=soon; give seconds above 0', and the like.
        """
        if isinstance(url, Server):
            return url
        try:
            parts = urlsplit(url)
            given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            secrets = (("username", parts.username), ("password", parts.password))
            is_sound = parts.port != 0 and not parts.fragment and "@" not in parts.path
        except ValueError:
            is_sound = False
        if not is_sound:
            # Neither the URL nor the reason: nobody knows where its password ends.
            raise OptionError(
                "a Redis URL that does not read; percent-encode what is not a letter or a digit in its "
                "password, as in redis://:p%40ss@host:6379/0?prefix=name"
            )
        kept = [(name, value) for name, value in given if name not in _SECRETS]
        told = [(name, unquote(value)) for name, value in secrets if value]
        told += [(name, value) for name, value in given if name in _SECRETS]
        # What is before the last @ are credentials, however it is written.
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        return cls._made(bare, kept, told)

    @classmethod
    def _made(cls, parts: SplitResult, options: list[tuple[str, str]], secrets: Iterable[Any]) -> Server:
        text = _joined(parts, options)
        server = cls(text)
        own = _own_options(text, options)
        server.secrets = tuple(secrets)
        server.client_url = _joined(parts, [(name, value) for name, value in options if name not in _OWN])
        server.prefix = own.get("prefix", "")
        if "prefix" in own and not _PREFIX.fullmatch(server.prefix):
            raise OptionError(
                f"{text}: prefix={server.prefix!r}; give 1 to 200 characters, and no spaces among them"
            )
        server.ttl = _seconds(text, "ttl", own["ttl"]) if "ttl" in own else None
        server.claim_seconds = CLAIM_SECONDS
        if "claim_seconds" in own:
            server.claim_seconds = _seconds(text, "claim_seconds", own["claim_seconds"])
        return server

    def like(self, text: str) -> Server:
        """Another URL without credentials, with those of this one."""
        # A + is itself in what arguments are made of.
        other = Server.of(text.replace("+", "%2B"))
        other.secrets = self.secrets
        return other

    def format(self, *values: object, **named: object) -> Server:
        """As of a text, with the credentials of this one."""
        return self.like(super().format(*values, **named))

    def with_prefix(self, prefix: str) -> Server:
        """The same server, with another prefix."""
        parts = urlsplit(str(self))
        options = [(name, value) for name, value in parse_qsl(parts.query) if name != "prefix"]
        return self._made(parts, [*options, ("prefix", prefix)], self.secrets)

    def __reduce_ex__(self, protocol: Any) -> Any:
        is_for_child = multiprocessing.context.get_spawning_popen() is not None
        return _rebuilt, (str(self), self.secrets if is_for_child else ())

    def __copy__(self) -> Server:
        return self

    def __deepcopy__(self, memo: Any) -> Server:
        return self


def _rebuilt(text: str, secrets: tuple[tuple[str, str], ...]) -> Server:
    server = Server.of(text)
    server.secrets = secrets
    return server


def _joined(parts: SplitResult, options: list[tuple[str, str]]) -> str:
    query = urlencode(options, quote_via=quote, safe="/:,=@{}[]!")
    if parts.netloc:
        return urlunsplit(parts._replace(query=query, fragment=""))
    return f"{parts.scheme}://{parts.path}{'?' if query else ''}{query}"


def _own_options(text: str, options: list[tuple[str, str]]) -> dict[str, str]:
    own = [(name, value) for name, value in options if name in _OWN]
    if len(dict(own)) != len(own):
        raise OptionError(f"{text}: one of {', '.join(_OWN)} is given twice")
    return dict(own)


def _seconds(text: str, name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds < 1e9:
        raise OptionError(f"{text}: {name}={value}; give seconds above 0")
    return seconds
