"""Texts -> keys and payloads by a schema, as Pulsar's REST takes them.

    STRING, BYTES              the text
    INT8 ... DOUBLE, BOOLEAN   the number, true or false
    DATE, TIME, TIMESTAMP, INSTANT, LOCAL_DATE, LOCAL_TIME, LOCAL_DATE_TIME      ms since 1970, or ISO 8601
    JSON, AVRO, PROTOBUF_NATIVE      JSON, compared with the definition
    a pair of these            the message's key and payload, each by its own schema
"""
import base64
import binascii
import json
import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import TYPES, Definition, InvalidSchema, T
from geminga.workers.messages.entries import About, Outgoing
from geminga.workers.messages.outgoing import Encoded, Wrong
from geminga.workers.messages.schema_encoding import NOTHING, NotEncodable, Pair, SchemaEncoder, named, pair_of
from geminga.workers.web.session import TurnedAway

STRING = Definition(T.String, b"", {})
_SHOWN_MAX = 60
_Encode = Callable[[str], bytes]      # a text's bytes.  Raises Wrong


class Encoder:
    """Encodes the messages of one schema."""

    def __init__(self, definition: Definition) -> None:
        """Raises TurnedAway if texts cannot be encoded by the definition."""
        self._pair: Pair | None = None
        try:
            if definition.kind == T.KeyValue:
                self._pair = pair_of(definition, _encode, "payload")
            else:
                self._value = named("payload", _encode(definition))
        except InvalidSchema as error:
            raise TurnedAway(HTTPStatus.UNPROCESSABLE_ENTITY, error.message) from None

    def __repr__(self) -> str:
        return f"<Encoder is_pair={self._pair is not None}>"

    def encode(self, key: str | None, payload: str, about: About) -> Outgoing:
        """Return a message with its key and payload.  Raises Wrong."""
        encoded = Encoded(self._value(payload)) if self._pair is None else self._pair.encoded(key, payload)
        if encoded.key is not None:
            about = about._replace(key=encoded.key, key_is_base64=True)
        elif key is not None:
            about = about._replace(key=key)
        return Outgoing(encoded.payload, about)


def _encode(definition: Definition) -> _Encode:
    """Return the function that encodes texts by a schema that is no pair.  Raises TurnedAway, InvalidSchema."""
    kind = definition.kind
    if kind in _TEXTS:
        return _TEXTS[kind]
    try:
        encoder = SchemaEncoder(definition)
    except NotEncodable:
        raise TurnedAway(HTTPStatus.UNPROCESSABLE_ENTITY, f"Texts cannot be encoded by a schema of type {TYPES[kind]}"
                     ) from None

    def encode(text: str) -> bytes:
        if kind == T.Time and text.removeprefix("-").isdecimal():
            return _milliseconds(text)
        return encoder.of_text(text.encode()).payload

    return encode


def _unlike(text: str, expected: str) -> Wrong:
    return Wrong(f"{json.dumps(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + '...')} is not {expected}")


def _boolean(text: str) -> bytes:
    if text.lower() not in ("true", "false"):
        raise _unlike(text, "true or false")
    return bytes((text.lower() == "true",))


def _real(form: str) -> _Encode:
    def encode(text: str) -> bytes:
        try:
            if "_" in text:      # which Python takes in a number
                raise ValueError
            return struct.pack(form, float(text))
        except (ValueError, OverflowError):
            raise _unlike(text, "a number of this size") from None

    return encode


def _milliseconds(text: str) -> bytes:
    try:
        return struct.pack(">q", int(text))
    except (ValueError, struct.error):
        raise _unlike(text, "a number of milliseconds") from None


_TEXTS: dict[int, _Encode] = {T.String: str.encode, NOTHING: str.encode, T.Bool: _boolean, T.Float: _real(">f"),
                              T.Double: _real(">d")}


# -- definitions

def definition_of(key_schema: Any, value_schema: Any) -> Definition:
    """Return the definition that a call names; without a schema STRING, as in Pulsar.  Raises TurnedAway."""
    value = STRING if value_schema in (None, "") else _definition("valueSchema", value_schema)
    if key_schema in (None, ""):
        return value
    key = _definition("keySchema", key_schema)
    if T.KeyValue in (key.kind, value.kind):
        raise TurnedAway(HTTPStatus.UNPROCESSABLE_ENTITY, "A key or a value of type KEY_VALUE is not possible")
    properties = {"kv.encoding.type": "SEPARATED"}
    for name, part in (("key", key), ("value", value)):
        kind = TYPES[part.kind] if part.kind != NOTHING else "BYTES"
        properties |= {f"{name}.schema.name": "", f"{name}.schema.type": kind,
                       f"{name}.schema.properties": json.dumps(part.properties)}
    return Definition(T.KeyValue, registry.joined(key.data, value.data), properties)


def _definition(name: str, given: Any) -> Definition:
    """Return the definition of {"type": ..., "schema": ..., "properties": ...}, an object or its text.

    The schema is Base64, as in Pulsar, or JSON as it is.  Raises TurnedAway.
    """
    try:
        fields = json.loads(given) if isinstance(given, str) else given
        schema, properties = fields.get("schema") or "", fields.get("properties") or {}
        if isinstance(schema, dict):
            schema = json.dumps(schema, separators=(",", ":"))
        data = schema.encode() if schema[:1] == "{" else base64.b64decode(schema, validate=True)
        if not all(isinstance(text, str) for text in (fields["type"], *properties.values())):
            raise TypeError
        definition = Definition(registry.kind_of(fields["type"]), data, properties)
        registry.validate(definition)
    except InvalidSchema as error:
        raise TurnedAway(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name}: {error.message}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise TurnedAway(HTTPStatus.BAD_REQUEST,
                     f'{name} is JSON such as {{"type": "AVRO", "schema": "<Base64>", "properties": {{}}}}') from None
    return definition
