"""Backends: what each kind of place that has caches answers, so that nobody asks which it is.

    objects   ObjectStore: a whole object of a server, filled in a spool file
    spool     that file
    file      FileStore: a path
    store     Store: what every backend answers

Each imports only those below it. `edcache/durable/registry.py` says which has a path or a URL, and how to add
another: a subclass of Store, or of ObjectStore, and a line of packaging.
"""

from edcache.stores.file import FileStore
from edcache.stores.objects import ObjectStore
from edcache.stores.store import Store, store_at

__all__ = ["FileStore", "ObjectStore", "Store", "store_at"]
