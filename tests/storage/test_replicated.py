"""Messages of other clusters' replicators: each is stored once, in order, whoever is killed, and answered as its
sender expects.
"""
import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from geminga.proto import envelope, names, responses, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.catalogue.policies import MIGRATED, MIGRATION
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.jobs import confirmed, reading
from geminga.storage.offline import search, verify
from geminga.storage.offline.dump import dump
from geminga.storage.offline.search import Conditions
from geminga.storage.owner.owner_pass import TICK_MS
from geminga.storage.topics import publish_plan

from .files import flip
from .rig import T, entry_of, payload_of

DUPLICATE = (producer_sequences.NOWHERE, producer_sequences.NOWHERE)
NAME = "pulsar.repl.far-->standalone"
MINUS_ONE = 2**64 - 1
YEAR_MS = 366 * 24 * 3_600_000
LARGEST = f"{names.LEDGER_MAX}:{names.ENTRY_MAX}"


@dataclass(frozen=True)
class Message:
    """A message that a replicator sends; position: as text, None without one."""

    position: str | None
    payload: bytes = b"x"
    sequence_id: int = 0
    more: dict = field(default_factory=dict, hash=False)      # of the metadata


def at(*entries, ledger=7, **more):
    return [Message(f"{ledger}:{entry}", b"%d:%d" % (ledger, entry), more=more) for entry in entries]


def marker(position, kind=10):
    return Message(position, b"marker", more={"marker_type": kind})


def section(*sent):
    """Return a section of SENDs, each given as (producer, Message), as a connection reads them."""
    rows, entries, offset = [], [], 0
    for producer, message in sent:
        properties = [] if message.position is None else [
            api.KeyValue(key=names.POSITION_PROPERTY, value=message.position)]
        entry = entry_of(message.payload, sequence_id=message.sequence_id, replicated_from="far",
                         properties=properties, **message.more)
        said = api.CommandSend(producer_id=producer.object_id, sequence_id=message.sequence_id,
                               is_chunk="chunk_id" in message.more, marker="marker_type" in message.more)
        row = np.array([sends.read_one(said, entry, reads_positions=True)], sends.SEND_ROW)
        row["producer"], row["connection"], row["offset"] = producer.number, producer.connection, offset
        rows.append(row)
        entries.append(entry)
        offset += len(entry)
    return envelope.SENDS, np.concatenate(rows), b"".join(entries)


def send(rig, producer, *messages):
    return rig.run(section(*((producer, message) for message in messages)), worker=producer.worker)


def replicator(rig, topic="a", *, connection=1, positions=True, name=NAME, **fields):
    """Create a replicator's producer.  positions: whether its connection has announced that it names positions."""
    about = {"address": f"/10.0.0.{connection}:1", "version": "Pulsar-Java-v4.0.7", "partial": True,
             "positions": positions, "superuser": False, "replicator": False, "role": "",
             "connected_ms": rig.now_ms}
    rig.run(rig.happened(envelope.INTRODUCED, connection=connection, data=json.dumps(about).encode()))
    return rig.producer(topic, connection=connection, producer_name=name, user_provided_producer_name=True, **fields)


def kept(rig, topic="a"):
    return [payload.decode() for _, payload in rig.everything(topic)]


def ids(answers):
    """Return (sequence id, highest sequence id) of each receipt."""
    return [(receipt[3], highest) for receipt, highest in zip(answers.receipts, answers.highest, strict=True)]


@pytest.fixture
def rig(rigs):
    return rigs()


few_and_many = pytest.mark.parametrize("count", [3, publish_plan.FEW_MAX + 3])


# -- receipts

@few_and_many
def test_a_receipt_names_the_source_position(rig, count):
    answers = send(rig, replicator(rig), *at(*range(count)))
    assert ids(answers) == [(7, entry) for entry in range(count)]
    assert answers.positions == [(answers.positions[0][0], entry) for entry in range(count)]


def test_a_receipt_without_positions_has_the_sequence_id_as_sent_and_no_highest(rig):
    answers = send(rig, replicator(rig, positions=False), *(Message(None, sequence_id=n) for n in (5, 900, 3)))
    assert ids(answers) == [(5, MINUS_ONE), (900, MINUS_ONE), (3, MINUS_ONE)]


@few_and_many
def test_a_markers_receipt_says_that_it_is_a_marker(rig, count):
    answers = send(rig, replicator(rig), *at(*range(count)), replace(marker("7:500"), sequence_id=12),
                   replace(marker(None), sequence_id=13))
    assert ids(answers)[count:] == [(12, 1 << 63), (13, 1 << 63)]
    assert DUPLICATE not in answers.positions


def test_the_largest_position_is_accepted(rig):
    answers = send(rig, replicator(rig), Message("0:0"), Message(LARGEST))
    assert ids(answers) == [(0, 0), (names.LEDGER_MAX, names.ENTRY_MAX)]
    assert send(rig, replicator(rig, connection=2), Message("0:0"), Message(LARGEST)).positions == [DUPLICATE] * 2


# -- duplicates

@few_and_many
@pytest.mark.parametrize("deduplication", [False, True])
def test_what_is_sent_again_is_not_stored_again_with_or_without_deduplication(rigs, count, deduplication):
    rig = rigs(deduplication=deduplication)
    send(rig, replicator(rig), *at(*range(count)))
    again = replicator(rig, connection=2)
    answers = send(rig, again, *at(*range(1, count + 2)))
    assert answers.positions[:count - 1] == [DUPLICATE] * (count - 1)
    assert DUPLICATE not in answers.positions[count - 1:]
    assert ids(answers) == [(7, entry) for entry in range(1, count + 2)]
    assert kept(rig) == [f"7:{entry}" for entry in range(count + 2)]


@few_and_many
def test_a_second_source_of_the_same_name_is_told(rig, count, capfd):
    """Its messages have positions that are stored, but were published since it connected.  Others are no reason."""
    send(rig, replicator(rig), *at(*range(count), publish_time=rig.now_ms))
    again = replicator(rig, connection=2)
    send(rig, again, *at(*range(count), publish_time=rig.now_ms))
    send(rig, again, *at(count, publish_time=rig.now_ms + 100_000))
    assert "sends new messages" not in capfd.readouterr().err
    for _ in range(2):
        send(rig, again, *at(*range(count), publish_time=rig.now_ms + 100_000))
    told = "cluster far sends new messages with positions that it has used before"
    assert capfd.readouterr().err.count(told) == 1
    assert len(kept(rig)) == count + 1


@few_and_many
def test_the_clock_of_the_source_does_not_matter(rig, count):
    """Messages keep their publish times, which may go back, and are in the order in which they came."""
    times = [1, 1 << 52, rig.now_ms, 1 << 40] * count
    sent = [at(entry, publish_time=time)[0] for entry, time in enumerate(times)]
    producer = replicator(rig)
    first = send(rig, producer, *sent)
    assert ids(first) == [(7, entry) for entry in range(len(times))]
    assert send(rig, producer, *sent).positions == [DUPLICATE] * len(times)
    assert kept(rig) == [message.payload.decode() for message in sent]


def test_positions_are_ordered_by_the_ledger_first(rig):
    producer = replicator(rig)
    send(rig, producer, *at(1_000_000, ledger=7), *at(0, ledger=8))
    assert send(rig, producer, *at(2_000_000, ledger=7)).positions == [DUPLICATE]
    assert kept(rig) == ["7:1000000", "8:0"]


def test_each_replicator_has_positions_of_its_own(rig):
    producers = [replicator(rig, connection=n, name=f"pulsar.repl.{cluster}-->standalone")
                 for n, cluster in enumerate(("far", "near"), 1)]
    answers = rig.run(section(*((producer, message) for producer in producers for message in at(5, 6))))
    assert DUPLICATE not in answers.positions


@few_and_many
def test_chunks_have_a_position_each(rig, count):
    chunks = [replace(message, more={"chunk_id": number, "num_chunks_from_msg": count, "uuid": "u"})
              for number, message in enumerate(at(*range(count)))]
    producer = replicator(rig)
    assert DUPLICATE not in send(rig, producer, *chunks[:-1]).positions
    assert send(rig, producer, *chunks).positions[:-1] == [DUPLICATE] * (count - 1)
    assert len(kept(rig)) == count


@few_and_many
def test_sequence_ids_of_many_producers_mixed_are_no_duplicates(rigs, count):
    rig = rigs(deduplication=True)
    mixed = [replace(message, sequence_id=n * 7 % 5) for n, message in enumerate(at(*range(count)))]
    assert DUPLICATE not in send(rig, replicator(rig), *mixed).positions
    before = replicator(rig, connection=2, positions=False, name="pulsar.repl.old")
    assert DUPLICATE not in send(rig, before, *mixed).positions


@few_and_many
def test_ordinary_producers_beside_a_replicator_stay_as_they_are(rig, count):
    producer, ordinary = replicator(rig), rig.producer("a", producer_name="p")
    mixed = [one for pair in zip([(producer, message) for message in at(*range(count))],
                                 [(ordinary, Message("7:0", b"own"))] * count, strict=True) for one in pair]
    answers = rig.run(section(*mixed))
    assert DUPLICATE not in answers.positions
    assert [(receipt[2], *numbers) for receipt, numbers in zip(answers.receipts, ids(answers), strict=True)] == [
        one for n in range(count) for one in ((producer.object_id, 7, n), (ordinary.object_id, 0, 0))]


# -- what is kept of positions

def survive(rigs, rig, how):
    return {"kill": rigs.crash, "stop": rigs.restart}[how](rig)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_positions_survive(rigs, rig, how):
    send(rig, replicator(rig), *at(*range(5)))
    for _ in range(2):      # from the journal, then from the state file
        rig = survive(rigs, rig, how)
        assert send(rig, replicator(rig), *at(*range(5))).positions == [DUPLICATE] * 5
    assert kept(rig) == [f"7:{entry}" for entry in range(5)]


def test_a_replicator_that_was_away_for_a_year_is_known(rigs):
    rig = rigs(deduplication=True)
    producer, ordinary = replicator(rig), rig.producer("a", producer_name="p")
    rig.run(section((producer, at(3)[0]), (ordinary, Message(None, sequence_id=9))))
    for one in (producer, ordinary):
        rig.run(rig.command("close_producer", producer_id=one.object_id, request_id=1))
    rig.run(after_ms=YEAR_MS)
    rig.run(after_ms=TICK_MS)
    assert len(rig.partition("a").sequences) == 0
    assert send(rig, replicator(rig), *at(3, 4)).positions[0] == DUPLICATE


def test_positions_stay_when_deduplication_is_switched_off(rigs):
    rig = rigs(deduplication=True)
    producer, ordinary = replicator(rig), rig.producer("a", producer_name="p")
    rig.run(section((producer, at(3)[0]), (ordinary, Message(None, sequence_id=9))))
    rig.partition("a").deduplicates = False
    rig.run(section((ordinary, Message(None, sequence_id=9))))
    assert not rig.partition("a").sequences.by_producer
    again = rigs.crash(rig, deduplication=False)
    assert send(again, replicator(again), *at(3)).positions == [DUPLICATE]


def test_names_without_end_leave_the_newest_positions_only(rig, monkeypatch):
    monkeypatch.setattr(producer_sequences, "REPLICATORS_MAX", 3)
    for number in range(5):
        send(rig, replicator(rig, name=f"pulsar.repl.c{number}"), *at(1))
    assert len(rig.partition("a").sequences.by_replicator) == 3
    assert send(rig, replicator(rig, name="pulsar.repl.c4"), *at(1)).positions == [DUPLICATE]


def test_a_dump_shows_positions(rigs, rig):
    send(rig, replicator(rig), *at(3, ledger=70))
    again = rigs.restart(rig)
    again.partition_id = again.owner.topics.find(again.topic("a")).folder
    lines = list(dump(again.partition_id / "state"))
    assert [line["last_position"] for line in lines if "replicator" in line] == ["70:3"]


# -- refusals: nothing behind a refused message is stored before it comes again.  At any other error than
# PersistenceError, Pulsar goes on without the refused message and sends it later, when its position has been passed.

def errors(answers):
    return [(command.send_error.sequence_id, command.send_error.error) for command in answers.commands(T.SEND_ERROR)]


def refused(answers, producer):
    """Whether the producer was closed, after its answers."""
    return [(action, object_id) for _, action, object_id, _, _ in answers.replies][-1] == (
        envelope.PRODUCER_GONE, producer.object_id)


NONSENSE = [None, "", ":", "7", "7:", ":7", "7:8:9", "-1:5", "7:x", "7: 8", f"{names.LEDGER_MAX + 1}:0",
            f"0:{names.ENTRY_MAX + 1}", "1" * 40 + ":1", "\u0667:1"]


@pytest.mark.slow
@pytest.mark.parametrize("position", NONSENSE)
@few_and_many
def test_a_message_without_a_position_is_not_stored_nor_what_is_behind_it(rig, position, count):
    producer = replicator(rig)
    bad = Message(position, b"bad", sequence_id=44)
    answers = send(rig, producer, *at(*range(count)), bad, *at(count + 1, count + 2))
    assert ids(answers) == [(7, entry) for entry in range(count)]
    assert errors(answers) == [(44, api.PersistenceError)] and refused(answers, producer)
    assert not send(rig, producer, *at(count + 3)).receipts      # it is closed
    assert kept(rig) == [f"7:{entry}" for entry in range(count)]
    answers = send(rig, replicator(rig), *at(*range(count + 2)))
    assert answers.positions[:count] == [DUPLICATE] * count
    assert kept(rig) == [f"7:{entry}" for entry in range(count + 2)]


def test_a_refusal_reaches_over_all_envelopes_of_a_pass(rig):
    producer, other = replicator(rig), rig.producer("a")
    answers = rig.run(section((producer, at(0)[0]), (producer, Message(None))), section((producer, at(2)[0])),
                      section((other, Message(None, b"other"))))
    assert len(answers.receipts) == 2 and len(errors(answers)) == 1
    assert kept(rig) == ["7:0", "other"]


def test_a_message_in_a_transaction_is_refused_to_a_replicator(rig):
    producer = replicator(rig)
    _, rows, data = section((producer, at(0)[0]))
    rows["flags"] |= sends.IN_TRANSACTION
    rows["message_index"] = 5
    answers = rig.run((envelope.SENDS_IN_TRANSACTIONS, rows, data))
    assert [error for _, error in errors(answers)] == [api.PersistenceError] and refused(answers, producer)


def set_policies(rig, topic="a", **fields):
    partition = rig.owner.topics.find(rig.topic(topic))
    partition.policies = replace(partition.policies, **fields)
    for watcher in (rig.owner.delays, rig.owner.publishing):
        watcher.watch(partition)


def test_a_message_above_the_topics_size_is_refused(rig):
    producer = replicator(rig)
    set_policies(rig, max_message_size=400)
    answers = send(rig, producer, *at(0), Message("7:1", bytes(500), sequence_id=8), *at(2))
    assert errors(answers) == [(8, api.PersistenceError)] and refused(answers, producer)
    assert kept(rig) == ["7:0"]


def test_a_message_above_the_longest_delay_is_refused(rig):
    producer = replicator(rig)
    set_policies(rig, delay_max_ms=1_000)
    late = Message("7:1", sequence_id=8, more={"deliver_at_time": rig.now_ms + YEAR_MS})
    answers = send(rig, producer, *at(0), late, *at(2))
    assert errors(answers) == [(8, api.PersistenceError)] and refused(answers, producer)


def test_only_encrypted_messages_pass_where_encryption_is_required(rig):
    replicator(rig)
    set_policies(rig, encryption_required=True)
    producer = replicator(rig, connection=2)      # a replicator passes on what others have encrypted
    secret = at(0, encryption_keys=[api.EncryptionKeys(key="k", value=b"v")])
    answers = send(rig, producer, *secret, marker("7:1"), Message("7:2", sequence_id=8), *at(3))
    assert errors(answers) == [(8, api.PersistenceError)] and len(answers.receipts) == 2


def test_a_send_that_the_worker_refuses_closes_the_producer_behind_earlier_receipts(rig):
    producer = replicator(rig)
    frames = responses.send_error(producer.object_id, 8, api.PersistenceError, "Checksum failed")
    told = rig.happened(envelope.SEND_REFUSED, data=b"%d %d " % (producer.object_id, producer.number) + frames)
    answers = rig.run(section((producer, at(0)[0])), told, section((producer, at(2)[0])))
    assert ids(answers) == [(7, 0)] and errors(answers) == [(8, api.PersistenceError)]
    assert kept(rig) == ["7:0"]


def test_a_replicator_of_a_terminated_topic_is_told_so(rig):
    rig.producer("a")
    rig.asked("terminate", "persistent://public/default/a")
    answers = rig.run(rig.command("producer", topic="a", producer_id=9, request_id=9, producer_name=NAME))
    assert [command.error.error for command in answers.commands(T.ERROR)] == [api.TopicTerminatedError]


def test_a_replicator_is_not_sent_to_the_cluster_to_which_clients_have_moved(rig):
    """It may be a replicator of that cluster, and would publish there what it has from there."""
    old = replicator(rig)
    rig.producer("a", connection=2)
    catalogue = rig.owner.catalogue
    catalogue.policies.set(MIGRATION, MIGRATED, True)
    catalogue.policies.set(MIGRATION, "to", {"brokerServiceUrl": "pulsar://other:6650"})
    catalogue.commit()
    answers = rig.run(rig.tell("policies", scope="public/default"))
    assert [(connection, None if command is None else command.type) for connection, *_, command in answers.replies] == [
        (1, T.CLOSE_PRODUCER), (2, T.TOPIC_MIGRATED)]
    assert not send(rig, old, *at(0)).receipts
    answers = rig.run(rig.command("producer", topic="a", producer_id=9, request_id=9, producer_name=NAME))
    assert [command.error.error for command in answers.commands(T.ERROR)] == [api.ServiceNotReady]
    assert not answers.commands(T.TOPIC_MIGRATED)


# -- one replicator on two connections

def test_a_replicator_that_connects_again_takes_over_at_once(rig):
    old, new = replicator(rig, connection=1), replicator(rig, connection=2)
    assert not send(rig, old, *at(0)).receipts
    assert ids(send(rig, new, *at(0))) == [(7, 0)]
    assert kept(rig) == ["7:0"]


def test_the_replaced_producer_is_closed(rig):
    old = replicator(rig, connection=1)
    answers = rig.run(rig.command("producer", connection=2, topic="a", producer_id=5, request_id=5,
                                  producer_name=NAME, user_provided_producer_name=True))
    assert [(connection, action, number) for connection, action, number, _, _ in answers.replies] == [
        (1, envelope.PRODUCER_GONE, old.object_id), (2, envelope.PRODUCER_READY, 5)]
    assert answers.commands(T.CLOSE_PRODUCER)


def test_replicators_do_not_count_among_producers(rig):
    replicator(rig)
    set_policies(rig, max_producers=1)
    replicator(rig, connection=2, name="pulsar.repl.old")
    rig.producer("a", connection=3)
    answers = rig.run(rig.command("producer", connection=4, topic="a", producer_id=5, request_id=5))
    assert [command.error.error for command in answers.commands(T.ERROR)] == [api.ProducerBusy]


# -- statistics

def stats(rig):
    return rig.shown("stats", "persistent://public/default/a", earliest=True, publishers=True, consumers=True)


def test_statistics_tell_replicators_by_cluster_and_not_as_publishers(rig):
    producer = replicator(rig, connection=3)
    rig.producer("a", producer_name="p")
    send(rig, producer, *at(*range(4)))
    shown = stats(rig)
    assert [one["producerName"] for one in shown["publishers"]] == ["p"]
    [(cluster, inbound)] = shown["replication"].items()
    assert (cluster, inbound["msgInCount"], inbound["inboundConnection"]) == ("far", 4, "/10.0.0.3:1")
    assert inbound["bytesInCount"] > 0 and inbound["inboundConnectedSince"].endswith("Z")
    assert shown["msgInCounter"] == 4
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=3))
    assert stats(rig)["replication"] == {}


# -- markers

def backlogs(rig, topic="a"):
    return {subscription.name: (subscription.cursor.backlog(rig.partition(topic).ledgers),
                                rig.partition(topic).next_message - subscription.cursor.since
                                - sum(subscription.cursor.totals))
            for subscription in rig.partition(topic).subscriptions.values()}


@few_and_many
@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_no_consumer_gets_a_marker_and_no_backlog_counts_it(rig, count, kind):
    consumer = rig.consumer("a", "sub", subType=kind)
    rig.consumer("a", "idle", connection=2)
    producer = replicator(rig)
    send(rig, producer, *at(*range(count)), marker("7:200"), marker("7:201", kind=13), *at(300))
    assert [payload for _, payload in rig.receive(consumer)] == [
        b"7:%d" % entry for entry in (*range(count), 300)]
    assert backlogs(rig) == {"sub": (count + 1, count + 1), "idle": (count + 1, count + 1)}
    assert rig.partition("a").open_ledger.entries == count + 3      # they are stored
    send(rig, producer, marker("7:400"))
    assert not rig.receive(consumer)
    assert backlogs(rig)["sub"] == (count + 1, count + 1)


def test_markers_alone_leave_no_backlog(rig):
    consumer = rig.consumer("a")
    producer = replicator(rig)
    send(rig, producer, *at(0))
    [(position, _)] = rig.receive(consumer)
    rig.run(rig.acks(consumer, position))
    for entry in range(1, 50):
        send(rig, producer, marker(f"7:{entry}"))
    [subscription] = rig.partition("a").subscriptions.values()
    assert backlogs(rig) == {"sub": (0, 0)} and subscription.cursor.totals[SKIPPED] == 0
    assert subscription.cursor.mark_delete == rig.partition("a").last_confirmed
    rig.partition("a").check()


@pytest.mark.parametrize("fixed_ms", [0, 60_000])
def test_a_marker_with_a_delivery_time_does_not_wait(rig, fixed_ms):
    consumer = rig.consumer("a", subType=1)
    producer = replicator(rig)
    set_policies(rig, delay_fixed_ms=fixed_ms)
    late = {"publish_time": rig.now_ms, "deliver_at_time": rig.now_ms + 60_000}
    send(rig, producer, replace(marker("7:0"), more={"marker_type": 10} | late), *at(1, **late), marker("7:2"))
    assert not rig.receive(consumer)
    assert backlogs(rig) == {"sub": (1, 1)} and rig.partition("a").delayed == 1
    assert [payload for _, payload in rig.delivered(rig.run(after_ms=120_000), consumer)] == [b"7:1"]
    assert rig.partition("a").delayed == 0
    rig.partition("a").check()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_markers_stay_markers(rigs, rig, how):
    rig.consumer("a", "old")
    send(rig, replicator(rig), *at(0), marker("7:1"), *at(2))
    for _ in range(2):
        rig = survive(rigs, rig, how)
        assert kept(rig) == ["7:0", "7:2"]
        assert backlogs(rig)["old"] == (2, 2)
        consumer = rig.consumer("a", f"new-{rig.number()}")
        assert [payload for _, payload in rig.receive(consumer)] == [b"7:0", b"7:2"]


def test_the_last_message_of_a_topic_is_no_marker(rig):
    consumer = rig.consumer("a")
    answers = send(rig, replicator(rig), *at(0), marker("7:1"))
    answer = rig.run(rig.command("getLastMessageId", consumer_id=consumer.object_id, request_id=4))
    [command] = answer.commands(T.GET_LAST_MESSAGE_ID_RESPONSE)
    last = command.getLastMessageIdResponse.last_message_id
    assert (last.ledgerId, last.entryId) == answers.positions[0]


def test_jobs_read_no_markers(rig):
    send(rig, replicator(rig), *at(0), marker("7:1"), *at(2), marker("7:3"))
    partition_id = rig.partition("a").partition_id
    found = [payload for stretch in confirmed.stretches(rig.data_dir, partition_id)
             for batch in reading.batches(rig.data_dir, stretch, ("payload",), pytest.fail)
             for payload in batch["payload"].to_pylist()]
    assert found == [b"7:0", b"7:2"]
    [piece] = search.pieces(rig.data_dir, [(partition_id, rig.topic("a"))])
    assert search.count(rig.data_dir, piece, Conditions(), pytest.fail) == 2
    hits = search.entries(rig.data_dir, piece, Conditions(), pytest.fail)
    assert [payload_of(hit.entries[-1][1]) for hit in hits] == found


def test_administration_shows_no_markers(rig):
    rig.consumer("a", "sub")
    positions = send(rig, replicator(rig), marker("7:0"), *at(1), marker("7:2"), *at(3)).positions
    topic = "persistent://public/default/a"
    assert rig.asked("peek", topic, subscription="sub", number=2)["entry"] == positions[3][1]
    answers = rig.run(rig.question("entry", topic, position=positions[2]))
    assert "refused" in answers.answered[0]


def test_a_folder_with_markers_is_whole_and_rows_of_markers_are_rebuilt(rigs):
    rig = rigs(roll_over_entries=5)
    rig.consumer("a", "sub")
    producer = replicator(rig)
    for entry in range(0, 20, 2):
        send(rig, producer, *at(entry), marker(f"7:{entry + 1}"))
    path, ledger_id = rig.partition("a").folder, rig.files("a")[0]
    expected = kept(rig)
    rig.close()
    assert list(verify.walk(rig.data_dir)) == []
    flip(format.index_path(path, ledger_id), format.HEADER_SIZE + format.INDEX_ROW.itemsize + 3)      # of entry 1
    again = rigs.on(rig.data_dir)
    consumer = again.consumer("a", "sub")
    assert [payload.decode() for _, payload in again.receive(consumer)] == expected == kept(again)


def test_markers_with_a_position_are_stored_once(rig):
    send(rig, replicator(rig), *at(0), marker("7:1"))
    answers = send(rig, replicator(rig, connection=2), *at(0), marker("7:1"), *at(2))
    assert answers.positions[:2] == [DUPLICATE] * 2
    assert ids(answers)[1][1] == names.MARKER_RECEIPT
    assert rig.partition("a").open_ledger.entries == 3


def test_a_marker_does_not_count_as_a_message(rig):
    send(rig, replicator(rig), *at(0), marker("7:1"), marker("7:2"))
    assert stats(rig)["msgInCounter"] == 1
    assert rig.partition("a").next_message == 1


def test_a_topic_that_keeps_nothing_drops_markers(rig):
    topic = "non-persistent://public/default/a"
    consumer, producer = rig.consumer(topic), replicator(rig, topic)
    answers = rig.run(rig.flow(consumer, 10), section((producer, at(0)[0]), (producer, marker("7:1"))))
    assert [payload for _, _, payload in answers.passed] == [b"7:0"]
    assert len(answers.receipts) == 2
