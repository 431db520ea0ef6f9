"""One file to one object behind a URL: it has its name there when it is whole, and not before."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from edcache import base
from edcache.backends.remote.engines import filesystem_of
from edcache.backends.remote.requests import Requests, run
from edcache.backends.remote.url import Url
from edcache.base import OptionError, StorageError
from edcache.storage import File

# Their servers show an object when its upload is complete.
_WHOLE: Final = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf")
_S3: Final = ("s3", "s3a")
_READ_ONLY: Final = ("http", "https")
# S3 takes up to 10,000 parts of 5 MiB and more.
_PART_NBYTES: Final = 1 << 24
_MOST_PARTS: Final = 9_000
_PARTS_AT_A_TIME: Final = 4
_STATE_NBYTES: Final = 1 << 12
# Networks send more slowly than they receive.
_SLOWER: Final = 8


def check_writable(url: Url) -> None:
    """Raise OptionError where nothing can be written to such a URL."""
    if url.scheme in _READ_ONLY or "::" in url.url:
        raise OptionError(
            f"{url}: {url.scheme}:// is only read; write to s3://, gs:// or another store of objects, "
            "or to a path"
        )


def upload(url: Url, path: str, state: File, tell: Callable[[int], object]) -> None:
    """Send a file; `state` keeps what a later call needs to go on with this one, if it is interrupted."""
    check_writable(url)
    sending = _Upload(url, path, tell)
    if url.scheme in _S3 and sending.nbytes > _PART_NBYTES:
        _Parts(sending, state).send()
    else:
        sending.send(is_whole=url.scheme in _WHOLE)
    sending.check()


class _Upload:
    """One file on its way to one object."""

    def __init__(self, url: Url, path: str, tell: Callable[[int], object]) -> None:
        self.path, self.tell = path, tell
        self.nbytes = os.path.getsize(path)
        self._requests = Requests(url)
        self.filesystem, self.target = filesystem_of(url, self._requests.options)

    def ask(self, doing: str, nbytes: int, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a file system, again if it fails, in another thread than its event loop's."""
        return run(self.asked(doing, nbytes, call, *given, **named))

    async def asked(
        self, doing: str, nbytes: int, call: Callable[..., Any], *given: Any, **named: Any
    ) -> Any:
        """The same, to be awaited."""
        return await self._requests.answered(
            doing, _SLOWER * nbytes, lambda: asyncio.to_thread(call, *given, **named)
        )

    def send(self, *, is_whole: bool) -> None:
        """Send all of it; under another name first, where a part of it would be seen."""
        name = self.target if is_whole else f"{self.target}.{uuid.uuid4().hex[:8]}.part"
        put = self.filesystem.put_file
        self.ask(f"sending {self.nbytes:,} bytes", self.nbytes, put, self.path, name)
        if not is_whole:
            self.ask("giving it its name", self.nbytes, self.filesystem.mv, name, self.target)
        self.tell(self.nbytes)

    def check(self) -> None:
        """Compare the object with the file by its size."""
        self.filesystem.invalidate_cache()
        nbytes = self.ask("looking at what was sent", 0, self.filesystem.info, self.target)["size"]
        if nbytes != self.nbytes:
            raise StorageError(
                f"{self._requests.url}: {self.nbytes:,} bytes were sent from {self.path}, {nbytes:,} are "
                "there; send it again"
            )


class _Parts:
    """A multipart upload to S3, which goes on where an earlier one was interrupted.

    A part that is there counts if its ETag is the MD5 of the file's bytes; else it is sent again.
    """

    def __init__(self, sending: _Upload, state: File) -> None:
        self._sending, self._state = sending, state
        bucket, key, _ = sending.filesystem.split_path(sending.target)
        self._where = {"Bucket": bucket, "Key": key}
        self._part_nbytes = max(_PART_NBYTES, -(-sending.nbytes // _MOST_PARTS))
        self._count = -(-sending.nbytes // self._part_nbytes)

    def send(self) -> None:
        """Send what is missing, then let the object appear."""
        upload_id, there = self._begun()
        self._where["UploadId"] = upload_id
        with closing(File.open(self._sending.path, "r")) as file:
            tags = run(self._send_parts(file, there))
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        self._ask("completing it", "complete_multipart_upload", MultipartUpload={"Parts": parts})

    def _ask(self, doing: str, method: str, **named: Any) -> Any:
        call = self._sending.filesystem.call_s3
        return self._sending.ask(doing, 0, call, method, **self._where, **named)

    def _begun(self) -> tuple[str, dict[int, str]]:
        """An upload that was begun, and the ETags of the parts that it has; or a new one."""
        known = self._known()
        if known is not None:
            try:
                return known, self._listed(known)
            except (StorageError, FileNotFoundError):
                pass  # the server has forgotten it
        upload_id = str(self._ask("beginning to send it", "create_multipart_upload")["UploadId"])
        self._state.truncate(0)
        self._state.pwrite(0, json.dumps({"upload": upload_id, "part_nbytes": self._part_nbytes}).encode())
        return upload_id, {}

    def _known(self) -> str | None:
        try:
            state = base.loads(self._state.pread(0, _STATE_NBYTES) or b"null")
        except ValueError:
            return None
        if not isinstance(state, dict) or state.get("part_nbytes") != self._part_nbytes:
            return None
        return str(state.get("upload", "")) or None

    def _listed(self, upload_id: str) -> dict[int, str]:
        tags: dict[int, str] = {}
        page: dict[str, Any] = {"IsTruncated": True}
        while page.get("IsTruncated"):
            marker = {"UploadId": upload_id, "PartNumberMarker": page.get("NextPartNumberMarker", 0)}
            page = self._ask("asking which parts are there", "list_parts", **marker)
            tags |= {part["PartNumber"]: part["ETag"].strip('"') for part in page.get("Parts", [])}
        return tags

    async def _send_parts(self, file: File, there: dict[int, str]) -> list[str]:
        turns = asyncio.Semaphore(_PARTS_AT_A_TIME)

        async def send(number: int) -> str:
            async with turns:
                return await self._send_part(file, number, there.get(number))

        return list(await asyncio.gather(*map(send, range(1, self._count + 1))))

    async def _send_part(self, file: File, number: int, there: str | None) -> str:
        data = await asyncio.to_thread(file.pread, (number - 1) * self._part_nbytes, self._part_nbytes)
        tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if there != tag:
            doing, call = f"sending part {number:,} of {self._count:,}", self._sending.filesystem.call_s3
            part = {"PartNumber": number, "Body": data}
            answer = await self._sending.asked(doing, len(data), call, "upload_part", **self._where, **part)
            tag = answer["ETag"].strip('"')
        self._sending.tell(len(data))
        return tag
