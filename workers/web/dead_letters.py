"""Dead letters: a message that was redelivered too often is published to another topic, then acknowledged.

The worker delivers a message again until its dead letter is stored: a loss in between makes a second one.
"""
from collections import deque

from geminga.proto import frames, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.messages.entries import About, Batch, Making, Outgoing
from geminga.workers.pulsar_client.connection import producing
from geminga.workers.web.delivered import Delivered
from geminga.workers.web.handovers import Handover
from geminga.workers.web.subscribing import Topic
from geminga.workers.web.worker_links import Taker, WorkerLink


class DeadLetters:
    """The dead letters of one WebSocket."""

    __slots__ = ("_is_opening", "_making", "_next_id", "_number", "_topic", "_handover", "_waiting", "is_wanted")

    def __init__(self, handover: Handover, topic: str) -> None:
        """topic: to which they go; "": named by the topic of the messages and the subscription."""
        self._handover, self._topic = handover, topic
        self._making: Making | None = None                   # None: there is no producer yet
        self._is_opening, self.is_wanted = False, False      # is_wanted: `send` has something to do
        self._next_id = self._number = 0      # _number: of the producer on the connection
        self._waiting: deque[tuple[int, Topic, Delivered]] = deque()      # with sequence ids; -1: not sent yet

    def __repr__(self) -> str:
        return f"<DeadLetters waiting={len(self._waiting)}>"

    def suspended(self) -> None:
        """Forget what waits: the worker delivers it again."""
        self._waiting.clear()
        self._making, self._is_opening, self.is_wanted = None, False, False

    def add(self, topic: Topic, delivery: Delivered) -> None:
        """Take a message that `send` publishes."""
        self._waiting.append((-1, topic, delivery))
        self.is_wanted = not self._is_opening

    async def send(self, link: WorkerLink, taker: Taker) -> None:
        """Publish what waits.  Raises ClientError."""
        self.is_wanted = False
        if self._making is None:
            self._is_opening = True
            base, subscription = names.parse(self._waiting[0][1].name).base, self._handover.subscription
            name = self._topic or f"{base}-{subscription}{names.DEAD_LETTERS}"
            self._number = link.next_id()
            answer: api.CommandProducerSuccess = await link.open(producing(name, self._number), taker)
            self._making, self._is_opening = Making(answer.producer_name), False
        for _ in range(len(self._waiting)):
            sequence_id, topic, delivery = self._waiting.popleft()
            if sequence_id < 0:
                sequence_id, self._next_id = self._next_id, self._next_id + 1
                link.write(self._frame(self._making, sequence_id, topic, delivery))
            self._waiting.append((sequence_id, topic, delivery))

    def _frame(self, making: Making, sequence_id: int, topic: Topic, delivery: Delivered) -> list[bytes]:
        origin = f"{delivery.position[0]}:{delivery.position[1]}:{topic.partition}"
        if delivery.batch_index >= 0:
            origin += f":{delivery.batch_index}"
        message = delivery.message
        assert message is not None      # kept where there are dead letters
        # As Java's client does: a letter that died before keeps what it says about its origin.
        properties = {"REAL_TOPIC": topic.name, "REAL_SUBSCRIPTION": self._handover.subscription,
                      "ORIGIN_MESSAGE_ID": origin, "ORIGIN_MESSAGE_IDY_TIME": origin} | message.properties
        batch = Batch(making, 1, sequence_id)
        batch.add(Outgoing(message.payload, About(message.key, message.is_key_base64, message.ordering_key,
                                                  tuple(properties.items()), message.event_time_ms)))
        data = batch.entry().data
        send = api.CommandSend(producer_id=self._number, sequence_id=sequence_id, num_messages=1)
        return frames.pieces(frames.command_of(send), data)

    def received(self, sequence_id: int) -> tuple[Topic, Delivered] | None:
        """Return the message whose dead letter is stored, which is to be acknowledged."""
        if not self._waiting or self._waiting[0][0] != sequence_id:
            return None
        _, topic, delivery = self._waiting.popleft()
        return topic, delivery
