"""Whether the disk can hold what a fill will write, and how much a lazy cache may take of it."""

from __future__ import annotations

import errno
import logging

from edcache.base import OptionError, StorageError, human_bytes, parsed_bytes
from edcache.writer.registry import store_at

logger = logging.getLogger("edcache")

_WARN = 0.95


class SpaceCheck:
    """Compares what is missing with the free space, once the first samples have shown their size.

    Args:
        path: the archive. missing: samples that will be written.
    """

    def __init__(self, path: str, missing: int) -> None:
        self._store = store_at(path)
        self._missing = missing

    def look(self, samples: int, nbytes: int) -> None:
        """Judge by the first `samples`, which took `nbytes`.

        Raises:
            StorageError: "train.zip: the samples that are missing take about 120.0 GB, the disk has 80.0 GB
                left; free some, or pass check_space=False".
        """
        left = self._missing - samples
        needed = nbytes / samples * left
        free = self._store.free_nbytes()
        if free is None or needed <= free * _WARN:
            return
        text = (
            f"{self._store.path}: the {left:,} samples that are missing take about {human_bytes(needed)}, "
            f"the {self._store.room} has {human_bytes(free)} left"
        )
        if needed <= free * self._store.tolerance:
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
        return store_at(path).part(asked)
    nbytes = parsed_bytes(asked)
    if nbytes is None:
        raise OptionError(
            f'max_bytes={asked!r}; give bytes, text such as "20GB", or a part of the free disk such as 0.5'
        )
    return nbytes
