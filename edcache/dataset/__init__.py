"""CachedDataset: a map-style torch dataset over a cache, wherever that is.

    cached     CachedDataset: what it is opened and asked by
    reading    its samples, as views and batches read them
    building   how a cache is made of its source, where it is not there yet
    staleness  whether an archive is of what is asked for

Each imports only those below it.
"""

from edcache.dataset.cached import CachedDataset, Source, check_fillable, opened

__all__ = ["CachedDataset", "Source", "check_fillable", "opened"]
