"""A body of REST produce -> messages to publish.

    {"producerName": "p", "keySchema": "{...}", "valueSchema": "{...}", "schemaVersion": -1, "messages": [
        {"payload": "text", "key": "k", "properties": {}, "eventTime": ms, "sequenceId": 1, "deliverAt": ms,
         "deliverAfterMs": ms, "replicationClusters": [], "disableReplication": false}]}

A body with a wrong message publishes none of its messages, and the error says which one is wrong.
"""
import json
import time
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn

from geminga.proto.names import NO_CLUSTER, source_cluster
from geminga.storage.schemas.registry import Definition
from geminga.workers.http_messages.encoding import Encoder, definition_of
from geminga.workers.messages.entries import About, Outgoing
from geminga.workers.messages.outgoing import Wrong
from geminga.workers.web.session import TurnedAway

MESSAGES_MAX = 10_000        # of a call
_TIME_MAX = 1 << 62
_NUMBER_MAX = (1 << 63) - 1
_PLAIN = About()


class Asked(NamedTuple):
    """A message of a body, not encoded yet."""

    payload: str
    key: str | None
    about: About
    sequence_id: int | None


class Body(NamedTuple):
    """A body of REST produce."""

    producer_name: str                 # "": generated
    schema: Definition | int           # a definition, or the number of a version that the topic has
    messages: list[Asked]


class Message(NamedTuple):
    """A message that is ready to be published."""

    outgoing: Outgoing
    sequence_id: int | None


def read(fields: Any) -> Body:
    """Return what a body says.  Raises TurnedAway."""
    if not isinstance(fields, dict):
        _refuse('The body is an object: {"messages": [{"payload": "text"}]}')
    name, version, messages = fields.get("producerName"), fields.get("schemaVersion", -1), fields.get("messages")
    if not isinstance(name, str | None) or not _is_utf8(name):
        _refuse("producerName is a text")
    if source_cluster(name or "") is not None:
        _refuse("producerName is the name of a replicator, which comes by the binary protocol")
    if isinstance(version, bool) or not isinstance(version, int | None) or not -1 <= (version or 0) <= _NUMBER_MAX:
        _refuse("schemaVersion is the number of a version, or -1")
    if not isinstance(messages, list):
        _refuse("messages is a list of objects with a payload")
    if len(messages) > MESSAGES_MAX:
        raise TurnedAway(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A call has at most {MESSAGES_MAX} messages")
    schema = definition_of(fields.get("keySchema"), fields.get("valueSchema")) if version in (None, -1) else version
    now_ms = time.time_ns() // 1_000_000
    return Body(name or "", schema, [_message(message, f"messages[{index}]", now_ms)
                                     for index, message in enumerate(messages)])


def encode(encoder: Encoder, messages: list[Asked]) -> list[Message]:
    """Encode messages by their schema.  Raises TurnedAway."""
    ready = []
    for index, message in enumerate(messages):
        try:
            ready.append(Message(encoder.encode(message.key, message.payload, message.about), message.sequence_id))
        except Wrong as error:
            raise TurnedAway(HTTPStatus.UNPROCESSABLE_ENTITY, f"messages[{index}].{error}") from None
    return ready


def _refuse(text: str) -> NoReturn:
    raise TurnedAway(HTTPStatus.BAD_REQUEST, text)


def _message(fields: Any, path: str, now_ms: int) -> Asked:
    if not isinstance(fields, dict):
        _refuse(f"{path} is no object")
    payload = fields.get("payload")
    if payload is None:
        _refuse(f"{path}.payload is missing")
    if not isinstance(payload, str):      # a value as it is, which saves its author the quotes
        payload = json.dumps(payload, ensure_ascii=False)
    if fields.keys() == {"payload"}:
        return Asked(payload, None, _PLAIN, None)
    key, clusters = fields.get("key"), fields.get("replicationClusters")
    if not isinstance(clusters, list | None) or not all(isinstance(cluster, str) for cluster in clusters or ()):
        _refuse(f"{path}.replicationClusters is a list of texts")
    if not isinstance(is_local := fields.get("disableReplication"), bool | None):
        _refuse(f"{path}.disableReplication is true or false")
    properties = fields.get("properties")
    if not isinstance(properties, dict | None):
        _refuse(f"{path}.properties is an object of texts")
    pairs = tuple((_text(name, path, "properties"), _text(value, path, f"properties.{name}"))
                  for name, value in (properties or {}).items())
    deliver_at, after_ms = _number(fields, "deliverAt", path), _number(fields, "deliverAfterMs", path)
    if not deliver_at and after_ms:
        deliver_at = min(now_ms + after_ms, _TIME_MAX)
    goes_to = [NO_CLUSTER] if is_local else [_text(cluster, path, "replicationClusters") for cluster in clusters or ()]
    about = About(None, False, None, pairs, _number(fields, "eventTime", path), deliver_at, replicate_to=tuple(goes_to))
    sequence_id = None if fields.get("sequenceId") is None else _number(fields, "sequenceId", path, _NUMBER_MAX - 1)
    return Asked(payload, None if key is None else _text(key, path, "key"), _PLAIN if about == _PLAIN else about,
                 sequence_id)


def _number(fields: dict[str, Any], name: str, path: str, last: int = _TIME_MAX) -> int:
    """Return a number, or a text of one, from 0 to `last`; 0 without it, and for an empty text.  Raises TurnedAway."""
    value = fields.get(name)
    if value is None or value == "":
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= last:
        _refuse(f"{path}.{name} is a whole number of 0 to {last}")
    return value


def _text(value: Any, path: str, name: str) -> str:
    """Return a text; numbers and truth values become texts.  Raises TurnedAway."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str) or not _is_utf8(value):
        _refuse(f"{path}.{name} is a text in UTF-8")
    return value


def _is_utf8(text: str | None) -> bool:
    try:
        return text is None or bool(text.encode()) or not text
    except UnicodeEncodeError:      # half of a character
        return False
