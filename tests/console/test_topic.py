"""The pages of a topic in a real browser, against a real broker with real clients: what they show, and each action."""
import datetime
import json
import re
import time
from urllib.parse import quote

import pulsar
import pytest

from ..harness import eventually, partitioned_topic, request, unique_topic
from .browser import needs_browser

pytestmark = [pytest.mark.slow, needs_browser]
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}


def path_of(topic):
    domain, _, rest = topic.partition("://")
    return "/".join(quote(part, safe="") for part in (domain, *rest.split("/", 2)))


def rest(own, method, path, body=None, expected=(200, 204)):
    status, text = request(method, f"{own.http_url}{path}", None if body is None else json.dumps(body).encode())
    assert status in expected, (status, text)
    return json.loads(text) if text else None


def open_topic(browser, own, topic, more=""):
    return browser.open(f"{own.http_url}/console/topics/{path_of(topic)}{more}")


def confirm(browser, button):
    """Confirm the dialog, and wait until it is done."""
    browser.click(button)
    eventually(lambda: not browser.all("dialog[open]"), what=browser.text)


@pytest.fixture
def topic(own):
    name = unique_topic("shown")
    rest(own, "PUT", f"/admin/v2/{path_of(name)}")
    return name


@pytest.fixture
def filled(topic, client):
    """A topic with ten messages that its subscription has not acknowledged; nobody is connected."""
    client.subscribe(topic, "billing").close()
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"message", partition_key=f"key-{number % 2}")
    producer.close()
    return topic


def test_clients_of_a_topic_are_shown_and_its_curves_are_kept(browser, own, client, topic):
    consumer = client.subscribe(topic, "billing", pulsar.ConsumerType.Shared, consumer_name="<i>eager",
                                receiver_queue_size=7)
    producer = client.create_producer(topic, producer_name="till-1")
    open_topic(browser, own, topic)
    browser.see("<i>eager")
    for _ in range(5):
        producer.send(b"message")
    shown = eventually(lambda: text if "till-1" in (text := browser.text) and re.search(r"billing\s+Shared\s+5", text)
                       else "")
    assert shown.count("Pulsar-CPP-v") == 2, "the library of both"
    row = next(row.text for row in browser.all("section[aria-labelledby=consumers] tbody tr") if "eager" in row.text)
    assert re.search(r"127\.0\.0\.1:\d+", row) and "5" in row, row
    points = "return document.querySelector('polyline').getAttribute('points').split(' ').length"
    eventually(lambda: browser.run(points) >= 3)
    browser.driver.refresh()
    eventually(lambda: browser.run(points) >= 3, what="the samples of before are there")
    consumer.close()
    producer.close()
    browser.see("No consumer is connected.")


def test_storage_is_shown_by_ledger(browser, own, filled):
    open_topic(browser, own, filled)
    browser.see("One ledger, 10 entries")
    assert "open, needed by one subscription" in browser.text
    browser.click("Same by command")
    browser.see("stats-internal")
    assert f"GET /admin/v2/{path_of(filled)}/internalStats" in browser.text


def test_who_deletes_a_topic_does_not_see_its_page_gone(browser, own):
    """The page's updates end before the answer to the deletion is read, which a slow network makes certain."""
    topic = unique_topic("deleted")
    rest(own, "PUT", f"/admin/v2/{path_of(topic)}")
    open_topic(browser, own, topic)
    browser.run("""const real = window.fetch;
        window.fetch = async (...asked) => {
          const answer = await real(...asked);
          if (asked[1]?.method === "DELETE") await new Promise((resolve) => setTimeout(resolve, 3000));
          return answer;
        };""")
    browser.click("Delete")
    browser.see("The topic is deleted, with its policies and schemas.")
    browser.click("Delete")
    eventually(lambda: browser.url.endswith("/console/topics"))      # and the browser has met no 404


def test_a_topic_with_an_odd_name_keeps_its_page_up_to_date(browser, own, client):
    topic = "persistent://public/default/100% & more+\"q\"‮#?"
    rest(own, "PUT", f"/admin/v2/{path_of(topic)}")
    open_topic(browser, own, topic)
    browser.see("There is no subscription")
    rest(own, "PUT", f"/admin/v2/{path_of(topic)}/subscription/{quote('<b>sub‮', safe='')}")
    browser.see("<b>sub\\u202e")
    browser.click("Unload")
    browser.see("Nothing is lost.")
    confirm(browser, "Unload")
    browser.see("<b>sub\\u202e")
    browser.click("Delete")
    browser.one("#field-force").click()
    browser.see("One subscription ends.")
    browser.click("Delete")
    eventually(lambda: browser.url.endswith("/console/topics"))
    rest(own, "GET", f"/admin/v2/{path_of(topic)}/stats", expected=(404,))


def test_partitions_are_shown_and_added(browser, own, client):
    topic = partitioned_topic(own.http_url, 3)
    consumer = client.subscribe(topic, "all", consumer_name="wide")
    open_topic(browser, own, topic)
    browser.see("3 of 3 are loaded.")
    [row] = browser.all("section[aria-labelledby=consumers] tbody tr")
    assert row.text.startswith("wide 3 partitions active all 127.0.0.1:"), row.text
    browser.click("Create missing partitions")
    browser.see("All 3 partitions are looked for")
    confirm(browser, "Create missing partitions")
    browser.click("Add partitions")
    browser.fill("#field-partitions", "2")
    browser.see("A whole number of 4 or more is needed.")
    browser.fill("#field-partitions", "5")
    browser.see("2 partitions are added, so that there are 5.")
    confirm(browser, "Add partitions")
    browser.see("of 5 are loaded.")
    assert rest(own, "GET", f"/admin/v2/{path_of(topic)}/partitions")["partitions"] == 5
    browser.one("section[aria-labelledby=partitions] tbody a").click()
    eventually(lambda: browser.url.endswith("-partition-0"))
    browser.see("partition")
    assert topic.rpartition("/")[2] in browser.one(".way").text
    consumer.close()


def test_messages_are_deleted_and_the_topic_terminated(browser, own, filled):
    open_topic(browser, own, filled)
    browser.see("One ledger, 10 entries")
    browser.click("Delete all messages")
    browser.see("Of these, 10 are in the backlog")
    confirm(browser, "Delete all messages")
    stats = f"/admin/v2/{path_of(filled)}/stats"
    eventually(lambda: rest(own, "GET", stats)["subscriptions"]["billing"]["msgBacklog"] == 0)
    browser.click("Trim")
    browser.see("Ledgers are deleted that no subscription needs")
    confirm(browser, "Trim")
    browser.click("Terminate")
    browser.see("Nobody can publish any more, for ever")
    confirm(browser, "Terminate")
    browser.see("terminated")
    assert rest(own, "GET", f"/admin/v2/{path_of(filled)}/internalStats")["state"] == "Terminated"


def test_a_topic_is_compacted(browser, own, filled):
    open_topic(browser, own, filled)
    browser.see("never run")
    browser.click("Compact")
    browser.see("a view with the newest message of each key is made")
    confirm(browser, "Compact")
    eventually(lambda: rest(own, "GET", f"/admin/v2/{path_of(filled)}/compaction")["status"] != "NOT_RUN")
    eventually(lambda: re.search(r"State\s+(running|done|failed)", browser.text))


def test_policies_show_their_origin_are_changed_and_removed(browser, own):
    name = unique_topic("ruled").rpartition("/")[2]
    rest(own, "PUT", f"/admin/v2/namespaces/public/{name}", {})
    rest(own, "PUT", f"/admin/v2/persistent/public/{name}/orders")
    rest(own, "POST", f"/admin/v2/namespaces/public/{name}/messageTTL", 600)
    open_topic(browser, own, f"persistent://public/{name}/orders")
    browser.see("messageTTL")
    assert re.search(r"600\s+namespace", browser.text)
    change = "[...document.querySelectorAll('.policies tr')].find((row) => row.innerText.startsWith(arguments[0])" \
        ").querySelectorAll('button')[arguments[1]].click()"
    browser.run(change, "messageTTL", 0)
    browser.see("Time for which unacknowledged messages are kept")
    assert browser.one("#field-value").get_attribute("value") == "600"
    browser.fill("#field-value", "many")
    browser.see("expected a whole number")
    browser.fill("#field-value", "60")
    browser.see("messageTTL of this topic becomes 60.")
    browser.click("Same by command")
    assert f"geminga admin topicPolicies set-message-ttl public/{name}/orders --ttl 60" in browser.text
    confirm(browser, "Set")
    eventually(lambda: re.search(r"60\s+topic", browser.text))
    browser.run(change, "messageTTL", 1)
    browser.see("Afterwards the value of the namespace is in force: 600.")
    confirm(browser, "Remove")
    eventually(lambda: re.search(r"600\s+namespace", browser.text))
    browser.run("document.querySelector('details.more').open = true")
    browser.run(change, "retention", 0)
    browser.fill("#field-retentionTimeInMinutes", "10")
    browser.fill("#field-retentionSizeInMB", "20")
    browser.see('retention of this topic becomes {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}')
    confirm(browser, "Set")
    assert rest(own, "GET", f"/admin/v2/persistent/public/{name}/orders/retention") == {
        "retentionTimeInMinutes": 10, "retentionSizeInMB": 20}


def test_schemas_are_uploaded_compared_and_deleted(browser, own, topic):
    open_topic(browser, own, topic)
    browser.see("There is no schema")
    browser.click("Upload a schema")
    browser.see("This type needs a definition.")
    browser.fill("#field-schema", json.dumps(AVRO))
    browser.see("The topic has 0 versions.")
    confirm(browser, "Upload a schema")
    browser.see("one version: AVRO")
    schemas = f"/admin/v2/schemas/{path_of(topic).partition('/')[2]}"
    wider = {"type": "AVRO", "schema": json.dumps(AVRO | {"fields": [*AVRO["fields"], NOTE]}), "properties": {}}
    rest(own, "POST", f"{schemas}/schema", wider)
    browser.driver.refresh()
    browser.see("2 versions: AVRO, Version 1")
    browser.click("See all, with their differences")
    browser.see("Changes to the version before")
    added = browser.run("return [...document.querySelectorAll('ins')].map((line) => line.innerText).join('\\n')")
    assert '"name": "note"' in added and '"name": "id"' not in added
    browser.choose("select[name=from]", "1")
    browser.choose("select[name=to]", "0")
    browser.click("Compare")
    browser.see("From version 1 to version 0")
    assert browser.run("return document.querySelector('#compared ~ pre del').innerText").startswith("-")
    browser.click("Delete the schema")
    browser.see("All 2 versions are deleted.")
    confirm(browser, "Delete the schema")
    browser.see("There is no schema")


@pytest.fixture
def delayed(topic, client):
    """A topic with three messages that are due in one, two and three hours."""
    client.subscribe(topic, "later", pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(topic)
    for hours in (1, 2, 3):
        producer.send(b"later", deliver_after=datetime.timedelta(hours=hours, minutes=1))
    producer.close()
    return topic


def test_delayed_messages_are_cancelled_and_rescheduled(browser, own, delayed):
    open_topic(browser, own, delayed)
    browser.see("3 entries wait for their time")
    assert len(browser.all(".histogram rect.bar")) == 3
    browser.click("See each, cancel and reschedule")
    browser.see("Reschedule")
    rows = [row.text.split()[0] for row in browser.all("main > .wide tbody tr")]
    assert len(rows) == 3
    browser.click("Reschedule")
    browser.fill("#field-at", "never")
    browser.see("is not a time")
    browser.fill("#field-at", "2033-01-31T12:00:00Z")
    browser.see("The message is delivered at 2033-01-31T12:00:00.000Z instead of")
    confirm(browser, "Reschedule")
    eventually(lambda: "2033-01-31T12:00:00Z" in browser.text)
    browser.click("Cancel it")
    browser.see("is not delivered to any subscription.")
    browser.click("Same by command")
    assert f"geminga admin delayed cancel {delayed.removeprefix('persistent://')} {rows[1]}" in browser.text
    confirm(browser, "Cancel it")
    browser.see("2 entries wait for their time")
    told = rest(own, "GET", f"/ops/v1/delayed/{path_of(delayed)}?by=message")
    assert [row["id"] for row in told["rows"]] == [rows[2], rows[0]]
    browser.fill("main form.filter input[name=from]", "2032-01-01T00:00:00Z")
    browser.click("Show")
    eventually(lambda: len(browser.all("main > .wide tbody tr")) == 1)


def test_delayed_messages_of_all_topics_are_added(browser, own, client, delayed):
    other = unique_topic("also")
    client.subscribe(other, "later", pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(other)
    producer.send(b"later", deliver_at=int(time.time() * 1_000) + 7_200_000)
    producer.close()
    browser.open(f"{own.http_url}/console/delayed")
    name = delayed.removeprefix("persistent://")
    eventually(lambda: re.search(rf"{re.escape(name)}\s+3\s", browser.text)
               and re.search(rf"{re.escape(other.removeprefix('persistent://'))}\s+1\s", browser.text))
    told = int(re.search(r"(\d+) entries wait for their time in \d+ topics", browser.text)[1])
    assert told >= 4
    browser.run("document.querySelector('details').open = true")
    eventually(lambda: sum(int(cell.text) for cell in browser.all("details td.number")) >= 4)
    browser.click(name)
    browser.see("Cancel it")


def test_a_topic_that_is_deleted_under_its_open_page_says_so(browser, own, topic):
    open_topic(browser, own, topic)
    browser.see("There is no subscription")
    rest(own, "DELETE", f"/admin/v2/{path_of(topic)}")
    browser.see("There is nothing here")
    browser.problems()      # the page is answered with 404
