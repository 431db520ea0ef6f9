"""Read an archive: map it, locate records, check and decode them. No write, no thread, no lock.

A local copy (edcache/local) is the exception: it is written while it fills, and shares a lock while it is
open.

    anywhere  `AnyReader`: what a reader can do, wherever the records are
    reader    `Reader`: a path, a uuid and a few options; what forks and pickles
    hold      what one process has of it: mapping, index, decoders
    checks    when a record is compared with its crc32
    blocks    which bytes were checked in this process, block by block
    group     many records of one schema, read field by field
    requested records read by request: many at a time, of large ones only the blocks that are wanted
    storage   where the bytes are: mapped, or read from the file; announcing what will be read

Each imports only those below it.
"""

from edcache.reader.anywhere import AnyReader
from edcache.reader.group import Group, Memory, Spans
from edcache.reader.reader import Reader

__all__ = ["AnyReader", "Group", "Memory", "Reader", "Spans"]
