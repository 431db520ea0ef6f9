"""HTTP server of the viewer, for one person on this machine; it trusts no archive and no web page.

It listens on 127.0.0.1 alone. The path of every request begins with a token, which stands in the printed URL alone: so
no page of another origin, nor a host name that was rebound to this server, asks for anything.

page.js makes the page from JSON, by textContent; no byte of an archive is sent as HTML, as SVG or under a type that
the archive chose.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urlencode, urlsplit

from edcache.base import EdcacheError, SampleIndexError, StorageError
from edcache.display.markup import Markup, element
from edcache.display.media import THUMBNAIL_SIDE
from edcache.display.shown import Shown

_MOST_CELLS: Final = 200
_MOST_SIDE: Final = 512  # of a small picture
_STATIC: Final = {
    "": ("page.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.png": ("page.png", "image/png"),
}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "media-src blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PATHS: Final = re.compile(r"api/(\d{1,6})(?:/([a-z]+)(?:/(\d{1,15}))?(?:/(\d{1,6}))?)?")

_ORDER: Final = re.compile(r"((up|down) .+|random [0-9]{1,9})?", re.DOTALL)


class _RequestError(Exception):
    """Refused request: the status, and the reason."""


# Body and type.
_Response: TypeAlias = "tuple[bytes, str]"


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request; every answer has the headers that restrict the browser.

    As in HTTP/1.0 a connection ends with its answer: a waiting one would hold a thread.
    """

    timeout = 60
    server: _PageServer

    def version_string(self) -> str:
        """Return a name without Python's version."""
        return "edcache"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a URL may hold the token."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that the base class cannot read; it would write HTML around parts of it."""
        self._refuse(code, "this is no request that a browser sends")

    def _refuse(self, status: int, reason: str) -> None:
        self.request_version = self.protocol_version  # in HTTP/0.9 there would be no headers
        self._send(status, *_json({"error": reason}))

    def do_GET(self) -> None:
        """Answer, or send the reason in one line; never a traceback."""
        try:
            target = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(target.query, max_num_fields=8).items()}
            self._send(200, *self._route(self._without_token(target.path), query))
        except _RequestError as refused:
            self._refuse(*refused.args)
        except EdcacheError as error:
            self._refuse(404 if isinstance(error, SampleIndexError) else 422, str(error))
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass  # the browser has closed the connection
        except Exception as error:  # noqa: BLE001 - a user's transform may raise anything, and its text may name files
            self._refuse(500, f"{type(error).__name__} while this was read")

    def _without_token(self, path: str) -> str:
        """Cut the token off a path, or refuse the request."""
        token, slash, rest = path.removeprefix("/").partition("/")
        if not slash or not compare_digest(token.encode(), self.server.token.encode()):
            raise _RequestError(403, "its path has not the token of the URL that was printed; open that URL")
        return rest

    def _route(self, path: str, query: dict[str, str]) -> _Response:
        """Answer for a path: a file of the page, or data of a dataset."""
        if path in _STATIC:
            name, content_type = _STATIC[path]
            return Path(__file__).with_name(name).read_bytes(), content_type
        if path == "api/sets":
            return _json({"sets": [{"name": one.name} for one in self.server.shown]})
        match = _PATHS.fullmatch(path)
        if match is None or int(match[1]) >= len(self.server.shown):
            raise _RequestError(404, "there is nothing at this path")
        shown = self.server.shown[int(match[1])]
        numbers = [int(number) for number in match.group(3, 4) if number is not None]
        return _api(shown, match[2], numbers, _join_wheres(shown, query), query)

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response_only(status)
        own = {"Content-Type": content_type, "Content-Length": str(len(body))}
        for name, value in (_HEADERS | own).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _json(document: object) -> _Response:
    return json.dumps(document, allow_nan=False).encode("ascii"), "application/json"


def _join_wheres(shown: Shown, query: dict[str, str]) -> str:
    """Join the where-string of a request: its text, and the chosen bars of each column."""
    where = query.get("where", "").strip()
    try:
        columns = [" or ".join(wheres) for wheres in json.loads(query.get("bars", "[]"))]
    except (ValueError, TypeError, RecursionError):
        raise _RequestError(400, "bars is no list of lists of where-strings") from None
    if not where or not columns:
        columns += [where] * bool(where)
    else:
        shown.rows(where)  # raises for a text that is whole only in the parentheses below
        columns.insert(0, where)
    return columns[0] if len(columns) == 1 else " and ".join(f"({one})" for one in columns)


def _api(shown: Shown, what: str | None, numbers: list[int], where: str, query: dict[str, str]) -> _Response:
    """Answer for one dataset; numbers: in the path."""
    order = query.get("order", "")
    if not _ORDER.fullmatch(order):
        raise _RequestError(400, "order is not: up NAME, down NAME, random SEED")
    match what, numbers:
        case None, []:
            return _json(shown.about())
        case "count", []:
            return _json({"count": len(shown.rows(where)), "where": where})
        case "histogram", [column]:
            return _json(shown.histogram(column))
        case "kept", [column]:
            return _json({"kept": shown.kept(where, column)})
        case "cells", []:
            start, count = _number(query, "start"), min(_number(query, "count"), _MOST_CELLS)
            side = min(_number(query, "side") or THUMBNAIL_SIDE, _MOST_SIDE)
            caption = _number(query, "caption")
            return _json({"cells": shown.cells(where, start, count, order=order, caption=caption, side=side)})
        case "position", [row]:
            return _json(shown.position(where, row, order))
        case "sample", [row]:
            return _json(shown.sample(row))
        case "picture", [row, leaf]:
            axis, at, is_over = _number(query, "axis"), _number(query, "at"), _number(query, "over") > 0
            return shown.picture(row, leaf, axis, at, is_over), "image/png"
        case "sound", [row, leaf]:
            return shown.sound(row, leaf), "audio/wav"
        case "missing", []:
            return _json(shown.missing())
    raise _RequestError(404, "there is nothing at this path")


def _number(query: dict[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise _RequestError(400, f"{name} is no number of at most 15 digits")
    return int(text)


class _PageServer(ThreadingHTTPServer):
    """Listening socket, token, and the datasets that are shown."""

    daemon_threads = True
    request_queue_size = 1_024

    def __init__(self, shown: Sequence[Shown], port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.shown = shown
        self.token = secrets.token_urlsafe(24)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report no broken connection."""


class Viewer:
    """Page that is served until `close`.

    url: of the page, with the token. A notebook shows it as a link.
    """

    def __init__(self, shown: Sequence[Shown], port: int | None = None, where: str = "") -> None:
        try:
            self._server = _PageServer(shown, port or 0)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StorageError(f"port {port}: cannot listen there: {reason}; leave the port out") from error
        self.port: int = self._server.server_port
        fragment = f"#{urlencode({'where': where})}" if where else ""
        self.url = f"http://127.0.0.1:{self.port}/{self._server.token}/{fragment}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Viewer({self.url!r})"

    def _repr_html_(self) -> Markup:
        link = element(
            "a", f"127.0.0.1:{self.port}", href=self.url, target="_blank", rel="noopener noreferrer"
        )
        return element("p", "The viewer is at ", link, ". close() ends it.")

    def wait(self) -> None:
        """Serve until Ctrl-C, or until another thread closes."""
        with self, suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                self._thread.join(1)

    def close(self) -> None:
        """Stop serving; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def view(
    shown: Sequence[Shown],
    *,
    port: int | None = None,
    open_browser: bool = True,
    block: bool | None = True,
    where: str = "",
) -> Viewer:
    """Serve a page that shows datasets, and print its URL.

    Args:
        block: True serves until Ctrl-C; None does not at a prompt and in a notebook, which show the result.
        where: the first filter of the page.
    Raises:
        StorageError: the port is taken.
    """
    if block is None:
        block = not hasattr(sys, "ps1") and "ipykernel" not in sys.modules
    viewer = Viewer(shown, port, where)
    if block:
        forward = f"ssh -L {viewer.port}:127.0.0.1:{viewer.port} HOST"
        print(f"{viewer.url}\nCtrl-C ends it. To see it from another machine: {forward}", flush=True)
    # A browser in the terminal would take it over.
    has_screen = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if open_browser and has_screen:
        webbrowser.open(viewer.url)
    if block:
        viewer.wait()
    return viewer
