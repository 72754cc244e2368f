"""Conversations with two brokers: the commands of each, as a table.

A conversation is a list of turns.  A turn is one or several commands that are said in one write, each made by a
function below; a turn that is about another connection is `on("b", ...)`.  Where a command is not told otherwise it is
about the conversation's own topic (T), producer 1 or consumer 1, and its request id is the number of its turn.
`Receipt(n)` is the id that the n-th receipt told.
"""
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from geminga.proto import compression
from geminga.proto import pulsar_api_pb2 as api

from ...proto.client_frames import T as Kind
from ...proto.client_frames import entry_of, field_of, message_metadata, send

T = "{topic}"                # the conversation's own topic, by its complete name; {namespace} is its namespace
LARGEST = 2**64 - 1
Sub, Mode, Schema = api.CommandSubscribe, api.ProducerAccessMode, api.Schema.Type


@dataclass(frozen=True)
class Receipt:
    """A message's id, by the number of its receipt; fields that are given stand beside ledger and entry."""

    number: int = 0
    fields: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    kind: int
    fields: dict


@dataclass(frozen=True)
class Raw:
    data: bytes


@dataclass(frozen=True)
class Rest:
    """An HTTP request within a conversation; its status counts as an answer."""

    method: str
    path: str
    body: bytes | None = None


@dataclass(frozen=True)
class Turn:
    said: tuple
    connection: str = "a"


def on(connection: str, *said: Command | Raw) -> Turn:
    return Turn(said, connection)


def turns_of(conversation: list) -> list[Turn]:
    found = []
    for turn in conversation:
        if isinstance(turn, Turn):
            found.append(turn)
        else:
            found.append(Turn(turn if isinstance(turn, tuple) else (turn,)))
    return found


# -- commands

def connect(**fields) -> Command:
    return Command(Kind.CONNECT, {"client_version": "sweep", "protocol_version": 21} | fields)


def producer(**fields) -> Command:
    return Command(Kind.PRODUCER, {"topic": T, "producer_id": 1, "request_id": None} | fields)


def subscribe(kind: int = Sub.Exclusive, **fields) -> Command:
    return Command(Kind.SUBSCRIBE,
                   {"topic": T, "subscription": "sub", "subType": kind, "consumer_id": 1, "request_id": None,
                                    "initialPosition": Sub.Earliest} | fields)


def flow(permits: int = 100, consumer_id: int = 1) -> Command:
    return Command(Kind.FLOW, {"consumer_id": consumer_id, "messagePermits": permits})


def publish(
    *payloads: bytes, first: int = 0, producer_id: int = 1, fields: dict | None = None, **metadata
) -> tuple[Raw, ...]:
    found = []
    for number, payload in enumerate(payloads, first):
        entry = entry_of(message_metadata(sequence_id=number, **metadata), payload)
        found.append(Raw(send(entry, producer_id=producer_id, sequence_id=number, **(fields or {}))))
    return tuple(found)


def batch(*payloads: bytes, sequence_id: int = 0, codec: int = api.NONE, **metadata) -> Raw:
    body = b""
    for number, payload in enumerate(payloads):
        own = api.SingleMessageMetadata(payload_size=len(payload), sequence_id=sequence_id + number).SerializeToString()
        body += len(own).to_bytes(4, "big") + own + payload
    fields = {"sequence_id": sequence_id, "num_messages_in_batch": len(payloads), "compression": codec,
              "uncompressed_size": len(body)}
    entry = entry_of(message_metadata(**fields | metadata), compression.compress(codec, body))
    return Raw(send(entry, sequence_id=sequence_id, num_messages=len(payloads)))


def ack(*ids: Receipt, kind: int = api.CommandAck.Individual, **fields) -> Command:
    return Command(Kind.ACK, {"consumer_id": 1, "ack_type": kind, "message_id": list(ids), "request_id": None} | fields)


def silent_ack(*ids: Receipt, **fields) -> Command:
    made = ack(*ids, **fields)
    return Command(made.kind, {name: value for name, value in made.fields.items() if name != "request_id"})


def redeliver(*ids: Receipt, **fields) -> Command:
    return Command(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES, {"consumer_id": 1, "message_ids": list(ids)} | fields)


def seek(to: Receipt | api.MessageIdData | None = None, **fields) -> Command:
    return Command(Kind.SEEK,
                   {"consumer_id": 1, "request_id": None} | ({} if to is None else {"message_id": to}) | fields)


def last(**fields) -> Command:
    return Command(Kind.GET_LAST_MESSAGE_ID, {"consumer_id": 1, "request_id": None} | fields)


def stats(**fields) -> Command:
    return Command(Kind.CONSUMER_STATS, {"consumer_id": 1, "request_id": None} | fields)


def unsubscribe(**fields) -> Command:
    return Command(Kind.UNSUBSCRIBE, {"consumer_id": 1, "request_id": None} | fields)


def close_consumer(**fields) -> Command:
    return Command(Kind.CLOSE_CONSUMER, {"consumer_id": 1, "request_id": None} | fields)


def close_producer(**fields) -> Command:
    return Command(Kind.CLOSE_PRODUCER, {"producer_id": 1, "request_id": None} | fields)


def lookup(topic: str = T, **fields) -> Command:
    return Command(Kind.LOOKUP, {"topic": topic, "request_id": None} | fields)


def partitions(topic: str = T, **fields) -> Command:
    return Command(Kind.PARTITIONED_METADATA, {"topic": topic, "request_id": None} | fields)


def topics(namespace: str = "{namespace}", **fields) -> Command:
    return Command(Kind.GET_TOPICS_OF_NAMESPACE, {"namespace": namespace, "request_id": None} | fields)


def watch(pattern: str = "{namespace}/.*", **fields) -> Command:
    found = {"namespace": "{namespace}", "topics_pattern": pattern, "watcher_id": 1, "request_id": None}
    return Command(Kind.WATCH_TOPIC_LIST, found | fields)


def unwatch(**fields) -> Command:
    return Command(Kind.WATCH_TOPIC_LIST_CLOSE, {"watcher_id": 1, "request_id": None} | fields)


def schema(kind: int, data: bytes = b"", name: str = "s", **properties) -> dict:
    return {"name": name, "type": kind, "schema_data": data,
            "properties": [api.KeyValue(key=key, value=value) for key, value in properties.items()]}


def get_schema(**fields) -> Command:
    return Command(Kind.GET_SCHEMA, {"topic": T, "request_id": None} | fields)


def create_schema(made: dict, **fields) -> Command:
    return Command(Kind.GET_OR_CREATE_SCHEMA, {"topic": T, "request_id": None, "schema": made} | fields)


def rest(method: str, path: str, body: bytes | None = None) -> Rest:
    return Rest(method, path, body)


PING, PONG = Command(Kind.PING, {}), Command(Kind.PONG, {})
ORDER = b'{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"int"}%s]}'
ONE, TWO, THREE = (
    ORDER % b"",
    ORDER % b',{"name":"note","type":"string","default":""}',
    ORDER % b',{"name":"must","type":"string"}',
)
TOPIC_PATH = "/admin/v2/persistent/{path}"
MADE = Rest("PUT", TOPIC_PATH)


# -- made by rule: each command alone, before CONNECT, and without each of its required fields

def filled(message) -> dict:
    """Return the smallest content that a command must have by its field definitions."""
    return {name: _value(name, found) for name, found in message.DESCRIPTOR.fields_by_name.items() if found.is_required}


def _value(name: str, found) -> Any:
    if found.message_type is not None:
        return {one: _value(one, inner) for one, inner in found.message_type.fields_by_name.items()
                if inner.is_required}
    if found.enum_type is not None:
        return found.enum_type.values[0].number
    if found.cpp_type == found.CPPTYPE_STRING:
        text = {"topic": T, "namespace": "{namespace}", "topics_pattern": "{namespace}/.*"}.get(name, "text")
        return text if found.type == found.TYPE_STRING else b"bytes"
    return None if name == "request_id" else 1


def by_rule() -> Iterator[tuple[str, list]]:
    for kind in Kind.values():
        name, fields = Kind.Name(kind).lower(), filled(getattr(api.BaseCommand(), field_of(kind)))
        one = publish(b"x") if kind == Kind.SEND else (Command(kind, fields),)
        yield f"{name} alone", [one, PING]
        if kind != Kind.CONNECT:
            yield f"{name} before CONNECT", [Raw(b""), one]
        yield f"{name} without its body", [Raw(_bare(kind)), PING]
        for missing in fields:
            yield (
                f"{name} without {missing}",
                [Command(kind, {key: value for key, value in fields.items() if key != missing}), PING],
            )


def _bare(kind: int) -> bytes:
    body = b"\x08" + bytes([kind])
    return (4 + len(body)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


# -- written by hand

SHARED, FAILOVER, KEY_SHARED = Sub.Shared, Sub.Failover, Sub.Key_Shared
CUMULATIVE = api.CommandAck.Cumulative
OPENED = [producer(), subscribe(), flow()]
FIVE = [*OPENED, publish(b"0", b"1", b"2", b"3", b"4")]
BATCH = [*OPENED, (batch(b"0", b"1", b"2", b"3", b"4"),)]
NOWHERE = api.MessageIdData(ledgerId=1 << 40, entryId=0)
EARLIEST, LATEST = (api.MessageIdData(ledgerId=number & LARGEST, entryId=number & LARGEST)
                    for number in (-1, (1 << 63) - 1))


def by_hand() -> dict[str, list]:
    return {
        # connecting
        "connect twice": [connect()],
        "connect in version 0": [on("b", connect(protocol_version=0))],
        "connect in version 5": [on("b", connect(protocol_version=5)), on("b", producer()), on("b", *publish(b"x"))],
        "connect in version 99": [on("b", connect(protocol_version=99))],
        "connect in a negative version": [on("b", connect(protocol_version=-1))],
        "connect without a version": [on("b", Command(Kind.CONNECT, {"client_version": "sweep"}))],
        "connect with a proxy's address": [on("b", connect(proxy_to_broker_url="pulsar://nowhere:1"))],
        "connect with a principal": [on("b", connect(original_principal="somebody"))],
        "connect with an unknown method": [on("b", connect(auth_method_name="odd", auth_data=b"x"))],
        "connect with a token": [on("b", connect(auth_method_name="token", auth_data=b"x"))],
        "connect with all features": [
            on("b", connect(feature_flags={field.name: True for field in api.FeatureFlags.DESCRIPTOR.fields}))
        ],
        "answers without a question": [
            Command(Kind.AUTH_RESPONSE, {"response": {"auth_method_name": "token", "auth_data": b"x"}}),
            PING,
        ],
        "many pings": [(PING,) * 5],
        "pong unasked": [PONG, PING],
        "bytes": [Raw(b"GET / HTTP/1.1\r\n\r\n")],
        "a frame of nothing": [Raw(bytes(8))],
        "a frame that is too large": [Raw(b"\x7f\xff\xff\xff\0\0\0\x04")],
        "an unknown command": [Raw(_bare(99))],
        # producers
        "producer": [producer(), *((one,) for one in publish(b"0", b"1"))],
        "producer with a name": [producer(producer_name="me"), *publish(b"x")],
        "producer with a name twice": [producer(producer_name="me"), on("b", producer(producer_name="me"))],
        "producer with an empty name": [producer(producer_name="")],
        "producer with an id twice": [producer(), producer()],
        "producers with an id in one write": [(producer(request_id=7), producer(request_id=8))],
        "producers with an id and two topics": [
            (producer(request_id=7), producer(topic=T + "-2", request_id=8)),
            *publish(b"x"),
        ],
        "producer with a bad topic": [producer(topic="a/b/c/d/e"), producer(topic=""), producer(topic="ftp://a/b/c")],
        "producer in no tenant": [producer(topic="persistent://nobody/ns/t")],
        "producer in no namespace": [producer(topic="persistent://public/nowhere/t")],
        "producer of a partition of nothing": [producer(topic=T + "-partition-0")],
        "producer of a partitioned topic": [
            rest("PUT", TOPIC_PATH + "/partitions", b"2"),
            producer(),
            producer(topic=T + "-partition-1"),
            producer(topic=T + "-partition-2", producer_id=2),
        ],
        "producer of a non-persistent topic": [producer(topic="non-{topic}"), *publish(b"x")],
        "producer of a topic of the system": [producer(topic="persistent://{namespace}/__change_events")],
        "producer closed": [producer(), close_producer(), *publish(b"x")],
        "producer closed twice": [producer(), close_producer(), close_producer()],
        "producer closed that is none": [close_producer(producer_id=9)],
        "producer closed and opened": [producer(), close_producer(), producer(), *publish(b"x")],
        "producer closed while it publishes": [producer(), (*publish(b"x"), close_producer())],
        "producer closed before it publishes": [producer(), (close_producer(), *publish(b"x"))],
        "producer closed while it is opened": [(producer(request_id=7), close_producer(request_id=8))],
        "exclusive producer": [producer(producer_access_mode=Mode.Exclusive), on("b", producer())],
        "exclusive producer beside another": [producer(), on("b", producer(producer_access_mode=Mode.Exclusive))],
        "two exclusive producers": [
            producer(producer_access_mode=Mode.Exclusive),
            on("b", producer(producer_access_mode=Mode.Exclusive)),
        ],
        "waiting producer": [
            producer(),
            on("b", producer(producer_access_mode=Mode.WaitForExclusive)),
            close_producer(),
        ],
        "waiting producer closed": [
            producer(),
            on("b", producer(producer_access_mode=Mode.WaitForExclusive)),
            on("b", close_producer()),
            close_producer(),
        ],
        "fencing producer": [
            producer(),
            on("b", producer(producer_access_mode=Mode.ExclusiveWithFencing)),
            *publish(b"x"),
        ],
        "fencing producer of another": [
            producer(producer_access_mode=Mode.ExclusiveWithFencing),
            on("b", producer(producer_access_mode=Mode.ExclusiveWithFencing)),
        ],
        "producer with an old epoch": [
            producer(producer_access_mode=Mode.Exclusive),
            close_producer(),
            producer(producer_access_mode=Mode.Exclusive, request_id=9),
            close_producer(),
            producer(producer_access_mode=Mode.Exclusive, topic_epoch=0),
        ],
        "producer with an epoch of the future": [producer(producer_access_mode=Mode.Exclusive, topic_epoch=77)],
        "producer for transactions": [producer(txn_enabled=True)],
        "producer that encrypts": [producer(encrypted=True)],
        "producer with a first subscription": [
            producer(initial_subscription_name="first"),
            *publish(b"x"),
            subscribe(subscription="first"),
            flow(),
        ],
        "producer with metadata": [producer(metadata=[api.KeyValue(key="a", value="b")])],
        "producer of a terminated topic": [
            producer(),
            *publish(b"x"),
            rest("POST", TOPIC_PATH + "/terminate"),
            on("b", producer()),
        ],
        "publishing to a terminated topic": [producer(), rest("POST", TOPIC_PATH + "/terminate"), *publish(b"x")],
        # publishing
        "publish without a producer": [*publish(b"x")],
        "publish with another's id": [producer(), *publish(b"x", producer_id=2)],
        "publish many": [producer(), publish(*[b"x"] * 40)],
        "publish a wrong checksum": [
            producer(),
            Raw(send(entry_of(message_metadata(), wrong_by=1))),
            *publish(b"x", first=1),
        ],
        "publish without a checksum": [producer(), subscribe(), flow(), Raw(send(entry_of(message_metadata())[6:]))],
        "publish nothing": [producer(), Raw(send(b""))],
        "publish without metadata": [producer(), Raw(send(b"\0\0\0\0"))],
        "publish an empty payload": [producer(), subscribe(), flow(), *publish(b"")],
        "publish with sequence ids backwards": [producer(), *publish(b"x", first=9), *publish(b"x", first=3)],
        "publish with the largest sequence id": [producer(), *publish(b"x", first=LARGEST)],
        "publish a highest sequence id": [producer(), *publish(b"x", first=3, fields={"highest_sequence_id": 9})],
        "publish with transaction bits": [
            producer(),
            *publish(b"x", fields={"txnid_most_bits": 1, "txnid_least_bits": 1}),
        ],
        "publish a batch": [producer(), subscribe(), flow(), batch(b"a", b"b")],
        "publish compressed batches": [
            producer(),
            subscribe(),
            flow(),
            *[
                batch(b"a" * 9, b"b", sequence_id=5 * n, codec=codec)
                for n, codec in enumerate(api.CompressionType.values())
            ],
        ],
        "publish too large": [producer(), Raw(send(entry_of(message_metadata(), bytes(5 * 1024 * 1024 + 9_000))))],
        "publish chunks": [
            producer(),
            subscribe(),
            flow(),
            *[
                publish(
                    b"x",
                    first=0,
                    fields={"is_chunk": True},
                    uuid="u",
                    chunk_id=n,
                    num_chunks_from_msg=2,
                    total_chunk_msg_size=2,
                )
                for n in range(2)
            ],
        ],
        "publish with a key": [producer(), subscribe(KEY_SHARED), flow(), *publish(b"x", partition_key="k")],
        # subscribing
        **{
            f"subscribe {name}": [subscribe(kind), flow(), producer(), *publish(b"x")]
            for name, kind in Sub.SubType.items()
        },
        "subscribe with an id twice": [subscribe(), subscribe()],
        "subscribe with an id in one write": [(subscribe(request_id=7), subscribe(request_id=8))],
        "subscribe with an id and two topics": [(subscribe(request_id=7), subscribe(topic=T + "-2", request_id=8))],
        "subscribe exclusively twice": [subscribe(), on("b", subscribe())],
        "subscribe with another type": [subscribe(SHARED), on("b", subscribe(FAILOVER))],
        "subscribe shared to an exclusive one": [subscribe(), on("b", subscribe(SHARED))],
        "subscribe shared twice": [subscribe(SHARED), on("b", subscribe(SHARED))],
        "subscribe failover twice": [
            subscribe(FAILOVER, consumer_name="a"),
            on("b", subscribe(FAILOVER, consumer_name="b")),
            close_consumer(),
        ],
        "subscribe failover by priority": [
            subscribe(FAILOVER, consumer_name="a", priority_level=2),
            on("b", subscribe(FAILOVER, consumer_name="b", priority_level=1)),
        ],
        "subscribe with an empty name": [subscribe(subscription="")],
        "subscribe to a bad topic": [subscribe(topic="a/b/c/d/e")],
        "subscribe in no namespace": [subscribe(topic="persistent://public/nowhere/t")],
        "subscribe to a partitioned topic": [
            rest("PUT", TOPIC_PATH + "/partitions", b"2"),
            subscribe(),
            subscribe(topic=T + "-partition-1"),
        ],
        "subscribe without making the topic": [subscribe(force_topic_creation=False)],
        "subscribe at the latest": [
            producer(),
            *publish(b"0"),
            subscribe(initialPosition=Sub.Latest),
            flow(),
            *publish(b"1", first=1),
        ],
        "subscribe at the earliest": [producer(), *publish(b"0"), subscribe(), flow()],
        "subscribe with a negative priority": [subscribe(SHARED, priority_level=-1)],
        "subscribe to what is not persistent": [
            subscribe(topic="non-{topic}"),
            flow(),
            producer(topic="non-{topic}"),
            *publish(b"x"),
        ],
        "subscribe with properties": [subscribe(subscription_properties=[api.KeyValue(key="a", value="b")])],
        "subscribe with an epoch": [producer(), subscribe(consumer_epoch=3), flow(), *publish(b"x")],
        "subscribe compacted": [producer(), *publish(b"0"), subscribe(read_compacted=True), flow()],
        "subscribe compacted and shared": [subscribe(SHARED, read_compacted=True)],
        "subscribe compacted to what is not persistent": [subscribe(topic="non-{topic}", read_compacted=True)],
        "read from the earliest": [
            producer(),
            *publish(b"0", b"1"),
            subscribe(durable=False, start_message_id=EARLIEST),
            flow(),
        ],
        "read from the latest": [
            producer(),
            *publish(b"0", b"1"),
            subscribe(durable=False, start_message_id=LATEST),
            flow(),
            *publish(b"2", first=2),
        ],
        "read from a message": [
            producer(),
            *publish(b"0", b"1", b"2"),
            subscribe(durable=False, start_message_id=Receipt(1)),
            flow(),
        ],
        "read from nowhere": [producer(), *publish(b"0"), subscribe(durable=False, start_message_id=NOWHERE), flow()],
        "read shared": [subscribe(SHARED, durable=False)],
        "subscribe durably at a message": [
            producer(),
            *publish(b"0", b"1"),
            subscribe(start_message_id=Receipt(1)),
            flow(),
        ],
        "ranges that overlap": [
            subscribe(
                KEY_SHARED,
                keySharedMeta={
                    "keySharedMode": 1,
                    "hashRanges": [api.IntRange(start=0, end=99), api.IntRange(start=50, end=65535)],
                },
            )
        ],
        "ranges of nobody": [subscribe(KEY_SHARED, keySharedMeta={"keySharedMode": 1})],
        "ranges backwards": [
            subscribe(KEY_SHARED, keySharedMeta={"keySharedMode": 1, "hashRanges": [api.IntRange(start=9, end=3)]})
        ],
        "ranges of another": [
            subscribe(KEY_SHARED, keySharedMeta={"keySharedMode": 1, "hashRanges": [api.IntRange(start=0, end=99)]}),
            on(
                "b",
                subscribe(
                    KEY_SHARED, keySharedMeta={"keySharedMode": 1, "hashRanges": [api.IntRange(start=9, end=19)]}
                ),
            ),
        ],
        "ranges and none": [
            subscribe(KEY_SHARED),
            on(
                "b",
                subscribe(
                    KEY_SHARED, keySharedMeta={"keySharedMode": 1, "hashRanges": [api.IntRange(start=0, end=65535)]}
                ),
            ),
        ],
        # closing and unsubscribing
        "close a consumer": [*FIVE, close_consumer(), flow()],
        "close a consumer twice": [subscribe(), close_consumer(), close_consumer()],
        "close a consumer that is none": [close_consumer(consumer_id=9)],
        "close a consumer while it is opened": [(subscribe(request_id=7), close_consumer(request_id=8))],
        "come back": [*FIVE, ack(Receipt(0), Receipt(2)), close_consumer(), subscribe(), flow()],
        "unsubscribe": [subscribe(), unsubscribe(), subscribe()],
        "unsubscribe twice": [subscribe(), unsubscribe(), unsubscribe()],
        "unsubscribe one of two": [subscribe(SHARED), on("b", subscribe(SHARED)), unsubscribe()],
        "unsubscribe one of two by force": [subscribe(SHARED), on("b", subscribe(SHARED)), unsubscribe(force=True)],
        "unsubscribe what is none": [unsubscribe(consumer_id=9)],
        # flow
        "flow of nothing": [*OPENED[:2], flow(0), *publish(b"x")],
        "flow of one": [*OPENED[:2], flow(1), publish(b"0", b"1"), flow(1)],
        "flow of too much": [*OPENED[:2], flow(2**32 - 1), flow(2**32 - 1), *publish(b"x")],
        "flow of a batch": [
            *OPENED[:2],
            flow(1),
            (batch(b"0", b"1", b"2"), batch(b"3", sequence_id=3)),
            flow(2),
            flow(1),
        ],
        "flow to nobody": [flow(consumer_id=9), PING],
        # acknowledging
        "ack": [*FIVE, ack(Receipt(0))],
        "ack silently": [*FIVE, silent_ack(Receipt(0)), PING],
        "ack twice": [*FIVE, ack(Receipt(0)), ack(Receipt(0))],
        "ack all": [*FIVE, ack(*map(Receipt, range(5)))],
        "ack nothing": [*FIVE, ack()],
        "ack nothing cumulatively": [*FIVE, ack(kind=CUMULATIVE)],
        "ack cumulatively": [*FIVE, ack(Receipt(2), kind=CUMULATIVE), close_consumer(), subscribe(), flow()],
        "ack two cumulatively": [
            *FIVE,
            ack(Receipt(2), Receipt(3), kind=CUMULATIVE),
            close_consumer(),
            subscribe(),
            flow(),
        ],
        "ack cumulatively where shared": [
            producer(),
            subscribe(SHARED),
            flow(),
            publish(b"0", b"1"),
            ack(Receipt(1), kind=CUMULATIVE),
            close_consumer(),
            subscribe(SHARED),
            flow(),
        ],
        "ack nowhere": [*FIVE, ack(NOWHERE)],
        "ack behind the end": [
            *FIVE,
            ack(Receipt(4, {"entryId": 99}), kind=CUMULATIVE),
            close_consumer(),
            subscribe(),
            flow(),
        ],
        "ack for nobody": [ack(NOWHERE, consumer_id=9), PING],
        "ack a part": [*BATCH, ack(Receipt(0, {"ack_set": [0b11010]})), close_consumer(), subscribe(), flow()],
        "ack a part cumulatively": [
            *BATCH,
            ack(Receipt(0, {"ack_set": [0b11000]}), kind=CUMULATIVE),
            close_consumer(),
            subscribe(),
            flow(),
        ],
        "ack all parts": [*BATCH, ack(Receipt(0, {"ack_set": [0]})), close_consumer(), subscribe(), flow()],
        "ack with more bits than there are": [
            *BATCH,
            ack(Receipt(0, {"ack_set": [-1, 1]})),
            close_consumer(),
            subscribe(),
            flow(),
        ],
        "ack in a transaction": [*FIVE, ack(Receipt(0), txnid_most_bits=1, txnid_least_bits=1)],
        "ack what cannot be read": [*FIVE, ack(Receipt(0), validation_error=api.CommandAck.ChecksumMismatch)],
        # redelivering
        "redeliver all": [*FIVE, redeliver()],
        "redeliver some": [producer(), subscribe(SHARED), flow(), publish(b"0", b"1", b"2"), redeliver(Receipt(1))],
        "redeliver to an exclusive one": [*FIVE, redeliver(Receipt(1))],
        "redeliver nowhere": [producer(), subscribe(SHARED), flow(), *publish(b"0"), redeliver(NOWHERE)],
        "redeliver to nobody": [redeliver(consumer_id=9), PING],
        "redeliver with an epoch": [*FIVE, redeliver(consumer_epoch=5)],
        # seeking
        "seek": [*FIVE, seek(Receipt(2)), subscribe(), flow()],
        "seek to the earliest": [*FIVE, ack(Receipt(4), kind=CUMULATIVE), seek(EARLIEST), subscribe(), flow()],
        "seek to the latest": [*FIVE, seek(LATEST), subscribe(), flow(), *publish(b"5", first=5)],
        "seek by time": [*FIVE, seek(message_publish_time=1_700_000_000_000), subscribe(), flow()],
        "seek to the future": [*FIVE, seek(message_publish_time=LARGEST >> 1), subscribe(), flow()],
        "seek to nowhere": [*FIVE, seek(NOWHERE), subscribe(), flow()],
        "seek to nothing": [*FIVE, seek()],
        "seek into a batch": [*BATCH, seek(Receipt(0, {"ack_set": [0b11000]})), subscribe(), flow()],
        "seek of nobody": [seek(NOWHERE, consumer_id=9)],
        "seek where nothing is kept": [subscribe(topic="non-{topic}"), seek(EARLIEST)],
        "seek one of two": [subscribe(SHARED), on("b", subscribe(SHARED)), seek(EARLIEST)],
        # asking
        "last of an empty topic": [subscribe(), last()],
        "last": [*FIVE, last()],
        "last of a batch": [*BATCH, last()],
        "last behind acks": [*FIVE, ack(Receipt(1), kind=CUMULATIVE), last()],
        "last for nobody": [last(consumer_id=9)],
        "last where nothing is kept": [subscribe(topic="non-{topic}"), last()],
        "stats": [*FIVE, stats()],
        "stats for nobody": [stats(consumer_id=9)],
        "lookup": [lookup()],
        "lookup with authority": [lookup(authoritative=True)],
        "lookup of a bad topic": [lookup("a/b/c/d/e"), lookup(""), lookup("ftp://a/b/c")],
        "lookup in no namespace": [lookup("persistent://public/nowhere/t")],
        "lookup of what is not persistent": [lookup("non-{topic}")],
        "lookup by another listener": [lookup(advertised_listener_name="odd")],
        "lookup for somebody": [lookup(original_principal="somebody")],
        "partitions of nothing": [partitions(), rest("GET", TOPIC_PATH + "/stats")],
        "partitions of nothing, without making it": [partitions(metadata_auto_creation_enabled=False)],
        "partitions": [rest("PUT", TOPIC_PATH + "/partitions", b"3"), partitions()],
        "partitions of a partition": [rest("PUT", TOPIC_PATH + "/partitions", b"3"), partitions(T + "-partition-1")],
        "partitions of a bad topic": [partitions("a/b/c/d/e"), partitions("")],
        "partitions in no namespace": [partitions("persistent://public/nowhere/t")],
        # lists and watchers
        "topics": [producer(), topics()],
        "topics by mode": [
            producer(),
            producer(topic="non-{topic}", producer_id=2),
            *[topics(mode=mode) for mode in api.CommandGetTopicsOfNamespace.Mode.values()],
        ],
        "topics by pattern": [
            producer(),
            topics(topics_pattern="{namespace}/.*"),
            topics(topics_pattern="persistent://{namespace}/x.*"),
        ],
        "topics by hash": [producer(), topics(topics_hash="00000000")],
        "topics by a bad pattern": [topics(topics_pattern="("), PING],
        "topics of no namespace": [topics("public/nowhere"), topics("nobody/nowhere"), topics("nothing"), PING],
        "topics of a partitioned topic": [rest("PUT", TOPIC_PATH + "/partitions", b"2"), topics()],
        "watch": [watch(), producer(), on("b", producer(topic=T + "-2"))],
        "watch with an id twice": [watch(), watch()],
        "watch by a bad pattern": [watch("("), PING],
        "watch no namespace": [watch(namespace="public/nowhere"), PING],
        "watch by hash": [producer(), watch(topics_hash="00000000")],
        "watch and close": [watch(), unwatch(), producer()],
        "close a watcher that is none": [unwatch(), PING],
        # schemas
        "schema": [producer(schema=schema(Schema.Avro, ONE)), get_schema()],
        "schema of nothing": [get_schema()],
        "schema of a version": [
            producer(schema=schema(Schema.Avro, ONE)),
            get_schema(schema_version=bytes(8)),
            get_schema(schema_version=bytes(7) + b"\x05"),
            get_schema(schema_version=b"\0"),
        ],
        "schema of a bad topic": [get_schema(topic="a/b/c/d/e")],
        "schema of no namespace": [get_schema(topic="persistent://public/nowhere/t")],
        "schema twice": [MADE, create_schema(schema(Schema.Json, ONE)), create_schema(schema(Schema.Json, ONE))],
        "schema next": [
            MADE,
            create_schema(schema(Schema.Avro, ONE)),
            create_schema(schema(Schema.Avro, TWO)),
            get_schema(),
        ],
        "schema incompatible": [
            MADE,
            create_schema(schema(Schema.Avro, ONE)),
            create_schema(schema(Schema.Avro, THREE)),
            producer(schema=schema(Schema.Avro, THREE)),
            subscribe(schema=schema(Schema.Avro, THREE)),
        ],
        "schema of another type": [
            MADE,
            create_schema(schema(Schema.Avro, ONE)),
            create_schema(schema(Schema.Json, ONE)),
        ],
        "schema that is none": [
            MADE,
            create_schema(schema(Schema.Avro, b"{")),
            producer(schema=schema(Schema.Json, b"{")),
        ],
        "schema of a consumer": [subscribe(schema=schema(Schema.Avro, ONE)), get_schema()],
        "schema of a consumer of any": [subscribe(schema=schema(Schema.AutoConsume)), get_schema()],
        "schema beside producers without": [producer(), subscribe(schema=schema(Schema.Avro, ONE))],
        "producer without a schema": [MADE, create_schema(schema(Schema.Avro, ONE)), producer()],
        **{f"schema {name}": [MADE, create_schema(schema(kind)), get_schema()] for name, kind in Schema.items()},
        # transactions
        "transactions": [Command(Kind.NEW_TXN, {"request_id": None, "tc_id": 0}), PING],
        "transaction coordinator": [Command(Kind.TC_CLIENT_CONNECT_REQUEST, {"request_id": None, "tc_id": 0}), PING],
        # what administration does to clients
        "unload": [*FIVE, rest("PUT", TOPIC_PATH + "/unload"), producer(producer_id=2)],
        "delete under clients": [*FIVE, rest("DELETE", TOPIC_PATH)],
        "delete under clients by force": [*FIVE, rest("DELETE", TOPIC_PATH + "?force=true")],
        "delete a subscription under its consumer": [*FIVE, rest("DELETE", TOPIC_PATH + "/subscription/sub")],
        "delete a subscription under its consumer by force": [
            *FIVE,
            rest("DELETE", TOPIC_PATH + "/subscription/sub?force=true"),
        ],
        "skip all": [
            producer(),
            subscribe(),
            publish(b"0", b"1"),
            rest("POST", TOPIC_PATH + "/subscription/sub/skip_all"),
            flow(),
        ],
        "terminate": [*FIVE, rest("POST", TOPIC_PATH + "/terminate"), ack(Receipt(4), kind=CUMULATIVE)],
    }


def conversations() -> dict[str, list[Turn]]:
    return {name: turns_of(said) for name, said in {**dict(by_rule()), **by_hand()}.items()}
