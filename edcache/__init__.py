"""edcache: a crash-safe, filterable, single-file cache for PyTorch datasets.

    cachable        decorate a dataset factory: the first call fills, later calls open
    CachedDataset   the dataset over an archive; from_cache() opens one without its source; save(), also of
                    a view, copies stored samples into a new archive
    map             the results of a frozen model, or any function, of a dataset's samples; mapped() decorates one
    KeyedCache      values by key, for code without a dataset
    CacheWriter     write an archive without a Dataset
    ImageFile       an image as the bytes of its file, decoded as a Decoding says; image_folder() has many
    collate         a collate_fn for fields that vary in shape
    changes         what a source with keys has that its archive lacks, before it is computed
    concat          several datasets as one; mix() draws from them in proportions, zip_fields() puts their
                    fields side by side, variants() reads another one each epoch
    copy_to_local   copy a far archive to a disk of this machine, once for all its processes
    import_cache    an archive from another system's cache; compat has the old names of some
    register        let the codec store a class of yours: an enum, a dataclass, any other
    samplers        Sequential, Shuffle, Balanced, Weighted, ByLength, ByShape, ChunkShuffle, Mixture: orders for a
                    DataLoader
    headroom        where an epoch's time goes, whether a cache helps, and where to cut
    verify          check every byte of an archive; digest() identifies it, and samples_digest() its samples
    numpy.open      an archive as numpy arrays, without torch: for JAX and tools
    CacheOptions    the keywords of these, as an object
    EdcacheError    the base of every exception; edcache.errors has all of them and shows their tree

The rooms, lowest floor first. Imports go down only, and take from another room only names of its `__init__`
(tests/project/test_layers.py):

    0  base      errors, options as objects, progress, small helpers
    1  storage   files whose bytes survive a crash, locks; the registry of backends
    1  format    the specification; entries and their chain, tables, the zip directory
    1  codec     a sample to the bytes of a record, and back
    2  labels    columns of labels: collected, compared, filtered
    2  identity  whose samples an archive has: a sample computed again, and compared with its record
    3  reader    an open archive: records by index, many at once; collated batches
    4  display   pictures, trees, summaries, HTML
    4  writer    append, seal and fill; spot checks of sources; the base of backends
    5  dataset   datasets of the user: CachedDataset, views, samplers, loaders, @cachable
    5  backends  places of archives: files, remote, mirror, shm; samples in Redis
    6  tools     headroom, verify, digest, housekeeping
    6  interop   caches of other systems, folders of images
    7  cli       parse, call one function, print, exit code
"""

import gc
from typing import Any

from lazy_loader import attach_stub

_load, __dir__, __all__ = attach_stub(__name__, __file__)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a name at its first use.

    The collector of garbage rests meanwhile. Amid the imports it would look at all objects, the 170,000 of torch too,
    and take half of the time of a first open.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _load(name)
    finally:
        if was_enabled:
            gc.enable()
