"""Copies on this machine of archives that are far away, and copies that fill as they are read.

copy     Whole copies: made beside the place where they belong, and there in one step once they are ...
evict    Which copies a folder has, who has them open, and which of them go when there is too little ...
fetch    Fetch an archive: what the file lacks, by several threads; what it has is proven, not believed
origin   The far archive: bytes at offsets, and what tells one state of it from another
side     The side file of a copy: of what it is a copy, which blocks of it are there, and the locks ...
through  A copy that is read while it fills: a sparse file, and which blocks of it were fetched
"""

from edcache.backends.mirror.copy import Copied, CopyOptions, copy_local, copy_to_local

__all__ = [
    "Copied",
    "CopyOptions",
    "copy_local",
    "copy_to_local",
]
