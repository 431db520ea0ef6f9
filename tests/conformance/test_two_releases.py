"""Two releases on one file: this one, and a later one that writes what this one does not know.

This release never loses, hides or misreads a sample or a label. What it does gives what a dictionary says of all
samples, or raises LaterReleaseError, which names archive and thing, and then no byte has changed. The later release
reads all that both wrote.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from likeness import same
from releases import HARMLESS, OF_HEAD, OF_SAMPLE, THINGS, later_release, using
from scale import SEED, scaled, thinned

import edcache
from edcache.errors import ArchiveError, LaterReleaseError

UPGRADE = ", which a later release of edcache wrote; upgrade edcache"
# By name; the label is "y", and "t" of a later type.
COMMON: dict[str, Any] = {
    "a": {"y": 0, "x": torch.arange(6, dtype=torch.uint8), "t": None},
    "b": {"y": 1, "x": torch.arange(6, dtype=torch.uint8) + 7, "t": None},
    "c": {"y": 2, "x": np.arange(4.0), "t": None, "s": "text é"},
    "d": {"y": 3, "x": np.arange(9.0), "t": None, "s": ""},
    "e": {"y": -1, "t": None, "nested": {"a": [1, (2.5, None)], "b": b"bytes"}},
    "f": {"y": 5, "x": (np.arange(70_000) % 251).astype(np.uint8), "t": None},
}
# Of each the name is that of what this release does not know.
NEW: dict[str, Any] = {
    "leaf": {"y": 7, "x": np.arange(4), "t": dt.time(3, 4, 5)},
    "dtype": {"y": 8, "x": np.arange(3).astype(np.longdouble), "t": None},
    "dtype of torch": {"y": 9, "x": torch.arange(3, dtype=torch.uint8).view(torch.bits8), "t": None},
}
SAMPLES = COMMON | NEW
# Its bytes are as many as a double's elsewhere.
HAS_LONG_DOUBLE = np.dtype(np.longdouble).str == "<f16"
if not HAS_LONG_DOUBLE:  # pragma: no cover - of another platform
    del NEW["dtype"], SAMPLES["dtype"]


def is_sample(found: Any, name: str) -> bool:
    expected = SAMPLES[name]
    if name == "dtype of torch":  # torch compares none of these
        assert found["x"].dtype == torch.bits8
        found, expected = ({**one, "x": one["x"].view(torch.uint8)} for one in (found, expected))
    return same(found, expected)


class Source:
    """The samples of these names, with their names as keys or not."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __edcache_fingerprint__(self) -> str:
        return "names"

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        return SAMPLES[self.names[index]]


class Keyed(Source):
    def sample_key(self, index: int) -> str:
        return self.names[index]


def root_text(data: bytes) -> bytes | None:
    """The payload of root.json at which the end of a file points; None without one."""
    found = re.search(rb"edcache \d root\.json (\w{16}) (\w{16}) \w{8}\Z", data)
    if found is None:
        return None
    start, nbytes = (int(text, 16) for text in found.groups())
    return data[start : start + nbytes]


def last_root(data: bytes) -> dict[str, Any] | None:
    text = root_text(data)
    return None if text is None else json.loads(text)


@contextmanager
def quietly() -> Iterator[None]:
    """Archives are open that are not sealed."""
    with warnings.catch_warnings():
        for release in (edcache, later_release()):
            warnings.simplefilter("ignore", release.errors.PartialArchiveWarning)
        yield


# --- one thing at a time, as the table of FORMAT.md has them


def grown(path: Path, thing: str, is_sealed: bool, is_keyed: bool = False) -> None:
    """Three samples of this release, which seals them, and one of the later release, with the thing."""
    later, new = later_release(), NEW.get(thing) or (NEW["leaf"] if thing in OF_SAMPLE else COMMON["d"])
    first: Any = later if thing in OF_HEAD else edcache
    labels = ["y", "t"] if thing == "type of a column" else ["y"]
    with using(*({thing} & OF_HEAD)):
        if is_keyed:
            with first.KeyedCache(path) as cache:
                cache.get_many(["a", "b", "c"], lambda missing: [COMMON[key] for key in missing])
        else:
            with first.CacheWriter(path, in_memory_keys=labels, sync="never") as w:
                w.extend(COMMON[name] for name in "abc")
    with using(*({thing} - OF_HEAD - OF_SAMPLE)):
        if is_keyed:
            cache = later.KeyedCache(path)
            cache.get_or_create("new", lambda: new)
            cache._files.get(cache._opened)._appender.amend(length=4)
            cache.close(seal=True) if is_sealed else cache._files.pop()._appender.close()
        else:
            w = later.CacheWriter(path, "a", sync="never")
            w.append(new)
            w.flush()
            w._appender.amend(length=4)
            w.close() if is_sealed else w.abort()


def seal(path: Path) -> None:
    """Seal an archive that has a chunk behind its root, or not."""
    with closing(edcache.writer.Appender.open(path, None)) as appender:
        edcache.writer.seal(appender)


def append(path: Path) -> None:
    with edcache.CacheWriter(path, "a", sync="never") as w:
        w.append(COMMON["a"])


def fill(path: Path) -> None:
    edcache.CachedDataset(Source(list("abcdef")), path, grow=True, fingerprint=False, progress=False).close()


def add_labels(path: Path) -> None:
    with closing(edcache.CachedDataset.from_cache(path, allow_partial=True)) as cache:
        cache.add_labels("z", [1, 2, 3, 4])


def drop_labels(path: Path) -> None:
    with closing(edcache.CachedDataset.from_cache(path, allow_partial=True)) as cache:
        cache.drop_labels("y")


def create(path: Path) -> None:
    cache = edcache.KeyedCache(path)
    cache.get_or_create("d", lambda: COMMON["d"])
    cache.close(seal=True)


def recover(path: Path) -> None:
    edcache.writer.recover(str(path))


def save_over(path: Path) -> None:
    with closing(edcache.CachedDataset.from_cache(path, allow_partial=True)) as cache:
        cache.save(path, skip_damaged=True)


WRITERS = [append, fill, add_labels, drop_labels, create, recover, save_over, seal]
TABLE = "chunks/00000005 at offset 20,480: its table: "
LABELS = "chunks/00000006 at offset 24,576: its labels: "
NOTE = "notes/00000006 at offset 24,576: "
RECORD = r"record 3 at offset [\d,]+: "
# The place that a reader names, of an archive that is not sealed, and of one that is; None: it reads all. A sealed
# one is read by its root: it may have entries in the chain that a writer refuses.
PLACES: dict[str, tuple[str | None, str | None]] = {
    "version": ("", None),
    "kind": ("", None),
    "kind in a seal": (None, None),
    "version of the head": ("", "root.json: "),
    "key of the head": ("the head: ", "root.json: "),
    "codec": ("the head: ", "root.json: "),
    "compression": (None, None),
    "reads of the head": ("the head: ", "root.json: "),
    "writes of the head": (None, None),
    "more of the head": (None, None),
    "key of a root": (None, "root.json: "),
    "reads of a root": (None, "root.json: "),
    "writes of a root": (None, None),
    "more of a root": (None, None),
    "key of a note": (NOTE, None),
    "reads of a note": (NOTE, None),
    "more of a note": (None, None),
    "flag": (TABLE, RECORD),
    "leaf": (RECORD, RECORD),
    "dtype": (RECORD, RECORD),
    "dtype of torch": (RECORD, RECORD),
    "type of a column": (LABELS, "root.json: "),
}
OF_ROOT = {"kind in a seal", "key of a root", "reads of a root", "writes of a root"}
# Readers need not know them.
FOR_WRITERS = {"compression", "writes of the head", "writes of a root"}
# A writer passes them over: it copies records as they are.
COPIED = HARMLESS | {"leaf", "dtype", "dtype of torch"}
CASES = [
    (thing, is_sealed)
    for thing in THINGS
    for is_sealed in (False, True)
    if HAS_LONG_DOUBLE or thing != "dtype"
]


def told(path: Path | str, thing: str, place: str = ".*") -> str:
    return f"^{re.escape(str(path))}: {place}needs {THINGS[thing].told}(?: for writing)?{UPGRADE}"


def test_each_thing_has_its_places() -> None:
    assert PLACES.keys() == THINGS.keys()


@pytest.mark.parametrize("case", thinned(CASES, 14), ids=str)
def test_a_reader_refuses_archive_or_sample_by_the_name_of_the_thing_or_reads_it(
    case: tuple[str, bool], path: Path
) -> None:
    thing, is_sealed = case
    grown(path, thing, is_sealed)
    before, place = path.read_bytes(), PLACES[thing][is_sealed]
    with quietly():
        for allow_partial, verify in itertools.product((False, True), ("touch", "never")):
            options: dict[str, Any] = {"allow_partial": allow_partial, "verify": verify}
            if place not in (None, RECORD):
                with pytest.raises(LaterReleaseError, match=f"{told(path, thing, place)}$") as raised:
                    edcache.CachedDataset.from_cache(path, **options)
                assert raised.value.path == str(path)
                continue
            with closing(edcache.CachedDataset.from_cache(path, **options)) as cache:
                assert len(cache) == 4
                assert cache.labels.to_list("y")[:3] == [0, 1, 2]
                assert all(is_sample(cache[k], "abc"[k]) for k in range(3))
                assert all(map(is_sample, cache.__getitems__([2, 0]), "ca"))
                if place is None:
                    assert is_sample(cache[3], "d")
                    continue
                for read in (cache.__getitem__, lambda k: cache.__getitems__([0, k]), lambda _: list(cache)):
                    with pytest.raises(LaterReleaseError, match=f"{told(path, thing, place)}$") as raised:
                        read(3)
                    assert (raised.value.path, raised.value.index) == (str(path), 3)
        if thing in COPIED | FOR_WRITERS or (thing in OF_ROOT and not is_sealed):  # it decodes no record
            assert edcache.verify(path).problems == []
        else:
            with pytest.raises(LaterReleaseError, match=f"{told(path, thing)}$"):
                edcache.verify(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("case", thinned(CASES, 14), ids=str)
def test_a_writer_refuses_it_before_it_changes_a_byte_or_keeps_all(
    case: tuple[str, bool], tmp_path: Path
) -> None:
    thing, is_sealed = case
    later, is_there = later_release(), is_sealed or thing not in OF_ROOT
    for writer in WRITERS:
        path = tmp_path / f"{writer.__name__}.zip"
        is_keyed = writer is create
        if is_keyed and thing == "type of a column":
            continue  # values by key have no such column
        grown(path, thing, is_sealed, is_keyed)
        before = path.read_bytes()
        refuses = thing not in COPIED and is_there
        if thing == "flag":  # whose table or record is read
            refuses = writer is not recover and (not is_sealed or writer is save_over)
        elif thing == "type of a column":
            refuses = is_sealed or writer is not recover
        with quietly():
            if refuses:
                with pytest.raises(LaterReleaseError, match=told(path, thing)) as raised:
                    writer(path)
                assert raised.value.path == str(path)
                assert path.read_bytes() == before
            elif writer in (add_labels, drop_labels) and not is_sealed:
                with pytest.raises(ArchiveError, match="not sealed"):
                    writer(path)
            else:
                writer(path)
            assert later.verify(path).problems == []
            with closing(later.CachedDataset.from_cache(path)) as cache:
                new = {"type of a column": "leaf"}.get(thing, thing if thing in NEW else "d")
                known = ["a", "b", "c", new]
                assert all(is_sample(cache[k], name) for k, name in enumerate(known))
        if writer in (append, create) and not refuses:
            root = last_root(path.read_bytes())
            assert root is not None
            assert root["more"] == {}
    assert sorted(os.listdir(tmp_path)) == sorted(
        f"{writer.__name__}.zip" for writer in WRITERS if writer is not create or thing != "type of a column"
    )


@pytest.mark.parametrize("thing", ["writes of the head", "writes of a root", "more of the head", "leaf"])
def test_a_copy_has_all_samples_and_nothing_that_is_for_other_writers(thing: str, tmp_path: Path) -> None:
    path, copy = tmp_path / "a.zip", tmp_path / "b.zip"
    grown(path, thing, is_sealed=True)
    with quietly(), closing(edcache.CachedDataset.from_cache(path)) as cache:
        cache.save(copy)
    root = last_root(copy.read_bytes())
    assert root is not None
    assert (root["writes"], root["head"]["writes"], root["more"], root["head"]["more"]) == ([], [], {}, {})
    with closing(later_release().CachedDataset.from_cache(copy)) as cache:
        assert all(map(is_sample, cache, ["a", "b", "c", thing if thing in NEW else "d"]))
    append(copy)


@pytest.mark.parametrize("thing", sorted(OF_HEAD - HARMLESS))
def test_an_archive_without_a_sample_is_not_begun_anew(thing: str, path: Path) -> None:
    """One of this release gives way to a writer that is given other options."""
    with using(thing):
        later_release().CacheWriter(path, in_memory_keys=["y"]).abort()
    before = path.read_bytes()
    for mode in ("x", "a"):
        with pytest.raises(LaterReleaseError, match=told(path, thing)):
            edcache.CacheWriter(path, mode, in_memory_keys=["t"])
    with pytest.raises(LaterReleaseError, match=told(path, thing)):
        edcache.CachedDataset(Source(["a"]), path, progress=False)
    assert path.read_bytes() == before


@pytest.mark.parametrize("thing", ["version", "kind"])
@pytest.mark.parametrize("is_of_another_boot", [False, True])
def test_a_later_entry_behind_a_lost_header_is_neither_cut_off_nor_misread(
    thing: str, is_of_another_boot: bool, path: Path
) -> None:
    """Damage or a power cut took the header of a chunk; nobody here knows whether the entry behind it counts."""
    append(path)
    lost = -(-path.stat().st_size // 4096) * 4096
    with using(thing):
        for name in "bc":
            w = later_release().CacheWriter(path, "a", sync="never")
            w.append(COMMON[name])
            w.abort()
    data = bytearray(path.read_bytes())
    data[lost : lost + 192] = bytes(192)
    path.write_bytes(data)
    if is_of_another_boot:
        os.utime(path, (1, 1))
    with quietly():
        for act in (append, recover, fill, save_over, lambda path: edcache.verify(path)):
            with pytest.raises(LaterReleaseError, match=told(path, thing)):
                act(path)
    assert path.read_bytes() == data
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("thing", ["flag", "type of a column"])
@pytest.mark.parametrize("is_of_another_boot", [False, True])
def test_a_torn_tail_is_not_cut_off_by_a_writer_that_then_refuses(
    thing: str, is_of_another_boot: bool, path: Path
) -> None:
    grown(path, thing, is_sealed=False)
    with open(path, "ab") as file:
        file.write(bytes(9000))
    before = path.read_bytes()
    if is_of_another_boot:
        os.utime(path, (1, 1))
    for act in (append, recover):
        with quietly(), pytest.raises(LaterReleaseError, match=told(path, thing)):
            act(path)
        assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_refresh_names_what_a_later_release_has_saved_over_itself(path: Path) -> None:
    grown(path, "more of a root", is_sealed=True)
    with closing(edcache.CachedDataset.from_cache(path)) as reader:
        with using("reads of the head"), closing(later_release().CachedDataset.from_cache(path)) as cache:
            cache.save(path)
        with pytest.raises(LaterReleaseError, match=f"{told(path, 'reads of the head')}$") as raised:
            reader.refresh()
        assert raised.value.path == str(path)
        assert all(map(is_sample, reader, "abcd"))


@pytest.mark.parametrize("thing", ["leaf", "flag"])
def test_a_keyed_cache_names_the_value_that_it_does_not_read(thing: str, path: Path) -> None:
    grown(path, thing, is_sealed=True, is_keyed=True)
    with edcache.KeyedCache(path) as cache:
        for read in (cache.get, cache.__getitem__, lambda key: cache.get_or_create(key, dict)):
            with pytest.raises(LaterReleaseError, match=f"{told(path, thing, 'record 3: ')}$") as raised:
                read("new")
            assert raised.value.path == str(path)
        assert [is_sample(cache[key], key) for key in "abc"] == [True] * 3
        assert cache.keys() == ["a", "b", "c", "new"]


def test_info_shows_the_rest_and_names_the_structure_that_it_does_not_know(path: Path) -> None:
    grown(path, "leaf", is_sealed=True)
    with closing(edcache.CachedDataset.from_cache(path)) as cache:
        *known, unknown = sorted(cache.schema, key=lambda one: "problem" in one)
        assert all(one["fields"] for one in known)
        assert (unknown["samples"], unknown["fields"]) == (1, [])
        assert re.search(told(path, "leaf"), unknown["problem"])
        assert unknown["problem"] in repr(cache.schema)


@pytest.mark.parametrize("thing", ["flag", "kind", "version", "key of a note"])
def test_no_digest_of_what_a_later_release_goes_on_with(thing: str, path: Path) -> None:
    grown(path, thing, is_sealed=False)
    with pytest.raises(LaterReleaseError, match=told(path, thing)):
        edcache.digest(path)


def test_a_copy_leaves_out_a_sample_of_an_unknown_flag_or_names_it(path: Path, tmp_path: Path) -> None:
    grown(path, "flag", is_sealed=True)
    copy = tmp_path / "b.zip"
    with quietly(), closing(edcache.CachedDataset.from_cache(path)) as cache:
        with pytest.raises(LaterReleaseError, match=f"{told(path, 'flag', RECORD)}$") as raised:
            cache.save(copy)
        assert raised.value.index == 3
        assert not copy.exists()
        text = "the records of 1 of 4 samples are stored as only a later release knows and were left out: 3$"
    with pytest.warns(edcache.errors.PartialArchiveWarning, match=text):
        edcache.CachedDataset.from_cache(path).save(copy, skip_damaged=True)
    with closing(edcache.CachedDataset.from_cache(copy, allow_partial=True)) as saved:
        assert saved.missing.tolist() == [3]
        assert all(is_sample(saved[k], "abc"[k]) for k in range(3))
        assert len(saved.labels["y"]) == 4


@pytest.mark.parametrize("is_true", [True, False])
def test_a_flag_in_the_index_alone_is_no_damage_if_the_sum_is_of_it(is_true: bool, path: Path) -> None:
    with edcache.CacheWriter(path) as w:
        w.extend(COMMON[name] for name in "abc")
    root, data = last_root(path.read_bytes()), bytearray(path.read_bytes())
    assert root is not None
    row = root["index"][0] + 24
    data[row + 22] ^= 4
    data[row + 18] ^= 4 * is_true  # flags are bits 16 and up of the key
    path.write_bytes(data)
    if not is_true:
        assert any("another row of sample 1" in problem for problem in edcache.verify(path).problems)
        return
    with pytest.raises(LaterReleaseError, match=f"{told(path, 'flag', RECORD.replace('3', '1'))}$") as raised:
        edcache.verify(path)
    assert (raised.value.path, raised.value.index) == (str(path), 1)


# --- all things together, in any order


@dataclass
class State:
    """What every release must see. records: the name of each sample, and the things that it needs; labels: values by
    index of each column; `filled` are those that the samples bring.
    """

    length: int | None = None
    records: dict[int, tuple[str, frozenset[str]]] = field(default_factory=dict)
    labels: dict[str, dict[int, Any]] = field(default_factory=dict)
    filled: frozenset[str] = frozenset()

    def copy(self) -> State:
        labels = {name: values.copy() for name, values in self.labels.items()}
        return State(self.length, self.records.copy(), labels, self.filled)

    @property
    def end(self) -> int:
        return max(self.records, default=-1) + 1

    def __len__(self) -> int:
        return max(self.end, self.length or 0)

    def column(self, name: str) -> list[Any]:
        return [self.labels[name].get(k) for k in range(len(self))]

    def record(self, index: int, name: str, needs: frozenset[str]) -> None:
        self.records[index] = name, needs
        for column in self.filled:
            # The source says nothing of versions.
            of_keys = {"key": name, "version": ""}
            self.labels[column][index] = of_keys[column] if column in of_keys else SAMPLES[name][column]

    def reordered(self, names: list[str], needs: frozenset[str]) -> None:
        """Filled again by keys: samples that are there bring their labels along."""
        old = self.copy()
        at = {name: index for index, (name, _) in old.records.items()}
        self.records, self.length = {}, len(names)
        self.labels = {name: {} for name in old.labels}
        for index, name in enumerate(names):
            if name in at:
                self.records[index] = old.records[at[name]]
                for column, values in old.labels.items():
                    if at[name] in values:
                        self.labels[column][index] = values[at[name]]
            else:
                self.record(index, name, needs)


def check(cache: Any, state: State, by_this: bool) -> None:
    """Compare all that an open archive has with the state."""
    assert len(cache) == len(state)
    assert cache.missing.tolist() == [k for k in range(len(state)) if k not in state.records]
    if state.records:
        assert set(cache.labels) == set(state.labels)
        for name in state.labels:
            assert cache.labels.table.column(name).to_pylist() == state.column(name)
    known = [k for k, (_, needs) in state.records.items() if not (by_this and needs)]
    for index in known:
        assert is_sample(cache[index], state.records[index][0])
    found = list(cache.__getitems__(known[::-1]))
    assert all(is_sample(one, state.records[k][0]) for one, k in zip(found, known[::-1], strict=True))
    for index in state.records.keys() - known:
        with pytest.raises(LaterReleaseError) as raised:
            cache[index]
        names = [
            told(cache.path, thing, RECORD.replace("3", str(index))) for thing in state.records[index][1]
        ]
        assert any(re.search(name, str(raised.value)) for name in names), (str(raised.value), names)
        assert (raised.value.path, raised.value.index) == (cache.path, index)


_folders: list[Path] = []
names_of = {False: sorted(COMMON), True: sorted(SAMPLES)}
by = st.booleans()  # whether the later release does it
some = st.lists(st.sampled_from(names_of[True]), min_size=1, max_size=4)
own_things = sorted(THINGS.keys() - OF_HEAD - OF_SAMPLE)
alone = [frozenset({thing}) for thing in own_things]
pairs = [frozenset({thing, "flag"}) for thing in own_things]


class TwoReleases(RuleBasedStateMachine):
    """Both releases at work on one archive. kind: "samples", "keyed", which a source with keys fills, or "values", of
    KeyedCache. things: what the later release may use; it uses `on` now. used: those that the archive may have.
    is_frozen, is_unread: it has what a writer must know, or a reader.
    """

    steps = read = refusals = 0
    _numbers = itertools.count()

    @initialize(
        kind=st.sampled_from(["samples", "samples", "samples", "keyed", "keyed", "values"]),
        # Not a set of any size: hypothesis would draw few.
        things=st.sampled_from([*alone, *alone, *pairs, *[frozenset[str]()] * 4]),
        of_head=st.sampled_from([*[frozenset[str]()] * 20, *({thing} for thing in sorted(OF_HEAD))]),
        has_time=st.booleans(),
    )
    def begin(self, kind: str, things: frozenset[str], of_head: frozenset[str], has_time: bool) -> None:
        self.folder = _folders[-1] / str(next(TwoReleases._numbers))
        self.folder.mkdir()
        self.path, self.kind, self.things = str(self.folder / "a.zip"), kind, things
        self.keys = [] if kind == "values" else ["y", "t"] if has_time else ["y"]
        filled = {*self.keys, *{"samples": [], "keyed": ["key", "version"], "values": ["key"]}[kind]}
        self.state = State(labels={name: {} for name in filled}, filled=frozenset(filled))
        self.on = things
        self.readers: list[tuple[Any, State]] = []
        self.step = 0
        self.writer: Any = None
        self.pending: list[str] = []
        with using(*of_head):
            self._create(later_release() if of_head else edcache)
        self.used = set(of_head)
        self.is_frozen = bool(of_head & FOR_WRITERS)
        self.is_unread = bool(of_head - FOR_WRITERS - HARMLESS)

    def _create(self, release: Any) -> None:
        if self.kind == "samples":
            release.CacheWriter(self.path, in_memory_keys=self.keys, sync="never").abort()
        elif self.kind == "values":
            with release.KeyedCache(self.path, sync="never")._in_use() as archive:
                archive._appender.close()
        else:
            self._fill(release, ["a", "b"])
            self.state.reordered(["a", "b"], frozenset())

    def _fill(self, release: Any, names: list[str]) -> None:
        source = Keyed(names) if self.kind == "keyed" else Source(names)
        options: dict[str, Any] = {} if self.kind == "keyed" else {"fingerprint": False, "grow": True}
        with closing(
            release.CachedDataset(
                source, self.path, in_memory_keys=self.keys, progress=False, sync="never", **options
            )
        ):
            pass

    # --- who does it

    def _files(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.folder.iterdir()}

    def _root(self) -> dict[str, Any] | None:
        return last_root(Path(self.path).read_bytes())

    def _by_later(self, act: Callable[[], object]) -> None:
        uuid = self._uuid()
        with quietly(), using(*self.on):
            act()
        if self._uuid() != uuid:
            self._begun_anew()
        self.used |= self.on
        root = self._root()
        self.is_frozen = self.is_frozen or (root is not None and bool(root["writes"]))

    def _uuid(self) -> bytes:
        path = Path(self.path)
        return path.read_bytes()[70:86] if path.exists() else b""

    def _begun_anew(self) -> None:
        """An archive without a sample gave way to a fill."""
        assert not self.state.records
        self.used, self.is_frozen, self.is_unread = set(), False, False
        for cache, _ in self.readers:
            cache.close()
        self.readers.clear()

    def _by_this(self, act: Callable[[], object]) -> bool:
        """Return False if it is refused."""
        before, uuid = self._files(), self._uuid()
        try:
            with quietly():
                act()
        except LaterReleaseError as error:
            TwoReleases.refusals += 1
            self._check_refusal(error)
            assert self._files() == before
            return False
        after = self._files()
        if self.is_frozen:
            assert after == before
        if self._uuid() != uuid:
            self._begun_anew()
        text = root_text(after["a.zip"])
        if text is not None and text not in before["a.zip"]:
            assert json.loads(text)["more"] == {}
        return True

    def _check_refusal(self, error: LaterReleaseError) -> None:
        things = self.used | {thing for _, needs in self.state.records.values() for thing in needs}
        assert any(re.search(told(self.path, thing), str(error)) for thing in things), (str(error), things)
        assert error.path == self.path

    def _do(self, by_later: bool, act: Callable[[Any], object]) -> bool:
        """Let one of the releases do it; return False if this one refuses."""
        if by_later:
            self._by_later(lambda: act(later_release()))
            return True
        return self._by_this(lambda: act(edcache))

    def _needs(self, by_later: bool, name: str) -> frozenset[str]:
        needs = {name} & NEW.keys()
        if by_later:
            needs |= self.on & {"flag"}
        if name == "leaf" and "t" in self.keys:  # also if the archive has dropped it
            self.used.add("type of a column")
        return frozenset(needs)

    def _chosen(self, by_later: bool, names: list[str]) -> list[str]:
        """This release cannot make what it does not know."""
        return names if by_later else [name for name in names if name in COMMON] or ["a"]

    of_samples = precondition(lambda self: self.kind == "samples")
    of_keyed = precondition(lambda self: self.kind == "keyed")
    of_values = precondition(lambda self: self.kind == "values")
    has_readers = precondition(lambda self: bool(self.readers))
    no_writer = precondition(lambda self: self.writer is None)

    # --- writing

    @precondition(lambda self: self.things)
    @rule()
    def turn(self) -> None:
        """The later release writes as this one does, until it is told to use its own again."""
        self.on = frozenset() if self.on else self.things

    @of_samples
    @rule(by_later=by, names=some, is_sealed=st.booleans(), sync=st.sampled_from(["never", "chunk"]))
    def append(self, by_later: bool, names: list[str], is_sealed: bool, sync: str) -> None:
        self._write(by_later, names, None, is_sealed, sync)

    @of_samples
    @rule(by_later=by, names=some, at=st.integers(0, 14), is_sealed=st.booleans())
    def write(self, by_later: bool, names: list[str], at: int, is_sealed: bool) -> None:
        self._write(by_later, names, at, is_sealed, "never")

    def _write(self, by_later: bool, names: list[str], at: int | None, is_sealed: bool, sync: str) -> None:
        names = self._chosen(by_later, names)

        def act(release: Any) -> None:
            w = release.CacheWriter(self.path, "a", sync=sync)
            try:
                for k, name in enumerate(names):
                    w.append(SAMPLES[name]) if at is None else w.write(at + k, SAMPLES[name])
                w.close() if is_sealed else w.abort()
            finally:
                w._appender.close()

        if self._do(by_later, act):
            self._published(by_later, names, at)
            if is_sealed:
                self._sealed()

    def _published(self, by_later: bool, names: list[str], at: int | None = None) -> None:
        first = self.state.end if at is None else at
        for k, name in enumerate(names):
            self.state.record(first + k, name, self._needs(by_later, name))

    def _sealed(self) -> None:
        if self.state.length is not None:
            self.state.length = len(self.state)

    @of_samples
    @no_writer
    @rule()
    def open_writer(self) -> None:
        """A writer of this release, which is open while the later one writes."""

        def act() -> None:
            self.writer = edcache.CacheWriter(self.path, "a", sync="never", publish_seconds=None)

        self._by_this(act)

    @precondition(lambda self: self.writer is not None)
    @rule(name=st.sampled_from(names_of[False]), does=st.sampled_from(["append", "flush", "seal", "leave"]))
    def write_on(self, name: str, does: str) -> None:
        self.writer.append(SAMPLES[name])
        self.pending.append(name)
        if does == "append":
            return
        pending, self.pending = self.pending, []
        if self._by_this(self.writer.flush):
            self._published(False, pending)
            if does == "seal" and self._by_this(self.writer.seal):
                self._sealed()
            if does == "flush":
                return
        self.writer._appender.close()
        self.writer = None

    @of_samples
    @rule(by_later=by, more=st.integers(0, 3), shift=st.integers(0, 8))
    def grow(self, by_later: bool, more: int, shift: int) -> None:
        count, pool = len(self.state) + more, names_of[by_later]
        if count > 30:
            return
        names = [pool[(k + shift) % len(pool)] for k in range(count)]
        if self._do(by_later, lambda release: self._fill(release, names)):
            if count > len(self.state):
                self.state.length = count
            for index, name in enumerate(names):
                if index not in self.state.records:
                    self.state.record(index, name, self._needs(by_later, name))

    @of_keyed
    @rule(by_later=by, names=st.lists(st.sampled_from(names_of[True]), min_size=1, unique=True))
    def refill(self, by_later: bool, names: list[str]) -> None:
        there = {name for name, _ in self.state.records.values()}
        names = [name for name in names if by_later or name in COMMON or name in there] or ["a"]
        needs = {name: self._needs(by_later, name) for name in names if name not in there}
        if self._do(by_later, lambda release: self._fill(release, names)):
            self.state.reordered(names, frozenset())
            for index, (name, _) in self.state.records.items():
                if name in needs:
                    self.state.records[index] = name, needs[name]

    @of_values
    @rule(by_later=by, name=st.sampled_from(names_of[True]), is_sealed=st.booleans())
    def get_or_create(self, by_later: bool, name: str, is_sealed: bool) -> None:
        there = dict(self.state.records.values())
        if not by_later and name not in COMMON and name not in there:
            return
        kept, values = list[Any](), list[Any]()
        if not self._do(by_later, lambda release: kept.append(release.KeyedCache(self.path, sync="never"))):
            return
        cache = kept[0]
        if self._do(by_later, lambda _: values.append(cache.get_or_create(name, lambda: SAMPLES[name]))):
            assert is_sample(values[0], name)
            if name not in there:
                self.state.record(len(self.state), name, self._needs(by_later, name))
            assert sorted(cache.keys()) == sorted(name for name, _ in self.state.records.values())
        self._do(by_later, lambda _: cache.close(seal=is_sealed))

    # --- labels

    @rule(
        by_later=by,
        name=st.sampled_from(["y", "z", "c"]),
        values=st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=6),
        is_partial=st.booleans(),
    )
    def add_labels(self, by_later: bool, name: str, values: list[Any], is_partial: bool) -> None:
        """The column "c" has times, which only the later release knows."""
        if name == "c" and (not by_later or not self.state.records):
            return
        indices = range(0, len(self.state), 2 if is_partial else 1)
        added = {k: values[k % len(values)] for k in indices}
        if name == "c":
            added = {k: None if value is None else dt.time(value) for k, value in added.items()}
        given: Any = added
        if not is_partial:
            given = pa.array(added.values(), pa.time64("us") if name == "c" else pa.int64())
        has_changed = self._change_labels(by_later, lambda cache: cache.add_labels(name, given))
        if has_changed:
            if name == "c":
                self.used.add("type of a column")
            self.state.labels.setdefault(name, {}).update(added)

    @precondition(lambda self: {*self.state.labels} - {"key", "version"})
    @rule(by_later=by, which=st.integers(0, 4))
    def drop_labels(self, by_later: bool, which: int) -> None:
        names = sorted({*self.state.labels} - {"key", "version"})
        name = names[which % len(names)]
        if self._change_labels(by_later, lambda cache: cache.drop_labels(name)):
            del self.state.labels[name]
            self.state.filled -= {name}

    def _change_labels(self, by_later: bool, change: Callable[[Any], object]) -> bool:
        """Return True if the labels have changed."""
        is_sealed = [True]

        def act(release: Any) -> None:
            with closing(release.CachedDataset.from_cache(self.path, allow_partial=True)) as cache:
                try:
                    change(cache)
                except release.errors.ArchiveError as error:
                    if "not sealed, so its labels" not in str(error):
                        raise
                    is_sealed[0] = False

        return self._do(by_later, act) and is_sealed[0]

    # --- what happens to the file

    @rule(kind=st.sampled_from(["restart", "zeros", "garbage", "payload", "seal"]), by_later=st.none() | by)
    def crash(self, kind: str, by_later: bool | None) -> None:
        """The file is of another boot, so that the next writer reads all that is not durable; or the later release
        dies, and behind the end is what it may have written of the next entry, or of the next seal. by_later: which
        release recovers it, if one does at once.
        """
        if kind == "restart":
            os.utime(self.path, (1, 1))
        else:
            self._tear(kind)
        if by_later is not None and self.writer is None:
            self._do(by_later, lambda release: release.writer.recover(self.path))

    def _tear(self, kind: str) -> None:
        if kind in ("zeros", "garbage"):
            with open(self.path, "ab") as file:
                file.truncate(-(-file.tell() // 4096) * 4096)
                file.write(bytes(5000) if kind == "zeros" else b"PK\3\4garbage" * 300)
            return
        later, twin = later_release(), self.path + ".twin"
        shutil.copy2(self.path, twin)
        opened = partial(later.writer.Appender.open, twin, None, sync="never")
        with quietly(), using(*self.on), closing(opened()) as appender:
            start = appender.chain.cursor.offset
            if kind == "payload" and self.kind == "samples":
                w = later.CacheWriter(twin, "a", sync="never")
                w.append(SAMPLES["leaf"])
                w.abort()
            else:
                values = pa.table({"z": pa.nulls(len(self.state), pa.int64())})
                later.writer.seal(appender, later.writer.LabelChange(values))
        data = Path(twin).read_bytes()
        os.unlink(twin)
        is_seal = last_root(data) is not None
        torn = bytearray(data[:-100] if is_seal else data)  # the end record is written last
        if len(torn) > start + 192:
            torn[start : start + 192] = bytes(192)
            Path(self.path).write_bytes(torn)
            self.used |= self.on

    # --- copies

    @rule(does=st.sampled_from(["verify", "save"]))
    def look(self, does: str) -> None:
        """Prove the archive, or save it to another path."""

        def verify() -> None:
            assert edcache.verify(self.path).problems == []

        self._by_this(verify) if does == "verify" else self._save()

    def _save(self) -> None:
        target = str(self.folder / "saved.zip")

        def act() -> None:
            with closing(edcache.CachedDataset.from_cache(self.path, allow_partial=True)) as cache:
                cache.save(target, skip_damaged=True)

        is_frozen, self.is_frozen = self.is_frozen, False  # another file may be made
        if self._by_this(act):
            root = last_root(Path(target).read_bytes())
            assert root is not None
            assert root["more"] == root["head"]["more"] == {}
            expected = self.state.copy()
            expected.length = len(self.state)
            # A chunk cannot have an unknown flag, so that a copy leaves the sample out.
            expected.records = {k: one for k, one in expected.records.items() if "flag" not in one[1]}
            for release in (edcache, later_release()):
                with closing(release.CachedDataset.from_cache(target)) as cache:
                    check(cache, expected, release is edcache)
            os.unlink(target)
        self.is_frozen = is_frozen

    @no_writer
    @rule(by_later=by)
    def save_over(self, by_later: bool) -> None:
        """Readers stay with the old file until they look again."""

        def act(release: Any) -> None:
            with closing(release.CachedDataset.from_cache(self.path, allow_partial=True)) as cache:
                cache.save(self.path, skip_damaged=True)

        if by_later:
            self.is_frozen = bool(self.used & {"compression"})
        self._do(by_later, act)

    # --- reading

    @rule()
    def open_reader(self) -> None:
        def act() -> None:
            cache = edcache.CachedDataset.from_cache(self.path, allow_partial=True)
            self.readers.append((cache, self.state.copy()))

        if len(self.readers) < 3:
            self._by_this(act)

    @has_readers
    @rule(which=st.integers(0, 2))
    def refresh(self, which: int) -> None:
        self._refresh(which % len(self.readers))

    def _refresh(self, which: int) -> None:
        """After a refusal a reader reads what it has read before."""
        cache, state = self.readers[which]
        if self._by_this(cache.refresh):
            state = self.state.copy()
        self.readers[which] = cache, state
        check(cache, state, by_this=True)

    @invariant()
    def law(self) -> None:
        if not hasattr(self, "path"):
            return
        TwoReleases.steps += 1
        self.step += 1
        if self.readers and self.step % 3 == 0:
            self._refresh(-1)
        before, root = self._files(), self._root()
        with quietly():
            with closing(later_release().CachedDataset.from_cache(self.path)) as cache:
                check(cache, self.state, by_this=False)
            try:
                with closing(edcache.CachedDataset.from_cache(self.path)) as cache:
                    assert not self.is_unread
                    assert root is None or not (root["reads"] or root["head"]["reads"] or "order" in root)
                    check(cache, self.state, by_this=True)
                    TwoReleases.read += 1
            except LaterReleaseError as error:
                self._check_refusal(error)
        assert self._files() == before

    def teardown(self) -> None:
        if not hasattr(self, "path"):
            return
        if self.writer is not None:
            self.writer._appender.close()
        for cache, state in self.readers:
            check(cache, state, by_this=True)
            cache.close()
        with quietly():
            assert later_release().verify(self.path).problems == []
        shutil.rmtree(self.folder)


def test_this_release_loses_hides_and_misreads_nothing_beside_a_later_one(tally: Any) -> None:
    chosen = settings(
        max_examples=scaled(500, 8),
        stateful_step_count=15,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        print_blob=True,
    )
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="edcache-two-", dir=memory) as folder:
        _folders.append(Path(folder))
        run_state_machine_as_test(seed(SEED)(TwoReleases), settings=chosen)
        _folders.pop()
    tally("steps of two releases", TwoReleases.steps)
    tally("of these read by both", TwoReleases.read)
    tally("refusals beside a later release", TwoReleases.refusals)
