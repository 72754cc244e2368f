"""ACKs of many messages read as arrays say what the protobuf library says, or are left to it."""
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geminga.proto import acks, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import CONNECTED
from geminga.proto.connection import Connection

from .client_frames import command

T = api.BaseCommand.Type
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
IDS = st.lists(st.builds(dict, ledgerId=NUMBERS, entryId=NUMBERS), min_size=1, max_size=40)
MORE = st.sampled_from([{}, {"partition": 3}, {"partition": -1, "batch_index": -1}, {"batch_index": 5}])


def ack(ids, *, more=None, **fields):
    return api.BaseCommand(type=T.ACK, ack=api.CommandAck(
        consumer_id=7, message_id=[api.MessageIdData(**one, **(more or {})) for one in ids],
        **fields)).SerializeToString()


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=300)
@given(ids=IDS, more=MORE, request_id=st.none() | NUMBERS, kind=st.sampled_from([0, 0, 0, 1]))
@example(ids=[{"ledgerId": 1, "entryId": n} for n in range(300)], more={}, request_id=None, kind=0)
@example(ids=[{"ledgerId": 1, "entryId": 200}, {"ledgerId": 200, "entryId": 1}], more={}, request_id=5, kind=0)
def test_what_is_read_is_what_was_said(ids, more, request_id, kind):
    fields = {"ack_type": kind} | ({} if request_id is None else {"request_id": request_id})
    found = acks.read(ack(ids, more=more, **fields))
    if found is None:
        return
    assert kind == api.CommandAck.Individual
    assert (found.consumer_id, found.request_id) == (7, request_id)
    assert list(zip(found.ledger_ids.tolist(), found.entry_ids.tolist(), strict=True)) == [
        (one["ledgerId"], one["entryId"]) for one in ids
    ]


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=500)
@given(consumer_id=NUMBERS, ledger_id=NUMBERS, entry_id=NUMBERS, kind=st.sampled_from([0, 1]),
       more=st.sampled_from([{}, {}, {"partition": 3}, {"partition": -1}, {"batch_index": 5}, {"ack_set": [1]}]),
       fields=st.sampled_from([{}, {}, {}, {"request_id": 5}, {"txnid_most_bits": 1, "txnid_least_bits": 7},
                               {"validation_error": api.CommandAck.ChecksumMismatch}]))
def test_an_ack_of_one_entry_is_read_as_the_library_reads_it(consumer_id, ledger_id, entry_id, kind, more, fields):
    said = api.BaseCommand(type=T.ACK, ack=api.CommandAck(consumer_id=consumer_id, ack_type=kind, message_id=[
        api.MessageIdData(ledgerId=ledger_id, entryId=entry_id, **more)], **fields)).SerializeToString()
    found = acks.read_one(said)
    is_plain = not fields and not {"batch_index", "ack_set"} & more.keys()
    assert found == (acks.EntryAck(consumer_id, kind == 1, ledger_id, entry_id) if is_plain else None)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=500)
@given(at=st.integers(0, 40), byte=st.integers(0, 255), cut=st.integers(0, 3), ledger_id=NUMBERS)
def test_a_damaged_ack_of_one_entry_is_never_taken_for_another(at, byte, cut, ledger_id):
    said = bytearray(ack([{"ledgerId": ledger_id, "entryId": 300}], ack_type=1))
    said[at % len(said)] = byte
    said = bytes(said[:len(said) - cut])
    found = acks.read_one(said)
    if found is not None:
        one = api.BaseCommand.FromString(said)
        [message_id] = one.ack.message_id
        assert (one.type, one.ack.consumer_id, one.ack.ack_type) == (T.ACK, found.consumer_id, found.is_cumulative)
        assert (message_id.ledgerId, message_id.entryId) == (found.ledger_id, found.entry_id)
        assert one.ack == api.CommandAck(consumer_id=found.consumer_id, ack_type=one.ack.ack_type, message_id=[
            api.MessageIdData(ledgerId=found.ledger_id, entryId=found.entry_id, partition=message_id.partition)
            if message_id.HasField("partition") else
            api.MessageIdData(ledgerId=found.ledger_id, entryId=found.entry_id)])


def test_a_thousand_ids_in_a_row_are_read_as_arrays():
    found = acks.read(ack([{"ledgerId": 300, "entryId": 16_000 + n} for n in range(1000)],
                          ack_type=api.CommandAck.Individual))
    assert found is not None and np.array_equal(found.entry_ids, np.arange(16_000, 17_000))


@pytest.mark.parametrize("of", [{"txnid_most_bits": 1, "txnid_least_bits": 7}, {"txnid_least_bits": 7},
                                {"txnid_most_bits": 0, "txnid_least_bits": 0}], ids=str)
def test_an_ack_with_a_transactions_id_is_left_to_the_library(of):
    ids = [{"ledgerId": 300, "entryId": 16_000 + n} for n in range(1000)]
    for more in ({}, {"request_id": 5}):
        assert acks.read(ack(ids, ack_type=api.CommandAck.Individual, **of, **more)) is None


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=300)
@given(ids=IDS, at=st.integers(0, 400), byte=st.integers(0, 255), cut=st.integers(0, 3))
def test_damage_is_never_taken_for_something_else(ids, at, byte, cut):
    """For a damaged ACK, arrays and the protobuf library read the same."""
    raw = bytearray(ack(ids, ack_type=api.CommandAck.Individual))
    raw[at % len(raw)] = byte
    damaged = bytes(raw[:len(raw) - cut])
    found = acks.read(damaged)
    if found is not None:
        said = api.BaseCommand.FromString(damaged)
        assert (
            said.type == T.ACK
            and said.ack.consumer_id == found.consumer_id
            and said.ack.ack_type == api.CommandAck.Individual
        )
        assert [(one.ledgerId, one.entryId) for one in said.ack.message_id] == list(
            zip(found.ledger_ids.tolist(), found.entry_ids.tolist(), strict=True))
        assert not any(one.ack_set for one in said.ack.message_id)


def test_what_the_arrays_do_not_read_the_library_does():
    """Arrays leave ACKs of batch indexes, cumulative ACKs and ACKs with properties to the library."""
    ids = [{"ledgerId": 1, "entryId": n} for n in range(50)]
    connection = Connection(1 << 20)
    connection.state = CONNECTED
    data = b"".join(command(T.ACK, consumer_id=7, message_id=[api.MessageIdData(**one) for one in ids], **fields)
                    for fields in (
        {"ack_type": api.CommandAck.Cumulative}, {"ack_type": api.CommandAck.Individual, "validation_error": 1},
        {"ack_type": api.CommandAck.Individual}))
    connection.receive(np.frombuffer(data, np.uint8), memoryview(data), 0, len(data))
    assert [type(event) for event in connection.events] == [api.BaseCommand, api.BaseCommand, acks.EntryAcks]
    parts = ack(ids, more={"ack_set": [3]}, ack_type=api.CommandAck.Individual)
    assert acks.read(parts) is None


def test_what_stands_behind_an_ack_is_no_part_of_it():
    """A number behind an ACK is not taken for its request id."""
    whole = ack([{"ledgerId": 300, "entryId": n} for n in range(200, 240)], ack_type=api.CommandAck.Individual)
    assert acks.read(whole).request_id is None
    assert acks.read(whole + b"\x40\x05") is None


def test_ids_without_an_entry_or_a_ledger_are_left_to_the_library():
    for one in (b"\x1a\x02\x08\x05", b"\x1a\x02\x10\x05", b"\x1a\x00"):
        said = b"\x08\x07\x10\x00" + one * 40
        assert acks.read(b"\x08\x0a\x52" + varints.encode(len(said)) + said) is None
