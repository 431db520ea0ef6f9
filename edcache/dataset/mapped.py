"""`map`: a cache of the results of a function, most often a frozen model, of the samples of a dataset.

A batch for a device is submitted, read (in the order of the submissions: of a cache by threads, which gather it as
`ds.loader` does; of any other source by processes), launched, and arrives. On a GPU
one is launched ahead: it is computed while the one before it travels back and is stored. A batch that cannot be read or
launched, or raises, is computed by the engine of this process (writer/engine.py:Here).

What must never happen: that the results of one batch are given for another. So batches are read, launched and asked for
in one order.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from edcache import base, identity, writer
from edcache.base import CacheOptions, CodecError, OptionError, takes
from edcache.codec import Columns
from edcache.dataset.cached import CachedDataset
from edcache.dataset.devices import Arrive, Devices, Function, OnDevice, check_frozen, devices_of, taken
from edcache.dataset.indexing import Readable, batch_of, reading_of, runs_functions
from edcache.dataset.keys import keys_from, record_versions, stores_records
from edcache.dataset.loader import pinned, work_alone
from edcache.dataset.transforms import Draw
from edcache.reader import Memory, fresh
from edcache.storage import own_positions
from edcache.writer import BatchEngine, Here, PartOfBatch, Pending, counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

Bucket: TypeAlias = tuple[list[int], Any, dict[str, Any]]
"""Samples of one shape in a batch: their positions in it, the samples collated, and their fields to keep."""

# Seconds of a fill whose waiting is told, and a part of waiting that more readers may shorten.
_TOLD_SECONDS, _MUCH = 10, 0.1
# Batches that each reader reads ahead; and threads that gather: one is not enough for a fast model.
_READ_AHEAD: Final = 2
_LEAST_THREADS: Final = 2


@takes(CacheOptions, without=("batch_size",))
@base.cut_traceback
def map(  # type: ignore[misc]  # it has a batch_size of its own
    fn: Function,
    source: Any,
    path: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    devices: Devices = None,
    keep: str | Sequence[str] = (),
    key: str | Callable[[Any], Any] | None = None,
    version: object = None,
    **keywords: Unpack[base.CacheKeywords],
) -> CachedDataset[Any]:
    """Cache the results of a function of the samples of a dataset: latents, embeddings, features, logits.

    Args:
        fn: a function of a sample; with `batch_size` of a batch, as `default_collate` makes it. It returns a dict or a
            tuple of tensors or lists, with one item for each sample; one tensor [n, ...]; or a list of n samples. An
            nn.Module must be in evaluation mode. Gradients are off.
        source, path: a map-style dataset, a cache or a view; the archive of the results.
        batch_size: the number of samples in a call of `fn`. A killed process loses its batch, and the results of the
            last 0.02 seconds. Samples of several shapes are a batch for each. If there is no memory for a batch, its
            halves are tried. If `fn` raises for another reason, each sample is tried alone.
        devices: "cuda:0", a list of devices, or "auto": all CUDA devices of the machine, or under torchrun the one of
            this rank. One process computes on each. `fn` is then an nn.Module, which is moved there, or a function of
            the device that returns the function of a batch. Batches are moved there, and results back. The default is
            the device of the parameters of `fn`, if it has any.
        keep: names of label columns of `source`, or else of fields, that go along; `fn` then returns a dict. A label
            stays a label. A field is kept as `source` gave it, also if `fn` changes its input.
        key: name of a label column of `source`, or else of a field, or a function of a sample of `source`. Samples of
            equal key are computed once, unless `keep` takes another value of each along. The default is
            `source.sample_key`, or the keys of a cache. New keys alone are computed (docs/howto/keys.md).
        version: change it if `fn` makes other results, and neither its values nor its weights show it.
        keywords: these options. num_workers processes compute; with `devices` processes, or threads, read ahead.
    Returns:
        A CachedDataset of the results, [len(source)]. If the archive has them all, `fn` computes one sample to compare.
    Raises:
        OptionError: `fn` returned another number of results than a batch has samples.
        SourceError, StaleCacheError: as `CachedDataset`; `fn` and its values, `source`, `keep` and `version` count.

    Safety: processes that make the same call share the work, and none computes a batch of another.

    >>> encoder = load_encoder().eval()
    >>> latents = edcache.map(encoder, images, "latents.zip", batch_size=64, devices="auto", keep="label")
    """
    writer.check_source(source, str(path))
    options: dict[str, Any] = dict(keywords)
    keep = [keep] if isinstance(keep, str) else list(keep)
    labels = kept_labels(source, keep)
    is_keyed = keys_from(source, key) is not None
    options["in_memory_keys"] = _with_labels(options.get("in_memory_keys"), labels, is_keyed)
    if batch_size is None and devices is not None:
        raise OptionError("devices= takes batch_size=; a device computes batches", option="devices")
    if batch_size is None:
        return CachedDataset(Mapped(check_frozen(fn), source, keep, labels, key, version), path, **options)
    base.check_count("batch_size", batch_size)
    batches = MappedBatches(fn, source, keep, labels, key, version)
    if places := devices_of(fn, devices):
        batches.compute_on(places, options.get("num_workers", 0), options.get("progress"))
        options = _for_devices(places, options)
    return CachedDataset(batches, path, batch_size=batch_size, **options)


def kept_labels(source: Any, keep: str | Sequence[str]) -> list[str]:
    """Return the names in `keep=` that are label columns of the source."""
    names = [keep] if isinstance(keep, str) else keep
    return [name for name in names if isinstance(source, Readable) and name in source.labels]


def _for_devices(devices: Sequence[torch.device], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a fill that has a process for each device; one device is this process's."""
    if options.get("executor") is not None:
        text = "devices= are of this machine; with executor= fn finds its own"
        raise OptionError(text, option="devices")
    asked = options.get("multiprocessing_context")
    context = asked if asked is not None or devices[0].type == "cpu" else "spawn"  # a fork cannot use CUDA
    return options | {
        "num_workers": 0 if len(devices) == 1 else len(devices),
        "multiprocessing_context": context,
    }


def _with_labels(keys: Any, labels: list[str], is_keyed: bool) -> Any:
    """Add the labels that are kept to `in_memory_keys`, but for the columns that the keys of a source make."""
    labels = [name for name in labels if not (is_keyed and name in identity.KEYED_COLUMNS)]
    if not labels:
        return keys
    if isinstance(keys, Mapping):
        return {**{name: name for name in labels}, **keys}
    return [*labels, *(key for key in keys or () if key not in labels)]


class _Map(Protocol):
    """Function that `mapped` makes."""

    def __call__(self, source: Any, path: str | os.PathLike[str] | None = None) -> CachedDataset[Any]:
        """Return the cache of the results for a source. path: in the place of the decorator's."""
        ...


def mapped(path: str | os.PathLike[str] | None = None, **options: Any) -> Callable[[Function], _Map]:
    """Turn a function of a sample, or of a batch, into one of a dataset: it returns the cache of the results.

    Args:
        path: the archive. A call may give another one.
        options: as of `map`.

    >>> @edcache.mapped("features.zip", batch_size=256, num_workers=8)
    ... def features(batch):
    ...     return {"histogram": histograms(batch["image"])}
    >>> train = features(images)
    >>> test = features(test_images, "test-features.zip")
    """

    def decorate(fn: Function) -> _Map:
        @functools.wraps(fn)
        def call(source: Any, path: str | os.PathLike[str] | None = path) -> CachedDataset[Any]:
            if path is None:
                raise OptionError(f"{fn.__name__}() got no path; give it one, or @mapped", option="path")
            return map(fn, source, path, **options)

        return call

    return decorate


class Mapped(Dataset[Any]):
    """Source of a mapped cache: results of a function of single samples.

    Its public attributes identify it (identity/recipe.py): also the values of labels that are kept, which may change
    while the samples stay.
    """

    __edcache_ignore__ = ("sample_keys", "sample_versions")  # which are compared sample by sample

    def __init__(
        self, fn: Function, source: Any, keep: list[str], labels: list[str], key: Any, version: object
    ) -> None:
        self.fn, self.source, self.version = fn, source, version
        self._keep, self._labels = keep, labels
        self._fields = [name for name in keep if name not in labels]
        self.keep = ", ".join(keep)
        keys = keys_from(source, key)
        if keys is None:
            if labels:  # else versions tell of them
                self.labels = str(
                    identity.Settings().describe([source.labels.to_list(name) for name in labels])
                )
            return
        self.sample_keys = keys
        versions = self._versions_from(key is not None)
        if versions is not None:
            self.sample_versions = versions

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        sample = self.source[self._positions([index])[0]]
        # Copies, as `fn` may change the sample.
        kept = {name: deepcopy(taken(sample[name])) for name in self._fields}
        kept |= {name: values[0] for name, values in self._labels_of([index]).items()}
        with torch.no_grad():
            made = self.fn(sample)
        return self._with_kept(made, kept)

    def _versions_from(self, is_named: bool) -> Callable[[], Sequence[Any]] | None:
        """Return the function that tells versions of all samples; None if none is to tell more than attributes do.

        is_named: `key=` names the samples. It stands for what `fn` reads, such as a prompt, unless `keep` takes
            fields of each sample along.
        """
        source, by_record = self.source, False
        tell: Callable[[], Sequence[Any]] | None = None
        if isinstance(source, Readable):
            by_record = stores_records(source)
            tell = partial(record_versions, source, self._labels) if by_record else None
        elif identity.tells(source, "sample_version"):
            tell = partial(identity.all_of, source, "sample_version")
        if not is_named or (self._keep and by_record):
            return tell
        if self._keep:
            return partial(self._versions_with_kept, tell)
        if tell is None and not isinstance(source, Readable) and identity.guessed(source):
            tell = partial(identity.versions_of, source)
        return None if tell is None else partial(self._least_versions, tell)

    def _least_versions(self, tell: Callable[[], Sequence[Any]]) -> list[Any]:
        """Return versions; samples of equal key have the least of theirs."""
        keys, versions, least = self.sample_keys(), tell(), dict[Any, Any]()
        for key, version in zip(keys, versions, strict=True):
            least[key] = min(version, least.get(key, version))
        return [least[key] for key in keys]

    def _versions_with_kept(self, tell: Callable[[], Sequence[Any]] | None) -> list[Any]:
        """Return versions with what `keep` takes of each sample."""
        return [*zip(*([] if tell is None else [tell()]), *self._kept_columns(), strict=True)]

    def _kept_columns(self) -> Iterator[list[Any]]:
        described = identity.Settings().describe
        samples = [self._fields_of(index) for index in range(len(self.source) if self._fields else 0)]
        for name in self._keep:
            if name in self._labels:
                yield self.source.labels.to_list(name)
            else:
                yield [[*described(sample[name])] for sample in samples]

    def _fields_of(self, index: int) -> dict[str, Any]:
        sample = self.source[self._positions([index])[0]]
        return {name: sample[name] for name in self._fields}

    def _positions(self, indices: list[int]) -> list[int]:
        """Return positions to read; of a source with seeded transforms as it is in epoch 0, also later."""
        is_seeded = isinstance(self.source, Readable) and reading_of(self.source).is_seeded
        return [Draw(index, 0) for index in indices] if is_seeded else indices

    def _labels_of(self, indices: list[int]) -> dict[str, list[Any]]:
        """Return the labels to keep of some samples."""
        if not self._labels:
            return {}
        rows = self.source.labels.take(np.array(indices))
        return {name: rows.to_list(name) for name in self._labels}

    def _with_kept(self, made: Any, kept: dict[str, Any]) -> Any:
        """Put labels and fields before the fields of a result, as `keep` names them."""
        if not self._keep:
            return made
        if not isinstance(made, Mapping):
            raise OptionError(
                f"keep= adds fields to those of fn, which returned {base.described(made)}; let it return a dict",
                option="keep",
            )
        if both := [name for name in self._keep if name in made]:
            raise OptionError(
                f"fn returned a field {both[0]!r}, and keep= adds one; give one of them another name",
                option="keep",
            )
        return {name: kept[name] for name in self._keep} | dict(made)


class MappedBatches(Mapped):
    """Source of a mapped cache: results of a function of batches, which are computed here, or on devices."""

    _devices: Sequence[torch.device] = ()
    _device = torch.device("cpu")
    _on_device: OnDevice | None = None
    _readers = 0
    _progress: base.Show = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_on_device": None}

    def compute_on(self, devices: Sequence[torch.device], readers: base.Workers, progress: base.Show) -> None:
        """Compute on devices, each process of a fill on one. readers: processes that read ahead for each."""
        self._progress = None if callable(progress) else progress
        # Not all processors for each, if "auto" counts them.
        count = writer.worker_count(readers)
        self._devices, self._device = devices, devices[0]
        self._readers = count if isinstance(readers, int) else max(1, count // len(devices))

    def __edcache_engine__(self, here: Here, slot: int) -> BatchEngine | None:
        """Return the engine of one of the processes of a fill: of the device of its number; None without devices."""
        if not self._devices:
            return None
        self._device = self._devices[slot % len(self._devices)]
        return DeviceEngine(self, here, self._device, self._readers, self._progress)

    def launch(self, batch: Any) -> Arrive:
        """Compute a batch on the device of this process; its result arrives later."""
        if self._on_device is None:
            self._on_device = OnDevice(self.fn, self._device)
        return self._on_device.launch(batch)

    @property
    def busy(self) -> float:
        """Seconds that the device took for the batches which have arrived."""
        return 0.0 if self._on_device is None else self._on_device.busy

    def __getitem__(self, index: int) -> Any:
        return _samples(self.__getitems__([index]))[0]

    def __getitems__(self, indices: list[int]) -> Any:
        return self.joined(indices, [(bucket, self._call(bucket[1])) for bucket in self.read(indices)])

    @property
    def gathers(self) -> bool:
        """True if a batch is read by one gather a field, without code of the user."""
        if self._fields or not isinstance(self.source, Readable):
            return False
        reading = reading_of(self.source)
        return not reading.root.computes and not runs_functions(reading)

    def read(self, indices: list[int], memory: Memory = fresh) -> list[Bucket]:
        """Read and collate samples of the source: all, or the samples of each shape."""
        whole = [*range(len(indices))]
        if isinstance(self.source, Readable) and not self._fields:
            with suppress(RuntimeError, OptionError):  # they differ in shape, or in fields
                batch = batch_of(self.source, self._positions(indices))
                return [(whole, batch.collated(memory=memory), {})]
        samples = writer.samples_at(self.source, self._positions(indices))
        with suppress(RuntimeError, KeyError):
            return [self._bucket(whole, samples)]
        by_shape: dict[Any, list[int]] = {}
        for position, sample in enumerate(samples):
            by_shape.setdefault(_shape(sample), []).append(position)
        return [self._bucket(positions, samples) for positions in by_shape.values()]

    def _bucket(self, positions: list[int], samples: list[Any]) -> Bucket:
        """Collate some samples. Fields to keep are copied before, since collation transposes a tuple."""
        samples = [samples[position] for position in positions]
        kept = {name: _column([sample[name] for sample in samples]) for name in self._fields}
        return positions, default_collate(samples), kept

    def _call(self, batch: Any) -> Any:
        if self._devices:
            return self.launch(batch)()
        with torch.no_grad():
            return taken(self.fn(batch))

    def joined(self, indices: list[int], results: list[tuple[Bucket, Any]]) -> Any:
        """Return the results of the buckets of a batch, with the fields that are kept: columns, or a list."""
        made = [self._columns(indices, bucket, one) for bucket, one in results]
        if len(made) == 1:
            return made[0]
        positions = [position for (positions, *_), _ in results for position in positions]
        samples = [sample for one in made for sample in _samples(one)]
        return [samples[k] for k in np.argsort(positions)]

    def _columns(self, indices: list[int], bucket: Bucket, made: Any) -> Any:
        positions, _, kept = bucket
        indices = [indices[position] for position in positions]
        columns = _plain(made)
        columns = (
            list(columns) if isinstance(columns, torch.Tensor | np.ndarray) and columns.ndim else columns
        )
        _check_count(columns, len(indices))
        return self._with_kept(columns, self._labels_of(indices) | kept)


class DeviceEngine(BatchEngine):
    """Engine of a device.

    here: computes the batches that this cannot. readers: processes that read ahead; without any this process reads.
    progress: whether a line tells how long the device waited.
    """

    gives_batches = True

    def __init__(
        self, source: MappedBatches, here: Here, device: torch.device, readers: int, progress: base.Show
    ) -> None:
        self._source, self._here, self.watch = source, here, here.watch
        self._device, self._progress = device, progress
        self._readers = max(readers, _LEAST_THREADS) if source.gathers else readers
        # Results of a CPU are there when the function returns; a killed process then loses one batch, not two.
        self._is_cuda = device.type == "cuda"
        self._most_launched = 2 if self._is_cuda else 1
        # One more than are read and launched, since a reader gets the next batch when one that was read is taken.
        self.depth = self._most_launched + _READ_AHEAD * self._readers
        # Indices of batches that no reader has yet; of batches that are not launched; and the batches that are.
        self._asked, self._waiting = deque[list[int]](), deque[list[int]]()
        self._launched = deque[list[tuple[Bucket, Arrive]]]()
        self._lost = 0
        self._read: Iterator[list[Bucket]] | None = None
        self._handler: Any = None  # of SIGCHLD, as it was before

    def __enter__(self) -> DeviceEngine:
        self._began, self._busy = time.monotonic(), self._source.busy
        return self

    def submit(self, indices: list[int]) -> Pending:
        """Let a batch be read; one that has ended a process is neither read nor computed here."""
        if self._here.is_suspect(indices):
            return self._here.submit(indices)
        self._waiting.append(indices)
        self._asked.append(self._here.rows(indices))
        return Pending(partial(self._result, indices))

    def _result(self, indices: list[int]) -> Iterable[PartOfBatch]:
        """Launch the next batches, and wait for the first, `indices`."""
        while self._waiting and len(self._launched) < self._most_launched:
            self._launched.append(self._launch(self._waiting.popleft()))
        self.watch.begin(indices[0], len(indices))
        try:
            results = [(bucket, arrive()) for bucket, arrive in self._launched.popleft()]
            made = counted(self._source.joined(self._here.rows(indices), results), len(indices))
        except Exception:  # noqa: BLE001 - computed here, the batch raises it again; a device raises later, too
            return self._here.compute(indices)
        finally:
            self.watch.made()
        return [(indices, made)]

    def _launch(self, indices: list[int]) -> list[tuple[Bucket, Arrive]]:
        """Wait until a batch is read, and launch each shape of it; none if it could not be."""
        if self._lost:
            self._lost -= 1
            return []
        self.watch.begin(indices[0], len(indices))
        try:
            buckets = self._next()
        except (RuntimeError, OSError, EOFError) as error:  # a reader was killed, perhaps amid a batch
            base.warn(f"{error}; the batches that were to be read are computed one by one")
            self._read = None
            self._asked.clear()
            self._lost = len(self._waiting)
            return []
        try:
            return [(bucket, self._source.launch(bucket[1])) for bucket in buckets]
        except Exception:  # noqa: BLE001 - computed here, the batch raises it again
            return []

    def _next(self) -> list[Bucket]:
        """Return the batch that was asked for first; readers end when all that was asked for is read."""
        if self._read is not None:
            buckets = next(self._read, None)
            if buckets is not None:
                return buckets
        self._read = self._by_threads() if self._source.gathers else self._by_processes()
        return next(self._read)

    def _by_threads(self) -> Iterator[list[Bucket]]:
        read = partial(_Reading(self._source).read, memory=pinned if self._is_cuda else fresh)
        running = deque[Future[list[Bucket]]]()
        with ThreadPoolExecutor(self._readers, "edcache-map", work_alone, (torch.get_num_threads(),)) as pool:
            try:
                while True:
                    most = _READ_AHEAD * self._readers - len(running)
                    running += [pool.submit(read, one) for one in islice(_Asked(self._asked), most)]
                    if not running:
                        return
                    yield running.popleft().result()
            finally:
                for future in running:
                    future.cancel()

    def _by_processes(self) -> Iterator[list[Bucket]]:
        handler = signal.getsignal(signal.SIGCHLD) or signal.SIG_DFL
        is_torchs = getattr(handler, "__module__", "").startswith("torch.")
        read = iter(
            DataLoader(
                _Reading(self._source),
                batch_size=None,
                sampler=_Asked(self._asked),
                num_workers=self._readers,
                collate_fn=_unchanged,
                worker_init_fn=own_positions,
                pin_memory=self._is_cuda,
            )
        )
        if threading.current_thread() is threading.main_thread():
            # torch's handler raises the death of a reader at any place of this thread, as amid an append. Without it
            # `next` raises, within five seconds.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL if is_torchs else handler)
            self._handler = handler if self._handler is None else self._handler
        return read

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """End the readers, and tell in which part of the time the device had no batch."""
        self._read = None
        if self._handler is not None:
            signal.signal(signal.SIGCHLD, self._handler)
        seconds = time.monotonic() - self._began
        if kind is None and seconds >= _TOLD_SECONDS:
            part = max(0.0, 1 - (self._source.busy - self._busy) / seconds)
            text = f"{self._device}: waited {part:.0%} of {timedelta(seconds=round(seconds))} for batches"
            base.tell(text + "; more num_workers read faster" * (part > _MUCH), self._progress)


class _Asked:
    """Sampler of a DataLoader: the batches that wait for a reader. It goes on after its end, when more wait."""

    def __init__(self, asked: deque[list[int]]) -> None:
        self._asked = asked

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        if not self._asked:
            raise StopIteration
        return self._asked.popleft()


class _Reading(Dataset[Any]):
    """Batches of a source, by their indices; none of a batch that cannot be read."""

    def __init__(self, source: MappedBatches) -> None:
        self._source = source

    def __getitem__(self, indices: Any) -> list[Bucket]:
        return self.read(indices)

    def read(self, indices: list[int], memory: Memory = fresh) -> list[Bucket]:
        """Read a batch into memory; its shapes."""
        try:
            return self._source.read(indices, memory)
        except Exception:  # noqa: BLE001 - computed here, the batch raises it again
            return []


def _unchanged(buckets: Any) -> Any:
    return buckets


def _samples(columns: Any) -> list[Any]:
    """Split columns into samples."""
    if isinstance(columns, list):
        return columns
    tree = Columns(columns)
    return [tree.at(k) for k in range(tree.count)]


def _check_count(columns: Any, count: int) -> None:
    """Raise OptionError unless the result of a function has a row for each of `count` samples."""
    batch = f"for a batch of {count:,} sample{'s' * (count != 1)}"
    try:
        found = len(columns) if isinstance(columns, list) else Columns(columns).count
    except (CodecError, OptionError) as error:
        raise OptionError(f"fn returned {base.described(columns)} {batch}: {error}", option="fn") from error
    if found != count:
        raise OptionError(
            f"fn returned {found:,} result{'s' * (found != 1)} {batch}; give one for each sample, "
            "in the first dimension of each tensor",
            option="fn",
        )


def _plain(made: Any) -> Any:
    """Turn the result of a library into columns: its own kind of dict into a dict, a nested tensor into a list."""
    if isinstance(made, torch.Tensor):
        return list(made.unbind()) if made.is_nested else made
    if isinstance(made, Mapping):
        return {key: _plain(value) for key, value in made.items()}
    return tuple(_plain(value) for value in made) if type(made) is tuple else made


def _column(values: list[Any]) -> Any:
    """Join tensors that are alike, which then travel between processes as one; other values stay a list."""
    is_alike = all(type(value) is torch.Tensor for value in values)
    is_alike = is_alike and len({(value.dtype, value.shape, value.layout) for value in values}) == 1
    return torch.stack(values) if is_alike else values


def _shape(sample: Any) -> Any:
    """Return what samples of one batch must have in common: structure, and the shapes of arrays."""
    if isinstance(sample, Mapping):
        return tuple((key, _shape(value)) for key, value in sample.items())
    if isinstance(sample, list | tuple):
        return tuple(_shape(value) for value in sample)
    return tuple(sample.shape) if isinstance(sample, torch.Tensor | np.ndarray) else None
