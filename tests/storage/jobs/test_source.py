"""Spark reads the same messages of a topic as a consumer, from the ledgers in place."""
import contextlib
import datetime
import logging
import random
import re
import threading
from functools import partial

import pulsar
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar.schema import AvroSchema, Integer, JsonSchema, Long, Record, String

from geminga.proto import compression, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.catalogue import catalogue
from geminga.storage.jobs import one_by_one

from ...harness import HANG_MS, LOAD_PAUSE_SECONDS, eventually, partitioned_topic, request, unique_topic
from ..files import flip
from .topics import Message, Topic, batch, sealed

pytest.importorskip("pyspark")
with contextlib.suppress(ImportError):
    from pyspark.sql import datasource, functions

    from geminga.storage.jobs import source
    from geminga.storage.jobs.typed import NoSchema

pytestmark = pytest.mark.spark

COLUMNS = ("ledger_id,entry_id,batch_index,key,payload,properties,publish_time,event_time,producer,ordering_key,"
           "is_encrypted")
NOW_MS = 1_700_000_000_000


@pytest.fixture
def load(spark, own):
    source.register(spark)
    def load(data_dir=own.data_dir, **options):
        return spark.read.format("geminga").options(data_dir=str(data_dir), **options).load()
    return load


@pytest.fixture
def topic(tmp_path):
    """A partition of a data folder that no broker serves, and its catalogue."""
    return offline(tmp_path, "stored")


def offline(data_dir, name):
    kept = catalogue.open_catalogue(data_dir / "catalogue.sqlite")
    full = names.parse(name)
    kept.topics.create(full.base, 0)
    partition_id = kept.partitions.create(full)
    kept.commit()
    kept.close()
    return Topic(data_dir, partition_id)


def times(milliseconds):
    if not milliseconds:
        return None
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).replace(tzinfo=None)


def given(consumer, count):
    """Return the messages that a consumer receives, as rows."""
    found = []
    for _ in range(count):
        message = consumer.receive(HANG_MS)
        place = message.message_id()
        found.append((place.ledger_id(), place.entry_id(), place.batch_index() if place.batch_index() >= 0 else None,
                      message.partition_key() or None, message.data(), message.properties(),
                      times(message.publish_timestamp()),
                      times(message.event_timestamp()), message.producer_name(),
                      message.ordering_key().encode() or None))
        consumer.acknowledge(message)
    return sorted(found, key=lambda row: row[:2] + (row[2] or 0,))


def rows(frame):
    return [tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
            for row in frame.orderBy("ledger_id", "entry_id", "batch_index").collect()]


def test_spark_reads_what_a_consumer_is_given(load, own, client, tmp_path):
    """Single messages, batches and chunks of every compression, with all fields of metadata."""
    name, count = unique_topic("shapes"), 0
    consumer = client.subscribe(name, "all", receiver_queue_size=10)
    keeper = client.subscribe(name, "keeper")
    for kind in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
        for batching, chunking in ((False, False), (True, False),
                                   *([(False, True)] if kind in ("NONE", "ZSTD") else [])):
            producer = client.create_producer(
                name, compression_type=getattr(pulsar.CompressionType, kind), batching_enabled=batching,
                chunking_enabled=chunking,
                batching_max_publish_delay_ms=1000, batching_max_messages=7)
            for number in range(40 if not chunking else 1):
                small = b"%s-%d " % (kind.encode(), number) * (1 + number)
                payload = random.Random(7).randbytes(6 << 20) if chunking else small
                more = {"partition_key": f"key-{number % 5}"} if number % 3 else {}
                if number % 4:
                    more |= {"event_timestamp": NOW_MS + number, "ordering_key": "order",
                             "properties": {"a": "1", "ä": ""}}
                producer.send_async(payload, None, **more)
                count += 1
            producer.flush()
            producer.close()
    expected = given(consumer, count)
    found = rows(load(topic=name, columns=COLUMNS))
    assert [row[:-1] for row in found] == expected
    assert not any(row[-1] for row in found)
    counted = load(topic=name).agg(functions.countDistinct("message_index"), functions.sum("payload_size"),
                                   functions.sum(functions.size("chunks"))).collect()[0]
    assert tuple(counted) == (count, sum(len(row[4]) for row in expected), 4)
    consumer.close()
    keeper.close()


def test_encrypted_messages_stay_encrypted(load, client, tmp_path):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM,
                                                     serialization.PublicFormat.SubjectPublicKeyInfo))
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL,
                                          serialization.NoEncryption()))
    name = unique_topic("secret")
    keeper = client.subscribe(name, "keeper")
    for batching in (False, True):
        producer = client.create_producer(
            name, encryption_key="client-rsa.pem", batching_enabled=batching, batching_max_publish_delay_ms=500,
            crypto_key_reader=pulsar.CryptoKeyReader(str(public), str(private)))
        for number in range(3):
            producer.send_async(b"secret %d" % number, None, partition_key="k")
        producer.flush()
        producer.close()
    found = load(topic=name).orderBy("entry_id").select("is_encrypted", "batch_index", "key", "payload").collect()
    assert [(row.is_encrypted, row.batch_index) for row in found] == [(True, None)] * 4
    assert [row.key for row in found[:3]] == ["k"] * 3
    assert not any(b"secret" in row.payload for row in found)
    keeper.close()


def test_partitions_patterns_and_lists_of_topics(load, own, client):
    parted, single = partitioned_topic(own.http_url, 3, "parted"), unique_topic("parted-not")
    keepers = [client.subscribe(name, "keeper") for name in (parted, single)]
    producers = [client.create_producer(name) for name in (parted, single)]
    for number in range(30):
        producers[0].send(b"%d" % number, partition_key=f"k{number}")
    producers[1].send(b"one")
    frame = load(topic=parted).groupBy("topic", "partition").count()
    by_partition = {(row.topic, row.partition): row["count"] for row in frame.collect()}
    assert sum(by_partition.values()) == 30 and set(by_partition) == {(parted, 0), (parted, 1), (parted, 2)}
    read = partial(read_here, own.data_dir, columns="topic,partition")
    assert read(topic=f"{parted}-partition-1").num_rows == by_partition[parted, 1]
    assert read(topics=f"{parted}, {single}").num_rows == 31
    assert set(read(topic_pattern="parted-.*")["topic"].to_pylist()) == {parted, single}
    rows = read(topic_pattern="persistent://public/.*/parted-not-.*").to_pylist()
    assert rows == [{"topic": single, "partition": None}]
    assert read(topic_pattern="none-.*").num_rows == 0
    for one in (*producers, *keepers):
        one.close()


class Order(Record):
    customer = String(required=True)
    amount = Long(required=True)
    pieces = Integer(default=None, required_default=True)


class OrderOfOld(Record):
    customer = String(required=True)
    amount = Long(required=True)


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema])
def test_a_registered_schema_gives_typed_columns(load, client, schema):
    """Messages that were written with an older version of the schema have typed values too."""
    name = unique_topic("typed")
    keeper = client.subscribe(name, "keeper")
    for record, more in ((OrderOfOld, {}), (Order, {"pieces": 3})):
        producer = client.create_producer(name, schema=schema(record))
        for number in range(3):
            producer.send(record(customer=f"c{number}", amount=number << 40, **more))
        producer.close()
    plain = client.create_producer(name)
    plain.send(b"not what it should be")
    plain.send(schema(Order).encode(Order(customer="c", amount=1, pieces=2)))      # as Go's client sends it alone
    plain.close()
    frame = load(topic=name, typed="true", columns="message_index,value")
    assert frame.schema["value"].dataType.simpleString() == "struct<customer:string,amount:bigint,pieces:int>"
    found = frame.select("message_index", "value.*").orderBy("message_index").collect()
    assert [tuple(row)[1:] for row in found] == [
        *((f"c{number}", number << 40, pieces) for pieces in (None, 3) for number in range(3)), (None,) * 3,
        ("c", 1, 2)]
    keeper.close()


def test_a_stream_has_each_message_once(load, spark, own, client, tmp_path):
    name = unique_topic("stream")
    keeper = client.subscribe(name, "keeper")
    producer = client.create_producer(name, batching_enabled=True)
    streamed = spark.readStream.format("geminga").options(data_dir=str(own.data_dir), topic=name,
                                                          columns="payload,message_index").load()
    for number in range(20):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    writer = streamed.writeStream.format("memory").queryName("streamed")
    query = writer.option("checkpointLocation", str(tmp_path / "here")).start()
    try:
        query.processAllAvailable()
        assert spark.table("streamed").count() == 20
        for number in range(20, 30):
            producer.send(b"%d" % number)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(int(row.payload) for row in spark.table("streamed").collect()) == list(range(30))
    producer.close()
    keeper.close()


def test_topics_are_read_while_they_are_written_and_deleted(load, own, client):
    """Reads during publishing are in order without gaps; after the deletion they are empty, without an error."""
    name = unique_topic("busy")
    keeper = client.subscribe(name, "keeper")
    producer, is_over = client.create_producer(name, batching_enabled=False), threading.Event()

    def publish():
        while not is_over.wait(LOAD_PAUSE_SECONDS):
            for _ in range(10):
                producer.send_async(b"x" * 100, None)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        counts = []
        for _ in range(2):
            found = [row.message_index for row in load(topic=name, columns="message_index").collect()]
            assert sorted(found) == list(range(len(found)))
            counts.append(len(found))
        assert counts == sorted(counts)
    finally:
        is_over.set()
        publishing.join()
    producer.close()
    keeper.close()
    made = source.GemingaSource(datasource.CaseInsensitiveDict({"data_dir": str(own.data_dir), "topic": name}))
    reader = made.reader(made.schema())
    tasks = reader.partitions()
    assert sum(found.num_rows for task in tasks for found in reader.read(task)) >= counts[-1]
    assert request("DELETE", f"{own.http_url}/admin/v2/{name.replace('://', '/')}?force=true")[0] == 204
    eventually(lambda: not any(found.num_rows for task in tasks for found in reader.read(task)))
    with pytest.raises(source.BadOption, match="there is no topic"):
        reader.partitions()


# -- of a folder that nobody serves

def test_a_compacted_topic_is_its_view_and_what_lies_behind(load, topic):
    for number in range(100):
        topic.publish(Message(f"key-{number % 10}", b"%d" % number))
    topic.roll()
    topic.compact()
    topic.publish(Message("key-3", b"newest"))
    assert read_here(topic.data_dir, topic="stored").num_rows == 101
    found = load(topic.data_dir, topic="stored", compacted="true", columns="key,payload").collect()
    assert sorted((row.key, bytes(row.payload)) for row in found) == sorted(
        [*((f"key-{number}", b"9%d" % number) for number in range(10)), ("key-3", b"newest")])


def test_damage_costs_what_it_hit(load, topic, caplog):
    for number in range(50):
        topic.publish(Message("k", b"%d" % number))
    flip(topic.ledger.ledger_path, int(topic.ledger.index[20]["offset"]) + 20)
    flip(topic.ledger.index_path, format.HEADER_SIZE + 64 * 30)
    topic.publish_batch([Message("k", b"b")] * 5, api.ZSTD)
    metadata, stored = one_by_one.split(batch([Message("k", b"c" * 50)] * 5, api.LZ4))
    topic.add(sealed(metadata, bytes(stored)[:-9]))
    topic.roll()
    frame = load(topic.data_dir, topic="stored", columns="message_index")
    assert sorted(row[0] for row in frame.collect()) == [number for number in range(55) if number != 20]
    reader = reader_of(topic, frame.schema)
    with caplog.at_level(logging.WARNING, "geminga.source"):
        assert sum(found.num_rows for task in reader.partitions() for found in reader.read(task)) == 54
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4 and "10:20 is left out: its checksum is wrong" in told[1]
    assert told[3].endswith("3 damages were left out")


def test_large_messages_come_whole(load, topic):
    payload = bytes(range(256)) * (5 << 12)
    for codec in (api.NONE, api.ZLIB):
        for number in range(6):
            topic.publish(Message(f"k{number}", payload + b"%d" % number), codec)
    found = load(topic.data_dir, topic="stored",
                 columns="key,payload,payload_size").selectExpr("key", "right(payload, 1)", "payload_size")
    expected = [(f"k{number}", str(number), len(payload) + 1) for number in range(6)]
    assert sorted(map(tuple, found.distinct().collect())) == expected


def read_here(data_dir, **options):
    """Return the rows that Spark would read, read in this process."""
    made = source.GemingaSource(datasource.CaseInsensitiveDict({"data_dir": str(data_dir)} | options))
    reader = made.reader(made.schema())
    return pa.Table.from_batches([found for task in reader.partitions() for found in reader.read(task)],
                                 pa.schema([source.SCHEMA.field(name) for name in made.schema().names]))


def reader_of(kept, schema=None, **options):
    given = {"data_dir": str(kept.data_dir), "topic": "stored"} | options
    made = source.GemingaSource(datasource.CaseInsensitiveDict(given))
    return made.reader(schema or made.schema())


def pushed(topic, *filters):
    """Return (filters that are left for Spark, message indexes of the rows)."""
    reader = reader_of(topic, columns="message_index,key", pushdown="true")
    left = list(reader.pushFilters(list(filters)))
    found = [index for task in reader.partitions() for some in reader.read(task)
             for index in some["message_index"].to_pylist()]
    return left, found


def at(milliseconds):
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)


def test_filters_are_looked_at_before_entries_are_read(spark, load, topic):
    for number in range(30):
        topic.publish(Message(f"key-{number % 10}", b"v"), publish_time=NOW_MS + number)
        if number == 14:
            topic.roll()
    time, ledger_id, key = ("publish_time",), ("ledger_id",), ("key",)
    behind = at(NOW_MS + 5) + datetime.timedelta(microseconds=1)
    for filter_of, expected, of_behind in (
            (datasource.EqualTo, [5], []), (datasource.GreaterThan, range(6, 30), range(6, 30)),
            (datasource.GreaterThanOrEqual, range(5, 30), range(6, 30)), (datasource.LessThan, range(5), range(6)),
            (datasource.LessThanOrEqual, range(6), range(6))):
        assert pushed(topic, filter_of(time, at(NOW_MS + 5))) == ([], list(expected))
        assert pushed(topic, filter_of(time, behind)) == ([], list(of_behind))
    assert pushed(topic, datasource.GreaterThan(ledger_id, 10)) == ([], list(range(15, 30)))
    assert pushed(topic, datasource.EqualTo(key, "key-3")) == ([], [3, 13, 23])
    assert pushed(topic, datasource.In(key, ("key-3", None, "none")),
                  datasource.LessThan(time, at(NOW_MS + 20))) == ([], [3, 13])
    left, found = pushed(topic, other := datasource.StringStartsWith(key, "key"),
                         datasource.EqualTo(("payload_size",), 3))
    assert left[0] is other and len(left) == 2 and len(found) == 30
    asked = (f"publish_time >= timestamp_millis({NOW_MS + 4}) and key in ('key-5', 'key-3') and ledger_id = 10 "
             "and entry_id < 10")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    for pushdown in ("true", "false"):
        frame = load(topic.data_dir, topic="stored", pushdown=pushdown)
        assert [row.message_index for row in frame.where(asked).collect()] == [5]
    assert frame.where("key = 'key-1' or ledger_id = 11").count() == 17
    several = frame.where("key = 'key-1'").union(frame.where("key = 'key-2'"))
    assert sorted(row.message_index for row in several.collect()) == [1, 2, 11, 12, 21, 22]


def test_options_bound_what_is_read(topic):
    for number in range(30):
        topic.publish(Message(f"key-{number % 7}", b"v"), publish_time=NOW_MS + number)
        if number == 14:
            topic.roll()

    def indexes(**options):
        reader = reader_of(topic, **options)
        return [index for task in reader.partitions() for some in reader.read(task)
                for index in some["message_index"].to_pylist()]

    assert indexes(from_time=str(NOW_MS + 3), to_time=str(NOW_MS + 5)) == [3, 4]
    assert indexes(to_time=at(NOW_MS + 2).isoformat()) == [0, 1]
    assert indexes(from_time="2023-11-14T22:13:20.028Z", to_time="2023-11-14T23:13:20.028+01:00") == []
    assert indexes(from_time="2023-11-14T22:13:20.028") == [28, 29]
    assert indexes(from_position="10:13", to_position="11:1") == [13, 14, 15, 16]
    assert indexes(key="key-3", to_position="11:4") == [3, 10, 17]


@pytest.mark.parametrize(("options", "said"), [
    ({"topics_": "x"}, "option topics_ is unknown"),
    ({"topics": "x"}, "one of the options topic, topics, topic_pattern"),
    ({"topic": "none"}, "there is no topic persistent://public/default/none"),
    ({"topic": "a//b"}, "option topic: InvalidTopicName"),
    ({"data_dir": "{folder}/absent"}, "option data_dir: {folder}/absent is not the data folder"),
    ({"compacted": "yes"}, "option compacted: 'yes'"),
    ({"from_time": "yesterday"}, "option from_time: 'yesterday'"),
    ({"to_position": "7"}, "option to_position: '7' is not ledger:entry"),
    ({"columns": "key,values"}, "there is no column values"), ({"typed": "true"}, "stored has no schema"),
    ({"columns": "value"}, "option columns: value")])
def test_a_bad_option_is_named(topic, tmp_path, options, said):
    topic.publish(Message("k", b"v"))
    filled = {name: value.replace("{folder}", str(tmp_path)) for name, value in options.items()}
    expected = re.escape(said.replace("{folder}", str(tmp_path)))
    with pytest.raises((source.BadOption, NoSchema), match=expected) as error:
        reader_of(topic, **filled).partitions()
    assert "\n" not in str(error.value)


def test_spark_shows_what_is_wrong_with_an_option(load, topic):
    with pytest.raises(Exception, match="option compacted: 'perhaps' is neither true nor false"):
        load(topic.data_dir, topic="stored", compacted="perhaps")


def test_a_schema_of_ones_own_chooses_columns(spark, load, topic):
    topic.publish(Message("k", b"value"))
    made = spark.read.format("geminga").options(data_dir=str(topic.data_dir), topic="stored")
    assert [tuple(row) for row in made.schema("payload_size int, key string").load().collect()] == [(5, "k")]
    with pytest.raises(Exception, match="the schema has key int"):
        made.schema("key int").load().collect()


def test_the_compressions_are_those_that_clients_use():
    """LZ4 and SNAPPY are raw blocks without frames, as Arrow's own codecs confirm."""
    data = bytes(range(256)) * 9
    for codec, name in ((api.LZ4, "lz4_raw"), (api.SNAPPY, "snappy"), (api.ZSTD, "zstd")):
        assert pa.Codec(name).decompress(compression.compress(codec, data), len(data)).to_pybytes() == data
