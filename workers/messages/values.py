"""Payloads -> values of their topic's schema, as JSON has them."""
import base64
import contextlib
import json
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import date, time
from typing import Any

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.schemas import plain_values
from geminga.workers.messages.message import Message, text_or_base64

S = api.Schema
VERSIONS_MAX = 1_000        # functions of schema versions that are kept
_SHOWN_MAX = 200            # characters of an error that are told

Read = Callable[[Message], Any]                                       # a message's value.  Raises ValueError
Ask = Callable[[str, bytes], Awaitable[api.Schema | None]]            # (topic, version; b"": the newest) -> schema


class Values:
    """Decodes messages by their schemas, each version of which is asked for once.

    A message that names no version is decoded by the topic's newest one if it fits: Go's client names none in messages
    that it sends alone.  `complaints` has a line for each version that does not fit some message that names it.
    """

    def __init__(self, ask: Ask) -> None:
        self.complaints: list[str] = []
        self._ask = ask
        self._readers: dict[tuple[str, bytes], Read | None] = {}      # None: the version has no values to decode
        self._told: set[tuple[str, bytes]] = set()

    def __repr__(self) -> str:
        return f"<Values versions={len(self._readers)}>"

    async def decode(self, messages: Iterable[Message]) -> None:
        """Set `value` of those messages that have a schema and fit it.  Raises what asking raises."""
        for message in messages:
            if message.is_null:
                continue
            version = message.schema_version or b""
            place = message.topic, version
            if place not in self._readers:
                await self._fetch(message.topic, version)
            read = self._readers[place]
            if read is not None:
                self._decode(message, read, place)

    def _decode(self, message: Message, read: Read, place: tuple[str, bytes]) -> None:
        try:
            message.value = read(message)
        except (ValueError, OverflowError, struct.error, RecursionError) as error:
            if place not in self._told and place[1]:
                self._told.add(place)
                self.complaints.append(f"{message.id} does not fit version {int.from_bytes(place[1])} of its schema: "
                                       f"{str(error)[:_SHOWN_MAX]}")

    async def _fetch(self, topic: str, version: bytes) -> None:
        if len(self._readers) >= VERSIONS_MAX:
            self._readers.clear()
            self._told.clear()
        schema = await self._ask(str(names.parse(topic).base), version)
        try:
            self._readers[topic, version] = None if schema is None else reader(schema)
        except ValueError as error:
            self._readers[topic, version] = None
            number = int.from_bytes(version) if version else "the newest"
            self.complaints.append(f"version {number} of the schema of {topic} cannot be used: "
                                   f"{str(error)[:_SHOWN_MAX]}")


def reader(schema: api.Schema) -> Read | None:
    """Return the function that decodes messages of a schema, None if their payloads are just bytes.

    Raises ValueError for a schema that is wrong.
    """
    if schema.type == S.KeyValue:
        return _key_value(schema)
    read = _payload_reader(schema.type, schema.schema_data)
    return None if read is None else lambda message: read(message.payload)


def _payload_reader(kind: int, definition: bytes) -> Callable[[bytes], Any] | None:
    """Return the function payload -> value for a schema that is not a pair."""
    if kind == S.Avro:
        from geminga.workers.messages import avro_values  # slow to import
        return avro_values.reader(definition)
    if kind == S.ProtobufNative:
        return _protobuf(definition)
    return _SIMPLE.get(kind)


def _protobuf(definition: bytes) -> Callable[[bytes], Any]:
    from google.protobuf import json_format, message_factory
    from google.protobuf.message import DecodeError

    from geminga.storage.schemas import protobuf_rules
    kind = message_factory.GetMessageClass(protobuf_rules.parse(definition))

    def value(payload: bytes) -> Any:
        try:
            return json_format.MessageToDict(kind.FromString(payload), preserving_proto_field_name=True)
        except (DecodeError, json_format.Error) as error:
            raise ValueError(str(error)) from None
    return value


# -- pairs of a key and a value

def _key_value(schema: api.Schema) -> Read:
    """Return a function that decodes both halves of a KeyValue message, as {"key": ..., "value": ...}."""
    properties = {pair.key: pair.value for pair in schema.properties}
    definitions = plain_values.halves(schema.schema_data)
    kinds = [_kind(properties.get(f"{name}.schema.type", "BYTES")) for name in ("key", "value")]
    readers = [_payload_reader(kind, definition or b"") or text_or_base64
               for kind, definition in zip(kinds, definitions, strict=True)]
    is_separated = properties.get("kv.encoding.type") == "SEPARATED"

    def value(message: Message) -> Any:
        parts = (_key_bytes(message), message.payload) if is_separated else plain_values.halves(message.payload)
        return {name: None if part is None else read(part)
                for name, read, part in zip(("key", "value"), readers, parts, strict=True)}
    return value


def complete(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing, such as the decoding of values whose schemas are at hand."""
    with contextlib.suppress(StopIteration):
        work.send(None)


def _key_bytes(message: Message) -> bytes | None:
    if message.key is None:
        return None
    return base64.b64decode(message.key) if message.is_key_base64 else message.key.encode()


def _kind(name: str) -> int:
    """Return the type of a schema by its name in properties, such as INT32; none if it is not known."""
    return _KINDS.get(name.replace("_", "").lower(), 0)


_KINDS = {name.lower(): number for name, number in S.Type.items()} | {"boolean": S.Bool}


# -- values of one kind

def _shown(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return the function that reads a payload as JSON has it: days and times are text."""
    def value(payload: bytes) -> Any:
        plain = read(payload)
        return plain.isoformat().replace("+00:00", "Z") if isinstance(plain, date | time) else plain
    return value


_SIMPLE: dict[int, Callable[[bytes], Any]] = {
    S.Json: json.loads, **{kind: _shown(read) for kind, read in plain_values.READERS.items()}}
