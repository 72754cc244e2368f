"""The coordinator of transactions: commands, states, deadlines, crashes, and two owners."""
import json

import numpy as np
import pytest
from crc32c import crc32c

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.sends import IN_TRANSACTION
from geminga.storage import format
from geminga.storage.ledgers import journal_ops
from geminga.storage.offline import dump
from geminga.storage.offline.findings import Severity
from geminga.storage.offline.verify import walk
from geminga.storage.owner import requests
from geminga.storage.runtime.routing import owner_of
from geminga.storage.transactions import coordinator, held_acks, named, transaction_table
from geminga.storage.transactions.transaction_table import ENDED_MAX, ENDED_MS

from .files import flip
from .rig import CONNECTION, Rig

LIFETIME_MS = 60_000
FIELDS = {api.BaseCommand.NEW_TXN_RESPONSE: "newTxnResponse",
          api.BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE: "addPartitionToTxnResponse",
          api.BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: "addSubscriptionToTxnResponse",
          api.BaseCommand.END_TXN_RESPONSE: "endTxnResponse"}
SUCCESS = None


class Coordinated(Rig):
    """A rig whose clients ask the coordinator."""

    def ask(self, field, *, connection=CONNECTION, **fields):
        """Return the error of each response in one pass with the command; SUCCESS for none."""
        return outcomes(self.run(self.command(field, connection=connection, request_id=self.number(), **fields)))

    def new(self, *, lifetime_ms=LIFETIME_MS, connection=CONNECTION, **fields):
        """Return the id of a new transaction, as (most, least)."""
        answers = self.run(self.command("newTxn", connection=connection, request_id=self.number(),
                                        txn_ttl_millis=lifetime_ms, **fields))
        [answer] = [command.newTxnResponse for command in answers.commands()]
        assert not answer.HasField("error"), answer
        return answer.txnid_most_bits, answer.txnid_least_bits

    def add(self, bits, *topics, **fields):
        return self.ask("addPartitionToTxn", **of(bits), partitions=topics, **fields)

    def add_subscription(self, bits, topic, subscription, **fields):
        return self.ask("addSubscriptionToTxn", **of(bits), **fields,
                        subscription=[api.Subscription(topic=topic, subscription=subscription)])

    def end(self, bits, action=api.COMMIT, **fields):
        return self.ask("endTxn", **of(bits), txn_action=action, **fields)

    def added_to(self, bits):
        return self.transaction(bits).added

    def transaction(self, bits):
        [found] = [each for each in self.owner.coordinator.transactions.open
                   if each.transaction == names.transaction(*bits)]
        return found

    def introduce(self, connection, role, **fields):
        about = {"address": "/a:1", "version": "", "partial": False, "positions": False, "connected_ms": 0,
                 "role": role, "superuser": False, "replicator": False, **fields}
        self.run(self.happened(envelope.INTRODUCED, connection=connection, data=json.dumps(about).encode()))


def of(bits):
    return {"txnid_most_bits": bits[0], "txnid_least_bits": bits[1]}


def outcomes(answers):
    found = []
    for command in answers.commands():
        if command.type in FIELDS:
            answer = getattr(command, FIELDS[command.type])
            found.append(answer.error if answer.HasField("error") else SUCCESS)
    return found


@pytest.fixture
def rig(tmp_path):
    made = Coordinated(tmp_path / "data")
    yield made
    made.close()


def sends_in(rig, bits, producer, payload):
    """Return a section of one SEND in a transaction."""
    _, rows, data = rig.sends((producer, payload))
    rows["flags"] |= IN_TRANSACTION
    rows["message_index"] = names.transaction(*bits)
    return envelope.SENDS_IN_TRANSACTIONS, rows, data


def publish_in(rig, bits, producer, payload):
    """Publish one message in a transaction."""
    return rig.run(sends_in(rig, bits, producer, payload))


def acknowledge_in(rig, bits, consumer, position):
    """Acknowledge a message in a transaction, and return the answer."""
    [answer] = rig.run(rig.command(
        "ack", consumer_id=consumer.object_id, ack_type=0, request_id=5, **of(bits),
        message_id=[api.MessageIdData(ledgerId=position[0], entryId=position[1])])).commands()
    return answer.ackResponse


def texts(rig, topic="t"):
    return [payload for _, payload in rig.everything(topic)]


# -- one owner

@pytest.mark.parametrize(("action", "expected"), [(api.COMMIT, [b"a"]), (api.ABORT, [])], ids=["commit", "abort"])
def test_a_client_begins_adds_publishes_and_ends(rig, action, expected):
    producer, bits = rig.producer("t"), rig.new()
    assert rig.add(bits, "t") == [SUCCESS]
    assert len(publish_in(rig, bits, producer, b"a").receipts) == 1
    assert texts(rig) == []
    assert rig.end(bits, action) == [SUCCESS]
    assert texts(rig) == expected and rig.owner.coordinator.transactions.active == 0


def test_transactions_of_one_pass_share_a_plan(rig, monkeypatch):
    """Each plan is synced by itself, so commands between SENDs of other transactions must not divide them."""
    producer, ended, first, second = rig.producer("t"), rig.new(), rig.new(), rig.new()
    for bits in ended, first, second:
        rig.add(bits, "t")
    publish_in(rig, ended, producer, b"a")
    syncs, real = [], rig.journal.sync
    monkeypatch.setattr(rig.journal, "sync", lambda: syncs.append(real()))
    new = rig.command("newTxn", request_id=1, txn_ttl_millis=LIFETIME_MS)
    add = rig.command("addPartitionToTxn", request_id=2, **of(second), partitions=["u"])
    end = rig.command("endTxn", request_id=3, **of(ended), txn_action=api.COMMIT)
    answers = rig.run(sends_in(rig, first, producer, b"b"), new, sends_in(rig, second, producer, b"c"), add,
                      sends_in(rig, first, producer, b"d"), end)
    assert (outcomes(answers), len(answers.receipts)) == ([SUCCESS] * 3, 3)
    assert len(syncs) == 1
    assert texts(rig) == [b"a"]


@pytest.mark.parametrize(("action", "expected"), [(api.COMMIT, [b"a"]), (api.ABORT, [])], ids=["commit", "abort"])
def test_an_end_comes_behind_sends_of_its_transaction_in_the_same_pass(rig, action, expected):
    producer, bits = rig.producer("t"), rig.new()
    rig.add(bits, "t")
    end = rig.command("endTxn", request_id=1, **of(bits), txn_action=action)
    answers = rig.run(sends_in(rig, bits, producer, b"a"), end)
    assert (outcomes(answers), len(answers.receipts)) == ([SUCCESS], 1)
    assert texts(rig) == expected


def refusals(answers):
    """Return (errors, whether each receipt has a position) of the SENDs in a pass."""
    errors = [command.send_error.error for command in answers.commands(api.BaseCommand.SEND_ERROR)]
    dropped = [False for _ in answers.commands(api.BaseCommand.SEND_RECEIPT)]
    return errors, [True for _ in answers.receipts] + dropped


STORED, DROPPED, REFUSED = ([], [True]), ([], [False]), ([api.NotAllowedError], [])


def test_a_send_after_a_kill_is_stored_dropped_or_refused_as_its_coordinator_says(rig, tmp_path):
    """The partition has forgotten what was added, and how its transactions ended."""
    producer = rig.producer("t")
    added, committed, aborted, bare = (rig.new() for _ in range(4))
    for bits in (added, committed, aborted):
        assert rig.add(bits, "t") == [SUCCESS]
    assert rig.end(committed) == rig.end(aborted, api.ABORT) == [SUCCESS]
    after = rig.crashed(tmp_path / "later")
    producer = after.producer("t")
    expected = {added: STORED, committed: REFUSED, aborted: DROPPED, bare: REFUSED, (0, 1 << 40): REFUSED}
    for bits, found in expected.items():
        assert refusals(publish_in(after, bits, producer, b"a")) == found, bits
    assert after.end(added) == [SUCCESS] and texts(after) == [b"a"]
    after.close()


def test_a_send_in_a_transaction_whose_time_is_over_is_dropped(rig):
    producer, bits = rig.producer("t"), rig.new()
    assert rig.add(bits, "t") == [SUCCESS]
    rig.run(after_ms=LIFETIME_MS)
    assert refusals(publish_in(rig, bits, producer, b"late")) == DROPPED
    assert texts(rig) == []


def test_ids_rise_and_never_come_again(rig, tmp_path):
    ids = [rig.new() for _ in range(3)]
    later = rig.crashed(tmp_path / "later")
    ids += [later.new() for _ in range(3)]
    later.close()
    assert ids == sorted(set(ids)) and {most for most, _ in ids} == {0}


def test_the_end_of_an_ended_transaction_may_be_repeated_and_not_changed(rig, tmp_path):
    rig.producer("t")
    done, gone = rig.new(), rig.new()
    assert rig.add(done, "t") == [SUCCESS]
    assert rig.end(done) == rig.end(gone, api.ABORT) == [SUCCESS]
    assert rig.end(done) == rig.end(gone) == [api.TransactionNotFound]      # this connection was told
    for one, connection in ((rig, 8), (rig.crashed(tmp_path / "later"), 9)):
        assert one.end(done, api.ABORT, connection=connection) == [api.InvalidTxnStatus]
        assert one.end(gone, connection=connection) == [api.InvalidTxnStatus]
        assert one.end(done, connection=connection) == one.end(gone, api.ABORT, connection=connection) == [SUCCESS]
        assert one.end(done, connection=connection) == [api.TransactionNotFound]
        assert one.add(done, "t") == [api.TransactionNotFound]
    one.close()
    rig.run(after_ms=ENDED_MS)
    assert rig.end(done) == [api.TransactionNotFound]


def test_only_so_many_ended_transactions_are_remembered(tmp_path):
    table = transaction_table.read(tmp_path, 0)
    ops = [journal_ops.coordinated(number, transaction_table.COMMITTED, 0, opened_ms=5, lifetime_ms=1)
           for number in range(1, ENDED_MAX + 3)]
    table.apply(np.frombuffer(b"".join(ops), transaction_table.format.COORDINATED_OP))
    assert table.ended(transaction=2) is None and table.ended(transaction=3) == (
        transaction_table.COMMITTED, transaction_table.Role(0, 0))


@pytest.mark.parametrize("bits", [(0, 99), (0, 0), (0, 1 << 60)])
def test_an_unknown_transaction_is_not_found(rig, bits):
    assert rig.add(bits, "t") == rig.end(bits) == rig.add_subscription(bits, "t", "s") == [api.TransactionNotFound]


def test_an_unknown_coordinator_is_not_found(rig):
    assert rig.ask("newTxn", tc_id=1, txn_ttl_millis=LIFETIME_MS) == [api.TransactionCoordinatorNotFound]
    assert rig.add((1, 5), "t") == rig.end((1 << 40, 5)) == [api.TransactionCoordinatorNotFound]


def test_topics_and_subscriptions_that_are_not_stored_are_passed_over(rig):
    rig.producer("t")
    consumer = rig.consumer("t")
    bits, partition_id = rig.new(), rig.partition("t").partition_id
    assert rig.add(bits, "t", "missing", "non-persistent://public/default/n") == [SUCCESS]
    assert rig.add(bits) == [SUCCESS]
    assert rig.add_subscription(bits, "missing", "s") == [SUCCESS]
    [name] = [key[0] for key in rig.partition("t").subscriptions]
    assert rig.add_subscription(bits, "t", name) == [SUCCESS]
    number = rig.owner.clients.consumers.by_handle[consumer.number].subscription.cursor.subscription_id
    assert rig.added_to(bits) == {(partition_id, 0), (partition_id, number)}
    assert rig.add(bits, "t", "a/b") == [api.InvalidTopicName]
    assert rig.end(bits) == [SUCCESS]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("action", "expected"), [(api.COMMIT, [b"a"]), (api.ABORT, [])], ids=["commit", "abort"])
def test_a_topic_may_be_added_before_it_is_there(rig, tmp_path, action, expected, killed):
    """As in Apache Pulsar, which keeps names: a success that counted for nothing had the client's messages refused."""
    bits, bare = rig.new(), rig.new()
    assert rig.add(bits, "later") == rig.add(bits, "later", "never") == [SUCCESS]
    if killed:
        rig.owner.journal.write_early(rig.owner.coordinator.transactions.tables[0])
        rig = rig.crashed(tmp_path / "after")
    producer = rig.producer("later")
    assert refusals(publish_in(rig, bare, producer, b"no")) == REFUSED
    assert refusals(publish_in(rig, bits, producer, b"a")) == STORED
    assert rig.added_to(bits) == {(rig.partition("later").partition_id, 0)}
    if killed:
        rig.close()
        rig = rig.crashed(tmp_path / "again")
    assert rig.end(bits, action) == [SUCCESS]
    assert texts(rig, "later") == expected
    rig.close()


def test_a_table_has_the_topics_that_are_not_there_yet(tmp_path):
    """They come from the journal, or from the file."""
    ops = [journal_ops.coordinated(9, transaction_table.OPEN, 0, opened_ms=5, lifetime_ms=1),
           journal_ops.added_to_transaction(9, 7, 0), journal_ops.promised_to_transaction(9, named.hash_of("a\0"))]
    table = transaction_table.TransactionTable(tmp_path / "table", 0)
    for op in ops:
        table.apply(np.frombuffer(op, format.OPS[op[0]]))
    (tmp_path / "transactions" / "0").mkdir(parents=True)
    (tmp_path / "transactions" / "0" / "table").write_bytes(table.encode())
    for known in (table, transaction_table.read(tmp_path, 0)):
        assert (known.by_id[9].added, known.by_id[9].promised) == ({(7, 0)}, {named.hash_of("a\0")})


def test_a_transaction_takes_so_many_topics_that_are_not_there(rig, monkeypatch):
    monkeypatch.setattr(coordinator, "PROMISED_MAX", 2)
    bits = rig.new()
    assert rig.add(bits, "a", "b", "a") == rig.add(bits, "b") == [SUCCESS]
    assert rig.add(bits, "b", "c") == [api.NotAllowedError]


def test_a_subscription_may_be_added_before_it_is_there(rig):
    producer, bits = rig.producer("t"), rig.new()
    assert rig.add_subscription(bits, "t", "later") == [SUCCESS]
    consumer = rig.consumer("t", "later")
    [position] = rig.publish(producer, b"plain")
    rig.receive(consumer)
    assert not acknowledge_in(rig, bits, consumer, position).HasField("error")
    assert rig.end(bits) == [SUCCESS]
    assert rig.partition("t").subscriptions["later", True].cursor.is_acknowledged(*position)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("action", [api.COMMIT, api.ABORT], ids=["commit", "abort"])
def test_a_subscription_may_be_added_before_its_topic_is_there(rig, tmp_path, action, killed):
    """As in Apache Pulsar: a success that counted for nothing had the client's acknowledgements refused."""
    bits, others = rig.new(), rig.new()
    assert rig.add_subscription(bits, "later", "s") == rig.add_subscription(others, "later", "other") == [SUCCESS]
    if killed:
        rig.owner.journal.write_early(rig.owner.coordinator.transactions.tables[0])
        rig = rig.crashed(tmp_path / "after")
    consumer, other = rig.consumer("later", "s"), rig.consumer("later", "other")
    [position] = rig.publish(rig.producer("later"), b"plain")
    rig.receive(consumer)
    assert acknowledge_in(rig, others, consumer, position).error == api.TransactionNotFound
    assert acknowledge_in(rig, bits, other, position).error == api.TransactionNotFound
    assert not acknowledge_in(rig, bits, consumer, position).HasField("error")
    if killed:
        rig.close()
        rig = rig.crashed(tmp_path / "again")
        rig.producer("later")
    cursor = rig.partition("later").subscriptions["s", True].cursor
    assert not cursor.is_acknowledged(*position)
    assert rig.end(bits, action) == [SUCCESS]
    assert cursor.is_acknowledged(*position) == (action == api.COMMIT)
    rig.close()


def test_a_right_to_publish_is_none_to_acknowledge(rig):
    """Neither that of a topic which was not there, nor that of a topic whose name ends as a subscription's does."""
    bits = rig.new()
    assert rig.add(bits, "later", "laters") == [SUCCESS]
    consumer = rig.consumer("later", "s")
    [position] = rig.publish(rig.producer("later"), b"plain")
    rig.receive(consumer)
    assert acknowledge_in(rig, bits, consumer, position).error == api.TransactionNotFound
    assert rig.end(bits) == [SUCCESS]


def test_the_subscription_of_a_reader_gives_no_right_to_publish(rig):
    """It is not stored, and its acknowledgements are committed in memory."""
    producer, bits = rig.producer("t"), rig.new()
    [position] = rig.publish(producer, b"plain")
    reader = rig.consumer("t", "reader", durable=False)
    assert rig.add_subscription(bits, "t", "reader") == [SUCCESS]
    assert publish_in(rig, bits, producer, b"a").receipts == []
    rig.receive(reader)
    rig.run(rig.command("ack", consumer_id=reader.object_id, ack_type=0, request_id=5, **of(bits),
                        message_id=[api.MessageIdData(ledgerId=position[0], entryId=position[1])]))
    cursor = rig.partition("t").subscriptions["reader", False].cursor
    assert not cursor.is_acknowledged(*position)
    assert rig.end(bits) == [SUCCESS] and cursor.is_acknowledged(*position)


def test_an_end_without_an_action_is_refused(rig):
    assert rig.ask("endTxn", **of(rig.new())) == [api.InvalidTxnStatus]


@pytest.mark.parametrize(("lifetime_ms", "lives"), [(0, 0), (99, 0), (100, 100), (5_000, 5_000)])
def test_a_transaction_whose_time_is_over_is_aborted(rig, lifetime_ms, lives):
    producer, bits = rig.producer("t"), rig.new(lifetime_ms=lifetime_ms)
    if lives:
        rig.add(bits, "t")
        publish_in(rig, bits, producer, b"a")
        assert rig.owner.passes.due_ms() <= rig.now_ms + lives
        rig.run(after_ms=lives - 1)
        assert rig.owner.coordinator.transactions.active == 1
        rig.run(after_ms=1)
    assert rig.owner.coordinator.transactions.active == 0 and rig.owner.coordinator.timed_out == 1
    assert texts(rig) == [] and rig.partition("t").limit is None
    assert rig.end(bits) == [api.InvalidTxnStatus]


@pytest.mark.slow
def test_the_longest_lifetime_is_taken_and_costs_no_memory_once_ended(rig):
    for _ in range(1_200):
        bits = rig.new(lifetime_ms=(1 << 64) - 1)
        assert rig.end(bits) == [SUCCESS]
    rig.run()
    assert len(rig.owner.coordinator._deadlines._heap) <= 1_002


def test_active_transactions_are_limited(tmp_path):
    rig = Coordinated(tmp_path / "data", max_active_transactions=2)
    first, _ = rig.new(), rig.new()
    assert rig.ask("newTxn", txn_ttl_millis=LIFETIME_MS) == [api.TooManyRequests]
    assert rig.end(first) == [SUCCESS]
    rig.new()
    rig.close()


def test_disabled_transactions_are_refused(tmp_path):
    rig = Coordinated(tmp_path / "data", transactions=False)
    assert rig.ask("newTxn", txn_ttl_millis=LIFETIME_MS) == [api.NotAllowedError]
    rig.close()


def test_a_transaction_belongs_to_the_role_that_began_it(rig):
    rig.introduce(2, "ann")
    rig.introduce(3, "bob")
    rig.introduce(4, "root", superuser=True)
    bits, other = rig.new(connection=2), rig.new(connection=2)
    assert rig.add(bits, "t", connection=3) == rig.end(bits, connection=3) == [api.TransactionNotFound]
    assert rig.add(bits, "t", connection=4) == rig.add(bits, "t", connection=2) == [SUCCESS]
    assert rig.end(bits, connection=2) == rig.end(bits, connection=4) == rig.end(other, connection=4) == [SUCCESS]
    assert rig.end(bits, connection=3) == [api.TransactionNotFound]


def ack_in(rig, consumer, bits, position, connection):
    """Acknowledge in a transaction; return the answer's error, SUCCESS for none."""
    [command] = rig.run(rig.command(
        "ack", connection=connection, consumer_id=consumer.object_id, ack_type=0, request_id=5, **of(bits),
        message_id=[api.MessageIdData(ledgerId=position[0], entryId=position[1])])).commands()
    return command.ackResponse.error if command.ackResponse.HasField("error") else SUCCESS


def introduce_all(rig):
    for connection, role in ((2, "ann"), (3, "bob"), (4, "root")):
        rig.introduce(connection, role, superuser=role == "root")
    return {connection: rig.producer("t", connection=connection) for connection in (2, 3, 4)}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("is_used", [False, True])
def test_a_topics_owner_refuses_messages_and_acknowledgements_of_another_role(rig, tmp_path, killed, is_used):
    """Whoever guesses a transaction's id, which counts up, may not put messages into it, nor acknowledge in it."""
    producers = introduce_all(rig)
    bits, positions = rig.new(connection=2), rig.publish(producers[2], b"1", b"2", b"3")
    consumer = rig.consumer("t", "sub", connection=2, subType=api.CommandSubscribe.Shared)
    assert rig.add(bits, "t", connection=2) == rig.add_subscription(bits, "t", "sub", connection=2) == [SUCCESS]
    if is_used:
        assert refusals(publish_in(rig, bits, producers[2], b"ann")) == STORED
        assert ack_in(rig, consumer, bits, positions[0], 2) == SUCCESS
    if killed:
        rig = rig.crashed(tmp_path / "later")
        producers = introduce_all(rig)
    for connection in (3, 2, 4):
        is_allowed = connection != 3
        consumer = rig.consumer("t", "sub", connection=connection, subType=api.CommandSubscribe.Shared)
        assert refusals(publish_in(rig, bits, producers[connection], b"more")) == (STORED if is_allowed else REFUSED)
        assert ack_in(rig, consumer, bits, positions[connection - 2], connection) == (
            api.TransactionConflict if is_used and connection == 2 else
            SUCCESS if is_allowed else api.TransactionNotFound)
        rig.run(rig.command("close_consumer", connection=connection, consumer_id=consumer.object_id, request_id=6))
    rig.close()


def test_a_role_with_the_same_checksum_is_another_role(rig, tmp_path):
    """Names with one CRC32-C are easily made.  Transactions that an older program began have no other sign."""
    ann, other = "ann", "bob-659-1YPr"
    assert crc32c(ann.encode()) == crc32c(other.encode())
    rig.introduce(2, ann)
    rig.introduce(3, other)
    bits = rig.new(connection=2)
    assert rig.add(bits, "t", connection=3) == rig.end(bits, connection=3) == [api.TransactionNotFound]
    later = rig.crashed(tmp_path / "later")
    later.introduce(2, ann)
    later.introduce(3, other)
    assert later.end(bits, connection=3) == [api.TransactionNotFound]
    assert later.end(bits, connection=2) == [SUCCESS]
    assert later.end(bits, connection=3) == [api.TransactionNotFound]
    later.close()
    older = transaction_table.Role(0, crc32c(ann.encode()))
    assert older.is_name(ann) and older.is_name(other) and not transaction_table.role(ann).is_name(other)


def test_a_deleted_topic_does_not_hold_an_end_back(rig, tmp_path):
    rig.producer("t")
    bits, later_bits = rig.new(), rig.new()
    rig.add(bits, "t")
    rig.add(later_bits, "t")
    rig.run(rig.happened(envelope.CONNECTION_GONE))
    rig.owner.topics.delete(names.parse("t"))
    assert rig.end(bits) == [SUCCESS]
    later = rig.crashed(tmp_path / "later")
    assert later.end(later_bits) == [SUCCESS]
    later.close()


@pytest.mark.parametrize(("action", "expected"), [(api.COMMIT, [b"a"]), (api.ABORT, [])], ids=["commit", "abort"])
def test_an_end_with_a_terminated_and_a_missing_topic_is_answered(rig, tmp_path, action, expected):
    producer, bits = rig.producer("t"), rig.new()
    assert rig.add(bits, "t", "missing", "persistent://none/missing/t") == [SUCCESS]
    publish_in(rig, bits, producer, b"a")
    rig.asked("terminate", "t")
    assert rig.end(bits, action) == [SUCCESS] and rig.owner.coordinator.transactions.active == 0
    later = rig.crashed(tmp_path / "later")
    assert texts(rig) == texts(later) == expected and later.owner.coordinator.transactions.active == 0
    later.close()


# -- kills

def test_an_open_transaction_goes_on_after_a_kill(rig, tmp_path):
    producer, bits = rig.producer("t"), rig.new()
    rig.add(bits, "t")
    publish_in(rig, bits, producer, b"a")
    rig.now_ms += 30_000
    later = rig.crashed(tmp_path / "later")
    publish_in(later, bits, later.producer("t"), b"b")
    assert later.transaction(bits).deadline_ms == rig.now_ms - 30_000 + LIFETIME_MS
    assert texts(later) == []
    assert later.end(bits) == [SUCCESS]
    assert texts(later) == [b"a", b"b"]
    later.close()


def test_what_ran_out_during_a_restart_is_aborted(rig, tmp_path):
    producer, bits = rig.producer("t"), rig.new()
    rig.add(bits, "t")
    publish_in(rig, bits, producer, b"a")
    rig.now_ms += LIFETIME_MS
    later = rig.crashed(tmp_path / "later")
    later.run()
    assert later.owner.coordinator.transactions.active == 0 and texts(later) == []
    later.close()


def test_a_clean_stop_keeps_transactions_in_the_table(rig, tmp_path):
    producer, bits, ended = rig.producer("t"), rig.new(), rig.new()
    rig.add(bits, "t")
    publish_in(rig, bits, producer, b"a")
    rig.end(ended)
    rig.close()
    assert [str(found) for found in walk(rig.data_dir)] == []
    later = Coordinated(rig.data_dir, now_ms=rig.now_ms)
    assert later.recovered == 0
    assert later.end(ended) == later.end(bits) == [SUCCESS]
    assert texts(later) == [b"a"]
    later.close()


@pytest.mark.parametrize("commits", [True, False])
def test_a_decision_without_its_end_is_carried_out_by_the_next_start(rig, tmp_path, commits, monkeypatch):
    producer, bits = rig.producer("t"), rig.new()
    rig.add(bits, "t")
    publish_in(rig, bits, producer, b"a")
    monkeypatch.setattr(type(rig.owner.participant), "end", lambda *_, **__: None)      # killed before
    assert rig.end(bits, api.COMMIT if commits else api.ABORT) == []
    copy = tmp_path / "later"
    monkeypatch.undo()
    later = rig.crashed(copy)
    later.run()
    assert later.owner.coordinator.transactions.active == 0
    assert texts(later) == [b"a"] * commits
    later.close()


def test_nothing_is_committed_of_a_transaction_that_the_coordinator_lost(rig):
    producer, bits = rig.producer("t"), rig.new()
    rig.add(bits, "t")
    publish_in(rig, bits, producer, b"a")
    rig.close()
    path = transaction_table.path_of(rig.data_dir, 0)
    raw = path.read_bytes()
    path.write_bytes(raw[:8] + b"?" * 8 + raw[16:])
    assert len(transaction_table.read(rig.data_dir, 0).by_id) == 1      # the other copy
    [found] = walk(rig.data_dir)
    assert "copy 1" in str(found)
    path.write_bytes(b"?" * len(raw))
    assert {found.severity for found in walk(rig.data_dir)} == {Severity.LOSS}
    later = Coordinated(rig.data_dir, now_ms=rig.now_ms)
    assert texts(later) == []
    later.run()
    assert later.partition("t").limit is None and texts(later) == []
    assert later.end(bits) == [api.TransactionNotFound]
    later.close()


def test_a_table_is_printed_with_its_transactions_and_its_damage(rig):
    rig.producer("t")
    ended, left = rig.new(), rig.new()
    rig.add(left, "t")
    rig.end(ended, api.ABORT)
    rig.close()
    path = transaction_table.path_of(rig.data_dir, 0)
    first, second, *ops = dump.dump(path)
    assert first["checksum"] == second["checksum"] == "whole"
    assert [(each["op"], each["transaction"], each.get("state")) for each in ops] == [
        ("coordinated", f"({ended[0]},{ended[1]})", "aborted"), ("coordinated", f"({left[0]},{left[1]})", "open"),
        ("added to transaction", f"({left[0]},{left[1]})", None)]
    flip(path, 70)
    damaged, whole, *again = dump.dump(path)
    assert "checksum" in damaged["damaged"] and whole["checksum"] == "whole" and again == ops


# -- two owners

OURS, THEIRS = (next(name for name in (f"t{number}" for number in range(99))
                     if owner_of(f"persistent://public/default/{name}", 2) == index) for index in (0, 1))


class Two:
    """Two owners on one data folder; `pass_on` carries their messages, unless the receiver is gone."""

    def __init__(self, data_dir, **settings):
        self.data_dir = data_dir
        self.rigs = [self.start(index, **settings) for index in (0, 1)]
        for index in (0, 1):
            self.is_up(index)

    def start(self, index, **settings):
        return Coordinated(self.data_dir, owners=2, index=index,
                           is_mine=lambda name: owner_of(name, 2) == index, **settings)

    def is_up(self, index):
        """Tell the other owner that this one serves."""
        self.rigs[1 - index].owner.passes.begin(self.rigs[0].now_ms)
        self.rigs[1 - index].owner.exchange.owner_is_up(index)

    def pass_on(self):
        """Carry messages until there are none; return the outcomes of commands that were answered meanwhile."""
        found = []
        while carried := [(index, rows) for rig in self.rigs if rig is not None
                          for index, rows in rig.owner.peers.take_others().items()]:
            for index, rows in carried:
                if self.rigs[index] is not None:
                    section = envelope.TRANSACTIONS, np.array(rows, envelope.TRANSACTION_ROW), b""
                    found += outcomes(self.rigs[index].run(section, worker=9))
        return found

    def close(self):
        for rig in self.rigs:
            if rig is not None:
                rig.close()


@pytest.fixture
def two(tmp_path):
    made = Two(tmp_path / "data")
    yield made
    made.close()


def begun(two):
    """Return the id of a transaction that has published to a topic of each owner."""
    first, second = two.rigs
    producers = first.producer(OURS), second.producer(THEIRS)
    bits = first.new()
    assert first.add(bits, OURS, THEIRS) == []
    assert two.pass_on() == [SUCCESS]
    for rig, producer in zip(two.rigs, producers, strict=True):
        assert len(publish_in(rig, bits, producer, b"a").receipts) == 1
    return bits


@pytest.mark.parametrize(("action", "expected"), [(api.COMMIT, [b"a"]), (api.ABORT, [])], ids=["commit", "abort"])
def test_a_transaction_over_two_owners_ends_in_both(two, action, expected):
    bits = begun(two)
    assert two.rigs[0].end(bits, action) == []
    assert two.pass_on() == [SUCCESS]
    assert texts(two.rigs[0], OURS) == texts(two.rigs[1], THEIRS) == expected


def test_owners_number_their_transactions_apart(two):
    assert [rig.new(tc_id=index)[0] for index, rig in enumerate(two.rigs)] == [0, 1]


def test_a_participant_that_was_killed_is_told_again(two):
    bits = begun(two)
    two.rigs[1].settle()
    two.rigs[1] = None
    assert two.rigs[0].end(bits) == []
    assert two.pass_on() == [] and texts(two.rigs[0], OURS) == [b"a"]
    two.rigs[1] = two.start(1)
    two.is_up(1)
    assert two.pass_on() == [SUCCESS]
    assert texts(two.rigs[1], THEIRS) == [b"a"]


def test_a_participant_that_was_killed_still_knows_what_was_added(two):
    bits = begun(two)
    two.rigs[1].settle()
    two.rigs[1] = two.start(1)
    two.is_up(1)
    two.pass_on()
    producer = two.rigs[1].producer(THEIRS)
    assert len(publish_in(two.rigs[1], bits, producer, b"b").receipts) == 1
    two.rigs[0].end(bits)
    two.pass_on()
    assert texts(two.rigs[1], THEIRS) == [b"a", b"b"]


def waiting(two):
    """Return (transaction, position, section of an ACK) of a subscription whose owner was killed since it was added.

    The new process does not know what was added.
    """
    first, second = two.rigs
    bits = first.new()
    [position] = second.publish(second.producer(THEIRS), b"plain")
    second.consumer(THEIRS, "s", initialPosition=api.CommandSubscribe.Earliest)
    assert first.add_subscription(bits, THEIRS, "s") == [] and two.pass_on() == [SUCCESS]
    second.settle()
    two.rigs[1] = second = two.start(1)
    consumer = second.consumer(THEIRS, "s")
    second.receive(consumer)
    return bits, position, second.command(
        "ack", consumer_id=consumer.object_id, ack_type=0, request_id=5, **of(bits),
        message_id=[api.MessageIdData(ledgerId=position[0], entryId=position[1])])


def answers_of(two, index):
    """Carry what the first owner has to say to the second one; return the errors of ACKs that it answers, or None."""
    found = []
    for rows in two.rigs[0].owner.peers.take_others().values():
        answers = two.rigs[index].run((envelope.TRANSACTIONS, np.array(rows, envelope.TRANSACTION_ROW), b""), worker=9)
        found += ack_errors(answers)
    return found


def ack_errors(answers):
    return [answer.ackResponse.error if answer.ackResponse.HasField("error") else SUCCESS
            for answer in answers.commands(api.BaseCommand.ACK_RESPONSE)]


def ask_first(two):
    """Carry the questions of the second owner to the first one."""
    for rows in two.rigs[1].owner.peers.take_others().values():
        two.rigs[0].run((envelope.TRANSACTIONS, np.array(rows, envelope.TRANSACTION_ROW), b""), worker=9)


def test_an_acknowledgement_waits_for_the_coordinator_after_a_start(two):
    """Its owner has forgotten what was added, and refused what came before it was told again."""
    bits, position, ack = waiting(two)
    assert ack_errors(two.rigs[1].run(ack)) == []
    ask_first(two)
    assert answers_of(two, 1) == [SUCCESS]
    assert two.rigs[0].end(bits) == [] and two.pass_on() == [SUCCESS]
    assert two.rigs[1].partition(THEIRS).subscriptions["s", True].cursor.is_acknowledged(*position)


def test_a_question_is_asked_again_when_its_coordinator_is_back(two):
    _, _, ack = waiting(two)
    two.rigs[1].run(ack)
    two.rigs[1].owner.peers.take_others()      # lost
    two.is_up(0)
    ask_first(two)
    assert answers_of(two, 1) == [SUCCESS]


def test_acknowledgements_wait_for_so_long_and_so_many(two, monkeypatch):
    monkeypatch.setattr(held_acks, "_HELD_MAX", 2)
    _, _, ack = waiting(two)
    assert ack_errors(two.rigs[1].run(ack, ack)) == []
    assert ack_errors(two.rigs[1].run(ack)) == [api.TransactionCoordinatorNotFound]
    rows = [row for some in two.rigs[1].owner.peers.take_others().values() for row in some]
    assert [row[0] for row in rows].count(envelope.MAY_ACKNOWLEDGE) == 1
    assert ack_errors(two.rigs[1].run(after_ms=held_acks._PATIENCE_MS)) == [api.TransactionNotFound] * 2


def test_an_acknowledgement_that_waits_is_refused_at_the_end(two):
    """A client that ends its transaction without the answer has nothing acknowledged."""
    bits, position, ack = waiting(two)
    two.rigs[1].run(ack)
    two.rigs[1].owner.peers.take_others()
    assert two.rigs[0].end(bits) == []
    assert answers_of(two, 1) == [api.TransactionNotFound]
    assert not two.rigs[1].partition(THEIRS).subscriptions["s", True].cursor.is_acknowledged(*position)


@pytest.mark.parametrize("is_decided", [False, True])
def test_a_coordinator_that_was_killed_goes_on(two, is_decided):
    bits = begun(two)
    if is_decided:
        two.rigs[0].end(bits)
        two.rigs[0].owner.peers.take_others()      # lost with its process
    two.rigs[0].settle()
    two.rigs[0] = two.start(0)
    two.is_up(0)
    two.rigs[0].owner.exchange.owner_is_up(1)
    two.pass_on()
    two.rigs[0].end(bits)
    two.pass_on()
    assert two.rigs[0].end(bits, connection=8) == [SUCCESS]
    assert texts(two.rigs[0], OURS) == texts(two.rigs[1], THEIRS) == [b"a"]


@pytest.mark.parametrize("is_lost_on_the_way", [True, False])
def test_a_participant_that_does_not_answer_is_told_again(two, is_lost_on_the_way):
    """Its answer went to the coordinator's former process, before it was told of the new one."""
    bits = begun(two)
    assert two.rigs[0].end(bits) == []
    [rows] = two.rigs[0].owner.peers.take_others().values()
    if not is_lost_on_the_way:
        two.rigs[1].run((envelope.TRANSACTIONS, np.array(rows, envelope.TRANSACTION_ROW), b""), worker=9)
        two.rigs[1].owner.peers.take_others()
    two.rigs[0].run(after_ms=1_000)
    assert two.pass_on() == []
    two.rigs[0].run(after_ms=5_000)
    assert two.pass_on() == [SUCCESS]
    assert texts(two.rigs[0], OURS) == texts(two.rigs[1], THEIRS) == [b"a"]


def test_an_add_that_is_not_answered_is_repeated(two):
    two.rigs[1].producer(THEIRS)
    bits = two.rigs[0].new()
    assert two.rigs[0].add(bits, THEIRS) == []
    two.rigs[0].owner.peers.take_others()
    two.rigs[0].run(after_ms=6_000)
    assert two.pass_on() == [SUCCESS]


@pytest.mark.parametrize("is_waiting", [True, False], ids=["another partition waits", "it has ended"])
def test_an_add_that_arrives_behind_the_end_is_ended(two, is_waiting):
    """A coordinator's former process had sent it, over another connection than that of its new process."""
    bits, (ours, theirs) = begun(two), two.rigs
    other = next(name for name in (f"u{number}" for number in range(99))
                 if owner_of(f"persistent://public/default/{name}", 2) == 1)
    theirs.producer(other)
    assert ours.add(bits, other) == [] and two.pass_on() == [SUCCESS]
    partition = theirs.partition(THEIRS)
    ours.end(bits, api.ABORT)
    [rows] = ours.owner.peers.take_others().values()
    rows = [row for row in rows if not is_waiting or row[2] == partition.partition_id]
    theirs.run((envelope.TRANSACTIONS, np.array(rows, envelope.TRANSACTION_ROW), b""), worker=9)
    two.pass_on()
    assert ours.owner.coordinator.transactions.active == is_waiting and partition.transactions.added == {}
    theirs.owner.participant.add(names.transaction(*bits), partition.partition_id, 0)
    two.pass_on()
    assert partition.transactions.added == {}


def test_a_partition_that_is_opened_later_asks_how_its_transaction_ended(two):
    bits = begun(two)
    two.rigs[0].end(bits)
    two.rigs[0].owner.peers.take_others()
    table = two.rigs[0].owner.coordinator.transactions.tables[0]
    two.rigs[0].owner.coordinator.ended(names.transaction(*bits), two.rigs[1].partition(THEIRS).partition_id)
    assert table.ended(names.transaction(*bits))[0] == transaction_table.COMMITTED
    two.rigs[1].owner.exchange.owner_is_up(0)
    two.pass_on()
    assert texts(two.rigs[1], THEIRS) == [b"a"]


def test_an_add_waits_for_the_other_owner_and_is_refused_by_an_end(two):
    two.rigs[1].producer(THEIRS)
    bits = two.rigs[0].new()
    assert two.rigs[0].add(bits, THEIRS) == []
    assert two.rigs[0].end(bits, api.ABORT) == [api.InvalidTxnStatus]
    assert two.pass_on() == [SUCCESS]


def test_requests_that_wait_for_an_owner_which_is_down_are_bounded(two, monkeypatch):
    monkeypatch.setattr(coordinator, "_WAITING_MAX", 3)
    two.rigs[1].producer(THEIRS)
    first, added, ended = two.rigs[0], two.rigs[0].new(), two.rigs[0].new()
    assert first.add(ended, THEIRS) == [] and two.pass_on() == [SUCCESS]
    assert first.add(added, THEIRS) == first.end(ended) == first.end(ended, connection=7) == []
    assert first.add(added, THEIRS) == first.end(added) == [api.TransactionCoordinatorNotFound]
    assert first.end(first.new(), connection=8) == [api.TransactionCoordinatorNotFound]
    assert two.pass_on() == [SUCCESS] * 3
    assert first.add(added, THEIRS) == [] and two.pass_on() == [SUCCESS] and not first.owner.coordinator._waiting


def test_a_client_that_is_gone_is_not_answered(two):
    bits = begun(two)
    two.rigs[0].end(bits)
    two.rigs[0].run(two.rigs[0].happened(envelope.CONNECTION_GONE))
    assert two.pass_on() == []
    assert texts(two.rigs[1], THEIRS) == [b"a"]


def test_transactions_follow_their_coordinator_to_another_number_of_owners(two):
    """Coordinator 1 is owner 0's when there is one owner, and owner 1's again when there are two."""
    two.rigs[1].producer(THEIRS)
    bits = two.rigs[1].new(tc_id=1, lifetime_ms=1 << 50)
    assert two.rigs[1].add(bits, THEIRS) == [SUCCESS]
    two.close()
    alone = Coordinated(two.data_dir, has_moved=True)
    # the supervisor's part: a journal without an owner is recovered by another
    publish_in(alone, bits, alone.producer(THEIRS), b"a")
    assert alone.transaction(bits).state == transaction_table.OPEN
    alone.close()
    again = Two(two.data_dir, has_moved=True)
    assert again.rigs[1].end(bits) == [SUCCESS]
    assert texts(again.rigs[1], THEIRS) == [b"a"]
    again.close()


def test_nothing_is_used_before_all_owners_have_recovered(tmp_path):
    rig = Coordinated(tmp_path / "data", owners=2, index=0, has_moved=True)
    assert rig.ask("newTxn", txn_ttl_millis=LIFETIME_MS) == [api.TransactionCoordinatorNotFound]
    rig.owner.exchange.owner_is_up(1)
    assert rig.new()[0] == 0
    rig.close()


@pytest.mark.parametrize("data", [
    b"\x08\x32" + api.BaseCommand(type=api.BaseCommand.CLOSE_PRODUCER).SerializeToString(), b"\x08\x32\xff",
    api.BaseCommand(type=api.BaseCommand.CLOSE_PRODUCER).SerializeToString()], ids=["type twice", "cut", "another"])
def test_a_command_that_only_begins_like_one_of_transactions_comes_behind_all_sends(data):
    """A client may write a field twice, and the last one counts; nothing may be stored behind its producer's end."""
    assert requests.concerned(requests._parsed(data)) is None


def test_an_end_comes_behind_the_sends_of_its_transaction_and_no_others():
    """SENDs of other transactions wait for the end of the pass, as each plan is synced by itself."""
    end = api.BaseCommand(type=api.BaseCommand.END_TXN, endTxn=api.CommandEndTxn(
        request_id=1, txnid_most_bits=1, txnid_least_bits=7, txn_action=api.COMMIT))
    begin = api.BaseCommand(type=api.BaseCommand.NEW_TXN, newTxn=api.CommandNewTxn(request_id=1))
    assert (requests.concerned(end), requests.concerned(begin)) == ({names.transaction(1, 7)}, set())


def test_what_a_process_of_the_broker_leaves_open_is_aborted_when_its_connection_ends(rig):
    """A client's transaction stays: the client connects again, and ends it."""
    rig.producer("t")
    of_lane, of_client = 71, 72
    rig.introduce(of_lane, "geminga", replicator=True)
    rig.introduce(of_client, "")
    done, left, clients = (rig.new(connection=connection) for connection in (of_lane, of_lane, of_client))
    assert rig.end(done, connection=of_lane) == [SUCCESS]
    assert rig.add(left, "t", connection=of_lane) == [SUCCESS]
    for connection in (of_lane, of_client):
        rig.run(rig.happened(envelope.CONNECTION_GONE, connection=connection))
    assert [one.transaction for one in rig.owner.coordinator.transactions.open] == [names.transaction(*clients)]
    assert (rig.owner.coordinator.committed, rig.owner.coordinator.aborted) == (1, 1)
