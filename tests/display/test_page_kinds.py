"""Kinds of data on the viewer's page, its order and tiles, and its URL, in a real browser."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch
from browser import Keys, Page, chromium, needs_browser
from written import written

pytestmark = [pytest.mark.full, needs_browser]
browser = pytest.fixture(chromium, scope="module")

COUNT = 400


def sample(i):
    mask = np.zeros((20, 30), np.uint8)
    mask[4:9, 5:15] = 1
    film = np.zeros((6, 3, 20, 30), np.uint8)
    film += np.arange(6, dtype=np.uint8)[:, None, None, None] * 40
    return {
        "image": np.full((20, 30, 3), [200, 0, 0], np.uint8),
        "mask": mask,
        "boxes": torch.tensor([[5.0, 4, 15, 9], [1, 1, 29, 19]]),
        "labels": ["<b>cat</b>", "dog"],
        "film": film,
        "wave": torch.sin(torch.arange(8_000) / 9),
        "sample_rate": 8_000,
        "ids": torch.arange(50),
        "name": "abc"[i % 3],
        "score": i % 50,
    }


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    path = tmp_path_factory.mktemp("kinds") / "kinds.zip"
    ds = written(path, map(sample, range(COUNT)), in_memory_keys=["name", "score"])
    with ds, ds.view(open_browser=False, block=False) as viewer:
        yield viewer


@pytest.fixture
def page(browser, viewer):
    page = Page(browser, viewer)
    page.wait(page.rows)
    page.wait(lambda: len(page.all("nav section:last-child button.value")) > 3)
    return page


def script(page, text, *arguments):
    return page.browser.execute_script(text, *arguments)


def hash_of(page):
    """What the URL says behind the #."""
    fragment = urlsplit(page.browser.current_url).fragment
    return {name: values[0] for name, values in parse_qs(fragment).items()}


def opened(page):
    return page.text("#sample-name") if page.one("#sample").is_displayed() else None


def open_sample(page, position):
    cells = "return [...document.querySelectorAll('.cell')].find(c => c.position === arguments[0])"
    page.wait(lambda: script(page, cells, position)).click()
    page.wait(lambda: page.all("#sample-body table"))


def click_bar(page, text):
    bars = "return [...document.querySelectorAll('button.value')].find(b => b.children[1].textContent === arguments[0])"
    script(page, bars, text).click()


def pressed(page):
    return [button.text.split("\n")[0] for button in page.all("button.value[aria-pressed=true]")]


PIXEL = """
const [img, x, y] = arguments, canvas = document.createElement("canvas");
[canvas.width, canvas.height] = [img.naturalWidth, img.naturalHeight];
if (!img.complete || !img.naturalWidth) return null;
canvas.getContext("2d").drawImage(img, 0, 0);
return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data];
"""
RECT = "const r = arguments[0].getBoundingClientRect(); return [r.x, r.y, r.width, r.height].map(Math.round)"


def test_a_mask_and_boxes_lie_over_their_image_until_they_are_switched_off(page):
    open_sample(page, 0)
    figure = page.one("#sample-body figure")
    image, mask = figure.find_elements("css selector", "img")
    boxes = figure.find_element("css selector", "svg.layer")
    assert page.wait(lambda: script(page, PIXEL, mask, 7, 5))[3] == 255
    assert script(page, PIXEL, mask, 1, 1)[3] == 0
    assert script(page, RECT, image) == script(page, RECT, mask) == script(page, RECT, boxes)
    corner = "const r = arguments[0].getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]"
    left, top, *_ = script(page, corner, image)
    scale = script(page, "return arguments[0].getBoundingClientRect().height / 20", image)
    # The image stands in the middle of its box.
    side = script(page, "return arguments[0].getBoundingClientRect().width", image)
    begin = left + (side - 30 * scale) / 2
    rectangle = script(page, corner, boxes.find_element("css selector", "rect"))
    expected = [begin + 5 * scale, top + 4 * scale, begin + 15 * scale, top + 9 * scale]
    assert max(abs(a - b) for a, b in zip(rectangle, expected, strict=True)) < 2
    texts = [text.get_attribute("textContent") for text in boxes.find_elements("css selector", "text")]
    assert texts == ["<b>cat</b>", "dog"]
    names = [label.text for label in figure.find_elements("css selector", ".layers label")]
    assert names == ["mask", "boxes (x y x y)"]
    switches = figure.find_elements("css selector", ".layers input")
    switches[0].click()
    assert (mask.is_displayed(), boxes.is_displayed()) == (False, True)
    switches[1].click()
    assert not boxes.is_displayed()
    page.one("#next").click()
    page.wait(lambda: page.text("#sample-name") == "Sample 1" and page.all("#sample-body .layers input"))
    page.wait(lambda: not page.one("#sample-body .layer").is_displayed())
    for switch in page.all("#sample-body .layers input"):
        assert not switch.is_selected()
        switch.click()
    assert all(layer.is_displayed() for layer in page.all("#sample-body figure:first-child .layer"))
    page.check_nothing_ran()


def test_a_sound_plays_and_a_film_turns(page):
    open_sample(page, 2)
    audio = page.one("#sample-body audio")
    assert page.wait(lambda: script(page, "return arguments[0].duration", audio)) == pytest.approx(
        1, abs=0.01
    )
    script(page, "arguments[0].muted = true; arguments[0].currentTime = 0.6", audio)
    page.wait(lambda: script(page, "return !arguments[0].seeking", audio))
    assert script(page, "return arguments[0].currentTime", audio) == pytest.approx(0.6)
    film, slider = page.one(".film img"), page.one(".film input")
    assert page.text(".film small") == "frame 3 of 6"
    assert page.wait(lambda: script(page, PIXEL, film, 5, 5)) == [120, 120, 120, 255]
    slider.send_keys(Keys.ARROW_RIGHT)
    page.wait(lambda: script(page, PIXEL, film, 5, 5) == [160, 160, 160, 255])
    assert page.text(".film small") == "frame 4 of 6"
    assert "0 1 2 3 4 5 6 7 8 9" in page.text("#sample-body")
    page.check_nothing_ran()


def test_back_goes_back_and_the_url_opens_what_was_seen(page, browser, viewer):
    script(page, "document.getElementById('grid').scrollTop = 900")
    position = page.wait(lambda: (rows := page.rows()) and rows[0] > 8 and rows[0]) + 12
    top = script(page, "return document.getElementById('grid').scrollTop")
    open_sample(page, position)
    assert hash_of(page) == {"sample": str(position)}
    page.one("#next").click()
    page.wait(lambda: hash_of(page) == {"sample": str(position + 1)})
    browser.back()
    page.wait(lambda: opened(page) is None)
    assert hash_of(page) == {}
    assert abs(script(page, "return document.getElementById('grid').scrollTop") - top) < 200
    browser.forward()
    page.wait(lambda: opened(page) == f"Sample {position + 1}")
    page.one("#close").click()
    click_bar(page, "b")
    page.wait(lambda: hash_of(page) == {"where": 'name == "b"'} and page.rows()[:1] == [1])
    click_bar(page, "a")
    page.wait(lambda: "267 of" in page.text("#count"))
    open_sample(page, 0)
    browser.back()
    page.wait(lambda: opened(page) is None and sorted(pressed(page)) == ["a", "b"])
    browser.back()
    page.wait(lambda: pressed(page) == ["b"] and page.rows()[:2] == [1, 4])
    browser.back()
    page.wait(lambda: pressed(page) == [] and page.text("#count") == "400 samples")
    page.type("#where", 'name == "a"')
    page.wait(lambda: "134 of" in page.text("#count"))
    page.one("#where").send_keys(" and score > 48")
    page.wait(lambda: "134" not in page.text("#count") and " of " in page.text("#count"))
    browser.back()
    page.wait(lambda: page.text("#count") == "400 samples" and not page.one("#where").get_attribute("value"))
    browser.get("about:blank")
    browser.get(viewer.url + "#where=name+%3D%3D+%22c%22&order=down+score&caption=score&sample=47")
    page.wait(lambda: opened(page) == "Sample 47" and page.all("#sample-body table"))
    assert page.one("#where").get_attribute("value") == 'name == "c"'
    assert page.text(".cell[aria-selected=true] .cap span:last-child") == "47"
    browser.refresh()
    page.wait(lambda: opened(page) == "Sample 47" and page.all("#sample-body table"))
    browser.get("about:blank")
    browser.get(viewer.url + "#where=name+%3D%3D+%22c%22&sample=0")
    page.wait(lambda: page.text("#message") == "sample 0 does not fulfil the filter")
    script(page, "location.hash = '#sample=0'")
    page.wait(lambda: opened(page) == "Sample 0" and page.text("#message") == "")
    page.check_nothing_ran()


def choose(page, box, text):
    options = {option.text: option for option in page.all(f"#{box} option")}
    options[text].click()


def test_order_caption_and_size_are_chosen(page):
    shown = (
        "return [...document.querySelectorAll('.cell')].sort((a, b) => a.position - b.position).slice(0, 3)"
    )
    numbers = lambda: script(page, f"{shown}.map(c => c.querySelector('.cap span').textContent)")  # noqa: E731
    captions = lambda: script(page, f"{shown}.map(c => c.querySelector('.cap span:last-child').textContent)")  # noqa: E731
    page.wait(lambda: captions() == ["a", "b", "c"])
    choose(page, "caption", "score")
    page.wait(lambda: captions() == ["0", "1", "2"])
    choose(page, "order", "score ↓")
    page.wait(lambda: numbers() == ["49", "99", "149"])
    assert page.text("#code") == 'ds.sort_by("score", descending=True)'
    choose(page, "order", "random")
    page.wait(lambda: numbers() not in (["49", "99", "149"], ["0", "1", "2"], ["", "", ""]))
    assert hash_of(page)["order"].startswith("random ")
    first = numbers()
    page.one("#again").click()
    page.wait(lambda: numbers() not in (first, ["", "", ""]))
    page.browser.back()
    page.wait(lambda: numbers() == first)
    choose(page, "order", "as stored")
    page.wait(lambda: numbers() == ["0", "1", "2"])
    assert not page.one("#again").is_displayed()
    page.wait(lambda: page.all(".cell img"))
    width = page.one(".cell").size["width"]
    slider = page.one("#size")
    slider.send_keys(Keys.END)
    page.wait(lambda: page.one(".cell").size["width"] > 3 * width and page.all(".cell img"))
    assert hash_of(page)["size"] == "480"
    page.check_nothing_ran()


CONTRAST = """
const parts = (color) => color.match(/[0-9.]+/g).map(Number);
const light = (color) => {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = parts(color).slice(0, 3).map((c) => linear(c / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const worst = [];
for (const button of document.querySelectorAll("button.value")) {
  const [bar, ...texts] = button.children;
  const backs = [bar, bar.firstChild].map((node) => getComputedStyle(node));
  for (const back of backs) {
    if (back.opacity !== "1" || parts(back.backgroundColor).length > 3) return 0;
    for (const text of texts) {
      const [a, b] = [light(getComputedStyle(text).color), light(back.backgroundColor)];
      worst.push((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
    }
  }
}
return Math.min(...worst);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_text_of_a_bar_is_read_on_each_of_its_colors(page, scheme):
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    try:
        assert script(page, CONTRAST) >= 4.5
        click_bar(page, "b")
        page.wait(lambda: page.all(".value.part") and pressed(page) == ["b"])
        assert script(page, CONTRAST) >= 4.5
    finally:
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
