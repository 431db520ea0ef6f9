"""Files of a Hugging Face repository, by our own client: fsspec's reads ahead five megabytes for a byte."""

from __future__ import annotations

import asyncio
from http.client import responses
from typing import Any

from edcache.backends.remote.http import HttpEngine, failure_of
from edcache.backends.remote.requests import Data, Engine, ObjectStamp, refused


class HubEngine(HttpEngine):
    """A file of a repository; its states are commits, each of which stays readable."""

    def __init__(self, filesystem: Any, path: str) -> None:
        from huggingface_hub.utils import build_hf_headers

        super().__init__(filesystem.endpoint, build_hf_headers(token=filesystem.token))
        self._filesystem, self._path = filesystem, path

    async def begin(self, head: int, tail: int) -> tuple[ObjectStamp, Data, Data]:
        return await Engine.begin(self, head, tail)

    async def stamp(self) -> ObjectStamp:
        """See `Engine`: two requests, later one."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> ObjectStamp:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import HfHubHTTPError

        filesystem = self._filesystem
        try:
            file = filesystem.resolve_path(self._path)
            names = file.repo_id, file.path_in_repo
            kind = {"repo_type": file.repo_type, "endpoint": filesystem.endpoint}
            url = hf_hub_url(*names, revision=file.revision, **kind)
            known = get_hf_file_metadata(url, token=filesystem.token)
        except FileNotFoundError:
            # The hub does not tell which; and there has to be one before anything is uploaded.
            raise PermissionError("no such repository, or none that you may read") from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            raise failure_of(status, f"{status} {responses.get(status, '')}".strip()) from None
        if known.size is None or not known.etag or not known.commit_hash:
            raise refused("its size, its ETag or its commit is unknown")
        return ObjectStamp(
            known.size, known.etag, "file", hf_hub_url(*names, revision=known.commit_hash, **kind)
        )
