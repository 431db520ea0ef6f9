"""What labels mean: filters and classes against plain Python, on nans, -0.0, null and large ints.

The model compares Python's values, whose integers and floats compare exactly; it shares no code with edcache.
"""

import datetime as dt
import math
import operator
import struct
import warnings
from contextlib import nullcontext, suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from cli_runner import report
from hypothesis import given, settings
from hypothesis import strategies as st
from optional import Later, Library, made
from scale import scaled

from edcache import CachedDataset, CacheWriter
from edcache.errors import EdcacheError, LabelError, OptionError
from edcache.labels import Labels, classes_of
from edcache.labels.column import sorted_rows
from edcache.labels.given import joined
from edcache.labels.labels import comparable_column, single_values
from edcache.labels.query import matching_rows
from edcache.samplers import Balanced

pandas = Library("pandas")

pytestmark = pytest.mark.filterwarnings("ignore:filter.. finds no sample")

# ------------------------------------------------------------------------------------ hostile columns

FLOAT_BITS = {  # quiet, negative and odd nans, zeros, infinities, a subnormal
    "e": [0x7E00, 0xFE00, 0x7E01, 0x0000, 0x8000, 0x7C00, 0xFC00, 0x0001],
    "f": [0x7FC00000, 0xFFC00000, 0x7FC00001, 0, 0x80000000, 0x7F800000, 0xFF800000, 1],
    "d": [
        *(0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001, 0, 1 << 63),
        *(0x7FF0000000000000, 0xFFF0000000000000, 1),
    ],
}
WIDTHS = {"e": "H", "f": "I", "d": "Q"}
EDGES = [
    *(0, 1, -1, 2, 127, -128, 2049, 2**24, 2**24 + 1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1),
    *(2**63 - 1025, 2**63 - 513, 2**63 - 1, 2**63, 2**63 + 1, -(2**63), 2**64 - 1025, 2**64 - 1),
]


def in_precision(value, code):
    """A float as the type of this code holds it; None where it is beyond."""
    try:
        rounded = struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return None
    return None if math.isinf(rounded) and not math.isinf(value) else rounded


def floats(code):
    def as_float(value):
        try:
            return in_precision(float(value), code)
        except OverflowError:
            return None

    special = [struct.unpack(code, struct.pack(WIDTHS[code], bits))[0] for bits in FLOAT_BITS[code]]
    usual = [as_float(value) for value in [*EDGES, 0.1, 0.5, -1.5, 1e-17, 3e-8]]
    return special + [value for value in usual if value is not None]


def ints(low, high):
    return [value for value in EDGES if low <= value <= high]


EPOCH = dt.datetime(2024, 1, 1)
TICKS = {"s": 1, "ms": 10**3, "ns": 10**9}


def times(unit):
    """Ticks since 1970: the epoch of these tests, a tick around it, and the ends of the calendar."""
    second = 1704067200
    return [(second + s) * TICKS[unit] + tick for s in (0, 1) for tick in (-1, 0, 1)] + [
        -(2**63) + 1,
        2**63 - 1,
    ]


COLUMNS = {
    "i1": (pa.int8(), ints(-128, 127)),
    "i4": (pa.int32(), ints(-(2**31), 2**31 - 1)),
    "i8": (pa.int64(), ints(-(2**63), 2**63 - 1)),
    "u1": (pa.uint8(), ints(0, 255)),
    "u8": (pa.uint64(), ints(0, 2**64 - 1)),
    "h": (pa.float16(), floats("e")),
    "f": (pa.float32(), floats("f")),
    "d": (pa.float64(), floats("d")),
    "d2": (pa.float64(), floats("d")),
    "b": (pa.bool_(), [True, False]),
    "s": (pa.string(), ["", "a", "b", "ab", "é", "it's", 'q"\\']),
    "x": (pa.binary(), [b"", b"a", b"b"]),
    "coded": (pa.dictionary(pa.int8(), pa.float64()), floats("d")),
    "ts": (pa.timestamp("s"), times("s")),
    "tms": (pa.timestamp("ms"), times("ms")),
    "tns": (pa.timestamp("ns"), times("ns")),
    "utc": (pa.timestamp("s", "UTC"), times("s")),
    "ds": (pa.duration("s"), times("s")),
    "dns": (pa.duration("ns"), times("ns")),
    "day": (pa.date32(), [0, 19722, 19723, 19724, -(2**31), 2**31 - 1]),
    "null": (pa.null(), [None]),
}
FLOATS = {"h": "e", "f": "f", "d": "d", "d2": "d", "coded": "d"}
NUMBERS = ["i1", "i4", "i8", "u1", "u8", *FLOATS]
KINDS = [NUMBERS, ["b"], ["s"], ["x"], ["ts", "tms", "tns", "day"], ["utc"], ["ds", "dns"]]
SECONDS = {"ts": 1, "tms": 1000, "tns": 10**9, "utc": 1, "ds": 1, "dns": 10**9}


def arrow(name, values):
    """The column of these values, bit for bit."""
    kind = COLUMNS[name][0]
    missing = np.array([value is None for value in values], bool)
    if name in FLOATS:
        code = FLOATS[name]
        packed = b"".join(struct.pack(code, 0.0 if value is None else value) for value in values)
        array = pa.array(np.frombuffer(packed, {"e": "f2", "f": "f4", "d": "f8"}[code]), mask=missing)
        if name == "coded":
            array = array.dictionary_encode()
        return array
    if pa.types.is_temporal(kind):
        storage = pa.int32() if name == "day" else pa.int64()
        return pa.array(values, storage).view(kind)
    return pa.array(values, kind)


def table(rows):
    return pa.table({name: arrow(name, [row[name] for row in rows]) for name in COLUMNS})


RECORDS = st.lists(
    st.fixed_dictionaries({name: st.sampled_from([None, *values]) for name, (_, values) in COLUMNS.items()}),
    max_size=12,
)


# ---------------------------------------------------------------------------- the model: three values

OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def literal(name, value):
    """What a value that is given means for a column: a float is rounded to the column's precision."""
    if name in FLOATS and isinstance(value, float):
        rounded = in_precision(value, FLOATS[name])
        return value if rounded is None else rounded
    return value


def point(name, value):
    """A value of a column as what compares exactly with those of other columns of its kind."""
    if name == "day":
        return value * 86_400 * 10**9
    return value * (10**9 // SECONDS[name]) if name in SECONDS else value


def compared(left, operation, right):
    return None if left is None or right is None else OPERATORS[operation](left, right)


def member(value, wanted):
    if value is None:
        return True if None in wanted else None
    return any(one is not None and value == one for one in wanted)


def both(left, right):
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def opposite(truth):
    return None if truth is None else not truth


LITERALS = {
    **{
        name: st.sampled_from([*EDGES, 0.0, -0.0, 0.1, 0.5, 2.0**53, 2.0**63, 1e300, -1e300])
        for name in NUMBERS
    },
    "b": st.booleans(),
    "s": st.sampled_from(["", "a", "ab", "c", "é", "it's", 'q"\\']),
}


@st.composite
def comparisons(draw):
    """A where-string of one comparison, and what it is for a row."""
    form = draw(st.sampled_from(["literal", "flipped", "in", "not in", "is", "columns", "columns"]))
    if form == "is":
        name, negate = draw(st.sampled_from(list(COLUMNS))), draw(st.booleans())
        return f"{name} is {'not ' * negate}None", lambda row: (row[name] is None) != negate
    if form == "columns":
        kind = [*draw(st.sampled_from(KINDS)), "null"]
        left, right = draw(st.sampled_from(kind)), draw(st.sampled_from(kind))
        operation = draw(st.sampled_from(["==", "!="] if "b" in (left, right) else list(OPERATORS)))

        def truth(row):
            if row[left] is None or row[right] is None:
                return None
            return compared(point(left, row[left]), operation, point(right, row[right]))

        return f"{left} {operation} {right}", truth
    name = draw(st.sampled_from(list(LITERALS)))
    if form in ("in", "not in"):
        values = draw(st.lists(st.none() | LITERALS[name], max_size=3))
        wanted = [literal(name, value) for value in values]
        text = f"{name} {form} [{', '.join(map(repr, values))}]"
        if form == "in":
            return text, lambda row: member(row[name], wanted)
        return text, lambda row: opposite(member(row[name], wanted))
    value = draw(LITERALS[name])
    operation = draw(st.sampled_from(["==", "!="] if name == "b" else list(OPERATORS)))
    text = f"{name} {operation} {value!r}"
    if form == "flipped":
        text = f"{value!r} {FLIPPED.get(operation, operation)} {name}"
    return text, lambda row: compared(row[name], operation, literal(name, value))


def combined(children):
    pairs = st.tuples(children, children)
    return st.one_of(
        pairs.map(lambda p: (f"({p[0][0]}) and ({p[1][0]})", lambda row: both(p[0][1](row), p[1][1](row)))),
        pairs.map(
            lambda p: (
                f"({p[0][0]}) or ({p[1][0]})",
                lambda row: opposite(both(opposite(p[0][1](row)), opposite(p[1][1](row)))),
            )
        ),
        children.map(lambda child: (f"not ({child[0]})", lambda row: opposite(child[1](row)))),
    )


@settings(max_examples=scaled(150, 40))
@given(RECORDS, st.recursive(comparisons(), combined, max_leaves=3), st.data())
def test_where_strings_are_exact_on_every_column(rows, condition, data):
    text, truth = condition
    labels, whole = Labels(table(rows)), rows
    if rows and data.draw(st.booleans()):
        picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=4))
        labels, rows = labels.take(picks), [rows[k] for k in picks]
    expected = [k for k, row in enumerate(rows) if truth(row) is True]
    # Two columns of different types are refused if no type holds the values of both.
    with suppress(LabelError) if any(map(is_far, whole)) else nullcontext():
        assert matching_rows(labels, {}, text).tolist() == expected


def is_far(row):
    """Whether a value is there that another type of its kind does not hold."""
    far = {"day": 2**31 - 1} | dict.fromkeys(SECONDS, 2**63 - 1) | dict.fromkeys(NUMBERS, 2**53)
    return any(row[name] is not None and abs(row[name]) >= least for name, least in far.items())


@settings(max_examples=scaled(80, 20))
@given(RECORDS, st.data())
def test_keywords_are_exact_on_every_column(rows, data):
    name = data.draw(st.sampled_from(list(LITERALS)))
    value = st.none() | LITERALS[name] | (st.just(math.nan) if name in NUMBERS else st.nothing())
    many = st.lists(value, max_size=4)
    if name in NUMBERS:
        many |= st.builds(
            range, st.sampled_from(EDGES), st.sampled_from(EDGES), st.sampled_from([1, 3, -2, 2**54])
        )
    given_value = data.draw(value | many)
    labels = Labels(table(rows))
    if rows and data.draw(st.booleans()):
        # Views larger and smaller than the share from which the whole column is compared.
        picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
        labels, rows = labels.take(picks), [rows[k] for k in picks]
    if isinstance(given_value, range):
        # Not `in`, by which a float is looked for among all numbers of the range.
        expected = [k for k, row in enumerate(rows) if in_range(row[name], given_value)]
    else:
        wanted = [
            literal(name, one) for one in (given_value if isinstance(given_value, list) else [given_value])
        ]
        expected = [k for k, row in enumerate(rows) if member(row[name], wanted) is True]
    assert matching_rows(labels, {name: given_value}).tolist() == expected


def test_a_range_has_whole_numbers_alone():
    labels = Labels(pa.table({"x": [1e-17, 0.0, 3e-8, 1.0, 0.5, 3 + 4e-16, 3.0, None]}))
    assert matching_rows(labels, {"x": range(-1, 4)}).tolist() == [1, 3, 6]
    assert matching_rows(labels, {"x": range(-3, 5, 3)}).tolist() == [1, 6]


def in_range(value, numbers):
    return value is not None and math.isfinite(value) and int(value) == value and int(value) in numbers


@settings(max_examples=30)
@given(RECORDS, st.sampled_from(list(FLOATS)), st.sampled_from([0.0, 0.5]))
def test_expressions_and_functions_see_equal_values_as_equal(rows, name, value):
    labels = Labels(table(rows))
    expected = [k for k, row in enumerate(rows) if row[name] == value]
    assert matching_rows(labels, {}, pc.field(name).isin([value])).tolist() == expected
    assert matching_rows(labels, {}, pc.field(name) == value).tolist() == expected
    values = pa.array([value], comparable_column(labels, name).type)
    assert matching_rows(labels, {}, lambda t: pc.is_in(t[name], value_set=values)).tolist() == expected
    assert matching_rows(labels, {name: lambda column: np.equal(column, value)}).tolist() == expected


# ------------------------------------------------------------------------------------- classes


def key(value):
    """What equal values share: null is no nan, and a -0.0 is found as a 0.0 in a dict."""
    if value is None:
        return "missing"
    return "nan" if value != value else ("value", value)


def numbered(values):
    """The rows of each class, by first row."""
    rows = {}
    for k, value in enumerate(values):
        rows.setdefault(key(value), []).append(k)
    return list(rows.values())


@settings(max_examples=60)
@given(RECORDS, st.sampled_from(list(COLUMNS)), st.data())
def test_classes_are_those_of_a_dict(rows, name, data):
    labels = Labels(table(rows))
    if rows and data.draw(st.booleans()):
        picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
        labels, rows = labels.take(picks), [rows[k] for k in picks]
    values = [row[name] for row in rows]
    groups = numbered(values)
    found = classes_of(single_values(labels, name, "test"))
    assert [np.flatnonzero(found.codes == code).tolist() for code in range(len(found.values))] == groups
    counts = labels.counts(name)
    assert sorted(counts.values()) == sorted(map(len, groups))
    assert counts.get(None, 0) == values.count(None)
    assert len(labels.unique(name)) == len(groups) - (None in values)
    distinct = {"null": 0}.get(name, len(groups) - (None in values))
    assert labels.describe()[list(COLUMNS).index(name)].distinct == distinct


@settings(max_examples=60)
@given(RECORDS, st.sampled_from(list(COLUMNS)), st.booleans())
def test_the_order_is_that_of_python(rows, name, descending):
    values = [row[name] for row in rows]
    last = [k for k, value in enumerate(values) if key(value) in ("missing", "nan")]
    present = [k for k in range(len(values)) if k not in last]
    present.sort(key=values.__getitem__)
    if descending:  # equal ones stay in their order
        present = [
            k
            for value in sorted({values[k] for k in present}, reverse=True)
            for k in present
            if values[k] == value
        ]
    found = sorted_rows(single_values(Labels(table(rows)), name, "test"), descending).tolist()
    assert found == present + last


@settings(max_examples=60)
@given(RECORDS, st.sampled_from(["h", "f", "d"]))
def test_classes_are_those_of_pandas(rows, name):
    values = [0.0 if row[name] is None else row[name] for row in rows]
    series = pandas.Series(values, dtype="f8")
    labels = Labels(pa.table({name: arrow(name, values)}))
    codes = pandas.factorize(series, use_na_sentinel=False)[0]
    assert classes_of(single_values(labels, name, "test")).codes.tolist() == codes.tolist()


def bits(array):
    return array.view(f"u{array.dtype.itemsize}").tolist()


@settings(max_examples=30)
@given(RECORDS)
def test_what_is_given_back_is_bit_for_bit_what_was_written(rows):
    for row in rows:
        row.update({name: 0.0 if row[name] is None else row[name] for name in ("h", "f", "d")})
    labels = Labels(table(rows))
    for name in ("h", "f", "d"):
        written = bits(arrow(name, [row[name] for row in rows]).to_numpy())
        (
            classes_of(single_values(labels, name, "test")),
            labels.counts(name),
            sorted_rows(single_values(labels, name, "test"), False),
        )
        matching_rows(labels, {}, f"{name} in (0, 1) or {name} < d2")
        assert bits(labels[name]) == written
        assert bits(labels.column(name).to_numpy()) == written


# ------------------------------------------------------------------------------------- joins


@settings(max_examples=scaled(80, 20))
@given(st.data())
def test_joins_find_equal_keys_of_every_two_types(data):
    alone = [[name] for name in COLUMNS if name not in ("null", "coded")]
    kinds = data.draw(st.sampled_from([[name for name in NUMBERS if name != "coded"]] * 9 + alone))
    known_name, key_name = data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from(kinds))
    known = data.draw(st.lists(st.sampled_from([None, *COLUMNS[known_name][1]]), max_size=8, unique_by=key))
    keys = data.draw(st.lists(st.sampled_from([None, *COLUMNS[key_name][1]]), max_size=8))
    places = {key(value): place for place, value in enumerate(known) if value is not None}
    expected = [None if value is None else places.get(key(value)) for value in keys]
    given_table = pa.table({"key": arrow(known_name, known), "row": pa.array(range(len(known)), pa.int64())})
    columns = pa.chunked_array([arrow(key_name, keys)])
    if expected and not any(place is not None for place in expected):
        with pytest.raises(LabelError, match="no sample has a row in the table"):
            joined(given_table, "key", columns)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = joined(given_table, "key", columns).column("row")
    assert rows.to_pylist() == expected
    assert len(caught) == (None in expected)


def test_two_rows_of_one_key_are_refused_whatever_their_bits():
    zeros, nans = (
        np.array([0.0, -0.0]),
        np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view("f8"),
    )
    for known, shown in ((zeros, "0.0"), (nans, "nan")):
        with pytest.raises(LabelError, match=rf'the table has "key" = {shown} more than once'):
            joined(pa.table({"key": known, "row": [0, 1]}), "key", pa.chunked_array([pa.array([1.0])]))


def test_keys_beyond_the_calendar_of_python_are_refused_by_our_error():
    far = pa.array([2**60, 2**60], pa.int64()).view(pa.timestamp("s"))
    with pytest.raises(LabelError, match='the table has "key" = 1152921504606846976 more than once'):
        joined(pa.table({"key": far, "row": [0, 1]}), "key", pa.chunked_array([far]))
    with pytest.raises(
        LabelError, match='no sample has a row in the table: "key" is 1152921504606846976 for'
    ):
        joined(pa.table({"key": far[:0], "row": pa.array([], pa.int64())}), "key", pa.chunked_array([far]))


# -------------------------------------------------------------------------------- a whole dataset


def sixty(path, name):
    """Sixty samples with the hostile values of a column, once with missing ones between; and these."""
    random = np.random.default_rng(1)
    values = [COLUMNS[name][1][k] for k in random.choice(len(COLUMNS[name][1]), 60)]
    columns = {"x": values, "y": [None if k % 7 == 3 else value for k, value in enumerate(values)]}
    with CacheWriter(path, in_memory_keys=["id"]) as w:
        w.extend({"id": k} for k in range(60))
    ds = CachedDataset.from_cache(path)
    for label, of_label in columns.items():
        ds.add_labels(label, arrow(name, of_label))
    ds.add_labels("even", np.arange(60) % 2)
    return CachedDataset.from_cache(path), columns


@pytest.fixture(scope="module", params=["d", "f", "h"])
def archive(request, tmp_path_factory):
    return sixty(tmp_path_factory.mktemp("meaning") / "floats.zip", request.param)


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return sixty(tmp_path_factory.mktemp("refusals") / "floats.zip", "d")[0]


@pytest.mark.parametrize("name", ["x", "y"])
def test_every_method_of_a_dataset_knows_the_same_classes(archive, name):
    ds, columns = archive
    groups = numbered(columns[name])
    assert len(ds.oversample(name)) == max(map(len, groups)) * len(groups)
    present = [group for group in groups if key(columns[name][group[0]]) not in ("missing", "nan")]
    drawn = list(Balanced(ds, name, num_samples=3 * len(present)))
    assert [sum(k in group for k in drawn) for group in present] == [3] * len(present)
    for seed in (None, 0):
        for parts in (
            ds.split(0.5, 0.5, group=name, seed=seed),
            [b for _, b in ds.kfold(3, group=name, seed=seed)],
        ):
            owners = [
                {k for k, group in enumerate(groups) if set(group) & set(p.indices.tolist())} for p in parts
            ]
            assert sum(map(len, owners)) == len(groups)
            assert sum(map(len, parts)) == 60
        for part in ds.split(0.5, 0.5, stratify=name, seed=seed):
            held = [len(set(group) & set(part.indices.tolist())) for group in groups]
            assert all(abs(count - len(group) / 2) < 1 for count, group in zip(held, groups, strict=True))


@pytest.mark.parametrize("name", ["x", "y"])
def test_zeros_are_one_value_in_every_way_to_ask(archive, name):
    ds, columns = archive
    expected = [k for k, value in enumerate(columns[name]) if value == 0]
    assert any(math.copysign(1, columns[name][k]) < 0 for k in expected)
    zeros = [{name: 0.0}, {name: -0.0}, {name: 0}, {name: [0.0]}, {name: (-0.0, 99)}, {name: range(1)}]
    for conditions in zeros:
        assert ds.filter(**conditions).indices.tolist() == expected
    for text in (f"{name} == 0", f"{name} in (0,)", f"{name} in (-0.0,)", f"0 <= {name} <= -0.0"):
        assert ds.filter(text).indices.tolist() == expected
    others = [k for k, value in enumerate(columns[name]) if value is not None and value != 0]
    for text in (f"{name} != 0", f"{name} not in (0,)", f"not {name} == 0.0", f"not ({name} in [0, -0.0])"):
        assert ds.filter(text).indices.tolist() == others
    assert ds.labels.counts(name)[0.0] == len(expected)


@pytest.mark.parametrize("name", ["x", "y"])
def test_the_command_line_has_the_same_classes(archive, name):
    ds, columns = archive
    groups = numbered(columns[name])
    assert sorted(row["count"] for row in report("labels", ds.path, "--count", name)) == sorted(
        map(len, groups)
    )
    zeros = report("labels", ds.path, "--where", f"{name} in (0,)")
    expected = [k for k, value in enumerate(columns[name]) if value == 0]
    assert [row["index"] for row in zeros] == expected


def test_labels_join_by_values_not_by_bits(archive):
    ds, columns = archive
    known = [*sorted({value for value in columns["x"] if value == value}), -math.nan]
    ds.add_labels({"x": np.array(known), "place": np.arange(len(known))}, on="x")
    expected = [len(known) - 1 if value != value else known.index(value) for value in columns["x"]]
    assert ds.labels["place"].tolist() == expected
    ds.drop_labels("place")


# -------------------------------------------------------------------- right, or an error of ours

HOSTILE = [
    *(None, True, 0, -1, 2**53 + 1, 10**5000, -(10**5000), 0.1, math.nan, math.inf, 1 + 2j, "a", ""),
    *("\ud800", b"a", "2024-01-01", "2024-13-01", "2024-01-01T00:00:00.123456789123456789"),
    *("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "99999999999-01"),
    *("2024-01-01T00:00:00+99:99", dt.date(2024, 1, 1), EPOCH, dt.datetime.max, dt.datetime.min),
    *(dt.timedelta.max, dt.timedelta.min),
    dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-14))),
    *(EPOCH.replace(tzinfo=dt.timezone.utc), np.datetime64("NaT", "s"), np.datetime64("2024")),
    *(np.datetime64(2**62, "as"), np.array([5]).view("m8")[0], np.timedelta64(1, "Y")),
    *(np.timedelta64("NaT", "s"), np.timedelta64(2**62, "W"), np.float16(0.1), np.longdouble(1)),
    *(np.uint64(2**64 - 1), np.array([1.5, math.nan]), np.array([[1, 2]]), np.array(["a"])),
    *(np.array([None, "a"]), np.array(["2024"], "M8[Y]"), np.array([1, 2]).view("m8"), np.array([b"a"])),
    *(np.array([1], "g"), np.zeros((0, 2)), [], [None], [[1]], [1, "a"], {1: 2}, {1, None}, range(3)),
    *(range(10**30), range(0, -(10**30), -7), slice(2), object(), object, len, lambda column: column),
    *(lambda column: column > "a", lambda a, b: a, iter([1]), lambda column: [[1], [1, 2]]),
    *(lambda column: 1 / 0, lambda column: None, lambda column: column == column, pa.array([1])),
    pa.scalar(1),
]
OF_PANDAS = Later(
    lambda: [
        pandas.NA,
        pandas.NaT,
        pandas.Timestamp("2024-01-01", tz="UTC"),
        pandas.Timedelta(1),
        pandas.Series([1]),
    ]
)
given_hostile = pytest.mark.parametrize("hostile", [HOSTILE, OF_PANDAS], ids=["plain", "pandas"])


def outcome(labels, where=None, **conditions):
    """The rows, or the text of the error of ours."""
    try:
        rows = matching_rows(labels, conditions, where)
    except EdcacheError as error:
        return str(error)
    assert rows.dtype == np.int64
    return rows.tolist()


@given_hostile
@pytest.mark.parametrize("name", list(COLUMNS))
def test_every_value_of_a_keyword_is_understood_or_refused(name, hostile):
    rows = [{column: values[k % len(values)] for column, (_, values) in COLUMNS.items()} for k in range(9)]
    labels = Labels(table(rows))
    outcomes = [
        outcome(labels, **{name: form}) for value in made(hostile) for form in (value, [value], (None, value))
    ]
    refusals = [one for one in outcomes if isinstance(one, str)]
    assert hostile is OF_PANDAS or 0 < len(refusals) < len(outcomes)
    assert all(f'"{name}"' in text and len(text) < 500 for text in refusals if "mask has" not in text)


@given_hostile
def test_every_where_is_understood_or_refused(hostile):
    labels = Labels(table([dict.fromkeys(COLUMNS)] * 3))
    others = [[[1], [1, 2]], [True, 1, 0], np.array([2**63], np.uint64), np.ma.array([True] * 3, mask=1)]
    outcomes = [outcome(labels, where) for where in [*made(hostile), *others] if where is not None]
    assert all(len(one) < 700 for one in outcomes if isinstance(one, str))
    assert outcome(labels, np.ma.array([True] * 3, mask=[0, 1, 1])) == [0]


@pytest.mark.parametrize("left", list(COLUMNS))
def test_every_two_columns_compare_or_are_refused_with_both_types(left):
    labels = Labels(table([{name: values[0] for name, (_, values) in COLUMNS.items()}]))
    kinds = {name: str(kind) for name, (kind, _) in COLUMNS.items()} | {"coded": "double"}
    for right in COLUMNS:
        is_one_kind = any({left, right} <= {*kind, "null"} for kind in KINDS) or left == right == "null"
        types = f'"{left}" is {kinds[left]} and "{right}" is {kinds[right]}; only columns of one kind'
        for operation in OPERATORS:
            found = outcome(labels, f"{left} {operation} {right}")
            if not is_one_kind:
                assert types in found
            elif "b" in (left, right) and "null" not in (left, right) and operation not in ("==", "!="):
                assert found == 'label "b" is bool, which has no order; compare it with == or !='
            else:
                assert isinstance(found, list)


SEARCHED = r'text is searched by contains\(name, "x"\)'
COLUMN_FUNCTION = "a function gets the whole column as a numpy array and returns a bool mask"
TABLE_FUNCTION = "a function gets the label table, a pyarrow Table, and returns a bool mask"


@pytest.mark.parametrize(
    ("where", "conditions", "error", "message"),
    [
        ("contains(d, 'a')", {}, LabelError, r'"d" is double; contains\(\) looks into text; compare'),
        ("startswith(b, 'a')", {}, LabelError, r'"b" is bool; startswith\(\) looks into text; compare'),
        ("s like 'a%'", {}, OptionError, f"invalid syntax; {SEARCHED}"),
        ("like(s, 'a%')", {}, OptionError, f'"like" is no function here; {SEARCHED}'),
        ("s contains 'a'", {}, OptionError, f"invalid syntax; {SEARCHED}"),
        ("contains(s, s)", {}, OptionError, r"expected a column or a literal"),
        (None, {"s": 1}, LabelError, r'"s" is string; an int \(1\) cannot be compared with it; compare'),
        (None, {"d": lambda v: v == 0 and v}, OptionError, f'"d" raised ValueError: .*; {COLUMN_FUNCTION}'),
        (None, {"d": lambda v: 3}, OptionError, rf'label "d" gave an int \(3\); {COLUMN_FUNCTION}'),
        (lambda t: t["label"] == 3, {}, OptionError, f"where raised KeyError: .*; {TABLE_FUNCTION}"),
        (lambda t: True, {}, OptionError, rf"where gave a bool \(True\); {TABLE_FUNCTION}"),
        (0.5, {}, OptionError, r"where is a float \(0.5\); give a 1-dim bool mask"),
    ],
)  # fmt: skip
def test_messages_say_what_was_given_what_is_allowed_and_what_to_do(where, conditions, error, message):
    labels = Labels(table([dict.fromkeys(COLUMNS)] * 2))
    with pytest.raises(error, match=message):
        matching_rows(labels, conditions, where)


def refused(call, *arguments, **options):
    """Whether a call is refused by an error of ours; anything else that it raises goes on."""
    try:
        call(*arguments, **options)
    except EdcacheError as error:
        return len(str(error)) < 700
    return False


NAMES = [["d", "x"], 3, None, b"x", 10**5000, math.nan, "nope", np.array([1])]
NO_NUMBERS = [10**5000, -(10**5000), math.nan, math.inf, -1, "a", np.longdouble(2), [1]]


@pytest.mark.parametrize("place", range(len(NAMES)))
def test_what_names_no_column_is_refused_by_every_method(ds, place):
    name = NAMES[place]
    labels = ds.labels
    methods = [ds.sort_by, ds.oversample]
    lookups = [labels.__getitem__, labels.unique, labels.counts, labels.column]
    assert all(refused(method, name) for method in [*methods, *lookups, ds.drop_labels])
    if name is not None:
        assert all(refused(ds.split, 0.5, 0.5, **{rule: name}) for rule in ("stratify", "group"))
        assert all(refused(ds.kfold, 2, **{rule: name}) for rule in ("stratify", "group"))
        assert refused(ds.add_labels, pa.table({"k": [1]}), on=name)


@pytest.mark.parametrize("place", range(len(NO_NUMBERS)))
def test_numbers_that_are_none_are_refused_by_every_method(ds, place):
    number = NO_NUMBERS[place]
    assert refused(ds.split, number, 0.5)
    assert refused(ds.kfold, number)
    assert refused(ds.oversample, "even", number)
    assert refused(ds.shuffle, number) == (place > 0)
    assert refused(Balanced, ds, "even", number) == (place > 0)


@pytest.mark.parametrize(
    "classes_given", [[[1], [1, 2]] * 30, np.array([1j] * 60).reshape(2, 30), np.array([[1]] * 60, object), 5]
)
def test_a_sampler_refuses_what_is_no_column(ds, classes_given):
    assert refused(Balanced, ds, classes_given)


def test_objects_that_are_no_value_are_no_class(ds):
    nothing = [None, None, math.nan, math.nan, float("nan"), pandas.NA, pandas.NaT]
    given_classes = np.array(["a", "b", "b", *nothing] * 6, object)
    drawn = list(Balanced(ds, given_classes, num_samples=60))
    assert sorted({k % 10 for k in drawn}) == [0, 1, 2]
    assert sum(k % 10 == 0 for k in drawn) == 30


def test_tensors_of_bfloat16_are_values_of_float32(ds, tmp_path):
    labels = Labels(pa.table({"x": [0.5, 1.0, 1.5]}))
    for value in (torch.tensor(1.5), torch.tensor([1.5])):
        assert matching_rows(labels, {"x": value.bfloat16()}).tolist() == [2]
    classes_given = (torch.arange(60) % 2).bfloat16()
    assert sum(k % 2 for k in Balanced(ds, classes_given)) == 30
    with CacheWriter(tmp_path / "a.zip") as w:
        w.extend(range(2))
    two = CachedDataset.from_cache(tmp_path / "a.zip")
    two.add_labels("x", torch.tensor([0.5, 1.0], dtype=torch.bfloat16))
    assert two.labels["x"].tolist() == [0.5, 1.0]


# ------------------------------------------------------------------------------------- times

INSTANTS = pa.array([0, 1, 2**40, -62135596800, 253402300799], pa.int64()).view(pa.timestamp("s"))
TIMES = Labels(
    pa.table(
        {
            "s": INSTANTS,
            "utc": INSTANTS.view(pa.int64()).view(pa.timestamp("s", "UTC")),
            "ns": pa.array([0, 1, 2, 10**18 + 1, -(2**63)], pa.int64()).view(pa.timestamp("ns")),
            "took": pa.array([0, 1, 2**40, -5, 86399999999999999], pa.int64()).view(pa.duration("ns")),
        }
    )
)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"ns": "9999-01-01T00:00:00.123456789"}, []),  # which numpy wraps to 1815
        ({"ns": "1970-01-01T00:00:00.000000001"}, [1]),
        ({"ns": "1970-01-01T00:00:00.0000000010"}, [1]),
        ({"ns": "1970-01-01T00:00:00.000000001000000001"}, []),
        ({"ns": "2001-09-09T01:46:40.000000001"}, [3]),
        ({"utc": "9999-12-31T23:59:59Z"}, [4]),
        ({"utc": "9999-12-31T22:59:59-01:00"}, [4]),
        ({"utc": "0001-01-01T14:00:00+14:00"}, [3]),
        ({"utc": "1970-01-01T00:30+00:30"}, [0]),
        ({"utc": dt.datetime(9999, 12, 31, 22, 59, 59, tzinfo=dt.timezone(-dt.timedelta(hours=1)))}, [4]),
        ({"utc": dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))}, []),
        ({"utc": Later(lambda: pandas.Timestamp("1970-01-01T02:00:01", tz="Etc/GMT-2"))}, [1]),
        ({"s": np.datetime64(2**62, "Y")}, []),
        ({"s": np.datetime64("1970")}, [0]),
        ({"took": Later(lambda: pandas.Timedelta(1, "ns"))}, [1]),
        ({"took": dt.timedelta.max}, []),
        ({"took": np.timedelta64(2**62, "W")}, []),
    ],
)
def test_times_are_exact(conditions, expected):
    given_now = {name: made(value) for name, value in conditions.items()}
    assert matching_rows(TIMES, given_now).tolist() == expected


@pytest.mark.parametrize(
    "value", ["1970-01-01T00:00:00+24:00", "1970-01-01T00:00.5", Later(lambda: pandas.Timestamp(0, tz="UTC"))]
)
def test_times_of_another_kind_are_refused(value):
    with pytest.raises(LabelError, match="compare it with a date, a time without a zone or an ISO string"):
        matching_rows(TIMES, {"s": made(value)})


def test_a_summary_has_times_beyond_the_calendar_of_python():
    far = Labels(pa.table({"far": pa.array([2**60, 5], pa.int64()).view(pa.timestamp("s"))}))
    assert far.describe()[0].max == np.datetime64(2**60, "s")
    assert far.describe()[0].min == dt.datetime(1970, 1, 1, 0, 0, 5)
    assert far.to_list("far") == [np.datetime64(2**60, "s"), np.datetime64(5, "s")]
