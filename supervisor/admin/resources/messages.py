"""Messages shown to an operator: peeked at, or found by position, time or number.

The body of an answer is an entry's payload, its headers are the metadata under Pulsar's names. A batch is one entry,
which the client unpacks.
"""
import base64
import json
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

from aiohttp import web
from google.protobuf.message import DecodeError

from geminga.proto import compression
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.admin.questions import (
    Examine,
    FindByIndex,
    FindByTime,
    GetEntry,
    GetLastMessage,
    Peek,
    StoredEntry,
)
from geminga.storage.ledgers.position import Position
from geminga.storage.runtime import units
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.request_parts import (
    TOPIC,
    TOPICS,
    ask_single,
    not_allowed,
    number_of,
    part_of,
    single_of,
    status,
    subscription_of,
    time_of,
)
from geminga.workers.messages.message import text_of, texts_of

routes = rights.Routes()
_METADATA = 6                     # offset in an entry: behind its magic number and checksum
_TEXT_MAX = 1_000                 # characters of a header: clients refuse longer ones
# limits for repeated headers, and for the length of a header with an encrypted key: far more than usual
_SEVERAL_MAX, _KEY_MAX = 20, 4_000
# Metadata fields that are numbers or texts -> headers; unset fields have none.
_FIELDS: dict[Any, str] = {
    "producer_name": "producer-name",
    "sequence_id": "sequence-id",
    "highest_sequence_id": "highest-sequence-id",
    "replicated_from": "replicated-from",
    "partition_key": "partition-key",
    "partition_key_b64_encoded": "partition-key-b64-encoded",
    "uncompressed_size": "uncompressed-size",
    "encryption_algo": "encryption-algo",
    "marker_type": "marker-type",
    "null_value": "null-value",
    "null_partition_key": "null-partition-key",
    "uuid": "uuid",
    "num_chunks_from_msg": "num-chunks-from-msg",
    "total_chunk_msg_size": "total-chunk-msg-size",
    "chunk_id": "chunk-id",
    "txnid_least_bits": "txnid-least-bits",
    "txnid_most_bits": "txnid-most-bits",
}
_TIMES: dict[Any, str] = {"publish_time": "publish-time", "event_time": "event-time",
                          "deliver_at_time": "deliver-at-time"}
_BYTES: dict[Any, str] = {"ordering_key": "Base64-ordering-key", "encryption_param": "Base64-encryption-param",
                          "schema_version": "Base64-schema-version", "schema_id": "Base64-schema-id"}


# -- ids

def _id(position: Position, partition: int, **more: int) -> dict[str, int]:
    """Return a message id as Pulsar's REST writes it."""
    ledger, entry = position
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": partition, "batchIndex": -1, "batchSize": 0} | more


@routes.get(TOPIC + "/lastMessageId", right=rights.CONSUMES)
async def last(request: web.Request) -> web.Response:
    """Answer with the id of the last message."""
    if not single_of(request).is_persistent:
        raise not_allowed(request, "GetLastMessageId on a non-persistent topic is not allowed")
    message = await ask_single(request, "", GetLastMessage)
    return web.json_response(_id((message.ledger, message.entry), single_of(request).partition,
                                 batchIndex=message.batch_index, batchSize=message.batch_size))


@routes.get(TOPIC + "/messageid/{time_ms}", right=rights.CONSUMES)
async def at_time(request: web.Request) -> web.Response:
    """Answer with the id of the first message published at the time or later."""
    time_ms = time_of(request, part_of(request, "time_ms"))
    refused = "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on specific topic " \
              "partition"
    position = await ask_single(request, refused, partial(FindByTime, time_ms=time_ms))
    return web.json_response(_id(position, single_of(request).partition))


@routes.get(TOPIC + "/getMessageIdByIndex", right=rights.CONSUMES)
async def by_index(request: web.Request) -> web.Response:
    """Answer with the id of the message that has an index."""
    index = number_of(request, request.query.get("index", ""), "index")
    refused = "Get message id by index on a partitioned topic is not allowed"
    position = await ask_single(request, refused, partial(FindByIndex, index=index))
    return web.json_response(_id(position, single_of(request).partition))


# -- messages

@routes.get(TOPIC + "/subscription/{subscription:[^/]+}/position/{number}", right=rights.CONSUMES)
async def peek(request: web.Request) -> web.Response:
    """Answer with a message that a subscription has not acknowledged; the first one has position 1."""
    number = number_of(request, part_of(request, "number"), "The position")
    if not number:
        raise web.HTTPBadRequest(text="The first message has position 1")
    question = partial(Peek, subscription=subscription_of(request), number=number)
    return _answer(request, await ask_single(request, "Peek messages on a partitioned topic is not allowed", question))


@routes.get(TOPIC + "/ledger/{ledger}/entry/{entry}", right=rights.CONSUMES)
async def entry(request: web.Request) -> web.Response:
    """Answer with an entry by its position."""
    ledger, entry = (number_of(request, part_of(request, name), f"The {name}") for name in ("ledger", "entry"))
    question = partial(GetEntry, position=(ledger, entry))
    return _answer(request, await ask_single(request, "GetMessageById is not allowed on partitioned-topic", question))


@routes.get(TOPIC + "/examinemessage", right=rights.CONSUMES)
async def examine(request: web.Request) -> web.Response:
    """Answer with the message at a distance from the first or the last one."""
    beginning = request.query.get("initialPosition") or "latest"
    if beginning not in ("earliest", "latest"):
        raise web.HTTPBadRequest(text="initialPosition is earliest or latest")
    number = number_of(request, request.query.get("messagePosition") or "1", "messagePosition")
    refused = "Examine messages on a partitioned topic is not allowed, please try examine message on specific topic " \
              "partition"
    stored = await ask_single(request, refused, partial(Examine, number=number, from_latest=beginning == "latest"))
    if stored is None:
        raise web.HTTPPreconditionFailed(text="Could not examine messages due to the total message is zero")
    return _answer(request, stored)


def _answer(request: web.Request, stored: StoredEntry) -> web.Response:
    return _shown(stored, request.app[TOPICS].config.worker.broker_entry_metadata)


def _shown(stored: StoredEntry, added: tuple[str, ...] = ()) -> web.Response:
    """Answer with an entry.

    added: names of fields that the broker adds to entries, out of "timestamp" and "index". Raises 422 for an entry
    whose metadata or payload cannot be read.
    """
    raw = base64.b64decode(stored.data)
    try:
        size = struct.unpack_from(">I", raw, _METADATA)[0]
        metadata = api.MessageMetadata.FromString(raw[_METADATA + 4:_METADATA + 4 + size])
    except (struct.error, DecodeError):
        raise status(422, "The entry's metadata cannot be read: it was published so, or is damaged") from None
    payload = raw[_METADATA + 4 + size:]
    body = payload if metadata.encryption_keys else _uncompressed(metadata, payload)
    headers = [("X-Pulsar-Message-ID", f"{stored.ledger}:{stored.entry}"), *_headers(metadata, len(payload)).items(),
               *_added(stored, added), *_several(metadata)]
    return web.Response(body=body, content_type="application/octet-stream", headers=headers)


def _added(stored: StoredEntry, added: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield headers for the fields that the broker adds to entries: timestamp and index."""
    for name in added:
        text = units.trimmed_instant(stored.timestamp) if name == "timestamp" else str(stored.index)
        yield f"X-Pulsar-Broker-Entry-METADATA-{name}", text


def _several(metadata: api.MessageMetadata) -> Iterator[tuple[str, str]]:
    """Yield headers that are repeated for each value of a list in the metadata; no value is cut."""
    for cluster in metadata.replicate_to[:_SEVERAL_MAX]:
        yield "X-Pulsar-replicated-to", _text(cluster)
    for key in metadata.encryption_keys[:_SEVERAL_MAX]:
        text = base64.b64encode(key.SerializeToString()).decode()
        if len(text) <= _KEY_MAX:
            yield "X-Pulsar-Base64-encryption-keys", text


def _uncompressed(metadata: api.MessageMetadata, stored: bytes) -> bytes | memoryview:
    """Return the payload without its compression.  Raises 422 if it cannot be decompressed."""
    # too large to be decompressed here, so it is answered as it is stored
    if metadata.uncompressed_size > compression.UNPACKED_MAX:
        return stored
    try:
        return compression.decompress(metadata.compression, stored, metadata.uncompressed_size)
    except compression.CannotDecompress:
        raise status(422, "The entry's payload is not compressed as its metadata says") from None


def _headers(metadata: api.MessageMetadata, size: int) -> dict[str, str]:
    """Return the headers that show an entry's metadata.  size: bytes of its payload."""
    headers = {"PROPERTY": json.dumps(texts_of(metadata.properties)), "txn-uncommitted": "false",
               "Is-Encrypted": _text(bool(metadata.encryption_keys))}
    if metadata.HasField("num_messages_in_batch"):
        headers |= {"num-batch-message": str(metadata.num_messages_in_batch), "batch-size": str(size)}
    if metadata.num_chunks_from_msg:
        headers |= {"PROPERTY-TOTAL-CHUNKS": str(metadata.num_chunks_from_msg),
                  "PROPERTY-CHUNK-ID": str(metadata.chunk_id)}
    if metadata.compacted_batch_indexes:
        headers["compacted-batch-indexes"] = _text(",".join(map(str, metadata.compacted_batch_indexes[:_TEXT_MAX])))
    if metadata.compression:
        headers["compression"] = api.CompressionType.Name(metadata.compression)
    for field, name in _FIELDS.items():
        if metadata.HasField(field):
            headers[name] = _text(getattr(metadata, field))
    for field, name in _TIMES.items():
        if metadata.HasField(field) and (text := units.trimmed_instant(getattr(metadata, field))):
            headers[name] = text
    for field, name in _BYTES.items():
        if metadata.HasField(field):
            headers[name] = base64.b64encode(getattr(metadata, field)).decode()
    return {f"X-Pulsar-{name}": text for name, text in headers.items()}


def _text(value: Any) -> str:
    """Return a value as text that a header may hold: printable and not too long."""
    text = str(value).lower() if isinstance(value, bool) else text_of(value) if isinstance(value, bytes) else str(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_TEXT_MAX])
