"""The overview in a real browser: what it shows, and that it changes by itself."""
import itertools

import pytest

from ..harness import eventually, unique_topic
from .browser import needs_browser

pytestmark = [pytest.mark.slow, needs_browser]


def test_the_overview_shows_what_comes_in_without_a_reload(browser, own, client):
    browser.open(own.http_url + "/")
    browser.see("ready")
    browser.run("window.stayed = true")
    topic = unique_topic()
    client.subscribe(topic, "idle").close()
    producer = client.create_producer(topic)
    for _ in range(10):
        producer.send(b"message")
    browser.see("idle")
    assert "No consumer is connected." in browser.text
    assert browser.run("return window.stayed")      # it is the same page


def test_curves_move_once_a_second(browser, own):
    browser.open(own.http_url + "/")
    before = browser.run("return document.querySelector('polyline').getAttribute('points').split(' ').length")
    browser.run("""window.samples = 0;
                   document.addEventListener('geminga-sample', () => window.samples += 1)""")
    browser.one("polyline")
    eventually(lambda: browser.run("return window.samples") >= 3)
    after = browser.run("return document.querySelector('polyline').getAttribute('points').split(' ').length")
    assert after > before


def test_rates_add_up_to_what_was_published(browser, own, client):
    """The page's samples are about a second apart, and all together they have each message of a known load once."""
    browser.open(own.http_url + "/")
    browser.run("""window.taken = [];
                   document.addEventListener('geminga-sample', ({ detail }) => window.taken.push(detail))""")
    eventually(lambda: browser.run("return window.taken.length") >= 2)
    producer = client.create_producer(unique_topic(), batching_enabled=False)
    for _ in range(300):
        producer.send(b"message")

    def counted() -> float:
        taken = browser.run("return window.taken")
        return sum(later["messages_in"] * (later["at"] - earlier["at"]) / 1_000
                   for earlier, later in itertools.pairwise(taken))

    eventually(lambda: counted() > 299)
    assert counted() == pytest.approx(300, abs=1)
    steps = [later["at"] - earlier["at"] for earlier, later in itertools.pairwise(browser.run("return window.taken"))]
    assert min(steps) > 400
