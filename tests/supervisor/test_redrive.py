"""`geminga redrive`: dead letters go back once each, wherever the command is killed, as they were first published."""
import json
import subprocess
import sys
from collections import Counter

import pulsar
import pytest

from geminga.supervisor.main import main
from geminga.workers.pulsar_client import key_hashing

from ..harness import (
    COMMAND,
    HANG_MS,
    HANG_SECONDS,
    eventually,
    messages_of,
    partitioned_topic,
    path_of,
    request,
    unique_topic,
)
from ..workers.peer import Peer
from .test_transactions import begin_with_message, end

pytestmark = pytest.mark.slow
GEMINGA = COMMAND[0]
SECONDS = HANG_SECONDS


class Order(pulsar.schema.Record):
    number = pulsar.schema.Integer()


def redrive(broker, *words):
    """Run `geminga redrive`; return (exit status, figures or None, lines of complaint)."""
    done = subprocess.run(command(broker, *words), capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr.splitlines()


def command(broker, *words):
    return [GEMINGA, "redrive", "--url", broker.service_url, "--admin-url", broker.http_url, "-o", "json",
            *map(str, words)]


def leaves_nothing(broker, dead, *undo):
    """Undo a redrive; return whether there was nothing left, nor anything held by a transaction that a kill cut off:
    the abort of that one would give it back.
    """
    figures = redrive(broker, dead, *undo)[1]
    return figures is not None and (figures["taken_back"], figures["not_possible"]) == (0, {})


def make(client, *topics):
    """Make topics, and give each a subscription that keeps its messages."""
    for topic in topics:
        client.subscribe(topic, "keeper", initial_position=pulsar.InitialPosition.Earliest).close()
    return topics


def bury(client, dead, origins, count, *, batching=True, **properties):
    """Publish letters to a dead letter topic as clients do, for the origins in turn."""
    make(client, dead)
    producer = client.create_producer(dead, batching_enabled=batching, batching_max_publish_delay_ms=20,
                                      batching_max_messages=10, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"letter %d" % number, None, partition_key=f"k{number % 5}", event_timestamp=1_000 + number,
                            properties={"REAL_TOPIC": origins[number % len(origins)], "RECONSUMETIMES": "3",
                                        "DELAY_TIME": "1000", "ORIGIN_MESSAGE_ID": f"1:{number}:-1:0",
                                        "number": str(number), **properties})
    producer.flush()
    producer.close()


def subscriptions(broker, topic):
    return set(json.loads(request("GET", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/subscriptions")[1]))


def test_letters_of_a_real_consumer_are_delivered_to_it_again(own, client):
    """The client library decides which letters are dead, and counts anew after the redrive."""
    topic = unique_topic("orders")
    dead = f"{topic}-billing-DLQ"
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1, initial_subscription_name="keeper")
    consumer = client.subscribe(topic, "billing", consumer_type=pulsar.ConsumerType.Shared,
                                negative_ack_redelivery_delay_ms=20, dead_letter_policy=policy)
    producer = client.create_producer(topic)
    producer.send(b"poison", properties={"a": "b"}, partition_key="k")
    refused = 0

    def is_dead():
        nonlocal refused
        try:
            consumer.negative_acknowledge(consumer.receive(100))
            refused += 1
        except pulsar.Timeout:
            pass
        topics = json.loads(request("GET", own.http_url + "/admin/v2/persistent/public/default")[1])
        return dead in topics and messages_of(client, dead)
    eventually(is_dead, SECONDS)
    assert refused == 2
    assert redrive(own, dead, "-s", "shipping")[1]["not_chosen"] == 1
    status, figures, complaints = redrive(own, dead, "-s", "billing")
    assert (status, figures["sent"], figures["targets"], complaints) == (0, 1, {topic: 1}, [])
    again = consumer.receive(HANG_MS)
    assert (again.data(), again.partition_key(), again.redelivery_count()) == (b"poison", "k", 0)
    letter = messages_of(client, dead)[0].message_id()
    assert again.properties() == {
        "a": "b", "geminga.redriven.from": f"{dead} {letter.ledger_id()}:{letter.entry_id()}"}
    assert subscriptions(own, topic) == {"billing"}


@pytest.mark.parametrize("to_all", [False, True])
def test_only_the_subscription_that_lost_a_letter_gets_it_back(own, client, to_all):
    """Other subscriptions have handled the message already.  Letters of several subscriptions share a topic here."""
    topic, dead = unique_topic(), unique_topic("dead")
    consumers = [client.subscribe(topic, name, consumer_type=pulsar.ConsumerType.Shared)
                 for name in ("billing", "shipping", "search")]
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    for name in ("billing", "shipping", "gone"):
        bury(client, dead, [topic], 20, REAL_SUBSCRIPTION=name)
    before = {one: subscriptions(own, one) for one in (topic, dead)}
    told = redrive(own, dead, "--dry-run", *["--to-all"] * to_all)
    assert {one: subscriptions(own, one) for one in (topic, dead)} == before
    status, figures, _ = redrive(own, dead, *["--to-all"] * to_all)
    assert told == (status, figures | {"dry_run": True}, told[2])
    sent = 60 if to_all else 40
    assert (status, figures["sent"], figures["to_all_subscriptions"]) == (int(not to_all), sent, sent * to_all)
    assert list(figures["not_possible"].values()) == [] if to_all else [20]
    last = client.create_producer(topic)
    last.send(b"last")
    for consumer, expected in zip(consumers, (60, 60, 60) if to_all else (20, 20, 0), strict=True):
        bodies = []
        while b"last" not in bodies:
            bodies.append(consumer.receive(HANG_MS).data())
        assert len(bodies) == expected + 1
    assert reader.read_next(HANG_MS).data() == (b"letter 0" if to_all else b"last")
    reader.close()
    assert eventually(lambda: subscriptions(own, topic) == {"billing", "shipping", "search"}, SECONDS)


def test_a_dry_run_tells_what_the_topic_would_refuse(own, client):
    """Here the topic has ended.  A schema that the topic lacks is not made by the look."""
    ended, open_, dead = make(client, unique_topic("ended"), unique_topic("open"), unique_topic("dead"))
    producer = client.create_producer(dead, schema=pulsar.schema.AvroSchema(Order))
    for origin in (ended, open_):
        producer.send(Order(number=7), properties={"REAL_TOPIC": origin})
    assert request("POST", f"{own.http_url}/admin/v2/persistent/{ended.partition('://')[2]}/terminate")[0] == 200
    told = redrive(own, dead, "--dry-run")
    assert told[1]["targets"] == {open_: 1}
    assert told[1]["not_possible"] == {"TopicTerminatedError: Topic was already terminated": 1}
    assert request("GET", f"{own.http_url}/admin/v2/schemas/{open_.partition('://')[2]}/schema")[0] == 404
    status, figures, _ = redrive(own, dead)
    assert (status, figures | {"dry_run": True}) == told[:2]


@pytest.mark.parametrize("batching", [False, True])
def test_each_run_takes_what_is_chosen_and_leaves_the_rest_for_the_next(own, client, batching):
    origin, dead = make(client, unique_topic(), unique_topic("dead"))
    bury(client, dead, [origin], 30, batching=batching)
    before = subscriptions(own, dead)
    assert redrive(own, dead, "--dry-run", "--key", "k1")[1]["targets"] == {origin: 6}
    assert messages_of(client, origin) == [] and subscriptions(own, dead) == before
    for words, count in ((["--key", "k1"], 6), (["-n", 5], 5), (["--property", "number=29"], 1), (["--age", "1h"], 0),
                         (["--until", "-1h"], 0), (["--where", "properties.number == '28'"], 1)):
        status, figures, complaints = redrive(own, dead, *words)
        assert (status, complaints, figures["sent"]) == (0, [], count), words
    assert redrive(own, dead)[1]["sent"] == 17
    assert redrive(own, dead)[1]["sent"] == redrive(own, dead, "--dry-run")[1]["sent"] == 0
    copies = {one.properties()["number"]: one for one in messages_of(client, origin)}
    assert len(messages_of(client, origin)) == len(copies) == 30
    assert [(copies[str(number)].data(), copies[str(number)].partition_key(), copies[str(number)].event_timestamp(),
             copies[str(number)].properties().keys()) for number in range(30)] == [
        (b"letter %d" % number, f"k{number % 5}", 1_000 + number, {"number", "geminga.redriven.from"})
        for number in range(30)]


def test_letters_are_chosen_by_reason_and_may_go_elsewhere(own, client):
    origin, other, dead = make(client, unique_topic(), unique_topic("other"), unique_topic("dead"))
    for reason in ("java.net.SocketTimeoutException: read", "a null"):
        bury(client, dead, [origin], 3, EXCEPTION_MESSAGE=reason)
    assert redrive(own, dead, "--reason", "timeout", "--to", other)[1]["targets"] == {other: 3}
    assert [one.properties()["EXCEPTION_MESSAGE"] for one in messages_of(client, other)] == [
        "java.net.SocketTimeoutException: read"] * 3
    assert messages_of(client, origin) == []


def test_a_letter_goes_to_its_partition_else_to_that_of_its_key(own, client):
    topic, other = (partitioned_topic(own.http_url, 3) for _ in range(2))
    dead, = make(client, unique_topic("dead"))
    bury(client, dead, [f"{topic}-partition-2"], 10)
    assert redrive(own, dead, "-n", 5)[1]["targets"] == {f"{topic}-partition-2": 5}
    assert redrive(own, dead, "--to", other)[1]["sent"] == 5
    copies = messages_of(client, other)
    assert len(copies) == 5
    assert all(one.message_id().partition() == key_hashing.java(one.partition_key()) % 3 for one in copies)


def test_a_letter_that_cannot_go_anywhere_is_told_and_stays(own, client):
    origin, dead = make(client, unique_topic(), unique_topic("dead"))
    missing = unique_topic("missing")
    bury(client, dead, [origin, missing, dead], 6)
    producer = client.create_producer(dead)
    producer.send(b"no letter")
    for sent, *words in (2, "--dry-run"), (2,), (0,):
        status, figures, _ = redrive(own, dead, *words)
        assert (status, figures["sent"]) == (1, sent)
        assert figures["not_possible"] == {
            f"there is no topic {missing}": 2, f"{dead} is the topic that is redriven": 2,
            "no property REAL_TOPIC: name a topic with --to": 1}
    assert missing not in json.loads(request("GET", own.http_url + "/admin/v2/persistent/public/default")[1])
    assert redrive(own, missing)[::2] == (
            1, [f"geminga: {own.service_url}: there is no topic {missing}"])


def test_large_letters_and_schemas_come_through(own, client):
    origin, dead = unique_topic(), unique_topic("dead")
    make(client, origin, dead)
    schema = pulsar.schema.AvroSchema(Order)
    producer = client.create_producer(dead, schema=schema, compression_type=pulsar.CompressionType.ZSTD)
    producer.send(Order(number=7), properties={"REAL_TOPIC": origin})
    producer.close()
    assert redrive(own, dead, "--where", "value.number > `7`")[1]["not_chosen"] == 1
    assert redrive(own, dead, "--where", "value.number == `7`")[1]["sent"] == 1
    reader = client.create_reader(origin, pulsar.MessageId.earliest, schema=schema)
    assert reader.read_next(HANG_MS).value().number == 7
    origin, dead = make(client, unique_topic(), unique_topic("dead"))
    producer = client.create_producer(dead, batching_enabled=False, chunking_enabled=True)
    payload = bytes(range(256)) * 50_000
    producer.send(payload, properties={"REAL_TOPIC": origin})
    assert redrive(own, dead)[1]["sent"] == 1
    assert [one.data() for one in messages_of(client, origin)] == [payload]
    assert redrive(own, dead)[1]["sent"] == 0


# Where a redrive is killed: a method of redriving.py, before or after its call number so much.
POINTS = [("Target.read_copies", "after", 1), ("Target.send", "after", 1), ("Target.send", "after", 30),
          ("Target.receipts", "before", 1), ("Target.receipts", "after", 1), ("Target.receipts", "after", 4),
          ("Backlog.acknowledge", "before", 1), ("Backlog.acknowledge", "after", 1),
          ("Backlog.acknowledge", "before", 2), ("Backlog.acknowledge", "after", 2),
          ("Target.forget_copies", "after", 1), ("Target.forget_copies", "after", 3),
          ("Redrive._finish", "before", 1), ("Redrive._finish", "after", 1), ("Redrive._finish", "before", 2)]
KILLED = """
import asyncio, functools, os, signal, sys
from geminga.supervisor.tasks import redriving
from geminga.supervisor.main import main
name, when, number, calls = sys.argv[1], sys.argv[2], int(sys.argv[3]), 0
owner = getattr(redriving, name.split(".")[0])
method = getattr(owner, name.split(".")[1])

def counts():
    global calls
    calls += 1
    return calls == number

def die():
    os.kill(os.getpid(), signal.SIGKILL)

@functools.wraps(method)
async def later(*words):
    is_it = counts()
    if is_it and when == "before":
        die()
    answer = await method(*words)
    if is_it:
        die()
    return answer

@functools.wraps(method)
def now(*words):
    is_it = counts()
    method(*words)
    if is_it:
        die()

setattr(owner, name.split(".")[1], later if asyncio.iscoroutinefunction(method) else now)
sys.exit(main(sys.argv[4:]))
"""


@pytest.mark.parametrize(("method", "when", "number"), POINTS)
def test_a_killed_redrive_that_is_repeated_sends_each_letter_once(own, client, method, when, number):
    """Two origins share the batches of the dead letter topic.  Nobody deduplicates."""
    first, second, dead = make(client, unique_topic("first"), unique_topic("second"), unique_topic("dead"))
    bury(client, dead, [first, second], 300)
    words = command(own, dead)[1:]
    killed = subprocess.run([sys.executable, "-c", KILLED, method, when, str(number), *words],
                            capture_output=True, text=True, timeout=SECONDS, check=False)
    assert killed.returncode == -9, killed.stderr
    assert redrive(own, dead)[::2] == (0, [])
    for origin, numbers in ((first, range(0, 300, 2)), (second, range(1, 300, 2))):
        assert Counter(one.properties()["number"] for one in messages_of(client, origin)) == Counter(map(str, numbers))
        assert subscriptions(own, origin) == {"keeper"}
    assert redrive(own, dead)[1]["sent"] == 0


@pytest.mark.parametrize("deduplication", [False, True])
def test_kills_at_any_time_until_it_is_done(own, client, deduplication):
    origin, dead = make(client, unique_topic(), unique_topic("dead"))
    if deduplication:
        url = f"{own.http_url}/admin/v2/{origin.replace('://', '/')}/deduplicationEnabled"
        assert request("POST", url, b"true")[0] == 204
    bury(client, dead, [origin], 400)
    for count in (1, 60, 150, 290):
        process = subprocess.Popen(command(own, dead, "--rate", "400"), stdout=subprocess.DEVNULL)
        eventually(lambda count=count: len(messages_of(client, origin)) >= count, SECONDS)
        process.kill()
        process.wait()
    assert redrive(own, dead)[0] == 0
    assert Counter(one.properties()["number"] for one in messages_of(client, origin)) == Counter(map(str, range(400)))
    assert subscriptions(own, origin) == {"keeper"}


def test_an_interrupted_redrive_leaves_nothing_behind(own, client):
    origin, dead = make(client, unique_topic(), unique_topic("dead"))
    bury(client, dead, [origin], 400)
    process = subprocess.Popen(command(own, dead, "--rate", "20"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    eventually(lambda: messages_of(client, origin), SECONDS)
    process.terminate()
    said, complaints = process.communicate(timeout=SECONDS)
    sent = json.loads(said)["sent"]
    assert (process.returncode, complaints) == (1, "geminga: interrupted; repeat the command to go on\n")
    assert 0 < sent == len(messages_of(client, origin)) < 400 and subscriptions(own, origin) == {"keeper"}
    assert redrive(own, dead)[1]["sent"] == 400 - sent


def test_letters_of_a_transaction_that_is_open_are_left_for_the_next_redrive(own, client):
    """The move of a letter that a kill has interrupted may be undone: a redrive does not wait for its copy."""
    origin, dead = make(client, unique_topic(), unique_topic("dead"))
    bury(client, dead, [origin], 3)
    with Peer(own.service_url) as peer:
        its, _ = begin_with_message(peer, 0, dead)
        status, figures, complaints = redrive(own, dead)
        assert (status, figures["sent"], complaints) == (0, 3, []), (figures, complaints)
        end(peer, its)
    assert len(messages_of(client, origin)) == 3


def test_letters_that_are_cleared_during_a_redrive_are_not_waited_for(own, client):
    origin, dead = make(client, unique_topic(), unique_topic("dead"))
    bury(client, dead, [origin], 40)
    with subprocess.Popen(command(own, dead, "--rate", "5"), stdout=subprocess.PIPE, text=True) as process:
        eventually(lambda: messages_of(client, origin))
        status, text = request("POST", f"{own.http_url}/admin/v2/{path_of(dead)}/subscription/geminga-redrive/skip_all")
        assert status == 204, text
        figures = json.loads(process.communicate(timeout=SECONDS)[0])
    assert process.returncode == 0 and 0 < figures["sent"] < 40, figures


def test_a_rate_is_kept(own, client):
    origin, dead = make(client, unique_topic(), unique_topic("dead"))
    bury(client, dead, [origin], 40)
    assert redrive(own, dead, "--rate", "50")[1]["sent"] == 40
    times = [one.publish_timestamp() for one in messages_of(client, origin)]
    assert max(times) - min(times) >= 550


@pytest.mark.parametrize(("words", "expected"), [
    (["a//b"], "a//b"), (["dead", "--to", "a//b"], "a//b"), (["dead", "--age", "old"], "'--age': 'old' is not a time"),
    (["dead", "--rate", "0"], "--rate"), (["dead", "-n", "0"], "-n"), ([], "DEAD-LETTER-TOPIC"),
])
def test_wrong_usage_is_told_in_one_line(capsys, words, expected):
    assert main(["redrive", *words]) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]
