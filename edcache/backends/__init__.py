"""Where archives can be, beside a path: each is a plug-in, and nothing below names one.

file     Caches that are files of a file system
objects  Caches that are whole objects: read by request, filled in a spool file of this machine, put ...
spool    Archives that are to be objects of a server: filled in a file of this machine, uploaded ...
"""

from edcache.backends.file import FileStore
from edcache.backends.objects import ObjectStore

__all__ = [
    "FileStore",
    "ObjectStore",
]
