"""One file to one object behind a URL: it has its name there when it is whole, and not before."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final

from edcache import base
from edcache.backends.remote.engines import filesystem_of
from edcache.backends.remote.requests import Requests, gathered, run
from edcache.backends.remote.url import Url
from edcache.base import StorageError
from edcache.storage import File

# Their servers show an object when its upload is complete.
_WHOLE: Final = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf")
_S3: Final = ("s3", "s3a")
# S3 takes up to 10,000 parts of 5 MiB and more.
_PART_NBYTES: Final = 1 << 24
_MOST_PARTS: Final = 9_000
_PARTS_AT_A_TIME: Final = 4
_STATE_NBYTES: Final = 1 << 12
# Networks send more slowly than they receive.
_SLOWER: Final = 8


def upload(url: Url, path: str, state: File, tell: Callable[[int], object]) -> None:
    """Send a file; `state` keeps what a later call needs to go on with this one, if it is interrupted."""
    is_large = url.scheme in _S3 and os.path.getsize(path) > _PART_NBYTES
    sending = (_Parts if is_large else _Upload)(url, path, state, tell)
    sending.send()
    sending.check()


class _Upload:
    """One file on its way to one object."""

    def __init__(self, url: Url, path: str, state: File, tell: Callable[[int], object]) -> None:
        self._path, self._state, self._tell = path, state, tell
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


class _Parts(_Upload):
    """A multipart upload to S3, which goes on where an earlier one was interrupted.

    A part that is there counts if its ETag is the MD5 of the file's bytes; else it is sent again.
    """

    def __init__(self, url: Url, path: str, state: File, tell: Callable[[int], object]) -> None:
        super().__init__(url, path, state, tell)
        bucket, key, _ = self._filesystem.split_path(self._target)
        self._where = {"Bucket": bucket, "Key": key}
        self._part_nbytes = max(_PART_NBYTES, -(-self._nbytes // _MOST_PARTS))
        self._count = -(-self._nbytes // self._part_nbytes)

    def send(self) -> None:
        """Send what is missing, then let the object appear."""
        upload_id, there = self._begun()
        self._where["UploadId"] = upload_id
        with closing(File.open(self._path, "r")) as file:
            numbers = range(1, self._count + 1)
            calls = [partial(self._send_part, file, number, there.get(number)) for number in numbers]
            tags = run(gathered(calls, _PARTS_AT_A_TIME))
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        self._call("completing it", "complete_multipart_upload", MultipartUpload={"Parts": parts})

    def _call(self, doing: str, method: str, **named: Any) -> Any:
        return run(self._ask(doing, 0, self._filesystem.call_s3, method, **self._where, **named))

    def _begun(self) -> tuple[str, dict[int, str]]:
        """An upload that was begun, and the ETags of the parts that it has; or a new one."""
        with suppress(ValueError, TypeError, KeyError):  # nothing was, or nothing that reads
            state = base.loads(self._state.pread(0, _STATE_NBYTES))
            if state["part_nbytes"] == self._part_nbytes:
                # Unless the server has forgotten it.
                with suppress(StorageError, FileNotFoundError):
                    return str(state["upload"]), self._listed(str(state["upload"]))
        upload_id = str(self._call("beginning to send it", "create_multipart_upload")["UploadId"])
        self._state.truncate(0)
        self._state.pwrite(0, json.dumps({"upload": upload_id, "part_nbytes": self._part_nbytes}).encode())
        return upload_id, {}

    def _listed(self, upload_id: str) -> dict[int, str]:
        tags: dict[int, str] = {}
        page: dict[str, Any] = {"IsTruncated": True}
        while page.get("IsTruncated"):
            marker = {"UploadId": upload_id, "PartNumberMarker": page.get("NextPartNumberMarker", 0)}
            page = self._call("asking which parts are there", "list_parts", **marker)
            tags |= {part["PartNumber"]: part["ETag"].strip('"') for part in page.get("Parts", [])}
        return tags

    async def _send_part(self, file: File, number: int, there: str | None) -> str:
        data = await asyncio.to_thread(file.pread, (number - 1) * self._part_nbytes, self._part_nbytes)
        tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if there != tag:
            doing, call = f"sending part {number:,} of {self._count:,}", self._filesystem.call_s3
            part = {"PartNumber": number, "Body": data}
            answer = await self._ask(doing, len(data), call, "upload_part", **self._where, **part)
            tag = answer["ETag"].strip('"')
        self._tell(len(data))
        return tag
