"""Key_Shared consumers of the sticky policy, which bring their own ranges of hashes."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.topics.subscription import SubType

from .rig import T

HASHES = {"b": 32_259, "c": 54_879, "d": 5_235}


def of_ranges(*ranges):
    hashes = [api.IntRange(start=first, end=last) for first, last in ranges]
    return {"subType": SubType.Key_Shared,
            "keySharedMeta": api.KeySharedMeta(keySharedMode=api.STICKY, hashRanges=hashes)}


def test_each_gets_the_keys_of_its_ranges_and_what_nobody_has_waits(rig):
    producer, low = rig.producer("a"), rig.consumer("a", **of_ranges((0, 20_000)))
    rig.run(rig.sends(*[(producer, key.encode(), {"partition_key": key}) for key in HASHES]))
    assert [payload for _, payload in rig.receive(low)] == [b"d"]
    high = rig.consumer("a", **of_ranges((HASHES["c"], 65_535), (20_001, 20_010)))
    assert [payload for _, payload in rig.receive(high)] == [b"c"]
    wanted = of_ranges((20_010, HASHES["b"]))
    section, _ = rig.subscribe("a", "sub", **wanted)
    [refused] = rig.run(section).commands(T.ERROR)
    assert refused.error.error == api.ConsumerAssignError
    rig.close_consumer(high)
    assert [payload for _, payload in rig.receive(rig.consumer("a", **wanted))] == [b"b"]
