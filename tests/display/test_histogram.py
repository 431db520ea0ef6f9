"""Bars of a label column: what they count is what their where-strings select."""

import datetime as dt
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edcache.display.histogram import HistogramBar, histogram, histograms
from edcache.errors import UnknownLabelError
from edcache.labels import Labels, matching_rows

NAMES = st.sampled_from(
    ["x", "a.b", "in", "True", "col", "odd name", 'q"uote', "back\\slash", "é", "new\nline", ""]
)
MOMENTS = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1))
COLUMNS = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | st.floats(0, 1)),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["cat", "dog", "it's", '"'])),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("s", "UTC"), MOMENTS.map(lambda moment: moment.replace(microsecond=0))),
    (pa.timestamp("ns"), MOMENTS),
    (pa.date32(), st.dates()),
    (pa.duration("ms"), st.timedeltas().map(lambda span: span - span % dt.timedelta(milliseconds=1))),
    (pa.binary(), st.binary(max_size=3)),
    (pa.null(), st.none()),
]


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=[str(kind) for kind, _ in COLUMNS])
@settings(max_examples=60)
@given(data=st.data(), name=NAMES, most=st.integers(1, 8))
def test_each_bar_counts_what_its_where_string_selects(kind, values, data, name, most):
    column = pa.array(data.draw(st.lists(values | st.none(), max_size=40)), kind)
    labels = Labels(pa.table({name: column, "other": np.arange(len(column))}))
    bars = histogram(labels, name, most)
    counted = np.zeros(len(column), int)
    for bar in bars.bars:
        if bar.where is not None:
            rows = matching_rows(labels, {}, bar.where)
            assert len(rows) == bar.count, bar
            counted[rows] += 1
    assert counted.max(initial=0) <= 1
    assert sum(bar.count for bar in bars.bars) + bars.rest == len(column)
    if str(kind) not in ("duration[ms]", "binary") and not bars.rest:
        assert all(bar.where for bar in bars.bars)


def test_few_values_have_a_bar_each_and_many_numbers_equal_ranges():
    table = pa.table(
        {
            "label": [3, 1, 3, 2] * 25,
            "score": np.arange(100) / 100,
            "name": ["b", "a", "b", None] * 25,
            "box": [[1, 2]] * 100,
            "small": np.arange(100, dtype=np.float32) / np.float32(1000),
            "row": np.arange(100),
            "day": np.arange(100).astype("M8[D]"),
        }
    )
    labels = Labels(table)
    assert [(b.text, b.count) for b in histogram(labels, "label").bars] == [("1", 25), ("2", 25), ("3", 50)]
    first, *_, last = histogram(labels, "score", 10).bars
    assert (first.text, first.count, first.where) == ("0 to 0.099", 10, "0.0 <= score < 0.099")
    assert (last.text, last.where) == ("0.891 to 0.99", "0.891 <= score <= 0.99")
    assert histogram(labels, "small", 10).bars[1].where == "0.0099 <= small < 0.0198"
    assert histogram(labels, "row", 10).bars[1] == HistogramBar("10 to 20", 10, "10 <= row < 20")
    second = histogram(labels, "day", 10).bars[1]
    assert (second.text, second.where) == ("1970-01-11 to 1970-01-21", '"1970-01-11" <= day < "1970-01-21"')
    assert [(b.text, b.count) for b in histogram(labels, "name").bars] == [("b", 50), ("a", 25), ("None", 25)]
    assert histogram(labels, "box").bars == ()
    assert [b.count for b in histogram(labels.take([0, 1, 1]), "label").bars] == [2, 1]
    with pytest.raises(UnknownLabelError, match="did you mean label"):
        histogram(labels, "lable")


def test_what_has_no_bar_is_counted():
    labels = Labels(pa.table({"name": [f"n{i // 2}" for i in range(100)]}))
    bars = histogram(labels, "name", 5)
    assert (len(bars.bars), bars.rest, bars.rest_values) == (5, 90, 45)


def test_numbers_that_are_not_finite_have_bars_of_their_own():
    values = [*np.arange(50.0), math.inf, -math.inf, math.nan, math.nan]
    bars = histogram(Labels(pa.table({"x": values})), "x").bars
    assert {bar.text: bar.count for bar in bars[-3:]} == {"-inf": 1, "inf": 1, "nan": 2}


@pytest.mark.parametrize("values", [[0.0, 1.79e308, -1.79e308], [5e-324, 0.0, 1e-300], [-1e308, 1e308, 3.0]])
def test_ranges_reach_over_all_that_a_float_can_be(values):
    labels = Labels(pa.table({"x": pa.array(values)}))
    for most in (1, 2):
        bars = histogram(labels, "x", most).bars
        assert sum(bar.count for bar in bars) == 3
        assert [len(matching_rows(labels, {}, bar.where)) for bar in bars] == [bar.count for bar in bars]


def test_a_short_look_counts_no_texts_that_are_all_different():
    names = pa.array([f"picture {k}" for k in range(30_000)])
    few = pa.array([f"picture {k % 7}" for k in range(30_000)])
    some = pa.array([f"{k}" for k in range(20)])
    [long] = histograms(Labels(pa.table({"t": names})))
    assert (long.bars, long.rest_text) == ((), "30,000 samples of many different values")
    [short] = histograms(Labels(pa.table({"t": some})))
    assert (short.bars, short.rest_text) == ((), "20 samples of 20 different values")
    [counted] = histograms(Labels(pa.table({"t": few})))
    assert len(counted.bars) == 6
    assert counted.rest_text == f"{counted.rest:,} samples of 1 other values"
    assert sum(bar.count for bar in counted.bars) + counted.rest == 30_000
    lists = pa.array([[k] for k in range(9)])
    assert [one.name for one in histograms(Labels(pa.table({"a": lists, "b": some[:9], "c": lists})), 2)] == [
        "a",
        "b",
    ]
