"""How the credentials of a URL are hidden, of an object and of a server alike."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from typing_extensions import Self

_USERINFO: Final = re.compile(r"(?<=://)[^/?#]*@")
# Shorter ones would blank out ordinary words.
_LEAST_SECRET: Final = 4


class ShownUrl(str):
    """A URL as text without its credentials, which go along, but into no pickle but a spawned child's."""

    @abstractmethod
    def _pickled(self, with_credentials: bool) -> tuple[Any, ...]:
        """What a pickle calls to make it again."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self._pickled(get_spawning_popen() is not None)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def without_userinfo(url: str) -> str:
    """A URL without what is before the last @ of its authority, however that is written."""
    return _USERINFO.sub("", url)


def userinfo_of(url: str) -> str:
    """What `without_userinfo` takes away, without the @."""
    matched = _USERINFO.search(url)
    return matched[0][:-1] if matched else ""


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """A text with *** in the place of each secret, percent-encoded or not."""
    known = {form for secret in secrets for form in (secret, unquote(secret)) if len(form) >= _LEAST_SECRET}
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
