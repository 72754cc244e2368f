"""Changes of options while an owner runs: each takes effect at once, for open topics too."""
import os
from dataclasses import fields, replace

import pytest

from geminga.storage.options import StorageOptions
from geminga.storage.topics.subscription import SubType

from .rig import Rig, T

OTHERS = {"sync": "interval", "failover_selection": "join-order", "subscription_types": ("Shared",),
          "backlog_quota_policy": "producer_exception", "inactive_topic_mode": "delete_when_subscriptions_caught_up",
          "schema_compatibility_strategy": "BACKWARD", "compaction_order": "event_time",
          "export": "messages", "cluster_name": "other", "replication_start_at": "earliest"}

# Options whose changed value keeps another producer out, as it should.
REFUSE = "backlog_quota_bytes", "max_producers_per_topic", "max_same_address_producers_per_topic", "encryption_required"


def other(name, now):
    return OTHERS[name] if name in OTHERS else not now if isinstance(now, bool) else now + 1


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """Return an owner with a persistent and a non-persistent topic, each with a subscription in use."""
    rig = Rig(tmp_path_factory.mktemp("reconfigured") / "data")
    rig.producer("a")
    rig.consumer("a")
    rig.producer("non-persistent://public/default/live")
    rig.consumer("non-persistent://public/default/live", "live")
    yield rig
    rig.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [field.name for field in fields(StorageOptions)])
def test_each_option_is_everywhere(used, name):
    """A changed option reaches topics and subscriptions, and everything that the owner derives from it."""
    owner = used.owner
    wanted = replace(used.options, **{name: other(name, getattr(used.options, name))})
    if not owner.can_be_configured(wanted):
        assert name == "journal_segment_bytes"      # needs a restart
        return
    owner.configure(wanted)
    assert owner.options.current == wanted
    for topic in [*owner.topics.by_name.values(), *owner.topics.non_persistent.values()]:
        assert topic.options == wanted
        assert topic.subscriptions
        assert all(subscription.options == wanted for subscription in topic.subscriptions.values())
    assert owner.journal.segments_max == wanted.journal_segments_max
    assert owner.discovery.grace_ms == wanted.discovery_grace_s * 1000
    assert len(owner.statistics._moved) == wanted.stats_window_s
    if name not in REFUSE:
        assert used.run(used.sends((used.producer("a"), b"x"))).receipts      # publishing still works
    owner.configure(used.options)


def test_what_was_changed_over_rest_is_stronger(rig):
    catalogue = rig.owner.catalogue
    catalogue.options.set("retention_s", 7)
    catalogue.commit()
    rig.owner.configure(replace(rig.options, retention_s=9, retention_bytes=11))
    assert (rig.owner.options.current.retention_s, rig.owner.options.current.retention_bytes) == (7, 11)


def test_the_active_consumer_is_chosen_anew(rigs):
    rig = rigs(failover_selection="join-order")
    crowd = {name: rig.consumer("a", subType=SubType.Failover, consumer_name=name) for name in ("z", "a")}
    assert rig.owner.topics.by_name[rig.topic("a")].subscriptions["sub", True].dispatcher.active.name == "z"
    rig.run(*[rig.flow(consumer, 1) for consumer in crowd.values()])
    rig.owner.configure(replace(rig.options, failover_selection="name"))
    told = {(command.active_consumer_change.consumer_id, command.active_consumer_change.is_active)
            for command in rig.run().commands(T.ACTIVE_CONSUMER_CHANGE)}
    assert (crowd["a"].object_id, True) in told and (crowd["z"].object_id, False) in told


def test_keys_are_shared_out_anew_and_stay_in_order(rigs):
    """When the distribution of keys changes, pending entries stay at their consumers, and later ones of the same key
    wait for them.
    """
    rig = rigs()
    first, second = (rig.consumer("a", subType=SubType.Key_Shared, consumer_name=name) for name in ("one", "two"))
    producer, keys = rig.producer("a"), [f"k{number}" for number in range(40)]
    rig.run(rig.flow(first, 1_000), rig.flow(second, 1_000))
    before = rig.run(rig.sends(*[(producer, key.encode(), {"partition_key": key}) for key in keys]))
    held = {
        consumer.number: {position[1] for position, *_ in rig.given(before, consumer)} for consumer in (first, second)
    }
    rig.owner.configure(replace(rig.options, key_shared_consistent_hashing=False))
    after = rig.run(rig.sends(*[(producer, key.encode() + b"'", {"partition_key": key}) for key in keys]))
    for consumer in (first, second):
        for (_, entry_id), *_ in rig.given(after, consumer):
            # the second entry of a key follows its pending first one
            assert entry_id - len(keys) in held[consumer.number]
    dispatcher = rig.owner.topics.by_name[rig.topic("a")].subscriptions["sub", True].dispatcher
    assert type(dispatcher.ranges).__name__ == "AutoSplit"
    assert dispatcher.draining      # keys that change hands


def test_segments_beyond_a_lower_bound_go(rigs):
    """Journal segments above a lowered bound are removed, but one always stays free, so that publishing goes on."""
    rig = rigs(journal_segment_bytes=64 << 10, journal_segments_max=8)
    producer = rig.producer("a")
    for _ in range(40):
        rig.run(rig.sends((producer, os.urandom(30_000))))
    rig.settle()
    assert len(list(rig.journal.folder.glob("*.journal"))) > 3
    rig.owner.configure(replace(rig.options, journal_segments_max=3))
    for _ in range(40):
        assert rig.run(rig.sends((producer, os.urandom(30_000)))).receipts
        rig.settle()
    assert len(list(rig.journal.folder.glob("*.journal"))) <= 3


def test_the_reserve_of_disk_follows(rigs):
    rig = rigs(disk_reserve_bytes=1 << 20)
    reserve = rig.journal.folder / "reserve"
    assert reserve.stat().st_size == 1 << 20
    for size in (256 << 10, 2 << 20):
        rig.owner.configure(replace(rig.options, disk_reserve_bytes=size))
        assert reserve.stat().st_size == size


def test_windows_of_rates_end_when_others_begin(rig):
    """After the width of windows changes, each rate is divided by the seconds of its own window."""
    producer = rig.producer("a")
    topic = rig.owner.topics.by_name[rig.topic("a")]
    for _ in range(10):
        rig.run(rig.sends((producer, b"x")), after_ms=1_000)
    rig.owner.configure(replace(rig.options, stats_window_s=5))
    assert 0.9 < topic.rates[0] <= 1.2
    for _ in range(12):
        rig.run(rig.sends((producer, b"x"), (producer, b"y")), after_ms=1_000)
    assert 1.7 < topic.rates[0] <= 2.2


def test_rates_of_a_window_that_has_just_ended_stay_when_others_begin(rig):
    """A reload in the pass in which a window ended does not show a rate of 0."""
    producer = rig.producer("a")
    topic = rig.owner.topics.by_name[rig.topic("a")]
    while not any(topic.rates):
        rig.run(rig.sends((producer, b"x")), after_ms=1_000)
    rig.owner.configure(replace(rig.options, stats_window_s=5))
    assert topic.rates[0] > 0
    for _ in range(12):
        rig.run(after_ms=1_000)
    assert not any(topic.rates)
