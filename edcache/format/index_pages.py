"""`index.pages`: where every record of a sealed archive lies, in pages of rows (spec.py section 4).

A page has each column as a line, which the table of pages says, and what differs from it. Rows of one size
that follow one another differ in nothing, so they take no bytes but their crc32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import base
from edcache.base import CorruptArchiveError, Ints
from edcache.format.spec import LATTICE, MAX_LENGTH, align, crc32
from edcache.format.tables import (
    COLUMNS,
    MAX_SCHEMAS,
    Failure,
    IndexTable,
    Records,
    entries_of,
    failures_of,
    reported,
    schemas_of,
)

LINES: Final = ("index", "offset", "nbytes", "raw_nbytes", "schema")
"""The columns that are a line and what differs from it; a page has the crc32s of its rows before them."""
PAGE_DTYPE: Final = np.dtype(
    [
        *(("base", "<i8", 5), ("stride", "<i8"), ("total", "<i8"), ("at", "<i8")),
        *(("crc32", "<u4"), ("widths", "<u4")),
    ]
)
"""A row of the table of pages: 72 bytes."""
WIDTHS: Final = np.array([0, 1, 2, 4, 8])
"""The bytes of a difference, by its code of three bits in `widths`."""
_INDEX, _OFFSET, _NBYTES, _, _SCHEMA = range(len(LINES))
_LATTICE_BITS: Final = LATTICE.bit_length() - 1
_BLOCK_ROW: Final = 24
_PREFIX: Final = 8
_LEAST_BITS, _MOST_BITS, _MOST_PAGES_BITS = 12, 40, 13
# So that no sum of two wraps.
_FAR: Final = 1 << 61


class IndexRoot(NamedTuple):
    """What the table behind the pages says.

    rows: records. length: samples of the dataset. bits: a page has 2 ** bits rows, the last one fewer.
    pages: of `PAGE_DTYPE`, one of each page. chunks: how many rows of `Blocks` lie at `blocks_at` in the
    payload, and blocks_crc their crc32. The rest is as in `IndexTable`.
    """

    rows: int
    length: int
    bits: int
    is_compressed: bool
    pages: npt.NDArray[Any]
    chunks: int
    blocks_at: int
    blocks_crc: int
    schemas: list[str]
    failures: Sequence[Failure] = ()
    labels: Sequence[tuple[str, bool]] | None = None

    def page_rows(self, number: int) -> int:
        """How many rows a page has."""
        return min(1 << self.bits, self.rows - (number << self.bits))

    @property
    def nbytes(self) -> Ints:
        """Bytes of each page in the payload: int64 [pages]."""
        nbytes: Ints = np.diff(self.pages["at"], append=self.blocks_at)
        return nbytes

    def widths(self, column: int) -> Ints:
        """The bytes of a difference of a column, by its place in `LINES`: int64 [pages]."""
        codes = np.minimum(self.pages["widths"] >> np.uint32(3 * column) & 7, len(WIDTHS) - 1)
        widths: Ints = WIDTHS[codes]
        return widths

    def page_widths(self, number: int) -> list[int]:
        """The bytes of a difference of each column of a page."""
        codes = int(self.pages["widths"][number])
        return [int(WIDTHS[codes >> 3 * k & 7]) for k in range(len(LINES))]


def places(rows: int, widths: Sequence[int]) -> list[int]:
    """Where the crc32s, then each column of `LINES`, begin in a page of so many rows; last, its end."""
    sizes = [-(-rows * width // 8) * 8 for width in (4, *widths)]
    return np.cumsum([0, *sizes]).tolist()  # type: ignore[no-any-return]


class IndexWriter:
    """Packs records page by page, as they come, and hands the bytes of the payload on.

    Args:
        write: takes the next bytes. most_rows: records that there are at the most. is_compressed: whether
            they have raw_nbytes.
    Attributes:
        rows, nbytes, crc: of what was written so far.
    """

    def __init__(self, write: Callable[[Any], object], most_rows: int, is_compressed: bool) -> None:
        self._write, self._is_compressed = write, is_compressed
        self._bits = max(_LEAST_BITS, (max(1, most_rows) - 1 >> _MOST_PAGES_BITS).bit_length())
        self._pages: list[tuple[Any, ...]] = []
        self._pending: list[Records] = []
        self._pending_rows = 0
        self.rows = self.nbytes = self.crc = 0

    def add(self, records: Records) -> None:
        """Take the next rows, by rising index; offsets count from the start of the file."""
        if records.index is None:
            records = replace(records, index=np.arange(self.rows, self.rows + len(records.offset)))
        self.rows += len(records.offset)
        self._pending.append(records)
        self._pending_rows += len(records.offset)
        if self._pending_rows >= 1 << self._bits:
            self._flush(1 << self._bits)

    def _flush(self, page_rows: int) -> None:
        parts = [part.columns() for part in self._pending]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        whole = self._pending_rows - self._pending_rows % page_rows
        for start in range(0, whole, page_rows):
            page = {name: column[start : start + page_rows] for name, column in columns.items()}
            lines, payload = _packed_page(page)
            base, stride, widths = lines
            total = int(page["nbytes"].sum())
            self._pages.append((base, stride, total, self.nbytes, crc32(payload), widths))
            self._put(payload)
        rest = {name: column[whole:].copy() for name, column in columns.items()}
        self._pending, self._pending_rows = [Records(**rest)], self._pending_rows - whole

    def _put(self, data: Any) -> None:
        self._write(data)
        self.nbytes += len(data)
        self.crc = crc32(data, self.crc)

    def finish(self, index: IndexTable) -> bytes:
        """Write what is left, then the blocks and the table, which is returned; `index` has all of them."""
        if self._pending_rows:
            self._flush(self._pending_rows)
        blocks = index.blocks.astype("<i8").tobytes()
        meta: dict[str, Any] = {
            "length": index.length,
            "compressed": self._is_compressed,
            "chunks": len(index.blocks),
            "chunks_crc": crc32(blocks),
            "schemas": index.schemas,
        }
        if index.failures:
            meta["failed"] = [failure.to_json() for failure in index.failures]
        if index.labels is not None:
            meta["labels"] = index.labels
        text = json.dumps(meta, ensure_ascii=True, separators=(",", ":")).encode("ascii")
        text = text.ljust(align(len(text), 8))
        pages = np.array(self._pages, PAGE_DTYPE).tobytes()
        table = np.array([self._bits, len(text)], "<u4").tobytes() + text + pages
        self._put(blocks)
        self._put(table)
        return table


def _packed_page(columns: dict[str, npt.NDArray[Any]]) -> tuple[tuple[list[int], int, int], bytes]:
    """The lines of a page (bases, stride of offset, widths), and its payload."""
    parts, bases, codes, stride = [columns["crc32"].astype("<u4").tobytes()], [], 0, 0
    steps = np.arange(len(columns["offset"]))
    for k, name in enumerate(LINES):
        values = columns.get(name, np.zeros(1, np.int64)).astype(np.int64)
        if k == _OFFSET:
            base, delta, code, stride = min(_offset_lines(values, steps), key=lambda line: line[2])
        else:
            line = values - steps if name == "index" else values
            base = int(line.min())
            delta = line - base
            code = _code_of(int(delta.max()))
        bases.append(base)
        codes |= code << 3 * k
        if code:
            parts.append(delta.astype(f"<u{WIDTHS[code]}").tobytes())
    payload = b"".join([part.ljust(align(len(part), 8), b"\0") for part in parts])
    return (bases, stride, codes), payload


def _offset_lines(values: Ints, steps: Ints) -> list[tuple[int, Ints, int, int]]:
    """(base, what differs in units of `LATTICE`, its code, stride) by the usual distance, and by none."""
    usual = int(np.sort(np.diff(values))[(len(values) - 1) // 2]) if len(values) > 1 else 0
    lines = []
    for stride in (max(0, usual), 0):
        line = values - stride * steps
        base = int(line.min())
        delta = line - base >> _LATTICE_BITS
        # So few codes that most archives have one.
        code = {0: 0, 1: 3, 2: 3, 3: 3, 4: 4}[_code_of(int(delta.max()))]
        lines.append((base, delta, code, stride))
    return lines


def _code_of(most: int) -> int:
    """The code of the width that holds a difference."""
    return next(code for code, limit in enumerate((1, 1 << 8, 1 << 16, 1 << 32, 1 << 63)) if most < limit)


def parse_root(table: bytes | memoryview, rows: int, payload_nbytes: int, size: int) -> IndexRoot:
    """The table behind the pages of `rows` records; CorruptArchiveError if it is none.

    payload_nbytes: of all of index.pages. size: bytes of the file, which all records together fit in.
    """
    with reported("index.pages"):
        if len(table) < _PREFIX:
            raise ValueError("its table is too short")
        bits, text_nbytes = np.frombuffer(table, "<u4", 2).tolist()
        end = _PREFIX + text_nbytes
        if not _LEAST_BITS <= bits <= _MOST_BITS or end > len(table) or text_nbytes % 8:
            raise ValueError(f"pages of 2**{bits} rows, {text_nbytes:,} bytes of JSON")
        if len(table) - end != -(-rows // (1 << bits)) * PAGE_DTYPE.itemsize:
            raise ValueError(f"its table of pages has {len(table) - end:,} bytes, for {rows:,} rows")
        meta = base.loads(memoryview(table)[_PREFIX:end])
        names = {"length", "compressed", "chunks", "chunks_crc", "schemas"}
        if type(meta) is not dict or not names <= meta.keys() <= names | {"failed", "labels"}:
            raise ValueError("its JSON has other keys than are written")
        length = meta["length"]
        if type(length) is not int or not rows <= length <= MAX_LENGTH:
            raise ValueError(f"it has {rows} rows and claims {str(length)[:80]} samples")
        if type(meta["compressed"]) is not bool:
            raise ValueError("it does not say whether records are compressed")
        chunks, blocks_crc = meta["chunks"], meta["chunks_crc"]
        is_count = type(chunks) is type(blocks_crc) is int and chunks >= 0
        blocks_at = payload_nbytes - len(table) - _BLOCK_ROW * chunks if is_count else -1
        if blocks_at < 0:
            raise ValueError(f"it claims {str(chunks)[:80]} chunks")
        pages = np.frombuffer(table, PAGE_DTYPE, offset=end)
        root = IndexRoot(
            rows,
            length,
            bits,
            meta["compressed"],
            pages,
            chunks,
            blocks_at,
            blocks_crc,
            schemas_of(meta["schemas"]),
            _failures(meta.get("failed", []), length),
            _labels(meta["labels"]) if "labels" in meta else None,
        )
        _check_pages(root, size)
        return root


def _failures(value: Any, length: int) -> list[Failure]:
    failures = failures_of(value)
    if any(failure.index >= length for failure in failures):
        raise ValueError("one of its failures is of no sample")
    return failures


def _labels(value: Any) -> list[tuple[str, bool]]:
    labels = [(entry[0], entry[1]) for entry in entries_of(value, "label columns", str, bool)]
    if len(dict(labels)) != len(labels):
        raise ValueError("two of its label columns have one name")
    return labels


def _check_pages(root: IndexRoot, size: int) -> None:
    """Check what the table says of each page by itself; ValueError. `check_page` checks the rest."""
    pages, count = root.pages, len(root.pages)
    rows = np.full(count, 1 << root.bits)
    rows[-1:] = root.rows - (count - 1 << root.bits)
    widths = np.array([root.widths(k) for k in range(len(LINES))])
    if np.any(pages["widths"] >> np.uint32(3 * len(LINES))) or np.any(np.isin(widths[_OFFSET], (1, 2))):
        raise ValueError("columns of a width that no writer makes")
    for k in range(len(LINES)):
        if np.any(pages["widths"] >> np.uint32(3 * k) & 7 >= len(WIDTHS)):
            raise ValueError("columns of a width that no writer makes")
    sizes = sum(-(-rows * width // 8) * 8 for width in (4, *widths))
    if not np.array_equal(np.cumsum(sizes) - sizes, pages["at"]) or np.sum(sizes) != root.blocks_at:
        raise ValueError("its pages do not lie one behind the other")
    bases, stride = pages["base"].T, pages["stride"]
    if count and (np.abs(bases.astype(np.float64)).max() > 2.0**62 or stride.min() < 0):
        raise ValueError("its records lie outside of any file")
    if np.any(bases[_OFFSET] % LATTICE) or np.any(stride % LATTICE):
        raise ValueError(f"its records do not begin on multiples of {LATTICE}")
    if np.any(pages["total"] < 0) or pages["total"].sum(dtype=np.float64) > size:
        raise ValueError(f"its records take more than a file of {size:,} bytes holds")
    first, last = bases[0], bases[0] + rows - 1
    ends = np.append(first[1:], root.length)
    is_dense = root.rows == root.length
    if is_dense and (np.any(widths[0]) or np.any(first != np.arange(count) << root.bits)):
        raise ValueError("row i is not sample i, though there are as many")
    if np.any(first < 0) or np.any(last >= ends):
        raise ValueError("its samples are not in order")
    # Without differences this is all of a column; `check_page` looks at the others.
    reach = bases[_OFFSET] + (rows - 1.0) * stride + bases[2]
    plain = (widths[_OFFSET] == 0) & (widths[2] == 0)
    if np.any(bases[_OFFSET][plain] < 0) or np.any(bases[2] < 0) or np.any(reach[plain] > size):
        raise ValueError(f"its records lie outside of a file of {size:,} bytes")
    if np.any(bases[3] < 0) or np.any(bases[4] < 0) or np.any(bases[4] >= MAX_SCHEMAS):
        raise ValueError("a size or a schema that is none")
    if np.any(plain & (bases[2] * rows != pages["total"])):
        raise ValueError("its records take other bytes than it says")
    if not root.is_compressed and (np.any(bases[3]) or np.any(widths[3])):
        raise ValueError("sizes before compression, of records that are not compressed")


def check_page(root: IndexRoot, number: int, payload: bytes | memoryview, size: int) -> None:
    """Check the rows of a page, whose crc32 fits, mostly by the largest differences: no column is made.

    Raises: CorruptArchiveError, they are out of order, or do not lie in a file of `size` bytes.
    """
    page, rows = root.pages[number], root.page_rows(number)
    deltas = _deltas(root, number, payload)
    most = [0 if delta is None else int(delta.max()) for delta in deltas]
    # Python's integers, of which no sum wraps.
    base, reach = page["base"].tolist(), (rows - 1) * int(page["stride"])
    with reported(f"page {number:,} of index.pages"):
        if reach > _FAR:
            raise ValueError(f"its records lie outside of a file of {size:,} bytes")
        if any(delta > (_FAR >> _LATTICE_BITS if k == _OFFSET else _FAR) for k, delta in enumerate(most)):
            raise ValueError("a number that no writer makes")
        if deltas[_INDEX] is not None:
            after = int(root.pages["base"][number + 1, 0]) if number + 1 < len(root.pages) else root.length
            last, falls = int(deltas[_INDEX][-1]), deltas[_INDEX][1:] < deltas[_INDEX][:-1]
            if base[_INDEX] + rows - 1 + last >= after or np.any(falls):
                raise ValueError("its samples are not in order")
        longest = base[_NBYTES] + most[_NBYTES]
        is_outside = max(longest, base[_OFFSET]) > size
        # Where one of the largest numbers of all would lie within, each does.
        rest = size - longest - reach - (most[_OFFSET] << _LATTICE_BITS)
        if not is_outside and not 0 <= base[_OFFSET] <= rest:
            offset, nbytes = (_column(root, number, k, deltas[k]) for k in (_OFFSET, _NBYTES))
            is_outside = bool(offset.min() < 0 or (offset + nbytes).max() > size)
        if is_outside:
            raise ValueError(f"its records lie outside of a file of {size:,} bytes")
        differing = 0 if deltas[_NBYTES] is None else int(deltas[_NBYTES].sum(dtype=np.int64))
        if base[_NBYTES] * rows + differing != int(page["total"]):
            raise ValueError("its records take other bytes than the table says")
        if base[_SCHEMA] + most[_SCHEMA] >= MAX_SCHEMAS:
            raise ValueError("a schema that is none")


def unpack_page(root: IndexRoot, number: int, payload: bytes | memoryview) -> Records:
    """The rows of a page that was checked: copies, but crc32, which is a view of `payload`."""
    deltas = _deltas(root, number, payload)
    columns = {name: _column(root, number, k, deltas[k]) for k, name in enumerate(LINES)}
    if not root.is_compressed:
        del columns["raw_nbytes"]
    typed = {name: column.astype(COLUMNS[name], copy=False) for name, column in columns.items()}
    return Records(crc32=np.frombuffer(payload, "<u4", root.page_rows(number)), **typed)


def _deltas(root: IndexRoot, number: int, payload: bytes | memoryview) -> list[Any]:
    """What differs from the lines of a page, as it is stored: unsigned [rows] for each column, or None."""
    rows, widths = root.page_rows(number), root.page_widths(number)
    starts = places(rows, widths)[1:]
    return [
        np.frombuffer(payload, f"<u{width}", rows, at) if width else None
        for width, at in zip(widths, starts, strict=False)
    ]


def _column(root: IndexRoot, number: int, k: int, delta: npt.NDArray[Any] | None) -> Ints:
    """A column of a page: int64 [rows]."""
    page, rows = root.pages[number], root.page_rows(number)
    values = np.full(rows, page["base"][k])
    if k in (_INDEX, _OFFSET):
        values += np.arange(rows) * (page["stride"] if k == _OFFSET else 1)
    if delta is not None:
        values += delta.astype(np.int64) << (_LATTICE_BITS if k == _OFFSET else 0)
    return values


def parse_blocks(data: bytes | memoryview) -> Ints:
    """int64 [chunks, 3], a row of `Blocks` each; CorruptArchiveError where they are none, or overlap."""
    with reported("index.pages"):
        blocks = np.frombuffer(data, "<i8").reshape(-1, 3)
        if len(blocks):
            if blocks.min() < 0 or blocks.max() >= _FAR:  # so that no sum wraps
                raise ValueError("its chunks overlap")
            crcs, records, nbytes = blocks.T
            if np.any(records < crcs) or np.any(crcs[1:] < (records + nbytes)[:-1]):
                raise ValueError("its chunks overlap")
        return blocks


def pack_index(index: IndexTable) -> tuple[bytes, int]:
    """All of index.pages in memory, and how many bytes its table has."""
    parts: list[Any] = []
    writer = IndexWriter(parts.append, len(index.records.offset), index.records.raw_nbytes is not None)
    if len(index.records.offset):
        writer.add(index.records)
    table = writer.finish(index)
    return b"".join(parts), len(table)


def parse_index(payload: bytes | memoryview, rows: int, table_nbytes: int, size: int = _FAR) -> IndexTable:
    """All of index.pages, whose crc32 fits, as arrays; CorruptArchiveError if it is none."""
    payload = memoryview(payload)
    if table_nbytes > len(payload):
        raise CorruptArchiveError("index.pages does not read: its table is cut")
    root = parse_root(payload[len(payload) - table_nbytes :], rows, len(payload), size)
    parts = []
    for number, (page, nbytes) in enumerate(zip(root.pages, root.nbytes.tolist(), strict=True)):
        data = payload[int(page["at"]) : int(page["at"]) + nbytes]
        if crc32(data) != page["crc32"]:
            raise CorruptArchiveError(f"page {number:,} of index.pages fails its crc32")
        check_page(root, number, data, size)
        parts.append(unpack_page(root, number, data).columns())
    blocks = payload[root.blocks_at : len(payload) - table_nbytes]
    if crc32(blocks) != root.blocks_crc:
        raise CorruptArchiveError("the list of chunks of index.pages fails its crc32")
    return table_of(root, parts, parse_blocks(blocks))


def table_of(root: IndexRoot, parts: Sequence[dict[str, npt.NDArray[Any]]], blocks: Ints) -> IndexTable:
    """The index as arrays, of the columns of its pages."""
    is_dense, is_raw = root.rows == root.length, not root.is_compressed
    names = [k for k in COLUMNS if not (k == "index" and is_dense) and not (k == "raw_nbytes" and is_raw)]
    columns = {k: np.concatenate([np.empty(0, COLUMNS[k]), *(part[k] for part in parts)]) for k in names}
    records = Records(**columns)
    return IndexTable(records, root.length, root.schemas, blocks, root.failures, root.labels)
