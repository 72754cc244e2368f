"""The cut of a backup: it is consistent, whatever happens to partitions before the cut, or between the cut and the
copying of their files.
"""
import contextlib
import errno
import threading
from pathlib import Path

import pytest

from geminga.proto import names
from geminga.storage import format
from geminga.storage.disk import syscalls
from geminga.storage.offline import backup, restore
from geminga.storage.offline.findings import Severity
from geminga.storage.offline.verify import walk
from geminga.storage.topics.subscription import SubType

from .disk import Disk
from .rig import Rig
from .test_compacted import Topic

BLOCK = b"x" * 900


@pytest.fixture
def taken(rigs, tmp_path):
    """Return taken(rig, before_cut, after_cut). It makes a backup, calls the two functions before and after the cut,
    and returns a process on the restored backup.
    """
    made = []

    def taken(rig, before_cut=lambda: None, after_cut=lambda: None):
        def cut():
            before_cut()
            rig.run()
            ask(rig, "backup-hold")
            found = [ask(rig, "backup-cut")]
            ask(rig, "backup-hold", is_over=True)
            after_cut()
            return found

        report = backup.make(rig.data_dir, tmp_path / "backups", lambda: ask(rig, "backup-begin"), cut)
        folder = tmp_path / f"restored-{len(made)}"
        restore.restore(backup.backups(tmp_path / "backups")[-1], folder)
        assert [str(found) for found in walk(folder) if found.severity > Severity.NOTE] == [] and report.bytes > 0
        made.append(Rig(folder, now_ms=rig.now_ms, **rig.settings))
        assert made[-1].recovered == 0
        return made[-1]
    yield taken
    for rig in made:
        rig.close()


def ask(rig, question, **fields):
    [answer] = rig.run(rig.tell(question, **fields)).answered
    return answer["answer"]


def name_of(topic):
    return names.parse(f"persistent://public/default/{topic}")


def filled(rigs, topics=("t",), **options):
    rig = rigs(**options)
    return rig, {topic: (rig.consumer(topic, subType=SubType.Shared), rig.producer(topic)) for topic in topics}


def left(rig, topic):
    return rig.receive(rig.consumer(topic, subType=SubType.Shared), 1_000)


def test_what_comes_before_the_cut_is_in_it_and_what_comes_behind_is_not(rigs, taken):
    rig, of = filled(rigs)
    consumer, producer = of["t"]
    first = rig.publish(producer, b"a", b"b", b"c")

    def before():
        rig.publish(producer, b"d")
        rig.run(rig.acks(consumer, first[0]))

    def after():
        rig.publish(producer, b"e")
        rig.run(rig.acks(consumer, first[1]))

    assert [payload for _, payload in left(taken(rig, before, after), "t")] == [b"b", b"c", b"d"]


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
def test_a_cleared_backlog_that_is_taken_back_behind_the_cut_can_be_taken_back_after_a_restore(
        rigs, taken, is_closed):
    """The cut has the subscription without its messages, so the catalogue's copy has to have the cleared backlog."""
    rig, of = filled(rigs, deleted_retention_s=86_400)
    positions = rig.publish(of["t"][1], b"a", b"b")
    rig.asked("clear", "t", subscription="sub")
    if is_closed:      # the backup uses the partition's files, as no owner has it in its cut
        rig.asked("unload", "t")
    [before] = rig.owner.catalogue.kept_topics.all()

    def take_back():
        assert rig.asked("take_backlog_back", "t", subscription="sub", number=before.id) == 2

    after = taken(rig, after_cut=take_back)
    assert rig.owner.catalogue.kept_topics.all() == []
    assert left(after, "t") == []
    assert after.owner.catalogue.kept_topics.all() == [before]
    assert after.asked("take_backlog_back", "t", subscription="sub", number=before.id) == 2
    assert [position for position, _ in left(after, "t")] == positions


def test_a_cleared_backlog_that_is_taken_back_before_the_cut_or_goes_with_its_topic_is_not_put_back(rigs, taken):
    rig, of = filled(rigs, ("t", "u"), deleted_retention_s=86_400)
    position = rig.publish(of["t"][1], b"a")
    rig.publish(of["u"][1], b"b")
    for topic in "t", "u":
        rig.asked("clear", topic, subscription="sub")
    [number] = {one.id for one in rig.owner.catalogue.kept_topics.all() if one.topic == str(name_of("t"))}

    def before():
        assert rig.asked("take_backlog_back", "t", subscription="sub", number=number) == 1

    def after():
        rig.asked("truncate", "u")
        rig.asked("delete", "u", force=True)

    copy = taken(rig, before, after)
    assert [one for one in copy.owner.catalogue.kept_topics.all() if one.subscription and one.id == number] == []
    assert [each for each, _ in left(copy, "t")] == position


def test_ledgers_that_come_go_or_are_sealed_meanwhile(rigs, taken):
    rig, of = filled(rigs)
    consumer, producer = of["t"]
    first = rig.publish(producer, *[BLOCK] * 10)

    def before():
        rig.owner.topics.roll(rig.partition("t"))
        rig.publish(producer, b"second")
        rig.run(rig.acks(consumer, *first))      # the first ledger is deleted
        rig.run(after_ms=1_000)
        rig.owner.topics.roll(rig.partition("t"))
        rig.publish(producer, b"third")

    def after():
        rig.owner.topics.roll(rig.partition("t"))
        rig.publish(producer, b"fourth")
        rig.owner.trimming.truncate(rig.partition("t"))

    before_ids = [ledger.ledger_id for ledger in rig.partition("t").ledgers]
    again = taken(rig, before, after)
    assert [payload for _, payload in left(again, "t")] == [b"second", b"third"]
    assert before_ids[0] not in [ledger.ledger_id for ledger in again.partition("t").ledgers]


def test_what_comes_after_a_backup_is_put_back_has_ids_that_nobody_had(rigs, taken):
    """A restored backup never gives messages ids that the old process gives out after the backup, on all kinds of
    topics, also after crashes.
    """
    topics = ("open", "closed", "empty", "never used")
    rig, of = filled(rigs, topics[:3])
    first = {topic: rig.publish(of[topic][1], b"a", b"b") if topic != "empty" else [] for topic in topics[:3]}
    rig.close_consumer(of["closed"][0])
    rig.owner.topics.unload(rig.partition("closed"))
    again = taken(rig)
    for topic in topics:
        producer = rig.producer(topic)
        first[topic] = first.get(topic, []) + rig.publish(producer, *[b"old"] * 5)
    for round_ in range(3):
        for topic in topics:
            before = len(rig.files(topic))
            positions = again.publish(again.producer(topic, producer_name=f"p{round_}"), b"new", b"new")
            ledger_ids, others = ({ledger_id for ledger_id, _ in of} for of in (positions, first[topic]))
            assert not ledger_ids & others, (round_, topic)
            assert positions[0][0] > max(first[topic])[0] and len(again.files(topic)) <= before + 1
        again = rigs.crash(again)
    assert [payload for _, payload in left(again, "open")] == [b"a", b"b"] + [b"new"] * 6


def test_partitions_that_are_made_opened_given_up_or_deleted_meanwhile(rigs, taken):
    topics = ("open", "closed", "closes", "opens", "goes", "went")
    rig, of = filled(rigs, topics)
    for topic, (_, producer) in of.items():
        rig.publish(producer, topic.encode())

    def unload(topic):
        rig.asked("unload", topic)

    def publish(topic, payload):
        rig.publish(rig.producer(topic), payload)

    unload("closed")
    unload("opens")

    def before():
        publish("opens", b"more")
        publish("closes", b"more")
        unload("closes")
        rig.asked("delete", "went", force=True)
        rig.consumer("new")
        publish("new", b"new")

    def after():
        publish("closed", b"too late")
        publish("closes", b"too late")
        rig.asked("delete", "goes", force=True)
        rig.consumer("later")
        publish("later", b"too late")
        rig.consumer("open", "later")

    again = taken(rig, before, after)
    found = {topic: [payload for _, payload in left(again, topic)]
             for topic in ("open", "closed", "closes", "opens", "new")}
    assert found == {
        "open": [b"open"],
        "closed": [b"closed"],
        "closes": [b"closes", b"more"],
        "opens": [b"opens", b"more"],
        "new": [b"new"],
    }
    assert again.asked("subscriptions", str(name_of("open"))) == ["sub"]
    for topic in ("later", "went", "goes"):
        assert again.owner.catalogue.partitions.find(name_of(topic)) is None, topic
    assert not any(format.partition_folder(again.data_dir, 1 + topics.index(topic)).exists()
                   for topic in ("went", "goes"))


def test_views_that_come_and_go_meanwhile(rigs, taken):
    rig, of = filled(rigs, compaction_threshold_bytes=1 << 40)
    producer = of["t"][1]
    found = rig.partition("t")

    def replace(payload):
        """Publish, truncate, and publish again.  Return the horizon of the empty view that truncating has made."""
        rig.publish(producer, payload)
        rig.asked("truncate", "t")
        rig.publish(producer, payload)
        return found.horizon

    replace(b"first")
    horizons = []
    again = taken(rig, lambda: horizons.append(replace(b"second")), lambda: replace(b"third"))
    there = again.owner.topics.find(name_of("t"))
    assert (there.view_number, there.horizon) == (2, horizons[0])
    assert [payload for _, payload in left(again, "t")] == [b"second"]


def test_files_that_a_view_shares_with_the_view_before_are_copied_once(rigs, taken, tmp_path, monkeypatch):
    """On another file system, where each file is copied, the next backup links them to the backup before."""
    def refused(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    renamed = Path.rename
    monkeypatch.setattr(Path, "rename",
                        lambda path, to: renamed(path, to) if path.name != "linked" or to.name.endswith(".removed")
                        else refused())
    monkeypatch.setattr(syscalls, "clone", refused)
    rig = rigs(roll_over_entries=4, compaction_threshold_bytes=1 << 40)
    topic = Topic(rig)
    first, *_ = topic.publish(*[(f"k{number}", b"1") for number in range(9)])
    topic.compact()
    taken(rig)
    topic.publish(("k0", b"2"), ("k1", b""))
    topic.compact()
    again = taken(rig)
    folders = [folder / backup.PARTITIONS / str(topic.partition.partition_id) / "compacted" / str(1 + number)
               for number, folder in enumerate(backup.backups(tmp_path / "backups"))]
    inodes = [{path.name: path.stat().st_ino for path in folder.iterdir()} for folder in folders]
    shared = {name for name, inode in inodes[1].items() if inodes[0].get(name) == inode}
    assert shared >= {f"{first[0]}{suffix}" for suffix in (".ledger", ".index", ".keys")}
    assert inodes[1].keys() - inodes[0].keys() == {f"{first[0]}.mask"}
    topic.moved(again)
    reader = topic.reader()
    reader.read()
    assert reader.values == topic.values


def test_what_only_a_recovery_knows_is_in_it(rigs, taken):
    """The cut has the recovered state of a partition that was not opened since its owner was killed."""
    rig, of = filled(rigs)
    consumer, producer = of["t"]
    positions = rig.publish(producer, b"a", b"b", b"c")
    rig.run(rig.acks(consumer, positions[1]))
    killed = rigs.crash(rig)
    assert not killed.owner.topics.by_name
    assert [payload for _, payload in left(taken(killed), "t")] == [b"a", b"c"]


def test_what_a_cut_has_is_not_undone_by_a_power_cut(rigs, tmp_path, monkeypatch):
    """The cut is synced even where receipts are not. Otherwise, after a power cut, ids in the backup would be given out
    again, and files that the backup has linked would be overwritten.
    """
    disk = Disk(tmp_path / "right", monkeypatch)
    rig = rigs.on(disk.data_dir, sync="none")
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = rig.publish(producer, b"a", b"b", b"c")
    rig.run(rig.acks(consumer, positions[1]))
    ask(rig, "backup-begin")
    format.linked_folder(rig.data_dir).mkdir(parents=True)
    ask(rig, "backup-hold")
    ask(rig, "backup-cut")
    disk.after_power_cut(tmp_path / "left", with_sizes=True)
    monkeypatch.undo()
    again = rigs.on(tmp_path / "left")
    assert left(again, "t") == [(positions[0], b"a"), (positions[2], b"c")]


def test_what_has_changed_since_the_backup_before_is_in_the_next(rigs, taken):
    """The next backup copies files again that changed without growing. An acknowledgement sets a bit, and a hole
    changes a number.
    """
    rig, of = filled(rigs)
    consumer, producer = of["t"]
    positions = rig.publish(producer, b"a", b"b", b"c", b"d", b"e")
    rig.receive(consumer)
    rig.run(rig.acks(consumer, positions[1]))
    rig.run(rig.redeliver(consumer, positions[2]))
    assert [payload for _, payload in left(taken(rig), "t")] == [b"a", b"c", b"d", b"e"]
    rig.run(rig.acks(consumer, positions[3]))
    rig.run(rig.redeliver(consumer, positions[2]))
    again = taken(rig)
    found = again.consumer("t", subType=SubType.Shared)
    given = again.given(again.run(again.flow(found, 100)), found)
    counts = [(position, redeliveries) for position, redeliveries, _ in given]
    assert counts == [(positions[0], 0), (positions[2], 2), (positions[4], 0)]


def test_a_cut_without_a_beginning_is_refused(rigs):
    rig, _ = filled(rigs)
    [answer] = rig.run(rig.tell("backup-cut")).answered
    assert "started again" in answer["text"]


def test_what_fails_leaves_nothing_behind(rigs, taken, tmp_path):
    rig, of = filled(rigs)
    rig.publish(of["t"][1], b"a")

    def fail():
        raise OSError("no")
    with pytest.raises(OSError, match="no"):
        backup.make(rig.data_dir, tmp_path / "failed", lambda: ask(rig, "backup-begin"), fail)
    assert [path.name for path in (tmp_path / "failed").iterdir()] == ["lock"]
    rig.owner.topics.roll(rig.partition("t"))      # changes that no backup asks for are not kept
    assert not format.linked_folder(rig.data_dir).exists()
    assert [payload for _, payload in left(taken(rig), "t")] == [b"a"]


def test_an_owner_that_still_writes_for_a_backup_that_failed_leaves_nothing_behind(rigs, tmp_path):
    """A backup ends with the first owner that refuses its cut; another one may write its own meanwhile."""
    rig, _ = filled(rigs)
    folder = format.linked_folder(rig.data_dir)

    def write_on() -> None:
        with contextlib.suppress(OSError):
            for number in range(10_000):
                (folder / f"cut-{number}").write_bytes(b"x")

    writer = threading.Thread(target=write_on)

    def fail():
        writer.start()
        raise OSError("no")
    with pytest.raises(OSError, match="no"):
        backup.make(rig.data_dir, tmp_path / "failed", lambda: ask(rig, "backup-begin"), fail)
    assert not folder.exists()
    writer.join()
    assert not folder.exists()


def test_where_files_can_share_blocks_space_is_given_back_within_those_that_a_backup_has(rigs, taken, tmp_path):
    (tmp_path / "source").write_bytes(bytes(8_192))
    with open(tmp_path / "source", "rb") as source, open(tmp_path / "target", "wb") as target:
        try:
            syscalls.clone(source.fileno(), target.fileno())
        except OSError:
            pytest.skip("this file system cannot")
    rig, of = filled(rigs)
    consumer, producer = of["t"]
    positions = rig.publish(producer, *[b"%03d" % number + 20 * BLOCK for number in range(40)])
    again = taken(rig)
    [ledger] = rig.partition("t").ledgers
    before = ledger.ledger_path.stat().st_blocks
    assert not ledger.is_shared
    rig.run(rig.acks(consumer, *positions[:39]))
    rig.run(after_ms=1_000)
    assert ledger.ledger_path.stat().st_blocks < before
    assert len(left(taken(rig), "t")) == 1 and len(left(again, "t")) == 40
    [first, _] = backup.backups(tmp_path / "backups")
    restore.restore(first, tmp_path / "first")
    assert [str(found) for found in walk(tmp_path / "first")] == []
