"""What the keys of a cache are called."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from edcache.backends.redis.url import Server
from edcache.base import OptionError

_ID_LENGTH: Final = 12
_OURS: Final = re.compile(
    rf"head|[0-9a-f]{{{_ID_LENGTH}}}:(log|fillers|(record|claim):(0|[1-9][0-9]{{0,18}}))"
)
_GLOB: Final = re.compile(r"([*?\[\]\\])")


def head_key(server: Server) -> str:
    """The key of a cache's head.

    Raises:
        OptionError: the URL names no prefix.
    """
    if not server.prefix:
        raise OptionError(
            f"{server}: names no prefix; all keys of a cache begin with it: append ?prefix=name to the URL"
        )
    return f"{server.prefix}:head"


class Keys:
    """The keys of one cache, by the uuid in its head."""

    def __init__(self, server: Server, uuid: bytes) -> None:
        self.head = head_key(server)
        self._stem = f"{server.prefix}:{uuid.hex()[:_ID_LENGTH]}:"
        self.log = f"{self._stem}log"
        self.fillers = f"{self._stem}fillers"
        self._record = f"{self._stem}record:"

    def record(self, index: int) -> str:
        """Of the record of a sample."""
        return f"{self._record}{index}"

    def claim(self, number: int) -> str:
        """Of a claim."""
        return f"{self._stem}claim:{number}"

    def is_of_this(self, key: str) -> bool:
        """Whether one of our keys is of this uuid; the head is of none."""
        return key.startswith(self._stem)


def pattern(server: Server) -> str:
    """What SCAN is to match: all that begins as our keys do, and `is_ours` must sort out."""
    return _GLOB.sub(r"\\\1", head_key(server).removesuffix("head")) + "*"


def is_ours(server: Server, key: str) -> bool:
    """Whether a key is one that a cache of this prefix makes: not "prefix:users", nor one of "prefix:a"."""
    stem = head_key(server).removesuffix("head")
    return key.startswith(stem) and _OURS.fullmatch(key[len(stem) :]) is not None


def is_record(server: Server, key: str) -> bool:
    """Whether one of our keys is of a record."""
    return key[len(head_key(server)) - len("head") :].startswith("record:", _ID_LENGTH + 1)


def prefix_for(fingerprint: Mapping[str, Any]) -> str:
    """The prefix of a cache whose URL names none: by what is cached, whatever version of it."""
    told = {key: fingerprint.get(key) for key in ("type", "factory", "arguments", "attributes")}
    text = json.dumps(told, sort_keys=True)
    return f"edcache:{hashlib.sha256(text.encode('ascii')).hexdigest()[:16]}"
