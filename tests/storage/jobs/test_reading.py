"""Rows of messages equal those of the protobuf library, with any number of entries read together."""
import re
import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from geminga.proto import batches, checksums, compression
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.sends import IS_BATCH, KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.jobs import confirmed, entry_blocks, one_by_one, reading
from geminga.storage.jobs.entry_blocks import ViewReplaced
from geminga.storage.jobs.message_columns import SCHEMA
from geminga.storage.ledgers import compacted_ledgers, ledger

from ..files import flip, overwrite
from .topics import CODECS, NOW_MS, Message, Topic, batch, metadata_of, sealed, single

ALL = SCHEMA.names
SCAN = "key", "message_index", "payload_size", "null_value", "is_encrypted", "chunks"

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1),
                    st.sampled_from([(1 << bits) - 1 for bits in range(7, 65, 7)]))
TIMES = st.one_of(st.integers(0, 3), st.integers(NOW_MS, NOW_MS + 1000), NUMBERS)
TEXTS = st.one_of(st.text(max_size=15),
                  st.sampled_from(["", "key", "k" * 12, "k" * 13, "k" * 127, "k" * 128, "k" * 300]))
BYTES = st.one_of(st.binary(max_size=15), st.integers(0, 400).map(bytes))
PAIRS = st.lists(st.builds(api.KeyValue, key=TEXTS, value=TEXTS), max_size=3)
# Fields that no client writes: unknown ones of all wire types, with tags of up to three bytes, and padded.
UNKNOWN = st.sampled_from([b"", b"", b"", b"\xd8\x3f\x05", b"\xda\x3f\x02ab", b"\xd9\x3f" + bytes(8),
                           b"\xdd\x3f" + bytes(4),
                           b"\xd0\x86\x03\x01", b"\xb0\x00\x01", b"\x32\x01z"])


def fields(**known):
    return st.fixed_dictionaries({}, optional=known)


OWN = {"properties": PAIRS, "partition_key": TEXTS, "partition_key_b64_encoded": st.booleans(), "ordering_key": BYTES,
       "event_time": TIMES,
       "null_value": st.booleans()}
OUTER = fields(**OWN, producer_name=TEXTS, sequence_id=NUMBERS, publish_time=TIMES, schema_version=BYTES,
               deliver_at_time=st.integers(-5, 1 << 60), highest_sequence_id=NUMBERS,
               replicate_to=st.lists(TEXTS, max_size=2), uuid=TEXTS,
               encryption_keys=st.sampled_from([[], [], [], [api.EncryptionKeys(key="k", value=b"v")]]),
               marker_type=st.sampled_from([1, 20, -1]),
               compacted_batch_indexes=st.lists(st.integers(0, 9), max_size=3))
SINGLE = fields(**OWN, sequence_id=NUMBERS, compacted_out=st.booleans())


def with_metadata(metadata: api.MessageMetadata, more: bytes, payload: bytes) -> bytes:
    head = metadata.SerializeToString() + more
    return sealed_bytes(struct.pack(">I", len(head)) + head + payload)


def sealed_bytes(content: bytes) -> bytes:
    return b"\x0e\x01" + struct.pack(">I", checksums.crc32c(content)) + content


@st.composite
def entries(draw):
    """Draw (entry, whether its index row says that it is a batch)."""
    kind = draw(st.sampled_from(["plain", "plain", "batch", "batch", "batch", "garbage"]))
    codec, outer, more = draw(st.sampled_from(CODECS)), draw(OUTER), draw(UNKNOWN)
    if "marker_type" in outer and draw(st.integers(0, 9)):
        del outer["marker_type"]
    if kind == "garbage":
        start = draw(st.sampled_from([b"", b"\0\0\0\5", b"\0\0\0\0"]))
        return sealed_bytes(start + draw(st.binary(min_size=4, max_size=40))), False
    body, count = draw(BYTES), 0
    if kind == "batch":
        singles = draw(st.lists(st.tuples(SINGLE, UNKNOWN, BYTES), min_size=1, max_size=6))
        count, body = len(singles), b""
        for own, rest, payload in singles:
            head = api.SingleMessageMetadata(**own, payload_size=len(payload)).SerializeToString() + rest
            body += struct.pack(">I", len(head)) + head + payload
        count += draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    stored = compression.compress(codec, body)
    if draw(st.integers(0, 9)) == 0:
        stored = stored[:-1]
    metadata = metadata_of(codec, len(body), **outer, **({"num_messages_in_batch": count} if kind == "batch" else {}))
    return with_metadata(metadata, more, stored), kind == "batch"


def add(topic: Topic, entry: bytes, is_batch: bool) -> None:
    """Append an entry to the ledger, even one that no broker would take."""
    row = np.zeros(1, format.INDEX_ROW)
    row["offset"], row["size"] = topic.ledger.size, len(entry)
    row["messages"], row["message_index"] = 10, topic.next_message
    row["flags"], row["crc32c"] = KEPT_CHECKSUM | (IS_BATCH if is_batch else 0), int.from_bytes(entry[2:6], "big")
    row["publish_time"], row["broker_time"] = NOW_MS + topic.ledger.entries, NOW_MS - 5
    row["deliver_at"] = topic.ledger.entries % 3
    topic.add_rows(row, [entry])


def rows_of(topic: Topic, columns=ALL, damage=None, **how) -> pa.Table:
    found, told = [], []
    for stretch in confirmed.stretches(topic.data_dir, topic.partition_id, **how):
        for some in reading.batches(topic.data_dir, stretch, columns, told.append):
            some.validate()
            assert some.num_rows and some.schema.names == list(columns)
            found.append(some)
    if damage is None:
        assert told == []
    else:
        damage += told
    return pa.Table.from_batches(found, pa.schema([SCHEMA.field(name) for name in columns])).combine_chunks()


def by_library(self, block):
    yield from self._one_by_one(block, list(range(len(block.rows))))


@pytest.mark.slow
@given(st.lists(entries(), min_size=1, max_size=40), st.sampled_from([1, 4]))
@example([(with_metadata(metadata_of(), b"", b"payload"), False)] * 40, 1)
@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
def test_arrays_say_what_the_library_says(tmp_path_factory, made, together_min):
    topic = Topic(tmp_path_factory.mktemp("data"))
    for entry, is_batch in made:
        add(topic, entry, is_batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "TOGETHER_MIN", together_min)
        damage, expected_damage = [], []
        found = rows_of(topic, damage=damage)
        patch.setattr(reading._Reader, "_batches", by_library)
        expected = rows_of(topic, damage=expected_damage)
    order = [("entry_id", "ascending"), ("message_index", "ascending")]
    found, expected = (table.take(pa.compute.sort_indices(table, order)) for table in (found, expected))
    for name in ALL:
        values, others = (table[name] for table in (found, expected))
        if pa.types.is_string(values.type):      # it may be of bytes that are none
            values, others = values.cast("binary"), others.cast("binary")
        assert values.to_pylist() == others.to_pylist(), name
    assert sorted(text.split(": ")[1] for text in damage) == sorted(text.split(": ")[1] for text in expected_damage)


@pytest.fixture
def topic(tmp_path):
    return Topic(tmp_path)


def filled(topic, count=100):
    for number in range(count):
        topic.publish(Message(f"key-{number}", b"value %d" % number))
    return topic


def indexes(table):
    return table["message_index"].to_pylist()


def test_all_common_shapes_are_read_as_arrays(topic, monkeypatch):
    """Common shapes must not take the slow way through the protobuf library."""
    monkeypatch.setattr(reading._Reader, "_one_by_one",
                        lambda _self, _block, some: iter(()) if not some else pytest.fail(f"{some}"))
    for codec in CODECS:
        filled(topic, 40)
        for number in range(10):
            topic.publish_batch([Message("k", b"v"), Message(None, b"x" * 300),
                                 Message("l" * number, b"", is_null=True)], codec,
                                properties=[api.KeyValue(key="a", value="b")], event_time=NOW_MS,
                                schema_version=bytes(8))
            topic.publish(Message("k", b"v" * number), codec, deliver_at_time=NOW_MS, sequence_id=1 << 40,
                          ordering_key=b"o")
    assert indexes(rows_of(topic).sort_by("message_index")) == list(range(topic.next_message))


def test_a_message_counts_its_place_in_the_partition(topic):
    topic.publish(Message("a", b"0"))
    topic.publish_batch([Message("b", b"1"), Message("c", b"2")])
    topic.roll()
    topic.publish(Message("d", b"3"))
    found = rows_of(topic, ("key", "message_index", "batch_index", "entry_id")).sort_by("message_index").to_pylist()
    assert [tuple(row.values()) for row in found] == [("a", 0, None, 0), ("b", 1, 0, 1), ("c", 2, 1, 1),
                                                      ("d", 3, None, 0)]


@pytest.mark.parametrize("columns", [ALL, SCAN, ("payload",), ("topic",)])
def test_only_columns_that_are_asked_for_come(topic, columns):
    filled(topic, 10)
    topic.publish_batch([Message("b", b"1")] * 5, api.LZ4)
    if columns == ("topic",):
        with pytest.raises(KeyError):
            rows_of(topic, columns)
    else:
        assert rows_of(topic, columns).schema.names == list(columns)


@pytest.mark.slow
def test_a_large_topic_comes_in_many_stretches_and_blocks(topic, monkeypatch):
    monkeypatch.setattr(entry_blocks, "BLOCK_SIZE", 1000)
    filled(topic, 200)
    topic.publish(Message("large", bytes(5000)))
    filled(topic, 10)
    stretches = confirmed.stretches(topic.data_dir, topic.partition_id, size_max=3000)
    assert len(stretches) == 5
    assert indexes(rows_of(topic, size_max=3000)) == list(range(211)) == indexes(rows_of(topic, size_max=1))
    assert len(confirmed.stretches(topic.data_dir, topic.partition_id, size_max=1)) == 211


def test_only_entries_between_two_positions_are_read(topic):
    filled(topic, 20)
    topic.roll()
    filled(topic, 20)
    assert indexes(rows_of(topic, behind=(10, 14), up_to=(11, 2))) == list(range(15, 23))
    assert indexes(rows_of(topic, up_to=(10, 0))) == [0]
    assert indexes(rows_of(topic, behind=(11, 19))) == []
    assert confirmed.last_confirmed(topic.data_dir, topic.partition_id) == (11, 19)


def test_entries_that_are_not_wanted_are_not_read(topic):
    filled(topic, 50)
    (stretch,) = confirmed.stretches(topic.data_dir, topic.partition_id)
    found = list(reading.batches(topic.data_dir, stretch, ("message_index",), pytest.fail,
                                 wanted=lambda rows: rows["message_index"] % 7 == 3))
    assert indexes(pa.Table.from_batches(found)) == list(range(3, 50, 7))
    assert list(reading.batches(topic.data_dir, stretch, ("key",), pytest.fail,
                                wanted=lambda rows: rows["size"] == 0)) == []


def test_what_is_written_meanwhile_is_read_as_far_as_it_is_confirmed(topic):
    """The header may count fewer entries than there are rows; reading ends at the first row that is not valid."""
    filled(topic, 10)
    topic.ledger.write_header()
    filled(topic, 10)
    assert indexes(rows_of(topic)) == list(range(20))
    flip(topic.ledger.index_path, format.HEADER_SIZE + 64 * 15)
    assert indexes(rows_of(topic)) == list(range(15))
    assert confirmed.last_confirmed(topic.data_dir, topic.partition_id) == (10, 14)


def test_a_damaged_entry_is_told_of_and_left_out(topic):
    filled(topic, 100)
    row = topic.ledger.index[33]
    flip(topic.ledger.ledger_path, int(row["offset"]) + int(row["size"]) - 1)
    damage = []
    assert indexes(rows_of(topic, damage=damage)) == [number for number in range(100) if number != 33]
    assert damage == [f"{topic.ledger.ledger_path}: entry 10:33 is left out: its checksum is wrong"]


@pytest.mark.parametrize("columns", [ALL, SCAN])
@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_that_cannot_be_decompressed_is_told_of_and_left_out(topic, columns, codec):
    filled(topic, 5)
    body = batch([Message("a", b"x" * 100)] * 3, codec)
    metadata, stored = one_by_one.split(body)
    topic.add(sealed(metadata, bytes(stored)[:-10]))
    topic.publish_batch([Message("b", b"y" * 100)] * 3, codec)
    damage = []
    assert sorted(indexes(rows_of(topic, columns, damage))) == [0, 1, 2, 3, 4, 8, 9, 10]
    assert len(damage) == 1 and "10:5 is left out: its payload cannot be decompressed" in damage[0]


def test_what_announces_more_than_it_has_costs_nothing(topic):
    """An entry that claims 4 GiB decompressed, or 2^31 - 1 messages, takes no memory for that."""
    for count in (1, 5):
        for _ in range(count):
            topic.add(sealed(metadata_of(api.ZSTD, (1 << 32) - 1), compression.compress(api.ZSTD, b"abc")))
            row = np.zeros(1, format.INDEX_ROW)
            entry = sealed(metadata_of(num_messages_in_batch=(1 << 31) - 1), b"\0\0\0\2\x18\1a")
            row["offset"], row["size"] = topic.ledger.size, len(entry)
            row["messages"], row["flags"] = 1, KEPT_CHECKSUM | IS_BATCH
            row["crc32c"] = int.from_bytes(entry[2:6], "big")
            topic.add_rows(row, [entry])
    damage = []
    assert rows_of(topic, damage=damage).num_rows == 0
    assert len(damage) == 12


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS[1:], ids=api.CompressionType.Name)
@pytest.mark.parametrize("count", [0, 3])
def test_a_payload_that_is_too_large_unpacked_is_told_of_and_left_out(topic, codec, count):
    """A small entry is decompressed only up to the bound that also holds for messages over HTTP."""
    filled(topic, 5)
    size = compression.UNPACKED_MAX + 1
    more = {"num_messages_in_batch": count} if count else {}
    topic.add(sealed(metadata_of(codec, size, **more), compression.compress(codec, bytes(size))))
    damage = []
    assert len(indexes(rows_of(topic, damage=damage))) == 5
    assert len(damage) == 1 and f"its payload claims {size} bytes before compression" in damage[0]


@pytest.mark.slow
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_batch_of_very_many_messages_is_read_some_at_a_time(topic, is_cut):
    """If the last message of the batch is cut, none of its messages is returned."""
    count = 3 * reading.MESSAGES_MAX // 2
    body = b"\0\0\0\2\x18\0" * count
    topic.add(sealed(metadata_of(api.ZSTD, len(body) - is_cut, num_messages_in_batch=count),
                     compression.compress(api.ZSTD, body[:len(body) - is_cut])))
    damage = []
    found = [len(rows) for stretch in confirmed.stretches(topic.data_dir, topic.partition_id)
             for rows in reading.batches(topic.data_dir, stretch, ALL, damage.append)]
    assert max(found, default=0) <= reading.MESSAGES_MAX
    assert (sum(found), len(damage)) == (0 if is_cut else count, is_cut)


def test_a_damaged_row_of_the_index_is_made_anew(topic):
    filled(topic, 20)
    topic.roll()
    flip(topic.folder / "10.index", format.HEADER_SIZE + 64 * 7 + 3)
    damage = []
    assert indexes(rows_of(topic, damage=damage)) == list(range(20))
    assert damage == [f"{topic.folder / '10.index'}: the index row of entry 10:7 is damaged; it is rebuilt"]


def test_an_index_that_is_cut_costs_what_it_had(topic):
    filled(topic, 2000)
    topic.roll()
    filled(topic, 1)
    with open(topic.folder / "10.index", "r+b") as file:
        file.truncate(format.HEADER_SIZE + 64 * 1999)
    damage = []
    assert indexes(rows_of(topic, damage=damage)) == list(range(2001))      # the last lies where its ledger ends
    assert len(damage) == 1


def test_a_damaged_header_of_an_index_costs_nothing(topic):
    filled(topic, 20)
    topic.roll()
    flip(topic.folder / "10.index", 45)
    assert indexes(rows_of(topic)) == list(range(20))


def test_a_file_that_ends_too_early_costs_what_is_missing(topic):
    filled(topic, 20)
    size = int(topic.ledger.index[15]["offset"])
    topic.roll()
    with open(topic.folder / "10.ledger", "r+b") as file:
        file.truncate(size + 3)
    damage = []
    assert indexes(rows_of(topic, damage=damage)) == list(range(15))
    assert len(damage) == 5


def test_entries_whose_space_was_given_back_are_not_there(topic):
    filled(topic, 20)
    for number in (0, 7, 19):
        overwrite(topic.ledger.ledger_path, int(topic.ledger.index[number]["offset"]), bytes(20))
    assert indexes(rows_of(topic)) == [number for number in range(20) if number not in (0, 7, 19)]


def test_where_the_space_of_all_entries_was_given_back_there_is_nothing(topic):
    filled(topic, 20)
    overwrite(topic.ledger.ledger_path, format.HEADER_SIZE, bytes(topic.ledger.size - format.HEADER_SIZE))
    assert indexes(rows_of(topic)) == []


def test_markers_are_no_messages(topic):
    topic.publish(Message("a", b"0"))
    topic.add(sealed(metadata_of(marker_type=1), b"marker"))
    assert indexes(rows_of(topic)) == [0]


def test_what_is_encrypted_stays_as_it_is(topic):
    keys = [api.EncryptionKeys(key="name", value=b"encrypted")]
    topic.add(single(Message("k", b"secret"), encryption_keys=keys))
    topic.add(sealed(metadata_of(api.LZ4, 999, num_messages_in_batch=7, encryption_keys=keys,
                                 partition_key="of the batch"), b"secrets"))
    found = rows_of(topic,
                    ("key", "payload", "payload_size", "is_encrypted", "batch_index", "message_index")).to_pylist()
    assert [tuple(row.values()) for row in found] == [("k", b"secret", 6, True, None, 0),
                                                      ("of the batch", b"secrets", 7, True, None, 1)]


# -- chunks

def chunk(whole: bytes, number: int, pieces: int, name: str, codec=api.NONE, **more) -> bytes:
    stored = compression.compress(codec, whole)
    size = -(-len(stored) // pieces)
    return sealed(metadata_of(codec, len(whole), uuid=name, num_chunks_from_msg=pieces, chunk_id=number,
                              total_chunk_msg_size=len(stored),
                              partition_key=name, **more), stored[number * size:(number + 1) * size])


def publish_chunks(topic, *numbers, name="a", pieces=3, **more):
    for number in numbers:
        topic.add(chunk(name.encode() * 1000 + bytes(range(250)), number, pieces, name, **more), is_chunk=True)


@pytest.mark.parametrize("codec", CODECS)
def test_chunks_are_joined_over_other_messages_and_ledgers(topic, codec):
    publish_chunks(topic, 0, codec=codec)
    filled(topic, 3)
    publish_chunks(topic, 0, 1, name="b", codec=codec)
    topic.roll()
    publish_chunks(topic, 1, codec=codec)
    topic.roll()
    filled(topic, 2)
    publish_chunks(topic, 2, name="b", codec=codec)
    publish_chunks(topic, 2, codec=codec)
    found = rows_of(topic, ("key", "chunks", "payload", "payload_size", "message_index"))
    found = found.filter(pa.compute.is_valid(found["chunks"])).to_pylist()
    whole = {name: name.encode() * 1000 + bytes(range(250)) for name in "ab"}
    assert [tuple(row.values()) for row in found] == [("b", [4, 5, 9], whole["b"], 1250, 9),
                                                      ("a", [0, 6, 10], whole["a"], 1250, 10)]
    assert rows_of(topic, SCAN).equals(rows_of(topic, ALL).select(SCAN))


@pytest.mark.parametrize(("numbers", "expected"), [
    ([0, 1, 2], [[0, 1, 2]]), ([0, 2], []), ([1, 2], []), ([0, 1], []),
    ([0, 1, 1, 2], [[0, 2, 3]]),              # one was sent again
    ([0, 1, 0, 1, 2], [[2, 3, 4]]),           # begun anew
    ([0, 1, 2, 2], [[0, 1, 2]]),              # the last one was sent again
    ([0, 1, 2, 0, 1, 2], [[0, 1, 2], [3, 4, 5]]),
    ([0, 1, 0, 2], []),                       # begun anew, and not gone on with
])
def test_chunks_that_come_again_or_never(topic, numbers, expected):
    publish_chunks(topic, *numbers)
    assert rows_of(topic, ("chunks",))["chunks"].to_pylist() == expected == rows_of(topic, ALL)["chunks"].to_pylist()


def test_chunks_of_another_producer_are_of_another_message(topic):
    """Chunks of two producers with the same uuid belong to two messages."""
    publish_chunks(topic, 0, 1, producer_name="one")
    publish_chunks(topic, 0, 1, 2, producer_name="other")
    publish_chunks(topic, 2, producer_name="one")
    publish_chunks(topic, 2, producer_name="a third")
    assert rows_of(topic, ("chunks",))["chunks"].to_pylist() == [[2, 3, 4], [0, 1, 5]]


def test_a_message_of_which_a_chunk_is_damaged_is_told_of(topic):
    publish_chunks(topic, 0, 1, 2)
    flip(topic.ledger.ledger_path, int(topic.ledger.index[1]["offset"]) - 1)
    damage = []
    assert rows_of(topic, damage=damage).num_rows == 0
    assert len(damage) == 2 and "10:0" in damage[0] and "10:2 is left out: the checksum of its chunk" in damage[1]


# -- what comes and goes

def test_a_ledger_that_is_deleted_while_it_is_read_is_read_to_its_end(topic, monkeypatch):
    monkeypatch.setattr(entry_blocks, "BLOCK_ENTRIES", 10)
    filled(topic, 50)
    (stretch,) = confirmed.stretches(topic.data_dir, topic.partition_id)
    found = reading.batches(topic.data_dir, stretch, ("message_index",), pytest.fail)
    first = next(found)
    topic.ledger.unlink()
    assert indexes(pa.Table.from_batches([first, *found])) == list(range(50))
    assert list(reading.batches(topic.data_dir, stretch, ("message_index",), pytest.fail)) == []
    assert confirmed.stretches(topic.data_dir, topic.partition_id) == []


def test_a_view_is_read_up_to_its_horizon_and_the_ledgers_behind_it(topic):
    for number in range(40):
        topic.publish(Message(f"key-{number % 4}", b"old"))
    topic.publish_batch([Message(f"key-{number % 5}", b"new") for number in range(10)])
    topic.roll()
    topic.compact()
    topic.publish(Message("key-0", b"newest"))
    view = confirmed.current_view(topic.data_dir, topic.partition_id)
    found = rows_of(topic, ("key", "payload", "message_index", "batch_index"), view=view).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        *((f"key-{number}", b"new", 45 + number, 5 + number) for number in range(5)), ("key-0", b"newest", 50, None)]
    stretches = confirmed.stretches(topic.data_dir, topic.partition_id, view=view)
    assert [stretch.view for stretch in stretches] == [view, 0]


def test_a_view_that_was_replaced_is_not_read_as_if_it_were_empty(topic):
    filled(topic, 10)
    topic.roll()
    topic.compact()
    (stretch, *_) = confirmed.stretches(topic.data_dir, topic.partition_id, view=1)
    filled(topic, 10)
    topic.roll()
    topic.compact()
    compacted_ledgers.remove_unused(topic.folder, [2])
    with pytest.raises(ViewReplaced, match="read again"):
        list(reading.batches(topic.data_dir, stretch, ALL, pytest.fail))


def test_chunks_before_the_horizon_are_found_in_the_view(topic):
    """The ledger of earlier chunks may be deleted by the time the last chunk is read."""
    topic.publish(Message("k", b"v"))
    publish_chunks(topic, 0, 1)
    topic.roll()
    topic.compact()
    ledger.Ledger(topic.folder, topic.partition_id, 10).unlink()
    publish_chunks(topic, 2)
    assert rows_of(topic, ("chunks",))["chunks"].to_pylist() == [[1, 2, 3]]


def test_placeholders_of_a_batch_are_no_messages(topic, monkeypatch):
    monkeypatch.setattr(reading._Reader, "_one_by_one",
                        lambda _self, _block, some: iter(()) if not some else pytest.fail(f"{some}"))
    for _ in range(20):
        body = b""
        for own, payload in (({"partition_key": "a"}, b"x"), ({"compacted_out": True}, b""),
                             ({"partition_key": "b"}, b"y")):
            head = api.SingleMessageMetadata(payload_size=len(payload), **own).SerializeToString()
            body += struct.pack(">I", len(head)) + head + payload
        topic.add(sealed(metadata_of(num_messages_in_batch=3), body))
    found = rows_of(topic, ("batch_index", "payload"))
    assert [tuple(row.values()) for row in found.to_pylist()] == [(0, b"x"), (2, b"y")] * 20


def test_damage_of_a_view_is_told_once(topic):
    """The stretch with the first entries reports damage of the view's index."""
    filled(topic, 50)
    topic.roll()
    topic.compact()
    path = format.index_path(topic.view().folder, 10)
    path.write_bytes(path.read_bytes()[:-5])
    [stretch] = [one for one in confirmed.stretches(topic.data_dir, topic.partition_id, view=1) if one.view]
    for begin, expected in ((0, 1), (20, 0)):
        damage = []
        some = reading.batches(topic.data_dir, replace(stretch, first=begin), ("message_index",), damage.append)
        assert (indexes(pa.Table.from_batches(some)), len(damage)) == (list(range(begin, 49)), expected)


# -- which topics

@pytest.mark.parametrize(("pattern", "expected"), [
    ("t", ["t"]), ("t.*", ["t", "t2"]), (".*t.*", ["other", "t", "t2"]), ("persistent://public/default/t", ["t"])])
def test_a_pattern_is_of_whole_names(rig, pattern, expected):
    for name in ("t", "t2", "other"):
        rig.producer(name)
    assert [name.local_name for _, name in confirmed.partitions(rig.data_dir, re.compile(pattern))] == expected


def test_a_pattern_finds_no_topic_that_brokers_use_among_themselves(rig, monkeypatch):
    for name in ("t", "theirs"):
        rig.producer(name)
    monkeypatch.setattr(confirmed.names, "is_system", lambda text: text.endswith("/theirs"))
    assert [name.local_name for _, name in confirmed.partitions(rig.data_dir, re.compile(".*"))] == ["t"]
