"""Schemas of topics: their versions, and which versions are compatible.

The catalogue has the versions of a topic under its base name, in order. A client that brings a known definition gets
its version. A new definition is added if it is compatible with earlier ones, as the topic's policies demand.
Definitions are stored byte for byte. Types AVRO, JSON and PROTOBUF have Avro definitions; old clients send JSON Schema
for JSON. avro_rules.py compares AVRO and JSON, protobuf_rules.py compares PROTOBUF_NATIVE.

Parsing a large definition takes tenths of a second. Therefore workers and the admin process `validate` and `register`
in a thread (workers/directory/schemas.py), and owners usually get definitions that are known. An owner adds the first
version itself, because only an owner may create a topic. Parsers are imported at their first use.
"""
import contextlib
import hashlib
import json
import struct
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import Policies
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.runtime.counters import Counters
from geminga.storage.schemas import plain_values

if TYPE_CHECKING:      # imported when the first definition of its kind is parsed
    from avro.schema import Schema
    from google.protobuf.descriptor import Descriptor

# bytes of a definition; arbitrary, more than real ones have: comparing one this large takes a second
SIZE_MAX = 256 << 10
ALL_SIZE_MAX = 16 << 20       # bytes of all versions of a topic: a new one may have to be compared with each
BACKWARD, FORWARD, FULL = "BACKWARD", "FORWARD", "FULL"
ALWAYS_COMPATIBLE, ALWAYS_INCOMPATIBLE = "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE"
_TRANSITIVE = "_TRANSITIVE"
NOT_HASHED = b""
_SHOWN_MAX = 500              # characters of an obstacle in an error
T = api.Schema.Type
# Names of schema types over HTTP and in properties, by their numbers.
TYPES = ("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE",
         "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME",
         "PROTOBUF_NATIVE", "AUTO_CONSUME", "EXTERNAL")
_AVRO = (T.Avro, T.Json, T.Protobuf)
_JSON_TYPES = ("object", "string", "integer", "number", "boolean", "array", "null", "any")      # of JSON Schema


class Definition(NamedTuple):
    """The definition of a schema, with its type (a number of Schema.Type) and its properties."""

    kind: int
    data: bytes
    properties: dict[str, str]

    @property
    def identity(self) -> tuple[bytes, list[str]]:
        """The bytes, and the types of key and value, which together identify the definition."""
        parts = ("key", "value") if self.kind == T.KeyValue else ()
        return self.data, [self.properties.get(f"{part}.schema.type", "") for part in parts]


class Version(NamedTuple):
    """One stored schema version of a topic."""

    version: int
    definition: Definition
    created_ms: int


class InvalidSchema(Refusal):
    """Refusal of a schema whose definition is not valid."""

    def __init__(self, text: str):
        super().__init__(api.IncompatibleSchema, text)


def from_wire(schema: api.Schema) -> Definition:
    return Definition(schema.type, schema.schema_data, {pair.key: pair.value for pair in schema.properties})


def to_wire(definition: Definition, name: str) -> api.Schema:
    kind: Any = definition.kind
    return api.Schema(name=name, schema_data=definition.data, type=kind,
                      properties=[api.KeyValue(key=key, value=value) for key, value in definition.properties.items()])


def incompatible(text: str) -> Refusal:
    return Refusal(api.IncompatibleSchema, text[:_SHOWN_MAX])      # names in it may be as long as definitions


# -- stored versions

def versions(catalogue: Catalogue, topic: TopicName) -> list[int]:
    """Return the schema version numbers of a topic, ascending, without versions before a deletion."""
    stored = catalogue.schemas.versions(catalogue.topics.whole(topic))
    return [version for version, kind, _ in stored if kind is not None]


def find(catalogue: Catalogue, topic: TopicName, version: int | None = None) -> Version | None:
    """Return a schema version of a topic, the newest one by default; None if there is none."""
    if version is None:
        version = next(reversed(versions(catalogue, topic)), -1)
    kept = catalogue.schemas.get(catalogue.topics.whole(topic), version)
    if kept is None:
        return None
    kind, created_ms, properties, data = kept
    if kind is None:
        return None
    return Version(version, Definition(kind, data, properties), created_ms)


def known(catalogue: Catalogue, topic: TopicName, definition: Definition) -> int | None:
    """Return the schema version of a definition if it can be found without parsing, else None."""
    if definition.kind in _AVRO:
        return catalogue.schemas.version_of(catalogue.topics.whole(topic), definition.kind, definition.data)
    return _with_hash(catalogue, topic, definition.kind, _hash(definition))


def _with_hash(catalogue: Catalogue, topic: TopicName, wanted: int, hashed: bytes) -> int | None:
    for version, kind, other in catalogue.schemas.versions(catalogue.topics.whole(topic)):
        if kind == wanted:
            if other == NOT_HASHED and (stored := find(catalogue, topic, version)):
                other = _hash(stored.definition)
            if other == hashed:
                return version
    return None


def _hash(definition: Definition) -> bytes:
    """Return a hash that is equal for schema definitions of equal meaning.  Raises InvalidSchema."""
    meaning: str | tuple[bytes, list[str]] = definition.identity
    if definition.kind in _AVRO and not isinstance(parsed := _parsed(definition), str):
        from geminga.storage.schemas import avro_rules
        meaning = avro_rules.meaning(parsed)
    return hashlib.sha256(repr(meaning).encode()).digest()


def version_of(catalogue: Catalogue, topic: TopicName, definition: Definition) -> int | None:
    """Return a topic's schema version with the same meaning as the definition, None if there is none.

    Raises InvalidSchema.
    """
    return _same(catalogue, topic, definition)[0]


def _same(catalogue: Catalogue, topic: TopicName, definition: Definition) -> tuple[int | None, bytes]:
    """Return (schema version with the same meaning or None, hash of the meaning or NOT_HASHED).

    Raises InvalidSchema.
    """
    version = known(catalogue, topic, definition)
    if version is not None:
        return version, NOT_HASHED
    hashed = _hash(definition)
    return _with_hash(catalogue, topic, definition.kind, hashed), hashed


# -- adding versions, and checking producers and consumers

@contextlib.contextmanager
def counting_refusals(counters: Counters) -> Iterator[None]:
    """Count a definition that is refused, or cannot be stored, while it is validated and registered."""
    try:
        yield
    except (Refusal, StorageFull, NotDurable):
        counters.add("schemas_refused")
        raise


def register(catalogue: Catalogue, topic: TopicName, definition: Definition, policies: Policies,
             counters: Counters) -> int:
    """Return the schema version of a valid definition.

    A new, compatible definition is added in the open transaction. Raises Refusal, StorageFull.
    """
    began, whole = time.perf_counter(), catalogue.topics.whole(topic)
    while True:
        # an owner adds the first version, and has no time to parse it
        there, hashed = catalogue.schemas.versions(whole), NOT_HASHED
        is_first = all(kind is None for _, kind, _ in there)
        if not is_first:
            version, hashed = _same(catalogue, topic, definition)
            if version is not None:
                return version
        if not policies.schema_updates:
            raise incompatible("Schema not found and schema auto updating is disabled.")
        if not is_first:
            check(catalogue, topic, definition, policies.schema_strategy, counters)
            if catalogue.schemas.total_bytes(whole) + len(definition.data) > ALL_SIZE_MAX:
                raise incompatible(f"All versions of a schema together have at most {ALL_SIZE_MAX} bytes")
        version = there[-1][0] + 1 if there else 0
        if catalogue.schemas.add(whole, version, definition.kind, hashed, definition.properties, definition.data):
            counters.observe("schema_put", time.perf_counter() - began)
            # else another process was quicker, and its version is known by now; the transaction keeps others out from
            # here on
            return version


def check(catalogue: Catalogue, topic: TopicName, definition: Definition, strategy: str, counters: Counters) -> None:
    """Check that a producer may add the definition: that it is compatible with earlier versions.  Raises Refusal."""
    numbers = versions(catalogue, topic)
    numbers = numbers if strategy.endswith(_TRANSITIVE) else numbers[-1:]
    _compare(catalogue, topic, definition, strategy, numbers, counters)


def check_consumer(catalogue: Catalogue, topic: TopicName, definition: Definition, strategy: str,
                   counters: Counters) -> None:
    """Check that a consumer with this schema definition may read a topic that has a schema.  Raises Refusal."""
    numbers = versions(catalogue, topic)
    if strategy in (BACKWARD, FORWARD, FORWARD + _TRANSITIVE, FULL):
        _compare(catalogue, topic, definition, BACKWARD, numbers[-1:], counters)
    else:
        _compare(catalogue, topic, definition, strategy, numbers, counters)


def _compare(catalogue: Catalogue, topic: TopicName, definition: Definition, strategy: str,
             numbers: list[int], counters: Counters) -> None:
    text = _in_the_way(catalogue, topic, definition, strategy, numbers)
    counters.add("schemas_incompatible" if text else "schemas_compatible")
    if text:
        raise incompatible(text)


def _in_the_way(catalogue: Catalogue, topic: TopicName, definition: Definition, strategy: str,
                numbers: list[int]) -> str:
    if strategy == ALWAYS_COMPATIBLE:
        return ""
    for number in reversed(numbers):
        stored = find(catalogue, topic, number)
        if stored is None:      # deleted meanwhile
            continue
        other = stored.definition
        if other.kind != definition.kind:
            return f"Incompatible schema: exists schema type {TYPES[other.kind]}, " \
                   f"new schema type {TYPES[definition.kind]}"
        if strategy == ALWAYS_INCOMPATIBLE:
            return "Schema compatibility strategy is ALWAYS_INCOMPATIBLE"
        direction = strategy.removesuffix(_TRANSITIVE)
        if other.identity != definition.identity and (text := obstacle(definition, other, direction)):
            return f"Incompatible schema: by strategy {strategy} with version {number}: {text}"
    return ""


def obstacle(new: Definition, old: Definition, strategy: str) -> str:
    """Return why two schema definitions of one type are not compatible, "" if they are.

    As in Apache Pulsar, definitions of type PROTOBUF are not compared.
    """
    if new.kind == T.KeyValue:
        for part, one, other in zip(("key", "value"), parts(new), parts(old), strict=True):
            if one.kind != other.kind:
                return f"exists {part} schema type {TYPES[other.kind]}, new {part} schema type {TYPES[one.kind]}"
            if text := obstacle(one, other, strategy):
                return f"{part}: {text}"
    if new.kind == T.ProtobufNative:
        return _native_obstacle(new, old, strategy)
    if new.kind in (T.Avro, T.Json):
        return _avro_obstacle(new, old, strategy)
    return ""


def _native_obstacle(new: Definition, old: Definition, strategy: str) -> str:
    from geminga.storage.schemas import protobuf_rules
    after, before = _native_root(new), _native_root(old)
    if after.full_name != before.full_name:
        return f"the root message was {before.full_name}, and is {after.full_name}"
    return _both_ways(protobuf_rules.obstacle, after, before, strategy)


def _avro_obstacle(new: Definition, old: Definition, strategy: str) -> str:
    from geminga.storage.schemas import avro_rules
    after, before = _parsed(new), _parsed(old)
    if isinstance(after, str) and isinstance(before, str):
        return "" if after == before else f"the id was {before}, and is {after}"
    if isinstance(after, str) or isinstance(before, str):      # JSON Schemas cannot be compared
        return ""
    return _both_ways(avro_rules.obstacle, after, before, strategy)


def _both_ways(obstacle: Callable[[Any, Any], str], after: Any, before: Any, strategy: str) -> str:
    """Return why two schema definitions are not compatible in the directions of the strategy, "" if they are.

    obstacle: returns why its first argument cannot read messages written with its second.
    """
    text = obstacle(after, before) if strategy in (BACKWARD, FULL) else ""
    if not text and strategy in (FORWARD, FULL) and (text := obstacle(before, after)):
        text = f"the other way: {text}"
    return text


def check_missing(catalogue: Catalogue, topic: TopicName, policies: Policies) -> None:
    """Check that a producer without a schema may publish to the topic.  Raises Refusal."""
    if policies.schema_enforced and versions(catalogue, topic):
        raise incompatible("Producers cannot connect or send message without a schema to topics with a schema "
                           "when SchemaValidationEnforced is enabled")


def version_bytes(version: int) -> bytes:
    return version.to_bytes(8, "big")


# -- definitions

def check_size(definition: Definition) -> None:
    """Check the size of a schema definition with its properties.  Raises InvalidSchema."""
    try:
        size = len(definition.data) + sum(len(text.encode()) for one in definition.properties.items() for text in one)
    except UnicodeEncodeError:
        raise InvalidSchema("A property of the schema is no text") from None
    if size > SIZE_MAX:
        raise InvalidSchema(f"Schema definition of more than {SIZE_MAX} bytes")


def validate(definition: Definition) -> None:
    """Check that a schema definition is valid for its type.  Raises InvalidSchema."""
    check_size(definition)
    kind, size = definition.kind, len(definition.data)
    if kind >= T.AutoConsume:
        raise InvalidSchema(f"Schema {TYPES[kind]} is a client-side schema type")
    if kind == T.KeyValue:
        for part in parts(definition):
            validate(part)
    elif kind in _AVRO:
        parsed = _parsed(definition)
        if kind == T.Avro and not isinstance(parsed, str) and parsed.type == "union":
            raise InvalidSchema("Avro schema typed [UNION] is not supported")
    elif kind == T.ProtobufNative:
        _native_root(definition)
    elif kind == T.String and definition.data in (b"", b"null"):      # the Python client sends these
        return
    elif kind == T.String:
        shown = definition.data[:100].decode(errors="replace")
        raise InvalidSchema(f"Invalid schema definition data for string schema : '{shown}'")
    elif kind != getattr(T, "None") and size:
        raise InvalidSchema("Invalid schema definition data for primitive schemas :"
                            f"length of schema data should be zero, but {size} bytes is found")


def _parsed(definition: Definition) -> "Schema | str":
    """Return the parsed Avro schema of a definition, or the id of a JSON Schema.  Raises InvalidSchema."""
    from geminga.storage.schemas import avro_rules
    try:
        return avro_rules.parse(definition.data.decode())
    except ValueError as error:
        if definition.kind == T.Json and (identity := _json_schema_id(definition.data)) is not None:
            return identity
        raise InvalidSchema(f"Invalid schema definition data for {TYPES[definition.kind]} schema: {error}") from None


def _json_schema_id(data: bytes) -> str | None:
    """Return the id of a JSON Schema, None if the data is not one."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return str(document.get("id", "")) if isinstance(document, dict) and document.get("type") in _JSON_TYPES else None


def _native_root(definition: Definition) -> "Descriptor":
    """Return the root message's descriptor of a PROTOBUF_NATIVE definition.  Raises InvalidSchema."""
    from geminga.storage.schemas import protobuf_rules
    try:
        return protobuf_rules.parse(definition.data)
    except ValueError as error:
        raise InvalidSchema(f"deserialize ProtobufNative Schema failed: {error}") from None


# -- definitions of KEY_VALUE

def parts(definition: Definition) -> tuple[Definition, Definition]:
    """Return the key's and the value's definition in a KEY_VALUE definition.  Raises InvalidSchema."""
    try:
        key, value = plain_values.halves(definition.data)
    except plain_values.Unfit:
        raise InvalidSchema("Invalid schema definition data for KEY_VALUE schema: "
                            "a size, the key's, a size, the value's") from None
    return _part(definition, "key", key or b""), _part(definition, "value", value or b"")


def _part(definition: Definition, name: str, data: bytes) -> Definition:
    kind = kind_of(definition.properties.get(f"{name}.schema.type", "BYTES"))
    if kind == T.KeyValue:
        raise InvalidSchema("A key or a value of type KEY_VALUE is not possible")
    return Definition(kind, data, {})


def kind_of(name: str) -> int:
    """Return the number of a schema type by its name; BYTES means no schema.  Raises InvalidSchema."""
    name = {"BYTES": "NONE", "AUTO": "AUTO_CONSUME", "AUTO_PUBLISH": "AUTO_CONSUME"}.get(name, name)
    if name not in TYPES:
        raise InvalidSchema(f"No schema type {name[:80]!r}: one of {', '.join(TYPES)}")
    return TYPES.index(name)


def joined(key: bytes, value: bytes) -> bytes:
    """Return the definition of a KEY_VALUE schema, made of the definitions of its key and value."""
    return b"".join(struct.pack(">i", len(part)) + part for part in (key, value))
