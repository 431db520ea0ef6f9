"""A real browser without a screen, and the viewer's page in it."""

import json
import shutil
import time

import pytest
from optional import Library, need

webdriver = Library("selenium.webdriver")
By = Library("selenium.webdriver.common.by:By")
Keys = Library("selenium.webdriver.common.keys:Keys")

__all__ = ["By", "Keys", "Page", "chromium", "needs_browser"]

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="takes Chromium and its driver")


def chromium():
    """A fixture's function: Chromium, which logs what it fetches."""
    need("selenium")
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.binary_location = CHROMIUM
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


class Page:
    """A page that is open in the browser."""

    def __init__(self, browser, viewer):
        self.browser = browser
        browser.get("about:blank")
        for log in ("browser", "performance"):
            browser.get_log(log)
        browser.get(viewer.url)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.browser.execute_script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", selector
        )

    def wait(self, check, seconds=15):
        """Until check() is true, which is returned."""
        end = time.monotonic() + seconds
        while not (value := check()):
            if time.monotonic() > end:
                self.browser.save_screenshot("/tmp/page.png")
                raise AssertionError(
                    f"nothing after {seconds} s; {self.text('#message')} {self.text('#empty')}"
                )
            time.sleep(0.03)
        return value

    def rows(self):
        """The numbers of the samples in sight."""
        script = (
            "return [...document.querySelectorAll('.cell .cap span:first-child')].map(s => s.textContent)"
        )
        return sorted(int(text.replace(",", "")) for text in self.browser.execute_script(script) if text)

    def type(self, selector, *keys):
        box = self.one(selector)
        box.clear()
        box.send_keys(*keys)

    def check_nothing_ran(self, but=None):
        """No script but the page's, no request but to it, nothing that its policy had to stop.

        Messages of the browser with the text `but` are left out.
        """
        assert self.browser.execute_script("return globalThis.ran") is None
        wrong = [line["message"] for line in self.browser.get_log("browser") if line["level"] == "SEVERE"]
        left = [message for message in wrong if but is None or but not in message]
        assert not left, left
        for line in self.browser.get_log("performance"):
            message = json.loads(line["message"])["message"]
            assert message["method"] != "Page.javascriptDialogOpening"
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                # data: is of the browser's own controls; the policy lets no page have one.
                assert url.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:", "about:", "data:")), url
