"""Changes of layouts, killed at every step: nothing is lost, and what was begun is finished."""
import asyncio
import json

import pytest

from geminga.proto import layout_changes, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.admin import typed_json
from geminga.storage.admin.layout_change_steps import steps_of
from geminga.storage.admin.questions import answer_type
from geminga.storage.admin.segment_questions import IsSpent, Seal, TakeSequences
from geminga.storage.cursors.producer_sequences import identity
from geminga.storage.jobs.compacting import nightly
from geminga.storage.scalable.auto_scaling import owner_fillers
from geminga.storage.scalable.drained import drained
from geminga.supervisor.admin.resources.retries import Retries
from geminga.supervisor.admin.scalable.layout_changes import LayoutChanges

from .disk import Disk
from .rig import Rig, T
from .test_coordinator import Coordinated, of, publish_in, texts
from .test_deduplication import send

TOPIC = names.parse("topic://public/default/grown")
STEPS_MAX = 40
KINDS = {
    "split": lambda layout: layout_changes.split(TOPIC, layout, 0, 5),
    "merge": lambda layout: layout_changes.merge(TOPIC, layout, (0, 1), 5),
    "rebucket": lambda layout: layout_changes.rebucket(TOPIC, layout, 0, 4, 5),
}


@pytest.fixture
def rig(rigs):
    """A topic of two segments with a message in each, and three subscriptions, of which one has no consumer."""
    return filled(rigs())


def filled(made):
    made.owner.catalogue.scalable_topics.create(TOPIC, 2)
    made.owner.catalogue.commit()
    for number, segment in enumerate(segments(made)):
        for subscription in ("made", "gone"):
            made.asked("subscribe", segment, subscription=subscription, may_create=True)
        made.publish(made.producer(segment), b"%d" % number)
    made.asked("subscribe", segments(made)[0], subscription="of the first")
    return made


def layout_of(rig):
    return rig.owner.catalogue.scalable_topics.layout(TOPIC)


def segments(rig):
    return [segment.topic for segment in layout_of(rig).segments]


def begin(rig, kind):
    assert rig.owner.catalogue.scalable_topics.begin_change(TOPIC, KINDS[kind](layout_of(rig)))
    rig.owner.catalogue.commit()


def fields_of(question):
    """Return the values of a question, as they are sent."""
    fields = json.loads(typed_json.dump(question))
    del fields["topic"]
    return fields


def ask(rig, question):
    fields = fields_of(question)
    said = rig.asked(question.name, str(question.topic), **fields)
    return typed_json.read(answer_type(type(question)), said)


def carry_out(rig, at_most=STEPS_MAX):
    """Carry out so many steps of the change under way; return whether it has ended."""
    steps = steps_of(rig.owner.catalogue, TOPIC)
    try:
        question = next(steps)
        for _ in range(at_most):
            question = steps.send(ask(rig, question))
    except StopIteration:
        return True
    return False


def check(rig, kind, epoch=1):
    """All that was published is there, each subscription is on the children at the beginning, and they work."""
    layout = layout_of(rig)
    assert layout.epoch == epoch and rig.owner.catalogue.scalable_topics.change_of(TOPIC) is None
    children = [segment for segment in layout.segments if segment.number > 1]
    parents = [segment for segment in layout.segments if not segment.is_active]
    assert len(children) == (2 if kind == "split" else 1) and len(parents) == (2 if kind == "merge" else 1)
    for number, segment in enumerate(layout.segments[:2]):
        assert [payload for _, payload in rig.everything(segment.topic)] == [b"%d" % number]
    for parent in parents:
        refused = rig.run(rig.command("producer", topic=parent.topic, producer_id=77, request_id=5)).commands(T.ERROR)
        assert [one.error.error for one in refused] == [api.TopicTerminatedError]
    for child in children:
        assert rig.asked("subscriptions", child.topic) == ["gone", "made", "of the first"]
        rig.publish(rig.producer(child.topic), b"new")
        for subscription in ("gone", "made", "of the first"):
            consumer = rig.consumer(child.topic, subscription)
            assert [payload for _, payload in rig.receive(consumer)] == [b"new"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_made(rig, kind):
    begin(rig, kind)
    assert carry_out(rig)
    check(rig, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_that_is_killed_behind_any_step_is_finished(rig, kind, tmp_path):
    begin(rig, kind)
    count = 0
    while not carry_out(rig.crashed(tmp_path / f"killed-{count}"), count):
        again = rig.crashed(tmp_path / f"after-{count}")
        carry_out(again, count)
        again = again.crashed(tmp_path / f"again-{count}")
        assert carry_out(again)
        check(again, kind)
        count += 1
    assert count > 3


@pytest.mark.slow
@pytest.mark.parametrize("with_sizes", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_that_a_power_cut_interrupts_is_finished(tmp_path, monkeypatch, kind, with_sizes):
    """Behind any step, and again while the change is being finished."""
    count, has_ended = 0, False
    while not has_ended:
        disk = Disk(tmp_path / f"{count}-0", monkeypatch)
        rig = filled(Rig(disk.data_dir))
        begin(rig, kind)
        has_ended = carry_out(rig, count)
        for number in (1, 2):
            rig.settle()
            after = tmp_path / f"{count}-{number}"
            disk.after_power_cut(after, with_sizes=with_sizes)
            disk.data_dir = after
            rig = Rig(after)
            carry_out(rig, 2 - number)
        assert carry_out(rig)
        check(rig, kind)
        rig.close()
        count += 1
    assert count > 3


def test_a_subscription_that_comes_between_two_steps_is_on_the_children(rig):
    """Whoever makes it: the segment is not sealed until they have it."""
    begin(rig, "split")
    assert not carry_out(rig, 4)
    consumer = rig.consumer(segments(rig)[0], "came between")
    assert carry_out(rig)
    for child in layout_of(rig).segments[2:]:
        assert "came between" in rig.asked("subscriptions", child.topic)
    assert consumer.number


def test_the_steps_end_when_the_topic_is_deleted(rig):
    begin(rig, "split")
    steps = steps_of(rig.owner.catalogue, TOPIC)
    question = next(steps)
    rig.owner.catalogue.scalable_topics.begin_deletion(TOPIC)
    rig.owner.catalogue.commit()
    [answer] = rig.run(rig.question(question.name, str(question.topic), subscriptions={})).answered
    assert answer["refused"] == api.TopicNotFound
    assert not [name for name in rig.owner.catalogue.scalable_topics.stored_segments(TOPIC) if name.segment[0] > 1]
    assert carry_out(rig)


@pytest.mark.parametrize(("action", "expected"), [(api.COMMIT, [[b"1"], [b"2"]]), (api.ABORT, [[], []])])
def test_a_transaction_over_a_split_ends_as_a_whole(tmp_path, action, expected):
    """What it has published to the sealed segment keeps that from being drained until its end."""
    rig = Coordinated(tmp_path / "data")
    rig.owner.catalogue.scalable_topics.create(TOPIC, 1)
    rig.owner.catalogue.commit()
    [parent] = segments(rig)
    consumer, producer, bits = rig.consumer(parent, "sub"), rig.producer(parent), rig.new()
    assert rig.add(bits, parent) == [None]
    assert len(publish_in(rig, bits, producer, b"1").receipts) == 1
    begin(rig, "split")
    assert carry_out(rig)
    child = segments(rig)[1]
    assert rig.add(bits, child) == [None]
    assert len(publish_in(rig, bits, rig.producer(child), b"2").receipts) == 1
    assert [texts(rig, each) for each in (parent, child)] == [[], []]
    assert drained(rig.partition(parent)) == {"sub": False} and spent(rig) == []
    answers = rig.run(rig.flow(consumer, 10), rig.command("endTxn", request_id=9, **of(bits), txn_action=action))
    assert [texts(rig, each) for each in (parent, child)] == expected
    for position, _ in rig.delivered(answers, consumer):
        rig.run(rig.acks(consumer, position))
    assert drained(rig.partition(parent)) == {"sub": True}
    rig.close()


# -- sequence ids

def enable_deduplication(rig):
    rig.owner.catalogue.policies.set("public/default", "deduplication", True)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope="public/default"))


def stores(rig, producer, *sequence_ids):
    """Publish a message for each id, and return whether each was stored."""
    return [not is_duplicate for is_duplicate in send(rig, producer, *sequence_ids)]


def named(rig, number, name="p"):
    """Return a producer of a segment, as clients of Pulsar 5 name it, and the sequence id that it was told."""
    handle = rig.producer(segments(rig)[number], producer_name=f"{name}-seg-{number}")
    return handle, rig.partition(segments(rig)[number]).sequences.of(identity(f"{name}-seg-")).last


@pytest.fixture
def deduplicating(rig):
    """The topic's two segments have had messages 0 to 9 of a producer, the even ones in the first."""
    enable_deduplication(rig)
    for number in (0, 1):
        stores(rig, named(rig, number)[0], *range(number, 10, 2))
    return rig


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sequence_ids_of_parents_hold_on_children_whatever_step_is_killed(deduplicating, kind, tmp_path):
    """Resent messages are not stored again, and those that are new are, late ones too."""
    begin(deduplicating, kind)
    parents = {"split": [0], "merge": [0, 1], "rebucket": [0]}[kind]
    stored = sorted(number for parent in parents for number in range(parent, 10, 2))
    count = 0
    while True:
        rig = deduplicating.crashed(tmp_path / f"killed-{count}")
        is_over = carry_out(rig, count)
        rig = rig if is_over else rig.crashed(tmp_path / f"again-{count}")
        assert carry_out(rig)
        for child in layout_of(rig).segments[2:]:
            producer, last = named(rig, child.number)
            assert last == stored[-1]
            assert not any(stores(rig, producer, *stored)), (kind, count)
            late = [number for number in range(1, stored[-1]) if number not in stored]
            assert all(stores(rig, producer, *late, 10, 11))
            assert not any(stores(rig, producer, *late, 10, 11))
        if is_over:
            break
        count += 1
    assert count > 3


def test_producers_of_children_wait_until_these_have_the_sequence_ids(deduplicating):
    rig = deduplicating
    begin(rig, "split")
    steps = steps_of(rig.owner.catalogue, TOPIC)
    question = next(steps)
    while not isinstance(question, TakeSequences):
        question = steps.send(ask(rig, question))
    child = segments(rig)[2]
    assert layout_of(rig).epoch == 1      # clients know the children
    assert rig.run(rig.command("producer", topic=child, producer_id=50, request_id=50,
                               producer_name="p-seg-2")).commands() == []
    other = rig.command("producer", topic=segments(rig)[1], producer_id=51, request_id=51, producer_name="q-seg-1")
    assert [one.type for one in rig.run(other).commands()] == [T.PRODUCER_SUCCESS]
    answers = rig.run(rig.question(question.name, child, **fields_of(question)))
    assert [one.producer_success.last_sequence_id for one in answers.commands(T.PRODUCER_SUCCESS)] == [8]
    # The other child's process ends before it is given anything; the change is ended without it.
    rig.run(rig.command("producer", topic=segments(rig)[3], producer_id=52, request_id=52, producer_name="p-seg-3"))
    rig.owner.catalogue.scalable_topics.end_change(TOPIC)
    rig.owner.catalogue.commit()
    assert [one.producer_success.request_id for one in rig.run(after_ms=1_000).commands(T.PRODUCER_SUCCESS)] == [52]


def test_a_change_of_a_topic_without_sequence_ids_ends_with_its_seal(rig):
    begin(rig, "merge")
    asked = []
    steps = steps_of(rig.owner.catalogue, TOPIC)
    question = next(steps)
    with pytest.raises(StopIteration):
        while True:
            asked.append(type(question))
            question = steps.send(ask(rig, question))
    assert asked[-1] is Seal and TakeSequences not in asked


def test_unfinished_chunks_and_open_transactions_are_not_handed_over(tmp_path):
    """What was sent in part, or may yet be undone, is stored when it comes again."""
    rig = Coordinated(tmp_path / "data")
    rig.owner.catalogue.scalable_topics.create(TOPIC, 1)
    enable_deduplication(rig)
    [parent] = segments(rig)
    producer, bits = named(rig, 0)[0], rig.new()
    assert stores(rig, producer, 0, 1) == [True, True]
    assert rig.add(bits, parent) == [None]
    publish_in(rig, bits, producer, b"2")
    taken = rig.partition(parent).sequences.of(identity("p-seg-")).last
    assert taken > 1
    begin(rig, "split")
    assert carry_out(rig)
    child, last = named(rig, 1)
    assert last == 1 and stores(rig, child, 1, taken) == [False, True]
    rig.close()


# -- segments that nobody needs

def spent(rig):
    return [segment.number for segment in layout_of(rig).segments if ask(rig, IsSpent(names.parse(segment.topic)))]


def test_a_segment_is_spent_when_all_have_acknowledged_it(rig):
    begin(rig, "merge")
    assert carry_out(rig) and spent(rig) == []
    for segment in segments(rig)[:2]:
        for subscription in rig.asked("subscriptions", segment)[1:]:
            rig.asked("clear", segment, subscription=subscription)
    assert spent(rig) == []
    rig.asked("clear", segments(rig)[1], subscription="gone")
    assert spent(rig) == [1]
    rig.asked("clear", segments(rig)[0])
    assert spent(rig) == [0, 1]


def test_a_sealed_segment_is_not_spent_while_a_cleared_backlog_of_it_can_be_taken_back(rigs):
    rig = filled(rigs(deleted_retention_s=600))
    begin(rig, "split")
    assert carry_out(rig)
    sealed, cleared_ms = segments(rig)[0], rig.owner.decisions.now_ms
    for subscription in ("gone", "made", "of the first"):
        rig.asked("clear", sealed, subscription=subscription, asked_ms=cleared_ms)
    kept = {one.subscription: one for one in rig.owner.catalogue.kept_topics.all()}
    assert spent(rig) == [] and {one.topic for one in kept.values()} == {str(TOPIC)}
    rig.run(after_ms=599_000)
    back = kept.pop("made")
    assert rig.asked("take_backlog_back", sealed, subscription="made", number=back.id) == 1
    assert drained(rig.partition(sealed)) == {"made": False, "gone": True, "of the first": True}
    rig.run(after_ms=1_001)
    rig.run(after_ms=1_001)
    assert rig.owner.catalogue.kept_topics.all() == [] and spent(rig) == []
    consumer = rig.consumer(sealed, "made")
    [(position, _)] = rig.receive(consumer)
    rig.run(rig.acks(consumer, position))
    assert spent(rig) == [0]


def test_a_segment_is_not_spent_while_a_reader_has_not_read_it_or_retention_keeps_it(rig):
    begin(rig, "split")
    assert carry_out(rig)
    first = segments(rig)[0]
    reader = rig.consumer(first, "reader", durable=False, start_message_id=api.MessageIdData(
        ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1))
    for subscription in ("gone", "made", "of the first"):
        rig.asked("clear", first, subscription=subscription)
    assert spent(rig) == []
    rig.close_consumer(reader)
    assert spent(rig) == [0]
    rig.owner.catalogue.policies.set("public/default", "retention", {
        "retentionTimeInMinutes": 10, "retentionSizeInMB": -1})
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope="public/default"))
    assert spent(rig) == []
    rig.run(after_ms=600_001)      # an empty ledger is begun
    assert spent(rig) == [0]
    section, _ = rig.subscribe(first, "made")
    assert T.REACHED_END_OF_TOPIC in [command.type for command in rig.run(section).commands()]


def test_a_segment_is_not_spent_while_its_compacted_view_has_a_message(rig):
    """Its keys would be lost: compacted readers get what no subscription needs any more."""
    producer = rig.producer(segments(rig)[0])
    rig.run(rig.sends((producer, b"a", {"partition_key": "k"})))
    rig.owner.catalogue.policies.set("public/default", "compactionThreshold", 1)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope="public/default"))
    begin(rig, "rebucket")
    assert carry_out(rig)
    first, child = segments(rig)[0], segments(rig)[2]
    for subscription in ("gone", "made", "of the first"):
        rig.asked("clear", first, subscription=subscription)
    assert spent(rig) == []

    def compact(*names_of):
        taken = nightly.Taken()
        for name in names_of:
            later = (rig.partition(child).partition_id,) if name == first else ()
            report = nightly.compact(rig.data_dir, nightly.Target(
                rig.partition(name).partition_id, name, later=later), lambda _, topic, number: rig.run(
                    rig.question("adopt-view", topic, view=number)).answered[0].get("text"), taken=taken)
            assert report.outcome == nightly.COMPACTED

    compact(first)
    assert spent(rig) == []
    rig.run(rig.sends((rig.producer(child), b"b", {"partition_key": "k"})))
    compact(first, child)
    assert spent(rig) == [0]


def test_a_segment_without_messages_is_spent_although_its_topic_is_compacted(rigs):
    rig = rigs()
    rig.owner.catalogue.scalable_topics.create(TOPIC, 2)
    rig.owner.catalogue.policies.set("public/default", "compactionThreshold", 1)
    rig.owner.catalogue.commit()
    rig.producer(segments(rig)[0])
    begin(rig, "rebucket")
    assert carry_out(rig) and 0 in spent(rig)


def test_an_owner_tells_what_segments_carry_and_the_busiest_other_topic(rig):
    """An owner that an ordinary topic keeps busy gets no time by a split."""
    segment, *others = names_of = [segments(rig)[0], "persistent://public/default/less",
                                       "persistent://public/default/more"]
    for number, name in enumerate(names_of):
        rig.producer(name)
        rig.partition(name).rates = (number + 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    loads, without = ({name: rates[0] for name, rates in answer["answer"]["rates"].items()}
                      for with_rates in (True, False)
                      for answer in rig.run(rig.tell("segment_loads", with_rates=with_rates)).answered)
    assert loads == {segment: 1.0, others[1]: 3.0} and without == {}
    assert owner_fillers([loads], {0: 1.0, 1: 0.0}) == {others[1]}


def test_a_segment_that_no_subscription_was_there_for_is_kept(rig):
    begin(rig, "rebucket")
    assert carry_out(rig)
    for subscription in rig.asked("subscriptions", segments(rig)[0]):
        rig.asked("unsubscribe", segments(rig)[0], subscription=subscription, force=True)
    assert spent(rig) == []


def test_spent_segments_are_pruned_when_they_have_been_sealed_for_a_minute(rig):
    """Roots first: what is behind a segment that is needed stays."""
    begin(rig, "split")
    assert carry_out(rig)
    catalogue, sealed_ms = rig.owner.catalogue, layout_of(rig).segments[0].sealed_ms
    assert catalogue.scalable_topics.begin_change(TOPIC, layout_changes.split(TOPIC, layout_of(rig), 2, sealed_ms))
    assert carry_out(rig)
    changes = LayoutChanges(catalogue, OwnersOf(rig), Retries())

    def pruned(now):
        asyncio.run(changes.prune(now))
        return [segment.number for segment in layout_of(rig).segments if segment.number < 3]

    rig.asked("clear", segments(rig)[2])
    assert pruned(sealed_ms + 60_000) == [0, 1, 2]
    rig.asked("clear", segments(rig)[0])
    assert pruned(sealed_ms + 59_999) == [0, 1, 2]
    assert pruned(sealed_ms + 60_000) == [1]
    assert layout_of(rig).epoch == 3 and not layout_of(rig).numbered(4).parents


class OwnersOf:
    """The admin process's links to one rig."""

    count = 1

    def __init__(self, rig):
        self.rig = rig

    async def ask(self, question):
        return ask(self.rig, question)

    async def ask_owner(self, index, question):
        self.rig.run(self.rig.tell(question.name))


@pytest.mark.parametrize("steps", [0, 1, STEPS_MAX])
def test_pruned_segments_are_deleted_behind_their_layout(rig, steps, tmp_path):
    begin(rig, "merge")
    assert carry_out(rig)
    for segment in segments(rig)[:2]:
        rig.asked("clear", segment)
    change = layout_changes.prune(layout_of(rig), [0, 1], 9)
    assert rig.owner.catalogue.scalable_topics.begin_change(TOPIC, change)
    rig.owner.catalogue.commit()
    carry_out(rig, steps)
    rig = rig.crashed(tmp_path / "killed")
    assert carry_out(rig)
    assert [segment.number for segment in layout_of(rig).segments] == [2] and layout_of(rig).segments[0].parents == ()
    assert [name.segment[0] for name in rig.owner.catalogue.scalable_topics.stored_segments(TOPIC)] == [2]
    assert layout_of(rig).epoch == 2


@pytest.mark.parametrize("steps", [0, 1])
def test_no_subscription_is_made_on_a_segment_that_is_being_deleted(rig, steps):
    """A client that has not learned of the new layout would count on it, and it would be on no other segment."""
    begin(rig, "merge")
    assert carry_out(rig)
    parents = segments(rig)[:2]
    for segment in parents:
        rig.asked("clear", segment)
    change = layout_changes.prune(layout_of(rig), [0, 1], 9)
    assert rig.owner.catalogue.scalable_topics.begin_change(TOPIC, change)
    rig.owner.catalogue.commit()
    carry_out(rig, steps)
    refused, attached = (rig.run(rig.command("subscribe", topic=parents[1], subscription=subscription, subType=1,
                                             consumer_id=number, request_id=number))
                         for number, subscription in enumerate(("late", "made")))
    assert [answer.error.error for answer in refused.commands(T.ERROR)] == [api.TopicNotFound]
    assert attached.commands(T.ERROR) == []
