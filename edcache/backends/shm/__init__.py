"""Archives in shared memory, and copies there of archives that are elsewhere.

memory   Names for archives in shared memory: "shm://digits" in the place of a path
preload  One copy of an archive per host, in shared memory, for all processes and jobs of a user ...
"""

from edcache.backends.shm.memory import Held, archives_in_memory

__all__ = [
    "Held",
    "archives_in_memory",
]
