"""One file to one object behind a URL: it has its name there when it is whole, and not before."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from typing import Any, Final

from edcache.backends.remote.engines import filesystem_of
from edcache.backends.remote.requests import Requests, run
from edcache.backends.remote.url import Url
from edcache.base import StorageError

# Their servers show an object when its upload is complete.
_WHOLE: Final = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf")
# Networks send more slowly than they receive.
_SLOWER: Final = 8


def upload(url: Url, path: str, tell: Callable[[int], object]) -> None:
    """Send a file. One that was interrupted is sent from its beginning."""
    sending = _Upload(url, path, tell)
    sending.send()
    sending.check()


class _Upload:
    """One file on its way to one object."""

    def __init__(self, url: Url, path: str, tell: Callable[[int], object]) -> None:
        self._path, self._tell = path, tell
        self._nbytes = os.path.getsize(path)
        self._requests = Requests(url)
        self._filesystem, self._target = filesystem_of(url, self._requests.options)

    async def _ask(self, doing: str, nbytes: int, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a file system, again if it fails, in another thread than its event loop's."""
        return await self._requests.answer(
            doing, _SLOWER * nbytes, lambda: asyncio.to_thread(call, *given, **named)
        )

    def send(self) -> None:
        """Send all of it; under another name first, where a part of it would be seen."""
        is_whole = self._requests.url.scheme in _WHOLE
        name = self._target if is_whole else f"{self._target}.{uuid.uuid4().hex[:8]}.part"
        put = self._filesystem.put_file
        run(self._ask(f"sending {self._nbytes:,} bytes", self._nbytes, put, self._path, name))
        if not is_whole:
            run(self._ask("giving it its name", self._nbytes, self._filesystem.mv, name, self._target))
        self._tell(self._nbytes)

    def check(self) -> None:
        """Compare the object with the file by its size."""
        self._filesystem.invalidate_cache()
        nbytes = run(self._ask("looking at what was sent", 0, self._filesystem.info, self._target))["size"]
        if nbytes != self._nbytes:
            raise StorageError(
                f"{self._requests.url}: {self._nbytes:,} bytes were sent from {self._path}, {nbytes:,} are "
                "there; send it again"
            )
