"""Objects by fsspec: S3, Google Cloud Storage, Azure, and whatever else it knows."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from edcache.backends import Url
from edcache.backends.remote.requests import (
    Changed,
    Engine,
    Failing,
    ObjectStamp,
    Requests,
    cached,
    refused,
    run,
)
from edcache.base import ArchiveNotFoundError, MissingDependencyError, OptionError, StorageError

_S3: Final = ("s3", "s3a")
_GS: Final = ("gs", "gcs")
_EXTRAS: Final = dict.fromkeys(_S3, "edcache[s3]") | dict.fromkeys(_GS, "edcache[gs]") | {"hf": "edcache[hf]"}
# s3fs has 10, over which 250 ranges took 2.0 s at a latency of 50 ms, over these 1.2.
_CONNECTIONS: Final = 64
# Their servers show an object when its upload is complete.
# Samples in Redis have a key each, and are no archive.
_REDIS: Final = ("redis", "rediss", "unix")
_REDIS_READS_SO: Final = "samples in Redis are read by edcache.compat.kappadata.RedisDataset(source, url)"
_KNOWN_ARE: Final = "; give a path, or a URL of s3://, gs://, hf://, https:// or another storage of fsspec"
_WHOLE: Final = (*_S3, *_GS, "abfs", "abfss", "az", "hf")
_BUCKETS: Final = tuple(scheme for scheme in _WHOLE if scheme != "hf")
# Networks send more slowly than they receive.
_SLOWER: Final = 8
# File systems tell the states of an object apart by these, the most telling first.
_TAGS: Final = (
    *("generation", "ETag", "etag", "VersionId", "version_id", "blob_id", "sha", "sha256", "md5Hash"),
    *("checksum", "LastModified", "last_modified", "mtime", "updated", "modified", "created"),
)


def filesystem_of(requests: Requests) -> tuple[Any, str]:
    """The file system for a URL, and the object's path in it; MissingDependencyError, OptionError."""
    import fsspec

    failure: Exception
    url = requests.url
    if url.scheme in _REDIS:
        raise OptionError(f"{url}: no place for an archive; {_REDIS_READS_SO}")
    more = {"config_kwargs": {"max_pool_connections": _CONNECTIONS}} if url.scheme in _S3 else {}
    try:
        filesystem, path = fsspec.core.url_to_fs(url.url, **(more | requests.options))
    except ImportError as error:
        extra = _EXTRAS.get(url.scheme)
        remedy = "" if extra is None else f"; install it with: pip install {extra}"
        failure = MissingDependencyError(
            f"reading {url.scheme}:// needs another package: {url.scrubbed(str(error))}{remedy}"
        )
    except (ValueError, TypeError) as error:
        text = url.scrubbed(str(error))
        remedy = _KNOWN_ARE if text.startswith("Protocol not known") else ""
        failure = OptionError(f"{url}: {text}{remedy}")
    except Exception as error:  # noqa: BLE001 - some connect already, and raise what they like
        failure = StorageError(f"{url}: {type(error).__name__}: {url.scrubbed(str(error))}")
    else:
        # Kept, as the finaliser of one that a fork inherits would wait for the parent's event loop.
        return cached(filesystem, lambda: filesystem), path
    # Not within the except block, whose error may have credentials in its text.
    raise failure


class FilesystemEngine(Engine):
    """An object of any fsspec file system."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self._path = path

    async def stamp(self) -> ObjectStamp:
        self._filesystem.invalidate_cache()
        info = await self._answer("info")
        if info.get("type") == "directory":
            raise refused("a folder, not a file")
        if not isinstance(info.get("size"), int):
            raise refused("its size is unknown")
        tags = ((str(info[name]), name) for name in _TAGS if info.get(name))
        return ObjectStamp(info["size"], *next(tags, ("", "")))

    async def fetch(self, stamp: ObjectStamp, start: int, end: int) -> bytes:
        """See `Engine`: one request. Only its length is checked here; the archive's crc32s tell the rest."""
        try:
            data = await self._answer("cat_file", start=start, end=end)
            if len(data) != end - start:
                raise Failing(f"{len(data):,} bytes came")
        except Exception:  # of any class: a shorter object that took its place has no such range
            if await self.stamp() != stamp:
                raise Changed("it has another state") from None
            raise
        return bytes(data)

    async def _answer(self, method: str, **options: int) -> Any:
        filesystem = self._filesystem
        if filesystem.async_impl:  # a request of it can be cancelled
            return await getattr(filesystem, f"_{method}")(self._path, **options)
        return await asyncio.to_thread(getattr(filesystem, method), self._path, **options)


def prepare(url: Url) -> None:
    """Make the folder of an object that will be written; ArchiveNotFoundError if it has no bucket."""
    requests = Requests(url)
    filesystem, path = filesystem_of(requests)
    bucket, _, _ = path.lstrip("/").partition("/")

    def ask() -> str | None:
        if url.scheme not in _BUCKETS:
            with suppress(NotImplementedError):
                filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            return None
        try:
            filesystem.info(bucket)
        except FileNotFoundError:
            return bucket
        except Exception:  # noqa: BLE001 - who may write an object need not see its bucket
            return None
        return None

    absent = run(requests.answer("looking for its folder", 0, lambda: asyncio.to_thread(ask)))
    if absent is not None:
        raise ArchiveNotFoundError(
            f"{url}: no bucket {absent}; check the URL, or make it first", path=str(url)
        )


def upload(url: Url, path: str, tell: Callable[[int, int], object]) -> None:
    """Send a file; the object has its name when it is whole, and not before. It is compared by its size."""
    requests, nbytes = Requests(url), os.path.getsize(path)
    filesystem, target = filesystem_of(requests)
    name = target if url.scheme in _WHOLE else f"{target}.{uuid.uuid4().hex[:8]}.part"

    def send() -> int:
        filesystem.put_file(path, name)
        if name != target:
            filesystem.mv(name, target)
        filesystem.invalidate_cache()
        return int(filesystem.info(target)["size"])

    # In another thread than that of the event loop.
    sending = requests.answer(f"sending {nbytes:,} bytes", _SLOWER * nbytes, lambda: asyncio.to_thread(send))
    found = run(sending)
    if found != nbytes:
        raise StorageError(
            f"{url}: {nbytes:,} bytes were sent from {path}, {found:,} are there; send it again"
        )
    tell(nbytes, nbytes)
