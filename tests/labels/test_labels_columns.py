from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import pickle
import re
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edcache import CachedDataset
from edcache.errors import LabelError, OptionError
from edcache.format.types import is_type_json, joined_schema, type_of_json, type_to_json, unify
from edcache.labels import collected, given_column
from edcache.labels.collector import LabelCollector
from edcache.labels.label_spec import LabelSpec


def collect(*values, key="y"):
    collector = LabelCollector(LabelSpec.parse([key]))
    for i, value in enumerate(values):
        collector.add(i, {key: value})
    return collector.table()[key]


# ---- LabelSpec


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (None, ()),
        ([], ()),
        (["label", "target.boxes", 1, ("target", 0)], ("label", "target.boxes", "1", "target.0")),
        (("a", "b"), ("a", "b")),
        ({"x": "a.b", "y": 0, "z": len}, ("x", "y", "z")),
    ],
)
def test_parse_names_the_columns(keys, names):
    assert LabelSpec.parse(keys).names == names


REFUSED = [
    ("label", r"in_memory_keys='label' is a str; .* for example in_memory_keys=\[\"label\"\]"),
    ("", r"for example in_memory_keys=\[\"label\"\]"),
    ({"a"}, r"is a set; give a list of field paths or a mapping"),
    (3, r"in_memory_keys=3 is an int; give a list"),
    ([""], "column name ''; a name is a non-empty str"),
    ({"": "a"}, "a name is a non-empty str"),
    ({3: "a"}, "column name 3; a name is a non-empty str"),
    (["a", "a"], '"a" twice'),
    (["a.b", ("a", "b")], '"a.b" twice'),
    ([True], r"holds True \(a bool\); a field path is"),
    ([None], "holds None"),
    ([()], "a field path is a str"),
    ([1.5], "a field path is a str"),
    ({"a": None}, "a field path is a str"),
    ([len], "a callable without a name"),
    (["\ud800"], "not UTF-8"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_what_is_refused_is_refused_of_a_complete_cache_too(tmp_path, keys, message):
    source, path = [{"a": 1, "label": 2}], tmp_path / "a.zip"
    CachedDataset(source, path, in_memory_keys=["a", "label"], progress=False)
    for again in (source, None):
        with pytest.raises(OptionError, match=message):
            CachedDataset(again, path, in_memory_keys=keys, progress=False)


def test_json_record_names_paths_and_hides_callables():
    spec = LabelSpec.parse({"a": "x.y", "b": 3, "c": ("t", 0), "d": len})
    assert spec.to_json() == {"a": "x.y", "b": 3, "c": ["t", 0], "d": None}


def test_spec_pickles():
    spec = pickle.loads(pickle.dumps(LabelSpec.parse({"n": len, "a": "a"})))
    assert spec.extract(0, {"a": 5}) == [1, 5]


Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Sample:
    label: int


@pytest.mark.parametrize(
    ("path", "sample", "value"),
    [
        ("a", {"a": 1}, 1),
        ("a.b", {"a.b": 1, "a": {"b": 2}}, 1),
        ("a.b", {"a": {"b": 2}}, 2),
        ("a.1.b", {"a": [0, {"b": 3}]}, 3),
        ("1", (7, 8), 8),
        ("1", {1: "int key"}, "int key"),
        (1, (7, 8), 8),
        (-1, [7, 8], 8),
        (1, {1: "int key"}, "int key"),
        (("a", 0), {"a": (5,)}, 5),
        (("a.b",), {"a.b": 5}, 5),
        ("x", Point(1, 2), 1),
        (1, Point(1, 2), 2),
        ("p.y", {"p": Point(1, 2)}, 2),
        ("label", Sample(4), 4),
        ("a", OrderedDict(a=1), 1),
    ],
)
def test_extract_walks_the_field_path(path, sample, value):
    assert LabelSpec.parse([path]).extract(0, sample) == [value]


@pytest.mark.parametrize(
    ("path", "sample", "message"),
    [
        ("lable", {"image": 0, "label": 1}, r'no field "lable"; it has the keys "image", "label"; name'),
        ("t.b", {"t": {"c": 1}}, r'no field "t.b"; what is at "t" has the keys "c"'),
        ("t.5", {"t": [1, 2]}, r'what is at "t" is a list of length 2'),
        (2, (1, 2), r"no field 2; it is a tuple of length 2"),
        ("x", (1, 2), r"it is a tuple of length 2"),
        ("z", Point(1, 2), r"it has the fields x, y"),
        ("x", torch.zeros(3), r"it is a Tensor, which has no fields"),
        (0, "text", r"it is a str, which has no fields"),
        (0, torch.zeros(3), r"it is a Tensor, which has no fields"),
        ("a", {}, r"it is an empty dict"),
        (("a", "b"), {"a": {}}, r"no field \('a', 'b'\); what is at \"a\" is an empty dict"),
    ],
)  # fmt: skip
def test_a_missing_field_says_what_is_there(path, sample, message):
    with pytest.raises(LabelError, match=message):
        LabelSpec.parse([path]).extract(3, sample)


def test_asking_does_not_grow_a_defaultdict():
    sample = defaultdict(int, a=1)
    with pytest.raises(LabelError):
        LabelSpec.parse(["b"]).extract(0, sample)
    assert dict(sample) == {"a": 1}


# ---- the types

UTC = dt.timezone.utc


class Colour(str, enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (True, pa.bool_(), True),
        (np.True_, pa.bool_(), True),
        (5, pa.int64(), 5),
        (-(2**63), pa.int64(), -(2**63)),
        (np.uint64(2**64 - 1), pa.uint64(), 2**64 - 1),
        (0.1, pa.float64(), 0.1),
        ("é", pa.string(), "é"),
        ("", pa.string(), ""),
        (b"\xff", pa.binary(), b"\xff"),
        (None, pa.null(), None),
        (np.uint8(7), pa.uint8(), 7),
        (np.int16(-7), pa.int16(), -7),
        (np.longlong(7), pa.int64(), 7),
        (np.float32(0.1), pa.float32(), float(np.float32(0.1))),
        (np.float64(0.1), pa.float64(), 0.1),
        (np.str_("x"), pa.string(), "x"),
        (np.bytes_(b"x"), pa.binary(), b"x"),
        (np.array(3, np.uint16), pa.uint16(), 3),
        (np.array(3, ">i4"), pa.int32(), 3),
        (np.array("x"), pa.string(), "x"),
        (torch.tensor(3), pa.int64(), 3),
        (torch.tensor(3, dtype=torch.uint8), pa.uint8(), 3),
        (torch.tensor(0.5, requires_grad=True), pa.float32(), 0.5),
        (torch.tensor(0.5, dtype=torch.bfloat16), pa.float32(), 0.5),
        (torch.tensor(True), pa.bool_(), True),
        (dt.datetime(2024, 1, 2, 3), pa.timestamp("us"), dt.datetime(2024, 1, 2, 3)),
        (dt.datetime.max, pa.timestamp("us"), dt.datetime.max),
        (dt.date(2024, 1, 2), pa.date32(), dt.date(2024, 1, 2)),
        (dt.timedelta(seconds=-1), pa.duration("us"), dt.timedelta(seconds=-1)),
        (np.datetime64("2024-01-02"), pa.date32(), dt.date(2024, 1, 2)),
        (np.datetime64("2024-01-02T03", "ms"), pa.timestamp("ms"), dt.datetime(2024, 1, 2, 3)),
        (np.datetime64("2024-01-02T03", "h"), pa.timestamp("s"), dt.datetime(2024, 1, 2, 3)),
        (np.datetime64("NaT", "s"), pa.timestamp("s"), None),
        (np.array([-(2**63)]).view("M8")[0], pa.null(), None),
        (np.timedelta64(5, "s"), pa.duration("s"), dt.timedelta(seconds=5)),
        (Colour.RED, pa.string(), "red"),
        (Size.BIG, pa.int64(), 3),
        ([], pa.list_(pa.null()), []),
        ([1, None], pa.list_(pa.int64()), [1, None]),
        ((1, 2.5), pa.list_(pa.float64()), [1, 2.5]),
        (["a", "b"], pa.list_(pa.string()), ["a", "b"]),
        ([torch.tensor(1), torch.tensor(2)], pa.list_(pa.int64()), [1, 2]),
        (np.array([1, 2], np.uint8), pa.list_(pa.uint8()), [1, 2]),
        (np.array([1, 2], ">i4"), pa.list_(pa.int32()), [1, 2]),
        (np.array(["a", "b"]), pa.list_(pa.string()), ["a", "b"]),
        (np.array(["2024-01-02"], "M8[D]"), pa.list_(pa.date32()), [dt.date(2024, 1, 2)]),
        (np.zeros(0, np.float32), pa.list_(pa.float32()), []),
        (torch.tensor([1.0, 2.0]), pa.list_(pa.float32()), [1.0, 2.0]),
        (torch.ones(2, dtype=torch.bfloat16), pa.list_(pa.float32()), [1.0, 1.0]),
    ],
)
def test_a_value_has_its_type(value, kind, stored):
    column = collect(value)
    assert column.type == kind
    assert column.to_pylist() == [stored]
    assert column.num_chunks == 1
    with_none = collect(None, value, None)
    assert with_none.type == kind
    assert with_none.to_pylist() == [None, stored, None]
    assert collect(value, value).to_pylist() == [stored, stored]


def test_float16_keeps_its_type():
    column = collect(np.float16(0.5), np.float16(1.5))
    assert column.type == pa.float16()
    assert column.chunk(0).to_numpy().tolist() == [0.5, 1.5]


def test_an_aware_datetime_becomes_utc():
    value = dt.datetime(2024, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    column = collect(value, None)
    assert column.type == pa.timestamp("us", "UTC")
    assert column.chunk(0).cast(pa.int64())[0].as_py() == int(value.timestamp() * 1e6)


def test_pandas_timestamps_keep_nanoseconds():
    pandas = pytest.importorskip("pandas")
    column = collect(pandas.Timestamp("2024-01-02T00:00:00.000000001"), pandas.NaT)
    assert column.type == pa.timestamp("ns")
    assert column.chunk(0)[0].value % 10 == 1
    assert column.null_count == 1
    aware = collect(pandas.Timestamp("2024-01-02T01", tz="Europe/Berlin"))
    assert pa.types.is_timestamp(aware.type)
    assert aware.type.tz == "UTC"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Path("x"), r'label "y": sample 0 is a (Posix|Windows)Path; a label is a bool, int, '),
        (Path("x"), r'convert it, for example in_memory_keys=\{"y": lambda s: str\(s\["y"\]\)\}'),
        (uuid4(), "is an? UUID; a label is"),
        (2**63, r"is an int of 64 bits, beyond int64; numpy.uint64\(value\) holds unsigned ones"),
        (-(2**63) - 1, "beyond int64"),
        (1j, "is a complex"),
        (np.complex64(1), "is a complex64"),
        (np.longdouble(1), "is a longdouble|is a float128"),
        (dt.time(1), "is a time; a label is"),
        (object(), "is an object"),
        ({"a": 1}, "is a dict"),
        ({1}, "is a set"),
        ("\ud800", "a str that is not UTF-8"),
        (torch.zeros(3, 4), r"is a Tensor of shape \(3, 4\) and dtype torch.float32"),
        (torch.zeros(2, dtype=torch.complex64), r"is a Tensor of shape \(2,\)|is a list|is a complex"),
        (np.zeros((3, 4)), r"is a ndarray of shape \(3, 4\) and dtype float64"),
        (np.zeros(2, "i4,i4"), r"is a ndarray of shape \(2,\)"),
        ([[1]], r"is a list of length 1 that begins with a list"),
        ([1, "a"], r"is a list of mixed types \(int64 and string\)"),
        ([True, 1], r"is a list of mixed types \(bool and int64\)"),
        ([2**53 + 1, 0.5], r"float64 does not hold 9007199254740993 exactly"),
        ([-1, np.uint64(2**63)], r"mixed types"),
        (np.timedelta64(1, "Y"), "timedelta64 without a fixed length"),
        (np.datetime64(1, "ps"), "finer than the ns"),
        (np.datetime64(2**40, "D"), "32-bit days"),
        (np.datetime64(2**62, "Y"), "32-bit days"),
        (np.datetime64(2**62, "h"), "a time outside 64-bit s"),
        (np.timedelta64(2**62, "W"), "a time outside 64-bit s"),
        (dt.timedelta.max, "64-bit microseconds"),
        (dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-2))), "years 1 to 9999"),
    ],
)  # fmt: skip
def test_other_values_are_refused(value, message):
    with pytest.raises(LabelError, match=message):
        collect(value)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, 1], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([2.5, 1], pa.float64()),
        ([2**53, 0.5], pa.float64()),
        ([np.uint8(1), np.uint16(2)], pa.uint16()),
        ([np.uint8(1), np.int8(-2)], pa.int16()),
        ([np.uint8(1), 300], pa.int64()),
        ([np.int32(1), np.float32(0.5)], pa.float64()),
        ([np.float16(1), np.float32(0.5)], pa.float32()),
        ([np.float32(1), 0.1], pa.float64()),
        ([np.uint64(5), None, np.uint8(3)], pa.uint64()),
        ([[], [1]], pa.list_(pa.int64())),
        ([[1], np.array([0.5])], pa.list_(pa.float64())),
        ([np.array([1], np.uint8), np.array([300], np.uint16)], pa.list_(pa.uint16())),
        ([None, [None], ["a"]], pa.list_(pa.string())),
        ([[np.uint64(2**63)], [np.uint8(1)]], pa.list_(pa.uint64())),
    ],
)
def test_promotions_keep_every_value(values, kind):
    plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
    column = collect(*values)
    assert column.type == kind
    assert column.to_pylist() == plain
    # The same over chunks of one sample each.
    spread = unify([pa.table({"y": collect(v)}) for v in values], "a.zip")["y"]
    assert spread.type == kind
    assert spread.num_chunks == 1
    assert spread.to_pylist() == plain


@pytest.mark.parametrize(
    "values",
    [
        [1, "cat"],
        ["cat", 1],
        [True, 1],
        [1, True],
        [1.5, False],
        ["a", b"a"],
        [1, [1]],
        [[1], ["a"]],
        [2**53 + 1, 0.5],
        [0.5, 2**53 + 1],
        [-1, np.uint64(2**63)],
        [np.uint64(2**63), -1],
        [np.uint64(5), 0.5],
        [dt.datetime(2024, 1, 1), dt.date(2024, 1, 1)],
        [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=UTC)],
        [dt.datetime(2024, 1, 1), np.datetime64("2024-01-01", "ns")],
        [dt.timedelta(1), 1],
        [[2**53 + 1], [0.5]],
        [np.array([2**53 + 1]), np.array([0.5])],
    ],
)
def test_mixed_kinds_are_refused_in_a_chunk_and_over_chunks(values):
    with pytest.raises(LabelError, match=r'label "y": sample 1 is .*earlier samples are'):
        collect(*values)
    tables = [pa.table({"y": collect(v)}) for v in values]
    with pytest.raises(LabelError, match=r'a.zip: label "y" is .*; write it as one type'):
        unify(tables, "a.zip")


def test_the_mix_error_text():
    with pytest.raises(
        LabelError,
        match=re.escape(
            "label \"y\": sample 1 is a str ('cat'), earlier samples are int64; make it one type, "
            'for example in_memory_keys={"y": lambda s: str(s["y"])}'
        ),
    ):
        collect(1, "cat")
    with pytest.raises(LabelError, match=r"sample 1 is an int \(9007199254740993\).* does not hold"):
        collect(0.5, 2**53 + 1)
    collector = LabelCollector(LabelSpec.parse({"y": lambda s: s}))
    collector.add(0, 1)
    with pytest.raises(LabelError, match="in the callable or the dataset"):
        collector.add(1, "a")
    collector = LabelCollector(LabelSpec.parse([1]))
    collector.add(0, (0, 1))
    with pytest.raises(LabelError, match=re.escape('in_memory_keys={"1": lambda s: str(s[1])}')):
        collector.add(1, (0, "a"))


# ---- the collector


def test_a_refused_sample_leaves_no_trace():
    collector = LabelCollector(LabelSpec.parse(["a", "b"]))
    collector.add(0, {"a": 1, "b": "x"})
    with pytest.raises(LabelError, match='"b": sample 1'):
        collector.add(1, {"a": 0.5, "b": 3})
    with pytest.raises(LabelError, match='no field "b"'):
        collector.add(1, {"a": 0.5})
    assert len(collector) == 1
    collector.add(1, {"a": 2**60 + 1, "b": "y"})
    table = collector.table()
    assert table.to_pydict() == {"a": [1, 2**60 + 1], "b": ["x", "y"]}
    assert table.schema.field("a").type == pa.int64()


def test_a_successor_starts_afresh_but_remembers_the_types():
    collector = LabelCollector(LabelSpec.parse(["y"]))
    collector.add(0, {"y": 1})
    assert collector.table()["y"].to_pylist() == [1]
    collector = collector.successor()
    assert len(collector) == 0
    assert collector.table().num_rows == 0
    with pytest.raises(LabelError, match=r"sample 5 is a str .* earlier samples are int64"):
        collector.add(5, {"y": "a"})
    collector.add(5, {"y": None})
    assert collector.table()["y"].type == pa.int64()


def test_an_array_is_copied():
    buffer = np.array([1, 2])
    collector = LabelCollector(LabelSpec.parse(["y"]))
    collector.add(0, {"y": buffer})
    buffer[:] = 0
    assert collector.table()["y"].to_pylist() == [[1, 2]]


def test_no_labels_at_all():
    collector = LabelCollector(LabelSpec.parse(None))
    collector.add(0, object())
    assert len(collector) == 1
    assert collector.table().num_columns == 0


def test_no_validity_bitmap_without_a_missing_value():
    for values in ([1, 2], [0.5, 1.5], [True], ["a"], [dt.date(2024, 1, 1)]):
        assert collect(*values).chunk(0).buffers()[0] is None


# ---- unify


def test_unify_of_nothing_and_of_one():
    table = pa.table({"a": [1, 2]})
    assert unify([table], "a.zip").equals(table)
    assert unify([table.slice(0, 0)], "a.zip").num_rows == 0


def test_unify_matches_columns_by_name():
    joined = unify([pa.table({"a": [1], "b": ["x"]}), pa.table({"b": ["y"], "a": [2]})], "a.zip")
    assert joined.to_pydict() == {"a": [1, 2], "b": ["x", "y"]}
    with pytest.raises(LabelError, match=r"a.zip: one chunk has the labels a, b, another a; write all"):
        unify([pa.table({"a": [1], "b": ["x"]}), pa.table({"a": [1]})], "a.zip")


def test_unify_joins_string_and_large_string():
    kinds = [pa.string(), pa.large_string()]
    joined = unify([pa.table({"a": pa.array(["x"], kind)}) for kind in kinds], "a.zip")
    assert joined.schema.field("a").type == pa.large_string()
    assert joined["a"].to_pylist() == ["x", "x"]


def test_unify_changes_to_large_offsets_past_the_limit(monkeypatch):
    monkeypatch.setattr("edcache.format.arrays._OFFSET_LIMIT", 10)
    tables = [pa.table({"s": ["abcdefgh"], "l": [list(range(8))]})] * 2
    joined = unify(tables, "a.zip")
    assert joined.schema.field("s").type == pa.large_string()
    assert joined.schema.field("l").type == pa.large_list(pa.int64())
    assert joined.to_pydict() == {"s": ["abcdefgh"] * 2, "l": [list(range(8))] * 2}


def test_schemas_of_chunks_are_joined_by_name():
    ints, nulls, texts = (pa.schema({"y": kind}) for kind in (pa.int64(), pa.null(), pa.string()))
    assert joined_schema(joined_schema(ints, nulls, ""), ints, "") == ints
    assert joined_schema(nulls, texts, "") == texts
    with pytest.raises(LabelError, match='x.zip: label "y" is int64 in one chunk and string in another'):
        joined_schema(ints, texts, "x.zip")
    with pytest.raises(LabelError, match="one chunk has the labels y, another z"):
        joined_schema(ints, pa.schema({"z": pa.int64()}), "x.zip")


def test_a_collector_knows_the_types_of_the_archive():
    collector = LabelCollector(LabelSpec.parse(["y"]), pa.schema({"y": pa.string()}))
    with pytest.raises(LabelError, match=r"sample 7 is an int \(3\), earlier samples are string"):
        collector.add(7, {"y": 3})
    collector.add(7, {"y": "b"})
    collector.truncate(0)
    assert collector.table().num_rows == 0


def test_a_sample_that_was_taken_back_leaves_no_type():
    collector = LabelCollector(LabelSpec.parse(["y"]))
    collector.add(0, {"y": 1})
    collector.add(1, {"y": 0.5})
    collector.truncate(1)
    collector.add(1, {"y": 2**53 + 1})
    assert collector.table()["y"].type == pa.int64()
    collector.truncate(1)
    collector.add(1, {"y": 0.5})
    assert collector.table()["y"].to_pylist() == [1.0, 0.5]


def test_a_label_type_goes_through_json():
    kinds = pa.int8(), pa.list_(pa.string()), pa.large_list(pa.timestamp("us", "UTC")), pa.null()
    said = [json.loads(json.dumps(type_to_json(kind))) for kind in kinds]
    assert all(map(is_type_json, said))
    assert [type_of_json(one) for one in said] == list(kinds)


@pytest.mark.parametrize("said", ["int65", ["int64"], ["set", "int64"], 5, [["list"], "int64"], None])
def test_types_that_no_writer_makes_are_refused(said):
    assert not is_type_json(said)


scalars = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.integers(0, 255).map(np.uint8),
    st.integers(-128, 127).map(np.int8),
)


@settings(max_examples=150)
@given(st.lists(scalars, min_size=1, max_size=8), st.data())
def test_numbers_are_kept_exactly_or_refused_however_they_are_cut(values, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=3)))
    collector, tables = LabelCollector(LabelSpec.parse(["y"])), []
    try:
        for i, value in enumerate(values):
            if i in cuts:
                tables.append(collector.table())
                collector = collector.successor()
            collector.add(i, {"y": value})
        tables.append(collector.table())
    except LabelError:
        with pytest.raises(LabelError):
            unify([pa.table({"y": collect(v)}) for v in values], "a.zip")
        return
    joined = unify([t for t in tables if t.num_rows], "a.zip")["y"]
    assert joined.to_pylist() == [None if v is None else getattr(v, "item", lambda v=v: v)() for v in values]
    assert joined.type == collect(*values).type


@given(st.lists(st.text(max_size=3) | st.just("\0é"), min_size=1, max_size=9), st.booleans())
def test_texts_of_numpy_are_those_given_one_by_one(texts, as_bytes):
    array = np.array([text.encode("utf-8", "replace") for text in texts] if as_bytes else texts)
    try:
        expected = collected("x", enumerate(array.tolist()))
    except LabelError as error:  # a surrogate
        with pytest.raises(LabelError, match=re.escape(str(error))):
            given_column("x", array)
    else:
        assert given_column("x", array).equals(expected)
