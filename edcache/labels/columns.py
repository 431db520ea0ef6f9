"""The labels of samples as columns: collected for one chunk, and joined over many.

LabelCollector   takes the labels out of one sample after another, and makes a table per chunk
unify            the tables of several chunks as one, with the same rules as inside a chunk
collected        one column from single values, with the same rules
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from edcache.errors import LabelError, LabelTypeError
from edcache.labels.arrays import from_numpy, from_texts, list_items, number_values, numpy_dtype
from edcache.labels.spec import LabelSource, LabelSpec
from edcache.labels.values import (
    EXACT,
    INTEGERS,
    SETTLED,
    Clash,
    ColumnType,
    NotALabel,
    cell_of,
    deciding_numbers,
    element_type,
    is_list,
    is_number,
    type_of_text,
    type_text,
    widened_float16,
)
from edcache.labels.wording import described

_OFFSET_LIMIT = 2**31 - 1  # what the int32 offsets of string and list can address
_PIECE = 1 << 20
_KINDS = "a bool, int, float, str, bytes, date or time, None, or a list of one of these"


class LabelCollector:
    """Gathers the labels of samples, one after another, into a table per chunk.

    The types are checked against every sample that this collector has seen, and against `seen`, the types
    of the archive's labels, so that the first sample that does not fit is named. The table of a chunk gets
    its types from the values of that chunk alone, so that its columns do not depend on who wrote the chunks
    before it. `unify` joins them.
    """

    def __init__(self, spec: LabelSpec, seen: LabelTypes | None = None) -> None:
        self.spec = spec
        types = seen.types if seen is not None else {}
        self._columns = [
            _Column(name, spec.source_of(name), types.get(name, ColumnType())) for name in spec.names
        ]
        self._rows = 0

    def __len__(self) -> int:
        """Samples added so far."""
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

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` samples; at most the last one may go."""
        self._rows = rows
        self._roll_back()

    def table(self) -> pa.Table:
        """The samples added so far, row i = i-th of them."""
        return pa.table([column.array() for column in self._columns], names=list(self.spec.names))

    def successor(self) -> LabelCollector:
        """An empty collector for the next chunk, which knows the types of all samples seen here."""
        following = LabelCollector(self.spec)
        following._columns = [column.successor() for column in self._columns]
        return following


class _Column:
    """The values of one label in the chunk at hand."""

    __slots__ = ("_chunk", "_class", "_low", "_name", "_seen", "_source", "_undo", "_values")

    def __init__(self, name: str, source: LabelSource, seen: ColumnType) -> None:
        self._name = name
        self._source = source
        self._seen = seen
        self._chunk = ColumnType()
        self._values: list[Any] = []
        self._class: type | None = None  # the class whose next value needs no look at the types
        self._low = 0
        self._undo = (0, self._seen, self._chunk)

    def add(self, index: int, value: Any) -> None:
        cls = type(value)
        if value is None or (
            cls is self._class
            and (cls in SETTLED or (value.isascii() if cls is str else self._low <= value <= EXACT))
        ):
            self._values.append(value)
        else:
            self._add_checked(index, value)

    def _add_checked(self, index: int, value: Any) -> None:
        try:
            cell = cell_of(value)
            seen, chunk = self._seen.with_cell(cell), self._chunk.with_cell(cell)
        except NotALabel as problem:
            raise self._unsupported(index, value, str(problem)) from None
        except Clash as clash:
            raise self._mixed(index, value, str(clash)) from None
        self._undo = (len(self._values), self._seen, self._chunk)
        self._seen, self._chunk = seen, chunk
        self._values.append(cell.value)
        self._low = -EXACT if seen.negative and chunk.negative else 0
        cls = type(value)
        self._class = cls if cls in SETTLED or cls in INTEGERS or cls is str else None

    def roll_back(self, rows: int) -> None:
        if len(self._values) > rows:
            del self._values[rows:]
            if self._undo[0] == rows:
                _, self._seen, self._chunk = self._undo
                self._class = None

    def __len__(self) -> int:
        return len(self._values)

    def array(self) -> pa.Array:
        return _build(self._values, self._chunk.arrow)

    def successor(self) -> _Column:
        return _Column(self._name, self._source, self._seen)

    def _unsupported(self, index: int, value: Any, reason: str) -> LabelTypeError:
        what = reason or described(value)
        return LabelTypeError(
            f'label "{self._name}": sample {index} is {what}; a label is {_KINDS}; '
            f"{self._remedy('convert it')}"
        )

    def _mixed(self, index: int, value: Any, reason: str) -> LabelTypeError:
        return LabelTypeError(
            f'label "{self._name}": sample {index} is {described(value)}, earlier samples are '
            f"{self._seen.arrow}{reason}; {self._remedy('make it one type')}"
        )

    def _remedy(self, verb: str) -> str:
        if not isinstance(self._source, (str, int)):
            return f"{verb} in the callable or the dataset"
        key = f'"{self._source}"' if isinstance(self._source, str) else str(self._source)
        return f'{verb}, for example in_memory_keys={{"{self._name}": lambda s: str(s[{key}])}}'


def _build(values: list[Any], kind: pa.DataType) -> pa.Array:
    """One Arrow array of the values, which are known to fit `kind`; no validity bitmap without a None."""
    if is_list(kind):
        return _build_lists(values, kind)
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if is_number(kind) or pa.types.is_boolean(kind):
        return _build_numpy(values, numpy_dtype(kind), kind)
    if pa.types.is_date32(kind):
        return _build_numpy(values, np.dtype("M8[D]"), kind)
    if pa.types.is_timestamp(kind):
        return _build_numpy(values, np.dtype(f"M8[{kind.unit}]"), kind)
    if pa.types.is_duration(kind):
        return _build_numpy(values, np.dtype(f"m8[{kind.unit}]"), kind)
    return from_texts(values, kind)


def _build_numpy(values: list[Any], dtype: np.dtype[Any], kind: pa.DataType) -> pa.Array:
    missing = None
    if any(value is None for value in values):
        missing = np.fromiter((value is None for value in values), np.bool_, len(values))
        filler = np.zeros((), dtype)[()]
        values = [filler if value is None else value for value in values]
    array = np.array(values, dtype=dtype)
    if dtype.kind in "mM":
        array = array.view(np.int64).astype(np.int32 if pa.types.is_date32(kind) else np.int64)
    return from_numpy(array, kind, missing)


def _build_lists(values: list[Any], kind: pa.DataType) -> pa.Array:
    ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)], dtype=np.int32)
    missing = np.array([*(value is None for value in values), False])
    offsets = from_numpy(ends, pa.int32(), missing if missing.any() else None)
    return pa.ListArray.from_arrays(offsets, _build_flat(values, kind.value_type))


def _build_flat(values: list[Any], element: pa.DataType) -> pa.Array:
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, np.ndarray) for value in present):
        flat = np.concatenate(present, dtype=numpy_dtype(element), casting="unsafe")
        return from_numpy(flat, element)
    return _build([item for value in present for item in value], element)


def unify(tables: Sequence[pa.Table], where: str, piece: str = "chunk") -> pa.Table:
    """Join the label tables of several chunks, in their order, by the rules of this module.

    Args:
        tables: any number; none gives a table without columns. Columns are matched by name.
        where: what the error message begins with, usually the archive's path.
        piece: what it calls that which a table is of.
    Returns:
        A table with one contiguous array per column and no metadata. string and binary become their
        large_ forms past 2 GiB.
    Raises:
        LabelTypeError: `train.zip: label "y" is int64 in one chunk and string in another; ...`.
        LabelError: chunks with different columns.
    """
    if not tables:
        return pa.table({})
    names = _common_names([table.column_names for table in tables], where)
    if not names:
        return tables[0] if len(tables) == 1 else pa.concat_tables([table.select([]) for table in tables])
    columns = [unify_column(name, [table.column(name) for table in tables], where, piece) for name in names]
    return pa.table(columns, names=names)


def collected(name: str, values: Iterable[tuple[int, Any]]) -> pa.Array:
    """One column of (index, value), as `collected_columns` makes several."""
    return collected_columns([name], ((index, [value]) for index, value in values))[name]


def collected_columns(names: Sequence[str], rows: Iterable[tuple[int, Sequence[Any]]]) -> dict[str, pa.Array]:
    """Columns of single values, by the rules of `LabelCollector`; at most a million of each are objects.

    Args:
        rows: (index of the sample, a value for each name); the index is for errors alone.
    Raises:
        LabelTypeError: as `LabelCollector.add`.
    """
    columns = [_Column(name, lambda sample: None, ColumnType()) for name in names]
    parts: list[list[pa.Array]] = [[] for _ in names]
    for index, values in rows:
        for k, value in enumerate(values):
            columns[k].add(index, value)
            if len(columns[k]) == _PIECE:
                parts[k].append(columns[k].array())
                columns[k] = columns[k].successor()
    for column, arrays in zip(columns, parts, strict=True):
        arrays.append(column.array())
    return {
        name: unify_column(name, [pa.chunked_array([part]) for part in arrays], "")
        for name, arrays in zip(names, parts, strict=True)
    }


def no_labels(names: Sequence[str]) -> pa.Table:
    """A label table with these columns and no rows."""
    return pa.table({name: pa.nulls(0) for name in names})


class LabelTypes:
    """The types of label columns over many chunks, with what decides whether one more chunk fits.

    Every chunk's table carries the types of all chunks up to it, so that a writer that knows only the
    last one still refuses what `unify` would refuse.
    """

    def __init__(self, types: Mapping[str, ColumnType]) -> None:
        self.types = dict(types)

    @classmethod
    def of(cls, table: pa.Table) -> LabelTypes:
        """The types of one chunk's labels."""
        columns = ((name, table.column(name)) for name in table.column_names)
        return cls({name: ColumnType().with_values(part.type, _numbers_of(part)) for name, part in columns})

    def joined(self, other: LabelTypes, where: str) -> LabelTypes:
        """The types of both together.

        Raises:
            LabelTypeError: `train.zip: label "y" is int64 in one chunk and string in another; ...`.
            LabelError: other columns.
        """
        types = {}
        for name in _common_names([list(self.types), list(other.types)], where):
            old, new = self.types[name], other.types[name]
            try:
                types[name] = old.with_values(new.arrow, new.witnesses())
            except Clash as clash:
                raise _chunk_clash(name, old.arrow, new.arrow, str(clash), where) from None
        return LabelTypes(types)

    def to_json(self) -> dict[str, Any]:
        """name -> [type, an int is negative, one is 2**63 or more, one that is no float64 or null]."""
        return {name: [type_text(kind.arrow), *kind[1:]] for name, kind in self.types.items()}

    @classmethod
    def from_json(cls, said: Any) -> LabelTypes:
        """Read what `to_json` made; ValueError for anything else."""
        if type(said) is not dict:
            raise ValueError("its label types are no object")
        return cls({name: _type_of_json(entry) for name, entry in said.items()})


def _type_of_json(entry: Any) -> ColumnType:
    if type(entry) is not list or len(entry) != 4:
        raise ValueError("one of its label types is none")
    text, negative, beyond, inexact = entry
    if type(negative) is not bool or type(beyond) is not bool or type(inexact) not in (int, type(None)):
        raise ValueError("one of its label types is none")
    if inexact is not None and not -(1 << 63) <= inexact < 1 << 64:
        raise ValueError("one of its label types has an integer beyond 64 bits")
    return ColumnType(type_of_text(text), negative, beyond, inexact)


def _common_names(chunks: Sequence[list[str]], where: str) -> list[str]:
    first = chunks[0]
    for names in chunks:
        if sorted(names) != sorted(first):
            raise LabelError(
                f"{_prefix(where)}one chunk has the labels {', '.join(first) or '(none)'}, another "
                f"{', '.join(names) or '(none)'}; write all chunks with the same in_memory_keys"
            )
    return first


def unify_column(name: str, parts: Sequence[pa.ChunkedArray], where: str, piece: str = "chunk") -> pa.Array:
    """The parts of one column as one contiguous array; raises as `unify`."""
    kind = column_type(name, parts, where, piece)
    chunks = [_cast(chunk, kind) for part in parts for chunk in part.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], type=kind)


def column_type(name: str, parts: Sequence[pa.ChunkedArray], where: str, piece: str = "chunk") -> pa.DataType:
    """The type of the parts of one column together; raises as `unify`."""
    whole, part = ColumnType(), parts[0]
    try:
        for part in parts:
            whole = whole.with_values(part.type, _numbers_of(part))
    except Clash as clash:
        raise _chunk_clash(name, whole.arrow, part.type, str(clash), where, piece) from None
    return _enlarged(whole.arrow, parts)


def _numbers_of(part: pa.ChunkedArray) -> Iterable[int]:
    """The ints that decide about a wider type, of one column of one chunk."""
    if not pa.types.is_integer(element_type(part.type)):
        return
    for chunk in part.chunks:
        yield from deciding_numbers(number_values(list_items(chunk) if is_list(part.type) else chunk))


def _enlarged(kind: pa.DataType, parts: Sequence[pa.ChunkedArray]) -> pa.DataType:
    if is_list(kind):
        items = sum(len(list_items(chunk)) for part in parts if is_list(part.type) for chunk in part.chunks)
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
    # Unchecked: Arrow would refuse exact ints past 2**53; ColumnType has seen every value.
    return chunk.cast(kind, safe=False)


def _chunk_clash(
    name: str, old: pa.DataType, new: pa.DataType, reason: str, where: str, piece: str = "chunk"
) -> LabelTypeError:
    return LabelTypeError(
        f'{_prefix(where)}label "{name}" is {old} in one {piece} and {new} in another{reason}; write it as '
        f'one type, for example in_memory_keys={{"{name}": lambda s: str(s["{name}"])}}'
    )


def _prefix(where: str) -> str:
    return f"{where}: " if where else ""
