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
from typing import Any, NamedTuple

from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import TYPES, Definition, InvalidSchema, T
from geminga.supervisor.messages.outgoing import Wrong
from geminga.supervisor.web.session import Turned

BYTES = getattr(T, "None")
STRING = Definition(T.String, b"", {})
_SHOWN_MAX = 60
_Encode = Callable[[str], bytes]      # a text's bytes.  Raises Wrong


class Encoded(NamedTuple):
    """A message as its schema encodes it."""

    payload: bytes
    key: str | None
    is_key_base64: bool


class Encoder:
    """Encodes the messages of one schema."""

    def __init__(self, definition: Definition) -> None:
        """Raises Turned if texts cannot be encoded by the definition."""
        self._key: _Encode | None = None               # of a pair
        self._is_separated = False
        try:
            if definition.kind == T.KeyValue:
                key, value = registry.parts(definition)
                self._key, self._value = _encode(key), _encode(value)
                self._is_separated = definition.properties.get("kv.encoding.type", "INLINE").upper() == "SEPARATED"
            else:
                self._value = _encode(definition)
        except InvalidSchema as error:
            raise Turned(HTTPStatus.UNPROCESSABLE_ENTITY, error.message) from None

    def __repr__(self) -> str:
        return f"<Encoder is_pair={self._key is not None}>"

    def encode(self, key: str | None, payload: str) -> Encoded:
        """Return a message's key and payload.  Raises Wrong."""
        value = _part("payload", self._value, payload)
        if self._key is None:
            return Encoded(value, key, is_key_base64=False)
        raw = None if key is None else _part("key", self._key, key)
        if self._is_separated:
            text = None if raw is None else base64.b64encode(raw).decode()
            return Encoded(value, text, is_key_base64=text is not None)
        size = struct.pack(">i", -1) if raw is None else struct.pack(">i", len(raw)) + raw
        return Encoded(b"".join((size, struct.pack(">i", len(value)), value)), key, is_key_base64=False)


def _part(name: str, encode: _Encode, text: str) -> bytes:
    try:
        return encode(text)
    except Wrong as error:
        raise Wrong(f"{name}: {str(error).removeprefix('the value: ')}") from None
    except UnicodeEncodeError:
        raise Wrong(f"{name}: it has half of a character, which UTF-8 cannot say") from None


def _encode(definition: Definition) -> _Encode:
    """Return the function that encodes texts by a schema that is no pair.  Raises Turned, InvalidSchema."""
    kind = definition.kind
    if kind in _TEXTS:
        return _TEXTS[kind]
    from geminga.supervisor.messages.schema_encoding import NotEncodable, SchemaEncoder  # slow to import
    try:
        encoder = SchemaEncoder(definition)
    except NotEncodable:
        raise Turned(HTTPStatus.UNPROCESSABLE_ENTITY, f"Texts cannot be encoded by a schema of type {TYPES[kind]}"
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


_TEXTS: dict[int, _Encode] = {T.String: str.encode, BYTES: str.encode, T.Bool: _boolean, T.Float: _real(">f"),
                              T.Double: _real(">d")}


# -- definitions

def definition_of(key_schema: Any, value_schema: Any) -> Definition:
    """Return the definition that a call names; without a schema STRING, as in Pulsar.  Raises Turned."""
    value = STRING if value_schema in (None, "") else _definition("valueSchema", value_schema)
    if key_schema in (None, ""):
        return value
    key = _definition("keySchema", key_schema)
    if T.KeyValue in (key.kind, value.kind):
        raise Turned(HTTPStatus.UNPROCESSABLE_ENTITY, "A key or a value of type KEY_VALUE is not possible")
    properties = {"kv.encoding.type": "SEPARATED"}
    for name, part in (("key", key), ("value", value)):
        kind = TYPES[part.kind] if part.kind != BYTES else "BYTES"
        properties |= {f"{name}.schema.name": "", f"{name}.schema.type": kind,
                       f"{name}.schema.properties": json.dumps(part.properties)}
    return Definition(T.KeyValue, registry.joined(key.data, value.data), properties)


def _definition(name: str, said: Any) -> Definition:
    """Return the definition of {"type": ..., "schema": ..., "properties": ...}, an object or its text.  Raises Turned.

    The schema is Base64, as in Pulsar, or JSON as it is.
    """
    try:
        fields = json.loads(said) if isinstance(said, str) else said
        schema, properties = fields.get("schema") or "", fields.get("properties") or {}
        if isinstance(schema, dict):
            schema = json.dumps(schema, separators=(",", ":"))
        data = schema.encode() if schema[:1] == "{" else base64.b64decode(schema, validate=True)
        if not all(isinstance(one, str) for one in (fields["type"], *properties.values())):
            raise TypeError
        definition = Definition(registry.kind_of(fields["type"]), data, properties)
        registry.validate(definition)
    except InvalidSchema as error:
        raise Turned(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name}: {error.message}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise Turned(HTTPStatus.BAD_REQUEST,
                     f'{name} is JSON such as {{"type": "AVRO", "schema": "<Base64>", "properties": {{}}}}') from None
    return definition
