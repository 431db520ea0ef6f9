"""Fill an archive: which samples are missing, who computes them, what happens when one fails.

    features   samples of a Hugging Face dataset with the dtypes that it declares
    job        Job: what is asked for; computing one sample
    presence   which samples are there; when to publish
    part       one process's part: claims, what is computed, what is published
    board      what worker processes and their parent know of each other
    worker     what runs in a worker process
    crew       worker processes: started, watched, replaced
    cluster    an engine with the interface of concurrent.futures
    stream     what can only be iterated
    space      whether the disk can hold it; limits
    filling    `fill`: alone, with a crew, or beside others
    lazy       samples computed when they are asked for

Each imports only those above it.
"""

from edcache.fill.cluster import ray_executor
from edcache.fill.crew import worker_count
from edcache.fill.features import declared
from edcache.fill.filling import fill
from edcache.fill.job import Job, check_length, check_origin, check_source, claim_size, length_of
from edcache.fill.lazy import LazyFiller
from edcache.fill.space import bytes_limit
from edcache.fill.stream import is_stream

__all__ = [
    "Job",
    "LazyFiller",
    "bytes_limit",
    "check_length",
    "check_origin",
    "check_source",
    "claim_size",
    "declared",
    "fill",
    "is_stream",
    "length_of",
    "ray_executor",
    "worker_count",
]
