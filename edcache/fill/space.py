"""Whether the disk can hold what a fill will write, and how much a lazy cache may take of it."""

from __future__ import annotations

import errno
import logging
import os
import shutil

from edcache import durable
from edcache.errors import OptionError, StorageError
from edcache.memory import is_memory
from edcache.servers import is_server
from edcache.sizes import human_bytes, parsed_bytes

logger = logging.getLogger("edcache")

# The first samples may be larger than the others: refuse only what is far too much.
_REFUSE, _WARN = 1.5, 0.95


class SpaceCheck:
    """Compares what is missing with the free space, once the first samples have shown their size.

    Args:
        path: the archive. missing: samples that will be written.
    """

    def __init__(self, path: str, missing: int) -> None:
        self._path = path
        self._missing = missing

    def look(self, samples: int, nbytes: int) -> None:
        """Judge by the first `samples`, which took `nbytes`.

        Raises:
            StorageError: "train.zip: the samples that are missing take about 120.0 GB, the disk has 80.0 GB
                left; free some, or pass check_space=False".
        """
        left = self._missing - samples
        needed = nbytes / samples * left
        try:
            free = durable.free_nbytes(self._path)
        except OSError:
            return  # the first write that fails will tell
        if needed <= free * _WARN:
            return
        where = "memory" if is_memory(self._path) else "disk"
        text = (
            f"{self._path}: the {left:,} samples that are missing take about {human_bytes(needed)}, the "
            f"{where} has {human_bytes(free)} left"
        )
        # A disk that is full says so; where memory is, the kernel ends processes.
        if needed <= free * (1 if is_memory(self._path) else _REFUSE):
            logger.warning("%s", text)
            return
        error = StorageError(f"{text}; free some, or pass check_space=False")
        error.errno = errno.ENOSPC
        raise error


def bytes_limit(asked: int | float | str | None, path: str) -> int | None:
    """How large `max_bytes=` lets an archive grow.

    Args:
        asked: bytes; text such as "20GB" or "512MiB"; a float in (0, 1], a part of the disk's free space.
    Raises:
        OptionError: it is none of these.
    """
    if asked is None:
        return None
    if isinstance(asked, float) and 0 < asked <= 1:
        if is_server(path):
            raise OptionError(f"max_bytes={asked!r} is a part of a disk; for a cache in Redis give bytes")
        return int(asked * _free(path))
    nbytes = parsed_bytes(asked)
    if nbytes is None:
        raise OptionError(
            f'max_bytes={asked!r}; give bytes, text such as "20GB", or a part of the free disk such as 0.5'
        )
    return nbytes


def _free(path: str) -> int:
    if is_memory(path):
        return durable.free_nbytes(path)
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    there = os.path.getsize(path) if os.path.exists(path) else 0
    return shutil.disk_usage(folder).free + there
