"""A real browser, Debian's Chromium without a window, as somebody who looks at the console uses it.

    tab = browser.open(broker.http_url + "/")
    tab.click("Unload")                 # the button or link with this text
    tab.see("Nothing is lost.")         # waits until the page shows it, as updates come by themselves
    tab.problems()                      # errors of scripts, of the content security policy, and of requests
"""
import shutil
import tempfile
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from ..harness import GRACE_SECONDS, HANG_SECONDS, eventually

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SECONDS = HANG_SECONDS
# An update of the page took the element away, moved another one over it, or has not shown it yet.
CHANGING = StaleElementReferenceException, ElementClickInterceptedException, ElementNotInteractableException
PAUSE = 0.05       # seconds between two looks at a page: each costs the browser and its driver some milliseconds
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
            "--window-size=1280,900",
            # Names that the browser does not trust as it does loopback addresses.
            "--host-resolver-rules=MAP *.example 127.0.0.1")
# One question to the browser: asking each element for its text takes seconds on a page with many links.
_NAMED = """
const words = text => text.split(/\\s+/).join(' ').trim();
const scope = document.querySelector('dialog[open]') ?? document.body;
const all = [...scope.querySelectorAll('button, a, summary')];
return all.filter(one => words(one.innerText ?? one.textContent) === words(arguments[0]));
"""
needs_browser = pytest.mark.skipif(CHROMIUM is None or DRIVER is None,
                                   reason="no browser (Debian: chromium and chromium-driver)")


class Browser:
    """A browser with one tab and a profile of its own."""

    def __init__(self) -> None:
        assert CHROMIUM is not None and DRIVER is not None, "needs_browser skips the test"
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        options = Options()
        options.binary_location = CHROMIUM
        for option in (*_OPTIONS, f"--user-data-dir={self._profile}"):
            options.add_argument(option)
        options.accept_insecure_certs = True
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        # The driver is waited for longer than it waits for a page, whose error then names the page.
        self.driver.command_executor.client_config.timeout = HANG_SECONDS + GRACE_SECONDS
        self.driver.set_page_load_timeout(HANG_SECONDS)
        self.driver.set_script_timeout(HANG_SECONDS)

    def __repr__(self) -> str:
        return f"<Browser {self.driver.current_url}>"

    def close(self) -> None:
        self.driver.quit()
        shutil.rmtree(self._profile, ignore_errors=True)

    # -- going and looking

    def open(self, url: str) -> "Browser":
        self.driver.get(url)
        return self

    @property
    def url(self) -> str:
        return self.driver.current_url

    @property
    def text(self) -> str:
        """The text of the page, or of the dialog that is open over it."""
        return self.run("return (document.querySelector('dialog[open]') ?? document.body).innerText") or ""

    def run(self, script: str, *values: Any) -> Any:
        """Run a script in the page, and return its value."""
        return self.driver.execute_script(script, *values)

    def see(self, text: str, seconds: float = SECONDS) -> str:
        """Wait until the page, or its dialog, shows a text; return everything that it shows."""
        def shown() -> str:
            return found if text in (found := self.text) else ""

        return eventually(shown, seconds, f"{text!r} in {self.text[:3000]!r}", PAUSE)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Wait for an element."""
        return eventually(lambda: self.all(selector), SECONDS, selector, PAUSE)[0]

    # -- acting

    def click(self, text: str) -> None:
        """Click the visible button or link with this text, in the dialog if one is open."""
        def clicked() -> bool:
            for one in self.run(_NAMED, text):
                try:
                    if one.is_displayed() and one.is_enabled():
                        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", one)
                        one.click()
                        return True
                except CHANGING:
                    return False
            return False
        eventually(clicked, SECONDS, f"a button or link {text!r} in {self.text[:2000]!r}", PAUSE)

    def fill(self, selector: str, text: str) -> None:
        """Type a text into a field, instead of what it has."""
        def filled() -> bool:
            field = self.one(selector)
            try:
                field.clear()
                field.send_keys(text)
            except CHANGING:
                return False
            return True
        eventually(filled, SECONDS, f"a field {selector} to type into", PAUSE)

    def choose(self, selector: str, text: str) -> None:
        from selenium.webdriver.support.select import Select
        Select(self.one(selector)).select_by_visible_text(text)

    def press(self, *keys: str) -> None:
        """Press keys, where the focus is: texts, or names of Selenium's Keys."""
        self.driver.switch_to.active_element.send_keys(*(getattr(Keys, key, key) for key in keys))

    # -- what went wrong

    def problems(self) -> list[str]:
        """Return errors that the browser has told since the last call: of scripts, policies and requests."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
