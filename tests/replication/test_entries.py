"""Entries on their way to another cluster: what is added and taken out, and arrays give what single ones become."""
import itertools
import random

import numpy as np
import pytest
from crc32c import crc32c

from geminga.proto import frames as wire
from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.replication.entries import CannotSend, Rewriter, UnknownSchema, runs
from geminga.workers.replication.frames import Unreadable, whole_frames

T = api.BaseCommand.Type
POSITION = names.POSITION_PROPERTY
ROOM = 64      # bytes behind what was received, as a connection's buffer has


def entry_of(payload=b"x", **fields):
    known = {"producer_name": "p", "sequence_id": 7, "publish_time": 1_700_000_000_000}
    metadata = api.MessageMetadata(**known | fields).SerializeToString()
    checked = wire.SIZE.pack(len(metadata)) + metadata + payload
    return wire.MAGIC_BYTES + wire.SIZE.pack(crc32c(checked)) + checked


def message(entry, ledger, number, consumer=3):
    command = api.BaseCommand(type=T.MESSAGE)
    command.message.consumer_id = consumer
    command.message.message_id.ledgerId, command.message.message_id.entryId = ledger, number
    body = command.SerializeToString()
    return wire.SIZES.pack(4 + len(body) + len(entry), len(body)) + body + entry


def received(frames):
    """Return what a connection has of these frames: (bytes, where they begin, where they end)."""
    data = np.frombuffer(bytearray(b"".join(frames) + bytes(ROOM)), np.uint8)
    starts, ends, rest = whole_frames(data, 0, len(data) - ROOM, 1 << 30)
    assert rest == len(data) - ROOM
    return data, starts, ends


def rewriter(**schemas):
    made = Rewriter("here", "far", 5, 5 << 20)
    made.schemas = {bytes.fromhex(ours): bytes.fromhex(theirs) for ours, theirs in schemas.items()}
    return made


def sent(pieces):
    """Return [(SEND, metadata, payload)] of frames, each with the right checksum."""
    data, out, at = b"".join(pieces), [], 0
    while at < len(data):
        total, size = wire.SIZES.unpack_from(data, at)
        command = api.BaseCommand.FromString(data[at + 8:at + 8 + size])
        entry = data[at + 8 + size:at + 4 + total]
        assert wire.SIZE.unpack_from(entry, 2)[0] == crc32c(entry[6:]), "the checksum is wrong"
        end = 10 + wire.SIZE.unpack_from(entry, 6)[0]
        out.append((command.send, api.MessageMetadata.FromString(entry[10:end]), entry[end:]))
        at += 4 + total
    return out


def rewrite_all(made, frames):
    data, starts, ends = received(frames)
    results = [made.rewrite(data, run) for run in runs(data, starts, ends)]
    return results, [one for result in results for one in sent(result.pieces)]


def some_entry(dice, mixed):
    """Return an entry as a client may send it.  mixed: of any shape, else one of few shapes."""
    fields = {"sequence_id": dice.choice([0, 5, 300, 1 << 40]), "producer_name": dice.choice(["p", "producer-2"])}
    if dice.random() < 0.5:
        fields["partition_key"] = f"key-{dice.randrange(10 ** dice.choice([1, 1, 5]))}"
    if dice.random() < 0.3:
        fields["properties"] = [api.KeyValue(key="a", value="b" * dice.randrange(4))]
    if dice.random() < 0.1:
        fields["encryption_keys"] = [api.EncryptionKeys(key="k", value=b"v" * dice.randrange(300))]
    if dice.random() < 0.2:
        fields["num_messages_in_batch"] = dice.choice([1, 3, 500])
    if dice.random() < 0.2:
        fields["schema_version"] = dice.choice([0, 1]).to_bytes(8)
    if mixed:
        more = {"replicated_from": "third", "replicate_to": dice.choice([["far"], ["third"], ["__local__"]]),
                "txnid_most_bits": 1, "marker_type": dice.choice([20, 10]), "num_chunks_from_msg": 3,
                "event_time": 1 << 62,
                "properties": [api.KeyValue(key=POSITION, value="9:9"), api.KeyValue(key="k", value="v")],
                "schema_version": b"odd", "deliver_at_time": 1_800_000_000_000}
        for name in dice.sample(sorted(more), dice.choice([0, 0, 0, 1, 2])):
            fields[name] = more[name]
        if "txnid_most_bits" in fields:
            fields["txnid_least_bits"] = 9
    return entry_of(dice.randbytes(dice.choice([0, 1, 10, 10, 10, 3_000])), **fields)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_many_entries_become_what_each_of_them_becomes_alone(seed):
    dice = random.Random(seed)
    first = dice.choice([0, 8, 95, 9_990, 123_456])
    kinds = [some_entry(dice, seed % 2) for _ in range(dice.choice([1, 2, 8]))]
    frames = [message(dice.choice(kinds), 17, first + number) for number in range(dice.choice([13, 60, 400]))]
    known = {"0000000000000000": "0000000000000004", "0000000000000001": "0000000000000001", b"odd".hex(): "05"}
    results, together = rewrite_all(rewriter(**known), frames)
    single = []
    for frame in frames:
        _, alone = rewrite_all(rewriter(**known), [frame])
        single += alone
    assert together == single
    assert sum(result.taken for result in results) == len(frames)
    assert [result.obstacle for result in results] == [None] * len(results)
    assert sum(int(result.is_sent.sum()) for result in results) == len(together)


@pytest.mark.parametrize("count", [1, 50])
def test_markers_of_replicated_subscriptions_go_as_markers_by_their_position(count):
    frames = [message(entry_of(b"m", sequence_id=0, marker_type=kind, replicate_to=["far"] if kind == 11 else []), 9,
                      number) for number, kind in zip(range(count), itertools.cycle((10, 11, 13)), strict=False)]
    [result], out = rewrite_all(rewriter(), frames)
    assert [(send.marker, send.sequence_id, metadata.sequence_id, metadata.replicated_from)
            for send, metadata, _ in out] == [(True, 9 << 23 | number, 0, "here") for number in range(count)]
    assert result.messages == result.messages_sent == 0      # the owner takes no permits for them


def test_original_fields_stay_and_the_source_is_added():
    original = entry_of(b"payload", sequence_id=41, partition_key="k", event_time=5, compression=api.LZ4,
                        properties=[api.KeyValue(key="a", value="b")], num_messages_in_batch=3, replicate_to=["far"])
    _, [(send, metadata, payload)] = rewrite_all(rewriter(), [message(original, 6, 1_234)])
    assert (send.producer_id, send.sequence_id, send.num_messages, payload) == (5, 41, 3, b"payload")
    assert metadata.replicated_from == "here"
    properties = {one.key: one.value for one in metadata.properties}
    assert properties == {"a": "b", POSITION: "6:1234"}
    metadata.ClearField("replicated_from")
    kept = [one for one in metadata.properties if one.key != POSITION]
    del metadata.properties[:]
    metadata.properties.extend(kept)
    size = wire.SIZE.unpack_from(original, 6)[0]
    assert metadata == api.MessageMetadata.FromString(original[10:10 + size])


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("field", [
    *({"replicated_from": name} for name in ("third", "far", "here")), {"replicate_to": ["third"]},
    {"replicate_to": ["__local__"]}, {"marker_type": 12}, {"marker_type": 21},
    {"marker_type": 11, "replicate_to": ["third"]}, {"marker_type": 13, "replicated_from": "third"}])
def test_what_is_not_for_the_remote_is_left_out(field, count):
    """A message that has come from any cluster goes no further, so three clusters in a ring send nothing round; also
    one from a site that has the name of this one.
    """
    entry = entry_of(num_messages_in_batch=2, **field)
    results, out = rewrite_all(rewriter(), [message(entry, 1, number) for number in range(count)])
    assert not out
    messages = 0 if "marker_type" in field else 2 * count
    assert [(result.taken, result.messages, result.is_sent.any()) for result in results] == [(count, messages, False)]


@pytest.mark.parametrize("count", [1, 50])
def test_a_transaction_is_not_known_there(count):
    entry = entry_of(txnid_most_bits=1, txnid_least_bits=2)
    _, out = rewrite_all(rewriter(), [message(entry, 1, number) for number in range(count)])
    assert len(out) == count
    assert not any(metadata.HasField("txnid_most_bits") or metadata.HasField("txnid_least_bits")
                   or send.HasField("txnid_most_bits") for send, metadata, _ in out)


@pytest.mark.parametrize("count", [1, 50])
def test_a_chunk_says_that_it_is_one(count):
    entry = entry_of(num_chunks_from_msg=3, chunk_id=1, uuid="u", total_chunk_msg_size=100)
    _, out = rewrite_all(rewriter(), [message(entry, 1, number) for number in range(count)])
    assert [send.is_chunk for send, _, _ in out] == [True] * count


@pytest.mark.parametrize("before", [0, 3, 40])
def test_entries_stop_before_a_schema_that_is_not_known_there(before):
    frames = [message(entry_of(), 1, number) for number in range(before)]
    frames += [message(entry_of(schema_version=bytes(8)), 1, before + number) for number in range(30)]
    [result], out = rewrite_all(rewriter(), frames)
    assert isinstance(result.obstacle, UnknownSchema)
    assert result.obstacle.version == bytes(8)
    assert (result.taken, len(out)) == (before, before)


@pytest.mark.parametrize("before", [0, 3, 40])
def test_entries_stop_before_one_that_is_too_large_there(before):
    made = Rewriter("here", "far", 5, 100)
    frames = [message(entry_of(), 1, number) for number in range(before)]
    frames += [message(entry_of(b"." * 20_000), 1, before), *(message(entry_of(), 1, 99) for _ in range(20))]
    [result], out = rewrite_all(made, frames)
    assert isinstance(result.obstacle, CannotSend)
    assert f"1:{before}" in str(result.obstacle)
    assert (result.taken, len(out)) == (before, before)


@pytest.mark.parametrize("count", [1, 50])
def test_a_damaged_entry_stays_damaged(count):
    """The remote refuses it: a right checksum over wrong bytes would hide the damage for ever."""
    damaged = bytearray(entry_of(b"payload"))
    damaged[-1] ^= 1
    data, starts, ends = received([message(bytes(damaged), 1, number) for number in range(count)])
    [result] = [rewriter().rewrite(data, run) for run in runs(data, starts, ends)]
    with pytest.raises(AssertionError, match="checksum"):
        sent(result.pieces)


def test_metadata_that_cannot_be_parsed_is_not_sent():
    broken = wire.MAGIC_BYTES + bytes(4) + wire.SIZE.pack(3) + b"\xff\xff\xff" + b"payload"
    data, starts, ends = received([message(broken, 1, 0)])
    [result] = [rewriter().rewrite(data, run) for run in runs(data, starts, ends)]
    assert isinstance(result.obstacle, CannotSend)


def test_runs_are_of_one_consumer_and_one_ledger():
    frames = [message(entry_of(), ledger, number, consumer) for consumer, ledger, number in
              [*((1, 4, n) for n in range(20)), *((1, 5, n) for n in range(20)), *((2, 5, n) for n in range(300)),
               (7, 5, 1), (8, 5, 2)]]
    data, starts, ends = received(frames)
    found = [(run.consumer_id, run.ledger_id, entry) for run in runs(data, starts, ends)
             for entry in run.entries.tolist()]
    assert found == [*((1, 4, n) for n in range(20)), *((1, 5, n) for n in range(20)), *((2, 5, n) for n in range(300)),
                     (7, 5, 1), (8, 5, 2)]


def test_frames_are_found_however_they_are_cut():
    dice = random.Random(3)
    stream = b"".join(message(entry_of(dice.randbytes(dice.choice([5, 5, 5, 80]))), 1, n) for n in range(300))
    data = np.frombuffer(stream + bytes(ROOM), np.uint8)
    whole = whole_frames(data, 0, len(stream), 1 << 20)
    assert len(whole[0]) == 300
    for end in (0, 3, 4, 100, len(stream) - 1):
        starts, ends, rest = whole_frames(data, 0, end, 1 << 20)
        assert (whole[0][:len(starts)] == starts).all() and (whole[1][:len(ends)] == ends).all()
        assert rest == (ends[-1] if len(ends) else 0) <= end


@pytest.mark.parametrize("size", [0, 3, 900])
def test_a_frame_without_a_possible_size_ends_the_connection_behind_others(size):
    """A whole frame that is too small or too large among frames of several sizes is no frame."""
    frames = [message(entry_of(bytes(number)), 1, number) for number in range(20)]
    data = np.frombuffer(b"".join((*frames, wire.SIZE.pack(size), bytes(size), *frames, bytes(ROOM))), np.uint8)
    with pytest.raises(Unreadable):
        whole_frames(data, 0, len(data) - ROOM, 500)


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff", b"HTTP", b"\0\0\0\1"])
def test_a_frame_without_a_possible_size_is_no_frame(head):
    data = np.frombuffer(head + bytes(ROOM), np.uint8)
    with pytest.raises(Unreadable):
        whole_frames(data, 0, 4, 8 << 20)
