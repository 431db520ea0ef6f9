"""Hides the credentials of URLs, of objects and of servers alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from typing_extensions import Self

# Shorter ones would blank out ordinary words.
_LEAST_SECRET: Final = 4


class ShownUrl(str):
    """A URL as text without its credentials, which go along, but into no pickle but a spawned child's."""

    @abstractmethod
    def _pickled(self, with_credentials: bool) -> tuple[Any, ...]:
        """The callable and its arguments by which a pickle makes it again."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self._pickled(get_spawning_popen() is not None)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """A text with *** in the place of each secret, percent-encoded or not."""
    known = {form for secret in secrets for form in (secret, unquote(secret)) if len(form) >= _LEAST_SECRET}
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
