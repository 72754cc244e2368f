"""Random acknowledgements, plain and in transactions, on batches, compared with a model of what is left.

The model has, for each entry, the messages that are acknowledged, and those that each open transaction acknowledges.
Whatever is in neither is what a new consumer gets.
"""
import random

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.topics.subscription import SubType

from .transacting import FIRST, SECOND, TOPIC, answer, end, given, open_for, subscription_of

MESSAGES, ALL = 4, 0b1111
KINDS = [SubType.Exclusive, SubType.Failover, SubType.Shared, SubType.Key_Shared]
TRANSACTIONS = FIRST, SECOND


@pytest.fixture
def rigs(uncoordinated):
    return uncoordinated


class Model:
    """The acknowledgements of one subscription, as bits of each entry."""

    def __init__(self, rig, kind, chance):
        self.rig, self.kind, self.chance = rig, kind, chance
        producer = rig.producer(TOPIC)
        count = chance.choice((3, 12))
        entries = [(producer, b"x", {"batch": MESSAGES, "partition_key": str(n % 3)}) for n in range(count)]
        self.positions = rig.run(rig.sends(*entries)).positions
        self.done = dict.fromkeys(self.positions, 0)
        self.pending = {transaction: {} for transaction in TRANSACTIONS}
        self.up_to = {}
        self.attach()

    def attach(self):
        rig = self.rig
        self.consumer = rig.consumer(TOPIC, subType=self.kind)
        open_for(rig, *TRANSACTIONS)
        return self.consumer

    def held(self, position):
        """Return the bits of an entry that transactions acknowledge, each for itself."""
        bits = 0
        for acknowledged in self.pending.values():
            assert not bits & acknowledged.get(position, 0)
            bits |= acknowledged.get(position, 0)
        return bits

    def left(self):
        """Return {position: bits} of what a new consumer gets."""
        start = max(self.up_to.values(), default=(-1, -1))
        left = {position: ALL & ~self.done[position] & ~self.held(position)
                for position in self.positions if position > start}
        return {position: bits for position, bits in left.items() if bits}

    # -- steps

    def acknowledge_plainly(self):
        position, bits = self.chance.choice(self.positions), self.chance.choice((ALL, 0b0001, 0b0110))
        rig = self.rig
        rig.run(rig.acks(self.consumer, position) if bits == ALL else
                rig.ack_part(self.consumer, position, ALL & ~bits))
        self.done[position] |= bits

    def acknowledge_up_to(self):
        if self.kind in (SubType.Exclusive, SubType.Failover):
            position = self.chance.choice(self.positions)
            self.rig.run(self.rig.acks(self.consumer, position, cumulative=True))
            self.finish_up_to(position)

    def finish_up_to(self, position):
        for each in self.positions:
            if each <= position:
                self.done[each] = ALL

    def acknowledge_in_transaction(self):
        """Acknowledge some entries, whole or in part: all of them or none."""
        transaction = self.chance.choice(TRANSACTIONS)
        some = self.chance.sample(self.positions, self.chance.randrange(1, 3))
        asked = {position: self.chance.choice((ALL, 0b0001, 0b0110, 0b1000)) for position in some}
        ids = [position if bits == ALL else (*position, [ALL & ~bits]) for position, bits in asked.items()]
        error = answer(self.rig, self.consumer, transaction, *ids)
        fresh = {position: bits & ~self.done[position] for position, bits in asked.items()}
        is_conflict = any(not bits or bits & self.held(position) or (asked[position] == ALL and self.held(position))
                          for position, bits in fresh.items())
        assert error == (api.TransactionConflict if is_conflict else None), (asked, self.done, self.pending)
        if not error:
            for position, bits in fresh.items():
                bits = ALL if asked[position] == ALL else bits
                mine = self.pending[transaction]
                mine[position] = mine.get(position, 0) | bits

    def acknowledge_up_to_in_transaction(self):
        transaction, position = self.chance.choice(TRANSACTIONS), self.chance.choice(self.positions)
        error = answer(self.rig, self.consumer, transaction, position, cumulative=True)
        others = [each for each in self.up_to if each != transaction]
        below = position <= max(self.mark_delete(), self.up_to.get(transaction, (-1, -1)))
        assert error == (api.TransactionConflict if others or below else None), (transaction, position, self.up_to)
        if not error:
            self.up_to[transaction] = position

    def mark_delete(self):
        position = (-1, -1)
        for each in self.positions:
            if self.done[each] != ALL:
                break
            position = each
        return position

    def finish(self):
        """Commit or abort a transaction, and begin one with the same id, which no real coordinator does."""
        transaction, commits = self.chance.choice(TRANSACTIONS), self.chance.random() < 0.5
        end(self.rig, transaction, commits=commits)
        acknowledged, self.pending[transaction] = self.pending[transaction], {}
        up_to = self.up_to.pop(transaction, None)
        if commits:
            for position, bits in acknowledged.items():
                self.done[position] |= bits
            if up_to is not None:
                self.finish_up_to(up_to)
        open_for(self.rig, transaction)

    def seek(self):
        rig, position = self.rig, self.chance.choice(self.positions)
        start = api.MessageIdData(ledgerId=position[0], entryId=position[1])
        rig.run(rig.command("seek", consumer_id=self.consumer.object_id, request_id=9, message_id=start))
        self.done = {each: ALL if each < position else 0 for each in self.positions}
        self.attach()

    def redeliver(self):
        some = self.chance.sample(self.positions, 2) if self.chance.random() < 0.5 else []
        self.rig.run(self.rig.redeliver(self.consumer, *some))

    def take(self):
        self.rig.run(self.rig.flow(self.consumer, self.chance.choice((1, 5, 100))))

    def come_anew(self):
        self.rig.close_consumer(self.consumer)
        self.attach()

    def be_killed(self):
        folder = self.rig.data_dir.parent / f"{self.rig.data_dir.name}+"
        self.rig = self.rig.crashed(folder)
        self.attach()

    def check(self):
        """Compare the cursor with the model, and, if the consumer goes, what its successor gets."""
        self.rig.partition(TOPIC).check()
        cursor = subscription_of(self.rig).cursor
        for position, bits in self.done.items():
            assert cursor.is_acknowledged(*position) == (bits == ALL), position
        self.rig.close_consumer(self.consumer)
        consumer = self.attach()
        answers = self.rig.run(self.rig.flow(consumer, 1_000))
        assert {position: bits or ALL for position, _, bits in given(self.rig, answers, consumer)} == self.left()
        self.rig.partition(TOPIC).check()


STEPS = [
    (Model.acknowledge_plainly, 3), (Model.acknowledge_up_to, 1), (Model.acknowledge_in_transaction, 8),
    (Model.acknowledge_up_to_in_transaction, 1), (Model.finish, 3), (Model.seek, 1), (Model.redeliver, 2),
    (Model.take, 4), (Model.come_anew, 1), (Model.be_killed, 1), (Model.check, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=SubType.Name)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_left_is_what_a_model_says(rig, kind, seed):
    chance = random.Random(f"{seed} {kind}")
    model = Model(rig, kind, chance)
    for step in chance.choices([step for step, _ in STEPS], [weight for _, weight in STEPS], k=120):
        step(model)
        model.rig.partition(TOPIC).check()
    model.check()
    assert model.rig.partition(TOPIC).transactions is not None
