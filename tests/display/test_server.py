"""The viewer's server answers its person alone, and tells nobody more than the archive holds."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import struct
import threading
import wave
from io import BytesIO
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pytest
import torch
from optional import Library
from written import write

import edcache
from edcache.display import Shown, view
from edcache.display.histogram import histogram
from edcache.labels import Labels

Image = Library("PIL.Image")
PAGE = Path(edcache.__file__).parent / "display"


def sound(seconds=0.5):
    """A WAV file."""
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        t = np.arange(int(8000 * seconds)) / 8000
        out.writeframes((np.sin(t * 2 * np.pi * 440) * 9000).astype("<i2").tobytes())
    return file.getvalue()


def sample(i):
    return {
        "image": torch.full((3, 8, 8), i * 5, dtype=torch.uint8),
        "label": i % 3,
        "sound": sound(),
        "volume": np.zeros((9, 10, 12), np.float32) + np.arange(12),
        "markup": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("viewer") / "train.zip"
    return write(path, (sample(i) for i in range(20)), in_memory_keys=["label"])


@pytest.fixture(scope="module")
def viewer(path):
    with edcache.CachedDataset.from_cache(path) as ds, ds.view(open_browser=False, block=False) as viewer:
        yield viewer


class Visitor:
    """A browser without a screen, whose paths begin with the token unless another one is given."""

    def __init__(self, viewer, token=None):
        self.port, self.token = viewer.port, token_of(viewer) if token is None else token

    def get(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, self.token + path, headers=headers)
        response = connection.getresponse()
        response.data = response.read()
        connection.close()
        return response

    def json(self, path):
        response = self.get(path)
        return response.status, json.loads(response.data)


def token_of(viewer):
    """The beginning of every path: a slash and the token."""
    return "/" + viewer.url.split("/")[3]


@pytest.fixture
def visitor(viewer):
    return Visitor(viewer)


def raw(viewer, data):
    """What the server answers to bytes, until it closes or is silent."""
    with socket.create_connection(("127.0.0.1", viewer.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while more := connection.recv(1 << 16):
            answer += more
    return answer


def test_a_filter_of_the_url_goes_along(path):
    one = Shown("a.zip", lambda: Labels(pa.table({"y": [1]})), list, "ds")
    with view([one], open_browser=False, block=False, where="y == 'a'\r\n") as viewer:
        assert viewer.url.endswith("/#where=y+%3D%3D+%27a%27%0D%0A")
        page = Visitor(viewer).get("/")
        assert page.status == 200
        assert b"<title>edcache</title>" in page.data


@pytest.mark.parametrize("token", ["", "/", "/wrong", "/%D9%A1", "/../", "/?token="])
@pytest.mark.parametrize("target", ["", "/", "/page.js", "/api/sets", "/api/0/cells"])
def test_without_the_token_nothing_is_answered(viewer, token, target):
    if token + target:
        assert Visitor(viewer, token).get(target).status == 403
        assert Visitor(viewer, token + "?" + token_of(viewer)).get(target).status == 403
    assert Visitor(viewer, token_of(viewer)[:-1]).get(target).status == 403
    assert Visitor(viewer, token_of(viewer) + "a").get(target).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_get_alone_is_answered(visitor, method):
    assert visitor.get("/api/sets", method).status == 501


def test_no_other_origin_is_allowed_to_read(visitor):
    for path in ("/api/sets", "/", "/api/0/picture/0/0"):
        answer = visitor.get(path, Origin="https://evil.example")
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_every_answer_has_the_headers_that_bind_a_browser(viewer, visitor):
    answers = [visitor.get(path) for path in ("/", "/page.js", "/api/sets", "/api/0/picture/0/0", "/nothing")]
    answers += [Visitor(viewer, "").get("/"), visitor.get("/", "POST")]
    for answer in answers:
        policy = answer.getheader("Content-Security-Policy")
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy
        assert "*" not in policy
        assert "data:" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "base-uri 'none'" in policy
        assert "form-action 'none'" in policy
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Referrer-Policy") == "no-referrer"
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
        assert answer.getheader("Server") is None


@pytest.mark.parametrize(
    "target",
    [
        *("/../server.py", "/page.html", "/server.py", "/%2e%2e/setup.py", "//etc/passwd", "/api", "/api/0/"),
        *("/api/1", "/api/-1", "/api/0/sample", "/api/0/sample/-1", "/api/0/sample/20"),
        *("/api/0/sample/9999999999999999", "/api/0/sample/1e3", "/api/0/sample/0x1", "/api/0/sample/%D9%A1"),
        *("/api/0/picture/0/99", "/api/0/histogram/9", "/api/0/picture/0/1", "/api/0/media/0/0"),
        *("/api/0/picture/0/3?axis=3", "/api/0/cells/1", "/api/0/picture/0/3?axis=0&at=9"),
        *("/api/0/picture/0/3?axis=0&at=-1", "/api/0/position/20", "/api/0/call/1"),
        *("/api/0/cells?order=up", "/api/0/cells?order=random", "/api/0/cells?order=random+%D9%A1"),
        *("/api/0/cells?order=label", "/api/0/cells?side=-1"),
        *("/api/0/sound/0/0", "/api/0/sound/0/99", "/api/0/sound/0"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(visitor, target):
    answer = visitor.get(target)
    assert answer.status in (400, 404), answer.data
    assert set(json.loads(answer.data)) == {"error"}
    assert b"Traceback" not in answer.data
    assert b"/edcache/" not in answer.data


def test_long_requests_are_refused(viewer, visitor):
    assert visitor.get("/api/0/count?where=" + "a" * 10_001).status == 422
    assert visitor.get("/api/0/count?where=" + "a" * 50_000).status == 422
    assert raw(viewer, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 414 ")
    many = "".join(f"X-{i}: 1\r\n" for i in range(200))
    assert raw(viewer, f"GET / HTTP/1.1\r\n{many}\r\n".encode()).startswith(b"HTTP/1.0 431 ")
    assert visitor.get("/api/0/count?" + "&".join(f"a{i}=1" for i in range(50))).status in (400, 500)


def test_nothing_of_a_request_comes_back_as_html(viewer, visitor):
    for answer in (
        raw(viewer, b"GET /<script> HTTP/1.1\r\nHost: <b>\r\n\r\n"),
        raw(viewer, b"<script>alert(1)</script> / HTTP/1.1\r\n\r\n"),
        raw(viewer, b"GET / <script>\r\n\r\n"),
        raw(viewer, b"GET / HTTP/9.9\r\n\r\n"),
        raw(viewer, b"GET /<script>\r\n\r\n"),
    ):
        assert b"content-type: application/json" in answer.lower()
        assert b"script" not in answer.partition(b"\r\n\r\n")[2]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """A visitor of samples of several kinds; how their tokens are read: each number as a letter."""
    path = tmp_path_factory.mktemp("viewer") / "kinds.zip"
    write(path, map(kinds_of, range(12)), in_memory_keys=["name", "score", "parts"])
    ds = edcache.CachedDataset.from_cache(path)
    one = Shown("kinds.zip", lambda: ds.labels, lambda: ds, "ds", lambda tokens: "".join(map(chr, tokens)))
    with view([one], open_browser=False, block=False) as viewer:
        yield Visitor(viewer)


def kinds_of(i):
    mask = np.zeros((20, 30), np.uint8)
    mask[4:9, 5:15] = 1 + i % 3
    film = np.zeros((6, 3, 20, 30), np.uint8)
    film += np.arange(6, dtype=np.uint8)[:, None, None, None] * 40
    return {
        "image": np.full((20, 30, 3), 100, np.uint8),
        "mask": mask,
        "film": film,
        "wave": np.linspace(-1, 1, 4_000, dtype=np.float32),
        "rate": 8_000,
        "ids": np.arange(97, 107),
        "name": "cab"[i % 3],
        "score": [3.5, None, 1.25, 2.0][i % 4],
        "parts": [i],
    }


def kind(kinds, name):
    leaves = kinds.json("/api/0/sample/5")[1]["leaves"]
    return next(leaf["number"] for leaf in leaves if leaf["path"] == name)


def test_a_sound_is_a_wav_file(kinds):
    answer = kinds.get(f"/api/0/sound/5/{kind(kinds, 'wave')}")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "audio/wav")
    with wave.open(BytesIO(answer.data)) as file:
        assert file.getparams()[:4] == (1, 2, 8_000, 4_000)
        frames = np.frombuffer(file.readframes(4_000), "<i2")
    assert np.abs(frames - np.linspace(-1, 1, 4_000) * 32_767).max() < 1.1
    assert kinds.get(f"/api/0/sound/5/{kind(kinds, 'ids')}").status == 404
    assert kinds.get(f"/api/0/sound/99/{kind(kinds, 'wave')}").status == 404
    assert "media-src blob:" in answer.getheader("Content-Security-Policy")


def decoded(answer):
    assert answer.status == 200, answer.data
    return np.asarray(Image.open(BytesIO(answer.data)))


def test_a_mask_is_drawn_to_lie_over_its_image(kinds):
    number = kind(kinds, "mask")
    alone = decoded(kinds.get(f"/api/0/picture/5/{number}"))
    over = decoded(kinds.get(f"/api/0/picture/5/{number}?over=1"))
    is_inside = kinds_of(5)["mask"] > 0
    assert (alone.shape, over.shape) == ((20, 30, 3), (20, 30, 4))
    assert np.array_equal(over[..., 3], is_inside * 255)
    assert np.array_equal(over[is_inside][:, :3], alone[is_inside])
    leaves = kinds.json("/api/0/sample/5")[1]["leaves"]
    assert leaves[0]["media"]["masks"] == [{"number": number, "path": "mask"}]


def test_a_film_has_its_frames(kinds):
    film = kind(kinds, "film")
    for at in (0, 3, 5):
        frame = decoded(kinds.get(f"/api/0/picture/5/{film}?axis=0&at={at}"))
        assert (frame.shape, frame.min(), frame.max()) == ((20, 30, 3), at * 40, at * 40)
    for query in ("axis=0&at=6", "axis=1&at=0", "axis=2&at=0"):
        assert kinds.get(f"/api/0/picture/5/{film}?{query}").status == 404


def test_tokens_have_the_text_of_the_tokenizer(kinds):
    leaves = kinds.json("/api/0/sample/5")[1]["leaves"]
    media = leaves[kind(kinds, "ids")]["media"]
    assert media == {"kind": "tokens", "numbers": " ".join(map(str, range(97, 107))), "text": "abcdefghij"}


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("", list(range(12))),
        ("up name", [1, 4, 7, 10, 2, 5, 8, 11, 0, 3, 6, 9]),
        ("down name", [0, 3, 6, 9, 2, 5, 8, 11, 1, 4, 7, 10]),
        ("up score", [2, 6, 10, 3, 7, 11, 0, 4, 8, 1, 5, 9]),
        ("down score", [0, 4, 8, 3, 7, 11, 2, 6, 10, 1, 5, 9]),
    ],
)
def test_samples_stand_in_the_order_of_a_label(kinds, order, expected):
    def ordered(**query):
        cells = kinds.json("/api/0/cells?" + urlencode({"order": order, "count": 50} | query))[1]["cells"]
        return [cell["row"] for cell in cells]

    assert ordered() == expected
    where = "name != 'c'"
    kept = [row for row in expected if row % 3]
    assert ordered(where=where) == kept
    assert ordered(where=where, start=3, count=2) == kept[3:5]
    for row in (1, 5, 8):
        query = urlencode({"order": order, "where": where})
        found = {"position": kept.index(row), "exact": True}
        assert kinds.json(f"/api/0/position/{row}?{query}") == (200, found)
        assert kinds.json(f"/api/0/position/3?{query}")[1]["exact"] is False


def test_a_random_order_is_one_of_all_samples_and_stays(kinds):
    def rows(seed):
        query = urlencode({"order": f"random {seed}", "count": 50, "where": "name != 'c'"})
        return [cell["row"] for cell in kinds.json(f"/api/0/cells?{query}")[1]["cells"]]

    assert rows(1) == rows(1) != rows(2)
    assert sorted(rows(1)) == [1, 2, 4, 5, 7, 8, 10, 11] != rows(1)


def test_an_order_that_is_none_is_refused_with_the_reason(kinds):
    status, body = kinds.json("/api/0/cells?order=up+nane")
    assert (status, "did you mean name?" in body["error"]) == (422, True)
    status, body = kinds.json("/api/0/cells?order=up+parts")
    assert (status, "needs a column of single values" in body["error"]) == (422, True)
    assert kinds.json("/api/0/cells?order=sideways+name")[0] == 400


def test_tiles_have_the_caption_and_the_size_that_are_chosen(kinds):
    def tile(**query):
        return kinds.json("/api/0/cells?" + urlencode({"start": 1, "count": 1} | query))[1]["cells"][0]

    assert [tile(caption=k)["caption"] for k in range(4)] == ["a", "None", "[1]", ""]
    assert tile()["labels"] == ["a", "None", "[1]"]
    picture = np.random.default_rng(0).integers(0, 255, (600, 600), np.uint8)
    one = Shown("big.zip", lambda: Labels(pa.table({"y": [1]})), lambda: OneSample(picture), "ds")
    with view([one], open_browser=False, block=False) as viewer:
        for side, width in ((0, 120), (128, 120), (256, 200), (512, 300), (9_999, 300)):
            cell = Visitor(viewer).json(f"/api/0/cells?count=1&side={side}")[1]["cells"][0]
            assert struct.unpack(">II", base64.b64decode(cell["png"])[16:24]) == (width, width)


class OneSample:
    def __init__(self, sample):
        self.sample = sample

    def __getitem__(self, index):
        return self.sample

    def __getitems__(self, indices):
        return [self.sample for _ in indices]


def test_a_filter_counts_and_says_what_the_library_says(path, visitor):
    ds = edcache.CachedDataset.from_cache(path)
    assert visitor.json("/api/0/count?where=label+%3D%3D+1") == (
        200,
        {"count": len(ds.filter("label == 1")), "where": "label == 1"},
    )
    for where in ("label ==", "lable == 1", "label == 'x'", "(" * 60):
        with pytest.raises(edcache.EdcacheError) as wrong:
            ds.filter(where)
        status, body = visitor.json(f"/api/0/count?where={where.replace(' ', '+')}")
        assert (status, body) == (422, {"error": str(wrong.value)})


@pytest.mark.parametrize(
    ("where", "bars", "joined"),
    [
        ("", [], ""),
        ("", [["label == 1", "label == 2"]], "label == 1 or label == 2"),
        ("", [["label == 1"], ["label < 2"]], "(label == 1) and (label < 2)"),
        ("label > 0 or label == 2", [["label == 1"]], "(label > 0 or label == 2) and (label == 1)"),
    ],
)
def test_the_chosen_bars_are_joined_with_the_text(path, visitor, where, bars, joined):
    query = urlencode({"where": where, "bars": json.dumps(bars)})
    count = len(edcache.CachedDataset.from_cache(path).filter(joined or None))
    assert visitor.json(f"/api/0/count?{query}") == (200, {"count": count, "where": joined})


@pytest.mark.parametrize(
    ("where", "bars", "status"),
    [
        ("label == 1) or (label == 2", '[["label == 0"]]', 422),
        ("", "[1", 400),
        ("", "3", 400),
        ("", "[[1]]", 400),
        ("", '["label"]', 422),
        ("", "[" * 9_000, 400),
    ],
)
def test_bars_that_are_none_are_refused(visitor, where, bars, status):
    query = urlencode({"where": where, "bars": bars})
    assert visitor.json(f"/api/0/count?{query}")[0] == status


def test_the_part_of_each_bar_that_a_filter_keeps_is_counted(path, visitor):
    ds = edcache.CachedDataset.from_cache(path)
    bars = histogram(ds.labels, "label").bars
    _, body = visitor.json("/api/0/kept/0?where=label+%3E+0")
    assert body == {"kept": [len(ds.filter("label > 0").filter(bar.where)) for bar in bars]}
    assert body["kept"][0] == 0 < sum(body["kept"])
    assert visitor.json("/api/0/kept/0")[1] == {"kept": [bar.count for bar in bars]}
    assert visitor.json("/api/0/kept/9?where=")[0] == 404


def test_cells_follow_the_filter_and_have_pictures(visitor):
    _, body = visitor.json("/api/0/cells?where=label+%3D%3D+1&start=2&count=3")
    assert [cell["row"] for cell in body["cells"]] == [7, 10, 13]
    assert [cell["labels"] for cell in body["cells"]] == [["1"]] * 3
    assert all(cell["png"].startswith("iVBORw0KGgo") for cell in body["cells"])
    assert visitor.json("/api/0/cells?start=19&count=500")[1]["cells"][0]["row"] == 19
    assert visitor.json("/api/0/cells?start=99&count=5")[1]["cells"] == []
    assert visitor.json("/api/0/position/8?where=label+%3D%3D+1")[1] == {"position": 3, "exact": False}


def leaf_of(visitor, name):
    _, body = visitor.json("/api/0/sample/7")
    return next(leaf for leaf in body["leaves"] if leaf["path"] == name)


def test_pictures_are_made_anew_and_slices_move(visitor):
    volume = leaf_of(visitor, "volume")["number"]
    pictures = [visitor.get(f"/api/0/picture/7/{volume}?axis={axis}&at=1") for axis in range(3)]
    sizes = [struct.unpack(">II", picture.data[16:24]) for picture in pictures]
    assert sizes == [(12, 10), (12, 9), (10, 9)]
    assert {picture.getheader("Content-Type") for picture in pictures} == {"image/png"}


@pytest.mark.parametrize("name", ["markup", "sound"])
def test_bytes_are_never_served_as_they_are(visitor, name):
    leaf = leaf_of(visitor, name)
    assert "media" not in leaf
    assert visitor.get(f"/api/0/picture/7/{leaf['number']}").status == 404


def test_pickles_stay_closed(tmp_path):
    path = tmp_path / "pickled.zip"
    with edcache.CacheWriter(path, codec="pickle", in_memory_keys=["label"]) as w:
        w.extend({"image": np.zeros((4, 4)), "label": i} for i in range(3))
    ds = edcache.CachedDataset.from_cache(path)
    with ds.view(open_browser=False, block=False) as viewer:
        visitor = Visitor(viewer)
        cells = visitor.json("/api/0/cells?count=3")[1]["cells"]
        assert [cell["labels"] for cell in cells] == [["0"], ["1"], ["2"]]
        assert all("A pickle runs code" in cell["why"] for cell in cells)
        sample = visitor.json("/api/0/sample/1")[1]
        assert (sample["leaves"], sample["labels"]) == ([], [["label", "1"]])
        assert "A pickle runs code" in sample["error"]


def test_what_a_transform_raises_is_named_and_not_quoted(path):
    def fail(sample):
        raise ValueError("/home/somebody/secret")

    ds = edcache.CachedDataset.from_cache(path, transform=fail).filter(label=1)
    with ds.view(open_browser=False, block=False) as viewer:
        visitor = Visitor(viewer)
        body = visitor.get("/api/0/cells?count=2").data + visitor.get("/api/0/sample/1").data
        assert b"ValueError" in body
        assert b"secret" not in body


def test_the_labels_answer_while_the_dataset_is_still_opened():
    opened = threading.Event()

    def dataset():
        opened.wait(20)
        return [{"x": 1}] * 5

    labels = Labels(pa.table({"y": [1, 2, 3, 4, 5]}))
    one = Shown("slow.zip", lambda: labels, dataset, "ds")
    with view([one], open_browser=False, block=False) as viewer:
        visitor = Visitor(viewer)
        assert visitor.json("/api/0/count?where=y+%3E+2") == (200, {"count": 3, "where": "y > 2"})
        assert visitor.json("/api/0/histogram/0")[1]["bars"][0]["where"] == "y == 1"
        opened.set()
        assert len(visitor.json("/api/0/cells?count=5")[1]["cells"]) == 5


def test_it_listens_on_this_machine_alone_and_ends(path):
    ds = edcache.CachedDataset.from_cache(path)
    viewer = ds.view(open_browser=False, block=False)
    assert viewer._server.server_address[0] == "127.0.0.1"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", viewer.url)
    with pytest.raises(edcache.errors.StorageError, match=f"port {viewer.port}: cannot listen there"):
        ds.view(port=viewer.port, open_browser=False, block=False)
    assert f'href="{viewer.url}"' in viewer._repr_html_()
    viewer.close()
    viewer.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", viewer.port), timeout=5)


def test_the_page_writes_text_alone():
    script = (PAGE / "page.js").read_text()
    ways = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
        "DOMParser",
    )
    assert not [way for way in ways if way in script]
    html = (PAGE / "page.html").read_text() + (PAGE / "page.css").read_text()
    assert not re.search(r"https?:|url\(|@import|style=|\son\w+=", html)
