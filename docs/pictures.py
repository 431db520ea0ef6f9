"""Draw docs/images/ anew, of what the programs of README and quickstart make: .venv/bin/python docs/pictures.py

The terminal shows a real fill that is killed by SIGKILL, and the runs after it. It takes selenium, Pillow, Chromium and
its driver.
"""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import signal
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
TERMINAL = """<meta charset=utf-8><body style="margin: 0; background: #1e1e2e; color: #cdd6f4">
<pre style="margin: 20px; font: 15px/1.5 'DejaVu Sans Mono', monospace">{}</pre>"""
PROMPT, NOTE = "<span style='color: #a6e3a1'>$</span> <b>{}</b>\n", "<span style='color: #f38ba8'>{}</span>\n"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(DOCS.parent), "OMP_NUM_THREADS": "1"}


def blocks_of(page: str) -> list[str]:
    """The blocks of Python on a page."""
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def killed_and_resumed(folder: Path) -> str:
    """What a terminal shows of three runs of a program, the first of which is killed half-way, as HTML."""
    shown = []
    for seconds in (2.5, None, None):
        shown.append(PROMPT.format("python train.py"))
        with subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=folder,
            env=ENVIRONMENT,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as run:
            if seconds is not None:
                while not list(folder.glob("cache/*.zip")):
                    time.sleep(0.05)
                time.sleep(seconds)
                os.killpg(run.pid, signal.SIGKILL)
            shown.append(html.escape(run.stdout.read()))
            if seconds is not None:
                shown.append(NOTE.format("Killed"))
    return TERMINAL.format("".join(shown))


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
    blocks = blocks_of("docs/quickstart.md")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(blocks_of("README.md")[0])
        (folder / "terminal.html").write_text(killed_and_resumed(folder))
        with chromium(864, 250) as browser:
            browser.get(f"file://{folder}/terminal.html")
            save(browser, "terminal.png")
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
