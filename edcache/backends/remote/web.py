"""One object over HTTP: an answer that does not fit what was asked is not believed.

fsspec's own client takes what comes: a 200 for a 206, other bytes, a body that is compressed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

from edcache.backends.remote import loop
from edcache.backends.remote.request import Absent, Changed, Failing, Forbidden, Stamp, refused, strange
from edcache.backends.remote.url import Url
from edcache.base import MissingDependencyError, OptionError

if TYPE_CHECKING:
    import aiohttp

_CONNECTIONS: Final = 64
_CONNECT_SECONDS: Final = 15
_REDIRECTS: Final = 5
_MOVED: Final = (301, 302, 303, 307, 308)
_BUSY: Final = (408, 425, 429)
_FORBIDDEN: Final = (401, 403, 407)
_OPTIONS: Final = ("headers", "client_kwargs")
_RANGE: Final = re.compile(r"\s*bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19})\s*", re.IGNORECASE)
_NO_RANGE: Final = re.compile(r"\s*bytes\s+\*/(\d{1,19})\s*", re.IGNORECASE)
_ETAG: Final = "ETag"
# The last is how an upload came, which some servers of S3 repeat; the bytes are plain.
_PLAIN: Final = ("", "identity", "aws-chunked")
_SECONDS: Final = re.compile(r"\d{1,9}")


class Address(Protocol):
    """How an object is asked for over HTTP."""

    async def now(self, stamp: Stamp | None) -> tuple[str, dict[str, str]]:
        """Its URL and the headers for a request now; of one state, where a URL can name it."""


class Plain:
    """The address of an http or https URL with its options: `headers` for every request."""

    def __init__(self, url: Url, options: Mapping[str, Any]) -> None:
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise OptionError(
                f"{url.shown}: storage_options takes headers, client_kwargs, request_timeout and "
                f"request_tries here, not {', '.join(unknown)}"
            )
        self.client_options: dict[str, Any] = dict(options.get("client_kwargs") or {})
        self._headers = {**(self.client_options.pop("headers", None) or {}), **(options.get("headers") or {})}
        scheme, _, rest = url.url.partition("://")
        host, slash, tail = rest.partition("/")
        userinfo, at, host = host.rpartition("@")
        if at:
            self._headers.setdefault("Authorization", _basic(userinfo))
        self._url = f"{scheme}://{host}{slash}{tail}".partition("#")[0]

    async def now(self, stamp: Stamp | None) -> tuple[str, dict[str, str]]:
        """See `Address`."""
        return self._url, self._headers


def _basic(userinfo: str) -> str:
    from base64 import b64encode

    user, _, password = userinfo.partition(":")
    return "Basic " + b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode("ascii")


class _Part(NamedTuple):
    """What a 206 says that it brings: bytes [start, end) of so many."""

    start: int
    end: int
    size: int


class WebEngine:
    """An object that a server sends in ranges; an `Engine`.

    Args:
        client_options: for aiohttp.ClientSession, such as `auth` or `trust_env`.
    """

    def __init__(self, address: Address, client_options: Mapping[str, Any] | None = None) -> None:
        self._address = address
        self._client_options = dict(client_options or {})

    async def begin(self, nbytes: int) -> tuple[Stamp, bytes]:
        """See `Engine`: one request."""
        return await self._asked(0, nbytes, None)

    async def stamp(self) -> Stamp:
        """See `Engine`: one request, for one byte."""
        return (await self._asked(0, 1, None))[0]

    async def fetch(self, stamp: Stamp, start: int, end: int) -> bytes:
        """See `Engine`: one request, which names the state where it has an ETag."""
        return (await self._asked(start, end, stamp))[1]

    async def _asked(self, start: int, end: int, stamp: Stamp | None) -> tuple[Stamp, bytes]:
        import aiohttp

        url, headers = await self._address.now(stamp)
        asked = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        # A weak ETag never matches an If-Match (RFC 9110, 13.1.1).
        if stamp is not None and stamp.kind == _ETAG and stamp.tag.startswith('"'):
            asked["If-Match"] = stamp.tag
        try:
            return await self._followed(url, headers, asked, start, end, stamp)
        except aiohttp.ClientConnectorCertificateError as error:
            raise refused(f"its certificate does not prove who it is: {error.certificate_error}") from None
        except aiohttp.ServerTimeoutError:
            raise Failing("the connection was not made in time") from None
        except aiohttp.ClientConnectorError as error:
            raise Failing(f"no connection: {error.strerror or error.os_error}") from None
        except aiohttp.ClientPayloadError:
            raise Failing("the answer broke off") from None
        except aiohttp.ServerDisconnectedError:
            raise Failing("the server closed the connection before an answer") from None
        except aiohttp.ClientResponseError as error:
            raise strange(f"an answer that is no HTTP: {error.message}") from None

    async def _followed(
        self,
        url: str,
        headers: Mapping[str, str],
        asked: Mapping[str, str],
        start: int,
        end: int,
        stamp: Stamp | None,
    ) -> tuple[Stamp, bytes]:
        """The answer, after the redirects that lead to it; credentials stay with the first server."""
        import yarl

        where, client = yarl.URL(url, encoded=True), _client(self._client_options)
        origin, redirects = where.origin(), 0
        while True:
            own = headers if where.origin() == origin else {}
            async with client.get(where, headers={**own, **asked}, allow_redirects=False) as response:
                if response.status not in _MOVED:
                    return await _read(response, start, end, stamp)
                where = _moved(where, response.headers.get("Location", ""))
            redirects += 1
            if redirects > _REDIRECTS:
                raise strange(f"more than {_REDIRECTS} redirects")


def _moved(where: Any, location: str) -> Any:
    import yarl

    if not location:
        raise refused("a redirect to nowhere")
    try:
        target = where.join(yarl.URL(location, encoded=True))
        target.origin()
    except ValueError:
        raise strange("a redirect to what is no URL") from None
    if target.scheme not in ("http", "https") or (where.scheme, target.scheme) == ("https", "http"):
        raise refused(f"a redirect from {where.scheme} to {target.scheme}")
    return target


async def _read(
    response: aiohttp.ClientResponse, start: int, end: int, stamp: Stamp | None
) -> tuple[Stamp, bytes]:
    headers = response.headers
    if response.status == 416 and stamp is None:
        empty = _NO_RANGE.fullmatch(headers.get("Content-Range", ""))
        if empty and int(empty[1]) == 0:
            return Stamp(0, *_tag(headers)), b""
    if response.status != 206:
        raise _unfit(response.status, response.reason or "", headers, stamp)
    found = _part(headers)
    _check_part(found, start, end)
    if stamp is None:
        stamp = Stamp(found.size, *_tag(headers))
    else:
        _check_state(found, headers, stamp)
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in _PLAIN:
        raise strange(f"a body in Content-Encoding {coding[:40]!r}")
    return stamp, await _body(response, found.end - found.start)


def _unfit(status: int, reason: str, headers: Mapping[str, str], stamp: Stamp | None) -> Exception:
    text = f"{status} {reason}".strip()
    if status in (404, 410):
        return Absent() if stamp is None else Changed(text)
    if status in (412, 416) and stamp is not None:
        return Changed(text)
    if status == 200:
        return strange("200 for a range: the server does not send ranges of this file")
    if status in _BUSY or status >= 500:
        return Failing(text, wait=_retry_after(headers.get("Retry-After", "")))
    if status in _FORBIDDEN:
        return Forbidden(text)
    return refused(text) if 400 <= status < 500 else strange(text)


def _retry_after(text: str) -> float | None:
    import time

    if _SECONDS.fullmatch(text.strip()):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _part(headers: Mapping[str, str]) -> _Part:
    text = headers.get("Content-Range", "")
    found = _RANGE.fullmatch(text)
    if not found:
        raise strange(f"206 with Content-Range {text[:80]!r}" if text else "206 without Content-Range")
    return _Part(int(found[1]), int(found[2]) + 1, int(found[3]))


def _check_part(found: _Part, start: int, end: int) -> None:
    if (found.start, found.end) != (start, min(end, found.size)):
        raise strange(f"bytes {found.start:,} to {found.end:,} of {found.size:,} came instead")


def _check_state(found: _Part, headers: Mapping[str, str], stamp: Stamp) -> None:
    tag, kind = _tag(headers)
    if found.size != stamp.size:
        raise Changed(f"it has {found.size:,} bytes now, {stamp.size:,} when it was opened")
    # A server that names a state by its date in one answer, and by an ETag in another, says nothing by it.
    if tag and kind == stamp.kind and _bare(tag) != _bare(stamp.tag):
        raise Changed(f"its state is {tag[:80]} now, {stamp.tag[:80]} when it was opened")


def _tag(headers: Mapping[str, str]) -> tuple[str, str]:
    """What tells states apart, and what it is."""
    found = ((headers.get(name, "").strip(), name) for name in (_ETAG, "Last-Modified"))
    return next(((tag, name) for tag, name in found if tag), ("", ""))


def _bare(tag: str) -> str:
    """An ETag without its mark of weakness, which servers add and take away."""
    return tag.removeprefix("W/")


async def _body(response: aiohttp.ClientResponse, nbytes: int) -> bytes:
    said = response.headers.get("Content-Length")
    if said is not None and said.strip() != str(nbytes):
        raise strange(f"Content-Length {said[:40]} for {nbytes:,} bytes")
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > nbytes:
            raise strange(f"more than {nbytes:,} bytes")
    if len(body) != nbytes:
        raise Failing(f"{len(body):,} bytes came")
    return bytes(body)


def _client(options: Mapping[str, Any]) -> aiohttp.ClientSession:
    """The client of this process; one more for each set of options."""
    key = (WebEngine, repr(sorted(options.items(), key=repr)))
    return loop.kept(key, lambda: _new_client(options))


def _new_client(options: Mapping[str, Any]) -> aiohttp.ClientSession:
    import aiohttp

    client = aiohttp.ClientSession(
        **{
            "connector": aiohttp.TCPConnector(limit=_CONNECTIONS),
            # The time of a whole request is limited in `asking.answered`.
            "timeout": aiohttp.ClientTimeout(total=None, connect=None, sock_connect=_CONNECT_SECONDS),
            "cookie_jar": aiohttp.DummyCookieJar(),
            "trust_env": True,
            **options,
            "auto_decompress": False,
        }
    )
    loop.close_at_exit(client.close)
    return client


def check_installed() -> None:
    """Raise MissingDependencyError where the library is not there."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "reading http:// and https:// needs aiohttp; install it with: pip install edcache[remote]"
        ) from None
