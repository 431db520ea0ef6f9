"""Where records lie: pages of the index against plain arrays, in memory, fetched, and several as one."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scale import scaled

from edcache import format
from edcache.errors import CorruptArchiveError
from edcache.format import IndexTable, Records, index_pages
from edcache.reader.index import RecordIndex, joined_lines, numbers

SIZE = 1 << 61


@pytest.fixture(autouse=True, scope="module")
def small_pages():
    """Pages of eight rows, so that a few rows have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_pages, "_LEAST_BITS", 3)
        yield


@st.composite
def tables(draw):
    """Records as archives have them, and as none would: runs, gaps, any order, any size."""
    rows = draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    steps = (
        rng.choice([1, 1, 1, 2, 300, 70_000, 1 << 33], rows) if draw(st.booleans()) else np.ones(rows, int)
    )
    index = np.cumsum(steps) - 1
    sizes = draw(
        st.sampled_from(
            [
                lambda: np.full(rows, 24),
                lambda: rng.integers(0, 300, rows),
                lambda: rng.integers(0, 1 << 40, rows),
            ]
        )
    )()
    offset = np.cumsum(rng.choice([0, 0, 0, 8, 4096, 1 << 36], rows) + (sizes + 7) // 8 * 8)
    if draw(st.booleans()):
        rng.shuffle(offset)
    schema = rng.choice([0, 0, 7, 65535], rows) if draw(st.booleans()) else np.full(rows, 3)
    records = Records(
        offset=offset.astype(np.uint64),
        nbytes=sizes.astype(np.uint64),
        crc32=rng.integers(0, 1 << 32, rows).astype(np.uint32),
        schema=schema.astype(np.uint16),
        index=None if np.array_equal(index, np.arange(rows)) else index.astype(np.int64),
        raw_nbytes=rng.integers(0, 1 << 30, rows).astype(np.uint64) if draw(st.booleans()) else None,
    )
    length = rows if records.index is None else int(index[-1]) + 1 + draw(st.integers(0, 3))
    return IndexTable(records, length, ["a"], np.empty((0, 3), np.int64))


def opened(table, *, is_mapped, damage=None):
    data, table_nbytes = format.pack_index(table)
    root = format.parse_root(data[len(data) - table_nbytes :], len(table.records.offset), len(data), SIZE)
    payload = memoryview(data if damage is None else damage(bytearray(data)))

    def fetch(parts):
        each = [(payload[at : at + nbytes], crc) for at, nbytes, crc in parts]
        return [data if format.crc32(data) == crc else None for data, crc in each]

    return RecordIndex(root, SIZE, memory=payload if is_mapped else None, fetch=fetch, where="a.zip")


def same(one, other):
    columns, others = one.columns(), other.columns()
    return columns.keys() == others.keys() and all(
        columns[name].dtype == others[name].dtype and np.array_equal(columns[name], others[name])
        for name in columns
    )


@given(tables(), st.booleans(), st.data())
def test_an_index_says_what_the_arrays_say(table, is_mapped, data):
    index, records = opened(table, is_mapped=is_mapped), table.records
    rows = np.array(data.draw(st.lists(st.integers(0, max(0, index.rows - 1)), max_size=20)), np.int64)
    rows = rows if index.rows else rows[:0]
    assert index.offsets(rows).tolist() == records.offset[rows].tolist()
    assert index.sizes(rows).tolist() == records.nbytes[rows].tolist()
    assert index.schemas_of(rows).tolist() == records.schema[rows].tolist()
    raw = records.nbytes if records.raw_nbytes is None else records.raw_nbytes
    assert index.raw_sizes(rows).tolist() == raw[rows].tolist()
    assert index.samples(rows).tolist() == records.samples[rows].tolist()
    for row in rows.tolist():
        assert index.place(row) == (int(records.offset[row]), int(records.nbytes[row]))
        assert index.schema(row) == records.schema[row]
        assert index.crc32(row) == records.crc32[row]
        assert index.sample_of(row) == records.samples[row]
    assert same(index.table().records, records)
    held = index.held()
    assert (held is None) == (records.index is None)
    if held is not None:
        assert held.tolist() == records.index.tolist()
    near = {int(k) + step for k in records.samples for step in (-1, 0, 1)} | {0, table.length - 1}
    asked = np.array(sorted(k for k in near if 0 <= k < table.length), np.int64)
    row_of = {int(k): row for row, k in enumerate(records.samples)}
    assert index.rows_of(asked).tolist() == [row_of.get(k, -1) for k in asked.tolist()]
    assert [index.find(k) for k in asked.tolist()] == [row_of.get(k) for k in asked.tolist()]


def rows_of(root, number, payload):
    """(index, offset, nbytes, raw_nbytes, schema) of each row of a page; whether a writer makes them."""
    page, rows, at = root.pages[number], root.page_rows(number), -(-root.page_rows(number) * 4 // 8) * 8
    stride, columns, is_made = int(page["stride"]), [], True
    for k in range(5):
        width = (0, 1, 2, 4, 8)[int(page["widths"]) >> 3 * k & 7]
        stored = [
            int.from_bytes(payload[at + width * r : at + width * (r + 1)], "little") for r in range(rows)
        ]
        at += -(-rows * width // 8) * 8
        unit, step = 8 if k == 1 else 1, {0: 1, 1: stride}.get(k, 0)
        is_made &= max(stored) * unit <= 1 << 61
        columns.append([int(page["base"][k]) + step * r + unit * stored[r] for r in range(rows)])
    return list(zip(*columns, strict=True)), is_made and (rows - 1) * stride <= 1 << 61


@settings(max_examples=scaled(3000))
@given(tables(), st.data())
def test_a_page_is_accepted_where_each_of_its_rows_is_right(table, data):
    packed, table_nbytes = format.pack_index(table)
    assume(len(table.records.offset))
    root = format.parse_root(
        packed[len(packed) - table_nbytes :], len(table.records.offset), len(packed), SIZE
    )
    root = root._replace(pages=root.pages.copy())
    number = data.draw(st.integers(0, len(root.pages) - 1))
    start, nbytes = int(root.pages["at"][number]), int(root.nbytes[number])
    page, payload = root.pages[number], bytearray(packed[start : start + nbytes])
    rows, _ = rows_of(root, number, payload)
    most = max(offset + nbytes for _, offset, nbytes, _, _ in rows)
    for _ in range(data.draw(st.integers(0, 2))):
        field = data.draw(st.sampled_from(["base", "stride", "total", "payload"]))
        change = data.draw(st.sampled_from([-(1 << 61), -8, -1, 1, 8, 1 << 30, 1 << 61]))
        if field == "payload":
            at = data.draw(st.integers(0, nbytes - 1))
            payload[at] = data.draw(st.integers(0, 255))
        elif field == "base":
            k = data.draw(st.integers(0, 4))
            page["base"][k] = max(-(1 << 62) if k == 1 else 0, min(int(page["base"][k]) + change, 1 << 62))
        else:
            page[field] = max(0, min(int(page[field]) + change, 1 << 62))
    size = data.draw(st.sampled_from([most - 1, most, most + 1, 2 * most, SIZE]))
    rows, is_made = rows_of(root, number, payload)
    after = int(root.pages["base"][number + 1, 0]) if number + 1 < len(root.pages) else root.length
    is_right = (
        is_made
        # Without differences it is the table of pages that has them in order.
        and (
            not int(page["widths"]) & 7 or all(a < b for a, b in pairwise([*(row[0] for row in rows), after]))
        )
        and all(
            offset >= 0 and nbytes <= size and offset + nbytes <= size for _, offset, nbytes, _, _ in rows
        )
        and sum(row[2] for row in rows) == int(page["total"])
        and max(row[4] for row in rows) < 65_536
    )
    try:
        format.check_page(root, number, payload, size)
    except CorruptArchiveError:
        assert not is_right
        return
    assert is_right
    columns = format.unpack_page(root, number, payload).columns()
    for k, name in enumerate(format.LINES):
        if name in columns:
            assert columns[name].tolist() == [row[k] for row in rows]


@given(tables(), st.lists(st.integers(0, 40), max_size=5))
def test_the_bytes_do_not_depend_on_how_the_records_come(table, cuts):
    cuts = sorted({0, len(table.records.offset), *(k for k in cuts if k < len(table.records.offset))})
    parts = []
    writer = index_pages.IndexWriter(parts.append, cuts[-1], table.records.raw_nbytes is not None)
    for start, end in pairwise(cuts):
        writer.add(table.records.take(np.arange(start, end)))
    nbytes = len(writer.finish(table))
    data = b"".join(parts)
    assert (data, nbytes) == format.pack_index(table)
    assert (writer.rows, writer.nbytes, writer.crc) == (cuts[-1], len(data), format.crc32(data))


@given(st.lists(tables(), min_size=1, max_size=4), st.data())
def test_several_indices_are_looked_up_as_one(each, data):
    each = [table for table in each if len(table.records.offset)]
    indices = [opened(table, is_mapped=True) for table in each]
    memory, places = b"", []
    for index in indices:
        places.append(len(memory))
        memory += bytes(index.memory) + bytes(-len(index.memory) % 8)
    first_rows = np.cumsum([0, *(index.rows for index in indices)]).tolist()
    total = first_rows.pop()
    rows = np.array(data.draw(st.lists(st.integers(0, max(0, total - 1)), max_size=20)), np.int64)
    rows = rows if total else rows[:0]
    which = np.searchsorted(first_rows, rows, "right") - 1
    first_pages = np.cumsum([0, *(len(index.root.pages) for index in indices)])
    bits = np.array([index.root.bits for index in indices], np.int64)
    pages = first_pages[which] + (rows - np.array(first_rows, np.int64)[which] >> bits[which])
    for column, name in ((1, "offset"), (2, "nbytes")):
        if not indices:
            continue
        lines = joined_lines(indices, places, first_rows, column)
        values = lines.at(rows, pages, lambda width: numbers(memoryview(memory), width))
        expected = np.concatenate([getattr(table.records, name) for table in each])
        assert values.tolist() == expected[rows].tolist()


def runs(count, nbytes=24):
    """Records of one size, one behind the other."""
    offset = np.arange(count, dtype=np.uint64) * np.uint64(nbytes)
    sizes = np.full(count, nbytes, np.uint64)
    records = Records(offset, sizes, np.arange(count, dtype=np.uint32), np.zeros(count, np.uint16))
    return IndexTable(records, count, ["a"], np.empty((0, 3), np.int64))


def test_records_that_follow_one_another_take_their_crc32_alone():
    data, table_nbytes = format.pack_index(runs(800))
    assert len(data) - table_nbytes == 4 * 800


def test_a_gap_between_chunks_costs_one_page():
    table = runs(800)
    table.records.offset[403:] += 4096
    data, table_nbytes = format.pack_index(table)
    assert len(data) - table_nbytes == 4 * 800 + 4 * 8


def test_ten_kilobytes_of_any_size_take_six_bytes_and_their_crc32():
    sizes = np.random.default_rng(0).integers(5_000, 15_000, 800)
    offset = np.cumsum((sizes + 63) // 64 * 64).astype(np.uint64)
    records = Records(offset, sizes.astype(np.uint64), np.zeros(800, np.uint32), np.zeros(800, np.uint16))
    data, table_nbytes = format.pack_index(IndexTable(records, 800, ["a"], np.empty((0, 3), np.int64)))
    assert len(data) - table_nbytes == (4 + 6) * 800


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_damaged_page_is_met_only_where_it_lies(is_mapped):
    table = runs(80)
    table.records.offset[:] += np.arange(80, dtype=np.uint64) % np.uint64(3) * np.uint64(8)

    def damage(data):
        data[200] ^= 1
        return data

    index = opened(table, is_mapped=is_mapped, damage=damage)
    page = int(np.searchsorted(index.root.pages["at"], 200, "right")) - 1
    sound = np.array([row for row in range(80) if row // 8 != page])
    assert index.offsets(sound).tolist() == table.records.offset[sound].tolist()
    for look in (lambda: index.offsets(np.array([8 * page])), lambda: index.place(8 * page + 1)):
        with pytest.raises(CorruptArchiveError, match=f"a.zip: page {page} of index.pages fails its crc32"):
            look()


def test_fetched_pages_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("edcache.reader.index._MOST_KEPT_NBYTES", 200)
    table = runs(800)
    index = opened(table, is_mapped=False)
    for row in np.random.default_rng(0).permutation(800).tolist():
        assert index.place(row)[0] == 24 * row
    assert sum(page is not None for page in index._pages) <= 200 // 32
    assert index.nbytes < 400 + 2 * index.root.pages.nbytes


def test_a_page_has_more_rows_where_there_would_be_too_many_pages(monkeypatch):
    monkeypatch.setattr(index_pages, "_MOST_PAGES_BITS", 2)
    for rows, pages in ((1, 1), (32, 4), (33, 3), (64, 4), (65, 3)):
        index = opened(runs(rows), is_mapped=True)
        assert len(index.root.pages) == pages
        assert index.offsets(np.arange(rows)).tolist() == [24 * k for k in range(rows)]
