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
    register        let the codec store an enum or a dataclass
    samplers        Balanced, Weighted, ByLength, ChunkShuffle: orders that know labels and chunks
    verify          check every byte of an archive; repair(), compact() and digest() mend, shrink, identify it
    merge           several archives copied into one; split() makes several of one
    export          samples as tar shards, folders, Parquet, a Hugging Face dataset or an .npz
    errors          every exception, one tree under EdcacheError

The rooms, lowest floor first; imports go down only (tests/test_layers.py):

    0  errors, and above it bounded, once,      the exception tree; what a stranger's bytes may allocate;
       servers, sizes, zipdirectory, and        properties without a lock; a URL of a server; sizes as people
       above them memory                        write them; how a zip file ends; archives in shared memory
    1  format, durable, codec, labels,          bytes <-> values; files; samples; Arrow tables;
       fingerprint, progress, selection         what identifies a call; what a person sees; indices
    2  temporary, above it places               what is written and has no name yet; where bytes are: a file,
                                                or an object behind a URL
    3  archives, contents, digests, folders,    which archives are meant; the tables of one merged into one;
       ordering, preload                        its SHA-256; a folder of image files; shuffles, deals and
                                                sorts; a copy in memory
    4  local                                    copies on this machine of archives that are far away
    5  reader, writer, above them redis,        they meet only in the file; both of a cache in Redis; what is
       and above that stores                    particular about each kind of place where a cache can be
    6  fill, batch, samplers, xla               which samples are missing, who computes them; many records
                                                to one collated batch; in which order; what XLA asks for
    7  loader                                   batches by threads of this process
    8  views                                    selections of samples and fields, several datasets as one
    9  dataset                                  CachedDataset
    10 decorator, maintain, housekeeping,       @cachable; prove, mend, shrink, merge, split; which archives
       importers, exporting                     may go; caches of other systems; files of other formats
    11 present, compat                          how a person is shown tables and samples; old names
    12 cli                                      parse, call one function, print, exit code
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edcache import errors, samplers
    from edcache.batch import collate
    from edcache.codec import Decoding, ImageFile, register
    from edcache.dataset import CachedDataset
    from edcache.decorator import cachable
    from edcache.errors import EdcacheError
    from edcache.exporting.export import export
    from edcache.fill import ray_executor
    from edcache.folders import image_folder
    from edcache.importers import import_cache
    from edcache.labels.view import Labels
    from edcache.local import copy_to_local
    from edcache.maintain.compact import compact
    from edcache.maintain.digest import digest
    from edcache.maintain.merge import merge
    from edcache.maintain.repair import repair
    from edcache.maintain.split import split
    from edcache.maintain.verify import verify
    from edcache.reader import Reader
    from edcache.views import View, concat, zip_fields
    from edcache.writer import CacheWriter

__version__ = "0.1.0"

__all__ = [
    "CacheWriter",
    "CachedDataset",
    "Decoding",
    "EdcacheError",
    "ImageFile",
    "Labels",
    "Reader",
    "View",
    "__version__",
    "cachable",
    "collate",
    "compact",
    "concat",
    "copy_to_local",
    "digest",
    "errors",
    "export",
    "image_folder",
    "import_cache",
    "merge",
    "ray_executor",
    "register",
    "repair",
    "samplers",
    "split",
    "verify",
    "zip_fields",
]

_HOMES = {
    "CacheWriter": "edcache.writer",
    "CachedDataset": "edcache.dataset",
    "Decoding": "edcache.codec",
    "EdcacheError": "edcache.errors",
    "ImageFile": "edcache.codec",
    "Labels": "edcache.labels.view",
    "Reader": "edcache.reader",
    "View": "edcache.views",
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


def __getattr__(name: str) -> Any:
    # Names load their rooms on first use, so that `edcache --help` need not wait for torch.
    home = _HOMES.get(name)
    if name in ("errors", "samplers"):
        return import_module(f"edcache.{name}")
    if home is None:
        raise AttributeError(f"module 'edcache' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
