"""Any sequence of fills and changes of labels, killed or not, gives the labels of a model, near and far."""

import copy
import itertools
import math
import os
import shutil
import signal
import struct

import fsspec
import pytest
import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from range_server import serving
from scale import scaled

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.format import columns, contents
from edcache.storage import File

COUNT = 250
DONE, REFUSED, FAILED = range(3)
OPTIONS = {"chunk_size": 40, "sync": "never", "publish_seconds": None}

values = st.sampled_from(
    [
        st.integers(0, 5),
        st.integers(-5, 2**63),
        st.sampled_from([0.5, -0.0, 0.0, math.nan, math.inf, 2.0**60]),
        st.text(max_size=3),
        st.booleans(),
    ]
).map(lambda value: st.none() | value)
places = st.integers(0, COUNT - 1)
rows = values.flatmap(lambda value: st.dictionaries(places, value, min_size=1, max_size=5))
every = values.flatmap(lambda value: st.lists(value, min_size=3, max_size=3))
runs = st.builds(lambda at, count: set(range(at, at + count)), st.integers(0, 300), st.integers(1, 60))
names = st.sampled_from(["y", "text", "new", "other"])
nothing, never = st.just(""), st.none()
# A change may be killed before a write: the last of some 27 for a column, and of 4 without, publish it.
stops = st.sampled_from([None, None, *range(4), 9, *range(22, 28)])
steps = st.one_of(
    st.tuples(st.just("rows"), names, rows, stops),
    st.tuples(st.just("rows"), st.sampled_from(["y", "new"]), rows, stops),
    st.tuples(st.just("all"), names, every, stops),
    st.tuples(st.just("drop"), names, nothing, stops),
    st.tuples(st.just("save"), nothing, nothing, stops),
    st.tuples(st.just("write"), nothing, runs | st.sets(st.integers(0, COUNT + 40), min_size=1), never),
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Columns of several batches, merged in several windows by a seal."""
    monkeypatch.setattr(columns, "BATCH_ROWS", 100)
    monkeypatch.setattr(contents, "WINDOW", 64)


def sample(i):
    return {"y": i, "text": None if i % 3 else f"text {i}"}


def write(path, samples):
    with CacheWriter(path, "a", in_memory_keys=["y", "text"], **OPTIONS) as writer:
        for i in samples:
            writer.write(i, sample(i))


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "a.zip", range(COUNT))
    return tmp_path / "a.zip"


class Model:
    """The labels as lists; a sample that is written has those of its chunk, but of dropped columns."""

    def __init__(self):
        self.present, self.ended = set(), set()
        self.columns = {"y": [], "text": []}
        self.write(range(COUNT))

    @property
    def length(self):
        return max(self.present) + 1

    def write(self, samples):
        self.present |= set(samples)
        for name, column in self.columns.items():
            column += [None] * (self.length - len(column))
            if name in sample(0) and name not in self.ended:
                for i in samples:
                    column[i] = sample(i)[name]

    def apply(self, kind, name, given):
        if kind == "write":
            self.write(given)
        elif kind == "drop":
            del self.columns[name]
            self.ended.add(name)
        elif kind != "save":
            changed = given if kind == "rows" else {i: given[i % 3] for i in range(self.length)}
            column = self.columns.setdefault(name, [None] * self.length)
            for i, value in changed.items():
                column[i] = value


def alike(one, other):
    if isinstance(one, float) and isinstance(other, float):
        return (one != one and other != other) or struct.pack("d", one) == struct.pack("d", other)
    return one == other


def is_of(labels, model):
    """True if labels are those of the model."""
    found = {name: labels.to_list(name) for name in labels}
    if found.keys() != model.columns.keys() or any(len(one) != model.length for one in found.values()):
        return False
    return all(all(map(alike, found[name], column)) for name, column in model.columns.items())


def check(ds, model):
    """Compare labels and filters with the model."""
    assert is_of(ds.labels, model)
    for name, column in model.columns.items():
        wanted = [i for i, one in enumerate(column) if one is None]
        assert ds.filter(f"{name} is None").indices.tolist() == wanted
        for value in [one for one in column if one is not None and one == one][:2]:
            wanted = [i for i, one in enumerate(column) if one is not None and one == value]
            assert ds.filter(**{name: value}).indices.tolist() == wanted, (name, value)


def act(path, kind, name, given):
    """Do a step to an archive; returns how it ended."""
    if kind == "write":
        write(path, sorted(given))
        return DONE
    try:
        with CachedDataset.from_cache(path, allow_partial=True) as ds:
            if kind == "save":
                ds.save(path, skip_damaged=True)
            elif kind == "drop":
                ds.drop_labels(name)
            else:
                ds.add_labels(name, given if kind == "rows" else [given[i % 3] for i in range(len(ds))])
    except (edcache.errors.LabelError, edcache.OptionError):
        return REFUSED
    return DONE


def killed(path, step, stop):
    """Do a step in a process that is killed before a write of this number; returns what it ended with."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    write_on, writes = File.pwrite, itertools.count()

    def pwrite(file, *args):
        if next(writes) == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        return write_on(file, *args)

    File.pwrite = pwrite
    try:
        code = FAILED
        code = act(path, *step)
    finally:
        os._exit(code)


@settings(max_examples=scaled(100, 12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=1, max_size=7))
def test_labels_are_those_of_a_model(tmp_path_factory, path, several):
    folder, model, far = tmp_path_factory.mktemp("model"), Model(), fsspec.filesystem("memory")
    path = shutil.copy(path, folder / "a.zip")
    reader, sound = CachedDataset.from_cache(path), path.read_bytes()
    # The last one is not killed, so that nothing torn is left.
    for *step, stop in [*several, ("write", "", {0}, None)]:
        if step[0] == "all" and step[1] in sample(0) and step[1] not in model.ended:
            continue  # samples of another type could not be written any more (test_relabel.py)
        ended = act(path, *step) if stop is None else killed(path, step, stop)
        reader.refresh()
        if ended in (DONE, -signal.SIGKILL):
            after = copy.deepcopy(model)
            after.apply(*step)
            model = after if ended == DONE or is_of(reader.labels, after) else model
        else:
            assert ended == REFUSED
        now = path.read_bytes()
        assert now.startswith(sound) or step[0] == "save"
        with CachedDataset.from_cache(path, allow_partial=True) as ds:
            assert (
                ds._archive.reader.session.sealed or ended != DONE
            )  # what is torn is cut by the next change
            check(ds, model)
        sound = now if ended == DONE else b"" if step[0] == "save" else sound
        assert is_of(reader.labels, model)
        assert len(reader) == model.length
        assert reader.missing.tolist() == sorted(set(range(model.length)) - model.present)
        assert reader[model.length - 1]["y"] == model.length - 1
    reader.close()
    assert edcache.verify(path).problems == []
    for archive in (reference.walk(path), reference.read_zip(path)):
        assert archive.labels.keys() == model.columns.keys()
        for name, column in archive.labels.items():
            assert all(alike(column.get(i), value) for i, value in enumerate(model.columns[name]))
    far.pipe_file("/bucket/a.zip", path.read_bytes())
    with CachedDataset.from_cache("memory://bucket/a.zip", local=False, allow_partial=True) as ds:
        check(ds, model)
    far.store.clear()
    shutil.rmtree(folder)


def test_opening_far_takes_as_many_requests_after_changes(path):
    asked = []
    for several in range(2):
        for k in range(1, 13):
            with CachedDataset.from_cache(path) as ds:
                ds.add_labels("y", {12 * several + k: -1})
        with serving(path.read_bytes()) as served, CachedDataset.from_cache(served.url, local=False) as ds:
            assert (ds.labels["y"] == -1).sum() == 12 * several + 12
            assert ds[0]["y"] == 0
            asked.append(len(served.requests))
    assert asked[0] == asked[1]
