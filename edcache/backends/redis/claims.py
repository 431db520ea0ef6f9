"""Who computes what: keys that expire unless whoever set them renews them."""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import suppress
from typing import Any, Final

from edcache.backends.redis.client import Client, library
from edcache.backends.redis.url import Keys
from edcache.base import StorageError

_RENEWALS: Final = 4

# The server's clock: those of hosts differ.
_COUNT: Final = """
local now = redis.call('TIME')
local at = now[1] * 1000 + math.floor(now[2] / 1000)
local mine = redis.call('ZSCORE', KEYS[1], ARGV[1])
local others = redis.call('ZCOUNT', KEYS[1], at, '+inf')
if mine and tonumber(mine) >= at then others = others - 1 end
if ARGV[2] then
  redis.call('ZADD', KEYS[1], at + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], 2 * ARGV[2])
end
return others
"""


class Claims:
    """The claims of one process, renewed by a thread while any is held.

    Whoever dies, or gets no turn for `claim_seconds`, loses them: then samples may be computed twice.
    """

    can_lock = True

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._seconds = client.server.claim_seconds
        self._token = uuid.uuid4().hex
        self._held: dict[int, Any] = {}
        self._is_filler = False
        self._turn = threading.Lock()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def claim(self, number: int, most: int = 1, *, waits: bool = False) -> int:
        """Take a claim if nobody has it, and no others after it, since each is a key; says whether it did."""
        from redis.lock import Lock

        with self._client.translated():
            key = self._keys.claim(number)
            lock = Lock(self._client.connected, key, self._seconds, blocking=waits, thread_local=False)
            if not lock.acquire():
                return 0
        with self._turn:
            self._held[number] = lock
        self._renew_from_now()
        return 1

    def wait(self, number: int) -> None:
        self.claim(number, waits=True)

    def release(self, number: int, count: int = 1) -> None:
        """Let go of a claim, if it has not expired meanwhile; it was taken alone."""
        with self._turn:
            lock = self._held.pop(number, None)
        if lock is not None:
            errors = library(self._client.server).exceptions
            with suppress(errors.LockError), self._client.translated():
                lock.release()

    def join_fillers(self) -> bool:
        others = self._others(int(self._seconds * 1000))
        self._is_filler = True
        self._renew_from_now()
        return not others

    @property
    def has_fillers(self) -> bool:
        return self._others() > 0

    def _others(self, *milliseconds: int) -> int:
        """How many others fill; given how long it holds, this process is one too from now on."""
        return int(self._client.run(_COUNT, [self._keys.fillers], [self._token, *milliseconds]))

    def close(self) -> None:
        """Let go of everything; nothing in a process that inherited it."""
        if self._pid != os.getpid() or self._is_closing.is_set():
            return
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join()
        # A server that is lost lets go by itself.
        with suppress(StorageError):
            for number in list(self._held):
                self.release(number)
            if self._is_filler:
                self._client.ask("zrem", self._keys.fillers, self._token)

    def _renew_from_now(self) -> None:
        with self._turn:
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew, name="edcache-claims", daemon=True)
                self._thread.start()

    def _renew(self) -> None:
        errors = library(self._client.server).exceptions
        while not self._is_closing.wait(self._seconds / _RENEWALS):
            with self._turn:
                held = list(self._held.items())
            # A server that does not answer now may at the next turn; a fill that needs it says so itself.
            with suppress(StorageError):
                for number, lock in held:
                    try:
                        with self._client.translated():
                            lock.reacquire()
                    except errors.LockError:
                        # Expired, or released a moment ago: somebody else may have it.
                        with self._turn:
                            if self._held.get(number) is lock:
                                del self._held[number]
                if self._is_filler:
                    self._others(int(self._seconds * 1000))
