"""Positions that administration finds by message or time, and entries that it expires."""
import base64

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.topics.subscription import SubType

from .rig import START_MS, payload_of

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def topic(rig):
    """Return (positions of six entries, producer, consumer). The entries are in three ledgers, with a day between
    the first three and the others, and one is a batch.
    """
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = rig.publish(producer, b"0", b"1", b"2")
    rig.owner.topics.roll(rig.partition("t"))
    rig.run(after_ms=DAY_MS)
    positions += rig.run(rig.sends((producer, b"3", {"batch": 4}))).positions
    rig.owner.topics.roll(rig.partition("t"))
    positions += rig.run(rig.sends(
        (producer, b"4"), (producer, b"5", {"publish_time": rig.now_ms + 5}))).positions
    return positions, producer, consumer


def data_of(shown):
    return (shown["ledger"], shown["entry"]), payload_of(base64.b64decode(shown["data"]))


def refused(rig, *arguments, **more):
    [answer] = rig.run(rig.question(*arguments, **more)).answered
    return answer["refused"]


def test_messages_are_found_by_position_number_and_time(rig, topic):
    positions, *_ = topic
    for number, position in enumerate(positions):
        assert data_of(rig.asked("entry", "t", position=position)) == (position, b"%d" % number)
        assert data_of(rig.asked("peek", "t", subscription="sub", number=number + 1)) == (position, b"%d" % number)
        for latest, place in ((False, number + 1), (True, 6 - number)):
            assert data_of(rig.asked("examine", "t", number=place, from_latest=latest))[0] == position
    for latest, end in ((False, 5), (True, 0)):      # a number beyond the entries
        assert data_of(rig.asked("examine", "t", number=99, from_latest=latest))[0] == positions[end]
    assert [tuple(rig.asked("by_index", "t", index=index)) for index in range(9)] == [
        *positions[:3], *[positions[3]] * 4, *positions[4:]]
    for after_ms, expected in ((0, 0), (2, 3), (DAY_MS, 3), (DAY_MS + 1, 5)):
        assert tuple(rig.asked("at_time", "t", time_ms=START_MS + after_ms)) == positions[expected]
    ledger, entry = positions[-1]
    assert rig.asked("at_time", "t", time_ms=START_MS + DAY_MS + 6) == [ledger, entry + 1]
    assert rig.asked("last_message", "t") == {"ledger": ledger, "entry": entry, "batch_index": -1, "batch_size": 0}
    for question, arguments in (
        ("entry", {"position": [ledger, entry + 1]}),
        ("entry", {"position": [99, 0]}),
        ("by_index", {"index": 9}),
        ("peek", {"subscription": "sub", "number": 7}),
    ):
        assert refused(rig, question, "t", **arguments) == api.MetadataError


def test_peeking_for_a_subscription_that_is_not_there_shows_all_and_makes_none(rig, topic):
    before = rig.asked("subscriptions", "t")
    assert [data_of(rig.asked("peek", "t", subscription="new", number=n + 1))[1]
            for n in range(6)] == [b"%d" % n for n in range(6)]
    assert rig.asked("subscriptions", "t") == before


def test_peeking_passes_over_what_is_acknowledged_and_gives_nothing_out(rig, topic):
    positions, _, consumer = topic
    rig.receive(consumer, 2)
    rig.run(rig.acks(consumer, positions[0], positions[3]))
    peeked = [data_of(rig.asked("peek", "t", subscription="sub", number=n + 1))[1] for n in range(4)]
    assert peeked == [b"1", b"2", b"4", b"5"]
    assert rig.asked("analyze", "t", subscription="sub") == {"entries": 4, "messages": 4, "first": list(positions[1]),
                                                             "last": list(positions[5])}
    assert rig.asked("analyze", "t", subscription="sub", position=positions[4], behind=True)["messages"] == 1


def test_what_is_older_than_that_expires_from_one_subscription_or_from_all(rig, topic):
    positions, _, consumer = topic
    rig.consumer("t", "other", subType=SubType.Shared)
    assert rig.asked("expire", "t", subscription="sub", seconds=2 * DAY_MS // 1000) == 0
    assert rig.asked("expire", "t", subscription="sub", seconds=3600) == 3
    assert rig.asked("why", "t", subscription="sub")["messages"]["expired"] == 3
    assert [position for position, _ in rig.receive(consumer)] == positions[3:]
    assert rig.asked("expire", "t", seconds=3600) == 3
    assert rig.asked("why", "t", subscription="other")["messages"] == {
        "published": 9, "acknowledged": 0, "expired": 3, "skipped": 0, "evicted": 0, "backlog": 6}


@pytest.mark.parametrize("kind", SubType.values(), ids=SubType.keys())
def test_messages_that_wait_for_their_delivery_time_expire_by_their_age_as_others_do(rig, kind):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    waits = {"deliver_at_time": rig.now_ms + DAY_MS}
    rig.run(rig.sends((producer, b"waits", waits), (producer, b"now"), (producer, b"waits too", waits)))
    rig.run(after_ms=60_000)
    rig.run(rig.sends((producer, b"young", waits)))
    assert rig.asked("expire", "t", subscription="sub", seconds=30) == 3
    rig.run(rig.flow(consumer, 9), after_ms=2 * DAY_MS)
    assert [payload for _, payload in rig.delivered(rig.run(), consumer)] in ([b"young"], [])
    assert rig.asked("analyze", "t", subscription="sub")["messages"] == 1


@pytest.mark.parametrize("ages_s", [[3600] * 6, [3600] * 5 + [-3600], [-3600] + [3600] * 5], ids=str)
def test_age_counts_from_when_a_message_was_published_and_not_from_its_arrival(rig, ages_s):
    """A producer was cut off, or its clock is ahead: that does not make its messages younger than their arrival."""
    producer = rig.producer("t")
    rig.consumer("t")
    rig.run(rig.sends(*[(producer, b"x", {"publish_time": rig.now_ms - 1_000 * age_s}) for age_s in ages_s]))
    assert rig.asked("expire", "t", subscription="sub", seconds=60) == ages_s.count(3600)
    rig.run(after_ms=60_000)
    rig.asked("expire", "t", subscription="sub", seconds=60)
    assert rig.asked("analyze", "t", subscription="sub")["messages"] == 0


@pytest.mark.parametrize(("behind", "left"), [(False, 4), (True, 3)])
def test_what_lies_before_a_message_expires(rig, topic, behind, left):
    """Expiring up to a message includes it; with the position excluded, as in a reset, the next message counts."""
    positions, *_ = topic
    rig.asked("expire", "t", subscription="sub", position=positions[1], behind=behind)
    assert rig.asked("analyze", "t", subscription="sub")["entries"] == left


def test_what_lies_behind_a_subscription_already_does_not_expire(rig, topic):
    """Expiring entries that are acknowledged changes nothing, not even the time of the last expiry."""
    positions, _, consumer = topic
    rig.run(rig.acks(consumer, *positions[:3]))
    rig.asked("expire", "t", subscription="sub", position=positions[1])
    assert rig.partition("t").subscriptions["sub", True].expired_ms == 0
    rig.asked("expire", "t", subscription="sub", position=positions[3])
    assert rig.partition("t").subscriptions["sub", True].expired_ms == rig.now_ms


@pytest.mark.slow
@pytest.mark.parametrize(("where", "entries", "words"), [
    ({"batch_index": 2}, [3, 4, 5], [0b1100]), ({"batch_index": 2, "behind": True}, [3, 4, 5], [0b1000]),
    ({"batch_index": 3}, [3, 4, 5], [0b1000]), ({"batch_index": 3, "behind": True}, [4, 5], []),
    ({"batch_index": 0}, [3, 4, 5], []), ({"batch_index": 0, "behind": True}, [3, 4, 5], [0b1110]),
    ({"batch_index": -1, "behind": True}, [4, 5], []), ({"batch_index": 4}, [3, 4, 5], []),
    ({"batch_index": 4, "behind": True}, [4, 5], []),
    ({"batch_index": (1 << 63) - 1, "behind": True}, [4, 5], []), ({}, [3, 4, 5], []), ({"behind": True}, [4, 5], [])],
    ids=str)
@pytest.mark.parametrize("ask", ["reset", "subscribe"])
def test_a_subscription_begins_at_a_message_of_a_batch_or_behind_it(rig, rigs, topic, ask, where, entries, words):
    """F201: a subscription begins within a batch, also after a crash, and counts the batch's earlier messages as
    skipped.
    """
    positions, _, _consumer = topic
    rig.consumer("t", "keeps everything")
    name = {"reset": "sub", "subscribe": "made"}[ask]
    rig.asked(ask, "t", subscription=name, position=positions[3], **where)
    skipped = 4 - sum(map(int.bit_count, words)) if words else 0
    told = rig.asked("why", "t", subscription=name)["messages"]
    assert (told["skipped"], told["backlog"]) == (skipped, len(entries) + (3 - skipped if 3 in entries else 0))
    for found in (rig, rigs.crash(rig)):
        again = found.consumer("t", name, subType=SubType.Shared)
        given = found.given(found.run(found.flow(again, 100)), again)
        assert [(position, its) for position, _,
                its in given] == [(positions[n], words if n == 3 else []) for n in entries]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "where", "left"), [
    (3, {}, 2), (3, {"behind": True}, 2), (3, {"batch_index": 1}, 2), (3, {"batch_index": 1, "behind": True}, 2),
    (3, {"batch_index": 3, "behind": True}, 2), (1, {"behind": True}, 3),
    (0, {"batch_index": 0, "behind": True}, 4), (4, {"behind": True}, 0), (5, {}, 0)], ids=str)
def test_everything_up_to_where_a_cursor_would_begin_expires(rig, topic, number, where, left):
    positions, *_ = topic
    assert rig.asked("expire", "t", subscription="sub", position=positions[number], **where) == 6 - left
    assert rig.asked("analyze", "t", subscription="sub")["entries"] == left


def test_nothing_expires_up_to_a_message_that_is_not_there_yet(rig, topic):
    positions, *_ = topic
    ledger_id, entry_id = positions[-1]
    for position, behind in (
            ((ledger_id, entry_id), True), ((ledger_id, entry_id + 1), False), ((1 << 62, 1 << 62), False)):
        assert rig.asked("expire", "t", subscription="sub", position=position, behind=behind) is None
    assert rig.asked("analyze", "t", subscription="sub")["entries"] == 6
    for position, behind in (((-1, -1), False), ((-1, -1), True), ((0, 5), False)):
        assert rig.asked("expire", "t", subscription="sub", position=position, behind=behind) == 0


def test_of_an_empty_topic_the_next_message_is_told(rig):
    rig.producer("t")
    [ledger] = rig.files("t")
    assert rig.asked("last_message", "t") == {"ledger": ledger, "entry": -1, "batch_index": -1, "batch_size": 0}
    assert rig.asked("at_time", "t", time_ms=0) == [ledger, 0]
    assert rig.asked("examine", "t", number=1, from_latest=True) is None
    assert refused(rig, "peek", "t", subscription="new", number=1) == api.MetadataError
    assert rig.asked("subscriptions", "t") == []


@pytest.mark.parametrize("count", [1, 100])
def test_an_acknowledgement_of_what_is_yet_to_come_is_for_nothing(rig, count):
    """Acknowledgements of entries that do not exist yet are ignored, few or many."""
    producer, consumer = rig.producer("a"), rig.consumer("a", subType=SubType.Shared)
    positions = [position for _ in range(count) for position in rig.publish(producer, b"there")]
    ledger_id, last = positions[-1]
    rig.run(rig.acks(consumer, *positions, (ledger_id, last + 1)))
    assert rig.publish(producer, b"new") == [(ledger_id, last + 1)]
    assert [payload for _, payload in rig.receive(consumer)] == [b"new"]
