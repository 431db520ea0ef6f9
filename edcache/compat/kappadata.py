"""The name of KappaData 1.0.7; see edcache/backends/redis_samples.py."""

from edcache.backends import RedisDataset

__all__ = ["RedisDataset"]
