"""Append, seal and fill: who computes which sample; what identifies a source; what a backend answers.

appender            An archive in a file, open for appending
board               What the workers of a fill and the process that started them know of each other, ...
cache               CacheWriter: an archive written sample by sample
chunk               Samples to one chunk in memory: encoded, aligned, checksummed, not yet anywhere
claims              The claims of a file: locks on bytes far behind its data, which the kernel frees ...
cluster             Fill by an engine that has the interface of `concurrent.futures.Executor`: Dask, ...
crew                Worker processes that fill an archive together, and the process that looks after ...
features            Samples of a Hugging Face dataset with the dtypes that its features declare
fill                Fill an archive: alone, with workers, or beside other processes that fill it already
fingerprint         What tells a source from another of its class: a short text for each of its ...
fingerprint_access  Which attributes of an object reading from it changes: its state, which does not ...
fingerprint_code    Names and digests of code: of functions and of classes
fingerprint_fields  What an object holds: the attributes that tell it from another of its class
fingerprint_origin  Fingerprints: of a call of a dataset factory, and of a source of which only the ...
fingerprint_values  A text for a value, the same in every process; different values have different ones
job                 What a fill is asked to do, and computing one sample of it
lazy                Samples computed when they are asked for, and kept
log                 The chain of entries in a file, and their publication at its end: payload first, ...
part                One process's part in filling an archive
presence            Which samples an archive has
protocol            What a fill needs of where it publishes, a file (`Appender`) or a server, and ...
publisher           Samples in, chunks of the wanted size published: encoded, compressed, appended
recovery            What a crash may have left of an archive, and opening it nevertheless: format.py ...
registry            `Store`: what a backend answers of the samples of a cache
space               Whether the disk can hold what a fill will write, and how much a lazy cache may ...
stream              Fill an archive from what can only be iterated: until it is exhausted, in its order
syncing             When what was published is brought to the disk: `sync=`, and the timer behind a ...
temporary           Files and folders that are written beside the path that they are for, and get ...
worker              What runs in a worker process of a fill
"""

from edcache.writer.appender import Appender, until_it_stays
from edcache.writer.cache import CacheWriter, adopt_labels, check_options, new_head
from edcache.writer.chunk import Chunk
from edcache.writer.cluster import ray_executor
from edcache.writer.crew import worker_count
from edcache.writer.features import declared
from edcache.writer.fill import fill
from edcache.writer.fingerprint_code import qualified_name
from edcache.writer.fingerprint_origin import (
    call_fingerprint,
    differences,
    moved_paths,
    source_changed,
    source_fingerprint,
    stale_message,
)
from edcache.writer.job import Job, check_length, check_origin, check_source, claim_size, length_of
from edcache.writer.lazy import LazyFiller
from edcache.writer.protocol import AnyAppender
from edcache.writer.recovery import never_created, recover
from edcache.writer.registry import AS_IT_IS, Store, store_at
from edcache.writer.space import bytes_limit
from edcache.writer.stream import is_stream
from edcache.writer.temporary import (
    LOCK_USE,
    PARTIAL,
    SIDE,
    SUFFIX,
    copies_beside,
    discard,
    is_held,
    is_temporary,
    name_for,
    note_use,
    open_kept,
    replacing,
    start,
)

__all__ = [
    "AS_IT_IS",
    "LOCK_USE",
    "PARTIAL",
    "SIDE",
    "SUFFIX",
    "AnyAppender",
    "Appender",
    "CacheWriter",
    "Chunk",
    "Job",
    "LazyFiller",
    "Store",
    "adopt_labels",
    "bytes_limit",
    "call_fingerprint",
    "check_length",
    "check_options",
    "check_origin",
    "check_source",
    "claim_size",
    "copies_beside",
    "declared",
    "differences",
    "discard",
    "fill",
    "is_held",
    "is_stream",
    "is_temporary",
    "length_of",
    "moved_paths",
    "name_for",
    "never_created",
    "new_head",
    "note_use",
    "open_kept",
    "qualified_name",
    "ray_executor",
    "recover",
    "replacing",
    "source_changed",
    "source_fingerprint",
    "stale_message",
    "start",
    "store_at",
    "until_it_stays",
    "worker_count",
]
