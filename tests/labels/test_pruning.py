"""Filters that leave out batches by their bounds choose the same rows as filters that look at all."""

import datetime as dt
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import scaled

from edcache.errors import LabelTypeError, UnknownLabelError
from edcache.format import label_file
from edcache.format.label_file import pack_labels, parse_label_table
from edcache.labels import Labels
from edcache.labels.query import matching_rows

ROWS = 3
INTS = [0, 1, -1, 5, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
BEYOND = [0, 1, 5, 2**53 + 1, 2**63, 2**64 - 1]
FLOATS = [0.0, -0.0, 1.0, 0.5, -1.5, 5.0, 2.0**53, -(2.0**53), 2.0**63, math.inf, -math.inf, math.nan]
HALVES = [0.0, -0.0, 1.0, 0.5, -1.5, 2048.0, math.inf, -math.inf, math.nan]
TIMES = [dt.datetime(1969, 1, 1), dt.datetime(2020, 2, 29, 12), dt.datetime(2020, 2, 29, 12, 0, 0, 1)]
KINDS = {
    "i": (INTS, pa.int64()),
    "u": (BEYOND, pa.uint64()),
    "f": (FLOATS, pa.float64()),
    "g": (FLOATS, pa.float32()),
    "h": ([np.float16(value) for value in HALVES], pa.float16()),
    "b": ([True, False], pa.bool_()),
    "t": (TIMES, pa.timestamp("us")),
    "d": ([time.date() for time in TIMES], pa.date32()),
    "s": (["", "a", "b"], pa.string()),
    "n": ([None], pa.null()),
}
NUMBERS = "iufgh"


def literal(value):
    return f'"{value.isoformat()}"' if isinstance(value, dt.date) else repr(value)


def is_finite(value):
    return not isinstance(value, float) or math.isfinite(value)


@st.composite
def pools(draw):
    """For each column one to three values, so that conditions meet them, and batches have but one."""
    return {
        name: draw(st.lists(st.sampled_from([*values, None]), min_size=1, max_size=3))
        for name, (values, _) in KINDS.items()
    }


@st.composite
def tables(draw, pool):
    count = draw(st.integers(0, 4 * ROWS))
    columns = {}
    for name, (_, kind) in KINDS.items():
        picked = [draw(st.sampled_from(pool[name])) for _ in range(count // ROWS + 2)]
        odd = draw(st.integers(0, ROWS))
        columns[name] = pa.array([picked[row // ROWS + (row % ROWS == odd)] for row in range(count)], kind)
    return pa.table(columns)


@st.composite
def comparisons(draw, pool):
    name = draw(st.sampled_from("iufghbtds"))
    operations = ["==", "!="] if name == "b" else ["==", "!=", "<", "<=", ">", ">="]
    own = [*pool[name], *KINDS[name][0][:2]]
    values = [float(v) if isinstance(v, np.floating) else v for v in own]
    values = [v for v in values if v is not None and is_finite(v)]
    if name in NUMBERS:
        values += [v for other in "iuf" for v in pool[other] if v is not None and is_finite(v)]
    what = draw(st.integers(0, 7))
    if what == 0:
        return f"{name} is {draw(st.sampled_from(['', 'not ']))}None"
    if what == 1:
        some = draw(st.lists(st.sampled_from([*values, None]), max_size=4))
        return f"{name} {draw(st.sampled_from(['', 'not ']))}in ({', '.join(map(literal, some))})"
    if what == 2 and name in NUMBERS:
        return f"{name} {draw(st.sampled_from(operations))} {draw(st.sampled_from(NUMBERS))}"
    if what == 3:
        return draw(st.sampled_from(["b", 'startswith(s, "a")', 'contains(s, "b")', "n == None"]))
    return f"{name} {draw(st.sampled_from(operations))} {literal(draw(st.sampled_from(values)))}"


@st.composite
def filters(draw):
    """A table and a where-string."""
    pool = draw(pools())
    conditions = st.recursive(
        comparisons(pool),
        lambda inner: (
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda part: f"({' '.join(part)})")
            | inner.map(lambda part: f"not ({part})")
        ),
        max_leaves=3,
    )
    return draw(tables(pool)), draw(conditions)


def stored(table):
    """The labels as stored, and the number of bytes that were loaded."""
    data, nbytes = pack_labels(table)
    loaded = []

    def load(extents):
        loaded.append(sum(extent.nbytes for extent in extents))
        return [memoryview(data)[extent.at : extent.at + extent.nbytes] for extent in extents]

    parsed = parse_label_table(data[len(data) - nbytes :], len(data), table.num_rows, load)
    return Labels(parsed, num_rows=table.num_rows), loaded


@pytest.fixture(autouse=True, scope="module")
def small_batches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_file, "BATCH_ROWS", ROWS)
        yield


@settings(max_examples=scaled(4000))
@given(filters())
def test_a_filter_by_text_chooses_what_it_chooses_without_bounds(drawn):
    table, where = drawn
    expected = matching_rows(Labels(table), {}, where)
    assert matching_rows(stored(table)[0], {}, where).tolist() == expected.tolist(), where


@st.composite
def conditions(draw):
    """A table and conditions by keyword."""
    pool = draw(pools())
    ints = st.integers(-6, 6)

    def value(name):
        own = st.sampled_from([*pool[name], *pool["i"], *pool["f"]])
        ranges = st.builds(range, ints, ints, st.sampled_from([1, 2, -1]))
        return draw(own | ranges | st.lists(own, max_size=4) | st.lists(ints, min_size=1).map(np.array))

    names = draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=2))
    return draw(tables(pool)), {name: value(name) for name in names}


@settings(max_examples=scaled(2000))
@given(conditions())
def test_a_filter_by_value_chooses_what_it_chooses_without_bounds(drawn):
    table, given_values = drawn
    expected = matching_rows(Labels(table), given_values)
    assert matching_rows(stored(table)[0], given_values).tolist() == expected.tolist()


def test_batches_that_cannot_match_are_not_read():
    table = pa.table({"i": pa.array(range(30)), "s": ["x"] * 30})
    labels, loaded = stored(table)
    assert matching_rows(labels, {"i": 6}).tolist() == [6]
    assert matching_rows(labels, {"i": [8, 28]}, "i < 9").tolist() == [8]
    assert matching_rows(labels, {}, "not i <= 27 and i != 29 or i == 100").tolist() == [28]
    assert matching_rows(labels, {"i": range(40, 50)}).tolist() == []
    assert matching_rows(labels, {}, "i is None").tolist() == []
    assert loaded == [8 * ROWS, 8 * ROWS]


def test_errors_are_those_of_a_filter_that_looks_at_all():
    labels, _ = stored(pa.table({"i": pa.array(range(30)), "l": [[1]] * 30}))
    with pytest.raises(UnknownLabelError, match='no label "j"; this archive has: i, l'):
        matching_rows(labels, {"i": 100}, "j == 1")
    with pytest.raises(LabelTypeError, match='label "i" is int64'):
        matching_rows(labels, {"i": "a"})
    with pytest.raises(LabelTypeError, match='label "l" is list'):
        matching_rows(labels, {}, "i == 100 and l == 5")
