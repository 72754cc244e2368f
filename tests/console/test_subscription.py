"""The page of a subscription in a real browser, with real consumers: what it shows, and every action."""
import time
from urllib.parse import quote

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from ..harness import HANG_MS, eventually, partitioned_topic, request, unique_topic
from .browser import needs_browser

pytestmark = [pytest.mark.slow, needs_browser]
Shared, KeyShared = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared


class Order(Record):
    number = Integer(required=True)
    name = String(required=True)


def publish(client, topic, payloads, **options):
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(payload, **options) for payload in payloads]
    producer.close()
    return [f"{one.ledger_id()}:{one.entry_id()}" for one in ids]


def address(own, topic, name, query=""):
    return f"{own.http_url}/console/topics/{topic.replace('://', '/')}/subscriptions/{quote(name, safe='')}{query}"


def backlog(own, topic, name):
    status, text = request("POST", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/subscription/{name}/"
                                   "analyzeBacklog")
    assert status == 200, text
    return int(text.partition('"messages": ')[2].partition(",")[0])


def is_there(own, topic, name):
    return name in request("GET", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/subscriptions")[1]


def states(browser):
    """Return {state: entries} of the drawing's legend."""
    return browser.run("""return Object.fromEntries([...document.querySelectorAll('.legend li')].map((one) =>
        [one.querySelector('rect').getAttribute('class'), +one.querySelector('.figure').innerText.replace(/,/g, '')]))
    """)


# -- what it shows

def test_the_reason_the_cursor_and_the_consumers_change_by_themselves(browser, own, client):
    topic = unique_topic()
    client.subscribe(topic, "work", consumer_type=Shared).close()
    publish(client, topic, [b"m"] * 10)
    publish(client, topic, [b"later"] * 3, deliver_at=4_000_000_000_000)
    browser.open(address(own, topic, "work"))
    browser.see("13 messages are not acknowledged")
    browser.see("No consumer is connected.")
    assert states(browser) == {"acknowledged": 0, "out": 0, "again": 0, "parked": 0, "delayed": 3, "waiting": 10}
    browser.run("window.stayed = true")
    consumer = client.subscribe(topic, "work", consumer_type=Shared, consumer_name="first", receiver_queue_size=5)
    for _ in range(4):
        consumer.acknowledge(consumer.receive(HANG_MS))
    eventually(lambda: states(browser)["acknowledged"] == 4 and states(browser)["out"] > 0)
    assert "first" in browser.see("Pulsar-CPP")
    assert browser.run("return window.stayed")
    widths = browser.run("""return [...document.querySelectorAll('.cursor-map rect')].map((one) =>
        [one.getAttribute('class'), +one.getAttribute('width')])""")
    assert widths[0][0] == "acknowledged" and sum(width for _, width in widths) == pytest.approx(1200, abs=1)
    consumer.close()


def test_keys_that_wait_at_a_consumer_are_listed(browser, own, client):
    topic = unique_topic()
    first = client.subscribe(topic, "keys", consumer_type=KeyShared, consumer_name="former")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(40):
        producer.send(b"held", partition_key=f"key-{number}")
    held = [first.receive(HANG_MS) for _ in range(40)]
    browser.open(address(own, topic, "keys"))
    assert "Keys that wait" not in browser.see("former")
    second = client.subscribe(topic, "keys", consumer_type=KeyShared, consumer_name="latter")
    for number in range(40):
        producer.send(b"waits", partition_key=f"key-{number}")
    shown = browser.see("Keys that wait")
    assert "latter" in shown
    rows = browser.run("""return [...document.querySelectorAll('[data-live=live_draining] tbody tr')].map((row) =>
        [...row.cells].map((cell) => cell.innerText))""")
    assert rows and all(row[0].startswith("key-") and row[1:4] == ["former", "latter", "1"] for row in rows)
    for message in held:
        first.acknowledge(message)
    eventually(lambda: "Keys that wait" not in browser.text)
    for one in (first, second, producer):
        one.close()


def test_hostile_names_keys_and_payloads_are_text(browser, own, client):
    script = "<script>document.title = 'broken'</script>"
    topic, name = f"{unique_topic()}<img src=x onerror=alert(1)>", "sub<b>\u202eevil"
    client.subscribe(topic, name).close()
    publish(client, topic, [script.encode()], partition_key=f"\u202e{script}", properties={script: "\u200b</pre>"})
    publish(client, topic, [bytes(range(256)) * 4, b"", "ü\x07\u2028".encode()])
    publish(client, topic, [("<&" * 2_500_000).encode()])
    browser.open(address(own, topic, name))
    shown = browser.see("The whole payload")
    assert "sub<b>\\u202eevil" in shown and "\\u202e<script>" in shown and "\\u200b</pre>" in shown
    assert browser.all("article script, article img, article b") == []
    assert browser.one("article pre").text == script
    assert "00000010  10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f  ................" in shown
    assert "The payload is empty." in shown and "00000000  c3 bc 07 e2 80 a8" in shown      # it cannot be printed
    assert "<&" * 2_048 in shown and len(shown) < 20_000 and "4.8 MiB" in shown
    assert "broken" not in browser.driver.title
    files = browser.run("return [...document.querySelectorAll('article a[download]')].map((one) => one.href)")
    assert request("GET", files[-1])[1] == "<&" * 2_500_000


def test_messages_come_by_page_decoded_and_unpacked(browser, own, client):
    topic = unique_topic()
    consumer = client.subscribe(topic, "pages", schema=AvroSchema(Order), consumer_type=Shared,
                                batch_index_ack_enabled=True)
    producer = client.create_producer(topic, schema=AvroSchema(Order), batching_enabled=True,
                                      batching_max_messages=15, batching_max_publish_delay_ms=60_000)
    for number in range(50):
        producer.send_async(Order(number=number, name=f"order {number}"), lambda *_: None)
    producer.flush()
    consumer.acknowledge(consumer.receive(HANG_MS))
    consumer.close()
    eventually(lambda: backlog(own, topic, "pages") == 49)
    browser.open(address(own, topic, "pages"))
    shown = browser.see('"name": "order 1"')
    assert len(browser.all("article")) == 20 and "order 0\"" not in shown
    assert "of a batch of 15" in shown and "schema 0" in shown
    browser.click("Next messages")
    browser.see('"name": "order 21"')
    assert len(browser.all("article")) == 20
    browser.click("Next messages")
    browser.see('"name": "order 49"')
    assert len(browser.all("article")) == 9 and "Next messages" not in browser.text
    browser.fill("input[name=number]", "3")
    browser.click("Show")
    assert '"name": "order 29"' not in browser.see('"name": "order 30"')
    producer.close()


def test_a_partitioned_topic_shows_each_partition(browser, own, client):
    topic = partitioned_topic(own.http_url, 3)
    client.subscribe(topic, "parts", consumer_type=Shared).close()
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
                                      batching_enabled=False)
    for number in range(9):
        producer.send(b"%d" % number)
    producer.close()
    browser.open(address(own, topic, "parts"))
    browser.see("9 messages are not acknowledged")
    assert len(browser.all(".cursor-map")) == 3 and len(browser.all("article")) == 3
    seen = browser.run("return document.querySelector('article pre').innerText")
    browser.choose("select[name=partition]", "2")
    browser.click("Show")
    eventually(lambda: browser.run("return document.querySelector('article pre')?.innerText") not in (seen, None))
    assert len(browser.all("article")) == 3


def test_a_subscription_of_a_live_topic_has_no_ledgers_and_no_messages(browser, own, client):
    topic = unique_topic().replace("persistent", "non-persistent")
    consumer = client.subscribe(topic, "live", consumer_name="listener")
    browser.open(address(own, topic, "live"))
    browser.see("listener")
    assert browser.all(".cursor-map") == [] and "Messages not acknowledged" not in browser.text
    consumer.close()


def test_a_subscription_that_is_not_there_is_told(browser, own, client):
    topic = unique_topic()
    client.subscribe(topic, "there").close()
    browser.open(address(own, topic, "nobody"))
    browser.see("There is nothing here")
    assert any("404" in problem for problem in browser.problems())


# -- what it does

def subscribed(own, client, count=10, name="work"):
    """Return a topic with a subscription and messages, one second older than the rest of the test."""
    topic = unique_topic()
    client.subscribe(topic, name, consumer_type=Shared).close()
    return topic, publish(client, topic, [b"message %d" % number for number in range(count)])


def act(browser, own, topic, opens, name="work"):
    browser.open(address(own, topic, name))
    browser.click(opens)
    eventually(lambda: browser.all("dialog[open] [data-effect]"))


def test_messages_are_skipped(browser, own, client):
    topic, _ = subscribed(own, client)
    act(browser, own, topic, "Skip")
    browser.see("One message is acknowledged")
    browser.fill("#field-entries", "4")
    browser.see("4 messages are acknowledged, and no consumer gets them.")
    browser.click("Skip them")
    browser.see("6 messages are not acknowledged")
    assert backlog(own, topic, "work") == 6 and '"message 4"' not in browser.text
    act(browser, own, topic, "Skip")
    browser.fill("#field-entries", "none")
    browser.see("a whole number above 0")
    assert not browser.one("[data-confirm]").is_enabled()


def test_the_backlog_is_cleared(browser, own, client):
    topic, _ = subscribed(own, client)
    act(browser, own, topic, "Clear")
    browser.see("All 10 messages of the backlog")
    browser.click("Clear it")
    browser.see("everything is acknowledged.")
    assert backlog(own, topic, "work") == 0


def test_a_cleared_backlog_is_shown_and_taken_back(browser, own, client):
    topic, _ = subscribed(own, client)
    policy = f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/deletedRetention"
    assert request("POST", policy, b"3600")[0] == 204
    act(browser, own, topic, "Clear")
    browser.click("Clear it")
    browser.see("A backlog of 10 messages")
    act(browser, own, topic, "Take it back")
    browser.see("Up to 10 messages are unacknowledged again")
    browser.one("[data-confirm]").click()
    browser.see("10 messages are not acknowledged")
    assert backlog(own, topic, "work") == 10


def test_a_subscription_is_reset_to_a_message_and_to_a_time(browser, own, client):
    topic, ids = subscribed(own, client)
    act(browser, own, topic, "Reset to a message")
    browser.see("10 messages will be delivered from there on; 10 are unacknowledged now.")
    browser.fill("#field-message", ids[7])
    browser.see("3 messages will be delivered from there on; 10 are unacknowledged now.")
    browser.click("Reset")
    browser.see("3 messages are not acknowledged")
    assert backlog(own, topic, "work") == 3
    act(browser, own, topic, "Reset to a message")
    browser.fill("#field-message", "7")
    browser.see("A message is earliest, latest, or LEDGER:ENTRY")
    act(browser, own, topic, "Reset to a message")
    browser.fill("#field-message", "latest")
    browser.see("0 messages will be delivered from there on; 3 are unacknowledged now.")
    browser.click("Reset")
    browser.see("everything is acknowledged.")
    act(browser, own, topic, "Reset to a time")
    browser.see("10 messages will be delivered from there on; 0 are unacknowledged now.")
    browser.click("Reset")
    browser.see("10 messages are not acknowledged")
    assert backlog(own, topic, "work") == 10


def test_old_messages_expire(browser, own, client):
    topic, _ = subscribed(own, client)
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 2)      # so old are the messages
    act(browser, own, topic, "Expire")
    browser.see("About 0 messages expire")
    browser.fill("#field-age", "1s")
    browser.see("About 10 messages expire")
    browser.click("Expire them")
    browser.see("everything is acknowledged.")


def test_parked_messages_are_released(browser, own, client):
    topic = unique_topic()
    publishers = client.create_producer(topic, batching_enabled=False)
    other = pulsar.Client(own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = other.subscribe(topic, "work", consumer_type=Shared, properties={"geminga.quarantine.deaths": "1"})
    publishers.send(b"poison")
    consumer.receive(HANG_MS)
    other.shutdown()      # the consumer dies with the message
    browser.open(address(own, topic, "work"))
    browser.see("in quarantine")
    eventually(lambda: states(browser)["parked"] == 1)
    browser.click("Release the quarantine")
    browser.see("One message is delivered again")
    browser.click("Deliver again")
    eventually(lambda: states(browser).get("parked") == 0)
    again = client.subscribe(topic, "work", consumer_type=Shared)
    assert again.receive(HANG_MS).data() == b"poison"
    again.close()
    publishers.close()


def test_a_subscription_is_deleted_even_with_consumers_if_that_is_said(browser, own, client):
    topic, _ = subscribed(own, client)
    consumer = client.subscribe(topic, "work", consumer_type=Shared)
    act(browser, own, topic, "Unsubscribe")
    browser.see("It has a consumer.")
    assert not browser.one("[data-confirm]").is_enabled()
    browser.one("#field-force").click()
    browser.see("One consumer is closed.")
    browser.click("Delete it")
    eventually(lambda: "/subscriptions/" not in browser.url)
    # Its client subscribes again, by which a new subscription begins behind all messages.
    eventually(lambda: is_there(own, topic, "work") and backlog(own, topic, "work") == 0)
    consumer.close()
    act(browser, own, topic, "Unsubscribe")
    browser.see("The subscription and its position are deleted; 0 messages")
    browser.click("Delete it")
    eventually(lambda: not is_there(own, topic, "work"))


@pytest.mark.parametrize("start, messages", [("latest", 0), ("earliest", 10)])
def test_a_subscription_is_created_from_the_topics_page(browser, own, client, start, messages):
    topic, _ = subscribed(own, client)
    browser.open(f"{own.http_url}/console/topics/{topic.replace('://', '/')}")
    browser.click("Create a subscription")
    browser.fill("#field-subscription", "work")
    browser.see("There is a subscription of this name.")
    browser.fill("#field-subscription", "new one")
    browser.choose("#field-start", start)
    browser.see("until the subscription acknowledges it")
    browser.click("Create it")
    eventually(lambda: browser.url.endswith("/subscriptions/new%20one"))
    browser.see("everything is acknowledged." if not messages else f"{messages} messages are not acknowledged")


def test_dead_letters_go_back(browser, own, client):
    topic, _ = subscribed(own, client, 0)
    dead = f"{topic}-work-DLQ"
    publish(client, dead, [b"letter"] * 2, properties={"REAL_TOPIC": topic})
    browser.open(address(own, topic, "work"))
    browser.see("Dead letters:")
    browser.click("Send them back")
    browser.see(f"2 letters go to {topic}. Only the subscriptions that lost them get them.")
    assert "geminga redrive" in browser.one("dialog[open] code").get_attribute("textContent")
    browser.click("Send them")
    eventually(lambda: backlog(own, topic, "work") == 2)


def test_commands_and_requests_that_do_the_same_are_shown(browser, own, client):
    topic, _ = subscribed(own, client)
    act(browser, own, topic, "Skip")
    browser.click("Same by command")
    shown = browser.see("geminga admin topics skip")
    assert "-s work -n 1" in shown and "/subscription/work/skip/1" in shown
    browser.open(address(own, topic, "work"))
    browser.click("Same by command")
    assert "GET /ops/v1/why/" in browser.see("geminga why")
