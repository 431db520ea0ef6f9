"""A server that misbehaves: a read ends in the right bytes or in one typed error, within a bounded time."""

import functools
import socket
import struct
import time

import numpy as np
import pytest
from far import picture, pictures
from likeness import same
from optional import needs
from range_server import serving
from scale import scaled, seeded, thinned

from edcache import CachedDataset
from edcache.backends.remote import http, requests
from edcache.base import PerProcess
from edcache.errors import (
    ArchiveNotFoundError,
    CorruptRecordError,
    EdcacheError,
    StaleArchiveError,
    StorageError,
)

from_cache = functools.partial(CachedDataset.from_cache, local=False)
COUNT = 400
SECRET = "s3cr3t-t0ken"
# A request is given up after so long, so that a stall costs no more; each is made twice.
OPTIONS = {"request_timeout": 0.25, "request_tries": 2}
# Twice that, for each request of a read, and the waits between them; on a busy machine.
BOUND_SECONDS = 20


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("archive") / "a.zip", COUNT, chunk_size=64)


def right(handler, start, end):
    served = handler.served
    return served.data[start : min(end, len(served.data))]


def reset(handler):
    """End the connection with a RST."""
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.close_connection = True
    handler.connection.close()


def range_of(handler, start, end):
    return {"Content-Range": f"bytes {start}-{end - 1}/{len(handler.served.data)}", "ETag": '"v1"'}


def raw(handler, data, then_close=True):
    handler.close_connection = then_close
    handler.wfile.write(data)
    handler.wfile.flush()


def drip(handler, data, seconds):
    for byte in data:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(seconds)


def partial(nbytes):
    def fault(handler, start, end):
        body = right(handler, start, end)
        handler.close_connection = True
        handler.answer(start, end, body=body[:nbytes], length=len(body))

    return fault


def stall_in_body(handler, start, end):
    body = right(handler, start, end)
    handler.close_connection = True
    handler.answer(start, end, body=body[:100], length=len(body))
    time.sleep(1)


def stall_in_headers(handler, start, end):
    raw(handler, b"HTTP/1.1 206 Partial Content\r\nContent-")
    time.sleep(1)


def drip_headers(handler, start, end):
    handler.close_connection = True
    drip(handler, b"HTTP/1.1 206 Partial Content\r\nX-Slow: " + b"a" * 20, 0.05)


def drip_body(handler, start, end):
    body = right(handler, start, end)
    handler.close_connection = True
    handler.answer(start, end, body=b"", length=len(body))
    drip(handler, body[:20], 0.05)


def redirect(location):
    return lambda handler, start, end: handler.say(302, {"Location": location(handler)}, b"")


def status(number, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, start, end: handler.say(number, named, b"nothing")


def changed(**changes):
    """The right answer, but for something."""

    def fault(handler, start, end):
        made = {name: make(handler, start, end) for name, make in changes.items()}
        handler.answer(start, end, **made)

    return fault


def headers(**named):
    told = {name.replace("_", "-"): value for name, value in named.items()}
    return changed(headers=lambda handler, start, end: told)


def flipped(handler, start, end):
    body = bytearray(right(handler, start, end))
    body[len(body) // 2] ^= 1
    return bytes(body)


ANY = (StorageError,)
# What one accident may end in besides the right bytes, and what the misbehaviour must end in where it stays.
FAULTS = {
    "200 with everything": (changed(status=lambda *a: 200, body=lambda h, s, e: h.served.data), ANY),
    "200 with the range": (changed(status=lambda *a: 200), ANY),
    "204": (status(204, Content_Length=None), ANY),
    "short body, honest length": (changed(body=lambda h, s, e: right(h, s, e)[:-1]), ANY),
    "short body, then the end": (partial(100), ANY),
    "no body": (partial(0), ANY),
    "empty body, honest length": (changed(body=lambda *a: b""), ANY),
    "long body, honest length": (changed(body=lambda h, s, e: right(h, s, e) + b"x"), ANY),
    "long body, no length": (
        lambda h, s, e: (
            setattr(h, "close_connection", True),
            h.answer(
                s, e, body=right(h, s, e) + b"x", headers={"Content-Length": None, "Connection": "close"}
            ),
        ),
        ANY,
    ),
    "no Content-Range": (headers(Content_Range=None), ANY),
    "Content-Range of another place": (
        changed(headers=lambda h, s, e: range_of(h, s + 1, e + 1)),
        (StorageError, StaleArchiveError),
    ),
    "Content-Range and body of another place": (
        lambda h, s, e: h.answer(s + 8, e + 8, status=206),
        (StorageError, StaleArchiveError),
    ),
    "Content-Range that is none": (headers(Content_Range="bytes */*"), ANY),
    "Content-Range in a larger object": (
        changed(headers=lambda h, s, e: {"Content-Range": f"bytes {s}-{e - 1}/{10**12}"}),
        (StaleArchiveError, StorageError),
    ),
    "Content-Range of digits without end": (headers(Content_Range="bytes 0-" + "9" * 5000 + "/9"), ANY),
    "multipart/byteranges": (
        headers(Content_Range=None, Content_Type="multipart/byteranges; boundary=x"),
        ANY,
    ),
    "another ETag": (headers(ETag='"v2"'), (StaleArchiveError,)),
    "reset before an answer": (lambda h, s, e: reset(h), ANY),
    "reset within the body": (lambda h, s, e: (stall_free(h, s, e), reset(h)), ANY),
    "closed before an answer": (lambda h, s, e: setattr(h, "close_connection", True), ANY),
    "a stall before an answer": (lambda h, s, e: (time.sleep(1), reset(h)), ANY),
    "a stall in the headers": (stall_in_headers, ANY),
    "a stall in the body": (stall_in_body, ANY),
    "headers that drip": (drip_headers, ANY),
    "a body that drips": (drip_body, ANY),
    "429": (status(429, Retry_After="0"), ANY),
    "503 with Retry-After": (status(503, Retry_After="0"), ANY),
    "503 with Retry-After of nonsense": (status(503, Retry_After="soon"), ANY),
    "500": (status(500), ANY),
    "502": (status(502), ANY),
    "504": (status(504), ANY),
    "403": (status(403), ANY),
    "404": (status(404), (ArchiveNotFoundError, StaleArchiveError)),
    "412": (status(412), (StaleArchiveError, StorageError)),
    "416": (status(416), (StaleArchiveError, StorageError)),
    "418": (status(418), ANY),
    "304": (status(304, Content_Length=None), ANY),
    "a redirect to itself": (redirect(lambda h: h.path), ANY),
    "a redirect to nowhere": (status(302), ANY),
    "a redirect to another scheme": (redirect(lambda h: "ftp://127.0.0.1/a.zip"), ANY),
    "a redirect to a closed port": (redirect(lambda h: "http://127.0.0.1:9/a.zip"), ANY),
    "a redirect to what is no URL": (redirect(lambda h: "http://[::1"), ANY),
    "no HTTP": (lambda h, s, e: raw(h, b"\x00\x01\x02 hello\r\n\r\n"), ANY),
    "a page of HTML": (
        lambda h, s, e: h.say(200, {"Content-Type": "text/html"}, b"<html>log in</html>"),
        ANY,
    ),
    "an endless header": (
        lambda h, s, e: raw(h, b"HTTP/1.1 206 Partial Content\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"),
        ANY,
    ),
    "another object's bytes": (
        changed(body=lambda h, s, e: bytes(len(right(h, s, e)))),
        (CorruptRecordError,),
    ),
    "one bit flipped": (changed(body=flipped), (CorruptRecordError,)),
}


def stall_free(handler, start, end):
    body = right(handler, start, end)
    handler.answer(start, end, body=body[: len(body) // 2], length=len(body))


def test_there_are_many_misbehaviours(tally):
    assert len(FAULTS) >= 25
    tally("ways in which a server misbehaves", len(FAULTS))


def ending(read):
    """What a read ends in: what it gives, or its error."""
    began = time.monotonic()
    try:
        found = read()
    except EdcacheError as error:
        found = error
    assert time.monotonic() - began < BOUND_SECONDS
    return found


@pytest.mark.parametrize("name", thinned(FAULTS, 12))
def test_an_accident_ends_in_the_right_bytes_or_one_typed_error(archive, name, tally):
    """Each answer misbehaves with a chance of one in three."""
    fault, allowed = FAULTS[name]
    rng, dice = seeded(name), seeded(f"{name} dice")
    reads = scaled(4)
    with serving(archive) as served:
        ds = from_cache(served.url, storage_options=OPTIONS)
        served.faults = [lambda *asked: dice.random() < 0.3 and (fault(*asked), True)[1]]
        for _ in range(reads):
            indices = rng.sample(range(COUNT), 3)
            found = ending(lambda indices=indices: list(ds.__getitems__(indices)))
            if isinstance(found, EdcacheError):
                assert isinstance(found, allowed), (type(found), found)
                assert served.url in str(found)
            else:
                assert same(found, [picture(k) for k in indices])
        served.faults = []
        assert same(ds[7], picture(7))
    tally("reads from a server that misbehaves", reads)


@pytest.mark.parametrize("name", thinned(FAULTS, 12))
def test_misbehaviour_that_stays_is_one_error_that_names_url_and_extent(archive, name):
    fault, allowed = FAULTS[name]
    with serving(archive) as served:
        url = served.url.replace("http://", f"http://user:{SECRET}@") + f"?sig={SECRET}"
        ds = from_cache(url, storage_options=OPTIONS | {"headers": {"X-Key": SECRET}})
        served.faults = [lambda *asked: (fault(*asked), True)[1]]
        began = time.monotonic()
        with pytest.raises(allowed) as raised:
            ds[7]
        assert time.monotonic() - began < BOUND_SECONDS
    text = str(raised.value)
    assert text.startswith(served.url)
    assert SECRET not in text
    if not isinstance(raised.value, CorruptRecordError):
        assert raised.value.__context__ is None
        assert "bytes at offset" in text
    served.faults = []


@pytest.mark.parametrize("name", thinned(FAULTS, 12))
def test_a_server_that_misbehaves_from_the_start_is_a_typed_error(archive, name):
    fault, _ = FAULTS[name]
    with serving(archive) as served:
        served.faults = [lambda *asked: (fault(*asked), True)[1]]
        found = ending(lambda: from_cache(served.url, storage_options=OPTIONS)[7])
        assert served.url in str(found) if isinstance(found, EdcacheError) else same(found, picture(7))


def test_retry_after_is_waited_for(archive):
    with serving(archive) as served:
        ds = from_cache(served.url, storage_options=OPTIONS)
        times = []

        def busy(handler, start, end):
            times.append(time.monotonic())
            if len(times) == 1:
                handler.say(429, {"Retry-After": "2"}, b"")
            return len(times) == 1

        served.faults = [busy]
        assert same(ds[3], picture(3))
        assert times[1] - times[0] >= 1


@pytest.mark.parametrize(("code", "tries"), [(503, 20), (429, 20), (500, 5)])
def test_a_busy_store_is_asked_longer_than_a_broken_one(archive, code, tries):
    with serving(archive) as served:
        ds = from_cache(served.url)
        asked = []

        def fault(handler, start, end):
            asked.append(start)
            if len(asked) % tries:
                handler.say(code, {"Retry-After": "0"}, b"")
            return len(asked) % tries > 0

        served.faults = [fault]
        assert same(ds[3], picture(3))
        assert len(asked) == tries
        served.faults = [lambda handler, start, end: (handler.say(code, {"Retry-After": "0"}, b""), True)[1]]
        with pytest.raises(StorageError, match=f"{code} .*; asked {tries} times"):
            ds[7]


def test_a_redirect_to_nowhere_is_refused_at_once(archive):
    with serving(archive) as served:
        ds = from_cache(served.url, storage_options={"request_tries": 9})
        served.forget()
        served.faults = [lambda handler, start, end: (handler.say(302, {}, b""), True)[1]]
        with pytest.raises(StorageError, match="a redirect to nowhere, or away from https; asked once"):
            ds[7]
        assert len(served.requests) == 1


@needs("aiohttp")
def test_a_connection_that_is_not_made_in_time_says_so(monkeypatch):
    monkeypatch.setattr(http, "_CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(requests, "_cached", PerProcess())
    options = {"request_tries": 2}
    with socket.socket() as listening, socket.socket() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting.connect(listening.getsockname())  # and nobody takes it, so that the next has no place
        url = "http://127.0.0.1:{1}/a.zip".format(*listening.getsockname())
        with pytest.raises(StorageError, match="no whole answer: .*Timeout.*; asked 2 times"):
            from_cache(url, storage_options=options)


def test_a_batch_survives_many_accidents(archive):
    dice = seeded("batch")
    with serving(archive) as served:
        ds = from_cache(served.url, storage_options={"request_timeout": 5, "request_tries": 12})

        def fault(handler, start, end):
            if dice.random() < 0.3:
                reset(handler)
                return True
            return False

        served.faults = [fault]
        indices = np.array(dice.sample(range(COUNT), 200))
        assert ds.batch(indices)["label"].tolist() == indices.tolist()
