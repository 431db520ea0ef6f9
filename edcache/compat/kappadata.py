"""KappaData's RedisDataset.

A KDDataset is the source of a cache as it is. docs/migrating.md has KappaData's wrappers as methods of a cache.
"""

from edcache.backends import RedisDataset

__all__ = ["RedisDataset"]
