"""`map`: a cache of the results of a function, most often a frozen model, of the samples of a dataset.

Its source computes them: `Mapped` one at a time; `MappedBatches` many by one call, in this process or, read ahead, on
devices (dataset/devices.py).
"""

from __future__ import annotations

import functools
import os
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from edcache import base, identity, writer
from edcache.base import CacheOptions, CodecError, OptionError, takes
from edcache.codec import Columns, walk_leaves
from edcache.dataset.cached import CachedDataset
from edcache.dataset.devices import (
    Bucket,
    DeviceEngine,
    Devices,
    Function,
    OnDevice,
    check_frozen,
    devices_of,
    taken,
)
from edcache.dataset.indexing import Readable, batch_of, reading_of, runs_functions
from edcache.dataset.keys import keys_from, record_versions, stores_records
from edcache.dataset.transforms import Draw
from edcache.reader import Memory, at, fresh, steps
from edcache.writer import BatchEngine, Here

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
            nn.Module must be in evaluation mode. Gradients are off. A dict, list, tensor or array may be changed.
        source, path: a map-style dataset, a cache or a view; the archive of the results.
        batch_size: the number of samples in a call of `fn`. A killed process loses its batch, and the results of the
            last 0.02 seconds. Samples of several shapes are a batch for each. If there is no memory for a batch, its
            halves are tried. If `fn` raises for another reason, each sample is tried alone.
        devices: "cuda:0", a list, or "auto": all CUDA devices of the machine, or under torchrun the one of this rank.
            One process computes on each. `fn` is then an nn.Module, which is moved there, or a function of the device
            that returns the function of a batch. The default is the device of the parameters of `fn`.
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
    CacheOptions.of(None, keywords, "map")
    options: dict[str, Any] = dict(keywords)
    keep = [keep] if isinstance(keep, str) else list(keep)
    labels = kept_labels(source, keep)
    is_keyed = keys_from(source, key) is not None
    options["in_memory_keys"] = _with_labels(options.get("in_memory_keys"), labels, is_keyed)
    if batch_size is None:
        if devices is not None:
            raise OptionError("devices= takes batch_size=; a device computes batches", option="devices")
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


@base.cut_traceback
def mapped(
    path: str | os.PathLike[str] | None = None, **options: Any
) -> Callable[[Function], Callable[..., CachedDataset[Any]]]:
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

    if callable(path):
        raise OptionError(
            "mapped() takes the path of an archive; write @edcache.mapped(), or @edcache.mapped(path)"
        )

    def decorate(fn: Function) -> Callable[..., CachedDataset[Any]]:
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
    __edcache_raiser__ = "the function of map, or its source,"
    _needs_copies: bool | None = None  # None until a sample tells

    def __init__(
        self, fn: Function, source: Any, keep: list[str], labels: list[str], key: Any, version: object
    ) -> None:
        if not callable(fn):
            raise OptionError(f"fn={base.shown(fn)}; give a function, or an nn.Module: map(fn, source, path)")
        self.fn, self.source, self.version = fn, source, version
        self._keep, self._labels = keep, labels
        self._fields = [name for name in keep if name not in labels]
        self.keep = ", ".join(keep)
        keys = keys_from(source, key)
        if keys is None:
            if labels:  # else versions tell of them
                self.labels = identity.Settings().text([source.labels.to_list(name) for name in labels])
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
        kept = {name: deepcopy(taken(_field(sample, name))) for name in self._fields}
        kept |= {name: values[0] for name, values in self._labels_of([index]).items()}
        with torch.no_grad():
            made = self._made_of(sample)
        return self._with_kept(made, kept)

    def _made_of(self, sample: Any) -> Any:
        """Call `fn`; with a copy, if it changes the first one, since a source may keep its samples, as a list does.

        A sample is computed more than once, and would be changed each time.
        """
        if self._needs_copies is False:
            return self.fn(sample)
        copied = _copy(sample)
        made = self.fn(copied)
        if self._needs_copies is None:
            before, after = (identity.Settings().describe(one) for one in (sample, copied))
            self._needs_copies = before != after
        return made

    def _versions_from(self, is_named: bool) -> Callable[[], Sequence[Any]] | None:
        """Return the function that tells versions of all samples; None if nothing tells them.

        is_named: `key=` names the samples. It stands for what `fn` reads, such as a prompt, unless `keep` takes
            fields of each sample along.
        """
        source, by_record = self.source, False
        tell: Callable[[], Sequence[Any]] | None = None
        if isinstance(source, Readable):
            by_record = stores_records(reading_of(source))
            tell = partial(record_versions, source, self._labels) if by_record else None
        elif identity.tells(source, "sample_version"):
            tell = partial(identity.all_of, source, "sample_version")
        if not is_named or (self._keep and by_record):
            return tell
        if self._keep:
            return partial(self._versions_with_kept, tell)
        return None if tell is None else partial(self._least_versions, tell)

    def _least_versions(self, tell: Callable[[], Sequence[Any]]) -> list[Any]:
        """Return versions; samples of equal key have the least of theirs, as texts: None and a number have no order."""
        keys, versions, least = self.sample_keys(), tell(), dict[Any, Any]()
        for key, version in zip(keys, versions, strict=True):
            least[key] = min(version, least.get(key, version), key=repr)
        return [least[key] for key in keys]

    def _versions_with_kept(self, tell: Callable[[], Sequence[Any]] | None) -> list[Any]:
        """Return versions with what `keep` takes of each sample; no field of two samples is in memory at once."""
        described = identity.Settings().describe
        fields: dict[str, list[Any]] = {name: [] for name in self._fields}
        for index in range(len(self.source) if fields else 0):
            sample = self.source[self._positions([index])[0]]
            for name, told in fields.items():
                told.append([*described(_field(sample, name))])
        kept = [fields[name] if name in fields else self.source.labels.to_list(name) for name in self._keep]
        return [*zip(*([] if tell is None else [tell()]), *kept, strict=True)]

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
    _on_device: OnDevice | None = None
    _readers = 0
    _progress: base.Show = None

    def compute_on(self, devices: Sequence[torch.device], readers: base.Workers, progress: base.Show) -> None:
        """Compute on devices, each process of a fill on one. readers: processes that read ahead for each."""
        self._progress = None if callable(progress) else progress
        # Not all processors for each, if "auto" counts them.
        count = writer.worker_count(readers)
        self._devices, self._on_device = devices, OnDevice(self.fn, devices[0])
        self._readers = count if isinstance(readers, int) else max(1, count // len(devices))

    def __edcache_engine__(self, here: Here, slot: int) -> BatchEngine | None:
        """Return the engine of one of the processes of a fill: of the device of its number; None without devices."""
        if self._on_device is None:
            return None
        self._on_device.device = self._devices[slot % len(self._devices)]
        return DeviceEngine(self, self._on_device, here, self._readers, self._progress)

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
        kept = {name: _column([_field(sample, name) for sample in samples]) for name in self._fields}
        return positions, default_collate(samples), kept

    def _call(self, batch: Any) -> Any:
        if self._on_device is not None:
            return self._on_device.launch(batch)()
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


def _copy(sample: Any) -> Any:
    """Copy containers, tensors and arrays. Other objects stay: a copy of one may close its file a second time."""
    try:
        # In a list, so that no other object gets the id() of one.
        leaves = [leaf for _, leaf in walk_leaves(sample, _is_leaf)]
        return deepcopy(sample, {id(leaf): _copy_of_leaf(leaf) for leaf in leaves})
    except Exception:  # noqa: BLE001 - of a class of the user, or there is no room for two
        return sample


def _is_leaf(value: Any, depth: int) -> bool:
    return isinstance(value, Mapping) and not isinstance(value, dict | UserDict)  # as a group of a file


def _copy_of_leaf(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor:  # a deepcopy has all of the storage, and this may be a row
        return leaf.clone()
    if isinstance(leaf, np.ndarray):  # one that cannot be changed may be a large file that is mapped
        return leaf.copy(order="K") if leaf.flags.writeable else leaf
    return deepcopy(leaf) if isinstance(leaf, torch.Tensor | set | bytearray) else leaf


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


def _field(sample: Any, name: str) -> Any:
    try:
        return at(sample, steps(sample, name, "keep="))
    except OptionError as error:
        error.option = "keep"  # an argument of the call is wrong, not this sample
        raise


def _shape(sample: Any) -> Any:
    """Return what samples of one batch must have in common: structure, and the shapes of arrays."""
    if isinstance(sample, Mapping):
        return tuple((key, _shape(value)) for key, value in sample.items())
    if isinstance(sample, list | tuple):
        return tuple(_shape(value) for value in sample)
    return tuple(sample.shape) if isinstance(sample, torch.Tensor | np.ndarray) else None
