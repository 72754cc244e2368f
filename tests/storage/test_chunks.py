"""Chunked messages on Shared and Key_Shared subscriptions: one consumer gets all chunks of a message, to join them.

Consumers come and go, have few permits, give back and acknowledge; chunks of several messages lie among other entries.
"""
import random
from collections import deque

import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.dispatch import chunk_pins
from geminga.storage.topics.subscription import SubType

MANY = 1_000
SPLIT = {"key_shared_consistent_hashing": False}
LOOSE = {"keySharedMeta": api.KeySharedMeta(keySharedMode=api.AUTO_SPLIT, allowOutOfOrderDelivery=True)}
KINDS = {"Shared": {"subType": SubType.Shared}, "Key_Shared": {"subType": SubType.Key_Shared},
         "loose": {"subType": SubType.Key_Shared, **LOOSE}}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def chunk(producer, message, number, of=3, **fields):
    """Return what `Rig.sends` takes for a chunk; its payload is "message:number"."""
    return producer, f"{message}:{number}".encode(), {
        "uuid": f"u{message}", "sequence_id": message, "chunk_id": number, "num_chunks_from_msg": of} | fields


def got(rig, answers, *crowd):
    """Return the payloads that each consumer was delivered."""
    return [[payload.decode() for _, payload in rig.delivered(answers, one)] for one in crowd]


def positions(rig, answers, consumer):
    return [position for position, *_ in rig.given(answers, consumer)]


def dispatcher(rig):
    return rig.partition("a").subscriptions["sub", True].dispatcher


def crowd_of(rig, count, permits=MANY, **fields):
    crowd = [rig.consumer("a", **fields) for _ in range(count)]
    if permits:
        rig.run(*[rig.flow(one, permits) for one in crowd])
    return crowd


def test_all_chunks_of_a_message_go_to_one_consumer(rig, kind):
    """Chunks of six messages lie among each other, and come in several passes."""
    producer, crowd = rig.producer("a"), crowd_of(rig, 3, **kind)
    taken = [[] for _ in crowd]
    for number in range(3):
        for messages in (range(3), range(3, 6)):
            answers = rig.run(rig.sends(*[chunk(producer, message, number) for message in messages]))
            for mine, more in zip(taken, got(rig, answers, *crowd), strict=True):
                mine += more
    assert sorted(sum(taken, [])) == sorted(f"{message}:{number}" for message in range(6) for number in range(3))
    assert [sorted(mine) for mine in taken] == [
        sorted(f"{message}:{number}" for message in {one[0] for one in mine} for number in range(3)) for mine in taken]
    dispatcher(rig).check()
    assert not dispatcher(rig).chunks


def test_whole_messages_go_round_among_the_consumers(rig):
    producer, crowd = rig.producer("a"), crowd_of(rig, 3, **KINDS["Shared"])
    answers = rig.run(rig.sends(*[chunk(producer, message, number) for message in range(6) for number in range(3)]))
    assert [len(mine) for mine in got(rig, answers, *crowd)] == [6, 6, 6]


def test_chunks_wait_for_permits_of_their_consumer_and_nothing_waits_for_them(rig):
    producer, (slow, quick) = rig.producer("a"), crowd_of(rig, 2, permits=0, **KINDS["Shared"])
    rig.run(rig.flow(slow, 1))
    assert got(rig, rig.run(rig.sends(chunk(producer, 1, 0))), slow) == [["1:0"]]
    rig.run(rig.flow(quick, MANY))
    answers = rig.run(rig.sends(
        chunk(producer, 1, 1), (producer, b"x"), chunk(producer, 2, 0), chunk(producer, 1, 2), chunk(producer, 2, 1)))
    assert got(rig, answers, slow, quick) == [[], ["x", "2:0", "2:1"]]
    assert {"cause": "chunks", "consumer": "", "chunks": 2} in dispatcher(rig).causes()
    answers = rig.run(rig.flow(slow, 1))
    assert got(rig, answers, slow, quick) == [["1:1"], []]
    answers = rig.run(rig.sends(chunk(producer, 2, 2)), rig.flow(slow, 5))
    assert got(rig, answers, slow, quick) == [["1:2"], ["2:2"]]
    assert not dispatcher(rig).chunks


def test_a_chunk_never_overtakes_one_that_waits(rig):
    """Chunks of two messages wait for one consumer, and others of the second message came back and were not dealt yet.

    A client discards a message of which a chunk comes before an earlier one, and gets the message never again.
    """
    producer, (slow, gone, other, more) = rig.producer("a"), crowd_of(rig, 4, permits=0, **KINDS["Shared"])
    rig.run(rig.flow(gone, 3))
    assert got(rig, rig.run(rig.sends(*[chunk(producer, 2, number) for number in range(3)])), gone)[0][0] == "2:0"
    rig.run(rig.flow(slow, 1))
    assert got(rig, rig.run(rig.sends(chunk(producer, 1, 0, 4))), slow) == [["1:0"]]
    rig.run(rig.flow(other, 1))
    rig.run(rig.sends(*[chunk(producer, 1, number, 4) for number in range(1, 4)]))
    for one in (other, gone):
        rig.close_consumer(one)
    taken = got(rig, rig.run(rig.flow(slow, 1)), slow)[0]
    rig.run(rig.flow(more, 1))
    for _ in range(5):
        taken += got(rig, rig.run(rig.flow(slow, 1)), slow)[0]
        rig.partition("a").check()
    assert [one for one in taken if one[0] == "1"] == ["1:1", "1:2", "1:3"]
    assert [one for one in taken if one[0] == "2"] == ["2:0", "2:1", "2:2"]


def test_entries_behind_chunks_that_wait_are_delivered_in_the_same_pass(rig):
    """Looking at chunks that only a consumer without permits may get takes nothing from the others' permits."""
    producer, (slow, gone, quick) = rig.producer("a"), crowd_of(rig, 3, permits=0, **KINDS["Shared"])
    rig.run(rig.flow(gone, 4))
    rig.run(rig.sends(*[chunk(producer, 1, number) for number in range(3)], (producer, b"x")))
    rig.run(rig.flow(slow, 1))
    assert got(rig, rig.close_consumer(gone), slow, quick) == [["1:0"], []]
    assert got(rig, rig.run(rig.flow(quick, 1)), slow, quick) == [[], ["x"]]


def test_what_waits_for_a_consumer_is_bounded(rig, monkeypatch):
    """Nothing new is read while too many chunks wait, and goes on when their consumer takes some."""
    monkeypatch.setattr("geminga.storage.dispatch.shared.WAITING_MAX", 4)
    producer, (slow, quick) = rig.producer("a"), crowd_of(rig, 2, permits=0, **KINDS["Shared"])
    rig.run(rig.flow(slow, 1))
    rig.run(rig.sends(chunk(producer, 1, 0, 9)))
    rig.run(rig.flow(quick, MANY))
    rig.run(*[rig.sends(chunk(producer, 1, number, 9)) for number in range(1, 5)])
    assert got(rig, rig.run(rig.sends((producer, b"x"))), slow, quick) == [[], []]
    assert got(rig, rig.run(rig.flow(slow, 1)), slow, quick) == [["1:1"], ["x"]]


@pytest.mark.parametrize("how", ["closed", "given back"])
def test_a_message_that_comes_back_goes_to_one_consumer_again(rig, kind, how):
    """Chunks that were delivered, waited or were not published yet go to the next consumer together, in order."""
    producer, [first] = rig.producer("a"), crowd_of(rig, 1, permits=2, **kind)
    answers = rig.run(rig.sends(*[chunk(producer, 1, number, 5) for number in range(2)]))
    assert got(rig, answers, first) == [["1:0", "1:1"]]
    rig.run(rig.sends(chunk(producer, 1, 2, 5)))
    others = crowd_of(rig, 2, **kind)
    answers = rig.close_consumer(first) if how == "closed" else rig.run(rig.redeliver(first))
    more = rig.run(rig.sends(*[chunk(producer, 1, number, 5) for number in range(3, 5)]))
    crowd = [*others, first]
    taken = [before + behind for before, behind in zip(got(rig, answers, *crowd), got(rig, more, *crowd), strict=True)]
    if not any(taken):      # the key is the first one's
        assert how == "given back" and kind != KINDS["Shared"]
        taken = got(rig, rig.run(rig.flow(first, MANY)), *crowd)
    assert sorted(taken) == [[], [], [f"1:{number}" for number in range(5)]]


def test_a_consumer_that_acknowledges_a_chunk_has_given_the_message_up(rig):
    """What is left of the message, and waited, goes to anybody with permits."""
    producer, (first, second) = rig.producer("a"), crowd_of(rig, 2, permits=0, **KINDS["Shared"])
    rig.run(rig.flow(first, 1))
    begun = positions(rig, rig.run(rig.sends(chunk(producer, 1, 0, 4), chunk(producer, 1, 1, 4))), first)
    rig.run(rig.flow(second, MANY))
    assert got(rig, rig.run(rig.sends(chunk(producer, 1, 2, 4))), second) == [[]]
    answers = rig.run(rig.acks(first, *begun))
    assert got(rig, answers, first, second) == [[], ["1:1", "1:2"]]
    rig.run(rig.flow(first, MANY))
    assert got(rig, rig.run(rig.sends(chunk(producer, 1, 3, 4))), first, second) == [[], ["1:3"]]


def test_the_rest_of_a_message_comes_though_its_beginning_was_acknowledged(rigs, kind):
    """The topic is opened anew: chunks from before are known as such, and hold up nothing."""
    rig = rigs()
    producer, [first] = rig.producer("a"), crowd_of(rig, 1, **kind)
    begun = positions(rig, rig.run(rig.sends(*[chunk(producer, message, number) for number in range(3)
                                               for message in range(4)])), first)
    rig.run(rig.acks(first, *begun[:4]))
    rig = rigs.restart(rig)
    crowd = crowd_of(rig, 2, permits=0, **kind)
    producer = rig.producer("a")
    answers = rig.run(*[rig.flow(one, MANY) for one in crowd], rig.sends((producer, b"behind")))
    taken = got(rig, answers, *crowd)
    assert sorted(sum(taken, [])) == sorted(["behind", *(f"{message}:{number}" for message in range(4)
                                                         for number in (1, 2))])
    whose = [{one[0] for one in mine if one != "behind"} for mine in taken]
    assert not whose[0] & whose[1]


def test_a_chunk_is_told_by_its_metadata_though_its_send_does_not_say_so(rig):
    """Consumers see nothing but the metadata."""
    producer, crowd = rig.producer("a"), crowd_of(rig, 2, **KINDS["Shared"])
    assert rig.partition("a").chunks_in == 0
    for number in range(3):
        kind, rows, data = rig.sends(chunk(producer, 1, number))
        assert kind == envelope.SENDS
        rig.run((kind, rows, data))
    assert rig.partition("a").chunks_in == 3
    assert sorted(consumer.entries_out for consumer in dispatcher(rig).subscription.consumers) == [0, 3]
    assert len(crowd) == 2


def test_a_consumer_gets_the_rest_of_a_message_whose_key_has_moved(rigs):
    """The key stays with it until it has acknowledged the whole message; other messages of the key wait."""
    rig = rigs(**SPLIT)
    producer, [old] = rig.producer("a"), crowd_of(rig, 1, **KINDS["Key_Shared"])
    begun = rig.run(rig.sends(chunk(producer, 1, 0, partition_key="B"))).positions
    [new] = crowd_of(rig, 1, **KINDS["Key_Shared"])
    answers = rig.run(rig.sends((producer, b"x", {"partition_key": "B"}), chunk(producer, 1, 1, partition_key="B"),
                                chunk(producer, 2, 0, partition_key="B"), chunk(producer, 1, 2, partition_key="B")))
    assert got(rig, answers, old, new) == [["1:1", "1:2"], []]
    rig.partition("a").check()
    answers = rig.run(rig.acks(old, *begun, *positions(rig, answers, old)))
    assert got(rig, answers, old, new) == [[], ["x", "2:0"]]
    rig.partition("a").check()


@pytest.mark.parametrize("how", ["skipped", "cleared"])
def test_a_message_of_which_an_administrator_skips_the_beginning_stays_where_it_began(rig, kind, how):
    """Its consumer has those chunks, and can join them with the rest."""
    producer, [first] = rig.producer("a"), crowd_of(rig, 1, **kind)
    rig.run(rig.sends(chunk(producer, 1, 0), chunk(producer, 1, 1)))
    others = crowd_of(rig, 3, **kind)
    if how == "skipped":
        rig.asked("skip", "a", subscription="sub", entries=2)
    else:
        rig.asked("clear", "a", subscription="sub")
    assert got(rig, rig.run(rig.sends(chunk(producer, 1, 2))), first, *others) == [["1:2"], [], [], []]


def test_pins_are_bounded(rig, monkeypatch):
    """Beyond the bound, the consumer that began the oldest message may not get the rest of it."""
    monkeypatch.setattr(chunk_pins, "_PINS_MAX", 3)
    producer, crowd = rig.producer("a"), crowd_of(rig, 2, **KINDS["Shared"])
    for message in range(9):
        rig.run(rig.sends(chunk(producer, message, 0)))
    dispatcher(rig).check()
    taken = [rig.run(rig.sends(chunk(producer, message, 1), chunk(producer, message, 2))) for message in range(6, 9)]
    assert [got(rig, answers, *crowd) for answers in taken] == [
        [["6:1", "6:2"], []], [[], ["7:1", "7:2"]], [["8:1", "8:2"], []]]
    assert not dispatcher(rig).chunks


@pytest.mark.parametrize("fields", [{"uuid": ""}, {"uuid": "x" * 9_000}, {"chunk_id": -5}, {"num_chunks_from_msg": -1}],
                         ids=str)
def test_odd_chunks_are_delivered(rig, kind, fields):
    producer, crowd = rig.producer("a"), crowd_of(rig, 2, **kind)
    answers = rig.run(rig.sends(*[chunk(producer, 1, number, **fields) if "chunk_id" not in fields else
                                  chunk(producer, 1, number) for number in range(3)]))
    assert sorted(sum(got(rig, answers, *crowd), [])) == ["1:0", "1:1", "1:2"]
    dispatcher(rig).check()


class Client:
    """A consumer that joins chunks, and acknowledges whole messages or gives them back."""

    def __init__(self, handle):
        self.handle, self.begun, self.whole = handle, {}, []

    def take(self, position, payload):
        """Take an entry; return the positions of a message that is whole now."""
        if b":" not in payload:
            return [position]
        message, number, of = payload.split(b":")
        if number == b"0":
            self.begun[message] = []
        mine = self.begun.get(message)
        assert mine is not None and len(mine) == int(number), (payload, mine)      # a client would discard it
        mine.append(position)
        return self.begun.pop(message) if len(mine) == int(of) else []


def recorded(rig):
    """Return (rig, answers of all its passes, which are appended): any pass may deliver what has fallen due."""
    news, run_all = deque(), rig.run_all

    def run(*arguments, **fields):
        news.append(run_all(*arguments, **fields))
        return news[-1]

    rig.run_all = run
    return rig, news


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_every_message_becomes_whole_whatever_happens(uncoordinated, seed):
    """Messages in chunks, batches and plain ones, some delayed and some in transactions, come whole and once.

    Consumers have few permits, come and go, and give back what they have.  The owner is killed at times.
    """
    chance = random.Random(seed)
    kind = list(KINDS.values())[seed % 3]
    rig, news = recorded(uncoordinated(roll_over_entries=20, **chance.choice((SPLIT, {}))))
    producer, clients, expected, seen = rig.producer("a"), [], [], []

    def taken(client, answers):
        """Return what the client says when it gets these entries."""
        done, back = [], []
        given = rig.delivered(answers, client.handle)
        for position, payload in given:
            if whole := client.take(position, payload):
                if chance.random() < 0.2:
                    back += whole
                else:
                    done += whole
                    seen.append(payload.split(b":")[0])
        sections = [rig.acks(client.handle, *done)] if done else []
        sections += [rig.redeliver(client.handle, *back)] if back else []
        return [*sections, rig.flow(client.handle, len(given) * chance.choice((1, 3)))] if given else []

    def play(*sections, after_ms=0):
        """Run a pass, and all that follows from it and from those before."""
        rig.run(*sections, after_ms=after_ms)
        while news:
            answers = news.popleft()
            for client in clients:
                if said := taken(client, answers):
                    rig.run(*said, after_ms=10)
            rig.partition("a").check()

    number = 0
    for _ in range(chance.randint(8, 14)):
        if chance.random() < 0.15:
            rig, news = recorded(uncoordinated.crash(rig))
            producer, clients = rig.producer("a"), []
        if not clients or (len(clients) < 4 and chance.random() < 0.6):
            clients.append(Client(rig.consumer("a", **kind)))
            play(rig.flow(clients[-1].handle, chance.randint(1, 9)))
        elif len(clients) > 1 and chance.random() < 0.4:
            gone = clients.pop(chance.randrange(len(clients)))
            rig.close_consumer(gone.handle)
            play()
        elif chance.random() < 0.3:
            client = chance.choice(clients)
            client.begun.clear()
            play(rig.redeliver(client.handle), rig.flow(client.handle, 1))
        streams = []
        for _ in range(chance.randint(1, 4)):
            number, of = number + 1, chance.choice((1, 1, 2, 3, 7))
            fields = {"partition_key": chance.choice("AB")} if chance.random() < 0.4 else {}
            if chance.random() < 0.2:
                fields["deliver_at_time"] = rig.now_ms + chance.randint(1, 3_000)
            if of == 1:
                streams.append([(producer, b"%d" % number, fields | {"batch": chance.choice((0, 3))})])
            else:
                streams.append([(producer, b"%d:%d:%d" % (number, at, of), {
                    "uuid": f"u{number}", "sequence_id": number, "chunk_id": at, "num_chunks_from_msg": of} | fields)
                    for at in range(of)])
        sends = []
        while streams:
            stream = chance.choice(streams)
            sends.append(stream.pop(0))
            streams = [one for one in streams if one]
        transaction, commits = rig.begin("a") if chance.random() < 0.3 else 0, chance.random() < 0.7
        if commits or not transaction:
            expected += {payload.split(b":")[0] for _, payload, _ in sends}
        at = 0
        while at < len(sends):
            some, at = sends[at:at + 3], at + 3
            section = rig.sends_in(transaction, *some) if transaction else rig.sends(*some)
            play(section)
        if transaction:
            rig.end(transaction, "a", commits=commits)
            play()
    for _ in range(99):      # the index of delayed entries is written and read by a thread
        rig.settle()
        play(*[rig.flow(client.handle, 1) for client in clients], after_ms=1_000)
        if len(seen) == len(expected):
            break
    assert sorted(seen) == sorted(expected)
    assert not rig.partition("a").subscriptions["sub", True].cursor.backlog(rig.partition("a").ledgers)
    assert not dispatcher(rig).chunks
