"""Each committed message of a topic is once in its table, whatever is killed when; a list beside the table says so."""
import contextlib
import itertools
import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.jobs import apart
from geminga.storage.jobs.compacting.engines import LocalEngine
from geminga.storage.tables import exports, writing
from geminga.storage.tables.commits import COMPACTED, MESSAGES
from geminga.storage.tables.table_folders import LocalFolder

from ..files import flip
from ..jobs.topics import CODECS, NOW_MS, Message, batch, metadata_of, sealed, single
from .lake import ORDER, Lake, position_of
from .test_values import protobuf_schema

DAY_MS = 86_400_000


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


@pytest.fixture
def here(monkeypatch):
    """Have tasks run in this process, so that a test can change what they do."""
    monkeypatch.setattr(apart, "run", lambda function, *arguments: function(*arguments))


def raw_rows(lake, name="orders", content=MESSAGES):
    """Return {message id: (key, payload)} of a table without schema; no id is there twice."""
    rows = lake.rows(name, content)
    found = {position_of(row): (row["_key"], row["_payload"]) for row in rows}
    assert len(found) == len(rows)
    return found


def published(*topics):
    """Return {message id: (key, payload)} of all that was published."""
    return {place: (message.key, b"" if message.is_null else message.payload)
            for topic in topics for message, place in topic.expected}


# -- a list beside the table

MESSAGE = st.builds(Message, st.one_of(st.none(), st.sampled_from(["a", "b", "é", ""])),
                    st.one_of(st.just(b""), st.binary(min_size=1, max_size=30)))
ACTION = st.one_of(
    st.tuples(st.just("one"), MESSAGE, st.sampled_from(CODECS)),
    st.tuples(st.just("batch"), st.lists(MESSAGE, min_size=1, max_size=5), st.sampled_from(CODECS)),
    st.tuples(st.just("chunks"), st.binary(min_size=6, max_size=60), st.integers(2, 4)),
    st.just(("roll",)), st.just(("export",)), st.just(("killed",)))


class Killed(BaseException):
    """The end of a process, which no handler sees."""


class MortalPlace(LocalFolder):
    """A place whose process is killed at the n-th of its operations, before it or behind it."""

    def __init__(self, folder, after=10 ** 9):
        super().__init__(folder)
        self.left = after

    def _step(self, operation, *arguments):
        self.left -= 1
        if self.left == 0:
            raise Killed
        result = getattr(LocalFolder, operation)(self, *arguments)
        self.left -= 1
        if self.left == 0:
            raise Killed
        return result

    def create(self, *arguments):
        return self._step("create", *arguments)

    def put(self, *arguments):
        return self._step("put", *arguments)

    def move(self, *arguments):
        return self._step("move", *arguments)

    def delete(self, *arguments):
        return self._step("delete", *arguments)


@pytest.mark.slow
@given(st.lists(ACTION, min_size=1, max_size=14), st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_has_each_message_once(tmp_path_factory, actions, data):
    lake = Lake(tmp_path_factory.mktemp("lake"))
    [topic] = lake.topic()
    chunks = itertools.count()
    for name, *about in actions:
        if name == "one":
            topic.publish(*about)
        elif name == "batch":
            topic.publish_batch(*about)
        elif name == "chunks":
            topic.publish_chunks(Message("c", about[0]), about[1], f"uuid-{next(chunks)}")
        elif name == "roll":
            topic.roll()
        else:
            lake.place = MortalPlace(lake.target, data.draw(st.integers(1, 12)) if name == "killed" else 10 ** 9)
            try:
                lake.export()
            except Killed:
                continue
            finally:
                lake.place = LocalFolder(lake.target)
            assert raw_rows(lake) == published(topic)
    lake.export()
    assert raw_rows(lake) == published(topic) and not lake.rejected()


STEP = st.one_of(st.sampled_from(["good", "bad", "null", "wider", "export", "killed", "roll"]))


@pytest.mark.slow
@given(st.lists(STEP, min_size=1, max_size=16), st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_follows_its_schema_with_each_message_once(tmp_path_factory, steps, data):
    """Fields are added, messages fit or do not, exports are killed: rows and rejected messages are those published."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    [topic] = lake.topic()
    fields, version = list(ORDER["fields"]), lake.schema(ORDER)
    good, bad = [], []
    for number, step in enumerate(steps):
        if step == "good":
            values = {"id": number} | {one["name"]: number for one in fields[3:]}
            topic.publish(Message(None, json.dumps(values).encode()), schema_version=version)
            good.append(values)
        elif step == "bad":
            topic.publish(Message(None, b"%d is no object" % number), schema_version=version)
            bad.append(b"%d is no object" % number)
        elif step == "null":
            topic.publish(Message(None, b""), schema_version=version)
            good.append({"id": None})
        elif step == "wider":
            fields.append({"name": f"more{number}", "type": ["null", "int"], "default": None})
            version = lake.schema(ORDER | {"fields": fields})
        elif step == "roll":
            topic.roll()
        else:
            lake.place = MortalPlace(lake.target, data.draw(st.integers(1, 12)) if step == "killed" else 10 ** 9)
            with contextlib.suppress(Killed):
                lake.export()
            lake.place = LocalFolder(lake.target)
    lake.export()
    names = ["id", *(one["name"] for one in fields[3:])]

    def of(row):
        return [row.get(name) if row.get(name) is not None else -1 for name in names]
    assert sorted(map(of, lake.rows())) == sorted(map(of, good))
    assert sorted(row["_payload"] for row in lake.rejected()) == sorted(bad)


@pytest.mark.slow
def test_an_export_killed_at_each_operation_is_finished_by_the_next(tmp_path, monkeypatch):
    """With several days, rejected messages, two partitions, and files that are merged."""
    monkeypatch.setattr(exports, "_MERGE_MIN", 2)
    for operation in itertools.count(1):
        (tmp_path / str(operation)).mkdir()
        lake = Lake(tmp_path / str(operation))
        topics = lake.topic(partitions=2)
        version = lake.schema(ORDER)
        for round_ in range(exports._MERGE_MIN):
            for at, topic in enumerate(topics):
                topic.publish(Message("k", json.dumps({"id": 10 * round_ + at}).encode()), schema_version=version,
                              publish_time=NOW_MS + at * DAY_MS)
                topic.publish(Message("k", b"bad %d" % round_), schema_version=version)
            if round_ < exports._MERGE_MIN - 1:
                lake.export()
        lake.place = MortalPlace(lake.target, operation)
        try:
            lake.export()
            is_killed = False
        except Killed:
            is_killed = True
        lake.place = LocalFolder(lake.target)
        lake.export()
        assert sorted(row["id"] for row in lake.rows()) == sorted(
            10 * round_ + at for round_ in range(exports._MERGE_MIN) for at in range(2))
        assert sorted(row["_payload"] for row in lake.rejected()) == sorted(
            b"bad %d" % round_ for round_ in range(exports._MERGE_MIN) for _ in range(2))
        if not is_killed:
            break
    assert operation > 20


# -- what a table has

def test_rows_have_all_columns_of_a_message(lake):
    first, second = lake.topic(partitions=2)
    first.add(single(Message("k", b"one"), sequence_id=7, event_time=NOW_MS + 5, ordering_key=b"o",
                     properties=[api.KeyValue(key="a", value="1"), api.KeyValue(key="a", value="2")]))
    second.add(batch([Message(None, b"two"), Message("", b"")], partition_key_b64_encoded=True))
    lake.export()
    one, two, three = sorted(lake.rows(), key=position_of)
    assert one | {"_publish_time": 0} == {
        "_partition": 0, "_ledger_id": 10, "_entry_id": 0, "_batch_index": None, "_publish_time": 0,
        "_event_time": one["_event_time"], "_key": "k", "_key_is_base64": False, "_ordering_key": b"o",
        "_properties": [("a", "2")], "_producer": "p", "_sequence_id": 7, "_schema_version": None,
        "_null_value": False, "_payload": b"one"}
    assert one["_event_time"].timestamp() * 1000 == NOW_MS + 5 and two["_event_time"] is None
    assert (two["_partition"], two["_batch_index"], two["_key"], three["_key"], three["_payload"]) == (
        1, 0, None, "", b"")


def test_columns_evolve_with_the_schema(lake):
    """Rows of earlier exports have null for a field that came later; a lost one keeps its column."""
    [topic] = lake.topic()
    topic.publish(Message("k", b'{"id": 1, "price": 2.5}'), schema_version=lake.schema(ORDER))
    lake.export()
    newer = ORDER | {"fields": [ORDER["fields"][0], {"name": "city", "type": "string", "default": ""}]}
    topic.publish(Message("k", b'{"id": 2, "city": "Bonn"}'), schema_version=lake.schema(newer))
    lake.export()
    assert [(row["id"], row["price"], row["city"]) for row in lake.rows()] in (
        [(1, 2.5, None), (2, None, "Bonn")], [(2, None, "Bonn"), (1, 2.5, None)])


def test_messages_that_fit_no_row_are_in_a_table_beside(lake):
    """Encrypted ones and those that do not fit their schema, with the reason; the report has their positions."""
    [topic] = lake.topic()
    version = lake.schema(ORDER)
    topic.publish(Message("a", b'{"id": 1}'), schema_version=version)
    topic.publish(Message("b", b'{"id": "x"}'), schema_version=version)
    topic.add(sealed(metadata_of(encryption_keys=[api.EncryptionKeys(key="k", value=b"v")], schema_version=version),
                     b"secret"))
    topic.publish(Message("d", b"", is_null=True), schema_version=version)
    [report] = lake.export()
    assert [(row["_key"], row["id"], row["_null_value"]) for row in lake.rows()] == [("a", 1, False), ("d", None, True)]
    assert [(row["_key"], row["_payload"], row["_schema_version"]) for row in lake.rejected()] == [
        ("b", b'{"id": "x"}', 0), (None, b"secret", 0)]
    assert [row["_reason"] for row in lake.rejected()] == [
        'field id: "x" is no whole number', "its payload is encrypted"]
    assert (report["outcome"], report["rows"], report["rejected"]) == ("exported", 2, 2)
    assert [line.split(":")[:2] for line in report["rejected_messages"]] == [["10", "1"], ["10", "2"]]
    assert report["table"]["rejected"] == 2


def test_damaged_entries_are_told_and_everything_else_is_exported(lake):
    [topic] = lake.topic()
    for number in range(5):
        topic.publish(Message("k", b"payload-%d" % number))
    path = topic.folder / "10.ledger"
    flip(path, path.read_bytes().index(b"payload-2"))
    [report] = lake.export()
    assert report["outcome"] == "exported" and report["damaged"] == 1 and "10:2" in report["damage"][0]
    assert sorted(row["_payload"] for row in lake.rows()) == [b"payload-%d" % number for number in (0, 1, 3, 4)]


def test_cancelled_messages_are_left_out(lake, tmp_path):
    from geminga.storage import format
    from geminga.storage.cursors.pending_acks import NEVER_MS
    from geminga.storage.delayed.amendments import Amendments
    [topic] = lake.topic()
    for number in range(3):
        topic.publish(Message("k", b"%d" % number))
    path = format.amended_path(topic.folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    Amendments(path).add(10, 1, NEVER_MS)
    lake.export()
    assert sorted(row["_payload"] for row in lake.rows()) == [b"0", b"2"]


def test_owners_are_told_how_far_their_partitions_are(lake):
    first, second = lake.topic(partitions=2)
    first.publish(Message("k", b"1"))
    first.publish(Message("k", b"2"))
    lake.export()
    assert lake.told == [(first.partition_id, "persistent://public/default/orders-partition-0", (10, 1))]
    second.publish(Message("k", b"3"))
    [report] = lake.export()
    assert lake.told[1:] == [(second.partition_id, "persistent://public/default/orders-partition-1", (1010, 0))]
    assert list(report["positions"].values()) == ["10:1", "1010:0"]


def test_a_topic_that_is_deleted_and_made_again_continues_its_table(lake):
    [old] = lake.topic()
    old.publish(Message("k", b"old"))
    lake.export()
    lake.forget()
    [new] = lake.topic("orders2")
    lake.by_topic = {next(iter(lake.by_topic)): lake.by_topic[next(iter(lake.by_topic))]}
    new.publish(Message("k", b"new"))
    lake.export()
    assert [row["_payload"] for row in lake.rows()] == [b"old"]
    assert [row["_payload"] for row in lake.rows("orders2")] == [b"new"]


def test_truncated_and_trimmed_topics_go_on(lake):
    """Ledgers that are gone were exported or not; what comes behind is exported once."""
    [topic] = lake.topic()
    topic.publish(Message("k", b"1"))
    lake.export()
    topic.publish(Message("k", b"2"))
    topic.roll()
    for path in topic.folder.glob("10.*"):
        path.unlink()
    topic.publish(Message("k", b"3"))
    lake.export()
    assert sorted(row["_payload"] for row in lake.rows()) == [b"1", b"3"]


def test_payloads_without_bytes_are_values_where_a_schema_has_such(lake):
    """An empty text, and a message of Protobuf with defaults only; a null value is null, and so is an empty object."""
    text, _ = protobuf_schema()
    for name, kind, definition in (("text", api.Schema.String, b""), ("protobuf", api.Schema.ProtobufNative, text),
                                   ("json", api.Schema.Json, ORDER)):
        [topic] = lake.topic(name)
        version = lake.schema(definition, kind, name)
        topic.publish(Message("k", b""), schema_version=version)
        topic.publish(Message("k", b"", is_null=True), schema_version=version)
    lake.export()
    assert [row["value"] for row in sorted(lake.rows("text"), key=position_of)] == ["", None]
    assert [(row["id"], row["tags"]) for row in sorted(lake.rows("protobuf"), key=position_of)] == [
        (0, []), (None, None)]
    assert [row["id"] for row in lake.rows("json")] == [None, None]


# -- compacted tables

def test_a_compacted_table_is_replaced_by_the_next_view(lake):
    [topic] = lake.topic()
    for number in range(6):
        topic.publish(Message(f"k{number % 3}", b"%d" % number))
    [report] = lake.export(COMPACTED)
    assert report["outcome"] == "nothing new" and not lake.rows(content=COMPACTED)
    topic.compact()
    lake.export(COMPACTED)
    assert raw_rows(lake, content=COMPACTED) == topic.newest()
    topic.publish(Message("k1", b""))
    topic.publish(Message("k2", b"new"))
    lake.export(COMPACTED)
    assert raw_rows(lake, content=COMPACTED) != topic.newest()      # no view has these messages yet
    topic.compact()
    [report] = lake.export(COMPACTED)
    assert raw_rows(lake, content=COMPACTED) == topic.newest() and report["table"]["rows"] == 2
    assert lake.export(COMPACTED)[0]["outcome"] == "nothing new"


# -- small files

def test_small_files_of_a_day_become_one(lake):
    [topic] = lake.topic()
    for number in range(exports._MERGE_MIN):
        topic.publish(Message("k", b"%d" % number))
        lake.export()
    [day] = (lake.target / "public/default/orders/messages").iterdir()
    assert len(list(day.iterdir())) == 1
    assert sorted(row["_payload"] for row in lake.rows()) == [b"%d" % number for number in range(exports._MERGE_MIN)]
    [planned] = lake.plan()
    assert planned.table.last.rows == exports._MERGE_MIN and planned.table.last.files == 1


WIDER = [      # (types of a field, its values in JSON, the column's type, its values)
    (("int", "long"), ("1", "5000000000"), "int64", [1, 5_000_000_000]),
    (("long", "int"), ("5000000000", "1"), "int64", [1, 5_000_000_000]),
    (("int", "double"), ("1", "0.5"), "double", [0.5, 1.0]),
    (("float", "double"), ("0.5", "0.1"), "double", [0.1, 0.5]),
    (("string", "bytes"), ('"a"', '"b"'), "binary", [b"a", b"b"]),
    (("bytes", "string"), ('"a"', '"b"'), "binary", [b"a", b"b"]),
    (("long", "string", "boolean"), ("1", '"a"', "true"), "string", ["1", "a", "true"]),
    (("long", {"type": "array", "items": "int"}), ("1", "[2]"), "list<element: int64>", [[1], [2]])]


@pytest.mark.slow
@pytest.mark.parametrize(("types", "texts", "kind", "values"), WIDER)
def test_a_column_has_one_type_in_all_files(lake, types, texts, kind, values):
    """Earlier files are rewritten when a version of the schema makes a column wider, and no row is lost."""
    [topic] = lake.topic()
    for of_field, text in zip(types, texts, strict=True):
        version = lake.schema({"type": "record", "name": "R", "fields": [{"name": "x", "type": of_field}]})
        topic.publish(Message("k", b'{"x": %s}' % text.encode()), schema_version=version)
        [report] = lake.export()
        assert (report["outcome"], report["error"], report["rejected"]) == ("exported", "", 0)
    found = [pq.read_table(path, partitioning=None) for path in lake.target.rglob("day=*/*.parquet")]
    assert {str(one.schema.field("x").type) for one in found} == {kind}
    assert sorted(row["x"] for one in found for row in one.to_pylist()) == values
    assert report["table"]["rows"] == len(types)


@pytest.mark.slow
def test_a_wider_column_over_kills_has_each_row_once(tmp_path, monkeypatch):
    monkeypatch.setattr(exports, "_MERGED_BYTES", 1)      # a commit for each file
    for operation in itertools.count(1, 3):
        (tmp_path / str(operation)).mkdir()
        lake = Lake(tmp_path / str(operation))
        [topic] = lake.topic()
        for number, kind in enumerate(("int", "int", "long")):
            version = lake.schema({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})
            topic.publish(Message("k", b'{"x": %d}' % number), schema_version=version)
            lake.place = MortalPlace(lake.target, operation if number == 2 else 10 ** 9)
            is_killed = True
            with contextlib.suppress(Killed):
                lake.export()
                is_killed = False
        lake.place = LocalFolder(lake.target)
        lake.export()
        assert sorted(row["x"] for row in lake.rows()) == [0, 1, 2]
        assert {str(pq.read_schema(path).field("x").type) for path in lake.target.rglob("day=*/*.parquet")} == {"int64"}
        if not is_killed:
            break
    assert operation > 15


def test_files_of_older_programs_get_one_type(lake):
    """Their commits say nothing of types, and files of a column may differ."""
    [topic] = lake.topic()
    for kind in ("int", "long"):
        version = lake.schema({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})
        topic.publish(Message("k", b'{"x": 1}'), schema_version=version)
        lake.export()
    commits = lake.target / "public/default/orders/_geminga/messages/commits"
    newest = max(commits.iterdir())
    newest.write_text(json.dumps(json.loads(newest.read_text()) | {"version": 1, "schema": ""}))
    [one, two] = sorted(lake.target.rglob("day=*/*.parquet"))
    pq.write_table(pq.read_table(one, partitioning=None).cast(pq.read_schema(one).set(
        pq.read_schema(one).get_field_index("x"), pa.field("x", pa.int32()))), one)
    topic.publish(Message("k", b'{"x": 1}'), schema_version=version)
    lake.export()
    assert [str(pq.read_schema(path).field("x").type) for path in lake.target.rglob("day=*/*.parquet")] == ["int64"] * 3
    assert [row["x"] for row in lake.rows()] == [1, 1, 1] and two


def test_late_messages_rewrite_no_file(lake):
    """A message with a publish time of an earlier day is in a file of its own there."""
    [topic] = lake.topic()
    topic.publish(Message("k", b"1"))
    [report] = lake.export()
    assert (report["outcome"], report["error"]) == ("exported", "")
    before = {path: path.stat().st_mtime_ns for path in lake.target.rglob("*.parquet")}
    topic.publish(Message("k", b"2"), publish_time=NOW_MS - DAY_MS)
    topic.publish(Message("k", b"3"))
    [report] = lake.export()
    assert (report["outcome"], report["error"]) == ("exported", "")
    after = {path: path.stat().st_mtime_ns for path in lake.target.rglob("*.parquet")}
    assert before.items() <= after.items() and len(after) == 3
    assert sorted(row["_payload"] for row in lake.rows()) == [b"1", b"2", b"3"]


def test_a_topic_of_very_many_days_is_exported(lake, here, monkeypatch):
    """No more files are open at a time than a task may have."""
    opened, add = [], writing._Files._add
    monkeypatch.setattr(writing, "_OPEN_MAX", 3)
    monkeypatch.setattr(writing._Files, "_add", lambda files, *about: (add(files, *about), opened.append(
        len(files._open))))
    [topic] = lake.topic()
    for number in range(40):
        topic.publish(Message("k", b"%d" % number), publish_time=NOW_MS + number % 7 * DAY_MS)
    lake.export()
    assert raw_rows(lake) == published(topic) and max(opened) == 3


def test_a_merge_that_would_lose_rows_is_given_up(lake, monkeypatch):
    monkeypatch.setattr(exports, "_MERGE_MIN", 2)
    merge = writing.merge
    monkeypatch.setattr(writing, "merge", lambda paths, *others: merge(paths[1:], *others))
    [topic] = lake.topic()
    for number in range(2):
        topic.publish(Message("k", b"%d" % number))
        [report] = lake.export()
    assert report["outcome"] == "failed" and "1 rows were read of files that have 2" in report["error"]
    assert raw_rows(lake) == published(topic)


# -- rounds and deadlines

def test_large_topics_are_committed_in_rounds(lake, monkeypatch):
    monkeypatch.setattr(exports, "_ROUND_BYTES", 300)
    monkeypatch.setattr(exports, "_TASK_BYTES", 150)
    topics = lake.topic(partitions=3)
    for number in range(60):
        topics[number % 3].publish(Message("k", b"%d" % number * 20))
        if number % 12 < 3:
            topics[number % 3].roll()
    [report] = lake.export()
    assert raw_rows(lake) == published(*topics)
    assert report["table"]["commits"] > 3 and report["rows"] == 60


def test_a_night_that_is_out_of_time_keeps_what_it_has_committed(lake, monkeypatch):
    monkeypatch.setattr(exports, "_ROUND_BYTES", 300)
    [topic] = lake.topic()
    for number in range(30):
        topic.publish(Message("k", b"%d" % number * 20))
        topic.roll()
    clock = itertools.count()
    monkeypatch.setattr("geminga.storage.jobs.compacting.engines.time.monotonic", lambda: next(clock))
    [report] = lake.export(ends=4)
    assert report["outcome"] == "not in time" and 0 < report["rows"] < 30
    monkeypatch.undo()
    [report] = lake.export(ends=time.monotonic() + 600)
    assert report["outcome"] == "exported" and raw_rows(lake) == published(topic)


# -- targets

def test_a_table_of_another_broker_is_left_alone(lake):
    [topic] = lake.topic()
    topic.publish(Message("k", b"1"))
    lake.export()
    topic.publish(Message("k", b"2"))
    lake.broker = "them"
    [report] = lake.export()
    assert report["outcome"] == "failed" and "another broker, us" in report["error"] and len(lake.rows()) == 1


def test_a_plan_disturbs_no_export_that_is_under_way(lake, monkeypatch):
    [topic] = lake.topic()
    topic.publish(Message("k", b"1"))
    create = LocalFolder.create

    def planned_meanwhile(place, path, data):
        lake.plan()
        create(place, path, data)
        lake.plan()
    monkeypatch.setattr(LocalFolder, "create", planned_meanwhile)
    [report] = lake.export()
    assert report["outcome"] == "exported" and raw_rows(lake) == published(topic)


def test_two_that_write_one_table_at_once_commit_once(lake):
    [topic] = lake.topic()
    topic.publish(Message("k", b"1"))
    [first], [second] = lake.plan(), lake.plan()
    for planned in (first, second):
        exports.run(lake.data_dir, [planned], lake.target / "_geminga-scratch", LocalEngine(), lambda *told: None,
                    lambda *told: None)
    assert not first.error and "another program writes" in second.error
    lake.export()
    assert len(lake.rows()) == 1


def test_a_restored_backup_does_not_continue_a_table_of_later_messages(lake):
    [topic] = lake.topic()
    topic.publish(Message("k", b"1"))
    lake.export()
    for path in topic.folder.glob("10.*"):
        path.unlink()
    topic.next_ledger = 5
    topic.roll()
    topic.publish(Message("k", b"other"))
    [report] = lake.export()
    assert report["outcome"] == "failed" and "backup" in report["error"] and len(lake.rows()) == 1


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1}'])
def test_a_damaged_commit_is_told_and_nothing_is_written(lake, damage):
    [topic] = lake.topic()
    topic.publish(Message("k", b"1"))
    lake.export()
    [commit] = (lake.target / "public/default/orders/_geminga/messages/commits").iterdir()
    commit.write_bytes(damage)
    topic.publish(Message("k", b"2"))
    [report] = lake.export()
    assert report["outcome"] == "failed" and "0000000001.json is no commit" in report["error"]
    assert len(lake.rows()) == 1


def test_a_target_that_cannot_be_written_fails_its_tables_and_loses_nothing(lake):
    [topic] = lake.topic()
    topic.publish(Message("k", b"1"))
    lake.target.write_bytes(b"a file where the folder should be")
    [report] = lake.export()
    assert (report["outcome"] == "failed" and "Not a directory" in report["error"]) or "File exists" in report["error"]
    lake.target.unlink()
    lake.export()
    assert raw_rows(lake) == published(topic)


def test_a_full_target_fails_the_table_and_leaves_no_files(lake, here, monkeypatch):
    [topic] = lake.topic()
    topic.publish(Message("k", b"1"))

    def full(*arguments):
        raise OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(writing, "sync", full)
        [report] = lake.export()
    assert report["outcome"] == "failed" and "No space left" in report["error"]
    assert not list(lake.target.rglob("*.parquet"))
    lake.export()
    assert raw_rows(lake) == published(topic)


def test_a_schema_that_is_no_table_fails_only_its_topic(lake):
    [good], [bad] = lake.topic("good"), lake.topic("bad")
    lake.schema(b"{}", name="bad")
    good.publish(Message("k", b"1"))
    bad.publish(Message("k", b"1"))
    reports = {report["topic"].rpartition("/")[2]: report for report in lake.export()}
    assert reports["good"]["outcome"] == "exported" and len(lake.rows("good")) == 1
    assert reports["bad"]["outcome"] == "failed" and "not Avro's" in reports["bad"]["error"]


def test_commits_name_all_files_now_and_then(lake, monkeypatch):
    """Then older ones are deleted, and the list of files is the same."""
    monkeypatch.setattr("geminga.storage.tables.commits._WHOLE_EVERY", 3)
    monkeypatch.setattr(exports, "_MERGE_MIN", 100)
    [topic] = lake.topic()
    for number in range(7):
        topic.publish(Message("k", b"%d" % number))
        lake.export()
    commits = lake.target / "public/default/orders/_geminga/messages/commits"
    assert sorted(path.name for path in commits.iterdir()) == [f"{number:010}.json" for number in (6, 7)]
    [planned] = lake.plan()
    on_disk = {str(path.relative_to(lake.target / "public/default/orders")) for path in lake.target.rglob("*.parquet")}
    assert {one.path for one in planned.table.files()} == on_disk and len(on_disk) == 7


def test_names_of_topics_are_names_of_folders(lake):
    for name in ("..", "_x", "a b", "ä%2F"):
        [topic] = lake.topic(f"persistent://public/default/{name}")
        topic.publish(Message("k", name.encode()))
    lake.export()
    for name in ("..", "_x", "a b", "ä%2F"):
        assert [row["_payload"] for row in lake.rows(f"persistent://public/default/{name}")] == [name.encode()]
    assert sorted(path.name for path in (lake.target / "public/default").iterdir()) == [
        "%2E.", "%5Fx", "%C3%A4%252F", "a b"]


