"""Attacks by number: the list that tests, README.md and the workshop share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from forge import Forge

THEMES = {
    "zip": "Zip directory and local headers",
    "chain": "Chain and entry headers",
    "head": "The head",
    "sizes": "Sizes and lengths",
    "index": "index.pages",
    "labels": "labels.arrow, label columns, Arrow",
    "schemas": "Schemas and codec",
    "records": "Records",
    "zstd": "Compression",
    "files": "Kinds of files",
    "images": "Encoded images",
    "revisions": "Revisions of labels",
}


class Attack(NamedTuple):
    """One hostile file.

    Attributes:
        theme, idea, naive: as README.md puts them; naive: what a trusting reader would do.
        call: the call that must refuse it: "open", "verify", "sample 0", ...; None where all are right.
        error: the type; for "verify", which reports instead, "". says: a part of the text.
        base: the sound archive that it is made from.
        forged: its values are the attacker's own and may be read. longer: its length is no original's.
    """

    theme: str
    idea: str
    naive: str
    call: str | None
    error: str
    says: str
    base: str
    forged: bool
    longer: bool
    make: Callable[[Any], Any]

    @property
    def name(self) -> str:
        return self.make.__name__


ATTACKS: list[Attack] = []


def attack(
    theme: str,
    idea: str,
    naive: str,
    call: str | None = "open",
    error: str = "CorruptArchiveError",
    says: str = "",
    *,
    base: str = "plain",
    forged: bool = False,
    longer: bool = False,
) -> Callable[[Callable[[Forge], Any]], Callable[[Forge], Any]]:
    """Put a generator on the list: it gets a Forge to change, or returns the bytes of a file."""

    def listed(make: Callable[[Forge], Any]) -> Callable[[Forge], Any]:
        kind = "" if call in ("verify", None) else error
        ATTACKS.append(Attack(theme, idea, naive, call, kind, says, base, forged, longer, make))
        return make

    return listed


def numbered() -> list[tuple[int, Attack]]:
    """All attacks in the order of README.md."""
    themes = list(THEMES)
    ordered = sorted(ATTACKS, key=lambda a: themes.index(a.theme))
    return list(enumerate(ordered, 1))
