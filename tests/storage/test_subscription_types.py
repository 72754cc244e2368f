"""The type of a durable subscription outlives its consumers, its topic in memory and the process, for reports of
subscriptions that nobody consumes.
"""
import numpy as np
import pytest
from crc32c import crc32c

from geminga.storage import format
from geminga.storage.offline import backup, restore
from geminga.storage.topics.subscription import SubType

from .rig import Rig

TYPES = tuple(SubType.values())


def told(rig, subscription="sub", topic="t"):
    """Return the type of the subscription, as `geminga why`, the table and the statistics agree on."""
    why = rig.asked("why", topic, subscription=subscription)["type"]
    statistics = rig.shown("stats", topic, earliest=False, publishers=False, consumers=False)
    assert statistics["subscriptions"][subscription]["type"] == why
    return why


def leave(rig, consumer):
    rig.run(rig.command("close_consumer", consumer_id=consumer.object_id, request_id=rig.number()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES, ids=SubType.Name)
def test_a_type_is_told_after_a_kill_and_after_a_stop(rigs, rig, kind):
    leave(rig, rig.consumer("t", subType=kind))
    for next_life in (rigs.crash, rigs.restart, rigs.crash):
        rig = next_life(rig)
        assert told(rig) == SubType.Name(kind)


def test_the_type_of_the_last_consumers_counts(rigs, rig):
    for kind in (SubType.Shared, SubType.Exclusive, SubType.Key_Shared):
        leave(rig, rig.consumer("t", subType=kind))
        assert told(rig) == SubType.Name(kind)
    rig = rigs.restart(rig)
    leave(rig, rig.consumer("t", subType=SubType.Failover))
    assert told(rigs.crash(rig)) == "Failover", "the journal's type is newer than the state file's"


def test_a_new_subscription_of_the_same_name_has_no_type(rigs, rig):
    rig.consumer("t", subType=SubType.Shared)
    rig.asked("unsubscribe", "t", subscription="sub", force=True)
    rig.asked("subscribe", "t", subscription="sub")
    assert told(rig) == "None"
    assert told(rigs.crash(rig)) == "None"


def test_a_backup_has_the_type(rig, tmp_path):
    leave(rig, rig.consumer("t", subType=SubType.Key_Shared))

    def cut(question):
        rig.run()
        return rig.run(rig.tell(question)).answered[0]["answer"]

    backup.make(rig.data_dir, tmp_path / "backups", lambda: cut("backup-begin"),
                lambda: [cut(question) for question in ("backup-hold", "backup-cut")][1:])
    restore.restore(backup.backups(tmp_path / "backups")[-1], tmp_path / "restored")
    restored = Rig(tmp_path / "restored", now_ms=rig.now_ms)
    assert told(restored) == "Key_Shared"
    restored.close()


def test_a_consumer_of_the_same_type_writes_nothing(rig, monkeypatch):
    """Consumers come and go often, and their type almost never changes."""
    noted = []
    note = rig.owner.decisions.note
    monkeypatch.setattr(rig.owner.decisions, "note", lambda partition, op: (noted.append(op), note(partition, op)))
    for kind, ops in ((SubType.Shared, 1), (SubType.Shared, 0), (SubType.Failover, 1), (SubType.Failover, 0)):
        leave(rig, rig.consumer("t", subType=kind))
        assert sum(op[0] == format.TYPE_CHANGED for op in noted) == ops
        noted.clear()
    leave(rig, rig.consumer("t", "reader", durable=False))
    assert not any(op[0] == format.TYPE_CHANGED for op in noted)


def test_a_state_that_an_older_program_wrote_has_no_types(rigs, tmp_path):
    """Types stand behind everything that an older program reads, and it writes 0 as their number."""
    rig = Rig(tmp_path / "older")
    leave(rig, rig.consumer("t", subType=SubType.Shared))
    rig.publish(rig.producer("t"), b"a")
    rig.close()
    [path] = rig.data_dir.glob("partitions/*/state")
    copy = path.read_bytes()[:path.stat().st_size // 2]
    head = np.frombuffer(copy, format.STATE_HEADER, 1).copy()
    body = copy[format.HEADER_SIZE:-int(head["types"][0]) * format.TYPE_ROW.itemsize]
    assert len(body) == int(head["size"][0]) - format.TYPE_ROW.itemsize
    head["types"], head["size"], head["checksum"] = 0, len(body), 0
    head["checksum"] = crc32c(body, crc32c(head.tobytes()))
    path.write_bytes((head.tobytes() + body) * 2)
    again = rigs.on(rig.data_dir)
    assert told(again) == "None"
    assert [payload for _, payload in again.receive(again.consumer("t", subType=SubType.Failover))] == [b"a"]
    assert told(rigs.crash(again)) == "Failover"
