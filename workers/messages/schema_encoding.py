"""Values as payloads, encoded by the schema of a topic.

    AVRO, PROTOBUF_NATIVE          binary, from JSON
    JSON                           JSON, compared with the definition
    STRING, INT32, BOOLEAN, ...    text, numbers and moments, as Pulsar's clients encode them
    KEY_VALUE                      {"key": ..., "value": ...}, each encoded by its own type
"""
import base64
import json
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import TYPES, Definition, T
from geminga.workers.messages.outgoing import Encoded, Wrong, parsed

_SHOWN_MAX = 60
NOTHING = getattr(T, "None")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NotEncodable(Exception):
    """An error: values of this type of schema cannot be made from JSON."""

    exit_status = 2


class SchemaEncoder:
    """An `outgoing.Encoder` for one definition of a schema.  Raises NotEncodable, InvalidSchema when it is made."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._pair = pair_of(definition, _encoder) if definition.kind == T.KeyValue else None
        self._encode = _encoder(definition) if self._pair is None else None

    def __repr__(self) -> str:
        return f"<SchemaEncoder {TYPES[self._definition.kind]}>"

    def of_text(self, text: bytes) -> Encoded:
        """Return the payload of a value that is given as text.  Raises Wrong."""
        if self._definition.kind == T.String:
            return Encoded(_utf8(text).encode())
        if self._definition.kind == NOTHING:
            return Encoded(text)
        try:
            value = parsed(text)
        except Wrong:
            if self._definition.kind not in _PRIMITIVES:
                raise
            value = _utf8(text).strip()      # such as 2026-01-31, which needs no quotes
        return self.of_value(value)

    def of_value(self, value: Any) -> Encoded:
        """Return the payload of a JSON value.  Raises Wrong."""
        if self._encode is not None:
            return Encoded(self._encode(value))
        if not isinstance(value, dict) or set(value) != {"key", "value"}:
            raise Wrong(f'the value: {_shown(value)} is not {{"key": ..., "value": ...}}')
        assert self._pair is not None
        return self._pair.encoded(value["key"], value["value"])


class Pair(NamedTuple):
    """Encoders of a KEY_VALUE schema's parts."""

    key: Callable[[Any], bytes]
    value: Callable[[Any], bytes]
    is_separate: bool          # the key stands in the message's metadata, in base64

    def encoded(self, key: Any, value: Any) -> Encoded:
        """Encode both parts, each None or what its encoder takes.  Raises Wrong."""
        parts = [None if part is None else encode(part) for encode, part in ((self.key, key), (self.value, value))]
        if self.is_separate:
            return Encoded(parts[1] or b"", None if parts[0] is None else base64.b64encode(parts[0]).decode())
        return Encoded(b"".join(struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
                                for part in parts))


def pair_of(definition: Definition, encoder: Callable[[Definition], Callable[[Any], bytes]],
            value_name: str = "value") -> Pair:
    """Return the encoders of a KEY_VALUE schema's parts.  value_name: what errors call the value.

    Raises InvalidSchema, and what `encoder` raises.
    """
    key, value = registry.parts(definition)
    is_separate = definition.properties.get("kv.encoding.type", "INLINE").upper() == "SEPARATED"
    return Pair(named("key", encoder(key)), named(value_name, encoder(value)), is_separate)


def named(name: str, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return an encoder whose errors begin with a name."""
    def encoded(value: Any) -> bytes:
        try:
            return encode(value)
        except Wrong as error:
            raise Wrong(f"{name}: {str(error).removeprefix('the value: ')}") from None
        except UnicodeEncodeError:
            raise Wrong(f"{name}: it has half of a character, which UTF-8 cannot say") from None

    return encoded


def _encoder(definition: Definition) -> Callable[[Any], bytes]:
    kind = definition.kind
    if kind == T.Avro:
        return _avro(definition)
    if kind == T.Json:
        return _json(definition)
    if kind == T.ProtobufNative:
        return _protobuf(definition)
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    raise NotEncodable(f"the schema is of type {TYPES[kind]}: this command cannot encode values for it, "
                       "only send payloads as they are, without --schema")


def _avro(definition: Definition) -> Callable[[Any], bytes]:
    from geminga.storage.schemas import avro_rules
    from geminga.workers.messages import avro_encoding
    schema = avro_rules.parse(definition.data.decode())
    return lambda value: avro_encoding.encode(schema, value)


def _json(definition: Definition) -> Callable[[Any], bytes]:
    """Return an encoder that compares values with an Avro definition, but not with the JSON Schema of an old client."""
    try:
        check = _avro(definition)
    except ValueError:
        return _json_bytes

    def encode(value: Any) -> bytes:
        check(value)
        return _json_bytes(value)

    return encode


def _json_bytes(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:      # infinite, or half of a character
        raise Wrong(f"the value: {error}") from None


def _protobuf(definition: Definition) -> Callable[[Any], bytes]:
    from google.protobuf import json_format, message_factory
    from google.protobuf.message import EncodeError

    from geminga.storage.schemas import protobuf_rules
    made = message_factory.GetMessageClass(protobuf_rules.parse(definition.data))

    def encode(value: Any) -> bytes:
        message = made()
        try:
            if not isinstance(value, dict):
                raise Wrong(f"the value: {_shown(value)} is not an object")
            json_format.ParseDict(value, message)
            return message.SerializeToString()      # EncodeError names required fields that are missing
        except (json_format.ParseError, EncodeError, RecursionError) as error:
            raise Wrong(f"the value: {' '.join(str(error).split())}") from None

    return encode


# -- primitive types, by Pulsar's classes of the same names

def _utf8(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise Wrong("the value: it is no text in UTF-8") from None


def _shown(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= _SHOWN_MAX else shown[:_SHOWN_MAX] + "..."


def _unlike(value: Any, expected: str) -> Wrong:
    return Wrong(f"the value: {_shown(value)} is not {expected}")


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _unlike(value, "a text")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Wrong("the value: it has half of a character, which UTF-8 cannot say") from None


def _bytes(value: Any) -> bytes:
    raise _unlike(value, "a payload: a topic whose schema is BYTES takes payload or payloadBase64")


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise _unlike(value, "true or false")
    return bytes((value,))


def _whole(form: str, bits: int) -> Callable[[Any], bytes]:
    limit = 1 << bits - 1

    def encode(value: Any) -> bytes:
        if type(value) is not int or not -limit <= value < limit:
            raise _unlike(value, f"a whole number of {bits} bits")
        return struct.pack(form, value)

    return encode


def _real(form: str) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _unlike(value, "a number")
        try:
            return struct.pack(form, value)
        except OverflowError:
            raise _unlike(value, "a number of this size") from None

    return encode


def _time(expected: str, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return an encoder of times; `encode` raises another error for a value that is no such time."""
    def encoded(value: Any) -> bytes:
        try:
            return encode(value)
        except (TypeError, ValueError, OverflowError, struct.error):
            raise _unlike(value, expected) from None

    return encoded


def _micros(value: Any) -> int:
    """Return microseconds since 1970 of ms, or of a moment in ISO 8601."""
    if type(value) is int:
        return value * 1_000
    when = datetime.fromisoformat(value)
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _clock_micros(value: Any) -> int:
    """Return microseconds since midnight of a time such as 12:34:56."""
    when = time.fromisoformat(value)
    return ((when.hour * 60 + when.minute) * 60 + when.second) * 1_000_000 + when.microsecond


def _day(value: Any) -> int:
    """Return days since 1970 of a number of days, or of a date in ISO 8601."""
    return value if type(value) is int else date.fromisoformat(value).toordinal() - _EPOCH.toordinal()


def _instant(value: Any) -> bytes:
    seconds, micros = divmod(_micros(value), 1_000_000)
    return struct.pack(">qi", seconds, micros * 1_000)


def _local_date_time(value: Any) -> bytes:
    days, micros = divmod(_micros(value), 86_400_000_000)
    return struct.pack(">qq", days, micros * 1_000)


_MICROSECOND = timedelta(microseconds=1)
_A_MOMENT = "a time: ms since 1970, or ISO 8601 such as 2026-01-31T12:00:00Z"
_A_CLOCK = "a time of day, such as 12:34:56"
_MILLIS = _time(_A_MOMENT, lambda value: struct.pack(">q", _micros(value) // 1_000))
_PRIMITIVES: dict[int, Callable[[Any], bytes]] = {
    NOTHING: _bytes, T.String: _string, T.Bool: _boolean,
    T.Int8: _whole(">b", 8), T.Int16: _whole(">h", 16), T.Int32: _whole(">i", 32), T.Int64: _whole(">q", 64),
    T.Float: _real(">f"), T.Double: _real(">d"),
    T.Date: _MILLIS, T.Timestamp: _MILLIS,
    T.Time: _time(_A_CLOCK, lambda value: struct.pack(">q", _clock_micros(value) // 1_000)),
    T.Instant: _time(_A_MOMENT, _instant),
    T.LocalDate: _time("a date, such as 2026-01-31", lambda value: struct.pack(">q", _day(value))),
    T.LocalTime: _time(_A_CLOCK, lambda value: struct.pack(">q", _clock_micros(value) * 1_000)),
    T.LocalDateTime: _time("a date with a time, such as 2026-01-31T12:34:56", _local_date_time),
}
