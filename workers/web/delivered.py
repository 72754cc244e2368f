"""Entries -> texts for consumers and readers, and message ids."""
import base64
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime import units
from geminga.workers.messages.decoding import Decoder
from geminga.workers.messages.message import Message, text_of, texts_of
from geminga.workers.pulsar_client.entries import Entry


class Delivered(NamedTuple):
    """A message that is on its way to a client.  Positions are (ledger, entry)."""

    position: tuple[int, int]
    batch_index: int                            # -1: not in a batch
    batch_size: int                             # messages of the batch, 0: not in a batch
    others: tuple[tuple[int, int], ...]         # of the other chunks of a large message
    redelivery_count: int
    text: bytes                                 # JSON; b"" over plain HTTP, which needs the message itself
    message: Message | None                     # for dead letters and plain HTTP
    encryption: dict[str, Any] | None           # what is known of the keys; None: the message is not encrypted

    @property
    def size(self) -> int:
        """Bytes that are kept until the message goes to the client."""
        return len(self.text) + (0 if self.message is None else len(self.message.payload))

    @property
    def id(self) -> api.MessageIdData:
        ledger_id, entry_id = self.position
        return api.MessageIdData(ledgerId=ledger_id, entryId=entry_id, batch_index=self.batch_index,
                                 batch_size=self.batch_size)


def messages(decoder: Decoder, topic: str, partition: int, entry: Entry, *,
             has_text: bool, keeps_message: bool) -> Iterator[Delivered]:
    """Iterate over the messages of an entry that is not encrypted.

    has_text, keeps_message: whether they have a text, and the message itself.
    """
    for message in decoder.messages(topic, entry):
        others = tuple(place for place in message.chunks if place != (message.ledger_id, message.entry_id))
        yield Delivered((message.ledger_id, message.entry_id), message.batch_index, message.batch_size, others,
                        message.redelivery_count, _text(message, partition, "") if has_text else b"",
                        message if keeps_message else None, None)


def encrypted(topic: str, partition: int, entry: Entry, *, has_text: bool) -> Delivered:
    """Return the one message of an encrypted entry: a batch cannot be opened, and counts as one message."""
    own = entry.metadata
    count = own.num_messages_in_batch if own.HasField("num_messages_in_batch") else None
    keys = {text_of(key.key): {"keyValue": _base64(key.value), "metadata": texts_of(key.metadata)}
            for key in own.encryption_keys}
    context = {"keys": keys, "param": _base64(own.encryption_param),
               "compressionType": api.CompressionType.Name(own.compression),
               "uncompressedMessageSize": own.uncompressed_size, "batchSize": count}
    if own.encryption_algo:
        context["algorithm"] = text_of(own.encryption_algo)
    key = text_of(own.partition_key) if own.HasField("partition_key") else None
    properties = texts_of(own.properties)
    message = Message(topic, entry.ledger_id, entry.entry_id, -1, 0, partition, entry.payload, key, None, properties,
                      own.publish_time, own.event_time, 0, "", 0, None, entry.redelivery_count, own.null_value,
                      own.partition_key_b64_encoded)
    text = _text(message, partition, f',"encryptionContext":{json.dumps(context)}') if has_text else b""
    return Delivered(entry[:2], -1, 0, (), entry.redelivery_count, text, None if has_text else message, context)


def _text(message: Message, partition: int, more: str) -> bytes:
    properties = json.dumps(message.properties) if message.properties else "{}"
    if message.event_time_ms:
        more += f',"eventTime":"{moment(message.event_time_ms)}"'
    if message.key is not None:
        more += f',"key":{json.dumps(message.key)}'
    place = message_id(message.ledger_id, message.entry_id, partition, message.batch_index, message.batch_size)
    return (f'{{"messageId":"{place}","payload":"{_base64(message.payload)}","properties":{properties},'
            f'"publishTime":"{moment(message.publish_time_ms)}","redeliveryCount":{message.redelivery_count}{more}}}'
            ).encode()


def message_id(ledger_id: int, entry_id: int, partition: int, batch_index: int, batch_size: int) -> str:
    """Return the text of a message id, with the fields that Pulsar gives it."""
    place = api.MessageIdData(ledgerId=ledger_id, entryId=entry_id, batch_size=max(0, batch_size))
    if partition >= 0:
        place.partition = partition
    if batch_index >= 0:
        place.batch_index = batch_index
    return _base64(place.SerializeToString())


def moment(time_ms: int) -> str:
    """Return a time as Pulsar writes it; far times are the last one of all."""
    return units.trimmed_instant(time_ms) or "9999-12-31T23:59:59.999Z"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
