"""Acknowledgements of a consumer, gathered into few commands.

The worker knows which messages of a batch are acknowledged, if it keeps that at all.  If it does not, the entry has to
be acknowledged when the last of its messages is, so the messages that are left are kept here, too.
"""
import asyncio
from collections.abc import Iterable

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.pulsar_client.entries import Entry, ack_set_of
from geminga.workers.web.subscribing import Topic
from geminga.workers.web.worker_links import WorkerLink

_BITS_MAX = 64 << 20         # messages of all batches that are acknowledged in part and known
BATCH_MAX = 1 << 17          # messages of a batch that an id may claim


class Acknowledging:
    """The acknowledgements of one WebSocket."""

    __slots__ = ("_bits", "_left", "_touched", "_waiting")

    def __init__(self) -> None:
        # (topic's number, ledger, entry) of a batch -> bits of its messages that are not acknowledged, and their number
        self._left: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._bits = 0                                                 # sum of these numbers
        self._touched: dict[tuple[int, int, int], Topic] = {}          # batches whose change is not sent yet
        self._waiting: dict[tuple[int, int], api.CommandAck] = {}      # (consumer, type) -> what is to be sent

    def __repr__(self) -> str:
        return f"<Acknowledging batches={len(self._left)} waiting={len(self._waiting)}>"

    def clear(self) -> None:
        """Forget everything: the consumer has lost its worker."""
        self._left.clear()
        self._bits = 0
        self._touched.clear()
        self._waiting.clear()

    def came(self, topic: Topic, entry: Entry) -> None:
        """Take note of an entry that has come: what was acknowledged of it before counts no more."""
        key = topic.number, entry.ledger_id, entry.entry_id
        if key in self._left and key not in self._touched:
            self._forget(key)

    def _forget(self, key: tuple[int, int, int]) -> None:
        self._bits -= self._left.pop(key)[1]

    def message(self, topic: Topic, place: api.MessageIdData) -> None:
        """Acknowledge one message.  Raises ValueError."""
        index, size = _in_batch(place)
        topic.redeliveries.pop((place.ledgerId, place.entryId), None)
        others = topic.chunks.pop((place.ledgerId, place.entryId), ()) if topic.chunks else ()
        if index < 0:
            for ledger_id, entry_id in (*others, (place.ledgerId, place.entryId)):
                self._command(topic, api.CommandAck.Individual).message_id.add(ledgerId=ledger_id, entryId=entry_id)
            return
        key = topic.number, place.ledgerId, place.entryId
        if key not in self._left:
            self._left[key] = (1 << size) - 1, size
            self._bits += size
        left, size = self._left[key]
        self._left[key] = left & ~(1 << index), size
        self._touched[key] = topic

    def entries(self, link: WorkerLink, topic: Topic, positions: Iterable[tuple[int, int]]) -> None:
        """Acknowledge entries at once."""
        for ledger_id, entry_id in positions:
            self._command(topic, api.CommandAck.Individual).message_id.add(ledgerId=ledger_id, entryId=entry_id)
        self.flush(link)

    def up_to(self, topic: Topic, place: api.MessageIdData) -> None:
        """Acknowledge a message and all before it.  Raises ValueError."""
        index, size = _in_batch(place)
        command = self._command(topic, api.CommandAck.Cumulative)
        del command.message_id[:]
        message = command.message_id.add(ledgerId=place.ledgerId, entryId=place.entryId)
        if 0 <= index < size - 1:
            message.ack_set.extend(ack_set_of((1 << size) - (1 << index + 1), size))

    def _add_parts(self) -> None:
        """Turn what was acknowledged of batches since the last time into acknowledgements, one for each batch."""
        touched, self._touched = self._touched, {}
        for key, topic in touched.items():
            left, size = self._left[key]
            message = self._command(topic, api.CommandAck.Individual).message_id.add(ledgerId=key[1], entryId=key[2])
            if left:
                message.ack_set.extend(ack_set_of(left, size))
            else:
                self._forget(key)
        while self._bits > _BITS_MAX:      # the broker knows them too, unless it was told not to keep that
            self._forget(next(iter(self._left)))

    def flush(self, link: WorkerLink | None) -> None:
        """Send what was gathered; without a worker it is forgotten, and the messages come again."""
        for command in self._gathered():
            if link is not None:
                link.send(command)

    async def ask(self, link: WorkerLink) -> None:
        """Send what was gathered, and return when the broker has it on disk.  Raises ClientError."""
        await asyncio.gather(*[link.ask(command) for command in self._gathered()])

    def _gathered(self) -> list[api.CommandAck]:
        self._add_parts()
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())

    def _command(self, topic: Topic, kind: "api.CommandAck.AckType.ValueType") -> api.CommandAck:
        command = self._waiting.get((topic.number, kind))
        if command is None:
            command = self._waiting[topic.number, kind] = api.CommandAck(consumer_id=topic.number, ack_type=kind)
        return command


def _in_batch(place: api.MessageIdData) -> tuple[int, int]:
    """Return (index in its batch, messages of the batch), (-1, 0) outside of one.  Raises ValueError."""
    index, size = place.batch_index, place.batch_size
    if size > BATCH_MAX:
        raise ValueError(f"a batch has at most {BATCH_MAX} messages")
    return (index, size) if 0 <= index < size and size > 1 else (-1, 0)
