"""`Recipe`: what makes the samples of a source, and how it differs from what made the samples of an archive.

- **Settings** make every sample: arguments of the call, attributes of the source and of what it holds. A difference is
  another source.
- **Columns** have one value a sample: a list of files, an array of targets. A longer source has the same first values.
- What **asks** is compared, and a sample that is computed again answers: public attributes of objects of libraries,
  private attributes, an int that is the length of the source then and now, and a path that led elsewhere.
- **Code** asks as well, see `code.py`.
- **State** is what computing a sample changes: a counter, a memo, a file that is opened. A fill describes its source
  before and after its first sample; what differs is noted by name, and counts no more.

A recipe of a call has the arguments of the call as settings, and of its source the columns alone. The archive keeps a
recipe as JSON in its head, which is one page: of many settings the first ones have their names there, and the others
one digest. A dict that a user gives as `fingerprint=` is the settings.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import os
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from edcache.base import OptionError, named, once
from edcache.format import KEYS_DIGEST
from edcache.identity.code import code_of, reached_from
from edcache.identity.settings import (
    DEFAULTS,
    KEYWORD_DEFAULTS,
    LONG,
    Described,
    Parts,
    Settings,
    digest_of,
    is_table,
    name_of,
    parts_of,
    shared_by_items,
    shortened,
)

_MOST_LEAVES: Final = 32
_SETTINGS_NBYTES: Final = 2_000
_ASKS_NBYTES: Final = 500
_CODE_NBYTES: Final = 900
_OTHERS: Final = "others"
_COLUMN_TEXT: Final = re.compile(r"[\[({]|range\(|ndarray\(|Tensor\(").match
_NAMES: Final = frozenset({"settings", "asks", "code", "columns", "count", "state"})
_ABSENT: Final = object()
# Kinds of columns, beside dicts and arrays.
_VALUES: Final = (list, tuple, range)
_Told: TypeAlias = Literal["", "keys", "versions"]
# Descriptions of None and of empty containers, which reading may fill.
_EMPTY: Final = (None, ["{}"], ["[]"], ["set()"])
_NO_LEAVES: Final = (type(None), bool, int, float, complex, str, bytes, dict, frozenset, list, set, tuple)


@dataclass(frozen=True)
class Recipe:
    """Recipe of samples: all that makes them, as far as it is known. The top of this file says how each part counts.

    settings, asks: descriptions and digests, by names such as `argument split`. code: digests by function or class.
    count: of samples. columns: the values themselves, by name. roots: names of folders by their paths, see `Settings`.
    again: describes the same call once more; None for a source. state: names that are not compared. seconds: that the
    call took.
    """

    settings: Mapping[str, Any]
    asks: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    count: int | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)
    again: Callable[[], Recipe] | None = None
    state: frozenset[str] = frozenset()
    seconds: float = 0.0

    def put_into(self, fingerprint: Mapping[str, Any] | None, state: Iterable[str] = ()) -> dict[str, Any]:
        """Return a fingerprint with this recipe in the place of the one that it has; its other entries stay.

        state: as of `to_json`.
        """
        rest = {name: value for name, value in (fingerprint or {}).items() if name not in _NAMES}
        return {**rest, **self.to_json(state)}

    def to_json(self, state: Iterable[str] = ()) -> dict[str, Any]:
        """Return the JSON that an archive keeps. state: names that are left out, and listed as state."""
        left = {*state}
        made = {
            "settings": _kept(self.settings, left, _SETTINGS_NBYTES),
            "asks": _kept(self.asks, left, _ASKS_NBYTES),
            "code": dict(self.code),
            "columns": _kept(self.texts, left, _CODE_NBYTES),
            "count": self.count,
            "state": sorted(left),
        }
        return {
            name: value for name, value in made.items() if value not in (None, {}, []) or name == "settings"
        }

    @property
    def is_made(self) -> bool:
        """True if it is of a call."""
        return "factory" in self.settings

    def changed(self, now: Recipe) -> tuple[str, ...]:
        """List the names that differ in a recipe that was made after a sample was computed: these are state."""
        pairs = [(self.settings, now.settings), (self.asks, now.asks), (self.texts, now.texts)]
        names = (
            name for one, other in pairs for name in {**one, **other} if one.get(name) != other.get(name)
        )
        return tuple(dict.fromkeys(names))

    @once
    def texts(self) -> dict[str, Any]:
        """Descriptions of the columns, as they are when this is read first."""
        return self.first(self.count)

    def first(self, count: int | None) -> dict[str, Any]:
        """Describe the first values of each column; None: all."""
        return {
            name: Settings(self.roots)
            .describe(
                dict(itertools.islice(values.items(), count))
                if isinstance(values, dict)
                else getattr(values, "iloc", values)[:count]  # of pandas by place, not by its index
            )
            .exact
            for name, values in self.columns.items()
        }


class Difference(NamedTuple):
    """Difference between the recipe of an archive and one of now: lines, and names of what asks."""

    settings: list[str]
    moved: list[str]
    asks: list[str]
    code: list[str]

    @property
    def asking(self) -> str:
        """Say in a message what asks for a sample; "" if nothing does."""
        lines = [f"the code of {', '.join(self.code)} changed"] if self.code else []
        return "; ".join([*lines, *([f"{', '.join(self.asks)} changed"] if self.asks else [])])


SAME: Final = Difference([], [], [], [])
"""Difference of equal recipes, or of recipes that are not compared."""


def told(fingerprint: Mapping[str, Any]) -> Recipe:
    """Make the recipe of `fingerprint={...}`, which a user gives: its items are the settings."""
    return Recipe({f"fingerprint {name}": value for name, value in fingerprint.items()})


def recipe_of_call(
    factory: Callable[..., Any], arguments: Mapping[str, Any], version: object = None
) -> Recipe:
    """Describe a call of a dataset factory, given every parameter by name; nothing is called."""
    walk = Settings()
    held, changing = _held(factory)
    given = {**held, **arguments, **changing}
    leaves = [(name, _Leaf(value, name not in changing, False, True)) for name, value in given.items()]
    exact, asks = _described(_opened(leaves, None, ""), walk, "argument")
    reached = reached_from([factory, *walk.met.values()])
    version_now = Settings().describe(version).exact
    settings = {"factory": name_of(factory), **exact, **_weights(reached, walk), "version": version_now}
    code = code_of(reached, _CODE_NBYTES, walk.describe) if version is None else {}
    again = functools.partial(recipe_of_call, factory, arguments, version)
    return Recipe(settings, asks, code, again=again)


def _held(factory: Callable[..., Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return values that a factory holds beside its parameters, by name: settings, and the ones that only ask.

    They are the arguments of a partial, the closure of a function, and `self` of a method or of an object.
    """
    if isinstance(factory, functools.partial):
        held, changing = _held(factory.func)
        # No parameter has such a name.
        return {"partial.func": name_of(factory.func), "partial.args": factory.args, **held}, changing
    if isinstance(factory, types.FunctionType):
        parts = parts_of(factory)
        defaults = {DEFAULTS, KEYWORD_DEFAULTS}  # they are arguments
        return {name: part for name, part in parts.exact.items() if name not in defaults}, parts.asking
    owner = getattr(factory, "__self__", factory)
    is_plain = isinstance(factory, type) or isinstance(owner, types.ModuleType)
    return {} if is_plain else {"self": owner}, {}


def recipe_of(source: Any, call: Recipe | None = None, more: Mapping[str, Any] | None = None) -> Recipe:
    """Describe a source by its class and attributes.

    A method `__edcache_fingerprint__` of the class returns a value that counts in the place of the attributes. A source
    with keys has no columns: its keys and versions stand for them.

    Args:
        call: the call that made the source; its settings are then these. more: settings beside these, by name.
    Raises: OptionError, it is a generator that has begun.
    """
    is_generator = isinstance(source, types.GeneratorType)
    if is_generator and inspect.getgeneratorstate(source) != inspect.GEN_CREATED:
        raise OptionError(
            f"the generator {source.__qualname__} has begun, and has no first sample; give it anew"
        )
    count, is_keyed = _count_of(source), tells(source, "sample_key")
    leaves = _leaves_of(source, count)
    columns = {f"attribute {k}": leaf.value for k, leaf in leaves.items() if leaf.is_column and not is_keyed}
    roots = _roots(leaves)
    walk = Settings(roots)
    if call is not None:
        named = {} if is_keyed else {name: leaf for name, leaf in leaves.items() if leaf.is_told}
        settings, asks = {**call.settings, **_described(named, walk)[0]}, {**call.asks}
        code = {**call.code, **code_of(reached_from([source]), _CODE_NBYTES, walk.describe)}
        code = code if call.settings["version"] is None else {}
    else:
        name = name_of(type(source)) + (f" {source.__qualname__}" if is_generator else "")
        exact, asks = _described(leaves, walk)
        held = [leaf.value for leaf in leaves.values()]
        met = [one if isinstance(one, type | types.FunctionType) else type(one) for one in held]
        reached = reached_from([source, *met, *walk.met.values()])
        settings = {"type": name, **(more or {}), **exact, **_weights(reached, walk)}
        code = code_of(reached, _CODE_NBYTES, walk.describe)
    if _told_by(source) == "keys":
        asks |= shared_of(source)
    again = None if call is None else call.again
    seconds = 0.0 if call is None else call.seconds
    made = Recipe(settings, asks, code, count, columns, roots, again, seconds=seconds)
    _ = made.texts  # of now: the source may change them
    return made


def _described(
    leaves: Mapping[str, _Leaf], walk: Settings, kind: str = "attribute"
) -> tuple[dict[str, Any], dict[str, str]]:
    """Describe attributes that are no columns: settings, and digests of what asks."""
    settings, asks = dict[str, Any](), dict[str, str]()
    for name, leaf in leaves.items():
        if leaf.is_column:
            continue
        value = os.fsdecode(leaf.value) if isinstance(leaf.value, os.PathLike) else leaf.value
        told = Described([leaf.word]) if leaf.word else walk.describe(value)
        exact = _note(asks, f"{kind} {name}", told, leaf.is_exact)
        if exact is not _ABSENT:
            settings[f"{kind} {name}"] = exact
    return settings, asks


def _note(asks: dict[str, str], name: str, told: Described, is_exact: bool) -> Any:
    """Note what asks of a value, and return the setting; _ABSENT if all of it only asks."""
    asked = told.asks if is_exact or told.exact in _EMPTY else told.asks + json.dumps(told.exact)
    if asked:
        asks[name] = digest_of(asked)
    if told.private:
        asks[f"inside of {name}"] = told.private
    return told.exact if is_exact else _ABSENT


def _weights(reached: Sequence[Any], walk: Settings) -> dict[str, Any]:
    """Describe the weights of modules of torch that code names, and code that this names, by class.

    Attributes of a module, which may count its calls, are constants of the code, and ask.
    """
    texts: dict[str, list[str]] = {}
    for module in reached:
        if isinstance(module, torch.nn.Module):
            parts = _parts(module)
            exact = {} if parts is None else parts.exact
            weights = exact.get("weights", exact)
            texts.setdefault(type(module).__name__, []).append(digest_of(walk.text(weights)))
    return {f"weights of {name}": shortened(", ".join(parts)) for name, parts in texts.items()}


def values_of(source: Any) -> dict[str, Any]:
    """Return the attributes of a source that have one value for each sample, by name."""
    return {
        name: leaf.value for name, leaf in _leaves_of(source, _count_of(source)).items() if leaf.is_column
    }


def shared_of(source: Any) -> dict[str, str]:
    """Digest names and dtypes of the tables and arrays that are columns, by name: a changed one changes no value."""
    shared = {name: shared_by_items(value) for name, value in values_of(source).items()}
    return {
        f"attribute {name}": digest_of(Settings().text(one))
        for name, one in shared.items()
        if one is not None
    }


def _leaves_of(source: Any, count: int | None) -> dict[str, _Leaf]:
    """List the attributes of a source by name."""
    return _leaves(source, count, _told_by(source))


def _told_by(source: Any) -> _Told:
    if not tells(source, "sample_key"):
        return ""
    return "versions" if tells(source, "sample_version") else "keys"


def _count_of(source: Any) -> int | None:
    if not (hasattr(type(source), "__len__") and hasattr(type(source), "__getitem__")):
        return None
    try:
        return len(source)
    except Exception:  # noqa: BLE001 - of the user's class: who needs the length raises it
        return None


def has_method(source: Any, name: str) -> bool:
    """True if a source has a method; one that its `__getattr__` hands on takes indices of what it wraps."""
    return inspect.getattr_static(source, name, None) is not None and hasattr(source, name)


def tells(source: Any, name: str) -> bool:
    """True if a source tells something of its samples, of one or of all: `sample_key` or `sample_keys`."""
    return has_method(source, name) or has_method(source, f"{name}s")


# --- attributes ---


class _Leaf(NamedTuple):
    """Attribute of a source, or of an object that it holds.

    is_exact: a difference is another source; else it only asks. is_told: `__edcache_fingerprint__` returned it.
    is_fixed: it belongs to an object that is no dataset, and so is no column. is_column: it has one value a sample.
    word: description of an object whose attributes are leaves of their own; "" for any other value.
    """

    value: Any
    is_exact: bool
    is_told: bool
    is_fixed: bool = False
    is_column: bool = False
    word: str = ""


def _leaves(source: Any, count: int | None, told: _Told) -> dict[str, _Leaf]:
    """List the attributes of a source by name, and in the place of an object among them its own, if few.

    told: what a source tells of its samples. Versions leave out what they stand for.
    """
    root = _Leaf(source, True, False)
    waiting = _children("", root, told)[1]
    if not waiting and (
        type(source) in (*_NO_LEAVES, range) or isinstance(source, np.ndarray | torch.Tensor)
    ):
        return {"content": root._replace(is_column=_has_items(source, count, told))}
    return _opened(waiting, count, told, id(source))


def _opened(
    named: Iterable[tuple[str, _Leaf]], count: int | None, told: _Told, around: int = 0
) -> dict[str, _Leaf]:
    """List values by name. An object among them is listed by its own attributes, and so on, up to `_MOST_LEAVES`.

    around: id() of the object that holds the values, so that it is not opened again inside itself.
    """
    waiting, seen, leaves = [*named], {around}, dict[str, _Leaf]()
    for name, leaf in waiting:
        if name == "in_memory_keys":  # they name labels
            continue
        is_column = not leaf.is_fixed and _has_items(leaf.value, count, told)
        leaves[name] = leaf._replace(is_column=is_column)
        if is_column or id(leaf.value) in seen or len(waiting) > _MOST_LEAVES:
            continue
        word, children = _children(name, leaf, told)
        if children and len(waiting) + len(children) <= _MOST_LEAVES:
            seen.add(id(leaf.value))
            leaves[name] = leaf._replace(word=word)
            if told == "versions" and children[0][1].is_told:
                del leaves[name]  # its class may be another one: a cache, and a view of it
            waiting += children
    return leaves


def _children(name: str, leaf: _Leaf, told: _Told) -> tuple[str, list[tuple[str, _Leaf]]]:
    """Return the attributes of an object, or the items of a short list or dict of objects, by full names.

    Returns: the word for the object itself, and these.
    """
    dot, value = f"{name}." if name else "", leaf.value
    kind = type(value)
    if kind in (dict, list, tuple):
        items = dict(value) if kind is dict else dict(enumerate(value[:_MOST_LEAVES]))
        is_short = name and len(value) < _MOST_LEAVES
        if not is_short or all(_parts(part) is None for part in items.values()):
            return "", []
        return kind.__name__, [(f"{name}[{key!r}]", leaf._replace(value=part)) for key, part in items.items()]
    parts = _parts(value)
    if parts is None or (name and parts.is_content and not _is_dataset(value)):
        return "", []
    is_fixed = leaf.is_fixed or not (name == "" or parts.is_told or _is_dataset(value))
    is_told, left = (
        leaf.is_told or parts.is_told,
        parts.columns if told == "versions" and parts.is_told else (),
    )
    # With keys samples come and go, and such a part with them: a sample that is computed again tells whether others
    # changed.
    rows = parts.columns if told and not parts.is_told else ()
    exact = [(key, part) for key, part in parts.exact.items() if key not in left]
    children = [
        (f"{dot}{key}", _Leaf(part, leaf.is_exact and key not in rows, is_told, is_fixed))
        for key, part in exact
    ]
    asking = [(f"{dot}{key}", _Leaf(part, False, False, is_fixed)) for key, part in parts.asking.items()]
    return parts.word, children + asking


def _parts(value: Any) -> Parts | None:
    """Return the parts of an object; None of a plain value, a container, an array, and of what has none."""
    if type(value) in _NO_LEAVES or isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return None
    with suppress(Exception):  # of the user's class
        parts = parts_of(value)
        return parts if parts.exact or parts.asking else None
    return None


def _is_dataset(value: Any) -> bool:
    kind = type(value)
    return (
        hasattr(kind, "__len__")
        and hasattr(kind, "__getitem__")
        and not isinstance(value, torch.nn.Module | Mapping)
    )


def _has_items(value: Any, count: int | None, told: _Told) -> bool:
    """True for a list, tuple, range, dict, array or table with one item a sample.

    With keys and no versions a dict is none: it need not be in the order of the samples, and a memo would become one.
    """
    if count is None:
        return False
    if isinstance(value, _VALUES):
        return type(value) in _VALUES and len(value) == count
    if (type(value) is dict and told != "keys") or is_table(value):
        return len(value) == count
    is_array = isinstance(value, np.ndarray | torch.Tensor) or (
        told == "versions" and hasattr(value, "__array__")
    )
    is_array = is_array and not isinstance(value, torch.nn.Parameter)
    is_array = is_array and not getattr(value, "is_nested", False)
    return is_array and tuple(np.shape(value)[:1]) == (count,)


def _roots(leaves: Mapping[str, _Leaf]) -> dict[str, str]:
    """Return names of absolute paths, the first ones last: a file below one moves with it."""
    values = [(name, leaf.value) for name, leaf in reversed([*leaves.items()])]
    paths = {os.fsdecode(value): name for name, value in values if isinstance(value, str | os.PathLike)}
    return {os.path.join(path, ""): name for path, name in paths.items() if os.path.isabs(path)}


def _kept(texts: Mapping[str, Any], left: set[str], nbytes: int) -> dict[str, Any]:
    """Return texts by name; the last ones as one digest, if all have more bytes."""
    kept = {shortened(name): text for name, text in texts.items() if name not in left}
    others = {}
    while len(json.dumps(kept)) > nbytes:
        name, others[name] = kept.popitem()
    return {**kept, _OTHERS: digest_of(json.dumps(others))} if others else kept


# --- comparing ---


def compare(found: Mapping[str, Any] | None, now: Recipe) -> Difference:
    """Compare the recipe that an archive keeps with one of now."""
    if found is None:
        return Difference(["the archive says nothing about where its samples come from"], [], [], [])
    state = {*now.state, *(name for name in found.get("state", []) if isinstance(name, str))}
    old, known, own = (_without(named(found, part), state) for part in ("settings", "columns", "asks"))
    new = _kept(now.settings, state, _SETTINGS_NBYTES)
    asks = dict[str, None]()
    known_code = named(found, "code")
    code = [name for name, digest in now.code.items() if known_code.get(name) != digest] if known_code else []
    is_made = "factory" in old
    if is_made != now.is_made:
        lines = [] if is_made else [f"made from an object of type {old.get('type')}"]
        return Difference([*lines, *_other_columns(found, now, state)], [], [], code)
    lines, moved = list[str](), list[str]()
    counts = found.get("count"), now.count
    for name in {**old, **new}:
        before, after = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if before is _ABSENT and name in known:
            before = known[name]
        line = f"{name}: {_shown(before)} in the archive, {_shown(after)} now"
        if _are_equal(before, after) or (after is _ABSENT and name in now.columns):
            continue
        if _ABSENT in (before, after) and is_made and name.startswith("attribute "):
            continue  # a call alone knows none
        is_lacking = KEYS_DIGEST in found and _ABSENT in (before, after)
        if (before, after) == counts or (is_lacking and _has_text_of_column(before, after)):
            asks[name] = None
        elif _is_elsewhere(before, after):
            moved.append(line)
            asks[name] = None
        elif _is_same_file(before, after):
            asks |= dict.fromkeys([name] if any(map(_is_link, (before, after))) else [])
        elif not (name == _OTHERS and lines):
            lines.append(line)
    their = _kept(now.asks, state, _ASKS_NBYTES)
    for name in {**own, **their}:
        before, after = own.get(name), their.get(name)
        is_known = not (is_made and name.startswith("attribute ") and None in (before, after))
        if before != after and is_known:  # a call alone knows no attributes
            asks[name] = None
    return Difference([*lines, *_other_columns(found, now, state)], moved, [*asks], code)


def _other_columns(found: Mapping[str, Any], now: Recipe, state: set[str]) -> Iterator[str]:
    """Yield a line for each column whose values for the samples of the archive are other ones now."""
    known, count = _without(named(found, "columns"), state), found.get("count")
    if now.count is None or not isinstance(count, int):
        return
    cut = _kept(now.first(count) if count < now.count else now.texts, state, _CODE_NBYTES)
    old, now_set = named(found, "settings"), now.settings
    for name in {**known, **cut}:
        before, after = known.get(name, old.get(name, _ABSENT)), cut.get(name, now_set.get(name, _ABSENT))
        is_compared = name in cut or name not in now_set  # else with the settings
        may_lack = _ABSENT in (before, after) and ("factory" in old or "._" in f".{name.partition(' ')[2]}")
        if is_compared and not may_lack and not _are_equal(before, after):
            yield f"{name}: {_shown(before)} in the archive, {_shown(after)} now"


def stale_message(path: str, now: Recipe, changed: Sequence[str], remedy: str) -> str:
    """Write the message of a StaleCacheError: the path, the differences line by line, and the remedy."""
    lines = "".join(f"\n  {line}" for line in changed)
    return f"{path}: made by another {'call' if now.is_made else 'source'}:{lines}\n{remedy}"


def _without(named_values: Mapping[str, Any], state: set[str]) -> dict[str, Any]:
    return {name: value for name, value in named_values.items() if name not in state}


def are_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if two fingerprints are of the same call or source.

    Two processes that begin one archive may note other seconds and other state of their first samples: that is no
    difference.
    """
    state = {*one.get("state", []), *other.get("state", [])}
    found: list[list[Any]] = []
    for side in (one, other):
        parts = (side.get(name) for name in (*_NAMES - {"state"}, "keys", "parents"))
        found.append([(_without(part, state) if isinstance(part, dict) else part) or None for part in parts])
    return found[0] == found[1]


def _are_equal(one: Any, other: Any) -> bool:
    if one is _ABSENT or other is _ABSENT:
        return one is other
    return json.dumps(one) == json.dumps(other)  # to Python True is 1


def _has_text_of_column(one: Any, other: Any) -> bool:
    """True for the text of a list, a tuple, a dict or an array, which one of two recipes lacks.

    In a source with keys and versions such a value is no setting: it only asks.
    """
    (value,) = (side for side in (one, other) if side is not _ABSENT)
    return isinstance(value, list) and _COLUMN_TEXT(value[0]) is not None


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
    text = value[0] if isinstance(value, list) and len(value) == 1 and type(value[0]) is str else repr(value)
    return text if len(text) <= LONG else text[:80] + "..."
