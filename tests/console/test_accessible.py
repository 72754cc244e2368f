"""Pages for everybody: rules of axe-core (WCAG 2 A and AA) in light and dark, narrow screens, and the keyboard."""
from pathlib import Path

import axe_core_python
import pytest
from selenium.webdriver.common.keys import Keys

from ..harness import HANG_MS, eventually, request, unique_topic
from .browser import needs_browser
from .test_guards import PLAIN

pytestmark = [pytest.mark.slow, needs_browser]
AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
RULES_OF_COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}      # all that look at colours


@pytest.fixture(scope="module")
def subject(own, client):
    """A topic with a subscription and messages, and a scalable topic; the paths of their pages."""
    topic = unique_topic("accessible")
    consumer = client.subscribe(topic, "billing")
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(f"message {number}".encode(), partition_key="key", properties={"name": "value"})
    consumer.receive(HANG_MS)
    path = topic.replace("://", "/")
    scalable = path.partition("/")[2]
    for more in ("?numInitialSegments=2", "/subscriptions/billing"):
        assert request("PUT", f"{own.http_url}/admin/v2/scalable/{scalable}-wide{more}")[0] == 204
    assert request("POST", f"{own.http_url}/admin/v2/scalable/{scalable}-wide/split/0")[0] == 204
    yield {"topic": f"/console/topics/{path}", "subscription": f"/console/topics/{path}/subscriptions/billing",
           "scalable": f"/console/topics/topic/{scalable}-wide",
           "of all segments": f"/console/topics/topic/{scalable}-wide/subscriptions/billing"}
    consumer.close()
    producer.close()


def broken_rules(browser, rules=RULES) -> list[str]:
    if not browser.run("return 'axe' in window"):
        browser.driver.execute_script(AXE)
    told = browser.driver.execute_async_script(
        "const done = arguments[1]; axe.run({runOnly: arguments[0]}).then(done, error => done({error: String(error)}))",
        rules)
    assert "error" not in told, told
    return [f"{rule['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
            for rule in told["violations"] for node in rule["nodes"]]


def prefer(browser, scheme: str) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                   {"features": [{"name": "prefers-color-scheme", "value": scheme}]})


@pytest.fixture
def seen(browser):
    """The browser, which has its own colours and width again afterwards."""
    yield browser
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("path", [*PLAIN, "topic", "subscription", "scalable", "of all segments", "/console/sign-in",
                                  "/console/nothing"])
def test_a_page_breaks_no_rule_and_a_narrow_screen_scrolls_in_one_direction_only(seen, own, subject, path):
    """In light and in dark, where only colours differ.  Loading a page costs more than looking at it."""
    prefer(seen, "light")
    seen.open(own.http_url + subject.get(path, path))
    seen.one("h1")
    assert broken_rules(seen) == []
    prefer(seen, "dark")
    assert broken_rules(seen, RULES_OF_COLOURS) == []
    seen.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True})
    assert seen.run("return document.documentElement.scrollWidth") <= 360
    if path == "/console/nothing":
        seen.problems()      # its own 404


def test_the_look_at_colours_sees_dark_ones(seen, own):
    """A canary: a text that is too faint in dark alone is found there, without loading the page anew."""
    prefer(seen, "light")
    seen.open(own.http_url + "/")
    seen.one("h1")
    seen.run("""const sheet = new CSSStyleSheet();
        sheet.replaceSync('@media (prefers-color-scheme: dark) { h1 { color: #333 !important; } }');
        document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];""")
    assert broken_rules(seen) == []
    prefer(seen, "dark")
    assert [one.partition(":")[0] for one in broken_rules(seen, RULES_OF_COLOURS)] == ["color-contrast"]


def test_a_dialog_is_opened_left_and_confirmed_by_keys(browser, own, subject):
    browser.open(own.http_url + subject["topic"])
    browser.one("[data-action=unload]")
    browser.run("document.querySelector('[data-action=unload]').focus()")
    browser.press("ENTER")
    browser.see("Nothing is lost.")
    assert browser.run("return document.activeElement.closest('dialog') !== null")
    assert broken_rules(browser) == []
    browser.press("ESCAPE")
    eventually(lambda: not browser.all("dialog[open]"))
    assert browser.run("return document.activeElement.dataset.action") == "unload"      # the focus comes back


def test_the_first_tab_leads_past_the_navigation(browser, own):
    browser.open(own.http_url + "/")
    browser.one("body").send_keys(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    browser.press("ENTER")
    assert browser.run("return document.activeElement.id") == "content"


def test_the_choice_of_colours_is_kept(browser, own):
    browser.open(own.http_url + "/")
    browser.choose("[data-theme-choice]", "dark")
    dark = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.open(own.http_url + "/")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == dark
    browser.choose("[data-theme-choice]", "light")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != dark
    browser.run("localStorage.clear()")
