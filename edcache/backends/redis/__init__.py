"""Caches in a Redis server, which several hosts share, and which may lose any of it.

appender  RedisAppender: a cache in Redis open for appending, claims included; and building it anew
claims    Who computes what: keys that expire unless whoever set them renews them
client    The connection to a server: one pool for each process, and its errors as ours
fetching  What a server says of many records at a time, and their values joined into one memory
frames    A record as the value of a key, which tells all that is needed to decode and to distrust it
keys      What the keys of a cache are called
log       The log of a cache: what was published, as one process has seen it
reader    RedisReader: random access to the samples of a cache in Redis
removing  Delete a cache: its keys, found by SCAN, and no others
session   What one process has of a cache in Redis, as of one look at its log
store     Caches in a Redis server, which several hosts share, and which may lose any of it
url       Where a cache is when it is not in a file: a URL of a Redis server, told apart from its ...
"""

from edcache.backends.redis.removing import removable, remove
from edcache.backends.redis.url import is_server

__all__ = [
    "is_server",
    "removable",
    "remove",
]
