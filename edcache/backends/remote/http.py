"""One object over HTTP: an answer that does not fit what was asked is not believed.

fsspec's own client takes what comes: a 200 for a 206, other bytes, a body that is compressed.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from edcache.backends.remote.requests import (
    BUSY_TRIES,
    Changed,
    Data,
    Engine,
    Failing,
    ObjectStamp,
    Requests,
    cached,
    refused,
    run,
)
from edcache.base import MissingDependencyError, OptionError

if TYPE_CHECKING:
    import aiohttp

_CONNECTIONS: Final = 128
_CONNECT_SECONDS: Final = 15
_CLOSING_SECONDS: Final = 5
_REDIRECTS: Final = 5
_MOVED: Final = (301, 302, 303, 307, 308)
_ABSENT: Final = (404, 410)
_THROTTLED: Final = (429, 503)
_FORBIDDEN: Final = (401, 403, 407)
_RANGE: Final = re.compile(r"\s*bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19})\s*", re.IGNORECASE)
_EMPTY: Final = re.compile(r"\s*bytes\s+\*/0{1,19}\s*", re.IGNORECASE)
_ETAG: Final = "ETag"
_NO_RANGES: Final = "200 for a range: the server sends files as a whole only; download it with curl -O"
_SECONDS: Final = re.compile(r"\d{1,9}")


def plain_engine(requests: Requests) -> HttpEngine:
    """The engine of an http or https URL, with `headers`.

    No local of this function holds credentials while it raises, as some tracebacks show the locals.
    """
    import fsspec.config

    url = requests.url
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "reading http:// and https:// needs aiohttp; install it with: pip install edcache[remote]"
        ) from None
    unknown = sorted(set(requests.options) - {"headers"})
    if unknown:
        raise OptionError(
            f"{url}: storage_options takes headers, request_timeout and request_tries here, not "
            f"{', '.join(unknown)}"
        )
    # If none are given, those of fsspec's configuration and environment (FSSPEC_HTTP and the like).
    configured = fsspec.config.conf.get(url.scheme, {}).get("headers")
    headers = dict(requests.options.get("headers", configured) or {})
    parts = urlsplit(url.url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if at:
        user, _, password = map(unquote, userinfo.partition(":"))
        headers.setdefault("Authorization", f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}")
    # What is quoted stays: it may be signed.
    bare = quote(urlunsplit((parts.scheme, host, parts.path, parts.query, "")), safe="%/:?#[]@!$&'()*+,;=~")
    return HttpEngine(bare, headers)


class HttpEngine(Engine):
    """An object that a server sends in ranges; each method is one request.

    Args:
        headers: for the server of `url` alone.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url, self._headers = url, headers

    async def begin(self, head: int, tail: int) -> tuple[ObjectStamp, Data, Data]:
        """See `Engine`: two requests at once, which must name one state. The second may be refused, and is repeated."""
        asked = self._answer(0, head, None), self._answer(-tail, 0, None)
        first, last = await asyncio.gather(*asked, return_exceptions=True)
        if isinstance(first, BaseException):
            raise first
        stamp, data = first
        if not stamp.size:
            return stamp, data, b""
        if isinstance(last, BaseException) or last[0] != stamp:
            # Some servers know no range that counts from the end. Or one of the two answers is wrong.
            return stamp, data, (await self._answer(max(0, stamp.size - tail), stamp.size, stamp))[1]
        return stamp, data, last[1]

    async def stamp(self) -> ObjectStamp:
        return (await self._answer(0, 1, None))[0]

    async def fetch(self, stamp: ObjectStamp, start: int, end: int) -> Data:
        """See `Engine`: the request names the state if that has an ETag."""
        return (await self._answer(start, end, stamp))[1]

    async def _answer(self, start: int, end: int, stamp: ObjectStamp | None) -> tuple[ObjectStamp, Data]:
        """Bytes [start, end), or the last ones if `start` is negative, and the state that has them."""
        wanted = f"{start}-{end - 1}" if start >= 0 else f"{start}"
        question = {"Range": f"bytes={wanted}", "Accept-Encoding": "identity"}
        # A weak ETag never matches an If-Match (RFC 9110, 13.1.1).
        if stamp is not None and stamp.kind == _ETAG and stamp.tag.startswith('"'):
            question["If-Match"] = stamp.tag
        url = self._url if stamp is None else stamp.url or self._url
        async with _asked(url, self._headers, question) as response:
            return await _read(response, start, end, stamp)


@asynccontextmanager
async def _asked(
    url: str, headers: Mapping[str, str], question: Mapping[str, str]
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer, with the failures of the client as ours: most of their texts have the signed URL."""
    import aiohttp

    try:
        async with _followed(url, headers, question) as response:
            yield response
    except aiohttp.ClientConnectorError as error:  # its text has host and port alone
        raise Failing(f"no connection: {error}") from None
    except aiohttp.ClientError as error:
        raise Failing(f"no whole answer: {type(error).__name__}") from None


@asynccontextmanager
async def _followed(
    url: str, headers: Mapping[str, str], question: Mapping[str, str]
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer, after the redirects that lead to it; credentials stay with the first server."""
    import yarl

    client, where = cached(HttpEngine, _connected), yarl.URL(url, encoded=True)
    origin = where.origin()
    for _ in range(1 + _REDIRECTS):
        own = headers if where.origin() == origin else {}
        async with client.get(where, headers={**own, **question}, allow_redirects=False) as response:
            if response.status not in _MOVED:
                yield response
                return
            location = response.headers.get("Location", "")
        before = where
        try:
            where = before.join(yarl.URL(location, encoded=True))
            is_safe = where.origin() and location and where.scheme in ("https", before.scheme)
        except ValueError:
            is_safe = False
        if not is_safe:
            raise refused("a redirect to nowhere, or away from https")
    raise Failing(f"more than {_REDIRECTS} redirects")


async def _read(
    response: aiohttp.ClientResponse, start: int, end: int, stamp: ObjectStamp | None
) -> tuple[ObjectStamp, Data]:
    headers, text = response.headers, response.headers.get("Content-Range", "")
    if response.status == 416 and stamp is None and _EMPTY.fullmatch(text):
        return ObjectStamp(0, *_tag(headers)), b""
    if response.status == 200:
        raise refused(_NO_RANGES)
    if response.status != 206:
        if stamp is not None and response.status in (*_ABSENT, 412, 416):
            raise Changed(_status(response))
        raise _failure(response)
    matched = _RANGE.fullmatch(text)
    if not matched:
        raise Failing(f"206 with Content-Range {text[:80]!r}")
    first, last, size = map(int, matched.groups())
    if start < 0:
        start, end = max(0, size + start), size
    if (first, last + 1) != (start, min(end, size)):
        raise Failing(f"bytes {first:,} to {last + 1:,} of {size:,} came instead")
    now = ObjectStamp(size, *_tag(headers))
    if stamp is not None:
        _check_state(now, stamp)
    # One that grows piece by piece is copied many times over.
    nbytes, body, here = last + 1 - first, memoryview(bytearray(last + 1 - first)), 0
    async for piece in response.content.iter_any():
        if here + len(piece) > nbytes:
            raise Failing(f"more than {nbytes:,} bytes")
        body[here : here + len(piece)] = piece
        here += len(piece)
    if here < nbytes:
        raise Failing(f"{here:,} bytes came")
    return now, body


def _check_state(now: ObjectStamp, stamp: ObjectStamp) -> None:
    """Raise Changed if an answer is of another state."""
    if now.size != stamp.size:
        raise Changed(f"it has {now.size:,} bytes now, {stamp.size:,} when it was opened")
    # A server that names a state by its date in one answer, and by an ETag in another, says nothing by it. It
    # may add the mark of weakness, or take it away.
    if now.tag and now.kind == stamp.kind and now.tag.removeprefix("W/") != stamp.tag.removeprefix("W/"):
        raise Changed(f"its state is {now.tag[:80]} now, {stamp.tag[:80]} when it was opened")


def _status(response: aiohttp.ClientResponse) -> str:
    return f"{response.status} {response.reason or ''}".strip()


def _failure(response: aiohttp.ClientResponse) -> Exception:
    return failure_of(response.status, _status(response), response.headers.get("Retry-After", ""))


def failure_of(status: int, text: str, retry_after: str = "") -> Exception:
    """The failure that an HTTP status says; `text` tells it."""
    if status in _ABSENT:
        return FileNotFoundError(text)
    if status in _FORBIDDEN:
        return PermissionError(text)
    if status in _THROTTLED:
        seconds = retry_after.strip()
        return Failing(text, BUSY_TRIES, float(seconds) if _SECONDS.fullmatch(seconds) else None)
    return refused(text) if 400 <= status < 500 else Failing(text)


def _tag(headers: Mapping[str, str]) -> tuple[str, str]:
    """The tag of a state, and its kind; "" if the server sends none."""
    tags = ((headers.get(name, "").strip(), name) for name in (_ETAG, "Last-Modified"))
    return next(((tag, name) for tag, name in tags if tag), ("", ""))


def _connected() -> aiohttp.ClientSession:
    """A client for this process."""
    from urllib.request import getproxies

    import aiohttp

    client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
        # The time of a whole request is limited in `Requests`.
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=_CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        # Told to trust the environment, aiohttp looks for proxies and ~/.netrc at each request.
        trust_env=bool(getproxies()),
        auto_decompress=False,
    )
    # Rather than leave its connections to a finaliser.
    atexit.register(_close, client, os.getpid())
    return client


def _close(client: aiohttp.ClientSession, pid: int) -> None:
    if pid == os.getpid():
        # A process that exits waits for nobody.
        with suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError, RuntimeError):
            run(client.close(), _CLOSING_SECONDS)
