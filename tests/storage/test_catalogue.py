"""The catalogue: unique ids, names, counters, and how a process notices commits of others."""
import json
import lzma
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from geminga.proto.errors import NameTaken, Refusal
from geminga.proto.names import parse
from geminga.storage.catalogue import orphans
from geminga.storage.catalogue.catalogue import Catalogue, CatalogueError, open_catalogue, open_to_read
from geminga.storage.catalogue.checksums import COLUMNS, sum_of
from geminga.storage.catalogue.ids import IDS_PER_SECOND, LEDGER_BLOCK
from geminga.storage.catalogue.layout import VERSION
from geminga.storage.errors import NotDurable, StorageFull

TOPIC = parse("persistent://public/default/orders")


@pytest.fixture
def opened(tmp_path):
    """Return opened(clock), which opens the test's catalogue anew, like a process of its own. Its clock stands still
    by default.
    """
    made = []

    def opened(clock=lambda: 0):
        made.append(open_catalogue(tmp_path / "catalogue.sqlite", clock))
        return made[-1]

    yield opened
    for one in made:
        one.close()


def test_a_new_catalogue_has_the_namespaces_that_everybody_uses(opened):
    found = opened()
    assert found.namespaces.exists("public/default") and found.namespaces.exists("pulsar/system")
    assert not found.namespaces.exists("public/other")
    found.namespaces.create("acme/eu")
    found.namespaces.create("acme/eu")          # the second call changes nothing
    found.commit()
    assert opened().namespaces.exists("acme/eu")


KILLED = """
import os, signal, sys
from pathlib import Path
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.catalogue.tenants import Namespaces
Namespaces.create = lambda self, name: os.kill(os.getpid(), signal.SIGKILL)
open_catalogue(Path(sys.argv[1]))
"""


def test_a_catalogue_whose_making_was_cut_short_is_made_again(opened, tmp_path):
    """A catalogue is created in one transaction: a process killed before its end leaves an empty file."""
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "catalogue.sqlite"])
    assert killed.returncode == -signal.SIGKILL
    assert opened().namespaces.exists("public/default")


# -- ids ---------------------------------------------------------------------------------------------------------------

TAKE = """
import json, sys
from pathlib import Path
from geminga.storage.catalogue.catalogue import open_catalogue
mine = open_catalogue(Path(sys.argv[1]))
sys.stdin.read()
found = {"ledgers": [mine.ids.next_ledger_id() for _ in range(int(sys.argv[2]))], "producers": []}
for _ in range(50):
    found["producers"].append(mine.counters.take("producers"))
    mine.commit()
print(json.dumps(found))
"""


def at_once(count, script, *arguments):
    """Start `count` processes that run the script at the same moment. Return what each has printed."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
               for _ in range(count)]
    for process in running:
        process.stdin.close()
    printed = []
    for process in running:
        with process:
            printed.append(process.stdout.read())
        assert process.returncode == 0
    return printed


@pytest.mark.slow
def test_processes_that_take_ids_at_once_never_get_the_same(opened, tmp_path):
    """Processes that take ledger ids from blocks and raise a counter at the same time never get the same value."""
    opened()
    found = [json.loads(text) for text in at_once(3, TAKE, tmp_path / "catalogue.sqlite", LEDGER_BLOCK + 200)]
    for name, count in (("ledgers", 3 * (LEDGER_BLOCK + 200)), ("producers", 150)):
        taken = [value for one in found for value in one[name]]
        assert len(set(taken)) == len(taken) == count
    assert all(one["ledgers"] == sorted(one["ledgers"]) for one in found)


def test_ledger_ids_grow_and_are_never_given_again_after_reopening(opened):
    """The unused ledger ids of a process that was killed are skipped, not given out later."""
    first = opened()
    before = [first.ids.next_ledger_id() for _ in range(3)]
    again = opened()
    after = [again.ids.next_ledger_id() for _ in range(LEDGER_BLOCK + 1)]
    assert before == [1, 2, 3]
    assert min(after) > LEDGER_BLOCK and len(set(after)) == LEDGER_BLOCK + 1
    assert first.ids.next_ledger_id() == 4


def test_ids_and_names_are_not_given_again_when_an_older_copy_is_put_back(opened, tmp_path):
    """A restored older catalogue gives out no id or producer name that was given out after the copy was made,
    because counters are never behind the clock.
    """
    begun = time.time()
    first = opened(lambda: begun)
    first.ids.next_ledger_id()
    first.close()
    copy = (tmp_path / "catalogue.sqlite").read_bytes()
    used = opened(lambda: begun)
    ids = {used.ids.next_ledger_id() for _ in range(IDS_PER_SECOND // 2)}
    names = {used.ids.producer_name() for _ in range(500)}
    used.commit()
    used.close()
    (tmp_path / "catalogue.sqlite").write_bytes(copy)
    restored = opened(lambda: begun + 1)
    assert not ids & {restored.ids.next_ledger_id() for _ in range(1_000)}
    assert not names & {restored.ids.producer_name() for _ in range(1_000)}


def test_a_copy_that_is_put_back_closes_ledgers_that_it_does_not_know_yet(opened):
    """A restored catalogue closes all ledger ids that the original could have given out since the copy was made, and
    gives out higher ones.
    """
    begun = time.time()
    known = opened(lambda: begun).ids.next_ledger_id()
    restored = opened(lambda: begun + 1)
    restored.ids.mark_restored()
    assert known + IDS_PER_SECOND <= restored.ids.last_closed_ledger() < restored.ids.next_ledger_id()


def test_a_clock_that_is_put_back_gives_no_id_again(opened):
    now = time.time()
    ids = [opened(lambda at=at: now + at).ids.next_ledger_id() for at in (0, -3_600, -7_200, 1)]
    assert ids == sorted(set(ids))


def test_a_full_disk_is_told_and_undoes_nothing_that_was_committed(opened, monkeypatch):
    """A full disk raises an error at a statement or at the commit. The catalogue can be used again once there is
    room.
    """
    found = opened()
    pages = found.value("PRAGMA page_count")
    found.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises((StorageFull, NotDurable), match="full"):
        for number in range(10_000):
            found.tenants.create(f"tenant-{number:0200}")
    found.connection.execute("PRAGMA max_page_count = 1000000")
    if found.is_changing:
        found.connection.execute("ROLLBACK")
    found.tenants.create("one")
    found.commit()
    assert opened().tenants.exists("one")


def test_ids_of_deleted_things_are_not_used_again(opened):
    """The id of a deleted subscription is never given to another one, because files on disk are named by ids."""
    found = opened()
    partition_id = found.partitions.create(TOPIC)
    first = found.subscriptions.create(partition_id, "a")
    found.subscriptions.delete(first)
    second = found.subscriptions.create(partition_id, "a")
    found.commit()
    assert second > first
    assert opened().subscriptions.ids(partition_id) == {"a": second}


def test_what_was_not_committed_did_not_happen(opened):
    """A process killed within a transaction leaves neither changes nor a lock."""
    killed = opened()
    killed.partitions.create(TOPIC)
    killed.counters.take("producers", 5)
    killed.close()
    found = opened()
    assert found.partitions.find(TOPIC) is None
    assert found.counters.take("producers") == 1


# -- topics and partitions ---------------------------------------------------------------------------------------------

def test_a_topic_is_created_once(opened):
    """The second process that creates a topic is told that it exists, and changes nothing."""
    found, other = opened(), opened()
    assert found.topics.partition_count(TOPIC) is None
    assert found.topics.create(TOPIC, 3)
    found.commit()
    assert not other.topics.create(TOPIC, 5)
    other.commit()
    assert found.topics.partition_count(TOPIC) == other.topics.partition_count(TOPIC) == 3


def test_topics_are_listed_by_partition_and_namespace(opened):
    found = opened()
    found.namespaces.create("acme/eu")
    for name, count in (("public/default/b", 2), ("public/default/a", 0), ("acme/eu/c", 0)):
        found.topics.create(parse(name), count)
    assert found.topics.complete_names("public/default") == [
        f"persistent://public/default/{name}" for name in ("a", "b-partition-0", "b-partition-1")]
    assert found.topics.complete_names("acme/eu") == ["persistent://acme/eu/c"]
    assert found.topics.complete_names("acme/us") == []


def test_a_topic_needs_its_namespace(opened):
    with pytest.raises(Refusal, match="Namespace acme/eu does not exist"):
        opened().topics.create(parse("acme/eu/c"), 0)


def test_subscriptions_are_found_by_the_beginning_of_their_partition(opened):
    """In the order of names, and so many at most: a broker may have any number."""
    found, a, ab = opened(), TOPIC, TOPIC.partition_name(0)
    ids = {str(name): found.partitions.create(name) for name in (ab, a)}
    for name in (a, ab):
        for subscription in ("z", "y"):
            found.subscriptions.create(ids[str(name)], subscription)
    rows = [(ids[str(name)], str(name), subscription) for name in (a, ab) for subscription in ("y", "z")]
    assert found.subscriptions.below("", 9) == found.subscriptions.below(str(a), 9) == rows
    assert found.subscriptions.below(str(a), 3) == rows[:3]
    assert found.subscriptions.below(str(ab), 9) == rows[2:] and found.subscriptions.below("persistent://q/", 9) == []


def test_partitions_subscriptions_and_epochs_are_kept(opened):
    found = opened()
    partition_id = found.partitions.create(TOPIC)
    other_id = found.partitions.create(TOPIC.partition_name(0))
    for name in ("b", "a"):
        found.subscriptions.create(partition_id, name)
    found.subscriptions.create(other_id, "a")
    found.partitions.set_topic_epoch(other_id, 7)
    found.commit()
    again = opened()
    assert again.partitions.find(TOPIC) == (partition_id, None)
    assert again.partitions.find(TOPIC.partition_name(0)) == (other_id, 7)
    assert sorted(again.subscriptions.ids(partition_id)) == ["a", "b"]
    assert list(again.subscriptions.ids(other_id)) == ["a"]


def test_a_namespace_goes_when_it_is_empty_and_its_policies_with_it(opened):
    """A namespace, tenant or topic that is created anew has none of the policies of its namesake."""
    found = opened()
    found.namespaces.create("acme/eu")
    found.topics.create(parse("acme/eu/c"), 0)
    for scope in ("acme", "acme/eu", "persistent://acme/eu/c", "public/default"):
        found.policies.set(scope, "limit", {"of": scope})
    assert not found.namespaces.delete("acme/eu")
    assert found.policies.of("acme/eu") == {"limit": {"of": "acme/eu"}}
    found.topics.delete(parse("acme/eu/c"))
    assert found.namespaces.delete("acme/eu")
    assert (found.tenants.names(), found.namespaces.of_tenant("acme")) == (["acme", "public", "pulsar"], [])
    found.tenants.delete("acme")
    found.commit()
    again = opened()
    assert again.tenants.names() == ["public", "pulsar"]
    assert [again.policies.of(scope) for scope in ("acme", "acme/eu", "persistent://acme/eu/c")] == [{}, {}, {}]
    assert again.policies.of("public/default") == {"limit": {"of": "public/default"}}


def test_policies_are_kept_until_they_are_taken_away(opened):
    found = opened()
    for value in (1, [True, None], {"a": "b"}):
        found.policies.set("public/default", "x", value)
        found.commit()
        assert opened().policies.of("public/default") == {"x": value}
    found.policies.set("public/default", "x", None)
    assert found.policies.of("public/default") == {}


def versions(catalogue, topic=TOPIC):
    return [version for version, _, _ in catalogue.schemas.versions(topic)]


def test_versions_of_a_schema_are_kept_to_the_byte_and_counted_on_after_a_deletion(opened):
    found, data = opened(), bytes(range(256))
    assert found.schemas.add(TOPIC, 0, 4, b"a hash", {"a": "b"}, data)
    assert found.schemas.add(TOPIC, 1, 4, b"another", {}, b"")
    found.commit()
    again = opened()
    assert again.schemas.versions(TOPIC) == [(0, 4, b"a hash"), (1, 4, b"another")]
    kind, made, properties, kept = again.schemas.get(TOPIC, 0)
    assert (kind, properties, kept) == (4, {"a": "b"}, data) and abs(time.time() * 1000 - made) < 60_000
    assert not again.schemas.add(TOPIC, 1, 4, b"late", {}, b"")
    assert (again.schemas.delete(TOPIC), again.schemas.delete(TOPIC)) == (2, 3)
    assert again.schemas.versions(TOPIC) == [(3, None, b"")] and again.schemas.get(TOPIC, 0) is None
    again.schemas.forget(TOPIC)
    assert again.schemas.delete(TOPIC) == 0


def test_schemas_go_with_their_topic_and_with_their_namespace(opened):
    """Schemas are deleted with their topic, or with their namespace if their topic was never created. Schemas of
    other namespaces stay.
    """
    found = opened()
    found.namespaces.create("acme/eu")
    found.namespaces.create("acme/eu0")
    there, partition, unmade, elsewhere = (parse(name) for name in (
        "acme/eu/a", "acme/eu/a-partition-0", "non-persistent://acme/eu/b", "acme/eu0/a"))
    for topic in (there, unmade, elsewhere):
        found.schemas.add(topic, 0, 1, b"", {}, b"")
    found.topics.create(there, 0)
    found.topics.delete(partition)      # a partition has no schemas of its own
    assert versions(found, there) == [0]
    found.topics.delete(there)
    assert [versions(found, topic) for topic in (there, unmade, elsewhere)] == [[], [0], [0]]
    assert found.namespaces.delete("acme/eu")
    assert [versions(found, topic) for topic in (unmade, elsewhere)] == [[], [0]]


# -- changes of other processes ----------------------------------------------------------------------------------------

def test_changed_tells_once_what_others_have_committed(opened):
    """`changed` is true once after each commit of another process, and false before it, so that caches are emptied
    just when needed.
    """
    reader, writer = opened(), opened()
    reader.changed()
    assert not reader.changed()
    writer.topics.create(TOPIC, 0)
    assert not reader.changed()                     # not committed yet
    writer.commit()
    assert reader.changed()
    assert reader.topics.partition_count(TOPIC) == 0
    assert not reader.changed()


# -- upgrades ----------------------------------------------------------------------------------------------------------

@pytest.fixture
def version_1(tmp_path):
    """Return the path of a catalogue that a broker of format version 1 wrote."""
    with tarfile.open(Path(__file__).parent / "formats" / "version-1.tar.xz") as found:
        found.extraction_filter = getattr(tarfile, "data_filter", None)
        found.extractall(tmp_path)
    for path in list(tmp_path.rglob("catalogue.sqlite*")):      # and its write-ahead log: the process was killed
        path.rename(tmp_path / path.name)
    return tmp_path / "catalogue.sqlite"


def tables(path):
    raw = sqlite3.connect(path)
    names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    found = {name: raw.execute(f"SELECT * FROM {name}").fetchall() for (name,) in names}
    version = raw.execute("PRAGMA user_version").fetchone()[0]
    raw.close()
    return version, found


def test_a_catalogue_of_version_1_is_upgraded_where_it_is(version_1, opened):
    version, before = tables(version_1)
    assert (version, "policies" in before) == (1, False)
    found = opened()
    found.policies.set("public/default", "x", 1)
    found.commit()
    version, after = tables(version_1)
    assert version == VERSION and after.keys() >= before.keys() | {"policies", "sums", "properties"}
    assert {name: after[name] for name in before} == before
    assert after["policies"] == [("public/default", "x", "1")]
    assert opened().policies.of("public/default") == {"x": 1}      # opening it again upgrades nothing


def test_a_catalogue_of_version_3_is_upgraded_where_it_is(tmp_path, opened):
    """Upgrading a catalogue of version 3 keeps the checksums of its tables, and adds checksums to the new tables."""
    path = tmp_path / "catalogue.sqlite"
    path.write_bytes(lzma.decompress((Path(__file__).parent / "formats" / "catalogue-3.sqlite.xz").read_bytes()))
    version, before = tables(path)
    found = opened()
    _, after = tables(path)
    assert version == 3
    assert {name: rows for name, rows in after.items() if name in before and name != "sums"} == \
        {name: rows for name, rows in before.items() if name != "sums"}
    assert found.policies.of("acme/eu") == {"messageTTL": 60}
    orders = parse("acme/eu/orders")
    found.topics.create(parse("acme/eu/more"), 0)
    found.properties.set("acme/eu", {"a": "b"})
    found.schemas.add(orders, 0, 1, b"hash", {}, b"\0data")
    found.commit()
    sums = dict(found.connection.execute("SELECT name, value FROM sums"))
    assert sums == {table: sum_of(found.connection, table) for table in COLUMNS}


UPGRADE_KILLED = """
import os, signal, sys
from pathlib import Path
from geminga.storage.catalogue.catalogue import Catalogue, open_catalogue
Catalogue.commit = lambda self: os.kill(os.getpid(), signal.SIGKILL)
open_catalogue(Path(sys.argv[1]))
"""


def test_an_upgrade_that_is_cut_short_did_not_happen(version_1, opened):
    before = tables(version_1)
    assert subprocess.run([sys.executable, "-c", UPGRADE_KILLED, version_1]).returncode == -signal.SIGKILL
    assert tables(version_1) == before
    assert opened().policies.of("public/default") == {}


# -- files that cannot be opened ---------------------------------------------------------------------------------------

def test_a_newer_version_is_refused_by_name(tmp_path, opened):
    opened().close()
    path = tmp_path / "catalogue.sqlite"
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {VERSION + 1}")
    raw.close()
    with pytest.raises(CatalogueError, match=rf"{path} has format version {VERSION + 1}; this program reads {VERSION}"):
        open_catalogue(path)


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path):
    path = tmp_path / "catalogue.sqlite"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(CatalogueError, match=str(path)):
        open_catalogue(path)


def test_a_catalogue_that_was_only_begun_is_made_again(tmp_path):
    """A catalogue is created in an empty file, which a process killed before its first transaction leaves."""
    path = tmp_path / "catalogue.sqlite"
    Catalogue(path).close()
    path.touch()
    found = open_catalogue(path)
    assert found.namespaces.exists("public/default")
    found.close()


def test_what_is_deleted_takes_its_properties_with_it(opened):
    found = opened()
    found.namespaces.create("acme/eu")
    topic = parse("acme/eu/t")
    found.topics.create(topic, 0)
    partition_id = found.partitions.create(topic)
    subscription_id = found.subscriptions.create(partition_id, "sub")
    for scope in ("acme/eu", str(topic), subscription_id):
        found.properties.set(scope, {"of": str(scope)})
        assert found.properties.of(scope) == {"of": str(scope)}
    assert not found.namespaces.delete("acme/eu")
    found.partitions.delete(partition_id)
    assert found.topics.partition_count(topic) is None and found.partitions.find(topic) is None
    assert found.namespaces.delete("acme/eu")
    assert [found.properties.of(scope) for scope in ("acme/eu", str(topic), subscription_id)] == [{}, {}, {}]


def test_a_topic_that_cannot_be_made_keeps_nobody_from_writing(opened):
    """A topic whose namespace has just been deleted is refused, and the transaction does not stay open."""
    first, second = opened(), opened()
    with pytest.raises(Refusal):
        first.topics.create(parse("nobody/nothing/t"), 0)
    assert not first.is_changing
    second.namespaces.create("acme/eu")
    second.commit()


def test_what_this_process_has_written_counts_as_a_change_too(opened):
    """`changed` is true after writes of the same process too, because the admin process has caches of its own."""
    found = opened()
    found.changed()
    found.namespaces.create("acme/new")
    found.commit()
    assert found.changed()


# -- rights ------------------------------------------------------------------------------------------------------------

def test_rights_have_a_version_that_goes_up_with_them_and_with_nothing_else(opened):
    found = opened()
    found.namespaces.create("acme/eu")
    seen = [found.policies.rights_version()]
    for scope, name, value in (
            ("acme", "adminRoles", ["ops"]), ("acme/eu", "permissions", {"svc": ["produce"]}),
            ("acme/eu", "subscriptionPermissions", {"audit": ["a"]}), ("acme/eu", "subscriptionAuthMode", "Prefix"),
            ("acme/eu", "permissions", None)):
        found.policies.set(scope, name, value)
        seen.append(found.policies.rights_version())
    assert seen == sorted(set(seen))
    found.policies.set("acme/eu", "retention", {})
    found.topics.create(TOPIC, 0)
    assert found.policies.rights_version() == seen[-1]


def test_rights_go_with_what_they_were_for(opened):
    """Rights are deleted with their topic or tenant, so a new one of the same name has none of them."""
    found = opened()
    found.namespaces.create("acme/eu")
    base = parse("persistent://acme/eu/parted")
    namesake = "persistent://acme/eu/parted-partition-list"
    found.topics.create(base, 2)
    for scope in (str(base), f"{base}-partition-1", namesake, "persistent://acme/eu/never-made"):
        found.policies.set(scope, "permissions", {"svc": ["produce"]})
    found.topics.delete(base)
    assert [found.policies.of(scope) for scope in (str(base), f"{base}-partition-1")] == [{}, {}]
    assert found.policies.of(namesake)
    before = found.policies.rights_version()
    assert found.namespaces.delete("acme/eu")
    assert [found.policies.of(scope) for scope in (namesake, "persistent://acme/eu/never-made")] == [{}, {}]
    assert found.policies.rights_version() > before
    found.policies.set("acme", "adminRoles", ["ops"])
    found.tenants.delete("acme")
    assert not found.policies.of("acme")


def test_rights_to_a_topic_that_keeps_nothing_stay_while_nobody_uses_it(opened):
    topic = parse("non-persistent://acme/eu/ticks")
    found = opened()
    found.namespaces.create("acme/eu")
    found.topics.create(topic, 0)
    for name, value in (("permissions", {"svc": ["produce"]}), ("maxConsumers", 1)):
        found.policies.set(str(topic), name, value)
    found.topics.delete(topic, for_now=True)
    assert found.policies.of(str(topic)) == {"permissions": {"svc": ["produce"]}}
    found.topics.create(topic, 0)
    found.topics.delete_non_persistent()
    assert found.policies.of(str(topic)) == {"permissions": {"svc": ["produce"]}}
    found.topics.delete(topic)
    assert not found.policies.of(str(topic))


def test_each_connection_syncs_each_commit(opened):
    """Each connection syncs at each commit, so that a power cut undoes no answered change."""
    one = opened()
    assert one.connection.execute("PRAGMA synchronous").fetchone() == (2,)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_programs_beside_the_broker_read_no_catalogue_of_another_version(opened, tmp_path, version):
    """A program beside the broker refuses a catalogue of another version: only the broker upgrades it, when it
    starts.
    """
    opened().connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(CatalogueError, match=f"version {version}"):
        open_to_read(tmp_path / "catalogue.sqlite")


# -- names of partitions -----------------------------------------------------------------------------------------------

def test_a_topic_does_not_take_over_topics_with_the_names_of_its_partitions(opened):
    found = opened()
    assert found.topics.create(TOPIC.partition_name(7), 0)
    found.commit()
    for change in (lambda: found.topics.create(TOPIC, 3), lambda: opened().topics.create(TOPIC, 8)):
        with pytest.raises(NameTaken, match="-partition-7 exists as a topic of its own"):
            change()
    assert not found.is_changing and found.topics.create(TOPIC, 0)      # without partitions it needs no such name


def test_a_topic_grows_up_to_a_topic_with_the_name_of_a_partition(opened):
    found = opened()
    found.topics.create(TOPIC, 2)
    found.write("INSERT INTO topics VALUES (?, ?, 0, 0)", (str(TOPIC.partition_name(3)), TOPIC.namespace))
    found.commit()
    with pytest.raises(NameTaken):
        found.topics.set_partition_count(TOPIC, 4)
    assert not found.is_changing and found.topics.partition_count(TOPIC) == 2
    found.topics.set_partition_count(TOPIC, 3)
    assert found.topics.exists(TOPIC.partition_name(2)) and found.topics.exists(TOPIC.partition_name(3))


def test_a_partition_of_a_partitioned_topic_is_no_topic_of_its_own(opened):
    found = opened()
    found.topics.create(TOPIC, 2)
    for number in (1, 2):
        with pytest.raises(NameTaken):
            found.topics.create(TOPIC.partition_name(number), 0)


def test_each_stored_partition_is_listed_once_after_a_start(opened):
    """A killed deletion and older versions leave partitions without a topic, or with two."""
    found, other = opened(), parse("other")
    for name in (TOPIC.partition_name(1), TOPIC.partition_name(5), other.partition_name(0), parse("gone")):
        found.partitions.create(name)
    found.topics.create(TOPIC.partition_name(1), 0)
    found.write("INSERT INTO topics VALUES (?, ?, 3, 0)", (str(TOPIC), TOPIC.namespace))
    assert sorted(orphans.mend(found)) == sorted(map(str, (other.partition_name(0), parse("gone"))))
    assert orphans.mend(found) == []
    # The partition 5 may be one that a killed request was about to add.
    assert found.topics.complete_names(TOPIC.namespace) == sorted(
        map(str, (*map(TOPIC.partition_name, range(3)), other.partition_name(0), parse("gone"))))
