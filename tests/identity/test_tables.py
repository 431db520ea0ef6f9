"""A source with keys that reads a table: rows tell which samples are new or changed."""

from dataclasses import replace
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
def test_rows_of_a_table_tell_which_samples_are_new_or_changed(tmp_path, log, table):
    path = tmp_path / "a.zip"
    rows = [(f"s{k}", k) for k in range(200)]
    CachedDataset(OfTable(log, table, rows), path, progress=False)
    rows[7] = ("s7", 700)
    rows = [("first", -1), *rows, ("last", -2)]
    log.write_text("")
    after = CachedDataset(OfTable(log, table, rows), path, progress=False)
    assert [(sample["name"], sample["y"]) for sample in after] == rows
    computed = log.read_text().split()
    assert {"first", "last", "s7"} <= set(computed)
    assert len(computed) < 20  # some are compared: a table may as well be a setting


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


@pytest.fixture
def slow(monkeypatch):
    """No sample is computed again unasked, as if each took a minute."""
    learned = identity.learned

    def of_slow(again, codec):
        first, position, other = learned(again, codec)
        return replace(first, seconds=60.0), position, other

    monkeypatch.setattr(identity, "learned", of_slow)


COLUMNS = {"name": [f"n{k}" for k in range(40)], "x": [*range(40)], "y": [*range(40, 80)]}
SWAPPED = {"name": COLUMNS["name"], "y": COLUMNS["x"], "x": COLUMNS["y"]}


@pytest.mark.parametrize("table", [pandas.DataFrame, polars.DataFrame, pa.table])
def test_columns_that_swap_names_ask_though_no_value_is_another(tmp_path, slow, table):
    path = tmp_path / "a.zip"
    CachedDataset(CellOf(40, table=table(COLUMNS)), path, progress=False)
    CachedDataset(CellOf(40, table=table(COLUMNS)), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute table changed"):
        CachedDataset(CellOf(40, table=table(SWAPPED)), path, progress=False)


class Code(Of):
    def value(self, index):
        return int(self.table["x"].cat.codes[index])


def test_codes_of_categories_ask(tmp_path, slow):
    def table(categories):
        return pandas.DataFrame({"x": pandas.Categorical(["b", "c"] * 20, categories)})

    path = tmp_path / "a.zip"
    CachedDataset(Code(40, table=table(["b", "c"])), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute table changed"):
        CachedDataset(Code(40, table=table(["a", "b", "c"])), path, progress=False)


class Scalar(Of):
    def value(self, index):
        return self.values[index]


def test_the_dtype_of_an_array_asks(tmp_path, slow):
    path = tmp_path / "a.zip"
    CachedDataset(Scalar(40, values=np.arange(40)), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute values changed"):
        CachedDataset(Scalar(40, values=np.arange(40, dtype="i4")), path, progress=False)


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


def test_a_dict_of_a_keyed_source_is_a_setting(tmp_path):
    captions, path = {f"s{k}": "a text" for k in range(40)}, tmp_path / "a.zip"
    CachedDataset(ByName(40, captions=captions), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute captions"):
        CachedDataset(ByName(40, captions={**captions, "s39": "another"}), path, progress=False)


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


@pytest.mark.parametrize("more", [{}, {"columns": ["values"]}])
def test_values_that_a_fingerprint_tells_are_versions_too(tmp_path, more):
    path = tmp_path / "a.zip"
    CachedDataset(Told(40, values=[0] * 40, more=more), path, progress=False)
    after = CachedDataset(Told(40, values=[0] * 39 + [1], more=more), path, progress=False)
    assert after[39]["x"] == "1"


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


def test_the_order_of_attributes_is_no_difference(tmp_path, log):
    class Two(Of):
        def value(self, index):
            log.write_text(log.read_text() + "x")
            return self.a[index], self.b[index]

    path = tmp_path / "a.zip"
    CachedDataset(Two(40, a=[*range(40)], b=[*range(40, 80)]), path, progress=False)
    log.write_text("")
    CachedDataset(Two(40, b=[*range(40, 80)], a=[*range(40)]), path, progress=False)
    assert len(log.read_text()) <= 1


class Lazy(Of):
    def value(self, index):
        return self.frame.collect().row(index)


def test_the_plan_of_a_lazy_frame_asks(tmp_path, slow):
    frame, path = polars.DataFrame(COLUMNS).lazy(), tmp_path / "a.zip"
    CachedDataset(Lazy(40, frame=frame), path, progress=False)
    CachedDataset(Lazy(40, frame=polars.DataFrame(COLUMNS).lazy()), path, progress=False)
    with pytest.raises(StaleCacheError, match="attribute frame changed"):
        CachedDataset(Lazy(40, frame=frame.with_columns(polars.col("x") + 1)), path, progress=False)


def test_what_map_reads_from_a_table_has_its_names_too(tmp_path, log):
    """Its versions stand for the table, so nothing else tells of columns that swap names."""

    def lengths(batch):
        with log.open("a") as file:
            file.write("x" * len(batch["v"]))
        return {"w": batch["v"] + 0}

    class OfFrame(Of):
        def __getitem__(self, index):
            return {"id": f"s{index}", "v": int(self.table["x"][index])}

        __edcache_ignore__ = ()

    def mapped(columns):
        return edcache.map(
            lengths,
            OfFrame(40, table=pandas.DataFrame(columns)),
            tmp_path / "a.zip",
            key="id",
            batch_size=8,
            progress=False,
        )

    mapped(COLUMNS)
    log.write_text("")
    mapped(COLUMNS)
    assert len(log.read_text()) <= 8
    assert [int(sample["w"]) for sample in mapped(SWAPPED)] == SWAPPED["x"]


class Counted(Of):
    def __init__(self, count, **held):
        super().__init__(count, **held)
        self._computed = []

    def value(self, index):
        self._computed.append(index)
        return getattr(self.values, "iloc", self.values)[index]


def computed_and_stale(path, before, after):
    """Fill an archive from values, and again from others. Returns: what was computed then, and what it has wrong."""
    CachedDataset(Counted(len(before), values=before), path, progress=False)
    source = Counted(len(after), values=after)
    cached = CachedDataset(source, path, progress=False)
    computed = [*source._computed]
    return computed, [index for index in range(len(after)) if cached[index] != source[index]]


MIXED = {
    "pandas, its NA": (pandas.Series(range(200), dtype="Int64"), pandas.NA),
    "pandas, NaT": (pandas.Series(["x"] * 200, dtype=object), pandas.NaT),
    "a list": ([f"x{k}" for k in range(200)], ("y", 1)),
    "a list of numpy": ([0.5] * 200, np.float32(1)),
}


@pytest.mark.parametrize(("values", "other"), MIXED.values(), ids=MIXED)
def test_a_value_of_another_kind_leaves_the_versions_of_the_others(tmp_path, values, other):
    changed = values.copy()
    changed[7] = other
    computed, stale = computed_and_stale(tmp_path / "a.zip", values, changed)
    assert stale == []
    assert 7 in computed
    assert len(computed) < 20


def test_a_value_that_is_masked_is_another_one(tmp_path):
    masked = np.ma.masked_array(range(200), mask=[False] * 200)
    changed = masked.copy()
    changed[7] = np.ma.masked
    computed, stale = computed_and_stale(tmp_path / "a.zip", masked, changed)
    assert stale == []
    assert len(computed) < 20


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


def test_equal_values_of_arrow_are_no_other_source_wherever_they_lie(tmp_path):
    path, values = tmp_path / "a.zip", [*range(199), None]
    CachedDataset(Settled(pa.chunked_array([pa.array(values)])), path, progress=False)
    in_chunks = pa.chunked_array([pa.array([5, *values]).slice(1, 100), pa.array(values[100:])])
    CachedDataset(Settled(in_chunks), path, progress=False)


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


class Listed:
    """A list of files, as a folder gives it, and a table with a row for each, in another order."""

    def __init__(self, names, table):
        self.names, self.table, self._computed = names, table, []

    def __len__(self):
        return len(self.names)

    def sample_key(self, index):
        return self.names[index]

    def row(self, name):
        if isinstance(self.table, pandas.DataFrame):
            return self.table.loc[name, "y"]
        return self.table["y"][self.table["name"].to_list().index(name)]

    def __getitem__(self, index):
        self._computed.append(index)
        return {"y": int(self.row(self.names[index]))}


BY_NAME = {
    "pandas": lambda columns: pandas.DataFrame(columns).set_index("name"),
    "polars": polars.DataFrame,
    "polars with a label": lambda columns: polars.DataFrame(columns | {"label": [0] * len(columns["y"])}),
}


@pytest.mark.parametrize("key", [str, int])
@pytest.mark.parametrize("make", BY_NAME.values(), ids=BY_NAME)
def test_rows_that_are_looked_up_by_key_tell_of_their_samples_in_any_order(tmp_path, make, key):
    path, names = tmp_path / "a.zip", [*map(key, range(200))]
    names.sort()
    columns = {"name": [*names[50:], *names[:50]], "y": [*range(1000, 1200)]}
    CachedDataset(Listed(names, make(columns)), path, progress=False)
    columns["y"][columns["name"].index(key(77))] = -1
    # The table has it at its end, the list in its middle.
    columns = {"name": [*columns["name"], key(1000)], "y": [*columns["y"], 5]}
    names = sorted([*names, key(1000)])
    source = Listed(names, make(columns))
    cached = CachedDataset(source, path, progress=False)
    computed = {*source._computed}
    assert [sample["y"] for sample in cached] == [sample["y"] for sample in source]
    assert {names.index(key(77)), names.index(key(1000))} <= computed
    assert len(computed) < 20
