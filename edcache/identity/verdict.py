"""`compare`: are the samples of an archive the ones that a source makes now? Every opening and every fill asks here.

1. The recipe that the archive keeps is compared with the one of now. `RULES` says of each kind of part what a
   difference does: it refuses, or it asks.
2. Where something asks, or where a sample is cheap, samples are computed again, and answer: see `samples.py`.

The answer is a `Verdict`; `RULES` also says what it does. An opening gives the recipe of its source or its call, and
its samples, if they can be computed there.

What must never happen: that a difference is passed over otherwise than `RULES` says; that a sample which cannot be
computed is taken for an equal one where a part asks.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from edcache import base
from edcache.base import SourceError, StaleCacheError, named
from edcache.format import KEYS_DIGEST
from edcache.identity.code import OTHERS
from edcache.identity.forms import form_of_stored
from edcache.identity.recipe import OTHER_ATTRIBUTES, PARTS, Recipe, dotted, kept_as
from edcache.identity.samples import (
    FEW_DRAWS,
    SECONDS,
    FirstSample,
    Other,
    Recomputed,
    Record,
    find_other,
    random_text,
)
from edcache.identity.settings import LONG, shortened

PartKind: TypeAlias = Literal["value", "form", "place", "inside", "code"]


class Rule(NamedTuple):
    """Reaction to a difference of one kind.

    part: as the documentation names it. differs: "refuse" or "ask". unknown: where no sample could be computed.
    unrepeated: for random samples, for streams, which may shuffle, and by spot_check=False, which does not warn.
    """

    part: str
    differs: Literal["refuse", "ask"]
    unknown: Literal["refuse", "warn"]
    unrepeated: Literal["refuse", "warn"]


RULES: Final[Mapping[PartKind, Rule]] = {
    "value": Rule(
        "a value: of an argument, an attribute, a column, weights, `version=`", "refuse", "refuse", "refuse"
    ),
    "form": Rule(
        "the same items in another order, or of another kind: a tuple for a list, `np.int64(4)` for `4`; the name of a "
        "class or a factory; an argument or an attribute that one side lacks",
        "ask",
        "refuse",
        "refuse",
    ),
    "place": Rule(
        "a path to the same files, which were moved, or through a link; an int that is the length, then and now",
        "ask",
        "refuse",
        "warn",
    ),
    "inside": Rule("public attributes of a library's object, private ones of yours", "ask", "refuse", "warn"),
    "code": Rule("code, and the values that it names", "ask", "warn", "warn"),
}
"""Kinds of parts, by the word that `_differences` gives them."""

_MOST_ASKED: Final = 8
_MOST_FAILING: Final = 8
_COLUMN: Final = re.compile(r"[\[({]|range\(|ndarray\(|Tensor\(").match
_ABSENT: Final = object()
# Names of settings with kinds of their own, as `Recipe` makes them.
_OF_NAMES: Final = "type", "factory"
_CUT: Final = OTHERS, OTHER_ATTRIBUTES
_MAY_LACK: Final = "argument ", "attribute ", "weights of ", *_OF_NAMES
_NOTHING: Final = "nothing that edcache compares has changed: look at settings elsewhere, files and libraries"
_REMEDY: Final = (
    ". Use another path, or build it anew: keep_existing=False, with @cachable another version= or "
    'on_stale="rebuild"'
)
_UNCHECKED: Final = "; spot_check=False opens it unchecked"


class Doubt(NamedTuple):
    """Part that asks: its kind, and a line about both values."""

    kind: PartKind
    line: str


@dataclass(frozen=True)
class Verdict:
    """Answer: the samples of an archive are the same, other ones, or unknown.

    refused: lines about parts that make it another source. asks: parts that ask, by name. is_call: True for the recipe
    of a call. is_told: False if the archive says nothing of its source.
    sample, other: position of a sample that is another one, and its field; -1 and None without one.
    is_answered: True if samples were compared, and are right. reason: why none was; "" leaves it to another process.
    is_repeated: False if samples are random. unrepeated: text about one that was met, and is random.
    """

    refused: tuple[str, ...] = ()
    asks: Mapping[str, Doubt] = field(default_factory=dict)
    is_call: bool = False
    is_told: bool = True
    sample: int = -1
    other: Other | None = None
    is_answered: bool = False
    reason: str = ""
    is_repeated: bool = True
    unrepeated: str = ""

    @property
    def kind(self) -> Literal["same", "other", "unknown"]:
        """Return the answer in a word."""
        if self.refused or self.other is not None:
            return "other"
        return "unknown" if self.asks and not self.is_answered else "same"

    @property
    def moved(self) -> list[str]:
        """List lines about files that are elsewhere now."""
        return [ask.line for ask in self.asks.values() if ask.kind == "place" and ask.line]

    @property
    def changes(self) -> str:
        """Say in a message what asks; "" if nothing does."""
        code = [name for name, ask in self.asks.items() if ask.kind == "code"]
        inside = [name for name, ask in self.asks.items() if ask.kind != "code" and not ask.line]
        lines = [ask.line for ask in self.asks.values() if ask.line]
        texts = [f"the code of {', '.join(code)} changed, or a value that it names"] if code else []
        return "; ".join([*texts, *([f"{', '.join(inside)} changed"] if inside else []), *lines])

    def message(self, path: str, remedy: str, more: Sequence[str] = ()) -> str:
        """Write what refuses, line by line, and the remedy. more: lines about other things that differ."""
        lines = "".join(f"\n  {line}" for line in (*self.refused, *more))
        remedy += "".join(_ways_out(self.refused))
        return f"{path}: made by another {'call' if self.is_call else 'source'}:{lines}\n{remedy}"

    def check(self, path: str, remedy: str = "", option: str = "keep_existing") -> Verdict:
        """Raise StaleCacheError if parts refuse; return the verdict. remedy: by default of a fill."""
        if not self.refused:
            return self
        remedy = remedy or "use another path, or pass keep_existing=False to build it anew"
        raise StaleCacheError(self.message(path, remedy), path=path, option=option)

    def check_begun(self, path: str) -> None:
        """Raise StaleCacheError if an archive without a sample, which could answer, may be of another source."""
        if self.must_be_answered:
            replace(self, is_repeated=False, reason="it has no sample yet").settle(path)

    @property
    def must_be_answered(self) -> bool:
        """True if a sample is to be equal before the archive is used."""
        return any(RULES[doubt.kind].unrepeated == "refuse" for doubt in self.asks.values())

    def settle(self, path: str) -> None:
        """Do what `RULES` says of the samples: raise StaleCacheError, warn, or nothing."""
        if self.unrepeated:
            base.warn(f"{path}: {self.unrepeated}", once=(path, self.unrepeated))
        if self.other is not None:
            what = self.changes or _NOTHING
            way_out = "" if self.must_be_answered else _UNCHECKED
            text = f"{path}: sample {self.sample} is another one now: {self.other}; {what}{_REMEDY}{way_out}"
            raise StaleCacheError(text, path=path, option="spot_check")
        if self.kind != "unknown" or not self.reason:
            return
        rules = [RULES[ask.kind] for ask in self.asks.values()]
        if "refuse" in [rule.unknown if self.is_repeated else rule.unrepeated for rule in rules]:
            text = f"{path}: {self.changes}, and {self.reason}{_REMEDY}"
            raise StaleCacheError(text, path=path, option="spot_check")
        base.warn(
            f"{path}: since this cache was made, {self.changes}, and {self.reason}; if it makes other samples now, "
            "build it anew or use another path; if not, spot_check=False, or with @cachable version=, silences this",
            once=(path, self.changes),
        )


class Recomputable(ABC):
    """Samples of an archive that a source can compute again; each door says how (`writer/recheck.py`).

    Attributes:
        path: of the archive. codec: of its samples. first: as its head knows the first sample.
        asked: `spot_check=` of the user. is_cheap: True if one is compared though nothing asks.
        is_here: False if another process compares, or the archive has no sample.
        is_repeated: False if samples are other ones each time, or can be asked for once.
        is_stream: True if it gives its samples from the first one on. passes_over: True if some may fail.
    """

    path: str
    codec: str
    first: FirstSample | None
    asked: bool | int | None
    is_cheap: bool
    is_here: bool
    is_repeated: bool
    is_stream: bool
    passes_over: bool

    @abstractmethod
    def drawn(self, most: int) -> list[tuple[int, int]]:
        """Draw samples, others each time: their positions in the source, and their numbers in the archive."""

    @abstractmethod
    def stored(self, number: int) -> Record:
        """Return schema and bytes of a record."""

    @abstractmethod
    def again(self, position: int, least: int, stored: Record) -> Recomputed | None:
        """Compute a sample again; None if the process that does it ends. Raises: as the source."""


def compare(
    found: Mapping[str, Any] | None, now: Recipe | None, samples: Recomputable | None = None
) -> Verdict:
    """Compare an archive with a source or a call.

    Args:
        found: fingerprint of the archive. now: None compares no recipes.
        samples: to compute again, if no part refuses; without them what asks stays unknown.
    """
    verdict = Verdict() if now is None else _compared_parts(found, now)
    if samples is None or verdict.refused or (now is None and samples.asked is None):
        return verdict
    return _asked(verdict, samples)


# --- parts ---


def _compared_parts(found: Mapping[str, Any] | None, now: Recipe) -> Verdict:
    if found is None or "settings" not in found:  # of keys, it may tell more
        refused = ["the archive says nothing about where its samples come from"] if now.is_made else []
        return Verdict(tuple(refused), is_call=now.is_made, is_told=False)
    refused, asks = list[str](), dict[str, Doubt]()
    for kind, name, line in _differences(found, now):
        if RULES[kind].differs == "refuse":
            refused.append(line)
        else:
            asks[name] = Doubt(kind, line)
    return Verdict(tuple(refused), asks, now.is_made)


def _differences(found: Mapping[str, Any], now: Recipe) -> Iterator[tuple[PartKind, str, str]]:
    """Yield kind, name and line of each part that differs."""
    state = {*now.state, *(name for name in found.get("state", []) if isinstance(name, str))}
    old = _without(named(found, "settings"), state)
    is_made = "factory" in old
    if is_made == now.is_made:
        yield from _other_settings(found, now, state)
        yield from _other_insides(found, now, state)
    elif not is_made:
        yield "value", "type", f"made from an object of type {old.get('type')}"
    elif "type" not in now.settings:  # it is what a user says as fingerprint=, and a call has none
        yield "value", "factory", f"made by a call of {old.get('factory')}, without fingerprint="
    yield from _other_columns(found, now, state)
    known = named(found, "code")
    yield from (
        ("code", name, "") for name, digest in now.code.items() if known and known.get(name) != digest
    )


def _other_settings(
    found: Mapping[str, Any], now: Recipe, state: set[str]
) -> Iterator[tuple[PartKind, str, str]]:
    old, known = (_without(named(found, part), state) for part in ("settings", "columns"))
    new, counts, is_refused = _cut(now.settings, old, state), (found.get("count"), now.count), False
    for name in {**old, **new}:
        before, after = old.get(name, known.get(name, _ABSENT)), new.get(name, _ABSENT)
        if _are_equal(before, after) or (after is _ABSENT and name in now.columns):
            continue
        if _ABSENT in (before, after) and now.is_made and name.startswith("attribute "):
            continue  # a call alone knows none
        kind = _kind_of(name, before, after, counts)
        pair = (before, after)
        if kind == "form" and KEYS_DIGEST in found and _ABSENT in pair and any(map(_is_of_column, pair)):
            kind = "place"  # with an item a sample it is no setting, and samples come and go
        if kind is None or (name in _CUT and is_refused):
            continue
        is_refused |= kind == "value"
        is_told = kind != "place" or _is_elsewhere(before, after)
        yield kind, name, f"{name}: {_shown(before)} in the archive, {_shown(after)} now" if is_told else ""


def _kind_of(name: str, before: Any, after: Any, counts: tuple[Any, Any]) -> PartKind | None:
    """Return which kind of difference two values have; None if they lead to one file."""
    if (before, after) == counts or _is_elsewhere(before, after):
        return "place"
    if _is_same_file(before, after):
        return "place" if any(map(_is_link, (before, after))) else None
    return _kind_of_values(name, before, after)


def _kind_of_values(name: str, before: Any, after: Any) -> PartKind:
    is_form = name in _OF_NAMES or _ABSENT in (before, after)
    is_form = is_form or form_of_stored(before) == form_of_stored(after) != ""
    return "form" if is_form and name.startswith(_MAY_LACK) and name not in _CUT else "value"


def _other_insides(
    found: Mapping[str, Any], now: Recipe, state: set[str]
) -> Iterator[tuple[PartKind, str, str]]:
    own = _without(named(found, "asks"), state)
    their = _cut(now.asks, own, state)
    for name in {**own, **their}:
        before, after = own.get(name), their.get(name)
        is_known = not (now.is_made and name.startswith("attribute ") and None in (before, after))
        if before != after and is_known:  # a call alone knows no attributes
            yield "inside", name, ""


def _other_columns(
    found: Mapping[str, Any], now: Recipe, state: set[str]
) -> Iterator[tuple[PartKind, str, str]]:
    """Yield each column whose values for the samples of the archive are other ones now."""
    known, count = _without(named(found, "columns"), state), found.get("count")
    if now.count is None or not isinstance(count, int):
        return
    cut = _cut(now.first(count) if count < now.count else now.texts, known, state)
    old, now_set = named(found, "settings"), now.settings
    for name in {**known, **cut}:
        before, after = known.get(name, old.get(name, _ABSENT)), cut.get(name, now_set.get(name, _ABSENT))
        is_compared = name in cut or name not in now_set  # else with the settings
        may_lack = _ABSENT in (before, after) and ("factory" in old or "._" in f".{name.partition(' ')[2]}")
        if is_compared and not may_lack and not _are_equal(before, after):
            line = f"{name}: {_shown(before)} in the archive, {_shown(after)} now"
            yield _kind_of_values(name, before, after), name, line


def are_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if two fingerprints are of the same call or source.

    Two processes that begin one archive may note other seconds and other state of their first samples: that is no
    difference.
    """
    state = {*one.get("state", []), *other.get("state", [])}
    sides: list[list[Any]] = []
    for side in (one, other):
        parts = (side.get(name) for name in (*PARTS - {"state"}, "keys", "parents"))
        sides.append([(_without(part, state) if isinstance(part, dict) else part) or None for part in parts])
    return sides[0] == sides[1]


def _cut(texts: Mapping[str, Any], known: Mapping[str, Any], state: set[str]) -> dict[str, Any]:
    """Return texts as an archive has them that names these: a longer one beside them changes no name."""
    is_cut = not known.keys().isdisjoint(_CUT)
    return kept_as(texts, state, {*known} if is_cut else {*map(shortened, texts)})


def _without(named_values: Mapping[str, Any], state: set[str]) -> dict[str, Any]:
    return {name: value for name, value in named_values.items() if name not in state}


def _are_equal(one: Any, other: Any) -> bool:
    if one is _ABSENT or other is _ABSENT:
        return one is other
    # Without forms, which are of whole paths. To Python True is 1.
    pair = [side[:1] if isinstance(side, list) else side for side in (one, other)]
    return json.dumps(pair[0]) == json.dumps(pair[1])


def _is_of_column(exact: Any) -> bool:
    """True for the description of a list, a tuple, a dict or an array."""
    return isinstance(exact, list) and _COLUMN(exact[0]) is not None


def _is_elsewhere(old: Any, new: Any) -> bool:
    """True if a path leads nowhere any more, and another one, which is there, ends alike."""
    if not (type(old) is type(new) is str and os.path.isabs(old) and os.path.isabs(new)):
        return False
    names = {os.path.basename(os.path.normpath(path)) for path in (old, new)}
    # A text such as "/train/images", the key of an HDF5 file, leads nowhere either.
    return len(names) == 1 and not os.path.exists(old) and os.path.exists(new)


def _is_same_file(old: Any, new: Any) -> bool:
    """True if two paths, one of them an absolute one, lead to one file."""
    with suppress(OSError, TypeError, ValueError):
        return (os.path.isabs(old) or os.path.isabs(new)) and os.path.samefile(old, new)
    return False


def _is_link(path: Any) -> bool:
    """True if a path leads through a link, which may have led elsewhere."""
    return isinstance(path, str) and os.path.realpath(path) != os.path.abspath(path)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = value[0] if isinstance(value, list) and value and type(value[0]) is str else repr(value)
    return text if len(text) <= LONG else text[:80] + "..."


def _ways_out(lines: Sequence[str]) -> Iterator[str]:
    """Yield how to leave out what makes no samples: arguments, and attributes of a source."""
    names = [line.partition(":")[0].partition(" ") for line in lines]
    for part, how in (
        ("argument", "@cachable(ignore=[{}])"),
        ("attribute", "__edcache_ignore__ = [{}] in the class of the source"),
    ):
        # A function of `map` has no class for it, and weights always make samples.
        own = [
            dotted(name)
            for kind, _, name in names
            if kind == part and not name.startswith("fn.") and not name.endswith(".weights")
        ]
        if own:
            fields = ", ".join(f'"{name}"' for name in own)
            yield f"; leave out what makes no samples: {how.format(fields)}"


# --- samples ---


def _asked(verdict: Verdict, samples: Recomputable) -> Verdict:
    """Compare samples until `_count` are equal, or one is another one."""
    if not samples.is_here:
        return verdict
    if samples.asked is not None and not samples.asked:
        reason = "spot_check=False computes none" if verdict.must_be_answered else ""
        return replace(verdict, is_repeated=False, reason=reason)
    most = _count(verdict, samples)
    reason, right = "no sample was computed again to compare it" if verdict.asks else "", 0
    try:
        # Some may fail, as the user expects.
        pairs = samples.drawn(most + _MOST_FAILING * samples.passes_over) if most else []
    except SourceError as error:  # of a call that makes the source
        return replace(verdict, reason=f"no sample was compared: {error}")
    verdict = replace(verdict, is_repeated=samples.is_repeated and not samples.is_stream)
    for position, number in pairs:
        try:
            is_compared, other = recheck(samples, position, number, bool(verdict.asks))
        except Exception as error:  # noqa: BLE001 - of the source, or the record is damaged: who needs it sees it
            why = str(error).removeprefix(f"{samples.path}: ").partition("\n")[0]
            reason = f"sample {position} was not compared: {why}"
            if samples.passes_over:
                continue
            break
        if not is_compared:
            break
        if other is not None and other.is_random:
            verdict = replace(verdict, unrepeated=random_text(position, other), is_repeated=False)
            reason = "its samples are other ones each time that they are computed" if verdict.asks else ""
            continue
        if other is not None:
            return replace(verdict, sample=position, other=other)
        right += 1
        if right == most:
            break
    return replace(verdict, is_answered=right > 0, reason="" if right else reason)


def _count(verdict: Verdict, samples: Recomputable) -> int:
    """Count the samples to compare: several if a part asks, since a change may show in few."""
    if not samples.is_repeated:
        return 0
    if samples.asked is not None and samples.asked is not True:
        return samples.asked
    if not verdict.asks:
        return int(samples.asked or samples.is_cheap)
    if samples.first is None:
        return 1
    return max(1, min(_MOST_ASKED, int(SECONDS / max(samples.first.seconds, 1e-9))))


def recheck(samples: Recomputable, position: int, number: int, is_asked: bool) -> tuple[bool, Other | None]:
    """Compute a sample until it is equal to its record, or is known to repeat.

    is_asked: True if something else has changed, so that a field that is only near is another one.
    Returns: True if it was compared; and a field that is another one.
    """
    stored, records, other = samples.stored(number), list[Record](), None
    for least in (1, FEW_DRAWS):  # one that differs may be another one each time
        again = samples.again(position, least, stored)
        if again is None:
            return False, None
        known, records = records, [*dict.fromkeys([*records, *again.records])]
        if records == known:
            break  # to compare a large record takes longer than to compute it
        if samples.is_stream and len(records) > 1:  # as of a stream that shuffles
            return False, None
        other = find_other(stored, records, samples.first, samples.codec, is_asked)
        if other is None:
            break
    return True, other
