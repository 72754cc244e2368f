"""Subscriptions of all four types against a model of which consumer holds which entry, and which entries are due.

A machine publishes, and has consumers attach, grant permits, acknowledge, give back, seek and leave.  The owner is
killed and stopped in between.  After every pass all delivered entries were due, and no due entry is held back.
"""
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.dispatch.ranges import hashes_of
from geminga.storage.topics.subscription import SubType

from .rig import Handle, Rig, T

TOPICS, KEYS = ("a", "b"), ("k", "l", "m", "n", None)
SPREAD = SubType.Shared, SubType.Key_Shared
CONSUMERS_MAX = 3
START = (-1, -1)


@dataclass(eq=False)
class Entry:
    key: object
    messages: int


@dataclass(eq=False)
class Consumer:
    name: str
    handle: Handle
    permits: int = 0
    has_granted: bool = False             # permits, so that it hears whether it is active
    is_told_active: bool | None = None

    def grant(self, permits):
        self.permits += permits
        self.has_granted = self.has_granted or permits > 0


@dataclass(eq=False)
class Model:
    """The model of one subscription, as the specification describes it."""

    topic: str
    kind: int
    log: dict                                           # position -> Entry, of its topic
    consumers: list = field(default_factory=list)
    acked: set = field(default_factory=set)
    bits: dict = field(default_factory=dict)            # position -> bits of a batch's unacknowledged messages
    out: dict = field(default_factory=dict)             # position -> the consumer that holds it (Shared and Key_Shared)
    counts: dict = field(default_factory=dict)          # position -> redeliveries
    read: tuple = START                                 # last position delivered to the active consumer

    @property
    def name(self):
        return SubType.Name(self.kind)

    @property
    def is_spread(self):
        return self.kind in SPREAD

    @property
    def active(self):
        return min(self.consumers, key=lambda consumer: consumer.name, default=None)

    def left(self, position):
        return self.bits.get(position, (1 << self.log[position].messages) - 1)

    def waiting(self):
        """Return the positions of due entries, in the order of their delivery."""
        return [position for position in self.log if position not in self.acked and position not in self.out
                and (self.is_spread or position > self.read)]

    def acknowledge(self, positions):
        for position in positions:
            self.acked.add(position)
            self.out.pop(position, None)

    def acknowledge_part(self, position, left):
        remains = self.left(position) & left
        if position not in self.acked and remains != self.left(position):
            self.bits[position] = remains
            if not remains:
                self.acknowledge([position])

    def join(self, consumer):
        before = self.active
        self.consumers.append(consumer)
        if self.active is not before:
            self.read = START

    def leave(self, consumer):
        before = self.active
        self.consumers.remove(consumer)
        self.out = {position: holder for position, holder in self.out.items() if holder is not consumer}
        if self.active is not before:
            self.read = START

    def vacate(self):
        self.consumers, self.out, self.read = [], {}, START

    def give_back(self, consumer, positions):
        if not self.is_spread:
            self.read = START if consumer is self.active else self.read
            return
        for position in [position for position in self.out if position in positions and self.out[position] is consumer]:
            del self.out[position]
            self.counts[position] = self.counts.get(position, 0) + 1

    def give(self, consumer, position, count, words):
        """Note that an entry was delivered to the consumer, after a check that it was due and that no other consumer
        held it.
        """
        assert position not in self.acked
        assert sum(word << 64 * n for n, word in enumerate(words)) == self.bits.get(position, 0)
        assert count == self.counts.get(position, 0)
        assert consumer.permits > 0
        consumer.permits -= self.left(position).bit_count()
        if not self.is_spread:
            assert consumer is self.active
            assert position == self.waiting()[0]
            self.read = position
            return
        assert position not in self.out
        if self.kind == SubType.Key_Shared:
            of_key = [other for other in self.log if self.log[other].key == self.log[position].key
                      and other not in self.acked]
            assert {self.out[other] for other in of_key if other in self.out} <= {consumer}
            assert all(other in self.out for other in of_key if other < position)
        self.out[position] = consumer


class SubscriptionsMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.patch = pytest.MonkeyPatch()
        for name in ("fsync", "fdatasync"):                 # a kill loses nothing that was written
            self.patch.setattr(os, name, lambda fd: None)
        self.number = 0

    def teardown(self):
        self.rig.close()
        self.patch.undo()
        shutil.rmtree(self.folder)

    @initialize(is_ring=st.booleans(), kind=st.sampled_from(list(SubType.values())))
    def begin(self, is_ring, kind):
        self.rig = Rig(self.folder / "0", roll_over_entries=5, journal_segment_bytes=64 << 10,
                       key_shared_consistent_hashing=is_ring)
        self.logs = {topic: {} for topic in TOPICS}
        self.models = [Model(topic, kind, self.logs[topic]) for topic,
                       kinds in (("a", SubType.values()), ("b", [kind])) for kind in kinds]
        self.favourite = [model for model in self.models if model.kind == kind]
        self.connect()
        for topic in TOPICS:
            self.publish_to(topic, [(key, batch) for batch in (0, 3) for key in KEYS])

    def connect(self):
        self.producers = {topic: self.rig.producer(topic) for topic in TOPICS}
        for model in self.models:
            for permits in (5, 12) if model.kind != SubType.Exclusive else (8,):
                self.join(model, permits)

    def next_number(self):
        self.number += 1
        return self.number

    # -- passes

    def run(self, *sections):
        answers = self.rig.run(*sections)
        self.check(answers)
        return answers

    def check(self, answers):
        by_number = {consumer.handle.number: (model, consumer) for model in self.models for consumer in model.consumers}
        for number, _, ledger_id, given in answers.gifts:
            model, consumer = by_number[number]
            for entry_id, count, words in given:
                model.give(consumer, (ledger_id, entry_id), count, words)
        by_id = {consumer.handle.object_id: consumer for _, consumer in by_number.values()}
        for command in answers.commands(T.ACTIVE_CONSUMER_CHANGE):
            if (consumer := by_id.get(command.active_consumer_change.consumer_id)) is not None:
                consumer.is_told_active = command.active_consumer_change.is_active
        for model in self.models:
            self.check_nothing_is_held_back(model)
            if model.kind == SubType.Failover:
                assert all(consumer.is_told_active == (consumer is model.active) for consumer in model.consumers
                           if consumer.has_granted)

    def check_nothing_is_held_back(self, model):
        able = [consumer for consumer in model.consumers if consumer.permits > 0]
        waiting = model.waiting() if able else []
        if model.kind == SubType.Key_Shared and waiting:
            hashes, owner = self.hashes(model)
            for position in waiting:
                holders = {holder for other, holder in model.out.items() if hashes[other] == hashes[position]}
                assert owner[position] not in able or holders - {owner[position]}, position
        elif model.is_spread or model.active in able:
            assert not waiting

    def hashes(self, model):
        """Return ({position: hash of the entry's key}, {position: the consumer to which the hash belongs})."""
        partition = self.rig.partition(model.topic)
        dispatcher, hashes, owner = partition.subscriptions[model.name, True].dispatcher, {}, {}
        by_number = {consumer.handle.number: consumer for consumer in model.consumers}
        for ledger in partition.ledgers:
            found = hashes_of(ledger, np.arange(ledger.entries))
            for entry_id, (hash_, slot) in enumerate(zip(found.tolist(), dispatcher.ranges.slots(found).tolist(),
                                                         strict=True)):
                hashes[ledger.ledger_id, entry_id] = hash_
                owner[ledger.ledger_id, entry_id] = by_number[dispatcher._slots[slot].handle]
        return hashes, owner

    # -- what clients do

    def draw_model(self, data):
        return data.draw(st.sampled_from([*self.models, *self.favourite * 4]))

    def draw_consumer(self, data):
        models = [model for model in [*self.models, *self.favourite * 4] if model.consumers]
        if not models:
            return None, None
        model = data.draw(st.sampled_from(models))
        return model, data.draw(st.sampled_from(model.consumers))

    def draw_positions(self, data, model, consumer=None):
        """Draw recent positions of the topic, or positions that the consumer holds, and at times positions that do
        not exist.
        """
        known = [position for position, holder in model.out.items() if holder is consumer] or list(model.log)[-12:]
        strange = [(99, 0), (1, 1 << 40)]
        return data.draw(st.lists(st.sampled_from([*known * 3, *strange]), min_size=1, max_size=5))

    @rule(data=st.data(), topic=st.sampled_from(["a", "a", "b"]), permits=st.integers(0, 5))
    def publish(self, data, topic, permits):
        batches = st.sampled_from([0, 0, 3, 70])
        fresh = data.draw(st.lists(st.tuples(st.sampled_from(KEYS), batches), min_size=1, max_size=5))
        _, consumer = self.draw_consumer(data)
        if consumer is None or not permits:
            return self.publish_to(topic, fresh)
        consumer.grant(permits)
        self.publish_to(topic, fresh, self.rig.flow(consumer.handle, permits))

    def publish_to(self, topic, fresh, *sections):
        """Publish entries, each given as (key, size of batch)."""
        answers = self.rig.run(
            *sections,
            self.rig.sends(
                *[
                    (self.producers[topic], b"x", {"batch": batch} | ({"partition_key": key} if key else {}))
                    for key, batch in fresh
                ]
            ),
        )
        for position, (key, batch) in zip(answers.positions, fresh, strict=True):
            self.logs[topic][position] = Entry(key or position, batch or 1)
        self.check(answers)

    @rule(data=st.data(), permits=st.sampled_from([1, 1, 2, 5, 100]))
    def flow(self, data, permits):
        _, consumer = self.draw_consumer(data)
        if consumer is not None:
            consumer.grant(permits)
            self.run(self.rig.flow(consumer.handle, permits))

    @rule(data=st.data(), permits=st.sampled_from([0, 3, 100]))
    def another_consumer(self, data, permits):
        model = self.draw_model(data)
        if len(model.consumers) < (1 if model.kind == SubType.Exclusive else CONSUMERS_MAX):
            self.join(model, permits, prefix=data.draw(st.sampled_from("abc")))

    def join(self, model, permits, prefix="b"):
        name, connection = f"{prefix}{self.next_number()}", 10 + self.number
        section, number = self.rig.subscribe(model.topic, model.name, subType=model.kind, consumer_name=name,
                                             connection=connection)
        answers = self.rig.run(section)
        consumer = Consumer(name, self.rig.consumer_in(answers, number, model.topic, connection=connection))
        model.join(consumer)
        self.check(answers)
        consumer.grant(permits)
        self.run(self.rig.flow(consumer.handle, permits))

    @rule(data=st.data(), is_closed=st.booleans())
    def leave(self, data, is_closed):
        model, consumer = self.draw_consumer(data)
        if consumer is not None:
            model.leave(consumer)
            connection, consumer_id = consumer.handle.connection, consumer.handle.object_id
            self.run(
                self.rig.command("close_consumer", connection=connection, consumer_id=consumer_id, request_id=1)
                if is_closed
                else self.rig.happened(envelope.CONNECTION_GONE, connection=connection)
            )

    @rule(data=st.data(), is_mine=st.booleans(), is_cumulative=st.sampled_from([False, False, True]))
    def acknowledge(self, data, is_mine, is_cumulative):
        model, consumer = self.draw_consumer(data)
        if consumer is None:
            return
        positions = self.draw_positions(data, model, consumer if is_mine else None)
        known = [position for position in positions if position in model.log]
        if not is_cumulative:
            model.acknowledge(known)
        elif known and not model.is_spread:
            model.acknowledge([position for position in model.log if position <= max(known)])
        self.run(self.rig.acks(consumer.handle, *positions, cumulative=is_cumulative))

    @rule(data=st.data(), is_cumulative=st.sampled_from([False, False, True]))
    def acknowledge_part(self, data, is_cumulative):
        model, consumer = self.draw_consumer(data)
        batches = [position for position, entry in model.log.items() if entry.messages > 1][-6:] if model else []
        if not batches:
            return
        position, left = data.draw(st.sampled_from(batches)), data.draw(st.integers(0, (1 << 71) - 1))
        if not (is_cumulative and model.is_spread):
            model.acknowledge_part(position, left)
        if is_cumulative and not model.is_spread:
            model.acknowledge([other for other in model.log if other < position])
        words = [left & (1 << 64) - 1, left >> 64]
        self.run(self.rig.ack_part(consumer.handle, position, *words, cumulative=is_cumulative))

    @rule(data=st.data(), is_mine=st.booleans(), is_all=st.sampled_from([False, False, True]))
    def give_back(self, data, is_mine, is_all):
        model, consumer = self.draw_consumer(data)
        if consumer is None:
            return
        positions = [] if is_all else self.draw_positions(data, model, consumer if is_mine else None)
        existing = {ledger.ledger_id for ledger in self.rig.partition(model.topic).ledgers}
        if is_all or any(ledger_id in existing for ledger_id, _ in positions):
            model.give_back(consumer, set(model.log) if is_all else set(positions))
        self.run(self.rig.redeliver(consumer.handle, *positions))

    @rule(data=st.data())
    def seek(self, data):
        model, consumer = self.draw_consumer(data)
        existing = {ledger.ledger_id for ledger in self.rig.partition(model.topic).ledgers} if model else ()
        there = [position for position in model.log if position[0] in existing] if model else []
        if not there:
            return
        to = data.draw(st.sampled_from(there))
        model.vacate()
        model.acked = {position for position in model.log if position < to or position not in there}
        model.bits, model.counts = {}, {}
        self.run(
            self.rig.command(
                "seek",
                connection=consumer.handle.connection,
                consumer_id=consumer.handle.object_id,
                request_id=1,
                message_id=api.MessageIdData(ledgerId=to[0], entryId=to[1]),
            )
        )

    # -- the end of a process, and the next one

    @precondition(lambda self: self.number)
    @rule(is_killed=st.booleans(), is_connected=st.booleans())
    def next_process(self, is_killed, is_connected):
        old = self.rig
        if is_killed:
            self.rig = old.crashed(self.folder / f"{self.next_number()}")
            old.close()
            shutil.rmtree(old.data_dir)
        else:
            old.close()
            self.rig = Rig(old.data_dir, now_ms=old.now_ms, **old.settings)
        for model in self.models:
            model.vacate()
        if is_connected:
            self.connect()
        else:
            self.producers = {topic: self.rig.producer(topic) for topic in TOPICS}


TestSubscriptionsMachine = pytest.mark.slow(SubscriptionsMachine.TestCase)
TestSubscriptionsMachine.settings = settings(max_examples=int(os.environ.get("EXAMPLES", "40")), stateful_step_count=40,
                                             deadline=None)
