"""`RecordIndex`: where the record of every sample lies, by the pages of an index, in memory or fetched."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from edcache import codec, format
from edcache.base import CorruptArchiveError, Ints, once
from edcache.format import LINES, Extent, IndexRoot, IndexTable

Fetch = Callable[[Sequence[Extent]], list[memoryview | None]]
"""`fetch(parts)` reads parts of the payload of index.pages together; None for what fails its crc32."""

# Pages that were fetched are kept up to so many bytes.
_MOST_KEPT_NBYTES: Final = 1 << 26
# Of so many records the offsets take a megabyte.
_FEW: Final = 1 << 17
_UNBOUNDED: Final = 1 << 61
_INDEX, _OFFSET, _NBYTES, _RAW, _SCHEMA = range(len(LINES))
_FORMATS: Final[dict[int, Literal["B", "H", "I", "Q"]]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
_LATTICE_BITS: Final = format.LATTICE.bit_length() - 1


class Lines:
    """One column of all pages: value(row) = base + row * stride, and what the row's page has besides.

    Args:
        base, stride: int64 [pages], counted from row 0.
        parts: width -> (place, step, unit), int64 [pages] each. Besides, the value has
            `view[place + row * step] * unit`, where `view` has numbers of `width` bytes. Pages of other
            widths have a step and a unit of 0.
    """

    def __init__(self, base: Ints, stride: Ints, parts: dict[int, tuple[Ints, Ints, Ints]]) -> None:
        self.base, self.stride, self.parts = base, stride, parts
        # One number for all pages is used without looking at the pages of rows.
        self._line = _common(base), _common(stride)
        self._parts = [(width, *map(_common, part)) for width, part in parts.items()]
        numbers = [*self._line, *(number for part in self._parts for number in part[1:])]
        self.is_common = all(type(number) is int for number in numbers)

    @classmethod
    def of(cls, root: IndexRoot, column: int) -> Lines:
        """Those of a column, by its place in `LINES`."""
        pages, first = root.pages, np.arange(len(root.pages)) << root.bits
        stride = np.full(len(pages), int(column == _INDEX))
        if column == _OFFSET:
            stride = pages["stride"].copy()
        widths = [root.widths(k) for k in range(column + 1)]
        rows = np.full(len(pages), 1 << root.bits)
        rows[-1:] = root.rows - (first[-1:] if len(first) else 0)
        starts = pages["at"] + sum(-(-rows * width // 8) * 8 for width in (4, *widths[:-1]))
        parts = {}
        for width in sorted(set(widths[-1].tolist()) - {0}):
            has = (widths[-1] == width).astype(np.int64)
            unit = has << (_LATTICE_BITS if column == _OFFSET else 0)
            parts[width] = (starts // width - first) * has, has, unit
        return cls(pages["base"][:, column] - first * stride, stride, parts)

    def at(self, rows: Ints, pages: Ints, views: Callable[[int], Any]) -> Ints:
        """The values of rows, which lie in these pages: int64 [n].

        Args:
            pages: not looked at where `is_common`. views: the memory as numbers of a width.
        """
        base, stride = (number if type(number) is int else number[pages] for number in self._line)
        values: Ints = rows * stride + base
        for width, *part in self._parts:
            place, step, unit = (number if type(number) is int else number[pages] for number in part)
            places = (rows if type(step) is int else rows * step) + place
            values += views(width)[places] * unit
        return values


def _common(values: Ints) -> Any:
    """The number that all values are, or the array."""
    return int(values[0]) if len(values) and np.all(values == values[0]) else values


def numbers(memory: memoryview, width: int) -> npt.NDArray[Any]:
    """Memory as numbers of so many bytes; what is left at its end is not in it."""
    # Signed, so that a sum with int64 is one; no writer makes a difference of 2**63.
    whole = len(memory) // width * width
    return np.frombuffer(memory[:whole], f"<{'i' if width == 8 else 'u'}{width}")


def joined_lines(
    indices: Sequence[RecordIndex], memories: Sequence[int], first_rows: Sequence[int], column: int
) -> Lines:
    """The lines of one column of several indices in one memory, whose pages and rows are counted on.

    Args:
        memories: where the payload of each begins in that memory, a multiple of 8.
        first_rows: the number of the first row of each.
    """
    each = [index.lines(column) for index in indices]
    bases = [one.base - row * one.stride for one, row in zip(each, first_rows, strict=True)]
    parts = {}
    for width in sorted({width for one in each for width in one.parts}):
        columns = []
        for one, at, row in zip(each, memories, first_rows, strict=True):
            none = np.zeros_like(one.base)
            place, step, unit = one.parts.get(width, (none, none, none))
            columns.append((place + (at // width - row) * step, step, unit))
        place, step, unit = (np.concatenate(column) for column in zip(*columns, strict=True))
        parts[width] = place, step, unit
    return Lines(np.concatenate(bases), np.concatenate([one.stride for one in each]), parts)


class _Page:
    """One page for look-ups of single rows: numbers, and the differences as memoryviews."""

    __slots__ = ("base", "crc32", "differences", "first", "nbytes", "offset", "offsets", "sizes", "stride")

    def __init__(self, root: IndexRoot, number: int, data: memoryview) -> None:
        page, rows = root.pages[number], root.page_rows(number)
        widths = root.page_widths(number)
        places = format.places(rows, widths)
        self.first = number << root.bits
        self.base, self.stride = page["base"].tolist(), int(page["stride"])
        self.crc32 = data[: 4 * rows].cast("I")
        self.differences = [
            data[at : at + rows * width].cast(_FORMATS[width]) if width else None
            for at, width in zip(places[1:], widths, strict=False)
        ]
        self.offsets, self.sizes = self.differences[_OFFSET], self.differences[_NBYTES]
        self.nbytes, self.offset = self.base[_NBYTES], self.base[_OFFSET] - self.first * self.stride


class RecordIndex:
    """Where the record of every sample lies: by row, which is by rising index of the samples that have one.

    Args:
        root: what the table of pages says. size: bytes of the file, within which all records lie.
        memory: the payload of index.pages; None reads a page at a time.
        fetch: reads a part of it, with its crc32. None needs no check, and has `memory`.
        where: the archive's path, and remedy: what helps, for messages.
    Attributes:
        rows, length, schemas, failures, labels: as in `IndexRoot`.
    Raises: CorruptArchiveError, at the first use of a page: it fails its crc32, or points out of the file.
    Safety: threads and forks may use it at once; two may check one page.
    """

    def __init__(
        self,
        root: IndexRoot,
        size: int,
        *,
        memory: memoryview | None = None,
        fetch: Fetch | None = None,
        where: str = "",
        remedy: str = "",
    ) -> None:
        self.root, self.rows, self.length = root, root.rows, root.length
        self.schemas, self.failures, self.labels = root.schemas, root.failures, root.labels
        self.is_dense, self.is_compressed = root.rows == root.length, root.is_compressed
        self.memory, self._size = memory, size
        self._where, self._remedy = where, remedy
        self._fetch = fetch
        self._bits, self._mask = root.bits, (1 << root.bits) - 1
        self._pages: list[_Page | None] = [None] * len(root.pages)
        self._nbytes = root.nbytes.tolist()
        self._kept: deque[int] = deque()
        self._kept_nbytes = 0
        self._is_checked = np.full(len(root.pages), fetch is None)
        # Of pages that differ from their lines in nothing only the crc32s are read.
        self._is_plain = root.pages["widths"] == 0
        self._unchecked = int(np.count_nonzero(~(self._is_checked | self._is_plain)))
        self._lines: dict[int, Lines] = {}
        self._views: dict[int, Any] = {}
        self._first = root.pages["base"][:, _INDEX].tolist()
        self._offsets: Ints | None = None
        self._asked = 0
        # The schema of all records, where they have one.
        schema = -1 if np.any(root.widths(_SCHEMA)) else _common(root.pages["base"][:, _SCHEMA])
        self.only_schema: int | None = schema if type(schema) is int and schema >= 0 else None

    @classmethod
    def of(cls, table: IndexTable) -> RecordIndex:
        """That of records that were not read from index.pages."""
        data, table_nbytes = format.pack_index(table)
        memory = memoryview(data)
        root = format.parse_root(
            memory[len(data) - table_nbytes :], len(table.records.offset), len(data), _UNBOUNDED
        )
        return cls(root, _UNBOUNDED, memory=memory)

    @property
    def nbytes(self) -> int:
        """Bytes of private memory, but for `memory`."""
        # The lines of all columns take about as much as what they are made of.
        kept = 0 if self._offsets is None else self._offsets.nbytes
        return self._kept_nbytes + 2 * self.root.pages.nbytes + kept

    # --- samples and rows ---

    def find(self, index: int) -> int | None:
        """The row of an index in range; None without a record."""
        if self.is_dense:
            return index
        number = bisect_right(self._first, index) - 1
        if number < 0:
            return None
        page = self._pages[number] or self._load(number)
        slot, rows = index - page.base[_INDEX], self.root.page_rows(number)
        differences = page.differences[_INDEX]
        if differences is not None:
            base = page.base[_INDEX]
            slot = bisect_left(range(rows), index, key=lambda k: base + k + differences[k])
            if slot < rows and base + slot + differences[slot] != index:
                return None
        return page.first + slot if slot < rows else None

    def rows_of(self, indices: Ints) -> Ints:
        """The rows of samples in [0, length): int64 [n]; -1 without a record."""
        if self.is_dense:
            return indices
        rows = np.full(len(indices), -1)
        pages = np.searchsorted(self.root.pages["base"][:, _INDEX], indices, "right") - 1
        for number in _distinct(pages[pages >= 0]):
            chosen = np.flatnonzero(pages == number)
            held = self._column(number, _INDEX, np.arange(self.root.page_rows(number)))
            slots = np.minimum(np.searchsorted(held, indices[chosen]), len(held) - 1)
            there = held[slots] == indices[chosen]
            rows[chosen[there]] = (number << self._bits) + slots[there]
        return rows

    def sample_of(self, row: int) -> int:
        """The sample of a row."""
        return row if self.is_dense else int(self.samples(np.array([row]))[0])

    def held(self) -> Ints | None:
        """The samples that have a record: int64 [rows]; None if all have one."""
        if self.is_dense:
            return None
        pages = range(len(self._pages))
        each = [self._column(k, _INDEX, np.arange(self.root.page_rows(k))) for k in pages]
        return np.concatenate([np.empty(0, np.int64), *each])

    # --- one row ---

    def place(self, row: int) -> tuple[int, int]:
        """(offset, nbytes) of a record, as it is stored, from the start of the file."""
        page = self._pages[row >> self._bits] or self._load(row >> self._bits)
        offset, nbytes = page.offset + row * page.stride, page.nbytes
        if page.offsets is not None:
            offset += page.offsets[row - page.first] << _LATTICE_BITS
        if page.sizes is not None:
            nbytes += page.sizes[row - page.first]
        return offset, nbytes

    def schema(self, row: int) -> int:
        """The number of a record's schema."""
        return self._value(row, _SCHEMA)

    def raw_nbytes(self, row: int) -> int:
        """The bytes of a record before compression."""
        return self._value(row, _RAW)

    def _value(self, row: int, column: int) -> int:
        page = self._pages[row >> self._bits] or self._load(row >> self._bits)
        differences = page.differences[column]
        base: int = page.base[column]
        return base if differences is None else base + differences[row - page.first]

    def crc32(self, row: int) -> int:
        """The crc32 of a record as it is stored."""
        number = row >> self._bits
        page = self._pages[number] or self._load(number)
        if not self._is_checked[number]:
            self._check([number])
        return int(page.crc32[row - page.first])

    # --- many rows ---

    def samples(self, rows: Ints) -> Ints:
        """The samples of rows: int64 [n]."""
        return rows if self.is_dense else self._at(rows, _INDEX)

    def offsets(self, rows: Ints) -> Ints:
        """Where records begin, in bytes from the start of the file: int64 [n]."""
        if self._offsets is not None:
            return self._offsets[rows]
        # Of few records they are kept, once so many were asked for that it is worth it.
        if self.rows <= _FEW and self.memory is not None:
            self._asked += len(rows)
            if self._asked > self.rows:
                self._offsets = self._at(np.arange(self.rows), _OFFSET)
        return self._at(rows, _OFFSET)

    def sizes(self, rows: Ints) -> Ints:
        """The bytes of records as they are stored: int64 [n]."""
        return self._at(rows, _NBYTES)

    def raw_sizes(self, rows: Ints) -> Ints:
        """The bytes of records before compression: int64 [n]."""
        return self._at(rows, _RAW if self.is_compressed else _NBYTES)

    def schemas_of(self, rows: Ints) -> Ints:
        """The numbers of the schemas of records: int64 [n]."""
        return self._at(rows, _SCHEMA)

    def _at(self, rows: Ints, column: int) -> Ints:
        """A column of rows in [0, rows)."""
        if self.memory is None:
            self.prepare(rows)
            pages, values = rows >> self._bits, np.empty(len(rows), np.int64)
            for number in _distinct(pages):
                chosen = pages == number
                values[chosen] = self._column(number, column, rows[chosen] & self._mask)
            return values
        lines = self._lines.get(column) or self.lines(column)
        pages = rows
        if self._unchecked or not lines.is_common:
            pages = rows >> self._bits
            if self._unchecked:
                self._check_pages(pages)
        return lines.at(rows, pages, self.view)

    def lines(self, column: int) -> Lines:
        """A column of all pages, by its place in `LINES`."""
        self._lines[column] = lines = Lines.of(self.root, column)
        return lines

    def view(self, width: int) -> npt.NDArray[Any]:
        """The payload in memory as numbers of so many bytes."""
        view = self._views.get(width)
        if view is None:
            assert self.memory is not None
            view = self._views[width] = numbers(self.memory, width)
        return view

    def check_all(self) -> None:
        """Check every page that differs from its lines."""
        self._check_pages(np.arange(len(self._pages)))

    def is_uniform(self, decoder: codec.Decoder) -> bool:
        """True if a gather of any records by a decoder of the first one stays within them."""
        pages, column = self.root.pages, _RAW if self.is_compressed else _NBYTES
        sizes = pages["base"][:, column]
        if decoder.structure is None or self.only_schema is None:
            return False
        is_fixed = not np.any(self.root.widths(column)) and int(sizes.max()) == decoder.fixed_nbytes
        return int(sizes.min()) >= decoder.fixed_nbytes and (decoder.nbytes is None or is_fixed)

    # --- all of it ---

    def table(self) -> IndexTable:
        """The index as arrays, in new memory."""
        pages = ((number, self._check([number])[0]) for number in range(len(self._pages)))
        parts = (format.unpack_page(self.root, *page).columns() for page in pages)
        return format.table_of(self.root, list(parts), self.blocks)

    @once
    def blocks(self) -> Ints:
        """int64 [chunks, 3], a row of `Blocks` of each chunk."""
        root = self.root
        try:
            part = Extent(root.blocks_at, 24 * root.chunks, root.blocks_crc)
            return format.parse_blocks(self._sound([part], ["the list of chunks"])[0])
        except CorruptArchiveError as error:
            raise CorruptArchiveError(f"{self._where}: {error}{self._remedy}") from error

    # --- pages ---

    def _sound(self, parts: Sequence[Extent], names: Sequence[str]) -> list[memoryview]:
        """Parts of the payload, which fit their crc32; names: for messages."""
        if self._fetch is None:
            assert self.memory is not None
            return [self.memory[at : at + nbytes] for at, nbytes, _ in parts]
        sound = []
        for data, name in zip(self._fetch(parts), names, strict=True):
            if data is None:
                raise CorruptArchiveError(
                    f"{self._where}: {name} of index.pages fails its crc32{self._remedy}"
                )
            sound.append(data)
        return sound

    def _load(self, number: int, data: memoryview | None = None) -> _Page:
        """A page for look-ups; data: its bytes, which were checked."""
        if data is None:
            at, is_known = (
                int(self.root.pages["at"][number]),
                self._is_checked[number] or self._is_plain[number],
            )
            if self.memory is not None and is_known:
                data = self.memory[at : at + self._nbytes[number]]
            else:
                data = self._check([number])[0]
        page = self._pages[number] = _Page(self.root, number, data)
        if self.memory is None:
            self._kept.append(number)
            self._kept_nbytes += len(data)
            while self._kept_nbytes > _MOST_KEPT_NBYTES and len(self._kept) > 1:
                oldest = self._kept.popleft()
                self._pages[oldest] = None
                self._kept_nbytes -= self._nbytes[oldest]
        return page

    def prepare(self, rows: Ints) -> None:
        """Fetch the pages of rows that are not in memory, all at once."""
        if self.memory is None:
            missing = [number for number in _distinct(rows >> self._bits) if self._pages[number] is None]
            for number, data in zip(missing, self._check(missing), strict=True):
                self._load(number, data)

    def _column(self, number: int, column: int, rows: Ints) -> Ints:
        """A column of some rows of one page, which are counted from its first."""
        page = self._pages[number] or self._load(number)
        values = np.full(len(rows), page.base[column])
        if column in (_INDEX, _OFFSET):
            values += rows * (1 if column == _INDEX else page.stride)
        differences = page.differences[column]
        if differences is not None:
            delta = np.frombuffer(differences, f"<u{differences.itemsize}")[rows].astype(np.int64)
            values += delta << (_LATTICE_BITS if column == _OFFSET else 0)
        return values

    def _check_pages(self, pages: Ints) -> None:
        unchecked = pages[~(self._is_checked | self._is_plain)[pages]]
        if len(unchecked):
            self._check(_distinct(unchecked))

    def _check(self, numbers: Sequence[int]) -> list[memoryview]:
        """The bytes of pages, checked."""
        pages = self.root.pages
        parts = [Extent(int(pages["at"][k]), self._nbytes[k], int(pages["crc32"][k])) for k in numbers]
        each = self._sound(parts, [f"page {number:,}" for number in numbers])
        # No lock: a fork could freeze it. Two threads may check the same page.
        for number, data in zip(numbers, each, strict=True):
            try:
                format.check_page(self.root, number, data, self._size)
            except CorruptArchiveError as error:
                raise CorruptArchiveError(f"{self._where}: {error}{self._remedy}") from error
            self._is_checked[number] = True
        self._unchecked = int(np.count_nonzero(~(self._is_checked | self._is_plain)))
        return each


def _distinct(numbers: Ints) -> list[int]:
    # np.unique() would import numpy.ma, at the first read of a process.
    return sorted(set(numbers.tolist()))
