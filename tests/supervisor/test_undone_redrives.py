"""`geminga redrive --undo`: what no consumer has yet is a dead letter again, once each, through kills."""
import json
import subprocess
import threading
import time
from collections import Counter

import pulsar
import pytest

from geminga.storage.runtime.routing import owner_of

from ..harness import HANG_MS, HANG_SECONDS, eventually, messages_of, partitioned_topic, request, unique_topic
from .test_redrive import bury, command, leaves_nothing, make, redrive, subscriptions

pytestmark = pytest.mark.slow
SECONDS = HANG_SECONDS
OWNERS = 2
OWN_OPTIONS = ("--owners", str(OWNERS))
SHARED = pulsar.ConsumerType.Shared


def backlog(broker, topic, subscription):
    """Return the properties of all messages that a subscription has left."""
    path = f"{broker.http_url}/ops/v1/messages/{topic.replace('://', '/')}/{subscription}?limit=100"
    found, page = [], {"next": ""}
    while page["next"] is not None:
        status, text = request("GET", path + (f"&from={page['next']}" if page["next"] else ""))
        assert status == 200, text
        page = json.loads(text)
        found += [row["properties"] for row in page["rows"]]
    return found


def numbers(broker, topic, subscription):
    return Counter(properties["number"] for properties in backlog(broker, topic, subscription))


def redriven(broker, client, count, **properties):
    """Redrive letters of the subscription billing; return (topic, dead letter topic)."""
    topic = unique_topic("orders")
    for name in ("billing", "shipping"):
        client.subscribe(topic, name, consumer_type=SHARED).close()
    dead = f"{topic}-billing-DLQ"
    bury(client, dead, [topic], count, **properties)
    assert redrive(broker, dead)[1]["sent"] == count
    return topic, dead


def test_what_no_consumer_has_is_a_letter_again_and_can_be_redriven_again(own, client):
    topic, dead = redriven(own, client, 30, REAL_SUBSCRIPTION="billing")
    producer = client.create_producer(topic)
    producer.send(b"another", properties={"number": "another"})
    told = redrive(own, dead, "--undo", topic, "--dry-run")
    assert told[1]["taken_back"] == 30 and len(backlog(own, topic, "billing")) == 31
    status, figures, complaints = redrive(own, dead, "--undo", topic)
    assert told == (status, figures | {"dry_run": True}, complaints)
    assert (status, complaints, figures["subscription"], figures["not_possible"]) == (0, [], "billing", {})
    assert numbers(own, topic, "billing") == numbers(own, topic, "shipping") == {"another": 1}
    letters = backlog(own, dead, "geminga-redrive")
    assert Counter(one["number"] for one in letters) == Counter(map(str, range(30)))
    assert {(one["REAL_TOPIC"], one["REAL_SUBSCRIPTION"], one["geminga.dead-letter.reason"]) for one in letters} == {
        (topic, "billing", "taken back")}
    assert all("geminga.redriven.from" not in one for one in letters)
    copies = [one for one in messages_of(client, dead) if "geminga.dead-letter.reason" in one.properties()]
    assert Counter((one.data(), one.partition_key(), one.event_timestamp()) for one in copies) == Counter(
        (b"letter %d" % number, f"k{number % 5}", 1_000 + number) for number in range(30))
    assert redrive(own, dead, "--undo", topic)[1]["taken_back"] == 0
    assert redrive(own, dead)[1]["sent"] == 30
    assert len(backlog(own, topic, "billing")) == 31 and len(backlog(own, topic, "shipping")) == 1


def test_what_a_consumer_has_or_has_acknowledged_is_left_alone(own, client):
    topic, dead = redriven(own, client, 30)
    consumer = client.subscribe(topic, "billing", consumer_type=SHARED, receiver_queue_size=1)
    held = [consumer.receive(HANG_MS) for _ in range(10)]
    for message in held[:4]:
        consumer.acknowledge(message)
    eventually(lambda: len(backlog(own, topic, "billing")) == 26, SECONDS)
    status, figures, _ = redrive(own, dead, "--undo", topic)
    stay = sum(figures["not_possible"].values())
    assert status == 1 and stay in (6, 7)      # the client may have asked for another one
    assert figures["taken_back"] == 26 - stay
    assert len(backlog(own, topic, "billing")) == stay
    for message in held[4:]:
        consumer.acknowledge(message)
    if stay == 7:
        consumer.acknowledge(consumer.receive(HANG_MS))
    eventually(lambda: not backlog(own, topic, "billing"), SECONDS)
    assert len(backlog(own, dead, "geminga-redrive")) == 26 - stay
    consumer.close()


def test_conditions_a_limit_and_a_rate_choose_what_is_taken_back(own, client):
    topic, dead = redriven(own, client, 40)
    assert redrive(own, dead, "--undo", topic, "--key", "k1")[1]["taken_back"] == 8
    assert redrive(own, dead, "--undo", topic, "--property", "number=2")[1]["taken_back"] == 1
    assert redrive(own, dead, "--undo", topic, "--until", "-1h")[1]["taken_back"] == 0
    assert redrive(own, dead, "--undo", topic, "-n", 5)[1]["taken_back"] == 5
    before = time.monotonic()
    assert redrive(own, dead, "--undo", topic, "--rate", 20)[1]["taken_back"] == 26
    assert time.monotonic() - before >= 1.2
    assert Counter(one["number"] for one in backlog(own, dead, "geminga-redrive")) == Counter(map(str, range(40)))


def test_each_partition_gives_back_what_it_got(own, client):
    topic, dead = partitioned_topic(own.http_url, 2), unique_topic("dead")
    parts = [f"{topic}-partition-{number}" for number in range(2)]
    client.subscribe(topic, "billing", consumer_type=SHARED).close()
    bury(client, dead, parts, 20, REAL_SUBSCRIPTION="billing")
    assert redrive(own, dead)[1]["sent"] == 20
    assert redrive(own, dead, "--undo", topic)[::2] == (1, [
        f"geminga: The name {dead} does not say which subscription of {topic}: name it (HTTP 400)"])
    assert redrive(own, dead, "--undo", topic, "-s", "billing")[1]["taken_back"] == 20
    assert Counter(one["REAL_TOPIC"] for one in backlog(own, dead, "geminga-redrive")) == dict.fromkeys(parts, 10)


def test_a_consumer_that_acknowledges_cumulatively_has_to_leave(own, client):
    topic, dead = redriven(own, client, 5)
    consumer = client.subscribe(topic, "billing", receiver_queue_size=1)
    status, _, complaints = redrive(own, dead, "--undo", topic)
    assert status == 1 and "may acknowledge cumulatively" in complaints[0]
    consumer.close()
    assert redrive(own, dead, "--undo", topic)[1]["taken_back"] == 5


def test_none_is_lost_and_none_is_there_twice_when_owners_and_the_admin_process_are_killed(own, client):
    """A consumer works all the time.  The command is repeated until nothing is left to take back.

    Consumer and command are slow, so that something is left for each kill on a slow machine too.
    """
    topic, dead = redriven(own, client, 900)
    came, is_over, may_go_on = Counter(), threading.Event(), threading.Event()
    consumer = client.subscribe(topic, "billing", consumer_type=SHARED, receiver_queue_size=2)

    def work():
        while not is_over.is_set():
            if came.total() >= 200 and not may_go_on.wait(0.2):      # however slow the machine, some are left to kills
                continue
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            came[message.properties()["number"]] += 1
            time.sleep(0.05)
    worker = threading.Thread(target=work)
    worker.start()
    try:
        killed = [("owner", owner_of(topic, OWNERS)), ("admin", 0), ("owner", owner_of(dead, OWNERS))]
        for role, index in killed:
            before = len(backlog(own, dead, "geminga-redrive"))
            undo = subprocess.Popen(command(own, dead, "--undo", topic, "--rate", "25"), stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL)
            eventually(lambda before=before: len(backlog(own, dead, "geminga-redrive")) > before + 20, SECONDS)
            own.wait_replaced(role, index, own.kill(role, index))
            assert undo.wait(SECONDS) != 0      # it was killed in the middle
            eventually(lambda: redrive(own, dead, "--undo", topic, "--dry-run")[1] is not None, SECONDS)
        may_go_on.set()
        eventually(lambda: leaves_nothing(own, dead, "--undo", topic) and not backlog(own, topic, "billing"), SECONDS)
    finally:
        is_over.set()
        worker.join()
    letters = Counter(one["number"] for one in backlog(own, dead, "geminga-redrive"))
    assert max(letters.values()) == 1 and letters.total() > 60
    assert letters.keys() | came.keys() == set(map(str, range(900)))
    assert not letters.keys() & came.keys()
    consumer.close()


@pytest.mark.parametrize(("words", "expected"), [
    (["--undo", "a//b"], "a//b"), (["--undo", "orders", "--to", "other"], "--undo goes without --to"),
])
def test_wrong_usage_is_told_in_one_line(own, words, expected):
    status, _, complaints = redrive(own, "dead", *words)
    assert status == 2 and expected in complaints[-1]


def test_what_is_not_there_is_told(own, client):
    dead, = make(client, unique_topic("dead"))
    missing = unique_topic("missing")
    assert redrive(own, dead, "--undo", missing, "-s", "s")[::2] == (
        1, [f"geminga: Topic {missing} not found (HTTP 404)"])
    path = f"{own.http_url}/ops/v1/redrive/{dead.replace('://', '/')}"
    for body in ({"undo": 1}, {"undo": dead, "rate": "x"}, {"undo": dead, "to": "x"}, {"undo": dead, "properties": 1},
                 {"undo": dead, "subscription": "s", "where": "]"}):
        assert request("POST", path, json.dumps(body).encode(), **{"Content-Type": "application/json"})[0] == 400, body
    assert subscriptions(own, dead) == {"keeper"}


def test_letters_of_the_policy_and_those_that_are_taken_back_do_not_mix(own, client):
    """The policy has another dead letter topic, and messages die while others are taken back."""
    topic, dead = redriven(own, client, 100)
    other = unique_topic("other")
    path = f"{own.http_url}/admin/v2/{topic.replace('://', '/')}"
    policy = {"maxRedeliverCount": 0, "expired": True, "deadLetterTopic": other.rpartition("/")[2]}
    undo = subprocess.Popen(command(own, dead, "--undo", topic, "--rate", "40"), stdout=subprocess.PIPE, text=True)
    eventually(lambda: len(backlog(own, dead, "geminga-redrive")) > 20, SECONDS)
    for name, value in (("deadLetter", policy), ("messageTTL", 1)):
        status, text = request("POST", f"{path}/{name}", json.dumps(value).encode(),
                               **{"Content-Type": "application/json"})
        assert status == 204, text
    undo.communicate(timeout=SECONDS)
    eventually(lambda: not backlog(own, topic, "billing"), SECONDS)
    eventually(lambda: len(backlog(own, dead, "geminga-redrive")) + len(messages_of(client, other)) == 100, SECONDS)
    both = Counter(one["number"] for one in backlog(own, dead, "geminga-redrive"))
    both += Counter(one.properties()["number"] for one in messages_of(client, other))
    assert both == Counter(map(str, range(100)))
