"""Messages of transactions for readers of files and for administration: both show what a consumer gets."""
import contextlib
import itertools

import numpy as np
import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.sends import IN_TRANSACTION
from geminga.storage import format
from geminga.storage.jobs import confirmed, reading
from geminga.storage.offline import search
from geminga.storage.offline.search import Conditions

from .files import overwrite
from .rig import payload_of
from .test_positions import data_of, refused
from .test_transactions_compaction import TOPIC
from .transactional import TransactionalRig

WAYS = pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])


@pytest.fixture
def rig(tmp_path):
    made = TransactionalRig(tmp_path / "data", roll_over_entries=3)
    yield made
    made.close()


def read(rig, report=pytest.fail):
    """Return the payloads of all messages that Spark reads, in order."""
    partition_id, found = rig.partition("t").partition_id, []
    for stretch in confirmed.stretches(rig.data_dir, partition_id):
        for batch in reading.batches(rig.data_dir, stretch, ("message_index", "payload"), report):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return [payload for _, payload in sorted(found)]


def searched(rig):
    pieces = search.pieces(rig.data_dir, [(rig.partition("t").partition_id, names.parse(TOPIC))])
    hits = [hit for piece in pieces for hit in search.entries(rig.data_dir, piece, Conditions(), pytest.fail)]
    assert sum(search.count(rig.data_dir, piece, Conditions(), pytest.fail) for piece in pieces) == len(hits)
    return [payload_of(hit.entries[-1][1]) for hit in hits]


def examined(rig, *, from_latest=False):
    """Return the payloads that `examine` shows from one end on; the last one comes again and again."""
    found = []
    for number in itertools.count(1):
        answer = rig.asked("examine", "t", number=number, from_latest=from_latest)
        payload = data_of(answer)[1] if answer is not None else None
        if payload is None or payload in found:
            return found[::-1] if from_latest else found
        found.append(payload)


def peeked(rig):
    found = []
    for number in itertools.count(1):
        [answer] = rig.run(rig.question("peek", "t", subscription="sub", number=number)).answered
        if answer.get("refused") == api.MetadataError:
            return found
        found.append(data_of(rig.asked("peek", "t", subscription="sub", number=number))[1])


def shown(rig):
    """Return the payloads that all ways show, which are the same."""
    rig.run(after_ms=1_000)
    rig.settle()
    ways = [read(rig), searched(rig), examined(rig), examined(rig, from_latest=True), peeked(rig)]
    assert all(way == ways[0] for way in ways), ways
    return ways[0]


@WAYS
def test_everybody_is_shown_what_a_consumer_gets(rig, commits):
    """A partition is settled within a second after a transaction has ended in it."""
    producer, transaction = rig.producer("t"), rig.begin("t")
    rig.consumer("t")
    rig.publish(producer, b"1", b"2")
    positions = rig.publish_in(transaction, producer, b"in 3", b"in 4")
    [behind] = rig.publish(producer, b"5")
    assert shown(rig) == [b"1", b"2"]
    for position in (*positions, behind):
        assert refused(rig, "entry", "t", position=position) == api.MetadataError
    rig.end(transaction, "t", commits=commits)
    assert shown(rig) == [b"1", b"2"] + [b"in 3", b"in 4"] * commits + [b"5"]
    for position in positions:
        if commits:
            assert data_of(rig.asked("entry", "t", position=position))[0] == position
        else:
            assert refused(rig, "entry", "t", position=position) == api.MetadataError
    assert data_of(rig.asked("entry", "t", position=behind)) == (behind, b"5")


def test_files_without_the_newest_state_show_only_what_they_know_to_be_committed(rig):
    producer, transaction = rig.producer("t"), rig.begin("t")
    rig.publish(producer, b"1")
    rig.publish_in(transaction, producer, b"in 2")
    rig.end(transaction, "t")
    rig.publish(producer, b"3")
    partition_id = rig.partition("t").partition_id
    assert read(rig) == searched(rig) == [b"1"] and not confirmed.is_settled(rig.data_dir, partition_id)
    rig.asked("settle", "t")
    assert read(rig) == searched(rig) == [b"1", b"in 2", b"3"] and confirmed.is_settled(rig.data_dir, partition_id)


def test_a_clean_stop_leaves_files_that_say_it_all(rig):
    producer, first, second = rig.producer("t"), rig.begin("t"), rig.begin("t")
    rig.publish_in(first, producer, b"in 1")
    rig.publish_in(second, producer, b"in 2")
    rig.publish(producer, b"3")
    rig.end(first, "t", commits=False)
    rig.end(second, "t")
    rig.close()
    assert read(rig) == searched(rig) == [b"in 2", b"3"]


def test_chunks_of_an_aborted_message_are_no_part_of_the_one_that_was_sent_again(rig):
    """A client sends an undone message again under the same id, as its sequence id was given back."""
    producer, transaction = rig.producer("t"), rig.begin("t")

    def chunk(number, payload):
        about = {"uuid": "p-1", "num_chunks_from_msg": 2, "chunk_id": number, "total_chunk_msg_size": 6}
        return producer, payload, about

    rig.run(rig.sends_in(transaction, chunk(0, b"old")))
    rig.end(transaction, "t", commits=False)
    rig.run(rig.sends(chunk(1, b"new")))
    rig.run(after_ms=1_000)
    rig.settle()
    assert read(rig) == []


def test_partitions_are_settled_one_a_second(rig):
    topics = ["t", "u", "v"]
    producers, transaction = [rig.producer(topic) for topic in topics], rig.begin(*topics)
    for producer in producers:
        rig.publish_in(transaction, producer, b"in it")
    rig.end(transaction, *topics)
    for left in (2, 1, 0):
        rig.run(after_ms=1_000)
        rig.settle()
        assert sum(not confirmed.is_settled(rig.data_dir, partition.partition_id)
                   for partition in rig.partitions) == left


@pytest.mark.slow
@pytest.mark.parametrize("end", ["commit", "abort", "open"])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_rebuilt_index_row_is_still_of_its_transaction(rig, damaged, end):
    """Else the message of an aborted transaction would be the last one of its topic, and files would show it."""
    producer, transaction = rig.producer("t"), rig.begin("t")
    about = dict(zip(("txnid_most_bits", "txnid_least_bits"), names.transaction_bits(transaction), strict=True))
    plain = rig.publish(producer, b"0")
    positions = plain + rig.run(
        rig.sends_in(transaction, (producer, b"in 1", about), (producer, b"in 2", about))).positions
    if end != "open":
        rig.end(transaction, "t", commits=end == "commit")
    partition = rig.partition("t")
    rig.close()
    ledger_id, entry_id = positions[damaged]
    overwrite(format.index_path(partition.folder, ledger_id), format.HEADER_SIZE + entry_id * format.INDEX_ROW.itemsize,
              b"x" * format.INDEX_ROW.itemsize)
    expected, reported = [b"0", b"in 1", b"in 2"] if end == "commit" else [b"0"], []
    assert read(rig, reported.append) == expected and (reported or (end == "open" and damaged))
    with contextlib.closing(TransactionalRig(rig.data_dir, now_ms=rig.now_ms)) as again:
        consumer = again.consumer("t", "new")
        assert [payload for _, payload in again.receive(consumer)] == expected
        last = again.asked("last_message", "t")
        assert (last["ledger"], last["entry"]) == positions[len(expected) - 1]
        flags = np.concatenate([ledger.column("flags")[:ledger.entries] for ledger in again.partition("t").ledgers])
        assert (flags & IN_TRANSACTION != 0).tolist() == [False, True, True]
        assert read(again) == expected
