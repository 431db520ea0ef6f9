"""Read an archive: map it, locate records, check and decode them. No write, no thread, no lock.

A local copy (edcache/local) is the exception: it is written while it fills, and shares a lock while it is
open.

    reader    `Reader`: of a file or a URL, by a path, a uuid and a few options
    base      `AnyReader`: what every reader can do, wherever the records are; what forks and pickles
    file      the session with a file
    session   `Session`: what one process has of an open archive: index, decoders, labels
    requested records read by request: many at a time, of large ones only the blocks that are wanted
    tables    what the file says of its samples
    group     many records of one schema, read field by field
    checks    when a record is compared with its crc32
    blocks    which bytes were checked in this process, block by block
    storage   where the bytes are: mapped, or read from the file; announcing what will be read

Each imports only those below it.
"""

from edcache.reader.base import AnyReader
from edcache.reader.group import Group, Memory, Spans
from edcache.reader.reader import Reader
from edcache.reader.session import Session

__all__ = ["AnyReader", "Group", "Memory", "Reader", "Session", "Spans"]
