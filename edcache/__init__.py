"""edcache: a crash-safe, filterable, single-file cache for PyTorch datasets.

    cachable        decorate a dataset factory: the first call fills, later calls open
    CachedDataset   the dataset over an archive; from_cache() opens one without its source
    CacheWriter     write an archive without a Dataset
    ImageFile       an image as the bytes of its file, decoded as a Decoding says; image_folder() has many
    collate         a collate_fn for fields that vary in shape
    concat          several datasets as one; zip_fields() puts their fields side by side
    ray_executor    an Executor whose tasks run in Ray, to fill by
    register        let the codec store an enum or a dataclass
    samplers        Balanced, Weighted, ByLength, ChunkShuffle: orders that know labels and chunks
    verify          check every byte of an archive; repair(), compact() and digest() mend, shrink, identify it
    errors          every exception, one tree under EdcacheError

The rooms, lowest floor first; imports go down only (tests/test_layers.py):

    0  errors, above it bounded, once, places   the exception tree; what a stranger's bytes may allocate;
                                                properties without a lock; a URL of a server
    1  format, durable, codec, labels,          bytes <-> values; files; samples; Arrow tables;
       fingerprint, progress, sizes, selection  what identifies a call; what a person sees and says; indices
    2  contents, digests, folders               the tables of an archive merged into one; its SHA-256;
                                                 a folder of image files as a source
    3  reader, writer, above them redis         they meet only in the file; both of a cache in Redis
    4  fill, batch, samplers                    which samples are missing, who computes them;
                                                many records to one collated batch; in which order
    5  loader                                   batches by threads of this process
    6  views                                    selections of samples and fields, several datasets as one
    7  dataset                                  CachedDataset
    8  decorator, maintain, housekeeping        @cachable; prove, mend, shrink; which archives may go
    9  present                                  how a person is shown tables and samples
    10 cli                                      parse, call one function, print, exit code
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
    from edcache.fill import ray_executor
    from edcache.folders import image_folder
    from edcache.labels.view import Labels
    from edcache.maintain.compact import compact
    from edcache.maintain.digest import digest
    from edcache.maintain.repair import repair
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
    "digest",
    "errors",
    "image_folder",
    "ray_executor",
    "register",
    "repair",
    "samplers",
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
    "digest": "edcache.maintain",
    "image_folder": "edcache.folders",
    "ray_executor": "edcache.fill",
    "register": "edcache.codec",
    "repair": "edcache.maintain",
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
