"""When what was published is brought to the disk: `sync=`, and the timer behind a number of seconds.

What survives, whatever is chosen: after a crash of the process everything that was published, and never
other bytes than were written. After a power cut:

    sync=        an unsealed archive                              once `seal` returned
    "never"      any part may be missing, and is noticed          the same
    "seal"       the same                                         everything
    seconds      what was published so long before                everything
    "chunk"      everything that was published                    everything

tests/faults/test_filesystems.py and tests/faults/test_crash_states.py hold every line of this table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edcache.base import StorageError


class TimedSync:
    """Syncs, in a thread, no later than so many seconds after something was published.

    sync: brings all to the disk that was published before it was called.
    """

    def __init__(self, seconds: float, sync: Callable[[], None]) -> None:
        self._seconds = seconds
        self._sync = sync
        self._timer: threading.Timer | None = None
        # Held while syncing, so that `finish` does not let the file be closed meanwhile.
        self._turn = threading.Lock()

    def published(self) -> None:
        """Something new wants to be synced."""
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._run)
            self._timer.daemon = True
            self._timer.start()

    def finish(self) -> None:
        """Sync now what was published since the last time."""
        timer = self._timer
        if timer is not None:
            timer.cancel()
        with self._turn:
            if self._timer is not None:
                self._timer = None
                self._sync()

    def _run(self) -> None:
        with self._turn:
            if self._timer is None:
                return
            # Before it syncs: what is published from here on is not in this sync for certain.
            self._timer = None
            try:
                self._sync()
            except StorageError:
                # The archive is marked as failed; whoever uses it next raises.
                return
