"""Whole archives: verify, repair, compact, merge, split, digest; which of them may go.

compact       The same samples without what nobody reads any more
digest        What identifies a sealed archive to anybody: the SHA-256 of its file
entries       The entries of a damaged archive that are whole, and what hides between them
housekeeping  Archives as files on a disk: which there are, when each was last used, which may go
merge         Several archives copied into one
proof         The bytes of one chunk against its crc32s: payload, blocks and records, from one read ...
repair        From a damaged archive to a new one of all that proves good
rewrite       A new archive of records of others: compact, merge, split and repair, which differ in ...
rows          Records of a damaged archive with their labels: picked, and put one behind the other
salvage       What a damaged archive still proves: the newest record of each sample, and their labels
shares        Samples of archives for a new one: whole archives for merge, parts of one for split
split         One archive copied into several: of a size, of a number, or one for each value of a label
survey        The structure of an archive: its chain, its seals and their directories, its tables, ...
verify        Prove an archive: every byte of it is checked against another
"""

from edcache.tools.compact import CompactReport, compact
from edcache.tools.digest import digest
from edcache.tools.housekeeping import (
    Listed,
    archives_in,
    check_deletable,
    delete,
    head_of,
    plan_pruning,
    why_not_now,
)
from edcache.tools.merge import MergeReport, merge
from edcache.tools.repair import RepairReport, repair
from edcache.tools.shares import Piece
from edcache.tools.split import split
from edcache.tools.verify import Report, verify

__all__ = [
    "CompactReport",
    "Listed",
    "MergeReport",
    "Piece",
    "RepairReport",
    "Report",
    "archives_in",
    "check_deletable",
    "compact",
    "delete",
    "digest",
    "head_of",
    "merge",
    "plan_pruning",
    "repair",
    "split",
    "verify",
    "why_not_now",
]
