"""Random histories of an owner that is killed, stopped or loses power: nothing answered is lost, and nothing else
changes.

A machine publishes, acknowledges and consumes at random, and ends its owner between passes and within them.  The model
is a list of messages with receipts, and sets of acknowledged ones.
"""
import contextlib
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from geminga.proto import names
from geminga.storage.ledgers.journal import Journal
from geminga.storage.topics import publish_plan

from .files import read_mapped
from .lives import LivesMachine
from .rig import payload_of

TOPICS, SUBSCRIPTIONS = ("a", "b"), ("one", "two")
CURSORS = list(itertools.product(TOPICS, SUBSCRIPTIONS))
MANY = 1 << 20
# Small, so that a few dozen passes roll ledgers, fill segments and use them again.
OPTIONS = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 3, "roll_over_entries": 7}


class Died(BaseException):
    """The process was killed at this call."""


class OwnerMachine(LivesMachine):
    """A random history of an owner's passes, kills and power cuts, compared with a model.

    Invariant: `acked` and `unsure` hold positions of entries in `log`.

    unsure: acknowledgements without a durable answer; a power cut may take them back, a kill may not.  loose: those of
    passes that did not end; a power cut may still take back those that a kill has left.
    """

    def __init__(self):
        super().__init__(**OPTIONS)
        self.numbers = itertools.count()
        self.log = {topic: [] for topic in TOPICS}                      # positions that are there, in order
        self.ever = {topic: {} for topic in TOPICS}                     # position -> payload, of all that was ever seen
        self.acked = {cursor: set() for cursor in CURSORS}
        self.unsure = {cursor: set() for cursor in CURSORS}
        self.loose = {cursor: set() for cursor in CURSORS}
        # payloads that may be there although no receipt came
        self.attempted = {topic: set() for topic in TOPICS}

    @initialize()
    def begin(self):
        self.connect()

    def connect(self):
        """Make new producers and consumers, as after a lost connection."""
        self.producers = {topic: self.rig.producer(topic) for topic in TOPICS}
        self.consumers = {(topic, name): self.rig.consumer(topic, name) for topic, name in CURSORS}
        self.permits = dict.fromkeys(CURSORS, 0)
        self.delivered = {cursor: [] for cursor in CURSORS}

    # -- passes

    def draw_pass(self, data):
        """Draw the sections of a pass, and what is to be checked in its answers."""
        sections, publishing, acking = [], [], []
        for topic in data.draw(st.lists(st.sampled_from(TOPICS), max_size=6)):
            payload = b"%d." % next(self.numbers) + b"x" * data.draw(st.sampled_from([0, 10, 3_000]))
            publishing.append((topic, payload))
        if publishing:
            sections.append(self.rig.sends(*[(self.producers[topic], payload) for topic, payload in publishing]))
        for cursor in data.draw(st.sets(st.sampled_from(CURSORS), max_size=2)):
            log = self.log[cursor[0]]
            if not log:
                continue
            chosen = data.draw(st.lists(st.integers(0, min(len(log) - 1, 12)), min_size=1, max_size=4, unique=True))
            left = [position for position in log if position not in self.acked[cursor]] or log
            positions = [left[index] for index in chosen if index < len(left)] or left[:1]
            is_cumulative, is_asked = data.draw(st.booleans()), data.draw(st.booleans())
            sections.append(
                self.rig.acks(self.consumers[cursor], *positions, cumulative=is_cumulative, request_id=int(is_asked))
            )
            up_to = max(positions)
            acking.append(
                (cursor, {position for position in log if position <= up_to} if is_cumulative else set(positions))
            )
        if data.draw(st.booleans()):
            cursor, permits = data.draw(st.sampled_from(CURSORS)), data.draw(st.integers(1, 20))
            sections.append(self.rig.flow(self.consumers[cursor], permits))
            self.permits[cursor] += permits
        return sections, publishing, acking

    @rule(data=st.data(), after_ms=st.sampled_from([0, 0, 0, 10, 1_000]))
    def a_pass(self, data, after_ms):
        sections, publishing, acking = self.draw_pass(data)
        fresh = self.acknowledge(acking)
        answers = self.rig.run(*sections, after_ms=after_ms)
        assert len(answers.receipts) == len(publishing)
        by_producer = {producer.object_id: topic for topic, producer in self.producers.items()}
        sent = {topic: iter([payload for other, payload in publishing if other == topic]) for topic in TOPICS}
        for _, _, producer_id, _, position in answers.receipts:
            self.add(by_producer[producer_id], position, next(sent[by_producer[producer_id]]))
        # somebody was told, or those before have waited long enough
        if answers.receipts or answers.replies or after_ms:
            self.unsure = {cursor: set() for cursor in CURSORS}
        if not (answers.receipts or answers.replies):
            for cursor, positions in fresh.items():
                self.unsure[cursor] |= positions
        self.check_deliveries(answers)

    def acknowledge(self, acking):
        """Record acknowledgements in the model, and return those that are new."""
        fresh = {}
        for cursor, positions in acking:
            fresh[cursor] = positions - self.acked[cursor]
            self.acked[cursor] |= positions
        return fresh

    def add(self, topic, position, payload):
        assert position not in self.ever[topic]
        assert not self.log[topic] or position > self.log[topic][-1]
        self.ever[topic][position] = payload
        self.log[topic].append(position)

    def check_deliveries(self, answers):
        """Check that deliveries are in order, within permits, not acknowledged, and have the published bytes."""
        for cursor, consumer in self.consumers.items():
            for position, payload in self.rig.delivered(answers, consumer):
                assert payload == self.ever[cursor[0]][position]
                assert position not in self.acked[cursor]
                assert not self.delivered[cursor] or position > self.delivered[cursor][-1]
                self.delivered[cursor].append(position)
                self.permits[cursor] -= 1
            assert self.permits[cursor] >= 0

    @rule(cursor=st.sampled_from(CURSORS))
    def another_consumer(self, cursor):
        self.rig.close_consumer(self.consumers[cursor])
        self.check_left(cursor)
        self.consumers[cursor] = self.rig.consumer(*cursor)
        self.permits[cursor], self.delivered[cursor] = 0, []

    def check_left(self, cursor):
        """Check that a new consumer gets every unacknowledged entry and none whose acknowledgement is durable."""
        consumer = self.rig.consumer(*cursor)
        found = [position for position, _ in self.rig.receive(consumer, MANY)]
        self.rig.close_consumer(consumer)
        missing = {position for position in self.log[cursor[0]] if position not in self.acked[cursor]}
        assert found == sorted(found)
        assert missing - set(found) == set()
        assert set(found) - missing - self.unsure[cursor] - self.loose[cursor] == set()
        self.acked[cursor] -= set(found)
        self.unsure[cursor] = set()

    # -- the end of a process, and the next one

    def next_process(self, how, unfinished=()):
        """Start the next process after a kill, a power cut or a stop.  unfinished: acknowledgements of the pass that
        was cut.
        """
        self.lives.next(how)
        if how == "stop":
            assert self.rig.recovered == 0
        if how in ("stop", "kill"):
            self.unsure = {cursor: set() for cursor in CURSORS}
        for cursor, positions in dict(unfinished).items():
            self.loose[cursor] |= positions
        for topic in TOPICS:
            self.check_entries(topic)
        for cursor in CURSORS:
            self.check_left(cursor)
        self.connect()

    def check_entries(self, topic):
        """Check that all needed entries exist, every existing one was published, and no position ever names two
        entries.
        """
        found = dict(self.everything(topic))
        needed = {
            position
            for position in self.log[topic]
            for name in SUBSCRIPTIONS
            if position not in self.acked[topic, name]
        }
        assert needed <= found.keys()
        for position, payload in found.items():
            if position not in self.ever[topic]:
                assert payload in self.attempted[topic]
                self.attempted[topic].discard(payload)
                self.ever[topic][position] = payload
            assert self.ever[topic][position] == payload
        self.log[topic] = sorted(found)

    def everything(self, topic):
        partition = self.rig.owner.partition(names.parse(topic))
        for ledger in partition.ledgers:
            for number, entry in enumerate(read_mapped(partition.folder, ledger.ledger_id, 0, ledger.entries)):
                yield (ledger.ledger_id, number), payload_of(entry)

    @rule(how=st.sampled_from(["stop", "kill", "power cut", "power cut, lengths lost"]))
    def between_passes(self, how):
        self.next_process(how)

    @rule(data=st.data(), how=st.sampled_from(["kill", "power cut", "power cut, lengths lost"]),
          where=st.sampled_from([(Journal, "append"), (Journal, "sync"), (publish_plan, "apply")]))
    def within_a_pass(self, data, how, where):
        """End the process in a pass: before its record is written, before the sync, or before it is applied."""
        sections, publishing, acking = self.draw_pass(data)
        for topic, payload in publishing:
            self.attempted[topic].add(payload)

        def die(*_):
            raise Died

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*where, die)
            with contextlib.suppress(Died):     # a pass without anything to write does not get there
                self.rig.run(*sections)
        self.next_process(how, self.acknowledge(acking))


TestOwnerMachine = pytest.mark.slow(OwnerMachine.TestCase)
TestOwnerMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
