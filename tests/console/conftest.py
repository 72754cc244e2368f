"""Fixtures for tests of the console: a browser, which tests share, and a broker of a file's own."""
from collections.abc import Iterator

import pytest

from .browser import Browser


@pytest.fixture(scope="session")
def shared_browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(shared_browser: Browser) -> Iterator[Browser]:
    """The browser without cookies and storage; no script may fail in it, and no policy be broken."""
    shared_browser.open("about:blank")
    shared_browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    shared_browser.problems()
    yield shared_browser
    assert shared_browser.problems() == []
