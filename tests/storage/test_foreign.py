"""A partition has one owner: another that is asked for it refuses, and touches nothing.  Nor does an owner believe
an old state.
"""
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.admin import queries

from .rig import T

MINE, FOREIGN = "persistent://public/default/mine", "persistent://public/default/foreign"
PASSING = "non-persistent://public/default/foreign"


def is_mine(name: str) -> bool:
    return "foreign" not in name


def files(folder) -> list:
    return (
        sorted(path.relative_to(folder) for path in (folder / "partitions").rglob("*"))
        if (folder / "partitions").exists()
        else []
    )


@pytest.fixture(params=[False, True], ids=["new", "stored"])
def foreign(rigs, request):
    """An owner to which the topic does not belong, with and without files of that topic."""
    rig = rigs()
    if request.param:
        rig.publish(rig.producer(FOREIGN), b"theirs")
        rig.consumer(FOREIGN, "theirs")
    rig.close()
    return rigs.on(rig.data_dir, is_mine=is_mine)


@pytest.mark.slow
@pytest.mark.parametrize("topic", [FOREIGN, PASSING, FOREIGN + "-partition-0"])
@pytest.mark.parametrize("kind, fields", [
    ("producer", {"producer_id": 1}), ("producer", {"producer_id": 1, "initial_subscription_name": "s"}),
    ("subscribe", {"consumer_id": 1, "subscription": "s", "subType": 0}),
    ("subscribe", {"consumer_id": 1, "subscription": "s", "subType": 0, "durable": False})])
def test_a_producer_or_consumer_of_another_owners_topic_is_refused(foreign, topic, kind, fields):
    owner = foreign.owner
    before = owner.catalogue.connection.total_changes, files(foreign.data_dir)
    [error] = foreign.run(foreign.command(kind, topic=topic, request_id=5, **fields)).commands()
    assert (error.type, error.error.request_id, error.error.error) == (T.ERROR, 5, api.ServiceNotReady)
    assert (owner.catalogue.connection.total_changes, files(foreign.data_dir)) == before
    assert not (owner.topics.by_name or owner.topics.non_persistent)
    assert not (owner.clients.producers.by_handle or owner.clients.consumers.by_handle)
    assert foreign.publish(foreign.producer(MINE), b"mine")


@pytest.mark.slow
@pytest.mark.parametrize("ask", sorted(kind.name for kind in queries.FUNCTIONS))
def test_administration_of_another_owners_topic_is_refused(foreign, ask):
    before = foreign.owner.catalogue.connection.total_changes, files(foreign.data_dir)
    for topic in (FOREIGN, PASSING):
        [answer] = foreign.run(
            foreign.question(ask, topic, subscription="theirs", force=True, new=True, may_create=True)
        ).answered
        assert answer["refused"] == api.ServiceNotReady
    assert (foreign.owner.catalogue.connection.total_changes, files(foreign.data_dir)) == before
    assert not (foreign.owner.topics.by_name or foreign.owner.topics.non_persistent)


def test_a_subscription_that_the_state_does_not_know_stays_in_the_catalogue(rigs):
    """A subscription that is in the catalogue only, because an owner was killed early, is made anew on request."""
    rig = rigs()
    rig.publish(rig.producer(MINE), b"a")
    catalogue, partition_id = rig.owner.catalogue, rig.partition(MINE).partition_id
    first = catalogue.subscriptions.create(partition_id, "unknown")
    catalogue.properties.set(first, {"of": "the first"})
    catalogue.commit()
    rig = rigs.restart(rig)
    assert rig.publish(rig.producer(MINE), b"b")
    assert rig.owner.catalogue.subscriptions.ids(partition_id) == {"unknown": first}
    assert not rig.partition(MINE).subscriptions
    consumer = rig.consumer(MINE, "unknown")
    second = rig.owner.catalogue.subscriptions.ids(partition_id)["unknown"]
    assert second > first
    [*positions] = [position for position, _ in rig.receive(consumer)]
    rig.run(rig.acks(consumer, positions[0], request_id=1))
    rig = rigs.crash(rig)
    assert [payload for _, payload in rig.receive(rig.consumer(MINE, "unknown"))] == [b"b"]
    assert rig.owner.catalogue.subscriptions.ids(partition_id) == {"unknown": second}
    assert not rig.owner.catalogue.properties.of_subscriptions(partition_id)
