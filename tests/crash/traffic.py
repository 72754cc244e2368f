"""Clients of raw bytes that publish and consume as fast as they can, and remember exactly what they were promised.

Unlike real clients they say nothing twice and do not reconnect: what a topic holds afterwards can be held against what they know.
Messages are numbers.
"""
import threading
from collections.abc import Callable
from contextlib import suppress

import pulsar

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.links import owner_of

from ..harness import eventually, unique_topic
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Closed, Peer

WINDOW = 500          # messages published and not receipted
BURST = 50            # SENDs, or permits, that are written at once
SECONDS = 15          # for what should take far less, on a busy machine


class Running:
    """One connection with a thread; over when `stop` is called or the connection ends, and then nothing about it changes."""

    def __init__(self, service_url: str) -> None:
        self.peer = Peer(service_url)
        self.unexpected: list[api.BaseCommand] = []
        self.has_ended = False                    # not by us
        self.receipted: list[int] = []            # what was published, or acknowledged, for good
        self._is_over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self._is_over:
                self.step()
        except (Closed, OSError, AssertionError):      # a kill may cut a frame
            self.has_ended = not self._is_over

    def step(self) -> None:
        raise NotImplementedError

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.receipted) + count
        eventually(lambda: len(self.receipted) >= wanted or self.has_ended, SECONDS, f"{count} more receipts")
        assert not self.has_ended

    def stop(self) -> None:
        self._is_over = True
        self.peer.end()
        self._thread.join()
        self.peer.socket.close()


class Publisher(Running):
    """Publishes numbers from `first` on, none of them twice."""

    def __init__(self, service_url: str, topic: str, first: int = 0) -> None:
        super().__init__(service_url)
        self.peer.open_producer(topic)
        self.next = first
        self._answered = first

    def step(self) -> None:
        if self.next - self._answered <= WINDOW - BURST:
            numbers = range(self.next, self.next + BURST)
            self.next += BURST
            self.peer.say(b"".join(
                send(entry_of(message_metadata(sequence_id=number), b"%d" % number), sequence_id=number) for number in numbers))
        heard = self.peer.hear()
        if heard.type == T.SEND_RECEIPT:
            self.receipted.append(heard.send_receipt.sequence_id)
            self._answered += 1
        else:
            self.unexpected.append(heard)


class Subscriber(Running):
    """Receives everything and acknowledges what `wants`, one by one, asking for receipts."""

    def __init__(self, service_url: str, topic: str, wants: Callable[[int], bool]) -> None:
        super().__init__(service_url)
        self.received: list[int] = []
        self.asked: set[int] = set()
        self._wants = wants
        self.peer.subscribe(topic)
        self.peer.say(command(T.FLOW, consumer_id=1, messagePermits=2 * BURST))

    def step(self) -> None:
        heard, entry = self.peer.hear_frame()
        if heard.type == T.ACK_RESPONSE:
            assert heard.ackResponse.error == api.UnknownError and not heard.ackResponse.message
            self.receipted.append(heard.ackResponse.request_id)
        elif heard.type == T.MESSAGE:
            self._take(heard.message.message_id, int(entry[10 + int.from_bytes(entry[6:10]):]))
        else:
            self.unexpected.append(heard)

    def _take(self, identity: api.MessageIdData, number: int) -> None:
        self.received.append(number)
        if len(self.received) % BURST == 0:
            self.peer.say(command(T.FLOW, consumer_id=1, messagePermits=BURST))
        if self._wants(number):
            self.asked.add(number)
            self.peer.say(command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=[identity], request_id=number))


def left_in(client: pulsar.Client, topic: str, name: str = "") -> list[int]:
    """What a subscription has left, or with no name what the topic holds: all that comes before a last message published now."""
    producer = client.create_producer(topic)
    last = producer.send(b"the last")
    producer.close()
    if name:
        consumer = client.subscribe(topic, name)
        following = lambda: consumer.receive(timeout_millis=SECONDS * 1000)  # noqa: E731
    else:
        consumer = client.create_reader(topic, pulsar.MessageId.earliest)
        following = lambda: consumer.read_next(timeout_millis=SECONDS * 1000)  # noqa: E731
    found = []
    while (message := following()).message_id() != last:
        with suppress(ValueError):          # the last of an earlier call
            found.append(int(message.data()))
    consumer.close()
    return found


def is_ascending(numbers: list[int]) -> bool:
    return all(one < other for one, other in zip(numbers, numbers[1:], strict=False))


def topic_of_owner(owner: int) -> str:
    """A topic that this one of two owners has."""
    return next(topic for topic in iter(lambda: unique_topic("crash"), "") if owner_of(topic, 2) == owner)
