"""An open archive: its records by index, one or many at once, and as collated batches.

base        A reader of samples, wherever their records are: in a file (`Reader`), or in a server ...
blocks      Which bytes of an archive were checked in this process, block by block (format.py section 3)
bulk        A collated batch of samples of one archive, by one gather a field
checks      When a record's bytes are compared with their crc32, and how for many at once
collation   What `default_collate` makes of the samples of a schema, compiled into one function per ...
digests     The SHA-256 of a whole file: written, read and compared
file        What one process has of an archive that is a file, or behind a URL
group       Many records of one schema, read field by field
handover    How a DataLoader's worker hands a batch to its parent
lazy        A batch that is not read yet, and who gets one
memory      Where the bytes of a batch go
merging     Collated batches of several archives as one batch, in the order that the samples were ...
paths       Field paths in samples: "image", "target.boxes", 1, ("target", 0)
projection  Some fields of every sample: their bytes alone are read, and none at all where the ...
ragged      Collating fields that vary in shape: padded, jagged, or as a list of views, each in one ...
reader      The reader of a file, or of what is behind a URL: a path, a uuid and a few options
requested   Records that are read by request: many at a time, of large ones only the blocks around ...
session     What one process has of an open archive, wherever its records are
storage     Where an archive's bytes are: mapped into memory, or read from their source into memory ...
tables      What an archive's file says of its samples, as of one look at it: head, index, labels, ...
"""

from edcache.reader.base import AnyReader
from edcache.reader.bulk import collated, collated_by
from edcache.reader.collation import NotInBulk, Special
from edcache.reader.digests import OnProgress, check_digest, file_digest, no_digest, parse_digest
from edcache.reader.group import Group, Memory, Piece, Records, joined
from edcache.reader.lazy import Batch, batch_for
from edcache.reader.memory import fresh
from edcache.reader.merging import merged
from edcache.reader.paths import FieldPath, at, replaced, steps
from edcache.reader.projection import Projection
from edcache.reader.ragged import collate
from edcache.reader.reader import Reader
from edcache.reader.session import Session

__all__ = [
    "AnyReader",
    "Batch",
    "FieldPath",
    "Group",
    "Memory",
    "NotInBulk",
    "OnProgress",
    "Piece",
    "Projection",
    "Reader",
    "Records",
    "Session",
    "Special",
    "at",
    "batch_for",
    "check_digest",
    "collate",
    "collated",
    "collated_by",
    "file_digest",
    "fresh",
    "joined",
    "merged",
    "no_digest",
    "parse_digest",
    "replaced",
    "steps",
]
