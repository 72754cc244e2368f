"""The overview of an operator: alarms and what to do, and what is new since the last look, in a real browser."""
import time

import pytest

from ..harness import eventually, request, unique_topic
from .browser import needs_browser

pytestmark = [pytest.mark.slow, needs_browser]


def news(broker, query):
    status, text = request("GET", f"{broker.http_url}/console/news?{query}")
    assert status == 200, text
    return text


def now_ms():
    return time.time_ns() // 1_000_000


def test_the_first_look_has_no_news_and_the_next_says_what_was_done(browser, own, client):
    browser.open(own.http_url + "/console/documents")
    browser.run("localStorage.clear()")
    browser.open(own.http_url + "/")
    browser.see("ready")
    assert not browser.one("[data-news]").is_displayed()
    browser.open(own.http_url + "/console/documents")      # the look ends
    topics = [unique_topic() for _ in range(2)]
    for topic in topics:
        assert request("PUT", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}", b"")[0] == 204
        client.create_producer(topic).close()
    browser.open(own.http_url + "/")
    browser.see("2 changes by administration")
    assert "2 more topics" in browser.text and "Since you last looked" in browser.text
    browser.open(own.http_url + "/")
    browser.see("Nothing has changed.")


def test_changes_are_counted_with_their_roles_and_lead_to_the_audit_log(browser, own):
    since = now_ms() - 1
    for _ in range(2):
        assert request("PUT", f"{own.http_url}/admin/v2/{unique_topic().replace('://', '/')}", b"")[0] == 204
    text = news(own, f"since={since}")
    assert "2 changes by administration" in text and "somebody" in text
    assert f'href="/console/audit?since={since}"' in text
    browser.open(f"{own.http_url}/console/audit?since={since}")
    assert len(browser.all("tbody tr")) == 2
    assert "Nothing has changed." in news(own, f"since={now_ms() + 5_000}")


def test_a_process_that_was_started_again_is_news(own):
    since = now_ms()
    eventually(lambda: now_ms() > since + 3_000)
    own.wait_replaced("worker", 0, own.kill("worker", 0))

    def told():
        return "A process was started again: worker-0" in news(own, f"since={since}")
    eventually(told)
    assert "The broker was started" not in news(own, f"since={since}")
    assert "The broker was started" in news(own, "since=1")


@pytest.mark.parametrize("query", ["", "since=x", "since=-1", "since=1&topics=x", f"since={1 << 60}"])
def test_news_of_another_form_are_refused(own, query):
    assert request("GET", f"{own.http_url}/console/news?{query}")[0] == 400


def test_an_alarm_has_its_page_and_is_acknowledged(browser, start_broker):
    broker = start_broker()
    ledgers = [path for path in broker.data_dir.iterdir() if path.name == "format"]
    ledgers[0].unlink()      # a file that the broker never replaces: damage
    browser.open(broker.http_url + "/")
    browser.see("damage was found")
    browser.click("What to do")
    eventually(lambda: browser.url.endswith("/console/documents/runbook/damage.md"))
    browser.open(broker.http_url + "/")
    browser.click("I have seen to it")
    browser.see("The alarm ends, until its cause comes again.")
    browser.click("Acknowledge")
    browser.see("No alarm is raised.")
    assert "Alarm damage" not in news(broker, "since=1")
    browser.open("about:blank")      # the broker ends before the browser


def test_the_watermark_of_the_disk_is_shown(browser, own):
    browser.open(own.http_url + "/")
    browser.see("Publishing is refused below")
    assert len(browser.all(".meter .mark")) >= 2
