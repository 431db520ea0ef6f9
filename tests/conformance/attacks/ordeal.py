"""Try every call of the package on a file, in a child of this process.

A call may take two seconds of processor time. Whatever it does but return or raise an EdcacheError is written
down as harm. An address space of a GiB more than the file protects the machine; it is no promise.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pictures
import pyarrow as pa
import torch
from likeness import same
from systems import reading_by
from torch.utils.data import default_collate

import edcache
import edcache.base.frames  # what warns: a module that is loaded during the ordeal is an event of its own
from edcache import CachedDataset, CacheWriter, EdcacheError

FREE = 1 << 30
CPU_SECONDS = 2
# Wall time says little on a shared machine: it only ends what waits for something.
PATIENCE = float(os.environ.get("EDCACHE_TEST_PATIENCE", "1"))
WALL_SECONDS = 60 * PATIENCE
MOST_SAMPLES = 48


class Heard(NamedTuple):
    """What came of one call: "returned", "refused" by an EdcacheError, or "harm"."""

    call: str
    outcome: str
    error: str = ""
    message: str = ""


class Harm(Exception):
    """What must not happen, found by looking at what was returned."""


class Original(NamedTuple):
    """The sound archive that a file was forged from: samples and labels by index."""

    path: Path
    samples: dict[int, Any]
    labels: dict[str, dict[int, Any]]


class Ordeal:
    """Every call, one after the other, on one file.

    Args:
        original: what the file was; forged: its values may be others; longer: so may its length.
    """

    def __init__(self, path: Path, original: Original, forged: bool, longer: bool) -> None:
        self.path = path
        self.original = original
        self.forged = forged
        self.longer = longer
        self.heard: list[Heard] = []
        self.watched = True

    def run(self, copy: Path | None) -> list[Heard]:
        self._try("verify", self._verify)
        self._opened("mmap", lambda ds: self._read(ds, ""))
        self._opened("pread", lambda ds: self._read(ds, " pread"))
        self.watched = False
        if copy is not None:
            self._try("append", lambda: self._append(copy))
        return self.heard

    def _opened(self, way: str, read: Callable[[Any], None]) -> None:
        with reading_by(way):
            ds = self._try(f"open {way}", lambda: CachedDataset.from_cache(self.path))
        if ds is not None:
            read(ds)
            ds.close()
            del ds
        gc.collect()  # its mapping goes

    def _try(self, call: str, function: Callable[[], Any]) -> Any:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS * PATIENCE)
        try:
            found = function()
        except EdcacheError as error:
            self.heard.append(Heard(call, "refused", type(error).__name__, str(error)[:2000]))
            return None
        except BaseException as error:
            where = "".join(traceback.format_exception(error)[-6:])[-1500:]
            self.heard.append(Heard(call, "harm", type(error).__name__, f"{str(error)[:300]}\n{where}"))
            return None
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        self.heard.append(Heard(call, "returned"))
        return found

    def _verify(self) -> None:
        report = edcache.verify(self.path)
        state = "sealed" if report.sealed else "unsealed"
        self.heard.append(
            Heard("verify says", "unsound" if report.problems else state, "", _joined(report.problems))
        )

    def _read(self, ds: Any, way: str) -> None:
        count = self._try(f"len{way}", lambda: self._length(ds)) or 0
        self._try(f"repr{way}", lambda: repr(ds))
        self._samples(ds, way)
        first = list(range(min(count, 8)))
        if first:
            self._try(f"batch{way}", lambda: self._batch(ds, first))
            self._try(f"batch of one{way}", lambda: self._batch(ds, first[:1]))
        self._try(f"slice{way}", lambda: self._slice(ds, slice(0, 3)))
        self._try(f"all{way}", lambda: ds[:].indices)
        self._try(f"missing{way}", lambda: ds.missing)
        self._try(f"indices{way}", lambda: ds.indices)
        self._try(f"errors{way}", lambda: len(ds.errors))
        self._try(f"info{way}", lambda: ds.info())
        self._try(f"filter nothing{way}", lambda: len(ds.filter()))
        self._try(f"shuffle{way}", lambda: ds.shuffle(0).indices)
        self._try(f"labels{way}", lambda: self._labels(ds))
        for name in self.original.labels:
            self._try(f"label {name}{way}", lambda name=name: self._label(ds, name))
            self._try(f"filter {name}{way}", lambda name=name: len(ds.filter(f"col('{name}') is not None")))
        if "y" in self.original.labels:
            self._try(f"filter y=1{way}", lambda: self._filter(ds))
            self._try(f"counts{way}", lambda: ds.labels.counts("y"))

    def _length(self, ds: Any) -> int:
        if len(ds) != max(self.original.samples) + 1 and not (self.longer or self.forged):
            raise Harm(f"{len(ds)} samples")
        return len(ds)

    def _samples(self, ds: Any, way: str) -> None:
        # One behind the last, too.
        for index in [*range(min(len(ds) + 1, MOST_SAMPLES)), max(0, len(ds) - 1)]:
            self._try(f"sample {index}{way}", lambda index=index: self._sample(index, ds[index]))

    def _sample(self, index: int, found: Any) -> None:
        if not self.forged and not same(found, self.original.samples.get(index)):
            raise Harm(f"sample {index} has another value")

    def _batch(self, ds: Any, indices: list[int]) -> None:
        try:
            found = ds.batch(indices)
        except (TypeError, RuntimeError, ValueError, OverflowError, LookupError) as error:
            # What torch says of samples that make no batch.
            if isinstance(error, EdcacheError) or not _is_uncollatable(ds, indices, error):
                raise
            return
        if not self.forged:
            wanted = default_collate([self.original.samples[index] for index in indices])
            if not same(found, wanted):
                raise Harm("another batch")

    def _slice(self, ds: Any, chosen: slice) -> None:
        view = ds[chosen]
        for place in range(len(view)):
            self._sample(int(view.indices[place]), view[place])

    def _labels(self, ds: Any) -> None:
        table = ds.labels.table
        table.validate(full=True)

    def _label(self, ds: Any, name: str) -> None:
        values = ds.labels[name]
        if self.forged:
            return
        column = self.original.labels[name]
        for index, value in enumerate(values[:MOST_SAMPLES]):
            plain = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
            if isinstance(value, np.datetime64):
                plain = value.astype("M8[us]").tolist()
            if plain != column.get(index) and plain is not None and plain == plain:
                raise Harm(f"label {name} of {index} has another value")

    def _filter(self, ds: Any) -> None:
        found = ds.filter(y=1).indices.tolist()
        wanted = [index for index, value in self.original.labels["y"].items() if value == 1]
        if not self.forged and not set(found) <= set(wanted):
            raise Harm("the filter chose others")

    def _append(self, copy: Path) -> None:
        with CacheWriter(copy, "a", publish_seconds=None, sync="never") as w:
            w.append(next(iter(self.original.samples.values())))


def _is_uncollatable(ds: Any, indices: list[int], error: BaseException) -> bool:
    try:
        default_collate([ds[index] for index in indices])
    except (TypeError, RuntimeError, ValueError, OverflowError, LookupError) as other:
        return type(other) is type(error)
    return False


def _joined(problems: list[str]) -> str:
    return "\n".join(problem[:300] for problem in problems[:20])


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def tried(
    path: Path, original: Original, *, forged: bool = False, longer: bool = False, copy: Path | None = None
) -> list[Heard]:
    """What came of every call on a file; a child that dies or waits leaves a last line that says so."""

    def watched() -> list[Heard]:
        ordeal = Ordeal(path, original, forged, longer)
        seen = watch(ordeal)
        heard = ordeal.run(copy)
        return heard + [Heard("audit", "event", event, detail) for event, detail in list(seen)]

    return in_child(watched, path, original)


# What Python's audit hooks tell of: code that runs, comes from somewhere, or reaches out of the process.
WATCHED = (
    *("import", "exec", "compile", "code.__new__", "function.__new__", "pickle.find_class", "marshal."),
    *("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "ctypes.", "socket."),
    *("urllib.", "builtins.input", "cpython.", "shutil.", "os.remove", "os.rename", "os.chmod", "os.mkdir"),
    *("os.link", "os.symlink", "os.truncate", "webbrowser.", "open"),
)


def watch(ordeal: Ordeal) -> dict[tuple[str, str], None]:
    """While the file is read: every watched event but its own opening, once each."""
    seen: dict[tuple[str, str], None] = {}
    own = str(ordeal.path)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if ordeal.watched and event.startswith(WATCHED) and (event != "open" or str(arguments[0]) != own):
            seen[event, str(arguments[0])[:500] if arguments else ""] = None

    sys.addaudithook(hook)
    return seen


def in_child(work: Callable[[], Any], path: Path, original: Original) -> list[Any]:
    """The result of `work`, done in a child with little room; a list that ends in harm if it had none."""
    warm(original)
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _work(work, path, original, writing)
        except BaseException:
            _send([Heard("the child", "harm", "exception", traceback.format_exc()[-3000:])], writing)
        os._exit(0)
    os.close(writing)
    data, ended = bytearray(), time.monotonic() + WALL_SECONDS
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, ended - time.monotonic()))
        part = os.read(reading, 1 << 16) if ready else b""
        if not part:
            break
        data += part
    os.close(reading)
    if not ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    heard = pickle.loads(data) if data and status == 0 else []
    if status:
        code = os.waitstatus_to_exitcode(status)
        what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        heard.append(Heard("the child", "harm", what, "waited too long" if not ready else ""))
    return heard


def _work(work: Callable[[], Any], path: Path, original: Original, writing: int) -> None:
    # Threads do not survive a fork: what needs some starts them before the room is measured.
    torch.set_num_threads(1)
    ds = CachedDataset.from_cache(original.path)
    ds.filter("y is not None")
    ds.select("image").batch([0])
    ds.close()
    size = path.stat().st_size if path.is_file() else 0
    limit = _address_space() + size + FREE
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    result = work()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    _send(result, writing)


def _send(result: Any, writing: int) -> None:
    data = pickle.dumps(result)
    while data:
        data = data[os.write(writing, data) :]


_warmed: set[Path] = set()


def warm(original: Original) -> None:
    """Do everything once in this process, so that libraries have imported what they need."""
    if original.path in _warmed:
        return
    _warmed.add(original.path)
    if find_spec("PIL"):
        # What a record that holds an image imports, and Pillow's plugins, which it imports over a broken one.
        pictures.Image.init()
        for library in ("pillow", "simplejpeg"):
            with pictures.by_library(library):
                edcache.ImageFile(pictures.jpeg()).decode("tensor")
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    heard = Ordeal(original.path, original, False, False).run(None)
    assert not any(h.outcome in ("harm", "unsound") for h in heard)
    # A child would copy every page of what was imported, each time it collects.
    gc.collect()
    gc.freeze()
