"""Copies on this machine of archives that are far away: whole ones, and ones that fill as they are read.

    through  a copy that is read while it fills, block by block
    copy     a copy that gets its name when it is whole, proven and on the disk
    fetch    what a copy lacks, by several threads; nothing of it is believed without its crc32
    evict    which copies a folder has, and which of them go when there is too little room
    side     the side file of a copy, `train.zip.origin`: of what it is a copy, and the locks on it
    origin   `Origin`: the far archive, as bytes at offsets, with what tells one state of it from another

Each imports only those below it.
"""

from edcache.local.copy import Copied, CopyOptions, copy_local, copy_to_local
from edcache.local.evict import copies_in
from edcache.local.side import SIDE
from edcache.local.through import ReadThrough

__all__ = [
    "SIDE",
    "Copied",
    "CopyOptions",
    "ReadThrough",
    "copies_in",
    "copy_local",
    "copy_to_local",
]
