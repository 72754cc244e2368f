"""New topics and clients that discover them: the topics keep their messages, and such a client's subscription begins
with the first one.
"""
import numpy as np
import pytest

from geminga.proto import envelope
from geminga.proto.names import parse
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.catalogue.database import now_ms

TOPIC = "persistent://public/default/new"
LATEST = {"initialPosition": 0}
GRACE_MS = 120_000
DISCOVERER = 77          # (worker, connection)
PAYLOADS = [b"%d" % number for number in range(6)]


def said(kind, text, connection=DISCOVERER):
    """Send the owner a worker's command about a connection."""
    row = np.zeros(1, envelope.COMMAND_ROW)
    row["connection"], row["kind"], row["size"] = connection, kind, len(text)
    return envelope.COMMANDS, row, text.encode()


def discovers(namespace="public/default"):
    return said(envelope.DISCOVERS, namespace)


def looks_up(topic=TOPIC):
    return said(envelope.LOOKED_UP, f"5 {topic}")


@pytest.fixture
def rig(rigs):
    return rigs(now_ms=now_ms(), roll_over_entries=2)


def published(rig):
    """Publish six messages in three ledgers of a new topic.  Return the owner some time later."""
    producer = rig.producer(TOPIC)
    for payload in PAYLOADS:
        rig.publish(producer, payload)
    rig.run(after_ms=2_000)
    return rig


def first_of(rig, **fields):
    """Return the messages that a new subscription gets."""
    return [payload for _, payload in rig.receive(rig.consumer(TOPIC, **fields))]


def test_a_subscription_of_who_discovers_the_topic_begins_at_its_beginning(rig):
    """A subscription by a client that discovers the topic begins at the first message, also on another connection.
    The lookup tells the owner before the client gets its answer.
    """
    rig.run(discovers())
    answers = published(rig).run(looks_up())
    assert answers.replies == [(DISCOVERER, envelope.WRITE, 0, 0, None)]
    assert first_of(rig, **LATEST) == PAYLOADS


def test_without_discovery_latest_is_latest_and_nothing_is_kept(rig):
    published(rig)
    assert first_of(rig, **LATEST) == []
    assert len(rig.files(TOPIC)) == 1


def test_a_lookup_counts_for_the_subscription_that_follows_it(rig):
    """A subscription made much later, or on another topic, begins at the end."""
    rig.run(discovers())
    published(rig).run(looks_up(), looks_up(TOPIC + "er"))
    rig.run(after_ms=10_000)
    assert first_of(rig, **LATEST) == []
    rig.run(looks_up(TOPIC + "er"))
    assert first_of(rig, subscription="other", **LATEST) == []


def test_positions_that_are_asked_for_by_name_are_taken(rig):
    rig.run(discovers())
    published(rig).run(looks_up())
    at_end = {"start_message_id": {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}}
    assert first_of(rig, **LATEST, durable=False, **at_end) == []


def test_a_topic_is_new_for_so_long_as_the_configuration_says(rig):
    """After that time the topic deletes ledgers that no subscription needs."""
    rig.run(discovers())
    published(rig)
    assert len(rig.files(TOPIC)) == 3
    rig.run(looks_up(), after_ms=GRACE_MS)
    rig.run()
    assert first_of(rig, **LATEST) == []
    assert len(rig.files(TOPIC)) == 1


@pytest.mark.parametrize("ends", [
    lambda rig: rig.run(said(envelope.CONNECTION_GONE, "")), lambda rig: rig.owner.worker_gone(1)],
    ids=["connection", "worker"])
def test_nothing_is_kept_for_who_is_gone(rig, ends):
    rig.run(discovers())
    ends(rig)
    published(rig)
    assert len(rig.files(TOPIC)) == 1


def test_a_topic_of_a_namespace_where_nobody_discovers_keeps_nothing(rig):
    rig.run(discovers("public/other"))
    published(rig)
    assert len(rig.files(TOPIC)) == 1


def test_it_can_be_switched_off(rigs):
    rig = rigs(now_ms=now_ms(), roll_over_entries=2, discovery_grace_s=0)
    rig.run(discovers())
    published(rig).run(looks_up())
    assert first_of(rig, **LATEST) == []
    assert len(rig.files(TOPIC)) == 1


def test_a_topic_stays_new_when_its_owner_was_killed(rigs, rig):
    """Workers tell the owner's next process which connections discover topics."""
    rig.run(discovers())
    published(rig)
    rig = rigs.crash(rig)
    rig.run(discovers())
    rig.run(looks_up(), after_ms=2_000)
    assert first_of(rig, **LATEST) == PAYLOADS


# -- the catalogue

def test_the_catalogue_tells_when_topics_come_and_go(tmp_path):
    """Creating a topic that exists and deleting one that does not exist tell nothing."""
    catalogue = open_catalogue(tmp_path / "catalogue.sqlite")
    seen = [catalogue.topics.version()]
    for change in (lambda: catalogue.topics.create(parse(TOPIC), 0), lambda: catalogue.topics.delete(parse(TOPIC)),
                   lambda: catalogue.topics.create(parse(TOPIC), 3)):
        change()
        catalogue.commit()
        seen.append(catalogue.topics.version())
    assert len(set(seen)) == 4
    catalogue.topics.create(parse(TOPIC), 3)
    catalogue.topics.delete(parse(TOPIC + "er"))
    catalogue.counters.take("producers")
    partition_id = catalogue.partitions.create(parse(TOPIC).partition_name(0))
    catalogue.commit()
    assert catalogue.topics.version() == seen[-1]
    assert catalogue.partitions.newest_id() == partition_id
    catalogue.close()
