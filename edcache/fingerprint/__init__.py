"""What identifies a source, so that another source's cache is noticed.

    values      a text for any value, the same in every process; digests of source code
    state       which attributes of an object reading from it changes
    held        the other attributes of an object
    attributes  what tells a source from another of its class
    origin      fingerprints of calls and of sources, and what makes two of them different

Imports go down only, in that order.
"""

from edcache.fingerprint.origin import (
    call_fingerprint,
    comparable,
    differences,
    moved_paths,
    source_changed,
    source_fingerprint,
    stale_message,
)
from edcache.fingerprint.values import describe, qualified_name, source_digest

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
