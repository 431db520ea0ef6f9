"""Labels that are added, changed and dropped after the samples were written."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import subprocess
import sys
import threading
import warnings
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
import reference
import torch
from damage import flipped
from optional import Later, Library, made
from scale import scaled
from systems import WAYS, System, Watching, reading_by, replace_system
from written import write, written

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import (
    ArchiveError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    LabelError,
    OptionError,
    PartialArchiveWarning,
    UnknownLabelError,
)

pd, pl = Library("pandas"), Library("polars")


def sample(index):
    return {"y": index, "image": np.full((2, 3), index % 100, np.int16), "kind": "ab"[index % 2]}


def make(path, count=10, *, keys=("y", "kind"), seal=True, chunk_size=4, mode="x"):
    w = CacheWriter(path, mode, in_memory_keys=list(keys), chunk_size=chunk_size, publish_seconds=None)
    for index in range(count):
        w.append(sample(index))
    w.close() if seal else w.abort()
    return path


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "a.zip")


def column(cache, name):
    return cache.labels.table.column(name).to_pylist()


def opened(path):
    return CachedDataset.from_cache(path, allow_partial=True)


def check(path, expected):
    """The labels of an archive are these by every way to read it; expected: name -> values."""
    for way in WAYS:
        with reading_by(way):
            cache = CachedDataset.from_cache(path, allow_partial=True)
        assert list(cache.labels) == list(expected)
        assert {name: column(cache, name) for name in cache.labels} == expected
        assert cache.info()["labels"] == list(expected)
    assert edcache.verify(path).problems == []
    for read in [reference.walk, *([reference.read_zip] if cache._archive.reader.session.sealed else [])]:
        found = read(path)
        assert set(found.labels) <= set(expected)
        for name, values in expected.items():
            told = found.labels.get(name, {})
            assert [told.get(index) for index in range(found.length)] == values


# ------------------------------------------------------------------------------------------ adding


def test_labels_for_a_file_that_is_gone_make_no_other_one(tmp_path):
    path = tmp_path / "a.zip"
    ds = written(path, ({"x": index} for index in range(4)))
    path.rename(tmp_path / "b.zip")
    with pytest.raises(ArchiveNotFoundError, match="a.zip: no such file"):
        ds.add_labels("y", range(4))
    assert os.listdir(tmp_path) == ["b.zip"]
    assert ds[3] == {"x": 3}


GIVEN = {
    "numpy": np.arange(10, dtype=np.int32),
    "big endian": np.arange(10, dtype=">f4"),
    "bools": np.arange(10) > 4,
    "texts": np.array([f"t{i}" for i in range(10)]),
    "times": np.arange(10).astype("M8[s]"),
    "days": np.arange(10).astype("M8[D]"),
    "rows": np.arange(20).reshape(10, 2),
    "objects": np.array([None, "a"] * 5, dtype=object),
    "list": [1, None, 2.5, *range(7)],
    "lists": [[i] * i or None for i in range(10)],
    "iterator": map(str, range(10)),
    "arrow": pa.array([None, *range(9)], pa.uint8()),
    "chunked": pa.chunked_array([[1, 2], [3] * 8]),
    "categories": pa.array(["a", "b"] * 5).dictionary_encode(),
    "fixed lists": pa.array([[1, 2]] * 10, pa.list_(pa.int8(), 2)),
    "large texts": pa.array(["a"] * 10, pa.large_string()),
    "views": pa.array(["a"] * 10, pa.string_view()),
    "zoned": pa.array([0] * 10, pa.timestamp("us", "Europe/Berlin")),
    "series": Later(lambda: pd.Series([1.5, None] * 5)),
    "categorical": Later(lambda: pd.Series(["u", "v"] * 5, dtype="category")),
    "polars": Later(lambda: pl.Series([True, None] * 5)),
    "nothing": [None] * 10,
}


@pytest.mark.parametrize("kind", GIVEN)
def test_values_come_back_from_whatever_holds_them(path, kind):
    given = list(GIVEN[kind]) if kind == "iterator" else made(GIVEN[kind])
    if isinstance(given, (pa.Array, pa.ChunkedArray)):
        expected = given.to_pylist()
    elif kind in ("series", "categorical"):
        expected = [None if pd.isna(value) else value for value in given]
    elif isinstance(given, np.ndarray) and given.dtype.kind == "M":
        expected = given.tolist()
    else:
        expected = given.tolist() if isinstance(given, np.ndarray) else list(given)
    opened(path).add_labels("new", iter(given) if kind == "iterator" else given)
    check(path, {"y": list(range(10)), "kind": ["a", "b"] * 5, "new": expected})


def test_a_tensor_is_a_column(path):
    import torch

    assert column(opened(path).add_labels("new", torch.arange(10.0)), "new") == list(range(10))


def test_a_mapping_changes_the_samples_that_it_names_alone(path):
    ds = opened(path)
    ds.add_labels("new", {3: "x", -1: "z"}).add_labels("y", {0: -1})
    ds.add_labels("new", {3: None, np.int64(4): "w"})
    new = [None, None, None, None, "w", None, None, None, None, "z"]
    check(path, {"y": [-1, *range(1, 10)], "kind": ["a", "b"] * 5, "new": new})


def test_a_column_may_change_its_type_when_all_of_it_is_new(path):
    ds = opened(path)
    ds.add_labels("new", range(10))
    with pytest.raises(LabelError) as raised:
        ds.add_labels("new", {3: "x"})
    assert str(raised.value) == (
        f'{path}: label "new" is int64 in the archive and string in labels that were added; add them under '
        'another name, or drop_labels("new") first'
    )
    ds.add_labels("new", list("abcdefghij")).add_labels("new", {0: "z"})
    assert column(ds, "new") == list("zbcdefghij")


def test_samples_fill_a_column_of_their_type_alone_until_it_is_dropped(path):
    ds = opened(path)
    before = path.read_bytes()
    with pytest.raises(LabelError, match='label "y" is int64 in the archive and string .*, or drop_labels'):
        ds.add_labels("y", list("abcdefghij"))
    assert path.read_bytes() == before
    ds.drop_labels("y").add_labels("y", list("abcdefghij"))
    make(path, 2, mode="a")
    check(path, {"kind": [*"ababababab", "a", "b"], "y": [*"abcdefghij", None, None]})


def test_samples_that_do_not_fit_what_was_added_are_refused_when_they_are_appended(path):
    opened(path).add_labels("y", np.arange(10) + 0.5)
    with (
        pytest.raises(LabelError, match="float64 does not hold 9007199254740993 exactly; make it one type"),
        CacheWriter(path, "a") as w,
    ):
        w.append(sample(2**53 + 1))
    assert edcache.verify(path).problems == []


REFUSED = [
    (
        ("new", [1, 2]),
        OptionError,
        '^label "new" got 2 values, but the dataset has 10 samples; give one per sample, with None where there '
        r"is none, or \{index: value\}$",
    ),
    (("new", {10: 1}), OptionError, r'label "new": index 10 not in \[-10, 10\)'),
    (("new", {"a": 1}), OptionError, "label \"new\": 'a' is a str; the keys are sample indices"),
    (("new", {9: 1, -1: 1}), OptionError, 'label "new": an index comes twice, once counted from the end'),
    (
        ("new", "abcdefghij"),
        OptionError,
        'label "new" got a str; give one value per sample: an array, a list',
    ),
    (
        ("new",),
        OptionError,
        r'add_labels\("new"\) got no values; give an array, {index: value} or a function',
    ),
    (("", range(10)), OptionError, r"add_labels\(\) got the column name ''; a name is a non-empty str"),
    (("new", np.zeros((10, 2, 2))), OptionError, r"got an array of shape \(10, 2, 2\); give one value per"),
    (("new", [1, "a"] * 5), LabelError, "sample 1 is a str"),
    (("new", pa.array([{"a": 1}] * 10)), LabelError, "which no label column holds; columns are bool, int"),
    (("new", pa.array([[[1]]] * 10)), LabelError, "which no label column holds"),
    (
        ({"new": [1, 2]},),
        OptionError,
        "the table has 2 rows, the dataset 10 samples; give one row per sample",
    ),
    (({"new": [1, 2], "b": [1]},), OptionError, 'have different lengths: "new" 2, "b" 1'),
    (({},), OptionError, "the table has 0 rows"),
    (
        (7,),
        OptionError,
        r"add_labels\(\) got an int; give a name and its values, or a pyarrow Table, a DataF",
    ),
    (({"new": [1] * 10}, [1]), OptionError, r"add_labels\(table\) takes on= alone"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), REFUSED)
def test_what_is_no_column_is_refused_and_changes_nothing(path, arguments, kind, text):
    before = path.read_bytes()
    with pytest.raises(kind, match=text):
        opened(path).add_labels(*arguments)
    assert path.read_bytes() == before


def test_options_that_do_not_go_together_are_refused(path):
    ds = opened(path)
    with pytest.raises(OptionError, match="on= goes with a table, not with a name"):
        ds.add_labels("new", range(10), on="y")


# ------------------------------------------------------------------------------------------ tables


@pytest.mark.parametrize(
    "wrap",
    [pa.table, lambda table: pd.DataFrame(table), lambda table: pl.DataFrame(table), dict],
    ids=["arrow", "pandas", "polars", "dict"],
)
def test_a_table_is_joined_on_a_column_that_both_have(path, wrap):
    given = wrap({"y": [30, 3, 1], "site": ["w", "v", "u"], "age": [1, 2, 3]})
    with pytest.warns(RuntimeWarning, match='^8 of 10 samples have no row in the table of "y", and get None'):
        opened(path).add_labels(given, on="y")
    site = [None, "u", None, "v", *[None] * 6]
    age = [None, 3, None, 2, *[None] * 6]
    check(path, {"y": list(range(10)), "kind": ["a", "b"] * 5, "site": site, "age": age})


def test_a_table_with_a_row_per_sample_adds_all_of_its_columns(path):
    ds = opened(path).add_labels(pd.DataFrame({"a": range(10), "b": ["x"] * 10}))
    assert (column(ds, "a"), column(ds, "b")) == (list(range(10)), ["x"] * 10)


def test_a_join_goes_by_samples_not_by_rows_and_a_missing_key_never_matches(tmp_path):
    path = make(tmp_path / "a.zip", keys=["kind"])
    ds = opened(path)
    with pytest.warns(RuntimeWarning, match="^5 of 10 samples have no row"):
        ds.add_labels({"kind": ["b", None], "n": [1, 2]}, on="kind")
    assert column(ds, "n") == [None, 1] * 5
    ds.add_labels("key", [None, *"bcdefghij"])
    with pytest.warns(RuntimeWarning, match="^9 of 10 samples have no row"):
        ds.add_labels({"key": [None, "c"], "m": [1, 2]}, on="key")
    assert column(ds, "m") == [None, None, 2, *[None] * 7]


def test_what_cannot_be_joined_is_refused(path):
    ds = opened(path)
    with pytest.raises(
        LabelError, match='the table has "y" = 1 more than once, so the row to use is not clear'
    ):
        ds.add_labels({"y": [1, 1], "b": [1, 2]}, on="y")
    with pytest.raises(UnknownLabelError, match='no label "id"; this archive has: y, kind'):
        ds.add_labels({"id": [1], "b": [1]}, on="id")
    with pytest.raises(OptionError, match='the table has no column "y" to join on; its columns are b'):
        ds.add_labels({"b": [1]}, on="y")
    with pytest.raises(LabelError, match='label "y" is int64 in the archive and string in the table'):
        ds.add_labels({"y": ["1"], "b": [1]}, on="y")
    with pytest.raises(LabelError, match='no sample has a row in the table: "y" is 0 for example, and the'):
        ds.add_labels({"y": [77, 78], "b": [1, 2]}, on="y")
    with pytest.raises(OptionError, match="the table has no column to add"):
        ds.add_labels({"y": list(range(10))}, on="y")


# --------------------------------------------------------------------------------------- functions


def bright(sample):
    return float(sample["image"].mean())


def test_a_function_gets_every_sample_as_it_is_stored(path):
    ds = CachedDataset.from_cache(path, transform=lambda sample: 1 / 0)
    ds.add_labels("bright", bright)
    assert column(ds, "bright") == list(range(10))


def test_a_function_that_raises_names_the_sample(path):
    with pytest.raises(LabelError) as raised:
        opened(path).add_labels("new", lambda sample: 1 // (sample["y"] - 7))
    assert str(raised.value).startswith('label "new": its function raised at sample 7: ZeroDivisionError: ')
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_function_labels_the_samples_that_are_there(tmp_path):
    path = tmp_path / "a.zip"
    with CacheWriter(path, in_memory_keys=["y"]) as w:
        for index in (1, 4):
            w.write(index, sample(index))
    assert column(opened(path).add_labels("b", bright), "b") == [None, 1.0, None, None, 4.0]


# ------------------------------------------------------------------------------------------- views


def test_a_view_says_where_labels_are_added(path):
    view = opened(path)[2:4]
    for change in (lambda: view.add_labels("new", [1, 2]), lambda: view.drop_labels("y")):
        with pytest.raises(
            OptionError, match="^labels of a view cannot be changed; change those of the dataset"
        ):
            change()
    assert list(view.labels) == ["y", "kind"]
    opened(path).add_labels("new", range(10))
    assert opened(path)[2:4].labels["new"].tolist() == [2, 3]


def test_selecting_a_field_gives_what_the_samples_hold_whatever_the_labels_say(path):
    ds = opened(path)
    fields, batch = ds.select("y", "kind"), [4, 5]
    before = fields[4], fields.batch(batch)
    ds.add_labels("y", [0] * 10).drop_labels("kind")
    for view in (fields, ds.select("y", "kind"), opened(path).select("y", "kind")):
        assert view[4] == before[0] == {"y": 4, "kind": "a"}
        assert view.batch(batch)["y"].tolist() == before[1]["y"].tolist() == [4, 5]
        assert view.batch(batch)["kind"] == ["a", "b"]


# ---------------------------------------------------------------------------------------- dropping


def test_every_column_can_be_dropped(path):
    opened(path).drop_labels("kind", "y")
    check(path, {})
    opened(path).save(path)
    check(path, {})


def test_only_columns_that_are_there_are_dropped(path):
    ds = opened(path)
    with pytest.raises(UnknownLabelError, match='no label "lable"; this archive has: y, kind'):
        ds.drop_labels("lable")
    with pytest.raises(OptionError, match=r"drop_labels\(\) takes the names of columns; this archive has: y"):
        ds.drop_labels()
    other = opened(path)
    len(other.labels)
    ds.drop_labels("y")
    before = path.read_bytes()
    other.drop_labels("y")  # which others dropped meanwhile
    assert path.read_bytes() == before


# --------------------------------------------------------------------------------- kinds of archives


def test_an_archive_without_labels_gets_some(tmp_path):
    path = make(tmp_path / "a.zip", keys=())
    opened(path).add_labels("new", range(10))
    check(path, {"new": list(range(10))})


def test_an_empty_archive_has_columns_without_values(tmp_path):
    path = make(tmp_path / "a.zip", 0, keys=())
    opened(path).add_labels("new", [])
    check(path, {"new": []})


def test_labels_of_an_archive_that_is_not_sealed_cannot_be_changed(path, tmp_path):
    def changes(ds):
        return lambda: ds.add_labels("new", {0: 1}), lambda: ds.drop_labels("y")

    make(path, 2, mode="a", seal=False)
    before = path.read_bytes()
    lazy = CachedDataset(Source(), tmp_path / "lazy.zip", lazy=True)
    for change in (*changes(opened(path)), *changes(lazy)):
        with pytest.raises(
            ArchiveError, match="zip: not sealed, so its labels cannot be changed yet; fill it"
        ):
            change()
    assert path.read_bytes() == before
    CacheWriter(path, "a").close()
    lazy.warmup(num_workers=0)
    lazy.add_labels("bright", bright)
    check(tmp_path / "lazy.zip", {"y": list(range(10)), "bright": list(range(10))})
    lazy.close()
    assert CachedDataset(Source(), tmp_path / "lazy.zip").labels["bright"].tolist() == list(range(10))


class Source:
    in_memory_keys = ("y",)

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return sample(index)


def test_several_change_labels_while_another_appends(path):
    """An archive is not sealed for the moment between a chunk and its seal: who comes then tries again."""
    failed = []

    def add(name):
        try:
            for version in range(scaled(6, 3)):
                while True:
                    with suppress(ArchiveError):
                        opened(path).add_labels(name, dict.fromkeys(range(10), version))
                        break
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=add, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for index in range(10, 18):
        write(path, [sample(index)], "a", chunk_size=2)
    for thread in threads:
        thread.join()
    assert failed == []
    last = [scaled(6, 3) - 1] * 10 + [None] * 8
    check(
        path,
        {
            "y": list(range(18)),
            "kind": ["a", "b"] * 9,
            **dict.fromkeys(sorted("ab", key=list(opened(path).labels).index), last),
        },
    )


def test_an_archive_that_cannot_be_written_says_what_to_do(path, monkeypatch):
    """A file system that refuses, as a read-only one does whoever asks."""
    import errno

    from edcache.errors import StorageError

    class ReadOnly(System):
        def open(self, path, flags, mode):
            if flags & os.O_RDWR:
                raise OSError(errno.EROFS, "Read-only file system")
            return super().open(path, flags, mode)

    ds = opened(path)
    with replace_system(ReadOnly()), pytest.raises(StorageError) as raised:
        ds.add_labels("new", range(10))
    assert str(raised.value) == (
        f"{path}: labels are kept in the archive, and it cannot be written here; copy it to where you may "
        "write, add them there, and open the copy"
    )
    assert raised.value.errno == errno.EROFS


def test_another_archive_in_its_place_gets_no_labels(path, tmp_path):
    ds = opened(path)
    os.replace(make(tmp_path / "b.zip"), path)
    with pytest.raises(edcache.errors.StaleArchiveError, match="another archive is here now than the one"):
        ds.add_labels("new", range(10))


def test_an_archive_that_must_be_the_published_one_keeps_its_labels(path):
    ds = CachedDataset.from_cache(path, expected_digest=edcache.digest(path))
    for change in (lambda: ds.add_labels("new", range(10)), lambda: ds.drop_labels("y")):
        with pytest.raises(OptionError, match="opened with expected_digest=, so that it must stay the file"):
            change()


def test_ten_columns_of_a_million_are_kept_as_bytes(tmp_path):
    """No object per value: a process with little memory to spare adds them."""
    import tracemalloc

    count = 50_000
    path = tmp_path / "a.zip"
    write(path, range(count), chunk_size=25_000)
    ds = opened(path)
    values = np.arange(count)
    tracemalloc.start()
    ds.add_labels("new", values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * values.nbytes
    assert np.array_equal(ds.labels["new"], values)
    assert not ds.labels["new"].flags.owndata


# --------------------------------------------------------------------------------------- housekeeping


def everything(path):
    """An archive with every kind of column: of samples, added, changed, dropped, and dropped and added."""
    make(path)
    opened(path).add_labels("a", range(10)).add_labels("y", {1: 11, 2: 12})
    make(path, 3, mode="a")
    opened(path).add_labels("b", [f"b{i}" for i in range(13)]).add_labels("gone", range(13))
    write(path, [sample(2), sample(15)], "a", indices=[2, 15])
    opened(path).drop_labels("gone", "kind").add_labels("kind", [math.pi] * 16)
    y = [0, 11, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, None, None, 15]
    b = [*(f"b{i}" for i in range(13)), None, None, None]
    return {"y": y, "a": [*range(10), *[None] * 6], "b": b, "kind": [math.pi] * 16}


def test_saving_leaves_out_old_columns_and_changes_no_label(tmp_path):
    path, one = (tmp_path / f"{name}.zip" for name in "ab")
    expected = everything(path)
    check(path, expected)
    opened(path).save(one, skip_damaged=True)
    check(one, expected)
    columns = [e.fields["name"] for e in reference.entries(one) if e.fields["kind"] == reference.COLUMN]
    assert sorted(columns) == sorted(f"labels/{name}.arrow" for name in expected)
    opened(path).save(path, skip_damaged=True)
    check(path, expected)
    before = path.read_bytes()
    opened(path).save(path, skip_damaged=True)
    assert path.read_bytes() == before
    assert opened(path).select("kind")[1] == {"kind": "b"}
    opened(path).add_labels("b", {0: "new"})
    expected["b"][0] = "new"
    check(path, expected)


def test_a_damaged_column_is_named_and_the_others_are_kept(tmp_path):
    path, saved = tmp_path / "a.zip", tmp_path / "b.zip"
    expected = everything(path)
    data = path.read_bytes()
    places = opened(path)._archive.reader.session.chain.root.labels
    for name in expected:
        offset, nbytes, _ = places[name].place
        turned = flipped(data, offset + nbytes // 2)
        path.write_bytes(turned)
        ds = opened(path)
        message = f"the label column '{name}' at offset {offset:,} fails its crc32"
        for look in (lambda ds=ds, name=name: ds.labels[name], lambda ds=ds: ds.labels.table):
            with pytest.raises(CorruptArchiveError, match=message):
                look()
        with pytest.raises(CorruptArchiveError, match=message):
            ds.add_labels(name, {0: None})
        assert path.read_bytes() == turned
        for other in expected:
            assert other == name or ds.labels.to_list(other) == expected[other]
        assert same_samples(ds)
        assert any(f"label column '{name}'" in problem for problem in edcache.verify(path).problems)
        lost = f"label column '{name}' at .*crc32; the column is left out$"
        with pytest.warns(PartialArchiveWarning, match=lost) as said:
            ds.save(saved, skip_damaged=True)
        assert len(said) == 1
        found = opened(saved)
        for other in expected:
            assert other == name or column(found, other) == expected[other]
        # All of these were added or changed: chunks do not have the values.
        assert {*found.labels} == expected.keys() - {name}
        assert edcache.verify(saved).problems == []
        found.close()
        saved.unlink()
        ds.add_labels(name, expected[name])
        assert {other: column(ds, other) for other in ds.labels} == expected


@pytest.mark.parametrize("is_grown", [False, True])
def test_a_damaged_column_that_came_with_the_samples_is_taken_from_their_chunks(tmp_path, is_grown):
    path, saved = make(tmp_path / "a.zip"), tmp_path / "b.zip"
    write(path, [sample(2)], "a", indices=[2])
    if is_grown:
        make(path, 3, mode="a", seal=False)
    place = opened(path)._archive.reader.session.root.labels["y"].place
    sound = flipped(path.read_bytes(), place.offset + place.nbytes // 2)
    expected = [*range(10), *range(3 * is_grown)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*left out")
        path.write_bytes(sound)
        opened(path).save(saved, skip_damaged=True)
    assert column(opened(saved), "y") == expected
    saved.unlink()
    # Without one of the chunks, nothing is guessed.
    first = CachedDataset.from_cache(path, allow_partial=True)._archive.reader.session.chain.first.offset
    path.write_bytes(flipped(sound, first + 20) if not is_grown else flipped(sound, first + 192 + 20))
    with pytest.warns(PartialArchiveWarning, match="'y' at .*; the column is left out"):
        CachedDataset.from_cache(path, allow_partial=True).save(saved, skip_damaged=True)
    found = opened(saved)
    assert list(found.labels) == ["kind"]
    assert [found[i]["y"] for i in range(10)] == list(range(10))


def same_samples(ds):
    return [ds[i]["y"] for i in (0, 1, 2, 15)] == [0, 1, 2, 15]


def test_labels_that_are_nan_are_sound(tmp_path):
    path = make(tmp_path / "a.zip")
    opened(path).add_labels("f", [math.nan] * 10).add_labels("l", [[math.nan]] * 10)
    assert edcache.verify(path).problems == []


# ------------------------------------------------------------------------------------ other processes


ADD = """
import sys, numpy as np
from edcache import CachedDataset
CachedDataset.from_cache(sys.argv[1]).add_labels("new", np.arange(10))
"""


def test_another_process_sees_labels_after_refresh(path):
    ds = opened(path)
    assert "new" not in ds.labels
    subprocess.run([sys.executable, "-c", ADD, path], check=True)
    assert "new" not in ds.labels
    ds.refresh()
    assert ds.labels["new"].tolist() == list(range(10))
    assert json.loads(json.dumps(ds.info()["labels"])) == ["y", "kind", "new"]


@pytest.mark.parametrize("sync", ["never", "seal"])
def test_added_labels_are_synced_as_the_fill_asks(tmp_path, sync):
    cache = CachedDataset([{"x": i} for i in range(5)], tmp_path / "a.zip", sync=sync)
    with replace_system(Watching()) as system:
        cache.add_labels("z", {0: 7})
    assert (system.syncs > 0) == (sync == "seal")
    assert CachedDataset.from_cache(tmp_path / "a.zip").labels["z"][0] == 7


@pytest.mark.parametrize(
    ("stored", "values", "kind"),
    [
        (np.int16([1, 2, 3]), {1: 7}, pa.int16()),
        (np.int16([1, 2, 3]), {0: -(2**15), 1: None, 2: np.int64(2**15 - 1)}, pa.int16()),
        (np.int16([1, 2, 3]), {1: 2**15}, pa.int64()),
        (np.uint8([1, 2, 3]), {1: -1}, pa.int64()),
        (np.uint64([1, 2, 2**64 - 1]), {1: 7}, pa.uint64()),
        (np.int16([1, 2, 3]), {1: -0.0}, pa.float64()),
        (np.float32([1, 2, 3]), {0: 0.5, 1: float("nan"), 2: -0.0}, pa.float32()),
        (np.float32([1, 2, 3]), {0: float("inf"), 1: None}, pa.float32()),
        (np.float32([1, 2, 3]), {1: 0.1}, pa.float64()),
        (np.float32([1, 2, 3]), {1: 1e300}, pa.float64()),
        (np.float32([1, 2, 3]), {1: 7}, pa.float64()),
    ],
    ids=str,
)
def test_a_column_keeps_its_type_where_that_holds_the_values(tmp_path, stored, values, kind):
    cache = CachedDataset.from_cache(make(tmp_path / "a.zip", 3))
    cache.add_labels("z", stored)
    cache.add_labels("z", values)
    assert cache.labels.column("z").type == kind
    expected = [values.get(index, old) for index, old in enumerate(stored.tolist())]
    typed = [None if value is None else kind.to_pandas_dtype()(value).item() for value in expected]
    # As text, so that nan is nan and -0.0 is not 0.0.
    assert str(column(cache, "z")) == str(typed)


def test_a_change_costs_the_bytes_of_its_column_alone(tmp_path):
    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["y"]) as writer:
        writer.extend_columns({"y": np.arange(100_000, dtype=np.int16) % 100})
    before = (tmp_path / "a.zip").stat().st_size
    CachedDataset.from_cache(tmp_path / "a.zip").add_labels("y", dict.fromkeys(range(10), 7))
    assert (tmp_path / "a.zip").stat().st_size - before < 2 * 100_000 + 10_000


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array(["a\0b", "c", ""]), ["a\0b", "c", ""]),
        (np.array([b"a\0b", b"c", b""]), [b"a\0b", b"c", b""]),
        (
            np.array([0, 1, "NaT"], "M8[10s]"),
            [dt.datetime(1970, 1, 1), dt.datetime(1970, 1, 1, 0, 0, 10), None],
        ),
        (np.array([1, 2, 3], "m8[7s]"), [dt.timedelta(seconds=7 * k) for k in (1, 2, 3)]),
        (np.array([1, 2, "NaT"], "M8[3D]"), [dt.date(1970, 1, 4), dt.date(1970, 1, 7), None]),
        (np.array([1, "NaT", -1], "M8[D]"), [dt.date(1970, 1, 2), None, dt.date(1969, 12, 31)]),
        (np.array([1, 2, 3], ">M8[s]"), [dt.datetime(1970, 1, 1, 0, 0, k) for k in (1, 2, 3)]),
        (np.ma.masked_array([1, 2, 3], [0, 1, 0]), [1, None, 3]),
        ({1: "a", 2: "b", 3: "c"}.keys(), [1, 2, 3]),
    ],
    ids=str,
)
def test_an_array_of_labels_is_what_its_values_are_one_by_one(tmp_path, values, expected):
    cache = CachedDataset.from_cache(make(tmp_path / "a.zip", 3))
    cache.add_labels("z", values)
    assert column(cache, "z") == expected


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.array([2**40, 2, 3], "M8[D]"), LabelError, "outside the years that 32-bit days reach"),
        (np.array(["\ud800", "c", "d"]), LabelError, "not UTF-8"),
        ({3, 1, 2}, OptionError, "got a set; give one value per sample"),
        (frozenset("abc"), OptionError, "got a frozenset; give one value per sample"),
        (torch.zeros(3).to_sparse(), LabelError, "is no tensor for numpy"),
        (
            Later(lambda: pd.Series(pd.period_range("2020-01", periods=3, freq="M"))),
            LabelError,
            "pandas.period",
        ),
    ],
    ids=["far days", "surrogates", "set", "frozenset", "sparse", "periods"],
)
def test_what_has_no_order_or_no_column_type_is_refused(tmp_path, values, error, message):
    cache = CachedDataset.from_cache(make(tmp_path / "a.zip", 3))
    with pytest.raises(error, match=message):
        cache.add_labels("z", made(values))
    assert "z" not in cache.labels


def test_a_condition_that_nobody_has_a_value_of_chooses_nothing(tmp_path):
    cache = CachedDataset.from_cache(make(tmp_path / "a.zip", 3))
    cache.add_labels("flag", [None] * 3)
    assert len(cache.filter("flag")) == len(cache.filter("not flag")) == 0
