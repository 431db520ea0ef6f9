"""Prove, mend, shrink, identify, merge and split archives.

    verify.py   verify: every byte against another
    repair.py   repair: a new archive of all that proves good in a damaged one
    compact.py  compact: the same samples without what nobody reads any more
    digest.py   digest: the SHA-256 of a sealed archive
    merge.py    merge: several archives copied into one
    split.py    split: one archive copied into several

    shares.py   samples of archives, whole or in part, for a new one
    salvage.py  what the entries of a damaged file still prove: samples, labels, and what is lost
    entries.py  which of its entries are whole, and what hides between them
    rows.py     records with their labels: picked, and put one behind the other
    survey.py   the structure of an archive: chain, seals, directories, tables
    proof.py    the bytes of one chunk against its crc32s, read once
    rewrite.py  a new archive of records of others, which goes to its path in one step; all of them do that

A room imports only from those below it.
"""

from edcache.maintain.compact import CompactReport, compact
from edcache.maintain.digest import digest
from edcache.maintain.merge import MergeReport, merge
from edcache.maintain.repair import RepairReport, repair
from edcache.maintain.salvage import Doubtful
from edcache.maintain.shares import Piece
from edcache.maintain.split import split
from edcache.maintain.verify import Report, verify

__all__ = [
    "CompactReport",
    "Doubtful",
    "MergeReport",
    "Piece",
    "RepairReport",
    "Report",
    "compact",
    "digest",
    "merge",
    "repair",
    "split",
    "verify",
]
