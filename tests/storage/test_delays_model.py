"""Delayed delivery against a model, a dictionary: no message early, lost, or back after its acknowledgement; none late.

A state machine publishes with all kinds of delays and lets time pass. Its consumers come, grant permits, acknowledge,
have messages redelivered, and go. It cancels and reschedules messages, changes the tick and the width of windows,
unloads the topic, and ends the process: by a stop, a kill, or a power cut.
"""
import os
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from geminga.proto import envelope
from geminga.storage.topics.subscription import SubType
from geminga.storage.upkeep import delayed_scheduler

from .lives import AtOnce, LivesMachine
from .rig import Handle
from .test_limits import set_policy

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 24 * 3_600_000
KEYS = "k", "l", None
DELAYS = st.one_of(
    st.none(), st.sampled_from([-HOUR_MS, 0, 1, 999, 1_000, 1_001, 2_500]), st.integers(1, 20_000),
    st.integers(MINUTE_MS, 20 * MINUTE_MS), st.sampled_from([HOUR_MS, 3 * DAY_MS, 40 * DAY_MS, 1 << 60]))
TICKS_MS = 100, 1_000, 4_000
PASSES = 1_000       # without input; each does a piece of work
SUBSCRIPTIONS = "one", "two", "three"
OPTIONS = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 3, "roll_over_entries": 9, "retention_s": 1 << 30,
           "retention_bytes": 1 << 40}


@dataclass(eq=False)
class Entry:
    due_ms: int          # 0: at once
    messages: int


@dataclass(eq=False)
class Consumer:
    handle: Handle
    permits: int = 0


@dataclass(eq=False)
class Model:
    """The model of one subscription: acknowledged messages, and which consumer has which message."""

    name: str
    kind: int = SubType.Shared
    consumers: list = field(default_factory=list)
    acked: set = field(default_factory=set)
    out: dict = field(default_factory=dict)         # position -> who has it
    begin: tuple = (-1, -1)                         # after a seek: no message before this is delivered

    @property
    def limit(self):
        """Return the maximum of consumers. Key_Shared has one: with several, hashes would decide about deliveries,
        which others test.
        """
        return 3 if self.kind == SubType.Shared else 1


class DelaysMachine(LivesMachine):
    def __init__(self):
        super().__init__(**OPTIONS)
        self.lives.patch.setattr(delayed_scheduler, "ThreadPoolExecutor", AtOnce)
        self.connections = 10

    @initialize(is_strict=st.sampled_from([True, True, False]))
    def begin(self, is_strict):
        self.lives.options["delayed_delivery_strict"] = is_strict
        self.lives.next("stop")
        self.is_strict, self.tick_ms, self.log = is_strict, 1_000, {}
        self.coarsest_ms = self.tick_ms  # the longest tick since the last pass
        self.cancelled = set()
        self.models = [Model(name) for name in SUBSCRIPTIONS]
        self.producer = self.rig.producer("t")
        for model in self.models:
            self.join(model, SubType.Shared, 100)

    # -- passes

    def run(self, *sections, after_ms=0):
        answers = self.rig.run(*sections, after_ms=after_ms)
        self.check(answers)
        return answers

    def check(self, answers):
        """Check deliveries of this pass and of those that the owner wants at once.  Then no wanted message is late."""
        self.check_given(answers)
        for _ in range(PASSES):
            if self.rig.owner.passes.due_ms() > self.rig.now_ms:
                break
            self.check_given(self.rig.run())
        for partition in self.rig.partitions:
            partition.check()
        for model in self.models:
            if any(consumer.permits > 0 for consumer in model.consumers):
                late = [
                    position
                    for position in self.log
                    if self.is_wanted(model, position) and self.must_be_given(model, position)
                ]
                assert not late, (
                    model.name,
                    {position: self.log[position].due_ms - self.rig.now_ms for position in late},
                )
        self.coarsest_ms = self.tick_ms

    def check_given(self, answers):
        by_number = {consumer.handle.number: (model, consumer) for model in self.models for consumer in model.consumers}
        for number, _, ledger_id, given in answers.gifts:
            model, consumer = by_number[number]
            for entry_id, _, _ in given:
                self.give(model, consumer, (ledger_id, entry_id))

    def is_wanted(self, model, position):
        return position >= model.begin and position not in model.acked and position not in model.out

    def must_be_given(self, model, position):
        """Whether the message has been due for a tick."""
        return model.kind == SubType.Exclusive or self.log[position].due_ms + self.coarsest_ms <= self.rig.now_ms

    def give(self, model, consumer, position):
        assert self.is_wanted(model, position), position
        assert consumer.permits > 0
        early_ms = self.log[position].due_ms - self.rig.now_ms
        assert model.kind == SubType.Exclusive or early_ms <= (0 if self.is_strict else max(TICKS_MS)), (
            position,
            early_ms,
        )
        if model.kind == SubType.Exclusive:
            assert not [other for other in self.log if self.is_wanted(model, other) and other < position]
        consumer.permits -= self.log[position].messages
        model.out[position] = consumer

    def draw_consumer(self, data):
        models = [model for model in self.models if model.consumers]
        if not models:
            return None, None
        model = data.draw(st.sampled_from(models))
        return model, data.draw(st.sampled_from(model.consumers))

    # -- what clients do

    @rule(
        fresh=st.lists(st.tuples(DELAYS, st.sampled_from(KEYS), st.sampled_from([0, 0, 0, 3])), min_size=1, max_size=8),
        then_ms=st.sampled_from([0, 0, 700, 3_000, 31_000]),
    )
    def publish(self, fresh, then_ms):
        now_ms, sent = self.rig.now_ms, []
        for delay_ms, key, batch in fresh:
            fields = ({} if delay_ms is None else {"deliver_at_time": now_ms + delay_ms}) | (
                {"partition_key": key} if key else {}
            )
            sent.append((self.producer, b"x", fields | {"batch": batch}))
        answers = self.rig.run(self.rig.sends(*sent))
        for position, (delay_ms, _, batch) in zip(answers.positions, fresh, strict=True):
            self.log[position] = Entry(0 if delay_ms is None else now_ms + delay_ms, batch or 1)
        self.check(answers)
        self.pass_time(then_ms)

    @rule(count=st.integers(20, 60), delay_ms=st.sampled_from([3_000, 7_000, MINUTE_MS, HOUR_MS]),
          step_ms=st.sampled_from([0, 1, 300]))
    def publish_many(self, count, delay_ms, step_ms):
        """Publish many messages, in any order or in the order of their times."""
        self.publish([(delay_ms + number * step_ms, None, 0) for number in range(count)], 0)

    @rule(ms=st.sampled_from([1, 10, 400, 1_000, 1_500, 5_000, 30_000]))
    def time_passes(self, ms):
        self.pass_time(ms)

    def pass_time(self, ms):
        """Let time pass, with a pass whenever the owner wants one, as its process does."""
        until_ms = self.rig.now_ms + ms
        while self.rig.now_ms < until_ms:
            self.run(after_ms=max(1, min(self.rig.owner.passes.due_ms(), until_ms) - self.rig.now_ms))

    @rule(ms=st.sampled_from([2_000, 5 * MINUTE_MS, 5 * MINUTE_MS - 1, HOUR_MS, 2 * DAY_MS, 38 * DAY_MS]))
    def time_jumps(self, ms):
        self.run(after_ms=ms)

    @rule(data=st.data(), permits=st.sampled_from([1, 2, 5, 100]))
    def flow(self, data, permits):
        _, consumer = self.draw_consumer(data)
        if consumer is not None:
            consumer.permits += permits
            self.run(self.rig.flow(consumer.handle, permits))

    @rule(data=st.data(), kind=st.sampled_from([SubType.Shared, SubType.Shared, SubType.Key_Shared, SubType.Exclusive]),
          permits=st.sampled_from([0, 3, 100]))
    def another_consumer(self, data, kind, permits):
        model = data.draw(st.sampled_from(self.models))
        if len(model.consumers) < model.limit and (not model.consumers or model.kind == kind):
            self.join(model, kind, permits)

    def join(self, model, kind, permits):
        model.kind, self.connections = kind, self.connections + 1
        section, number = self.rig.subscribe("t", model.name, subType=kind, connection=self.connections)
        answers = self.rig.run(section)
        consumer = Consumer(self.rig.consumer_in(answers, number, "t", connection=self.connections))
        model.consumers.append(consumer)
        self.check(answers)
        consumer.permits += permits
        self.run(self.rig.flow(consumer.handle, permits))

    @rule(data=st.data())
    def leave(self, data):
        model, consumer = self.draw_consumer(data)
        if consumer is not None:
            model.consumers.remove(consumer)
            model.out = {position: holder for position, holder in model.out.items() if holder is not consumer}
            self.run(self.rig.happened(envelope.CONNECTION_GONE, connection=consumer.handle.connection))

    @rule(data=st.data(), count=st.sampled_from([1, 3, 1_000]), is_mine=st.sampled_from([True, True, False]))
    def acknowledge(self, data, count, is_mine):
        """Acknowledge messages that the consumer has, or others, due or not."""
        model, consumer = self.draw_consumer(data)
        if consumer is None:
            return
        mine = [position for position, holder in model.out.items() if holder is consumer]
        known = mine if is_mine else list(self.log)
        chosen = known[-count:] if data.draw(st.booleans()) else known[:count]
        if chosen:
            model.acked |= set(chosen)
            model.out = {position: holder for position, holder in model.out.items() if position not in chosen}
            self.run(self.rig.acks(consumer.handle, *chosen, request_id=1))

    @rule(data=st.data())
    def give_back(self, data):
        model, consumer = self.draw_consumer(data)
        if consumer is not None:
            model.out = {position: holder for position, holder in model.out.items() if holder is not consumer}
            self.run(self.rig.redeliver(consumer.handle))

    @rule(data=st.data())
    def seek(self, data):
        model, consumer = self.draw_consumer(data)
        if consumer is None or not self.log:
            return
        model.begin = data.draw(st.sampled_from([*self.log][-20:]))
        model.consumers, model.out, model.acked = [], {}, set(self.cancelled)
        self.run(
            self.rig.command(
                "seek",
                connection=consumer.handle.connection,
                consumer_id=consumer.handle.object_id,
                request_id=1,
                message_id={"ledgerId": model.begin[0], "entryId": model.begin[1]},
            )
        )

    # -- what operators do, and what happens

    @rule(tick_ms=st.sampled_from(TICKS_MS), window_ms=st.sampled_from([5_000, 300_000, HOUR_MS]))
    def set_granularity(self, tick_ms, window_ms):
        self.tick_ms, self.coarsest_ms = tick_ms, max(tick_ms, self.tick_ms)
        policy = {"active": True, "tickTime": tick_ms, "timePartitionGranularityInMillis": window_ms}
        self.check(set_policy(self.rig, "delayedDelivery", policy))

    def draw_waiting(self, data):
        """Draw a message that waits for certain."""
        waiting = [position for position, entry in self.log.items() if entry.due_ms > self.rig.now_ms + max(TICKS_MS)
                   and position not in self.cancelled]
        return data.draw(st.sampled_from(waiting)) if waiting else None

    @rule(data=st.data())
    def cancel(self, data):
        position = self.draw_waiting(data)
        if position is not None:
            answers = self.rig.run(self.rig.question("cancel", "t", position=list(position)))
            assert answers.answered[0]["answer"] is True
            self.cancelled.add(position)
            for model in self.models:
                model.acked.add(position)
                model.out.pop(position, None)
            self.check(answers)

    @rule(data=st.data(), after_ms=st.sampled_from([0, 500, 5_000, 10 * MINUTE_MS, 3 * DAY_MS]))
    def reschedule(self, data, after_ms):
        position = self.draw_waiting(data)
        if position is not None:
            at_ms = self.rig.now_ms + after_ms
            self.log[position].due_ms = at_ms
            answers = self.run(self.rig.question("reschedule", "t", position=list(position), deliver_at_ms=at_ms))
            assert answers.answered[0]["answer"] is True

    @rule()
    def unload(self):
        for model in self.models:
            model.consumers, model.out = [], {}
        self.rig.settle()      # `Disk` does not follow what threads write at the same time
        self.rig.asked("unload", "t")
        self.producer = self.rig.producer("t")

    @rule(how=st.sampled_from(["stop", "kill", "kill", "power cut", "power cut, lengths lost"]),
          away_ms=st.sampled_from([0, 0, 3_000, DAY_MS]), is_connected=st.booleans())
    def next_process(self, how, away_ms, is_connected):
        self.lives.next(how)
        self.rig.now_ms += away_ms
        for model in self.models:
            model.consumers, model.out = [], {}
        self.producer = self.rig.producer("t")
        for model in self.models if is_connected else ():
            self.join(model, model.kind, 100)


TestDelaysMachine = pytest.mark.slow(DelaysMachine.TestCase)
TestDelaysMachine.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "25")), stateful_step_count=40, deadline=None)
