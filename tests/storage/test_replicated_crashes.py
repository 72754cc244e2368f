"""Random histories of a source that replicates to an owner which is killed, stopped or loses power at any step.

The source sends its log from any place at or before the first message without a receipt, as after a reconnect, on one
connection after the other.  However it goes, the target has the log's beginning, each message once, in order, and all
that was answered.
"""
import contextlib
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from geminga.proto import names
from geminga.storage.cursors.producer_sequences import NOWHERE
from geminga.storage.ledgers.journal import Journal
from geminga.storage.open_topics import markers
from geminga.storage.topics import publish_plan

from .lives import LivesMachine
from .test_replicated import Message, marker, replicator, section

HOW = ["stop", "kill", "power cut", "power cut, lengths lost"]
# Small, so that a few dozen passes roll ledgers, fill segments and use them again.
OPTIONS = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 3, "roll_over_entries": 7}


class Died(BaseException):
    """The process was killed at this call."""


class SourceMachine(LivesMachine):
    """A source's log, of which `answered` messages have receipts, and the owner that it replicates to.

    Invariant: the target has a beginning of the log that is at least `answered` long.
    """

    def __init__(self):
        super().__init__(**OPTIONS)
        self.log = []                  # (Message, whether it is a marker)
        self.position = (1, -1)
        self.answered = self.next = self.sent = 0      # messages of the log; sent: ever, and perhaps stored
        self.connections = count(1)

    @initialize()
    def begin(self):
        self.rig.consumer("a", "sub")
        self.connect(self.answered)

    def connect(self, first):
        """Connect the replicator anew; it sends from this message on."""
        self.producer, self.next = replicator(self.rig, connection=next(self.connections)), first

    def draw(self, data):
        """Let the log grow, and return the messages that are sent now."""
        for kind in data.draw(st.lists(st.sampled_from("mmmM"), max_size=40)):
            ledger, entry = self.position
            self.position = (ledger + 1, 0) if data.draw(st.integers(0, 9)) == 0 else (ledger, entry + 1)
            text = "{}:{}".format(*self.position)
            message = marker(text) if kind == "M" else Message(text, text.encode())
            self.log.append((message, kind == "M"))
        sent = self.log[self.next:self.next + data.draw(st.integers(1, 60))]
        self.sent = max(self.sent, self.next + len(sent))
        return sent

    @rule(data=st.data())
    def a_pass(self, data):
        sent = self.draw(data)
        if not sent:
            return
        answers = self.rig.run(section(*((self.producer, message) for message, _ in sent)))
        assert len(answers.receipts) == len(sent)
        for (message, is_marker), receipt, highest in zip(sent, answers.receipts, answers.highest, strict=True):
            ledger_id, entry_id = map(int, message.position.split(":"))
            assert (highest == names.MARKER_RECEIPT) if is_marker else (
                (receipt[3], highest) == (ledger_id, entry_id))
        are_known = [position == (NOWHERE, NOWHERE) for position in answers.positions]
        assert are_known == sorted(are_known, reverse=True) and \
            sum(are_known) >= min(len(sent), self.answered - self.next)
        self.next += len(sent)
        self.answered = max(self.answered, self.next)

    @rule(back=st.integers(0, 50))
    def the_source_connects_again(self, back):
        self.connect(max(0, self.answered - back))

    @rule(how=st.sampled_from(HOW), back=st.integers(0, 50))
    def between_passes(self, how, back):
        self.lives.next(how)
        self.check()
        self.connect(max(0, self.answered - back))

    @rule(data=st.data(), how=st.sampled_from(HOW[1:]), back=st.integers(0, 50),
          where=st.sampled_from([(Journal, "append"), (Journal, "sync"), (publish_plan, "apply"),
                                 (markers, "discard")]))
    def within_a_pass(self, data, how, back, where):
        """End the process in a pass: before its record is written, before the sync, before or after it is applied."""
        if not (sent := self.draw(data)):
            return

        def die(*_):
            raise Died

        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Died):
            patch.setattr(*where, die)
            self.rig.run(section(*((self.producer, message) for message, _ in sent)))
        self.lives.next(how)
        self.check()
        self.connect(max(0, self.answered - back))

    def check(self):
        """Check what the target has: all that was answered, and perhaps more of what was sent."""
        stored = [payload for _, payload in self.rig.everything("a")]
        sure = [message.payload for message, is_marker in self.log[:self.answered] if not is_marker]
        most = [message.payload for message, is_marker in self.log[:self.sent] if not is_marker]
        assert len(stored) >= len(sure)
        assert stored == most[:len(stored)]
        consumer = self.rig.consumer("a", "sub")
        assert [payload for _, payload in self.rig.receive(consumer, 1 << 20)] == stored
        self.rig.close_consumer(consumer)


TestSourceMachine = pytest.mark.slow(SourceMachine.TestCase)
TestSourceMachine.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
