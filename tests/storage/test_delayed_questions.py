"""Operators' questions about delayed messages, and their commands: an owner's answers, on a clock of the test's own."""
import numpy as np
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.topics.subscription import SubType

from .rig import START_MS
from .test_owner_consuming import last_message_id

SPREAD = pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared], ids=SubType.Name)
HOUR_MS = 3_600_000
FAR_MS = 30 * 24 * HOUR_MS
END_MS = 1 << 61
TICK_MS = 1_000


def at(producer, payload, ms=0, **more):
    return producer, payload, ({"deliver_at_time": START_MS + ms} if ms else {}) | more


def waiting(rig, by="message", first_ms=0, end_ms=END_MS, at_most=10_000, topic="t"):
    return rig.asked("delayed", topic, by=by, first_ms=first_ms, end_ms=end_ms, at_most=at_most)


def cancel(rig, position):
    return rig.asked("cancel", "t", position=position)


def reschedule(rig, position, ms):
    return rig.asked("reschedule", "t", position=position, deliver_at_ms=START_MS + ms)


def given(rig, answers, consumer):
    return [payload for _, payload in rig.delivered(answers, consumer)]


def account(rig, subscription="sub"):
    """Return the subscription's totals that are not 0, {outcome: messages}, after a check that they add up."""
    told = rig.asked("why", "t", subscription=subscription)["messages"]
    assert told["published"] == sum(told.values()) - told["published"]
    return {what: count for what, count in told.items() if count}


# -- what waits

@pytest.fixture
def spread(rig):
    """Publish 3,000 messages due over 50 hours, in no order, and some due at once.  Return (rig, times, ascending)."""
    times = np.random.default_rng(9).integers(1, 50 * HOUR_MS, 3_000)
    producer = rig.producer("t")
    for some in np.split(times, 10):
        rig.run(rig.sends(*[at(producer, b"x", int(ms)) for ms in some], at(producer, b"now")))
    return rig, np.sort(times) + START_MS


@pytest.fixture(params=["in memory", "in files"])
def kept(spread, rigs, request):
    """Return what `spread` returns, with the index in memory or, after a restart, in files."""
    rig, times = spread
    return (rig if request.param == "in memory" else rigs.restart(rig)), times


@pytest.mark.parametrize("order", [(60_000, 120_000, 180_000), (180_000, 60_000, 120_000)])
def test_a_window_that_reaches_into_the_range_is_counted_as_a_whole(rig, order):
    """Messages that are due in the order of publication have no rows in the index.  They are counted like all others.
    """
    producer, window_ms = rig.producer("t"), 300_000
    start_ms = START_MS // window_ms * window_ms + window_ms
    rig.run(rig.sends(*[at(producer, b"x", start_ms - START_MS + ms) for ms in order]))
    rows = [{"from": start_ms, "to": start_ms + window_ms, "entries": 3}]
    assert waiting(rig, "window", first_ms=start_ms + 150_000)["rows"] == rows
    assert waiting(rig, "window", end_ms=start_ms + 150_000)["rows"] == rows


@pytest.mark.slow
def test_what_waits_is_counted_by_hour_and_window(kept):
    rig, times = kept
    told = waiting(rig, "hour")
    assert (told["waiting"], told["next_due_ms"]) == (3_000, times[0])
    hours, counts = np.unique(times // HOUR_MS, return_counts=True)
    assert told["rows"] == [{"from": hour * HOUR_MS, "to": (hour + 1) * HOUR_MS, "entries": count}
                            for hour, count in zip(hours.tolist(), counts.tolist(), strict=True)]
    told = waiting(rig, "window")
    assert told["memory_bytes"] > 0
    for row in told["rows"]:
        assert row["entries"] == np.count_nonzero((times >= row["from"]) & (times < row["to"]))
    assert sum(row["entries"] for row in told["rows"]) == 3_000


@pytest.mark.slow
def test_what_the_index_takes_is_told(spread, rigs):
    """Rows of new messages are in memory.  After a restart they are in files, and fewer bytes are in memory."""
    rig, times = spread
    before, after = waiting(rig), waiting(rigs.restart(rig))
    assert before["memory_bytes"] > after["memory_bytes"] > 0
    assert len(np.unique(times // HOUR_MS)) < after["windows"] < len(np.unique(times // 300_000))
    assert 12 * 3_000 < after["index_bytes"] < 100 * 3_000


@pytest.mark.slow
def test_what_waits_is_listed_in_the_order_of_time(kept):
    rig, times = kept
    assert [row["deliver_at"] for row in waiting(rig)["rows"]] == times.tolist()
    assert [row["deliver_at"] for row in waiting(rig, at_most=7)["rows"]] == times[:7].tolist()
    first, end = times[100], times[300]
    rows = waiting(rig, first_ms=int(first), end_ms=int(end))["rows"]
    assert [row["deliver_at"] for row in rows] == times[100:300].tolist()
    assert waiting(rig, first_ms=int(times[-1]) + 1)["rows"] == waiting(rig, end_ms=int(times[0]))["rows"] == []
    assert len({row["id"] for row in waiting(rig)["rows"]}) == 3_000


@pytest.mark.slow
def test_what_is_due_does_not_wait_any_more(spread, tmp_path):
    rig, times = spread
    rig.run(after_ms=25 * HOUR_MS)
    left = times[times > rig.now_ms]
    for one in (rig, rig.crashed(tmp_path / "next")):
        one.run()
        told = waiting(one)
        assert (told["waiting"], told["next_due_ms"]) == (len(left), left[0])
        assert [row["deliver_at"] for row in told["rows"]] == left.tolist()
        assert sum(row["entries"] for row in waiting(one, "hour", first_ms=int(left[0]))["rows"]) == len(left)
    one.close()
    rig.run(after_ms=25 * HOUR_MS)
    told = waiting(rig)
    assert (told["waiting"], told["next_due_ms"], told["rows"]) == (0, None, [])


def test_each_entry_is_told_with_what_it_is(rig):
    producer = rig.producer("t")
    sent = at(producer, b"x", 2_000, publish_time=5), at(producer, b"many", 1_000, batch=3)
    [plain, batch] = rig.run(rig.sends(*sent)).positions
    first, second = waiting(rig)["rows"]
    assert (first["id"], first["messages"], first["deliver_at"]) == ("{}:{}".format(*batch), 3, START_MS + 1_000)
    assert second.items() >= {"id": "{}:{}".format(*plain), "partition": -1, "publish_time": 5, "messages": 1}.items()


def test_of_a_topic_that_nothing_waits_in_there_are_no_rows(rig):
    rig.publish(rig.producer("t"), b"x")
    told = waiting(rig, "hour")
    assert (told["waiting"], told["next_due_ms"], told["rows"]) == (0, None, [])
    for topic, code in (("missing", api.TopicNotFound), ("non-persistent://public/default/t", api.NotAllowedError)):
        [answer] = rig.run(rig.question("delayed", topic, by="hour", first_ms=0, end_ms=END_MS, at_most=9)).answered
        assert answer["refused"] == code


def check_counts(rig, times):
    """Assert that exactly the messages with these times wait, as listed, by hour, by window and in total."""
    times = np.sort(times)
    told = waiting(rig)
    assert [row["deliver_at"] for row in told["rows"]] == times.tolist() and told["waiting"] == len(times)
    hours, counts = np.unique(times // HOUR_MS, return_counts=True)
    assert [(row["from"] // HOUR_MS, row["entries"]) for row in waiting(rig, "hour")["rows"]] == list(
        zip(hours.tolist(), counts.tolist(), strict=True))
    assert sum(row["entries"] for row in waiting(rig, "window")["rows"]) == len(times)


@pytest.mark.slow
@pytest.mark.parametrize("is_sorted", [False, True], ids=["in no order", "ascending"])
def test_counts_are_exact_whatever_was_cancelled_and_moved_and_however_often(rigs, is_sorted):
    """Counts of waiting messages are exact after any cancelling and rescheduling, before and after the messages are
    in a file, over kills and restarts.
    """
    rig, random = rigs(), np.random.default_rng(3)
    times = random.integers(HOUR_MS, FAR_MS, 100)
    times = np.sort(times) if is_sorted else times
    producer = rig.producer("t")
    positions = rig.run(rig.sends(*[at(producer, b"x", int(ms)) for ms in times])).positions
    found = dict(zip(positions, (times + START_MS).tolist(), strict=True))
    written = dict(found)
    for life in (rigs.crash, rigs.restart, rigs.restart, rigs.crash):
        for number in random.choice(100, 12, replace=False).tolist():
            position = positions[number]
            if position in found and number % 4 == 0:
                assert cancel(rig, position) is True
                del found[position]
            elif position in found:
                for time_ms in (START_MS + int(random.integers(HOUR_MS, FAR_MS)), written[position])[:1 + number % 2]:
                    assert reschedule(rig, position, time_ms - START_MS) is True
                    found[position] = time_ms
                    rig.run()
        check_counts(rig, np.array(list(found.values())))
        rig = life(rig)
        rig.run()
        check_counts(rig, np.array(list(found.values())))


def test_what_is_deleted_with_its_ledger_is_not_counted_any_more(rigs):
    """Messages of a deleted ledger no longer count as waiting; other messages that are due in the same windows still
    do.
    """
    rig = rigs(roll_over_entries=50)
    consumer = rig.consumer("t", subType=SubType.Shared)
    producer, times = rig.producer("t"), np.random.default_rng(4).integers(1, 100, 150) * HOUR_MS
    positions = [rig.run(rig.sends(at(producer, b"x", int(ms)))).positions[0] for ms in times]
    kept = [position for position in positions if position[0] == positions[-1][0]]
    rig = rigs.restart(rig)
    consumer = rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.acks(consumer, *positions[:50]), after_ms=1_000)
    rig.run(rig.acks(consumer, *positions[50:-len(kept)]), after_ms=1_000)
    assert rig.files("t") == [kept[0][0]] and 0 < len(kept) < 150
    check_counts(rig, START_MS + times[-len(kept):])


# -- cancelled

@SPREAD
def test_a_message_that_was_cancelled_is_for_nobody(rig, tmp_path, kind):
    """A cancelled message is skipped for existing and new subscriptions, after a seek back and after a crash."""
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 100))
    sent = at(producer, b"soon", 5_000), at(producer, b"far", FAR_MS), at(producer, b"other", 6_000)
    soon, far, other = rig.run(rig.sends(*sent)).positions
    assert cancel(rig, soon) is cancel(rig, far) is True
    assert cancel(rig, soon) is cancel(rig, far) is False
    assert account(rig) == {"published": 3, "skipped": 2, "backlog": 1}
    assert [row["id"] for row in waiting(rig)["rows"]] == ["{}:{}".format(*other)] and waiting(rig)["waiting"] == 1
    after = rig.crashed(tmp_path / "next")
    assert account(after) == {"published": 3, "skipped": 2, "backlog": 1} and cancel(after, far) is False
    for one, its in ((rig, consumer), (after, after.consumer("t", subType=kind))):
        one.run(one.flow(its, 100))
        assert given(one, one.run(after_ms=10_000), its) == [b"other"]
        late, single = one.consumer("t", "late", subType=kind), one.consumer("t", "single")
        assert given(one, one.run(one.flow(late, 9)), late) == [b"other"]
        assert given(one, one.run(one.flow(single, 9)), single) == [b"other"]
        one.asked("reset", "t", subscription="late", position=soon, behind=False)
        again = one.consumer("t", "late", subType=kind)
        assert given(one, one.run(one.flow(again, 9)), again) == [b"other"]
        one.run(one.acks(again, other))
        assert given(one, one.run(after_ms=FAR_MS), again) == []
        assert account(one, "late") == {"published": 3, "acknowledged": 1, "skipped": 2}
    after.close()


def test_no_reader_is_told_of_more_that_was_cancelled(rig):
    """Clients read until they have the last message; a cancelled one never comes."""
    producer, consumer = rig.producer("t"), rig.consumer("t")
    stays, *gone = rig.run(rig.sends(at(producer, b"stays"), *(at(producer, b"gone", FAR_MS) for _ in "ab"))).positions
    assert last_message_id(rig, consumer) == (gone[-1], -1)
    assert cancel(rig, gone[1]) is cancel(rig, gone[0]) is True
    assert last_message_id(rig, consumer) == (stays, -1)
    assert cancel(rig, stays) is False
    [later] = rig.run(rig.sends(at(producer, b"later"))).positions
    assert last_message_id(rig, consumer) == (later, -1)


def test_a_batch_is_cancelled_as_a_whole(rig):
    consumer = rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.flow(consumer, 9))
    [batch] = rig.run(rig.sends(at(rig.producer("t"), b"many", 1_000, batch=5))).positions
    assert cancel(rig, batch) is True
    assert account(rig) == {"published": 5, "skipped": 5}
    assert given(rig, rig.run(after_ms=1_000), consumer) == []


def test_only_what_waits_is_cancelled_or_gets_another_time(rig):
    """A message that is due, delivered or not, or that never was delayed, can be neither cancelled nor rescheduled."""
    producer = rig.producer("t")
    now, past, due, waits = rig.run(
        rig.sends(
            at(producer, b"now"), at(producer, b"past", -1), at(producer, b"due", 1_000), at(producer, b"waits", 5_000)
        )
    ).positions
    rig.run(after_ms=2_000)
    for position in (now, past, due):
        assert cancel(rig, position) is reschedule(rig, position, 9_000) is False
    for position in ((waits[0], waits[1] + 1), (waits[0] + 1, 0), (0, 0), (10 ** 18 - 1, 10 ** 18 - 1)):
        assert cancel(rig, position) is reschedule(rig, position, 9_000) is None
    consumer = rig.consumer("t", subType=SubType.Shared)
    assert given(rig, rig.run(rig.flow(consumer, 9)), consumer) == [b"now", b"past", b"due"]
    assert given(rig, rig.run(after_ms=3_000), consumer) == [b"waits"]


# -- another time

@pytest.mark.slow
@SPREAD
@pytest.mark.parametrize("before_ms, after_ms",
                         [(5_000, 2_000), (2_000, 5_000), (FAR_MS, 3_000), (3_000, FAR_MS), (4_000, 4_001)])
def test_another_time_holds_and_the_old_one_does_not(rig, tmp_path, kind, before_ms, after_ms):
    """A message is moved to an earlier or later time, in the same window or far away.  It is delivered once, also after
    a crash.
    """
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 9))
    [position, _] = rig.run(rig.sends(at(producer, b"moved", before_ms), at(producer, b"now"))).positions
    assert reschedule(rig, position, after_ms) is True
    told = waiting(rig)
    assert told["next_due_ms"] == START_MS + after_ms
    assert [row["deliver_at"] for row in told["rows"]] == [START_MS + after_ms]
    assert sum(row["entries"] for row in waiting(rig, "hour", first_ms=START_MS + after_ms)["rows"]) == 1
    after = rig.crashed(tmp_path / "next")
    for one, its in ((rig, consumer), (after, after.consumer("t", subType=kind))):
        one.run(one.flow(its, 9))
        assert b"moved" not in given(one, one.run(after_ms=after_ms - 1), its)
        assert given(one, one.run(after_ms=1), its) == [b"moved"]
        one.run(one.acks(its, position))
        assert given(one, one.run(after_ms=before_ms), its) == [] and waiting(one)["waiting"] == 0
    after.close()


@SPREAD
def test_a_time_that_is_past_means_at_once(rig, kind):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 9))
    first, second = rig.run(rig.sends(at(producer, b"a", FAR_MS), at(producer, b"b", 5_000))).positions
    for position, payload in ((second, b"b"), (first, b"a")):
        answers = rig.run(rig.question("reschedule", "t", position=position, deliver_at_ms=0))
        assert answers.answered == [{"answer": True}]
        assert given(rig, answers, consumer) + given(rig, rig.run(after_ms=TICK_MS), consumer) == [payload]
    assert reschedule(rig, first, FAR_MS) is False


def test_a_time_may_change_again_and_a_changed_one_be_cancelled(rigs, rig):
    """A message may be rescheduled several times and then cancelled: the last change counts, after crashes and
    restarts too.
    """
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    moved, gone = rig.run(rig.sends(at(producer, b"moved", 1_000), at(producer, b"gone", 1_000))).positions
    for ms in (FAR_MS, 10_000, 20_000, 3_000):
        assert reschedule(rig, moved, ms) is True
        assert reschedule(rig, gone, ms + 1) is True
        rig = rigs.crash(rig)
    assert cancel(rig, gone) is True
    rig = rigs.restart(rig)
    assert [row["deliver_at"] for row in waiting(rig)["rows"]] == [START_MS + 3_000]
    consumer = rig.consumer("t", subType=SubType.Shared)
    assert given(rig, rig.run(rig.flow(consumer, 9)), consumer) == []
    assert given(rig, rig.run(after_ms=3_000), consumer) == [b"moved"]
    rig.run(rig.acks(consumer, moved))
    assert given(rig, rig.run(after_ms=FAR_MS), consumer) == []


def test_time_to_live_counts_from_the_new_time(rigs):
    rig = rigs(message_ttl_s=3_600)
    consumer = rig.consumer("t", subType=SubType.Shared)
    later, sooner = rig.run(rig.sends(*[at(producer, *one) for producer in [rig.producer("t")] for one in (
        (b"later", HOUR_MS), (b"sooner", 9 * HOUR_MS))])).positions
    assert reschedule(rig, later, 10 * HOUR_MS) is reschedule(rig, sooner, 1_000) is True
    rig.run(after_ms=HOUR_MS)
    assert account(rig) == {"published": 2, "backlog": 2}
    rig.run(after_ms=2_000)
    assert account(rig) == {"published": 2, "expired": 1, "backlog": 1}
    rig.run(after_ms=9 * HOUR_MS - 2_000)
    rig.run(after_ms=HOUR_MS - 1_000)
    assert given(rig, rig.run(rig.flow(consumer, 9)), consumer) == [b"later"]
    rig.run(after_ms=2_000)
    assert account(rig) == {"published": 2, "expired": 2}


def test_who_is_told_why_is_told_the_new_time(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.flow(consumer, 9))
    first, second = rig.run(rig.sends(at(producer, b"a", 1_000), at(producer, b"b", 2_000))).positions
    for change, until_ms, count in (
        (lambda: reschedule(rig, first, 9_000), 2_000, 2),
        (lambda: reschedule(rig, second, 500), 500, 2),
        (lambda: cancel(rig, second), 9_000, 1),
    ):
        assert change() is True
        assert rig.asked("why", "t", subscription="sub")["causes"] == [
            {"cause": "delayed messages", "until_ms": START_MS + until_ms, "messages": count}]


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover], ids=SubType.Name)
def test_a_single_consumer_has_what_is_given_another_time(rig, kind):
    """Rescheduling does not affect Exclusive and Failover subscriptions, which ignore delivery times."""
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    [position] = rig.run(rig.sends(at(producer, b"a", 9_000))).positions
    assert reschedule(rig, position, FAR_MS) is True
    assert given(rig, rig.run(rig.flow(consumer, 9)), consumer) == [b"a"]
