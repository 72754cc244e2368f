"""Dead letters that the broker makes: whatever the client, once each, and none lost when processes are killed."""
import json
import subprocess

import pulsar
import pytest

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
from .java import JavaTools, fetch_jars

pytestmark = pytest.mark.slow
SECONDS = HANG_SECONDS


@pytest.fixture(scope="module")
def java(broker, tmp_path_factory):
    return JavaTools(fetch_jars(), tmp_path_factory.mktemp("java"), broker.service_url, broker.http_url)


def set_policy(broker, topic, **values):
    """Set the policy of a topic, in the form in which REST takes it."""
    status, text = request("POST", f"{broker.http_url}/admin/v2/{path_of(topic)}/deadLetter",
                           json.dumps(values).encode(), **{"Content-Type": "application/json"})
    assert status == 204, text


def let_messages_name_their_ttl(broker, topic):
    """Let messages of a topic expire by `geminga.ttl`, and be dead letters then."""
    assert request("POST", f"{broker.http_url}/admin/v2/{path_of(topic)}/ownMessageTTL", b"true",
                   **{"Content-Type": "application/json"})[0] == 204
    set_policy(broker, topic, expired=True)


def nack_all(consumer, wanted):
    """Give back everything that comes, until `wanted` says that it is enough; return what came."""
    came = []

    def is_enough():
        try:
            message = consumer.receive(50)
            came.append(message)
            consumer.negative_acknowledge(message)
        except pulsar.Timeout:
            pass
        return wanted()
    eventually(is_enough, SECONDS)
    return came


def letters(client, topic):
    """Messages of a dead letter topic; [] if there is none yet."""
    try:
        return messages_of(client, topic)
    except pulsar.PulsarException:
        return []


def all_letters(client, topic, count):
    """Messages of a dead letter topic, once there are so many: of a transaction that moves letters, one owner may have
    acknowledged the messages before the other shows the letters.
    """
    eventually(lambda: len(letters(client, topic)) >= count, SECONDS)
    return letters(client, topic)


def why(broker, topic, subscription):
    return json.loads(request("GET", f"{broker.http_url}/ops/v1/why/{path_of(topic)}/{subscription}")[1])[0]["causes"]


def stats(broker, topic, subscription):
    """Messages that a subscription has left, in all partitions; -1 while an owner is being started."""
    status, text = request("GET", f"{broker.http_url}/ops/v1/why/{path_of(topic)}/{subscription}")
    return sum(one["messages"]["backlog"] for one in json.loads(text)) if status == 200 else -1


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_a_message_that_is_given_back_too_often_goes_to_the_dead_letter_topic(broker, client, kind):
    """The message keeps what its producer gave it, and says where and why it died."""
    topic = unique_topic("orders")
    consumer = client.subscribe(topic, "billing", consumer_type=kind, negative_ack_redelivery_delay_ms=20)
    set_policy(broker, topic, maxRedeliverCount=2)
    producer = client.create_producer(topic)
    sent = producer.send(b"poison", properties={"a": "b"}, partition_key="k", event_timestamp=7)
    came = nack_all(consumer, lambda: letters(client, f"{topic}-billing-DLQ"))
    assert [message.redelivery_count() for message in came] == [0, 1, 2]
    [letter] = letters(client, f"{topic}-billing-DLQ")
    origin = f"{sent.ledger_id()}:{sent.entry_id()}:-1"
    assert (letter.data(), letter.partition_key(), letter.event_timestamp()) == (b"poison", "k", 7)
    assert letter.properties() == {
        "a": "b", "REAL_TOPIC": topic, "REAL_SUBSCRIPTION": "billing", "ORIGIN_MESSAGE_ID": origin,
        "ORIGIN_MESSAGE_IDY_TIME": origin, "geminga.dead-letter.reason": "deliveries",
        "geminga.dead-letter.subscription": "billing", "geminga.dead-letter.deliveries": "3"}
    eventually(lambda: why(broker, topic, "billing") == [{"cause": "no backlog"}], SECONDS)
    consumer.close()


def test_only_what_is_left_of_a_batch_goes(broker, client):
    """Messages of a compressed batch become entries of their own, each at the partition of its key."""
    topic = partitioned_topic(broker.http_url, 2, "orders")
    dead = partitioned_topic(broker.http_url, 3, "dead")
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True,
                                negative_ack_redelivery_delay_ms=20)
    set_policy(broker, topic, maxRedeliverCount=1, deadLetterTopic=dead.rpartition("/")[2],
               initialSubscriptionName="keeper")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50,
                                      compression_type=pulsar.CompressionType.ZLib)
    for number in range(40):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 4}", properties={"n": str(number)})
    producer.flush()
    even = {b"%d" % number for number in range(0, 40, 2)}
    first = [consumer.receive(HANG_MS) for _ in range(40)]
    for message in first:
        if message.data() in even:
            consumer.acknowledge(message)
    eventually(lambda: stats(broker, topic, "s") == 20, SECONDS)      # else a batch is given back whole
    for message in first:
        if message.data() not in even:
            consumer.negative_acknowledge(message)
    nack_all(consumer, lambda: stats(broker, topic, "s") == 0)
    came = all_letters(client, dead, 20)
    assert sorted(int(message.data()) for message in came) == list(range(1, 40, 2))
    assert all(message.properties()["n"].encode() == message.data() for message in came)
    assert all(message.properties()["REAL_TOPIC"].startswith(f"{topic}-partition-") for message in came)


def test_a_refused_letter_stays_and_why_says_so(broker, client):
    """The namespace makes no topics by itself; as soon as the dead letter topic is there, the letter goes to it."""
    space = f"public/{unique_topic('space').rpartition('/')[2]}"
    topic, rest = f"persistent://{space}/orders", f"{broker.http_url}/admin/v2"
    assert request("PUT", f"{rest}/namespaces/{space}")[0] == 204
    assert request("PUT", f"{rest}/{path_of(topic)}")[0] == 204
    assert request("POST", f"{rest}/namespaces/{space}/autoTopicCreation", b'{"allowAutoTopicCreation": false}',
                   **{"Content-Type": "application/json"})[0] == 204
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared,
                                negative_ack_redelivery_delay_ms=20)
    set_policy(broker, topic, maxRedeliverCount=1)
    client.create_producer(topic).send(b"poison")
    nack_all(consumer, lambda: [one for one in why(broker, topic, "s")
                                if one["cause"] == "dead letters" and one["error"]])
    assert stats(broker, topic, "s") == 1
    assert request("PUT", f"{rest}/{path_of(topic)}-s-DLQ")[0] == 204
    eventually(lambda: letters(client, f"{topic}-s-DLQ"), SECONDS)


def test_dead_letters_do_not_go_around(broker, client):
    """A dead letter topic has no dead letters, whatever its namespace's policy."""
    namespace = "public/" + unique_topic("letters").rpartition("/")[2]
    rest = f"{broker.http_url}/admin/v2/namespaces/{namespace}"
    assert request("PUT", rest)[0] == 204
    assert request("POST", f"{rest}/deadLetter", b'{"maxRedeliverCount": 1}',
                   **{"Content-Type": "application/json"})[0] == 204
    topic = f"persistent://{namespace}/orders-s-DLQ"
    consumer = client.subscribe(topic, "again", consumer_type=pulsar.ConsumerType.Shared,
                                negative_ack_redelivery_delay_ms=20)
    client.create_producer(topic).send(b"poison")
    seen = []
    nack_all(consumer, lambda: seen.append(0) or len(seen) > 40)
    assert stats(broker, topic, "again") == 1 and not letters(client, f"{topic}-again-DLQ")


def test_two_topics_that_are_each_others_dead_letter_topic_pass_a_message_once(broker, client):
    """The message stays in the second topic, `why` says so, and another letter behind it is moved."""
    one, other = unique_topic("one"), unique_topic("other")
    consumers = [client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared,
                                  negative_ack_redelivery_delay_ms=20) for topic in (one, other)]
    for topic, target in ((one, other), (other, one)):
        set_policy(broker, topic, maxRedeliverCount=1, deadLetterTopic=target.rpartition("/")[2],
                   initialSubscriptionName="s")
    client.create_producer(one).send(b"poison")
    nack_all(consumers[0], lambda: stats(broker, one, "s") == 0)
    nack_all(consumers[1], lambda: any("would go back" in cause.get("error", "") for cause in why(broker, other, "s")))
    assert (stats(broker, one, "s"), stats(broker, other, "s")) == (0, 1)
    client.create_producer(other).send(b"second")
    nack_all(consumers[1], lambda: stats(broker, one, "s") == 1)
    assert consumers[0].receive(HANG_MS).data() == b"second"
    eventually(lambda: stats(broker, other, "s") == 1)      # a letter is acknowledged once it is stored


@pytest.mark.parametrize("mine", [1, 3])
def test_a_client_with_a_policy_of_its_own_and_the_broker_make_one_letter(broker, client, mine):
    """Whichever allows fewer redeliveries is first."""
    topic = unique_topic("orders")
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=mine, initial_subscription_name="keeper")
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, dead_letter_policy=policy,
                                negative_ack_redelivery_delay_ms=20)
    set_policy(broker, topic, maxRedeliverCount=2)
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    nack_all(consumer, lambda: stats(broker, topic, "s") == 0)
    dead = sorted(int(letter.data()) for letter in all_letters(client, f"{topic}-s-DLQ", 20))
    assert dead == list(range(20))


def test_expired_messages_go_to_the_dead_letter_topic(broker, client):
    """A subscription without any consumer has its expired messages moved, each subscription its own."""
    topic = unique_topic("orders")
    for name in ("a", "b"):
        client.subscribe(topic, name, consumer_type=pulsar.ConsumerType.Shared).close()
    set_policy(broker, topic, expired=True)
    producer = client.create_producer(topic)
    for number in range(50):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    assert request("POST", f"{broker.http_url}/admin/v2/{path_of(topic)}/messageTTL?messageTTL=1")[0] == 204
    for name in ("a", "b"):
        dead = f"{topic}-{name}-DLQ"
        eventually(lambda dead=dead: len(letters(client, dead)) == 50, SECONDS)
        assert {one.properties()["geminga.dead-letter.reason"] for one in letters(client, dead)} == {"expired"}
        eventually(lambda name=name: stats(broker, topic, name) == 0, SECONDS)


@pytest.mark.parametrize("batching", [False, True])
def test_messages_that_name_their_time_to_live_expire_by_it(broker, client, batching):
    """A batch lives as long as the longest of its messages; one without a time keeps its batch."""
    topic = unique_topic("orders")
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1)
    let_messages_name_their_ttl(broker, topic)
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_publish_delay_ms=100)
    for texts in (["700ms", "1s"], ["1s", "1h"], ["1s", None]):
        for text in texts:
            producer.send_async(str(text).encode(), None, properties={"geminga.ttl": text} if text else {})
        producer.flush()
    wanted = 2 if batching else 4
    eventually(lambda: len(letters(client, f"{topic}-s-DLQ")) == wanted, SECONDS)
    dead = [letter.data() for letter in letters(client, f"{topic}-s-DLQ")]
    assert sorted(dead) == sorted([b"700ms", *[b"1s"] * (wanted - 1)])
    eventually(lambda: stats(broker, topic, "s") == 6 - wanted, SECONDS)
    consumer.close()


@pytest.mark.java
@pytest.mark.parametrize("mine", [1, 2, 3])
def test_javas_policy_and_the_brokers_make_one_letter_of_each_message(broker, client, java, tmp_path, mine):
    """Java's client moves whole batches, the broker their messages; with the same number either may be first.

    A slow client gives back a batch in two rounds of its timer, and moves it in each.  The broker may have moved the
    messages before the second.
    """
    topic = unique_topic("orders")
    client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared).close()
    set_policy(broker, topic, maxRedeliverCount=2)
    with java.running(tmp_path, "DeadLetters", "refuse", topic, str(mine)) as process:
        for batching in (False, True):
            producer = client.create_producer(topic, batching_enabled=batching)
            for number in range(30):
                producer.send_async(b"%d %d" % (batching, number), None)
            producer.flush()
        eventually(lambda: stats(broker, topic, "s") == 0, SECONDS)
        process.communicate("\n", SECONDS)
        assert process.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    found = all_letters(client, f"{topic}-s-DLQ", 60)
    ours = [one.data() for one in found if "geminga.dead-letter.reason" in one.properties()]
    javas = {one.data() for one in found if "geminga.dead-letter.reason" not in one.properties()}
    assert {*ours, *javas} == {b"%d %d" % (batching, number) for batching in (0, 1) for number in range(30)}
    assert len(set(ours)) == len(ours)
    assert all(payload.startswith(b"1 ") for payload in javas.intersection(ours))
    assert {one.properties()["REAL_TOPIC"] for one in found} == {topic}
    if mine != 2:
        assert {"geminga.dead-letter.reason" in one.properties() for one in found} == {mine > 2}


@pytest.mark.java
def test_batches_of_java_expire_by_the_times_of_their_messages(broker, client, java, tmp_path):
    """Java makes batches by its defaults: each lives as long as the longest of its messages."""
    topic = unique_topic("orders")
    client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared).close()
    let_messages_name_their_ttl(broker, topic)
    ttls = {f"{group}-{number}": pair[number % 2] for number in range(200)
            for group, pair in (("same", ("500", "500")), ("long", ("1s", "1h")), ("none", ("1s", "")))}
    groups = [",".join(f"{name}={ttl}" for name, ttl in ttls.items() if name.startswith(group))
              for group in ("same", "long", "none")]
    with java.running(tmp_path, "DeadLetters", "publish", topic, *groups) as process:
        told, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    entries: dict[str, list[str]] = {}
    for entry, name in (line.split("\t") for line in told.splitlines()):
        entries.setdefault(entry, []).append(name)
    assert len(entries) < len(ttls)
    expected = {name for names in entries.values() for name in names
                if {ttls[each] for each in names} <= {"500", "1s"}}
    eventually(lambda: stats(broker, topic, "s") == len(ttls) - len(expected), SECONDS)
    dead = [letter.data().decode() for letter in all_letters(client, f"{topic}-s-DLQ", len(expected))]
    assert sorted(dead) == sorted(expected) and any(name.startswith("same") for name in dead)


def test_none_is_lost_or_there_twice_when_processes_are_killed(start_broker):
    """The mover and owners are killed while it moves, then the whole broker."""
    broker = start_broker()
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    topic, count = unique_topic("orders"), 3_000
    client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared).close()
    set_policy(broker, topic, expired=True)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    assert request("POST", f"{broker.http_url}/admin/v2/{path_of(topic)}/messageTTL?messageTTL=1")[0] == 204
    eventually(lambda: 0 <= stats(broker, topic, "s") < count, SECONDS)
    for role, index in (("replicator", 0), ("owner", 0), ("owner", 1)):
        broker.wait_replaced(role, index, broker.kill(role, index))
    broker.kill_supervisor()
    broker.start()
    client.close()
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    eventually(lambda: stats(broker, topic, "s") == 0, SECONDS)
    # A transaction that a kill has left open hides what lies behind its first letter, until its time is over.
    dead = sorted(int(letter.data()) for letter in all_letters(client, f"{topic}-s-DLQ", count))
    assert dead == list(range(count))
    client.close()


def test_calls_over_http_have_dead_letters_too(broker, client):
    """A call that gives a message back counts as a delivery, although it knows of no dead letters."""
    topic = unique_topic("orders")
    client.create_producer(topic).send(b"poison")
    set_policy(broker, topic, maxRedeliverCount=1)
    place = f"{broker.http_url}/topics/{path_of(topic)}/subscription/s"
    json_ = {"Content-Type": "application/json"}
    seen = []

    def is_dead():
        status, text = request("POST", f"{place}?wait=1&subscriptionInitialPosition=Earliest")
        assert status == 200, text
        for message in json.loads(text)["messages"]:
            seen.append(message["payload"])
            assert request("POST", f"{place}/nack", json.dumps({"messageIds": [message["messageId"]]}).encode(),
                           **json_)[0] == 204
        return letters(client, f"{topic}-s-DLQ")
    eventually(is_dead, SECONDS)
    assert seen == ["poison", "poison"]


def test_a_letter_goes_back_to_its_subscription_and_is_counted_anew(broker, client):
    """`geminga redrive` takes letters of the broker as it takes those of clients."""
    topic = unique_topic("orders")
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared,
                                negative_ack_redelivery_delay_ms=20)
    other = client.subscribe(topic, "other", consumer_type=pulsar.ConsumerType.Shared)
    set_policy(broker, topic, maxRedeliverCount=1)
    client.create_producer(topic).send(b"poison", properties={"a": "b"})
    other.acknowledge(other.receive(HANG_MS))
    nack_all(consumer, lambda: letters(client, f"{topic}-s-DLQ"))
    done = subprocess.run([COMMAND[0], "redrive", "--url", broker.service_url, "--admin-url", broker.http_url,
                           "--reason", "deliveries", f"{topic}-s-DLQ"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = consumer.receive(HANG_MS)
    assert again.redelivery_count() == 0 and again.properties().keys() == {"a", "geminga.redriven.from"}
    consumer.acknowledge(again)
    assert stats(broker, topic, "other") == 0
