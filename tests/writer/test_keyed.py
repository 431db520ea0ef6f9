"""A source with keys is filled again by what is new alone, and its archive has its order."""

import enum
import importlib
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest
import torch

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError, OptionError, StaleCacheError
from edcache.errors import CorruptArchiveError, MissingSampleError, UnknownLabelError
from edcache.reader import Reader
from edcache.writer.appender import Appender
from tests.conformance import reference
from tests.kit.damage import flipped
from tests.kit.likeness import same
from tests.kit.range_server import serving
from tests.kit.scale import scaled
from tests.kit.systems import System, child_environ, replace_system

# The room has a function of this name.
filling = importlib.import_module("edcache.writer.fill")


class Named:
    """Samples by name; a line in `log` for each that is computed."""

    def __init__(self, log, names, revisions=None, setting=1000):
        self._log, self.names, self.setting = log, list(names), setting
        self.revisions = [(revisions or {}).get(name, 0) for name in self.names]

    def __len__(self):
        return len(self.names)

    def sample_key(self, index):
        return self.names[index]

    def sample_version(self, index):
        return self.revisions[index]

    def __getitem__(self, index):
        with open(self._log, "a") as file:
            file.write(f"{self.names[index]}\n")
        return value(self.names[index], self.revisions[index], self.setting)


class Bulk(Named):
    """The same in batches, with all keys at once, and no single one."""

    def sample_keys(self):
        return np.array(self.names, object)

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def value(name, revision, setting=1000):
    return {"x": torch.full((len(name),), setting + revision), "name": name, "label": len(name) % 3}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


def filled(source, path, **options):
    options |= {"in_memory_keys": ["label"], "progress": False, "spot_check": False}
    return CachedDataset(source, path, **options)


def take_calls(log):
    calls = sorted(log.read_text().split())
    log.write_text("")
    return calls


def check(ds, names, revisions):
    assert len(ds) == len(names)
    assert ds.complete
    for index, name in enumerate(names):
        assert same(ds[index], value(name, revisions.get(name, 0)))
    assert ds.labels.to_list("key") == list(ds.keys) == list(names)
    assert ds.labels.to_list("label") == [len(name) % 3 for name in names]
    for name in {*names}:
        assert ds.indices_of([name]) == [list(names).index(name)]
        assert ds.by_key(name)["name"] == name
        assert name in ds.keys


@pytest.mark.parametrize("source", [Named, Bulk])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_history_of_edits_computes_what_is_new_alone(tmp_path, log, source, workers):
    draw, path = random.Random(f"{source}{workers}"), tmp_path / "a.zip"
    there, revisions = set(), {}
    for _ in range(scaled(60, 8)):
        names = [f"{draw.choice('abcdefgh')}{'x' * draw.randrange(4)}" for _ in range(draw.randrange(30))]
        revisions = {
            name: draw.randrange(2) if draw.random() < 0.2 else revisions.get(name, 0) for name in names
        }
        ds = filled(source(log, names, revisions), path, num_workers=workers)
        wanted = {(name, revisions[name]) for name in names}
        assert take_calls(log) == sorted(name for name, _ in wanted - there)
        there = wanted
        check(ds, names, revisions)
        check(CachedDataset.from_cache(path), names, revisions)
        assert edcache.verify(path).problems == []
        walked, listed = reference.walk(path), reference.read_zip(path)
        assert (walked.records, walked.labels, walked.length) == (listed.records, listed.labels, len(names))
        assert sorted(tmp_path.iterdir()) == [path, log]


def test_the_same_source_computes_and_writes_nothing(tmp_path, log):
    path = tmp_path / "a.zip"
    filled(Named(log, "abc"), path)
    before = path.read_bytes()
    take_calls(log)
    check(filled(Named(log, "abc"), path), "abc", {})
    assert (take_calls(log), path.read_bytes()) == ([], before)


def test_an_open_reader_keeps_the_old_state_until_it_refreshes(tmp_path, log):
    path = tmp_path / "a.zip"
    filled(Named(log, ["a", "bb", "ccc"]), path)
    old = CachedDataset.from_cache(path)
    filled(Named(log, ["ccc", "new", "a"]), path)
    assert [old[i]["name"] for i in range(3)] == ["a", "bb", "ccc"]
    assert old.refresh()
    check(old, ["ccc", "new", "a"], {})


def test_a_setting_of_the_source_makes_the_archive_stale(tmp_path, log):
    path = tmp_path / "a.zip"
    filled(Named(log, "abc"), path)
    with pytest.raises(StaleCacheError, match="attribute setting: 1000 in the archive, 2000 now"):
        filled(Named(log, "abcd", setting=2000), path)


def test_a_list_that_appears_or_goes_is_no_setting_of_samples_with_keys(tmp_path, log):
    path = tmp_path / "a.zip"
    filled(Named(log, "abc"), path)
    for names, notes in (("abcd", [1, 2, 3, 4]), ("abcde", None), ("abcdef", [1, 2, 3])):
        source = Named(log, names)
        if notes is not None:
            source.notes = notes
        assert len(filled(source, path)) == len(names)


class Plain:
    """Samples with keys and without versions, which are read from attributes with one value a sample."""

    def __init__(self, files, targets):
        self.files, self.targets = files, targets

    def __len__(self):
        return len(self.files)

    def sample_key(self, index):
        return ("file", self.files[index])

    def __getitem__(self, index):
        return {"y": self.targets[index], "n": self.files[index]}


@pytest.mark.parametrize(
    "form",
    [list, np.array, torch.tensor, lambda rows: np.array(rows, ">i4"), lambda rows: np.array(rows)[:, None]],
)
def test_without_a_version_known_samples_stay_and_one_that_is_compared_tells_that_it_changed(tmp_path, form):
    path = tmp_path / "a.zip"
    filled = CachedDataset(Plain(["a", "b", "c"], form([1, 2, 3])), path, progress=False)
    assert filled.labels.to_list("version") == [""] * 3
    filled = CachedDataset(Plain(["b", "a", "c", "d"], form([2, 1, 3, 4])), path, progress=False)
    assert [sample["n"] for sample in filled] == ["b", "a", "c", "d"]
    assert [int(np.ravel(sample["y"])[0]) for sample in filled] == [2, 1, 3, 4]
    assert filled.by_key(("file", "c"))["n"] == "c"
    for names, targets in (("bacd", [2, 1, 7, 4]), ("bacde", [2, 1, 7, 4, 5])):
        with pytest.raises(StaleCacheError, match="sample 2 is another one now: field y"):
            CachedDataset(Plain([*names], form(targets)), path, progress=False, spot_check=4)


def test_a_refill_without_versions_computes_new_samples_and_one_known_one(path, log):
    """Also where the source holds its keys: a list of these says nothing of known samples."""

    class Pages:
        def __init__(self, names):
            self.names, self._sizes = names, {name: len(name) for name in names}

        def __len__(self):
            return len(self.names)

        def sample_key(self, index):
            return self.names[index]

        def __getitem__(self, index):
            with open(log, "a") as file:
                file.write(f"{self.names[index]}\n")
            return {"length": self._sizes[self.names[index]]}

    names = [f"k{k}" for k in range(100)]
    CachedDataset(Pages(names), path, progress=False)
    for now, new in ((["new", *names], ["new"]), (["new", *names][::-1], []), (names, [])):
        take_calls(log)
        ds = CachedDataset(Pages(now), path, progress=False)
        calls = take_calls(log)
        assert {*new} <= {*calls}
        assert len(calls) <= len(new) + 1
        assert [sample["length"] for sample in ds] == [*map(len, now)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([1.5, 2.5, 3.5], r"1\.5 is a float \(1\.5\); a key is text, bytes, an int or a tuple of these"),
        ([None, "a", "b"], "None is None; a key is text"),
        ([True, 1, 2], r"True is a bool \(True\); a key is text"),
        ([("a", np.arange(3)), (), ()], r"the part <ndarray> of the key \('a', <ndarray>\) is a ndarray of"),
        ([("a", (torch.ones(1),)), (), ()], r"the part <Tensor> of the key \('a', \(<Tensor>,\)\) is"),
        ([(), ("a", 1.5), ()], r"the part 1\.5 of the key \('a', 1\.5\) is a float"),
        ([(), (None,), ()], r"the part None of the key \(None,\) is None"),
        ([(), (True, 1), ()], r"the part True of the key \(True, 1\) is a bool"),
    ],
)
def test_what_is_no_key_is_refused(tmp_path, log, keys, message):
    source = Named(log, ["a", "b", "c"])
    source.sample_key = lambda index: keys[index]
    with pytest.raises(OptionError, match=message):
        filled(source, tmp_path / "a.zip")


@pytest.mark.parametrize(
    "keys",
    [
        [b"\xff", b"", b"\0a"],
        [-(2**63), 2**63 - 1, 0],
        [(1, "a"), (1, "b"), (1, "a", 2)],
        [("\0é\ud800", (b"\xff", ((), -(2**70)))), ("",), (b"",)],
        [1, "a", b"a"],
        [2**70, 1, -1],
        [2**63, 2**64, 2**64 - 1],
        ["\ud800", "\0", "\0('a',)"],
        [("a",), "('a',)", "\0 5"],
    ],
)
def test_keys_of_each_kind_are_found(tmp_path, log, keys):
    source = Named(log, ["a", "b", "c"])
    source.sample_key = lambda index: keys[index]
    ds = CachedDataset(source, tmp_path / "a.zip", progress=False, fingerprint=False)
    ds = CachedDataset.from_cache(ds.path)
    assert [ds.by_key(key)["name"] for key in keys] == ["a", "b", "c"]
    assert ds.indices_of(keys[::-1]).tolist() == [2, 1, 0]
    assert list(ds.keys) == keys
    for view in (ds, ds[::-1]):
        assert all(key in view.keys for key in keys)
        others = [
            "a",
            b"a",
            5,
            (1,),
            (),
            *map(str, keys),
            *map(repr, keys),
            *(repr(key).encode() for key in keys),
        ]
        assert not [other for other in others if other in view.keys and other not in keys]
    with pytest.raises(UnknownLabelError, match="has the key 'nobody'"):
        ds.by_key("nobody")
    with pytest.raises(UnknownLabelError, match=r"has the key \(7, \('b',\)\)"):
        ds.by_key((7, ("b",)))
    with pytest.raises(OptionError, match="a key is text, bytes, an int or a tuple"):
        ds.by_key(1.5)


def test_samples_that_fail_are_absent_and_tried_again(tmp_path, log):
    class Failing(Named):
        bad = ("bb",)

        def __getitem__(self, index):
            sample = super().__getitem__(index)
            if self.names[index] in self.bad:
                raise ValueError("bad")
            return sample

    path = tmp_path / "a.zip"
    filled(Failing(log, ["a", "ccc"]), path)
    ds = filled(Failing(log, ["bb", "ccc", "d", "bb"]), path, on_error="skip")
    assert ds.missing.tolist() == [0, 3]
    assert [failure.index for failure in ds.errors] == [0, 3]
    assert (ds[1]["name"], ds[2]["name"]) == ("ccc", "d")
    take_calls(log)
    ds.close()
    Failing.bad = ()
    check(filled(Failing(log, ["bb", "ccc", "d", "bb"]), path), ["bb", "ccc", "d", "bb"], {})
    assert take_calls(log) == ["bb"]


def test_added_labels_stay_with_their_samples(tmp_path, log):
    path = tmp_path / "a.zip"
    filled(Named(log, ["a", "bb", "ccc"]), path).add_labels("grade", ["A", "B", "C"])
    ds = filled(Named(log, ["ccc", "new", "a"]), path)
    assert ds.labels.to_list("grade") == ["C", None, "A"]


def test_a_label_column_has_keys_too_and_views_and_joined_archives_find_theirs(tmp_path):
    for name in "ab":
        with CacheWriter(tmp_path / f"{name}.zip", in_memory_keys=["key", "odd"]) as writer:
            writer.extend({"key": f"{name}{i % 7}", "odd": i % 2} for i in range(10))
    first, second = (CachedDataset.from_cache(tmp_path / f"{name}.zip") for name in "ab")
    both = edcache.concat([first, second.filter(odd=1)])
    assert both.indices_of(["a3", "b3", "b1"]).tolist() == [3, 11, 10]
    assert "b4" not in both.keys
    # The first sample of a0 is even.
    assert first.filter(odd=1).by_key("a0") == {"key": "a0", "odd": 1}
    assert first[::-1].indices_of(["a1"]) == [1]
    assert 5 not in first.filter(odd=1).keys
    with pytest.raises(OptionError, match="has no keys"):
        first.drop_labels("key").by_key("a0")
    first.add_labels("key", list(range(10)))
    assert first.by_key(9)["key"] == "a2"


def test_an_archive_that_is_not_sealed_finds_its_samples(tmp_path, log):
    path = tmp_path / "a.zip"
    source = Named(log, [f"n{i}" for i in range(100)])
    lazy = CachedDataset(source, path, lazy=True, progress=False)
    assert lazy[40]["name"] == lazy[60]["name"].replace("6", "4")
    lazy.close()
    ds = CachedDataset.from_cache(path, allow_partial=True)
    assert ds.indices_of(["n60", "n40"]).tolist() == [60, 40]
    assert "n1" not in ds.keys


def test_lazy_takes_no_equal_keys_and_no_other_samples(tmp_path, log):
    with pytest.raises(OptionError, match="without two samples of one key"):
        filled(Named(log, "aba"), tmp_path / "a.zip", lazy=True)
    filled(Named(log, "ab"), tmp_path / "a.zip")
    with pytest.raises(StaleCacheError, match="fill it without lazy=True"):
        filled(Named(log, "abc"), tmp_path / "a.zip", lazy=True)


def test_save_of_a_filled_again_archive_keeps_its_order_and_drops_the_rest(tmp_path, log):
    path = tmp_path / "a.zip"
    filled(Named(log, [f"n{i}" for i in range(50)]), path)
    names = [f"n{i}" for i in range(45, 5, -3)]
    filled(Named(log, names), path).save(tmp_path / "b.zip")
    check(CachedDataset.from_cache(tmp_path / "b.zip"), names, {})
    assert (tmp_path / "b.zip").stat().st_size < path.stat().st_size


_KILLED = """
import random, sys, time
import edcache
from tests.writer.test_keyed import Bulk, Named

log, path, seed, kind = sys.argv[1:]

class Slow({"Named": Named, "Bulk": Bulk}[kind]):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        time.sleep(0.004)
        return sample

if __name__ == "__main__":
    draw = random.Random(int(seed))
    names = [f"n{draw.randrange(400)}" for _ in range(300)]
    source = Slow(log, names, {f"n{i}": i % 3 for i in range(400)})
    edcache.CachedDataset(source, path, progress=False, in_memory_keys=["label"], num_workers=2, batch_size=8)
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Named", "Bulk"])
def test_fills_that_are_killed_lose_little_also_if_the_source_changes_meanwhile(tmp_path, log, kind):
    path, script, draw, kills = tmp_path / "a.zip", tmp_path / "fill.py", random.Random(kind), 0
    script.write_text(_KILLED)
    wanted = set()
    for history in range(6):
        pair = [sys.executable, str(script), str(log), str(path), str(history), kind]
        running = [
            subprocess.Popen(pair, start_new_session=True, stderr=subprocess.PIPE, env=child_environ())
            for _ in range(2)
        ]
        is_last = history == 5
        if not is_last:
            time.sleep(draw.uniform(2, 5))
            for one in running:
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
                    kills += 3
        errors = [one.communicate()[1] for one in running]
        assert all(one.returncode in ((0,) if is_last else (0, -signal.SIGKILL)) for one in running), errors
        names = random.Random(history)
        names = [f"n{names.randrange(400)}" for _ in range(300)]
        wanted |= {*names}
    check(CachedDataset.from_cache(path), names, {f"n{i}": i % 3 for i in range(400)})
    assert edcache.verify(path).problems == []
    calls = take_calls(log)
    assert {*names} <= {*calls} <= wanted


def test_a_label_of_the_same_name_is_refused(tmp_path, log):
    with pytest.raises(
        OptionError, match='in_memory_keys names "key", a column that the keys of the source make'
    ):
        CachedDataset(Named(log, "ab"), tmp_path / "a.zip", in_memory_keys={"key": "label"})


def test_an_executor_gets_the_keys_of_its_samples_alone(tmp_path, log):
    sizes = []

    class Measured(ThreadPoolExecutor):
        def submit(self, function, job, indices):
            sizes.append(len(pickle.dumps(job.spec)))
            return super().submit(function, job, indices)

    names = [f"{'long ' * 20}{i}" for i in range(2_000)]
    with Measured(2) as executor:
        check(filled(Named(log, names), tmp_path / "a.zip", executor=executor), names, {})
        names = [*names[500:], "one", "more"]
        check(filled(Named(log, names), tmp_path / "a.zip", executor=executor), names, {})
    assert len(sizes) > 20
    assert max(sizes) < 20_000


def test_shared_memory_and_urls_are_filled_again(log):
    with (
        filled(Named(log, ["a", "bb"]), "shm://keyed"),
        filled(Named(log, ["c", "a", "c"]), "shm://keyed") as ds,
    ):
        check(ds, ["c", "a", "c"], {})
    assert take_calls(log) == ["a", "bb", "c"]
    filled(Named(log, ["a", "bb"]), "memory://keyed/a.zip").close()
    check(filled(Named(log, ["c", "bb", "c"]), "memory://keyed/a.zip"), ["c", "bb", "c"], {})
    assert take_calls(log) == ["a", "bb", "c"]


def test_changes_tell_what_a_fill_would_compute(tmp_path, log):
    draw, path = random.Random(0), tmp_path / "a.zip"
    before = {}
    for _ in range(scaled(40, 6)):
        names = draw.sample([f"n{i}" for i in range(30)], draw.randrange(20))
        revisions = {name: draw.randrange(2) for name in names}
        source = Named(log, names, revisions)
        if path.exists():
            told = edcache.changes(CachedDataset.from_cache(path), source)
            assert {names[k] for k in told.new.tolist()} == {*names} - {*before}
            changed = {name for name in names if name in before and before[name] != revisions[name]}
            assert {names[k] for k in told.changed.tolist()} == changed
            assert {[*before][k] for k in told.gone.tolist()} == {*before} - {*names}
            moved = {n for k, n in enumerate(names) if n in before and [*before].index(n) != k} - changed
            assert {names[k] for k in told.moved.tolist()} == moved
            assert str(told).startswith(f"{len(told.new)} new")
        filled(source, path)
        before = {name: revisions[name] for name in names}
    with pytest.raises(OptionError, match=r"the source has no sample_key\(index\)"):
        edcache.changes(CachedDataset.from_cache(path), [1, 2])


def test_a_list_with_keys_is_a_source(tmp_path):
    class Rows(list):
        def sample_key(self, index):
            return self[index]["name"]

        def sample_version(self, index):
            return self[index]["y"]

    path = tmp_path / "a.zip"
    CachedDataset(Rows([{"name": "a", "y": 1}, {"name": "b", "y": 2}]), path, progress=False)
    rows = Rows([{"name": "c", "y": 5}, {"name": "b", "y": 3}, {"name": "a", "y": 1}])
    told = edcache.changes(CachedDataset.from_cache(path), rows)
    assert (told.new.tolist(), told.changed.tolist(), told.moved.tolist(), told.gone.tolist()) == (
        [0],
        [1],
        [2],
        [],
    )
    assert list(CachedDataset(rows, path, progress=False)) == rows


@pytest.mark.parametrize("revisions", [[1, 2, 1, 1], [1, 1, 1, 1], [1, 1, 2, 2]])
def test_a_source_that_repeats_its_keys_and_did_not_change_has_no_changes(path, revisions):
    class Repeated(Named):
        def __init__(self, names, revisions):
            self.names, self.revisions, self.setting, self._log = names, revisions, 1000, os.devnull

    source = Repeated(["a", "a", "b", "a"], revisions)
    ds = filled(source, path)
    told = edcache.changes(ds, source)
    assert str(told) == "0 new\n0 changed\n0 moved\n0 gone"
    other = Repeated(["c", "a", "a", "b"], [0, revisions[0], 5, revisions[2]])
    assert str(edcache.changes(ds, other)).splitlines()[::3] == ["1 new: 'c'", "0 gone"]
    assert edcache.changes(ds, other).changed.tolist() == [2]
    filled(other, path)
    assert str(edcache.changes(CachedDataset.from_cache(path), other)) == str(told)


def test_changes_of_an_empty_archive_are_all_new(path, log):
    ds = filled(Named(log, []), path)
    assert str(edcache.changes(ds, Named(log, "ab"))) == "2 new: 'a', 'b'\n0 changed\n0 moved\n0 gone"
    filled(Named(log, "ab"), path)
    assert edcache.changes(CachedDataset.from_cache(path), Named(log, [])).gone.tolist() == [0, 1]


class Broken(Bulk):
    """One whose sample "bad" raises, hangs, kills its process, cannot be stored, or has no label."""

    bad = "raises"

    def __getitem__(self, index):
        if self.names[index] != "bad":
            return super().__getitem__(index)
        if self.bad == "raises":
            raise ValueError("no such index 0")
        if self.bad == "hangs":
            time.sleep(60)
        if self.bad == "dies":
            os._exit(3)
        return {"x": object(), "label": 1} if self.bad == "stores" else {"x": 1}


BAD = {
    "raises": r"the source raised at index 6 \(key 'bad'\): ValueError: no such index 0; ",
    "hangs": r"sample 6 \(key 'bad'\) took longer than timeout=0.5",
    "dies": r"sample 6 \(key 'bad'\) ended its process 3 times",
    "stores": r"sample 6 \(key 'bad'\): sample\[\"x\"\]: cannot store",
    "labels": r"label \"label\": sample 6 \(key 'bad'\) has no field",
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("names", [[], ["k0"], [*"aabbcd"]], ids=["new", "again", "repeated"])
def test_errors_name_the_archive_and_the_sample_of_the_source(path, log, bad, on_error, names, caplog):
    source = type("Broken", (Broken,), {"bad": bad})
    options = {
        "on_error": on_error,
        "num_workers": 2 if bad == "dies" else 0,
        "multiprocessing_context": "fork",
    }
    options |= {"timeout": 0.5} if bad == "hangs" else {}
    if len(names) == 1:
        filled(source(log, names), path, fingerprint=False)
    source = source(log, [*(names if len(names) > 1 else [f"k{i}" for i in range(6)]), "bad"])

    def fill():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return filled(source, path, fingerprint=False, **options)

    if on_error == "raise":
        with pytest.raises(EdcacheError, match=f"^{path}: .*{BAD[bad]}") as caught:
            fill()
        assert (caught.value.path, "edcache.keys" in str(caught.value)) == (str(path), False)
        assert caught.value.index == (None if bad == "dies" else 6)
    else:
        ds = fill()
        (failure,) = ds.errors
        assert failure.index == 6
        text = (
            BAD[bad]
            .removeprefix(r"the source raised at index 6 \(key 'bad'\): ValueError: ")
            .removesuffix("; ")
        )
        assert re.search(text, failure.message)
        assert (len(ds), ds.missing.tolist()) == (7, [6])
        assert [ds[i]["name"] for i in range(6)] == source.names[:6]
    assert "edcache.keys" not in caplog.text
    assert bad != "dies" or f"{path}: the process that computed sample 6 (key 'bad') ended" in caplog.text


def test_a_batch_that_raises_is_named_by_the_source(path, log):
    filled(Bulk(log, "abc"), path)
    source = type("Bulk", (Broken,), {"__getitems__": Bulk.__getitems__})(log, [*"abc", "d", "bad"])
    with pytest.warns(
        RuntimeWarning, match=rf"^{path}: a batch of 2 samples, from index 3 \(key 'd'\) on, raised"
    ):
        filled(source, path, fingerprint=False, on_error="skip", batch_size=2)


def test_a_map_of_samples_that_are_missing_names_one(path, log):
    ds = filled(Broken(log, ["a", "bad", "b"]), path, on_error="skip")
    other = path.with_name("m.zip")
    with pytest.raises(
        MissingSampleError, match=r"a\.zip.*: sample 1 is missing, and so is its key; take the others"
    ):
        edcache.map(lambda sample: sample, ds, other, progress=False, on_error="skip")
    there = ds[np.setdiff1d(np.arange(len(ds)), ds.missing)]
    assert list(edcache.map(lambda sample: sample, there, other, progress=False).keys) == ["a", "b"]


def test_samples_that_repeat_are_there_beside_one_that_failed(path, log):
    names = [*"aab", "bad", "b", "bad", "c"]
    for _ in range(2):
        ds = filled(Broken(log, names), path, on_error="skip")
        assert [ds[i]["name"] for i in (0, 1, 2, 4, 6)] == [*"aabbc"]
        assert (len(ds), ds.missing.tolist(), [one.index for one in ds.errors]) == (7, [3, 5], [3, 5])
        assert list(ds.keys) == ["a", "a", "b", None, "b", None, "c"]
        assert take_calls(log) == ([*"abc"] if _ == 0 else [])
    sound = type("Broken", (Named,), {})
    check(filled(sound(log, names), path), names, {})
    assert take_calls(log) == ["bad"]


def test_a_fill_whose_archive_gets_another_order_meanwhile_begins_again(path, log):
    class Disturbed(Named):
        def __getitem__(self, index):
            if self.names[index] == "d" and not disturbed:
                disturbed.append(1)
                filled(Named(log, ["x", "b"]), path, fingerprint=False)
            return super().__getitem__(index)

    disturbed = []
    names = [*"abcdef"]
    check(filled(Disturbed(log, names), path, fingerprint=False, chunk_size=1), names, {})
    assert disturbed
    assert edcache.verify(path).problems == []


def test_what_another_process_published_meanwhile_is_not_computed_again(path, log, monkeypatch):
    filled(Named(log, "ab"), path)
    check_before, begun = filling.check_before, []

    def late(*arguments):
        if not begun:
            begun.append(1)
            filled(Named(log, "abcd"), path)
        return check_before(*arguments)

    monkeypatch.setattr(filling, "check_before", late)
    take_calls(log)
    check(filled(Named(log, "abcd"), path), "abcd", {})
    assert take_calls(log) == ["c", "d"]
    assert sorted(path.parent.iterdir()) == [path, log]


def test_a_worker_that_opens_the_archive_while_another_process_seals_it_computes_nothing(
    path, log, monkeypatch
):
    filled(Named(log, "ab"), path)
    recover, calls = Appender.recover, []

    def late(appender):
        calls.append(appender)
        if len(calls) == 2:  # of the worker, which has opened the archive
            filled(Named(log, "abcd"), path)
        recover(appender)

    monkeypatch.setattr(Appender, "recover", late)
    take_calls(log)
    check(filled(Named(log, "abcd"), path, num_workers=1, multiprocessing_context="fork"), "abcd", {})
    assert take_calls(log) == ["c", "d"]
    assert sorted(path.parent.iterdir()) == [path, log]


_AGAIN = """
import os, sys, time
import edcache
from tests.writer.test_keyed import Named

class Slow(Named):
    def __getitem__(self, index):
        time.sleep(0.001)
        return super().__getitem__(index)

if __name__ == "__main__":
    log, path, meeting, workers = sys.argv[1:]
    options = {"in_memory_keys": ["label"], "num_workers": int(workers), "spot_check": False}
    for turn in range(1, 13):
        open(f"{meeting}/{turn}-{os.getpid()}", "w").close()
        while sum(name.startswith(f"{turn}-") for name in os.listdir(meeting)) < 3:
            time.sleep(0.001)
        source = Slow(log, [f"n{i}" for i in range(10 * turn)])
        edcache.CachedDataset(source, path, progress=False, **options)
"""


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_processes_that_fill_again_at_once_compute_each_sample_once(tmp_path, log, workers):
    script, path, meeting = tmp_path / "again.py", tmp_path / "folder" / "a.zip", tmp_path / "meeting"
    script.write_text(_AGAIN)
    meeting.mkdir()
    command = [sys.executable, *map(str, (script, log, path, meeting, workers))]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, env=child_environ()) for _ in range(3)]
    assert [one.communicate()[1] for one in running] == [b""] * 3
    names = [f"n{i}" for i in range(120)]
    check(CachedDataset.from_cache(path), names, {})
    assert take_calls(log) == sorted(names)
    assert [*path.parent.iterdir()] == [path]


@pytest.fixture
def kill_before_seal(monkeypatch):
    """Let a fill end as if it were killed when its archive is to be sealed in the order of the source."""

    @contextmanager
    def killing():
        def killed(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(filling, "seal", killed)
            yield

    return killing


def test_samples_of_an_older_archive_at_the_path_are_not_taken(tmp_path, log, kill_before_seal):
    path, names = tmp_path / "a.zip", ["a", "bb"]
    filled(Named(log, names), path)
    with kill_before_seal():
        filled(Named(log, [*names, "old"]), path)
    filled(Named(log, names, setting=2000), path, keep_existing=False)
    ds = filled(Named(log, [*names, "old"], setting=2000), path)
    assert [int(sample["x"][0]) for sample in ds] == [2000] * 3
    assert sorted(tmp_path.iterdir()) == [path, log]


class Scaled(Named):
    def __init__(self, log, names, scale):
        super().__init__(log, names)
        self._scale = scale

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return {**sample, "x": sample["x"] * self._scale}


def test_samples_of_a_killed_refill_that_are_made_in_another_way_are_computed_again(
    path, log, kill_before_seal
):
    filled(Scaled(log, ["a"], 1), path)
    with kill_before_seal():
        filled(Scaled(log, ["a", "new", "newer"], 1), path)
    take_calls(log)
    ds = filled(Scaled(log, ["new", "a", "newest"], 2), path)
    assert take_calls(log) == ["new", "newest"]
    assert [int(sample["x"][0]) for sample in ds] == [2000, 1000, 2000]
    with kill_before_seal():
        filled(Scaled(log, ["a", "more", "most"], 2), path)
    take_calls(log)
    assert [int(one["x"][0]) for one in filled(Scaled(log, ["most", "a", "other"], 2), path)] == [
        2000,
        1000,
        2000,
    ]
    assert take_calls(log) == ["other"]


def test_labels_can_be_added_behind_a_refill_that_was_killed(path, log, kill_before_seal):
    filled(Named(log, ["a"]), path)
    with kill_before_seal():
        filled(Named(log, ["new", "a"]), path)
    take_calls(log)
    with CachedDataset.from_cache(path) as ds:
        ds.add_labels("extra", [7])
        assert (len(ds), ds.labels.to_list("extra")) == (1, [7])
    ds = filled(Named(log, ["new", "a"]), path)
    assert (take_calls(log), ds.labels.to_list("extra")) == ([], [None, 7])
    check(ds, ["new", "a"], {})


def test_a_refill_that_is_killed_before_its_seal_leaves_the_old_state_and_its_samples(
    tmp_path, log, kill_before_seal
):
    path, names = tmp_path / "a.zip", ["c", "b" * 50_000, "a"]
    filled(Named(log, ["a"]), path)
    before = path.read_bytes()
    with kill_before_seal():
        filled(Named(log, names), path)
    assert path.read_bytes().startswith(before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(CachedDataset.from_cache(path), ["a"], {})
    assert edcache.verify(path).sound
    take_calls(log)
    check(filled(Named(log, names), path), names, {})
    assert take_calls(log) == []
    assert sorted(tmp_path.iterdir()) == [path, log]


class Watched(System):
    """What a kill leaves before each change of a file in a folder; one state for each."""

    def __init__(self, folder):
        self.folder, self.states = folder, []

    def look(self):
        files = {path: path.read_bytes() for path in self.folder.iterdir()}
        if not self.states or self.states[-1] != files:
            self.states.append(files)


for _name in ("pwrite", "truncate", "remove", "replace", "sync"):

    def _watched(self, *arguments, name=_name):
        self.look()
        return getattr(System, name)(self, *arguments)

    setattr(Watched, _name, _watched)


@pytest.mark.parametrize("failing", [[], ["bb"]], ids=["sound", "one fails"])
def test_a_kill_at_any_moment_of_a_refill_leaves_the_old_state_or_the_new(tmp_path, log, failing):
    class Failing(Named):
        def __getitem__(self, index):
            if self.names[index] in failing:
                raise ValueError("it has no image")
            return super().__getitem__(index)

    def fill(names):
        return filled(Failing(log, names), path, on_error="skip_final", chunk_size=2)

    def read():
        with CachedDataset.from_cache(path, allow_partial=True) as ds:
            found = {ds.labels.to_list("key")[k]: ds[k] for k in np.setdiff1d(range(len(ds)), ds.missing)}
            assert all(same(sample, value(name, 0)) for name, sample in found.items())
            return list(found), len(ds)

    folder = tmp_path / "folder"
    folder.mkdir()
    path, old, new = folder / "a.zip", ["a", "ccc", "dd"], ["e", "dd", "bb", "a", "fff", "g", "hh"]
    fill(old)
    with replace_system(Watched(folder)) as system:
        fill(new)
    system.look()
    sound = [name for name in new if name not in failing]
    states = {(tuple(old), 3): 0, (tuple(sound), 7): 0}
    for files in system.states:
        for file in folder.iterdir():
            file.unlink()
        for file, data in files.items():
            file.write_bytes(data)
        names, length = read()
        states[tuple(names), length] += 1  # KeyError: it is neither
        parts = [one.payload for one in reference.entries(path) if one.fields["kind"] == reference.PART]
        kept = sum(int.from_bytes(payload[:8], "little") for payload in parts)
        take_calls(log)
        fill(new)
        computed = take_calls(log)
        assert set(computed) <= {*sound} - {*old}
        assert len(computed) == len({*sound} - {*old}) - kept
        assert read() == (sound, 7)
        assert edcache.verify(path).problems == []
        assert reference.walk(path).records == reference.read_zip(path).records
        assert list(folder.iterdir()) == [path]
    assert all(states.values()), states


def test_new_samples_of_a_refill_are_parts_before_its_seal(tmp_path, log):
    path = tmp_path / "a.zip"
    filled(Named(log, ["a", "bb"]), path)
    filled(Named(log, ["bb", "ccc", "a", "dddd"]), path)
    kinds = [entry.fields["kind"] for entry in reference.entries(path)]
    first_root = kinds.index(reference.ROOT)
    assert kinds[: first_root + 1].count(reference.CHUNK) == 1
    behind = kinds[first_root + 1 :]
    assert reference.CHUNK not in behind
    assert behind[0] == reference.PART
    assert reference.PART not in behind[behind.index(reference.INDEX) :]
    assert behind[-1] == reference.ROOT
    names = [
        entry.fields["name"] for entry in reference.entries(path) if entry.fields["kind"] == reference.PART
    ]
    with zipfile.ZipFile(path) as archive:
        assert set(names) <= set(archive.namelist())
        assert archive.testzip() is None


@pytest.mark.parametrize("is_told", [False, True])
def test_without_a_fingerprint_keys_are_compared_alone(tmp_path, log, is_told):
    path = tmp_path / "a.zip"
    filled(Named(log, "abc"), path, fingerprint=is_told)
    before = path.read_bytes()
    filled(Named(log, "abc", setting=2000), path, fingerprint=False)
    assert path.read_bytes() == before
    take_calls(log)
    filled(Named(log, "abcd", setting=2000), path, fingerprint=False)
    assert take_calls(log) == ["d"]
    if is_told:
        with pytest.raises(StaleCacheError, match="attribute setting: 1000 in the archive, 2000 now"):
            filled(Named(log, "abcd", setting=2000), path)
    else:
        with pytest.warns(RuntimeWarning, match="says nothing about the source"):
            filled(Named(log, "abcd", setting=2000), path)


def test_a_wrapper_that_hands_on_attributes_has_no_keys(tmp_path, log):
    class Wrapper:
        def __init__(self, inner, indices):
            self.inner, self.indices = inner, indices

        def __len__(self):
            return len(self.indices)

        def __getitem__(self, index):
            return self.inner[self.indices[index]]

        def __getattr__(self, name):
            if name == "inner":
                raise AttributeError(name)
            return getattr(self.inner, name)

    ds = CachedDataset(Wrapper(Named(log, "abc"), [2, 0, 1]), tmp_path / "a.zip", progress=False)
    assert [sample["name"] for sample in ds] == ["c", "a", "b"]
    assert "key" not in ds.labels


@pytest.mark.parametrize("local", [False, None])
@pytest.mark.parametrize("count", [20, 5_000])
def test_damaged_keys_of_a_far_archive_are_an_error(tmp_path, monkeypatch, local, count):
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path / "copies"))
    path = tmp_path / "a.zip"
    with CacheWriter(path, in_memory_keys=["key"]) as writer:
        writer.extend({"key": f"n{i}"} for i in range(count))
    with closing(Reader(path)) as reader:
        place = reader.session._root.keys
    data = flipped(path.read_bytes(), place.offset + place.nbytes // 6)
    with serving(data) as served:
        ds = CachedDataset.from_cache(served.url, local=local)
        with pytest.raises(CorruptArchiveError, match=r"index\.keys"):
            ds.indices_of([f"n{i}" for i in range(count)])


class Mode(enum.Enum):
    A = 1


class Endless:
    def __getitem__(self, i):
        return i

    def __len__(self):
        raise TypeError("no length")


@pytest.mark.parametrize("held", [Mode.A, Endless()], ids=["an enum", "a dataset without a length"])
def test_an_attribute_without_a_length_is_a_setting(path, held):
    class Named:
        def __init__(self):
            self.names, self.held = ["a", "b"], held

        def __len__(self):
            return 2

        def __getitem__(self, i):
            return {"x": i}

        def sample_key(self, i):
            return self.names[i]

    ds = CachedDataset(Named(), path, progress=False)
    assert [ds[i]["x"] for i in range(2)] == [0, 1]


KINDS = {"text": ["1", "2"], "ints": [1, 2], "bytes": [b"1", b"2"], "tuples": [("1",), ("2",)]}


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_keys_of_another_type_are_no_keys_of_the_archive(path, one, other):
    class Named:
        def __init__(self, keys):
            self._keys = keys

        def __len__(self):
            return 2

        def __getitem__(self, i):
            return {"x": i}

        def sample_key(self, i):
            return self._keys[i]

        def sample_version(self, i):
            return 1

    ds = CachedDataset(Named(KINDS[one]), path, progress=False)
    if one == other:
        assert str(edcache.changes(ds, Named(KINDS[other]))).startswith("0 new")
        return
    if {one, other} == {"text", "tuples"}:
        assert str(edcache.changes(ds, Named(KINDS[other]))).startswith("2 new")
        assert list(CachedDataset(Named(KINDS[other]), path, progress=False).keys) == KINDS[other]
        return
    named = {"ints": "ints", "bytes": "bytes", "text": "text, or of", "tuples": "text, or of"}
    for call in (
        lambda: edcache.changes(ds, Named(KINDS[other])),
        lambda: CachedDataset(Named(KINDS[other]), path, progress=False),
    ):
        with pytest.raises(OptionError, match=f"its keys are {named[one]}.*, .* returns {named[other]}"):
            call()
    ds = CachedDataset.from_cache(path)
    assert list(ds.keys) == KINDS[one]
    for view in (ds, ds[::-1]):
        assert [key in view.keys for key in KINDS[other]] == [False, False]


class Mixed(Named):
    """Samples with keys of several types; `names` has these."""

    def __getitem__(self, index):
        with open(self._log, "a") as file:
            file.write(f"{self.names[index]!r}\n".replace(" ", ""))
        return {"key": self.names[index]}


def test_a_history_of_keys_of_several_types_computes_what_is_new_alone(path, log):
    draw, there = random.Random(0), []
    makes = [str, int, lambda n: b"%d" % n, lambda n: (n,), lambda n: (str(n), (n,)), lambda n: f"\0{n}"]
    for _ in range(scaled(60, 8)):
        numbers = [draw.randrange(60) for _ in range(draw.randrange(20))]
        keys = ["text", *(makes[number % 6](number // 6) for number in numbers)]
        source = Mixed(log, keys)
        if there:
            said = str(edcache.changes(CachedDataset.from_cache(path), source)).splitlines()
            new = [position for position, key in enumerate(keys) if key not in there]
            assert said[0].startswith(f"{len(new)} new")
        ds = CachedDataset(source, path, progress=False, spot_check=False)
        known = {repr(key).replace(" ", "") for key in there}
        wanted = {repr(key).replace(" ", "") for key in keys}
        assert take_calls(log) == sorted(wanted - known)
        there = [*ds.keys]
        assert [*zip(map(type, there), there, strict=True)] == [*zip(map(type, keys), keys, strict=True)]
        assert [sample["key"] for sample in ds] == keys
        for view in (ds, ds[::-1]):
            assert [view.by_key(key)["key"] for key in keys] == keys
        assert edcache.verify(path).sound


class Colour(str, enum.Enum):
    RED = "red"


def test_keys_of_numpy_and_of_enums_are_those_of_python(path, log):
    source = Named(log, ["a", "b", "c"])
    given = [(np.int64(3), np.str_("a")), (Colour.RED, np.bytes_(b"x")), (np.uint8(4),)]
    source.sample_key = lambda index: given[index]
    ds = filled(source, path, fingerprint=False)
    assert list(ds.keys) == [(3, "a"), ("red", b"x"), (4,)]
    assert ds.indices_of([*given, *ds.keys]).tolist() == [0, 1, 2, 0, 1, 2]
    take_calls(log)
    given = [*ds.keys]
    filled(source, path, fingerprint=False)
    assert take_calls(log) == []
    given = np.array(["red", "b", "c"])
    assert list(filled(source, path, fingerprint=False, keep_existing=False).keys) == ["red", "b", "c"]


def test_changes_show_tuples(path, log):
    source = Named(log, ["a", "b"])
    source.sample_key = lambda index: (source.names[index], 1)
    ds = filled(source, path, fingerprint=False)
    source.names = ["c", "b"]
    assert str(edcache.changes(ds, source)).splitlines()[::3] == ["1 new: ('c', 1)", "1 gone: ('a', 1)"]


class FailingToday:
    """Samples with keys, of which some cannot be computed today."""

    def __init__(self, names, failing=()):
        self.names, self._failing = names, failing

    def __len__(self):
        return len(self.names)

    def sample_key(self, index):
        return f"key of {self.names[index]}"

    def __getitem__(self, index):
        if self.names[index] in self._failing:
            raise OSError("not today")
        return {"name": self.names[index]}


@pytest.mark.parametrize("on_error", ["skip", "skip_final"])
def test_samples_that_fail_are_passed_over_when_known_ones_are_compared(tmp_path, on_error):
    path, names = tmp_path / "a.zip", [f"n{k}" for k in range(10)]
    CachedDataset(FailingToday(names), path, progress=False)
    source = FailingToday([*names, "new"], names[1:8])
    made = CachedDataset(source, path, on_error=on_error, progress=False)
    assert [sample["name"] for sample in made] == [*names, "new"]
    source = FailingToday([*names, "another"], names)
    with pytest.raises(
        StaleCacheError, match=r"attribute _failing changed, and sample \d+ was not compared: .*not today"
    ):
        CachedDataset(source, path, on_error=on_error, progress=False)
