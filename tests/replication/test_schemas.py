"""Schemas go to the other cluster before messages that need them, which carry the other cluster's versions."""
from pulsar.schema import AvroSchema, Record, String

from geminga.proto import pulsar_api_pb2 as api

from ..harness import eventually
from .conftest import numbered

T = api.BaseCommand.Type


class Order(Record):
    name = String()


def publish(replication, topic, record, count):
    producer = replication.client.create_producer(topic, schema=AvroSchema(type(record)), batching_enabled=False)
    for _ in range(count):
        producer.send_async(record, lambda *_: None)
    producer.flush()
    producer.close()


def versions(far, topic):
    return [int.from_bytes(one.metadata.schema_version) for one in far.stored(topic)]


def test_messages_carry_the_versions_of_the_other_cluster(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    far.schemas[topic].append(api.Schema(name="another", schema_data=b"", type=api.Schema.String))
    publish(replication, topic, Order(name="a"), 40)
    eventually(lambda: len(far.stored(topic)) == 40)
    assert versions(far, topic) == [1] * 40
    asked = far.commands(T.GET_OR_CREATE_SCHEMA)
    assert len(asked) == 1
    assert asked[0].getOrCreateSchema.schema.type == api.Schema.Avro
    eventually(lambda: replication.backlog(topic, name) == 0)
    assert far.duplicates == 0
    replication.publish(topic, numbered(20))      # without a schema
    eventually(lambda: len(far.stored(topic)) == 60)
    assert not any(one.metadata.HasField("schema_version") for one in far.stored(topic)[40:])


def test_an_incompatible_schema_there_stops_the_lane_with_the_reason(replication):
    name, far = replication.far()
    topic = replication.topic(name)
    refuses = True

    def refuse(visitor, command):
        if command.type == T.GET_OR_CREATE_SCHEMA and refuses:
            visitor.tell(T.GET_OR_CREATE_SCHEMA_RESPONSE, request_id=command.getOrCreateSchema.request_id,
                         error_code=api.IncompatibleSchema, error_message="a field is missing")
            return True
        return False

    far.on_command = refuse
    replication.publish(topic, numbered(30))
    publish(replication, topic, Order(name="a"), 5)
    lane = replication.failed_lane(topic, name)
    assert lane["error"] == "IncompatibleSchema: a field is missing"
    assert far.payloads(topic) == numbered(30)
    eventually(lambda: replication.backlog(topic, name) == 5)      # what was sent is acknowledged behind it
    refuses = False
    replication.know(name, far.url, serviceUrl="http://127.0.0.1:1")      # begins anew at once
    eventually(lambda: len(far.stored(topic)) == 35)
    assert versions(far, topic)[30:] == [0] * 5
    assert far.duplicates == 0
