"""Whether the disk can hold what a fill will write."""

from __future__ import annotations

import errno
import logging
import os
import shutil

from edcache.errors import StorageError

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
            free = shutil.disk_usage(os.path.dirname(os.path.abspath(self._path))).free
        except OSError:
            return  # the first write that fails will tell
        if needed <= free * _WARN:
            return
        text = (
            f"{self._path}: the {left:,} samples that are missing take about {_shown(needed)}, the disk has "
            f"{_shown(free)} left"
        )
        if needed <= free * _REFUSE:
            logger.warning("%s", text)
            return
        error = StorageError(f"{text}; free some, or pass check_space=False")
        error.errno = errno.ENOSPC
        raise error


def _shown(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:,.1f} MB"
