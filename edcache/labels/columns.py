"""What to keep of each sample as label columns, and the one type that each column gets.

    LabelSpec        which fields of a sample are labels, and how their columns are called
    LabelCollector   takes them out of one sample after another, and makes a table per chunk
    unify            the tables of several chunks as one, with the same rules as inside a chunk

A column has one type. It is found from the values, not asked for, and grows only where no value changes:
null -> anything, narrow -> wide of one kind, integers and floats -> float64 where every integer is exact,
int64 and uint64 -> whichever holds all values. Everything else is a LabelTypeError that names the sample.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from edcache.errors import LabelError, LabelTypeError, OptionError, UnknownLabelError

FieldPath: TypeAlias = "str | int | tuple[str | int, ...]"
LabelSource: TypeAlias = "FieldPath | Callable[[Any], Any]"

_CONTAINERS = frozenset({dict, tuple, list})
_EXACT = 2**53  # every integer up to here is a float64
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_INT32 = range(-(2**31), 2**31)
_OFFSET_LIMIT = 2**31 - 1  # what the int32 offsets of string and list can address
_KINDS = "a bool, int, float, str, bytes, date or time, None, or a list of one of these"


# ---------------------------------------------------------------------------- which fields are labels


class LabelSpec:
    """The label columns that `in_memory_keys` asks for: their names, and where in a sample they lie.

    Make one with `LabelSpec.parse`. It pickles if its callables do.
    """

    def __init__(self, sources: Mapping[str, LabelSource]) -> None:
        self.names: tuple[str, ...] = tuple(sources)
        self._sources: tuple[LabelSource, ...] = tuple(sources.values())
        # A sample that is a plain dict, list or tuple answers these without a walk.
        plain = bool(sources) and all(isinstance(source, (str, int)) for source in self._sources)
        self._top_level = operator.itemgetter(*self._sources) if plain else None

    @classmethod
    def parse(cls, in_memory_keys: object) -> LabelSpec:
        """Read the user's `in_memory_keys`.

        Args:
            in_memory_keys: None; a list or tuple of field paths, each also the name of its column; or a
                mapping from name to field path or to a callable that gets the sample. A field path is
                a str ("image", "target.boxes"), an int, or a tuple of these.
        Raises:
            OptionError: anything else, an empty name, or two columns of one name.
        """
        if in_memory_keys is None:
            return cls({})
        if isinstance(in_memory_keys, Mapping):
            return cls({_checked_name(name): _checked_source(src) for name, src in in_memory_keys.items()})
        if isinstance(in_memory_keys, (list, tuple)):
            return cls(_named_by_path(in_memory_keys))
        example = in_memory_keys if isinstance(in_memory_keys, str) and in_memory_keys else "label"
        raise OptionError(
            f"in_memory_keys={_shown(in_memory_keys)} is {_article(in_memory_keys)}; give a list of field "
            f'paths or a mapping from names to them, for example in_memory_keys=["{example}"]'
        )

    def to_json(self) -> dict[str, object]:
        """What the archive's head records: name -> field path (a tuple as a list), None for a callable."""
        return {name: _json_source(source) for name, source in zip(self.names, self._sources, strict=True)}

    describe = to_json

    def extract(self, index: int, sample: Any) -> list[Any]:
        """The label values of one sample, in the order of `names`.

        Args:
            index: the sample's index, for the error alone.
            sample: the decoded sample; values are returned as they lie in it, not copied.
        Raises:
            LabelError: `label "lable": sample 3 has no field "lable"; its keys are "image", "label"; ...`.
                Also where a callable raises; its exception is the cause.
        Cost: 0.25 us per sample of a dict, list or tuple whose labels are on its top level.
        """
        if self._top_level is not None and type(sample) in _CONTAINERS:
            try:
                values = self._top_level(sample)
                return list(values) if len(self._sources) > 1 else [values]
            except (KeyError, IndexError, TypeError):
                pass  # a dotted path, or a missing field: the walk below tells them apart
        pairs = zip(self.names, self._sources, strict=True)
        return [_value(name, source, index, sample) for name, source in pairs]

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"LabelSpec({self.to_json()})"

    def source_of(self, name: str) -> LabelSource:
        """The field path or callable that fills the column `name`."""
        return self._sources[self.names.index(name)]


def _named_by_path(paths: Sequence[object]) -> dict[str, LabelSource]:
    sources: dict[str, LabelSource] = {}
    for path in paths:
        if callable(path):
            raise OptionError(
                "in_memory_keys holds a callable without a name; give a mapping, for example "
                'in_memory_keys={"label": lambda sample: ...}'
            )
        source = _checked_source(path)
        name = _checked_name(_rendered(source))
        if name in sources:
            raise OptionError(f'in_memory_keys names "{name}" twice; a label column has one source')
        sources[name] = source
    return sources


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise OptionError(f"in_memory_keys holds the column name {_shown(name)}; a name is a non-empty str")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise OptionError(f"in_memory_keys holds the column name {name!a}, which is not UTF-8") from None
    return name


def _checked_source(source: object) -> LabelSource:
    if isinstance(source, str) or _is_int(source):
        return source  # type: ignore[return-value]
    if isinstance(source, tuple) and source and all(isinstance(p, str) or _is_int(p) for p in source):
        return source
    if callable(source):
        return source
    raise OptionError(
        f"in_memory_keys holds {_shown(source)} ({_article(source)}); a field path is a str, an int or a "
        f'tuple of these, for example "label", "target.boxes", 1 or ("target", 0)'
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _rendered(source: LabelSource) -> str:
    return ".".join(map(str, source)) if isinstance(source, tuple) else str(source)


def _json_source(source: LabelSource) -> object:
    if isinstance(source, tuple):
        return list(source)
    return source if isinstance(source, (str, int)) else None


# ------------------------------------------------------------------------- a field path in one sample

_ABSENT = object()


def _value(name: str, source: LabelSource, index: int, sample: Any) -> Any:
    if isinstance(source, str):
        whole = _child(sample, source)
        return whole if whole is not _ABSENT else _walk(name, source, source.split("."), index, sample)
    if isinstance(source, int):
        return _walk(name, source, [source], index, sample)
    if isinstance(source, tuple):
        return _walk(name, source, source, index, sample)
    return _called(name, source, index, sample)


def _called(name: str, source: Callable[[Any], Any], index: int, sample: Any) -> Any:
    try:
        return source(sample)
    except Exception as error:
        raise LabelError(
            f'label "{name}": its function raised at sample {index}: {type(error).__name__}: {error}'
        ) from error


def _walk(name: str, source: FieldPath, parts: Sequence[str | int], index: int, sample: Any) -> Any:
    node = sample
    for depth, part in enumerate(parts):
        child = _child(node, part)
        if child is _ABSENT:
            raise _missing_field(name, source, parts[:depth], index, node)
        node = child
    return node


def _child(node: Any, part: str | int) -> Any:
    if isinstance(node, Mapping):
        return _mapping_child(node, part)
    if isinstance(part, str) and part in _field_names(node):
        return getattr(node, part)
    if isinstance(node, (list, tuple)):
        position = _position(part)
        if position is not None and -len(node) <= position < len(node):
            return node[position]
    return _ABSENT


def _mapping_child(node: Mapping[Any, Any], part: str | int) -> Any:
    # `in` first: a defaultdict would grow by the question.
    if part in node:
        return node[part]
    position = _position(part)
    return node[position] if position is not None and position in node else _ABSENT


def _position(part: str | int) -> int | None:
    if isinstance(part, int):
        return part
    return int(part) if part.isascii() and part.isdigit() and len(part) < 19 else None


def _field_names(node: Any) -> Iterable[str]:
    if isinstance(node, tuple):
        return getattr(node, "_fields", ())
    if dataclasses.is_dataclass(node):
        return [field.name for field in dataclasses.fields(node)]
    return ()


def _missing_field(
    name: str, source: FieldPath, walked: Sequence[str | int], index: int, node: Any
) -> LabelError:
    there = "" if not walked else f' at "{_rendered(tuple(walked))}"'
    shown = f'"{source}"' if isinstance(source, str) else repr(source)
    return LabelError(
        f'label "{name}": sample {index} has no field {shown}; {_contents(node, there)}; name a field that '
        f'every sample has, or give a callable: in_memory_keys={{"{name}": lambda sample: ...}}'
    )


def _contents(node: Any, there: str) -> str:
    what = f"what is{there}" if there else "it"
    if isinstance(node, Mapping):
        keys = [f'"{key}"' if isinstance(key, str) else _shown(key) for key in list(node)[:20]]
        more = ", ..." if len(node) > 20 else ""
        return f"{what} has the keys {', '.join(keys)}{more}" if keys else f"{what} is an empty dict"
    fields = list(_field_names(node))
    if fields:
        return f"{what} has the fields {', '.join(fields)}"
    if isinstance(node, (list, tuple)):
        return f"{what} is {_article(node)} of length {len(node)}"
    return f"{what} is {_article(node)}, which has no fields"


# --------------------------------------------------------------------------- one value and its type


class _Cell(NamedTuple):
    """One value as the column keeps it.

    `numbers` are the ints that decide about a wider type: all of them, or the least, the greatest and the
    first that is no float64.
    """

    type: pa.DataType
    value: Any
    numbers: Sequence[int] = ()


def numpy_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """The numpy dtype of an Arrow bool, integer or float type."""
    return _DTYPES[kind]  # kind.to_pandas_dtype() needs pandas before pyarrow 15


def widened_float16(array: pa.Array) -> pa.Array:
    """A float16 array as float32, which older pyarrow neither casts nor compares."""
    values = array.to_numpy(zero_copy_only=False).astype(np.float32)
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(values, mask=missing)


class _NotALabel(Exception):
    """A value that no column holds; the text says why, where the type alone does not."""


_NUMPY_TYPES: dict[type, pa.DataType] = {
    scalar: pa.from_numpy_dtype(np.dtype(scalar))
    for scalar in (
        *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.longlong),
        *(np.uint8, np.uint16, np.uint32, np.uint64, np.ulonglong),
        *(np.float16, np.float32, np.float64),
    )
}
_FLOATS = (float, np.float16, np.float32, np.float64)
_DTYPES = {kind: np.dtype(scalar) for scalar, kind in _NUMPY_TYPES.items()}
# No value of these classes can change a column's type, but for a str that is not UTF-8.
_SETTLED = frozenset({bool, bytes, np.bool_, *_FLOATS})
_INTS = frozenset({int, *(cls for cls, kind in _NUMPY_TYPES.items() if pa.types.is_integer(kind))})


def _cell(value: Any) -> _Cell:
    """The value of one sample: a scalar, or a flat list of scalars."""
    value = _from_tensor(value)
    if isinstance(value, np.ndarray):
        return _array_cell(value)
    if isinstance(value, (list, tuple)):
        return _list_cell([_scalar_cell(_from_tensor(item)) for item in value])
    return _scalar_cell(value)


def _from_tensor(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    if value.ndim > 1:
        raise _NotALabel
    if value.dtype == torch.bfloat16:
        value = value.float()
    try:
        return value.detach().cpu().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError):
        raise _NotALabel from None


def _scalar_cell(value: Any) -> _Cell:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if value is None:
        return _Cell(pa.null(), None)
    known = _NUMPY_TYPES.get(type(value))
    if known is not None:
        item = value.item()
        return _Cell(known, item, (item,) if pa.types.is_integer(known) else ())
    return _python_cell(value)


def _python_cell(value: Any) -> _Cell:
    if isinstance(value, bool):
        return _Cell(pa.bool_(), value)
    if isinstance(value, int):
        return _int_cell(int(value))
    if isinstance(value, float):
        return _Cell(pa.float64(), float(value))
    if isinstance(value, str):
        return _str_cell(value)
    if isinstance(value, bytes):
        return _Cell(pa.binary(), bytes(value))
    return _time_cell(value)


def _int_cell(value: int) -> _Cell:
    if value in _INT64:
        return _Cell(pa.int64(), value, (value,))
    if value in _UINT64:
        return _Cell(pa.uint64(), value, (value,))
    raise _NotALabel(f"an int of {value.bit_length()} bits, which neither int64 nor uint64 holds")


def _str_cell(value: str) -> _Cell:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _NotALabel(f"a str that is not UTF-8 ({_shown(value)})") from None
    return _Cell(pa.string(), str.__str__(value))


def _time_cell(value: Any) -> _Cell:
    if isinstance(value, np.datetime64):
        return _datetime64_cell(value)
    if isinstance(value, np.timedelta64):
        return _timedelta64_cell(value)
    if isinstance(value, dt.datetime):
        return _datetime_cell(value)
    if isinstance(value, dt.date):
        return _Cell(pa.date32(), np.datetime64(value, "D"))
    if isinstance(value, dt.timedelta):
        return _python_timedelta_cell(value)
    raise _NotALabel


def _datetime_cell(value: dt.datetime) -> _Cell:
    aware = value.tzinfo is not None
    if hasattr(value, "to_datetime64"):  # a pandas.Timestamp has nanoseconds, and converts to UTC
        cell = _datetime64_cell(value.to_datetime64())
        return cell._replace(type=pa.timestamp(cell.type.unit, "UTC")) if aware else cell
    if not aware:
        return _Cell(pa.timestamp("us"), np.datetime64(value, "us"))
    try:
        utc = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    except OverflowError:
        raise _NotALabel("a datetime outside the years 1 to 9999 in UTC") from None
    return _Cell(pa.timestamp("us", "UTC"), np.datetime64(utc, "us"))


def _datetime64_cell(value: np.datetime64) -> _Cell:
    unit = np.datetime_data(value.dtype)[0]
    if unit == "generic":
        return _Cell(pa.null(), None)  # only NaT has no unit
    if unit in ("Y", "M", "W", "D"):
        days = value.astype("M8[D]")
        if not np.isnat(days) and int(days.astype("i8")) not in _INT32:
            raise _NotALabel("a date outside the years that 32-bit days reach")
        return _Cell(pa.date32(), None if np.isnat(days) else days)
    return _ticks_cell(value, "M8", pa.timestamp)


def _timedelta64_cell(value: np.timedelta64) -> _Cell:
    unit = np.datetime_data(value.dtype)[0]
    if unit in ("Y", "M") or (unit == "generic" and not np.isnat(value)):
        raise _NotALabel(f"a timedelta64 without a fixed length (unit {unit})")
    return _Cell(pa.null(), None) if unit == "generic" else _ticks_cell(value, "m8", pa.duration)


def _ticks_cell(value: Any, code: str, arrow_type: Callable[[str], pa.DataType]) -> _Cell:
    unit = np.datetime_data(value.dtype)[0]
    if unit in ("ps", "fs", "as"):
        raise _NotALabel(f"a time in {unit}, finer than the ns that Arrow has")
    unit = unit if unit in ("s", "ms", "us", "ns") else "s"
    ticks = value.astype(f"{code}[{unit}]")
    return _Cell(arrow_type(unit), None if np.isnat(ticks) else ticks)


def _python_timedelta_cell(value: dt.timedelta) -> _Cell:
    micros = value // dt.timedelta(microseconds=1)
    if micros not in _INT64:
        raise _NotALabel("a timedelta longer than 64-bit microseconds reach")
    return _Cell(pa.duration("us"), np.timedelta64(micros, "us"))


def _array_cell(array: npt.NDArray[Any]) -> _Cell:
    if array.ndim == 0:
        return _scalar_cell(array[()])
    if array.ndim > 1:
        raise _NotALabel
    kind = _NUMPY_TYPES.get(array.dtype.type)
    if kind is None:
        return _list_cell([_scalar_cell(item) for item in array])
    # A copy: the caller may fill the same buffer again for the next sample.
    own = np.array(array, dtype=array.dtype.newbyteorder("="))
    return _Cell(pa.list_(kind), own, _deciding_numbers(own))


def _deciding_numbers(values: npt.NDArray[Any]) -> Sequence[int]:
    if values.dtype.kind not in "iu" or not values.size:
        return ()
    low, high = int(values.min()), int(values.max())
    if low >= -_EXACT and high <= _EXACT:
        return (low, high)
    size = np.where(values < 0, np.negative(values), values).astype(np.uint64)
    lowest_bit = size & (~size + np.uint64(1))
    inexact = np.flatnonzero((size >> np.uint64(53) >= lowest_bit) & (size > 0))
    return (low, high, *(int(value) for value in values[inexact[:1]]))


def _list_cell(items: list[_Cell]) -> _Cell:
    inner = _Type()
    try:
        for item in items:
            inner = inner.with_cell(item)
    except _Clash as clash:
        kinds = " and ".join(dict.fromkeys(str(item.type) for item in items))
        raise _NotALabel(f"a list of mixed types ({kinds}{clash})") from None
    numbers = [number for item in items for number in item.numbers]
    return _Cell(pa.list_(inner.arrow), [item.value for item in items], numbers)


# ------------------------------------------------------------------------- the type of many values


class _Clash(Exception):
    """Two values that make no column; the text is what else to know about the earlier one, or empty."""


class _Type(NamedTuple):
    """The type of the values so far, with the few facts about them that a wider type depends on."""

    arrow: pa.DataType = pa.null()
    negative: bool = False  # an int below 0
    beyond: bool = False  # an int of 2**63 or more
    inexact: int | None = None  # an int that is no float64

    def with_cell(self, cell: _Cell) -> _Type:
        return self.with_values(cell.type, cell.numbers)

    def with_values(self, kind: pa.DataType, numbers: Iterable[int]) -> _Type:
        """The type that also holds values of `kind`; _Clash if there is none."""
        arrow = _merged(self.arrow, kind)
        if arrow is None:
            raise _Clash
        negative, beyond, inexact = self.negative, self.beyond, self.inexact
        for number in numbers:
            negative = negative or number < 0
            beyond = beyond or number >= 2**63
            if inexact is None and abs(number) > _EXACT and int(float(number)) != number:
                inexact = number
        if _element(arrow) == pa.uint64() and not beyond and (_is_signed(self.arrow) or _is_signed(kind)):
            arrow = _with_element(arrow, pa.int64())
        return _Type(arrow, negative, beyond, inexact)._checked()

    def _checked(self) -> _Type:
        element = _element(self.arrow)
        if self.negative and self.beyond and pa.types.is_integer(element):
            raise _Clash(" with values that no one integer type holds together with this one")
        if self.inexact is not None and pa.types.is_floating(element):
            raise _Clash(f", and float64 does not hold {self.inexact} exactly")
        return self


def _merged(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """The type for values of both, or None.

    uint64 for a signed type with uint64 is a guess where the values decide: `_Type` corrects it.
    """
    if old == new or pa.types.is_null(new):
        return old
    if pa.types.is_null(old):
        return new
    if _is_list(old) and _is_list(new):
        inner = _merged(old.value_type, new.value_type)
        large = pa.types.is_large_list(old) or pa.types.is_large_list(new)
        return None if inner is None else (pa.large_list if large else pa.list_)(inner)
    if {old, new} == {pa.string(), pa.large_string()}:
        return pa.large_string()
    if {old, new} == {pa.binary(), pa.large_binary()}:
        return pa.large_binary()
    return _merged_numbers(old, new)


def _merged_numbers(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    integers = pa.types.is_integer(old) + pa.types.is_integer(new)
    floats = pa.types.is_floating(old) + pa.types.is_floating(new)
    if integers + floats != 2:
        return None
    if integers == floats:
        return pa.float64()
    wide = np.promote_types(numpy_dtype(old), numpy_dtype(new))
    # numpy makes float64 of uint64 and a signed type, which would round.
    return pa.uint64() if integers and wide.kind == "f" else pa.from_numpy_dtype(wide)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_signed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(_element(kind)))


def _element(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if _is_list(kind) else kind


def _with_element(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    if pa.types.is_large_list(kind):
        return pa.large_list(element)
    return pa.list_(element) if pa.types.is_list(kind) else element


# --------------------------------------------------------------------------------- collect a chunk


class LabelCollector:
    """Gathers the labels of samples, one after another, into a table per chunk.

    The types are checked against every sample that this collector has seen, so that the first sample
    that does not fit is named; the table of a chunk gets its types from the values of that chunk alone,
    so that its bytes do not depend on who wrote the chunks before it. `unify` joins them.
    """

    def __init__(self, spec: LabelSpec) -> None:
        self.spec = spec
        self._columns = [_Column(name, spec.source_of(name)) for name in spec.names]
        self._rows = 0

    def __len__(self) -> int:
        """Samples added since the last `take`."""
        return self._rows

    def add(self, index: int, sample: Any) -> None:
        """Keep the labels of one sample; after an error the collector is as it was before the call.

        Raises:
            LabelError: a field that the sample does not have.
            LabelTypeError: `label "y": sample 7 is a str ('cat'), earlier samples are int64; ...`.
        """
        values = self.spec.extract(index, sample)
        complete = False
        try:
            for column, value in zip(self._columns, values, strict=True):
                column.add(index, value)
            complete = True
        finally:
            if not complete:
                self._roll_back()
        self._rows += 1

    def _roll_back(self) -> None:
        for column in self._columns:
            column.roll_back(self._rows)

    def take(self) -> pa.Table:
        """The table of the samples added since the last call, row i = i-th of them; starts afresh."""
        arrays = [column.take() for column in self._columns]
        self._rows = 0
        return pa.table(arrays, names=list(self.spec.names))


class _Column:
    """The values of one label in the chunk at hand."""

    __slots__ = ("_chunk", "_class", "_low", "_name", "_seen", "_source", "_undo", "_values")

    def __init__(self, name: str, source: LabelSource) -> None:
        self._name = name
        self._source = source
        self._seen = _Type()
        self._chunk = _Type()
        self._values: list[Any] = []
        self._class: type | None = None  # the class whose next value needs no look at the types
        self._low = 0
        self._undo = (0, self._seen, self._chunk)

    def add(self, index: int, value: Any) -> None:
        cls = type(value)
        if value is None or (
            cls is self._class
            and (cls in _SETTLED or (value.isascii() if cls is str else self._low <= value <= _EXACT))
        ):
            self._values.append(value)
        else:
            self._add_checked(index, value)

    def _add_checked(self, index: int, value: Any) -> None:
        try:
            cell = _cell(value)
            seen, chunk = self._seen.with_cell(cell), self._chunk.with_cell(cell)
        except _NotALabel as problem:
            raise self._unsupported(index, value, str(problem)) from None
        except _Clash as clash:
            raise self._mixed(index, value, str(clash)) from None
        self._undo = (len(self._values), self._seen, self._chunk)
        self._seen, self._chunk = seen, chunk
        self._values.append(cell.value)
        self._low = -_EXACT if seen.negative and chunk.negative else 0
        cls = type(value)
        self._class = cls if cls in _SETTLED or cls in _INTS or cls is str else None

    def roll_back(self, rows: int) -> None:
        if len(self._values) > rows:
            del self._values[rows:]
            if self._undo[0] == rows:
                _, self._seen, self._chunk = self._undo
                self._class = None

    def take(self) -> pa.Array:
        array = _build(self._values, self._chunk.arrow)
        self._values, self._chunk, self._class = [], _Type(), None
        self._undo = (0, self._seen, self._chunk)
        return array

    def _unsupported(self, index: int, value: Any, reason: str) -> LabelTypeError:
        what = reason or _described(value)
        return LabelTypeError(
            f'label "{self._name}": sample {index} is {what}; a label is {_KINDS}; '
            f"{self._remedy('convert it')}"
        )

    def _mixed(self, index: int, value: Any, reason: str) -> LabelTypeError:
        return LabelTypeError(
            f'label "{self._name}": sample {index} is {_described(value)}, earlier samples are '
            f"{self._seen.arrow}{reason}; {self._remedy('make it one type')}"
        )

    def _remedy(self, verb: str) -> str:
        if not isinstance(self._source, (str, int)):
            return f"{verb} in the callable or the dataset"
        key = f'"{self._source}"' if isinstance(self._source, str) else str(self._source)
        return f'{verb}, for example in_memory_keys={{"{self._name}": lambda s: str(s[{key}])}}'


def _build(values: list[Any], kind: pa.DataType) -> pa.Array:
    """One Arrow array of the values, which are known to fit `kind`; no validity bitmap without a None."""
    if _is_list(kind):
        return _build_lists(values, kind)
    if _is_number(kind) or pa.types.is_boolean(kind):
        dtype = numpy_dtype(kind)
        return _build_numpy(values, dtype, dtype.type(0), kind)
    if pa.types.is_date32(kind):
        return _build_numpy(values, np.dtype("M8[D]"), np.datetime64(0, "D"), kind)
    if pa.types.is_timestamp(kind):
        dtype = np.dtype(f"M8[{kind.unit}]")
        return _build_numpy(values, dtype, np.datetime64(0, kind.unit), kind)
    if pa.types.is_duration(kind):
        dtype = np.dtype(f"m8[{kind.unit}]")
        return _build_numpy(values, dtype, np.timedelta64(0, kind.unit), kind)
    return pa.array(values, type=kind)


def _build_numpy(values: list[Any], dtype: np.dtype[Any], filler: Any, kind: pa.DataType) -> pa.Array:
    # Arrow's own conversion refuses ints beyond 2**53 in a float column, exact or not.
    if not any(value is None for value in values):
        return pa.array(np.array(values, dtype=dtype), type=kind)
    mask = np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    filled = [filler if value is None else value for value in values]
    return pa.array(np.array(filled, dtype=dtype), type=kind, mask=mask)


def _build_lists(values: list[Any], kind: pa.DataType) -> pa.Array:
    ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)])
    offsets = pa.array(ends, type=pa.int32())
    if any(value is None for value in values):
        mask = np.array([*(value is None for value in values), False])
        offsets = pa.array(ends.astype(np.int32), mask=mask)
    return pa.ListArray.from_arrays(offsets, _build_flat(values, kind.value_type))


def _build_flat(values: list[Any], element: pa.DataType) -> pa.Array:
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, np.ndarray) for value in present):
        flat = np.concatenate(present, dtype=numpy_dtype(element), casting="unsafe")
        return pa.array(flat, type=element)
    return _build([item for value in present for item in value], element)


# ----------------------------------------------------------------------------- the tables of chunks


def unify(tables: Sequence[pa.Table], where: str) -> pa.Table:
    """Join the label tables of several chunks, in their order, by the rules of this module.

    Args:
        tables: any number; none gives a table without columns. Columns are matched by name.
        where: what the error message begins with, usually the archive's path.
    Returns:
        A table with one contiguous array per column and no metadata. string and binary become their
        large_ forms past 2 GiB.
    Raises:
        LabelTypeError: `train.zip: label "y" is int64 in one chunk and string in another; ...`.
        LabelError: chunks with different columns.
    """
    if not tables:
        return pa.table({})
    names = _common_names([table.schema for table in tables], where)
    if not names:
        return tables[0] if len(tables) == 1 else pa.concat_tables([table.select([]) for table in tables])
    columns = [_unify_column(name, [table.column(name) for table in tables], where) for name in names]
    return pa.table(columns, names=names)


def check_compatible(old: pa.Schema, new: pa.Schema, where: str = "") -> pa.Schema:
    """The schema that `unify` would give for data of both, or its error, without any data.

    Where only the values could tell (int64 with uint64, integers with floats) this says yes, with
    uint64 and float64.
    """
    names = _common_names([old, new], where)
    fields = []
    for name in names:
        kind = _merged(old.field(name).type, new.field(name).type)
        if kind is None:
            raise _chunk_clash(name, old.field(name).type, new.field(name).type, "", where)
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _common_names(schemas: Sequence[pa.Schema], where: str) -> list[str]:
    first = list(schemas[0].names)
    for schema in schemas:
        if sorted(schema.names) != sorted(first):
            raise LabelError(
                f"{_prefix(where)}one chunk has the labels {', '.join(first) or '(none)'}, another "
                f"{', '.join(schema.names) or '(none)'}; write all chunks with the same in_memory_keys"
            )
    return first


def _unify_column(name: str, parts: Sequence[pa.ChunkedArray], where: str) -> pa.Array:
    whole, part = _Type(), parts[0]
    try:
        for part in parts:
            whole = whole.with_values(part.type, _numbers_of(part))
    except _Clash as clash:
        raise _chunk_clash(name, whole.arrow, part.type, str(clash), where) from None
    kind = _enlarged(whole.arrow, parts)
    chunks = [_cast(chunk, kind) for part in parts for chunk in part.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], type=kind)


def _numbers_of(part: pa.ChunkedArray) -> Iterable[int]:
    """The ints that decide about a wider type, of one column of one chunk."""
    if not pa.types.is_integer(_element(part.type)):
        return
    for chunk in part.chunks:
        flat = (chunk.flatten() if _is_list(part.type) else chunk).drop_null()
        yield from _deciding_numbers(flat.to_numpy(zero_copy_only=False))


def _enlarged(kind: pa.DataType, parts: Sequence[pa.ChunkedArray]) -> pa.DataType:
    if _is_list(kind):
        items = sum(len(chunk.flatten()) for part in parts if _is_list(part.type) for chunk in part.chunks)
        return pa.large_list(kind.value_type) if items > _OFFSET_LIMIT else kind
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    if kind in large and sum(part.nbytes for part in parts) > _OFFSET_LIMIT:
        return large[kind]
    return kind


def _cast(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    if chunk.type == kind:
        return chunk
    if pa.types.is_null(chunk.type):
        return pa.nulls(len(chunk), kind)
    if pa.types.is_float16(chunk.type):
        chunk = widened_float16(chunk)
    # Unchecked: Arrow would refuse exact ints past 2**53; _Type has seen every value.
    return pc.cast(chunk, kind, safe=False)


def _chunk_clash(name: str, old: pa.DataType, new: pa.DataType, reason: str, where: str) -> LabelTypeError:
    return LabelTypeError(
        f'{_prefix(where)}label "{name}" is {old} in one chunk and {new} in another{reason}; write it as '
        f'one type, for example in_memory_keys={{"{name}": lambda s: str(s["{name}"])}}'
    )


def _prefix(where: str) -> str:
    return f"{where}: " if where else ""


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


# ------------------------------------------------------------------------------------ for messages


def unknown_label(name: object, known: Sequence[str]) -> UnknownLabelError:
    """The error for a column that is not there, with those that are."""
    if known:
        return UnknownLabelError(f'no label "{name}"; this archive has: {", ".join(known)}')
    return UnknownLabelError(
        f'no label "{name}"; this archive has no labels; build it with in_memory_keys=["{name}"]'
    )


def _shown(value: object) -> str:
    """A short repr of a plain value; of others only the type, since a repr may be long or raise."""
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= 40 else f"{value[:37]!r}..."
    if isinstance(value, int) and value.bit_length() > 128:
        return f"of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, dt.date, dt.timedelta, np.generic)):
        return str(value)
    return f"<{type(value).__name__}>"


def _article(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _described(value: object) -> str:
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{_article(value)} of shape {tuple(shape)} and dtype {getattr(value, 'dtype', '?')}"
    if isinstance(value, (list, tuple)):
        return f"{_article(value)} of length {len(value)}{_first_item(value)}"
    shown = _shown(value)
    return _article(value) if shown.startswith("<") else f"{_article(value)} ({shown})"


def _first_item(value: Sequence[Any]) -> str:
    return f" that begins with {_described(value[0])}" if value else ""
