"""A file of a Hugging Face repository: the hub says which commit is meant, our client reads the file at that.

fsspec's own file system reads ahead five megabytes wherever one byte is asked for.
"""

from __future__ import annotations

import asyncio
from http.client import responses
from typing import Any, Final

from edcache.backends.remote.request import Absent, Changed, Failing, Forbidden, Stamp, refused
from edcache.backends.remote.web import WebEngine

_FORBIDDEN: Final = (401, 403)


class HubEngine:
    """An `Engine`; a state that was opened is read from its commit, whatever is committed afterwards.

    Args:
        filesystem: a `huggingface_hub.HfFileSystem`, whose endpoint and token are used. path: in it.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        self._web = WebEngine(self)
        # By what tells a state of the file.
        self._urls: dict[str, str] = {}
        self._headers: dict[str, str] = {}

    async def begin(self, nbytes: int) -> tuple[Stamp, bytes]:
        """See `Engine`: three requests, and the redirects of the last."""
        stamp = await self.stamp()
        return stamp, await self.fetch(stamp, 0, min(nbytes, stamp.size))

    async def stamp(self) -> Stamp:
        """See `Engine`: two requests, later one."""
        return await asyncio.to_thread(self._looked)

    async def fetch(self, stamp: Stamp, start: int, end: int) -> bytes:
        """See `Engine`: one request, and its redirects."""
        return b"" if start == end else await self._web.fetch(stamp, start, end)

    async def now(self, stamp: Stamp | None) -> tuple[str, dict[str, str]]:
        """See `Address`."""
        assert stamp is not None
        if stamp.tag not in self._urls:
            # Opened by another process, which knew the commit.
            await self.stamp()
        if stamp.tag not in self._urls:
            raise Changed("another file was committed")
        return self._urls[stamp.tag], self._headers

    def _looked(self) -> Stamp:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import HfHubHTTPError, build_hf_headers

        failing: Exception
        filesystem = self._filesystem
        try:
            found = filesystem.resolve_path(self._path)
            file = {"repo_type": found.repo_type, "endpoint": filesystem.endpoint}
            names = found.repo_id, found.path_in_repo
            told = get_hf_file_metadata(
                hf_hub_url(*names, revision=found.revision, **file), token=filesystem.token
            )
        except FileNotFoundError:
            # The hub does not tell which; and there has to be one before anything is uploaded.
            failing = Forbidden("no such repository, or none that you may read")
        except HfHubHTTPError as error:
            failing = _failing(error)
        else:
            if told.size is None or not told.etag or not told.commit_hash:
                raise refused("its size, its ETag or its commit is unknown")
            self._headers = build_hf_headers(token=filesystem.token)
            self._urls[told.etag] = hf_hub_url(*names, revision=told.commit_hash, **file)
            return Stamp(told.size, told.etag, "file")
        # Not within the except block, whose error may have credentials in its text.
        raise failing


def _failing(error: Any) -> Exception:
    status = error.response.status_code
    if status == 404:
        return Absent()
    text = f"{status} {responses.get(status, '')}".strip()
    if status in _FORBIDDEN:
        return Forbidden(text)
    return Failing(text) if status == 429 or status >= 500 else refused(text)
