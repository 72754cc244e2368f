"""Schedules of one owner: each planned time is published exactly once, whatever is killed, moved or refused."""
import json
from collections import Counter

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursors.producer_sequences import identity_of_schedule
from geminga.storage.offline import verify
from geminga.storage.offline.dump import dump
from geminga.storage.recurring import timetable
from geminga.storage.recurring.recurring import RETRY_MAX_MS, RETRY_MS, TOPIC_MAX
from geminga.storage.runtime.units import instant

from .rig import START_MS, Rig
from .test_delay_policies import fixed
from .test_layout_change_steps import KINDS, begin, carry_out, layout_of
from .test_layout_change_steps import TOPIC as SCALABLE
from .test_replicated import replicator

TOPIC = "persistent://public/default/a"
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
FIRST = START_MS - START_MS % MINUTE + MINUTE      # the first whole minute


def schedule(rig, name="tick", topic=TOPIC, *, part=None, payload=b"x", key=None, is_paused=False, **timing):
    """Give a topic a schedule, as the admin process does."""
    catalogue, topic = rig.owner.catalogue, names.parse(topic)
    metadata = api.MessageMetadata(producer_name="", sequence_id=0, publish_time=0)
    if key is not None:
        metadata.partition_key = key
    table = timetable.read(timing or {"every": MINUTE})
    catalogue.schedules.set(
        topic.base, name, partition=part or topic, is_paused=is_paused, timing=json.dumps(table.as_json()),
        message="{}", metadata=metadata.SerializePartialToString(), payload=payload, now_ms=rig.now_ms)
    catalogue.commit()
    rig.run(rig.tell("take_over_schedules"))
    return catalogue.schedules.find(topic.base, name).id


def planned(rig, topic=TOPIC):
    """List the planned times of the messages that a topic holds."""
    found = []
    for ledger in rig.partition(topic).ledgers:
        whole = (rig.partition(topic).folder / f"{ledger.ledger_id}.ledger").read_bytes()
        found += [metadata_of(whole[at:]) for at in ledger.column("offset")[:ledger.entries].tolist()]
    return [{one.key: one.value for one in metadata.properties}.get(names.SCHEDULED_FOR) for metadata in found]


def metadata_of(entry):
    size = int.from_bytes(entry[6:10], "big")
    return api.MessageMetadata.FromString(entry[10:10 + size])


def times(*planned_ms):
    return [instant(time_ms) for time_ms in planned_ms]


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "data")
    rig.owner.topics.find_or_create(names.parse(TOPIC))
    rig.run()
    yield rig
    rig.close()


def pass_time(rig, milliseconds, step=MINUTE):
    """Let time pass, and run the passes that are due, as an owner's loop does."""
    end = rig.now_ms + milliseconds
    answers = []
    while rig.now_ms < end:
        rig.now_ms = min(end, max(rig.now_ms, rig.owner.passes.due_ms()), rig.now_ms + step)
        answers.append(rig.run())
        while rig.owner.recurring.due_ms <= rig.now_ms:
            answers.append(rig.run())
    return answers


def test_each_planned_time_is_published_at_its_millisecond(rig):
    schedule(rig)
    assert rig.owner.passes.due_ms() <= FIRST
    pass_time(rig, 3 * MINUTE)
    assert planned(rig) == times(FIRST, FIRST + MINUTE, FIRST + 2 * MINUTE)
    stored = rig.partition(TOPIC).open_ledger.column("broker_time")[:3].tolist()
    assert stored == [FIRST, FIRST + MINUTE, FIRST + 2 * MINUTE]
    counts = rig.counters.read()
    assert (counts["schedules"], counts["scheduled_published"], counts["scheduled_missed"]) == (1, 3, 0)


def test_a_message_says_who_published_it_and_for_when_and_consumers_get_it_at_once(rig):
    schedule(rig, "report", payload=b"make it", key="k")
    consumer = rig.consumer(TOPIC)
    rig.run(rig.flow(consumer, 10))
    answers = pass_time(rig, MINUTE)
    [(_, payload)] = [each for one in answers for each in rig.delivered(one, consumer)]
    assert payload == b"make it"
    ledger = rig.partition(TOPIC).open_ledger
    whole = (rig.partition(TOPIC).folder / f"{ledger.ledger_id}.ledger").read_bytes()
    metadata = metadata_of(whole[ledger.column("offset").item(0):])
    assert {one.key: one.value for one in metadata.properties} == {
        "geminga.schedule": "report", "geminga.scheduled-for": instant(FIRST)}
    assert (metadata.partition_key, metadata.sequence_id, metadata.publish_time) == ("k", FIRST, FIRST)
    assert metadata.producer_name == "geminga.schedule.report"


@pytest.mark.parametrize("deduplicates", [False, True])
def test_no_time_is_published_twice_over_kills_and_stops(tmp_path, deduplicates):
    """A kill right behind each pass, then a clean stop: the next owner goes on behind the last time."""
    rig = Rig(tmp_path / "data", deduplication=deduplicates)
    rig.owner.topics.find_or_create(names.parse(TOPIC))
    schedule(rig, every=10 * SECOND, missed="all", at_most=1_000)
    expected = 0
    for number in range(6):
        pass_time(rig, 25 * SECOND, step=SECOND)
        expected = rig.now_ms
        rig = rig.crashed(tmp_path / str(number))
        rig.run()
    rig.close()
    rig = Rig(rig.data_dir, now_ms=rig.now_ms, **rig.settings)
    while rig.owner.recurring.due_ms <= rig.now_ms:
        rig.run()
    first = START_MS // 10_000 * 10_000 + 10_000
    rig.owner.topics.find(names.parse(TOPIC))
    assert planned(rig) == times(*range(first, expected + 1, 10_000))
    rig.close()
    assert list(verify.walk(rig.data_dir)) == []


def test_a_schedule_is_known_though_the_topic_forgets_its_producers(rig, tmp_path):
    """Neither a thousand replicators nor a policy of deduplication that ends make it publish anew."""
    schedule(rig)
    pass_time(rig, MINUTE)
    sequences = rig.partition(TOPIC).sequences
    for number in range(1_100):
        sequences.learn(b"%012drepl" % number, sequences.of(b""), rig.now_ms)
    assert sequences.of(identity_of_schedule(1)).last == FIRST
    sequences.clear()
    assert sequences.of(identity_of_schedule(1)).last == FIRST


def test_schedules_that_are_gone_are_forgotten_when_there_are_many(rig):
    for number in range(2 * TOPIC_MAX + 1):
        sequences = rig.partition(TOPIC).sequences
        sequences.learn(identity_of_schedule(1_000 + number), sequences.of(b""), rig.now_ms)
    number = schedule(rig)
    pass_time(rig, 2 * MINUTE)
    assert list(rig.partition(TOPIC).sequences.by_replicator) == [identity_of_schedule(number)]


@pytest.mark.parametrize(("missed", "published", "dropped"), [
    ({}, [60], 59), ({"missed": "last"}, [60], 59), ({"missed": "none"}, [60], 59),
    ({"missed": "all", "at_most": 3}, [58, 59, 60], 57), ({"missed": "all"}, range(1, 61), 0)])
def test_what_was_missed_while_the_broker_was_down(rig, tmp_path, missed, published, dropped):
    schedule(rig, every=MINUTE, **missed)
    begin = FIRST - MINUTE
    rig.now_ms = begin + HOUR + 1
    later = rig.crashed(tmp_path / "later")
    later.run()
    while later.owner.recurring.due_ms <= later.now_ms:
        later.run()
    assert planned(later) == times(*(begin + number * MINUTE for number in published))
    assert later.counters.read()["scheduled_missed"] == dropped
    later.close()


def test_with_none_a_time_is_dropped_that_is_more_than_a_minute_late(rig, tmp_path):
    schedule(rig, every=HOUR, missed="none")
    hour = START_MS - START_MS % HOUR + HOUR
    rig.now_ms = hour + MINUTE + 1
    rig.run()
    assert planned(rig) == [] and rig.counters.read()["scheduled_missed"] == 1
    rig.now_ms = hour + HOUR + MINUTE
    rig.run()
    assert planned(rig) == times(hour + HOUR)


def test_a_clock_that_is_set_back_repeats_nothing(rig):
    schedule(rig)
    pass_time(rig, 3 * MINUTE)
    before = planned(rig)
    rig.now_ms -= 2 * MINUTE
    pass_time(rig, 2 * MINUTE)
    assert planned(rig) == before
    pass_time(rig, MINUTE)
    assert planned(rig) == [*before, instant(FIRST + 3 * MINUTE)]


def test_a_clock_that_is_set_forward_counts_as_missed_times(rig):
    schedule(rig)
    pass_time(rig, MINUTE)
    rig.run(after_ms=HOUR)
    assert planned(rig) == times(FIRST, FIRST + HOUR)
    assert rig.counters.read()["scheduled_missed"] == 59


def test_a_paused_schedule_publishes_nothing_and_owes_nothing_when_it_goes_on(rig):
    number = schedule(rig)
    catalogue = rig.owner.catalogue
    catalogue.schedules.pause(number, is_paused=True, now_ms=rig.now_ms)
    catalogue.commit()
    pass_time(rig, 5 * MINUTE)      # the tick takes it over
    assert planned(rig) == []
    catalogue.schedules.pause(number, is_paused=False, now_ms=rig.now_ms)
    catalogue.commit()
    rig.run(rig.tell("take_over_schedules"))
    pass_time(rig, MINUTE)
    assert planned(rig) == times(FIRST + 5 * MINUTE)


def test_a_schedule_that_is_deleted_and_made_again_is_another_one(rig):
    number = schedule(rig)
    pass_time(rig, MINUTE)
    rig.owner.catalogue.schedules.delete(number)
    rig.owner.catalogue.commit()
    pass_time(rig, 5 * MINUTE)
    assert len(planned(rig)) == 1
    assert schedule(rig) == number + 1
    pass_time(rig, MINUTE)
    assert planned(rig) == times(FIRST, FIRST + 6 * MINUTE)


def test_a_change_between_the_look_and_the_message_publishes_nothing_old(rig):
    """The owner reads the message when it publishes: an older version of the schedule is not published."""
    number = schedule(rig)
    rig.owner.catalogue.schedules.pause(number, is_paused=True, now_ms=rig.now_ms)
    rig.owner.catalogue.commit()
    rig.owner.passes.next_tick_ms = FIRST + MINUTE      # no tick tells of it
    rig.now_ms = FIRST
    rig.run()
    assert planned(rig) == []


def test_run_now_is_beside_the_planned_times(rig):
    number = schedule(rig, is_paused=True)
    ran = rig.asked("run_schedule", TOPIC, id=number)
    assert planned(rig) == times(rig.now_ms) and ran["scheduled_ms"] == rig.now_ms
    assert (ran["ledger_id"], ran["entry_id"]) == rig.partition(TOPIC).last_confirmed
    rig.asked("run_schedule", TOPIC, id=number)      # in the same millisecond
    assert len(planned(rig)) == 2
    [refused] = rig.run(rig.question("run_schedule", TOPIC, id=99)).answered
    assert refused["text"] == "The schedule was deleted"


def figures(rig, number):
    [found] = rig.asked("schedules", TOPIC, ids=[number, 1_000])
    return found


def test_figures_say_what_was_published_and_what_comes(rig, tmp_path):
    number = schedule(rig)
    assert figures(rig, number) == {
        "id": number, "last_ms": None, "next_ms": FIRST, "waiting": "", "published": 0, "missed": 0}
    pass_time(rig, MINUTE)
    assert figures(rig, number) | {} == {
        "id": number, "last_ms": FIRST, "next_ms": FIRST + MINUTE, "waiting": "", "published": 1, "missed": 0}
    later = rig.crashed(tmp_path / "later")
    assert figures(later, number)["last_ms"] == FIRST
    later.close()


def terminate(rig):
    rig.asked("terminate", TOPIC)


def rate(rig):
    rig.owner.catalogue.policies.set(TOPIC, "publishRate", {"publishThrottlingRateInMsg": 1,
                                                            "publishThrottlingRateInByte": -1})
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope=TOPIC))
    rig.run(rig.sends(*[(rig.producer(TOPIC), b"other")] * 60))


def exclusive(rig):
    rig.producer(TOPIC, producer_access_mode=api.Exclusive)


def encrypted(rig):
    rig.owner.catalogue.policies.set(TOPIC, "encryptionRequired", True)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope=TOPIC))


@pytest.mark.parametrize(("refuse", "why"), [
    (terminate, "The topic is terminated, or has moved to another cluster"), (rate, "A publish rate holds back"),
    (exclusive, "has exclusive access"), (encrypted, "Messages must be encrypted")])
def test_a_message_that_the_topic_does_not_take_waits_and_is_told(rig, capfd, refuse, why):
    number = schedule(rig)
    refuse(rig)
    rig.now_ms = FIRST
    rig.run()
    found = figures(rig, number)
    assert why in found["waiting"] and found["published"] == 0
    assert rig.counters.read()["schedules_waiting"] == 1
    assert "schedule tick of persistent://public/default/a cannot publish, and tries again" in capfd.readouterr().err
    assert rig.owner.recurring.due_ms == FIRST + RETRY_MS


def test_what_waited_is_published_when_the_topic_takes_it(rig, monkeypatch):
    """A disk that is full for minutes: the last time is published, the others are counted as missed."""
    number = schedule(rig)
    is_full = [True]
    barrier = rig.owner.gate.barrier

    def closed(partition):
        from geminga.storage.open_topics.barrier import Barrier
        return Barrier(api.PersistenceError, "The disk is full", is_waited_for=True) if is_full[0] \
            else barrier(partition)
    monkeypatch.setattr(rig.owner.gate, "barrier", closed)
    pass_time(rig, 5 * MINUTE, step=SECOND)
    assert figures(rig, number)["waiting"] == "The disk is full" and planned(rig) == []
    assert rig.owner.recurring.due_ms <= rig.now_ms + RETRY_MAX_MS
    is_full[0] = False
    pass_time(rig, RETRY_MAX_MS, step=SECOND)
    assert planned(rig) == times(FIRST + 4 * MINUTE)
    found = figures(rig, number)
    assert (found["waiting"], found["missed"]) == ("", 4)
    assert rig.counters.read()["schedules_waiting"] == 0


def test_messages_of_a_topic_with_a_fixed_delay_are_delayed_like_all_others(rig):
    fixed(rig, 5 * MINUTE, TOPIC)
    schedule(rig)
    pass_time(rig, MINUTE)
    assert rig.partition(TOPIC).open_ledger.column("deliver_at").item(0) == FIRST + 5 * MINUTE


def test_other_producers_and_replicators_are_not_touched(rig):
    """Their numbers are their own; a schedule's numbers are not theirs."""
    producer, far = rig.producer(TOPIC), replicator(rig, TOPIC, connection=9)
    schedule(rig)
    pass_time(rig, MINUTE)
    assert len(rig.publish(producer, b"one", b"two")) == 2
    assert rig.partition(TOPIC).replicators and far
    assert len(planned(rig)) == 3


def test_a_nonpersistent_topic_gets_what_falls_due_while_it_is_used(tmp_path):
    rig = Rig(tmp_path / "data")
    topic = "non-persistent://public/default/live"
    consumer = rig.consumer(topic)
    schedule(rig, topic=topic)
    rig.run(rig.flow(consumer, 10))
    answers = pass_time(rig, MINUTE)
    assert [payload for one in answers for _, _, payload in one.passed] == [b"x"]
    assert not any(one.receipts for one in answers)
    rig.close_consumer(consumer)
    pass_time(rig, 3 * MINUTE)
    again = rig.consumer(topic)
    answers = [rig.run(rig.flow(again, 10)), *pass_time(rig, MINUTE)]
    assert len([payload for one in answers for _, _, payload in one.passed]) == 1
    rig.close()


def test_many_schedules_share_a_pass_and_none_is_left_out(rig):
    for number in range(23):
        schedule(rig, f"s{number}")
    pass_time(rig, MINUTE)
    assert planned(rig) == [instant(FIRST)] * 23


def test_an_unloaded_topic_is_opened_when_it_is_time(rig):
    schedule(rig)
    pass_time(rig, MINUTE)
    rig.asked("unload", TOPIC)
    assert names.parse(TOPIC) not in rig.owner.topics.by_name
    pass_time(rig, MINUTE)
    assert planned(rig) == times(FIRST, FIRST + MINUTE)


def test_a_topic_with_a_schedule_is_not_deleted_for_inactivity(tmp_path):
    rig = Rig(tmp_path / "data", delete_inactive_topics=True, inactive_topic_s=60)
    rig.owner.topics.find_or_create(names.parse(TOPIC))
    number = schedule(rig, every=24 * HOUR)
    pass_time(rig, 10 * MINUTE)
    assert rig.owner.catalogue.topics.exists(names.parse(TOPIC))
    rig.owner.catalogue.schedules.delete(number)
    rig.owner.catalogue.commit()
    pass_time(rig, 10 * MINUTE)
    assert not rig.owner.catalogue.topics.exists(names.parse(TOPIC))
    rig.close()


def test_a_deleted_topic_takes_its_schedules_along(rig):
    schedule(rig)
    rig.asked("delete", TOPIC, force=False)
    assert rig.owner.catalogue.schedules.all() == []
    pass_time(rig, 3 * MINUTE)
    assert not rig.owner.catalogue.topics.exists(names.parse(TOPIC))


def test_a_deleted_topic_whose_schedule_is_due_before_a_tick_tells_of_it_is_no_warning(rig, capfd):
    schedule(rig)
    rig.asked("delete", TOPIC, force=False)
    rig.owner.passes.next_tick_ms = FIRST + MINUTE
    rig.now_ms = FIRST
    rig.run()
    assert rig.owner.recurring.due_ms == FIRST + RETRY_MS
    assert "cannot publish" not in capfd.readouterr().err
    assert not rig.counters.read()["schedules_waiting"]


def test_a_dump_of_the_state_names_schedules(rig):
    number = schedule(rig)
    pass_time(rig, MINUTE)
    folder = rig.partition(TOPIC).folder
    rig.close()
    lines = list(dump(folder / "state"))
    assert {"schedule": number, "last_planned": instant(FIRST)} in [
        {name: line[name] for name in ("schedule", "last_planned") if name in line} for line in lines]


def test_payloads_are_whole(rig):
    schedule(rig, payload=bytes(range(256)) * 100)
    pass_time(rig, MINUTE)
    [(_, payload)] = rig.everything(TOPIC)
    assert payload == bytes(range(256)) * 100


# -- segments

def make_scalable(rig):
    """Begin to make the topic of three partitions scalable."""
    assert rig.owner.catalogue.scalable_topics.begin_migration(SCALABLE, 3)
    rig.owner.catalogue.commit()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "migrate"])
def test_each_time_is_published_once_to_the_segment_of_its_key_while_segments_change(tmp_path, kind):
    """The owner is killed behind any step, while time passes."""
    step, has_ended = 0, False
    while not has_ended:
        rig, is_migration = Rig(tmp_path / f"{step}"), kind == "migrate"
        catalogue = rig.owner.catalogue
        if is_migration:
            catalogue.topics.create(SCALABLE.regular, 3)
        else:
            catalogue.scalable_topics.create(SCALABLE, 2)
        for number, name in enumerate(NAMES):
            part = (SCALABLE.regular.partition_name(number % 3) if is_migration
                    else names.parse(layout_of(rig).takes(name).topic))
            rig.owner.topics.find_or_create(part)
            schedule(rig, name, str(SCALABLE.regular if is_migration else SCALABLE), part=part, every=10 * SECOND,
                     missed="all")
        pass_time(rig, 25 * SECOND, step=SECOND)
        make_scalable(rig) if is_migration else begin(rig, kind)
        has_ended = carry_out(rig, step)
        pass_time(rig, 12 * SECOND, step=SECOND)
        killed = rig.crashed(tmp_path / f"{step}-killed")
        rig.close()
        pass_time(killed, 7 * SECOND, step=SECOND)
        assert carry_out(killed)
        pass_time(killed, 25 * SECOND, step=SECOND)
        first, layout = START_MS // 10_000 * 10_000 + 10_000, layout_of(killed)
        assert Counter(time for segment in layout.segments if killed.owner.topics.find(names.parse(segment.topic))
                       for time in planned(killed, segment.topic)) \
            == Counter(times(*range(first, killed.now_ms + 1, 10_000)) * len(NAMES))
        assert {one.name: one.partition for one in killed.owner.catalogue.schedules.of(SCALABLE)} == {
            name: layout.takes(name).topic for name in NAMES}
        killed.close()
        step += 1
    assert step > 2


NAMES = "abcde"      # in both halves of the hashes, and in both halves of the first one


def test_a_schedule_of_a_segment_that_is_being_replaced_waits_without_a_warning(tmp_path, capfd):
    rig = Rig(tmp_path)
    rig.owner.catalogue.scalable_topics.create(SCALABLE, 2)
    part = names.parse(layout_of(rig).segments[0].topic)
    rig.owner.topics.find_or_create(part)
    number = schedule(rig, "tick", str(SCALABLE), part=part)
    begin(rig, "merge")
    assert not carry_out(rig, 2)      # the first of two is sealed
    pass_time(rig, MINUTE)
    assert "being changed" in figures(rig, number)["waiting"] and "G570" not in capfd.readouterr().err
    assert carry_out(rig)
    pass_time(rig, MINUTE)
    assert planned(rig, layout_of(rig).active[0].topic) == times(FIRST, FIRST + MINUTE)
    rig.close()
