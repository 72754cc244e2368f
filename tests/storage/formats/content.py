"""What a data folder of any format version holds: `fill` writes it, `check` finds it again.

Never changed once a version's folder is made of it; what later versions can hold in addition goes into functions of their own.
"""
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.subscription import SubType

OPTIONS = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 2, "roll_over_entries": 50}
KEY = {"partition_key": "k", "properties": [api.KeyValue(key="a", value="b")]}


def fill(rig):
    """A topic of three ledgers with four subscriptions, one that is terminated, and one that was written after the last checkpoint."""
    producer = rig.producer("many")
    shared = rig.consumer("many", "shared", subType=SubType.Shared)
    in_order = rig.consumer("many", "in-order")
    rig.consumer("many", "untouched")
    gone = rig.consumer("many", "gone")
    positions = [position for first in range(0, 120, 10)
                 for position in rig.run(rig.sends(*[(producer, b"%d" % n, KEY) for n in range(first, first + 10)])).positions]
    [batch] = rig.run(rig.sends((producer, b"batch", {"batch": 70}))).positions
    rig.run(rig.flow(shared, 1_000), rig.flow(in_order, 60))
    rig.run(rig.acks(shared, *positions[1:120:2]), rig.ack_part(shared, batch, (1 << 64) - 2, 0b111110))
    rig.run(rig.acks(in_order, positions[59], cumulative=True, request_id=1))
    rig.run(rig.redeliver(shared, positions[0], positions[2]))
    rig.run(rig.flow(shared, 1_000))
    rig.run(rig.redeliver(shared, positions[2]))
    rig.run(rig.command("unsubscribe", consumer_id=gone.object_id, request_id=9))
    ended = rig.producer("ended")
    rig.publish(ended, b"last")
    rig.asked("terminate", "ended")
    late = rig.producer("late")
    rig.consumer("late", "sub")
    rig.publish(late, *[b"%d" % n for n in range(20)])


def check(rig):
    """All of it is there: entries, cursors, holes, parts of a batch, redeliveries."""
    assert [int(payload) for _, payload in rig.everything("many")[:-1]] == list(range(120))
    assert set(rig.owner.partition(rig.topic("many")).subscriptions) == {(name, True) for name in ("shared", "in-order", "untouched")}
    shared = rig.consumer("many", "shared", subType=SubType.Shared)
    answers = rig.run(rig.flow(shared, 1_000))
    assert [payload for _, payload in rig.delivered(answers, shared)] == [b"%d" % n for n in range(0, 120, 2)] + [b"batch"]
    given = rig.given(answers, shared)
    assert [count for _, count, _ in given] == [1, 2] + [0] * 59
    assert given[-1][2] == [(1 << 64) - 2, 0b111110]
    in_order = rig.consumer("many", "in-order")
    assert rig.receive(in_order)[0][1] == b"60"
    assert [payload for _, payload in rig.receive(rig.consumer("late", "sub"))] == [b"%d" % n for n in range(20)]
    assert rig.owner.partition(rig.topic("ended")).is_terminated
    [position] = rig.publish(rig.producer("late"), b"new")
    assert position > rig.everything("late")[0][0]
