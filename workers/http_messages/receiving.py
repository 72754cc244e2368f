"""Parameters and bodies of calls that consume, and messages as these calls see them.

A message is an object: messageId, payload with its encoding, and what its producer said.

    encoding "text"      the payload is UTF-8
    encoding "json"      the payload is a value, decoded by the topic's schema
    encoding "base64"    the payload is bytes
    encoding "null"      the message has no value
"""
import base64
import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.messages.message import Message
from geminga.workers.web import parameters
from geminga.workers.web.acknowledging import BATCH_MAX
from geminga.workers.web.delivered import Delivered
from geminga.workers.web.parameters import CONSUME, Consuming, WrongParameter
from geminga.workers.web.session import TurnedAway

IDS_MAX = 10_000             # of a call
_MAX, _MAX_MAX = 100, 1_000      # messages of an answer
_WAIT_S, _WAIT_MAX_S, _WAIT_MIN_S = 10, 60, 0.1      # for messages; the least, so that the broker can deliver them
# Stateless calls have nothing that ends with them: messages come again by this time alone.
_ACK_TIMEOUT_MS, _ACK_TIMEOUT_MIN_MS, _ACK_TIMEOUT_MAX_MS = 30_000, 1_000, 3_600_000
_DELAY_MAX_MS = 3_600_000
_ID = re.compile(r"([0-9]{1,19}):([0-9]{1,19}):(-1|[0-9]{1,9})(?::([0-9]{1,6}):([0-9]{1,6}))?", re.ASCII)


class Receiving(NamedTuple):
    """Parameters of a call for messages."""

    messages_max: int
    wait_s: float
    consuming: Consuming


def receiving(given: Mapping[str, str], *, is_cumulative: bool = False) -> Receiving:
    """Read the parameters of a call's address.  Raises TurnedAway.

    is_cumulative: the call acknowledges everything up to a message, which a shared subscription cannot.
    """
    defaults = {"subscriptionType": "Exclusive" if is_cumulative else "Shared",
                "ackTimeoutMillis": str(_ACK_TIMEOUT_MS)}
    try:
        count = parameters.number(given, "max", _MAX, least=1, last=_MAX_MAX)
        wait = parameters.number(given, "wait", _WAIT_S, last=_WAIT_MAX_S)
        parameters.number(given, "ackTimeoutMillis", _ACK_TIMEOUT_MS, least=_ACK_TIMEOUT_MIN_MS,
                          last=_ACK_TIMEOUT_MAX_MS)
        consuming = parameters.consuming(defaults | dict(given))
    except WrongParameter as error:
        _refuse(str(error))
    return Receiving(count, max(wait, _WAIT_MIN_S), consuming._replace(is_pulling=False, encrypted=CONSUME))


class Acknowledging(NamedTuple):
    """The body of a call that acknowledges."""

    places: list[api.MessageIdData]
    up_to: api.MessageIdData | None


def acknowledging(fields: Any) -> Acknowledging:
    """Return what a body says: {"messageIds": [...], "upTo": "..."}, one of them at least.  Raises TurnedAway."""
    if not isinstance(fields, dict) or not ("messageIds" in fields or "upTo" in fields):
        _refuse('The body is {"messageIds": ["12:0:-1"]} or {"upTo": "12:0:-1"}')
    up_to = fields.get("upTo")
    return Acknowledging(_places(fields.get("messageIds", [])), None if up_to is None else place_of(up_to))


def refusing(fields: Any) -> tuple[list[api.MessageIdData], int]:
    """Return (places, delay in ms) of a body: {"messageIds": [...], "delayMs": 0}.  Raises TurnedAway."""
    if not isinstance(fields, dict) or "messageIds" not in fields:
        _refuse('The body is {"messageIds": ["12:0:-1"], "delayMs": 0}')
    delay = fields.get("delayMs", 0)
    if isinstance(delay, bool) or not isinstance(delay, int) or not 0 <= delay <= _DELAY_MAX_MS:
        _refuse(f"delayMs is a whole number of 0 to {_DELAY_MAX_MS}")
    return _places(fields["messageIds"]), delay


def _places(texts: Any) -> list[api.MessageIdData]:
    if not isinstance(texts, list) or len(texts) > IDS_MAX:
        _refuse(f"messageIds is a list of at most {IDS_MAX} ids")
    return [place_of(text) for text in texts]


def place_of(text: Any) -> api.MessageIdData:
    """Return the place that a message id names.  Raises TurnedAway."""
    match = _ID.fullmatch(text) if isinstance(text, str) else None
    if match is None or max(int(match[1]), int(match[2])) >> 63:
        shown = json.dumps(text)
        _refuse(f"{shown if len(shown) < 60 else shown[:60] + '...'} is no message id such as 12:0:-1")
    place = api.MessageIdData(ledgerId=int(match[1]), entryId=int(match[2]), partition=int(match[3]), batch_index=-1)
    if match[4] is not None:
        place.batch_index, place.batch_size = int(match[4]), int(match[5])
        if not place.batch_index < place.batch_size <= BATCH_MAX:
            _refuse(f"{text} names message {match[4]} of a batch of {match[5]}; batches have {BATCH_MAX} at most")
    return place


def _refuse(text: str) -> NoReturn:
    raise TurnedAway(HTTPStatus.BAD_REQUEST, text)


# -- messages

def id_of(delivery: Delivered) -> str:
    """Return a message's id: ledger, entry, partition, and in a batch the index there and the batch's size."""
    assert delivery.message is not None
    in_batch = f":{delivery.batch_index}:{delivery.batch_size}" if delivery.batch_index >= 0 else ""
    return f"{delivery.position[0]}:{delivery.position[1]}:{delivery.message.partition}{in_batch}"


def text_of(delivery: Delivered) -> str:
    """Return a message as JSON."""
    message = delivery.message
    assert message is not None
    fields: dict[str, Any] = {"messageId": id_of(delivery), **_payload(message)}
    if message.key is not None:
        fields["key"] = message.key
        if message.is_key_base64:
            fields["keyEncoding"] = "base64"
    fields |= {"properties": message.properties, "publishTime": message.publish_time_ms}
    if message.event_time_ms:
        fields["eventTime"] = message.event_time_ms
    fields |= {"producerName": message.producer, "sequenceId": message.sequence_id,
               "redeliveryCount": delivery.redelivery_count}
    if message.schema_version is not None:
        fields["schemaVersion"] = int.from_bytes(message.schema_version)
    if delivery.encryption is not None:
        fields["encryptionContext"] = delivery.encryption
    try:
        return json.dumps(fields, allow_nan=False, default=str)
    except ValueError:      # a value is infinite, which JSON cannot say
        return json.dumps(fields | _bytes(message.payload))


def _payload(message: Message) -> dict[str, Any]:
    if message.is_null:
        return {"payload": None, "encoding": "null"}
    if message.has_value:
        is_text = isinstance(message.value, str) and message.value.encode() == message.payload
        return {"payload": message.value, "encoding": "text" if is_text else "json"}
    try:
        return {"payload": message.payload.decode(), "encoding": "text"}
    except UnicodeDecodeError:
        return _bytes(message.payload)


def _bytes(payload: bytes) -> dict[str, Any]:
    return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}
