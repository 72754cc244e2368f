"""The official Python client reads compacted topics: while views are swapped, from ledgers that are gone, over kills;
ghosts: 0.

The client knows nothing of messages that are compacted out: what it were given of those it would show.
"""
import json
import threading

import pulsar
import pytest

from ..harness import HANG_MS, Broker, eventually, request, unique_topic
from .test_administration import topic_url
from .test_key_values import compact

BATCHES = {"batching_enabled": True, "batching_max_messages": 10, "batching_max_publish_delay_ms": 1_000}


@pytest.fixture(scope="module")
def small_broker(tmp_path_factory):
    """A broker with small ledgers, which are deleted as soon as no subscription needs them."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "geminga.toml").write_text("workers = 2\nowners = 2\n[storage]\nroll_over_entries = 20\n")
    own = Broker(folder / "data", "--config", str(folder / "geminga.toml"))
    try:
        yield own.start()
    finally:
        own.close()


class Table:
    """A topic of keys and values, and the dictionary that compaction should leave of it."""

    def __init__(self, client, topic: str, **how):
        self.topic, self.values = topic, {}
        self._producer = client.create_producer(topic, **how)

    def put(self, *pairs):
        """Publish (key, value) pairs, None for a tombstone, and wait for their receipts."""
        for key, value in pairs:
            self._producer.send_async(value.encode(), lambda *_: None, partition_key=key)
            self.values.pop(key, None)
            if value:
                self.values[key] = value
        self._producer.flush()

    def put_many(self, name: str, count: int = 100, keys: int = 25):
        self.put(*[(f"key-{number % keys}", "" if number % 7 == 0 else f"{name}-{number}") for number in range(count)])


class Reading:
    """The messages that a reader or consumer received."""

    def __init__(self):
        self.values, self.ids, self.ghosts = {}, [], 0

    def take(self, message):
        key, value = message.partition_key(), message.data().decode()
        self.ghosts += not key
        self.values.pop(key, None)
        if value:
            self.values[key] = value
        found = message.message_id()
        self.ids.append((found.ledger_id(), found.entry_id(), found.batch_index()))

    def read(self, reader, at_most: int = 1 << 30):
        """Read up to `at_most` messages, as long as the reader has any."""
        while at_most and reader.has_message_available():
            self.take(reader.read_next(HANG_MS))
            at_most -= 1
        return self

    @property
    def is_ordered(self) -> bool:
        """Whether no message came twice or before an earlier one."""
        return self.ids == sorted(set(self.ids))


def reader_of(client, topic: str, start=pulsar.MessageId.earliest, **how):
    return client.create_reader(topic, start, is_read_compacted=True, **how)


def internal_stats(broker, topic: str) -> dict:
    return json.loads(request("GET", topic_url(broker, topic, "internalStats"))[1])


def test_a_reader_in_the_midst_of_a_view_goes_on_with_it(small_broker, connect):
    client = connect(small_broker.service_url)
    table = Table(client, unique_topic("swapped"), **BATCHES)
    table.put_many("first")
    compact(small_broker, table.topic)
    reader = reader_of(client, table.topic, receiver_queue_size=3)
    reading = Reading().read(reader, 5)
    for name in ("second", "third"):
        table.put_many(name)
        compact(small_broker, table.topic)
    table.put(("key-1", ""), ("more", "1"))
    late = Reading().read(reader_of(client, table.topic))
    reading.read(reader)
    for one in (reading, late):
        assert one.values == table.values and one.is_ordered and one.ghosts == 0
    assert len(late.ids) == len(table.values) + 2      # and the value of key-1 with its tombstone


def test_views_are_swapped_under_load(small_broker, connect):
    """While views are replaced, a reader and a subscription each end with the right dictionary."""
    client = connect(small_broker.service_url)
    table = Table(client, unique_topic("load"), **BATCHES)
    consumer = client.subscribe(table.topic, "sub", is_read_compacted=True,
                                initial_position=pulsar.InitialPosition.Earliest,
                                receiver_queue_size=20)
    table.put_many("0")
    # Before a first view nothing is kept for compactions, and one whose ledgers go meanwhile ends with an error.
    compact(small_broker, table.topic)
    reader = reader_of(client, table.topic, receiver_queue_size=20)
    reading, consuming, is_over = Reading(), Reading(), threading.Event()

    def consume():
        while True:
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                if is_over.is_set() and has_no_backlog(small_broker, table.topic):
                    return
                continue
            consuming.take(message)
            consumer.acknowledge(message)

    def publish():
        for number in range(1, 15):
            table.put_many(str(number))
        is_over.set()

    threads = [threading.Thread(target=run) for run in (consume, publish)]
    for thread in threads:
        thread.start()
    while not is_over.is_set():
        compact(small_broker, table.topic)
        reading.read(reader, 50)
    for thread in threads:
        thread.join()
    reading.read(reader)
    for one in (reading, consuming):
        assert one.values == table.values and one.is_ordered and one.ghosts == 0


def has_no_backlog(broker, topic: str) -> bool:
    status, body = request("GET", topic_url(broker, topic, "stats"))
    return status == 200 and not json.loads(body)["subscriptions"]["sub"]["msgBacklog"]


def test_what_is_gone_from_ledgers_comes_from_the_view(small_broker, connect):
    client = connect(small_broker.service_url)
    table = Table(client, unique_topic("trimmed"), batching_enabled=False)
    client.subscribe(table.topic, "all").close()
    for number in range(5):
        table.put_many(str(number), 20)
    compact(small_broker, table.topic)
    before = internal_stats(small_broker, table.topic)
    assert request("POST", topic_url(small_broker, table.topic, "subscription/all/skip_all"))[0] == 204
    after = eventually(lambda: len((said := internal_stats(small_broker, table.topic))["ledgers"]) == 1 and said)
    assert len(before["ledgers"]) > 3 and after["compactedLedger"]["entries"] == len(table.values)
    table.put(("key-3", "more"))
    reading = Reading().read(reader_of(client, table.topic))
    assert reading.values == table.values and reading.is_ordered
    half = pulsar.MessageId(-1, *reading.ids[10][:2], -1)
    assert Reading().read(reader_of(client, table.topic, half)).ids == reading.ids[11:]
    assert Reading().read(reader_of(client, table.topic, pulsar.MessageId.latest)).ids == []
    reader = reader_of(client, table.topic)
    reader.seek(half)
    assert set(reading.ids[11:]) <= set(Reading().read(reader).ids)


@pytest.mark.parametrize("who", ["owner", "supervisor"])
def test_kills_cost_nothing(start_broker, tmp_path, connect, who):
    """After a kill a subscription continues exactly where it was, also among messages that only the view holds."""
    (tmp_path / "geminga.toml").write_text("workers = 1\nowners = 1\n[storage]\nroll_over_entries = 20\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"))
    client = connect(broker.service_url)
    table = Table(client, unique_topic("killed"), **BATCHES)
    client.subscribe(table.topic, "all").close()
    table.put_many("first", 300, 100)
    compact(broker, table.topic)
    assert request("POST", topic_url(broker, table.topic, "subscription/all/skip_all"))[0] == 204
    eventually(lambda: len(internal_stats(broker, table.topic)["ledgers"]) == 1)
    consuming = Reading()

    def subscribe(client):
        return client.subscribe(table.topic, "sub", is_read_compacted=True,
                                initial_position=pulsar.InitialPosition.Earliest,
                                receiver_queue_size=10, batch_index_ack_enabled=True)

    consumer = subscribe(client)
    for number in range(30):
        message = consumer.receive(HANG_MS)
        consuming.take(message)
        if number % 3:
            consumer.acknowledge(message)
    if who == "supervisor":
        broker.kill_supervisor()
        client.shutdown()
        client = connect(broker.start().service_url)
        consumer = subscribe(client)
    else:
        broker.wait_replaced(who, 0, broker.kill(who))
    again = Reading()

    def next_message():
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            return has_no_backlog(broker, table.topic)
        again.take(message)
        consumer.acknowledge(message)
        return False

    eventually(next_message)
    assert consuming.values | again.values == table.values and again.ghosts == 0
    assert set(consuming.ids[::3]) <= set(again.ids)      # not acknowledged
