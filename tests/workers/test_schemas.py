"""Schemas over the binary protocol and over HTTP: which version a client gets, and which schemas are refused."""
import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.schemas.registry import ALL_SIZE_MAX, SIZE_MAX, TYPES

from ..harness import Broker, eventually, partitioned_topic, request
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from .peer import Peer

A, B, B_DEFAULT = {"name": "a", "type": "int"}, {"name": "b", "type": "int"}, {"name": "b", "type": "int", "default": 1}
STRATEGIES = ("BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE",
              "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE")


def avro(*fields: dict, **more) -> tuple[str, bytes]:
    return "Avro", json.dumps({"type": "record", "name": "R", "fields": list(fields), **more}).encode()


def schema(kind: str, data: bytes = b"", **properties: str) -> dict:
    return {"name": "any", "schema_data": data, "type": api.Schema.Type.Value(kind),
            "properties": [{"key": key, "value": value} for key, value in properties.items()]}


class Typed:
    """A client with schemas on one topic."""

    def __init__(self, broker, topic: str):
        self.broker, self.topic, self.peer, self._ids = broker, topic, Peer(broker.service_url), 0

    def close(self) -> None:
        self.peer.__exit__()

    def _ask(self, kind: int, **fields) -> api.BaseCommand:
        self._ids += 1
        return self.peer.ask(kind, topic=self.topic, request_id=self._ids, **fields)

    def produce(self, *brought, **properties: str) -> int | str | None:
        """Make a producer; return the schema version it is given, None without one; or the refusal."""
        more = {"schema": schema(*brought, **properties)} if brought else {}
        answer = self._ask(T.PRODUCER, producer_id=self._ids + 1, **more)
        if answer.type == T.ERROR:
            assert answer.error.error == api.IncompatibleSchema
            return answer.error.message
        version = answer.producer_success.schema_version
        assert len(version) == (8 if brought else 0)
        return int.from_bytes(version, "big") if version else None

    def subscribe(self, *brought) -> str | None:
        """Make a consumer; return None, or the refusal."""
        more = {"schema": schema(*brought)} if brought else {}
        answer = self._ask(T.SUBSCRIBE, subscription="sub", subType=api.CommandSubscribe.Shared,
                           consumer_id=self._ids + 1, **more)
        if answer.type == T.ERROR:
            assert answer.error.error == api.IncompatibleSchema
            return answer.error.message
        assert answer.type == T.SUCCESS

    def get(self, version: bytes | None = None) -> tuple[int, str, bytes] | int:
        """Return (version, type, definition), or an error's code."""
        answer = self._ask(T.GET_SCHEMA, **({} if version is None else {"schema_version": version})).getSchemaResponse
        if answer.HasField("error_code"):
            return answer.error_code
        found = answer.schema
        assert found.name == self.topic.partition("://")[2]
        return int.from_bytes(answer.schema_version, "big"), api.Schema.Type.Name(found.type), found.schema_data

    def create(self, *brought) -> int | str | None:
        answer = self._ask(T.GET_OR_CREATE_SCHEMA, schema=schema(*brought)).getOrCreateSchemaResponse
        if answer.HasField("error_code"):
            return api.ServerError.Name(answer.error_code)
        return int.from_bytes(answer.schema_version, "big") if answer.schema_version else None

    def rest(self, method: str, tail: str, body=None, raw: bytes | None = None) -> tuple[int, object]:
        path = self.topic.partition("://")[2]
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        status, text = request(method, f"{self.broker.http_url}/admin/v2/schemas/{path}/{tail}", data)
        return status, json.loads(text) if text else None



@pytest.fixture
def opened(broker):
    """opened(namespace="public/default", domain="persistent"): a client on a new topic; with topic: one more on that.
    """
    made: list[Typed] = []

    def opened(namespace: str = "public/default", domain: str = "persistent", topic: str = "") -> Typed:
        made.append(Typed(broker, topic or f"{domain}://{namespace}/schema-{uuid.uuid4().hex[:12]}"))
        return made[-1]

    yield opened
    for one in made:
        one.close()


@pytest.fixture
def namespace(broker):
    """namespace(policy=value, ...): a new namespace with these policies."""

    def namespace(**policies) -> str:
        name = f"public/n{uuid.uuid4().hex[:12]}"
        assert request("PUT", f"{broker.http_url}/admin/v2/namespaces/{name}")[0] == 204
        for policy, value in policies.items():
            method = "PUT" if policy == "schemaCompatibilityStrategy" else "POST"
            assert (
                request(method, f"{broker.http_url}/admin/v2/namespaces/{name}/{policy}", json.dumps(value).encode())[0]
                == 204
            )
        return name

    return namespace


def number(version: int) -> bytes:
    return version.to_bytes(8, "big", signed=True)


# -- versions

def test_a_topic_without_a_schema_says_so(opened):
    one = opened()
    assert one.get() == one.get(number(0)) == api.TopicNotFound
    assert one.create("String") == "TopicNotFound"
    assert one.produce() is None
    assert one.get() == api.TopicNotFound


def test_versions_are_numbered_as_they_come_and_found_again(opened):
    one, other = opened(), (avro(A, B_DEFAULT), avro(A))
    assert [
        one.produce(*avro(A)),
        one.produce(*avro(A, B_DEFAULT)),
        one.produce(*avro(A)),
        one.create(*avro(A, B_DEFAULT)),
    ] == [0, 1, 0, 1]
    assert one.produce(*avro(A, doc="the same")) == 0
    for version, (kind, data) in ((None, other[0]), (number(1), other[0]), (number(0), other[1])):
        assert one.get(version) == (0 if version == number(0) else 1, kind, data)
    assert one.get(number(2)) == one.get(number(-1)) == one.get(number(-2**63)) == api.TopicNotFound
    assert one.get(b"") == one.get(b"\0\0") == one.get(bytes(9)) == api.IncompatibleSchema
    assert one.peer.ask(T.PING).type == T.PONG


def test_what_was_brought_is_given_back_to_the_byte(opened):
    one, data = opened(), b' {"type":"record",\n"name":"R" , "fields":[]}'
    assert one.produce("Json", data, **{"a": "b", "": "c"}) == 0
    assert one.get() == (0, "Json", data)
    answer = one._ask(T.GET_SCHEMA).getSchemaResponse
    assert [(found.key, found.value) for found in answer.schema.properties] == [("a", "b"), ("", "c")]


@pytest.mark.parametrize("kind", [one.name for one in api.Schema.Type.DESCRIPTOR.values if one.name not in (
    "Avro", "Json", "Protobuf", "ProtobufNative", "KeyValue", "AutoConsume", "External")])
def test_every_type_without_a_definition_is_kept(opened, kind):
    one = opened()
    assert (one.produce(kind), one.subscribe(kind), one.get()) == (0, None, (0, kind, b""))
    other = "Int8" if kind != "Int8" else "Int16"
    assert TYPES[api.Schema.Type.Value(other)] in one.produce(other)
    assert TYPES[api.Schema.Type.Value(kind)] in one.subscribe(other)


def test_partitions_share_their_topics_schema(broker, opened):
    topic = partitioned_topic(broker.http_url, 2)
    whole, first, second = (opened(topic=name) for name in (topic, f"{topic}-partition-0", f"{topic}-partition-1"))
    assert (first.produce("String"), second.produce("String")) == (0, 0)
    assert "exists schema type STRING" in second.produce("Int8")
    assert whole.get() == (0, "String", b"")
    answer = second._ask(T.GET_SCHEMA).getSchemaResponse
    assert answer.schema.name == topic.partition("://")[2]


def test_a_topic_that_keeps_nothing_has_a_schema_while_it_is_used(opened):
    one = opened(domain="non-persistent")
    assert (one.produce(*avro(A)), one.get(), one.rest("GET", "schema")[1]["data"]) == (
        0,
        (0, *avro(A)),
        avro(A)[1].decode(),
    )
    assert one.subscribe(*avro(A)) is None and "field b of R" in one.subscribe(*avro(A, B))


def test_a_connection_with_a_waiting_producer_gets_its_version_when_its_turn_comes(opened):
    one = opened()
    assert one.produce("String") == 0
    answer = one._ask(T.PRODUCER, producer_id=50, schema=schema("String"), producer_access_mode=api.WaitForExclusive)
    assert not answer.producer_success.producer_ready
    one.peer.say(command(T.CLOSE_PRODUCER, producer_id=1, request_id=99))
    heard = [one.peer.hear(), one.peer.hear()]
    ready = next(one.producer_success for one in heard if one.type == T.PRODUCER_SUCCESS)
    assert (ready.producer_ready, ready.schema_version) == (True, number(0))


# -- who is refused

def test_definitions_that_do_not_get_along_are_refused_and_the_connection_goes_on(opened):
    one = opened()
    assert one.produce(*avro(A)) == 0
    assert one.produce(*avro(A, B)) == \
        "Incompatible schema: by strategy FULL with version 0: field b of R: it has no default, and is not written"
    assert one.produce("Json", avro(A)[1]) == "Incompatible schema: exists schema type AVRO, new schema type JSON"
    assert one.create(*avro(A, B)) == "IncompatibleSchema"
    assert one.produce("AutoConsume") == "Schema AUTO_CONSUME is a client-side schema type"
    assert (one.produce(), one.create("None"), one.get()[0]) == (None, None, 0)


def test_keys_and_values_of_other_types_are_another_schema(opened):
    """Key and value types count, although the bytes of both definitions are the same."""
    one, data = opened(), bytes(8)
    assert one.produce("KeyValue", data, **{"key.schema.type": "STRING", "value.schema.type": "STRING"}) == 0
    assert one.produce("KeyValue", data, **{"key.schema.type": "STRING", "value.schema.type": "STRING", "a": "b"}) == 0
    assert "exists value schema type STRING, new value schema type INT32" in \
        one.produce("KeyValue", data, **{"key.schema.type": "STRING", "value.schema.type": "INT32"})


@pytest.mark.parametrize("kind, data", [
    ("Avro", b"xyz"), ("Json", b""), ("Protobuf", b"{}"), ("ProtobufNative", b"xyz"), ("KeyValue", b"xyz"),
    ("Int32", b"xyz"),
    ("String", b"xyz"), ("Avro", b"\xff"), ("Avro", b"[" * 100_000), ("Json", bytes(SIZE_MAX + 1)), ("External", b""),
], ids=lambda value: str(value)[:20])
def test_what_is_no_definition_is_refused(unharmed, opened, kind, data):
    one = opened()
    assert one.produce(kind, data) and one.subscribe(kind, data) and one.get() == api.TopicNotFound
    assert one.produce() is None
    assert one.create(kind, data) == "IncompatibleSchema"


@contextmanager
def held(broker: Broker) -> Iterator[None]:
    """Keep the catalogue's lock, so that whoever adds a version waits."""
    catalogue = sqlite3.connect(broker.data_dir / "catalogue.sqlite", isolation_level=None)
    catalogue.execute("BEGIN IMMEDIATE")
    yield
    catalogue.close()


def test_others_need_not_wait_for_a_schema_to_be_looked_at(broker, opened):
    """The check runs beside the loop: a later command is answered first."""
    one = opened()
    assert one.produce(*avro(A)) == 0
    with held(broker):
        one.peer.say(command(T.PRODUCER, topic=one.topic, producer_id=7, request_id=100,
                             schema=schema(*avro(A, B_DEFAULT))))
        for _ in range(3):
            assert one.peer.ask(T.PING).type == T.PONG
        assert one.get() == (0, *avro(A))
    assert one.peer.hear().producer_success.schema_version == number(1)


def test_a_producer_that_is_closed_before_its_schema_was_looked_at_is_not_made(broker, opened):
    one, more = opened(), {"producer_name": "p", "schema": schema(*avro(A, B_DEFAULT))}
    assert one.produce(*avro(A)) == 0
    with held(broker):
        one.peer.say(command(T.PRODUCER, topic=one.topic, producer_id=7, request_id=100, **more))
        assert one.peer.ask(T.CLOSE_PRODUCER, producer_id=7, request_id=101).success.request_id == 101
    assert one._ask(T.PRODUCER, producer_id=8, **more).producer_success.producer_name == "p"


# -- consumers

def test_the_first_consumer_of_an_unused_topic_brings_its_schema(opened):
    one = opened()
    assert (one.subscribe("AutoConsume"), one.subscribe(*avro(A)), one.get()) == (None, None, (0, *avro(A)))
    assert one.subscribe(*avro(A, B_DEFAULT)) is None
    assert one.get()[0] == 0        # a consumer's schema makes no version
    assert "field b of R: it has no default" in one.subscribe(*avro(A, B))


@pytest.mark.parametrize("use", ["producer", "consumer", "message"])
def test_a_topic_that_is_used_without_a_schema_is_given_none_by_a_consumer(opened, use):
    one, before = opened(), opened()
    before.topic = one.topic
    assert before.subscribe() is None if use == "consumer" else before.produce() is None
    if use == "message":
        before.peer.say(send(entry_of(message_metadata()), producer_id=1))
        assert before.peer.hear().type == T.SEND_RECEIPT
        assert before.peer.ask(T.CLOSE_PRODUCER, producer_id=1, request_id=9).type == T.SUCCESS
    assert (
        one.subscribe(*avro(A))
        == "Failed to add schema to an active topic with empty(BYTES) schema: new schema type AVRO"
    )
    assert (one.produce(*avro(A)), one.subscribe(*avro(A))) == (0, None)


def test_a_topic_whose_strategy_admits_everything_takes_any_consumer(opened, namespace):
    """A consumer with a schema is admitted to a used topic without one, which stays without, as in Pulsar 4.0.7."""
    one = opened(namespace(schemaCompatibilityStrategy="ALWAYS_COMPATIBLE"))
    assert (one.produce(), one.subscribe("String"), one.get()) == (None, None, api.TopicNotFound)


# Versions of one topic, in this order: a field with a default, no field, the field with another type.
FIRST, SECOND = avro({"name": "a", "type": "string", "default": ""}), avro()
THIRD = avro({"name": "a", "type": "int", "default": 1})


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_hold_for_producers_and_consumers(opened, namespace, strategy):
    one = opened(namespace(schemaCompatibilityStrategy=strategy))
    added, is_wide = one.produce(*FIRST) == 0 and one.produce(*SECOND), strategy.endswith("_TRANSITIVE")
    if strategy == "ALWAYS_INCOMPATIBLE":
        assert added == "Schema compatibility strategy is ALWAYS_INCOMPATIBLE"
        assert one.produce(*FIRST) == 0 and one.subscribe(*FIRST)       # a version that exists may still be used
        return
    assert added == 1
    third = one.produce(*THIRD)
    assert third == 2 if not is_wide else f"by strategy {strategy} with version 0: " in third
    found = [one.subscribe(*brought) is None for brought in (FIRST, SECOND, THIRD)]
    assert found == {
        "ALWAYS_COMPATIBLE": [True, True, True],
        "BACKWARD_TRANSITIVE": [True, True, False],
        "FULL_TRANSITIVE": [True, True, False],
        "FORWARD_TRANSITIVE": [True, True, True],
    }.get(strategy, [False, True, True])
    assert (one.subscribe("String") is None) == (strategy == "ALWAYS_COMPATIBLE")


def test_a_topics_strategy_is_stronger_than_its_namespaces(broker, opened, namespace):
    one = opened(namespace(schemaCompatibilityStrategy="ALWAYS_INCOMPATIBLE"))
    assert (
        one.produce(*avro(A)) == 0 and one.produce(*avro(B)) == "Schema compatibility strategy is ALWAYS_INCOMPATIBLE"
    )
    url = f"{broker.http_url}/admin/v2/{one.topic.replace('://', '/')}/schemaCompatibilityStrategy"
    assert request("PUT", url, b'"ALWAYS_COMPATIBLE"')[0] == 204
    assert (one.produce(*avro(B)), one.produce("String")) == (1, 2)


# -- policies

def test_where_clients_may_not_add_schemas_administration_does(opened, namespace):
    one = opened(namespace(isAllowAutoUpdateSchema=False))
    refusal = "Schema not found and schema auto updating is disabled."
    assert one.produce(*avro(A)) == one.subscribe(*avro(A)) == refusal
    assert (one.produce(), one.create(*avro(A))) == (None, "IncompatibleSchema")
    assert one.rest("POST", "schema", {"type": "AVRO", "schema": avro(A)[1].decode()}) == (
        200,
        {"version": {"version": 0}},
    )
    assert (one.produce(*avro(A, doc="the same")), one.produce(*avro(A, B_DEFAULT))) == (0, refusal)
    assert one.subscribe(*avro(A, B_DEFAULT)) is None


def test_where_schemas_are_enforced_producers_without_one_are_refused_once_there_is_one(opened, namespace):
    one = opened(namespace(schemaValidationEnforced=True))
    assert (one.produce(), one.produce("String")) == (None, 0)
    assert "without a schema to topics with a schema" in one.produce()
    assert one.create("None") == "IncompatibleSchema"
    assert (one.subscribe(), one.subscribe("AutoConsume")) == (None, None)


# -- at once, and across a crash

def at_once(ones: list[Typed], work: Callable[[int, Typed], object]) -> list:
    """Return the result of each call, all begun at the same moment."""
    begin, found = threading.Barrier(len(ones)), [None] * len(ones)

    def run(at: int) -> None:
        begin.wait()
        found[at] = work(at, ones[at])

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(ones))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_clients_that_bring_the_same_schema_at_once_get_one_version(opened):
    for _ in range(5):
        ones = [opened() for _ in range(6)]
        for one in ones:
            one.topic = ones[0].topic
        assert at_once(ones, lambda at, one: one.produce(*avro(A))) == [0] * 6
        assert at_once(ones, lambda at, one: one.create(*avro(A, B_DEFAULT))) == [1] * 6


def test_clients_that_bring_different_ones_at_once_get_different_versions(opened):
    ones = [opened() for _ in range(6)]
    for one in ones:
        one.topic = ones[0].topic
    found = at_once(ones, lambda at, one: one.produce(*avro({"name": f"f{at}", "type": "int", "default": 0})))
    assert sorted(found) == list(range(6))
    for at, version in enumerate(found):
        assert f'"f{at}"'.encode() in ones[0].get(number(version))[2]


# -- over HTTP

def test_schemas_are_added_shown_and_deleted_over_http(opened):
    """Schemas can be added to topics that do not exist; clients find added ones, and do not find deleted ones."""
    one, missing = opened(), (404, {"reason": "Schema not found"})
    posted = {"type": "AVRO", "schema": avro(A)[1].decode(), "properties": {"a": "b"}}
    assert one.rest("GET", "schema") == one.rest("GET", "schema/0") == one.rest("GET", "schema/-1") == missing
    assert one.rest("GET", "schemas") == (200, {"getSchemaResponses": []}) and one.rest("GET", "metadata") == (
        200,
        None,
    )
    assert one.rest("POST", "version", posted) == (200, {"version": -1})
    assert one.rest("POST", "compatibility", posted) == (202,
                                                         {"schemaCompatibilityStrategy": "FULL", "compatibility": True})
    assert (
        one.rest("POST", "schema", posted) == one.rest("POST", "schema", posted) == (200, {"version": {"version": 0}})
    )
    status, shown = one.rest("GET", "schema")
    assert status == 200 and shown.pop("timestamp") > 1.7e12
    assert shown == {"version": 0, "type": "AVRO", "data": posted["schema"], "properties": {"a": "b"}}
    assert one.rest("GET", "schema/0")[1]["version"] == 0
    assert one.rest("POST", "version", posted) == (200, {"version": 0})
    wrong = {**posted, "schema": avro(A, B)[1].decode()}
    assert one.rest("POST", "schema", wrong)[0] == one.rest("POST", "compatibility", wrong)[0] == 409
    assert one.produce(*avro(A, B_DEFAULT)) == 1
    assert [found["version"] for found in one.rest("GET", "schemas")[1]["getSchemaResponses"]] == [0, 1]
    assert one.rest("DELETE", "schema") == (200, {"version": 2})
    assert one.rest("GET", "schema") == one.rest("GET", "schema/0") == one.rest("GET", "schema/2") == missing
    assert one.get() == one.get(number(0)) == one.get(number(2)) == api.TopicNotFound
    assert (one.produce("String"), one.get()) == (3, (3, "String", b""))
    assert one.rest("DELETE", "schema?force=true") == (200, {"version": -1})
    assert (one.get(), one.produce("Int8")) == (api.TopicNotFound, 0)


def test_keys_and_values_are_shown_as_json(opened):
    one = opened()
    kinds = {"key.schema.type": "STRING", "value.schema.type": "JSON"}
    value = {"type": "record", "name": "R", "fields": []}
    posted = {"type": "KEY_VALUE", "schema": json.dumps({"key": "", "value": value}), "properties": kinds}
    assert one.rest("POST", "schema", posted)[0] == 200
    assert json.loads(one.rest("GET", "schema")[1]["data"]) == {"key": "", "value": value}
    data = json.dumps(value, separators=(",", ":")).encode()
    assert one.get() == (0, "KeyValue", bytes(4) + len(data).to_bytes(4, "big") + data)


@pytest.mark.slow
@pytest.mark.parametrize("body, status", [
    (b"", 400), (b"nonsense", 400), (b"[]", 400), (b'"x"', 400), (b"{}", 400), (b"[" * 100_000, 400),
    (b'{"type": "INT8"}', 400),
    (b'{"type": "INT8", "schema": 5}', 400), (b'{"type": 5, "schema": ""}', 400),
    (b'{"type": "INT8", "schema": "", "properties": []}', 400),
    (b'{"type": "INT8", "schema": "", "properties": {"a": {}}}', 400),
    (b'{"type": "nope", "schema": ""}', 422), (b'{"type": "INT8", "schema": "x"}', 422),
    (b'{"type": "AVRO", "schema": "x"}', 422),
    (b'{"type": "AUTO", "schema": ""}', 422), (b'{"type": "KEY_VALUE", "schema": ""}', 422),
    (b'{"type": "KEY_VALUE", "schema": "{\\"key\\": 1}"}', 422), (b'{"type": "NONE", "schema": "\\ud800"}', 400),
    (b'{"type": "KEY_VALUE", "schema": "{\\"key\\": \\"\\\\ud800\\", \\"value\\": 1}"}', 422),
    (b'{"type": "INT8", "schema": "", "properties": {"\\ud800": "x"}}', 400),
    (b'{"type": "NONE", "schema": "%s"}' % (b"x" * (SIZE_MAX + 1)), 422),
    (b'{"type": "NONE", "schema": "%s"}' % (b"x" * (1 << 20)), 413),
], ids=lambda value: str(value)[:50])
def test_bodies_that_are_none_are_refused(unharmed, opened, body, status):
    one = opened()
    for what in ("schema", "compatibility"):
        found, text = one.rest("POST", what, raw=body)
        assert (found, list(text)) == (status, ["reason"])
    assert one.rest("POST", "version", raw=body)[0] in (status, 200)
    assert one.rest("GET", "schema")[0] == 404


def test_paths_that_are_none_are_refused(opened):
    one = opened()
    for version in ("x", "1.5", "9" * 30, "%20", "-"):
        assert one.rest("GET", f"schema/{version}")[0] == 400
    body = {"type": "STRING", "schema": ""}
    one.topic = "persistent://public/nowhere/t"
    for method, what in (("POST", "schema"), ("POST", "compatibility"), ("DELETE", "schema")):
        assert one.rest(method, what, body) == (404, {"reason": "Namespace does not exist"})
    assert one.rest("GET", "schema")[0] == 404
    one.topic = "persistent://public/default/%00"
    assert one.rest("POST", "schema", body)[0] == 412


def test_a_topics_schemas_go_with_it(broker, opened):
    one = opened()
    assert one.produce("String") == 0
    one.close()
    url = f"{broker.http_url}/admin/v2/{one.topic.replace('://', '/')}?force=true"
    eventually(lambda: request("DELETE", url)[0] == 204, what="the deletion")
    assert one.rest("GET", "schema")[0] == 404 and opened(topic=one.topic).produce("Int8") == 0


@pytest.mark.slow
def test_all_versions_together_have_a_bound(opened, namespace):
    """A definition is compared with all versions, which takes seconds at most because they have a bound."""
    one = opened(namespace(schemaCompatibilityStrategy="ALWAYS_COMPATIBLE"))
    large = ALL_SIZE_MAX // SIZE_MAX
    assert [one.produce("None", b"%d" % at + bytes(SIZE_MAX - 10)) for at in range(large)] == list(range(large))
    assert (
        one.produce("None", bytes(SIZE_MAX)) == f"All versions of a schema together have at most {ALL_SIZE_MAX} bytes"
    )
    assert one.produce("None", b"0" + bytes(SIZE_MAX - 10)) == 0
