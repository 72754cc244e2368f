"""Time to live of single messages: each expires by its own time, and nothing is looked at in vain."""
import random

import numpy as np
import pytest

from geminga.proto import job_properties
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursors.cursor import EXPIRED
from geminga.storage.enforcement import message_ttl, own_ttl
from geminga.storage.topics.subscription import SubType

from .test_expiry import backlog, later, totals
from .test_replication_cursors import set_policy

TTL = job_properties.TTL_PROPERTY


def publish(rig, *texts, producer=None, **fields):
    """Publish a message for each text, whose property says its time to live; None: it has none."""
    producer = producer or rig.producer("t")
    rig.run(rig.sends(*[(producer, b"x", {"properties": [] if text is None else [api.KeyValue(key=TTL, value=text)]}
                         | fields) for text in texts]))


def test_times_are_kept_to_a_part_in_two_thousand_and_never_shorter():
    drawn = random.Random(7)
    times = [*range(5_000), *(drawn.randrange(1 << drawn.randrange(1, 42)) for _ in range(5_000)),
             job_properties.TTL_MAX_MS]
    flags = np.array([job_properties.ttl_flags_of(time) for time in times], np.uint32)
    assert (flags & ~np.uint32(job_properties.TTL_BITS) == 0).all()
    for time, kept in zip(times, job_properties.ttls_of(flags).tolist(), strict=True):
        assert time <= kept <= time * (1 + 1 / 2_000)
    assert job_properties.ttls_of(np.array([job_properties.ttl_flags_of(1 << 60)], np.uint32))[0] \
        == job_properties.TTL_MAX_MS


@pytest.mark.parametrize(("text", "ttl_ms"), [
    ("30s", 30_000), ("1500", 1_500), ("250MS", 250), ("2h", 7_200_000), ("0", 0), ("", 0), ("-1", 0), ("soon", 0),
    ("1.5s", 0), ("\N{ARABIC-INDIC DIGIT THREE}", 0)])
def test_texts_that_are_no_time_count_as_none(text, ttl_ms):
    flags = job_properties.ttl_flags([api.KeyValue(key=TTL, value="9w"), api.KeyValue(key=TTL, value=text)])
    kept = int(job_properties.ttls_of(np.array([flags], np.uint32))[0])
    assert ttl_ms <= kept <= ttl_ms * 1.0005


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared])
def test_each_message_expires_by_its_own_time(rigs, kind):
    rig = rigs(own_message_ttl=True)
    consumer = rig.consumer("t", subType=kind)
    publish(rig, "10s", None, "3s", "6s", "3s")
    later(rig, 2_999)
    assert backlog(rig) == 5
    later(rig, 1_100)
    assert backlog(rig) == 3
    later(rig, 3_000)
    assert backlog(rig) == 2
    later(rig, 4_000)
    assert backlog(rig) == 1 and totals(rig)[EXPIRED] == 4
    assert len(rig.receive(consumer)) == 1


@pytest.mark.parametrize("own", [False, True])
def test_copies_that_a_redrive_has_sent_stay_for_a_repeated_one(rigs, own):
    """A killed redrive finds its copies in its own subscription, or it would send letters twice."""
    rig = rigs(own_message_ttl=own, message_ttl_s=0 if own else 1)
    for name in "sub", "geminga-redrive-0123456789abcdef":
        rig.consumer("t", subType=SubType.Shared, subscription=name)
    publish(rig, "1s", "1s")
    later(rig, 3_000)
    left = {name: rig.asked("why", "t", subscription=name)["messages"]["backlog"]
            for name, _ in rig.partition("t").subscriptions}
    assert left == {"sub": 0, "geminga-redrive-0123456789abcdef": 2}


def test_without_the_policy_the_property_is_ignored(rig):
    rig.consumer("t")
    publish(rig, "1s")
    later(rig, 5_000)
    assert backlog(rig) == 1


def test_a_delayed_message_lives_from_its_delivery_time_on(rigs):
    rig = rigs(own_message_ttl=True)
    rig.consumer("t", subType=SubType.Shared)
    publish(rig, "2s", deliver_at_time=rig.now_ms + 5_000)
    later(rig, 6_000)
    assert backlog(rig) == 1
    later(rig, 3_000)
    assert backlog(rig) == 0


@pytest.mark.parametrize("ends", ["crash", "seek"])
def test_what_waits_again_expires_again(rigs, tmp_path, ends):
    rig = rigs(own_message_ttl=True)
    consumer = rig.consumer("t", subType=SubType.Shared)
    publish(rig, "2s", "30s")
    if ends == "crash":
        rig = rig.crashed(tmp_path / "next", own_message_ttl=True)
        rig.consumer("t", subType=SubType.Shared)
        later(rig, 5_000)
    else:
        later(rig, 5_000)
        rig.run(rig.command("seek", connection=consumer.connection, consumer_id=consumer.object_id, request_id=1,
                            message_publish_time=0))
        later(rig, 2_000)
    assert backlog(rig) == 1


@pytest.mark.parametrize("letters", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_many_messages_expire_some_at_a_time(rigs, monkeypatch, own, letters):
    """A look is bounded, over all topics: others wait for it.  The next one begins with those that it left."""
    monkeypatch.setattr(own_ttl, "_BLOCK", 5)
    monkeypatch.setattr(message_ttl, "_PIECE", 5)
    monkeypatch.setattr(message_ttl, "EXPIRED_MAX", 10)
    rig = rigs(own_message_ttl=own, message_ttl_s=0 if own else 1)
    set_policy(rig, "deadLetter", {"expired": True} if letters else None)
    rig.consumer("t", subType=SubType.Shared)
    rig.consumer("u", subType=SubType.Shared)
    for name, count in ("t", 12), ("u", 13):
        publish(rig, *["1s"] * count, producer=rig.producer(name))
    expired = []
    for _ in range(4):
        later(rig, 1_000)
        cursors = [rig.partition(name).subscriptions["sub", True].cursor for name in ("t", "u")]
        expired.append([count - backlog(rig, name) + sum(len(entries) for _, entries in cursor.dead.all())
                        for name, count, cursor in zip("tu", (12, 13), cursors, strict=True)])
    assert expired == [[10, 0], [10, 10], [12, 13], [12, 13]]


def test_many_messages_are_looked_at_some_at_a_time(rigs, monkeypatch):
    """Blocks are looked at when one of their entries is due, and no more of them in a second than may be."""
    monkeypatch.setattr(own_ttl, "_BLOCK", 10)
    monkeypatch.setattr(own_ttl, "_BLOCKS_MAX", 3)
    rig = rigs(own_message_ttl=True)
    rig.consumer("t")
    producer, drawn = rig.producer("t"), random.Random(3)
    ttls = [drawn.choice([None, 2, 5, 30]) for _ in range(200)]
    publish(rig, *(None if ttl is None else f"{ttl}s" for ttl in ttls), producer=producer)
    later(rig, 20_000)
    assert backlog(rig) == sum(ttl in (None, 30) for ttl in ttls)
    looked = []
    expire = own_ttl.OwnTtl._expire
    monkeypatch.setattr(own_ttl.OwnTtl, "_expire", lambda *args: looked.append(args[3]) or expire(*args))
    later(rig, 5_000)
    assert looked == []
    later(rig, 30_000)
    assert backlog(rig) == sum(ttl is None for ttl in ttls)
