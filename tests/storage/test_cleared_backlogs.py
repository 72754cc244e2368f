"""Cleared backlogs that a policy keeps: taken back exactly, whatever is acknowledged, reset or killed meanwhile."""
import random

import pytest

from geminga.storage.offline import verify
from geminga.storage.open_topics import durability
from geminga.storage.owner.owner_pass import TICK_MS

from ..simulation.disk import Fate, Killed
from . import transacting
from .rig import Rig
from .test_priority import priority
from .test_simulated import Crashing
from .transacting import FIRST, SECOND
from .transactional import TransactionalRig

TOPIC = "persistent://public/default/t"
DAY_S = 86_400
SHARED = 1


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "data", deleted_retention_s=DAY_S, roll_over_entries=7)
    yield rig
    rig.close()


def left(rig, name="s"):
    """Return {(ledger, entry, message)} of what a subscription has left, and check its totals."""
    partition = rig.partition(TOPIC)
    cursor = partition.subscriptions[name, True].cursor
    partition.check()
    found = set()
    for ledger in partition.ledgers:
        for entry_id in cursor.all_unacknowledged(ledger, ledger.entries).tolist():
            bits = cursor.parts.get(ledger.ledger_id, {}).get(entry_id, (1 << int(ledger.messages[entry_id])) - 1)
            found |= {(ledger.ledger_id, entry_id, at) for at in range(bits.bit_length()) if bits >> at & 1}
    assert partition.next_message - cursor.since == len(found) + sum(cursor.totals), cursor.totals
    return found


def kept(rig):
    return rig.owner.catalogue.kept_topics.all()


def take_back(rig, number=None):
    number = kept(rig)[-1].id if number is None else number
    return rig.asked("take_backlog_back", TOPIC, subscription="s", number=number)


def clear(rig, **more):
    rig.asked("clear", TOPIC, subscription="s", **more)


def whole(positions):
    return {(*position, 0) for position in positions}


def ticks(rig, count=4, after_ms=TICK_MS):
    for _ in range(count):
        rig.run(after_ms=after_ms)


def filled(rig, count=20):
    """Return a consumer and the positions of messages that it was delivered and has not acknowledged."""
    consumer, producer = rig.consumer(TOPIC, "s", subType=SHARED), rig.producer(TOPIC)
    positions = [position for _ in range(count // 10) for position in rig.publish(producer, *[b"x"] * 10)]
    assert [position for position, _ in rig.receive(consumer)] == positions
    return consumer, positions


class Life:
    """A subscription, and sets of what it should have left and what its cleared backlogs should have."""

    def __init__(self, seed, rig, folder):
        self.chance, self.rig, self.folder, self.owners = random.Random(seed), rig, folder, [rig]
        self.left, self.published, self.cleared = set(), [], {}
        self.begin()

    def begin(self):
        self.consumer = self.rig.consumer(TOPIC, "s", subType=SHARED)
        self.producer = self.rig.producer(TOPIC)

    def publish(self):
        sizes = [self.chance.choice((1, 1, 3, 70)) for _ in range(self.chance.randrange(1, 8))]
        messages = [(self.producer, b"x", {"batch": size}) for size in sizes]
        for position, size in zip(self.rig.run(self.rig.sends(*messages)).positions, sizes, strict=True):
            self.published.append((position, size))
            self.left |= {(*position, at) for at in range(size)}

    def acknowledge(self):
        """Acknowledge entries, and messages of a batch, whether they are left, cleared or neither."""
        for position, size in self.chance.sample(self.published, min(3, len(self.published))):
            gone = {at for at in range(size) if self.chance.random() < 0.5} if size > 1 else {0}
            words = [sum(1 << at for at in range(size) if at not in gone) >> shift & (1 << 64) - 1
                     for shift in range(0, size, 64)]
            self.rig.run(self.rig.ack_part(self.consumer, position, *words) if size > 1 else
                         self.rig.acks(self.consumer, position))
            for messages in (self.left, *self.cleared.values()):
                messages -= {(*position, at) for at in gone}

    def _keep(self, messages):
        if messages:
            [number] = {one.id for one in kept(self.rig)} - self.cleared.keys()
            self.cleared[number] = set(messages)

    def clear(self):
        self.rig.now_ms += 1
        clear(self.rig)
        self._keep(self.left)
        self.left = set()

    def skip(self):
        count = self.chance.randrange(1, 6)
        self.rig.now_ms += 1
        self.rig.asked("skip", TOPIC, subscription="s", entries=count)
        entries = sorted({place[:2] for place in self.left})[:count]
        self._keep(gone := {place for place in self.left if place[:2] in entries})
        self.left -= gone

    def reset(self):
        if not self.published:
            return
        position = self.chance.choice(self.published)[0]
        self.rig.now_ms += 1
        self.rig.asked("reset", TOPIC, subscription="s", position=position)
        self._keep({place for place in self.left if place[:2] < position})
        stored = {ledger.ledger_id for ledger in self.rig.partition(TOPIC).ledgers}
        self.left = {(*each, at) for each, size in self.published if each >= position and each[0] in stored
                     for at in range(size)}
        self.begin()

    def take_back(self):
        if self.cleared:
            number = self.chance.choice(list(self.cleared))
            before = len(self.left)
            self.left |= self.cleared.pop(number)
            assert take_back(self.rig, number) == len(self.left) - before
            self.begin()

    def kill(self):
        self.rig = self.rig.crashed(self.folder / str(len(self.owners)))
        self.owners.append(self.rig)
        self.begin()

    def unload(self):
        self.rig.asked("unload", TOPIC)
        self.begin()

    def live(self):
        steps = [self.publish] * 4 + [self.acknowledge] * 4 + [self.clear] * 2 + [self.skip, self.reset, self.kill,
                                                                                   self.unload] + [self.take_back] * 2
        for _ in range(60):
            self.chance.choice(steps)()
            assert left(self.rig) == self.left
        while self.cleared:
            self.take_back()
            assert left(self.rig) == self.left
        given = {(*position, at) for position, words in self.given() for at in words}
        assert given == self.left and kept(self.rig) == []

    def given(self):
        """Yield (position, its messages) of what a new consumer gets."""
        sizes = dict(self.published)
        for position, _, words in self.rig.given(self.rig.run(self.rig.flow(self.consumer, 1 << 20)), self.consumer):
            bits = sum((word & (1 << 64) - 1) << 64 * at for at, word in enumerate(words)) if words else \
                (1 << sizes[position]) - 1
            yield position, [at for at in range(sizes[position]) if bits >> at & 1]


@pytest.mark.parametrize("seed", range(12))
def test_what_comes_back_is_what_was_left_less_what_was_acknowledged_since(seed, rig, tmp_path):
    life = Life(seed, rig, tmp_path)
    life.live()
    for owner in life.owners:
        owner.close()
    assert list(verify.walk(life.rig.data_dir)) == []


@pytest.mark.parametrize("kind", [0, 2], ids=["Exclusive", "Failover"])
def test_a_cumulative_acknowledgement_means_what_was_delivered_before_the_clear_or_since(rig, kind):
    """A consumer that goes on behind the clear has never had what waited, so this is not acknowledged."""
    consumer = rig.consumer(TOPIC, "s", subType=kind)
    positions = rig.publish(producer := rig.producer(TOPIC), *[b"x"] * 10)
    rig.run(rig.flow(consumer, 6))
    clear(rig)
    rig.run(rig.acks(consumer, positions[1], cumulative=True))
    assert take_back(rig) == 8 and left(rig) == whole(positions[2:])

    consumer = rig.consumer(TOPIC, "s", subType=kind)
    assert len(rig.receive(consumer, 3)) == 3
    clear(rig)
    [new] = rig.publish(producer, b"new")
    rig.run(rig.acks(consumer, new, cumulative=True))
    assert take_back(rig) == 5 and left(rig) == whole(positions[5:])

    clear(rig)
    rig.asked("reset", TOPIC, subscription="s", position=positions[0])
    consumer = rig.consumer(TOPIC, "s", subType=kind)
    rig.receive(consumer)
    rig.run(rig.acks(consumer, positions[7], cumulative=True))
    take_back(rig)
    assert left(rig) == whole([*positions[8:], new])


def test_the_ledgers_stay_until_the_time_is_over_and_go_then(rig):
    filled(rig, 50)
    ledgers = rig.files(TOPIC)
    clear(rig)
    ticks(rig)
    [one] = kept(rig)
    assert rig.files(TOPIC) == ledgers and len(ledgers) > 4
    assert (one.subscription, one.messages, one.until_ms - one.deleted_ms) == ("s", 50, DAY_S * 1_000)
    assert one.bytes == sum(int(each.column("size")[:each.entries].sum()) for each in rig.partition(TOPIC).ledgers)
    counts = rig.counters.read()
    assert (counts["kept_topics"], counts["kept_backlogs"], counts["kept_bytes"]) == (0, 1, one.bytes)
    rig.asked("unload", TOPIC)
    rig.now_ms += DAY_S * 1_000
    ticks(rig)
    assert len(rig.files(TOPIC)) < 3 and kept(rig) == [] and rig.counters.read()["kept_backlogs"] == 0
    assert rig.asked("take_backlog_back", TOPIC, subscription="s", number=one.id) is None


def test_blocks_of_the_disk_are_not_given_back_while_the_backlog_is_kept(tmp_path):
    rig = Rig(tmp_path / "data", deleted_retention_s=DAY_S, journal_segment_bytes=8 << 20)
    consumer = rig.consumer(TOPIC, "s", subType=SHARED)
    positions = rig.publish(rig.producer(TOPIC), *[b"%03d" % number * 5_000 for number in range(100)])
    rig.receive(consumer)
    rig.run(rig.acks(consumer, *positions[1::2]))
    clear(rig)
    ticks(rig)
    take_back(rig)
    found = dict(rig.receive(rig.consumer(TOPIC, "s", subType=SHARED)))
    assert found == {position: b"%03d" % (2 * number) * 5_000 for number, position in enumerate(positions[::2])}
    rig.close()


def test_while_the_disk_is_full_it_is_given_up_and_nothing_more_is_kept(rig, monkeypatch, capfd):
    _, positions = filled(rig)
    clear(rig)
    monkeypatch.setattr(rig.owner.space, "look", lambda: None)
    rig.owner.space.is_full = True
    ticks(rig, 2)
    assert kept(rig) == []
    said = capfd.readouterr().err
    assert f"{TOPIC}: the backlog of s, which was cleared, is given up, because the disk is nearly full" in said
    rig.asked("reset", TOPIC, subscription="s", position=positions[-3])
    clear(rig)
    assert kept(rig) == [] and left(rig) == set()
    assert "cleared for good, because the disk is nearly full" in capfd.readouterr().err


def test_nothing_is_kept_without_a_policy_or_a_backlog_and_a_truncated_topic_keeps_none(rig, tmp_path):
    bare = Rig(tmp_path / "bare")
    filled(bare)
    clear(bare)
    assert kept(bare) == []
    bare.close()
    filled(rig)
    clear(rig)
    clear(rig)
    assert len(kept(rig)) == 1
    rig.asked("truncate", TOPIC)
    assert kept(rig) == [] and len(rig.files(TOPIC)) == 1


def test_it_goes_with_its_topic_and_comes_back_with_it(rig):
    _, positions = filled(rig)
    clear(rig)
    [backlog] = kept(rig)
    rig.asked("delete", TOPIC, force=True)
    topic = next(one for one in kept(rig) if not one.subscription)
    rig.owner.catalogue.kept_topics.take_back(topic, rig.now_ms)
    rig.owner.catalogue.commit()
    rig.consumer(TOPIC, "s", subType=SHARED)
    assert take_back(rig, backlog.id) == 20 and left(rig) == whole(positions)
    clear(rig)
    rig.asked("delete", TOPIC, force=True)
    rig.now_ms += 2 * DAY_S * 1_000
    ticks(rig, 6)
    assert kept(rig) == [] and rig.owner.catalogue.read("SELECT * FROM kept_cursors") == []


def test_the_subscription_may_have_been_deleted_and_made_anew(rig):
    _, positions = filled(rig)
    clear(rig)
    rig.asked("unsubscribe", TOPIC, subscription="s", force=True)
    [answer] = rig.run(rig.question("take_backlog_back", TOPIC, subscription="s", number=kept(rig)[0].id)).answered
    assert "not found" in str(answer)
    rig.consumer(TOPIC, "s", subType=SHARED, initialPosition=0)
    assert take_back(rig) == 20 and left(rig) == whole(positions)


def test_what_a_transaction_acknowledges_does_not_come_back_if_it_is_committed(tmp_path):
    rig = TransactionalRig(tmp_path / "data", deleted_retention_s=DAY_S)
    consumer, positions = filled(rig)
    [batch] = rig.run(rig.sends((rig.producer(TOPIC), b"x", {"batch": 3}))).positions
    rig.receive(consumer)
    transacting.open_for(rig, FIRST, SECOND, subscription="s")
    assert transacting.answer(rig, consumer, FIRST, (*batch, [0b101])) is None
    assert transacting.answer(rig, consumer, FIRST, positions[3]) is None
    assert transacting.answer(rig, consumer, SECOND, positions[4]) is None
    clear(rig)
    transacting.end(rig, FIRST, commits=True)
    take_back(rig)
    transacting.end(rig, SECOND, commits=False)
    assert left(rig) == whole({*positions} - {positions[3]}) | {(*batch, 0), (*batch, 2)}
    assert len(rig.receive(rig.consumer(TOPIC, "s", subType=SHARED))) == 20
    rig.close()


def test_redelivery_counts_come_back_too(rig, tmp_path):
    consumer, positions = filled(rig)
    rig.run(rig.redeliver(consumer, *positions[:2]))
    clear(rig)
    after = rig.crashed(tmp_path / "after")
    after.asked("subscriptions", TOPIC)
    take_back(after)
    again = after.crashed(tmp_path / "again")
    consumer = again.consumer(TOPIC, "s", subType=SHARED)
    counts = [count for _, count, _ in again.given(again.run(again.flow(consumer, 100)), consumer)]
    assert counts == [1, 1, *[0] * 18]
    after.close()
    again.close()


def test_delayed_messages_and_priorities_come_back_as_they_were(tmp_path):
    rig = Rig(tmp_path / "data", deleted_retention_s=DAY_S, message_priority=True)
    rig.consumer(TOPIC, "s", subType=SHARED)
    producer = rig.producer(TOPIC)
    fields = [{}, {"deliver_at_time": rig.now_ms + 60_000}, priority(9)]
    positions = rig.run(rig.sends(*[(producer, b"x", one) for one in fields])).positions
    clear(rig)
    take_back(rig)
    consumer = rig.consumer(TOPIC, "s", subType=SHARED)
    assert [position for position, _ in rig.receive(consumer)] == [positions[2], positions[0]]
    assert [position for position, _ in rig.delivered(rig.run(after_ms=61_000), consumer)] == [positions[1]]
    rig.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", [10_000, 2], ids=["one record", "many records"])
@pytest.mark.parametrize("is_taken_back", [False, True], ids=["clear", "take back"])
def test_a_kill_at_any_call_of_the_disk_leaves_all_of_it_cleared_or_there(tmp_path, monkeypatch, size, is_taken_back):
    monkeypatch.setattr(durability, "_OPS_SIZE_MAX", size * 40)
    for call in range(1, 80):
        crashing = Crashing(tmp_path / str(call))
        with crashing.disk.watched():
            rig = crashing.owner(deleted_retention_s=DAY_S, roll_over_entries=7)
            consumer, positions = filled(rig)
            rig.run(rig.acks(consumer, *positions[1::2], request_id=1))
            expected = whole(positions[::2])
            if is_taken_back:
                clear(rig)
                more = rig.publish(rig.producer(TOPIC), *[b"x"] * 10)
                rig.receive(consumer)
                rig.run(rig.acks(consumer, *more[::2], request_id=2))
                rest = whole(more[1::2])
            crashing.disk.fate = Fate(kill_in=call)
            try:
                take_back(rig) if is_taken_back else clear(rig)
                is_done = True
            except (Killed, ValueError):
                is_done = False
            crashing.kill()
            crashing.cut_power("nothing" if call % 2 else "everything")
            rig = crashing.owner(deleted_retention_s=DAY_S, roll_over_entries=7)
            rig.asked("subscriptions", TOPIC)
            if is_taken_back:
                assert left(rig) in ([expected | rest] if is_done else [rest, expected | rest])
            else:
                assert left(rig) in ([set()] if is_done else [set(), expected])
            if kept(rig):
                take_back(rig)
            assert left(rig) == (expected | rest if is_taken_back else expected)
            assert kept(rig) == []
            crashing.kill()
        if is_done:
            break
    assert is_done
