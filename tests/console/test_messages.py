"""Messages in a real browser: search, live tail, publishing."""
import json
import urllib.error
import urllib.request
from urllib.parse import quote

import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from geminga.supervisor.console.routes.tail import TAILS_MAX

from ..harness import HANG_MS, HANG_SECONDS, eventually, partitioned_topic, request, unique_topic
from .browser import needs_browser
from .test_accessible import broken_rules
from .test_subscription import publish

pytestmark = [pytest.mark.slow, needs_browser]
SECONDS = HANG_SECONDS


class Order(Record):
    number = Integer(required=True)
    name = String(required=True)


def opened(browser, own, place):
    browser.open(f"{own.http_url}/console/messages?place={place}")
    browser.one("form.place")


def search(browser, **fields):
    for name, value in fields.items():
        browser.fill(f"form[data-search] [name={name}]", value)
    browser.click("Search")


def follow(browser, **fields):
    for name, value in fields.items():
        browser.fill(f"form[data-tail] [name={name}]", value)
    browser.click("Follow")
    browser.see("Following since")


def found(browser, place="[data-found]"):
    return browser.run(f"return [...document.querySelectorAll('{place} article pre')].map((one) => one.innerText)")


def test_stored_messages_are_found_by_text_key_property_and_time(browser, own, client):
    topic = unique_topic()
    publish(client, topic, [b"apple pie", b"pear"], partition_key="fruit-1", properties={"kind": "sweet"})
    publish(client, topic, [b"apple juice"], partition_key="drink", properties={"kind": "liquid"})
    opened(browser, own, topic.removeprefix("persistent://"))
    search(browser, grep="apple")
    browser.see("Everything was searched: 2 found.", SECONDS)
    assert found(browser) == ["apple juice", "apple pie"]      # the newest first
    browser.choose("form[data-search] [name=order]", "the oldest")
    search(browser)
    eventually(lambda: found(browser) == ["apple pie", "apple juice"], SECONDS)
    search(browser, key="fruit-*")
    browser.see("Everything was searched: 1 found.", SECONDS)
    search(browser, grep="", property="kind=sweet", since="-1h")
    browser.see("Everything was searched: 2 found.", SECONDS)
    assert found(browser) == ["apple pie", "pear"]
    search(browser, until="2020-01-01")
    browser.see("Everything was searched: no message matches.", SECONDS)
    search(browser, until="", grep="(")
    browser.see("not a regular expression", SECONDS)
    assert any("400" in problem for problem in browser.problems())


def test_opening_a_topic_shows_its_newest_messages(browser, own, client):
    """Nobody has to search for what came last; a topic without messages says that it has none."""
    topic = unique_topic()
    publish(client, topic, [f"number {number}".encode() for number in range(25)])
    opened(browser, own, topic.removeprefix("persistent://"))
    browser.see("The first 20 are shown; there are more.", SECONDS)
    assert found(browser) == [f"number {number}" for number in range(24, 4, -1)]
    empty = unique_topic()
    client.subscribe(empty, "kept").close()
    opened(browser, own, empty.removeprefix("persistent://"))
    browser.see("No message is stored.", SECONDS)


def test_an_address_says_what_is_searched(browser, own, client):
    """Conditions in a page's address are in its fields and are searched for; a search is in the address."""
    topic = unique_topic()
    publish(client, topic, [b"apple"], partition_key="fruit-1")
    publish(client, topic, [b"water"], partition_key="drink")
    opened(browser, own, topic.removeprefix("persistent://") + "&key=fruit-*&order=oldest")
    browser.see("Everything was searched: 1 found.", SECONDS)
    assert found(browser) == ["apple"]
    assert browser.one("[data-search] [name=key]").get_attribute("value") == "fruit-*"
    search(browser, key="drink")
    eventually(lambda: found(browser) == ["water"], SECONDS)
    assert "key=drink" in browser.url and "order=oldest" in browser.url
    browser.open(browser.url)
    eventually(lambda: found(browser) == ["water"], SECONDS)


def test_a_namespace_is_searched_and_its_topics_are_named(browser, own, client):
    word = unique_topic().rpartition("-")[2]
    topics = sorted(unique_topic() for _ in range(2))
    for topic in topics:
        publish(client, topic, [f"about {word}".encode()])
    opened(browser, own, "public/default")
    assert browser.all("form[data-tail]") == []
    search(browser, grep=word)
    shown = browser.see("Everything was searched: 2 found.", SECONDS)
    assert all(topic.removeprefix("persistent://") in shown for topic in topics)


def test_what_is_found_is_text_whatever_it_is(browser, own, client):
    topic = unique_topic()
    script = "<img src=x onerror='document.title=1'>"
    publish(client, topic, [script.encode()], partition_key=f"\u202e{script}", properties={script: "</pre>\u200b"})
    publish(client, topic, [bytes(range(256)) * 10, ("<&" * 2_500_000).encode(), b""])
    opened(browser, own, topic.removeprefix("persistent://") + "&order=oldest")
    search(browser)
    browser.see("Everything was searched: 4 found.", SECONDS)
    shown = browser.text
    assert browser.all("article img, article script") == [] and found(browser)[0] == script
    assert f"\\u202e{script}" in shown and "</pre>\\u200b" in shown and "The payload is empty." in shown
    assert "00000010  10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f  ................" in shown
    assert "4.8 MiB" in shown and len(shown) < 20_000
    files = browser.run("return [...document.querySelectorAll('article a[download]')].map((one) => one.href)")
    assert len(files) == 2 and request("GET", files[1])[1] == "<&" * 2_500_000


def test_a_limit_ends_a_search_and_so_does_somebody(browser, own, client):
    topic = unique_topic()
    publish(client, topic, [b"m"] * 25)
    opened(browser, own, topic.removeprefix("persistent://"))
    browser.choose("form[data-search] [name=limit]", "20")
    search(browser)
    browser.see("The first 20 are shown; there are more.", SECONDS)
    assert len(found(browser)) == 20
    search(browser)
    browser.run("document.querySelector('form[data-search] [data-stop]').click()")
    browser.see("Stopped:")


def test_a_tail_shows_what_comes_until_it_is_stopped(browser, own, client):
    topic = unique_topic()
    publish(client, topic, [b"before %d" % number for number in range(12)])
    opened(browser, own, topic.removeprefix("persistent://"))
    follow(browser)
    eventually(lambda: found(browser, "[data-came]") == [f"before {number}" for number in range(11, 1, -1)])
    publish(client, topic, [b"after"], partition_key="k")
    eventually(lambda: found(browser, "[data-came]")[0] == "after")
    assert len(browser.all("[data-came] article")) == 11
    browser.run("document.querySelector('form[data-tail] [data-stop]').click()")
    browser.see("Stopped.")
    publish(client, topic, [b"unseen"])
    status, _ = request("GET", f"{own.http_url}/ops/v1/messages/{topic.replace('://', '/')}?grep=unseen")
    assert status == 200 and found(browser, "[data-came]")[0] == "after"


def test_a_tail_of_a_busy_topic_shows_some_and_counts_the_others(browser, own, client):
    topic = unique_topic()
    publish(client, topic, [b"first"])
    opened(browser, own, topic.removeprefix("persistent://"))
    browser.choose("form[data-tail] [name=rate]", "1")
    follow(browser)
    eventually(lambda: found(browser, "[data-came]") == ["first"])
    publish(client, topic, [b"%d" % number for number in range(300)])

    def counts():
        return browser.run(r"""return document.querySelector('form[data-tail] [data-state]').value
            .match(/: ([\d,]+) shown, ([\d,]+) more/).slice(1).map((text) => +text.replace(/,/g, ''))""")

    eventually(lambda: sum(counts()) == 301)
    assert counts()[1] > 250 and found(browser, "[data-came]")[0] == "299"


def test_a_tail_shows_only_what_its_filter_lets_pass(browser, own, client):
    topic = partitioned_topic(own.http_url, 2)
    opened(browser, own, topic.removeprefix("persistent://"))
    follow(browser, grep="error", property="host=a")
    for host in "ab":
        publish(client, topic, [b"error 1", b"fine"], properties={"host": host})
    eventually(lambda: found(browser, "[data-came]") == ["error 1"])


def test_tails_are_bounded_and_end_with_their_browsers(browser, own, client):
    assert browser.url == "about:blank"      # it has left the page of an earlier test, and so its tail
    topic = unique_topic()
    publish(client, topic, [b"message"])
    address = f"{own.http_url}/console/tail?topic={quote(topic, safe='')}"

    def opened_tail():
        """Return a tail that has begun, None if there are too many."""
        try:
            made = urllib.request.urlopen(address, timeout=HANG_SECONDS)
        except urllib.error.HTTPError as refused:
            assert refused.code == 503
            return None
        assert made.readline() == b"event: rows\n"
        return made

    # Those of other tests end when the broker notices that the browser has left them.
    tails = [eventually(opened_tail) for _ in range(TAILS_MAX)]
    assert opened_tail() is None
    for tail in tails:
        tail.close()
    eventually(opened_tail).close()


def test_a_tail_of_nothing_is_told(browser, own):
    topic = unique_topic()
    browser.open(f"{own.http_url}/console/messages?place={topic.removeprefix('persistent://')}")
    browser.click("Follow")
    browser.see("That failed:")


def test_a_message_is_published_with_its_effect_said_before(browser, own, client):
    topic = unique_topic()
    consumer = client.subscribe(topic, "reads")
    opened(browser, own, topic.removeprefix("persistent://"))
    browser.click("Publish a message")
    browser.see("one subscription gets it")
    browser.fill("#field-payload", "<b>häll\u00f6</b>")
    browser.fill("#field-key", "k")
    browser.fill("#field-properties", "a=b\nempty=")
    browser.see("One message of 14 B is stored")
    browser.click("Same by command")
    assert "geminga produce" in browser.see("-k k")
    browser.click("Publish it")
    message = consumer.receive(HANG_MS)
    assert message.data().decode() == "<b>häll\u00f6</b>" and message.partition_key() == "k"
    assert message.properties() == {"a": "b", "empty": ""}
    consumer.close()


def test_a_message_is_published_later_and_wrong_ones_are_not(browser, own, client):
    topic = unique_topic()
    publish(client, topic, [b"there"])
    opened(browser, own, topic.removeprefix("persistent://"))
    browser.click("Publish a message")
    browser.see("it has no subscription")
    browser.fill("#field-properties", "nothing")
    browser.see("nothing: a property is name=value.")
    assert not browser.one("[data-confirm]").is_enabled()
    browser.fill("#field-properties", "a=b")
    browser.fill("#field-payload", "later")
    browser.fill("#field-delay", "10m")
    browser.see("They get it at")
    browser.click("Publish it")

    def last():
        _, text = request("GET", f"{own.http_url}/ops/v1/messages/{topic.replace('://', '/')}?order=latest&limit=1")
        return json.loads(text)["rows"][0]

    eventually(lambda: last()["payload"] == "later")
    assert last()["deliverAt"] > last()["publishTime"]


def test_a_value_is_encoded_by_the_topics_schema(browser, own, client):
    topic = unique_topic()
    consumer = client.subscribe(topic, "reads", schema=AvroSchema(Order))
    opened(browser, own, topic.removeprefix("persistent://"))
    browser.click("Publish a message")
    browser.choose("#field-form", "value")
    browser.fill("#field-payload", '{"number": "one", "name": "x"}')
    browser.see("is not a whole number")
    assert not browser.one("[data-confirm]").is_enabled()
    browser.fill("#field-payload", '{"number": 1, "name": "x"}')
    browser.see("One message of 3 B is stored")
    browser.click("Publish it")
    assert consumer.receive(HANG_MS).value().number == 1
    consumer.close()


def test_a_place_that_is_no_topic_shows_a_search_only(browser, own):
    browser.open(f"{own.http_url}/console/messages")
    browser.see("Topic or namespace")
    assert browser.all("form[data-search]") == []
    opened(browser, own, "public/nowhere")
    search(browser)
    browser.see("Namespace does not exist", SECONDS)
    assert any("404" in problem for problem in browser.problems())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_found_breaks_no_rule_and_fits_a_narrow_screen(browser, own, client, scheme):
    topic = unique_topic("a-long-name-of-a-topic-" * 3)
    publish(client, topic, [b"found " * 200], partition_key="k" * 300, properties={"n" * 200: "v" * 200},
            deliver_at=4_000_000_000_000, event_timestamp=1)
    publish(client, topic, [bytes(range(256)) * 3])
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                   {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                   {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": False})
    try:
        opened(browser, own, topic.removeprefix("persistent://"))
        search(browser)
        browser.see("Everything was searched: 2 found.", SECONDS)
        follow(browser)
        eventually(lambda: len(found(browser, "[data-came]")) == 2)
        assert broken_rules(browser) == []
        assert browser.run("return document.documentElement.scrollWidth") <= 360
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
