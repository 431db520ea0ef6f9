"""`Recipe`: what makes the samples of a source, and how it differs from what made the samples of an archive.

- **Settings** make every sample: arguments of the call, attributes of the source and of what it holds.
- **Columns** have one value a sample: a list of files, an array of targets. A longer source has the same first values.
  Of a source with keys they are left out: samples come and go, and their values with them.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from edcache.base import OptionError, once
from edcache.identity.code import OTHERS, code_of, reached_from
from edcache.identity.forms import OF_CLASS, form_of
from edcache.identity.settings import (
    DEFAULTS,
    IGNORE,
    KEYWORD_DEFAULTS,
    Described,
    Parts,
    Settings,
    digest_of,
    name_of,
    parts_of,
    shortened,
)
from edcache.identity.tables import is_table

_MOST_LEAVES: Final = 64
_SETTINGS_NBYTES: Final = 2_000
_ASKS_NBYTES: Final = 500
_CODE_NBYTES: Final = 900
_COLUMNS_NBYTES: Final = 900
OTHER_ATTRIBUTES: Final = "attribute (others)"
"""Name of the digest of attributes without a name of their own in a head; `OTHERS` is the one of all else."""
PARTS: Final = frozenset({"settings", "asks", "code", "columns", "count", "state"})
"""Entries of a fingerprint that a recipe makes."""
_ITEM: Final = re.compile(r"\['?([^\]']*)'?\]")
_ABSENT: Final = object()
# Kinds of columns, beside dicts and arrays.
_VALUES: Final = (list, tuple, range)
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
        rest = {name: value for name, value in (fingerprint or {}).items() if name not in PARTS}
        return {**rest, **self.to_json(state)}

    def to_json(self, state: Iterable[str] = ()) -> dict[str, Any]:
        """Return the JSON that an archive keeps. state: names that are left out, and listed as state."""
        left = {*state}
        made = {
            "settings": _kept(self.settings, left, _SETTINGS_NBYTES),
            "asks": _kept(self.asks, left, _ASKS_NBYTES),
            "code": dict(self.code),
            "columns": _kept(self.texts, left, _COLUMNS_NBYTES),
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
        described = dict[str, Any]()
        for name, values in self.columns.items():
            is_dict = isinstance(values, dict)
            # Pandas slices by place, not by its index.
            rows = (
                dict(itertools.islice(values.items(), count))
                if is_dict
                else getattr(values, "iloc", values)[:count]
            )
            described[name] = _with_form(Settings(self.roots).describe(rows).exact, rows)
        return described


def told(fingerprint: Mapping[str, Any]) -> Recipe:
    """Make the recipe of `fingerprint={...}`, which a user gives: its items are the settings."""
    return Recipe({f"fingerprint {name}": value for name, value in fingerprint.items()})


def recipe_of_call(
    factory: Callable[..., Any],
    arguments: Mapping[str, Any],
    version: object = None,
    ignored: Sequence[str] = (),
) -> Recipe:
    """Describe a call of a dataset factory, given every parameter by name; nothing is called.

    ignored: names of arguments, and of fields in them such as "cfg.lr", that are left out.
    Raises: OptionError, an ignored name leads to nothing.
    """
    walk = Settings()
    held, changing = _held(factory)
    given = {**held, **arguments, **changing}
    leaves = [(name, _Leaf(value, name not in changing, False, True)) for name, value in given.items()]
    left = {*ignored}
    exact, asks = _described(_opened(leaves, None, False, ignored=left, opens_dicts=True), walk, "argument")
    if unknown := [name for name in ignored if name in left]:
        there = ", ".join(name.removeprefix("argument ") for name in {**exact, **asks})
        raise OptionError(
            f'ignore= names "{unknown[0]}", and no argument of {name_of(factory)} has it; there are {there}',
            option="ignore",
        )
    reached = reached_from([factory, *walk.met.values()])
    version_now = Settings().describe(version).exact
    settings = {"factory": name_of(factory), **exact, **_weights(reached, walk), "version": version_now}
    code = code_of(reached, _CODE_NBYTES, walk.describe) if version is None else {}
    again = functools.partial(recipe_of_call, factory, arguments, version, ignored)
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

    A method `__edcache_fingerprint__` of the class returns a value that counts in the place of the attributes.

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
    leaves = _leaves(source, count, is_keyed)
    columns = {f"attribute {k}": leaf.value for k, leaf in leaves.items() if leaf.is_column and not is_keyed}
    roots = _roots(leaves)
    walk = Settings(roots)
    if call is not None:
        named = {} if is_keyed else {name: leaf for name, leaf in leaves.items() if leaf.is_told}
        settings, asks = {**call.settings, **_described(named, walk)[0]}, {**call.asks}
        own = code_of(reached_from([source]), _CODE_NBYTES, walk.describe)
        # A call that is described alone has the digest of its own others.
        own = {f"{name} of the source" if name == OTHERS else name: digest for name, digest in own.items()}
        code = {**own, **call.code} if call.settings["version"] is None else {}
    else:
        name = name_of(type(source)) + (f" {source.__qualname__}" if is_generator else "")
        exact, asks = _described(leaves, walk)
        held = [leaf.value for leaf in leaves.values()]
        met = [one if isinstance(one, type | types.FunctionType) else type(one) for one in held]
        reached = reached_from([source, *met, *walk.met.values()])
        settings = {"type": name, **(more or {}), **exact, **_weights(reached, walk)}
        code = code_of(reached, _CODE_NBYTES, walk.describe)
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
            thing = value if isinstance(value, type | types.FunctionType) else type(value)
            is_name = bool(leaf.word) or exact == [name_of(thing)]
            settings[f"{kind} {name}"] = [*exact, OF_CLASS] if is_name else _with_form(exact, value)
    return settings, asks


def _with_form(exact: Any, value: Any) -> Any:
    """Return a description with the form of its value; one that is no list tells its form by itself."""
    form = form_of(value) if isinstance(exact, list) else ""
    return [*exact, form] if form else exact


def _note(asks: dict[str, str], name: str, told: Described, is_exact: bool) -> Any:
    """Note the parts of a value that only ask. Return its setting, or _ABSENT if it has none."""
    asked = told.asks if is_exact or told.exact in _EMPTY else told.asks + json.dumps(told.exact)
    if asked:
        asks[name] = digest_of(asked)
    if told.private:
        asks[f"inside of {name}"] = told.private
    return told.exact if is_exact else _ABSENT


def _weights(reached: Sequence[Any], walk: Settings) -> dict[str, Any]:
    """Describe weights of modules of torch that the reached code names, by class of the module.

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


def _leaves(source: Any, count: int | None, is_keyed: bool) -> dict[str, _Leaf]:
    """List the attributes of a source by name, and in the place of an object among them its own, if few."""
    root = _Leaf(source, True, False)
    waiting = _children("", root, is_keyed)[1]
    is_array = isinstance(source, np.ndarray | torch.Tensor) or is_table(source)
    if not waiting and (type(source) in (*_NO_LEAVES, range) or is_array):
        return {"content": root._replace(is_column=_has_items(source, count, is_keyed))}
    return _opened(waiting, count, is_keyed, id(source), {*getattr(type(source), IGNORE, ())})


def _opened(
    named: Iterable[tuple[str, _Leaf]],
    count: int | None,
    is_keyed: bool,
    around: int = 0,
    ignored: set[str] = frozenset(),  # type: ignore[assignment]
    opens_dicts: bool = False,
) -> dict[str, _Leaf]:
    """List values by name. An object among them is listed by its own attributes, and so on, up to `_MOST_LEAVES`.

    around: id() of the object that holds the values, so that it is not opened again inside itself.
    ignored: names to leave out; the ones that are there are taken out of it. opens_dicts: False lists a dict of plain
    values as one, since it may be a memo.
    """
    waiting, seen, leaves = [*named], {around}, dict[str, _Leaf]()
    for name, leaf in waiting:
        own = dotted(name)
        if name == "in_memory_keys":  # they name labels
            continue
        if own in ignored:
            ignored.remove(own)
            continue
        is_asked_for = any(one.startswith(f"{own}.") for one in ignored)
        is_column = not leaf.is_fixed and _has_items(leaf.value, count, is_keyed)
        leaves[name] = leaf._replace(is_column=is_column)
        if is_column or id(leaf.value) in seen or not (is_asked_for or len(waiting) <= _MOST_LEAVES):
            continue
        word, children = _children(name, leaf, is_keyed, opens_dicts or is_asked_for)
        if children and (is_asked_for or len(waiting) + len(children) <= _MOST_LEAVES):
            seen.add(id(leaf.value))
            leaves[name] = leaf._replace(word=word)
            if is_keyed and children[0][1].is_told:
                del leaves[name]  # a view of a cache has another class, and the same samples
            waiting += children
    return leaves


def dotted(name: str) -> str:
    """Write the name of a leaf as `ignore=` gives it: cfg.lr for cfg['lr']."""
    return _ITEM.sub(r".\1", name)


def _children(
    name: str, leaf: _Leaf, is_keyed: bool, opens_dicts: bool = False
) -> tuple[str, list[tuple[str, _Leaf]]]:
    """Return the attributes of an object, or the items of a short list or dict of objects, by full names.

    Returns: the word for the object itself, and these.
    """
    dot, value = f"{name}." if name else "", leaf.value
    kind = type(value)
    if kind in (dict, list, tuple):
        items = dict(value) if kind is dict else dict(enumerate(value[:_MOST_LEAVES]))
        is_short = name and len(value) < _MOST_LEAVES
        is_config = kind is dict and opens_dicts and leaf.is_exact and _is_config(value)
        if not is_short or not (is_config or any(_parts(part) is not None for part in items.values())):
            return "", []
        return kind.__name__, [(f"{name}[{key!r}]", leaf._replace(value=part)) for key, part in items.items()]
    parts = _parts(value)
    if parts is None or (name and parts.is_content and not _is_dataset(value)):
        return "", []
    is_fixed = leaf.is_fixed or not (name == "" or parts.is_told or _is_dataset(value))
    is_told = leaf.is_told or parts.is_told
    left = parts.columns if is_keyed else ()
    children = [
        (f"{dot}{key}", _Leaf(part, leaf.is_exact, is_told, is_fixed))
        for key, part in parts.exact.items()
        if key not in left
    ]
    asking = [(f"{dot}{key}", _Leaf(part, False, False, is_fixed)) for key, part in parts.asking.items()]
    return parts.word, children + asking


def _is_config(values: dict[Any, Any]) -> bool:
    """True for a dict of settings by name: a message then names the one that differs."""
    arrays = np.ndarray | torch.Tensor
    return {*map(type, values)} == {str} and not any(isinstance(value, arrays) for value in values.values())


def _parts(value: Any) -> Parts | None:
    """Return the parts of an object; None of a plain value, a container, an array, a table, and of what has none."""
    is_array = isinstance(value, np.ndarray | np.generic | torch.Tensor)
    if type(value) in _NO_LEAVES or is_array or is_table(value):
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


def _has_items(value: Any, count: int | None, is_keyed: bool) -> bool:
    """True for a list, tuple, range, dict, array or table with one item a sample."""
    if count is None:
        return False
    if isinstance(value, _VALUES):
        return type(value) in _VALUES and len(value) == count
    if type(value) is dict or is_table(value):
        return len(value) == count
    is_array = isinstance(value, np.ndarray | torch.Tensor) or (is_keyed and hasattr(value, "__array__"))
    is_array = is_array and not isinstance(value, torch.nn.Parameter)
    is_array = is_array and not getattr(value, "is_nested", False)
    return is_array and tuple(np.shape(value)[:1]) == (count,)


def _roots(leaves: Mapping[str, _Leaf]) -> dict[str, str]:
    """Return names of absolute paths, the first ones last: a file below one moves with it."""
    values = [(name, leaf.value) for name, leaf in reversed([*leaves.items()])]
    paths = {os.fsdecode(value): name for name, value in values if isinstance(value, str | os.PathLike)}
    return {os.path.join(path, ""): name for path, name in paths.items() if os.path.isabs(path)}


def _kept(texts: Mapping[str, Any], left: set[str], nbytes: int) -> dict[str, Any]:
    """Return texts by name without the ones that are left out; the last ones as digests, if all have more bytes."""
    own = {shortened(name): text for name, text in texts.items() if name not in left}
    sizes = itertools.accumulate(len(json.dumps({name: text})) for name, text in own.items())
    return kept_as(texts, left, {name for name, size in zip(own, sizes, strict=True) if size <= nbytes})


def kept_as(texts: Mapping[str, Any], left: set[str], named: set[str]) -> dict[str, Any]:
    """Return texts by name without the ones that are left out; the ones that are not `named` as digests.

    Attributes have a digest of their own: a call that is described alone has none.
    """
    own = {shortened(name): text for name, text in texts.items() if name not in left}
    kept = {name: text for name, text in own.items() if name in named}
    for place in (OTHERS, OTHER_ATTRIBUTES):
        is_attribute = place == OTHER_ATTRIBUTES
        rest = {
            name: text
            for name, text in own.items()
            if name not in kept and name.startswith("attribute ") == is_attribute
        }
        if rest:
            kept[place] = digest_of(json.dumps(rest, sort_keys=True))
    return kept
