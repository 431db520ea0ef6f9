"""`LabelSpec`: the fields of a sample that are labels, the names of their columns, and their values in a sample."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from edcache.base import Ints, LabelError, OptionError, article, foreign_code, shown
from edcache.codec import namedtuple_fields
from edcache.format import MAX_NAME_NBYTES, column_name, from_numpy, pa

LabelPath: TypeAlias = "str | int | tuple[str | int, ...]"
LabelSource: TypeAlias = "LabelPath | Callable[[Any], Any] | OfIndex"


@dataclasses.dataclass(frozen=True)
class OfIndex:
    """Label that the index of a sample tells. values: by index."""

    values: Sequence[Any] | Mapping[int, Any] | pa.Array

    def at(self, index: int) -> Any:
        """Return the value of a sample."""
        value = self.values[index]
        return value.as_py() if isinstance(value, pa.Scalar) else value

    def of(self, indices: Ints) -> list[Any] | pa.Array:
        """Return the values of samples."""
        if isinstance(self.values, pa.Array):
            return self.values.take(from_numpy(indices, pa.int64()))
        return [self.values[index] for index in indices.tolist()]


_CONTAINERS = frozenset({dict, tuple, list})


class LabelSpec:
    """Label columns of `in_memory_keys`: their names, and their field paths or functions."""

    def __init__(self, sources: Mapping[str, LabelSource]) -> None:
        self.sources = dict(sources)
        self.names = tuple(sources)
        # A plain dict, list or tuple needs no walk for these.
        plain = bool(sources) and all(isinstance(source, (str, int)) for source in sources.values())
        self._top_level = operator.itemgetter(*sources.values()) if plain else None

    @classmethod
    def parse(cls, in_memory_keys: object) -> LabelSpec:
        """Parse the user's `in_memory_keys`; OptionError unless None, a list of field paths, or a mapping."""
        if isinstance(in_memory_keys, Mapping):
            return cls({checked_name(name): _check_source(src) for name, src in in_memory_keys.items()})
        if in_memory_keys is None or isinstance(in_memory_keys, (list, tuple)):
            return cls(_name_by_path(in_memory_keys or ()))
        example = in_memory_keys if isinstance(in_memory_keys, str) and in_memory_keys else "label"
        raise OptionError(
            f"in_memory_keys={shown(in_memory_keys)} is {article(in_memory_keys)}; give a list of field "
            f'paths or a mapping from names to them, for example in_memory_keys=["{example}"]',
            option="in_memory_keys",
        )

    def to_json(self) -> dict[str, object]:
        """Map names to field paths (a tuple as a list), None for a callable, for the archive's head."""
        plain = {n: list(path) if isinstance(path, tuple) else path for n, path in self.sources.items()}
        return {n: None if callable(path) or isinstance(path, OfIndex) else path for n, path in plain.items()}

    def extract(self, index: int, sample: Any) -> list[Any]:
        """Return the label values of one sample, not copied; LabelError names the sample and its fields."""
        if self._top_level is not None and type(sample) in _CONTAINERS:
            try:
                values = self._top_level(sample)
                return list(values) if len(self.names) > 1 else [values]
            except (KeyError, IndexError, TypeError):
                pass  # a dotted path, or a missing field: the walk below tells them apart
        return [value_of(name, source, index, sample) for name, source in self.sources.items()]

    def of(self, indices: Sequence[int]) -> LabelSpec:
        """Keep the labels that an index tells of some samples alone, as it is sent to where these are computed."""
        few = {
            name: OfIndex({index: source.at(index) for index in indices})
            if isinstance(source, OfIndex)
            else source
            for name, source in self.sources.items()
        }
        return LabelSpec(few)

    def only(self, names: Iterable[str]) -> LabelSpec:
        """Keep the columns of these names."""
        chosen = set(names)
        return LabelSpec({name: source for name, source in self.sources.items() if name in chosen})


def _name_by_path(paths: Sequence[object]) -> dict[str, LabelSource]:
    sources: dict[str, LabelSource] = {}
    for path in paths:
        if callable(path):
            raise OptionError(
                "in_memory_keys holds a callable without a name; give a mapping, for example "
                'in_memory_keys={"label": lambda sample: ...}'
            )
        source = _check_source(path)
        name = checked_name(_render(source))
        if name in sources:
            raise OptionError(f'in_memory_keys names "{name}" twice; a label column has one source')
        sources[name] = source
    return sources


def checked_name(name: object, told: str = "in_memory_keys holds") -> str:
    """Return the name if a label column can have it; else OptionError, which begins with `told`."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"{told} the column name {shown(name)}; a name is a non-empty str")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{told} the column name {name!a}, which is not UTF-8") from None
    if len(column_name(name)) > MAX_NAME_NBYTES:
        raise OptionError(
            f"{told} a column name of {len(name):,} characters, {shown(name)}; give a shorter one"
        )
    return name


def _check_source(source: Any) -> LabelSource:
    parts = source if isinstance(source, tuple) else (source,)
    is_path = parts and all(isinstance(part, (str, int)) and not isinstance(part, bool) for part in parts)
    if is_path or callable(source):
        return source  # type: ignore[no-any-return]
    raise OptionError(
        f"in_memory_keys holds {shown(source)} ({article(source)}); a field path is a str, an int or a "
        f'tuple of these, for example "label", "target.boxes", 1 or ("target", 0)'
    )


def _render(source: LabelSource) -> str:
    return ".".join(map(str, source)) if isinstance(source, tuple) else str(source)


_ABSENT = object()


def _raised(name: str, index: int, error: Exception) -> LabelError:
    text = f'label "{name}": its function raised at sample {index}: {type(error).__name__}: {error}'
    return LabelError(text, index=index)


def value_of(name: str, source: LabelSource, index: int, sample: Any) -> Any:
    """Return the value of one label of a sample; raises as `LabelSpec.extract`."""
    if isinstance(source, OfIndex):
        return source.at(index)
    if callable(source):
        with foreign_code(lambda error: _raised(name, index, error)):
            return source(sample)
    parts = source if isinstance(source, tuple) else (source,)
    if isinstance(source, str):
        whole = _child(sample, source)
        if whole is not _ABSENT:
            return whole
        parts = tuple(source.split("."))
    node = sample
    for depth, part in enumerate(parts):
        child = _child(node, part)
        if child is _ABSENT:
            field = f'"{source}"' if isinstance(source, str) else repr(source)
            what = f'what is at "{_render(parts[:depth])}"' if depth else "it"
            raise LabelError(
                f'label "{name}": sample {index} has no field {field}; {_contents(node, what)}; name a field '
                f'that every sample has, or give a callable: in_memory_keys={{"{name}": lambda sample: ...}}',
                index=index,
            )
        node = child
    return node


def _child(node: Any, part: str | int) -> Any:
    """Return the child of a node for one part of a field path; _ABSENT without one."""
    is_digits = isinstance(part, str) and part.isascii() and part.isdigit() and len(part) < 19
    position = int(part) if isinstance(part, int) or is_digits else None
    if isinstance(node, Mapping):
        # `in` first: a look-up would make a defaultdict grow.
        keys = (key for key in (part, position) if key is not None and key in node)
        return next((node[key] for key in keys), _ABSENT)
    if isinstance(part, str) and part in _field_names(node):
        return getattr(node, part)
    if isinstance(node, (list, tuple)) and position is not None and -len(node) <= position < len(node):
        return node[position]
    return _ABSENT


def _field_names(node: Any) -> Iterable[str]:
    if isinstance(node, tuple):
        return namedtuple_fields(type(node)) or ()
    if dataclasses.is_dataclass(node):
        return [field.name for field in dataclasses.fields(node)]
    return ()


def _contents(node: Any, what: str) -> str:
    if isinstance(node, Mapping):
        keys = [f'"{key}"' if isinstance(key, str) else shown(key) for key in list(node)[:20]]
        more = ", ..." if len(node) > 20 else ""
        return f"{what} has the keys {', '.join(keys)}{more}" if keys else f"{what} is an empty dict"
    fields = list(_field_names(node))
    if fields:
        return f"{what} has the fields {', '.join(fields)}"
    if isinstance(node, (list, tuple)):
        return f"{what} is {article(node)} of length {len(node)}"
    return f"{what} is {article(node)}, which has no fields"
