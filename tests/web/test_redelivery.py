"""When a WebSocket's consumer has messages delivered again, under a clock that the test sets."""
import asyncio
from types import SimpleNamespace

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.web.consumer import Consumer
from geminga.workers.web.handovers import CONSUMER
from geminga.workers.web.parameters import consuming
from geminga.workers.web.subscribing import Topic

EARLY_S = 0.0004      # by which timers of uvloop, which count whole milliseconds, may come


class Clock:
    """An event loop that has nothing but a time and timers."""

    def __init__(self):
        self.now, self.timer = 100.0, None

    def time(self):
        return self.now

    def call_at(self, when, call):
        self.timer = when, call
        return SimpleNamespace(cancel=lambda: None)

    def run_until(self, end):
        """Let timers come until a time, each a little early as the real ones do."""
        while self.timer is not None and self.timer[0] <= end:
            (when, call), self.timer = self.timer, None
            self.now = max(self.now + 0.0001, when - EARLY_S)
            call()
        self.now = end


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


class Played(Consumer):
    """A consumer of one topic, whose redeliveries are noted with their time."""

    def __init__(self, clock, kind):
        handover = SimpleNamespace(kind=CONSUMER, topics=("t",), subscription="s", pattern="")
        parameters = consuming({"subscriptionType": kind, "negativeAckRedeliveryDelay": "200"})
        super().__init__(handover, None, SimpleNamespace(), parameters)
        self.clock, self.again = clock, []

    def _redeliver(self, topic, positions):
        self.again.append((round(self.clock.now - 100, 2), sorted(entry for _, entry in positions)))

    def refuse(self, entry):
        topic = Topic(1, "persistent://public/default/t", None)
        self._subscribing.topics[1] = topic
        self._about_message("negativeAcknowledge", api.MessageIdData(ledgerId=1, entryId=entry))

    def taken(self):
        """Nothing waits."""


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_a_message_that_is_given_back_many_times_comes_again_as_soon_each_time(clock, kind):
    consumer = Played(clock, kind)
    for _ in range(5):
        consumer.refuse(7)
        clock.run_until(clock.now + 0.25)
    assert consumer.again == [(0.2 + 0.25 * number, [7]) for number in range(5)]


@pytest.mark.parametrize(("kind", "again"), [
    ("Shared", [(0.2, [0]), (0.25, [1]), (0.3, [2])]), ("Exclusive", [(0.2, [0, 1, 2])])])
def test_a_message_that_is_given_back_soon_after_another_does_not_wait_for_it(clock, kind, again):
    """Where all comes again with the first one, the times of the others bring nothing more."""
    consumer = Played(clock, kind)
    for entry in range(3):
        consumer.refuse(entry)
        clock.run_until(clock.now + 0.05)
    clock.run_until(101)
    assert consumer.again == again


def test_messages_that_are_given_back_together_come_again_together(clock):
    consumer = Played(clock, "Shared")
    for entry in range(100):
        consumer.refuse(entry)
        clock.now += 0.0001
    clock.run_until(101)
    assert sum(len(entries) for _, entries in consumer.again) == 100 and len(consumer.again) <= 3
