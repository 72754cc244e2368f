"""What the lab asks of Python's client, each thing by its name; started by `Ground.ask`, which says how it is told.

It is run with many versions of the client, so that it looks for what only some of them have.
"""
import contextlib
import inspect
import json
import logging
import os
import sys
import time
import traceback

import pulsar
from pulsar import ConsumerType, InitialPosition
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

TOLD = json.loads(sys.argv[-1])
MS = 15_000          # longest wait for a message that has to come
SILENCE_MS = 400     # shortest wait for one that must not
logging.getLogger("pulsar").setLevel(logging.CRITICAL)
logging.getLogger("pulsar").addHandler(logging.NullHandler())
logging.getLogger("pulsar").propagate = False
THINGS = {}


class Lacks(Exception):
    """The client has no such thing."""


def thing(name):
    def keep(function):
        THINGS[name] = function
        return function
    return keep


def please(method, path="", body=None):
    """Ask the lab for a step of administration."""
    print(json.dumps({"please": method, "path": path, "body": body}), flush=True)
    answer = sys.stdin.readline().strip()
    if answer != "done":
        raise AssertionError("administration: " + answer)


def client(url=None, **options):
    options = options if "logger" in options else {**options, "logger": logging.getLogger("pulsar")}
    return pulsar.Client(url or TOLD["service"], operation_timeout_seconds=20, **options)


def accepts(function, name):
    """Whether a function of this version has a parameter."""
    return name in inspect.signature(function).parameters


def needs(function, name):
    if not accepts(function, name):
        raise Lacks("no parameter " + name)


def publish(c, topic, payloads, **options):
    producer = c.create_producer(topic, **options)
    for payload in payloads:
        producer.send_async(payload, lambda result, _: None)
    producer.flush()
    producer.close()


def numbered(count, prefix="m"):
    return [f"{prefix}{number}".encode() for number in range(count)]


def receive(consumer, count, acknowledges=True, ms=MS):
    got = []
    for _ in range(count):
        message = consumer.receive(ms)
        got.append(message)
        if acknowledges:
            consumer.acknowledge(message)
    return got


def drain(consumer, ms=SILENCE_MS):
    """Receive and acknowledge until nothing comes for some time."""
    got = []
    while True:
        try:
            message = consumer.receive(ms)
        except pulsar.Timeout:
            return got
        consumer.acknowledge(message)
        got.append(message)


def in_order(messages, expected):
    return [message.data() for message in messages] == list(expected)


def told(messages, expected):
    """Return how many messages came, and in which way they are not as expected."""
    data, expected = [message.data() for message in messages], list(expected)
    if data == expected:
        return f"{len(data)} in order"
    if sorted(data) == sorted(expected):
        return f"{len(data)} out of order"
    return f"{len(data)} came, {len(set(expected) - set(data))} missing, {len(data) - len(set(data))} twice"


def refusal(error):
    return type(error).__name__


@thing("exclusive")
def exclusive(c, topic):
    consumer = c.subscribe(topic, "s", consumer_type=ConsumerType.Exclusive)
    with_second = client()
    try:
        with_second.subscribe(topic, "s", consumer_type=ConsumerType.Exclusive)
        second = "second admitted"
    except pulsar.ConsumerBusy:
        second = "second refused"
    finally:
        with_second.close()
    publish(c, topic, numbered(20), batching_enabled=False)
    return f"{told(receive(consumer, 20), numbered(20))}, {second}"


@thing("failover")
def failover(c, topic):
    first = c.subscribe(topic, "s", consumer_type=ConsumerType.Failover, consumer_name="a")
    other_client = client()
    second = other_client.subscribe(topic, "s", consumer_type=ConsumerType.Failover, consumer_name="b")
    publish(c, topic, numbered(20), batching_enabled=False)
    got = receive(first, 10)
    first.close()
    got += receive(second, 10)
    other_client.close()
    return told(got, numbered(20))


def pooled(consumers, count):
    got = [[] for _ in consumers]
    until = time.monotonic() + MS / 1000
    while sum(map(len, got)) < count and time.monotonic() < until:
        for consumer, mine in zip(consumers, got, strict=True):
            try:
                message = consumer.receive(20)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            mine.append(message)
    return got


@thing("shared")
def shared(c, topic):
    consumers = [c.subscribe(topic, "s", consumer_type=ConsumerType.Shared, receiver_queue_size=5) for _ in range(2)]
    publish(c, topic, numbered(60), batching_enabled=False)
    got = pooled(consumers, 60)
    data = [message.data() for mine in got for message in mine]
    return f"{len(set(data))} of {len(data)}, " + ("both have some" if all(got) else "one has none")


@thing("key shared")
def key_shared(c, topic):
    consumers = [c.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared) for _ in range(2)]
    producer = c.create_producer(topic, batching_enabled=False)
    for number in range(60):
        producer.send(str(number).encode(), partition_key=f"k{number % 12}")
    got = pooled(consumers, 60)
    keys = [{message.partition_key() for message in mine} for mine in got]
    orders = all([int(m.data()) for m in mine if m.partition_key() == key]
                 == sorted(int(m.data()) for m in mine if m.partition_key() == key)
                 for mine, own in zip(got, keys, strict=True) for key in own)
    return (f"{sum(map(len, got))}, " + ("each key at one" if not keys[0] & keys[1] else "keys at both") +
            (", in order" if orders else ", out of order") + ("" if all(got) else ", one has none"))


@thing("batches of mixed keys")
def mixed_batches(c, topic):
    consumer = c.subscribe(topic, "s")
    producer = c.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=20)
    for number in range(30):
        producer.send_async(str(number).encode(), lambda result, _: None, partition_key=f"k{number % 7}",
                            properties={"n": str(number)})
    producer.flush()
    got = receive(consumer, 30)
    kept = all(m.partition_key() == f"k{int(m.data()) % 7}" and m.properties() == {"n": m.data().decode()} for m in got)
    return told(got, [str(n).encode() for n in range(30)]) + (", keys kept" if kept else ", keys lost")


@thing("batches by key")
def batches_by_key(c, topic):
    consumers = [c.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared) for _ in range(2)]
    producer = c.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=20,
                                 batching_type=pulsar.BatchingType.KeyBased)
    for number in range(60):
        producer.send_async(str(number).encode(), lambda result, _: None, partition_key=f"k{number % 12}")
    producer.flush()
    got = pooled(consumers, 60)
    keys = [{message.partition_key() for message in mine} for mine in got]
    return f"{sum(map(len, got))}, " + ("each key at one" if not keys[0] & keys[1] else "keys at both")


@thing("part of a batch acknowledged")
def part_of_batch(c, topic):
    needs(pulsar.Client.subscribe, "batch_index_ack_enabled")
    consumer = c.subscribe(topic, "s", consumer_type=ConsumerType.Shared, batch_index_ack_enabled=True)
    publish(c, topic, numbered(10), batching_enabled=True, batching_max_publish_delay_ms=100)
    for message in receive(consumer, 10, acknowledges=False)[:5]:
        consumer.acknowledge(message)
    consumer.close()
    again = c.subscribe(topic, "s", consumer_type=ConsumerType.Shared, batch_index_ack_enabled=True)
    return "others come again: " + told(receive(again, 5) + drain(again), numbered(10)[5:])


@thing("cumulative acknowledgement")
def cumulative(c, topic):
    consumer = c.subscribe(topic, "s")
    publish(c, topic, numbered(10), batching_enabled=False)
    got = receive(consumer, 10, acknowledges=False)
    consumer.acknowledge_cumulative(got[5])
    consumer.close()
    again = c.subscribe(topic, "s")
    return "others come again: " + told(receive(again, 4) + drain(again), numbered(10)[6:])


@thing("chunks")
def chunks(c, topic):
    payload = os.urandom(12_000_000)
    consumer = c.subscribe(topic, "s")
    producer = c.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    producer.send(b"small")
    producer.send(payload)
    large = receive(consumer, 2)[1]
    return f"{len(large.data())} bytes, " + ("the same" if large.data() == payload else "others")


def compressed(kind):
    def with_codec(c, topic):
        consumer = c.subscribe(topic, "s")
        payloads = [b"x" * 1000 + bytes([number]) for number in range(10)]
        publish(c, topic, payloads, compression_type=kind, batching_enabled=True)
        publish(c, topic, payloads, compression_type=kind, batching_enabled=False)
        return told(receive(consumer, 20), payloads * 2)
    return with_codec


for name, kind in (("LZ4", "LZ4"), ("zlib", "ZLib"), ("zstd", "ZSTD"), ("Snappy", "SNAPPY")):
    THINGS["compression " + name] = compressed(getattr(pulsar.CompressionType, kind))


class Ordered(Record):
    name = String()
    count = Integer()


class Wider(Record):
    name = String()
    count = Integer()
    remark = String(default=None, required_default=True)


class Other(Record):
    name = Integer(required=True)


for record in (Ordered, Wider, Other):
    record.__name__ = "Ordered"      # versions of one record


def with_schema(c, topic, schema):
    consumer = c.subscribe(topic, "s", schema=schema(Ordered))
    producer = c.create_producer(topic, schema=schema(Ordered))
    for number in range(3):
        producer.send(Ordered(name=f"n{number}", count=number))
    values = [message.value() for message in receive(consumer, 3)]
    return " ".join(f"{value.name}={value.count}" for value in values)


@thing("schema JSON")
def schema_json(c, topic):
    return with_schema(c, topic, JsonSchema)


@thing("schema Avro")
def schema_avro(c, topic):
    return with_schema(c, topic, AvroSchema)


@thing("schema evolved")
def schema_evolved(c, topic):
    old = c.create_producer(topic, schema=AvroSchema(Ordered))
    old.send(Ordered(name="old", count=1))
    new = c.create_producer(topic, schema=AvroSchema(Wider))
    new.send(Wider(name="new", count=2, remark="yes"))
    consumer = c.subscribe(topic, "s", schema=AvroSchema(Ordered), initial_position=InitialPosition.Earliest)
    return " ".join(message.value().name for message in receive(consumer, 2))


@thing("schema refused")
def schema_refused(c, topic):
    c.create_producer(topic, schema=AvroSchema(Ordered)).send(Ordered(name="old", count=1))
    try:
        c.create_producer(topic, schema=AvroSchema(Other))
    except pulsar.IncompatibleSchema:
        return "refused"
    return "admitted"


@thing("schema string")
def schema_string(c, topic):
    consumer = c.subscribe(topic, "s", schema=pulsar.schema.StringSchema())
    c.create_producer(topic, schema=pulsar.schema.StringSchema()).send("text")
    return consumer.receive(MS).value()


@thing("encryption")
def encryption(c, topic):
    reader = pulsar.CryptoKeyReader(TOLD["public"], TOLD["private"])
    consumer = c.subscribe(topic, "s", crypto_key_reader=reader)
    publish(c, topic, numbered(10), encryption_key="lab", crypto_key_reader=reader)
    return told(receive(consumer, 10), numbered(10))


@thing("dead letters")
def dead_letters(c, topic):
    needs(pulsar.Client.subscribe, "dead_letter_policy")
    dead = c.subscribe(topic + "-dlq", "d")
    consumer = c.subscribe(
        topic, "s", consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2, dead_letter_topic=topic + "-dlq",
                                                           initial_subscription_name="d"))
    publish(c, topic, [b"bad"])
    count, until = 0, time.monotonic() + MS / 1000
    while time.monotonic() < until:
        try:
            consumer.negative_acknowledge(consumer.receive(300))
            count += 1
        except pulsar.Timeout:
            try:
                letter = dead.receive(300)
            except pulsar.Timeout:
                continue
            return f"{count} deliveries, then {letter.data().decode()}"
    return f"{count} deliveries, no dead letter"


@thing("retry topic")
def retries(c, topic):
    if not hasattr(pulsar.Consumer, "reconsume_later"):
        raise Lacks("no reconsume_later")


@thing("seek by id")
def seek_by_id(c, topic):
    consumer = c.subscribe(topic, "s")
    publish(c, topic, numbered(10), batching_enabled=False)
    got = receive(consumer, 10)
    consumer.seek(got[4].message_id())
    return "from there: " + told(receive(consumer, 5), numbered(10)[5:])


@thing("seek by time")
def seek_by_time(c, topic):
    consumer = c.subscribe(topic, "s")
    publish(c, topic, numbered(5, "early"), batching_enabled=False)
    time.sleep(0.05)
    moment = int(time.time() * 1000)
    time.sleep(0.05)
    publish(c, topic, numbered(5, "late"), batching_enabled=False)
    receive(consumer, 10)
    consumer.seek(moment)
    return "from there: " + told(receive(consumer, 5), numbered(5, "late"))


@thing("seek to the begin")
def seek_to_begin(c, topic):
    consumer = c.subscribe(topic, "s")
    publish(c, topic, numbered(10))
    receive(consumer, 10)
    consumer.seek(pulsar.MessageId.earliest)
    return told(receive(consumer, 10), numbered(10))


@thing("reader from the begin")
def reader_from_begin(c, topic):
    publish(c, topic, numbered(20))
    reader = c.create_reader(topic, pulsar.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(MS))
    return told(got, numbered(20))


@thing("reader from an id")
def reader_from_id(c, topic):
    producer = c.create_producer(topic, batching_enabled=False)
    ids = [producer.send(payload) for payload in numbered(10)]
    reader = c.create_reader(topic, ids[3], start_message_id_inclusive=True) if accepts(
        pulsar.Client.create_reader, "start_message_id_inclusive") else None
    if reader is None:
        reader, first = c.create_reader(topic, ids[3]), 4
    else:
        first = 3
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(MS))
    return "from there: " + ("in order" if in_order(got, numbered(10)[first:]) else told(got, numbered(10)[first:]))


@thing("last message id")
def last_id(c, topic):
    consumer = c.subscribe(topic, "s")
    if not hasattr(consumer, "get_last_message_id"):
        raise Lacks("no get_last_message_id")
    producer = c.create_producer(topic, batching_enabled=False)
    ids = [producer.send(payload) for payload in numbered(3)]
    last = consumer.get_last_message_id()
    return "the last one" if (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id()) else str(
        last)


@thing("table view")
def table_view(c, topic):
    if not hasattr(c, "create_table_view"):
        raise Lacks("no create_table_view")
    producer = c.create_producer(topic)
    for number in range(10):
        producer.send(str(number).encode(), partition_key=f"k{number % 3}")
    view = c.create_table_view(topic)
    until = time.monotonic() + MS / 1000
    while len(view) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    seen = dict(iter_view(view))
    return " ".join(f"{key}={seen[key].decode()}" for key in sorted(seen))


def iter_view(view):
    found = []
    view.for_each(lambda key, value: found.append((key, value)))
    return found


@thing("pattern")
def pattern(c, topic):
    import re
    publish(c, topic + "-a", [])
    consumer = c.subscribe(re.compile(topic + "-.*"), "s", pattern_auto_discovery_period=1)
    publish(c, topic + "-a", numbered(3))
    late = c.create_producer(topic + "-b")
    got = receive(consumer, 3)
    until = time.monotonic() + MS / 1000
    number = 0
    while time.monotonic() < until:      # until the client has found the new topic
        late.send(f"late{number}".encode())
        number += 1
        try:
            got.append(consumer.receive(500))
        except pulsar.Timeout:
            continue
        return f"{len(got) - 1}, and of a later topic"
    return f"{len(got)}, none of a later topic"


@thing("several topics")
def several(c, topic):
    topics = [f"{topic}-{letter}" for letter in "abc"]
    consumer = c.subscribe(topics, "s")
    for name in topics:
        publish(c, name, numbered(4, name[-1]))
    got = receive(consumer, 12)
    return f"{len({message.data() for message in got})} of {len({message.topic_name() for message in got})} topics"


@thing("partitions")
def partitions(c, topic):
    please("PUT", topic.replace("://", "/") + "/partitions", 3)
    consumer = c.subscribe(topic, "s")
    producer = c.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    for number in range(30):
        producer.send(str(number).encode(), partition_key=f"k{number % 10}")
    got = receive(consumer, 30)
    of_key = {}
    for message in got:
        of_key.setdefault(message.partition_key(), set()).add(message.message_id().partition())
    return f"{len({m.data() for m in got})}, " + (
        "each key in one" if all(len(found) == 1 for found in of_key.values()) else "keys in several")


@thing("partitions added")
def partitions_added(c, topic):
    please("PUT", topic.replace("://", "/") + "/partitions", 1)
    producer = c.create_producer(topic)
    consumer = c.subscribe(topic, "s")
    producer.send(b"before")
    please("POST", topic.replace("://", "/") + "/partitions", 3)
    fresh = client()
    other = fresh.create_producer(topic, batching_enabled=False,
                                  message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    consumer.close()
    again = fresh.subscribe(topic, "s")
    for payload in numbered(9):
        other.send(payload)
    got = receive(again, 10)
    fresh.close()
    return f"{len(got)} of {len({message.message_id().partition() for message in got})} partitions"


@thing("negative acknowledgement")
def nack(c, topic):
    consumer = c.subscribe(topic, "s", consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=200)
    publish(c, topic, [b"again"])
    consumer.negative_acknowledge(consumer.receive(MS))
    message = consumer.receive(MS)
    consumer.acknowledge(message)
    return f"{message.data().decode()}, count {message.redelivery_count()}"


@thing("acknowledgement timeout")
def ack_timeout(c, topic):
    consumer = c.subscribe(topic, "s", consumer_type=ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    publish(c, topic, [b"again"])
    consumer.receive(MS)
    message = consumer.receive(2 * MS)
    consumer.acknowledge(message)
    return f"{message.data().decode()}, count {message.redelivery_count()}"


@thing("delayed")
def delayed(c, topic):
    import datetime
    consumer = c.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    producer = c.create_producer(topic, batching_enabled=False)
    producer.send(b"later", deliver_after=datetime.timedelta(seconds=1))
    sent = time.monotonic()
    producer.send(b"now")
    first, second = receive(consumer, 2)
    late = time.monotonic() - sent
    return f"{first.data().decode()}, {second.data().decode()}, " + ("in time" if 0.9 < late < 6 else f"{late:.1f} s")


@thing("transaction committed")
def committed(c, topic):
    if not hasattr(c, "new_transaction"):
        raise Lacks("no transactions")


@thing("transaction aborted")
def aborted(c, topic):
    committed(c, topic)


@thing("deduplication")
def deduplication(c, topic):
    name = topic.rpartition("/")[2]
    please("PUT", f"namespaces/public/{name}")
    please("POST", f"namespaces/public/{name}/deduplication", True)
    own = f"persistent://public/{name}/t"
    consumer = c.subscribe(own, "s")
    producer = c.create_producer(own, producer_name="p", batching_enabled=False)
    for sequence_id in (1, 2, 2, 1, 3):
        producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    return told(drain(consumer, 1500), [b"1", b"2", b"3"])


@thing("closed in the middle")
def closed(c, topic):
    publish(c, topic, [])
    consumer = c.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    publish(c, topic, numbered(20), batching_enabled=False)
    got = receive(consumer, 10)
    receive(consumer, 5, acknowledges=False)
    c.close()
    other = client()
    again = other.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    rest = receive(again, 10)
    other.close()
    return told(got + rest, numbered(20))


@thing("broker started again")
def restarted(c, topic):
    consumer = c.subscribe(topic, "s")
    producer = c.create_producer(topic, send_timeout_millis=60_000)
    for payload in numbered(10):
        producer.send(payload)
    got = receive(consumer, 5)
    please("restart")
    for payload in numbered(10, "n"):
        producer.send(payload)
    data, until = [message.data() for message in got], time.monotonic() + 2 * MS / 1000
    while len(set(data)) < 20 and time.monotonic() < until:
        try:
            message = consumer.receive(1000)
        except pulsar.Timeout:
            continue
        consumer.acknowledge(message)
        data.append(message.data())
    return f"{len(set(data))} of 20, " + ("in order" if list(dict.fromkeys(data)) == numbered(10) + numbered(10, "n")
                                          else "out of order")


@thing("topic deleted")
def deleted(c, topic):
    producer = c.create_producer(topic, send_timeout_millis=20_000)
    producer.send(b"before")
    please("DELETE", topic.replace("://", "/") + "?force=true")
    try:
        producer.send(b"after")
    except Exception:
        producer = client().create_producer(topic)
        producer.send(b"after")
    consumer = c.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    return "only " + " ".join(message.data().decode() for message in receive(consumer, 1) + drain(consumer))


@thing("unsubscribe")
def unsubscribe(c, topic):
    consumer = c.subscribe(topic, "s")
    publish(c, topic, numbered(3))
    consumer.unsubscribe()
    again = c.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    return told(receive(again, 3), numbered(3))


@thing("properties and times")
def properties(c, topic):
    consumer = c.subscribe(topic, "s")
    producer = c.create_producer(topic, batching_enabled=False)
    producer.send(b"x", properties={"a": "1", "empty": ""}, event_timestamp=12345, partition_key="k",
                  ordering_key="o")
    message = consumer.receive(MS)
    return (f"{sorted(message.properties().items())} {message.event_timestamp()} {message.partition_key()} "
            f"{message.ordering_key()}")


@thing("exclusive producer")
def exclusive_producer(c, topic):
    needs(pulsar.Client.create_producer, "access_mode")
    c.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    other = client()
    try:
        other.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        return "second admitted"
    except Exception as error:
        return "second refused" if "ProducerFenced" in type(error).__name__ + str(error) else refusal(error)
    finally:
        other.close()


@thing("non-persistent")
def non_persistent(c, topic):
    topic = topic.replace("persistent", "non-persistent")
    consumer = c.subscribe(topic, "s")
    publish(c, topic, numbered(10))
    return told(receive(consumer, 10), numbered(10))


@thing("without a queue")
def without_queue(c, topic):
    consumer = c.subscribe(topic, "s", receiver_queue_size=0)
    publish(c, topic, numbered(5), batching_enabled=False)
    got = [consumer.receive() for _ in range(5)]      # such a consumer knows no wait with an end
    return told(got, numbered(5))


def refused_with(**options):
    other = client(**options)
    try:
        other.create_producer("persistent://public/default/" + TOLD["prefix"] + "-credentials")
    except Exception:
        return "refused"
    finally:
        other.close()
    return "admitted"


@thing("forged token")
def forged(c, topic):
    return refused_with(authentication=pulsar.AuthenticationToken(TOLD["forged"]))


@thing("expired token")
def expired(c, topic):
    return refused_with(authentication=pulsar.AuthenticationToken(TOLD["expired"]))


@thing("token over TLS")
def token_over_tls(c, topic):
    secure = client(TOLD["tls"], authentication=pulsar.AuthenticationToken(TOLD["token"]),
                    tls_trust_certs_file_path=TOLD["trusted"], tls_validate_hostname=True)
    consumer = secure.subscribe(topic, "s")
    publish(secure, topic, numbered(10))
    answer = told(receive(consumer, 10), numbered(10))
    secure.close()
    return answer


@thing("TLS of a stranger")
def stranger(c, topic):
    other = client(TOLD["tls"], tls_trust_certs_file_path=TOLD["stranger"], tls_validate_hostname=True)
    try:
        other.create_producer(topic)
    except Exception:
        return "refused"
    finally:
        other.close()
    return "admitted"


@thing("lookup over HTTP")
def over_http(c, topic):
    other = client(TOLD["http"])
    consumer = other.subscribe(topic, "s")
    publish(other, topic, numbered(5))
    answer = told(receive(consumer, 5), numbered(5))
    other.close()
    return answer


def run(name):
    topic = f"persistent://public/default/{TOLD['prefix']}-{name.replace(' ', '-')}"
    c = client()
    try:
        return THINGS[name](c, topic)
    finally:
        with contextlib.suppress(Exception):
            c.close()


def main():
    for name in TOLD["things"].split(","):
        try:
            answer = run(name) if name in THINGS else "lacks: not in this program"
        except Lacks as why:
            answer = f"lacks: {why}"
        except Exception as error:
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps({"thing": name, "answer": answer}), flush=True)


if __name__ == "__main__":
    main()
