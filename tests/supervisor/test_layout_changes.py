"""Segments of a scalable topic split, merge and get other entry buckets by REST, while clients use them."""
import asyncio
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from geminga.proto import layout_changes, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin.questions import Delete
from geminga.storage.catalogue.catalogue import open_catalogue, open_to_read
from geminga.storage.catalogue.database import now_ms
from geminga.supervisor.admin.resources.retries import Retries
from geminga.supervisor.admin.scalable import layout_changes as finishing
from geminga.supervisor.admin.scalable.layout_changes import LayoutChanges

from ..harness import HANG_SECONDS, eventually, request
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Peer, error_of
from ..workers.test_scalable_topics import assigned, layout_of, publish, register, segments_of
from .test_scalable_topics import Rest


@pytest.fixture
def rest(broker):
    return Rest(broker)


@pytest.fixture
def peer(broker):
    with Peer(broker.service_url) as one:
        yield one


def ranges(rest, *, active=True):
    """Return {number: (first, last hash)} of the active segments, or of the sealed ones."""
    return {int(number): (one["hashRange"]["start"], one["hashRange"]["end"])
            for number, one in rest.get()["segments"].items() if one["active"] is active}


def names_of(rest):
    """Return {number: name} of all segments."""
    topic = names.parse(rest.name)
    return {int(number): str(topic.segment_name(int(number), one["hashRange"]["start"], one["hashRange"]["end"]))
            for number, one in rest.get()["segments"].items()}


def test_a_split_seals_a_segment_and_makes_two(rest):
    rest.set("PUT", "?numInitialSegments=2")
    rest.set("POST", "/split/1")
    said = rest.get()
    assert (said["epoch"], said["nextSegmentId"]) == (1, 4)
    assert ranges(rest) == {0: (0, 0x7fff), 2: (0x8000, 0xbfff), 3: (0xc000, 0xffff)}
    parent, child = said["segments"]["1"], said["segments"]["3"]
    assert (parent["state"], parent["childIds"], parent["sealedAtEpoch"]) == ("SEALED", [2, 3], 1)
    assert (child["parentIds"], child["createdAtEpoch"]) == ([1], 1)


def test_a_merge_seals_two_neighbours_and_makes_one(rest):
    rest.set("PUT", "?numInitialSegments=4")
    rest.set("POST", "/merge/2/1")
    assert ranges(rest) == {0: (0, 0x3fff), 4: (0x4000, 0xbfff), 3: (0xc000, 0xffff)}
    assert ranges(rest, active=False) == {1: (0x4000, 0x7fff), 2: (0x8000, 0xbfff)}
    assert rest.get()["segments"]["4"]["parentIds"] == [1, 2]


def test_entry_buckets_are_of_equal_size_and_divided_by_a_split(rest):
    rest.set("PUT")
    rest.set("POST", "/rebucket/0?bucketCount=8")
    rest.set("POST", "/split/1")
    rest.set("POST", "/merge/2/3")
    said = rest.get()["segments"]
    assert said["1"]["entryBucketSplits"] == said["4"]["entryBucketSplits"] == list(range(0x2000, 0x10000, 0x2000))
    assert said["2"]["entryBucketSplits"] == said["3"]["entryBucketSplits"] == [0x4000, 0x8000, 0xc000]
    assert ranges(rest) == {4: (0, 0xffff)}


@pytest.mark.parametrize(("path", "status"), [
    ("/split/9", 404), ("/split/x", 404), ("/split/0", 412), ("/merge/1/9", 404), ("/merge/1/3", 412),
    ("/merge/0/1", 412), ("/merge/1/1", 412), ("/rebucket/1?bucketCount=0", 412), ("/rebucket/1", 412),
    ("/rebucket/1?bucketCount=1025", 412), ("/rebucket/1?bucketCount=x", 412), ("/rebucket/9?bucketCount=4", 404),
    ("/rebucket/1?bucketCount=1", 412)])
def test_a_change_that_cannot_be_made_is_refused_in_one_line(rest, path, status):
    rest.set("PUT", "?numInitialSegments=3")
    rest.set("POST", "/split/0")      # now 0 is sealed, and 1 and 3 are no neighbours
    before = rest.get()
    said = rest.ask("POST", path)
    assert said[0] == status and "\n" not in said[1]["reason"]
    assert rest.get() == before


def test_a_topic_that_is_missing_is_not_found(rest):
    assert rest.ask("POST", "/split/0")[0] == 404


# -- clients

def test_a_producer_is_sent_to_the_children_at_once(rest, peer):
    """By the new layout, as its client watches that: the client closes the producer, and loses nothing by an error."""
    rest.set("PUT")
    layout_of(peer, rest.name)
    peer.open_producer(names_of(rest)[0], 7)
    peer.say(send(entry_of(message_metadata(), b"before"), producer_id=7))
    assert peer.hear().type == T.SEND_RECEIPT
    rest.set("POST", "/split/0")
    dag = peer.hear().scalableTopicUpdate.dag
    assert [(one.state, list(one.child_ids)) for one in dag.segments] == [
        (api.SEALED, [1, 2]), (api.ACTIVE, []), (api.ACTIVE, [])]
    assert [one.segment_id for one in dag.segment_brokers] in ([], [1, 2])
    peer.say(send(entry_of(message_metadata(), b"late"), producer_id=7))
    assert peer.ask(T.CLOSE_PRODUCER, producer_id=7, request_id=7).success.request_id == 7
    refused = peer.ask(T.PRODUCER, topic=names_of(rest)[0], producer_id=8, request_id=8)
    assert error_of(refused) == api.TopicTerminatedError
    for segment in segments_of(rest.name, dag)[1:]:
        publish(peer, segment, b"after", producer_id=9)


def test_messages_that_are_counted_anew_are_stored_and_those_that_are_sent_again_are_not(start_broker):
    """Contents tell, whoever owns the child, and on any connection; behind a kill the child's own numbers hold."""
    broker = start_broker("--owners", "3", "--workers", "1")
    rest, numbers = Rest(broker), range(4, 9)
    url = f"{broker.http_url}/admin/v2/namespaces/public/default/deduplication"
    assert request("POST", url, b"true")[0] == 204
    rest.set("PUT", "?numInitialSegments=4")

    def stored(peer, segment, what, wanted=numbers):
        """Publish by a producer that is named as the client of Pulsar 5 does; return which messages were stored."""
        name = f"p-seg-{segment}"
        assert peer.ask(T.PRODUCER, topic=names_of(rest)[segment], producer_id=segment, request_id=1,
                        producer_name=name, user_provided_producer_name=True).type == T.PRODUCER_SUCCESS
        receipts = []
        for number in wanted:
            metadata = message_metadata(sequence_id=number, producer_name=name)
            peer.say(send(entry_of(metadata, b"%s %d" % (what, number)), producer_id=segment, sequence_id=number))
            receipts.append(peer.hear().send_receipt)
        return [one.sequence_id for one in receipts if one.message_id.ledgerId != 2 ** 64 - 1]

    with Peer(broker.service_url) as peer:
        for segment in range(4):
            assert stored(peer, segment, b"old") == [*numbers]
            rest.set("POST", f"/split/{segment}")
            assert [peer.hear().type for _ in range(2)] == [T.SEND_ERROR, T.CLOSE_PRODUCER]
            first, second = 4 + 2 * segment, 5 + 2 * segment
            assert stored(peer, first, b"new") == [*numbers]
            with Peer(broker.service_url) as other:
                assert stored(other, second, b"old") == []
    broker.kill_supervisor()
    broker.start()
    with Peer(broker.service_url) as peer:
        assert stored(peer, 4, b"new", range(4, 12)) == [9, 10, 11]


@pytest.mark.parametrize("change", ["/split/0", "/merge/0/1"])
def test_each_subscription_is_on_the_children_before_they_take_a_message(rest, peer, change):
    """A consumer that has gone made one of them, and administration the other."""
    rest.set("PUT", "?numInitialSegments=2")
    rest.set("PUT", "/subscriptions/made")
    with Peer(rest.broker.service_url) as other:
        other.subscribe(names_of(rest)[0], "gone")
    rest.set("POST", change)
    layout = layout_of(peer, rest.name)
    children = [one for one in segments_of(rest.name, layout.dag) if int(one.rpartition("-")[2]) > 1]
    assert len(children) in (1, 2)
    for segment in children:
        publish(peer, segment, b"x", producer_id=len(segment))
        for number, subscription in enumerate(("made", "gone")):
            peer.subscribe(segment, subscription, consumer_id=number)
            peer.say(command(T.FLOW, consumer_id=number, messagePermits=1))
            assert peer.hear().type == T.MESSAGE
            assert peer.ask(T.CLOSE_CONSUMER, consumer_id=number, request_id=9).type == T.SUCCESS
        assert peer.ask(T.CLOSE_PRODUCER, producer_id=len(segment), request_id=9).type == T.SUCCESS


def test_a_drained_segment_says_that_it_has_ended(rest, peer):
    rest.set("PUT")
    segment = names_of(rest)[0]
    publish(peer, segment, b"x")
    peer.ask(T.CLOSE_PRODUCER, producer_id=7, request_id=3)
    peer.subscribe(segment, consumer_id=1)
    peer.say(command(T.FLOW, consumer_id=1, messagePermits=10))
    message = peer.hear()
    assert message.type == T.MESSAGE, message
    rest.set("POST", "/split/0")
    peer.say(command(T.ACK, consumer_id=1, ack_type=0, message_id=[message.message.message_id]))
    ended = peer.hear()
    assert (ended.type, ended.reachedEndOfTopic.consumer_id) == (T.REACHED_END_OF_TOPIC, 1)


# -- stream consumers

def consume(peer, segment, consumer_id=20):
    """Subscribe as the client of a stream consumer does, and return the ids of the messages that come at once."""
    peer.subscribe(segment, consumer_id=consumer_id)
    peer.say(command(T.FLOW, consumer_id=consumer_id, messagePermits=100))


def acknowledge(peer, message, consumer_id=20):
    peer.say(command(T.ACK, consumer_id=consumer_id, ack_type=api.CommandAck.Cumulative,
                     message_id=[message.message.message_id]))


def next_of(peer, kind):
    """Return the next command of a kind."""
    while (heard := peer.hear()).type != kind:
        pass
    return heard


def next_assigned(peer):
    pushed = next_of(peer, T.SCALABLE_TOPIC_ASSIGNMENT_UPDATE).scalableTopicAssignmentUpdate.assignment
    return [one.segment_id for one in pushed.segments]


def streamed(rest, peer):
    """Create the topic with a stream consumer, which consumes its one segment; return that segment."""
    rest.set("PUT")
    segment = names_of(rest)[0]
    register(peer, rest.name, "a")
    assert assigned(peer) == [segment]
    consume(peer, segment)
    return segment


def test_stream_consumers_get_the_children_when_the_parent_is_drained(rest, peer):
    """At the acknowledgement, not at a later look."""
    segment = streamed(rest, peer)
    with Peer(rest.broker.service_url) as other:
        publish(other, segment, b"1")
        publish(other, segment, b"2", producer_id=8)
    first, second = next_of(peer, T.MESSAGE), next_of(peer, T.MESSAGE)
    rest.set("POST", "/split/0")
    assert next_assigned(peer) == [0] and blocked(rest) == {"0": False, "1": True, "2": True}
    acknowledge(peer, first)
    acknowledge(peer, second)
    assert next_assigned(peer) == [1, 2] and not any(blocked(rest).values())
    said = rest.get("/stats")["layout"]
    assert said["lastOperation"] | {"at": ""} == {
        "operation": "split", "trigger": "manual", "segmentIds": [0], "status": "success", "at": ""}
    assert [said["segments"][number]["terminated"] for number in "012"] == [True, False, False]


def blocked(rest):
    return {number: one["blocked"] for number, one in rest.get("/stats")["subscriptions"]["sub"]["segments"].items()}


def test_a_segment_with_nothing_left_is_drained_as_it_is_sealed(rest, peer):
    rest.set("PUT")
    register(peer, rest.name, "a")
    consume(peer, assigned(peer)[0])
    rest.set("POST", "/split/0")
    while next_assigned(peer) != [1, 2]:
        pass
    rest.set("POST", "/merge/1/2")
    while next_assigned(peer) != [3]:
        pass


def test_a_subscription_that_is_reset_gets_the_parent_first_again(rest, peer):
    segment = streamed(rest, peer)
    with Peer(rest.broker.service_url) as other:
        publish(other, segment, b"1")
    acknowledge(peer, next_of(peer, T.MESSAGE))
    rest.set("POST", "/split/0")
    while next_assigned(peer) != [1, 2]:
        pass
    rest.set("POST", "/subscriptions/sub/seek?timestamp=0")
    while next_assigned(peer) != [0]:
        pass


def test_drained_segments_are_known_after_kills(fresh_broker):
    rest = Rest(fresh_broker)
    rest.set("PUT")
    with Peer(fresh_broker.service_url) as peer:
        register(peer, rest.name, "a")
        segment = assigned(peer)[0]
        consume(peer, segment)
        with Peer(fresh_broker.service_url) as other:
            publish(other, segment, b"1")
        acknowledge(peer, next_of(peer, T.MESSAGE))
        rest.set("POST", "/split/0")
        while next_assigned(peer) != [1, 2]:
            pass
    fresh_broker.kill_supervisor()
    fresh_broker.start()
    with Peer(fresh_broker.service_url) as peer:
        register(peer, rest.name, "a")
        found = assigned(peer)
        assert found in ([segment], [names_of(rest)[1], names_of(rest)[2]])
        if found == [segment]:
            assert next_assigned(peer) == [1, 2]


# -- subscriptions that are made on a sealed segment

@pytest.mark.parametrize(("begins", "backlog"), [(api.CommandSubscribe.Earliest, 1), (api.CommandSubscribe.Latest, 0)])
def test_a_subscription_made_on_a_sealed_segment_is_on_all_behind_it_first(rest, peer, begins, backlog):
    """A client that has not learned of the change yet makes it."""
    rest.set("PUT")
    segment = names_of(rest)[0]
    rest.set("POST", "/split/0")
    rest.set("POST", "/split/1")
    rest.set("POST", "/merge/4/2")
    publish(peer, names_of(rest)[5], b"x")
    answer = peer.ask(T.SUBSCRIBE, topic=segment, subscription="late", subType=0, consumer_id=5, request_id=5,
                      initialPosition=begins)
    assert answer.type == T.SUCCESS
    stats = rest.get("/stats")["subscriptions"]["late"]
    assert stats["uncoveredSegmentIds"] == [] and stats["msgBacklog"] == backlog
    with Peer(rest.broker.service_url) as other:
        publish(other, names_of(rest)[3], b"y")
    assert rest.get("/stats")["subscriptions"]["late"]["msgBacklog"] == backlog + 1


def test_a_consumer_that_is_closed_before_it_is_made_is_not_made(rest, peer):
    rest.set("PUT")
    segment = names_of(rest)[0]
    rest.set("POST", "/split/0")
    peer.say(command(T.SUBSCRIBE, topic=segment, subscription="late", subType=0, consumer_id=5, request_id=5) +
             command(T.CLOSE_CONSUMER, consumer_id=5, request_id=6))
    while (heard := peer.hear()).type != T.SUCCESS or heard.success.request_id != 6:
        pass
    peer.subscribe(segment, "late", consumer_id=5)
    assert rest.get("/stats")["subscriptions"]["late"]["uncoveredSegmentIds"] == []


# -- changes that were cut short

def test_a_change_that_a_kill_interrupts_is_finished_by_the_next_start(fresh_broker):
    rest = Rest(fresh_broker)
    rest.set("PUT")
    rest.set("PUT", "/subscriptions/sub")
    rest.publish(b"x")
    topic = names.parse(rest.name)
    fresh_broker.stop()
    catalogue = open_catalogue(fresh_broker.data_dir / "catalogue.sqlite")
    change = layout_changes.split(topic, catalogue.scalable_topics.layout(topic), 0, now_ms())
    assert catalogue.scalable_topics.begin_change(topic, change)
    catalogue.commit()
    catalogue.close()
    fresh_broker.start()
    eventually(lambda: rest.get()["epoch"] == 1)
    stats = rest.get("/stats")
    assert stats["subscriptions"]["sub"]["msgBacklog"] == 1
    assert set(stats["subscriptions"]["sub"]["segments"]) == {"0", "1", "2"}


def test_a_change_waits_for_an_owner_and_another_one_is_refused_meanwhile(fresh_broker):
    rest = Rest(fresh_broker)
    rest.set("PUT")
    fresh_broker.kill("owner")
    rest.set("POST", "/split/0")
    assert ranges(rest) == {1: (0, 0x7fff), 2: (0x8000, 0xffff)}


class FailingOwners:
    """Owners that spend every sealed segment, and cannot use those of one topic."""

    count = 1

    def __init__(self, topic):
        self.topic, self.fails = topic, True

    async def ask(self, question):
        if isinstance(question, Delete) and question.topic.base == self.topic and self.fails:
            raise Refusal(api.PersistenceError, "Files of the segment cannot be used")
        return True

    async def ask_owner(self, index, question):
        return None


def test_a_change_that_fails_is_told_and_keeps_no_other_topic_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(finishing, "_OTHERS_SECONDS", 0.01)
    monkeypatch.setattr(finishing, "_AGAIN_SECONDS", 0)
    catalogue = open_catalogue(tmp_path / "catalogue.sqlite")
    topics = [names.parse(f"topic://public/default/{letter}") for letter in "ab"]
    for topic in topics:
        catalogue.scalable_topics.create(topic, 1)
        layout = catalogue.scalable_topics.layout(topic)
        assert catalogue.scalable_topics.begin_change(topic, layout_changes.split(topic, layout, 0, 1))
        catalogue.scalable_topics.end_change(topic)
        catalogue.partitions.create(names.parse(layout.segments[0].topic))
    catalogue.commit()

    async def run():
        owners, retries = FailingOwners(topics[0]), Retries()
        changes = LayoutChanges(catalogue, owners, retries)
        async with asyncio.timeout(HANG_SECONDS):
            await changes.prune(now_ms())
        assert [len(catalogue.scalable_topics.layout(topic).segments) for topic in topics] == [2, 2]
        assert [catalogue.scalable_topics.change_of(topic) is None for topic in topics] == [False, True]
        assert [changes.why_it_takes_long(topic) for topic in topics] == ["Files of the segment cannot be used", ""]
        owners.fails = False
        async with asyncio.timeout(HANG_SECONDS):
            while catalogue.scalable_topics.change_of(topics[0]) is not None:
                await asyncio.sleep(0)
            while changes.why_it_takes_long(topics[0]):
                await asyncio.sleep(0)

    asyncio.run(run())
    catalogue.close()


def test_a_split_is_not_said_to_be_made_when_the_topic_is_deleted_instead(start_broker):
    broker = start_broker("--owners", "1")
    rest = Rest(broker)
    rest.set("PUT")
    with ThreadPoolExecutor(2) as threads:
        owner = broker.pause("owner")
        split = threads.submit(rest.ask, "POST", "/split/0")
        catalogue = open_to_read(broker.data_dir / "catalogue.sqlite")
        eventually(catalogue.scalable_topics.changing)
        catalogue.close()
        deletion = threads.submit(rest.ask, "DELETE")
        eventually(lambda: rest.ask("GET")[0] == 404)
        os.kill(owner, signal.SIGCONT)
        assert (split.result()[0], deletion.result()[0]) == (404, 204)


def test_a_topic_is_deleted_while_it_splits(rest):
    """Nothing of it is left, and a topic of its name can be made."""
    rest.set("PUT", "?numInitialSegments=3")
    for number in range(3):
        rest.set("POST", f"/split/{number}")
    rest.set("DELETE")
    assert rest.ask("GET")[0] == 404
    rest.set("PUT")
    assert rest.get()["nextSegmentId"] == 1 and not json.loads(
        request("GET", f"{rest.broker.http_url}/admin/v2/scalable/public/default/{rest.local}/stats")[1])["storageSize"]
