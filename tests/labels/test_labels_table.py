"""The label table as a table: described, asked in SQL, given to other libraries."""

import datetime as dt
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edcache.errors import LabelError, UnknownLabelError
from edcache.labels.column import ColumnSummary
from edcache.labels.labels import Labels

DAY = dt.date(2024, 2, 29)
TIME = dt.datetime(2024, 2, 29, 12)
KINDS = {
    "int8": ([3, None, -1, 3], pa.int8()),
    "uint64": ([2**63, 1, 1, None], pa.uint64()),
    "half": ([0.5, 1.5, None, 0.5], pa.float16()),
    "float": ([0.5, -1.5, None, 0.5], pa.float64()),
    "bool": ([True, None, False, True], pa.bool_()),
    "string": (["b", "a", None, "b"], pa.string()),
    "large_string": (["b", "ünd", None, "b"], pa.large_string()),
    "binary": ([b"b", b"\xff", None, b"b"], pa.binary()),
    "date32": ([DAY, None, dt.date(1969, 1, 1), DAY], pa.date32()),
    "timestamp": ([TIME, None, dt.datetime(1969, 1, 1), TIME], pa.timestamp("us")),
    "duration": ([dt.timedelta(1), None, dt.timedelta(-1), dt.timedelta(1)], pa.duration("ms")),
}


@pytest.fixture
def labels():
    return Labels(
        pa.table(
            {
                "split": ["train", "test", "train", None],
                "age": pa.array([30, 41, None, 30], pa.int16()),
                "boxes": [[1, 2], [], None, [3]],
                "none": pa.nulls(4),
            }
        )
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_any_type_is_described_as_python_would(kind):
    values, arrow = KINDS[kind]
    # Of float16, older pyarrow takes numpy's alone.
    given = [np.float16(v) if kind == "half" and v is not None else v for v in values]
    column = pa.array(given, arrow)
    found = Labels(pa.table({"x": column})).describe()[0]
    present = [value for value in values if value is not None]
    most = max(present, key=present.count)
    assert found == ColumnSummary(
        "x", str(arrow), 1, len(set(present)), min(present), max(present), most, present.count(most)
    )
    assert Labels(pa.table({"x": column})).unique("x").tolist() == sorted(set(present))


@given(st.lists(st.none() | st.integers(-5, 5)))
def test_any_integers_are_described_as_python_would(values):
    found = Labels(pa.table({"x": pa.array(values, pa.int64())})).describe()[0]
    present = [value for value in values if value is not None]
    assert (found.nulls, found.distinct) == (len(values) - len(present), len(set(present)))
    assert (found.min, found.max) == (min(present, default=None), max(present, default=None))
    assert found.times == (max(map(present.count, present)) if present else None)


def test_lists_and_columns_without_values_have_no_least_one(labels):
    boxes, none = labels.describe()[2:]
    assert boxes == ColumnSummary("boxes", "list<item: int64>", 1, None, None, None, None, None)
    assert none == ColumnSummary("none", "null", 4, 0, None, None, None, None)


def test_a_description_prints_as_a_table(labels):
    assert repr(labels.describe()) == "\n".join(
        [
            "label  type               nulls  distinct  min     max      most frequent  times",
            "split  string                 1  2         'test'  'train'  'train'        2",
            "age    int16                  1  2         30      41       30             2",
            "boxes  list<item: int64>      1",
            "none   null                   4  0",
        ]
    )


def test_nothing_that_a_table_holds_steers_a_terminal():
    text = repr(Labels(pa.table({"\x1b[2J": ["\x1b[31m"]})).describe())
    assert text.replace("\n", "").isprintable()


def test_nan_is_neither_the_least_nor_the_greatest():
    found = Labels(pa.table({"x": [2.0, math.nan, 1.0]})).describe()[0]
    assert (found.min, found.max, found.distinct) == (1.0, 2.0, 3)


def test_a_description_of_nanoseconds_loses_none():
    times = pa.array([1, 3, 3], pa.timestamp("ns"))
    assert Labels(pa.table({"x": times})).describe()[0].max == np.datetime64(3, "ns")


def test_a_view_is_described_and_asked_by_its_own_rows(labels):
    view = labels.take([1, 1, 3])
    assert view.describe()[0].nulls == 1
    assert view.unique("split").tolist() == ["test"]
    assert view.table["age"].to_pylist() == [41, 41, 30]


def test_distinct_values_are_sorted_without_the_missing(labels):
    assert labels.unique("split").tolist() == ["test", "train"]
    assert labels.unique("age").tolist() == [30, 41]
    assert labels.unique("none").tolist() == []
    found = Labels(pa.table({"x": [2.0, math.nan, 1.0]})).unique("x")
    assert found[:2].tolist() == [1.0, 2.0]
    found[0] = 7  # it is the caller's own
    with pytest.raises(LabelError, match='label "boxes" is list<item: int64>; unique.. needs a column of'):
        labels.unique("boxes")
    with pytest.raises(UnknownLabelError, match='no label "lable"; this archive has: split, age'):
        labels.unique("lable")
