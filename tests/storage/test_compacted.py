"""Consumers that read compacted: they get the compacted view up to its horizon, then the ledgers behind the horizon.
Nothing is missing or repeated when a view is replaced or ledgers are deleted.
"""
import random
import shutil
import struct
from dataclasses import dataclass, field

import numpy as np
import pytest
from crc32c import crc32c

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.jobs.compacting import continuation, nightly
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.offline import dump, verify
from geminga.storage.offline.findings import Severity
from geminga.storage.open_topics.compacted_views import news
from geminga.storage.topics.subscription import SubType
from geminga.workers.clients.egress import Ledgers

from . import transacting
from .files import flip

SECOND = 1_000
EARLIEST = api.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)
NAME = "persistent://public/default/t"


def batch_of(*messages):
    """Return the payload and the `sends` arguments of a batch entry with these (key, value) messages."""
    body = b""
    for key, value in messages:
        one = api.SingleMessageMetadata(payload_size=len(value), partition_key=key).SerializeToString()
        body += struct.pack(">I", len(one)) + one + value
    return body, {"batch": len(messages)}


def messages_of(entry, words):
    """Return [(batch index or -1, key, value)] of the entry's messages that a client shows. The client drops
    messages by the ack set `words`; none of the others may be marked compacted out.
    """
    size = struct.unpack_from(">I", entry, 6)[0]
    metadata, body = api.MessageMetadata.FromString(entry[10:10 + size]), entry[10 + size:]
    if not metadata.HasField("num_messages_in_batch"):
        return [(-1, metadata.partition_key, body)]
    found, at, bits = [], 0, sum(word << 64 * n for n, word in enumerate(words))
    for number in range(metadata.num_messages_in_batch):
        size = struct.unpack_from(">I", body, at)[0]
        one = api.SingleMessageMetadata.FromString(body[at + 4:at + 4 + size])
        value = body[at + 4 + size:at + 4 + size + one.payload_size]
        at += 4 + size + one.payload_size
        if not words or bits >> number & 1:
            assert not one.compacted_out, "a ghost"
            found.append((number, one.partition_key, value))
    return found


class Topic:
    """A topic that a test publishes to and compacts. `values` is the dictionary {key: last value} that a reader
    should end with.
    """

    def __init__(self, rig):
        self.rig, self.values, self.readings = rig, {}, []
        self.producer = rig.producer("t")

    @property
    def partition(self):
        return self.rig.partition("t")

    def moved(self, rig):
        """Go on with another process of the broker, to which no client is connected."""
        self.rig, self.producer, self.readings = rig, rig.producer("t"), []

    def run(self, *sections, **how):
        """Run a pass of the owner and hand its deliveries to the open readings. Return the answers."""
        answers = self.rig.run(*sections, **how)
        for reading in self.readings:
            reading.take(answers)
        return answers

    def asked(self, ask, **arguments):
        [answer] = self.run(self.rig.question(ask, "t", **arguments)).answered
        return answer.get("answer")

    def publish(self, *messages):
        """Publish messages, each as (key, value) with an empty value for a tombstone, or as a list of such pairs for
        a batch. Return the entries' positions.
        """
        positions = []
        for one in messages:
            sent = (
                (self.producer, one[1], {"partition_key": one[0]})
                if isinstance(one, tuple)
                else (self.producer, *batch_of(*one))
            )
            positions += self.run(self.rig.sends(sent)).positions
            for key, value in [one] if isinstance(one, tuple) else one:
                self.values.pop(key, None)
                if value:
                    self.values[key] = value
        return positions

    def compact(self):
        """Compact the topic in this process, as a job does in its own process beside the broker. Return the report."""
        report = nightly.compact(self.rig.data_dir, nightly.Target(self.partition.partition_id, NAME), self.adopt)
        assert report.outcome in (nightly.COMPACTED, nightly.NOTHING_NEW), report
        return report

    def adopt(self, partition_id, topic, number):
        [answer] = self.run(self.rig.question("adopt-view", "t", view=number)).answered
        return answer.get("text")

    def views(self):
        return compacted_ledgers.numbers(self.partition.folder)

    def reader(self, **fields):
        return Reading(self, durable=False, **fields)

    def last_message(self, reading):
        handle = reading.consumer
        answers = self.run(self.rig.command("getLastMessageId", consumer_id=handle.object_id, request_id=1))
        [command] = answers.commands(api.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        last = command.getLastMessageIdResponse.last_message_id
        return tuple(value - (1 << 64) if value >> 63 else value for value in (last.ledgerId, last.entryId)) + (
            last.batch_index,
        )

    def account(self, name):
        """Return {outcome: messages} of all messages since the subscription began, after a check that the outcomes
        add up to "published".
        """
        told = self.asked("why", subscription=name)["messages"]
        assert told["published"] == sum(value for name, value in told.items() if name != "published"), told
        return told


@dataclass(eq=False)
class Reading:
    """A consumer of the topic, by default one that reads compacted, and all that was delivered to it."""

    topic: Topic
    name: str = "reader"
    durable: bool = True
    compacted: bool = True
    start: api.MessageIdData | None = None
    initial: int = api.CommandSubscribe.Earliest
    values: dict = field(default_factory=dict)
    got: list = field(default_factory=list)           # (position, batch index, key, value)
    positions: list = field(default_factory=list)     # of entries
    views: list = field(default_factory=list)         # view of each entry, 0 for ledgers
    consumer: object = None
    seen: int = 0

    def __post_init__(self):
        self.attach()

    def attach(self, **fields):
        if self.start is not None:
            fields["start_message_id"] = self.start
        self.consumer = self.topic.rig.consumer("t", self.name, durable=self.durable, read_compacted=self.compacted,
                                                initialPosition=self.initial, **fields)
        if self not in self.topic.readings:
            self.topic.readings.append(self)

    def read(self, permits=1_000):
        """Grant permits. Return [(position, batch index, key, value)] of the messages delivered since the last call."""
        self.topic.run(self.topic.rig.flow(self.consumer, permits))
        before, self.seen = self.seen, len(self.got)
        return self.got[before:]

    def take(self, answers):
        found, ledgers = [], Ledgers(self.topic.rig.data_dir)
        for (number, partition_id, ledger_id, given), view in zip(answers.gifts, answers.views, strict=True):
            if number != self.consumer.number:
                continue
            ids = np.array([entry_id for entry_id, _, _ in given], np.uint64)
            rows, data = ledgers.pick(partition_id, ledger_id, ids, view)
            assert len(rows) == len(given)
            for row, (entry_id, _, words) in zip(rows, given, strict=True):
                entry = bytes(data[int(row["offset"]):int(row["offset"]) + int(row["size"])])
                self.positions.append((ledger_id, entry_id))
                self.views.append(view)
                found += [((ledger_id, entry_id), *message) for message in messages_of(entry, words)]
        for _, _, key, value in found:
            self.values.pop(key, None)
            if value:
                self.values[key] = value
        self.got += found

    def ack(self, *positions, **how):
        if positions:
            self.topic.run(self.topic.rig.acks(self.consumer, *positions, **how))

    def ack_all(self):
        self.ack(self.positions[-1], cumulative=True)

    def close(self):
        self.topic.readings.remove(self)
        self.topic.rig.close_consumer(self.consumer)


@pytest.fixture
def topic(rig):
    return Topic(rig)


def small(rigs, entries=4, **options):
    """Return a topic whose ledgers roll over after a few entries."""
    return Topic(rigs(roll_over_entries=entries, **options))


def keys_of(found):
    return [key for _, _, key, _ in found]


@pytest.mark.slow
def test_each_key_comes_once_and_then_what_follows(topic):
    first = topic.publish(("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b""))
    topic.compact()
    later = topic.publish(("c", b"2"), ("a", b""))
    reader = topic.reader()
    assert reader.read() == [
        (first[2], -1, "a", b"2"),
        (first[3], -1, "c", b"1"),
        (later[0], -1, "c", b"2"),
        (later[1], -1, "a", b""),
    ]
    assert reader.values == topic.values == {"c": b"2"}
    assert reader.read() == []
    topic.publish(("d", b"1"))
    assert keys_of(reader.read(1)) == ["d"]


def test_others_get_everything(topic):
    topic.publish(*[("a", b"%d" % number) for number in range(5)])
    topic.compact()
    assert [payload for _, payload in topic.rig.everything("t")] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(topic.rig.receive(topic.rig.consumer("t"))) == 5


def test_batches_come_without_what_is_gone_of_them(topic):
    [first] = topic.publish([("a", b"1"), ("b", b"1"), ("c", b"1")])
    [second] = topic.publish([("b", b"2"), ("a", b"")])
    topic.compact()
    reader = topic.reader()
    assert reader.read() == [(first, 2, "c", b"1"), (second, 0, "b", b"2")]
    assert topic.last_message(reader) == (*second, 0)


def test_the_last_entry_of_a_view_comes_without_the_messages_that_are_gone(topic):
    topic.publish(("a", b"1"), ("b", b"1"))
    [last] = topic.publish([("c", b"1"), ("c", b"2")])
    topic.compact()
    reader = topic.reader()
    assert keys_of(reader.read(2)) == ["a", "b"]
    assert reader.read() == [(last, 1, "c", b"2")]


def test_an_entry_that_does_not_exist_yet_cannot_be_acknowledged(topic):
    [(ledger_id, entry_id)] = topic.publish(("a", b"1"))
    topic.compact()
    reader = Reading(topic, "durable")
    reader.read()
    reader.ack((ledger_id, entry_id + 1), cumulative=True)
    topic.publish(("b", b"1"))
    reader.close()
    assert keys_of(Reading(topic, "durable").read()) == ["a", "b"]


def test_permits_count_what_clients_count(topic):
    """All messages of a batch take a permit, compacted ones too, because a client gives back a permit for each
    message that it passes over.
    """
    topic.publish([("a", b"1"), ("b", b"1"), ("c", b"1")], [("a", b"2"), ("b", b"2")], ("d", b"1"), ("e", b"1"))
    topic.compact()
    reader = topic.reader()
    assert keys_of(reader.read(3)) == ["c"]
    assert keys_of(reader.read(3)) == ["a", "b", "d"]


@pytest.mark.parametrize("durable", [False, True], ids=["reader", "subscription"])
def test_what_ledgers_have_no_more_the_view_has(rigs, durable):
    topic = small(rigs, retention_s=0)
    other = topic.rig.consumer("t", "other")
    first = topic.publish(*[(f"k{number}", b"1") for number in range(10)])
    topic.compact()
    topic.run(topic.rig.acks(other, first[-1], cumulative=True))
    topic.run(after_ms=2 * SECOND)
    assert topic.rig.files("t") == sorted({ledger_id for ledger_id, _ in first})[-1:]
    later = topic.publish(("k3", b"2"))
    reading = Reading(topic, durable=durable)
    assert [position for position, *_ in reading.read()] == first + later
    assert reading.values == topic.values


def test_where_a_reader_begins_in_a_view(rigs):
    topic = small(rigs)
    other = topic.rig.consumer("t", "other")
    # the first seven are replaced
    first = topic.publish(*[(f"k{number % 7}", b"%d" % number) for number in range(14)])
    topic.compact()
    topic.run(topic.rig.acks(other, first[-1], cumulative=True))
    topic.run(after_ms=2 * SECOND)
    for number, position in enumerate(first):
        reader = topic.reader(start=api.MessageIdData(ledgerId=position[0], entryId=position[1]))
        assert [position for position, *_ in reader.read()] == first[max(number, 7):]
        reader.close()
    latest = topic.reader(
        start=api.MessageIdData(ledgerId=(1 << 63) - 1, entryId=(1 << 63) - 1), initial=api.CommandSubscribe.Latest
    )
    assert latest.read() == []
    answers = topic.run(topic.rig.command("seek", consumer_id=latest.consumer.object_id, request_id=77,
                                          message_id=api.MessageIdData(ledgerId=first[9][0], entryId=first[9][1])))
    assert answers.commands(api.BaseCommand.SUCCESS)
    latest.attach()
    assert [position for position, *_ in latest.read()] == first[9:]


def test_a_seek_by_time_within_a_view(topic):
    positions = []
    for number in range(6):
        sent = topic.rig.sends(
            (topic.producer, b"%d" % number, {"partition_key": f"k{number % 3}", "publish_time": 1_000 + number})
        )
        positions += topic.run(sent).positions
    topic.compact()
    reader = topic.reader()
    topic.run(
        topic.rig.command("seek", consumer_id=reader.consumer.object_id, request_id=77, message_publish_time=1_004)
    )
    reader.attach()
    assert [position for position, *_ in reader.read()] == positions[4:]


def test_the_last_message_is_one_that_comes(topic):
    """The last message id is that of a message that will be delivered, also behind compacted tombstones or when no
    key is left. Otherwise a client that polls has-message-available would never end.
    """
    assert topic.last_message(topic.reader(name="empty"))[1] == -1
    positions = topic.publish(("a", b"1"), ("b", b"1"), ("c", b""), ("b", b""))
    topic.compact()
    reader = topic.reader()
    assert topic.last_message(reader) == (*positions[0], -1)
    assert keys_of(reader.read()) == ["a"]
    reader.ack_all()
    assert topic.last_message(reader) == (*positions[0], -1)
    [tombstone] = topic.publish(("a", b""))
    assert topic.last_message(reader) == (*tombstone, -1)
    assert keys_of(reader.read()) == ["a"]
    topic.compact()
    # to be delivered to this reader, until it has acknowledged it
    assert topic.last_message(reader) == (*tombstone, -1)
    reader.ack_all()
    for one in (reader, topic.reader(name="late")):
        assert topic.last_message(one) == (-1, -1, -1)
        assert one.read() == []


def test_a_durable_subscription_is_done_when_it_has_what_is_left(rigs):
    """A durable subscription counts messages that the view leaves out as skipped, exactly, also after a crash. Its
    backlog is empty once the messages of the view are acknowledged.
    """
    topic = small(rigs)
    reading = Reading(topic, "sub")
    reading.close()
    positions = topic.publish(*[(f"k{number % 5}", b"%d" % number) for number in range(20)])
    topic.compact()
    reading.attach()
    assert keys_of(reading.read()) == ["k0", "k1", "k2", "k3", "k4"]
    assert topic.account("sub") | {"published": 0} == {
        "published": 0, "acknowledged": 0, "expired": 0, "skipped": 15, "evicted": 0, "backlog": 5}
    reading.ack(*positions[17:19])
    topic.moved(rigs.crash(topic.rig))
    reading.attach()
    assert keys_of(reading.read()) == ["k0", "k1", "k4"]
    reading.ack(positions[15], positions[16], positions[19])
    account = topic.account("sub")
    assert (account["backlog"], account["acknowledged"], account["skipped"]) == (0, 5, 15)
    assert topic.partition.subscriptions["sub", True].cursor.mark_delete >= positions[-1]


def test_who_reads_compacted_no_more_waits_for_nothing_that_only_the_view_has(rigs):
    """A subscription that changes to plain reading advances past deleted ledgers. Otherwise its mark-delete position
    would stay at an entry that only the view has.
    """
    topic = small(rigs, retention_s=0)
    other = topic.rig.consumer("t", "other")
    positions = topic.publish(*[(f"k{number}", b"1") for number in range(10)])
    topic.compact()
    topic.run(topic.rig.acks(other, positions[-1], cumulative=True))
    topic.run(after_ms=2 * SECOND)
    reading = Reading(topic, "sub")
    reading.read(2)
    reading.ack(*reading.positions)
    reading.close()
    plain = Reading(topic, "sub", compacted=False)
    assert [position for position, *_ in plain.read()] == positions[8:]
    plain.ack(*positions[8:])
    assert topic.partition.subscriptions["sub", True].cursor.mark_delete == positions[-1]


def test_acknowledgements_of_what_only_the_view_has_are_kept(rigs):
    topic = small(rigs)
    other = topic.rig.consumer("t", "other")
    positions = topic.publish(*[(f"k{number}", b"1") for number in range(9)])
    [cut] = topic.publish([("x", b"1"), ("y", b"1"), ("z", b"1"), ("k0", b"")])
    positions += topic.publish(("y", b"2"), ("m", b"1"), ("n", b"1"), ("o", b"1"))
    topic.compact()
    topic.run(topic.rig.acks(other, positions[-1], cumulative=True))
    topic.run(after_ms=2 * SECOND)
    assert topic.partition.ledgers[0].ledger_id > cut[0]
    reading = Reading(topic, "sub")
    assert keys_of(reading.read()) == [*(f"k{number}" for number in range(1, 9)), "x", "z", "y", "m", "n", "o"]
    reading.ack(positions[1], positions[3], positions[7])
    # a client keeps the bits of compacted messages
    topic.run(topic.rig.ack_part(reading.consumer, cut, 0b1110))
    for how in (rigs.crash, rigs.restart, rigs.crash):
        topic.moved(how(topic.rig))
        reading.attach()
        assert keys_of(reading.read()) == ["k2", "k4", "k5", "k6", "k8", "z", "y", "m", "n", "o"]
        topic.account("sub")
    topic.run(topic.rig.ack_part(reading.consumer, cut, 0b1011))
    reading.ack(*positions[2:9])
    topic.moved(rigs.crash(topic.rig))
    reading.attach()
    assert keys_of(reading.read()) == ["y", "m", "n", "o"]
    reading.ack(positions[-1], cumulative=True)
    assert topic.account("sub")["backlog"] == 0


def test_transactions_acknowledge_what_only_the_view_has(uncoordinated):
    """Entries and messages that only the view has are withheld, and committed or given back, as all others are."""
    topic = small(uncoordinated)
    other = topic.rig.consumer("t", "other")
    [cut] = topic.publish([("x", b"1"), ("y", b"1"), ("z", b"1"), ("k0", b"1")])
    positions = topic.publish(*[(f"k{number}", b"1") for number in range(9)], ("y", b"2"))
    topic.compact()
    topic.run(topic.rig.acks(other, positions[-1], cumulative=True))
    topic.run(after_ms=2 * SECOND)
    assert topic.partition.ledgers[0].ledger_id > positions[2][0]
    reading = Reading(topic, "sub")
    assert keys_of(reading.read()) == ["x", "z", *(f"k{number}" for number in range(9)), "y"]
    transacting.open_for(topic.rig, transacting.FIRST, transacting.SECOND)
    asked = positions[1], (*cut, [0b1110])
    assert transacting.answer(topic.rig, reading.consumer, transacting.FIRST, *asked) is None
    assert transacting.answer(topic.rig, reading.consumer, transacting.SECOND, positions[2], (*cut, [0b0011])) is None
    for taken in (positions[1], cut, (*cut, [0b1011]), (*cut, [0b1110])):
        error = transacting.answer(topic.rig, reading.consumer, transacting.SECOND, taken)
        assert error == api.TransactionConflict
    topic.moved(uncoordinated.crash(topic.rig))
    reading.attach()
    assert keys_of(reading.read()) == ["k0", *(f"k{number}" for number in range(3, 9)), "y"]
    transacting.end(topic.rig, transacting.FIRST, commits=True)
    transacting.end(topic.rig, transacting.SECOND, commits=False)
    topic.moved(uncoordinated.crash(topic.rig))
    reading.attach()
    assert keys_of(reading.read()) == ["z", "k0", *(f"k{number}" for number in range(2, 9)), "y"]
    topic.account("sub")


def test_parts_of_cut_batches_are_acknowledged_when_all_is_that_is_there(topic):
    Reading(topic, "sub").close()
    [cut] = topic.publish([("a", b"1"), ("b", b"1"), ("c", b"1"), ("d", b"1")])
    topic.publish(("b", b"2"))
    topic.compact()
    reading = Reading(topic, "sub")
    assert keys_of(reading.read()) == ["a", "c", "d", "b"]
    topic.run(topic.rig.ack_part(reading.consumer, cut, 0b1110))
    topic.run(topic.rig.redeliver(reading.consumer))
    assert keys_of(reading.read()) == ["c", "d", "b"]
    topic.run(topic.rig.ack_part(reading.consumer, cut, 0b0010))
    assert topic.partition.subscriptions["sub", True].cursor.mark_delete == cut
    assert topic.account("sub")["backlog"] == 1


def test_a_reader_goes_on_with_the_view_that_it_began_with(rigs):
    """A reader finishes the view that it began with, however often the view is replaced meanwhile. Then it gets the
    ledgers behind that view, tombstones included, which are kept for it.
    """
    topic = small(rigs, compaction_threshold_bytes=1 << 40)
    topic.publish(*[(f"k{number}", b"1") for number in range(20)])
    topic.compact()
    reader = topic.reader()
    reader.read(7)
    reader.ack_all()
    for step in range(3):
        topic.publish(*[(f"k{number}", b"" if number % 3 == 0 else b"%d" % step) for number in range(step, 20, 4)])
        topic.compact()
        topic.run(after_ms=2 * SECOND)
        assert topic.views() == [1, step + 2]
    reader.read()
    assert reader.positions == sorted(set(reader.positions))
    assert set(reader.views) == {1, 0}
    assert reader.values == topic.values
    reader.ack_all()
    topic.run(after_ms=2 * SECOND)
    assert topic.views() == [4]
    assert len(topic.rig.files("t")) == 1      # there is no subscription that needs the others


def test_what_nobody_reads_any_more_goes_and_workers_are_told(rigs):
    topic = small(rigs)
    ledger_id = topic.publish(("a", b"1"))[0][0]
    topic.compact()
    reader = topic.reader()
    topic.publish(("a", b"2"))
    topic.compact()
    assert topic.views() == [1, 2]
    reader.close()
    answers = topic.run(after_ms=2 * SECOND)
    assert topic.views() == [2]
    assert (1, ledger_id) in answers.forgotten


def test_news_are_kept_until_they_are_compacted(rigs):
    """On a topic with a compaction threshold, entries behind the view are kept until they are compacted, even if
    they are acknowledged and older than the time to live. Then their ledgers are deleted.
    """
    topic = small(rigs, compaction_threshold_bytes=1 << 30, message_ttl_s=1)
    consumer = topic.rig.consumer("t")
    first = topic.publish(*[(f"k{number}", b"x" * 50_000) for number in range(10)])
    topic.run(topic.rig.acks(consumer, first[-1], cumulative=True))
    topic.run(after_ms=10 * SECOND)
    assert len({ledger_id for ledger_id, _ in first}) == 3 and set(topic.rig.files("t")) >= {
        ledger_id for ledger_id, _ in first
    }
    topic.compact()
    topic.run(after_ms=2 * SECOND)
    assert len(topic.rig.files("t")) == 1
    reader = topic.reader()
    topic.run(after_ms=2 * SECOND)
    assert reader.values == {} and len(reader.read()) == 10      # what a view keeps does not expire


def test_what_is_due(rigs):
    topic = small(rigs, compaction_threshold_bytes=2_000)
    rig = topic.rig

    def due():
        [answer] = rig.run(rig.tell("compaction-due")).answered
        return answer["answer"]

    topic.publish(("a", b"x" * 1_000))
    assert due() == []
    topic.publish(("a", b"y" * 1_000))
    assert due() == [[topic.partition.partition_id, NAME]]
    assert topic.partition.view_number == 0
    topic.compact()
    assert due() == []
    view = topic.partition.view.manifest
    assert (topic.partition.view_number, view.entries, view.messages, news(topic.partition)) == (1, 1, 1, 0)
    assert view.size > 1_000 and view.report["messages_in"] == 2
    stats = topic.rig.shown("stats", "t", earliest=False, publishers=False, consumers=False)["compaction"]
    assert (
        stats["lastCompactionRemovedEventCount"] == 1
        and stats["lastCompactionSucceedTimestamp"] == view.created_ms > 0
    )
    assert topic.rig.shown("internal", "t")["compactedLedger"] == {
        "ledgerId": 1, "entries": 1, "size": view.size, "offloaded": False, "underReplicated": False}


def test_a_partition_without_a_threshold_is_never_due(rigs):
    topic = small(rigs)
    topic.publish(("a", b"x" * 100_000))
    [answer] = topic.rig.run(topic.rig.tell("compaction-due")).answered
    assert answer["answer"] == []


@pytest.mark.parametrize("threshold", [0, 1 << 30])
def test_truncating_leaves_nothing_to_be_read(rigs, threshold):
    topic = small(rigs, compaction_threshold_bytes=threshold)
    topic.publish(*[(f"k{number}", b"1") for number in range(10)])
    reader = topic.reader(name="earlier")
    if not threshold:
        topic.compact()
    topic.asked("truncate")
    topic.run(after_ms=2 * SECOND)
    assert reader.read() == []
    late = topic.reader(name="late")
    assert late.read() == [] and topic.last_message(late) == (-1, -1, -1)
    assert len(topic.rig.files("t")) == 1
    later = topic.publish(("a", b"1"))
    assert [position for position, *_ in late.read()] == later
    topic.compact()
    assert [position for position, *_ in topic.reader(name="later").read()] == later


@pytest.mark.parametrize("threshold", [0, 1 << 30])
def test_what_was_truncated_does_not_come_back_with_a_view_that_was_being_made(rigs, threshold):
    topic = small(rigs, compaction_threshold_bytes=threshold)
    topic.publish(*[(f"k{number}", b"1") for number in range(10)])

    def truncate_and_adopt(*which):
        topic.asked("truncate")
        return topic.adopt(*which)

    report = nightly.compact(topic.rig.data_dir, nightly.Target(topic.partition.partition_id, NAME), truncate_and_adopt)
    assert (report.outcome == nightly.NOT_ADOPTED and "already" in report.error) or "deleted meanwhile" in report.error
    assert topic.reader().read() == []


def test_deleting_leaves_no_view(topic):
    topic.publish(("a", b"1"))
    topic.compact()
    folder = topic.partition.folder
    topic.asked("delete", force=True)
    assert not folder.exists()


def test_unloading_keeps_the_view(rigs):
    topic = small(rigs)
    topic.publish(*[("a", b"%d" % number) for number in range(9)])
    topic.compact()
    topic.publish(("b", b"1"))
    reader = topic.reader()
    topic.compact()
    topic.asked("unload")
    topic.readings.clear()
    topic.producer = topic.rig.producer("t")
    reader.attach()
    assert keys_of(reader.read()) == ["a", "b"]
    assert topic.views() == [2]


def test_a_terminated_topic_ends_for_who_reads_compacted(topic):
    topic.publish(("a", b"1"), ("b", b"1"), ("b", b""))
    topic.compact()
    topic.asked("terminate")
    reading = Reading(topic, "sub")
    assert keys_of(reading.read()) == ["a"]
    answers = topic.run(topic.rig.acks(reading.consumer, reading.positions[-1]))
    assert answers.commands(api.BaseCommand.REACHED_END_OF_TOPIC)


def test_the_next_in_line_goes_on_with_the_same_view(topic):
    topic.publish(*[(f"k{number}", b"1") for number in range(6)])
    topic.compact()
    fields = {"subType": SubType.Failover, "read_compacted": True}
    first, second = (topic.rig.consumer("t", "sub", consumer_name=name, **fields) for name in "ab")
    given = topic.run(topic.rig.flow(first, 3), topic.rig.flow(second, 10)).gifts
    positions = [(ledger_id, entry_id) for _, _, ledger_id, entries in given for entry_id, *_ in entries]
    assert {consumer for consumer, *_ in given} == {first.number} and len(positions) == 3
    topic.publish(("k5", b""), ("k4", b"2"))
    topic.compact()
    topic.run(topic.rig.acks(first, positions[0]))
    answers = topic.rig.close_consumer(first)
    [(consumer, *_, entries), (_, *_, behind)] = answers.gifts
    assert (
        consumer == second.number
        and [entry_id for entry_id, *_ in entries] == [1, 2, 3, 4, 5]
        and answers.views == [1, 0]
    )
    assert [entry_id for entry_id, *_ in behind] == [6, 7]


def test_rates_hold_for_views_too(rigs):
    topic = Topic(rigs(dispatch_messages_per_subscription=10))
    topic.publish(*[(f"k{number}", b"1") for number in range(50)])
    topic.compact()
    reader = topic.reader()
    assert 0 < len(reader.read()) <= 10
    for _ in range(100):
        before = len(reader.got)
        topic.run(after_ms=SECOND // 10)
        assert len(reader.got) <= before + 2
    assert reader.values == topic.values and reader.positions == sorted(set(reader.positions))


def test_entries_that_were_lost_after_they_were_compacted_come_from_the_view(rigs):
    """Without syncs, a power cut may lose entries that a view already has. Readers get them from the view, and
    entries published afterwards have positions behind it.
    """
    topic = Topic(rigs(sync="none"))
    topic.publish(("a", b"1"))
    earlier = rigs.crash(topic.rig)      # a copy of the folder as it is now
    positions = topic.publish(("b", b"1"), ("c", b"1"))
    topic.compact()
    folder = format.compacted_folder(earlier.data_dir / "partitions" / str(topic.partition.partition_id))
    shutil.copytree(format.compacted_folder(topic.partition.folder), folder)
    topic.moved(earlier)
    later = topic.publish(("b", b"2"))
    assert later[0] > positions[-1]
    reader = topic.reader()
    assert keys_of(reader.read()) == ["a", "b", "c", "b"]
    assert reader.values == topic.values | {"c": b"1"}


def refused(topic, number):
    return topic.adopt(topic.partition.partition_id, NAME, number)


def test_what_is_no_view_of_the_partition_is_not_adopted(rigs):
    topic = small(rigs)
    topic.rig.consumer("t", "other")
    folder, partition_id = topic.partition.folder, topic.partition.partition_id
    positions = topic.publish(*[("a", b"%d" % number) for number in range(9)])
    assert refused(topic, 1) == "There is no compacted view 1"

    def make(number=1, parts=(), **fields):
        made = compacted_ledgers.unfinished(folder, number)
        made.mkdir(parents=True, exist_ok=True)
        compacted_ledgers.finish(made, compacted_ledgers.Manifest(
            **{"partition_id": partition_id, "horizon": positions[-1], "created_ms": 1} | fields, parts=parts))
        return made

    make(partition_id=99)
    assert "of partition 99" in refused(topic, 1)
    make(horizon=(positions[-1][0], 77))
    assert "not between" in refused(topic, 1)
    make(parts=(compacted_ledgers.Part(positions[0][0], 4, 1, 1, 50),))
    assert "the end of the file" in refused(topic, 1)
    make(parts=(compacted_ledgers.Part(4, 4, 0, 0, 0),))
    assert "ledger 4 has been deleted meanwhile" in refused(topic, 1)
    path = make() / compacted_ledgers.MANIFEST
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert "expected a checksum" in refused(topic, 1)
    assert topic.views() == []
    topic.compact()
    make(2, horizon=positions[0])
    assert "not between" in refused(topic, 2)
    assert refused(topic, 1) is None      # adopting it again is allowed: the first answer may have been lost
    make(1)
    assert refused(topic, 1) == "There is compacted view 1 already"
    assert keys_of(topic.reader().read()) == ["a"]


def newest_file(topic, name):
    return format.compacted_folder(topic.partition.folder) / str(topic.views()[-1]) / name


def ledger_file(topic, suffix):
    return next(iter(sorted(newest_file(topic, "view").parent.glob(f"*{suffix}"))))


DAMAGES = {
    "no manifest": lambda topic: newest_file(topic, "view").unlink(),
    "manifest": lambda topic: newest_file(topic, "view").write_bytes(newest_file(topic, "view").read_bytes()[:-7]),
    "newer": lambda topic: newest_file(topic, "view").write_bytes(newer(newest_file(topic, "view").read_bytes())),
    "no index": lambda topic: ledger_file(topic, ".index").unlink(),
    "short index": lambda topic: ledger_file(topic, ".index").write_bytes(
        ledger_file(topic, ".index").read_bytes()[:-64]
    ),
    "no ledger": lambda topic: ledger_file(topic, ".ledger").unlink(),
}


def newer(data):
    text = data.split(b" ", 1)[1].replace(b'"version":1', b'"version":7')
    return b"%08x %s" % (crc32c(text), text)


@pytest.mark.slow
@pytest.mark.parametrize("what", DAMAGES)
def test_without_a_view_that_is_whole_there_are_the_ledgers(rigs, what, capfd):
    topic = small(rigs)
    positions = topic.publish(*[("a", b"%d" % number) for number in range(9)])
    topic.compact()
    topic.rig.close()
    DAMAGES[what](topic)
    topic.moved(rigs.on(topic.rig.data_dir))
    assert "compacted view 1 is not used, consumers get what the ledgers have" in capfd.readouterr().err
    reader = topic.reader()
    assert [position for position, *_ in reader.read()] == positions[positions.index(reader.positions[0]):]
    later = topic.publish(*[("b", b"1")] * 9)
    topic.run(after_ms=2 * SECOND)
    assert {ledger_id for ledger_id, _ in later} <= set(topic.rig.files("t"))      # ledgers that no view has are kept


def test_a_row_that_is_damaged_costs_its_entry(rigs, capfd):
    topic = small(rigs)
    topic.rig.consumer("t", "other")
    positions = topic.publish(*[(f"k{number}", b"1") for number in range(9)])
    topic.compact()
    path = ledger_file(topic, ".index")
    data = bytearray(path.read_bytes())
    data[64 + 64 + 3] ^= 1
    path.write_bytes(bytes(data))
    reader = topic.reader()
    assert [position for position, *_ in reader.read()] == positions[:1] + positions[2:]
    assert f"{path}: row 1 is damaged" in capfd.readouterr().err


def flip_row(topic):
    path = ledger_file(topic, ".index")
    return path, 64 + 64 + 3


def flip_entry(topic):
    path = ledger_file(topic, ".ledger")
    rows = np.frombuffer(path.with_suffix(".index").read_bytes(), format.COMPACTED_ROW, offset=64)
    return path, int(rows["offset"][1]) + 20


def flip_words(topic):
    path = ledger_file(topic, ".ledger")
    rows = np.frombuffer(path.with_suffix(".index").read_bytes(), format.COMPACTED_ROW, offset=64)
    [cut] = rows[rows["flags"] & format.IS_CUT != 0]
    return path, int(cut["offset"]) + int(cut["size"]) + 7


FLIPS = {
    flip_row: "row 1 is damaged; their entries are missing",
    flip_entry: "is damaged; consumers that read compacted see the checksum fail",
    flip_words: "which messages entry",
}


@pytest.mark.parametrize("how", FLIPS, ids=lambda how: how.__name__)
def test_what_of_a_view_is_damaged_is_found(rigs, how):
    """Verification reports damage in a compacted view with its place, and nothing for a whole view, also while a
    subscription is in the middle of it.
    """
    topic = Topic(rigs())
    topic.publish(("a", b"1"), ("b", b"1"), [("c", b"1"), ("d", b"1"), ("e", b"1")], ("c", b"2"), ("f", b"1"))
    topic.compact()
    reading = Reading(topic, "sub")
    reading.read()
    reading.ack(reading.positions[1], reading.positions[3])
    topic.rig.close()
    assert list(verify.walk(topic.rig.data_dir)) == []
    path, offset = how(topic)
    flip(path, offset)
    [finding] = verify.walk(topic.rig.data_dir)
    assert (
        finding.path == path and finding.offset <= offset < finding.offset + finding.size and FLIPS[how] in str(finding)
    )
    assert finding.severity == Severity.LOSS


def masked(rigs, monkeypatch):
    """Return a topic whose view has a mask: of an entry, and of a message of a batch."""
    monkeypatch.setattr(continuation, "_LOST_MIN", 1.0)
    topic = small(rigs)
    topic.rig.consumer("t", "other")
    topic.publish(("a", b"1"), ("b", b"1"), [("c", b"1"), ("d", b"1"), ("e", b"1")], ("f", b"1"), ("g", b"1"))
    topic.compact()
    topic.publish(("a", b"2"), ("d", b""), ("h", b"1"), ("i", b"1"))
    topic.compact()
    return topic


def test_a_mask_is_applied_for_consumers(rigs, monkeypatch):
    """Also after the broker was started again."""
    topic = masked(rigs, monkeypatch)
    assert ledger_file(topic, ".mask").exists()
    reader = topic.reader()
    assert keys_of(reader.read()) == ["b", "c", "e", "f", "g", "a", "h", "i"]
    assert reader.values == topic.values
    [view] = [topic.partition.view]
    assert topic.rig.shown("internal", "t")["compactedLedger"]["entries"] == view.manifest.entries == 7
    topic.moved(rigs.restart(topic.rig))
    assert keys_of(topic.reader().read()) == ["b", "c", "e", "f", "g", "a", "h", "i"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix, offset, severity, text", [
    (".mask", -1, Severity.LOSS, "get messages again that were replaced or deleted"),
    (".mask", 3, Severity.LOSS, "get messages again that were replaced or deleted"),
    (".keys", -1, Severity.HARMLESS, "the next compaction reads the whole view"),
    (".keys", 64, Severity.HARMLESS, "the next compaction reads the whole view"),
    (".keys", 3, Severity.HARMLESS, "the next compaction reads the whole view")])
def test_a_damaged_mask_or_hash_is_found(rigs, monkeypatch, suffix, offset, severity, text):
    topic = masked(rigs, monkeypatch)
    topic.rig.close()
    assert list(verify.walk(topic.rig.data_dir)) == []
    path = ledger_file(topic, suffix)
    flip(path, offset % path.stat().st_size)
    [finding] = verify.walk(topic.rig.data_dir)
    assert finding.path == path and finding.severity == severity and text in str(finding)


def test_a_mask_that_is_missing_makes_the_view_unusable(rigs, monkeypatch, capfd):
    topic = masked(rigs, monkeypatch)
    topic.rig.close()
    ledger_file(topic, ".mask").unlink()
    topic.moved(rigs.on(topic.rig.data_dir))
    assert "compacted view 2 is not used, consumers get what the ledgers have" in capfd.readouterr().err
    assert topic.reader().read()[0][2:] == ("a", b"1")


def test_masks_and_hashes_are_printed(rigs, monkeypatch):
    topic = masked(rigs, monkeypatch)
    mask, keys = (ledger_file(topic, suffix) for suffix in (".mask", ".keys"))
    ledger = int(mask.stem)
    summary, *lines = dump.dump(mask)
    assert (summary["removed_messages"], summary["removed_entries"], summary["checksum"]) == (2, 1, "whole")
    assert lines == [{"entry": f"{ledger}:0", "removed": "all"}, {"entry": f"{ledger}:2", "removed": 1}]
    [line] = dump.dump(keys)
    assert (line["entries"], line["messages"], line["checksum"]) == (4, 6, "whole")
    assert [line.get("removed") for line in dump.dump(mask.with_suffix(".ledger"))][1:] == [
        "by the mask", None, None, None]
    flip(keys, keys.stat().st_size - 1)
    assert "checksum" in dict(*dump.dump(keys))["damaged"]


@pytest.mark.slow
@pytest.mark.parametrize("what", DAMAGES)
def test_a_view_that_cannot_be_used_is_found(rigs, what):
    topic = Topic(rigs())
    topic.publish(("a", b"1"), ("b", b"1"))
    topic.compact()
    topic.rig.close()
    DAMAGES[what](topic)
    [finding] = verify.walk(topic.rig.data_dir)
    assert "it is not used" in str(finding) and "compacted/1/" in str(finding.path)
    assert finding.severity == (Severity.UNREADABLE if what == "newer" else Severity.LOSS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_dictionaries(rigs, seed, monkeypatch):
    """After any sequence of operations, a consumer that reads compacted ends with the keys and values of a
    dictionary, and gets no message twice.
    """
    if seed % 2:
        monkeypatch.setattr(continuation, "_LOST_MIN", 1.0)      # masks grow; no part is written anew for its losses
    chance = random.Random(seed)
    topic = Topic(
        rigs(roll_over_entries=chance.choice((3, 10, 1_000)), compaction_threshold_bytes=chance.choice((0, 1 << 40)))
    )
    plain = topic.rig.consumer("t", "plain")
    durable, is_whole = Reading(topic, "durable"), True
    unacked: set = set()
    readers: list[Reading] = []
    last = None
    for step in range(150):
        what = chance.random()
        if what < 0.4:
            some = []
            for _ in range(chance.randrange(1, 6)):
                messages = [(f"k{chance.randrange(12)}", b"" if chance.random() < 0.25 else b"%d-%d" % (step, number))
                            for number in range(chance.choice((1, 1, 3, 70)))]
                some.append(messages if len(messages) > 1 else messages[0])
            last = topic.publish(*some)[-1]
        elif what < 0.5:
            topic.compact()
        elif what < 0.55 and len(readers) < 5:
            readers.append(topic.reader(name=f"reader-{step}"))
        elif what < 0.75 and readers:
            reader = chance.choice(readers)
            reader.read(chance.choice((1, 2, 50)))
            if reader.positions and chance.random() < 0.7:
                reader.ack_all()
        elif what < 0.85:
            unacked |= {position for position, *_ in durable.read(chance.choice((1, 3, 100)))}
            some = chance.sample(sorted(unacked), chance.randrange(len(unacked) + 1))
            durable.ack(*some)
            unacked -= set(some)
        elif what < 0.9 and last:
            topic.run(topic.rig.acks(plain, last, cumulative=True))
        elif what < 0.93:
            topic.run(topic.rig.redeliver(durable.consumer))
        elif what < 0.95:      # a consumer that reconnects may miss tombstones that were compacted meanwhile
            is_whole, unacked = False, set()
            if chance.random() < 0.3:
                durable.close()
                durable.attach()
                continue
            readers = []
            topic.moved(chance.choice((rigs.crash, rigs.restart))(topic.rig))
            plain = topic.rig.consumer("t", "plain")
            durable.attach()
        else:
            topic.run(after_ms=2 * SECOND)
        topic.account("durable")
    if last is None:
        return
    for reader in [*readers, topic.reader(name="last")]:
        while reader.read():
            reader.ack_all()
        assert reader.positions == sorted(set(reader.positions))
        assert reader.values == topic.values
        reader.close()
    while durable.read():
        pass
    assert {key: value for key, value in durable.values.items() if key in topic.values} == topic.values
    assert durable.values == topic.values or not is_whole
    durable.ack(*durable.positions)
    assert topic.account("durable")["backlog"] == 0
    topic.compact()
    topic.run(topic.rig.acks(plain, last, cumulative=True))
    topic.run(after_ms=2 * SECOND)
    assert len(topic.views()) == 1
    assert len(topic.rig.files("t")) == 1
