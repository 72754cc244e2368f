"""What is written by whole columns is what the protobuf library reads one by one."""
import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geminga.proto import deliveries, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.deliveries import (
    BROKER_INDEX,
    BROKER_TIMESTAMP,
    FEW_MAX,
    FEW_RECEIPTS_MAX,
    RECEIPT_ROW,
    Delivery,
)
from geminga.proto.envelope import LISTED_ENTRY
from geminga.storage.format import INDEX_ROW

from .client_frames import entry_of, message_metadata

# On both sides of where a varint takes one more byte, up to its ten.
NUMBERS = st.one_of(st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 2**28, 2**32, 2**63 - 1, 2**63, 2**64 - 1]),
                    st.integers(0, 2**64 - 1))
IDS = st.sampled_from([0, 127, 128, 70_000, 2**35, 2**63, 2**64 - 1])


def frames_of(data: bytes) -> list[tuple[api.BaseCommand, bytes]]:
    """Return [(command, bytes behind it)] of the frames that fill the data."""
    found, at = [], 0
    while at < len(data):
        total, size = struct.unpack_from(">II", data, at)
        command = api.BaseCommand.FromString(data[at + 8:at + 8 + size])
        assert command.IsInitialized()
        found.append((command, data[at + 8 + size:at + 4 + total]))
        at += 4 + total
    assert at == len(data)
    return found


# -- receipts

@pytest.mark.parametrize("count", [2, FEW_RECEIPTS_MAX + 2])
def test_each_connection_has_its_own_receipts(count):
    """Receipts of two connections are kept apart, whichever has the larger number."""
    rows = np.zeros(count, RECEIPT_ROW)
    rows["connection"][0], rows["connection"][1:-1], rows["connection"][-1] = 7, 7, 5
    assert [connection for connection, _ in deliveries.receipts(rows)] == [7, 5]


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=150)
@given(asked=st.lists(st.tuples(st.integers(7, 8), NUMBERS, NUMBERS, st.just(0) | NUMBERS, NUMBERS, NUMBERS),
                      min_size=1, max_size=2 * FEW_RECEIPTS_MAX))
def test_receipts_say_what_was_asked_in_its_order(asked):
    """Receipts carry the right ids in order, and the highest sequence id only for batches."""
    rows = np.zeros(len(asked), RECEIPT_ROW)
    names = "connection", "producer_id", "sequence_id", "highest_sequence_id", "ledger_id", "entry_id"
    for name, column in zip(names, zip(*asked, strict=True), strict=True):
        rows[name] = column
    blocks = deliveries.receipts(rows)
    assert all(before != behind for (before, _), (behind, _) in pairwise(blocks))
    found = [(connection, command.type, command.send_receipt, rest) for connection, block in blocks
             for command, rest in frames_of(block)]
    assert [(kind, rest) for _, kind, _, rest in found] == [(api.BaseCommand.SEND_RECEIPT, b"")] * len(asked)
    assert [(connection, said.producer_id, said.sequence_id, said.highest_sequence_id, said.message_id.ledgerId,
             said.message_id.entryId)
            for connection, _, said, _ in found] == asked


@pytest.mark.parametrize("count, five", [
    (2, "00000012 0000000e 0807 3a0a 0801 1002 1a04 0804 1005"),
    (FEW_RECEIPTS_MAX + 1, "00000013 0000000f 0807 3a0b 0801 1002 1a05 0804 108500")])
def test_a_receipt_is_these_bytes(count, five):
    """A receipt has exactly these bytes; among many receipts a varint is padded to its neighbours' length."""
    rows = np.zeros(count, RECEIPT_ROW)
    rows["producer_id"], rows["sequence_id"], rows["ledger_id"], rows["entry_id"] = (
        1,
        [2, *[3] * (count - 1)],
        4,
        [5, *[300] * (count - 1)],
    )
    others = "00000013 0000000f 0807 3a0b 0801 1003 1a05 0804 10ac02" * (count - 1)
    assert deliveries.receipts(rows) == [(0, bytes.fromhex(five + others))]


# -- messages

def stored(entries: list[bytes], *, gap: int = 0, messages: int = 1) -> tuple[np.ndarray, memoryview]:
    """Return (index rows, ledger) of entries in a ledger with `gap` bytes between them."""
    rows = np.zeros(len(entries), INDEX_ROW)
    rows["size"] = [len(entry) for entry in entries]
    rows["offset"] = gap + np.cumsum(rows["size"], dtype=np.uint64) - rows["size"]
    rows["messages"] = messages
    rows["message_index"] = 1_000 + messages * np.arange(len(entries))
    rows["broker_time"] = 1_700_000_000_000 + np.arange(len(entries))
    return rows, memoryview(b"\xee" * gap + b"".join(entries) + b"\xee" * 10)


def written(delivery: Delivery, first: int, rows: np.ndarray, ledger: memoryview) -> bytes:
    """Return the frames of a run; frames that are made one by one must have the same numbers and entries."""
    frames = b"".join(bytes(piece) for piece in delivery.frames(first, rows, ledger))
    if delivery.is_plain:
        few = delivery.few(first, zip(rows["offset"].tolist(), rows["size"].tolist(), strict=True), ledger)
        assert frames_of(few) == frames_of(frames)
    return frames


def unwrapped(rest: bytes) -> tuple[api.BrokerEntryMetadata | None, bytes]:
    """Return (BrokerEntryMetadata, the entry)."""
    if not rest.startswith(b"\x0e\x02"):
        return None, rest
    size = struct.unpack_from(">I", rest, 2)[0]
    return api.BrokerEntryMetadata.FromString(rest[6:6 + size]), rest[6 + size:]


def entries_of(sizes: list[int]) -> list[bytes]:
    return [entry_of(message_metadata(sequence_id=number), b"%d" % number * size) for number, size in enumerate(sizes)]


SIZES = st.one_of(
    st.lists(st.integers(0, 300), min_size=1, max_size=3 * FEW_MAX),                                   # mixed
    # all the same, or nearly
    st.builds(lambda size, count: [size] * count, st.integers(0, 300), st.integers(1, 3 * FEW_MAX)),
)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=200)
@given(sizes=SIZES, consumer=IDS, ledger_id=IDS, first=st.sampled_from([0, 1, 120, 127, 128, 16_380, 2**40]),
       partition=st.sampled_from([-1, 0, 1, 127, 128, 999_999_999]), gap=st.integers(0, 100), fields=st.integers(0, 3),
       messages=st.sampled_from([1, 100]))
@example(sizes=[10] * FEW_MAX, consumer=1, ledger_id=1, first=124, partition=-1, gap=0, fields=0, messages=1)
def test_messages_carry_their_ids_and_their_entries_bytes(sizes, consumer, ledger_id, first, partition, gap, fields,
                                                          messages):
    """MESSAGE frames have the entries' bytes, their ids, the partition if there is one, and requested broker fields."""
    entries = entries_of(sizes)
    rows, ledger = stored(entries, gap=gap, messages=messages)
    found = frames_of(written(Delivery(consumer, ledger_id, partition, fields), first, rows, ledger))
    assert [unwrapped(rest)[1] for _, rest in found] == entries
    assert {(command.type, command.message.consumer_id) for command, _ in found} == {
        (api.BaseCommand.MESSAGE, consumer)
    }
    ids = [command.message.message_id for command, _ in found]
    assert [(said.ledgerId, said.entryId) for said in ids] == [(ledger_id, first + number)
                                                               for number in range(len(entries))]
    assert {(said.HasField("partition"), said.partition) for said in ids} == {(partition >= 0, partition)}
    assert not any(said.HasField("batch_index") for said in ids)
    added = [unwrapped(rest)[0] for _, rest in found]
    if not fields:
        assert added == [None] * len(entries)
        return
    assert [said.HasField("broker_timestamp") for said in added] == [bool(fields & BROKER_TIMESTAMP)] * len(entries)
    assert [said.HasField("index") for said in added] == [bool(fields & BROKER_INDEX)] * len(entries)
    if fields & BROKER_TIMESTAMP:
        assert [said.broker_timestamp for said in added] == rows["broker_time"].tolist()
    if fields & BROKER_INDEX:
        assert [said.index for said in added] == [1_000 + messages * (number + 1) - 1 for number in range(len(entries))]


PICK = st.tuples(st.integers(1, 300), st.sampled_from([0, 0, 1, 127, 128, 65_535]), st.lists(NUMBERS, max_size=3),
                 st.integers(0, 200))


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=150)
@given(picks=st.lists(PICK, min_size=1, max_size=2 * FEW_MAX), consumer=IDS, ledger_id=IDS,
       first=st.sampled_from([0, 126, 16_380, 2**40]),
       partition=st.sampled_from([-1, 0, 127, 999_999_999]), epoch=st.sampled_from([-1, 0, 1, 128, 2**63 - 1]),
       fields=st.integers(0, 3), more=st.integers(0, 2))
def test_picked_messages_say_how_often_they_came_back_and_what_is_left(picks, consumer, ledger_id, first, partition,
                                                                       epoch, fields, more):
    """MESSAGE frames of listed entries carry ids, redelivery counts, ack sets and the epoch."""
    gaps, counts, words, sizes = zip(*picks, strict=True)
    entries = entries_of(sizes)
    rows, ledger = stored(entries, gap=7)
    picked = np.zeros(len(picks), LISTED_ENTRY)
    picked["entry_id"], picked["redeliveries"], picked["words"] = (
        first + np.cumsum(gaps),
        counts,
        [len(found) for found in words],
    )
    said = np.array([*sum(words, []), *[77] * more], np.uint64)      # those of entries that are to come stand behind
    pieces = Delivery(consumer, ledger_id, partition, fields, epoch).picked_frames(picked, said, rows, ledger)
    found = frames_of(b"".join(map(bytes, pieces)))
    assert [unwrapped(rest)[1] for _, rest in found] == entries
    messages = [command.message for command, _ in found]
    assert {message.consumer_id for message in messages} == {consumer}
    assert [(message.message_id.ledgerId, message.message_id.entryId) for message in messages] == [
        (ledger_id, entry_id) for entry_id in picked["entry_id"].tolist()]
    assert {message.message_id.partition for message in messages} == {partition}
    assert [message.redelivery_count for message in messages] == list(counts)
    assert [[word & (1 << 64) - 1 for word in message.ack_set] for message in messages] == [
        list(found) for found in words
    ]
    assert {(message.HasField("consumer_epoch"), message.consumer_epoch) for message in messages} == {
        (epoch >= 0, epoch if epoch >= 0 else api.CommandMessage().consumer_epoch)}
    assert all((unwrapped(rest)[0] is None) == (not fields) for _, rest in found)


@pytest.mark.parametrize("sizes", [[10], [10] * 5, [10] * 3 * FEW_MAX, [10, 20] * FEW_MAX])
@pytest.mark.parametrize("epoch", [0, 5, 300])
def test_messages_in_a_row_carry_the_epoch(sizes, epoch):
    """Frames of a run carry the consumer epoch, made one by one or as arrays."""
    rows, ledger = stored(entries_of(sizes))
    found = frames_of(written(Delivery(1, 1, 3, epoch=epoch), 0, rows, ledger))
    assert [(command.message.consumer_epoch, command.message.message_id.partition) for command, _ in found] == [
        (epoch, 3)
    ] * len(sizes)
    assert [rest for _, rest in found] == entries_of(sizes)


@pytest.mark.parametrize("messages, expected", [(1, 1_000), (100, 1_099)])
def test_the_index_of_a_batch_is_that_of_its_last_message(messages, expected):
    rows, ledger = stored(entries_of([5]), messages=messages)
    ((_, rest),) = frames_of(written(Delivery(1, 1, -1, BROKER_INDEX), 0, rows, ledger))
    assert unwrapped(rest)[0].index == expected


def test_what_is_written_is_free_of_the_ledger_and_of_what_comes_next():
    """Frames stay valid after the ledger is unmapped and other frames were made."""
    for sizes in ([10] * FEW_MAX, [10, 20]):
        entries = entries_of(sizes)
        rows, ledger = stored(entries)
        mapped, delivery = bytearray(ledger), Delivery(1, 1, -1)
        pieces = delivery.frames(0, rows, memoryview(mapped))
        mapped[:] = bytes(len(mapped))
        delivery.frames(100, rows, ledger)
        assert [rest for _, rest in frames_of(b"".join(map(bytes, pieces)))] == entries


def test_a_delivery_can_be_read_back_as_a_send():
    """The entry in a MESSAGE has the magic, checksum and metadata of its SEND."""
    entry = entry_of(message_metadata(partition_key="k"), b"payload")
    ((_, rest),) = frames_of(written(Delivery(1, 1, -1), 0, *stored([entry])))
    row = dict(zip(sends.SEND_ROW.names, sends.read_one(api.CommandSend(producer_id=1, sequence_id=1), rest),
                   strict=True))
    assert (row["size"], row["flags"]) == (len(entry), sends.KEPT_CHECKSUM | sends.HAS_KEY)
