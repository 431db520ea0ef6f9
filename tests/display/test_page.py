"""The viewer's page in a real browser: what a person does there, and what a hostile archive does not."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa
import pytest
import torch
from browser import By, Keys, Page, chromium, needs_browser

import edcache
from edcache.display import Shown, Viewer
from edcache.labels import Labels

pytestmark = [pytest.mark.full, needs_browser]
browser = pytest.fixture(chromium, scope="module")

MARK = "globalThis.ran=1"
HOSTILE = [
    f"<script>{MARK}</script>",
    f"</script><script>{MARK}</script>",
    f"<img src=x onerror={MARK}>",
    f"<svg onload={MARK}>",
    f'"><svg/onload={MARK}>',
    f"' onmouseover='{MARK}",
    f'" autofocus onfocus="{MARK}',
    f"javascript:{MARK}",
    f"data:text/html,<script>{MARK}</script>",
    "<iframe srcdoc='<script>parent.ran=1</script>'>",
    f"<a href=javascript:{MARK}>x</a>",
    f"<body onpageshow={MARK}>",
    f"<details open ontoggle={MARK}>",
    f"<video><source onerror={MARK}>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={MARK}>",
    f"<noscript><p title='</noscript><img src=x onerror={MARK}>'>",
    f"<template><script>{MARK}</script></template>",
    f"<object data='javascript:{MARK}'>",
    f"<embed src='javascript:{MARK}'>",
    "<base href='https://evil.example/'>",
    "<link rel=stylesheet href=https://evil.example/a.css>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<form action=https://evil.example/><input name=a autofocus></form>",
    "<img src=https://evil.example/pixel.png>",
    "<style>@import 'https://evil.example/a.css';*{display:none}</style>",
    "</style><style>body{display:none}",
    "color:red;background:url(https://evil.example/)",
    "url(https://evil.example/x)",
    f"{{{{constructor.constructor('{MARK}')()}}}}",
    f"${{{MARK}}}",
    f"`${{{MARK}}}`",
    f"#{{{MARK}}}",
    f"<%= {MARK} %>",
    f"[[${{{MARK}}}]]",
    "__proto__",
    "constructor",
    "prototype",
    "toString",
    "hasOwnProperty",
    "then",
    "innerHTML",
    "\u202egnp.exe\u202c",
    "\u2066\u2069\u200f\u200e\u061c",
    "a\0b\0",
    "\x1b[2J\x1b]0;title\x07",
    "\r\nSet-Cookie: a=b\r\n",
    "\ud800",
    "\u0301" * 400,
    "W" * 20_000,
    "../../../../etc/passwd",
    "%00%2e%2e%2f",
    "\U000e0041\U000e0042",
    "' or 1 == 1 or '",
    '\\") or True or ("',
]  # fmt: skip


def encodable(text):
    return text.encode("utf-8", "replace").decode()


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """So many samples that their grid is higher than a browser's elements."""
    path = tmp_path_factory.mktemp("page") / "many.zip"
    pictures = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8))
    with edcache.CacheWriter(path, in_memory_keys=["label", "split"], chunk_size=20_000) as w:
        w.extend({"x": pictures[i % 40], "label": i % 10, "split": "ab"[i % 7 == 0]} for i in range(450_000))
    with edcache.CachedDataset.from_cache(path) as ds, ds.view(open_browser=False, block=False) as viewer:
        yield viewer


@pytest.fixture
def page(browser, many):
    page = Page(browser, many)
    page.wait(page.rows)
    return page


def test_the_grid_scrolls_to_the_end_and_by_the_wheel(page):
    assert page.rows()[0] == 0
    page.browser.execute_script("document.getElementById('grid').scrollTop = 1e9")
    page.wait(lambda: 449_999 in page.rows())
    page.browser.execute_script("document.getElementById('grid').scrollTop = 4e6")
    page.wait(lambda: 200_000 < next(iter(page.rows()), 0) < 250_000)
    before = page.wait(page.rows)[0]
    page.browser.execute_script("document.getElementById('grid').scrollTop += 300")
    page.wait(lambda: before < next(iter(page.rows()), 0) < before + 60)
    page.check_nothing_ran()


def test_a_click_on_a_bar_filters_and_a_second_takes_it_back(page):
    def bar(text):
        bars = "[...document.querySelectorAll('button.value')]"
        script = f"return {bars}.find(b => b.children[1].textContent === arguments[0])"
        return page.wait(lambda: page.browser.execute_script(script, text))

    page.wait(lambda: len(page.all("nav section")) == 2 and page.all("nav section:last-child button"))
    bar("3").click()
    page.wait(lambda: page.text("#count") == "45,000 of 450,000 samples" and page.rows()[:2] == [3, 13])
    assert page.text("#code") == 'ds.filter("label == 3")'
    parts = lambda: {  # noqa: E731
        (b.text.split("\n")[0], b.text.split("\n")[-1]) for b in page.all("nav section:last-child .part")
    }
    page.wait(lambda: parts() == {("a", "38,572"), ("b", "6,428")})
    bar("5").click()
    bar("b").click()
    page.wait(lambda: page.rows()[:2] == [35, 63])
    both = '(label == 3 or label == 5) and (split == \\"b\\")'
    assert page.text("#code") == f'ds.filter("{both}")'
    page.type("#where", "label < 5", Keys.ENTER)
    page.wait(
        lambda: page.text("#code") == f'ds.filter("(label < 5) and {both}")' and page.rows()[:1] == [63]
    )
    assert len(page.all("button.value[aria-pressed=true]")) == 3
    for text in ("b", "3", "5"):
        bar(text).click()
    page.wait(lambda: page.text("#code") == 'ds.filter("label < 5")')
    page.one("#clear").click()
    page.wait(lambda: page.text("#count") == "450,000 samples" and page.rows()[:1] == [0])
    page.wait(lambda: not page.all(".part"))
    bar("b").click()
    page.wait(lambda: "64,286 of" in page.text("#count"))
    page.one("#clear").click()
    page.wait(lambda: not page.all("button.value[aria-pressed=true]") and page.rows()[:1] == [0])


def test_the_page_begins_with_the_filter_that_it_was_given(browser, many):
    with Viewer(many._server.shown, where="label == 3 and split == 'b'") as viewer:
        page = Page(browser, viewer)
        page.wait(lambda: page.text("#count") == "6,428 of 450,000 samples")
        assert page.one("#where").get_attribute("value") == "label == 3 and split == 'b'"


def test_a_wrong_filter_shows_what_the_library_says(page, many):
    with pytest.raises(edcache.EdcacheError) as wrong:
        many._server.shown[0].rows("lable == 3")
    page.type("#where", "lable == 3", Keys.ENTER)
    page.wait(lambda: page.text("#message") == str(wrong.value))
    assert page.one("#where").get_attribute("aria-invalid") == "true"
    page.type("#where", "label > 99", Keys.ENTER)
    page.wait(lambda: "No sample fulfils this filter" in page.text("#empty"))
    page.one("#empty button").click()
    page.wait(lambda: page.rows() and page.text("#message") == "")


def test_all_is_reached_without_a_mouse(page):
    body = page.one("body")
    body.send_keys("j")
    page.browser.switch_to.active_element.send_keys("123456", Keys.ENTER)
    page.wait(lambda: page.text(".cell[aria-selected=true] .cap span") == "123,456")
    grid = page.browser.switch_to.active_element
    assert grid.get_attribute("id") == "grid"
    grid.send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    page.wait(lambda: page.text("#sample-name") == "Sample 123,457" and "uint8" in page.text("#sample-body"))
    assert page.all("#sample-body .picture img")
    page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.wait(lambda: not page.one("#sample").is_displayed())
    page.one("#grid").send_keys("?")
    assert page.one("#help").is_displayed()
    page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.one("#grid").send_keys(Keys.END)
    page.wait(lambda: 449_999 in page.rows())
    page.one("#grid").send_keys("/")
    assert page.browser.switch_to.active_element.get_attribute("id") == "where"


def test_a_link_of_another_site_leads_in(browser, many, tmp_path):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Notebook(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f"<a href='{many.url}'>view</a>".encode())

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Notebook) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        browser.get(f"http://localhost:{server.server_port}/")
        browser.find_element(By.TAG_NAME, "a").click()
        end = time.monotonic() + 10
        while "450,000" not in browser.page_source and time.monotonic() < end:
            time.sleep(0.05)
        assert browser.current_url == many.url
        assert "450,000" in browser.page_source
        server.shutdown()


def test_nothing_of_a_hostile_archive_runs(browser, tmp_path):
    texts = [encodable(text) for text in HOSTILE]
    path = tmp_path / "<img src=x onerror=globalThis.ran=1>.zip"
    keys = {f"{text[:200]}": k for k, text in enumerate(texts)}
    columns = {f"c{k}": text for k, text in enumerate(texts[:12])}
    with edcache.CacheWriter(path, in_memory_keys=["text"]) as w:
        w.extend({"text": text, "keys": keys, "bytes": text.encode()} for text in texts)
    ds = edcache.CachedDataset.from_cache(path)
    for name in columns.values():
        ds.add_labels(name, texts)
    with ds.view(open_browser=False, block=False) as viewer:
        page = Page(browser, viewer)
        page.wait(page.rows)
        page.wait(lambda: len(page.all("nav section")) == 13 and page.all("nav section:last-child button"))
        for button in page.all("nav section:last-child button.value")[:8]:
            page.browser.execute_script("arguments[0].click()", button)
        page.browser.execute_script("document.getElementById('clear').click()")
        for row in range(0, len(texts), 6):
            page.type("#jump", str(row), Keys.ENTER)
            page.wait(lambda row=row: page.text(".cell[aria-selected=true] .cap span") == str(row))
            page.one("#grid").send_keys(Keys.ENTER)
            page.wait(
                lambda row=row: (
                    page.text("#sample-name") == f"Sample {row}" and page.all("#sample-body table")
                )
            )
            page.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
        page.type("#where", texts[0], Keys.ENTER)
        page.wait(lambda: page.text("#message"))
        page.one("#tab-missing").click()
        page.wait(lambda: page.all("#missing h2"))
        assert "\u202e" not in page.browser.execute_script("return document.documentElement.innerText")
        assert not page.all("#samples script, #samples iframe, #samples object, #samples a, #samples form")
        page.check_nothing_ran(but="status of 4")


def test_signals_text_and_volumes_are_shown(browser, tmp_path):
    with edcache.CacheWriter(tmp_path / "kinds.zip") as w:
        w.append(
            {
                "signal": torch.linspace(0, 1, 500).sin(),
                "text": "a text that is longer than the table of fields has room for, " * 3,
                "volume": np.random.default_rng(0).random((12, 14, 16)),
            }
        )
    with (
        edcache.CachedDataset.from_cache(tmp_path / "kinds.zip") as ds,
        ds.view(open_browser=False, block=False) as viewer,
    ):
        page = Page(browser, viewer)
        page.wait(lambda: page.all(".cell img"))
        page.one(".cell").click()
        page.wait(lambda: len(page.all("#sample-body figure")) == 3)
        slider = page.one(".slices input")
        slider.send_keys(Keys.ARROW_RIGHT)
        assert page.text(".slices small") == "axis 0: 7 of 12"
        loaded = "return [...document.querySelectorAll('.slices img')].map(i => i.complete && i.naturalWidth)"
        page.wait(lambda: page.browser.execute_script(loaded) == [16, 16, 14])
        page.check_nothing_ran()


@pytest.mark.parametrize("width", [420, 600, 1400])
def test_a_page_of_any_width_has_room_and_a_slow_start_says_so(browser, many, width):
    """At 420 pixels the filter was 22 wide, a message was cut, and grey tiles were all of a start."""
    is_open = threading.Event()
    quick = many._server.shown[0]

    def dataset():
        is_open.wait(30)
        return quick._dataset()

    labels = Labels(pa.table({"label": [1] * 50} | {f"a_rather_long_name_{k}": [k] * 50 for k in range(9)}))
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        names = ("/data/sets/a-name-that-is-long.zip", "/data/sets/of/another-name.zip")
        slow = [Shown(name, lambda: labels, dataset, "ds") for name in names]
        with Viewer(slow) as viewer:
            page = Page(browser, viewer)
            page.wait(lambda: page.one("#busy").is_displayed())
            assert "PyTorch" in page.text("#busy")
            is_open.set()
            page.wait(lambda: page.rows() and not page.one("#busy").is_displayed())
            assert page.one("#where").size["width"] >= 200
            page.type("#where", "lable == 1", Keys.ENTER)
            page.wait(lambda: "did you mean label?" in page.text("#message"))
            seen = "return ['Width', 'Height'].map(s => m['scroll' + s] - m['client' + s])"
            seen = f"const m = document.getElementById('message'); {seen}"
            assert browser.execute_script(seen) == [0, 0]
            assert page.one("#message").size["width"] > 200
            assert browser.execute_script("return document.documentElement.scrollWidth") == width
            assert len(page.rows()) >= 3
            shown = [option.text for option in page.all("#sets option")]
            assert shown == ["a-name-that-is-long.zip", "of/another-name.zip"]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_an_archive_that_cannot_be_opened_says_why(browser, tmp_path):
    def fail():
        raise edcache.errors.CorruptArchiveError("notes.zip: not an archive of edcache")

    with Viewer([Shown("notes.zip", fail, fail, "")]) as viewer:
        page = Page(browser, viewer)
        page.wait(lambda: "not an archive of edcache" in page.text("#empty"))
