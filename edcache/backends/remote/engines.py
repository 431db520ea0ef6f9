"""Which library reads a scheme. fsspec names objects and has credentials for all of them; where the scheme
speaks HTTP, our own client asks, which checks the answers, names the state that it wants, and takes a third
of the time for a small range.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from edcache.backends.remote import loop
from edcache.backends.remote.hub import HubEngine
from edcache.backends.remote.request import Engine, Failing, Stamp, refused
from edcache.backends.remote.url import Url
from edcache.backends.remote.web import Plain, WebEngine, check_installed
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
    """What reads an object, in this process.

    Raises:
        MissingDependencyError: "reading s3:// needs s3fs; install it with: pip install edcache[s3]".
        OptionError: fsspec knows no such scheme, or the options are not its.
    """
    scheme = url.scheme
    if scheme in _WEB and "::" not in url.url:
        check_installed()
        plain = Plain(url, _configured(scheme) | dict(options))
        return WebEngine(plain, plain.client_options)
    filesystem, path = filesystem_of(url, options)
    inner = FilesystemEngine(filesystem, path)
    if "::" in url.url:
        return inner
    if scheme in _S3 and "?" not in path and not any(map(_options_of(filesystem, options).get, _UNSIGNED)):
        return _Preferring(WebEngine(_Signed(filesystem, path)), inner)
    if scheme in _GS:
        return _Preferring(_GoogleEngine(filesystem, path), inner)
    if scheme == _HUB:
        return HubEngine(filesystem, path)
    return inner


def _configured(scheme: str) -> dict[str, Any]:
    """What fsspec's configuration and environment (FSSPEC_HTTP and the like) say of a scheme."""
    import fsspec.config

    return dict(fsspec.config.conf.get(scheme, {}))


def _options_of(filesystem: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(getattr(filesystem, "storage_options", {})), **options}


def filesystem_of(url: Url, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The file system of fsspec's for a URL, and the object's path in it.

    Raises: as `engine_of`.
    """
    import fsspec

    failed: Exception
    try:
        filesystem, path = fsspec.core.url_to_fs(url.url, **options)
    except ImportError as error:
        failed = _missing(url, error)
    except (ValueError, TypeError) as error:
        failed = OptionError(f"{url.shown}: {url.scrubbed(str(error))}")
    except Exception as error:  # noqa: BLE001 - some connect already, and raise what they like
        failed = StorageError(f"{url.shown}: {type(error).__name__}: {url.scrubbed(str(error))}")
    else:
        # Kept, as the finaliser of one that a fork inherits would wait for the parent's event loop.
        return loop.kept(filesystem, lambda: filesystem), path
    # Not within the except block, whose error may have credentials in its text.
    raise failed


def _missing(url: Url, error: ImportError) -> MissingDependencyError:
    extra = _EXTRAS.get(url.scheme)
    told = url.scrubbed(str(error))
    if extra is None:
        return MissingDependencyError(f"reading {url.scheme}:// needs another package: {told}")
    return MissingDependencyError(
        f"reading {url.scheme}:// needs another package: {told}; install it with: pip install {extra}"
    )


class FilesystemEngine:
    """An object of any fsspec file system; an `Engine`."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self._path = path

    async def begin(self, nbytes: int) -> tuple[Stamp, bytes]:
        """See `Engine`: what the file system takes to describe the object, and one request."""
        stamp = await self.stamp()
        return stamp, await self.fetch(stamp, 0, min(nbytes, stamp.size))

    async def stamp(self) -> Stamp:
        """See `Engine`."""
        filesystem = self._filesystem
        filesystem.invalidate_cache()
        if hasattr(filesystem, "_get_object"):  # gcsfs: without a listing beside it
            found = await filesystem._get_object(self._path)
        elif filesystem.async_impl:
            found = await filesystem._info(self._path)
        else:
            found = await asyncio.to_thread(filesystem.info, self._path)
        if found.get("type") == "directory":
            raise refused("a folder, not a file")
        if not isinstance(found.get("size"), int):
            raise refused("its size is unknown")
        tags = ((str(found[name]), name) for name in _TAGS if found.get(name))
        return Stamp(found["size"], *next(tags, ("", "")))

    async def fetch(self, stamp: Stamp, start: int, end: int) -> bytes:
        """See `Engine`: one request. Only its length is checked here; the archive's crc32s tell the rest."""
        if start == end:
            return b""
        filesystem = self._filesystem
        if filesystem.async_impl:
            data = await filesystem._cat_file(self._path, start=start, end=end)
        else:
            data = await asyncio.to_thread(filesystem.cat_file, self._path, start=start, end=end)
        if len(data) != end - start:
            raise Failing(f"{len(data):,} bytes came")
        return bytes(data)


class _Signed:
    """The address of an object of S3: a URL that s3fs signs, anew before it expires."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        self._signed: tuple[str, float] | None = None

    async def now(self, stamp: Stamp | None) -> tuple[str, dict[str, str]]:
        """See `Address`."""
        found = self._signed
        if found is None or time.monotonic() - found[1] > _SIGNED_ANEW:
            sign = self._filesystem.sign
            url = await asyncio.to_thread(sign, self._path, expiration=_SIGNED_SECONDS)
            found = self._signed = url, time.monotonic()
        return found[0], {}


class _Generation:
    """The address of one generation of an object of Google Cloud Storage, with a token of gcsfs's."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path

    async def now(self, stamp: Stamp | None) -> tuple[str, dict[str, str]]:
        """See `Address`."""
        headers: dict[str, str] = {}
        # It may ask for a new token.
        await asyncio.to_thread(self._filesystem.credentials.apply, headers)
        generation = None if stamp is None else stamp.tag
        return self._filesystem.url(self._path, generation=generation), headers


class _GoogleEngine:
    """An object of Google Cloud Storage: gcsfs tells its state, our client reads that generation of it."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = FilesystemEngine(filesystem, path)
        self._web = WebEngine(_Generation(filesystem, path))

    async def begin(self, nbytes: int) -> tuple[Stamp, bytes]:
        """See `Engine`: two requests."""
        stamp = await self.stamp()
        return stamp, await self.fetch(stamp, 0, min(nbytes, stamp.size))

    async def stamp(self) -> Stamp:
        """See `Engine`: one request."""
        return await self._filesystem.stamp()

    async def fetch(self, stamp: Stamp, start: int, end: int) -> bytes:
        """See `Engine`: one request."""
        return b"" if start == end else await self._web.fetch(stamp, start, end)


class _Preferring:
    """One engine, and another one from then on where a server refuses the first at the first request."""

    def __init__(self, first: Engine, other: Engine) -> None:
        self._first, self._other = first, other
        self._chosen: Engine | None = None

    async def begin(self, nbytes: int) -> tuple[Stamp, bytes]:
        """See `Engine`."""
        if self._chosen is None:
            try:
                found = await self._first.begin(nbytes)
            except Failing as failing:
                if failing.tries != 1:
                    raise
                self._chosen = self._other
            else:
                self._chosen = self._first
                return found
        return await self._chosen.begin(nbytes)

    async def stamp(self) -> Stamp:
        """See `Engine`."""
        return await (self._chosen or self._first).stamp()

    async def fetch(self, stamp: Stamp, start: int, end: int) -> bytes | bytearray:
        """See `Engine`."""
        return await (self._chosen or self._first).fetch(stamp, start, end)
