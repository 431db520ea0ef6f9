"""Caches of other systems, read as source datasets, so that an archive is filled with them as with any other.

    source      OldCache: what all have in common: indices, what is missing, notes for a person
    members     the members of a zip as a table, also where a killed writer left no directory
    edflow, folders (torch_xla, monai), webdataset, tensordict, mds      one kind each
    packaged    litdata and datasets, which their own packages read; a tree of images
    importer    old_cache: which kind lies at a path, KINDS; import_cache: an old cache to an archive

Imports go down the list's other way. Pickles are read by a closed list of names (edcache/codec/foreign.py).
"""

from edcache.importers.importer import KINDS, import_cache, old_cache
from edcache.importers.source import OldCache

__all__ = ["KINDS", "OldCache", "import_cache", "old_cache"]
