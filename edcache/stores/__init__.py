"""Where a cache lives: one class for each kind of place, so that nobody above asks which kind it is.

    opening   `store_at`: a path or a URL to its store; the list of kinds
    server    ServerStore: in a Redis server
    remote    RemoteStore: an object behind a URL, filled in a spool file
    file      FileStore; MemoryStore: a file that has its name in shared memory
    store     Store: what each kind answers

Each imports only those below it. Another kind of place is one more file here, and a line in `opening`.
"""

from edcache.stores.opening import store_at
from edcache.stores.store import Store

__all__ = ["Store", "store_at"]
