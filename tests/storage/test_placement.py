"""Partitions of a topic are spread evenly over owners, and a folder of the former placement moves at its first start.

Programs of the first placement took the hash of each partition's own name. Journals that they wrote have records of
partitions that belong to other owners now. Whatever was answered is there after the move, in its order and once,
wherever the first starts of the new program are killed, or lose their power.
"""
import random
from collections import Counter

import mmh3
import pytest
import zmq

from geminga.proto import envelope, names
from geminga.proto.errors import Refusal
from geminga.storage.owner import process, recovery
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.control import control_pair
from geminga.storage.runtime.lease import Lease
from geminga.storage.runtime.routing import owner_of, socket_path, worker_identity
from geminga.storage.transactions.peers import Links

from ..simulation.disk import Disk, Fate, Killed
from .files import copy_of
from .rig import WORKER, Rig

OWNERS = 2
TOPICS = [f"persistent://public/default/moving-{number}" for number in range(3)]
PARTITIONS = [f"{topic}-partition-{number}" for topic in TOPICS for number in range(2)]


def former_owner_of(partition, owners):
    """Return the owner by the first placement."""
    return max(range(owners), key=lambda owner: mmh3.hash(partition, owner, signed=False))


@pytest.mark.parametrize("owners", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 20])
def test_no_owner_has_two_partitions_of_a_topic_more_than_another(owners, partitions):
    had: Counter[int] = Counter()
    for topic in (f"persistent://public/default/topic-{number}" for number in range(100)):
        here = Counter(owner_of(f"{topic}-partition-{number}", owners) for number in range(partitions))
        counts = [here[owner] for owner in range(owners)]
        assert max(counts) - min(counts) <= 1
        had.update(here)
    mean = 100 * partitions / owners
    assert all(abs(had[owner] - mean) < 5 * mean ** 0.5 for owner in range(owners))


def test_topics_without_partitions_stay_where_they_were():
    for number in range(500):
        topic = f"persistent://public/default/topic-{number}"
        assert owner_of(topic, 8) == former_owner_of(topic, 8)


def test_a_folder_of_another_placement_has_moved(tmp_path):
    (tmp_path / "journal").mkdir()
    recovery.settle(tmp_path, 2)
    assert not recovery.has_moved(tmp_path, 2)
    written = (tmp_path / "journal" / "owners").read_text()
    assert written.strip() != "2"      # programs of the first placement compare with this, and find it moved too
    (tmp_path / "journal" / "owners").write_text("2\n")
    assert recovery.has_moved(tmp_path, 2)


@pytest.fixture(scope="module")
def former(tmp_path_factory):
    """A folder as killed owners of the first placement left it: nothing but the journals has what they answered."""
    folder = tmp_path_factory.mktemp("former")
    rigs = [Rig(folder / "data", owners=OWNERS, index=index,
                is_mine=lambda name, index=index: former_owner_of(name, OWNERS) == index) for index in range(OWNERS)]
    for topic in TOPICS:
        rigs[0].owner.catalogue.topics.create(names.parse(topic), 2)
    rigs[0].owner.catalogue.commit()
    for partition in PARTITIONS:
        rig = rigs[former_owner_of(partition, OWNERS)]
        consumer = rig.consumer(partition)
        first, *_ = rig.publish(rig.producer(partition), b"1", b"2", b"3")
        rig.receive(consumer)
        rig.run(rig.acks(consumer, first, request_id=1))
    (folder / "data" / "journal" / "owners").write_text(f"{OWNERS}\n")
    yield copy_of(folder / "data", folder / "killed")
    for rig in rigs:
        rig.close()


def started(root):
    """Start the owners of this program one after the other, as the supervisor does, and let them serve."""
    has_moved = recovery.has_moved(root, OWNERS)
    rigs = []
    try:
        for index in range(OWNERS):
            rigs.append(Rig(root, owners=OWNERS, index=index, has_moved=has_moved,
                            is_mine=lambda name, index=index: owner_of(name, OWNERS) == index))
        for rig in rigs:
            for other in range(OWNERS):
                rig.owner.exchange.owner_is_up(other)
    except BaseException:
        end(rigs)
        raise
    return rigs


def end(rigs):
    """Let go of owners whose process was killed."""
    for rig in rigs:
        rig.owner.catalogue.close()
        rig.journal._threads.shutdown()


def lives(root, answered):
    """Start, publish a message in each partition, and note that the start is complete, as the supervisor does."""
    rigs = started(root)
    try:
        for partition in PARTITIONS:
            rig = rigs[owner_of(partition, OWNERS)]
            rig.publish(rig.producer(partition), b"new")
            answered[partition] += 1
        recovery.settle(root, OWNERS)
    finally:
        end(rigs)


def check(root, answered):
    """All that was answered is there once and in order, a message that was not may be, and acknowledged ones are not.
    """
    rigs = started(root)
    try:
        for partition in PARTITIONS:
            rig = rigs[owner_of(partition, OWNERS)]
            found = [payload for _, payload in rig.everything(partition)]
            assert found[:3] == [b"1", b"2", b"3"] and set(found[3:]) <= {b"new"}
            assert answered[partition] <= len(found) - 3 <= 2
            left = [payload for _, payload in rig.receive(rig.consumer(partition))]
            assert left == found[1:]
        assert [rig.damage for rig in rigs] == [[]] * OWNERS
    finally:
        end(rigs)


def test_partitions_have_moved_both_ways():
    """The tests below would show nothing otherwise."""
    moves = {(former_owner_of(partition, OWNERS), owner_of(partition, OWNERS)) for partition in PARTITIONS}
    assert {(0, 1), (1, 0)} <= moves


def test_what_lay_at_former_owners_is_there_after_the_first_start(former, tmp_path):
    root, answered = copy_of(former, tmp_path / "data"), Counter()
    lives(root, answered)
    assert not recovery.has_moved(root, OWNERS)
    check(root, answered)


@pytest.mark.slow
@pytest.mark.parametrize("how, first", [("kill", 1), ("power", 3)])
def test_a_first_start_that_ends_at_any_call_of_the_disk_loses_nothing(former, tmp_path, how, first):
    """Each case ends starts at every fourth call of the disk that a complete start makes."""
    chance, ended = random.Random(1), 0
    for calls in range(first, 1_000, 4):
        root, answered = copy_of(former, tmp_path / str(calls)), Counter()
        disk = Disk(root, chance)
        with disk.watched():
            disk.begin_process()
            disk.fate = Fate(kill_in=calls)
            try:
                lives(disk.root, answered)
            except Killed:
                ended += 1
            else:
                break
            finally:
                disk.is_dead = True
            if how == "power":
                disk.cut(tmp_path / f"{calls}-cut", "nothing")
            disk.fate = Fate()
            disk.begin_process()
            lives(disk.root, answered)
            check(disk.root, answered)
            disk.is_dead = True
    assert ended > 10


def test_an_owner_touches_no_partition_before_the_others_have_recovered(former, tmp_path):
    """The journal of another owner may have records that are not in the partition's files yet."""
    root = copy_of(former, tmp_path / "data")
    early = Rig(root, owners=OWNERS, index=0, has_moved=True, is_mine=lambda name: owner_of(name, OWNERS) == 0)
    mine = [partition for partition in PARTITIONS if owner_of(partition, OWNERS) == 0]
    catalogue = early.owner.catalogue
    catalogue.policies.set("public/default", "messageTTL", 3_600)      # such topics are opened without clients
    catalogue.commit()
    early.run(early.tell("policies", scope="public/default"))
    for _ in range(3):
        early.run(after_ms=1_000)
    assert early.partitions == []
    with pytest.raises(Refusal, match="is being started; try again"):
        early.owner.topics.find(names.parse(mine[0]))
    late = Rig(root, owners=OWNERS, index=1, has_moved=True, is_mine=lambda name: owner_of(name, OWNERS) == 1)
    early.owner.exchange.owner_is_up(1)
    early.run(after_ms=1_000)
    assert {str(partition.name) for partition in early.partitions} == set(mine)
    end([early, late])


def test_an_owner_hears_that_others_have_recovered_before_it_takes_commands(former, tmp_path):
    """Both may have come when a pass begins.  A consumer that was refused would not come back."""
    root = copy_of(former, tmp_path / "data")
    early = Rig(root, owners=OWNERS, index=0, has_moved=True, is_mine=lambda name: owner_of(name, OWNERS) == 0)
    mine = next(partition for partition in PARTITIONS if owner_of(partition, OWNERS) == 0)
    supervisor, control = control_pair()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as worker:
        router.bind(socket_path(tmp_path, 1))
        worker.setsockopt(zmq.IDENTITY, worker_identity(WORKER))
        worker.connect(socket_path(tmp_path, 1))
        zmq_frames.send(worker, envelope.seal([early.subscribe(mine, "sub")[0]]))
        assert router.poll(10_000)
        supervisor.send(owner=[1, 2])
        supervisor.send(stop=4.0)
        links = Links(context, tmp_path, 1)
        process._loop(early.owner, router, links, control, Lease())
        links.close()
        context.destroy(linger=0)
    assert [str(partition.name) for partition in early.partitions] == [mine]
    for one in supervisor, control:
        one.close()
    end([early])
