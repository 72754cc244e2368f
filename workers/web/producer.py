"""A producer of a WebSocket: texts -> entries -> receipts -> texts, in the order of the texts.

Each partition of the topic has a lane: a producer of the worker, a batch that fills, and entries that wait for their
receipts.  When the session is lost, entries without a receipt are sent again with the same sequence ids.
"""
import asyncio
import random
from collections import deque

from geminga.proto import frames, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.workers.messages.entries import Batch, Making
from geminga.workers.pulsar_client.connection import producing as opening
from geminga.workers.web import publishing
from geminga.workers.web.handovers import Handover
from geminga.workers.web.parameters import Producing
from geminga.workers.web.publishing import NOT_PUBLISHED, Sent, Wrong
from geminga.workers.web.session import Channel, Session
from geminga.workers.web.worker_links import WorkerLink, WorkerLinks

# Messages and bytes without an answer, beyond which the client is not read.
_WAITING_MAX, _BYTES_MAX = 4_000, 4 << 20
_NO_ID = (1 << 64) - 1       # ledger of a receipt for what is not stored
_TOO_LATE = "The message was not stored in time"


class Answer:
    """The answer to one text, which is sent when those before it are."""

    __slots__ = ("context", "text")

    def __init__(self, context: str, text: bytes = b"") -> None:
        self.context, self.text = context, text      # text: b"" while it is not known

    def refuse(self, why: str) -> None:
        """Answer that the message is not stored."""
        self.text = publishing.refused(NOT_PUBLISHED, why, self.context)


class Waiting:
    """An entry without a receipt."""

    __slots__ = ("answers", "by", "data", "sequence_id")

    def __init__(self, sequence_id: int, answers: list[Answer], data: bytes, by: float) -> None:
        self.sequence_id, self.answers, self.data, self.by = sequence_id, answers, data, by

    def frame(self, lane: "Lane") -> list[bytes]:
        """Return the frame of a CommandSend with the entry, as buffers that are written one after the other."""
        count = len(self.answers)
        send = api.CommandSend(producer_id=lane.number, sequence_id=self.sequence_id, num_messages=count)
        if count > 1:
            send.highest_sequence_id = self.sequence_id + count - 1
        return frames.pieces(frames.command_of(send), self.data)


class Lane:
    """One partition of the topic, or a topic without partitions."""

    __slots__ = ("answers", "batch", "making", "next_id", "number", "partition", "topic", "waiting")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.number = 0                            # of the producer on the connection
        self.making = Making("")
        self.next_id = 0                           # sequence id of the next message
        self.batch: Batch | None = None            # messages that wait to become an entry
        self.answers: list[Answer] = []            # of those
        self.waiting: deque[Waiting] = deque()


class Producer(Session):
    """A producer, and the messages that its client waits for."""

    __slots__ = ("_answers", "_by_number", "_bytes", "_delay", "_failure", "_is_held", "_lanes", "_parameters",
                 "_pieces", "_schema", "_size_max", "_timer", "_turn")

    def __init__(self, handover: Handover, links: WorkerLinks, connection: Channel, parameters: Producing) -> None:
        super().__init__(handover, links, connection)
        self._parameters = parameters
        self._schema: api.Schema | None = None                    # with which producers are opened
        self._lanes: list[Lane] = []
        self._turn = 0                                            # lane of messages without a key
        self._answers: deque[Answer] = deque()
        self._bytes = 0                                           # of entries without a receipt
        self._pieces: list[bytes] = []                            # frames that are not written yet
        self._delay: asyncio.TimerHandle | None = None            # publishes batches that are not full
        self._timer: asyncio.TimerHandle | None = None            # looks for entries that are too late
        self._is_held = False                                     # the client is not read
        self._size_max = 0                                        # bytes of an entry that the worker takes
        self._failure = ""                                        # why nothing can be published any more

    # -- opening

    async def begin(self, link: WorkerLink) -> None:
        """Open the lanes.  Raises ClientError."""
        self._size_max = link.message_size_max
        if not self._lanes:
            self._lanes = await self._new_lanes(link)
        for lane in self._lanes:
            await self._open_lane(link, lane)

    @property
    def has_partitions(self) -> bool:
        return bool(self._lanes) and self._lanes[0].partition >= 0

    async def grow(self, link: WorkerLink) -> None:
        topic = self.handover.topics[0]
        for number in range(len(self._lanes), await link.partition_count(topic, may_create=False)):
            lane = Lane(f"{topic}-partition-{number}", number)
            await self._open_lane(link, lane)
            if self.link is not link:      # lost meanwhile, and opened without this lane
                return
            self._lanes.append(lane)

    async def _open_lane(self, link: WorkerLink, lane: Lane) -> None:
        """Raises ClientError."""
        lane.number = link.next_id()
        answer: api.CommandProducerSuccess = await link.open(
            opening(lane.topic, lane.number, lane.making.producer_name or self._parameters.name, self._schema,
                    is_generated=not self._parameters.name), self)
        if not lane.making.producer_name:
            first = self._parameters.initial_sequence_id
            last = max(answer.last_sequence_id, -1 if first is None else first)
            lane.next_id, lane.making = last + 1, Making(answer.producer_name, None, self._parameters.codec)

    async def _new_lanes(self, link: WorkerLink) -> list[Lane]:
        topic = self.handover.topics[0]
        count = await link.partition_count(topic)
        if self._parameters.is_round_robin or not count:
            self._turn = 0
        else:
            self._turn = random.randrange(count)  # noqa: S311 - any of them
        return [Lane(f"{topic}-partition-{number}", number) for number in range(count)] or [Lane(topic, -1)]

    def began(self) -> None:
        self._failure = ""
        assert self.link is not None
        # In the order and with the ids of the first time: deduplication then drops what was stored before the loss.
        for lane in self._lanes:
            for entry in lane.waiting:
                self.link.write(entry.frame(lane))
        self._hold_or_go_on()

    def failed(self, why: str) -> None:
        """Answer all that waits: nothing can be published any more, and the connection stays."""
        self._failure = why
        for lane in self._lanes:
            for answer in lane.answers:
                answer.refuse(why)
            lane.batch, lane.answers = None, []
            while lane.waiting:
                self._refuse(lane.waiting.popleft(), why)
        self.taken()

    def closed(self) -> None:
        super().closed()
        for timer in (self._delay, self._timer):
            if timer is not None:
                timer.cancel()

    # -- texts of the client

    def texts(self, texts: list[str]) -> None:
        if self.link is not None and not self.link.is_own:
            self.move()
        is_encrypted = bool(self._parameters.encryption_keys)
        for text in texts:
            try:
                self._publish(publishing.read(text, is_encrypted=is_encrypted))
            except Wrong as wrong:
                self._answers.append(
                    Answer(wrong.context, publishing.refused(wrong.number, wrong.text, wrong.context)))
        if self._delay is None and self._parameters.batch_messages > 1 and any(lane.answers for lane in self._lanes):
            loop = asyncio.get_running_loop()
            self._delay = loop.call_later(self._parameters.batch_delay_ms / 1_000, self._publish_batches)
        self._write()
        self.taken()

    def _publish(self, sent: Sent) -> None:
        answer = Answer(sent.context)
        self._answers.append(answer)
        if self._failure:
            return answer.refuse(self._failure)
        lane = self._lane(sent)
        if sent.encryption is not None:
            data = publishing.encrypted_entry(sent, self._parameters.encryption_keys, lane.making.producer_name,
                                              lane.next_id)
            lane.next_id += 1
            return self._send(lane, data, lane.next_id - 1, [answer])
        if lane.batch is None:
            lane.batch = Batch(lane.making, self._parameters.batch_messages, lane.next_id)
        if not lane.batch.takes(sent.outgoing):
            self._end_batch(lane)
        lane.batch.add(sent.outgoing)
        lane.answers.append(answer)
        if self._parameters.batch_messages == 1 or lane.batch.is_full:
            self._end_batch(lane)

    def _lane(self, sent: Sent) -> Lane:
        if len(self._lanes) == 1:
            return self._lanes[0]
        key = sent.outgoing.about.key
        if key is not None:
            return self._lanes[self._parameters.hash(key) % len(self._lanes)]
        lane = self._lanes[self._turn]
        # A batch stays together: else each partition would have a batch of its own.
        is_full = lane.batch is None or len(lane.batch) + 1 >= self._parameters.batch_messages
        if self._parameters.is_round_robin and (self._parameters.batch_messages == 1 or is_full):
            self._turn = (self._turn + 1) % len(self._lanes)
        return lane

    def _publish_batches(self) -> None:
        self._delay = None
        for lane in self._lanes:
            self._end_batch(lane)
        self._write()
        self.taken()

    def _end_batch(self, lane: Lane) -> None:
        """Make an entry of the messages that wait in the lane."""
        if lane.batch is None or not lane.answers:
            return
        entry = lane.batch.entry()
        lane.next_id = entry.sequence_id + entry.messages
        answers, lane.answers = lane.answers, []
        self._send(lane, entry.data, entry.sequence_id, answers)

    def _send(self, lane: Lane, data: bytes, sequence_id: int, answers: list[Answer]) -> None:
        timeout_ms, loop = self._parameters.send_timeout_ms, asyncio.get_running_loop()
        entry = Waiting(sequence_id, answers, data, loop.time() + timeout_ms / 1_000)
        if len(data) > self._size_max:
            return self._refuse(entry, f"The message is larger than {self._size_max} bytes", held=False)
        lane.waiting.append(entry)
        self._bytes += len(data)
        if self.link is not None:      # else `began` writes all that waits
            self._pieces += entry.frame(lane)
        if timeout_ms and self._timer is None:
            self._timer = loop.call_at(entry.by, self._expire)

    def _write(self) -> None:
        """Write what is gathered."""
        if self._pieces and self.link is not None:
            self.link.write(self._pieces)
        self._pieces = []

    # -- answers of the worker

    def received(self, receipt: api.CommandSendReceipt) -> None:
        lane = self._lane_of(receipt.producer_id)
        if (entry := self._taken_from(lane, receipt.sequence_id)) is None:
            return
        place = receipt.message_id
        head = b"".join((b"\x08", _varint(place.ledgerId), b"\x10", _varint(place.entryId),
                         b"\x18" + _varint(lane.partition) if lane.partition >= 0 else b""))
        answers, count = entry.answers, len(entry.answers)
        if count == 1:
            answers[0].text = publishing.published(publishing.id_text(head + b"\x30\x00"), answers[0].context)
            return
        end = b"\x30" + varints.encode(count)
        for index, answer in enumerate(answers):
            answer.text = publishing.published(
                publishing.id_text(b"".join((head, b"\x20", varints.encode(index), end))), answer.context)

    def _lane_of(self, number: int) -> Lane:
        return next(lane for lane in self._lanes if lane.number == number)

    def not_sent(self, error: api.CommandSendError) -> None:
        lane = self._lane_of(error.producer_id)
        if (entry := self._taken_from(lane, error.sequence_id)) is not None:
            for answer in entry.answers:
                answer.refuse(error.message)

    def _taken_from(self, lane: Lane, sequence_id: int) -> Waiting | None:
        """Remove the entry with a sequence id; None if nobody waits for it any more."""
        for at, entry in enumerate(lane.waiting):      # the first one, unless a refusal overtakes receipts
            if entry.sequence_id == sequence_id:
                del lane.waiting[at]
                self._bytes -= len(entry.data)
                return entry
        return None

    def _refuse(self, entry: Waiting, why: str, *, held: bool = True) -> None:
        self._bytes -= len(entry.data) if held else 0
        for answer in entry.answers:
            answer.refuse(why)

    def taken(self) -> None:
        """Send the answers that are known, up to the first one that is not."""
        answers, texts = self._answers, []
        while answers and answers[0].text:
            texts.append(answers.popleft().text)
        if texts:
            self.connection.send(texts)
        self._hold_or_go_on()

    def take_command(self, command: api.BaseCommand) -> None:
        if command.type == T.CLOSE_PRODUCER:
            self.lost("the worker closed the producer")

    def _expire(self) -> None:
        """Answer entries that have waited too long."""
        self._timer = None
        now, loop = asyncio.get_running_loop().time(), asyncio.get_running_loop()
        for lane in self._lanes:
            while lane.waiting and lane.waiting[0].by <= now:
                self._refuse(lane.waiting.popleft(), _TOO_LATE)
        first = min((lane.waiting[0].by for lane in self._lanes if lane.waiting), default=None)
        if first is not None:
            self._timer = loop.call_at(first, self._expire)
        self.taken()

    # -- what the client may send

    def link_writable(self) -> None:
        self._hold_or_go_on()

    def socket_writable(self, *, is_writable: bool) -> None:
        self._hold_or_go_on()

    def _hold_or_go_on(self) -> None:
        """Read from the client only while its messages and answers find room."""
        is_full = (len(self._answers) > _WAITING_MAX or self._bytes > _BYTES_MAX or not self.connection.is_writable
                   or (self.link is not None and not self.link.is_writable))
        if is_full and not self._is_held:
            self._is_held = True
            self.connection.pause_reading()
        elif self._is_held and not is_full:
            self._is_held = False
            self.connection.resume_reading()


def _varint(number: int) -> bytes:
    """Return a number as protobuf writes it; -1, which stands for no entry, has 64 bits."""
    return varints.encode(number & _NO_ID)


