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

The rooms, lowest floor first; imports go down only (tests/project/test_layers.py):

    0  errors, and above it bounded, modules,   the exception tree; what a stranger's bytes may allocate;
       once, sizes, suggestion, zipdirectory,   names of modules; properties without a lock; sizes as people
       and above them options                   write them; names that were meant; the end of a zip; keywords
    1  format, durable, codec, labels,          bytes <-> values; files, and which backend has a path or a
       fingerprint, progress, selection         URL; samples; Arrow tables; what identifies a source; what a
                                                person sees; indices
    2  temporary                                what is written beside a path
    3  archives, contents, digests, folders,    which archives are meant; the tables of one merged into one;
       ordering                                 its SHA-256; a folder of image files; shuffles, deals, sorts
    4  reader, writer                           they meet only in the file
    5  stores                                   what a backend answers; files, and objects of a server
    6  fill, batch, samplers, xla               which samples are missing, who computes them; many records
                                                to one collated batch; in which order; what XLA asks for
    7  loader                                   batches by threads of this process
    8  views                                    selections of samples and fields, several datasets as one
    9  dataset                                  CachedDataset
    10 decorator, maintain, housekeeping,       @cachable; prove, mend, shrink, merge, split; which archives
       importers, exporting, above them compat  may go; caches of other systems; files of other formats; old
                                                names
    11 servers, memory, places, above them      backends: a URL of a server; shared memory; objects behind
       local, preload, redis                    URLs; copies on this machine, copies in memory; Redis
    12 present, above it cli                    how a person is shown tables and samples; parse, call one
                                                function, print, exit code
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edcache import errors as errors
from edcache.errors import *  # noqa: F403 - each of them is edcache.NAME too

# Type checkers read this, a process reads _HOMES. `X as X` is what makes a name public for them.
if TYPE_CHECKING:
    from edcache import samplers as samplers
    from edcache.batch import collate as collate
    from edcache.codec import Decoding as Decoding
    from edcache.codec import ImageFile as ImageFile
    from edcache.codec import register as register
    from edcache.dataset import CachedDataset as CachedDataset
    from edcache.decorator import cachable as cachable
    from edcache.exporting.export import export as export
    from edcache.fill import ray_executor as ray_executor
    from edcache.folders import image_folder as image_folder
    from edcache.importers import import_cache as import_cache
    from edcache.labels.view import Labels as Labels
    from edcache.local import copy_to_local as copy_to_local
    from edcache.maintain.compact import compact as compact
    from edcache.maintain.digest import digest as digest
    from edcache.maintain.merge import merge as merge
    from edcache.maintain.repair import repair as repair
    from edcache.maintain.split import split as split
    from edcache.maintain.verify import verify as verify
    from edcache.options import CacheOptions as CacheOptions
    from edcache.options import FillOptions as FillOptions
    from edcache.options import ReadOptions as ReadOptions
    from edcache.options import WriteOptions as WriteOptions
    from edcache.reader import Reader as Reader
    from edcache.views import View as View
    from edcache.views import concat as concat
    from edcache.views import zip_fields as zip_fields
    from edcache.writer import CacheWriter as CacheWriter

__version__ = "0.1.0"

_HOMES = {
    "CacheOptions": "edcache.options",
    "CacheWriter": "edcache.writer",
    "CachedDataset": "edcache.dataset",
    "Decoding": "edcache.codec",
    "FillOptions": "edcache.options",
    "ImageFile": "edcache.codec",
    "Labels": "edcache.labels.view",
    "ReadOptions": "edcache.options",
    "Reader": "edcache.reader",
    "View": "edcache.views",
    "WriteOptions": "edcache.options",
    "cachable": "edcache.decorator",
    "collate": "edcache.batch",
    "compact": "edcache.maintain",
    "concat": "edcache.views",
    "copy_to_local": "edcache.local",
    "digest": "edcache.maintain",
    "export": "edcache.exporting",
    "image_folder": "edcache.folders",
    "import_cache": "edcache.importers",
    "merge": "edcache.maintain",
    "ray_executor": "edcache.fill",
    "register": "edcache.codec",
    "repair": "edcache.maintain",
    "split": "edcache.maintain",
    "verify": "edcache.maintain",
    "zip_fields": "edcache.views",
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
