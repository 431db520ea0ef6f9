"""Any sequence of fills and changes of labels, killed or not, gives the labels of a model, near and far."""

import copy
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
)
rows = values.flatmap(
    lambda value: st.dictionaries(
        st.integers(0, COUNT - 1), st.one_of(value, st.none()), min_size=1, max_size=5
    )
)
every = values.flatmap(lambda value: st.lists(st.one_of(value, st.none()), min_size=3, max_size=3))
names = st.sampled_from(["y", "text", "new", "other"])
# A change may be killed at its first writes to the file.
stops = st.one_of(st.none(), st.integers(0, 8))
steps = st.one_of(
    st.tuples(st.just("rows"), names, rows, stops),
    st.tuples(st.just("rows"), st.sampled_from(["y", "new"]), rows, stops),
    st.tuples(st.just("all"), names, every, stops),
    st.tuples(st.just("drop"), names, st.none(), stops),
    st.tuples(st.just("save"), st.just(""), st.none(), stops),
    st.tuples(st.just("grow"), st.just(""), st.integers(1, 60), st.none()),
    st.tuples(st.just("write"), st.just(""), st.sets(st.integers(0, COUNT + 40), min_size=1), st.none()),
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


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    path = tmp_path_factory.mktemp("dense") / "a.zip"
    write(path, range(COUNT))
    return path


@pytest.fixture
def path(tmp_path, dense):
    return shutil.copy(dense, tmp_path / "a.zip")


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
            for i in samples:
                if name in sample(i) and name not in self.ended:
                    column[i] = sample(i)[name]

    def drop(self, name):
        del self.columns[name]
        if name in sample(0):
            self.ended.add(name)

    def put(self, name, changed):
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
    same = (
        len(values) == model.length and all(map(alike, values, model.columns[name]))
        for name, values in found.items()
        if name in model.columns
    )
    return found.keys() == model.columns.keys() and all(same)


def check_filters(ds, model):
    for name, column in model.columns.items():
        wanted = [i for i, value in enumerate(column) if value is None]
        assert ds.filter(f"{name} is None").indices.tolist() == wanted
        some = {value: None for value in column if isinstance(value, str | int | float) and value == value}
        for value in list(some)[:2] + list(some)[-1:]:
            is_bool = isinstance(value, bool)
            wanted = [i for i, other in enumerate(column) if other is not None and other == value]
            assert ds.filter(**{name: value}).indices.tolist() == wanted, (name, value)
            if isinstance(value, int | float) and not is_bool and abs(value) < 2**53:
                less = [i for i, other in enumerate(column) if other is not None and other < value]
                assert ds.filter(f"{name} < {value!r}").indices.tolist() == less, (name, value)
                others = [i for i, other in enumerate(column) if other is not None and other != value]
                assert ds.filter(f"{name} != {value!r}").indices.tolist() == others, (name, value)


def act(path, model, kind, name, given):
    """Do a step to an archive."""
    if kind in ("grow", "write"):
        write(path, range(model.length, model.length + given) if kind == "grow" else sorted(given))
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


def killed(path, model, step, stop):
    """Do a step in a process that is killed before a write of this number; returns what it ended with."""
    child = os.fork()
    if not child:
        write_on = File.pwrite

        def pwrite(file, *args):
            nonlocal stop
            stop -= 1
            if stop < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return write_on(file, *args)

        File.pwrite = pwrite
        code = FAILED
        try:
            code = act(path, model, *step)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def apply(model, kind, name, given):
    if kind == "grow":
        model.write(range(model.length, model.length + given))
    elif kind == "write":
        model.write(given)
    elif kind == "drop":
        model.drop(name)
    elif kind == "rows":
        model.put(name, given)
    elif kind == "all":
        model.put(name, {i: given[i % 3] for i in range(model.length)})


@settings(max_examples=scaled(100, 25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=1, max_size=7))
def test_labels_are_those_of_a_model(tmp_path_factory, dense, several):
    folder = tmp_path_factory.mktemp("model")
    path, model, far = shutil.copy(dense, folder / "a.zip"), Model(), fsspec.filesystem("memory")
    reader, sound = CachedDataset.from_cache(path), path.read_bytes()
    # The last one is not killed, so that nothing torn is left.
    for *step, stop in [*several, ("grow", "", 3, None)]:
        if step[0] == "all" and step[1] in sample(0) and step[1] not in model.ended:
            continue  # samples of another type could not be written any more (test_relabel.py)
        ended = act(path, model, *step) if stop is None else killed(path, model, step, stop)
        reader.refresh()
        if ended in (DONE, -signal.SIGKILL):
            after = copy.deepcopy(model)
            apply(after, *step)
            model = after if ended == DONE or is_of(reader.labels, after) else model
        else:
            assert ended == REFUSED
        if step[0] == "save":
            sound = b""  # another file
        now = path.read_bytes()
        assert now.startswith(sound)
        with CachedDataset.from_cache(path, allow_partial=True) as ds:
            if ended == DONE:
                assert ds._reader.sealed
                sound = now
            assert is_of(ds.labels, model)
            check_filters(ds, model)
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
        assert is_of(ds.labels, model)
        check_filters(ds, model)
    far.store.clear()
    shutil.rmtree(folder)


def test_opening_far_takes_as_many_requests_after_changes(path):
    asked = []
    for k in range(1, 25):
        with CachedDataset.from_cache(path) as ds:
            ds.add_labels("y", {k: -1})
        if k % 12 == 0:
            with (
                serving(path.read_bytes()) as served,
                CachedDataset.from_cache(served.url, local=False) as ds,
            ):
                assert (ds.labels["y"] == -1).sum() == k
                assert ds[0]["y"] == 0
                asked.append(len(served.requests))
    assert asked[0] == asked[1]
