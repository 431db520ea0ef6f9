"""An archive and all who use it, against a dictionary: what hypothesis plays in test_model*.py.

The machine holds at most one writer, several readers of different age, and the file, which it cuts, tears,
fills, seals, grows and rewrites. What everybody must see follows from a dict {index: number of a sample};
comparing samples shares no code with the package.
"""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
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
from reference import walk
from scale import SEED, scaled
from systems import WAYS, reading_by

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import ArchiveError, MissingSampleError, SampleIndexError
from edcache.writer import seal

POOL: list[dict[str, Any]] = [
    {"y": 0, "x": torch.arange(6, dtype=torch.uint8).reshape(2, 3)},
    {"y": 1, "x": torch.arange(6, dtype=torch.uint8).reshape(2, 3) + 7},
    {"y": 2, "x": torch.ones(2, 3, dtype=torch.uint8)},
    {"y": 0, "x": np.arange(4.0), "s": "text é"},
    {"y": 1, "x": np.arange(5.0), "s": ""},
    {"y": 1, "s": None, "list": list(range(12))},
    {"y": 3, "nested": {"a": [1, (2.5, None)], "b": {"c": b"bytes"}}, "flag": True},
    {"y": -1, "x": torch.zeros(0, 2), "z": np.float32(1.5)},
    {"y": 2, "x": np.frombuffer(bytes(range(256)) * 8, np.uint8).reshape(8, 256).copy()},
    {"y": None, "s": "word " * 60},
    {"y": 5, "t": (), "d": {}, "l": [], "big": 1 << 80},
    {"y": 4, "x": torch.tensor(float("nan")), "h": torch.ones(3, dtype=torch.bfloat16)},
]
numbers = st.integers(0, len(POOL) - 1)
_MOST = 24  # indices that are written by hand
_folders: list[Path] = []


def is_sample(found: Any, number: int) -> bool:
    return same(found, POOL[number])


@dataclass
class State:
    """What a reader that looks now must see. failed: whether final, by index; of some that have a record.

    labels: values by index of each column that is there; "y" is filled by the samples, if by any, while it
    is in `filled`.
    """

    length: int | None = None
    records: dict[int, int] = field(default_factory=dict)
    failed: dict[int, bool] = field(default_factory=dict)
    labels: dict[str, dict[int, Any]] = field(default_factory=dict)
    filled: frozenset[str] = frozenset()

    def copy(self) -> State:
        labels = {name: values.copy() for name, values in self.labels.items()}
        return State(self.length, self.records.copy(), self.failed.copy(), labels, self.filled)

    def record(self, index: int, number: int) -> None:
        """A sample is written: its labels are its own."""
        self.records[index] = number
        for name in self.filled:
            self.labels[name][index] = POOL[number][name]

    @property
    def end(self) -> int:
        return max(self.records, default=-1) + 1

    def __len__(self) -> int:
        return max(self.end, self.length or 0)

    @property
    def absent(self) -> list[int]:
        return [i for i in range(len(self)) if i not in self.records]

    @property
    def failures(self) -> dict[int, bool]:
        return {i: self.failed[i] for i in self.absent if i in self.failed}

    @property
    def complete(self) -> bool:
        return all(self.failed.get(i) for i in self.absent)


class Source:
    """Sample i is the pool's i-th; some cannot be made."""

    def __init__(self, length: int, failing: frozenset[int] = frozenset()) -> None:
        self.length, self.failing = length, failing

    def __edcache_fingerprint__(self) -> str:
        return "the pool"

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index in self.failing:
            raise KeyError(index)
        return POOL[index % len(POOL)]


class Known:
    """A reader, what it must see until it is refreshed, and what it handed out."""

    def __init__(self, cache: CachedDataset, state: State, has_labels: bool) -> None:
        self.cache = cache
        self.state = state
        self.has_labels = has_labels
        self.handed_out: list[tuple[Any, int]] = []

    def read(self, index: int) -> None:
        state, cache = self.state, self.cache
        if not 0 <= index < len(state):
            with pytest.raises(SampleIndexError):
                cache[index]
        elif index in state.records:
            sample = cache[index]
            assert is_sample(sample, state.records[index])
            if len(self.handed_out) < 6:
                self.handed_out.append((sample, state.records[index]))
        else:
            with pytest.raises(MissingSampleError) as raised:
                cache[index]
            assert f"sample {index}" in str(raised.value)

    def shape(self) -> None:
        """All that is known without reading a sample."""
        state, cache = self.state, self.cache
        assert len(cache) == len(state)
        assert cache.missing.tolist() == state.absent
        assert cache.complete == (state.complete and cache._archive.reader.session.sealed)
        assert {failure.index: failure.final for failure in cache.errors} == state.failures
        if state.records:
            assert set(cache.labels) == set(state.labels)
            for name in state.labels:
                assert cache.labels.table.column(name).to_pylist() == self.labels(name)

    def labels(self, name: str = "y") -> list[Any]:
        return [self.state.labels[name].get(i) for i in range(len(self.state))]

    def all(self) -> None:
        self.shape()
        for index in range(len(self.state)):
            self.read(index)
        self.kept()

    def kept(self) -> None:
        assert all(is_sample(sample, number) for sample, number in self.handed_out)


class Archive(RuleBasedStateMachine):
    """The rules; a subclass says which compression."""

    compressions: tuple[str | None, ...] = (None,)
    runs = steps = forks = 0
    _names = itertools.count()

    @initialize(
        data=st.data(),
        has_labels=st.booleans(),
        chunk_size=st.sampled_from([1, 2, 3, 5, 12]),
        by_dataset=st.booleans(),
    )
    def begin(self, data: Any, has_labels: bool, chunk_size: int, by_dataset: bool) -> None:
        Archive.runs += 1
        self.path = str(_folders[-1] / f"{next(Archive._names)}.zip")
        self.keys = ["y"] if has_labels else None
        self.chunk_size = chunk_size
        self.compression = data.draw(st.sampled_from(self.compressions))
        self.state = State()
        if has_labels:
            self.state.labels, self.state.filled = {"y": {}}, frozenset({"y"})
        self.pending: list[tuple[int | None, int]] = []
        self.readers: list[Known] = []
        self.writer: CacheWriter | None = None
        if by_dataset:
            self.state.length = 4
            self._fill(4, frozenset(range(4)), "skip")
        else:
            self._open("x")

    def _open(self, mode: str) -> None:
        self.writer = CacheWriter(
            self.path,
            mode,
            in_memory_keys=self.keys,
            compression=self.compression,
            chunk_size=self.chunk_size,
            publish_seconds=None,
            sync="never",
        )

    # --- writing ---

    has_writer = precondition(lambda self: self.writer is not None)
    no_writer = precondition(lambda self: self.writer is None)
    has_readers = precondition(lambda self: bool(self.readers))

    def _published(self) -> None:
        for index, number in self.pending:
            self.state.record(self.state.end if index is None else index, number)
        self.pending = []

    def _add(self, index: int | None, number: int) -> None:
        if self.pending and (self.pending[0][0] is None) != (index is None):
            self._published()
        self.pending.append((index, number))
        if len(self.pending) >= self.chunk_size:
            self._published()

    @has_writer
    @rule(number=numbers)
    def append(self, number: int) -> None:
        assert self.writer is not None
        self.writer.append(POOL[number])
        self._add(None, number)

    @has_writer
    @rule(chosen=st.lists(numbers, min_size=1, max_size=6))
    def extend(self, chosen: list[int]) -> None:
        assert self.writer is not None
        self.writer.extend(POOL[number] for number in chosen)
        for number in chosen:
            self._add(None, number)

    @has_writer
    @rule(index=st.integers(0, _MOST), number=numbers)
    def write(self, index: int, number: int) -> None:
        assert self.writer is not None
        self.writer.write(index, POOL[number])
        self._add(index, number)

    @has_writer
    @rule()
    def flush(self) -> None:
        assert self.writer is not None
        self.writer.flush()
        self._published()

    @has_writer
    @rule(is_last=st.booleans())
    def seal(self, is_last: bool) -> None:
        assert self.writer is not None
        self.writer.close() if is_last else self.writer.seal()
        self._published()
        if self.state.length is not None:
            self.state.length = len(self.state)
        self.writer = None if is_last else self.writer
        assert CachedDataset.from_cache(self.path, allow_partial=True)._archive.reader.session.sealed

    @has_writer
    @rule()
    def abort(self) -> None:
        assert self.writer is not None
        self.writer.abort()
        self._published()
        self.writer = None

    @no_writer
    @rule()
    def reopen(self) -> None:
        self._open("a")

    @rule(chosen=st.lists(numbers, min_size=1, max_size=3))
    def append_beside(self, chosen: list[int]) -> None:
        """Another writer publishes, whatever ours holds back."""
        with suppress(_Enough), CacheWriter(self.path, "a", in_memory_keys=self.keys, sync="never") as w:
            w.extend(POOL[number] for number in chosen)
            raise _Enough
        for number in chosen:
            self.state.record(self.state.end, number)

    @has_writer
    @rule(more=st.integers(1, 5))
    def amend_length(self, more: int) -> None:
        assert self.writer is not None
        self.flush()
        self.state.length = len(self.state) + more
        self.writer._appender.amend(length=self.state.length)

    @has_writer
    @rule(failed=st.dictionaries(st.integers(0, 12), st.booleans(), min_size=1, max_size=3))
    def record_failures(self, failed: dict[int, bool]) -> None:
        """What filling writes down, of samples that the dataset has by then."""
        assert self.writer is not None
        self.flush()
        failed = {index: final for index, final in failed.items() if index < len(self.state)}
        if not failed:
            return
        said = [[index, final, "KeyError", "'k'", "trace"] for index, final in failed.items()]
        self.writer._appender.amend(failed=said)
        self.state.failed |= failed

    # --- labels afterwards ---

    @rule(
        name=st.sampled_from(["y", "z", "w"]),
        values=st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=12),
        which=st.none() | st.frozensets(st.integers(0, _MOST), max_size=4),
    )
    def add_labels(self, name: str, values: list[Any], which: frozenset[int] | None) -> None:
        """One value per sample, or for some of them; a writer holds what it has not published."""
        cache, length = CachedDataset.from_cache(self.path, allow_partial=True), len(self.state)
        indices = range(length) if which is None else [index for index in which if index < length]
        added = {index: values[index % len(values)] for index in indices}
        given = [added[index] for index in indices] if which is None else added
        if self._is_refused(cache, lambda: cache.add_labels(name, given)):
            return
        self.state.labels.setdefault(name, {}).update(added)
        Known(cache, self.state.copy(), True).shape()
        cache.close()

    @precondition(lambda self: bool(self.state.labels))
    @rule(which=st.integers(0, 2))
    def drop_labels(self, which: int) -> None:
        """The samples bring a dropped column back no more."""
        name = sorted(self.state.labels)[which % len(self.state.labels)]
        cache = CachedDataset.from_cache(self.path, allow_partial=True)
        if self._is_refused(cache, lambda: cache.drop_labels(name)):
            return
        del self.state.labels[name]
        self.state.filled -= {name}
        Known(cache, self.state.copy(), True).shape()
        cache.close()

    def _is_refused(self, cache: CachedDataset, change: Callable[[], object]) -> bool:
        """Change labels; those of an archive that is not sealed cannot be changed."""
        # A torn tail behind a seal is cut off first.
        if cache._archive.reader.session.chain.sealed:
            change()
            return False
        with pytest.raises(ArchiveError, match="not sealed, so its labels cannot be changed"):
            change()
        cache.close()
        return True

    # --- filling ---

    @rule(
        more=st.integers(0, 4),
        failing=st.frozensets(st.integers(0, 12), max_size=3),
        on_error=st.sampled_from(["skip", "skip_final"]),
        later=st.booleans(),
    )
    def fill(self, more: int, failing: frozenset[int], on_error: str, later: bool) -> None:
        if len(self.state) < 40:
            self._fill(len(self.state) + more, failing, on_error, later)

    def _fill(self, length: int, failing: frozenset[int], on_error: str, later: bool = False) -> None:
        state, inode = self.state, os.stat(self.path).st_ino if os.path.exists(self.path) else None
        cache = CachedDataset(
            Source(length, failing),
            self.path,
            in_memory_keys=self.keys,
            compression=None if state.records else self.compression,
            lazy=later,
            grow=True,
            on_error=on_error,
            progress=False,
            sync="never",
            fingerprint=False,
        )
        if later:
            cache.warmup()
        if inode not in (None, os.stat(self.path).st_ino):
            # An archive without a sample gave way to another one.
            assert not state.records
            state.failed.clear()
            self._close_readers()
        if length > len(state):
            state.length = length
        for i in range(length):
            if i in state.records or state.failed.get(i):
                continue
            if i in failing:
                state.failed[i] = on_error == "skip_final"
            else:
                state.record(i, i % len(POOL))
        Known(cache, state.copy(), self.keys is not None).shape()
        cache.close()

    # --- damage ---

    @rule(kind=st.sampled_from(["nothing", "zeros", "garbage", "payload", "header"]), data=st.data())
    def crash(self, kind: str, data: Any) -> None:
        """The writer dies; behind what was published stands what it may have written of the next entry."""
        self.pending = []
        if self.writer is not None:
            self.writer._appender.close()
            self.writer = None
        if kind == "nothing":
            return
        if kind in ("zeros", "garbage"):
            length = data.draw(st.sampled_from([1, 100, 4096, 5000]))
            with open(self.path, "ab") as file:
                file.truncate(-(-file.tell() // 4096) * 4096)  # the page of the last entry is its own
                file.write(bytes(length) if kind == "zeros" else b"PK\3\4garbage" * length)
            return
        end, place, entry = self._next_entry()
        if kind == "payload":
            torn = bytes(192) + entry[192 : data.draw(st.integers(193, len(entry)))]
        else:
            # At 137 lies its checksum; what stands behind is zeros.
            written = data.draw(st.integers(1, 136))
            torn = entry[:written] + bytes(192 - written) + entry[192:]
        with open(self.path, "r+b") as file:
            file.truncate(end)
            file.seek(place)
            file.write(torn)

    def _next_entry(self) -> tuple[int, int, bytes]:
        """Where a writer would cut the file, where its next entry would begin, and that entry."""
        twin = self.path + ".twin"
        shutil.copyfile(self.path, twin)
        w = CacheWriter(twin, "a", in_memory_keys=self.keys, publish_seconds=None, sync="never")
        end, place = w._appender.chain.end, w._appender.chain.cursor.offset
        w.append(POOL[3])
        w.abort()
        entry = Path(twin).read_bytes()[place:]
        os.unlink(twin)
        return end, place, entry

    # --- reading ---

    @rule(way=st.sampled_from(WAYS))
    def open_reader(self, way: str) -> None:
        with reading_by(way):
            cache = CachedDataset.from_cache(self.path, allow_partial=True)
        known = Known(cache, self.state.copy(), self.keys is not None)
        known.shape()
        if len(self.readers) >= 4:
            gone = self.readers.pop(0)
            gone.cache.close()
            gone.kept()
        self.readers.append(known)

    def _close_readers(self) -> None:
        for known in self.readers:
            known.cache.close()
        self.readers.clear()

    def _reader(self, which: int) -> Known:
        return self.readers[which % len(self.readers)]

    @has_readers
    @rule(which=st.integers(0, 3), index=st.integers(-1, 40))
    def read(self, which: int, index: int) -> None:
        known = self._reader(which)
        known.read(index % (len(known.state) + 1) if index >= 0 else len(known.state) + 3)

    @has_readers
    @rule(which=st.integers(0, 3), data=st.data())
    def read_batch(self, which: int, data: Any) -> None:
        known = self._reader(which)
        present = sorted(known.state.records)
        if present:
            chosen = data.draw(st.lists(st.sampled_from(present), min_size=1, max_size=6))
            found = list(known.cache.__getitems__(chosen))
            assert len(found) == len(chosen)
            assert all(is_sample(s, known.state.records[i]) for s, i in zip(found, chosen, strict=True))

    @has_readers
    @rule(
        which=st.integers(0, 3),
        start=st.integers(0, 20),
        length=st.integers(0, 6),
        step=st.sampled_from([1, 2, -1]),
    )
    def read_slice(self, which: int, start: int, length: int, step: int) -> None:
        known = self._reader(which)
        chosen = list(range(len(known.state)))[start : start + length][::step]
        view = known.cache[start : start + length][::step]
        assert view.indices.tolist() == chosen
        for place, index in enumerate(chosen):
            if index in known.state.records:
                assert is_sample(view[place], known.state.records[index])
            else:
                with pytest.raises(MissingSampleError):
                    view[place]

    @has_readers
    @rule(which=st.integers(0, 3), value=st.sampled_from([0, 1, 2, -1, 99, None]))
    def filter(self, which: int, value: int | None) -> None:
        known = self._reader(which)
        if "y" in known.state.labels and known.state.records:
            expected = [i for i, y in enumerate(known.labels()) if y == value]
            assert known.cache.filter(y=value).indices.tolist() == expected
            available = [i for i in expected if i in known.state.records]
            assert all(is_sample(known.cache[i], known.state.records[i]) for i in available[:3])

    @has_readers
    @rule(which=st.integers(0, 3))
    def look(self, which: int) -> None:
        self._reader(which).shape()

    @has_readers
    @rule(which=st.integers(0, 3))
    def refresh(self, which: int) -> None:
        known = self._reader(which)
        known.cache.refresh()
        known.state = self.state.copy()
        known.shape()
        known.kept()

    @has_readers
    @rule(which=st.integers(0, 3))
    def pickle_reader(self, which: int) -> None:
        """The copy opens the file as it is when it first reads."""
        known = self._reader(which)
        copy = pickle.loads(pickle.dumps(known.cache))
        again = Known(copy, self.state.copy(), known.has_labels)
        again.shape()
        again.read(len(again.state) // 2)
        copy.close()

    @has_readers
    @rule(which=st.integers(0, 3), is_wanted=st.integers(0, 7))
    def fork(self, which: int, is_wanted: int) -> None:
        """A child sees what its parent sees, cannot write through its writer, and takes nothing away."""
        if is_wanted:
            return
        Archive.forks += 1
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                self._in_child(self._reader(which))
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def _in_child(self, known: Known) -> None:
        for index in range(len(known.state)):
            known.read(index)
        known.cache.refresh()
        Known(known.cache, self.state, known.has_labels).all()
        if self.writer is not None:
            with pytest.raises(ArchiveError):
                seal(self.writer._appender)

    # --- housekeeping ---

    @no_writer
    @rule()
    def rewrite(self) -> None:
        """Readers stay with the old file until they look again."""
        cache = CachedDataset.from_cache(self.path, allow_partial=True)
        cache.save(self.path, skip_damaged=True)
        cache.close()

    @rule()
    def save(self) -> None:
        cache = CachedDataset.from_cache(self.path, allow_partial=True)
        (target,) = cache.save(self.path + ".saved", skip_damaged=True)
        cache.close()
        cache = CachedDataset.from_cache(target)
        Known(cache, self.state.copy(), self.keys is not None).all()
        cache.close()
        os.unlink(target)

    @invariant()
    def count(self) -> None:
        Archive.steps += 1

    def teardown(self) -> None:
        if not hasattr(self, "path"):
            return
        for known in self.readers:
            known.all()
            known.cache.close()
            known.kept()
        if self.writer is not None:
            self.writer.abort()
            self._published()
        cache = CachedDataset.from_cache(self.path, allow_partial=True)
        Known(cache, self.state, self.keys is not None).all()
        cache.close()
        report = edcache.verify(self.path)
        assert report.problems == []
        assert (report.samples, report.missing) == (len(self.state), len(self.state.absent))
        self._by_another_reader()
        os.unlink(self.path)

    def _by_another_reader(self) -> None:
        """Another reader of the format finds the same records, label for label."""
        found = walk(self.path)
        assert (found.length, sorted(found.records)) == (len(self.state), sorted(self.state.records))
        assert {i: why[0] for i, why in found.failed.items() if i < found.length} == self.state.failures
        for name, values in self.state.labels.items():
            told = found.labels.get(name, {})
            assert [told.get(i) for i in range(found.length)] == [values.get(i) for i in range(found.length)]


class _Enough(Exception):
    """Leaves a writer's block without sealing."""


@contextmanager
def _a_folder() -> Iterator[None]:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="edcache-model-", dir=memory) as folder:
        _folders.append(Path(folder))
        try:
            yield
        finally:
            _folders.pop()


def play(machine: type[Archive], runs: int, tally: Any) -> None:
    """Let hypothesis play so many runs."""
    chosen = settings(
        max_examples=scaled(runs),
        stateful_step_count=20,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        print_blob=True,
    )
    before = Archive.runs, Archive.steps, Archive.forks
    with _a_folder():
        run_state_machine_as_test(seed(SEED)(machine), settings=chosen)
    tally("model runs", Archive.runs - before[0])
    tally("model steps", Archive.steps - before[1])
    tally("forks", Archive.forks - before[2])
