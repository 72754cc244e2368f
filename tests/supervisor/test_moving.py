"""`geminga import` and `geminga export` copy a topic's messages to another cluster unchanged."""
import signal
import subprocess

import pulsar
import pytest

from ..harness import (
    COMMAND,
    HANG_MS,
    HANG_SECONDS,
    Broker,
    guarded_broker,
    messages_of,
    partitioned_topic,
    request,
    unique_topic,
)

GEMINGA = COMMAND[0]
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
SECONDS = HANG_SECONDS


class Order(pulsar.schema.Record):
    number = pulsar.schema.Integer()


class NewerOrder(pulsar.schema.Record):
    number = pulsar.schema.Integer()
    who = pulsar.schema.String(required_default=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The broker of the other cluster."""
    made = Broker(tmp_path_factory.mktemp("other") / "data")
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture(scope="module")
def there(other):
    """A client of the other broker."""
    made = pulsar.Client(other.service_url, logger=QUIET)
    yield made
    made.close()


@pytest.fixture
def bring(own, other):
    """bring(topics...): runs `geminga import` into own from other; (exit status, output, complaints)."""
    def bring(*words, source=None):
        done = subprocess.run([GEMINGA, "import", "--from", source or other.service_url, "--url", own.service_url,
                               "--admin-url", own.http_url, *words], capture_output=True, text=True, timeout=SECONDS)
        return done.returncode, done.stdout, done.stderr
    return bring


@pytest.fixture
def export(own, other):
    """export(topics...): runs `geminga export` out of own into other; (exit status, output, complaints)."""
    def export(*words):
        done = subprocess.run([GEMINGA, "export", "--to", other.service_url, "--to-admin-url", other.http_url, "--url",
                               own.service_url, *words], capture_output=True, text=True, timeout=SECONDS)
        return done.returncode, done.stdout, done.stderr
    return export


def all_of(client, topic):
    """Return everything that consumers see of all messages, in order."""
    return [(message.data(), message.partition_key(), message.properties(), message.publish_timestamp(),
             message.event_timestamp(), message.message_id().batch_index(), message.producer_name())
            for message in messages_of(client, topic)]


def publish(client, topic, count, **how):
    producer = client.create_producer(topic, **how)
    for number in range(count):
        producer.send_async(b"%d " % number * 20, lambda *_: None, properties={"number": str(number)},
                            partition_key=f"k{number % 7}", event_timestamp=1_700_000_000_000 + number)
    producer.flush()
    producer.close()


def test_messages_are_as_they_were_in_their_order(there, client, bring):
    topic = unique_topic()
    publish(there, topic, 100, batching_enabled=False)
    publish(there, topic, 1_000, batching_enabled=True, batching_max_messages=50,
            compression_type=pulsar.CompressionType.ZSTD)
    publish(there, topic, 100, batching_enabled=True, compression_type=pulsar.CompressionType.LZ4,
            producer_name="by-name")
    assert bring(topic)[::2] == (0, "")
    was = all_of(there, topic)
    assert len(was) == 1_200 and all_of(client, topic) == was


def test_large_messages_stay_in_their_chunks(there, client, bring):
    topic = unique_topic()
    producer = there.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    payloads = [bytes([number]) * 12_000_000 for number in range(3)]
    for payload in payloads:
        producer.send(payload)
    producer.close()
    assert bring(topic)[::2] == (0, "")
    assert [one[0] for one in all_of(client, topic)] == payloads


def test_what_went_out_and_came_back_is_the_same(own, other, client, there, export, tmp_path_factory):
    topic = unique_topic()
    publish(client, topic, 500)
    was = all_of(client, topic)
    assert export(topic)[0] == 0
    assert request("DELETE", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}?force=true")[0] == 204
    done = subprocess.run([GEMINGA, "import", "--from", other.service_url, "--url", own.service_url, topic],
                          timeout=SECONDS)
    assert done.returncode == 0 and all_of(client, topic) == was == all_of(there, topic)


def test_partitions_are_copied_one_by_one_and_made_there(own, there, other, client, bring):
    topic = partitioned_topic(other.http_url, 3)
    publish(there, topic, 300)
    assert bring(topic)[::2] == (0, "")
    assert client.get_topic_partitions(topic) == there.get_topic_partitions(topic)
    for partition in there.get_topic_partitions(topic):
        assert all_of(client, partition) == all_of(there, partition) != []


def test_a_namespace_is_all_of_its_topics(own, other, there, client, export, bring):
    for broker in own, other:
        assert request("PUT", f"{broker.http_url}/admin/v2/namespaces/public/moved")[0] == 204
    topics = [f"persistent://public/moved/t{number}" for number in range(3)]
    for topic in topics:
        publish(there, topic, 10)
    status, said, _ = bring("public/moved")
    assert status == 0 and len(said.splitlines()) == 3
    assert [all_of(client, topic) for topic in topics] == [all_of(there, topic) for topic in topics]


def test_a_second_time_brings_what_is_new_and_nothing_twice(there, client, bring):
    topic = unique_topic()
    for count in (100, 0, 50):
        publish(there, topic, count)
        status, said, _ = bring(topic)
        assert status == 0 and f" {count} messages" in said
        assert all_of(client, topic) == all_of(there, topic)


@pytest.mark.parametrize("deduplication", [False, True])
def test_one_that_was_interrupted_goes_on_where_it_was(own, other, there, client, bring, deduplication):
    topic = unique_topic()
    publish(there, topic, 30_000, batching_enabled=False, max_pending_messages=0)
    publish(client, topic, 0)
    if deduplication:
        status, _ = request("POST", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/deduplicationEnabled",
                            b"true")
        assert status == 204
    copying = subprocess.Popen([GEMINGA, "import", "--from", other.service_url, "--url", own.service_url, topic])
    consumer = client.subscribe(topic, "watch", initial_position=pulsar.InitialPosition.Earliest)
    consumer.receive(SECONDS * 1_000)
    copying.send_signal(signal.SIGKILL)
    copying.wait(SECONDS)
    consumer.close()
    had = len(all_of(client, topic))
    status, said, _ = bring(topic)
    assert (status, 0 < had < 30_000) == (0, True), said
    assert all_of(client, topic) == all_of(there, topic)


def test_every_version_of_a_schema_comes_along(there, client, own, other, bring):
    topic = unique_topic()
    for schema, made in ((Order, Order(number=1)), (NewerOrder, NewerOrder(number=2, who="x"))):
        producer = there.create_producer(topic, schema=pulsar.schema.JsonSchema(schema))
        producer.send(made)
        producer.close()
    assert bring(topic)[::2] == (0, "")
    schemas = [request("GET", f"{broker.http_url}/admin/v2/schemas/{topic.partition('://')[2]}/schemas")[1]
               for broker in (own, other)]
    assert '"version": 1' in schemas[0] or '"version":1' in schemas[0]
    assert all_of(client, topic) == all_of(there, topic)


def test_subscriptions_can_be_made_before_the_first_message(there, client, bring):
    topic = unique_topic()
    publish(there, topic, 10)
    assert bring("--subscription", "work", topic)[0] == 0
    consumer = client.subscribe(topic, "work")
    assert [consumer.receive(HANG_MS).properties()["number"] for _ in range(10)] == list("0123456789")
    consumer.close()


def test_a_topic_that_holds_other_messages_is_left_alone(there, client, bring):
    topic = unique_topic()
    publish(there, topic, 10)
    publish(client, topic, 5)
    status, _, complaint = bring(topic)
    assert status == 1 and "is not in the source" in complaint and len(all_of(client, topic)) == 5


def test_what_is_not_there_is_said_and_not_made(there, bring, other):
    topic = unique_topic()
    status, _, complaint = bring(topic)
    assert status == 1 and "no such topic" in complaint.lower() and topic not in request(
        "GET", f"{other.http_url}/admin/v2/persistent/public/default")[1]
    assert bring("public/nowhere")[0] == 1


def test_who_may_not_read_there_is_told_so_and_who_shows_a_token_may(own, client, bring, start_broker, tmp_path):
    topic = unique_topic()
    guarded, tokens = guarded_broker(start_broker, tmp_path, "admin", "nobody")
    producer = pulsar.Client(
        guarded.service_url, pulsar.AuthenticationToken(tokens["admin"]), logger=QUIET
    ).create_producer(topic)
    producer.send(b"secret")
    status, _, complaint = bring(topic, source=guarded.service_url)
    assert status == 1 and "AuthenticationError" in complaint and len(complaint.splitlines()) == 1
    shown = {role: ("--from-auth-plugin", "AuthenticationToken", "--from-auth-params", f"token:{token}")
             for role, token in tokens.items()}
    status, _, complaint = bring(*shown["nobody"], topic, source=guarded.service_url)
    assert status == 1 and "AuthorizationError" in complaint and len(complaint.splitlines()) == 1
    assert bring(*shown["admin"], topic, source=guarded.service_url)[0] == 0
    assert [one[0] for one in all_of(client, topic)] == [b"secret"]


def test_who_is_not_reachable_is_named(bring, own, tmp_path):
    status, _, complaint = bring(unique_topic(), source="pulsar://127.0.0.1:1")
    assert status == 3 and complaint.startswith("geminga: pulsar://127.0.0.1:1: ") and len(complaint.splitlines()) == 1
    status, _, complaint = bring(unique_topic(), source=own.http_url.replace("http", "pulsar"))
    assert status == 3 and len(complaint.splitlines()) == 1
    assert bring(unique_topic(), source="http://127.0.0.1:1")[0] == 2
