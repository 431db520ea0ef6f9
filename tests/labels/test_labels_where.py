from __future__ import annotations

import contextlib
import datetime as dt
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edcache.errors import LabelError, OptionError, UnknownLabelError
from edcache.labels.labels import Labels
from edcache.labels.query import matching_rows
from edcache.labels.where import where_truth

pytestmark = pytest.mark.filterwarnings("ignore:filter.. finds no sample")

TABLE = pa.table(
    {
        "label": [3, 1, 2, None, 5],
        "small": pa.array([1, 2, 3, 4, 255], pa.uint8()),
        "split": ["train", "test", None, "val", "tes"],
        "score": [0.5, None, 1.5, -2.0, float("nan")],
        "flag": [True, False, None, True, False],
        "box": [[1]] * 5,
        "target.size": [1, 2, 3, 4, 5],
        "odd name": [1, 1, 2, 2, 2],
        "in": [1, 2, 2, 2, 2],
        "0": [9, 8, 7, 6, 5],
        "other": [3, 3, 3, 3, 3],
        "day": [dt.date(2024, 1, d) for d in range(1, 6)],
        "when": pa.array([dt.datetime(2024, 1, d, 12) for d in range(1, 6)], pa.timestamp("s")),
        "nothing": pa.nulls(5),
        "große": [1, 2, 3, 4, 5],
        "class": [1, 2, 3, 4, 5],
    }
)


def rows(text):
    return matching_rows(Labels(TABLE), {}, text).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" label==1 ", [1]),
        ("label != 1", [0, 2, 4]),
        ("1 < label <= 3", [0, 2]),
        ("5 > label > 1", [0, 2]),
        ("label < 2.5", [1, 2]),
        ("label >= 2.5", [0, 4]),
        ("label == 2.5", []),
        ("label != 2.5", [0, 1, 2, 4]),
        ("small < 256", [0, 1, 2, 3, 4]),
        ("small <= 1000.5", [0, 1, 2, 3, 4]),
        ("small > 256", []),
        ("small > -1", [0, 1, 2, 3, 4]),
        ("small < -0.5", []),
        ("small != 256", [0, 1, 2, 3, 4]),
        ("label in (1, 2)", [1, 2]),
        ("label in [1, 2,]", [1, 2]),
        ("label in ((1, 2))", [1, 2]),
        ("label == 1 # one\n or\n label == 2", [1, 2]),
        ("\nlabel == 1\nand split == 'test'\n", [1]),
        ("label != 18446744073709551616", [0, 1, 2, 4]),
        ("label == 0x2", [2]),
        ("label in ()", []),
        ("label in (1, None)", [1, 3]),
        ("label in (None,)", [3]),
        ("label not in (1, 2)", [0, 4]),
        ("label not in (1, None)", [0, 2, 4]),
        ("label not in ()", [0, 1, 2, 4]),
        ("not label in (1, 2)", [0, 4]),
        ("label is None", [3]),
        ("label is not None", [0, 1, 2, 4]),
        ("label == None", [3]),
        ("None != label", [0, 1, 2, 4]),
        ("not label == 1", [0, 2, 4]),
        ("not not label == 1", [1]),
        ("label == 1 or split == 'train'", [0, 1]),
        ("label == 1 and split == 'train' or label == 2", [1 + 1]),
        ("(label == 1 or label == 2) and split == 'test'", [1]),
        ("((label)) == (1)", [1]),
        ("(label) in (1, 2)", [1, 2]),
        ('(col("odd name")) == 1', [0, 1]),
        ("(-1) < label", [0, 1, 2, 4]),
        ("flag", [0, 3]),
        ("not flag", [1, 4]),
        ("(flag) and label == 3", [0]),
        ("flag != True", [1, 4]),
        ("flag in (True, None)", [0, 2, 3]),
        ("score != 0.5", [2, 3, 4]),
        ("score < 1e3", [0, 2, 3]),
        ("score > .25", [0, 2]),
        ("split < 'tf'", [1, 4]),
        ('split == "te" or split == "val"', [3]),
        (r'split == "v\"\\\n"', []),
        ('startswith(split, "te")', [1, 4]),
        ("startswith(split, 'te') and contains(split, 'st')", [1]),
        ("not contains(split, 't')", [3]),
        ('col("odd name") == 1', [0, 1]),
        ('col("in") == 1', [0]),
        ('col("0") > 7', [0, 1]),
        ("target.size == 2", [1]),
        ('startswith(col("split"), "v")', [3]),
        ("große == 2", [1]),
        ("label < other", [1, 2]),
        ("label < small", [1, 2, 4]),
        ("day > '2024-01-02'", [2, 3, 4]),
        ("day in ('2024-01-02', '2024-01-05')", [1, 4]),
        ("'2024-01-02' <= day < '2024-01-04'", [1, 2]),
        ("day < '2024-01-02T12:00'", [0, 1]),
        ("when == '2024-01-02T12:00:00'", [1]),
        ("when >= '2024-01-02T12:00:00.5'", [2, 3, 4]),
        ("when < '2024-01-03'", [0, 1]),
        ("nothing == 1", []),
        ("nothing != 1", []),
        ("nothing is None", [0, 1, 2, 3, 4]),
        ("nothing in (1, 2)", []),
    ],
)
def test_where(text, expected):
    assert rows(text) == expected


HOSTILE = [
    *("__import__('os')", "__import__('os').system('true')", "().__class__", "lambda: 1", "lambda x: x == 1"),
    *("[x for x in (1, 2)]", "{1: 2}", 'f"{label}" == "1"', "(label := 1)", "label := 1"),
    *("label == 1; label == 2", "label == " + "9" * 5000, "score == -1e400", "label == 1j", "label == 1.5.2"),
    *("(" * 5000, "(" * 300 + "label == 1" + ")" * 300, "not " * 2499, "not " * 2499 + "flag"),
    *("-" * 9000 + "1 == label", "label" + ".a" * 4990, "1 + " * 2400 + "label == 1"),
    *("lambda: " * 1200 + "label", "f" + "(" * 199 + ")" * 199, "label in (1)", "label == 1 AND flag"),
    *("NOT flag", "label == '\ud800'", "label == *label", "label == 1,", "label == 1) or (flag] == 1"),
    *("label == 1\0", "\0", "label == '\n'", 'label == "unclosed', "", "   ", "label", "1", "True"),
    *("None is None", "1 < 2", "== 1", "label == 1 label", "label 1", "label not 1", "label is not"),
    *("label in 1", "label in other", "label in (other)", "label in (1 2)", "label in (1, 2"),
    *("label + 1 == 2", "label ** 2 == 2", "-label == 2", "--1 == label", "label if label == 1 else flag"),
    *("label == 1 if 1 else 2", "(label == 1) == flag", "(label == 1) is None", "(label == 1", "label == 1)"),
    *("col(label) == 1", "col('label', 'x') == 1", "col('label'", "startswith('a', split)"),
    *("startswith(split, 1)", "startswith(split)", "endswith(split, 'a')", "eval('1')", "and"),
    *("label == 1 and", "label == 1 And flag", "label == 1 && flag", "label <> 1", "`label` == 1"),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_everything_else_is_a_where_error(text):
    # The bare int column is a condition of the wrong type, which has an error of its own.
    with pytest.raises(LabelError if text == "label" else OptionError, match=r"where|not a condition"):
        where_truth(text, Labels(TABLE))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label = = 3", 'where "label = = 3": column 7: invalid syntax; values are compared by ==; allowed'),
        ("label = 3", "column 1: invalid syntax; values are compared by ==; allowed are column names"),
        ("flag AND flag", "invalid syntax; and, or, not, in, is are written in lower case; allowed"),
        ("label == ", "the end: invalid syntax"),
        ("label == 3 $", "column 12: invalid syntax"),
        ("os('x')", 'column 1: "os" is no function here'),
        ("score < 1e400", "column 9: a number beyond float64"),
        ("label < None", "column 9: < orders no None"),
        ("label is 1", 'column 10: "is" asks whether a column "is None"; values are compared by =='),
        ("1 in (1, 2)", 'column 1: "in" has no column on its left'),
        ("flag) or (flag", "column 5: unmatched ')'"),
        ("label) == (1", "column 6: unmatched ')'"),
        ("flag and 1", "column 10: this is no condition"),
        ("1 == 2", "column 1: this compares no column"),
        ("flag flag", "column 1: invalid syntax"),
        ("not " * 51 + "flag", "nested deeper than 50"),
        ("x" * 10_001, "where-string of 10001 characters; at most 10000 are read"),
        ("label in 3", "column 10: expected a list of literals, as in (0, 1), (0,)"),
        ("große == 1 and\n große == (label == 1)", "line 2, column 12: expected a column or a literal"),
        ("große == 1 and große + 1", "column 16: this is no condition"),
        ("class == 1", '"class" is a word of Python: write col("class")'),
    ],
)  # fmt: skip
def test_where_error_texts(text, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        where_truth(text, Labels(TABLE))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("lable == 1", UnknownLabelError, 'no label "lable"; this archive has: label, small'),
        ("col('x y') == 1", UnknownLabelError, 'no label "x y"'),
        ("target.boxes == 1", UnknownLabelError, 'no label "target.boxes"'),
        ("label.__class__ == 1", UnknownLabelError, 'no label "label.__class__"'),
        ("split == train", UnknownLabelError, 'write text in quotes: "train"'),
        ("lable == 1", UnknownLabelError, "did you mean label?"),
        (
            "split == 1",
            LabelError,
            r'label "split" is string; an int \(1\) cannot be compared with it; compare it with a str',
        ),
        ("label == 'a'", LabelError, r"a str \('a'\) cannot be compared with it; compare it with a number"),
        ("label in (1, 'a')", LabelError, r"a str \('a'\) cannot be compared"),
        ("label == True", LabelError, r"a bool \(True\) cannot be compared"),
        ("flag < True", LabelError, 'label "flag" is bool, which has no order'),
        ("box == 1", LabelError, 'label "box" is list'),
        ("day == 1", LabelError, r"an int \(1\) cannot be compared with it; compare it with a date"),
        ("day == 'yesterday'", LabelError, r"a str \('yesterday'\) cannot be compared"),
        ("label == split", LabelError, '"label" is int64 and "split" is string; only columns of one kind'),
        ("contains(label, 'a')", LabelError, r"contains\(\) looks into text; compare it with a number"),
        ("not label", LabelError, 'label "label" is int64, not a condition; compare it'),
    ],
)
def test_names_and_types(text, error, message):
    with pytest.raises(error, match=message):
        where_truth(text, Labels(TABLE))


def test_long_chains_do_not_nest():
    text = " or ".join(["label == 1"] * 700)
    assert rows(text) == [1]
    assert rows("label" + "<=label" * 1400) == [0, 1, 2, 4]
    assert rows("(" * 50 + "label == 1" + ")" * 50) == [1]
    assert rows("not " * 48 + "label == 1") == [1]


@settings(max_examples=300)
@given(st.text(alphabet="label split()'\"=<>!.,-0129e\\[]andornotinis ", max_size=60) | st.text(max_size=20))
def test_any_text_parses_or_raises_our_errors(text):
    with contextlib.suppress(OptionError, UnknownLabelError, LabelError):
        where_truth(text, Labels(TABLE))


def test_integers_beyond_float_precision_compare_exactly():
    table = pa.table({"a": pa.array([2**53, 2**53 + 1, 2**63 - 1])})
    labels = Labels(table)
    assert matching_rows(labels, {}, f"a == {2**53 + 1}").tolist() == [1]
    assert matching_rows(labels, {}, "a > 9007199254740992.0").tolist() == [1, 2]
    assert matching_rows(labels, {}, "a < 9223372036854775808.0").tolist() == [0, 1, 2]
    assert matching_rows(labels, {"a": np.float64(2**53)}).tolist() == [0]
