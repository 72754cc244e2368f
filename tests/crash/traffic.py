"""Clients of raw bytes that publish and consume as fast as they can, and remember exactly what they were promised.

Unlike real clients they say nothing twice and do not reconnect: what a topic holds afterwards can be held against what
they know. Messages are numbers.  `going_on` is a client that begins again whenever it has ended, for as long as it is
wanted.
"""
import random
import struct
import threading
from collections import Counter
from collections.abc import Callable

import pulsar
from google.protobuf.message import DecodeError

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.routing import owner_of

from ..harness import HANG_SECONDS, Broker, eventually, unique_topic
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Closed, Peer
from .promises import Place, Promises, body, number_of

WINDOW = 500          # messages published and not receipted
BURST = 50            # messages, or permits, that are written at once
SECONDS = HANG_SECONDS
HELD = 40             # messages that wait for their acknowledgement, which goes in random order
KEYS = 7
LAST = b"the last"
# of a publisher that is there for good, after each burst: what is started again needs the processor too
PAUSE_SECONDS = 0.04


def is_end(error: Exception) -> bool:
    """Whether the error is the end of a connection by a kill, which may cut a frame."""
    return isinstance(error, (Closed, OSError)) or str(error).startswith("the connection ended inside a frame")


def refuse_to_go_on(answer: api.BaseCommand) -> None:
    """Raise Closed if the answer says that the broker is being stopped, or has no owner yet."""
    if answer.type == T.ERROR and answer.error.error == api.ServiceNotReady:
        raise Closed


class Running:
    """A connection with a thread, which ends with `stop` or with the connection; its state does not change
    afterwards.
    """

    def __init__(self, service_url: str, promises: Promises) -> None:
        self.promises = promises
        self.peer = Peer(service_url)
        self.unexpected: list[object] = []
        self.has_ended = False                    # not by us
        self.receipted: list[int] = []            # what was published, or acknowledged, for good
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        try:
            self.begin()
        except BaseException:
            self.peer.socket.close()
            raise
        self._thread.start()
        return self

    def begin(self) -> None:
        """Send the requests that come before the thread runs."""

    def __exit__(self, *_) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self.step()
        except Exception as error:
            if not is_end(error):
                self.unexpected.append(error)
        self.has_ended = not self._over.is_set()

    def step(self) -> None:
        raise NotImplementedError

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.receipted) + count
        eventually(lambda: len(self.receipted) >= wanted or self.has_ended, SECONDS, f"{count} more receipts")
        assert not self.has_ended

    def stop(self) -> None:
        self._over.set()
        self.peer.end()
        self._thread.join()
        self.peer.socket.close()


class Publisher(Running):
    """Publishes the numbers from promises.sent on, each once, in batches; with a pause, not at full speed."""

    def __init__(
        self, service_url: str, topic: str, promises: Promises | None = None, *, batch: int = 1, pause: float = 0
    ) -> None:
        super().__init__(service_url, promises or Promises(topic))
        self._topic, self._batch, self._pause = topic, batch, pause
        self._answered = self.promises.sent

    def begin(self) -> None:
        answer = self.peer.ask(T.PRODUCER, topic=self._topic, producer_id=1, request_id=1)
        refuse_to_go_on(answer)
        assert answer.type == T.PRODUCER_SUCCESS, answer

    def step(self) -> None:
        first = self.promises.sent
        if first - self._answered <= WINDOW - BURST:
            self._over.wait(self._pause)
            numbers = range(first, first + max(BURST // self._batch, 1) * self._batch)
            self.promises.sent = numbers.stop
            self.peer.say(b"".join(self._entry(number) for number in numbers[::self._batch]))
        heard = self.peer.hear()
        if heard.type == T.SEND_RECEIPT:
            first = heard.send_receipt.sequence_id
            self.receipted += range(first, first + self._batch)
            self.promises.receipted.update(range(first, first + self._batch))
            self.promises.latest = first
            self._answered += self._batch
        elif heard.type == T.CLOSE_PRODUCER:
            raise Closed
        else:
            self.unexpected.append(heard)

    def _entry(self, first: int) -> bytes:
        metadata = {"sequence_id": first, "partition_key": str(first // self._batch % KEYS)}
        if self._batch == 1:
            return send(entry_of(message_metadata(**metadata), body(first)), sequence_id=first)
        payload = b""
        for number in range(first, first + self._batch):
            single = api.SingleMessageMetadata(payload_size=len(body(number))).SerializeToString()
            payload += struct.pack(">I", len(single)) + single + body(number)
        entry = entry_of(message_metadata(**metadata, num_messages_in_batch=self._batch), payload)
        return send(entry, sequence_id=first, num_messages=self._batch)


def messages_of(heard: api.CommandMessage, entry: bytes) -> list[tuple[Place, int, bytes]]:
    """Return [(place, number, body)] of a delivered entry's messages, without those of a batch that are
    acknowledged.  An entry, or the rest of a batch, that cannot be read is one message of the number -1.
    """
    identity, at, index = heard.message_id, 0, -1
    found = []
    try:
        at = 10 + int.from_bytes(entry[6:10])
        metadata = api.MessageMetadata.FromString(entry[10:at])
        if not metadata.HasField("num_messages_in_batch"):
            return [((identity.ledgerId, identity.entryId, -1), number_of(entry[at:]), entry[at:])]
        for index in range(metadata.num_messages_in_batch):
            size = int.from_bytes(entry[at:at + 4])
            single = api.SingleMessageMetadata.FromString(entry[at + 4:at + 4 + size])
            start, at = at + 4 + size, at + 4 + size + single.payload_size
            if not heard.ack_set or heard.ack_set[index // 64] >> (index % 64) & 1:
                place = (identity.ledgerId, identity.entryId, index)
                found.append((place, number_of(entry[start:at]), entry[start:at]))
    except (DecodeError, IndexError):      # IndexError: the broker acknowledged parts of a smaller batch
        found.append(((identity.ledgerId, identity.entryId, index), -1, entry[at:]))
    return found


class Subscriber(Running):
    """Receives everything by one or more consumers, and acknowledges with receipts the messages that `wants` names.

    Messages are acknowledged one by one at once; with a source of chance in random order, and some are given back
    first; in cumulative mode all up to one.
    """

    def __init__(self, service_url: str, topic: str, wants: Callable[[int], bool], promises: Promises | None = None, *,
                 kind: int = api.CommandSubscribe.Exclusive, consumers: int = 1, batch: int = 1,
                 is_cumulative: bool = False, chance: random.Random | None = None) -> None:
        super().__init__(service_url, promises or Promises(topic))
        self.received: list[int] = []
        self._wants, self._batch, self._is_cumulative, self._chance = wants, batch, is_cumulative, chance
        self._gives_back = chance is not None and kind == api.CommandSubscribe.Shared
        self._has_order = kind != api.CommandSubscribe.Shared
        self._held: list[tuple[int, Place, int]] = []                 # consumer, place, number
        self._waiting: dict[int, list[tuple[Place, int]]] = {}        # acknowledged and not answered, by request
        self._requests = 0
        self._last: dict[object, Place] = {}
        self._topic, self._kind = topic, kind
        self._permits = dict.fromkeys(range(1, consumers + 1), 0)      # of each consumer: used, and not given anew yet

    def begin(self) -> None:
        for consumer in self._permits:
            self._subscribe(consumer)
        for consumer in self._permits:
            self.peer.say(command(T.FLOW, consumer_id=consumer, messagePermits=2 * BURST))

    def _subscribe(self, consumer: int) -> None:
        self.peer.say(command(T.SUBSCRIBE, topic=self._topic, subscription="sub", subType=self._kind,
                              consumer_id=consumer, request_id=consumer, consumer_name=f"c{consumer}",
                              initialPosition=api.CommandSubscribe.Earliest))
        while (heard := self.peer.hear()).type == T.ACTIVE_CONSUMER_CHANGE:
            pass
        if heard.type == T.CLOSE_CONSUMER:          # of another one, on this connection
            raise Closed
        refuse_to_go_on(heard)
        assert heard.type == T.SUCCESS, heard

    @property
    def asked(self) -> set[int]:
        return set(self.promises.asked.values())

    def step(self) -> None:
        heard, entry = self.peer.hear_frame()
        if heard.type == T.ACK_RESPONSE:
            assert heard.ackResponse.error == api.UnknownError and not heard.ackResponse.message
            for place, number in self._waiting.pop(heard.ackResponse.request_id):
                self.promises.acked.add(place)
                self.receipted.append(number)
        elif heard.type == T.MESSAGE:
            self._take(heard.message, entry)
        elif heard.type == T.CLOSE_CONSUMER:
            raise Closed
        elif heard.type != T.ACTIVE_CONSUMER_CHANGE:
            self.unexpected.append(heard)

    def _take(self, message: api.CommandMessage, entry: bytes) -> None:
        consumer, found = message.consumer_id, messages_of(message, entry)
        self._permits[consumer] += self._batch
        if self._permits[consumer] >= BURST:
            self.peer.say(command(T.FLOW, consumer_id=consumer, messagePermits=self._permits[consumer]))
            self._permits[consumer] = 0
        if self._gives_back and self._chance.random() < 0.02:
            identity = api.MessageIdData(ledgerId=message.message_id.ledgerId, entryId=message.message_id.entryId)
            self.peer.say(command(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=consumer, message_ids=[identity]))
            return
        for place, number, data in found:
            self.received.append(number)
            self.promises.delivered(place, number, data)
            if self._has_order:
                key = number // self._batch % KEYS if len(self._permits) > 1 else None
                self.promises.found["disorder"] += place <= self._last.get(key, (-1, -1, -1))
                self._last[key] = place
            if self._wants(number):
                self._held.append((consumer, place, number))
        while len(self._held) > (HELD if self._chance else 0):
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._is_cumulative:
            self._say_ack(self._held, api.CommandAck.Cumulative)
            self._held = []
            return
        at = self._chance.randrange(len(self._held)) if self._chance else 0
        self._say_ack([self._held.pop(at)], api.CommandAck.Individual)

    def _say_ack(self, held: list[tuple[int, Place, int]], kind: int) -> None:
        consumer, place, _ = held[-1]
        identity = api.MessageIdData(ledgerId=place[0], entryId=place[1])
        if place[2] >= 0 and kind == api.CommandAck.Individual:
            identity.ack_set.append((1 << self._batch) - 1 & ~(1 << place[2]))
        self._requests += 1
        self._waiting[self._requests] = [(place, number) for _, place, number in held]
        self.promises.asked.update(self._waiting[self._requests])
        self.peer.say(command(T.ACK, consumer_id=consumer, ack_type=kind, message_id=[identity],
                              request_id=self._requests))


class GoingOn:
    """A client that reconnects whenever its connection has ended; the broker's addresses may change meanwhile."""

    def __init__(self, begin: Callable[[], Running]) -> None:
        self._begin = begin
        self._over = threading.Event()
        self._now: Running | None = None
        self.lives = 0
        self.unexpected: list[object] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with self._begin() as life:
                    self.lives += 1
                    eventually(lambda: life.has_ended or self._over.is_set(), 3600)
                self.unexpected += life.unexpected
            except Exception as error:
                if not is_end(error):
                    self.unexpected.append(error)
                self._over.wait(0.02)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def all_but_some(number: int) -> bool:
    return number % 20 != 3


LANES: list[dict] = [
    {"kind": api.CommandSubscribe.Exclusive},
    {"kind": api.CommandSubscribe.Exclusive, "is_cumulative": True, "batch": 3},
    {"kind": api.CommandSubscribe.Shared, "consumers": 2, "batch": 5},
    {"kind": api.CommandSubscribe.Key_Shared, "consumers": 2, "batch": 2},
    {"kind": api.CommandSubscribe.Failover, "consumers": 2},
]


class Lane:
    """A publisher and a subscriber of one topic that reconnect, and what they were promised."""

    def __init__(self, broker: Broker, topic: str, seed: int, *, is_audited: bool, **how) -> None:
        self.promises = Promises(topic, is_audited)
        self._broker, self._batch, self._how, self._chance = broker, how.get("batch", 1), how, random.Random(seed)
        self._has_audit = not is_audited
        self.clients = [GoingOn(self._publish), GoingOn(self._subscribe)]

    def _publish(self) -> Publisher:
        if not self._has_audit:
            with Peer(self._broker.service_url) as peer:
                peer.subscribe(self.promises.topic, "audit")
            self._has_audit = True
        return Publisher(self._broker.service_url, self.promises.topic, self.promises, batch=self._batch,
                         pause=PAUSE_SECONDS)

    def _subscribe(self) -> Subscriber:
        wants = (lambda number: True) if self._how.get("is_cumulative") else all_but_some
        return Subscriber(self._broker.service_url, self.promises.topic, wants, self.promises, chance=self._chance,
                          **self._how)

    def stop(self) -> None:
        for client in self.clients:
            client.stop()

    def faults(self) -> Counter[str]:
        """Count broken promises, after the lane was stopped."""
        url, promises = self._broker.service_url, self.promises
        unexpected = [said for client in self.clients for said in client.unexpected]
        try:
            found = promises.kept(read(url, promises.topic, "audit"), read(url, promises.topic, "sub"))
        except (Closed, OSError, AssertionError) as error:
            found = Counter(lost=len(promises.receipted))
            unexpected.append(error)
        for said in promises.details + unexpected:
            print(f"{self._how}: {said!r}"[:1000])
        found["unexpected"] += len(unexpected)
        return +found


def read(service_url: str, topic: str, name: str) -> list[tuple[Place, int]]:
    """Return (place, number) of all messages that a subscription has left, up to a marker published now."""
    with Peer(service_url) as peer:
        peer.open_producer(topic)
        peer.say(send(entry_of(message_metadata(), LAST)))
        receipt = peer.hear()
        assert receipt.type == T.SEND_RECEIPT, receipt
        last = receipt.send_receipt.message_id
        peer.subscribe(topic, name)
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=1 << 30))
        found = []
        while True:
            heard, entry = peer.hear_frame()
            if heard.type != T.MESSAGE:
                continue
            identity = heard.message.message_id
            if (identity.ledgerId, identity.entryId) == (last.ledgerId, last.entryId):
                return found
            found += [(place, number) for place, number, data in messages_of(heard.message, entry) if data != LAST]


def left_in(client: pulsar.Client, topic: str, name: str = "") -> list[int]:
    """Return the numbers that a subscription has left, or without a name all that the topic holds, up to a marker."""
    producer = client.create_producer(topic)
    last = producer.send(LAST)
    producer.close()
    if name:
        consumer = client.subscribe(topic, name)
        following = lambda: consumer.receive(timeout_millis=SECONDS * 1000)  # noqa: E731
    else:
        consumer = client.create_reader(topic, pulsar.MessageId.earliest)
        following = lambda: consumer.read_next(timeout_millis=SECONDS * 1000)  # noqa: E731
    found = []
    while (message := following()).message_id() != last:
        if message.data() != LAST:          # of an earlier call
            found.append(int(message.data()))
    consumer.close()
    return found


def topic_of_owner(owner: int) -> str:
    """Return a topic that belongs to this one of two owners."""
    return next(topic for topic in iter(lambda: unique_topic("crash"), "") if owner_of(topic, 2) == owner)
