"""Which library reads a scheme. fsspec names objects and has credentials for all of them; where the scheme
speaks HTTP, our own client asks, which checks the answers, names the state that it wants, and takes a third
of the time for a small range.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from http.client import responses
from typing import Any, Final

from edcache.backends.remote.http import Address, HttpEngine, failure_of, plain_engine
from edcache.backends.remote.requests import Answer, Changed, Data, Engine, Failing, Stamp, cached, refused
from edcache.backends.remote.url import Url
from edcache.base import MissingDependencyError, OptionError, StorageError

_WEB: Final = ("http", "https")
_S3: Final = ("s3", "s3a")
_GS: Final = ("gs", "gcs")
_HUB: Final = "hf"
_EXTRAS: Final = dict.fromkeys(_S3, "edcache[s3]") | dict.fromkeys(_GS, "edcache[gs]") | {_HUB: "edcache[hf]"}
# Options that a signed URL cannot carry.
_UNSIGNED: Final = ("requester_pays", "s3_additional_kwargs", "version_aware")
_SIGNED_SECONDS: Final = 3600
_SIGNED_ANEW: Final = 900
# What file systems tell the states of an object apart by, the most telling first.
_TAGS: Final = (
    *("generation", "ETag", "etag", "VersionId", "version_id", "blob_id", "sha", "sha256", "md5Hash"),
    *("checksum", "LastModified", "last_modified", "mtime", "updated", "modified", "created"),
)


def engine_of(url: Url, options: Mapping[str, Any]) -> Engine:
    """What reads an object, in this process; raises MissingDependencyError, OptionError."""
    scheme, is_chain = url.scheme, "::" in url.url
    if scheme in _WEB and not is_chain:
        import fsspec.config

        # What its configuration and environment (FSSPEC_HTTP and the like) say of the scheme.
        return plain_engine(url, {**fsspec.config.conf.get(scheme, {}), **options})
    filesystem, path = filesystem_of(url, options)
    inner = FilesystemEngine(filesystem, path)
    if is_chain:
        return inner
    if scheme in _S3 and "?" not in path:
        all_options = {**getattr(filesystem, "storage_options", {}), **options}
        if not any(map(all_options.get, _UNSIGNED)):
            return _Preferring(HttpEngine(_signed(filesystem, path)), inner)
    if scheme in _GS:
        return _Preferring(HttpEngine(_generation(filesystem, path), describe=inner.stamp), inner)
    if scheme == _HUB:
        file = _HubFile(filesystem, path)
        return HttpEngine(file.address, describe=file.stamp)
    return inner


def filesystem_of(url: Url, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The file system of fsspec's for a URL, and the object's path in it; raises as `engine_of`."""
    import fsspec

    failure: Exception
    try:
        filesystem, path = fsspec.core.url_to_fs(url.url, **options)
    except ImportError as error:
        extra = _EXTRAS.get(url.scheme)
        remedy = "" if extra is None else f"; install it with: pip install {extra}"
        failure = MissingDependencyError(
            f"reading {url.scheme}:// needs another package: {url.scrubbed(str(error))}{remedy}"
        )
    except (ValueError, TypeError) as error:
        failure = OptionError(f"{url}: {url.scrubbed(str(error))}")
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

    async def stamp(self) -> Stamp:
        self._filesystem.invalidate_cache()
        if self._filesystem.async_impl:  # of which a request can be cancelled
            info = await self._filesystem._info(self._path)
        else:
            info = await asyncio.to_thread(self._filesystem.info, self._path)
        if info.get("type") == "directory":
            raise refused("a folder, not a file")
        if not isinstance(info.get("size"), int):
            raise refused("its size is unknown")
        tags = ((str(info[name]), name) for name in _TAGS if info.get(name))
        return Stamp(info["size"], *next(tags, ("", "")))

    async def fetch(self, stamp: Stamp, start: int, end: int) -> bytes:
        """See `Engine`: one request. Only its length is checked here; the archive's crc32s tell the rest."""
        filesystem = self._filesystem
        if filesystem.async_impl:
            data = await filesystem._cat_file(self._path, start=start, end=end)
        else:
            data = await asyncio.to_thread(filesystem.cat_file, self._path, start=start, end=end)
        if len(data) != end - start:
            raise Failing(f"{len(data):,} bytes came")
        return bytes(data)


class _Preferring(Engine):
    """One engine, and another one from then on where a server refuses the first at the first request."""

    def __init__(self, first: Engine, other: Engine) -> None:
        self._engine, self._other = first, other

    async def _answer(self, ask: Callable[[Engine], Awaitable[Answer]]) -> Answer:
        engine = self._engine
        try:
            answer = await ask(engine)
        except (Failing, PermissionError) as failing:
            if engine is self._other or (isinstance(failing, Failing) and failing.tries != 1):
                raise
            engine = self._engine = self._other
            answer = await ask(engine)
        self._other = engine
        return answer

    async def begin(self, head: int, tail: int) -> tuple[Stamp, Data, Data]:
        return await self._answer(lambda engine: engine.begin(head, tail))

    async def stamp(self) -> Stamp:
        return await self._answer(lambda engine: engine.stamp())

    async def fetch(self, stamp: Stamp, start: int, end: int) -> Data:
        return await self._answer(lambda engine: engine.fetch(stamp, start, end))


def _signed(filesystem: Any, path: str) -> Address:
    """Of an object of S3: a URL that s3fs signs, anew before it expires."""
    signed: tuple[str, float] = ("", -_SIGNED_SECONDS)

    async def address(stamp: Stamp | None) -> tuple[str, dict[str, str]]:
        nonlocal signed
        if not signed[0] or time.monotonic() - signed[1] > _SIGNED_ANEW:
            url = await asyncio.to_thread(filesystem.sign, path, expiration=_SIGNED_SECONDS)
            signed = url, time.monotonic()
        return signed[0], {}

    return address


def _generation(filesystem: Any, path: str) -> Address:
    """Of one generation of an object of Google Cloud Storage, with a token of gcsfs's."""

    async def address(stamp: Stamp | None) -> tuple[str, dict[str, str]]:
        headers: dict[str, str] = {}
        # It may ask for a new token.
        await asyncio.to_thread(filesystem.credentials.apply, headers)
        return filesystem.url(path, generation=None if stamp is None else stamp.tag), headers

    return address


class _HubFile:
    """A file of a Hugging Face repository: the hub says which commit is meant, which is read ever after.

    fsspec's own file system reads ahead five megabytes wherever one byte is asked for.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        # By what tells a state of the file.
        self._urls: dict[str, str] = {}
        self._headers: dict[str, str] = {}

    async def stamp(self) -> Stamp:
        """Its state: two requests, later one."""
        return await asyncio.to_thread(self._look)

    async def address(self, stamp: Stamp | None) -> tuple[str, dict[str, str]]:
        assert stamp is not None
        if stamp.tag not in self._urls:
            # Opened by another process, which knew the commit.
            await self.stamp()
        if stamp.tag not in self._urls:
            raise Changed("another file was committed")
        return self._urls[stamp.tag], self._headers

    def _look(self) -> Stamp:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import HfHubHTTPError, build_hf_headers

        failure: Exception
        filesystem = self._filesystem
        try:
            file = filesystem.resolve_path(self._path)
            names = file.repo_id, file.path_in_repo
            kind = {"repo_type": file.repo_type, "endpoint": filesystem.endpoint}
            url = hf_hub_url(*names, revision=file.revision, **kind)
            known = get_hf_file_metadata(url, token=filesystem.token)
        except FileNotFoundError:
            # The hub does not tell which; and there has to be one before anything is uploaded.
            failure = PermissionError("no such repository, or none that you may read")
        except HfHubHTTPError as error:
            status = error.response.status_code
            failure = failure_of(status, f"{status} {responses.get(status, '')}".strip())
        else:
            if known.size is None or not known.etag or not known.commit_hash:
                raise refused("its size, its ETag or its commit is unknown")
            self._headers = build_hf_headers(token=filesystem.token)
            self._urls[known.etag] = hf_hub_url(*names, revision=known.commit_hash, **kind)
            return Stamp(known.size, known.etag, "file")
        # Not within the except block, whose error may have credentials in its text.
        raise failure
