"""Draw docs/images/ anew, of what the quickstart's program makes: .venv/bin/python docs/pictures.py

It takes selenium, Pillow, Chromium and its driver.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from selenium import webdriver

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
ARCHIVE = "cache/julia-train.zip"
SOME = "label in (1, 2, 3)"
NOTEBOOK = f"""
import edcache, os
ds = edcache.CachedDataset.from_cache({ARCHIVE!r})
style = "<meta charset=utf-8><style>body {{ font-family: sans-serif; margin: 16px }}</style>"
shown = ds.filter("{SOME}")._repr_html_().replace(os.getcwd() + "/", "")
open("notebook.html", "w").write(style + shown)
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(DOCS.parent), "OMP_NUM_THREADS": "1"}


@contextmanager
def viewer(folder: Path) -> Iterator[str]:
    """The URL of `edcache view`, while it runs."""
    command = [sys.executable, "-u", "-m", "edcache", "view", ARCHIVE, "--no-browser", "--where", SOME]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, **pipe) as server:
        try:
            yield next(url[0] for line in server.stdout if (url := re.search(r"http://\S+", line)))
        finally:
            server.terminate()


@contextmanager
def chromium(width: int, height: int) -> Iterator[webdriver.Chrome]:
    """A browser whose page has this size."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    size = {"width": width, "height": height, "deviceScaleFactor": 1.5, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield browser
    finally:
        browser.quit()


def save(browser: webdriver.Chrome, name: str) -> None:
    """Save what the browser shows, with a palette, which makes a file of half the size."""
    screen = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    screen.quantize(256, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def main() -> None:
    """Draw all."""
    page = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "julia.py").write_text(blocks[0])
        for file, code in {"train.py": blocks[1], "notebook.py": NOTEBOOK}.items():
            (folder / file).write_text(code)
            subprocess.run([sys.executable, file], cwd=folder, env=ENVIRONMENT, check=True)
        with chromium(864, 310) as browser:
            browser.get(f"file://{folder}/notebook.html")
            save(browser, "notebook.png")
        with viewer(folder) as url, chromium(1280, 690) as browser:
            browser.get(url)
            time.sleep(5)  # for the pictures of its cells
            save(browser, "viewer.png")


if __name__ == "__main__":
    main()
