"""A server of byte ranges on loopback, in this process: it counts what it is asked, and misbehaves on cue."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from optional import need


class Served:
    """What a server has and did.

    data: the object, at every path but those of `missing`. etag: its ETag, without quotes; None for none.
    faults: functions of (handler, start, end) that answer instead and return True, or return False to let the
    server answer; tried in order. requests: (method, start, end, headers) of each.
    """

    def __init__(self, data):
        self.data, self.etag, self.modified = data, "v1", None
        self.faults, self.requests, self.sent = [], [], 0
        self.in_flight = self.most_in_flight = 0
        self.delay = 0.0
        self.lock = threading.Lock()
        self.url = ""

    def forget(self):
        """Count from nothing."""
        self.requests, self.sent, self.most_in_flight = [], 0, 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *args):
        pass

    @property
    def served(self):
        return self.server.served

    def do_GET(self):
        served = self.served
        start, end = self.asked()
        with served.lock:
            served.requests.append((self.command, start, end, dict(self.headers)))
            served.in_flight += 1
            served.most_in_flight = max(served.most_in_flight, served.in_flight)
        try:
            if served.delay:
                time.sleep(served.delay)
            if not any(fault(self, start, end) for fault in list(served.faults)):
                self.answer(start, end)
        finally:
            with served.lock:
                served.in_flight -= 1

    def do_HEAD(self):
        served = self.served
        with served.lock:
            served.requests.append((self.command, 0, 0, dict(self.headers)))
        headers = {"Content-Length": str(len(served.data)), "ETag": f'"{served.etag}"'}
        self.say(200, headers | {"Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT"}, b"")

    def asked(self):
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        if not first:
            return max(0, len(self.served.data) - int(last)), len(self.served.data)
        return int(first), int(last) + 1

    def answer(self, start, end, **changes):
        """The right answer, but for the changes; see `say`."""
        served = self.served
        data, tag = served.data, served.etag
        if self.headers.get("If-Match", f'"{tag}"') != f'"{tag}"':
            self.say(412, {}, b"")
        elif start >= len(data):
            self.say(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
        else:
            end = min(end, len(data))
            headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
            if tag is not None:
                headers["ETag"] = f'"{tag}"'
            if served.modified is not None:
                headers["Last-Modified"] = served.modified
            body = changes.pop("body", data[start:end])
            self.say(changes.pop("status", 206), headers | changes.pop("headers", {}), body, **changes)

    def say(self, status, headers, body, length=None):
        """Send an answer; a header of None is left out, `length` is said in the place of the body's."""
        self.send_response(status)
        headers = {"Content-Length": str(len(body) if length is None else length)} | headers
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        with self.served.lock:  # before, as who gets the last byte may look at once
            self.served.sent += len(body)
        self.wfile.write(body)
        self.wfile.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Clients hang up on those that misbehave."""


@contextmanager
def serving(data):
    """A `Served` with its `url`, until the block ends; edcache reads it by aiohttp."""
    need("aiohttp")
    server = _Server(("127.0.0.1", 0), Handler)
    server.served = Served(data)
    server.served.url = f"http://127.0.0.1:{server.server_port}/data/a.zip"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
