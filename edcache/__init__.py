"""edcache: a crash-safe, filterable, single-file cache for PyTorch datasets.

    cachable        decorate a dataset factory: the first call fills, later calls open
    CachedDataset   the dataset over an archive; from_cache() opens one without its source
    CacheWriter     write an archive without a Dataset
    ImageFile       an image as the bytes of its file, decoded as a Decoding says; image_folder() has many
    collate         a collate_fn for fields that vary in shape
    concat          several datasets as one; zip_fields() puts their fields side by side
    copy_to_local   copy an archive that is far away to a disk of this machine, once for all its processes
    import_cache    an archive from another system's cache; compat has the old names of some
    ray_executor    an Executor whose tasks run in Ray, to fill by
    register        let the codec store a class of yours: an enum, a dataclass, any other
    samplers        Balanced, Weighted, ByLength, ChunkShuffle: orders that know labels and chunks
    verify          check every byte of an archive; repair(), compact() and digest() mend, shrink, identify it
    merge           several archives copied into one; split() makes several of one
    export          samples as tar shards, folders, Parquet, a Hugging Face dataset or an .npz
    CacheOptions    what these take by keyword, as an object; ReadOptions, WriteOptions, FillOptions: parts
    EdcacheError    above every exception; edcache.errors shows the tree, each is edcache.NAME

The rooms, lowest floor first. Imports go down only, and from another room only what its `__init__` names
(tests/project/test_layers.py):

    0  base      errors, options as objects, progress, small helpers
    1  storage   files and what is like one, durably; locks; which backend has a path or a URL
    1  codec     a sample to the bytes of a record, and back
    1  format    the specification; entries and their chain, tables, the zip directory
    2  labels    columns of labels: collected, compared, filtered, exchanged
    3  reader    an open archive: records by index, many at once; collated batches
    4  writer    append, seal and fill; fingerprints of sources; what a backend answers
    5  dataset   what a user holds: CachedDataset, views, samplers, loaders, @cachable
    6  tools     verify, repair, compact, merge, split, digest, housekeeping
    6  interop   caches of other systems and their names, files of other formats, folders of images
    6  backends  places other than a path: remote, mirror, shm, redis
    7  cli       parse, call one function, print, exit code
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edcache import errors as errors
from edcache.errors import *  # noqa: F403 - each of them is edcache.NAME too

# Type checkers read this, a process reads _HOMES. `X as X` is what makes a name public for them.
if TYPE_CHECKING:
    from edcache import samplers as samplers
    from edcache.backends.mirror.copy import copy_to_local as copy_to_local
    from edcache.base.options import CacheOptions as CacheOptions
    from edcache.base.options import FillOptions as FillOptions
    from edcache.base.options import ReadOptions as ReadOptions
    from edcache.base.options import WriteOptions as WriteOptions
    from edcache.codec.imagefile import ImageFile as ImageFile
    from edcache.codec.imaging import Decoding as Decoding
    from edcache.codec.registry import register as register
    from edcache.dataset.cached import CachedDataset as CachedDataset
    from edcache.dataset.combining import concat as concat
    from edcache.dataset.combining import zip_fields as zip_fields
    from edcache.dataset.decorator import cachable as cachable
    from edcache.dataset.samples import View as View
    from edcache.interop.export import export as export
    from edcache.interop.folders import image_folder as image_folder
    from edcache.interop.importer import import_cache as import_cache
    from edcache.labels.view import Labels as Labels
    from edcache.reader.ragged import collate as collate
    from edcache.reader.reader import Reader as Reader
    from edcache.tools.compact import compact as compact
    from edcache.tools.digest import digest as digest
    from edcache.tools.merge import merge as merge
    from edcache.tools.repair import repair as repair
    from edcache.tools.split import split as split
    from edcache.tools.verify import verify as verify
    from edcache.writer.cache import CacheWriter as CacheWriter
    from edcache.writer.cluster import ray_executor as ray_executor

__version__ = "0.1.0"

_HOMES = {
    "CacheOptions": "edcache.base",
    "CacheWriter": "edcache.writer",
    "CachedDataset": "edcache.dataset",
    "Decoding": "edcache.codec",
    "FillOptions": "edcache.base",
    "ImageFile": "edcache.codec",
    "Labels": "edcache.labels",
    "ReadOptions": "edcache.base",
    "Reader": "edcache.reader",
    "View": "edcache.dataset",
    "WriteOptions": "edcache.base",
    "cachable": "edcache.dataset",
    "collate": "edcache.reader",
    "compact": "edcache.tools",
    "concat": "edcache.dataset",
    "copy_to_local": "edcache.backends.mirror",
    "digest": "edcache.tools",
    "export": "edcache.interop",
    "image_folder": "edcache.interop",
    "import_cache": "edcache.interop",
    "merge": "edcache.tools",
    "ray_executor": "edcache.writer",
    "register": "edcache.codec",
    "repair": "edcache.tools",
    "split": "edcache.tools",
    "verify": "edcache.tools",
    "zip_fields": "edcache.dataset",
}

__all__ = sorted(
    ["__version__", "errors", "samplers", *_HOMES]
    + [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
)


def __getattr__(name: str) -> Any:
    # Names load their rooms on first use, so that `edcache --help` need not wait for torch.
    if name == "samplers":
        return import_module("edcache.samplers")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'edcache' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
