"""A revision of a sealed archive is sealed in from the seal before: the same bytes as from the chunks."""

import shutil

import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.format import label_file
from edcache.writer import log

ROWS = 100
COUNT = 250

rows = st.integers(0, COUNT - 1)
kinds = [st.integers(0, 5), st.integers(-5, 2**63), st.just(0.5), st.text(max_size=3)]
columns = st.sampled_from(kinds).flatmap(
    lambda values: st.dictionaries(rows, st.one_of(values, st.none()), min_size=1, max_size=4)
)
revisions = st.one_of(
    st.tuples(st.sampled_from(["y", "text", "new", "other"]), columns),
    st.tuples(st.sampled_from(["y", "new"]), st.sampled_from([np.arange(COUNT), np.ones(COUNT, np.int8)])),
    st.tuples(st.sampled_from(["y", "text", "new"]), st.none()),
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(label_file, "BATCH_ROWS", ROWS)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """A dense archive whose last chunk writes samples of the first again."""
    path = tmp_path_factory.mktemp("sealed") / "a.zip"
    options = {"in_memory_keys": ["y", "text"], "chunk_size": 40, "sync": "never", "uuid": bytes(16)}
    with CacheWriter(path, "a", **options) as writer:
        for i in [*range(COUNT), 3, 120]:
            writer.write(i, {"y": i, "text": None if i % 3 else f"text {i}"})
    return path


def revise(path, name, column):
    ds = CachedDataset.from_cache(path)
    try:
        if column is not None:
            ds.add_labels(name, column)
        elif name in ds.labels:
            ds.drop_labels(name)
    except (edcache.LabelError, edcache.OptionError) as error:
        return str(error).replace(str(path), "")
    finally:
        ds.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(revisions, min_size=1, max_size=5))
def test_the_bytes_are_those_that_the_chunks_make(tmp_path_factory, sealed, several):
    folder = tmp_path_factory.mktemp("both")
    fast, general = (shutil.copy(sealed, folder / name) for name in ("fast.zip", "general.zip"))
    for name, column in several:
        outcome = revise(fast, name, column)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "revised_seal", lambda *_: None)
            assert revise(general, name, column) == outcome
        assert fast.read_bytes() == general.read_bytes()
    assert edcache.verify(fast).sound
    shutil.rmtree(folder)


def damaged(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_revision_reads_no_chunk(tmp_path, sealed):
    path = shutil.copy(sealed, tmp_path / "a.zip")
    chunk = reference.entries(path)[1].fields
    damaged(path, chunk["offset"] + chunk["nbytes"])
    revise(path, "y", {7: -1, 200: -2})
    ds = CachedDataset.from_cache(path)
    assert ds.labels["y"].tolist() == [{7: -1, 200: -2}.get(i, i) for i in range(COUNT)]


@pytest.mark.parametrize("member", ["index", "labels", "last batch"])
def test_a_damaged_seal_is_made_of_the_chunks_again(tmp_path, sealed, member):
    path, other = (shutil.copy(sealed, tmp_path / name) for name in ("a.zip", "b.zip"))
    index, labels = (entry.fields for entry in reference.entries(path)[-2:])
    end = labels["offset"] + labels["nbytes"] + len(reference.entries(path)[-1].payload)
    places = {
        "index": index["offset"] + index["nbytes"],
        "labels": end - 1,
        "last batch": end - labels["table_nbytes"] - 16,
    }
    ds = CachedDataset.from_cache(path)
    damaged(path, places[member])
    ds.add_labels("y", {7: -1})
    revise(other, "y", {7: -1})
    damaged(path, places[member])
    assert path.read_bytes() == other.read_bytes()
