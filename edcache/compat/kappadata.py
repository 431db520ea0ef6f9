"""The name of KappaData 1.0.7; see edcache/backends/redis/samples.py."""

from edcache.backends.redis import RedisDataset

__all__ = ["RedisDataset"]
