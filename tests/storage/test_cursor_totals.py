"""Totals of a subscription add up: messages published = acknowledged + expired + skipped + evicted + backlog.

This holds at every moment and after every crash, counted in messages, whichever parts of batches were acknowledged.
Counts of redeliveries and deaths are exact after a power cut too.
"""
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.commands.consumers import QUARANTINE
from geminga.storage.topics.subscription import SubType

from .lives import Lives, LivesMachine

OPTIONS = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 3, "roll_over_entries": 9}
KINDS = {"shared": SubType.Shared, "exclusive": SubType.Exclusive, "keys": SubType.Key_Shared}
ENDS = ["stop", "kill", "power cut", "power cut, lengths lost"]
MANY = 1 << 20


class TotalsMachine(LivesMachine):
    def __init__(self):
        super().__init__(**OPTIONS)

    @initialize()
    def begin(self):
        self.connect()

    def connect(self):
        self.producer = self.rig.producer("a")
        self.consumers = {name: self.consumer(name) for name in KINDS}

    def consumer(self, name):
        return self.rig.consumer("a", name, subType=KINDS[name])

    @property
    def partition(self):
        return self.rig.partition("a")

    def cursors(self):
        return {name: subscription.cursor for (name, _), subscription in self.partition.subscriptions.items()}

    @invariant()
    def every_message_is_accounted_for(self):
        partition = self.partition
        for name, cursor in self.cursors().items():
            assert min(cursor.totals) >= 0
            assert partition.next_message - cursor.since == sum(cursor.totals) + cursor.backlog_messages(
                partition.ledgers
            ), name

    @rule(
        sizes=st.lists(st.sampled_from([0, 0, 1, 3, 70]), min_size=1, max_size=8),
        payload=st.sampled_from([b"", b"x" * 3_000]),
    )
    def publish(self, sizes, payload):
        self.rig.run(self.rig.sends(*[(self.producer, payload, {"batch": size}) for size in sizes]))

    def draw_positions(self, data, count):
        """Draw positions, most of them of entries that exist."""
        there = [
            (ledger.ledger_id, entry_id) for ledger in self.partition.ledgers for entry_id in range(ledger.entries)
        ]
        position = st.tuples(st.integers(0, 5), st.integers(0, 12))
        return data.draw(
            st.lists(st.one_of(st.sampled_from(there), position) if there else position, min_size=1, max_size=count)
        )

    @rule(data=st.data(), name=st.sampled_from(sorted(KINDS)), is_cumulative=st.booleans(),
          request_id=st.sampled_from([0, 1]))
    def acknowledge(self, data, name, is_cumulative, request_id):
        sections = [self.rig.acks(self.consumers[name], *self.draw_positions(data, 6), cumulative=is_cumulative,
                                  request_id=request_id)]
        for position in self.draw_positions(data, 4):
            words = data.draw(st.lists(st.one_of(st.integers(0, 7), st.integers(0, (1 << 64) - 1)), min_size=1,
                                       max_size=2))
            sections.append(self.rig.ack_part(self.consumers[name], position, *words,
                                              cumulative=data.draw(st.booleans())))
        self.rig.run(*data.draw(st.permutations(sections)))

    @rule(data=st.data(), name=st.sampled_from(sorted(KINDS)))
    def acknowledge_many(self, data, name):
        """Acknowledge more entries than are read one by one, whichever consumer holds them."""
        self.rig.run(self.rig.acks(self.consumers[name], *self.draw_positions(data, 8) * 12))

    @rule(name=st.sampled_from(sorted(KINDS)), permits=st.sampled_from([1, 5, 100]))
    def receive_and_give_back(self, name, permits):
        self.rig.run(self.rig.flow(self.consumers[name], permits))
        self.rig.run(self.rig.redeliver(self.consumers[name]))

    @rule(data=st.data(), name=st.sampled_from(sorted(KINDS)), by_time=st.booleans())
    def seek(self, data, name, by_time):
        [(ledger_id, entry_id), *_] = self.draw_positions(data, 1)
        where = {"message_publish_time": data.draw(st.sampled_from([0, 1, 2]))} if by_time else {
            "message_id": {"ledgerId": ledger_id, "entryId": entry_id}}
        self.rig.run(self.rig.command("seek", consumer_id=self.consumers[name].object_id, request_id=5, **where))
        self.consumers[name] = self.consumer(name)

    @rule(name=st.sampled_from(sorted(KINDS)), how=st.one_of(st.none(), st.integers(0, 9)))
    def skip(self, name, how):
        """Skip some entries, or all."""
        if how is None:
            self.rig.asked("clear", "a", subscription=name)
        else:
            self.rig.asked("skip", "a", subscription=name, entries=how)

    @rule(name=st.sampled_from(sorted(KINDS)))
    def unsubscribe(self, name):
        self.rig.run(self.rig.command("unsubscribe", consumer_id=self.consumers[name].object_id, request_id=6))
        self.consumers[name] = self.consumer(name)

    @rule(after_ms=st.sampled_from([10, 1_000]))
    def time_passes(self, after_ms):
        self.rig.run(after_ms=after_ms)

    @rule(how=st.sampled_from(ENDS))
    def the_process_ends(self, how):
        before = {name: (list(cursor.totals), cursor.since) for name, cursor in self.cursors().items()}
        self.lives.next(how)
        self.connect()
        if how in ("stop", "kill"):
            assert {name: (list(cursor.totals), cursor.since) for name, cursor in self.cursors().items()} == before


TestTotalsMachine = pytest.mark.slow(TotalsMachine.TestCase)
TestTotalsMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


# -- counts

@pytest.fixture
def lives():
    made = Lives(**OPTIONS)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "ends", [*[[how] for how in ENDS], ["power cut"] * 2, ["stop", "power cut, lengths lost", "kill"]], ids="+".join)
def test_how_often_each_entry_came_back_is_exact_whatever_ends_the_process(lives, ends):
    """Redelivery counts are exact after every end of the process, also with checkpoints in between.

    The last command before each end is an acknowledgement with an answer, so that a power cut finds the journal synced.
    """
    consumer = lives.rig.consumer("a", subType=SubType.Shared)
    positions = [position for _ in range(6)
                 for position in lives.rig.publish(lives.rig.producer("a"), *[b"x" * 2_000] * 7)]
    expected = dict.fromkeys(positions, 0)
    assert ends
    for number, how in enumerate(ends * 3):
        lives.rig.run(lives.rig.flow(consumer, MANY))
        for step in range(20):
            chosen = positions[step % 5::3 + number]
            lives.rig.run(lives.rig.redeliver(consumer, *chosen))
            lives.rig.run(lives.rig.flow(consumer, MANY))
            for position in chosen:
                expected[position] += 1
        lives.rig.run(lives.rig.acks(consumer, positions[-1], request_id=1))
        expected.pop(positions[-1], None)
        positions = [position for position in positions if position in expected]
        lives.next(how)
        consumer = lives.rig.consumer("a", subType=SubType.Shared)
        given = lives.rig.given(lives.rig.run(lives.rig.flow(consumer, MANY)), consumer)
        assert {position: count for position, count, _ in given} == expected


@pytest.mark.parametrize("how", ENDS)
def test_who_died_over_an_entry_is_exact_whatever_ends_the_process(lives, how):
    """Entries stay parked after a restart, and an entry one death short of that is parked by the next death."""
    careful = {"subType": SubType.Shared, "metadata": [api.KeyValue(key=QUARANTINE, value="3")]}
    positions = lives.rig.publish(lives.rig.producer("a"), *[b"x"] * 4)
    lives.rig.consumer("a", connection=50, **careful)
    for connection in (2, 3, 4):
        permits = 4 if connection == 2 else 2
        consumer = lives.rig.consumer("a", connection=connection, **careful)
        lives.rig.run(lives.rig.flow(consumer, permits))
        lives.rig.run(lives.rig.happened(envelope.CONNECTION_GONE, connection=connection))
    lives.rig.publish(lives.rig.producer("b"), b"somebody is told, when all of it is synced")
    deaths = lives.rig.partition("a").subscriptions["sub", True].cursor.deaths
    expected = [int(deaths.arrays[ledger_id][entry_id]) for ledger_id, entry_id in positions]
    assert expected == [3, 3, 1, 1]
    lives.next(how)
    consumer = lives.rig.consumer("a", connection=5, **careful)
    assert [position for position,
            *_ in lives.rig.given(lives.rig.run(lives.rig.flow(consumer, MANY)), consumer)] == positions[2:]
    deaths = lives.rig.partition("a").subscriptions["sub", True].cursor.deaths
    assert [int(deaths.arrays[ledger_id][entry_id]) for ledger_id, entry_id in positions] == expected
