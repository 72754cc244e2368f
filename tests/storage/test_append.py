"""SENDs are stored in the same places whether they are planned one by one or as arrays."""
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from geminga.proto.sends import SEND_ROW
from geminga.storage import format
from geminga.storage.cursors.producer_sequences import Sequences
from geminga.storage.errors import StorageFull
from geminga.storage.topics import publish_plan

NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 2**31, 2**64 - 1])
GONE = 5       # a producer's handle that leads nowhere
# (producer's handle, size, messages, sequence id, time, highest sequence id, flags)
SEND = st.tuples(st.integers(1, GONE), st.integers(1, 9), st.integers(1, 300), NUMBERS, st.integers(-2**63, 2**63 - 1),
                 st.sampled_from([0, 0, 3, 7]), st.sampled_from([1, 1, 1, 5, 5 | 1 << 8, 21 | 2 << 8]))
SECTIONS = st.lists(st.tuples(st.integers(1, 2), st.lists(SEND, min_size=1, max_size=12)), min_size=1, max_size=4)


def section(worker, asked):
    rows = np.zeros(len(asked), SEND_ROW)
    names = "producer", "size", "messages", "sequence_id", "publish_time", "highest_sequence_id", "flags"
    for name, column in zip(names, zip(*asked, strict=True), strict=True):
        rows[name] = column
    rows["producer_id"], rows["connection"] = rows["producer"] + 10, np.arange(len(rows)) % 3
    rows["key_hash"], rows["deliver_at"] = rows["size"] * 7, rows["publish_time"]
    rows["crc32c"] = 2**32 - 1 - np.arange(len(rows)) % 2
    rows["offset"] = np.cumsum(rows["size"]) - rows["size"]
    rows.flags.writeable = False                          # like rows received from ZeroMQ
    return worker, rows, memoryview(bytes(range(256)) * 2)[worker:worker + int(rows["size"].sum())]


def planned(how, sends, producers, room):
    """Return the plan for these SENDs, sorted by the function `how`, one by one or as arrays.

    room: returns the ledger for (partition, entries, bytes), or raises StorageFull.
    """
    batch = how(sends, producers)
    for demand in batch.demands:
        try:
            demand.ledger = room(demand.partition, demand.count, demand.size)
        except StorageFull as error:
            demand.refusal = str(error)
    return batch.place(1_700_000_000_000)


def told(planned):
    """Return everything in a plan as bytes and numbers, to be compared."""
    groups = [
        (
            group.partition.partition_id,
            group.ledger.ledger_id,
            group.first,
            group.count,
            group.size,
            group.next_message,
            b"".join(group.pieces),
        )
        for group in planned.groups
    ]
    receipts = [(worker, bytes(rows)) for worker, rows in planned.receipts]
    tables = bytes(planned.index), bytes(planned.sources), bytes(planned.record(b"").groups)
    progress = {producer.name: (progress.last, progress.under_way, [*progress.missing], progress.supposed)
                for _, producer, progress in planned.progress}
    return groups, tables, sorted(receipts), sorted(planned.refused), progress, planned.duplicates


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=150,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=SECTIONS, before=SECTIONS, full=st.sets(st.integers(0, 2)), deduplicating=st.sets(st.integers(0, 2)))
@example(asked=[(1, [(1, 1, 1, 0, 0, 0, 1)]), (2, [(GONE, 1, 1, 0, 0, 0, 1)])], before=[], full=set(),
         deduplicating=set())
def test_few_and_many_go_to_the_same_places(rig, asked, before, full, deduplicating):
    """One by one and as arrays, the same SENDs are planned alike, also with closed producers, duplicates and
    partitions without room.
    """
    if not rig.partitions:
        for topic in "abca":
            rig.run(rig.sends((rig.producer(topic), b"first")))
    producers = dict(enumerate(rig.owner.clients.producers.by_handle.values(), 1))      # two of one partition
    for partition in rig.partitions:
        partition.deduplicates, partition.sequences = partition.slot in deduplicating, Sequences()

    def room(partition, count, size):
        if partition.slot in full:
            raise StorageFull("full")
        partition.open_ledger.reserve(count, size)
        return partition.open_ledger

    if before:
        earlier = planned(publish_plan.sort_few, [section(*each) for each in before], producers, room)
        for partition, producer, progress in earlier.progress:
            partition.sequences.learn(producer.identity, progress, 0)
    few, many = (told(planned(how, [section(*each) for each in asked], producers, room))
                 for how in (publish_plan.sort_few, publish_plan.sort_many))
    assert few == many


def test_few_and_many_are_what_a_pass_makes_of_them(rig):
    """Below and above FEW_MAX, index rows on disk are valid and receipts name their positions."""
    producer = rig.producer("a")
    expected = []
    for count in (publish_plan.FEW_MAX, publish_plan.FEW_MAX + 1):
        answers = rig.run(rig.sends(*[(producer, b"x")] * count))
        expected += answers.positions
        found = rig.partitions[0].open_ledger
        assert expected == [(found.ledger_id, entry) for entry in range(found.entries)]
        assert format.valid_rows(found.index[:found.entries], found.ledger_id) == found.entries
