"""A revision of a few labels goes behind the seal and leaves it valid: it says what a new seal would say."""

import math
import shutil
import struct
import zipfile

import fsspec
import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from range_server import serving

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import CorruptArchiveError
from edcache.format import MAX_BEHIND_SEAL, label_file, same_tables
from edcache.writer import appender

COUNT = 250
OPTIONS = {"chunk_size": 40, "sync": "never", "publish_seconds": None}
REVISION = reference.REVISION

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
steps = st.one_of(
    st.tuples(st.just("rows"), names, rows),
    st.tuples(st.just("rows"), names, rows),
    st.tuples(st.just("rows"), st.sampled_from(["y", "new"]), rows),
    st.tuples(st.just("all"), names, every),
    st.tuples(st.just("drop"), names, st.none()),
    st.tuples(st.just("grow"), st.just(""), st.integers(1, 60)),
    st.tuples(st.just("save"), st.just(""), st.none()),
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Labels of several batches, behind whose seal goes whatever keeps the types."""
    monkeypatch.setattr(label_file, "BATCH_ROWS", 100)
    monkeypatch.setattr(appender, "_MOST_BEHIND_SEAL", 1e9)


def write(path, start, count):
    with CacheWriter(path, "a", in_memory_keys=["y", "text"], **OPTIONS) as writer:
        for i in range(start, start + count):
            writer.append({"y": i, "text": None if i % 3 else f"text {i}"})


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    path = tmp_path_factory.mktemp("dense") / "a.zip"
    with CacheWriter(path, "a", in_memory_keys=["y", "text"], uuid=bytes(16), **OPTIONS) as writer:
        for i in range(COUNT):
            writer.append({"y": i, "text": None if i % 3 else f"text {i}"})
    return path


@pytest.fixture
def path(tmp_path, dense):
    return shutil.copy(dense, tmp_path / "a.zip")


class Model:
    """The labels as lists; a sample that is written later has those of its chunk, but where they ended."""

    def __init__(self):
        self.length, self.ended = 0, set()
        self.columns = {"y": [], "text": []}
        self.grow(COUNT)

    def grow(self, count):
        new = range(self.length, self.length + count)
        own = {"y": list(new), "text": [None if i % 3 else f"text {i}" for i in new]}
        for name, column in self.columns.items():
            column += own[name] if name in own and name not in self.ended else [None] * count
        self.length += count

    def drop(self, name):
        del self.columns[name]
        self.ended.add(name)

    def put(self, name, changed):
        column = self.columns.setdefault(name, [None] * self.length)
        for i, value in changed.items():
            column[i] = value


def alike(one, other):
    if one is None or other is None or isinstance(one, str) or isinstance(other, str):
        return one is other or (one == other and type(one) is type(other))
    if isinstance(one, float) and isinstance(other, float):
        return (one != one and other != other) or struct.pack("d", one) == struct.pack("d", other)
    return one == other


def check_values(labels, model):
    assert sorted(labels) == sorted(model.columns)
    for name, column in model.columns.items():
        found = labels.to_list(name)
        assert len(found) == model.length
        assert all(map(alike, found, column)), (name, found, column)


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
    """Do a step to an archive; whether it was refused, and why."""
    if kind == "grow":
        write(path, model.length, given)
        return None
    if kind == "save":
        CachedDataset.from_cache(path).save(path)
        return None
    ds = CachedDataset.from_cache(path)
    try:
        if kind == "drop":
            ds.drop_labels(name)
        elif kind == "rows":
            ds.add_labels(name, given)
        else:
            ds.add_labels(name, [given[i % 3] for i in range(len(ds))])
    except (edcache.errors.LabelError, edcache.OptionError) as error:
        return str(error).replace(str(path), "")
    finally:
        ds.close()
    return None


def apply(model, kind, name, given):
    if kind == "grow":
        model.grow(given)
    elif kind == "drop":
        model.drop(name)
    elif kind == "rows":
        model.put(name, given)
    elif kind == "all":
        model.put(name, {i: given[i % 3] for i in range(model.length)})


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=1, max_size=7))
def test_labels_are_those_of_a_model_and_of_a_new_seal_for_each_change(tmp_path_factory, dense, several):
    folder = tmp_path_factory.mktemp("both")
    path, sealed_anew = (shutil.copy(dense, folder / name) for name in ("a.zip", "b.zip"))
    model, far = Model(), fsspec.filesystem("memory")
    reader = CachedDataset.from_cache(path)
    for step in several:
        before = path.stat().st_size
        refusal = act(path, model, *step)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(appender, "_MOST_BEHIND_SEAL", -1)
            assert act(sealed_anew, model, *step) == refusal
        if refusal is not None:
            assert path.stat().st_size == before
            continue
        apply(model, *step)
        reader.refresh()
        with CachedDataset.from_cache(path) as ds, CachedDataset.from_cache(sealed_anew) as general:
            assert same_tables(ds.labels.table, general.labels.table)
            assert ds._reader.label_names == general._reader.label_names
            assert ds._reader.original_labels == general._reader.original_labels
            check_values(ds.labels, model)
            check_filters(ds, model)
        check_values(reader.labels, model)
        assert len(reader) == model.length
        assert reader[model.length - 1]["y"] == model.length - 1
    reader.close()
    assert edcache.verify(path).problems == []
    assert edcache.verify(path).sealed
    walked, listed = reference.walk(path), reference.read_zip(path)
    for archive in (walked, listed):
        assert {name: len(column) for name, column in archive.labels.items()}.keys() == model.columns.keys()
        for name, column in archive.labels.items():
            assert all(alike(column.get(i), value) for i, value in enumerate(model.columns[name]))
    far.pipe_file("/bucket/a.zip", path.read_bytes())
    with CachedDataset.from_cache("memory://bucket/a.zip") as ds:
        check_values(ds.labels, model)
        check_filters(ds, model)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    far.store.clear()
    shutil.rmtree(folder)


def kinds(path):
    return [entry.fields["kind"] for entry in reference.entries(path)[1:]]


def revise(path, name, column):
    with CachedDataset.from_cache(path) as ds:
        ds.add_labels(name, column)


def test_few_rows_leave_the_seal_and_all_before_it_as_it_is(path):
    before = path.read_bytes()
    revise(path, "y", {7: -1, 200: -2})
    data = path.read_bytes()
    assert data[: len(before)] == before
    assert kinds(path)[-1] == REVISION
    assert len(data) - len(before) < 8192
    with CachedDataset.from_cache(path) as ds:
        assert ds._reader.sealed
        assert ds.labels["y"].tolist() == [{7: -1, 200: -2}.get(i, i) for i in range(COUNT)]
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist()[-3:] == [archive.namelist()[-3], "index.pages", "labels.arrow"]
        assert archive.namelist()[-3].startswith("labels/")


def test_a_filter_looks_into_batches_whose_bounds_a_revision_left(path):
    revise(path, "y", {7: -5, 150: 10**6, 240: None})
    with CachedDataset.from_cache(path) as ds:
        for condition, wanted in [("y == -5", 7), ("y > 99999", 150), ("y is None", 240), ("y in [-5]", 7)]:
            assert ds.filter(condition).indices.tolist() == [wanted]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("y", {7: 0.5}),
        ("y", {7: 1 << 63}),
        ("text", np.arange(0)),
        ("boxes", [[None]] * COUNT),
    ],
)
def test_what_makes_another_type_is_sealed_in(path, name, column):
    if not len(column):
        column = [str(i).encode() for i in range(COUNT)]
        with CachedDataset.from_cache(path) as ds:
            ds.drop_labels("text")
    revise(path, name, column)
    if name != "text":
        assert kinds(path)[-1] == reference.LABELS
    with CachedDataset.from_cache(path) as ds:
        found = ds.labels.to_list(name)
    expected = column if isinstance(column, list) else [column.get(i, i) for i in range(COUNT)]
    assert found == expected


def test_many_are_sealed_in(path, monkeypatch):
    for k in range(MAX_BEHIND_SEAL):
        revise(path, "y", {k: -1})
    assert kinds(path)[-MAX_BEHIND_SEAL:] == [REVISION] * MAX_BEHIND_SEAL
    revise(path, "y", {100: -1})
    assert kinds(path)[-1] == reference.LABELS
    revise(path, "y", {101: -1})
    assert kinds(path)[-1] == REVISION
    monkeypatch.setattr(appender, "_MOST_BEHIND_SEAL", 0.125)
    revise(path, "y", {102: -1})
    assert kinds(path)[-1] == reference.LABELS
    with CachedDataset.from_cache(path) as ds:
        assert (ds.labels["y"][:103] == -1).sum() == MAX_BEHIND_SEAL + 3
    assert edcache.verify(path).problems == []


def test_rows_of_records_alone_are_sealed_in(tmp_path):
    path = tmp_path / "a.zip"
    with CacheWriter(path, "a", in_memory_keys=["y"], **OPTIONS) as writer:
        for i in range(0, 20, 2):
            writer.write(i, {"y": i})
    revise(path, "y", {2: -1})
    assert kinds(path)[-1] == reference.LABELS
    revise(path, "new", {3: 1})
    revise(path, "new", {5: 1})
    assert kinds(path)[-1] == REVISION
    with CachedDataset.from_cache(path, allow_partial=True) as ds:
        assert ds.labels.to_list("new") == [{3: 1, 5: 1}.get(i) for i in range(19)]


def test_saving_keeps_what_is_behind_the_seal(path, tmp_path):
    revise(path, "y", {7: -1})
    revise(path, "new", {8: "a"})
    with CachedDataset.from_cache(path) as ds:
        expected = ds.labels.table
        mended = ds.save(tmp_path / "mended.zip")[0]
        ds.save(path)
    for one in (path, mended):
        with CachedDataset.from_cache(one) as ds:
            assert same_tables(ds.labels.table, expected)
        assert edcache.verify(one).problems == []
    assert kinds(path)[-1] == reference.LABELS


def damaged(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_behind_the_seal_is_told_and_the_rest_is_saved(path, tmp_path):
    revise(path, "y", {7: -1})
    revise(path, "new", {8: "a"})
    entry = reference.entries(path)[-2]
    damaged(path, entry.fields["offset"] + entry.fields["nbytes"] + 100)
    assert any("labels/" in problem for problem in edcache.verify(path).problems)
    with (
        CachedDataset.from_cache(path) as ds,
        pytest.raises(CorruptArchiveError, match="labels/"),
    ):
        ds.labels["y"]
    with CachedDataset.from_cache(path) as ds:
        ds.save(tmp_path / "mended.zip", skip_damaged=True)
    with CachedDataset.from_cache(tmp_path / "mended.zip") as ds:
        assert ds.labels.to_list("new")[8] == "a"


def test_a_damaged_table_of_labels_is_sealed_anew_from_the_chunks(path):
    entry = reference.entries(path)[-1]
    at = entry.fields["offset"] + entry.fields["nbytes"] + len(entry.payload) - 1
    with CachedDataset.from_cache(path) as ds:
        damaged(path, at)
        ds.add_labels("y", {7: -1})
        assert ds.labels["y"].tolist() == [-1 if i == 7 else i for i in range(COUNT)]
    damaged(path, at)
    assert kinds(path)[-1] == reference.LABELS


def test_a_copy_of_a_far_archive_has_what_is_behind_its_seal(path, tmp_path):
    revise(path, "y", {7: -1})
    revise(path, "new", {8: "a"})
    far = fsspec.filesystem("memory")
    far.pipe_file("/bucket/a.zip", path.read_bytes())
    copied = tmp_path / "copied.zip"
    edcache.copy_to_local("memory://bucket/a.zip", copied)
    assert copied.read_bytes() == path.read_bytes()
    with CachedDataset.from_cache("memory://bucket/a.zip", local=tmp_path / "local") as ds:
        assert ds.labels.to_list("new")[8] == "a"
        assert ds.filter(y=-1).indices.tolist() == [7]
    far.store.clear()


def test_opening_far_takes_no_more_rounds_for_what_is_behind_the_seal(path):
    plain = path.read_bytes()
    for k in range(20):
        revise(path, "y", {k: -1})
    asked = []
    for data in (plain, path.read_bytes()):
        with serving(data) as served, CachedDataset.from_cache(served.url) as ds:
            assert (ds.labels["y"] == -1).sum() == (20 if len(data) > len(plain) else 0)
            asked.append(len(served.requests))
    assert asked[1] <= asked[0] + 1


def test_a_kill_before_the_header_leaves_the_labels_as_they_were(path):
    before = path.read_bytes()
    revise(path, "y", {7: -1})
    entry = reference.entries(path)[-1].fields
    data = bytearray(path.read_bytes())
    data[entry["offset"] : entry["offset"] + entry["nbytes"]] = bytes(entry["nbytes"])
    path.write_bytes(data)
    with CachedDataset.from_cache(path, allow_partial=True) as ds:
        assert ds.labels["y"].tolist() == list(range(COUNT))
        ds.drop_labels("text")
    assert path.read_bytes()[: len(before)] == before
    with CachedDataset.from_cache(path) as ds:
        assert ds._reader.sealed
        assert list(ds.labels) == ["y"]


@pytest.mark.parametrize("again", [{"z": [2, 3, 4]}, {"z": [5, 6, 7]}, {"other": ["a", "b", "c"]}], ids=str)
def test_a_change_that_was_killed_before_its_seal_is_sealed_by_the_next_one(tmp_path, monkeypatch, again):
    CachedDataset([1, 2, 3], tmp_path / "a.zip", progress=False, fingerprint=False)

    class Killed(BaseException):
        pass

    def killed(log):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(appender.Log, "seal", killed)
        with pytest.raises(Killed):
            CachedDataset.from_cache(tmp_path / "a.zip").add_labels({"z": [2, 3, 4]})
    assert not CachedDataset.from_cache(tmp_path / "a.zip", allow_partial=True).complete
    CachedDataset.from_cache(tmp_path / "a.zip", allow_partial=True).add_labels(again)
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    assert ds.complete
    assert {name: ds.labels[name].tolist() for name in ds.labels} == {"z": [2, 3, 4], **again}
