from __future__ import annotations

import datetime as dt
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edcache.errors import LabelError, OptionError, SampleIndexError, UnknownLabelError
from edcache.labels.labels import Labels
from edcache.labels.query import matching_rows

TABLE = pa.table(
    {
        "label": [3, 1, 2, 1, None, 7, 5],
        "id": pa.array([0, 1, 2, 3, 4, 5, 2**64 - 1], pa.uint64()),
        "split": ["train", "test", None, "test", "train", "val", "é"],
        "score": pa.array([0.1, None, 1.5, 2.5, float("nan"), 3, 4], pa.float32()),
        "tiny": [0.0, 1e-17, 3e-8, -1e-17, 1 - 2**-53, 1.5, 1.0],
        "flag": [True, False, True, None, True, False, False],
        "raw": [b"a", b"b", None, b"a", b"", b"a", b"c"],
        "box": [[1, 2]] * 6 + [None],
        "day": pa.array([dt.date(2024, 1, d) for d in range(1, 8)]),
        "when": pa.array([dt.datetime(2024, 1, d, 12) for d in range(1, 8)], pa.timestamp("s")),
        "utc": pa.array([dt.datetime(2024, 1, d, 12) for d in range(1, 8)], pa.timestamp("us", "UTC")),
        "took": pa.array([dt.timedelta(seconds=d) for d in range(7)], pa.duration("ms")),
        "nothing": pa.nulls(7),
        "coded": pa.array(["a", "b", "a", "b", "a", None, "c"]).dictionary_encode(),
        "long": pa.array(["a", "b", "a", "b", "a", None, "c"], pa.large_string()),
    }
)
LABELS = Labels(TABLE)

pytestmark = pytest.mark.filterwarnings("ignore:filter.. finds no sample")


def rows(where=None, **conditions):
    found = matching_rows(LABELS, conditions, where)
    assert found.dtype == np.int64
    return found.tolist()


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"label": np.int8(1)}, [1, 3]),
        ({"label": 1.0}, [1, 3]),
        ({"label": 1.5}, []),
        ({"label": 10**30}, []),
        ({"label": torch.tensor(1)}, [1, 3]),
        ({"label": np.array(1)}, [1, 3]),
        ({"label": (1, None)}, [1, 3, 4]),
        ({"label": [None]}, [4]),
        ({"label": {1, 7}}, [1, 3, 5]),
        ({"label": []}, []),
        ({"label": np.array([1, 7, -1], np.int8)}, [1, 3, 5]),
        ({"label": np.array([2**64 - 1, 1], np.uint64)}, [1, 3]),
        ({"label": np.array([1.0, 2.5])}, [1, 3]),
        ({"label": torch.tensor([1, 7])}, [1, 3, 5]),
        ({"label": [1, 10**30, float("nan")]}, [1, 3]),
        ({"label": range(1, 3)}, [1, 2, 3]),
        ({"label": range(1, 8, 2)}, [0, 1, 3, 5, 6]),
        ({"label": range(7, 0, -2)}, [0, 1, 3, 5, 6]),
        ({"label": range(-(2**70), 2**70, 2**70)}, []),
        ({"label": range(3, 3)}, []),
        ({"label": range(3, 4)}, [0]),
        ({"label": lambda c: np.array([v == 7 for v in c])}, [5]),
        ({"id": -1}, []),
        ({"id": range(1, 2**65, 2)}, [1, 3, 5, 6]),
        ({"id": [-1, 2**64 - 1]}, [6]),
        ({"split": np.str_("test")}, [1, 3]),
        ({"split": "\ud800"}, []),
        ({"split": ["val", None]}, [2, 5]),
        ({"split": np.array(["val", "é"])}, [5, 6]),
        ({"score": float("nan")}, []),
        ({"score": [float("nan"), 3]}, [5]),
        ({"score": range(5)}, [5, 6]),
        ({"score": range(0, 5, 3)}, [5]),
        ({"tiny": range(2)}, [0, 6]),
        ({"tiny": range(0, 4, 3)}, [0]),
        ({"score": 10**400}, []),
        ({"flag": np.False_}, [1, 5, 6]),
        ({"flag": [True, None]}, [0, 2, 3, 4]),
        ({"raw": b"a"}, [0, 3, 5]),
        ({"box": None}, [6]),
        ({"day": dt.date(2024, 1, 2)}, [1]),
        ({"day": "2024-01-02"}, [1]),
        ({"day": [np.datetime64("2024-01-03"), "2024-01-01"]}, [0, 2]),
        ({"day": np.array(["2024-01-03", "NaT"], "M8[D]")}, [2]),
        ({"day": np.datetime64("NaT", "s")}, []),
        ({"day": dt.datetime(2024, 1, 2, 1)}, []),
        ({"when": "2024-01-02T12:00"}, [1]),
        ({"when": dt.datetime(2024, 1, 2, 12, 0, 0, 5)}, []),
        ({"when": np.datetime64("2024-01-02T12", "ns")}, [1]),
        ({"utc": "2024-01-02T14:00:00+02:00"}, [1]),
        ({"utc": "2024-01-02T12:00:00Z"}, [1]),
        ({"utc": "2024-01-02T12:00:00"}, [1]),
        ({"took": dt.timedelta(seconds=3)}, [3]),
        ({"took": np.timedelta64(4, "s")}, [4]),
        ({"nothing": 1}, []),
        ({"nothing": "a"}, []),
        ({"nothing": [1, 2]}, []),
        ({"nothing": None}, [0, 1, 2, 3, 4, 5, 6]),
        ({"coded": "a"}, [0, 2, 4]),
        ({"coded": ["c", None]}, [5, 6]),
        ({"long": "a"}, [0, 2, 4]),
        ({"long": ["c", None]}, [5, 6]),
        ({"split": "test", "label": 1, "flag": False}, [1]),
    ],
)
def test_conditions(conditions, expected):
    assert rows(**conditions) == expected


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (
            {"split": 1},
            r'label "split" is string; an int \(1\) cannot be compared with it; compare it with a str',
        ),
        ({"split": [1, "a"]}, r'label "split" is string; an int \(1\) cannot be compared'),
        ({"split": True}, r"a bool \(True\) cannot be compared"),
        (
            {"label": "1"},
            r"label \"label\" is int64; a str \('1'\) cannot be compared with it; compare it with a number",
        ),
        ({"label": True}, r"label \"label\" is int64; a bool \(True\) cannot be compared"),
        (
            {"flag": 1},
            r"label \"flag\" is bool; an int \(1\) cannot be compared with it; compare it with True or False",
        ),
        (
            {"raw": "a"},
            r"label \"raw\" is binary; a str \('a'\) cannot be compared with it; compare it with bytes",
        ),
        ({"box": 1}, r"label \"box\" is list<.*>; an int \(1\) cannot be compared with it; such a column"),
        (
            {"day": 3},
            r"label \"day\" is date32.*; an int \(3\) cannot be compared with it; compare it with a date",
        ),
        ({"day": "today"}, r"a str \('today'\) cannot be compared"),
        ({"day": "2024-13-45"}, r"a str \('2024-13-45'\) cannot be compared"),
        (
            {"when": dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)},
            r"a datetime \(2024-01-01 00:00:00\+00:00\) cannot be compared",
        ),
        ({"took": "2024-01-01"}, "duration"),
        ({"label": object()}, "an object cannot be compared"),
        ({"label": slice(1, 3)}, r"a slice is not a condition; .* range\(1, 3\)"),
        ({"split": range(1, 3)}, r"an int \(1\) cannot be compared"),
        ({"split": range(1, 9, 2)}, r"an int \(1\) cannot be compared"),
        ({"flag": range(2)}, "bool, which has no order"),
    ],
)
def test_conditions_of_another_kind(conditions, message):
    with pytest.raises(LabelError, match=message):
        rows(**conditions)


def test_unknown_columns():
    for value in (1, lambda c: c, range(1, 9, 2)):
        with pytest.raises(UnknownLabelError, match='no label "lable"; this archive has: label, id'):
            rows(lable=value)
    with pytest.raises(UnknownLabelError, match='no label "lable"'):
        rows(pc.field("lable") == 1)
    with pytest.raises(UnknownLabelError, match="has no labels"):
        matching_rows(Labels(pa.table({}), num_rows=3), {"x": 1})


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, [0, 3, 5]),
        ("label == 1", [3]),
        (pc.field("label") == 1, [3]),
        (np.arange(7) < 4, [0, 3]),
        ([True] * 4 + [False] * 3, [0, 3]),
        (torch.arange(7) < 4, [0, 3]),
        (pa.array([True, None, None, True, False, None, False]), [0, 3]),
        (pa.chunked_array([[True, None], [None, True, False, None, False]]), [0, 3]),
        (lambda table: pc.equal(table["label"], 1), [3]),
        (lambda table: (np.arange(table.num_rows) > 3).tolist(), [5]),
        ([5, 0, -2, 1, 5], [5, 0, 5, 5]),
        (torch.tensor([5, 0]), [5, 0]),
        (np.array([3], np.uint8), [3]),
        ([], []),
        (range(4), [0, 3]),
    ],
)
def test_where_forms(where, expected):
    assert rows(where, raw=b"a") == expected


def test_rows_alone_keep_order_and_repeats():
    assert rows([5, -1, 5]) == [5, 6, 5]


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ([True] * 5, OptionError, "mask has 5 entries, but the dataset has 7"),
        (lambda t: np.ones(5, bool), OptionError, "mask has 5 entries, but the dataset has 7"),
        (lambda t: 3, OptionError, r"where gave an int \(3\); a function gets the label table"),
        ([0, 7], SampleIndexError, r"indices\[1\] = 7 not in \[-7, 7\)"),
        (
            [0.5],
            OptionError,
            r"where is a list of length 1 that begins with a float \(0.5\); .* a where-string",
        ),
        (np.ones((7, 1), bool), OptionError, r"where is a ndarray of shape \(7, 1\) and dtype bool; give"),
        (3, OptionError, r"where is an int \(3\); give"),
        (pc.field("label"), LabelError, "the expression gives int64, not true or false"),
        (pc.field("label") == "a", LabelError, "pyarrow cannot evaluate this expression"),
        ("label ==", OptionError, "the end: invalid syntax"),
    ],
)
def test_where_errors(where, error, message):
    with pytest.raises(error, match=message):
        rows(where)


def test_a_condition_mask_is_checked():
    with pytest.raises(OptionError, match="mask has 2 entries, but the dataset has 7"):
        rows(label=lambda c: np.ones(2, bool))
    with pytest.raises(
        OptionError, match='the condition on label "label" gave a ndarray of shape .* and dtype int64'
    ):
        rows(label=lambda c: np.ones(7, np.int64))


def test_no_labels_still_take_a_mask():
    labels = Labels(pa.table({}), num_rows=3)
    assert matching_rows(labels, {}, [True, False, True]).tolist() == [0, 2]
    assert matching_rows(labels, {}).tolist() == [0, 1, 2]
    assert matching_rows(labels, {}, [-1]).tolist() == [2]


@settings(max_examples=30)
@given(st.integers(0, 400), st.integers(0, 5))
def test_a_view_gives_the_same_rows_whichever_side_is_compared(size, label):
    column = np.arange(400) % 5
    labels = Labels(pa.table({"a": column, "s": [f"v{v}" for v in column]}))
    picks = np.random.default_rng(size).integers(0, 400, size)
    expected = np.flatnonzero(column[picks] == label)
    taken = labels.take(picks)
    for where, conditions in [(None, {"a": label}), (None, {"s": f"v{label}"}), (f"a == {label}", {})]:
        assert np.array_equal(matching_rows(taken, conditions, where), expected)


@given(
    st.sampled_from(["i1", "u1", "i2", "i8", "u8"]),
    st.lists(st.integers(), min_size=1, max_size=40),
    st.lists(st.integers(), min_size=17, max_size=60),
    st.booleans(),
)
def test_many_ints_are_found_as_python_finds_them(dtype, column, wanted, is_near):
    bounds = np.iinfo(dtype)
    low = bounds.min if not is_near else bounds.max - 200

    def fitted(value):
        return int(low + value % min(250, bounds.max - low + 1)) if is_near else value % (bounds.max + 1)

    column, wanted = [fitted(v) for v in column], [fitted(v) for v in wanted]
    labels = Labels(pa.table({"x": pa.array(np.array([*column, bounds.min, bounds.max], dtype))}))
    expected = [i for i, v in enumerate([*column, bounds.min, bounds.max]) if v in wanted]
    assert matching_rows(labels, {"x": wanted}).tolist() == expected


FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 2.0**53])


@given(
    st.sampled_from([pa.float32(), pa.float64()]),
    st.lists(st.none() | FLOATS, max_size=30),
    st.lists(FLOATS | st.integers(-(2**54), 2**54), max_size=40),
)
def test_many_floats_are_found_as_python_finds_them(kind, column, wanted):
    labels = Labels(pa.table({"x": pa.array(column, kind)}))
    # Not `in` of the list, for which a nan is the object that it is.
    expected = [i for i, v in enumerate(column) if v is not None and any(v == w for w in wanted)]
    assert matching_rows(labels, {"x": wanted}).tolist() == expected


@pytest.mark.parametrize(("kind", "bits"), [("f2", 0x7C01), ("f4", 0x7F800001), ("f8", 0x7FF0000000000001)])
def test_a_signalling_nan_equals_nothing_and_warns_nobody(kind, bits):
    array = np.array([bits, 0, 1], f"u{kind[1]}").view(kind)
    labels = Labels(pa.table({"x": pa.array(array)}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for conditions in ({"x": 0.0}, {"x": [0.0] * 20}, {"x": range(0, 9, 2)}):
            assert matching_rows(labels, conditions).tolist() == [1]
        assert matching_rows(labels, {}, "x < 1").tolist() == [1, 2]
        assert matching_rows(labels, {}, "x != 0").tolist() == [0, 2]
        assert matching_rows(labels, {}, "x != x").tolist() == [0]
