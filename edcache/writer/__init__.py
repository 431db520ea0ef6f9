"""Append samples to an archive, and seal it (format.py section 5).

    chunk      ChunkBuilder: samples -> one chunk in memory; takes no lock
    syncing    when what was published goes to the disk, and what that survives
    protocol   AnyAppender: what a file and a server share that are open for appending
    log        Log: the chain of a file, and publication at its end
    claims     FileClaims: who computes what, by locks that the kernel frees
    recovery   what a crash may have left
    appender   Appender: the archive open for appending: publish, revise, seal
    publisher  Publisher: samples in, chunks of the wanted size published
    cache      CacheWriter: for anyone who has samples

Imports run upwards in this list only.
"""

from edcache.writer.appender import Appender, until_it_stays
from edcache.writer.cache import CacheWriter, adopt_labels, check_options, new_head
from edcache.writer.chunk import Chunk, ChunkBuilder
from edcache.writer.protocol import AnyAppender
from edcache.writer.publisher import ChunkEncoder, FailureOf, Publisher
from edcache.writer.recovery import never_created, recover

__all__ = [
    "AnyAppender",
    "Appender",
    "CacheWriter",
    "Chunk",
    "ChunkBuilder",
    "ChunkEncoder",
    "FailureOf",
    "Publisher",
    "adopt_labels",
    "check_options",
    "never_created",
    "new_head",
    "recover",
    "until_it_stays",
]
