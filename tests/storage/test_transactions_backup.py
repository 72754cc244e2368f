"""Transactions in backups: what is committed on all owners, or on none, while owners are cut one after the other."""
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.offline import backup, restore
from geminga.storage.offline.findings import Severity
from geminga.storage.offline.verify import walk
from geminga.storage.transactions import held_commits

from .test_backup import ask
from .test_coordinator import OURS, SUCCESS, THEIRS, Two, begun, publish_in, texts


@pytest.fixture
def two(tmp_path):
    made = Two(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def restored(two, tmp_path):
    """restored(between): a backup, restored, and served by two owners; between(): called between the owners' cuts."""
    made = []

    def restored(between=lambda: None, *, order=(0, 1)):
        def begin():
            for rig in two.rigs:
                ask(rig, "backup-begin")

        def cut():
            for rig in two.rigs:
                ask(rig, "backup-hold")
            cuts = [ask(two.rigs[order[0]], "backup-cut")]
            between()
            cuts.append(ask(two.rigs[order[1]], "backup-cut"))
            for rig in two.rigs:
                ask(rig, "backup-hold", is_over=True)
            return cuts

        backup.make(two.data_dir, tmp_path / "backups", begin, cut)
        restore.restore(backup.backups(tmp_path / "backups")[-1], tmp_path / "restored")
        assert [str(found) for found in walk(tmp_path / "restored") if found.severity > Severity.NOTE] == []
        made.append(Two(tmp_path / "restored"))
        open_both(made[-1])
        return made[-1]
    yield restored
    for each in made:
        each.close()


def open_both(two):
    """Open the topics, whose owners ask how their transactions have ended."""
    for rig, topic in zip(two.rigs, (OURS, THEIRS), strict=True):
        rig.consumer(topic, "opens-it")
    two.pass_on()


def stored(two):
    return [texts(two.rigs[0], OURS), texts(two.rigs[1], THEIRS)]


def test_a_commit_that_was_answered_is_whole_in_a_restored_copy(two, restored):
    bits = begun(two)
    two.rigs[0].end(bits)
    assert two.pass_on() == [SUCCESS]
    assert stored(restored()) == [[b"a"], [b"a"]]


def test_what_is_open_is_aborted_in_a_restored_copy(two, restored):
    """Messages that it publishes later would be missing, so a client must not commit the rest."""
    bits = begun(two)
    again = restored()
    assert stored(again) == [[], []] and again.rigs[0].owner.coordinator.transactions.active == 0
    assert again.rigs[0].partition(OURS).limit is again.rigs[1].partition(THEIRS).limit is None
    assert again.rigs[0].end(bits) == [api.TransactionNotFound]
    two.rigs[0].end(bits)
    assert two.pass_on() == [SUCCESS] and stored(two) == [[b"a"], [b"a"]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["coordinator first", "participant first"])
def test_a_decision_that_has_not_reached_all_owners_is_whole_in_a_restored_copy(two, restored, order):
    bits = begun(two)
    assert two.rigs[0].end(bits) == []
    assert stored(restored(order=order)) == [[b"a"], [b"a"]]
    assert two.pass_on() == [SUCCESS]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["coordinator first", "participant first"])
def test_a_decision_that_is_carried_out_between_the_cuts_is_whole_in_a_restored_copy(two, restored, order):
    bits = begun(two)
    assert two.rigs[0].end(bits) == []
    assert stored(restored(two.pass_on, order=order)) == [[b"a"], [b"a"]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["coordinator first", "participant first"])
def test_a_commit_between_the_cuts_waits_and_is_in_no_part_of_a_restored_copy(two, restored, order):
    first, second = two.rigs
    producers = first.producer(OURS), second.producer(THEIRS)
    bits = first.new()
    first.add(bits, OURS, THEIRS)
    two.pass_on()

    def between():
        for rig, producer in zip(two.rigs, producers, strict=True):
            assert len(publish_in(rig, bits, producer, b"a").receipts) == 1
        assert first.end(bits) == two.pass_on() == []

    assert stored(restored(between, order=order)) == [[], []]
    assert two.pass_on() == [SUCCESS] and stored(two) == [[b"a"], [b"a"]]


def test_commits_do_not_wait_for_ever_for_a_backup_that_has_died(two):
    bits = begun(two)
    first = two.rigs[0]
    ask(first, "backup-hold")
    assert first.end(bits) == two.pass_on() == []
    first.run(after_ms=held_commits.HELD_MS)
    assert two.pass_on() == []
    first.run(after_ms=1)
    assert two.pass_on() == [SUCCESS] and stored(two) == [[b"a"], [b"a"]]


def test_a_cut_that_comes_when_commits_do_not_wait_any_more_is_refused(two, tmp_path):
    first = two.rigs[0]
    (tmp_path / "data" / "backup" / "linked").mkdir(parents=True)
    for wait_ms in (None, held_commits.CUT_MS + 1):
        ask(first, "backup-begin")
        if wait_ms is not None:
            ask(first, "backup-hold")
            first.run(after_ms=wait_ms)
        [answer] = first.run(first.tell("backup-cut")).answered
        assert "transactions" in answer["text"]


def test_an_abort_does_not_wait_for_a_backup_and_a_commit_behind_it_is_refused(two):
    first, bits = two.rigs[0], begun(two)
    ask(first, "backup-hold")
    assert first.end(bits) == []
    first.end(bits, api.ABORT, connection=7)
    two.pass_on()
    found = first.run(first.tell("backup-hold", is_over=True))
    [refusal] = [command.endTxnResponse for command in found.commands(api.BaseCommand.END_TXN_RESPONSE)]
    assert refusal.error in (api.InvalidTxnStatus, api.TransactionNotFound)
    assert stored(two) == [[], []]
