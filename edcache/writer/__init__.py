"""Append samples to an archive, and seal it (format.py section 5).

    chunk.py     ChunkBuilder: samples -> one chunk in memory; takes no lock
    syncing.py   when what was published goes to the disk, and what that survives
    anywhere.py  AnyAppender: what a fill needs of an appender, a file's or a server's; what these share
    appender.py  Appender: the archive open for appending: lock, catch up, publish, seal
    batcher.py   ChunkWriter: the two together, with compression and the size of a chunk
    cache.py     CacheWriter: for anyone who has samples

Imports run upwards in this list only.
"""

from edcache.writer.anywhere import AnyAppender, Appending
from edcache.writer.appender import MOST_REPLACED, Appender, never_created, recover
from edcache.writer.batcher import ChunkEncoder, ChunkWriter
from edcache.writer.cache import CacheWriter, adopt_labels, check_options, new_head
from edcache.writer.chunk import Chunk, ChunkBuilder

__all__ = [
    "MOST_REPLACED",
    "AnyAppender",
    "Appender",
    "Appending",
    "CacheWriter",
    "Chunk",
    "ChunkBuilder",
    "ChunkEncoder",
    "ChunkWriter",
    "adopt_labels",
    "check_options",
    "never_created",
    "new_head",
    "recover",
]
