"""Prove, mend, shrink and identify an archive.

    verify.py   verify: every byte against another
    repair.py   repair: a new archive of all that proves good in a damaged one
    compact.py  compact: the same samples without what nobody reads any more
    digest.py   digest: the SHA-256 of a sealed archive

    salvage.py  what a damaged file still proves: entries, rows, labels, and what hides
    survey.py   the structure of an archive: chain, seals, directories, tables
    proof.py    the bytes of one chunk against its crc32s, read once
    copying.py  records as they are stored, into the chunks of a new archive

A room imports only from those below it.
"""

from edcache.maintain.compact import CompactReport, compact
from edcache.maintain.digest import digest
from edcache.maintain.repair import RepairReport, repair
from edcache.maintain.salvage import Doubtful
from edcache.maintain.verify import Report, verify

__all__ = ["CompactReport", "Doubtful", "RepairReport", "Report", "compact", "digest", "repair", "verify"]
