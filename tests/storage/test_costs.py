"""Commands that would cost an owner more than they cost to send."""
from geminga.storage.subscription import SubType


def publish_many(rig, topic, count):
    """So many entries, of one ledger; their positions."""
    producer, positions = rig.producer(topic), []
    while len(positions) < count:
        positions += rig.run(rig.sends(*[(producer, b"")] * 1_000)).positions
    assert len({ledger_id for ledger_id, _ in positions}) == 1
    return positions


def test_one_acknowledgement_may_be_of_more_entries_apart_than_a_segment_has_room_for(rigs):
    """Each of them is a run of its own to the journal: they are there after a crash."""
    rig = rigs(journal_segment_bytes=1 << 20)
    positions = publish_many(rig, "a", 60_000)
    consumer = rig.consumer("a", subType=SubType.Shared)
    rig.run(rig.acks(consumer, *positions[1::2], request_id=1))
    rig.close_consumer(consumer)
    for survivor in (rig, rigs.crash(rig)):
        again = survivor.consumer("a", subType=SubType.Shared)
        assert [position for position, _, _ in survivor.given(survivor.run(survivor.flow(again, 100_000)), again)] == positions[::2]
