"""The viewer shows every hostile file, or says in one line why not: in JSON, and never with a traceback."""

import http.client
import json
from contextlib import closing
from functools import partial

import pytest
from browser import Page, chromium, needs_browser
from test_attacks import NUMBERED, forged, sound  # noqa: F401 - a fixture

from edcache.cli.look import archive_shown
from edcache.display import Viewer

pytestmark = [
    pytest.mark.full,
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore::edcache.errors.PartialArchiveWarning"),
]
AT_ONCE = 60
browser = pytest.fixture(chromium, scope="module")
QUESTIONS = (
    *("", "/count", "/count?where=y+%3D%3D+1", "/histogram/0", "/cells?count=8", "/summary", "/missing"),
    *("/sample/0", "/sample/1", "/picture/0/0", "/picture/1/0", "/media/0/0"),
)


@pytest.mark.parametrize("start", range(0, len(NUMBERED), AT_ONCE))
def test_hostile_files_are_shown_or_refused_in_one_line(start, sound, tmp_path):  # noqa: F811
    archives = []
    for number, attack in NUMBERED[start : start + AT_ONCE]:
        path = tmp_path / f"{number}.zip"
        forged(attack, sound(attack.base), path)
        archives.append(archive_shown(str(path)))
    with Viewer(archives) as viewer, closing(http.client.HTTPConnection("127.0.0.1", viewer.port)) as browser:
        browser.request("GET", viewer.url.partition(str(viewer.port))[2])
        entered = browser.getresponse()
        entered.read()
        cookie = entered.getheader("Set-Cookie").partition(";")[0]
        for k, archive in enumerate(archives):
            for question in QUESTIONS:
                browser.request("GET", f"/api/{k}{question}", headers={"Cookie": cookie})
                answer = browser.getresponse()
                body = answer.read()
                asked = archive.name, question, body[:300]
                # Memory of a made-up length is not promised; what there is of an answer is a line.
                assert answer.status in (200, 404, 422) or b"MemoryError" in body, asked
                if answer.getheader("Content-Type") == "image/png":
                    assert body.startswith(b"\x89PNG"), asked
                    continue
                assert answer.getheader("Content-Type") == "application/json", asked
                assert b"Traceback" not in body, asked
                assert isinstance(json.loads(body, parse_constant=partial(pytest.fail, "no JSON")), dict)


@needs_browser
def test_nothing_of_a_hostile_file_runs_in_a_browser(browser, sound, tmp_path):  # noqa: F811
    archives = []
    for number, attack in NUMBERED[::4]:
        path = tmp_path / f"{number}.zip"
        forged(attack, sound(attack.base), path)
        archives.append(archive_shown(str(path)))
    with Viewer(archives) as viewer:
        page = Page(browser, viewer)
        page.wait(lambda: page.rows() or page.text("#empty"))
        for k in range(len(archives)):
            browser.execute_script(f"location.hash = 'set={k}'; location.reload()")
            page.wait(lambda: page.rows() or page.text("#empty") or page.text("#message"))
        page.check_nothing_ran(but="status of 4")
