"""One file to one object behind a URL: it has its name there when it is whole, and not before."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import uuid
from collections.abc import Callable
from typing import Any, Final

from edcache import base
from edcache.backends.remote import loop
from edcache.backends.remote.engines import filesystem_of
from edcache.backends.remote.request import Patience, answered, patience_of
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

Tell = Callable[[int], object]
"""`tell(nbytes)`: so many more bytes are there."""


def check_writable(url: Url) -> None:
    """Raise OptionError where nothing can be written to such a URL."""
    if url.scheme in _READ_ONLY or "::" in url.url:
        raise OptionError(
            f"{url.shown}: {url.scheme}:// is only read; write to s3://, gs:// or another store of objects, "
            "or to a path"
        )


def upload(url: Url, path: str, state: File, tell: Tell) -> None:
    """Send a file.

    Args:
        state: keeps what a later call needs to go on with this upload, if it is interrupted.
    Raises:
        StorageError: "s3://bucket/train.zip: sending part 3 of 12: ...; asked 5 times".
    """
    check_writable(url)
    patience, options = patience_of(url.options)
    filesystem, target = filesystem_of(url, options)
    sending = _Sending(url, patience, filesystem, target, path, tell)
    if url.scheme in _S3 and sending.nbytes > _PART_NBYTES:
        _Parts(sending, state).send()
    else:
        sending.send(target if url.scheme in _WHOLE else f"{target}.{uuid.uuid4().hex[:8]}.part")
    sending.check()


class _Sending:
    """One file on its way to one object."""

    def __init__(
        self, url: Url, patience: Patience, filesystem: Any, target: str, path: str, tell: Tell
    ) -> None:
        self.url, self.patience = url, patience
        self.filesystem, self.target = filesystem, target
        self.path, self.tell = path, tell
        self.nbytes = os.path.getsize(path)

    def ask(self, doing: str, nbytes: int, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a file system, again if it fails, in another thread than its event loop's."""
        return loop.run(self.asked(doing, nbytes, call, *given, **named))

    async def asked(
        self, doing: str, nbytes: int, call: Callable[..., Any], *given: Any, **named: Any
    ) -> Any:
        """The same, to be awaited."""
        return await answered(
            self.url, self.patience, doing, _SLOWER * nbytes, lambda: asyncio.to_thread(call, *given, **named)
        )

    def send(self, name: str) -> None:
        """Send all of it under a name, and give it its own where that is another."""
        filesystem = self.filesystem
        self.ask(f"sending {self.nbytes:,} bytes", self.nbytes, filesystem.put_file, self.path, name)
        if name != self.target:
            self.ask("giving it its name", self.nbytes, filesystem.mv, name, self.target)
        self.tell(self.nbytes)

    def check(self) -> None:
        """Compare the object with the file by its size."""
        self.filesystem.invalidate_cache()
        found = self.ask("looking at what was sent", 0, self.filesystem.info, self.target)["size"]
        if found != self.nbytes:
            raise StorageError(
                f"{self.url.shown}: {self.nbytes:,} bytes were sent from {self.path}, {found:,} are there; "
                "send it again"
            )


class _Parts:
    """A multipart upload to S3, which goes on where an earlier one was interrupted.

    A part that is there counts if its ETag is the MD5 of the file's bytes; where the server makes other
    ETags, all are sent again.
    """

    def __init__(self, sending: _Sending, state: File) -> None:
        self._sending, self._state = sending, state
        bucket, key, _ = sending.filesystem.split_path(sending.target)
        self._where = {"Bucket": bucket, "Key": key}
        self._part_nbytes = max(_PART_NBYTES, -(-sending.nbytes // _MOST_PARTS))
        self._count = -(-sending.nbytes // self._part_nbytes)

    def send(self) -> None:
        """Send what is missing, then let the object appear."""
        upload_id, there = self._begun()
        where = self._where | {"UploadId": upload_id}
        file = File.open(self._sending.path, "r")
        try:
            tags = loop.run(self._send_parts(file, where, there))
        finally:
            file.close()
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in tags]
        self._ask("completing it", "complete_multipart_upload", **where, MultipartUpload={"Parts": parts})

    def _ask(self, doing: str, method: str, **named: Any) -> Any:
        return self._sending.ask(doing, 0, self._sending.filesystem.call_s3, method, **named)

    def _begun(self) -> tuple[str, dict[int, str]]:
        """An upload that was begun, and the ETags of the parts that it has; or a new one."""
        known = self._known()
        if known is not None:
            try:
                return known, self._listed(known)
            except (StorageError, FileNotFoundError):
                pass  # the server has forgotten it
        upload_id = str(
            self._ask("beginning to send it", "create_multipart_upload", **self._where)["UploadId"]
        )
        said = json.dumps({"upload": upload_id, "part_nbytes": self._part_nbytes}).encode()
        self._state.truncate(0)
        self._state.pwrite(0, said)
        return upload_id, {}

    def _known(self) -> str | None:
        try:
            said = base.loads(self._state.pread(0, _STATE_NBYTES) or b"null")
        except ValueError:
            return None
        if not isinstance(said, dict) or said.get("part_nbytes") != self._part_nbytes:
            return None
        return str(said.get("upload", "")) or None

    def _listed(self, upload_id: str) -> dict[int, str]:
        found: dict[int, str] = {}
        marker = 0
        while True:
            page = self._ask(
                "asking which parts are there",
                "list_parts",
                **self._where,
                UploadId=upload_id,
                PartNumberMarker=marker,
            )
            found |= {part["PartNumber"]: part["ETag"].strip('"') for part in page.get("Parts", [])}
            if not page.get("IsTruncated"):
                return found
            marker = page["NextPartNumberMarker"]

    async def _send_parts(
        self, file: File, where: dict[str, str], there: dict[int, str]
    ) -> list[tuple[int, str]]:
        turns = asyncio.Semaphore(_PARTS_AT_A_TIME)

        async def send(number: int) -> tuple[int, str]:
            async with turns:
                return number, await self._send_part(file, where, number, there.get(number))

        return list(await asyncio.gather(*map(send, range(1, self._count + 1))))

    async def _send_part(self, file: File, where: dict[str, str], number: int, there: str | None) -> str:
        data = await asyncio.to_thread(file.pread, (number - 1) * self._part_nbytes, self._part_nbytes)
        tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if there != tag:
            sending = self._sending
            doing = f"sending part {number:,} of {self._count:,}"
            call = sending.filesystem.call_s3
            found = await sending.asked(
                doing, len(data), call, "upload_part", **where, PartNumber=number, Body=data
            )
            tag = found["ETag"].strip('"')
        self._sending.tell(len(data))
        return tag
