"""What identifies a source, so that another source's cache is noticed.

A source may say what it is: a method `__edcache_fingerprint__()` of its class returns a plain value, or a
dict of them. Otherwise it is its class, the code of that, and its attributes; what it wraps and holds is
described in the same way.

    code        names and digests of functions and classes
    access      which attributes of an object reading from it changes
    fields      the other attributes of an object
    values      a text for any value, the same in every process
    attributes  what tells a source from another of its class
    origin      fingerprints of calls and of sources, and what makes two of them different

Imports go up only in this list.
"""

from edcache.fingerprint.code import qualified_name, source_digest
from edcache.fingerprint.origin import (
    call_fingerprint,
    comparable,
    differences,
    moved_paths,
    source_changed,
    source_fingerprint,
    stale_message,
)
from edcache.fingerprint.values import describe

__all__ = [
    "call_fingerprint",
    "comparable",
    "describe",
    "differences",
    "moved_paths",
    "qualified_name",
    "source_changed",
    "source_digest",
    "source_fingerprint",
    "stale_message",
]
