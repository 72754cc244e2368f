"""Messages as rows of a page: JSON of bounded size, however large a message is.

A row has the fields of `Message.as_json`, and these:

    size        bytes of the payload
    cut         names of the fields that are shown in part; the row has no others of them
    storedTime  when the broker stored it
    leftOut     why there is no payload
"""
import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from geminga.proto import frames
from geminga.storage.jobs import one_by_one
from geminga.storage.jobs.one_by_one import Damaged
from geminga.storage.runtime import units
from geminga.workers.messages.decoding import Decoder, single
from geminga.workers.messages.message import UNDECODED, Message
from geminga.workers.pulsar_client.entries import Entry

DECODED_MAX = 64 << 10           # bytes of a payload that is decoded by its schema
UNPACKED_MAX = 16 << 20          # bytes of a payload that is decompressed for a page
WHOLE_MAX = 128 << 20            # bytes of a payload that is decompressed to be shown whole
_TEXT_MAX = 1_000                # characters of keys, names and values of properties
_PROPERTIES_MAX = 50


class Stored(NamedTuple):
    """An entry as its ledger has it."""

    ledger_id: int
    entry_id: int
    data: bytes
    left: Sequence[int] = ()     # words of an ack set: 1 for each message that is shown; (): all are
    stored_ms: int = 0


class Shown(NamedTuple):
    """A message of an entry, or the reason why the entry has none."""

    message: Message
    left_out: str = ""


def messages(topic: str, stored: Stored, unpacked_max: int = UNPACKED_MAX) -> Iterator[Shown]:
    """Iterate over an entry's messages, in order.  Chunks are not joined.  A marker has no messages.

    unpacked_max: bytes; a larger payload is not decompressed.
    """
    place = stored.ledger_id, stored.entry_id
    try:
        metadata, _ = one_by_one.split(stored.data)
    except Damaged:
        nothing = Message(topic, *place, -1, 0, -1, b"", None, None, {}, stored.stored_ms, 0, 0, "", -1, None, 0, False)
        yield Shown(nothing, "it cannot be read: it is damaged, or its space was given back")
        return
    if metadata.HasField("marker_type"):
        return
    entry = Entry(*place, metadata, frames.with_checksum(stored.data), 0, tuple(stored.left))
    if one_by_one.is_chunk(metadata):
        yield Shown(single(topic, [entry], entry.payload),
                    f"it is part {metadata.chunk_id + 1} of {metadata.num_chunks_from_msg} of a large message")
        return
    if metadata.uncompressed_size > unpacked_max:
        yield Shown(single(topic, [entry], b""), f"it has {metadata.uncompressed_size} bytes")
        return
    decoder = Decoder()
    yield from map(Shown, decoder.messages(topic, entry))
    for line in decoder.left_out:
        yield Shown(single(topic, [entry], b""), line.partition(" is not shown: ")[2])


def row(shown: Shown, payload_max: int, stored_ms: int = 0) -> dict[str, Any]:
    """Return a message as JSON.  payload_max: bytes of a payload, or characters of a decoded value, that are shown."""
    message, cut = shown.message, []
    fields: dict[str, Any] = {"size": len(message.payload)}
    payload = message.payload if not shown.left_out else b""
    if len(payload) > payload_max:
        payload = _whole_characters(payload[:payload_max])
        cut.append("payload")
    if message.has_value and len(json.dumps(message.value, default=str, ensure_ascii=False)) > payload_max:
        message = replace(message, value=UNDECODED)
        cut.append("value")
    properties = {name[:_TEXT_MAX]: value[:_TEXT_MAX]
                  for name, value in list(message.properties.items())[:_PROPERTIES_MAX]}
    if properties != message.properties:
        cut.append("properties")
    for name, text in (("key", message.key), ("producer", message.producer)):
        if len(text or "") > _TEXT_MAX:
            cut.append(name)
    if len(message.ordering_key or b"") > _TEXT_MAX:
        cut.append("orderingKey")
    message = replace(
        message, payload=payload, properties=properties, producer=message.producer[:_TEXT_MAX],
        key=None if message.key is None else message.key[:_TEXT_MAX],
        ordering_key=None if message.ordering_key is None else message.ordering_key[:_TEXT_MAX],
        schema_version=None if message.schema_version is None else message.schema_version[:8])
    if stored_ms:
        fields["storedTime"] = units.instant(stored_ms)
    if message.batch_size:
        fields["batchSize"] = message.batch_size
    if cut:
        fields["cut"] = cut
    if shown.left_out:
        fields["leftOut"] = shown.left_out
    return message.as_json() | fields


def _whole_characters(payload: bytes) -> bytes:
    """Return the beginning of a payload without a character of which only the first bytes are there."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(payload).encode()
    except UnicodeDecodeError:
        return payload
