"""A text of a producer's client -> a message to publish."""
import base64
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.messages.entries import About, Outgoing, describe
from geminga.workers.pulsar_client.entries import entry_data
from geminga.workers.web.parameters import CODECS, EncryptionKey, base64_of

NOT_JSON, NOT_A_MESSAGE, NOT_PUBLISHED = 3, 7, 8      # numbers of send-error
_PLAIN = About()                                      # of all messages with a payload only
_PAYLOAD_ONLY = {"payload", "context"}
_TIME_MAX = 1 << 62


class Wrong(Exception):
    """A text is no message.  number: of send-error; context: as JSON, "" if it was not read."""

    def __init__(self, number: int, text: str, context: str = "") -> None:
        super().__init__(text)
        self.number, self.text, self.context = number, text, context


class Encryption(NamedTuple):
    """What a client that encrypts itself says about a message."""

    parameter: bytes
    codec: int
    uncompressed_size: int               # 0: that of the payload


class Sent(NamedTuple):
    """A message, and what its answer needs."""

    outgoing: Outgoing
    context: str                         # as JSON, "" if there was none
    encryption: Encryption | None


def read(text: str, *, is_encrypted: bool = False) -> Sent:
    """Return the message that a text describes.  Raises Wrong."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise Wrong(NOT_JSON, "The text is not JSON") from None
    if not isinstance(fields, dict):
        raise Wrong(NOT_JSON, "A message is a JSON object")
    raw, context = fields.get("context"), ""
    if raw is not None:
        context = json.dumps(_text("context", raw))
    about = _PLAIN if fields.keys() <= _PAYLOAD_ONLY else _about(fields, context)
    payload = fields.get("payload")
    if payload is None:
        raise Wrong(NOT_A_MESSAGE, "payload must be Base64", context)
    try:
        data = base64_of(_text("payload", payload))
    except ValueError as error:
        raise Wrong(NOT_A_MESSAGE, f"payload must be Base64: {error}", context) from None
    return Sent(Outgoing(data, about), context, _encryption(fields, context) if is_encrypted else None)


def _about(fields: Mapping[str, Any], context: str) -> About:
    properties = fields.get("properties")
    if not isinstance(properties, dict | None):
        raise Wrong(NOT_JSON, "properties must be an object of texts")
    pairs = tuple((_utf8(name), _text(f"property {name}", value)) for name, value in (properties or {}).items())
    key = fields.get("key")
    clusters = fields.get("replicationClusters")
    if not isinstance(clusters, list | None) or not all(isinstance(cluster, str) for cluster in clusters or ()):
        raise Wrong(NOT_JSON, "replicationClusters must be a list of texts")
    deliver_at, after = _moment(fields, "deliverAt"), _moment(fields, "deliverAfterMs")
    _encryption_fields(fields)      # their types count also where nobody encrypts
    if after > 0:
        deliver_at = min(time.time_ns() // 1_000_000 + after, _TIME_MAX)
    when = fields.get("eventTime")
    event_time = 0
    if when is not None:
        try:
            event_time = _milliseconds(_text("eventTime", when))
        except ValueError:
            raise Wrong(NOT_A_MESSAGE, "eventTime must be a time such as 2024-02-03T04:05:06.789Z", context) from None
    about = About(None if key is None else _text("key", key), False, None, pairs, event_time, max(0, deliver_at),
                  replicate_to=tuple(map(_utf8, clusters or ())))
    return _PLAIN if about == _PLAIN else about


def _moment(fields: Mapping[str, Any], name: str) -> int:
    """Return a number of milliseconds, 0 without one."""
    given = fields.get(name)
    value = 0 if given is None else _whole(given)
    if value is None or abs(value) > _TIME_MAX:
        raise Wrong(NOT_JSON, f"{name} must be a number of milliseconds")
    return value


def _whole(value: Any) -> int | None:
    """Return a JSON value as a whole number; a text of digits is one too.  None: it is none."""
    if isinstance(value, str) and value.lstrip("-").isascii() and value.lstrip("-").isdigit() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _milliseconds(text: str) -> int:
    """Return an ISO 8601 time with an offset in ms since 1970.  Raises ValueError."""
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError(text)
    passed = when - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (passed.days * 86_400 + passed.seconds) * 1_000 + passed.microseconds // 1_000)


def _text(name: str, value: Any) -> str:
    """Return a JSON value as text: numbers and truth values become texts.  Raises Wrong."""
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise Wrong(NOT_JSON, f"{name} must be a text")


def _utf8(text: str) -> str:
    """Refuse half a character, which protobuf cannot hold.  Raises Wrong."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Wrong(NOT_JSON, "A text has half a character") from None
    return text


# -- messages that the client has encrypted

def _encryption_fields(fields: Mapping[str, Any]) -> tuple[str, str | None, int | None]:
    """Return encryptionParam, compressionType and uncompressedMessageSize.  Raises Wrong if one has a wrong type."""
    parameter, codec, size = (fields.get(name) for name in ("encryptionParam", "compressionType",
                                                            "uncompressedMessageSize"))
    if size is not None and (size := _whole(size)) is None:
        raise Wrong(NOT_JSON, "uncompressedMessageSize must be a whole number")
    return ("" if parameter is None else _text("encryptionParam", parameter),
            None if codec is None else _text("compressionType", codec), size)


def _encryption(fields: Mapping[str, Any], context: str) -> Encryption:
    """Raises Wrong."""
    parameter, codec, size = _encryption_fields(fields)
    try:
        data = base64_of(parameter)
    except ValueError:
        raise Wrong(NOT_A_MESSAGE, "encryptionParam must be Base64", context) from None
    if (codec is None) != (size is None) or (codec is not None and codec not in CODECS) \
            or (size is not None and not 0 <= size < 1 << 32):
        raise Wrong(NOT_A_MESSAGE, "compressionType and uncompressedMessageSize come together", context)
    return Encryption(data, CODECS[codec] if codec else api.NONE, size or 0)


def encrypted_entry(sent: Sent, keys: tuple[EncryptionKey, ...], producer: str, sequence_id: int) -> bytes:
    """Return the entry of a message that its client has encrypted."""
    about, encryption = sent.outgoing.about, sent.encryption
    assert encryption is not None
    metadata = api.MessageMetadata(producer_name=producer, sequence_id=sequence_id,
                                   publish_time=time.time_ns() // 1_000_000, encryption_param=encryption.parameter)
    describe(metadata, about)
    if about.deliver_at:
        metadata.deliver_at_time = about.deliver_at
    metadata.replicate_to.extend(about.replicate_to)
    for key in keys:
        held = metadata.encryption_keys.add(key=key.name, value=key.value)
        for name, value in key.metadata:
            held.metadata.add(key=name, value=value)
    if encryption.codec:
        metadata.compression = encryption.codec      # type: ignore[assignment]
    metadata.uncompressed_size = encryption.uncompressed_size or len(sent.outgoing.payload)
    return entry_data(metadata, sent.outgoing.payload)


# -- answers

def id_text(id_bytes: bytes) -> str:
    return base64.b64encode(id_bytes).decode()


def published(message_id: str, context: str) -> bytes:
    """Return the answer to a message that is stored."""
    if context:
        return f'{{"result":"ok","messageId":"{message_id}","context":{context},"errorCode":0,"schemaVersion":0}}' \
            .encode()
    return f'{{"result":"ok","messageId":"{message_id}","errorCode":0,"schemaVersion":0}}'.encode()


def refused(number: int, text: str, context: str) -> bytes:
    """Return the answer to a message that is not stored."""
    shown = {"result": f"send-error:{number}", "errorMsg": text}
    end = f',"context":{context}' if context else ""
    return f'{json.dumps(shown)[:-1]}{end},"errorCode":0,"schemaVersion":0}}'.encode()
