"""The client that everybody has, publishing and consuming for good while processes are killed; it reconnects by rules
of its own.

What it hides is told apart by epochs, which are odd while something is being killed: a message that waited for its
receipt during a kill may have been sent again, and acknowledgements are known to have been answered when their consumer
was made and closed between two.
"""
import functools
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pulsar

from ..harness import Broker, eventually, partitioned_topic, request, unique_topic
from ..workers.peer import Closed, Peer
from .promises import Place, Promises, body, number_of
from .traffic import HELD, KEYS, SECONDS, all_but_some, read

WINDOW = 100
STAY = 150            # messages that a consumer takes before another takes its place
TYPES = pulsar.ConsumerType
KINDS: list[dict] = [
    {"kind": TYPES.Exclusive},
    {"kind": TYPES.Exclusive, "is_cumulative": True, "batching": True},
    {"kind": TYPES.Exclusive, "is_deduplicated": True},
    {"kind": TYPES.Shared, "consumers": 2, "batching": True},
    {"kind": TYPES.Shared, "consumers": 2, "batching": True, "partitions": 2, "is_deduplicated": True},
    {"kind": TYPES.Shared, "consumers": 2, "partitions": 2},
    {"kind": TYPES.KeyShared, "consumers": 2, "batching": True, "by_key": True},
    {"kind": TYPES.Failover, "consumers": 2, "batching": True, "partitions": 2},
]


class Client:
    """One topic with its producer and its subscription."""

    def __init__(self, broker: Broker, log: Path, seed: int, epoch: Callable[[], int], *, kind: pulsar.ConsumerType,
                 consumers: int = 1,
                 partitions: int = 0, is_cumulative: bool = False, batching: bool = False, by_key: bool = False,
                 is_deduplicated: bool = False) -> None:
        self._broker, self._chance, self._epoch = broker, random.Random(seed), epoch
        self._kind, self._consumers, self._is_cumulative = kind, consumers, is_cumulative
        self._is_parted = bool(partitions or by_key)
        self.topic = partitioned_topic(broker.http_url, partitions, "run") if partitions else unique_topic("run")
        self.parts = [f"{self.topic}-partition-{number}" for number in range(partitions)] or [self.topic]
        for part in self.parts:
            with Peer(broker.service_url) as peer:
                peer.subscribe(part, "audit")
        self._is_deduplicated = is_deduplicated
        if is_deduplicated:
            status, text = request(
                "POST", f"{broker.http_url}/admin/v2/{self.topic.replace('://', '/')}/deduplicationEnabled", b"true"
            )
            assert status == 204, text
        self.promises = Promises(self.topic)
        self.refused: Counter[str] = Counter()
        self._window = threading.Semaphore(WINDOW)
        self._sent_in: dict[int, int] = {}
        self._is_publishing = self._is_consuming = True
        self._client = pulsar.Client(broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, str(log)))
        self._producer = self._client.create_producer(
            self.topic, f"producer of {self.topic}", send_timeout_millis=0,
            batching_enabled=batching, batching_max_publish_delay_ms=1, batching_max_messages=7,
            batching_type=pulsar.BatchingType.KeyBased if by_key else pulsar.BatchingType.Default)
        for number in range(KEYS):
            # With a receipt, on each partition: a client that reconnects without having got any numbers its messages
            # anew from what the broker has, behind those that it sends again, and deduplication takes them for copies
            # (apache/pulsar, 2047, but in C++).
            self._producer.send(body(number), partition_key=str(number))
            self.promises.receipted.add(number)
            self.promises.sent = number + 1
        self._threads = [threading.Thread(target=run) for run in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    # -- publishing

    def _publish(self) -> None:
        while self._is_publishing:
            if self._window.acquire(timeout=0.1):
                number = self.promises.sent
                self.promises.sent = number + 1
                self._sent_in[number] = self._epoch()
                self._producer.send_async(body(number), functools.partial(self._settle, number),
                                          partition_key=str(number % KEYS))

    def _settle(self, number: int, result: pulsar.Result, _: pulsar.MessageId) -> None:
        kills = (self._epoch() + 1) // 2 - self._sent_in.pop(number) // 2
        self.promises.copies_allowed[number] = 1 if self._is_deduplicated else 1 + kills
        if result == pulsar.Result.Ok:
            self.promises.receipted.add(number)
        else:
            self.refused[f"SEND: {result}"] += 1
        self._window.release()

    # -- consuming

    def _consume(self) -> None:
        while self._is_consuming:
            try:
                self._stay()
            except pulsar.PulsarException as refused:
                self.refused[f"consumer: {refused}"] += 1

    def _stay(self) -> None:
        """Connect consumers that take some messages, acknowledge most of them, and leave."""
        epoch, asked = self._epoch(), {}
        consumers = [self._client.subscribe(self.topic, "sub", self._kind,
                                            initial_position=pulsar.InitialPosition.Earliest,
                                            batch_index_ack_enabled=True, negative_ack_redelivery_delay_ms=100)
                     for _ in range(self._consumers)]
        held: list[tuple[pulsar.Consumer, pulsar.Message, Place]] = []
        silent = 0
        for taken in range(STAY):
            consumer = consumers[taken % len(consumers)]
            try:
                message = consumer.receive(timeout_millis=20)
            except pulsar.Timeout:
                silent += 1
                if silent > 20 or not self._is_consuming:
                    break
                continue
            place = place_of(message.message_id())
            self.promises.delivered(place, number_of(message.data()), message.data())
            if self._kind == TYPES.Shared and self._chance.random() < 0.02:
                consumer.negative_acknowledge(message)
            elif self._is_cumulative or all_but_some(number_of(message.data())):
                held.append((consumer, message, place))
            if len(held) > HELD:
                self._acknowledge(held, asked)
        for consumer in consumers:
            consumer.close()
        if self._epoch() == epoch and epoch % 2 == 0:
            self.promises.acked.update(asked)

    def _acknowledge(self, held: list[tuple[pulsar.Consumer, pulsar.Message, Place]], asked: dict[Place, int]) -> None:
        if self._is_cumulative:
            meant, how = held[:], pulsar.Consumer.acknowledge_cumulative
            held.clear()
        else:
            meant, how = [held.pop(self._chance.randrange(len(held)))], pulsar.Consumer.acknowledge
        places = {place: number_of(message.data()) for _, message, place in meant}
        self.promises.asked.update(places)
        how(meant[-1][0], meant[-1][1])
        asked.update(places)

    # -- the end

    def stop(self) -> None:
        """Stop publishing, and wait until every message has a receipt."""
        self._is_publishing = False
        self._threads[0].join()
        eventually(lambda: not self._sent_in, 3 * SECONDS, f"receipts for {self.topic}")
        self._is_consuming = False
        self._threads[1].join()
        self._client.close()

    def abandon(self) -> None:
        self._is_publishing = self._is_consuming = False
        self._client.shutdown()
        for thread in self._threads:
            thread.join()

    def faults(self) -> Counter[str]:
        """Count broken promises, after the client was stopped."""
        url = self._broker.service_url
        try:
            found = self.promises.kept(*([found for part in self.parts for found in read(url, part, name)]
                                         for name in ("audit", "sub")),
                                       parted=self._is_parted)
        except (Closed, OSError, AssertionError) as error:
            print(f"{self.topic}: {error!r}"[:1000])
            found = Counter(lost=len(self.promises.receipted), unexpected=1)
        for said in self.promises.details:
            print(said)
        for what, count in self.refused.items():
            print(f"{self.topic}: {count} times: {what}")
        return found


def place_of(identity: pulsar.MessageId) -> Place:
    return identity.ledger_id(), identity.entry_id(), identity.batch_index()
