"""Sources that hold a table: its rows come and go with samples that have keys, and else they are compared."""

import decimal
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

import edcache
from edcache import CachedDataset, identity
from edcache.errors import StaleCacheError

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.full


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


class OfTable:
    """A table with a row for each sample, as most datasets read one from a file."""

    def __init__(self, log, table, rows):
        self._log, self.table, self.rows = log, table(rows), rows

    def __len__(self):
        return len(self.rows)

    def sample_key(self, index):
        return self.rows[index][0]

    def __getitem__(self, index):
        with self._log.open("a") as file:
            file.write(f"{self.rows[index][0]}\n")
        return {"name": self.rows[index][0], "y": self.rows[index][1]}

    __edcache_ignore__ = ("rows",)


class Derived(pandas.DataFrame):
    """A table of a class of its own, as geopandas has one."""

    @property
    def _constructor(self):
        return Derived


def of_names(make):
    return lambda rows: make({"name": [name for name, _ in rows], "y": [y for _, y in rows]})


TABLES = {
    "pandas": of_names(pandas.DataFrame),
    "pandas by name": of_names(lambda columns: pandas.DataFrame(columns).set_index("name")),
    "a column of pandas": of_names(lambda columns: pandas.DataFrame(columns)["y"]),
    "a derived class": of_names(Derived),
    "polars": of_names(polars.DataFrame),
    "the values of a column": of_names(lambda columns: pandas.DataFrame(columns)["y"].astype("Int64").values),
    "a column of polars": of_names(lambda columns: polars.DataFrame(columns)["y"]),
    "arrow": of_names(pa.table),
    "a column of arrow": of_names(lambda columns: pa.table(columns).column("y")),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_comes_and_goes_with_samples_that_have_keys(tmp_path, log, table):
    path = tmp_path / "a.zip"
    rows = [(f"s{k}", k) for k in range(200)]
    CachedDataset(OfTable(log, table, rows), path, progress=False)
    rows = [("first", -1), *rows, ("last", -2)]
    log.write_text("")
    after = CachedDataset(OfTable(log, table, rows), path, progress=False)
    assert [(sample["name"], sample["y"]) for sample in after] == rows
    computed = log.read_text().split()
    assert {"first", "last"} <= set(computed)
    assert len(computed) <= 3  # one known sample is compared
    rows[7] = ("s6", 700)
    with pytest.raises(StaleCacheError, match="sample 7 is another one now: field y"):
        CachedDataset(OfTable(log, table, rows), path, progress=False, spot_check=202)


def test_rows_of_a_dataset_of_hugging_face_are_new_by_their_keys(tmp_path):
    """Its fingerprint changes with each row: so it asks, and does not decide."""
    path, calls = tmp_path / "a.zip", []

    def lengths(batch):
        calls.append(len(batch["text"]))
        return {"n": torch.tensor([len(text) for text in batch["text"]])}

    def texts(count, scale=1):
        rows = {"id": [f"k{i}" for i in range(count)], "text": ["x" * i * scale for i in range(count)]}
        return datasets.Dataset.from_dict(rows)

    options = {"key": "id", "batch_size": 8, "progress": False}
    edcache.map(lengths, texts(400), path, **options)
    calls.clear()
    made = edcache.map(lengths, texts(402), path, **options)
    assert [int(sample["n"]) for sample in made] == [*range(402)]
    assert sum(calls) < 200
    with pytest.raises(StaleCacheError, match="is another one now"):
        edcache.map(lengths, texts(404, scale=2), path, **options)


def test_the_fingerprint_of_a_dataset_of_hugging_face_asks_and_refuses_nothing(tmp_path):
    """The same map has another one in a notebook and in a script."""

    def mapped(add, fingerprint):
        rows = datasets.Dataset.from_dict({"x": [*range(10)]})
        return rows.map(lambda row: {"x": row["x"] + add}, new_fingerprint=fingerprint)

    def asked(source):
        return [*identity.compare(found, identity.recipe_of(source)).asks]

    path = tmp_path / "a.zip"
    CachedDataset(mapped(0, "script"), path, progress=False)
    found = identity.recipe_of(mapped(0, "script")).to_json()
    assert (asked(mapped(0, "script")), asked(mapped(0, "notebook"))) == ([], ["attribute fingerprint"])
    assert len(CachedDataset(mapped(0, "notebook"), path, progress=False)) == 10
    with pytest.raises(StaleCacheError, match=r"sample \d is another one now: field x.*fingerprint changed"):
        CachedDataset(mapped(1, "script of another function"), path, progress=False)


class Of:
    """Samples that are read from attributes, and named by their number."""

    def __init__(self, count, **held):
        self._count = count
        for name, value in held.items():
            setattr(self, name, value)

    def __len__(self):
        return self._count

    def sample_key(self, index):
        return f"s{index}"

    def __getitem__(self, index):
        return {"x": repr(self.value(index))}


class CellOf(Of):
    def value(self, index):
        return self.table["x"][index]


COLUMNS = {"name": [f"n{k}" for k in range(40)], "x": [*range(40)], "y": [*range(40, 80)]}
SWAPPED = {"name": COLUMNS["name"], "y": COLUMNS["x"], "x": COLUMNS["y"]}


class Nested(Of):
    def value(self, index):
        return self.held.x[index]


def test_a_table_with_other_rows_than_samples_is_a_setting(tmp_path):
    """No row is of one sample: a few that are computed again need not show which row changed."""
    frame, path = pandas.DataFrame(COLUMNS), tmp_path / "a.zip"
    other = frame.assign(x=[*range(39), -1])
    CachedDataset(CellOf(20, table=frame), path, progress=False)
    CachedDataset(CellOf(20, table=frame.copy()), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute table"):
        CachedDataset(CellOf(20, table=other), path, progress=False)
    path = tmp_path / "b.zip"
    CachedDataset(Nested(40, held=SimpleNamespace(x=frame["x"])), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute held"):
        CachedDataset(Nested(40, held=SimpleNamespace(x=other["x"])), path, progress=False)


class ByName(Of):
    def value(self, index):
        return self.captions[self.sample_key(index)]


def test_a_dict_with_a_value_for_each_sample_comes_and_goes_and_another_one_is_a_setting(tmp_path):
    captions, path = {f"s{k}": "a text" for k in range(41)}, tmp_path / "a.zip"
    CachedDataset(ByName(41, captions=captions), path, progress=False)
    captions |= {"s41": "a text"}
    assert len(CachedDataset(ByName(42, captions=captions), path, progress=False)) == 42
    path = tmp_path / "b.zip"
    CachedDataset(ByName(40, captions=captions), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute captions"):
        CachedDataset(ByName(40, captions={**captions, "s41": "another"}), path, progress=False)


class Memo(Of):
    def value(self, index):
        self.computed.append(index)
        return self.memo.setdefault(index, index)

    __edcache_ignore__ = ("computed",)


def test_a_memo_that_reading_has_filled_changes_no_sample(tmp_path):
    source, path = Memo(40, memo={}, computed=[]), tmp_path / "a.zip"
    CachedDataset(source, path, progress=False)
    source.computed.clear()
    CachedDataset(source, path, progress=False)
    assert len(source.computed) <= 1


class Told(Of):
    def value(self, index):
        return self.values[index]

    def __edcache_fingerprint__(self):
        return {"values": self.values, **self.more}


@pytest.mark.parametrize(
    "more", [{}, {"columns": ["values"]}, {"revision": "one", "columns": ["revision"]}], ids=str
)
def test_values_of_samples_that_a_fingerprint_tells_come_and_go_with_keys(tmp_path, more):
    path = tmp_path / "a.zip"
    CachedDataset(Told(40, values=[0] * 40, more=more), path, progress=False)
    more = {**more, **({"revision": "two"} if "revision" in more else {})}
    after = CachedDataset(Told(41, values=[0] * 40 + [1], more=more), path, progress=False)
    assert after[40]["x"] == "1"
    with pytest.raises(StaleCacheError, match="sample 40 is another one now: field x"):
        CachedDataset(Told(41, values=[0] * 40 + [2], more=more), path, progress=False, spot_check=41)


class Versioned(Of):
    def value(self, index):
        return float(self.mean)

    def sample_version(self, index):
        return 0


@pytest.mark.parametrize("mean", [np.float64(0.5), np.array(0.5), torch.tensor(0.5)])
def test_a_number_of_numpy_is_a_setting_beside_versions(tmp_path, mean):
    path = tmp_path / "a.zip"
    CachedDataset(Versioned(4, mean=mean), path, progress=False)
    assert CachedDataset(Versioned(4, mean=mean), path, progress=False)[0]["x"] == "0.5"
    with pytest.raises(StaleCacheError, match="attribute mean"):
        CachedDataset(Versioned(4, mean=mean + 1), path, progress=False)


class Lazy(Of):
    def value(self, index):
        return self.frame.collect().row(index)


def test_a_lazy_frame_has_no_values_and_a_sample_answers(tmp_path):
    frame, path = polars.DataFrame(COLUMNS).lazy(), tmp_path / "a.zip"
    CachedDataset(Lazy(40, frame=frame), path, progress=False)
    CachedDataset(Lazy(40, frame=polars.DataFrame(COLUMNS).lazy()), path, progress=False)
    with pytest.raises(StaleCacheError, match=r"sample \d+ is another one now: field x"):
        CachedDataset(Lazy(40, frame=frame.with_columns(polars.col("x") + 1)), path, progress=False)


class Settled:
    """Samples that read one attribute, and tell no keys."""

    def __init__(self, held, count=200):
        self.held, self._count = held, count

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        return {"x": index}


HELD = {
    "a derived class": lambda values: Derived({"x": values}),
    "a column of polars": polars.Series,
    "a column of arrow": lambda values: pa.chunked_array([values]),
    "an array of arrow": pa.array,
    "polars in a dict": lambda values: {"x": polars.Series(values)},
    "arrow of names that come twice": lambda values: pa.table([values, [0] * len(values)], names=["x", "x"]),
}


@pytest.mark.parametrize("count", [200, 100])
@pytest.mark.parametrize("make", HELD.values(), ids=HELD)
def test_one_value_of_a_column_is_another_source(tmp_path, make, count):
    path = tmp_path / "a.zip"
    CachedDataset(Settled(make([*range(200)]), count), path, progress=False)
    CachedDataset(Settled(make([*range(200)]), count), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute held"):
        CachedDataset(Settled(make([*range(199), -1]), count), path, progress=False)


def described(held):
    return identity.recipe_of(Settled(held)).to_json()


ARROW = {
    "ints": pa.array([1, 2, None, 4, 5]),
    "bools": pa.array([True, None, False, True, True]),
    "floats": pa.array([0.5, float("nan"), None, -0.0, 1]),
    "texts": pa.array(["a", "", None, "bc", "d"]),
    "bytes": pa.array([b"a", b"", None, b"bc", b"d"]),
    "lists": pa.array([[1], [], None, [None, 2], [3]]),
    "lists of one length": pa.array([[1, 2], [3, 4], None, [5, None], [6, 7]], pa.list_(pa.int32(), 2)),
    "lists of lists": pa.array([[["a"], []], [], None, [None], [["b", None]]]),
    "structs": pa.array(
        [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None, {"a": 2, "b": None}, {"a": 3, "b": "z"}]
    ),
    "categories": pa.array(["a", "b", None, "a", "c"]).dictionary_encode(),
    "times": pa.array([1, 2, None, 4, 5], pa.timestamp("us", "UTC")),
    "days": pa.array([1, 2, None, 4, 5], pa.date32()),
    "times of a day": pa.array([1, 2, None, 4, 5], pa.time64("us")),
    "decimals": pa.array([decimal.Decimal(k) for k in range(5)]),
}


ORDERS = [
    [0, 1, 2, 3, 4],
    [1, 0, 2, 3, 4],
    [0, 1, 3, 2, 4],
    [0, 1, 2, 3, 2],
    [0, 1, 2, 3],
    [0, 1, 2, 3, 4, 4],
]


@pytest.mark.parametrize("values", ARROW.values(), ids=ARROW)
def test_values_of_arrow_are_equal_wherever_they_lie_and_each_one_counts(values):
    around = pa.concat_arrays([values[3:4], values, values[:1]])
    chunks = [around.slice(1, 2), around.slice(3, 0), around.slice(3, 3)]
    if pa.types.is_dictionary(values.type):  # categories have other numbers in another chunk
        chunks[-1] = pa.array(["c", None, "a", "c"]).dictionary_encode().slice(1)
    assert described(around.slice(1, 5)) == described(values)
    assert described(pa.table({"x": pa.chunked_array(chunks)})) == described(pa.table({"x": values}))
    told = {json.dumps(described(values.take(pa.array(rows)))) for rows in ORDERS}
    assert len(told) == len(ORDERS)


def test_bytes_beneath_a_null_are_no_values():
    def column(beneath):
        data = pa.py_buffer(np.array([1, beneath, 3], np.int64))
        return pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x05"), data])

    assert column(0).to_pylist() == column(7).to_pylist() == [1, None, 3]
    assert described(column(0)) == described(column(7))
    assert described(column(0)) != described(pa.array([1, 0, 3]))


class Thing:
    def __init__(self, size):
        self.size = size


OBJECTS = {
    "pandas": lambda size: pandas.Series([Thing(size), "a", 1]),
    "a table of pandas": lambda size: pandas.DataFrame({"x": [Thing(size), None], "y": [1, 2]}),
    "a mixed index": lambda size: pandas.Series([1, 2], index=["a", size]),
    "values of pandas": lambda size: pandas.Series([1, "a", size]).values,
    "sparse values": lambda size: pandas.arrays.SparseArray([0, size]),
    "polars": lambda size: polars.Series([Thing(size), 1], dtype=polars.Object),
    "wide ints of polars": lambda size: polars.Series([size], dtype=polars.Int128),
}


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_a_column_that_arrow_cannot_take_is_its_objects(make):
    """Not their addresses, which polars would give."""
    assert described(make(3)) == described(make(3))
    assert described(make(3)) != described(make(4))


ALIKE = {
    "names of pandas": (pandas.DataFrame(COLUMNS), pandas.DataFrame(SWAPPED)),
    "names of polars": (polars.DataFrame(COLUMNS), polars.DataFrame(SWAPPED)),
    "names of arrow": (pa.table(COLUMNS), pa.table(SWAPPED)),
    "an index of pandas": (pandas.Series([1] * 40), pandas.Series([1] * 40, index=range(1, 41))),
    "a column's dtype": (pandas.Series(range(40)), pandas.Series(range(40), dtype="i4")),
    "a type of polars": (polars.Series(range(40)), polars.Series(range(40), dtype=polars.Int32)),
}


@pytest.mark.parametrize("count", [40, 20])
@pytest.mark.parametrize(("one", "other"), ALIKE.values(), ids=ALIKE)
def test_names_types_and_an_index_count_as_values_do(tmp_path, one, other, count):
    path = tmp_path / "a.zip"
    CachedDataset(Settled(one, count), path, progress=False)
    CachedDataset(Settled(one, count), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute held"):
        CachedDataset(Settled(other, count), path, progress=False)


GROWN = {
    "pandas": lambda values: pandas.DataFrame({"x": values}),
    "pandas by fractions": lambda values: pandas.Series(values, index=[k / 2 for k in values]),
    "texts of pandas": lambda values: pandas.Series([f"x{k}" for k in values]).values,
    "polars": polars.Series,
    "arrow": lambda values: pa.table({"x": values}),
}


@pytest.mark.parametrize("make", GROWN.values(), ids=GROWN)
def test_rows_at_the_end_of_a_table_grow_an_archive(tmp_path, make):
    path, options = tmp_path / "a.zip", {"grow": True, "progress": False}
    CachedDataset(Settled(make([*range(200)])), path, **options)
    assert len(CachedDataset(Settled(make([*range(210)]), 210), path, **options)) == 210
    with pytest.raises(StaleCacheError, match="attribute held"):
        CachedDataset(Settled(make([-1, *range(1, 220)]), 220), path, **options)
