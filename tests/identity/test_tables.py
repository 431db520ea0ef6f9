"""A source with keys that reads a table: rows tell which samples are new or changed."""

import datasets
import pandas
import polars
import pyarrow as pa
import pytest
import torch

import edcache
from edcache import CachedDataset
from edcache.errors import StaleCacheError

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


def of_names(make):
    return lambda rows: make({"name": [name for name, _ in rows], "y": [y for _, y in rows]})


TABLES = {
    "pandas": of_names(pandas.DataFrame),
    "pandas by name": of_names(lambda columns: pandas.DataFrame(columns).set_index("name")),
    "a column of pandas": of_names(lambda columns: pandas.DataFrame(columns)["y"]),
    "polars": of_names(polars.DataFrame),
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
