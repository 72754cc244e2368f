"""Messages to publish, from JSON lines: the fields that `geminga consume -o jsonl` prints.

    payload          text
    payloadBase64    bytes
    value            JSON, which the topic's schema encodes; comes before a payload where a schema is used
    isNull           true: the message has no value, and compaction removes its key
    key              text
    isKeyBase64      true: the key is bytes, in base64
    orderingKey      bytes in base64
    properties       an object of texts
    eventTime        ms since 1970, or ISO 8601
    deliverAt        the same
    deliverAfter     ms, or a time such as 10m

All other fields are ignored.
"""
import base64
import binascii
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from geminga.storage.runtime import units
from geminga.workers.messages.entries import About, Outgoing

_BEYOND_DATES = " ms"      # behind a number, as a time beyond the year 9999 is printed


class Wrong(ValueError):
    """An error: a message cannot be published.  The text begins with the field that is wrong."""


class Encoded(NamedTuple):
    """A value as a schema encodes it."""

    payload: bytes
    key: str | None = None       # in base64, of a schema that keeps keys beside payloads


class Encoder(Protocol):
    """A schema that makes payloads."""

    def of_text(self, text: bytes) -> Encoded:
        """Return the payload of a value that is given as text.  Raises Wrong."""

    def of_value(self, value: Any) -> Encoded:
        """Return the payload of a JSON value.  Raises Wrong."""


def of_payload(payload: bytes, about: About, encoder: Encoder | None) -> Outgoing:
    """Return the message of a text or of bytes.  Raises Wrong."""
    return Outgoing(payload, about) if encoder is None else _encoded(encoder.of_text(payload), about)


def _encoded(encoded: Encoded, about: About) -> Outgoing:
    if encoded.key is not None:
        about = about._replace(key=encoded.key, key_is_base64=True)
    return Outgoing(encoded.payload, about)


def of_json(line: bytes, about: About, encoder: Encoder | None) -> Outgoing:
    """Return the message of a JSON object.  Fields that it lacks are those of `about`.  Raises Wrong."""
    fields = parsed(line)
    if not isinstance(fields, dict):
        raise Wrong("it is no JSON object with payload, payloadBase64 or value")
    if fields.get("isEncrypted"):
        raise Wrong("isEncrypted: only the producer that has the keys can publish it")
    about = _about(fields, about)
    if fields.get("isNull"):
        return Outgoing(b"", about._replace(is_null=True))
    if encoder is not None and fields.get("value") is not None:
        return _encoded(encoder.of_value(fields["value"]), about)
    if fields.get("payloadBase64") is not None:
        return Outgoing(_bytes(fields["payloadBase64"], "payloadBase64"), about)
    if fields.get("payload") is not None:
        return of_payload(_text(fields["payload"], "payload").encode(), about, encoder)
    if fields.get("value") is not None:
        raise Wrong("value: --schema says how to encode it, and is not given")
    raise Wrong("it has none of the fields payload, payloadBase64 and value")


def parsed(text: bytes) -> Any:
    """Return the value of a JSON text.  Raises Wrong."""
    try:
        return _DECODER.decode(text.decode())
    except UnicodeDecodeError:
        raise Wrong("it is no JSON: its bytes are no UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise Wrong(f"it is no JSON: {str(error) or type(error).__name__}") from None


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _about(fields: dict[str, Any], about: About) -> About:
    changes: dict[str, Any] = {}
    for name, read in _READ.items():
        if fields.get(name) is not None:
            changes |= read(fields[name], name)
    if "properties" in changes:
        changes["properties"] = tuple((dict(about.properties) | changes["properties"]).items())
    return about._replace(**changes) if changes else about


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise Wrong(f"{name}: it is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Wrong(f"{name}: it has half of a character, which UTF-8 cannot say") from None
    return value


def _bytes(value: Any, name: str) -> bytes:
    try:
        return base64.b64decode(_text(value, name), validate=True)
    except binascii.Error:
        raise Wrong(f"{name}: it is not in base64") from None


def _properties(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Wrong(f"{name}: it is no object of texts")
    return {"properties": {_text(key, name): _text(one, f"{name}.{key}") for key, one in value.items()}}


def _moment(value: Any, name: str) -> int:
    if type(value) is int and 0 <= value <= units.LAST_MS:
        return value
    if not isinstance(value, str):
        raise Wrong(f"{name}: {json.dumps(value)[:50]} is no time: ms since 1970, or ISO 8601")
    number = value.removesuffix(_BEYOND_DATES)
    if number != value and number.isdecimal() and len(number) < 20 and int(number) < 1 << 63:
        return int(number)
    try:
        return units.moment(value, _now_ms())
    except ValueError as error:
        raise Wrong(f"{name}: {error}") from None


def _delay(value: Any, name: str) -> int:
    if type(value) is int and 0 <= value <= units.LAST_MS:
        return value
    try:
        return units.millis(_text(value, name))
    except ValueError as error:
        raise Wrong(f"{name}: {error}" if not isinstance(error, Wrong) else str(error)) from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_READ: dict[str, Callable[[Any, str], dict[str, Any]]] = {
    "key": lambda value, name: {"key": _text(value, name), "key_is_base64": False},
    "isKeyBase64": lambda value, name: {"key_is_base64": value is True},
    "orderingKey": lambda value, name: {"ordering_key": _bytes(value, name)},
    "properties": _properties,
    "eventTime": lambda value, name: {"event_time": _moment(value, name)},
    "deliverAt": lambda value, name: {"deliver_at": _moment(value, name)},
    "deliverAfter": lambda value, name: {"deliver_at": _now_ms() + _delay(value, name)},
}
