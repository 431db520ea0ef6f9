from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edcache.errors import LabelError, OptionError, SampleIndexError, UnknownLabelError
from edcache.format.arrays import missing_rows, number_values, take_rows, to_numpy
from edcache.labels.labels import Labels


@pytest.fixture
def table():
    return pa.table(
        {
            "label": pa.array([3, 1, 2, 1], pa.int64()),
            "split": ["train", "test", None, "test"],
            "score": pa.array([0.5, None, 1.5, 2.5], pa.float32()),
            "flag": [True, False, True, True],
            "maybe": pa.array([1, None, 3, 4], pa.uint8()),
            "box": [[1, 2], [3, 4], [5, 6], [7, 8]],
            "ragged": [[1], [], None, [2, 3]],
            "when": pa.array([0, 1, 2, 3], pa.timestamp("ns")),
            "gap": pa.array([0, None, 2, 3], pa.timestamp("us")),
            "none": pa.nulls(4),
        }
    )


def inside(array: np.ndarray, buffer: pa.Buffer) -> bool:
    start = array.__array_interface__["data"][0]
    return buffer.address <= start and start + array.nbytes <= buffer.address + buffer.size


def test_is_a_mapping_of_columns(table):
    labels = Labels(table)
    assert len(labels) == 10
    assert labels.num_rows == 4
    assert list(labels) == table.column_names
    assert "label" in labels
    assert "lable" not in labels
    assert 3 not in labels
    assert labels == labels
    assert labels != Labels(table)
    assert {labels: 1}
    assert labels.table is table
    assert set(dict(labels)) == set(table.column_names)
    assert labels.get("lable") is None


@pytest.mark.parametrize("name", ["label", "when"])
def test_a_plain_column_is_a_view_of_the_table(table, name):
    array = Labels(table)[name]
    assert inside(array, table[name].chunk(0).buffers()[1])
    assert not array.flags.writeable


NUMBERS = [t() for t in (pa.int8, pa.int16, pa.int32, pa.int64, pa.float16, pa.float32, pa.float64)]
NUMBERS += [t() for t in (pa.uint8, pa.uint16, pa.uint32, pa.uint64)]


@given(st.sampled_from(NUMBERS), st.lists(st.integers(0, 100)), st.integers(0, 20), st.integers(0, 20))
def test_number_values_are_what_to_numpy_gives(kind, values, start, length):
    array = pa.array(np.array(values, kind.to_pandas_dtype()), kind).slice(start, length)
    expected, got = array.to_numpy(), number_values(array)
    assert (got.dtype, got.dtype.char) == (expected.dtype, expected.dtype.char)
    assert got.tolist() == expected.tolist()
    assert not len(array) or np.shares_memory(got, expected)
    assert not len(array) or not got.flags.writeable


@given(st.sampled_from(NUMBERS), st.lists(st.none() | st.integers(0, 100)), st.integers(0, 20))
def test_number_values_leave_out_what_is_null(kind, values, start):
    array = pa.array(values, pa.int64()).cast(kind).slice(start)
    assert number_values(array).tolist() == [value for value in values[start:] if value is not None]


FIXED = [*NUMBERS, pa.bool_(), pa.date32(), pa.timestamp("s", "UTC"), pa.timestamp("ns"), pa.duration("us")]
WHOLE = st.integers(0, 100) | st.just(2**62 + 1)


@given(st.sampled_from(FIXED), st.lists(st.none() | WHOLE), st.integers(0, 20), st.integers(0, 20))
def test_to_numpy_is_what_arrow_gives_but_for_integers_with_nulls(kind, values, start, length):
    integers = pa.array(values, pa.int64()).cast(
        pa.int32() if kind == pa.date32() else pa.int64(), safe=False
    )
    array = integers.cast(kind, safe=False).slice(start, length)
    got = to_numpy(array, nullable=array.null_count > 0)
    assert missing_rows(array).tolist() == [value is None for value in values[start : start + length]]
    if array.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        assert got.dtype == object
        assert got.tolist() == array.to_pylist()
    else:
        expected = array.to_numpy(zero_copy_only=False)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_to_numpy_keeps_the_bits_of_floats():
    written = np.array([-0.0, np.nan, np.inf, 5e-324, 0.1])
    assert to_numpy(pa.array(written), nullable=False).tobytes() == written.tobytes()
    nulled = to_numpy(pa.array(written, mask=np.arange(5) == 4), nullable=True)
    assert nulled[:4].tobytes() == written[:4].tobytes()
    assert np.isnan(nulled[4])


COLUMNS = {
    "int": pa.array([3, 1, 2, 9], pa.int16()),
    "float": pa.array([0.5, float("nan"), -0.0, 1.0]),
    "nullable": pa.array([1, None, 3, None]),
    "bool": pa.array([True, False, True, True]),
    "text": pa.array(["a", "bc", None, ""]),
    "list": pa.array([[1], None, [], [2, 3]]),
    "chunks": pa.chunked_array([[1, 2], [3], [4]]),
}


@given(st.lists(st.integers(0, 3)), st.sets(st.sampled_from(list(COLUMNS))))
def test_take_rows_is_what_take_gives(rows, names):
    table = pa.table({name: COLUMNS[name] for name in sorted(names)})
    found = take_rows(table, np.array(rows, np.int64))
    expected = table.take(pa.array(rows, pa.int64())) if names else table
    assert found.schema == expected.schema
    assert str(found.to_pylist()) == str(expected.to_pylist())


def test_equal_lists_are_a_view_in_two_dimensions(table):
    boxes = Labels(table)["box"]
    assert boxes.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert inside(boxes, table["box"].chunk(0).values.buffers()[1])
    sliced = Labels(table.slice(1, 2))
    assert sliced["box"].tolist() == [[3, 4], [5, 6]]
    assert inside(sliced["box"], table["box"].chunk(0).values.buffers()[1])


def test_the_numpy_forms(table):
    labels = Labels(table)
    assert labels["flag"].dtype == np.bool_
    assert labels["split"].tolist() == ["train", "test", None, "test"]
    assert labels["score"].dtype == np.float32
    assert np.isnan(labels["score"][1])
    assert labels["maybe"].dtype == object
    assert labels["maybe"].tolist() == [1, None, 3, 4]
    assert type(labels["maybe"][0]) is int
    assert [None if r is None else r.tolist() for r in labels["ragged"]] == [[1], [], None, [2, 3]]
    assert labels["when"].dtype == "M8[ns]"
    assert np.isnat(labels["gap"]).tolist() == [False, True, False, False]
    assert labels["none"].tolist() == [None] * 4
    for name in labels:
        assert not labels[name].flags.writeable
        assert labels[name] is labels[name]


def test_empty_tables():
    labels = Labels(pa.table({"a": pa.array([], pa.int64()), "l": pa.array([], pa.list_(pa.int64()))}))
    assert labels["a"].shape == (0,)
    assert labels["l"].shape == (0, 0)
    assert Labels(pa.table({"a": pa.chunked_array([], pa.int64())}))["a"].size == 0


def test_many_chunks_and_dictionaries_read_alike():
    table = pa.concat_tables([pa.table({"a": [1, 2]}), pa.table({"a": [3]})])
    assert Labels(table)["a"].tolist() == [1, 2, 3]
    coded = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()})
    assert Labels(coded)["a"].tolist() == ["x", "y", "x"]
    assert Labels(coded).take([1])["a"].tolist() == ["y"]


def test_unknown_labels_list_what_there_is(table):
    with pytest.raises(UnknownLabelError, match=r'^no label "lable"; this archive has: label, split, score'):
        Labels(table)["lable"]
    with pytest.raises(
        UnknownLabelError,
        match=r'^no label "lable"; this archive has no labels; make it one by in_memory_keys=\["lable"\]',
    ):
        Labels(pa.table({}))["lable"]
    with pytest.raises(KeyError):
        Labels(table).counts("lable")


def test_a_callable_is_asked_once_and_late(table):
    calls = []
    labels = Labels(lambda: calls.append(1) or table)
    assert calls == []
    taken = labels.take([1, 0])
    assert taken.num_rows == 2
    assert labels["label"].tolist() == [3, 1, 2, 1]
    assert taken["label"].tolist() == [1, 3]
    assert calls == [1]


def test_an_archive_without_labels_knows_its_length():
    labels = Labels(pa.table({}), num_rows=7)
    assert labels.num_rows == 7
    assert labels.take([6, -7]).num_rows == 2
    assert labels.take([6]).table.num_columns == 0
    assert repr(labels) == "Labels(no columns; 7 rows)"


def test_take_refuses_what_is_no_index(table):
    with pytest.raises(SampleIndexError, match=r"indices\[1\] = 4 not in \[-4, 4\)"):
        Labels(table).take([0, 4])
    with pytest.raises(SampleIndexError, match=r"indices\[0\] = -3 not in \[-2, 2\)"):
        Labels(table).take([0, 1]).take([-3])
    with pytest.raises(SampleIndexError, match="18446744073709551615"):
        Labels(table).take(np.array([2**64 - 1], np.uint64))
    with pytest.raises(OptionError, match="mask has 3 entries, but the dataset has 4"):
        Labels(table).take([True, False, True])
    with pytest.raises(OptionError, match="indices of float64 with 1 dimensions; give a 1-dim array of int"):
        Labels(table).take([0.5])
    with pytest.raises(OptionError, match="indices of int64 with 2 dimensions"):
        Labels(table).take([[1]])


def test_take_takes_a_mask(table):
    assert Labels(table).take([True, False, True, True])["label"].tolist() == [3, 2, 1]


@settings(max_examples=50)
@given(st.data())
def test_a_take_equals_fancy_indexing(data):
    n = data.draw(st.integers(1, 6))
    values = data.draw(st.lists(st.none() | st.integers(-5, 5), min_size=n, max_size=n))
    labels = Labels(pa.table({"a": pa.array(values, pa.int64()), "s": pa.array(list(map(str, values)))}))
    expected = list(range(n))
    for _ in range(data.draw(st.integers(0, 3))):
        if not expected:
            break
        step = data.draw(st.lists(st.integers(-len(expected), len(expected) - 1), max_size=6))
        labels, expected = labels.take(step), [expected[i] for i in step]
    assert labels.num_rows == len(expected)
    assert labels["a"].tolist() == [values[i] for i in expected]
    assert labels["s"].tolist() == [str(values[i]) for i in expected]
    assert labels.table["a"].to_pylist() == [values[i] for i in expected]


def test_counts(table):
    labels = Labels(table)
    assert list(labels.counts("label").items()) == [(1, 2), (3, 1), (2, 1)]
    assert labels.counts("split") == {"test": 2, "train": 1, None: 1}
    assert labels.take([1, 3, 3]).counts("split") == {"test": 3}
    assert labels.counts("maybe") == {1: 1, None: 1, 3: 1, 4: 1}
    assert labels.counts("score")[None] == 1
    assert labels.counts("flag") == {True: 3, False: 1}
    assert labels.counts("when")[np.datetime64(1, "ns")] == 1
    assert labels.counts("none") == {None: 4}
    with pytest.raises(LabelError, match=r'label "box" is list<.*>; counts\(\) needs'):
        labels.counts("box")


def test_repr_is_short(table):
    assert repr(Labels(table.select(["label", "split"]))) == "Labels(label: int64, split: string; 4 rows)"
