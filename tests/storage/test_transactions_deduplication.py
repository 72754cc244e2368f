"""Sequence ids of messages in transactions: a commit uses them up, an abort gives them back, also of chunks."""
import numpy as np
import pytest

from geminga.proto import envelope
from geminga.proto.sends import IN_TRANSACTION
from geminga.storage import format
from geminga.storage.cursors.open_transactions import OpenTransactions
from geminga.storage.ledgers import journal_ops

from .test_deduplication import DUPLICATE, Message, chunks, section
from .transactional import TransactionalRig, killed_at

WAYS = pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])


@pytest.fixture
def rig(tmp_path):
    made = TransactionalRig(tmp_path / "data", deduplication=True)
    yield made
    made.close()


def send(rig, producer, *messages, transaction=0):
    """Send messages in one pass, in a transaction or plain; return for each whether it is a duplicate."""
    messages = [Message(each, b"%d" % each) if isinstance(each, int) else each for each in messages]
    kind, rows, data = section(*((producer, message) for message in messages))
    if transaction:
        kind, rows["message_index"] = envelope.SENDS_IN_TRANSACTIONS, transaction
        rows["flags"] |= IN_TRANSACTION
    answers = rig.run((kind, rows, data), worker=producer.worker)
    return [position == DUPLICATE for position in answers.positions]


def texts(rig):
    return [payload for _, payload in rig.everything("t")]


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("count", [3, 50], ids=["few", "many"])
@pytest.mark.parametrize("killed", [False, True])
def test_an_abort_gives_sequence_ids_back_and_a_commit_does_not(rig, tmp_path, commits, count, killed):
    producer = rig.producer("t", producer_name="p")
    transaction, ids = rig.begin("t"), range(5, 5 + count)
    send(rig, producer, 1, 4)
    assert not any(send(rig, producer, *ids, transaction=transaction))
    assert all(send(rig, producer, *ids, transaction=transaction)) and all(send(rig, producer, *ids))
    if killed:
        rig = killed_at(rig, tmp_path / "open")
        producer = rig.producer("t", producer_name="p")
    rig.end(transaction, "t", commits=commits)
    if killed:
        rig = killed_at(rig, tmp_path / "ended")
        producer = rig.producer("t", producer_name="p")
    assert send(rig, producer, 4, *ids) == [True] + [commits] * count
    assert texts(rig) == [b"1", b"4"] + [b"%d" % each for each in ids]
    rig.close()


def test_ids_below_a_later_message_go_back_as_well(rig):
    """Messages that were undone are in no topic, so a receipt without storing them again would be a loss."""
    producer = rig.producer("t", producer_name="p")
    transaction = rig.begin("t")
    send(rig, producer, 1, 2, transaction=transaction)
    send(rig, producer, 3)
    rig.end(transaction, "t", commits=False)
    assert send(rig, producer, 1, 2, 3, 4) == [False, False, True, False]


@pytest.mark.parametrize("pauses", [False, True], ids=["one pass", "passes"])
@pytest.mark.parametrize("killed", [False, True])
def test_nothing_goes_back_before_a_message_between_those_of_a_transaction(rig, tmp_path, killed, pauses):
    """What is stored for good stays known; a client whose receipt was lost sends it again."""
    producer = rig.producer("t", producer_name="p")
    transaction = rig.begin("t")
    if pauses:
        send(rig, producer, 1, transaction=transaction)
        send(rig, producer, 2)
        send(rig, producer, 3, transaction=transaction)
    else:
        _, rows, data = section(*((producer, Message(each, b"%d" % each)) for each in (1, 2, 3)))
        rows["message_index"][[0, 2]] = transaction
        rows["flags"][[0, 2]] |= IN_TRANSACTION
        rig.run((envelope.SENDS_IN_TRANSACTIONS, rows, data), worker=producer.worker)
    if killed:
        rig = killed_at(rig, tmp_path / "open")
        producer = rig.producer("t", producer_name="p")
    rig.end(transaction, "t", commits=False)
    assert send(rig, producer, 2, 3) == [True, False]
    assert texts(rig) == [b"2", b"3"]
    rig.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("killed", [False, True])
def test_an_abort_takes_nothing_back_that_another_transaction_commits(rig, tmp_path, order, killed):
    producer = rig.producer("t", producer_name="p")
    aborted, committed = transactions = rig.begin("t"), rig.begin("t")
    send(rig, producer, 1, transaction=aborted)
    send(rig, producer, 2, transaction=committed)
    send(rig, producer, 3, transaction=aborted)
    for at in order:
        rig.end(transactions[at], "t", commits=transactions[at] == committed)
        assert send(rig, producer, 2) == [True]
        if killed:
            rig = killed_at(rig, tmp_path / f"next-{at}")
            producer = rig.producer("t", producer_name="p")
    assert send(rig, producer, 2, 3) == [True, False]
    assert texts(rig) == [b"2", b"3"]
    rig.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("killed", [False, True])
def test_two_aborted_transactions_of_a_producer_go_back_in_any_order(rig, tmp_path, order, killed):
    producer = rig.producer("t", producer_name="p")
    transactions = rig.begin("t"), rig.begin("t")
    send(rig, producer, 1)
    for at in (0, 1):
        send(rig, producer, 2 + 2 * at, 3 + 2 * at, transaction=transactions[at])
    for at in order:
        rig.end(transactions[at], "t", commits=False)
        if killed:
            rig = killed_at(rig, tmp_path / f"next-{at}")
            producer = rig.producer("t", producer_name="p")
    assert send(rig, producer, 1, 2, 3, 4) == [True, False, False, False]
    rig.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_late_message_of_an_aborted_transaction_may_be_sent_again(rig, tmp_path, killed):
    producer = rig.producer("t", producer_name="p")
    send(rig, producer, 1, 9)
    transaction = rig.begin("t")
    assert send(rig, producer, 5, 3, 11, transaction=transaction) == [False] * 3
    if killed:
        rig = killed_at(rig, tmp_path / "open")
        producer = rig.producer("t", producer_name="p")
    rig.end(transaction, "t", commits=False)
    if killed:
        rig = killed_at(rig, tmp_path / "ended")
        producer = rig.producer("t", producer_name="p")
    assert send(rig, producer, 9, 3, 5, 11, 5) == [True, False, False, False, True]
    rig.close()


def test_an_aborted_transaction_before_a_committed_one_goes_back(rig):
    producer = rig.producer("t", producer_name="p")
    first, second = rig.begin("t"), rig.begin("t")
    send(rig, producer, 1, 2, transaction=first)
    send(rig, producer, 3, transaction=second)
    rig.end(first, "t", commits=False)
    rig.end(second, "t")
    assert send(rig, producer, 1, 2, 3, 4) == [False, False, True, False]


@pytest.mark.parametrize("end", [1, 2, 3], ids=["first", "unfinished", "whole"])
@pytest.mark.parametrize("killed", [False, True])
def test_chunks_of_an_aborted_transaction_may_be_sent_again(rig, tmp_path, end, killed):
    producer = rig.producer("t", producer_name="p")
    transaction = rig.begin("t")
    send(rig, producer, 1)
    assert not any(send(rig, producer, *chunks(2, 3, end=end), transaction=transaction))
    assert all(send(rig, producer, *chunks(2, 3, end=end)))
    rig.end(transaction, "t", commits=False)
    if killed:
        rig = killed_at(rig, tmp_path / "next")
        producer = rig.producer("t", producer_name="p")
    assert send(rig, producer, *chunks(2, 3), 3) == [False] * 4
    assert texts(rig) == [b"1", b"2/0", b"2/1", b"2/2", b"3"]
    rig.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_partition_that_stops_deduplicating_has_nothing_to_give_back(rig, tmp_path, killed):
    producer = rig.producer("t", producer_name="p")
    transaction, partition = rig.begin("t"), rig.partition("t")
    send(rig, producer, 5, transaction=transaction)
    partition.deduplicates = False
    send(rig, producer, 6)
    partition.deduplicates = True
    send(rig, producer, 4)
    if killed:
        rig = killed_at(rig, tmp_path / "next")
        producer = rig.producer("t", producer_name="p")
    rig.end(transaction, "t", commits=False)
    assert send(rig, producer, 4, 5) == [True, False]
    rig.close()


@pytest.mark.parametrize("count", [1, 30], ids=["few", "many"])
def test_plain_messages_of_the_same_pass_stay_used(rig, count):
    producer = rig.producer("t", producer_name="p")
    transaction = rig.begin("t")
    _, rows, data = section(*((producer, Message(number, b"%d" % number)) for number in range(1, 2 * count + 1)))
    rows["flags"][count:] |= IN_TRANSACTION
    rows["message_index"][count:] = transaction
    rig.run((envelope.SENDS_IN_TRANSACTIONS, rows, data))
    rig.end(transaction, "t", commits=False)
    assert send(rig, producer, *range(1, 2 * count + 1)) == [True] * count + [False] * count


def test_journals_of_older_programs_have_one_run_of_ids():
    """Older programs wrote the id before a transaction, and then its last one, anew at each pass."""
    found, ops = OpenTransactions(), []
    for place, sequence_id in ((format.BEFORE, 4), (format.LAST, 6), (format.BEFORE, 4), (format.LAST, 9)):
        op = np.zeros(1, format.TRANSACTION_SEQUENCE_OP)
        op["kind_and_place"] = format.TRANSACTION_SEQUENCE | place << format.NUMBER
        op["producer_a"], op["sequence_id"], op["transaction"] = 7, sequence_id, 1
        ops.append(op)
    found.apply(np.concatenate(ops))
    assert found.of(1).sequences == {7: {5: 9}}
    found.apply(np.frombuffer(journal_ops.transaction_sequences(1, 1, 7, 11, 12), format.TRANSACTION_SEQUENCE_OP))
    assert found.of(1).sequences == {7: {5: 9, 11: 12}}
