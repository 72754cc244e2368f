"""A closed loop: a burst of messages, whose receipts and deliveries are awaited and acknowledged, then a pause.

The size of a broker's passes is then that of the bursts, whatever else the machine does, so the CPU time of a message
can be compared on a busy machine too.  Each connection has a producer, or a consumer, on every topic.
"""
import time

import sends
from link import ANSWER_MAX_S, CLOCK, BrokerError, Link, Load

from geminga.supervisor.load import wire

PAUSE_S = 0.004
PERMITS = 1_000_000
WARM_UP = 10        # bursts


def await_answers(link: Link, kind: int, count: int) -> list[dict[int, bytes]]:
    """Return the fields of so many commands of a kind.  Raises BrokerError."""
    answers: list[dict[int, bytes]] = []
    until = CLOCK() + ANSWER_MAX_S
    while len(answers) < count:
        if CLOCK() > until:
            raise BrokerError(f"{count - len(answers)} of {count} answers are missing")
        for start in link.receive(1.0).tolist():
            came, fields = wire.command_of(link.inbox, start)
            if came == kind:
                answers.append(fields)
            else:
                link.meet(start, "a burst")
    return answers


class ClosedLoop:
    """One connection that publishes to all topics of the load, and one that consumes from them."""

    def __init__(self, load: Load, messages: int):
        """messages: in a burst.  Raises BrokerError."""
        self.messages = messages
        self.publisher, self.consumer = Link(load), Link(load)
        for number, topic in enumerate(load.topics):
            consumer_id = wire.ID_FIRST + number
            self.consumer.ask(f"subscribing to {topic}", wire.subscribe(
                topic, load.subscription, load.kind, consumer_id, self.consumer.request_id(), "bench", wire.LATEST),
                wire.SUCCESS)
            self.consumer.put(wire.flow(consumer_id, PERMITS))
            self.publisher.ask(f"producing to {topic}", wire.producer(
                topic, consumer_id, self.publisher.request_id(), "bench"), wire.PRODUCER_SUCCESS)
        self.block = sends.SendBlock(
            messages * [sends.entry("bench", b"." * load.size_bytes)], batch=1, producers=len(load.topics))
        self.sent = 0

    def run(self, bursts: int) -> None:
        """Publish bursts, their messages to one topic after the other.  Raises BrokerError."""
        for _ in range(bursts):
            self.publisher.put(self.block.stamped(self.sent, self.messages))
            self.sent += self.messages
            await_answers(self.publisher, wire.SEND_RECEIPT, self.messages)
            newest = {fields[1]: fields[2] for fields in await_answers(self.consumer, wire.MESSAGE, self.messages)}
            self.consumer.put(b"".join([
                wire.acknowledge(consumer_id, wire.CUMULATIVE, wire.string(3, message_id))
                for consumer_id, message_id in newest.items()]))
            time.sleep(PAUSE_S)

    def close(self) -> None:
        self.publisher.close()
        self.consumer.close()
