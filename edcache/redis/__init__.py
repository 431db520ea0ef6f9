"""A cache in a Redis server, which several hosts fill and read together.

    keys       what the keys are called
    client     one connection pool a process; the server's errors as ours
    frames     a record as the value of a key, and back
    log        the chain of what was published, without the records
    fetching   what a server says of many records at a time, joined into one memory
    session    what one process has of a cache: which samples, by which schemas
    reader     RedisReader: what `Reader` is to a file
    claims     who computes what: keys that expire unless they are renewed
    removing   delete a cache's keys, and no others
    appender   RedisAppender: what `Appender` is to a file; building anew

Each imports only those above it. Under a prefix there are, with <id> from the head's uuid:

    prefix:head              string: the head of an archive, as edcache/format.py packs it; set with NX
    prefix:<id>:log          list: the entries of an archive's chain, each its header and what is its table;
                             offsets count as if the records lay behind it, as they do in a file
    prefix:<id>:record:<n>   string: the record of sample n in a frame (frames.py)
    prefix:<id>:claim:<k>    string: who computes claim k; expires
    prefix:<id>:fillers      sorted set: who fills, and until when that is believed; expires

Publication order is that of a file: records first, then the entry that tells of them. An entry is appended
by a script that compares the last one with what the appender saw last, so that no two follow the same entry.

The server may lose any key: it evicts, expires and restarts without asking.
    a record    its sample is missing: computed again by a lazy cache, else MissingSampleError says so
    the log     everything is missing, labels too; whoever appends next begins another one
    the head    the same; its uuid is made of what it says, so that the next creator makes the same
Head and log are touched with every batch, so that a server which evicts what was used least takes them last.
"""

from edcache.redis.appender import RedisAppender, replace_head
from edcache.redis.keys import prefix_for
from edcache.redis.reader import RedisReader
from edcache.redis.removing import Removed, removable, remove

__all__ = [
    "RedisAppender",
    "RedisReader",
    "Removed",
    "prefix_for",
    "removable",
    "remove",
    "replace_head",
]
