"""Priorities against a model, a dictionary: the highest first, the oldest of it, none lost, none twice.

A state machine publishes with priorities and delays, and lets time pass.  Its consumers come, grant permits,
acknowledge, give messages back, and go.  The policy is switched on and off and its ageing changes under them, and the
process ends: by a stop, a kill, or a power cut.
"""
import os
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from geminga.proto import envelope
from geminga.storage.dispatch import by_priority, levelled_acks
from geminga.storage.topics.subscription import SubType
from geminga.storage.upkeep import delayed_scheduler

from .lives import AtOnce, LivesMachine
from .rig import Handle
from .test_limits import set_policy
from .test_priority import priority

TICK_MS = 1_000
PRIORITIES = st.one_of(st.none(), st.integers(0, 9), st.sampled_from([0, 4, 9]))
OPTIONS = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 3, "roll_over_entries": 9, "retention_s": 1 << 30,
           "retention_bytes": 1 << 40, "message_priority": True}


@dataclass(eq=False)
class Entry:
    priority: int
    came_ms: int
    due_ms: int          # 0: at once
    messages: int


@dataclass(eq=False)
class Consumer:
    handle: Handle
    permits: int = 0
    out: set = field(default_factory=set)      # positions


class PriorityMachine(LivesMachine):
    def __init__(self):
        super().__init__(**OPTIONS)
        self.lives.patch.setattr(delayed_scheduler, "ThreadPoolExecutor", AtOnce)
        self.lives.patch.setattr(by_priority, "_STRETCH", 4)
        self.lives.patch.setattr(levelled_acks, "_PIECE", 3)
        self.log, self.acked, self.consumers, self.connections = {}, set(), [], 10
        self.is_on, self.ageing_s = True, 0
        self.producer = self.rig.producer("t")
        self.attach(100)

    # -- passes

    def run(self, *sections, after_ms=0):
        self.check(self.rig.run(*sections, after_ms=after_ms))

    def check(self, answers):
        """Check the deliveries of a pass and of those that follow at once; then none is late."""
        self.check_given(answers)
        while self.rig.owner.passes.due_ms() <= self.rig.now_ms:
            self.check_given(self.rig.run())
        for partition in self.rig.partitions:
            partition.check()
        if any(consumer.permits > 0 for consumer in self.consumers):
            late = [position for position in self.log if self.is_wanted(position) and self.is_ready(position)]
            assert not late, late

    def check_given(self, answers):
        by_number = {consumer.handle.number: consumer for consumer in self.consumers}
        for number, _, ledger_id, given in answers.gifts:
            for entry_id, _, _ in given:
                self.give(by_number[number], (ledger_id, entry_id))

    def give(self, consumer, position):
        entry = self.log[position]
        assert self.is_wanted(position) and consumer.permits > 0 and entry.due_ms <= self.rig.now_ms, position
        if self.is_on:
            before = [other for other in self.log if self.is_wanted(other) and self.is_ready(other)
                      and self.rank(other) < self.rank(position)]
            assert not before, (position, before)
        consumer.permits -= entry.messages
        consumer.out.add(position)

    def is_wanted(self, position):
        return position not in self.acked and not any(position in consumer.out for consumer in self.consumers)

    def is_ready(self, position):
        """Whether the message has been due for a tick."""
        due_ms = self.log[position].due_ms
        return not due_ms or due_ms + TICK_MS <= self.rig.now_ms

    def rank(self, position):
        """Return what is the lower, the sooner the message has to be delivered."""
        entry = self.log[position]
        waits_ms = self.rig.now_ms - max(entry.came_ms, entry.due_ms)
        is_aged = self.ageing_s and waits_ms >= 1_000 * self.ageing_s
        return (0, position) if is_aged else (10 - entry.priority, position)

    def draw_consumer(self, data):
        return data.draw(st.sampled_from(self.consumers)) if self.consumers else None

    # -- what clients do

    @rule(fresh=st.lists(st.tuples(PRIORITIES, st.sampled_from([0, 0, 0, 900, 2_500, 30_000]),
                                   st.sampled_from([0, 0, 0, 3])), min_size=1, max_size=12))
    def publish(self, fresh):
        now_ms = self.rig.now_ms
        sent = [(self.producer, bytes(60), priority(value) | {"batch": batch} | (
            {"deliver_at_time": now_ms + delay_ms} if delay_ms else {})) for value, delay_ms, batch in fresh]
        answers = self.rig.run(self.rig.sends(*sent))
        for position, (value, delay_ms, batch) in zip(answers.positions, fresh, strict=True):
            self.log[position] = Entry(4 if value is None else value, now_ms,
                                       now_ms + delay_ms if delay_ms else 0, batch or 1)
        self.check(answers)

    @rule(ms=st.sampled_from([1, 400, 1_000, 1_500, 5_000, 30_000]))
    def time_passes(self, ms):
        until_ms = self.rig.now_ms + ms
        while self.rig.now_ms < until_ms:
            self.run(after_ms=max(1, min(self.rig.owner.passes.due_ms(), until_ms) - self.rig.now_ms))

    @rule(data=st.data(), permits=st.sampled_from([1, 2, 5, 100]))
    def flow(self, data, permits):
        if (consumer := self.draw_consumer(data)) is not None:
            consumer.permits += permits
            self.run(self.rig.flow(consumer.handle, permits))

    @rule(permits=st.sampled_from([0, 3, 100]))
    def attach(self, permits):
        if len(self.consumers) < 3:
            self.connections += 1
            section, number = self.rig.subscribe("t", "sub", subType=SubType.Shared, connection=self.connections)
            answers = self.rig.run(section)
            self.consumers.append(Consumer(
                self.rig.consumer_in(answers, number, "t", connection=self.connections), permits))
            self.run(self.rig.flow(self.consumers[-1].handle, permits))

    @rule(data=st.data())
    def leave(self, data):
        if (consumer := self.draw_consumer(data)) is not None:
            self.consumers.remove(consumer)
            self.run(self.rig.happened(envelope.CONNECTION_GONE, connection=consumer.handle.connection))

    @rule(data=st.data(), count=st.sampled_from([1, 3, 1_000]))
    def acknowledge(self, data, count):
        consumer = self.draw_consumer(data)
        if consumer is not None and consumer.out:
            chosen = sorted(consumer.out)[:count] if data.draw(st.booleans()) else sorted(consumer.out)[-count:]
            self.acked.update(chosen)
            consumer.out.difference_update(chosen)
            self.run(self.rig.acks(consumer.handle, *chosen, request_id=1))

    @rule(data=st.data(), is_all=st.booleans())
    def give_back(self, data, is_all):
        consumer = self.draw_consumer(data)
        if consumer is not None and consumer.out:
            some = st.lists(st.sampled_from(sorted(consumer.out)), min_size=1, unique=True)
            chosen = [] if is_all else data.draw(some)
            consumer.out.difference_update(chosen or list(consumer.out))
            self.run(self.rig.redeliver(consumer.handle, *chosen))

    # -- what operators do, and what happens

    @rule(is_on=st.booleans(), ageing_s=st.sampled_from([0, 0, 1, 5, 60]))
    def change_policy(self, is_on, ageing_s):
        self.is_on, self.ageing_s = is_on, ageing_s if is_on else 0
        self.check(set_policy(self.rig, "messagePriority", {"active": is_on, "ageingSeconds": ageing_s}))

    @rule(count=st.integers(1, 5))
    def skip(self, count):
        """Skip the oldest messages, whoever has them."""
        left = [position for position in sorted(self.log) if position not in self.acked]
        if left:
            gone = left[:count]
            self.acked.update(gone)
            for consumer in self.consumers:
                consumer.out.difference_update(gone)
            self.run(self.rig.question("skip", "t", subscription="sub", entries=len(gone)))

    @rule(how=st.sampled_from(["stop", "kill", "kill", "power cut", "power cut, lengths lost"]),
          away_ms=st.sampled_from([0, 0, 3_000, 60_000]), permits=st.sampled_from([0, 3, 100]))
    def next_process(self, how, away_ms, permits):
        self.lives.next(how)
        self.rig.now_ms += away_ms
        self.consumers = []
        self.producer = self.rig.producer("t")
        self.attach(permits)


TestPriorityMachine = pytest.mark.slow(PriorityMachine.TestCase)
TestPriorityMachine.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "40")), stateful_step_count=40, deadline=None)
