"""One object over HTTP: an answer that does not fit what was asked is not believed.

fsspec's own client takes what comes: a 200 for a 206, other bytes, a body that is compressed.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from edcache.backends.remote.requests import (
    Changed,
    Data,
    Engine,
    Failing,
    Stamp,
    cached,
    refused,
    run,
    strange,
)
from edcache.backends.remote.url import Url
from edcache.base import MissingDependencyError, OptionError

if TYPE_CHECKING:
    import aiohttp

_CONNECTIONS: Final = 128
_CONNECT_SECONDS: Final = 15
_CLOSING_SECONDS: Final = 5
_REDIRECTS: Final = 5
_MOVED: Final = (301, 302, 303, 307, 308)
_ABSENT: Final = (404, 410)
_BUSY: Final = (408, 425, 429)
_THROTTLED: Final = (429, 503)
_FORBIDDEN: Final = (401, 403, 407)
_OPTIONS: Final = ("headers", "client_kwargs")
_RANGE: Final = re.compile(r"\s*bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19})\s*", re.IGNORECASE)
_EMPTY: Final = re.compile(r"\s*bytes\s+\*/0{1,19}\s*", re.IGNORECASE)
_ETAG: Final = "ETag"
# The last is how an upload came, which some servers of S3 repeat; the bytes are plain.
_PLAIN: Final = ("", "identity", "aws-chunked")
_SECONDS: Final = re.compile(r"\s*\d{1,9}\s*")

Address = Callable[["Stamp | None"], Awaitable["tuple[str, Mapping[str, str]]"]]
"""The URL and the headers for a request now; of one state, where a URL can name it."""


def plain_engine(url: Url, options: Mapping[str, Any]) -> HttpEngine:
    """What reads an http or https URL, with `headers`, and `client_kwargs` of aiohttp.ClientSession."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "reading http:// and https:// needs aiohttp; install it with: pip install edcache[remote]"
        ) from None
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise OptionError(
            f"{url}: storage_options takes headers, client_kwargs, request_timeout and "
            f"request_tries here, not {', '.join(unknown)}"
        )
    client_options: dict[str, Any] = dict(options.get("client_kwargs") or {})
    headers = {**(client_options.pop("headers", None) or {}), **(options.get("headers") or {})}
    parts = urlsplit(url.url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if at:
        user, _, password = map(unquote, userinfo.partition(":"))
        headers.setdefault("Authorization", f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}")
    # What is quoted stays: it may be signed.
    bare = quote(urlunsplit(parts._replace(netloc=host, fragment="")), safe="%/:?#[]@!$&'()*+,;=~")

    async def address(stamp: Stamp | None) -> tuple[str, Mapping[str, str]]:
        return bare, headers

    return HttpEngine(address, client_options)


class HttpEngine(Engine):
    """An object that a server sends in ranges; each method is one request.

    Args:
        client_options: for aiohttp.ClientSession. describe: tells its state, where another library does.
    """

    def __init__(
        self,
        address: Address,
        client_options: Mapping[str, Any] | None = None,
        describe: Callable[[], Awaitable[Stamp]] | None = None,
    ) -> None:
        self._address, self._describe = address, describe
        self._client_options = client_options or {}

    async def begin(self, head: int, tail: int) -> tuple[Stamp, Data, Data]:
        """See `Engine`: two requests at once, of which the second may be refused."""
        if self._describe:
            return await super().begin(head, tail)
        asked = self._answer(0, head, None), self._answer(-tail, 0, None)
        first, last = await asyncio.gather(*asked, return_exceptions=True)
        if isinstance(first, BaseException):
            raise first
        # Some servers know no range that counts from the end.
        return *first, b"" if isinstance(last, BaseException) or last[0] != first[0] else last[1]

    async def stamp(self) -> Stamp:
        return await self._describe() if self._describe else (await self._answer(0, 1, None))[0]

    async def fetch(self, stamp: Stamp, start: int, end: int) -> Data:
        """See `Engine`: the request names the state where it has an ETag."""
        return (await self._answer(start, end, stamp))[1]

    async def _answer(self, start: int, end: int, stamp: Stamp | None) -> tuple[Stamp, Data]:
        """Bytes [start, end), or the last ones where `start` is negative, and the state that they are of."""
        import aiohttp

        url, headers = await self._address(stamp)
        wanted = f"{start}-{end - 1}" if start >= 0 else f"{start}"
        question = {"Range": f"bytes={wanted}", "Accept-Encoding": "identity"}
        # A weak ETag never matches an If-Match (RFC 9110, 13.1.1).
        if stamp is not None and stamp.kind == _ETAG and stamp.tag.startswith('"'):
            question["If-Match"] = stamp.tag
        try:
            async with _followed(_client(self._client_options), url, headers, question) as response:
                return await _read(response, start, end, stamp)
        except aiohttp.ClientConnectorCertificateError as error:
            raise refused(f"its certificate does not prove who it is: {error.certificate_error}") from None
        except aiohttp.ServerTimeoutError:
            raise Failing("the connection was not made in time") from None
        except aiohttp.ClientConnectorError as error:
            raise Failing(f"no connection: {error.strerror or error.os_error}") from None
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
            raise Failing("the server closed the connection before the whole answer came") from None
        except aiohttp.ClientResponseError as error:
            raise strange(f"an answer that is no HTTP: {error.message}") from None


@asynccontextmanager
async def _followed(
    client: aiohttp.ClientSession, url: str, headers: Mapping[str, str], question: Mapping[str, str]
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer, after the redirects that lead to it; credentials stay with the first server."""
    import yarl

    where = yarl.URL(url, encoded=True)
    origin = where.origin()
    for _ in range(1 + _REDIRECTS):
        own = headers if where.origin() == origin else {}
        async with client.get(where, headers={**own, **question}, allow_redirects=False) as response:
            if response.status not in _MOVED:
                yield response
                return
            location = response.headers.get("Location", "")
        if not location:
            raise refused("a redirect to nowhere")
        before = where
        try:
            where = before.join(yarl.URL(location, encoded=True))
            where.origin()
        except ValueError:
            raise strange("a redirect to what is no URL") from None
        if where.scheme not in ("https", before.scheme):
            raise refused(f"a redirect from {before.scheme} to {where.scheme}")
    raise strange(f"more than {_REDIRECTS} redirects")


async def _read(
    response: aiohttp.ClientResponse, start: int, end: int, stamp: Stamp | None
) -> tuple[Stamp, Data]:
    headers, text = response.headers, response.headers.get("Content-Range", "")
    if response.status == 416 and stamp is None and _EMPTY.fullmatch(text):
        return Stamp(0, *_tag(headers)), b""
    if response.status != 206:
        raise _unfit(response, stamp)
    matched = _RANGE.fullmatch(text)
    if not matched:
        raise strange(f"206 with Content-Range {text[:80]!r}")
    first, last, size = map(int, matched.groups())
    if start < 0:
        start, end = max(0, size + start), size
    if (first, last + 1) != (start, min(end, size)):
        raise strange(f"bytes {first:,} to {last + 1:,} of {size:,} came instead")
    now = Stamp(size, *_tag(headers))
    if stamp is not None:
        if now.size != stamp.size:
            raise Changed(f"it has {now.size:,} bytes now, {stamp.size:,} when it was opened")
        # A server that names a state by its date in one answer, and by an ETag in another, says nothing by
        # it. It may add the mark of weakness, or take it away.
        if now.tag and now.kind == stamp.kind and now.tag.removeprefix("W/") != stamp.tag.removeprefix("W/"):
            raise Changed(f"its state is {now.tag[:80]} now, {stamp.tag[:80]} when it was opened")
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in _PLAIN:
        raise strange(f"a body in Content-Encoding {coding[:40]!r}")
    # One that grows piece by piece is copied many times over.
    nbytes, body, here = last + 1 - first, memoryview(bytearray(last + 1 - first)), 0
    async for piece in response.content.iter_any():
        if here + len(piece) > nbytes:
            raise strange(f"more than {nbytes:,} bytes")
        body[here : here + len(piece)] = piece
        here += len(piece)
    if here < nbytes:
        raise Failing(f"{here:,} bytes came")
    return now, body


def _unfit(response: aiohttp.ClientResponse, stamp: Stamp | None) -> Exception:
    status = response.status
    if status == 200:
        return strange("200 for a range: the server does not send ranges of this file")
    text = f"{status} {response.reason or ''}".strip()
    if stamp is not None and status in (*_ABSENT, 412, 416):
        return Changed(text)
    return failure_of(status, text, response.headers.get("Retry-After", ""))


def failure_of(status: int, text: str, retry_after: str = "") -> Exception:
    """What an HTTP status says that is no success; `text` is how it is told."""
    if status in _ABSENT:
        return FileNotFoundError(text)
    if status in _BUSY or status >= 500:
        return Failing(text, wait=_seconds(retry_after), is_busy=status in _THROTTLED)
    if status in _FORBIDDEN:
        return PermissionError(text)
    return refused(text) if status >= 400 else strange(text)


def _seconds(retry_after: str) -> float | None:
    if _SECONDS.fullmatch(retry_after):
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _tag(headers: Mapping[str, str]) -> tuple[str, str]:
    """What tells states apart, and what it is."""
    tags = ((headers.get(name, "").strip(), name) for name in (_ETAG, "Last-Modified"))
    return next(((tag, name) for tag, name in tags if tag), ("", ""))


def _client(options: Mapping[str, Any]) -> aiohttp.ClientSession:
    """The client of this process; one more for each set of options."""

    def connect() -> aiohttp.ClientSession:
        from urllib.request import getproxies

        import aiohttp

        # Told to trust the environment, aiohttp opens this file at each request, whether it exists or not.
        netrc = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
        client = aiohttp.ClientSession(
            **{
                "connector": aiohttp.TCPConnector(limit=_CONNECTIONS),
                # The time of a whole request is limited in `Requests`.
                "timeout": aiohttp.ClientTimeout(total=None, connect=None, sock_connect=_CONNECT_SECONDS),
                "cookie_jar": aiohttp.DummyCookieJar(),
                "trust_env": bool(getproxies()) or os.path.exists(netrc),
                **options,
                "auto_decompress": False,
            }
        )
        # Rather than leave its connections to a finaliser.
        atexit.register(_close, client, os.getpid())
        return client

    return cached((HttpEngine, repr(sorted(options.items(), key=repr))), connect)


def _close(client: aiohttp.ClientSession, pid: int) -> None:
    if pid == os.getpid():
        # A process that exits waits for nobody.
        with suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError, RuntimeError):
            run(client.close(), _CLOSING_SECONDS)
